/* self_test_kit.h: what the parts of fakecuda's own test share. */
#ifndef SELF_TEST_KIT_H
#define SELF_TEST_KIT_H

#include "fakecuda.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define MIB ((size_t)1 << 20)
#define GIB ((size_t)1 << 30)

static atomic_long passed, failed; /* by threads, too */

static void check(int good, const char *text, const char *file, int line) {
    if (good) passed++;
    else failed++;
    if (!good) fprintf(stderr, "%s:%d: %s\n", file, line, text);
}
#define CHECK(x)       check(!!(x), #x, __FILE__, __LINE__)
#define IS(call, code) check((int)(call) == (int)(code), #call " is " #code, __FILE__, __LINE__)
#define OK(call)       IS(call, 0)

static char *at(void *p, size_t offset) { return (char *)p + offset; }

static cudaStream_t new_stream(void) {
    cudaStream_t stream = NULL;
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
}

static cudaEvent_t new_event(void) {
    cudaEvent_t event = NULL;
    OK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    return event;
}

/* Exactly so many failures since the last call, of which the first says this. */
static void expect_failures(long n, const char *text, const char *file, int line) {
    check(fake_failures() == n, "the number of failures", file, line);
    check(!n || strstr(fake_failure_text(), text) != NULL, text, file, line);
    fake_clear_failures();
}
#define EXPECT(n, text) expect_failures(n, text, __FILE__, __LINE__)

static CUmemAllocationProp on_device(int device) {
    CUmemAllocationProp prop;
    memset(&prop, 0, sizeof prop);
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.location.id = device;
    return prop;
}

static CUresult open_access(CUdeviceptr p, size_t bytes, int device) {
    CUmemAccessDesc desc;
    desc.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    desc.location.id = device;
    desc.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return cuMemSetAccess(p, bytes, &desc, 1);
}

static void *pointer(CUdeviceptr p) { return (void *)(uintptr_t)p; }

static cudaError_t end(cudaStream_t s, cudaGraph_t *graph) {
    return cudaStreamEndCapture(s, graph);
}

/* Begins a capture, makes the call, and tells whether the capture was lost. */
#define CAPTURED(mode, call, code, lost)                                      \
    do {                                                                      \
        cudaGraph_t g = NULL;                                                 \
        OK(cudaStreamBeginCapture(s, mode));                                  \
        IS(call, code);                                                       \
        IS(end(s, &g), (lost) ? cudaErrorStreamCaptureInvalidated : 0);       \
        CHECK(!g == !!(lost));                                                \
        if (g) OK(cudaGraphDestroy(g));                                       \
    } while (0)

#endif
