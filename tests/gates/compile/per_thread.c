/* Compiled with CUDA_API_PER_THREAD_DEFAULT_STREAM: a stream of 0 is the thread's own, in every
   call that takes one. */
#define GPUPOOL_IMPLEMENTATION
#include "../../../gpupool.h"

static gpupool_result transfer(gpupool_ring *ring, gpupool_direction direction, void *to,
                               const void *from, gpupool_ticket *ticket) {
    gpupool_transfer all;
    memset(&all, 0, sizeof all);
    all.direction = direction;
    all.to = to;
    all.from = from;
    all.bytes = 1000;
    all.ticket = ticket;
    return gpupool_ring_transfer(ring, &all);
}

static int ring_calls(void *device) {
    static char host[1000];
    gpupool_ring *ring = NULL;
    gpupool_ticket up = 0, down = 0;
    gpupool_span span;
    int fine = gpupool_ring_create(&ring, NULL) == GPUPOOL_OK;
    fine = fine && gpupool_upload(ring, device, host, 1000, 0) == GPUPOOL_OK;
    fine = fine && gpupool_download(ring, host, device, 1000, NULL) == GPUPOOL_OK;
    fine = fine && transfer(ring, GPUPOOL_UP, device, host, &up) == GPUPOOL_OK;
    fine = fine && transfer(ring, GPUPOOL_DOWN, host, device, &down) == GPUPOOL_OK;
    fine = fine && gpupool_ring_wait(ring, up, -1) == GPUPOOL_OK;
    fine = fine && gpupool_ring_wait(ring, down, -1) == GPUPOOL_OK;
    fine = fine && gpupool_ring_acquire_span(ring, 1000, -1, &span) == GPUPOOL_OK;
    fine = fine && gpupool_ring_upload_span(ring, &span, device, 0) == GPUPOOL_OK;
    return gpupool_ring_destroy(ring) == GPUPOOL_OK && fine;
}

int main(void) {
    gpupool_arena *arena = gpupool_get_default_arena(0);
    gpupool_capture *scope = NULL;
    gpupool_request request = {1000, 0, 0, GPUPOOL_ZEROED, NULL, 0, 0};
    void *a = gpupool_alloc(arena, 1000, 0), *b = gpupool_zalloc(arena, 1000, cudaStreamPerThread);
    void *c = gpupool_alloc_aligned(arena, 1000, 4096, NULL), *d = NULL;
    int fine = a && b && c && gpupool_cudaMallocAsync(&d, 1000, 0) == cudaSuccess;
    fine = fine && ring_calls(b);
    fine = gpupool_free(arena, gpupool_alloc_request(arena, &request), 0) == GPUPOOL_OK && fine;
    fine = gpupool_wait_stream(arena, 0) == GPUPOOL_OK && fine;
    fine = gpupool_record_stream(arena, a, 0) == GPUPOOL_OK && fine;
    fine = gpupool_begin_capture(arena, 0, &scope) == GPUPOOL_OK && fine;
    fine = gpupool_release_capture(scope) == GPUPOOL_OK && fine;
    fine = gpupool_free(arena, a, 0) == GPUPOOL_OK && fine;
    fine = gpupool_free(arena, b, 0) == GPUPOOL_OK && fine;
    fine = gpupool_free(arena, c, cudaStreamLegacy) == GPUPOOL_OK && fine;
    fine = gpupool_cudaFreeAsync(d, 0) == cudaSuccess && fine;
    fine = gpupool_retire_stream(arena, 0) == GPUPOOL_OK && fine;
    return gpupool_arena_destroy(arena) == GPUPOOL_OK && fine ? 0 : 1;
}
