/* PyTorch on gpupool: the shared library that pytorch_allocator.py builds and loads.

   What to see: the five functions that torch.cuda.memory.CUDAPluggableAllocator can call. They are
   C++ because a C function has no way to refuse: PyTorch takes whatever pointer comes back, and
   NULL becomes a tensor at address 0. Here it gets its own exception, with gpupool's verdict in it.

   c++ -std=c++17 -O2 -shared -fPIC -I.. -I$CUDA_HOME/include -I$TORCH/include \
       pytorch_allocator.cpp -L$CUDA_HOME/lib64 -lcudart -L$TORCH/lib -lc10 -o allocator.so */
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace {

constexpr int devices_max = 64;
std::atomic<gpupool_arena *> arenas[devices_max]; /* those in use so far */

/* Streams that a tensor was lent to with Tensor.record_stream. PyTorch counts the work that they
   have when the tensor dies, gpupool_record_use the work that they have when it is called: so they
   are kept until then. */
std::mutex lent_lock;
std::unordered_map<void *, std::vector<cudaStream_t>> lent;
std::atomic<size_t> lent_count{0};

gpupool_arena *arena_of(int device) {
    TORCH_CHECK(device >= 0 && device < devices_max, "gpupool: no device ", device);
    gpupool_arena *arena = arenas[device].load(std::memory_order_acquire);
    if (arena) return arena;
    arena = gpupool_default_arena(device);
    TORCH_CHECK(arena, "gpupool: ", gpupool_last_error());
    arenas[device].store(arena, std::memory_order_release);
    return arena;
}

std::vector<cudaStream_t> take_lent(void *block) {
    std::vector<cudaStream_t> streams;
    if (lent_count.load(std::memory_order_relaxed) == 0) return streams;
    const std::lock_guard<std::mutex> hold(lent_lock);
    auto at = lent.find(block);
    if (at == lent.end()) return streams;
    streams.swap(at->second);
    lent.erase(at);
    lent_count--;
    return streams;
}

/* A destructor calls, so there is nobody to throw at. In a forked child, a DataLoader's worker say,
   memory of the parent is none of ours: the parent will free it. */
void complain(const char *what) {
    if (gpupool_last_result() != GPUPOOL_E_FORKED)
        fprintf(stderr, "gpupool: %s: %s\n", what, gpupool_last_error());
}

} // namespace

extern "C" {

void *gpupool_torch_alloc(size_t bytes, int device, cudaStream_t stream) {
    if (bytes == 0) return nullptr;
    void *block = gpupool_alloc(arena_of(device), bytes, stream);
    if (block) return block;
    gpupool_verdict why;
    if (gpupool_last_result() == GPUPOOL_E_OUT_OF_MEMORY &&
        gpupool_last_verdict(&why) == GPUPOOL_OK)
        TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. ", why.sentence);
    TORCH_CHECK(false, "gpupool: ", gpupool_last_error());
    return nullptr;
}

/* stream is the one that the block was allocated on. */
void gpupool_torch_free(void *block, size_t, int device, cudaStream_t stream) {
    gpupool_arena *arena = arenas[device].load(std::memory_order_acquire);
    for (cudaStream_t other : take_lent(block)) {
        if (other == stream || gpupool_record_use(arena, block, other) == GPUPOOL_OK) continue;
        complain("a tensor's memory is kept for ever, since a stream that uses it cannot be asked");
        return;
    }
    if (gpupool_free(arena, block, stream) != GPUPOOL_OK) complain("free");
}

void gpupool_torch_record_stream(void *block, cudaStream_t stream) {
    cudaPointerAttributes where;
    if (!block) return;
    if (cudaPointerGetAttributes(&where, block) != cudaSuccess) {
        cudaGetLastError();
        return;
    }
    gpupool_arena *arena = where.device < 0 ? nullptr : arenas[where.device].load();
    if (!arena || gpupool_size(arena, block) == 0) return; /* memory from elsewhere */
    const std::lock_guard<std::mutex> hold(lent_lock);
    std::vector<cudaStream_t> &streams = lent[block];
    if (streams.empty()) lent_count++;
    if (std::find(streams.begin(), streams.end(), stream) == streams.end())
        streams.push_back(stream);
}

/* torch.cuda.empty_cache(): PyTorch's own waits for what is in flight, so this does. */
void gpupool_torch_empty_cache(void) {
    int before = 0;
    TORCH_CHECK(cudaGetDevice(&before) == cudaSuccess, "gpupool: no current device");
    for (int device = 0; device < devices_max; device++) {
        gpupool_arena *arena = arenas[device].load(std::memory_order_acquire);
        if (!arena) continue;
        cudaError_t error = cudaSetDevice(device);
        if (error == cudaSuccess) error = cudaDeviceSynchronize();
        cudaSetDevice(before);
        TORCH_CHECK(error == cudaSuccess, "gpupool: ", cudaGetErrorString(error));
        TORCH_CHECK(gpupool_trim(arena, 0, nullptr) == GPUPOOL_OK, "gpupool: ",
                    gpupool_last_error());
    }
}

/* torch.cuda.set_per_process_memory_fraction() */
void gpupool_torch_fraction(double fraction, int device) {
    TORCH_CHECK(gpupool_set_limit_fraction(arena_of(device), fraction) == GPUPOOL_OK, "gpupool: ",
                gpupool_last_error());
}

/* Bytes, now and at most: asked for by live tensors, held from the driver. Not for PyTorch but for
   pytorch_allocator.py, through ctypes, where nothing may be thrown. */
int gpupool_torch_bytes(int device, uint64_t out[4]) {
    gpupool_stats stats;
    gpupool_arena *arena = device >= 0 && device < devices_max ? arenas[device].load() : nullptr;
    if (!arena || gpupool_get_stats(arena, &stats) != GPUPOOL_OK) return -1;
    out[0] = stats.requested.now;
    out[1] = stats.requested.peak;
    out[2] = stats.reserved.now;
    out[3] = stats.reserved.peak;
    return 0;
}

} /* extern "C" */
