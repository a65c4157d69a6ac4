/* Whose work a verdict says to wait for: default streams by name, one of two that use a block, and
   what a graph keeps, which no wait brings back. */
#define GPUPOOL_IMPLEMENTATION
#include "../gpupool.h"
#include "verdict_kit.h"

#if CHECK_FAKE

static gpupool_arena *arena;

static void *get(size_t bytes, cudaStream_t stream) { return kit_alloc(arena, bytes, stream); }
static void put(void *block, cudaStream_t stream) {
    CHECK_RESULT(gpupool_free(arena, block, stream), GPUPOOL_OK);
}

/* Another stream reads it, and is not done. */
static void use_on(void *block, cudaStream_t stream) {
    kit_expect(stream, block, 64, -1);
    CHECK_RESULT(gpupool_record_use(arena, block, stream), GPUPOOL_OK);
}

static void default_streams_are_named(void) {
    static const char *const words[] = {"the default stream", "a thread's default stream"};
    cudaStream_t streams[] = {cudaStreamLegacy, cudaStreamPerThread};
    for (size_t i = 0; i < 2; i++) {
        arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 64 * MIB);
        void *block = get(40 * MIB, kit_stream[1]), *rest = get(20 * MIB, kit_stream[1]);
        fake_mode(FAKE_STEPPED);
        kit_order(kit_stream[1], streams[i]);
        use_on(block, streams[i]);
        put(block, kit_stream[1]);
        fake_run(kit_stream[1]);
        gpupool_verdict v = would_not_fit(arena, 40 * MIB, GPUPOOL_CAUSE_PENDING);
        CHECK_EQ(v.pending_streams, 1);
        CHECK(v.pending_stream == streams[i]);
        if (!strstr(v.sentence, words[i]))
            check_fail(__FILE__, __LINE__, "not of %s: %s", words[i], v.sentence);
        fake_mode(FAKE_EAGER);
        put(rest, kit_stream[1]);
        kit_close(arena);
    }
}

/* Neither alone is enough. */
static void two_streams_at_one_block(void) {
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 64 * MIB);
    void *block = get(40 * MIB, kit_stream[1]), *rest = get(20 * MIB, kit_stream[1]);
    fake_mode(FAKE_STEPPED);
    use_on(block, kit_stream[2]);
    use_on(block, kit_stream[3]);
    put(block, kit_stream[1]);
    fake_run(kit_stream[1]);
    gpupool_verdict v = would_not_fit(arena, 40 * MIB, GPUPOOL_CAUSE_PENDING);
    CHECK_EQ(v.pending_streams, 2);
    CHECK(v.pending_stream == NULL);
    fake_run(kit_stream[3]); /* now the other one is */
    v = would_not_fit(arena, 40 * MIB, GPUPOOL_CAUSE_PENDING);
    CHECK_EQ(v.pending_streams, 1);
    CHECK(v.pending_stream == kit_stream[2]);
    fake_mode(FAKE_EAGER);
    put(rest, kit_stream[1]);
    kit_close(arena);
}

/* Neither parked nor in the graph's lanes is it to be had by others. */
static void what_a_graph_keeps_does_not_fit(void) {
    gpupool_capture *scope = NULL;
    gpupool_verdict v;
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 64 * MIB);
    void *block = get(40 * MIB, kit_stream[1]), *rest = get(20 * MIB, kit_stream[1]);
    fake_mode(FAKE_STEPPED);
    use_on(block, kit_stream[2]);
    CHECK_RESULT(gpupool_capture_begin(arena, kit_stream[1], &scope), GPUPOOL_OK);
    put(block, kit_stream[1]);
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(gpupool_would_fit(arena, 40 * MIB, &v), 0);
        CHECK(v.cause != GPUPOOL_CAUSE_PENDING && v.largest_free_bytes < 40 * MIB);
        CHECK_RESULT(kit_why(gpupool_alloc(arena, 40 * MIB, kit_stream[3])),
                     GPUPOOL_E_OUT_OF_MEMORY);
        fake_mode(FAKE_EAGER);
    }
    CHECK_RESULT(gpupool_capture_release(scope), GPUPOOL_OK);
    fits(arena, 40 * MIB);
    put(rest, kit_stream[1]);
    kit_close(arena);
}

/* The only block there is, whatever its size. */
static void a_holder_of_any_size(void) {
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 8 * MIB);
    for (size_t bytes = 1; bytes < 1000 * KIB; bytes += 999) {
        void *block = get(bytes, kit_stream[0]);
        gpupool_verdict v = would_not_fit(arena, 8 * MIB, GPUPOOL_CAUSE_LIMIT);
        CHECK_EQ(v.holders[0].block_bytes, bytes);
        CHECK_EQ(v.holders[0].blocks, 1);
        CHECK_EQ(v.holders[0].enough, 1);
        CHECK_EQ(v.holders[1].blocks, 0);
        put(block, kit_stream[0]);
    }
    kit_close(arena);
}

/* A lane's number comes again: only those that a stream has now say what it waits for. */
static void lanes_that_a_stream_had_before(void) {
    gpi_fence fence = {.number = 1};
    gpi_stream stream = {.handle = 64, .key = 64, .young = 7, .seals = 1, .sealed = {5, 7},
                         .fences = {&fence, &fence}};
    gpi_fences fences = {.streams = &stream};
    gpi_scene scene = {.fences = &fences};
    CHECK_EQ(gpi_limit_waits_for_lane(&scene, 5, 64), 1);
    CHECK_EQ(gpi_limit_waits_for_lane(&scene, 7, 64), 0); /* has no fence of the stream's yet */
    CHECK_EQ(gpi_limit_waits_for_lane(&scene, 5, 66), 0);
    fence.whole = 1;
    CHECK_EQ(gpi_limit_waits_for_lane(&scene, 5, 64), 0);
}

/* Without a device's word, and for more than there is. */
static void where_the_device_does_not_say(void) {
    gpupool_verdict v;
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 64 * MIB);
    fake_fail_call("cudaMemGetInfo", 1, 1, 0);
    v = would_not_fit(arena, 100 * MIB, GPUPOOL_CAUSE_LIMIT);
    fake_fail_clear();
    CHECK_EQ(cudaGetLastError(), cudaSuccess);
    CHECK_EQ(v.device_total_bytes, 0);
    CHECK(v.raise_bytes > 0);
    kit_close(arena);
}
#endif

int main(void) {
    FAKE_TEST(default_streams_are_named);
    FAKE_TEST(two_streams_at_one_block);
    FAKE_TEST(what_a_graph_keeps_does_not_fit);
    FAKE_TEST(a_holder_of_any_size);
    TEST(lanes_that_a_stream_had_before);
    FAKE_TEST(where_the_device_does_not_say);
    return check_finish();
}
