/* Stream capture: who takes part, what it forbids, how it ends.
 *
 * A stream in a capture has a frontier, the nodes that its next node comes after. Events carry
 * frontiers from stream to stream.
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
#include <string.h>

typedef struct fk_capture {
    struct fk_capture *next;
    uint64_t           id;
    enum cudaStreamCaptureMode mode;
    const fk_thread   *thread;
    fk_stream         *origin, **streams;
    int                n_streams, lost;
    fk_graph          *graph;
} fk_capture;

static fk_capture *fk_captures;
static uint64_t    fk_last_id;

/* ---- frontiers ---- */

static void fk_set_frontier(fk_stream *stream, const int *nodes, int n) {
    stream->frontier = fk_grow(stream->frontier, (size_t)n, sizeof *nodes);
    if (n) memcpy(stream->frontier, nodes, (size_t)n * sizeof *nodes);
    stream->n_frontier = n;
}

static void fk_add_frontier(fk_stream *stream, int node) {
    int i;
    for (i = 0; i < stream->n_frontier; i++)
        if (stream->frontier[i] == node) return;
    stream->frontier =
        fk_grow(stream->frontier, (size_t)stream->n_frontier + 1, sizeof *stream->frontier);
    stream->frontier[stream->n_frontier++] = node;
}

/* ---- who forbids what ---- */

uint64_t fk_capture_id(const fk_stream *stream) {
    return stream->capture ? stream->capture->id : 0;
}

int fk_capture_lost(const fk_stream *stream) { return stream->capture && stream->capture->lost; }

int fk_capture_lose(uint64_t id) {
    fk_capture *capture = fk_captures;
    while (capture && capture->id != id) capture = capture->next;
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

static cudaError_t fk_lose_matching(int context, int blocking_only, cudaError_t why) {
    cudaError_t error = cudaSuccess;
    fk_capture *capture;
    int i;
    for (capture = fk_captures; capture; capture = capture->next)
        for (i = 0; i < capture->n_streams; i++) {
            const fk_stream *stream = capture->streams[i];
            if (stream->context != context || (blocking_only && stream->nonblocking)) continue;
            capture->lost = 1;
            error = why;
        }
    return error;
}

cudaError_t fk_context_capturing_refuses(int context) {
    return fk_lose_matching(context, 0, cudaErrorStreamCaptureUnsupported);
}

cudaError_t fk_implicit(fk_stream *stream) {
    if (!fk_captures || stream != fk_legacy(stream->context)) return cudaSuccess;
    return fk_lose_matching(stream->context, 1, cudaErrorStreamCaptureImplicit);
}

/* ---- capturing ---- */

cudaError_t fk_capture_add(fk_stream *stream, fk_work *work) {
    fk_capture *capture = stream->capture;
    int node;
    if (capture->lost) return cudaErrorStreamCaptureInvalidated;
    node = fk_add_node(capture->graph, work, stream->frontier, stream->n_frontier, stream->lane);
    fk_set_frontier(stream, &node, 1);
    return cudaSuccess;
}

static void fk_enter_capture(fk_capture *capture, fk_stream *stream) {
    capture->streams = fk_grow(capture->streams, (size_t)capture->n_streams + 1,
                               sizeof *capture->streams);
    capture->streams[capture->n_streams++] = stream;
    stream->capture = capture;
    stream->lane = capture->graph->lanes++;
    stream->n_frontier = 0;
}

cudaError_t fk_capture_fork(fk_stream *stream, uint64_t id, const int *nodes, int n) {
    fk_capture *capture = fk_captures;
    int i;
    while (capture && capture->id != id) capture = capture->next;
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
    if (!stream->capture) {
        if (stream == fk_legacy(stream->context)) {
            capture->lost = 1;
            return cudaErrorStreamCaptureImplicit;
        }
        fk_enter_capture(capture, stream);
    }
    for (i = 0; i < n; i++) fk_add_frontier(stream, nodes[i]);
    return cudaSuccess;
}

static void fk_end_capture(fk_capture *capture) {
    fk_capture **link = &fk_captures;
    int i;
    while (*link != capture) link = &(*link)->next;
    *link = capture->next;
    for (i = 0; i < capture->n_streams; i++) {
        capture->streams[i]->capture = NULL;
        capture->streams[i]->n_frontier = 0;
    }
    fk_unref_graph(capture->graph);
    free(capture->streams);
    free(capture);
}

void fk_capture_forget(fk_stream *stream) {
    fk_capture *capture = stream->capture;
    int i, k = 0;
    if (!capture) return;
    for (i = 0; i < capture->n_streams; i++)
        if (capture->streams[i] != stream) capture->streams[k++] = capture->streams[i];
    capture->n_streams = k;
    if (capture->origin == stream) {
        capture->origin = NULL;
        capture->lost = 1;
    }
    stream->capture = NULL;
    if (!k) fk_end_capture(capture);
}

/* Every node must come before the end of the stream that the capture began on. */
static int fk_all_joined(const fk_capture *capture) {
    const fk_graph *graph = capture->graph;
    unsigned char *reached = fk_new((size_t)graph->n, 1);
    int i, k, joined = 1;
    for (i = 0; i < capture->origin->n_frontier; i++) reached[capture->origin->frontier[i]] = 1;
    for (i = graph->n - 1; i >= 0; i--) {
        if (!reached[i]) joined = 0;
        for (k = 0; reached[i] && k < graph->nodes[i].n_after; k++)
            reached[graph->nodes[i].after[k]] = 1;
    }
    free(reached);
    return joined;
}

static int fk_begin_capture(fk_stream *stream, enum cudaStreamCaptureMode mode) {
    fk_capture *capture;
    if ((unsigned)mode > 2u) return cudaErrorInvalidValue;
    if (stream == fk_legacy(stream->context)) return cudaErrorStreamCaptureUnsupported;
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

static int fk_finish_capture(fk_stream *stream, cudaGraph_t *out) {
    fk_capture *capture = stream->capture;
    int error = 0;
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

/* ---- the calls about capture ---- */

static cudaError_t fk_begin_call(cudaStream_t handle, enum cudaStreamCaptureMode mode, int own) {
    int error = fk_begin(FK_cudaStreamBeginCapture);
    if (!error) {
        fk_stream *stream = fk_stream_of(handle, own, &error);
        if (stream) error = fk_begin_capture(stream, mode);
    }
    return fk_end((cudaError_t)error);
}

static cudaError_t fk_end_call(cudaStream_t handle, cudaGraph_t *out, int own) {
    int error = fk_begin(FK_cudaStreamEndCapture);
    if (!error && !out) error = cudaErrorInvalidValue;
    if (!error) {
        fk_stream *stream = fk_stream_of(handle, own, &error);
        if (stream) error = fk_finish_capture(stream, out);
    }
    return fk_end((cudaError_t)error);
}

static void fk_tell_status(const fk_stream *stream, enum cudaStreamCaptureStatus *status) {
    *status = !stream->capture        ? cudaStreamCaptureStatusNone
              : stream->capture->lost ? cudaStreamCaptureStatusInvalidated
                                      : cudaStreamCaptureStatusActive;
}

/* Asking about the legacy stream beside a capture of a blocking stream has no answer. */
static int fk_ask(fk_stream *stream, enum cudaStreamCaptureStatus *status, unsigned long long *id) {
    const fk_capture *capture;
    int i;
    for (capture = fk_captures; capture && stream == fk_legacy(stream->context);
         capture = capture->next)
        for (i = 0; i < capture->n_streams; i++)
            if (capture->streams[i]->context == stream->context &&
                !capture->streams[i]->nonblocking) return cudaErrorStreamCaptureImplicit;
    fk_tell_status(stream, status);
    if (id && stream->capture) *id = stream->capture->id;
    return 0;
}

static int fk_ask_call(fk_call call, cudaStream_t handle, enum cudaStreamCaptureStatus *status,
                       unsigned long long *id, int unsupported, int own) {
    int error = fk_begin(call);
    if (!error && !status) error = cudaErrorInvalidValue;
    if (!error && unsupported) error = cudaErrorNotSupported;
    if (!error) {
        fk_stream *stream = fk_stream_of(handle, own, &error);
        if (stream) error = fk_ask(stream, status, id);
    }
    return error;
}

static int fk_exchange(fk_call call, enum cudaStreamCaptureMode *mode) {
    int error = fk_begin(call);
    if (!error && (!mode || (unsigned)*mode > 2u)) error = cudaErrorInvalidValue;
    if (!error) {
        enum cudaStreamCaptureMode old = fk_me()->mode;
        fk_me()->mode = *mode;
        *mode = old;
    }
    return error;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) {
    return fk_end((cudaError_t)fk_exchange(FK_cudaThreadExchangeStreamCaptureMode, mode));
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
    enum cudaStreamCaptureMode runtimes;
    int error;
    if (mode) runtimes = (enum cudaStreamCaptureMode)*mode;
    error = fk_exchange(FK_cuThreadExchangeStreamCaptureMode, mode ? &runtimes : NULL);
    if (!error) *mode = (CUstreamCaptureMode)runtimes;
    return fk_end_driver(error);
}

/* cudaStreamGetCaptureInfo tells status and id; the graph and its nodes are not handed out. The _v2
   names are the shape that CUDA 12's header gives the call. */
#define FK_INFO_CALLS(info, info_v2, own)                                                     \
    cudaError_t info(cudaStream_t s, enum cudaStreamCaptureStatus *status,                    \
                     unsigned long long *id, cudaGraph_t *graph, const cudaGraphNode_t **nodes, \
                     const cudaGraphEdgeData **edges, size_t *n) {                            \
        return fk_end((cudaError_t)fk_ask_call(FK_cudaStreamGetCaptureInfo, s, status, id,    \
                                               graph || nodes || edges || n, own));           \
    }                                                                                         \
    cudaError_t info_v2(cudaStream_t s, enum cudaStreamCaptureStatus *status,                 \
                        unsigned long long *id, cudaGraph_t *graph,                           \
                        const cudaGraphNode_t **nodes, size_t *n) {                           \
        return fk_end((cudaError_t)fk_ask_call(FK_cudaStreamGetCaptureInfo, s, status, id,    \
                                               graph || nodes || n, own));                    \
    }
#define FK_CAPTURE_CALLS(begin, end, asks, own)                                               \
    cudaError_t begin(cudaStream_t s, enum cudaStreamCaptureMode m) {                         \
        return fk_begin_call(s, m, own);                                                      \
    }                                                                                         \
    cudaError_t end(cudaStream_t s, cudaGraph_t *g) { return fk_end_call(s, g, own); }        \
    cudaError_t asks(cudaStream_t s, enum cudaStreamCaptureStatus *status) {                  \
        return fk_end((cudaError_t)fk_ask_call(FK_cudaStreamIsCapturing, s, status, NULL, 0,  \
                                               own));                                         \
    }

FK_CAPTURE_CALLS(cudaStreamBeginCapture, cudaStreamEndCapture, cudaStreamIsCapturing, 0)
FK_CAPTURE_CALLS(cudaStreamBeginCapture_ptsz, cudaStreamEndCapture_ptsz,
                 cudaStreamIsCapturing_ptsz, 1)

static CUresult fk_is_capturing(CUstream s, CUstreamCaptureStatus *status, int own) {
    enum cudaStreamCaptureStatus asked = cudaStreamCaptureStatusNone;
    int error = fk_ask_call(FK_cuStreamIsCapturing, (cudaStream_t)s, status ? &asked : NULL, NULL,
                            0, own);
    if (!error) *status = (CUstreamCaptureStatus)asked;
    return fk_end_driver(error);
}

CUresult cuStreamIsCapturing(CUstream s, CUstreamCaptureStatus *status) {
    return fk_is_capturing(s, status, 0);
}

CUresult cuStreamIsCapturing_ptsz(CUstream s, CUstreamCaptureStatus *status) {
    return fk_is_capturing(s, status, 1);
}

FK_INFO_CALLS(cudaStreamGetCaptureInfo, cudaStreamGetCaptureInfo_v2, 0)
FK_INFO_CALLS(cudaStreamGetCaptureInfo_ptsz, cudaStreamGetCaptureInfo_v2_ptsz, 1)

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
