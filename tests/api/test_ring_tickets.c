// build: plain -O1
// build: tsan -fsanitize=thread -DMANY=3000
/* Tickets that nobody waits for take no host memory; failures are kept for the next 1,024 tickets.
 */
#define _GNU_SOURCE
#define LINKED 1
#include "support/fail_malloc.h"

#include <sched.h>
#include <unistd.h>

#include "gpupool.h"
#include "ring_kit.h"

#if CHECK_FAKE

#ifndef MANY
#define MANY 20000
#endif
#define KEPT 1024
#define BYTES (300 * KIB) /* several parts */

static job j;
static unsigned char *pinned;
static long records, most; /* of host memory: before the ring, and since then */

static void begin(int workers) {
    records = fail_malloc_live;
    most = 0;
    job_open(&j, kit_ring(MIB, 64 * KIB, workers), BYTES, 3);
    CUDA(cudaHostAlloc((void **)&pinned, BYTES, 0));
    kit_fill(pinned, BYTES, 4, 0);
}

static void end(void) {
    OK(gpupool_ring_destroy(j.ring));
    CHECK_EQ(fail_malloc_live, records);
    job_close(&j);
    CUDA(cudaFreeHost(pinned));
}

/* A function of the program that fails where *user is not 0. */
static int reads(void *to, size_t bytes, uint64_t offset, void *user) {
    (void)offset;
    memset(to, 1, bytes);
    return *(const int *)user;
}

/* 100 bytes from memory, or from the function that says this. */
static gpupool_ticket post(const unsigned char *from, const int *said) {
    gpupool_transfer what = kit_up(j.device, from, 100, j.stream);
    gpupool_ticket ticket;
    if (said) what.read = reads;
    what.user = (void *)(uintptr_t)said;
    ticket = kit_post(j.ring, what);
    if (fail_malloc_live > most) most = fail_malloc_live;
    return ticket;
}

/* A ticket of a stream that stands still. */
static gpupool_ticket post_held(void) {
    fake_hold(kit_stream[0], FAKE_FIRM);
    return kit_post(j.ring, kit_down(pinned + 1000, j.device + 1000, 1000, kit_stream[0]));
}

static void until_ended(uint64_t count) {
    gpupool_ring_stats stats;
    for (;; sched_yield()) {
        stats = ring_stats(j.ring);
        if (stats.transfers[GPUPOOL_UP] + stats.failures >= count) return;
    }
}

/* Ordinary memory by helpers; pinned memory with helpers that sleep, and without any, beside a
   stream that stands still with a ticket of its own. */
static void forgotten_tickets_take_no_memory(void) {
    for (int kind = 0; kind < 3; kind++) {
        gpupool_ticket last = 0, held = 0;
        uint64_t done = 0;
        begin(kind == 2 ? 0 : 2);
        check_case("kind %d", kind);
        job_post(&j);
        if (kind) OK(gpupool_ring_wait(j.ring, j.ticket, -1, NULL));
        if (kind) held = post_held();
        for (int i = 1; i <= MANY && most <= records + 1 + 64; i++) {
            last = post(kind ? pinned : j.host, NULL);
            if (!kind && i % 32 == 0) until_ended((uint64_t)i + 1);
        }
        CHECK(most <= records + 1 + 64);
        OK(gpupool_ring_wait(j.ring, last, -1, &done));
        CHECK_EQ(done, 100);
        OK(gpupool_ring_wait(j.ring, j.ticket, -1, &done));
        CHECK_EQ(done, UINT64_MAX);
        OK(gpupool_ring_wait(j.ring, last - KEPT + 1, 0, &done));
        CHECK_EQ(done, 100);
        OK(gpupool_ring_wait(j.ring, last - KEPT, 0, &done));
        CHECK_EQ(done, UINT64_MAX);
        CHECK_RESULT(gpupool_ring_wait(j.ring, last + 1, 0, &done), GPUPOOL_E_ARGUMENT);
        CHECK_EQ(done, UINT64_MAX); /* untouched */
        if (kind) CHECK_RESULT(gpupool_ring_wait(j.ring, held, 0, NULL), GPUPOOL_E_TIMEOUT);
        fake_hold(kit_stream[0], 0);
        if (kind) OK(gpupool_ring_wait(j.ring, held, -1, NULL));
        CHECK_EQ(ring_stats(j.ring).failures, 0);
        end();
    }
}

/* ---- failures ---- */

static void told(gpupool_ticket ticket, int said) {
    char words[64];
    uint64_t done = 7;
    snprintf(words, sizeof words, "returned %d ", said);
    KIT_REFUSES(gpupool_ring_wait(j.ring, ticket, -1, &done), GPUPOOL_E_CALLBACK, words);
    CHECK_EQ(done, 0);
}

static void a_failure_is_kept(void) {
    static const int bad = 42, worse = 43;
    gpupool_ticket first, failed, after, failed_too;
    begin(2);
    first = post(pinned, NULL);
    failed = post(NULL, &bad);
    after = post(pinned, NULL);
    until_ended(2);
    for (int i = 0; i < 3; i++) told(failed, bad);
    for (int i = 1; i < KEPT - 2; i++) post(pinned, NULL);
    failed_too = post(NULL, &worse);
    until_ended(KEPT);
    told(failed, bad);
    OK(gpupool_ring_wait(j.ring, first, -1, NULL));
    post(pinned, NULL); /* 1,024 tickets later */
    CHECK_RESULT(gpupool_ring_wait(j.ring, failed, -1, NULL), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(gpupool_ring_wait(j.ring, first, -1, NULL), GPUPOOL_E_ARGUMENT);
    OK(gpupool_ring_wait(j.ring, after, -1, NULL));
    told(failed_too, worse);
    end();
}

static void failures_are_bounded(void) {
    static const int bad = 42;
    gpupool_ticket last = 0;
    begin(1);
    for (int i = 1; i <= MANY; i++) {
        last = post(NULL, &bad);
        if (i % 32 == 0) until_ended((uint64_t)i);
    }
    until_ended(MANY);
    CHECK(most <= records + 1 + KEPT + 64);
    told(last, bad);
    told(last - KEPT / 2, bad);
    CHECK_RESULT(gpupool_ring_wait(j.ring, last - 2 * KEPT, -1, NULL), GPUPOOL_E_ARGUMENT);
    end();
}

/* A machine of one processor has a worker, too: who only looks at a ticket sees it end. */
extern int linked_processors;

static void one_processor(void) {
    gpupool_result result = GPUPOOL_E_TIMEOUT;
    gpupool_ring *ring = NULL;
    linked_processors = 1;
    OK(gpupool_ring_create(&ring, NULL));
    linked_processors = 0;
    job_open(&j, ring, BYTES, 5);
    job_post(&j);
    for (int i = 0; i < 20000 && result == GPUPOOL_E_TIMEOUT; i++) {
        usleep(1000);
        result = gpupool_ring_wait(ring, j.ticket, 0, NULL);
    }
    OK(result);
    CHECK_EQ(ring_stats(ring).workers, 1);
    kit_device_is(j.device, BYTES, 5);
    OK(gpupool_ring_destroy(ring));
    job_close(&j);
}

int main(void) {
    KIT_TEST(forgotten_tickets_take_no_memory);
    KIT_TEST(a_failure_is_kept);
    KIT_TEST(failures_are_bounded);
    KIT_TEST(one_processor);
    return check_finish();
}

#else
int main(void) {
    check_skip("tickets", "counts host memory and fakecuda's calls");
    return check_finish();
}
#endif
