/* The peers that C can reach: the heaps of the host, and CUDA's own ways to allocate. */
#include "bench.h"

#include <dlfcn.h>
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

static void *open_glibc(size_t limit_bytes, size_t reserve_bytes, char why[BENCH_WHY]) {
    static heap glibc;
    (void)limit_bytes, (void)reserve_bytes, (void)why;
    glibc = (heap){malloc, free};
    return &glibc;
}

/* The first of the libraries that is there. A function's address comes as an object's, which C
   keeps apart. */
static void *open_library(heap *h, const char *const names[], const char *get, const char *put,
                          char why[BENCH_WHY]) {
    void *library = NULL;
    for (size_t i = 0; names[i] && !library; i++)
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    void *get_at = library ? dlsym(library, get) : NULL;
    void *put_at = library ? dlsym(library, put) : NULL;
    memcpy(&h->get, &get_at, sizeof get_at);
    memcpy(&h->put, &put_at, sizeof put_at);
    if (get_at && put_at) return h;
    snprintf(why, BENCH_WHY, "no %s here, or it cannot be loaded", names[0]);
    return NULL;
}

static void *open_mimalloc(size_t limit_bytes, size_t reserve_bytes, char why[BENCH_WHY]) {
    static const char *const names[] = {"libmimalloc.so.2", "libmimalloc.so.3", "libmimalloc.so",
                                        NULL};
    static heap mimalloc;
    (void)limit_bytes, (void)reserve_bytes;
    return open_library(&mimalloc, names, "mi_malloc", "mi_free", why);
}

static void *open_jemalloc(size_t limit_bytes, size_t reserve_bytes, char why[BENCH_WHY]) {
    static const char *const names[] = {"libjemalloc.so.2", "libjemalloc.so", NULL};
    static heap jemalloc;
    (void)limit_bytes, (void)reserve_bytes;
    return open_library(&jemalloc, names, "malloc", "free", why);
}

#define HEAP_CAN (BENCH_BLOCKS | BENCH_THREADS | BENCH_MANY | BENCH_HUGE)
#define HEAP(name, about, open) \
    {name, about, HEAP_CAN, open, get_from_heap, put_to_heap, close_nothing, NULL}

static const bench_peer glibc = HEAP("glibc", "malloc and free", open_glibc);
static const bench_peer mimalloc = HEAP("mimalloc", "mi_malloc and mi_free", open_mimalloc);
static const bench_peer jemalloc = HEAP("jemalloc", "its malloc and free", open_jemalloc);

/* ---- an event and a wait: the least that orders a stream after another ---- */

static void *open_event(size_t limit_bytes, size_t reserve_bytes, char why[BENCH_WHY]) {
    cudaEvent_t event;
    cudaError_t error = cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    (void)limit_bytes, (void)reserve_bytes;
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
    "record + wait", "one cudaEventRecord and one cudaStreamWaitEvent", BENCH_HAND_OVER, open_event,
    wait_event, record_event, close_event, NULL};

/* ---- CUDA's own ---- */

#if GPUPOOL_TEST_GPU

static void *open_nothing(size_t limit_bytes, size_t reserve_bytes, char why[BENCH_WHY]) {
    static char nothing;
    (void)limit_bytes, (void)reserve_bytes, (void)why;
    return &nothing;
}

static void *get_malloc(void *pool, size_t bytes, cudaStream_t stream) {
    void *block = NULL;
    (void)pool, (void)stream;
    return cudaMalloc(&block, bytes) == cudaSuccess ? block : NULL;
}

static int put_malloc(void *pool, void *block, cudaStream_t stream) {
    (void)pool, (void)stream;
    return cudaFree(block) != cudaSuccess;
}

static const bench_peer cuda_malloc = {
    "cudaMalloc", "cudaMalloc and cudaFree", BENCH_BLOCKS | BENCH_DEVICE | BENCH_THREADS,
    open_nothing, get_malloc, put_malloc, close_nothing, NULL};

static void *open_pool(size_t limit_bytes, size_t reserve_bytes, char why[BENCH_WHY]) {
    struct cudaMemPoolProps props;
    cudaMemPool_t pool = NULL;
    uint64_t keep = UINT64_MAX;
    memset(&props, 0, sizeof props);
    props.allocType = cudaMemAllocationTypePinned;
    props.location.type = cudaMemLocationTypeDevice;
    props.maxSize = limit_bytes;
    (void)reserve_bytes;
    cudaError_t error = cudaMemPoolCreate(&pool, &props);
    if (error == cudaSuccess)
        error = cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep);
    if (error == cudaSuccess) return pool;
    snprintf(why, BENCH_WHY, "a memory pool: %s", cudaGetErrorString(error));
    return NULL;
}

static void *get_async(void *pool, size_t bytes, cudaStream_t stream) {
    void *block = NULL;
    cudaError_t error = cudaMallocFromPoolAsync(&block, bytes, (cudaMemPool_t)pool, stream);
    return error == cudaSuccess ? block : NULL;
}

static int put_async(void *pool, void *block, cudaStream_t stream) {
    (void)pool;
    return cudaFreeAsync(block, stream) != cudaSuccess;
}

static void close_pool(void *pool) {
    cudaDeviceSynchronize();
    cudaMemPoolDestroy((cudaMemPool_t)pool);
}

static const bench_peer cuda_malloc_async = {
    "cudaMallocAsync", "from a pool of its own that keeps all it gets",
    BENCH_BLOCKS | BENCH_DEVICE | BENCH_THREADS | BENCH_MANY | BENCH_HUGE | BENCH_HAND_OVER,
    open_pool, get_async, put_async, close_pool, NULL};

#endif

const bench_peer *const bench_peers[] = {
    &bench_gpupool, &bench_gpupool_unlocked, &mimalloc, &jemalloc, &glibc, &event_and_wait,
#if GPUPOOL_TEST_GPU
    &cuda_malloc_async, &cuda_malloc,
#endif
};
const size_t bench_peers_n = sizeof bench_peers / sizeof *bench_peers;
