/* bench.h: works, peers, and a cell for each pair of them: what the peer took for the work. */
#ifndef BENCH_H
#define BENCH_H

#include "peer.h"

#include <stdio.h>

#define BENCH_RUNS 7
#define BENCH_LATE_NS 20000.0 /* an operation that takes longer is an outlier */

typedef enum bench_kind {
    BENCH_PAIR,      /* get a block and put it back */
    BENCH_CHURN,     /* put back any block of the live ones, and get another */
    BENCH_PAST_HOLES, /* get blocks that fit no hole but the last */
    BENCH_PING_PONG, /* a pair on one stream, a pair on the other, of all the memory there is */
    BENCH_TRACE      /* the operations of a recorded program */
} bench_kind;

typedef struct bench_work {
    const char *id, *words;
    bench_kind kind;
    unsigned needs; /* of the peer: BENCH_BLOCKS ... */
    size_t live, least, most; /* blocks alive all the time, of each thread; their sizes in bytes */
    unsigned threads;
    int shared;      /* 1: the threads have one stream; else each its own */
    int busy;        /* 1: the streams have work in flight */
    size_t reserve;  /* bytes that the peer may get before anything else; 0: none */
} bench_work;

typedef struct bench_cell {
    const bench_work *work;
    const bench_peer *peer;
    char why[BENCH_WHY];         /* why there are no figures; "" if there are */
    double ns, ns_least, ns_most; /* per operation: median, least and most of the runs */
    double calls;                /* of CUDA, per operation; negative where nobody counts */
    size_t ops;                  /* in a run, of each thread */
    size_t samples;              /* operations that were timed one by one, each pass of them */
    double p50, p99, p999, max;  /* of all samples, in ns */
    double max_again;            /* most among each operation's least of all passes: what happens
                                    again is not the machine's doing */
    size_t late;                 /* operations above BENCH_LATE_NS in every pass, without growth */
} bench_cell;

typedef struct bench_results {
    const bench_work *const *work;
    const bench_peer *const *peer;
    bench_cell *cell; /* works x peers */
    size_t works, peers;
    char **left_out; /* sentences */
    size_t left_outs;
    unsigned cores;
    bench_cell clock; /* the clock alone, timed as operations are: the noise of the machine */
    double seconds;
} bench_results;

/* NULL for a work or a peer that is not there, or has no figures. */
const bench_cell *bench_find(const bench_results *, const char *work, const char *peer);

/* ---- running ---- */

unsigned bench_cores(void);
void bench_run(bench_cell *); /* work and peer are set: the rest is filled in */
void bench_run_clock(bench_cell *);
extern unsigned bench_hurry;  /* runs take a part as long: for a look, not for figures */

/* ---- the bars: what gpupool has promised ---- */

typedef enum bench_verdict { BENCH_MET, BENCH_MISSED, BENCH_UNJUDGED } bench_verdict;

typedef struct bench_bar {
    const char *words;
    const char *work;               /* gpupool's cell */
    const char *than_work, *than_peer; /* at most `times` that cell, or `ns` where there is none */
    double times, ns;
    unsigned cores;                 /* that it takes to judge it */
} bench_bar;

typedef struct bench_judged {
    const bench_bar *bar;
    bench_verdict verdict;
    double value, allowed; /* ns; meaningless when unjudged */
    const char *why;       /* when unjudged */
} bench_judged;

size_t bench_bars(void);
bench_judged bench_judge(const bench_results *, size_t bar);

/* ---- telling ---- */

void bench_print_head(FILE *, const bench_results *);
void bench_print_row(FILE *, const bench_results *, size_t work);
void bench_print_rest(FILE *, const bench_results *); /* tails, bars, what was left out */
void bench_write_json(FILE *, const bench_results *);

/* ---- the peers that need no plug-in ---- */

extern const bench_peer *const bench_peers[];
extern const size_t bench_peers_n;
extern const bench_peer bench_gpupool;
extern const bench_peer bench_cuda_malloc_async, bench_cuda_malloc; /* on a GPU only */

#endif
