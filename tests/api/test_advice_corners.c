/* Places, sizes and advice that a hurried look gets wrong: memory that is had though there are many
   worse places before it, pieces that can still move, and what would do, to the byte. */
// build: units512
// build: units64k -DGPUPOOL_UNIT_BYTES=65536
#include "gpupool.h"
#include "verdict_kit.h"

#if CHECK_FAKE

static gpupool_arena *arena;
static void *block[512];
static size_t count;

static void open_with(gpupool_source source, size_t limit, size_t reserve) {
    gpupool_arena_config config = kit_config(source);
    config.limit_bytes = limit;
    config.reserve_bytes = reserve;
    arena = kit_create(&config);
    count = 0;
}

static size_t get(size_t bytes) {
    block[count] = kit_alloc(arena, bytes, kit_stream[0]);
    return count++;
}

static void put(size_t i) {
    CHECK_RESULT(gpupool_free(arena, block[i], kit_stream[0]), GPUPOOL_OK);
    block[i] = NULL;
}

static void close_all(void) {
    for (size_t i = 0; i < count; i++)
        if (block[i]) put(i);
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    kit_close(arena);
}

/* ---- places ---- */

/* Bare addresses between blocks: of a granule each, too few for the request; of two; and behind a
   block that ends amid a granule, where one granule will do. */
static void lay_gaps(size_t gaps) {
    size_t gap[100];
    open_with(GPUPOOL_SOURCE_MAPPED, 1024 * MIB, 0);
    for (size_t i = 0; i < gaps; i++) {
        get(2 * MIB);
        gap[i] = get(2 * MIB);
    }
    get(2 * MIB);
    size_t wide = get(4 * MIB);
    get(3 * MIB);
    for (size_t i = 0; i < gaps; i++) put(gap[i]);
    put(wide);
    CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
}

static void a_place_behind_many_worse_ones(void) {
    lay_gaps(100);
    CHECK_RESULT(gpupool_set_limit(arena, kit_reserved(arena) + 2 * MIB), GPUPOOL_OK);
    fits(arena, 3 * MIB);
    close_all();
}

/* ---- chunks ---- */

/* What was got all at once can still move: pieces are small enough to be idle as a whole. */
static void a_reserve_that_moves(void) {
    enum { BLOCKS = 32 };
    open_with(GPUPOOL_SOURCE_MAPPED, 1024 * MIB, 1024 * MIB);
    for (int i = 0; i < BLOCKS; i++) get(32 * MIB);
    for (size_t i = 0; i < BLOCKS; i += 2) put(i);
    CHECK_RESULT(gpupool_trim(arena, SIZE_MAX, NULL), GPUPOOL_OK);
    fits(arena, 448 * MIB);
    CHECK(kit_stats(arena).stitches > 0);
    close_all();
}

/* A driver that is short of memory is asked for less and less, for whole granules: it holds no more
   than is counted. */
static void halves_are_whole_granules(void) {
    fake_device_memory(0, 269 * MIB);
    fake_packed(1);
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_DEVICE);
    config.chunk_bytes = 62 * MIB;
    config.reserve_bytes = 92 * MIB;
    arena = kit_create(&config);
    count = 0;
    while (kit_fits(arena, MIB, NULL)) get(MIB);
    CHECK_EQ(fake_used_bytes(0), kit_reserved(arena));
    CHECK(kit_reserved(arena) > 264 * MIB);
    close_all();
}

static void a_chunk_is_counted_as_the_driver_does(void) {
    open_with(GPUPOOL_SOURCE_DEVICE, 0, 0);
    for (int i = 0; i < 40; i++) {
        get(3 * MIB - 512 * (size_t)i);
        CHECK_EQ(fake_used_bytes(0), kit_reserved(arena));
    }
    close_all();
}

/* ---- advice ---- */

/* With more held than is allowed, what one block frees is not had: the limit comes first. */
static void below_the_limit_first(void) {
    open_with(GPUPOOL_SOURCE_BYPASS, 0, 0);
    for (int i = 0; i < 10; i++) get(4 * MIB);
    CHECK_RESULT(gpupool_set_limit(arena, 20 * MIB), GPUPOOL_OK);
    gpupool_verdict v = refuses(arena, MIB, GPUPOOL_CAUSE_LIMIT);
    CHECK(v.holders[0].enough >= 6);
    for (size_t i = 0; i < v.holders[0].enough; i++) put(i);
    fits(arena, MIB);
    close_all();
}

/* Blocks larger than the request, but hardly any where it could be aligned. */
static void aligned_where_few_blocks_are(void) {
    gpupool_verdict v;
    void *aligned = NULL;
    open_with(GPUPOOL_SOURCE_MAPPED, 66 * MIB, 0);
    get(MIB);
    for (int i = 0; i < 16; i++) get(4 * MIB);
    CHECK_RESULT(gpupool_set_limit(arena, 50 * MIB), GPUPOOL_OK);
    CHECK(gpupool_alloc_aligned(arena, MIB, 32 * MIB, kit_stream[0]) == NULL);
    CHECK_RESULT(gpupool_last_verdict(&v), GPUPOOL_OK);
    CHECK(v.holders[0].enough > 1);
    for (size_t i = 1; i <= v.holders[0].enough; i++) put(17 - i);
    aligned = gpupool_alloc_aligned(arena, MIB, 32 * MIB, kit_stream[0]);
    CHECK(aligned != NULL);
    CHECK_RESULT(gpupool_free(arena, aligned, kit_stream[0]), GPUPOOL_OK);
    close_all();
}

/* A small block with a large alignment is stitched where no free piece is aligned: the granule that
   it is made of is not set apart for small blocks first. */
static void small_and_aligned_widely(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
    config.limit_bytes = 8 * MIB;
    config.chunk_bytes = 4 * MIB;
    arena = kit_create(&config);
    count = 0;
    get(4 * MIB);
    size_t freed = get(2 * MIB);
    get(2 * MIB);
    put(freed);
    void *aligned = gpupool_alloc_aligned(arena, 40 * KIB, 16 * MIB, kit_stream[0]);
    CHECK(aligned != NULL && (uintptr_t)aligned % (16 * MIB) == 0);
    CHECK_RESULT(gpupool_free(arena, aligned, kit_stream[0]), GPUPOOL_OK);
    close_all();
}

/* A limit that is raised to less than what is held trims, and perhaps just what the request would
   lie on. Whatever is advised, the request fits then. */
static int raised_for(size_t chunk, size_t wanted) {
    static const size_t sizes[] = {7, 2, 5, 5, 2, 2, 6}; /* MiB */
    gpupool_verdict v;
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
    config.chunk_bytes = chunk;
    config.limit_bytes = 256 * MIB;
    check_case("%zu bytes, chunks of %zu", wanted, chunk);
    arena = kit_create(&config);
    count = 0;
    for (size_t i = 0; i < KIT_COUNT(sizes); i++) get(sizes[i] * MIB);
    put(2);
    put(3);
    CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
    CHECK_RESULT(gpupool_set_limit(arena, 19 * MIB), GPUPOOL_OK);
    put(0);
    put(5);
    put(4);
    int refused = !kit_fits(arena, wanted, &v);
    if (refused) {
        v = refuses(arena, wanted, v.cause);
        raise_as_advised(arena, &v);
    }
    fits(arena, wanted);
    close_all();
    return refused;
}

static void raised_so_far_that_nothing_goes(void) {
    int refused = 0;
    for (size_t chunk = 0; chunk <= 6 * MIB; chunk += 2 * MIB)
        for (size_t wanted = 8 * MIB; wanted <= 22 * MIB; wanted += MIB)
            refused += raised_for(chunk, wanted);
    CHECK(refused > 20);
}

/* The device has whole granules only, also where the chunks are the caller's own. */
static void others_hold_whole_granules(void) {
    size_t free_bytes, total_bytes;
    for (size_t i = 0; i < KIT_SOURCES; i++) {
        check_case("source %s", kit_sources[i].name);
        if (kit_sources[i].source == GPUPOOL_SOURCE_PINNED) continue; /* of the host */
        if (kit_sources[i].source == GPUPOOL_SOURCE_MANAGED) continue; /* goes beyond the device */
        fake_device_memory(0, 200 * MIB);
        open_with(kit_sources[i].source, 0, 0);
        get(2 * MIB);
        CHECK_EQ(cudaMemGetInfo(&free_bytes, &total_bytes), cudaSuccess);
        fake_other_process(0, free_bytes);
        gpupool_verdict v = refuses(arena, 8 * MIB, GPUPOOL_CAUSE_OTHERS);
        fake_other_process(0, free_bytes - v.missing_bytes);
        fits(arena, 8 * MIB);
        close_all();
        fake_other_process(0, 0);
    }
}
#endif

int main(void) {
    FAKE_TEST(a_place_behind_many_worse_ones);
    FAKE_TEST(a_reserve_that_moves);
    FAKE_TEST(halves_are_whole_granules);
    FAKE_TEST(a_chunk_is_counted_as_the_driver_does);
    FAKE_TEST(below_the_limit_first);
    FAKE_TEST(aligned_where_few_blocks_are);
    FAKE_TEST(small_and_aligned_widely);
    FAKE_TEST(raised_so_far_that_nothing_goes);
    FAKE_TEST(others_hold_whole_granules);
    return check_finish();
}
