/* A program whose cudaMalloc is gpupool's: as C, and as C++ with typed pointers and deleters. The
   implementation comes after an include that replaces CUDA's names: its own calls go to CUDA. */
#define GPUPOOL_REPLACE_CUDA_MALLOC 1
#include "gpupool.h"

#include <cuda_runtime.h> /* after it, as other headers of the program might */

#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"

#if defined(__cplusplus)
#include <memory>
#define PLACE(pointer) &(pointer)
#else
#define PLACE(pointer) (void **)&(pointer)
#endif

#if defined(__cplusplus) && !defined(__CUDACC__) /* whose pass over device code has CUDA's names */
struct own_pool { size_t bytes; }; /* in place of CUDA's, which the simulation has not */
static cudaError_t cudaMallocFromPoolAsync(void **, size_t bytes, own_pool *pool, cudaStream_t) {
    pool->bytes += bytes;
    return cudaSuccess;
}
static int from_pool(void) {
    float *floats = NULL;
    own_pool pool = {0};
    return cudaMallocAsync(&floats, 8, &pool, 0) == cudaSuccess && pool.bytes == 8;
}
#else
static int from_pool(void) { return 1; }
#endif

static int served(uint64_t bytes) { /* by the pool, which holds so much for it */
    gpupool_stats stats;
    return gpupool_get_stats(gpupool_get_default_arena(0), &stats) == GPUPOOL_OK &&
           stats.requested.now == bytes;
}

#if defined(__cplusplus)
template <class A, class B>
static A *either(A *pointer, B *) { return pointer; }

/* CUDA's overloads are gpupool's too, and a comma in a template's arguments parts no macro's. */
static int as_cxx(void) {
    float *floats = NULL;
    int fine = cudaMalloc<float>(&floats, 4096) == cudaSuccess && served(4096);
    fine = cudaFree(either<float, int>(floats, NULL)) == cudaSuccess && served(0) && fine;
    fine = cudaMallocAsync<float>(&floats, 8, 0) == cudaSuccess && served(8) && fine;
    fine = cudaFreeAsync(either<float, int>(floats, NULL), 0) == cudaSuccess && served(0) && fine;
    fine = cudaMalloc(&floats, 512) == cudaSuccess && fine;
    {
        std::unique_ptr<float, decltype(&cudaFree)> owner(floats, cudaFree);
        fine = served(512) && fine;
    }
    return served(0) && fine;
}
#endif

int main(void) {
    float *floats = NULL;
    double *doubles = NULL;
    cudaError_t (*give)(void **, size_t) = cudaMalloc;
    cudaError_t (*give_async)(void **, size_t, cudaStream_t) = cudaMallocAsync;
    cudaError_t (*take)(void *) = cudaFree;
    cudaError_t (*take_async)(void *, cudaStream_t) = cudaFreeAsync;
    int fine = cudaMalloc(PLACE(floats), 1000 * sizeof(float)) == cudaSuccess;
    fine = cudaMallocAsync(PLACE(doubles), 8, 0) == cudaSuccess && fine;
    fine = served(4008) && fine;
    fine = take(floats) == cudaSuccess && take_async(doubles, 0) == cudaSuccess && fine;
    fine = give((void **)&floats, 16) == cudaSuccess && served(16) && fine;
    fine = give_async((void **)&doubles, 8, 0) == cudaSuccess && served(24) && fine;
    fine = cudaFree(floats) == cudaSuccess && cudaFreeAsync(doubles, 0) == cudaSuccess && fine;
#if defined(__cplusplus)
    fine = as_cxx() && fine;
#endif
    return fine && from_pool() && served(0) ? 0 : 1;
}
