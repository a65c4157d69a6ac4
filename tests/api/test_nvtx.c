/* GPUPOOL_NVTX: a tool behind NVTX knows each live block, its exact size and its line, and nothing
   else; mapped memory, which tools refuse, is not told, and AUTO does not take it. */
// build: plain -fsanitize=address,undefined -DGPUPOOL_NVTX=1
// build: sites -fsanitize=address,undefined -DGPUPOOL_NVTX=1 -DGPUPOOL_SITES=1
#include "gpupool.h"
#include "arena_kit.h"

#define BLOCKS 40

#if CHECK_FAKE
static void told(const void *block, size_t bytes, int line) {
    char name[64] = "", expected[64] = "gpupool block";
    size_t known = 0;
    if (GPUPOOL_SITES) snprintf(expected, sizeof expected, "test_nvtx.c:%d", line);
    if (!CHECK(fake_nvtx_region(block, &known, name))) return;
    CHECK_EQ(known, bytes);
    if (strcmp(name, expected) != 0)
        check_fail(__FILE__, __LINE__, "named \"%s\", not \"%s\"", name, expected);
}

static void a_tool_knows_the_live_blocks(gpupool_source source) {
    gpupool_arena *arena = kit_open(source);
    void *block[BLOCKS];
    size_t bytes[BLOCKS];
    uint64_t random = 3;
    int line = 0;
    for (int round = 0; round < 4; round++) { /* later rounds come from the cache */
        for (size_t i = 0; i < BLOCKS; i++) {
            bytes[i] = 100 + 512 * (size_t)check_below(&random, 60);
            line = __LINE__ + 1;
            block[i] = gpupool_alloc(arena, bytes[i], kit_stream[i % 2]);
            CHECK(block[i] != NULL);
        }
        CHECK_EQ(fake_nvtx_regions(), BLOCKS);
        for (size_t i = 0; i < BLOCKS; i++) told(block[i], bytes[i], line);
        for (size_t i = 0; i < BLOCKS; i++)
            CHECK_RESULT(gpupool_free(arena, block[i], kit_stream[i % 2]), GPUPOOL_OK);
        CHECK_EQ(fake_nvtx_regions(), 0);
    }
    CHECK(source == GPUPOOL_SOURCE_BYPASS || fake_nvtx_heaps() > 0);
    kit_close(arena);
    CHECK_EQ(fake_nvtx_heaps(), 0);
}

static void chunks_of_cudaMalloc(void) {
    a_tool_knows_the_live_blocks(GPUPOOL_SOURCE_DEVICE);
    a_tool_knows_the_live_blocks(GPUPOOL_SOURCE_BYPASS);
    a_tool_knows_the_live_blocks(GPUPOOL_SOURCE_AUTO);
}

static void other_memory_is_not_told(void) {
    static const gpupool_source others[] = {GPUPOOL_SOURCE_MAPPED, GPUPOOL_SOURCE_MANAGED,
                                            GPUPOOL_SOURCE_PINNED, GPUPOOL_SOURCE_CUSTOM};
    for (size_t i = 0; i < KIT_COUNT(others); i++) {
        gpupool_arena *arena = kit_open(others[i]);
        void *block = kit_alloc(arena, 5000, kit_stream[0]);
        CHECK_EQ(fake_nvtx_heaps(), 0);
        CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
        kit_close(arena);
    }
}

static void a_free_that_cuda_refuses_is_a_free(void) {
    gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_BYPASS);
    void *block = kit_alloc(arena, 5000, kit_stream[0]);
    fake_fail_call("cuMemFree", 1, 0, 0);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
    CHECK_EQ(fake_fail_fired(), 1);
    CHECK_EQ(fake_nvtx_regions(), 0);
    kit_close(arena);
}

/* Chunks that are told and chunks that are not, when one of them is not taken back. */
static void chunks_that_the_driver_keeps(void) {
    static const gpupool_source sources[] = {GPUPOOL_SOURCE_DEVICE, GPUPOOL_SOURCE_MANAGED};
    for (size_t i = 0; i < KIT_COUNT(sources); i++) {
        long heaps = sources[i] == GPUPOOL_SOURCE_DEVICE ? 2 : 0;
        gpupool_arena *arena = kit_open(sources[i]);
        void *block[2];
        for (int k = 0; k < 2; k++) block[k] = kit_alloc(arena, 30 * MIB, kit_stream[0]);
        CHECK_EQ(fake_nvtx_heaps(), heaps);
        CHECK_EQ(fake_nvtx_regions(), heaps);
        CHECK_RESULT(gpupool_free(arena, block[0], kit_stream[0]), GPUPOOL_OK);
        block[0] = kit_alloc(arena, 30 * MIB, kit_stream[0]); /* in the older chunk again */
        CHECK_EQ(fake_nvtx_heaps(), heaps);
        CHECK_EQ(fake_nvtx_regions(), heaps);
        for (int k = 0; k < 2; k++)
            CHECK_RESULT(gpupool_free(arena, block[k], kit_stream[0]), GPUPOOL_OK);
        fake_fail_call("cuMemFree", 2, 0, 0); /* 1: the wait for the device */
        CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_E_CUDA);
        CHECK_EQ(fake_fail_fired(), 1);
        CHECK_EQ(fake_nvtx_heaps(), heaps ? heaps - (long)kit_stats(arena).chunks_lost : 0);
        fake_fail_clear();
        kit_close(arena);
    }
}
#endif

int main(void) {
    FAKE_TEST(chunks_of_cudaMalloc);
    FAKE_TEST(other_memory_is_not_told);
    FAKE_TEST(a_free_that_cuda_refuses_is_a_free);
    FAKE_TEST(chunks_that_the_driver_keeps);
    return check_finish();
}
