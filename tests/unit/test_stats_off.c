/* GPUPOOL_STATS 0: limits hold, verdicts tell, invariants are checked; what only counts is 0. */
// build: plain -fsanitize=address
#define GPUPOOL_STATS 0
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "limit_kit.h"
#include "verdict_kit.h"

static uint64_t now_reserved(gpupool_arena *arena) { return kit_reserved(arena); }

static void the_limit_holds(void) { limit_holds(9, now_reserved); }

static void what_is_needed_is_counted(void) {
    gpupool_arena *arena = kit_open_limited(GPUPOOL_SOURCE_AUTO, 64 * MIB);
    void *block = kit_alloc(arena, 3000, kit_stream[0]);
    gpupool_stats s = kit_stats(arena);
    CHECK_EQ(s.granted.now, 3072);
    CHECK_EQ(s.blocks.now, 1);
    CHECK_EQ(s.reserved.now, 2 * MIB);
    CHECK_EQ(s.limit_bytes, 64 * MIB);
    CHECK(s.largest_free_bytes > MIB && s.host_bytes > 0);
    CHECK(s.allocs == 0 && s.requested.now == 0 && s.granted.total == 0 && s.splits == 0);
    CHECK(s.live_by_order[2] == 0);
    CHECK_EQ(kit_size(arena, block), 3000);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
    CHECK_EQ(kit_stats(arena).blocks.now, 0);
    CHECK(kit_stats(arena).pending.now >= 3072);
    CHECK(strstr(gpupool_get_build(), "stats=0") != NULL);
    kit_close(arena);
}

/* What was asked for is not known; what is granted is. */
static void reports_say_what_is_known(void) {
    static char map[MIB], table[MIB];
    FILE *file = tmpfile();
    gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_AUTO);
    void *block = kit_alloc(arena, 3000, kit_stream[0]);
    CHECK_RESULT(gpupool_write_svg(arena, file), GPUPOOL_OK);
    rewind(file);
    CHECK(fread(map, 1, sizeof map - 1, file) > 0);
    CHECK(strstr(map, "\"arena\": 3.00 KiB live in 1 block, ") != NULL);
    fclose(file);
    file = tmpfile();
    CHECK_RESULT(gpupool_report(arena, file), GPUPOOL_OK);
    rewind(file);
    CHECK(fread(table, 1, sizeof table - 1, file) > 0);
    CHECK(strstr(table, "  calls        not counted") != NULL);
    fclose(file);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
    kit_close(arena);
}

static void verdicts_are_as_good(void) {
    gpupool_arena *arena = kit_open_limited(GPUPOOL_SOURCE_AUTO, 64 * MIB);
    void *block = kit_alloc(arena, 30 * MIB, kit_stream[0]);
    gpupool_verdict v = refuses(arena, 50 * MIB, GPUPOOL_CAUSE_LIMIT);
    CHECK_EQ(v.granted_bytes, 30 * MIB);
    CHECK_EQ(v.holders[0].blocks, 1);
    raise_as_advised(arena, &v);
    fits(arena, 50 * MIB);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
    kit_close(arena);
}

/* Whether a cache pays is counted without statistics, too. */
static void a_cache_that_is_used_stays_open(void) {
    gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_AUTO);
    size_t most = 0;
    for (size_t i = 1; i <= 100; i++) { /* a size that comes again, and one that never does */
        const size_t bytes[3] = {KIB, KIB, (4 + i) * KIB};
        for (size_t k = 0; k < 3; k++) {
            void *block = kit_alloc(arena, bytes[k], kit_stream[0]);
            CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
        }
        for (const gpi_stream *s = arena->clocks.streams; s; s = s->next)
            if (s->cache.rest > most) most = s->cache.rest;
    }
    CHECK_EQ(most, 0);
    kit_close(arena);
}

static void scopes_are_left_out(void) {
    gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_AUTO);
    CHECK_RESULT(gpupool_begin_phase(arena), GPUPOOL_E_UNSUPPORTED);
    CHECK_RESULT(gpupool_end_phase(arena, NULL), GPUPOOL_E_UNSUPPORTED);
    CHECK_RESULT(gpupool_reset_peaks(arena), GPUPOOL_OK);
    kit_close(arena);
}

int main(void) {
    ARENA_TEST(the_limit_holds);
    ARENA_TEST(what_is_needed_is_counted);
    ARENA_TEST(reports_say_what_is_known);
    ARENA_TEST(verdicts_are_as_good);
    ARENA_TEST(a_cache_that_is_used_stays_open);
    ARENA_TEST(scopes_are_left_out);
    return check_finish();
}
