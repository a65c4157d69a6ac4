/* What growth gets, and where it lies; that memory stays where it is; and what is left where growth
   fails, at either end of an arena's life too. */
// build: plain
// build: asan -fsanitize=address
#include "fail_malloc.h"

#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "arena_kit.h"

#if CHECK_FAKE

#define GRANULE (2 * MIB) /* the driver's */

static gpupool_arena *arena;

static void *get(size_t bytes) { return kit_alloc(arena, bytes, kit_stream[0]); }
static void put(void *block) {
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
}

static void open_by_granules(size_t limit) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
    config.limit_bytes = limit;
    config.chunk_bytes = GRANULE;
    arena = kit_create(&config);
}

/* ---- homes ---- */

/* Chunks lie side by side, so that a block may lie over several; and one that begins in free memory
   at the end takes as much less of new memory. */
static void homes_lie_side_by_side(void) {
    open_by_granules(0);
    char *first = (char *)get(3 * MIB), *second = (char *)get(2 * MIB);
    char *third = (char *)get(5 * MIB);
    CHECK(second == first + 3 * MIB && third == second + 2 * MIB);
    CHECK_EQ(kit_reserved(arena), 10 * MIB);
    CHECK_EQ(kit_stats(arena).chunks_gained, 5);
    CHECK_EQ(fake_mappings(), 5);
    kit_fill(kit_stream[0], third, 5 * MIB, 1);
    put(second);
    put(third);
    CHECK(get(7 * MIB) == (void *)second); /* and free memory is one run over all of them */
    CHECK_EQ(kit_reserved(arena), 10 * MIB);
    put(second);
    put(first);
    kit_close(arena);
}

/* Between live blocks chunks go: their addresses come again for what fits there. */
static void what_went_leaves_a_place(void) {
    open_by_granules(0);
    char *block[5];
    for (int i = 0; i < 5; i++) block[i] = (char *)get(GRANULE);
    put(block[1]);
    put(block[2]);
    kit_finish(arena);
    CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
    CHECK_EQ(kit_reserved(arena), 3 * GRANULE);
    char *wide = (char *)get(3 * GRANULE); /* too wide for it */
    CHECK(wide == block[4] + GRANULE);
    char *again = (char *)get(2 * GRANULE);
    CHECK(again == block[1]);
    CHECK_EQ(kit_reserved(arena), 8 * GRANULE);
    put(again);
    put(wide);
    put(block[0]);
    put(block[3]);
    put(block[4]);
    kit_close(arena);
}

/* While a chunk is held, its home address leads to the same physical memory, whatever is stitched
   over it meanwhile, freed, or given back around it. */
static void memory_stays_where_it_is(void) {
    enum { CHUNKS = 40 };
    uint64_t random = 5;
    char *home[CHUNKS];
    unsigned char *physical[CHUNKS];
    open_by_granules(CHUNKS * GRANULE);
    for (int i = 0; i < CHUNKS; i++) home[i] = (char *)get(GRANULE);
    for (int i = 0; i < CHUNKS; i++) physical[i] = fake_peek(home[i]);
    for (int i = 0; i < CHUNKS; i += 2) put(home[i]);
    kit_finish(arena);
    for (int round = 0; round < 300; round++) {
        char *block[3];
        for (int i = 0; i < 3; i++)
            block[i] = (char *)get(GRANULE + (size_t)check_below(&random, 5 * GRANULE));
        for (int i = 0; i < CHUNKS; i++) CHECK(fake_peek(home[i]) == physical[i]);
        for (int i = 0; i < 3; i++) put(block[(round + i) % 3]);
    }
    CHECK(kit_stats(arena).stitches + kit_stats(arena).stitches_reused > 100);
    CHECK_EQ(kit_stats(arena).chunks_lost, 0);
    CHECK_RESULT(gpupool_trim(arena, (CHUNKS - 8) * GRANULE, NULL), GPUPOOL_OK);
    long there = 0;
    for (int i = 0; i < CHUNKS; i++) {
        if (fake_peek(home[i])) CHECK(fake_peek(home[i]) == physical[i]);
        there += fake_peek(home[i]) != NULL;
    }
    CHECK_EQ(there, CHUNKS - 8);
    for (int i = 1; i < CHUNKS; i += 2) put(home[i]);
    kit_close(arena);
}

/* The driver's price is one of handles: large memory is got in few, and little runs ahead. */
static void few_chunks_for_much_memory(void) {
    void *block[256];
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    fake_reset_counters();
    void *large = get(4 * GIB);
    CHECK(fake_calls("cuMemCreate") <= 128);
    CHECK(kit_reserved(arena) <= 4 * GIB + 64 * MIB);
    for (int i = 0; i < 256; i++) block[i] = get(5 * MIB);
    CHECK(fake_calls("cuMemCreate") <= 128 + 160);
    CHECK(kit_reserved(arena) <= (4 * GIB + 256 * 5 * MIB) / 100 * 102 + 32 * MIB);
    for (int i = 0; i < 256; i++) put(block[i]);
    put(large);
    kit_close(arena);
}

/* Less than half a chunk at the end is part of the last one; more than that is one by itself. */
static void no_small_chunk_at_the_end(void) {
    static const struct { size_t bytes; uint64_t chunks; } cases[] = {
        {8 * MIB, 1}, {10 * MIB, 2}, {14 * MIB, 2}, {16 * MIB, 3}};
    for (size_t i = 0; i < KIT_COUNT(cases); i++) {
        gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
        check_case("%zu bytes", cases[i].bytes);
        config.chunk_bytes = 6 * MIB;
        arena = kit_create(&config);
        put(get(cases[i].bytes));
        CHECK_EQ(kit_reserved(arena), cases[i].bytes);
        CHECK_EQ(kit_stats(arena).chunks_gained, cases[i].chunks);
        kit_close(arena);
    }
}

/* Of idle chunks that are equally large the lower one goes. */
static void the_lower_of_equal_chunks_goes(void) {
    open_by_granules(0);
    void *block[4];
    for (int i = 0; i < 4; i++) block[i] = get(GRANULE);
    put(block[0]);
    put(block[2]);
    kit_finish(arena);
    CHECK_RESULT(gpupool_trim(arena, 3 * GRANULE, NULL), GPUPOOL_OK);
    CHECK(fake_peek(block[0]) == NULL && fake_peek(block[2]) != NULL);
    put(block[1]);
    put(block[3]);
    kit_close(arena);
}

/* The larger of two idle chunks goes first, and stays where too little would be left without it;
   where that is not enough the smaller one goes. */
static void which_of_two_sizes_goes(void) {
    static const struct { int below; size_t keep, left; } cases[] = {
        {0, 2 * MIB, 2 * MIB}, {0, 4 * MIB, 8 * MIB}, {0, 0, 0},
        {1, 2 * MIB, 2 * MIB}, {1, 8 * MIB, 8 * MIB}, {1, 4 * MIB, 0}};
    for (size_t i = 0; i < KIT_COUNT(cases); i++) {
        check_case("case %zu", i);
        arena = kit_open(GPUPOOL_SOURCE_DEVICE);
        void *large = get(8 * MIB), *small = get(2 * MIB);
        CHECK_EQ(kit_reserved(arena), 10 * MIB);
        put(large);
        put(small);
        CHECK_RESULT(gpupool_trim(arena, SIZE_MAX, NULL), GPUPOOL_OK); /* all of it is finished */
        gpi_host_mutex_lock(&arena->growing);
        gpi_host_lock(&arena->lock);
        CHECK_RESULT((cases[i].below ? gpi_stitch_trim_below : gpi_stitch_trim)(&arena->stitches,
                                                                                cases[i].keep),
                     GPUPOOL_OK);
        gpi_host_unlock(&arena->lock);
        gpi_host_mutex_unlock(&arena->growing);
        CHECK_EQ(kit_reserved(arena), cases[i].left);
        kit_close(arena);
    }
}

/* For the list of idle chunks: the larger ones first, then the lower ones. */
static void the_order_of_idle_chunks(void) {
    gpi_chunk low, high;
    gpi_free_chunk large = {&high, 2}, first = {&low, 1}, second = {&high, 1};
    low.unit = 4096;
    high.unit = 8192;
    CHECK(gpi_stitch_by_size(&large, &first) < 0 && gpi_stitch_by_size(&first, &large) > 0);
    CHECK(gpi_stitch_by_size(&first, &second) < 0 && gpi_stitch_by_size(&second, &first) > 0);
}

/* A live block lies over chunks of one tag. */
static void a_block_over_chunks_of_two_tags(void) {
    open_by_granules(0);
    void *block = get(2 * GRANULE);
    const gpi_chunks *chunks = &arena->chunks;
    gpi_host_lock(&arena->lock);
    arena->chunks.is_apart = 1;
    CHECK_EQ(gpi_chunk_check(chunks, &arena->tree, arena->ledger.reserved.now), 0);
    chunks->first->next->tag = 1;
    CHECK_EQ(gpi_chunk_check(chunks, &arena->tree, arena->ledger.reserved.now), 5);
    chunks->first->next->tag = 0;
    arena->chunks.is_apart = 0;
    gpi_host_unlock(&arena->lock);
    put(block);
    kit_close(arena);
}

/* Right before and right behind its addresses nothing is the arena's. */
static void next_to_the_arenas_addresses(void) {
    open_by_granules(0);
    put(get(GRANULE));
    char *from = (char *)(uintptr_t)(arena->chunks.base_unit * GPUPOOL_UNIT_BYTES);
    char *end = from + arena->chunks.space_units * GPUPOOL_UNIT_BYTES;
    CHECK_RESULT(gpupool_free(arena, from - GPUPOOL_UNIT_BYTES, 0), GPUPOOL_E_NOT_OURS);
    CHECK_RESULT(gpupool_free(arena, end, 0), GPUPOOL_E_NOT_OURS);
    CHECK_RESULT(gpupool_free(arena, end - GPUPOOL_UNIT_BYTES, 0), GPUPOOL_E_DOUBLE_FREE);
    kit_close(arena);
}

/* ---- the program's functions ---- */

static void *alloc_and_leave(size_t bytes, int device, void *user) {
    void *at = kit_chunk_alloc(bytes, device, user);
    CHECK_EQ(cudaSetDevice(1), cudaSuccess);
    return at;
}

static void free_and_leave(void *at, size_t bytes, int device, void *user) {
    kit_chunk_free(at, bytes, device, user);
    CHECK_EQ(cudaSetDevice(1), cudaSuccess);
}

static int leave(const gpupool_mapping *mapping, void *user) {
    (void)mapping, (void)user;
    CHECK_EQ(cudaSetDevice(1), cudaSuccess);
    return 0;
}

static void expect_device(int expected) {
    int device = -1;
    CHECK_EQ(cudaGetDevice(&device), cudaSuccess);
    CHECK_EQ(device, expected);
}

/* Whichever device one of them leaves current, the calls that follow it are on the arena's. */
static void back_on_the_arenas_device(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_CUSTOM);
    gpupool_mapping mapping;
    void *memory = NULL;
    config.chunk_alloc = alloc_and_leave;
    config.chunk_free = free_and_leave;
    arena = kit_create(&config);
    memset(&mapping, 0, sizeof mapping);
    CHECK_RESULT(gpi_chunk_get_custom(&arena->chunks, MIB, &memory), GPUPOOL_OK);
    expect_device(0);
    CHECK_RESULT(gpi_chunk_give_custom(&arena->chunks, memory, MIB), GPUPOOL_OK);
    expect_device(0);
    gpi_host_mutex_lock(&arena->growing);
    gpi_host_lock(&arena->lock);
    CHECK_RESULT(gpi_chunk_tell(&arena->chunks, leave, &mapping), GPUPOOL_OK);
    gpi_host_unlock(&arena->lock);
    gpi_host_mutex_unlock(&arena->growing);
    expect_device(0);
    kit_close(arena);
}

/* ---- what the driver does not take back ---- */

/* Counted until it does: at the next growth, trim, or end. */
static void what_the_driver_keeps(const char *call) {
    check_case("%s", call);
    open_by_granules(0);
    put(get(4 * GRANULE));
    kit_finish(arena);
    fake_fail_call(call, 1, 1, 0);
    CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_E_CUDA);
    fake_fail_clear();
    CHECK_EQ(kit_reserved(arena), fake_used_bytes(0));
    CHECK(kit_reserved(arena) > 0);
    CHECK_EQ(arena->chunks.stuck != NULL, !strcmp(call, "cuMemRelease")); /* else of use again */
    CHECK_RESULT(gpupool_trim(arena, kit_reserved(arena), NULL), GPUPOOL_OK); /* nothing to do */
    CHECK_EQ(kit_reserved(arena), fake_used_bytes(0));
    CHECK_EQ(arena->chunks.stuck != NULL, !strcmp(call, "cuMemRelease"));
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    put(get(6 * GRANULE));
    CHECK_EQ(kit_reserved(arena), fake_used_bytes(0));
    kit_finish(arena);
    CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
    CHECK_EQ(kit_reserved(arena), 0);
    CHECK_EQ(fake_used_bytes(0), 0);
    CHECK_EQ(fake_mappings(), 0);
    kit_close(arena);
}
static void memory_that_is_not_released(void) { what_the_driver_keeps("cuMemRelease"); }
static void addresses_that_are_not_unmapped(void) { what_the_driver_keeps("cuMemUnmap"); }

/* A chunk of the host's memory is free memory again. */
static void host_memory_that_is_not_taken_back(void) {
    arena = kit_open(GPUPOOL_SOURCE_PINNED);
    put(get(GRANULE));
    size_t reserved = kit_reserved(arena);
    fake_fail_call("cuMemFreeHost", 1, 0, 0);
    CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_E_CUDA);
    CHECK_EQ(fake_fail_fired(), 1);
    CHECK_EQ(kit_reserved(arena), reserved);
    CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
    CHECK_EQ(kit_reserved(arena), 0);
    fake_fail_clear();
    kit_close(arena);
}

/* What an arena without a source maps for a trial is memory like any other, if it stays. */
static void a_trial_that_is_not_taken_back(void) {
    fake_fail_call("cuMemUnmap", 1, 0, 0);
    arena = kit_open(GPUPOOL_SOURCE_AUTO);
    CHECK_EQ(fake_fail_fired(), 1);
    fake_fail_clear();
    CHECK_EQ(kit_reserved(arena), GRANULE);
    CHECK_EQ(arena->chunks.first->tag, 0);
    CHECK_EQ(arena->chunks.apart[0].units, GRANULE / GPUPOOL_UNIT_BYTES);
    put(get(GRANULE));
    CHECK_EQ(kit_reserved(arena), GRANULE);
    kit_close(arena);
}

/* ---- chunks ---- */

/* An arena that holds a lot gets more at a time: many small blocks are in few chunks. */
static void chunks_grow_with_what_is_held(void) {
    void *small[64];
    arena = kit_open(GPUPOOL_SOURCE_DEVICE);
    void *large = get(GIB);
    fake_reset_counters();
    for (size_t i = 0; i < KIT_COUNT(small); i++) small[i] = get(GRANULE);
    CHECK(fake_calls("cuMemAlloc") <= 2);
    for (size_t i = 0; i < KIT_COUNT(small); i++) put(small[i]);
    put(large);
    kit_close(arena);
}

/* In MiB, of a device with pages of one, how large a chunk is: for so much growth, with so much
   reserved. */
static uint64_t chunk_for(uint64_t reserved, uint64_t growth, int limited) {
    static gpi_ledger ledger;
    static gpi_chunks chunks;
    ledger.limit_bytes = limited ? 1 : UINT64_MAX;
    chunks.ledger = &ledger;
    chunks.granule_units = MIB / GPUPOOL_UNIT_BYTES;
    chunks.units = reserved * chunks.granule_units;
    return gpi_growth_units(&chunks, growth * chunks.granule_units) / chunks.granule_units;
}

/* The shares that were measured: of what is reserved, or of the growth, in whole pages; and where
   they end. */
static void a_chunk_is_a_share(void) {
    CHECK_EQ(chunk_for(4 * 512 - 1, 0, 1), 3); /* with a limit */
    CHECK_EQ(chunk_for(4 * 512, 0, 1), 4);
    CHECK_EQ(chunk_for(0, 4 * 64 - 1, 1), 3);
    CHECK_EQ(chunk_for(0, 4 * 64, 1), 4);
    CHECK_EQ(chunk_for(12 * 96 - 1, 0, 0), 11); /* without one */
    CHECK_EQ(chunk_for(12 * 96, 0, 0), 12);
    CHECK_EQ(chunk_for(0, 4 * 32 - 1, 0), 3);
    CHECK_EQ(chunk_for(0, 4 * 32, 0), 4);
    CHECK_EQ(chunk_for(31, 0, 0), 7); /* a quarter of a small arena, */
    CHECK_EQ(chunk_for(100, 0, 0), 8); /* up to 8 MiB */
    CHECK_EQ(chunk_for(1 << 20, 0, 0), 32);
    CHECK_EQ(chunk_for(1 << 20, 1 << 20, 1), 32);
}

/* With other sources an eighth of what is reserved, up to 1 GiB. */
static void a_chunk_is_an_eighth(void) {
    arena = kit_open(GPUPOOL_SOURCE_DEVICE);
    for (size_t reserved = 8; reserved <= 16; reserved += 8) {
        gpi_chunks chunks = arena->chunks;
        chunks.units = reserved * 18 * MIB / GPUPOOL_UNIT_BYTES;
        CHECK_EQ(gpi_growth_size(&chunks, MIB, UINT64_MAX), reserved / 8 * 18 * MIB);
        chunks.units = reserved * GIB / GPUPOOL_UNIT_BYTES;
        CHECK_EQ(gpi_growth_size(&chunks, MIB, UINT64_MAX), GIB);
    }
    kit_close(arena);
}

/* Where the device has not so much, half of it is asked for, and half of that. */
static void a_half_and_a_quarter(void) {
    size_t free_bytes, total_bytes;
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_DEVICE);
    config.chunk_bytes = 64 * MIB;
    arena = kit_create(&config);
    CHECK_EQ(cudaMemGetInfo(&free_bytes, &total_bytes), cudaSuccess);
    fake_other_process(0, free_bytes - 20 * MIB);
    fake_reset_counters();
    void *block = get(MIB);
    CHECK_EQ(fake_calls("cuMemAlloc"), 3);
    CHECK_EQ(kit_reserved(arena), 16 * MIB);
    fake_other_process(0, 0);
    put(block);
    kit_close(arena);
}

/* Above 1 MiB a device gives whole granules, and so is asked for no more where it has less than
   one. */
static void the_device_has_less_than_a_granule(void) {
    size_t free_bytes, total_bytes;
    arena = kit_open(GPUPOOL_SOURCE_BYPASS);
    CHECK_EQ(cudaMemGetInfo(&free_bytes, &total_bytes), cudaSuccess);
    fake_other_process(0, free_bytes - 3 * MIB / 2);
    CHECK_EQ(kit_available(arena), MIB);
    CHECK_RESULT(kit_why(gpupool_alloc(arena, MIB + 512, kit_stream[0])),
                 GPUPOOL_E_OUT_OF_MEMORY);
    put(get(MIB));
    fake_other_process(0, 0);
    kit_close(arena);
}

/* A limit of one granule is one chunk, which the device holds whole in any case. */
static void the_limit_is_one_chunk(void) {
    arena = kit_open_limited(GPUPOOL_SOURCE_DEVICE, GRANULE);
    void *small = get(512), *large = get(GRANULE - MIB / 2);
    CHECK_EQ(kit_reserved(arena), GRANULE);
    put(small);
    put(large);
    kit_close(arena);
}

/* What the host keeps of a chunk goes with it. */
static void chunks_come_and_go(void) {
    uint64_t host = 0, spare = 0;
    arena = kit_open(GPUPOOL_SOURCE_DEVICE);
    for (int i = 0; i < 4; i++) {
        put(get(GRANULE));
        CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
        CHECK_EQ(kit_reserved(arena), 0);
        if (i) CHECK_EQ(kit_stats(arena).host_bytes, host);
        if (i) CHECK_EQ(arena->tree.spare_count, spare);
        host = kit_stats(arena).host_bytes;
        spare = arena->tree.spare_count;
    }
    kit_close(arena);
}

/* ---- the ends of an arena's life ---- */

static void grant(void *unused) {
    (void)unused;
    fake_fail_clear();
}

/* A TiB of addresses, or half as many each time that the system refuses, down to twice what
   the device has: with fewer there is no arena. */
static void addresses_for_twice_the_device(void) {
    fake_device_memory(0, 64 * GIB);
    for (int refused = 0; refused < 6; refused++) {
        gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
        size_t space = 1024 * GIB >> refused;
        check_case("%d times", refused);
        arena = NULL;
        fake_fail_call("cuMemAddressReserve", 1, 1, 0);
        fake_before_call("cuMemAddressReserve", refused + 1, grant, NULL);
        gpupool_result result = gpupool_arena_create(&arena, &config);
        fake_fail_clear();
        CHECK_RESULT(result, space >= 128 * GIB ? GPUPOOL_OK : GPUPOOL_E_OUT_OF_MEMORY);
        if (!arena) continue;
        CHECK_EQ(arena->chunks.space_units * GPUPOOL_UNIT_BYTES, space);
        /* for homes: twice the device and a granule, but no more than half */
        CHECK_EQ((arena->chunks.stitch_unit - arena->chunks.base_unit) * GPUPOOL_UNIT_BYTES,
                 space / 2 > 128 * GIB ? 128 * GIB + GRANULE : space / 2);
        put(get(3 * MIB));
        kit_close(arena);
    }
}

/* Whatever of an arena the host has no memory for: it says so, and nothing of it stays. */
static void no_host_memory_for_an_arena(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
    long objects = fake_live_objects(), live, fired = 1;
    kit_close(kit_create(&config)); /* what the process keeps is there */
    live = fail_malloc_live;
    for (long n = 1; fired; n++) {
        check_case("allocation %ld", n);
        arena = NULL;
        fake_reset_counters();
        fail_malloc_nth(n, 0);
        gpupool_result result = gpupool_arena_create(&arena, &config);
        fired = fail_malloc_fired;
        fail_malloc_nth(0, 0);
        if (!CHECK_RESULT(result, fired ? GPUPOOL_E_HOST_MEMORY : GPUPOOL_OK)) return;
        if (arena) kit_close(arena);
        CHECK_EQ(fake_calls("cuMemAddressFree"), fake_calls("cuMemAddressReserve"));
        CHECK_EQ(fake_live_objects(), objects);
        CHECK_EQ(fail_malloc_live, live);
    }
}

/* What the host keeps of chunks goes with the arena, though nobody gives those back. */
static void chunks_that_a_reset_took(void) {
    long live = fail_malloc_live;
    void *block[3];
    arena = kit_open(GPUPOOL_SOURCE_DEVICE);
    for (int i = 0; i < 3; i++) block[i] = get(64 * MIB);
    CHECK_EQ(arena->chunks.count, 3);
    put(block[1]);
    CHECK_EQ(cudaDeviceReset(), cudaSuccess);
    for (int i = 0; i < KIT_STREAMS; i++) kit_stream[i] = NULL;
    CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_OK);
    CHECK_EQ(fail_malloc_live, live);
}

/* The same for the chunks of an arena that could not be made, which the driver keeps. */
static void chunks_that_nobody_takes_back(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
    long live = fail_malloc_live;
    arena = NULL;
    config.reserve_bytes = 4 * GRANULE;
    config.chunk_bytes = GRANULE;
    fake_fail_call("cuMemSetAccess", 1, 1, 0);
    fake_fail_call("cuMemRelease", 1, 1, 0);
    CHECK_RESULT(gpupool_arena_create(&arena, &config), GPUPOOL_E_CUDA);
    fake_fail_clear();
    CHECK(arena == NULL);
    CHECK_EQ(fail_malloc_live, live);
    CHECK(kit_drop_the_rest() > 0);
}

/* The mapping that an arena without a source tries when it is made shows in no figure. */
static void nothing_gained_at_the_start(void) {
    arena = kit_open(GPUPOOL_SOURCE_AUTO);
    gpupool_stats stats = kit_stats(arena);
    CHECK_EQ(stats.chunks_gained, 0);
    CHECK_EQ(stats.chunks_lost, 0);
    CHECK_EQ(stats.reserved.peak, 0);
    CHECK_EQ(stats.splits, 0);
    CHECK_EQ(stats.merges, 0);
    kit_close(arena);
}

/* ---- where addresses are looked for ---- */

/* More places of bare addresses than are looked at: of those behind, the first that fits is taken.
   It is not at the end, where addresses are many. */
static void many_places_that_are_too_small(void) {
    enum { SMALL = 80, LARGE = 3 };
    char *hole[SMALL + LARGE], *wall[SMALL + LARGE];
    open_by_granules(0);
    for (int i = 0; i < SMALL + LARGE; i++) {
        hole[i] = (char *)get((i < SMALL ? 1 : 2) * GRANULE);
        wall[i] = (char *)get(GRANULE);
    }
    for (int i = 0; i < SMALL + LARGE; i++) put(hole[i]);
    kit_finish(arena);
    CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
    CHECK_EQ(kit_reserved(arena), (SMALL + LARGE) * GRANULE);
    char *block = (char *)get(2 * GRANULE);
    CHECK(block >= hole[SMALL] && block < wall[SMALL + LARGE - 1]);
    CHECK_EQ(kit_reserved(arena), (SMALL + LARGE + 2) * GRANULE);
    put(block);
    for (int i = 0; i < SMALL + LARGE; i++) put(wall[i]);
    kit_close(arena);
}

/* All that is free may be used, as by a request. */
static void look_for(size_t bytes, gpi_growth *growth) {
    gpi_host_lock(&arena->lock);
    gpi_clock_move_finished(&arena->clocks, arena->clocks.streams);
    for (uint32_t i = 0; i < arena->tree.list_count; i++)
        if (arena->tree.lists[i] && i != GPI_LIST_EMPTY && i != GPI_LIST_SPACE)
            arena->tree.lists[i]->usable_below = UINT64_MAX;
    growth->units = bytes / GPUPOOL_UNIT_BYTES;
    gpi_growth_find_addresses(&arena->chunks, &arena->tree, 1, growth);
    gpi_tree_clear_usable(&arena->tree);
    gpi_host_unlock(&arena->lock);
}

/* Free memory before bare addresses that holds the block alone is no growth. */
static void no_growth_where_none_is_needed(void) {
    gpi_growth growth;
    open_by_granules(0);
    char *first = (char *)get(GRANULE), *free_one = (char *)get(3 * GRANULE);
    put(free_one);
    kit_finish(arena);
    memset(&growth, 0, sizeof growth);
    for (int granules = 2; granules <= 3; granules++) {
        look_for((size_t)granules * GRANULE, &growth);
        CHECK(growth.empty == NULL);
    }
    look_for(5 * GRANULE, &growth);
    CHECK_EQ(growth.new_units, 2 * GRANULE / GPUPOOL_UNIT_BYTES);
    put(first);
    kit_close(arena);
}

/* No large block begins in a slab, be its last unit the neighbour of bare addresses. */
static void not_from_a_slab(void) {
    enum { BLOCKS = 65 };
    void *small[BLOCKS];
    open_by_granules(0);
    put(get(GRANULE)); /* free granules become slabs */
    kit_finish(arena);
    CHECK_RESULT(gpupool_trim(arena, SIZE_MAX, NULL), GPUPOOL_OK);
    for (int i = 0; i < BLOCKS; i++) small[i] = get(63 * 512);
    CHECK_EQ(arena->tree.slab_count, 1);
    CHECK_EQ(arena->tree.lists[GPI_LIST_ANY]->units, 1);
    char *large = (char *)get(2 * GRANULE);
    CHECK(large == (char *)small[0] + GRANULE);
    put(large);
    for (int i = 0; i < BLOCKS; i++) put(small[i]);
    kit_close(arena);
}

/* A slab begins at a granule: a small block that is aligned to one begins in a new slab, and one
   that is aligned to more does not. */
static void a_slab_for_an_aligned_block(void) {
    for (int times = 1; times <= 2; times++) {
        check_case("%d granules", times);
        open_by_granules(0);
        put(get(4 * GRANULE)); /* free granules become slabs */
        gpupool_request request = {.bytes = 4 * KIB, .stream = kit_stream[0],
                                   .alignment = (size_t)times * GRANULE};
        void *block = gpupool_alloc_request(arena, &request);
        CHECK_RESULT(kit_why(block), GPUPOOL_OK);
        CHECK_EQ((uintptr_t)block % request.alignment, 0);
        CHECK_EQ(arena->tree.slab_count, times == 1);
        put(block);
        kit_close(arena);
    }
}

/* 64 places are looked at. The one with free memory before it needs the least new memory, so that
   it is chosen if it is looked at: those at high addresses are first. */
static void so_many_places_are_looked_at(void) {
    enum { PLACES = 66 };
    for (int nth = 63; nth <= 65; nth++) {
        char *hole[PLACES], *wall[PLACES];
        gpi_growth growth;
        check_case("place %d", nth);
        open_by_granules(0);
        for (int i = 0; i < PLACES; i++) {
            wall[i] = (char *)get(GRANULE);
            hole[i] = (char *)get(2 * GRANULE);
        }
        char *last = (char *)get(GRANULE);
        for (int i = 0; i < PLACES; i++) put(hole[i]);
        kit_finish(arena);
        CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
        put(wall[PLACES - nth]);
        kit_finish(arena);
        memset(&growth, 0, sizeof growth);
        look_for(2 * GRANULE, &growth);
        CHECK_EQ(growth.new_units * GPUPOOL_UNIT_BYTES, (nth <= 64 ? 1 : 2) * GRANULE);
        for (int i = 0; i < PLACES; i++)
            if (i != PLACES - nth) put(wall[i]);
        put(last);
        kit_close(arena);
    }
}

/* A place of just the size is found behind smaller ones: the wide addresses at the end stay. */
static void a_place_of_the_next_size(void) {
    void *hole[2], *wall[2];
    open_by_granules(0);
    for (int i = 0; i < 2; i++) {
        hole[i] = get((size_t)(8 + i) * GRANULE);
        wall[i] = get(GRANULE);
    }
    for (int i = 0; i < 2; i++) put(hole[i]);
    kit_finish(arena);
    CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
    CHECK_EQ(kit_reserved(arena), 2 * GRANULE);
    CHECK(get(9 * GRANULE) == hole[1]);
    put(hole[1]);
    for (int i = 0; i < 2; i++) put(wall[i]);
    kit_close(arena);
}

/* Nothing comes to lie in the last granule of the homes: no block, nor what a chunk is larger. */
static void the_last_home_stays_empty(void) {
    gpi_growth growth;
    open_by_granules(0);
    gpi_run *home = arena->chunks.home;
    uint64_t granule = arena->chunks.granule_units;
    CHECK_EQ(home->unit + home->units, arena->chunks.stitch_unit);
    memset(&growth, 0, sizeof growth);
    look_for((home->units - granule) * GPUPOOL_UNIT_BYTES, &growth);
    CHECK(growth.empty == home);
    CHECK_EQ(growth.new_units, home->units - granule);
    look_for((home->units - granule + 1) * GPUPOOL_UNIT_BYTES, &growth);
    CHECK(growth.empty == NULL);
    growth.empty = home;
    growth.new_unit = home->unit + home->units - 3 * granule;
    growth.new_units = granule;
    gpi_growth_round_up(&arena->chunks, &growth, 8 * granule, UINT64_MAX);
    CHECK_EQ(growth.new_units, 2 * granule);
    kit_close(arena);
}

/* A block that begins in what its stream has freed keeps nothing of the stream. */
static void the_stream_is_let_go(void) {
    open_by_granules(0);
    gpi_stream *stream;
    void *first = get(GRANULE / 2), *half = get(GRANULE / 2);
    fake_mode(FAKE_STEPPED);
    kit_fill(kit_stream[0], half, 512, 1);
    put(half);
    stream = gpi_clock_find(&arena->clocks, gpi_clock_key(kit_stream[0]));
    uint64_t refs = stream->refs;
    CHECK(get(2 * GRANULE) == half);
    CHECK(fake_pending(kit_stream[0]) > 0);
    CHECK_EQ(stream->refs, refs);
    put(half);
    put(first);
    kit_close(arena);
}

/* ---- other threads come in between ---- */

static void *taken;

static void take_so_much(void *bytes) {
    taken = kit_alloc(arena, *(size_t *)bytes, kit_stream[1]);
}

/* While one of two idle chunks goes to make room, the other one is taken: then there is no room. */
static void an_idle_chunk_that_is_taken(void) {
    size_t bytes = 20 * MIB;
    arena = kit_open_limited(GPUPOOL_SOURCE_DEVICE, 40 * MIB);
    void *first = get(bytes), *second = get(bytes);
    CHECK_EQ(kit_reserved(arena), 40 * MIB);
    put(first);
    put(second);
    kit_finish(arena);
    CHECK_RESULT(gpupool_trim(arena, SIZE_MAX, NULL), GPUPOOL_OK);
    fake_before_call("cuMemFree", 1, take_so_much, &bytes);
    CHECK_RESULT(kit_why(gpupool_alloc(arena, 30 * MIB, kit_stream[0])), GPUPOOL_E_OUT_OF_MEMORY);
    CHECK(taken == first || taken == second);
    CHECK_EQ(kit_reserved(arena), 20 * MIB);
    put(taken);
    kit_finish(arena);
    put(get(30 * MIB));
    kit_close(arena);
}

static void the_device_is_full_and_keeps(void *bytes) {
    fake_other_process(0, *(size_t *)bytes);
    fake_fail_call("cuMemFree", 1, 1, 0);
}

static void as_soon_as_it_has_room(void *bytes) {
    fake_before_call("cuMemAlloc", 1, the_device_is_full_and_keeps, bytes);
}

/* Two of three idle chunks go to make room on the device, another process takes that, and the
   driver does not take the third one back: that is the error, and the chunk stays for use. */
static void an_idle_chunk_that_does_not_go(void) {
    size_t bytes = 20 * MIB, free_bytes, total_bytes, all;
    void *block[3];
    arena = kit_open(GPUPOOL_SOURCE_DEVICE);
    for (int i = 0; i < 3; i++) block[i] = get(bytes);
    CHECK_EQ(kit_reserved(arena), 3 * bytes);
    for (int i = 0; i < 3; i++) put(block[i]);
    kit_finish(arena);
    CHECK_RESULT(gpupool_trim(arena, SIZE_MAX, NULL), GPUPOOL_OK);
    CHECK_EQ(cudaMemGetInfo(&free_bytes, &total_bytes), cudaSuccess);
    fake_other_process(0, free_bytes);
    all = free_bytes + 2 * bytes;
    fake_before_call("cuMemFree", 2, as_soon_as_it_has_room, &all);
    CHECK_RESULT(kit_why(gpupool_alloc(arena, 30 * MIB, kit_stream[0])), GPUPOOL_E_CUDA);
    fake_fail_clear();
    CHECK_EQ(kit_reserved(arena), bytes);
    CHECK_EQ(fake_used_bytes(0), bytes);
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    put(get(bytes)); /* the device has no other */
    fake_other_process(0, 0);
    put(get(30 * MIB));
    kit_close(arena);
}

/* Of three idle chunks one goes, where the device has room for the rest of the request. */
static void no_more_idle_chunks_than_needed(void) {
    size_t bytes = 20 * MIB, free_bytes, total_bytes;
    void *block[3];
    arena = kit_open(GPUPOOL_SOURCE_DEVICE);
    for (int i = 0; i < 3; i++) block[i] = get(bytes);
    for (int i = 0; i < 3; i++) put(block[i]);
    CHECK_EQ(kit_reserved(arena), 3 * bytes);
    CHECK_EQ(cudaMemGetInfo(&free_bytes, &total_bytes), cudaSuccess);
    fake_other_process(0, free_bytes - bytes);
    block[0] = get(30 * MIB);
    CHECK_EQ(kit_stats(arena).chunks_lost, 1);
    put(block[0]);
    fake_other_process(0, 0);
    kit_close(arena);
}

/* A stitch with new memory cannot be mapped: the new chunks go back, but for the one that another
   thread has taken memory of meanwhile. */
static void a_new_chunk_that_is_taken(void) {
    size_t bytes = GRANULE, reserved;
    void *block[6];
    open_by_granules(0);
    for (int i = 0; i < 6; i++) block[i] = get(GRANULE);
    CHECK_RESULT(gpupool_set_limit(arena, 11 * GRANULE), GPUPOOL_OK);
    for (int i = 0; i < 6; i += 2) put(block[i]);
    reserved = kit_reserved(arena);
    taken = NULL;
    fake_fail_call("cuMemMap", 6, 0, 0); /* five new chunks are */
    fake_before_call("cuMemUnmap", 1, take_so_much, &bytes);
    CHECK_RESULT(kit_why(gpupool_alloc(arena, 8 * GRANULE, kit_stream[0])), GPUPOOL_E_CUDA);
    fake_fail_clear();
    CHECK(taken != NULL);
    CHECK_EQ(kit_reserved(arena), reserved + GRANULE);
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    put(taken);
    for (int i = 1; i < 6; i += 2) put(block[i]);
    kit_close(arena);
}

/* ---- how much memory is got before free memory is stitched ---- */

/* So many granules are free, in as many places, when as many are live as `live`, more than ever
   before. */
static void before_stitches(int live, int free_granules, int stitched) {
    void *hole[10], *wall[10], *large;
    check_case("%d live, %d free", live, free_granules);
    open_by_granules(0);
    for (int i = 0; i < free_granules; i++) {
        hole[i] = get(GRANULE);
        wall[i] = get(GRANULE);
    }
    for (int i = 0; i < free_granules; i++) put(hole[i]);
    large = get((size_t)(live - free_granules) * GRANULE);
    CHECK_EQ(kit_stats(arena).stitches, stitched);
    CHECK_EQ(kit_reserved(arena), (size_t)(stitched ? live : live + free_granules) * GRANULE);
    put(large);
    for (int i = 0; i < free_granules; i++) put(wall[i]);
    kit_close(arena);
}

/* Up to 1% and 16 MiB beyond what is live more memory is got, rather than a stitch made. */
static void memory_ahead_of_stitches(void) {
    before_stitches(50, 8, 0); /* of 17 MiB */
    before_stitches(50, 9, 1);
    before_stitches(100, 9, 0); /* of 18 MiB */
    before_stitches(100, 10, 1);
}

/* ---- how long a fit is looked for before more memory is got ---- */

/* Holes that are a little too small, in front of the one that fits. */
static void behind(int misfits, int limited) {
    const size_t small = 5 * MIB / 2, fits = small + 200 * KIB; /* listed together */
    void *hole[257], *wall[258], *filler, *target, *block;
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_DEVICE);
    check_case("%d misfits%s", misfits, limited ? ", at the limit" : "");
    config.chunk_bytes = 1024 * MIB;
    arena = kit_create(&config);
    target = get(fits);
    for (int i = 0; i < misfits; i++) {
        wall[i] = get(512);
        hole[i] = get(small);
    }
    wall[misfits] = get(512);
    filler = get((size_t)kit_stats(arena).largest_free_bytes);
    put(target);
    for (int i = 0; i < misfits; i++) put(hole[i]);
    if (limited) CHECK_RESULT(gpupool_set_limit(arena, kit_reserved(arena)), GPUPOOL_OK);
    block = get(fits);
    CHECK_EQ(block == target, misfits <= 256 || limited);
    CHECK_EQ(kit_stats(arena).chunks_gained, block == target ? 1 : 2);
    put(block);
    put(filler);
    for (int i = 0; i <= misfits; i++) put(wall[i]);
    kit_close(arena);
}
static void a_fit_behind_many_misfits(void) {
    behind(256, 0);
    behind(257, 0);
    behind(257, 1); /* before it gives up it looks at all */
}
#endif

int main(void) {
    FAKE_TEST(homes_lie_side_by_side);
    FAKE_TEST(what_went_leaves_a_place);
    FAKE_TEST(nothing_gained_at_the_start);
    FAKE_TEST(many_places_that_are_too_small);
    FAKE_TEST(no_growth_where_none_is_needed);
    FAKE_TEST(not_from_a_slab);
    FAKE_TEST(a_slab_for_an_aligned_block);
    FAKE_TEST(so_many_places_are_looked_at);
    FAKE_TEST(a_place_of_the_next_size);
    FAKE_TEST(the_last_home_stays_empty);
    FAKE_TEST(the_stream_is_let_go);
    FAKE_TEST(an_idle_chunk_that_is_taken);
    FAKE_TEST(an_idle_chunk_that_does_not_go);
    FAKE_TEST(no_more_idle_chunks_than_needed);
    FAKE_TEST(a_new_chunk_that_is_taken);
    FAKE_TEST(memory_stays_where_it_is);
    FAKE_TEST(few_chunks_for_much_memory);
    FAKE_TEST(memory_ahead_of_stitches);
    FAKE_TEST(no_small_chunk_at_the_end);
    FAKE_TEST(the_lower_of_equal_chunks_goes);
    FAKE_TEST(which_of_two_sizes_goes);
    FAKE_TEST(the_order_of_idle_chunks);
    FAKE_TEST(a_block_over_chunks_of_two_tags);
    FAKE_TEST(next_to_the_arenas_addresses);
    FAKE_TEST(back_on_the_arenas_device);
    FAKE_TEST(memory_that_is_not_released);
    FAKE_TEST(addresses_that_are_not_unmapped);
    FAKE_TEST(host_memory_that_is_not_taken_back);
    FAKE_TEST(a_trial_that_is_not_taken_back);
    FAKE_TEST(chunks_grow_with_what_is_held);
    FAKE_TEST(a_chunk_is_a_share);
    FAKE_TEST(a_chunk_is_an_eighth);
    FAKE_TEST(a_half_and_a_quarter);
    FAKE_TEST(the_device_has_less_than_a_granule);
    FAKE_TEST(the_limit_is_one_chunk);
    FAKE_TEST(chunks_come_and_go);
    FAKE_TEST(addresses_for_twice_the_device);
    FAKE_TEST(no_host_memory_for_an_arena);
    FAKE_TEST(chunks_that_a_reset_took);
    FAKE_TEST(chunks_that_nobody_takes_back);
    FAKE_TEST(a_fit_behind_many_misfits);
    return check_finish();
}
