/* What growth takes, moves and leaves, to the piece: and what is left where it fails, at either end
   of an arena's life too. */
// build: plain
// build: asan -fsanitize=address,undefined
#include "fail_malloc.h"

#define GPUPOOL_IMPLEMENTATION
#include "../gpupool.h"
#include "arena_kit.h"

#if CHECK_FAKE

#define GRANULE (2 * MIB) /* the driver's */
#define GRANULE_UNITS (GRANULE / GPUPOOL_UNIT_BYTES)
#define QUIET 0u /* the lane of what anyone may take */

static gpupool_arena *arena;

static void *get(size_t bytes) { return kit_alloc(arena, bytes, kit_stream[0]); }
static void put(void *block) {
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
}

/* A mapped arena whose memory moves by the granule. */
static void open_by_granules(size_t limit) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
    config.limit_bytes = limit;
    config.chunk_bytes = GRANULE;
    arena = kit_create(&config);
}

/* As a call into the arena has it, for the functions that growth is made of. */
static gpi_backing *enter(void) {
    gpi_host_lock(&arena->lock);
    return &arena->backing;
}
static void leave(void) {
    gpi_host_unlock(&arena->lock);
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
}

/* A piece without addresses, as growth leaves it where the driver did not take it back. */
static gpi_piece *stash(size_t bytes) {
    gpi_piece *piece = NULL;
    CHECK_RESULT(gpi_backing_create(enter(), bytes / GPUPOOL_UNIT_BYTES, &piece), GPUPOOL_OK);
    leave();
    return piece;
}

/* Every other of so many granules is free, and quiet. */
static void lay_stripes(void **block, int count) {
    for (int i = 0; i < count; i++) block[i] = get(GRANULE);
    for (int i = 0; i < count; i += 2) put(block[i]);
    CHECK_RESULT(gpupool_trim(arena, SIZE_MAX, NULL), GPUPOOL_OK);
}
static void lift_stripes(void **block, int count) {
    for (int i = 1; i < count; i += 2) put(block[i]);
    kit_close(arena);
}

/* ---- the stash ---- */

/* Pieces are given back where the next one does not fit beside them, and no more of them than it
   takes. */
static void room_for_one_piece(void) {
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    for (int i = 0; i < 3; i++) stash(GRANULE);
    for (uint64_t most = 4; most > 1; most--) {
        gpi_backing *backing = enter();
        CHECK_RESULT(gpi_backing_make_room(backing, &arena->tree, GRANULE_UNITS,
                                           most * GRANULE_UNITS),
                     GPUPOOL_OK);
        leave();
        CHECK_EQ(kit_reserved(arena), (most - 1) * GRANULE);
    }
    kit_close(arena);
}

/* However much is held, one that fills its spot is taken as it is, not got anew. */
static void a_piece_that_fills_its_spot(void) {
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    void *large = get(4 * GIB);
    gpi_piece *piece = stash(GRANULE);
    uint64_t units = GRANULE_UNITS;
    CHECK(gpi_backing_choose(enter(), &arena->tree, GRANULE_UNITS, &units) == piece);
    leave();
    put(large);
    kit_close(arena);
}

/* The first growth of an arena that has but a stashed piece, too large for the spot: the piece
   stays as long as the aim leaves room for it, and goes where it does not. */
static void what_has_no_place_in_the_spot(void) {
    const uint32_t young = QUIET;
    for (size_t aim = 1; aim < 4; aim += 2) {
        gpi_lanes none;
        gpi_run *run = NULL;
        arena = kit_open(GPUPOOL_SOURCE_MAPPED);
        stash(2 * GRANULE);
        none.count = 0;
        CHECK_RESULT(gpi_backing_grow_mapped(enter(), &arena->tree, GRANULE_UNITS, 1, &none, NULL,
                                             &young, aim * GRANULE, SIZE_MAX, &run),
                     GPUPOOL_OK);
        if (run) gpi_tree_put(&arena->tree, run, QUIET, 0);
        leave();
        CHECK_EQ(kit_reserved(arena), aim * GRANULE);
        kit_close(arena);
    }
}

/* One that is as large as what is to go does go. */
static void a_stashed_piece_to_trim(void) {
    size_t released = 0;
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    void *block = get(GRANULE);
    stash(GRANULE);
    CHECK_RESULT(gpupool_trim(arena, GRANULE, &released), GPUPOOL_OK);
    CHECK_EQ(released, GRANULE);
    put(block);
    kit_close(arena);
}

/* ---- what moves ---- */

/* Moving has its price, so that only what may not be got moves. */
static void what_may_be_got_does_not_move(void) {
    void *block[32];
    open_by_granules(0);
    lay_stripes(block, 32);
    gpupool_stats before = kit_stats(arena);
    void *large = get(12 * GRANULE);
    gpupool_stats after = kit_stats(arena);
    CHECK(after.reserved.now > before.reserved.now);
    CHECK(after.stitches > before.stitches);
    CHECK_EQ((after.stitches - before.stitches) * GRANULE + after.reserved.now - before.reserved.now,
             12 * GRANULE);
    put(large);
    lift_stripes(block, 32);
}

/* A piece that the driver leaves where it is: those behind it were not asked for, and stay there
   too. */
static void no_more_moves_after_a_failure(void) {
    void *block[16];
    open_by_granules(16 * GRANULE);
    lay_stripes(block, 16);
    fake_reset_counters();
    fake_fail_call("cuMemUnmap", 2, 0, 0);
    CHECK_RESULT(kit_why(gpupool_alloc(arena, 4 * GRANULE, kit_stream[0])), GPUPOOL_E_CUDA);
    fake_fail_clear();
    CHECK_EQ(fake_calls("cuMemUnmap"), 2);
    CHECK_EQ(arena->backing.stash_units, GRANULE_UNITS);
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    lift_stripes(block, 16);
}

static const gpi_stream *fenced_stream(void) {
    const gpi_stream *stream = arena->fences.streams;
    while (stream && !stream->seals) stream = stream->next;
    CHECK(stream != NULL);
    return stream;
}

/* Memory of the request's own stream that is not enough for it stays behind the fence that it was
   behind: with a later one, others would have it later. */
static void what_is_not_enough_stays_behind_its_fence(void) {
    void *block[16];
    gpi_lanes own;
    gpi_run *run = NULL;
    open_by_granules(16 * GRANULE);
    fake_mode(FAKE_STEPPED);
    for (int i = 0; i < 16; i++) {
        block[i] = get(GRANULE);
        kit_mark(kit_stream[0], block[i], GRANULE, i);
    }
    for (int i = 0; i < 16; i += 2) put(block[i]);
    CHECK_RESULT(gpupool_trim(arena, SIZE_MAX, NULL), GPUPOOL_OK); /* a fence behind it */
    const gpi_stream *stream = fenced_stream();
    own.count = 1;
    own.number[0] = stream->sealed[0];
    CHECK_EQ(arena->tree.lanes[own.number[0]]->units, 8 * GRANULE_UNITS);
    CHECK_RESULT(gpi_backing_grow_mapped(enter(), &arena->tree, 9 * GRANULE_UNITS, 1, &own, &own,
                                         &stream->young, 0, 16 * GRANULE, &run),
                 GPUPOOL_E_OUT_OF_MEMORY);
    leave();
    CHECK_EQ(arena->tree.lanes[own.number[0]]->units, 8 * GRANULE_UNITS);
    fake_mode(FAKE_EAGER);
    lift_stripes(block, 16);
}

/* The free piece in the middle of a free run: what is left on both sides of it are runs too, though
   the host had a struct for just one. */
static void a_piece_is_taken_from_the_middle(void) {
    gpi_run *aside = NULL;
    size_t released = 0;
    open_by_granules(0);
    gpi_tree *tree = &arena->tree;
    void *first = get(MIB), *middle = get(2 * GRANULE), *last = get(MIB);
    CHECK((char *)middle == (char *)first + MIB && (char *)last == (char *)middle + 2 * GRANULE);
    put(middle);
    CHECK_RESULT(gpupool_trim(arena, SIZE_MAX, NULL), GPUPOOL_OK); /* it is quiet */
    while (tree->spare_count > 1) {
        gpi_run *run = tree->spare;
        tree->spare = run->list_next;
        run->list_next = aside;
        aside = run;
        tree->spare_count--;
    }
    CHECK_RESULT(gpupool_trim(arena, GRANULE, &released), GPUPOOL_OK);
    CHECK_EQ(released, GRANULE);
    while (aside) {
        gpi_run *run = aside;
        aside = run->list_next;
        run->list_next = tree->spare;
        tree->spare = run;
        tree->spare_count++;
    }
    CHECK_EQ(kit_stats(arena).largest_free_bytes, MIB);
    put(first);
    put(last);
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
    CHECK(fake_calls("cudaMalloc") <= 2);
    for (size_t i = 0; i < KIT_COUNT(small); i++) put(small[i]);
    put(large);
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

/* A TiB of addresses, or half as many each time that the system refuses, down to twice what the
   device has: with fewer there is no arena. */
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
        CHECK_EQ(arena->backing.space_units * GPUPOOL_UNIT_BYTES, space);
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

static void streams_are_gone(void) {
    for (int i = 0; i < KIT_STREAMS; i++) kit_stream[i] = NULL;
}

/* What the host keeps of chunks goes with the arena, though nobody gives those back. */
static void chunks_that_a_reset_took(void) {
    long live = fail_malloc_live;
    void *block[3];
    arena = kit_open(GPUPOOL_SOURCE_DEVICE);
    for (int i = 0; i < 3; i++) block[i] = get(64 * MIB);
    CHECK_EQ(arena->backing.pieces, 3);
    put(block[1]);
    CHECK_EQ(cudaDeviceReset(), cudaSuccess);
    streams_are_gone();
    CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_OK);
    CHECK_EQ(fail_malloc_live, live);
}

/* The same for the pieces of an arena that could not be made, which the driver keeps. */
static void pieces_that_nobody_takes_back(void) {
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
    CHECK(fake_reset() > 0);
    streams_are_gone();
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
    FAKE_TEST(room_for_one_piece);
    FAKE_TEST(a_piece_that_fills_its_spot);
    FAKE_TEST(what_has_no_place_in_the_spot);
    FAKE_TEST(a_stashed_piece_to_trim);
    FAKE_TEST(what_may_be_got_does_not_move);
    FAKE_TEST(no_more_moves_after_a_failure);
    FAKE_TEST(what_is_not_enough_stays_behind_its_fence);
    FAKE_TEST(a_piece_is_taken_from_the_middle);
    FAKE_TEST(chunks_grow_with_what_is_held);
    FAKE_TEST(the_limit_is_one_chunk);
    FAKE_TEST(chunks_come_and_go);
    FAKE_TEST(addresses_for_twice_the_device);
    FAKE_TEST(no_host_memory_for_an_arena);
    FAKE_TEST(chunks_that_a_reset_took);
    FAKE_TEST(pieces_that_nobody_takes_back);
    FAKE_TEST(a_fit_behind_many_misfits);
    return check_finish();
}
