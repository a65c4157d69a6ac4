/* Kernels whose names hold CUDA's: in the pass for the host they must be called as in the pass for
   the device, or a launch finds no kernel. */
#include "names.h"

template <class T> __global__ void made_for(T *) {}

int main() {
    made_for<blocks><<<1, 1>>>(nullptr);
    made_for<async_blocks><<<1, 1>>>(nullptr);
    made_for<streams><<<1, 1>>>(nullptr);
    return 0;
}
