/* GPUPOOL_STREAM_CHECK: what becomes of a call when its stream is retired, or made known anew,
   while CUDA is asked which one it is; and which streams are not asked. */
#include <stdlib.h>

static int no_memory;
static inline void *give_memory(size_t bytes) { return no_memory ? NULL : malloc(bytes); }

#define GPUPOOL_MALLOC(bytes) give_memory(bytes)
#define GPUPOOL_FREE(at) free(at)
#define GPUPOOL_STREAM_CHECK 1
#define GPUPOOL_STREAM_HOOK 0
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "arena_kit.h"

#include <pthread.h>
#include <sched.h>

#if CHECK_FAKE
#define BYTES ((size_t)4096)

static gpupool_arena *arena;
static void *spare;

static void put(void *block, cudaStream_t stream) {
    CHECK_RESULT(gpupool_free(arena, block, stream), GPUPOOL_OK);
}

static void forget(void) { /* streams of which nothing is left */
    CHECK_RESULT(gpupool_trim(arena, SIZE_MAX, NULL), GPUPOOL_OK);
}

static void default_streams_are_not_asked(void) {
    arena = kit_open(GPUPOOL_SOURCE_AUTO);
    put(kit_alloc(arena, BYTES, 0), 0);
    put(kit_alloc(arena, BYTES, cudaStreamPerThread), cudaStreamPerThread);
    CHECK_EQ(fake_calls("cuStreamGetId"), 0);
    put(kit_alloc(arena, BYTES, kit_stream[0]), kit_stream[0]);
    CHECK(fake_calls("cuStreamGetId") > 0);
    kit_close(arena);
}

/* Nor does a stream lose its capture for its id: it is taken for the one that was known. */
static void captures_are_not_asked(void) {
    cudaGraph_t graph = NULL;
    arena = kit_open(GPUPOOL_SOURCE_AUTO);
    put(kit_alloc(arena, BYTES, kit_stream[0]), kit_stream[0]);
    fake_reset_counters();
    CHECK_EQ(cudaStreamBeginCapture(kit_stream[0], cudaStreamCaptureModeGlobal), cudaSuccess);
    put(kit_alloc(arena, BYTES, kit_stream[0]), kit_stream[0]);
    CHECK_EQ(cudaStreamEndCapture(kit_stream[0], &graph), cudaSuccess);
    CHECK_EQ(fake_calls("cuStreamGetId"), 0);
    CHECK_EQ(arena->clocks.stream_count, 1);
    CHECK_EQ(cudaGraphDestroy(graph), cudaSuccess);
    kit_close(arena);
}

/* In a scope the handle is the scope's, whichever stream it is. */
static void scopes_are_not_asked(void) {
    gpupool_capture *capture = NULL;
    arena = kit_open(GPUPOOL_SOURCE_AUTO);
    CHECK_RESULT(gpupool_begin_capture(arena, kit_stream[0], &capture), GPUPOOL_OK);
    fake_reset_counters();
    put(kit_alloc(arena, BYTES, kit_stream[0]), kit_stream[0]);
    CHECK_EQ(fake_calls("cuStreamGetId"), 0);
    CHECK_RESULT(gpupool_release_capture(capture), GPUPOOL_OK);
    kit_close(arena);
}

static const char *const questions[] = {"cuStreamIsCapturing", "cuStreamGetId"};

/* A question that fails once is asked again, and leaves no error. */
static void questions_that_fail(void) {
    arena = kit_open(GPUPOOL_SOURCE_AUTO);
    put(kit_alloc(arena, BYTES, kit_stream[0]), kit_stream[0]);
    for (size_t i = 0; i < KIT_COUNT(questions); i++) {
        fake_fail_call(questions[i], 1, 0, 0);
        put(kit_alloc(arena, BYTES, kit_stream[0]), kit_stream[0]);
        CHECK_EQ(fake_fail_fired(), 1);
        fake_fail_clear();
        CHECK_EQ(cudaGetLastError(), cudaSuccess);
    }
    CHECK_EQ(arena->clocks.stream_count, 1);
    kit_close(arena);
}

/* Without an answer a call fails, and changes nothing. */
static void questions_that_go_on_failing(void) {
    arena = kit_open(GPUPOOL_SOURCE_AUTO);
    void *block = kit_alloc(arena, BYTES, kit_stream[0]);
    for (size_t i = 0; i < KIT_COUNT(questions); i++) {
        fake_fail_call(questions[i], 1, 1, 0);
        CHECK(gpupool_alloc(arena, BYTES, kit_stream[0]) == NULL);
        CHECK_RESULT(gpupool_last_result(), GPUPOOL_E_CUDA);
        CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_E_CUDA);
        CHECK(strstr(gpupool_last_error(), "CUDA_ERROR_UNKNOWN") != NULL);
        fake_fail_call(questions[i], 1, 1, cudaErrorMemoryAllocation); /* not the device's */
        CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_E_CUDA);
        CHECK_EQ(gpi_thread.cuda_error, cudaErrorMemoryAllocation);
        /* nor is it known whether the device was reset */
        fake_fail_call("cuCtxGetId", 1, 0, 0);
        CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_E_CUDA);
        CHECK(strstr(gpupool_last_error(), "cuCtxGetId") != NULL);
        fake_fail_clear();
        CHECK_EQ(cudaGetLastError(), cudaSuccess);
        CHECK_EQ(kit_stats(arena).blocks.now, 1);
    }
    put(block, kit_stream[0]);
    kit_close(arena);
}

/* Nor is there one once the device was reset: which is what the call tells. */
static void no_answer_after_a_reset(void) {
    arena = kit_open(GPUPOOL_SOURCE_AUTO);
    void *block = kit_alloc(arena, BYTES, kit_stream[0]);
    fake_quiet(1);
    CHECK_EQ(cudaDeviceReset(), cudaSuccess);
    for (int i = 0; i < 2; i++) {
        if (i == 0) CHECK(gpupool_alloc(arena, BYTES, kit_stream[0]) == NULL);
        else CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_E_CUDA);
        CHECK_RESULT(gpupool_last_result(), GPUPOOL_E_CUDA);
        CHECK(strstr(gpupool_last_error(), "was reset") != NULL);
    }
    CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_OK);
    fake_clear_failures();
    fake_quiet(0);
    for (int i = 0; i < KIT_STREAMS; i++) kit_stream[i] = NULL;
}

/* A stream that was forgotten in the middle of a free is known by its id again. */
static void known_anew_by_its_id(void) {
    arena = kit_open(GPUPOOL_SOURCE_AUTO);
    void *block = kit_alloc(arena, BYTES, kit_stream[0]);
    gpi_caller call = gpi_arena_call(kit_stream[1]);
    CHECK_RESULT(gpi_block_free_slow(arena, block, &call), GPUPOOL_OK);
    gpi_stream *known = gpi_clock_find(&arena->clocks, gpi_clock_key(kit_stream[1]));
    CHECK(known && gpi_clock_is_same(&arena->clocks, known, kit_stream[1]));
    kit_close(arena);
}

static void ask_in_vain(void *unused) {
    (void)unused;
    fake_fail_call("cuStreamGetId", 1, 1, 0);
}

/* A block that could not be zeroed goes back all the same. */
static void no_answer_after_a_failure(void) {
    arena = kit_open(GPUPOOL_SOURCE_AUTO);
    fake_fail_call("cuMemsetD8Async", 1, 0, 0);
    fake_before_call("cuMemsetD8Async", 1, ask_in_vain, NULL);
    CHECK(gpupool_zalloc(arena, BYTES, kit_stream[0]) == NULL);
    CHECK_RESULT(gpupool_last_result(), GPUPOOL_E_CUDA);
    CHECK(strstr(gpupool_last_error(), "cuMemsetD8Async") != NULL);
    fake_fail_clear();
    CHECK_EQ(kit_stats(arena).blocks.now, 0);
    kit_close(arena);
}

/* ---- between the question and the answer ---- */

static void retire(void *unused) {
    (void)unused;
    CHECK_RESULT(gpupool_retire_stream(arena, kit_stream[0]), GPUPOOL_OK);
}

static void cache_something(void *unused) {
    (void)unused;
    put(spare, kit_stream[0]);
}

static void between(void (*what)(void *), int at_free) {
    void *block;
    arena = kit_open(GPUPOOL_SOURCE_AUTO);
    block = kit_alloc(arena, BYTES, kit_stream[0]);
    spare = kit_alloc(arena, BYTES, kit_stream[0]);
    gpi_stream *known = gpi_clock_find(&arena->clocks, gpi_clock_key(kit_stream[0]));
    known->cache.rest = 9; /* it keeps nothing for now */
    if (what != cache_something) put(spare, kit_stream[0]);
    else known->cache.rest = 0;
    CHECK_EQ(known->cache.used, 0);
    fake_before_call("cuStreamGetId", 1, what, NULL);
    if (at_free) {
        if (what == cache_something) known->cache.rest = 0;
        put(block, kit_stream[0]);
    } else {
        void *other = kit_alloc(arena, BYTES, kit_stream[0]);
        put(other, kit_stream[0]);
        put(block, kit_stream[0]);
    }
    CHECK_EQ(kit_stats(arena).blocks.now, 0);
    kit_close(arena);
}

static void retired_during_a_free(void) { between(retire, 1); }
static void retired_during_an_alloc(void) { between(retire, 0); }
static void filled_during_a_free(void) { between(cache_something, 1); }
static void filled_during_an_alloc(void) { between(cache_something, 0); }

/* ---- the handle of a destroyed stream ---- */

static cudaStream_t again;

static void renew(void) {
    cudaStream_t old = again;
    CHECK_EQ(cudaStreamDestroy(old), cudaSuccess);
    CHECK_EQ(cudaStreamCreateWithFlags(&again, cudaStreamNonBlocking), cudaSuccess);
    CHECK(again == old);
}

static void use_it(void *unused) {
    (void)unused;
    spare = kit_alloc(arena, BYTES, again);
}

static void made_known_once(void) {
    arena = kit_open(GPUPOOL_SOURCE_AUTO);
    CHECK_EQ(cudaStreamCreateWithFlags(&again, cudaStreamNonBlocking), cudaSuccess);
    put(kit_alloc(arena, BYTES, again), again);
    renew();
    fake_before_call("cuStreamGetId", 2, use_it, NULL); /* another thread does so meanwhile */
    void *block = kit_alloc(arena, BYTES, again);
    CHECK_EQ(arena->clocks.stream_count, 2); /* what the old one freed, and the new one */
    put(block, again);
    put(spare, again);
    CHECK_EQ(cudaStreamDestroy(again), cudaSuccess);
    kit_close(arena);
}

/* What a destroyed stream's work may still be at is not the new one's with its handle, also where
   CUDA fails to tell that it is a new one; whether it lies in the cache or in a list. */
static void not_known_to_be_the_same(void) {
    for (int cached = 0; cached < 2; cached++) {
        check_case("cached %d", cached);
        arena = kit_open(GPUPOOL_SOURCE_AUTO);
        CHECK_EQ(cudaStreamCreateWithFlags(&again, cudaStreamNonBlocking), cudaSuccess);
        gpi_stream *known;
        void *old = kit_alloc(arena, BYTES, again), *block;
        known = gpi_clock_find(&arena->clocks, gpi_clock_key(again));
        if (!cached) known->cache.rest = 9;
        kit_mark(again, old, BYTES, 1);
        put(old, again);
        CHECK_EQ(known->cache.used, (unsigned)cached);
        renew();
        fake_fail_call("cuStreamGetId", 1, 0, 0);
        block = kit_alloc(arena, BYTES, again);
        CHECK_EQ(fake_fail_fired(), 1);
        fake_fail_clear();
        CHECK_EQ(known->cache.used, 0); /* what it holds may come to others, by a mark */
        /* all of the chunk; a cache's block takes no neighbours */
        CHECK_EQ(arena->ledger.pending.now, cached ? BYTES : 2 * MIB);
        CHECK(block != old);
        kit_mark(again, block, BYTES, 2);
        put(block, again);
        CHECK_EQ(cudaStreamDestroy(again), cudaSuccess);
        kit_close(arena);
    }
}

static void no_memory_for_a_new_stream(void) {
    arena = kit_open(GPUPOOL_SOURCE_AUTO);
    CHECK_EQ(cudaStreamCreateWithFlags(&again, cudaStreamNonBlocking), cudaSuccess);
    put(kit_alloc(arena, BYTES, again), again);
    renew();
    no_memory = 1;
    CHECK(gpupool_alloc(arena, BYTES, again) == NULL);
    no_memory = 0;
    CHECK_RESULT(gpupool_last_result(), GPUPOOL_E_HOST_MEMORY);
    CHECK_EQ(arena->ledger.pending.now, BYTES); /* what the old one had cached */
    put(kit_alloc(arena, BYTES, again), again);
    CHECK_EQ(cudaStreamDestroy(again), cudaSuccess);
    kit_close(arena);
}

static gpupool_capture *scope;

static void open_scope(void *unused) {
    (void)unused;
    CHECK_RESULT(gpupool_begin_capture(arena, again, &scope), GPUPOOL_OK);
}

/* While a stream is made known, for the first time or under the handle of another, it gets a scope:
   which has the block, and goes on. */
static void a_scope_opened_meanwhile(void) {
    for (int renewed = 0; renewed < 2; renewed++) {
        check_case("renewed %d", renewed);
        arena = kit_open(GPUPOOL_SOURCE_AUTO);
        CHECK_EQ(cudaStreamCreateWithFlags(&again, cudaStreamNonBlocking), cudaSuccess);
        if (renewed) {
            put(kit_alloc(arena, BYTES, again), again);
            renew();
        }
        fake_before_call("cuStreamGetId", 1 + renewed, open_scope, NULL);
        kit_alloc(arena, BYTES, again);
        CHECK(scope->stream->key != 0);
        CHECK_RESULT(gpupool_release_capture(scope), GPUPOOL_OK);
        CHECK_EQ(gpi_process.scopes, 0);
        CHECK_EQ(kit_stats(arena).blocks.now, 0);
        CHECK_EQ(cudaStreamDestroy(again), cudaSuccess);
        kit_close(arena);
    }
}

static pthread_t user;

static void *use_it_beside(void *unused) {
    use_it(unused);
    return NULL;
}

/* Another thread has found the handle to be a new stream's, and waits for the arena. */
static void know_it_beside(void) {
    gpi_stream *known = gpi_clock_find(&arena->clocks, gpi_clock_key(again));
    fake_reset_counters();
    CHECK_EQ(pthread_create(&user, NULL, use_it_beside, NULL), 0);
    while (fake_calls("cuStreamGetId") < 2 ||
           !__atomic_load_n(&known->cache.lock.held, __ATOMIC_ACQUIRE))
        sched_yield();
}

static void open_scope_beside(void) {
    gpi_host_lock(&arena->lock);
    know_it_beside();
    gpi_host_unlock(&arena->lock);
    CHECK_RESULT(gpupool_begin_capture(arena, again, &scope), GPUPOOL_OK);
}

/* While a scope sets aside the stream of a renewed handle, that is made known anew: it too. */
static void known_anew_under_a_scope(void) {
    arena = kit_open(GPUPOOL_SOURCE_AUTO);
    CHECK_EQ(cudaStreamCreateWithFlags(&again, cudaStreamNonBlocking), cudaSuccess);
    put(kit_alloc(arena, BYTES, again), again);
    renew();
    open_scope_beside();
    CHECK_EQ(pthread_join(user, NULL), 0);
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    CHECK(gpi_clock_find(&arena->clocks, gpi_clock_key(again)) == scope->stream);
    CHECK_RESULT(gpupool_release_capture(scope), GPUPOOL_OK);
    if (kit_stats(arena).blocks.now) put(spare, again); /* it was had before the scope */
    CHECK_EQ(kit_stats(arena).blocks.now, 0);
    forget();
    CHECK_EQ(arena->clocks.stream_count, 0); /* nor is the old one left */
    CHECK_EQ(cudaStreamDestroy(again), cudaSuccess);
    kit_close(arena);
}

/* A stream is forgotten on a thread's way to memory, and known anew; while that thread waits for
   the device, another one's call finds it to be the same stream. */
static void use_it_and_trim(void *unused) {
    (void)unused;
    put(spare, kit_stream[0]);
    spare = NULL;
    forget();
}

static void forget_it(void *unused) {
    (void)unused;
    forget();
    CHECK_EQ(arena->clocks.stream_count, 1);
    fake_before_call("cuMemFree", 1, use_it_and_trim, NULL);
}

static void known_anew_on_the_way(void) {
    gpupool_arena *scoped = kit_open(GPUPOOL_SOURCE_AUTO);
    CHECK_RESULT(gpupool_begin_capture(scoped, kit_stream[2], &scope), GPUPOOL_OK);
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 2 * MIB);
    void *rest = kit_alloc(arena, MIB, kit_stream[1]);
    void *large = kit_alloc(arena, MIB - BYTES, kit_stream[1]);
    spare = kit_alloc(arena, BYTES, kit_stream[0]);
    put(large, kit_stream[1]); /* too little for a mark, and the scope forbids one over all */
    fake_before_call("cuCtxPushCurrent", 1, forget_it, NULL);
    large = kit_alloc(arena, MIB - BYTES, kit_stream[0]);
    CHECK(spare == NULL);
    put(large, kit_stream[0]);
    put(rest, kit_stream[1]);
    CHECK_RESULT(gpupool_release_capture(scope), GPUPOOL_OK);
    kit_close(arena);
    kit_close(scoped);
}

/* A stream that was known while it captured, and so without an id, is made known anew by its next
   call, and what it was known as is forgotten: but not while a thread looks for memory for it. */
static void use_it_after_its_capture(void *unused) {
    cudaGraph_t graph = NULL;
    (void)unused;
    CHECK_EQ(cudaStreamEndCapture(kit_stream[0], &graph), cudaSuccess);
    CHECK_EQ(cudaGraphDestroy(graph), cudaSuccess);
    put(kit_alloc(arena, BYTES, kit_stream[0]), kit_stream[0]);
}

static void known_anew_without_its_capture(void) {
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    void *hole = kit_alloc(arena, MIB, kit_stream[1]);
    void *rest = kit_alloc(arena, BYTES, kit_stream[1]);
    put(hole, kit_stream[1]);
    CHECK_RESULT(gpupool_trim(arena, SIZE_MAX, NULL), GPUPOOL_OK);
    CHECK_EQ(cudaStreamBeginCapture(kit_stream[0], cudaStreamCaptureModeRelaxed), cudaSuccess);
    fake_before_call("cuMemCreate", 1, use_it_after_its_capture, NULL);
    fake_fail_call("cuMemCreate", 1, 1, 0);
    CHECK(gpupool_alloc(arena, 64 * MIB, kit_stream[0]) == NULL);
    fake_fail_clear();
    CHECK_RESULT(gpupool_last_result(), GPUPOOL_E_OUT_OF_MEMORY);
    forget();
    CHECK_EQ(arena->clocks.stream_count, 0); /* what it was known as is forgotten now */
    put(rest, kit_stream[1]);
    kit_close(arena);
}

/* What the old stream freed gets no mark from the new one, which has its handle. */
static void no_mark_from_another_stream(void) {
    arena = kit_open(GPUPOOL_SOURCE_AUTO);
    CHECK_EQ(cudaStreamCreateWithFlags(&again, cudaStreamNonBlocking), cudaSuccess);
    put(kit_alloc(arena, 4 << 20, again), again);
    renew();
    fake_reset_counters();
    CHECK_RESULT(gpupool_retire_stream(arena, again), GPUPOOL_OK);
    CHECK_EQ(fake_calls("cuEventRecord"), 0);
    CHECK(kit_stats(arena).pending.now > 0);
    CHECK_EQ(cudaStreamDestroy(again), cudaSuccess);
    kit_close(arena);
}
#endif

int main(void) {
    FAKE_TEST(default_streams_are_not_asked);
    FAKE_TEST(captures_are_not_asked);
    FAKE_TEST(scopes_are_not_asked);
    FAKE_TEST(questions_that_fail);
    FAKE_TEST(questions_that_go_on_failing);
    FAKE_TEST(no_answer_after_a_failure);
    FAKE_TEST(known_anew_by_its_id);
    FAKE_TEST(no_answer_after_a_reset);
    FAKE_TEST(retired_during_a_free);
    FAKE_TEST(retired_during_an_alloc);
    FAKE_TEST(filled_during_a_free);
    FAKE_TEST(filled_during_an_alloc);
    FAKE_TEST(made_known_once);
    FAKE_TEST(not_known_to_be_the_same);
    FAKE_TEST(no_memory_for_a_new_stream);
    FAKE_TEST(a_scope_opened_meanwhile);
    FAKE_TEST(known_anew_under_a_scope);
    FAKE_TEST(known_anew_on_the_way);
    FAKE_TEST(known_anew_without_its_capture);
    FAKE_TEST(no_mark_from_another_stream);
    return check_finish();
}
