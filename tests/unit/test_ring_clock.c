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

static long clock_us = 1000;

static int read_clock(clockid_t which, struct timespec *now) {
    (void)which;
    now->tv_sec = clock_us / 1000000;
    now->tv_nsec = clock_us % 1000000 * 1000;
    return 0;
}

static long sleeps, longest_us;

static int sleep_until(pthread_cond_t *gate, pthread_mutex_t *mutex, const struct timespec *until) {
    long end_us = until->tv_sec * 1000000 + until->tv_nsec / 1000;
    (void)gate, (void)mutex;
    if (end_us - clock_us > longest_us) longest_us = end_us - clock_us;
    clock_us = end_us;
    sleeps++;
    return ETIMEDOUT;
}

#if CHECK_FAKE
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

/* Who waits for a ticket sleeps, for longer each time, and not beyond the time allowed. */
static void no_sleep_beyond_the_time_allowed(void) {
    gpupool_ring *ring = kit_ring(MIB, 0, 0);
    unsigned char byte = 7, *device = kit_device(1);
    gpupool_ticket ticket = 0;
    long start;
    fake_hold(kit_stream[0], 1);
    CHECK_RESULT(kit_upload_async(ring, device, &byte, 1, kit_stream[0], &ticket), GPUPOOL_OK);
    start = clock_us;
    CHECK_RESULT(gpupool_ring_wait(ring, ticket, 7500000), GPUPOOL_E_TIMEOUT);
    CHECK_EQ(clock_us - start, 7500);
    CHECK(sleeps > 10 && sleeps < 50); /* 20 us, 40 us, ... */
    CHECK_RESULT(gpupool_ring_wait(ring, ticket, 10 * KIT_SECOND), GPUPOOL_E_TIMEOUT);
    CHECK(longest_us == 5000);
    fake_hold(kit_stream[0], 0);
    CHECK_RESULT(gpupool_ring_wait(ring, ticket, -1), GPUPOOL_OK);
    kit_device_free(device, 1);
    kit_ring_close(ring);
}
#endif

int main(void) {
    FAKE_TEST(pinning_is_tried_again_after_a_while);
    FAKE_TEST(no_sleep_beyond_the_time_allowed);
    return check_finish();
}
