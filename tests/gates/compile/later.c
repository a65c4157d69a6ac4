/* The implementation comes after an include that has replaced CUDA's names: its own calls go to
   CUDA, those of the rest of the file to gpupool. */
#define GPUPOOL_REPLACE_CUDA_MALLOC 1
#include "gpupool.h"

static cudaError_t (*const early)(void *) = cudaFree;

#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"

int main(void) {
    void *block = NULL, *late = NULL;
    int fine = early == cudaFree && cudaMalloc(&block, 100) == cudaSuccess;
    fine = cudaMallocAsync(&late, 100, 0) == cudaSuccess && fine;
    fine = gpupool_free(gpupool_get_default_arena(0), late, 0) == GPUPOOL_OK && fine;
    fine = early(block) == cudaSuccess && fine;
    return !(fine && cudaDeviceReset() == cudaSuccess);
}
