/* Small pieces that move are given back, and fewer and larger ones got in their place. */
#define GPUPOOL_IMPLEMENTATION
#include "../gpupool.h"
#include "arena_kit.h"

#if CHECK_FAKE

#define PIECES 1200 /* of one granule: together enough for new ones of two */
#define LARGE (100 * MIB)
#define GRANULES (LARGE / (2 * MIB))

/* Every second piece idle, none beside another, and a request for fifty of them, half of which the
   arena has no new memory for: what its pieces have gone through by then. */
static gpupool_stats scattered_then_large(size_t limit, size_t chunk, const char *failing,
                                          int unfinished) {
    static void *block[PIECES];
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
    config.limit_bytes = limit;
    config.chunk_bytes = chunk;
    gpupool_arena *arena = kit_create(&config);
    if (unfinished) fake_mode(FAKE_STEPPED);
    for (int i = 0; i < PIECES; i++) block[i] = kit_alloc(arena, 2 * MIB, kit_stream[0]);
    for (int i = 0; i < PIECES; i += 2)
        CHECK_RESULT(gpupool_free(arena, block[i], kit_stream[0]), GPUPOOL_OK);
    CHECK_EQ(kit_stats(arena).chunks_gained, PIECES);
    if (unfinished) kit_fill(kit_stream[0], block[1], 512, 3);
    if (failing) fake_fail_call(failing, 1, 1, 0);
    void *large = kit_alloc(arena, LARGE, kit_stream[0]);
    fake_fail_clear();
    kit_mark(kit_stream[0], large, LARGE, 7);
    kit_expect_mark(kit_stream[0], large, LARGE, 7);
    gpupool_stats after = kit_stats(arena);
    CHECK_EQ(after.reserved.now, fake_used_bytes(0));
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    CHECK_RESULT(gpupool_free(arena, large, kit_stream[0]), GPUPOOL_OK);
    for (int i = 1; i < PIECES; i += 2)
        CHECK_RESULT(gpupool_free(arena, block[i], kit_stream[0]), GPUPOOL_OK);
    kit_finish(arena);
    kit_close(arena);
    CHECK_EQ(fake_used_bytes(0), 0);
    return after;
}

static void two_become_one(void) {
    gpupool_stats s = scattered_then_large(0, 0, NULL, 0);
    CHECK(s.chunks_lost > GRANULES / 3);
    CHECK_EQ(s.chunks_gained - PIECES, GRANULES - s.chunks_lost / 2);
    CHECK_EQ(s.stitches, 0);
}

/* Where a limit counts every granule, small ones are what it takes. */
static void not_under_a_limit(void) {
    gpupool_stats s = scattered_then_large(PIECES * 2 * MIB, 0, NULL, 0);
    CHECK_EQ(s.chunks_lost, 0);
    CHECK_EQ(s.stitches, GRANULES);
}

static void not_where_their_size_is_given(void) {
    gpupool_stats s = scattered_then_large(0, 2 * MIB, NULL, 0);
    CHECK_EQ(s.chunks_lost, 0);
    CHECK(s.stitches > GRANULES / 3);
}

static void not_what_the_driver_keeps(void) {
    gpupool_stats s = scattered_then_large(0, 0, "cuMemRelease", 0);
    CHECK_EQ(s.chunks_lost, 0);
    CHECK(s.stitches > GRANULES / 3);
}

/* Memory that its stream may still be at work on cannot be given back, and moves as it is. */
static void not_what_is_in_use(void) {
    gpupool_stats s = scattered_then_large(0, 0, NULL, 1);
    CHECK_EQ(s.chunks_lost, 0);
    CHECK(s.stitches > GRANULES / 3);
}

#endif

int main(void) {
    FAKE_TEST(two_become_one);
    FAKE_TEST(not_under_a_limit);
    FAKE_TEST(not_where_their_size_is_given);
    FAKE_TEST(not_what_the_driver_keeps);
    FAKE_TEST(not_what_is_in_use);
    return check_finish();
}
