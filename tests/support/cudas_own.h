/* CUDA's own functions where gpupool's macros have their names: to be included before gpupool.h. */
#ifndef CUDAS_OWN_H
#define CUDAS_OWN_H

#include <cuda_runtime_api.h>

static inline cudaError_t own_stream_destroy(cudaStream_t stream) {
    return cudaStreamDestroy(stream);
}

static inline cudaError_t own_malloc(void **block, size_t bytes) {
    return cudaMalloc(block, bytes);
}

static inline cudaError_t own_malloc_async(void **block, size_t bytes, cudaStream_t stream) {
    return cudaMallocAsync(block, bytes, stream);
}

#endif
