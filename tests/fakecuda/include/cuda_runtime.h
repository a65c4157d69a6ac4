/* The CUDA runtime for host code; in C++ with the typed shapes of the allocation calls. */
#ifndef FAKECUDA_CUDA_RUNTIME_H
#define FAKECUDA_CUDA_RUNTIME_H

#include "cuda_runtime_api.h"

#if defined(__cplusplus)
template <class T> static inline cudaError_t cudaMalloc(T **devPtr, size_t size) {
    return ::cudaMalloc(reinterpret_cast<void **>(devPtr), size);
}
template <class T> static inline cudaError_t cudaHostAlloc(T **ptr, size_t size,
                                                           unsigned int flags) {
    return ::cudaHostAlloc(reinterpret_cast<void **>(ptr), size, flags);
}
template <class T> static inline cudaError_t cudaMallocManaged(
    T **devPtr, size_t size, unsigned int flags = cudaMemAttachGlobal) {
    return ::cudaMallocManaged(reinterpret_cast<void **>(devPtr), size, flags);
}
#endif
#endif
