/* Streams that come and go, told or untold, and the one that is always there. */
// build: plain
// build: single -DGPUPOOL_SINGLE_THREAD=1 -DGPUPOOL_CHECK=2
#include "gpupool.h"
#include "stream_kit.h"

#if CHECK_FAKE

static void stream_gone(gpupool_source source, int told) {
    open_for(source, SIZE);
    cudaStream_t brief;
    CHECK_EQ(cudaStreamCreateWithFlags(&brief, cudaStreamNonBlocking), cudaSuccess);
    void *block = kit_alloc(arena, SIZE, brief);
    kit_fill(brief, block, SIZE, 1);
    CHECK_RESULT(gpupool_free(arena, block, brief), GPUPOOL_OK);
    if (told) CHECK_RESULT(gpupool_retire_stream(arena, brief), GPUPOOL_OK);
    CHECK_EQ(cudaStreamDestroy(brief), cudaSuccess); /* its work may still be queued */
    void *next = kit_alloc(arena, SIZE, kit_stream[1]);
    kit_fill(kit_stream[1], next, SIZE, 2);
    fake_run(kit_stream[1]);
    CHECK_EQ(fake_failures(), 0);
    CHECK_EQ(fake_misuses(), 0);
    put(next, 1);
    close_arena();
}
static void gone_and_told(gpupool_source source) { stream_gone(source, 1); }
static void gone_untold(gpupool_source source) { stream_gone(source, 0); }
static void a_retired_stream_leaves_its_memory(void) { for_each_source(gone_and_told); }
static void a_destroyed_stream_is_survived(void) { for_each_source(gone_untold); }

/* The runtime may give a new stream the handle of a dead one: not the same stream. */
static void handle_reused(gpupool_source source) {
    open_for(source, SIZE);
    for (int round = 0; round < 20; round++) {
        cudaStream_t brief;
        CHECK_EQ(cudaStreamCreateWithFlags(&brief, cudaStreamNonBlocking), cudaSuccess);
        void *block = kit_alloc(arena, SIZE, brief);
        kit_fill(brief, block, SIZE, round);
        CHECK_RESULT(gpupool_free(arena, block, brief), GPUPOOL_OK);
        CHECK_RESULT(gpupool_retire_stream(arena, brief), GPUPOOL_OK);
        CHECK_EQ(cudaStreamDestroy(brief), cudaSuccess);
    }
    CHECK_EQ(kit_stats(arena).blocks.now, 0);
    close_arena();
}
static void a_new_stream_under_an_old_handle(void) { for_each_source(handle_reused); }

/* Once all others are gone a stream is alone again, and its frees need no fence. */
static void alone_again(gpupool_source source) {
    open_for(source, 4 * SIZE);
    void *block = get(SIZE, 0, 1);
    put(get(SIZE, 1, 2), 1);
    CHECK_RESULT(gpupool_retire_stream(arena, kit_stream[1]), GPUPOOL_OK);
    fake_run_all();
    CHECK_RESULT(gpupool_trim(arena, SIZE_MAX, NULL), GPUPOOL_OK);
    long calls = fake_calls(NULL);
    for (int i = 0; i < 3; i++) {
        put(block, 0);
        block = kit_alloc(arena, SIZE, kit_stream[0]);
    }
    CHECK_EQ(fake_calls(NULL), calls);
    put(block, 0);
    close_arena();
}
static void a_stream_alone_again(void) { for_each_source(alone_again); }

static void legacy_stream(gpupool_source source) {
    open_for(source, SIZE);
    void *block = kit_alloc(arena, SIZE, 0);
    kit_fill(0, block, SIZE, 1);
    CHECK_RESULT(gpupool_free(arena, block, 0), GPUPOOL_OK);
    void *next = get(SIZE, 1, 2);
    fake_run(kit_stream[1]);
    CHECK_EQ(fake_failures(), 0);
    put(next, 1);
    close_arena();
}
static void the_legacy_stream_is_a_stream(void) { for_each_source(legacy_stream); }

#endif

int main(void) {
    FAKE_TEST(a_retired_stream_leaves_its_memory);
    FAKE_TEST(a_destroyed_stream_is_survived);
    FAKE_TEST(a_new_stream_under_an_old_handle);
    FAKE_TEST(a_stream_alone_again);
    FAKE_TEST(the_legacy_stream_is_a_stream);
    return check_finish();
}
