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

static void *open_arena(size_t limit_bytes, size_t reserve_bytes, char why[BENCH_WHY]) {
    gpupool_arena_config config = {
        .limit_bytes = limit_bytes, .reserve_bytes = reserve_bytes, .name = "bench"};
    gpupool_arena *arena;
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

#if !BENCH_UNLOCKED
static uint64_t growths(void *arena) {
    gpupool_stats stats;
    if (gpupool_get_stats(arena, &stats) != GPUPOOL_OK) return 0;
    return stats.chunks_gained + stats.chunks_lost + stats.stitches;
}
#endif

const bench_peer PEER = {
    NAME,      ABOUT, BENCH_BLOCKS | BENCH_DEVICE | BENCH_MANY | BENCH_HUGE | BENCH_HAND_OVER | CAN,
    open_arena, get,   put,
    close_arena, GROWTHS};
