// build: asan -fsanitize=address,undefined
// build: tsan -fsanitize=thread
/* Default arenas: one for each device and one of pinned memory, made at first use, the same for all
   callers; and what becomes of them when a device is reset. */
#define _GNU_SOURCE
#define GPUPOOL_REPLACE_CUDA_MALLOC 1
#include <pthread.h>

#include "gpupool.h"
#include "kit.h"

#define A kit_stream[0]

/* The host reads and writes blocks of the pinned one, which are finished memory. */
static void one_for_each_device(void) {
    gpupool_arena *first = gpupool_get_default_arena(0), *second, *pinned;
    unsigned char *block;
    CHECK(first);
    CHECK(gpupool_get_default_arena(0) == first);
    pinned = gpupool_get_default_arena(GPUPOOL_PINNED);
    CHECK(pinned && pinned != first);
    CHECK(gpupool_get_default_arena(GPUPOOL_PINNED) == pinned);
    block = (unsigned char *)gpupool_alloc(pinned, 1000, GPUPOOL_NO_STREAM);
    CHECK(block);
    block[0] = block[999] = 7;
    kit_free(pinned, block, GPUPOOL_NO_STREAM);
    kit_close(pinned);
    kit_use(first, 1000, A);
    kit_close(first);
    second = gpupool_get_default_arena(0); /* another one */
    CHECK(second);
    CHECK_EQ(kit_stats(second).allocs, 0);
    kit_close(second);
}

static pthread_barrier_t together;
static void *ask(void *user) {
    (void)user;
    pthread_barrier_wait(&together);
    return gpupool_get_default_arena(0);
}

/* Threads that ask at once get the same one, and nothing is left of others. */
static void threads_get_the_same(void) {
    for (int round = 0; round < 20; round++) {
        pthread_t thread[4];
        void *arena[4];
        pthread_barrier_init(&together, NULL, 4);
        for (int i = 0; i < 4; i++) CHECK_EQ(pthread_create(&thread[i], NULL, ask, NULL), 0);
        for (int i = 0; i < 4; i++) pthread_join(thread[i], &arena[i]);
        pthread_barrier_destroy(&together);
        CHECK(arena[0]);
        for (int i = 1; i < 4; i++) CHECK(arena[i] == arena[0]);
        kit_close((gpupool_arena *)arena[0]);
    }
}

/* A program in which nothing of gpupool is freed before a reset, as CUDA allows. */
static void reset(void) {
    void *block = NULL, *last = NULL, *pinned;
    gpupool_capture *scope = NULL;
    CHECK_EQ(cudaMalloc(&block, 3 * MIB), cudaSuccess);
    CHECK_EQ(cudaMallocAsync(&last, 1000, A), cudaSuccess);
    CHECK_EQ(cudaFreeAsync(last, A), cudaSuccess);
    kit_write(block, 3 * MIB, A, 1);
    CHECK_RESULT(gpupool_begin_capture(gpupool_get_default_arena(0), A, &scope), GPUPOOL_OK);
    pinned = gpupool_alloc(gpupool_get_default_arena(GPUPOOL_PINNED), 1000, GPUPOOL_NO_STREAM);
    CHECK(pinned);
    CHECK_EQ(cudaStreamSynchronize(A), cudaSuccess);
    CHECK_RESULT(gpupool_free_in_host_function(gpupool_get_default_arena(0), block), GPUPOOL_OK);
    for (int i = 0; i < KIT_STREAMS; i++) {
        CHECK_EQ(cudaStreamDestroy(kit_stream[i]), cudaSuccess);
        kit_stream[i] = NULL;
    }
    CHECK_EQ(cudaDeviceReset(), cudaSuccess);
#if CHECK_FAKE
    CHECK_EQ(fake_live_objects(), 0);
#endif
    CHECK_EQ(cudaMalloc(&block, 3 * MIB), cudaSuccess); /* the next use makes a new one */
    CHECK_EQ(kit_stats(gpupool_get_default_arena(0)).allocs, 1);
    CHECK_EQ(cudaFree(block), cudaSuccess);
    CHECK_EQ(cudaDeviceReset(), cudaSuccess);
}

/* Only the current device's. */
static void reset_of_one_device(void) {
    gpupool_arena *other;
    void *block = NULL, *far = NULL;
    int count = 0;
    CHECK_EQ(cudaGetDeviceCount(&count), cudaSuccess);
    if (count < 2) return;
    CHECK_EQ(cudaMalloc(&block, MIB), cudaSuccess);
    CHECK_EQ(cudaSetDevice(1), cudaSuccess);
    CHECK_EQ(cudaMalloc(&far, MIB), cudaSuccess);
    other = gpupool_get_default_arena(1);
    CHECK_EQ(cudaDeviceReset(), cudaSuccess);
    CHECK_EQ(cudaSetDevice(0), cudaSuccess);
    KIT_REFUSES(gpupool_check(other), GPUPOOL_E_ARGUMENT, "destroyed");
    CHECK_EQ(kit_stats(gpupool_get_default_arena(0)).blocks, 1);
    CHECK_EQ(cudaFree(block), cudaSuccess);
    kit_close(gpupool_get_default_arena(0));
}

/* cudaStreamDestroy tells the arenas: memory passes when the work has finished, and the handle may
   come again. */
static void streams_are_retired(void) {
    gpupool_arena *arena = kit_open(24 * MIB);
    kit_delay();
    for (int i = 0; i < 5; i++) {
        cudaStream_t stream = kit_new_stream();
        kit_use(arena, 1000, stream);
        CHECK_EQ(cudaStreamDestroy(stream), cudaSuccess);
    }
    kit_close(arena);
}

int main(void) {
    KIT_TEST(one_for_each_device);
    KIT_TEST(threads_get_the_same);
    KIT_TEST(reset);
    KIT_TEST(reset_of_one_device);
    KIT_TEST(streams_are_retired);
    return check_finish();
}
