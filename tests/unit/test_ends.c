/* Arenas at the ends of a process: after cudaDeviceReset, while CUDA unloads, in a child, after
   main. Every call has a named result; nothing crashes or hangs. */
// left at exit: an arena, on purpose
// build: plain
// build: asan -fsanitize=address
#define _DEFAULT_SOURCE /* fork, alarm */
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "arena_kit.h"

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

static gpupool_arena *arena;

/* Every public call that takes an arena, each with its result; a stream of 0 is always there. */
typedef struct call_result { const char *call; gpupool_result result; } call_result;
#define CALL(call) {#call, call}

static gpupool_result size_result(const void *block) {
    return kit_size(arena, block) ? GPUPOOL_OK : gpupool_last_result();
}

static gpupool_result limit_result(void) {
    kit_limit(arena);
    return gpupool_last_result();
}

static gpupool_result available_result(void) {
    kit_available(arena);
    return gpupool_last_result();
}

static gpupool_result fit_result(void) {
    return kit_fits(arena, MIB, NULL) ? GPUPOOL_OK : gpupool_last_result();
}

static void expect_all(const call_result *calls, size_t count, gpupool_result expected) {
    for (size_t i = 0; i < count; i++) {
        check_case("%s", calls[i].call);
        CHECK_RESULT(calls[i].result, expected);
    }
}

/* Those that have to ask the driver. */
static void asking_calls(const void *block, gpupool_capture *scope, gpupool_result expected) {
    const call_result calls[] = {
        CALL(kit_why(gpupool_alloc(arena, 64 * MIB, 0))),
        CALL(kit_why(gpupool_alloc_aligned(arena, 64 * MIB, MIB, 0))),
        CALL(kit_why(gpupool_zalloc(arena, 1000, 0))),
        CALL(gpupool_record_stream(arena, block, 0)),
        CALL(gpupool_trim(arena, 0, NULL)),
        CALL(gpupool_set_limit(arena, GIB)),
        CALL(gpupool_set_limit_text(arena, "80%")),
        CALL(available_result()),
        CALL(fit_result()),
        CALL(gpupool_wait_stream(arena, 0)),
        CALL(gpupool_wait_all(arena)),
        CALL(gpupool_allow_peer(arena, 1)),
        CALL(gpupool_disallow_peer(arena, 1)),
        CALL(gpupool_begin_capture(arena, 0, &(gpupool_capture *){NULL})),
        CALL(gpupool_end_capture(scope)),
        CALL(gpupool_release_capture(scope)),
    };
    expect_all(calls, KIT_COUNT(calls), expected);
}

/* ---- cudaDeviceReset ---- */

/* Live blocks, cached ones, parked ones, fences in use and idle ones, an open scope. */
static void leave_traces(void **live, size_t count, gpupool_capture **scope) {
    void *block[70];
    for (size_t i = 0; i < count; i++) live[i] = kit_alloc(arena, 5000 + i, kit_stream[0]);
    for (size_t i = 0; i < KIT_COUNT(block); i++)
        block[i] = kit_alloc(arena, 100000, kit_stream[1]);
    for (size_t i = 0; i < KIT_COUNT(block); i++) {
        if (i % 8 == 0)
            CHECK_RESULT(gpupool_record_stream(arena, block[i], kit_stream[2]), GPUPOOL_OK);
        CHECK_RESULT(gpupool_free(arena, block[i], kit_stream[1]), GPUPOOL_OK);
    }
    CHECK_RESULT(gpupool_record_stream(arena, live[0], kit_stream[2]), GPUPOOL_OK);
    CHECK_RESULT(gpupool_begin_capture(arena, kit_stream[3], scope), GPUPOOL_OK);
}

static void reset_the_device(void) {
    CHECK_EQ(cudaDeviceReset(), cudaSuccess);
    for (int i = 0; i < KIT_STREAMS; i++) kit_stream[i] = NULL;
}

static void it_was_reset(gpupool_result result) {
    CHECK_RESULT(result, GPUPOOL_E_CUDA);
    CHECK(strstr(gpupool_last_error(), "was reset") != NULL);
}

/* Mapped memory outlives the reset, but not the arena. No handle of before is used any more. */
static void reset_under(gpupool_source source) {
    void *live[8];
    gpupool_capture *scope = NULL;
    struct cudaPointerAttributes place;
    arena = kit_open(source);
    leave_traces(live, KIT_COUNT(live), &scope);
    cudaStream_t known = kit_stream[0];
    reset_the_device();
    CHECK_EQ(cudaFree(NULL), cudaSuccess); /* a new context */
    asking_calls(live[1], scope, GPUPOOL_E_CUDA);
    it_was_reset(gpupool_last_result());
    it_was_reset(gpupool_record_stream(arena, live[1], 0));
    it_was_reset(gpupool_wait_stream(arena, 0));
    it_was_reset(gpupool_begin_capture(arena, 0, &(gpupool_capture *){NULL}));
    CHECK_RESULT(gpupool_wait_stream(arena, known), GPUPOOL_E_CUDA);
    CHECK_RESULT(gpupool_retire_stream(arena, 0), GPUPOOL_E_CUDA);
    for (size_t i = 0; i < KIT_COUNT(live); i++) { /* no sense in it, and no harm */
        gpupool_result result = gpupool_free(arena, live[i], 0);
        CHECK(result == GPUPOOL_OK || result == GPUPOOL_E_CUDA);
    }
    gpupool_alloc(arena, 5000, 0);
    CHECK_EQ(cudaPointerGetAttributes(&place, live[0]), cudaSuccess);
    CHECK_EQ(place.type, source == GPUPOOL_SOURCE_MAPPED ? cudaMemoryTypeDevice
                                                         : cudaMemoryTypeUnregistered);
    CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_OK);
    CHECK_EQ(cudaPointerGetAttributes(&place, live[0]), cudaSuccess);
    CHECK_EQ(place.type, cudaMemoryTypeUnregistered);
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal; /* as a thread begins */
    CHECK_EQ(cudaThreadExchangeStreamCaptureMode(&mode), cudaSuccess);
    CHECK_EQ(mode, cudaStreamCaptureModeGlobal);
    arena = kit_open(source); /* and another one is as good as ever */
    void *block = kit_alloc(arena, MIB, 0);
    kit_mark(0, block, MIB, 1);
    CHECK_RESULT(gpupool_free(arena, block, 0), GPUPOOL_OK);
    kit_close(arena);
}
static void reset_under_mapped(void) { reset_under(GPUPOOL_SOURCE_MAPPED); }
static void reset_under_device(void) { reset_under(GPUPOOL_SOURCE_DEVICE); }
static void reset_under_managed(void) { reset_under(GPUPOOL_SOURCE_MANAGED); }
static void reset_under_pinned(void) { reset_under(GPUPOOL_SOURCE_PINNED); }

/* The default arena's place is free again once it is destroyed; or it is renewed: test_reset.c. */
static void reset_under_the_default_arena(void) {
    void *block = NULL;
    CHECK_EQ(gpupool_cudaMalloc(&block, MIB), cudaSuccess);
    gpupool_arena *before = gpupool_get_default_arena(0);
    reset_the_device();
    CHECK_RESULT(gpupool_arena_destroy(before), GPUPOOL_OK);
    CHECK_EQ(gpupool_cudaMalloc(&block, MIB), cudaSuccess);
    kit_mark(0, block, MIB, 3);
    CHECK_EQ(gpupool_cudaFree(block), cudaSuccess);
    kit_close(gpupool_get_default_arena(0));
}

#if CHECK_FAKE

/* Where CUDA does not take its memory back, the arena is there for the next try, and no more is
   done than what is left. */
static void reset_and_refused(void) {
    const char *calls[] = {"cuMemUnmap", "cuMemRelease", "cuMemAddressFree"};
    for (size_t i = 0; i < KIT_COUNT(calls); i++)
        for (int n = 1; n <= (i == 2 ? 1 : 3); n++) {
            check_case("%s, number %d", calls[i], n);
            arena = kit_open(GPUPOOL_SOURCE_MAPPED);
            void *live[3];
            for (int k = 0; k < 3; k++) live[k] = kit_alloc(arena, 8 * MIB, kit_stream[0]);
            CHECK_RESULT(gpupool_free(arena, live[1], kit_stream[0]), GPUPOOL_OK);
            reset_the_device();
            fake_fail_call(calls[i], n, 0, 0);
            CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_E_CUDA);
            CHECK(strstr(gpupool_last_error(), calls[i]) != NULL);
            CHECK_EQ(fake_fail_fired(), 1);
            fake_fail_clear();
            CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_OK);
            CHECK_EQ(fake_live_objects(), 0);
        }
}

/* A chunk that CUDA had not taken back before goes last, and is what it refuses. */
static void reset_with_a_stuck_chunk(void) {
    long others = 0;
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    void *block = kit_alloc(arena, 8 * MIB, kit_stream[0]);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
    fake_fail_call("cuMemRelease", 1, 1, 0);
    CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_E_CUDA);
    fake_fail_clear();
    CHECK(arena->chunks.stuck != NULL);
    for (const gpi_chunk *chunk = arena->chunks.first; chunk; chunk = chunk->next) others++;
    reset_the_device();
    fake_fail_call("cuMemRelease", others + 1, 0, 0);
    CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_E_CUDA);
    CHECK_EQ(arena->chunks.first == NULL || !arena->chunks.first->handle, 1);
    fake_fail_clear();
    CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_OK);
    CHECK_EQ(fake_live_objects(), 0);
}

/* No memory is counted any more where only the addresses stay; what sleeps had none to go. */
static void reset_and_all_gone_but_addresses(void) {
    for (int asleep = 0; asleep < 2; asleep++) {
        check_case("asleep %d", asleep);
        arena = kit_open(GPUPOOL_SOURCE_MAPPED);
        for (int i = 0; i < 3; i++) kit_alloc(arena, 8 * MIB, kit_stream[0]);
        if (asleep)
            CHECK_RESULT(gpupool_sleep(arena, GPUPOOL_ALL, GPUPOOL_DISCARD, NULL), GPUPOOL_OK);
        reset_the_device();
        fake_fail_call("cuMemAddressFree", 1, 0, 0);
        CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_E_CUDA);
        fake_fail_clear();
        CHECK_EQ(arena->chunks.units, 0);
        CHECK_EQ(arena->ledger.reserved.now, 0);
        CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_OK);
        CHECK_EQ(fake_live_objects(), 0);
    }
}

/* Where CUDA does not tell, nothing is touched: a chunk's address may be the program's by now. */
static void reset_and_not_told(void) {
    for (int mapped = 0; mapped < 2; mapped++) {
        check_case("mapped %d", mapped);
        arena = kit_open(mapped ? GPUPOOL_SOURCE_MAPPED : GPUPOOL_SOURCE_DEVICE);
        void *block = kit_alloc(arena, 8 * MIB, kit_stream[0]), *own = NULL;
        CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
        reset_the_device();
        CHECK_EQ(cudaMalloc(&own, 8 * MIB), cudaSuccess);
        fake_fail_call("cuCtxGetId", 1, 1, 0);
        CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_E_CUDA);
        CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_E_CUDA);
        CHECK(strstr(gpupool_last_error(), "cuCtxGetId") != NULL);
        fake_fail_clear();
        CHECK_EQ(cudaMemset(own, 1, 8 * MIB), cudaSuccess);
        CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_OK);
        CHECK_EQ(cudaFree(own), cudaSuccess);
        CHECK_EQ(fake_live_objects(), 0);
    }
}

/* ---- CUDA unloads: every call of it fails from some moment on ---- */

static void while_cuda_unloads(void) {
    void *live[8];
    gpupool_capture *scope = NULL;
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    leave_traces(live, KIT_COUNT(live), &scope);
    fake_shutdown(1);
    asking_calls(live[1], scope, GPUPOOL_E_CUDA);
    CHECK_RESULT(gpupool_retire_stream(arena, 0), GPUPOOL_OK); /* the handle goes */
    CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_E_CUDA);
    CHECK_EQ(gpupool_cudaMalloc(&(void *){NULL}, MIB) != cudaSuccess, 1);
    CHECK(gpupool_get_default_arena(0) == NULL);
    CHECK_RESULT(gpupool_last_result(), GPUPOOL_E_CUDA);
    for (size_t i = 1; i < KIT_COUNT(live); i++)
        CHECK_RESULT(gpupool_free(arena, live[i], kit_stream[0]), GPUPOOL_OK);
    gpupool_free(arena, live[0], kit_stream[0]); /* needs a fence: may be refused, and stays */
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    fake_shutdown(0);
    CHECK_RESULT(gpupool_release_capture(scope), GPUPOOL_OK);
    gpupool_free(arena, live[0], kit_stream[0]);
    kit_close(arena);
}

#endif

/* ---- a child ---- */

static pthread_mutex_t held = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int holding;

/* As a thread in the midst of a call, which the child has not: every lock there is. */
static void *hold_all_locks(void *unused) {
    (void)unused;
    gpi_host_mutex_lock(&arena->growing);
    gpi_stream *first = gpi_arena_lock_all(arena);
    gpi_host_lock(&gpi_process.lock);
    pthread_mutex_lock(&held);
    holding = 1;
    pthread_cond_broadcast(&changed);
    while (holding) pthread_cond_wait(&changed, &held);
    pthread_mutex_unlock(&held);
    gpi_host_unlock(&gpi_process.lock);
    gpi_host_unlock(&arena->lock);
    for (; first; first = first->next) gpi_host_unlock(&first->cache.lock);
    gpi_host_mutex_unlock(&arena->growing);
    return NULL;
}

static void child_calls(void *block, gpupool_capture *scope) {
    gpupool_stats stats;
    void *none = NULL;
    asking_calls(block, scope, GPUPOOL_E_FORKED);
    const call_result calls[] = {
        CALL(kit_why(gpupool_alloc(arena, 5000, 0))),
        CALL(gpupool_free(arena, block, 0)),
        CALL(gpupool_retire_stream(arena, 0)),
        CALL(size_result(block)),
        CALL(limit_result()),
        CALL(gpupool_get_stats(arena, &stats)),
        CALL(gpupool_reset_peaks(arena)),
        CALL(gpupool_check(arena)),
        CALL(gpupool_report(arena, stdout)),
        CALL(gpupool_write_svg(arena, stdout)),
        CALL(gpupool_walk_blocks(arena, NULL, NULL)),
        CALL(gpupool_arena_destroy(arena)),
        CALL(gpupool_get_default_arena(0) ? GPUPOOL_OK : gpupool_last_result()),
    };
    expect_all(calls, KIT_COUNT(calls), GPUPOOL_E_FORKED);
    CHECK_EQ(gpupool_cudaMalloc(&none, 1000), cudaErrorInitializationError);
    CHECK_EQ(gpupool_cudaMallocAsync(&none, 1000, 0), cudaErrorInitializationError);
    gpupool_arena *fresh;
    CHECK_RESULT(gpupool_arena_create(&fresh, NULL), GPUPOOL_E_FORKED);
#if CHECK_FAKE /* what the real driver does in a child is not for a test to find out */
    CHECK(gpupool_cudaFree(block) != cudaSuccess);
    CHECK(cudaStreamDestroy(kit_stream[0]) != cudaSuccess);
#endif
}

static void a_child_is_told(int locked) {
    pthread_t thread;
    gpupool_capture *scope = NULL;
    arena = gpupool_get_default_arena(0);
    void *block = kit_alloc(arena, 5000, kit_stream[0]);
    CHECK_RESULT(gpupool_begin_capture(arena, kit_stream[1], &scope), GPUPOOL_OK);
    if (locked) {
        CHECK_EQ(pthread_create(&thread, NULL, hold_all_locks, NULL), 0);
        pthread_mutex_lock(&held);
        while (!holding) pthread_cond_wait(&changed, &held);
        pthread_mutex_unlock(&held);
    }
    fflush(stdout);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        alarm(20);
        child_calls(block, scope);
        _exit(atomic_load(&check_bad) ? 1 : 0);
    }
    int status = -1;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK(WIFEXITED(status));
    CHECK_EQ(WEXITSTATUS(status), 0);
    if (locked) {
        pthread_mutex_lock(&held);
        holding = 0;
        pthread_cond_broadcast(&changed);
        pthread_mutex_unlock(&held);
        CHECK_EQ(pthread_join(thread, NULL), 0);
    }
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK); /* the parent goes on */
    CHECK_RESULT(gpupool_release_capture(scope), GPUPOOL_OK);
    kit_close(arena);
}
static void a_child_gets_a_named_result(void) { a_child_is_told(0); }
static void a_child_does_not_wait_for_locks(void) { a_child_is_told(1); }

/* ---- after main: these run when the tally is out, so they answer with the exit status ---- */

static gpupool_arena *leaked;
static void *leaked_block;

static void insist(int truth, const char *what) {
    if (truth) return;
    printf("after main: %s does not hold\n", what);
    fflush(stdout);
    _exit(EXIT_FAILURE);
}
#define INSIST(truth) insist(truth, #truth)

static int named(gpupool_result result) { return result == GPUPOOL_OK || result == GPUPOOL_E_CUDA; }

static void use_leaked_arena(void) {
    void *block;
    if (!leaked) return;
    block = gpupool_alloc(leaked, 5000, 0);
    INSIST(block || gpupool_last_result() == GPUPOOL_E_CUDA);
    if (block) INSIST(named(gpupool_free(leaked, block, 0)));
    block = gpupool_alloc(leaked, 64 * MIB, 0);
    INSIST(block || gpupool_last_result() == GPUPOOL_E_CUDA);
    if (block) INSIST(named(gpupool_free(leaked, block, 0)));
    INSIST(named(gpupool_trim(leaked, 0, NULL)));
    INSIST(gpupool_check(leaked) == GPUPOOL_OK);
    INSIST(gpupool_arena_destroy(leaked) == GPUPOOL_E_IN_USE || !named(gpupool_last_result()) ||
           gpupool_last_result() == GPUPOOL_E_CUDA);
}

__attribute__((destructor)) static void last_of_all(void) {
    use_leaked_arena();
    if (!leaked) return;
#if CHECK_FAKE
    fake_shutdown(1); /* CUDA is gone before the last destructors */
    use_leaked_arena();
    INSIST(gpupool_free(leaked, leaked_block, 0) == GPUPOOL_OK);
    INSIST(gpupool_arena_destroy(leaked) == GPUPOOL_E_CUDA);
#endif
}

int main(void) {
    atexit(use_leaked_arena);
    ARENA_TEST(reset_under_mapped);
    ARENA_TEST(reset_under_device);
    ARENA_TEST(reset_under_managed);
    ARENA_TEST(reset_under_pinned);
    ARENA_TEST(reset_under_the_default_arena);
    FAKE_TEST(reset_and_refused);
    FAKE_TEST(reset_with_a_stuck_chunk);
    FAKE_TEST(reset_and_all_gone_but_addresses);
    FAKE_TEST(reset_and_not_told);
    FAKE_TEST(while_cuda_unloads);
    ARENA_TEST(a_child_gets_a_named_result);
    ARENA_TEST(a_child_does_not_wait_for_locks);
    leaked = kit_open(GPUPOOL_SOURCE_AUTO);
    leaked_block = kit_alloc(leaked, 1000, 0);
    return check_finish();
}
