/* A trace through another allocator, timed: PyTorch's, whichever its environment chose, or the
   pool of CUDA (cudaMallocAsync). torch_replay.py builds this into a library and calls it, so
   that no Python is in what is timed. TORCH_REPLAY_DRY leaves PyTorch and CUDA out: a counter
   stands for an allocator. */
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

#ifndef TORCH_REPLAY_DRY
#include <c10/cuda/CUDACachingAllocator.h>
#include <cuda_runtime_api.h>
#endif

namespace {

struct Op {
    uint64_t bytes; /* 0: a free */
    uint64_t slot;
    uint64_t id; /* the trace's own number of the block */
};

struct Figures {
    double ns_cold, ns_warm; /* per operation, of the first and the last pass */
    uint64_t peak_reserved_bytes;
};

struct OutOfMemory {};

#ifdef TORCH_REPLAY_DRY

typedef void *cudaStream_t;

struct Streams {
    explicit Streams(uint64_t) {}
    cudaStream_t of(const Op &) const { return nullptr; }
};

struct Counter { /* rounds each block up to 4 KiB */
    uint64_t limit, held = 0, peak = 0;
    explicit Counter(uint64_t limit_bytes) : limit(limit_bytes) {}
    void *get(uint64_t bytes, cudaStream_t) {
        uint64_t size = (bytes + 4095) / 4096 * 4096;
        if (limit && held + size > limit) throw OutOfMemory();
        held += size;
        if (held > peak) peak = held;
        return reinterpret_cast<void *>(size);
    }
    void put(void *block, cudaStream_t) { held -= reinterpret_cast<uint64_t>(block); }
    void settle() {}
    uint64_t peak_reserved() { return peak; }
};
using Torch = Counter;
using Async = Counter;

#else

void check(cudaError_t error, const char *call) {
    if (error == cudaSuccess) return;
    cudaGetLastError();
    throw std::runtime_error(std::string(call) + ": " + cudaGetErrorString(error));
}

/* As build/replay spreads blocks: block ID on stream ID mod count; 0: all on the default stream. */
struct Streams {
    std::vector<cudaStream_t> stream;
    explicit Streams(uint64_t count) : stream(count) {
        for (cudaStream_t &s : stream) check(cudaStreamCreate(&s), "cudaStreamCreate");
    }
    ~Streams() {
        for (cudaStream_t s : stream) cudaStreamDestroy(s);
    }
    cudaStream_t of(const Op &op) const {
        return stream.empty() ? nullptr : stream[op.id % stream.size()];
    }
};

/* Emptied before and after; the limit is a share of the device's memory, which is all it takes. */
struct Torch {
    c10::cuda::CUDACachingAllocator::CUDAAllocator *from = c10::cuda::CUDACachingAllocator::get();
    c10::DeviceIndex device = 0;
    explicit Torch(uint64_t limit_bytes) {
        size_t free_bytes = 0, total_bytes = 0;
        int current = 0, devices = 0;
        check(cudaGetDeviceCount(&devices), "cudaGetDeviceCount");
        check(cudaGetDevice(&current), "cudaGetDevice");
        check(cudaMemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo");
        device = static_cast<c10::DeviceIndex>(current);
        if (!from->initialized()) from->init(devices);
        from->emptyCache();
        double share = (static_cast<double>(limit_bytes) + 0.5) / static_cast<double>(total_bytes);
        from->setMemoryFraction(limit_bytes && share < 1 ? share : 1, device);
        from->resetPeakStats(device);
    }
    ~Torch() {
        from->setMemoryFraction(1, device);
        from->emptyCache(); /* its streams end with the replay */
    }
    void *get(uint64_t bytes, cudaStream_t stream) {
        try {
            return from->raw_alloc_with_stream(bytes, stream);
        } catch (const c10::OutOfMemoryError &) {
            throw OutOfMemory();
        }
    }
    void put(void *block, cudaStream_t) { from->raw_delete(block); }
    void settle() { check(cudaDeviceSynchronize(), "cudaDeviceSynchronize"); }
    uint64_t peak_reserved() {
        return static_cast<uint64_t>(from->getDeviceStats(device).reserved_bytes[0].peak);
    }
};

/* A pool of its own that keeps all it gets, and whose size can be limited. */
struct Async {
    cudaMemPool_t pool = nullptr;
    explicit Async(uint64_t limit_bytes) {
        cudaMemPoolProps props = {};
        uint64_t keep = UINT64_MAX;
        int device = 0;
        check(cudaGetDevice(&device), "cudaGetDevice");
        props.allocType = cudaMemAllocationTypePinned;
        props.location.type = cudaMemLocationTypeDevice;
        props.location.id = device;
        props.maxSize = limit_bytes;
        check(cudaMemPoolCreate(&pool, &props), "cudaMemPoolCreate");
        check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep),
              "cudaMemPoolSetAttribute");
    }
    ~Async() {
        cudaDeviceSynchronize();
        cudaMemPoolDestroy(pool);
    }
    void *get(uint64_t bytes, cudaStream_t stream) {
        void *block = nullptr;
        cudaError_t error = cudaMallocFromPoolAsync(&block, bytes, pool, stream);
        if (error != cudaErrorMemoryAllocation) check(error, "cudaMallocFromPoolAsync");
        else {
            cudaGetLastError();
            throw OutOfMemory();
        }
        return block;
    }
    void put(void *block, cudaStream_t stream) {
        check(cudaFreeAsync(block, stream), "cudaFreeAsync");
    }
    void settle() { check(cudaDeviceSynchronize(), "cudaDeviceSynchronize"); }
    uint64_t peak_reserved() {
        uint64_t bytes = 0;
        check(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemHigh, &bytes),
              "cudaMemPoolGetAttribute");
        return bytes;
    }
};

#endif

struct Trace {
    const Op *op;
    uint64_t ops, slots, streams;
};

/* Nanoseconds per operation. What the trace leaves alive is freed outside the time. */
template <class Allocator>
double pass(Allocator &from, const Trace &t, const Streams &streams, std::vector<void *> &block) {
    auto start = std::chrono::steady_clock::now();
    for (const Op *at = t.op, *end = t.op + t.ops; at < end; at++) {
        void *&place = block[at->slot];
        if (at->bytes) {
            place = from.get(at->bytes, streams.of(*at));
        } else {
            from.put(place, streams.of(*at));
            place = nullptr;
        }
    }
    auto stop = std::chrono::steady_clock::now();
    return std::chrono::duration<double, std::nano>(stop - start).count() /
           static_cast<double>(t.ops);
}

template <class Allocator>
void free_all(Allocator &from, const Trace &t, const Streams &streams, std::vector<void *> &block) {
    for (uint64_t i = t.ops; i-- > 0;) { /* from the end: the last of a slot's blocks */
        void *&place = block[t.op[i].slot];
        if (place) from.put(place, streams.of(t.op[i]));
        place = nullptr;
    }
    from.settle();
}

template <class Allocator>
int replay(const Trace &t, uint64_t limit_bytes, int passes, Figures *out) {
    Streams streams(t.streams);
    Allocator from(limit_bytes);
    std::vector<void *> block(t.slots);
    try {
        for (int i = 0; i < passes; i++) {
            double ns = pass(from, t, streams, block);
            if (i == 0) out->ns_cold = ns;
            out->ns_warm = ns;
            free_all(from, t, streams, block);
        }
    } catch (const OutOfMemory &) {
        free_all(from, t, streams, block);
        return 1;
    }
    out->peak_reserved_bytes = from.peak_reserved();
    return 0;
}

} // namespace

extern "C" int torch_replay(int async, const Trace *trace, uint64_t limit_bytes, int passes,
                            Figures *out, char *error, uint64_t error_bytes);

/* limit_bytes 0: none. 0, or 1 when memory was out, or -1 with a sentence in error. */
extern "C" int torch_replay(int async, const Trace *trace, uint64_t limit_bytes, int passes,
                            Figures *out, char *error, uint64_t error_bytes) {
    try {
        return async ? replay<Async>(*trace, limit_bytes, passes, out)
                     : replay<Torch>(*trace, limit_bytes, passes, out);
    } catch (const std::exception &e) {
        std::snprintf(error, error_bytes, "%s", e.what());
        return -1;
    }
}
