/* soak_actions.h: all that a thread of test_soak.c may do next, but for blocks (soak_blocks.h),
   graphs (soak_graphs.h), sleep (soak_sleep.h) and what is shared with files and processes
   (soak_share.h). A new feature joins as a function and a line in the table at the end. */
#ifndef SOAK_ACTIONS_H
#define SOAK_ACTIONS_H

#include "soak_share.h"
#include "soak_sleep.h"

/* ---- streams ---- */

static inline void act_wait(actor *a, world *w) {
    unsigned at = some_place(a, w);
    cudaStream_t stream = enter(a, w, at);
    if (below(a, 20) || soak_world[0].taken || soak_world[1].taken)
        MUST_APART(cudaStreamSynchronize(stream));
    else MUST(cudaDeviceSynchronize());
    leave(w, at);
}

static inline void act_hold(actor *a, world *w) {
    unsigned at = some_place(a, w);
    cudaStream_t stream = enter(a, w, at);
    if (stream) fake_hold(stream, (int)below(a, 3) == 0);
    leave(w, at);
}

/* A stream goes, with its work in flight or done, and another comes. */
static inline void act_renew(actor *a, world *w) {
    place *p = &w->place[1 + below(a, PLACES - 1)];
    cudaEvent_t *tomb;
    int quiet = below(a, 2) == 0;
    if (p->graph) return;
    pthread_rwlock_wrlock(&p->lock);
    tomb = &p->tomb[p->age % TOMBS];
    be_on(a, p->device);
    if (quiet) MUST_APART(cudaStreamSynchronize(p->stream));
    if (*tomb) {
        MUST(cudaEventSynchronize(*tomb));
        MUST(cudaEventDestroy(*tomb));
    }
    *tomb = mark(a, p);
    if (below(a, 2)) CALL(a, 0, gpupool_retire_stream(w->arena, p->stream));
    fake_hold(p->stream, 0);
    soak_before(a);
    MUST(cudaStreamDestroy(p->stream)); /* gpupool's, which asks every arena */
    soak_seen(a, GPUPOOL_OK, "cudaStreamDestroy");
    new_stream(a, p, (int)below(a, 2));
    p->age++;
    pthread_rwlock_unlock(&p->lock);
}

/* Whether a graph would go with the peer. */
static inline int is_captured(const world *w) {
    int captured = w->taken != 0;
    for (const graph *g = w->graph; g < w->graph + GRAPHS; g++)
        captured |= g->stage != NO_GRAPH && (g->place == PLACES - 1 || g->branch == PLACES - 1);
    return captured;
}

static long soak_resets;

/* The peer's work is over; its streams and events are gone, and others come. */
static inline void act_reset(actor *a, world *w) {
    if (!soak_alone || w->place[PLACES - 1].device != PEER || is_captured(&soak_world[0]) ||
        is_captured(&soak_world[1]))
        return;
    be_on(a, PEER);
    MUST(cudaDeviceReset());
    soak_resets++;
    calm();
    for (w = soak_world; w < soak_world + WORLDS; w++) {
        place *p = &w->place[PLACES - 1];
        memset(p->tomb, 0, sizeof p->tomb);
        new_stream(a, p, (int)below(a, 2));
        p->age += TOMBS + 1; /* nobody waits for those that were there */
        let_the_peer(a, w);
    }
}

/* Alone, nobody else runs the device. */
static inline void act_step(actor *a, world *w) {
    unsigned at = some_place(a, w), steps = 1 + (unsigned)below(a, 20);
    cudaStream_t stream = enter(a, w, at);
    for (unsigned i = 0; i < steps && soak_alone; i++) note(a, (uint64_t)fake_step(stream));
    leave(w, at);
}

/* ---- the arena ---- */

static inline void act_limit(actor *a, world *w) {
    static const char *const texts[] = {"", "50%", "128MiB", "-48MiB", "0.2GiB"};
    size_t bytes = (size_t)below(a, 50) * MIB << below(a, 4);
    const char *text = texts[below(a, KIT_COUNT(texts))];
    if (below(a, 3) == 0) bytes = 0;
    if (*text) CALL(a, 0, gpupool_set_limit_text(w->arena, text));
    else CALL(a, 0, gpupool_set_limit(w->arena, bytes));
}

/* Whether all work of a place is done, also that of streams that are gone. */
static inline int is_idle(const world *w, unsigned at) {
    cudaError_t error;
    for (unsigned i = 0; i < TOMBS; i++)
        if (w->place[at].tomb[i] && cudaEventQuery(w->place[at].tomb[i]) != cudaSuccess) return 0;
    error = cudaStreamQuery(w->place[at].stream);
    cudaGetLastError();
    return error == cudaSuccess;
}

/* Whether nothing can still be at what is free: no work, and no graph. Only a thread alone can
   tell. While a scope is open the arena cannot. */
static inline int all_is_done(actor *a, const world *w) {
    if (!soak_alone || soak_world[0].taken || soak_world[1].taken || any_asleep(w)) return 0;
    for (int i = 0; i < GRAPHS; i++)
        if (w->graph[i].stage != NO_GRAPH) return 0;
    be_on(a, w->device);
    for (unsigned at = 0; at < PLACES; at++)
        if (!is_idle(w, at)) return 0;
    return 1;
}

static inline void trim(actor *a, world *w, size_t keep) {
    size_t released = 0;
    int done = all_is_done(a, w);
    if (done) fake_run_all(); /* gpupool's events, behind the work of streams that are gone */
    if (CALL(a, 0, gpupool_trim(w->arena, keep, &released)) && done &&
        fake_fail_fired() == a->fired && fail_malloc_fired == a->starved)
        CHECK_EQ(kit_stats(w->arena).pending.now, 0);
    note(a, released);
}

static inline void act_trim(actor *a, world *w) { trim(a, w, (size_t)below(a, 200) * MIB); }

/* For what was freed so far, of a stream or of all: then none of it is pending, but a graph's. */
static inline void act_frees(actor *a, world *w) {
    unsigned at = some_place(a, w);
    cudaStream_t stream = enter(a, w, at);
    if (below(a, 2)) CALL(a, 0, gpupool_wait_stream(w->arena, stream));
    else if (CALL(a, 0, gpupool_wait_all(w->arena)) && soak_alone && !has_graphs(w) &&
             !any_asleep(w))
        CHECK_EQ(kit_stats(w->arena).pending.now, 0);
    leave(w, at);
}

static inline int see_block(const gpupool_block *seen, void *user) {
    uint64_t *live = (uint64_t *)user;
    if (seen->state == GPUPOOL_STATE_LIVE) *live += seen->bytes;
    return 0;
}

/* A walk, and what the live blocks are. */
static inline void act_walk(actor *a, world *w) {
    uint64_t live = 0;
    gpupool_block found;
    block *b = pick_up(a, w);
    if (CALL(a, 0, gpupool_walk_blocks(w->arena, see_block, &live)) && soak_alone)
        CHECK_EQ(live, kit_stats(w->arena).granted.now);
    if (b && b->at && CALL(a, 0, gpupool_get_block(NULL, b->at, &found)))
        CHECK(found.arena == w->arena && found.requested_bytes == b->bytes);
    if (b) put_down(w, b);
}

/* No graphs, no work: then all that is free is known to be. */
static inline void act_rest(actor *a, world *w) {
    if (!soak_alone || soak_world[w == soak_world].taken) return;
    release_graphs(a, w);
    be_on(a, w->device);
    MUST(cudaDeviceSynchronize());
    trim(a, w, 0);
}

static inline void act_ask(actor *a, world *w) {
    gpupool_stats s;
    CALL(a, 0, gpupool_get_stats(w->arena, &s));
    CHECK(s.requested.now <= s.granted.now);
    CHECK(s.granted.now <= s.reserved.now + s.asleep_bytes);
    CHECK_EQ(s.allocs - s.frees, s.blocks.now);
    note(a, s.reserved.now);
    soak_before(a);
    kit_available(w->arena);
    soak_after(a, gpupool_last_result(), 0, "gpupool_available");
    if (below(a, 8) == 0) CALL(a, 0, gpupool_reset_peaks(w->arena));
}

/* What would fit is had, by any stream, if nothing comes in between. */
static inline void act_fit(actor *a, world *w) {
    unsigned to = some_place(a, w);
    cudaStream_t stream = enter(a, w, to);
    size_t bytes = (size_t)1 << below(a, 30);
    gpupool_verdict why;
    soak_before(a);
    int fits = kit_fits(w->arena, bytes, &why);
    soak_after(a, fits ? GPUPOOL_OK : gpupool_last_result(), 1, "gpupool_would_fit");
    note(a, (uint64_t)fits);
    int knows = fake_fail_fired() == a->fired; /* also what is free on the device */
    if (fits && knows && soak_alone && below(a, 2)) {
        soak_before(a);
        void *at = gpupool_alloc(w->arena, bytes, stream);
        if (soak_after(a, kit_why(at), 0, "what would fit"))
            while (!CALL(a, 0, gpupool_free(w->arena, at, stream)) && !atomic_load(&check_bad)) {}
    }
    leave(w, to);
}

/* What a counter says of a phase is what the arena's own has gained meanwhile. */
static inline void check_counter(gpupool_counter phase, gpupool_counter then, gpupool_counter now) {
    CHECK_EQ(phase.now, now.now - then.now);
    CHECK_EQ(phase.total, now.total - then.total);
    CHECK((int64_t)phase.peak >= (int64_t)phase.now && (int64_t)phase.peak >= 0);
}

static inline void act_phase(actor *a, world *w) {
    gpupool_stats s, now, *then;
    if (!soak_alone) return;
    if (w->phases == 0 || (w->phases < PHASES && below(a, 2))) {
        if (!CALL(a, 0, gpupool_begin_phase(w->arena))) return;
        w->pushed[w->phases++] = kit_stats(w->arena);
        return;
    }
    if (!CALL(a, 0, gpupool_end_phase(w->arena, &s))) return;
    then = &w->pushed[--w->phases];
    now = kit_stats(w->arena);
    check_counter(s.requested, then->requested, now.requested);
    check_counter(s.granted, then->granted, now.granted);
    check_counter(s.reserved, then->reserved, now.reserved);
    check_counter(s.blocks, then->blocks, now.blocks);
    CHECK_EQ(s.allocs, now.allocs - then->allocs);
    CHECK_EQ(s.frees, now.frees - then->frees);
    CHECK_EQ(s.failures, now.failures - then->failures);
    CHECK_EQ(s.same_stream_allocs, now.same_stream_allocs - then->same_stream_allocs);
}

static inline void act_report(actor *a, world *w) {
    FILE *nowhere = fopen("/dev/null", "w");
    if (!CHECK(nowhere != NULL)) return;
    CALL(a, 0, gpupool_report(w->arena, nowhere));
    CALL(a, 0, gpupool_write_svg(w->arena, nowhere));
    CALL(a, 0, gpupool_write_json(w->arena, nowhere));
    CALL(a, 0, gpupool_write_snapshot(w->arena, nowhere));
    fclose(nowhere);
}

static inline void act_check(actor *a, world *w) { CALL(a, 0, gpupool_check(w->arena)); }

/* A third arena beside the world's own, for a moment. */
static inline void act_brief_arena(actor *a, world *w) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_AUTO);
    gpupool_arena *arena = NULL;
    unsigned at = some_place(a, w);
    if (w->place[at].device != w->device) return;
    cudaStream_t stream = enter(a, w, at);
    config.device = w->device;
    if (CALL(a, 1, gpupool_arena_create(&arena, &config))) {
        soak_before(a);
        void *held = gpupool_alloc(arena, 1 + below(a, MIB), stream);
        if (soak_after(a, kit_why(held), 1, "an allocation"))
            CALL(a, 0, gpupool_free(arena, held, stream));
        while (!CALL(a, 0, gpupool_arena_destroy(arena)) && !atomic_load(&check_bad)) {}
    }
    leave(w, at);
}

/* ---- the machine ---- */

/* Some call of CUDA will fail, once: of any kind, or of one. Those that only get memory may fail
   for longer, which nobody but an arena can notice. */
static inline void act_fault(actor *a, world *w) {
    static const char *const once[] = {"cuEventRecord", "cuStreamWaitEvent", "cuCtxRecordEvent",
                                       "cudaDeviceSynchronize", "cudaStreamGetDevice",
                                       "cuEventCreate", "cuMemUnmap", "cuMemRelease",
                                       "cuMemFree", "cuEventQuery", "cuMemsetD8Async",
                                       "cuStreamGetId"};
    long n = 1 + (long)below(a, 20);
    (void)w;
    switch (below(a, 6)) {
    case 0: fake_fail_nth(n, 0); break;
    case 1: fake_fail_call(once[below(a, KIT_COUNT(once))], n, 0, 0); break;
    case 2: fake_fail_call(lasting[below(a, KIT_COUNT(lasting))], n, 1, 0); break;
    case 3: fake_fail_call("cuMemsetD8Async", 1, 0, cudaErrorMemoryAllocation); break;
    case 4:
        if (soak_alone) fail_malloc_nth(1 + (long)below(a, 4), (int)below(a, 2));
        break;
    default: calm();
    }
}

/* In what is next: rare calls would hardly ever meet with one. */
static inline void fault_at_once(actor *a) {
    if (below(a, 2)) fake_fail_nth(1 + (long)below(a, 6), 0);
    else fail_malloc_nth(1 + (long)below(a, 3), (int)below(a, 2));
}

static inline void act_others(actor *a, world *w) {
    size_t bytes = (size_t)below(a, 50) * MIB << below(a, 4);
    fake_other_process(w->device, below(a, 2) ? bytes : 0);
}

/* ---- the table ---- */

typedef struct action {
    const char *name;
    void (*act)(actor *, world *);
    unsigned weight; /* of 1000 or so */
} action;

static const action actions[] = {
    {"get or put", act_get_or_put, 520}, {"write", act_write, 120},
    {"lend", act_lend, 80},              {"misuse", act_misuse, 10},
    {"capture", act_capture, 20},        {"inside", act_inside, 60},
    {"finish", act_finish, 20},          {"launch", act_launch, 40},
    {"release", act_release, 10},        {"wait", act_wait, 20},
    {"hold", act_hold, 20},              {"renew", act_renew, 10},
    {"step", act_step, 150},             {"limit", act_limit, 8},
    {"trim", act_trim, 10},              {"ask", act_ask, 10},
    {"fit", act_fit, 5},                 {"phase", act_phase, 5},
    {"report", act_report, 1},           {"check", act_check, 3},
    {"brief arena", act_brief_arena, 2}, {"fault", act_fault, 40},
    {"others", act_others, 6},           {"rest", act_rest, 2},
    {"reset", act_reset, 30},            {"frees", act_frees, 8},
    {"walk", act_walk, 2},               {"sleep", act_sleep, 5},
    {"wake", act_wake, 7},               {"sleep all", act_sleep_all, 1},
    {"budget", act_budget, 4},           {"file", act_file, 12},
    {"share", act_share, 4},
};

#endif
