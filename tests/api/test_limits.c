/* The limit on reserved bytes: requests, set_limit and trim. */
#include "gpupool.h"
#include "kit.h"

#define A kit_stream[0]
#define B kit_stream[1]

static gpupool_arena *arena;

static void *get(size_t bytes) {
    return gpupool_alloc(arena, bytes, A);
}

/* Reserved memory never passes the limit, and all of it can be had. */
static void never_passed(void) {
    void *blocks[64];
    int count = 0, i;
    arena = kit_open(64 * MIB);
    while (count < 64 && (blocks[count] = get(2 * MIB)) != NULL) count++;
    CHECK_EQ(count, 32);
    CHECK_EQ(kit_stats(arena).reserved.peak, 64 * MIB);
    CHECK_EQ(kit_stats(arena).limit, 64 * MIB);
    CHECK_EQ(kit_stats(arena).failures, 1);
    for (i = 0; i < count; i++) kit_free(arena, blocks[i], A);
    blocks[0] = get(64 * MIB); /* in one piece too */
    CHECK(blocks[0]);
    CHECK_EQ(kit_stats(arena).reserved.peak, 64 * MIB);
    kit_free(arena, blocks[0], A);
    kit_close(arena);
}

/* An odd limit is kept to the granule below. */
static void odd_limit(void) {
    void *block;
    arena = kit_open(7 * MIB);
    CHECK(!get(7 * MIB));
    block = get(6 * MIB);
    CHECK(block);
    CHECK_EQ(kit_stats(arena).reserved.now, 6 * MIB);
    kit_free(arena, block, A);
    kit_close(arena);
}

static void raised(void) {
    void *block;
    arena = kit_open(8 * MIB);
    CHECK(!get(20 * MIB));
    CHECK_RESULT(gpupool_set_limit(arena, 20 * MIB), GPUPOOL_OK);
    CHECK_EQ(kit_stats(arena).limit, 20 * MIB);
    block = get(20 * MIB);
    CHECK(block);
    CHECK_RESULT(gpupool_set_limit(arena, 0), GPUPOOL_OK);
    CHECK_EQ(kit_stats(arena).limit, 0);
    kit_free(arena, get(40 * MIB), A);
    kit_free(arena, block, A);
    kit_close(arena);
}

/* Idle chunks go at once; what live blocks keep stays, and nothing new comes. */
static void lowered(void) {
    void *blocks[4];
    int i;
    arena = kit_open(0);
    for (i = 0; i < 4; i++) blocks[i] = get(16 * MIB);
    kit_write(blocks[0], 16 * MIB, A, 7);
    for (i = 1; i < 4; i++) kit_free(arena, blocks[i], A);
    CHECK_RESULT(gpupool_set_limit(arena, 32 * MIB), GPUPOOL_OK);
    CHECK(kit_stats(arena).reserved.now <= 32 * MIB);
    CHECK_RESULT(gpupool_set_limit(arena, 4 * MIB), GPUPOOL_OK);
    CHECK(kit_stats(arena).reserved.now >= 16 * MIB);
    CHECK(kit_stats(arena).reserved.now < 16 * MIB + 2 * 32 * MIB);
    CHECK_EQ(kit_stats(arena).limit, 4 * MIB);
    CHECK(!get(40 * MIB));
    CHECK_EQ(gpupool_last_verdict()->cause, GPUPOOL_CAUSE_LIMIT);
    kit_verify(blocks[0], 16 * MIB, A, 7);
    kit_free(arena, blocks[0], A);
    CHECK_RESULT(gpupool_set_limit(arena, 2 * MIB), GPUPOOL_OK);
    CHECK(kit_stats(arena).reserved.now <= 2 * MIB);
    kit_close(arena);
}

/* To lower the limit waits for the work on what was freed. */
static void lowered_behind_work(void) {
    arena = kit_open(0);
#if CHECK_FAKE
    fake_mode(FAKE_STEPPED);
#endif
    for (int i = 0; i < 3; i++) {
        void *block = gpupool_alloc(arena, 8 * MIB, kit_stream[i]);
        kit_write(block, 8 * MIB, kit_stream[i], i);
        kit_free(arena, block, kit_stream[i]);
    }
    CHECK_RESULT(gpupool_set_limit(arena, 2 * MIB), GPUPOOL_OK);
    CHECK(kit_stats(arena).reserved.now <= 2 * MIB);
    kit_close(arena);
}

static void trimmed(void) {
    void *small, *large;
    arena = kit_open(0);
    small = get(1000);
    large = get(100 * MIB);
    kit_write(small, 1000, A, 3);
    CHECK_RESULT(gpupool_trim(arena, 0), GPUPOOL_OK); /* nothing of it is idle */
    CHECK(kit_stats(arena).reserved.now >= 102 * MIB);
    kit_free(arena, large, A);
    CHECK_RESULT(gpupool_trim(arena, 40 * MIB), GPUPOOL_OK);
    CHECK(kit_stats(arena).reserved.now <= 40 * MIB);
    CHECK(kit_stats(arena).reserved.now > 0);
    CHECK_RESULT(gpupool_trim(arena, SIZE_MAX), GPUPOOL_OK);
    kit_verify(small, 1000, A, 3);
    kit_free(arena, small, A);
    CHECK_RESULT(gpupool_trim(arena, 0), GPUPOOL_OK);
    CHECK_EQ(kit_stats(arena).reserved.now, 0);
    CHECK_EQ(kit_stats(arena).chunks, 0);
    CHECK_EQ(kit_stats(arena).pending.now, 0);
    small = get(1000); /* and the arena goes on */
    CHECK(small);
    kit_free(arena, small, A);
    kit_close(arena);
}

/* Caches of streams, idle stitches and unmarked memory go too: all that no block has. */
static void trimmed_to_nothing(void) {
    void *blocks[8], *large;
    int i;
    arena = kit_open(40 * MIB);
    for (i = 0; i < 8; i++) blocks[i] = gpupool_alloc(arena, 5 * MIB, kit_stream[i % 4]);
    for (i = 0; i < 8; i += 2) kit_free(arena, blocks[i], kit_stream[i % 4]);
    large = get(20 * MIB);
    CHECK(large);
    kit_write(large, 20 * MIB, A, 1);
    kit_free(arena, large, A);
    for (i = 1; i < 8; i += 2) kit_free(arena, blocks[i], kit_stream[i % 4]);
    for (i = 0; i < 100; i++) {
        void *small = gpupool_alloc(arena, 1 + 100 * (size_t)i, kit_stream[i % 4]);
        kit_free(arena, small, kit_stream[(i + 1) % 4]);
    }
    CHECK_RESULT(gpupool_trim(arena, 0), GPUPOOL_OK);
    CHECK_EQ(kit_stats(arena).reserved.now, 0);
    CHECK_EQ(kit_stats(arena).stitches, 0);
#if CHECK_FAKE
    CHECK_EQ(fake_used_bytes(0), 0);
    CHECK_EQ(fake_mappings(), 0);
#endif
    kit_close(arena);
}

/* Without waiting, a request only has what needs no wait; the same one that may wait succeeds. */
static void no_wait(void) {
#if CHECK_FAKE
    void *block;
    arena = kit_open(20 * MIB);
    fake_mode(FAKE_STEPPED);
    block = get(20 * MIB);
    kit_write(block, 20 * MIB, A, 1);
    kit_free(arena, block, A);
    CHECK(!kit_alloc_as(arena, 20 * MIB, 0, B, GPUPOOL_NO_WAIT));
    CHECK_EQ(gpupool_last_verdict()->cause, GPUPOOL_CAUSE_PENDING);
    CHECK_EQ(kit_stats(arena).host_waits, 0);
    block = gpupool_alloc(arena, 20 * MIB, B);
    CHECK(block);
    kit_write(block, 20 * MIB, B, 2);
    kit_free(arena, block, B);
    kit_close(arena);
#endif
}

int main(void) {
    KIT_TEST(never_passed);
    KIT_TEST(odd_limit);
    KIT_TEST(raised);
    KIT_TEST(lowered);
    KIT_TEST(lowered_behind_work);
    KIT_TEST(trimmed);
    KIT_TEST(trimmed_to_nothing);
    KIT_FAKE_TEST(no_wait);
    return check_finish();
}
