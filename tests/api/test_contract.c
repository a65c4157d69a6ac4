/* The contract of the calls that hand out and take back memory, call by call. */
#include "gpupool.h"
#include "arena_kit.h"

static const size_t sizes[] = {
    1,          2,           255,         256,     511,         512,         513,
    1023,       1024,        1025,        4096,    65535,       65536,       100000,
    MIB - 1,    MIB,         MIB + 1,     2 * MIB, 2 * MIB - 1, 2 * MIB + 1, 3 * MIB + 777,
    20 * MIB,   33 * MIB + 1};
#define SIZES KIT_COUNT(sizes)

/* ---- alloc, size, free ---- */

static void one_of_each_size(gpupool_arena *arena, cudaStream_t stream) {
    void *block[SIZES];
    for (size_t i = 0; i < SIZES; i++) {
        block[i] = kit_alloc(arena, sizes[i], stream);
        CHECK_RESULT(gpupool_last_result(), GPUPOOL_OK);
        CHECK_EQ(kit_size(arena, block[i]), sizes[i]);
        CHECK_EQ((uintptr_t)block[i] % 256, 0);
        if (block[i]) kit_mark(stream, block[i], sizes[i], (int)i + 1);
    }
    for (size_t i = 0; i < SIZES; i++) {
        if (block[i]) kit_expect_mark(stream, block[i], sizes[i], (int)i + 1);
        CHECK_RESULT(gpupool_free(arena, block[i], stream), GPUPOOL_OK);
    }
    CHECK_EQ(kit_stats(arena).blocks.now, 0);
}

static void every_size_from_every_source(void) {
    for (size_t i = 0; i < KIT_SOURCES; i++) {
        check_case("%s", kit_sources[i].name);
        gpupool_arena *arena = kit_open(kit_sources[i].source);
        one_of_each_size(arena, kit_stream[0]);
        one_of_each_size(arena, 0);
        kit_close(arena);
    }
}

static void zero_bytes_is_an_error(void) {
    gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_AUTO);
    CHECK_RESULT(kit_why(gpupool_alloc(arena, 0, kit_stream[0])), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(kit_why(gpupool_zalloc(arena, 0, kit_stream[0])), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(kit_why(gpupool_alloc_aligned(arena, 0, 64, kit_stream[0])), GPUPOOL_E_ARGUMENT);
    kit_close(arena);
}

static void freeing_null_is_fine(void) {
    gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_AUTO);
    gpupool_stats before = kit_stats(arena);
    CHECK_RESULT(gpupool_free(arena, NULL, kit_stream[0]), GPUPOOL_OK);
    CHECK(kit_same_stats(before, kit_stats(arena)));
    kit_close(arena);
}

static void last_result_follows_each_call(void) {
    gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_AUTO);
    CHECK_RESULT(kit_why(gpupool_alloc(arena, 0, kit_stream[0])), GPUPOOL_E_ARGUMENT);
    CHECK(gpupool_last_error()[0] != 0);
    void *block = kit_alloc(arena, 1000, kit_stream[0]);
    CHECK_RESULT(gpupool_last_result(), GPUPOOL_OK);
    CHECK_EQ(kit_size(arena, (char *)block + 1), 0);
    CHECK_RESULT(gpupool_last_result(), GPUPOOL_E_INSIDE);
    CHECK(strstr(gpupool_last_error(), " is inside the live block ") != NULL);
    CHECK_EQ(kit_size(arena, block), 1000);
    CHECK_RESULT(gpupool_last_result(), GPUPOOL_OK);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
    kit_close(arena);
}

/* ---- alloc_aligned ---- */

static void aligned_from(gpupool_source source, size_t most) {
    gpupool_arena *arena = kit_open(source);
    void *small = kit_alloc(arena, 512, kit_stream[0]); /* so that nothing is aligned by chance */
    for (size_t alignment = 1; alignment <= most; alignment *= 2) {
        check_case("source %d, alignment %zu", (int)source, alignment);
        void *a = gpupool_alloc_aligned(arena, 700, alignment, kit_stream[0]);
        CHECK_RESULT(kit_why(a), GPUPOOL_OK);
        void *b = gpupool_alloc_aligned(arena, 3 * MIB, alignment, kit_stream[0]);
        CHECK_RESULT(kit_why(b), GPUPOOL_OK);
        CHECK_EQ((uintptr_t)a % alignment, 0);
        CHECK_EQ((uintptr_t)b % alignment, 0);
        CHECK_EQ(kit_size(arena, a), 700);
        if (a) kit_mark(kit_stream[0], a, 700, 1);
        if (b) kit_mark(kit_stream[0], b, 3 * MIB, 2);
        if (a) kit_expect_mark(kit_stream[0], a, 700, 1);
        CHECK_RESULT(gpupool_free(arena, a, kit_stream[0]), GPUPOOL_OK);
        CHECK_RESULT(gpupool_free(arena, b, kit_stream[0]), GPUPOOL_OK);
    }
    CHECK_RESULT(gpupool_free(arena, small, kit_stream[0]), GPUPOOL_OK);
    kit_close(arena);
}

static void alignments_up_to_a_gibibyte(void) {
    aligned_from(GPUPOOL_SOURCE_MAPPED, GIB);
    aligned_from(GPUPOOL_SOURCE_DEVICE, GIB);
    aligned_from(GPUPOOL_SOURCE_MANAGED, 4 * KIB);
    aligned_from(GPUPOOL_SOURCE_PINNED, 4 * KIB);
    aligned_from(GPUPOOL_SOURCE_CUSTOM, MIB);
    aligned_from(GPUPOOL_SOURCE_BYPASS, MIB);
}

/* ---- zalloc ---- */

static void zalloc_clears_used_memory(void) {
    for (size_t i = 0; i < KIT_SOURCES; i++) {
        gpupool_arena *arena = kit_open(kit_sources[i].source);
        for (size_t k = 0; k < SIZES && sizes[k] <= 2 * MIB + 1; k++) {
            check_case("%s, %zu bytes", kit_sources[i].name, sizes[k]);
            void *dirty = kit_alloc(arena, sizes[k], kit_stream[0]);
            kit_fill(kit_stream[0], dirty, sizes[k], 0xab);
            CHECK_RESULT(gpupool_free(arena, dirty, kit_stream[0]), GPUPOOL_OK);
            unsigned char *copy = (unsigned char *)malloc(sizes[k]);
            memset(copy, 0xcd, sizes[k]);
            void *clean = gpupool_zalloc(arena, sizes[k], kit_stream[0]);
            CHECK_RESULT(kit_why(clean), GPUPOOL_OK);
            CHECK_EQ(cudaMemcpyAsync(copy, clean, sizes[k], cudaMemcpyDefault, kit_stream[0]),
                     cudaSuccess);
            CHECK_EQ(cudaStreamSynchronize(kit_stream[0]), cudaSuccess);
            size_t dirt = 0;
            for (size_t b = 0; b < sizes[k]; b++) dirt += copy[b] != 0;
            CHECK_EQ(dirt, 0);
            CHECK_RESULT(gpupool_free(arena, clean, kit_stream[0]), GPUPOOL_OK);
            free(copy);
        }
        kit_close(arena);
    }
}

#if CHECK_FAKE
static void zalloc_clears_in_stream_order(void) {
    gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    fake_mode(FAKE_STEPPED);
    void *block = kit_alloc(arena, 4096, kit_stream[0]);
    kit_fill(kit_stream[0], block, 4096, 0xab);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
    int queued = fake_pending(kit_stream[0]);
    block = gpupool_zalloc(arena, 4096, kit_stream[0]);
    CHECK_RESULT(kit_why(block), GPUPOOL_OK);
    CHECK_EQ(fake_pending(kit_stream[0]), queued + 1); /* behind the write, not done at once */
    kit_expect(kit_stream[0], block, 4096, 0);
    fake_run_all();
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
    kit_close(arena);
}

static void zalloc_that_fails_is_counted(void) {
    static const int errors[] = {cudaErrorUnknown, cudaErrorMemoryAllocation}; /* of its own */
    gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    for (int i = 0; i < 2; i++) {
        fake_fail_call("cuMemsetD8Async", 1, 0, errors[i]);
        CHECK_RESULT(kit_why(gpupool_zalloc(arena, 4096, kit_stream[0])), GPUPOOL_E_CUDA);
        CHECK_EQ(kit_stats(arena).failures, i + 1);
        fake_fail_clear();
    }
    fake_fail_call("cuCtxPushCurrent", 1, 0, 0);
    CHECK_RESULT(kit_why(gpupool_zalloc(arena, 4096, kit_stream[0])), GPUPOOL_E_CUDA);
    CHECK_EQ(kit_stats(arena).failures, 3);
    CHECK_EQ(kit_stats(arena).blocks.now, 0);
    fake_fail_clear();
    kit_close(arena);
}
#endif

/* ---- the promise of the list: free, then alloc, costs no CUDA call ---- */

static void reuse_makes_no_cuda_call(void) {
    static const gpupool_source pooled[] = {GPUPOOL_SOURCE_MAPPED, GPUPOOL_SOURCE_DEVICE,
                                            GPUPOOL_SOURCE_MANAGED, GPUPOOL_SOURCE_CUSTOM};
    for (size_t s = 0; s < KIT_COUNT(pooled); s++) {
        gpupool_arena *arena = kit_open(pooled[s]);
        for (size_t i = 0; i < SIZES; i++) {
            check_case("source %d, %zu bytes", (int)pooled[s], sizes[i]);
            void *first = kit_alloc(arena, sizes[i], kit_stream[1]);
            uint64_t reserved = kit_stats(arena).reserved.total;
            long calls = kit_calls();
            CHECK_RESULT(gpupool_free(arena, first, kit_stream[1]), GPUPOOL_OK);
            void *again = kit_alloc(arena, sizes[i], kit_stream[1]);
            CHECK_EQ(kit_calls(), calls);
            CHECK_EQ(kit_stats(arena).reserved.total, reserved);
            CHECK_RESULT(gpupool_free(arena, again, kit_stream[1]), GPUPOOL_OK);
        }
        CHECK(kit_stats(arena).same_stream_allocs >= SIZES);
        kit_close(arena);
    }
}

/* ---- trim ---- */

static void trim_from(gpupool_source source) {
    gpupool_arena *arena = kit_open(source);
    void *keep = kit_alloc(arena, 1000, kit_stream[0]);
    void *block[8];
    kit_mark(kit_stream[0], keep, 1000, 7);
    for (size_t i = 0; i < 8; i++) block[i] = kit_alloc(arena, 16 * MIB, kit_stream[0]);
    for (size_t i = 0; i < 8; i++)
        CHECK_RESULT(gpupool_free(arena, block[i], kit_stream[0]), GPUPOOL_OK);
    CHECK_EQ(cudaStreamSynchronize(kit_stream[0]), cudaSuccess);
    const size_t keeps[] = {SIZE_MAX, 64 * MIB, 0, 0};
    for (size_t i = 0; i < KIT_COUNT(keeps); i++) {
        check_case("source %d, keeping %zu", (int)source, keeps[i]);
        size_t before = kit_reserved(arena), released = 12345;
        CHECK_RESULT(gpupool_trim(arena, keeps[i], &released), GPUPOOL_OK);
        size_t after = kit_reserved(arena);
        CHECK_EQ(released, before - after);
        CHECK(after >= (keeps[i] < before ? keeps[i] : before));
        CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    }
    CHECK(kit_reserved(arena) < 64 * MIB); /* one small block cannot hold more than its chunk */
    kit_expect_mark(kit_stream[0], keep, 1000, 7);
    CHECK_RESULT(gpupool_free(arena, keep, kit_stream[0]), GPUPOOL_OK);
    CHECK_EQ(cudaStreamSynchronize(kit_stream[0]), cudaSuccess);
    CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
    CHECK_EQ(kit_reserved(arena), 0);
    void *again = kit_alloc(arena, 5 * MIB, kit_stream[0]);
    kit_mark(kit_stream[0], again, 5 * MIB, 8);
    CHECK_RESULT(gpupool_free(arena, again, kit_stream[0]), GPUPOOL_OK);
    kit_close(arena);
}

static void trim_gives_back_what_it_says(void) {
    for (size_t i = 0; i < KIT_SOURCES; i++)
        if (kit_sources[i].source != GPUPOOL_SOURCE_BYPASS) trim_from(kit_sources[i].source);
}

/* Of chunks of 8, 16 and 32 MiB, in any order, the largest that is not too large goes first, and
   at last, for a limit, the smallest that is; trim keeps what it was told to. */
static void no_more_is_given_back_than_must(void) {
    static const struct { size_t to, by_trim, by_limit; } cases[] = {
        {52, 56, 48}, {44, 48, 32}, {40, 40, 40}, {30, 32, 0}, {20, 24, 16}};
    for (size_t i = 0; i < 6 * KIT_COUNT(cases); i++) {
        gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_DEVICE);
        size_t to = cases[i / 6].to, left = i % 2 ? cases[i / 6].by_limit : cases[i / 6].by_trim;
        void *block[3];
        check_case("%s to %zu MiB, order %zu", i % 2 ? "limited" : "trimmed", to, i % 6 / 2);
        config.chunk_bytes = MIB;
        gpupool_arena *arena = kit_create(&config);
        for (size_t k = 0; k < 3; k++)
            block[k] = kit_alloc(arena, (8 * MIB) << (i / 2 + k) % 3, kit_stream[0]);
        for (size_t k = 0; k < 3; k++)
            CHECK_RESULT(gpupool_free(arena, block[k], kit_stream[0]), GPUPOOL_OK);
        kit_finish(arena);
        CHECK_EQ(kit_reserved(arena), 56 * MIB);
        if (i % 2) CHECK_RESULT(gpupool_set_limit(arena, to * MIB), GPUPOOL_OK);
        else CHECK_RESULT(gpupool_trim(arena, to * MIB, NULL), GPUPOOL_OK);
        CHECK_EQ(kit_reserved(arena), left * MIB);
        kit_close(arena);
    }
}

static void trim_keeps_the_reserve(void) {
    for (size_t i = 0; i < KIT_SOURCES; i++) {
        if (kit_sources[i].source == GPUPOOL_SOURCE_BYPASS) continue;
        check_case("%s", kit_sources[i].name);
        gpupool_arena_config config = kit_config(kit_sources[i].source);
        config.reserve_bytes = 24 * MIB;
        gpupool_arena *arena = kit_create(&config);
        CHECK(kit_reserved(arena) >= 24 * MIB);
        long calls = kit_calls();
        void *block = kit_alloc(arena, 20 * MIB, kit_stream[0]);
        CHECK_EQ(kit_calls(), calls);
        void *large = kit_alloc(arena, 100 * MIB, kit_stream[0]);
        CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
        CHECK_RESULT(gpupool_free(arena, large, kit_stream[0]), GPUPOOL_OK);
        CHECK_EQ(cudaStreamSynchronize(kit_stream[0]), cudaSuccess);
        CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
        CHECK(kit_reserved(arena) >= 24 * MIB);
        CHECK(kit_reserved(arena) < 124 * MIB);
        kit_close(arena);
    }
}

int main(void) {
    ARENA_TEST(every_size_from_every_source);
    ARENA_TEST(zero_bytes_is_an_error);
    ARENA_TEST(freeing_null_is_fine);
    ARENA_TEST(last_result_follows_each_call);
    ARENA_TEST(alignments_up_to_a_gibibyte);
    ARENA_TEST(zalloc_clears_used_memory);
    FAKE_TEST(zalloc_clears_in_stream_order);
    FAKE_TEST(zalloc_that_fails_is_counted);
    ARENA_TEST(reuse_makes_no_cuda_call);
    ARENA_TEST(trim_gives_back_what_it_says);
    ARENA_TEST(no_more_is_given_back_than_must);
    ARENA_TEST(trim_keeps_the_reserve);
    return check_finish();
}
