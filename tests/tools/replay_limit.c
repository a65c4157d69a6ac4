#include "replay_limit.h"

#include "replay_pass.h"

typedef struct attempt {
    const replay_plan *plan;
    const gpupool_arena_config *config;
    unsigned passes;
} attempt;

/* 1: a fresh arena with that limit completes, 0: it does not, -1: it cannot be tried. */
static int completes(const attempt *a, uint64_t steps) {
    gpupool_arena *arena;
    gpupool_arena_config config = *a->config;
    int result = 1;
    config.limit_bytes = (size_t)(steps * REPLAY_LIMIT_STEP);
    if (gpupool_arena_create(&arena, &config) != GPUPOOL_OK) {
        fprintf(stderr, "%s\n", gpupool_last_error());
        return -1;
    }
    for (unsigned i = 0; i < a->passes && result == 1; i++) {
        replay_pass pass = {.plan = a->plan, .arena = arena, .give_up = 1};
        result = replay_pass_run(&pass);
        if (result == 0) result = pass.failures == 0;
    }
    if (gpupool_arena_destroy(arena) == GPUPOOL_OK) return result;
    fprintf(stderr, "%s\n", gpupool_last_error());
    return -1;
}

/* What is live is a lower bound, and the answer is near: growing steps from there, then halves. */
int replay_min_limit(const replay_plan *plan, const gpupool_arena_config *config, unsigned passes,
                     uint64_t *bytes) {
    attempt a = {plan, config, passes};
    uint64_t live = plan->from->peak_live_bytes;
    uint64_t least = (live + REPLAY_LIMIT_STEP - 1) / REPLAY_LIMIT_STEP;
    uint64_t fails = least - 1, enough = least;
    int answer;
    *bytes = 0;
    while ((answer = completes(&a, enough)) == 0) {
        if (enough > least * 8 + 8) return 0;
        fails = enough;
        enough += enough - least + 1;
    }
    while (answer >= 0 && enough - fails > 1) {
        uint64_t middle = fails + (enough - fails) / 2;
        answer = completes(&a, middle);
        if (answer == 1) enough = middle;
        else fails = middle;
    }
    if (answer < 0) return -1;
    *bytes = enough * REPLAY_LIMIT_STEP;
    return 0;
}
