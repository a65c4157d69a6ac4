/* Calls of CUDA that fail, by class. A resource call fails once: the transfer succeeds, or says so
   and the ring goes on. Another call fails, and all after it: the ring is broken, and says with
   which cause; it ends all the same. */
#include <pthread.h>

#include "gpupool.h"
#include "ring_kit.h"

#if CHECK_FAKE

#define BYTES (300 * KIB + 5)

typedef struct scene {
    gpupool_ring *ring;
    unsigned char *host, *back, *device, *pinned;
    cudaStream_t stream;
    int is_whole; /* all that was said to be there is there */
} scene;

static void prepare(scene *s) {
    fake_fail_pause(1);
    memset(s, 0, sizeof *s);
    s->host = kit_host(BYTES);
    s->back = kit_host(BYTES);
    s->device = kit_device(BYTES);
    s->stream = kit_stream();
    CUDA(cudaHostAlloc((void **)&s->pinned, BYTES, 0));
    kit_fill(s->host, BYTES, 1, 0);
    kit_fill(s->pinned, BYTES, 2, 0);
    fake_fail_pause(0);
}

static void clear(scene *s) {
    fake_fail_clear();
    kit_host_free(s->host, BYTES);
    kit_host_free(s->back, BYTES);
    kit_device_free(s->device, BYTES);
    CUDA(cudaStreamDestroy(s->stream));
    CUDA(cudaFreeHost(s->pinned));
}

/* Of a broken context: what CUDA did not take back, half of a hand that was in the making, say, is
   left to it. */
static void drop_the_rest(void) {
    CHECK_EQ(fake_failures(), 0);
    CHECK_EQ(fake_misuses(), 0);
    fake_quiet(1);
    fake_reset();
    fake_quiet(0);
}

/* A call of the ring that may fail. Returns whether it succeeded. */
static int may(gpupool_result result) {
    int is_named = result == GPUPOOL_E_CUDA || result == GPUPOOL_E_HOST_MEMORY;
    if (result == GPUPOOL_OK) return 1;
    CHECK(is_named && gpupool_last_result() == result && gpupool_last_error()[0]);
    return 0;
}

static int is_on_device(const scene *s, uint64_t seed) {
    unsigned char *copy;
    int is;
    if (fake_is_broken()) return 1; /* nobody can look */
    fake_fail_pause(1);
    copy = kit_fetch(s->device, BYTES);
    is = kit_is(copy, BYTES, seed, 0);
    free(copy);
    fake_fail_pause(0);
    return is;
}

/* What a ring does when nothing fails any more. */
static void after(scene *s) {
    OK(gpupool_upload(s->ring, s->device, s->host, BYTES, s->stream));
    is_on_device(s, 1);
    OK(gpupool_download(s->ring, s->back, s->device, BYTES, s->stream));
    kit_is(s->back, BYTES, 1, 0);
}

/* One failed wait for a hand breaks the ring for good: the first cause stays. */
static void stays_broken(void) {
    scene s;
    prepare(&s);
    s.ring = kit_ring(MIB, 64 * KIB, 1);
    fake_fail_call("cuEventSynchronize", 1, 0, 719);
    fake_fail_call("cuStreamSynchronize", 2, 0, 719); /* the first waits for the program's work */
    CHECK_RESULT(gpupool_upload(s.ring, s.device, s.host, BYTES, s.stream), GPUPOOL_E_CUDA);
    CHECK_RESULT(gpupool_download(s.ring, s.back, s.device, BYTES, s.stream), GPUPOOL_E_CUDA);
    CHECK(strstr(gpupool_last_error(), "broken") &&
          strstr(gpupool_last_error(), "cudaErrorLaunchFailure"));
    CHECK_RESULT(gpupool_upload(s.ring, s.device, s.host, 1, s.stream), GPUPOOL_E_CUDA);
    OK(gpupool_ring_destroy(s.ring));
    clear(&s);
}

/* A copy that CUDA refuses fails its transfer only. */
static void refused_copy(void) {
    scene s;
    prepare(&s);
    s.ring = kit_ring(MIB, 64 * KIB, 1);
    CHECK_RESULT(gpupool_upload(s.ring, s.device + 100 * MIB, s.host, BYTES, s.stream),
                 GPUPOOL_E_ARGUMENT);
    for (int n = 1; n < 4; n++) {
        fake_fail_call("cuMemcpyAsync", n, 0, 1);
        CHECK_RESULT(gpupool_upload(s.ring, s.device, s.host, BYTES, s.stream), GPUPOOL_E_CUDA);
        CHECK(strstr(gpupool_last_error(), "cuMemcpyAsync: cudaErrorInvalidValue") != NULL);
        fake_fail_call("cuMemcpyAsync", n, 0, 1);
        CHECK_RESULT(gpupool_download(s.ring, s.back, s.device, BYTES, s.stream), GPUPOOL_E_CUDA);
    }
    after(&s);
    OK(gpupool_ring_destroy(s.ring));
    clear(&s);
}

/* The context breaks while four threads are at it: all calls return, with one cause. */
typedef struct worker {
    pthread_t thread;
    scene s;
} worker;
static void *works(void *user) {
    worker *w = (worker *)user;
    for (int i = 0; i < 6; i++) {
        may(gpupool_upload(w->s.ring, w->s.device, w->s.host, BYTES, w->s.stream));
        may(gpupool_download(w->s.ring, w->s.back, w->s.device, BYTES, w->s.stream));
    }
    return NULL;
}
static void breaks_amid_threads(void) {
    for (long n = 1; n < 400; n += 37) {
        gpupool_ring *ring = kit_ring(MIB, 64 * KIB, 2);
        worker workers[4];
        check_case("call %ld", n);
        for (int i = 0; i < 4; i++) prepare(&workers[i].s);
        fake_break(n);
        for (int i = 0; i < 4; i++) workers[i].s.ring = ring;
        for (int i = 0; i < 4; i++)
            if (pthread_create(&workers[i].thread, NULL, works, &workers[i])) exit(1);
        for (int i = 0; i < 4; i++) pthread_join(workers[i].thread, NULL);
        CHECK(fake_is_broken());
        fake_fail_clear();
        OK(gpupool_ring_destroy(ring));
        for (int i = 0; i < 4; i++) clear(&workers[i].s);
        drop_the_rest();
    }
}

int main(void) {
    RING_TEST(stays_broken);
    RING_TEST(refused_copy);
    RING_TEST(breaks_amid_threads);
    return check_finish();
}

#else
int main(void) {
    check_skip("faults", "needs fakecuda's controls");
    return check_finish();
}
#endif
