/* What a ring promises: bytes arrive, in both directions, by every way; tickets; refusals; figures.
   On the simulated GPU, and on a real one. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gpupool.h"
#include "ring_kit.h"

static void sizes_both_ways(void) {
    static const size_t sizes[] = {1,      4095, 64 * KIB,       64 * KIB + 1,
                                   200000, MIB,  3 * MIB + 4097, 9 * MIB};
    gpupool_ring *ring = kit_ring(4 * MIB, 256 * KIB, 3);
    cudaStream_t stream = kit_stream();
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        size_t bytes = sizes[i];
        unsigned char *from = kit_host(bytes), *to = kit_host(bytes), *device = kit_device(bytes);
        check_case("%zu bytes", bytes);
        kit_fill(from, bytes, i, 0);
        OK(gpupool_upload(ring, device, from, bytes, stream));
        kit_device_is(device, bytes, i);
        OK(gpupool_download(ring, to, device, bytes, stream));
        kit_is(to, bytes, i, 0);
        kit_host_free(from, bytes);
        kit_host_free(to, bytes);
        kit_device_free(device, bytes);
    }
    CHECK(kit_stats(ring).pinned <= 4 * MIB && kit_stats(ring).limit == 4 * MIB);
    CHECK_EQ(kit_stats(ring).transfers[GPUPOOL_UP], 8);
    CHECK_EQ(kit_stats(ring).transfers[GPUPOOL_DOWN], 8);
    CHECK_EQ(kit_stats(ring).direct_bytes[GPUPOOL_UP], 1 + 4095 + 64 * KIB);
    CHECK_EQ(kit_stats(ring).failures, 0);
    OK(gpupool_ring_destroy(ring));
    CUDA(cudaStreamDestroy(stream));
}

/* Rows of all widths: shorter and longer than a slot, and as wide as the pitch. */
static void rows_one(gpupool_ring *ring, size_t width, size_t rows, size_t gap) {
    size_t host_pitch = width + gap, device_pitch = width + 3 * gap;
    size_t host_bytes = host_pitch * rows, device_bytes = device_pitch * rows;
    unsigned char *host = kit_host(host_bytes), *back = kit_host(host_bytes);
    unsigned char *device = kit_device(device_bytes);
    gpupool_transfer up = kit_up(device, host, width, NULL),
                     down = kit_down(back, device, width, NULL);
    check_case("%zu rows of %zu, gaps of %zu", rows, width, gap);
    memset(back, 0xee, host_bytes);
    for (size_t row = 0; row < rows; row++)
        kit_fill(host + row * host_pitch, width, 7, row * width);
    up.rows = down.rows = rows;
    up.to_pitch = down.from_pitch = device_pitch;
    up.from_pitch = down.to_pitch = host_pitch;
    OK(gpupool_ring_transfer(ring, &up));
    OK(gpupool_ring_transfer(ring, &down));
    for (size_t row = 0; row < rows; row++) {
        kit_is(back + row * host_pitch, width, 7, row * width);
        if (gap) kit_is_all(back + row * host_pitch + width, gap, 0xee);
    }
    unsigned char *copy = kit_fetch(device, device_bytes);
    for (size_t row = 0; row < rows && gap; row++)
        kit_is_all(copy + row * device_pitch + width, 3 * gap, 0xdd);
    free(copy);
    kit_host_free(host, host_bytes);
    kit_host_free(back, host_bytes);
    kit_device_free(device, device_bytes);
}

static void rows(void) {
    gpupool_ring *ring = kit_ring(2 * MIB, 128 * KIB, 2);
    rows_one(ring, 1, 1, 5);
    rows_one(ring, 3, 1000, 1);
    rows_one(ring, 1000, 700, 24);
    rows_one(ring, 131072, 9, 64);
    rows_one(ring, 131073, 7, 64);
    rows_one(ring, 500000, 4, 1000);
    rows_one(ring, 65536, 20, 0);
    OK(gpupool_ring_destroy(ring));
}

typedef struct functions {
    uint64_t seed, most;
    atomic_long calls, bytes;
    long fail_at;
} functions;

/* The program's functions find the thread's mode of capture as the program set it. */
static void check_mode(void) {
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
    CUDA(cudaThreadExchangeStreamCaptureMode(&mode));
    CHECK_EQ(mode, cudaStreamCaptureModeGlobal);
}

static int reads(void *to, size_t bytes, uint64_t offset, void *user) {
    functions *f = (functions *)user;
    check_mode();
    kit_fill((unsigned char *)to, bytes, f->seed, offset);
    atomic_fetch_add(&f->bytes, (long)bytes);
    return atomic_fetch_add(&f->calls, 1) == f->fail_at ? 42 : 0;
}
static int writes(const void *from, size_t bytes, uint64_t offset, void *user) {
    functions *f = (functions *)user;
    check_mode();
    kit_is((const unsigned char *)from, bytes, f->seed, offset);
    atomic_fetch_add(&f->bytes, (long)bytes);
    return atomic_fetch_add(&f->calls, 1) == f->fail_at ? 42 : 0;
}

static void by_functions(void) {
    size_t bytes = 5 * MIB + 3;
    gpupool_ring *ring = kit_ring(2 * MIB, 128 * KIB, 3);
    unsigned char *device = kit_device(bytes);
    functions up = {.seed = 5, .fail_at = -1}, down = {.seed = 5, .fail_at = -1};
    gpupool_transfer what = kit_up(device, NULL, bytes, NULL),
                     back = kit_down(NULL, device, bytes, NULL);
    what.read = reads;
    what.user = &up;
    back.write = writes;
    back.user = &down;
    OK(gpupool_ring_transfer(ring, &what));
    kit_device_is(device, bytes, 5);
    OK(gpupool_ring_transfer(ring, &back));
    CHECK_EQ(up.bytes, bytes);
    CHECK_EQ(down.bytes, bytes);
    up.fail_at = up.calls + 3;
    CHECK_RESULT(gpupool_ring_transfer(ring, &what), GPUPOOL_E_CALLBACK);
    CHECK(strstr(gpupool_last_error(), "42") != NULL);
    down.fail_at = down.calls;
    CHECK_RESULT(gpupool_ring_transfer(ring, &back), GPUPOOL_E_CALLBACK);
    CHECK_EQ(kit_stats(ring).failures, 2);
    down.fail_at = -1;
    OK(gpupool_ring_transfer(ring, &back));
    kit_device_free(device, bytes);
    OK(gpupool_ring_destroy(ring));
}

/* Pinned, managed and device memory goes directly: it pins nothing of the ring's. */
static void known_memory(void) {
    size_t bytes = 2 * MIB;
    gpupool_ring *ring = kit_ring(2 * MIB, 128 * KIB, 2);
    unsigned char *device = kit_device(bytes), *other = kit_device(bytes), *pinned, *managed;
    cudaStream_t stream = kit_stream();
    gpupool_ticket ticket = 0;
    gpupool_transfer what;
    uint64_t done = 0;
    CUDA(cudaHostAlloc((void **)&pinned, bytes, cudaHostAllocDefault));
    CUDA(cudaMallocManaged((void **)&managed, bytes, cudaMemAttachGlobal));
    kit_fill(pinned, bytes, 1, 0);
    OK(gpupool_upload(ring, device, pinned, bytes, stream));
    kit_fill(pinned, bytes, 2, 0); /* the call has waited */
    kit_device_is(device, bytes, 1);
    OK(gpupool_download(ring, pinned, device, bytes, stream));
    kit_is(pinned, bytes, 1, 0);
    OK(gpupool_download(ring, managed, device, bytes, stream));
    kit_is(managed, bytes, 1, 0);
    OK(gpupool_upload(ring, other, device, bytes, stream));
    kit_device_is(other, bytes, 1);
    kit_fill(pinned, bytes, 3, 0);
    what = kit_up(device, pinned, bytes, stream);
    what.ticket = &ticket;
    OK(gpupool_ring_transfer(ring, &what));
    OK(gpupool_ring_wait(ring, ticket, -1, &done));
    CHECK_EQ(done, bytes);
    kit_device_is(device, bytes, 3);
    CHECK_EQ(kit_stats(ring).pinned, 0);
    CHECK_EQ(kit_stats(ring).direct_bytes[GPUPOOL_UP], 3 * bytes);
    CUDA(cudaFreeHost(pinned));
    CUDA(cudaFree(managed));
    kit_device_free(device, bytes);
    kit_device_free(other, bytes);
    OK(gpupool_ring_destroy(ring));
    CUDA(cudaStreamDestroy(stream));
}

/* Memory that is pinned at both ends and not between, or at one end only, goes through slots. */
static void pinned_in_part(void) {
    size_t bytes = MIB;
    gpupool_ring *ring = kit_ring(2 * MIB, 128 * KIB, 2);
    unsigned char *device = kit_device(bytes), *host = NULL;
    if (posix_memalign((void **)&host, 65536, bytes)) exit(1);
    kit_fill(host, bytes, 1, 0);
    CUDA(cudaHostRegister(host, 65536, 0));
    OK(gpupool_upload(ring, device, host, bytes, NULL));
    kit_device_is(device, bytes, 1);
    CUDA(cudaHostRegister(host + bytes - 65536, 65536, 0));
    kit_device_set(device, bytes, 2);
    OK(gpupool_download(ring, host, device, bytes, NULL));
    kit_is(host, bytes, 2, 0);
    CHECK_EQ(kit_stats(ring).bytes[GPUPOOL_UP], bytes);
    CHECK_EQ(kit_stats(ring).bytes[GPUPOOL_DOWN], bytes);
    CUDA(cudaHostUnregister(host));
    CUDA(cudaHostUnregister(host + bytes - 65536));
    free(host);
    kit_device_free(device, bytes);
    OK(gpupool_ring_destroy(ring));
}

static void tickets(void) {
    enum { COUNT = 12 };
    size_t bytes = 700001;
    gpupool_ring *ring = kit_ring(MIB, 128 * KIB, 2);
    cudaStream_t stream = kit_stream();
    unsigned char *host[COUNT], *device[COUNT];
    gpupool_ticket ticket[COUNT];
    for (int i = 0; i < COUNT; i++) {
        gpupool_transfer what;
        host[i] = kit_host(bytes);
        device[i] = kit_device(bytes);
        if (i % 2) kit_device_set(device[i], bytes, (uint64_t)i);
        else kit_fill(host[i], bytes, (uint64_t)i, 0);
        what = i % 2 ? kit_down(host[i], device[i], bytes, stream)
                     : kit_up(device[i], host[i], bytes, stream);
        what.ticket = &ticket[i];
        OK(gpupool_ring_transfer(ring, &what));
        CHECK(ticket[i] != 0);
    }
    for (int i = COUNT - 1; i >= 0; i--) {
        uint64_t done = 0;
        OK(gpupool_ring_wait(ring, ticket[i], -1, &done));
        CHECK_EQ(done, bytes);
        if (i % 2) kit_is(host[i], bytes, (uint64_t)i, 0);
        else kit_device_is(device[i], bytes, (uint64_t)i);
        OK(gpupool_ring_wait(ring, ticket[i], 0, NULL)); /* once more */
        kit_host_free(host[i], bytes);
        kit_device_free(device[i], bytes);
    }
    CHECK_RESULT(gpupool_ring_wait(ring, 0, 0, NULL), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(gpupool_ring_wait(ring, 1000, -1, NULL), GPUPOOL_E_ARGUMENT);
    OK(gpupool_ring_destroy(ring));
    CUDA(cudaStreamDestroy(stream));
}

/* A ticket of no bytes is done with what the stream had before; without workers a wait copies. */
static void without_workers(void) {
    size_t bytes = 2 * MIB + 5;
    gpupool_ring *ring = kit_ring(MIB, 128 * KIB, 0);
    unsigned char *host = kit_host(bytes), *device = kit_device(bytes);
    gpupool_ticket ticket[2];
    gpupool_transfer what = kit_up(device, host, bytes, NULL), none = kit_up(NULL, NULL, 0, NULL);
    uint64_t done = 0, before = 0;
    gpupool_result result;
    kit_fill(host, bytes, 9, 0);
    what.ticket = &ticket[0];
    none.ticket = &ticket[1];
    OK(gpupool_ring_transfer(ring, &what));
    OK(gpupool_ring_transfer(ring, &none));
    OK(gpupool_ring_wait(ring, ticket[1], -1, &done));
    CHECK_EQ(done, 0);
    CHECK_RESULT(gpupool_ring_wait(ring, ticket[0], 0, &done), GPUPOOL_E_TIMEOUT);
    CHECK_EQ(done, 0);
    while ((result = gpupool_ring_wait(ring, ticket[0], 1, &done)) == GPUPOOL_E_TIMEOUT) {
        CHECK(done >= before && done < bytes); /* progress can be read */
        before = done;
    }
    OK(result);
    CHECK(before > bytes / 2);
    kit_device_is(device, bytes, 9);
    CHECK_EQ(kit_stats(ring).workers, 0);
    OK(gpupool_upload(ring, NULL, NULL, 0, NULL));
    kit_host_free(host, bytes);
    kit_device_free(device, bytes);
    OK(gpupool_ring_destroy(ring));
}

/* Each mistake is named, and changes nothing. */
static void mistakes(void) {
    size_t bytes = 200000;
    gpupool_ring *ring = kit_ring(MIB, 128 * KIB, 1);
    unsigned char *host = kit_host(bytes), *device = kit_device(bytes);
    gpupool_transfer good = kit_up(device, host, bytes, NULL), what;
    gpupool_ticket ticket = 77;
    functions f = {.fail_at = -1};
#define WRONG(words, change) \
    do { \
        what = good; \
        what.ticket = &ticket; \
        change; \
        CHECK_RESULT(gpupool_ring_transfer(ring, &what), GPUPOOL_E_ARGUMENT); \
        CHECK(strstr(gpupool_last_error(), words) != NULL); \
    } while (0)
    WRONG("direction", what.direction = (gpupool_direction)5);
    WRONG("write is for DOWN", what.write = writes);
    WRONG("read or is_file are for UP", (what.direction = GPUPOOL_DOWN, what.read = reads));
    WRONG("read or is_file are for UP", (what.direction = GPUPOOL_DOWN, what.is_file = 1));
    WRONG("read or is_file", (what.read = reads, what.is_file = 1));
    WRONG("no rows", (what.read = reads, what.rows = 2));
    WRONG("no rows", (what.is_file = 1, what.to_pitch = bytes));
    WRONG("pitches need rows", (what.bytes = 100, what.to_pitch = what.from_pitch = 100));
    WRONG("rows need both pitches", (what.bytes = 100, what.rows = 2));
    WRONG("rows need both pitches", (what.bytes = 100, what.rows = 2, what.to_pitch = 100));
    WRONG("rows need both pitches",
          (what.bytes = 100, what.rows = 2, what.to_pitch = 100, what.from_pitch = 99));
    WRONG("any memory", what.bytes = SIZE_MAX);
    WRONG("any memory", (what.rows = SIZE_MAX / 2, what.to_pitch = what.from_pitch = bytes));
    WRONG("no file", (what.is_file = 1, what.offset = UINT64_MAX - 5));
    WRONG("device pointer", what.to = NULL);
    WRONG("host pointer", what.from = NULL);
    WRONG("ordinary host memory", what.to = host);
    CHECK_EQ(ticket, 77);
    CHECK_RESULT(gpupool_ring_transfer(ring, NULL), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(gpupool_ring_transfer(NULL, &good), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(gpupool_upload(NULL, device, host, 1, NULL), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(gpupool_ring_wait(NULL, 1, 0, NULL), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(gpupool_ring_destroy(NULL), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(gpupool_ring_get_stats(ring, NULL), GPUPOOL_E_ARGUMENT);
    CHECK_EQ(f.calls, 0);
    kit_is_all(host, bytes, 0xee);
    OK(gpupool_download(ring, host, device, bytes, NULL));
    kit_is_all(host, bytes, 0xdd);
    kit_host_free(host, bytes);
    kit_device_free(device, bytes);
    OK(gpupool_ring_destroy(ring));
}

/* A transfer that goes beyond its block in an arena, or is of memory that is free or asleep. */
static void beyond_a_block(void) {
    size_t bytes = MIB;
    gpupool_ring *ring = kit_ring(MIB, 128 * KIB, 1);
    unsigned char *host = kit_host(2 * bytes), *block;
    gpupool_arena *arenas[2];
    gpupool_transfer what;
    for (int i = 0; i < 2; i++) OK(gpupool_arena_create(&arenas[i], NULL));
    block = (unsigned char *)gpupool_alloc(arenas[0], bytes, NULL);
    kit_fill(host, bytes, 6, 0);
    OK(gpupool_upload(ring, block, host, bytes, NULL));
    kit_device_is(block, bytes, 6);
    OK(gpupool_upload(ring, block + 1000, host, bytes - 1000, NULL));
#define BEYOND(call, side) \
    do { \
        CHECK_RESULT(call, GPUPOOL_E_ARGUMENT); \
        CHECK(strstr(gpupool_last_error(), side ": it goes beyond its block") != NULL); \
    } while (0)
    BEYOND(gpupool_upload(ring, block, host, bytes + 1, NULL), "to");
    BEYOND(gpupool_upload(ring, block + 1001, host, bytes - 1000, NULL), "to");
    BEYOND(gpupool_download(ring, host, block, 2 * bytes, NULL), "from");
    what = kit_down(host, block, 100000, NULL);
    what.to_pitch = 100000;
    what.from_pitch = 200000;
    what.rows = 6;
    BEYOND(gpupool_ring_transfer(ring, &what), "from");
    what.rows = 5;
    OK(gpupool_ring_transfer(ring, &what));
    OK(gpupool_free(arenas[0], block, NULL));
    CHECK_RESULT(gpupool_upload(ring, block, host, bytes, NULL), GPUPOOL_E_ARGUMENT);
    CHECK(strstr(gpupool_last_error(), "to: it is in memory that is free") != NULL);
    block = (unsigned char *)gpupool_alloc(arenas[1], bytes, NULL);
    kit_fill(host, bytes, 6, 0);
    OK(gpupool_upload(ring, block, host, bytes, NULL));
    OK(gpupool_sleep(arenas[1], GPUPOOL_KEEP));
    CHECK_RESULT(gpupool_upload(ring, block, host, bytes, NULL), GPUPOOL_E_ASLEEP);
    CHECK_RESULT(gpupool_download(ring, host, block, bytes, NULL), GPUPOOL_E_ASLEEP);
    OK(gpupool_wake(arenas[1]));
    memset(host, 0, bytes);
    OK(gpupool_download(ring, host, block, bytes, NULL));
    kit_is(host, bytes, 6, 0);
    OK(gpupool_free(arenas[1], block, NULL));
    for (int i = 0; i < 2; i++) OK(gpupool_arena_destroy(arenas[i]));
    kit_host_free(host, 2 * bytes);
    OK(gpupool_ring_destroy(ring));
}

static void configs(void) {
    static const gpupool_ring_config bad[] = {{.device = -1},
                                              {.device = 99},
                                              {.bytes = 256 * KIB - 1},
                                              {.bytes = (size_t)17 << 40},
                                              {.slot_bytes = 64 * KIB - 1},
                                              {.bytes = MIB, .slot_bytes = MIB / 4 + 1},
                                              {.workers = -2},
                                              {.workers = 65}};
    static const char *const words[] = {"device",     "device",     "config.bytes", "config.bytes",
                                        "slot_bytes", "slot_bytes", "workers",      "workers"};
    gpupool_ring *ring = NULL;
    for (int i = 0; i < 8; i++) {
        ring = (gpupool_ring *)&ring;
        CHECK_RESULT(gpupool_ring_create(&ring, &bad[i]), GPUPOOL_E_ARGUMENT);
        CHECK(ring == NULL && strstr(gpupool_last_error(), words[i]) != NULL);
    }
    CHECK_RESULT(gpupool_ring_create(NULL, NULL), GPUPOOL_E_ARGUMENT);
    OK(gpupool_ring_create(&ring, NULL));
    CHECK_EQ(kit_stats(ring).limit, GPUPOOL_RING_BYTES);
    OK(gpupool_ring_destroy(ring));
    ring = kit_ring(256 * KIB, 0, 64);
    CHECK_EQ(kit_stats(ring).limit, 256 * KIB);
    OK(gpupool_ring_destroy(ring));
}

/* E_CAPTURING, and the capture goes on: its graph can be made. */
static void captures(void) {
    size_t bytes = MIB;
    gpupool_ring *ring = kit_ring(MIB, 128 * KIB, 1);
    unsigned char *host = kit_host(bytes), *device = kit_device(bytes);
    cudaStream_t stream = kit_stream(), other = kit_stream();
    gpupool_ticket ticket = 0;
    gpupool_transfer what = kit_up(device, host, bytes, stream);
    cudaGraph_t graph = NULL;
    what.ticket = &ticket;
    CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    CHECK_RESULT(gpupool_upload(ring, device, host, bytes, stream), GPUPOOL_E_CAPTURING);
    CHECK_RESULT(gpupool_upload(ring, device, host, 100, stream), GPUPOOL_E_CAPTURING);
    CHECK_RESULT(gpupool_download(ring, host, device, bytes, stream), GPUPOOL_E_CAPTURING);
    CHECK_RESULT(gpupool_ring_transfer(ring, &what), GPUPOOL_E_CAPTURING);
    what.stream = other; /* other streams go on meanwhile */
    OK(gpupool_ring_transfer(ring, &what));
    OK(gpupool_ring_wait(ring, ticket, -1, NULL));
    OK(gpupool_download(ring, host, device, bytes, other));
    CUDA(cudaStreamEndCapture(stream, &graph));
    CUDA(cudaGraphDestroy(graph));
    OK(gpupool_upload(ring, device, host, bytes, stream));
    kit_host_free(host, bytes);
    kit_device_free(device, bytes);
    OK(gpupool_ring_destroy(ring));
    CUDA(cudaStreamDestroy(stream));
    CUDA(cudaStreamDestroy(other));
}

static void forks(void) {
    size_t bytes = MIB;
    gpupool_ring *ring = kit_ring(MIB, 128 * KIB, 1), *second = NULL;
    unsigned char *host = kit_host(bytes), *device = kit_device(bytes);
    int status = -1;
    pid_t child;
    OK(gpupool_upload(ring, device, host, bytes, NULL));
    fflush(stdout);
    child = fork();
    if (child == 0)
        _exit(!(gpupool_upload(ring, device, host, bytes, NULL) == GPUPOOL_E_FORKED &&
                gpupool_ring_wait(ring, 1, 0, NULL) == GPUPOOL_E_FORKED &&
                gpupool_ring_destroy(ring) == GPUPOOL_E_FORKED &&
                gpupool_ring_create(&second, NULL) == GPUPOOL_E_FORKED && !second));
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    OK(gpupool_upload(ring, device, host, bytes, NULL));
    kit_host_free(host, bytes);
    kit_device_free(device, bytes);
    OK(gpupool_ring_destroy(ring));
}

/* Device, and CUDA's last error, stay as they were. */
static void leaves_no_trace(void) {
    size_t bytes = MIB;
    gpupool_ring *ring = kit_ring(MIB, 128 * KIB, 1);
    unsigned char *host = kit_host(bytes), *device = kit_device(bytes);
    int current = -1, count = 0;
    CUDA(cudaGetDeviceCount(&count));
    if (count > 1) CUDA(cudaSetDevice(1));
    OK(gpupool_upload(ring, device, host, bytes, NULL));
    CHECK_EQ(cudaGetLastError(), cudaSuccess);
    CUDA(cudaGetDevice(&current));
    CHECK_EQ(current, count > 1 ? 1 : 0);
    if (count > 1) { /* a stream of another device is named */
        cudaStream_t stream = kit_stream();
        CHECK_RESULT(gpupool_upload(ring, device, host, bytes, stream), GPUPOOL_E_ARGUMENT);
        CHECK(strstr(gpupool_last_error(), "stream") != NULL);
        CUDA(cudaStreamDestroy(stream));
        CUDA(cudaSetDevice(0));
    }
    kit_host_free(host, bytes);
    kit_device_free(device, bytes);
    OK(gpupool_ring_destroy(ring));
}

int main(void) {
    RING_TEST(sizes_both_ways);
    RING_TEST(rows);
    RING_TEST(by_functions);
    RING_TEST(known_memory);
    RING_TEST(pinned_in_part);
    RING_TEST(tickets);
    RING_TEST(without_workers);
    RING_TEST(mistakes);
    RING_TEST(beyond_a_block);
    RING_TEST(configs);
    RING_TEST(captures);
    RING_TEST(forks);
    RING_TEST(leaves_no_trace);
    return check_finish();
}
