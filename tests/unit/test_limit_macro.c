/* Macros in place of what a config leaves open: the limit, the last in the order of precedence, and
   the ring's chunk. */
// build: numbers
// build: expression -DEXPRESSION=1
// build: digit -DDIGIT=1
// build: wrong -DWRONG=1
#define _DEFAULT_SOURCE /* setenv */
#if defined(DIGIT)
#define GPUPOOL_LIMIT "9"
#elif defined(WRONG)
#define GPUPOOL_LIMIT "much"
#else
#define GPUPOOL_LIMIT "24MiB"
#endif
#if defined(EXPRESSION)
#define GPUPOOL_RING_CHUNK_BYTES 1 << 17
#else
#define GPUPOOL_RING_CHUNK_BYTES 0
#endif
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "arena_kit.h"

#if defined(DIGIT)
static void the_shortest_that_there_is(void) {
    gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_AUTO);
    CHECK_EQ(kit_limit(arena), 9);
    kit_close(arena);
}
#elif defined(WRONG)
static void what_is_wrong_is_named(void) {
    gpupool_arena *arena = NULL;
    CHECK_RESULT(gpupool_arena_create(&arena, NULL), GPUPOOL_E_ARGUMENT);
    CHECK(strstr(gpupool_last_error(), "macro GPUPOOL_LIMIT") != NULL);
}
#else
static void expect_limit(size_t config_bytes, size_t expected) {
    gpupool_arena *arena = kit_open_limited(GPUPOOL_SOURCE_AUTO, config_bytes);
    CHECK_EQ(kit_limit(arena), expected);
    kit_close(arena);
}

static void the_macro_is_the_default(void) {
    unsetenv("GPUPOOL_LIMIT");
    unsetenv("GPUPOOL_LIMIT_0");
    expect_limit(0, 24 * MIB);
    expect_limit(30 * MIB, 30 * MIB);
    CHECK_EQ(setenv("GPUPOOL_LIMIT", "40MiB", 1), 0);
    expect_limit(0, 40 * MIB);
    expect_limit(30 * MIB, 30 * MIB);
    CHECK_EQ(unsetenv("GPUPOOL_LIMIT"), 0);
    CHECK(strstr(gpupool_get_build(), "24MiB") != NULL);
}

static void the_macro_holds_until_it_is_lifted(void) {
    gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_AUTO);
    CHECK_RESULT(kit_why(gpupool_alloc(arena, 25 * MIB, kit_stream[0])),
                 GPUPOOL_E_OUT_OF_MEMORY);
    CHECK_RESULT(gpupool_set_limit(arena, 0), GPUPOOL_OK);
    void *block = kit_alloc(arena, 25 * MIB, kit_stream[0]);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
    kit_close(arena);
}

#endif

/* Chunks of no bytes would never bring a transfer to its end. */
static void the_ring_has_chunks_of_64_kib_at_least(void) {
    gpupool_ring *ring = NULL;
    CHECK_RESULT(gpupool_ring_create(&ring, &(gpupool_ring_config){.workers = -1}), GPUPOOL_OK);
    CHECK_EQ(ring->stage.slot_bytes, (GPUPOOL_RING_CHUNK_BYTES) > 0 ? 128 * KIB : 64 * KIB);
    CHECK_RESULT(gpupool_ring_destroy(ring), GPUPOOL_OK);
    CHECK_RESULT(gpupool_ring_create(&ring, &(gpupool_ring_config){.chunk_bytes = 128 * KIB}),
                 GPUPOOL_OK);
    CHECK_EQ(ring->stage.slot_bytes, 128 * KIB);
    CHECK_RESULT(gpupool_ring_destroy(ring), GPUPOOL_OK);
}

int main(void) {
#if defined(DIGIT)
    ARENA_TEST(the_shortest_that_there_is);
#elif defined(WRONG)
    ARENA_TEST(what_is_wrong_is_named);
#else
    ARENA_TEST(the_macro_is_the_default);
    ARENA_TEST(the_macro_holds_until_it_is_lifted);
#endif
    ARENA_TEST(the_ring_has_chunks_of_64_kib_at_least);
    return check_finish();
}
