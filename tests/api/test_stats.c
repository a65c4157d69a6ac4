/* Statistics: exact on one stream, peaks too, after every call; and what counts as pending. */
#include "gpupool.h"
#include "kit.h"

#define A kit_stream[0]

static gpupool_arena *arena;

typedef struct model {
    uint64_t requested, allocated, blocks, allocs, frees;
    uint64_t requested_peak, allocated_peak;
} model;

static uint64_t units(size_t bytes) {
    return (bytes + 511) / 512 * 512;
}

static void add(model *m, size_t bytes) {
    m->requested += bytes;
    m->allocated += units(bytes);
    m->blocks++;
    m->allocs++;
    if (m->requested > m->requested_peak) m->requested_peak = m->requested;
    if (m->allocated > m->allocated_peak) m->allocated_peak = m->allocated;
}

static void drop(model *m, size_t bytes) {
    m->requested -= bytes;
    m->allocated -= units(bytes);
    m->blocks--;
    m->frees++;
}

static void compare(const model *m) {
    gpupool_stats stats = kit_stats(arena);
    CHECK_EQ(stats.requested.now, m->requested);
    CHECK_EQ(stats.allocated.now, m->allocated);
    CHECK_EQ(stats.requested.peak, m->requested_peak);
    CHECK_EQ(stats.allocated.peak, m->allocated_peak);
    CHECK_EQ(stats.blocks, m->blocks);
    CHECK_EQ(stats.allocs, m->allocs);
    CHECK_EQ(stats.frees, m->frees);
    CHECK(stats.allocated.now + stats.pending.now <= stats.reserved.now);
    CHECK(stats.reserved.now <= stats.reserved.peak);
    CHECK(stats.pending.now <= stats.pending.peak);
}

/* One stream, small and large blocks, all three ways to free. `look`: statistics are asked for
   after so many calls, since to ask may be what adds them up. */
static void random_calls(uint64_t seed, int look) {
    enum { MOST = 60 };
    struct {
        void *memory;
        size_t bytes;
    } live[MOST];
    model m = {0};
    int count = 0;
    arena = kit_open(0);
    for (int i = 0; i < 4000; i++) {
        int kind = (int)check_below(&seed, 8);
        check_case("call %d, statistics after each %d", i, look);
        if (count < MOST && (!count || kind < 4)) {
            size_t most = (size_t)512 << check_below(&seed, 12);
            live[count].bytes = 1 + check_below(&seed, most);
            live[count].memory = gpupool_alloc(arena, live[count].bytes, A);
            if (!CHECK(live[count].memory)) break;
            add(&m, live[count++].bytes);
        } else {
            int at = (int)check_below(&seed, (uint64_t)count);
            void *memory = live[at].memory;
            drop(&m, live[at].bytes);
            live[at] = live[--count];
            if (kind == 4) CHECK_RESULT(gpupool_free_in_host_function(arena, memory), GPUPOOL_OK);
            else kit_free(arena, memory, kind == 5 ? GPUPOOL_NO_STREAM : A);
        }
        if (i % look == 0) compare(&m);
    }
    compare(&m);
    while (count) kit_free(arena, live[--count].memory, A);
    kit_close(arena);
}

static void exact_on_one_stream(void) {
    random_calls(1, 1);
    random_calls(2, 7);
    random_calls(3, 4000);
}

/* A peak is kept when what made it is freed in a host function before anybody has asked. */
static void peak_before_a_host_function(void) {
    for (int large = 0; large < 2; large++) {
        size_t bytes = large ? 100000 : 1000;
        void *first, *second;
        model m = {0};
        check_case("%zu bytes", bytes);
        arena = kit_open(0);
        first = gpupool_alloc(arena, bytes, A);
        second = gpupool_alloc(arena, bytes, A);
        add(&m, bytes), add(&m, bytes);
        CHECK_RESULT(gpupool_free_in_host_function(arena, first), GPUPOOL_OK);
        drop(&m, bytes);
        compare(&m);
        CHECK_RESULT(gpupool_reset_peaks(arena), GPUPOOL_OK);
        m.requested_peak = m.requested, m.allocated_peak = m.allocated;
        compare(&m);
        first = gpupool_alloc(arena, bytes, A);
        add(&m, bytes);
        CHECK_RESULT(gpupool_free_in_host_function(arena, second), GPUPOOL_OK);
        drop(&m, bytes);
        second = gpupool_alloc(arena, bytes / 2, A);
        add(&m, bytes / 2);
        compare(&m);
        kit_free(arena, first, A);
        kit_free(arena, second, A);
        kit_close(arena);
    }
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

/* What the device has been waited for is pending no more. */
static void pending_ends(void) {
    arena = kit_open(0);
    void *block = gpupool_alloc(arena, 10 * MIB, A);
    kit_write(block, 10 * MIB, A, 1);
    kit_free(arena, block, A);
    CHECK(kit_stats(arena).pending.now >= 10 * MIB);
    CHECK_RESULT(gpupool_trim(arena, SIZE_MAX), GPUPOOL_OK);
    CHECK_RESULT(gpupool_set_limit(arena, 2 * MIB), GPUPOOL_OK);
    CHECK_EQ(kit_stats(arena).pending.now, 0);
    kit_close(arena);
}

/* Counts that explain cost agree with what CUDA was called. */
static void calls_are_counted(void) {
#if CHECK_FAKE
    static const char *const names[] = {"cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap",
                                        "cuMemRelease"};
    long calls = 0;
    void *blocks[4];
    int i;
    arena = kit_open(32 * MIB);
    fake_reset_counters();
    for (i = 0; i < 4; i++) blocks[i] = gpupool_alloc(arena, 8 * MIB, A);
    for (i = 0; i < 4; i += 2) kit_free(arena, blocks[i], A);
    kit_free(arena, gpupool_alloc(arena, 16 * MIB, A), A);
    for (i = 1; i < 4; i += 2) kit_free(arena, blocks[i], A);
    CHECK_EQ(kit_stats(arena).stitched, 1);
    for (i = 0; i < (int)KIT_COUNT(names); i++) calls += fake_calls(names[i]);
    CHECK(kit_stats(arena).driver_calls >= (uint64_t)calls);
    CHECK(kit_stats(arena).driver_calls <= (uint64_t)calls + 8); /* and addresses */
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
    KIT_TEST(exact_on_one_stream);
    KIT_TEST(peak_before_a_host_function);
    KIT_TEST(cached_behind_a_host_function);
    KIT_TEST(peaks_are_reset);
    KIT_TEST(never_used_memory_is_not_pending);
    KIT_TEST(pending_ends);
    KIT_FAKE_TEST(calls_are_counted);
    return check_finish();
}
