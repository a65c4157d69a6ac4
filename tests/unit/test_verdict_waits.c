/* Whose work a verdict says to wait for: default streams by name, one of two that use a block, what
   was freed for all of the device; not what a graph keeps, which no wait brings back, nor what was
   seen to be done before. */
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "verdict_kit.h"
#include "arena_scene.h"

#if CHECK_FAKE

/* As if full, and all of it stream 1's: a block of 40 MiB, which is to be waited for, and one of
   20. The first alone is had by a wait on the device; for more than that the host must wait. */
#define BEYOND (44 * MIB)

static void *open_full(void **rest) {
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 64 * MIB);
    void *block = get(40 * MIB, 1);
    *rest = get(20 * MIB, 1);
    fake_mode(FAKE_STEPPED);
    return block;
}

/* ---- streams ---- */

static void default_streams_are_named(void) {
    static const char *const words[] = {"the default stream", "a thread's default stream"};
    cudaStream_t streams[] = {cudaStreamLegacy, cudaStreamPerThread};
    for (size_t i = 0; i < 2; i++) {
        void *rest, *block = open_full(&rest);
        kit_order(kit_stream[1], streams[i]);
        use_on(block, streams[i]);
        put(block, 1);
        fake_run(kit_stream[1]);
        gpupool_verdict v = would_not_fit(arena, BEYOND, GPUPOOL_CAUSE_PENDING);
        CHECK_EQ(v.pending_streams, 1);
        CHECK(v.pending_stream == streams[i]);
        says(&v, words[i]);
        finish_with(rest, 1);
    }
}

/* Neither alone is enough, until one of them is done; nor is the default stream. */
static void two_streams_at_one_block(void) {
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 64 * MIB);
    void *first = get(40 * MIB, 1);
    fake_mode(FAKE_STEPPED);
    use(first, 2);
    use_on(first, cudaStreamLegacy);
    put(first, 1);
    fake_run(kit_stream[1]);
    gpupool_verdict both = would_not_fit(arena, 64 * MIB, GPUPOOL_CAUSE_PENDING);
    CHECK_EQ(both.pending_streams, 2);
    CHECK(both.pending_stream == NULL);
    finish();
    for (int done = 2; done <= 3; done++) {
        void *rest, *block = open_full(&rest);
        use(block, 2);
        use(block, 3);
        put(block, 1);
        fake_run(kit_stream[1]);
        gpupool_verdict v = would_not_fit(arena, BEYOND, GPUPOOL_CAUSE_PENDING);
        CHECK_EQ(v.pending_streams, 2);
        CHECK(v.pending_stream == NULL);
        fake_run(kit_stream[done]);
        v = would_not_fit(arena, BEYOND, GPUPOOL_CAUSE_PENDING);
        CHECK_EQ(v.pending_streams, 1);
        CHECK(v.pending_stream == kit_stream[5 - done]);
        finish_with(rest, 1);
    }
}

/* Streams are counted, not blocks, up to a number that is as good as all. */
static void blocks_that_the_same_streams_use(void) {
    cudaStream_t streams[20];
    void *block[2];
    for (int many = 0; many < 2; many++) {
        int count = many ? 20 : 2;
        arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 64 * MIB);
        for (int i = 0; i < 2; i++) block[i] = get(32 * MIB, 1);
        fake_mode(FAKE_STEPPED);
        for (int i = 0; i < count; i++) {
            CHECK_EQ(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking), cudaSuccess);
            for (int k = 0; k < 2; k++) use_on(block[k], streams[i]);
        }
        for (int i = 0; i < 2; i++) put(block[i], 1);
        fake_run(kit_stream[1]);
        gpupool_verdict v = would_not_fit(arena, 48 * MIB, GPUPOOL_CAUSE_PENDING);
        CHECK_EQ(v.pending_streams, many ? 0 : 2);
        says(&v, many ? "all work in flight on the device" : "the work in flight on 2 streams");
        fake_mode(FAKE_EAGER);
        fits(arena, 48 * MIB);
        for (int i = 0; i < count; i++) CHECK_EQ(cudaStreamDestroy(streams[i]), cudaSuccess);
        kit_close(arena);
    }
}

/* Freed for all streams, as by cudaFree, beside what one stream has freed: for a block of both, it
   is the device that has to be waited for, be that the default stream, too. */
static void what_was_freed_for_all_waits_for_the_device(void) {
    cudaStream_t streams[] = {kit_stream[1], cudaStreamLegacy};
    fake_device_vmm(0, 0); /* chunks that have to go for a larger one */
    for (int k = 0; k < 2; k++) {
        void *block[2] = {NULL, NULL};
        check_case("stream %d", k);
        fake_mode(FAKE_STEPPED);
        arena = gpupool_get_default_arena(0);
        CHECK_RESULT(gpupool_set_limit(arena, 64 * MIB), GPUPOOL_OK);
        for (int i = 0; i < 2; i++) {
            CHECK_EQ(gpupool_cudaMalloc(&block[i], 32 * MIB), cudaSuccess);
            kit_mark(i ? streams[k] : kit_stream[0], block[i], 32 * MIB, i);
        }
        CHECK_EQ(gpupool_cudaFree(block[0]), cudaSuccess);
        put_on(block[1], streams[k]);
        gpupool_verdict v = would_not_fit(arena, 64 * MIB, GPUPOOL_CAUSE_PENDING);
        CHECK_EQ(v.pending_streams, 0);
        says(&v, "all work in flight on the device");
        fake_run_all();
        fits(arena, 64 * MIB);
        finish();
    }
}

/* However many blocks a stream is at, whether to wait for it is found out once. */
static void a_stream_is_tried_once(void) {
    enum { BLOCKS = 300 };
    void *block[BLOCKS];
    gpupool_verdict verdict;
    gpi_scene scene;
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 64 * MIB);
    for (int i = 0; i < BLOCKS; i++) block[i] = get(64 * KIB, 0);
    void *rest = get(64 * MIB - BLOCKS * 64 * KIB, 0);
    fake_mode(FAKE_STEPPED);
    for (int i = 0; i < BLOCKS; i++) {
        use(block[i], 1 + i % 2);
        put(block[i], 0);
    }
    /* of all that use blocks, and of what lies behind no mark: all of the device's work */
    CHECK_EQ(would_not_fit(arena, 8 * MIB, GPUPOOL_CAUSE_PENDING).pending_streams, 0);
    for (int late = 0; late < 2; late++) {
        gpi_request request = {.bytes = 8 * MIB, .units = 8 * MIB / 512, .align_units = 1};
        gpi_siblings siblings = {.reserved_bytes = 0};
        gpi_host_mutex_lock(&arena->growing);
        gpi_verdict_begin(arena, &request, &siblings, &verdict, &scene);
        scene.visits = GPI_VISITS_MOST;
        CHECK(gpi_verdict_wait_would_do(&scene, 0));
        scene.visits = GPI_VISITS_MOST + 1; /* it has taken long enough: none is tried */
        CHECK(!gpi_verdict_wait_would_do(&scene, 0));
        if (!late) scene.visits = 0;
        gpi_verdict_judge(&verdict, &scene);
        gpi_verdict_end(&scene);
        gpi_host_mutex_unlock(&arena->growing);
        if (!late) CHECK(scene.visits < 20 * BLOCKS);
    }
    CHECK_EQ(verdict.pending_streams, 0);
    finish_with(rest, 0);
}

/* ---- what was seen before ---- */

/* A question saw all work done. What a cache got since is not known to be, and counts as pending in
   a verdict, as it does elsewhere. */
static void seen_before_the_latest_work(void) {
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 64 * MIB);
    void *block = get(4096, 1);
    put(block, 1);
    CHECK_EQ(kit_stats(arena).pending.now, 4096);
    CHECK(kit_fits(arena, MIB, NULL));
    CHECK(get(4096, 1) == block);
    fake_mode(FAKE_STEPPED);
    kit_fill(kit_stream[1], block, 4096, 1);
    put(block, 1);
    gpupool_verdict v = refuses_on(arena, 100 * MIB, kit_stream[2], GPUPOOL_CAUSE_LIMIT);
    CHECK_EQ(kit_stats(arena).pending.now, 4096);
    CHECK_EQ(v.pending_bytes, 4096);
    finish();
}

/* Where CUDA does not tell a request what is done, its verdict does not go by what a question
   before has seen. Pinned memory, so that no wait on the device would do. */
static void what_was_seen_before_counts_no_more(void) {
    gpupool_verdict v;
    arena = kit_open_limited(GPUPOOL_SOURCE_PINNED, 8 * MIB);
    put(get(4096, 0), 0);
    put(get(6 * MIB, 1), 1);
    CHECK(kit_fits(arena, 6 * MIB, NULL));
    fake_fail_call("cuEventQuery", 1, 1, 0);
    CHECK(!kit_fits(arena, 64 * MIB, &v)); /* nor does the next question */
    CHECK_EQ(v.pending_bytes, 6 * MIB);
    CHECK_RESULT(kit_why(kit_alloc_as(arena, 6 * MIB, kit_stream[0], GPUPOOL_NO_WAIT)),
                 GPUPOOL_E_OUT_OF_MEMORY);
    fake_fail_clear();
    CHECK_RESULT(gpupool_last_verdict(&v), GPUPOOL_OK);
    CHECK_EQ(v.cause, GPUPOOL_CAUSE_PENDING);
    CHECK_EQ(v.pending_streams, 1);
    CHECK(v.pending_stream == kit_stream[1]);
    put(get(6 * MIB, 0), 0);
    kit_close(arena);
}

/* Nor what it has seen by an event over all streams: the last block is behind no other. */
static void what_was_seen_of_all_counts_no_more(void) {
    gpupool_verdict v;
    void *block[3];
    arena = kit_open_limited(GPUPOOL_SOURCE_PINNED, 8 * MIB);
    put(get(4096, 0), 0);
    put(get(6 * MIB, 1), 1);
    CHECK_RESULT(gpupool_wait_all(arena), GPUPOOL_OK);
    for (int i = 0; i < 3; i++) block[i] = get(2 * MIB, 1);
    fake_mode(FAKE_STEPPED);
    for (int i = 0; i < 3; i++) put(block[i], 1);
    fake_mode(FAKE_EAGER);
    CHECK(kit_fits(arena, 6 * MIB, NULL));
    CHECK(arena->clocks.seen > 0);
    fake_fail_call("cuEventQuery", 1, 1, 0);
    CHECK_RESULT(kit_why(kit_alloc_as(arena, 6 * MIB, kit_stream[0], GPUPOOL_NO_WAIT)),
                 GPUPOOL_E_OUT_OF_MEMORY);
    fake_fail_clear();
    CHECK_RESULT(gpupool_last_verdict(&v), GPUPOOL_OK);
    CHECK_EQ(v.cause, GPUPOOL_CAUSE_PENDING);
    CHECK(v.pending_bytes >= 6 * MIB);
    put(get(6 * MIB, 0), 0);
    kit_close(arena);
}

/* ---- what a graph keeps ---- */

/* Neither waiting nor in the graph's free lists is it to be had by others. */
static void what_a_graph_keeps_does_not_fit(void) {
    gpupool_capture *scope = NULL;
    gpupool_verdict v;
    void *rest, *block = open_full(&rest);
    use(block, 2);
    CHECK_RESULT(gpupool_begin_capture(arena, kit_stream[1], &scope), GPUPOOL_OK);
    put(block, 1);
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(kit_fits(arena, 40 * MIB, &v), 0);
        CHECK(v.cause != GPUPOOL_CAUSE_PENDING && v.largest_block_bytes < 40 * MIB);
        CHECK_RESULT(kit_why(gpupool_alloc(arena, 40 * MIB, kit_stream[3])),
                     GPUPOOL_E_OUT_OF_MEMORY);
        fake_mode(FAKE_EAGER);
    }
    CHECK_RESULT(gpupool_release_capture(scope), GPUPOOL_OK);
    fits(arena, 40 * MIB);
    put(rest, 1);
    kit_close(arena);
}

/* What an open scope has freed is kept, though the scope may have it again. */
static void an_open_scope_keeps_what_it_freed(void) {
    gpupool_capture *scope;
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 32 * MIB);
    CHECK_RESULT(gpupool_begin_capture(arena, kit_stream[0], &scope), GPUPOOL_OK);
    put(get(4 * MIB, 0), 0);
    gpupool_verdict v = would_not_fit(arena, 30 * MIB, GPUPOOL_CAUSE_LIMIT);
    CHECK_EQ(v.kept_bytes, 4 * MIB);
    void *live = get(20 * MIB, 1); /* what is left for others is 8 MiB, and not in fragments */
    CHECK_EQ(would_not_fit(arena, 12 * MIB, GPUPOOL_CAUSE_LIMIT).kept_bytes, 4 * MIB);
    put(live, 1);
    CHECK_RESULT(gpupool_release_capture(scope), GPUPOOL_OK);
    kit_close(arena);
}

/* The work of two streams is to be waited for, but not the graph. */
static void two_are_waited_for(size_t bytes, gpupool_capture *scope) {
    gpupool_verdict v = would_not_fit(arena, bytes, GPUPOOL_CAUSE_PENDING);
    CHECK_EQ(v.pending_streams, 2);
    fake_mode(FAKE_EAGER);
    fits(arena, bytes);
    CHECK_RESULT(gpupool_release_capture(scope), GPUPOOL_OK);
    kit_close(arena);
}

/* Two blocks that the same stream is at, one of them a graph's: only the other is waited for. */
static void a_graphs_block_beside_one_to_wait_for(void) {
    gpupool_capture *scope = NULL;
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 64 * MIB);
    void *kept = get(20 * MIB, 1), *block = get(40 * MIB, 0);
    fake_mode(FAKE_STEPPED);
    use(kept, 2);
    use(block, 2);
    use(block, 3);
    CHECK_RESULT(gpupool_begin_capture(arena, kit_stream[1], &scope), GPUPOOL_OK);
    put(kept, 1);
    put(block, 0);
    fake_run(kit_stream[0]);
    two_are_waited_for(BEYOND, scope);
}

static void two_streams_beside_a_graph(void) {
    gpupool_capture *scope = NULL;
    void *blocks[3];
    arena = kit_open_unstitched(64 * MIB);
    for (int i = 0; i < 3; i++) blocks[i] = get((i ? 20 : 16) * MIB, i + 1);
    fake_mode(FAKE_STEPPED);
    CHECK_RESULT(gpupool_begin_capture(arena, kit_stream[1], &scope), GPUPOOL_OK);
    for (int i = 0; i < 3; i++) {
        kit_mark(kit_stream[i + 1], blocks[i], 16 * MIB, 1);
        put(blocks[i], i + 1);
    }
    two_are_waited_for(36 * MIB, scope);
}
#endif

int main(void) {
    FAKE_TEST(default_streams_are_named);
    FAKE_TEST(two_streams_at_one_block);
    FAKE_TEST(blocks_that_the_same_streams_use);
    FAKE_TEST(what_was_freed_for_all_waits_for_the_device);
    FAKE_TEST(a_stream_is_tried_once);
    FAKE_TEST(seen_before_the_latest_work);
    FAKE_TEST(what_was_seen_before_counts_no_more);
    FAKE_TEST(what_was_seen_of_all_counts_no_more);
    FAKE_TEST(what_a_graph_keeps_does_not_fit);
    FAKE_TEST(an_open_scope_keeps_what_it_freed);
    FAKE_TEST(a_graphs_block_beside_one_to_wait_for);
    FAKE_TEST(two_streams_beside_a_graph);
    return check_finish();
}
