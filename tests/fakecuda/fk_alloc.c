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

static int fk_malloc(void **out, size_t bytes, int device) {
    size_t rounded = fk_round_up(bytes);
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

static int fk_free(void *p, fk_kind one, fk_kind other) {
    fk_range *range = fk_range_at(p, one, other);
    if (range) {
        fk_drive_context(range->device);
        range = fk_range_at(p, one, other); /* the lock may have been dropped */
    }
    if (!range) {
        fk_misuse("%p was not handed out for it", p);
        return one == FK_REGISTERED ? (int)cudaErrorHostMemoryNotRegistered : cudaErrorInvalidValue;
    }
    if (one == FK_MALLOC)
        fk_price_by_size(fk_device_price, FK_COUNT(fk_device_price), range->bytes);
    else if (one == FK_HOST)
        fk_price_by_size(fk_unpin_price, FK_COUNT(fk_unpin_price), range->bytes);
    else fk_price((uint64_t)(range->bytes * 15 / 1074));
    fk_let_go(range);
    return 0;
}

/* CUDA's own pool is not modelled: memory is had and given back at once, after the stream's work. A
 * graph's allocation nodes are not supported. */
static int fk_malloc_async(void **out, size_t bytes, cudaStream_t handle) {
    int error = 0;
    const fk_stream *stream = fk_stream_of(handle, &error);
    if (!stream) return error;
    if (!out) return cudaErrorInvalidValue;
    if (stream->capture) return cudaErrorNotSupported;
    return fk_malloc(out, bytes, stream->device); /* seen on two H100: whichever is current */
}

static int fk_free_async(void *p, cudaStream_t handle) {
    int error = 0;
    const fk_stream *stream = fk_stream_of(handle, &error);
    if (!stream) return error;
    if (stream->capture) return cudaErrorNotSupported;
    if (!p) return cudaErrorInvalidValue;
    fk_drive(&stream->tail);
    return fk_free(p, FK_MALLOC, FK_MALLOC);
}

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

static int fk_wrong_attach(unsigned flags) {
    return flags != cudaMemAttachGlobal && flags != cudaMemAttachHost;
}

static int fk_pin(void **out, size_t bytes, unsigned flags) {
    return flags > 7u ? (int)cudaErrorInvalidValue : fk_host_memory(out, bytes, FK_HOST);
}

static int fk_register(void *p, size_t bytes, unsigned flags) {
    uint64_t at = (uint64_t)(uintptr_t)p;
    fk_extent extent;
    fk_piece *piece;
    if (!p || !bytes || bytes > SIZE_MAX / 2 || flags > 15u) return cudaErrorInvalidValue;
    extent = fk_extent_at(at, bytes, 0);
    if (extent.kind >= 0 || extent.bytes < bytes) return cudaErrorHostMemoryAlreadyRegistered;
    fk_price((uint64_t)(bytes * 35 / 1074));
    piece = fk_new_piece(bytes, fk_me()->device, FK_REGISTERED);
    if (!piece) return cudaErrorMemoryAllocation;
    piece->view = p;
    fk_add_range(at, bytes, FK_REGISTERED, fk_me()->device, piece);
    fk_take_time(50000); /* measured on an H100: the least, of a page as of 64 KiB */
    return 0;
}

/* ---- the driver's: the same, but for their answers to zero bytes ---- */

static int fk_driver_malloc(CUdeviceptr *out, size_t bytes, fk_kind kind) {
    void *p = NULL;
    int error;
    if (!out || !bytes) return CUDA_ERROR_INVALID_VALUE;
    if (kind == FK_MALLOC) error = fk_malloc(&p, bytes, fk_me()->device);
    else error = fk_host_memory(&p, bytes, kind);
    if (!error) *out = (uint64_t)(uintptr_t)p;
    return error;
}

/* ---- asking ---- */

static int fk_tell_pointer(struct cudaPointerAttributes *out, const void *p) {
    fk_extent extent = fk_extent_at((uint64_t)(uintptr_t)p, 1, 0);
    int host = extent.kind == (int)FK_HOST || extent.kind == (int)FK_REGISTERED;
    int both = extent.kind == (int)FK_MANAGED;
    void *same = (void *)(uintptr_t)p;
    if (!out) return cudaErrorInvalidValue;
    memset(out, 0, sizeof *out);
    out->device = cudaInvalidDeviceId;
    out->hostPointer = same;
    if (!extent.piece) return 0;
    out->type = host ? cudaMemoryTypeHost : both ? cudaMemoryTypeManaged : cudaMemoryTypeDevice;
    out->device = extent.piece->device;
    out->devicePointer = same;
    if (!host && !both) out->hostPointer = NULL;
    return 0;
}

static int fk_info(size_t *free_bytes, size_t *total) {
    if (!free_bytes || !total) return cudaErrorInvalidValue;
    *free_bytes = fk_device_free_bytes(fk_me()->device);
    *total = fk_device_total(fk_me()->device);
    return 0;
}

/* ---- the calls ---- */

FK_DEFINE(cudaError_t, cudaMalloc, (void **out, size_t bytes),
          fk_malloc(out, bytes, fk_me()->device))
FK_DEFINE(CUresult, cuMemAlloc, (CUdeviceptr *out, size_t bytes),
          fk_driver_malloc(out, bytes, FK_MALLOC))
FK_DEFINE(cudaError_t, cudaFree, (void *p), p ? fk_free(p, FK_MALLOC, FK_MANAGED) : 0)
FK_DEFINE(CUresult, cuMemFree, (CUdeviceptr p),
          p ? fk_free((void *)(uintptr_t)p, FK_MALLOC, FK_MANAGED) : 0)
FK_DEFINE_TWINS(cudaError_t, cudaMallocAsync, (void **out, size_t bytes, cudaStream_t stream),
                fk_malloc_async(out, bytes, stream))
FK_DEFINE_TWINS(cudaError_t, cudaFreeAsync, (void *p, cudaStream_t stream),
                fk_free_async(p, stream))
FK_DEFINE(cudaError_t, cudaMallocManaged, (void **out, size_t bytes, unsigned flags),
          fk_wrong_attach(flags) ? cudaErrorInvalidValue : fk_host_memory(out, bytes, FK_MANAGED))
FK_DEFINE(CUresult, cuMemAllocManaged, (CUdeviceptr *out, size_t bytes, unsigned flags),
          fk_wrong_attach(flags) ? cudaErrorInvalidValue
                                 : fk_driver_malloc(out, bytes, FK_MANAGED))
FK_DEFINE_BOTH(cudaHostAlloc, cuMemHostAlloc, (void **out, size_t bytes, unsigned flags),
               fk_pin(out, bytes, flags))
FK_DEFINE_BOTH(cudaFreeHost, cuMemFreeHost, (void *p), p ? fk_free(p, FK_HOST, FK_HOST) : 0)
FK_DEFINE_BOTH(cudaHostRegister, cuMemHostRegister, (void *p, size_t bytes, unsigned flags),
               fk_register(p, bytes, flags))
FK_DEFINE_BOTH(cudaHostUnregister, cuMemHostUnregister, (void *p),
               fk_free(p, FK_REGISTERED, FK_REGISTERED))
FK_DEFINE(cudaError_t, cudaPointerGetAttributes,
          (struct cudaPointerAttributes *out, const void *p), fk_tell_pointer(out, p))
FK_DEFINE_BOTH(cudaMemGetInfo, cuMemGetInfo, (size_t *free_bytes, size_t *total),
               fk_info(free_bytes, total))
