/* bench.h: what allocators are measured with: the works, how much of each, and what came out. */
#ifndef BENCH_H
#define BENCH_H

#include "peer.h"

#include <stddef.h>
#include <stdint.h>

#define BENCH_PASSES 3 /* of a work in one pool, at least, each with sizes of its own */
#define BENCH_FIRST_SEED 7
#define BENCH_TIMES 3 /* that a bystander stands by, to see the spread */

/* The sets of works: a work is in some, a plan is of one. */
#define BENCH_HOST 1u   /* make bench: the host's time, beside heaps, too */
#define BENCH_CLIFFS 2u /* make bench-cliffs */
#define BENCH_QUICK 4u  /* the same with QUICK=1 */
#define BENCH_MEMORY 8u /* make bench-memory */

typedef struct bench_op {
    uint64_t bytes; /* 0: a free */
    uint32_t slot, stream;
} bench_op;

typedef struct bench_ops {
    bench_op *op;
    size_t count, room, slots;
} bench_ops;

typedef enum bench_mode {
    BENCH_STREAMS,  /* get and put in stream order */
    BENCH_READY,    /* on no stream: finished memory */
    BENCH_AS_CUDA,  /* cudaMalloc and cudaFree, each block filled by a kernel meanwhile */
    BENCH_ADDRESS   /* freed by its address alone */
} bench_mode;

struct bench_work;
/* Appends a thread's operations of one pass. 0, or -1 after a message on stderr. */
typedef int bench_draw(const struct bench_work *, uint64_t seed, unsigned thread, bench_ops *);

typedef struct bench_work {
    const char *id, *words;
    bench_draw *draw;
    size_t count;        /* allocations in a pass, or steps */
    uint64_t most;       /* bytes of the largest block */
    size_t blocks;       /* that live, or buffers, where their number is given */
    uint64_t live;       /* bytes that live at most */
    uint64_t limit;      /* that the pool gets; 0: none */
    unsigned streams, threads; /* a stream for each thread, or `streams` for the one thread */
    int shared;          /* 1: the threads have one stream */
    bench_mode mode;
    unsigned rounds;     /* of GPT-2's training before the first pass, not timed */
    const char *traces;  /* names, in tests/traces; each on a stream of its own if several */
    unsigned in;         /* sets; 0: BENCH_CLIFFS and BENCH_QUICK */
    unsigned needs;      /* of the peer, as in peer.h; 0: blocks of device memory */
} bench_work;

typedef struct bench_plan { /* how much of everything */
    unsigned of;         /* the set of works */
    size_t part;         /* counts are divided by this */
    unsigned kept;       /* of the last passes, whose median counts: 1 to BENCH_PASSES */
    unsigned times;
    uint64_t pass_ns;    /* a pass is cut after this */
    uint64_t warm_ns;    /* passes go on until they have taken this: what a pool may spend on a
                            program that has begun is spent by then, in short passes too */
    uint64_t rounds_ns;  /* the rounds before the first pass are cut after this */
    unsigned rounds_part;
} bench_plan;

typedef struct bench_result {
    char why[BENCH_WHY];   /* no figures, and why; "" if there are */
    double first, last, least, most; /* ns an operation: the first pass; the median, least and
                                        most of those that count. Bystanders: worst us */
    double reserved, live; /* bytes, at most */
    double calls_first, calls_last; /* of CUDA, an operation; negative: not known */
    unsigned long failures;
    unsigned cut, rounds;  /* passes that were cut; rounds done */
} bench_result;

extern const bench_work bench_works[];
extern const size_t bench_works_n;

bench_draw draw_random, draw_thrice, draw_log_normal, draw_growing, draw_drift, draw_server,
    draw_phases, draw_traces, draw_handed, draw_pairs, draw_churn, draw_loop, draw_whole;
void ops_free(bench_ops *);
uint64_t ops_live_peak(const bench_ops *, size_t done); /* bytes, of the first operations */

extern const bench_peer *const bench_peers[]; /* those that need no plug-in */
extern const size_t bench_peers_n;
extern const bench_peer bench_gpupool;
extern const bench_peer bench_cuda_malloc_async, bench_cuda_malloc; /* on a GPU only */

void bench_run(const bench_work *, const bench_peer *, const bench_plan *, bench_result *);

/* ---- bystanders: the worst call of a thread that is beside something ---- */

typedef struct bystander {
    const char *id, *words;
    void (*beside)(void *stage); /* what goes on meanwhile */
} bystander;

extern const bystander bench_bystanders[];
extern const size_t bench_bystanders_n;

void bench_stand_by(const bystander *, const bench_peer *, const bench_plan *, bench_result *);
/* The worst reading of the clock in as much time: what is the machine's doing. */
void bench_stand_alone(const bench_plan *, bench_result *);

double bench_median(double *, size_t n); /* sorts */

#endif
