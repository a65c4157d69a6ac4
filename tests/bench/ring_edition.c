/* An edition's ring for bench-ring; compiled once for each edition, all in one file. */
#define _GNU_SOURCE
#pragma GCC diagnostic ignored "-Wunused-function"
#define GPUPOOL_IMPLEMENTATION
#if RING_THIRD
#define GPUPOOL_API static
#include "../next/gpupool.h"
#define EDITION ring_third
#define NAME "third edition"
#define COPY_AWAY gpi_system_copy_away
#else
#define GPUPOOL_STATIC 1
#include "../../gpupool.h"
#define EDITION ring_second
#define NAME "second edition"
#define COPY_AWAY gpi_host_copy_away
#endif
#include "ring_edition.h"

#include <stdio.h>
#include <stdlib.h>

static void must(gpupool_result result) {
    if (result == GPUPOOL_OK) return;
    fprintf(stderr, "bench ring: " NAME ": %s\n", gpupool_last_error());
    exit(1);
}

static void *open_ring(size_t bytes, size_t slot_bytes, int workers) {
    gpupool_ring_config config;
    gpupool_ring *ring = NULL;
    memset(&config, 0, sizeof config);
    config.bytes = bytes;
#if RING_THIRD
    config.slot_bytes = slot_bytes;
#else
    config.chunk_bytes = slot_bytes;
#endif
    config.workers = workers;
    must(gpupool_ring_create(&ring, &config));
    return ring;
}

static void close_ring(void *ring) {
    must(gpupool_ring_destroy((gpupool_ring *)ring));
}

static void up(void *ring, void *device, const void *host, size_t bytes, cudaStream_t stream) {
    must(gpupool_upload((gpupool_ring *)ring, device, host, bytes, stream));
}

static void down(void *ring, void *host, const void *device, size_t bytes, cudaStream_t stream) {
    must(gpupool_download((gpupool_ring *)ring, host, device, bytes, stream));
}

static void file_up(void *ring, void *device, int file, size_t bytes, cudaStream_t stream) {
#if RING_THIRD
    gpupool_file_part part = {file, 0, bytes};
    must(gpupool_upload_file((gpupool_ring *)ring, device, &part, stream));
#else
    must(gpupool_upload_file((gpupool_ring *)ring, device, file, 0, bytes, stream));
#endif
}

static uint64_t post(void *ring, void *device, const void *host, size_t bytes,
                     cudaStream_t stream) {
    gpupool_ticket ticket = 0;
    gpupool_transfer what;
    memset(&what, 0, sizeof what);
    what.to = device;
    what.from = host;
    what.bytes = bytes;
    what.stream = stream;
    what.ticket = &ticket;
    must(gpupool_ring_transfer((gpupool_ring *)ring, &what));
    return ticket;
}

static void wait_for(void *ring, uint64_t ticket) {
#if RING_THIRD
    must(gpupool_ring_wait((gpupool_ring *)ring, ticket, -1, NULL));
#else
    must(gpupool_ring_wait((gpupool_ring *)ring, ticket, -1));
#endif
}

static gpupool_ring_stats stats_of(void *ring) {
    gpupool_ring_stats stats;
    memset(&stats, 0, sizeof stats);
    must(gpupool_ring_get_stats((gpupool_ring *)ring, &stats));
    return stats;
}

static size_t pinned(void *ring) {
#if RING_THIRD
    return (size_t)stats_of(ring).pinned;
#else
    return (size_t)stats_of(ring).pinned.peak;
#endif
}

static int workers_of(void *ring) {
    return (int)stats_of(ring).workers;
}

const ring_edition EDITION = {NAME, open_ring, close_ring, up,         down,     file_up,
                              post, wait_for,  pinned,     workers_of, COPY_AWAY};
