/* A question copies all runs of an arena, and opens the lock now and then: what another thread
   allocates and frees in such a pause neither stops the copy nor is counted twice. The pause of the
   processor is where that thread runs. */
// build: plain
// build: ubsan -fsanitize=address,undefined
static void pause_here(void);
#define __builtin_ia32_pause pause_here
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#undef __builtin_ia32_pause
#include "arena_kit.h"

static void (*meanwhile)(void); /* once */

static void pause_here(void) {
    void (*now)(void) = meanwhile;
    meanwhile = NULL;
    if (now) now();
}

#if CHECK_FAKE && (defined(__x86_64__) || defined(__i386__))

#define BYTES ((size_t)128 << 10)
enum { FIRST = GPI_SLICE + 20, MORE = 5 * GPI_PAGE };

static gpupool_arena *arena;
static void *block[FIRST + MORE];

static void get(int i) { block[i] = kit_alloc(arena, BYTES, kit_stream[0]); }
static void put(int i) {
    if (block[i]) CHECK_RESULT(gpupool_free(arena, block[i], kit_stream[0]), GPUPOOL_OK);
    block[i] = NULL;
}

static void open_filled(size_t chunk_bytes) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_DEVICE);
    config.chunk_bytes = chunk_bytes;
    arena = kit_create(&config);
    for (int i = 0; i < FIRST; i++) get(i);
    CHECK_RESULT(gpupool_set_limit(arena, kit_reserved(arena)), GPUPOOL_OK);
}

static void close_filled(void) {
    for (int i = 0; i < FIRST + MORE; i++) put(i);
    kit_close(arena);
}

/* The copy stands at a free run, which joins its left neighbour, and this is handed out again: what
   was copied is passed over. */
static void give_and_take_the_left_one(void) {
    put(GPI_SLICE - 1);
    get(GPI_SLICE - 1);
}

static void the_left_neighbour_comes_and_goes(void) {
    open_filled(64 * MIB);
    put(GPI_SLICE);
    gpupool_verdict why;
    size_t largest = (size_t)kit_stats(arena).largest_free_bytes;
    meanwhile = give_and_take_the_left_one;
    CHECK(!kit_fits(arena, largest + BYTES, &why));
    CHECK(meanwhile == NULL);
    CHECK_EQ(why.holders[0].blocks, FIRST - 1);
    CHECK(kit_fits(arena, largest, NULL));
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    close_filled();
}

/* The left neighbour stays free: what it was joined with is copied. */
static void give_the_left_one(void) { put(GPI_SLICE - 1); }

static void the_left_neighbour_goes(void) {
    gpupool_verdict why;
    open_filled(64 * MIB);
    size_t rest = (size_t)kit_stats(arena).largest_free_bytes;
    block[FIRST] = kit_alloc(arena, rest, kit_stream[0]); /* nothing else is free */
    put(GPI_SLICE);
    meanwhile = give_the_left_one;
    CHECK(!kit_fits(arena, BYTES, &why)); /* of the left one nobody has seen that it is done */
    CHECK(meanwhile == NULL);
    CHECK_EQ(why.cause, GPUPOOL_CAUSE_PENDING);
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    close_filled();
}

/* There is room for some more runs than there were. */
static void take_some(void) {
    for (int i = FIRST; i < FIRST + 8; i++) get(i);
}

static void some_more(void) {
    gpupool_verdict why;
    open_filled(64 * MIB);
    meanwhile = take_some;
    CHECK(!kit_fits(arena, 64 * MIB, &why));
    CHECK(meanwhile == NULL);
    CHECK_EQ(why.holders[0].blocks, FIRST + 8);
    close_filled();
}

/* More runs appear than there is room for: the answer is by those that were copied. */
static void take_much(void) {
    for (int i = FIRST; i < FIRST + MORE; i++) get(i);
}

static void more_than_there_is_room_for(void) {
    open_filled(GIB);
    meanwhile = take_much;
    CHECK(!kit_fits(arena, GIB - FIRST * BYTES, NULL));
    CHECK(meanwhile == NULL);
    size_t largest = (size_t)kit_stats(arena).largest_free_bytes;
    CHECK(largest < GIB - (FIRST + MORE - 1) * BYTES);
    CHECK(kit_fits(arena, largest, NULL));
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    close_filled();
}

/* A stitched block, whose second half lies before its first, goes when only that half was copied:
   the half counts as none of the blocks of its size. */
static void *stitched, *rest[2], *edge[2], *alike[2];

static void put_the_stitched(void) {
    CHECK_RESULT(gpupool_free(arena, stitched, kit_stream[0]), GPUPOOL_OK);
}

/* Two chunks: the first begins with the one half, the second ends with the other one. */
static void open_stitched(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
    config.chunk_bytes = 64 * MIB;
    arena = kit_create(&config);
    edge[0] = kit_alloc(arena, 8 * MIB, kit_stream[0]);
    for (int i = 0; i < FIRST; i++) get(i);
    rest[0] = kit_alloc(arena, (size_t)kit_stats(arena).largest_free_bytes, kit_stream[0]);
    for (int i = 0; i < 2; i++) alike[i] = kit_alloc(arena, 16 * MIB, kit_stream[0]);
    rest[1] = kit_alloc(arena, 24 * MIB, kit_stream[0]);
    edge[1] = kit_alloc(arena, 8 * MIB, kit_stream[0]);
    CHECK((char *)edge[1] - (char *)edge[0] == 120 * (ptrdiff_t)MIB);
    CHECK_RESULT(gpupool_set_limit(arena, kit_reserved(arena)), GPUPOOL_OK);
    for (int i = 0; i < 2; i++)
        CHECK_RESULT(gpupool_free(arena, edge[i], kit_stream[0]), GPUPOOL_OK);
    stitched = kit_alloc(arena, 16 * MIB, kit_stream[0]);
    CHECK_EQ(kit_stats(arena).stitches, 1);
}

static void a_half_of_a_stitched_block(void) {
    gpupool_verdict why;
    int i = 0;
    open_stitched();
    meanwhile = put_the_stitched;
    CHECK(!kit_fits(arena, 32 * MIB, &why));
    CHECK(meanwhile == NULL);
    while (i < GPUPOOL_HOLDERS && why.holders[i].block_bytes != 16 * MIB) i++;
    if (CHECK(i < GPUPOOL_HOLDERS)) {
        CHECK_EQ(why.holders[i].blocks, 2);
        CHECK_EQ(why.holders[i].enough, 2);
    }
    for (i = 0; i < 2; i++) {
        CHECK_RESULT(gpupool_free(arena, alike[i], kit_stream[0]), GPUPOOL_OK);
        CHECK_RESULT(gpupool_free(arena, rest[i], kit_stream[0]), GPUPOOL_OK);
    }
    close_filled();
}
#endif

int main(void) {
#if CHECK_FAKE && (defined(__x86_64__) || defined(__i386__))
    ARENA_TEST(the_left_neighbour_comes_and_goes);
    ARENA_TEST(the_left_neighbour_goes);
    ARENA_TEST(some_more);
    ARENA_TEST(more_than_there_is_room_for);
    ARENA_TEST(a_half_of_a_stitched_block);
#else
    check_skip("what happens while runs are copied", "needs fakecuda's controls and an x86");
#endif
    return check_finish();
}
