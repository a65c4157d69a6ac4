/* The runtime's allocation calls, and the driver's.
 *
 * Seen on an H100 (CUDA 13.0): cudaFree, cudaFreeHost and cudaHostUnregister wait for all work of
 * the device before they let go, while pinning waits for none; zero bytes of whatever memory are
 * success with NULL; cudaHostRegister of what the program cannot write is cudaErrorInvalidValue.
 * The device is the one that was current when the memory was had, of host memory too, portable or
 * not, and whichever is current now: work of the other device goes on (seen on two H100).
 *
 * The driver's calls give the same memory by other names, and leave no last error. Seen on an H100
 * (CUDA 13.0): zero bytes are INVALID_VALUE to cuMemAlloc and cuMemAllocManaged, and success with
 * NULL to cuMemHostAlloc; freeing NULL is success; a capture that is not relaxed refuses them, and
 * is lost, as with the runtime's.
 *
 * Assumed: managed memory's cudaFree is no exception; what there is too little host memory for is
 * cudaErrorMemoryAllocation. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "fk.h"

#include <string.h>
#include <sys/mman.h>

#define FK_COUNT(a) ((int)(sizeof(a) / sizeof(a)[0]))

static const fk_point fk_device_price[] = {
    {4096, 24950}, {1048576, 24700}, {67108864, 52500}, {1073741824, 188500}};
static const fk_point fk_pin_price[] = {
    {4096, 20000}, {1048576, 600000}, {67108864, 20600000}, {1073741824, 309000000}};
static const fk_point fk_unpin_price[] = {
    {4096, 10000}, {1048576, 200000}, {67108864, 4700000}, {1073741824, 71000000}};

static size_t fk_round_up(size_t bytes) {
    size_t step = bytes > ((size_t)1 << 20) ? FK_GRANULE : 512;
    return bytes > SIZE_MAX - step ? SIZE_MAX : (bytes + step - 1) / step * step;
}

static int fk_malloc(void **out, size_t bytes) {
    size_t rounded = fk_round_up(bytes);
    int device = fk_me()->device;
    fk_piece *piece;
    uint64_t at;
    if (!out) return cudaErrorInvalidValue;
    *out = NULL;
    if (!bytes) return 0;
    fk_price_by_size(fk_device_price, FK_COUNT(fk_device_price), bytes);
    if (rounded > fk_device_free_bytes(device)) return cudaErrorMemoryAllocation;
    at = fk_pick_address(rounded, rounded >= FK_GRANULE ? FK_GRANULE : 512);
    piece = at ? fk_new_piece(rounded, device, FK_MALLOC) : NULL;
    if (!piece) return cudaErrorMemoryAllocation;
    fk_add_range(at, rounded, FK_MALLOC, device, piece);
    *out = (void *)(uintptr_t)at;
    return 0;
}

cudaError_t cudaMalloc(void **out, size_t bytes) {
    int error = fk_begin(FK_cudaMalloc);
    if (!error) error = fk_malloc(out, bytes);
    return fk_end((cudaError_t)error);
}

/* The range that begins here and is of one of two kinds; NULL if there is none. */
static fk_range *fk_range_at(const void *p, fk_kind one, fk_kind other) {
    fk_range *range = fk_find_range((uint64_t)(uintptr_t)p);
    if (!range || range->base != (uint64_t)(uintptr_t)p) return NULL;
    return range->kind == one || range->kind == other ? range : NULL;
}

static void fk_let_go(fk_range *range) {
    fk_piece *piece = range->piece;
    fk_drop_range(range);
    fk_unref_piece(piece);
}

static int fk_free(void *p, fk_kind one, fk_kind other, int error, const char *call) {
    fk_range *range = fk_range_at(p, one, other);
    if (range) {
        fk_drive_context(range->context);
        range = fk_range_at(p, one, other); /* the lock may have been dropped */
    }
    if (!range) {
        fk_misuse("%s of %p, which it did not hand out", call, p);
        return error;
    }
    if (one == FK_MALLOC)
        fk_price_by_size(fk_device_price, FK_COUNT(fk_device_price), range->bytes);
    else if (one == FK_HOST)
        fk_price_by_size(fk_unpin_price, FK_COUNT(fk_unpin_price), range->bytes);
    else fk_price((uint64_t)(range->bytes * 15 / 1074));
    fk_let_go(range);
    return 0;
}

cudaError_t cudaFree(void *p) {
    int error = fk_begin(FK_cudaFree);
    if (!error && p) error = fk_free(p, FK_MALLOC, FK_MANAGED, cudaErrorInvalidValue, "cudaFree");
    return fk_end((cudaError_t)error);
}

/* CUDA's own pool is not modelled: memory is had and given back at once, after the stream's work. A
 * graph's allocation nodes are not supported. */
static cudaError_t fk_malloc_async(void **out, size_t bytes, cudaStream_t handle, int own) {
    int error = fk_begin(FK_cudaMallocAsync), current = fk_me()->context;
    fk_stream *stream = error ? NULL : fk_stream_of(handle, own, &error);
    if (!error && !out) error = cudaErrorInvalidValue;
    if (!error && stream->capture) error = cudaErrorNotSupported;
    if (!error) fk_use_context(stream->context); /* seen on two H100: whichever is current */
    if (!error) error = fk_malloc(out, bytes);
    fk_use_context(current);
    return fk_end((cudaError_t)error);
}

static cudaError_t fk_free_async(void *p, cudaStream_t handle, int own) {
    int error = fk_begin(FK_cudaFreeAsync);
    fk_stream *stream = error ? NULL : fk_stream_of(handle, own, &error);
    if (!error && stream->capture) error = cudaErrorNotSupported;
    if (!error && !p) error = cudaErrorInvalidValue;
    if (!error) fk_drive(&stream->tail);
    if (!error) error = fk_free(p, FK_MALLOC, FK_MALLOC, cudaErrorInvalidValue, "cudaFreeAsync");
    return fk_end((cudaError_t)error);
}

cudaError_t cudaMallocAsync(void **out, size_t bytes, cudaStream_t stream) {
    return fk_malloc_async(out, bytes, stream, 0);
}
cudaError_t cudaMallocAsync_ptsz(void **out, size_t bytes, cudaStream_t stream) {
    return fk_malloc_async(out, bytes, stream, 1);
}
cudaError_t cudaFreeAsync(void *p, cudaStream_t stream) { return fk_free_async(p, stream, 0); }
cudaError_t cudaFreeAsync_ptsz(void *p, cudaStream_t stream) { return fk_free_async(p, stream, 1); }

static int fk_host_memory(void **out, size_t bytes, fk_kind kind) {
    fk_piece *piece;
    void *p;
    if (!out) return cudaErrorInvalidValue;
    *out = NULL;
    if (!bytes) return 0;
    if (bytes > SIZE_MAX / 2) return cudaErrorMemoryAllocation;
    if (kind == FK_MANAGED) fk_price_by_size(fk_device_price, FK_COUNT(fk_device_price), bytes);
    else fk_price_by_size(fk_pin_price, FK_COUNT(fk_pin_price), bytes);
    piece = fk_new_piece(bytes, fk_me()->device, kind);
    if (!piece) return cudaErrorMemoryAllocation;
    p = mmap(NULL, (bytes + 4095) / 4096 * 4096, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) {
        fk_unref_piece(piece);
        return cudaErrorMemoryAllocation;
    }
    piece->view = p;
    fk_add_range((uint64_t)(uintptr_t)p, bytes, kind, fk_me()->device, piece);
    *out = p;
    return 0;
}

cudaError_t cudaMallocManaged(void **out, size_t bytes, unsigned int flags) {
    int error = fk_begin(FK_cudaMallocManaged);
    if (!error && flags != cudaMemAttachGlobal && flags != cudaMemAttachHost)
        error = cudaErrorInvalidValue;
    if (!error) error = fk_host_memory(out, bytes, FK_MANAGED);
    return fk_end((cudaError_t)error);
}

cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned int flags) {
    int error = fk_begin(FK_cudaHostAlloc);
    if (!error && flags > 7u) error = cudaErrorInvalidValue;
    if (!error) error = fk_host_memory(out, bytes, FK_HOST);
    return fk_end((cudaError_t)error);
}

cudaError_t cudaFreeHost(void *p) {
    int error = fk_begin(FK_cudaFreeHost);
    if (!error && p) error = fk_free(p, FK_HOST, FK_HOST, cudaErrorInvalidValue, "cudaFreeHost");
    return fk_end((cudaError_t)error);
}

static int fk_register(void *p, size_t bytes) {
    uint64_t at = (uint64_t)(uintptr_t)p;
    fk_extent extent;
    fk_piece *piece;
    if (!p || !bytes || bytes > SIZE_MAX / 2) return cudaErrorInvalidValue;
    extent = fk_extent_at(at, bytes, 0);
    if (extent.kind >= 0 || extent.bytes < bytes) return cudaErrorHostMemoryAlreadyRegistered;
    fk_price((uint64_t)(bytes * 35 / 1074));
    piece = fk_new_piece(bytes, fk_me()->device, FK_REGISTERED);
    if (!piece) return cudaErrorMemoryAllocation;
    piece->view = p;
    fk_add_range(at, bytes, FK_REGISTERED, fk_me()->device, piece);
    return 0;
}

cudaError_t cudaHostRegister(void *p, size_t bytes, unsigned int flags) {
    int error = fk_begin(FK_cudaHostRegister);
    if (!error && flags > 15u) error = cudaErrorInvalidValue;
    if (!error) error = fk_register(p, bytes);
    fk_take_time(50000); /* measured on an H100: the least, of a page as of 64 KiB */
    return fk_end((cudaError_t)error);
}

cudaError_t cudaHostUnregister(void *p) {
    int error = fk_begin(FK_cudaHostUnregister);
    if (!error)
        error = fk_free(p, FK_REGISTERED, FK_REGISTERED, cudaErrorHostMemoryNotRegistered,
                        "cudaHostUnregister");
    return fk_end((cudaError_t)error);
}

/* ---- the same of the driver ---- */

static CUresult fk_driver_malloc(fk_call call, CUdeviceptr *out, size_t bytes, fk_kind kind,
                                 int wrong) {
    int error = fk_begin(call);
    void *p = NULL;
    if (!error && (wrong || !out || (!bytes && kind != FK_HOST))) error = CUDA_ERROR_INVALID_VALUE;
    if (!error) error = kind == FK_MALLOC ? fk_malloc(&p, bytes) : fk_host_memory(&p, bytes, kind);
    if (!error) *out = (uint64_t)(uintptr_t)p;
    return fk_end_driver(error);
}

CUresult cuMemAlloc(CUdeviceptr *out, size_t bytes) {
    return fk_driver_malloc(FK_cuMemAlloc, out, bytes, FK_MALLOC, 0);
}

CUresult cuMemAllocManaged(CUdeviceptr *out, size_t bytes, unsigned int flags) {
    return fk_driver_malloc(FK_cuMemAllocManaged, out, bytes, FK_MANAGED,
                            flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST);
}

CUresult cuMemHostAlloc(void **out, size_t bytes, unsigned int flags) {
    CUdeviceptr p = 0;
    CUresult error = fk_driver_malloc(FK_cuMemHostAlloc, &p, bytes, FK_HOST, !out || flags > 7u);
    if (error == CUDA_SUCCESS) *out = (void *)(uintptr_t)p;
    return error;
}

static CUresult fk_driver_free(fk_call call, const void *p, fk_kind one, fk_kind other, int why) {
    int error = fk_begin(call);
    if (!error && (p || one == FK_REGISTERED))
        error = fk_free((void *)(uintptr_t)p, one, other, why, fk_call_names[call]);
    return fk_end_driver(error);
}

CUresult cuMemFree(CUdeviceptr p) {
    return fk_driver_free(FK_cuMemFree, (void *)(uintptr_t)p, FK_MALLOC, FK_MANAGED,
                          CUDA_ERROR_INVALID_VALUE);
}

CUresult cuMemFreeHost(void *p) {
    return fk_driver_free(FK_cuMemFreeHost, p, FK_HOST, FK_HOST, CUDA_ERROR_INVALID_VALUE);
}

CUresult cuMemHostUnregister(void *p) {
    return fk_driver_free(FK_cuMemHostUnregister, p, FK_REGISTERED, FK_REGISTERED,
                          CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}

CUresult cuMemHostRegister(void *p, size_t bytes, unsigned int flags) {
    int error = fk_begin(FK_cuMemHostRegister);
    if (!error && flags > 15u) error = CUDA_ERROR_INVALID_VALUE;
    if (!error) error = fk_register(p, bytes);
    fk_take_time(50000);
    return fk_end_driver(error);
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *out, const void *p) {
    int error = fk_begin(FK_cudaPointerGetAttributes);
    if (!error && !out) error = cudaErrorInvalidValue;
    if (!error) {
        fk_extent extent = fk_extent_at((uint64_t)(uintptr_t)p, 1, 0);
        void *same = (void *)(uintptr_t)p;
        memset(out, 0, sizeof *out);
        out->device = cudaInvalidDeviceId;
        out->hostPointer = same;
        if (extent.piece) {
            int host = extent.kind == (int)FK_HOST || extent.kind == (int)FK_REGISTERED;
            int both = extent.kind == (int)FK_MANAGED;
            out->type = host ? cudaMemoryTypeHost : both ? cudaMemoryTypeManaged
                                                         : cudaMemoryTypeDevice;
            out->device = extent.piece->device;
            out->devicePointer = same;
            if (!host && !both) out->hostPointer = NULL;
        }
    }
    return fk_end((cudaError_t)error);
}

static int fk_info(fk_call call, size_t *free_bytes, size_t *total) {
    int error = fk_begin(call);
    if (!error && (!free_bytes || !total)) error = cudaErrorInvalidValue;
    if (!error) {
        *free_bytes = fk_device_free_bytes(fk_me()->device);
        *total = fk_device_total(fk_me()->device);
    }
    return error;
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total) {
    return fk_end((cudaError_t)fk_info(FK_cudaMemGetInfo, free_bytes, total));
}

CUresult cuMemGetInfo(size_t *free_bytes, size_t *total) {
    return fk_end_driver(fk_info(FK_cuMemGetInfo, free_bytes, total));
}
