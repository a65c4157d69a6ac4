/* prove.h: what a model checker is asked about the rooms of gpupool.h. A proof is a function that
   takes values of any kind, assumes what callers promise, calls the room, and claims what must be
   true then, whatever the values; claims within the room (GPI_ASSERT) count too, and reading or
   writing outside any object. The line above it names an edit of the header, as for sed, with which
   the proof must fail: or it would prove nothing. prove.sh runs both. */
#ifndef PROVE_H
#define PROVE_H

#include <stdint.h>
#include <stdlib.h>

uint64_t __VERIFIER_nondet_u64(void);
static inline uint64_t any(void) { return __VERIFIER_nondet_u64(); }

#define CLAIM(truth) __ESBMC_assert(truth, #truth)
#define ASSUME(truth) __ESBMC_assume(truth)
#define GPUPOOL_ASSERT(truth) CLAIM(truth)

static inline uint64_t any_below(uint64_t bound) {
    uint64_t n = any();
    ASSUME(n < bound);
    return n;
}

static inline uint64_t any_power(void) { return (uint64_t)1 << any_below(64); }

/* The compiler's own two, which the checker does not know. */
static inline uint64_t prove_half(uint64_t n, int *zeros, int bits) {
    if (n >> (64 - bits)) return n;
    *zeros += bits;
    return n << bits;
}

static inline int prove_clzll(uint64_t n) { /* without a loop, which would need unwinding */
    int zeros = 0;
    n = prove_half(n, &zeros, 32);
    n = prove_half(n, &zeros, 16);
    n = prove_half(n, &zeros, 8);
    n = prove_half(n, &zeros, 4);
    n = prove_half(n, &zeros, 2);
    prove_half(n, &zeros, 1);
    return zeros;
}

static inline int prove_ctzll(uint64_t n) {
    return 63 - prove_clzll(n & (0 - n));
}

#define __builtin_clzll(n) prove_clzll(n)
#define __builtin_ctzll(n) prove_ctzll(n)
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"

#endif
