/* An arena of device 0 whose memory device 1 may use, and streams of both devices in one arena:
   random schedules under the oracle. */
// build: plain
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "race_kit.h"

#include <pthread.h>
#include <sched.h>

#if CHECK_FAKE

#define SCHEDULES 1000

static cudaStream_t stream_of(int device) {
    cudaStream_t stream = NULL;
    CHECK_EQ(cudaSetDevice(device), cudaSuccess);
    CHECK_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    CHECK_EQ(cudaSetDevice(0), cudaSuccess);
    return stream;
}

/* ---- who may touch what ---- */

static void touched_from_device_1(gpupool_source source) {
    arena = kit_open(source);
    cudaStream_t far = stream_of(1);
    void *before = kit_alloc(arena, MIB, kit_stream[0]), *after;
    CHECK_RESULT(gpupool_allow_peer(arena, 1), GPUPOOL_OK);
    CHECK_RESULT(gpupool_allow_peer(arena, 1), GPUPOOL_OK); /* again is fine */
    after = kit_alloc(arena, 64 * MIB, kit_stream[0]);
    kit_mark(far, before, MIB, 1);
    kit_mark(far, after, 64 * MIB, 2);
    kit_expect_mark(far, before, MIB, 1);
    kit_expect_mark(far, after, 64 * MIB, 2);
    CHECK_EQ(cudaStreamSynchronize(far), cudaSuccess);
    CHECK_EQ(fake_failures(), 0);
    CHECK_RESULT(gpupool_free(arena, before, far), GPUPOOL_OK);
    CHECK_RESULT(gpupool_free(arena, after, far), GPUPOOL_OK);
    CHECK_RESULT(gpupool_disallow_peer(arena, 1), GPUPOOL_OK);
    CHECK_RESULT(gpupool_disallow_peer(arena, 1), GPUPOOL_E_ARGUMENT);
    CHECK_EQ(cudaStreamDestroy(far), cudaSuccess);
    kit_close(arena);
}
static void mapped_memory_for_a_peer(void) { touched_from_device_1(GPUPOOL_SOURCE_MAPPED); }
static void device_memory_for_a_peer(void) { touched_from_device_1(GPUPOOL_SOURCE_DEVICE); }
static void pinned_memory_for_a_peer(void) { touched_from_device_1(GPUPOOL_SOURCE_PINNED); }

/* What makes the tests above worth something. */
static void without_leave_a_peer_is_refused(void) {
    fake_quiet(1);
    for (int i = 0; i < 4; i++) {
        gpupool_arena_config config = kit_config(i < 2 ? GPUPOOL_SOURCE_DEVICE
                                                       : GPUPOOL_SOURCE_MAPPED);
        config.device = i & 1;
        arena = kit_create(&config);
        cudaStream_t near = stream_of(config.device), far = stream_of(!config.device);
        void *block = kit_alloc(arena, MIB, near);
        fake_write(far, "stray", block, MIB, 1);
        CHECK(fake_failures() > 0);
        CHECK_EQ(cudaStreamSynchronize(far), cudaSuccess);
        fake_clear_failures();
        cudaGetLastError();
        CHECK_RESULT(gpupool_free(arena, block, near), GPUPOOL_OK);
        CHECK_EQ(cudaStreamDestroy(far), cudaSuccess);
        CHECK_EQ(cudaStreamDestroy(near), cudaSuccess);
        kit_close(arena);
    }
    fake_quiet(0);
}

/* What was allowed is taken back, from homes and stitches; the peer may be allowed again. */
static void access_is_taken_back(void) {
    void *small[16], *large;
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 64 * MIB);
    CHECK_RESULT(gpupool_disallow_peer(arena, 1), GPUPOOL_E_ARGUMENT);
    CHECK_EQ(kit_stats(arena).host_syncs, 0); /* nothing to wait for */
    CHECK_RESULT(gpupool_allow_peer(arena, 1), GPUPOOL_OK);
    cudaStream_t far = stream_of(1);
    for (int i = 0; i < 16; i++) small[i] = kit_alloc(arena, 4 * MIB, kit_stream[0]);
    for (int i = 0; i < 16; i += 2)
        CHECK_RESULT(gpupool_free(arena, small[i], kit_stream[0]), GPUPOOL_OK);
    large = kit_alloc(arena, 30 * MIB, kit_stream[0]);
    kit_mark(far, large, 30 * MIB, 7);
    CHECK_EQ(cudaStreamSynchronize(far), cudaSuccess);
    CHECK_RESULT(gpupool_disallow_peer(arena, 1), GPUPOOL_OK);
    CHECK_RESULT(gpupool_disallow_peer(arena, 1), GPUPOOL_E_ARGUMENT);
    kit_expect_mark(kit_stream[0], large, 30 * MIB, 7); /* the arena's own access stays */
    CHECK_EQ(cudaStreamSynchronize(kit_stream[0]), cudaSuccess);
    CHECK_EQ(fake_failures(), 0);
    fake_quiet(1);
    fake_write(far, "stray", small[1], MIB, 1);
    CHECK(fake_failures() > 0);
    fake_clear_failures();
    fake_write(far, "stray", large, MIB, 1);
    CHECK(fake_failures() > 0);
    CHECK_EQ(cudaStreamSynchronize(far), cudaSuccess);
    fake_clear_failures();
    cudaGetLastError();
    fake_quiet(0);
    CHECK_RESULT(gpupool_allow_peer(arena, 1), GPUPOOL_OK);
    kit_mark(far, large, 30 * MIB, 8);
    kit_mark(far, small[1], 4 * MIB, 8);
    CHECK_EQ(cudaStreamSynchronize(far), cudaSuccess);
    CHECK_EQ(fake_failures(), 0);
    for (int i = 1; i < 16; i += 2)
        CHECK_RESULT(gpupool_free(arena, small[i], far), GPUPOOL_OK);
    CHECK_RESULT(gpupool_free(arena, large, far), GPUPOOL_OK);
    CHECK_EQ(cudaStreamDestroy(far), cudaSuccess);
    kit_close(arena);
}

/* An event over all streams of a device says nothing of its peers': cudaMalloc waits for them. */
static void all_streams_are_the_peers_too(void) {
    void *block;
    fake_mode(FAKE_STEPPED);
    arena = gpupool_get_default_arena(0);
    CHECK_RESULT(gpupool_allow_peer(arena, 1), GPUPOOL_OK);
    cudaStream_t far = stream_of(1);
    CHECK_RESULT(gpupool_set_limit(arena, 4 * MIB), GPUPOOL_OK);
    block = kit_alloc(arena, 4 * MIB, far);
    kit_mark(far, block, 4 * MIB, 1);
    CHECK_RESULT(gpupool_free(arena, block, far), GPUPOOL_OK);
    CHECK_EQ(gpupool_cudaMalloc(&block, 4 * MIB), cudaSuccess);
    CHECK_EQ(fake_pending(far), 0);
    kit_mark(kit_stream[0], block, 4 * MIB, 2);
    fake_run_all();
    CHECK_EQ(fake_failures(), 0);
    CHECK_EQ(gpupool_cudaFree(block), cudaSuccess);
    CHECK_EQ(cudaStreamDestroy(far), cudaSuccess);
    fake_mode(FAKE_EAGER);
    kit_close(arena);
}

/* Which context a stream is of is asked again where CUDA did not tell. */
static void a_context_that_was_not_told(void) {
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    CHECK_RESULT(gpupool_allow_peer(arena, 1), GPUPOOL_OK);
    cudaStream_t far = stream_of(1);
    void *block = kit_alloc(arena, MIB, kit_stream[0]);
    fake_fail_call("cuStreamGetCtx", 1, 0, 0);
    CHECK_RESULT(gpupool_record_stream(arena, block, far), GPUPOOL_OK);
    CHECK_EQ(fake_fail_fired(), 1);
    fake_fail_clear();
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
    CHECK_RESULT(gpupool_wait_stream(arena, far), GPUPOOL_OK);
    CHECK_RESULT(gpupool_wait_stream(arena, kit_stream[0]), GPUPOOL_OK);
    CHECK_EQ(kit_stats(arena).pending.now, 0);
    CHECK_EQ(cudaStreamDestroy(far), cudaSuccess);
    kit_close(arena);
}

/* Two threads at it: one of them takes the access away, and to the other it is no peer any more. */
static gpupool_result of_the_other;

static void *disallow_too(void *unused) {
    of_the_other = gpupool_disallow_peer(arena, 1);
    return unused;
}

static void begin_to_disallow(void *thread) {
    uint64_t halfway = 0;
    CHECK_EQ(pthread_create((pthread_t *)thread, NULL, disallow_too, NULL), 0);
    while (halfway < 2) { /* until it has seen that there is such a peer */
        gpi_host_lock(&arena->lock);
        halfway = arena->halfway;
        gpi_host_unlock(&arena->lock);
        sched_yield();
    }
}

static void taken_back_by_two(void) {
    pthread_t thread;
    fake_devices(3);
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    CHECK_RESULT(gpupool_allow_peer(arena, 1), GPUPOOL_OK);
    CHECK_RESULT(gpupool_allow_peer(arena, 2), GPUPOOL_OK);
    fake_before_call("cuMemFree", 1, begin_to_disallow, &thread);
    gpupool_result result = gpupool_disallow_peer(arena, 1);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK_EQ((result == GPUPOOL_OK) + (of_the_other == GPUPOOL_OK), 1);
    CHECK_EQ((result == GPUPOOL_E_ARGUMENT) + (of_the_other == GPUPOOL_E_ARGUMENT), 1);
    CHECK_EQ(arena->chunks.driver.peer_count, 1);
    CHECK_EQ(arena->chunks.driver.peers[0], 2);
    kit_close(arena);
}

/* Nor is it taken while the peer's work may still run: without the wait, the peer stays one. */
static void no_wait_for_the_peer(void) {
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    CHECK_RESULT(gpupool_allow_peer(arena, 1), GPUPOOL_OK);
    fake_fail_call("cuMemFree", 1, 0, 0);
    CHECK_RESULT(gpupool_disallow_peer(arena, 1), GPUPOOL_E_CUDA);
    CHECK_EQ(fake_fail_fired(), 1);
    fake_fail_clear();
    CHECK_EQ(arena->chunks.driver.peer_count, 1);
    CHECK_RESULT(gpupool_disallow_peer(arena, 1), GPUPOOL_OK);
    kit_close(arena);
}

/* If CUDA refuses on the way the peer has its access as before. */
static void a_refusal_leaves_the_access(void) {
    for (long n = 1; n < 4; n++) {
        void *block[3];
        check_case("call %ld", n);
        arena = kit_open(GPUPOOL_SOURCE_MAPPED);
        for (int i = 0; i < 3; i++) block[i] = kit_alloc(arena, 32 * MIB, kit_stream[0]);
        CHECK_RESULT(gpupool_allow_peer(arena, 1), GPUPOOL_OK);
        fake_fail_call("cuMemSetAccess", n, 0, 0);
        CHECK_RESULT(gpupool_disallow_peer(arena, 1), GPUPOOL_E_CUDA);
        CHECK_EQ(fake_fail_fired(), 1);
        fake_fail_clear();
        cudaStream_t far = stream_of(1);
        for (int i = 0; i < 3; i++) kit_mark(far, block[i], 32 * MIB, i);
        CHECK_EQ(cudaStreamSynchronize(far), cudaSuccess);
        CHECK_EQ(fake_failures(), 0);
        for (int i = 0; i < 3; i++)
            CHECK_RESULT(gpupool_free(arena, block[i], far), GPUPOOL_OK);
        CHECK_EQ(cudaStreamDestroy(far), cudaSuccess);
        CHECK_RESULT(gpupool_disallow_peer(arena, 1), GPUPOOL_OK);
        kit_close(arena);
    }
}

static void refuse_otherwise(void *unused) {
    (void)unused;
    fake_fail_call("cuMemSetAccess", 1, 1, CUDA_ERROR_INVALID_HANDLE);
}

/* And if it refuses to give the access back as well, the first refusal is what is told. */
static void the_first_refusal_is_told(void) {
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    void *block = kit_alloc(arena, MIB, kit_stream[0]);
    CHECK_RESULT(gpupool_allow_peer(arena, 1), GPUPOOL_OK);
    fake_fail_call("cuMemSetAccess", 1, 1, CUDA_ERROR_NOT_PERMITTED);
    fake_before_call("cuMemSetAccess", 2, refuse_otherwise, NULL);
    CHECK_RESULT(gpupool_disallow_peer(arena, 1), GPUPOOL_E_CUDA);
    CHECK(strstr(gpupool_last_error(), "CUDA_ERROR_NOT_PERMITTED") != NULL);
    CHECK_EQ(fake_fail_fired(), 2);
    fake_fail_clear();
    CHECK_RESULT(gpupool_disallow_peer(arena, 1), GPUPOOL_OK);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
    kit_close(arena);
}

/* Where access is by whole devices it is got once, and not again to take it back; pinned memory
   needs none. */
static void access_by_whole_devices(void) {
    for (int pinned = 0; pinned < 2; pinned++) {
        arena = kit_open(pinned ? GPUPOOL_SOURCE_PINNED : GPUPOOL_SOURCE_DEVICE);
        fake_reset_counters();
        CHECK_RESULT(gpupool_allow_peer(arena, 1), GPUPOOL_OK);
        CHECK_EQ(fake_calls("cuCtxEnablePeerAccess"), !pinned);
        CHECK_RESULT(gpupool_disallow_peer(arena, 1), GPUPOOL_OK);
        CHECK_EQ(fake_calls("cuCtxEnablePeerAccess"), !pinned);
        kit_close(arena);
    }
}

/* Not before the peer's work on the memory is done. */
static void access_outlasts_the_peers_work(void) {
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 64 * MIB);
    CHECK_RESULT(gpupool_allow_peer(arena, 1), GPUPOOL_OK);
    cudaStream_t far = stream_of(1);
    void *block = kit_alloc(arena, MIB, kit_stream[0]);
    fake_mode(FAKE_STEPPED);
    kit_mark(far, block, MIB, 1);
    CHECK_RESULT(gpupool_disallow_peer(arena, 1), GPUPOOL_OK);
    CHECK_EQ(fake_pending(far), 0);
    CHECK_EQ(fake_failures(), 0);
    fake_mode(FAKE_EAGER);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
    CHECK_EQ(cudaStreamDestroy(far), cudaSuccess);
    kit_close(arena);
}

/* Memory that moves behind other addresses is accessible there too. */
static void moved_memory_for_a_peer(void) {
    void *small[16], *large;
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 64 * MIB);
    CHECK_RESULT(gpupool_allow_peer(arena, 1), GPUPOOL_OK);
    cudaStream_t far = stream_of(1);
    for (int i = 0; i < 16; i++) small[i] = kit_alloc(arena, 4 * MIB, kit_stream[0]);
    for (int i = 0; i < 16; i += 2)
        CHECK_RESULT(gpupool_free(arena, small[i], kit_stream[0]), GPUPOOL_OK);
    large = kit_alloc(arena, 30 * MIB, kit_stream[0]);
    CHECK(kit_stats(arena).stitches > 0);
    if (large) kit_fill(far, large, 30 * MIB, 7);
    CHECK_EQ(cudaStreamSynchronize(far), cudaSuccess);
    CHECK_EQ(fake_failures(), 0);
    for (int i = 1; i < 16; i += 2)
        CHECK_RESULT(gpupool_free(arena, small[i], kit_stream[0]), GPUPOOL_OK);
    CHECK_RESULT(gpupool_free(arena, large, far), GPUPOOL_OK);
    CHECK_EQ(cudaStreamDestroy(far), cudaSuccess);
    kit_close(arena);
}

static void a_driver_that_refuses_changes_nothing(void) {
    for (long n = 1; n < 5; n++) {
        void *block[3];
        arena = kit_open(GPUPOOL_SOURCE_MAPPED);
        for (int i = 0; i < 3; i++) block[i] = kit_alloc(arena, 32 * MIB, kit_stream[0]);
        gpupool_stats before = kit_stats(arena);
        fake_fail_call("cuMemSetAccess", n, 0, 0);
        gpupool_result result = gpupool_allow_peer(arena, 1);
        if (fake_fail_fired()) CHECK_RESULT(result, GPUPOOL_E_CUDA);
        fake_fail_clear();
        CHECK(kit_same_stats(before, kit_stats(arena)));
        CHECK_RESULT(gpupool_allow_peer(arena, 1), GPUPOOL_OK);
        cudaStream_t far = stream_of(1);
        for (int i = 0; i < 3; i++) kit_mark(far, block[i], 32 * MIB, i);
        CHECK_EQ(cudaStreamSynchronize(far), cudaSuccess);
        CHECK_EQ(fake_failures(), 0);
        for (int i = 0; i < 3; i++)
            CHECK_RESULT(gpupool_free(arena, block[i], far), GPUPOOL_OK);
        CHECK_EQ(cudaStreamDestroy(far), cudaSuccess);
        kit_close(arena);
    }
}

static void devices_that_are_none(void) {
    static const int wrong[] = {-1, -2, 2, 64, 1000}; /* there are two */
    for (size_t i = 0; i < KIT_SOURCES; i++) {
        arena = kit_open(kit_sources[i].source);
        for (size_t k = 0; k < KIT_COUNT(wrong); k++)
            CHECK_RESULT(gpupool_allow_peer(arena, wrong[k]), GPUPOOL_E_ARGUMENT);
        CHECK_RESULT(gpupool_allow_peer(arena, 0), GPUPOOL_E_ARGUMENT); /* its own */
        CHECK_RESULT(gpupool_allow_peer(NULL, 1), GPUPOOL_E_ARGUMENT);
        fake_fail_call(kit_sources[i].source == GPUPOOL_SOURCE_PINNED ? "cudaGetDeviceCount"
                                                                      : "cuDeviceCanAccessPeer",
                       1, 0, 0);
        CHECK_RESULT(gpupool_allow_peer(arena, 1), GPUPOOL_E_CUDA);
        int device = -1;
        CHECK_EQ(cudaGetDevice(&device), cudaSuccess);
        CHECK_EQ(device, 0);
        CHECK_RESULT(gpupool_allow_peer(arena, 1), GPUPOOL_OK);
        kit_close(arena);
    }
}

static void out_of_reach(void) {
    fake_device_peers(0, 0);
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    CHECK_RESULT(gpupool_allow_peer(arena, 1), GPUPOOL_E_UNSUPPORTED);
    CHECK(strstr(gpupool_last_error(), "device 1 cannot reach") != NULL);
    fake_device_peers(0, 1);
    CHECK_RESULT(gpupool_allow_peer(arena, 1), GPUPOOL_OK);
    kit_close(arena);
}

/* Two peers: what cannot be made accessible to both is not handed out, and a wait that one of the
   devices refuses is none. */
static void several_peers(void) {
    fake_devices(3);
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 64 * MIB);
    CHECK_RESULT(gpupool_allow_peer(arena, 2), GPUPOOL_OK);
    CHECK_RESULT(gpupool_allow_peer(arena, 1), GPUPOOL_OK);
    CHECK_RESULT(gpupool_allow_peer(arena, 2), GPUPOOL_OK);
    CHECK_EQ(arena->chunks.driver.peer_count, 2);
    for (long n = 1; n <= 3; n++) { /* the arena's own device, and each peer */
        fake_fail_call("cuMemSetAccess", n, 0, 0);
        CHECK_RESULT(kit_why(gpupool_alloc(arena, MIB, kit_stream[0])), GPUPOOL_E_CUDA);
        CHECK_EQ(kit_reserved(arena), 0);
    }
    void *block = kit_alloc(arena, 60 * MIB, kit_stream[0]);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
    fake_fail_clear();
    fake_fail_call("cuCtxPushCurrent", 2, 1, 0); /* a peer's */
    CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK); /* nothing is known to be idle */
    CHECK_EQ(kit_stats(arena).pending.now, 60 * MIB);
    fake_fail_clear();
    fake_fail_call("cuMemFree", 1, 1, 0); /* nor here, and not the second time either */
    for (int i = 0; i < 2; i++) CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
    CHECK_EQ(kit_stats(arena).pending.now, 60 * MIB);
    fake_fail_clear();
    CHECK_EQ(cudaGetLastError(), cudaSuccess);
    block = kit_alloc(arena, 60 * MIB, kit_stream[1]); /* not to be followed: it is waited for */
    CHECK_EQ(kit_stats(arena).fence_waits, 0);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[1]), GPUPOOL_OK);
    CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
    CHECK_EQ(kit_reserved(arena), 0);
    kit_close(arena);
    arena = kit_open(GPUPOOL_SOURCE_DEVICE);
    for (int i = 0; i < 3; i++) {
        fake_fail_call(i == 2   ? "cuCtxEnablePeerAccess"
                       : i == 1 ? "cuCtxPushCurrent" : "cuDevicePrimaryCtxRetain",
                       i == 1 ? 2 : 1, 0, 0);
        CHECK_RESULT(gpupool_allow_peer(arena, 1), GPUPOOL_E_CUDA);
        fake_fail_clear();
    }
    kit_close(arena);
}

/* Of two peers the first is taken off: the other one's access stays, and is given anew. */
static void the_other_peer_stays(void) {
    fake_devices(3);
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 64 * MIB);
    CHECK_RESULT(gpupool_allow_peer(arena, 1), GPUPOOL_OK);
    CHECK_RESULT(gpupool_allow_peer(arena, 2), GPUPOOL_OK);
    cudaStream_t of_2 = stream_of(2);
    void *before = kit_alloc(arena, MIB, kit_stream[0]);
    CHECK_RESULT(gpupool_disallow_peer(arena, 1), GPUPOOL_OK);
    CHECK_EQ(arena->chunks.driver.peer_count, 1);
    CHECK_EQ(arena->chunks.driver.peers[0], 2);
    void *after = kit_alloc(arena, 30 * MIB, kit_stream[0]);
    kit_mark(of_2, before, MIB, 1);
    kit_mark(of_2, after, 30 * MIB, 2);
    CHECK_EQ(cudaStreamSynchronize(of_2), cudaSuccess);
    CHECK_EQ(fake_failures(), 0);
    fake_mode(FAKE_STEPPED);
    kit_mark(of_2, before, MIB, 3);
    CHECK_RESULT(gpupool_free(arena, before, of_2), GPUPOOL_OK);
    CHECK_RESULT(gpupool_wait_all(arena), GPUPOOL_OK); /* for its work, too */
    CHECK_EQ(fake_pending(of_2), 0);
    fake_mode(FAKE_EAGER);
    CHECK_RESULT(gpupool_free(arena, after, of_2), GPUPOOL_OK);
    CHECK_RESULT(gpupool_disallow_peer(arena, 1), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(gpupool_disallow_peer(arena, 2), GPUPOOL_OK);
    CHECK_EQ(cudaStreamDestroy(of_2), cudaSuccess);
    kit_close(arena);
}

/* What sleeps is given to a new peer when it wakes, a stitched block too. */
static void a_peer_while_a_tag_sleeps(void) {
    gpupool_tag_config config;
    gpupool_request request = kit_request(6 * MIB, kit_stream[0], 0);
    void *block[10], *large;
    memset(&config, 0, sizeof config);
    config.can_sleep = 1;
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 60 * MIB);
    CHECK_RESULT(gpupool_tag(arena, "kv", &config, &request.tag), GPUPOOL_OK);
    for (int i = 0; i < 10; i++) block[i] = gpupool_alloc_request(arena, &request);
    for (int i = 0; i < 10; i += 2)
        CHECK_RESULT(gpupool_free(arena, block[i], kit_stream[0]), GPUPOOL_OK);
    request.bytes = 20 * MIB;
    large = gpupool_alloc_request(arena, &request);
    CHECK_EQ(kit_stats(arena).stitches, 1);
    CHECK_RESULT(gpupool_sleep(arena, request.tag, GPUPOOL_DISCARD, NULL), GPUPOOL_OK);
    fake_reset_counters();
    CHECK_RESULT(gpupool_allow_peer(arena, 1), GPUPOOL_OK);
    CHECK_RESULT(gpupool_disallow_peer(arena, 1), GPUPOOL_OK);
    CHECK_RESULT(gpupool_allow_peer(arena, 1), GPUPOOL_OK);
    CHECK_EQ(fake_calls("cuMemSetAccess"), 0); /* nothing is mapped */
    CHECK_RESULT(gpupool_wake(arena, request.tag, NULL), GPUPOOL_OK);
    cudaStream_t other = stream_of(1);
    kit_fill(other, large, 20 * MIB, 1);
    for (int i = 1; i < 10; i += 2) kit_fill(other, block[i], 6 * MIB, 2);
    CHECK_EQ(fake_failures(), 0);
    CHECK_RESULT(gpupool_free(arena, large, other), GPUPOOL_OK);
    for (int i = 1; i < 10; i += 2)
        CHECK_RESULT(gpupool_free(arena, block[i], other), GPUPOOL_OK);
    CHECK_EQ(cudaStreamDestroy(other), cudaSuccess);
    kit_close(arena);
}

/* cudaFree waits for the device that the memory is of. */
static void without_a_pool_peers_are_waited_for(void) {
    arena = kit_open(GPUPOOL_SOURCE_BYPASS);
    CHECK_RESULT(gpupool_allow_peer(arena, 1), GPUPOOL_OK);
    fake_mode(FAKE_STEPPED);
    cudaStream_t other = stream_of(1);
    for (int recorded = 0; recorded < 2; recorded++) {
        void *block = kit_alloc(arena, MIB, other);
        kit_fill(other, block, MIB, 7);
        if (recorded) CHECK_RESULT(gpupool_record_stream(arena, block, other), GPUPOOL_OK);
        fake_fail_call("cuCtxPushCurrent", 2, 0, 0); /* then the chunk stays, and is tried again */
        CHECK_RESULT(gpupool_free(arena, block, recorded ? kit_stream[0] : other), GPUPOOL_OK);
        CHECK_EQ(fake_fail_fired(), 1);
        fake_fail_clear();
        CHECK_EQ(fake_failures(), 0);
        CHECK_EQ(kit_stats(arena).blocks.now, 0);
        CHECK_EQ(kit_reserved(arena), MIB);
        CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
        CHECK_EQ(kit_reserved(arena), 0);
        CHECK_EQ(fake_failures(), 0);
        CHECK_EQ(cudaStreamSynchronize(other), cudaSuccess);
    }
    CHECK_EQ(cudaStreamDestroy(other), cudaSuccess);
    kit_close(arena);
}

/* An event of a stream of another device is made, and recorded, in that device's context. */
static void contexts_that_cannot_be_entered(void) {
    static const char *const fails[] = {"cuCtxPushCurrent", "cuCtxPopCurrent", "cuEventRecord",
                                        "cuEventRecord"};
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    cudaStream_t other = stream_of(1);
    CHECK_RESULT(gpupool_allow_peer(arena, 1), GPUPOOL_OK);
    void *block = kit_alloc(arena, MIB, kit_stream[0]);
    for (size_t i = 0; i < KIT_COUNT(fails); i++) {
        fake_fail_call(fails[i], 1, 0, 0);
        if (i == 3) fake_fail_call("cuCtxPopCurrent", 1, 0, 0); /* and that fails too */
        CHECK_RESULT(gpupool_record_stream(arena, block, other), GPUPOOL_OK);
        CHECK(fake_fail_fired() > 0);
        fake_fail_clear();
        CHECK_EQ(cudaSetDevice(0), cudaSuccess); /* a context that was not popped is still there */
        CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    }
    CHECK_RESULT(gpupool_record_stream(arena, block, other), GPUPOOL_OK);
    fake_fail_call("cuCtxGetId", 3, 0, 0); /* two ask about the arena's own */
    CHECK_RESULT(gpupool_record_stream(arena, block, other), GPUPOOL_OK);
    CHECK_EQ(fake_fail_fired(), 1);
    fake_fail_clear();
    CHECK_RESULT(gpupool_free(arena, block, other), GPUPOOL_OK);
    CHECK_EQ(cudaStreamDestroy(other), cudaSuccess);
    kit_close(arena);
}

/* ---- streams of both devices ---- */

static cudaStream_t far[2];

static cudaStream_t any_stream(void) {
    uint64_t at = race_below(KIT_STREAMS + 2);
    return at < 2 ? far[at] : kit_stream[at - 2];
}

/* kit_order for streams of any device: an event is recorded on its own. */
static void order(cudaStream_t earlier, cudaStream_t later) {
    CHECK_EQ(cudaSetDevice(earlier == far[0] || earlier == far[1]), cudaSuccess);
    kit_order(earlier, later);
    CHECK_EQ(cudaSetDevice(0), cudaSuccess);
}

/* The mistake: an event over all streams of the arena's device, taken for one over all streams. */
static void both_devices(void) {
    cudaStream_t one = any_stream(), two = any_stream();
    size_t bytes = RACE_BYTES >> race_below(6);
    void *block;
    race_put(race_get(bytes, one), one);
    race_put(race_get(RACE_BYTES, two), two);
    block = race_get(bytes, one);
    if (block && race_below(2)) {
        order(one, two);
        CHECK_EQ(fake_read(two, "elsewhere", block, bytes, -1), cudaSuccess);
        CHECK_RESULT(gpupool_record_stream(arena, block, two), GPUPOOL_OK);
    }
    race_put(block, one);
    if (race_below(16) == 0) CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
    two = any_stream();
    block = race_get(RACE_BYTES, two);
    race_put(block, two);
}

static void streams_of_two_devices(gpupool_source source, size_t bytes) {
    for (int seed = 1; seed <= SCHEDULES && !fake_failures(); seed++) {
        if (seed % 100 == 1) {
            race_open(source, bytes);
            CHECK_RESULT(gpupool_allow_peer(arena, 1), GPUPOOL_OK);
            for (int i = 0; i < 2; i++) race_others[i] = far[i] = stream_of(1);
        }
        check_case("source %d, seed %d", (int)source, seed);
        race_random = (uint64_t)seed;
        both_devices();
        if (seed % 100) continue;
        CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
        kit_close(arena); /* with work of both devices still queued */
        fake_run_all();
        for (int i = 0; i < 2; i++) CHECK_EQ(cudaStreamDestroy(far[i]), cudaSuccess);
    }
}
static void two_devices_on_mapped(void) {
    streams_of_two_devices(GPUPOOL_SOURCE_MAPPED, RACE_BYTES);
}
static void two_devices_on_device(void) {
    streams_of_two_devices(GPUPOOL_SOURCE_DEVICE, RACE_BYTES);
}
static void two_devices_with_room(void) {
    streams_of_two_devices(GPUPOOL_SOURCE_MAPPED, 8 * RACE_BYTES);
}

/* Each by itself: device 1's work is queued, and nothing but a wait for all can tell of it. */
static void nothing_waits_for_the_wrong_device(void) {
    for (int way = 0; way < 4; way++) {
        check_case("way %d", way);
        race_open(GPUPOOL_SOURCE_MAPPED, 8 * MIB);
        CHECK_RESULT(gpupool_allow_peer(arena, 1), GPUPOOL_OK);
        far[0] = stream_of(1);
        void *block = kit_alloc(arena, 8 * MIB - 4096, far[0]);
        void *small = kit_alloc(arena, 512, far[0]);
        kit_fill(far[0], small, 512, 2);
        kit_fill(far[0], block, 8 * MIB - 4096, 1);
        CHECK_RESULT(gpupool_free(arena, block, far[0]), GPUPOOL_OK); /* alone: without a mark */
        CHECK_RESULT(gpupool_free(arena, small, far[0]), GPUPOOL_OK);
        if (way == 0) { /* taken */
            block = kit_alloc(arena, 8 * MIB, kit_stream[0]);
            kit_fill(kit_stream[0], block, 8 * MIB, 3);
            while (fake_step(kit_stream[0])) continue;
            CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
        } else if (way == 1) { /* trimmed */
            CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
        } else if (way == 2) { /* retired, and then taken */
            CHECK_RESULT(gpupool_retire_stream(arena, far[0]), GPUPOOL_OK);
            block = kit_alloc(arena, 8 * MIB, kit_stream[1]);
            kit_fill(kit_stream[1], block, 8 * MIB, 3);
            while (fake_step(kit_stream[1])) continue;
            CHECK_RESULT(gpupool_free(arena, block, kit_stream[1]), GPUPOOL_OK);
        } /* else destroyed */
        CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_OK);
        fake_run_all();
        CHECK_EQ(fake_failures(), 0);
        CHECK_EQ(cudaStreamDestroy(far[0]), cudaSuccess);
    }
}

/* ---- while a thread waits for both devices: what it waits for is not for others yet, though the
   event that stands for the wait is one of before, whose work is done ---- */

static int asked_for;

static void ask_for_it(void *unused) {
    gpi_request request = {.units = 2048, .align_units = 1, .by = gpi_arena_call(kit_stream[0])};
    (void)unused;
    gpi_host_lock(&arena->lock);
    request.owner = gpi_arena_owner(arena, request.by.key, 0);
    for (int is_short = 0; is_short < 2; is_short++) {
        arena->short_until = is_short ? UINT64_MAX : 0;
        CHECK(gpi_alloc_take_over(arena, &request) == NULL);
        asked_for++;
    }
    arena->short_until = 0;
    gpi_host_unlock(&arena->lock);
}

static void not_before_the_wait_is_over(void) {
    race_open(GPUPOOL_SOURCE_MAPPED, 64 * MIB);
    CHECK_RESULT(gpupool_allow_peer(arena, 1), GPUPOOL_OK);
    void *block = kit_alloc(arena, MIB, kit_stream[1]);
    CHECK_RESULT(gpupool_record_stream(arena, block, kit_stream[2]), GPUPOOL_OK);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[1]), GPUPOOL_OK);
    fake_run_all();
    CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
    block = kit_alloc(arena, MIB, kit_stream[1]);
    kit_fill(kit_stream[1], block, 512, 1);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[1]), GPUPOOL_OK);
    uint64_t waits = kit_stats(arena).host_syncs;
    asked_for = 0;
    fake_reset_counters();
    fake_before_call("cuMemFree", 1, ask_for_it, NULL);
    CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
    CHECK_EQ(asked_for, 2);
    CHECK_EQ(kit_stats(arena).host_syncs, waits + 1);
    CHECK_EQ(fake_calls("cuEventQuery"), 0); /* then it is known */
    CHECK_EQ(kit_stats(arena).pending.now, 0);
    void *live = kit_alloc(arena, MIB, kit_stream[0]); /* one of two streams, so with an event */
    block = kit_alloc(arena, 2 * MIB, kit_stream[1]);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[1]), GPUPOOL_OK);
    CHECK_RESULT(gpupool_free(arena, live, kit_stream[0]), GPUPOOL_OK);
    fake_reset_counters();
    kit_close(arena);
    CHECK_EQ(fake_calls("cuEventQuery"), 0);
}

/* Stream 0 is that of the arena's device, whichever device is current. */
static void the_default_stream_is_the_arenas(void) {
    race_open(GPUPOOL_SOURCE_MAPPED, 8 * MIB);
    kit_order(kit_stream[1], 0); /* it is there */
    for (int round = 0; round < 2; round++) {
        void *block = kit_alloc(arena, 8 * MIB, kit_stream[0]);
        kit_fill(kit_stream[0], block, 8 * MIB, 1);
        CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
        CHECK_EQ(cudaSetDevice(1), cudaSuccess);
        block = kit_alloc(arena, 8 * MIB, 0);
        CHECK_EQ(cudaSetDevice(0), cudaSuccess);
        kit_fill(0, block, 8 * MIB, 2);
        while (fake_step(0)) continue;
        CHECK_EQ(fake_failures(), 0);
        CHECK_RESULT(gpupool_free(arena, block, 0), GPUPOOL_OK);
        fake_run_all();
    }
    kit_close(arena);
}

/* ---- the driver's table ---- */

/* A table for one question has no context, so a stream's is never taken for its own. */
static void a_table_for_one_question(void) {
    gpi_driver table;
    CUcontext context = NULL;
    cudaStream_t there = stream_of(1);
    CHECK_EQ(cuStreamGetCtx(there, &context), CUDA_SUCCESS);
    memset(&table, 0, sizeof table);
    table.context = context; /* as memory may have been left */
    CHECK(gpi_driver_ask(&table)->context == NULL);
    CHECK(gpi_driver_foreign(&table, there) == context);
    CHECK_EQ(gpi_driver_device_of(&table, context), 1);
    CHECK_EQ(cudaStreamDestroy(there), cudaSuccess);
}

/* What is closed already is not released again, the peers neither. */
static void closed_twice(void) {
    gpi_driver driver;
    CHECK_RESULT(gpi_driver_open(&driver, 0), GPUPOOL_OK);
    CHECK_RESULT(gpi_driver_retain_peer(&driver, 1), GPUPOOL_OK);
    gpi_driver_end_retain(&driver, 1, GPUPOOL_OK);
    fake_reset_counters();
    for (int i = 0; i < 2; i++) {
        gpi_driver_close(&driver);
        CHECK_EQ(fake_calls("cuDevicePrimaryCtxRelease"), 2);
    }
}

/* ---- a peer that is reset: its work, streams and events are gone ---- */

/* used: by the program, before the arena's next call; it has another context then. */
static void reset_the_peer(int used) {
    CHECK_EQ(cudaSetDevice(1), cudaSuccess);
    CHECK_EQ(cudaDeviceReset(), cudaSuccess);
    CHECK_EQ(cudaSetDevice(0), cudaSuccess);
    if (used) far[0] = stream_of(1);
}

static void use_the_peer(void) {
    void *block = kit_alloc(arena, MIB, kit_stream[0]);
    CHECK_RESULT(gpupool_record_stream(arena, block, far[0]), GPUPOOL_OK);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
    CHECK_EQ(cudaStreamDestroy(far[0]), cudaSuccess);
}

static void open_for_the_peer(size_t bytes) {
    race_open(GPUPOOL_SOURCE_MAPPED, bytes);
    CHECK_RESULT(gpupool_allow_peer(arena, 1), GPUPOOL_OK);
    far[0] = stream_of(1);
}

static void events_of_a_reset_peer(void) {
    for (int way = 0; way < 6; way++) {
        check_case("way %d", way);
        open_for_the_peer(64 * MIB);
        void *block = kit_alloc(arena, MIB, kit_stream[0]);
        CHECK_RESULT(gpupool_record_stream(arena, block, far[0]), GPUPOOL_OK);
        if (way >= 2) CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
        if (way >= 4) { /* idle */
            CHECK_EQ(cudaStreamSynchronize(far[0]), cudaSuccess);
            CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
        }
        reset_the_peer(way & 1);
        if (way < 2) CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
        CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
        fake_run_all();
        CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
        CHECK_EQ(kit_stats(arena).pending.now, 0);
        if (way & 1) use_the_peer();
        kit_close(arena);
        fake_fail_clear();
    }
}

/* A wait for both devices frees something of each, of the host where the device has nothing left;
   CUDA has not taken the peer's back. */
static void leave_a_little(int of_host) {
    open_for_the_peer(64 * MIB);
    CHECK_RESULT(gpupool_free(arena, kit_alloc(arena, MIB, far[0]), far[0]), GPUPOOL_OK);
    if (of_host) fake_fail_call("cuMemAlloc", 1, 1, 0);
    fake_fail_call(of_host ? "cuMemFreeHost" : "cuMemFree", 2, 0, 0);
    CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
    CHECK(fake_fail_fired() > 0);
    fake_fail_clear();
    CHECK(kit_stats(arena).pending.now > 0);
    CHECK(arena->chunks.driver.wait_memory != NULL);
    CHECK_EQ(arena->chunks.driver.wait_memory_of_host, of_host);
}

static void what_a_wait_left_there(void) {
    for (int of_host = 0; of_host < 2; of_host++) {
        leave_a_little(of_host);
        reset_the_peer(1);
        CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
        CHECK_EQ(kit_stats(arena).pending.now, 0);
        use_the_peer();
        kit_close(arena);
        /* without a reset the next wait gives it back */
        leave_a_little(of_host);
        CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
        CHECK_EQ(kit_stats(arena).pending.now, 0);
        use_the_peer();
        kit_close(arena);
        /* a reset of the arena's own device does not take it */
        leave_a_little(of_host);
        CHECK_EQ(cudaDeviceReset(), cudaSuccess);
        for (int i = 0; i < KIT_STREAMS; i++) kit_stream[i] = NULL;
        CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_OK);
        CHECK_EQ(cudaStreamDestroy(far[0]), cudaSuccess);
    }
}

/* Nor does it end the peer's work, which is waited for. */
static void work_of_the_peer_after_a_reset(void) {
    for (int refused = 0; refused < 2; refused++) {
        open_for_the_peer(64 * MIB);
        void *block = kit_alloc(arena, MIB, far[0]);
        fake_mode(FAKE_STEPPED);
        kit_mark(far[0], block, MIB, 1);
        CHECK_EQ(cudaDeviceReset(), cudaSuccess);
        for (int i = 0; i < KIT_STREAMS; i++) kit_stream[i] = NULL;
        CHECK(fake_pending(far[0]) > 0);
        if (refused) {
            fake_fail_call("cuMemAlloc", 1, 1, 0);
            fake_fail_call("cuMemHostAlloc", 1, 1, 0); /* nothing to wait with */
            CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_E_OUT_OF_MEMORY);
            CHECK(fake_pending(far[0]) > 0);
            fake_fail_clear();
        }
        CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_OK);
        CHECK_EQ(fake_pending(far[0]), 0);
        fake_mode(FAKE_EAGER);
        CHECK_EQ(cudaStreamDestroy(far[0]), cudaSuccess);
    }
}

/* Nor does it take the peer's events: one in use, one that nothing waits for any more. */
static void what_the_peer_has_of_a_reset_arena(void) {
    for (int refused = 0; refused < 2; refused++) {
        open_for_the_peer(64 * MIB);
        void *live = kit_alloc(arena, MIB, kit_stream[0]);
        use_the_peer();
        CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
        far[0] = stream_of(1);
        CHECK_RESULT(gpupool_record_stream(arena, live, far[0]), GPUPOOL_OK);
        CHECK_RESULT(gpupool_record_stream(arena, live, kit_stream[1]), GPUPOOL_OK);
        CHECK_EQ(cudaDeviceReset(), cudaSuccess);
        for (int i = 0; i < KIT_STREAMS; i++) kit_stream[i] = NULL;
        if (refused) {
            fake_fail_call("cuEventDestroy", 1, 0, 0);
            CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_E_CUDA);
            CHECK_EQ(fake_fail_fired(), 1);
            fake_fail_clear();
        }
        CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_OK);
        CHECK_EQ(cudaStreamDestroy(far[0]), cudaSuccess);
    }
}

static void allowed_again_after_a_reset(void) {
    for (size_t i = 0; i < 2; i++) {
        check_case("source %d", (int)i);
        arena = kit_open(i ? GPUPOOL_SOURCE_DEVICE : GPUPOOL_SOURCE_MAPPED);
        CHECK_RESULT(gpupool_allow_peer(arena, 1), GPUPOOL_OK);
        void *block = kit_alloc(arena, MIB, kit_stream[0]);
        reset_the_peer(1);
        fake_reset_counters();
        CHECK_RESULT(gpupool_allow_peer(arena, 1), GPUPOOL_OK);
        CHECK_EQ(fake_calls(i ? "cuCtxEnablePeerAccess" : "cuMemSetAccess"), 1);
        CHECK_EQ(arena->chunks.driver.peer_count, 1);
        kit_fill(far[0], block, MIB, 1);
        CHECK_RESULT(gpupool_free(arena, block, far[0]), GPUPOOL_OK);
        CHECK_EQ(cudaStreamDestroy(far[0]), cudaSuccess);
        kit_close(arena);
    }
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
    config.device = 1;
    arena = kit_create(&config);
    CHECK_RESULT(gpupool_allow_peer(arena, 0), GPUPOOL_OK);
    CHECK_EQ(arena->chunks.driver.peer_count, 1);
    kit_close(arena);
}

/* The host waits for what was freed on a stream of before the reset, by the handle of a stream that
   the program got since: nothing is under way any more. */
static void a_wait_for_a_reset_peer(void) {
    open_for_the_peer(8 * MIB);
    void *other = kit_alloc(arena, MIB, kit_stream[0]);
    void *block = kit_alloc(arena, 6 * MIB, far[0]);
    fake_mode(FAKE_STEPPED);
    kit_mark(far[0], block, 6 * MIB, 1);
    arena->short_until = arena->clocks.position + 1024; /* so there is an event behind it */
    CHECK_RESULT(gpupool_free(arena, block, far[0]), GPUPOOL_OK);
    CHECK(kit_stats(arena).pending.now >= 6 * MIB);
    cudaStream_t before = far[0];
    reset_the_peer(1);
    CHECK(far[0] == before);
    CHECK_RESULT(gpupool_wait_stream(arena, far[0]), GPUPOOL_OK);
    CHECK_EQ(kit_stats(arena).pending.now, 0);
    CHECK_EQ(cudaStreamDestroy(far[0]), cudaSuccess);
    CHECK_RESULT(gpupool_free(arena, other, kit_stream[0]), GPUPOOL_OK);
    fake_mode(FAKE_EAGER);
    kit_close(arena);
}

/* The program gets a stream with a handle of before the reset, and frees on it: of the two events
   that there were, one is made anew, and what lay behind the other one has ended. */
static void a_handle_of_before_the_reset(void) {
    void *block[3];
    open_for_the_peer(64 * MIB);
    void *other = kit_alloc(arena, MIB, kit_stream[0]);
    fake_mode(FAKE_STEPPED);
    arena->short_until = arena->clocks.position + 1024;
    for (int i = 0; i < 3; i++) block[i] = kit_alloc(arena, 6 * MIB, far[0]);
    for (int i = 0; i < 2; i++) {
        kit_mark(far[0], block[i], 6 * MIB, 1);
        CHECK_RESULT(gpupool_free(arena, block[i], far[0]), GPUPOOL_OK);
    }
    cudaStream_t before = far[0];
    reset_the_peer(1);
    CHECK(far[0] == before);
    kit_mark(far[0], block[2], 6 * MIB, 2);
    CHECK_RESULT(gpupool_free(arena, block[2], far[0]), GPUPOOL_OK);
    uint64_t pending = kit_stats(arena).pending.now;
    CHECK_RESULT(gpupool_trim(arena, SIZE_MAX, NULL), GPUPOOL_OK);
    CHECK_EQ(kit_stats(arena).pending.now, pending - 6 * MIB); /* two are behind the new event */
    fake_run_all();
    CHECK_RESULT(gpupool_trim(arena, SIZE_MAX, NULL), GPUPOOL_OK);
    CHECK_EQ(kit_stats(arena).pending.now, 0);
    fake_mode(FAKE_EAGER);
    CHECK_EQ(cudaStreamDestroy(far[0]), cudaSuccess);
    CHECK_RESULT(gpupool_free(arena, other, kit_stream[0]), GPUPOOL_OK);
    kit_close(arena);
}

/* What the peer's stream has freed lies behind both of its marks, of which a question asks. */
static void a_question_about_the_peers_work(void) {
    gpupool_verdict why;
    void *block[2];
    open_for_the_peer(64 * MIB);
    void *other = kit_alloc(arena, 2 * MIB, kit_stream[0]);
    fake_mode(FAKE_STEPPED);
    for (int i = 0; i < 2; i++) block[i] = kit_alloc(arena, 6 * MIB, far[0]);
    for (int i = 0; i < 2; i++) {
        kit_mark(far[0], block[i], 6 * MIB, 1);
        CHECK_RESULT(gpupool_free(arena, block[i], far[0]), GPUPOOL_OK);
    }
    const gpi_clock *clock = &gpi_clock_find(&arena->clocks, gpi_clock_key(far[0]))->clock;
    CHECK_EQ(clock->marks[1].at, clock->issued);
    for (int done = 0; done < 2; done++) {
        if (done) fake_run(far[0]);
        CHECK(!kit_fits(arena, GIB, &why));
        CHECK_EQ(why.pending_bytes, done ? 0 : 12 * MIB);
    }
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    fake_mode(FAKE_EAGER);
    CHECK_EQ(cudaStreamDestroy(far[0]), cudaSuccess);
    CHECK_RESULT(gpupool_free(arena, other, kit_stream[0]), GPUPOOL_OK);
    kit_close(arena);
}

/* Another stream wants what a stream of the peer has freed behind an event: at once, at the limit,
   or past a waiting block whose work is not done. */
static void memory_of_a_reset_peer(void) {
    for (int way = 0; way < 3; way++) {
        check_case("way %d", way);
        open_for_the_peer(8 * MIB);
        void *waiting = kit_alloc(arena, 2 * MIB, kit_stream[0]);
        void *block = kit_alloc(arena, 6 * MIB, way < 2 ? far[0] : kit_stream[0]);
        if (way == 2) {
            kit_fill(kit_stream[1], waiting, 512, 1);
            CHECK_RESULT(gpupool_record_stream(arena, waiting, kit_stream[1]), GPUPOOL_OK);
            CHECK_RESULT(gpupool_free(arena, waiting, kit_stream[0]), GPUPOOL_OK);
            CHECK_RESULT(gpupool_record_stream(arena, block, far[0]), GPUPOOL_OK);
            CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
        } else {
            if (way == 1) arena->short_until = arena->clocks.position + 1024;
            CHECK_RESULT(gpupool_free(arena, block, far[0]), GPUPOOL_OK);
        }
        reset_the_peer(0);
        block = kit_alloc(arena, 6 * MIB, kit_stream[0]);
        CHECK_EQ(kit_stats(arena).host_syncs, 0);
        CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
        if (way < 2) CHECK_RESULT(gpupool_free(arena, waiting, kit_stream[0]), GPUPOOL_OK);
        kit_close(arena);
        fake_run_all();
        CHECK_EQ(fake_failures(), 0);
    }
}

#endif

int main(void) {
    FAKE_TEST(mapped_memory_for_a_peer);
    FAKE_TEST(device_memory_for_a_peer);
    FAKE_TEST(pinned_memory_for_a_peer);
    FAKE_TEST(without_leave_a_peer_is_refused);
    FAKE_TEST(access_is_taken_back);
    FAKE_TEST(a_context_that_was_not_told);
    FAKE_TEST(all_streams_are_the_peers_too);
    FAKE_TEST(taken_back_by_two);
    FAKE_TEST(no_wait_for_the_peer);
    FAKE_TEST(a_refusal_leaves_the_access);
    FAKE_TEST(the_first_refusal_is_told);
    FAKE_TEST(access_by_whole_devices);
    FAKE_TEST(access_outlasts_the_peers_work);
    FAKE_TEST(moved_memory_for_a_peer);
    FAKE_TEST(a_driver_that_refuses_changes_nothing);
    FAKE_TEST(devices_that_are_none);
    FAKE_TEST(out_of_reach);
    FAKE_TEST(several_peers);
    FAKE_TEST(the_other_peer_stays);
    FAKE_TEST(a_peer_while_a_tag_sleeps);
    FAKE_TEST(without_a_pool_peers_are_waited_for);
    FAKE_TEST(contexts_that_cannot_be_entered);
    FAKE_TEST(two_devices_on_mapped);
    FAKE_TEST(two_devices_on_device);
    FAKE_TEST(two_devices_with_room);
    FAKE_TEST(nothing_waits_for_the_wrong_device);
    FAKE_TEST(not_before_the_wait_is_over);
    FAKE_TEST(the_default_stream_is_the_arenas);
    FAKE_TEST(a_table_for_one_question);
    FAKE_TEST(closed_twice);
    FAKE_TEST(events_of_a_reset_peer);
    FAKE_TEST(what_a_wait_left_there);
    FAKE_TEST(work_of_the_peer_after_a_reset);
    FAKE_TEST(what_the_peer_has_of_a_reset_arena);
    FAKE_TEST(allowed_again_after_a_reset);
    FAKE_TEST(a_wait_for_a_reset_peer);
    FAKE_TEST(a_handle_of_before_the_reset);
    FAKE_TEST(a_question_about_the_peers_work);
    FAKE_TEST(memory_of_a_reset_peer);
    return check_finish();
}
