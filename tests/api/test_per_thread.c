/* Compiled as with --default-stream per-thread: a stream of 0 is another one in every thread, and
   what one thread frees there is for another only once its work is done. */
// build: plain -DCUDA_API_PER_THREAD_DEFAULT_STREAM
// build: asan -fsanitize=address,undefined -DCUDA_API_PER_THREAD_DEFAULT_STREAM
#define _DEFAULT_SOURCE /* pthread_barrier_t */
#include "gpupool.h"
#include "arena_kit.h"

#include <pthread.h>
#include <sched.h>

#define THREADS 6
#define TURNS 1500
#define SIZE (2 * MIB)

static gpupool_arena *arena;
static pthread_barrier_t gate;
static atomic_long served;

/* fakecuda's kernels take 0 for the legacy stream, however a test is compiled. */
static cudaStream_t mine(void) { return cudaStreamPerThread; }

static void *take_turns(void *number) {
    int me = *(int *)number;
    pthread_barrier_wait(&gate);
    for (int i = 0; i < TURNS; i++) {
        size_t bytes = i % 3 ? 4096 : SIZE;
        void *block = gpupool_alloc(arena, bytes, 0);
        for (int k = 0; !block && k < 100; k++) { /* others have it all */
            sched_yield();
            block = gpupool_alloc(arena, bytes, 0);
        }
        if (!block) continue;
        atomic_fetch_add(&served, 1);
        kit_mark(mine(), block, bytes, me);
        kit_expect_mark(mine(), block, bytes, me);
        CHECK_RESULT(gpupool_free(arena, block, i % 2 ? 0 : cudaStreamPerThread), GPUPOOL_OK);
    }
    CHECK_EQ(cudaStreamSynchronize(0), cudaSuccess);
    return NULL;
}

static void threads_take_turns(void) {
    pthread_t thread[THREADS];
    int number[THREADS];
#if CHECK_FAKE
    fake_mode(FAKE_THREADED);
#endif
    atomic_store(&served, 0);
    arena = kit_open_limited(GPUPOOL_SOURCE_AUTO, 2 * SIZE);
    CHECK_EQ(pthread_barrier_init(&gate, NULL, THREADS), 0);
    for (int i = 0; i < THREADS; i++) {
        number[i] = i;
        CHECK_EQ(pthread_create(&thread[i], NULL, take_turns, &number[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) CHECK_EQ(pthread_join(thread[i], NULL), 0);
    CHECK_EQ(pthread_barrier_destroy(&gate), 0);
    CHECK(atomic_load(&served) > THREADS * TURNS / 2);
    CHECK_EQ(kit_stats(arena).blocks.now, 0);
    kit_close(arena);
}

/* 0 and cudaStreamPerThread are one stream, the legacy stream another. */
static void zero_is_the_threads_own(void) {
    arena = kit_open(GPUPOOL_SOURCE_AUTO);
    void *block = kit_alloc(arena, 4096, 0);
    gpupool_block found;
    CHECK_RESULT(gpupool_get_block(arena, block, &found), GPUPOOL_OK);
    CHECK(found.stream == cudaStreamPerThread);
    CHECK_RESULT(gpupool_free(arena, block, cudaStreamPerThread), GPUPOOL_OK);
    CHECK(kit_alloc(arena, 4096, cudaStreamPerThread) == block);
    CHECK_RESULT(gpupool_free(arena, block, 0), GPUPOOL_OK);
    void *other = kit_alloc(arena, 4096, cudaStreamLegacy);
    void *again = gpupool_alloc_aligned(arena, 4096, 512, 0);
    CHECK(other != again);
    CHECK_RESULT(gpupool_free(arena, other, cudaStreamLegacy), GPUPOOL_OK);
    CHECK_RESULT(gpupool_free(arena, again, 0), GPUPOOL_OK);
    kit_close(arena);
}

/* On the thread of a host function 0 would be another stream: refused, and not the legacy one. */
static void zero_is_no_stream_for_host_functions(void) {
    arena = kit_open(GPUPOOL_SOURCE_AUTO);
    void *block = kit_alloc(arena, 4096, 0);
    CHECK_RESULT(gpupool_free_in_host_function(arena, block, 0), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(gpupool_free(arena, block, 0), GPUPOOL_OK);
    kit_close(arena);
}

#if CHECK_FAKE

/* A file compiled without the flag means the legacy stream: no macro there says otherwise. */
static void zero_of_another_file_is_the_legacy_stream(void) {
    arena = kit_open(GPUPOOL_SOURCE_AUTO);
    fake_mode(FAKE_STEPPED);
    void *block = (gpupool_zalloc)(arena, 4096, 0);
    CHECK_RESULT(kit_why(block), GPUPOOL_OK);
    CHECK_EQ(fake_pending(cudaStreamLegacy), 1); /* the memset */
    CHECK_RESULT((gpupool_free)(arena, block, 0), GPUPOOL_OK);
    CHECK(kit_alloc(arena, 4096, cudaStreamLegacy) == block);
    CHECK_RESULT(gpupool_free(arena, block, cudaStreamLegacy), GPUPOOL_OK);
    fake_mode(FAKE_EAGER);
    kit_close(arena);
}

/* The stream of a request is as that of an argument, and the program's struct stays as it was. */
static void zero_of_a_request_is_the_threads_own(void) {
    gpupool_request request;
    gpupool_block found;
    arena = kit_open(GPUPOOL_SOURCE_AUTO);
    fake_mode(FAKE_STEPPED);
    memset(&request, 0, sizeof request);
    request.bytes = 4096;
    request.flags = GPUPOOL_ZEROED;
    void *block = gpupool_alloc_request(arena, &request);
    CHECK_RESULT(kit_why(block), GPUPOOL_OK);
    CHECK_EQ(fake_pending(cudaStreamPerThread), 1); /* the memset */
    CHECK_EQ(fake_pending(cudaStreamLegacy), 0);
    CHECK(request.stream == 0);
    CHECK_RESULT(gpupool_get_block(arena, block, &found), GPUPOOL_OK);
    CHECK(found.stream == cudaStreamPerThread);
    CHECK_RESULT(gpupool_free(arena, block, 0), GPUPOOL_OK);
    request.stream = cudaStreamLegacy;
    request.flags = 0;
    block = gpupool_alloc_request(arena, &request);
    CHECK_RESULT(gpupool_get_block(arena, block, &found), GPUPOOL_OK);
    CHECK(found.stream == cudaStreamLegacy);
    CHECK_RESULT(gpupool_free(arena, block, cudaStreamLegacy), GPUPOOL_OK);
    fake_mode(FAKE_EAGER);
    kit_close(arena);
}

/* The two calls that read their stream in a struct: no struct is no stream. */
static void no_struct_is_refused(void) {
    gpupool_ring *ring = NULL;
    arena = kit_open(GPUPOOL_SOURCE_AUTO);
    CHECK_RESULT(gpupool_ring_create(&ring, NULL), GPUPOOL_OK);
    CHECK(gpupool_alloc_request(arena, NULL) == NULL);
    CHECK_RESULT(gpupool_last_result(), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(gpupool_ring_transfer(ring, NULL), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(gpupool_ring_destroy(ring), GPUPOOL_OK);
    kit_close(arena);
}

static void *free_here(void *block) {
    kit_fill(mine(), block, SIZE, 1);
    CHECK_RESULT(gpupool_free(arena, block, 0), GPUPOOL_OK);
    return NULL;
}

/* The thread and its stream are gone, and so is nobody's right to wait for its work. */
static void a_thread_that_ends_leaves_its_memory(void) {
    for (int turn = 0; turn < 50; turn++) {
        pthread_t thread;
        arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, SIZE);
        fake_mode(FAKE_STEPPED);
        void *block = kit_alloc(arena, SIZE, 0);
        kit_order(cudaStreamPerThread, kit_stream[1]);
        CHECK_EQ(cudaStreamSynchronize(0), cudaSuccess);
        CHECK_EQ(pthread_create(&thread, NULL, free_here, block), 0);
        CHECK_EQ(pthread_join(thread, NULL), 0);
        block = kit_alloc(arena, SIZE, 0);
        kit_fill(mine(), block, SIZE, 2);
        while (fake_step(mine())) continue;
        CHECK_EQ(fake_failures(), 0);
        CHECK_RESULT(gpupool_free(arena, block, 0), GPUPOOL_OK);
        fake_run_all();
        kit_close(arena);
    }
}

static void *come_and_go(void *unused) {
    (void)unused;
    for (int i = 0; i < 4; i++) {
        void *block = kit_alloc(arena, (size_t)1000 << (4 * i), 0);
        kit_fill(mine(), block, 1000, 1);
        CHECK_RESULT(gpupool_free(arena, block, 0), GPUPOOL_OK);
    }
    CHECK_EQ(cudaStreamSynchronize(0), cudaSuccess);
    return NULL;
}

/* Threads that end without a word, but for gpupool_trim now and then: nothing grows for ever. */
static void threads_come_and_go(void) {
    uint64_t host_bytes = 0, reserved = 0;
    arena = kit_open(GPUPOOL_SOURCE_AUTO);
    for (int turn = 0; turn < 10; turn++) {
        for (int i = 0; i < 100; i++) {
            pthread_t thread;
            CHECK_EQ(pthread_create(&thread, NULL, come_and_go, NULL), 0);
            CHECK_EQ(pthread_join(thread, NULL), 0);
        }
        CHECK_RESULT(gpupool_trim(arena, SIZE_MAX, NULL), GPUPOOL_OK);
        gpupool_stats stats = kit_stats(arena);
        check_case("turn %d: %llu, %llu", turn, (unsigned long long)stats.host_bytes,
                   (unsigned long long)stats.reserved.now);
        CHECK_EQ(stats.pending.now, 0);
        if (turn > 4) CHECK(stats.host_bytes <= host_bytes && stats.reserved.now <= reserved);
        else host_bytes = stats.host_bytes + stats.host_bytes / 2, reserved = stats.reserved.now;
    }
    kit_close(arena);
}

#endif

int main(void) {
    ARENA_TEST(threads_take_turns);
    ARENA_TEST(zero_is_the_threads_own);
    ARENA_TEST(zero_is_no_stream_for_host_functions);
    FAKE_TEST(zero_of_another_file_is_the_legacy_stream);
    FAKE_TEST(zero_of_a_request_is_the_threads_own);
    FAKE_TEST(no_struct_is_refused);
    FAKE_TEST(a_thread_that_ends_leaves_its_memory);
    FAKE_TEST(threads_come_and_go);
    return check_finish();
}
