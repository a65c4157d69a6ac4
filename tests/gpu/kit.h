/* kit.h: what the programs for a GPU share: checks; kernels that stamp words and verify them; an
   arena whose large blocks can only be stitched. Each program is one file, runs on a GPU,
   uses public calls alone, and closes with `N passed, N failed`. */
#ifndef GPU_KIT_H
#define GPU_KIT_H

#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <vector>

typedef unsigned long long word;

static const size_t MIB = (size_t)1 << 20;

/* ---- checks ---- */

static std::atomic<int> kit_bad; /* what did not hold in the test that runs; any thread may check */
static int kit_passed, kit_all;  /* tests */

static void kit_fail(const char *file, int line, const char *what, const char *why) {
    if (kit_bad++ < 10) printf("%s:%d: %s: %s\n", file, line, what, why);
}

#define CHECK(truth) \
    do { \
        if (!(truth)) kit_fail(__FILE__, __LINE__, #truth, "does not hold"); \
    } while (0)
#define CUDA(call) \
    do { \
        cudaError_t error_ = (call); \
        if (error_ != cudaSuccess) kit_fail(__FILE__, __LINE__, #call, cudaGetErrorName(error_)); \
    } while (0)
#define POOL(call) \
    do { \
        if ((call) != GPUPOOL_OK) kit_fail(__FILE__, __LINE__, #call, gpupool_last_error()); \
    } while (0)

static inline void kit_run(const char *name, void (*test)()) {
    kit_bad = 0;
    test();
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaGetLastError());
    if (kit_bad) printf("FAILED %s\n", name);
    kit_passed += !kit_bad;
    kit_all++;
    fflush(stdout);
}
#define RUN(test) kit_run(#test, test)

static inline int kit_end() {
    printf("%d passed, %d failed\n", kit_passed, kit_all - kit_passed);
    return kit_passed != kit_all;
}

static inline int kit_skip(const char *why) {
    printf("%s\n0 passed, 0 failed, 1 skipped\n", why);
    return 0;
}

/* ---- words: a block that is stamped holds mark + i in its i-th word ---- */

static __device__ word kit_wrong; /* words that were not as they were stamped; each device's own */

static __global__ void kit_stamp_words(word *block, size_t words, word mark) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < words;
         i += (size_t)gridDim.x * blockDim.x)
        block[i] = mark + i;
}

static __global__ void kit_verify_words(const word *block, size_t words, word mark) {
    word bad = 0;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < words;
         i += (size_t)gridDim.x * blockDim.x)
        bad += block[i] != mark + i;
    if (bad) atomicAdd(&kit_wrong, bad);
}

static __global__ void kit_spend(long long cycles) {
    long long start = clock64();
    while (clock64() - start < cycles) continue;
}

static inline unsigned kit_grid(size_t bytes) {
    size_t grid = bytes / sizeof(word) / 256 + 1;
    return grid < 256 ? (unsigned)grid : 256;
}

/* The current device is the stream's. */
static inline void kit_stamp(void *block, size_t bytes, word mark, cudaStream_t stream) {
    kit_stamp_words<<<kit_grid(bytes), 256, 0, stream>>>((word *)block, bytes / sizeof(word), mark);
    CUDA(cudaGetLastError());
}

static inline void kit_verify(const void *block, size_t bytes, word mark, cudaStream_t stream) {
    kit_verify_words<<<kit_grid(bytes), 256, 0, stream>>>((const word *)block,
                                                          bytes / sizeof(word), mark);
    CUDA(cudaGetLastError());
}

/* So that work is still queued when the host goes on: a million cycles are 0.6 ms or so. */
static inline void kit_linger(cudaStream_t stream, long long cycles) {
    kit_spend<<<1, 1, 0, stream>>>(cycles);
    CUDA(cudaGetLastError());
}

/* Words found wrong on the current device since this was asked last. Waits for the device. */
static inline word kit_wrong_words() {
    word found = ~(word)0, none = 0;
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaMemcpyFromSymbol(&found, kit_wrong, sizeof found));
    CUDA(cudaMemcpyToSymbol(kit_wrong, &none, sizeof none));
    return found;
}

static inline cudaStream_t kit_stream() { /* of the current device */
    cudaStream_t stream = nullptr;
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
}

/* The current device is that of the earlier one. */
static inline void kit_order(cudaStream_t earlier, cudaStream_t later) {
    cudaEvent_t event;
    CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    CUDA(cudaEventRecord(event, earlier));
    CUDA(cudaStreamWaitEvent(later, event, 0));
    CUDA(cudaEventDestroy(event));
}

/* ---- an arena at its limit, of chunks of 8 MiB: each second one is a live block, the others are
   free. What is larger than one chunk can only be stitched. ---- */

static const size_t KIT_CHUNK = 8 * MIB;

struct kit_arena {
    gpupool_arena *pool;
    cudaStream_t stream;
    std::vector<void *> kept; /* the live blocks between */
};

static inline gpupool_stats kit_stats(gpupool_arena *pool) {
    gpupool_stats stats = {};
    POOL(gpupool_get_stats(pool, &stats));
    return stats;
}

/* The pool is empty, its chunks are of KIT_CHUNK bytes, its device is current. As many chunks as
   are free are not. */
static inline kit_arena kit_lay(gpupool_arena *pool, size_t free_chunks) {
    kit_arena a = {pool, kit_stream(), {}};
    std::vector<void *> freed;
    POOL(gpupool_set_limit(pool, 2 * free_chunks * KIT_CHUNK));
    for (size_t i = 0; i < 2 * free_chunks; i++) {
        void *block = gpupool_alloc(pool, KIT_CHUNK, a.stream);
        CHECK(block);
        (i % 2 ? freed : a.kept).push_back(block);
    }
    for (void *block : freed) POOL(gpupool_free(pool, block, GPUPOOL_NO_STREAM));
    CUDA(cudaStreamSynchronize(a.stream));
    POOL(gpupool_trim(pool, SIZE_MAX)); /* gives nothing back: what is free is anybody's */
    gpupool_stats stats = kit_stats(pool);
    CHECK(stats.reserved.now == 2 * free_chunks * KIT_CHUNK && stats.pending.now == 0);
    return a;
}

static inline kit_arena kit_open(gpupool_arena_config config, size_t free_chunks) {
    gpupool_arena *pool = nullptr;
    config.source = GPUPOOL_SOURCE_MAPPED;
    config.chunk_bytes = KIT_CHUNK;
    POOL(gpupool_arena_create(&pool, &config));
    if (!pool) exit(1);
    return kit_lay(pool, free_chunks);
}

/* The test's own blocks are free by now. */
static inline void kit_close(kit_arena &a) {
    for (void *block : a.kept) POOL(gpupool_free(a.pool, block, a.stream));
    POOL(gpupool_check(a.pool));
    POOL(gpupool_arena_destroy(a.pool));
    CUDA(cudaStreamDestroy(a.stream));
}

/* A block that was stitched, as the statistics say. */
static inline void *kit_stitched(gpupool_arena *pool, size_t bytes, cudaStream_t stream) {
    gpupool_stats before = kit_stats(pool);
    void *block = gpupool_alloc(pool, bytes, stream);
    if (!block) kit_fail(__FILE__, __LINE__, "a stitched block", gpupool_last_error());
    gpupool_stats after = kit_stats(pool);
    CHECK(after.stitched + after.reused == before.stitched + before.reused + 1);
    return block;
}

#endif
