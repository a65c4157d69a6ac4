/* PyTorch's allocator as a peer: a plug-in, driven below Python. */
#include "peer.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <cstdio>
#include <exception>

namespace {

namespace torch_cuda = c10::cuda::CUDACachingAllocator;

void *open_torch(size_t limit_bytes, size_t, char why[BENCH_WHY]) {
    try {
        int devices = 0;
        if (limit_bytes) {
            std::snprintf(why, BENCH_WHY, "no limit as small as this work needs");
            return nullptr;
        }
        if (cudaGetDeviceCount(&devices) != cudaSuccess || !devices) {
            std::snprintf(why, BENCH_WHY, "PyTorch's CUDA runtime sees no GPU");
            return nullptr;
        }
        if (!torch_cuda::get()->initialized()) torch_cuda::get()->init(devices);
        torch_cuda::emptyCache();
        return torch_cuda::get();
    } catch (const std::exception &e) {
        std::snprintf(why, BENCH_WHY, "%.150s", e.what());
        return nullptr;
    }
}

void *get(void *pool, size_t bytes, cudaStream_t stream) {
    try {
        return static_cast<torch_cuda::CUDAAllocator *>(pool)->raw_alloc_with_stream(bytes, stream);
    } catch (const std::exception &) {
        return nullptr;
    }
}

int put(void *pool, void *block, cudaStream_t) {
    static_cast<torch_cuda::CUDAAllocator *>(pool)->raw_delete(block);
    return 0;
}

void close_torch(void *) {
    cudaDeviceSynchronize();
    torch_cuda::emptyCache();
}

} // namespace

extern "C" const bench_peer bench_plugin;
const bench_peer bench_plugin = {
    "PyTorch", "raw_alloc_with_stream and raw_delete of its caching allocator",
    BENCH_BLOCKS | BENCH_DEVICE | BENCH_THREADS | BENCH_MANY | BENCH_HUGE,
    open_torch, get, put, close_torch, nullptr};
