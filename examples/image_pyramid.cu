/* What does an existing CUDA program gain when gpupool replaces cudaMalloc?

   The program was written without gpupool. For each frame it allocates a pyramid of images with
   cudaMalloc, and frees it with cudaFree. The include below turns these calls into gpupool's; with
   -DPLAIN=1 the include is left out.
   What to look at: the frames a second of both builds. The checksum is the same.
   Build: nvcc -I.. image_pyramid.cu -o pooled && nvcc -DPLAIN=1 image_pyramid.cu -o plain */
#if !defined(PLAIN)
#define GPUPOOL_REPLACE_CUDA_MALLOC 1
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#endif

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>

#define checkCudaErrors(call)                                                                \
    do {                                                                                     \
        cudaError_t status = (call);                                                         \
        if (status != cudaSuccess) {                                                         \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call,                    \
                    cudaGetErrorString(status));                                             \
            exit(EXIT_FAILURE);                                                              \
        }                                                                                    \
    } while (0)

const int kSize = 1024, kLevels = 6, kFrames = 500;

__global__ void drawFrame(float *image, int size, int frame) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x < size && y < size) image[y * size + x] = (float)((x / 7 + y / 5 + frame) % 64);
}

__global__ void halve(const float *from, float *to, int size) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= size || y >= size) return;
    const float *corner = from + 2 * y * (2 * size) + 2 * x;
    to[y * size + x] = 0.25f * (corner[0] + corner[1] + corner[2 * size] + corner[2 * size + 1]);
}

__global__ void addUp(const float *image, int count, float *sum) {
    float mine = 0;
    for (int i = threadIdx.x; i < count; i += blockDim.x) mine += image[i];
    __shared__ float part[256];
    part[threadIdx.x] = mine;
    __syncthreads();
    for (int half = 128; half > 0; half /= 2) {
        if ((int)threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) *sum = part[0] / (float)count;
}

static double processFrame(int frame) {
    float *d_level[kLevels], *d_sum, h_sum = 0;
    dim3 block(16, 16);
    for (int level = 0, size = kSize; level < kLevels; level++, size /= 2)
        checkCudaErrors(cudaMalloc(&d_level[level], (size_t)size * size * sizeof(float)));
    checkCudaErrors(cudaMalloc((void **)&d_sum, sizeof(float)));

    drawFrame<<<dim3(kSize / 16, kSize / 16), block>>>(d_level[0], kSize, frame);
    for (int level = 1, size = kSize / 2; level < kLevels; level++, size /= 2)
        halve<<<dim3((size + 15) / 16, (size + 15) / 16), block>>>(d_level[level - 1],
                                                                   d_level[level], size);
    int top = kSize >> (kLevels - 1);
    addUp<<<1, 256>>>(d_level[kLevels - 1], top * top, d_sum);
    checkCudaErrors(cudaGetLastError());
    checkCudaErrors(cudaMemcpy(&h_sum, d_sum, sizeof(float), cudaMemcpyDeviceToHost));

    for (float *image : d_level) checkCudaErrors(cudaFree(image));
    checkCudaErrors(cudaFree(d_sum));
    return h_sum;
}

int main() {
    double checksum = processFrame(0); /* warms up */
    auto start = std::chrono::steady_clock::now();
    for (int frame = 1; frame < kFrames; frame++) checksum += processFrame(frame);
    std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    printf("%d frames of %d x %d, %d levels: %.0f frames/s, checksum %.6f\n", kFrames, kSize, kSize,
           kLevels, (kFrames - 1) / elapsed.count(), checksum);
    return EXIT_SUCCESS;
}
