/* Graphs. One that runs gives each lane (each stream of the capture) a queue of its own, so that
 * branches which nothing joins race here as on a device.
 *
 * Seen on an H200 (CUDA 13.0): of two captures open in one thread in thread-local mode, neither
 * graph could be launched where the first was instantiated before the second had ended: as an H100
 * showed, cudaGraphInstantiate is as forbidden as cudaMalloc. Seen there too: a graph is not
 * launched into a capture, of whatever mode, which is lost; two launches of one executable graph
 * come one after the other, whatever their streams. */
#include "fk.h"

#include <stdlib.h>

typedef struct fk_exec {
    fk_graph   *graph;
    fk_stream **lanes;         /* lane 0 is the stream that it is launched on */
    fk_clock    end;           /* one launch comes after the one before */
} fk_exec;

static fk_pool fk_graphs = {.base = FK_DEVICE_BASE + 2 * FK_GIB};
static fk_pool fk_execs = {.base = FK_DEVICE_BASE + 3 * FK_GIB};

void fk_unref_graph(fk_graph *graph) {
    int i;
    if (--graph->refs > 0) return;
    for (i = 0; i < graph->n; i++) fk_unref_work(graph->nodes[i].work);
    free(graph->nodes);
    free(graph);
}

int fk_add_node(fk_graph *graph, fk_work *work, int after, int and_after, int lane) {
    fk_node *node;
    graph->nodes = fk_grow(graph->nodes, (size_t)graph->n + 1, sizeof *graph->nodes);
    node = &graph->nodes[graph->n];
    node->work = work;
    node->after[0] = after;
    node->after[1] = and_after;
    node->lane = lane;
    work->refs++;
    return graph->n++;
}

cudaGraph_t fk_give_graph(fk_graph *graph) {
    graph->refs++;
    return (cudaGraph_t)(uintptr_t)fk_pool_add(&fk_graphs, graph);
}

/* What lies in the pool; NULL, and a misuse, for what is not live. */
static void *fk_live(const fk_pool *pool, void *handle) {
    void *item = fk_pool_get(pool, (uint64_t)(uintptr_t)handle);
    if (!item) fk_misuse("%p is no live graph", handle);
    return item;
}

static int fk_instantiate(cudaGraphExec_t *out, cudaGraph_t handle, unsigned long long flags) {
    fk_graph *graph = out && !flags ? fk_live(&fk_graphs, handle) : NULL;
    fk_exec *exec;
    if (!graph) return cudaErrorInvalidValue;
    exec = fk_new(1, sizeof *exec);
    exec->graph = graph;
    graph->refs++;
    exec->lanes = fk_new((size_t)graph->lanes, sizeof(fk_stream *));
    *out = (cudaGraphExec_t)(uintptr_t)fk_pool_add(&fk_execs, exec);
    return 0;
}

static void fk_issue_node(fk_exec *exec, int i, fk_stream *stream, const fk_clock *start,
                          fk_clock *clocks) {
    const fk_node *node = &exec->graph->nodes[i];
    fk_stream *lane = stream;
    fk_clock after = {NULL, 0};
    int k;
    if (node->lane > 0) {
        fk_stream **own = &exec->lanes[node->lane];
        if (!*own) *own = fk_new_stream(stream->device, 1, 1);
        lane = *own;
    }
    fk_clock_copy(&after, start);
    for (k = 0; k < 2; k++)
        if (node->after[k] >= 0) fk_clock_join(&after, &clocks[node->after[k]]);
    node->work->refs++;
    fk_issue(lane, node->work, &after);
    fk_clock_copy(&clocks[i], &lane->tail);
    fk_clock_drop(&after);
}

static void fk_launch(fk_exec *exec, fk_stream *stream) {
    int i, n = exec->graph->n;
    fk_clock start = {NULL, 0};
    fk_clock *clocks = fk_new((size_t)n, sizeof *clocks);
    fk_issue(stream, fk_new_work(FK_MARK, "cudaGraphLaunch", stream->device), &exec->end);
    fk_clock_copy(&start, &stream->tail);
    for (i = 0; i < n; i++) fk_issue_node(exec, i, stream, &start, clocks);
    for (i = 0; i < n; i++) {
        fk_clock_join(&exec->end, &clocks[i]);
        fk_clock_drop(&clocks[i]);
    }
    fk_issue(stream, fk_new_work(FK_MARK, "end of graph", stream->device), &exec->end);
    fk_clock_copy(&exec->end, &stream->tail);
    fk_clock_drop(&start);
    free(clocks);
}

static int fk_launch_on(cudaGraphExec_t handle, cudaStream_t on) {
    int error = 0;
    fk_stream *stream = fk_stream_with_room(on, &error);
    fk_exec *exec = fk_live(&fk_execs, handle);
    if (!exec) return cudaErrorInvalidValue;
    if (stream) error = (int)fk_capturing_refuses(stream);
    if (!error) fk_launch(exec, stream);
    return error;
}

static void fk_free_exec(fk_exec *exec) {
    int i;
    for (i = 0; i < exec->graph->lanes; i++)
        if (exec->lanes[i]) fk_retire_stream(exec->lanes[i]);
    free(exec->lanes);
    fk_unref_graph(exec->graph);
    fk_clock_drop(&exec->end);
    free(exec);
}

static int fk_destroy_exec(cudaGraphExec_t handle) {
    fk_exec *exec = fk_live(&fk_execs, handle);
    if (!exec) return cudaErrorInvalidValue;
    fk_pool_remove(&fk_execs, (uint64_t)(uintptr_t)handle);
    fk_free_exec(exec);
    return 0;
}

static int fk_destroy_graph(cudaGraph_t handle) {
    fk_graph *graph = fk_live(&fk_graphs, handle);
    if (!graph) return cudaErrorInvalidValue;
    fk_pool_remove(&fk_graphs, (uint64_t)(uintptr_t)handle);
    fk_unref_graph(graph);
    return 0;
}

FK_DEFINE(cudaError_t, cudaGraphInstantiate,
          (cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags),
          fk_instantiate(exec, graph, flags))
FK_DEFINE_TWINS(cudaError_t, cudaGraphLaunch, (cudaGraphExec_t exec, cudaStream_t stream),
                fk_launch_on(exec, stream))
FK_DEFINE(cudaError_t, cudaGraphExecDestroy, (cudaGraphExec_t exec), fk_destroy_exec(exec))
FK_DEFINE(cudaError_t, cudaGraphDestroy, (cudaGraph_t graph), fk_destroy_graph(graph))

/* ---- dropping ---- */

long fk_graph_objects(void) { return (long)fk_graphs.live + (long)fk_execs.live; }

/* The lanes are streams, and go with their context. */
void fk_graphs_drop_context(int context) {
    size_t i;
    int k;
    for (i = 0; i < fk_execs.n; i++) {
        fk_exec *exec = fk_execs.items[i];
        for (k = 0; exec && k < exec->graph->lanes; k++) {
            fk_stream *lane = exec->lanes[k];
            if (!lane || (context >= 0 && lane->device != context)) continue;
            fk_retire_stream(lane);
            exec->lanes[k] = NULL;
        }
    }
}

void fk_graphs_drop(void) {
    size_t i;
    for (i = 0; i < fk_execs.n; i++)
        if (fk_execs.items[i]) fk_free_exec(fk_execs.items[i]);
    for (i = 0; i < fk_graphs.n; i++)
        if (fk_graphs.items[i]) fk_unref_graph(fk_graphs.items[i]);
    fk_pool_reset(&fk_execs);
    fk_pool_reset(&fk_graphs);
}
