/* cliffs.h: works that hate allocators which were tuned on programs that repeat themselves. */
#ifndef CLIFFS_H
#define CLIFFS_H

#include "bench/peer.h"

#include <stddef.h>
#include <stdint.h>

#define CLIFFS_PASSES 3     /* of a work in one pool, at least, each with sizes of its own */
#define CLIFFS_FIRST_SEED 7
#define CLIFFS_TIMES 3      /* that a bystander stands by, to see the spread */

typedef struct cliffs_op {
    uint64_t bytes; /* 0: a free */
    uint32_t slot, stream;
} cliffs_op;

typedef struct cliffs_ops {
    cliffs_op *op;
    size_t count, room, slots;
} cliffs_ops;

typedef enum cliffs_mode {
    CLIFFS_STREAMS,  /* get and put in stream order */
    CLIFFS_READY,    /* on no stream: finished memory */
    CLIFFS_AS_CUDA,  /* cudaMalloc and cudaFree, each block filled by a kernel meanwhile */
    CLIFFS_ADDRESS   /* freed by its address alone */
} cliffs_mode;

struct cliffs_work;
/* Appends a thread's operations of one pass. 0, or -1 after a message on stderr. */
typedef int cliffs_draw(const struct cliffs_work *, uint64_t seed, unsigned thread, cliffs_ops *);

typedef struct cliffs_work {
    const char *id, *words;
    cliffs_draw *draw;
    size_t count;        /* allocations in a pass, or steps */
    uint64_t most;       /* bytes of the largest block; of buffers: how many there are */
    uint64_t live;       /* bytes that live at most */
    uint64_t limit;      /* that the pool gets; 0: none */
    unsigned streams, threads; /* a stream for each thread, or `streams` for the one thread */
    int shared;          /* 1: the threads have one stream */
    cliffs_mode mode;
    unsigned rounds;     /* of GPT-2's training before the first pass, not timed */
    const char *traces;  /* names, in tests/traces; each on a stream of its own if several */
    int long_only;       /* 1: left out in a quick run */
} cliffs_work;

typedef struct cliffs_plan { /* how much of everything */
    size_t part;         /* counts are divided by this */
    unsigned times;
    uint64_t pass_ns;    /* a pass is cut after this */
    uint64_t warm_ns;    /* passes go on until they have taken this: what a pool may spend on a
                            program that has begun is spent by then, in short passes too */
    uint64_t rounds_ns;  /* the rounds before the first pass are cut after this */
    int quick;
    unsigned rounds_part;
} cliffs_plan;

typedef struct cliffs_result {
    char why[BENCH_WHY];   /* no figures, and why; "" if there are */
    double first, last, least, most; /* ns an operation: the first pass; the median, least and
                                        most of the last three. Bystanders: worst us */
    double reserved, live; /* bytes, at most */
    double calls_first, calls_last; /* of CUDA, an operation; negative: not known */
    unsigned long failures;
    unsigned cut, rounds;  /* passes that were cut; rounds done */
} cliffs_result;

extern const cliffs_work cliffs_works[];
extern const size_t cliffs_works_n;

void cliffs_run(const cliffs_work *, const bench_peer *, const cliffs_plan *, cliffs_result *);

/* ---- bystanders: the worst call of a thread that is beside something ---- */

typedef struct cliffs_bystander {
    const char *id, *words;
    void (*beside)(void *stage); /* what goes on meanwhile */
} cliffs_bystander;

extern const cliffs_bystander cliffs_bystanders[];
extern const size_t cliffs_bystanders_n;

void cliffs_stand_by(const cliffs_bystander *, const bench_peer *, const cliffs_plan *,
                     cliffs_result *);
/* The worst reading of the clock in as much time: what is the machine's doing. */
void cliffs_stand_alone(const cliffs_plan *, cliffs_result *);

double cliffs_median(double *, size_t n); /* sorts */

#endif
