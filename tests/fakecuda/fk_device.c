/* Devices, error names, versions, driver entry points.
 *
 * Seen on an H200 (CUDA 13.0): after cudaDeviceReset the primary context is at the same address and
 * has another id; until the device is used again cuCtxGetId answers CONTEXT_IS_DESTROYED. Asking a
 * capturing stream for its context (cuStreamGetCtx) is harmless. On an H100: with a reset of its
 * device memory of cudaHostAlloc and cudaMallocManaged is gone too, and the next call may get its
 * address; what cudaHostRegister has pinned stays, no longer pinned; memory of cuMemCreate stays
 * as it is, held, mapped, and the next context can use it, through each of the addresses that it is
 * mapped at. Once it is unmapped and released there, exactly as many bytes are free as before it
 * was made (after each of 40 resets, with 256 MiB of which a third was mapped twice, and a kernel
 * at work: tests/gpu/stitch_reset.cu). No capture keeps a device from being reset.
 * cuDeviceGetAttribute answers INVALID_VALUE for an attribute that it does not know, where fakecuda
 * knows only a few. A program that has not called cudaSetDevice gets device 0's context.
 * Seen on an H100 too: a thread that has called nothing of the runtime has no current context;
 * calls that need one, and those with a default stream, are INVALID_CONTEXT there. A context that a
 * reset has ended can be pushed; calls that need one are then CONTEXT_IS_DESTROYED until the device
 * is used again or cuDevicePrimaryCtxRetain makes the context anew. The reset takes no retaining
 * back: each is to be released, and the last release ends a context that the runtime has not taken.
 * One release more is INVALID_CONTEXT.
 * Seen on two H100: cudaDeviceReset ends what cudaDeviceEnablePeerAccess gave, to this device and
 * to others of this device's memory, but not what cuMemSetAccess gave. */
#include "fk.h"

#include <string.h>

#define FK_NUMBER_OF_SM   132
#define FK_VERSION        13000

static struct {
    int count;
    int no_vmm[FK_DEVICES], no_peers[FK_DEVICES];
    unsigned long long resets[FK_DEVICES];
    int has_context[FK_DEVICES];
    int of_runtime[FK_DEVICES];    /* the runtime holds it; only a reset lets go */
    int retained[FK_DEVICES];      /* by the program, and not yet released */
} fk = {.count = 2};

void fk_context_made(int device) {
    fk.has_context[device] = fk.of_runtime[device] = 1;
    fk_me()->current = 1;
}

/* A device's other context lives as long as the program. */
static int fk_dead(int context) {
    if (fk.has_context[context]) return 0;
    return fk.resets[context] ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_ERROR_INVALID_CONTEXT;
}

int fk_no_context(void) {
    return fk_me()->current ? fk_dead(fk_me()->context) : CUDA_ERROR_INVALID_CONTEXT;
}

/* A context is never followed, only passed back: its number says which it is. */
static char fk_contexts[FK_DEVICES];

static CUcontext fk_handle_of(int context) { return (CUcontext)(void *)&fk_contexts[context]; }

void fk_use_context(int context) {
    fk_me()->context = context;
    fk_me()->device = context;
}

int fk_is_device(int device) { return device >= 0 && device < fk.count; }

int fk_context_of(CUcontext handle) {
    int i;
    for (i = 0; i < FK_DEVICES; i++)
        if (handle == fk_handle_of(i) && i < fk.count) return i;
    return -1;
}

int fk_has_vmm(int device) { return !fk.no_vmm[device]; }


void fk_devices_defaults(void) {
    memset(&fk, 0, sizeof fk);
    fk.count = 2;
}

void fake_devices(int n) {
    fk_lock();
    if (n >= 1 && n <= FK_DEVICES) fk.count = n;
    fk_unlock();
}

void fake_device_vmm(int device, int supported) {
    fk_lock();
    if (device >= 0 && device < FK_DEVICES) fk.no_vmm[device] = !supported;
    fk_unlock();
}

void fake_device_peers(int device, int reachable) {
    fk_lock();
    if (device >= 0 && device < FK_DEVICES) fk.no_peers[device] = !reachable;
    fk_unlock();
}

/* ---- errors ---- */

static const struct fk_error {
    int         code;
    const char *name;
} fk_errors[] = {
    {0, "cudaSuccess"},
    {1, "cudaErrorInvalidValue"},
    {2, "cudaErrorMemoryAllocation"},
    {3, "cudaErrorInitializationError"},
    {4, "cudaErrorCudartUnloading"},
    {12, "cudaErrorInvalidPitchValue"},
    {21, "cudaErrorInvalidMemcpyDirection"},
    {101, "cudaErrorInvalidDevice"},
    {201, "cudaErrorDeviceUninitialized"},
    {400, "cudaErrorInvalidResourceHandle"},
    {401, "cudaErrorIllegalState"},
    {500, "cudaErrorSymbolNotFound"},
    {600, "cudaErrorNotReady"},
    {700, "cudaErrorIllegalAddress"},
    {704, "cudaErrorPeerAccessAlreadyEnabled"},
    {712, "cudaErrorHostMemoryAlreadyRegistered"},
    {713, "cudaErrorHostMemoryNotRegistered"},
    {719, "cudaErrorLaunchFailure"},
    {800, "cudaErrorNotPermitted"},
    {801, "cudaErrorNotSupported"},
    {900, "cudaErrorStreamCaptureUnsupported"},
    {901, "cudaErrorStreamCaptureInvalidated"},
    {902, "cudaErrorStreamCaptureMerge"},
    {903, "cudaErrorStreamCaptureUnmatched"},
    {904, "cudaErrorStreamCaptureUnjoined"},
    {905, "cudaErrorStreamCaptureIsolation"},
    {906, "cudaErrorStreamCaptureImplicit"},
    {907, "cudaErrorCapturedEvent"},
    {908, "cudaErrorStreamCaptureWrongThread"},
    {999, "cudaErrorUnknown"},
};

static const char *fk_error_name(int code) {
    size_t i;
    for (i = 0; i < sizeof fk_errors / sizeof fk_errors[0]; i++)
        if (fk_errors[i].code == code) return fk_errors[i].name;
    return "unrecognized error code";
}

const char *cudaGetErrorName(cudaError_t error) {
    fk_end_driver(fk_begin(FK_cudaGetErrorName));
    return fk_error_name((int)error);
}

/* CUDA's is a sentence. */
const char *cudaGetErrorString(cudaError_t error) {
    fk_end_driver(fk_begin(FK_cudaGetErrorString));
    return fk_error_name((int)error);
}

cudaError_t cudaGetLastError(void) {
    cudaError_t last = fk_me()->last;
    fk_end_driver(fk_begin(FK_cudaGetLastError));
    fk_me()->last = cudaSuccess;
    return last;
}

cudaError_t cudaPeekAtLastError(void) {
    cudaError_t last = fk_me()->last;
    fk_end_driver(fk_begin(FK_cudaPeekAtLastError));
    return last;
}

/* ---- devices ---- */

static cudaError_t fk_give(fk_call call, int *out, int value) {
    int error = fk_begin(call);
    if (!error && !out) error = cudaErrorInvalidValue;
    if (!error) *out = value;
    return fk_end((cudaError_t)error);
}

cudaError_t cudaRuntimeGetVersion(int *version) {
    return fk_give(FK_cudaRuntimeGetVersion, version, FK_VERSION);
}

cudaError_t cudaDriverGetVersion(int *version) {
    return fk_give(FK_cudaDriverGetVersion, version, FK_VERSION);
}

cudaError_t cudaGetDevice(int *device) {
    return fk_give(FK_cudaGetDevice, device, fk_me()->device);
}

cudaError_t cudaGetDeviceCount(int *out) {
    int error = fk_begin(FK_cudaGetDeviceCount);
    if (!error && !out) error = cudaErrorInvalidValue;
    if (!error) *out = fk.count;
    return fk_end((cudaError_t)error);
}

cudaError_t cudaSetDevice(int device) {
    int error = fk_begin(FK_cudaSetDevice);
    if (!error && !fk_is_device(device)) error = cudaErrorInvalidDevice;
    if (!error) fk_use_context(device);
    if (!error) fk_context_made(device);
    return fk_end((cudaError_t)error);
}

static int fk_attribute(int *value, int attribute, int device) {
    if (!value) return 1;
    if (!fk_is_device(device)) return (int)cudaErrorInvalidDevice;
    switch (attribute) {
    case 1: *value = 1024; break;                       /* threads per block */
    case 10: *value = 32; break;                        /* warp */
    case 14: *value = 512; break;                       /* texture alignment */
    case 16: *value = FK_NUMBER_OF_SM; break;
    case 18: *value = 0; break;                          /* integrated */
    case 19: *value = 1; break;                         /* maps host memory */
    case 35: *value = 0; break;                         /* TCC */
    case 40: *value = 3; break;                         /* copy engines */
    case 41: *value = 1; break;                         /* unified addressing */
    case 51: *value = 32; break;                        /* texture pitch alignment */
    case 75: *value = 9; break;                         /* compute capability */
    case 76: *value = 0; break;
    case 83: *value = 1; break;                         /* managed memory */
    case 88: *value = 0; break;                         /* pageable memory access */
    case 89: *value = 1; break;                         /* concurrent managed access */
    case 99: *value = 1; break;                         /* host registration */
    case 102: *value = fk_has_vmm(device); break;       /* virtual memory management */
    case 103:                                           /* handles as file descriptors */
    case 110: *value = fk_has_vmm(device); break;       /* RDMA */
    case 115: *value = 1; break;                        /* memory pools */
    default: return 1;
    }
    return 0;
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
    int error = fk_begin(FK_cuDeviceGetAttribute);
    if (!error) error = fk_attribute(value, (int)attribute, device);
    return fk_end_driver(error);
}

CUresult cuCtxGetCurrent(CUcontext *out) {
    int error = fk_begin(FK_cuCtxGetCurrent);
    if (!error && !out) error = CUDA_ERROR_INVALID_VALUE;
    if (!error)
        *out = fk_me()->current ? fk_handle_of(fk_me()->context) : NULL;
    return fk_end_driver(error);
}

/* -1: none. */
static void fk_make_current(int context) {
    fk_use_context(context < 0 ? 0 : context);
    fk_me()->current = context >= 0;
}

CUresult cuCtxPushCurrent(CUcontext handle) {
    int error = fk_begin(FK_cuCtxPushCurrent), context = fk_context_of(handle);
    fk_thread *me = fk_me();
    if (!error && context < 0) error = CUDA_ERROR_INVALID_CONTEXT;
    if (!error && me->depth == (int)(sizeof me->pushed / sizeof *me->pushed))
        error = CUDA_ERROR_INVALID_VALUE;
    if (!error) {
        me->pushed[me->depth++] = me->current ? me->context : -1;
        fk_make_current(context);
    }
    return fk_end_driver(error);
}

CUresult cuCtxPopCurrent(CUcontext *out) {
    int error = fk_begin(FK_cuCtxPopCurrent);
    fk_thread *me = fk_me();
    if (!error && me->depth == 0) error = CUDA_ERROR_INVALID_CONTEXT;
    if (!error) {
        if (out) *out = fk_handle_of(me->context);
        fk_make_current(me->pushed[--me->depth]);
    }
    return fk_end_driver(error);
}

CUresult cuCtxGetDevice(CUdevice *device) {
    int error = fk_begin(FK_cuCtxGetDevice);
    if (!error && !device) error = CUDA_ERROR_INVALID_VALUE;
    if (!error) *device = fk_me()->device;
    return fk_end_driver(error);
}

/* All that is of the context goes. */
static void fk_end_context(int device) {
    fk_drive_context(device);
    fk_graphs_drop_context(device);
    fk_events_drop_context(device);
    fk_streams_drop_context(device);
    fk_memory_drop_device(device);
    fk.resets[device]++;
    fk.has_context[device] = fk.of_runtime[device] = 0;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice device) {
    int error = fk_begin(FK_cuDevicePrimaryCtxRetain);
    if (!error && !out) error = CUDA_ERROR_INVALID_VALUE;
    if (!error && !fk_is_device(device)) error = CUDA_ERROR_INVALID_DEVICE;
    if (!error) {
        fk.retained[device]++;
        fk.has_context[device] = 1;
        *out = fk_handle_of(device);
    }
    return fk_end_driver(error);
}

/* A reset takes no retaining back: releasing is due, and allowed, all the same. */
CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
    int error = fk_begin(FK_cuDevicePrimaryCtxRelease);
    if (!error && !fk_is_device(device)) error = CUDA_ERROR_INVALID_DEVICE;
    if (!error && !fk.retained[device]) {
        fk_misuse("cuDevicePrimaryCtxRelease of device %d once more than it was retained", device);
        error = CUDA_ERROR_INVALID_CONTEXT;
    }
    if (!error && --fk.retained[device] == 0 && fk.has_context[device] && !fk.of_runtime[device])
        fk_end_context(device);
    return fk_end_driver(error);
}

long fk_retained_contexts(void) {
    long n = 0;
    int i;
    for (i = 0; i < FK_DEVICES; i++) n += fk.retained[i];
    return n;
}

static CUresult fk_context_of_stream(CUstream handle, CUcontext *out, int own) {
    int error = fk_begin(FK_cuStreamGetCtx);
    if (!error && !out) error = CUDA_ERROR_INVALID_VALUE;
    if (!error) {
        fk_stream *stream = fk_stream_of((cudaStream_t)handle, own, &error);
        if (stream) *out = fk_handle_of(stream->context);
    }
    return fk_end_driver(error);
}

CUresult cuStreamGetCtx(CUstream s, CUcontext *out) { return fk_context_of_stream(s, out, 0); }
CUresult cuStreamGetCtx_ptsz(CUstream s, CUcontext *out) { return fk_context_of_stream(s, out, 1); }

static int fk_can_access(fk_call call, int *can, int device, int peer) {
    int error = fk_begin(call);
    if (!error && !can) error = cudaErrorInvalidValue;
    if (!error && (!fk_is_device(device) || !fk_is_device(peer))) error = cudaErrorInvalidDevice;
    if (!error) *can = device != peer && !fk.no_peers[peer];
    return error;
}

CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer) {
    return fk_end_driver(fk_can_access(FK_cuDeviceCanAccessPeer, can, device, peer));
}

static int fk_enable_peer(int peer, unsigned flags) {
    int device = fk_me()->device;
    if (flags) return cudaErrorInvalidValue;
    if (!fk_is_device(peer) || peer == device) return cudaErrorInvalidDevice;
    if (fk_peer_allowed(device, peer)) return cudaErrorPeerAccessAlreadyEnabled;
    fk_allow_peer(device, peer);
    return 0;
}

CUresult cuCtxEnablePeerAccess(CUcontext handle, unsigned int flags) {
    int error = fk_begin(FK_cuCtxEnablePeerAccess), peer = fk_context_of(handle);
    if (!error && (peer < 0 || fk_dead(peer))) error = CUDA_ERROR_INVALID_CONTEXT;
    if (!error) error = fk_enable_peer(peer, flags);
    return fk_end_driver(error);
}

cudaError_t cudaDeviceReset(void) {
    int error = fk_begin(FK_cudaDeviceReset), device = fk_me()->device;
    if (!error) fk_end_context(device);
    return fk_end((cudaError_t)error);
}

/* ---- driver entry points ---- */

typedef void (*fk_function)(void);
/* By the plain name, though a header may call the function by a name with a version (_v2). A call
   that takes a stream has a twin, to which a stream of 0 is the thread's own default stream. */
#define FK_ENTRY(name)            {#name, (fk_function)name, (fk_function)name},
#define FK_ENTRY_TWIN(name, twin) {#name, (fk_function)name, (fk_function)twin},
static const struct {
    const char *name;
    fk_function function, per_thread;
} fk_entries[] = {
    FK_ENTRY(cuDeviceGetAttribute) FK_ENTRY(cuDeviceCanAccessPeer)
    FK_ENTRY(cuDevicePrimaryCtxRetain) FK_ENTRY(cuDevicePrimaryCtxRelease)
    FK_ENTRY(cuCtxGetCurrent) FK_ENTRY(cuCtxPushCurrent) FK_ENTRY(cuCtxPopCurrent)
    FK_ENTRY(cuCtxGetDevice) FK_ENTRY(cuCtxEnablePeerAccess) FK_ENTRY(cuCtxSynchronize)
    FK_ENTRY(cuStreamCreate) FK_ENTRY(cuStreamDestroy) FK_ENTRY(cuEventCreate)
    FK_ENTRY(cuEventDestroy) FK_ENTRY(cuEventSynchronize) FK_ENTRY(cuEventQuery)
    FK_ENTRY(cuThreadExchangeStreamCaptureMode) FK_ENTRY(cuMemGetAllocationGranularity)
    FK_ENTRY(cuMemAddressReserve) FK_ENTRY(cuMemAddressFree) FK_ENTRY(cuMemCreate)
    FK_ENTRY(cuMemRelease) FK_ENTRY(cuMemExportToShareableHandle)
    FK_ENTRY(cuMemImportFromShareableHandle) FK_ENTRY(cuMemMap) FK_ENTRY(cuMemUnmap)
    FK_ENTRY(cuMemSetAccess) FK_ENTRY(cuMemGetAddressRange) FK_ENTRY(cuPointerGetAttributes)
    FK_ENTRY(cuMemAlloc) FK_ENTRY(cuMemFree) FK_ENTRY(cuMemAllocManaged)
    FK_ENTRY(cuMemHostAlloc) FK_ENTRY(cuMemFreeHost) FK_ENTRY(cuMemHostRegister)
    FK_ENTRY(cuMemHostUnregister) FK_ENTRY(cuMemGetInfo)
    FK_ENTRY_TWIN(cuStreamGetCtx, cuStreamGetCtx_ptsz)
    FK_ENTRY_TWIN(cuStreamIsCapturing, cuStreamIsCapturing_ptsz)
    FK_ENTRY_TWIN(cuStreamGetId, cuStreamGetId_ptsz)
    FK_ENTRY_TWIN(cuStreamSynchronize, cuStreamSynchronize_ptsz)
    FK_ENTRY_TWIN(cuEventRecord, cuEventRecord_ptsz)
    FK_ENTRY_TWIN(cuStreamWaitEvent, cuStreamWaitEvent_ptsz)
    FK_ENTRY_TWIN(cuMemsetD8Async, cuMemsetD8Async_ptsz)
    FK_ENTRY_TWIN(cuMemcpyAsync, cuMemcpyAsync_ptsz)
    FK_ENTRY_TWIN(cuMemcpy2DAsync, cuMemcpy2DAsync_v2_ptsz)
};

/* A symbol that is not there is an answer, not an error of the call. */
static cudaError_t fk_entry_point(fk_call call, const char *name, void **out, unsigned version,
                                  unsigned long long flags,
                                  enum cudaDriverEntryPointQueryResult *status) {
    const int own = flags == cudaEnablePerThreadDefaultStream;
    enum cudaDriverEntryPointQueryResult answer = cudaDriverEntryPointSymbolNotFound;
    int error = fk_begin(call);
    size_t i;
    if (!error && (!name || !out || flags > 2u)) error = cudaErrorInvalidValue;
    for (i = 0; !error && i < sizeof fk_entries / sizeof fk_entries[0]; i++) {
        if (strcmp(name, fk_entries[i].name)) continue;
        answer = version < 10020u ? cudaDriverEntryPointVersionNotSufficent
                                  : cudaDriverEntryPointSuccess;
        break;
    }
    if (!error) *out = NULL;
    if (!error && answer == cudaDriverEntryPointSuccess)
        memcpy(out, own ? &fk_entries[i].per_thread : &fk_entries[i].function, sizeof *out);
    if (!error && status) *status = answer;
    if (!error && !status && answer != cudaDriverEntryPointSuccess)
        error = cudaErrorSymbolNotFound;
    return fk_end((cudaError_t)error);
}

/* Without a flag the caller's compiler decides which default stream is meant. */
#define FK_ENTRY_CALLS(plain, by_version, usual)                                              \
    cudaError_t plain(const char *name, void **out, unsigned long long flags,                 \
                      enum cudaDriverEntryPointQueryResult *status) {                         \
        return fk_entry_point(FK_cudaGetDriverEntryPoint, name, out, FK_VERSION,              \
                              flags ? flags : (usual), status);                               \
    }                                                                                         \
    cudaError_t by_version(const char *name, void **out, unsigned int version,                \
                           unsigned long long flags,                                          \
                           enum cudaDriverEntryPointQueryResult *status) {                    \
        return fk_entry_point(FK_cudaGetDriverEntryPointByVersion, name, out, version,        \
                              flags ? flags : (usual), status);                               \
    }

FK_ENTRY_CALLS(cudaGetDriverEntryPoint, cudaGetDriverEntryPointByVersion, cudaEnableLegacyStream)
FK_ENTRY_CALLS(cudaGetDriverEntryPoint_ptsz, cudaGetDriverEntryPointByVersion_ptsz,
               cudaEnablePerThreadDefaultStream)
