/* A default arena whose device was reset, and that could not be made again: what a program still
   does with it, and with other arenas meanwhile, fails or goes past it, and it is renewed later. */
// build: plain
// build: guard -DGPUPOOL_GUARD=1
// build: asan -fsanitize=address,undefined
#define _DEFAULT_SOURCE /* setenv */
#include "gpupool.h"
#include "arena_kit.h"

#if CHECK_FAKE

static gpupool_arena *arena;
static void *block; /* of before the reset */

static void reset_the_device(void) {
    CHECK_EQ(cudaDeviceReset(), cudaSuccess);
    for (int i = 0; i < KIT_STREAMS; i++) kit_stream[i] = NULL;
}

static void open_default(void) {
    CHECK_EQ(gpupool_cudaMalloc(&block, 3 * MIB), cudaSuccess);
    arena = gpupool_get_default_arena(0);
    CHECK_RESULT(gpupool_set_limit(arena, GIB), GPUPOOL_OK);
}

/* Its memory is gone, and CUDA does not begin anew. */
static void close_by_a_reset(void) {
    open_default();
    reset_the_device();
    fake_fail_call("cuInit", 1, 0, 0);
    CHECK_RESULT(kit_why(gpupool_get_default_arena(0)), GPUPOOL_E_CUDA);
    CHECK_EQ(fake_fail_fired(), 1);
    fake_fail_clear();
    CHECK(gpupool_find_default_arena(0) == NULL);
}

/* The same arena, with the same limit, and no block. */
static void is_renewed(void) {
    CHECK(gpupool_get_default_arena(0) == arena);
    CHECK_EQ(kit_limit(arena), GIB);
    CHECK_EQ(kit_stats(arena).blocks.now, 0);
    CHECK_RESULT(gpupool_free(arena, kit_alloc(arena, MIB, 0), 0), GPUPOOL_OK);
    kit_close(arena);
}

static void its_blocks_cannot_be_freed(void) {
    close_by_a_reset();
    CHECK_RESULT(gpupool_free(arena, block, 0), GPUPOOL_E_CUDA);
    CHECK(strstr(gpupool_last_error(), "was reset") != NULL);
    gpupool_block found;
    CHECK_RESULT(gpupool_get_block(arena, block, &found), GPUPOOL_E_CUDA);
    CHECK(strstr(gpupool_last_error(), "was reset") != NULL);
    is_renewed();
}

/* What failed before stays what failed last. */
static void its_end_is_no_failure(void) {
    close_by_a_reset();
    CHECK_RESULT(gpupool_free(NULL, NULL, 0), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_OK);
    CHECK_RESULT(gpupool_last_result(), GPUPOOL_OK);
    CHECK(strstr(gpupool_last_error(), "the arena is NULL") != NULL);
}

/* Destroyed, it is no device's default arena any more, whichever device it was of. */
static void of_another_device(void) {
    CHECK_EQ(cudaSetDevice(1), cudaSuccess);
    arena = gpupool_get_default_arena(1);
    CHECK_EQ(cudaDeviceReset(), cudaSuccess);
    fake_fail_call("cuInit", 1, 0, 0);
    CHECK_RESULT(kit_why(gpupool_get_default_arena(1)), GPUPOOL_E_CUDA);
    CHECK_EQ(fake_fail_fired(), 1);
    fake_fail_clear();
    CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_OK);
    CHECK(gpupool_find_default_arena(1) == NULL);
    arena = gpupool_get_default_arena(1);
    CHECK_RESULT(gpupool_free(arena, kit_alloc(arena, MIB, 0), 0), GPUPOOL_OK);
    kit_close(arena);
    CHECK_EQ(cudaSetDevice(0), cudaSuccess);
}

static void streams_come_and_go(void) {
    cudaStream_t stream;
    close_by_a_reset();
    CHECK_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    CHECK_EQ(gpupool_cudaStreamDestroy(stream), cudaSuccess);
    is_renewed();
}

/* It has nothing to give to an arena that is short of memory. */
static void others_do_not_count_it(void) {
    gpupool_verdict verdict;
    fake_device_memory(0, GIB);
    close_by_a_reset();
    gpupool_arena *other = kit_open(GPUPOOL_SOURCE_MAPPED);
    CHECK_RESULT(kit_why(gpupool_alloc(other, 2 * GIB, 0)), GPUPOOL_E_OUT_OF_MEMORY);
    CHECK_RESULT(gpupool_last_verdict(&verdict), GPUPOOL_OK);
    CHECK_EQ(verdict.siblings_bytes, 0);
    kit_close(other);
    is_renewed();
}

/* Nor has an arena that the reset has emptied, until the program destroys it. */
static void nor_another_arena_of_before(void) {
    gpupool_verdict verdict;
    fake_device_memory(0, GIB);
    gpupool_arena *before = kit_open(GPUPOOL_SOURCE_MAPPED);
    CHECK_RESULT(gpupool_free(before, kit_alloc(before, 512 * MIB, 0), 0), GPUPOOL_OK);
    reset_the_device();
    gpupool_arena *other = kit_open(GPUPOOL_SOURCE_MAPPED);
    for (size_t bytes = GIB - 256 * MIB; bytes <= 2 * GIB; bytes += GIB) {
        gpupool_result result = kit_why(gpupool_alloc(other, bytes, 0));
        CHECK_RESULT(result, GPUPOOL_E_OUT_OF_MEMORY);
        CHECK_RESULT(gpupool_last_verdict(&verdict), GPUPOOL_OK);
        CHECK_EQ(verdict.siblings_bytes, 0);
    }
    CHECK_RESULT(gpupool_arena_destroy(before), GPUPOOL_OK);
    kit_close(other);
}

/* A transfer that looks for sleeping memory goes past it, and goes no further than to the arena
   that sleeps. */
static void transfers_look_past_it(void) {
    unsigned char host[64] = {0};
    gpupool_ring *ring;
    close_by_a_reset();
    gpupool_arena *sleeper = kit_open(GPUPOOL_SOURCE_MAPPED);
    gpupool_arena *awake = kit_open(GPUPOOL_SOURCE_MAPPED);
    void *asleep = kit_alloc(sleeper, MIB, 0), *there = kit_alloc(awake, MIB, 0);
    CHECK_RESULT(gpupool_ring_create(&ring, NULL), GPUPOOL_OK);
    CHECK_RESULT(gpupool_sleep(sleeper, GPUPOOL_ALL, GPUPOOL_DISCARD, NULL), GPUPOOL_OK);
    CHECK_RESULT(gpupool_upload(ring, asleep, host, sizeof host, 0), GPUPOOL_E_ASLEEP);
    CHECK_RESULT(gpupool_upload(ring, there, host, sizeof host, 0), GPUPOOL_OK);
    kit_expect(0, there, sizeof host, 0);
    CHECK_RESULT(gpupool_wake(sleeper, GPUPOOL_ALL, NULL), GPUPOOL_OK);
    CHECK_RESULT(gpupool_upload(ring, asleep, host, sizeof host, 0), GPUPOOL_OK);
    kit_expect(0, asleep, sizeof host, 0);
    CHECK_RESULT(gpupool_free(sleeper, asleep, 0), GPUPOOL_OK);
    CHECK_RESULT(gpupool_free(awake, there, 0), GPUPOOL_OK);
    CHECK_RESULT(gpupool_ring_destroy(ring), GPUPOOL_OK);
    kit_close(sleeper);
    kit_close(awake);
    is_renewed();
}

/* A word that names no source stops the renewal before anything is given back: not even what the
   arena has of host memory and addresses is lost then. */
static void the_environment_has_no_sense(void) {
    for (int destroyed = 0; destroyed < 2; destroyed++) {
        open_default();
        reset_the_device();
        CHECK_EQ(setenv("GPUPOOL_SOURCE", "nowhere", 1), 0);
        CHECK_RESULT(kit_why(gpupool_get_default_arena(0)), GPUPOOL_E_ARGUMENT);
        CHECK(strstr(gpupool_last_error(), "nowhere") != NULL);
        CHECK_EQ(unsetenv("GPUPOOL_SOURCE"), 0);
        if (destroyed) CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_OK);
        else is_renewed();
        CHECK_EQ(fake_live_objects(), 0);
    }
}
#endif

int main(void) {
    FAKE_TEST(its_blocks_cannot_be_freed);
    FAKE_TEST(its_end_is_no_failure);
    FAKE_TEST(of_another_device);
    FAKE_TEST(streams_come_and_go);
    FAKE_TEST(others_do_not_count_it);
    FAKE_TEST(nor_another_arena_of_before);
    FAKE_TEST(transfers_look_past_it);
    FAKE_TEST(the_environment_has_no_sense);
    return check_finish();
}
