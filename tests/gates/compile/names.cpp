/* Types over CUDA's names, as Thrust makes them: cudaMalloc is gpupool's, and a template that takes
   it must be one type in both files of a program, of which this is the first and, with OTHER, the
   second; and in both passes of nvcc, or a launch finds no kernel. */
#define GPUPOOL_REPLACE_CUDA_MALLOC 1
#if !defined(OTHER)
#define GPUPOOL_IMPLEMENTATION
#endif
#include "gpupool.h"

template <cudaError_t (*Give)(void **, size_t), cudaError_t (*Take)(void *)> struct owner {
    void *block;
    explicit owner(size_t bytes) : block(nullptr) { Give(&block, bytes); }
    ~owner() { Take(block); }
};
template <cudaError_t (*Give)(void **, size_t, cudaStream_t),
          cudaError_t (*Take)(void *, cudaStream_t), cudaError_t (*Close)(cudaStream_t)>
struct async_owner {
    void *block;
    cudaStream_t stream;
    explicit async_owner(size_t bytes) : block(nullptr), stream(nullptr) {
        cudaStreamCreate(&stream);
        Give(&block, bytes, stream);
    }
    ~async_owner() {
        Take(block, stream);
        Close(stream);
    }
};
typedef owner<cudaMalloc, cudaFree> blocks;
typedef async_owner<cudaMallocAsync, cudaFreeAsync, cudaStreamDestroy> async_blocks;

bool other_has(const blocks &, const async_blocks &);

#if defined(OTHER)
bool other_has(const blocks &some, const async_blocks &others) {
    return some.block && others.block;
}
#else
static bool served(uint64_t bytes) { /* by the pool, which holds so much for it */
    gpupool_stats stats;
    return gpupool_get_stats(gpupool_get_default_arena(0), &stats) == GPUPOOL_OK &&
           stats.requested.now == bytes;
}

#if defined(__CUDACC__)
template <class T> __global__ void made_for(T *) {}
template <cudaError_t (*Take)(void *)> __global__ void freed_by() {}

void launch() {
    made_for<blocks><<<1, 1>>>(nullptr);
    made_for<async_blocks><<<1, 1>>>(nullptr);
    freed_by<cudaFree><<<1, 1>>>();
}
#endif

int main() {
    bool fine;
    {
        blocks first(1000);
        async_blocks second(2000);
        fine = served(3000) && other_has(first, second);
    }
    return fine && served(0) ? 0 : 1;
}
#endif
