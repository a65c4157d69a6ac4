/* Events: a mark in a stream, and the clock of all that came before it.
 *
 * Seen on an H200 (CUDA 13.0): beside a capture in global mode, even of this thread, cuEventRecord
 * and cuStreamWaitEvent on other streams are allowed, and cuEventQuery in relaxed mode; none loses
 * it.
 * Seen on an H100 (CUDA 13.0): a null context is INVALID_CONTEXT; asking an event that was last
 * recorded in a capture, or waiting for it on the host, is cudaErrorCapturedEvent and loses the
 * capture; after its end it is cudaErrorInvalidValue, until the event is recorded again. */
#include "fk.h"

#include <stdlib.h>
#include <string.h>

typedef struct fk_event {
    int      context;
    int      recorded;
    fk_clock clock;            /* reached when all of this is done */
    uint64_t capture;          /* not 0: recorded in that capture, after these nodes */
    int     *nodes;
    int      n_nodes;
} fk_event;

static fk_pool fk_events;

static fk_event *fk_event_of(cudaEvent_t handle, int *error) {
    fk_event *event = fk_pool_get(&fk_events, (uint64_t)(uintptr_t)handle);
    if (!event) {
        fk_misuse("a call with event %p, which is destroyed or never was", (void *)handle);
        *error = (int)cudaErrorInvalidResourceHandle;
    }
    return event;
}

static int fk_create(fk_call call, cudaEvent_t *out, unsigned flags) {
    int error = fk_begin(call);
    if (!error && (!out || flags > 7u)) error = cudaErrorInvalidValue;
    if (!error) {
        fk_event *event = fk_new(1, sizeof *event);
        event->context = fk_me()->context;
        fk_events.base = fk_device_base + ((uint64_t)1 << 30);
        *out = (cudaEvent_t)(uintptr_t)fk_pool_add(&fk_events, event);
    }
    return error;
}

cudaError_t cudaEventCreate(cudaEvent_t *event) {
    return fk_end((cudaError_t)fk_create(FK_cudaEventCreate, event, cudaEventDefault));
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags) {
    return fk_end((cudaError_t)fk_create(FK_cudaEventCreateWithFlags, event, flags));
}

CUresult cuEventCreate(CUevent *event, unsigned int flags) {
    return fk_end_driver(fk_create(FK_cuEventCreate, (cudaEvent_t *)event, flags));
}

static void fk_free_event(fk_event *event) {
    fk_clock_drop(&event->clock);
    free(event->nodes);
    free(event);
}

static int fk_destroy(fk_call call, cudaEvent_t handle) {
    int error = fk_begin(call);
    if (!error) {
        fk_event *event = fk_event_of(handle, &error);
        if (event) {
            fk_pool_remove(&fk_events, (uint64_t)(uintptr_t)handle);
            fk_free_event(event);
        }
    }
    return error;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    return fk_end((cudaError_t)fk_destroy(FK_cudaEventDestroy, event));
}

CUresult cuEventDestroy(CUevent event) {
    return fk_end_driver(fk_destroy(FK_cuEventDestroy, (cudaEvent_t)event));
}

/* ---- recording and waiting ---- */

static int fk_record_captured(fk_event *event, const fk_stream *stream) {
    if (fk_capture_lost(stream)) return cudaErrorStreamCaptureInvalidated;
    event->capture = fk_capture_id(stream);
    event->n_nodes = stream->n_frontier;
    event->nodes = fk_grow(event->nodes, (size_t)stream->n_frontier, sizeof *event->nodes);
    if (stream->n_frontier)
        memcpy(event->nodes, stream->frontier, (size_t)stream->n_frontier * sizeof *event->nodes);
    return 0;
}

static int fk_record_on(fk_event *event, fk_stream *stream) {
    int error;
    if (event->context != stream->context) return cudaErrorInvalidResourceHandle;
    if (stream->capture) return fk_record_captured(event, stream);
    error = (int)fk_submit(stream, fk_new_work(FK_MARK, "cudaEventRecord", stream->device));
    if (error) return error;
    event->capture = 0;
    event->recorded = 1;
    fk_clock_copy(&event->clock, &stream->tail);
    return 0;
}

static int fk_record(fk_call call, cudaEvent_t handle, cudaStream_t on, int own) {
    int error = fk_begin(call);
    if (!error) {
        fk_stream *stream = fk_stream_with_room(on, own, &error);
        fk_event *event = stream ? fk_event_of(handle, &error) : NULL;
        if (event) error = fk_record_on(event, stream);
    }
    return error;
}

static int fk_wait_on(fk_stream *stream, const fk_event *event) {
    int error;
    if (event->capture)
        return (int)fk_capture_fork(stream, event->capture, event->nodes, event->n_nodes);
    if (stream->capture) {
        if (fk_capture_lost(stream)) return cudaErrorStreamCaptureInvalidated;
        if (!event->recorded) return 0;
        fk_capture_lose(fk_capture_id(stream));
        return cudaErrorStreamCaptureIsolation;
    }
    error = (int)fk_implicit(stream);
    if (!error && event->recorded)
        fk_issue(stream, fk_new_work(FK_MARK, "cudaStreamWaitEvent", stream->device),
                 &event->clock);
    return error;
}

static int fk_wait(fk_call call, cudaStream_t on, cudaEvent_t handle, unsigned flags, int own) {
    int error = fk_begin(call);
    if (!error && flags) error = cudaErrorInvalidValue;
    if (!error) {
        fk_stream *stream = fk_stream_with_room(on, own, &error);
        fk_event *event = stream ? fk_event_of(handle, &error) : NULL;
        if (event) error = fk_wait_on(stream, event);
    }
    return error;
}

/* ---- asking ---- */

static int fk_refuse(const fk_event *event) {
    if (!event->capture) return (int)fk_forbidden();
    return fk_capture_lose(event->capture) ? cudaErrorCapturedEvent : cudaErrorInvalidValue;
}

static int fk_query(fk_call call, cudaEvent_t handle) {
    int error = fk_begin(call);
    if (!error) {
        fk_event *event = fk_event_of(handle, &error);
        if (event) error = fk_refuse(event);
        if (event && !error && event->recorded) {
            if (fk_done(&event->clock)) fk_learn(&event->clock);
            else error = cudaErrorNotReady;
        }
    }
    return error;
}

cudaError_t cudaEventQuery(cudaEvent_t e) {
    return fk_end((cudaError_t)fk_query(FK_cudaEventQuery, e));
}

static int fk_await(fk_call call, cudaEvent_t handle) {
    int error = fk_begin(call);
    if (!error) {
        fk_event *event = fk_event_of(handle, &error);
        if (event) error = fk_refuse(event);
        if (event && !error && event->recorded) {
            fk_clock clock = {NULL, 0};  /* the event may be recorded again while this waits */
            fk_clock_copy(&clock, &event->clock);
            fk_drive(&clock);
            fk_clock_drop(&clock);
        }
    }
    return error;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    return fk_end((cudaError_t)fk_await(FK_cudaEventSynchronize, event));
}

CUresult cuEventSynchronize(CUevent event) {
    return fk_end_driver(fk_await(FK_cuEventSynchronize, (cudaEvent_t)event));
}

#define FK_EVENT_CALLS(record, wait, own)                                                     \
    cudaError_t record(cudaEvent_t e, cudaStream_t s) {                                       \
        return fk_end((cudaError_t)fk_record(FK_cudaEventRecord, e, s, own));                 \
    }                                                                                         \
    cudaError_t wait(cudaStream_t s, cudaEvent_t e, unsigned int flags) {                     \
        return fk_end((cudaError_t)fk_wait(FK_cudaStreamWaitEvent, s, e, flags, own));        \
    }

FK_EVENT_CALLS(cudaEventRecord, cudaStreamWaitEvent, 0)
FK_EVENT_CALLS(cudaEventRecord_ptsz, cudaStreamWaitEvent_ptsz, 1)

/* The driver's own: the same, but that no last error is left. */
#define FK_DRIVER_EVENT_CALLS(record, wait, own)                                              \
    CUresult record(CUevent e, CUstream s) {                                                  \
        return fk_end_driver(                                                                 \
            fk_record(FK_cuEventRecord, (cudaEvent_t)e, (cudaStream_t)s, own));               \
    }                                                                                         \
    CUresult wait(CUstream s, CUevent e, unsigned int flags) {                                \
        return fk_end_driver(                                                                 \
            fk_wait(FK_cuStreamWaitEvent, (cudaStream_t)s, (cudaEvent_t)e, flags, own));      \
    }

FK_DRIVER_EVENT_CALLS(cuEventRecord, cuStreamWaitEvent, 0)
FK_DRIVER_EVENT_CALLS(cuEventRecord_ptsz, cuStreamWaitEvent_ptsz, 1)

CUresult cuEventQuery(CUevent e) {
    return fk_end_driver(fk_query(FK_cuEventQuery, (cudaEvent_t)e));
}

/* ---- dropping ---- */

void fk_events_drop_context(int context) {
    size_t i;
    for (i = 0; i < fk_events.n; i++) {
        fk_event *event = fk_events.items[i];
        if (!event || (context >= 0 && event->context != context)) continue;
        fk_pool_remove(&fk_events, fk_events.base + i * FK_HANDLE_STEP);
        fk_free_event(event);
    }
    if (context < 0) fk_pool_reset(&fk_events);
}

long fk_event_objects(void) { return (long)fk_events.live; }
