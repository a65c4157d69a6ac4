/* must.h: what a bench cannot go on without: a call that fails ends it. Include it after gpupool.h
   with its implementation, and name the bench in BENCH_NAME. */
#ifndef MUST_H
#define MUST_H

static void stop(const char *what, const char *why) {
    fprintf(stderr, "bench " BENCH_NAME ": %s: %s\n", what, why);
    exit(1);
}

static void cuda(const char *what, cudaError_t error) {
    if (error != cudaSuccess) stop(what, cudaGetErrorString(error));
}

static void ours(const char *what, gpupool_result result) {
    if (result != GPUPOOL_OK) stop(what, gpupool_last_error());
}

static double now(void) { return (double)gpi_host_now_ns() * 1e-9; } /* seconds */

#endif
