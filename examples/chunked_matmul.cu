/* How do I multiply matrices that do not fit on the device? 10,000 x 10,000 doubles, limit 512 MiB.

   The three matrices have 2.4 GB. gpupool_get_available says how large the panels can be.
   What to look at: the arena never reserves more than its limit, and the result equals, bit for
   bit, what cuBLAS computes from whole matrices on the device (the entries are small whole numbers,
   so no sum is ever rounded). `chunked_matmul 2000 64MiB` multiplies smaller matrices.
   Build: nvcc -I.. chunked_matmul.cu -lcublas */
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"

#include <chrono>
#include <cublas_v2.h>
#include <vector>

typedef std::vector<double> matrix; /* n x n, column after column */

static void die(const char *what, const char *why) {
    fprintf(stderr, "%s: %s\n", what, why);
    exit(EXIT_FAILURE);
}

static void cuda(cudaError_t error, const char *what) {
    if (error != cudaSuccess) die(what, cudaGetErrorString(error));
}

static void blas(cublasStatus_t status, const char *what) {
    if (status != CUBLAS_STATUS_SUCCESS) die(what, cublasGetStatusString(status));
}

static double now() {
    auto since = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration<double>(since).count();
}

struct job {
    gpupool_arena *arena;
    cublasHandle_t handle;
    cudaStream_t stream;
    size_t n;
};

static double *get(const job &j, size_t rows, size_t columns) {
    double *block = (double *)gpupool_alloc(j.arena, rows * columns * sizeof(double), j.stream);
    if (!block) die("alloc", gpupool_last_error());
    return block;
}

static void give(const job &j, double *block) {
    if (gpupool_free(j.arena, block, j.stream) != GPUPOOL_OK) die("free", gpupool_last_error());
}

/* C = A B on whole or partial matrices that are on the device. */
static void multiply(const job &j, const double *a, const double *b, double *c, size_t rows,
                     size_t columns) {
    const double one = 1, zero = 0;
    blas(cublasDgemm(j.handle, CUBLAS_OP_N, CUBLAS_OP_N, (int)rows, (int)columns, (int)j.n, &one, a,
                     (int)rows, b, (int)j.n, &zero, c, (int)rows), "cublasDgemm");
}

static size_t available_bytes(const job &j) {
    size_t bytes = 0;
    if (gpupool_get_available(j.arena, &bytes) != GPUPOOL_OK)
        die("gpupool_get_available", gpupool_last_error());
    return bytes;
}

/* The widest panel p such that p rows of A, p columns of B and p x p of C fit. */
static size_t panel_width(const job &j) {
    size_t available = available_bytes(j), p = 0, least = 3 * 512;
    while (p < j.n && (p + 1) * (2 * j.n + p + 1) * sizeof(double) + least <= available) p++;
    if (p == 0) die("limit", "too small for one row and one column");
    return p;
}

static void multiply_in_panels(const job &j, const matrix &a, const matrix &b, matrix &c) {
    size_t n = j.n, p = panel_width(j), word = sizeof(double);
    printf("  %.0f MiB available: panels of %zu rows and columns, %zu products\n",
           (double)available_bytes(j) / (1 << 20), p,
           ((n + p - 1) / p) * ((n + p - 1) / p));
    for (size_t i = 0; i < n; i += p) {
        size_t rows = n - i < p ? n - i : p;
        double *left = get(j, rows, n);
        cuda(cudaMemcpy2DAsync(left, rows * word, &a[i], n * word, rows * word, n,
                               cudaMemcpyHostToDevice, j.stream), "rows of A");
        for (size_t k = 0; k < n; k += p) {
            size_t columns = n - k < p ? n - k : p;
            double *right = get(j, n, columns), *out = get(j, rows, columns);
            cuda(cudaMemcpyAsync(right, &b[k * n], n * columns * word, cudaMemcpyHostToDevice,
                                 j.stream), "columns of B");
            multiply(j, left, right, out, rows, columns);
            cuda(cudaMemcpy2DAsync(&c[k * n + i], n * word, out, rows * word, rows * word, columns,
                                   cudaMemcpyDeviceToHost, j.stream), "a part of C");
            give(j, right); /* no need to wait: the stream's next panel comes after */
            give(j, out);
        }
        give(j, left);
    }
    cuda(cudaStreamSynchronize(j.stream), "synchronize");
}

/* The same from whole matrices, as if there were no limit. */
static void multiply_whole(const job &j, const matrix &a, const matrix &b, matrix &c) {
    size_t n = j.n, bytes = n * n * sizeof(double);
    double *left = get(j, n, n), *right = get(j, n, n), *out = get(j, n, n);
    cuda(cudaMemcpyAsync(left, a.data(), bytes, cudaMemcpyHostToDevice, j.stream), "A");
    cuda(cudaMemcpyAsync(right, b.data(), bytes, cudaMemcpyHostToDevice, j.stream), "B");
    multiply(j, left, right, out, n, n);
    cuda(cudaMemcpyAsync(c.data(), out, bytes, cudaMemcpyDeviceToHost, j.stream), "C");
    cuda(cudaStreamSynchronize(j.stream), "synchronize");
    give(j, left);
    give(j, right);
    give(j, out);
}

static void run(job &j, const char *name, const char *limit, const matrix &a, const matrix &b,
                matrix &c, void (*how)(const job &, const matrix &, const matrix &, matrix &)) {
    const size_t workspace_bytes = (size_t)32 << 20; /* cuBLAS's own, under the limit as well */
    gpupool_arena_config config = {};
    gpupool_stats stats;
    config.limit_text = limit;
    if (gpupool_arena_create(&j.arena, &config) != GPUPOOL_OK) die("arena", gpupool_last_error());
    void *workspace = get(j, 1, workspace_bytes / sizeof(double));
    blas(cublasSetWorkspace(j.handle, workspace, workspace_bytes), "workspace");
    double start = now();
    how(j, a, b, c);
    double seconds = now() - start;
    give(j, (double *)workspace);
    if (gpupool_get_stats(j.arena, &stats) != GPUPOOL_OK) die("stats", gpupool_last_error());
    printf("  %-22s %6.2f s, reserved at most %7.1f MiB\n", name, seconds,
           (double)stats.reserved.peak / (1 << 20));
    if (limit && stats.reserved.peak > stats.limit_bytes) die("limit", "it was passed");
    if (gpupool_arena_destroy(j.arena) != GPUPOOL_OK) die("destroy", gpupool_last_error());
}

int main(int argc, char **argv) {
    job j = {};
    j.n = argc > 1 ? strtoul(argv[1], NULL, 10) : 10000;
    const char *limit = argc > 2 ? argv[2] : "512MiB";
    if (j.n == 0 || j.n > 40000) die("size", "a number from 1 to 40000");
    matrix a(j.n * j.n), b(j.n * j.n), chunked(j.n * j.n), whole(j.n * j.n);
    for (size_t i = 0; i < a.size(); i++) {
        a[i] = (double)(i * 2654435761u % 17) - 8;
        b[i] = (double)(i * 2246822519u % 13) - 6;
    }
    cuda(cudaStreamCreate(&j.stream), "stream");
    blas(cublasCreate(&j.handle), "cuBLAS");
    blas(cublasSetStream(j.handle, j.stream), "cuBLAS");
    printf("%zu x %zu doubles, limit %s\n", j.n, j.n, limit);
    run(j, "in panels", limit, a, b, chunked, multiply_in_panels);
    run(j, "whole, without a limit", NULL, a, b, whole, multiply_whole);
    blas(cublasDestroy(j.handle), "cuBLAS");
    cuda(cudaStreamDestroy(j.stream), "stream");
    if (chunked != whole) die("result", "differs from cuBLAS on whole matrices");
    printf("  the same bit for bit\n");
    return EXIT_SUCCESS;
}
