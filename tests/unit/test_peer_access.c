/* Which devices may touch an arena's memory: a peer that is allowed may, wherever the memory lies
   and moves, and may no more once that is taken back. */
// build: plain
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "peer_kit.h"

#include <pthread.h>
#include <sched.h>

#if CHECK_FAKE

static void touched_from_device_1(gpupool_source source) {
    arena = kit_open(source);
    void *before = kit_alloc(arena, MIB, kit_stream[0]), *after;
    allow_the_peer();
    CHECK_RESULT(gpupool_allow_peer(arena, 1), GPUPOOL_OK); /* again is fine */
    after = kit_alloc(arena, 64 * MIB, kit_stream[0]);
    kit_mark(far, before, MIB, 1);
    kit_mark(far, after, 64 * MIB, 2);
    kit_expect_mark(far, before, MIB, 1);
    kit_expect_mark(far, after, 64 * MIB, 2);
    finish_there();
    give(before, far);
    give(after, far);
    CHECK_RESULT(gpupool_disallow_peer(arena, 1), GPUPOOL_OK);
    CHECK_RESULT(gpupool_disallow_peer(arena, 1), GPUPOOL_E_ARGUMENT);
    close_with_far();
}
static void mapped_memory_for_a_peer(void) { touched_from_device_1(GPUPOOL_SOURCE_MAPPED); }
static void device_memory_for_a_peer(void) { touched_from_device_1(GPUPOOL_SOURCE_DEVICE); }
static void pinned_memory_for_a_peer(void) { touched_from_device_1(GPUPOOL_SOURCE_PINNED); }

/* A kernel on far that writes there is refused. */
static void is_out_of_reach(void *block) {
    fake_quiet(1);
    fake_write(far, "stray", block, MIB, 1);
    CHECK(fake_failures() > 0);
    CHECK_EQ(cudaStreamSynchronize(far), cudaSuccess);
    fake_clear_failures();
    cudaGetLastError();
    fake_quiet(0);
}

/* What makes the tests above worth something. */
static void without_leave_a_peer_is_refused(void) {
    for (int i = 0; i < 4; i++) {
        gpupool_arena_config config = kit_config(i < 2 ? GPUPOOL_SOURCE_DEVICE
                                                       : GPUPOOL_SOURCE_MAPPED);
        config.device = i & 1;
        arena = kit_create(&config);
        cudaStream_t near = stream_of(config.device);
        far = stream_of(!config.device);
        void *block = kit_alloc(arena, MIB, near);
        is_out_of_reach(block);
        give(block, near);
        CHECK_EQ(cudaStreamDestroy(near), cudaSuccess);
        close_with_far();
    }
}

/* ---- memory behind other addresses: a stitched block, of what lies between small ones ---- */

static void *small[16];

static void *take_a_stitched_block(void) {
    for (int i = 0; i < 16; i++) small[i] = kit_alloc(arena, 4 * MIB, kit_stream[0]);
    for (int i = 0; i < 16; i += 2) give(small[i], kit_stream[0]);
    void *large = kit_alloc(arena, 30 * MIB, kit_stream[0]);
    CHECK(kit_stats(arena).stitches > 0);
    return large;
}

static void give_the_small(cudaStream_t stream) {
    for (int i = 1; i < 16; i += 2) give(small[i], stream);
}

/* Memory that moves behind other addresses is accessible there too. */
static void moved_memory_for_a_peer(void) {
    open_for_the_peer(GPUPOOL_SOURCE_MAPPED, 64 * MIB);
    void *large = take_a_stitched_block();
    if (large) kit_fill(far, large, 30 * MIB, 7);
    finish_there();
    give_the_small(kit_stream[0]);
    give(large, far);
    close_with_far();
}

/* What was allowed is taken back, from homes and stitches; the peer may be allowed again. */
static void access_is_taken_back(void) {
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 64 * MIB);
    CHECK_RESULT(gpupool_disallow_peer(arena, 1), GPUPOOL_E_ARGUMENT);
    CHECK_EQ(kit_stats(arena).host_syncs, 0); /* nothing to wait for */
    allow_the_peer();
    void *large = take_a_stitched_block();
    kit_mark(far, large, 30 * MIB, 7);
    CHECK_EQ(cudaStreamSynchronize(far), cudaSuccess);
    CHECK_RESULT(gpupool_disallow_peer(arena, 1), GPUPOOL_OK);
    CHECK_RESULT(gpupool_disallow_peer(arena, 1), GPUPOOL_E_ARGUMENT);
    kit_expect_mark(kit_stream[0], large, 30 * MIB, 7); /* the arena's own access stays */
    CHECK_EQ(cudaStreamSynchronize(kit_stream[0]), cudaSuccess);
    CHECK_EQ(fake_failures(), 0);
    is_out_of_reach(small[1]);
    is_out_of_reach(large);
    CHECK_RESULT(gpupool_allow_peer(arena, 1), GPUPOOL_OK);
    kit_mark(far, large, 30 * MIB, 8);
    kit_mark(far, small[1], 4 * MIB, 8);
    finish_there();
    give_the_small(far);
    give(large, far);
    close_with_far();
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
    for (int i = 0; i < 10; i += 2) give(block[i], kit_stream[0]);
    request.bytes = 20 * MIB;
    large = gpupool_alloc_request(arena, &request);
    CHECK_EQ(kit_stats(arena).stitches, 1);
    CHECK_RESULT(gpupool_sleep(arena, request.tag, GPUPOOL_DISCARD, NULL), GPUPOOL_OK);
    fake_reset_counters();
    CHECK_RESULT(gpupool_allow_peer(arena, 1), GPUPOOL_OK);
    CHECK_RESULT(gpupool_disallow_peer(arena, 1), GPUPOOL_OK);
    allow_the_peer();
    CHECK_EQ(fake_calls("cuMemSetAccess"), 0); /* nothing is mapped */
    CHECK_RESULT(gpupool_wake(arena, request.tag, NULL), GPUPOOL_OK);
    kit_fill(far, large, 20 * MIB, 1);
    for (int i = 1; i < 10; i += 2) kit_fill(far, block[i], 6 * MIB, 2);
    CHECK_EQ(fake_failures(), 0);
    give(large, far);
    for (int i = 1; i < 10; i += 2) give(block[i], far);
    close_with_far();
}

/* ---- how it is taken back ---- */

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

static void open_for_two_peers(size_t limit) {
    fake_devices(3);
    open_for_the_peer(GPUPOOL_SOURCE_MAPPED, limit);
    CHECK_RESULT(gpupool_allow_peer(arena, 2), GPUPOOL_OK);
}

static void taken_back_by_two(void) {
    pthread_t thread;
    open_for_two_peers(0);
    fake_before_call("cuMemFree", 1, begin_to_disallow, &thread);
    gpupool_result result = gpupool_disallow_peer(arena, 1);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK_EQ((result == GPUPOOL_OK) + (of_the_other == GPUPOOL_OK), 1);
    CHECK_EQ((result == GPUPOOL_E_ARGUMENT) + (of_the_other == GPUPOOL_E_ARGUMENT), 1);
    its_only_peer_is(2);
    close_with_far();
}

/* Of two peers the first is taken off: the other one's access stays, and is given anew. */
static void the_other_peer_stays(void) {
    open_for_two_peers(64 * MIB);
    end_far();
    far = stream_of(2);
    void *before = kit_alloc(arena, MIB, kit_stream[0]);
    CHECK_RESULT(gpupool_disallow_peer(arena, 1), GPUPOOL_OK);
    its_only_peer_is(2);
    void *after = kit_alloc(arena, 30 * MIB, kit_stream[0]);
    kit_mark(far, before, MIB, 1);
    kit_mark(far, after, 30 * MIB, 2);
    finish_there();
    fake_mode(FAKE_STEPPED);
    kit_mark(far, before, MIB, 3);
    give(before, far);
    CHECK_RESULT(gpupool_wait_all(arena), GPUPOOL_OK); /* for its work, too */
    CHECK_EQ(fake_pending(far), 0);
    fake_mode(FAKE_EAGER);
    give(after, far);
    CHECK_RESULT(gpupool_disallow_peer(arena, 1), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(gpupool_disallow_peer(arena, 2), GPUPOOL_OK);
    close_with_far();
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
    open_for_the_peer(GPUPOOL_SOURCE_MAPPED, 64 * MIB);
    void *block = kit_alloc(arena, MIB, kit_stream[0]);
    fake_mode(FAKE_STEPPED);
    kit_mark(far, block, MIB, 1);
    CHECK_RESULT(gpupool_disallow_peer(arena, 1), GPUPOOL_OK);
    CHECK_EQ(fake_pending(far), 0);
    CHECK_EQ(fake_failures(), 0);
    fake_mode(FAKE_EAGER);
    give(block, kit_stream[0]);
    close_with_far();
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

#endif

int main(void) {
    FAKE_TEST(mapped_memory_for_a_peer);
    FAKE_TEST(device_memory_for_a_peer);
    FAKE_TEST(pinned_memory_for_a_peer);
    FAKE_TEST(without_leave_a_peer_is_refused);
    FAKE_TEST(moved_memory_for_a_peer);
    FAKE_TEST(access_is_taken_back);
    FAKE_TEST(a_peer_while_a_tag_sleeps);
    FAKE_TEST(taken_back_by_two);
    FAKE_TEST(the_other_peer_stays);
    FAKE_TEST(access_by_whole_devices);
    FAKE_TEST(access_outlasts_the_peers_work);
    FAKE_TEST(closed_twice);
    return check_finish();
}
