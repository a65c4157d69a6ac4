/* What the ring does by the clock, which this program turns: when it asks again for what the host
   has refused, and how long it sleeps. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <time.h>

static int read_clock(clockid_t which, struct timespec *now);
static int sleep_until(pthread_cond_t *gate, pthread_mutex_t *mutex, const struct timespec *until);
#define clock_gettime read_clock
#define pthread_cond_timedwait sleep_until
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#undef clock_gettime
#undef pthread_cond_timedwait
#include "ring_kit.h"
#include "worker_kit.h"

static long clock_us = 1000;

static int read_clock(clockid_t which, struct timespec *now) {
    (void)which;
    now->tv_sec = clock_us / 1000000;
    now->tv_nsec = clock_us % 1000000 * 1000;
    return 0;
}

static long sleeps, slept_us[8], longest_us; /* slept_us: the first of them */
static void (*at_sleep)(void);               /* runs at the end of each */

static int sleep_until(pthread_cond_t *gate, pthread_mutex_t *mutex, const struct timespec *until) {
    long end_us = until->tv_sec * 1000000 + until->tv_nsec / 1000;
    (void)gate;
    if (sleeps < (long)KIT_COUNT(slept_us)) slept_us[sleeps] = end_us - clock_us;
    sleeps++;
    if (end_us - clock_us > longest_us) longest_us = end_us - clock_us;
    clock_us = end_us > clock_us ? end_us : clock_us + 1; /* a sleep takes some time */
    pthread_mutex_unlock(mutex);
    if (at_sleep) at_sleep();
    pthread_mutex_lock(mutex);
    return ETIMEDOUT;
}

#if CHECK_FAKE
/* One slot after the other is pinned, though the clock has only just begun. */
static void no_pause_between_two_slots(void) {
    gpupool_ring *ring = kit_ring(MIB, 0, 0);
    gpupool_span span;
    clock_us = 1000;
    CHECK_RESULT(gpupool_ring_acquire_span(ring, MIB, 0, &span), GPUPOOL_OK);
    CHECK_EQ(kit_ring_stats(ring).pinned.now, MIB);
    CHECK_RESULT(gpupool_ring_cancel_span(ring, &span), GPUPOOL_OK);
    kit_ring_close(ring);
}

/* The host cannot pin more for now, or CUDA fails at it: transfers do without, and after a tenth of
   a second the next one asks again. */
static void pinning_is_tried_again_after_a_while(void) {
    static const int errors[] = {CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_INVALID_VALUE};
    size_t bytes = 300 * KIB;
    for (size_t e = 0; e < KIT_COUNT(errors); e++) {
        gpupool_ring *ring = kit_ring(MIB, 0, 0);
        unsigned char *host = kit_host(bytes), *device = kit_device(bytes);
        check_case("error %d", errors[e]);
        kit_pattern(host, bytes, 1);
        fake_reset_counters();
        fake_fail_call("cuMemHostRegister", 1, 0, errors[e]);
        for (int i = 0; i < 3; i++) {
            CHECK_RESULT(gpupool_upload(ring, device, host, bytes, kit_stream[0]), GPUPOOL_OK);
            CHECK_EQ(fake_calls("cuMemHostRegister"), 1);
            CHECK_EQ(kit_ring_stats(ring).staged_bytes[GPUPOOL_UP], (uint64_t)(i + 1) * bytes);
            CHECK_EQ(kit_ring_stats(ring).pinned.now, 0);
            clock_us += 50000;
        }
        CHECK(kit_ring_stats(ring).slow_chunks >= 3);
        CHECK_RESULT(gpupool_upload(ring, device, host, bytes, kit_stream[0]), GPUPOOL_OK);
        CHECK_EQ(fake_calls("cuMemHostRegister"), 2);
        CHECK(kit_ring_stats(ring).pinned.now > 0);
        kit_expect_device(device, bytes, 1);
        kit_host_free(host, bytes);
        kit_device_free(device, bytes);
        kit_ring_close(ring);
        fake_fail_clear();
    }
}

/* The host refuses a slot: none is there, and none is said to be. */
static void a_refusal_adds_no_slot(void) {
    gpupool_ring *ring = kit_ring(MIB, 0, 0);
    fake_fail_call("cuMemHostRegister", 1, 1, 0);
    gpi_ring_lock(ring);
    CHECK_EQ(gpi_stage_pin(&ring->stage), 0);
    CHECK_EQ(gpi_stage_pin(&ring->stage), 0);
    gpi_ring_unlock(ring);
    CHECK_EQ(fake_calls("cuMemHostRegister"), 1);
    CHECK_EQ(kit_ring_stats(ring).pin_failures, 1);
    CHECK_EQ(kit_ring_stats(ring).pinned.now, 0);
    fake_fail_clear();
    kit_ring_close(ring);
}

/* Nothing can be pinned: a transfer that gets on all the same does not sleep in between. */
static void no_sleep_where_there_is_work(void) {
    size_t bytes = 12 * MIB;
    gpupool_ring *ring = kit_ring(MIB, 0, 0);
    unsigned char *host = kit_host(bytes), *device = kit_device(bytes);
    kit_pattern(host, bytes, 2);
    fake_pinned_limit(1000);
    sleeps = 0;
    CHECK_RESULT(gpupool_upload(ring, device, host, bytes, kit_stream[0]), GPUPOOL_OK);
    CHECK_EQ(sleeps, 0);
    CHECK(kit_ring_stats(ring).slow_chunks >= 48); /* of 256 KiB */
    fake_pinned_limit(0);
    kit_expect_device(device, bytes, 2);
    memset(host, 0xee, bytes);
    kit_host_free(host, bytes);
    kit_device_free(device, bytes);
    kit_ring_close(ring);
}

/* All slots are a span's: after ten milliseconds a transfer goes on without one. The figures have
   the time until it has one again. */
static void ten_milliseconds_without_a_slot(void) {
    gpupool_ring *ring = kit_ring(MIB, 0, 0);
    unsigned char *host = kit_host(MIB), *device = kit_device(MIB);
    gpi_transfer plan = gpi_send_plan("", device, host, MIB, kit_stream[0]);
    gpupool_span span;
    plan.bytes = MIB;
    plan.driver = &ring->stage.driver;
    CHECK_RESULT(gpupool_ring_acquire_span(ring, MIB, 0, &span), GPUPOOL_OK);
    gpi_ring_lock(ring);
    CHECK_EQ(gpi_ring_stall(ring, &plan), 0);
    clock_us += 9999;
    CHECK_EQ(gpi_ring_stall(ring, &plan), 0);
    CHECK_EQ(plan.cursor, 0);
    clock_us += 1;
    CHECK_EQ(gpi_ring_stall(ring, &plan), 1);
    CHECK(plan.cursor > 0 && ring->stats.slow_chunks == 1);
    CHECK_EQ(ring->stats.waits, 1);
    gpi_ring_unlock(ring);
    CHECK_RESULT(gpupool_ring_cancel_span(ring, &span), GPUPOOL_OK);
    gpi_ring_lock(ring);
    gpi_stage_slot *slot = gpi_ring_begin(ring, &plan);
    if (CHECK(slot != NULL)) gpi_stage_free(&ring->stage, slot);
    CHECK_EQ(plan.stalled_ns, 0);
    CHECK_EQ(ring->stats.wait_ns, 10000000);
    gpi_ring_unlock(ring);
    kit_host_free(host, MIB);
    kit_device_free(device, MIB);
    kit_ring_close(ring);
}

/* Who waits for a span does not sleep beyond the time allowed, either, and not at all if that is
   none. */
static void no_longer_for_a_span(void) {
    gpupool_ring *ring = kit_ring(MIB, 0, 0);
    unsigned char *device = kit_device(MIB);
    gpupool_span span;
    kit_ring_fly(ring, MIB, device, kit_stream[0]);
    for (long most_us = 0; most_us <= 7500; most_us += 7500) {
        long start = clock_us;
        check_case("%ld us", most_us);
        CHECK_RESULT(gpupool_ring_acquire_span(ring, MIB, 1000 * most_us, &span),
                     GPUPOOL_E_TIMEOUT);
        CHECK_EQ(clock_us - start, most_us);
    }
    fake_hold(kit_stream[0], 0);
    kit_device_free(device, MIB);
    kit_ring_close(ring);
}

/* Who waits for a span, since the host has refused to pin, works for a ticket meanwhile. That the
   ticket fails is not the span's failure. */
static void a_failure_of_others_is_not_the_spans(void) {
    size_t bytes = 300 * KIB;
    gpupool_ring *ring = kit_ring(MIB, 0, 0);
    unsigned char *host = kit_host(bytes), *device = kit_device(bytes);
    gpupool_ticket ticket;
    gpupool_span span;
    fake_fail_call("cuMemHostRegister", 1, 0, 0);
    CHECK_RESULT(gpupool_ring_acquire_span(ring, bytes, -1, &span), GPUPOOL_E_HOST_MEMORY);
    CHECK_RESULT(kit_upload_async(ring, device, host, bytes, kit_stream[0], &ticket), GPUPOOL_OK);
    fake_fail_clear();
    fake_fail_call("cuMemcpyAsync", 1, 0, 0);
    CHECK_RESULT(gpupool_ring_acquire_span(ring, bytes, -1, &span), GPUPOOL_OK);
    CHECK_EQ(fake_fail_fired(), 1);
    fake_fail_clear();
    CHECK_RESULT(gpupool_ring_wait(ring, ticket, -1), GPUPOOL_E_CUDA);
    CHECK_RESULT(gpupool_ring_cancel_span(ring, &span), GPUPOOL_OK);
    kit_host_free(host, bytes);
    kit_device_free(device, bytes);
    kit_ring_close(ring);
}

/* Who waits for a ticket sleeps, for longer each time, and not beyond the time allowed. */
static void no_sleep_beyond_the_time_allowed(void) {
    gpupool_ring *ring = kit_ring(MIB, 0, 0);
    unsigned char byte = 7, *device = kit_device(1);
    gpupool_ticket ticket = 0;
    long start;
    fake_hold(kit_stream[0], 1);
    CHECK_RESULT(kit_upload_async(ring, device, &byte, 1, kit_stream[0], &ticket), GPUPOOL_OK);
    start = clock_us;
    sleeps = longest_us = 0;
    CHECK_RESULT(gpupool_ring_wait(ring, ticket, 7500000), GPUPOOL_E_TIMEOUT);
    CHECK_EQ(clock_us - start, 7500);
    CHECK_EQ(slept_us[0], 20);
    CHECK(sleeps > 10 && sleeps < 50); /* 20 us, 40 us, ... */
    CHECK_RESULT(gpupool_ring_wait(ring, ticket, 10 * KIT_SECOND), GPUPOOL_E_TIMEOUT);
    CHECK(longest_us == 5000);
    fake_hold(kit_stream[0], 0);
    CHECK_RESULT(gpupool_ring_wait(ring, ticket, -1), GPUPOOL_OK);
    kit_device_free(device, 1);
    kit_ring_close(ring);
}

/* ---- between two works ---- */

#define BYTES (300 * KIB)

static gpupool_ring *ring;
static unsigned char *host, *device;
static gpupool_ticket ticket;

static void scene_open(void) {
    ring = kit_ring(MIB, 0, 0);
    host = kit_host(BYTES);
    device = kit_device(BYTES);
    kit_pattern(host, BYTES, 3);
    sleeps = 0;
    fake_hold(kit_stream[0], 1);
}

static void scene_close(void) {
    at_sleep = NULL;
    CHECK_RESULT(gpupool_ring_wait(ring, ticket, -1), GPUPOOL_OK);
    kit_expect_device(device, BYTES, 3);
    kit_host_free(host, BYTES);
    kit_device_free(device, BYTES);
    kit_ring_close(ring);
}

static void expect_sleeps(const long *us, long count) {
    CHECK_EQ(sleeps, count);
    for (long i = 0; i < count && i < sleeps; i++) {
        check_case("sleep %ld", i);
        CHECK_EQ(slept_us[i], us[i]);
    }
}

/* What comes before the transfer ends while the ring's own stream stands still, and then that. */
static void let_one_go_and_the_other(void) {
    if (sleeps == 3) {
        fake_hold(ring->streams[GPUPOOL_UP], 1);
        fake_hold(kit_stream[0], 0);
    }
    if (sleeps == 5) fake_hold(ring->streams[GPUPOOL_UP], 0);
}

/* After work a thread's sleeps are short again; without any, a worker sleeps a second, and ends. */
static void short_sleeps_after_work(void) {
    static const long us[] = {20, 40, 60, 20, 40, 1000000};
    for (int worker = 0; worker < 2; worker++) {
        scene_open();
        at_sleep = let_one_go_and_the_other;
        CHECK_RESULT(kit_upload_async(ring, device, host, BYTES, kit_stream[0], &ticket),
                     GPUPOOL_OK);
        if (worker) worker_be(ring, 0);
        else CHECK_RESULT(gpupool_ring_wait(ring, ticket, -1), GPUPOOL_OK);
        expect_sleeps(us, 5 + worker);
        scene_close();
    }
}

static void wake_and_let_go(void) {
    static long asked;
    if (sleeps == 1) {
        CHECK_RESULT(kit_upload_async(ring, device, host, BYTES, kit_stream[0], &ticket),
                     GPUPOOL_OK);
        asked = fake_calls("cuEventQuery");
    }
    if (sleeps != 2) return;
    CHECK(fake_calls("cuEventQuery") - asked >= GPI_RING_SPIN / 16);
    fake_hold(kit_stream[0], 0);
}

/* A worker that was woken looks many times before it sleeps again, and then for a little. */
static void a_woken_worker_looks_about(void) {
    static const long us[] = {1000000, 20, 1000000};
    scene_open();
    at_sleep = wake_and_let_go;
    worker_be(ring, 0);
    expect_sleeps(us, 3);
    scene_close();
}

/* The transfers of another ring wake it every 300 ms: it ends after a second without work of its
   own all the same. */
static long began_us;

static void wake_for_others(void) {
    clock_us = began_us + 300000 * sleeps;
    if (sleeps < 20) gpi_host_gate_turn(&gpi_process.gate);
}

static void a_worker_woken_for_others_ends(void) {
    static const long us[] = {1000000, 700000, 400000, 100000};
    ring = kit_ring(MIB, 0, 0);
    sleeps = 0;
    began_us = clock_us;
    at_sleep = wake_for_others;
    worker_be(ring, 0);
    at_sleep = NULL;
    expect_sleeps(us, 4);
    kit_ring_close(ring);
}
#endif

int main(void) {
    FAKE_TEST(no_pause_between_two_slots);
    FAKE_TEST(pinning_is_tried_again_after_a_while);
    FAKE_TEST(a_refusal_adds_no_slot);
    FAKE_TEST(no_sleep_where_there_is_work);
    FAKE_TEST(ten_milliseconds_without_a_slot);
    FAKE_TEST(no_sleep_beyond_the_time_allowed);
    FAKE_TEST(no_longer_for_a_span);
    FAKE_TEST(a_failure_of_others_is_not_the_spans);
    FAKE_TEST(short_sleeps_after_work);
    FAKE_TEST(a_woken_worker_looks_about);
    FAKE_TEST(a_worker_woken_for_others_ends);
    return check_finish();
}
