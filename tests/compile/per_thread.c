/* Compiled with CUDA_API_PER_THREAD_DEFAULT_STREAM: a stream of 0 is the thread's own, in every
   call that takes one. */
#define GPUPOOL_IMPLEMENTATION
#include "../../gpupool.h"

static int bring(void *to, size_t bytes, uint64_t offset, void *user) {
    (void)offset;
    memcpy(to, user, bytes);
    return 0;
}

static int take(const void *from, size_t bytes, uint64_t offset, void *user) {
    (void)offset;
    memcpy(user, from, bytes);
    return 0;
}

static int ring_calls(void *device) {
    static char host[1000];
    gpupool_ring *ring = NULL;
    gpupool_ticket up = 0, down = 0;
    gpupool_span span;
    int fine = gpupool_ring_create(&ring, NULL) == GPUPOOL_OK;
    fine = fine && gpupool_upload(ring, device, host, 1000, 0) == GPUPOOL_OK;
    fine = fine && gpupool_download(ring, host, device, 1000, NULL) == GPUPOOL_OK;
    fine = fine && gpupool_upload_async(ring, device, host, 1000, 0, &up) == GPUPOOL_OK;
    fine = fine && gpupool_download_async(ring, host, device, 1000, 0, &down) == GPUPOOL_OK;
    fine = fine && gpupool_ticket_wait(ring, up, -1) == GPUPOOL_OK;
    fine = fine && gpupool_ticket_wait(ring, down, -1) == GPUPOOL_OK;
    fine = fine && gpupool_upload_2d(ring, device, 100, host, 100, 90, 10, 0) == GPUPOOL_OK;
    fine = fine && gpupool_download_2d(ring, host, 100, device, 100, 90, 10, 0) == GPUPOOL_OK;
    fine = fine && gpupool_upload_from(ring, device, 1000, bring, host, 0) == GPUPOOL_OK;
    fine = fine && gpupool_download_to(ring, device, 1000, take, host, 0) == GPUPOOL_OK;
    fine = fine && gpupool_span_acquire(ring, 1000, -1, &span) == GPUPOOL_OK;
    fine = fine && gpupool_span_upload(ring, &span, device, 0) == GPUPOOL_OK;
    return gpupool_ring_destroy(ring) == GPUPOOL_OK && fine;
}

int main(void) {
    gpupool_arena *arena = gpupool_default_arena(0);
    gpupool_capture *scope = NULL;
    void *a = gpupool_alloc(arena, 1000, 0), *b = gpupool_zalloc(arena, 1000, cudaStreamPerThread);
    void *c = gpupool_alloc_aligned(arena, 1000, 4096, NULL), *d = NULL;
    int fine = a && b && c && gpupool_cudaMallocAsync(&d, 1000, 0) == cudaSuccess;
    fine = fine && ring_calls(b);
    fine = gpupool_record_use(arena, a, 0) == GPUPOOL_OK && fine;
    fine = gpupool_capture_begin(arena, 0, &scope) == GPUPOOL_OK && fine;
    fine = gpupool_capture_release(scope) == GPUPOOL_OK && fine;
    fine = gpupool_free(arena, a, 0) == GPUPOOL_OK && fine;
    fine = gpupool_free(arena, b, 0) == GPUPOOL_OK && fine;
    fine = gpupool_free(arena, c, cudaStreamLegacy) == GPUPOOL_OK && fine;
    fine = gpupool_cudaFreeAsync(d, 0) == cudaSuccess && fine;
    fine = gpupool_stream_retired(arena, 0) == GPUPOOL_OK && fine;
    return gpupool_arena_destroy(arena) == GPUPOOL_OK && fine ? 0 : 1;
}
