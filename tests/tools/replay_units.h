/* replay_units.h: what an arena reserves for a trace, by source and by GPUPOOL_UNIT_BYTES, which is
   chosen when gpupool.h is compiled: replay_unit.c is compiled once for each. */
#ifndef REPLAY_UNITS_H
#define REPLAY_UNITS_H

#include "trace.h"

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

typedef struct replay_figures {
    uint64_t reserved_bytes; /* at most, in one cold pass without a limit */
    uint64_t least_bytes;    /* the smallest limit that will do; 0: none was found */
    int pieces;              /* got from the driver */
} replay_figures;

/* 0, or -1 after a message on stderr. The trace's streams, by index, are given. */
typedef int replay_unit_run(const trace *, const cudaStream_t *, int source, int limits,
                            replay_figures *);

replay_unit_run replay_unit_256, replay_unit_512, replay_unit_2048, replay_unit_8192;

/* Prints the planner's table for a trace. 0, or -1 after a message on stderr. */
int replay_print_plan(const trace *, const char *path);

#endif
