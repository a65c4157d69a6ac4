/* A question asks CUDA whether all work before what was freed so far has finished, and another
   thread uses and frees more meanwhile: within CUDA's call, so that they always meet. */
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "arena_kit.h"

#if CHECK_FAKE

enum { SMALL = 8192, LARGE = 2 << 20 };

static gpupool_arena *arena;
static void *large;

static void work_and_put(void *block, size_t bytes) {
    kit_mark(kit_stream[0], block, bytes, 1);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
}

/* As another thread. The small block comes out of the stream's cache, and goes back there. */
static void use_more(void *unused) {
    (void)unused;
    fake_mode(FAKE_STEPPED);
    work_and_put(kit_alloc(arena, SMALL, kit_stream[0]), SMALL);
    work_and_put(large, LARGE);
    CHECK(fake_pending(kit_stream[0]) > 0);
}

static uint64_t pending(void) {
    gpupool_verdict why;
    CHECK(!kit_fits(arena, GIB, &why));
    return why.pending_bytes;
}

/* Once more was freed after the question, the answer says nothing of what caches have. */
static void freed_after_the_question(void) {
    arena = kit_open_limited(GPUPOOL_SOURCE_DEVICE, 64 * MIB);
    large = kit_alloc(arena, LARGE, kit_stream[0]);
    work_and_put(kit_alloc(arena, SMALL, kit_stream[0]), SMALL);
    gpi_cache *cache = &gpi_clock_find(&arena->clocks, gpi_clock_key(kit_stream[0]))->cache;
    CHECK_EQ(cache->free_blocks, 1);
    CHECK_EQ(pending(), 0);
    fake_before_call("cuEventQuery", 1, use_more, NULL);
    CHECK_EQ(pending(), LARGE + SMALL);
    CHECK_EQ(cache->free_blocks, 1);
    fake_mode(FAKE_EAGER);
    kit_close(arena);
}

/* Where no event can tell how far all streams are, it is not what an earlier question was told. */
static void a_question_without_an_event(void) {
    arena = kit_open_limited(GPUPOOL_SOURCE_DEVICE, 64 * MIB);
    work_and_put(kit_alloc(arena, SMALL, kit_stream[0]), SMALL);
    CHECK_EQ(pending(), 0);
    fake_mode(FAKE_STEPPED);
    work_and_put(kit_alloc(arena, SMALL, kit_stream[0]), SMALL);
    arena->chunks.driver.record_all = NULL;
    CHECK_EQ(pending(), SMALL);
    fake_mode(FAKE_EAGER);
    kit_close(arena);
}

/* What caches have is of no one stream's event: to wait for a stream is not enough. */
static void a_cache_beside_a_stream(void) {
    gpupool_verdict why;
    arena = kit_open_limited(GPUPOOL_SOURCE_DEVICE, 4 * MIB);
    fake_mode(FAKE_STEPPED);
    void *small = kit_alloc(arena, SMALL, kit_stream[0]);
    void *other = kit_alloc(arena, LARGE, kit_stream[1]);
    kit_mark(kit_stream[1], other, LARGE, 2);
    CHECK_RESULT(gpupool_free(arena, other, kit_stream[1]), GPUPOOL_OK);
    work_and_put(small, SMALL);
    CHECK(!kit_fits(arena, 4 * MIB, &why));
    CHECK_EQ(why.cause, GPUPOOL_CAUSE_PENDING);
    CHECK_EQ(why.pending_streams, 0);
    CHECK(strstr(why.sentence, "all work in flight on the device") != NULL);
    fake_mode(FAKE_EAGER);
    kit_close(arena);
}
#endif

int main(void) {
    FAKE_TEST(freed_after_the_question);
    FAKE_TEST(a_question_without_an_event);
    FAKE_TEST(a_cache_beside_a_stream);
    return check_finish();
}
