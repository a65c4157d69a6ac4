// build: asan -fsanitize=address,undefined
// build: tsan -fsanitize=thread
/* Several arenas and many threads in one process: each arena has its own memory, default streams
   are each thread's own, and arenas come and go beside others. */
#define _GNU_SOURCE
#include <pthread.h>
#include <unistd.h>

#include "gpupool.h"
#include "kit.h"

#define A kit_stream[0]
#define THREADS 6

/* ---- two arenas ---- */

static void two_arenas(void) {
    gpupool_arena *first = kit_open(32 * MIB), *second = kit_open(32 * MIB);
    void *one = gpupool_alloc(first, 10 * MIB, A), *other = gpupool_alloc(second, 20 * MIB, A);
    CHECK_EQ(kit_stats(first).allocated.now, 10 * MIB);
    CHECK_EQ(kit_stats(second).allocated.now, 20 * MIB);
    CHECK_RESULT(gpupool_free(first, other, A), GPUPOOL_E_NOT_OURS);
    CHECK(!gpupool_alloc(second, 20 * MIB, A));
    kit_free(first, one, A);
    kit_close(first);
    kit_write(other, 20 * MIB, A, 1);
    kit_free(second, other, A);
    kit_close(second);
}

/* ---- default streams ---- */

static gpupool_arena *shared;
static atomic_int wrong;
static pthread_barrier_t all_have_freed;

/* cudaStreamPerThread is another stream in each thread: what one freed on it is not another's own.
   The race oracle sees who takes it too early. */
static void *on_its_own_stream(void *user) {
    int number = (int)(intptr_t)user;
    for (int i = 0; i < 40; i++) {
        size_t bytes = i % 2 ? 3000 : 300000;
        void *block = gpupool_alloc(shared, bytes, cudaStreamPerThread);
        wrong += !block || cudaMemsetAsync(block, number, bytes, cudaStreamPerThread);
        wrong += gpupool_free(shared, block, cudaStreamPerThread) != GPUPOOL_OK;
        if (i % 10 == 9) pthread_barrier_wait(&all_have_freed);
    }
    return NULL;
}

static void in_threads(void *(*body)(void *)) {
    pthread_t threads[THREADS];
    atomic_store(&wrong, 0);
    for (int i = 0; i < THREADS; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, body, (void *)(intptr_t)i), 0);
    for (int i = 0; i < THREADS; i++) CHECK_EQ(pthread_join(threads[i], NULL), 0);
    CHECK_EQ(atomic_load(&wrong), 0);
}

static void per_thread_streams(void) {
    void *all;
    shared = kit_open(0);
#if CHECK_FAKE
    fake_mode(FAKE_STEPPED);
#endif
    pthread_barrier_init(&all_have_freed, NULL, THREADS);
    in_threads(on_its_own_stream);
    pthread_barrier_destroy(&all_have_freed);
    CHECK_EQ(kit_stats(shared).blocks, 0);
    CHECK_RESULT(gpupool_set_limit(shared, 8 * MIB), GPUPOOL_OK);
    all = gpupool_alloc(shared, 8 * MIB, A); /* what ended threads have left passes too */
    CHECK(all);
    kit_write(all, 8 * MIB, A, 1);
    kit_free(shared, all, A);
    kit_close(shared);
}

/* ---- threads ---- */

/* Each has blocks of its own bytes on its own stream, and verifies them. */
static void *allocate(void *user) {
    int number = (int)(intptr_t)user;
    cudaStream_t stream = kit_stream[number % KIT_STREAMS];
    uint64_t seed = (uint64_t)number;
    void *blocks[16] = {NULL};
    for (int i = 0; i < 1500; i++) {
        int at = (int)check_below(&seed, 16);
        size_t bytes = 1 + check_below(&seed, (size_t)1 << (9 + check_below(&seed, 12)));
        if (blocks[at]) wrong += gpupool_free(shared, blocks[at], stream) != GPUPOOL_OK;
        blocks[at] = gpupool_alloc(shared, bytes, stream);
        wrong += !blocks[at] || cudaMemsetAsync(blocks[at], number, bytes, stream) != cudaSuccess;
    }
    for (int at = 0; at < 16; at++)
        if (blocks[at]) wrong += gpupool_free(shared, blocks[at], stream) != GPUPOOL_OK;
    return NULL;
}

static void threads_share_an_arena(void) {
    gpupool_stats stats;
    shared = kit_open(0);
    in_threads(allocate);
    stats = kit_stats(shared);
    CHECK_EQ(stats.blocks, 0);
    CHECK_EQ(stats.allocs, THREADS * 1500);
    CHECK_EQ(stats.frees, THREADS * 1500);
    CHECK_EQ(stats.allocated.now, 0);
    kit_close(shared);
}

/* ---- memory that a thread is giving back (O10) ---- */

#if CHECK_FAKE
static void *get_more_than_is_left(void *user) {
    *(void **)user = gpupool_alloc(shared, 24 * MIB, A);
    return NULL;
}

static pthread_t waiting;

static void another_comes(void *user) {
    CHECK_EQ(pthread_create(&waiting, NULL, get_more_than_is_left, user), 0);
    usleep(50000);
}

static void waits_for_what_is_given_back(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_DEVICE, 32 * MIB);
    void *block = NULL;
    shared = kit_create(&config);
    kit_free(shared, gpupool_alloc(shared, 16 * MIB, A), A);
    fake_before_call("cuMemFree", 1, another_comes, &block);
    CHECK_RESULT(gpupool_trim(shared, 0), GPUPOOL_OK);
    CHECK_EQ(pthread_join(waiting, NULL), 0);
    CHECK(block);
    kit_free(shared, block, A);
    kit_close(shared);
}
#else
static void waits_for_what_is_given_back(void) {}
#endif

/* Arenas come and go in all threads, while streams are retired in all arenas. */
static void *create_and_destroy(void *user) {
    int number = (int)(intptr_t)user;
    for (int i = 0; i < 25; i++) {
        gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_AUTO, 16 * MIB);
        gpupool_arena *own = NULL;
        cudaStream_t stream;
        void *block;
        wrong += gpupool_arena_create(&own, &config) != GPUPOOL_OK;
        wrong += cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess;
        block = gpupool_alloc(own, 5000, stream);
        wrong += !block || cudaMemsetAsync(block, number, 5000, stream) != cudaSuccess;
        wrong += gpupool_free(own, block, stream) != GPUPOOL_OK;
        wrong += gpupool_retire_stream(stream) != GPUPOOL_OK;
        wrong += cudaStreamDestroy(stream) != cudaSuccess;
        wrong += gpupool_arena_destroy(own) != GPUPOOL_OK;
    }
    return NULL;
}

static void threads_have_arenas(void) {
#if CHECK_FAKE
    fake_device_memory(0, (size_t)1 << 30); /* an arena reserves many times the device's size, and
                                               fakecuda has few addresses, and none twice */
#endif
    shared = kit_open(0);
    in_threads(create_and_destroy);
    kit_free(shared, gpupool_alloc(shared, 1000, A), A);
    kit_close(shared);
}

int main(void) {
    KIT_TEST(two_arenas);
    KIT_TEST(per_thread_streams);
    KIT_TEST(threads_share_an_arena);
    KIT_FAKE_TEST(waits_for_what_is_given_back);
    KIT_TEST(threads_have_arenas);
    return check_finish();
}
