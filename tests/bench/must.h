/* must.h: what a bench cannot go on without: a call that fails ends it. Name the bench in
   BENCH_NAME; include it after gpupool.h with its implementation. */
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

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double now(void) { /* seconds */
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

#endif
