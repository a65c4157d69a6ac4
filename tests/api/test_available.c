/* gpupool_get_available: what it says alloc grants, in every source and under every limit. */
#include "gpupool.h"
#include "kit.h"

#define A kit_stream[0]
#define B kit_stream[1]

static gpupool_arena *arena;

static size_t available(cudaStream_t stream) {
    size_t bytes = 77;
    CHECK_RESULT(gpupool_get_available(arena, stream, &bytes), GPUPOOL_OK);
    return bytes;
}

/* So much is granted on the stream, and a byte more is not. */
static void is_exact(cudaStream_t stream, size_t expected) {
    void *block;
    CHECK_EQ(available(stream), expected);
    CHECK(!gpupool_alloc(arena, expected + 1, stream));
    CHECK_EQ(gpupool_last_verdict()->largest, expected);
    block = gpupool_alloc(arena, expected, stream);
    CHECK(block);
    if (block) kit_free(arena, block, stream);
}

static void under_a_limit(void) {
    void *blocks[3];
    arena = kit_open(33 * MIB);
    is_exact(A, 32 * MIB);
    for (int i = 0; i < 3; i++) blocks[i] = gpupool_alloc(arena, 8 * MIB, A);
    is_exact(A, 8 * MIB);
    kit_write(blocks[1], 8 * MIB, A, 1);
    kit_free(arena, blocks[1], A);
    is_exact(B, 16 * MIB); /* 8 of it behind A's work */
    is_exact(GPUPOOL_NO_STREAM, 16 * MIB);
    kit_free(arena, blocks[0], A);
    kit_free(arena, blocks[2], A);
    kit_close(arena);
}

/* The limit went down, and what was reserved above it is free again: it is granted in one piece,
   but no new chunk is. */
static void a_limit_that_went_down(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_DEVICE, 0);
    void *blocks[4];
    int i;
    config.chunk_bytes = 50 * MIB;
    arena = kit_create(&config);
    for (i = 0; i < 4; i++) blocks[i] = gpupool_alloc(arena, 50 * MIB, A);
    CHECK_RESULT(gpupool_set_limit(arena, 72 * MIB), GPUPOOL_OK);
    CHECK_EQ(available(A), 0);
    kit_free(arena, blocks[0], A);
    CHECK_EQ(available(A), 50 * MIB);
    for (i = 1; i < 4; i++) kit_free(arena, blocks[i], A);
    CHECK_EQ(available(A), 72 * MIB); /* not 200 */
    blocks[0] = gpupool_alloc(arena, 72 * MIB, A);
    CHECK(blocks[0]);
    kit_free(arena, blocks[0], A);
    kit_close(arena);
}

/* A stream that captures gets what is at hand. */
static void while_it_captures(void) {
    cudaGraph_t graph;
    void *block;
    size_t bytes;
    arena = kit_open(64 * MIB);
    block = gpupool_alloc(arena, 30 * MIB, B);
    kit_free(arena, gpupool_alloc(arena, 10 * MIB, A), A);
    kit_hold(B);
    kit_write(block, 30 * MIB, B, 1);
    kit_free(arena, block, B);
    CHECK_EQ(cudaStreamBeginCapture(A, cudaStreamCaptureModeGlobal), cudaSuccess);
    bytes = available(A);
    CHECK(bytes >= 10 * MIB && bytes < 30 * MIB);
    CHECK(!gpupool_alloc(arena, bytes + 1, A));
    CHECK_EQ(gpupool_last_result(), GPUPOOL_E_CAPTURING);
    block = gpupool_alloc(arena, bytes, A);
    CHECK(block);
    CHECK_EQ(cudaStreamEndCapture(A, &graph), cudaSuccess);
    CHECK_EQ(cudaGraphDestroy(graph), cudaSuccess);
    kit_free(arena, block, A);
    kit_let_go(B);
    kit_close(arena);
}

static void refuses(void) {
    size_t bytes;
    arena = kit_open(0);
    KIT_REFUSES(gpupool_get_available(NULL, A, &bytes), GPUPOOL_E_ARGUMENT, "arena");
    KIT_REFUSES(gpupool_get_available(arena, A, NULL), GPUPOOL_E_ARGUMENT, "bytes");
    kit_close(arena);
}

#if CHECK_FAKE
#include "scene.h"

/* A device that others fill: all of the rest is granted. */
static void on_a_full_device(void) {
    fake_device_memory(0, 101 * MIB);
    fake_other_process(0, 40 * MIB);
    arena = kit_open(0);
    is_exact(A, 60 * MIB);
    kit_close(arena);
}

/* In random arenas of every source. MAPPED: a byte more is hardly ever granted, by what several
   streams have freed side by side. */
static void whatever_the_arena(void) {
    int granted = 0, exact = 0, more = 0, round, step;
    scene s;
    for (round = 0; round < 480; round++) {
        check_case("round %d", round);
        scene_seed = (uint64_t)round + 1;
        scene_open(&s, (gpupool_source)(GPUPOOL_SOURCE_MAPPED + round % 6));
        arena = s.arena;
        fake_mode(round % 2 ? FAKE_STEPPED : FAKE_EAGER);
        for (step = 0; step < 60; step++) {
            cudaStream_t stream = scene_stream();
            size_t bytes;
            void *block;
            scene_step(&s);
            if (step % 4) continue;
            bytes = available(stream);
            if (!bytes) continue;
            block = gpupool_alloc(arena, bytes, stream);
            if (!block)
                check_fail(__FILE__, __LINE__, "step %d: %zu bytes: %s", step, bytes,
                           gpupool_last_error());
            granted += block != NULL;
            if (block && !scene_random(3) && s.count < SCENE_BLOCKS)
                scene_keep(&s, block, bytes, stream);
            else if (block) kit_free(arena, block, stream);
            block = gpupool_alloc(arena, available(stream) + 1, stream);
            exact += block == NULL;
            more += block && s.source == GPUPOOL_SOURCE_MAPPED;
            if (block) kit_free(arena, block, stream);
        }
        scene_close(&s);
    }
    CHECK(granted > 3000);
    CHECK(exact > 1000);
    CHECK(more * 200 < granted);
    printf("    %d granted, %d not a byte more\n", granted, exact);
}
#endif

int main(void) {
    KIT_TEST(under_a_limit);
    KIT_TEST(a_limit_that_went_down);
    KIT_TEST(while_it_captures);
    KIT_TEST(refuses);
#if CHECK_FAKE
    KIT_TEST(on_a_full_device);
    KIT_TEST(whatever_the_arena);
#endif
    return check_finish();
}
