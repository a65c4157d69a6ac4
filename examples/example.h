/* example.h: what the examples share. A call that fails ends the program, which says where and why.
   Include it after gpupool.h. Your program would hand errors on instead. */
#ifndef EXAMPLE_H
#define EXAMPLE_H

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define MIB ((size_t)1 << 20)

static inline void example_fail(const char *file, int line, const char *what, const char *why) {
    fprintf(stderr, "%s:%d: %s: %s\n", file, line, what, why);
    exit(EXIT_FAILURE);
}

static inline void *example_block(void *block, const char *file, int line, const char *what) {
    if (!block) example_fail(file, line, what, gpupool_last_error());
    return block;
}

#define FAIL(what, why) example_fail(__FILE__, __LINE__, what, why)

#define CUDA(call) \
    do { \
        cudaError_t example_error = (call); \
        if (example_error != cudaSuccess) FAIL(#call, cudaGetErrorString(example_error)); \
    } while (0)

#define POOL(call) \
    do { \
        if ((call) != GPUPOOL_OK) FAIL(#call, gpupool_last_error()); \
    } while (0)

/* For a call that returns a block: BLOCK(gpupool_alloc(arena, bytes, stream)). */
#define BLOCK(call) example_block(call, __FILE__, __LINE__, #call)

static inline double example_seconds(void) {
    struct timespec now;
    timespec_get(&now, TIME_UTC);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static inline double example_mib(uint64_t bytes) {
    return (double)bytes / (double)MIB;
}

#endif
