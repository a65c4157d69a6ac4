/* lane.h: one thread's share of a work, and the loops that are timed. */
#ifndef LANE_H
#define LANE_H

#include "works.h"

#include <stdatomic.h>

#define LANE_BATCH 256 /* blocks got past the holes at a time; n is a multiple of it */

typedef struct lane {
    /* set by the runner */
    const bench_work *work;
    const bench_peer *peer;
    void *pool;
    work_steps steps;
    void **block;           /* by slot */
    cudaStream_t stream[2];
    unsigned lanes;         /* how many there are */
    int priced;             /* the peer calls simulated CUDA */
    double clock_ns;        /* what timing one operation adds */
    double beside_ns;       /* what a simulated call adds */
    float *sample;          /* ns of each operation of lane_time_each, n of them (churn: twice) */
    unsigned char *grew;    /* the same: 1 where the peer got or moved memory */
    /* set by a loop */
    double ns;              /* of all operations */
    double calls;           /* of CUDA, this lane's share */
    size_t samples;
    int failed;
    /* the loop's own */
    size_t next; /* of the steps */
    uint64_t start, growths;
    struct { uint64_t inside_ns, driver_ns; long calls; } meter;
} lane;

int lane_fill(lane *);               /* gets the live blocks; 0, or -1 when one cannot be had */
void lane_run(lane *, size_t n);     /* n operations */
void lane_time_each(lane *, size_t n); /* the same, with the clock read around each */
void lane_drain(lane *);             /* puts everything back */
double lane_clock_ns(void);          /* what two readings of the clock take: the median */
double lane_beside_ns(void); /* what a simulated call takes beside the time that it counts */

#endif
