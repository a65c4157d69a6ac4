/* Events behind what is freed: which frees have one, when one goes over all streams, as behind
   gpupool_cudaFree, and what is done where none can be had. */
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "arena_scene.h"

#if CHECK_FAKE

/* ---- marks ---- */

/* What a capturing stream has freed gets no mark: its event would be the graph's. */
static void no_mark_in_a_capture(void) {
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    void *block = get(30 * MIB, 0), *larger;
    put(block, 0);
    CHECK_EQ(cudaStreamBeginCapture(kit_stream[0], cudaStreamCaptureModeRelaxed), cudaSuccess);
    larger = get(60 * MIB, 0);
    CHECK_EQ(fake_calls("cuEventRecord"), 0);
    drop_capture(kit_stream[0]);
    put(larger, 0);
    kit_close(arena);
}

/* With both marks under way an event is recorded again only where memory is short, up to the very
   position; either way the next frees are counted from nothing. */
static void marks_move_where_memory_is_short(void) {
    void *block[4];
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    for (int i = 0; i < 4; i++) block[i] = get(20 * MIB, 1);
    void *other = get(4096, 0);
    fake_mode(FAKE_STEPPED);
    for (int i = 0; i < 4; i++) {
        kit_fill(kit_stream[1], block[i], 4096, i);
        put(block[i], 1);
    }
    gpi_stream *owner = known_stream(1);
    gpi_host_lock(&arena->lock);
    CHECK(gpi_clock_spare_mark(&arena->clocks, owner) == NULL);
    CHECK(gpi_clock_lacks_mark(&arena->clocks, owner));
    for (int is_short = 0; is_short < 2; is_short++) {
        check_case("short %d", is_short);
        owner->frees = 9;
        owner->freed_units = 9;
        arena->short_until = arena->clocks.position - !is_short;
        gpi_block_record(arena, owner, kit_stream[1]);
        CHECK_EQ(gpi_clock_lacks_mark(&arena->clocks, owner), !is_short);
        CHECK_EQ(owner->frees, 0);
        CHECK_EQ(owner->freed_units, 0);
    }
    gpi_host_unlock(&arena->lock);
    finish_with(other, 0);
}

/* Where no event can be had, CUDA is not asked for one at each free from then on. */
static void frees_without_an_event(void) {
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    void *block = get(4096, 0);
    put(get(4096, 1), 1);
    gpi_stream *owner = known_stream(1);
    owner->frees = 64;
    fake_fail_call("cuEventRecord", 1, 1, 0);
    gpi_host_lock(&arena->lock);
    CHECK(gpi_block_is_due(arena, owner));
    gpi_block_record(arena, owner, kit_stream[1]);
    CHECK(!gpi_block_is_due(arena, owner));
    gpi_host_unlock(&arena->lock);
    fake_fail_clear();
    put(block, 0);
    kit_close(arena);
}

/* Frees that would have put fences behind them, after the device was reset. */
static void many_frees_after_a_reset(void) {
    void *block[100], *other;
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    other = get(4096, 1);
    for (int i = 0; i < 100; i++) block[i] = get(2 * MIB, 0);
    CHECK_EQ(cudaDeviceReset(), cudaSuccess);
    for (int i = 0; i < 100; i++) put(block[i], 0);
    CHECK_EQ(fake_calls("cuEventRecord"), 0);
    (void)other;
    for (int i = 0; i < KIT_STREAMS; i++) kit_stream[i] = NULL;
    CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_OK);
}

/* ---- an event over all streams ---- */

/* Of more streams than are asked at once, none has put an event behind the little that it has
   freed: one event over all streams finds that all have done, without a wait. */
static void one_event_for_many_streams(void) {
    enum { STREAMS = 70, EACH = 100 * KIB };
    cudaStream_t stream[STREAMS];
    void *block[STREAMS], *rest;
    open_in_chunks(GPUPOOL_SOURCE_DEVICE, 16 * MIB);
    for (int i = 0; i < STREAMS; i++) {
        CHECK_EQ(cudaStreamCreateWithFlags(&stream[i], cudaStreamNonBlocking), cudaSuccess);
        block[i] = get_on(EACH, stream[i]);
    }
    rest = get_the_rest(0);
    no_more_memory();
    for (int i = 0; i < STREAMS; i++) put_on(block[i], stream[i]);
    CHECK_EQ(fake_calls("cuEventRecord") + fake_calls("cuCtxRecordEvent"), 0);
    CHECK(take_without_a_wait(STREAMS * EACH, 0) == block[0]);
    put(block[0], 0);
    put(rest, 0);
    for (int i = 0; i < STREAMS; i++) CHECK_EQ(cudaStreamDestroy(stream[i]), cudaSuccess);
    kit_close(arena);
}

/* With threads' streams about, a request records an event over all streams once more than an eighth
   of what is reserved is pending. */
static void much_is_pending(void) {
    for (int more = 0; more < 2; more++) {
        open_in_chunks(GPUPOOL_SOURCE_DEVICE, 72 * MIB);
        void *of_thread = get_on(512, cudaStreamPerThread);
        void *eighth = get(9 * MIB, 0), *little = get(100 * KIB, 0), *larger;
        void *rest = get_the_rest(0);
        CHECK_EQ(kit_reserved(arena), 72 * MIB);
        fake_mode(FAKE_STEPPED);
        fake_reset_counters();
        put(eighth, 0);
        if (more) put(little, 0);
        larger = get(20 * MIB, 1);
        CHECK_EQ(fake_calls("cuCtxRecordEvent"), more);
        put(larger, 1);
        put(rest, 0);
        if (!more) put(little, 0);
        put_on(of_thread, cudaStreamPerThread);
        finish();
    }
}

/* No event goes over all streams for a stream that has nothing free, and that no waiting block
   names: it has taken again what it had freed. */
static void nothing_that_lacks_an_event(void) {
    for (int used = 0; used < 2; used++) {
        arena = kit_open(GPUPOOL_SOURCE_DEVICE);
        void *block = get(100 * KIB, 0), *theirs = get(20 * MIB, 1);
        void *rest = get_the_rest(0);
        kit_order(kit_stream[1], kit_stream[0]);
        if (used) use(theirs, 0);
        put(block, 0);
        CHECK(get(100 * KIB, 0) == block);
        gpi_stream *known = known_stream(0);
        CHECK_EQ(known->refs, used);
        CHECK(gpi_clock_lacks_mark(&arena->clocks, known));
        trim_none();
        CHECK_EQ(fake_calls("cuCtxRecordEvent"), 0);
        put(block, 0);
        put(rest, 0);
        kit_order(kit_stream[0], kit_stream[1]);
        put(theirs, 1);
        kit_close(arena);
    }
}

/* The legacy stream tells of the capture. */
static void beside_a_capture_on_a_blocking_stream(void) {
    cudaStream_t blocking = NULL;
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    void *block = get(4096, 1), *large;
    CHECK_EQ(cudaStreamCreate(&blocking), cudaSuccess);
    CHECK_EQ(cudaStreamBeginCapture(blocking, cudaStreamCaptureModeGlobal), cudaSuccess);
    put(get(30 * MIB, 1), 1); /* no event behind it, and none over all streams either */
    trim_none();
    CHECK_EQ(fake_calls("cuCtxRecordEvent"), 0);
    CHECK_RESULT(gpupool_record_stream(arena, block, 0), GPUPOOL_E_CAPTURING);
    large = get_on(30 * MIB, 0);
    put_on(large, 0);
    drop_capture(blocking);
    CHECK_EQ(cudaStreamDestroy(blocking), cudaSuccess);
    fake_fail_call("cuCtxPushCurrent", 1, 0, 0); /* where CUDA cannot be asked */
    CHECK_RESULT(gpupool_record_stream(arena, block, 0), GPUPOOL_OK);
    CHECK_EQ(fake_fail_fired(), 1);
    fake_fail_clear();
    CHECK_RESULT(gpupool_record_stream(arena, block, 0), GPUPOOL_OK);
    put(block, 1);
    kit_close(arena);
}

/* ---- looks ---- */

/* With peers no event goes over all streams: what has none of its own is not known to be finished,
   until a wait for the device tells. */
static void a_look_beside_a_peer(void) {
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 64 * MIB);
    CHECK_RESULT(gpupool_allow_peer(arena, 1), GPUPOOL_OK);
    put(get(60 * MIB, 0), 0);
    CHECK(!kit_fits(arena, 30 * MIB, NULL));
    CHECK_EQ(fake_calls("cuCtxRecordEvent"), 0);
    trim_none();
    CHECK(kit_fits(arena, 30 * MIB, NULL));
    kit_close(arena);
}

/* What one look has seen counts no longer at the next: a block in a cache was taken and freed again
   in between, behind work that is not done. */
static void a_look_after_a_look(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
    config.limit_bytes = config.chunk_bytes = 2 * MIB;
    arena = kit_create(&config);
    put(get(4096, 0), 0);
    CHECK(kit_fits(arena, 2 * MIB, NULL));
    CHECK_RESULT(gpupool_allow_peer(arena, 1), GPUPOOL_OK); /* no event over all streams any more */
    fake_mode(FAKE_STEPPED);
    void *block = get(4096, 0);
    kit_fill(kit_stream[0], block, 64, 1);
    put(block, 0);
    CHECK(!kit_fits(arena, 2 * MIB, NULL));
    finish();
}

/* The event of a look is destroyed with the arena, unless a reset has taken it. */
static void ask_and_destroy(const char *refuses, long nth) {
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    put(get(30 * MIB, 0), 0);
    CHECK(kit_fits(arena, MIB, NULL));
    CHECK(arena->clocks.look_event != NULL);
    if (!refuses) CHECK_EQ(cudaDeviceReset(), cudaSuccess);
    if (!refuses) memset(kit_stream, 0, sizeof kit_stream);
    if (refuses) fake_fail_call(refuses, nth, 0, 0);
    gpupool_result result = gpupool_arena_destroy(arena);
    /* whether the context can be entered is asked first, and no answer to that is a yes */
    int is_told = fake_fail_fired() && (nth > 1 || strcmp(refuses, "cuCtxGetId") != 0);
    CHECK_RESULT(result, is_told ? GPUPOOL_E_CUDA : GPUPOOL_OK);
    if (result != GPUPOOL_OK) CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_OK);
}

static void the_event_of_a_look(void) {
    static const char *const calls[] = {"cuEventDestroy", "cuCtxGetId"};
    for (size_t c = 0; c < KIT_COUNT(calls); c++)
        for (long nth = 1, fired = 1; fired; nth++) {
            check_case("%s %ld", calls[c], nth);
            ask_and_destroy(calls[c], nth);
            fired = fake_fail_fired();
            fake_fail_clear();
        }
    check_case("a reset");
    ask_and_destroy(NULL, 0);
    CHECK_EQ(fake_misuses(), 0);
    check_case(" ");
}

/* ---- gpupool_cudaFree's memory ---- */

/* What came back is too small after the wait for it; and where the wait fails, there is more memory
   from the driver. */
static void blocks_of_all_streams(void) {
    void *block[3];
    size_t reserved;
    arena = gpupool_get_default_arena(0);
    fake_mode(FAKE_STEPPED);
    fake_fail_call("cuCtxRecordEvent", 1, 1, 0); /* so that no event goes over all streams */
    for (int i = 0; i < 3; i++) CHECK_EQ(gpupool_cudaMalloc(&block[i], 20 * MIB), cudaSuccess);
    CHECK_EQ(gpupool_cudaFree(block[1]), cudaSuccess);
    CHECK_EQ(gpupool_cudaMalloc(&block[1], 30 * MIB), cudaSuccess);
    CHECK_EQ(gpupool_cudaFree(block[0]), cudaSuccess);
    reserved = kit_reserved(arena);
    fake_fail_call("cuMemAlloc", 1, 1, 0);
    fake_fail_call("cuMemHostAlloc", 1, 1, 0);
    fake_fail_call("cuMemFree", 1, 1, 0);
    CHECK_EQ(gpupool_cudaMalloc(&block[0], 20 * MIB), cudaSuccess);
    CHECK(kit_reserved(arena) > reserved);
    fake_fail_clear();
    CHECK_EQ(cudaGetLastError(), cudaSuccess);
    for (int i = 0; i < 3; i++) CHECK_EQ(gpupool_cudaFree(block[i]), cudaSuccess);
    finish();
}

/* The default arena, at its limit, with one block of 20 MiB, which a stream is at work on. */
static void full_default_at_work(void **block) {
    arena = gpupool_get_default_arena(0);
    CHECK_EQ(gpupool_cudaMalloc(block, 20 * MIB), cudaSuccess);
    no_more_memory();
    fake_mode(FAKE_STEPPED);
    kit_fill(kit_stream[1], *block, 20 * MIB, 1);
}

/* The free could record no event over all streams: the request records one, and waits for it
   alone. */
static void an_event_for_the_wait(void) {
    void *block;
    full_default_at_work(&block);
    fake_fail_call("cuCtxRecordEvent", 1, 0, 0);
    CHECK_EQ(gpupool_cudaFree(block), cudaSuccess);
    CHECK_EQ(fake_fail_fired(), 1);
    fake_fail_clear();
    CHECK_EQ(gpupool_cudaMalloc(&block, 20 * MIB), cudaSuccess);
    CHECK_EQ(fake_calls("cuEventSynchronize"), 1);
    CHECK_EQ(gpupool_cudaFree(block), cudaSuccess);
    finish();
}

/* The wait for the event over all streams fails: the host waits for the device. */
static void an_event_that_cannot_be_waited_for(void) {
    void *block;
    full_default_at_work(&block);
    CHECK_EQ(gpupool_cudaFree(block), cudaSuccess);
    fake_fail_call("cuEventSynchronize", 1, 1, 0);
    CHECK_EQ(gpupool_cudaMalloc(&block, 20 * MIB), cudaSuccess);
    CHECK(fake_fail_fired() > 0);
    fake_fail_clear();
    CHECK_EQ(fake_pending(kit_stream[1]), 0);
    CHECK_EQ(gpupool_cudaFree(block), cudaSuccess);
    finish();
}

/* The event over all streams covers a recorded use, too: the block is free memory at once. */
static void used_by_a_stream_and_freed_for_all(void) {
    void *block;
    arena = gpupool_get_default_arena(0);
    CHECK_EQ(gpupool_cudaMalloc(&block, 20 * MIB), cudaSuccess);
    fake_mode(FAKE_STEPPED);
    kit_fill(kit_stream[1], block, 20 * MIB, 1);
    CHECK_RESULT(gpupool_record_stream(arena, block, kit_stream[1]), GPUPOOL_OK);
    CHECK_EQ(gpupool_cudaFree(block), cudaSuccess);
    CHECK(arena->waiting == NULL);
    CHECK_EQ(kit_stats(arena).pending.now, 20 * MIB);
    finish();
}

/* But a graph's block is the graph's until its release, whoever frees it. */
static void a_graphs_block_freed_for_all(void) {
    gpupool_capture *scope = NULL;
    arena = gpupool_get_default_arena(0);
    CHECK_RESULT(gpupool_begin_capture(arena, kit_stream[0], &scope), GPUPOOL_OK);
    void *block = get(20 * MIB, 0);
    CHECK_RESULT(gpupool_end_capture(scope), GPUPOOL_OK);
    no_more_memory();
    CHECK_EQ(gpupool_cudaFree(block), cudaSuccess);
    CHECK_RESULT(kit_why(gpupool_alloc(arena, 20 * MIB, kit_stream[1])), GPUPOOL_E_OUT_OF_MEMORY);
    CHECK_RESULT(gpupool_release_capture(scope), GPUPOOL_OK);
    CHECK_EQ(gpupool_cudaMalloc(&block, 20 * MIB), cudaSuccess);
    CHECK_EQ(gpupool_cudaFree(block), cudaSuccess);
    kit_close(arena);
}
#endif

int main(void) {
    FAKE_TEST(no_mark_in_a_capture);
    FAKE_TEST(marks_move_where_memory_is_short);
    FAKE_TEST(frees_without_an_event);
    FAKE_TEST(many_frees_after_a_reset);
    FAKE_TEST(one_event_for_many_streams);
    FAKE_TEST(much_is_pending);
    FAKE_TEST(nothing_that_lacks_an_event);
    FAKE_TEST(beside_a_capture_on_a_blocking_stream);
    FAKE_TEST(a_look_beside_a_peer);
    FAKE_TEST(a_look_after_a_look);
    FAKE_TEST(the_event_of_a_look);
    FAKE_TEST(blocks_of_all_streams);
    FAKE_TEST(an_event_for_the_wait);
    FAKE_TEST(an_event_that_cannot_be_waited_for);
    FAKE_TEST(used_by_a_stream_and_freed_for_all);
    FAKE_TEST(a_graphs_block_freed_for_all);
    return check_finish();
}
