/* replay_plan.h: a trace made ready to run: short operations, and the streams they run on. */
#ifndef REPLAY_PLAN_H
#define REPLAY_PLAN_H

#include "gpupool.h"
#include "trace.h"

typedef struct replay_op {
    uint64_t bytes; /* of a block, 0: a free */
    uint32_t slot;
    uint32_t stream;
    uint8_t kind;   /* trace_kind */
    uint8_t align;  /* 2^align bytes; 0: not asked for */
} replay_op;

typedef struct replay_plan {
    const trace *from;
    replay_op *op;
    size_t ops;
    cudaStream_t *stream;
    size_t streams;
    unsigned threads; /* more than 1: each runs the whole plan, on the stream of its number */
} replay_plan;

/* streams 0: the trace's own, its number 0 being the legacy default stream; else block ID runs on
   stream ID modulo streams. 0, or -1 after a message on stderr. */
int replay_plan_make(replay_plan *, const trace *, unsigned streams, unsigned threads);
void replay_plan_free(replay_plan *);

#endif
