/* Stream capture: who takes part, what it forbids, how it ends.
 *
 * A stream in a capture has a frontier, the node that its next node comes after; -1: none. Events
 * carry frontiers from stream to stream, where a node of its own joins two.
 *
 * Confirmed on an H200 (CUDA 13.0): beside a capture of a blocking stream, cudaStreamIsCapturing(0)
 * and then cudaEventRecord on the legacy stream lose that capture, and the record answers
 * cudaErrorStreamCaptureImplicit.
 *
 * Seen on an H100 (CUDA 13.0): of those two calls it is the record that loses the capture, in every
 * mode; asking is refused and costs none. A call that a capture forbids ends every capture that
 * forbids it. Waiting on an event of a capture that has ended, and asking it, are
 * cudaErrorInvalidValue. Starting a capture twice and ending one that is not there are
 * cudaErrorIllegalState. A stream that takes part in a capture may be destroyed: what it had must
 * be joined all the same; where the capture began on it nothing is left to end. cudaFree,
 * cudaFreeHost and pinning are as forbidden as cudaMalloc; cudaDeviceSynchronize is forbidden in
 * every mode.
 *
 * Assumed: a capture is lost with the stream that it began on, where others take part. */
#include "fk.h"

#include <stdlib.h>

typedef struct fk_capture {
    struct fk_capture *next;
    uint64_t           id;
    enum cudaStreamCaptureMode mode;
    const fk_thread   *thread;
    const fk_stream   *origin;
    int                lost;
    fk_graph          *graph;
} fk_capture;

static fk_capture *fk_captures;
static uint64_t    fk_last_id;

/* ---- who forbids what ---- */

uint64_t fk_capture_id(const fk_stream *stream) {
    return stream->capture ? stream->capture->id : 0;
}

int fk_capture_lost(const fk_stream *stream) { return stream->capture && stream->capture->lost; }

static fk_capture *fk_capture_of(uint64_t id) {
    fk_capture *capture = fk_captures;
    while (capture && capture->id != id) capture = capture->next;
    return capture;
}

int fk_capture_lose(uint64_t id) {
    fk_capture *capture = fk_capture_of(id);
    if (capture) capture->lost = 1;
    return capture != NULL;
}

cudaError_t fk_forbidden(void) {
    const fk_thread *me = fk_me();
    cudaError_t error = cudaSuccess;
    fk_capture *capture;
    for (capture = fk_captures; capture; capture = capture->next) {
        int mine = capture->thread == me && capture->mode != cudaStreamCaptureModeRelaxed;
        int everyones = capture->mode == cudaStreamCaptureModeGlobal &&
                        me->mode == cudaStreamCaptureModeGlobal;
        if (me->mode == cudaStreamCaptureModeRelaxed || !(mine || everyones)) continue;
        error = capture->lost ? cudaErrorStreamCaptureInvalidated
                              : cudaErrorStreamCaptureUnsupported;
        capture->lost = 1;
    }
    return error;
}

cudaError_t fk_capturing_refuses(fk_stream *stream) {
    if (!stream->capture) return fk_implicit(stream);
    if (stream->capture->lost) return cudaErrorStreamCaptureInvalidated;
    stream->capture->lost = 1;
    return cudaErrorStreamCaptureUnsupported;
}

/* A stream of the device that captures, from i on. */
static fk_stream *fk_capturing(int device, int blocking_only, uint32_t *i) {
    fk_stream *stream = fk_next_stream(i);
    while (stream && (!stream->capture || stream->device != device ||
                      (blocking_only && stream->nonblocking)))
        stream = fk_next_stream(i);
    return stream;
}

static cudaError_t fk_lose_matching(int device, int blocking_only, cudaError_t why) {
    cudaError_t error = cudaSuccess;
    const fk_stream *stream;
    uint32_t i = 0;
    while ((stream = fk_capturing(device, blocking_only, &i)) != NULL) {
        stream->capture->lost = 1;
        error = why;
    }
    return error;
}

cudaError_t fk_context_capturing_refuses(int device) {
    return fk_lose_matching(device, 0, cudaErrorStreamCaptureUnsupported);
}

cudaError_t fk_implicit(fk_stream *stream) {
    if (!fk_captures || stream != fk_legacy(stream->device)) return cudaSuccess;
    return fk_lose_matching(stream->device, 1, cudaErrorStreamCaptureImplicit);
}

/* ---- capturing ---- */

cudaError_t fk_capture_add(fk_stream *stream, fk_work *work) {
    fk_graph *graph = stream->capture->graph;
    if (stream->capture->lost) return cudaErrorStreamCaptureInvalidated;
    stream->frontier = fk_add_node(graph, work, stream->frontier, -1, stream->lane);
    return cudaSuccess;
}

static void fk_join_frontier(fk_stream *stream, int node) {
    fk_work *wait;
    if (node < 0 || node == stream->frontier) return;
    if (stream->frontier < 0) {
        stream->frontier = node;
        return;
    }
    wait = fk_new_work(FK_MARK, "cudaStreamWaitEvent", stream->device);
    stream->frontier =
        fk_add_node(stream->capture->graph, wait, stream->frontier, node, stream->lane);
    fk_unref_work(wait);
}

static void fk_enter_capture(fk_capture *capture, fk_stream *stream) {
    stream->capture = capture;
    stream->lane = capture->graph->lanes++;
    stream->frontier = -1;
}

cudaError_t fk_capture_fork(fk_stream *stream, uint64_t id, int node) {
    fk_capture *capture = fk_capture_of(id);
    if (stream->capture && stream->capture->lost) return cudaErrorStreamCaptureInvalidated;
    if (!capture) {
        if (stream->capture) stream->capture->lost = 1;
        return cudaErrorInvalidValue;
    }
    if (capture->lost) return cudaErrorStreamCaptureInvalidated;
    if (stream->capture && stream->capture != capture) {
        stream->capture->lost = capture->lost = 1;
        return cudaErrorStreamCaptureMerge;
    }
    if (stream == fk_legacy(stream->device)) {
        capture->lost = 1;
        return cudaErrorStreamCaptureImplicit;
    }
    if (!stream->capture) fk_enter_capture(capture, stream);
    fk_join_frontier(stream, node);
    return cudaSuccess;
}

static void fk_end_capture(fk_capture *capture) {
    fk_capture **link = &fk_captures;
    fk_stream *stream;
    uint32_t i = 0;
    while (*link != capture) link = &(*link)->next;
    *link = capture->next;
    while ((stream = fk_next_stream(&i)) != NULL)
        if (stream->capture == capture) stream->capture = NULL;
    fk_unref_graph(capture->graph);
    free(capture);
}

void fk_capture_forget(fk_stream *stream) {
    fk_capture *capture = stream->capture;
    const fk_stream *other;
    uint32_t i = 0;
    if (!capture) return;
    if (capture->origin == stream) {
        capture->origin = NULL;
        capture->lost = 1;
    }
    stream->capture = NULL;
    do other = fk_next_stream(&i);
    while (other && other->capture != capture);
    if (!other) fk_end_capture(capture);
}

/* Every node must come before the end of the stream that the capture began on; but for one that
   only waits. */
static int fk_all_joined(const fk_capture *capture) {
    const fk_graph *graph = capture->graph;
    unsigned char *reached = fk_new((size_t)graph->n, 1);
    int i, k, joined = 1;
    if (capture->origin->frontier >= 0) reached[capture->origin->frontier] = 1;
    for (i = graph->n - 1; i >= 0; i--) {
        const fk_node *node = &graph->nodes[i];
        if (!reached[i] && node->work->kind != FK_MARK) joined = 0;
        for (k = 0; reached[i] && k < 2; k++)
            if (node->after[k] >= 0) reached[node->after[k]] = 1;
    }
    free(reached);
    return joined;
}

static int fk_begin_capture(cudaStream_t handle, enum cudaStreamCaptureMode mode) {
    int error = 0;
    fk_stream *stream = fk_stream_of(handle, &error);
    fk_capture *capture;
    if (!stream) return error;
    if ((unsigned)mode > 2u) return cudaErrorInvalidValue;
    if (stream == fk_legacy(stream->device)) return cudaErrorStreamCaptureUnsupported;
    if (stream->capture) return cudaErrorIllegalState;
    capture = fk_new(1, sizeof *capture);
    capture->graph = fk_new(1, sizeof *capture->graph);
    capture->graph->refs = 1;
    capture->id = ++fk_last_id;
    capture->mode = mode;
    capture->thread = fk_me();
    capture->origin = stream;
    capture->next = fk_captures;
    fk_captures = capture;
    fk_enter_capture(capture, stream);
    return 0;
}

static int fk_finish_capture(cudaStream_t handle, cudaGraph_t *out) {
    int error = out ? 0 : cudaErrorInvalidValue;
    const fk_stream *stream = error ? NULL : fk_stream_of(handle, &error);
    fk_capture *capture;
    if (!stream) return error;
    capture = stream->capture;
    *out = NULL;
    if (!capture) return cudaErrorIllegalState;
    if (capture->origin && capture->origin != stream) {
        capture->lost = 1;
        return cudaErrorStreamCaptureUnmatched;
    }
    if (capture->mode != cudaStreamCaptureModeRelaxed && capture->thread != fk_me())
        return cudaErrorStreamCaptureWrongThread;
    if (capture->lost) error = cudaErrorStreamCaptureInvalidated;
    else if (!fk_all_joined(capture)) error = cudaErrorStreamCaptureUnjoined;
    if (!error) *out = fk_give_graph(capture->graph);
    fk_end_capture(capture);
    return error;
}

/* ---- asking ---- */

static int fk_ask(cudaStream_t handle, enum cudaStreamCaptureStatus *status,
                  unsigned long long *id) {
    int error = status ? 0 : cudaErrorInvalidValue;
    const fk_stream *stream = error ? NULL : fk_stream_of(handle, &error);
    uint32_t i = 0;
    if (!stream) return error;
    if (stream == fk_legacy(stream->device) && fk_capturing(stream->device, 1, &i))
        return cudaErrorStreamCaptureImplicit; /* it has no answer */
    *status = !stream->capture        ? cudaStreamCaptureStatusNone
              : stream->capture->lost ? cudaStreamCaptureStatusInvalidated
                                      : cudaStreamCaptureStatusActive;
    if (id && stream->capture) *id = stream->capture->id;
    return 0;
}

static int fk_driver_ask(CUstream handle, CUstreamCaptureStatus *status) {
    enum cudaStreamCaptureStatus asked = cudaStreamCaptureStatusNone;
    int error = fk_ask(handle, status ? &asked : NULL, NULL);
    if (!error) *status = (CUstreamCaptureStatus)asked;
    return error;
}

/* mode: of the runtime or of the driver, whose numbers are the same. */
static int fk_exchange(int *mode) {
    int old = (int)fk_me()->mode;
    if (!mode || (unsigned)*mode > 2u) return cudaErrorInvalidValue;
    fk_me()->mode = (enum cudaStreamCaptureMode)*mode;
    *mode = old;
    return 0;
}

FK_DEFINE_TWINS(cudaError_t, cudaStreamBeginCapture,
                (cudaStream_t stream, enum cudaStreamCaptureMode mode),
                fk_begin_capture(stream, mode))
FK_DEFINE_TWINS(cudaError_t, cudaStreamEndCapture, (cudaStream_t stream, cudaGraph_t *graph),
                fk_finish_capture(stream, graph))
FK_DEFINE_TWINS(cudaError_t, cudaStreamIsCapturing,
                (cudaStream_t stream, enum cudaStreamCaptureStatus *status),
                fk_ask(stream, status, NULL))
FK_DEFINE_TWINS(CUresult, cuStreamIsCapturing, (CUstream stream, CUstreamCaptureStatus *status),
                fk_driver_ask(stream, status))
FK_DEFINE(cudaError_t, cudaThreadExchangeStreamCaptureMode, (enum cudaStreamCaptureMode *mode),
          fk_exchange((int *)mode))
FK_DEFINE(CUresult, cuThreadExchangeStreamCaptureMode, (CUstreamCaptureMode *mode),
          fk_exchange((int *)mode))
#if CUDART_VERSION >= 13000 /* it has another shape before */
/* Tells status and id; the graph and its nodes are not handed out. */
FK_DEFINE_TWINS(cudaError_t, cudaStreamGetCaptureInfo,
                (cudaStream_t stream, enum cudaStreamCaptureStatus *status, unsigned long long *id,
                 cudaGraph_t *graph, const cudaGraphNode_t **nodes, const cudaGraphEdgeData **edges,
                 size_t *n),
                graph || nodes || edges || n ? cudaErrorNotSupported : fk_ask(stream, status, id))
#endif

/* ---- dropping ---- */

long fk_capture_objects(void) {
    const fk_capture *capture;
    long n = 0;
    for (capture = fk_captures; capture; capture = capture->next) n++;
    return n;
}

void fk_captures_drop(void) {
    while (fk_captures) fk_end_capture(fk_captures);
}
