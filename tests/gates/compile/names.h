/* names.h: types over CUDA's names that two files of a C++ program share. cudaMalloc is gpupool's
   there, and a template that takes it must be one type in every file and in both passes of nvcc. */
#ifndef NAMES_H
#define NAMES_H

#define GPUPOOL_REPLACE_CUDA_MALLOC 1
#include "gpupool.h"

template <cudaError_t (*Give)(void **, size_t), cudaError_t (*Take)(void *)>
struct resource { /* as Thrust's is made */
    void *block;
    explicit resource(size_t bytes) : block(nullptr) { Give(&block, bytes); }
    ~resource() { Take(block); }
    resource(const resource &) = delete;
    resource &operator=(const resource &) = delete;
};
typedef resource<cudaMalloc, cudaFree> blocks;

template <cudaError_t (*Give)(void **, size_t, cudaStream_t),
          cudaError_t (*Take)(void *, cudaStream_t)>
struct async_resource {
    void *block;
    explicit async_resource(size_t bytes) : block(nullptr) { Give(&block, bytes, nullptr); }
    ~async_resource() { Take(block, nullptr); }
    async_resource(const async_resource &) = delete;
    async_resource &operator=(const async_resource &) = delete;
};
typedef async_resource<cudaMallocAsync, cudaFreeAsync> async_blocks;

template <cudaError_t (*Close)(cudaStream_t)> struct stream_owner {
    cudaStream_t stream;
    stream_owner() : stream(nullptr) { cudaStreamCreate(&stream); }
    ~stream_owner() { Close(stream); }
    stream_owner(const stream_owner &) = delete;
    stream_owner &operator=(const stream_owner &) = delete;
};
typedef stream_owner<cudaStreamDestroy> streams;

typedef cudaError_t (*async_take)(void *, cudaStream_t);

/* names_other.cpp's */
bool other_has(const blocks &, const streams &);
bool other_has_async(const async_blocks &);
async_take other_async_take();

#endif
