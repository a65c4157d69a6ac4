/* self_test_driver.h: the driver's calls that do what calls of the runtime do. What is expected of
   them was seen on an H100 (CUDA 13.0). */
#ifndef SELF_TEST_DRIVER_H
#define SELF_TEST_DRIVER_H

#include "self_test_kit.h"

static CUcontext hold_context(int device) {
    CUcontext context = NULL;
    OK(cuDevicePrimaryCtxRetain(&context, device));
    CHECK(context != NULL);
    return context;
}

static CUdeviceptr number(const void *p) { return (CUdeviceptr)(uintptr_t)p; }

/* ---- contexts ---- */

static void *without_a_context(void *stream) {
    cudaStream_t s = (cudaStream_t)stream;
    CUstreamCaptureStatus status;
    unsigned long long id = 0;
    CUcontext context = (CUcontext)s;
    CUevent event = NULL;
    CUdeviceptr p;
    size_t size;
    int device;
    char own[64];
    OK(cuCtxGetCurrent(&context));
    CHECK(context == NULL);
    IS(cuEventCreate(&event, 0), CUDA_ERROR_INVALID_CONTEXT);
    IS(cuMemAlloc(&p, 1), CUDA_ERROR_INVALID_CONTEXT);
    IS(cuMemGetInfo(&size, &size), CUDA_ERROR_INVALID_CONTEXT);
    IS(cuMemHostRegister(own, 1, 0), CUDA_ERROR_INVALID_CONTEXT);
    IS(cuCtxGetDevice(&device), CUDA_ERROR_INVALID_CONTEXT);
    IS(cuStreamIsCapturing(CU_STREAM_LEGACY, &status), CUDA_ERROR_INVALID_CONTEXT);
    IS(cuStreamSynchronize(CU_STREAM_PER_THREAD), CUDA_ERROR_INVALID_CONTEXT);
    OK(cuStreamGetCtx(s, &context));
    OK(cuCtxPushCurrent(context));
    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    OK(cuCtxPopCurrent(NULL));
    OK(cuStreamIsCapturing(s, &status));
    OK(cuStreamGetId(s, &id));
    OK(cuEventRecord(event, s));
    OK(cuStreamWaitEvent(s, event, 0));
    OK(cuStreamSynchronize(s));
    OK(cuStreamQuery(s));
    OK(cuEventSynchronize(event));
    OK(cuEventDestroy(event));
    OK(cudaGetLastError());
    return NULL;
}

static void test_driver_contexts(void) {
    CUcontext context = hold_context(1), none = context;
    CUstream s = NULL;
    CUdeviceptr p = 0;
    pthread_t thread;
    int device = -1, now = -1;
    OK(cuInit(0));
    IS(cuInit(1), CUDA_ERROR_INVALID_VALUE);
    OK(cuDeviceGetCount(&device));
    CHECK(device == 2 && fake_has_context(1) && !fake_has_context(0));
    IS(cuDevicePrimaryCtxRetain(&none, 2), CUDA_ERROR_INVALID_DEVICE);
    IS(cuMemAlloc(&p, 1), CUDA_ERROR_INVALID_CONTEXT);  /* retaining makes none current */
    OK(cuCtxPushCurrent(context));
    OK(cuCtxGetDevice(&device));
    OK(cudaGetDevice(&now));
    CHECK(device == 1 && now == 1);
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    OK(cuMemAlloc(&p, MIB));
    CHECK(fake_used_bytes(1) == MIB && fake_used_bytes(0) == 0);
    OK(cuCtxPopCurrent(&none));
    CHECK(none == context);
    OK(cuCtxGetCurrent(&none));
    CHECK(none == NULL);
    IS(cuCtxPopCurrent(NULL), CUDA_ERROR_INVALID_CONTEXT);
    OK(cudaGetDevice(&now));
    CHECK(now == 0 && !fake_has_context(0));
    CHECK(pthread_create(&thread, NULL, without_a_context, s) == 0);
    pthread_join(thread, NULL);
    OK(cuDevicePrimaryCtxRelease(1));                   /* with all that is in it */
    CHECK(!fake_has_context(1) && fake_used_bytes(1) == 0 && fake_live_objects() == 0);
    fake_quiet(1);
    IS(cuDevicePrimaryCtxRelease(1), CUDA_ERROR_INVALID_CONTEXT);
    CHECK(fake_misuses() == 1);
    fake_clear_failures();
}

/* The runtime's hold keeps a context, and a reset takes no retaining back. */
static void test_driver_contexts_after_a_reset(void) {
    CUcontext context = hold_context(0), again;
    unsigned long long before = 0, after = 0;
    CUdeviceptr p = 0;
    OK(cuCtxGetId(context, &before));
    OK(cudaFree(NULL));
    OK(cuDevicePrimaryCtxRelease(0));
    CHECK(fake_has_context(0));
    CHECK(hold_context(0) == context);
    CHECK(fake_live_objects() == 1);
    OK(cudaDeviceReset());
    CHECK(!fake_has_context(0));
    IS(cuCtxGetId(context, &after), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    OK(cuCtxPushCurrent(context));
    IS(cuMemAlloc(&p, 1), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    again = hold_context(0);
    OK(cuCtxGetId(context, &after));
    CHECK(again == context && after != before);
    OK(cuMemAlloc(&p, 1));
    OK(cuMemFree(p));
    OK(cuCtxPopCurrent(NULL));
    OK(cuDevicePrimaryCtxRelease(0));
    CHECK(fake_has_context(0));
    OK(cuDevicePrimaryCtxRelease(0));
    CHECK(!fake_has_context(0));
}

/* ---- memory ---- */

static void test_driver_memory(void) {
    CUdeviceptr p = 0, m = 0;
    size_t free_bytes = 0, total = 0;
    void *h = pointer(1);
    char own[64];
    OK(cudaSetDevice(0));
    fake_device_memory(0, 16 * MIB);
    fake_pinned_limit(MIB);
    IS(cuMemAlloc(&p, 0), CUDA_ERROR_INVALID_VALUE);
    IS(cuMemAlloc(NULL, 1), CUDA_ERROR_INVALID_VALUE);
    IS(cuMemAlloc(&p, GIB), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemAlloc(&p, 3 * MIB));
    CHECK(fake_used_bytes(0) == 4 * MIB);
    OK(cuMemGetInfo(&free_bytes, &total));
    CHECK(free_bytes == 12 * MIB && total == 16 * MIB);
    IS(cuMemGetInfo(NULL, &total), CUDA_ERROR_INVALID_VALUE);
    IS(cuMemAllocManaged(&m, 0, CU_MEM_ATTACH_GLOBAL), CUDA_ERROR_INVALID_VALUE);
    IS(cuMemAllocManaged(&m, 1, 0), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemAllocManaged(&m, 100, CU_MEM_ATTACH_GLOBAL));
    OK(cuMemHostAlloc(&h, 0, CU_MEMHOSTALLOC_PORTABLE));
    CHECK(h == NULL);
    IS(cuMemHostAlloc(&h, 1, 8), CUDA_ERROR_INVALID_VALUE);
    IS(cuMemHostAlloc(&h, MIB + 1, 0), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemHostAlloc(&h, 4096, CU_MEMHOSTALLOC_PORTABLE));
    OK(cuMemHostRegister(own, sizeof own, CU_MEMHOSTREGISTER_PORTABLE));
    IS(cuMemHostRegister(own, sizeof own, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    OK(cuMemHostUnregister(own));
    OK(cuMemFree(0));
    OK(cuMemFreeHost(NULL));
    fake_quiet(1);
    IS(cuMemHostUnregister(own), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    IS(cuMemFree(p + 64), CUDA_ERROR_INVALID_VALUE);
    IS(cuMemFree(number(h)), CUDA_ERROR_INVALID_VALUE);
    IS(cuMemFreeHost(pointer(p)), CUDA_ERROR_INVALID_VALUE);
    CHECK(fake_misuses() == 4);
    fake_clear_failures();
    OK(cuMemFree(p));
    OK(cuMemFree(m));
    OK(cuMemFreeHost(h));
    CHECK(fake_used_bytes(0) == 0 && fake_pinned_bytes() == 0);
    OK(cudaGetLastError());
}

/* Freeing waits for all work of the device, whatever the memory. */
static void test_driver_frees_wait(void) {
    cudaStream_t s = new_stream();
    CUdeviceptr p = 0;
    void *h = NULL;
    char own[64];
    fake_mode(FAKE_STEPPED);
    OK(cuMemAlloc(&p, MIB));
    OK(cuMemHostAlloc(&h, 64, 0));
    OK(cuMemHostRegister(own, sizeof own, 0));
    OK(fake_kernel(s, "work", NULL, 0));
    OK(cuMemFree(p));
    CHECK(fake_pending(s) == 0);
    OK(fake_kernel(s, "work", NULL, 0));
    OK(cuMemFreeHost(h));
    CHECK(fake_pending(s) == 0);
    OK(fake_kernel(s, "work", NULL, 0));
    OK(cuMemHostUnregister(own));
    CHECK(fake_pending(s) == 0);
    OK(cudaStreamDestroy(s));
}

static void test_driver_pointers(void) {
    static const struct { unsigned type, managed; } expected[] = {
        {0, 0}, {CU_MEMORYTYPE_DEVICE, 0}, {CU_MEMORYTYPE_DEVICE, 1}, {CU_MEMORYTYPE_HOST, 0}};
    CUpointer_attribute asked[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                   CU_POINTER_ATTRIBUTE_IS_MANAGED};
    unsigned type, managed;
    void *answers[2] = {&type, &managed}, *h = NULL;
    CUdeviceptr p[4] = {0, 0, 0, 0};
    int i;
    OK(cudaSetDevice(0));
    p[0] = number(&h);
    OK(cuMemAlloc(&p[1], 64));
    OK(cuMemAllocManaged(&p[2], 64, CU_MEM_ATTACH_GLOBAL));
    OK(cuMemHostAlloc(&h, 64, 0));
    p[3] = number(h);
    for (i = 0; i < 4; i++) {
        type = managed = 9;
        OK(cuPointerGetAttributes(2, asked, answers, p[i]));
        CHECK(type == expected[i].type && managed == expected[i].managed);
    }
    IS(cuPointerGetAttributes(0, asked, answers, p[0]), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemFree(p[1]));
    OK(cuMemFree(p[2]));
    OK(cuMemFreeHost(h));
}

/* ---- copies ---- */

static void test_driver_copies(void) {
    static unsigned char from[4096], to[4096];
    CUDA_MEMCPY2D rows;
    cudaStream_t s = new_stream();
    CUdeviceptr p = 0;
    OK(cuMemAlloc(&p, 4096));
    memset(from, 7, sizeof from);
    OK(cuMemsetD8Async(p, 3, 4096, s));
    OK(cuMemcpyAsync(p, number(from), 100, s));
    OK(cuMemcpyAsync(number(to), p, 4096, s));
    CHECK(to[99] == 7 && to[100] == 3 && to[4095] == 3);
    OK(cuMemcpyAsync(0, 0, 0, s));
    IS(cuMemcpyAsync(0, p, 1, s), CUDA_ERROR_INVALID_VALUE);
    IS(cuMemsetD8Async(number(to), 3, 1, s), CUDA_ERROR_INVALID_VALUE);
    memset(&rows, 0, sizeof rows);
    rows.srcMemoryType = rows.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
    rows.srcDevice = p;
    rows.srcPitch = 64;
    rows.dstDevice = number(to);
    rows.dstPitch = 128;
    rows.WidthInBytes = 10;
    rows.Height = 4;
    memset(to, 0, sizeof to);
    OK(cuMemcpy2DAsync(&rows, s));
    CHECK(to[9] == 7 && to[10] == 0 && to[128 + 9] == 7 && to[3 * 128] == 3 && to[4 * 128] == 0);
    rows.dstPitch = 9;
    IS(cuMemcpy2DAsync(&rows, s), CUDA_ERROR_INVALID_VALUE);
    rows.dstPitch = 128;
    rows.dstMemoryType = CU_MEMORYTYPE_HOST;
    IS(cuMemcpy2DAsync(&rows, s), CUDA_ERROR_INVALID_VALUE);
    IS(cuMemcpy2DAsync(NULL, s), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemHostRegister(from, 1024, 0));
    IS(cuMemcpyAsync(p, number(from), 2048, s), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemHostUnregister(from));
    OK(cuMemFree(p));
    OK(cudaStreamDestroy(s));
    OK(cudaGetLastError());
}

/* ---- captures ---- */

static void test_driver_captures(void) {
    enum cudaStreamCaptureMode relaxed = cudaStreamCaptureModeRelaxed;
    const enum cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
    cudaStream_t s = new_stream(), other = new_stream();
    CUevent event = NULL;
    CUcontext context;
    CUdeviceptr p = 0, q = 0;
    unsigned long long id;
    size_t size;
    void *h = NULL;
    char own[64];
    OK(cuMemAlloc(&p, 64));
    OK(cuMemHostAlloc(&h, 64, 0));
    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    CAPTURED(mode, cuMemAlloc(&q, 64), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, 1);
    CAPTURED(mode, cuMemAllocManaged(&q, 64, 1), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, 1);
    CAPTURED(mode, cuMemHostAlloc(&h, 64, 0), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, 1);
    CAPTURED(mode, cuMemHostRegister(own, 64, 0), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, 1);
    CAPTURED(mode, cuMemHostUnregister(own), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, 1);
    CAPTURED(mode, cuMemFree(p), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, 1);
    CAPTURED(mode, cuMemFreeHost(h), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, 1);
    CAPTURED(mode, cuStreamSynchronize(other), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, 1);
    CAPTURED(mode, cuStreamQuery(other), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, 1);
    CAPTURED(mode, cuEventQuery(event), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, 1);
    CAPTURED(mode, cuEventSynchronize(event), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, 1);
    CAPTURED(mode, cuStreamGetId(s, &id), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, 1);
    CAPTURED(mode, cuStreamGetId(other, &id), 0, 0);
    CAPTURED(mode, cuMemGetInfo(&size, &size), 0, 0);
    CAPTURED(mode, cuMemsetD8Async(p, 1, 64, other), 0, 0);
    CAPTURED(mode, cuDevicePrimaryCtxRetain(&context, 0), 0, 0);
    CAPTURED(mode, cuDevicePrimaryCtxRelease(0), 0, 0);
    CAPTURED(mode, cuEventDestroy(event), 0, 0);
    CAPTURED(mode, cuEventCreate(&event, 0), 0, 0);
    CAPTURED(mode, cuStreamDestroy(other), 0, 0);
    CAPTURED(mode, cuStreamCreate(&other, CU_STREAM_NON_BLOCKING), 0, 0);
    OK(cudaThreadExchangeStreamCaptureMode(&relaxed));
    CAPTURED(mode, cuMemAlloc(&q, 64), 0, 0);
    CAPTURED(mode, cuMemFree(q), 0, 0);
    CAPTURED(mode, cuMemFreeHost(h), 0, 0);
    CAPTURED(mode, cuStreamSynchronize(other), 0, 0);
    CAPTURED(mode, cuEventSynchronize(event), 0, 0);
    OK(cudaThreadExchangeStreamCaptureMode(&relaxed));
    cudaGetLastError();
    OK(cuMemFree(p));
    OK(cuEventDestroy(event));
    OK(cuStreamDestroy(other));
    OK(cuStreamDestroy(s));
}

/* ---- peers, host functions, prices ---- */

static void test_driver_peers(void) {
    CUcontext first = hold_context(0), second = hold_context(1);
    int can = -1;
    OK(cuDeviceCanAccessPeer(&can, 1, 0));
    CHECK(can == 1);
    fake_device_peers(0, 0);
    OK(cuDeviceCanAccessPeer(&can, 1, 0));
    CHECK(can == 0);
    IS(cuDeviceCanAccessPeer(&can, 1, 9), CUDA_ERROR_INVALID_DEVICE);
    IS(cuCtxEnablePeerAccess(first, 0), CUDA_ERROR_INVALID_CONTEXT); /* to what? */
    OK(cuCtxPushCurrent(second));
    IS(cuCtxEnablePeerAccess(first, 1), CUDA_ERROR_INVALID_VALUE);
    IS(cuCtxEnablePeerAccess(second, 0), CUDA_ERROR_INVALID_DEVICE);
    IS(cuCtxEnablePeerAccess(NULL, 0), CUDA_ERROR_INVALID_CONTEXT);
    OK(cuCtxEnablePeerAccess(first, 0));
    IS(cuCtxEnablePeerAccess(first, 0), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    OK(cuCtxPopCurrent(NULL));
    OK(cuDevicePrimaryCtxRelease(0));
    OK(cuDevicePrimaryCtxRelease(1));
    OK(cudaGetLastError());
}

static CUevent event_to_ask;
static int answers[3];

static void calls_cuda(void *unused) {
    (void)unused;
    answers[0] = (int)cuEventQuery(event_to_ask);
    answers[1] = (int)cudaEventQuery(event_to_ask);
    answers[2] = (int)cudaPeekAtLastError();
}

/* CUDA forbids its calls to a host function, even those that only ask. */
static void test_driver_host_function(void) {
    cudaStream_t s = new_stream();
    event_to_ask = new_event();
    fake_quiet(1);
    OK(cudaLaunchHostFunc(s, calls_cuda, NULL));
    OK(cudaStreamSynchronize(s));
    CHECK(answers[0] == CUDA_ERROR_NOT_PERMITTED && answers[1] == (int)cudaErrorNotPermitted);
    CHECK(fake_misuses() == 3);
    CHECK(strstr(fake_misuse_text(), "cudaPeekAtLastError called from a host function") != NULL);
    fake_clear_failures();
    cudaGetLastError();
    OK(cudaEventDestroy(event_to_ask));
    OK(cudaStreamDestroy(s));
}

/* By its plain name, a call costs what the runtime's does. */
static void test_driver_prices(void) {
    enum cudaDriverEntryPointQueryResult found;
    void *entry = NULL, *p = NULL;
    CUdeviceptr q = 0;
    uint64_t price;
    OK(cudaGetDriverEntryPointByVersion("cuMemAlloc", &entry, 10020, 0, &found));
    CHECK(entry && found == cudaDriverEntryPointSuccess);
    OK(cudaGetDriverEntryPointByVersion("cuStreamGetId", &entry, 11080, 0, &found));
    CHECK(!entry && found == cudaDriverEntryPointVersionNotSufficent);
    OK(cudaSetDevice(0));
    fake_reset_counters();
    OK(cudaMalloc(&p, MIB));
    OK(cudaFree(p));
    price = fake_driver_ns();
    fake_reset_counters();
    OK(cuMemAlloc(&q, MIB));
    OK(cuMemFree(q));
    CHECK(price > 0 && fake_driver_ns() == price);
    fake_fail_call("cuMemAlloc", 1, 0, 0);
    IS(cuMemAlloc(&q, MIB), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cudaGetLastError());
    OK(cuCtxPushCurrent(hold_context(1)));
    fake_fail_nth(1, 1);                                /* it spares what takes back */
    OK(cuCtxPopCurrent(NULL));
    OK(cuDevicePrimaryCtxRelease(1));
    IS(cuCtxGetDevice(&(int){0}), CUDA_ERROR_UNKNOWN);
    fake_fail_clear();
}

#endif
