/* What is refused of a peer: devices that are none or out of reach, and CUDA calls about one that
   fail. What was allowed before stays allowed, and no more than that. */
// build: plain
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "peer_kit.h"

#if CHECK_FAKE

/* ---- who cannot be a peer ---- */

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

/* ---- access that is not given, or not taken back: three blocks, each in memory of its own ---- */

static void *block_of[3];

static void open_with_blocks(void) {
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    for (int i = 0; i < 3; i++) block_of[i] = kit_alloc(arena, 32 * MIB, kit_stream[0]);
}

/* The peer may use all of them, and frees them. */
static void the_peer_uses_the_blocks(void) {
    far = stream_of(1);
    for (int i = 0; i < 3; i++) kit_mark(far, block_of[i], 32 * MIB, i);
    finish_there();
    for (int i = 0; i < 3; i++) give(block_of[i], far);
    end_far();
}

static void a_driver_that_refuses_changes_nothing(void) {
    for (long n = 1; n < 5; n++) {
        open_with_blocks();
        gpupool_stats before = kit_stats(arena);
        fake_fail_call("cuMemSetAccess", n, 0, 0);
        gpupool_result result = gpupool_allow_peer(arena, 1);
        if (fake_fail_fired()) CHECK_RESULT(result, GPUPOOL_E_CUDA);
        fake_fail_clear();
        CHECK(kit_same_stats(before, kit_stats(arena)));
        CHECK_RESULT(gpupool_allow_peer(arena, 1), GPUPOOL_OK);
        the_peer_uses_the_blocks();
        kit_close(arena);
    }
}

static void succeed_again(void *unused) {
    (void)unused;
    fake_fail_clear();
}

/* CUDA refuses to take access away, and at first to give it again. */
static void a_refusal_while_access_is_given_again(void) {
    open_with_blocks();
    CHECK_RESULT(gpupool_allow_peer(arena, 1), GPUPOOL_OK);
    fake_fail_call("cuMemSetAccess", 3, 1, 0);
    fake_before_call("cuMemSetAccess", 5, succeed_again, NULL);
    CHECK_RESULT(gpupool_disallow_peer(arena, 1), GPUPOOL_E_CUDA);
    fake_fail_clear();
    the_peer_uses_the_blocks();
    kit_close(arena);
}

/* If CUDA refuses on the way the peer has its access as before. */
static void a_refusal_leaves_the_access(void) {
    for (long n = 1; n < 4; n++) {
        check_case("call %ld", n);
        open_with_blocks();
        CHECK_RESULT(gpupool_allow_peer(arena, 1), GPUPOOL_OK);
        fake_fail_call("cuMemSetAccess", n, 0, 0);
        CHECK_RESULT(gpupool_disallow_peer(arena, 1), GPUPOOL_E_CUDA);
        CHECK_EQ(fake_fail_fired(), 1);
        fake_fail_clear();
        the_peer_uses_the_blocks();
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
    CHECK_EQ(fake_fail_fired(), 1 + GPI_UNDO_TRIES); /* giving it again was refused, too */
    fake_fail_clear();
    CHECK_RESULT(gpupool_disallow_peer(arena, 1), GPUPOOL_OK);
    give(block, kit_stream[0]);
    kit_close(arena);
}

/* It is not taken while the peer's work may still run: without the wait, the peer stays one. */
static void no_wait_for_the_peer(void) {
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    CHECK_RESULT(gpupool_allow_peer(arena, 1), GPUPOOL_OK);
    fake_fail_call("cuMemFree", 1, 0, 0);
    CHECK_RESULT(gpupool_disallow_peer(arena, 1), GPUPOOL_E_CUDA);
    CHECK_EQ(fake_fail_fired(), 1);
    fake_fail_clear();
    its_only_peer_is(1);
    CHECK_RESULT(gpupool_disallow_peer(arena, 1), GPUPOOL_OK);
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
    give(block, kit_stream[0]);
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
    give(block, kit_stream[1]);
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

/* ---- the context of a peer's stream ---- */

/* Which context a stream is of is asked again where CUDA did not tell. */
static void a_context_that_was_not_told(void) {
    open_for_the_peer(GPUPOOL_SOURCE_MAPPED, 0);
    void *block = kit_alloc(arena, MIB, kit_stream[0]);
    fake_fail_call("cuStreamGetCtx", 1, 0, 0);
    CHECK_RESULT(gpupool_record_stream(arena, block, far), GPUPOOL_OK);
    CHECK_EQ(fake_fail_fired(), 1);
    fake_fail_clear();
    give(block, kit_stream[0]);
    CHECK_RESULT(gpupool_wait_stream(arena, far), GPUPOOL_OK);
    CHECK_RESULT(gpupool_wait_stream(arena, kit_stream[0]), GPUPOOL_OK);
    CHECK_EQ(kit_stats(arena).pending.now, 0);
    close_with_far();
}

/* An event of a stream of another device is made, and recorded, in that device's context. */
static void contexts_that_cannot_be_entered(void) {
    static const char *const fails[] = {"cuCtxPushCurrent", "cuCtxPopCurrent", "cuEventRecord",
                                        "cuEventRecord"};
    open_for_the_peer(GPUPOOL_SOURCE_MAPPED, 0);
    void *block = kit_alloc(arena, MIB, kit_stream[0]);
    for (size_t i = 0; i < KIT_COUNT(fails); i++) {
        fake_fail_call(fails[i], 1, 0, 0);
        if (i == 3) fake_fail_call("cuCtxPopCurrent", 1, 0, 0); /* and that fails too */
        CHECK_RESULT(gpupool_record_stream(arena, block, far), GPUPOOL_OK);
        CHECK(fake_fail_fired() > 0);
        fake_fail_clear();
        CHECK_EQ(cudaSetDevice(0), cudaSuccess); /* a context that was not popped is still there */
        CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    }
    CHECK_RESULT(gpupool_record_stream(arena, block, far), GPUPOOL_OK);
    fake_fail_call("cuCtxGetId", 3, 0, 0); /* two ask about the arena's own */
    CHECK_RESULT(gpupool_record_stream(arena, block, far), GPUPOOL_OK);
    CHECK_EQ(fake_fail_fired(), 1);
    fake_fail_clear();
    give(block, far);
    close_with_far();
}

#endif

int main(void) {
    FAKE_TEST(devices_that_are_none);
    FAKE_TEST(out_of_reach);
    FAKE_TEST(a_driver_that_refuses_changes_nothing);
    FAKE_TEST(a_refusal_leaves_the_access);
    FAKE_TEST(a_refusal_while_access_is_given_again);
    FAKE_TEST(the_first_refusal_is_told);
    FAKE_TEST(no_wait_for_the_peer);
    FAKE_TEST(several_peers);
    FAKE_TEST(a_context_that_was_not_told);
    FAKE_TEST(contexts_that_cannot_be_entered);
    return check_finish();
}
