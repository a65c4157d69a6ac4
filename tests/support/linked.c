/* linked.c: the implementation as the tests of tests/api link it, one object for each set of
   macros. Its host memory counts itself and fails on demand (fail_malloc.h), fakecuda's race oracle
   sees what it copies (ring_watch.h), and a test can stand between it and the files that it reads.
*/
#define LINKED_LIBRARY 1
#if GPUPOOL_NEXT /* tests/next/gpupool.h */
#include "fail_malloc.h"
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#else
#define _GNU_SOURCE
#include <unistd.h>

extern ssize_t (*linked_pread)(int file, void *to, size_t bytes, off_t at);
ssize_t (*linked_pread)(int file, void *to, size_t bytes, off_t at) = pread;
#define pread(file, to, bytes, at) linked_pread(file, to, bytes, at)

#include "fail_malloc.h"
#include "ring_watch.h"
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "linked.h"

uint64_t linked_now_ns(void) {
    return gpi_host_now_ns();
}

void linked_crowd(gpupool_arena *arena, cudaStream_t stream) {
    gpi_stream *known = gpi_clock_find(&arena->clocks, gpi_clock_key(stream));
    if (known) known->cache.waits = 512;
}

gpupool_arena *linked_default_arena(int device) {
    return gpi_process.default_arenas[device];
}
#endif
