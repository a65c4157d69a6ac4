/* Capture scopes: what a graph is given stays its own through every replay, until it is released.
   Runs on a GPU too. */
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "capture_kit.h"

/* ---- a graph and its memory, in every mode ---- */

/* kept lives on, passing is freed inside and had again, by a block of the same size. */
static void captured(cudaStream_t stream, enum cudaStreamCaptureMode mode, int scope_first) {
    gpupool_capture *scope = NULL;
    void *kept, *passing, *again, *eager[4];
    cudaGraphExec_t exec;
    put(get(4096, stream), stream); /* there was eager work */
    if (scope_first) scope = scope_on(stream);
    begin(stream, mode);
    if (!scope_first) scope = scope_on(stream);
    kept = get(BYTES, stream);
    passing = gpupool_zalloc(arena, 16 * BYTES, stream); /* grows */
    put(passing, stream);
    again = get(16 * BYTES, stream);
    CHECK(again == passing);
    fill(stream, again, 16 * BYTES, 5);
    fill(stream, kept, BYTES, 7);
    put(again, stream);
    CHECK_RESULT(gpupool_end_capture(scope), GPUPOOL_OK);
    exec = end(stream);
    for (int turn = 0; turn < 3; turn++) {
        for (int i = 0; i < 4; i++) {
            eager[i] = get(4 * BYTES, i % 2 ? stream : kit_stream[3]);
            fill(i % 2 ? stream : kit_stream[3], eager[i], 4 * BYTES, 40 + i);
        }
        CHECK_EQ(cudaGraphLaunch(exec, stream), cudaSuccess);
        CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
        expect(kept, BYTES, 7);
        for (int i = 0; i < 4; i++) {
            expect(eager[i], BYTES, 40 + i);
            put(eager[i], i % 2 ? stream : kit_stream[3]);
        }
    }
    put(kept, stream);
    all_is_back();
    release(scope, exec);
}

static void graphs_keep_their_memory(void) {
    for (size_t i = 0; i < KIT_COUNT(sources) * KIT_COUNT(modes) * 4; i++) {
        cudaStream_t stream = kit_stream[0], blocking;
        enum cudaStreamCaptureMode mode = modes[i / 4 % KIT_COUNT(modes)];
        CHECK_EQ(cudaStreamCreate(&blocking), cudaSuccess);
        check_case("source %d, mode %d, blocking %d, scope first %d", (int)sources[i / 12],
                   (int)mode, (int)(i / 2 % 2), (int)(i % 2));
        arena = kit_open(sources[i / 12]);
        captured(i / 2 % 2 ? blocking : stream, mode, i % 2 != 0);
        all_is_back();
        kit_close(arena);
        CHECK_EQ(cudaStreamDestroy(blocking), cudaSuccess);
    }
}

/* A replay finds zeros, whatever the one before has left; in memory of the host's, too. */
static void zeroed_for_each_replay(void) {
    static const gpupool_source all[] = {GPUPOOL_SOURCE_AUTO, GPUPOOL_SOURCE_PINNED};
    for (size_t i = 0; i < KIT_COUNT(all); i++) {
        cudaStream_t stream = kit_stream[0];
        arena = kit_open(all[i]);
        check_case("source %d", (int)all[i]);
        void *seen = get(BYTES, stream);
        begin(stream, cudaStreamCaptureModeGlobal);
        gpupool_capture *scope = scope_on(stream);
        void *zeroed = gpupool_zalloc(arena, BYTES, stream);
        CHECK_EQ(cudaMemcpyAsync(seen, zeroed, BYTES, cudaMemcpyDefault, stream), cudaSuccess);
        fill(stream, zeroed, BYTES, 9);
        put(zeroed, stream);
        CHECK_RESULT(gpupool_end_capture(scope), GPUPOOL_OK);
        cudaGraphExec_t exec = end(stream);
        for (int turn = 0; turn < 3; turn++) {
            fill(stream, seen, BYTES, 5);
            CHECK_EQ(cudaGraphLaunch(exec, stream), cudaSuccess);
            CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
            expect(seen, BYTES, 0);
        }
        put(seen, stream);
        release(scope, exec);
        kit_finish(arena);
        kit_close(arena);
    }
}

/* While the scope is open, its stream may have again what it frees; then nobody may. */
static void what_is_kept_is_not_available(void) {
    for (size_t i = 0; i < KIT_COUNT(sources); i++) {
        arena = kit_open_limited(sources[i], 16 * MIB);
        void *before = get(2 * MIB, kit_stream[0]);
        gpupool_capture *scope = scope_on(kit_stream[0]);
        void *inside = get(4 * MIB, kit_stream[0]), *used = get(2 * MIB, kit_stream[0]);
        CHECK_EQ(kit_available(arena), 8 * MIB);
        put(inside, kit_stream[0]);
        CHECK_EQ(kit_available(arena), 12 * MIB);
        put(before, kit_stream[0]);
        CHECK_EQ(kit_available(arena), 12 * MIB);
        put(get(2 * MIB, kit_stream[0]), kit_stream[1]); /* waits for the release */
        CHECK_EQ(kit_available(arena), 10 * MIB);
        CHECK_RESULT(gpupool_end_capture(scope), GPUPOOL_OK);
        CHECK_EQ(kit_available(arena), 8 * MIB);
        put(used, kit_stream[1]); /* waits */
        CHECK_EQ(kit_available(arena), 8 * MIB);
        release(scope, NULL);
        CHECK_EQ(kit_available(arena), 16 * MIB);
        kit_close(arena);
    }
}

/* Pinned blocks are the host's at once, so not even the scope's stream has again what it freed. */
static void what_is_kept_of_pinned_memory(void) {
    arena = kit_open_limited(GPUPOOL_SOURCE_PINNED, 16 * MIB);
    gpupool_capture *scope = scope_on(kit_stream[0]);
    put(get(4 * MIB, kit_stream[0]), kit_stream[0]);
    CHECK_EQ(kit_available(arena), 12 * MIB);
    put(get(4 * MIB, kit_stream[0]), kit_stream[1]); /* parked */
    CHECK_EQ(kit_available(arena), 8 * MIB);
    CHECK(gpupool_alloc(arena, 12 * MIB, kit_stream[0]) == NULL);
    CHECK(get(8 * MIB, kit_stream[0]) != NULL);
    release(scope, NULL);
    CHECK_EQ(kit_available(arena), 16 * MIB);
    kit_close(arena);
}

/* Destroying waits for the device, but as cudaFree does. */
static void destroying_another_arena_loses_no_capture(void) {
    for (size_t i = 0; i < KIT_COUNT(sources); i++) {
        gpupool_arena *other = kit_open(sources[i]);
        void *block = kit_alloc(other, 4 * MIB, kit_stream[1]);
        fill(kit_stream[1], block, 4 * MIB, 1);
        CHECK_RESULT(gpupool_free(other, block, kit_stream[1]), GPUPOOL_OK);
        begin(kit_stream[0], cudaStreamCaptureModeGlobal);
        kit_close(other);
        CHECK_EQ(cudaGraphExecDestroy(end(kit_stream[0])), cudaSuccess);
    }
}

/* Without a pool, too: cudaFree must not have what a replay may touch. */
static void graphs_keep_their_memory_without_a_pool(void) {
    arena = kit_open(GPUPOOL_SOURCE_BYPASS);
    gpupool_capture *scope = scope_on(kit_stream[0]);
    begin(kit_stream[0], cudaStreamCaptureModeGlobal);
    void *kept = get(BYTES, kit_stream[0]), *passing = get(BYTES, kit_stream[0]);
    fill(kit_stream[0], kept, BYTES, 7);
    fill(kit_stream[0], passing, BYTES, 5);
    put(passing, kit_stream[0]);
    CHECK_RESULT(gpupool_end_capture(scope), GPUPOOL_OK);
    cudaGraphExec_t exec = end(kit_stream[0]);
    CHECK_EQ(cudaGraphLaunch(exec, kit_stream[0]), cudaSuccess);
    CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
    expect(kept, BYTES, 7);
    expect(passing, BYTES, 5);
    CHECK_EQ(kit_stats(arena).blocks.now, 1);
    release(scope, exec);
    all_is_back();
    CHECK_EQ(kit_reserved(arena), 0);
    kit_close(arena);
}

/* Nor a block that is older than the scope, but freed in it. */
static void an_older_block_is_kept_without_a_pool(void) {
    arena = kit_open(GPUPOOL_SOURCE_BYPASS);
    void *older = get(BYTES, kit_stream[0]);
    gpupool_capture *scope = scope_on(kit_stream[0]);
    begin(kit_stream[0], cudaStreamCaptureModeGlobal);
    fill(kit_stream[0], older, BYTES, 7);
    put(older, kit_stream[0]);
    CHECK_RESULT(gpupool_end_capture(scope), GPUPOOL_OK);
    cudaGraphExec_t exec = end(kit_stream[0]);
    CHECK_EQ(kit_stats(arena).blocks.now, 0);
    CHECK_EQ(cudaGraphLaunch(exec, kit_stream[0]), cudaSuccess);
    CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
    expect(older, BYTES, 7);
    release(scope, exec);
    all_is_back();
    CHECK_EQ(kit_reserved(arena), 0);
    kit_close(arena);
}

/* All that a released graph had is for everybody: with a limit of that, for one large block. */
static void what_is_released_is_for_all(void) {
    for (size_t s = 0; s < KIT_COUNT(sources); s++) {
        arena = kit_open_limited(sources[s], 16 * MIB);
        gpupool_capture *scope = scope_on(kit_stream[0]);
        begin(kit_stream[0], cudaStreamCaptureModeGlobal);
        void *block[4];
        for (int i = 0; i < 4; i++) {
            block[i] = get(4 * MIB, kit_stream[0]);
            fill(kit_stream[0], block[i], MIB, i);
        }
        CHECK(gpupool_alloc(arena, MIB, kit_stream[0]) == NULL);
        CHECK_RESULT(gpupool_last_result(), GPUPOOL_E_OUT_OF_MEMORY);
        put(block[1], kit_stream[0]);
        CHECK_RESULT(gpupool_end_capture(scope), GPUPOOL_OK);
        cudaGraphExec_t exec = end(kit_stream[0]);
        CHECK(gpupool_alloc(arena, MIB, kit_stream[0]) == NULL); /* the graph's, though free */
        CHECK(gpupool_alloc(arena, MIB, kit_stream[1]) == NULL);
        CHECK_EQ(cudaGraphLaunch(exec, kit_stream[0]), cudaSuccess);
        put(block[2], kit_stream[1]); /* freed after the end, elsewhere: the graph's all the same */
        put(block[3], kit_stream[0]);
        CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
        CHECK(gpupool_alloc(arena, MIB, kit_stream[1]) == NULL);
        CHECK_EQ(kit_stats(arena).blocks.now, 1);
        release(scope, exec); /* block[0] is live, and comes back */
        all_is_back();
        CHECK(gpupool_free(arena, block[0], kit_stream[0]) == GPUPOOL_E_DOUBLE_FREE);
        void *all = get(sources[s] == GPUPOOL_SOURCE_DEVICE ? 4 * MIB : 16 * MIB, kit_stream[2]);
        if (all) kit_mark(kit_stream[2], all, 4 * MIB, 1);
        if (all) put(all, kit_stream[2]);
        kit_close(arena);
    }
}

/* ---- captures that fail ---- */

static void lose(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
    cudaGraph_t graph = NULL;
    begin(stream, mode);
    void *kept = get(BYTES, stream), *freed = get(2 * BYTES, stream);
    fill(stream, kept, BYTES, 1);
    put(freed, stream);
    CHECK(cudaStreamSynchronize(stream) != cudaSuccess); /* forbidden: the capture is lost */
    void *after = get(BYTES, stream); /* on a lost capture still a block */
    CHECK(after != NULL);
    CHECK(cudaStreamEndCapture(stream, &graph) != cudaSuccess);
    CHECK(graph == NULL);
    cudaGetLastError();
}

static void a_lost_capture_gives_everything_back(void) {
    for (size_t i = 0; i < KIT_COUNT(sources) * KIT_COUNT(modes) * 2; i++) {
        check_case("source %d, mode %d, ended %d", (int)sources[i / 6], (int)(i / 2 % 3),
                   (int)(i % 2));
        arena = kit_open(sources[i / 6]);
        gpupool_capture *scope = scope_on(kit_stream[0]);
        lose(kit_stream[0], modes[i / 2 % 3]);
        if (i % 2) CHECK_RESULT(gpupool_end_capture(scope), GPUPOOL_OK);
        release(scope, NULL);
        all_is_back();
        size_t held = kit_reserved(arena);
        void *again = get(2 * BYTES, kit_stream[0]); /* the stream is as before */
        put(again, kit_stream[0]);
        CHECK_EQ(kit_reserved(arena), held);
        kit_finish(arena);
        CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
        CHECK_EQ(kit_reserved(arena), 0);
        kit_close(arena);
    }
}

/* ---- several graphs ---- */

static void two_graphs_at_once(void) {
    arena = kit_open(GPUPOOL_SOURCE_AUTO);
    gpupool_capture *scope[2];
    cudaGraph_t graph[2];
    cudaGraphExec_t exec[2];
    void *kept[2][4], *temporary;
    for (int i = 0; i < 2; i++) { /* both open, on two streams */
        begin(kit_stream[i], cudaStreamCaptureModeThreadLocal);
        scope[i] = scope_on(kit_stream[i]);
    }
    for (int k = 0; k < 4; k++) {
        for (int i = 0; i < 2; i++) {
            temporary = get(BYTES, kit_stream[i]);
            fill(kit_stream[i], temporary, BYTES, 99);
            put(temporary, kit_stream[i]);
            kept[i][k] = get(BYTES / 2, kit_stream[i]);
            fill(kit_stream[i], kept[i][k], BYTES / 2, 10 * i + k);
        }
    }
    for (int i = 0; i < 2; i++) {
        CHECK_RESULT(gpupool_end_capture(scope[i]), GPUPOOL_OK);
        graph[i] = ended(kit_stream[i]);
    }
    for (int i = 0; i < 2; i++) exec[i] = made(graph[i]);
    for (int turn = 0; turn < 4; turn++) { /* side by side, on streams of their own */
        CHECK_EQ(cudaGraphLaunch(exec[0], kit_stream[2]), cudaSuccess);
        CHECK_EQ(cudaGraphLaunch(exec[1], kit_stream[3]), cudaSuccess);
    }
    CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
    for (int i = 0; i < 8; i++) expect(kept[i / 4][i % 4], BYTES / 2, 10 * (i / 4) + i % 4);
    release(scope[0], exec[0]);
    void *eager = get(4 * BYTES, kit_stream[2]); /* what the first graph had */
    fill(kit_stream[2], eager, 4 * BYTES, 200);
    CHECK_EQ(cudaGraphLaunch(exec[1], kit_stream[3]), cudaSuccess);
    CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
    for (int k = 0; k < 4; k++) expect(kept[1][k], BYTES / 2, 10 + k);
    expect(eager, BYTES, 200);
    put(eager, kit_stream[2]);
    release(scope[1], exec[1]);
    all_is_back();
    kit_close(arena);
}

/* One after the other on one stream, each with its own memory. */
static void many_graphs_of_one_stream(void) {
    enum { GRAPHS = 12 };
    gpupool_capture *scope[GRAPHS];
    cudaGraphExec_t exec[GRAPHS];
    void *kept[GRAPHS];
    arena = kit_open(GPUPOOL_SOURCE_AUTO);
    for (int i = 0; i < GRAPHS; i++) {
        begin(kit_stream[0], modes[i % 3]);
        scope[i] = scope_on(kit_stream[0]);
        fill(kit_stream[0], kept[i] = get(BYTES, kit_stream[0]), BYTES, i);
        CHECK_RESULT(gpupool_end_capture(scope[i]), GPUPOOL_OK);
        exec[i] = end(kit_stream[0]);
        put(get(BYTES, kit_stream[0]), kit_stream[0]);
        uintptr_t key = gpi_clock_key(kit_stream[0]);
        CHECK_EQ(arena->clocks.buckets[gpi_clock_bucket(key)]->key, key); /* at once, always */
    }
    for (int i = GRAPHS; i-- > 0;)
        CHECK_EQ(cudaGraphLaunch(exec[i], kit_stream[i % 4]), cudaSuccess);
    CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
    for (int i = 0; i < GRAPHS; i++) expect(kept[i], BYTES, i);
    for (int i = 0; i < GRAPHS; i++) release(scope[(i * 5) % GRAPHS], exec[(i * 5) % GRAPHS]);
    all_is_back();
    kit_close(arena);
}

/* ---- what is refused ---- */

static void wrong_calls(void) {
    gpupool_capture *scope, *other = (gpupool_capture *)&scope;
    arena = kit_open(GPUPOOL_SOURCE_AUTO);
    scope = scope_on(kit_stream[0]);
    gpupool_stats before = kit_stats(arena);
    CHECK_RESULT(gpupool_begin_capture(arena, kit_stream[0], &other), GPUPOOL_E_ARGUMENT);
    CHECK(other == NULL);
    CHECK_RESULT(gpupool_begin_capture(NULL, kit_stream[1], &other), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(gpupool_begin_capture(arena, kit_stream[1], NULL), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(gpupool_end_capture(NULL), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(gpupool_release_capture(NULL), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_E_IN_USE);
    CHECK(kit_same_stats(before, kit_stats(arena)));
    other = scope_on(kit_stream[1]);
    CHECK_RESULT(gpupool_end_capture(scope), GPUPOOL_OK);
    CHECK_RESULT(gpupool_end_capture(scope), GPUPOOL_OK); /* ended is ended */
    CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_E_IN_USE);
    CHECK(strstr(gpupool_last_error(), "not released: 2") != NULL);
    release(scope, NULL);
    release(other, NULL);
    kit_close(arena);
}

static void no_events_inside(void) {
    cudaGraphExec_t exec;
    arena = kit_open(GPUPOOL_SOURCE_AUTO);
    begin(kit_stream[0], cudaStreamCaptureModeGlobal);
    gpupool_capture *scope = scope_on(kit_stream[0]);
    void *block = get(BYTES, kit_stream[0]), *eager = get(BYTES, kit_stream[1]);
    CHECK_RESULT(gpupool_record_stream(arena, block, kit_stream[0]), GPUPOOL_E_CAPTURING);
    CHECK_RESULT(gpupool_record_stream(arena, eager, kit_stream[1]), GPUPOOL_OK);
    fill(kit_stream[0], block, BYTES, 3);
    CHECK_EQ(kit_size(arena, block), BYTES);
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    CHECK_RESULT(gpupool_end_capture(scope), GPUPOOL_OK);
    exec = end(kit_stream[0]); /* none of that was its end */
    put(eager, kit_stream[1]);
    put(block, kit_stream[1]);
    release(scope, exec);
    all_is_back();
    kit_close(arena);
}

/* A wait for a stream that captures is refused, whether or not the stream has freed anything. */
static void no_wait_for_a_capture(void) {
    arena = kit_open(GPUPOOL_SOURCE_AUTO);
    for (int known = 0; known < 2; known++) {
        begin(kit_stream[0], cudaStreamCaptureModeGlobal);
        CHECK_RESULT(gpupool_wait_stream(arena, kit_stream[0]), GPUPOOL_E_CAPTURING);
        CHECK_EQ(cudaGraphDestroy(ended(kit_stream[0])), cudaSuccess);
        put(get(4096, kit_stream[0]), kit_stream[0]);
        CHECK_RESULT(gpupool_wait_stream(arena, kit_stream[0]), GPUPOOL_OK);
    }
    kit_close(arena);
}

/* What growth took on its way is anyone's again, and not the graph's. */
static void a_refusal_in_a_scope_takes_nothing(void) {
    arena = kit_open_limited(GPUPOOL_SOURCE_AUTO, 64 * MIB);
    void *block = get(8 * MIB, kit_stream[1]);
    put(get(30 * MIB, kit_stream[1]), kit_stream[1]);
    CHECK_EQ(cudaStreamSynchronize(kit_stream[1]), cudaSuccess);
    CHECK_RESULT(gpupool_trim(arena, SIZE_MAX, NULL), GPUPOOL_OK); /* it is quiet */
    size_t available = kit_available(arena);
    gpupool_capture *scope = scope_on(kit_stream[0]);
    gpupool_stats before = kit_stats(arena);
    CHECK_RESULT(kit_why(gpupool_alloc(arena, 100 * MIB, kit_stream[0])),
                 GPUPOOL_E_OUT_OF_MEMORY);
    CHECK_EQ(kit_stats(arena).pending.now, before.pending.now);
    CHECK_EQ(kit_stats(arena).largest_free_bytes, before.largest_free_bytes);
    CHECK_RESULT(gpupool_end_capture(scope), GPUPOOL_OK);
    CHECK_EQ(kit_available(arena), available);
    put(get(50 * MIB, kit_stream[1]), kit_stream[1]);
    release(scope, NULL);
    put(block, kit_stream[1]);
    kit_close(arena);
}

#if CHECK_FAKE
/* The scope's stream may use a block of before as long as it captures nothing. A free in the scope
   waits for the use of a third stream all the same. */
static void a_use_by_the_scopes_stream(void) {
    fake_mode(FAKE_STEPPED);
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 4 * MIB);
    void *block = get(BYTES, kit_stream[0]), *other;
    fill(kit_stream[2], block, BYTES, 7);
    CHECK_RESULT(gpupool_record_stream(arena, block, kit_stream[2]), GPUPOOL_OK);
    gpupool_capture *scope = scope_on(kit_stream[1]);
    CHECK_RESULT(gpupool_wait_stream(arena, kit_stream[1]), GPUPOOL_E_CAPTURING);
    CHECK_RESULT(gpupool_last_result(), GPUPOOL_E_CAPTURING);
    CHECK(strstr(gpupool_last_error(), "the stream captures") != NULL);
    CHECK_RESULT(gpupool_record_stream(arena, block, kit_stream[1]), GPUPOOL_OK);
    put(block, kit_stream[1]);
    CHECK_RESULT(kit_why(gpupool_alloc(arena, BYTES, kit_stream[1])), GPUPOOL_E_OUT_OF_MEMORY);
    CHECK_RESULT(gpupool_end_capture(scope), GPUPOOL_OK);
    release(scope, NULL);
    other = get(BYTES, kit_stream[3]);
    CHECK(other == block);
    fill(kit_stream[3], other, BYTES, 8);
    put(other, kit_stream[3]);
    fake_run_all();
    CHECK_EQ(fake_failures(), 0);
    kit_close(arena);
}

/* What the scope's stream has queued before the capture is no graph's: a block that it was recorded
   for stays the program's over the release, be it of no graph or of another. */
static void a_use_in_a_scope_gives_no_block_away(void) {
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    gpupool_capture *first = scope_on(kit_stream[0]);
    void *kept = get(BYTES, kit_stream[0]), *block = get(BYTES, kit_stream[2]);
    gpupool_capture *scope = scope_on(kit_stream[1]);
    fill(kit_stream[1], block, BYTES, 7);
    CHECK_RESULT(gpupool_record_stream(arena, block, kit_stream[1]), GPUPOOL_OK);
    CHECK_RESULT(gpupool_record_stream(arena, kept, kit_stream[1]), GPUPOOL_OK);
    release(scope, NULL);
    CHECK_EQ(kit_size(arena, block), BYTES);
    CHECK_EQ(kit_size(arena, kept), BYTES);
    put(block, kit_stream[2]);
    release(first, NULL);
    all_is_back();
    kit_close(arena);
}

/* A stream that was unknown before the scope gets a struct of its own for that, which has the
   stream's key after the scope. */
static void a_use_in_a_scope_makes_the_stream_known(void) {
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    void *block = get(BYTES, kit_stream[0]);
    gpupool_capture *scope = scope_on(kit_stream[1]);
    CHECK(scope->outer == NULL);
    CHECK_RESULT(gpupool_record_stream(arena, block, kit_stream[1]), GPUPOOL_OK);
    gpi_stream *own = scope->outer;
    CHECK(own != NULL);
    CHECK_RESULT(gpupool_record_stream(arena, block, kit_stream[1]), GPUPOOL_OK);
    CHECK(scope->outer == own);
    CHECK_RESULT(gpupool_end_capture(scope), GPUPOOL_OK);
    CHECK(gpi_clock_find(&arena->clocks, (uintptr_t)kit_stream[1]) == own);
    CHECK_RESULT(gpupool_release_capture(scope), GPUPOOL_OK);
    put(block, kit_stream[0]);
    kit_close(arena);
}

/* Such work has not finished when the graph is launched: the graph does not get the block's memory,
   though the scope's stream alone has used the block. */
static void work_before_the_capture_holds_a_block_back(void) {
    fake_mode(FAKE_STEPPED);
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    void *block = get(BYTES, kit_stream[0]), *other;
    gpupool_capture *scope = scope_on(kit_stream[0]);
    fill(kit_stream[0], block, BYTES, 7);
    CHECK_RESULT(gpupool_record_stream(arena, block, kit_stream[0]), GPUPOOL_OK);
    put(block, kit_stream[0]);
    begin(kit_stream[0], cudaStreamCaptureModeGlobal);
    other = get(BYTES, kit_stream[0]);
    fill(kit_stream[0], other, BYTES, 8);
    cudaGraphExec_t exec = end(kit_stream[0]);
    CHECK_EQ(cudaGraphLaunch(exec, kit_stream[1]), cudaSuccess);
    fake_run(kit_stream[1]);
    fake_run_all();
    CHECK_EQ(fake_failures(), 0);
    release(scope, exec);
    kit_close(arena);
}
#endif

int main(void) {
    ARENA_TEST(graphs_keep_their_memory);
    ARENA_TEST(zeroed_for_each_replay);
    ARENA_TEST(what_is_kept_is_not_available);
    ARENA_TEST(what_is_kept_of_pinned_memory);
    FAKE_TEST(a_use_by_the_scopes_stream);
    FAKE_TEST(a_use_in_a_scope_gives_no_block_away);
    FAKE_TEST(a_use_in_a_scope_makes_the_stream_known);
    FAKE_TEST(work_before_the_capture_holds_a_block_back);
    ARENA_TEST(destroying_another_arena_loses_no_capture);
    ARENA_TEST(graphs_keep_their_memory_without_a_pool);
    ARENA_TEST(an_older_block_is_kept_without_a_pool);
    ARENA_TEST(what_is_released_is_for_all);
    ARENA_TEST(a_lost_capture_gives_everything_back);
    ARENA_TEST(two_graphs_at_once);
    ARENA_TEST(many_graphs_of_one_stream);
    ARENA_TEST(wrong_calls);
    ARENA_TEST(no_events_inside);
    ARENA_TEST(no_wait_for_a_capture);
    ARENA_TEST(a_refusal_in_a_scope_takes_nothing);
    return check_finish();
}
