/* facts.h: what the questions to the GPU share: a kernel that holds its stream until the host lets
   it go or its time is over, the printing and counting of facts, and a watch that ends the program
   when a call never comes back. Nothing here is of gpupool. */
#ifndef GPU_FACTS_H
#define GPU_FACTS_H

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

#include <cuda.h>
#include <cuda_runtime.h>

/* ---- what was found ---- */

static int facts_known;   /* facts that are as gpupool's authors have measured them before */
static int facts_new;     /* facts that nobody had measured: nothing to compare with */
static int facts_changed; /* facts that are otherwise: gpupool is to be looked at */
static int facts_skipped;

/* expected: the verdict that was seen before; "" if none was. */
static void fact(const std::string &question, double ms, const std::string &verdict,
                 const std::string &expected) {
    const bool is_new = expected.empty(), same = verdict == expected;
    printf("%-78s %9.3f ms  %s", question.c_str(), ms, verdict.c_str());
    if (is_new) printf("  (new)\n");
    else if (same) printf("\n");
    else printf("  CHANGED, it was: %s\n", expected.c_str());
    fflush(stdout);
    (is_new ? facts_new : same ? facts_known : facts_changed)++;
}

static void skipped(const std::string &question, const std::string &why) {
    printf("%-78s %9s     skipped: %s\n", question.c_str(), "-", why.c_str());
    fflush(stdout);
    facts_skipped++;
}

static std::string name_of(CUresult error) {
    const char *name = nullptr;
    if (cuGetErrorName(error, &name) != CUDA_SUCCESS || !name) return std::to_string((int)error);
    for (const char *prefix : {"CUDA_ERROR_", "CUDA_"})
        if (!strncmp(name, prefix, strlen(prefix))) return name + strlen(prefix);
    return name;
}

/* What a question needs before it can be asked; without it no answer would mean anything. */
static void must_be(CUresult error, const char *call, const char *file, int line) {
    if (error == CUDA_SUCCESS) return;
    printf("%s:%d: %s: %s\n", file, line, call, name_of(error).c_str());
    fflush(stdout);
    _Exit(2);
}
#define MUST(call) must_be((call), #call, __FILE__, __LINE__)

/* ---- time ---- */

static double now_ms() {
    const auto since = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration<double, std::milli>(since).count();
}

static void nap_ms(int ms) {
    std::this_thread::sleep_for(std::chrono::milliseconds(ms));
}

static std::atomic<const char *> asking{"nothing yet"};

/* Ends the program when all questions together take longer: some call has never come back. */
static void start_watch(int seconds) {
    std::thread([seconds] {
        nap_ms(1000 * seconds);
        printf("after %d s a call has not come back; it was asked: %s\n", seconds, asking.load());
        fflush(stdout);
        _Exit(3);
    }).detach();
}

/* ---- a kernel that holds its stream ---- */

struct gate {
    int open; /* the host lets the kernel go */
    int done; /* the kernel has come to its end */
};

static const int GATES = 16;
static gate *gates; /* in host memory that every context can use */
static CUfunction hold_kernel, empty_kernel;

static __global__ void hold(volatile gate *held, unsigned long long most_ns) {
    unsigned long long began, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(began));
    do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    while (!held->open && now - began < most_ns);
    __threadfence_system();
    held->done = 1;
}

static __global__ void nothing() {
}

/* A kernel that every context can launch, not only the one that loaded it. */
static CUfunction kernel_of(const void *symbol) {
    cudaKernel_t kernel = nullptr;
    const cudaError_t error = cudaGetKernel(&kernel, symbol);
    if (error != cudaSuccess) {
        printf("cudaGetKernel: %s\n", cudaGetErrorName(error));
        _Exit(2);
    }
    return (CUfunction)kernel;
}

static void make_gates() {
    void *memory = nullptr;
    MUST(cuMemHostAlloc(&memory, GATES * sizeof(gate),
                        CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP));
    gates = (gate *)memory;
    hold_kernel = kernel_of((const void *)hold);
    empty_kernel = kernel_of((const void *)nothing);
}

/* Holds the stream, which is of the current context, for so long at most. */
static CUresult try_hold(CUstream stream, int at, int ms) {
    volatile gate *held = &gates[at];
    unsigned long long most_ns = (unsigned long long)ms * 1000000u;
    void *arguments[] = {&held, &most_ns};
    held->open = held->done = 0;
    return cuLaunchKernel(hold_kernel, 1, 1, 1, 1, 1, 1, 0, stream, arguments, nullptr);
}

static CUresult launch_nothing(CUstream stream) {
    return cuLaunchKernel(empty_kernel, 1, 1, 1, 1, 1, 1, 0, stream, nullptr, nullptr);
}

static void open_gate(int at) {
    ((volatile gate *)gates)[at].open = 1;
}

static bool has_ended(int at) {
    return ((volatile gate *)gates)[at].done != 0;
}

/* Loads the kernels in the current context, so that no measured launch does. */
static void warm_up(CUstream stream) {
    MUST(try_hold(stream, 0, 1));
    MUST(launch_nothing(stream));
    MUST(cuStreamSynchronize(stream));
}

/* ---- contexts and streams ---- */

static CUdevice device;
static CUcontext primary;

static CUstream new_stream(unsigned flags) {
    CUstream stream = nullptr;
    MUST(cuStreamCreate(&stream, flags));
    return stream;
}

static void push(CUcontext context) {
    MUST(cuCtxPushCurrent(context));
}

static void pop() {
    CUcontext was;
    MUST(cuCtxPopCurrent(&was));
}

#endif
