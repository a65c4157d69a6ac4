/* works.h: the table of works, and their sequences, drawn before any clock starts. */
#ifndef WORKS_H
#define WORKS_H

#include "bench.h"

extern const bench_work bench_works[];
extern const size_t bench_works_n;

typedef struct work_op {
    uint64_t bytes; /* 0: a free */
    uint32_t slot;
} work_op;

typedef struct work_steps { /* of one thread */
    work_op *op; /* as long as a run or longer; it goes on in the next, and starts over */
    size_t ops;    /* a power of two, but of a trace */
    size_t slots; /* places for blocks */
} work_steps;

/* The same for every peer; thread says whose. 0, or -1 after a message on stderr. */
int work_draw(const bench_work *, unsigned thread, work_steps *);
void work_drop(work_steps *);

#endif
