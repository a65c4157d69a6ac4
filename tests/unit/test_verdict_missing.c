/* What a verdict says is in the way, and how much is missing: the limit, the device, both at once,
   or neither, where the driver refuses all the same. */
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "verdict_kit.h"
#include "arena_scene.h"

#if CHECK_FAKE

/* ---- the limit ---- */

/* Above a lowered limit: the limit to the byte from which on the request fits. */
static void raised_by_as_much_as_is_missing(void) {
    static const size_t odds[] = {0, 1, 511, 512};
    for (size_t i = 0; i < KIT_COUNT(odds); i++) {
        size_t odd = odds[i];
        arena = kit_open(GPUPOOL_SOURCE_DEVICE);
        void *block = get(40 * MIB, 0);
        size_t limit = 39 * MIB + odd;
        CHECK_RESULT(gpupool_set_limit(arena, limit), GPUPOOL_OK);
        gpupool_verdict v = would_not_fit(arena, 8 * MIB, GPUPOOL_CAUSE_LIMIT);
        CHECK_EQ(v.raise_bytes, 9 * MIB - odd / 512 * 512);
        says(&v, "raise the limit by 9.00 MiB");
        CHECK_RESULT(gpupool_set_limit(arena, limit + v.raise_bytes - 512), GPUPOOL_OK);
        would_not_fit(arena, 8 * MIB, GPUPOOL_CAUSE_LIMIT);
        CHECK_RESULT(gpupool_set_limit(arena, limit + v.raise_bytes), GPUPOOL_OK);
        fits(arena, 8 * MIB);
        put(block, 0);
        kit_close(arena);
    }
}

/* Up to 1 MiB a chunk of cudaMalloc costs what it is; larger ones cost whole granules. The advice
   is enough, and no more than that. */
static void the_least_raise_for_a_chunk(void) {
    static const size_t sizes[] = {600 * KIB, 1000 * KIB, MIB, MIB + 512, 3 * MIB / 2};
    for (size_t i = 0; i < KIT_COUNT(sizes); i++) {
        check_case("%zu bytes", sizes[i]);
        arena = kit_open_limited(GPUPOOL_SOURCE_DEVICE, 512 * KIB);
        gpupool_verdict v = would_not_fit(arena, sizes[i], GPUPOOL_CAUSE_LIMIT);
        CHECK_RESULT(gpupool_set_limit(arena, 512 * KIB + v.raise_bytes - 512), GPUPOOL_OK);
        CHECK_RESULT(kit_why(gpupool_alloc(arena, sizes[i], kit_stream[0])),
                     GPUPOOL_E_OUT_OF_MEMORY);
        CHECK_RESULT(gpupool_set_limit(arena, 512 * KIB + v.raise_bytes), GPUPOOL_OK);
        put(get(sizes[i], 0), 0);
        kit_close(arena);
    }
}

/* A limit may be below what is reserved while work is in flight. Raised, it is to be no longer:
   else memory would be given back that the request may need. */
static void a_limit_below_what_is_reserved(void) {
    void *block[3];
    arena = kit_open(GPUPOOL_SOURCE_DEVICE);
    for (int i = 0; i < 3; i++) {
        CHECK_RESULT(gpupool_set_limit(arena, (i == 2 ? 48 : (size_t)(i + 1) * 12) * MIB),
                     GPUPOOL_OK);
        block[i] = get((i == 2 ? 24 : 12) * MIB, 0);
    }
    CHECK_EQ(kit_reserved(arena), 48 * MIB);
    fake_mode(FAKE_STEPPED);
    for (int i = 0; i < 2; i++) {
        kit_mark(kit_stream[0], block[i], 12 * MIB, 1);
        put(block[i], 0);
    }
    CHECK_RESULT(gpupool_set_limit(arena, 40 * MIB), GPUPOOL_OK);
    fake_mode(FAKE_EAGER);
    CHECK_RESULT(gpupool_wait_all(arena), GPUPOOL_OK);
    CHECK_EQ(kit_reserved(arena), 48 * MIB);
    gpupool_verdict v = would_not_fit(arena, 20 * MIB, GPUPOOL_CAUSE_FRAGMENTED);
    CHECK_EQ(v.raise_bytes, 8 * MIB);
    CHECK_EQ(v.missing_bytes, 4 * MIB);
    raise_as_advised(arena, &v);
    CHECK_EQ(kit_reserved(arena), 48 * MIB);
    fits(arena, 20 * MIB);
    put(block[2], 0);
    kit_close(arena);
}

/* What would be free after a wait is not missing: the limit has to be raised by the rest. */
static void what_is_pending_is_not_missing(void) {
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 32 * MIB);
    void *blocks[3];
    for (int i = 0; i < 3; i++) blocks[i] = get((i ? 8 : 16) * MIB, i % 2);
    fake_mode(FAKE_STEPPED);
    kit_mark(kit_stream[1], blocks[1], 8 * MIB, 1);
    put(blocks[1], 1);
    gpupool_verdict v = would_not_fit(arena, 16 * MIB, GPUPOOL_CAUSE_LIMIT);
    CHECK_EQ(v.raise_bytes, 8 * MIB);
    CHECK_EQ(v.missing_bytes, 8 * MIB);
    raise_as_advised(arena, &v);
    void *block = get(16 * MIB, 0);
    fake_mode(FAKE_EAGER);
    put(block, 0);
    put(blocks[0], 0);
    put(blocks[2], 0);
    kit_close(arena);
}

/* Without a pool, what alignment left over of another block's memory is no room. */
static void left_over_without_a_pool(void) {
    arena = kit_open_limited(GPUPOOL_SOURCE_BYPASS, 4 * MIB);
    void *block = gpupool_alloc_aligned(arena, MIB, MIB, kit_stream[0]);
    void *rest = get(2 * MIB, 0);
    CHECK_EQ(kit_reserved(arena), 4 * MIB - 512);
    gpupool_verdict v = would_not_fit(arena, KIB, GPUPOOL_CAUSE_LIMIT);
    says(&v, ": raise the limit by 512 B, or free ");
    put(block, 0);
    put(rest, 0);
    kit_close(arena);
}

/* BYPASS: a chunk that nobody has, since CUDA did not take it back, makes room like any other. */
static void a_chunk_that_was_not_taken_back(void) {
    arena = kit_open_limited(GPUPOOL_SOURCE_BYPASS, 2 * MIB);
    fake_fail_call("cuMemsetD8Async", 1, 0, 0);
    fake_fail_call("cuMemFree", 1, 0, 0);
    CHECK(gpupool_zalloc(arena, MIB, kit_stream[0]) == NULL);
    fake_fail_clear();
    CHECK_EQ(kit_reserved(arena), MIB);
    fits(arena, 2 * MIB);
    CHECK_EQ(kit_reserved(arena), 0);
    kit_close(arena);
}

/* ---- the limit and the device ---- */

/* Whichever leaves less is named; where they leave the same, the limit, though to raise it alone
   would not do. */
static void both_are_in_the_way(void) {
    gpupool_verdict v;
    fake_device_memory(0, GIB);
    arena = kit_open_limited(GPUPOOL_SOURCE_DEVICE, 64 * MIB);
    void *block = get(64 * MIB, 0);
    size_t taken = others_take_all_but(0);
    v = would_not_fit(arena, 32 * MIB, GPUPOOL_CAUSE_LIMIT);
    CHECK_EQ(v.raise_bytes, 0);
    CHECK_EQ(v.missing_bytes, 32 * MIB);
    CHECK_RESULT(gpupool_set_limit(arena, 80 * MIB), GPUPOOL_OK);
    v = would_not_fit(arena, 32 * MIB, GPUPOOL_CAUSE_OTHERS);
    CHECK_EQ(v.raise_bytes, 0);
    CHECK_EQ(v.missing_bytes, 32 * MIB);
    says(&v, "have others free 32.00 MiB and raise the limit by as much");
    fake_other_process(0, taken - 32 * MIB);
    CHECK_RESULT(gpupool_set_limit(arena, 80 * MIB + 32 * MIB), GPUPOOL_OK);
    fits(arena, 32 * MIB);
    fake_other_process(0, 0);
    put(block, 0);
    kit_close(arena);
}

/* Where nothing is in the way, and still there is no memory, all of it is missing: not by the limit
   that is set. */
static void nothing_is_in_the_way(void) {
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    gpi_scene scene = {.arena = arena, .units = 1000};
    gpi_lacking lacking = {.is_refused = 1};
    gpupool_verdict verdict = {.limit_bytes = GIB};
    CHECK_EQ(gpi_verdict_choose_cause(&verdict, &scene, &lacking), GPUPOOL_CAUSE_DEVICE_FULL);
    gpi_verdict_set_missing(&verdict, &scene, &lacking);
    CHECK_EQ(verdict.missing_bytes, 1000 * 512);
    CHECK_EQ(verdict.raise_bytes, 0);
    kit_close(arena);
}

/* Without a device's word, and for more than there is. */
static void where_the_device_does_not_say(void) {
    gpupool_verdict v;
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 64 * MIB);
    fake_fail_call("cuMemGetInfo", 1, 1, 0);
    v = would_not_fit(arena, 100 * MIB, GPUPOOL_CAUSE_LIMIT);
    CHECK_EQ(v.device_total_bytes, 0);
    CHECK(v.raise_bytes > 0);
    fake_fail_call("cuMemCreate", 1, 1, 0);
    v = refuses_on(arena, 30 * MIB, kit_stream[0], GPUPOOL_CAUSE_DEVICE_FULL);
    fake_fail_clear();
    CHECK_EQ(cudaGetLastError(), cudaSuccess);
    says(&v, "the driver refuses memory for 30.00 MiB");
    kit_close(arena);
}

/* All that is reserved, given back, and what the device has free, to the unit. */
static void alone_on_a_full_device(void) {
    arena = kit_open(GPUPOOL_SOURCE_BYPASS);
    void *block = get(10 * 512, 0);
    gpi_scene scene = {.arena = arena, .align_units = 1, .rest_units = 3, .device_units = 20};
    for (int i = 0; i < 4; i++) {
        scene.units = i == 1 ? 28 : 27;
        scene.reserved_bytes = arena->ledger.reserved.now;
        scene.limit_bytes = i < 2 ? UINT64_MAX : i == 2 ? 27 * 512 : 27 * 512 - 1;
        CHECK_EQ(gpi_verdict_fits_alone(&scene), i % 2 == 0);
    }
    put(block, 0);
    kit_close(arena);
}

/* The driver gives whole granules, of which the device has 4 MiB here, and 6 are wanted: the limit
   alone would not help, and lacks less. */
static void less_than_a_granule_is_none(void) {
    fake_device_memory(0, 5 * MIB);
    arena = kit_open_limited(GPUPOOL_SOURCE_BYPASS, 4 * MIB);
    gpupool_verdict v = would_not_fit(arena, 9 * MIB / 2, GPUPOOL_CAUSE_DEVICE_FULL);
    CHECK_EQ(v.device_free_bytes, 5 * MIB);
    CHECK_EQ(v.missing_bytes, 2 * MIB);
    CHECK_EQ(v.raise_bytes, 0);
    CHECK_RESULT(gpupool_set_limit(arena, 5 * MIB), GPUPOOL_OK);
    would_not_fit(arena, 9 * MIB / 2, GPUPOOL_CAUSE_DEVICE_FULL);
    fits(arena, 4 * MIB);
    kit_close(arena);
}

/* Managed memory may be more than the device has, as long as the driver has it. */
static void managed_memory_beyond_the_device(void) {
    fake_device_memory(0, 256 * MIB);
    arena = kit_open_limited(GPUPOOL_SOURCE_MANAGED, 64 * MIB);
    gpupool_verdict v = refuses(arena, 300 * MIB, GPUPOOL_CAUSE_LIMIT);
    raise_as_advised(arena, &v);
    fake_fail_call("cuMemAllocManaged", 1, 1, 0);
    v = refuses_on(arena, 300 * MIB, kit_stream[0], GPUPOOL_CAUSE_TOO_LARGE);
    fake_fail_clear();
    says(&v, "300 MiB is more than the whole device has");
    CHECK(strstr(v.sentence, "raise the limit") == NULL);
    fits(arena, 300 * MIB);
    kit_close(arena);
}

/* ---- a driver that refuses, although as much is free ---- */

/* No address of those that the driver gave will do: no limit is in the way where there is none. */
static void alignments_beyond_the_addresses(void) {
    fake_device_memory(0, 100 * GIB);
    fake_fail_call("cuMemAddressReserve", 1, 0, 0); /* half as many are asked for then */
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    CHECK_EQ(fake_fail_fired(), 1);
    fake_fail_clear();
    CHECK(!gpupool_alloc_aligned(arena, MIB, (size_t)1 << 40, kit_stream[0]));
    CHECK(strstr(gpupool_last_error(), ": ask for less") != NULL);
    CHECK(strstr(gpupool_last_error(), "limit") == NULL);
    kit_close(arena);
}

/* What is advised then is to be enough without it. */
static void blocks_freed_for_a_driver_that_refuses(void) {
    arena = kit_open(GPUPOOL_SOURCE_DEVICE);
    void *block[3];
    for (int i = 0; i < 3; i++) block[i] = get(32 * MIB, 0);
    void *large = get(64 * MIB, 0);
    fake_fail_call("cuMemAlloc", 1, 1, 0);
    gpupool_verdict v = refuses_on(arena, 60 * MIB, kit_stream[0], GPUPOOL_CAUSE_DEVICE_FULL);
    says(&v, "the driver refuses memory for 60.00 MiB");
    CHECK_EQ(v.missing_bytes, 60 * MIB);
    CHECK_EQ(v.holders[0].block_bytes, 32 * MIB);
    CHECK(v.holders[0].enough > 1); /* a single one is too small */
    CHECK_EQ(v.holders[1].block_bytes, 64 * MIB);
    CHECK_EQ(v.holders[1].enough, 1);
    put(large, 0);
    large = get(60 * MIB, 0);
    fake_fail_clear();
    put(large, 0);
    for (int i = 0; i < 3; i++) put(block[i], 0);
    kit_close(arena);
}

/* Idle memory would do, but is not to be had where it is needed. */
static void idle_memory_that_cannot_be_moved(void) {
    static const gpupool_cause causes[] = {GPUPOOL_CAUSE_DEVICE_FULL, GPUPOOL_CAUSE_OTHERS};
    for (size_t others = 0; others < 2; others++) {
        fake_other_process(0, others * GIB);
        arena = kit_open(GPUPOOL_SOURCE_MAPPED);
        void *block[8];
        for (int i = 0; i < 8; i++) block[i] = get(2 * MIB, 0);
        for (int i = 0; i < 8; i += 2) put(block[i], 0);
        trim_none(); /* known to be idle */
        fake_fail_call("cuMemMap", 1, 1, CUDA_ERROR_OUT_OF_MEMORY);
        gpupool_verdict v = refuses_on(arena, 8 * MIB, kit_stream[0], causes[others]);
        fake_fail_clear();
        says(&v, "the driver refuses memory for 8.00 MiB");
        CHECK_EQ(v.missing_bytes, 8 * MIB);
        fits(arena, 8 * MIB);
        for (int i = 1; i < 8; i += 2) put(block[i], 0);
        kit_close(arena);
    }
}

/* To wait is advised where it brings as much as is asked for, not where a little is pending. */
static void waiting_in_place_of_the_driver(void) {
    static const gpupool_cause causes[] = {GPUPOOL_CAUSE_CAPTURING, GPUPOOL_CAUSE_DEVICE_FULL};
    cudaStream_t capturing;
    CHECK_EQ(cudaStreamCreate(&capturing), cudaSuccess);
    for (size_t i = 0; i < 2; i++) {
        arena = kit_open(GPUPOOL_SOURCE_MAPPED);
        void *block[2] = {get(16 * MIB, 0), get(16 * MIB, 1)};
        fake_mode(FAKE_STEPPED);
        kit_mark(kit_stream[1], block[1], 16 * MIB, 1);
        put(block[1], 1);
        CHECK_EQ(cudaStreamBeginCapture(capturing, cudaStreamCaptureModeGlobal), cudaSuccess);
        fake_fail_call("cuMemCreate", 1, 1, 0);
        gpupool_verdict v = refuses_on(arena, (i ? 40 : 16) * MIB, capturing, causes[i]);
        fake_fail_clear();
        CHECK_EQ(strstr(v.sentence, "the driver refuses") != NULL, i);
        drop_capture(capturing);
        finish_with(block[0], 0);
    }
    CHECK_EQ(cudaStreamDestroy(capturing), cudaSuccess);
}

/* What a failed growth could not take off its addresses is nobody's to wait for; it is not lost. */
static void memory_that_could_not_be_unmapped(void) {
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 32 * MIB);
    fake_fail_call("cuMemSetAccess", 1, 0, 0);
    fake_fail_call("cuMemUnmap", 1, 1, 0);
    CHECK_RESULT(kit_why(gpupool_alloc(arena, 16 * MIB, kit_stream[0])), GPUPOOL_E_CUDA);
    gpupool_verdict v = would_not_fit(arena, 40 * MIB, GPUPOOL_CAUSE_LIMIT);
    fake_fail_clear();
    CHECK_EQ(v.reserved_bytes, 16 * MIB);
    CHECK_EQ(v.largest_block_bytes + v.pending_bytes, 0);
    CHECK_EQ(v.raise_bytes, 8 * MIB);
    fits(arena, 32 * MIB);
    kit_close(arena);
}
#endif

int main(void) {
    FAKE_TEST(raised_by_as_much_as_is_missing);
    FAKE_TEST(the_least_raise_for_a_chunk);
    FAKE_TEST(a_limit_below_what_is_reserved);
    FAKE_TEST(what_is_pending_is_not_missing);
    FAKE_TEST(left_over_without_a_pool);
    FAKE_TEST(a_chunk_that_was_not_taken_back);
    FAKE_TEST(both_are_in_the_way);
    FAKE_TEST(nothing_is_in_the_way);
    FAKE_TEST(where_the_device_does_not_say);
    FAKE_TEST(alone_on_a_full_device);
    FAKE_TEST(less_than_a_granule_is_none);
    FAKE_TEST(managed_memory_beyond_the_device);
    FAKE_TEST(alignments_beyond_the_addresses);
    FAKE_TEST(blocks_freed_for_a_driver_that_refuses);
    FAKE_TEST(idle_memory_that_cannot_be_moved);
    FAKE_TEST(waiting_in_place_of_the_driver);
    FAKE_TEST(memory_that_could_not_be_unmapped);
    return check_finish();
}
