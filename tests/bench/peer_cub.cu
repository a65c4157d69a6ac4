/* CUB's CachingDeviceAllocator as a peer: a plug-in, since only nvcc compiles it. Its default keeps
   6 MB in five sizes, for CUB's own scratch memory; here every power of two has a bin and all is
   kept, so that it is measured as an allocator. */
#include "peer.h"

#include <atomic>
#include <cstdio>

/* What CUB calls goes through macros of the same names, and is counted. */
static std::atomic<uint64_t> made{0};
#define COUNTED(call) (made.fetch_add(1, std::memory_order_relaxed), call)
#define cudaMalloc(...) COUNTED(cudaMalloc(__VA_ARGS__))
#define cudaFree(...) COUNTED(cudaFree(__VA_ARGS__))
#define cudaGetDevice(...) COUNTED(cudaGetDevice(__VA_ARGS__))
#define cudaEventRecord(...) COUNTED(cudaEventRecord(__VA_ARGS__))
#define cudaEventQuery(...) COUNTED(cudaEventQuery(__VA_ARGS__))
#define cudaEventCreateWithFlags(...) COUNTED(cudaEventCreateWithFlags(__VA_ARGS__))
#include <cub/util_allocator.cuh>

namespace {

using Pool = cub::CachingDeviceAllocator;

void *open_pool(size_t limit_bytes, char why[BENCH_WHY]) {
    if (limit_bytes) {
        std::snprintf(why, BENCH_WHY, "it has no limit");
        return nullptr;
    }
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

/* It gives memory back only when the device is full: what it holds is the most that it held. */
uint64_t reserved_peak(void *pool) {
    const auto &bytes = static_cast<Pool *>(pool)->cached_bytes;
    auto of = bytes.find(0);
    return of == bytes.end() ? 0 : of->second.free + of->second.live;
}

uint64_t calls(void *) { return made.load(); }

void close_pool(void *pool) { delete static_cast<Pool *>(pool); }

} // namespace

extern "C" const bench_peer bench_plugin;
const bench_peer bench_plugin = {"CUB",
                                 "CachingDeviceAllocator with a bin for every power of two",
                                 BENCH_BLOCKS | BENCH_DEVICE,
                                 open_pool, get, put, close_pool, reserved_peak, calls,
                                 nullptr, nullptr, nullptr, nullptr, get, put};
