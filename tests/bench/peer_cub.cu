/* CUB's CachingDeviceAllocator as a peer: a plug-in, since only nvcc compiles it. Its default keeps
   6 MB in five sizes, for CUB's own scratch memory; here every power of two has a bin and all is
   kept, so that it is measured as an allocator. */
#include "peer.h"

#include <cstdio>
#include <cub/util_allocator.cuh>

namespace {

using Pool = cub::CachingDeviceAllocator;

void *open_pool(size_t, size_t, char why[BENCH_WHY]) {
    try {
        return new Pool(2, 9, 40, Pool::INVALID_SIZE);
    } catch (const std::exception &e) {
        std::snprintf(why, BENCH_WHY, "%s", e.what());
        return nullptr;
    }
}

void *get(void *pool, size_t bytes, cudaStream_t stream) {
    void *block = nullptr;
    cudaError_t error = static_cast<Pool *>(pool)->DeviceAllocate(&block, bytes, stream);
    return error == cudaSuccess ? block : nullptr;
}

int put(void *pool, void *block, cudaStream_t) {
    return static_cast<Pool *>(pool)->DeviceFree(block) != cudaSuccess;
}

void close_pool(void *pool) { delete static_cast<Pool *>(pool); }

} // namespace

extern "C" const bench_peer bench_plugin;
const bench_peer bench_plugin = {"CUB",
                                 "CachingDeviceAllocator with a bin for every power of two",
                                 BENCH_BLOCKS | BENCH_DEVICE | BENCH_THREADS | BENCH_MANY,
                                 open_pool, get, put, close_pool, nullptr};
