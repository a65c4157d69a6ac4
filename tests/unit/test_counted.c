/* counted_cuda.h sees each CUDA call that gpupool.h makes: its count is fakecuda's. */
// build: plain
// build: tsan -fsanitize=thread -DSTEPS=600
// and: tests/support/machine.c
#include "machine.h"

#if GPUPOOL_TEST_GPU /* nobody else counts there */
#include <stdio.h>
int main(void) {
    printf("0 passed, 0 failed, 1 skipped\n");
    return 0;
}
#else

#include "counted_cuda.h"
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#undef cudaStreamCreateWithFlags /* what follows is the test's own */
#undef cudaStreamSynchronize
#include "check.h"

#include <pthread.h>

#ifndef STEPS
#define STEPS 2000
#endif
#define BLOCKS 200
#define STREAMS 3

static gpupool_arena *arena;
static cudaStream_t stream[STREAMS];
static long own; /* CUDA calls that the test itself makes, or that are not listed */

static void open_arena(gpupool_source source) {
    gpupool_arena_config config = {.source = source, .limit_bytes = (size_t)256 << 20};
    CHECK_RESULT(gpupool_arena_create(&arena, &config), GPUPOOL_OK);
}

/* Sizes and streams by chance, more than the limit now and then. */
static void churn(uint64_t seed) {
    void *block[BLOCKS] = {0};
    for (int i = 0; i < STEPS; i++) {
        uint64_t at = check_random(&seed) % BLOCKS;
        cudaStream_t on = stream[check_random(&seed) % STREAMS];
        if (block[at]) gpupool_free(arena, block[at], on);
        block[at] = gpupool_alloc(arena, 1 + (size_t)(check_random(&seed) % (8u << 20)), on);
        if (i % 500 == 0) gpupool_trim(arena, 0, NULL);
    }
    for (int i = 0; i < BLOCKS; i++)
        if (block[i]) gpupool_free(arena, block[i], stream[0]);
}

static void *churn_beside(void *unused) {
    (void)unused;
    churn(7);
    return NULL;
}

static void transfer(void) {
    static char host[1 << 20];
    gpupool_ring *ring;
    void *block = gpupool_alloc(arena, sizeof host, stream[0]);
    CHECK_RESULT(gpupool_ring_create(&ring, NULL), GPUPOOL_OK);
    CHECK_RESULT(gpupool_upload(ring, block, host, sizeof host, stream[0]), GPUPOOL_OK);
    CHECK_RESULT(gpupool_download(ring, host, block, sizeof host, stream[0]), GPUPOOL_OK);
    CHECK_RESULT(gpupool_ring_destroy(ring), GPUPOOL_OK);
    gpupool_free(arena, block, stream[0]);
}

static void compare(void) {
    machine_calls counted = machine_added_calls(), all = machine_count_calls();
    CHECK(counted.of[MACHINE_MEMORY] > 0 && counted.of[MACHINE_EVENT] > 0);
    CHECK_EQ(counted.of[MACHINE_MEMORY], all.of[MACHINE_MEMORY]);
    CHECK_EQ(counted.of[MACHINE_EVENT], all.of[MACHINE_EVENT]);
    CHECK_EQ(counted.of[MACHINE_OTHER] + own, all.of[MACHINE_OTHER]);
    CHECK_EQ(machine_all_calls(&all), fake_calls(NULL));
}

static void each_source(void) {
    static const gpupool_source sources[] = {GPUPOOL_SOURCE_MAPPED, GPUPOOL_SOURCE_DEVICE,
                                             GPUPOOL_SOURCE_MANAGED, GPUPOOL_SOURCE_PINNED,
                                             GPUPOOL_SOURCE_BYPASS};
    for (size_t i = 0; i < sizeof sources / sizeof *sources; i++) {
        pthread_t beside;
        open_arena(sources[i]);
        CHECK(pthread_create(&beside, NULL, churn_beside, NULL) == 0);
        churn(i + 1);
        pthread_join(beside, NULL);
        transfer();
        CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_OK);
        compare();
    }
}

static void kinds(void) {
    CHECK_EQ(machine_kind_of("cuMemMap"), MACHINE_MEMORY);
    CHECK_EQ(machine_kind_of("cuMemHostAlloc"), MACHINE_MEMORY);
    CHECK_EQ(machine_kind_of("cudaHostAlloc"), MACHINE_MEMORY);
    CHECK_EQ(machine_kind_of("cuMemGetAllocationGranularity"), MACHINE_OTHER);
    CHECK_EQ(machine_kind_of("cudaMemGetInfo"), MACHINE_OTHER);
    CHECK_EQ(machine_kind_of("cuMemcpyAsync"), MACHINE_OTHER);
    CHECK_EQ(machine_kind_of("cudaStreamWaitEvent"), MACHINE_EVENT);
    CHECK_EQ(machine_kind_of("cuCtxRecordEvent"), MACHINE_EVENT);
}

static void every_call_is_counted(void) {
    for (int i = 0; i < STREAMS; i++, own++)
        CHECK(cudaStreamCreateWithFlags(&stream[i], cudaStreamNonBlocking) == cudaSuccess);
    each_source();
    for (int i = 0; i < STREAMS; i++, own++) CHECK(cudaStreamDestroy(stream[i]) == cudaSuccess);
    compare();
}

int main(void) {
    TEST(kinds);
    TEST(every_call_is_counted);
    return check_finish();
}
#endif
