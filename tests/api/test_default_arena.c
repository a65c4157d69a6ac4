// build: asan -fsanitize=address,undefined
// build: tsan -fsanitize=thread
/* Default arenas: one for each device and one of pinned memory, made at first use, the same for all
   callers; and what becomes of them when a device is reset or the process forks. */
#define _GNU_SOURCE
#define GPUPOOL_REPLACE_CUDA_MALLOC 1
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gpupool.h"
#include "kit.h"

#define A kit_stream[0]

static void one_for_each_device(void) {
    gpupool_arena *first = gpupool_get_default_arena(0), *second, *pinned;
    CHECK(first);
    CHECK(gpupool_get_default_arena(0) == first);
    pinned = gpupool_get_default_arena(GPUPOOL_PINNED);
    CHECK(pinned && pinned != first);
    CHECK(gpupool_get_default_arena(GPUPOOL_PINNED) == pinned);
    kit_close(pinned);
    kit_close(first);
    second = gpupool_get_default_arena(0); /* another one */
    CHECK(second);
    CHECK_EQ(kit_stats(second).allocs, 0);
    kit_close(second);
}

/* The host reads and writes blocks of the pinned one, which are finished memory. */
static void pinned_memory(void) {
    gpupool_arena *pinned = gpupool_get_default_arena(GPUPOOL_PINNED);
    unsigned char *block = (unsigned char *)gpupool_alloc(pinned, 1000, GPUPOOL_NO_STREAM);
    struct cudaPointerAttributes what;
    CHECK(block);
    block[0] = block[999] = 7;
    CHECK_EQ(cudaPointerGetAttributes(&what, block), cudaSuccess);
    CHECK_EQ(what.type, cudaMemoryTypeHost);
    kit_free(pinned, block, GPUPOOL_NO_STREAM);
    kit_close(pinned);
}

static void devices_that_are_none(void) {
    static const int devices[] = {-1, -3, 64, 1000};
    for (size_t i = 0; i < KIT_COUNT(devices); i++)
        KIT_FAILS(gpupool_get_default_arena(devices[i]), GPUPOOL_E_ARGUMENT, "device");
    KIT_FAILS(gpupool_get_default_arena(63), GPUPOOL_E_ARGUMENT, "device: 63");
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
#if CHECK_FAKE
    fake_mode(FAKE_STEPPED);
#endif
    for (int i = 0; i < 5; i++) {
        cudaStream_t stream;
        void *block;
        CHECK_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
        block = gpupool_alloc(arena, 1000, stream);
        kit_write(block, 1000, stream, i);
        kit_verify(block, 1000, stream, i);
        kit_write(block, 1000, stream, i + 1);
        kit_free(arena, block, stream);
        CHECK_EQ(cudaStreamDestroy(stream), cudaSuccess);
    }
    kit_close(arena);
}

#if CHECK_FAKE
static void no_stream_to_destroy(void) {
    fake_quiet(1);
    CHECK(cudaStreamDestroy(0) != cudaSuccess); /* as CUDA says */
    cudaGetLastError();
    fake_quiet(0);
    fake_clear_failures();
}
#endif

static void *given;
static void in_the_child(void) {
    void *block = NULL;
    KIT_FAILS(gpupool_get_default_arena(0), GPUPOOL_E_FORKED, "fork");
    KIT_FAILS(gpupool_get_default_arena(1), GPUPOOL_E_FORKED, "fork");
    CHECK_EQ(cudaMalloc(&block, 1000), cudaErrorInitializationError);
    CHECK_EQ(cudaMallocAsync(&block, 1000, A), cudaErrorInitializationError);
    CHECK_EQ(cudaFree(given), cudaErrorInitializationError);
    CHECK_EQ(cudaFreeAsync(given, A), cudaErrorInitializationError);
    CHECK(!block);
}

static void forked(void) {
    int status = -1;
    pid_t child;
    CHECK_EQ(cudaMalloc(&given, 1000), cudaSuccess);
    fflush(stdout);
    child = fork();
    if (child == 0) {
        alarm(20); /* a child that hangs has failed */
        atomic_store(&check_bad, 0);
        in_the_child();
        _exit(atomic_load(&check_bad) != 0);
    }
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
    CHECK_EQ(cudaFree(given), cudaSuccess);
    kit_close(gpupool_get_default_arena(0));
}

int main(void) {
    KIT_TEST(one_for_each_device);
    KIT_TEST(pinned_memory);
    KIT_TEST(devices_that_are_none);
    KIT_TEST(threads_get_the_same);
    KIT_TEST(reset);
    KIT_TEST(reset_of_one_device);
    KIT_TEST(streams_are_retired);
#if CHECK_FAKE
    KIT_TEST(no_stream_to_destroy);
#endif
    KIT_TEST(forked);
    return check_finish();
}
