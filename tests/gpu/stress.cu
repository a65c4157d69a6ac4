/* Kernels stamp every block that they are given, whole, and verify it before it is freed: over many
   streams and threads, blocks handed from stream to stream, and captured graphs that are replayed
   while eager work goes on. For a GPU: stress [SECONDS [THREADS]], 60 and 8 by default; also under
   compute-sanitizer. Prints a tally; the exit status is 1 if any word was wrong, any call failed,
   or no large block was stitched. */
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <thread>
#include <vector>

typedef unsigned long long word;

/* ---- the device's side ---- */

__global__ void stamp(word *block, size_t words, word mark) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < words;
         i += (size_t)gridDim.x * blockDim.x)
        block[i] = mark + i;
}

__global__ void verify(const word *block, size_t words, word mark, word *wrong) {
    word bad = 0;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < words;
         i += (size_t)gridDim.x * blockDim.x)
        bad += block[i] != mark + i;
    if (bad) atomicAdd(wrong, bad);
}

__global__ void linger(long long cycles) { /* so that work is still queued when blocks are freed */
    long long start = clock64();
    while (clock64() - start < cycles) continue;
}

/* ---- the host's side ---- */

enum {
    LIMIT_MIB = 64 /* for each thread */
};

static gpupool_arena *arena;
static word *wrong; /* on the device: words that were not as they were stamped */
static std::atomic<long> blocks, large_blocks, bytes_stamped, handed_over, replays, captures,
    refused, failed;
static std::atomic<bool> stop;

static void fail(const char *what, const char *why) {
    if (failed++ < 20) fprintf(stderr, "%s: %s\n", what, why);
    stop = true;
}

#define CUDA(call)                                                  \
    do {                                                            \
        cudaError_t error_ = (call);                                \
        if (error_ != cudaSuccess) fail(#call, cudaGetErrorName(error_)); \
    } while (0)
#define POOL(call)                                                  \
    do {                                                            \
        if ((call) != GPUPOOL_OK) fail(#call, gpupool_last_error()); \
    } while (0)

struct random_numbers {
    uint64_t state;
    uint64_t below(uint64_t bound) {
        uint64_t z = (state += 0x9e3779b97f4a7c15u);
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        return (z ^ (z >> 31)) % bound;
    }
};

struct block {
    word *at;
    size_t words;
    word mark;
    cudaStream_t stream;
    bool lent; /* another stream may be looking at it: nobody stamps it again */
};

static unsigned grid(size_t words) {
    size_t blocks_of_256 = (words + 255) / 256;
    return (unsigned)(blocks_of_256 < 64 ? blocks_of_256 : 64);
}

static void check_on(const block &b, cudaStream_t stream) {
    verify<<<grid(b.words), 256, 0, stream>>>(b.at, b.words, b.mark, wrong);
    CUDA(cudaGetLastError());
}

static void stamp_on(block &b, cudaStream_t stream, word mark) {
    b.mark = mark << 32;
    stamp<<<grid(b.words), 256, 0, stream>>>(b.at, b.words, b.mark);
    CUDA(cudaGetLastError());
}

static block take_bytes(random_numbers &random, cudaStream_t stream, size_t size) {
    block b = {NULL, size / sizeof(word), 0, stream, false};
    b.at = (word *)gpupool_alloc(arena, size, stream);
    if (b.at) {
        stamp_on(b, stream, 1 + random.below(1u << 30));
        blocks++;
        bytes_stamped += (long)size;
    } else if (gpupool_last_result() == GPUPOOL_E_OUT_OF_MEMORY) {
        refused++;
    } else {
        fail("gpupool_alloc", gpupool_last_error());
    }
    return b;
}

static block take(random_numbers &random, cudaStream_t stream, unsigned most_bits) {
    size_t size = 8 + (size_t)random.below((uint64_t)1 << (9 + random.below(most_bits - 9)));
    return take_bytes(random, stream, size);
}

/* One that may have to be stitched: 4 to 36 MiB, half of them of a few sizes that come again. */
static block take_large(random_numbers &random, cudaStream_t stream) {
    size_t size = ((size_t)4 << 20) + (size_t)random.below((uint64_t)32 << 20);
    if (random.below(2)) size -= size % ((size_t)4 << 20);
    block b = take_bytes(random, stream, size);
    if (b.at) large_blocks++;
    return b;
}

static void drop(block &b) {
    if (!b.at) return;
    check_on(b, b.stream);
    POOL(gpupool_free(arena, b.at, b.stream));
    b.at = NULL;
}

static void order(cudaStream_t earlier, cudaStream_t later) {
    cudaEvent_t event;
    CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    CUDA(cudaEventRecord(event, earlier));
    CUDA(cudaStreamWaitEvent(later, event, 0));
    CUDA(cudaEventDestroy(event));
}

/* Another stream goes on with the block, or looks at it and says so. */
static void hand_over(block &b, cudaStream_t next, random_numbers &random) {
    if (!b.at || b.stream == next) return;
    order(b.stream, next);
    check_on(b, next);
    if (random.below(2) && !b.lent) {
        stamp_on(b, next, 1 + random.below(1u << 30));
        b.stream = next;
    } else {
        POOL(gpupool_record_stream(arena, b.at, next));
        b.lent = true;
    }
    handed_over++;
}

/* A graph with blocks of its own: one kept, which every replay stamps anew, and ones that are freed
   inside and had again. Replayed on several streams while eager work goes on. */
static void graph(random_numbers &random, cudaStream_t stream, cudaStream_t *streams, int count,
                  std::vector<block> &eager) {
    gpupool_capture *scope = NULL;
    cudaGraph_t captured = NULL;
    cudaGraphExec_t exec = NULL;
    block kept;
    POOL(gpupool_begin_capture(arena, stream, &scope));
    CUDA(cudaStreamBeginCapture(stream, (enum cudaStreamCaptureMode)random.below(3)));
    kept = take(random, stream, 20);
    for (int i = 0; i < 4; i++) {
        block passing = take(random, stream, 20);
        if (kept.at) check_on(kept, stream);
        drop(passing);
    }
    CUDA(cudaStreamEndCapture(stream, &captured));
    POOL(gpupool_end_capture(scope));
    captures++;
    if (captured) {
        CUDA(cudaGraphInstantiate(&exec, captured, 0));
        CUDA(cudaGraphDestroy(captured));
    }
    for (int i = 0; exec && i < 6; i++) {
        cudaStream_t on = streams[random.below((uint64_t)count)];
        block b = take(random, on, 22);
        CUDA(cudaGraphLaunch(exec, on));
        if (kept.at) check_on(kept, on);
        if (i < 5) order(on, streams[0]), order(streams[0], stream); /* one replay after another */
        for (int k = 0; k < count; k++) order(on, streams[k]);
        eager.push_back(b);
        replays++;
    }
    if (exec) CUDA(cudaGraphExecDestroy(exec)); /* the last may still run */
    POOL(gpupool_release_capture(scope)); /* with `kept` live */
}

static void brief_stream(random_numbers &random) {
    cudaStream_t stream;
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (int i = 0; i < 4; i++) {
        block b = take(random, stream, 21);
        if (i == 2) linger<<<1, 1, 0, stream>>>(100000);
        drop(b);
    }
    CUDA(cudaStreamDestroy(stream)); /* the macro: the arena is told, the work goes on */
}

static void cuda_shape(random_numbers &random, cudaStream_t *streams, int count) {
    block b = {NULL, 4096, 0, streams[random.below((uint64_t)count)], false};
    cudaError_t error = gpupool_cudaMalloc((void **)&b.at, b.words * sizeof(word));
    if (error != cudaSuccess) return fail("gpupool_cudaMalloc", gpupool_last_error());
    stamp_on(b, b.stream, 1 + random.below(1u << 30));
    linger<<<1, 1, 0, b.stream>>>(50000);
    check_on(b, b.stream);
    if (gpupool_cudaFree(b.at) != cudaSuccess) fail("gpupool_cudaFree", gpupool_last_error());
}

static void work(int me) {
    enum { STREAMS = 4, HELD = 48, LARGE = 80 /* of the 800 in a thousand that take */ };
    random_numbers random = {(uint64_t)me * 977 + 1};
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    CUDA(cudaThreadExchangeStreamCaptureMode(&mode)); /* what this test calls loses no capture */
    cudaStream_t streams[STREAMS], capturing;
    std::vector<block> held(HELD, block{NULL, 0, 0, NULL, false});
    for (int i = 0; i < STREAMS; i++)
        CUDA(cudaStreamCreateWithFlags(&streams[i], i % 2 ? cudaStreamNonBlocking : 0));
    CUDA(cudaStreamCreateWithFlags(&capturing, cudaStreamNonBlocking));
    while (!stop) {
        block &b = held[random.below(HELD)];
        cudaStream_t stream = streams[random.below(STREAMS)];
        uint64_t kind = random.below(1000);
        if (kind < 800) {
            if (b.at) drop(b);
            else b = kind < LARGE ? take_large(random, stream) : take(random, stream, 22);
        } else if (kind < 940) {
            hand_over(b, stream, random);
        } else if (kind < 960) {
            linger<<<1, 1, 0, stream>>>(50000);
        } else if (kind < 975) {
            brief_stream(random);
        } else if (kind < 985) {
            cuda_shape(random, streams, STREAMS);
        } else if (kind < 987) {
            std::vector<block> eager;
            graph(random, capturing, streams, STREAMS, eager);
            for (block &e : eager) drop(e);
        } else if (kind == 999 && random.below(8) == 0) {
            POOL(gpupool_check(arena));
        }
    }
    for (block &b : held) drop(b);
    for (int i = 0; i < STREAMS; i++) {
        CUDA(cudaStreamSynchronize(streams[i]));
        CUDA(cudaStreamDestroy(streams[i]));
    }
    CUDA(cudaStreamDestroy(capturing));
}

int main(int count, char **words) {
    int seconds = count > 1 ? atoi(words[1]) : 60, threads = count > 2 ? atoi(words[2]) : 8;
    gpupool_arena_config config = {};
    std::vector<std::thread> running;
    word found = 0;
    gpupool_stats stats;
    if (seconds < 1 || threads < 1) {
        fprintf(stderr, "usage: stress [SECONDS [THREADS]]\n");
        return 2;
    }
    config.limit_bytes = (size_t)threads * LIMIT_MIB << 20; /* short at times */
    config.name = "stress";
    POOL(gpupool_arena_create(&arena, &config));
    CUDA(cudaMalloc((void **)&wrong, sizeof *wrong));
    CUDA(cudaMemset(wrong, 0, sizeof *wrong));
    if (failed) return 1;
    for (int i = 0; i < threads; i++) running.emplace_back(work, i);
    for (int i = 0; i < seconds && !stop; i++) {
        std::this_thread::sleep_for(std::chrono::seconds(1));
        fprintf(stderr, "\r%d of %d s, %ld blocks", i + 1, seconds, blocks.load());
    }
    stop = true;
    fputc('\n', stderr);
    for (std::thread &thread : running) thread.join();
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaMemcpy(&found, wrong, sizeof found, cudaMemcpyDeviceToHost));
    CUDA(cudaFree(wrong));
    POOL(gpupool_get_stats(arena, &stats));
    if (stats.blocks) fail("blocks left", "some were lost");
    const long stitched = (long)(stats.stitched + stats.reused);
    if (!stitched) fail("no large block was stitched", "these sizes no longer show anything");
    POOL(gpupool_report(arena, stdout));
    POOL(gpupool_arena_destroy(arena));
    POOL(gpupool_arena_destroy(gpupool_get_default_arena(0)));
    printf(
        "%ld blocks stamped and verified, %.1f GiB; of %ld large ones %.1f%% stitched (%llu "
        "stitches made, %llu times reused); %ld handed over, %ld graphs captured, %ld replays, "
        "%ld refused for lack of memory; %llu words wrong, %ld calls failed\n",
        blocks.load(), (double)bytes_stamped.load() / (1 << 30), large_blocks.load(),
        100.0 * (double)stitched / (double)large_blocks.load(),
        (unsigned long long)stats.stitched, (unsigned long long)stats.reused,
        handed_over.load(), captures.load(), replays.load(), refused.load(), found, failed.load());
    return found || failed ? 1 : 0;
}
