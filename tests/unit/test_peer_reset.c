/* A peer that is reset: its work, streams and events are gone, its leave to use the memory too. And
   the arena's own device, whose reset ends nothing of the peer's. */
// build: plain
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "peer_kit.h"

#if CHECK_FAKE

/* used: by the program, before the arena's next call; it has another context then. */
static void reset_the_peer(int used) {
    CHECK_EQ(cudaSetDevice(1), cudaSuccess);
    CHECK_EQ(cudaDeviceReset(), cudaSuccess);
    CHECK_EQ(cudaSetDevice(0), cudaSuccess);
    if (used) far = stream_of(1);
}

static void reset_the_arenas_device(void) {
    CHECK_EQ(cudaDeviceReset(), cudaSuccess);
    for (int i = 0; i < KIT_STREAMS; i++) kit_stream[i] = NULL;
}

static void use_the_peer(void) {
    void *block = kit_alloc(arena, MIB, kit_stream[0]);
    CHECK_RESULT(gpupool_record_stream(arena, block, far), GPUPOOL_OK);
    give(block, kit_stream[0]);
    end_far();
}

static void all_is_done_after_a_trim(size_t keep) {
    CHECK_RESULT(gpupool_trim(arena, keep, NULL), GPUPOOL_OK);
    CHECK_EQ(kit_stats(arena).pending.now, 0);
}

/* ---- what the arena had there ---- */

static void events_of_a_reset_peer(void) {
    for (int way = 0; way < 6; way++) {
        check_case("way %d", way);
        open_stepped_for_the_peer(64 * MIB);
        void *block = kit_alloc(arena, MIB, kit_stream[0]);
        CHECK_RESULT(gpupool_record_stream(arena, block, far), GPUPOOL_OK);
        if (way >= 2) give(block, kit_stream[0]);
        if (way >= 4) { /* idle */
            CHECK_EQ(cudaStreamSynchronize(far), cudaSuccess);
            CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
        }
        reset_the_peer(way & 1);
        if (way < 2) give(block, kit_stream[0]);
        CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
        fake_run_all();
        all_is_done_after_a_trim(0);
        if (way & 1) use_the_peer();
        kit_close(arena);
        fake_fail_clear();
    }
}

/* A wait for both devices frees something of each, of the host where the device has nothing left;
   CUDA has not taken the peer's back. */
static void leave_a_little(int of_host) {
    open_stepped_for_the_peer(64 * MIB);
    give(kit_alloc(arena, MIB, far), far);
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
        for (int reset = 1; reset >= 0; reset--) { /* without one the next wait gives it back */
            leave_a_little(of_host);
            if (reset) reset_the_peer(1);
            all_is_done_after_a_trim(0);
            use_the_peer();
            kit_close(arena);
        }
        leave_a_little(of_host);
        reset_the_arenas_device(); /* this does not take it */
        CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_OK);
        end_far();
    }
}

/* Nor does that end the peer's work, which is waited for. */
static void work_of_the_peer_after_a_reset(void) {
    for (int refused = 0; refused < 2; refused++) {
        open_stepped_for_the_peer(64 * MIB);
        void *block = kit_alloc(arena, MIB, far);
        kit_mark(far, block, MIB, 1);
        reset_the_arenas_device();
        CHECK(fake_pending(far) > 0);
        if (refused) {
            fake_fail_call("cuMemAlloc", 1, 1, 0);
            fake_fail_call("cuMemHostAlloc", 1, 1, 0); /* nothing to wait with */
            CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_E_OUT_OF_MEMORY);
            CHECK(fake_pending(far) > 0);
            fake_fail_clear();
        }
        CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_OK);
        CHECK_EQ(fake_pending(far), 0);
        fake_mode(FAKE_EAGER);
        end_far();
    }
}

/* Nor does it take the peer's events: one in use, one that nothing waits for any more. */
static void what_the_peer_has_of_a_reset_arena(void) {
    for (int refused = 0; refused < 2; refused++) {
        open_stepped_for_the_peer(64 * MIB);
        void *live = kit_alloc(arena, MIB, kit_stream[0]);
        use_the_peer();
        CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
        far = stream_of(1);
        CHECK_RESULT(gpupool_record_stream(arena, live, far), GPUPOOL_OK);
        CHECK_RESULT(gpupool_record_stream(arena, live, kit_stream[1]), GPUPOOL_OK);
        reset_the_arenas_device();
        if (refused) {
            fake_fail_call("cuEventDestroy", 1, 0, 0);
            CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_E_CUDA);
            CHECK_EQ(fake_fail_fired(), 1);
            fake_fail_clear();
        }
        CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_OK);
        end_far();
    }
}

/* ---- what it has after the reset ---- */

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
        its_only_peer_is(1);
        kit_fill(far, block, MIB, 1);
        give(block, far);
        close_with_far();
    }
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
    config.device = 1;
    arena = kit_create(&config);
    CHECK_RESULT(gpupool_allow_peer(arena, 0), GPUPOOL_OK);
    its_only_peer_is(0);
    kit_close(arena);
}

/* Beside a block of another stream, so that a free on far is behind a mark. */
static void *beside;

static void open_beside(size_t bytes, size_t limit) {
    open_stepped_for_the_peer(limit);
    beside = kit_alloc(arena, bytes, kit_stream[0]);
}

static void close_beside(void) {
    fake_mode(FAKE_EAGER);
    give(beside, kit_stream[0]);
    close_with_far();
}

static void use_and_free_there(void *block) {
    kit_mark(far, block, 6 * MIB, 1);
    give(block, far);
}

/* The program gets a stream with the handle that far had. */
static void reset_and_get_the_handle_again(void) {
    cudaStream_t before = far;
    reset_the_peer(1);
    CHECK(far == before);
}

/* The host waits for what was freed on a stream of before the reset, by the handle of a stream that
   the program got since: nothing is under way any more. */
static void a_wait_for_a_reset_peer(void) {
    open_beside(MIB, 8 * MIB);
    void *block = kit_alloc(arena, 6 * MIB, far);
    arena->short_until = arena->clocks.position + 1024; /* so there is an event behind it */
    use_and_free_there(block);
    CHECK(kit_stats(arena).pending.now >= 6 * MIB);
    reset_and_get_the_handle_again();
    CHECK_RESULT(gpupool_wait_stream(arena, far), GPUPOOL_OK);
    CHECK_EQ(kit_stats(arena).pending.now, 0);
    close_beside();
}

/* The program gets a stream with a handle of before the reset, and frees on it: of the two events
   that there were, one is made anew, and what lay behind the other one has ended. */
static void a_handle_of_before_the_reset(void) {
    void *block[3];
    open_beside(MIB, 64 * MIB);
    arena->short_until = arena->clocks.position + 1024;
    for (int i = 0; i < 3; i++) block[i] = kit_alloc(arena, 6 * MIB, far);
    for (int i = 0; i < 2; i++) use_and_free_there(block[i]);
    reset_and_get_the_handle_again();
    use_and_free_there(block[2]);
    uint64_t pending = kit_stats(arena).pending.now;
    CHECK_RESULT(gpupool_trim(arena, SIZE_MAX, NULL), GPUPOOL_OK);
    CHECK_EQ(kit_stats(arena).pending.now, pending - 6 * MIB); /* two are behind the new event */
    fake_run_all();
    all_is_done_after_a_trim(SIZE_MAX);
    close_beside();
}

/* What the peer's stream has freed lies behind both of its marks, of which a question asks. */
static void a_question_about_the_peers_work(void) {
    gpupool_verdict why;
    void *block[2];
    open_beside(2 * MIB, 64 * MIB);
    for (int i = 0; i < 2; i++) block[i] = kit_alloc(arena, 6 * MIB, far);
    for (int i = 0; i < 2; i++) use_and_free_there(block[i]);
    const gpi_clock *clock = &gpi_clock_find(&arena->clocks, gpi_clock_key(far))->clock;
    CHECK_EQ(clock->marks[1].at, clock->issued);
    for (int done = 0; done < 2; done++) {
        if (done) fake_run(far);
        CHECK(!kit_fits(arena, GIB, &why));
        CHECK_EQ(why.pending_bytes, done ? 0 : 12 * MIB);
    }
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    close_beside();
}

/* Another stream wants what a stream of the peer has freed behind an event: at once, at the limit,
   or past a waiting block whose work is not done. */
static void memory_of_a_reset_peer(void) {
    for (int way = 0; way < 3; way++) {
        check_case("way %d", way);
        open_stepped_for_the_peer(8 * MIB);
        void *waiting = kit_alloc(arena, 2 * MIB, kit_stream[0]);
        void *block = kit_alloc(arena, 6 * MIB, way < 2 ? far : kit_stream[0]);
        if (way == 2) {
            kit_fill(kit_stream[1], waiting, 512, 1);
            CHECK_RESULT(gpupool_record_stream(arena, waiting, kit_stream[1]), GPUPOOL_OK);
            give(waiting, kit_stream[0]);
            CHECK_RESULT(gpupool_record_stream(arena, block, far), GPUPOOL_OK);
            give(block, kit_stream[0]);
        } else {
            if (way == 1) arena->short_until = arena->clocks.position + 1024;
            give(block, far);
        }
        reset_the_peer(0);
        block = kit_alloc(arena, 6 * MIB, kit_stream[0]);
        CHECK_EQ(kit_stats(arena).host_syncs, 0);
        give(block, kit_stream[0]);
        if (way < 2) give(waiting, kit_stream[0]);
        kit_close(arena);
        fake_run_all();
        CHECK_EQ(fake_failures(), 0);
    }
}

#endif

int main(void) {
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
