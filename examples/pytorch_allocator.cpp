/* PyTorch on gpupool: the shared library that pytorch_allocator.py builds and loads.

   What to see: what torch.cuda.memory.CUDAPluggableAllocator can call. It is C++ because C has no
   way to refuse: PyTorch makes a tensor of NULL. Here it gets its own exception, and the verdict.
   c++ -std=c++17 -O2 -shared -fPIC -I.. -I$CUDA_HOME/include -I$TORCH/include \
       pytorch_allocator.cpp -L$CUDA_HOME/lib64 -lcudart -L$TORCH/lib -lc10 -o allocator.so */
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "pytorch_graphs.hpp"

#include <algorithm>
#include <set>

namespace {

/* PyTorch's host runs ahead of its device, where an arena without a limit grows rather than wait
   until idle memory can be moved. So while all tensors are of one stream, the limit follows what
   they held at most, a fiftieth above it, and goes higher only where no move will do. Several
   streams cannot have each other's memory without waiting: then the arena decides for itself. */
struct pool {
    std::atomic<gpupool_arena *> arena{nullptr};
    std::atomic<size_t> live{0}, live_peak{0}; /* bytes of tensors */
    std::atomic<cudaStream_t> stream{nullptr}; /* of the first tensor */
    std::atomic<bool> streams{false};          /* there are several */
    std::recursive_mutex lock;
    size_t allowed = 0, limit = SIZE_MAX;      /* the arena's limit; the user's */
} pools[64];

/* Streams that Tensor.record_stream named. PyTorch means the work that they have when the tensor
   dies, gpupool_record_use the work that they have when it is called. */
std::mutex lent_lock;
std::unordered_map<void *, std::set<cudaStream_t>> lent;
std::atomic<size_t> lent_count{0};

size_t units(size_t bytes) { return (bytes + 511) / 512 * 512; }
size_t enough_for(const pool &of, size_t live) {
    return of.streams ? SIZE_MAX : live + live / 50 + (16 << 20);
}

void allow(pool &of, size_t bytes, bool anew = false) {
    const std::lock_guard<std::recursive_mutex> hold(of.lock);
    of.allowed = std::min(anew ? bytes : std::max(of.allowed, bytes), of.limit);
    MUST(gpupool_set_limit(of.arena, of.allowed == SIZE_MAX ? 0 : of.allowed));
}

int allow_more(const gpupool_verdict *why, void *user) {
    pool &of = *static_cast<pool *>(user);
    const std::lock_guard<std::recursive_mutex> hold(of.lock);
    bool ours = why->cause == GPUPOOL_CAUSE_LIMIT || why->cause == GPUPOOL_CAUSE_FRAGMENTED;
    if (!ours || of.allowed == of.limit) return 0;
    allow(of, std::max(of.allowed, why->reserved_bytes) + why->asked_bytes);
    return 1;
}

pool &pool_of(int device, cudaStream_t stream = nullptr) {
    TORCH_CHECK(device >= 0 && device < 64, "gpupool: no device ", device);
    pool &of = pools[device];
    if (of.arena.load(std::memory_order_acquire)) return of;
    const std::lock_guard<std::recursive_mutex> hold(of.lock);
    if (of.arena) return of;
    gpupool_arena *arena;
    gpupool_arena_config config = {};
    config.device = device;
    config.on_out_of_memory = allow_more;
    config.user = &of;
    config.name = "PyTorch";
    MUST(gpupool_arena_create(&arena, &config));
    if (gpupool_get_limit(arena)) of.limit = gpupool_get_limit(arena);
    of.stream = stream;
    of.arena.store(arena, std::memory_order_release);
    return of;
}

} // namespace
extern "C" {

void *gpupool_torch_alloc(size_t bytes, int device, cudaStream_t stream) {
    if (bytes == 0) return nullptr;
    pool &of = pool_of(device, stream);
    std::pair<int, graphs::pool_id> graph;
    bool captured = graphs::opened > 0 && graphs::enter(of.arena, device, stream, &graph);
    size_t live = of.live += units(bytes);
    bool another = (captured || stream != of.stream) && !of.streams.exchange(true);
    if (live > of.live_peak || another) allow(of, enough_for(of, live));
    void *block = gpupool_alloc(of.arena, bytes, stream);
    if (block && live > of.live_peak) of.live_peak = live;
    if (block && captured) graphs::own(block, graph);
    if (block) return block;
    gpupool_verdict why;
    of.live -= units(bytes);
    if (gpupool_last_result() != GPUPOOL_E_OUT_OF_MEMORY) MUST(gpupool_last_result());
    MUST(gpupool_last_verdict(&why));
    allow(of, enough_for(of, of.live_peak), true); /* not what was allowed in vain */
    TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. ", why.sentence);
    return nullptr;
}

/* stream is the one that the block was allocated on. Destructors call this, so there is nobody to
   throw at. In a forked child, a DataLoader's worker say, the memory is the parent's to free. */
void gpupool_torch_free(void *block, size_t bytes, int device, cudaStream_t stream) {
    pool &of = pools[device];
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
            if (!result) result = gpupool_record_use(of.arena, block, other);
    /* a graph's, and lent inside of it: its other streams are not to have it again */
    if (!result && !(captured && !others.empty())) result = gpupool_free(of.arena, block, stream);
    if (!result) of.live -= units(bytes);
    else if (result != GPUPOOL_E_FORKED) fprintf(stderr, "gpupool: %s\n", gpupool_last_error());
    if (captured) graphs::disown(block);
}

void gpupool_torch_record_stream(void *block, cudaStream_t stream) {
    cudaPointerAttributes where = {};
    if (block) MUST_CUDA(cudaPointerGetAttributes(&where, block));
    gpupool_arena *arena = where.device < 0 ? nullptr : pools[where.device].arena.load();
    if (!arena || gpupool_size(arena, block) == 0) return; /* memory from elsewhere */
    const std::lock_guard<std::mutex> hold(lent_lock);
    lent[block].insert(stream);
    lent_count = lent.size();
}

/* torch.cuda.empty_cache(): PyTorch's own waits for what is in flight, so this does. */
void gpupool_torch_empty_cache(void) {
    MUST_CUDA(cudaDeviceSynchronize());
    for (pool &of : pools)
        if (of.arena) MUST(gpupool_trim(of.arena, 0, nullptr));
}

/* torch.cuda.set_per_process_memory_fraction() */
void gpupool_torch_fraction(double fraction, int device) {
    pool &of = pool_of(device);
    const std::lock_guard<std::recursive_mutex> hold(of.lock);
    MUST(gpupool_set_limit_fraction(of.arena, fraction));
    of.limit = gpupool_get_limit(of.arena);
    allow(of, enough_for(of, of.live_peak), true);
}

gpupool_arena *gpupool_torch_arena(int device) { return pools[device].arena; }

} /* extern "C" */
