/* Kernels whose names hold CUDA's: in the pass for the host they must be called as in the pass for
   the device, or a launch finds no kernel. */
#include "names.h"

template <class T> __global__ void made_for(T *) {}
template <cudaError_t (*Take)(void *)> __global__ void freed_by() {}
template <async_take Take> __global__ void freed_async_by() {}
template <cudaError_t (*Close)(cudaStream_t)> __global__ void closed_by() {}

int main() {
    freed_by<cudaFree><<<1, 1>>>();
    freed_async_by<cudaFreeAsync><<<1, 1>>>();
    closed_by<cudaStreamDestroy><<<1, 1>>>();
    made_for<blocks><<<1, 1>>>(nullptr);
    made_for<async_blocks><<<1, 1>>>(nullptr);
    made_for<streams><<<1, 1>>>(nullptr);
    return 0;
}
