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

typedef struct fk_event {
    int      device;           /* whose context it is of */
    int      recorded;
    fk_clock clock;            /* reached when all of this is done */
    uint64_t capture;          /* not 0: recorded in that capture, after this node */
    int      node;
} fk_event;

static fk_pool fk_events = {.base = FK_DEVICE_BASE + FK_GIB};

static fk_event *fk_event_of(cudaEvent_t handle, int *error) {
    fk_event *event = fk_pool_get(&fk_events, (uint64_t)(uintptr_t)handle);
    if (!event) {
        fk_misuse("event %p is destroyed or never was", (void *)handle);
        *error = (int)cudaErrorInvalidResourceHandle;
    }
    return event;
}

static int fk_create(cudaEvent_t *out, unsigned flags) {
    fk_event *event;
    if (!out || flags > 7u) return cudaErrorInvalidValue;
    event = fk_new(1, sizeof *event);
    event->device = fk_me()->device;
    *out = (cudaEvent_t)(uintptr_t)fk_pool_add(&fk_events, event);
    return 0;
}

static void fk_free_event(fk_event *event) {
    fk_clock_drop(&event->clock);
    free(event);
}

static int fk_destroy(cudaEvent_t handle) {
    int error = 0;
    fk_event *event = fk_event_of(handle, &error);
    if (!event) return error;
    fk_pool_remove(&fk_events, (uint64_t)(uintptr_t)handle);
    fk_free_event(event);
    return 0;
}

/* ---- recording and waiting ---- */

static int fk_record_on(fk_event *event, fk_stream *stream) {
    int error;
    if (event->device != stream->device) return cudaErrorInvalidResourceHandle;
    if (fk_capture_lost(stream)) return cudaErrorStreamCaptureInvalidated;
    event->capture = fk_capture_id(stream);
    event->node = stream->frontier;
    if (stream->capture) return 0;
    error = (int)fk_submit(stream, fk_new_work(FK_MARK, "cudaEventRecord", stream->device));
    if (error) return error;
    event->recorded = 1;
    fk_clock_copy(&event->clock, &stream->tail);
    return 0;
}

static int fk_record(cudaEvent_t handle, cudaStream_t on) {
    int error = 0;
    fk_stream *stream = fk_stream_with_room(on, &error);
    fk_event *event = stream ? fk_event_of(handle, &error) : NULL;
    return event ? fk_record_on(event, stream) : error;
}

static int fk_wait_on(fk_stream *stream, const fk_event *event) {
    int error;
    if (event->capture) return (int)fk_capture_fork(stream, event->capture, event->node);
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

static int fk_wait(cudaStream_t on, cudaEvent_t handle, unsigned flags) {
    int error = flags ? cudaErrorInvalidValue : 0;
    fk_stream *stream = error ? NULL : fk_stream_with_room(on, &error);
    const fk_event *event = stream ? fk_event_of(handle, &error) : NULL;
    return event ? fk_wait_on(stream, event) : error;
}

/* ---- asking ---- */

/* NULL: not to be asked. */
static const fk_event *fk_event_to_ask(cudaEvent_t handle, int *error) {
    const fk_event *event = fk_event_of(handle, error);
    if (!event) return NULL;
    if (!event->capture) *error = (int)fk_forbidden();
    else *error = fk_capture_lose(event->capture) ? cudaErrorCapturedEvent : cudaErrorInvalidValue;
    return *error ? NULL : event;
}

static int fk_query(cudaEvent_t handle) {
    int error = 0;
    const fk_event *event = fk_event_to_ask(handle, &error);
    if (!event || !event->recorded) return error;
    if (!fk_done(&event->clock)) return cudaErrorNotReady;
    fk_learn(&event->clock);
    return 0;
}

static int fk_await(cudaEvent_t handle) {
    int error = 0;
    const fk_event *event = fk_event_to_ask(handle, &error);
    if (event && event->recorded) fk_drive(&event->clock);
    return error;
}

FK_DEFINE_BOTH(cudaEventCreateWithFlags, cuEventCreate, (cudaEvent_t *event, unsigned flags),
               fk_create(event, flags))
FK_DEFINE_BOTH(cudaEventDestroy, cuEventDestroy, (cudaEvent_t event), fk_destroy(event))
FK_DEFINE_BOTH(cudaEventQuery, cuEventQuery, (cudaEvent_t event), fk_query(event))
FK_DEFINE_BOTH(cudaEventSynchronize, cuEventSynchronize, (cudaEvent_t event), fk_await(event))
FK_DEFINE(cudaError_t, cudaEventCreate, (cudaEvent_t *event), fk_create(event, 0))
FK_DEFINE_BOTH_TWINS(cudaEventRecord, cuEventRecord, (cudaEvent_t event, cudaStream_t stream),
                     fk_record(event, stream))
FK_DEFINE_BOTH_TWINS(cudaStreamWaitEvent, cuStreamWaitEvent,
                     (cudaStream_t stream, cudaEvent_t event, unsigned flags),
                     fk_wait(stream, event, flags))

/* ---- dropping ---- */

void fk_events_drop_context(int device) {
    size_t i;
    for (i = 0; i < fk_events.n; i++) {
        fk_event *event = fk_events.items[i];
        if (!event || (device >= 0 && event->device != device)) continue;
        fk_pool_remove(&fk_events, fk_events.base + i * FK_HANDLE_STEP);
        fk_free_event(event);
    }
    if (device < 0) fk_pool_reset(&fk_events);
}

long fk_event_objects(void) { return (long)fk_events.live; }
