/* Two threads at what the arena does without a lock, or under a fine one, in every order that two
   interruptions can make, or one in `make test`. gates/schedules.sh breaks the header in ways that
   must show here. */
// build: plain -O1 -DSCHEDULE_CUTS=1
// build: asked -O1 -DGPUPOOL_STREAM_CHECK=1 -DSCHEDULE_CUTS=1
#if !defined(GPUPOOL_TEST_GPU)
#include "schedule_kit.h"
#endif
#include "cudas_own.h"

#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "check.h"

#if CHECK_FAKE
#include "schedule_scene.h"

#define ALL (2 * MIB) /* what an arena may hold here */

static void open_with(size_t limit) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_DEVICE);
    config.limit_bytes = limit;
    scene_open(&config);
}

/* Streams whose caches take so many frees off, as when sizes did not come again: with nothing in it
   a cache is left alone, and only the arena's lock is taken. */
static void rest(uint32_t frees) {
    for (gpi_stream *stream = arena->clocks.streams; stream; stream = stream->next)
        stream->cache.rest = frees;
}

/* ---- what one stream frees, another takes: all there is ---- */

static void open_handover(void) {
    open_with(ALL);
    put(get(ALL, 0, 1), ALL, 0, 1);
    put(get(ALL, 1, 2), ALL, 1, 2);
}
static void open_bare_handover(void) {
    open_handover();
    rest(8);
}
static void all_of_it(int stream) { put(get(ALL, stream, stream + 5), ALL, stream, stream + 5); }
static void all_on_first(void) { all_of_it(0); }
static void all_on_second(void) { all_of_it(1); }

/* ---- a stream's mark is recorded by its thread, while another asks after it, has it pinned for a
   wait on the device, takes the memory behind it, or trims ---- */

static void open_marks(void) {
    open_with(2 * ALL);
    put(get(ALL, 1, 2), ALL, 1, 2);
    put(get(ALL / 2, 0, 1), ALL / 2, 0, 1);
}
static void frees_on(void) { /* each of these frees is large enough for a mark of its own */
    for (int i = 0; i < 3; i++) put(get(ALL, 0, i), ALL, 0, i);
}
static void polls(void) {
    gpi_stream *stream = gpi_clock_find(&arena->clocks, gpi_clock_key(kit_stream[0]));
    for (int i = 0; i < 2 && stream; i++) {
        fake_run_all();
        gpi_host_lock(&arena->lock);
        gpi_arena_poll_stream(arena, stream);
        gpi_arena_unlock(arena);
    }
}
static void takes_over(void) { put(get(2 * ALL, 1, 7), 2 * ALL, 1, 7); }
static void retires_it(void) {
    CHECK_RESULT(gpupool_retire_stream(arena, kit_stream[0]), GPUPOOL_OK);
}
static void waits_beside(void) { /* who has `growing` is not waited for by who needs no memory */
    put(get(512, 0, 3), 512, 0, 3);
    frees_on();
}

/* Two threads free on one stream, whose first mark is due at each of these frees. */
static void open_unmarked(void) {
    open_with(4 * ALL);
    kept_bytes = ALL;
    put(get(512, 1, 2), 512, 1, 2); /* with a second stream about, large frees record marks */
    for (int i = 0; i < 2; i++) kept[i] = get(ALL, 0, i);
}
static void frees(int i) {
    void *block = kept[i];
    kept[i] = NULL;
    put(block, ALL, 0, i);
}
static void frees_one(void) { frees(0); }
static void frees_other(void) { frees(1); }

/* Nobody waits for more than it has to: the mark that is waited for is not recorded behind later
   work, though it has passed meanwhile. */
static void open_waited_for(void) {
    void *block;
    open_with(4 * ALL);
    kept_bytes = ALL;
    put(get(512, 1, 2), 512, 1, 2); /* a second stream, as above */
    block = get(2 * ALL, 0, 1);
    kept[0] = get(ALL, 0, 0);
    put(block, 2 * ALL, 0, 1);
}
static void goes_on(void) {
    gpi_stream *stream = gpi_clock_find(&arena->clocks, gpi_clock_key(kit_stream[0]));
    fake_run_all();
    gpi_host_lock(&arena->lock);
    arena->short_until = 0; /* as if many frees had come since memory was short */
    gpi_arena_poll_stream(arena, stream);
    gpi_arena_unlock(arena);
    frees(0);
}
static void takes_and_holds(void) { kept[2] = get(2 * ALL, 1, 2); }
static void close_waited_for(void) {
    fake_run(kit_stream[1]);
    CHECK(fake_pending(kit_stream[0]) > 0);
    put(kept[2], 2 * ALL, 1, 2);
    kept[2] = NULL;
    close_all();
}

/* Where only the host can wait, it waits for a mark that may be recorded once more meanwhile. */
static void open_host(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_PINNED);
    void *block[2];
    config.limit_bytes = 3 * ALL;
    scene_open(&config);
    kept_bytes = ALL;
    put(get(512, 1, 2), 512, 1, 2);
    kept[0] = get(ALL, 0, 0);
    for (int i = 0; i < 2; i++) block[i] = get(ALL, 0, i);
    for (int i = 0; i < 2; i++) put(block[i], ALL, 0, i); /* both of its marks are in use */
}
static void takes_one(void) { kept[2] = get(ALL, 1, 2); }
static void takes_all(void) {
    takes_one();
    kept[3] = get(ALL, 1, 3);
    put(get(ALL, 1, 4), ALL, 1, 4);
}

static void ends_second(void) { /* and its struct would be another's, with its free list */
    CHECK_RESULT(gpupool_retire_stream(arena, kit_stream[1]), GPUPOOL_OK);
    trims();
    put(get(512, 2, 4), 512, 2, 4);
}

/* A mark over all streams is recorded beside a capture, which would be lost. */
static gpupool_capture *scope;
static void open_captured(void) {
    open_marks();
    CHECK_RESULT(gpupool_free(arena, kit_alloc(arena, 512, kit_stream[2]), kit_stream[2]),
                 GPUPOOL_OK);
}
static void captures(void) {
    cudaGraph_t graph = NULL;
    CHECK_RESULT(gpupool_begin_capture(arena, kit_stream[2], &scope), GPUPOOL_OK);
    CHECK_EQ(cudaStreamBeginCapture(kit_stream[2], cudaStreamCaptureModeRelaxed), cudaSuccess);
    schedule_point();
    CHECK_EQ(cudaStreamEndCapture(kit_stream[2], &graph), cudaSuccess);
    CHECK_RESULT(gpupool_end_capture(scope), GPUPOOL_OK);
    if (graph) CHECK_EQ(cudaGraphDestroy(graph), cudaSuccess);
}
static void close_captured(void) {
    CHECK_RESULT(gpupool_release_capture(scope), GPUPOOL_OK);
    close_all();
}

/* ---- one stream, two threads: with blocks in its cache, or with none yet ---- */

static void open_cached(void) {
    open_with(64 * MIB);
    put(get(512, 0, 1), 512, 0, 1);
}
static void open_bare(void) {
    open_with(64 * MIB);
    void *block = get(512, 0, 3);
    rest(3); /* two more, and then the cache is in use */
    put(block, 512, 0, 3);
}
static void turn_first(void) {
    kept[0] = get(512, 0, 0);
    put(kept[0], 512, 0, 0);
    kept[0] = get(512, 0, 0);
}
static void turn_second(void) {
    kept[1] = get(512, 0, 1);
    put(kept[1], 512, 0, 1);
    kept[1] = get(512, 0, 1);
}

/* ---- a stream's first call, while another stream's blocks come and go ---- */

static void open_new(void) { open_with(64 * MIB); }
static void newcomer_first(void) { kept[0] = get(512, 0, 0); }
static void newcomer_second(void) { kept[2] = get(512, 1, 2); }
static void newcomer_same(void) { kept[1] = get(512, 0, 1); }

/* ---- a stream is retired while another thread still has calls on it, and its struct goes to one
   that is looked for in the same place ---- */

static cudaStream_t twin;
static uint64_t twin_number; /* of a thread whose own stream is looked for there */

static void open_retire_with(uint32_t frees) {
    uintptr_t first = (uintptr_t)kit_stream[0];
    void *block;
    open_with(64 * MIB);
    block = get(512, 0, 1);
    rest(frees);
    put(block, 512, 0, 1);
    kept[2] = get(512, 1, 2);
    for (twin_number = 1000; gpi_clock_bucket((uintptr_t)twin_number << 2 | 3) !=
                             gpi_clock_bucket(first);)
        twin_number++;
    twin = cudaStreamPerThread;
}
static void open_retire(void) { open_retire_with(0); }
static void open_bare_retire(void) { open_retire_with(8); }
static void retires(void) {
    void *block;
    CHECK_RESULT(gpupool_retire_stream(arena, kit_stream[0]), GPUPOOL_OK);
    CHECK_EQ(cudaStreamSynchronize(kit_stream[0]), cudaSuccess);
    CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK); /* now the struct is nobody's */
    gpi_thread.number = twin_number;
    block = kit_alloc(arena, 512, twin);
    kit_mark(twin, block, 512, 9);
    CHECK_RESULT(gpupool_free(arena, block, twin), GPUPOOL_OK);
}
/* ---- caches are emptied under the owner's hands ---- */

static void looks(void) {
    gpupool_stats stats;
    CHECK_RESULT(gpupool_get_stats(arena, &stats), GPUPOOL_OK);
    CHECK(stats.requested.now <= stats.granted.now && stats.granted.now <= stats.reserved.now);
    CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
}
static void frees_elsewhere(void) { /* what a cache of the first stream has handed out */
    kit_order(kit_stream[0], kit_stream[1]);
    put(kept[3], 512, 1, 3);
    kept[3] = NULL;
}
static void open_elsewhere(void) {
    open_cached();
    kept[3] = get(512, 0, 3); /* out of the cache */
}

/* ---- a double free in the same moment: one of the two is told ---- */

static int twice_well;
static void open_twice(void) {
    twice_well = 0;
    open_cached();
    kept[0] = get(512, 0, 0);
}
static void once(void) {
    gpupool_result result = gpupool_free(arena, kept[0], kit_stream[0]);
    twice_well += result == GPUPOOL_OK;
    CHECK(result == GPUPOOL_OK || result == GPUPOOL_E_DOUBLE_FREE);
}
static void close_twice(void) {
    CHECK_EQ(twice_well, 1);
    kept[0] = NULL;
    close_all();
}

/* ---- a scope on a renewed handle, while another thread's call makes the new stream known ---- */

static void open_renewed(void) {
    cudaStream_t old;
    open_with(64 * MIB);
    CHECK_EQ(cudaStreamCreateWithFlags(&twin, cudaStreamNonBlocking), cudaSuccess);
    old = twin;
    CHECK_RESULT(gpupool_free(arena, kit_alloc(arena, 512, twin), twin), GPUPOOL_OK);
    CHECK_EQ(own_stream_destroy(twin), cudaSuccess); /* unsaid */
    CHECK_EQ(cudaStreamCreateWithFlags(&twin, cudaStreamNonBlocking), cudaSuccess);
    CHECK(twin == old);
}
static void opens_scope(void) {
    CHECK_RESULT(gpupool_begin_capture(arena, twin, &scope), GPUPOOL_OK);
}
static void uses_renewed(void) {
    void *block = kit_alloc(arena, 512, twin);
    CHECK_RESULT(gpupool_free(arena, block, twin), GPUPOOL_OK);
}
static void close_renewed(void) {
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    CHECK(gpi_clock_find(&arena->clocks, gpi_clock_key(twin)) == scope->stream);
    CHECK_RESULT(gpupool_release_capture(scope), GPUPOOL_OK);
    close_all();
    CHECK_EQ(cudaStreamDestroy(twin), cudaSuccess);
}

static const schedule_case cases[] = {
    {"a scope on a renewed handle", open_renewed, {opens_scope, uses_renewed}, close_renewed},
    {"hand over", open_handover, {all_on_first, all_on_second}, close_all},
    {"hand over, nothing cached", open_bare_handover, {all_on_first, all_on_second}, close_all},
    {"a mark is asked after", open_marks, {frees_on, polls}, close_all},
    {"what is behind a mark is taken", open_marks, {frees_on, takes_over}, close_all},
    {"a mark while memory is given back", open_marks, {frees_on, trims}, close_all},
    {"a mark of a stream that ends", open_marks, {frees_on, retires_it}, close_all},
    {"taken while its stream ends", open_marks, {takes_over, retires_it}, close_all},
    {"waits with no lock held", open_marks, {waits_beside, takes_over}, close_all},
    {"given back twice", open_marks, {trims, trims}, close_all},
    {"a mark that is waited for", open_waited_for, {goes_on, takes_and_holds}, close_waited_for},
    {"a wait of the host", open_host, {frees_one, takes_all}, close_all},
    {"its own stream ends", open_host, {takes_one, ends_second}, close_all},
    {"two threads record a mark", open_unmarked, {frees_one, frees_other}, close_all},
    {"a capture meanwhile", open_captured, {captures, trims}, close_captured},
    {"two threads on a stream", open_cached, {turn_first, turn_second}, close_all},
    {"two threads on a bare stream", open_bare, {turn_first, turn_second}, close_all},
    {"two streams begin", open_new, {newcomer_first, newcomer_second}, close_all},
    {"one stream begins twice", open_new, {newcomer_first, newcomer_same}, close_all},
    {"retired meanwhile", open_retire, {retires, turn_second}, close_all},
    {"retired meanwhile, nothing cached", open_bare_retire, {retires, turn_second}, close_all},
    {"looked at meanwhile", open_cached, {looks, turn_second}, close_all},
    {"freed elsewhere", open_elsewhere, {frees_elsewhere, turn_second}, close_all},
    {"freed twice", open_twice, {once, once}, close_twice},
};
#endif

int main(void) {
#if CHECK_FAKE
    size_t count = GPUPOOL_STREAM_CHECK ? 1 : KIT_COUNT(cases); /* the first is about that */
    schedule_cases(cases, count);
#else
    check_skip("schedules", "needs fakecuda's controls");
#endif
    return check_finish();
}
