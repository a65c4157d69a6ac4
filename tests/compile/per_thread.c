/* Compiled with CUDA_API_PER_THREAD_DEFAULT_STREAM: a stream of 0 is the thread's own, in every
   call that takes one. */
#define GPUPOOL_IMPLEMENTATION
#include "../../gpupool.h"

int main(void) {
    gpupool_arena *arena = gpupool_default_arena(0);
    gpupool_capture *scope = NULL;
    void *a = gpupool_alloc(arena, 1000, 0), *b = gpupool_zalloc(arena, 1000, cudaStreamPerThread);
    void *c = gpupool_alloc_aligned(arena, 1000, 4096, NULL), *d = NULL;
    int fine = a && b && c && gpupool_cudaMallocAsync(&d, 1000, 0) == cudaSuccess;
    fine = gpupool_record_use(arena, a, 0) == GPUPOOL_OK && fine;
    fine = gpupool_capture_begin(arena, 0, &scope) == GPUPOOL_OK && fine;
    fine = gpupool_capture_release(scope) == GPUPOOL_OK && fine;
    fine = gpupool_free(arena, a, 0) == GPUPOOL_OK && fine;
    fine = gpupool_free(arena, b, 0) == GPUPOOL_OK && fine;
    fine = gpupool_free(arena, c, cudaStreamLegacy) == GPUPOOL_OK && fine;
    fine = gpupool_cudaFreeAsync(d, 0) == cudaSuccess && fine;
    fine = gpupool_stream_retired(arena, 0) == GPUPOOL_OK && fine;
    return gpupool_arena_destroy(arena) == GPUPOOL_OK && fine ? 0 : 1;
}
