/* Two threads, of which one ends what the other is at: a block, an arena, a scope or a stream. In
   every order that two interruptions can make, or one in `make test`. */
// build: plain -O1 -DSCHEDULE_CUTS=1
#if !defined(GPUPOOL_TEST_GPU)
#include "schedule_kit.h"
#endif
#include "cudas_own.h"

#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "check.h"

#if CHECK_FAKE
#include "schedule_scene.h"

#define ALL (2 * MIB)

static void open_with(size_t limit) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_DEVICE);
    config.limit_bytes = limit;
    scene_open(&config);
}

/* ---- a block is freed while another thread asks what is around an address in it ---- */

static void open_asked(size_t bytes) {
    open_with(64 * MIB);
    kept_bytes = bytes;
    put(get(bytes, 0, 0), bytes, 0, 0); /* a small one comes from the cache then, and goes there */
    kept[0] = get(bytes, 0, 0);
}
static void open_large(void) { open_asked(ALL); }
static void open_small(void) { open_asked(512); }
static void asks_inside(void) {
    gpupool_block found;
    char *at = (char *)kept[0];
    gpupool_result result = gpupool_get_block(arena, at + 1, &found);
    CHECK(result == GPUPOOL_E_INSIDE || result == GPUPOOL_E_DOUBLE_FREE);
    CHECK(found.memory == (result == GPUPOOL_E_INSIDE ? at : NULL));
    CHECK_EQ(found.requested_bytes, result == GPUPOOL_E_INSIDE ? kept_bytes : 0);
}
static void frees(void) { put(kept[0], kept_bytes, 0, 0); }
static void close_freed(void) {
    kept[0] = NULL;
    close_all();
}

/* ---- an arena goes while another thread asks about an address that was its memory ---- */

static void *stale;
static void free_stale(void) {
    kept_bytes = 512;
    stale = get(512, 0, 0);
    put(stale, 512, 0, 0);
    fake_run_all();
}
static void open_unused(void) {
    open_with(64 * MIB);
    free_stale();
}
static void asks_whose(void) {
    gpupool_block found;
    gpupool_result result = gpupool_get_block(NULL, stale, &found);
    CHECK(result == GPUPOOL_E_DOUBLE_FREE || result == GPUPOOL_E_NOT_OURS);
}
static void frees_it_again(void) {
    CHECK_EQ(gpupool_cudaFree(stale), cudaErrorInvalidValue);
}
static void frees_it_again_in_order(void) {
    CHECK_EQ(gpupool_cudaFreeAsync(stale, kit_stream[0]), cudaErrorInvalidValue);
}
static void destroys(void) { CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_OK); }
static void close_gone(void) { CHECK(gpi_process.arenas == NULL); }

static void open_default(void) {
    fake_quiet(1); /* where the arena has gone first, the address is none of CUDA's either */
    memset(kept, 0, sizeof kept);
    arena = gpupool_get_default_arena(0);
    schedule_driver(&arena->chunks.driver);
    free_stale();
}
static void close_default(void) {
    close_gone();
    cudaGetLastError();
    fake_clear_failures();
    fake_quiet(0);
}

/* ---- a stream with a scope ends while another thread ends, or releases, that scope ---- */

static gpupool_capture *scope[2];

static void open_known(void) {
    memset(scope, 0, sizeof scope);
    open_with(64 * MIB);
    put(get(512, 0, 0), 512, 0, 0);
}
static void begins(void) {
    CHECK_RESULT(gpupool_begin_capture(arena, kit_stream[0], &scope[0]), GPUPOOL_OK);
}
static void ends(void) { CHECK_RESULT(gpupool_end_capture(scope[0]), GPUPOOL_OK); }
static void releases(void) { CHECK_RESULT(gpupool_release_capture(scope[0]), GPUPOOL_OK); }
static void retires(void) {
    CHECK_RESULT(gpupool_retire_stream(arena, kit_stream[0]), GPUPOOL_OK);
}
static void open_scoped(void) {
    open_known();
    begins();
}
static gpi_stream *known(void) {
    return gpi_clock_find(&arena->clocks, gpi_clock_key(kit_stream[0]));
}
static void close_released(void) {
    CHECK_EQ(gpi_process.scopes, 0);
    CHECK(known() == NULL); /* the key may be another stream's by now */
    trims();
    CHECK_EQ(arena->clocks.stream_count, 0);
    close_all();
}
static void close_ended(void) {
    CHECK_EQ(gpi_process.scopes, 0);
    releases();
    close_released();
}

/* ---- two threads begin a scope on one stream: one is refused, or comes after the end ---- */

static void begins_once_more(void) {
    gpupool_result result = gpupool_begin_capture(arena, kit_stream[0], &scope[1]);
    if (result == GPUPOOL_OK) CHECK_RESULT(gpupool_end_capture(scope[1]), GPUPOOL_OK);
    else CHECK_RESULT(result, GPUPOOL_E_ARGUMENT);
}
static void begins_if_it_may(void) {
    if (gpupool_begin_capture(arena, kit_stream[0], &scope[0]) != GPUPOOL_OK)
        CHECK_RESULT(gpupool_last_result(), GPUPOOL_E_ARGUMENT);
}
static void close_begun(void) {
    gpi_stream *outer = scope[0] ? scope[0]->outer : NULL;
    CHECK_RESULT(gpupool_wait_all(arena), GPUPOOL_OK);
    trims(); /* it would go, if it were not kept for the end of the scope */
    CHECK(!scope[0] || (outer && outer->handle == gpi_clock_key(kit_stream[0])));
    for (int i = 0; i < 2; i++)
        if (scope[i]) CHECK_RESULT(gpupool_release_capture(scope[i]), GPUPOOL_OK);
    CHECK(!outer || known() == outer);
    close_all();
}

/* ---- a stream becomes known while it gets its first scope ---- */

static void open_new(void) {
    memset(scope, 0, sizeof scope);
    open_with(64 * MIB);
}
static void uses_first(void) { put(get(512, 0, 1), 512, 0, 1); }
static void close_new(void) {
    CHECK(known() == scope[0]->stream);
    releases();
    close_all();
}

/* ---- whoever has the arena's lock sees a scope that has its stream's key counted ---- */

static void counts(void) {
    gpi_host_lock(&arena->lock);
    CHECK_EQ(known()->capture != NULL, gpi_process.scopes);
    gpi_host_unlock(&arena->lock);
}

/* ---- a scope is released while a request in it waits for another stream's work ---- */

static void *got;
static void open_waited_for(void) {
    open_with(ALL);
    put(get(ALL, 1, 0), ALL, 1, 0);
    begins();
}
static void takes(void) { got = kit_alloc(arena, ALL, kit_stream[0]); }
static void close_taken(void) { /* the block was the graph's, and is free, or is an ordinary one */
    gpupool_block found;
    if (gpupool_get_block(arena, got, &found) == GPUPOOL_OK)
        CHECK_RESULT(gpupool_free(arena, got, kit_stream[0]), GPUPOOL_OK);
    CHECK_RESULT(gpupool_wait_all(arena), GPUPOOL_OK);
    CHECK_EQ(kit_stats(arena).pending.now, 0);
    trims();
    CHECK_EQ(arena->clocks.stream_count, 0);
    close_all();
}

static const schedule_case cases[] = {
    {"asked about while it is freed", open_large, {asks_inside, frees}, close_freed},
    {"the same in a cache", open_small, {asks_inside, frees}, close_freed},
    {"whose it was", open_unused, {asks_whose, destroys}, close_gone},
    {"freed again", open_default, {frees_it_again, destroys}, close_default},
    {"freed again, in order", open_default, {frees_it_again_in_order, destroys}, close_default},
    {"a scope and its stream end", open_scoped, {retires, ends}, close_ended},
    {"a scope is released, its stream ends", open_scoped, {retires, releases}, close_released},
    {"two scopes begin", open_known, {begins_if_it_may, begins_once_more}, close_begun},
    {"a first scope begins", open_new, {begins, uses_first}, close_new},
    {"a scope is counted", open_known, {begins, counts}, close_new},
    {"a scope of a request is released", open_waited_for, {takes, releases}, close_taken},
};
#endif

int main(void) {
#if CHECK_FAKE
    schedule_cases(cases, KIT_COUNT(cases));
#else
    check_skip("schedules", "needs fakecuda's controls");
#endif
    return check_finish();
}
