/* share_kit.h: what the tests of memory that others hold share: an arena for that, blocks to be
   exported, what CUDA says of them, and the descriptors that are open. Include it after gpupool.h;
   the source defines _DEFAULT_SOURCE. */
#ifndef SHARE_KIT_H
#define SHARE_KIT_H

#include "arena_kit.h"

#include <cuda.h>
#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#define SHARE_GRANULE (2 * MIB)

static gpupool_arena *arena;

/* ---- descriptors ---- */

static inline int share_descriptors(void) {
    DIR *folder = opendir("/proc/self/fd");
    int count = -1; /* its own */
    if (!folder) return 0;
    for (struct dirent *entry = readdir(folder); entry; entry = readdir(folder))
        count += entry->d_name[0] != '.';
    closedir(folder);
    return count;
}

static inline int share_is_open(int descriptor) { return fcntl(descriptor, F_GETFD) != -1; }

/* ---- arenas and blocks ---- */

static inline gpupool_arena_config share_config(unsigned share) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
    config.share = share;
    return config;
}

/* chunk: the least to get from the driver at a time; 0: as the arena likes. */
static inline void share_open(size_t chunk, size_t limit) {
    gpupool_arena_config config = share_config(GPUPOOL_SHARE_PROCESSES);
    config.chunk_bytes = chunk;
    config.limit_bytes = limit;
    arena = kit_create(&config);
}

static inline void *share_try(size_t bytes, unsigned more) {
    return kit_alloc_as(arena, bytes, kit_stream[0], GPUPOOL_EXPORTABLE | more);
}

static inline char *share_get(size_t bytes) {
    char *block = (char *)share_try(bytes, 0);
    CHECK_RESULT(kit_why(block), GPUPOOL_OK);
    return block;
}

/* A block like any other. */
static inline void *share_any(size_t bytes) { return kit_alloc(arena, bytes, kit_stream[0]); }

static inline void share_put(void *block) {
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
}

static inline gpupool_exported share_exported(const void *block) {
    gpupool_exported exported;
    CHECK_RESULT(gpupool_export(arena, block, &exported), GPUPOOL_OK);
    return exported;
}

static inline void share_unexport(const void *block) {
    CHECK_RESULT(gpupool_export_close(arena, block), GPUPOOL_OK);
}

static inline gpupool_imported share_imported(int device, const gpupool_exported *exported) {
    gpupool_imported imported;
    CHECK_RESULT(gpupool_import(device, exported, &imported), GPUPOOL_OK);
    return imported;
}

static inline void share_unimport(gpupool_imported *imported) {
    CHECK_RESULT(gpupool_import_close(imported), GPUPOOL_OK);
}

/* ---- what CUDA says ---- */

static inline void *share_driver_call(const char *name) {
    enum cudaDriverEntryPointQueryResult found;
    void *call = NULL;
    CHECK_EQ(cudaGetDriverEntryPointByVersion(name, &call, 12000, cudaEnableDefault, &found),
             cudaSuccess);
    return call;
}

static inline int share_attribute(CUpointer_attribute which, const void *at) {
    CUresult(CUDAAPI *ask)(void *, CUpointer_attribute, CUdeviceptr);
    void *call = share_driver_call("cuPointerGetAttribute");
    unsigned long long value = 0; /* of several sizes */
    memcpy(&ask, &call, sizeof ask);
    CHECK_EQ(ask(&value, which, (CUdeviceptr)(uintptr_t)at), CUDA_SUCCESS);
    return (int)value;
}

/* The driver's allocation that the address lies in. */
static inline size_t share_range(const void *at, const char **base) {
    CUresult(CUDAAPI *ask)(CUdeviceptr *, size_t *, CUdeviceptr);
    void *call = share_driver_call("cuMemGetAddressRange");
    CUdeviceptr begin = 0;
    size_t bytes = 0;
    memcpy(&ask, &call, sizeof ask);
    CHECK_EQ(ask(&begin, &bytes, (CUdeviceptr)(uintptr_t)at), CUDA_SUCCESS);
    *base = (const char *)(uintptr_t)begin;
    return bytes;
}

static inline size_t share_rounded(size_t bytes) {
    return (bytes + SHARE_GRANULE - 1) / SHARE_GRANULE * SHARE_GRANULE;
}

/* An allocation of the driver's by itself, and no larger than need be. */
static inline void share_expect_alone(const void *block, size_t bytes) {
    const char *base = NULL;
    CHECK_EQ(share_range(block, &base), share_rounded(bytes));
    CHECK(base == block);
}

/* ---- the frame around a test: no descriptor may be left ---- */

static int share_before; /* descriptors that were open. A GPU's driver opens some when it likes */

static inline void share_prepare(void) {
    kit_prepare();
    share_before = share_descriptors();
}

static inline void share_settle(void) {
    if (CHECK_FAKE) CHECK_EQ(share_descriptors(), share_before);
    kit_settle();
}

#define SHARE_TEST(body) check_run(#body, body, share_prepare, share_settle)
#if CHECK_FAKE
#define SHARE_FAKE_TEST(body) SHARE_TEST(body)
#else
#define SHARE_FAKE_TEST(body) check_skip(#body, "needs fakecuda's controls")
#endif

#endif
