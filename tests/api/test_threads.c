/* Many threads in one arena: streams of their own and shared ones, blocks freed by other threads
   than those that asked for them, and the whole-arena calls in between. Stamps show any overlap. */
// left at exit: the default arena
// build: plain -O1
// build: tsan -fsanitize=thread -DCALLS=1000
// build: check2 -O1 -DGPUPOOL_CHECK=2 -DCALLS=1000
// build: guard -DGPUPOOL_GUARD=1
#define _DEFAULT_SOURCE /* pthread_barrier_t */
#include "gpupool.h"
#include "arena_kit.h"

#include <pthread.h>

#define THREADS 12
#ifndef CALLS
#define CALLS 3000
#endif
#define OWN 24
#define MAIL 64

typedef struct parcel {
    char *at;
    size_t bytes;
    int byte, stream; /* which of all_streams its work is queued on */
} parcel;

static gpupool_arena *arena;
static cudaStream_t all_streams[THREADS + KIT_STREAMS]; /* one a thread, then the shared ones */
static pthread_mutex_t mail_lock = PTHREAD_MUTEX_INITIALIZER;
static parcel mail[MAIL];
static pthread_barrier_t gate;
static atomic_long allocs, refusals;

/* ---- blocks and their stamps ---- */

static void stamp(const parcel *p) { kit_mark(all_streams[p->stream], p->at, p->bytes, p->byte); }

static parcel get(uint64_t *random, int stream) {
    parcel p = {NULL, 0, (int)check_below(random, 256), stream};
    if (check_below(random, 4)) /* mostly one of a few sizes, that caches have again */
        p.bytes = (size_t)1000 << check_below(random, 3);
    else
        p.bytes = 1 + (size_t)check_below(random, (uint64_t)1 << (9 + check_below(random, 12)));
    p.at = (char *)gpupool_alloc(arena, p.bytes, all_streams[stream]);
    if (p.at) {
        stamp(&p);
        atomic_fetch_add(&allocs, 1);
    } else {
        CHECK_RESULT(gpupool_last_result(), GPUPOOL_E_OUT_OF_MEMORY);
        atomic_fetch_add(&refusals, 1);
    }
    return p;
}

/* Sometimes on another stream than the one whose cache may have it; to ask for its size would take
   it out of there. */
static void put(parcel *p) {
    int stream = p->byte % 4 ? p->stream : THREADS + p->byte / 4 % KIT_STREAMS;
    if (!p->at) return;
    kit_expect_mark(all_streams[p->stream], p->at, p->bytes, p->byte);
    if (p->byte % 2) CHECK_EQ(kit_size(arena, p->at), p->bytes);
    if (stream != p->stream) kit_order(all_streams[p->stream], all_streams[stream]);
    CHECK_RESULT(gpupool_free(arena, p->at, all_streams[stream]), GPUPOOL_OK);
    p->at = NULL;
}

/* Leaves a parcel for whoever comes, and takes what was there: a block of another thread. */
static parcel swap_mail(parcel p, size_t slot) {
    pthread_mutex_lock(&mail_lock);
    parcel old = mail[slot];
    mail[slot] = p;
    pthread_mutex_unlock(&mail_lock);
    return old;
}

static void read_elsewhere(const parcel *p, int stream) {
    kit_order(all_streams[p->stream], all_streams[stream]);
    kit_expect_mark(all_streams[stream], p->at, p->bytes, p->byte);
    CHECK_RESULT(gpupool_record_stream(arena, p->at, all_streams[stream]), GPUPOOL_OK);
}

/* ---- a thread's life ---- */

static void whole_arena_call(uint64_t *random) {
    gpupool_stats stats;
    switch (check_below(random, 6)) {
    case 0: CHECK_RESULT(gpupool_trim(arena, 4 * MIB, NULL), GPUPOOL_OK); break;
    case 1: CHECK_RESULT(gpupool_set_limit(arena, 0), GPUPOOL_OK); break;
    case 2: CHECK_RESULT(gpupool_set_limit(arena, 48 * MIB), GPUPOOL_OK); break;
    case 3: CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK); break;
    case 4:
        CHECK_RESULT(gpupool_get_stats(arena, &stats), GPUPOOL_OK);
        CHECK(stats.requested.now <= stats.granted.now);
        CHECK(stats.granted.now <= stats.reserved.now);
        CHECK_EQ(stats.allocs - stats.frees, stats.blocks.now);
        break;
    default: CHECK(kit_available(arena) > 0 || gpupool_last_result() == GPUPOOL_OK); break;
    }
}

static void one_call(uint64_t *random, int me, parcel *own) {
    parcel *p = &own[check_below(random, OWN)];
    int shared = THREADS + (int)check_below(random, KIT_STREAMS);
    uint64_t kind = check_below(random, 100);
    if (kind < 50) {
        if (p->at) put(p);
        else *p = get(random, me);
    } else if (kind < 65) {
        if (p->at) put(p);
        else *p = get(random, shared);
    } else if (kind < 90) {
        *p = swap_mail(*p, (size_t)check_below(random, MAIL));
    } else if (kind < 98) {
        if (p->at) read_elsewhere(p, me);
    } else {
        whole_arena_call(random);
    }
}

static void *live(void *number) {
    int me = *(int *)number;
    uint64_t random = 100 + (uint64_t)me;
    parcel own[OWN];
    memset(own, 0, sizeof own);
    CHECK_EQ(cudaSetDevice(0), cudaSuccess);
    pthread_barrier_wait(&gate);
    for (int n = 0; n < CALLS; n++) {
        check_case("thread %d, seed %d, call %d", me, 100 + me, n);
        one_call(&random, me, own);
    }
    for (int i = 0; i < OWN; i++) put(&own[i]);
    CHECK_EQ(cudaPeekAtLastError(), cudaSuccess);
    return NULL;
}

static void all_threads(gpupool_source source) {
    pthread_t thread[THREADS];
    int number[THREADS];
    arena = kit_open(source);
    atomic_store(&allocs, 0);
    CHECK_EQ(pthread_barrier_init(&gate, NULL, THREADS), 0);
    for (int i = 0; i < THREADS + KIT_STREAMS; i++)
        CHECK_EQ(cudaStreamCreateWithFlags(&all_streams[i], cudaStreamNonBlocking), cudaSuccess);
    for (int i = 0; i < THREADS; i++) {
        number[i] = i;
        CHECK_EQ(pthread_create(&thread[i], NULL, live, &number[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) CHECK_EQ(pthread_join(thread[i], NULL), 0);
    for (size_t i = 0; i < MAIL; i++) put(&mail[i]);
    CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
    gpupool_stats stats = kit_stats(arena);
    CHECK_EQ(stats.blocks.now, 0);
    CHECK_EQ(stats.requested.now, 0);
    CHECK_EQ(stats.allocs, atomic_load(&allocs));
    CHECK(stats.allocs > 1000);
    kit_close(arena);
    for (int i = 0; i < THREADS + KIT_STREAMS; i++)
        CHECK_EQ(cudaStreamDestroy(all_streams[i]), cudaSuccess);
    CHECK_EQ(pthread_barrier_destroy(&gate), 0);
}

/* ---- one runner a source, and the oracle's workers beside it ---- */

static void threads_on_mapped(void) {
#if CHECK_FAKE
    fake_mode(FAKE_THREADED);
#endif
    all_threads(GPUPOOL_SOURCE_MAPPED);
}

static void threads_on_device(void) {
#if CHECK_FAKE
    fake_mode(FAKE_EAGER);
#endif
    all_threads(GPUPOOL_SOURCE_DEVICE);
}

/* ---- an arena a thread, and the default arena for all ---- */

static void *open_and_close(void *unused) {
    (void)unused;
    CHECK_EQ(cudaSetDevice(0), cudaSuccess);
    pthread_barrier_wait(&gate);
    gpupool_arena *all = gpupool_get_default_arena(0);
    for (int n = 0; n < 20; n++) {
        gpupool_arena *mine = kit_create(NULL);
        void *a = kit_alloc(mine, 100000, 0), *b = kit_alloc(all, 100000, 0);
        CHECK_RESULT(gpupool_free(mine, a, 0), GPUPOOL_OK);
        CHECK_RESULT(gpupool_free(all, b, 0), GPUPOOL_OK);
        kit_close(mine);
    }
    return all;
}

/* Last, and without the leak check: a default arena lives as long as the process. */
static void the_default_arena_is_made_once(void) {
    pthread_t thread[THREADS];
    void *first = NULL;
    CHECK_EQ(pthread_barrier_init(&gate, NULL, THREADS), 0);
    for (int i = 0; i < THREADS; i++)
        CHECK_EQ(pthread_create(&thread[i], NULL, open_and_close, NULL), 0);
    for (int i = 0; i < THREADS; i++) {
        void *arena_seen = NULL;
        CHECK_EQ(pthread_join(thread[i], &arena_seen), 0);
        if (!i) first = arena_seen;
        CHECK(arena_seen != NULL && arena_seen == first);
    }
    CHECK_EQ(pthread_barrier_destroy(&gate), 0);
}

/* ---- results belong to the thread ---- */

static void *fail_and_look(void *unused) {
    (void)unused;
    for (int n = 0; n < 200; n++) {
        CHECK(gpupool_alloc(arena, 0, 0) == NULL);
        CHECK_RESULT(gpupool_last_result(), GPUPOOL_E_ARGUMENT);
    }
    return NULL;
}

static void the_last_result_is_per_thread(void) {
    pthread_t thread;
    arena = kit_open(GPUPOOL_SOURCE_AUTO);
    CHECK_EQ(pthread_create(&thread, NULL, fail_and_look, NULL), 0);
    for (int n = 0; n < 200; n++) {
        void *block = kit_alloc(arena, 1000, 0);
        CHECK_RESULT(gpupool_last_result(), GPUPOOL_OK);
        CHECK_RESULT(gpupool_free(arena, block, 0), GPUPOOL_OK);
        CHECK_RESULT(gpupool_last_result(), GPUPOOL_OK);
    }
    CHECK_EQ(pthread_join(thread, NULL), 0);
    kit_close(arena);
}

/* ---- a limit is read without a lock ---- */

static void *change_the_limit(void *unused) {
    for (int n = 0; n < 500; n++)
        CHECK_RESULT(gpupool_set_limit(arena, n % 2 ? 96 * MIB : 64 * MIB), GPUPOOL_OK);
    return unused;
}

static void a_limit_is_read_beside_its_change(void) {
    pthread_t thread;
    size_t bytes;
    arena = kit_open_limited(GPUPOOL_SOURCE_AUTO, 64 * MIB);
    CHECK_EQ(pthread_create(&thread, NULL, change_the_limit, NULL), 0);
    for (int n = 0; n < 5000; n++) {
        CHECK_RESULT(gpupool_get_limit(arena, &bytes), GPUPOOL_OK);
        CHECK(bytes == 64 * MIB || bytes == 96 * MIB);
    }
    CHECK_EQ(pthread_join(thread, NULL), 0);
    kit_close(arena);
}

int main(void) {
    ARENA_TEST(threads_on_mapped);
    ARENA_TEST(threads_on_device);
    ARENA_TEST(the_last_result_is_per_thread);
    ARENA_TEST(a_limit_is_read_beside_its_change);
    check_run("the_default_arena_is_made_once", the_default_arena_is_made_once, kit_prepare, NULL);
    return check_finish();
}
