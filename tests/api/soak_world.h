/* soak_world.h: arenas, streams that come and go, blocks that carry a stamp, calls that fail now
   and then. What the actions of test_soak.c are made of; include it after gpupool.h.

   A world is an arena on a device of its own. A place holds a stream; its age counts the streams
   that were there before. The last place may be on a third device, a peer of both. A block knows
   the place and the age of the stream whose work had it last: who wants it on another stream orders
   that stream after this one, as a program must.

   A graph has its places to itself until it and its scopes are whole. Blocks that are handed out
   inside are the graph's: each launch writes the same there. Only a thread alone captures.

   A tag that sleeps counts how often content was discarded; a block knows the count of when it was
   written, and nobody touches it meanwhile.

   Locks, in this order: the world's, a block's, its tag's, then places' by number, all but a
   block's for reading. A stream is replaced under its place's lock for writing, a tag sleeps and
   wakes under the tag's, and all of an arena under the world's: with no other lock but the world's
   held, and that for reading. */
#ifndef SOAK_WORLD_H
#define SOAK_WORLD_H

#include "arena_kit.h"
#include "linked.h"

#include <pthread.h>

#define WORLDS 2
#define PEER WORLDS /* a device */
#define PLACES 5
#define BLOCKS 192
#define TOMBS 16 /* streams of a place that are remembered after they are gone */
#define GRAPHS 3
#define SOAK_TAGS 3
#define PHASES 8 /* statistics scopes, one in the other */
#define DEVICE_BYTES (512 * MIB)
#define LEAST_BYTES (64 * MIB)

typedef enum stage { NO_GRAPH, CAPTURING, CAPTURED /* in its scopes yet */, WHOLE } stage;

typedef struct graph {
    stage stage;
    unsigned place, branch, age;  /* the same place twice: one branch. Age: of the stream */
    gpupool_capture *scope[2];    /* a branch may have none */
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    int launches;
    unsigned after;  /* places whose work the next launch comes after, one bit each */
    unsigned shares; /* graphs whose blocks it has freed: they are released later */
} graph;

typedef struct place {
    pthread_rwlock_t lock;
    cudaStream_t stream;
    int device;
    int blocking;
    unsigned age;
    graph *graph; /* captures here, or has a scope */
    cudaEvent_t tomb[TOMBS]; /* by age: the end of a stream's work */
} place;

typedef struct block {
    pthread_mutex_t lock;
    char *at; /* NULL: there is none */
    size_t bytes;
    int byte;       /* its stamp */
    int lent;       /* 1: other streams read it, so that nobody may write */
    int anyones;    /* 1: from gpupool_cudaMalloc, which takes it back */
    int tag, is_held; /* 1: the tag's lock is held */
    unsigned discards; /* of its tag, when it was written */
    unsigned place, age;
    graph *graph;   /* that it was handed out in */
    graph *kept;    /* a graph that has it in its work: nobody else's before the release */
} block;

typedef struct soak_tag { /* [0]: what has no tag */
    pthread_rwlock_t lock;
    int can_sleep, asleep;
    unsigned discards; /* how often content was discarded */
} soak_tag;

typedef struct world {
    pthread_rwlock_t lock;
    gpupool_arena *arena;
    gpupool_source source;
    int device;
    soak_tag tag[SOAK_TAGS + 1];
    gpupool_ring *ring;
    place place[PLACES]; /* place 0 of world 0 is the legacy stream, for ever */
    unsigned taken;      /* places that graphs have */
    block block[BLOCKS];
    graph graph[GRAPHS];
    gpupool_stats pushed[PHASES];
    int phases;
} world;

typedef struct actor { /* a thread */
    unsigned number;
    uint64_t random;
    long n;         /* actions so far */
    uint64_t trail; /* of all that it did and saw: equal runs have equal trails */
    long fired;     /* faults, before the call that is looked at */
    long starved;   /* and requests for host memory that failed */
    int device;     /* the current one */
    const char *last; /* call of gpupool */
} actor;

static world soak_world[WORLDS];
static int soak_alone; /* 1: one thread, which also decides what the device does */
static atomic_long soak_results[CHECK_CODES];

static inline uint64_t below(actor *a, uint64_t bound) { return check_below(&a->random, bound); }

static inline void note(actor *a, uint64_t what) {
    a->trail = (a->trail ^ what) * 1099511628211u;
}

/* ---- calls that may fail ---- */

/* The program's own calls are made again until they succeed: only a fault may stand in the way, and
   not for ever. */
static inline int soak_again(const char *call, cudaError_t error) {
    static _Thread_local int times;
    if (error == cudaSuccess) return times = 0;
    cudaGetLastError();
    if (fake_fail_fired() > 0 && ++times < 10000) return 1;
    return check_fail(__FILE__, __LINE__, "%s: %s", call, cudaGetErrorName(error));
}
#define MUST(call) while (soak_again(#call, (call)))

static inline void be_on(actor *a, int device) {
    if (a->device != device) MUST(cudaSetDevice(device));
    a->device = device;
}

static inline void check_current(const actor *a, const char *when) {
    int device = -1;
    MUST(cudaGetDevice(&device));
    if (device != a->device)
        check_fail(__FILE__, __LINE__, "device %d is current, not %d, %s %s", device, a->device,
                   when, a->last);
}

/* A call that would lose captures of others, but for this word. */
#define MUST_APART(call) \
    do { \
        enum cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed; \
        MUST(cudaThreadExchangeStreamCaptureMode(&mode_)); \
        MUST(call); \
        MUST(cudaThreadExchangeStreamCaptureMode(&mode_)); \
    } while (0)

/* Around every call of gpupool that may make one of CUDA. Returns the faults meanwhile; without
   any, the call has left the current device as it was. */
static inline void soak_before(actor *a) {
    check_current(a, "before a call, since the last one:");
    a->fired = fake_fail_fired();
    a->starved = fail_malloc_fired;
}

static inline long soak_seen(actor *a, gpupool_result got, const char *call) {
    long fired = fake_fail_fired() - a->fired;
    atomic_fetch_add(&soak_results[got], 1);
    note(a, (uint64_t)got);
    a->last = call;
    if (fired) MUST(cudaSetDevice(a->device)); /* putting it back may be what failed */
    else check_current(a, "after");
    cudaGetLastError();
    return fired;
}

/* 1 when it succeeded. It may fail for lack of memory where that is allowed, and when a call of
   CUDA was made to fail meanwhile; never otherwise. */
static inline int soak_after(actor *a, gpupool_result got, int memory_may_lack, const char *call) {
    long fired = soak_seen(a, got, call);
    if (got == GPUPOOL_OK) return 1;
    if (got == GPUPOOL_E_CUDA && fired) return 0;
    if (got == GPUPOOL_E_HOST_MEMORY && fail_malloc_fired > a->starved) return 0;
    if (got == GPUPOOL_E_OUT_OF_MEMORY && (memory_may_lack || fired)) return 0;
    return check_fail(__FILE__, __LINE__, "%s: %s, after %ld faults: %s", call,
                      gpupool_result_name(got), fired, gpupool_last_error());
}
#define CALL(a, memory_may_lack, call) \
    (soak_before(a), soak_after((a), (call), (memory_may_lack), #call))

/* A call that must be refused, and for this reason, unless CUDA failed first. */
static inline void soak_refused(actor *a, gpupool_result got, gpupool_result why,
                                const char *call) {
    long fired = soak_seen(a, got, call);
    if (got == GPUPOOL_E_HOST_MEMORY && fail_malloc_fired > a->starved) return;
    if (got != why && !(got == GPUPOOL_E_CUDA && fired))
        check_fail(__FILE__, __LINE__, "%s: %s, not %s", call, gpupool_result_name(got),
                   gpupool_result_name(why));
}
#define REFUSED(a, why, call) (soak_before(a), soak_refused((a), (call), (why), #call))

/* Calls that may fail for longer. */
static const char *const lasting[] = {"cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemAlloc"};

static inline void calm(void) {
    for (size_t i = 0; i < KIT_COUNT(lasting); i++) fake_fail_call(lasting[i], 0, 0, 0);
    if (soak_alone) fail_malloc_nth(0, 0);
}

/* A ring waits until its copies are done: alone, somebody must do them. */
static inline void device_goes_on(void) { if (soak_alone) fake_mode(FAKE_EAGER); }
static inline void device_waits(void) { if (soak_alone) fake_mode(FAKE_STEPPED); }

/* ---- streams ---- */

static inline unsigned some_place(actor *a, const world *w) {
    unsigned at;
    do at = (unsigned)below(a, PLACES);
    while (w->place[at].graph);
    return at;
}

static inline void new_stream(actor *a, place *p, int blocking) {
    be_on(a, p->device);
    p->blocking = blocking;
    MUST(cudaStreamCreateWithFlags(&p->stream,
                                   blocking ? cudaStreamDefault : cudaStreamNonBlocking));
}

static inline cudaStream_t enter(actor *a, world *w, unsigned at) {
    pthread_rwlock_rdlock(&w->place[at].lock);
    be_on(a, w->place[at].device); /* the legacy stream is the current device's */
    return w->place[at].stream;
}

static inline void leave(world *w, unsigned at) { pthread_rwlock_unlock(&w->place[at].lock); }

static inline cudaEvent_t mark(actor *a, const place *p) { /* the work queued so far */
    cudaEvent_t event = NULL;
    int device = a->device;
    be_on(a, p->device);
    MUST(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    MUST(cudaEventRecord(event, p->stream));
    be_on(a, device);
    return event;
}

/* Enters, and the stream's later work comes after the block's. */
static inline cudaStream_t enter_after(actor *a, world *w, const block *b, unsigned to) {
    place *from = &w->place[b->place];
    if (b->place < to) enter(a, w, b->place);
    cudaStream_t stream = enter(a, w, to);
    if (b->place > to) enter(a, w, b->place);
    be_on(a, w->place[to].device);
    if (b->age != from->age) { /* one that is gone; if too long ago, its work was waited for */
        if (from->age - b->age <= TOMBS)
            MUST(cudaStreamWaitEvent(stream, from->tomb[b->age % TOMBS], 0));
    } else if (b->place != to) {
        cudaEvent_t event = mark(a, from);
        MUST(cudaStreamWaitEvent(stream, event, 0));
        MUST(cudaEventDestroy(event));
    }
    if (b->place != to) leave(w, b->place);
    return stream;
}

static inline void belongs(const world *w, block *b, unsigned to) {
    b->place = to;
    b->age = w->place[to].age;
}

/* ---- blocks ---- */

static inline int any_asleep(const world *w) {
    int count = 0;
    for (int tag = 1; tag <= SOAK_TAGS; tag++) count += w->tag[tag].asleep;
    return count > 0;
}

static inline void leave_tags(world *w, int up_to) {
    for (int tag = up_to; tag > 0; tag--) pthread_rwlock_unlock(&w->tag[tag].lock);
}

/* Whether all tags are awake; then none falls asleep before leave_tags(w, SOAK_TAGS). */
static inline int hold_tags(world *w) {
    for (int tag = 1; tag <= SOAK_TAGS; tag++) {
        int held = pthread_rwlock_tryrdlock(&w->tag[tag].lock) == 0;
        if (held && !w->tag[tag].asleep) continue;
        leave_tags(w, held ? tag : tag - 1);
        return 0;
    }
    return 1;
}

/* Whether the block, which nobody else has, is awake; then its tag is held, too. */
static inline int hold_tag(world *w, block *b) {
    soak_tag *tag = &w->tag[b->tag];
    if (!b->at) return 1;
    pthread_rwlock_rdlock(&tag->lock);
    b->is_held = !tag->asleep;
    if (tag->asleep) pthread_rwlock_unlock(&tag->lock);
    return b->is_held;
}

/* Whether a graph may be at work on it before the release. */
static inline int is_of_a_graph(const world *w, const block *b) {
    return b->kept || w->place[b->place].graph || (b->graph && b->graph->stage != WHOLE);
}

/* NULL when another thread has it, or a graph, or it sleeps. The caller leaves it with put_down. */
static inline block *pick_up(actor *a, world *w) {
    block *b = &w->block[below(a, BLOCKS)];
    if (pthread_mutex_trylock(&b->lock) != 0) return NULL;
    if ((!b->at || !is_of_a_graph(w, b)) && hold_tag(w, b)) return b;
    pthread_mutex_unlock(&b->lock);
    return NULL;
}

static inline void put_down(world *w, block *b) {
    if (b->is_held) pthread_rwlock_unlock(&w->tag[b->tag].lock);
    b->is_held = 0;
    pthread_mutex_unlock(&b->lock);
}

/* Small blocks are stamped whole, large ones at both ends. */
static inline void stamp(const block *b, cudaStream_t stream) {
    if (b->bytes <= 8 * KIB) CHECK_EQ(fake_write(stream, "stamp", b->at, b->bytes, b->byte), 0);
    else kit_mark(stream, b->at, b->bytes, b->byte);
}

static inline void verify(const block *b, cudaStream_t stream, int byte) {
    if (b->bytes <= 8 * KIB) CHECK_EQ(fake_read(stream, "verify", b->at, b->bytes, byte), 0);
    else kit_expect_mark(stream, b->at, b->bytes, byte);
}

/* Whether its bytes are there, for work queued now: a graph's are once it is launched. */
static inline int is_written(const world *w, const block *b) {
    return b->discards == w->tag[b->tag].discards &&
           (!b->graph || b->graph->launches || b->graph->stage == CAPTURING);
}

static inline void is_written_now(const world *w, block *b) {
    b->discards = w->tag[b->tag].discards;
}

/* On the stream at `to`, which the caller has entered after the block. Returns whether it is free;
   if not, it is there. */
static inline int give_back(actor *a, world *w, block *b, unsigned to) {
    cudaStream_t stream = w->place[to].stream;
    /* cudaFree, which knows of no stream, and so of no scope that would keep the block */
    int whole = b->anyones || (w->device == 0 && soak_alone && below(a, 4) == 0 &&
                               b->graph == w->place[to].graph);
    gpupool_result got;
    if (is_written(w, b) && !b->kept) verify(b, stream, b->byte);
    CHECK_EQ(kit_size(w->arena, b->at), b->bytes);
    if (b->graph) b->graph->after |= 1u << to;
    soak_before(a);
    if (!whole) got = gpupool_free(w->arena, b->at, stream);
    else if (gpupool_cudaFree(b->at) == cudaSuccess) got = GPUPOOL_OK;
    else got = gpupool_last_result();
    if (soak_after(a, got, 0, "freeing")) {
        b->at = NULL;
        b->graph = NULL;
        b->lent = b->anyones = 0;
        return 1;
    }
    /* what only its stream has used needs nothing that can fail, except which stream this is */
    CHECK(got == GPUPOOL_E_HOST_MEMORY || whole || b->lent || b->graph ||
          w->source == GPUPOOL_SOURCE_BYPASS ||
          (GPUPOOL_STREAM_CHECK && got == GPUPOOL_E_CUDA));
    CHECK_EQ(kit_size(w->arena, b->at), b->bytes);
    belongs(w, b, to);
    return 0;
}

/* ---- from first to last ---- */

static inline void let_the_peer(actor *a, world *w) {
    while (!CALL(a, 0, gpupool_allow_peer(w->arena, PEER)) && !atomic_load(&check_bad)) {}
}

/* Of an arena that is not MAPPED no part can sleep. */
static inline void open_tags(world *w) {
    gpupool_tag_config config;
    int tag = 0;
    memset(&config, 0, sizeof config);
    for (int i = 0; i <= SOAK_TAGS; i++) pthread_rwlock_init(&w->tag[i].lock, NULL);
    for (int i = 1; i <= SOAK_TAGS; i++) {
        w->tag[i].can_sleep = config.can_sleep = w->source == GPUPOOL_SOURCE_MAPPED && i < 3;
        config.reserve_bytes = config.can_sleep && i == 2 ? 3 * MIB : 0;
        CHECK_RESULT(gpupool_tag(w->arena, "part", &config, &tag), GPUPOOL_OK);
        CHECK_EQ(tag, i);
    }
}

/* Alone it has no threads of its own, or runs could not be repeated. */
static inline void open_ring(world *w) {
    gpupool_ring_config config;
    memset(&config, 0, sizeof config);
    config.device = w->device;
    config.bytes = 2 * MIB;
    config.workers = soak_alone ? -1 : 2;
    CHECK_RESULT(gpupool_ring_create(&w->ring, &config), GPUPOOL_OK);
}

static inline void soak_open_world(actor *a, world *w, int device, gpupool_source source,
                                   int with_peer) {
    gpupool_arena_config config = kit_config(source);
    config.device = device;
    config.chunk_bytes = below(a, 3) ? 0 : (size_t)(1 + below(a, 8)) * MIB;
    config.reserve_bytes = below(a, 4) ? 0 : (size_t)below(a, 5) * MIB;
    memset(w, 0, sizeof *w);
    w->device = device;
    w->source = source;
    fake_device_memory(device, soak_alone ? LEAST_BYTES << below(a, 4) : DEVICE_BYTES);
    be_on(a, device);
    w->arena = device ? kit_create(&config) : gpupool_get_default_arena(device);
    CHECK(w->arena != NULL);
    pthread_rwlock_init(&w->lock, NULL);
    open_tags(w);
    open_ring(w);
    for (unsigned i = 0; i < BLOCKS; i++) pthread_mutex_init(&w->block[i].lock, NULL);
    for (unsigned i = 0; i < PLACES; i++) {
        pthread_rwlock_init(&w->place[i].lock, NULL);
        w->place[i].device = i + 1 == PLACES && with_peer ? PEER : device;
        if (i || device) new_stream(a, &w->place[i], !(i & 1));
    }
    if (with_peer) let_the_peer(a, w);
}

/* Alone: the arena's account is that of the blocks there are. */
static inline void check_account(world *w) {
    long starve = fail_malloc_next;
    uint64_t blocks = 0, bytes = 0;
    fail_malloc_next = 0;
    for (const block *b = w->block; b < w->block + BLOCKS; b++) {
        if (!b->at) continue;
        blocks++;
        bytes += b->bytes;
    }
    gpupool_stats s = kit_stats(w->arena);
    CHECK_EQ(s.blocks.now, blocks);
    CHECK_EQ(s.requested.now, bytes);
    CHECK_EQ(s.allocs - s.frees, blocks);
    fail_malloc_next = starve;
}

/* What a world leaves besides its arena; `lost`: its device took the streams and events there. */
static inline void close_places(actor *a, world *w, int lost) {
    CHECK_RESULT(gpupool_ring_destroy(w->ring), GPUPOOL_OK);
    pthread_rwlock_destroy(&w->lock);
    for (int i = 0; i <= SOAK_TAGS; i++) pthread_rwlock_destroy(&w->tag[i].lock);
    for (unsigned i = 0; i < BLOCKS; i++) pthread_mutex_destroy(&w->block[i].lock);
    for (unsigned i = 0; i < PLACES; i++) {
        place *p = &w->place[i];
        pthread_rwlock_destroy(&p->lock);
        if (lost && p->device == w->device) continue;
        be_on(a, p->device);
        for (unsigned k = 0; k < TOMBS; k++)
            if (p->tomb[k]) CHECK_EQ(cudaEventDestroy(p->tomb[k]), cudaSuccess);
        if (p->stream) CHECK_EQ(cudaStreamDestroy(p->stream), cudaSuccess);
    }
}

/* The device is reset, with blocks live and work in flight: all of its memory goes back, but chunks
   of the program's own, which went with the reset. */
static inline void soak_lose_world(actor *a, world *w) {
    be_on(a, w->place[PLACES - 1].device); /* a peer's work would go on at what is gone */
    MUST(cudaDeviceSynchronize());
    be_on(a, w->device);
    MUST(cudaDeviceReset());
    CHECK_EQ(kit_custom.wrong, 0);
    memset(&kit_custom, 0, sizeof kit_custom);
    REFUSED(a, GPUPOOL_E_CUDA, gpupool_trim(w->arena, 0, NULL));
    fake_fail_nth(1 + (long)below(a, 6), 0);
    while (!CALL(a, 0, gpupool_arena_destroy(w->arena)) && !atomic_load(&check_bad)) {}
    fake_fail_clear();
    if (linked_default_arena(w->device)) /* see close_worlds */
        CHECK_RESULT(gpupool_arena_destroy(linked_default_arena(w->device)), GPUPOOL_OK);
    be_on(a, w->device);
    CHECK_EQ(fake_used_bytes(w->device), 0);
    close_places(a, w, 1);
}

static inline void put_back(actor *a, world *w, block *b) {
    cudaStream_t stream = enter_after(a, w, b, 1);
    if (!w->tag[b->tag].asleep) give_back(a, w, b, 1);
    else if (CHECK_RESULT(gpupool_free(w->arena, b->at, stream), GPUPOOL_OK)) b->at = NULL;
    leave(w, 1);
}

/* What sleeps may be too much to be awake at once, even beside nothing but reserves. */
static inline void wake_or_leave(world *w, int tag) {
    gpupool_result result = gpupool_wake(w->arena, tag, NULL);
    if (result != GPUPOOL_OK) CHECK_RESULT(result, GPUPOOL_E_OUT_OF_MEMORY);
    w->tag[tag].asleep = result != GPUPOOL_OK;
}

/* Everything is put back, and nothing may be left. */
static inline void soak_close_world(actor *a, world *w) {
    be_on(a, w->device);
    CHECK_RESULT(gpupool_set_limit(w->arena, 0), GPUPOOL_OK);
    for (int tag = 0; tag <= SOAK_TAGS; tag++) {
        if (w->tag[tag].asleep) wake_or_leave(w, tag);
        for (block *b = w->block; b < w->block + BLOCKS; b++)
            if (b->at && b->tag == tag) put_back(a, w, b);
    }
    CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
    CHECK_EQ(kit_stats(w->arena).requested.now, 0);
    CHECK_EQ(kit_stats(w->arena).blocks.now, 0);
    kit_close(w->arena);
    close_places(a, w, 0);
}

#endif
