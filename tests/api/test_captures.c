/* Graphs: what a scope hands out belongs to the graph until the release; without a scope a
   capturing stream gets memory at hand only; and no call ends a capture. */
#include "gpupool.h"
#include "kit.h"

#define SIZE (8 * MIB)
#define A kit_stream[0]
#define B kit_stream[1]

static gpupool_arena *arena;

static void start_capture(cudaStream_t stream) {
    CHECK_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
}

static cudaGraphExec_t end_graph(cudaStream_t stream) {
    cudaGraphExec_t graph = NULL;
    cudaGraph_t captured = NULL;
    CHECK_EQ(cudaStreamEndCapture(stream, &captured), cudaSuccess);
    CHECK_EQ(cudaGraphInstantiate(&graph, captured, 0), cudaSuccess);
    CHECK_EQ(cudaGraphDestroy(captured), cudaSuccess);
    return graph;
}

static void launch(cudaGraphExec_t graph, cudaStream_t stream) {
    CHECK_EQ(cudaGraphLaunch(graph, stream), cudaSuccess);
}

static void end_of(cudaGraphExec_t graph, gpupool_capture *scope) {
    CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
    CHECK_EQ(cudaGraphExecDestroy(graph), cudaSuccess);
    if (scope) CHECK_RESULT(gpupool_release_capture(scope), GPUPOOL_OK);
}

static gpupool_capture *begin_scope(cudaStream_t stream) {
    gpupool_capture *scope = NULL;
    CHECK_RESULT(gpupool_begin_capture(arena, stream, &scope), GPUPOOL_OK);
    CHECK(scope);
    return scope;
}

/* A graph with one block that it writes, then verifies by the value of a second one. */
static cudaGraphExec_t capture(gpupool_capture **scope, int byte, void **kept) {
    void *scratch;
    *scope = begin_scope(A);
    start_capture(A);
    scratch = gpupool_alloc(arena, SIZE, A);
    CHECK(scratch);
    kit_write(scratch, SIZE, A, byte);
    kit_free(arena, scratch, A);
    *kept = gpupool_alloc(arena, SIZE / 2, A); /* the graph's own memory once more */
    CHECK(*kept);
    kit_write(*kept, SIZE / 2, A, byte);
    CHECK_RESULT(gpupool_end_capture(*scope), GPUPOOL_OK);
    return end_graph(A);
}

/* Eager work between two launches never gets what the graph writes. */
static void a_graphs_memory_is_its_own(void) {
    gpupool_capture *scope;
    cudaGraphExec_t graph;
    void *kept, *eager[6];
    int i, round;
    arena = kit_open(0);
    graph = capture(&scope, 1, &kept);
    for (round = 0; round < 3; round++) {
        for (i = 0; i < 6; i++) {
            eager[i] = gpupool_alloc(arena, SIZE / 2, kit_stream[i % 2]);
            CHECK(eager[i]);
            kit_write(eager[i], SIZE / 2, kit_stream[i % 2], 10 + i);
        }
        launch(graph, B);
        for (i = 0; i < 6; i++) {
            kit_verify(eager[i], SIZE / 2, kit_stream[i % 2], 10 + i);
            kit_free(arena, eager[i], kit_stream[i % 2]);
        }
        kit_verify(kept, SIZE / 2, B, 1);
    }
    CHECK_EQ(kit_stats(arena).blocks, 1);
    end_of(graph, scope);
    CHECK_EQ(kit_stats(arena).blocks, 0); /* kept is gone with the release */
    CHECK_RESULT(gpupool_free(arena, kept, A), GPUPOOL_E_DOUBLE_FREE);
    kit_close(arena);
}

/* What is freed in the scope serves the graph's next requests, so graphs need no more than eager
   work does. */
static void reuse_inside(void) {
    gpupool_capture *scope;
    cudaGraphExec_t graph;
    arena = kit_open(SIZE);
    scope = begin_scope(A);
    start_capture(A);
    for (int i = 0; i < 20; i++) {
        void *block = gpupool_alloc(arena, i % 2 ? SIZE : 1000, A);
        check_case("request %d", i);
        CHECK(block);
        kit_write(block, 1000, A, i);
        kit_free(arena, block, A);
    }
    graph = end_graph(A);
    CHECK_RESULT(gpupool_end_capture(scope), GPUPOOL_OK);
    CHECK(!gpupool_alloc(arena, SIZE, A)); /* it is the graph's */
    CHECK_EQ(gpupool_last_verdict()->cause, GPUPOOL_CAUSE_PENDING);
    launch(graph, A);
    end_of(graph, scope);
    CHECK_EQ(kit_stats(arena).pending.now, 0);
    kit_free(arena, gpupool_alloc(arena, SIZE, B), B);
    kit_close(arena);
}

/* The release waits for the launches that are under way. */
static void release_waits(void) {
    gpupool_capture *scope;
    cudaGraphExec_t graph;
    void *kept, *block;
    arena = kit_open(4 * SIZE);
    graph = capture(&scope, 1, &kept);
#if CHECK_FAKE
    fake_mode(FAKE_STEPPED);
#endif
    launch(graph, B);
    CHECK_RESULT(gpupool_release_capture(scope), GPUPOOL_OK);
    block = gpupool_alloc(arena, 4 * SIZE, A);
    CHECK(block);
    kit_write(block, 4 * SIZE, A, 2);
    kit_free(arena, block, A);
    end_of(graph, NULL);
    kit_close(arena);
}

static void scopes_are_refused(void) {
    gpupool_capture *scope, *second = (gpupool_capture *)(void *)&second;
    arena = kit_open(0);
    scope = begin_scope(A);
    KIT_REFUSES(gpupool_begin_capture(arena, A, &second), GPUPOOL_E_ARGUMENT, "scope");
    CHECK(!second);
    KIT_REFUSES(gpupool_begin_capture(arena, GPUPOOL_NO_STREAM, &second), GPUPOOL_E_ARGUMENT,
                "stream");
    KIT_REFUSES(gpupool_arena_destroy(arena), GPUPOOL_E_IN_USE, "scope");
    CHECK_RESULT(gpupool_end_capture(scope), GPUPOOL_OK);
    KIT_REFUSES(gpupool_arena_destroy(arena), GPUPOOL_E_IN_USE, "scope");
    second = begin_scope(A); /* the first is closed */
    CHECK_RESULT(gpupool_release_capture(second), GPUPOOL_OK);
    CHECK_RESULT(gpupool_release_capture(scope), GPUPOOL_OK);
    kit_close(arena);
}

/* Retiring a stream closes its scope; the graph keeps its memory. */
static void retired_stream(void) {
    gpupool_capture *scope;
    cudaStream_t stream;
    void *block;
    arena = kit_open(0);
    CHECK_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    scope = begin_scope(stream);
    block = gpupool_alloc(arena, SIZE, stream);
    CHECK(block);
    CHECK_RESULT(gpupool_retire_stream(stream), GPUPOOL_OK);
    CHECK_EQ(cudaStreamDestroy(stream), cudaSuccess);
    CHECK_EQ(kit_stats(arena).blocks, 1);
    CHECK_RESULT(gpupool_release_capture(scope), GPUPOOL_OK);
    CHECK_EQ(kit_stats(arena).blocks, 0);
    kit_close(arena);
}

/* ---- without a scope ---- */

/* The stream's own memory and finished memory is at hand; growth and waits are not. */
static void without_a_scope(void) {
    cudaGraphExec_t graph;
    void *mine, *finished, *live;
    arena = kit_open(0);
    live = gpupool_alloc(arena, 1000, B);
    kit_free(arena, gpupool_alloc(arena, SIZE, A), A);
    start_capture(A);
    mine = gpupool_alloc(arena, SIZE, A);
    CHECK(mine);
    kit_write(mine, SIZE, A, 1);
    KIT_FAILS(gpupool_alloc(arena, 20 * SIZE, A), GPUPOOL_E_CAPTURING, "scope");
    KIT_REFUSES(gpupool_record_stream(arena, live, A), GPUPOOL_E_CAPTURING, "captur");
    finished = gpupool_alloc(arena, 20 * SIZE, B); /* others go on */
    CHECK(finished);
    kit_free(arena, finished, GPUPOOL_NO_STREAM);
    finished = gpupool_alloc(arena, 20 * SIZE, A);
    CHECK(finished);
    kit_write(finished, 20 * SIZE, A, 2);
    graph = end_graph(A); /* the capture has survived all of it */
    launch(graph, A);
    end_of(graph, NULL);
    kit_free(arena, finished, A);
    kit_free(arena, mine, A);
    kit_free(arena, live, B);
    kit_close(arena);
}

/* Beside a capture whatever another stream needs is done, and the capture goes on. */
static void beside_a_capture(void) {
    cudaGraphExec_t graph;
    gpupool_capture *scope;
    void *block;
    arena = kit_open(4 * SIZE);
    kit_free(arena, gpupool_alloc(arena, SIZE, kit_stream[2]), kit_stream[2]);
    scope = begin_scope(A);
    start_capture(A);
    for (int i = 0; i < 8; i++) {
        cudaStream_t stream = kit_stream[1 + i % 3];
        block = gpupool_alloc(arena, (size_t)(1 + i % 4) * SIZE, stream);
        check_case("request %d", i);
        CHECK(block);
        kit_write(block, SIZE, stream, i);
        kit_free(arena, block, stream);
    }
    CHECK_RESULT(gpupool_trim(arena, 0), GPUPOOL_OK);
    block = gpupool_alloc(arena, SIZE, A);
    CHECK(block);
    kit_write(block, SIZE, A, 1);
    graph = end_graph(A);
    launch(graph, A);
    end_of(graph, scope);
    kit_close(arena);
}

int main(void) {
    KIT_TEST(a_graphs_memory_is_its_own);
    KIT_TEST(reuse_inside);
    KIT_TEST(release_waits);
    KIT_TEST(scopes_are_refused);
    KIT_TEST(retired_stream);
    KIT_TEST(without_a_scope);
    KIT_TEST(beside_a_capture);
    return check_finish();
}
