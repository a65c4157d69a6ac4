/* replay_run.h: a trace through a fresh arena, several times over, and what it took. */
#ifndef REPLAY_RUN_H
#define REPLAY_RUN_H

#include "gpupool.h"
#include "machine.h"
#include "trace.h"

#define REPLAY_PASSES 3 /* where nothing else is asked; the first is called cold, the last warm */
#define REPLAY_MOST_PASSES 100
#define REPLAY_PARTS 8  /* a pass shows its progress after each of these */

typedef struct replay_progress {
    int pass; /* from 1 */
    size_t event, events;
    gpupool_arena *arena;
} replay_progress;

typedef struct replay_options {
    gpupool_arena_config config;
    unsigned streams;      /* 0: the trace's own, its number 0 being the legacy default stream; else
                              block ID runs on stream ID modulo streams */
    unsigned threads;      /* more than 1: each runs the whole trace, on a stream of its own */
    unsigned passes;       /* 0: REPLAY_PASSES */
    int behind;            /* 1: no stream's work is finished before a call waits for it */
    int min_limit;         /* 1: also look for the smallest limit that will do */
    unsigned limit_passes; /* passes that must complete under it; 0: one */
    const char *svg;       /* a picture of the last pass at its fullest, or NULL */
    void (*on_progress)(void *user, const replay_progress *); /* or NULL */
    void *user;
} replay_options;

typedef struct replay_figure { /* of one pass */
    double ns;                 /* per operation, driver time included */
    machine_calls calls;       /* of CUDA */
    uint64_t live_bytes, reserved_bytes; /* at most, in this pass */
    double driver_us;
} replay_figure;

typedef struct replay_result {
    size_t events;
    uint64_t peak_live_bytes, peak_reserved_bytes;
    uint64_t min_limit_bytes; /* 0: not asked for, or none was enough */
    long calls;               /* of CUDA, the arena's making included */
    double driver_us;
    unsigned passes;
    replay_figure pass[REPLAY_MOST_PASSES];
    size_t failures;
    char first_sentence[512]; /* of the first failure; "" if none */
} replay_result;

/* 0, or -1 after a message on stderr; then *why is the arena's result, or GPUPOOL_OK where the
   arena is not to blame. */
int replay_run(const replay_options *, const trace *, replay_result *, gpupool_result *why);

#endif
