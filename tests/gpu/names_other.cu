/* The second file: what it does with vectors that the first has made. */
#include "names.h"

#include <thrust/execution_policy.h>
#include <thrust/transform_reduce.h>

template <class Vector> static long sum_of(const Vector &vector) {
    return thrust::transform_reduce(thrust::cuda::par, vector.begin(), vector.end(), value_of(),
                                    0L, thrust::plus<long>());
}

long other_sum(const cuda_numbers &vector) { return sum_of(vector); }
long other_sum(const device_numbers &vector) { return sum_of(vector); }
long other_sum(const universal_numbers &vector) { return sum_of(vector); }

void other_resize(cuda_numbers &vector, size_t size) { vector.resize(size); }
void other_resize(universal_numbers &vector, size_t size) { vector.resize(size); }

/* Three kernels, each named after a function. -1: one of them could not be launched. */
int other_count(const async_owner<cudaFreeAsync> &owner) {
    int count = -1;
    cudaMemsetAsync(owner.memory, 0, sizeof count, owner.stream);
    count_by<cudaFree><<<1, 1, 0, owner.stream>>>(owner.memory);
    count_by_async<cudaFreeAsync><<<1, 1, 0, owner.stream>>>(owner.memory);
    count_by_stream<cudaStreamDestroy><<<1, 1, 0, owner.stream>>>(owner.memory);
    if (cudaGetLastError() != cudaSuccess) return -1;
    cudaMemcpyAsync(&count, owner.memory, sizeof count, cudaMemcpyDefault, owner.stream);
    return cudaStreamSynchronize(owner.stream) == cudaSuccess ? count : -1;
}
