/* How large a block a verdict says is free, and fits: in one piece, aligned, stitched or pending,
   and of chunks that can go for a larger one; and how it spells that. */
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "verdict_kit.h"
#include "arena_scene.h"

#if CHECK_FAKE

/* ---- free memory ---- */

/* The largest that free memory makes: where it can be stitched of several pieces, whoever has freed
   them; of the host's only once nobody is at it. */
static void the_largest_block_there_is(void) {
    void *block[4];
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 8 * MIB);
    for (int i = 0; i < 4; i++) block[i] = get(2 * MIB, i);
    fake_mode(FAKE_STEPPED);
    for (int i = 0; i < 3; i += 2) {
        kit_mark(kit_stream[i], block[i], 2 * MIB, 1);
        put(block[i], i);
    }
    CHECK_EQ(would_not_fit(arena, 8 * MIB, GPUPOOL_CAUSE_LIMIT).largest_block_bytes, 4 * MIB);
    CHECK_EQ(kit_stats(arena).largest_free_bytes, 2 * MIB);
    for (int i = 1; i < 4; i += 2) put(block[i], i);
    finish();
    arena = kit_open_limited(GPUPOOL_SOURCE_PINNED, MIB);
    block[0] = get(MIB, 0);
    fake_mode(FAKE_STEPPED);
    kit_fill(kit_stream[0], block[0], 64, 1);
    put(block[0], 0);
    CHECK_EQ(would_not_fit(arena, MIB, GPUPOOL_CAUSE_PENDING).largest_block_bytes, 0);
    fake_mode(FAKE_EAGER);
    CHECK_RESULT(gpupool_wait_all(arena), GPUPOOL_OK);
    CHECK_EQ(would_not_fit(arena, 2 * MIB, GPUPOOL_CAUSE_LIMIT).largest_block_bytes, MIB);
    kit_close(arena);
}

/* Free in all, but in no run, and some of it not even free yet. */
static void fragments_not_yet_free(void) {
    void *block[6];
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_DEVICE);
    config.limit_bytes = 64 * MIB; /* and what it leaves for more counts as free */
    config.chunk_bytes = 60 * MIB;
    arena = kit_create(&config);
    for (int i = 0; i < 6; i++) block[i] = get(10 * MIB, 0);
    fake_mode(FAKE_STEPPED);
    put(block[0], 0);
    kit_mark(kit_stream[0], block[2], 64, 1);
    put(block[2], 0);
    gpupool_verdict v = would_not_fit(arena, 15 * MIB, GPUPOOL_CAUSE_FRAGMENTED);
    says(&v, "24.00 MiB is free in all, but no more than 10.00 MiB in one "
             "piece, with 20.00 MiB pending: ");
    /* the largest that fits is found by trying others: the sentence is of what was asked for */
    for (size_t more = 512; more < 64 * 512; more += 512) {
        v = would_not_fit(arena, 15 * MIB + more, GPUPOOL_CAUSE_FRAGMENTED);
        CHECK_EQ(v.fits_bytes, 10 * MIB);
        says(&v, "no more than 10.00 MiB in one piece, with");
    }
    fake_mode(FAKE_EAGER);
    for (int i = 1; i < 6; i++)
        if (i != 2) put(block[i], 0);
    kit_close(arena);
}

/* The longest run has room for it, but nowhere at such an address. */
static void room_that_is_not_aligned(void) {
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 4 * MIB);
    void *before = get(512, 0), *block = get(MIB, 0);
    void *rest = get(3 * MIB - 512, 0);
    put(block, 0);
    CHECK(!gpupool_alloc_aligned(arena, 4096, MIB, kit_stream[0]));
    gpupool_verdict v;
    CHECK_RESULT(gpupool_last_verdict(&v), GPUPOOL_OK);
    CHECK_EQ(v.cause, GPUPOOL_CAUSE_FRAGMENTED);
    says(&v, "no more than 1.00 MiB in one piece, and none that would do is "
             "aligned as asked: ");
    CHECK_EQ(v.fits_bytes, 512);
    CHECK(!gpupool_alloc_aligned(arena, 4096, 2 * MIB, kit_stream[0]));
    CHECK_RESULT(gpupool_last_verdict(&v), GPUPOOL_OK);
    CHECK_EQ(v.fits_bytes, 0);
    CHECK(!gpupool_alloc_aligned(arena, MIB, MIB, kit_stream[0]));
    CHECK(strstr(gpupool_last_error(), " is aligned as asked") != NULL);
    CHECK(!gpupool_alloc_aligned(arena, 4 * MIB, MIB, kit_stream[0])); /* too large for any */
    CHECK(strstr(gpupool_last_error(), "aligned") == NULL);
    fake_hold(kit_stream[1], 1); /* a place that will do, but cannot be waited for */
    kit_fill(kit_stream[1], before, 512, 1);
    put(before, 1);
    CHECK_EQ(cudaStreamBeginCapture(kit_stream[0], cudaStreamCaptureModeRelaxed), cudaSuccess);
    CHECK(!gpupool_alloc_aligned(arena, 4096, MIB, kit_stream[0]));
    CHECK(strstr(gpupool_last_error(), "a capturing stream cannot wait") != NULL);
    CHECK(strstr(gpupool_last_error(), "aligned") == NULL);
    drop_capture(kit_stream[0]);
    fake_hold(kit_stream[1], 0);
    put(rest, 0);
    put(get(4096, 0), 0);
    kit_close(arena);
}

/* ---- new memory ---- */

/* The device has 800 KiB left, or more, in no whole granule: so large a block can be had, up to
   1 MiB, though a larger one cannot be made of what is free. */
static void a_small_chunk_is_what_fits(void) {
    static const gpupool_source sources[] = {GPUPOOL_SOURCE_DEVICE, GPUPOOL_SOURCE_CUSTOM};
    static const size_t left[] = {800 * KIB, 1200 * KIB};
    void *block[8];
    for (size_t k = 0; k < 4; k++) {
        /* a chunk of one's own may begin anywhere, which costs a unit */
        size_t fit = k < 2 ? 800 * KIB - k % 2 * 512 : MIB - k % 2 * 512;
        check_case("source %d, %zu left", (int)sources[k % 2], left[k / 2]);
        fake_device_memory(0, 4 * MIB + left[k / 2]);
        open_in_chunks(sources[k % 2], 4 * MIB);
        for (int i = 0; i < 8; i++) block[i] = get(512 * KIB - 512, 0);
        for (int i = 0; i < 8; i += 2) put(block[i], 0);
        CHECK_EQ(kit_reserved(arena), 4 * MIB);
        gpupool_verdict v = would_not_fit(arena, 3 * MIB / 2, GPUPOOL_CAUSE_FRAGMENTED);
        CHECK_EQ(v.fits_bytes, fit);
        says(&v, k < 2 ? "no more than 800 KiB in one piece"
                       : "no more than 1.00 MiB in one piece");
        put(get(fit, 0), 0);
        for (int i = 1; i < 8; i += 2) put(block[i], 0);
        kit_close(arena);
    }
}

/* A chunk of one's own need not be of whole granules, though the device gives these: the limit
   counts what was asked for. What is said to fit is had, and not a unit more. */
static void chunks_of_ones_own_up_to_the_limit(void) {
    void *block[6];
    open_in_chunks(GPUPOOL_SOURCE_CUSTOM, 60 * MIB);
    for (int i = 0; i < 6; i++) block[i] = get(10 * MIB - 512, 0);
    CHECK_EQ(kit_reserved(arena), 60 * MIB);
    for (int i = 0; i < 6; i += 2) put(block[i], 0);
    for (int full = 0; full < 2; full++) {
        size_t limit = full ? GIB : 60 * MIB + 25 * MIB / 2, more = full ? 12 * MIB : 25 * MIB / 2;
        check_case("device full: %d", full);
        CHECK_RESULT(gpupool_set_limit(arena, limit), GPUPOOL_OK);
        if (full) others_take_all_but(more);
        gpupool_verdict v = refuses(arena, 15 * MIB + 4096, GPUPOOL_CAUSE_FRAGMENTED);
        says(&v, full ? "42.00 MiB is free in all" : "42.50 MiB is free in all");
        CHECK_EQ(v.fits_bytes, more - 512);
        CHECK(!kit_fits(arena, (size_t)v.fits_bytes + 512, NULL));
        fits(arena, (size_t)v.fits_bytes);
        trim_none();
        CHECK_RESULT(gpupool_trim(arena, 60 * MIB, NULL), GPUPOOL_OK);
    }
    fake_other_process(0, 0);
    for (int i = 1; i < 6; i += 2) put(block[i], 0);
    kit_close(arena);
}

/* On a full device, all of these chunks but the last can go. What is asked for cannot be made of
   them, though it is no larger, and this is the most that can. */
static void chunks_that_go_make(const size_t *chunk, size_t count, size_t asked, size_t most) {
    void *block[4];
    fake_packed(1);
    arena = kit_open(GPUPOOL_SOURCE_CUSTOM);
    for (size_t i = 0; i < count; i++) {
        CHECK_RESULT(gpupool_set_limit(arena, kit_reserved(arena) + chunk[i]), GPUPOOL_OK);
        block[i] = get(chunk[i] - 512, 0);
    }
    CHECK_RESULT(gpupool_set_limit(arena, 0), GPUPOOL_OK);
    CHECK_EQ(kit_stats(arena).chunks_gained, count);
    others_take_all_but(0);
    for (size_t i = 0; i < count - 1; i++) put(block[i], 0);
    gpupool_verdict v = would_not_fit(arena, asked, GPUPOOL_CAUSE_FRAGMENTED);
    CHECK_EQ(v.fits_bytes, most);
    fits(arena, most);
    put(block[count - 1], 0);
    fake_other_process(0, 0);
    kit_close(arena);
}

/* Three chunks of 1 MiB that go make one granule and a half: no larger chunk is had of the half. */
static void half_a_granule_is_none(void) {
    const size_t chunk[] = {MIB, MIB, MIB, MIB};
    chunks_that_go_make(chunk, 4, 3 * MIB - 512, 2 * MIB - 512);
}

/* Nor is it had of a chunk of 1 MiB and one of half as much. */
static void three_quarters_of_a_granule_are_none(void) {
    const size_t chunk[] = {MIB, MIB / 2, MIB};
    chunks_that_go_make(chunk, 3, 3 * MIB / 2 - 512, MIB);
}

/* ---- without a wait of the host ---- */

/* A tag's idle chunk goes for a block, and another stream's memory is stitched into one behind a
   wait on the device; but not both for the same block. */
static void a_tags_chunk_or_what_is_unfinished(void) {
    gpupool_tag_config can_sleep;
    gpupool_request request = kit_request(2 * MIB, kit_stream[0], 0);
    void *block[2], *of_tag;
    memset(&can_sleep, 0, sizeof can_sleep);
    can_sleep.can_sleep = 1;
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 8 * MIB);
    CHECK_RESULT(gpupool_tag(arena, "t", &can_sleep, &request.tag), GPUPOOL_OK);
    of_tag = gpupool_alloc_request(arena, &request);
    block[0] = get(4 * MIB, 0);
    block[1] = get(2 * MIB, 1);
    put(of_tag, 0);
    arena->short_until = arena->clocks.position + 1024; /* frees record events */
    fake_mode(FAKE_STEPPED);
    kit_mark(kit_stream[0], block[0], 4 * MIB, 1);
    put(block[0], 0);
    would_not_fit(arena, 6 * MIB, GPUPOOL_CAUSE_PENDING);
    CHECK(!kit_alloc_as(arena, 6 * MIB, kit_stream[3], GPUPOOL_NO_WAIT));
    CHECK(kit_fits(arena, 4 * MIB, NULL));
    put(take_without_a_wait(4 * MIB, 3), 3);
    put(block[1], 1);
    run_and_finish();
}

/* ---- words ---- */

/* Three digits before the unit, at most; and "free 9 MiB" is never rounded down to too little. */
static void sizes_are_spelled(void) {
    static const struct { uint64_t bytes; const char *near, *enough; } sizes[] = {
        {0, "0 B", "0 B"},
        {999, "999 B", "999 B"},
        {1000, "0.98 KiB", "0.98 KiB"},
        {9 * MIB + 1, "9.00 MiB", "9.01 MiB"},
        {99 * KIB + 512, "99.50 KiB", "99.50 KiB"},
        {100 * MIB + 1, "100 MiB", "101 MiB"},
        {1000 * GIB, "0.98 TiB", "0.98 TiB"},
        {2000 * 1024 * GIB, "2000 TiB", "2000 TiB"}};
    char room[32];
    for (size_t i = 0; i < KIT_COUNT(sizes); i++) {
        check_case("%s", sizes[i].near);
        CHECK_EQ(strcmp(gpi_limit_human(room, sizes[i].bytes), sizes[i].near), 0);
        CHECK_EQ(strcmp(gpi_limit_enough(room, sizes[i].bytes), sizes[i].enough), 0);
    }
}
#endif

int main(void) {
    FAKE_TEST(the_largest_block_there_is);
    FAKE_TEST(fragments_not_yet_free);
    FAKE_TEST(room_that_is_not_aligned);
    FAKE_TEST(a_small_chunk_is_what_fits);
    FAKE_TEST(chunks_of_ones_own_up_to_the_limit);
    FAKE_TEST(half_a_granule_is_none);
    FAKE_TEST(three_quarters_of_a_granule_are_none);
    FAKE_TEST(a_tags_chunk_or_what_is_unfinished);
    FAKE_TEST(sizes_are_spelled);
    return check_finish();
}
