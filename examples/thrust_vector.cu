/* Does Thrust have to call cudaMalloc for every vector and every sort?

   By default each vector, and each sort's temporary storage, is a cudaMalloc and a cudaFree, which
   wait for the device. With gpupool::allocator they come from an arena, without a wait. With
   par_nosync the host runs ahead of the device, too.
   Build: nvcc -I.. thrust_vector.cu
   Prints the time of a round in three ways; and what() of a vector that is too large: the reason,
   and what would help. */
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "example.h"

#include <thrust/device_vector.h>
#include <thrust/functional.h>
#include <thrust/reduce.h>
#include <thrust/sequence.h>
#include <thrust/sort.h>
#include <thrust/system/cuda/execution_policy.h>

static const int COUNT = 1 << 18, ROUNDS = 500;

typedef gpupool::allocator<int, gpupool::resource, thrust::device_ptr> ints;
typedef thrust::device_vector<int, ints> numbers;

template <class Vector, class Policy> static void once(Vector &&vector, const Policy &policy) {
    thrust::sequence(policy, vector.begin(), vector.end());
    thrust::sort(policy, vector.begin(), vector.end(), thrust::greater<int>());
    if (thrust::reduce(policy, vector.begin(), vector.begin() + 2) != 2 * COUNT - 3)
        FAIL("sort", "not sorted");
}

template <class Round> static void timed(const char *way, const Round &round) {
    round(); /* the first one loads kernels, and reserves memory */
    CUDA(cudaDeviceSynchronize());
    double start = example_seconds();
    for (int i = 0; i < ROUNDS; i++) round();
    CUDA(cudaDeviceSynchronize());
    printf("  %-32s %8.1f us a round\n", way, (example_seconds() - start) * 1e6 / ROUNDS);
}

int main() {
    gpupool_arena_config config = {};
    config.limit_bytes = 1024 * MIB;
    gpupool::arena arena(config);            /* destroyed at the end of main */
    gpupool::allocator<char> scratch(arena); /* of the default stream, as Thrust's vectors are */

    timed("Thrust as it comes", [] { once(thrust::device_vector<int>(COUNT), thrust::device); });
    timed("vector and storage from an arena",
          [&] { once(numbers(COUNT, ints(arena)), thrust::cuda::par(scratch)); });
    timed("the same, and par_nosync",
          [&] { once(numbers(COUNT, ints(arena)), thrust::cuda::par_nosync(scratch)); });
    try {
        numbers large(512 * MIB, ints(arena));
        FAIL("a vector of 2 GiB", "fits under a limit of 1 GiB");
    } catch (const gpupool::bad_alloc &error) {
        printf("\n%s\n", error.what());
    }
    return EXIT_SUCCESS;
}
