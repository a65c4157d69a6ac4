/* Blocks that a stream's cache has, or has handed out, in a whole arena: wrong calls with them,
   frees on other streams, caches that are full, or rest, and what becomes of their blocks when
   memory is short. */
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "arena_scene.h"

#if CHECK_FAKE

/* ---- what a cached block is to calls ---- */

static void mistakes_with_cached_blocks(void) {
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    void *keep = get(4096, 0), *block = get(4096, 0);
    put(block, 0);
    CHECK_EQ(kit_size(arena, block), 0);
    CHECK_RESULT(gpupool_last_result(), GPUPOOL_E_DOUBLE_FREE);
    put(keep, 0);
    CHECK_RESULT(gpupool_record_stream(arena, keep, kit_stream[1]), GPUPOOL_E_DOUBLE_FREE);
    put(get(4096, 0), 0);
    keep = get(4096, 0);
    CHECK_EQ(kit_size(arena, keep), 4096); /* handed out by the cache */
    put(keep, 0);
    kit_close(arena);
}

/* A block that the freeing stream's cache hands out is that stream's, whoever had it before. */
static void whose_a_cached_block_is(void) {
    gpupool_block found;
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    put(get(4096, 0), 0);
    void *block = get(8192, 1);
    kit_order(kit_stream[1], kit_stream[0]);
    put(block, 0);
    CHECK(get(8192, 0) == block);
    CHECK_RESULT(gpupool_get_block(arena, block, &found), GPUPOOL_OK);
    CHECK(found.stream == kit_stream[0]);
    put(block, 0);
    kit_close(arena);
}

/* As when another thread forgets the stream between two locks: it is known anew. */
static void the_stream_is_forgotten_meanwhile(void) {
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    void *block = get(4096, 0);
    gpi_caller call = gpi_arena_call(kit_stream[1]);
    CHECK_RESULT(gpi_block_free_slow(arena, block, &call), GPUPOOL_OK);
    CHECK(known_stream(1) != NULL);
    CHECK_EQ(kit_stats(arena).blocks.now, 0);
    kit_close(arena);
}

/* A call that has to open the locks keeps its stream's struct, and only as long as it runs. */
static void structs_are_kept_during_calls_only(void) {
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    put(get(4096, 1), 1);
    put(get(4096, 0), 0);
    gpi_stream *first = known_stream(0), *second = known_stream(1);
    put(get(4096, 0), 1); /* from the other's cache */
    CHECK_EQ(first->cache.used, 0);
    CHECK_EQ(second->refs, 0);
    void *block = get(4096, 0);
    put(block, 0);
    CHECK(get(4096, 0) == block);
    first->cache.most_units = 0; /* as if the bound had sunk meanwhile */
    put(block, 0);
    CHECK(first->cache.most_units > 0);
    CHECK_EQ(first->refs, 0);
    kit_close(arena);
}

/* The most that was in use is counted of all together, what a cache has handed out included. */
static void a_peak_of_a_cache_and_the_tree(void) {
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    void *large = get(20 * MIB, 0);
    put(get(1024, 0), 0);
    CHECK_RESULT(gpupool_reset_peaks(arena), GPUPOOL_OK);
    void *small = get(1024, 0);
    put(large, 0);
    CHECK_EQ(kit_stats(arena).granted.peak, 20 * MIB + 1024);
    put(small, 0);
    kit_close(arena);
}

/* ---- caches that are full, or rest ---- */

#define SLOTS 64

/* A cache whose every slot is of a block that is out: one of them has to make room. */
static void a_cache_full_of_blocks_that_are_out(void) {
    void *out[SLOTS], *one;
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    for (size_t i = 0; i < SLOTS; i++) {
        put(get(512 * (i + 1), 0), 0);
        out[i] = get(512 * (i + 1), 0); /* found there */
    }
    gpi_stream *known = known_stream(0);
    CHECK_EQ(known->cache.used, SLOTS);
    CHECK_EQ(known->cache.free_blocks, 0);
    one = get(60000, 0);
    put(one, 0);
    CHECK(known->cache.used <= SLOTS && known->cache.free_blocks == 1);
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    for (size_t i = 0; i < SLOTS; i++) put(out[i], 0);
    CHECK_EQ(kit_stats(arena).blocks.now, 0);
    kit_close(arena);
}

/* It takes a rest where fewer than half of the blocks that it had come again. */
static void a_cache_that_finds_little_rests(void) {
    for (size_t found = 16; found <= 48; found += 32) {
        arena = kit_open(GPUPOOL_SOURCE_MAPPED);
        for (size_t i = 0; i < SLOTS; i++) {
            put(get(512 * (i + 1), 0), 0);
            if (i < found) put(get(512 * (i + 1), 0), 0);
        }
        gpi_stream *known = known_stream(0);
        CHECK_EQ(known->cache.rest, found < 32 ? 1024 : 0);
        CHECK_EQ(known->cache.used != 0, found >= 32); /* while it rests it has no blocks */
        put(get(100000, 0), 0);
        CHECK_EQ(known->cache.rest, found < 32 ? 1023 : 0);
        kit_close(arena);
    }
}

/* While a stream's cache rests, the arena's lock alone does: not for what another cache has, nor
   for what is no block. */
static void frees_on_a_stream_that_rests(void) {
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    void *plain = get(4096, 0), *theirs;
    put(get(8192, 1), 1);
    theirs = get(8192, 1); /* from stream 1's cache, and out */
    gpi_stream *resting = known_stream(0);
    resting->cache.rest = 100;
    put(plain, 0);
    CHECK_EQ(resting->cache.rest, 99);
    CHECK_RESULT(gpupool_free(arena, plain, kit_stream[0]), GPUPOOL_E_DOUBLE_FREE);
    put(theirs, 0);
    CHECK_EQ(kit_stats(arena).blocks.now, 0);
    kit_close(arena);
}

/* A block that another stream's cache has handed out, freed on a stream whose own cache rests. */
static void freed_where_the_cache_rests(void) {
    arena = kit_open(GPUPOOL_SOURCE_DEVICE);
    put(get(512, 0), 0);
    void *lent = get(512, 0), *own = get(70000, 1);
    known_stream(1)->cache.rest = 8;
    kit_order(kit_stream[0], kit_stream[1]);
    put(lent, 1);
    put(own, 1);
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    CHECK_RESULT(gpupool_free(arena, lent, kit_stream[1]), GPUPOOL_E_DOUBLE_FREE);
    CHECK_EQ(kit_stats(arena).blocks.now, 0);
    kit_close(arena);
}

/* ---- room of a cache's blocks ---- */

/* What a cache keeps free makes room, all together, for what its stream asks: not new memory. */
static void a_cache_makes_room(void) {
    void *small[16], *rest;
    arena = kit_open(GPUPOOL_SOURCE_DEVICE);
    for (int i = 0; i < 16; i++) small[i] = get(4096, 0);
    rest = get_the_rest(0);
    size_t reserved = kit_reserved(arena);
    for (int i = 0; i < 16; i++) put(small[i], 0);
    gpi_stream *known = known_stream(0);
    CHECK_EQ(known->cache.free_blocks, 16);
    put(get(32 * KIB, 0), 0);
    CHECK_EQ(kit_reserved(arena), reserved);
    put(rest, 0);
    kit_close(arena);
}

/* A request that fails has emptied a cache: the block alone becomes the stream's, and not the
   finished unit beside it. */
static void emptied_without_the_neighbour(void) {
    open_in_chunks(GPUPOOL_SOURCE_DEVICE, 64 * MIB);
    char *cached = (char *)get(512, 0), *beside = (char *)get(512, 0);
    CHECK(beside == cached + 512);
    void *rest = get_the_rest(0);
    no_more_memory();
    put(beside, 0);
    trim_none();
    fake_mode(FAKE_STEPPED);
    kit_fill(kit_stream[0], cached, 64, 1);
    put(cached, 0);
    gpi_stream *known = known_stream(0);
    CHECK_EQ(known->cache.free_blocks, 1);
    CHECK_EQ(kit_stats(arena).pending.now, 512);
    CHECK_RESULT(kit_why(kit_alloc_as(arena, MIB, kit_stream[1], GPUPOOL_NO_WAIT)),
                 GPUPOOL_E_OUT_OF_MEMORY);
    CHECK_EQ(known->cache.free_blocks, 0);
    CHECK_EQ(kit_stats(arena).pending.now, 512);
    put(rest, 0);
    finish();
}
#endif

int main(void) {
    FAKE_TEST(mistakes_with_cached_blocks);
    FAKE_TEST(whose_a_cached_block_is);
    FAKE_TEST(the_stream_is_forgotten_meanwhile);
    FAKE_TEST(structs_are_kept_during_calls_only);
    FAKE_TEST(a_peak_of_a_cache_and_the_tree);
    FAKE_TEST(a_cache_full_of_blocks_that_are_out);
    FAKE_TEST(a_cache_that_finds_little_rests);
    FAKE_TEST(frees_on_a_stream_that_rests);
    FAKE_TEST(freed_where_the_cache_rests);
    FAKE_TEST(a_cache_makes_room);
    FAKE_TEST(emptied_without_the_neighbour);
    return check_finish();
}
