/* Which blocks a verdict names to be freed, and how many of them are enough: holders of all sizes,
   how they are found among all blocks, and blocks that are of no help, since others lie beside
   them. */
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "verdict_kit.h"
#include "arena_scene.h"

#if CHECK_FAKE

/* So many blocks, and the limit leaves room for nothing else. */
static void open_filled(void **block, size_t count, size_t bytes) {
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, count * bytes);
    for (size_t i = 0; i < count; i++) block[i] = get(bytes, 0);
}

/* ---- who holds most ---- */

/* The only block there is, whatever its size. */
static void a_holder_of_any_size(void) {
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 8 * MIB);
    for (size_t bytes = 1; bytes < 1000 * KIB; bytes += 999) {
        void *block = get(bytes, 0);
        gpupool_verdict v = would_not_fit(arena, 8 * MIB, GPUPOOL_CAUSE_LIMIT);
        CHECK_EQ(v.holders[0].block_bytes, bytes);
        CHECK_EQ(v.holders[0].blocks, 1);
        CHECK_EQ(v.holders[0].enough, 1);
        CHECK_EQ(v.holders[1].blocks, 0);
        put(block, 0);
    }
    kit_close(arena);
}

/* A size stays with a slot while more bytes spoke for it than against it. */
static void a_slot_goes_to_the_size_with_most_bytes(void) {
    static const struct { uint64_t bytes, size, votes; } said[] = {
        {10, 10, 10}, {10, 10, 20}, {14, 10, 6}, {9, 9, 3}, {3, 9, 0}, {4, 4, 4}, {4, 4, 8}};
    gpi_votes ballot;
    memset(&ballot, 0, sizeof ballot);
    for (size_t i = 0; i < KIT_COUNT(said); i++) {
        check_case("vote %zu", i);
        gpi_verdict_vote_in(&ballot, 1, said[i].bytes, 0);
        CHECK_EQ(ballot.sizes[1], said[i].size);
        CHECK_EQ(ballot.votes[1], said[i].votes);
    }
}

/* Three sizes of which none has most of the slot where they meet: each has its own blocks. */
static void sizes_that_meet_in_a_slot(void) {
    static const uint64_t asked[] = {6922, 8142, 2364, 2364};
    gpi_snapshot_run runs[KIT_COUNT(asked)];
    gpi_holding top[GPUPOOL_HOLDERS];
    gpi_scene scene = {.runs = runs, .run_count = KIT_COUNT(asked)};
    memset(runs, 0, sizeof runs);
    for (size_t i = 0; i < KIT_COUNT(asked); i++) {
        runs[i].is_block = 1;
        runs[i].asked_bytes = asked[i];
        CHECK_EQ(gpi_verdict_bucket(asked[i], 0), gpi_verdict_bucket(asked[0], 0));
    }
    gpi_verdict_holders(&scene, top, GPUPOOL_HOLDERS);
    for (size_t i = 0; i < 3; i++) {
        uint64_t size = asked[i == 0 ? 1 : i == 1 ? 0 : 2];
        CHECK_EQ(top[i].shown.block_bytes, size);
        CHECK_EQ(top[i].shown.blocks, i < 2 ? 1 : 2);
        CHECK_EQ(top[i].shown.bytes, i < 2 ? size : 2 * size);
    }
}

/* One holder more than a verdict has room for: the biggest are named, and the tag behind them is
   left alone. */
static void no_more_holders_than_there_is_room_for(void) {
    gpi_snapshot_run runs[GPUPOOL_HOLDERS + 1];
    gpi_scene scene = {.runs = runs, .run_count = GPUPOOL_HOLDERS + 1};
    gpupool_verdict verdict = {.cause = GPUPOOL_CAUSE_TOO_LARGE, .tag = 77,
                               .sentence = "as before"};
    memset(runs, 0, sizeof runs);
    for (uint64_t i = 0; i <= GPUPOOL_HOLDERS; i++) {
        runs[i].is_block = 1;
        runs[i].asked_bytes = 700 + i;
    }
    gpi_verdict_name_holders(&verdict, &scene);
    for (uint64_t i = 0; i < GPUPOOL_HOLDERS; i++)
        CHECK_EQ(verdict.holders[i].block_bytes, 700 + GPUPOOL_HOLDERS - i);
    CHECK_EQ(verdict.tag, 77);
    CHECK(strcmp(verdict.sentence, "as before") == 0);
}

/* What lies behind the last run that was copied, and behind the last block that there is room for,
   is left alone. */
static void no_further_than_the_last(void) {
    struct { gpi_holding holding; uint64_t behind; } noted;
    gpi_snapshot_run runs[GPI_SUBSETS + 1];
    gpi_scene scene = {.runs = runs, .run_count = GPI_SUBSETS + 1};
    memset(&noted, 0, sizeof noted);
    memset(runs, 0, sizeof runs);
    noted.holding.shown.block_bytes = 700;
    for (uint64_t i = 0; i <= GPI_SUBSETS; i++) {
        runs[i].state = GPI_SNAPSHOT_LIVE;
        runs[i].is_block = 1;
        runs[i].asked_bytes = 700;
        runs[i].units = 2;
        runs[i].block = 10 + i;
    }
    gpi_verdict_find_blocks(&scene, &noted.holding);
    CHECK_EQ(noted.holding.blocks[GPI_SUBSETS - 1], 10 + GPI_SUBSETS - 1);
    CHECK_EQ(noted.behind, 0);
    memset(noted.holding.blocks, 0, sizeof noted.holding.blocks);
    scene.run_count = 1;
    gpi_verdict_find_blocks(&scene, &noted.holding);
    CHECK_EQ(noted.holding.blocks[0], 10);
    CHECK_EQ(noted.holding.blocks[1], 0);
    CHECK_EQ(gpi_verdict_own_bytes(&scene), 2 * 512);
    gpupool_verdict verdict = {.reserved_bytes = 10 * 512};
    for (int i = 0; i < 2; i++) {
        runs[i].tag = 1;
        runs[i].state = GPI_SNAPSHOT_FREE;
    }
    CHECK_EQ(gpi_verdict_free_bytes(&verdict, &scene), 8 * 512);
}

/* ---- how many are enough ---- */

/* The blocks that hold most lie in a chunk with others, which would keep it: another holder is the
   one to turn to. */
static void the_biggest_holder_is_of_no_help(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_DEVICE);
    void *block[7];
    config.limit_bytes = 64 * MIB;
    config.reserve_bytes = 32 * MIB;
    arena = kit_create(&config);
    for (int i = 0; i < 6; i++) block[i] = get_on(i % 2 ? (size_t)(i + 1) * KIB : 10 * MIB, 0);
    block[6] = get_on(28 * MIB, 0);
    gpupool_verdict v = would_not_fit(arena, 28 * MIB, GPUPOOL_CAUSE_LIMIT);
    CHECK(v.holders[0].block_bytes == 10 * MIB && v.holders[0].enough == 0);
    CHECK(v.holders[1].block_bytes == 28 * MIB && v.holders[1].enough == 1);
    says(&v, "free the block of 28.00 MiB");
    for (int i = 6; i >= 0; i--) put_on(block[i], 0);
    kit_close(arena);
}

/* Of what is to be freed, that which only waits for its stream makes the rest of the room. */
static void what_will_be_free_needs_no_freeing(void) {
    void *block[4];
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 8 * MIB);
    fake_mode(FAKE_STEPPED);
    for (int i = 0; i < 4; i++) block[i] = get(2 * MIB, 1);
    kit_fill(kit_stream[1], block[0], 64, 1);
    put(block[0], 1);
    gpupool_verdict v = would_not_fit(arena, 4 * MIB, GPUPOOL_CAUSE_LIMIT);
    CHECK_EQ(v.pending_bytes, 2 * MIB);
    CHECK_EQ(v.holders[0].enough, 1);
    for (int i = 1; i < 4; i++) put(block[i], 1);
    finish();
}

/* Of many blocks, one that shares its chunk makes no room when it goes: then it takes all. */
static void the_first_of_many_blocks_is_of_no_help(void) {
    void *block[9], *beside = NULL;
    open_in_chunks(GPUPOOL_SOURCE_DEVICE, 4 * MIB);
    for (int i = 0; i < 9; i++) {
        block[i] = get(2 * MIB, 0);
        if (i == 0) beside = get(2 * MIB - 512, 0);
        CHECK_RESULT(gpupool_set_limit(arena, kit_reserved(arena) + 2 * MIB), GPUPOOL_OK);
    }
    gpupool_verdict v = would_not_fit(arena, 6 * MIB, GPUPOOL_CAUSE_LIMIT);
    CHECK_EQ(v.holders[0].blocks, 9);
    CHECK_EQ(v.holders[0].enough, 9);
    CHECK_RESULT(gpupool_set_limit(arena, kit_reserved(arena) + 6 * MIB - 512), GPUPOOL_OK);
    v = would_not_fit(arena, 6 * MIB, GPUPOOL_CAUSE_FRAGMENTED); /* for want of a unit */
    CHECK_EQ(v.holders[0].enough, 9);
    for (int i = 0; i < 9; i++) put(block[i], 0);
    put(beside, 0);
    kit_close(arena);
}

/* Nor does the last, where it is at the end of a chunk that another has begun. */
static void nor_is_the_last(void) {
    void *block[9], *beside;
    open_in_chunks(GPUPOOL_SOURCE_DEVICE, 4 * MIB);
    beside = get(2 * MIB - 1, 0);
    for (int i = 0; i < 9; i++) {
        block[i] = get(2 * MIB, 0);
        CHECK_RESULT(gpupool_set_limit(arena, kit_reserved(arena) + 2 * MIB), GPUPOOL_OK);
    }
    CHECK(block[0] == (char *)beside + 2 * MIB);
    gpupool_verdict v = would_not_fit(arena, 6 * MIB, GPUPOOL_CAUSE_LIMIT);
    CHECK_EQ(v.holders[0].blocks, 9);
    CHECK_EQ(v.holders[0].enough, 9);
    for (int i = 0; i < 9; i++) put(block[i], 0);
    put(beside, 0);
    kit_close(arena);
}

/* Of more blocks than every choice is tried of, so many are enough wherever they lie. */
static void many_blocks_of_one_size(void) {
    void *blocks[12], *others[2];
    arena = kit_open_limited(GPUPOOL_SOURCE_BYPASS, 25 * MIB);
    others[0] = get(MIB / 2, 0);
    for (size_t i = 0; i < 12; i++) blocks[i] = get(2 * MIB, 0);
    others[1] = get(MIB / 2, 0);
    gpupool_verdict v = would_not_fit(arena, 6 * MIB, GPUPOOL_CAUSE_LIMIT);
    CHECK_EQ(v.holders[0].blocks, 12);
    CHECK_EQ(v.holders[0].enough, 3);
    v = would_not_fit(arena, 4 * MIB + 1, GPUPOOL_CAUSE_LIMIT);
    CHECK_EQ(v.holders[0].enough, 3);
    for (size_t i = 0; i < 2; i++) put(others[i], 0);
    for (size_t i = 0; i < 12; i++) put(blocks[i], 0);
    kit_close(arena);
    open_filled(blocks, 12, 3 * MIB);
    v = would_not_fit(arena, 3 * MIB, GPUPOOL_CAUSE_LIMIT);
    CHECK_EQ(v.holders[0].enough, 1); /* as large as what is asked for */
    v = would_not_fit(arena, 4 * MIB, GPUPOOL_CAUSE_LIMIT);
    CHECK_EQ(v.holders[0].enough, 3); /* each has a piece of its own; one more may be in the way */
    for (size_t i = 0; i < 12; i++) put(blocks[i], 0);
    kit_close(arena);
    for (size_t count = 8; count < 10; count++) {
        open_filled(blocks, count, 2 * MIB);
        v = would_not_fit(arena, 4 * MIB, GPUPOOL_CAUSE_LIMIT);
        CHECK_EQ(v.holders[0].enough, count == 8 ? 2 : 3); /* of eight, all choices are tried */
        for (size_t i = 0; i < count; i++) put(blocks[i], 0);
        kit_close(arena);
    }
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_DEVICE);
    config.chunk_bytes = 64 * MIB; /* a chunk each */
    config.limit_bytes = 12 * 64 * MIB;
    arena = kit_create(&config);
    for (size_t i = 0; i < 12; i++) blocks[i] = get(64 * MIB, 0);
    v = would_not_fit(arena, 128 * MIB, GPUPOOL_CAUSE_LIMIT);
    CHECK_EQ(v.holders[0].enough, 2);
    for (size_t i = 3; i < 12; i += 5) put(blocks[i], 0);
    void *large = get(128 * MIB, 0);
    put(large, 0);
    for (size_t i = 0; i < 12; i++)
        if (i % 5 != 3) put(blocks[i], 0);
    kit_close(arena);
}

/* Of many that are stitched, each gives all of its chunks. */
static void many_stitched_blocks(void) {
    enum { CHUNKS = 36, STITCHED = CHUNKS / 4 };
    void *chunk[CHUNKS], *stitched[STITCHED];
    open_filled(chunk, CHUNKS, 2 * MIB);
    for (int i = 0; i < CHUNKS; i += 2) put(chunk[i], 0);
    for (int i = 0; i < STITCHED; i++) stitched[i] = get(4 * MIB, 0);
    CHECK_EQ(kit_stats(arena).stitches, STITCHED);
    gpupool_verdict v = would_not_fit(arena, 8 * MIB, GPUPOOL_CAUSE_LIMIT);
    const gpupool_holder *large = &v.holders[v.holders[0].block_bytes == 2 * MIB];
    CHECK_EQ(large->blocks, STITCHED);
    CHECK_EQ(large->block_bytes, 4 * MIB);
    CHECK_EQ(large->enough, 3); /* as if one lay across chunks */
    for (int i = 0; i < STITCHED; i++) put(stitched[i], 0);
    for (int i = 1; i < CHUNKS; i += 2) put(chunk[i], 0);
    kit_close(arena);
}

/* Of the large blocks, side by side, any two neighbours would do: so any five of seven. Where it
   can look at some of the choices only, it does not advise fewer. */
static void choices_among_too_much_memory(void) {
    enum { LARGE = 7, PARTS = 200000 };
    static void *part[PARTS];
    void *large[LARGE];
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_DEVICE);
    config.limit_bytes = config.chunk_bytes = 320 * MIB;
    arena = kit_create(&config);
    for (int i = 0; i < LARGE; i++) large[i] = get(30 * MIB, 0);
    void *rest = get(100 * MIB, 0);
    gpupool_verdict v = would_not_fit(arena, 60 * MIB, GPUPOOL_CAUSE_LIMIT);
    CHECK_EQ(v.holders[0].block_bytes, 30 * MIB);
    CHECK_EQ(v.holders[0].enough, 5);
    put(rest, 0);
    for (int i = 0; i < PARTS; i++) part[i] = get(512, 0);
    for (int i = 0; i < PARTS; i += 2) put(part[i], 0);
    v = would_not_fit(arena, 60 * MIB, GPUPOOL_CAUSE_FRAGMENTED);
    CHECK_EQ(v.holders[0].block_bytes, 30 * MIB);
    CHECK(v.holders[0].enough > 5 && v.holders[0].enough <= LARGE);
    for (int i = 0; i < LARGE; i++) put(large[i], 0);
    for (int i = 1; i < PARTS; i += 2) put(part[i], 0);
    kit_close(arena);
}

/* ---- all of them ---- */

/* No more is to be freed than there is. */
static void more_than_all_blocks_hold(void) {
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 16 * MIB);
    void *one = get(512 * KIB, 0), *other = get(300 * KIB, 0);
    gpupool_verdict v = refuses(arena, 17 * MIB, GPUPOOL_CAUSE_LIMIT);
    says(&v, ": raise the limit by ");
    CHECK(strstr(v.sentence, "free") == NULL);
    v = refuses(arena, 16 * MIB, GPUPOOL_CAUSE_LIMIT);
    says(&v, ", or free all blocks, which hold 812 KiB");
    put(one, 0);
    put(other, 0);
    fits(arena, 16 * MIB);
    kit_close(arena);
    arena = kit_open(GPUPOOL_SOURCE_DEVICE); /* where addresses for it would have to be got too */
    one = get(KIB, 0);
    CHECK(!gpupool_alloc_aligned(arena, MIB, (size_t)1 << 40, kit_stream[0]));
    CHECK(strstr(gpupool_last_error(), ": ask for less") != NULL);
    put(one, 0);
    kit_close(arena);
}

/* Each block alone is too little, and both are just enough. */
static void two_blocks_are_what_is_missing(void) {
    arena = kit_open_limited(GPUPOOL_SOURCE_BYPASS, 4 * MIB);
    void *large = get(3 * 512 * KIB, 0), *small = get(512 * KIB, 0);
    gpupool_verdict v = refuses(arena, 4 * MIB, GPUPOOL_CAUSE_LIMIT);
    says(&v, "free 2.00 MiB of what blocks hold, most of it in the block of 1.50");
    v = refuses(arena, 4 * MIB + 512, GPUPOOL_CAUSE_LIMIT); /* a unit more than they hold */
    CHECK(strstr(v.sentence, "free") == NULL);
    put(large, 0);
    put(small, 0);
    fits(arena, 4 * MIB);
    kit_close(arena);
}
#endif

int main(void) {
    FAKE_TEST(a_holder_of_any_size);
    FAKE_TEST(a_slot_goes_to_the_size_with_most_bytes);
    FAKE_TEST(sizes_that_meet_in_a_slot);
    FAKE_TEST(no_more_holders_than_there_is_room_for);
    FAKE_TEST(no_further_than_the_last);
    FAKE_TEST(the_biggest_holder_is_of_no_help);
    FAKE_TEST(what_will_be_free_needs_no_freeing);
    FAKE_TEST(the_first_of_many_blocks_is_of_no_help);
    FAKE_TEST(nor_is_the_last);
    FAKE_TEST(many_blocks_of_one_size);
    FAKE_TEST(many_stitched_blocks);
    FAKE_TEST(choices_among_too_much_memory);
    FAKE_TEST(more_than_all_blocks_hold);
    FAKE_TEST(two_blocks_are_what_is_missing);
    return check_finish();
}
