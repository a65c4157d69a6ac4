/* Statistics: exact on one stream, peaks too, after every call; and what counts as pending. */
#include "gpupool.h"
#include "kit.h"

#define A kit_stream[0]

static gpupool_arena *arena;

typedef struct figure {
    uint64_t now, peak;
} figure;

static void add(figure *of, uint64_t bytes) {
    of->now += bytes;
    if (of->now > of->peak) of->peak = of->now;
}

/* One stream, small and large blocks, all three ways to free. Statistics are asked for after so
   many calls, since to ask may be what adds them up; peaks begin anew there. */
static void exact_on_one_stream(int calls) {
    enum { MOST = 60 };
    void *blocks[MOST];
    size_t bytes[MOST];
    figure requested = {0, 0}, allocated = {0, 0};
    uint64_t seed = (uint64_t)calls;
    int count = 0, frees = 0;
    arena = kit_open(0);
    for (int i = 1; i <= 4000; i++) {
        int kind = (int)check_below(&seed, 8);
        int at = count ? (int)check_below(&seed, (uint64_t)count) : 0;
        check_case("call %d, statistics after each %d", i, calls);
        if (count < MOST && (!count || kind < 4)) {
            bytes[count] = 1 + check_below(&seed, (size_t)512 << check_below(&seed, 12));
            add(&requested, bytes[count]);
            add(&allocated, (bytes[count] + 511) / 512 * 512);
            blocks[count] = gpupool_alloc(arena, bytes[count], A);
            if (!CHECK(blocks[count++])) return;
        } else {
            requested.now -= bytes[at];
            allocated.now -= (bytes[at] + 511) / 512 * 512;
            frees++;
            if (kind == 4) gpupool_free_in_host_function(arena, blocks[at]);
            else kit_free(arena, blocks[at], kind == 5 ? GPUPOOL_NO_STREAM : A);
            bytes[at] = bytes[--count];
            blocks[at] = blocks[count];
        }
        if (i % calls) continue;
        gpupool_stats stats = kit_stats(arena);
        CHECK_EQ(stats.requested.now, requested.now);
        CHECK_EQ(stats.requested.peak, requested.peak);
        CHECK_EQ(stats.allocated.now, allocated.now);
        CHECK_EQ(stats.allocated.peak, allocated.peak);
        CHECK_EQ(stats.blocks, count);
        CHECK_EQ(stats.frees, frees);
        CHECK_EQ(stats.allocs, count + frees);
        CHECK_RESULT(gpupool_reset_peaks(arena), GPUPOOL_OK);
        requested.peak = requested.now;
        allocated.peak = allocated.now;
    }
    while (count) kit_free(arena, blocks[--count], A);
    kit_close(arena);
}

static void figures_are_exact(void) {
    exact_on_one_stream(1);
    exact_on_one_stream(7);
    exact_on_one_stream(4000);
}

static void peaks_are_reset(void) {
    gpupool_stats stats;
    arena = kit_open(0);
    kit_free(arena, gpupool_alloc(arena, 10 * MIB, A), A);
    kit_free(arena, gpupool_alloc(arena, 1000, A), A);
    CHECK_RESULT(gpupool_trim(arena, 0), GPUPOOL_OK);
    stats = kit_stats(arena);
    CHECK(stats.allocated.peak >= 10 * MIB && stats.reserved.peak >= 10 * MIB);
    CHECK(stats.pending.peak >= 10 * MIB);
    CHECK_RESULT(gpupool_reset_peaks(arena), GPUPOOL_OK);
    stats = kit_stats(arena);
    CHECK_EQ(stats.requested.peak + stats.allocated.peak + stats.reserved.peak + stats.pending.peak,
             0);
    CHECK_EQ(stats.allocs, 2); /* counts go on */
    kit_close(arena);
}

/* Memory that no block had is free: at most as much of it waits as was freed. */
static void never_used_memory_is_not_pending(void) {
    static const gpupool_source sources[] = {GPUPOOL_SOURCE_MAPPED, GPUPOOL_SOURCE_DEVICE};
    for (int i = 0; i < 6; i++) {
        gpupool_arena_config config = kit_config(sources[i % 2], 0);
        size_t bytes = (size_t)20480 << i, freed = 0;
        void *blocks[8];
        check_case("case %d", i);
        config.chunk_bytes = 64 * MIB;
        arena = kit_create(&config);
        for (int k = 0; k < 8; k++) blocks[k] = gpupool_alloc(arena, bytes, A);
        CHECK_EQ(kit_stats(arena).pending.now, 0);
        for (int k = 7; k >= 0; k--) { /* the last one lies beside memory that nobody had */
            kit_write(blocks[k], bytes, A, k);
            kit_free(arena, blocks[k], A);
            freed += bytes;
            CHECK(kit_stats(arena).pending.now >= freed);
            CHECK(kit_stats(arena).pending.now <= 2 * freed);
        }
        kit_close(arena);
    }
}

/* Counts that explain cost agree with what CUDA was called. */
static void calls_are_counted(void) {
#if CHECK_FAKE
    static const char *const names[] = {"cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap",
                                        "cuMemRelease"};
    uint64_t calls = 0;
    arena = kit_open(32 * MIB);
    fake_reset_counters();
    kit_free(arena, gpupool_alloc(arena, 8 * MIB, A), A);
    CHECK_RESULT(gpupool_trim(arena, 0), GPUPOOL_OK);
    for (size_t i = 0; i < KIT_COUNT(names); i++) calls += (uint64_t)fake_calls(names[i]);
    CHECK(calls > 4 && kit_stats(arena).driver_calls >= calls);
    CHECK(kit_stats(arena).driver_calls <= calls + 8); /* and addresses */
    kit_close(arena);
#endif
}

/* What a host function has freed is no part of the peak, also where a cache has the next block. */
static void cached_behind_a_host_function(void) {
    void *small, *large;
    arena = kit_open(0);
    small = gpupool_alloc(arena, 1000, A);
    large = gpupool_alloc(arena, MIB, A);
    kit_free(arena, small, A);
    CHECK_RESULT(gpupool_reset_peaks(arena), GPUPOOL_OK);
    CHECK_RESULT(gpupool_free_in_host_function(arena, large), GPUPOOL_OK);
    small = gpupool_alloc(arena, 1000, A);
    CHECK_EQ(kit_stats(arena).requested.peak, MIB);
    kit_free(arena, small, A);
    kit_close(arena);
}

int main(void) {
    KIT_TEST(figures_are_exact);
    KIT_TEST(cached_behind_a_host_function);
    KIT_TEST(peaks_are_reset);
    KIT_TEST(never_used_memory_is_not_pending);
    KIT_FAKE_TEST(calls_are_counted);
    return check_finish();
}
