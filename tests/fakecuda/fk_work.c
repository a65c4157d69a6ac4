/* Work: what one operation does to memory, and the calls that make such operations. */
#include "fk.h"

#include <stdlib.h>
#include <string.h>

fk_work *fk_new_work(fk_work_kind kind, const char *name, int device) {
    fk_work *work = fk_new(1, sizeof *work);
    work->kind = kind;
    work->refs = 1;
    work->device = device;
    work->name = name;
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

static void fk_note(int device, const fake_access *access, const fk_actor *actor) {
    uint64_t at = fk_number(access->address);
    size_t left = access->bytes;
    while (left > 0) {
        fk_extent extent = fk_extent_at(at, left, device);
        if (extent.piece) fk_oracle_touch(&extent, access, actor, at);
        at += extent.bytes;
        left -= extent.bytes;
    }
}

void fk_note_work(const fk_work *work, const fk_actor *actor) {
    size_t row;
    int i;
    for (i = 0; i < work->n; i++) fk_note(work->device, &work->accesses[i], actor);
    for (row = 0; row < work->height; row++) {
        fake_access to = {work->to + row * work->to_pitch, work->width, 1, 0};
        if (!work->staged) {
            fake_access from = {work->from + row * work->from_pitch, work->width, 0, 0};
            fk_note(work->device, &from, actor);
        }
        fk_note(work->device, &to, actor);
    }
}

/* The host is no stream: nothing need be ordered after it. */
static void fk_note_host(const fake_access *access, const char *name) {
    fk_actor host = {0, 0, 0, fk_known(), name};
    fk_note(0, access, &host);
}

void fake_host_access(const void *address, size_t bytes, int write, const char *name) {
    fake_access access = {address, bytes, write, 0};
    fk_lock();
    fk_note_host(&access, name);
    fk_unlock();
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
    if (!extent.has_access) {
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
        if (into && !work->staged) out_of = fk_reach(work, from, &part, 0);
        if (!into || !out_of) return 0;
        memcpy(into, out_of, part);
        from += part;
        to += part;
        left -= part;
    }
    return 1;
}

void fk_run_work(const fk_work *work) {
    size_t row;
    int i;
    for (i = 0; i < work->n; i++) fk_run_access(work, &work->accesses[i]);
    for (row = 0; row < work->height; row++) {
        const unsigned char *from = work->staged ? work->staged + row * work->width
                                                 : work->from + row * work->from_pitch;
        if (!fk_run_row(work, work->to + row * work->to_pitch, from)) return;
    }
}

/* ---- kernels ---- */

static int fk_queue_kernel(cudaStream_t stream, const char *name, const fake_access *accesses,
                           int n) {
    int error = 0;
    fk_stream *on = fk_stream_with_room(stream, &error);
    fk_work *work;
    if (!on) return error;
    work = fk_new_work(FK_KERNEL, name, on->device);
    work->accesses = fk_new((size_t)n, sizeof *accesses);
    if (n) memcpy(work->accesses, accesses, (size_t)n * sizeof *accesses);
    work->n = n;
    return (int)fk_submit(on, work);
}

FK_DEFINE(cudaError_t, fake_kernel,
          (cudaStream_t stream, const char *name, const fake_access *accesses, int n),
          fk_queue_kernel(stream, name, accesses, n))

static cudaError_t fk_touch(cudaStream_t stream, const char *name, fake_access access, int byte) {
    if (byte >= 0 && byte <= 255) access.value = FAKE_BYTE(byte);
    return fake_kernel(stream, name, &access, 1);
}

cudaError_t fake_write(cudaStream_t stream, const char *name, void *to, size_t bytes, int byte) {
    fake_access access = {to, bytes, 1, 0};
    return fk_touch(stream, name, access, byte);
}

cudaError_t fake_read(cudaStream_t stream, const char *name, const void *from, size_t bytes,
                      int byte) {
    fake_access access = {from, bytes, 0, 0};
    return fk_touch(stream, name, access, byte);
}

/* ---- memset and memcpy ---- */

static int fk_memory_kind(const void *p) { return fk_extent_at(fk_number(p), 1, 0).kind; }

static int fk_is_host(int kind) { return kind < 0 || kind == FK_HOST || kind == FK_REGISTERED; }

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
static int fk_copy(fk_stream *stream, fk_work *work) {
    int from = fk_memory_kind(work->from), to = fk_memory_kind(work->to), error;
    if (from < 0 && !stream->capture) {
        if (work->width > FK_STAGED_MOST / work->height) fk_drive(&stream->tail);
        fk_stage(work);
    }
    error = (int)fk_submit(stream, work);
    if (!error && !stream->capture && to < 0) fk_drive(&stream->tail);
    return error;
}

typedef struct fk_rows {
    void       *to;
    const void *from;
    size_t      to_pitch, from_pitch, width, height;
} fk_rows;

static int fk_wrong_rows(const fk_rows *rows) {
    return !rows->to || !rows->from ||
           fk_leaves_pinned(rows->to, rows->to_pitch, rows->width, rows->height) ||
           fk_leaves_pinned(rows->from, rows->from_pitch, rows->width, rows->height);
}

/* The direction is by the pointers, whatever the caller says of it. */
static int fk_copy_rows(const fk_rows *rows, cudaStream_t stream) {
    int error = 0;
    fk_stream *on = fk_stream_with_room(stream, &error);
    fk_work *work;
    if (!on || !rows->width || !rows->height) return error;
    if (fk_wrong_rows(rows)) return cudaErrorInvalidValue;
    work = fk_new_work(FK_COPY, fk_call_name(), on->device);
    work->to = rows->to;
    work->from = rows->from;
    work->to_pitch = rows->to_pitch;
    work->from_pitch = rows->from_pitch;
    work->width = rows->width;
    work->height = rows->height;
    return fk_copy(on, work);
}

static int fk_copy_bytes(void *to, const void *from, size_t n, cudaStream_t stream) {
    fk_rows row = {to, from, n, n, n, 1};
    return fk_copy_rows(&row, stream);
}

/* Between two places on devices the host does not wait. */
static int fk_copy_and_wait(void *to, const void *from, size_t n) {
    int error = fk_copy_bytes(to, from, n, NULL);
    int waits = n && (fk_is_host(fk_memory_kind(to)) || fk_is_host(fk_memory_kind(from)));
    if (!error && waits) fk_drive(&fk_stream_of(NULL, &error)->tail);
    return error;
}

/* Whole rows between unified addresses: nothing else is modelled. */
static int fk_copy_2d(const CUDA_MEMCPY2D *copy, cudaStream_t stream) {
    fk_rows rows;
    if (!copy || copy->srcMemoryType != CU_MEMORYTYPE_UNIFIED ||
        copy->dstMemoryType != CU_MEMORYTYPE_UNIFIED || copy->srcXInBytes || copy->srcY ||
        copy->dstXInBytes || copy->dstY || copy->WidthInBytes > copy->dstPitch ||
        copy->WidthInBytes > copy->srcPitch)
        return CUDA_ERROR_INVALID_VALUE;
    rows.to = (void *)(uintptr_t)copy->dstDevice;
    rows.from = (const void *)(uintptr_t)copy->srcDevice;
    rows.to_pitch = copy->dstPitch;
    rows.from_pitch = copy->srcPitch;
    rows.width = copy->WidthInBytes;
    rows.height = copy->Height;
    return fk_copy_rows(&rows, stream);
}

static int fk_set(void *to, int value, size_t n, cudaStream_t stream) {
    fake_access access = {to, n, 1, FAKE_BYTE(value)};
    if (!n) return 0;
    if (!to || fk_memory_kind(to) < 0) return cudaErrorInvalidValue;
    return fk_queue_kernel(stream, fk_call_name(), &access, 1);
}

#define FK_SET_PARAMETERS  (void *to, int value, size_t n)
#define FK_COPY_PARAMETERS (void *to, const void *from, size_t n, enum cudaMemcpyKind kind)
FK_DEFINE_AS(cudaError_t, cudaMemset, FK_cudaMemset, 0, FK_SET_PARAMETERS,
             fk_set(to, value, n, NULL))
FK_DEFINE_AS(cudaError_t, cudaMemset_ptds, FK_cudaMemset, 1, FK_SET_PARAMETERS,
             fk_set(to, value, n, NULL))
FK_DEFINE_AS(cudaError_t, cudaMemcpy, FK_cudaMemcpy, 0, FK_COPY_PARAMETERS,
             ((void)kind, fk_copy_and_wait(to, from, n)))
FK_DEFINE_AS(cudaError_t, cudaMemcpy_ptds, FK_cudaMemcpy, 1, FK_COPY_PARAMETERS,
             ((void)kind, fk_copy_and_wait(to, from, n)))
FK_DEFINE_TWINS(cudaError_t, cudaMemsetAsync, (void *to, int value, size_t n, cudaStream_t stream),
                fk_set(to, value, n, stream))
FK_DEFINE_TWINS(CUresult, cuMemsetD8Async,
                (CUdeviceptr to, unsigned char value, size_t n, CUstream stream),
                fk_set((void *)(uintptr_t)to, value, n, stream))
FK_DEFINE_TWINS(cudaError_t, cudaMemcpyAsync,
                (void *to, const void *from, size_t n, enum cudaMemcpyKind kind,
                 cudaStream_t stream),
                ((void)kind, fk_copy_bytes(to, from, n, stream)))
FK_DEFINE_TWINS(CUresult, cuMemcpyAsync,
                (CUdeviceptr to, CUdeviceptr from, size_t n, CUstream stream),
                fk_copy_bytes((void *)(uintptr_t)to, (const void *)(uintptr_t)from, n, stream))
FK_DEFINE_TWINS(CUresult, cuMemcpy2DAsync, (const CUDA_MEMCPY2D *rows, CUstream stream),
                fk_copy_2d(rows, stream))
