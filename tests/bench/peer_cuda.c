/* CUDA's own ways to allocate, as peers. Only on a GPU: there is nothing to measure elsewhere. */
#include "bench.h"

#if GPUPOOL_TEST_GPU

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

static _Atomic uint64_t calls;

static uint64_t count_calls(void *pool) {
    (void)pool;
    return atomic_load(&calls);
}

static void *open_nothing(size_t limit_bytes, char why[BENCH_WHY]) {
    static char nothing;
    (void)limit_bytes, (void)why;
    return &nothing;
}

static void close_nothing(void *pool) { (void)pool; }

static void *get_malloc(void *pool, size_t bytes, cudaStream_t stream) {
    void *block = NULL;
    (void)pool, (void)stream;
    atomic_fetch_add_explicit(&calls, 1, memory_order_relaxed);
    if (cudaMalloc(&block, bytes) == cudaSuccess) return block;
    cudaGetLastError();
    return NULL;
}

static int put_malloc(void *pool, void *block, cudaStream_t stream) {
    (void)pool, (void)stream;
    atomic_fetch_add_explicit(&calls, 1, memory_order_relaxed);
    return cudaFree(block) != cudaSuccess;
}

const bench_peer bench_cuda_malloc = {
    .name = "cudaMalloc", .about = "cudaMalloc and cudaFree",
    .can = BENCH_BLOCKS | BENCH_DEVICE,
    .open = open_nothing, .get = get_malloc, .put = put_malloc, .close = close_nothing,
    .calls = count_calls, .get_ready = get_malloc, .put_ready = put_malloc,
    .get_as_cuda = get_malloc, .put_as_cuda = put_malloc, .get_addressed = get_malloc,
    .put_addressed = put_malloc};

static void *open_pool(size_t limit_bytes, char why[BENCH_WHY]) {
    struct cudaMemPoolProps props;
    cudaMemPool_t pool = NULL;
    uint64_t keep = UINT64_MAX;
    memset(&props, 0, sizeof props);
    props.allocType = cudaMemAllocationTypePinned;
    props.location.type = cudaMemLocationTypeDevice;
    props.maxSize = limit_bytes;
    cudaError_t error = cudaMemPoolCreate(&pool, &props);
    if (error == cudaSuccess)
        error = cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep);
    if (error == cudaSuccess) return pool;
    snprintf(why, BENCH_WHY, "a memory pool: %s", cudaGetErrorString(error));
    return NULL;
}

static void *get_async(void *pool, size_t bytes, cudaStream_t stream) {
    void *block = NULL;
    atomic_fetch_add_explicit(&calls, 1, memory_order_relaxed);
    if (cudaMallocFromPoolAsync(&block, bytes, (cudaMemPool_t)pool, stream) == cudaSuccess)
        return block;
    cudaGetLastError();
    return NULL;
}

static int put_async(void *pool, void *block, cudaStream_t stream) {
    (void)pool;
    atomic_fetch_add_explicit(&calls, 1, memory_order_relaxed);
    return cudaFreeAsync(block, stream) != cudaSuccess;
}

static void close_pool(void *pool) {
    cudaDeviceSynchronize();
    cudaMemPoolDestroy((cudaMemPool_t)pool);
}

static uint64_t pool_peak(void *pool) {
    uint64_t bytes = 0;
    cudaMemPoolGetAttribute((cudaMemPool_t)pool, cudaMemPoolAttrReservedMemHigh, &bytes);
    return bytes;
}

const bench_peer bench_cuda_malloc_async = {
    .name = "cudaMallocAsync", .about = "from a pool of its own that keeps all it gets",
    .can = BENCH_BLOCKS | BENCH_DEVICE | BENCH_HAND_OVER,
    .open = open_pool, .get = get_async, .put = put_async, .close = close_pool,
    .reserved_peak = pool_peak, .calls = count_calls,
    .get_addressed = get_async, .put_addressed = put_async};

#endif
