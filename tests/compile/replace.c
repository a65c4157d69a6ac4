/* A program whose calls of cudaMalloc are gpupool's: as C, and as C++ with typed pointers. */
#define GPUPOOL_REPLACE_CUDA_MALLOC 1
#define GPUPOOL_IMPLEMENTATION
#include "../../gpupool.h"

#include <cuda_runtime.h> /* after it, as other headers of the program might */

#if defined(__cplusplus)
#define PLACE(pointer) &(pointer)
struct own_pool { size_t bytes; }; /* in place of CUDA's, which the simulation has not */
static cudaError_t cudaMallocFromPoolAsync(void **, size_t bytes, own_pool *pool, cudaStream_t) {
    pool->bytes += bytes;
    return cudaSuccess;
}
#else
#define PLACE(pointer) (void **)&(pointer)
#endif

static int served(uint64_t bytes) { /* by the pool, which holds so much for it */
    gpupool_stats stats;
    return gpupool_get_stats(gpupool_default_arena(0), &stats) == GPUPOOL_OK &&
           stats.requested.now == bytes;
}

int main(void) {
    float *floats = NULL;
    double *doubles = NULL;
    int fine = cudaMalloc(PLACE(floats), 1000 * sizeof(float)) == cudaSuccess;
    fine = cudaMallocAsync(PLACE(doubles), 8, 0) == cudaSuccess && fine;
    fine = served(4008) && fine;
    fine = cudaFree(floats) == cudaSuccess && cudaFreeAsync(doubles, 0) == cudaSuccess && fine;
#if defined(__cplusplus)
    fine = cudaMalloc<float>(&floats, 4096) == cudaSuccess && fine; /* CUDA's own template */
    fine = cudaFree(floats) == cudaSuccess && fine;
    own_pool pool = {0};
    fine = cudaMallocAsync(&floats, 8, &pool, 0) == cudaSuccess && pool.bytes == 8 && fine;
#endif
    return fine && served(0) ? 0 : 1;
}
