/* soak_actions.h: all that a thread of test_soak.c may do next. A new feature joins as a function
   and a line in the table at the end. */
#ifndef SOAK_ACTIONS_H
#define SOAK_ACTIONS_H

#include "soak_world.h"

#define LARGEST_BITS 25 /* blocks of up to 32 MiB, small ones as likely as large ones */

static inline unsigned some_place(actor *a) { return (unsigned)below(a, PLACES); }

/* ---- blocks ---- */

static inline void check_refusal(size_t bytes) {
    gpupool_verdict why;
    if (gpupool_last_result() != GPUPOOL_E_OUT_OF_MEMORY) return;
    CHECK_RESULT(gpupool_last_verdict(&why), GPUPOOL_OK);
    CHECK(why.cause != GPUPOOL_CAUSE_NONE && why.sentence[0] && why.asked_bytes >= bytes);
}

static inline void check_device(const world *w, const void *at) {
    struct cudaPointerAttributes where;
    memset(&where, 0, sizeof where);
    MUST(cudaPointerGetAttributes(&where, at));
    if (where.type == cudaMemoryTypeDevice) CHECK_EQ(where.device, w->device);
}

static inline void get_block(actor *a, world *w, block *b) {
    size_t alignment = (size_t)1 << below(a, 22);
    unsigned to = some_place(a), kind = (unsigned)below(a, 10);
    cudaStream_t stream = enter(a, w, to);
    void *at;
    b->bytes = 1 + (size_t)below(a, (uint64_t)1 << below(a, LARGEST_BITS + 1));
    b->byte = (int)below(a, 256);
    soak_before(a);
    if (kind == 0) at = gpupool_zalloc(w->arena, b->bytes, stream);
    else if (kind == 1) at = gpupool_alloc_aligned(w->arena, b->bytes, alignment, stream);
    else at = gpupool_alloc(w->arena, b->bytes, stream);
    if (!at) check_refusal(b->bytes);
    if (soak_after(a, kit_why(at), 1, "an allocation")) {
        b->at = (char *)at;
        belongs(w, b, to);
        check_device(w, at);
        if (kind == 0) verify(b, stream, 0);
        if (kind == 1) CHECK_EQ((uintptr_t)at & (alignment - 1), 0);
        stamp(b, stream);
    }
    leave(w, to);
}

static inline void act_get_or_put(actor *a, world *w) {
    block *b = pick_up(a, w);
    if (!b) return;
    if (b->at) {
        unsigned to = below(a, 4) ? b->place : some_place(a);
        enter_after(a, w, b, to);
        give_back(a, w, b, to);
        leave(w, to);
    } else {
        get_block(a, w, b);
    }
    put_down(b);
}

static inline void act_write(actor *a, world *w) {
    block *b = pick_up(a, w);
    if (b && b->at && !b->lent) {
        unsigned to = some_place(a);
        cudaStream_t stream = enter_after(a, w, b, to);
        verify(b, stream, b->byte);
        b->byte = (int)below(a, 256);
        stamp(b, stream);
        belongs(w, b, to);
        leave(w, to);
    }
    if (b) put_down(b);
}

/* Read on another stream, which says so; if it cannot, the block moves there instead. */
static inline void act_lend(actor *a, world *w) {
    block *b = pick_up(a, w);
    if (b && b->at) {
        unsigned to = some_place(a);
        cudaStream_t stream = enter_after(a, w, b, to);
        verify(b, stream, b->byte);
        if (CALL(a, 0, gpupool_record_use(w->arena, b->at, stream))) b->lent = 1;
        else if (!b->lent) belongs(w, b, to);
        else MUST(cudaStreamSynchronize(stream));
        leave(w, to);
    }
    if (b) put_down(b);
}

static inline void act_misuse(actor *a, world *w) {
    world *other = &soak_world[w == soak_world];
    block *b = pick_up(a, w);
    static char host[600];
    if (b && b->at) {
        unsigned to = b->place;
        cudaStream_t stream = enter(a, w, to);
        REFUSED(a, GPUPOOL_E_NOT_OURS, gpupool_free(other->arena, b->at, stream));
        REFUSED(a, GPUPOOL_E_NOT_OURS, gpupool_free(w->arena, host, stream));
        REFUSED(a, GPUPOOL_E_ARGUMENT, kit_why(gpupool_alloc(w->arena, 0, stream)));
        if (soak_alone) /* nobody else may use it meanwhile */
            REFUSED(a, GPUPOOL_E_IN_USE, gpupool_arena_destroy(w->arena));
        CHECK_EQ(gpupool_size(w->arena, b->at + 1), 0);
        if (b->bytes > 1)
            REFUSED(a, GPUPOOL_E_INSIDE, gpupool_free(w->arena, b->at + b->bytes - 1, stream));
        leave(w, to);
    }
    if (b) put_down(b);
}

/* ---- streams ---- */

static inline void act_wait(actor *a, world *w) {
    unsigned at = some_place(a);
    cudaStream_t stream = enter(a, w, at);
    if (below(a, 20)) MUST(cudaStreamSynchronize(stream));
    else MUST(cudaDeviceSynchronize());
    leave(w, at);
}

static inline void act_hold(actor *a, world *w) {
    unsigned at = some_place(a);
    cudaStream_t stream = enter(a, w, at);
    if (stream) fake_hold(stream, (int)below(a, 3) == 0);
    leave(w, at);
}

/* A stream goes, with its work in flight or done, and another comes. */
static inline void act_renew(actor *a, world *w) {
    place *p = &w->place[1 + below(a, PLACES - 1)];
    cudaEvent_t *tomb;
    int quiet = below(a, 2) == 0;
    pthread_rwlock_wrlock(&p->lock);
    tomb = &p->tomb[p->age % TOMBS];
    be_on(a, w->device);
    if (quiet) MUST(cudaStreamSynchronize(p->stream));
    if (*tomb) {
        MUST(cudaEventSynchronize(*tomb));
        MUST(cudaEventDestroy(*tomb));
    }
    *tomb = mark(p->stream);
    if (below(a, 2)) CALL(a, 0, gpupool_stream_retired(w->arena, p->stream));
    fake_hold(p->stream, 0);
    soak_before(a);
    MUST(cudaStreamDestroy(p->stream)); /* gpupool's, which asks every arena */
    soak_seen(a, GPUPOOL_OK, "cudaStreamDestroy");
    MUST(cudaStreamCreateWithFlags(&p->stream, (unsigned)below(a, 2)));
    p->age++;
    pthread_rwlock_unlock(&p->lock);
}

/* Alone, nobody else runs the device. */
static inline void act_step(actor *a, world *w) {
    unsigned at = some_place(a), steps = 1 + (unsigned)below(a, 20);
    cudaStream_t stream = enter(a, w, at);
    for (unsigned i = 0; i < steps && soak_alone; i++) note(a, (uint64_t)fake_step(stream));
    leave(w, at);
}

/* ---- the arena ---- */

static inline void act_limit(actor *a, world *w) {
    static const char *const texts[] = {"", "50%", "128MiB", "-300MiB", "0.2GiB"};
    size_t bytes = (size_t)below(a, 400) * MIB;
    const char *text = texts[below(a, KIT_COUNT(texts))];
    if (below(a, 3) == 0) bytes = 0;
    if (*text) CALL(a, 0, gpupool_set_limit_text(w->arena, text));
    else CALL(a, 0, gpupool_set_limit(w->arena, bytes));
}

static inline void act_trim(actor *a, world *w) {
    size_t released = 0;
    CALL(a, 0, gpupool_trim(w->arena, (size_t)below(a, 200) * MIB, &released));
    note(a, released);
}

static inline void act_ask(actor *a, world *w) {
    gpupool_verdict why;
    gpupool_stats s;
    CALL(a, 0, gpupool_get_stats(w->arena, &s));
    CHECK(s.requested.now <= s.granted.now && s.granted.now <= s.reserved.now);
    CHECK_EQ(s.allocs - s.frees, s.blocks.now);
    note(a, s.reserved.now);
    soak_before(a);
    gpupool_available(w->arena);
    soak_after(a, gpupool_last_result(), 0, "gpupool_available");
    soak_before(a);
    int fits = gpupool_would_fit(w->arena, (size_t)1 << below(a, 30), &why);
    soak_after(a, fits ? GPUPOOL_OK : gpupool_last_result(), 1, "gpupool_would_fit");
    note(a, (uint64_t)fits);
    if (below(a, 8) == 0) CALL(a, 0, gpupool_reset_peaks(w->arena));
}

static inline void act_report(actor *a, world *w) {
    FILE *nowhere = fopen("/dev/null", "w");
    if (!CHECK(nowhere != NULL)) return;
    CALL(a, 0, gpupool_report(w->arena, nowhere));
    CALL(a, 0, gpupool_write_svg(w->arena, nowhere));
    fclose(nowhere);
}

static inline void act_check(actor *a, world *w) { CALL(a, 0, gpupool_check(w->arena)); }

/* A third arena beside the world's own, for a moment. */
static inline void act_brief_arena(actor *a, world *w) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_AUTO);
    gpupool_arena *arena = NULL;
    unsigned at = some_place(a);
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
    static const char *const once[] = {"cudaEventRecord", "cudaStreamWaitEvent", "cuEventRecord",
                                       "cuStreamWaitEvent", "cuStreamIsCapturing",
                                       "cuCtxRecordEvent",
                                       "cudaEventCreateWithFlags", "cuMemUnmap", "cuMemRelease",
                                       "cudaFree", "cudaEventQuery", "cudaMemsetAsync"};
    static const char *const lasting[] = {"cuMemCreate", "cuMemMap", "cuMemSetAccess",
                                          "cudaMalloc"};
    long n = 1 + (long)below(a, 20);
    (void)w;
    switch (below(a, 4)) {
    case 0: fake_fail_nth(n, 0); break;
    case 1: fake_fail_call(once[below(a, KIT_COUNT(once))], n, 0, 0); break;
    case 2: fake_fail_call(lasting[below(a, KIT_COUNT(lasting))], n, 1, 0); break;
    default:
        for (size_t i = 0; i < KIT_COUNT(lasting); i++) fake_fail_call(lasting[i], 0, 0, 0);
    }
}

static inline void act_others(actor *a, world *w) {
    fake_other_process(w->device, (size_t)below(a, 2) * (size_t)below(a, 300) * MIB);
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
    {"wait", act_wait, 20},              {"hold", act_hold, 20},
    {"renew", act_renew, 10},            {"step", act_step, 150},
    {"limit", act_limit, 8},             {"trim", act_trim, 10},
    {"ask", act_ask, 10},                {"report", act_report, 1},
    {"check", act_check, 3},             {"brief arena", act_brief_arena, 2},
    {"fault", act_fault, 30},            {"others", act_others, 6},
};

#endif
