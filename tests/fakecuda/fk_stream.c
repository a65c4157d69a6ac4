/* The runtime's stream calls, and the driver's.
 *
 * Confirmed on an H200 (CUDA 13.0): cudaErrorNotReady, of cudaStreamQuery as of cudaEventQuery, is
 * not kept as the thread's last error.
 *
 * Measured there: making a stream takes at least 1.1 us, destroying one at least 1.2 us, 2.2 us in
 * all before a handle can come again. gpupool counts on 1 us, so the fake takes its time too.
 *
 * Assumed, to be confirmed on a GPU: cudaMemcpyAsync and cudaMemsetAsync may be given a stream of a
 * device that is not current. */
#include "fk.h"

static int fk_create(cudaStream_t *out, unsigned flags) {
    if (!out || flags > cudaStreamNonBlocking) return cudaErrorInvalidValue;
    *out = fk_new_stream(fk_me()->device, flags == cudaStreamNonBlocking, 0)->handle;
    fk_take_time(1100);
    return 0;
}

static int fk_destroy(cudaStream_t handle) {
    fk_stream *stream;
    int error = 0;
    if (!handle || handle == cudaStreamLegacy || handle == cudaStreamPerThread)
        return cudaErrorInvalidResourceHandle;
    stream = fk_stream_of(handle, &error);
    if (stream) fk_retire_stream(stream);
    fk_take_time(1200);
    return error;
}

/* NULL: not to be waited for. */
static const fk_stream *fk_stream_to_await(cudaStream_t handle, int *error) {
    fk_stream *stream = fk_stream_of(handle, error);
    if (stream) *error = (int)fk_capturing_refuses(stream);
    return *error ? NULL : stream;
}

static int fk_query(cudaStream_t handle) {
    int error = 0;
    const fk_stream *stream = fk_stream_to_await(handle, &error);
    if (!stream) return error;
    if (!fk_done(&stream->tail)) return cudaErrorNotReady;
    fk_price(1254 - 133);
    fk_learn(&stream->tail);
    return 0;
}

static int fk_synchronize(cudaStream_t handle) {
    int error = 0;
    const fk_stream *stream = fk_stream_to_await(handle, &error);
    if (stream) fk_drive(&stream->tail);
    return error;
}

/* Seen on an H200 (CUDA 13.0): asking a capturing stream for its id is refused and loses the
 * capture, in every mode. */
static int fk_get_id(cudaStream_t handle, unsigned long long *id) {
    int error = id ? 0 : cudaErrorInvalidValue;
    const fk_stream *stream = error ? NULL : fk_stream_of(handle, &error);
    if (!stream) return error;
    if (fk_capture_lose(fk_capture_id(stream))) return cudaErrorStreamCaptureUnsupported;
    *id = stream->id;
    return 0;
}

static int fk_launch_host(cudaStream_t handle, cudaHostFn_t function, void *user) {
    int error = function ? 0 : cudaErrorInvalidValue;
    fk_stream *stream = error ? NULL : fk_stream_with_room(handle, &error);
    fk_work *work;
    if (!stream) return error;
    work = fk_new_work(FK_HOSTCALL, fk_call_name(), stream->device);
    work->function = function;
    work->user = user;
    return (int)fk_submit(stream, work);
}

static int fk_synchronize_device(void) {
    int error = (int)fk_context_capturing_refuses(fk_me()->device);
    if (!error) fk_drive_context(fk_me()->device);
    return error;
}

FK_DEFINE(cudaError_t, cudaStreamCreate, (cudaStream_t *stream),
          fk_create(stream, cudaStreamDefault))
FK_DEFINE_BOTH(cudaStreamCreateWithFlags, cuStreamCreate, (cudaStream_t *stream, unsigned flags),
               fk_create(stream, flags))
FK_DEFINE_BOTH(cudaStreamDestroy, cuStreamDestroy, (cudaStream_t stream), fk_destroy(stream))
FK_DEFINE_TWINS(cudaError_t, cudaStreamQuery, (cudaStream_t stream), fk_query(stream))
FK_DEFINE_BOTH_TWINS(cudaStreamSynchronize, cuStreamSynchronize, (cudaStream_t stream),
                     fk_synchronize(stream))
FK_DEFINE_TWINS(CUresult, cuStreamGetId, (CUstream stream, unsigned long long *id),
                fk_get_id(stream, id))
FK_DEFINE_TWINS(cudaError_t, cudaLaunchHostFunc,
                (cudaStream_t stream, cudaHostFn_t function, void *user),
                fk_launch_host(stream, function, user))
FK_DEFINE(cudaError_t, cudaDeviceSynchronize, (void), fk_synchronize_device())
