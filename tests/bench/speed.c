/* What an allocation costs on the host when memory is there: a lone pair, a pair among many live
   blocks, and churn. Prints nanoseconds; medians of several runs, since machines are noisy. */
#include "../../gpupool.h"
#include "../machine.h"

#include <stdint.h>
#include <stdlib.h>

#define RUNS 7
#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)

typedef struct work {
    const char *words;
    size_t live, bytes_least, bytes_most;
    long operations;
    int pairs; /* 1: allocate and free the same; 0: free one of the live, allocate another */
} work;

static const work works[] = {
    {"alloc + free of 4 KiB, nothing else live, a pair", 0, 4 * KIB, 4 * KIB, 1000000, 1},
    {"the pair, 4,096 others live", 4096, 4 * KIB, 4 * KIB, 1000000, 1},
    {"churn, 16,384 live, 512 B to 64 KiB, an operation", 16384, 512, 64 * KIB, 1000000, 0},
    {"churn, 4,096 live, 512 B to 64 MiB, an operation", 4096, 512, 64 * MIB, 400000, 0},
    {"churn, 1,024 live, 512 B to 256 KiB, an operation", 1024, 512, 256 * KIB, 1000000, 0},
    {"churn, 262,144 live, 512 B to 256 KiB, an operation", 262144, 512, 256 * KIB, 1000000, 0},
};

static uint64_t state = 88172645463325252u;

static uint64_t draw(void) {
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}

/* Log-uniform: each doubling of size is as likely as the next. */
static size_t draw_size(const work *w) {
    size_t low = w->bytes_least, high;
    unsigned doublings = 0;
    while (low << (doublings + 1) <= w->bytes_most) doublings++;
    if (doublings) low <<= draw() % doublings;
    high = low * 2 < w->bytes_most ? low * 2 : w->bytes_most;
    return high > low ? low + draw() % (high - low + 1) : low;
}

static void *get(gpupool_arena *arena, size_t bytes) {
    void *block = gpupool_alloc(arena, bytes, 0);
    if (block) return block;
    fprintf(stderr, "%s\n", gpupool_last_error());
    exit(1);
}

static void put(gpupool_arena *arena, void *block) {
    if (gpupool_free(arena, block, 0) == GPUPOOL_OK) return;
    fprintf(stderr, "%s\n", gpupool_last_error());
    exit(1);
}

/* Sizes and victims are drawn before the clock starts. */
static double run(gpupool_arena *arena, const work *w, void **live) {
    size_t *sizes = (size_t *)malloc((size_t)w->operations * sizeof *sizes);
    size_t *victims = (size_t *)malloc((size_t)w->operations * sizeof *victims);
    double start;
    long i;
    if (!sizes || !victims) exit(1);
    for (i = 0; i < w->operations; i++) {
        sizes[i] = draw_size(w);
        victims[i] = w->live ? draw() % w->live : 0;
    }
    start = (double)machine_now_ns();
    for (i = 0; i < w->operations; i++) {
        if (w->pairs) {
            put(arena, get(arena, sizes[i]));
        } else {
            put(arena, live[victims[i]]);
            live[victims[i]] = get(arena, sizes[i]);
        }
    }
    start = ((double)machine_now_ns() - start) / (double)w->operations / (w->pairs ? 1 : 2);
    free(sizes);
    free(victims);
    return start;
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void measure(const work *w) {
    gpupool_arena_config config = {0};
    gpupool_arena *arena;
    double times[RUNS];
    void **live = (void **)malloc((w->live + 1) * sizeof *live);
    size_t i;
    config.source = GPUPOOL_SOURCE_DEVICE;
    config.chunk_bytes = (size_t)64 << 30;
    if (!live || gpupool_arena_create(&arena, &config) != GPUPOOL_OK) {
        fprintf(stderr, "%s\n", gpupool_last_error());
        exit(1);
    }
    for (i = 0; i < w->live; i++) live[i] = get(arena, draw_size(w));
    put(arena, get(arena, w->bytes_most));
    for (i = 0; i < RUNS; i++) times[i] = run(arena, w, live);
    qsort(times, RUNS, sizeof *times, by_size);
    printf("  %-56s %8.1f ns   (%.1f to %.1f)\n", w->words, times[RUNS / 2], times[0],
           times[RUNS - 1]);
    for (i = 0; i < w->live; i++) put(arena, live[i]);
    if (gpupool_arena_destroy(arena) != GPUPOOL_OK) exit(1);
    free(live);
}

int main(void) {
    size_t i;
    if (machine_open() != 0) return 1;
    printf("gpupool on one thread, one stream, a 64 GiB chunk; medians of %d runs\n", RUNS);
    for (i = 0; i < sizeof works / sizeof *works; i++) measure(&works[i]);
    return 0;
}
