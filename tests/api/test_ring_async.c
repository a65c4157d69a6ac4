/* Tickets, spans, and that nothing waits for ever: streams that stand still, rings that are full,
   threads that hold what they wait for.

// build: plain
// build: check2 -O1 -DGPUPOOL_CHECK=2
// build: single -DGPUPOOL_SINGLE_THREAD=1 -DGPUPOOL_CHECK=2
// build: asan -fsanitize=address,undefined
// build: tsan -fsanitize=thread
*/
#include "gpupool.h"
#include "linked.h"
#include "ring_kit.h"

#include <pthread.h>

#define MOST 8

typedef struct parcel { /* host memory, the device's, and a ticket for the way between */
    unsigned char *host, *device;
    size_t bytes;
    gpupool_ticket ticket;
} parcel;

static parcel parcel_open(size_t bytes, uint64_t seed) {
    parcel p = {kit_host(bytes), kit_device(bytes), bytes, 0};
    kit_pattern(p.host, bytes, seed);
    return p;
}

static void parcel_close(parcel *p) {
    kit_host_free(p->host, p->bytes);
    kit_device_free(p->device, p->bytes);
}

/* ---- tickets ---- */

static void tickets_in_any_order(void) {
    for (int workers = 0; workers <= 3; workers += 3) {
        gpupool_ring *ring = kit_ring(MIB, 0, workers);
        parcel p[MOST];
        for (uint64_t i = 0; i < MOST; i++) {
            p[i] = parcel_open(1 + (size_t)i * i * 20011, i);
            CHECK_RESULT(kit_upload_async(ring, p[i].device, p[i].host, p[i].bytes,
                                              kit_stream[i % 3], &p[i].ticket), GPUPOOL_OK);
            CHECK(i == 0 || p[i].ticket > p[i - 1].ticket);
        }
        for (uint64_t i = MOST; i-- > 0;) {
            CHECK_RESULT(gpupool_ring_wait(ring, p[i].ticket, -1), GPUPOOL_OK);
            kit_expect_device(p[i].device, p[i].bytes, i);
            memset(p[i].host, 0, p[i].bytes);
            CHECK_RESULT(kit_download_async(ring, p[i].host, p[i].device, p[i].bytes,
                                                kit_stream[i % 3], &p[i].ticket), GPUPOOL_OK);
        }
        for (uint64_t i = 0; i < MOST; i++) {
            CHECK_RESULT(gpupool_ring_wait(ring, p[i].ticket, 100 * KIT_SECOND), GPUPOOL_OK);
            kit_is_pattern(p[i].host, p[i].bytes, i, 0);
            CHECK_RESULT(gpupool_ring_wait(ring, p[i].ticket, 0), GPUPOOL_OK); /* again */
            parcel_close(&p[i]);
        }
        kit_ring_close(ring);
    }
}

/* Known memory gets a ticket too, and is not staged. */
static void tickets_of_pinned_memory(void) {
    gpupool_ring *ring = kit_ring(MIB, 0, 0);
    unsigned char *pinned, *device = kit_device(MIB);
    gpupool_ticket ticket = 0;
    CHECK_EQ(cudaHostAlloc((void **)&pinned, MIB, cudaHostAllocDefault), cudaSuccess);
    kit_pattern(pinned, MIB, 5);
    CHECK_RESULT(kit_upload_async(ring, device, pinned, MIB, kit_stream[0], &ticket),
                 GPUPOOL_OK);
    CHECK_RESULT(gpupool_ring_wait(ring, ticket, -1), GPUPOOL_OK);
    kit_expect_device(device, MIB, 5);
    CHECK_EQ(kit_ring_stats(ring).pinned.peak, 0);
    gpupool_ticket first = ticket;
    CHECK_RESULT(kit_upload_async(ring, device, pinned, 0, kit_stream[0], &ticket),
                 GPUPOOL_OK);
    CHECK(ticket > first);
    CHECK_RESULT(gpupool_ring_wait(ring, ticket, 0), GPUPOOL_OK);
    CHECK_EQ(cudaFreeHost(pinned), cudaSuccess);
    kit_device_free(device, MIB);
    kit_ring_close(ring);
}

#if CHECK_FAKE
/* Its copy is done: who asks is told so at once. */
static void asked_once_of_pinned_memory(void) {
    gpupool_ring *ring = kit_ring(MIB, 0, 0);
    unsigned char *pinned, *device = kit_device(MIB);
    gpupool_ticket ticket = 0;
    CHECK_EQ(cudaHostAlloc((void **)&pinned, MIB, cudaHostAllocDefault), cudaSuccess);
    kit_pattern(pinned, MIB, 5);
    fake_hold(kit_stream[0], 1);
    CHECK_RESULT(kit_upload_async(ring, device, pinned, MIB, kit_stream[0], &ticket),
                 GPUPOOL_OK);
    fake_hold(kit_stream[0], 0);
    CHECK_RESULT(gpupool_ring_wait(ring, ticket, 0), GPUPOOL_OK);
    kit_expect_device(device, MIB, 5);
    CHECK_EQ(cudaFreeHost(pinned), cudaSuccess);
    kit_device_free(device, MIB);
    kit_ring_close(ring);
}

/* What is done counts, not what a ticket was given for; and what CUDA copies by itself takes no
   time of the ring's. */
static void tickets_count_when_they_are_done(void) {
    gpupool_ring *ring = kit_ring(MIB, 0, 0);
    parcel p = parcel_open(300 * KIB, 6);
    unsigned char *pinned;
    gpupool_ticket ticket;
    CHECK_EQ(cudaHostAlloc((void **)&pinned, p.bytes, cudaHostAllocDefault), cudaSuccess);
    for (int staged = 0; staged < 2; staged++) {
        fake_hold(kit_stream[0], 1);
        CHECK_RESULT(kit_upload_async(ring, p.device, staged ? p.host : pinned, p.bytes,
                                          kit_stream[0], &ticket), GPUPOOL_OK);
        CHECK_EQ(kit_ring_stats(ring).transfers[GPUPOOL_UP], staged);
        CHECK_EQ(kit_ring_stats(ring).staged_bytes[GPUPOOL_UP], 0);
        fake_hold(kit_stream[0], 0);
        CHECK_RESULT(gpupool_ring_wait(ring, ticket, -1), GPUPOOL_OK);
        CHECK_EQ(kit_ring_stats(ring).transfers[GPUPOOL_UP], staged + 1);
        CHECK_EQ(kit_ring_stats(ring).direct_bytes[GPUPOOL_UP], p.bytes);
        CHECK_EQ(kit_ring_stats(ring).under_way_ns[GPUPOOL_UP] > 0, staged);
    }
    CHECK_EQ(kit_ring_stats(ring).staged_bytes[GPUPOOL_UP], p.bytes);
    fake_fail_call("cuMemcpyAsync", 1, 0, cudaErrorUnknown);
    CHECK_RESULT(kit_upload_async(ring, p.device, p.host, p.bytes, kit_stream[0], &p.ticket),
                 GPUPOOL_OK);
    CHECK_RESULT(gpupool_ring_wait(ring, p.ticket, -1), GPUPOOL_E_CUDA);
    CHECK_EQ(kit_ring_stats(ring).transfers[GPUPOOL_UP], 2);
    CHECK_EQ(cudaFreeHost(pinned), cudaSuccess);
    parcel_close(&p);
    kit_ring_close(ring);
}
#endif

/* Without workers, to ask is to work: who only ever asks gets on, and is told at once. */
static void asking_is_work(void) {
    gpupool_ring *ring = kit_ring(MIB, 0, 0);
    parcel p = parcel_open(3 * MIB, 7);
    CHECK_RESULT(kit_upload_async(ring, p.device, p.host, p.bytes, kit_stream[0], &p.ticket),
                 GPUPOOL_OK);
    for (int i = 0; i < 100; i++) {
        CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
        if (gpupool_ring_wait(ring, p.ticket, 0) == GPUPOOL_OK) break;
        CHECK_EQ(kit_ring_stats(ring).transfers[GPUPOOL_UP], 0);
    }
    CHECK_EQ(kit_ring_stats(ring).transfers[GPUPOOL_UP], 1);
    kit_expect_device(p.device, p.bytes, 7);
    parcel_close(&p);
    kit_ring_close(ring);
}

/* That a copy is under way is an answer: an error of the caller's stays CUDA's last. */
#if CHECK_FAKE
static void under_way_is_no_error(void) {
    gpupool_ring *ring = kit_ring(MIB, 0, 0);
    parcel p = parcel_open(MIB, 8);
    fake_mode(FAKE_STEPPED);
    CHECK_RESULT(kit_upload_async(ring, p.device, p.host, p.bytes, kit_stream[0], &p.ticket),
                 GPUPOOL_OK);
    CHECK(cudaSetDevice(99) != cudaSuccess);
    CHECK_RESULT(gpupool_ring_wait(ring, p.ticket, 0), GPUPOOL_E_TIMEOUT);
    CHECK_EQ(cudaGetLastError(), cudaErrorInvalidDevice);
    fake_mode(FAKE_EAGER);
    CHECK_RESULT(gpupool_ring_wait(ring, p.ticket, -1), GPUPOOL_OK);
    kit_expect_device(p.device, p.bytes, 8);
    parcel_close(&p);
    kit_ring_close(ring);
}
#endif

#if CHECK_FAKE && !GPUPOOL_SINGLE_THREAD
typedef struct waiter { gpupool_ring *ring; gpupool_ticket ticket; gpupool_result result; } waiter;

static void *wait_for_it(void *argument) {
    waiter *w = (waiter *)argument;
    w->result = gpupool_ring_wait(w->ring, w->ticket, -1);
    return NULL;
}

static void another_thread_waits(void) {
    gpupool_ring *ring = kit_ring(MIB, 0, 1);
    parcel p = parcel_open(2 * MIB, 4);
    pthread_t threads[3];
    waiter w[3];
    fake_hold(kit_stream[0], 1);
    CHECK_RESULT(kit_upload_async(ring, p.device, p.host, p.bytes, kit_stream[0], &p.ticket),
                 GPUPOOL_OK);
    for (int i = 0; i < 3; i++) {
        w[i] = (waiter){ring, p.ticket, GPUPOOL_E_TIMEOUT};
        CHECK_EQ(pthread_create(&threads[i], NULL, wait_for_it, &w[i]), 0);
    }
    fake_hold(kit_stream[0], 0);
    for (int i = 0; i < 3; i++) {
        pthread_join(threads[i], NULL);
        CHECK_RESULT(w[i].result, GPUPOOL_OK);
    }
    kit_expect_device(p.device, p.bytes, 4);
    parcel_close(&p);
    kit_ring_close(ring);
}
#endif

static void destroy_finishes_what_is_left(void) {
    for (int workers = 0; workers <= 2; workers += 2) {
        gpupool_ring *ring = kit_ring(MIB, 0, workers);
        parcel p = parcel_open(5 * MIB, 2);
        CHECK_RESULT(kit_upload_async(ring, p.device, p.host, p.bytes, kit_stream[0],
                                          &p.ticket), GPUPOOL_OK);
        kit_ring_close(ring);
        kit_expect_device(p.device, p.bytes, 2);
        parcel_close(&p);
    }
}

#if CHECK_FAKE
/* An async call behind a stream that stands still returns, and takes no room meanwhile. */
static void still_streams_hold_nothing(void) {
    for (int workers = 0; workers <= 2; workers += 2) {
        gpupool_ring *ring = kit_ring(MIB, 0, workers);
        parcel late[MOST], now = parcel_open(3 * MIB, 99);
        for (uint64_t i = 0; i < MOST; i++) late[i] = parcel_open(2 * MIB, i);
        fake_hold(kit_stream[0], 1);
        for (uint64_t i = 0; i < MOST; i++) {
            kit_fill(kit_stream[0], late[i].device, 10, 0x77); /* what it must come after */
            CHECK_RESULT(kit_upload_async(ring, late[i].device, late[i].host, late[i].bytes,
                                              kit_stream[0], &late[i].ticket), GPUPOOL_OK);
        }
        CHECK_RESULT(gpupool_ring_wait(ring, late[0].ticket, 0), GPUPOOL_E_TIMEOUT);
        CHECK_RESULT(gpupool_ring_wait(ring, late[3].ticket, KIT_SECOND / 50),
                     GPUPOOL_E_TIMEOUT);
        CHECK_RESULT(kit_upload_async(ring, now.device, now.host, now.bytes, kit_stream[1],
                                          &now.ticket), GPUPOOL_OK);
        CHECK_RESULT(gpupool_ring_wait(ring, now.ticket, -1), GPUPOOL_OK);
        CHECK_RESULT(gpupool_upload(ring, now.device, now.host, now.bytes, kit_stream[1]),
                     GPUPOOL_OK);
        CHECK_EQ(kit_ring_stats(ring).slow_chunks, 0);
        fake_hold(kit_stream[0], 0);
        for (uint64_t i = MOST; i-- > 0;) {
            CHECK_RESULT(gpupool_ring_wait(ring, late[i].ticket, -1), GPUPOOL_OK);
            kit_expect_device(late[i].device, late[i].bytes, i);
            parcel_close(&late[i]);
        }
        parcel_close(&now);
        kit_ring_close(ring);
    }
}

/* Uploads on a stream that stands still fill the ring; others must get on without it. */
static void full_ring_lets_others_pass(void) {
    size_t bytes = 128 * KIB;
    for (int workers = 0; workers <= 2; workers += 2) {
        gpupool_ring *ring = kit_ring(MIB, 128 * KIB, workers);
        parcel p = parcel_open(3 * MIB, 6), stuck = parcel_open(bytes, 1);
        fake_hold(kit_stream[0], 1);
        for (int i = 0; i < 8; i++)
            CHECK_RESULT(gpupool_upload(ring, stuck.device, stuck.host, bytes, kit_stream[0]),
                         GPUPOOL_OK);
        CHECK_EQ(kit_ring_stats(ring).used.now, MIB);
        CHECK_RESULT(gpupool_upload(ring, p.device, p.host, p.bytes, kit_stream[1]), GPUPOOL_OK);
        CHECK(kit_ring_stats(ring).slow_chunks > 0);
        kit_expect(kit_stream[1], p.device, 1, kit_byte(6, 0));
        memset(p.host, 0, p.bytes);
        CHECK_RESULT(gpupool_download(ring, p.host, p.device, p.bytes, kit_stream[1]), GPUPOOL_OK);
        kit_is_pattern(p.host, p.bytes, 6, 0);
        CHECK_RESULT(kit_upload_async(ring, p.device, p.host, 300000, kit_stream[1],
                                          &p.ticket), GPUPOOL_OK);
        CHECK_RESULT(gpupool_ring_wait(ring, p.ticket, -1), GPUPOOL_OK);
        fake_hold(kit_stream[0], 0);
        kit_expect_device(stuck.device, bytes, 1);
        parcel_close(&p);
        parcel_close(&stuck);
        kit_ring_close(ring);
    }
}
#endif

#if CHECK_FAKE
/* Spans hold all of the ring, and the transfer goes past it in small steps. When the ticket says
   that it is done, it is. */
static void done_means_done_without_the_ring(void) {
    gpupool_ring *ring = kit_ring(MIB, 0, 0);
    parcel p = parcel_open(300 * KIB, 0);
    gpupool_span span;
    uint64_t started = linked_now_ns();
    memset(p.host, 7, p.bytes);
    CHECK_RESULT(gpupool_ring_acquire_span(ring, MIB, 0, &span), GPUPOOL_OK);
    CHECK_RESULT(kit_upload_async(ring, p.device, p.host, p.bytes, kit_stream[0], &p.ticket),
                 GPUPOOL_OK);
    fake_mode(FAKE_THREADED);
    CHECK_RESULT(gpupool_ring_wait(ring, p.ticket, -1), GPUPOOL_OK);
    gpupool_ring_stats stats = kit_ring_stats(ring);
    CHECK(stats.slow_chunks > 1); /* of 256 KiB at most */
    CHECK_EQ(stats.waits, 1);
    CHECK(stats.wait_ns >= (uint64_t)KIT_SECOND / 100); /* before the first step */
    CHECK(stats.wait_ns < linked_now_ns() - started);
    kit_expect(kit_stream[1], p.device, p.bytes, 7);
    CHECK_EQ(cudaStreamSynchronize(kit_stream[1]), cudaSuccess);
    CHECK_EQ(fake_failures(), 0);
    fake_mode(FAKE_EAGER);
    CHECK_RESULT(gpupool_ring_cancel_span(ring, &span), GPUPOOL_OK);
    parcel_close(&p);
    kit_ring_close(ring);
}
#endif

/* ---- spans ---- */

static void span_fill(gpupool_span *span, uint64_t seed) {
#if CHECK_FAKE
    fake_host_access(span->memory, span->bytes, 1, "filling a span");
#endif
    kit_pattern((unsigned char *)span->memory, span->bytes, seed);
}

static void spans_of_exact_sizes(void) {
    static const size_t tried[] = {1, 513, 4096, 100001, MIB, 4 * MIB, 4 * MIB + 1, 9 * MIB};
    gpupool_ring *ring = kit_ring(10 * MIB, 0, 0);
    for (int round = 0; round < 3; round++)
        for (size_t i = 0; i < KIT_COUNT(tried); i++) {
            unsigned char *device = kit_device(tried[i]);
            size_t used = (size_t)kit_ring_stats(ring).used.now;
            gpupool_span span;
            check_case("a span of %zu, round %d", tried[i], round);
            CHECK_RESULT(gpupool_ring_acquire_span(ring, tried[i], -1, &span), GPUPOOL_OK);
            CHECK_EQ(span.bytes, tried[i]);
            CHECK(kit_ring_stats(ring).used.now < used + tried[i] + 9 * MIB / 4); /* slots */
            span_fill(&span, i);
            CHECK_RESULT(gpupool_ring_upload_span(ring, &span, device, kit_stream[0]), GPUPOOL_OK);
            CHECK(span.memory == NULL && span.bytes == 0);
            CHECK_RESULT(gpupool_ring_upload_span(ring, &span, device, kit_stream[0]),
                         GPUPOOL_E_ARGUMENT);
            kit_expect_device(device, tried[i], i);
            kit_device_free(device, tried[i]);
        }
    kit_ring_close(ring);
}

static void spans_and_what_is_refused(void) {
    gpupool_ring *ring = kit_ring(MIB, 0, 0), *other = kit_ring(MIB, 0, 0);
    unsigned char *device = kit_device(MIB);
    gpupool_span a, b;
    memset(&a, 0, sizeof a);
    CHECK_RESULT(gpupool_ring_acquire_span(ring, MIB + 1, -1, &a), GPUPOOL_E_ARGUMENT);
    CHECK(strstr(gpupool_last_error(), "1048576") != NULL); /* the largest possible */
    CHECK_RESULT(gpupool_ring_acquire_span(ring, 0, -1, &a), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(gpupool_ring_acquire_span(ring, 10, -1, NULL), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(gpupool_ring_cancel_span(ring, &a), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(gpupool_ring_acquire_span(ring, 600 * KIB, -1, &a), GPUPOOL_OK);
    CHECK_RESULT(gpupool_ring_cancel_span(other, &a), GPUPOOL_E_ARGUMENT);
    /* holding one and asking for more than is left: an answer, not a wait */
    CHECK_RESULT(gpupool_ring_acquire_span(ring, 600 * KIB, -1, &b), GPUPOOL_E_TIMEOUT);
    CHECK(strstr(gpupool_last_error(), "262144") != NULL); /* what is left: a slot */
    CHECK_RESULT(gpupool_ring_acquire_span(ring, 262144, -1, &b), GPUPOOL_OK);
    CHECK_RESULT(gpupool_ring_destroy(ring), GPUPOOL_E_IN_USE);
    /* transfers go on beside spans that hold all of the ring */
    unsigned char *host = kit_host(MIB);
    kit_pattern(host, MIB, 8);
    CHECK_RESULT(gpupool_upload(ring, device, host, MIB, kit_stream[0]), GPUPOOL_OK);
    kit_expect_device(device, MIB, 8);
    memset(host, 0xee, MIB);
    kit_host_free(host, MIB);
    a.bytes++;
    CHECK_RESULT(gpupool_ring_upload_span(ring, &a, device, kit_stream[0]), GPUPOOL_E_ARGUMENT);
    a.bytes = 100; /* less than was asked for is fine */
    CHECK_RESULT(gpupool_ring_upload_span(ring, &a, NULL, kit_stream[0]), GPUPOOL_E_ARGUMENT);
    span_fill(&a, 3);
    CHECK_RESULT(gpupool_ring_upload_span(ring, &a, device, kit_stream[0]), GPUPOOL_OK);
    kit_expect_device(device, 100, 3);
    CHECK_EQ(kit_ring_stats(ring).transfers[GPUPOOL_UP], 2);
    CHECK_EQ(kit_ring_stats(ring).staged_bytes[GPUPOOL_UP], MIB + 100);
    CHECK_RESULT(gpupool_ring_cancel_span(ring, &b), GPUPOOL_OK);
    CHECK_RESULT(gpupool_ring_cancel_span(ring, &b), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(gpupool_ring_trim(ring, 0, NULL), GPUPOOL_OK);
    CHECK_EQ(kit_ring_stats(ring).used.now, 0);
    kit_device_free(device, MIB);
    kit_ring_close(ring);
    kit_ring_close(other);
}

#if CHECK_FAKE
static void span_behind_a_still_stream(void) {
    gpupool_ring *ring = kit_ring(MIB, 0, 0);
    unsigned char *device = kit_device(MIB);
    gpupool_span span;
    fake_hold(kit_stream[0], 1);
    CHECK_RESULT(gpupool_ring_acquire_span(ring, MIB, 0, &span), GPUPOOL_OK);
    span_fill(&span, 1);
    CHECK_RESULT(gpupool_ring_upload_span(ring, &span, device, kit_stream[0]), GPUPOOL_OK);
    CHECK_RESULT(gpupool_ring_acquire_span(ring, 1, 0, &span), GPUPOOL_E_TIMEOUT);
    CHECK_RESULT(gpupool_ring_acquire_span(ring, 1, KIT_SECOND / 100, &span), GPUPOOL_E_TIMEOUT);
    fake_hold(kit_stream[0], 0);
    CHECK_RESULT(gpupool_ring_acquire_span(ring, 1, -1, &span), GPUPOOL_OK);
    CHECK_RESULT(gpupool_ring_cancel_span(ring, &span), GPUPOOL_OK);
    kit_expect_device(device, MIB, 1);
    kit_device_free(device, MIB);
    kit_ring_close(ring);
}
#endif

#if CHECK_FAKE
/* A span that has been sent is had again, though one sent before on another stream is not. */
static void span_beside_a_still_stream(void) {
    gpupool_ring *ring = kit_ring(MIB, 0, 0);
    unsigned char *device = kit_device(MIB);
    gpupool_span span;
    fake_hold(kit_stream[0], 1);
    for (int i = 0; i < 2; i++) {
        CHECK_RESULT(gpupool_ring_acquire_span(ring, 400 * KIB, 0, &span), GPUPOOL_OK);
        span_fill(&span, 3);
        unsigned char *to = device + i * 500 * (int)KIB;
        CHECK_RESULT(gpupool_ring_upload_span(ring, &span, to, kit_stream[i]), GPUPOOL_OK);
    }
    CHECK_RESULT(gpupool_ring_acquire_span(ring, 400 * KIB, KIT_SECOND, &span), GPUPOOL_OK);
    CHECK_RESULT(gpupool_ring_cancel_span(ring, &span), GPUPOOL_OK);
    fake_hold(kit_stream[0], 0);
    CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
    kit_device_free(device, MIB);
    kit_ring_close(ring);
}

/* The legacy stream would wait for every blocking stream; the ring's own do not. */
static void async_passes_blocking_streams(void) {
    gpupool_ring *ring = kit_ring(MIB, 0, 0);
    parcel p = parcel_open(3 * MIB, 8);
    unsigned char *other = kit_device(MIB);
    cudaStream_t blocking;
    CHECK_EQ(cudaStreamCreate(&blocking), cudaSuccess);
    fake_hold(blocking, 1);
    kit_fill(blocking, other, 10, 0x66);
    CHECK_RESULT(kit_upload_async(ring, p.device, p.host, p.bytes, kit_stream[1], &p.ticket),
                 GPUPOOL_OK);
    CHECK_RESULT(gpupool_ring_wait(ring, p.ticket, 20 * KIT_SECOND), GPUPOOL_OK);
    fake_hold(blocking, 0);
    kit_expect_device(p.device, p.bytes, 8);
    CHECK_EQ(cudaStreamDestroy(blocking), cudaSuccess);
    kit_device_free(other, MIB);
    parcel_close(&p);
    kit_ring_close(ring);
}
#endif

#if CHECK_FAKE && !GPUPOOL_SINGLE_THREAD
static void *let_go_later(void *unused) {
    uint64_t start = linked_now_ns();
    (void)unused;
    while (linked_now_ns() - start < KIT_SECOND / 20) sched_yield();
    fake_hold(kit_stream[0], 0);
    return NULL;
}

static void span_in_time(void) {
    gpupool_ring *ring = kit_ring(MIB, 0, 0);
    unsigned char *device = kit_device(MIB);
    gpupool_span span;
    pthread_t thread;
    fake_hold(kit_stream[0], 1);
    CHECK_RESULT(gpupool_ring_acquire_span(ring, MIB, 0, &span), GPUPOOL_OK);
    span_fill(&span, 2);
    CHECK_RESULT(gpupool_ring_upload_span(ring, &span, device, kit_stream[0]), GPUPOOL_OK);
    CHECK_EQ(pthread_create(&thread, NULL, let_go_later, NULL), 0);
    CHECK_RESULT(gpupool_ring_acquire_span(ring, 1, 100 * KIT_SECOND, &span), GPUPOOL_OK);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK_RESULT(gpupool_ring_cancel_span(ring, &span), GPUPOOL_OK);
    kit_expect_device(device, MIB, 2);
    kit_device_free(device, MIB);
    kit_ring_close(ring);
}
#endif

#if !GPUPOOL_SINGLE_THREAD
/* Each holds one span and asks for another: every call must come back. */
static void *hold_and_ask(void *argument) {
    gpupool_ring *ring = (gpupool_ring *)argument;
    gpupool_span one, two;
    for (int i = 0; i < 200; i++) {
        if (gpupool_ring_acquire_span(ring, 400 * KIB, -1, &one) != GPUPOOL_OK) {
            check_fail(__FILE__, __LINE__, "the first span: %s", gpupool_last_error());
            continue;
        }
        gpupool_result second = gpupool_ring_acquire_span(ring, 400 * KIB, -1, &two);
        CHECK(second == GPUPOOL_OK || second == GPUPOOL_E_TIMEOUT);
        if (second == GPUPOOL_OK) CHECK_RESULT(gpupool_ring_cancel_span(ring, &two), GPUPOOL_OK);
        CHECK_RESULT(gpupool_ring_cancel_span(ring, &one), GPUPOOL_OK);
    }
    return NULL;
}

static void holders_never_wait_for_each_other(void) {
    gpupool_ring *ring = kit_ring(MIB, 0, 0);
    pthread_t threads[3];
    for (int i = 0; i < 3; i++) CHECK_EQ(pthread_create(&threads[i], NULL, hold_and_ask, ring), 0);
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
    CHECK_EQ(kit_ring_stats(ring).used.now, 0);
    kit_ring_close(ring);
}
#endif

int main(void) {
    ARENA_TEST(tickets_in_any_order);
    ARENA_TEST(tickets_of_pinned_memory);
    FAKE_TEST(asked_once_of_pinned_memory);
    FAKE_TEST(tickets_count_when_they_are_done);
    ARENA_TEST(asking_is_work);
    FAKE_TEST(under_way_is_no_error);
    ARENA_TEST(destroy_finishes_what_is_left);
    FAKE_TEST(still_streams_hold_nothing);
#if !GPUPOOL_SINGLE_THREAD
    FAKE_TEST(another_thread_waits);
    FAKE_TEST(span_in_time);
#endif
    FAKE_TEST(full_ring_lets_others_pass);
    FAKE_TEST(done_means_done_without_the_ring);
    FAKE_TEST(async_passes_blocking_streams);
    FAKE_TEST(span_behind_a_still_stream);
    FAKE_TEST(span_beside_a_still_stream);
    ARENA_TEST(spans_of_exact_sizes);
    ARENA_TEST(spans_and_what_is_refused);
#if !GPUPOOL_SINGLE_THREAD
    ARENA_TEST(holders_never_wait_for_each_other);
#endif
    return check_finish();
}
