/* pow2.h: what a plain power-of-two buddy allocator would reserve for a trace. */
#ifndef POW2_H
#define POW2_H

#include "trace.h"

#define POW2_UNIT_BYTES ((uint64_t)512)
#define POW2_GRANULE_BYTES ((uint64_t)2 << 20)

/* The 2 MiB granules that its blocks ever touch, in bytes; 0 when host memory is out. */
uint64_t pow2_reserved_bytes(const trace *);

#endif
