/* Every CUDA call of every ring call is made to fail, once and from then on: the call returns its
   error or does without, nothing outside the destination is touched, and the ring stays usable.

// build: plain
// build: check2 -DGPUPOOL_CHECK=2 -DEVERY=5
// build: asan -fsanitize=address -DEVERY=5
*/
#define _DEFAULT_SOURCE /* files */
#include "ring_watch.h"
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "ring_kit.h"

#if CHECK_FAKE

#define BYTES ((size_t)700001) /* of a transfer: several chunks */
#define ROWS 70
#define WIDTH 10000            /* and of one with rows */

static long fired_before; /* faults that an act has cleared itself */

typedef struct scene {
    gpupool_ring *ring;
    unsigned char *host, *device;
    uint64_t seed;
} scene;

typedef struct act {
    const char *name;
    gpupool_result (*play)(scene *);
    int down;                  /* where the bytes are to be found when it went well */
    size_t bytes;
    size_t offset;
} act;

static int bring(void *to, size_t bytes, uint64_t offset, void *user) {
    (memcpy)(to, (const unsigned char *)user + offset, bytes);
    return 0;
}

static int take_away(const void *from, size_t bytes, uint64_t offset, void *user) {
    (memcpy)((unsigned char *)user + offset, from, bytes);
    return 0;
}

static void clear_up(void) {
    fake_fail_clear();
    kit_capture_globally();
}

static gpupool_result up(scene *s) {
    return gpupool_upload(s->ring, s->device, s->host, BYTES, kit_stream[0]);
}

static gpupool_result up_tiny(scene *s) {
    return gpupool_upload(s->ring, s->device, s->host, 1000, kit_stream[0]);
}

static gpupool_result up_single(scene *s) {
    return gpupool_upload(s->ring, s->device, s->host, 50000, kit_stream[0]);
}

static gpupool_result up_rows(scene *s) {
    return kit_upload_2d(s->ring, s->device, WIDTH, s->host, WIDTH, WIDTH - 1, ROWS,
                             kit_stream[0]);
}

static gpupool_result up_from(scene *s) {
    return kit_upload_from(s->ring, s->device, BYTES, bring, s->host, kit_stream[0]);
}

/* A wait that fails has not waited: the transfer may still be under way. */
static gpupool_result wait_out(scene *s, gpupool_result posted, gpupool_ticket ticket) {
    gpupool_result result = posted;
    if (posted != GPUPOOL_OK) return posted;
    result = gpupool_ring_wait(s->ring, ticket, -1);
    if (result == GPUPOOL_OK) return result;
    fired_before += fake_fail_fired();
    clear_up();
    gpupool_ring_wait(s->ring, ticket, -1);
    return result;
}

static gpupool_result up_async(scene *s) {
    gpupool_ticket ticket = 0;
    gpupool_result result = kit_upload_async(s->ring, s->device, s->host, BYTES,
                                                 kit_stream[0], &ticket);
    return wait_out(s, result, ticket);
}

static gpupool_result up_span(scene *s) {
    gpupool_span span;
    gpupool_result result = gpupool_ring_acquire_span(s->ring, 100000, 0, &span);
    if (result != GPUPOOL_OK) return result;
    memcpy(span.memory, s->host, 100000);
    result = gpupool_ring_upload_span(s->ring, &span, s->device, kit_stream[0]);
    if (result == GPUPOOL_OK) return result;
    fired_before += fake_fail_fired();
    clear_up(); /* the span is still held, and can be sent now */
    CHECK_RESULT(gpupool_ring_upload_span(s->ring, &span, s->device, kit_stream[0]), GPUPOOL_OK);
    return result;
}

static gpupool_result down(scene *s) {
    return gpupool_download(s->ring, s->host, s->device, BYTES, kit_stream[0]);
}

static gpupool_result down_tiny(scene *s) {
    return gpupool_download(s->ring, s->host, s->device, 1000, kit_stream[0]);
}

static gpupool_result down_to(scene *s) {
    return kit_download_to(s->ring, s->device, BYTES, take_away, s->host, kit_stream[0]);
}

static gpupool_result down_async(scene *s) {
    gpupool_ticket ticket = 0;
    gpupool_result result = kit_download_async(s->ring, s->host, s->device, BYTES,
                                                   kit_stream[0], &ticket);
    return wait_out(s, result, ticket);
}

static const act acts[] = {
    {"upload", up, 0, BYTES, 0},
    {"tiny upload", up_tiny, 0, 1000, 0},
    {"upload of one chunk", up_single, 0, 50000, 0},
    {"upload_2d", up_rows, 0, WIDTH - 1, 0},
    {"upload_from", up_from, 0, BYTES, 0},
    {"upload_async", up_async, 0, BYTES, 0},
    {"span", up_span, 0, 100000, 0},
    {"download", down, 1, BYTES, 0},
    {"tiny download", down_tiny, 1, 1000, 0},
    {"download_to", down_to, 1, BYTES, 0},
    {"download_async", down_async, 1, BYTES, 0},
};

/* The source has the seed's pattern, the destination something else. */
static void scene_set(scene *s, int is_down, uint64_t seed) {
    CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess); /* a failed call may have left work behind */
    s->seed = seed;
    kit_pattern(s->host, BYTES, seed);
    if (is_down) {
        CHECK_EQ(cudaMemcpy(s->device, s->host, BYTES, cudaMemcpyHostToDevice), cudaSuccess);
        memset(s->host, 0x55, BYTES);
    } else {
        CHECK_EQ(cudaMemset(s->device, 0x55, BYTES), cudaSuccess);
    }
    CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

static void scene_expect(const scene *s, const act *a) {
    if (a->down) kit_is_pattern(s->host, a->bytes, s->seed, 0);
    else kit_expect_device(s->device, a->bytes, s->seed);
}

/* One failure in the n-th call; returns whether there was an n-th. */
static int play(scene *s, const act *a, long n, int persist) {
    scene_set(s, a->down, (uint64_t)n);
    fired_before = 0;
    fake_fail_nth(n, persist);
    if (s->ring->workers_wanted) fake_fail_except("cuCtxGetId"); /* they ask at every look */
    gpupool_result result = a->play(s);
    long fired = fired_before + fake_fail_fired();
    clear_up();
    if (result == GPUPOOL_OK) {
        scene_expect(s, a);
    } else {
        CHECK(result == GPUPOOL_E_CUDA || result == GPUPOOL_E_OUT_OF_MEMORY);
        CHECK(gpupool_last_error()[0] != 0);
    }
    CHECK_EQ(cudaGetLastError(), cudaSuccess);
    CHECK_RESULT(gpupool_ring_check(s->ring), GPUPOOL_OK);
    return fired > 0;
}

static void play_all(int workers, int persist) {
    for (size_t i = 0; i < KIT_COUNT(acts); i++) {
        const act *a = &acts[i];
        int more = 1;
        gpupool_span all; /* of the ring: nothing is lost */
        scene s;
        s.ring = kit_ring(512 * KIB, 64 * KIB, workers);
        s.host = kit_host(BYTES);
        s.device = kit_device(BYTES);
        for (long n = 1; more && n < 400; n += EVERY) {
            check_case("%s, call %ld fails%s, %d workers", a->name, n, persist ? " for good" : "",
                       workers);
            more = play(&s, a, n, persist);
            scene_set(&s, a->down, 7); /* and all is as before */
            CHECK_RESULT(a->play(&s), GPUPOOL_OK);
            scene_expect(&s, a);
            if (persist) continue; /* what cannot be asked about stays taken */
            CHECK_RESULT(gpupool_ring_acquire_span(s.ring, 512 * KIB, KIT_SECOND, &all),
                         GPUPOOL_OK);
            CHECK_RESULT(gpupool_ring_cancel_span(s.ring, &all), GPUPOOL_OK);
        }
        CHECK(!more);
        kit_host_free(s.host, BYTES);
        kit_device_free(s.device, BYTES);
        kit_ring_close(s.ring);
    }
}

static void each_call_fails_once(void) { play_all(0, 0); }
static void each_call_fails_for_good(void) { play_all(0, 1); }
static void each_call_fails_beside_workers(void) { play_all(2, 0); }
static void each_call_fails_for_good_beside_workers(void) { play_all(2, 1); }

/* Copied by CUDA itself, behind a stream that stands still: once the ticket tells of the failure,
   nothing is at the caller's memory any more. */
static void done_with_pinned_memory_when_a_ticket_fails(void) {
    gpupool_ring *ring = kit_ring(MIB, 0, 0);
    unsigned char *pinned, *device = kit_device(MIB);
    gpupool_ticket ticket = 0;
    CHECK_EQ(cudaHostAlloc((void **)&pinned, MIB, cudaHostAllocDefault), cudaSuccess);
    fake_hold(kit_stream[0], 1);
    CHECK_RESULT(kit_download_async(ring, pinned, device, MIB, kit_stream[0], &ticket),
                 GPUPOOL_OK);
    fake_fail_call("cuEventQuery", 1, 0, 0);
    CHECK_RESULT(gpupool_ring_wait(ring, ticket, -1), GPUPOOL_E_CUDA);
    CHECK_EQ(fake_pending(kit_stream[0]), 0);
    fake_host_access(pinned, MIB, 1, "the caller's next use");
    fake_fail_clear();
    fake_hold(kit_stream[0], 0);
    kit_device_free(device, MIB);
    CHECK_EQ(cudaFreeHost(pinned), cudaSuccess);
    kit_ring_close(ring);
}

/* Nobody stands by a chunk of an upload with a ticket: who waits for the ticket asks after it. */
static void a_flight_that_fails_is_its_tickets_failure(void) {
    gpupool_ring *ring = kit_ring(MIB, 0, 0);
    unsigned char *host = kit_host(300 * KIB), *device = kit_device(300 * KIB);
    gpupool_ticket ticket = 0;
    CHECK_RESULT(kit_upload_async(ring, device, host, 300 * KIB, kit_stream[0], &ticket),
                 GPUPOOL_OK);
    fake_fail_call("cuEventQuery", 1, 1, 0);
    CHECK_RESULT(gpupool_ring_wait(ring, ticket, 5 * KIT_SECOND), GPUPOOL_E_CUDA);
    fake_fail_clear();
    memset(host, 0xee, 300 * KIB);
    kit_host_free(host, 300 * KIB);
    CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
    kit_device_free(device, 300 * KIB);
    kit_ring_close(ring);
}

/* Its chunks can neither be asked after nor waited for by their event: then by their stream, so
   the caller may use the destination on any stream once the ticket tells of the failure. */
static void a_flight_that_fails_is_over_all_the_same(void) {
    gpupool_ring *ring = kit_ring(MIB, 0, 0);
    unsigned char *host = kit_host(300 * KIB), *device = kit_device(300 * KIB);
    gpupool_ticket ticket = 0;
    CHECK_RESULT(kit_upload_async(ring, device, host, 300 * KIB, kit_stream[0], &ticket),
                 GPUPOOL_OK);
    fake_fail_call("cuEventQuery", 2, 1, 0); /* the first is after the caller's earlier work */
    fake_fail_call("cuEventSynchronize", 1, 1, 0);
    CHECK_RESULT(gpupool_ring_wait(ring, ticket, 5 * KIT_SECOND), GPUPOOL_E_CUDA);
    fake_fail_clear();
    CHECK_EQ(cudaMemsetAsync(device, 1, 300 * KIB, kit_stream[0]), cudaSuccess);
    CHECK_EQ(fake_failures(), 0); /* no race */
    kit_host_free(host, 300 * KIB);
    CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
    kit_device_free(device, 300 * KIB);
    kit_ring_close(ring);
}

/* The CUDA calls that a wait makes before it waits: its failure is not the transfer's. */
static void a_wait_that_fails_has_not_waited(void) {
    static const struct { const char *call; long nth; } before[] = {
        {"cuCtxPushCurrent", 1}, {"cuThreadExchangeStreamCaptureMode", 1}, {"cuCtxGetId", 2}};
    gpupool_ring *ring = kit_ring(MIB, 0, 0);
    unsigned char *host = kit_host(BYTES), *device = kit_device(BYTES);
    gpupool_ticket ticket = 0;
    kit_pattern(host, BYTES, 3);
    fake_hold(kit_stream[0], 1);
    CHECK_RESULT(kit_upload_async(ring, device, host, BYTES, kit_stream[0], &ticket), GPUPOOL_OK);
    for (size_t i = 0; i < KIT_COUNT(before); i++) {
        check_case("%s", before[i].call);
        fake_fail_call(before[i].call, before[i].nth, 0, 0);
        CHECK_RESULT(gpupool_ring_wait(ring, ticket, -1), GPUPOOL_E_CUDA);
        CHECK(strstr(gpupool_last_error(), before[i].call) != NULL);
        CHECK(strstr(gpupool_last_error(), "did not wait for ticket 1") != NULL);
        CHECK_EQ(gpi_thread.cuda_error, CUDA_ERROR_UNKNOWN);
        clear_up();
        CHECK_RESULT(gpupool_ring_wait(ring, ticket, 0), GPUPOOL_E_TIMEOUT);
    }
    fake_hold(kit_stream[0], 0);
    CHECK_RESULT(gpupool_ring_wait(ring, ticket, -1), GPUPOOL_OK);
    kit_expect_device(device, BYTES, 3);
    kit_host_free(host, BYTES);
    kit_device_free(device, BYTES);
    kit_ring_close(ring);
}

/* The other E_CUDA: it says nothing of the wait, stays, and leaves the program its memory and the
   ring its slots. */
static void a_transfer_that_fails_is_over(void) {
    gpupool_ring *ring = kit_ring(MIB, 0, 0);
    unsigned char *host = kit_host(BYTES), *device = kit_device(BYTES);
    gpupool_ticket ticket = 0;
    CHECK_RESULT(kit_upload_async(ring, device, host, BYTES, kit_stream[0], &ticket), GPUPOOL_OK);
    fake_fail_call("cuMemcpyAsync", 2, 0, 0); /* when a part of it is queued */
    for (int i = 0; i < 2; i++) {
        CHECK_RESULT(gpupool_ring_wait(ring, ticket, i - 1), GPUPOOL_E_CUDA);
        CHECK(strstr(gpupool_last_error(), "cuMemcpyAsync failed") != NULL);
        CHECK(strstr(gpupool_last_error(), "did not wait") == NULL);
    }
    clear_up();
    CHECK_EQ(fake_pending(ring->streams[GPUPOOL_UP]), 0);
    memset(host, 0xee, BYTES);
    fake_host_access(host, BYTES, 1, "the program's next use");
    CHECK_RESULT(gpupool_ring_trim(ring, 0, NULL), GPUPOOL_OK);
    CHECK_EQ(kit_ring_stats(ring).used.now, 0);
    CHECK_EQ(kit_ring_stats(ring).pinned.now, 0);
    kit_host_free(host, BYTES);
    kit_device_free(device, BYTES);
    kit_ring_close(ring);
}

/* ---- the ring itself ---- */

static void create_fails_and_leaves_nothing(void) {
    for (int persist = 0; persist < 2; persist++)
        for (long n = 1;; n++) {
            gpupool_ring *ring = NULL;
            long objects = fake_live_objects();
            check_case("call %ld fails", n);
            fake_fail_nth(n, persist);
            gpupool_result result = gpupool_ring_create(&ring, NULL);
            long fired = fake_fail_fired();
            clear_up();
            CHECK_EQ(cudaGetLastError(), cudaSuccess);
            CHECK_EQ(result == GPUPOOL_OK, ring != NULL);
            if (ring) CHECK_RESULT(gpupool_ring_destroy(ring), GPUPOOL_OK);
            else if (!persist) CHECK_EQ(fake_live_objects(), objects);
            if (!fired) break;
            if (persist && fake_live_objects() != objects) kit_drop_the_rest(); /* none freed */
        }
}

/* Each question that a call asks before it does anything. */
static void questions_that_fail(void) {
    gpupool_ring *ring = NULL;
    unsigned char *pinned, *device = kit_device(MIB);
    fake_fail_call("cudaGetDeviceCount", 1, 0, 0);
    CHECK_RESULT(gpupool_ring_create(&ring, NULL), GPUPOOL_E_CUDA);
    ring = kit_ring(MIB, 0, 0);
    CHECK_EQ(cudaHostAlloc((void **)&pinned, MIB, cudaHostAllocDefault), cudaSuccess);
    for (long n = 1; n <= 2; n++) { /* where the memory begins, and where it ends */
        fake_fail_call("cuPointerGetAttributes", n, 0, 0);
        CHECK_RESULT(gpupool_upload(ring, device, pinned, MIB, kit_stream[0]), GPUPOOL_E_CUDA);
    }
    fake_fail_call("cuStreamSynchronize", 1, 0, 0);
    CHECK_RESULT(gpupool_download(ring, pinned, device, MIB, kit_stream[0]), GPUPOOL_E_CUDA);
    clear_up();
    cudaGetLastError();
    kit_device_free(device, MIB);
    CHECK_EQ(cudaFreeHost(pinned), cudaSuccess);
    kit_ring_close(ring);
}

/* What failed first is what is told. */
static void a_transfer_fails_in_two_ways(void) {
    gpi_transfer transfer;
    memset(&transfer, 0, sizeof transfer);
    gpi_ring_fail(&transfer, gpi_host_fail(GPUPOOL_E_CUDA, "the first"));
    gpi_ring_fail(&transfer, gpi_host_fail(GPUPOOL_E_ARGUMENT, "the second"));
    CHECK_RESULT(transfer.result, GPUPOOL_E_CUDA);
    CHECK(strcmp(transfer.text, "the first") == 0);
}

/* Of a long text the transfer keeps what it has room for, and ends it. */
static void a_transfer_fails_at_length(void) {
    gpi_transfer transfer;
    memset(&transfer, 0, sizeof transfer);
    gpi_ring_fail(&transfer, gpi_host_fail(GPUPOOL_E_CUDA, "%0400d", 7));
    CHECK_EQ(transfer.text[sizeof transfer.text - 1], 0);
    CHECK_EQ(strlen(transfer.text), sizeof transfer.text - 1);
}

static void destroy_and_trim_can_be_tried_again(void) {
    unsigned char *host = kit_host(BYTES), *device = kit_device(BYTES);
    for (int trim = 0; trim < 2; trim++)
        for (long n = 1;; n++) {
            gpupool_ring *ring = kit_ring(512 * KIB, 64 * KIB, (int)(n % 2));
            check_case("%s, call %ld fails", trim ? "trim" : "destroy", n);
            CHECK_RESULT(gpupool_upload(ring, device, host, BYTES, kit_stream[0]), GPUPOOL_OK);
            fake_fail_nth(n, 0);
            gpupool_result result =
                trim ? gpupool_ring_trim(ring, 0, NULL) : gpupool_ring_destroy(ring);
            long fired = fake_fail_fired();
            clear_up();
            CHECK_EQ(cudaGetLastError(), cudaSuccess);
            if (trim || result != GPUPOOL_OK) {
                CHECK_RESULT(gpupool_ring_check(ring), GPUPOOL_OK);
                CHECK_RESULT(gpupool_upload(ring, device, host, BYTES, kit_stream[0]), GPUPOOL_OK);
                kit_ring_close(ring);
            }
            if (!fired) break;
        }
    kit_host_free(host, BYTES);
    kit_device_free(device, BYTES);
}

/* The ring's streams go one after the other: the one that stays does for both ways. */
static void tickets_where_a_stream_has_stayed(void) {
    unsigned char *host = kit_host(BYTES), *device = kit_device(BYTES);
    cudaStream_t blocking;
    cudaGraph_t graph;
    CHECK_EQ(cudaStreamCreate(&blocking), cudaSuccess);
    for (long n = 1; n <= 2; n++) {
        gpupool_ring *ring = kit_ring(512 * KIB, 0, 0);
        scene s = {ring, host, device, 0};
        fake_fail_call("cuStreamDestroy", n, 0, 0);
        CHECK_RESULT(gpupool_ring_destroy(ring), GPUPOOL_E_CUDA);
        clear_up();
        kit_pattern(host, BYTES, (uint64_t)n);
        CHECK_EQ(cudaStreamBeginCapture(blocking, cudaStreamCaptureModeThreadLocal), cudaSuccess);
        CHECK_RESULT(up_async(&s), GPUPOOL_OK);
        memset(host, 0, BYTES);
        CHECK_RESULT(down_async(&s), GPUPOOL_OK);
        CHECK_EQ(cudaStreamEndCapture(blocking, &graph), cudaSuccess); /* no stream 0 in it */
        CHECK_EQ(cudaGraphDestroy(graph), cudaSuccess);
        kit_is_pattern(host, BYTES, (uint64_t)n, 0);
        kit_ring_close(ring);
    }
    CHECK_EQ(cudaStreamDestroy(blocking), cudaSuccess);
    kit_host_free(host, BYTES);
    kit_device_free(device, BYTES);
}

/* ---- what the host refuses ---- */

static void unpinnable_memory_is_no_failure(void) {
    gpupool_ring *ring = kit_ring(MIB, 0, 0);
    scene s = {ring, kit_host(BYTES), kit_device(BYTES), 0};
    gpupool_result refused;
    gpupool_span span;
    fake_pinned_limit(1000);
    for (size_t i = 0; i < KIT_COUNT(acts); i++) {
        check_case("%s", acts[i].name);
        if (acts[i].play == up_span) continue;
        scene_set(&s, acts[i].down, i);
        CHECK_RESULT(acts[i].play(&s), GPUPOOL_OK);
        scene_expect(&s, &acts[i]);
    }
    CHECK_EQ(fake_pinned_peak(), 0);
    CHECK(kit_ring_stats(ring).pin_failures > 0);
    /* whether it is time to try again depends on how fast this machine is */
    refused = gpupool_ring_acquire_span(ring, 100, 0, &span);
    CHECK(refused == GPUPOOL_E_TIMEOUT || refused == GPUPOOL_E_HOST_MEMORY);
    fake_pinned_limit(0);
    kit_host_free(s.host, BYTES);
    kit_device_free(s.device, BYTES);
    kit_ring_close(ring);
}

static void failures_are_forgotten_in_the_end(void) {
    gpupool_ring *ring = kit_ring(MIB, 0, 0);
    scene s = {ring, kit_host(BYTES), kit_device(BYTES), 0};
    gpupool_ticket fine, tickets[70];
    CHECK_RESULT(kit_upload_async(ring, s.device, s.host, BYTES, kit_stream[0], &fine),
                 GPUPOOL_OK);
    CHECK_RESULT(gpupool_ring_wait(ring, fine, -1), GPUPOOL_OK);
    for (int i = 0; i < 70; i++) {
        CHECK_RESULT(kit_upload_async(ring, s.device, s.host, BYTES, kit_stream[0],
                                          &tickets[i]), GPUPOOL_OK);
        fake_fail_call("cuMemcpyAsync", 1, 0, 0);
        CHECK_RESULT(gpupool_ring_wait(ring, tickets[i], -1), GPUPOOL_E_CUDA);
        CHECK_RESULT(gpupool_ring_wait(ring, tickets[i], 0), GPUPOOL_E_CUDA);
        CHECK(strstr(gpupool_last_error(), "cuMemcpyAsync") != NULL);
        fake_fail_clear();
        if (i < 64) CHECK_RESULT(gpupool_ring_wait(ring, fine, 0), GPUPOOL_OK);
    }
    CHECK_RESULT(gpupool_ring_wait(ring, tickets[69], 0), GPUPOOL_E_CUDA);
    CHECK_RESULT(gpupool_ring_wait(ring, tickets[6], 0), GPUPOOL_E_CUDA);
    CHECK_RESULT(gpupool_ring_wait(ring, tickets[5], 0), GPUPOOL_E_ARGUMENT);
    memset(s.host, 0, BYTES);
    kit_host_free(s.host, BYTES);
    kit_device_free(s.device, BYTES);
    kit_ring_close(ring);
}

/* One fails after 64 that came later, and is forgotten after them: none of those has been done. */
static void failures_out_of_order_are_forgotten(void) {
    gpupool_ring *ring = kit_ring(MIB, 0, 0);
    scene s = {ring, kit_host(BYTES), kit_device(BYTES), 0};
    gpupool_ticket late, tickets[128];
    fake_hold(kit_stream[1], 1);
    CHECK_RESULT(kit_upload_async(ring, s.device, s.host, BYTES, kit_stream[1], &late),
                 GPUPOOL_OK);
    fake_fail_call("cuMemcpyAsync", 1, 1, 0);
    for (int i = 0; i < 128; i++) {
        if (i == 64) fake_hold(kit_stream[1], 0);
        if (i == 64) CHECK_RESULT(gpupool_ring_wait(ring, late, -1), GPUPOOL_E_CUDA);
        CHECK_RESULT(kit_upload_async(ring, s.device, s.host, BYTES, kit_stream[0],
                                          &tickets[i]), GPUPOOL_OK);
        CHECK_RESULT(gpupool_ring_wait(ring, tickets[i], -1), GPUPOOL_E_CUDA);
    }
    fake_fail_clear();
    CHECK_RESULT(gpupool_ring_wait(ring, tickets[63], 0), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(gpupool_ring_wait(ring, tickets[64], 0), GPUPOOL_E_CUDA);
    memset(s.host, 0, BYTES);
    kit_host_free(s.host, BYTES);
    kit_device_free(s.device, BYTES);
    kit_ring_close(ring);
}

/* Many succeed after failures that came later were forgotten: each is told so, and none takes the
   place of a failure. */
static int fail_if_told(void *to, size_t bytes, uint64_t offset, void *told) {
    (void)offset;
    memset(to, 5, bytes);
    return told != NULL;
}
static void late_successes_push_out_no_failure(void) {
    gpupool_ring *ring = kit_ring(MIB, 0, 0);
    gpupool_ticket late[64], failed[65];
    gpupool_transfer one = {0};
    one.to = kit_device(BYTES);
    one.bytes = BYTES;
    one.read = fail_if_told;
    one.stream = kit_stream[1];
    fake_hold(kit_stream[1], 1);
    for (int i = 0; i < 64; i++) {
        one.ticket = &late[i];
        CHECK_RESULT(gpupool_ring_transfer(ring, &one), GPUPOOL_OK);
    }
    one.stream = kit_stream[0];
    one.user = ring;
    for (int i = 0; i < 65; i++) {
        one.ticket = &failed[i];
        CHECK_RESULT(gpupool_ring_transfer(ring, &one), GPUPOOL_OK);
        CHECK_RESULT(gpupool_ring_wait(ring, failed[i], -1), GPUPOOL_E_CALLBACK);
    }
    fake_hold(kit_stream[1], 0);
    for (int again = 0; again < 2; again++)
        for (int i = 0; i < 64; i++)
            CHECK_RESULT(gpupool_ring_wait(ring, late[i], again ? 0 : -1), GPUPOOL_OK);
    CHECK_RESULT(gpupool_ring_wait(ring, failed[0], 0), GPUPOOL_E_ARGUMENT);
    for (int i = 1; i < 65; i++)
        CHECK_RESULT(gpupool_ring_wait(ring, failed[i], 0), GPUPOOL_E_CALLBACK);
    kit_device_free((unsigned char *)one.to, BYTES);
    kit_ring_close(ring);
}

/* More transfers fail than the ring remembers, when another thread has just ended the only one in
   the list but for the first `keep`. */
static gpupool_ring *crowded;
static int fail_at_once(void *to, size_t bytes, uint64_t offset, void *unused) {
    (void)to, (void)bytes, (void)offset, (void)unused;
    return 1;
}
static void end_it_and_fail_often(void *keep) {
    gpi_ring_lock(crowded);
    gpi_transfer **last = *(int *)keep ? &crowded->transfers->next : &crowded->transfers;
    fake_hold(kit_stream[0], 0);
    for (int i = 0; i < 100 && *last; i++) gpi_ring_step(crowded, *last);
    CHECK(!*last);
    gpi_ring_unlock(crowded);
    for (int i = 0; i < 70; i++) {
        gpupool_ticket ticket;
        gpupool_transfer one = kit_transfer(GPUPOOL_UP, crowded, NULL, BYTES, kit_stream[2]);
        one.read = fail_at_once;
        one.ticket = &ticket;
        CHECK_RESULT(gpupool_ring_transfer(crowded, &one), GPUPOOL_OK);
        CHECK_RESULT(gpupool_ring_wait(crowded, ticket, -1), GPUPOOL_E_CALLBACK);
    }
}

/* The call that waits itself has its result all the same. */
static void a_call_does_not_forget_its_own(void) {
    int keep = 0;
    crowded = kit_ring(2 * MIB, 0, 0);
    scene s = {crowded, kit_host(BYTES), kit_device(BYTES), 0};
    unsigned char *elsewhere = kit_device(1000);
    kit_ring_fly(crowded, 1000, elsewhere, kit_stream[1]);
    fake_hold(kit_stream[0], 1);
    /* The fourth is the first in which the call itself neither works for it nor keeps it. */
    fake_before_call("cuEventQuery", 4, end_it_and_fail_often, &keep);
    CHECK_RESULT(gpupool_download(crowded, s.host, s.device, BYTES, kit_stream[0]), GPUPOOL_OK);
    CHECK_EQ(crowded->failure_count, 70);
    fake_hold(kit_stream[1], 0);
    memset(s.host, 0, BYTES);
    kit_host_free(s.host, BYTES);
    kit_device_free(elsewhere, 1000);
    kit_device_free(s.device, BYTES);
    kit_ring_close(crowded);
}

static void a_list_does_not_forget_its_parts(void) {
    FILE *file = tmpfile();
    int keep = 1;
    crowded = kit_ring(2 * MIB, 0, 0);
    scene s = {crowded, kit_host(BYTES), kit_device(BYTES), 0};
    gpupool_file_part parts[2] = {{s.device, 0, BYTES / 2}, {s.device + BYTES / 2, 0, BYTES / 2}};
    kit_pattern(s.host, BYTES, 7);
    CHECK_EQ(fwrite(s.host, 1, BYTES, file), BYTES);
    fflush(file);
    fake_before_call("cuMemcpyAsync", 1, end_it_and_fail_often, &keep);
    CHECK_RESULT(gpupool_upload_file_list(crowded, fileno(file), parts, 2, kit_stream[0]),
                 GPUPOOL_OK);
    CHECK_EQ(crowded->failure_count, 70);
    fclose(file);
    memset(s.host, 0, BYTES);
    kit_host_free(s.host, BYTES);
    kit_device_free(s.device, BYTES);
    kit_ring_close(crowded);
}

/* One succeeds after 65 that came later have failed. */
static void a_late_success_is_no_failure(void) {
    gpupool_ring *ring = kit_ring(MIB, 0, 0);
    scene s = {ring, kit_host(BYTES), kit_device(BYTES), 0};
    gpupool_ticket late, ticket;
    kit_pattern(s.host, BYTES, 7);
    fake_hold(kit_stream[1], 1);
    CHECK_RESULT(kit_upload_async(ring, s.device, s.host, BYTES, kit_stream[1], &late),
                 GPUPOOL_OK);
    fake_fail_call("cuMemcpyAsync", 1, 1, 0);
    for (int i = 0; i < 65; i++) {
        CHECK_RESULT(kit_upload_async(ring, s.device, s.host, BYTES, kit_stream[0], &ticket),
                     GPUPOOL_OK);
        CHECK_RESULT(gpupool_ring_wait(ring, ticket, -1), GPUPOOL_E_CUDA);
    }
    fake_fail_clear();
    fake_hold(kit_stream[1], 0);
    CHECK_RESULT(gpupool_ring_wait(ring, late, -1), GPUPOOL_OK);
    CHECK_RESULT(gpupool_ring_wait(ring, late, 0), GPUPOOL_OK);
    CHECK_RESULT(gpupool_last_result(), GPUPOOL_OK);
    kit_expect_device(s.device, BYTES, 7);
    memset(s.host, 0, BYTES);
    kit_host_free(s.host, BYTES);
    kit_device_free(s.device, BYTES);
    kit_ring_close(ring);
}

#endif

int main(void) {
    FAKE_TEST(each_call_fails_once);
    FAKE_TEST(each_call_fails_for_good);
    FAKE_TEST(each_call_fails_beside_workers);
    FAKE_TEST(each_call_fails_for_good_beside_workers);
    FAKE_TEST(done_with_pinned_memory_when_a_ticket_fails);
    FAKE_TEST(a_flight_that_fails_is_its_tickets_failure);
    FAKE_TEST(a_flight_that_fails_is_over_all_the_same);
    FAKE_TEST(a_wait_that_fails_has_not_waited);
    FAKE_TEST(a_transfer_that_fails_is_over);
    FAKE_TEST(create_fails_and_leaves_nothing);
    FAKE_TEST(questions_that_fail);
    FAKE_TEST(a_transfer_fails_in_two_ways);
    FAKE_TEST(a_transfer_fails_at_length);
    FAKE_TEST(destroy_and_trim_can_be_tried_again);
    FAKE_TEST(tickets_where_a_stream_has_stayed);
    FAKE_TEST(unpinnable_memory_is_no_failure);
    FAKE_TEST(failures_are_forgotten_in_the_end);
    FAKE_TEST(failures_out_of_order_are_forgotten);
    FAKE_TEST(late_successes_push_out_no_failure);
    FAKE_TEST(a_call_does_not_forget_its_own);
    FAKE_TEST(a_list_does_not_forget_its_parts);
    FAKE_TEST(a_late_success_is_no_failure);
    return check_finish();
}
