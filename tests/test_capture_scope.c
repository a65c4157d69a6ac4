/* Capture scopes: what a graph is given stays its own through every replay, until it is released.
   Runs on a GPU too, but for what only the oracle and stepped streams can show. */
#define GPUPOOL_IMPLEMENTATION
#include "../gpupool.h"
#include "arena_kit.h"

static const enum cudaStreamCaptureMode modes[] = {
    cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeRelaxed};
static const gpupool_source sources[] = {GPUPOOL_SOURCE_AUTO, GPUPOOL_SOURCE_DEVICE};

#define BYTES ((size_t)3 << 20)

static gpupool_arena *arena;

static gpupool_capture *scope_on(cudaStream_t stream) {
    gpupool_capture *scope = NULL;
    CHECK_RESULT(gpupool_capture_begin(arena, stream, &scope), GPUPOOL_OK);
    return scope;
}

static void *get(size_t bytes, cudaStream_t stream) { return kit_alloc(arena, bytes, stream); }

static void put(void *block, cudaStream_t stream) {
    CHECK_RESULT(gpupool_free(arena, block, stream), GPUPOOL_OK);
}

static void fill(cudaStream_t stream, void *at, size_t bytes, int byte) {
    CHECK_EQ(cudaMemsetAsync(at, byte, bytes, stream), cudaSuccess);
}

static void begin(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
    CHECK_EQ(cudaStreamBeginCapture(stream, mode), cudaSuccess);
}

static cudaGraph_t ended(cudaStream_t stream) {
    cudaGraph_t graph = NULL;
    CHECK_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    return graph;
}

/* Not while this thread captures: CUDA refuses then, and that capture is lost. */
static cudaGraphExec_t made(cudaGraph_t graph) {
    cudaGraphExec_t exec = NULL;
    CHECK_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    CHECK_EQ(cudaGraphDestroy(graph), cudaSuccess);
    return exec;
}

static cudaGraphExec_t end(cudaStream_t stream) { return made(ended(stream)); }

static void release(gpupool_capture *scope, cudaGraphExec_t exec) {
    if (exec) CHECK_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
    CHECK_RESULT(gpupool_capture_release(scope), GPUPOOL_OK);
}

static void expect(const void *block, size_t bytes, int byte) {
    static unsigned char host[BYTES];
    CHECK_EQ(cudaMemcpy(host, block, bytes, cudaMemcpyDefault), cudaSuccess);
    for (size_t i = 0; i < bytes; i += 997) CHECK_EQ(host[i], byte);
}

/* Every block of the arena is free and in one account. */
static void all_is_back(void) {
    gpupool_stats stats = kit_stats(arena);
    CHECK_EQ(stats.blocks.now, 0);
    CHECK_EQ(stats.requested.now, 0);
    CHECK_EQ(stats.granted.now, 0);
    CHECK_EQ(gpi_process.scopes, 0);
}

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
    CHECK_RESULT(gpupool_capture_end(scope), GPUPOOL_OK);
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
        CHECK_RESULT(gpupool_capture_end(scope), GPUPOOL_OK);
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
        CHECK_EQ(gpupool_available(arena), 8 * MIB);
        put(inside, kit_stream[0]);
        CHECK_EQ(gpupool_available(arena), 12 * MIB);
        put(before, kit_stream[0]);
        CHECK_EQ(gpupool_available(arena), 12 * MIB);
        put(get(2 * MIB, kit_stream[0]), kit_stream[1]); /* parked, then the scope's own */
        CHECK_EQ(gpupool_available(arena), 12 * MIB);
        CHECK_RESULT(gpupool_capture_end(scope), GPUPOOL_OK);
        CHECK_EQ(gpupool_available(arena), 8 * MIB);
        put(used, kit_stream[1]); /* parked */
        CHECK_EQ(gpupool_available(arena), 8 * MIB);
        release(scope, NULL);
        CHECK_EQ(gpupool_available(arena), 16 * MIB);
        kit_close(arena);
    }
}

/* Pinned blocks are the host's at once, so not even the scope's stream has again what it freed. */
static void what_is_kept_of_pinned_memory(void) {
    arena = kit_open_limited(GPUPOOL_SOURCE_PINNED, 16 * MIB);
    gpupool_capture *scope = scope_on(kit_stream[0]);
    put(get(4 * MIB, kit_stream[0]), kit_stream[0]);
    CHECK_EQ(gpupool_available(arena), 12 * MIB);
    put(get(4 * MIB, kit_stream[0]), kit_stream[1]); /* parked */
    CHECK_EQ(gpupool_available(arena), 8 * MIB);
    CHECK(gpupool_alloc(arena, 12 * MIB, kit_stream[0]) == NULL);
    CHECK(get(8 * MIB, kit_stream[0]) != NULL);
    release(scope, NULL);
    CHECK_EQ(gpupool_available(arena), 16 * MIB);
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
    CHECK_RESULT(gpupool_capture_end(scope), GPUPOOL_OK);
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
    CHECK_RESULT(gpupool_capture_end(scope), GPUPOOL_OK);
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
        CHECK_RESULT(gpupool_capture_end(scope), GPUPOOL_OK);
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
        if (i % 2) CHECK_RESULT(gpupool_capture_end(scope), GPUPOOL_OK);
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
        CHECK_RESULT(gpupool_capture_end(scope[i]), GPUPOOL_OK);
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
        CHECK_RESULT(gpupool_capture_end(scope[i]), GPUPOOL_OK);
        exec[i] = end(kit_stream[0]);
        put(get(BYTES, kit_stream[0]), kit_stream[0]);
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
    CHECK_RESULT(gpupool_capture_begin(arena, kit_stream[0], &other), GPUPOOL_E_ARGUMENT);
    CHECK(other == NULL);
    CHECK_RESULT(gpupool_capture_begin(NULL, kit_stream[1], &other), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(gpupool_capture_begin(arena, kit_stream[1], NULL), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(gpupool_capture_end(NULL), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(gpupool_capture_release(NULL), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_E_IN_USE);
    CHECK(kit_same_stats(before, kit_stats(arena)));
    other = scope_on(kit_stream[1]);
    CHECK_RESULT(gpupool_capture_end(scope), GPUPOOL_OK);
    CHECK_RESULT(gpupool_capture_end(scope), GPUPOOL_OK); /* ended is ended */
    CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_E_IN_USE);
    CHECK(strstr(gpupool_last_error(), "2 captures") != NULL);
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
    CHECK_RESULT(gpupool_record_use(arena, block, kit_stream[0]), GPUPOOL_E_CAPTURING);
    CHECK_RESULT(gpupool_record_use(arena, eager, kit_stream[1]), GPUPOOL_OK);
    fill(kit_stream[0], block, BYTES, 3);
    CHECK_EQ(gpupool_size(arena, block), BYTES);
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    CHECK_RESULT(gpupool_capture_end(scope), GPUPOOL_OK);
    exec = end(kit_stream[0]); /* none of that was its end */
    put(eager, kit_stream[1]);
    put(block, kit_stream[1]);
    release(scope, exec);
    all_is_back();
    kit_close(arena);
}

#if CHECK_FAKE

/* ---- under the oracle: graphs launched on streams that wait for nothing ---- */

static void launch_at_once(cudaGraphExec_t exec, int stream) {
    CHECK_EQ(cudaGraphLaunch(exec, kit_stream[stream]), cudaSuccess);
    while (fake_step(kit_stream[stream])) continue;
    CHECK_EQ(fake_failures(), 0);
}

/* The stream's eager work on memory that it freed is not done when the graph runs elsewhere. */
static void the_graph_takes_none_of_the_streams_own(void) {
    for (int scope_first = 0; scope_first < 2; scope_first++) {
        check_case("scope first %d", scope_first);
        arena = kit_open(GPUPOOL_SOURCE_AUTO);
        gpupool_capture *scope = NULL;
        fake_mode(FAKE_STEPPED);
        void *block = get(BYTES, kit_stream[0]);
        fill(kit_stream[0], block, BYTES, 1);
        put(block, kit_stream[0]);
        if (scope_first) scope = scope_on(kit_stream[0]);
        begin(kit_stream[0], cudaStreamCaptureModeGlobal);
        if (!scope_first) scope = scope_on(kit_stream[0]);
        void *inside = get(BYTES, kit_stream[0]);
        fill(kit_stream[0], inside, BYTES, 2);
        CHECK_RESULT(gpupool_capture_end(scope), GPUPOOL_OK);
        cudaGraphExec_t exec = end(kit_stream[0]);
        launch_at_once(exec, 1);
        fake_run_all();
        release(scope, exec);
        kit_close(arena);
    }
}

/* Memory is short and another stream has some, with work on it: a wait of the scope's stream would
   not hold the graph back. */
static void the_graph_takes_none_behind_a_wait(void) {
    for (int scope_first = 0; scope_first < 2; scope_first++) {
        check_case("scope first %d", scope_first);
        arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 4 * MIB);
        gpupool_capture *scope = NULL;
        fake_mode(FAKE_STEPPED);
        void *idle = get(MIB, kit_stream[2]), *block = get(3 * MIB, kit_stream[1]);
        fill(kit_stream[1], block, 3 * MIB, 1);
        put(block, kit_stream[1]);
        put(idle, kit_stream[2]);
        if (scope_first) scope = scope_on(kit_stream[0]);
        else begin(kit_stream[0], cudaStreamCaptureModeGlobal);
        if (!scope_first) scope = scope_on(kit_stream[0]);
        void *inside = gpupool_alloc(arena, 3 * MIB, kit_stream[0]);
        if (scope_first) begin(kit_stream[0], cudaStreamCaptureModeGlobal);
        if (inside) fill(kit_stream[0], inside, 3 * MIB, 2);
        CHECK_RESULT(gpupool_capture_end(scope), GPUPOOL_OK);
        cudaGraphExec_t exec = end(kit_stream[0]);
        launch_at_once(exec, 3);
        fake_run_all();
        release(scope, exec);
        kit_close(arena);
    }
}

/* A block from before the scope is freed inside, while eager work on it is queued. */
static void a_block_from_before_is_not_reused_early(void) {
    arena = kit_open(GPUPOOL_SOURCE_AUTO);
    fake_mode(FAKE_STEPPED);
    void *block = get(BYTES, kit_stream[0]);
    fill(kit_stream[0], block, BYTES, 1);
    begin(kit_stream[0], cudaStreamCaptureModeGlobal);
    gpupool_capture *scope = scope_on(kit_stream[0]);
    put(block, kit_stream[0]);
    void *inside = get(BYTES, kit_stream[0]);
    fill(kit_stream[0], inside, BYTES, 2);
    CHECK_RESULT(gpupool_capture_end(scope), GPUPOOL_OK);
    cudaGraphExec_t exec = end(kit_stream[0]);
    launch_at_once(exec, 1);
    fake_run_all();
    release(scope, exec);
    all_is_back();
    kit_close(arena);
}

/* Nor by others, though all work so far is done: a replay may come. */
static void a_block_from_before_is_kept_till_the_release(void) {
    arena = kit_open_limited(GPUPOOL_SOURCE_DEVICE, 8 * MIB);
    void *old = get(5 * MIB, kit_stream[0]);
    gpupool_capture *scope = scope_on(kit_stream[0]);
    put(old, kit_stream[0]);
    CHECK_RESULT(gpupool_capture_end(scope), GPUPOOL_OK);
    CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
    for (int i = 0; i < 4; i++) put(get(KIB, kit_stream[2]), kit_stream[2]); /* looks at fences */
    CHECK_RESULT(kit_why(gpupool_alloc(arena, 5 * MIB, kit_stream[1])), GPUPOOL_E_OUT_OF_MEMORY);
    release(scope, NULL);
    put(get(5 * MIB, kit_stream[1]), kit_stream[1]);
    kit_close(arena);
}

/* A branch of the graph frees it, on a stream in a scope of its own or in none: another branch, of
   which nothing is known to come later, does not have it. */
static void a_branch_takes_none_of_another(void) {
    for (int own = 0; own < 2; own++) {
        check_case("scope of its own %d", own);
        arena = kit_open(GPUPOOL_SOURCE_AUTO);
        gpupool_capture *scope = scope_on(kit_stream[0]), *other = NULL;
        if (own) other = scope_on(kit_stream[1]);
        begin(kit_stream[0], cudaStreamCaptureModeGlobal);
        void *block = get(BYTES, kit_stream[0]);
        kit_order(kit_stream[0], kit_stream[1]);
        fill(kit_stream[1], block, BYTES, 1);
        put(block, kit_stream[1]);
        fill(kit_stream[0], get(BYTES, kit_stream[0]), BYTES, 2);
        kit_order(kit_stream[1], kit_stream[0]);
        cudaGraphExec_t exec = end(kit_stream[0]);
        launch_at_once(exec, 2);
        release(scope, exec);
        if (own) release(other, NULL);
        all_is_back();
        kit_close(arena);
    }
}

/* Another stream needs all there is, what others freed without a fence included: the capture is on
   a non-blocking stream, where nothing tells of it but the scope, or that there was one. */
static void running_out_loses_no_capture(void) {
    for (size_t i = 0; i < 2 * KIT_COUNT(sources) * KIT_COUNT(modes); i++) {
        gpupool_source source = sources[i / 3 % 2];
        check_case("source %d, mode %d, scope %d", (int)source, (int)modes[i % 3], (int)(i / 6));
        arena = kit_open_limited(source, 16 * MIB);
        fake_mode(FAKE_STEPPED);
        void *block[15];
        for (int k = 0; k < 15; k++) {
            block[k] = get(MIB, kit_stream[1]);
            fill(kit_stream[1], block[k], MIB, k);
        }
        gpupool_capture *scope = scope_on(kit_stream[0]);
        begin(kit_stream[0], modes[i % 3]);
        void *inside = get(256 * KIB, kit_stream[0]); /* a little is left */
        if (i / 6) CHECK_RESULT(gpupool_capture_end(scope), GPUPOOL_OK);
        for (int k = 0; k < 12; k++) put(block[k], kit_stream[1]);
        void *most = gpupool_alloc(arena, 11 * MIB, kit_stream[2]);
        for (int k = 12; k < 15; k++) put(block[k], kit_stream[1]);
        void *more = gpupool_alloc(arena, 2 * MIB, kit_stream[3]);
        CHECK(gpupool_alloc(arena, 17 * MIB, kit_stream[3]) == NULL);
        CHECK(source != GPUPOOL_SOURCE_AUTO || (most && more));
        CHECK_RESULT(gpupool_stream_retired(arena, kit_stream[1]), GPUPOOL_OK);
        if (most) put(most, kit_stream[2]);
        if (more) put(more, kit_stream[3]);
        fill(kit_stream[0], inside, 256 * KIB, 1);
        release(scope, end(kit_stream[0]));
        kit_close(arena);
    }
}

/* Released while its last replay still runs, and eager work on blocks freed elsewhere as well. */
static void a_release_waits_for_replays(void) {
    for (int way = 0; way < 4; way++) {
        int ended = way % 2, freed_elsewhere = way / 2;
        check_case("way %d", way);
        arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 4 * MIB);
        fake_mode(FAKE_STEPPED);
        begin(kit_stream[0], cudaStreamCaptureModeGlobal);
        gpupool_capture *scope = scope_on(kit_stream[0]);
        void *block[4];
        for (int i = 0; i < 4; i++) fill(kit_stream[0], block[i] = get(MIB, kit_stream[0]), MIB, i);
        if (ended) CHECK_RESULT(gpupool_capture_end(scope), GPUPOOL_OK);
        cudaGraphExec_t exec = end(kit_stream[0]);
        CHECK_EQ(cudaGraphLaunch(exec, kit_stream[1]), cudaSuccess);
        if (freed_elsewhere) {
            kit_order(kit_stream[1], kit_stream[2]);
            fill(kit_stream[2], block[1], MIB, 9);
            put(block[1], kit_stream[2]);
        }
        release(scope, exec);
        void *all = get(4 * MIB, kit_stream[3]);
        fill(kit_stream[3], all, 4 * MIB, 5);
        while (fake_step(kit_stream[3])) continue;
        CHECK_EQ(fake_failures(), 0);
        put(all, kit_stream[3]);
        fake_run_all();
        kit_close(arena);
    }
}

/* ---- a stream that ends inside its scope, and another under its handle ---- */

static void a_stream_ends_inside_its_scope(void) {
    for (int known = 0; known < 2; known++) {
        cudaStream_t brief, next;
        arena = kit_open(GPUPOOL_SOURCE_AUTO);
        fake_mode(FAKE_STEPPED);
        CHECK_EQ(cudaStreamCreateWithFlags(&brief, cudaStreamNonBlocking), cudaSuccess);
        if (known) { /* it leaves eager memory behind, with work on it */
            void *eager = get(BYTES, brief);
            fill(brief, eager, BYTES, 8);
            put(eager, brief);
        }
        gpupool_capture *scope = scope_on(brief);
        begin(brief, cudaStreamCaptureModeGlobal);
        void *inside = get(BYTES, brief);
        fill(brief, inside, BYTES, 1);
        cudaGraphExec_t exec = end(brief);
        CHECK_EQ(cudaStreamDestroy(brief), cudaSuccess);
        CHECK_EQ(cudaStreamCreateWithFlags(&next, cudaStreamNonBlocking), cudaSuccess);
        CHECK(next == brief);
        put(get(BYTES, next), next);
        CHECK_RESULT(gpupool_capture_end(scope), GPUPOOL_OK);
        for (int i = 0; i < 3; i++) {
            void *eager = get(BYTES, next);
            fill(next, eager, BYTES, 2);
            put(eager, next);
        }
        while (fake_step(next)) continue;
        CHECK_EQ(fake_failures(), 0);
        launch_at_once(exec, 1);
        fake_run_all();
        release(scope, exec);
        CHECK_EQ(cudaStreamDestroy(next), cudaSuccess);
        all_is_back();
        CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
        CHECK_EQ(kit_reserved(arena), 0);
        kit_close(arena);
    }
}

#endif

/* What growth took on its way is anyone's again, and not the graph's. */
static void a_refusal_in_a_scope_takes_nothing(void) {
    arena = kit_open_limited(GPUPOOL_SOURCE_AUTO, 64 * MIB);
    void *block = get(8 * MIB, kit_stream[1]);
    put(get(30 * MIB, kit_stream[1]), kit_stream[1]);
    CHECK_EQ(cudaStreamSynchronize(kit_stream[1]), cudaSuccess);
    CHECK_RESULT(gpupool_trim(arena, SIZE_MAX, NULL), GPUPOOL_OK); /* it is quiet */
    size_t available = gpupool_available(arena);
    gpupool_capture *scope = scope_on(kit_stream[0]);
    gpupool_stats before = kit_stats(arena);
    CHECK_RESULT(kit_why(gpupool_alloc(arena, 100 * MIB, kit_stream[0])),
                 GPUPOOL_E_OUT_OF_MEMORY);
    CHECK_EQ(kit_stats(arena).pending.now, before.pending.now);
    CHECK_EQ(kit_stats(arena).largest_free_bytes, before.largest_free_bytes);
    CHECK_RESULT(gpupool_capture_end(scope), GPUPOOL_OK);
    CHECK_EQ(gpupool_available(arena), available);
    put(get(50 * MIB, kit_stream[1]), kit_stream[1]);
    release(scope, NULL);
    put(block, kit_stream[1]);
    kit_close(arena);
}

int main(void) {
    ARENA_TEST(graphs_keep_their_memory);
    ARENA_TEST(zeroed_for_each_replay);
    ARENA_TEST(what_is_kept_is_not_available);
    ARENA_TEST(what_is_kept_of_pinned_memory);
    ARENA_TEST(destroying_another_arena_loses_no_capture);
    ARENA_TEST(graphs_keep_their_memory_without_a_pool);
    ARENA_TEST(an_older_block_is_kept_without_a_pool);
    ARENA_TEST(what_is_released_is_for_all);
    ARENA_TEST(a_lost_capture_gives_everything_back);
    ARENA_TEST(two_graphs_at_once);
    ARENA_TEST(many_graphs_of_one_stream);
    ARENA_TEST(wrong_calls);
    ARENA_TEST(no_events_inside);
    ARENA_TEST(a_refusal_in_a_scope_takes_nothing);
    FAKE_TEST(the_graph_takes_none_of_the_streams_own);
    FAKE_TEST(the_graph_takes_none_behind_a_wait);
    FAKE_TEST(a_block_from_before_is_not_reused_early);
    FAKE_TEST(a_block_from_before_is_kept_till_the_release);
    FAKE_TEST(a_branch_takes_none_of_another);
    FAKE_TEST(running_out_loses_no_capture);
    FAKE_TEST(a_release_waits_for_replays);
    FAKE_TEST(a_stream_ends_inside_its_scope);
    return check_finish();
}
