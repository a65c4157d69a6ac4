/* One size of units, REPLAY_UNIT, in a library of its own. */
#define GPUPOOL_UNIT_BYTES REPLAY_UNIT
#define GPUPOOL_STATIC 1
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "replay_units.h"

#include <stdlib.h>

#define STEP ((uint64_t)2 << 20) /* between limits that are tried */
#define JOIN(a, b) JOIN_NOW(a, b)
#define JOIN_NOW(a, b) a##b

static int failed(const char *what) {
    fprintf(stderr, "cannot plan: %s\n", what);
    return -1;
}

/* One cold pass; 1: complete, 0: memory ran out. */
static int pass(gpupool_arena *arena, const trace *t, const cudaStream_t *streams, void **block) {
    int complete = 1;
    for (size_t i = 0; i < t->events; i++) {
        const trace_event *e = &t->event[i];
        if (e->kind != TRACE_BLOCK) continue;
        if (!e->bytes) {
            gpupool_free(arena, block[e->slot], streams[e->stream]);
            block[e->slot] = NULL;
        } else if (complete) {
            block[e->slot] = gpupool_alloc_aligned(arena, e->bytes, (size_t)1 << e->align,
                                                   streams[e->stream]);
            complete = block[e->slot] != NULL;
        }
    }
    for (size_t i = 0; i < t->slots; i++) {
        gpupool_free(arena, block[i], streams[0]);
        block[i] = NULL;
    }
    return complete;
}

/* 1, 0, or -1 where the arena cannot be made. */
static int fits(const trace *t, const cudaStream_t *streams, int source, uint64_t limit,
                void **block, replay_figures *figures) {
    gpupool_arena_config config = {.source = (gpupool_source)source, .limit_bytes = limit};
    gpupool_arena *arena;
    gpupool_stats stats;
    if (gpupool_arena_create(&arena, &config) != GPUPOOL_OK) return failed(gpupool_last_error());
    int complete = pass(arena, t, streams, block);
    if (figures && gpupool_get_stats(arena, &stats) == GPUPOOL_OK) {
        figures->reserved_bytes = stats.reserved.peak;
        figures->pieces = (int)stats.chunks_gained;
    }
    if (gpupool_arena_destroy(arena) != GPUPOOL_OK) return failed(gpupool_last_error());
    return complete;
}

/* Between what is live and what was reserved without a limit, or a little more, by halves. */
static int find_least(const trace *t, const cudaStream_t *streams, int source, void **block,
                      replay_figures *figures) {
    uint64_t fails = (t->peak_live_bytes - 1) / STEP, most = figures->reserved_bytes / STEP * 2 + 2;
    uint64_t enough = (figures->reserved_bytes + STEP - 1) / STEP;
    int answer = fits(t, streams, source, enough * STEP, block, NULL);
    while (answer == 0 && enough < most) {
        fails = enough;
        enough += enough / 16 + 1;
        answer = fits(t, streams, source, enough * STEP, block, NULL);
    }
    if (answer <= 0) return answer;
    while (answer >= 0 && enough - fails > 1) {
        uint64_t middle = fails + (enough - fails) / 2;
        answer = fits(t, streams, source, middle * STEP, block, NULL);
        if (answer) enough = middle;
        else fails = middle;
    }
    figures->least_bytes = enough * STEP;
    return answer < 0 ? -1 : 0;
}

int JOIN(replay_unit_, REPLAY_UNIT)(const trace *t, const cudaStream_t *streams, int source,
                                    int limits, replay_figures *figures) {
    void **block = calloc(t->slots, sizeof *block);
    if (!block) return failed("host memory is out");
    *figures = (replay_figures){0, 0, 0};
    int result = fits(t, streams, source, 0, block, figures);
    if (result >= 0 && limits) result = find_least(t, streams, source, block, figures);
    free(block);
    return result < 0 ? -1 : 0;
}
