/* fuzz_graph.h: one graph at a time: captured in a scope, launched now and then, released. */
#ifndef FUZZ_GRAPH_H
#define FUZZ_GRAPH_H

#include "fuzz.h"

#define FUZZ_CAPTURER 3 /* the stream that captures; work beside it never does */

typedef struct fuzz_graph {
    gpupool_capture *scope; /* NULL: there is no graph */
    int capturing;          /* the stream is; else the graph can be launched */
    cudaGraphExec_t exec;
} fuzz_graph;

/* allowed: results that may stand in the way, as bits. */
static void fuzz_graph_begin(fuzz_graph *g, gpupool_arena *of, fuzz_step s, unsigned allowed) {
    cudaStream_t stream = kit_stream[FUZZ_CAPTURER];
    static const enum cudaStreamCaptureMode modes[] = {
        cudaStreamCaptureModeRelaxed, cudaStreamCaptureModeThreadLocal,
        cudaStreamCaptureModeGlobal};
    if (g->scope || !FUZZ_TRY(gpupool_begin_capture(of, stream, &g->scope), allowed)) return;
    CHECK_EQ(cudaStreamBeginCapture(stream, modes[s.a % 3]), cudaSuccess);
    g->capturing = 1;
}

/* After a fault the scope is still open. */
static void fuzz_graph_end_scope(const fuzz_graph *g) {
    if (!FUZZ_TRY(gpupool_end_capture(g->scope), 0))
        CHECK_RESULT(gpupool_end_capture(g->scope), GPUPOOL_OK);
}

static void fuzz_graph_end(fuzz_graph *g, fuzz_step s) {
    cudaGraph_t graph = NULL;
    if (!g->capturing) return;
    if (s.a & 1) fuzz_graph_end_scope(g);
    CHECK_EQ(cudaStreamEndCapture(kit_stream[FUZZ_CAPTURER], &graph), cudaSuccess);
    g->capturing = 0;
    if (!(s.a & 1)) fuzz_graph_end_scope(g);
    CHECK_EQ(cudaGraphInstantiate(&g->exec, graph, 0), cudaSuccess);
    CHECK_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

static void fuzz_graph_launch(const fuzz_graph *g) {
    if (g->exec && !g->capturing)
        CHECK_EQ(cudaGraphLaunch(g->exec, kit_stream[FUZZ_CAPTURER]), cudaSuccess);
}

/* 1: the graph is gone now, with all its blocks. */
static int fuzz_graph_release(fuzz_graph *g, unsigned allowed) {
    if (g->capturing || !g->scope) return 0;
    if (g->exec) CHECK_EQ(cudaGraphExecDestroy(g->exec), cudaSuccess);
    g->exec = NULL;
    if (!FUZZ_TRY(gpupool_release_capture(g->scope), allowed)) return 0;
    g->scope = NULL;
    return 1;
}

#endif
