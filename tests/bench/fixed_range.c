/* A fixed range under random sizes: how much of it is in use when the first request fails?
   One chunk of 64 GiB, and nothing beside it; an allocation with probability 60%, else the free of
   a random live block; five seeds for each law of sizes. */
#include "machine.h"

#include "gpupool.h"
#include "check.h"

#include <math.h>

#define RANGE ((size_t)64 << 30)
#define LEAST ((size_t)512)
#define MOST ((size_t)64 << 20)
#define SEEDS 5
#define MAX_LIVE ((size_t)1 << 24)

typedef size_t (*size_law)(uint64_t *);

typedef struct block {
    void *at;
    size_t bytes;
} block;

static size_t log_uniform(uint64_t *state) {
    double at = (double)(check_random(state) >> 11) / 9007199254740992.0;
    return (size_t)(exp2(9.0 + at * 17.0)); /* 2^9 to 2^26 */
}

static size_t uniform(uint64_t *state) {
    return LEAST + (size_t)(check_random(state) % (MOST - LEAST + 1));
}

/* The share of the range that is requested when the first request fails; the time of a call. */
static double until_failure(gpupool_arena *arena, size_law size, uint64_t seed, block *live,
                            double *ns) {
    size_t n = 0, bytes = 0, calls = 0;
    uint64_t start = machine_now_ns();
    for (;; calls++) {
        if (check_random(&seed) % 100 < 60 || n == 0) {
            block b = {NULL, size(&seed)};
            if (n < MAX_LIVE) b.at = gpupool_alloc(arena, b.bytes, 0);
            if (!b.at) break;
            live[n++] = b;
            bytes += b.bytes;
        } else {
            size_t i = (size_t)(check_random(&seed) % n);
            gpupool_free(arena, live[i].at, 0);
            bytes -= live[i].bytes;
            live[i] = live[--n];
        }
    }
    *ns = (double)(machine_now_ns() - start) / (double)calls;
    while (n) gpupool_free(arena, live[--n].at, 0);
    return (double)bytes / (double)RANGE;
}

static int measure(const char *name, size_law size, block *live) {
    double sum = 0, least = 1, ns = 0, total_ns = 0;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        gpupool_arena *arena;
        gpupool_arena_config config = {
            .source = GPUPOOL_SOURCE_DEVICE, .chunk_bytes = RANGE, .limit_bytes = RANGE};
        if (gpupool_arena_create(&arena, &config) != GPUPOOL_OK) {
            fprintf(stderr, "%s\n", gpupool_last_error());
            return EXIT_FAILURE;
        }
        double share = until_failure(arena, size, seed, live, &ns);
        sum += share;
        total_ns += ns;
        if (share < least) least = share;
        gpupool_arena_destroy(arena);
    }
    printf("%-28s %6.3f  (least %.3f)  %6.0f ns a call\n", name, sum / SEEDS, least,
           total_ns / SEEDS);
    return EXIT_SUCCESS;
}

int main(void) {
    block *live = malloc(MAX_LIVE * sizeof *live);
    if (!live || machine_open() != 0) return EXIT_FAILURE;
    int status = measure("512 B to 64 MiB, log-uniform", log_uniform, live);
    if (status == EXIT_SUCCESS) status = measure("512 B to 64 MiB, uniform", uniform, live);
    free(live);
    return status;
}
