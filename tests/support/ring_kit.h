/* ring_kit.h: what the tests of the staging ring share. Include it after gpupool.h. */
#ifndef RING_KIT_H
#define RING_KIT_H

#include "arena_kit.h"

#define KIT_SECOND ((int64_t)1000000000)

static inline gpupool_ring *kit_ring(size_t bytes, size_t chunk_bytes, int workers) {
    gpupool_ring_config config;
    gpupool_ring *ring = NULL;
    memset(&config, 0, sizeof config);
    config.bytes = bytes;
    config.chunk_bytes = chunk_bytes;
    config.workers = workers ? workers : -1;
    if (CHECK_RESULT(gpupool_ring_create(&ring, &config), GPUPOOL_OK)) return ring;
    check_failed++;
    exit(check_finish());
}

static inline void kit_ring_close(gpupool_ring *ring) {
    CHECK_RESULT(gpupool_ring_check(ring), GPUPOOL_OK);
    CHECK_RESULT(gpupool_ring_destroy(ring), GPUPOOL_OK);
}

static inline gpupool_ring_stats kit_ring_stats(gpupool_ring *ring) {
    gpupool_ring_stats stats;
    memset(&stats, 0, sizeof stats);
    CHECK_RESULT(gpupool_ring_get_stats(ring, &stats), GPUPOOL_OK);
    return stats;
}

#if CHECK_FAKE
/* Uploads a span of so many bytes on a stream that stands still: it is in flight until the stream
   is let go. */
static inline void kit_ring_fly(gpupool_ring *ring, size_t bytes, void *device,
                                cudaStream_t stream) {
    gpupool_span span;
    CHECK_RESULT(gpupool_ring_acquire_span(ring, bytes, 0, &span), GPUPOOL_OK);
    memset(span.memory, 1, bytes);
    fake_hold(stream, 1);
    CHECK_RESULT(gpupool_ring_upload_span(ring, &span, device, stream), GPUPOOL_OK);
}
#endif

/* Byte `at` of the pattern that belongs to a seed. */
static inline uint64_t kit_word(uint64_t seed, size_t index) {
    uint64_t z = (seed + index + 1) * 0x9e3779b97f4a7c15u;
    return (z ^ z >> 29) * 0xbf58476d1ce4e5b9u;
}
static inline unsigned char kit_byte(uint64_t seed, size_t at) {
    return (unsigned char)(kit_word(seed, at / 8) >> (8 * (at % 8)));
}

/* Bytes `at` and on of the seed's pattern. By words, for the tests spend their time here;
   (memcpy) is not watched by ring_watch.h. */
static inline void kit_pattern_at(unsigned char *to, size_t bytes, uint64_t seed, size_t at) {
    size_t i = 0;
    for (; i < bytes && (at + i) % 8; i++) to[i] = kit_byte(seed, at + i);
    for (; i + 8 <= bytes; i += 8) {
        uint64_t word = kit_word(seed, (at + i) / 8);
        (memcpy)(to + i, &word, 8);
    }
    for (; i < bytes; i++) to[i] = kit_byte(seed, at + i);
}
static inline void kit_pattern(unsigned char *to, size_t bytes, uint64_t seed) {
    kit_pattern_at(to, bytes, seed, 0);
}

/* Whether these are bytes `at` and on of the seed's pattern. */
static inline int kit_is_pattern(const unsigned char *from, size_t bytes, uint64_t seed,
                                 size_t at) {
    unsigned char expected[4096];
    for (size_t i = 0; i < bytes; i += sizeof expected) {
        size_t n = bytes - i < sizeof expected ? bytes - i : sizeof expected, k = 0;
        kit_pattern_at(expected, n, seed, at + i);
        if (memcmp(from + i, expected, n) == 0) continue;
        while (from[i + k] == expected[k]) k++;
        return check_fail(__FILE__, __LINE__, "byte %zu is %#x, not %#x", at + i + k, from[i + k],
                          expected[k]);
    }
    return 1;
}

static inline int kit_is_byte(const unsigned char *from, size_t bytes, int byte) {
    size_t i = 0;
    if (bytes && from[0] == (unsigned char)byte && memcmp(from, from + 1, bytes - 1) == 0) return 1;
    while (i < bytes && from[i] == (unsigned char)byte) i++;
    if (i == bytes) return 1;
    return check_fail(__FILE__, __LINE__, "byte %zu is %#x, and should still be %#x", i, from[i],
                      (unsigned)byte);
}

/* Host and device memory for a test, with a margin of KIT_MARGIN on both sides to see writes
   outside. */
#define KIT_MARGIN ((size_t)512)

static inline unsigned char *kit_host(size_t bytes) {
    unsigned char *memory = (unsigned char *)malloc(bytes + 2 * KIT_MARGIN);
    memset(memory, 0xee, bytes + 2 * KIT_MARGIN);
    return memory + KIT_MARGIN;
}

static inline void kit_host_free(unsigned char *memory, size_t bytes) {
    kit_is_byte(memory - KIT_MARGIN, KIT_MARGIN, 0xee);
    kit_is_byte(memory + bytes, KIT_MARGIN, 0xee);
    free(memory - KIT_MARGIN);
}

static inline unsigned char *kit_device(size_t bytes) {
    unsigned char *memory = NULL;
    CHECK_EQ(cudaMalloc((void **)&memory, bytes + 2 * KIT_MARGIN), cudaSuccess);
    CHECK_EQ(cudaMemset(memory, 0xdd, bytes + 2 * KIT_MARGIN), cudaSuccess);
    CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
    return memory + KIT_MARGIN;
}

/* The device's bytes, once all is done; on the host, to be freed. */
static inline unsigned char *kit_fetch(const unsigned char *device, size_t bytes) {
    unsigned char *copy = (unsigned char *)malloc(bytes);
    CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
    CHECK_EQ(cudaMemcpy(copy, device, bytes, cudaMemcpyDeviceToHost), cudaSuccess);
    return copy;
}

static inline void kit_expect_device(const unsigned char *device, size_t bytes, uint64_t seed) {
    unsigned char *copy = kit_fetch(device, bytes);
    kit_is_pattern(copy, bytes, seed, 0);
    free(copy);
}

static inline void kit_device_free(unsigned char *memory, size_t bytes) {
    unsigned char *copy = kit_fetch(memory - KIT_MARGIN, bytes + 2 * KIT_MARGIN);
    kit_is_byte(copy, KIT_MARGIN, 0xdd);
    kit_is_byte(copy + KIT_MARGIN + bytes, KIT_MARGIN, 0xdd);
    free(copy);
    CHECK_EQ(cudaFree(memory - KIT_MARGIN), cudaSuccess);
}

#endif
