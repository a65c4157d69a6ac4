/* cpp.h: what the files of the C++ tests share. A file may be built with and without exceptions,
   and with per-thread default streams. */
#ifndef CPP_H
#define CPP_H

#include "gpupool.h"

#include "tests/fakecuda/fakecuda.h"

#include <cstring>
#include <initializer_list>

static const size_t MIB = size_t(1) << 20, TOO_MUCH = size_t(1) << 45;

struct checks { /* what did not hold is printed */
    int bad = 0;
    void check(bool truth, const char *what, const char *file, int line) {
        if (truth) return;
        bad++;
        fprintf(stderr, "%s:%d: %s does not hold (%s)\n", file, line, what, gpupool_last_error());
    }
};
#define CHECK(truth) outcome.check((truth), #truth, __FILE__, __LINE__)

static inline gpupool_arena_config from(gpupool_source source, size_t limit = 0) {
    gpupool_arena_config config = gpupool_arena_config();
    config.source = source;
    config.limit_bytes = limit;
    return config;
}

static inline uint64_t live(gpupool_arena *arena) { /* blocks */
    gpupool_stats stats;
    return gpupool_get_stats(arena, &stats) == GPUPOOL_OK ? stats.blocks : 99;
}

/* Whether a call whose result is a pointer fails as this file's calls fail. */
template <class Call> static bool fails(Call call) {
#ifdef __cpp_exceptions
    try {
        call();
    } catch (const std::bad_alloc &error) {
        return *error.what() && !strcmp(error.what(), gpupool_last_error());
    }
    return false;
#else
    return !call();
#endif
}

/* other.cpp's: how many checks did not hold */
int other_runs(gpupool_arena *of_main);

#endif
