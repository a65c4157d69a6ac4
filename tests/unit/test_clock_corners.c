/* Streams and their marks at the corners: which streams are asked in turn, a run that goes back to
   a stream which is asked no longer, what joins beside two marks, structs that had another stream
   before, how many threads' streams are kept, and contexts that CUDA does not take off again. */
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "stream_kit.h"

#include <pthread.h>

#if CHECK_FAKE

static gpi_stream *known(int stream) {
    return gpi_clock_find(&arena->clocks, gpi_clock_key(kit_stream[stream]));
}

static cudaStream_t stream_of_1(void) {
    cudaStream_t stream = NULL;
    CHECK_EQ(cudaSetDevice(1), cudaSuccess);
    CHECK_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    CHECK_EQ(cudaSetDevice(0), cudaSuccess);
    return stream;
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
    CHECK_EQ(gpi_clock_next_busy(&arena->clocks, list, KIT_STREAMS), 3); /* each once */
    close_arena();
}

/* A stream is asked no longer while another thread has its only run; when the run is put back, the
   stream is asked again, and nothing keeps its struct. The run is at its old position, apart from
   what has finished beside it; or it is anybody's, if the stream has come as far meanwhile. */
static void a_run_that_is_put_back(void) {
    for (int passed = 0; passed < 2; passed++) {
        open_for(GPUPOOL_SOURCE_MAPPED, 16 * SIZE);
        put(get(SIZE, 0, 1), 0); /* alone, so that it gets no mark */
        gpi_tree *tree = &arena->tree;
        gpi_run *run = arena->chunks.home;
        while (run->list != known(0)->list) run = run->next;
        gpi_host_lock(&arena->lock);
        CHECK(gpi_tree_prepare(tree, 4));
        uint64_t at = run->of.at, rest = run->units - 1;
        gpi_tree_put(tree, gpi_tree_take(tree, run, run->unit + rest, 1), GPI_LIST_ANY, 0);
        gpi_stream *owner = gpi_clock_borrow(tree, run);
        run = gpi_tree_take(tree, run, run->unit, rest);
        gpi_arena_poll(arena, 1);
        CHECK(owner == known(0) && !owner->is_busy);
        CHECK_EQ(owner->refs, 1);
        if (passed) {
            CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
            gpi_clock_pass(&arena->clocks, owner, at);
        }
        run->of.uses = NULL; /* as who has taken it may leave it */
        gpi_clock_return(&arena->clocks, run, owner, at);
        gpi_host_unlock(&arena->lock);
        CHECK_EQ(owner->refs, 0);
        CHECK_EQ(tree->lists[owner->list]->units, passed ? 0 : rest);
        if (!passed) CHECK_EQ(run->of.at, at);
        CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
        close_arena();
    }
}

/* ---- how far a stream has come ---- */

/* A clock does not go back, nor say that it has advanced where it has not; at which positions runs
   stay apart follows it, and follows ALL once the stream's memory is looked at. */
static void clocks_go_on_only(void) {
    open_for(GPUPOOL_SOURCE_MAPPED, 16 * SIZE);
    put(get(SIZE, 0, 1), 0);
    put(get(SIZE, 1, 2), 1);
    CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
    gpi_clocks *clocks = &arena->clocks;
    gpi_stream *stream = known(0);
    const uint64_t *borders = arena->tree.lists[stream->list]->borders;
    uint64_t issued = stream->clock.issued;
    gpi_host_lock(&arena->lock);
    gpi_clock_pass(clocks, stream, issued);
    CHECK_EQ(borders[0], issued);
    uint64_t advances = clocks->advances;
    for (uint64_t less = 0; less < 2; less++) gpi_clock_pass(clocks, stream, issued - less);
    CHECK_EQ(stream->clock.passed, issued);
    CHECK_EQ(clocks->advances, advances);
    CHECK(clocks->position > issued);
    gpi_clock_pass(clocks, clocks->all, clocks->position);
    gpi_clock_move_finished(clocks, stream);
    CHECK_EQ(borders[0], clocks->position);
    gpi_host_unlock(&arena->lock);
    close_arena();
}

/* What lies behind a mark of ALL needs no mark of its own stream. */
static void a_mark_of_all_is_one_of_each(void) {
    open_for(GPUPOOL_SOURCE_MAPPED, 16 * SIZE);
    put(get(SIZE, 0, 1), 0);
    gpi_host_lock(&arena->lock);
    CHECK(gpi_clock_lacks_mark(&arena->clocks, known(0)));
    CHECK_RESULT(gpi_event_record_all(&arena->clocks), GPUPOOL_OK);
    CHECK(!gpi_clock_lacks_mark(&arena->clocks, known(0)));
    gpi_host_unlock(&arena->lock);
    close_arena();
}

/* A look sees that what was freed for all streams has finished, and moves nothing. */
static void a_look_at_what_all_have_freed(void) {
    arena = gpupool_get_default_arena(0);
    CHECK_EQ(gpupool_cudaFree(kit_alloc(arena, SIZE, kit_stream[0])), cudaSuccess);
    CHECK_EQ(arena->tree.lists[arena->clocks.all->list]->units, SIZE / GPUPOOL_UNIT_BYTES);
    gpi_host_lock(&arena->lock);
    gpi_arena_ask(arena);
    CHECK_EQ(gpi_arena_finished_bytes(arena), arena->ledger.reserved.now);
    CHECK(arena->tree.lists[arena->clocks.all->list]->units > 0);
    gpi_host_unlock(&arena->lock);
    kit_close(arena);
}

/* All that streams have of the host's memory. */
static void records_of_a_stream(void) {
    open_for(GPUPOOL_SOURCE_MAPPED, 16 * SIZE);
    put(get(4096, 0, 1), 0);
    uint64_t before = gpi_clock_host_bytes(&arena->clocks);
    put(get(4096, 1, 1), 1);
    CHECK_EQ(gpi_clock_host_bytes(&arena->clocks), before + sizeof(gpi_stream));
    gpi_cache *cache = &known(1)->cache;
    gpi_host_lock(&cache->lock);
    gpi_cache_widen(cache);
    CHECK(gpi_cache_host_bytes(cache) > 0);
    CHECK_EQ(gpi_clock_host_bytes(&arena->clocks),
             before + sizeof(gpi_stream) + gpi_cache_host_bytes(cache));
    cache->crowded = 1; /* as only such a cache is wide */
    gpi_host_unlock(&cache->lock);
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

/* While the device is far behind frees ask ever less often, up to a bound. As long as a mark is
   spare there is no question, and all that was counted lies behind the mark. The next stream that
   gets the struct begins anew. */
static void far_behind(void) {
    uint32_t most = 0;
    open_for(GPUPOOL_SOURCE_MAPPED, 16 * SIZE);
    put(get(4096, 1, 0), 1);
    put(get(SIZE / 8, 0, 0), 0); /* little, so it gets no mark now */
    gpi_stream *before = known(0);
    CHECK_EQ(before->frees, 1);
    gpi_host_lock(&arena->lock);
    CHECK_RESULT(gpi_event_record(&arena->clocks, before, kit_stream[0]), GPUPOOL_OK);
    gpi_host_unlock(&arena->lock);
    CHECK_EQ(before->frees + before->freed_units, 0);
    for (int i = 0; i < 300; i++) {
        put(get(SIZE, 0, i), 0);
        if (!i) CHECK_EQ(before->skips, 0); /* the other mark is behind it */
        if (before->skips > most) most = before->skips;
    }
    CHECK_EQ(most, 63);
    gpi_host_lock(&arena->lock);
    CHECK(!gpi_event_poll(&arena->clocks, before)); /* nothing has passed */
    gpi_host_unlock(&arena->lock);
    put(get(SIZE / 8, 0, 0), 0);
    CHECK(before->frees > 0 && before->misses > 0 && before->skips > 0);
    CHECK(before->clock.has_context);
    CHECK_RESULT(gpupool_retire_stream(arena, kit_stream[0]), GPUPOOL_OK);
    CHECK_RESULT(gpupool_wait_all(arena), GPUPOOL_OK);
    CHECK_EQ(before->handle, 0);
    void *block = get(4096, 0, 1);
    CHECK(known(0) == before);
    CHECK_EQ(before->frees + before->misses + before->skips, 0);
    CHECK(!before->clock.has_context); /* it may be a stream of another device */
    put(block, 0);
    close_arena();
}

/* That a stream has captured is remembered: no event goes over all streams any more, as it may
   capture again unseen. A scope's stream is counted by its scope. */
static void captures_that_were_seen(void) {
    cudaGraph_t graph = NULL;
    gpupool_capture *scope = NULL;
    void *block[2];
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    for (int i = 0; i < 2; i++) { /* while it captures, and then not */
        if (!i) CHECK_EQ(cudaStreamBeginCapture(kit_stream[0], cudaStreamCaptureModeRelaxed), 0);
        block[i] = kit_alloc(arena, SIZE, kit_stream[0]);
        CHECK_EQ(arena->clocks.capturing, !i);
        if (i) continue;
        CHECK_EQ(cudaStreamEndCapture(kit_stream[0], &graph), cudaSuccess);
        CHECK_EQ(cudaGraphDestroy(graph), cudaSuccess);
    }
    gpi_host_lock(&arena->lock);
    CHECK_RESULT(gpi_ladder_record_all(arena), GPUPOOL_E_CAPTURING);
    gpi_host_unlock(&arena->lock);
    for (int i = 0; i < 2; i++) put(block[i], 0);
    CHECK_RESULT(gpupool_begin_capture(arena, kit_stream[1], &scope), GPUPOOL_OK);
    CHECK_EQ(cudaStreamBeginCapture(kit_stream[1], cudaStreamCaptureModeRelaxed), cudaSuccess);
    put(kit_alloc(arena, SIZE, kit_stream[1]), 1);
    CHECK_EQ(arena->clocks.capturing, 0);
    CHECK_EQ(cudaStreamEndCapture(kit_stream[1], &graph), cudaSuccess);
    CHECK_EQ(cudaGraphDestroy(graph), cudaSuccess);
    CHECK_RESULT(gpupool_end_capture(scope), GPUPOOL_OK);
    CHECK_RESULT(gpupool_release_capture(scope), GPUPOOL_OK);
    close_arena();
}

/* A stream that is retired while it captures is asked no more, so it does not count for ever. */
static void a_capture_that_is_retired(void) {
    cudaGraph_t graph = NULL;
    open_for(GPUPOOL_SOURCE_MAPPED, 16 * SIZE);
    put(get(SIZE, 1, 0), 1); /* a second stream: frees record events */
    put(get(SIZE, 0, 1), 0);
    CHECK_EQ(cudaStreamBeginCapture(kit_stream[0], cudaStreamCaptureModeRelaxed), cudaSuccess);
    put(kit_alloc(arena, 2 * SIZE, kit_stream[0]), 0);
    CHECK_RESULT(gpupool_retire_stream(arena, kit_stream[0]), GPUPOOL_OK);
    CHECK_EQ(arena->clocks.capturing, 0);
    CHECK_EQ(gpi_process.capturing, 0);
    CHECK_EQ(cudaStreamEndCapture(kit_stream[0], &graph), cudaSuccess);
    CHECK_EQ(cudaGraphDestroy(graph), cudaSuccess);
    close_arena();
}

/* Two threads' first calls on a stream: the one that found no struct meets the other's, whose
   gpupool_record_stream has asked for the stream's id. It is the same stream all the same. */
static void a_struct_that_came_meanwhile(void) {
    gpi_caller call = gpi_arena_call(kit_stream[0]);
    open_for(GPUPOOL_SOURCE_MAPPED, 16 * SIZE);
    void *block = get(SIZE, 1, 0);
    CHECK_RESULT(gpupool_record_stream(arena, block, kit_stream[0]), GPUPOOL_OK);
    gpi_stream *before = known(0);
    CHECK(before->identity != 0);
    CHECK_RESULT(gpi_alloc_renew_stream(arena, &call), GPUPOOL_OK);
    CHECK(known(0) == before);
    put(block, 1);
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
    open_for(GPUPOOL_SOURCE_MAPPED, 16 * SIZE);
    put(get(4096, 1, 0), 1);
    put(get(SIZE, 0, 1), 0);
    fake_run_all();
    gpi_stream *stream = known(0);
    CHECK(stream->clock.marks[0].event != NULL);
    cudaStream_t far = stream_of_1();
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

/* Which context a stream is of is asked once. Events of the same one stay, whichever stream has the
   struct; and that CUDA does not answer is no answer. */
static void a_context_is_asked_for_once(void) {
    gpi_clocks *clocks;
    int ended = 0;
    open_for(GPUPOOL_SOURCE_MAPPED, 16 * SIZE);
    clocks = &arena->clocks;
    put(get(4096, 1, 0), 1);
    put(get(SIZE, 0, 1), 0);
    gpi_stream *stream = known(0);
    gpi_mark *mark = stream->clock.marks;
    CUevent event = mark->event;
    CHECK(event != NULL);
    long asked = fake_calls("cuStreamGetCtx");
    for (int again = 0; again < 2; again++) {
        stream->clock.has_context = !again;
        CHECK_RESULT(gpi_event_find_context(clocks, stream, kit_stream[0]), GPUPOOL_OK);
        CHECK_EQ(fake_calls("cuStreamGetCtx"), asked + again);
        CHECK(mark->event == event);
    }
    fake_fail_call("cuCtxGetId", 1, 1, 0);
    CHECK_RESULT(gpi_event_context_has_ended(clocks, stream, &ended), GPUPOOL_E_CUDA);
    CHECK_RESULT(gpi_event_mark_has_ended(clocks, stream, mark, &ended), GPUPOOL_E_CUDA);
    fake_fail_clear();
    close_arena();
}

/* Nor is a reset stream of another device taken for one of the arena's. */
static void a_context_that_is_not_told(void) {
    CUcontext context = NULL;
    open_for(GPUPOOL_SOURCE_MAPPED, 16 * SIZE);
    put(get(4096, 0, 1), 0);
    gpi_stream *stream = known(0);
    cudaStream_t far = stream_of_1();
    CHECK_EQ(cuStreamGetCtx(far, &context), CUDA_SUCCESS);
    CHECK_RESULT(gpi_event_find_context(&arena->clocks, stream, far), GPUPOOL_OK);
    CHECK(stream->clock.context == context);
    for (int reset = 0; reset < 2; reset++) {
        if (reset) {
            CHECK_EQ(cudaSetDevice(1), cudaSuccess);
            CHECK_EQ(cudaDeviceReset(), cudaSuccess);
            far = stream_of_1();
        }
        fake_fail_call(reset ? "cuStreamGetCtx" : "cuCtxGetId", 1, 0, 0);
        CHECK_RESULT(gpi_event_find_context(&arena->clocks, stream, far), GPUPOOL_E_CUDA);
        CHECK_EQ(fake_fail_fired(), 1);
        fake_fail_clear();
        CHECK(stream->clock.context == context);
    }
    CHECK_RESULT(gpi_event_find_context(&arena->clocks, stream, far), GPUPOOL_OK);
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
    FAKE_TEST(clocks_go_on_only);
    FAKE_TEST(a_mark_of_all_is_one_of_each);
    FAKE_TEST(a_look_at_what_all_have_freed);
    FAKE_TEST(records_of_a_stream);
    FAKE_TEST(apart_behind_the_second_mark);
    FAKE_TEST(far_behind);
    FAKE_TEST(captures_that_were_seen);
    FAKE_TEST(a_capture_that_is_retired);
    FAKE_TEST(a_struct_that_came_meanwhile);
    FAKE_TEST(marks_of_the_stream_before);
    FAKE_TEST(events_of_another_context);
    FAKE_TEST(a_context_is_asked_for_once);
    FAKE_TEST(a_context_that_is_not_told);
    FAKE_TEST(as_many_threads_as_are_kept);
    FAKE_TEST(a_context_that_stays);
    FAKE_TEST(a_default_stream_of_another_device);
    return check_finish();
}
