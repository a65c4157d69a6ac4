/* What another thread does to a stream, or to its cache, while this one waits for its lock. The
   other thread's part is done where this one would give way, so that they always meet. */
// build: plain -DGPUPOOL_STREAM_HOOK=0 -DGPUPOOL_STREAM_CHECK=1
#define _GNU_SOURCE
#include <sched.h>

static int give_way(void);
#define sched_yield give_way
#ifndef GPUPOOL_STREAM_CHECK
#define GPUPOOL_STREAM_HOOK 0 /* the GPU's tests have no flags of their own */
#define GPUPOOL_STREAM_CHECK 1
#endif
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#undef sched_yield
#include "arena_kit.h"

static void (*meanwhile)(void);

static int give_way(void) {
    void (*run)(void) = meanwhile;
    meanwhile = NULL;
    if (run) run();
    return run ? 0 : sched_yield();
}

#if CHECK_FAKE
static gpupool_arena *arena;
static gpi_stream *contended; /* its lock is the other thread's */

static void put(void *block, cudaStream_t stream) {
    CHECK_RESULT(gpupool_free(arena, block, stream), GPUPOOL_OK);
}

static void enter_first(void *stream) {
    contended = gpi_clock_find(&arena->clocks, gpi_clock_key((cudaStream_t)stream));
    if (!CHECK(contended != NULL)) return;
    gpi_host_lock(&contended->cache.lock);
}

/* As a thread does that is short of memory, or that trims. */
static void empty_its_cache(void) {
    gpi_host_lock(&arena->lock);
    gpi_arena_drain(arena, contended);
    gpi_arena_unlock(arena);
    gpi_host_unlock(&contended->cache.lock);
}

static void a_block_taken_out_of_its_cache(void) {
    arena = kit_open(GPUPOOL_SOURCE_DEVICE);
    put(kit_alloc(arena, 700, kit_stream[0]), kit_stream[0]);
    void *block = kit_alloc(arena, 700, kit_stream[0]); /* out of the cache, which knows it */
    enter_first(kit_stream[0]);
    meanwhile = empty_its_cache;
    CHECK_EQ(kit_size(arena, block), 700);
    CHECK(meanwhile == NULL);
    put(block, kit_stream[0]);
    enter_first(kit_stream[0]);
    meanwhile = empty_its_cache;
    CHECK_EQ(kit_size(arena, block), 0); /* just freed */
    CHECK_RESULT(gpupool_last_result(), GPUPOOL_E_DOUBLE_FREE);
    kit_close(arena);
}

/* Two threads' first calls on a new stream with an old one's handle: the other notes that first. */
static void note_the_new_stream(void) {
    gpi_host_lock(&arena->lock);
    gpi_arena_drain(arena, contended);
    gpi_clock_unbind(&arena->clocks, contended);
    gpi_host_unlock(&arena->lock);
    gpi_host_unlock(&contended->cache.lock);
}

static void a_stream_renamed_by_another(void) {
    cudaStream_t brief, next;
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 2 * MIB);
    CHECK_EQ(cudaStreamCreateWithFlags(&brief, cudaStreamNonBlocking), cudaSuccess);
    void *block = kit_alloc(arena, MIB, brief), *small = kit_alloc(arena, 700, brief);
    fake_mode(FAKE_STEPPED);
    kit_mark(brief, block, MIB, 1);
    put(block, brief);
    put(small, brief);
    CHECK_EQ(cudaStreamDestroy(brief), cudaSuccess);
    CHECK_EQ(cudaStreamCreateWithFlags(&next, cudaStreamNonBlocking), cudaSuccess);
    CHECK(next == brief);
    fake_before_call("cuStreamGetId", 2, enter_first, next);
    meanwhile = note_the_new_stream;
    block = kit_alloc(arena, MIB, next);
    CHECK(meanwhile == NULL);
    kit_mark(next, block, MIB, 2);
    put(block, next);
    fake_run_all();
    CHECK_EQ(fake_failures(), 0);
    kit_close(arena);
    CHECK_EQ(cudaStreamDestroy(next), cudaSuccess);
}

/* A stream's first calls while a check waits for another's lock: the check takes the new one's,
   too, and counts the block that only its cache knows to be out. */
static void *newest;
static void use_a_new_stream(void) {
    put(kit_alloc(arena, 700, kit_stream[1]), kit_stream[1]);
    newest = kit_alloc(arena, 700, kit_stream[1]);
    CHECK_EQ(arena->ledger.requested.now, 700); /* the other block's */
    gpi_host_unlock(&contended->cache.lock);
}

static void a_stream_added_during_a_check(void) {
    arena = kit_open(GPUPOOL_SOURCE_DEVICE);
    void *block = kit_alloc(arena, 700, kit_stream[0]);
    enter_first(kit_stream[0]);
    meanwhile = use_a_new_stream;
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    CHECK(meanwhile == NULL);
    CHECK_EQ(arena->ledger.requested.now, 1400);
    put(newest, kit_stream[1]);
    put(block, kit_stream[0]);
    kit_close(arena);
}

/* A call of the stream has begun when a trim comes to forget it, since nothing is left of it: its
   struct stays, and is forgotten by the next trim. */
static void a_stream_called_during_a_trim(void) {
    arena = kit_open(GPUPOOL_SOURCE_DEVICE);
    put(kit_alloc(arena, 700, kit_stream[0]), kit_stream[0]);
    contended = NULL;
    fake_before_call("cuEventQuery", 1, enter_first, kit_stream[0]);
    CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
    if (!CHECK(contended != NULL)) return;
    CHECK_EQ(kit_reserved(arena), 0);
    CHECK(gpi_clock_find(&arena->clocks, gpi_clock_key(kit_stream[0])) == contended);
    gpi_host_unlock(&contended->cache.lock);
    put(kit_alloc(arena, 700, kit_stream[0]), kit_stream[0]);
    CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
    CHECK_EQ(contended->handle, 0);
    kit_close(arena);
}

/* A block of another stream goes into that one's cache while the release of a scope waits for the
   device, with the arena open. */
static void *elsewhere;
static void free_elsewhere(void *done) {
    put(elsewhere, kit_stream[1]);
    *(int *)done = 1;
}

static void a_block_freed_while_a_scope_is_released(void) {
    gpupool_capture *scope = NULL;
    int done = 0;
    arena = kit_open(GPUPOOL_SOURCE_DEVICE);
    elsewhere = kit_alloc(arena, 700, kit_stream[1]);
    CHECK_RESULT(gpupool_begin_capture(arena, kit_stream[0], &scope), GPUPOOL_OK);
    kit_alloc(arena, 700, kit_stream[0]); /* the graph's, until the scope is released */
    fake_before_call("cuMemAlloc", 1, free_elsewhere, &done);
    CHECK_RESULT(gpupool_release_capture(scope), GPUPOOL_OK);
    CHECK_EQ(done, 1);
    CHECK_EQ(kit_stats(arena).blocks.now, 0);
    CHECK_EQ(kit_size(arena, elsewhere), 0);
    kit_close(arena);
}
#endif

int main(void) {
    FAKE_TEST(a_block_taken_out_of_its_cache);
    FAKE_TEST(a_stream_renamed_by_another);
    FAKE_TEST(a_stream_added_during_a_check);
    FAKE_TEST(a_stream_called_during_a_trim);
    FAKE_TEST(a_block_freed_while_a_scope_is_released);
    return check_finish();
}
