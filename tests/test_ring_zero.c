/* A stream of 0 in the ring's calls is what CUDA takes it for in the file that makes the call: the
   thread's own stream in this one, and in brackets, which leave gpupool's macros out as in a file
   that is not compiled so, the legacy stream. */
// build: plain -DCUDA_API_PER_THREAD_DEFAULT_STREAM
#ifndef CUDA_API_PER_THREAD_DEFAULT_STREAM
#define CUDA_API_PER_THREAD_DEFAULT_STREAM /* the GPU's tests have no flags of their own */
#endif
#define GPUPOOL_IMPLEMENTATION
#include "../gpupool.h"
#include "ring_kit.h"

#define BYTES (300 * KIB) /* more than CUDA stages by itself */

static cudaStream_t recorded_on; /* that an event was recorded on, since this was set to NULL */
static CUresult(CUDAAPI *cudas_record)(CUevent, CUstream);

static CUresult CUDAAPI note_record(CUevent event, CUstream stream) {
    if (!recorded_on) recorded_on = stream;
    return cudas_record(event, stream);
}

static gpupool_ring *ring;
static unsigned char *host, *device;
static gpupool_span span;
static gpupool_ticket ticket;

static int bring(void *to, size_t bytes, uint64_t offset, void *unused) {
    (void)unused;
    memcpy(to, host + offset, bytes);
    return 0;
}

static int take(const void *from, size_t bytes, uint64_t offset, void *unused) {
    (void)unused;
    memcpy(host + offset, from, bytes);
    return 0;
}

#define EITHER_WAY(name, call, arguments) \
    static gpupool_result name(int here) { return here ? call arguments : (call)arguments; }
EITHER_WAY(up, gpupool_upload, (ring, device, host, BYTES, 0))
EITHER_WAY(down, gpupool_download, (ring, host, device, BYTES, 0))
EITHER_WAY(up_async, gpupool_upload_async, (ring, device, host, BYTES, 0, &ticket))
EITHER_WAY(down_async, gpupool_download_async, (ring, host, device, BYTES, 0, &ticket))
EITHER_WAY(up_rows, gpupool_upload_2d, (ring, device, 3072, host, 3072, 3000, 100, 0))
EITHER_WAY(down_rows, gpupool_download_2d, (ring, host, 3072, device, 3072, 3000, 100, 0))
EITHER_WAY(up_from, gpupool_upload_from, (ring, device, BYTES, bring, NULL, 0))
EITHER_WAY(down_to, gpupool_download_to, (ring, device, BYTES, take, NULL, 0))
EITHER_WAY(up_span, gpupool_span_upload, (ring, &span, device, 0))

static gpupool_result (*const calls[])(int) = {up,        down,    up_async, down_async, up_rows,
                                               down_rows, up_from, down_to,  up_span};

static void zero_is_what_it_is_where_the_call_stands(void) {
    ring = kit_ring(MIB, 0, 0);
    cudas_record = ring->stage.driver.event_record;
    ring->stage.driver.event_record = note_record;
    host = kit_host(BYTES);
    device = kit_device(BYTES);
    kit_pattern(host, BYTES, 1);
    CHECK_EQ(cudaMemcpy(device, host, BYTES, cudaMemcpyHostToDevice), cudaSuccess);
    for (size_t i = 0; i < KIT_COUNT(calls); i++)
        for (int here = 0; here < 2; here++) {
            check_case("call %zu, here %d", i, here);
            if (calls[i] == up_span) {
                CHECK_RESULT(gpupool_span_acquire(ring, BYTES, -1, &span), GPUPOOL_OK);
                memcpy(span.memory, host, BYTES);
            }
            ticket = 0;
            recorded_on = NULL;
            CHECK_RESULT(calls[i](here), GPUPOOL_OK);
            CHECK(recorded_on == (here ? cudaStreamPerThread : cudaStreamLegacy));
            if (ticket) CHECK_RESULT(gpupool_ticket_wait(ring, ticket, -1), GPUPOOL_OK);
            CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
        }
    kit_is_pattern(host, BYTES, 1, 0);
    kit_expect_device(device, BYTES, 1);
    kit_host_free(host, BYTES);
    kit_device_free(device, BYTES);
    kit_ring_close(ring);
}

int main(void) {
    ARENA_TEST(zero_is_what_it_is_where_the_call_stands);
    return check_finish();
}
