/* fuzz_all.h: every harness by its name, which is also that of its folder in corpus/. It includes
   gpupool.h. */
#ifndef FUZZ_ALL_H
#define FUZZ_ALL_H

#define _GNU_SOURCE
#include "fail_malloc.h"
#include "gpupool.h"
#include "linked.h"
#include "fuzz_arena.h"
#include "fuzz_limit.h"
#include "fuzz_ring.h"
#include "fuzz_trace.h"
#include "fuzz_import.h"
#include "fuzz_sleep.h"

typedef struct fuzz_harness {
    const char *name;
    int (*run)(const uint8_t *data, size_t size); /* 1: nothing is wrong */
} fuzz_harness;

static const fuzz_harness fuzz_harnesses[] = {
    {"arena", fuzz_arena}, {"limit", fuzz_limit}, {"ring", fuzz_ring}, {"trace", fuzz_trace},
    {"import", fuzz_import}, {"sleep", fuzz_sleep}};

#endif
