/* Work: what one operation does to memory, and the calls that make such operations. */
#include "fk.h"

#include <stdlib.h>
#include <string.h>

fk_work *fk_new_work(fk_work_kind kind, const char *name, int device) {
    fk_work *work = fk_new(1, sizeof *work);
    work->kind = kind;
    work->refs = 1;
    work->device = device;
    snprintf(work->name, sizeof work->name, "%s", name ? name : "?");
    return work;
}

void fk_unref_work(fk_work *work) {
    if (--work->refs > 0) return;
    free(work->accesses);
    free(work->staged);
    free(work);
}

static uint64_t fk_number(const void *p) { return (uint64_t)(uintptr_t)p; }

/* ---- the oracle's part: at the call, in call order ---- */

static void fk_note(const fk_work *work, const void *address, size_t bytes, int write, int must,
                    const fk_actor *actor) {
    uint64_t at = fk_number(address);
    while (bytes > 0) {
        fk_extent extent = fk_extent_at(at, bytes, work->device);
        if (extent.piece)
            fk_oracle_touch(extent.piece, extent.at, extent.bytes, write, must, actor, at);
        at += extent.bytes;
        bytes -= extent.bytes;
    }
}

void fk_note_work(const fk_work *work, const fk_actor *actor) {
    size_t row;
    int i;
    for (i = 0; i < work->n; i++) {
        const fake_access *access = &work->accesses[i];
        fk_note(work, access->address, access->bytes, access->write,
                !access->write && access->value, actor);
    }
    for (row = 0; row < work->height; row++) {
        if (work->kind == FK_COPY && !work->staged)
            fk_note(work, work->from + row * work->from_pitch, work->width, 0, 0, actor);
        fk_note(work, work->to + row * work->to_pitch, work->width, 1, 0, actor);
    }
}

/* ---- the bytes' part: when the operation runs ---- */

/* Where the bytes are, for at most *bytes of them; NULL, with a failure noted, where the device may
   not go. A copy may touch ordinary host memory, a kernel may not. */
static unsigned char *fk_reach(const fk_work *work, const void *address, size_t *bytes, int write) {
    fk_extent extent = fk_extent_at(fk_number(address), *bytes, work->device);
    int copies = work->kind == FK_COPY;
    *bytes = extent.bytes;
    if (extent.kind < 0 && copies) return (unsigned char *)(uintptr_t)address;
    if (!extent.piece) {
        fk_fail("%s touches %p, where no memory is mapped", work->name, address);
        return NULL;
    }
    if (copies && extent.kind == (int)FK_MALLOC) return fk_bytes(&extent);
    if (!(extent.access & (write ? 2u : 1u))) {
        fk_fail("%s %s %p without access from device %d", work->name, write ? "writes" : "reads",
                address, work->device);
        return NULL;
    }
    return fk_bytes(&extent);
}

static int fk_verify(const fk_work *work, const unsigned char *bytes, size_t n,
                     const unsigned char *address, unsigned char wanted) {
    size_t i;
    if (n == 0 || (bytes[0] == wanted && !memcmp(bytes, bytes + 1, n - 1))) return 1;
    for (i = 0; bytes[i] == wanted;) i++;
    fk_fail("%s finds byte %#x at %p, not %#x", work->name, bytes[i],
            (const void *)(address + i), wanted);
    return 0;
}

static void fk_run_access(const fk_work *work, const fake_access *access) {
    const unsigned char *at = access->address;
    size_t left = access->bytes;
    while (left > 0) {
        size_t part = left;
        unsigned char *bytes = fk_reach(work, at, &part, access->write);
        if (!bytes) return;
        if (access->value && access->write) memset(bytes, (int)(access->value - 1), part);
        if (access->value && !access->write &&
            !fk_verify(work, bytes, part, at, (unsigned char)(access->value - 1)))
            return;
        at += part;
        left -= part;
    }
}

static int fk_run_row(const fk_work *work, unsigned char *to, const unsigned char *from) {
    size_t left = work->width;
    while (left > 0) {
        size_t part = left;
        unsigned char *into = fk_reach(work, to, &part, 1);
        const unsigned char *out_of = from;
        if (!into) return 0;
        if (work->kind == FK_SET) {
            memset(into, work->value, part);
        } else {
            if (!work->staged) out_of = fk_reach(work, from, &part, 0);
            if (!out_of) return 0;
            memcpy(into, out_of, part);
            from += part;
        }
        to += part;
        left -= part;
    }
    return 1;
}

void fk_run_work(const fk_work *work) {
    size_t row;
    int i;
    for (i = 0; i < work->n; i++) fk_run_access(work, &work->accesses[i]);
    if (work->kind != FK_SET && work->kind != FK_COPY) return;
    for (row = 0; row < work->height; row++) {
        const unsigned char *from = work->staged ? work->staged + row * work->width
                                    : work->from ? work->from + row * work->from_pitch
                                                 : NULL;
        if (!fk_run_row(work, work->to + row * work->to_pitch, from)) return;
    }
}

/* ---- kernels ---- */

cudaError_t fake_kernel(cudaStream_t stream, const char *name, const fake_access *accesses,
                        int n) {
    int error = fk_begin(FK_fake_kernel);
    if (!error) {
        fk_stream *on = fk_stream_with_room(stream, 0, &error);
        if (on) {
            fk_work *work = fk_new_work(FK_KERNEL, name, on->device);
            work->accesses = fk_new((size_t)n, sizeof *accesses);
            if (n) memcpy(work->accesses, accesses, (size_t)n * sizeof *accesses);
            work->n = n;
            error = (int)fk_submit(on, work);
        }
    }
    return fk_end((cudaError_t)error);
}

static unsigned fk_value(int byte) { return byte < 0 || byte > 255 ? 0 : FAKE_BYTE(byte); }

cudaError_t fake_write(cudaStream_t stream, const char *name, void *to, size_t bytes, int byte) {
    fake_access access = {NULL, 0, 1, 0};
    access.address = to;
    access.bytes = bytes;
    access.value = fk_value(byte);
    return fake_kernel(stream, name, &access, 1);
}

cudaError_t fake_read(cudaStream_t stream, const char *name, const void *from, size_t bytes,
                      int byte) {
    fake_access access = {NULL, 0, 0, 0};
    access.address = from;
    access.bytes = bytes;
    access.value = fk_value(byte);
    return fake_kernel(stream, name, &access, 1);
}

void fake_host_access(const void *address, size_t bytes, int write, const char *name) {
    uint64_t at = fk_number(address);
    fk_lock();
    while (bytes > 0) {
        fk_extent extent = fk_extent_at(at, bytes, 0);
        if (extent.piece)
            fk_oracle_host(extent.piece, extent.at, extent.bytes, write, fk_known(), name, at);
        at += extent.bytes;
        bytes -= extent.bytes;
    }
    fk_unlock();
}

/* ---- memset and memcpy ---- */

static int fk_memory_kind(const void *p) { return fk_extent_at(fk_number(p), 1, 0).kind; }

static int fk_is_host(int kind) { return kind < 0 || kind == FK_HOST || kind == FK_REGISTERED; }

/* Managed memory passes for either side. */
static int fk_wrong_direction(int to, int from, enum cudaMemcpyKind kind) {
    int to_host = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyHostToHost;
    int from_host = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyHostToHost;
    if (kind == cudaMemcpyDefault) return 0;
    return (to != FK_MANAGED && to_host && !fk_is_host(to)) ||
           (from != FK_MANAGED && from_host && !fk_is_host(from)) ||
           (!to_host && to < 0) || (!from_host && from < 0);
}

static void fk_stage(fk_work *work) {
    size_t row;
    work->staged = fk_new(work->height, work->width);
    for (row = 0; row < work->height; row++)
        memcpy(work->staged + row * work->width, work->from + row * work->from_pitch, work->width);
}

/* Pinned memory is copied out of one registration at a time. Seen on an H200 and an H100 (CUDA
   13.0): a copy that begins in pinned memory and runs on into ordinary memory, or into memory
   registered by another call, gets cudaErrorInvalidValue, whatever its rows; one that begins in
   ordinary memory is done. */
static int fk_leaves_pinned(const unsigned char *first, size_t pitch, size_t width, size_t height) {
    size_t bytes = pitch * (height - 1) + width;
    fk_extent extent = fk_extent_at(fk_number(first), bytes, 0);
    return (extent.kind == FK_HOST || extent.kind == FK_REGISTERED) && extent.bytes < bytes;
}

/* What the driver can stage of ordinary memory before it has to wait for the stream. Seen on an
   H200: behind a blocked stream a copy of 1 MiB returns at once, and so do 63 of 64 KiB, but not
   one of 16 MiB. */
#define FK_STAGED_MOST ((size_t)4 << 20)

/* From ordinary host memory the bytes are taken before the call returns; to ordinary host memory
   the call returns when they are there. */
static int fk_copy(fk_stream *stream, fk_work *work, enum cudaMemcpyKind kind, int waits) {
    int to = fk_memory_kind(work->to), from = fk_memory_kind(work->from), error;
    if ((unsigned)kind > 4u) error = cudaErrorInvalidMemcpyDirection;
    else if (fk_wrong_direction(to, from, kind)) error = cudaErrorInvalidValue;
    else if (fk_leaves_pinned(work->to, work->to_pitch, work->width, work->height) ||
             fk_leaves_pinned(work->from, work->from_pitch, work->width, work->height))
        error = cudaErrorInvalidValue;
    else error = 0;
    if (error) {
        fk_unref_work(work);
        return error;
    }
    if (from < 0 && !stream->capture) {
        if (work->width > FK_STAGED_MOST / work->height) fk_drive(&stream->tail);
        fk_stage(work);
    }
    error = (int)fk_submit(stream, work);
    if (waits && !fk_is_host(to) && !fk_is_host(from)) waits = 0;
    if (!error && !stream->capture && (waits || to < 0)) fk_drive(&stream->tail);
    return error;
}

static fk_work *fk_plain(fk_work_kind kind, const char *name, fk_stream *stream, void *to,
                         size_t bytes) {
    fk_work *work = fk_new_work(kind, name, stream->device);
    work->to = to;
    work->to_pitch = work->from_pitch = work->width = bytes;
    work->height = 1;
    return work;
}

static int fk_memcpy(fk_call call, void *dst, const void *src, size_t count,
                     enum cudaMemcpyKind kind, cudaStream_t stream, int own, int waits) {
    int error = fk_begin(call);
    if (!error) {
        fk_stream *on = fk_stream_with_room(stream, own, &error);
        if (on && count && (!dst || !src)) error = cudaErrorInvalidValue;
        else if (on && count) {
            fk_work *work = fk_plain(FK_COPY, fk_call_names[call], on, dst, count);
            work->from = src;
            error = fk_copy(on, work, kind, waits);
        }
    }
    return error;
}

static int fk_memset(fk_call call, void *to, int value, size_t count, cudaStream_t stream,
                     int own) {
    int error = fk_begin(call);
    if (!error) {
        fk_stream *on = fk_stream_with_room(stream, own, &error);
        if (on && count && (!to || fk_memory_kind(to) < 0)) error = cudaErrorInvalidValue;
        else if (on && count) {
            fk_work *work = fk_plain(FK_SET, fk_call_names[call], on, to, count);
            work->value = value;
            error = (int)fk_submit(on, work);
        }
    }
    return error;
}

typedef struct fk_rows {
    void       *to;
    const void *from;
    size_t      to_pitch, from_pitch, width, height;
} fk_rows;

static int fk_memcpy_2d(fk_call call, const fk_rows *rows, enum cudaMemcpyKind kind,
                        cudaStream_t stream, int own) {
    int error = fk_begin(call);
    int some = rows->width && rows->height;
    if (!error) {
        fk_stream *on = fk_stream_with_room(stream, own, &error);
        if (on && (rows->width > rows->to_pitch || rows->width > rows->from_pitch))
            error = call == FK_cuMemcpy2DAsync ? CUDA_ERROR_INVALID_VALUE
                                               : (int)cudaErrorInvalidPitchValue;
        else if (on && some && (!rows->to || !rows->from)) error = cudaErrorInvalidValue;
        else if (on && some) {
            fk_work *work = fk_plain(FK_COPY, fk_call_names[call], on, rows->to, rows->width);
            work->from = rows->from;
            work->to_pitch = rows->to_pitch;
            work->from_pitch = rows->from_pitch;
            work->height = rows->height;
            error = fk_copy(on, work, kind, 0);
        }
    }
    return error;
}

/* ---- the driver's: directions are by the pointers ---- */


/* Whole rows between unified addresses: nothing else is modelled. */
static CUresult fk_driver_memcpy_2d(const CUDA_MEMCPY2D *copy, CUstream s, int own) {
    fk_rows rows = {NULL, NULL, 0, 0, 0, 0};
    if (copy && copy->srcMemoryType == CU_MEMORYTYPE_UNIFIED &&
        copy->dstMemoryType == CU_MEMORYTYPE_UNIFIED && !copy->srcXInBytes && !copy->srcY &&
        !copy->dstXInBytes && !copy->dstY) {
        rows.to = (void *)(uintptr_t)copy->dstDevice;
        rows.from = (const void *)(uintptr_t)copy->srcDevice;
        rows.to_pitch = copy->dstPitch;
        rows.from_pitch = copy->srcPitch;
        rows.width = copy->WidthInBytes;
        rows.height = copy->Height;
    } else {
        rows.width = rows.height = 1; /* from and to nowhere: refused */
        rows.to_pitch = rows.from_pitch = 1;
    }
    return fk_end_driver(fk_memcpy_2d(FK_cuMemcpy2DAsync, &rows, cudaMemcpyDefault,
                                      (cudaStream_t)s, own));
}

#define FK_DRIVER_COPY_CALLS(set, copy, copy_2d, own)                                         \
    CUresult set(CUdeviceptr to, unsigned char value, size_t n, CUstream s) {                 \
        return fk_end_driver(fk_memset(FK_cuMemsetD8Async, (void *)(uintptr_t)to, value, n,   \
                                       (cudaStream_t)s, own));                                \
    }                                                                                         \
    CUresult copy(CUdeviceptr to, CUdeviceptr from, size_t n, CUstream s) {                   \
        return fk_end_driver(fk_memcpy(FK_cuMemcpyAsync, (void *)(uintptr_t)to,               \
                                       (const void *)(uintptr_t)from, n, cudaMemcpyDefault,   \
                                       (cudaStream_t)s, own, 0));                             \
    }                                                                                         \
    CUresult copy_2d(const CUDA_MEMCPY2D *rows, CUstream s) {                                 \
        return fk_driver_memcpy_2d(rows, s, own);                                             \
    }

FK_DRIVER_COPY_CALLS(cuMemsetD8Async, cuMemcpyAsync, cuMemcpy2DAsync, 0)
FK_DRIVER_COPY_CALLS(cuMemsetD8Async_ptsz, cuMemcpyAsync_ptsz, cuMemcpy2DAsync_v2_ptsz, 1)

#define FK_SET_CALLS(set, set_async, own)                                                     \
    cudaError_t set(void *p, int value, size_t n) {                                           \
        return fk_end((cudaError_t)fk_memset(FK_cudaMemset, p, value, n, NULL, own));         \
    }                                                                                         \
    cudaError_t set_async(void *p, int value, size_t n, cudaStream_t s) {                     \
        return fk_end((cudaError_t)fk_memset(FK_cudaMemsetAsync, p, value, n, s, own));       \
    }

#define FK_COPY_CALLS(copy, copy_async, copy_2d, own)                                         \
    cudaError_t copy(void *d, const void *f, size_t n, enum cudaMemcpyKind k) {               \
        return fk_end((cudaError_t)fk_memcpy(FK_cudaMemcpy, d, f, n, k, NULL, own, 1));       \
    }                                                                                         \
    cudaError_t copy_async(void *d, const void *f, size_t n, enum cudaMemcpyKind k,           \
                           cudaStream_t s) {                                                  \
        return fk_end((cudaError_t)fk_memcpy(FK_cudaMemcpyAsync, d, f, n, k, s, own, 0));     \
    }                                                                                         \
    cudaError_t copy_2d(void *d, size_t dp, const void *f, size_t fp, size_t w, size_t h,     \
                        enum cudaMemcpyKind k, cudaStream_t s) {                              \
        fk_rows rows = {d, f, dp, fp, w, h};                                                  \
        return fk_end((cudaError_t)fk_memcpy_2d(FK_cudaMemcpy2DAsync, &rows, k, s, own));     \
    }

FK_SET_CALLS(cudaMemset, cudaMemsetAsync, 0)
FK_COPY_CALLS(cudaMemcpy, cudaMemcpyAsync, cudaMemcpy2DAsync, 0)
FK_SET_CALLS(cudaMemset_ptds, cudaMemsetAsync_ptsz, 1)
FK_COPY_CALLS(cudaMemcpy_ptds, cudaMemcpyAsync_ptsz, cudaMemcpy2DAsync_ptsz, 1)
