/* tick.h: a clock for single operations: the processor's counter where there is one. */
#ifndef TICK_H
#define TICK_H

#include "machine.h"

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

/* The fences keep what is timed from moving across. */
static inline uint64_t tick(void) {
#if defined(__x86_64__)
    _mm_lfence();
    uint64_t now = __rdtsc();
    _mm_lfence();
    return now;
#else
    return machine_now_ns();
#endif
}

/* Nanoseconds of a tick, found against the system's clock in 20 ms. */
static inline double tick_ns(void) {
#if defined(__x86_64__)
    static double ns;
    if (ns > 0) return ns;
    uint64_t ns_0 = machine_now_ns(), tick_0 = tick();
    while (machine_now_ns() - ns_0 < 20000000) {}
    return ns = (double)(machine_now_ns() - ns_0) / (double)(tick() - tick_0);
#else
    return 1;
#endif
}

#endif
