/* A stream is made to wait for another's mark, and that one frees more meanwhile: within CUDA's
   call, so that they always meet. */
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "arena_kit.h"

#if CHECK_FAKE

#define BYTES (2 * MIB)

static gpupool_arena *arena;
static void *last;

static void work_and_put(void *block, size_t bytes) {
    kit_mark(kit_stream[0], block, bytes, 1);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
}

/* As another thread; while memory is short, each free records a mark, if it may. */
static void free_the_last(void *was_done) {
    work_and_put(last, BYTES);
    *(int *)was_done = 1;
}

/* Both marks of stream 0 are in use, and the newer one is waited for: it is not recorded again,
   behind work that the other stream need not wait for. */
static void a_mark_that_is_waited_for(void) {
    int was_done = 0;
    arena = kit_open_limited(GPUPOOL_SOURCE_DEVICE, 4 * BYTES);
    void *first = kit_alloc(arena, BYTES, kit_stream[0]);
    void *second = kit_alloc(arena, 2 * BYTES, kit_stream[0]);
    last = kit_alloc(arena, BYTES, kit_stream[0]);
    CHECK_RESULT(kit_why(gpupool_alloc(arena, BYTES, kit_stream[1])), GPUPOOL_E_OUT_OF_MEMORY);
    fake_mode(FAKE_STEPPED);
    work_and_put(first, BYTES);
    work_and_put(second, 2 * BYTES);
    fake_before_call("cuStreamWaitEvent", 1, free_the_last, &was_done);
    void *block = kit_alloc(arena, 2 * BYTES, kit_stream[1]);
    CHECK_EQ(was_done, 1);
    CHECK(block == second);
    kit_mark(kit_stream[1], block, 2 * BYTES, 2);
    fake_run(kit_stream[1]);
    CHECK_EQ(fake_pending(kit_stream[1]), 0);
    CHECK_EQ(fake_pending(kit_stream[0]), 2); /* the last one's work, and no mark behind it */
    CHECK_EQ(fake_failures(), 0);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[1]), GPUPOOL_OK);
    fake_mode(FAKE_EAGER);
    kit_close(arena);
}
#endif

int main(void) {
    FAKE_TEST(a_mark_that_is_waited_for);
    return check_finish();
}
