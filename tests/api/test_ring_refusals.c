/* What the ring refuses: each wrong argument of each call has its error, and changes nothing.

// build: plain
// build: asan -fsanitize=address,undefined
*/
#include "gpupool.h"
#include "ring_kit.h"

static int read_nothing(void *to, size_t bytes, uint64_t offset, void *user) {
    (void)offset, (void)user;
    memset(to, 0, bytes);
    return 0;
}

static int write_nothing(const void *from, size_t bytes, uint64_t offset, void *user) {
    (void)from, (void)bytes, (void)offset, (void)user;
    return 0;
}

/* What create makes of such a config; nothing may be made where it fails. */
static gpupool_result made_of(size_t bytes, size_t chunk_bytes, int workers, int device) {
    gpupool_ring_config config;
    gpupool_ring *ring = NULL;
    gpupool_result result;
    memset(&config, 0, sizeof config);
    config.bytes = bytes;
    config.chunk_bytes = chunk_bytes;
    config.workers = workers;
    config.device = device;
    result = gpupool_ring_create(&ring, &config);
    CHECK_EQ(ring != NULL, result == GPUPOOL_OK);
    if (ring) kit_ring_close(ring);
    return result;
}

static void configs(void) {
    CHECK_RESULT(gpupool_ring_create(NULL, NULL), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(made_of(256 * KIB - 1, 0, 0, 0), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(made_of(((size_t)1 << 44) + 1, 0, 0, 0), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(made_of(MIB, 256 * KIB + 1, 0, 0), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(made_of(MIB, 65535, 0, 0), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(made_of(MIB, 0, -2, 0), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(made_of(MIB, 0, 65, 0), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(made_of(MIB, 0, 0, -5), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(made_of(MIB, 0, 0, 1000), GPUPOOL_E_ARGUMENT);
    CHECK_EQ(cudaGetLastError(), cudaSuccess);
    CHECK_RESULT(made_of(MIB, 65536, 64, GPUPOOL_DEVICE_CURRENT), GPUPOOL_OK);
    CHECK_RESULT(made_of(256 * KIB, 0, -1, 0), GPUPOOL_OK);
    CHECK_RESULT(made_of(MIB, 256 * KIB, -1, 0), GPUPOOL_OK);
    CHECK_RESULT(made_of((size_t)1 << 44, 0, -1, 0), GPUPOOL_OK);
    CHECK_RESULT(made_of(0, 0, 0, 0), GPUPOOL_OK);
    CHECK_RESULT(gpupool_ring_destroy(NULL), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(made_of(MIB, 0, -1, 0), GPUPOOL_OK); /* the latest failure is still told */
    CHECK(strstr(gpupool_last_error(), "gpupool_ring_destroy: the ring is NULL") != NULL);
}

static void calls_without_a_ring(void) {
    unsigned char byte = 0;
    gpupool_ticket ticket = 77;
    gpupool_span span;
    gpupool_ring_stats stats;
    size_t released = 77;
    CHECK_RESULT(gpupool_upload(NULL, &byte, &byte, 1, 0), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(gpupool_upload(NULL, &byte, &byte, 0, 0), GPUPOOL_E_ARGUMENT);
    CHECK(strstr(gpupool_last_error(), "gpupool_upload: the ring is NULL") != NULL);
    CHECK_RESULT(gpupool_download(NULL, &byte, &byte, 1, 0), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(kit_upload_async(NULL, &byte, &byte, 1, 0, &ticket), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(kit_download_async(NULL, &byte, &byte, 1, 0, &ticket), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(kit_upload_2d(NULL, &byte, 1, &byte, 1, 1, 1, 0), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(kit_download_2d(NULL, &byte, 1, &byte, 1, 1, 1, 0), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(kit_upload_from(NULL, &byte, 1, read_nothing, NULL, 0), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(kit_download_to(NULL, &byte, 1, write_nothing, NULL, 0), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(gpupool_ring_wait(NULL, 1, 0), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(gpupool_ring_acquire_span(NULL, 1, 0, &span), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(gpupool_ring_upload_span(NULL, &span, &byte, 0), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(gpupool_ring_cancel_span(NULL, &span), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(gpupool_ring_trim(NULL, 0, &released), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(gpupool_ring_get_stats(NULL, &stats), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(gpupool_ring_check(NULL), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(gpupool_ring_destroy(NULL), GPUPOOL_E_ARGUMENT);
    CHECK_EQ(ticket, 77);
    CHECK_EQ(released, 0);
}

static gpupool_ring *ring;
static unsigned char *from, *device;

static void transfers(void) {
    gpupool_ticket ticket = 77;
    CHECK_RESULT(gpupool_upload(ring, NULL, from, 10, 0), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(gpupool_upload(ring, device, NULL, 10, 0), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(gpupool_upload(ring, device, from, SIZE_MAX, 0), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(gpupool_download(ring, NULL, device, 10, 0), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(kit_upload_async(ring, NULL, from, 10, 0, &ticket), GPUPOOL_E_ARGUMENT);
    CHECK_EQ(ticket, 77);
    CHECK_RESULT(gpupool_ring_wait(ring, 0, 0), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(gpupool_ring_wait(ring, 1, 0), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(gpupool_ring_get_stats(ring, NULL), GPUPOOL_E_ARGUMENT);
}

static int never(void *to, size_t bytes, uint64_t offset, void *user) {
    (void)to, (void)bytes, (void)offset, (void)user;
    return 1;
}

static int nowhere(const void *to, size_t bytes, uint64_t offset, void *user) {
    (void)to, (void)bytes, (void)offset, (void)user;
    return 1;
}

static void refused(gpupool_transfer transfer, const char *words) {
    CHECK_RESULT(gpupool_ring_transfer(ring, &transfer), GPUPOOL_E_ARGUMENT);
    CHECK(strstr(gpupool_last_error(), words) != NULL);
}

/* A tiny transfer, which takes a way of its own, goes well: the failure before it is still told. So
   it is if that way fails, and another one goes well. */
static void the_latest_failure(void) {
    gpupool_transfer up = kit_transfer(GPUPOOL_UP, device, from, 10, 0);
    for (int i = 0; i < 4; i++) {
        check_case("%d", i);
        CHECK_RESULT(gpupool_ring_check(NULL), GPUPOOL_E_ARGUMENT);
        CHECK_RESULT(gpupool_ring_destroy(NULL), GPUPOOL_E_ARGUMENT);
#if CHECK_FAKE
        if (i == 3) fake_fail_call("cuMemcpyAsync", 1, 0, 0);
#endif
        if (i == 0) CHECK_RESULT(gpupool_ring_transfer(ring, &up), GPUPOOL_OK);
        else if (i == 1) CHECK_RESULT(gpupool_download(ring, from, device, 10, 0), GPUPOOL_OK);
        else CHECK_RESULT(gpupool_upload(ring, device, from, 10, 0), GPUPOOL_OK);
        CHECK(strstr(gpupool_last_error(), "gpupool_ring_destroy: the ring is NULL") != NULL);
#if CHECK_FAKE
        CHECK_EQ(fake_fail_fired(), i == 3);
        fake_fail_clear();
#endif
    }
    check_case(" ");
}

/* What does not go together. */
static void descriptions(void) {
    gpupool_transfer up = kit_transfer(GPUPOOL_UP, device, from, 10, 0), odd;
    gpupool_transfer down = kit_transfer(GPUPOOL_DOWN, from, device, 10, 0);
    CHECK_RESULT(gpupool_ring_transfer(ring, NULL), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(gpupool_ring_transfer(NULL, &up), GPUPOOL_E_ARGUMENT);
    odd = up;
    odd.direction = (gpupool_direction)2;
    refused(odd, "direction");
    odd = down;
    odd.read = never;
    refused(odd, "for UP");
    odd = down;
    odd.is_file = 1;
    refused(odd, "for UP");
    odd = up;
    odd.write = nowhere;
    refused(odd, "for DOWN");
    odd = up;
    odd.read = never;
    odd.is_file = 1;
    refused(odd, "either");
    odd.is_file = 0;
    odd.to_pitch = 10;
    refused(odd, "no pitches");
    odd.to_pitch = 0;
    odd.from_pitch = 10;
    refused(odd, "no pitches");
    odd.read = NULL;
    odd.is_file = 1;
    refused(odd, "no pitches");
    odd = down;
    odd.write = nowhere;
    odd.to_pitch = 10;
    refused(odd, "no pitches");
    odd = up;
    odd.to_pitch = 10; /* the other is 0 */
    odd.rows = 2;
    refused(odd, "pitch");
    odd.to_pitch = 0;
    odd.from_pitch = 10;
    refused(odd, "pitch");
    odd.from_pitch = 0; /* else one row would go, and nothing would be said of the other */
    refused(odd, "rows need pitches");
}

static void rows(void) {
    CHECK_RESULT(kit_upload_2d(ring, device, 9, from, 10, 10, 2, 0), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(kit_upload_2d(ring, device, 10, from, 9, 10, 2, 0), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(kit_upload_2d(ring, device, 10, from, SIZE_MAX / 2, 10, 3, 0),
                 GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(kit_upload_2d(ring, device, 10, from, (size_t)PTRDIFF_MAX + 1, 10, 1, 0),
                 GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(kit_upload_2d(ring, NULL, 10, from, 10, 10, 2, 0), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(kit_upload_2d(ring, device, 10, NULL, 10, 10, 2, 0), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(kit_upload_2d(ring, device, 0, from, 0, 0, 5, 0), GPUPOOL_OK);
    CHECK_RESULT(kit_upload_2d(ring, device, 10, from, 10, 10, 0, 0), GPUPOOL_OK);
}

static void functions(void) {
    size_t huge = SIZE_MAX;
    CHECK_RESULT(kit_upload_from(ring, device, 10, NULL, NULL, 0), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(kit_upload_from(ring, NULL, 10, read_nothing, NULL, 0), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(kit_upload_from(ring, device, huge, read_nothing, NULL, 0),
                 GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(kit_upload_from(ring, device, 0, read_nothing, NULL, 0), GPUPOOL_OK);
    CHECK_RESULT(kit_download_to(ring, device, 10, NULL, NULL, 0), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(kit_download_to(ring, NULL, 10, write_nothing, NULL, 0), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(kit_download_to(ring, device, huge, write_nothing, NULL, 0),
                 GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(kit_download_to(ring, NULL, 0, write_nothing, NULL, 0), GPUPOOL_OK);
}

/* A span stays held through all that is refused. */
static void spans(void) {
    gpupool_span span, wrong;
    CHECK_RESULT(gpupool_ring_acquire_span(ring, 1000, 0, NULL), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(gpupool_ring_acquire_span(ring, 0, 0, &span), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(gpupool_ring_acquire_span(ring, MIB + 1, 0, &span), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(gpupool_ring_acquire_span(ring, 1000, 0, &span), GPUPOOL_OK);
    CHECK_RESULT(gpupool_ring_upload_span(ring, NULL, device, 0), GPUPOOL_E_ARGUMENT);
    CHECK(strstr(gpupool_last_error(), "span is NULL") != NULL);
    CHECK_RESULT(gpupool_ring_cancel_span(ring, NULL), GPUPOOL_E_ARGUMENT);
    CHECK(strstr(gpupool_last_error(), "span is NULL") != NULL);
    CHECK_RESULT(gpupool_ring_upload_span(ring, &span, NULL, 0), GPUPOOL_E_ARGUMENT);
    wrong = span;
    wrong.number++;
    CHECK_RESULT(gpupool_ring_cancel_span(ring, &wrong), GPUPOOL_E_ARGUMENT);
    CHECK(strstr(gpupool_last_error(), "not held") != NULL);
    wrong = span;
    wrong.bytes = 1001;
    CHECK_RESULT(gpupool_ring_upload_span(ring, &wrong, device, 0), GPUPOOL_E_ARGUMENT);
    wrong.bytes = 0;
    CHECK_RESULT(gpupool_ring_upload_span(ring, &wrong, device, 0), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(gpupool_ring_destroy(ring), GPUPOOL_E_IN_USE);
    CHECK_RESULT(gpupool_ring_cancel_span(ring, &span), GPUPOOL_OK);
}

/* Two rings number their spans alike. */
static void spans_of_another_ring(void) {
    gpupool_ring *other = kit_ring(MIB, 0, 0);
    gpupool_span span, others;
    ring = kit_ring(MIB, 0, 0);
    device = kit_device(1000);
    CHECK_RESULT(gpupool_ring_acquire_span(ring, 1000, 0, &span), GPUPOOL_OK);
    CHECK_RESULT(gpupool_ring_acquire_span(other, 1000, 0, &others), GPUPOOL_OK);
    CHECK_EQ(others.number, span.number);
    CHECK_RESULT(gpupool_ring_upload_span(other, &span, device, 0), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(gpupool_ring_cancel_span(ring, &others), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(gpupool_ring_cancel_span(ring, &span), GPUPOOL_OK);
    CHECK_RESULT(gpupool_ring_cancel_span(other, &others), GPUPOOL_OK);
    kit_device_free(device, 1000);
    kit_ring_close(ring);
    kit_ring_close(other);
}

static void refused_calls_change_nothing(void) {
    from = kit_host(1000);
    device = kit_device(1000);
    ring = kit_ring(MIB, 0, 0);
    gpupool_ring_stats before = kit_ring_stats(ring);
    transfers();
    descriptions();
    rows();
    functions();
    spans();
    CHECK_EQ(kit_ring_stats(ring).transfers[0], before.transfers[0]);
    CHECK_EQ(kit_ring_stats(ring).transfers[1], before.transfers[1]);
    CHECK_EQ(kit_ring_stats(ring).used.now, 0);
    CHECK_RESULT(gpupool_upload(ring, device, from, 0, 0), GPUPOOL_OK); /* nothing is fine */
    CHECK_RESULT(gpupool_upload(ring, NULL, NULL, 0, 0), GPUPOOL_OK);
    gpupool_transfer one = kit_transfer(GPUPOOL_UP, device, from, 10, 0);
    one.rows = 1; /* needs no pitches */
    CHECK_RESULT(gpupool_ring_transfer(ring, &one), GPUPOOL_OK);
    the_latest_failure();
    kit_host_free(from, 1000);
    kit_device_free(device, 1000);
    kit_ring_close(ring);
}

int main(void) {
    ARENA_TEST(configs);
    ARENA_TEST(calls_without_a_ring);
    ARENA_TEST(refused_calls_change_nothing);
    ARENA_TEST(spans_of_another_ring);
    return check_finish();
}
