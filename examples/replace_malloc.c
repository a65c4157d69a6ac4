/* What must an existing program change to run on gpupool?

   Two lines, here at the top: then cudaMalloc, cudaFree, cudaMallocAsync and cudaFreeAsync mean
   gpupool's, in the device's default arena. The source need not change at all: the compiler's
   options -DGPUPOOL_REPLACE_CUDA_MALLOC=1 -DGPUPOOL_IMPLEMENTATION -include gpupool.h do the same
   (without -DGPUPOOL_IMPLEMENTATION in the program's other files).
   Build: cc -I.. -I$CUDA_HOME/include replace_malloc.c -L$CUDA_HOME/lib64 -lcudart -lpthread
   Run: ./a.out, and GPUPOOL_SOURCE=bypass ./a.out, which hands each call on to CUDA.
   Prints the time of a frame. GPUPOOL_REPORT=report.txt has the arena's report appended there. */
#define GPUPOOL_REPLACE_CUDA_MALLOC 1
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"

/* ---- from here on a program that knows nothing of gpupool ---- */
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define LEVELS 6
#define FRAMES 200
#define SIZE 1024

static void check(cudaError_t error) {
    if (error == cudaSuccess) return;
    fprintf(stderr, "%s\n", cudaGetErrorString(error));
    exit(EXIT_FAILURE);
}

static double seconds(void) {
    struct timespec now;
    timespec_get(&now, TIME_UTC);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* A pyramid of images, each half as wide as the one before. Returns a byte of the smallest. */
static unsigned char process(int frame) {
    unsigned char *level[LEVELS], top = 0;
    size_t size = SIZE;
    for (int i = 0; i < LEVELS; i++, size /= 2) check(cudaMalloc((void **)&level[i], size * size));
    check(cudaMemset(level[0], frame % 256, SIZE * SIZE));
    size = SIZE / 2;
    for (int i = 1; i < LEVELS; i++, size /= 2)
        check(cudaMemcpyAsync(level[i], level[i - 1], size * size, cudaMemcpyDeviceToDevice, 0));
    check(cudaMemcpy(&top, level[LEVELS - 1], 1, cudaMemcpyDeviceToHost));
    for (int i = 0; i < LEVELS; i++) check(cudaFree(level[i]));
    return top;
}

int main(void) {
    process(0); /* warms up */
    double start = seconds();
    for (int frame = 1; frame < FRAMES; frame++)
        if (process(frame) != frame % 256) {
            fprintf(stderr, "frame %d is wrong\n", frame);
            return EXIT_FAILURE;
        }
    printf("%.1f us a frame of %d images\n", (seconds() - start) * 1e6 / (FRAMES - 1), LEVELS);
    return EXIT_SUCCESS;
}
