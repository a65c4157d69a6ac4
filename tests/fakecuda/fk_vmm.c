/* The cuMem* calls. A handle maps whole or not at all; the price is per handle, not per byte.
 *
 * A handle may have any number of mappings. Each has its own access, and goes by itself; all of
 * them are the same bytes, counted once, which stay until the handle and the last mapping are gone.
 * What an operation does through one address is checked against what others do through another.
 *
 * Confirmed on an H200 (CUDA 13.0): one handle may be mapped at two addresses at the same time and
 * both may be used; cuMemSetAccess may be given a range of which part is accessible already;
 * cuMemUnmap takes several whole mappings that lie side by side in one call.
 *
 * Seen on an H100 (CUDA 13.0): an address of such a handle may be unmapped while work uses the
 * other; what overlaps a mapping is refused with INVALID_VALUE, as is unmapping a part of one;
 * cuMemAddressFree needs the exact range and INVALID_VALUE is its answer while anything is mapped
 * in it; releasing a handle twice is INVALID_VALUE; all of these calls are allowed during every
 * kind of capture. Of an address where a handle is mapped once more, cuMemRetainAllocationHandle
 * gives that same handle, and cuMemGetAddressRange the range of that one mapping. Access for a
 * second device costs some 37 us a handle more.
 *
 * Stricter than that driver: unmapping, or giving access to, a range that holds a hole is refused
 * here, as CUDA's manual has it. */
#include "fk.h"

#include <stdlib.h>
#include <string.h>

static fk_pool fk_handles = {.base = 0x7000000000000000u};

static int fk_bad_location(const CUmemLocation *location) {
    return location->type != CU_MEM_LOCATION_TYPE_DEVICE || !fk_is_device(location->id);
}

static int fk_off_granule(uint64_t value) { return value % FK_GRANULE != 0; }

static int fk_granularity(size_t *granularity, const CUmemAllocationProp *prop,
                          CUmemAllocationGranularity_flags option) {
    if (!granularity || !prop || (unsigned)option > 1u ||
        prop->type != CU_MEM_ALLOCATION_TYPE_PINNED || fk_bad_location(&prop->location))
        return CUDA_ERROR_INVALID_VALUE;
    if (!fk_has_vmm(prop->location.id)) return CUDA_ERROR_NOT_SUPPORTED;
    *granularity = FK_GRANULE;
    return 0;
}

/* Wishes for an address are not modelled. */
static int fk_reserve(CUdeviceptr *ptr, size_t size, size_t alignment) {
    uint64_t at;
    if (!fk_has_vmm(fk_me()->device)) return CUDA_ERROR_NOT_SUPPORTED;
    if (!ptr || !size || fk_off_granule(size) || (alignment & (alignment - 1)))
        return CUDA_ERROR_INVALID_VALUE;
    at = fk_pick_address(size, alignment < FK_GRANULE ? FK_GRANULE : alignment);
    if (!at) return CUDA_ERROR_OUT_OF_MEMORY;
    fk_add_range(at, size, FK_RESERVED, fk_me()->device, NULL);
    *ptr = at;
    return 0;
}

static int fk_free_addresses(CUdeviceptr ptr, size_t size) {
    fk_range *range = fk_find_range(ptr);
    if (!range || range->kind != FK_RESERVED || range->base != ptr || range->bytes != size ||
        range->mapped)
        return CUDA_ERROR_INVALID_VALUE;
    fk_drop_range(range);
    return 0;
}

/* ---- handles ---- */

/* Of 1 GiB, seen on an H200. */
static const fk_point fk_create_price[] = {{67108864, 14000}, {1073741824, 25000}};
static const fk_point fk_release_price[] = {
    {2097152, 16000}, {67108864, 49000}, {268435456, 204000}, {1073741824, 220000}};

static int fk_create(CUmemGenericAllocationHandle *handle, size_t size,
                     const CUmemAllocationProp *prop) {
    fk_piece *piece;
    if (!handle || !prop || !size || fk_off_granule(size) ||
        prop->type != CU_MEM_ALLOCATION_TYPE_PINNED || prop->win32HandleMetaData)
        return CUDA_ERROR_INVALID_VALUE;
    if (fk_bad_location(&prop->location)) return CUDA_ERROR_INVALID_DEVICE;
    if (!fk_has_vmm(prop->location.id)) return CUDA_ERROR_NOT_SUPPORTED;
    if (prop->requestedHandleTypes & ~(unsigned)CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_INVALID_VALUE;
    fk_price_by_size(fk_create_price, FK_COUNT(fk_create_price), size);
    piece = fk_new_piece(size, prop->location.id, FK_RESERVED);
    if (!piece) return CUDA_ERROR_OUT_OF_MEMORY;
    piece->holds = 1;
    piece->types = (int)prop->requestedHandleTypes;
    *handle = piece->handle = fk_pool_add(&fk_handles, piece);
    return 0;
}

static int fk_release(CUmemGenericAllocationHandle handle) {
    fk_piece *piece = fk_pool_get(&fk_handles, handle);
    if (!piece) {
        fk_misuse("%#llx is no live handle", handle);
        return CUDA_ERROR_INVALID_VALUE;
    }
    fk_price_by_size(fk_release_price, FK_COUNT(fk_release_price), piece->bytes);
    if (--piece->holds > 0) return 0;
    if (piece->refs == 1) fk_oracle_release(piece, 0);
    fk_pool_remove(&fk_handles, piece->handle);
    fk_unref_piece(piece);
    return 0;
}

/* Asked for by an address, a handle that was released lives again. */
uint64_t fk_hold_handle(fk_piece *piece) {
    if (piece->holds++ > 0) return piece->handle;
    piece->refs++;
    return piece->handle = fk_pool_add(&fk_handles, piece);
}

fk_piece *fk_find_handle(uint64_t handle) { return fk_pool_get(&fk_handles, handle); }

long fk_handle_objects(void) { return (long)fk_handles.live; }

void fk_handles_drop(void) {
    size_t i;
    for (i = 0; i < fk_handles.n; i++) {
        fk_piece *piece = fk_handles.items[i];
        if (!piece) continue;
        fk_pool_remove(&fk_handles, fk_handles.base + i * FK_HANDLE_STEP);
        fk_unref_piece(piece);
    }
    fk_pool_reset(&fk_handles);
}

/* ---- mapping ---- */

/* The reservation that holds all of [ptr, ptr + size); NULL if none does. */
static fk_range *fk_reservation(uint64_t ptr, size_t size) {
    fk_range *range = fk_find_range(ptr);
    if (!range || range->kind != FK_RESERVED || !size || fk_off_granule(ptr) ||
        fk_off_granule(size) || size > range->bytes - (size_t)(ptr - range->base))
        return NULL;
    return range;
}

static int fk_map(uint64_t ptr, size_t size, size_t offset, uint64_t handle) {
    fk_range *range = fk_reservation(ptr, size);
    fk_piece *piece = fk_pool_get(&fk_handles, handle);
    fk_entry *entry;
    size_t i, n = size / FK_GRANULE;
    if (!piece) {
        fk_misuse("%#llx is no live handle", (unsigned long long)handle);
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!range) return CUDA_ERROR_INVALID_VALUE;
    if (offset || size != piece->bytes) return CUDA_ERROR_NOT_SUPPORTED;
    entry = range->entries + (ptr - range->base) / FK_GRANULE;
    for (i = 0; i < n; i++)
        if (entry[i].piece) return CUDA_ERROR_INVALID_VALUE;
    for (i = 0; i < n; i++) {
        entry[i].piece = piece;
        entry[i].index = (uint32_t)i;
        entry[i].access = 0;
    }
    range->mapped += n;
    piece->refs++;
    fk_count_mapping(1);
    return 0;
}

/* How many whole handles fill the range without a hole; 0 if they do not. */
static size_t fk_whole_handles(const fk_entry *entry, size_t granules) {
    size_t i = 0, handles = 0;
    while (i < granules) {
        size_t n;
        if (!entry[i].piece || entry[i].index != 0) return 0;
        n = entry[i].piece->bytes / FK_GRANULE;
        if (n > granules - i) return 0;
        i += n;
        handles++;
    }
    return handles;
}

/* The granules from ptr on; NULL if they are not whole handles, side by side: *handles of them. */
static fk_entry *fk_mapped_entries(uint64_t ptr, size_t size, size_t *handles) {
    fk_range *range = fk_reservation(ptr, size);
    fk_entry *entry = range ? range->entries + (ptr - range->base) / FK_GRANULE : NULL;
    *handles = entry ? fk_whole_handles(entry, size / FK_GRANULE) : 0;
    return *handles ? entry : NULL;
}

static int fk_unmap(uint64_t ptr, size_t size) {
    size_t i, handles;
    fk_entry *entry = fk_mapped_entries(ptr, size, &handles);
    if (!entry) return CUDA_ERROR_INVALID_VALUE;
    fk_price(19200u * (uint64_t)handles);
    fk_find_range(ptr)->mapped -= size / FK_GRANULE;
    for (i = 0; i < size / FK_GRANULE; i++) {
        fk_piece *piece = entry[i].piece;
        uint64_t mapping = ptr + i * FK_GRANULE;
        int first = entry[i].index == 0;
        memset(&entry[i], 0, sizeof entry[i]);
        if (!first) continue;
        fk_oracle_release(piece, piece->refs > 1 ? mapping : 0);
        fk_oracle_unmapped(piece, mapping);
        fk_count_mapping(-1);
        fk_unref_piece(piece);
    }
    return 0;
}

static int fk_set_access(uint64_t ptr, size_t size, const CUmemAccessDesc *desc, size_t count) {
    size_t i, k, handles;
    fk_entry *entry = fk_mapped_entries(ptr, size, &handles);
    if (!entry || !desc || !count) return CUDA_ERROR_INVALID_VALUE;
    fk_price((28000u + 37000u * (uint64_t)(count - 1)) * (uint64_t)handles);
    for (i = 0; i < count; i++) {
        if (fk_bad_location(&desc[i].location)) return CUDA_ERROR_INVALID_DEVICE;
        if (desc[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) return CUDA_ERROR_NOT_SUPPORTED;
        for (k = 0; k < size / FK_GRANULE; k++) entry[k].access |= 1u << desc[i].location.id;
    }
    return 0;
}

/* ---- asking ---- */

/* Of an address that is not CUDA's the answer is zeros, and no error: so CUDA's manual has it. */
static int fk_tell_pointer(unsigned n, const CUpointer_attribute *attributes, void **data,
                           CUdeviceptr ptr) {
    fk_extent extent = fk_extent_at(ptr, 1, 0);
    int host = extent.kind == (int)FK_HOST || extent.kind == (int)FK_REGISTERED;
    unsigned i;
    if (!n || !attributes || !data) return CUDA_ERROR_INVALID_VALUE;
    for (i = 0; i < n; i++) {
        unsigned answer = 0;
        if (attributes[i] == CU_POINTER_ATTRIBUTE_MEMORY_TYPE)
            answer = host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
        else if (attributes[i] == CU_POINTER_ATTRIBUTE_IS_MANAGED)
            answer = extent.kind == (int)FK_MANAGED;
        else return CUDA_ERROR_NOT_SUPPORTED;
        if (!extent.piece) answer = 0;
        memcpy(data[i], &answer, sizeof answer);
    }
    return 0;
}

/* ---- the calls ---- */

FK_DEFINE(CUresult, cuMemGetAllocationGranularity,
          (size_t *granularity, const CUmemAllocationProp *prop,
           CUmemAllocationGranularity_flags option),
          fk_granularity(granularity, prop, option))
FK_DEFINE(CUresult, cuMemAddressReserve,
          (CUdeviceptr *ptr, size_t size, size_t alignment, CUdeviceptr addr,
           unsigned long long flags),
          addr || flags ? CUDA_ERROR_INVALID_VALUE : fk_reserve(ptr, size, alignment))
FK_DEFINE(CUresult, cuMemAddressFree, (CUdeviceptr ptr, size_t size), fk_free_addresses(ptr, size))
FK_DEFINE(CUresult, cuMemCreate,
          (CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
           unsigned long long flags),
          flags ? CUDA_ERROR_INVALID_VALUE : fk_create(handle, size, prop))
FK_DEFINE(CUresult, cuMemRelease, (CUmemGenericAllocationHandle handle), fk_release(handle))
FK_DEFINE(CUresult, cuMemMap,
          (CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
           unsigned long long flags),
          flags ? CUDA_ERROR_INVALID_VALUE : fk_map(ptr, size, offset, handle))
FK_DEFINE(CUresult, cuMemUnmap, (CUdeviceptr ptr, size_t size), fk_unmap(ptr, size))
FK_DEFINE(CUresult, cuMemSetAccess,
          (CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count),
          fk_set_access(ptr, size, desc, count))
FK_DEFINE(CUresult, cuPointerGetAttributes,
          (unsigned n, CUpointer_attribute *attributes, void **data, CUdeviceptr ptr),
          fk_tell_pointer(n, attributes, data, ptr))
