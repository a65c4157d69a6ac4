/* replay_pass.h: one timed pass of a plan through an arena. */
#ifndef REPLAY_PASS_H
#define REPLAY_PASS_H

#include "machine.h"
#include "replay_plan.h"

#define REPLAY_STOPS 2048

typedef struct replay_pass {
    /* what to run */
    const replay_plan *plan;
    gpupool_arena *arena;
    int cuda_free;             /* 1: each free is gpupool_cudaFree */
    int sync;                  /* 1: requests and frees name no stream */
    int give_up;               /* 1: stop at the first failure */
    size_t stop[REPLAY_STOPS]; /* rising event numbers: the clock stands still after each, while */
    size_t stops;              /* on_stop runs; with threads, in the first thread only */
    void (*on_stop)(void *user, const struct replay_pass *, size_t event);
    void *user;
    /* what came out */
    uint64_t ns; /* of one thread's operations, with what the driver would cost */
    machine_meter spent;
    machine_calls calls;
    size_t failures;
    gpupool_result first_result;
    char first_sentence[512]; /* of the first failure */
} replay_pass;

/* Runs the plan, then frees what the trace left alive, outside the time. 0, or -1 when the host
   has no memory or threads for it. Failures of the arena are counted instead. */
int replay_pass_run(replay_pass *);

#endif
