/* What the ring does by the clock, which this program turns: when it asks again for what the host
   has refused. */
#define _GNU_SOURCE
#include <time.h>

static int read_clock(clockid_t which, struct timespec *now);
#define clock_gettime read_clock
#define GPUPOOL_IMPLEMENTATION
#include "../gpupool.h"
#undef clock_gettime
#include "ring_kit.h"

static long clock_ms = 1;

static int read_clock(clockid_t which, struct timespec *now) {
    (void)which;
    now->tv_sec = clock_ms / 1000;
    now->tv_nsec = clock_ms % 1000 * 1000000;
    return 0;
}

#if CHECK_FAKE
/* The host cannot pin more for now: transfers do without, and after a tenth of a second the next
   one asks again. */
static void pinning_is_tried_again_after_a_while(void) {
    size_t bytes = 300 * KIB;
    gpupool_ring *ring = kit_ring(MIB, 0, 0);
    unsigned char *host = kit_host(bytes), *device = kit_device(bytes);
    kit_pattern(host, bytes, 1);
    fake_fail_call("cudaHostRegister", 1, 0, 0);
    for (int i = 0; i < 3; i++) {
        CHECK_RESULT(gpupool_upload(ring, device, host, bytes, kit_stream[0]), GPUPOOL_OK);
        CHECK_EQ(fake_calls("cudaHostRegister"), 1);
        CHECK_EQ(kit_ring_stats(ring).staged_bytes[GPUPOOL_UP], (uint64_t)(i + 1) * bytes);
        CHECK_EQ(kit_ring_stats(ring).pinned.now, 0);
        clock_ms += 50;
    }
    CHECK(kit_ring_stats(ring).creeps >= 3);
    CHECK_RESULT(gpupool_upload(ring, device, host, bytes, kit_stream[0]), GPUPOOL_OK);
    CHECK_EQ(fake_calls("cudaHostRegister"), 2);
    CHECK(kit_ring_stats(ring).pinned.now > 0);
    kit_expect_device(device, bytes, 1);
    kit_host_free(host, bytes);
    kit_device_free(device, bytes);
    kit_ring_close(ring);
}
#endif

int main(void) {
    FAKE_TEST(pinning_is_tried_again_after_a_while);
    return check_finish();
}
