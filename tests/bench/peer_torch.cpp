/* PyTorch's allocator as a peer: a plug-in, driven below Python. */
#include "peer.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>

namespace {

namespace torch_cuda = c10::cuda::CUDACachingAllocator;

/* The share of the device's memory, which is all that it takes as a limit; 0: none. */
void set_limit(size_t limit_bytes) {
    size_t free_bytes = 0, total_bytes = 1;
    cudaMemGetInfo(&free_bytes, &total_bytes);
    double share = (static_cast<double>(limit_bytes) + 0.5) / static_cast<double>(total_bytes);
    torch_cuda::get()->setMemoryFraction(limit_bytes && share < 1 ? share : 1, 0);
}

/* What the environment asks for is in use, or not asked for. */
bool is_as_asked() {
    const char *asked = std::getenv("PYTORCH_CUDA_ALLOC_CONF");
    if (!asked || !std::strstr(asked, "expandable_segments:True")) return true;
    void *block = torch_cuda::get()->raw_alloc(4 << 20);
    bool expands = false;
    for (const auto &segment : torch_cuda::get()->snapshot().segments)
        expands |= segment.is_expandable;
    torch_cuda::get()->raw_delete(block);
    return expands;
}

void *open_torch(size_t limit_bytes, char why[BENCH_WHY]) {
    try {
        int devices = 0;
        if (limit_bytes && limit_bytes < (size_t(64) << 20)) {
            std::snprintf(why, BENCH_WHY, "no limit as small as this work needs");
            return nullptr;
        }
        if (cudaGetDeviceCount(&devices) != cudaSuccess || !devices) {
            std::snprintf(why, BENCH_WHY, "PyTorch's CUDA runtime sees no GPU");
            return nullptr;
        }
        if (!torch_cuda::get()->initialized()) torch_cuda::get()->init(devices);
        if (!is_as_asked()) {
            std::snprintf(why, BENCH_WHY, "it does not use expandable segments here");
            return nullptr;
        }
        torch_cuda::emptyCache();
        set_limit(limit_bytes);
        torch_cuda::get()->resetPeakStats(0);
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

uint64_t reserved_peak(void *) {
    return static_cast<uint64_t>(torch_cuda::get()->getDeviceStats(0).reserved_bytes[0].peak);
}

/* Segments that it got or gave back: it tells no more. */
uint64_t calls(void *) {
    const auto stats = torch_cuda::get()->getDeviceStats(0);
    return static_cast<uint64_t>(stats.num_device_alloc + stats.num_device_free);
}

void close_torch(void *) {
    cudaDeviceSynchronize();
    set_limit(0);
    torch_cuda::emptyCache();
}

} // namespace

extern "C" const bench_peer bench_plugin;
const bench_peer bench_plugin = {
    "PyTorch", "raw_alloc_with_stream and raw_delete of its caching allocator",
    BENCH_BLOCKS | BENCH_DEVICE,
    open_torch, get, put, close_torch, reserved_peak, calls,
    nullptr, nullptr, nullptr, nullptr, get, put};
