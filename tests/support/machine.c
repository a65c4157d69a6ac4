#define _POSIX_C_SOURCE 200809L
#include "machine.h"

#include <cuda_runtime_api.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

uint64_t machine_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

int machine_close(void) {
    int bad = ferror(stdout);
    if (fflush(stdout) == 0 && !bad) return 0;
    perror("standard output");
    return -1;
}

/* ---- calls by kind ---- */

static atomic_long added[MACHINE_KINDS];

void machine_add_call(machine_kind kind) {
    atomic_fetch_add_explicit(&added[kind], 1, memory_order_relaxed);
}

machine_calls machine_added_calls(void) {
    machine_calls calls = {{0}};
    for (int i = 0; i < MACHINE_KINDS; i++) calls.of[i] = atomic_load(&added[i]);
    return calls;
}

long machine_all_calls(const machine_calls *calls) {
    long all = 0;
    for (int i = 0; i < MACHINE_KINDS; i++) all += calls->of[i];
    return all;
}

static int begins(const char *call, const char *with) {
    return strncmp(call, with, strlen(with)) == 0;
}

/* cuMemGet* only asks; cuMemcpy* and cuMemset* have no capital there. */
machine_kind machine_kind_of(const char *call) {
    int driver = begins(call, "cuMem") && call[5] >= 'A' && call[5] <= 'Z';
    if (strstr(call, "Event")) return MACHINE_EVENT;
    if (driver && !begins(call, "cuMemGet")) return MACHINE_MEMORY;
    if (begins(call, "cudaMalloc") || begins(call, "cudaFree") || begins(call, "cudaHost"))
        return MACHINE_MEMORY;
    return MACHINE_OTHER;
}

#if GPUPOOL_TEST_GPU

static struct cudaDeviceProp gpu;

int machine_open(void) {
    cudaError_t error = cudaGetDeviceProperties(&gpu, 0);
    if (error == cudaSuccess) error = cudaFree(NULL); /* makes the context, outside any timing */
    if (error == cudaSuccess) return 0;
    fprintf(stderr, "the GPU cannot be used: %s\n", cudaGetErrorString(error));
    return -1;
}

const char *machine_name(void) {
    return gpu.name;
}

int machine_is_simulated(void) {
    return 0;
}

int machine_hold(void *stream, int on) {
    (void)stream, (void)on;
    return -1;
}

machine_calls machine_count_calls(void) {
    return machine_added_calls();
}

machine_meter machine_read(void) {
    machine_calls calls = machine_added_calls();
    return (machine_meter){.calls = machine_all_calls(&calls)};
}

#else

#include "fakecuda/fakecuda.h"

/* Eager and without the race oracle: a measurement queues no kernels, so neither has work to do,
   and what they cost would blur the figures. */
int machine_open(void) {
    fake_mode(FAKE_EAGER);
    fake_oracle(0);
    fake_device_memory(0, (size_t)140 << 30);
    return 0;
}

const char *machine_name(void) {
    return "simulated GPU of 140 GiB";
}

int machine_is_simulated(void) {
    return 1;
}

int machine_hold(void *stream, int on) {
    fake_hold((cudaStream_t)stream, on);
    return 0;
}

static void add_count(void *calls, const char *name, long count) {
    ((machine_calls *)calls)->of[machine_kind_of(name)] += count;
}

machine_calls machine_count_calls(void) {
    machine_calls calls = {{0}};
    fake_each_call(add_count, &calls);
    return calls;
}

machine_meter machine_read(void) {
    return (machine_meter){fake_inside_ns(), fake_driver_ns(), fake_calls(NULL)};
}

#endif
