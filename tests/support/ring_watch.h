/* ring_watch.h: tells fakecuda's race oracle what the host copies. Include it before gpupool.h,
   whose every memcpy then counts as the host's reading and writing of the two places; a test's own
   (memcpy) does not. */
#ifndef RING_WATCH_H
#define RING_WATCH_H

#include <string.h>

#if !defined(GPUPOOL_TEST_GPU)
#include "fakecuda/fakecuda.h"

static inline void *ring_watched_copy(void *to, const void *from, size_t bytes) {
    fake_host_access(from, bytes, 0, "the host's copy");
    fake_host_access(to, bytes, 1, "the host's copy");
    return memcpy(to, from, bytes);
}
#define memcpy(to, from, bytes) ring_watched_copy(to, from, bytes)
#endif

#endif
