/* What a ring promises: bytes arrive, in both directions, by every way; figures. On the simulated
   GPU, and on a real one. */
#define _GNU_SOURCE
#include <stdlib.h>

#include "gpupool.h"
#include "ring_kit.h"

static void sizes_both_ways(void) {
    static const size_t sizes[] = {1,      4095, 64 * KIB,       64 * KIB + 1,
                                   200000, MIB,  3 * MIB + 4097, 9 * MIB};
    gpupool_ring *ring = kit_ring(4 * MIB, 256 * KIB, 3);
    job j;
    for (size_t i = 0; i < KIT_COUNT(sizes); i++) {
        check_case("%zu bytes", sizes[i]);
        job_open(&j, ring, sizes[i], i);
        OK(job_upload(&j));
        kit_device_is(j.device, j.bytes, i);
        memset(j.host, 0, j.bytes);
        OK(job_download(&j));
        kit_is(j.host, j.bytes, i, 0);
        job_close(&j);
    }
    CHECK(ring_stats(ring).pinned <= 4 * MIB && ring_stats(ring).limit == 4 * MIB);
    CHECK_EQ(ring_stats(ring).transfers[GPUPOOL_UP], 8);
    CHECK_EQ(ring_stats(ring).transfers[GPUPOOL_DOWN], 8);
    CHECK_EQ(ring_stats(ring).direct_bytes[GPUPOOL_UP], 1 + 4095 + 64 * KIB);
    CHECK_EQ(ring_stats(ring).failures, 0);
    OK(gpupool_ring_destroy(ring));
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
    CHECK_EQ(ring_stats(ring).failures, 2);
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
    cudaStream_t stream = kit_stream[0];
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
    CHECK_EQ(ring_stats(ring).pinned, 0);
    CHECK_EQ(ring_stats(ring).direct_bytes[GPUPOOL_UP], 2 * bytes);
    CUDA(cudaFreeHost(pinned));
    CUDA(cudaFree(managed));
    kit_device_free(device, bytes);
    kit_device_free(other, bytes);
    OK(gpupool_ring_destroy(ring));
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
    CHECK_EQ(ring_stats(ring).bytes[GPUPOOL_UP], bytes);
    CHECK_EQ(ring_stats(ring).bytes[GPUPOOL_DOWN], bytes);
    CUDA(cudaHostUnregister(host));
    CUDA(cudaHostUnregister(host + bytes - 65536));
    free(host);
    kit_device_free(device, bytes);
    OK(gpupool_ring_destroy(ring));
}

/* A ticket of no bytes is done with what the stream had before; without workers a wait copies. */
static void without_workers(void) {
    gpupool_ring *ring = kit_ring(MIB, 128 * KIB, 0);
    gpupool_ticket second;
    uint64_t done = 0, before = 0;
    gpupool_result result;
    job j;
    job_open(&j, ring, 2 * MIB + 5, 9);
    job_post(&j);
    second = kit_post(ring, kit_up(NULL, NULL, 0, NULL));
    OK(gpupool_ring_wait(ring, second, -1, &done));
    CHECK_EQ(done, 0);
    CHECK_RESULT(gpupool_ring_wait(ring, j.ticket, 0, &done), GPUPOOL_E_TIMEOUT);
    CHECK_EQ(done, 0);
    while ((result = gpupool_ring_wait(ring, j.ticket, 1, &done)) == GPUPOOL_E_TIMEOUT) {
        CHECK(done >= before && done < j.bytes); /* progress can be read */
        before = done;
    }
    OK(result);
    CHECK(before > j.bytes / 2);
    kit_device_is(j.device, j.bytes, 9);
    CHECK_EQ(ring_stats(ring).workers, 0);
    kit_fill(j.host, j.bytes, 10, 0);
    job_post(&j);
    OK(gpupool_ring_destroy(ring)); /* carries out what nobody has waited for */
    kit_device_is(j.device, j.bytes, 10);
    job_close(&j);
}

/* Rows that go beyond their block in an arena, and memory that is free or asleep. */
static void of_an_arena(void) {
    gpupool_arena *arena = kit_open(0);
    unsigned char *block = (unsigned char *)gpupool_alloc(arena, MIB, NULL), *device;
    gpupool_transfer rows;
    job j;
    job_open(&j, kit_ring(MIB, 128 * KIB, 1), MIB, 6);
    device = j.device;
    j.device = block;
    OK(job_upload(&j));
    rows = kit_down(j.host, block, 100000, NULL);
    rows.to_pitch = 100000;
    rows.from_pitch = 200000;
    rows.rows = 6;
    KIT_REFUSES(gpupool_ring_transfer(j.ring, &rows), GPUPOOL_E_ARGUMENT, "from: it goes beyond");
    rows.rows = 5;
    OK(gpupool_ring_transfer(j.ring, &rows));
    OK(gpupool_sleep(arena, GPUPOOL_KEEP));
    CHECK_RESULT(job_upload(&j), GPUPOOL_E_ASLEEP);
    CHECK_RESULT(job_download(&j), GPUPOOL_E_ASLEEP);
    OK(gpupool_wake(arena));
    OK(job_download(&j));
    kit_is(j.host, MIB, 6, 0);
    kit_free(arena, block, NULL);
    KIT_REFUSES(job_upload(&j), GPUPOOL_E_ARGUMENT, "to: it is in memory that is free");
    kit_close(arena);
    j.device = device;
    OK(gpupool_ring_destroy(j.ring));
    job_close(&j);
}

/* E_CAPTURING, and the capture goes on: its graph can be made. */
static void captures(void) {
    gpupool_ring *ring = kit_ring(MIB, 128 * KIB, 1);
    gpupool_transfer what;
    gpupool_ticket ticket;
    cudaGraph_t graph = NULL;
    job j, other;
    job_open(&j, ring, MIB, 1);
    job_open(&other, ring, MIB, 2);
    what = kit_up(j.device, j.host, MIB, j.stream);
    what.ticket = &ticket;
    CUDA(cudaStreamBeginCapture(j.stream, cudaStreamCaptureModeGlobal));
    CHECK_RESULT(job_upload(&j), GPUPOOL_E_CAPTURING);
    CHECK_RESULT(gpupool_upload(ring, j.device, j.host, 100, j.stream), GPUPOOL_E_CAPTURING);
    CHECK_RESULT(job_download(&j), GPUPOOL_E_CAPTURING);
    CHECK_RESULT(gpupool_ring_transfer(ring, &what), GPUPOOL_E_CAPTURING);
    job_post(&other); /* other streams go on meanwhile */
    OK(gpupool_ring_wait(ring, other.ticket, -1, NULL));
    OK(job_download(&other));
    CUDA(cudaStreamEndCapture(j.stream, &graph));
    CUDA(cudaGraphDestroy(graph));
    OK(job_upload(&j));
    job_close(&j);
    job_close(&other);
    OK(gpupool_ring_destroy(ring));
}

int main(void) {
    KIT_TEST(sizes_both_ways);
    KIT_TEST(rows);
    KIT_TEST(by_functions);
    KIT_TEST(known_memory);
    KIT_TEST(pinned_in_part);
    KIT_TEST(without_workers);
    KIT_TEST(of_an_arena);
    KIT_TEST(captures);
    return check_finish();
}
