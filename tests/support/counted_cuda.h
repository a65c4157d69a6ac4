/* counted_cuda.h: counts the CUDA calls that gpupool.h makes, also where fakecuda is not there to
   count. Include it before the implementation, in the same source, and link machine.c.

   Calls of the runtime go through macros of their own names, calls of the driver through functions
   that stand for the entry points it was asked for. A call of the runtime that is not listed here
   is not counted. cudaStreamDestroy is not listed, for gpupool.h gives that name another meaning;
   no arena calls it. */
#ifndef COUNTED_CUDA_H
#define COUNTED_CUDA_H

#include "machine.h"

#include <cuda_runtime_api.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* ---- the driver ---- */

typedef uintptr_t counted_word;
/* Every argument of the driver's calls is one word. A call with more words than the callee takes
   is harmless by the calling conventions of x86-64 and aarch64 Linux. */
typedef unsigned (*counted_function)(counted_word, counted_word, counted_word, counted_word,
                                     counted_word, counted_word, counted_word, counted_word);

typedef struct counted_entry {
    const char *name;
    counted_function function;
} counted_entry;

#define COUNTED_ENTRIES 64
static counted_entry counted_of[COUNTED_ENTRIES];

#define COUNTED_STAND_IN(n)                                                                      \
    static unsigned counted_stand_in_##n(counted_word a, counted_word b, counted_word c,         \
                                         counted_word d, counted_word e, counted_word f,         \
                                         counted_word g, counted_word h) {                       \
        machine_add_call();                                                                      \
        return counted_of[0##n].function(a, b, c, d, e, f, g, h);                                \
    }
#define COUNTED_EIGHT(each, n)                                                                   \
    each(n##0) each(n##1) each(n##2) each(n##3) each(n##4) each(n##5) each(n##6) each(n##7)
#define COUNTED_ALL(each) /* octal numbers */                                                    \
    COUNTED_EIGHT(each, 0) COUNTED_EIGHT(each, 1) COUNTED_EIGHT(each, 2) COUNTED_EIGHT(each, 3)  \
    COUNTED_EIGHT(each, 4) COUNTED_EIGHT(each, 5) COUNTED_EIGHT(each, 6) COUNTED_EIGHT(each, 7)
COUNTED_ALL(COUNTED_STAND_IN)

#define COUNTED_NAME(n) counted_stand_in_##n,
static const counted_function counted_stand_in[COUNTED_ENTRIES] = {COUNTED_ALL(COUNTED_NAME)};

/* The entry point's stand-in takes its place. Asked by one thread at a time, as gpupool.h asks. */
static cudaError_t counted_found(cudaError_t error, const char *name, void **found) {
    int i = 0;
    if (error != cudaSuccess || !*found) return error;
    while (i < COUNTED_ENTRIES && counted_of[i].name && strcmp(counted_of[i].name, name) != 0) i++;
    if (i == COUNTED_ENTRIES) {
        fprintf(stderr, "calls of %s are not counted: make counted_cuda.h's table larger\n", name);
        return error;
    }
    memcpy(&counted_of[i].function, found, sizeof *found);
    counted_of[i].name = name;
    memcpy(found, &counted_stand_in[i], sizeof *found);
    return error;
}

#define COUNTED_FIND(call, name, found) \
    (machine_add_call(), counted_found(call, name, found))
#define cudaGetDriverEntryPoint(name, found, ...) \
    COUNTED_FIND(cudaGetDriverEntryPoint(name, found, __VA_ARGS__), name, found)
#define cudaGetDriverEntryPointByVersion(name, found, ...) \
    COUNTED_FIND(cudaGetDriverEntryPointByVersion(name, found, __VA_ARGS__), name, found)

/* ---- the runtime ---- */

#define COUNTED(call) (machine_add_call(), call)

#define cudaMalloc(...) COUNTED(cudaMalloc(__VA_ARGS__))
#define cudaMallocAsync(...) COUNTED(cudaMallocAsync(__VA_ARGS__))
#define cudaMallocFromPoolAsync(...) COUNTED(cudaMallocFromPoolAsync(__VA_ARGS__))
#define cudaFree(...) COUNTED(cudaFree(__VA_ARGS__))
#define cudaFreeAsync(...) COUNTED(cudaFreeAsync(__VA_ARGS__))

#define cudaGetDevice(...) COUNTED(cudaGetDevice(__VA_ARGS__))
#define cudaGetDeviceCount(...) COUNTED(cudaGetDeviceCount(__VA_ARGS__))
#define cudaGetErrorName(...) COUNTED(cudaGetErrorName(__VA_ARGS__))
#define cudaGetErrorString(...) COUNTED(cudaGetErrorString(__VA_ARGS__))
#define cudaGetLastError() COUNTED(cudaGetLastError())
#define cudaPeekAtLastError() COUNTED(cudaPeekAtLastError())
#define cudaThreadExchangeStreamCaptureMode(...) \
    COUNTED(cudaThreadExchangeStreamCaptureMode(__VA_ARGS__))

#endif
