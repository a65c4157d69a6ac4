#define _POSIX_C_SOURCE 200809L
#include "machine.h"

#include <cuda_runtime_api.h>
#include <stdatomic.h>
#include <stdio.h>
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

#if GPUPOOL_TEST_GPU

static struct cudaDeviceProp gpu;
static atomic_long calls;

void machine_add_call(void) {
    atomic_fetch_add_explicit(&calls, 1, memory_order_relaxed);
}

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

machine_meter machine_read(void) {
    return (machine_meter){.calls = atomic_load(&calls)};
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

machine_meter machine_read(void) {
    return (machine_meter){fake_inside_ns(), fake_driver_ns(), fake_calls(NULL)};
}

#endif
