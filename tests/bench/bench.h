/* bench.h: the peers that need no plug-in. */
#ifndef BENCH_H
#define BENCH_H

#include "peer.h"

#include <stdio.h>

extern const bench_peer *const bench_peers[];
extern const size_t bench_peers_n;
extern const bench_peer bench_gpupool;
extern const bench_peer bench_cuda_malloc_async, bench_cuda_malloc; /* on a GPU only */

#endif
