/* gpupool as a peer, every option at its default. */
#include "gpupool.h"
#include "bench.h"
#include "machine.h"

#include <stdio.h>

/* The functions in CUDA's shapes use the default arena. */
static void begin_anew(void) {
    gpupool_arena *shaped = gpupool_get_default_arena(0);
    if (!shaped) return;
    gpupool_trim(shaped, 0);
    gpupool_reset_peaks(shaped);
}

static uint64_t shaped_peak(void) {
    gpupool_arena *shaped = gpupool_get_default_arena(0);
    gpupool_stats stats;
    return shaped && gpupool_get_stats(shaped, &stats) == GPUPOOL_OK ? stats.reserved.peak : 0;
}

static void *get_as_cuda(void *arena, size_t bytes, cudaStream_t stream) {
    void *block = NULL;
    (void)arena, (void)stream;
    return gpupool_cudaMalloc(&block, bytes) == cudaSuccess ? block : NULL;
}

static int put_as_cuda(void *arena, void *block, cudaStream_t stream) {
    (void)arena, (void)stream;
    return gpupool_cudaFree(block) != cudaSuccess;
}

static void *get_addressed(void *arena, size_t bytes, cudaStream_t stream) {
    void *block = NULL;
    (void)arena;
    return gpupool_cudaMallocAsync(&block, bytes, stream) == cudaSuccess ? block : NULL;
}

static int put_addressed(void *arena, void *block, cudaStream_t stream) {
    (void)arena;
    return gpupool_cudaFreeAsync(block, stream) != cudaSuccess;
}

static void *open_arena(size_t limit_bytes, char why[BENCH_WHY]) {
    gpupool_arena_config config = {.limit_bytes = limit_bytes, .name = "bench"};
    gpupool_arena *arena;
    begin_anew();
    if (gpupool_arena_create(&arena, &config) == GPUPOOL_OK) return arena;
    snprintf(why, BENCH_WHY, "%.190s", gpupool_last_error());
    return NULL;
}

static void *get(void *arena, size_t bytes, cudaStream_t stream) {
    return gpupool_alloc(arena, bytes, stream);
}

static int put(void *arena, void *block, cudaStream_t stream) {
    return gpupool_free(arena, block, stream) != GPUPOOL_OK;
}

static void close_arena(void *arena) {
    if (gpupool_arena_destroy(arena) != GPUPOOL_OK)
        fprintf(stderr, "%s: %s\n", "gpupool", gpupool_last_error());
}

static uint64_t reserved_peak(void *arena) {
    gpupool_stats stats;
    if (gpupool_get_stats(arena, &stats) != GPUPOOL_OK) return 0;
    return stats.reserved.peak + shaped_peak();
}

static uint64_t calls(void *arena) {
    (void)arena;
    return (uint64_t)machine_read().calls;
}

static void *get_ready(void *arena, size_t bytes, cudaStream_t stream) {
    (void)stream;
    return gpupool_alloc(arena, bytes, GPUPOOL_NO_STREAM);
}

static int put_ready(void *arena, void *block, cudaStream_t stream) {
    (void)stream;
    return gpupool_free(arena, block, GPUPOOL_NO_STREAM) != GPUPOOL_OK;
}

const bench_peer bench_gpupool = {
    .name = "gpupool", .about = "gpupool.h, every option at its default",
    .can = BENCH_BLOCKS | BENCH_DEVICE | BENCH_HAND_OVER,
    .open = open_arena, .get = get, .put = put, .close = close_arena,
    .get_as_cuda = get_as_cuda, .put_as_cuda = put_as_cuda, .get_addressed = get_addressed,
    .put_addressed = put_addressed, .reserved_peak = reserved_peak, .calls = calls,
    .get_ready = get_ready, .put_ready = put_ready};
