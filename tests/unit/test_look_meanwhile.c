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
#endif

int main(void) {
    FAKE_TEST(freed_after_the_question);
    return check_finish();
}
