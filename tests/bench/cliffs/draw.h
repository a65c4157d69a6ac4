/* draw.h: the operations of a work, drawn before any clock starts. */
#ifndef DRAW_H
#define DRAW_H

#include "cliffs.h"

cliffs_draw draw_random, draw_thrice, draw_log_normal, draw_growing, draw_drift, draw_server,
    draw_phases, draw_traces, draw_handed, draw_pairs, draw_churn, draw_loop;

void ops_free(cliffs_ops *);
uint64_t ops_live_peak(const cliffs_ops *, size_t done); /* bytes, of the first operations */

#endif
