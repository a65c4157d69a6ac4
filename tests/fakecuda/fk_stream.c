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

static int fk_create(fk_call call, cudaStream_t *out, unsigned flags) {
    int error = fk_begin(call);
    if (!error && (!out || flags > cudaStreamNonBlocking)) error = cudaErrorInvalidValue;
    if (!error) *out = fk_new_stream(fk_me()->context, flags == cudaStreamNonBlocking, 0)->handle;
    fk_take_time(1100);
    return error;
}

cudaError_t cudaStreamCreate(cudaStream_t *out) {
    return fk_end((cudaError_t)fk_create(FK_cudaStreamCreate, out, cudaStreamDefault));
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned int flags) {
    return fk_end((cudaError_t)fk_create(FK_cudaStreamCreateWithFlags, out, flags));
}

CUresult cuStreamCreate(CUstream *out, unsigned int flags) {
    return fk_end_driver(fk_create(FK_cuStreamCreate, (cudaStream_t *)out, flags));
}

static int fk_destroy(fk_call call, cudaStream_t handle) {
    int error = fk_begin(call);
    if (!error) {
        fk_stream *stream = NULL;
        if (!handle || handle == cudaStreamLegacy || handle == cudaStreamPerThread)
            error = cudaErrorInvalidResourceHandle;
        else stream = fk_stream_of(handle, 0, &error);
        if (stream) fk_retire_stream(stream);
    }
    fk_take_time(1200);
    return error;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    return fk_end((cudaError_t)fk_destroy(FK_cudaStreamDestroy, stream));
}

CUresult cuStreamDestroy(CUstream stream) {
    return fk_end_driver(fk_destroy(FK_cuStreamDestroy, (cudaStream_t)stream));
}

static int fk_query(fk_call call, cudaStream_t handle, int own) {
    int error = fk_begin(call);
    if (!error) {
        fk_stream *stream = fk_stream_of(handle, own, &error);
        if (stream) error = (int)fk_capturing_refuses(stream);
        if (stream && !error) {
            if (!fk_done(&stream->tail)) error = cudaErrorNotReady;
            else fk_price(1254 - 133), fk_learn(&stream->tail);
        }
    }
    return error;
}

static int fk_synchronize(fk_call call, cudaStream_t handle, int own) {
    int error = fk_begin(call);
    if (!error) {
        fk_stream *stream = fk_stream_of(handle, own, &error);
        if (stream) error = (int)fk_capturing_refuses(stream);
        if (stream && !error) fk_drive(&stream->tail);
    }
    return error;
}

/* Seen on an H200 (CUDA 13.0): asking a capturing stream for its id is refused and loses the
 * capture, in every mode. */
static int fk_get_id(fk_call call, cudaStream_t handle, unsigned long long *id, int own) {
    int error = fk_begin(call);
    if (!error && !id) error = cudaErrorInvalidValue;
    if (!error) {
        fk_stream *stream = fk_stream_of(handle, own, &error);
        if (stream && stream->capture) {
            fk_capture_lose(fk_capture_id(stream));
            error = cudaErrorStreamCaptureUnsupported;
        } else if (stream) {
            *id = stream->id;
        }
    }
    return error;
}

/* The driver's own: the same, but that no last error is left. */
#define FK_DRIVER_STREAM_CALLS(synchronize, get_id, own)                                      \
    CUresult synchronize(CUstream s) {                                                        \
        return fk_end_driver(fk_synchronize(FK_cuStreamSynchronize, (cudaStream_t)s, own));   \
    }                                                                                         \
    CUresult get_id(CUstream s, unsigned long long *id) {                                     \
        return fk_end_driver(fk_get_id(FK_cuStreamGetId, (cudaStream_t)s, id, own));          \
    }

FK_DRIVER_STREAM_CALLS(cuStreamSynchronize, cuStreamGetId, 0)
FK_DRIVER_STREAM_CALLS(cuStreamSynchronize_ptsz, cuStreamGetId_ptsz, 1)

static cudaError_t fk_launch_host(cudaStream_t handle, cudaHostFn_t function, void *user, int own) {
    int error = fk_begin(FK_cudaLaunchHostFunc);
    if (!error && !function) error = cudaErrorInvalidValue;
    if (!error) {
        fk_stream *stream = fk_stream_with_room(handle, own, &error);
        if (stream) {
            fk_work *work = fk_new_work(FK_HOSTCALL, "cudaLaunchHostFunc", stream->device);
            work->function = function;
            work->user = user;
            error = (int)fk_submit(stream, work);
        }
    }
    return fk_end((cudaError_t)error);
}

cudaError_t cudaDeviceSynchronize(void) {
    int error = fk_begin(FK_cudaDeviceSynchronize);
    if (!error) error = (int)fk_context_capturing_refuses(fk_me()->context);
    if (!error) fk_drive_context(fk_me()->context);
    return fk_end((cudaError_t)error);
}

CUresult cuCtxSynchronize(void) {
    int error = fk_begin(FK_cuCtxSynchronize);
    if (!error) error = (int)fk_context_capturing_refuses(fk_me()->context);
    if (!error) fk_drive_context(fk_me()->context);
    return fk_end_driver(error);
}

#define FK_STREAM_CALLS(query, synchronize, launch, own)                                      \
    cudaError_t query(cudaStream_t s) {                                                       \
        return fk_end((cudaError_t)fk_query(FK_cudaStreamQuery, s, own));                     \
    }                                                                                         \
    cudaError_t synchronize(cudaStream_t s) {                                                 \
        return fk_end((cudaError_t)fk_synchronize(FK_cudaStreamSynchronize, s, own));         \
    }                                                                                         \
    cudaError_t launch(cudaStream_t s, cudaHostFn_t f, void *u) {                             \
        return fk_launch_host(s, f, u, own);                                                  \
    }

FK_STREAM_CALLS(cudaStreamQuery, cudaStreamSynchronize, cudaLaunchHostFunc, 0)
FK_STREAM_CALLS(cudaStreamQuery_ptsz, cudaStreamSynchronize_ptsz, cudaLaunchHostFunc_ptsz, 1)
