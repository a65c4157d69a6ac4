/* cuBLAS on operands that lie over the seams of one stitched block gives, bit by bit, what it gives
   on memory of cudaMalloc. */
#include "kit.h"

#include <cublas_v2.h>

static const int N = 2048; /* each matrix is twice a chunk */
static const size_t MATRIX = (size_t)N * N * sizeof(float);

static void multiply(cublasHandle_t handle, const float *a, const float *b, float *c) {
    const float one = 1, none = 0;
    CHECK(cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_T, N, N, N, &one, a, N, b, N, &none, c, N) ==
          CUBLAS_STATUS_SUCCESS);
}

static void products_are_the_same() {
    gpupool_arena_config config = {};
    kit_arena arena = kit_open(config, 16);
    float *plain = nullptr, *stitched;
    std::vector<float> numbers(2 * (size_t)N * N), expected((size_t)N * N), found((size_t)N * N);
    cublasHandle_t handle = nullptr;
    uint32_t state = 1;
    for (float &number : numbers) {
        state = state * 1664525u + 1013904223u;
        number = (float)(int32_t)state / 2147483648.0f;
    }
    stitched = (float *)kit_stitched(arena.pool, 4 * MATRIX, arena.stream);
    stitched += 1024; /* so that no matrix begins or ends where a chunk does */
    CUDA(cudaMalloc((void **)&plain, 3 * MATRIX));
    CUDA(cudaMemcpy(plain, numbers.data(), 2 * MATRIX, cudaMemcpyHostToDevice));
    CUDA(cudaMemcpy(stitched, numbers.data(), 2 * MATRIX, cudaMemcpyHostToDevice));
    CHECK(cublasCreate(&handle) == CUBLAS_STATUS_SUCCESS);
    CHECK(cublasSetStream(handle, arena.stream) == CUBLAS_STATUS_SUCCESS);
    multiply(handle, plain, plain + (size_t)N * N, plain + 2 * (size_t)N * N);
    CUDA(cudaMemcpyAsync(expected.data(), plain + 2 * (size_t)N * N, MATRIX, cudaMemcpyDeviceToHost,
                         arena.stream));
    for (int round = 0; round < 20; round++) {
        float *product = stitched + 2 * (size_t)N * N;
        CUDA(cudaMemsetAsync(product, 0, MATRIX, arena.stream));
        multiply(handle, stitched, stitched + (size_t)N * N, product);
        CUDA(cudaMemcpyAsync(found.data(), product, MATRIX, cudaMemcpyDeviceToHost, arena.stream));
        CUDA(cudaStreamSynchronize(arena.stream));
        CHECK(memcmp(found.data(), expected.data(), MATRIX) == 0);
    }
    CHECK(expected[0] != 0 && expected[0] != expected[1]);
    CHECK(cublasDestroy(handle) == CUBLAS_STATUS_SUCCESS);
    CUDA(cudaFree(plain));
    POOL(gpupool_free(arena.pool, stitched - 1024, arena.stream));
    kit_close(arena);
}

int main() {
    RUN(products_are_the_same);
    return kit_end();
}
