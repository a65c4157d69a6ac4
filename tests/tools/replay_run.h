/* replay_run.h: a trace through a fresh arena, three times over, and what it took. */
#ifndef REPLAY_RUN_H
#define REPLAY_RUN_H

#include "gpupool.h"
#include "machine.h"
#include "trace.h"

#define REPLAY_PASSES 3 /* the first is called cold, the last warm */

typedef struct replay_options {
    gpupool_arena_config config;
    unsigned streams; /* 0: the trace's own, its number 0 being the legacy default stream; else
                         block ID runs on stream ID modulo streams */
    int behind;       /* 1: no stream's work is finished before a call waits for it */
    int min_limit;    /* 1: also look for the smallest limit that will do for one pass */
    const char *svg;  /* a picture of the last pass at its fullest, or NULL */
} replay_options;

typedef struct replay_result {
    uint64_t peak_reserved_bytes;
    uint64_t min_limit_bytes;    /* 0: not asked for, or none was enough */
    double ns[REPLAY_PASSES];    /* per operation, driver time included */
    long calls[REPLAY_PASSES];   /* of CUDA */
    size_t failures;
    char first_sentence[512];    /* of the first failure; "" if none */
} replay_result;

/* 0, or -1 after a message on stderr; then *why is the arena's result, or GPUPOOL_OK where the
   arena is not to blame. */
int replay_run(const replay_options *, const trace *, replay_result *, gpupool_result *why);

#endif
