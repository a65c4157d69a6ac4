/* self_test_context.h: an event that cuCtxRecordEvent gives all the work of a context. */
#ifndef SELF_TEST_CONTEXT_H
#define SELF_TEST_CONTEXT_H

#include "self_test_kit.h"

#include <sched.h>
#include <stdatomic.h>

static const fake_run_mode every_mode[3] = {FAKE_EAGER, FAKE_STEPPED, FAKE_THREADED};

static CUcontext current_context(void) {
    CUcontext context = NULL;
    OK(cudaFree(NULL)); /* so that there is one */
    OK(cuCtxGetCurrent(&context));
    return context;
}

/* A stream that comes after all of gate; with gate held, its work runs on when it is destroyed. */
static cudaStream_t behind(cudaStream_t gate) {
    cudaStream_t stream = new_stream();
    cudaEvent_t e = new_event();
    OK(cudaEventRecord(e, gate));
    OK(cudaStreamWaitEvent(stream, e, 0));
    OK(cudaEventDestroy(e));
    return stream;
}

static void *write_on_own_stream(void *p) {
    return (void *)(uintptr_t)fake_write(cudaStreamPerThread, "another thread", p, 64, 4);
}

/* Work in every kind of stream, the first of them held; each writes its own 512 bytes of p. */
static void fill_context(cudaStream_t held, cudaStream_t blocking, char *p) {
    unsigned long long one = 0, two = 0;
    cudaStream_t destroyed, again;
    pthread_t thread;
    void *answer = NULL;
    fake_hold(held, 1);
    OK(fake_write(held, "held", p, 64, 1));
    destroyed = behind(held);
    OK(fake_write(destroyed, "destroyed", p + 512, 64, 2));
    OK(cudaStreamGetId(destroyed, &one));
    OK(cudaStreamDestroy(destroyed));
    again = new_stream();
    OK(cudaStreamGetId(again, &two));
    CHECK(again == destroyed && one != two);
    OK(cudaStreamDestroy(again));
    OK(fake_write(NULL, "legacy", p + 1024, 64, 3));
    if (pthread_create(&thread, NULL, write_on_own_stream, p + 1536)) abort();
    pthread_join(thread, &answer);
    CHECK(!answer);
    OK(fake_write(cudaStreamPerThread, "own", p + 2048, 64, 5));
    OK(fake_write(blocking, "blocking", p + 2560, 64, 6));
}

static void test_context_event_in(fake_run_mode mode) {
    cudaStream_t held = new_stream(), blocking = NULL, waiter = new_stream();
    cudaEvent_t e = new_event();
    void *p = NULL, *q = NULL;
    fake_mode(mode);
    OK(cudaMalloc(&p, 4096));
    OK(cudaMalloc(&q, 4096));
    OK(cudaStreamCreate(&blocking));
    fill_context(held, blocking, p);
    OK(cuCtxRecordEvent(current_context(), e));
    IS(cudaEventQuery(e), cudaErrorNotReady);
    OK(cudaGetLastError());
    OK(fake_write(held, "later", q, 64, 7));
    OK(cudaStreamWaitEvent(waiter, e, 0));
    OK(fake_read(waiter, "ordered", at(p, 512), 64, 2));
    IS(cudaStreamQuery(waiter), cudaErrorNotReady);
    OK(cudaEventSynchronize(e));
    CHECK(fake_pending(held) == 1);             /* what came later was not waited for */
    OK(cudaEventQuery(e));
    OK(cudaStreamSynchronize(waiter));
    fake_host_access(p, 4096, 1, "the host");
    EXPECT(0, "");
    fake_quiet(1);
    OK(fake_write(waiter, "overtakes", q, 64, 8));
    EXPECT(1, "race");
    fake_quiet(0);
    fake_hold(held, 0);
    OK(cudaDeviceSynchronize());
    OK(cudaFree(p));
    OK(cudaFree(q));
    OK(cudaStreamDestroy(held));
    OK(cudaStreamDestroy(blocking));
    OK(cudaStreamDestroy(waiter));
    OK(cudaEventDestroy(e));
    EXPECT(0, "");
}

static void test_context_event(void) {
    int i;
    for (i = 0; i < 3; i++) test_context_event_in(every_mode[i]);
}

static void test_context_of_another_device(void) {
    CUcontext first = current_context(), second;
    cudaStream_t elsewhere = NULL;
    cudaEvent_t here = new_event(), there;
    OK(cudaSetDevice(1));
    second = current_context();
    CHECK(first != second);
    there = new_event();
    elsewhere = new_stream();
    fake_hold(elsewhere, 1);
    OK(cudaEventRecord(there, elsewhere));
    OK(cuCtxRecordEvent(first, here));          /* no matter which is current */
    OK(cudaEventQuery(here));
    IS(cuCtxRecordEvent(first, there), CUDA_ERROR_INVALID_HANDLE);
    IS(cuCtxRecordEvent(second, here), CUDA_ERROR_INVALID_HANDLE);
    IS(cudaEventQuery(there), cudaErrorNotReady);
    OK(cuCtxRecordEvent(second, there));
    IS(cudaEventQuery(there), cudaErrorNotReady);
    fake_hold(elsewhere, 0);
    OK(cudaEventSynchronize(there));
    OK(cudaEventDestroy(here));
    fake_quiet(1);
    IS(cuCtxRecordEvent(first, here), CUDA_ERROR_INVALID_HANDLE);
    CHECK(fake_misuses() == 1);
    IS(cuCtxRecordEvent(NULL, there), CUDA_ERROR_INVALID_CONTEXT);
    OK(cudaGetLastError());
    OK(cudaEventDestroy(there));
    OK(cudaStreamDestroy(elsewhere));
    fake_clear_failures();
}

/* What a destroyed stream did counts, whether or not it has run by now. */
static void test_context_forgets_nothing(void) {
    int i;
    for (i = 0; i < 3; i++) {
        cudaStream_t s = new_stream(), t = new_stream();
        cudaEvent_t e = new_event();
        void *p = NULL, *q = NULL;
        fake_mode(every_mode[i]);
        OK(cudaMalloc(&p, 4096));
        OK(cudaMalloc(&q, 4096));
        OK(fake_write(s, "before the end", p, 64, 1));
        OK(cudaStreamDestroy(s));
        OK(cuCtxRecordEvent(current_context(), e));
        OK(cudaStreamWaitEvent(t, e, 0));
        OK(fake_write(t, "after the event", p, 64, 2));
        EXPECT(0, "");
        s = new_stream();
        OK(fake_write(s, "unseen by the event", q, 64, 3));
        OK(cudaStreamDestroy(s));
        OK(cudaDeviceSynchronize());
        fake_host_access(q, 64, 1, "the host");
        EXPECT(0, "");
        OK(cudaFree(p));
        OK(cudaFree(q));
        EXPECT(0, "");
        OK(cudaStreamDestroy(t));
        OK(cudaEventDestroy(e));
    }
}

static void wait_for_flag(void *flag) {
    while (!atomic_load((atomic_int *)flag)) sched_yield();
}

/* A host function that runs with no lock held, in a stream that is destroyed meanwhile. */
static void test_context_host_function(void) {
    cudaStream_t s = new_stream();
    cudaEvent_t e = new_event();
    atomic_int flag;
    atomic_init(&flag, 0);
    fake_mode(FAKE_THREADED);
    OK(cudaLaunchHostFunc(s, wait_for_flag, &flag));
    while (fake_pending_all()) sched_yield();   /* it runs */
    OK(cudaStreamDestroy(s));
    OK(cuCtxRecordEvent(current_context(), e));
    IS(cudaEventQuery(e), cudaErrorNotReady);
    atomic_store(&flag, 1);
    OK(cudaEventSynchronize(e));
    OK(cudaEventQuery(e));
    OK(cudaEventDestroy(e));
}

static void test_context_captures(void) {
    static const enum cudaStreamCaptureMode modes[3] = {
        cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal,
        cudaStreamCaptureModeRelaxed};
    CUcontext context = current_context(), second;
    cudaStream_t s = new_stream();
    cudaEvent_t e = new_event(), inside = new_event(), there;
    int i;
    OK(cudaSetDevice(1));
    second = current_context();
    there = new_event();
    OK(cudaSetDevice(0));
    for (i = 0; i < 3; i++) {
        CAPTURED(modes[i], cuCtxRecordEvent(context, e), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, 1);
        CAPTURED(modes[i], cuCtxRecordEvent(second, there), 0, 0);
        CAPTURED(modes[i], cudaEventRecord(inside, s), 0, 0);
        OK(cuCtxRecordEvent(context, inside));  /* no longer the capture's */
        OK(cudaEventQuery(inside));
    }
    IS(cudaGetLastError(), cudaErrorStreamCaptureInvalidated); /* of ending the lost captures */
    OK(cudaEventDestroy(e));
    OK(cudaEventDestroy(inside));
    OK(cudaEventDestroy(there));
    OK(cudaStreamDestroy(s));
}

static void test_context_calls(void) {
    enum cudaDriverEntryPointQueryResult found;
    CUresult (*record)(CUcontext, CUevent) = NULL;
    CUcontext context = current_context();
    cudaStream_t s = new_stream();
    CUevent e = new_event();
    void *entry = NULL;
    OK(cudaGetDriverEntryPointByVersion("cuCtxRecordEvent", &entry, 12040, 0, &found));
    CHECK(!entry && found == cudaDriverEntryPointVersionNotSufficent);
    OK(cudaGetDriverEntryPointByVersion("cuCtxRecordEvent", &entry, 12050, 0, &found));
    CHECK(entry && found == cudaDriverEntryPointSuccess);
    memcpy(&record, &entry, sizeof record);
    fake_reset_counters();
    OK(record(context, e));
    CHECK(fake_driver_ns() == 4400);
    OK(record(context, e));
    CHECK(fake_driver_ns() == 4540 && fake_calls("cuCtxRecordEvent") == 2);
    fake_hold(s, 1);
    OK(cudaEventRecord(e, s));
    fake_fail_call("cuCtxRecordEvent", 1, 0, 0);
    IS(record(context, e), CUDA_ERROR_UNKNOWN);
    fake_hold(s, 0);
    fake_hold(s, 1);
    OK(cudaEventQuery(e));                      /* as it was recorded before the failure */
    fake_hold(s, 0);
    OK(cudaStreamDestroy(s));
    OK(cudaEventDestroy(e));
}

/* ---- a device's other context ---- */

/* Under the other context: a stream, and an event. */
static void make_there(CUcontext other, cudaStream_t *s, cudaEvent_t *e) {
    OK(cuCtxPushCurrent(other));
    OK(cuStreamCreate((CUstream *)s, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate((CUevent *)e, CU_EVENT_DISABLE_TIMING));
    OK(cuCtxPopCurrent(NULL));
}

static void test_other_context(void) {
    CUcontext primary = current_context(), other = fake_other_context(0), found = NULL;
    unsigned long long one = 0, two = 0;
    cudaStream_t s = NULL, here = new_stream();
    cudaEvent_t there = NULL, e = new_event();
    int device = -1;
    make_there(other, &s, &there);
    OK(cuStreamGetCtx(s, &found));
    CHECK(found == other && other != primary && other != fake_other_context(1));
    OK(cuStreamGetCtx(here, &found));
    CHECK(found == primary);
    OK(cuCtxGetId(primary, &one));
    OK(cuCtxGetId(other, &two));
    CHECK(one != two);
    IS(cuEventRecord(e, s), CUDA_ERROR_INVALID_HANDLE);
    IS(cuEventRecord(there, here), CUDA_ERROR_INVALID_HANDLE);
    IS(cuCtxRecordEvent(primary, there), CUDA_ERROR_INVALID_HANDLE);
    OK(cuEventRecord(there, s));
    OK(cuStreamWaitEvent(here, there, 0)); /* events go from context to context */
    OK(cuCtxPushCurrent(other));
    OK(cuCtxGetDevice(&device));
    OK(cuStreamGetCtx(NULL, &found));
    CHECK(device == 0 && found == other);
    OK(cuEventRecord(there, NULL));
    OK(cuCtxPopCurrent(&found));
    CHECK(found == other);
    OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed));
    OK(cuCtxRecordEvent(primary, e)); /* a capture of the other context is not in its way */
    OK(cudaStreamDestroy(s));
    OK(cudaStreamDestroy(here));
    OK(cudaEventDestroy(e));
    OK(cudaEventDestroy(there));
}

/* Who waits for one context waits for none of the other's work. */
static void test_other_context_waits(void) {
    CUcontext primary = current_context(), other = fake_other_context(0);
    cudaStream_t s[2] = {new_stream(), NULL};
    cudaEvent_t there = NULL;
    void *byte = NULL;
    int way, k;
    make_there(other, &s[1], &there);
    fake_mode(FAKE_STEPPED);
    for (way = 0; way < 4; way++) {
        OK(cuCtxPushCurrent(way & 1 ? other : primary));
        OK(cuMemHostAlloc(&byte, 1, 0));
        for (k = 0; k < 2; k++) OK(fake_write(s[k], "work", NULL, 0, 1));
        if (way & 2) OK(cuCtxSynchronize());
        else OK(cuMemFreeHost(byte));
        for (k = 0; k < 2; k++) CHECK(fake_pending(s[k]) == (k != (way & 1)));
        fake_run_all();
        if (way & 2) OK(cuMemFreeHost(byte));
        OK(cuCtxPopCurrent(NULL));
    }
    fake_mode(FAKE_EAGER);
    OK(cudaEventDestroy(there));
    for (k = 0; k < 2; k++) OK(cudaStreamDestroy(s[k]));
}

/* ---- threads' own default streams ---- */

static void in_a_thread(void *(*run)(void *), void *p) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, run, p)) abort();
    pthread_join(thread, NULL);
}

/* Two threads' are two streams, each ordered with the legacy stream, before it and after it. */
static void test_default_streams_of_threads(void) {
    char *p = NULL;
    OK(cudaMalloc((void **)&p, 4096));
    OK(fake_write(cudaStreamPerThread, "mine", p, 64, 1));
    fake_quiet(1);
    in_a_thread(write_on_own_stream, p);
    EXPECT(1, "race");
    fake_quiet(0);
    OK(fake_write(NULL, "legacy, after both", p, 64, 2));
    in_a_thread(write_on_own_stream, p);
    EXPECT(0, "");
    OK(fake_write(cudaStreamLegacy, "legacy, after it", p, 64, 3));
    OK(fake_write(cudaStreamPerThread, "mine, after legacy", p, 64, 4));
    EXPECT(0, "");
    OK(cudaFree(p));
}

/* The work of a thread's stream outlives the thread, and a wait for the context covers it. */
static void test_ended_thread(void) {
    void *p = NULL, *byte = NULL;
    OK(cudaMalloc(&p, 4096));
    OK(cudaHostAlloc(&byte, 1, 0));
    fake_mode(FAKE_STEPPED);
    in_a_thread(write_on_own_stream, p);
    CHECK(fake_pending_all() == 1);
    OK(cudaStreamSynchronize(cudaStreamPerThread)); /* this thread's: another one */
    CHECK(fake_pending_all() == 1);
    OK(cuMemFreeHost(byte));
    CHECK(fake_pending_all() == 0);
    fake_host_access(p, 64, 1, "the host");
    EXPECT(0, "");
    OK(cudaFree(p));
}

cudaError_t cudaGetDriverEntryPointByVersion_ptsz(const char *name, void **out,
                                                  unsigned int version, unsigned long long flags,
                                                  enum cudaDriverEntryPointQueryResult *status);

static CUresult (*get_id_by(int per_thread, unsigned long long flags))(CUstream,
                                                                      unsigned long long *) {
    CUresult (*get_id)(CUstream, unsigned long long *) = NULL;
    void *entry = NULL;
    enum cudaDriverEntryPointQueryResult found;
    OK(per_thread ? cudaGetDriverEntryPointByVersion_ptsz("cuStreamGetId", &entry, 12000, flags,
                                                          &found)
                  : cudaGetDriverEntryPointByVersion("cuStreamGetId", &entry, 12000, flags,
                                                     &found));
    memcpy(&get_id, &entry, sizeof get_id);
    return get_id;
}

/* Which stream 0 is to the driver: as the flag says, else as the program was compiled. */
static void test_driver_default_streams(void) {
    unsigned long long own = 0, legacy = 0, id = 0;
    int compiled;
    OK(cudaStreamGetId(cudaStreamPerThread, &own));
    OK(cudaStreamGetId(cudaStreamLegacy, &legacy));
    for (compiled = 0; compiled < 2; compiled++) {
        OK(get_id_by(compiled, cudaEnableDefault)(NULL, &id));
        CHECK(id == (compiled ? own : legacy));
        OK(get_id_by(compiled, cudaEnableLegacyStream)(NULL, &id));
        CHECK(id == legacy);
        OK(get_id_by(compiled, cudaEnablePerThreadDefaultStream)(NULL, &id));
        CHECK(id == own);
    }
}

static void *record_often(void *result) {
    CUcontext context = NULL;
    cudaStream_t s = NULL;
    cudaEvent_t e = NULL;
    void *p = NULL;
    int i, bad = cudaMalloc(&p, 4096) || cuCtxGetCurrent(&context) ||
                 cudaEventCreateWithFlags(&e, cudaEventDisableTiming);
    for (i = 0; i < 50 && !bad; i++) {
        bad |= cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking) != cudaSuccess;
        bad |= fake_write(s, "w", p, 512, i) != cudaSuccess;
        bad |= cudaStreamDestroy(s) != cudaSuccess;
        bad |= cuCtxRecordEvent(context, e) != CUDA_SUCCESS;
        if (i % 5 == 0) bad |= cudaEventSynchronize(e) != cudaSuccess;
        bad |= cudaStreamWaitEvent(cudaStreamPerThread, e, 0) != cudaSuccess;
        bad |= fake_write(cudaStreamPerThread, "r", p, 512, i + 1) != cudaSuccess;
        bad |= cudaStreamSynchronize(cudaStreamPerThread) != cudaSuccess;
    }
    bad |= cudaFree(p) || cudaEventDestroy(e);
    *(int *)result = bad;
    return NULL;
}

static void test_context_threads(void) {
    pthread_t thread[4];
    int bad[4], i, m;
    for (m = 0; m < 3; m++) {
        fake_mode(every_mode[m]);
        for (i = 0; i < 4; i++)
            if (pthread_create(&thread[i], NULL, record_often, &bad[i])) abort();
        for (i = 0; i < 4; i++) {
            pthread_join(thread[i], NULL);
            CHECK(!bad[i]);
        }
    }
    EXPECT(0, "");
}

#endif
