/* Graphs: what a scope hands out belongs to the graph until the release; without a scope a
   capturing stream gets memory at hand only; and no call ends a capture. That a graph's memory is
   nobody else's, and that a release waits for launches, tests/world judges. */
#define _GNU_SOURCE
#include <unistd.h>

#include "gpupool.h"
#include "kit.h"

#define SIZE (8 * MIB)
#define A kit_stream[0]
#define B kit_stream[1]

static gpupool_arena *arena;

static void start_capture(cudaStream_t stream) {
    CHECK_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
}

/* Ends the capture, and runs its graph once: whether its nodes race is seen then. */
static void run_graph(cudaStream_t stream) {
    cudaGraphExec_t graph = NULL;
    cudaGraph_t captured = NULL;
    CHECK_EQ(cudaStreamEndCapture(stream, &captured), cudaSuccess);
    CHECK_EQ(cudaGraphInstantiate(&graph, captured, 0), cudaSuccess);
    CHECK_EQ(cudaGraphDestroy(captured), cudaSuccess);
    CHECK_EQ(cudaGraphLaunch(graph, stream), cudaSuccess);
    CHECK_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    CHECK_EQ(cudaGraphExecDestroy(graph), cudaSuccess);
}

static gpupool_capture *begin_scope(cudaStream_t stream) {
    gpupool_capture *scope = NULL;
    CHECK_RESULT(gpupool_begin_capture(arena, stream, &scope), GPUPOOL_OK);
    CHECK(scope);
    return scope;
}

/* What is freed in the scope serves the graph's next requests, so graphs need no more than eager
   work does. */
static void reuse_inside(void) {
    gpupool_capture *scope;
    arena = kit_open(SIZE);
    scope = begin_scope(A);
    start_capture(A);
    for (int i = 0; i < 20; i++) {
        check_case("request %d", i);
        kit_use(arena, i % 2 ? SIZE : 1000, A);
    }
    run_graph(A);
    start_capture(A); /* of another graph, which shares the scope's memory */
    kit_use(arena, SIZE, A);
    run_graph(A);
    CHECK_RESULT(gpupool_end_capture(scope), GPUPOOL_OK);
    CHECK(!gpupool_alloc(arena, SIZE, A)); /* it is the graphs' */
    CHECK_EQ(gpupool_last_verdict()->cause, GPUPOOL_CAUSE_PENDING);
    CHECK_RESULT(gpupool_release_capture(scope), GPUPOOL_OK);
    CHECK_EQ(kit_stats(arena).pending.now, 0);
    kit_use(arena, SIZE, B);
    kit_close(arena);
}

/* A stream's scopes come one after the other, and each lives until its release: then its blocks are
   gone, and no earlier. */
static void released_in_any_order(void) {
    gpupool_capture *first, *second;
    void *kept;
    arena = kit_open(0);
    first = begin_scope(A);
    kept = gpupool_alloc(arena, SIZE, A);
    CHECK(kept);
    CHECK_RESULT(gpupool_end_capture(first), GPUPOOL_OK);
    second = begin_scope(A);
    CHECK_RESULT(gpupool_release_capture(second), GPUPOOL_OK);
    CHECK_EQ(kit_stats(arena).blocks, 1);
    CHECK_RESULT(gpupool_release_capture(first), GPUPOOL_OK);
    CHECK_EQ(kit_stats(arena).blocks, 0);
    CHECK_RESULT(gpupool_free(arena, kept, A), GPUPOOL_E_DOUBLE_FREE);
    kit_close(arena);
}

/* Retiring a stream closes its scope: a stream with its handle has none. The graph keeps its
   memory, and the arena cannot end. */
static void retired_stream(void) {
    cudaStream_t stream = kit_new_stream();
    gpupool_capture *scope;
    arena = kit_open(0);
    scope = begin_scope(stream);
    kit_use(arena, SIZE, stream);
    CHECK_RESULT(gpupool_retire_stream(stream), GPUPOOL_OK);
    CHECK_EQ(cudaStreamDestroy(stream), cudaSuccess);
    stream = kit_new_stream();
    CHECK_RESULT(gpupool_release_capture(begin_scope(stream)), GPUPOOL_OK);
    CHECK_EQ(kit_stats(arena).pending.now, SIZE);
    KIT_REFUSES(gpupool_arena_destroy(arena), GPUPOOL_E_IN_USE, "scope");
    CHECK_RESULT(gpupool_release_capture(scope), GPUPOOL_OK);
    CHECK_EQ(kit_stats(arena).pending.now, 0);
    CHECK_EQ(cudaStreamDestroy(stream), cudaSuccess);
    kit_close(arena);
}

/* A released scope's records serve the next one. */
static void records_are_used_again(void) {
    uint64_t host = 0;
    arena = kit_open(0);
    for (int i = 0; i < 1000; i++) {
        gpupool_capture *scope = begin_scope(A);
        kit_use(arena, 1000, A);
        CHECK_RESULT(gpupool_end_capture(scope), GPUPOOL_OK);
        CHECK_RESULT(gpupool_release_capture(scope), GPUPOOL_OK);
        if (i == 0) host = kit_stats(arena).host;
    }
    CHECK_EQ(kit_stats(arena).host, host);
    CHECK_EQ(kit_stats(arena).pending.now, 0);
    kit_close(arena);
}

/* Without a scope the stream's own memory and finished memory is at hand; growth and waits are
   not, and how much is at hand is told. */
static void without_a_scope(void) {
    void *mine, *finished, *live;
    size_t at_hand;
    arena = kit_open(0);
    live = gpupool_alloc(arena, 1000, B);
    kit_use(arena, SIZE, A);
    start_capture(A);
    CHECK_RESULT(gpupool_get_available(arena, A, &at_hand), GPUPOOL_OK);
    KIT_FAILS(gpupool_alloc(arena, at_hand + 1, A), GPUPOOL_E_CAPTURING, "scope");
    CHECK(at_hand >= SIZE && at_hand < 20 * SIZE);
    mine = gpupool_alloc(arena, at_hand, A);
    CHECK(mine);
    kit_write(mine, at_hand, A, 1);
    KIT_REFUSES(gpupool_record_stream(arena, live, A), GPUPOOL_E_CAPTURING, "captur");
    finished = gpupool_alloc(arena, 20 * SIZE, B); /* others go on */
    CHECK(finished);
    kit_free(arena, finished, GPUPOOL_NO_STREAM);
    finished = gpupool_alloc(arena, 20 * SIZE, A);
    CHECK(finished);
    kit_write(finished, 20 * SIZE, A, 2);
    run_graph(A); /* the capture has survived all of it */
    kit_free(arena, finished, A);
    kit_free(arena, mine, A);
    kit_free(arena, live, B);
    kit_close(arena);
}

static void CUDART_CB take_long(void *ended) {
    usleep(50000);
    atomic_store((atomic_int *)ended, 1);
}

/* That cuMemFreeHost waits for all work of the device, and ends no capture, is CUDA's habit and not
   its promise: a driver that has another one is found out here. */
static void waits_beside_a_capture(void) {
    atomic_int ended = 0;
    kit_delay();
    arena = kit_open(0);
    kit_use(arena, SIZE, A);
    start_capture(B);
    CHECK_EQ(cudaLaunchHostFunc(A, take_long, &ended), cudaSuccess);
    CHECK_RESULT(gpupool_trim(arena, 0), GPUPOOL_OK);
    CHECK_EQ(atomic_load(&ended), 1);
    run_graph(B);
    kit_close(arena);
}

int main(void) {
    KIT_TEST(reuse_inside);
    KIT_TEST(released_in_any_order);
    KIT_TEST(retired_stream);
    KIT_TEST(records_are_used_again);
    KIT_TEST(without_a_scope);
    KIT_TEST(waits_beside_a_capture);
    return check_finish();
}
