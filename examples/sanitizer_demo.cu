/* How does compute-sanitizer find a write past the end of a pool's block?

   The kernel writes one number too many, behind the block, but inside memory that CUDA gave to the
   pool, so plain memcheck finds nothing wrong. With GPUPOOL_NVTX=1 gpupool tells the tool of each
   block. With GPUPOOL_SITES=1 a block's name is the file and line that asked for the block, in the
   tool's output and in the pool's report. (Where two blocks lie side by side without a gap, the
   tool allows a write into the next block.)
   What to look at: the second run reports the write, with the kernel's line, and the block's
   address, size and name.
   Build and run:
       nvcc -I.. -lineinfo sanitizer_demo.cu -o plain
       nvcc -I.. -lineinfo -DGPUPOOL_NVTX=1 -DGPUPOOL_SITES=1 sanitizer_demo.cu -o annotated
       compute-sanitizer --tool memcheck ./plain
       compute-sanitizer --tool memcheck --nvtx yes ./annotated */
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"

#include <stdlib.h>

static const int COUNT = 1000; /* numbers in a block: less than whole units, so there is a gap */

static void die(const char *what, const char *why) {
    fprintf(stderr, "%s: %s\n", what, why);
    exit(EXIT_FAILURE);
}

static void cuda(cudaError_t error, const char *what) {
    if (error != cudaSuccess) die(what, cudaGetErrorString(error));
}

__global__ void fill(float *x, int count, float value) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i <= count) x[i] = value; /* the mistake: < was meant */
}

int main() {
    gpupool_arena *arena;
    gpupool_arena_config config = {};
    float *block, last = 0;
    config.source = GPUPOOL_SOURCE_DEVICE; /* the tool cannot see into re-mapped memory */
    if (gpupool_arena_create(&arena, &config) != GPUPOOL_OK) die("arena", gpupool_last_error());
    block = (float *)gpupool_alloc(arena, COUNT * sizeof(float), 0);
    if (!block) die("alloc", gpupool_last_error());
    cuda(cudaMemset(block, 0, COUNT * sizeof(float)), "memset");

    fill<<<COUNT / 256 + 1, 256>>>(block, COUNT, 1.0f);
    cuda(cudaGetLastError(), "kernel");
    cudaError_t error =
        cudaMemcpy(&last, block + COUNT - 1, sizeof last, cudaMemcpyDeviceToHost);
    if (error != cudaSuccess) { /* and CUDA is of no more use in this process */
        printf("the tool stopped it: %s\nthe block is at %p; ", cudaGetErrorString(error),
               (void *)block);
        return gpupool_report(arena, stdout) == GPUPOOL_OK ? EXIT_SUCCESS : EXIT_FAILURE;
    }
    printf("%d numbers written, and one behind them; the last is %g\n", COUNT, (double)last);
    if (gpupool_free(arena, block, 0) != GPUPOOL_OK) die("free", gpupool_last_error());
    if (gpupool_arena_destroy(arena) != GPUPOOL_OK) die("destroy", gpupool_last_error());
    return EXIT_SUCCESS;
}
