/* Random transfers by several threads on several streams through one small ring, all bytes checked,
   while the simulated device runs them in random order under the race oracle.

// build: plain
// build: check2 -DGPUPOOL_CHECK=2
// build: asan -fsanitize=address,undefined
// build: tsan -fsanitize=thread
// build: per_thread -DCUDA_API_PER_THREAD_DEFAULT_STREAM=1
*/
#include "ring_watch.h"
#define GPUPOOL_IMPLEMENTATION
#include "../gpupool.h"
#include "ring_kit.h"

#include <pthread.h>

#define THREADS 3
#ifndef STEPS
#define STEPS 100
#endif
#define ROOM ((size_t)900000)

typedef struct traveller {
    gpupool_ring *ring;
    uint64_t random;
    cudaStream_t streams[3];
    unsigned char *from, *to, *device;
} traveller;

static int bring(void *to, size_t bytes, uint64_t offset, void *user) {
    (memcpy)(to, ((traveller *)user)->from + offset, bytes);
    return 0;
}

static int take_away(const void *from, size_t bytes, uint64_t offset, void *user) {
    (memcpy)(((traveller *)user)->to + offset, from, bytes);
    return 0;
}

static size_t any_size(traveller *t) {
    size_t most = (size_t)1 << (1 + check_below(&t->random, 20));
    if (most > ROOM - 64) most = ROOM - 64;
    return 1 + (size_t)check_below(&t->random, most);
}

static gpupool_result settled(traveller *t, gpupool_result posted, gpupool_ticket ticket) {
    gpupool_result result = posted;
    if (posted != GPUPOOL_OK) return posted;
    do result = gpupool_ticket_wait(t->ring, ticket, (int64_t)check_below(&t->random, 100000));
    while (result == GPUPOOL_E_TIMEOUT);
    return result;
}

static gpupool_result there(traveller *t, size_t bytes, size_t skew, cudaStream_t stream) {
    gpupool_ticket ticket = 0;
    gpupool_result result;
    gpupool_span span;
    switch (check_below(&t->random, 4)) {
    case 0:
        result = gpupool_upload_async(t->ring, t->device, t->from + skew, bytes, stream, &ticket);
        return settled(t, result, ticket);
    case 1:
        if (skew) break;
        return gpupool_upload_from(t->ring, t->device, bytes, bring, t, stream);
    case 2:
        if (gpupool_span_acquire(t->ring, bytes, 1000000, &span) != GPUPOOL_OK) break;
#if CHECK_FAKE
        fake_host_access(span.memory, bytes, 1, "filling a span");
#endif
        (memcpy)(span.memory, t->from + skew, bytes);
        return gpupool_span_upload(t->ring, &span, t->device, stream);
    default: break;
    }
    return gpupool_upload(t->ring, t->device, t->from + skew, bytes, stream);
}

static gpupool_result back(traveller *t, size_t bytes, size_t skew, cudaStream_t stream) {
    gpupool_ticket ticket = 0;
    gpupool_result result;
    switch (check_below(&t->random, 3)) {
    case 0:
        result = gpupool_download_async(t->ring, t->to + skew, t->device, bytes, stream, &ticket);
        return settled(t, result, ticket);
    case 1:
        if (skew) break;
        return gpupool_download_to(t->ring, t->device, bytes, take_away, t, stream);
    default: break;
    }
    return gpupool_download(t->ring, t->to + skew, t->device, bytes, stream);
}

/* There on one stream, and back on another that comes after it. */
static void travel(traveller *t) {
    size_t bytes = any_size(t), skew = check_below(&t->random, 2) ? check_below(&t->random, 64) : 0;
    uint64_t seed = check_random(&t->random);
    cudaStream_t stream = t->streams[check_below(&t->random, 3)];
    cudaStream_t other = t->streams[check_below(&t->random, 3)];
    check_case("%zu bytes, skew %zu", bytes, skew);
    kit_pattern(t->from + skew, bytes, seed);
    CHECK_RESULT(there(t, bytes, skew, stream), GPUPOOL_OK);
    memset(t->from + skew, 0, bytes);
    memset(t->to, 0xee, skew + bytes + 64);
    kit_order(stream, other);
    CHECK_RESULT(back(t, bytes, skew, other), GPUPOOL_OK);
    kit_is_byte(t->to, skew, 0xee);
    kit_is_pattern(t->to + skew, bytes, seed, 0);
    kit_is_byte(t->to + skew + bytes, 64 - skew % 64, 0xee);
    kit_order(other, stream); /* what comes next may overwrite the device's bytes */
    for (int i = 0; i < 3; i++) kit_order(other, t->streams[i]);
}

static void travel_by_rows(traveller *t) {
    size_t width = 1 + (size_t)check_below(&t->random, 3000);
    size_t height = 1 + (size_t)check_below(&t->random, ROOM / (width + 200) - 1);
    size_t pitch = width + (size_t)check_below(&t->random, 100);
    size_t device_pitch = width + (size_t)check_below(&t->random, 100);
    uint64_t seed = check_random(&t->random);
    cudaStream_t stream = t->streams[check_below(&t->random, 3)];
    check_case("%zu rows of %zu, pitches %zu and %zu", height, width, pitch, device_pitch);
    kit_pattern(t->from, pitch * height, seed);
    memset(t->to, 0xee, pitch * height);
    CHECK_RESULT(gpupool_upload_2d(t->ring, t->device, device_pitch, t->from, pitch, width, height,
                                   stream), GPUPOOL_OK);
    CHECK_RESULT(gpupool_download_2d(t->ring, t->to, pitch, t->device, device_pitch, width, height,
                                     stream), GPUPOOL_OK);
    for (size_t y = 0; y < height; y++) {
        kit_is_pattern(t->to + y * pitch, width, seed, y * pitch);
        kit_is_byte(t->to + y * pitch + width, pitch - width, 0xee);
    }
    for (int i = 0; i < 3; i++) kit_order(stream, t->streams[i]);
}

static void *journey(void *argument) {
    traveller *t = (traveller *)argument;
    for (int step = 0; step < STEPS; step++) {
        if (check_below(&t->random, 5)) travel(t);
        else travel_by_rows(t);
    }
    return NULL;
}

static void travellers(int workers, uint64_t seed) {
    gpupool_ring *ring = kit_ring(512 * KIB, 0, workers);
    traveller t[THREADS];
    pthread_t threads[THREADS];
#if CHECK_FAKE
    fake_mode(FAKE_THREADED);
#endif
    for (int i = 0; i < THREADS; i++) {
        t[i].ring = ring;
        t[i].random = seed * 1000 + (uint64_t)i;
        t[i].from = kit_host(ROOM);
        t[i].to = kit_host(ROOM);
        t[i].device = kit_device(ROOM);
        for (int k = 0; k < 2; k++)
            CHECK_EQ(cudaStreamCreateWithFlags(&t[i].streams[k], cudaStreamNonBlocking),
                     cudaSuccess);
        t[i].streams[2] = cudaStreamPerThread;
    }
    for (int i = 0; i < THREADS; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, journey, &t[i]), 0);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < THREADS; i++) {
        memset(t[i].from, 0xee, ROOM);
        kit_host_free(t[i].from, ROOM);
        kit_host_free(t[i].to, ROOM);
        kit_device_free(t[i].device, ROOM);
        for (int k = 0; k < 2; k++) CHECK_EQ(cudaStreamDestroy(t[i].streams[k]), cudaSuccess);
    }
    CHECK(kit_ring_stats(ring).pinned.peak <= 512 * KIB);
    kit_ring_close(ring);
#if CHECK_FAKE
    fake_mode(FAKE_EAGER);
#endif
}

static void alone(void) { travellers(0, 1); }
static void with_workers(void) { travellers(3, 2); }

int main(void) {
    ARENA_TEST(alone);
    ARENA_TEST(with_workers);
    return check_finish();
}
