/* What a ring promises: bytes arrive, in both directions, by every way; figures. On the simulated
   GPU, and on a real one. */
#define _GNU_SOURCE
#include <stdlib.h>

#include "gpupool.h"
#include "ring_kit.h"

static gpupool_ring *ring;
static job j;

static void begin(size_t slot_bytes, int workers, size_t bytes) {
    ring = kit_ring(2 * MIB, slot_bytes, workers);
    job_open(&j, ring, bytes, 1);
}
static void end(void) {
    job_close(&j);
    OK(gpupool_ring_destroy(ring));
}

static void sizes_both_ways(void) {
    static const size_t sizes[] = {1,      4095, 64 * KIB,       64 * KIB + 1,
                                   200000, MIB,  3 * MIB + 4097, 9 * MIB};
    for (size_t i = 0; i < KIT_COUNT(sizes); i++) {
        size_t bytes = sizes[i];
        check_case("%zu bytes", bytes);
        begin(256 * KIB, 3, bytes);
        OK(job_upload(&j));
        kit_device_is(j.device, bytes, 1);
        memset(j.host, 0, bytes);
        OK(job_download(&j));
        kit_is(j.host, bytes, 1, 0);
        CHECK(ring_stats(ring).pinned <= 2 * MIB && ring_stats(ring).limit == 2 * MIB);
        CHECK_EQ(ring_stats(ring).transfers[GPUPOOL_UP], 1);
        CHECK_EQ(ring_stats(ring).transfers[GPUPOOL_DOWN], 1);
        CHECK_EQ(ring_stats(ring).direct_bytes[GPUPOOL_UP], bytes > 64 * KIB ? 0 : bytes);
        CHECK_EQ(ring_stats(ring).failures, 0);
        end();
    }
}

/* Rows of all widths: shorter and longer than a slot, and as wide as the pitch. */
static void rows_one(size_t width, size_t rows, size_t gap) {
    size_t host_pitch = width + gap, device_pitch = width + 3 * gap;
    size_t host_bytes = host_pitch * rows, device_bytes = device_pitch * rows;
    unsigned char *host = kit_host(host_bytes), *back = kit_host(host_bytes);
    unsigned char *device = kit_device(device_bytes), *copy;
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
    copy = kit_fetch(device, device_bytes);
    for (size_t row = 0; row < rows && gap; row++)
        kit_is_all(copy + row * device_pitch + width, 3 * gap, 0xdd);
    free(copy);
    kit_host_free(host, host_bytes);
    kit_host_free(back, host_bytes);
    kit_device_free(device, device_bytes);
}

static void rows(void) {
    ring = kit_ring(2 * MIB, 128 * KIB, 2);
    rows_one(1, 1, 5);
    rows_one(3, 1000, 1);
    rows_one(1000, 700, 24);
    rows_one(131072, 9, 64);
    rows_one(131073, 7, 64);
    rows_one(500000, 4, 1000);
    rows_one(65536, 20, 0);
    OK(gpupool_ring_destroy(ring));
}

/* A function of the program, which brings pattern 5. */
typedef struct function {
    atomic_long calls, bytes;
    long fail_at;
} function;

/* It finds the thread's mode of capture as the program set it. */
static int was_called(function *f, size_t bytes) {
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
    CUDA(cudaThreadExchangeStreamCaptureMode(&mode));
    CHECK_EQ(mode, cudaStreamCaptureModeGlobal);
    atomic_fetch_add(&f->bytes, (long)bytes);
    return atomic_fetch_add(&f->calls, 1) == f->fail_at ? 42 : 0;
}
static int reads(void *to, size_t bytes, uint64_t offset, void *user) {
    kit_fill((unsigned char *)to, bytes, 5, offset);
    return was_called((function *)user, bytes);
}
static int writes(const void *from, size_t bytes, uint64_t offset, void *user) {
    kit_is((const unsigned char *)from, bytes, 5, offset);
    return was_called((function *)user, bytes);
}

static void by_functions(void) {
    size_t bytes = 5 * MIB + 3;
    function up = {.fail_at = -1}, down = {.fail_at = -1};
    gpupool_transfer what, back;
    begin(128 * KIB, 3, bytes);
    what = kit_up(j.device, NULL, bytes, NULL);
    what.read = reads;
    what.user = &up;
    back = kit_down(NULL, j.device, bytes, NULL);
    back.write = writes;
    back.user = &down;
    OK(gpupool_ring_transfer(ring, &what));
    kit_device_is(j.device, bytes, 5);
    OK(gpupool_ring_transfer(ring, &back));
    CHECK_EQ(up.bytes, bytes);
    CHECK_EQ(down.bytes, bytes);
    up.fail_at = up.calls + 3;
    KIT_REFUSES(gpupool_ring_transfer(ring, &what), GPUPOOL_E_CALLBACK, "42");
    down.fail_at = down.calls;
    CHECK_RESULT(gpupool_ring_transfer(ring, &back), GPUPOOL_E_CALLBACK);
    CHECK_EQ(ring_stats(ring).failures, 2);
    down.fail_at = -1;
    OK(gpupool_ring_transfer(ring, &back));
    end();
}

/* Pinned, managed and device memory goes directly: it pins nothing of the ring's. */
static void known_memory(void) {
    size_t bytes = 2 * MIB;
    unsigned char *other = kit_device(bytes), *pinned, *managed;
    begin(128 * KIB, 2, bytes);
    CUDA(cudaHostAlloc((void **)&pinned, bytes, cudaHostAllocDefault));
    CUDA(cudaMallocManaged((void **)&managed, bytes, cudaMemAttachGlobal));
    kit_fill(pinned, bytes, 1, 0);
    OK(gpupool_upload(ring, j.device, pinned, bytes, j.stream));
    kit_fill(pinned, bytes, 2, 0); /* the call has waited */
    kit_device_is(j.device, bytes, 1);
    OK(gpupool_download(ring, pinned, j.device, bytes, j.stream));
    kit_is(pinned, bytes, 1, 0);
    OK(gpupool_download(ring, managed, j.device, bytes, j.stream));
    kit_is(managed, bytes, 1, 0);
    OK(gpupool_upload(ring, other, j.device, bytes, j.stream));
    kit_device_is(other, bytes, 1);
    CHECK_EQ(ring_stats(ring).pinned, 0);
    CHECK_EQ(ring_stats(ring).direct_bytes[GPUPOOL_UP], 2 * bytes);
    CUDA(cudaFreeHost(pinned));
    CUDA(cudaFree(managed));
    kit_device_free(other, bytes);
    end();
}

/* Memory that is pinned at both ends and not between, or at one end only, goes through slots. */
static void pinned_in_part(void) {
    size_t bytes = MIB;
    unsigned char *host = NULL;
    begin(128 * KIB, 2, bytes);
    if (posix_memalign((void **)&host, 65536, bytes)) exit(1);
    kit_fill(host, bytes, 1, 0);
    CUDA(cudaHostRegister(host, 65536, 0));
    OK(gpupool_upload(ring, j.device, host, bytes, NULL));
    kit_device_is(j.device, bytes, 1);
    CUDA(cudaHostRegister(host + bytes - 65536, 65536, 0));
    kit_device_set(j.device, bytes, 2);
    OK(gpupool_download(ring, host, j.device, bytes, NULL));
    kit_is(host, bytes, 2, 0);
    CHECK_EQ(ring_stats(ring).bytes[GPUPOOL_UP], bytes);
    CHECK_EQ(ring_stats(ring).bytes[GPUPOOL_DOWN], bytes);
    CUDA(cudaHostUnregister(host));
    CUDA(cudaHostUnregister(host + bytes - 65536));
    free(host);
    end();
}

/* A ticket of no bytes is done with what the stream had before; without workers a wait copies. */
static void without_workers(void) {
    gpupool_ticket second;
    uint64_t done = 0, before = 0;
    gpupool_result result;
    begin(128 * KIB, 0, 2 * MIB + 5);
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
    kit_device_is(j.device, j.bytes, 1);
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
    void *block = gpupool_alloc(arena, MIB, NULL);
    gpupool_transfer down;
    begin(128 * KIB, 1, MIB);
    OK(gpupool_upload(ring, block, j.host, MIB, NULL));
    down = kit_down(j.host, block, 100000, NULL);
    down.to_pitch = 100000;
    down.from_pitch = 200000;
    down.rows = 6;
    KIT_REFUSES(gpupool_ring_transfer(ring, &down), GPUPOOL_E_ARGUMENT, "from: it goes beyond");
    down.rows = 5;
    OK(gpupool_ring_transfer(ring, &down));
    OK(gpupool_sleep(arena, GPUPOOL_KEEP));
    CHECK_RESULT(gpupool_upload(ring, block, j.host, MIB, NULL), GPUPOOL_E_ASLEEP);
    CHECK_RESULT(gpupool_download(ring, j.host, block, MIB, NULL), GPUPOOL_E_ASLEEP);
    OK(gpupool_wake(arena));
    OK(gpupool_download(ring, j.host, block, MIB, NULL));
    kit_is(j.host, MIB, 1, 0);
    kit_free(arena, block, NULL);
    KIT_REFUSES(gpupool_upload(ring, block, j.host, MIB, NULL), GPUPOOL_E_ARGUMENT, "that is free");
    kit_close(arena);
    end();
}

/* E_CAPTURING, and the capture goes on: its graph can be made. */
static void captures(void) {
    gpupool_ticket ticket;
    gpupool_transfer what;
    cudaGraph_t graph = NULL;
    job other;
    begin(128 * KIB, 1, MIB);
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
    job_close(&other);
    end();
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
