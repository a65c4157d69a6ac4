/* self_test_fault.h: faults by class. */
#ifndef SELF_TEST_FAULT_H
#define SELF_TEST_FAULT_H

#include "self_test_kit.h"

#include <sys/wait.h>
#include <unistd.h>

static struct {
    void *p;
    CUdeviceptr address;
    CUmemGenericAllocationHandle handle;
    cudaEvent_t e;
    cudaStream_t s;
    char pages[8192];
} got;

static int gets_device(void) {
    return (int)cudaMalloc(&got.p, 512);
}
static int gives_device(void) {
    return (int)cudaFree(got.p);
}
static int gets_async(void) {
    return (int)cudaMallocAsync(&got.p, 512, NULL);
}
static int gets_managed(void) {
    return (int)cudaMallocManaged(&got.p, 512, cudaMemAttachGlobal);
}
static int gets_host(void) {
    return (int)cudaHostAlloc(&got.p, 512, 0);
}
static int gives_host(void) {
    return (int)cudaFreeHost(got.p);
}
static int gets_pinned(void) {
    return (int)cudaHostRegister(got.pages, sizeof got.pages, 0);
}
static int gives_pinned(void) {
    return (int)cudaHostUnregister(got.pages);
}
static int gets_event(void) {
    return (int)cudaEventCreateWithFlags(&got.e, cudaEventDisableTiming);
}
static int gets_driver_event(void) {
    return (int)cuEventCreate((CUevent *)&got.e, 0);
}
static int gives_event(void) {
    return (int)cudaEventDestroy(got.e);
}
static int gets_stream(void) {
    return (int)cudaStreamCreate(&got.s);
}
static int gets_driver_stream(void) {
    return (int)cuStreamCreate((CUstream *)&got.s, 0);
}
static int gives_stream(void) {
    return (int)cudaStreamDestroy(got.s);
}
static int gets_addresses(void) {
    return (int)cuMemAddressReserve(&got.address, 2 * MIB, 0, 0, 0);
}
static int gives_addresses(void) {
    return (int)cuMemAddressFree(got.address, 2 * MIB);
}
static int gets_handle(void) {
    CUmemAllocationProp prop = on_device(0);
    return (int)cuMemCreate(&got.handle, 2 * MIB, &prop, 0);
}
static int gives_handle(void) {
    return (int)cuMemRelease(got.handle);
}
static int gets_driver_memory(void) {
    return (int)cuMemAlloc((CUdeviceptr *)&got.p, 512);
}
static int gets_driver_host(void) {
    return (int)cuMemHostAlloc(&got.p, 512, 0);
}

static const struct {
    int (*get)(void), (*give)(void);
} resources[] = {{gets_device, gives_device},        {gets_async, gives_device},
                 {gets_managed, gives_device},       {gets_host, gives_host},
                 {gets_pinned, gives_pinned},        {gets_event, gives_event},
                 {gets_driver_event, gives_event},   {gets_stream, gives_stream},
                 {gets_driver_stream, gives_stream}, {gets_addresses, gives_addresses},
                 {gets_handle, gives_handle},        {gets_driver_memory, gives_device},
                 {gets_driver_host, gives_host}};
#define N_RESOURCES (sizeof resources / sizeof *resources)

/* Mapped or not, and opened or not: what the two resource calls on a mapping change. */
static void fail_a_mapping(void) {
    OK(gets_addresses());
    OK(gets_handle());
    fake_fail_resource(1);
    IS(cuMemMap(got.address, 2 * MIB, 0, got.handle, 0), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(fake_mappings() == 0);
    OK(cuMemMap(got.address, 2 * MIB, 0, got.handle, 0));
    fake_fail_resource(1);
    IS(open_access(got.address, 2 * MIB, 0), CUDA_ERROR_OUT_OF_MEMORY);
    fake_quiet(1);
    OK(fake_write(NULL, "not yet open", pointer(got.address), 8, 1));
    EXPECT(1, "without access");
    fake_quiet(0);
    OK(cudaDeviceSynchronize());
    OK(open_access(got.address, 2 * MIB, 0));
    OK(cuMemUnmap(got.address, 2 * MIB));
    OK(gives_handle());
    OK(gives_addresses());
}

static void test_resource_faults(void) {
    size_t i;
    OK(cudaFree(NULL));
    for (i = 0; i < N_RESOURCES; i++) {
        long before = fake_live_objects();
        fake_fail_clear();
        fake_fail_resource(2);
        OK(resources[i].get());
        OK(resources[i].give()); /* not counted: it is of the other class */
        IS(resources[i].get(), cudaErrorMemoryAllocation);
        CHECK(fake_fail_fired() == 1 && fake_live_objects() == before);
        OK(resources[i].get());
        OK(resources[i].give());
        CHECK(fake_fail_fired() == 1 && !fake_is_broken());
    }
    fake_fail_clear();
    fail_a_mapping();
    cudaGetLastError();
}

/* The third of the other calls, however many resource calls come in between; then all of them. */
static void test_broken_context(void) {
    cudaStream_t s = new_stream();
    cudaEvent_t e = new_event();
    CUcontext context = NULL;
    size_t i, a, b;
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxPushCurrent(context));
    fake_break(3);
    OK(cudaEventRecord(e, s));
    OK(gets_device());
    OK(cudaMemGetInfo(&a, &b));
    CHECK(!fake_is_broken());
    IS(cudaFree(got.p), cudaErrorIllegalAddress);
    CHECK(fake_is_broken() && fake_fail_fired() == 1);
    for (i = 0; i < N_RESOURCES; i++) IS(resources[i].get(), cudaErrorIllegalAddress);
    IS(cuEventQuery(e), CUDA_ERROR_ILLEGAL_ADDRESS);
    IS(cudaFree(got.p), cudaErrorIllegalAddress);
    OK(cuCtxPopCurrent(NULL)); /* what takes back only what the program did goes on */
    OK(cuDevicePrimaryCtxRelease(0));
    CHECK(strcmp(cudaGetErrorName(cudaGetLastError()), "cudaErrorIllegalAddress") == 0);
    fake_fail_pause(1); /* the test's own calls */
    OK(cudaFree(got.p));
    fake_fail_pause(0);
    IS(cudaStreamSynchronize(s), cudaErrorIllegalAddress);
    fake_fail_clear();
    OK(cudaStreamDestroy(s));
    OK(cudaEventDestroy(e));
    cudaGetLastError();
}

static void test_classes_spare(void) {
    size_t a, b;
    fake_fail_except("cudaMalloc,cudaFree");
    fake_fail_resource(1);
    fake_break(1);
    OK(gets_device());
    OK(gives_device());
    IS(cudaMemGetInfo(&a, &b), cudaErrorIllegalAddress);
    OK(gets_device());
    OK(gives_device());
    fake_fail_clear();
    cudaGetLastError();
}

/* Another process, which is told by its environment what is to fail, and says by its exit that it
   did. PROGRAM WHAT */
static int run_as_told(const char *what) {
    size_t a, b;
    int i;
    if (!strcmp(what, "resource"))
        return gets_device() == 0 && gets_host() == cudaErrorMemoryAllocation && gets_host() == 0
                   ? 0
                   : 1;
    if (!strcmp(what, "break"))
        return (int)cudaMemGetInfo(&a, &b) == 0 && gets_device() == 0 &&
                       cudaMemGetInfo(&a, &b) == cudaErrorIllegalAddress && fake_is_broken()
                   ? 0
                   : 1;
    gets_stream();
    gets_event();
    fake_hold(got.s, 1);
    for (i = 0; i < 3; i++)
        if (cudaEventRecord(got.e, got.s)) return 1;
    return fake_stalls() == 1 && fake_pending(got.s) == 2 ? 0 : 1;
}

static const char *self; /* argv[0] */

static int exit_of(const char *name, const char *value, const char *what) {
    int status = 0;
    char told[64], *only[2] = {told, NULL};
    pid_t child = fork();
    if (child == 0) {
        snprintf(told, sizeof told, "%s=%s", name, value);
        execle(self, self, what, (char *)NULL, only);
        _exit(9);
    }
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void test_told_by_environment(void) {
    CHECK(exit_of("FAKECUDA_FAIL_RESOURCE", "2", "resource") == 0);
    CHECK(exit_of("FAKECUDA_BREAK", "2", "break") == 0);
    CHECK(exit_of("FAKECUDA_QUEUE", "2", "queue") == 0);
    CHECK(exit_of("FAKECUDA_FAIL_RESOURCE", "3", "resource") == 1);
}

#endif
