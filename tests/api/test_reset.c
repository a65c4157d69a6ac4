/* cudaDeviceReset in the midst of a program: default arenas are renewed, and nothing of before the
   reset is touched, whichever call comes first after it. */
// left at exit: a chunk of cudaMalloc's, which goes with a reset
// build: plain
// build: device -DNO_MAPPING=1
// build: asan -fsanitize=address,undefined
// build: tsan -fsanitize=thread
#include "gpupool.h"
#include "arena_kit.h"

#include <pthread.h>

#ifndef NO_MAPPING
#define NO_MAPPING 0
#endif

static void prepare(void) {
    kit_prepare();
#if CHECK_FAKE
    if (NO_MAPPING) fake_device_vmm(0, 0);
#endif
}

#define RESET_TEST(body) check_run(#body, body, prepare, kit_settle)
#if CHECK_FAKE
#define RESET_FAKE_TEST(body) RESET_TEST(body)
#else
#define RESET_FAKE_TEST(body) check_skip(#body, "needs fakecuda's controls")
#endif

static void reset_the_device(void) {
    CHECK_EQ(cudaDeviceReset(), cudaSuccess);
    for (int i = 0; i < KIT_STREAMS; i++) kit_stream[i] = NULL;
}

static void *cuda_alloc(size_t bytes) {
    void *block = NULL;
    CHECK_EQ(gpupool_cudaMalloc(&block, bytes), cudaSuccess);
    return block;
}

/* All that a fresh default arena does. */
static void is_as_new(gpupool_arena *arena) {
    CHECK(gpupool_get_default_arena(0) == arena);
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    void *block = cuda_alloc(8 * MIB);
    CHECK_EQ(kit_stats(arena).blocks.now, 1);
    kit_mark(0, block, 8 * MIB, 7);
    kit_expect_mark(0, block, 8 * MIB, 7);
    CHECK_EQ(gpupool_cudaFree(block), cudaSuccess);
    CHECK_EQ(kit_stats(arena).blocks.now, 0);
}

/* ---- default arenas ---- */

static void a_default_arena_is_renewed(void) {
    for (int live = 0; live < 2; live++) {
        check_case("live %d", live);
        void *block = cuda_alloc(MIB);
        gpupool_arena *arena = gpupool_get_default_arena(0);
        if (!live) CHECK_EQ(gpupool_cudaFree(block), cudaSuccess);
        reset_the_device();
        is_as_new(arena);
        kit_close(arena);
    }
}

static void again_and_again(void) {
    gpupool_arena *arena = gpupool_get_default_arena(0);
    for (int i = 0; i < 5; i++) {
        cuda_alloc((size_t)(i + 1) * 3 * MIB);
        reset_the_device();
    }
    is_as_new(arena);
#if CHECK_FAKE
    CHECK(fake_used_bytes(0) <= 64 * MIB); /* what was mapped has gone back */
#endif
    kit_close(arena);
}

/* By cudaMallocAsync's shape, and by name. */
static void by_every_way_in(void) {
    gpupool_arena *arena = gpupool_get_default_arena(0);
    void *block = NULL;
    cudaStream_t stream;
    cuda_alloc(MIB);
    reset_the_device();
    CHECK_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    CHECK_EQ(gpupool_cudaMallocAsync(&block, MIB, stream), cudaSuccess);
    CHECK_EQ(gpupool_cudaFreeAsync(block, stream), cudaSuccess);
    CHECK_EQ(cudaStreamDestroy(stream), cudaSuccess);
    is_as_new(arena);
    reset_the_device();
    CHECK(gpupool_get_default_arena(GPUPOOL_DEVICE_CURRENT) == arena);
    CHECK_RESULT(gpupool_free(arena, kit_alloc(arena, MIB, 0), 0), GPUPOOL_OK);
    is_as_new(arena);
    kit_close(arena);
}

/* Uses, fences, parked blocks and an open scope go with the reset; the limit stays. */
static void whatever_was_left_in_it(void) {
    gpupool_arena *arena = gpupool_get_default_arena(0);
    gpupool_capture *scope = NULL;
    void *block[8];
    CHECK_RESULT(gpupool_set_limit(arena, 96 * MIB), GPUPOOL_OK);
    for (int i = 0; i < 8; i++) block[i] = kit_alloc(arena, (size_t)(i + 1) << 15, kit_stream[0]);
    CHECK_RESULT(gpupool_record_stream(arena, block[1], kit_stream[1]), GPUPOOL_OK);
    CHECK_RESULT(gpupool_record_stream(arena, block[2], kit_stream[1]), GPUPOOL_OK);
    CHECK_RESULT(gpupool_free(arena, block[1], kit_stream[0]), GPUPOOL_OK);
    for (int i = 3; i < 8; i++)
        CHECK_RESULT(gpupool_free(arena, block[i], kit_stream[0]), GPUPOOL_OK);
    CHECK_RESULT(gpupool_begin_capture(arena, kit_stream[2], &scope), GPUPOOL_OK);
    kit_alloc(arena, MIB, kit_stream[2]);
    reset_the_device();
    is_as_new(arena);
    CHECK_EQ(kit_limit(arena), 96 * MIB);
    CHECK_EQ(kit_stats(arena).allocs, 1);
    kit_close(arena);
}

/* CUDA takes no such pointer; fakecuda also calls it misuse, which here it is. */
static void is_nobodys(void *block) {
#if CHECK_FAKE
    fake_quiet(1);
#endif
    CHECK_EQ(gpupool_cudaFree(block), cudaErrorInvalidValue);
    CHECK_EQ(cudaGetLastError(), cudaErrorInvalidValue);
#if CHECK_FAKE
    CHECK_EQ(fake_misuses(), 1);
    fake_clear_failures();
    fake_quiet(0);
#endif
}

/* A block of before the reset, of this arena or another one. */
static void blocks_of_before(void) {
    gpupool_arena *other = kit_open(GPUPOOL_SOURCE_AUTO);
    void *block = cuda_alloc(MIB), *of_other = kit_alloc(other, 3 * MIB, 0);
    gpupool_arena *arena = gpupool_get_default_arena(0);
    reset_the_device();
    is_nobodys(block);
    is_nobodys(of_other);
    is_as_new(arena);
    is_nobodys(block);
    CHECK_RESULT(gpupool_arena_destroy(other), GPUPOOL_OK);
    kit_close(arena);
}

/* CUDA may give the program the address of a chunk that went with the reset. */
static void an_address_that_is_the_programs_now(void) {
#if CHECK_FAKE
    fake_packed(1);
#endif
    gpupool_arena *other = kit_open(GPUPOOL_SOURCE_DEVICE);
    void *before = kit_alloc(other, 8 * MIB, 0), *own = NULL;
    size_t bytes = kit_reserved(other);
    reset_the_device();
    CHECK_EQ(cudaMalloc(&own, bytes), cudaSuccess);
    if (CHECK_FAKE) CHECK_EQ(own == before, 1);
    CHECK_EQ(gpupool_cudaFree(own), cudaSuccess);
    CHECK_RESULT(gpupool_arena_destroy(other), GPUPOOL_OK);
}

#if CHECK_FAKE
/* Where CUDA refuses, the call fails, and a later one succeeds. */
static void renewed_at_the_second_try(void) {
    const char *calls[] = {"cuMemUnmap", "cuMemRelease", "cuMemAddressFree", "cuMemGetInfo",
                           "cuDevicePrimaryCtxRetain", "cuInit"};
    for (size_t i = NO_MAPPING ? 3 : 0; i < KIT_COUNT(calls); i++) {
        check_case("%s", calls[i]);
        void *block = cuda_alloc(MIB), *none = NULL;
        gpupool_arena *arena = gpupool_get_default_arena(0);
        CHECK_EQ(gpupool_cudaFree(block), cudaSuccess);
        reset_the_device();
        fake_fail_call(calls[i], 1, 0, 0);
        CHECK(gpupool_cudaMalloc(&none, MIB) != cudaSuccess);
        CHECK(none == NULL);
        CHECK_EQ(fake_fail_fired(), 1);
        fake_fail_clear();
        cudaGetLastError();
        gpupool_stats stats;
        gpupool_get_stats(arena, &stats); /* whatever it says, the arena is there */
        CHECK_RESULT(kit_why(gpupool_alloc(arena, 32 * MIB, 0)), GPUPOOL_E_CUDA);
        CHECK(strstr(gpupool_last_error(), "was reset") != NULL);
        is_as_new(arena);
        kit_close(arena);
    }
}

/* Or the arena is destroyed meanwhile. */
static void destroyed_after_the_first_try(void) {
    const char *calls[] = {"cuMemUnmap", "cuMemGetInfo"};
    for (size_t i = NO_MAPPING ? 1 : 0; i < KIT_COUNT(calls); i++) {
        check_case("%s", calls[i]);
        void *none = NULL;
        cuda_alloc(MIB);
        gpupool_arena *arena = gpupool_get_default_arena(0);
        reset_the_device();
        fake_fail_call(calls[i], 1, 0, 0);
        CHECK(gpupool_cudaMalloc(&none, MIB) != cudaSuccess);
        fake_fail_clear();
        cudaGetLastError();
        CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_OK);
        CHECK_EQ(fake_live_objects(), 0);
        is_as_new(gpupool_get_default_arena(0));
        kit_close(gpupool_get_default_arena(0));
    }
}

static int see_block(const gpupool_block *block, void *unused) { return !block || unused; }
static int see_chunk(const gpupool_mapping *mapping, void *unused) { return !mapping || unused; }

/* Calls that make no CUDA call do not ask whether there was a reset. */
static void look_at(gpupool_arena *arena, char *const *block, int blocks) {
    FILE *file = tmpfile();
    gpupool_block about;
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    CHECK_RESULT(gpupool_report(arena, file), GPUPOOL_OK);
    CHECK_RESULT(gpupool_walk_blocks(arena, see_block, NULL), GPUPOOL_OK);
    for (int i = 0; i < blocks; i++) {
        CHECK_RESULT(gpupool_get_block(arena, block[i], &about), GPUPOOL_OK);
        CHECK_RESULT(gpupool_walk_chunks(arena, block[i], see_chunk, NULL), GPUPOOL_OK);
    }
    fclose(file);
}

/* An arena that CUDA has taken back in part is there to be looked at, with all its blocks. */
static void half_gone(void) {
    enum { LAID = 6 };
    const char *calls[] = {"cuMemUnmap", "cuMemRelease", "cuMemAddressFree"};
    for (size_t i = 0; i < KIT_COUNT(calls); i++)
        for (long n = 1, fired = 1; fired; n++) {
            check_case("%s %ld", calls[i], n);
            gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
            char *block[LAID];
            config.chunk_bytes = 2 * MIB;
            config.limit_bytes = LAID * 2 * MIB;
            gpupool_arena *arena = kit_create(&config);
            for (int k = 0; k < LAID; k++)
                block[k] = (char *)kit_alloc(arena, 2 * MIB, kit_stream[0]);
            for (int k = 0; k < LAID; k += 2)
                CHECK_RESULT(gpupool_free(arena, block[k], kit_stream[0]), GPUPOOL_OK);
            block[0] = (char *)kit_alloc(arena, 6 * MIB, kit_stream[0]);
            CHECK_EQ(kit_stats(arena).stitches, 1);
            for (int k = 1; k <= LAID / 2; k++) block[k] = block[2 * k - 1];
            reset_the_device();
            fake_fail_call(calls[i], n, 0, 0);
            gpupool_result result = gpupool_arena_destroy(arena);
            fired = fake_fail_fired();
            fake_fail_clear();
            CHECK_RESULT(result, fired ? GPUPOOL_E_CUDA : GPUPOOL_OK);
            if (fired) look_at(arena, block, 1 + LAID / 2);
            if (fired) CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_OK);
            CHECK_EQ(fake_mappings(), 0);
            CHECK_EQ(fake_used_bytes(0), 0);
            kit_prepare();
        }
    check_case(" ");
}
#endif

static void *allocate(void *unused) {
    (void)unused;
    CHECK_EQ(cudaSetDevice(0), cudaSuccess);
    for (int i = 0; i < 20; i++) CHECK_EQ(gpupool_cudaFree(cuda_alloc(MIB)), cudaSuccess);
    return NULL;
}

/* All threads come first: one renews the arena, and the others wait for it. */
static void renewed_by_many_threads(void) {
    gpupool_arena *arena = gpupool_get_default_arena(0);
    for (int round = 0; round < 5; round++) {
        pthread_t thread[4];
        cuda_alloc(MIB);
        reset_the_device();
        for (int i = 0; i < 4; i++)
            CHECK_EQ(pthread_create(&thread[i], NULL, allocate, NULL), 0);
        for (int i = 0; i < 4; i++) CHECK_EQ(pthread_join(thread[i], NULL), 0);
        CHECK_EQ(kit_stats(arena).blocks.now, 0);
    }
    is_as_new(arena);
    kit_close(arena);
}

/* ---- other arenas: no event of before the reset is asked, recorded or waited for ---- */

/* Memory of another stream, behind an event. */
static void memory_of_a_stream_of_before(void) {
    gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_AUTO);
    void *block = kit_alloc(arena, 8 * MIB, kit_stream[0]);
    kit_alloc(arena, 8 * MIB, 0);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
    reset_the_device();
    CHECK_RESULT(kit_why(gpupool_alloc(arena, 4096, 0)), GPUPOOL_E_CUDA);
    CHECK(strstr(gpupool_last_error(), "was reset") != NULL);
    CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_OK);
}

/* An event that is not in use, for a stream that was made since. */
static void frees_on_a_stream_made_since(void) {
    gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_AUTO);
    void *block[200];
    cudaStream_t stream;
    for (int i = 0; i < 200; i++) block[i] = kit_alloc(arena, 2 * MIB, kit_stream[i % 2]);
    for (int i = 0; i < 40; i++)
        CHECK_RESULT(gpupool_free(arena, block[i], kit_stream[i % 2]), GPUPOOL_OK);
    CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
    CHECK_RESULT(gpupool_trim(arena, SIZE_MAX, NULL), GPUPOOL_OK); /* all its events are idle */
    reset_the_device();
    CHECK_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    for (int i = 40; i < 200; i++) {
        gpupool_result result = gpupool_free(arena, block[i], stream);
        CHECK(result == GPUPOOL_OK || result == GPUPOOL_E_CUDA);
    }
    CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_OK);
    CHECK_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

#if CHECK_FAKE
/* Another word of the driver's for a context that is gone. */
static void a_context_that_is_called_invalid(void) {
    gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_AUTO);
    kit_alloc(arena, 8 * MIB, 0);
    reset_the_device();
    fake_fail_call("cuCtxGetId", 1, 1, CUDA_ERROR_INVALID_CONTEXT);
    CHECK_RESULT(kit_why(gpupool_alloc(arena, 32 * MIB, 0)), GPUPOOL_E_CUDA);
    CHECK(strstr(gpupool_last_error(), "was reset") != NULL);
    CHECK(fake_fail_fired() > 0);
    fake_fail_clear();
    CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_OK);
}
#endif

/* The same with each size, before and after, on each kind of stream. */
static void whatever_comes_first(void) {
    static const size_t sizes[] = {512, 4096, 200 * KIB, 8 * MIB, 64 * MIB};
    for (size_t i = 0; i < KIT_COUNT(sizes) * KIT_COUNT(sizes); i++)
        for (int made_since = 0; made_since < 2; made_since++) {
            size_t before = sizes[i / KIT_COUNT(sizes)], after = sizes[i % KIT_COUNT(sizes)];
            check_case("%zu, then %zu, made since %d", before, after, made_since);
            gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_AUTO);
            void *block[4], *now;
            cudaStream_t from, to = NULL;
            CHECK_EQ(cudaStreamCreateWithFlags(&from, cudaStreamNonBlocking), cudaSuccess);
            for (int k = 0; k < 4; k++) block[k] = kit_alloc(arena, before, from);
            kit_alloc(arena, before, 0);
            CHECK_RESULT(gpupool_record_stream(arena, block[1], 0), GPUPOOL_OK);
            for (int k = 0; k < 3; k++)
                CHECK_RESULT(gpupool_free(arena, block[k], from), GPUPOOL_OK);
            reset_the_device();
            if (made_since)
                CHECK_EQ(cudaStreamCreateWithFlags(&to, cudaStreamNonBlocking), cudaSuccess);
            now = gpupool_alloc(arena, after, to); /* no sense in it, and no harm */
            gpupool_free(arena, block[3], to);
            gpupool_free(arena, now, to);
            gpupool_record_stream(arena, block[2], to);
            kit_size(arena, block[3]);
            kit_available(arena);
            CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_OK);
            if (to) CHECK_EQ(cudaStreamDestroy(to), cudaSuccess);
        }
}

int main(void) {
    RESET_TEST(a_default_arena_is_renewed);
    RESET_TEST(again_and_again);
    RESET_TEST(by_every_way_in);
    RESET_TEST(whatever_was_left_in_it);
    RESET_TEST(blocks_of_before);
    RESET_TEST(an_address_that_is_the_programs_now);
    RESET_FAKE_TEST(renewed_at_the_second_try);
    RESET_FAKE_TEST(destroyed_after_the_first_try);
    if (!NO_MAPPING) RESET_FAKE_TEST(half_gone);
    RESET_TEST(renewed_by_many_threads);
    RESET_TEST(memory_of_a_stream_of_before);
    RESET_TEST(frees_on_a_stream_made_since);
    RESET_FAKE_TEST(a_context_that_is_called_invalid);
    RESET_TEST(whatever_comes_first);
    return check_finish();
}
