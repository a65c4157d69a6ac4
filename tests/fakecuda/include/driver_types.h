/* The types of the CUDA runtime that fakecuda implements: names and values as in CUDA 13.0. */
#ifndef FAKECUDA_DRIVER_TYPES_H
#define FAKECUDA_DRIVER_TYPES_H

#include <stddef.h>

#ifndef CUDART_CB
#define CUDART_CB
#endif
#ifndef CUDARTAPI
#define CUDARTAPI
#endif

typedef struct CUstream_st    *cudaStream_t;
typedef struct CUevent_st     *cudaEvent_t;
typedef struct CUgraph_st     *cudaGraph_t;
typedef struct CUgraphNode_st *cudaGraphNode_t;
typedef struct CUgraphExec_st *cudaGraphExec_t;
typedef void(CUDART_CB *cudaHostFn_t)(void *userData);

#ifndef __CUDACC__ /* as crt/host_defines.h for other compilers */
#define __host__
#define __device__
#endif

#define cudaStreamLegacy    ((cudaStream_t)0x1)
#define cudaStreamPerThread ((cudaStream_t)0x2)

#define cudaHostAllocDefault       0x00
#define cudaHostAllocPortable      0x01
#define cudaHostAllocMapped        0x02
#define cudaHostAllocWriteCombined 0x04
#define cudaHostRegisterDefault    0x00
#define cudaHostRegisterPortable   0x01
#define cudaHostRegisterMapped     0x02
#define cudaHostRegisterReadOnly   0x08
#define cudaPeerAccessDefault      0x00
#define cudaStreamDefault          0x00
#define cudaStreamNonBlocking      0x01
#define cudaEventDefault           0x00
#define cudaEventBlockingSync      0x01
#define cudaEventDisableTiming     0x02
#define cudaEventWaitDefault       0x00
#define cudaMemAttachGlobal        0x01
#define cudaMemAttachHost          0x02
#define cudaMemAttachSingle        0x04
#define cudaEnableDefault          0x00
#define cudaEnableLegacyStream     0x01
#define cudaEnablePerThreadDefaultStream 0x02
#define cudaCpuDeviceId            ((int)-1)
#define cudaInvalidDeviceId        ((int)-2)

enum cudaError {
    cudaSuccess                           = 0,
    cudaErrorInvalidValue                 = 1,
    cudaErrorMemoryAllocation             = 2,
    cudaErrorInitializationError          = 3,
    cudaErrorCudartUnloading              = 4,
    cudaErrorInvalidPitchValue            = 12,
    cudaErrorInvalidDevicePointer         = 17,
    cudaErrorInvalidMemcpyDirection       = 21,
    cudaErrorNoDevice                     = 100,
    cudaErrorInvalidDevice                = 101,
    cudaErrorDeviceUninitialized          = 201,
    cudaErrorAlreadyMapped                = 208,
    cudaErrorNotMapped                    = 211,
    cudaErrorInvalidResourceHandle        = 400,
    cudaErrorIllegalState                 = 401,
    cudaErrorSymbolNotFound               = 500,
    cudaErrorNotReady                     = 600,
    cudaErrorIllegalAddress               = 700,
    cudaErrorPeerAccessAlreadyEnabled     = 704,
    cudaErrorPeerAccessNotEnabled         = 705,
    cudaErrorContextIsDestroyed           = 709,
    cudaErrorHostMemoryAlreadyRegistered  = 712,
    cudaErrorHostMemoryNotRegistered      = 713,
    cudaErrorLaunchFailure                = 719,
    cudaErrorNotPermitted                 = 800,
    cudaErrorNotSupported                 = 801,
    cudaErrorStreamCaptureUnsupported     = 900,
    cudaErrorStreamCaptureInvalidated     = 901,
    cudaErrorStreamCaptureMerge           = 902,
    cudaErrorStreamCaptureUnmatched       = 903,
    cudaErrorStreamCaptureUnjoined        = 904,
    cudaErrorStreamCaptureIsolation       = 905,
    cudaErrorStreamCaptureImplicit        = 906,
    cudaErrorCapturedEvent                = 907,
    cudaErrorStreamCaptureWrongThread     = 908,
    cudaErrorTimeout                      = 909,
    cudaErrorUnknown                      = 999
};
typedef enum cudaError cudaError_t;

enum cudaMemcpyKind {
    cudaMemcpyHostToHost     = 0,
    cudaMemcpyHostToDevice   = 1,
    cudaMemcpyDeviceToHost   = 2,
    cudaMemcpyDeviceToDevice = 3,
    cudaMemcpyDefault        = 4
};

enum cudaMemoryType {
    cudaMemoryTypeUnregistered = 0,
    cudaMemoryTypeHost         = 1,
    cudaMemoryTypeDevice       = 2,
    cudaMemoryTypeManaged      = 3
};

struct cudaPointerAttributes {
    enum cudaMemoryType type;
    int                 device;
    void               *devicePointer;
    void               *hostPointer;
    long                reserved[8];
};

enum cudaStreamCaptureStatus {
    cudaStreamCaptureStatusNone        = 0,
    cudaStreamCaptureStatusActive      = 1,
    cudaStreamCaptureStatusInvalidated = 2
};

enum cudaStreamCaptureMode {
    cudaStreamCaptureModeGlobal      = 0,
    cudaStreamCaptureModeThreadLocal = 1,
    cudaStreamCaptureModeRelaxed     = 2
};

enum cudaDriverEntryPointQueryResult {
    cudaDriverEntryPointSuccess             = 0,
    cudaDriverEntryPointSymbolNotFound      = 1,
    cudaDriverEntryPointVersionNotSufficent = 2
};

enum cudaDeviceAttr {
    cudaDevAttrMaxThreadsPerBlock       = 1,
    cudaDevAttrWarpSize                 = 10,
    cudaDevAttrTextureAlignment         = 14,
    cudaDevAttrMultiProcessorCount      = 16,
    cudaDevAttrIntegrated               = 18,
    cudaDevAttrCanMapHostMemory         = 19,
    cudaDevAttrTccDriver                = 35,
    cudaDevAttrAsyncEngineCount         = 40,
    cudaDevAttrUnifiedAddressing        = 41,
    cudaDevAttrTexturePitchAlignment    = 51,
    cudaDevAttrComputeCapabilityMajor   = 75,
    cudaDevAttrComputeCapabilityMinor   = 76,
    cudaDevAttrManagedMemory            = 83,
    cudaDevAttrPageableMemoryAccess     = 88,
    cudaDevAttrConcurrentManagedAccess  = 89,
    cudaDevAttrHostRegisterSupported    = 99,
    cudaDevAttrMemoryPoolsSupported     = 115
};

typedef struct cudaGraphEdgeData_st {
    unsigned char from_port;
    unsigned char to_port;
    unsigned char type;
    unsigned char reserved[5];
} cudaGraphEdgeData;

#endif
