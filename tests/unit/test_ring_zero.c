/* A stream of 0 in the ring's calls is what CUDA takes it for in the file that makes the call: the
   thread's own stream in this one, and in brackets, which leave gpupool's macros out as in a file
   that is not compiled so, the legacy stream. */
// build: plain -DCUDA_API_PER_THREAD_DEFAULT_STREAM
#ifndef CUDA_API_PER_THREAD_DEFAULT_STREAM
#define CUDA_API_PER_THREAD_DEFAULT_STREAM /* the GPU's tests have no flags of their own */
#endif
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
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
static gpupool_transfer ticketed;

#define EITHER_WAY(name, call, arguments) \
    static gpupool_result name(int here) { return here ? call arguments : (call)arguments; }
EITHER_WAY(up, gpupool_upload, (ring, device, host, BYTES, 0))
EITHER_WAY(down, gpupool_download, (ring, host, device, BYTES, 0))
EITHER_WAY(transfer, gpupool_ring_transfer, (ring, &ticketed))
EITHER_WAY(up_span, gpupool_ring_upload_span, (ring, &span, device, 0))

static gpupool_result (*const calls[])(int) = {up, down, transfer, up_span};

static void zero_is_what_it_is_where_the_call_stands(void) {
    ring = kit_ring(MIB, 0, 0);
    cudas_record = ring->stage.driver.event_record;
    ring->stage.driver.event_record = note_record;
    host = kit_host(BYTES);
    device = kit_device(BYTES);
    ticketed = kit_transfer(GPUPOOL_UP, device, host, BYTES, 0);
    ticketed.ticket = &ticket;
    kit_pattern(host, BYTES, 1);
    CHECK_EQ(cudaMemcpy(device, host, BYTES, cudaMemcpyHostToDevice), cudaSuccess);
    for (size_t i = 0; i < KIT_COUNT(calls); i++)
        for (int here = 0; here < 2; here++) {
            check_case("call %zu, here %d", i, here);
            if (calls[i] == up_span) {
                CHECK_RESULT(gpupool_ring_acquire_span(ring, BYTES, -1, &span), GPUPOOL_OK);
                memcpy(span.memory, host, BYTES);
            }
            ticket = 0;
            recorded_on = NULL;
            CHECK_RESULT(calls[i](here), GPUPOOL_OK);
            CHECK(recorded_on == (here ? cudaStreamPerThread : cudaStreamLegacy));
            if (ticket) CHECK_RESULT(gpupool_ring_wait(ring, ticket, -1), GPUPOOL_OK);
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
