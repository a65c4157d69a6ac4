// build: plain -O1 -DSTEPS=1
// build: tsan -fsanitize=thread -DMANY=3000
/* Tickets that nobody waits for take neither host memory nor time from later transfers; failures
   are kept for the next 1,024 tickets; any thread may ask again. */
#define _GNU_SOURCE
#define LINKED 1
#include "support/fail_malloc.h"

#include <pthread.h>
#include <sched.h>

#include "gpupool.h"
#include "ring_kit.h"
#include "steps_kit.h"

#if CHECK_FAKE

#ifndef MANY
#define MANY 20000
#endif
#define KEPT 1024
#define BYTES (300 * KIB) /* several parts */

typedef struct scene {
    gpupool_ring *ring;
    unsigned char *host, *pinned, *device;
    cudaStream_t stream;
    long records; /* before the ring */
    int workers;
} scene;

static void prepare(scene *s, int workers) {
    memset(s, 0, sizeof *s);
    s->records = fail_malloc_live;
    s->workers = workers;
    s->ring = kit_ring(MIB, 64 * KIB, workers);
    s->host = kit_host(BYTES);
    s->device = kit_device(2 * BYTES);
    s->stream = kit_stream();
    CUDA(cudaHostAlloc((void **)&s->pinned, BYTES, 0));
    kit_fill(s->host, BYTES, 3, 0);
    kit_fill(s->pinned, BYTES, 4, 0);
}

static void clear(scene *s) {
    if (s->ring) OK(gpupool_ring_destroy(s->ring));
    CHECK_EQ(fail_malloc_live, s->records);
    kit_host_free(s->host, BYTES);
    kit_device_free(s->device, 2 * BYTES);
    CUDA(cudaStreamDestroy(s->stream));
    CUDA(cudaFreeHost(s->pinned));
}

static gpupool_ticket post(scene *s, const unsigned char *from, size_t bytes) {
    gpupool_transfer what = kit_up(s->device + BYTES, from, bytes, s->stream);
    gpupool_ticket ticket = 0;
    what.ticket = &ticket;
    OK(gpupool_ring_transfer(s->ring, &what));
    return ticket;
}

/* A function of the program that fails where *user is not 0. */
static int reads(void *to, size_t bytes, uint64_t offset, void *user) {
    (void)offset;
    memset(to, 1, bytes);
    return *(const int *)user;
}
static gpupool_ticket post_function(scene *s, const int *said) {
    gpupool_transfer what = kit_up(s->device, NULL, 100, s->stream);
    gpupool_ticket ticket = 0;
    what.read = reads;
    what.user = (void *)(uintptr_t)said;
    what.ticket = &ticket;
    OK(gpupool_ring_transfer(s->ring, &what));
    return ticket;
}

static uint64_t ended(scene *s) {
    gpupool_ring_stats stats = kit_stats(s->ring);
    return stats.transfers[GPUPOOL_UP] + stats.failures;
}
static void until_ended(scene *s, uint64_t count) {
    while (ended(s) < count) sched_yield();
}

/* ---- nobody waits ---- */

#ifdef STEPS
static void forgotten_tickets(void) {
    scene s;
    kit_prepare();
    prepare(&s, 0);
    for (int i = 0; i < 100; i++) post(&s, s.pinned, 100);
    steps_begin();
    post(&s, s.pinned, 100);
    steps_end();
    for (int i = 0; i < 20000; i++) post(&s, s.pinned, 100);
    steps_begin();
    post(&s, s.pinned, 100);
    steps_end();
    clear(&s);
    kit_settle();
}

static void forgotten_tickets_take_no_time(void) {
    long counts[STEPS_SECTIONS];
    int sections = steps_count(forgotten_tickets, counts);
    if (sections < 0) {
        check_skip("instructions", "no program may step another here");
        return;
    }
    if (!CHECK_EQ(sections, 2)) return;
    printf("a ticket: %ld instructions, after 20,000 that nobody waited for %ld\n", counts[0],
           counts[1]);
    CHECK(counts[1] < 2 * counts[0]);
}
#endif

/* Ordinary memory by helpers; pinned memory with helpers that sleep, and without any. */
static void forgotten_tickets_take_no_memory(void) {
    for (int kind = 0; kind < 3; kind++) {
        gpupool_ticket first, last = 0;
        uint64_t done = 0;
        long most = 0;
        scene s;
        prepare(&s, kind == 2 ? 0 : 2);
        check_case("kind %d", kind);
        first = post(&s, s.host, BYTES);
        if (kind) OK(gpupool_ring_wait(s.ring, first, -1, NULL));
        for (int i = 1; i <= MANY; i++) {
            last = post(&s, kind ? s.pinned : s.host, 100);
            if (!kind && i % 32 == 0) until_ended(&s, (uint64_t)i + 1);
            if (fail_malloc_live > most) most = fail_malloc_live;
        }
        CHECK(most <= s.records + 1 + 64);
        OK(gpupool_ring_wait(s.ring, last, -1, &done));
        CHECK_EQ(done, 100);
        OK(gpupool_ring_wait(s.ring, first, -1, &done));
        CHECK_EQ(done, UINT64_MAX);
        OK(gpupool_ring_wait(s.ring, last - KEPT + 1, 0, &done));
        CHECK_EQ(done, 100);
        OK(gpupool_ring_wait(s.ring, last - KEPT, 0, &done));
        CHECK_EQ(done, UINT64_MAX);
        CHECK_RESULT(gpupool_ring_wait(s.ring, last + 1, 0, &done), GPUPOOL_E_ARGUMENT);
        CHECK_RESULT(gpupool_ring_wait(s.ring, 0, 0, &done), GPUPOOL_E_ARGUMENT);
        CHECK_EQ(done, UINT64_MAX); /* untouched */
        CHECK_EQ(kit_stats(s.ring).failures, 0);
        clear(&s);
    }
}

/* Beside streams that stand still, of which each has a ticket. */
static void beside_streams_that_stand_still(void) {
    enum { HELD = 5 };
    cudaStream_t held[HELD];
    gpupool_ticket tickets[HELD];
    long most = 0;
    scene s;
    prepare(&s, 0);
    for (int i = 0; i < HELD; i++) {
        gpupool_transfer what;
        held[i] = kit_stream();
        fake_hold(held[i], FAKE_FIRM);
        what = kit_down(s.pinned + 1000 * i, s.device, 1000, held[i]);
        what.ticket = &tickets[i];
        OK(gpupool_ring_transfer(s.ring, &what));
    }
    for (int i = 0; i < MANY; i++) {
        post(&s, s.pinned + BYTES / 2, 100);
        if (fail_malloc_live > most) most = fail_malloc_live;
    }
    CHECK(most <= s.records + 1 + 64);
    for (int i = 0; i < HELD; i++) {
        CHECK_RESULT(gpupool_ring_wait(s.ring, tickets[i], 0, NULL), GPUPOOL_E_TIMEOUT);
        fake_hold(held[i], 0);
        OK(gpupool_ring_wait(s.ring, tickets[i], -1, NULL));
        CUDA(cudaStreamDestroy(held[i]));
    }
    clear(&s);
}

/* ---- failures ---- */

static void told(scene *s, gpupool_ticket ticket, int said) {
    char words[64];
    uint64_t done = 7;
    snprintf(words, sizeof words, "returned %d ", said);
    CHECK_RESULT(gpupool_ring_wait(s->ring, ticket, -1, &done), GPUPOOL_E_CALLBACK);
    CHECK(strstr(gpupool_last_error(), words) != NULL);
    CHECK_EQ(done, 0);
}

static void a_failure_is_kept(void) {
    static const int bad = 42, worse = 43;
    gpupool_ticket first, failed, after, failed_too;
    scene s;
    prepare(&s, 2);
    first = post(&s, s.pinned, 100);
    failed = post_function(&s, &bad);
    after = post(&s, s.pinned, 100);
    until_ended(&s, 2);
    for (int i = 0; i < 3; i++) told(&s, failed, bad);
    for (int i = 1; i < KEPT - 2; i++) post(&s, s.pinned, 100);
    failed_too = post_function(&s, &worse);
    until_ended(&s, KEPT);
    told(&s, failed, bad);
    OK(gpupool_ring_wait(s.ring, first, -1, NULL));
    post(&s, s.pinned, 100); /* 1,024 tickets later */
    CHECK_RESULT(gpupool_ring_wait(s.ring, failed, -1, NULL), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(gpupool_ring_wait(s.ring, first, -1, NULL), GPUPOOL_E_ARGUMENT);
    OK(gpupool_ring_wait(s.ring, after, -1, NULL));
    told(&s, failed_too, worse);
    clear(&s);
}

static void failures_are_bounded(void) {
    static const int bad = 42;
    gpupool_ticket last = 0;
    long most = 0;
    scene s;
    prepare(&s, 1);
    for (int i = 1; i <= MANY; i++) {
        last = post_function(&s, &bad);
        if (i % 32 == 0) until_ended(&s, (uint64_t)i);
        if (fail_malloc_live > most) most = fail_malloc_live;
    }
    until_ended(&s, MANY);
    CHECK(most <= s.records + 1 + KEPT + 64);
    told(&s, last, bad);
    told(&s, last - KEPT / 2, bad);
    CHECK_RESULT(gpupool_ring_wait(s.ring, last - 2 * KEPT, -1, NULL), GPUPOOL_E_ARGUMENT);
    clear(&s);
}

/* A ring that breaks fails what is under way; what has ended well, has. */
static void before_the_ring_broke(void) {
    gpupool_ticket good, bad;
    uint64_t done = 0;
    scene s;
    prepare(&s, 0);
    good = post(&s, s.host, BYTES);
    bad = post(&s, s.host, BYTES);
    OK(gpupool_ring_wait(s.ring, good, -1, NULL));
    fake_fail_call("cuEventSynchronize", 1, 0, 719);
    fake_fail_call("cuStreamSynchronize", 1, 0, 719);
    CHECK_RESULT(gpupool_ring_wait(s.ring, bad, -1, NULL), GPUPOOL_E_CUDA);
    OK(gpupool_ring_wait(s.ring, good, -1, &done));
    CHECK_EQ(done, BYTES);
    fake_fail_clear();
    clear(&s);
}

/* ---- threads ---- */

enum { THREADS = 4, EACH = MANY / 20 };

typedef struct poster {
    scene *s;
    pthread_t thread;
    gpupool_ticket tickets[EACH];
    atomic_int posted; /* so many are there */
    struct poster *others;
} poster;

static const int outcomes[] = {0, 0, 0, 5};
static int outcome(int i) {
    return outcomes[i % 4];
}

/* Any thread's ticket, old or new: the result is its own, unless a failure that it is older than
   has been forgotten. */
static void ask(const poster *p, int i, int64_t timeout_ns) {
    uint64_t done = 0;
    gpupool_result result = gpupool_ring_wait(p->s->ring, p->tickets[i], timeout_ns, &done);
    if (result == GPUPOOL_E_TIMEOUT) {
        CHECK(timeout_ns >= 0 && done <= 100);
        return;
    }
    if (result == GPUPOOL_E_ARGUMENT) return;
    CHECK_RESULT(result, outcome(i) ? GPUPOOL_E_CALLBACK : GPUPOOL_OK);
    if (result == GPUPOOL_OK) CHECK(done == 100 || done == UINT64_MAX);
}

static void *posts(void *user) {
    poster *p = (poster *)user;
    uint64_t seed = (uint64_t)(p - p->others) + 1;
    for (int i = 0; i < EACH; i++) {
        const poster *other = &p->others[check_below(&seed, THREADS)];
        uint64_t there = (uint64_t)atomic_load(&other->posted);
        p->tickets[i] = i % 3 || outcome(i) ? post_function(p->s, &outcomes[i % 4])
                                            : post(p->s, p->s->pinned, 100);
        atomic_store(&p->posted, i + 1);
        if (i % 4 == 0) ask(p, i, -1);
        if (there) ask(other, (int)check_below(&seed, there), i % 2 ? -1 : 1000);
        if (i % 16 == 0) OK(gpupool_upload(p->s->ring, p->s->device + 1000, p->s->host, 100, NULL));
    }
    return NULL;
}

static void threads_ask_each_other(void) {
    for (int workers = 0; workers < 3; workers += 2) {
        static poster posters[THREADS];
        long kept = KEPT + THREADS * 64;
        scene s;
        prepare(&s, workers);
        for (int i = 0; i < THREADS; i++) {
            posters[i].s = &s;
            posters[i].others = posters;
            atomic_store(&posters[i].posted, 0);
        }
        for (int i = 0; i < THREADS; i++)
            if (pthread_create(&posters[i].thread, NULL, posts, &posters[i])) exit(1);
        for (int i = 0; i < THREADS; i++) pthread_join(posters[i].thread, NULL);
        if (workers) CHECK(fail_malloc_live <= s.records + 1 + kept);
        clear(&s);
    }
}

int main(void) {
#ifdef STEPS
    TEST(forgotten_tickets_take_no_time); /* in a child, so before any call of CUDA */
#endif
    RING_TEST(forgotten_tickets_take_no_memory);
    RING_TEST(beside_streams_that_stand_still);
    RING_TEST(a_failure_is_kept);
    RING_TEST(failures_are_bounded);
    RING_TEST(before_the_ring_broke);
    RING_TEST(threads_ask_each_other);
    return check_finish();
}

#else
int main(void) {
    check_skip("tickets", "counts host memory and fakecuda's calls");
    return check_finish();
}
#endif
