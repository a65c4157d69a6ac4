/* cpp.h: what the two files of a C++ program over namespace gpupool share. They are built with and
   without exceptions, per-thread default streams and GPUPOOL_STATIC, and mixed. */
#ifndef CPP_H
#define CPP_H

#include "gpupool.h"

#if defined(__cpp_exceptions)
#define CPP_THROWS 1
#else
#define CPP_THROWS 0
#endif

struct checks { /* what did not hold is printed */
    int bad;
    checks() : bad(0) {}
    void check(bool truth, const char *what, const char *file, int line) {
        if (truth) return;
        bad++;
        fprintf(stderr, "%s:%d: %s does not hold (%s)\n", file, line, what, gpupool_last_error());
    }
};
#define CHECK(truth) outcome.check((truth), #truth, __FILE__, __LINE__)

static inline uint64_t cpp_live(gpupool_arena *arena) { /* blocks */
    gpupool_stats stats;
    return gpupool_get_stats(arena, &stats) == GPUPOOL_OK ? stats.blocks.now : 99;
}

/* The stream that a block of this file is on when it is given none. */
static inline bool cpp_own_stream(gpupool_arena *arena) {
    gpupool::block block(arena, 1000);
    gpupool_block seen;
#if defined(CUDA_API_PER_THREAD_DEFAULT_STREAM)
    cudaStream_t expected = cudaStreamPerThread;
#else
    cudaStream_t expected = cudaStreamLegacy;
#endif
    return gpupool_get_block(arena, block.data(), &seen) == GPUPOOL_OK && seen.stream == expected;
}

/* cpp_other.cpp's: what did not hold */
int other_runs(gpupool_arena *main_has, gpupool_arena *default_of_main);

#endif
