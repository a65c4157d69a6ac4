/* names.h: Thrust's vectors over CUDA's names, which are gpupool's: what two files share. */
#ifndef GPU_NAMES_H
#define GPU_NAMES_H

#define GPUPOOL_REPLACE_CUDA_MALLOC 1
#include "gpupool.h"

#include <thrust/device_vector.h>
#include <thrust/system/cuda/vector.h>
#include <thrust/universal_vector.h>

struct number { /* Thrust runs its constructors in kernels that are named after the allocator */
    int value, check;
    __host__ __device__ number() : value(7), check(~7) {}
    __host__ __device__ explicit number(int v) : value(v), check(~v) {}
    __host__ __device__ number(const number &n) : value(n.value), check(n.check) {}
    __host__ __device__ number &operator=(const number &n) {
        value = n.value;
        check = n.check;
        return *this;
    }
    __host__ __device__ ~number() { value = check = 0; }
};

struct value_of { /* 0 where what is there was not made by a constructor */
    __host__ __device__ long operator()(const number &n) const {
        return n.check == ~n.value ? n.value : 0;
    }
};

typedef thrust::cuda::vector<number> cuda_numbers;
typedef thrust::device_vector<number> device_numbers;
typedef thrust::universal_vector<number> universal_numbers;

/* A kernel named after a function of CUDA's name. */
template <cudaError_t (*Free)(void *)> __global__ void count_by(int *count) { ++*count; }
template <cudaError_t (*Free)(void *, cudaStream_t)> __global__ void count_by_async(int *count) {
    ++*count;
}
template <cudaError_t (*Destroy)(cudaStream_t)> __global__ void count_by_stream(int *count) {
    ++*count;
}

template <cudaError_t (*Free)(void *, cudaStream_t)> struct async_owner {
    int *memory;
    cudaStream_t stream;
    ~async_owner() { Free(memory, stream); }
};

/* names_other.cu's */
long other_sum(const cuda_numbers &);
long other_sum(const device_numbers &);
long other_sum(const universal_numbers &);
void other_resize(cuda_numbers &, size_t);
void other_resize(universal_numbers &, size_t);
int other_count(const async_owner<cudaFreeAsync> &);

#endif
