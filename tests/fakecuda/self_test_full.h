/* self_test_full.h: launch queues that are full, and streams that nothing lets through. */
#ifndef SELF_TEST_FULL_H
#define SELF_TEST_FULL_H

#include "self_test_kit.h"

#include <sched.h>

/* ---- what fills a queue ---- */

static struct {
    cudaStream_t stream, other;
    cudaEvent_t e, done;
    cudaGraphExec_t graph;
    void *p;
    char bytes[64];
} full;

static void called_by_cuda(void *unused) {
    (void)unused;
}

/* Each stream its own bytes. */
static void *bytes_of(cudaStream_t s) {
    return s == full.other ? at(full.p, 2048) : full.p;
}

static int gives_kernel(cudaStream_t s) {
    return (int)fake_write(s, "one more", bytes_of(s), 8, 1);
}
static int gives_record(cudaStream_t s) {
    return (int)cudaEventRecord(full.e, s);
}
static int gives_driver_record(cudaStream_t s) {
    return (int)cuEventRecord(full.e, s);
}
static int gives_wait(cudaStream_t s) {
    return (int)cudaStreamWaitEvent(s, full.done, 0);
}
static int gives_driver_wait(cudaStream_t s) {
    return (int)cuStreamWaitEvent(s, full.done, 0);
}
static int gives_set(cudaStream_t s) {
    return (int)cudaMemsetAsync(bytes_of(s), 1, 8, s);
}
static int gives_copy(cudaStream_t s) {
    return (int)cudaMemcpyAsync(bytes_of(s), full.bytes, 8, cudaMemcpyHostToDevice, s);
}
static int gives_rows(cudaStream_t s) {
    return (int)cudaMemcpy2DAsync(bytes_of(s), 8, full.bytes, 8, 8, 2, cudaMemcpyHostToDevice, s);
}
static int gives_host_function(cudaStream_t s) {
    return (int)cudaLaunchHostFunc(s, called_by_cuda, NULL);
}
static int gives_graph(cudaStream_t s) {
    return (int)cudaGraphLaunch(full.graph, s);
}

static int (*const gives[])(cudaStream_t) = {
    gives_kernel, gives_record, gives_driver_record, gives_wait,          gives_driver_wait,
    gives_set,    gives_copy,   gives_rows,          gives_host_function, gives_graph};
#define N_GIVES (sizeof gives / sizeof *gives)

static void fill_begin(void) {
    cudaGraph_t graph = NULL;
    full.stream = new_stream();
    full.other = new_stream();
    full.e = new_event();
    full.done = new_event();
    OK(cudaMalloc(&full.p, 4096));
    OK(cudaEventRecord(full.done, full.other));
    OK(cudaStreamBeginCapture(full.stream, cudaStreamCaptureModeRelaxed));
    OK(cudaMemsetAsync(full.p, 1, 8, full.stream));
    OK(end(full.stream, &graph));
    OK(cudaGraphInstantiate(&full.graph, graph, 0));
    OK(cudaGraphDestroy(graph));
    fake_queue(4);
}

static void fill_end(void) {
    OK(cudaDeviceSynchronize());
    OK(cudaGraphExecDestroy(full.graph));
    OK(cudaFree(full.p));
    OK(cudaEventDestroy(full.e));
    OK(cudaEventDestroy(full.done));
    OK(cudaStreamDestroy(full.stream));
    OK(cudaStreamDestroy(full.other));
}

static void fill(cudaStream_t stream) {
    while (fake_pending(stream) < 4) OK(fake_write(stream, "fills", full.p, 8, 1));
}

/* Whatever a call gives the stream, the oldest operation goes first, through a hold. */
static void test_full_makes_room(void) {
    size_t i;
    fill_begin();
    fake_hold(full.stream, 1);
    for (i = 0; i < N_GIVES; i++) {
        long stalls;
        fill(full.stream);
        stalls = fake_stalls();
        OK(gives[i](full.stream));
        CHECK(fake_stalls() == stalls + 1);
        CHECK(fake_pending(full.stream) >= 4);
        OK(gives[i](full.other)); /* a queue of its own */
        CHECK(fake_stalls() == stalls + 1 && fake_stuck() == 0);
        OK(cudaStreamSynchronize(full.stream));
    }
    fake_hold(full.stream, 0);
    fill_end();
}

/* What is captured is in no queue; with no bound there is nothing to wait for. */
static void test_full_is_not_captured(void) {
    cudaGraph_t graph = NULL;
    int i;
    fill_begin();
    fake_hold(full.stream, 1);
    fill(full.stream);
    OK(cudaStreamBeginCapture(full.stream, cudaStreamCaptureModeRelaxed));
    for (i = 0; i < 20; i++) OK(cudaMemsetAsync(full.p, 1, 8, full.stream));
    CHECK(fake_stalls() == 0 && fake_pending(full.stream) == 4);
    OK(end(full.stream, &graph));
    OK(cudaGraphDestroy(graph));
    fake_queue(0);
    for (i = 0; i < 2000; i++) OK(gives_record(full.stream));
    CHECK(fake_stalls() == 0 && fake_pending(full.stream) == 2004);
    fake_hold(full.stream, 0);
    fill_end();
}

/* As on an H100, when a test asks for nothing. */
static void test_full_by_default(void) {
    cudaStream_t s = new_stream();
    cudaEvent_t e = new_event();
    int i;
    fake_hold(s, 1);
    for (i = 0; i < 1020; i++) OK(cudaEventRecord(e, s));
    CHECK(fake_stalls() == 0);
    OK(cudaEventRecord(e, s));
    CHECK(fake_stalls() == 1 && fake_pending(s) == 1020);
    fake_hold(s, 0);
    OK(cudaEventDestroy(e));
    OK(cudaStreamDestroy(s));
}

static void test_full_in_threads(void) {
    int i;
    fill_begin();
    fake_mode(FAKE_THREADED);
    for (i = 0; i < 500; i++) OK(gives_kernel(full.stream));
    OK(cudaStreamSynchronize(full.stream));
    CHECK(fake_pending(full.stream) == 0 && fake_stuck() == 0);
    fill_end();
}

/* ---- beside a thread that is stuck ---- */

static atomic_int is_back;

static void *launch_until_stuck(void *unused) {
    int i;
    for (i = 0; i < 5; i++) OK(fake_write(full.stream, "stuck", full.p, 8, 1));
    return unused;
}

static pthread_t get_stuck(void) {
    pthread_t thread;
    fake_hold(full.stream, FAKE_FIRM);
    if (pthread_create(&thread, NULL, launch_until_stuck, NULL)) abort();
    while (!fake_stuck()) sched_yield();
    return thread;
}

static void let_go_of(pthread_t thread) {
    fake_hold(full.stream, 0);
    pthread_join(thread, NULL);
    CHECK(fake_stuck() == 0);
}

/* None of these waits: each would never come back here. */
static void calls_that_go_on(CUcontext context) {
    CUmemAllocationProp prop = on_device(0);
    CUmemGenericAllocationHandle handle = 0;
    CUstreamCaptureStatus status;
    CUdeviceptr base = 0;
    unsigned long long id;
    size_t a, b;
    OK(cuMemAddressReserve(&base, 2 * MIB, 0, 0, 0));
    OK(cuMemCreate(&handle, 2 * MIB, &prop, 0));
    OK(cuMemMap(base, 2 * MIB, 0, handle, 0));
    OK(open_access(base, 2 * MIB, 0));
    OK(cuMemUnmap(base, 2 * MIB));
    OK(cuMemRelease(handle));
    OK(cuMemAddressFree(base, 2 * MIB));
    OK(cuStreamIsCapturing(full.stream, &status));
    OK(cuStreamGetId(full.stream, &id));
    IS(cudaStreamQuery(full.stream), cudaErrorNotReady);
    OK(cuEventRecord(full.e, full.other));
    OK(cuStreamWaitEvent(full.other, full.done, 0));
    OK(fake_read(full.other, "elsewhere", at(full.p, 512), 8, -1));
    OK(cuEventQuery(full.e));
    OK(cuMemGetInfo(&a, &b));
    OK(cuCtxPushCurrent(context));
    OK(cuCtxPopCurrent(NULL));
}

static void test_stuck_others_go_on(void) {
    CUcontext context = NULL;
    pthread_t thread;
    fill_begin();
    OK(cudaMemset(full.p, 0, 4096));
    OK(cudaDeviceSynchronize());
    OK(cuCtxGetCurrent(&context));
    thread = get_stuck();
    calls_that_go_on(context);
    CHECK(fake_stuck() == 1 && fake_stalls() == 1);
    let_go_of(thread);
    fill_end();
}

static cudaStream_t spare_stream;
static char pages[8192];

static void makes_event(void) {
    cudaEvent_t e = new_event();
    is_back = 1;
    OK(cudaEventDestroy(e));
}
static void makes_driver_event(void) {
    CUevent e = NULL;
    OK(cudaFree(NULL));
    OK(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING));
    is_back = 1;
    OK(cuEventDestroy(e));
}
static void allocates(void) {
    void *p = NULL;
    OK(cudaMalloc(&p, 512));
    is_back = 1;
    OK(cudaFree(p));
}
static void pins(void) {
    OK(cudaHostRegister(pages, sizeof pages, 0));
    is_back = 1;
    OK(cudaHostUnregister(pages));
}
static void makes_stream(void) {
    cudaStream_t s = new_stream();
    is_back = 1;
    OK(cudaStreamDestroy(s));
}
static void destroys_stream(void) {
    OK(cudaStreamDestroy(spare_stream));
    is_back = 1;
}

static void *call_beside(void *what) {
    (*(void (**)(void))what)();
    return NULL;
}

static void test_stuck_others_wait(void) {
    static void (*const calls[])(void) = {makes_event, makes_driver_event, allocates,
                                          pins,        makes_stream,       destroys_stream};
    size_t i;
    fill_begin();
    for (i = 0; i < sizeof calls / sizeof *calls; i++) {
        void (*call)(void) = calls[i];
        pthread_t stuck, beside;
        long stalls;
        if (call == destroys_stream) spare_stream = new_stream();
        stuck = get_stuck();
        stalls = fake_stalls();
        is_back = 0;
        if (pthread_create(&beside, NULL, call_beside, &call)) abort();
        while (fake_stalls() == stalls) sched_yield();
        CHECK(!is_back && fake_stuck() == 1);
        let_go_of(stuck);
        pthread_join(beside, NULL);
        CHECK(is_back);
        OK(cudaStreamSynchronize(full.stream));
    }
    fill_end();
}

/* ---- a stream that nothing lets through ---- */

static atomic_int is_let_go, was_let_go;

static void *synchronize_it(void *unused) {
    OK(cudaStreamSynchronize(full.stream));
    was_let_go = is_let_go;
    return unused;
}

static void *free_a_byte(void *byte) {
    OK(cudaFreeHost(byte));
    was_let_go = is_let_go;
    return NULL;
}

static void wait_in_a_thread(fake_run_mode mode, void *(*wait)(void *)) {
    pthread_t thread;
    void *byte = NULL;
    fill_begin();
    fake_mode(mode);
    OK(cudaHostAlloc(&byte, 1, 0));
    is_let_go = was_let_go = 0;
    fake_hold(full.stream, FAKE_FIRM);
    OK(gives_kernel(full.stream));
    if (pthread_create(&thread, NULL, wait, byte)) abort();
    OK(gives_kernel(full.stream));
    IS(cudaStreamQuery(full.stream), cudaErrorNotReady);
    is_let_go = 1;
    fake_hold(full.stream, 0);
    pthread_join(thread, NULL);
    CHECK(was_let_go);
    if (wait == synchronize_it) OK(cudaFreeHost(byte));
    fill_end();
}

static void test_firm_hold(void) {
    int mode;
    for (mode = FAKE_EAGER; mode <= FAKE_THREADED; mode++) {
        wait_in_a_thread((fake_run_mode)mode, synchronize_it);
        wait_in_a_thread((fake_run_mode)mode, free_a_byte);
    }
    fake_mode(FAKE_EAGER);
    full.stream = new_stream();
    fake_hold(full.stream, FAKE_FIRM);
    OK(fake_write(full.stream, "left", NULL, 0, 1));
    fake_quiet(1);
    CHECK(fake_reset() == 1); /* which waits for nobody */
}

#endif
