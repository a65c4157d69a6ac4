/* fail_malloc.h: host memory for gpupool.h that counts itself and fails on demand. A file that has
   the implementation includes it before gpupool.h. Threads may share it. */
#ifndef FAIL_MALLOC_H
#define FAIL_MALLOC_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>

#if defined(LINKED_LIBRARY) /* the implementation has a file of its own, linked.c, */
#define FAIL_MALLOC
#elif defined(LINKED) /* and this is one that is linked with it */
#define FAIL_MALLOC extern
#else
#define FAIL_MALLOC static
#endif

FAIL_MALLOC atomic_long fail_malloc_next; /* this many requests from now, one fails; 0: none */
FAIL_MALLOC atomic_int fail_malloc_persist; /* 1: and so do all after it */
FAIL_MALLOC size_t fail_malloc_least; /* requests for fewer bytes do not count, and are met */
FAIL_MALLOC void (*fail_malloc_told)(void); /* called for one that fails */
FAIL_MALLOC atomic_long fail_malloc_fired, fail_malloc_live;

static inline int fail_malloc_due(size_t bytes) {
    long next = fail_malloc_next, rest;
    int due;
    if (bytes < fail_malloc_least) return 0;
    do {
        due = next == 1;
        rest = next > 1 || (due && !fail_malloc_persist) ? next - 1 : next;
    } while (rest != next && !atomic_compare_exchange_weak(&fail_malloc_next, &next, rest));
    if (due) fail_malloc_fired++;
    if (due && fail_malloc_told) fail_malloc_told();
    return due;
}

/* Relaxed: this must not order one thread's work after another's, or TSan sees less. */
static inline void fail_malloc_counts(long more) {
    atomic_fetch_add_explicit(&fail_malloc_live, more, memory_order_relaxed);
}

static inline void *fail_malloc(size_t bytes) {
    void *at = fail_malloc_due(bytes) ? NULL : malloc(bytes);
    fail_malloc_counts(at != NULL);
    return at;
}

static inline void *fail_realloc(void *old, size_t bytes) {
    void *at = fail_malloc_due(bytes) ? NULL : realloc(old, bytes);
    fail_malloc_counts(at != NULL && old == NULL);
    return at;
}

static inline void fail_free(void *at) {
    fail_malloc_counts(at ? -1 : 0);
    free(at);
}

/* n < 1 makes all requests succeed again. */
static inline void fail_malloc_nth(long n, int persist) {
    fail_malloc_next = n < 1 ? 0 : n;
    fail_malloc_persist = persist;
    fail_malloc_fired = 0;
}

#define GPUPOOL_MALLOC(bytes) fail_malloc(bytes)
#define GPUPOOL_REALLOC(at, bytes) fail_realloc(at, bytes)
#define GPUPOOL_FREE(at) fail_free(at)

#endif
