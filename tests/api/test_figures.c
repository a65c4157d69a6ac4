/* Figures that agree with each other and with what gpupool_alloc does: of verdicts' sentences, and
   of gpupool_available. */
// build: plain
// build: asan -fsanitize=address,undefined
#include "gpupool.h"
#include "verdict_kit.h"

#if CHECK_FAKE

/* Whether the arena gives so much. Asked for in a new arena, since an attempt may put memory in
   order. */
static int is_given(gpupool_arena *(*make)(void), void (*end)(gpupool_arena *), size_t bytes) {
    gpupool_arena *arena = make();
    void *block = gpupool_alloc(arena, bytes, kit_stream[0]);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
    end(arena);
    return block != NULL;
}

/* ---- every second block freed ---- */

static gpupool_arena_config config;
static void *block[39];
static size_t block_bytes;

static gpupool_arena *make_gaps(void) {
    gpupool_arena *arena = kit_create(&config);
    for (int i = 0; i < 39; i++) block[i] = kit_alloc(arena, block_bytes, kit_stream[0]);
    for (int i = 0; i < 39; i += 2)
        CHECK_RESULT(gpupool_free(arena, block[i], kit_stream[0]), GPUPOOL_OK);
    return arena;
}

static void end_gaps(gpupool_arena *arena) {
    for (int i = 1; i < 39; i += 2)
        CHECK_RESULT(gpupool_free(arena, block[i], kit_stream[0]), GPUPOOL_OK);
    kit_close(arena);
}

/* What blocks hold and what is asked for are more than the whole, or the sentence says why that is
   not enough: then with the largest that would do. */
static void agrees(size_t asked, size_t whole) {
    gpupool_verdict v;
    gpupool_arena *arena = make_gaps();
    int fits_all = kit_fits(arena, asked, &v);
    end_gaps(arena);
    CHECK(!fits_all);
    if (v.cause == GPUPOOL_CAUSE_FRAGMENTED) {
        size_t largest = (size_t)v.fits_bytes;
        CHECK(!largest || is_given(make_gaps, end_gaps, largest));
        CHECK(!is_given(make_gaps, end_gaps, largest + GPUPOOL_UNIT_BYTES));
        size_t said = advised_bytes(&v, "but no more than");
        CHECK(said + said / 100 >= largest && said <= largest + largest / 100);
    } else {
        CHECK(v.granted_bytes + asked > whole);
    }
    if (atomic_load(&check_bad)) printf("  %s\n", v.sentence);
}

static void gaps_in_a_full_device(void) {
    static const gpupool_source sources[] = {GPUPOOL_SOURCE_MAPPED, GPUPOOL_SOURCE_DEVICE};
    for (int i = 0; i < 2; i++)
        for (int limited = 0; limited < 2; limited++)
            for (int no_stitch = 0; no_stitch < 2 - i; no_stitch++) {
                check_case("source %d, limited %d, no stitch %d", i, limited, no_stitch);
                fake_device_memory(0, limited ? 140 * GIB : 80 * GIB);
                config = kit_config(sources[i]);
                config.no_stitch = no_stitch;
                if (limited) config.limit_bytes = 80 * GIB;
                block_bytes = 2 * GIB - 512;
                if (i == 0) agrees(42 * GIB, 80 * GIB);
                agrees(42 * GIB + 19 * 512, 80 * GIB);
                agrees(43 * GIB, 80 * GIB);
                agrees(70 * GIB, 80 * GIB);
            }
}

static void gaps_of_other_sizes(void) {
    static const size_t sizes[] = {512, 100 * KIB, 3 * MIB - 512, 5 * MIB};
    for (size_t i = 0; i < KIT_COUNT(sizes); i++)
        for (int mapped = 0; mapped < 2; mapped++) {
            check_case("blocks of %zu, mapped %d", sizes[i], mapped);
            fake_device_memory(0, 80 * GIB);
            config = kit_config(mapped ? GPUPOOL_SOURCE_MAPPED : GPUPOOL_SOURCE_DEVICE);
            block_bytes = sizes[i];
            config.limit_bytes = 80 * sizes[i] + 6 * MIB;
            gpupool_arena *arena = make_gaps();
            size_t asked = config.limit_bytes - (size_t)kit_stats(arena).granted.now;
            int all = kit_fits(arena, asked, NULL);
            end_gaps(arena);
            if (!all) agrees(asked, config.limit_bytes);
            agrees(asked + 2 * MIB, config.limit_bytes);
        }
}

/* ---- gpupool_available ---- */

/* Of an arena with nothing in it: so much is had, and no granule more. */
static void available_is_had(gpupool_source source, size_t device, size_t limit) {
    gpupool_verdict v;
    check_case("source %d, device %zu, limit %zu", (int)source, device, limit);
    fake_device_memory(0, device);
    gpupool_arena *arena = kit_open_limited(source, limit);
    size_t available = kit_available(arena);
    CHECK_RESULT(gpupool_last_result(), GPUPOOL_OK);
    if (available) {
        CHECK(kit_fits(arena, available, &v) || !printf("  %s\n", v.sentence));
        void *all = kit_alloc(arena, available, kit_stream[0]);
        CHECK_EQ(kit_available(arena) <= 2 * MIB, 1);
        CHECK_RESULT(gpupool_free(arena, all, kit_stream[0]), GPUPOOL_OK);
        CHECK_EQ(kit_available(arena) >= available, 1);
    }
    CHECK(!kit_fits(arena, available + 2 * MIB, NULL));
    kit_close(arena);
}

static void available_of_each_source(void) {
    static const gpupool_source sources[] = {
        GPUPOOL_SOURCE_MAPPED, GPUPOOL_SOURCE_DEVICE, GPUPOOL_SOURCE_BYPASS,
        GPUPOOL_SOURCE_CUSTOM};
    static const size_t odd[] = {0, 512, MIB - 512, MIB, MIB + 512, 3 * MIB / 2, 2 * MIB, 3 * MIB};
    for (size_t s = 0; s < KIT_COUNT(sources); s++)
        for (size_t i = 0; i < KIT_COUNT(odd); i++) {
            available_is_had(sources[s], GIB + odd[i], 0);
            available_is_had(sources[s], 140 * GIB, 64 * MIB + odd[i]);
            if (odd[i]) available_is_had(sources[s], 140 * GIB, odd[i]);
        }
}

/* Less than a granule of device memory is left: cudaMalloc still gives it. */
static void available_below_a_granule(void) {
    for (size_t device = MIB / 2; device <= MIB; device += MIB / 2) {
        available_is_had(GPUPOOL_SOURCE_DEVICE, device, 0);
        gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_DEVICE);
        CHECK_EQ(kit_available(arena), device);
        kit_close(arena);
    }
}

/* What a scope has freed is a graph's, also while the scope is open. */
static void available_without_what_a_scope_has_freed(void) {
    gpupool_capture *scope = NULL;
    gpupool_arena *arena = kit_open_limited(GPUPOOL_SOURCE_BYPASS, 20 * MIB);
    CHECK_RESULT(gpupool_begin_capture(arena, kit_stream[0], &scope), GPUPOOL_OK);
    void *freed = kit_alloc(arena, 4 * MIB, kit_stream[0]);
    CHECK_RESULT(gpupool_free(arena, freed, kit_stream[0]), GPUPOOL_OK);
    CHECK_EQ(kit_reserved(arena), 4 * MIB);
    CHECK_EQ(kit_available(arena), 16 * MIB);
    CHECK_RESULT(gpupool_release_capture(scope), GPUPOOL_OK);
    CHECK_EQ(kit_available(arena), 20 * MIB);
    kit_close(arena);
}

/* Neither a device nor a limit bounds these: no more than gpupool_alloc takes for a size. */
static void available_without_bounds(void) {
    gpupool_verdict v;
    gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_PINNED);
    size_t available = kit_available(arena);
    CHECK(available > (size_t)1 << 40);
    CHECK_EQ(kit_fits(arena, available, &v), 1);
    kit_close(arena);
}
#endif

int main(void) {
    FAKE_TEST(gaps_in_a_full_device);
    FAKE_TEST(gaps_of_other_sizes);
    FAKE_TEST(available_of_each_source);
    FAKE_TEST(available_below_a_granule);
    FAKE_TEST(available_without_what_a_scope_has_freed);
    FAKE_TEST(available_without_bounds);
    return check_finish();
}
