/* gpupool as a peer; with BENCH_UNLOCKED, a build of its own for programs of one thread. */
#if BENCH_UNLOCKED
#define GPUPOOL_IMPLEMENTATION
#define GPUPOOL_STATIC 1
#define GPUPOOL_SINGLE_THREAD 1
#define PEER bench_gpupool_unlocked
#define NAME "gpupool, no locks"
#define ABOUT "as gpupool, built with GPUPOOL_SINGLE_THREAD"
#define CAN 0u
#define GROWTHS NULL
#else
#define PEER bench_gpupool
#define NAME "gpupool"
#define ABOUT "gpupool.h, every option at its default"
#define CAN BENCH_THREADS
#define GROWTHS growths
#endif
#include "gpupool.h"
#include "bench.h"
#include "edition.h"
#include "machine.h"

/* The functions in CUDA's shapes use the default arena. */
static void begin_anew(void) {
    gpupool_arena *shaped = edition_default_arena(0);
    if (!shaped) return;
    edition_trim(shaped, 0);
    gpupool_reset_peaks(shaped);
}

static uint64_t shaped_peak(void) {
    gpupool_arena *shaped = edition_default_arena(0);
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

static void *open_arena(size_t limit_bytes, size_t reserve_bytes, char why[BENCH_WHY]) {
    gpupool_arena_config config = {.limit_bytes = limit_bytes, .name = "bench"};
    gpupool_arena *arena;
    edition_reserve(&config, reserve_bytes);
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
        fprintf(stderr, "%s: %s\n", NAME, gpupool_last_error());
}

static uint64_t reserved_peak(void *arena) {
    gpupool_stats stats;
    if (gpupool_get_stats(arena, &stats) != GPUPOOL_OK) return 0;
    return stats.reserved.peak + shaped_peak();
}

static uint64_t calls(void *arena) {
    machine_calls all = machine_count_calls();
    (void)arena;
    return (uint64_t)machine_all_calls(&all);
}

static void *get_ready(void *arena, size_t bytes, cudaStream_t stream) {
    (void)stream;
    return edition_alloc_ready(arena, bytes);
}

static int put_ready(void *arena, void *block, cudaStream_t stream) {
    (void)stream;
    return edition_free_ready(arena, block) != GPUPOOL_OK;
}

#if !BENCH_UNLOCKED
static uint64_t growths(void *arena) {
    gpupool_stats stats;
    if (gpupool_get_stats(arena, &stats) != GPUPOOL_OK) return 0;
    return edition_growths(&stats);
}
#endif

const bench_peer PEER = {
    .name = NAME, .about = ABOUT,
    .can = BENCH_BLOCKS | BENCH_DEVICE | BENCH_MANY | BENCH_HUGE | BENCH_HAND_OVER | CAN,
    .open = open_arena, .get = get, .put = put, .close = close_arena, .growths = GROWTHS,
    .get_as_cuda = get_as_cuda, .put_as_cuda = put_as_cuda, .get_addressed = get_addressed,
    .put_addressed = put_addressed, .reserved_peak = reserved_peak, .calls = calls,
    .get_ready = get_ready, .put_ready = put_ready};
