/* How does PyTorch call gpupool? Through this library, which pytorch_allocator.py builds and loads.

   What to look at: the functions that torch.cuda.memory.CUDAPluggableAllocator calls. They are C++,
   because C cannot refuse a tensor: PyTorch makes a tensor of NULL. C++ throws PyTorch's own
   exception, with gpupool's reason.
   Build: c++ -std=c++17 -O2 -shared -fPIC -I.. -I$CUDA_HOME/include -I$TORCH/include \
       pytorch_allocator.cpp -L$CUDA_HOME/lib64 -lcudart -L$TORCH/lib -lc10 -o allocator.so */
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "pytorch_graphs.hpp"

#include <cmath>
#include <set>
#include <string>

namespace {

std::atomic<gpupool_arena *> arenas[64]; /* by device */
std::mutex making;

/* Streams that Tensor.record_stream named. PyTorch means the work that they have when the tensor
   dies, gpupool_record_stream the work that they have when it is called. */
std::mutex lent_lock;
std::unordered_map<void *, std::set<cudaStream_t>> lent;
std::atomic<size_t> lent_count{0};

/* As PyTorch's own allocator writes a size. */
std::string words_for(size_t bytes) {
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB"};
    char words[40];
    int unit = bytes <= 1024 ? 0 : bytes <= 1 << 20 ? 1 : bytes <= 1 << 30 ? 2 : 3;
    snprintf(words, sizeof words, "%.*f %s", unit ? 2 : 0, ldexp((double)bytes, -10 * unit),
             units[unit]);
    return words;
}

/* For PyTorch more than any device has is out of memory, for gpupool_alloc a mistake. */
void refuse(size_t bytes) {
    const gpupool_result result = gpupool_last_result();
    if (result != GPUPOOL_E_OUT_OF_MEMORY && result != GPUPOOL_E_ARGUMENT) MUST(result);
    TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. Tried to allocate ",
                     words_for(bytes), ". ", gpupool_last_error());
}

gpupool_arena *arena_of(int device) {
    TORCH_CHECK(device >= 0 && device < 64, "gpupool: no device ", device);
    gpupool_arena *arena = arenas[device].load(std::memory_order_acquire);
    if (arena) return arena;
    const std::lock_guard<std::mutex> hold(making);
    if (arenas[device]) return arenas[device];
    gpupool_arena_config config = {};
    config.device = device;
    config.name = "PyTorch";
    config.chunk_bytes = 4 << 20; /* training is slow, and memory dear: move it in small pieces */
    MUST(gpupool_arena_create(&arena, &config));
    arenas[device].store(arena, std::memory_order_release);
    return arena;
}

} // namespace
extern "C" {

void *gpupool_torch_alloc(size_t bytes, int device, cudaStream_t stream) {
    if (bytes == 0) return nullptr; /* an empty tensor's; to gpupool_alloc it is a mistake */
    gpupool_arena *arena = arena_of(device);
    std::pair<int, graphs::pool_id> graph;
    bool captured = graphs::opened > 0 && graphs::enter(arena, device, stream, &graph);
    void *block = gpupool_alloc(arena, bytes, stream);
    if (block && captured) graphs::own(block, graph);
    if (!block) refuse(bytes);
    return block;
}

/* stream is the one that the block was allocated on. Destructors call this, so there is nobody to
   throw at. In a forked child, a DataLoader's worker say, the memory is the parent's to free. */
void gpupool_torch_free(void *block, size_t, int device, cudaStream_t stream) {
    if (!block) return;
    gpupool_arena *arena = arenas[device];
    gpupool_result result = GPUPOOL_OK;
    std::set<cudaStream_t> others;
    if (lent_count > 0) {
        const std::lock_guard<std::mutex> hold(lent_lock);
        auto node = lent.extract(block);
        if (!node.empty()) others.swap(node.mapped());
        lent_count = lent.size();
    }
    others.erase(stream);
    bool captured = graphs::owned > 0 && graphs::is_owned(block);
    if (!captured) /* if one cannot be asked, the memory is kept */
        for (cudaStream_t other : others)
            if (!result) result = gpupool_record_stream(arena, block, other);
    /* a graph's, and lent inside of it: its other streams are not to have it again */
    if (!result && !(captured && !others.empty())) result = gpupool_free(arena, block, stream);
    if (result && result != GPUPOOL_E_FORKED)
        fprintf(stderr, "gpupool: %s\n", gpupool_last_error());
    if (captured) graphs::disown(block);
}

void gpupool_torch_record_stream(void *block, cudaStream_t stream) {
    cudaPointerAttributes where = {};
    if (!block) return;
    MUST_CUDA(cudaPointerGetAttributes(&where, block));
    gpupool_arena *arena = where.device < 0 ? nullptr : arenas[where.device].load();
    gpupool_block found;
    if (!arena || gpupool_get_block(arena, block, &found) != GPUPOOL_OK) return; /* not ours */
    const std::lock_guard<std::mutex> hold(lent_lock);
    lent[block].insert(stream);
    lent_count = lent.size();
}

/* torch.cuda.empty_cache(): PyTorch's own waits for what is in flight, so this does. */
void gpupool_torch_empty_cache(void) {
    MUST_CUDA(cudaDeviceSynchronize());
    for (gpupool_arena *arena : arenas)
        if (arena) MUST(gpupool_trim(arena, 0, nullptr));
}

/* torch.cuda.set_per_process_memory_fraction() */
void gpupool_torch_fraction(double fraction, int device) {
    char text[32];
    snprintf(text, sizeof text, "%.6f%%", fraction * 100);
    MUST(gpupool_set_limit_text(arena_of(device), text));
}

gpupool_arena *gpupool_torch_arena(int device) { return arenas[device]; }

} /* extern "C" */
