/* self_test.c: does fakecuda refuse what CUDA refuses, and does its oracle see what it should? */
#include "self_test_kit.h"

#include "self_test_capture.h"
#include "self_test_context.h"
#include "self_test_driver.h"
#include "self_test_fault.h"
#include "self_test_full.h"
#include "self_test_stitch.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

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

static void test_big_device_is_free(void) {
    void *p = NULL;
    OK(cudaMalloc(&p, 139 * GIB));
    OK(fake_write(NULL, "far", at(p, 138 * GIB), 4096, 9));
    CHECK(*fake_peek(at(p, 138 * GIB + 5)) == 9);
    OK(cudaFree(p));
    CHECK(fake_used_bytes(0) == 0);
}

static void test_packed(void) {
    void *p[3], *again = NULL;
    fake_packed(1);
    for (int i = 0; i < 3; i++) OK(cudaMalloc(&p[i], 512));
    CHECK(p[1] == at(p[0], 512) && p[2] == at(p[1], 512));
    OK(cudaFree(p[1]));
    OK(cudaMalloc(&again, 100));
    CHECK(again == p[1]);
    fake_packed(0);
    OK(cudaFree(again));
    OK(cudaMalloc(&p[1], 512));
    CHECK((char *)p[1] > (char *)p[2]);
    for (int i = 0; i < 3; i++) OK(cudaFree(p[i]));
}

static void test_host_memory(void) {
    void *p = NULL, *q = NULL, *m = NULL;
    char own[64];
    struct cudaPointerAttributes what;
    fake_pinned_limit(MIB);
    OK(cudaHostAlloc(&p, MIB, cudaHostAllocPortable));
    IS(cudaMallocHost(&q, 1), cudaErrorMemoryAllocation);
    memset(p, 1, MIB);
    OK(cudaPointerGetAttributes(&what, p));
    CHECK(what.type == cudaMemoryTypeHost && what.hostPointer == p);
    OK(cudaFreeHost(p));
    CHECK(fake_pinned_bytes() == 0 && fake_pinned_peak() == MIB);
    OK(cudaHostRegister(own, sizeof own, 0));
    IS(cudaHostRegister(own, sizeof own, 0), cudaErrorHostMemoryAlreadyRegistered);
    OK(cudaHostUnregister(own));
    fake_quiet(1);
    IS(cudaHostUnregister(own), cudaErrorHostMemoryNotRegistered);
    OK(cudaMallocManaged(&m, 0, cudaMemAttachGlobal));
    CHECK(m == NULL);
    OK(cudaMallocManaged(&m, 100, cudaMemAttachGlobal));
    OK(fake_write(NULL, "managed", m, 100, 5));
    OK(cudaDeviceSynchronize());
    CHECK(*(char *)m == 5);
    OK(cudaFree(m));
}

static void test_device_address_faults(void) {
    void *p = NULL;
    int status = 0;
    pid_t child;
    OK(cudaMalloc(&p, 4096));
    child = fork();
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        *(volatile char *)p = 1;
        _exit(0);
    }
    waitpid(child, &status, 0);
    CHECK(WIFSIGNALED(status) || WEXITSTATUS(status) != 0);
    OK(cudaFree(p));
}

/* ---- virtual memory ---- */

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
    EXPECT(0, "");
}

static void test_integrated(void) {
    size_t free_bytes, total;
    void *p = NULL;
    int value = -1;
    OK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_INTEGRATED, 0));
    CHECK(value == 0);
    fake_device_memory(0, 16 * MIB);
    fake_device_integrated(0, 14 * MIB);
    OK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_INTEGRATED, 0));
    CHECK(value == 1);
    OK(cudaMemGetInfo(&free_bytes, &total));
    CHECK(free_bytes == 2 * MIB && total == 16 * MIB);
    OK(cudaMalloc(&p, 8 * MIB));
    OK(cudaMemGetInfo(&free_bytes, &total));
    CHECK(free_bytes == 0 && total == 16 * MIB);
    OK(cudaFree(p));
}

/* Nobody else can have what this process has. */
static void test_others(void) {
    size_t free_bytes, total;
    void *p = NULL;
    fake_device_memory(0, 16 * MIB);
    OK(cudaMalloc(&p, 10 * MIB));
    fake_other_process(0, 16 * MIB);
    OK(cudaMemGetInfo(&free_bytes, &total));
    CHECK(free_bytes == 0);
    OK(cudaFree(p));
    OK(cudaMemGetInfo(&free_bytes, &total));
    CHECK(free_bytes == 10 * MIB);
}

static void test_vmm_limits(void) {
    CUmemAllocationProp prop = on_device(0);
    CUmemGenericAllocationHandle a = 0;
    void *entry = NULL;
    enum cudaDriverEntryPointQueryResult found;
    int value = -1;
    fake_device_memory(0, 3 * MIB);
    IS(cuMemCreate(&a, 4 * MIB, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0));
    CHECK(value == 1);
    fake_device_vmm(0, 0);
    OK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0));
    CHECK(value == 0);
    IS(cuMemCreate(&a, 2 * MIB, &prop, 0), CUDA_ERROR_NOT_SUPPORTED);
    OK(cudaGetDriverEntryPointByVersion("cuMemMap", &entry, 12000, 0, &found));
    CHECK(entry && found == cudaDriverEntryPointSuccess);
    OK(cudaGetDriverEntryPointByVersion("cuNothing", &entry, 12000, 0, &found));
    CHECK(!entry && found == cudaDriverEntryPointSymbolNotFound);
}

/* A granule that is mapped again elsewhere still knows who used it. */
static void test_remap_keeps_the_past(void) {
    CUmemAllocationProp prop = on_device(0);
    CUmemGenericAllocationHandle a = 0;
    CUdeviceptr base = 0;
    cudaStream_t s = new_stream(), t = new_stream();
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
    EXPECT(0, "");
    OK(cudaStreamDestroy(s));
    OK(cudaStreamDestroy(t));
}

/* One handle at two addresses is one memory, and each address goes by itself. */
static void test_two_addresses(void) {
    CUmemAllocationProp prop = on_device(0);
    CUmemGenericAllocationHandle a = 0;
    CUdeviceptr base = 0, other;
    cudaStream_t s = new_stream(), t = new_stream();
    fake_mode(FAKE_STEPPED);
    OK(cuMemAddressReserve(&base, 16 * MIB, 0, 0, 0));
    other = base + 4 * MIB;
    OK(cuMemCreate(&a, 4 * MIB, &prop, 0));
    OK(cuMemMap(base, 4 * MIB, 0, a, 0));
    OK(open_access(base, 4 * MIB, 0));
    OK(cuMemMap(other, 4 * MIB, 0, a, 0));
    OK(open_access(base, 8 * MIB, 0));          /* half of it is accessible already */
    OK(cuMemMap(base + 8 * MIB, 4 * MIB, 0, a, 0));
    OK(cuMemRelease(a));
    CHECK(fake_used_bytes(0) == 4 * MIB);
    OK(fake_write(s, "here", pointer(base + 3 * MIB), 4096, 1));
    OK(fake_read(s, "there", pointer(other + 3 * MIB), 4096, 1));
    EXPECT(0, "");
    fake_quiet(1);
    OK(fake_write(t, "beside", pointer(other + 3 * MIB + 4000), 8, 2));
    EXPECT(1, "race");
    OK(cudaDeviceSynchronize());
    CHECK(fake_peek(pointer(base + 3 * MIB))[4000] == 2);
    OK(fake_write(s, "still here", pointer(base), 8, 3));
    OK(cuMemUnmap(base + 8 * MIB, 4 * MIB));
    EXPECT(0, "");
    OK(cuMemUnmap(base, 8 * MIB));              /* both, of which one is in use */
    EXPECT(2, "cuMemUnmap: released while work in flight: still here");
    CHECK(fake_used_bytes(0) == 0);
    OK(cudaDeviceSynchronize());
    EXPECT(1, "no memory is mapped");
    OK(cuMemAddressFree(base, 16 * MIB));
    OK(cudaStreamDestroy(s));
    OK(cudaStreamDestroy(t));
}

/* ---- streams, events, the oracle ---- */

static void test_oracle(void) {
    cudaStream_t s = new_stream(), t = new_stream();
    cudaEvent_t e = new_event();
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
    OK(cudaEventDestroy(e));
    OK(cudaStreamDestroy(s));
    OK(cudaStreamDestroy(t));
}

static void test_stepped(void) {
    cudaStream_t s, t;
    cudaEvent_t e = new_event();
    void *p = NULL;
    fake_mode(FAKE_STEPPED);
    s = new_stream();
    t = new_stream();
    OK(cudaMalloc(&p, 4096));
    OK(cudaEventQuery(e));
    OK(fake_write(s, "a", p, 8, 1));
    OK(cudaEventRecord(e, s));
    OK(cudaStreamWaitEvent(t, e, 0));
    OK(fake_read(t, "b", p, 8, 1));
    CHECK(fake_pending(s) == 2 && fake_pending_all() == 4);
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
    CHECK(*fake_peek(p) == 3);
    OK(cudaFree(p));
    OK(cudaEventDestroy(e));
    OK(cudaStreamDestroy(t));
    EXPECT(0, "");
}

static void test_hold(void) {
    cudaStream_t s = new_stream();
    cudaEvent_t e = new_event();
    fake_hold(s, 1);
    OK(cudaEventRecord(e, s));
    IS(cudaEventQuery(e), cudaErrorNotReady);
    fake_hold(s, 0);
    OK(cudaEventQuery(e));
    fake_hold(s, 1);
    OK(cudaEventRecord(e, s));
    OK(cudaEventSynchronize(e));
    OK(cudaEventDestroy(e));
    OK(cudaStreamDestroy(s));
}

static void test_legacy_stream(void) {
    cudaStream_t blocking = NULL, free_one = new_stream();
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
    OK(fake_write(free_one, "f", p, 8, 5));
    EXPECT(1, "race");
    OK(fake_write(cudaStreamPerThread, "g", p, 8, 5));
    EXPECT(1, "race");
    OK(fake_write(blocking, "h", at(p, 512), 8, 6));
    OK(fake_write(free_one, "i", at(p, 1024), 8, 7));
    OK(cudaStreamDestroy(blocking));
    OK(cudaStreamDestroy(free_one));
    OK(fake_write(NULL, "after the blocking one's end", at(p, 512), 8, 8));
    EXPECT(0, "");
    OK(fake_write(NULL, "not after the other's", at(p, 1024), 8, 8));
    EXPECT(1, "race");
    OK(cudaFree(p));
}

static void test_handles(void) {
    cudaStream_t s = new_stream(), again;
    cudaEvent_t e = new_event();
    unsigned long long one = 0, two = 0;
    OK(cudaStreamGetId(s, &one));
    OK(cudaStreamDestroy(s));
    fake_quiet(1);
    IS(cudaEventRecord(e, s), cudaErrorInvalidResourceHandle);
    IS(cudaStreamQuery(s), cudaErrorInvalidResourceHandle);
    CHECK(fake_misuses() == 2);
    again = new_stream();
    CHECK(again == s);
    OK(cudaStreamGetId(again, &two));
    CHECK(one != two);
    OK(cudaSetDevice(1));
    OK(cudaStreamCreate(&s));
    IS(cudaEventRecord(e, s), cudaErrorInvalidResourceHandle);
    OK(cudaStreamDestroy(s));
    OK(cudaStreamDestroy(again));
    OK(cudaEventDestroy(e));
    IS(cudaEventDestroy(e), cudaErrorInvalidResourceHandle);
    IS(cudaSetDevice(2), cudaErrorInvalidDevice);
}

static void test_copies(void) {
    cudaStream_t s = new_stream();
    char *pinned = NULL, plain[256], back[256];
    void *p = NULL;
    fake_mode(FAKE_STEPPED);
    OK(cudaMalloc(&p, 4096));
    OK(cudaMallocHost((void **)(void *)&pinned, 256));
    memset(plain, 1, sizeof plain);
    memset(pinned, 2, 256);
    OK(cudaMemcpyAsync(p, plain, 256, cudaMemcpyHostToDevice, s));
    memset(plain, 9, sizeof plain);
    OK(fake_read(s, "as it was", p, 256, 1));
    OK(cudaMemcpyAsync(p, pinned, 256, cudaMemcpyDefault, s));
    fake_quiet(1);
    fake_host_access(pinned, 1, 1, "the host");
    EXPECT(1, "the host");
    OK(cudaMemcpyAsync(back, p, 256, cudaMemcpyDeviceToHost, s));
    CHECK(back[0] == 2 && back[255] == 2 && fake_pending_all() == 0);
    fake_host_access(pinned, 1, 1, "the host");
    OK(cudaMemcpy2DAsync(at(p, 1024), 64, pinned, 32, 16, 4, cudaMemcpyHostToDevice, s));
    OK(cudaMemsetAsync(at(p, 2048), 7, 16, s));
    OK(fake_read(s, "row 3", at(p, 1024 + 3 * 64), 16, 2));
    OK(fake_read(s, "set", at(p, 2048), 16, 7));
    IS(cudaMemcpyAsync(p, pinned, 1, cudaMemcpyDeviceToHost, s), cudaErrorInvalidValue);
    OK(cudaStreamSynchronize(s));
    EXPECT(0, "");
    OK(cudaFreeHost(pinned));
    OK(cudaFree(p));
    OK(cudaStreamDestroy(s));
}

static void test_registrations_end_copies(void) {
    cudaStream_t s = new_stream();
    char *host = aligned_alloc(4096, 4 * 4096);
    void *p = NULL;
    memset(host, 1, 4 * 4096);
    OK(cudaMalloc(&p, 4 * 4096));
    OK(cudaHostRegister(host + 4096, 4096, 0));
    OK(cudaHostRegister(host + 8192, 4096, 0));
    OK(cudaMemcpyAsync(p, host + 4096, 4096, cudaMemcpyDefault, s));
    IS(cudaMemcpyAsync(p, host + 4097, 4096, cudaMemcpyDefault, s), cudaErrorInvalidValue);
    IS(cudaMemcpyAsync(host + 4097, p, 4096, cudaMemcpyDefault, s), cudaErrorInvalidValue);
    IS(cudaMemcpyAsync(p, host + 8193, 4096, cudaMemcpyDefault, s), cudaErrorInvalidValue);
    IS(cudaMemcpy2DAsync(p, 8, host + 8192 - 4096, 4096, 8, 2, cudaMemcpyDefault, s),
       cudaErrorInvalidValue); /* though no row is in both */
    IS(cudaMemcpy2DAsync(p, 8, host + 8192 - 4, 4096, 8, 2, cudaMemcpyDefault, s),
       cudaErrorInvalidValue);
    OK(cudaMemcpyAsync(p, host, 8192, cudaMemcpyDefault, s)); /* ordinary where it begins */
    OK(cudaStreamSynchronize(s));
    OK(cudaHostUnregister(host + 4096));
    OK(cudaHostUnregister(host + 8192));
    OK(cudaFree(p));
    OK(cudaStreamDestroy(s));
    free(host);
    cudaGetLastError();
}

static void test_large_ordinary_copies_wait(void) {
    size_t bytes = 16 * MIB;
    cudaStream_t s = new_stream();
    char *host = calloc(1, bytes);
    void *p = NULL;
    OK(cudaMalloc(&p, bytes));
    fake_hold(s, 1);
    OK(fake_write(s, "first", p, 1, 1));
    OK(cudaMemcpyAsync(p, host, MIB, cudaMemcpyDefault, s));
    CHECK(fake_pending(s) == 2);
    OK(cudaMemcpyAsync(p, host, bytes, cudaMemcpyDefault, s));
    CHECK(fake_pending(s) == 1); /* what came before it has run */
    fake_hold(s, 0);
    OK(cudaStreamSynchronize(s));
    OK(cudaFree(p));
    OK(cudaStreamDestroy(s));
    free(host);
}

static void add_one(void *number) { ++*(int *)number; }

static void test_threaded(void) {
    cudaStream_t s[8];
    cudaEvent_t e = new_event();
    void *p = NULL;
    int i, round, count = 0;
    fake_mode(FAKE_THREADED);
    OK(cudaMalloc(&p, 4096));
    for (i = 0; i < 8; i++) s[i] = new_stream();
    for (round = 0; round < 200; round++) {
        cudaStream_t from = s[round % 8], to = s[(round * 5 + 3) % 8];
        if (fake_write(from, "w", p, 512, round & 255)) break;
        if (cudaLaunchHostFunc(from, add_one, &count)) break;
        if (cudaEventRecord(e, from) || cudaStreamWaitEvent(to, e, 0)) break;
        if (fake_read(to, "r", p, 512, round & 255)) break;
        if (cudaEventRecord(e, to) || cudaStreamWaitEvent(s[(round + 1) % 8], e, 0)) break;
    }
    OK(cudaDeviceSynchronize());
    CHECK(round == 200 && count == 200);
    EXPECT(0, "");
    for (i = 0; i < 8; i++) OK(cudaStreamDestroy(s[i]));
    OK(cudaEventDestroy(e));
    OK(cudaFree(p));
    fake_mode(FAKE_EAGER);
}

/* ---- more than one device, thread, default stream ---- */

static void test_peers(void) {
    void *p = NULL;
    int can = 0;
    OK(cudaMalloc(&p, 4096));
    OK(cudaSetDevice(1));
    fake_quiet(1);
    OK(fake_write(NULL, "stranger", p, 8, 1));
    EXPECT(1, "without access from device 1");
    OK(cudaDeviceCanAccessPeer(&can, 1, 0));
    CHECK(can == 1);
    OK(cudaDeviceEnablePeerAccess(0, 0));
    IS(cudaDeviceEnablePeerAccess(0, 0), cudaErrorPeerAccessAlreadyEnabled);
    OK(cudaDeviceSynchronize());
    OK(fake_write(NULL, "peer", p, 8, 1));
    EXPECT(0, "");
    OK(cudaFree(p));
    CHECK(fake_used_bytes(0) == 0);
    OK(cudaSetDevice(0));
    OK(cudaDeviceReset());
    OK(cudaSetDevice(1));
    OK(cudaDeviceEnablePeerAccess(0, 0));
    OK(cudaDeviceReset());
    OK(cudaDeviceEnablePeerAccess(0, 0));
}

/* Whose work a call waits for: the device's that was current when the memory was had. */
static void test_waits_of_one_device(void) {
    void *p = NULL, *there = NULL;
    cudaStream_t s = NULL;
    int way;
    fake_mode(FAKE_STEPPED);
    for (way = 0; way < 4; way++) {
        OK(cudaSetDevice(way / 2));
        OK(cudaHostAlloc(&p, 4096, way & 1 ? cudaHostAllocPortable : 0));
        OK(cudaSetDevice(1));
        OK(cudaMalloc(&there, 4096));
        OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
        OK(fake_write(s, "of device 1", there, 8, 1));
        OK(cudaSetDevice(0));
        OK(cudaFreeHost(p));
        CHECK(fake_pending_all() == (way / 2 ? 0 : 1));
        OK(cudaFree(there));
        CHECK(fake_pending_all() == 0);
        OK(cudaStreamDestroy(s));
    }
}

cudaError_t cudaMemsetAsync_ptsz(void *p, int value, size_t n, cudaStream_t s);
cudaError_t cudaStreamGetId_ptsz(cudaStream_t s, unsigned long long *id);
cudaError_t cudaStreamGetCaptureInfo_v2(cudaStream_t s, enum cudaStreamCaptureStatus *status,
                                        unsigned long long *id, cudaGraph_t *graph,
                                        const cudaGraphNode_t **nodes, size_t *n);

static void *own_stream_id(void *unused) {
    unsigned long long id = 0;
    (void)unused;
    OK(cudaStreamGetId(cudaStreamPerThread, &id));
    return (void *)(uintptr_t)id;
}

static void test_per_thread_stream(void) {
    enum cudaStreamCaptureStatus status;
    unsigned long long own = 0, zero = 0, legacy = 0;
    pthread_t thread;
    void *other = NULL, *p = NULL;
    OK(cudaStreamGetId(cudaStreamPerThread, &own));
    OK(cudaStreamGetId_ptsz(NULL, &zero));
    OK(cudaStreamGetId_ptsz(cudaStreamLegacy, &legacy));
    CHECK(own == zero && own != legacy);
    OK(cudaStreamGetCaptureInfo_v2(cudaStreamPerThread, &status, NULL, NULL, NULL, NULL));
    CHECK(status == cudaStreamCaptureStatusNone);
    if (pthread_create(&thread, NULL, own_stream_id, NULL) == 0) pthread_join(thread, &other);
    CHECK(other && (unsigned long long)(uintptr_t)other != own);
    OK(cudaMalloc(&p, 64));
    OK(cudaMemsetAsync_ptsz(p, 3, 64, NULL));
    OK(fake_read(cudaStreamPerThread, "own", p, 64, 3));
    EXPECT(0, "");
    OK(cudaFree(p));
}

static void *busy_thread(void *result) {
    cudaStream_t s = NULL;
    cudaEvent_t e = NULL;
    void *p = NULL;
    int i, bad = cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking) ||
                 cudaEventCreateWithFlags(&e, cudaEventDisableTiming) || cudaMalloc(&p, 8192);
    for (i = 0; i < 100 && !bad; i++) {
        bad |= fake_write(s, "w", p, 8192, i) != cudaSuccess;
        bad |= cudaEventRecord(e, s) != cudaSuccess;
        bad |= fake_read(s, "r", p, 8192, i) != cudaSuccess;
        if (i % 10 == 0) bad |= cudaEventSynchronize(e) != cudaSuccess;
    }
    bad |= cudaFree(p) || cudaEventDestroy(e) || cudaStreamDestroy(s);
    *(int *)result = bad;
    return NULL;
}

static void test_host_threads(void) {
    static const fake_run_mode modes[3] = {FAKE_EAGER, FAKE_STEPPED, FAKE_THREADED};
    pthread_t thread[4];
    int bad[4], i, m;
    for (m = 0; m < 3; m++) {
        fake_mode(modes[m]);
        for (i = 0; i < 4; i++)
            if (pthread_create(&thread[i], NULL, busy_thread, &bad[i])) abort();
        for (i = 0; i < 4; i++) {
            pthread_join(thread[i], NULL);
            CHECK(!bad[i]);
        }
    }
    CHECK(fake_live_objects() == 0);
    EXPECT(0, "");
}

static void test_reset_of_one_device(void) {
    cudaStream_t s = new_stream(), elsewhere = NULL;
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    void *p = NULL;
    OK(cudaSetDevice(1));
    OK(cudaStreamCreate(&elsewhere));
    OK(cudaSetDevice(0));
    OK(cudaMalloc(&p, 64));
    OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed));
    OK(cudaMemsetAsync(p, 1, 64, s));
    OK(end(s, &graph));
    OK(cudaGraphInstantiate(&exec, graph, 0));
    OK(cudaGraphLaunch(exec, s));
    OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
    OK(cudaDeviceReset());
    OK(cudaStreamQuery(elsewhere));
    OK(cudaStreamDestroy(elsewhere));
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphDestroy(graph));
    CHECK(fake_live_objects() == 0);
}

/* Mapped memory outlives it, at all of its addresses, with what is in it; no other memory does. */
static void test_memory_after_a_reset(void) {
    CUmemAllocationProp prop = on_device(0);
    CUmemGenericAllocationHandle a = 0;
    CUdeviceptr base = 0;
    void *device = NULL, *host = NULL, *managed = NULL, *own = aligned_alloc(4096, 4096);
    unsigned char byte = 0;
    OK(cuMemAddressReserve(&base, 4 * MIB, 0, 0, 0));
    OK(cuMemCreate(&a, 2 * MIB, &prop, 0));
    OK(cuMemMap(base, 2 * MIB, 0, a, 0));
    OK(cuMemMap(base + 2 * MIB, 2 * MIB, 0, a, 0));
    OK(open_access(base, 4 * MIB, 0));
    OK(cudaMemset((void *)(uintptr_t)base, 7, 64));
    OK(cudaMalloc(&device, 64));
    OK(cudaHostAlloc(&host, 64, cudaHostAllocPortable));
    OK(cudaMallocManaged(&managed, 64, cudaMemAttachGlobal));
    OK(cudaHostRegister(own, 4096, cudaHostRegisterPortable));
    OK(cudaDeviceReset());
    OK(cudaMemcpy(&byte, (void *)(uintptr_t)base, 1, cudaMemcpyDeviceToHost));
    CHECK(byte == 7 && fake_used_bytes(0) == 2 * MIB);
    byte = 0;
    OK(cudaMemcpy(&byte, (void *)(uintptr_t)(base + 2 * MIB), 1, cudaMemcpyDeviceToHost));
    CHECK(byte == 7 && fake_mappings() == 2);
    fake_quiet(1);
    IS(cudaFree(device), cudaErrorInvalidValue);
    IS(cudaFree(managed), cudaErrorInvalidValue);
    IS(cudaFreeHost(host), cudaErrorInvalidValue);
    IS(cudaHostUnregister(own), cudaErrorHostMemoryNotRegistered);
    CHECK(fake_misuses() == 4);
    fake_clear_failures();
    fake_quiet(0);
    free(own);
    OK(cuMemUnmap(base, 4 * MIB));
    OK(cuMemRelease(a));
    OK(cuMemAddressFree(base, 4 * MIB));
    CHECK(fake_used_bytes(0) == 0);
    CHECK(fake_live_objects() == 0);
}

static void test_prices(void) {
    CUmemAllocationProp prop = on_device(0);
    CUmemGenericAllocationHandle a = 0;
    CUdeviceptr base = 0;
    unsigned i;
    OK(cuMemAddressReserve(&base, GIB, 0, 0, 0));
    fake_reset_counters();
    OK(cuMemCreate(&a, GIB, &prop, 0));
    OK(cuMemMap(base, GIB, 0, a, 0));
    OK(open_access(base, GIB, 0));
    CHECK(fake_driver_ns() == 25000 + 1000 + 36000);
    OK(cuMemUnmap(base, GIB));
    OK(cuMemRelease(a));
    CHECK(fake_driver_ns() == 25000 + 1000 + 36000 + 22200 + 220000);
    OK(cuMemCreate(&a, 2 * MIB, &prop, 0)); /* measured: 4 mappings of 2 MiB, 4 + 120 + 80 us */
    fake_reset_counters();
    for (i = 0; i < 4; i++) OK(cuMemMap(base + i * 2 * MIB, 2 * MIB, 0, a, 0));
    OK(open_access(base, 8 * MIB, 0));
    CHECK(fake_driver_ns() == 4000 + 120000);
    OK(cuMemUnmap(base, 8 * MIB));
    CHECK(fake_driver_ns() == 4000 + 120000 + 79800);
    fake_reset_counters();
    OK(cuMemRelease(a));
    CHECK(fake_driver_ns() == 16000);
    OK(cuMemAddressFree(base, GIB));
}

/* ---- faults, counters, ends ---- */

static void test_faults(void) {
    void *p = NULL;
    size_t a, b;
    fake_fail_nth(2, 0);
    OK(cudaMemGetInfo(&a, &b));
    IS(cudaMalloc(&p, 512), cudaErrorMemoryAllocation);
    OK(cudaMalloc(&p, 512));
    fake_fail_nth(1, 1);
    fake_fail_except("cudaFree,cudaSetDevice");
    IS(cudaMemGetInfo(&a, &b), cudaErrorUnknown);
    IS(cudaMemGetInfo(&a, &b), cudaErrorUnknown);
    OK(cudaSetDevice(0));
    OK(cudaFree(p));
    CHECK(fake_fail_fired() == 3);
    fake_fail_clear();
    fake_fail_call("cudaMalloc", 2, 0, cudaErrorNotPermitted);
    OK(cudaMalloc(&p, 512));
    fake_fail_pause(1);
    OK(cudaFree(p));
    OK(cudaMalloc(&p, 512));
    fake_fail_pause(0);
    IS(cudaMalloc(&p, 512), cudaErrorNotPermitted);
    CHECK(fake_live_objects() == 1);
    OK(cudaFree(p));
    fake_fail_clear();
    fake_reset_counters();
    OK(cudaMalloc(&p, 4096));
    OK(cudaFree(p));
    CHECK(fake_calls("cudaMalloc") == 1 && fake_calls(NULL) == 2);
    CHECK(fake_driver_ns() > 49000 && fake_driver_ns() < 51000 && fake_inside_ns() > 0);
    cudaGetLastError();
}

static void test_ends(void) {
    void *p = NULL;
    cudaStream_t s = new_stream();
    int status = 0, device = 0;
    pid_t child = fork();
    if (child == 0)
        _exit(cudaGetDevice(&device) == cudaErrorInitializationError &&
                      cuMemUnmap(0, 0) == CUDA_ERROR_NOT_INITIALIZED ? 7 : 1);
    waitpid(child, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);
    fake_shutdown(1);
    IS(cudaMalloc(&p, 1), cudaErrorCudartUnloading);
    IS(cuMemUnmap(0, 0), CUDA_ERROR_DEINITIALIZED);
    fake_shutdown(0);
    OK(cudaMalloc(&p, 1));
    OK(cudaDeviceReset());
    fake_quiet(1);
    IS(cudaStreamQuery(s), cudaErrorInvalidResourceHandle);
    CHECK(fake_live_objects() == 0 && fake_used_bytes(0) == 0);
    OK(cudaMalloc(&p, 1));
    CHECK(fake_reset() == 1 && fake_live_objects() == 0);   /* says on stderr what was left */
    CHECK(strcmp(cudaGetErrorName(cudaErrorMemoryAllocation), "cudaErrorMemoryAllocation") == 0);
    fake_clear_failures();
}

int main(int arguments, char **argument) {
    static void (*const tests[])(void) = {
        test_malloc, test_big_device_is_free, test_packed, test_host_memory,
        test_device_address_faults,
        test_vmm_rules, test_vmm_limits, test_others, test_integrated, test_remap_keeps_the_past,
        test_two_addresses,
        test_stitch_bytes, test_stitch_races, test_stitch_in_one_operation,
        test_stitch_goes_by_itself, test_stitch_outlives_handle_and_home, test_stitch_asked,
        test_stitch_in_a_graph, test_stitch_in_a_capture, test_stitch_left_behind,
        test_stitch_by_chance,
        test_oracle, test_stepped, test_hold, test_legacy_stream, test_handles, test_copies,
        test_registrations_end_copies, test_large_ordinary_copies_wait,
        test_threaded, test_capture_table, test_capture_threads,
        test_captured_event_in_relaxed_mode,
        test_capture_of_a_destroyed_stream, test_capture_beside_legacy,
        test_graph, test_context_event, test_context_of_another_device,
        test_context_forgets_nothing, test_context_host_function, test_context_captures,
        test_context_calls, test_context_threads, test_peers, test_waits_of_one_device,
        test_driver_contexts, test_driver_contexts_after_a_reset, test_driver_memory,
        test_driver_frees_wait, test_driver_pointers, test_driver_copies, test_driver_captures,
        test_driver_peers, test_driver_host_function, test_driver_prices,
        test_per_thread_stream, test_host_threads, test_reset_of_one_device,
        test_memory_after_a_reset, test_prices, test_faults, test_resource_faults,
        test_broken_context, test_classes_spare, test_told_by_environment, test_full_makes_room,
        test_full_is_not_captured, test_full_by_default, test_full_in_threads,
        test_stuck_others_go_on, test_stuck_others_wait, test_firm_hold,
        test_other_context, test_other_context_waits, test_default_streams_of_threads,
        test_ended_thread, test_driver_default_streams, test_ends};
    size_t i;
    self = argument[0];
    if (arguments > 1) return run_as_told(argument[1]);
    for (i = 0; i < sizeof tests / sizeof tests[0]; i++) {
        tests[i]();
        EXPECT(0, "a failure that the test did not expect");
        CHECK(fake_reset() == 0);
    }
    printf("%ld passed, %ld failed\n", atomic_load(&passed), atomic_load(&failed));
    return failed != 0;
}
