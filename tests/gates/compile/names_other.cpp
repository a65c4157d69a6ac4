/* The second file: functions over the same types, and every name, called. */
#include "names.h"

bool other_has(const blocks &some, const streams &one) { return some.block && one.stream; }
bool other_has_async(const async_blocks &some) { return some.block != nullptr; }
async_take other_async_take() { return cudaFreeAsync; }

bool other_typed() {
    float *floats = nullptr;
    const double *doubles = nullptr;
    void *plain = nullptr;
    cudaStream_t stream = nullptr;
    bool fine = cudaStreamCreate(&stream) == cudaSuccess;
    fine = cudaMalloc(&floats, 4) == cudaSuccess && fine;
    fine = cudaMallocAsync(&doubles, 8, stream) == cudaSuccess && fine;
    fine = cudaMalloc(&plain, 16) == cudaSuccess && fine;
    fine = cudaFree(floats) == cudaSuccess && fine;
    fine = cudaFreeAsync(const_cast<double *>(doubles), stream) == cudaSuccess && fine;
    fine = cudaFree(plain) == cudaSuccess && fine;
    fine = cudaMallocAsync(&plain, 16, nullptr) == cudaSuccess && fine;
    fine = cudaFreeAsync(plain, nullptr) == cudaSuccess && fine;
    return cudaStreamDestroy(stream) == cudaSuccess && fine;
}
