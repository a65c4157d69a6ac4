/* ring_edition.h: the ring of an edition of gpupool.h, as bench-ring uses it. All but open, close
   and the figures end the program if they fail. */
#ifndef RING_EDITION_H
#define RING_EDITION_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

typedef struct ring_edition {
    const char *name;
    void *(*open)(size_t bytes, size_t slot_bytes, int workers); /* zeros: defaults */
    void (*close)(void *ring);
    void (*up)(void *ring, void *device, const void *host, size_t bytes, cudaStream_t);
    void (*down)(void *ring, void *host, const void *device, size_t bytes, cudaStream_t);
    void (*file)(void *ring, void *device, int file, size_t bytes, cudaStream_t);
    uint64_t (*post)(void *ring, void *device, const void *host, size_t bytes, cudaStream_t);
    void (*wait)(void *ring, uint64_t ticket); /* that post returned */
    size_t (*pinned)(void *ring);
    int (*workers)(void *ring);
    void (*copy_away)(unsigned char *to, const unsigned char *from, uint64_t bytes);
} ring_edition;

extern const ring_edition ring_second, ring_third;

#endif
