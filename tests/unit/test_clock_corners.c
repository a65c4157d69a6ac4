/* Streams and their marks at the corners: which streams are asked in turn, a run that goes back to
   a stream which is asked no longer, what joins beside two marks, structs that had another stream
   before, how many threads' streams are kept, and contexts that CUDA does not take off again. */
// build: plain
// build: asan -fsanitize=address
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "stream_kit.h"

#include <pthread.h>

#if CHECK_FAKE

static gpi_stream *known(int stream) {
    return gpi_clock_find(&arena->clocks, gpi_clock_key(kit_stream[stream]));
}

/* ---- the queue of busy streams ---- */

static void no_more_streams_than_asked_for(void) {
    gpi_stream *list[KIT_STREAMS] = {NULL};
    open_for(GPUPOOL_SOURCE_MAPPED, 16 * SIZE);
    for (int i = 0; i < 3; i++) put(get(SIZE, i, i), i);
    for (int round = 0; round < 3; round++) { /* they take turns */
        CHECK_EQ(gpi_clock_next_busy(&arena->clocks, list, 2), 2);
        CHECK(list[0] == known(round * 2 % 3) && list[1] == known((round * 2 + 1) % 3));
        CHECK(list[2] == NULL);
    }
    close_arena();
}

/* A stream is asked no longer while another thread has its only run; when the run is put back, the
   stream is asked again, and nothing keeps its struct. */
static void a_run_that_is_put_back(void) {
    open_for(GPUPOOL_SOURCE_MAPPED, 16 * SIZE);
    put(get(SIZE, 0, 1), 0); /* alone, so that it gets no mark */
    gpi_run *run = arena->chunks.home;
    while (run->list != known(0)->list) run = run->next;
    gpi_host_lock(&arena->lock);
    CHECK(gpi_tree_prepare(&arena->tree, 2));
    gpi_stream *owner = gpi_clock_borrow(&arena->tree, run);
    uint64_t at = run->of.at;
    run = gpi_tree_take(&arena->tree, run, run->unit, run->units);
    gpi_arena_poll(arena, 1);
    CHECK(owner == known(0) && !owner->is_busy);
    CHECK_EQ(owner->refs, 1);
    gpi_clock_return(&arena->clocks, run, owner, at);
    gpi_host_unlock(&arena->lock);
    CHECK_EQ(owner->refs, 0);
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    close_arena();
}

/* ---- marks ---- */

/* What lies behind the newer of two marks stays apart from what is freed beside it later, so that
   others have it as soon as that mark has passed. */
static void apart_behind_the_second_mark(void) {
    char *block[3], *again[2];
    open_for(GPUPOOL_SOURCE_DEVICE, 4 * SIZE);
    put(get(4 * SIZE, 1, 0), 1); /* one chunk */
    CHECK_RESULT(gpupool_wait_all(arena), GPUPOOL_OK);
    void *rest = get(SIZE, 1, 0); /* another stream is about, so that frees have marks */
    for (int i = 0; i < 3; i++) block[i] = (char *)get(SIZE, 0, i);
    CHECK(block[1] == block[0] + SIZE && block[2] == block[1] + SIZE);
    for (int i = 0; i < 2; i++) put(block[i], 0);
    CHECK(known(0)->clock.marks[1].at > known(0)->clock.marks[0].at);
    int before = fake_pending(kit_stream[0]);
    kit_fill(kit_stream[0], block[2], 512, 3);
    put(block[2], 0);
    while (before--) CHECK_EQ(fake_step(kit_stream[0]), 1);
    gpupool_stats stats = kit_stats(arena);
    for (int i = 0; i < 2; i++) {
        again[i] = (char *)get(SIZE, 1, 4);
        CHECK(again[i] == block[0] || again[i] == block[1]);
    }
    CHECK_EQ(kit_stats(arena).fence_waits, stats.fence_waits);
    CHECK_EQ(kit_stats(arena).host_syncs, stats.host_syncs);
    CHECK(fake_pending(kit_stream[0]) > 0);
    for (int i = 0; i < 2; i++) put(again[i], 1);
    put(rest, 1);
    close_arena();
}

/* ---- a struct that had another stream before ---- */

/* The marks of the one before are behind all that the next has, a graph too, for which what has
   passed on all streams is no news. */
static void marks_of_the_stream_before(void) {
    gpupool_capture *scope = NULL;
    open_for(GPUPOOL_SOURCE_MAPPED, 16 * SIZE);
    put(get(4096, 1, 0), 1);
    put(get(SIZE, 0, 1), 0);
    gpi_stream *before = known(0);
    CHECK(gpi_clock_mark(&arena->clocks, before, 0) != NULL);
    CHECK_RESULT(gpupool_retire_stream(arena, kit_stream[0]), GPUPOOL_OK);
    CHECK_RESULT(gpupool_wait_all(arena), GPUPOOL_OK); /* which passes on the stream ALL alone */
    CHECK_EQ(before->handle, 0);
    CHECK_RESULT(gpupool_begin_capture(arena, kit_stream[0], &scope), GPUPOOL_OK);
    CHECK(known(0) == before && before->capture == scope);
    CHECK(gpi_clock_mark(&arena->clocks, before, 0) == NULL);
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    CHECK_RESULT(gpupool_end_capture(scope), GPUPOOL_OK);
    CHECK_RESULT(gpupool_release_capture(scope), GPUPOOL_OK);
    close_arena();
}

/* Its events are of another context; where they cannot be destroyed, none is recorded. */
static void events_of_another_context(void) {
    cudaStream_t far = NULL;
    open_for(GPUPOOL_SOURCE_MAPPED, 16 * SIZE);
    put(get(4096, 1, 0), 1);
    put(get(SIZE, 0, 1), 0);
    fake_run_all();
    gpi_stream *stream = known(0);
    CHECK(stream->clock.marks[0].event != NULL);
    CHECK_EQ(cudaSetDevice(1), cudaSuccess);
    CHECK_EQ(cudaStreamCreateWithFlags(&far, cudaStreamNonBlocking), cudaSuccess);
    CHECK_EQ(cudaSetDevice(0), cudaSuccess);
    stream->clock.has_context = 0; /* as for the next stream of the struct */
    for (int refused = 1; refused >= 0; refused--) {
        if (refused) fake_fail_call("cuEventDestroy", 1, 0, 0);
        CHECK_RESULT(gpi_event_find_context(&arena->clocks, stream, far),
                     refused ? GPUPOOL_E_CUDA : GPUPOOL_OK);
        CHECK_EQ(fake_fail_fired(), refused);
        fake_fail_clear();
        CHECK_EQ(stream->clock.has_context, !refused);
        CHECK_EQ(stream->clock.marks[0].event != NULL, refused);
    }
    /* whether that context has ended is not known where CUDA does not answer */
    int ended = 0;
    fake_fail_call("cuCtxGetId", 1, 0, 0);
    CHECK_RESULT(gpi_event_context_has_ended(&arena->clocks, stream, &ended), GPUPOOL_E_CUDA);
    fake_fail_clear();
    CHECK_RESULT(gpi_event_context_has_ended(&arena->clocks, stream, &ended), GPUPOOL_OK);
    CHECK_EQ(ended, 0);
    CHECK_EQ(cudaStreamDestroy(far), cudaSuccess);
    close_arena();
}

/* ---- threads' own streams ---- */

static void *free_on_its_own(void *unused) {
    void *block = kit_alloc(arena, MIB, cudaStreamPerThread);
    CHECK_RESULT(gpupool_free(arena, block, cudaStreamPerThread), GPUPOOL_OK);
    return unused;
}

/* So many stay, as their threads may still call; of more, those of which nothing is left go. */
static void as_many_threads_as_are_kept(void) {
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    for (int i = 1; i <= GPI_THREADS_KEPT + 1; i++) {
        pthread_t thread;
        CHECK_EQ(pthread_create(&thread, NULL, free_on_its_own, NULL), 0);
        CHECK_EQ(pthread_join(thread, NULL), 0);
        if (i < GPI_THREADS_KEPT) continue;
        CHECK_RESULT(gpupool_wait_all(arena), GPUPOOL_OK);
        CHECK_EQ(arena->clocks.stream_count, GPI_THREADS_KEPT);
    }
    kit_close(arena);
}

/* ---- the context of before ---- */

/* A context that cannot be taken off again is told, whatever was done within it. */
static void a_context_that_stays(void) {
    CUevent event = NULL;
    CUcontext context;
    open_for(GPUPOOL_SOURCE_MAPPED, 16 * SIZE);
    put(get(SIZE, 0, 1), 0);
    for (int waits = 0; waits < 2; waits++) {
        fake_fail_call("cuCtxPopCurrent", 1, 0, 0);
        if (waits)
            CHECK_RESULT(gpi_event_stream_wait(&arena->clocks, cudaStreamLegacy, event),
                         GPUPOOL_E_CUDA);
        else
            CHECK_RESULT(gpi_event_record_event(&arena->clocks, known(0), &event, kit_stream[0]),
                         GPUPOOL_E_CUDA);
        CHECK_EQ(fake_fail_fired(), 1);
        fake_fail_clear();
        CHECK_EQ(cuCtxPopCurrent(&context), CUDA_SUCCESS);
    }
    CHECK_EQ(cuEventDestroy(event), CUDA_SUCCESS);
    close_arena();
}

/* Whether a default stream captures is asked of the arena's device, whichever is current. */
static void a_default_stream_of_another_device(void) {
    cudaGraph_t graph = NULL;
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    void *block = kit_alloc(arena, SIZE, kit_stream[0]);
    CHECK_EQ(cudaStreamBeginCapture(cudaStreamPerThread, cudaStreamCaptureModeRelaxed),
             cudaSuccess);
    CHECK_EQ(cudaSetDevice(1), cudaSuccess);
    CHECK_RESULT(gpupool_record_stream(arena, block, cudaStreamPerThread), GPUPOOL_E_CAPTURING);
    CHECK_EQ(cudaSetDevice(0), cudaSuccess);
    CHECK_EQ(cudaStreamEndCapture(cudaStreamPerThread, &graph), cudaSuccess);
    CHECK_EQ(cudaGraphDestroy(graph), cudaSuccess);
    put(block, 0);
    close_arena();
}
#endif

int main(void) {
    FAKE_TEST(no_more_streams_than_asked_for);
    FAKE_TEST(a_run_that_is_put_back);
    FAKE_TEST(apart_behind_the_second_mark);
    FAKE_TEST(marks_of_the_stream_before);
    FAKE_TEST(events_of_another_context);
    FAKE_TEST(as_many_threads_as_are_kept);
    FAKE_TEST(a_context_that_stays);
    FAKE_TEST(a_default_stream_of_another_device);
    return check_finish();
}
