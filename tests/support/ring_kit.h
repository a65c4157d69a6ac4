/* ring_kit.h: what the tests of the ring share beside kit.h: patterns of bytes, memory with
   margins, and bytes to bring. Include it after gpupool.h. */
#ifndef RING_KIT_H
#define RING_KIT_H

#include "kit.h"

#include <pthread.h>

#define MARGIN ((size_t)256)
#define OK(call) CHECK_RESULT(call, GPUPOOL_OK)
#define CUDA(call) CHECK_EQ(call, cudaSuccess)

/* Byte `at` of the pattern that belongs to a seed. */
static inline unsigned char kit_byte(uint64_t seed, size_t at) {
    return (unsigned char)(((seed + at / 8 + 1) * 0x9e3779b97f4a7c15u) >> (8 * (at % 8)));
}
static inline void kit_fill(unsigned char *to, size_t bytes, uint64_t seed, size_t at) {
    for (size_t i = 0; i < bytes; i++) to[i] = kit_byte(seed, at + i);
}
static inline int kit_is(const unsigned char *from, size_t bytes, uint64_t seed, size_t at) {
    for (size_t i = 0; i < bytes; i++)
        if (from[i] != kit_byte(seed, at + i))
            return check_fail(__FILE__, __LINE__, "byte %zu is %#x, not %#x", at + i, from[i],
                              kit_byte(seed, at + i));
    return 1;
}
static inline int kit_is_all(const unsigned char *from, size_t bytes, int byte) {
    for (size_t i = 0; i < bytes; i++)
        if (from[i] != (unsigned char)byte)
            return check_fail(__FILE__, __LINE__, "byte %zu is %#x, and should still be %#x", i,
                              from[i], (unsigned)byte);
    return 1;
}

/* Memory with a margin on both sides, to see writes outside. */
static inline unsigned char *kit_host(size_t bytes) {
    unsigned char *memory = (unsigned char *)malloc(bytes + 2 * MARGIN);
    memset(memory, 0xee, bytes + 2 * MARGIN);
    return memory + MARGIN;
}
static inline void kit_host_free(unsigned char *memory, size_t bytes) {
    kit_is_all(memory - MARGIN, MARGIN, 0xee);
    kit_is_all(memory + bytes, MARGIN, 0xee);
    free(memory - MARGIN);
}
static inline unsigned char *kit_device(size_t bytes) {
    unsigned char *memory = NULL;
    CUDA(cudaMalloc((void **)&memory, bytes + 2 * MARGIN));
    CUDA(cudaMemset(memory, 0xdd, bytes + 2 * MARGIN));
    CUDA(cudaDeviceSynchronize());
    return memory + MARGIN;
}
/* The device's bytes once all is done, on the host, to be freed. */
static inline unsigned char *kit_fetch(const unsigned char *device, size_t bytes) {
    unsigned char *copy = (unsigned char *)malloc(bytes);
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaMemcpy(copy, device, bytes, cudaMemcpyDeviceToHost));
    return copy;
}
static inline void kit_device_is(const unsigned char *device, size_t bytes, uint64_t seed) {
    unsigned char *copy = kit_fetch(device, bytes);
    kit_is(copy, bytes, seed, 0);
    free(copy);
}
static inline void kit_device_set(unsigned char *device, size_t bytes, uint64_t seed) {
    unsigned char *copy = (unsigned char *)malloc(bytes);
    kit_fill(copy, bytes, seed, 0);
    CUDA(cudaMemcpy(device, copy, bytes, cudaMemcpyHostToDevice));
    CUDA(cudaDeviceSynchronize());
    free(copy);
}
static inline void kit_device_free(unsigned char *memory, size_t bytes) {
    unsigned char *copy = kit_fetch(memory - MARGIN, bytes + 2 * MARGIN);
    kit_is_all(copy, MARGIN, 0xdd);
    kit_is_all(copy + MARGIN + bytes, MARGIN, 0xdd);
    free(copy);
    CUDA(cudaFree(memory - MARGIN));
}

static inline gpupool_ring *kit_ring(size_t bytes, size_t slot_bytes, int workers) {
    gpupool_ring_config config = {0, workers ? workers : -1, bytes, slot_bytes};
    gpupool_ring *ring = NULL;
    if (OK(gpupool_ring_create(&ring, &config))) return ring;
    check_failed++;
    exit(check_finish());
}
static inline gpupool_ring_stats ring_stats(gpupool_ring *ring) {
    gpupool_ring_stats stats;
    memset(&stats, 0, sizeof stats);
    OK(gpupool_ring_get_stats(ring, &stats));
    return stats;
}
static inline gpupool_transfer kit_up(void *to, const void *from, size_t bytes, cudaStream_t s) {
    gpupool_transfer what;
    memset(&what, 0, sizeof what);
    what.to = to;
    what.from = from;
    what.bytes = bytes;
    what.stream = s;
    return what;
}
static inline gpupool_transfer kit_down(void *to, const void *from, size_t bytes, cudaStream_t s) {
    gpupool_transfer what = kit_up(to, from, bytes, s);
    what.direction = GPUPOOL_DOWN;
    return what;
}

/* The transfer with a ticket. */
static inline gpupool_ticket kit_post(gpupool_ring *ring, gpupool_transfer what) {
    gpupool_ticket ticket = 0;
    what.ticket = &ticket;
    OK(gpupool_ring_transfer(ring, &what));
    return ticket;
}

/* Bytes on the host, memory of the device for them, and the ring and stream that bring them. */
typedef struct job {
    gpupool_ring *ring;
    unsigned char *host, *device;
    size_t bytes;
    cudaStream_t stream;
    gpupool_ticket ticket; /* of job_post */
    pthread_t thread;      /* of job_begin */
    atomic_int is_done;
} job;

static inline void job_open(job *j, gpupool_ring *ring, size_t bytes, uint64_t seed) {
    j->ring = ring;
    j->host = kit_host(bytes);
    j->device = kit_device(bytes);
    j->bytes = bytes;
    CUDA(cudaStreamCreateWithFlags(&j->stream, cudaStreamNonBlocking));
    atomic_store(&j->is_done, 0);
    kit_fill(j->host, bytes, seed, 0);
}
static inline void job_close(job *j) {
    kit_host_free(j->host, j->bytes);
    kit_device_free(j->device, j->bytes);
    CUDA(cudaStreamDestroy(j->stream));
}
static inline gpupool_result job_upload(job *j) {
    return gpupool_upload(j->ring, j->device, j->host, j->bytes, j->stream);
}
static inline gpupool_result job_download(job *j) {
    return gpupool_download(j->ring, j->host, j->device, j->bytes, j->stream);
}
static inline void job_post(job *j) {
    j->ticket = kit_post(j->ring, kit_up(j->device, j->host, j->bytes, j->stream));
}
static inline void job_begin(job *j, void *(*run)(void *)) {
    if (pthread_create(&j->thread, NULL, run, j)) exit(1);
}

#endif
