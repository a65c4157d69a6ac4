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

/* As another thread that sees that the work before the mark is done, and then frees. */
static void pass_and_free_the_last(void *was_done) {
    gpi_stream *stream = gpi_clock_find(&arena->clocks, gpi_clock_key(kit_stream[0]));
    fake_run(kit_stream[0]);
    gpi_host_lock(&arena->lock);
    CHECK(gpi_event_poll(&arena->clocks, stream));
    gpi_host_unlock(&arena->lock);
    free_the_last(was_done);
}

/* All memory is stream 0's, and memory is short. */
static void *open_short(void **first) {
    arena = kit_open_limited(GPUPOOL_SOURCE_DEVICE, 4 * BYTES);
    *first = kit_alloc(arena, BYTES, kit_stream[0]);
    void *second = kit_alloc(arena, 2 * BYTES, kit_stream[0]);
    last = kit_alloc(arena, BYTES, kit_stream[0]);
    CHECK_RESULT(kit_why(gpupool_alloc(arena, BYTES, kit_stream[1])), GPUPOOL_E_OUT_OF_MEMORY);
    fake_mode(FAKE_STEPPED);
    return second;
}

/* Stream 1 is made to wait for the block, and `run` is run before; returns how much is left to do
   on stream 0 when all work of stream 1 is done. */
static int left_after_a_wait(void (*run)(void *), const void *second) {
    int was_done = 0, left;
    fake_before_call("cuStreamWaitEvent", 1, run, &was_done);
    void *block = kit_alloc(arena, 2 * BYTES, kit_stream[1]);
    CHECK_EQ(was_done, 1);
    CHECK(block == second);
    kit_mark(kit_stream[1], block, 2 * BYTES, 2);
    fake_run(kit_stream[1]);
    CHECK_EQ(fake_pending(kit_stream[1]), 0);
    const gpi_stream *stream = gpi_clock_find(&arena->clocks, gpi_clock_key(kit_stream[0]));
    for (int i = 0; i < GPI_MARKS; i++) CHECK_EQ(stream->clock.marks[i].pins, 0);
    left = fake_pending(kit_stream[0]);
    CHECK_EQ(fake_failures(), 0);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[1]), GPUPOOL_OK);
    return left;
}

enum { WORK = 2, MARK = 1 }; /* operations of kit_mark, and of an event */

/* Both marks of stream 0 are in use, and the newer one is waited for: it is not recorded again,
   behind work that the other stream need not wait for. */
static void a_mark_that_is_waited_for(void) {
    void *first, *second = open_short(&first);
    work_and_put(first, BYTES);
    work_and_put(second, 2 * BYTES);
    CHECK_EQ(left_after_a_wait(free_the_last, second), WORK);
    fake_mode(FAKE_EAGER);
    kit_close(arena);
}

/* Nor is one that has passed before the wait for it was made: the other mark is. */
static void a_mark_that_has_passed_by_then(void) {
    void *first, *second = open_short(&first);
    work_and_put(second, 2 * BYTES);
    CHECK_EQ(left_after_a_wait(pass_and_free_the_last, second), WORK + MARK);
    fake_mode(FAKE_EAGER);
    CHECK_RESULT(gpupool_free(arena, first, kit_stream[0]), GPUPOOL_OK);
    kit_close(arena);
}

/* While a mark is recorded, another free of the stream records none. */
static void a_mark_that_is_being_recorded(void) {
    int was_done = 0;
    void *first, *second = open_short(&first);
    long events = fake_calls("cuEventRecord");
    fake_before_call("cuEventRecord", 1, free_the_last, &was_done);
    work_and_put(second, 2 * BYTES);
    CHECK_EQ(was_done, 1);
    CHECK_EQ(fake_calls("cuEventRecord"), events + 1);
    CHECK_RESULT(gpupool_free(arena, first, kit_stream[0]), GPUPOOL_OK);
    CHECK_EQ(fake_calls("cuEventRecord"), events + 2);
    fake_mode(FAKE_EAGER);
    kit_close(arena);
}
#endif

int main(void) {
    FAKE_TEST(a_mark_that_is_waited_for);
    FAKE_TEST(a_mark_that_has_passed_by_then);
    FAKE_TEST(a_mark_that_is_being_recorded);
    return check_finish();
}
