/* self_test_capture.h: what a stream capture forbids, and the graph that comes of it. */
#ifndef SELF_TEST_CAPTURE_H
#define SELF_TEST_CAPTURE_H

#include "self_test_kit.h"

static void test_capture_table(void) {
    static const enum cudaStreamCaptureMode modes[3] = {
        cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal,
        cudaStreamCaptureModeRelaxed};
    CUmemAllocationProp prop = on_device(0);
    CUmemGenericAllocationHandle handle = 0;
    cudaStream_t s = new_stream(), other = new_stream();
    cudaEvent_t e = new_event(), inside = new_event();
    size_t a, b;
    unsigned long long id;
    void *p = NULL;
    int i;
    OK(cudaEventRecord(e, other));
    for (i = 0; i < 3; i++) {
        CAPTURED(modes[i], cudaStreamGetId(s, &id), cudaErrorStreamCaptureUnsupported, 1);
        CAPTURED(modes[i], cudaStreamGetId(other, &id), 0, 0);
        int strict = i < 2, refused = strict ? (int)cudaErrorStreamCaptureUnsupported : 0;
        CAPTURED(modes[i], cuMemCreate(&handle, 2 * MIB, &prop, 0), 0, 0);
        OK(cuMemRelease(handle));
        CAPTURED(modes[i], cudaMemGetInfo(&a, &b), 0, 0);
        CAPTURED(modes[i], cudaEventRecord(e, other), 0, 0);
        CAPTURED(modes[i], cudaMalloc(&p, 512), refused, strict);
        if (!strict) OK(cudaFree(p));
        CAPTURED(modes[i], cudaHostAlloc(&p, 512, 0), refused, strict);
        if (!strict) OK(cudaFreeHost(p));
        CAPTURED(modes[i], cudaEventQuery(e), refused, strict);
        CAPTURED(modes[i], cudaStreamQuery(other), refused, strict);
        CAPTURED(modes[i], cudaStreamSynchronize(other), refused, strict);
        CAPTURED(modes[i], cudaStreamWaitEvent(s, e, 0), cudaErrorStreamCaptureIsolation, 1);
        CAPTURED(modes[i], (cudaEventRecord(inside, s), cudaEventQuery(inside)),
                 cudaErrorCapturedEvent, 1);
        IS(cudaEventQuery(inside), cudaErrorInvalidValue); /* the capture has ended */
        IS(cudaEventSynchronize(inside), cudaErrorInvalidValue);
        IS(cudaStreamWaitEvent(other, inside, 0), cudaErrorInvalidValue);
    }
    OK(cudaEventDestroy(e));
    OK(cudaEventDestroy(inside));
    OK(cudaStreamDestroy(s));
    OK(cudaStreamDestroy(other));
    cudaGetLastError();
}

static void *query_elsewhere(void *event) {
    return (void *)(uintptr_t)cudaEventQuery((cudaEvent_t)event);
}

static int query_in_thread(cudaEvent_t e) {
    pthread_t thread;
    void *answer = NULL;
    if (pthread_create(&thread, NULL, query_elsewhere, (void *)e)) return -1;
    pthread_join(thread, &answer);
    return (int)(uintptr_t)answer;
}

static void test_capture_threads(void) {
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    cudaStream_t s = new_stream(), blocking = NULL;
    cudaEvent_t e = new_event();
    void *p = NULL;
    CAPTURED(cudaStreamCaptureModeGlobal, query_in_thread(e), cudaErrorStreamCaptureUnsupported, 1);
    CAPTURED(cudaStreamCaptureModeThreadLocal, query_in_thread(e), 0, 0);
    OK(cudaThreadExchangeStreamCaptureMode(&mode));
    CHECK(mode == cudaStreamCaptureModeGlobal);
    CAPTURED(cudaStreamCaptureModeGlobal, cudaMalloc(&p, 4096), 0, 0);
    CAPTURED(cudaStreamCaptureModeGlobal, cudaEventQuery(e), 0, 0);
    OK(cudaThreadExchangeStreamCaptureMode(&mode));
    CHECK(mode == cudaStreamCaptureModeRelaxed);
    OK(cudaStreamDestroy(s));
    OK(cudaStreamCreate(&blocking));
    s = blocking;
    CAPTURED(cudaStreamCaptureModeGlobal, cudaMemsetAsync(p, 0, 1, NULL),
             cudaErrorStreamCaptureImplicit, 1);
    IS(cudaStreamBeginCapture(NULL, cudaStreamCaptureModeRelaxed),
       cudaErrorStreamCaptureUnsupported);
    OK(cudaStreamDestroy(s));
    OK(cudaEventDestroy(e));
    OK(cudaFree(p));
}

/* Whatever the modes, of the capture and of the thread: an event of the capture is not to be asked,
   one from before it is, in relaxed mode. */
static void test_captured_event_in_relaxed_mode(void) {
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    cudaStream_t s = new_stream();
    cudaEvent_t before = new_event(), inside = new_event();
    int i;
    OK(cuEventRecord(before, s));
    OK(cudaThreadExchangeStreamCaptureMode(&mode));
    for (i = 0; i < 3; i++) {
        enum cudaStreamCaptureMode of = (enum cudaStreamCaptureMode)i;
        CAPTURED(of, cuEventQuery(before), 0, 0);
        CAPTURED(of, (cuEventRecord(inside, s), cuEventQuery(inside)), CUDA_ERROR_CAPTURED_EVENT,
                 1);
        CAPTURED(of, (cuEventRecord(inside, s), cuEventSynchronize(inside)),
                 CUDA_ERROR_CAPTURED_EVENT, 1);
        CAPTURED(of, cuCtxSynchronize(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, 1);
    }
    OK(cudaThreadExchangeStreamCaptureMode(&mode));
    OK(cudaEventDestroy(before));
    OK(cudaEventDestroy(inside));
    OK(cudaStreamDestroy(s));
    cudaGetLastError();
}

/* t takes part in the capture of s from now on, after work of s. */
static void fork_to(cudaStream_t t, cudaStream_t s, cudaEvent_t e, void *p) {
    OK(cudaMemsetAsync(p, 1, 512, s));
    OK(cudaEventRecord(e, s));
    OK(cudaStreamWaitEvent(t, e, 0));
}

static void test_graph(void) {
    cudaStream_t s = new_stream(), t = new_stream();
    cudaEvent_t fork_event = new_event(), join = new_event();
    enum cudaStreamCaptureStatus status;
    unsigned long long id = 0;
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    void *p = NULL;
    OK(cudaMalloc(&p, 4096));
    OK(cudaMemset(p, 0, 4096));
    OK(cudaDeviceSynchronize());
    OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
    fork_to(t, s, fork_event, p);
    OK(cudaStreamIsCapturing(t, &status));
    CHECK(status == cudaStreamCaptureStatusActive);
    OK(fake_read(t, "branch", p, 512, 1));
    IS(end(t, &graph), cudaErrorStreamCaptureUnmatched);
    IS(end(s, &graph), cudaErrorStreamCaptureInvalidated);
    OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
    fork_to(t, s, fork_event, p);
    OK(fake_read(t, "branch", p, 512, 1));
    IS(end(s, &graph), cudaErrorStreamCaptureUnjoined);
    OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
    OK(cudaStreamGetCaptureInfo(s, &status, &id, NULL, NULL, NULL, NULL));
    CHECK(status == cudaStreamCaptureStatusActive && id != 0);
    fork_to(t, s, fork_event, p);
    OK(fake_read(t, "branch", p, 512, 1));
    OK(cudaEventRecord(join, t));
    OK(cudaStreamWaitEvent(s, join, 0));
    OK(fake_write(s, "after both", p, 512, 2));
    OK(end(s, &graph));
    CHECK(fake_peek(p)[0] == 0);
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
    OK(cudaStreamDestroy(s));
    OK(cudaStreamDestroy(t));
    OK(cudaEventDestroy(fork_event));
    OK(cudaEventDestroy(join));
    OK(cudaFree(p));
    cudaGetLastError();
}

/* A stream that goes while it takes part: its work, and whether the capture began on it, matter. */
static void test_capture_of_a_destroyed_stream(void) {
    for (int way = 0; way < 3; way++) { /* no work; work that is not joined; that is */
        cudaStream_t s = new_stream(), t = new_stream();
        cudaEvent_t e = new_event();
        cudaGraph_t graph = NULL;
        void *p = NULL;
        OK(cudaMalloc(&p, 512));
        OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed));
        fork_to(t, s, e, p);
        if (way) OK(cudaMemsetAsync(p, 1, 512, t));
        OK(cudaEventRecord(e, t));
        if (way == 2) OK(cudaStreamWaitEvent(s, e, 0));
        OK(cudaStreamDestroy(t));
        IS(end(s, &graph), way == 1 ? cudaErrorStreamCaptureUnjoined : cudaSuccess);
        if (graph) OK(cudaGraphDestroy(graph));
        OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed));
        OK(cudaStreamDestroy(s));
        OK(cudaEventDestroy(e));
        OK(cudaFree(p));
    }
    cudaGetLastError();
    CHECK(fake_live_objects() == 0);
}

/* An event on the legacy stream loses the capture of a blocking stream. */
static void test_capture_beside_legacy(void) {
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    cudaStream_t s = NULL;
    cudaEvent_t e = new_event();
    cudaGraph_t graph = NULL;
    OK(cudaStreamCreate(&s));
    OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed));
    IS(cudaStreamIsCapturing(NULL, &status), cudaErrorStreamCaptureImplicit);
    IS(cudaEventRecord(e, NULL), cudaErrorStreamCaptureImplicit);
    OK(cudaStreamIsCapturing(s, &status));
    CHECK(status == cudaStreamCaptureStatusInvalidated);
    IS(end(s, &graph), cudaErrorStreamCaptureInvalidated);
    CHECK(!graph);
    OK(cudaStreamDestroy(s));
    s = new_stream();
    CAPTURED(cudaStreamCaptureModeRelaxed, cudaEventRecord(e, NULL), 0, 0);
    OK(cudaStreamDestroy(s));
    OK(cudaEventDestroy(e));
    cudaGetLastError();
}

#endif
