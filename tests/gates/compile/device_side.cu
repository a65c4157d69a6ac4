/* Kernels that call CUDA's names themselves, as -rdc=true allows, beside hosts that call gpupool's:
   compiled and linked alone, since the simulation has no kernels. */
#define GPUPOOL_REPLACE_CUDA_MALLOC 1
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"

__global__ void parent() {
    cudaStream_t stream;
    void *block;
    float *floats;
    if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess)
        cudaStreamDestroy(stream);
    if (cudaMalloc(&block, 100) == cudaSuccess) cudaFree(block);
    if (cudaMalloc(&floats, 100) == cudaSuccess) cudaFree(floats);
}

int main() {
    cudaStream_t stream;
    float *block;
    if (cudaStreamCreate(&stream) != cudaSuccess) return 1;
    if (cudaMalloc(&block, 100) != cudaSuccess) return 1;
    parent<<<1, 1, 0, stream>>>();
    return cudaStreamDestroy(stream) != cudaSuccess || cudaFree(block) != cudaSuccess;
}
