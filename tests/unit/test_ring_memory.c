/* The host has no memory for the ring's records: each call says so, nothing is lost, and it works
   again once there is some. */
#include "fail_malloc.h"
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "ring_kit.h"

#if CHECK_FAKE

#define BYTES (300 * KIB)

static gpupool_ring *ring;
static unsigned char *host, *pinned, *device;
static gpupool_result up(void) {
    return gpupool_upload(ring, device, host, BYTES, kit_stream[0]);
}
static gpupool_result up_single(void) {
    return gpupool_upload(ring, device, host, 100 * KIB, kit_stream[0]);
}
static gpupool_result up_pinned(void) {
    return gpupool_upload(ring, device, pinned, BYTES, kit_stream[0]);
}
static gpupool_result down(void) {
    return gpupool_download(ring, host, device, BYTES, kit_stream[0]);
}
static gpupool_result up_async(void) {
    gpupool_ticket ticket = 0;
    gpupool_result result =
        kit_upload_async(ring, device, host, BYTES, kit_stream[0], &ticket);
    return result == GPUPOOL_OK ? gpupool_ring_wait(ring, ticket, -1) : result;
}
static gpupool_result span(void) {
    gpupool_span span;
    gpupool_result result = gpupool_ring_acquire_span(ring, BYTES, 0, &span);
    return result == GPUPOOL_OK ? gpupool_ring_cancel_span(ring, &span) : result;
}

static gpupool_result (*const calls[])(void) = {up, up_single, up_pinned, down, up_async, span};

static void scene_open(void) {
    ring = kit_ring(MIB, 0, 0);
    host = kit_host(BYTES);
    device = kit_device(BYTES);
    CHECK_EQ(cudaHostAlloc((void **)&pinned, BYTES, cudaHostAllocDefault), cudaSuccess);
}

static void scene_close(void) {
    memset(host, 0xee, BYTES);
    CHECK_EQ(cudaFreeHost(pinned), cudaSuccess);
    kit_host_free(host, BYTES);
    kit_device_free(device, BYTES);
    kit_ring_close(ring);
    CHECK_EQ(fail_malloc_live, 0);
}

/* The n-th request and all after it are refused, until a call needs fewer. */
static void no_memory_for_the_nth_record(void) {
    for (size_t i = 0; i < KIT_COUNT(calls); i++) {
        long fired = 1;
        for (long n = 1; fired; n++) {
            check_case("call %zu, request %ld", i, n);
            scene_open();
            fail_malloc_nth(n, 1);
            gpupool_result result = calls[i]();
            fired = fail_malloc_fired;
            fail_malloc_nth(0, 0);
            CHECK_RESULT(result, fired ? GPUPOOL_E_HOST_MEMORY : GPUPOOL_OK);
            CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
            CHECK_RESULT(gpupool_ring_check(ring), GPUPOOL_OK);
            ring->stage.refused_ns = 0; /* it may pin again at once */
            CHECK_RESULT(calls[i](), GPUPOOL_OK);
            scene_close();
        }
    }
}

static void no_memory_for_a_ring(void) {
    fail_malloc_nth(1, 0);
    CHECK_RESULT(gpupool_ring_create(&ring, NULL), GPUPOOL_E_HOST_MEMORY);
    CHECK(ring == NULL);
    CHECK_EQ(fail_malloc_live, 0);
    fail_malloc_nth(0, 0);
}

/* Between two looks of the workers, since nobody else may be at a device that is reset. Returns
   how often it had been asked by then whether there was a reset. */
static long reset_unseen(void) {
    long looks = 0;
    for (int at_work = 1; at_work;) {
        at_work = 0;
        gpi_ring_lock(ring);
        for (const gpi_transfer *t = ring->transfers; t; t = t->next) at_work += t->working;
        at_work += ring->stage.polling;
        if (!at_work) CHECK_EQ(cudaDeviceReset(), cudaSuccess);
        looks = fake_calls("cuCtxGetId");
        gpi_ring_unlock(ring);
    }
    return looks;
}

/* With workers, a ticket and a copy in flight: these are asked after no more. */
static void nothing_stays_after_a_reset(void) {
    gpupool_ticket ticket = 0;
    void *buffer = NULL;
    for (int workers = -1; workers < 2; workers += 2) {
        ring = kit_ring(MIB, 0, workers);
        host = kit_host(BYTES);
        CHECK_EQ(cudaMalloc(&buffer, BYTES), cudaSuccess);
        CHECK_RESULT(kit_upload_async(ring, buffer, host, BYTES, kit_stream[0], &ticket),
                     GPUPOOL_OK);
        fake_hold(kit_stream[0], 1);
        CHECK_RESULT(kit_upload_async(ring, buffer, host, BYTES, kit_stream[0], &ticket),
                     GPUPOOL_OK);
        CHECK_EQ(gpi_process.workers, workers > 0 ? workers : 0);
        long looks = reset_unseen();
        for (int i = 0; i < KIT_STREAMS; i++) kit_stream[i] = NULL;
        while (workers > 0 && fake_calls("cuCtxGetId") == looks) gpi_host_idle(10000);
        for (int i = 0; i < 20; i++) gpi_host_idle(10000); /* for more looks, if there are any */
        CHECK_RESULT(gpupool_ring_destroy(ring), GPUPOOL_OK);
        CHECK_EQ(gpi_process.workers, 0);
        CHECK_EQ(fail_malloc_live, 0);
        kit_host_free(host, BYTES);
    }
}

/* However many tickets there were. */
static void records_are_used_again(void) {
    scene_open();
    CHECK_RESULT(up_async(), GPUPOOL_OK);
    long live = fail_malloc_live;
    for (int i = 0; i < 200; i++) CHECK_RESULT(up_async(), GPUPOOL_OK);
    CHECK_EQ(fail_malloc_live, live);
    scene_close();
}

/* The copy of pinned memory was queued, and then there is no ticket: nothing is at it any more. */
static void no_memory_for_a_ticket_of_pinned_memory(void) {
    gpupool_ticket ticket = 0;
    scene_open();
    fake_mode(FAKE_STEPPED);
    fail_malloc_nth(1, 0);
    CHECK_RESULT(kit_upload_async(ring, device, pinned, BYTES, kit_stream[0], &ticket),
                 GPUPOOL_E_HOST_MEMORY);
    fail_malloc_nth(0, 0);
    fake_host_access(pinned, BYTES, 1, "the caller, after a failure");
    scene_close();
}

/* Without pinned memory a transfer takes small steps through ordinary memory: not without that. */
static void no_memory_to_go_on_with(void) {
    for (int way = 0; way < 2; way++) {
        scene_open();
        CHECK_RESULT(up(), GPUPOOL_OK); /* so that there is a record */
        CHECK_RESULT(gpupool_ring_trim(ring, 0, NULL), GPUPOOL_OK);
        fake_pinned_limit(1000);
        fail_malloc_nth(1, 1);
        CHECK_RESULT(way ? down() : up(), GPUPOOL_E_HOST_MEMORY);
        fail_malloc_nth(0, 0);
        CHECK_RESULT(way ? down() : up(), GPUPOOL_OK);
        CHECK(kit_ring_stats(ring).slow_chunks > 1);
        fake_pinned_limit(0);
        scene_close();
    }
}
#endif

int main(void) {
    FAKE_TEST(no_memory_for_the_nth_record);
    FAKE_TEST(no_memory_for_a_ring);
    FAKE_TEST(nothing_stays_after_a_reset);
    FAKE_TEST(records_are_used_again);
    FAKE_TEST(no_memory_for_a_ticket_of_pinned_memory);
    FAKE_TEST(no_memory_to_go_on_with);
    return check_finish();
}
