/* peer.h: an allocator as the benchmark sees it. A plug-in is a library that exports one, named
   bench_plugin. */
#ifndef PEER_H
#define PEER_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#define BENCH_WHY 200 /* bytes of a sentence that says why not */

/* What a peer can do, and what a work asks for. */
#define BENCH_BLOCKS 1u    /* hands out blocks, many at a time, to any thread */
#define BENCH_DEVICE 2u    /* of device memory: gigabytes of it */
#define BENCH_HAND_OVER 4u /* memory freed on one stream is soon another stream's */

typedef struct bench_peer {
    const char *name;
    const char *about; /* how it is set up */
    unsigned can;
    /* No limit: 0. NULL when it cannot be had, with a sentence in why. */
    void *(*open)(size_t limit_bytes, char why[BENCH_WHY]);
    void *(*get)(void *pool, size_t bytes, cudaStream_t);
    int (*put)(void *pool, void *block, cudaStream_t); /* 0, or it was refused */
    void (*close)(void *pool);
    /* NULL: the peer has nothing of the kind. */
    uint64_t (*reserved_peak)(void *pool); /* bytes of device memory */
    uint64_t (*calls)(void *pool);   /* of CUDA, since some past moment */
    void *(*get_ready)(void *pool, size_t bytes, cudaStream_t); /* no work uses its memory: the */
    int (*put_ready)(void *pool, void *block, cudaStream_t);    /* stream has no meaning */
    void *(*get_as_cuda)(void *pool, size_t bytes, cudaStream_t); /* as cudaMalloc and cudaFree; */
    int (*put_as_cuda)(void *pool, void *block, cudaStream_t);    /* the stream has no meaning */
    void *(*get_addressed)(void *pool, size_t bytes, cudaStream_t);
    int (*put_addressed)(void *pool, void *block, cudaStream_t); /* finds all else by the address */
} bench_peer;

#endif
