/* A thread that waits for the device keeps nobody else waiting: it holds no lock. And what a
   request waits for is what there was when it began. */
#define _DEFAULT_SOURCE /* nanosleep */
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "gpupool.h"
#include "arena_kit.h"

#if CHECK_FAKE

typedef struct waiter {
    gpupool_arena *arena;
    size_t bytes;
    cudaStream_t stream;
    void *block;
    atomic_int begun, done;
} waiter;

static void *wait_for_memory(void *of) {
    waiter *w = (waiter *)of;
    atomic_store(&w->begun, 1);
    w->block = gpupool_alloc(w->arena, w->bytes, w->stream);
    atomic_store(&w->done, 1);
    return NULL;
}

static atomic_int released;

static void CUDART_CB until_released(void *unused) {
    (void)unused;
    while (!atomic_load(&released)) sched_yield();
}

/* All memory was freed on stream 1, and work there goes on until it is released. */
static gpupool_arena *open_with_work(gpupool_source source) {
    gpupool_arena *arena = kit_open_limited(source, 32 * MIB);
    void *block = kit_alloc(arena, 32 * MIB, kit_stream[1]);
    fake_mode(FAKE_THREADED);
    atomic_store(&released, 0);
    CHECK_EQ(cudaLaunchHostFunc(kit_stream[1], until_released, NULL), cudaSuccess);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[1]), GPUPOOL_OK);
    return arena;
}

static void start(waiter *w, pthread_t *thread) {
    CHECK_EQ(pthread_create(thread, NULL, wait_for_memory, w), 0);
    while (!atomic_load(&w->begun)) sched_yield();
    nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL); /* it waits by now */
    CHECK_EQ(atomic_load(&w->done), 0);
}

static void finish(waiter *w, pthread_t thread) {
    CHECK_EQ(atomic_load(&w->done), 0); /* all that was called meanwhile has come back */
    atomic_store(&released, 1);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK(w->block != NULL);
    CHECK_RESULT(gpupool_free(w->arena, w->block, w->stream), GPUPOOL_OK);
    fake_mode(FAKE_EAGER);
    kit_close(w->arena);
}

/* Every call that plain CUDA would not have held up, while another thread waits. */
static void each_call_beside_a_wait(void) {
    static const gpupool_source sources[] = {GPUPOOL_SOURCE_MAPPED, GPUPOOL_SOURCE_PINNED};
    for (size_t i = 0; i < KIT_COUNT(sources); i++) {
        check_case("source %d", (int)sources[i]);
        gpupool_arena *arena = open_with_work(sources[i]);
        waiter w = {arena, 32 * MIB, kit_stream[0], NULL, 0, 0};
        gpupool_capture *scope = NULL;
        gpupool_verdict why;
        cudaStream_t other;
        pthread_t thread;
        FILE *file = tmpfile();
        CHECK_EQ(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), cudaSuccess);
        if (sources[i] == GPUPOOL_SOURCE_MAPPED) /* or the device would wait, not the host */
            CHECK_RESULT(gpupool_begin_capture(arena, kit_stream[0], &scope), GPUPOOL_OK);
        start(&w, &thread);
        CHECK_RESULT(gpupool_retire_stream(arena, other), GPUPOOL_OK);
        CHECK_EQ(cudaStreamDestroy(other), cudaSuccess);
        CHECK_EQ(kit_limit(arena), 32 * MIB);
        CHECK_EQ(kit_stats(arena).granted.now, 0);
        CHECK_RESULT(gpupool_report(arena, file), GPUPOOL_OK);
        CHECK(kit_available(arena) > 0);
        CHECK_EQ(kit_fits(arena, 32 * MIB, &why), 0);
        CHECK_EQ(why.cause, GPUPOOL_CAUSE_PENDING);
        CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
        gpupool_capture *another = NULL;
        CHECK_RESULT(gpupool_begin_capture(arena, kit_stream[2], &another), GPUPOOL_OK);
        CHECK_RESULT(gpupool_end_capture(another), GPUPOOL_OK);
        CHECK_RESULT(gpupool_set_limit(arena, 64 * MIB), GPUPOOL_OK);
        void *block = kit_alloc(arena, 4096, kit_stream[2]);
        CHECK_RESULT(gpupool_free(arena, block, kit_stream[2]), GPUPOOL_OK);
        CHECK_EQ(atomic_load(&w.done), 0);
        atomic_store(&released, 1);
        CHECK_EQ(pthread_join(thread, NULL), 0);
        CHECK(w.block != NULL);
        CHECK_RESULT(gpupool_free(arena, w.block, kit_stream[0]), GPUPOOL_OK);
        CHECK_RESULT(gpupool_release_capture(another), GPUPOOL_OK);
        if (scope) CHECK_RESULT(gpupool_release_capture(scope), GPUPOOL_OK);
        fclose(file);
        fake_mode(FAKE_EAGER);
        kit_close(arena);
    }
}

/* Other requests meet neither the wait nor the lock of getting memory. */
static void another_request_beside_a_wait(void) {
    gpupool_arena *arena = open_with_work(GPUPOOL_SOURCE_PINNED);
    waiter w = {arena, 32 * MIB, kit_stream[0], NULL, 0, 0};
    pthread_t thread;
    start(&w, &thread);
    CHECK_RESULT(gpupool_set_limit(arena, 64 * MIB), GPUPOOL_OK);
    void *grown = kit_alloc(arena, 16 * MIB, kit_stream[2]);
    CHECK_RESULT(gpupool_free(arena, grown, kit_stream[2]), GPUPOOL_OK);
    finish(&w, thread);
}

/* A request that may not wait fails at once, with the reason, and changes nothing. */
static void a_request_that_may_not_wait(void) {
    static const gpupool_source sources[] = {GPUPOOL_SOURCE_MAPPED, GPUPOOL_SOURCE_DEVICE,
                                             GPUPOOL_SOURCE_PINNED, GPUPOOL_SOURCE_BYPASS};
    for (size_t i = 0; i < KIT_COUNT(sources); i++) {
        check_case("source %d", (int)sources[i]);
        gpupool_arena *arena = kit_open_limited(sources[i], 32 * MIB);
        gpupool_verdict why;
        void *block = kit_alloc(arena, 16 * MIB, kit_stream[1]);
        void *rest = kit_alloc(arena, 16 * MIB, kit_stream[1]);
        fake_mode(FAKE_STEPPED);
        kit_mark(kit_stream[1], block, 16 * MIB, 1);
        CHECK_RESULT(gpupool_record_stream(arena, block, kit_stream[2]), GPUPOOL_OK);
        if (sources[i] != GPUPOOL_SOURCE_BYPASS)
            CHECK_RESULT(gpupool_free(arena, block, kit_stream[1]), GPUPOOL_OK);
        long waits = fake_calls("cuEventSynchronize") + fake_calls("cuMemFree") +
                     fake_calls("cuMemFreeHost");
        CHECK(kit_alloc_as(arena, 24 * MIB, kit_stream[0], GPUPOOL_NO_WAIT) == NULL);
        CHECK_RESULT(gpupool_last_result(), GPUPOOL_E_OUT_OF_MEMORY);
        CHECK_RESULT(gpupool_last_verdict(&why), GPUPOOL_OK);
        CHECK(why.cause != GPUPOOL_CAUSE_NONE && why.sentence[0]);
        CHECK_EQ(fake_calls("cuEventSynchronize") + fake_calls("cuMemFree") +
                     fake_calls("cuMemFreeHost"), waits);
        CHECK_EQ(kit_stats(arena).host_syncs, 0);
        CHECK(fake_pending(kit_stream[1]) > 0);
        CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
        fake_mode(FAKE_EAGER);
        if (sources[i] == GPUPOOL_SOURCE_BYPASS)
            CHECK_RESULT(gpupool_free(arena, block, kit_stream[1]), GPUPOOL_OK);
        CHECK_RESULT(gpupool_free(arena, rest, kit_stream[1]), GPUPOOL_OK);
        kit_close(arena);
    }
}

/* Where others may: the same request without the flag waits, and has the memory. */
static void a_request_that_may_wait(void) {
    gpupool_arena *arena = kit_open_limited(GPUPOOL_SOURCE_PINNED, 32 * MIB);
    void *block = kit_alloc(arena, 32 * MIB, kit_stream[1]);
    fake_mode(FAKE_STEPPED);
    kit_mark(kit_stream[1], block, 32 * MIB, 1);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[1]), GPUPOOL_OK);
    CHECK(kit_alloc_as(arena, 32 * MIB, kit_stream[0], GPUPOOL_NO_WAIT) == NULL);
    CHECK_EQ(kit_stats(arena).host_syncs, 0);
    CHECK(kit_alloc_as(arena, 32 * MIB, kit_stream[0], 0) == block);
    CHECK(kit_stats(arena).host_syncs > 0);
    CHECK_EQ(fake_pending(kit_stream[1]), 0);
    fake_mode(FAKE_EAGER);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
    kit_close(arena);
}

/* One that finds memory, or may get it from the driver, is like any other. */
static void what_needs_no_wait_is_had(void) {
    gpupool_arena *arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 32 * MIB);
    void *block = kit_alloc_as(arena, 32 * MIB, kit_stream[0], GPUPOOL_NO_WAIT);
    CHECK(block != NULL);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
    CHECK(kit_alloc_as(arena, 32 * MIB, kit_stream[0], GPUPOOL_NO_WAIT) == block);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
    CHECK(kit_alloc_as(arena, 0, kit_stream[0], GPUPOOL_NO_WAIT) == NULL);
    CHECK_RESULT(gpupool_last_result(), GPUPOOL_E_ARGUMENT);
    kit_close(arena);
}

#endif

int main(void) {
    FAKE_TEST(each_call_beside_a_wait);
    FAKE_TEST(another_request_beside_a_wait);
    FAKE_TEST(a_request_that_may_not_wait);
    FAKE_TEST(a_request_that_may_wait);
    FAKE_TEST(what_needs_no_wait_is_had);
    return check_finish();
}
