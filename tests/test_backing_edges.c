/* Addresses and pieces that do not fit, and what holds in the midst of growth. */
#define GPUPOOL_IMPLEMENTATION
#include "../gpupool.h"
#include "arena_kit.h"

#if CHECK_FAKE

static gpupool_arena *arena;

static void *get(size_t bytes, int stream) { return kit_alloc(arena, bytes, kit_stream[stream]); }
static void put(void *block, int stream) {
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[stream]), GPUPOOL_OK);
}

/* ---- addresses and pieces ---- */

#define HOLES 80

/* More bare runs than are looked at once one fits; and all of them while none does. */
static void many_bare_runs(void) {
    void *block[2 * HOLES], *fits, *large;
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    for (int i = 0; i < 2 * HOLES; i++) block[i] = get(2 * MIB, 0);
    for (int i = 0; i < 2 * HOLES; i += 2) put(block[i], 0);
    CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
    CHECK_EQ(kit_reserved(arena), HOLES * 2 * MIB);
    fits = get(2 * MIB, 0);
    CHECK((char *)fits < (char *)block[2 * HOLES - 1]);
    large = get(6 * MIB, 0);
    CHECK((char *)large > (char *)block[2 * HOLES - 1]);
    put(fits, 0);
    put(large, 0);
    for (int i = 1; i < 2 * HOLES; i += 2) put(block[i], 0);
    kit_close(arena);
}

/* A bare granule between halves that are free: a request takes the granule and one of them, where
   the limit allows no more than the granule. */
static void free_memory_beside_a_bare_run(void) {
    for (int side = 0; side < 2; side++) {
        arena = kit_open(GPUPOOL_SOURCE_MAPPED);
        char *left[2], *hole, *right[2];
        check_case("side %d", side);
        for (int i = 0; i < 2; i++) left[i] = (char *)get(MIB, 0);
        hole = (char *)get(2 * MIB, 0);
        for (int i = 0; i < 2; i++) right[i] = (char *)get(MIB, 0);
        put(hole, 0);
        CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
        CHECK_EQ(kit_reserved(arena), 4 * MIB);
        CHECK_RESULT(gpupool_set_limit(arena, 6 * MIB), GPUPOOL_OK);
        put(side ? right[0] : left[1], 0);
        CHECK_RESULT(gpupool_trim(arena, SIZE_MAX, NULL), GPUPOOL_OK); /* quiet, if it was not */
        gpupool_stats before = kit_stats(arena);
        fake_fail_call("cuMemCreate", 1, 1, 0);
        CHECK_RESULT(kit_why(gpupool_alloc(arena, 3 * MIB, kit_stream[0])),
                     GPUPOOL_E_OUT_OF_MEMORY);
        fake_fail_clear();
        CHECK(kit_same_stats(before, kit_stats(arena)));
        CHECK_EQ(arena->tree.lanes[0]->units, MIB / GPUPOOL_UNIT_BYTES); /* as quiet as before */
        char *block = (char *)get(3 * MIB, 0);
        CHECK(block == (side ? hole : left[1]));
        CHECK_EQ(kit_reserved(arena), 6 * MIB);
        put(block, 0);
        put(left[0], 0);
        put(right[1], 0);
        put(side ? left[1] : right[0], 0);
        kit_close(arena);
    }
}

/* The table of granules has a page for each GiB: one block is in four of them. */
static void a_block_over_several_tables(void) {
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    void *below = get(GIB / 2, 0), *block = get(3 * GIB, 0);
    kit_mark(kit_stream[0], block, 3 * GIB, 1);
    kit_expect_mark(kit_stream[0], block, 3 * GIB, 1);
    put(below, 0);
    put(block, 0);
    kit_close(arena);
}

/* What follows a chunk may be the program's own. */
static void a_chunk_ends_where_it_ends(void) {
    arena = kit_open(GPUPOOL_SOURCE_DEVICE);
    put(get(MIB, 0), 0);
    const gpi_piece *chunk = arena->backing.placed;
    for (int past = -1; past < 2; past++) {
        CHECK_EQ(gpi_backing_owns(&arena->backing, chunk->unit + (uint64_t)past), past >= 0);
        CHECK_EQ(gpi_backing_owns(&arena->backing, chunk->unit + chunk->units + (uint64_t)past),
                 past < 0);
    }
    kit_close(arena);
}

/* More than all addresses, beside free memory whose end is less than that. */
static void larger_than_the_address_space(void) {
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    void *first = get(2 * MIB, 0), *second = get(3 * MIB, 0), *third = get(2 * MIB, 0);
    put(first, 0);
    CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
    put(second, 0);
    CHECK_RESULT(gpupool_trim(arena, SIZE_MAX, NULL), GPUPOOL_OK);
    CHECK_RESULT(kit_why(gpupool_alloc(arena, (size_t)1 << 48, kit_stream[0])),
                 GPUPOOL_E_OUT_OF_MEMORY);
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    put(third, 0);
    kit_close(arena);
}

/* Nothing follows the last of all addresses; what does is not the arena's. */
static void the_end_of_the_address_space(void) {
    gpi_spot spot;
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    memset(&spot, 0, sizeof spot);
    spot.bare = arena->backing.first;
    CHECK(spot.bare->next == NULL);
    CHECK_EQ(gpi_backing_spot_room(&spot), 0);
    void *block = get(2 * MIB, 0);
    spot.bare = arena->backing.first;
    CHECK_EQ(gpi_backing_spot_room(&spot), spot.bare->next->units);
    uint64_t end = arena->backing.base_unit + arena->backing.space_units;
    CHECK(gpi_backing_owns(&arena->backing, end - 1));
    CHECK(!gpi_backing_owns(&arena->backing, end));
    put(block, 0);
    kit_close(arena);
}

/* What a capturing stream has freed before, behind fences, does not move to its graph. */
static void sealed_memory_stays_out_of_a_graph(void) {
    cudaGraph_t graph = NULL;
    void *block[8];
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 34 * MIB);
    void *other = get(2 * MIB, 1); /* there is a stream to fence frees for */
    fake_mode(FAKE_STEPPED);
    for (int i = 0; i < 8; i++) {
        block[i] = get(4 * MIB, 0);
        kit_mark(kit_stream[0], block[i], 4 * MIB, i);
    }
    for (int i = 0; i < 8; i += 2) put(block[i], 0);
    CHECK_EQ(cudaStreamBeginCapture(kit_stream[0], cudaStreamCaptureModeThreadLocal), cudaSuccess);
    CHECK_RESULT(kit_why(gpupool_alloc(arena, 12 * MIB, kit_stream[0])), GPUPOOL_E_OUT_OF_MEMORY);
    CHECK_EQ(kit_stats(arena).remaps, 0);
    CHECK_EQ(cudaStreamEndCapture(kit_stream[0], &graph), cudaSuccess);
    CHECK_EQ(cudaGraphDestroy(graph), cudaSuccess);
    put(get(12 * MIB, 0), 0);
    CHECK(kit_stats(arena).remaps > 0);
    for (int i = 1; i < 8; i += 2) put(block[i], 0);
    put(other, 1);
    fake_mode(FAKE_EAGER);
    kit_close(arena);
}

/* A piece that the driver would not take back is larger than what is to go: it stays. */
static void a_stashed_piece_too_large_to_trim(void) {
    size_t reserved;
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    void *small = get(2 * MIB, 0), *large = get(512 * MIB, 0);
    put(small, 0);
    put(large, 0);
    fake_fail_call("cuMemRelease", 1, 1, 0);
    CHECK_RESULT(gpupool_trim(arena, 2 * MIB, NULL), GPUPOOL_E_CUDA);
    CHECK_RESULT(gpupool_set_limit(arena, 2 * MIB), GPUPOOL_E_CUDA);
    CHECK_EQ(gpupool_get_limit(arena), 0); /* as before */
    fake_fail_clear();
    CHECK(arena->backing.stash && arena->backing.stash->bytes > 2 * MIB);
    reserved = kit_reserved(arena);
    CHECK_RESULT(gpupool_trim(arena, reserved - 2 * MIB, NULL), GPUPOOL_OK);
    CHECK_EQ(kit_reserved(arena), reserved - 2 * MIB);
    CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
    CHECK_EQ(kit_reserved(arena), 0);
    kit_close(arena);
}

static void what_is_not_taken_back_stays_where_it_is(void) {
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    put(get(64 * MIB, 0), 0);
    CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
    CHECK_RESULT(gpupool_trim(arena, SIZE_MAX, NULL), GPUPOOL_OK); /* it is quiet */
    fake_fail_call("cuMemUnmap", 1, 1, 0);
    CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_E_CUDA);
    fake_fail_clear();
    CHECK_EQ(kit_stats(arena).largest_free_bytes, 64 * MIB);
    fake_reset_counters();
    put(get(64 * MIB, 1), 1);
    CHECK_EQ(fake_calls("cuMemMap") + fake_calls("cuMemCreate"), 0);
    kit_close(arena);
}

/* ---- what does not hold for a moment ---- */

static int checks;

static void check_now(void *unused) {
    char room = 0;
    (void)unused;
    checks++;
    CHECK_EQ(gpi_arena_check_all(arena, 0, &room), 0);
}

/* Between a run that is held and its memory: every invariant holds there too. */
static void the_check_during_growth(void) {
    static const char *const calls[] = {"cuMemCreate", "cuMemMap", "cuMemSetAccess"};
    for (size_t i = 0; i < KIT_COUNT(calls); i++) {
        arena = kit_open(GPUPOOL_SOURCE_MAPPED);
        void *first = get(3 * MIB, 0);
        fake_before_call(calls[i], 2, check_now, NULL);
        void *second = get(90 * MIB, 0);
        put(first, 0);
        put(second, 0);
        kit_close(arena);
    }
}

/* While the host waits, for one fence or for the device: another thread may come then. */
static void the_check_during_a_wait(void) {
    static const char *const calls[] = {"cudaEventSynchronize", "cudaFree"};
    for (size_t i = 0; i < KIT_COUNT(calls); i++) {
        arena = kit_open_limited(i ? GPUPOOL_SOURCE_DEVICE : GPUPOOL_SOURCE_PINNED, 2 * MIB);
        arena->captures_seen = 1; /* no fence over all streams then */
        void *first = get(2 * MIB, 0);
        fake_mode(FAKE_STEPPED);
        kit_mark(kit_stream[0], first, 2 * MIB, 1);
        put(first, 0);
        checks = 0;
        fake_before_call(calls[i], 1, check_now, NULL);
        void *second = get(2 * MIB, (int)i);
        CHECK_EQ(checks, 1);
        put(second, 0);
        fake_mode(FAKE_EAGER);
        kit_close(arena);
    }
}

/* The limit leaves room for no piece more, and the idle ones are larger than what is still bare:
   one of them goes, past those that are placed already, and smaller ones come. */
static void pieces_that_do_not_fit_the_rest(void) {
    for (int fails = 0; fails < 2; fails++) {
        void *block[3];
        arena = kit_open(GPUPOOL_SOURCE_MAPPED);
        for (int i = 0; i < 3; i++) block[i] = get(160 * MIB, 0);
        CHECK(arena->backing.placed->bytes > 6 * MIB);
        put(block[0], 0);
        put(block[2], 0);
        CHECK_RESULT(gpupool_set_limit(arena, kit_reserved(arena)), GPUPOOL_OK);
        if (fails) fake_fail_call("cuMemRelease", 1, 0, 0);
        void *large = gpupool_alloc(arena, 190 * MIB, kit_stream[0]);
        CHECK_RESULT(kit_why(large), fails ? GPUPOOL_E_CUDA : GPUPOOL_OK);
        CHECK_EQ(fake_fail_fired(), fails);
        fake_fail_clear();
        CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
        CHECK(kit_reserved(arena) <= gpupool_get_limit(arena));
        if (fails) large = get(190 * MIB, 0);
        put(large, 0);
        put(block[1], 0);
        kit_close(arena);
    }
}
#endif

int main(void) {
    FAKE_TEST(many_bare_runs);
    FAKE_TEST(free_memory_beside_a_bare_run);
    FAKE_TEST(a_block_over_several_tables);
    FAKE_TEST(a_chunk_ends_where_it_ends);
    FAKE_TEST(larger_than_the_address_space);
    FAKE_TEST(the_end_of_the_address_space);
    FAKE_TEST(sealed_memory_stays_out_of_a_graph);
    FAKE_TEST(a_stashed_piece_too_large_to_trim);
    FAKE_TEST(pieces_that_do_not_fit_the_rest);
    FAKE_TEST(what_is_not_taken_back_stays_where_it_is);
    FAKE_TEST(the_check_during_growth);
    FAKE_TEST(the_check_during_a_wait);
    return check_finish();
}
