/* The peers that C can reach; CUDA's own are in peer_cuda.c. */
#include "bench.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void close_nothing(void *pool) { (void)pool; }

/* ---- heaps: their blocks are host memory, and the stream means nothing ---- */

typedef struct heap {
    void *(*get)(size_t);
    void (*put)(void *);
} heap;

static void *get_from_heap(void *pool, size_t bytes, cudaStream_t stream) {
    (void)stream;
    return ((heap *)pool)->get(bytes);
}

static int put_to_heap(void *pool, void *block, cudaStream_t stream) {
    (void)stream;
    ((heap *)pool)->put(block);
    return 0;
}

static void *open_glibc(size_t limit_bytes, char why[BENCH_WHY]) {
    static heap glibc;
    (void)limit_bytes, (void)why;
    glibc = (heap){malloc, free};
    return &glibc;
}

/* The first of the libraries that is there. A function's address comes as an object's, which C
   keeps apart. */
static void *open_mimalloc(size_t limit_bytes, char why[BENCH_WHY]) {
    static const char *const names[] = {"libmimalloc.so.2", "libmimalloc.so.3", "libmimalloc.so"};
    static heap mimalloc;
    void *library = NULL;
    (void)limit_bytes;
    for (size_t i = 0; i < sizeof names / sizeof *names && !library; i++)
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    void *get_at = library ? dlsym(library, "mi_malloc") : NULL;
    void *put_at = library ? dlsym(library, "mi_free") : NULL;
    memcpy(&mimalloc.get, &get_at, sizeof get_at);
    memcpy(&mimalloc.put, &put_at, sizeof put_at);
    if (get_at && put_at) return &mimalloc;
    snprintf(why, BENCH_WHY, "no libmimalloc here, or it cannot be loaded");
    return NULL;
}

#define HEAP(peer, words, opens) \
    {.name = peer, .about = words, .can = BENCH_BLOCKS, .open = opens, .get = get_from_heap, \
     .put = put_to_heap, .close = close_nothing}

static const bench_peer glibc = HEAP("glibc", "malloc and free", open_glibc);
static const bench_peer mimalloc = HEAP("mimalloc", "mi_malloc and mi_free", open_mimalloc);

/* ---- an event and a wait: the least that orders a stream after another ---- */

static void *open_event(size_t limit_bytes, char why[BENCH_WHY]) {
    cudaEvent_t event;
    cudaError_t error = cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    (void)limit_bytes;
    if (error == cudaSuccess) return event;
    snprintf(why, BENCH_WHY, "cudaEventCreateWithFlags: %s", cudaGetErrorString(error));
    return NULL;
}

static void *wait_event(void *event, size_t bytes, cudaStream_t stream) {
    (void)bytes;
    return cudaStreamWaitEvent(stream, (cudaEvent_t)event, 0) == cudaSuccess ? event : NULL;
}

static int record_event(void *event, void *block, cudaStream_t stream) {
    (void)block;
    return cudaEventRecord((cudaEvent_t)event, stream) != cudaSuccess;
}

static void close_event(void *event) { cudaEventDestroy((cudaEvent_t)event); }

static const bench_peer event_and_wait = {
    .name = "record + wait", .about = "one cudaEventRecord and one cudaStreamWaitEvent",
    .can = BENCH_HAND_OVER, .open = open_event, .get = wait_event, .put = record_event,
    .close = close_event};

const bench_peer *const bench_peers[] = {
    &bench_gpupool,
    &mimalloc, &glibc, &event_and_wait,
#if GPUPOOL_TEST_GPU
    &bench_cuda_malloc_async, &bench_cuda_malloc,
#endif
};
const size_t bench_peers_n = sizeof bench_peers / sizeof *bench_peers;
