/* Sleep and waking, over and over: work on three streams, sleep, waking, work. Kernels stamp blocks
   and verify after waking what was kept; graphs that were captured before are launched again at the
   same addresses; blocks are freed while they sleep; functions for registration are told of all.
   What a sleeping arena leaves of the device's memory, and what a thousand cycles add to the
   device's and the host's, is printed and judged. Then others fill the device, and waking fails
   until they have gone.
   sleep [CYCLES [LIMIT_MIB [SEED]]]: 1000, 2048 (at least 1280) and 1 by default. */
#include "kit.h"

#include <algorithm>
#include <chrono>
#include <malloc.h>
#include <map>
#include <random>
#include <unistd.h>

enum {
    STREAMS = 3,
    BLOCKS = 256,
    NOISE_MIB = 4,   /* of the driver and of malloc */
    GRAPH_MIB = 40,  /* of each stitched block that a graph uses */
    SCOPE_MIB = 6,   /* of the block that a scope keeps */
    FREE_CHUNKS = 64 /* when stitched blocks are made */
};

static long cycles = 1000;
static size_t limit = 2048 * MIB;
static word seed = 1;

static gpupool_arena *pool;
static gpupool_ring *ring;
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

static size_t pinned_bytes() { /* by the ring: how much depends on how busy the machine is */
    gpupool_ring_stats stats = {};
    POOL(gpupool_ring_get_stats(ring, &stats));
    return (size_t)stats.pinned;
}

/* Of this process, without what malloc keeps for later and what the ring has pinned. */
static size_t resident_bytes() {
    unsigned long all = 0, resident = 0;
    malloc_trim(0);
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file && fscanf(file, "%lu %lu", &all, &resident) == 2);
    if (file) fclose(file);
    return (size_t)resident * (size_t)sysconf(_SC_PAGESIZE) - pinned_bytes();
}

static size_t median(std::vector<size_t> all) {
    if (all.empty()) return 0;
    std::sort(all.begin(), all.end());
    return all[all.size() / 2];
}

/* ---- functions for registration: what is known must be what is mapped ---- */

static std::map<char *, size_t> known;
static long told, gone;

static int on_map(const gpupool_mapping *mapping, void *) {
    CHECK(known.emplace((char *)mapping->memory, mapping->bytes).second);
    told++;
    return 0;
}

static void on_unmap(const gpupool_mapping *mapping, void *) {
    auto found = known.find((char *)mapping->memory);
    CHECK(found != known.end() && found->second == mapping->bytes);
    if (found != known.end()) known.erase(found);
    gone++;
}

static int is_known(char *block, size_t bytes) { /* by one mapping, or several side by side */
    for (char *end = block + bytes; block < end;) {
        auto next = known.upper_bound(block);
        if (next == known.begin()) return 0;
        --next;
        if (block >= next->first + next->second) return 0;
        block = next->first + next->second;
    }
    return 1;
}

/* ---- sleep: all blocks of the arena go and come together ---- */

struct way {
    const char *words;
    gpupool_content content;
    size_t most_bytes; /* of live blocks: what is kept is copied, which takes long */
};

static const way ways[] = {{"KEEP", GPUPOOL_KEEP, 704 * MIB},
                           {"DISCARD", GPUPOOL_DISCARD, SIZE_MAX}};
enum { WAYS = sizeof ways / sizeof *ways };

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

static void *get(size_t bytes, cudaStream_t stream) {
    gpupool_request request = {};
    request.bytes = bytes;
    request.stream = stream;
    return gpupool_alloc_request(pool, &request);
}

static size_t a_size() { /* small, middle, or large enough to be stitched */
    size_t kind = below(8), bits = kind < 4 ? below(7) : kind < 6 ? 7 + below(6) : 14 + below(3);
    size_t size = (size_t)512 << bits;
    return (size + below(size)) / sizeof(word) * sizeof(word);
}

static void take(block &b) {
    b.bytes = a_size();
    b.stream = streams[below(STREAMS)];
    b.at = get(b.bytes, b.stream);
    if (b.at) {
        stamp(b);
    } else {
        CHECK(gpupool_last_result() == GPUPOOL_E_OUT_OF_MEMORY);
        refused++;
    }
}

static void let_go(block &b) {
    if (b.at) POOL(gpupool_free(pool, b.at, b.stream));
    b.at = nullptr;
}

static void drop(block &b) {
    if (b.at) verify(b);
    let_go(b);
}

/* Two of three blocks are live in the end, if the limit lets them. */
static void work() {
    for (int i = 0; i < 2 * BLOCKS; i++) {
        block &b = blocks[below(BLOCKS)];
        if (!b.at) take(b);
        else if (below(2)) drop(b);
    }
}

static size_t live_bytes() { return (size_t)kit_stats(pool).allocated.now; }

static void drop_down_to(size_t bytes) {
    for (block &b : blocks)
        if (b.at && live_bytes() > bytes) drop(b);
}

/* ---- graphs: each copies what `in` holds to other blocks, by a kernel and by CUDA's own copy, and
   verifies its own scratch memory. One is captured in a scope and has blocks of its own; the other
   uses blocks from before, which are stitched. ---- */

static __global__ void copy_words(word *to, const word *from, size_t words) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < words;
         i += (size_t)gridDim.x * blockDim.x)
        to[i] = from[i];
}

static void copy_by_kernel(void *to, const void *from, size_t bytes, cudaStream_t stream) {
    copy_words<<<64, 256, 0, stream>>>((word *)to, (const word *)from, bytes / sizeof(word));
    CUDA(cudaGetLastError());
}

struct captured {
    block in;
    void *by_kernel, *by_copy;
    gpupool_capture *scope; /* NULL: none */
    cudaGraphExec_t exec;
};

static captured scoped, plain;
static size_t graph_bytes; /* of the device's memory, which CUDA took for graphs */
static const word SCRATCH_MARK = (word)7 << 56;

static void capture(captured &g, void *scratch, cudaStream_t stream) {
    void *before = scratch;
    cudaGraph_t graph = nullptr;
    CUDA(cudaDeviceSynchronize()); /* a graph without a scope waits for no work from before */
    if (!before) POOL(gpupool_begin_capture(pool, stream, &g.scope));
    CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    if (!before) {
        g.by_kernel = get(g.in.bytes, stream);
        g.by_copy = get(g.in.bytes, stream);
        scratch = get(g.in.bytes, stream);
    }
    CHECK(g.by_kernel && g.by_copy && scratch);
    kit_stamp(scratch, g.in.bytes, SCRATCH_MARK, stream);
    copy_by_kernel(g.by_kernel, g.in.at, g.in.bytes, stream);
    CUDA(cudaMemcpyAsync(g.by_copy, g.in.at, g.in.bytes, cudaMemcpyDeviceToDevice, stream));
    kit_verify(scratch, g.in.bytes, SCRATCH_MARK, stream);
    if (!before && scratch) POOL(gpupool_free(pool, scratch, stream));
    CUDA(cudaStreamEndCapture(stream, &graph));
    if (g.scope) POOL(gpupool_end_capture(g.scope));
    size_t free_before = free_bytes();
    CUDA(cudaGraphInstantiate(&g.exec, graph, 0));
    graph_bytes += free_before - free_bytes();
    CUDA(cudaGraphDestroy(graph));
}

/* As after waking: what was kept is there; what was discarded is stamped anew. */
static void launch(captured &g, bool is_kept) {
    if (is_kept) verify(g.in);
    else stamp(g.in);
    CUDA(cudaGraphLaunch(g.exec, g.in.stream));
    kit_verify(g.by_kernel, g.in.bytes, g.in.mark, g.in.stream);
    kit_verify(g.by_copy, g.in.bytes, g.in.mark, g.in.stream);
}

static void *scratch_of_plain;

/* Blocks that can only be stitched, and graphs; then the limit of the soak. */
static void lay_and_capture() {
    kit_arena laid = kit_lay(pool, FREE_CHUNKS);
    CUDA(cudaDeviceSynchronize());
    scoped = plain = captured();
    scoped.in = {get(SCOPE_MIB * MIB, streams[0]), SCOPE_MIB * MIB, 0, streams[0]};
    capture(scoped, nullptr, streams[0]);
    plain.in = {kit_stitched(pool, GRAPH_MIB * MIB, streams[1]), GRAPH_MIB * MIB, 0, streams[1]};
    plain.by_kernel = kit_stitched(pool, GRAPH_MIB * MIB, streams[1]);
    plain.by_copy = kit_stitched(pool, GRAPH_MIB * MIB, streams[1]);
    scratch_of_plain = kit_stitched(pool, GRAPH_MIB * MIB, streams[1]);
    capture(plain, scratch_of_plain, streams[1]);
    for (void *block : laid.kept) POOL(gpupool_free(pool, block, laid.stream));
    CUDA(cudaStreamDestroy(laid.stream));
    POOL(gpupool_set_limit(pool, limit));
}

static void end_graphs() {
    CUDA(cudaDeviceSynchronize());
    for (captured *g : {&scoped, &plain}) {
        CUDA(cudaGraphExecDestroy(g->exec));
        let_go(g->in);
    }
    POOL(gpupool_release_capture(scoped.scope)); /* its blocks too */
    for (void *block : {plain.by_kernel, plain.by_copy, scratch_of_plain})
        POOL(gpupool_free(pool, block, streams[1]));
}

/* ---- the soak ---- */

struct usage { /* by medians, of early cycles or late ones */
    std::vector<size_t> host, device_free;
};
static usage early_usage, late_usage;
static size_t at_first, at_least;       /* free before the arena was there, and while asleep */
static long stitched_asleep, freed_asleep, same_cycles;
static double asleep_ms[WAYS], awake_ms[WAYS]; /* of all cycles */

static double now_ms() {
    return std::chrono::duration<double, std::milli>(
               std::chrono::steady_clock::now().time_since_epoch()).count();
}

static void refuses_while_asleep() {
    size_t sizes[] = {512, 1 * MIB, 64 * MIB};
    for (size_t bytes : sizes) {
        CHECK(!get(bytes, streams[below(STREAMS)]));
        CHECK(gpupool_last_result() == GPUPOOL_E_ASLEEP);
    }
    CHECK(gpupool_trim(pool, 0) == GPUPOOL_E_ASLEEP);
    CHECK(gpupool_sleep(pool, GPUPOOL_KEEP) == GPUPOOL_E_ASLEEP);
}

static void is_asleep(const gpupool_stats &before) {
    gpupool_stats stats = kit_stats(pool);
    size_t now = free_bytes();
    CHECK(stats.reserved.now == 0 && stats.blocks == before.blocks);
    CHECK(stats.asleep >= before.allocated.now && stats.asleep <= before.reserved.now);
    CHECK(known.empty() && told == gone);
    CHECK(now + graph_bytes + NOISE_MIB * MIB >= at_first);
    at_least = std::min(at_least, now);
    stitched_asleep += stats.stitches > 4; /* more than the graphs' */
    refuses_while_asleep();
}

static void is_awake(const gpupool_stats &before, bool is_same) {
    gpupool_stats stats = kit_stats(pool);
    CHECK(stats.asleep == 0);
    CHECK(stats.reserved.now <= before.reserved.now);
    CHECK(stats.reserved.now >= stats.allocated.now);
    if (is_same) CHECK(stats.reserved.now == before.reserved.now);
    for (const block &b : blocks)
        if (b.at) CHECK(is_known((char *)b.at, b.bytes));
    CHECK(is_known((char *)plain.by_copy, GRAPH_MIB * MIB));
    CHECK(is_known((char *)scoped.by_kernel, SCOPE_MIB * MIB));
}

/* Chunks with no block in them do not come back: without them, and with nothing freed meanwhile,
   reserved is the same. */
static void leave_no_chunk_idle() {
    CUDA(cudaDeviceSynchronize());
    POOL(gpupool_trim(pool, 0));
    same_cycles++;
}

static void note_usage(usage &at, size_t device_free) {
    at.host.push_back(resident_bytes());
    at.device_free.push_back(device_free);
}

static void cycle(long i) {
    const way &how = ways[i % WAYS];
    const bool is_kept = how.content == GPUPOOL_KEEP, is_same = i / WAYS % 3 == 0;
    work();
    drop_down_to(how.most_bytes);
    if (is_same) leave_no_chunk_idle();
    else if (below(2)) kit_linger(streams[below(STREAMS)], 1000000); /* sleep waits for it */
    gpupool_stats before = kit_stats(pool);
    double start = now_ms();
    POOL(gpupool_sleep(pool, how.content));
    asleep_ms[i % WAYS] += now_ms() - start;
    if (kit_bad) return;
    is_asleep(before);
    size_t free_now = free_bytes();
    for (block &b : blocks)
        if (!is_same && b.at && below(5) == 0) {
            let_go(b);
            freed_asleep++;
        }
    start = now_ms();
    POOL(gpupool_wake(pool));
    awake_ms[i % WAYS] += now_ms() - start;
    if (kit_bad) return;
    is_awake(before, is_same);
    launch(scoped, is_kept);
    launch(plain, is_kept);
    for (block &b : blocks) {
        if (!b.at) continue;
        if (is_kept) verify(b);
        else stamp(b);
    }
    work();
    CHECK(kit_wrong_words() == 0);
    if (i % 16 == 0) POOL(gpupool_check(pool));
    const long window = std::min(cycles / 4, 32l), early = cycles / 10;
    if (i >= early && i < early + window) note_usage(early_usage, free_now);
    else if (i >= cycles - window) note_usage(late_usage, free_now);
}

static gpupool_arena *open_arena(bool with_functions) {
    gpupool_arena_config config = {};
    gpupool_arena *made = nullptr;
    config.source = GPUPOOL_SOURCE_MAPPED;
    config.chunk_bytes = KIT_CHUNK;
    config.limit_bytes = limit;
    config.name = "sleep";
    if (with_functions) {
        config.on_map = on_map;
        config.on_unmap = on_unmap;
    }
    POOL(gpupool_arena_create(&made, &config));
    if (!made) exit(1);
    return made;
}

/* So that code, streams, graphs and the ring have what they need of the device before it is asked
   how much is free. */
static void warm_up() {
    std::vector<char> host(16 * MIB);
    POOL(gpupool_ring_create(&ring, nullptr));
    for (cudaStream_t &stream : streams) stream = kit_stream();
    void *memory = nullptr;
    CUDA(cudaMalloc(&memory, 16 * MIB));
    POOL(gpupool_upload(ring, memory, host.data(), host.size(), streams[0]));
    POOL(gpupool_download(ring, host.data(), memory, host.size(), streams[0]));
    CUDA(cudaMemcpy(host.data(), memory, host.size(), cudaMemcpyDeviceToHost));
    CUDA(cudaMemcpy(memory, host.data(), host.size(), cudaMemcpyHostToDevice));
    kit_linger(streams[0], 1000);
    captured g = captured();
    g.in = {memory, 4 * MIB, 0, streams[0]};
    g.by_kernel = (char *)memory + 4 * MIB;
    g.by_copy = (char *)memory + 8 * MIB;
    capture(g, (char *)memory + 12 * MIB, streams[0]);
    launch(g, false);
    CHECK(kit_wrong_words() == 0);
    CUDA(cudaGraphExecDestroy(g.exec));
    CUDA(cudaFree(memory));
}

static void print_times() {
    for (int i = 0; i < WAYS; i++)
        printf("%-14s sleep %6.1f ms, waking %6.1f ms, means of %ld cycles\n", ways[i].words,
               asleep_ms[i] * WAYS / (double)cycles, awake_ms[i] * WAYS / (double)cycles,
               cycles / WAYS);
}

static double growth(const std::vector<size_t> &early, const std::vector<size_t> &late) {
    return in_mib(median(late), median(early));
}

static void print_growth() {
    double host = growth(early_usage.host, late_usage.host);
    double device = growth(late_usage.device_free, early_usage.device_free);
    printf("from cycle %ld to the last: host memory grows by %.2f MiB, without the %.2f MiB that "
           "the ring has pinned in the end; the device's by %.2f MiB; bar 0 (noise: %d MiB)\n",
           cycles / 10, host, in_mib(pinned_bytes(), 0), device, NOISE_MIB);
    CHECK(host <= NOISE_MIB && device <= NOISE_MIB);
}

static void soak() {
    CUDA(cudaDeviceSynchronize());
    at_first = at_least = free_bytes();
    pool = open_arena(true);
    graph_bytes = 0;
    lay_and_capture();
    size_t free_before = free_bytes();
    launch(scoped, false);
    launch(plain, false);
    CHECK(kit_wrong_words() == 0);
    graph_bytes += free_before - free_bytes();
    blocks.assign(BLOCKS, block());
    double start = now_ms();
    for (long i = 0; i < cycles && !kit_bad; i++) {
        cycle(i);
        if (kit_bad) printf("cycle %ld of %ld, %s\n", i, cycles, ways[i % WAYS].words);
        else if (i % 50 == 49) fprintf(stderr, "%ld of %ld cycles\n", i + 1, cycles);
    }
    printf("%.1f s; graphs have %.2f MiB of the device's memory\n", (now_ms() - start) / 1e3,
           (double)graph_bytes / (double)MIB);
    print_times();
    gpupool_stats stats = kit_stats(pool);
    printf("%ld cycles, %llu stamps; %llu stitches, %llu times reused; asleep with stitched blocks "
           "%ld times; %ld blocks freed while asleep; %llu refused for lack of memory\n", cycles,
           marks, (word)stats.stitched, (word)stats.reused, stitched_asleep, freed_asleep, refused);
    printf("device memory in use while asleep, beyond what was before the arena and the graphs, at "
           "worst: %.2f MiB; bar 0 (noise: %d MiB)\n", in_mib(at_first, at_least + graph_bytes),
           NOISE_MIB);
    printf("reserved the same after waking in %ld cycles with nothing idle and nothing freed\n",
           same_cycles);
    print_growth();
    CHECK(stitched_asleep >= cycles / 10 && (cycles < 20 || freed_asleep > cycles));
    if (kit_bad) return; /* it is left as it is */
    for (block &b : blocks) drop(b);
    CHECK(kit_wrong_words() == 0);
    end_graphs();
    POOL(gpupool_arena_destroy(pool));
    CHECK(known.empty() && told == gone);
    printf("mappings told: %ld, and their end: %ld\n", told, gone);
    printf("device memory in use when the arena is gone: %.2f MiB more\n",
           in_mib(at_first, free_bytes()));
    CHECK(free_bytes() + NOISE_MIB * MIB >= at_first);
}

/* ---- others take the memory meanwhile ---- */

static std::vector<void *> fill_device() {
    std::vector<void *> taken;
    for (size_t bytes = 128 * MIB; bytes >= 2 * MIB;) {
        void *memory = nullptr;
        if (cudaMalloc(&memory, bytes) == cudaSuccess) taken.push_back(memory);
        else bytes /= 2;
        cudaGetLastError();
    }
    return taken;
}

static void expect_no_waking(const gpupool_stats &asleep) {
    size_t free_before = free_bytes();
    CHECK(gpupool_wake(pool) == GPUPOOL_E_OUT_OF_MEMORY);
    for (const char *words : {"others", "hold the rest"})
        CHECK(strstr(gpupool_last_error(), words));
    printf("%s\n", gpupool_last_error());
    gpupool_stats stats = kit_stats(pool);
    CHECK(stats.asleep == asleep.asleep && stats.reserved.now == 0);
    CHECK(stats.blocks == asleep.blocks);
    CHECK(free_bytes() + NOISE_MIB * MIB >= free_before);
    refuses_while_asleep();
    POOL(gpupool_check(pool));
}

static void waking_beside_others() {
    for (const way &how : ways) {
        pool = open_arena(false);
        blocks.assign(8, block());
        for (block &b : blocks) {
            b.bytes = 64 * MIB;
            b.stream = streams[below(STREAMS)];
            b.at = get(b.bytes, b.stream);
            CHECK(b.at);
            if (b.at) stamp(b);
        }
        POOL(gpupool_sleep(pool, how.content));
        if (kit_bad) return;
        gpupool_stats asleep = kit_stats(pool);
        std::vector<void *> taken = fill_device();
        expect_no_waking(asleep); /* nothing is free */
        void *own = nullptr;
        while (free_bytes() < asleep.asleep / 2 && !taken.empty()) {
            CUDA(cudaFree(taken.back())); /* the smallest first */
            taken.pop_back();
        }
        CHECK(free_bytes() < asleep.asleep);
        expect_no_waking(asleep); /* not enough is */
        CHECK(cudaMalloc(&own, 2 * MIB) == cudaSuccess); /* what a failed waking took is back */
        CUDA(cudaFree(own));
        for (void *memory : taken) CUDA(cudaFree(memory));
        POOL(gpupool_wake(pool));
        for (block &b : blocks) {
            if (how.content == GPUPOOL_DISCARD) stamp(b);
            drop(b);
        }
        CHECK(kit_wrong_words() == 0);
        POOL(gpupool_arena_destroy(pool));
    }
}

int main(int count, char **words) {
    if (count > 1) cycles = atol(words[1]);
    if (count > 2) limit = (size_t)atol(words[2]) * MIB;
    if (count > 3) seed = (word)atoll(words[3]);
    if (cycles < 1 || limit < 1280 * MIB) {
        fprintf(stderr, "usage: sleep [CYCLES [LIMIT_MIB [SEED]]]\n");
        return 2;
    }
    rng.seed(seed);
    CUDA(cudaFree(nullptr));
    if (kit_bad) return 1;
    RUN(warm_up);
    RUN(soak);
    if (!kit_bad) RUN(waking_beside_others);
    POOL(gpupool_ring_destroy(ring));
    return kit_end();
}
