/* Operations on the arena: limits, trims, sleep, figures; and faults to come. */
#include "world.h"

static void limit(world *w, const operation *op) {
    w->old_limit = w->limit; /* intruders see the one or the other */
    w->limit = w->config.limit_bytes >> op->flags % 3;
    if (w->limit && w->limit < 2 << 20) w->limit = 2 << 20;
    world_judge(w, SURE(w, gpupool_set_limit(w->arena, w->limit)), BIT(GPUPOOL_OK) | OR_BROKEN,
                "set_limit");
    w->old_limit = w->limit;
}

static void trim(world *w, const operation *op) {
    size_t keep = op->flags % 2 ? 0 : (size_t)op->number % (256 << 20);
    world_judge(w, SURE(w, gpupool_trim(w->arena, keep)), BIT(GPUPOOL_OK) | OR_BROKEN, "trim");
}

static void reset_peaks(world *w) {
    world_judge(w, SURE(w, gpupool_reset_peaks(w->arena)), BIT(GPUPOOL_OK), "reset_peaks");
    w->peak = w->asked;
    w->is_inexact = 0;
}

/* Whether the memory is asleep now. Where nothing is mapped, nothing sleeps. */
static int fall_asleep(world *w) {
    gpupool_source source = w->config.source;
    int can_sleep = source == GPUPOOL_SOURCE_AUTO || source == GPUPOOL_SOURCE_MAPPED;
    gpupool_result result;
    do result = CALL(w, gpupool_sleep(w->arena, GPUPOOL_KEEP));
    while (world_is_faulty(w, result));
    return world_judge(w, result, BIT(can_sleep ? GPUPOOL_OK : GPUPOOL_E_UNSUPPORTED) | OR_BROKEN,
                       "sleep");
}

/* A limit that was lowered, for longer than live blocks allow, keeps the arena asleep. */
static void wake_up(world *w) {
    gpupool_stats stats = {0};
    gpupool_result result;
    gpupool_get_stats(w->arena, &stats);
    do result = CALL(w, gpupool_wake(w->arena));
    while (world_is_faulty(w, result));
    if (result == GPUPOOL_E_OUT_OF_MEMORY && w->limit && stats.asleep > w->limit) {
        world_judge(w, SURE(w, gpupool_set_limit(w->arena, 0)), BIT(GPUPOOL_OK), "set_limit");
        result = SURE(w, gpupool_wake(w->arena));
        gpupool_set_limit(w->arena, w->limit);
    }
    /* the call that found the device broken may have been one that is undone */
    if (result == GPUPOOL_E_CUDA) result = gpupool_wake(w->arena);
    world_judge(w, result, BIT(GPUPOOL_OK) | OR_BROKEN, "wake");
}

/* The arena sleeps, and wakes with the content of all blocks. Meanwhile some are freed. */
static void nap(world *w, const operation *op) {
    unsigned refused = BIT(GPUPOOL_E_ASLEEP) | OR_BROKEN;
    int guard = w->guard, i;
    void *memory;
    if (w->is_shared || w->is_intruding || w->allocated > 64 << 20) return;
    w->guard = NO_INTRUDER;
    if (fall_asleep(w)) {
        memory = CALL(w, gpupool_alloc(w->arena, (size_t)1 + op->number, w->streams[0]));
        if (w->is_host_short) refused |= BIT(GPUPOOL_E_HOST_MEMORY);
        world_judge(w, memory ? GPUPOOL_OK : gpupool_last_result(), refused, "a sleeping alloc");
        for (i = op->stream % 8; i > 0; i--) world_free_asleep(w, (op->flags + i * 31) % BLOCKS);
        world_figures(w);
        world_judge(w, SURE(w, gpupool_check(w->arena)), BIT(GPUPOOL_OK), "check");
        wake_up(w);
    }
    w->guard = guard;
}

void world_tune(world *w, const operation *op) {
    switch (op->slot % 32) {
    case 0: trim(w, op); break;
    case 1:
        if (!w->is_shared) limit(w, op);
        break;
    case 2: fake_run_all(); break;
    case 3:
    case 4: nap(w, op); break;
    default:
        world_figures(w);
        world_judge(w, SURE(w, gpupool_check(w->arena)), BIT(GPUPOOL_OK), "check");
        if (!w->is_shared && op->flags % 2) reset_peaks(w);
    }
}

void world_fault(world *w, const operation *op) {
    if (!w->has_faults) return;
    switch (op->slot % 16) {
    case 0:
        if (op->flags < 16 && !fake_is_broken()) fake_break(1 + op->number % 200);
        break;
    case 1:
    case 2:
    case 3: world_refuse_host_memory(1 + op->number % 8); break;
    default: fake_fail_resource(1 + op->number % 64);
    }
}
