/* Operations on a graph: a scope opens, a capture begins and ends, the graph runs, all is released;
   and operations on streams. */
#include "world.h"

/* -- graphs -- */

static int is_in_graph(const world *w, int stream) {
    int i;
    for (i = 0; i < GRAPHS; i++)
        if (w->graphs[i].stream == stream &&
            (w->graphs[i].state == GRAPH_OPEN || w->graphs[i].state == GRAPH_CAPTURING))
            return 1;
    return 0;
}

static void open_graph(world *w, graph *g, const operation *op) {
    static const graph unused;
    int stream = op->stream % RENEWABLE;
    gpupool_capture *second = NULL;
    gpupool_result result;
    if (stream >= w->stream_count || is_in_graph(w, stream)) return;
    *g = unused;
    g->stream = stream;
    if (op->flags % 4) {
        result = SURE(w, gpupool_begin_capture(w->arena, w->streams[stream], &g->scope));
        if (!world_judge(w, result, BIT(GPUPOOL_OK) | OR_BROKEN, "begin_capture")) return;
        result = SURE(w, gpupool_begin_capture(w->arena, w->streams[stream], &second));
        world_judge(w, result, BIT(GPUPOOL_E_ARGUMENT) | OR_BROKEN, "a second scope");
    }
    g->state = GRAPH_OPEN;
}

static void begin(world *w, graph *g, const operation *op) {
    static const enum cudaStreamCaptureMode modes[] = {cudaStreamCaptureModeGlobal,
                                                       cudaStreamCaptureModeThreadLocal,
                                                       cudaStreamCaptureModeRelaxed};
    cudaStreamBeginCapture(w->streams[g->stream], modes[op->flags % 3]);
    g->state = GRAPH_CAPTURING;
}

static void end_scope(world *w, const graph *g) {
    gpupool_result result;
    if (!g->scope) return;
    result = SURE(w, gpupool_end_capture(g->scope));
    world_judge(w, result, BIT(GPUPOOL_OK) | OR_BROKEN, "end_capture");
}

static void end(world *w, graph *g, const operation *op) {
    cudaGraph_t captured = NULL;
    cudaError_t error;
    if (op->flags % 2) end_scope(w, g);
    error = cudaStreamEndCapture(w->streams[g->stream], &captured);
    world_expect(w, error == cudaSuccess, "a capture was lost");
    if (op->flags % 2 == 0) end_scope(w, g);
    g->state = GRAPH_DONE;
    if (error) {
        cudaGetLastError();
        return;
    }
    world_own(w, 1);
    cudaGraphInstantiate(&g->exec, captured, 0);
    world_own(w, 0);
    cudaGraphDestroy(captured);
}

static void launch(world *w, graph *g) {
    if (!g->exec || world_capture_of(w, g->stream)) return;
    if (!fake_is_broken()) cudaGraphLaunch(g->exec, w->streams[g->stream]);
    g->launches++;
}

/* A scope's release frees its live blocks; without one they are the program's, as any others. */
static void leave_blocks(world *w, const graph *g) {
    int i, which = (int)(g - w->graphs);
    for (i = 0; i < BLOCKS; i++) {
        block *b = &w->blocks[i];
        if (!b->memory) continue;
        b->users &= ~(1u << which);
        if (b->written == which) b->written = g->launches ? NOBODY : UNKNOWN;
        if (b->graph != which) continue;
        if (b->is_leaving) fake_run(w->streams[b->home]);
        if (g->scope && b->memory) world_drop(b);
        b->graph = NOBODY;
    }
}

void world_drop_graph(world *w, graph *g) {
    if (g->state == GRAPH_UNUSED) return;
    world_own(w, 1);
    if (g->exec) cudaGraphExecDestroy(g->exec);
    world_own(w, 0);
    leave_blocks(w, g);
    g->owned = 0;
    g->state = GRAPH_UNUSED;
    if (g->scope)
        world_judge(w, SURE(w, gpupool_release_capture(g->scope)), BIT(GPUPOOL_OK) | OR_BROKEN,
                    "release_capture");
}

void world_graph(world *w, const operation *op) {
    graph *g = &w->graphs[op->slot % GRAPHS];
    int guard = w->guard;
    if (!guard) w->guard = NO_CAPTURE;
    switch (g->state) {
    case GRAPH_UNUSED: open_graph(w, g, op); break;
    case GRAPH_OPEN: op->flags % 8 ? begin(w, g, op) : world_drop_graph(w, g); break;
    case GRAPH_CAPTURING: end(w, g, op); break;
    default: op->flags % 4 ? launch(w, g) : world_drop_graph(w, g);
    }
    w->guard = guard;
}

/* -- streams -- */

/* All that lived on a stream lives on another, which waits for it. */
static void move(world *w, int from, int to) {
    int i;
    world_follow(w, from, to);
    for (i = 0; i < BLOCKS; i++)
        if (w->blocks[i].memory && w->blocks[i].home == from) w->blocks[i].home = to;
    for (i = 0; i < GRAPHS; i++)
        if (w->graphs[i].stream == from) w->graphs[i].stream = to;
}

/* A stream ends, and another may get its handle while the first one's work still runs. */
void world_renew(world *w, const operation *op) {
    int i, from = op->stream % RENEWABLE, to = op->slot % w->stream_count, guard = w->guard;
    if (from >= w->stream_count || world_capture_of(w, to) || is_in_graph(w, from)) return;
    w->guard = NO_INTRUDER;
    for (i = 0; i < BLOCKS; i++)
        if (w->blocks[i].memory && w->blocks[i].home == from && (op->number >> i % 32 & 1))
            world_free_block(w, &w->blocks[i], op);
    if (from != to) move(w, from, to);
    else world_sync(w, from);
    world_judge(w, SURE(w, gpupool_retire_stream(w->streams[from])), BIT(GPUPOOL_OK),
                "retire_stream");
    world_own(w, 1);
    cudaStreamDestroy(w->streams[from]);
    cudaStreamCreateWithFlags(&w->streams[from], cudaStreamNonBlocking);
    world_own(w, 0);
    w->guard = guard;
}
