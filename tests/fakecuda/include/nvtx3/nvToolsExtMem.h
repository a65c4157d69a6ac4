/* The part of NVTX's memory extension that gpupool.h uses, where there is no CUDA toolkit. What it
   is told goes to fk_nvtx.c; names and layouts are those of CUDA 13. */
#ifndef FAKECUDA_NVTX_MEM_H
#define FAKECUDA_NVTX_MEM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define NVTX_EXT_COMPATID_MEM 0x0102
#define NVTX_MEM_HEAP_USAGE_TYPE_SUB_ALLOCATOR 0x1
#define NVTX_MEM_TYPE_VIRTUAL_ADDRESS 0x1
#define NVTX_MEM_REGION_REF_TYPE_POINTER 0x1
#define NVTX_MESSAGE_TYPE_ASCII 1

typedef struct nvtxDomainRegistration_st *nvtxDomainHandle_t;
typedef struct nvtxMemHeap_v1 *nvtxMemHeapHandle_t;
typedef struct nvtxMemRegion_v1 *nvtxMemRegionHandle_t;
typedef union nvtxMessageValue_t { const char *ascii; const void *other; } nvtxMessageValue_t;
typedef union nvtxMemRegionRef_t {
    void const *pointer;
    nvtxMemRegionHandle_t handle;
} nvtxMemRegionRef_t;

typedef struct nvtxMemVirtualRangeDesc_v1 {
    size_t size;
    void const *ptr;
} nvtxMemVirtualRangeDesc_t;

typedef struct nvtxMemHeapDesc_v1 {
    uint16_t extCompatID, structSize;
    uint32_t reserved0, usage, type;
    size_t typeSpecificDescSize;
    void const *typeSpecificDesc;
    uint32_t category, messageType;
    nvtxMessageValue_t message;
} nvtxMemHeapDesc_t;

typedef struct nvtxMemRegionsRegisterBatch_v1 {
    uint16_t extCompatID, structSize;
    uint32_t regionType;
    nvtxMemHeapHandle_t heap;
    size_t regionCount, regionDescElementSize;
    void const *regionDescElements;
    nvtxMemRegionHandle_t *regionHandleElementsOut;
} nvtxMemRegionsRegisterBatch_t;

typedef struct nvtxMemRegionsUnregisterBatch_v1 {
    uint16_t extCompatID, structSize;
    uint32_t refType;
    size_t refCount, refElementSize;
    nvtxMemRegionRef_t const *refElements;
} nvtxMemRegionsUnregisterBatch_t;

typedef struct nvtxMemRegionNameDesc_v1 {
    uint32_t regionRefType, nameType;
    nvtxMemRegionRef_t region;
    nvtxMessageValue_t name;
    uint32_t category, reserved0;
} nvtxMemRegionNameDesc_t;

typedef struct nvtxMemRegionsNameBatch_v1 {
    uint16_t extCompatID, structSize;
    uint32_t reserved0;
    size_t regionCount, regionElementSize;
    nvtxMemRegionNameDesc_t const *regionElements;
    size_t reserved1;
} nvtxMemRegionsNameBatch_t;

nvtxMemHeapHandle_t nvtxMemHeapRegister(nvtxDomainHandle_t, nvtxMemHeapDesc_t const *);
void nvtxMemHeapUnregister(nvtxDomainHandle_t, nvtxMemHeapHandle_t);
void nvtxMemRegionsRegister(nvtxDomainHandle_t, nvtxMemRegionsRegisterBatch_t const *);
void nvtxMemRegionsUnregister(nvtxDomainHandle_t, nvtxMemRegionsUnregisterBatch_t const *);
void nvtxMemRegionsName(nvtxDomainHandle_t, nvtxMemRegionsNameBatch_t const *);

#ifdef __cplusplus
}
#endif
#endif
