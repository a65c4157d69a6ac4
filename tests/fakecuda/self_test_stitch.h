/* self_test_stitch.h: one handle at several addresses. */
#ifndef SELF_TEST_STITCH_H
#define SELF_TEST_STITCH_H

#include "self_test_kit.h"

#define ROOM (64 * MIB) /* of addresses, in each of two reservations */

typedef struct stitch { /* three handles at home, and a second range over parts of them */
    CUmemGenericAllocationHandle handle[3];
    CUdeviceptr home[3], at;
    size_t bytes; /* of the second range */
} stitch;

static const size_t stitch_sizes[3] = {4 * MIB, 2 * MIB, 6 * MIB};

static void map_open(CUdeviceptr p, size_t bytes, CUmemGenericAllocationHandle handle) {
    OK(cuMemMap(p, bytes, 0, handle, 0));
    OK(open_access(p, bytes, 0));
}

/* The second range: the third handle, the first, the second. */
static void make_stitch(stitch *x) {
    static const int order[3] = {2, 0, 1};
    CUmemAllocationProp prop = on_device(0);
    CUdeviceptr next = 0;
    int i;
    IS(cuMemAddressReserve(&next, ROOM, 0, 4096, 0), CUDA_ERROR_INVALID_VALUE); /* no granule's */
    OK(cuMemAddressReserve(&next, ROOM, 0, 0, 0));
    for (i = 0; i < 3; i++) {
        OK(cuMemCreate(&x->handle[i], stitch_sizes[i], &prop, 0));
        x->home[i] = next;
        map_open(next, stitch_sizes[i], x->handle[i]);
        next += stitch_sizes[i];
    }
    OK(cuMemAddressReserve(&x->at, ROOM, 0, 0, 0));
    for (i = 0, x->bytes = 0; i < 3; i++) {
        OK(cuMemMap(x->at + x->bytes, stitch_sizes[order[i]], 0, x->handle[order[i]], 0));
        x->bytes += stitch_sizes[order[i]];
    }
    OK(open_access(x->at, x->bytes, 0));
}

static void drop_stitch(const stitch *x) {
    int i;
    OK(cuMemUnmap(x->at, x->bytes));
    OK(cuMemUnmap(x->home[0], x->bytes));
    for (i = 0; i < 3; i++) OK(cuMemRelease(x->handle[i]));
    OK(cuMemAddressFree(x->at, ROOM));
    OK(cuMemAddressFree(x->home[0], ROOM));
    CHECK(fake_used_bytes(0) == 0 && fake_mappings() == 0);
}

static void test_stitch_bytes_in(fake_run_mode mode) {
    stitch x;
    cudaStream_t s = new_stream();
    unsigned char *host = malloc(12 * MIB), *back = malloc(12 * MIB);
    size_t i;
    fake_mode(mode);
    make_stitch(&x);
    CHECK(fake_used_bytes(0) == 12 * MIB && fake_mappings() == 6);
    for (i = 0; i < 12 * MIB; i++) host[i] = (unsigned char)(i * 7 + i / 4093);
    OK(cudaMemcpyAsync(pointer(x.at), host, 12 * MIB, cudaMemcpyHostToDevice, s));
    OK(cudaMemcpyAsync(back, pointer(x.home[0]), 12 * MIB, cudaMemcpyDeviceToHost, s));
    CHECK(!memcmp(back, host + 6 * MIB, 6 * MIB));          /* the first and the second */
    CHECK(!memcmp(back + 6 * MIB, host, 6 * MIB));          /* the third */
    OK(fake_write(s, "over a seam at home", pointer(x.home[1] - 100), 200, 5));
    OK(fake_read(s, "before the seam", pointer(x.at + 10 * MIB - 100), 100, 5));
    OK(fake_read(s, "after it", pointer(x.at + 10 * MIB), 100, 5));
    OK(cudaMemsetAsync(pointer(x.at + 6 * MIB - 3), 9, 6, s));
    OK(fake_read(s, "the third's end", pointer(x.home[2] + 6 * MIB - 3), 3, 9));
    OK(fake_read(s, "the first's start", pointer(x.home[0]), 3, 9));
    OK(cudaMemcpy2DAsync(pointer(x.at + 6 * MIB - 32), 16, host, 16, 16, 4, cudaMemcpyHostToDevice,
                         s));
    OK(cudaStreamSynchronize(s));
    CHECK(!memcmp(fake_peek(pointer(x.home[2] + 6 * MIB - 32)), host, 32));
    CHECK(!memcmp(fake_peek(pointer(x.home[0])), host + 32, 32));
    CHECK(fake_peek(pointer(x.home[0])) == fake_peek(pointer(x.at + 6 * MIB)));
    EXPECT(0, "");
    drop_stitch(&x);
    OK(cudaStreamDestroy(s));
    free(host);
    free(back);
    fake_mode(FAKE_EAGER);
}

static void test_stitch_bytes(void) {
    test_stitch_bytes_in(FAKE_EAGER);
    test_stitch_bytes_in(FAKE_STEPPED);
    test_stitch_bytes_in(FAKE_THREADED);
}

static void test_stitch_races(void) {
    stitch x;
    cudaStream_t s = new_stream(), t = new_stream();
    cudaEvent_t e = new_event();
    char words[64];
    make_stitch(&x);
    fake_quiet(1);
    OK(fake_write(s, "home", pointer(x.home[0] + 1000), 100, 1));
    OK(fake_write(t, "beside", pointer(x.at + 6 * MIB + 1100), 100, 1));
    OK(fake_write(t, "before", pointer(x.at + 6 * MIB + 900), 100, 1));
    EXPECT(0, "");
    OK(fake_read(t, "stitch", pointer(x.at + 6 * MIB + 1099), 1, -1));
    snprintf(words, sizeof words, "wrote through %#llx,", (unsigned long long)x.home[0] + 1099);
    EXPECT(1, words);
    OK(cudaDeviceSynchronize());
    OK(fake_read(s, "home", pointer(x.home[2]), 6 * MIB, -1));
    OK(fake_read(t, "stitch", pointer(x.at), 6 * MIB, -1));
    EXPECT(0, "");
    OK(fake_write(t, "stitch", pointer(x.at + 3 * MIB), 1, 1));
    EXPECT(1, "race");
    OK(cudaEventRecord(e, t));
    OK(cudaStreamWaitEvent(s, e, 0));
    OK(fake_read(s, "ordered", pointer(x.home[2] + 3 * MIB), 1, 1));
    EXPECT(0, "");
    OK(fake_write(s, "all of it", pointer(x.home[0]), 12 * MIB, 3));
    fake_host_access(pointer(x.at), 1, 0, "the host");
    EXPECT(1, "the host");
    OK(cudaDeviceSynchronize());
    fake_host_access(pointer(x.at), 12 * MIB, 1, "the host");
    EXPECT(0, "");
    drop_stitch(&x);
    OK(cudaEventDestroy(e));
    OK(cudaStreamDestroy(s));
    OK(cudaStreamDestroy(t));
}

/* One address is not yet what the other is before the operation has ended. */
static void test_stitch_in_one_operation(void) {
    stitch x;
    cudaStream_t s = new_stream();
    make_stitch(&x);
    char *home = pointer(x.home[0]), *second = pointer(x.at + 6 * MIB);
    fake_access both_read[2] = {{home, 64, 0, 0}, {second, 64, 0, 0}};
    fake_access write_read[2] = {{home, 64, 1, 0}, {second + 63, 64, 0, 0}};
    fake_access apart[2] = {{home, 64, 1, 0}, {second + 64, 64, 0, 0}};
    fake_access twice[2] = {{home, 64, 0, 0}, {home, 64, 1, 0}};
    fake_access three[3] = {{home, 64, 0, 0}, {second, 64, 0, 0}, {second, 64, 1, 0}};
    fake_quiet(1);
    OK(fake_kernel(s, "two reads", both_read, 2));
    OK(fake_kernel(s, "apart", apart, 2));
    OK(fake_kernel(s, "one address", twice, 2));
    EXPECT(0, "");
    OK(fake_kernel(s, "write and read", write_read, 2));
    EXPECT(1, "race");
    OK(fake_kernel(s, "the later of two reads hides nothing", three, 3));
    EXPECT(1, "race");
    OK(fake_write(s, "the next operation", second, 64, 1));
    OK(fake_read(s, "and the next", home, 64, 1));
    EXPECT(0, "");
    OK(cudaMemcpyAsync(home, second, 64, cudaMemcpyDeviceToDevice, s));
    EXPECT(1, "race");
    OK(cudaDeviceSynchronize());
    drop_stitch(&x);
    OK(cudaStreamDestroy(s));
}

static void test_stitch_goes_by_itself(void) {
    stitch x;
    cudaStream_t s = new_stream();
    CUmemAccessDesc none = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_NONE};
    make_stitch(&x);
    fake_mode(FAKE_STEPPED);
    fake_quiet(1);
    OK(fake_write(s, "at home", pointer(x.home[0]), 12 * MIB, 1));
    IS(cuMemUnmap(x.at, 4 * MIB), CUDA_ERROR_INVALID_VALUE);
    IS(cuMemUnmap(x.at + 2 * MIB, 8 * MIB), CUDA_ERROR_INVALID_VALUE);
    IS(cuMemUnmap(x.at, x.bytes + 2 * MIB), CUDA_ERROR_INVALID_VALUE);
    IS(cuMemAddressFree(x.at, ROOM), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemUnmap(x.at + 6 * MIB, 4 * MIB));
    CHECK(fake_pending(s) == 1 && fake_mappings() == 5); /* it waits for nothing */
    EXPECT(0, "");
    CHECK(!fake_peek(pointer(x.at + 6 * MIB)) && fake_peek(pointer(x.at + 6 * MIB - 1)));
    map_open(x.at + 6 * MIB, 4 * MIB, x.handle[0]);
    OK(fake_read(s, "as it was", pointer(x.at), 12 * MIB, 1));
    OK(cuMemUnmap(x.at, 6 * MIB));
    EXPECT(1, "cuMemUnmap: released while work in flight: as it was");
    map_open(x.at, 6 * MIB, x.handle[2]);
    OK(cudaDeviceSynchronize());
    EXPECT(0, "");
    OK(cuMemSetAccess(x.at, 6 * MIB, &none, 1)); /* of this mapping alone */
    OK(fake_write(s, "closed", pointer(x.at), 1, 2));
    OK(fake_write(s, "open", pointer(x.home[2] + 1), 1, 2));
    OK(cudaDeviceSynchronize());
    EXPECT(1, "closed writes");
    drop_stitch(&x);
    OK(cudaStreamDestroy(s));
    fake_mode(FAKE_EAGER);
}

/* The memory stays for the last of its handle and mappings, and an address may get other memory. */
static void test_stitch_outlives_handle_and_home(void) {
    CUmemAllocationProp prop = on_device(0);
    CUmemGenericAllocationHandle again = 0, other = 0;
    stitch x;
    make_stitch(&x);
    OK(fake_write(NULL, "w", pointer(x.home[0]), 4 * MIB, 7));
    OK(cuMemRelease(x.handle[0]));
    OK(cudaDeviceSynchronize());
    OK(cuMemUnmap(x.home[0], 4 * MIB));
    CHECK(fake_used_bytes(0) == 12 * MIB);
    OK(fake_read(NULL, "r", pointer(x.at + 6 * MIB), 4 * MIB, 7));
    OK(cuMemRetainAllocationHandle(&again, pointer(x.at + 7 * MIB)));
    OK(cuMemCreate(&other, 4 * MIB, &prop, 0));
    CHECK(fake_used_bytes(0) == 16 * MIB && other != again);
    map_open(x.home[0], 4 * MIB, other);
    OK(fake_write(NULL, "w", pointer(x.home[0]), 4 * MIB, 8));
    OK(fake_read(NULL, "r", pointer(x.at + 6 * MIB), 4 * MIB, 7));
    OK(cudaDeviceSynchronize());
    OK(cuMemUnmap(x.at + 6 * MIB, 4 * MIB));
    CHECK(fake_used_bytes(0) == 16 * MIB);
    OK(cuMemRelease(again));
    CHECK(fake_used_bytes(0) == 12 * MIB);
    map_open(x.at + 6 * MIB, 4 * MIB, other);
    OK(fake_read(NULL, "r", pointer(x.at + 6 * MIB), 4 * MIB, 8));
    OK(cudaDeviceSynchronize());
    EXPECT(0, "");
    x.handle[0] = other;
    drop_stitch(&x);
}

static void test_stitch_asked(void) {
    CUmemGenericAllocationHandle held = 0;
    CUmemorytype type = CU_MEMORYTYPE_HOST;
    CUdeviceptr base = 0, same = 0;
    struct cudaPointerAttributes what;
    size_t bytes = 0;
    void *p = NULL;
    int device = -1;
    stitch x;
    make_stitch(&x);
    OK(cuMemGetAddressRange(&base, &bytes, x.at + 9 * MIB));
    CHECK(base == x.at + 6 * MIB && bytes == 4 * MIB);
    OK(cuMemGetAddressRange(&base, &bytes, x.home[2]));
    CHECK(base == x.home[2] && bytes == 6 * MIB);
    IS(cuMemGetAddressRange(&base, &bytes, x.at + 12 * MIB), CUDA_ERROR_NOT_FOUND);
    OK(cudaMalloc(&p, 4 * MIB));
    OK(cuMemGetAddressRange(&base, NULL, (CUdeviceptr)(uintptr_t)p + 1));
    CHECK(base == (CUdeviceptr)(uintptr_t)p);
    IS(cuMemRetainAllocationHandle(&held, p), CUDA_ERROR_INVALID_VALUE);
    OK(cudaFree(p));
    OK(cudaPointerGetAttributes(&what, pointer(x.at + 11 * MIB)));
    CHECK(what.type == cudaMemoryTypeDevice && what.device == 0);
    CHECK(what.devicePointer == pointer(x.at + 11 * MIB));
    OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, x.at));
    OK(cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, x.at));
    OK(cuPointerGetAttribute(&same, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, x.at + 5));
    CHECK(type == CU_MEMORYTYPE_DEVICE && device == 0 && same == x.at + 5);
    IS(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, x.at + 12 * MIB),
       CUDA_ERROR_INVALID_VALUE);
    OK(cuMemRetainAllocationHandle(&held, pointer(x.at + 9 * MIB)));
    CHECK(held == x.handle[0]);
    OK(cuMemRelease(held)); /* one hold of two */
    OK(cuMemUnmap(x.home[0], 4 * MIB));
    map_open(x.home[0], 4 * MIB, x.handle[0]);
    drop_stitch(&x);
}

/* A graph keeps addresses, not memory. */
static void test_stitch_in_a_graph(void) {
    CUmemAllocationProp prop = on_device(0);
    CUmemGenericAllocationHandle other = 0;
    cudaStream_t s = new_stream();
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    stitch x;
    make_stitch(&x);
    OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
    OK(fake_write(s, "node", pointer(x.at), 12 * MIB, 4));
    OK(fake_read(s, "next node", pointer(x.home[0]), 12 * MIB, 4));
    OK(end(s, &graph));
    OK(cudaGraphInstantiate(&exec, graph, 0));
    OK(cudaGraphLaunch(exec, s));
    OK(cudaStreamSynchronize(s));
    EXPECT(0, "");
    OK(cuMemUnmap(x.at + 10 * MIB, 2 * MIB));
    fake_quiet(1);
    OK(cudaGraphLaunch(exec, s));
    OK(cudaStreamSynchronize(s));
    EXPECT(1, "no memory is mapped");
    fake_quiet(0);
    OK(cuMemUnmap(x.home[1], 2 * MIB));
    OK(cuMemCreate(&other, 2 * MIB, &prop, 0)); /* new memory at the same two addresses */
    OK(cuMemRelease(x.handle[1]));
    x.handle[1] = other;
    map_open(x.home[1], 2 * MIB, other);
    map_open(x.at + 10 * MIB, 2 * MIB, other);
    OK(cudaGraphLaunch(exec, s));
    OK(cudaStreamSynchronize(s));
    EXPECT(0, "");
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphDestroy(graph));
    OK(cudaStreamDestroy(s));
    drop_stitch(&x);
}

static void test_stitch_in_a_capture(void) {
    static const enum cudaStreamCaptureMode modes[3] = {
        cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal,
        cudaStreamCaptureModeRelaxed};
    CUmemAllocationProp prop = on_device(0);
    CUmemGenericAllocationHandle handle = 0;
    cudaStream_t s = new_stream();
    CUdeviceptr base = 0;
    int i;
    for (i = 0; i < 3; i++) {
        CAPTURED(modes[i], cuMemAddressReserve(&base, 4 * MIB, 0, 0, 0), 0, 0);
        CAPTURED(modes[i], cuMemCreate(&handle, 2 * MIB, &prop, 0), 0, 0);
        CAPTURED(modes[i], cuMemMap(base, 2 * MIB, 0, handle, 0), 0, 0);
        CAPTURED(modes[i], cuMemMap(base + 2 * MIB, 2 * MIB, 0, handle, 0), 0, 0);
        CAPTURED(modes[i], open_access(base, 4 * MIB, 0), 0, 0);
        CAPTURED(modes[i], cuMemUnmap(base + 2 * MIB, 2 * MIB), 0, 0);
        CAPTURED(modes[i], cuMemUnmap(base, 2 * MIB), 0, 0);
        CAPTURED(modes[i], cuMemRelease(handle), 0, 0);
        CAPTURED(modes[i], cuMemAddressFree(base, 4 * MIB), 0, 0);
    }
    OK(cudaStreamDestroy(s));
}

/* What fake_reset finds mapped twice is dropped once. */
static void test_stitch_left_behind(void) {
    stitch x;
    fake_quiet(1);
    make_stitch(&x);
    OK(fake_write(NULL, "w", pointer(x.at), x.bytes, 1));
    CHECK(fake_reset() == 5 && fake_mappings() == 0 && fake_used_bytes(0) == 0);
}

/* ---- by chance: handles at random addresses, two streams, and what must come of it ---- */

#define CHANCE_HANDLES 6
#define CHANCE_SLOTS   24 /* of addresses, each of one handle */
#define CHANCE_UNITS   8  /* of each handle */
#define CHANCE_UNIT    (2 * MIB / CHANCE_UNITS)

typedef struct chance {
    CUdeviceptr base;
    CUmemGenericAllocationHandle handle[CHANCE_HANDLES];
    int slot[CHANCE_SLOTS];       /* the handle there, or -1 */
    int used[CHANCE_SLOTS];       /* by work since the last wait */
    unsigned char byte[CHANCE_HANDLES][CHANCE_UNITS];
    unsigned char reads[CHANCE_HANDLES][CHANCE_UNITS];  /* since the last wait: a bit a stream */
    unsigned char writes[CHANCE_HANDLES][CHANCE_UNITS];
    uint32_t seed;
    long races, expected;
} chance;

static unsigned draw(chance *c, unsigned below) {
    c->seed = c->seed * 1664525u + 1013904223u;
    return (c->seed >> 8) % below;
}

static void chance_wait(chance *c) {
    OK(cudaDeviceSynchronize());
    memset(c->reads, 0, sizeof c->reads);
    memset(c->writes, 0, sizeof c->writes);
    memset(c->used, 0, sizeof c->used);
}

static void chance_map(chance *c, int slot) {
    CUdeviceptr p = c->base + (CUdeviceptr)slot * 2 * MIB;
    if (c->slot[slot] < 0) {
        c->slot[slot] = (int)draw(c, CHANCE_HANDLES);
        map_open(p, 2 * MIB, c->handle[c->slot[slot]]);
    } else if (!c->used[slot]) {
        c->slot[slot] = -1;
        OK(cuMemUnmap(p, 2 * MIB));
    }
}

/* One stream touches a few units that may run on into the next slot. */
static void chance_touch(chance *c, cudaStream_t stream, int which, unsigned first) {
    int write = draw(c, 2) == 0, race = 0;
    unsigned char byte = (unsigned char)draw(c, 256);
    unsigned n = 1 + draw(c, 4), i, k, seen[4][2];
    fake_access access[4];
    for (i = 0; i < n; i++) {
        unsigned at = first + i, slot = at / CHANCE_UNITS, unit = at % CHANCE_UNITS;
        if (slot >= CHANCE_SLOTS || c->slot[slot] < 0) break;
        seen[i][0] = (unsigned)c->slot[slot];
        seen[i][1] = unit;
        for (k = 0; k < i && (seen[k][0] != seen[i][0] || unit != seen[k][1]);) k++;
        if (k < i) break; /* twice in one operation is another test's */
    }
    n = i;
    for (i = 0; i < n; i++) {
        unsigned handle = seen[i][0], unit = seen[i][1], others = ~(1u << which);
        race |= (c->writes[handle][unit] & others) || (write && (c->reads[handle][unit] & others));
        if (write) c->writes[handle][unit] |= (unsigned char)(1 << which);
        else c->reads[handle][unit] |= (unsigned char)(1 << which);
        c->used[(first + i) / CHANCE_UNITS] = 1;
        access[i].address = pointer(c->base + (CUdeviceptr)(first + i) * CHANCE_UNIT);
        access[i].bytes = CHANCE_UNIT;
        access[i].write = write;
        access[i].value = FAKE_BYTE(write ? byte : c->byte[handle][unit]);
        if (write) c->byte[handle][unit] = byte;
    }
    if (n) OK(fake_kernel(stream, "by chance", access, (int)n));
    if (!race) return;
    c->expected++;
    c->races += fake_failures() > 0 && strncmp(fake_failure_text(), "race", 4) == 0;
    chance_wait(c);
    fake_clear_failures();
}

static void test_stitch_by_chance(void) {
    static chance c;
    CUmemAllocationProp prop = on_device(0);
    cudaStream_t stream[2] = {new_stream(), new_stream()};
    int i;
    c.seed = 20;
    fake_quiet(1);
    OK(cuMemAddressReserve(&c.base, CHANCE_SLOTS * 2 * MIB, 0, 0, 0));
    for (i = 0; i < CHANCE_HANDLES; i++) {
        OK(cuMemCreate(&c.handle[i], 2 * MIB, &prop, 0));
        map_open(c.base, 2 * MIB, c.handle[i]);
        OK(cudaMemsetAsync(pointer(c.base), 0, 2 * MIB, stream[0]));
        chance_wait(&c);
        OK(cuMemUnmap(c.base, 2 * MIB));
    }
    for (i = 0; i < CHANCE_SLOTS; i++) c.slot[i] = -1;
    for (i = 0; i < 10000; i++) {
        unsigned what = draw(&c, 16), which = draw(&c, 2);
        if (what < 5) chance_map(&c, (int)draw(&c, CHANCE_SLOTS));
        else if (what == 5) chance_wait(&c);
        else chance_touch(&c, stream[which], (int)which, draw(&c, CHANCE_SLOTS * CHANCE_UNITS));
    }
    EXPECT(0, "");
    CHECK(c.expected > 200 && c.races == c.expected);
    CHECK(fake_used_bytes(0) == CHANCE_HANDLES * 2 * MIB);
    chance_wait(&c);
    for (i = 0; i < CHANCE_SLOTS; i++)
        if (c.slot[i] >= 0) chance_map(&c, i);
    for (i = 0; i < CHANCE_HANDLES; i++) OK(cuMemRelease(c.handle[i]));
    OK(cuMemAddressFree(c.base, CHANCE_SLOTS * 2 * MIB));
    CHECK(fake_used_bytes(0) == 0 && fake_mappings() == 0);
    for (i = 0; i < 2; i++) OK(cudaStreamDestroy(stream[i]));
}

#endif
