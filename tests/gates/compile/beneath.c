/* A program that does not know of gpupool, as C, C++ or CUDA: README.md's recipe puts it beneath.
   0: all was as CUDA promises; 2: there were no 64 MiB; 1: something was wrong. */
#include <cuda_runtime.h>

#define MIB ((size_t)1 << 20)

int main(void) {
    cudaStream_t stream;
    void *blocks[4], *large = NULL, *async = NULL;
    int i, fine = cudaStreamCreate(&stream) == cudaSuccess;
    for (i = 0; i < 4; i++) fine = cudaMalloc(&blocks[i], 1000) == cudaSuccess && fine;
    fine = cudaMallocAsync(&async, 1000, stream) == cudaSuccess && fine;
    fine = cudaMemsetAsync(async, 0, 1000, stream) == cudaSuccess && fine;
    fine = cudaFreeAsync(async, stream) == cudaSuccess && fine;
    for (i = 0; i < 4; i++) fine = cudaFree(blocks[i]) == cudaSuccess && fine;
    fine = cudaStreamDestroy(stream) == cudaSuccess && fine;
    if (cudaMalloc(&large, 64 * MIB) == cudaErrorMemoryAllocation)
        return fine && !large && cudaGetLastError() == cudaErrorMemoryAllocation ? 2 : 1;
    return fine && cudaFree(large) == cudaSuccess ? 0 : 1;
}
