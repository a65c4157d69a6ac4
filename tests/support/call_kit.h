/* call_kit.h: calls that have no short form of their own, as tests like to write them. Include it
   after gpupool.h. */
#ifndef CALL_KIT_H
#define CALL_KIT_H

#include <string.h>

/* ---- the arena ---- */

/* What was asked for with a block; 0 with a result. */
static inline size_t kit_size(gpupool_arena *arena, const void *memory) {
    gpupool_block block;
    return gpupool_get_block(arena, memory, &block) == GPUPOOL_OK ? block.requested_bytes : 0;
}

static inline size_t kit_limit(gpupool_arena *arena) {
    size_t bytes = 0;
    gpupool_get_limit(arena, &bytes);
    return bytes;
}

static inline size_t kit_available(gpupool_arena *arena) {
    size_t bytes = 0;
    gpupool_get_available(arena, &bytes);
    return bytes;
}

static inline int kit_fits(gpupool_arena *arena, size_t bytes, gpupool_verdict *why) {
    return gpupool_would_fit(arena, bytes, why) == GPUPOOL_OK;
}

static inline gpupool_request kit_request(size_t bytes, cudaStream_t stream, unsigned flags) {
    gpupool_request request;
    memset(&request, 0, sizeof request);
    request.bytes = bytes;
    request.stream = stream;
    request.flags = flags;
    return request;
}

static inline void *kit_alloc_as(gpupool_arena *arena, size_t bytes, cudaStream_t stream,
                                 unsigned flags) {
    gpupool_request request = kit_request(bytes, stream, flags);
    return gpupool_alloc_request(arena, &request);
}

/* As if from a line of a file. */
static inline void *kit_alloc_at(gpupool_arena *arena, size_t bytes, cudaStream_t stream,
                                 const char *file, int line) {
    gpupool_request request = kit_request(bytes, stream, 0);
    request.file = file;
    request.line = line;
    return gpupool_alloc_request(arena, &request);
}

/* ---- the ring ---- */

static inline gpupool_transfer kit_transfer(gpupool_direction direction, void *to,
                                            const void *from, size_t bytes, cudaStream_t stream) {
    gpupool_transfer transfer;
    memset(&transfer, 0, sizeof transfer);
    transfer.direction = direction;
    transfer.to = to;
    transfer.from = from;
    transfer.bytes = bytes;
    transfer.stream = stream;
    return transfer;
}

static inline gpupool_result kit_upload_async(gpupool_ring *ring, void *to, const void *from,
                                              size_t bytes, cudaStream_t stream,
                                              gpupool_ticket *ticket) {
    gpupool_transfer transfer = kit_transfer(GPUPOOL_UP, to, from, bytes, stream);
    transfer.ticket = ticket;
    return gpupool_ring_transfer(ring, &transfer);
}

static inline gpupool_result kit_download_async(gpupool_ring *ring, void *to, const void *from,
                                                size_t bytes, cudaStream_t stream,
                                                gpupool_ticket *ticket) {
    gpupool_transfer transfer = kit_transfer(GPUPOOL_DOWN, to, from, bytes, stream);
    transfer.ticket = ticket;
    return gpupool_ring_transfer(ring, &transfer);
}

static inline gpupool_result kit_rows(gpupool_ring *ring, gpupool_transfer transfer,
                                      size_t to_pitch, size_t from_pitch, size_t rows) {
    transfer.to_pitch = to_pitch;
    transfer.from_pitch = from_pitch;
    transfer.rows = rows;
    return gpupool_ring_transfer(ring, &transfer);
}

static inline gpupool_result kit_upload_2d(gpupool_ring *ring, void *to, size_t to_pitch,
                                           const void *from, size_t from_pitch, size_t width,
                                           size_t rows, cudaStream_t stream) {
    return kit_rows(ring, kit_transfer(GPUPOOL_UP, to, from, width, stream), to_pitch, from_pitch,
                    rows);
}

static inline gpupool_result kit_download_2d(gpupool_ring *ring, void *to, size_t to_pitch,
                                             const void *from, size_t from_pitch, size_t width,
                                             size_t rows, cudaStream_t stream) {
    return kit_rows(ring, kit_transfer(GPUPOOL_DOWN, to, from, width, stream), to_pitch,
                    from_pitch, rows);
}

static inline gpupool_result kit_upload_from(gpupool_ring *ring, void *to, size_t bytes,
                                             gpupool_read_fn read, void *user,
                                             cudaStream_t stream) {
    gpupool_transfer transfer = kit_transfer(GPUPOOL_UP, to, NULL, bytes, stream);
    transfer.read = read;
    transfer.user = user;
    return gpupool_ring_transfer(ring, &transfer);
}

static inline gpupool_result kit_download_to(gpupool_ring *ring, const void *from, size_t bytes,
                                             gpupool_write_fn write, void *user,
                                             cudaStream_t stream) {
    gpupool_transfer transfer = kit_transfer(GPUPOOL_DOWN, NULL, from, bytes, stream);
    transfer.write = write;
    transfer.user = user;
    return gpupool_ring_transfer(ring, &transfer);
}

#endif
