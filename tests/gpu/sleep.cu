/* Sleep and waking, over and over: work on three streams, sleep, waking, work. Kernels stamp blocks
   and verify after waking what was kept; a graph that was captured before is launched again at the
   same addresses; blocks are freed while they sleep. What a sleeping arena leaves of the device's
   memory, and what a thousand cycles add to the device's and the host's, is printed and judged.
   Then others fill the device, and waking fails until they have gone.
   sleep [CYCLES [LIMIT_MIB [SEED]]]: 1000, 2048 (at least 1280) and 1 by default. */
#include "kit.h"

#include <algorithm>
#include <malloc.h>
#include <random>
#include <unistd.h>

enum {
    STREAMS = 3,
    BLOCKS = 256,
    NOISE_MIB = 4,   /* of the driver and of malloc */
    KEPT_MIB = 704,  /* of live blocks: what is kept is copied, which takes long */
    GRAPH_MIB = 40,  /* of each stitched block that the graph uses */
    SCOPE_MIB = 6,   /* of each block of its scope */
    FREE_CHUNKS = 64 /* when stitched blocks are made */
};

static long cycles = 1000;
static size_t limit = 2048 * MIB;

static gpupool_arena *pool;
static cudaStream_t streams[STREAMS];
static std::mt19937_64 rng;

static size_t below(size_t bound) { return (size_t)(rng() % bound); }

/* ---- what is in use ---- */

static size_t free_bytes() { /* of the device's memory */
    size_t bytes = 0, total = 0;
    CUDA(cudaMemGetInfo(&bytes, &total));
    return bytes;
}

static double in_mib(size_t more, size_t than) { /* the difference, which may be below 0 */
    return ((double)more - (double)than) / (double)MIB;
}

static size_t resident_bytes() { /* of this process, without what malloc keeps for later */
    unsigned long all = 0, resident = 0;
    malloc_trim(0);
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file && fscanf(file, "%lu %lu", &all, &resident) == 2);
    if (file) fclose(file);
    return (size_t)resident * (size_t)sysconf(_SC_PAGESIZE);
}

static size_t median(std::vector<size_t> all) {
    if (all.empty()) return 0;
    std::sort(all.begin(), all.end());
    return all[all.size() / 2];
}

static void open_arena() {
    gpupool_arena_config config = {};
    config.source = GPUPOOL_SOURCE_MAPPED;
    config.chunk_bytes = KIT_CHUNK;
    config.limit_bytes = limit;
    POOL(gpupool_arena_create(&pool, &config));
    if (!pool) exit(1);
}

/* ---- blocks ---- */

struct block {
    void *at;
    size_t bytes;
    word mark;
    cudaStream_t stream;
};

static std::vector<block> blocks;
static word marks, refused;

static void stamp(block &b) {
    b.mark = ++marks << 32;
    kit_stamp(b.at, b.bytes, b.mark, b.stream);
}

static void verify(const block &b) { kit_verify(b.at, b.bytes, b.mark, b.stream); }

static size_t a_size() { /* small, middle, or large enough to be stitched */
    size_t kind = below(8), bits = kind < 4 ? below(7) : kind < 6 ? 7 + below(6) : 14 + below(3);
    size_t size = (size_t)512 << bits;
    return (size + below(size)) / sizeof(word) * sizeof(word);
}

static void take(block &b, size_t bytes) {
    b.bytes = bytes;
    b.stream = streams[below(STREAMS)];
    b.at = gpupool_alloc(pool, b.bytes, b.stream);
    if (b.at) {
        stamp(b);
    } else {
        CHECK(gpupool_last_result() == GPUPOOL_E_OUT_OF_MEMORY);
        refused++;
    }
}

static void let_go(block &b) {
    POOL(gpupool_free(pool, b.at, b.stream));
    b.at = nullptr;
}

static void drop(block &b) {
    if (!b.at) return;
    verify(b);
    let_go(b);
}

/* After waking: what was kept is there; what was discarded is stamped anew. */
static void look_at(block &b, bool is_kept) {
    if (is_kept) verify(b);
    else stamp(b);
}

/* Two of three blocks are live in the end, if the limit lets them. */
static void work() {
    for (int i = 0; i < 2 * BLOCKS; i++) {
        block &b = blocks[below(BLOCKS)];
        if (!b.at) take(b, a_size());
        else if (below(2)) drop(b);
    }
}

static void drop_down_to(size_t bytes) {
    for (block &b : blocks)
        if (kit_stats(pool).allocated.now > bytes) drop(b);
}

/* ---- a graph: a kernel copies what `in` holds to a block of the graph's scope, and CUDA's own
   copy to a block from before, which is stitched as `in` is. It verifies scratch memory. ---- */

static __global__ void copy_words(word *to, const word *from, size_t words) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < words;
         i += (size_t)gridDim.x * blockDim.x)
        to[i] = from[i];
}

static struct {
    block in;
    void *by_kernel, *by_copy;
    gpupool_capture *scope;
    cudaGraphExec_t exec;
    size_t device_bytes; /* that CUDA took for it */
} graph;
static const word SCRATCH_MARK = (word)7 << 56;

static void capture(cudaStream_t stream) {
    const size_t bytes = SCOPE_MIB * MIB;
    cudaGraph_t made = nullptr;
    CUDA(cudaDeviceSynchronize()); /* the graph waits for no work from before */
    POOL(gpupool_begin_capture(pool, stream, &graph.scope));
    CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    graph.by_kernel = gpupool_alloc(pool, bytes, stream);
    void *scratch = gpupool_alloc(pool, bytes, stream);
    CHECK(graph.by_kernel && scratch);
    kit_stamp(scratch, bytes, SCRATCH_MARK, stream);
    copy_words<<<64, 256, 0, stream>>>((word *)graph.by_kernel, (const word *)graph.in.at,
                                       bytes / sizeof(word));
    CUDA(cudaGetLastError());
    CUDA(cudaMemcpyAsync(graph.by_copy, graph.in.at, graph.in.bytes, cudaMemcpyDeviceToDevice,
                         stream));
    kit_verify(scratch, bytes, SCRATCH_MARK, stream);
    POOL(gpupool_free(pool, scratch, stream));
    CUDA(cudaStreamEndCapture(stream, &made));
    POOL(gpupool_end_capture(graph.scope));
    CUDA(cudaGraphInstantiate(&graph.exec, made, 0));
    CUDA(cudaGraphDestroy(made));
}

static void launch(bool is_kept) {
    look_at(graph.in, is_kept);
    CUDA(cudaGraphLaunch(graph.exec, graph.in.stream));
    kit_verify(graph.by_kernel, SCOPE_MIB * MIB, graph.in.mark, graph.in.stream);
    kit_verify(graph.by_copy, graph.in.bytes, graph.in.mark, graph.in.stream);
}

/* Blocks that can only be stitched, and the graph; then the limit of the soak. */
static void begin() {
    cudaStream_t stream = streams[1];
    open_arena();
    kit_arena laid = kit_lay(pool, FREE_CHUNKS);
    graph.in = {kit_stitched(pool, GRAPH_MIB * MIB, stream), GRAPH_MIB * MIB, 0, stream};
    graph.by_copy = kit_stitched(pool, GRAPH_MIB * MIB, stream);
    size_t free_before = free_bytes();
    capture(stream);
    launch(false);
    CHECK(kit_wrong_words() == 0);
    graph.device_bytes = free_before - free_bytes();
    for (void *block : laid.kept) POOL(gpupool_free(pool, block, laid.stream));
    CUDA(cudaStreamDestroy(laid.stream));
    POOL(gpupool_set_limit(pool, limit));
    blocks.assign(BLOCKS, block());
}

static void end() {
    for (block &b : blocks) drop(b);
    CHECK(kit_wrong_words() == 0);
    CUDA(cudaGraphExecDestroy(graph.exec));
    POOL(gpupool_release_capture(graph.scope)); /* its block too */
    POOL(gpupool_free(pool, graph.by_copy, graph.in.stream));
    let_go(graph.in);
    POOL(gpupool_arena_destroy(pool));
}

/* ---- the soak ---- */

struct usage { /* of early cycles or late ones */
    std::vector<size_t> host, device_free;
};
static usage early_usage, late_usage;
static size_t at_first, at_least; /* free before the arena was there, and while asleep */
static long stitched_asleep, freed_asleep;

static void is_asleep(const gpupool_stats &before) {
    gpupool_stats stats = kit_stats(pool);
    size_t now = free_bytes();
    CHECK(stats.reserved.now == 0 && stats.blocks == before.blocks);
    CHECK(stats.asleep >= before.allocated.now && stats.asleep <= before.reserved.now);
    CHECK(now + graph.device_bytes + NOISE_MIB * MIB >= at_first);
    at_least = std::min(at_least, now);
    stitched_asleep += stats.stitches > 2; /* more than the graph's */
}

static void is_awake(const gpupool_stats &before) {
    gpupool_stats stats = kit_stats(pool);
    CHECK(stats.asleep == 0);
    CHECK(stats.reserved.now <= before.reserved.now && stats.reserved.now >= stats.allocated.now);
}

static void free_some() {
    for (block &b : blocks)
        if (b.at && below(5) == 0) {
            let_go(b);
            freed_asleep++;
        }
}

static void note_usage(long i, size_t free_asleep) {
    const long window = std::min(cycles / 4, 32l), early = cycles / 10;
    if ((i < early || i >= early + window) && i < cycles - window) return;
    usage &at = i < early + window ? early_usage : late_usage;
    POOL(gpupool_trim(pool, 0)); /* the host has back what was kept for the next sleep */
    at.host.push_back(resident_bytes());
    at.device_free.push_back(free_asleep);
}

static void cycle(long i) {
    const bool is_kept = i % 2 == 0;
    work();
    if (is_kept) drop_down_to(KEPT_MIB * MIB);
    if (below(2)) kit_linger(streams[below(STREAMS)], 1000000); /* sleep waits for it */
    gpupool_stats before = kit_stats(pool);
    POOL(gpupool_sleep(pool, is_kept ? GPUPOOL_KEEP : GPUPOOL_DISCARD));
    if (kit_bad) return;
    is_asleep(before);
    size_t free_asleep = free_bytes();
    free_some();
    POOL(gpupool_wake(pool));
    if (kit_bad) return;
    is_awake(before);
    launch(is_kept);
    for (block &b : blocks)
        if (b.at) look_at(b, is_kept);
    work();
    CHECK(kit_wrong_words() == 0);
    if (i % 16 == 0) POOL(gpupool_check(pool));
    note_usage(i, free_asleep);
}

/* So that code, streams and graphs have what they need of the device, and of the host, before it is
   asked how much is free. */
static void warm_up() {
    for (cudaStream_t &stream : streams) stream = kit_stream();
    begin();
    work();
    kit_linger(streams[0], 1000);
    POOL(gpupool_sleep(pool, GPUPOOL_KEEP));
    POOL(gpupool_wake(pool));
    end();
}

static void print_usage() {
    double host = in_mib(median(late_usage.host), median(early_usage.host));
    double device = in_mib(median(early_usage.device_free), median(late_usage.device_free));
    gpupool_stats stats = kit_stats(pool);
    printf("%ld cycles, %llu stamps; %llu stitches, %llu times reused; asleep with stitched blocks "
           "%ld times; %ld blocks freed while asleep; %llu refused for lack of memory\n", cycles,
           marks, (word)stats.stitched, (word)stats.reused, stitched_asleep, freed_asleep, refused);
    printf("device memory in use while asleep, beyond what was before the arena and its graph of "
           "%.2f MiB, at worst: %.2f MiB; bar 0 (noise: %d MiB)\n", in_mib(graph.device_bytes, 0),
           in_mib(at_first, at_least + graph.device_bytes), NOISE_MIB);
    printf("from cycle %ld to the last: host memory grows by %.2f MiB, the device's by %.2f MiB; "
           "bar 0 (noise: %d MiB)\n", cycles / 10, host, device, NOISE_MIB);
    CHECK(host <= NOISE_MIB && device <= NOISE_MIB);
    CHECK(stitched_asleep >= cycles / 10 && (cycles < 20 || freed_asleep > cycles));
}

static void soak() {
    CUDA(cudaDeviceSynchronize());
    at_first = at_least = free_bytes();
    begin();
    for (long i = 0; i < cycles && !kit_bad; i++) {
        cycle(i);
        if (kit_bad) printf("cycle %ld of %ld\n", i, cycles);
        else if (i % 50 == 49) fprintf(stderr, "%ld of %ld cycles\n", i + 1, cycles);
    }
    print_usage();
    if (kit_bad) return; /* it is left as it is */
    end();
    printf("device memory in use when the arena is gone: %.2f MiB more\n",
           in_mib(at_first, free_bytes()));
    CHECK(free_bytes() + NOISE_MIB * MIB >= at_first);
}

/* ---- others take the memory meanwhile ---- */

/* Half of what it needs is free: a waking that fails gives back what it has got. */
static void waking_beside_others() {
    open_arena();
    blocks.assign(8, block());
    for (block &b : blocks) take(b, 64 * MIB);
    POOL(gpupool_sleep(pool, GPUPOOL_KEEP));
    const size_t asleep = kit_stats(pool).asleep;
    void *taken = nullptr;
    CUDA(cudaMalloc(&taken, free_bytes() - asleep / 2));
    size_t free_before = free_bytes();
    CHECK(gpupool_wake(pool) == GPUPOOL_E_OUT_OF_MEMORY);
    CHECK(strstr(gpupool_last_error(), "others"));
    printf("%s\n", gpupool_last_error());
    CHECK(kit_stats(pool).asleep == asleep && kit_stats(pool).reserved.now == 0);
    CHECK(free_bytes() + NOISE_MIB * MIB >= free_before);
    POOL(gpupool_check(pool));
    CUDA(cudaFree(taken));
    POOL(gpupool_wake(pool));
    for (block &b : blocks) drop(b);
    CHECK(kit_wrong_words() == 0);
    POOL(gpupool_arena_destroy(pool));
}

int main(int count, char **words) {
    if (count > 1) cycles = atol(words[1]);
    if (count > 2) limit = (size_t)atol(words[2]) * MIB;
    if (cycles < 1 || limit < 1280 * MIB) {
        fprintf(stderr, "usage: sleep [CYCLES [LIMIT_MIB [SEED]]]\n");
        return 2;
    }
    rng.seed(count > 3 ? (word)atoll(words[3]) : 1);
    CUDA(cudaFree(nullptr));
    if (kit_bad) return 1;
    RUN(warm_up);
    RUN(soak);
    if (!kit_bad) RUN(waking_beside_others);
    return kit_end();
}
