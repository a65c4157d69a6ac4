/* Does Thrust have to call cudaMalloc for every vector and every sort?

   A loop of vectors and sorts runs three times. By default each vector, and each sort's temporary
   storage, is a cudaMalloc and a cudaFree, which wait for the device. With gpupool::allocator they
   come from an arena, without a wait. With par_nosync too, the host runs ahead of the device.
   What to look at: the time of a round, three ways; and at the end what() of a vector that is too
   large, which says why and what would help.
   Build: nvcc -I.. thrust_vector.cu */
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"

#include <thrust/device_vector.h>
#include <thrust/functional.h>
#include <thrust/reduce.h>
#include <thrust/sequence.h>
#include <thrust/sort.h>
#include <thrust/system/cuda/execution_policy.h>

#include <chrono>
#include <cstdlib>

static const int COUNT = 1 << 18, ROUNDS = 500;

static void die(const char *what) {
    fprintf(stderr, "%s\n", what);
    exit(EXIT_FAILURE);
}

template <class Vector, class Policy> static void once(Vector &&vector, const Policy &policy) {
    thrust::sequence(policy, vector.begin(), vector.end());
    thrust::sort(policy, vector.begin(), vector.end(), thrust::greater<int>());
    if (thrust::reduce(policy, vector.begin(), vector.begin() + 2) != 2 * COUNT - 3)
        die("not sorted");
}

template <class Round> static void timed(const char *way, const Round &round) {
    round(); /* the first one loads kernels, and reserves memory */
    auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < ROUNDS; i++) round();
    if (cudaDeviceSynchronize() != cudaSuccess) die("the device failed");
    std::chrono::duration<double, std::micro> spent = std::chrono::steady_clock::now() - start;
    printf("  %-40s %8.1f us a round\n", way, spent.count() / ROUNDS);
}

int main() {
    typedef gpupool::allocator<int, thrust::device_ptr> ints;
    gpupool_arena_config config = {};
    config.limit_text = "1GiB";
    gpupool::arena arena(config);
    gpupool::allocator<char> memory(arena); /* of the default stream, as Thrust's vectors are */

    timed("Thrust as it comes", [] { once(thrust::device_vector<int>(COUNT), thrust::device); });
    timed("temporary storage from an arena", [&] {
        once(thrust::device_vector<int>(COUNT), thrust::cuda::par(memory));
    });
    timed("the vector from it, too", [&] {
        once(thrust::device_vector<int, ints>(COUNT, memory), thrust::cuda::par(memory));
    });
    timed("the same, and par_nosync", [&] {
        once(thrust::device_vector<int, ints>(COUNT, memory), thrust::cuda::par_nosync(memory));
    });
    try {
        thrust::device_vector<int, ints> large((size_t)1 << 29, memory);
    } catch (const std::bad_alloc &error) {
        printf("\n%s\n\n", error.what());
    }
    return gpupool_report(arena.get(), stdout) != GPUPOOL_OK;
}
