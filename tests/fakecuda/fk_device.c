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

#define FK_VERSION 13000

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
    return fk_me()->current ? fk_dead(fk_me()->device) : CUDA_ERROR_INVALID_CONTEXT;
}

/* A context is never followed, only passed back: its number says which it is. */
static char fk_contexts[FK_DEVICES];

static CUcontext fk_handle_of(int context) { return (CUcontext)(void *)&fk_contexts[context]; }

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

static int fk_in_table(int device) { return device >= 0 && device < FK_DEVICES; }

static void fk_count_devices(int n) {
    if (n >= 1 && n <= FK_DEVICES) fk.count = n;
}

static void fk_set(int *table, int device, int value) {
    if (fk_in_table(device)) table[device] = value;
}

FK_CONTROL(fake_devices, (int n), fk_count_devices(n))
FK_CONTROL(fake_device_vmm, (int device, int supported), fk_set(fk.no_vmm, device, !supported))
FK_CONTROL(fake_device_peers, (int device, int reachable), fk_set(fk.no_peers, device, !reachable))

/* ---- errors ---- */

#define FK_ERROR(code, runtime, driver) {code, #runtime},
static const struct {
    int         code;
    const char *name;
} fk_errors[] = {
#include "include/fakecuda_errors.h"
};
#undef FK_ERROR

static const char *fk_error_name(int code) {
    int i;
    for (i = 0; i < FK_COUNT(fk_errors); i++)
        if (fk_errors[i].code == code) return fk_errors[i].name;
    return "unrecognized error code";
}

const char *cudaGetErrorName(cudaError_t error) {
    fk_begin(FK_cudaGetErrorName, 0);
    fk_end(0);
    return fk_error_name((int)error);
}

/* CUDA's is a sentence. */
const char *cudaGetErrorString(cudaError_t error) { return cudaGetErrorName(error); }

cudaError_t cudaPeekAtLastError(void) {
    fk_begin(FK_cudaPeekAtLastError, 0);
    fk_end(0);
    return fk_me()->last;
}

cudaError_t cudaGetLastError(void) {
    cudaError_t last = fk_me()->last;
    fk_begin(FK_cudaGetLastError, 0);
    fk_end(0);
    fk_me()->last = cudaSuccess;
    return last;
}

/* ---- devices ---- */

static int fk_give(int *out, int value) {
    if (!out) return cudaErrorInvalidValue;
    *out = value;
    return 0;
}

static int fk_use_device(int device) {
    if (!fk_is_device(device)) return cudaErrorInvalidDevice;
    fk_me()->device = device;
    fk_context_made(device);
    return 0;
}

/* Only what programs on it have asked for; of any other attribute it says that it does not know. */
static int fk_attribute(int *value, int attribute, int device) {
    if (!fk_is_device(device)) return (int)cudaErrorInvalidDevice;
    if (attribute != CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)
        return CUDA_ERROR_INVALID_VALUE;
    return fk_give(value, fk_has_vmm(device));
}

static int fk_current_context(CUcontext *out) {
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    *out = fk_me()->current ? fk_handle_of(fk_me()->device) : NULL;
    return 0;
}

/* -1: none. */
static void fk_make_current(int context) {
    fk_me()->device = context < 0 ? 0 : context;
    fk_me()->current = context >= 0;
}

static int fk_push(CUcontext handle) {
    int context = fk_context_of(handle);
    fk_thread *me = fk_me();
    if (context < 0) return CUDA_ERROR_INVALID_CONTEXT;
    if (me->depth == FK_COUNT(me->pushed)) return CUDA_ERROR_INVALID_VALUE;
    me->pushed[me->depth++] = me->current ? me->device : -1;
    fk_make_current(context);
    return 0;
}

static int fk_pop(CUcontext *out) {
    fk_thread *me = fk_me();
    if (me->depth == 0) return CUDA_ERROR_INVALID_CONTEXT;
    if (out) *out = fk_handle_of(me->device);
    fk_make_current(me->pushed[--me->depth]);
    return 0;
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

static int fk_reset_device(void) {
    fk_end_context(fk_me()->device);
    return 0;
}

static int fk_retain(CUcontext *out, int device) {
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    if (!fk_is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    fk.retained[device]++;
    fk.has_context[device] = 1;
    *out = fk_handle_of(device);
    return 0;
}

/* A reset takes no retaining back: releasing is due, and allowed, all the same. */
static int fk_release(int device) {
    if (!fk_is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    if (!fk.retained[device]) {
        fk_misuse("device %d is released once more than it was retained", device);
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (--fk.retained[device] == 0 && fk.has_context[device] && !fk.of_runtime[device])
        fk_end_context(device);
    return 0;
}

long fk_retained_contexts(void) {
    long n = 0;
    int i;
    for (i = 0; i < FK_DEVICES; i++) n += fk.retained[i];
    return n;
}

static int fk_context_of_stream(CUstream handle, CUcontext *out) {
    int error = out ? 0 : CUDA_ERROR_INVALID_VALUE;
    const fk_stream *stream = error ? NULL : fk_stream_of(handle, &error);
    if (stream) *out = fk_handle_of(stream->device);
    return error;
}

static int fk_can_access(int *can, int device, int peer) {
    if (!fk_is_device(device) || !fk_is_device(peer)) return cudaErrorInvalidDevice;
    return fk_give(can, device != peer && !fk.no_peers[peer]);
}

static int fk_enable_peer(CUcontext handle, unsigned flags) {
    int device = fk_me()->device, peer = fk_context_of(handle);
    if (peer < 0 || fk_dead(peer)) return CUDA_ERROR_INVALID_CONTEXT;
    if (flags) return CUDA_ERROR_INVALID_VALUE;
    if (peer == device) return CUDA_ERROR_INVALID_DEVICE;
    if (fk_peer_allowed(device, peer)) return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
    fk_allow_peer(device, peer);
    return 0;
}

FK_DEFINE(cudaError_t, cudaRuntimeGetVersion, (int *version), fk_give(version, FK_VERSION))
FK_DEFINE(cudaError_t, cudaDriverGetVersion, (int *version), fk_give(version, FK_VERSION))
FK_DEFINE(cudaError_t, cudaGetDevice, (int *device), fk_give(device, fk_me()->device))
FK_DEFINE(cudaError_t, cudaGetDeviceCount, (int *count), fk_give(count, fk.count))
FK_DEFINE(cudaError_t, cudaSetDevice, (int device), fk_use_device(device))
FK_DEFINE(cudaError_t, cudaDeviceReset, (void), fk_reset_device())
FK_DEFINE(CUresult, cuDeviceGetAttribute,
          (int *value, CUdevice_attribute attribute, CUdevice device),
          fk_attribute(value, (int)attribute, device))
FK_DEFINE(CUresult, cuCtxGetCurrent, (CUcontext *out), fk_current_context(out))
FK_DEFINE(CUresult, cuCtxPushCurrent, (CUcontext context), fk_push(context))
FK_DEFINE(CUresult, cuCtxPopCurrent, (CUcontext *out), fk_pop(out))
FK_DEFINE(CUresult, cuCtxGetDevice, (CUdevice *device), fk_give(device, fk_me()->device))
FK_DEFINE(CUresult, cuDevicePrimaryCtxRetain, (CUcontext *out, CUdevice device),
          fk_retain(out, device))
FK_DEFINE(CUresult, cuDevicePrimaryCtxRelease, (CUdevice device), fk_release(device))
FK_DEFINE_TWINS(CUresult, cuStreamGetCtx, (CUstream stream, CUcontext *out),
                fk_context_of_stream(stream, out))
FK_DEFINE(CUresult, cuDeviceCanAccessPeer, (int *can, CUdevice device, CUdevice peer),
          fk_can_access(can, device, peer))
FK_DEFINE(CUresult, cuCtxEnablePeerAccess, (CUcontext context, unsigned flags),
          fk_enable_peer(context, flags))

/* ---- driver entry points ---- */

typedef void (*fk_function)(void);
/* By the plain name, though a header may call the function by a name with a version (_v2). */
#define FK_ENTRY_RUNTIME(text, plain, twin)
#define FK_ENTRY_OWN(text, plain, twin)
#define FK_ENTRY_DRIVER(text, plain, twin) {text, (fk_function)plain, (fk_function)plain},
#define FK_ENTRY_TWINS(text, plain, twin)  {text, (fk_function)plain, (fk_function)twin},
#define FK_CALL(name, kind, traits, price) FK_ENTRY_##kind(#name, name, name##_ptsz)
static const struct {
    const char *name;
    fk_function function, of_own_stream;
} fk_entries[] = {
#include "fk_calls.h"
};

/* A symbol that is not there is an answer, not an error of the call. Without a flag the caller's
   compiler decides which default stream is meant. */
static int fk_entry_point(const char *name, void **out, unsigned version, unsigned long long flags,
                          enum cudaDriverEntryPointQueryResult *status) {
    int own = flags ? flags == cudaEnablePerThreadDefaultStream : fk_me()->own_stream;
    enum cudaDriverEntryPointQueryResult answer = cudaDriverEntryPointSymbolNotFound;
    int i;
    if (!name || !out || flags > 2u) return cudaErrorInvalidValue;
    *out = NULL;
    for (i = 0; i < FK_COUNT(fk_entries); i++) {
        const fk_function *found =
            own ? &fk_entries[i].of_own_stream : &fk_entries[i].function;
        if (strcmp(name, fk_entries[i].name)) continue;
        answer = version < 10020u ? cudaDriverEntryPointVersionNotSufficent
                                  : cudaDriverEntryPointSuccess;
        if (version >= 10020u) memcpy(out, found, sizeof *out);
    }
    if (status) *status = answer;
    return status || *out ? 0 : cudaErrorSymbolNotFound;
}

FK_DEFINE_TWINS(cudaError_t, cudaGetDriverEntryPointByVersion,
                (const char *name, void **out, unsigned version, unsigned long long flags,
                 enum cudaDriverEntryPointQueryResult *status),
                fk_entry_point(name, out, version, flags, status))
