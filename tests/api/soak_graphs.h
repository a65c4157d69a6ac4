/* soak_graphs.h: graphs of test_soak.c, several at once, on one stream or two. What is captured is
   the work of blocks that the graph keeps, of those that the stream had before, and of other
   graphs'; the oracle sees it run at each launch. Only a thread alone captures. */
#ifndef SOAK_GRAPHS_H
#define SOAK_GRAPHS_H

#include "soak_blocks.h"

static inline unsigned graph_bit(const world *w, const graph *g) {
    return 1u << (unsigned)(g - w->graph);
}

/* The legacy stream would lose a capture on a stream that it waits for. */
static inline int may_capture(const world *w, unsigned at) {
    const place *p = &w->place[at];
    return p->stream && !p->graph && !(p->blocking && p->device == 0);
}

static inline void join_streams(actor *a, const place *from, cudaStream_t to) {
    cudaEvent_t event = mark(a, from);
    MUST(cudaStreamWaitEvent(to, event, 0));
    MUST(cudaEventDestroy(event));
}

static inline void take_place(world *w, graph *g, unsigned at) {
    w->place[at].graph = g;
    w->taken++;
}

static inline int has_graphs(const world *w) {
    int count = 0;
    for (const graph *g = w->graph; g < w->graph + GRAPHS; g++) count += g->stage != NO_GRAPH;
    return count > 0;
}

/* ---- from the first call to the last ---- */

static inline void act_capture(actor *a, world *w) {
    static const enum cudaStreamCaptureMode modes[] = {cudaStreamCaptureModeGlobal,
                                                       cudaStreamCaptureModeThreadLocal,
                                                       cudaStreamCaptureModeRelaxed};
    graph *g = &w->graph[below(a, GRAPHS)];
    unsigned at = some_place(a, w), branch = some_place(a, w);
    cudaStream_t stream, other;
    if (!soak_alone || g->stage != NO_GRAPH || w->taken > 2 || !may_capture(w, at)) return;
    stream = w->place[at].stream;
    other = w->place[branch].stream;
    memset(g, 0, sizeof *g);
    be_on(a, w->place[at].device);
    if (!CALL(a, 0, gpupool_begin_capture(w->arena, stream, &g->scope[0]))) return;
    MUST(cudaStreamBeginCapture(stream, modes[below(a, KIT_COUNT(modes))]));
    g->stage = CAPTURING;
    g->place = g->branch = at;
    g->age = w->place[at].age;
    take_place(w, g, at);
    if (!may_capture(w, branch)) return;
    if (below(a, 4)) CALL(a, 0, gpupool_begin_capture(w->arena, other, &g->scope[1]));
    join_streams(a, &w->place[at], other);
    g->branch = branch;
    take_place(w, g, branch);
}

static inline void end_scopes(actor *a, world *w, graph *g) {
    for (int i = 0; i < 2; i++)
        while (g->scope[i] && !CALL(a, 0, gpupool_end_capture(g->scope[i])) &&
               !atomic_load(&check_bad)) {}
    g->stage = WHOLE;
    w->taken -= g->branch != g->place ? 2u : 1u;
    w->place[g->place].graph = w->place[g->branch].graph = NULL;
    g->after |= 1u << g->branch;
}

/* The graph is gone, and all that it had is the arena's again. */
static inline void drop_graph(actor *a, world *w, graph *g) {
    be_on(a, w->device);
    if (g->exec) MUST(cudaGraphExecDestroy(g->exec));
    if (g->graph) MUST(cudaGraphDestroy(g->graph));
    for (block *b = w->block; b < w->block + BLOCKS; b++) {
        if (b->kept == g) b->kept = NULL;
        if (b->graph != g) continue;
        b->at = NULL;
        b->graph = NULL;
        b->lent = 0;
    }
    if (g->stage != WHOLE) end_scopes(a, w, g);
    for (int i = 0; i < 2; i++)
        while (g->scope[i] && !CALL(a, 0, gpupool_release_capture(g->scope[i])) &&
               !atomic_load(&check_bad)) {}
    g->stage = NO_GRAPH;
}

/* CUDA's end of a capture. Of one that is lost there is no graph. */
static inline void end_capture(world *w, graph *g, int lose) {
    cudaStream_t stream = w->place[g->place].stream;
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusActive;
    if (lose) MUST_APART((cudaStreamSynchronize(stream), cudaGetLastError(), cudaSuccess));
    while (status != cudaStreamCaptureStatusNone) {
        cudaStreamEndCapture(stream, &g->graph);
        cudaGetLastError();
        MUST(cudaStreamIsCapturing(stream, &status));
    }
    if (!lose) CHECK(g->graph != NULL); /* gpupool has lost it */
    for (block *b = w->block; b < w->block + BLOCKS; b++)
        if (b->at && b->graph == g) belongs(w, b, g->place);
}

static inline void finish(actor *a, world *w, graph *g) {
    int scopes_first = below(a, 2) == 0, lose = below(a, 8) == 0;
    be_on(a, w->device);
    if (g->stage == CAPTURED) end_scopes(a, w, g);
    if (g->stage != CAPTURING) return;
    if (scopes_first) end_scopes(a, w, g);
    if (g->branch != g->place)
        join_streams(a, &w->place[g->branch], w->place[g->place].stream);
    end_capture(w, g, lose);
    if (!scopes_first) g->stage = CAPTURED;
}

static inline void act_finish(actor *a, world *w) { finish(a, w, &w->graph[below(a, GRAPHS)]); }

/* Of graphs that use one block, the one that it was handed out in is released last. */
static inline void act_release(actor *a, world *w) {
    graph *g = &w->graph[below(a, GRAPHS)];
    for (graph *o = w->graph; o < w->graph + GRAPHS; o++)
        if (o->stage != NO_GRAPH && o->shares & graph_bit(w, g)) return;
    if (g->stage == WHOLE) drop_graph(a, w, g);
}

static inline void finish_graphs(actor *a, world *w) {
    for (int i = 0; i < GRAPHS; i++)
        while (w->graph[i].stage == CAPTURING || w->graph[i].stage == CAPTURED)
            finish(a, w, &w->graph[i]);
}

static inline void release_graphs(actor *a, world *w) {
    finish_graphs(a, w);
    for (int left = 1; left;) {
        act_release(a, w);
        left = 0;
        for (int i = 0; i < GRAPHS; i++) left |= w->graph[i].stage != NO_GRAPH;
    }
}

/* ---- inside ---- */

/* A block of before that was last used on this stream, or another graph's: it is read inside, and
   freed, at once or later. Nobody else touches it meanwhile. */
static inline void use_older(actor *a, world *w, graph *g, block *b, unsigned to) {
    graph *of = b->graph;
    int waits = of && of->stage != WHOLE; /* for its launch, as this graph's does */
    unsigned before = b->place;
    if (!b->kept) {
        if (b->lent || b->anyones) return;
        if (of && of->shares) return; /* or they might wait for each other's release */
        if (!waits && (b->place != to || b->age != w->place[to].age || !is_written(w, b))) return;
        if (g->stage == CAPTURING || !waits) verify(b, w->place[to].stream, b->byte);
        if (of) g->shares |= graph_bit(w, of);
        b->kept = g;
    }
    if (!below(a, 2)) return;
    if (give_back(a, w, b, to)) b->kept = NULL;
    else if (waits) belongs(w, b, before); /* refused: its own graph still has it */
}

static inline void act_inside(actor *a, world *w) {
    graph *g = &w->graph[below(a, GRAPHS)];
    if (g->stage != CAPTURING && g->stage != CAPTURED) return;
    for (uint64_t n = below(a, 12); n > 0; n--) {
        block *b = &w->block[below(a, BLOCKS)];
        int other = g->branch != g->place && below(a, 2);
        unsigned to = other ? g->branch : g->place;
        if (b->at && ((b->kept && b->kept != g) || w->tag[b->tag].asleep)) continue;
        if (b->at && b->graph != g) {
            if (g->scope[other]) use_older(a, w, g, b, to);
        } else if (g->stage != CAPTURING) {
            continue;
        } else if (!b->at) {
            if (g->scope[other]) get_block(a, w, b, to);
        } else {
            enter_after(a, w, b, to);
            b->kept = give_back(a, w, b, to) ? NULL : g;
            leave(w, to);
        }
    }
}

/* ---- replays ---- */

static inline void follow_place(actor *a, world *w, unsigned at, cudaStream_t stream) {
    if (w->place[at].stream != stream) join_streams(a, &w->place[at], stream);
    for (unsigned i = 0; i < TOMBS; i++)
        if (w->place[at].tomb[i]) MUST(cudaStreamWaitEvent(stream, w->place[at].tomb[i], 0));
}

static inline void launch(actor *a, world *w, graph *g) {
    cudaStream_t stream = enter(a, w, g->place);
    if (!g->exec) MUST_APART(cudaGraphInstantiate(&g->exec, g->graph, 0));
    for (unsigned i = 0; i < PLACES; i++)
        if (g->after >> i & 1) follow_place(a, w, i, stream);
    MUST(cudaGraphLaunch(g->exec, stream));
    g->launches++;
    g->after = 0;
    for (block *b = w->block; b < w->block + BLOCKS; b++) {
        if (!b->at || (b->graph != g && b->kept != g)) continue;
        belongs(w, b, g->place);
        if (b->graph == g) verify(b, stream, b->byte);
    }
    for (graph *o = w->graph; o < w->graph + GRAPHS; o++)
        if ((o->shares & graph_bit(w, g)) || (g->shares & graph_bit(w, o)))
            o->after |= 1u << g->place;
    leave(w, g->place);
}

static inline void launch_if_whole(actor *a, world *w) {
    graph *g = &w->graph[below(a, GRAPHS)];
    if (g->stage != WHOLE || !g->graph || w->place[g->place].graph ||
        w->place[g->place].age != g->age)
        return;
    for (const graph *o = w->graph; o < w->graph + GRAPHS; o++)
        if (g->shares & graph_bit(w, o) && !o->launches) return; /* nothing to read there yet */
    for (const block *b = w->block; b < w->block + BLOCKS; b++)
        if (b->at && b->graph == g) g->after |= 1u << b->place;
    for (unsigned i = 0; i < PLACES; i++)
        if (g->after >> i & 1 && w->place[i].graph) return; /* its work cannot be waited for */
    launch(a, w, g);
}

/* All tags stay awake meanwhile: a graph may be at work on what it has freed, too. */
static inline void act_launch(actor *a, world *w) {
    if (!hold_tags(w)) return;
    launch_if_whole(a, w);
    leave_tags(w, SOAK_TAGS);
}

#endif
