/* self_test.c: does fakecuda refuse what CUDA refuses, and does its oracle see what it should? */
#include "fakecuda.h"

#include <pthread.h>
#include <sched.h>
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

/* What each scene has: two streams that wait for nobody, an event. */
static cudaStream_t s, t;
static cudaEvent_t  e;

static void begin_scene(void) {
    s = new_stream();
    t = new_stream();
    e = new_event();
}

/* A scene has destroyed what it has made itself. */
static void end_scene(void) {
    OK(cudaStreamDestroy(s));
    OK(cudaStreamDestroy(t));
    OK(cudaEventDestroy(e));
    expect_failures(0, "a failure that the scene did not expect", __FILE__, __LINE__);
    CHECK(fake_reset() == 0);
    cudaGetLastError();
}

static void *pointer(CUdeviceptr p) { return (void *)(uintptr_t)p; }

/* Begins a capture, makes the call, and tells whether the capture was lost. */
#define CAPTURED(mode, call, code, lost)                                      \
    do {                                                                      \
        cudaGraph_t g = NULL;                                                 \
        OK(cudaStreamBeginCapture(s, mode));                                  \
        IS(call, code);                                                       \
        IS(cudaStreamEndCapture(s, &g), (lost) ? cudaErrorStreamCaptureInvalidated : 0);       \
        CHECK(!g == !!(lost));                                                \
        if (g) OK(cudaGraphDestroy(g));                                       \
    } while (0)

/* ---- memory ---- */

static void test_malloc(void) {
    void *p = NULL, *q = NULL;
    size_t free_bytes, total;
    struct cudaPointerAttributes what;
    fake_device_memory(0, 16 * MIB);
    OK(cudaMalloc(&p, 3 * MIB));
    CHECK((uintptr_t)p % (2 * MIB) == 0 && fake_used_bytes(0) == 4 * MIB);
    OK(cudaMemGetInfo(&free_bytes, &total));
    CHECK(free_bytes == 12 * MIB && total == 16 * MIB);
    fake_other_process(0, 8 * MIB);
    IS(cudaMalloc(&q, 5 * MIB), cudaErrorMemoryAllocation);
    IS(cudaPeekAtLastError(), cudaErrorMemoryAllocation);
    IS(cudaGetLastError(), cudaErrorMemoryAllocation);
    OK(cudaGetLastError());
    OK(cudaPointerGetAttributes(&what, at(p, 100)));
    CHECK(what.type == cudaMemoryTypeDevice && what.device == 0 && !what.hostPointer);
    OK(cudaPointerGetAttributes(&what, &what));
    CHECK(what.type == cudaMemoryTypeUnregistered);
    fake_quiet(1);
    IS(cudaFree(at(p, 512)), cudaErrorInvalidValue);
    CHECK(fake_misuses() == 1);
    OK(fake_write(NULL, "beyond", at(p, 4 * MIB - 1), 2, 1));
    EXPECT(1, "no memory is mapped");
    OK(cudaFree(p));
    OK(fake_write(NULL, "stale", p, 1, 1));
    EXPECT(1, "no memory is mapped");
    OK(cudaFree(NULL));
    OK(cudaMalloc(&p, 0));
    CHECK(!p);
}

static void test_vmm_rules(void) {
    CUmemAllocationProp prop = on_device(0);
    CUmemGenericAllocationHandle a = 0, b = 0;
    CUdeviceptr base = 0;
    size_t grain = 0;
    OK(cuMemGetAllocationGranularity(&grain, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    CHECK(grain == 2 * MIB);
    IS(cuMemAddressReserve(&base, grain + 1, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemAddressReserve(&base, GIB << 10, 0, 0, 0));
    IS(cuMemCreate(&a, 1000, &prop, 0), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemCreate(&a, 4 * MIB, &prop, 0));
    OK(cuMemCreate(&b, 2 * MIB, &prop, 0));
    IS(cuMemMap(base, 2 * MIB, 0, a, 0), CUDA_ERROR_NOT_SUPPORTED);
    IS(cuMemMap(base, 2 * MIB, 2 * MIB, a, 0), CUDA_ERROR_NOT_SUPPORTED);
    IS(cuMemMap(base + (GIB << 10) - 2 * MIB, 4 * MIB, 0, a, 0), CUDA_ERROR_INVALID_VALUE);
    IS(cuMemMap(base + 4096, 4 * MIB, 0, a, 0), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemMap(base, 4 * MIB, 0, a, 0));
    IS(cuMemMap(base + 2 * MIB, 2 * MIB, 0, b, 0), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemMap(base + 4 * MIB, 2 * MIB, 0, b, 0));
    fake_quiet(1);
    OK(fake_write(NULL, "early", pointer(base), 1, 1));
    EXPECT(1, "without access");
    IS(open_access(base, 8 * MIB, 0), CUDA_ERROR_INVALID_VALUE);
    IS(open_access(base, 2 * MIB, 0), CUDA_ERROR_INVALID_VALUE);
    OK(open_access(base, 6 * MIB, 0));
    OK(fake_write(NULL, "across", pointer(base + 4 * MIB - 8), 16, 3));
    OK(fake_read(NULL, "across", pointer(base + 4 * MIB - 8), 16, 3));
    OK(cudaDeviceSynchronize());
    IS(cuMemAddressFree(base, GIB << 10), CUDA_ERROR_INVALID_VALUE);
    IS(cuMemUnmap(base + 2 * MIB, 2 * MIB), CUDA_ERROR_INVALID_VALUE);
    IS(cuMemUnmap(base, 8 * MIB), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemRelease(a));
    CHECK(fake_used_bytes(0) == 6 * MIB);
    OK(cuMemUnmap(base, 6 * MIB));
    CHECK(fake_used_bytes(0) == 2 * MIB);
    OK(cuMemRelease(b));
    IS(cuMemRelease(b), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemAddressFree(base, GIB << 10));
    CHECK(fake_misuses() == 1 && fake_used_bytes(0) == 0);
    OK(cudaGetLastError());
}

/* A granule that is mapped again elsewhere still knows who used it. */
static void test_remap_keeps_the_past(void) {
    CUmemAllocationProp prop = on_device(0);
    CUmemGenericAllocationHandle a = 0;
    CUdeviceptr base = 0;
    OK(cuMemAddressReserve(&base, 8 * MIB, 0, 0, 0));
    OK(cuMemCreate(&a, 2 * MIB, &prop, 0));
    OK(cuMemMap(base, 2 * MIB, 0, a, 0));
    OK(open_access(base, 2 * MIB, 0));
    OK(fake_write(s, "old owner", pointer(base), 512, 1));
    fake_quiet(1);
    OK(cuMemUnmap(base, 2 * MIB));
    EXPECT(1, "released while work in flight: old owner");
    OK(cuMemMap(base + 4 * MIB, 2 * MIB, 0, a, 0));
    OK(open_access(base + 4 * MIB, 2 * MIB, 0));
    OK(fake_write(t, "new owner", pointer(base + 4 * MIB), 512, 2));
    EXPECT(1, "race");
    OK(cudaDeviceSynchronize());
    OK(cuMemUnmap(base + 4 * MIB, 2 * MIB));
    OK(cuMemRelease(a));
    OK(cuMemAddressFree(base, 8 * MIB));
}

/* ---- streams, events, the oracle ---- */

static void test_oracle(void) {
    void *p = NULL;
    OK(cudaMalloc(&p, MIB));
    fake_quiet(1);
    OK(fake_read(s, "too early", p, 64, 0));
    EXPECT(1, "nothing has written");
    OK(cudaDeviceSynchronize());
    OK(fake_write(s, "writer", p, 4096, 1));
    OK(fake_read(t, "reader", at(p, 4095), 10, -1));
    EXPECT(1, "race");
    OK(cudaDeviceSynchronize());
    OK(fake_write(s, "writer", p, 4096, 2));
    OK(fake_write(t, "beside", at(p, 4096), 512, 2));
    OK(cudaEventRecord(e, s));
    OK(cudaStreamWaitEvent(t, e, 0));
    OK(fake_read(t, "ordered", p, 4096, 2));
    OK(fake_read(s, "also reads", p, 4096, 2));
    EXPECT(0, "");
    OK(fake_write(s, "overwriter", p, 1, 3));
    EXPECT(1, "ordered");
    OK(cudaEventRecord(e, t));
    OK(cudaEventQuery(e));
    OK(fake_write(s, "the host knew", p, 1, 3));
    OK(fake_read(s, "wrong byte", p, 1, 4));
    EXPECT(1, "finds byte");
    fake_oracle(0);
    OK(fake_write(t, "unwatched", p, 1, 3));
    EXPECT(0, "");
    OK(cudaFree(p));
}

static void test_stepped(void) {
    void *p = NULL;
    fake_mode(FAKE_STEPPED);
    OK(cudaMalloc(&p, 4096));
    OK(cudaEventQuery(e));
    OK(fake_write(s, "a", p, 8, 1));
    OK(cudaEventRecord(e, s));
    OK(cudaStreamWaitEvent(t, e, 0));
    OK(fake_read(t, "b", p, 8, 1));
    CHECK(fake_pending(s) == 2);
    IS(cudaEventQuery(e), cudaErrorNotReady);
    OK(cudaGetLastError());
    IS(cudaStreamQuery(t), cudaErrorNotReady);
    OK(cudaGetLastError());
    CHECK(fake_step(t) == 0);
    CHECK(fake_step(s) == 1 && fake_step(s) == 1 && fake_step(s) == 0);
    OK(cudaEventQuery(e));
    CHECK(fake_run(t) == 2);
    fake_quiet(1);
    OK(fake_write(s, "ran, but who knew", p, 8, 2));
    EXPECT(1, "race");
    OK(cudaStreamQuery(t));
    OK(fake_write(s, "d", p, 8, 3));
    OK(cudaStreamDestroy(s));
    OK(cudaDeviceSynchronize());
    OK(fake_read(t, "of the destroyed one", p, 8, 3));
    OK(cudaDeviceSynchronize());
    OK(cudaFree(p));
    s = new_stream();
}

static void test_legacy_stream(void) {
    cudaStream_t blocking = NULL;
    void *p = NULL;
    OK(cudaMalloc(&p, 4096));
    OK(cudaStreamCreate(&blocking));
    OK(fake_write(blocking, "a", p, 8, 1));
    OK(fake_read(NULL, "b", p, 8, 1));
    OK(fake_write(cudaStreamPerThread, "c", p, 8, 2));
    OK(fake_write(cudaStreamLegacy, "d", p, 8, 3));
    OK(fake_write(blocking, "e", p, 8, 4));
    EXPECT(0, "");
    fake_quiet(1);
    OK(fake_write(t, "f", p, 8, 5));
    EXPECT(1, "race");
    OK(fake_write(cudaStreamPerThread, "g", p, 8, 5));
    EXPECT(1, "race");
    OK(fake_write(blocking, "h", at(p, 512), 8, 6));
    OK(fake_write(t, "i", at(p, 1024), 8, 7));
    OK(cudaStreamDestroy(blocking));
    OK(fake_write(NULL, "after the blocking one's end", at(p, 512), 8, 8));
    EXPECT(0, "");
    OK(fake_write(NULL, "not after the other's", at(p, 1024), 8, 8));
    EXPECT(1, "race");
    OK(cudaFree(p));
}

static void test_handles(void) {
    cudaStream_t old = s;
    unsigned long long one = 0, two = 0;
    OK(cuStreamGetId(s, &one));
    OK(cudaStreamDestroy(s));
    fake_quiet(1);
    IS(cudaEventRecord(e, s), cudaErrorInvalidResourceHandle);
    IS(cudaStreamQuery(s), cudaErrorInvalidResourceHandle);
    CHECK(fake_misuses() == 2);
    s = new_stream();
    CHECK(s == old);
    OK(cuStreamGetId(s, &two));
    CHECK(one != two);
    OK(cudaSetDevice(1));
    OK(cudaStreamCreate(&old));
    IS(cudaEventRecord(e, old), cudaErrorInvalidResourceHandle);
    OK(cudaStreamDestroy(old));
    OK(cudaEventDestroy(e));
    IS(cudaEventDestroy(e), cudaErrorInvalidResourceHandle);
    IS(cudaSetDevice(2), cudaErrorInvalidDevice);
    e = new_event();
}

/* ---- captures ---- */

static void test_capture_table(void) {
    static const enum cudaStreamCaptureMode modes[3] = {
        cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal,
        cudaStreamCaptureModeRelaxed};
    CUmemAllocationProp prop = on_device(0);
    CUmemGenericAllocationHandle handle = 0;
    cudaEvent_t inside = new_event();
    size_t a, b;
    unsigned long long id;
    void *p = NULL;
    int i;
    OK(cudaEventRecord(e, t));
    for (i = 0; i < 3; i++) {
        CAPTURED(modes[i], cuStreamGetId(s, &id), cudaErrorStreamCaptureUnsupported, 1);
        CAPTURED(modes[i], cuStreamGetId(t, &id), 0, 0);
        int strict = i < 2, refused = strict ? (int)cudaErrorStreamCaptureUnsupported : 0;
        CAPTURED(modes[i], cuMemCreate(&handle, 2 * MIB, &prop, 0), 0, 0);
        OK(cuMemRelease(handle));
        CAPTURED(modes[i], cudaMemGetInfo(&a, &b), 0, 0);
        CAPTURED(modes[i], cudaEventRecord(e, t), 0, 0);
        CAPTURED(modes[i], cudaMalloc(&p, 512), refused, strict);
        if (!strict) OK(cudaFree(p));
        CAPTURED(modes[i], cudaHostAlloc(&p, 512, 0), refused, strict);
        if (!strict) OK(cudaFreeHost(p));
        CAPTURED(modes[i], cudaEventQuery(e), refused, strict);
        CAPTURED(modes[i], cudaStreamQuery(t), refused, strict);
        CAPTURED(modes[i], cudaStreamSynchronize(t), refused, strict);
        CAPTURED(modes[i], cudaStreamWaitEvent(s, e, 0), cudaErrorStreamCaptureIsolation, 1);
        CAPTURED(modes[i], (cudaEventRecord(inside, s), cudaEventQuery(inside)),
                 cudaErrorCapturedEvent, 1);
        IS(cudaEventQuery(inside), cudaErrorInvalidValue); /* the capture has ended */
        IS(cuEventSynchronize(inside), cudaErrorInvalidValue);
        IS(cudaStreamWaitEvent(t, inside, 0), cudaErrorInvalidValue);
    }
    OK(cudaEventDestroy(inside));
}

/* From now on t takes part in the capture of s, after work of s, and reads what that wrote. */
static void begin_fork(void *p) {
    OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
    OK(cudaMemsetAsync(p, 1, 512, s));
    OK(cudaEventRecord(e, s));
    OK(cudaStreamWaitEvent(t, e, 0));
    OK(fake_read(t, "branch", p, 512, 1));
}

static void test_graph(void) {
    enum cudaStreamCaptureStatus status;
    unsigned long long id = 0;
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    void *p = NULL;
    OK(cudaMalloc(&p, 4096));
    OK(cudaMemset(p, 0, 4096));
    OK(cudaDeviceSynchronize());
    begin_fork(p);
    OK(cudaStreamIsCapturing(t, &status));
    CHECK(status == cudaStreamCaptureStatusActive);
    IS(cudaStreamEndCapture(t, &graph), cudaErrorStreamCaptureUnmatched);
    IS(cudaStreamEndCapture(s, &graph), cudaErrorStreamCaptureInvalidated);
    begin_fork(p);
    IS(cudaStreamEndCapture(s, &graph), cudaErrorStreamCaptureUnjoined);
    begin_fork(p);
    OK(cudaStreamGetCaptureInfo(s, &status, &id, NULL, NULL, NULL, NULL));
    CHECK(status == cudaStreamCaptureStatusActive && id != 0);
    OK(cudaEventRecord(e, t));
    OK(cudaStreamWaitEvent(s, e, 0));
    OK(fake_write(s, "after both", p, 512, 2));
    OK(cudaStreamEndCapture(s, &graph));
    OK(fake_read(s, "not yet", p, 8, 0));
    OK(cudaStreamSynchronize(s));
    OK(cudaGraphInstantiate(&exec, graph, 0));
    CAPTURED(cudaStreamCaptureModeRelaxed, cudaGraphLaunch(exec, s),
             cudaErrorStreamCaptureUnsupported, 1);
    OK(cudaGraphLaunch(exec, s));
    OK(cudaGraphLaunch(exec, s));
    OK(fake_read(s, "after the graph", p, 512, 2));
    EXPECT(0, "");
    fake_quiet(1);
    OK(fake_write(t, "beside the graph", p, 512, 3));
    EXPECT(1, "race");
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphDestroy(graph));
    OK(cudaFree(p));
}

/* ---- faults, full queues ---- */

/* A resource call fails once and has changed nothing; the others fail for good. */
static void test_faults(void) {
    CUmemAllocationProp prop = on_device(0);
    CUmemGenericAllocationHandle handle = 0;
    void *p = NULL;
    size_t a, b;
    fake_fail_call("cudaMalloc", 2, 0, cudaErrorNotPermitted);
    OK(cudaMalloc(&p, 512));
    fake_fail_pause(1);
    OK(cudaFree(p));
    OK(cudaMalloc(&p, 512));
    fake_fail_pause(0);
    IS(cudaMalloc(&p, 512), cudaErrorNotPermitted);
    fake_fail_resource(1);
    OK(cudaEventRecord(e, NULL));
    IS(cuMemCreate(&handle, 2 * MIB, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(fake_fail_fired() == 2 && fake_used_bytes(0) == 512 && !fake_is_broken());
    OK(cuMemCreate(&handle, 2 * MIB, &prop, 0));
    fake_break(2);
    fake_fail_except("cudaFree,cuMemRelease");
    OK(cudaEventRecord(e, NULL));
    IS(cudaEventQuery(e), cudaErrorIllegalAddress);
    IS(cudaMemGetInfo(&a, &b), cudaErrorIllegalAddress);
    OK(cuMemRelease(handle));
    OK(cudaFree(p));
    CHECK(fake_is_broken() && fake_fail_fired() == 4);
    fake_fail_clear();
    fake_reset_counters();
    OK(cudaMalloc(&p, 4096));
    OK(cudaFree(p));
    CHECK(fake_calls("cudaMalloc") == 1 && fake_calls(NULL) == 2);
    CHECK(fake_driver_ns() > 49000 && fake_driver_ns() < 51000 && fake_inside_ns() > 0);
}

static atomic_int is_back;

static void *fill(void *p) {
    OK(fake_write(s, "one more", p, 8, 1)); /* stuck, in a full queue */
    return NULL;
}

static void *make_event(void *unused) {
    OK(cudaEventDestroy(new_event()));
    is_back = 1;
    return unused;
}

/* Who makes an event waits with the thread that is stuck; who maps or records does not. */
static void test_full_queue(void) {
    pthread_t stuck, beside;
    void *p = NULL;
    fake_queue(4);
    OK(cudaMalloc(&p, 512));
    fake_hold(s, FAKE_FIRM);
    while (fake_pending(s) < 4) OK(fake_write(s, "fills", p, 8, 1));
    if (pthread_create(&stuck, NULL, fill, p)) abort();
    while (!fake_stuck()) sched_yield();
    if (pthread_create(&beside, NULL, make_event, NULL)) abort();
    OK(cudaEventRecord(e, t));
    OK(cudaEventQuery(e));
    CHECK(!is_back && fake_stuck() == 1);
    fake_hold(s, 0);
    pthread_join(stuck, NULL);
    pthread_join(beside, NULL);
    CHECK(is_back);
    OK(cudaStreamSynchronize(s));
    OK(cudaFree(p));
}

int main(void) {
    static void (*const tests[])(void) = {
        test_malloc, test_vmm_rules, test_remap_keeps_the_past, test_oracle, test_stepped,
        test_legacy_stream, test_handles, test_capture_table, test_graph,
        test_faults, test_full_queue};
    size_t i;
    for (i = 0; i < sizeof tests / sizeof tests[0]; i++) {
        begin_scene();
        tests[i]();
        end_scene();
    }
    printf("%ld passed, %ld failed\n", atomic_load(&passed), atomic_load(&failed));
    return failed != 0;
}
