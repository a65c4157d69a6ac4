/* A default arena whose device is reset, between the steps of a call: another thread visits the
   arena, CUDA answers once and not again, or the reset comes in the middle. */
// build: plain
// build: tsan -fsanitize=thread
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "arena_kit.h"

#include <pthread.h>

#if CHECK_FAKE

#define ASKED "cuCtxGetId" /* whether the device was reset */

static gpupool_arena *arena;

static void open_default(void) {
    void *block = NULL;
    CHECK_EQ(gpupool_cudaMalloc(&block, MIB), cudaSuccess);
    arena = gpupool_get_default_arena(0);
}

static void reset_the_device(void *unused) {
    (void)unused;
    CHECK_EQ(cudaDeviceReset(), cudaSuccess);
    for (int i = 0; i < KIT_STREAMS; i++) kit_stream[i] = NULL;
}

static void is_renewed(void) {
    void *block = NULL;
    CHECK(gpupool_get_default_arena(0) == arena);
    CHECK_EQ(kit_stats(arena).blocks.now, 0);
    CHECK_EQ(gpupool_cudaMalloc(&block, MIB), cudaSuccess);
    CHECK_EQ(gpupool_cudaFree(block), cudaSuccess);
    kit_close(arena);
    CHECK_EQ(fake_live_objects(), 0);
}

/* ---- a visitor ---- */

static pthread_t visitor;
static atomic_int visits, may_leave;

static void *visit_too(void *unused) {
    CHECK(gpupool_get_default_arena(0) == arena);
    return unused;
}

static void stay(void *unused) {
    (void)unused;
    atomic_store(&visits, 1);
    while (!atomic_load(&may_leave)) continue;
}

static void let_it_leave(void *unused) {
    (void)unused;
    atomic_store(&may_leave, 1);
}

static void have_a_visitor(void *unused) {
    fake_before_call(ASKED, 1, stay, NULL);
    CHECK_EQ(pthread_create(&visitor, NULL, visit_too, unused), 0);
    while (!atomic_load(&visits)) continue;
    /* This thread asks again, finds the visitor, and begins once more. */
    fake_before_call(ASKED, 2, let_it_leave, NULL);
}

static void renewed_once_the_visitor_has_left(void) {
    open_default();
    reset_the_device(NULL);
    atomic_store(&visits, 0);
    atomic_store(&may_leave, 0);
    fake_before_call(ASKED, 1, have_a_visitor, NULL);
    CHECK(gpupool_get_default_arena(0) == arena);
    CHECK_EQ(atomic_load(&may_leave), 1);
    CHECK_EQ(pthread_join(visitor, NULL), 0);
    is_renewed();
}

/* ---- CUDA does not answer ---- */

/* Not known to be reset, it stays the default as it is; the next call renews it. */
static void asked_a_second_time_in_vain(void) {
    open_default();
    reset_the_device(NULL);
    fake_fail_call(ASKED, 2, 0, 0);
    CHECK(gpupool_get_default_arena(0) == arena);
    CHECK_EQ(fake_fail_fired(), 1);
    CHECK_RESULT(gpupool_last_result(), GPUPOOL_OK);
    fake_fail_clear();
    is_renewed();
}

/* Too much is too much, and whichever context cannot be had then is nobody's loss. */
static void no_context_to_fail_in(void) {
    void *block = &block;
    open_default();
    for (long n = 1, fired = 1; fired; n++) {
        check_case("context %ld", n);
        fake_fail_call("cuCtxPushCurrent", n, 0, 0);
        cudaError_t error = gpupool_cudaMalloc(&block, 200 * GIB);
        fired = fake_fail_fired();
        fake_fail_clear();
        CHECK(error == cudaErrorMemoryAllocation || error == cudaErrorUnknown);
        CHECK(block == NULL);
        CHECK(fired || error == cudaErrorMemoryAllocation);
        cudaError_t last = cudaGetLastError();
        CHECK(last == error || (fired && last == cudaSuccess));
        CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
        CHECK_EQ(kit_stats(arena).blocks.now, 1);
    }
    reset_the_device(NULL);
    is_renewed();
}

/* ---- a reset in the middle ---- */

static void reset_while_memory_is_looked_for(void) {
    void *block = &block;
    open_default();
    fake_before_call(ASKED, 2, reset_the_device, NULL);
    CHECK_EQ(gpupool_cudaMalloc(&block, 64 * MIB), cudaErrorUnknown);
    CHECK(block == NULL);
    CHECK(strstr(gpupool_last_error(), "was reset") != NULL);
    is_renewed();
}
#endif

int main(void) {
    FAKE_TEST(renewed_once_the_visitor_has_left);
    FAKE_TEST(asked_a_second_time_in_vain);
    FAKE_TEST(no_context_to_fail_in);
    FAKE_TEST(reset_while_memory_is_looked_for);
    return check_finish();
}
