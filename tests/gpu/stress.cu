/* Kernels stamp every block that they are given, whole, and verify it before it is freed: over many
   streams and threads, blocks handed from stream to stream, and captured graphs that are replayed
   while eager work goes on. For a GPU: stress [SECONDS [THREADS]], 60 and 8 by default; also under
   compute-sanitizer. Prints a tally; the exit status is 1 if any word was wrong, any call failed,
   or no large block was stitched. */
#include "kit.h"

#include <chrono>
#include <random>
#include <thread>

enum {
    STREAMS = 4,   /* of each thread */
    HELD = 48,     /* blocks, by each thread */
    LIMIT_MIB = 64 /* for each thread: short at times */
};

static gpupool_arena *arena;
static std::atomic<long> large_blocks, handed_over, replays, captures, refused;
static std::atomic<bool> is_over;

struct block {
    void *at;
    size_t bytes;
    word mark;
    cudaStream_t stream;
    bool lent; /* another stream may be looking at it: nobody stamps it again */
};

struct worker {
    std::mt19937_64 rng;
    cudaStream_t streams[STREAMS], capturing;
    block held[HELD];
};

static size_t below(worker &w, size_t bound) { return (size_t)(w.rng() % bound); }

static cudaStream_t a_stream(worker &w) { return w.streams[below(w, STREAMS)]; }

static void check_on(const block &b, cudaStream_t stream) {
    kit_verify(b.at, b.bytes, b.mark, stream);
}

static void stamp(worker &w, block &b) {
    b.mark = (word)(1 + below(w, 1u << 30)) << 32;
    kit_stamp(b.at, b.bytes, b.mark, b.stream);
}

static block take_bytes(worker &w, cudaStream_t stream, size_t size) {
    block b = {gpupool_alloc(arena, size, stream), size, 0, stream, false};
    if (b.at) {
        stamp(w, b);
    } else {
        CHECK(gpupool_last_result() == GPUPOOL_E_OUT_OF_MEMORY);
        refused++;
    }
    return b;
}

static block take(worker &w, cudaStream_t stream, unsigned most_bits) {
    return take_bytes(w, stream, 8 + below(w, (size_t)1 << (9 + below(w, most_bits - 9))));
}

/* One that may have to be stitched: 4 to 36 MiB, half of them of a few sizes that come again. */
static block take_large(worker &w, cudaStream_t stream) {
    size_t size = 4 * MIB + below(w, 32 * MIB);
    if (below(w, 2)) size -= size % (4 * MIB);
    large_blocks++;
    return take_bytes(w, stream, size);
}

static void drop(block &b) {
    if (!b.at) return;
    check_on(b, b.stream);
    POOL(gpupool_free(arena, b.at, b.stream));
    b.at = nullptr;
}

/* Another stream goes on with the block, or looks at it and says so. */
static void hand_over(worker &w, block &b, cudaStream_t next) {
    if (!b.at || b.stream == next) return;
    kit_order(b.stream, next);
    check_on(b, next);
    if (below(w, 2) && !b.lent) {
        b.stream = next;
        stamp(w, b);
    } else {
        POOL(gpupool_record_stream(arena, b.at, next));
        b.lent = true;
    }
    handed_over++;
}

/* With blocks of its own: `kept`, which every replay stamps anew, and ones that are freed inside
   and had again. */
static cudaGraphExec_t capture(worker &w, gpupool_capture **scope, block &kept) {
    cudaGraph_t captured = nullptr;
    cudaGraphExec_t exec = nullptr;
    POOL(gpupool_begin_capture(arena, w.capturing, scope));
    CUDA(cudaStreamBeginCapture(w.capturing, (cudaStreamCaptureMode)below(w, 3)));
    kept = take(w, w.capturing, 20);
    for (int i = 0; i < 4; i++) {
        block passing = take(w, w.capturing, 20);
        if (kept.at) check_on(kept, w.capturing);
        drop(passing);
    }
    CUDA(cudaStreamEndCapture(w.capturing, &captured));
    POOL(gpupool_end_capture(*scope));
    CUDA(cudaGraphInstantiate(&exec, captured, 0));
    CUDA(cudaGraphDestroy(captured));
    captures++;
    return exec;
}

/* A graph is replayed on several streams, one replay after another, while eager work goes on. */
static void graph(worker &w) {
    gpupool_capture *scope = nullptr;
    block kept = {}, eager[6];
    cudaGraphExec_t exec = capture(w, &scope, kept);
    for (block &b : eager) {
        cudaStream_t stream = a_stream(w);
        b = take(w, stream, 22);
        CUDA(cudaGraphLaunch(exec, stream));
        if (kept.at) check_on(kept, stream);
        for (cudaStream_t other : w.streams) kit_order(stream, other);
        replays++;
    }
    CUDA(cudaGraphExecDestroy(exec));     /* the last may still run */
    POOL(gpupool_release_capture(scope)); /* with `kept` live */
    for (block &b : eager) drop(b);
}

static void brief_stream(worker &w) {
    cudaStream_t stream = kit_stream();
    for (int i = 0; i < 4; i++) {
        block b = take(w, stream, 21);
        if (i == 2) kit_linger(stream, 100000);
        drop(b);
    }
    POOL(gpupool_retire_stream(stream)); /* its work goes on */
    CUDA(cudaStreamDestroy(stream));
}

static void step(worker &w) {
    block &b = w.held[below(w, HELD)];
    cudaStream_t stream = a_stream(w);
    size_t kind = below(w, 1000);
    if (kind < 800 && b.at) drop(b);
    else if (kind < 80) b = take_large(w, stream);
    else if (kind < 800) b = take(w, stream, 22);
    else if (kind < 940) hand_over(w, b, stream);
    else if (kind < 960) kit_linger(stream, 50000);
    else if (kind < 975) brief_stream(w);
    else if (kind < 977) graph(w);
    else if (kind == 999 && below(w, 8) == 0) POOL(gpupool_check(arena));
}

static void work(int me) {
    worker w = {};
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    CUDA(cudaThreadExchangeStreamCaptureMode(&mode)); /* what this test calls loses no capture */
    w.rng.seed((word)me * 977 + 1);
    for (int i = 0; i < STREAMS; i++)
        CUDA(cudaStreamCreateWithFlags(&w.streams[i], i % 2 ? cudaStreamNonBlocking : 0));
    w.capturing = kit_stream();
    while (!is_over && !kit_bad) step(w);
    for (block &b : w.held) drop(b);
    for (cudaStream_t stream : w.streams) {
        CUDA(cudaStreamSynchronize(stream));
        CUDA(cudaStreamDestroy(stream));
    }
    CUDA(cudaStreamDestroy(w.capturing));
}

int main(int count, char **words) {
    const int seconds = count > 1 ? atoi(words[1]) : 60, threads = count > 2 ? atoi(words[2]) : 8;
    gpupool_arena_config config = {};
    std::vector<std::thread> running;
    config.limit_bytes = (size_t)threads * LIMIT_MIB * MIB;
    POOL(gpupool_arena_create(&arena, &config));
    if (kit_bad) return 1;
    for (int i = 0; i < threads; i++) running.emplace_back(work, i);
    for (int i = 0; i < seconds && !kit_bad; i++)
        std::this_thread::sleep_for(std::chrono::seconds(1));
    is_over = true;
    for (std::thread &thread : running) thread.join();
    const word wrong = kit_wrong_words();
    const gpupool_stats stats = kit_stats(arena);
    CHECK(wrong == 0 && stats.blocks == 0);
    CHECK(stats.stitched > 0); /* or these sizes no longer show anything */
    POOL(gpupool_report(arena, stdout));
    POOL(gpupool_arena_destroy(arena));
    printf("%llu blocks, of which %ld were large ones (%llu stitches made, %llu times reused); %ld "
           "handed over, %ld graphs captured, %ld replays, %ld refused for lack of memory; %llu "
           "words wrong, %d checks failed\n", (word)stats.allocs, large_blocks.load(),
           (word)stats.stitched, (word)stats.reused, handed_over.load(), captures.load(),
           replays.load(), refused.load(), wrong, kit_bad.load());
    return kit_bad != 0;
}
