/* How growth chooses: which idle pieces go, how large chunks are, and that a limit which is just
   met is met. The figures are worked out here, from the rules in the comments of BACKING. */
#define GPUPOOL_IMPLEMENTATION
#include "../gpupool.h"
#include "arena_kit.h"

#if CHECK_FAKE

#define GRANULE (2 * MIB / 512) /* units */

static gpupool_arena *arena;

static void *get(size_t bytes) { return kit_alloc(arena, bytes, kit_stream[0]); }
static void put(void *block) {
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
}

/* ---- the stash ---- */

static void stash(size_t granules) {
    gpi_piece *piece = NULL;
    CHECK_RESULT(gpi_backing_create(&arena->backing, granules * GRANULE, &piece), GPUPOOL_OK);
}

static int stashed(void) {
    int n = 0;
    for (const gpi_piece *piece = arena->backing.stash; piece; piece = piece->next) n++;
    return n;
}

/* Of so many small pieces in the stash, with so much held in all: how many are left once a piece
   for a large gap has been chosen, and how large the new one is to be. */
static int left_of(size_t held, size_t pieces, size_t granules, uint64_t *units) {
    gpi_piece *best;
    int left;
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    void *block = get(held - pieces * granules * 2 * MIB);
    gpi_host_lock(&arena->lock);
    for (size_t i = 0; i < pieces; i++) stash(granules);
    *units = 7;
    best = gpi_backing_choose(&arena->backing, &arena->tree, 64 * GRANULE, units);
    left = stashed();
    CHECK_EQ(best == NULL, left < (int)pieces); /* one that is there, or room for a new one */
    gpi_host_unlock(&arena->lock);
    put(block);
    kit_close(arena);
    return left;
}

/* A piece as large as a 512th of what is held takes the place of small ones, if it is twice as
   large at least. */
static void small_pieces_make_room_for_a_large_one(void) {
    uint64_t units;
    /* 8 GiB: a 512th is 8 granules */
    CHECK_EQ(left_of(8 * GIB, 10, 1, &units), 2);
    CHECK_EQ(units, 8 * GRANULE);
    CHECK_EQ(left_of(8 * GIB, 10, 5, &units), 10);
    CHECK_EQ(units, 7);
    CHECK_EQ(left_of(8 * GIB, 10, 4, &units), 8);
    CHECK_EQ(units, 8 * GRANULE);
    CHECK_EQ(left_of(8 * GIB, 10, 3, &units), 7);
    CHECK_EQ(units, 8 * GRANULE);
    /* half a GiB: a 512th is less than a granule */
    CHECK_EQ(left_of(GIB / 2, 10, 1, &units), 10);
    CHECK_EQ(units, 7);
    /* a granule less than 4 GiB: 3 granules, and not 4 */
    CHECK_EQ(left_of(4 * GIB - 2 * MIB, 10, 1, &units), 7);
    CHECK_EQ(units, 3 * GRANULE);
    CHECK_EQ(left_of(4 * GIB, 10, 1, &units), 6);
    CHECK_EQ(units, 4 * GRANULE);
    /* too few to add up to it: no more than they were */
    CHECK_EQ(left_of(8 * GIB, 3, 1, &units), 0);
    CHECK_EQ(units, 3 * GRANULE);
}

/* No more is given back than must be. */
static void room_is_made_for_just_so_much(void) {
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    void *block = get(8 * MIB);
    gpi_host_lock(&arena->lock);
    for (int i = 0; i < 3; i++) stash(1);
    CHECK_RESULT(gpi_backing_make_room(&arena->backing, &arena->tree, GRANULE, 8 * GRANULE),
                 GPUPOOL_OK);
    CHECK_EQ(stashed(), 3);
    CHECK_RESULT(gpi_backing_make_room(&arena->backing, &arena->tree, GRANULE, 7 * GRANULE),
                 GPUPOOL_OK);
    CHECK_EQ(stashed(), 2);
    CHECK_RESULT(gpi_backing_make_room(&arena->backing, &arena->tree, 0, 0), GPUPOOL_OK);
    CHECK_EQ(stashed(), 0);
    gpi_host_unlock(&arena->lock);
    put(block);
    kit_close(arena);
}

/* ---- chunks ---- */

/* An eighth of what is held, in whole granules, at most a GiB, and no less than is needed. */
static void chunks_of_an_eighth(void) {
    uint64_t none = UINT64_MAX;
    arena = kit_open(GPUPOOL_SOURCE_DEVICE);
    void *block = get(64 * MIB);
    CHECK_EQ(gpi_backing_chunk_size(&arena->backing, 512, none), 8 * MIB);
    CHECK_EQ(gpi_backing_chunk_size(&arena->backing, 9 * MIB, none), 10 * MIB);
    put(block);
    CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
    block = get(16 * GIB);
    CHECK_EQ(gpi_backing_chunk_size(&arena->backing, 512, none), GIB);
    put(block);
    kit_close(arena);
}

/* The last of a limit: whole granules, while there is one; then what is left, to a MiB. */
static void chunks_within_a_limit(void) {
    arena = kit_open(GPUPOOL_SOURCE_DEVICE);
    void *block = get(64 * MIB);
    CHECK_EQ(gpi_backing_chunk_size(&arena->backing, 512, 64 * MIB + 5 * MIB), 4 * MIB);
    CHECK_EQ(gpi_backing_chunk_size(&arena->backing, 512, 64 * MIB + 2 * MIB), 2 * MIB);
    CHECK_EQ(gpi_backing_chunk_size(&arena->backing, 512, 64 * MIB + 2 * MIB - 1), MIB);
    CHECK_EQ(gpi_backing_chunk_size(&arena->backing, 512, 64 * MIB + 5000), 4608);
    put(block);
    kit_close(arena);
}

/* ---- within a limit ---- */

/* A limit that is just met is no reason to refuse, nor to move what is idle. */
static void a_limit_that_is_just_met(void) {
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 64 * MIB);
    void *first = get(32 * MIB), *second = get(32 * MIB);
    CHECK_EQ(kit_reserved(arena), 64 * MIB);
    CHECK_EQ(kit_stats(arena).remaps, 0);
    CHECK_RESULT(kit_why(gpupool_alloc(arena, 512, kit_stream[0])), GPUPOOL_E_OUT_OF_MEMORY);
    put(first);
    put(second);
    kit_close(arena);
}

/* Idle pieces that add up to the request, all of them elsewhere: just those move. */
static void what_is_idle_is_just_enough(void) {
    void *block[16];
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 32 * MIB);
    for (int i = 0; i < 16; i++) block[i] = get(2 * MIB);
    for (int i = 0; i < 16; i += 2) put(block[i]);
    CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
    void *large = get(16 * MIB);
    CHECK_EQ(kit_reserved(arena), 32 * MIB);
    CHECK_EQ(kit_stats(arena).remaps, 8);
    CHECK_RESULT(kit_why(gpupool_alloc(arena, 2 * MIB, kit_stream[0])), GPUPOOL_E_OUT_OF_MEMORY);
    put(large);
    for (int i = 1; i < 16; i += 2) put(block[i]);
    kit_close(arena);
}
#endif

int main(void) {
    FAKE_TEST(small_pieces_make_room_for_a_large_one);
    FAKE_TEST(room_is_made_for_just_so_much);
    FAKE_TEST(chunks_of_an_eighth);
    FAKE_TEST(chunks_within_a_limit);
    FAKE_TEST(a_limit_that_is_just_met);
    FAKE_TEST(what_is_idle_is_just_enough);
    return check_finish();
}
