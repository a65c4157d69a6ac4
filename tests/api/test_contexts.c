/* A thread that has never chosen a device makes and uses an arena and a ring of device 1: device 0,
   which is current there and which nobody uses, gets no context. */
// build: plain
#include "gpupool.h"
#include "ring_kit.h"

#if CHECK_FAKE
#include <pthread.h>

static gpupool_arena *arena;
static gpupool_ring *ring;
static gpupool_arena_config of_arena;
static gpupool_ring_config of_ring;
static cudaStream_t other;
static unsigned char host[4 * MIB];

#define CALL(what)                                                                       \
    do {                                                                                 \
        CHECK_RESULT(what, GPUPOOL_OK);                                                  \
        if (fake_has_context(0)) check_fail(__FILE__, __LINE__, "a context on device 0"); \
    } while (0)

static void use_the_arena(void) {
    gpupool_stats stats;
    gpupool_verdict verdict;
    FILE *null = fopen("/dev/null", "w");
    void *block[8];
    for (size_t i = 0; i < 8; i++) {
        CALL(kit_why(block[i] = kit_alloc(arena, 30 * MIB, kit_stream[0])));
    }
    for (size_t i = 0; i < 8; i++) {
        long events = fake_calls("cuEventRecord");
        CALL(gpupool_record_stream(arena, block[i], other));
        CHECK_EQ(fake_calls("cuEventRecord"), events + 1);
        CALL(gpupool_free(arena, block[i], kit_stream[0]));
    }
    CALL(kit_why(block[0] = gpupool_zalloc(arena, MIB, other)));
    CALL(gpupool_free(arena, block[0], other));
    CALL(kit_why(block[0] = gpupool_alloc(arena, MIB, 0)));
    CALL(gpupool_free(arena, block[0], kit_stream[2]));
    CALL(gpupool_set_limit(arena, 100 * MIB));
    CALL(kit_fits(arena, MIB, NULL) ? GPUPOOL_OK : gpupool_last_result());
    CHECK(kit_available(arena) > 0);
    CALL(gpupool_set_limit_text(arena, "90%free"));
    CALL(gpupool_set_limit(arena, 0));
    fake_device_memory(1, 8 * MIB);
    fake_pinned_limit(8 * MIB);
    CHECK_RESULT(kit_why(gpupool_alloc(arena, GIB << 6, other)),
                 GPUPOOL_E_OUT_OF_MEMORY);
    CHECK_RESULT(gpupool_last_verdict(&verdict), GPUPOOL_OK);
    CHECK(verdict.device_total_bytes == 8 * MIB || of_arena.source == GPUPOOL_SOURCE_PINNED);
    fake_device_memory(1, GIB);
    fake_pinned_limit(0);
    CALL(gpupool_begin_phase(arena));
    CALL(gpupool_end_phase(arena, NULL));
    CALL(gpupool_get_stats(arena, &stats));
    CALL(gpupool_report(arena, null));
    CALL(gpupool_check(arena));
    CALL(gpupool_retire_stream(arena, other));
    CALL(gpupool_trim(arena, 0, NULL));
    fclose(null);
}

static void use_the_ring(void) {
    gpupool_ticket ticket = 0;
    gpupool_ring_stats stats;
    gpupool_span span;
    unsigned char *device = (unsigned char *)kit_alloc(arena, sizeof host, kit_stream[0]);
    CALL(gpupool_upload(ring, device, host, sizeof host, kit_stream[0]));
    CALL(gpupool_upload(ring, device, host, 100, kit_stream[0]));
    CALL(gpupool_download(ring, host, device, sizeof host, kit_stream[0]));
    CALL(kit_upload_async(ring, device, host, sizeof host, kit_stream[0], &ticket));
    CALL(gpupool_ring_wait(ring, ticket, 20 * KIT_SECOND));
    CALL(gpupool_ring_acquire_span(ring, MIB, 20 * KIT_SECOND, &span));
    CALL(gpupool_ring_upload_span(ring, &span, device, kit_stream[0]));
    CALL(gpupool_ring_get_stats(ring, &stats));
    CALL(gpupool_free(arena, device, kit_stream[0]));
    CALL(gpupool_ring_trim(ring, 0, NULL));
}

static void *elsewhere(void *user) {
    int device = -1;
    (void)user;
    CALL(gpupool_arena_create(&arena, &of_arena));
    CALL(gpupool_ring_create(&ring, &of_ring));
    use_the_arena();
    use_the_ring();
    CALL(gpupool_ring_destroy(ring));
    CALL(gpupool_arena_destroy(arena));
    CHECK_EQ(cudaGetDevice(&device), cudaSuccess);
    CHECK_EQ(device, 0);
    return NULL;
}

/* The streams of the kit, on device 1 and not on device 0. */
static void move_to_device_1(void) {
    for (size_t i = 0; i < KIT_STREAMS; i++)
        CHECK_EQ(cudaStreamDestroy(kit_stream[i]), cudaSuccess);
    CHECK_EQ(cudaDeviceReset(), cudaSuccess);
    CHECK_EQ(cudaSetDevice(1), cudaSuccess);
    for (size_t i = 0; i < KIT_STREAMS; i++)
        CHECK_EQ(cudaStreamCreateWithFlags(&kit_stream[i], cudaStreamNonBlocking), cudaSuccess);
    other = kit_stream[1];
}

/* In cudaMallocAsync's shape: the stream tells the device. */
static void *by_its_stream(void *user) {
    void *block = NULL;
    (void)user;
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(gpupool_cudaMallocAsync(&block, MIB, kit_stream[0]), cudaSuccess);
        CHECK_EQ(gpupool_cudaFreeAsync(block, kit_stream[0]), cudaSuccess);
    }
    CHECK_EQ(fake_has_context(0), 0);
    CHECK_EQ(cudaPeekAtLastError(), cudaSuccess);
    return NULL;
}

/* Where CUDA cannot say which it is, the current device's; an error of before stays. */
static void a_device_that_is_not_told(void) {
    static const char *const calls[] = {"cuStreamGetCtx", "cuCtxPushCurrent", "cuCtxGetDevice"};
    gpupool_stats stats;
    void *block = NULL;
    move_to_device_1();
    CHECK_EQ(cudaSetDevice(0), cudaSuccess);
    for (size_t i = 0; i < KIT_COUNT(calls); i++) {
        CHECK_EQ(cudaSetDevice(99), cudaErrorInvalidDevice);
        fake_fail_call(calls[i], 1, 0, 0);
        gpupool_cudaMallocAsync(&block, MIB, kit_stream[0]);
        CHECK_EQ(fake_fail_fired(), 1);
        fake_fail_clear();
        CHECK_EQ(cudaGetLastError(), cudaErrorInvalidDevice);
        CHECK(gpupool_find_default_arena(0) && !gpupool_find_default_arena(1));
        stats = kit_stats(gpupool_get_default_arena(0));
        CHECK_EQ(stats.allocs, 1);
        CHECK_EQ(gpupool_cudaFreeAsync(block, kit_stream[0]), cudaSuccess);
        kit_close(gpupool_get_default_arena(0));
    }
    for (long nth = 1; nth <= 3; nth++) { /* of the calls by which it is told */
        fake_fail_call("cudaGetDriverEntryPointByVersion", nth, 0, 0); /* and leaves none */
        CHECK_EQ(gpupool_cudaMallocAsync(&block, MIB, kit_stream[0]), cudaSuccess);
        CHECK_EQ(fake_fail_fired(), 1);
        CHECK_EQ(cudaGetLastError(), cudaSuccess);
        fake_fail_clear();
        CHECK_EQ(gpupool_cudaFreeAsync(block, kit_stream[0]), cudaSuccess);
        kit_close(gpupool_get_default_arena(0));
    }
}

static void the_default_arena_is_the_streams(void) {
    pthread_t thread;
    move_to_device_1();
    CHECK(gpupool_get_default_arena(1) != NULL);
    CHECK_EQ(pthread_create(&thread, NULL, by_its_stream, NULL), 0);
    pthread_join(thread, NULL);
    kit_close(gpupool_get_default_arena(1));
}

static void run_with(gpupool_source source, int workers) {
    pthread_t thread;
    of_arena = kit_config(source);
    memset(&of_ring, 0, sizeof of_ring);
    of_arena.device = of_ring.device = 1;
    of_ring.bytes = 2 * MIB;
    of_ring.workers = workers;
    move_to_device_1();
    CHECK_EQ(pthread_create(&thread, NULL, elsewhere, NULL), 0);
    pthread_join(thread, NULL);
    CHECK_EQ(fake_has_context(0), 0);
    CHECK_EQ(fake_has_context(1), 1);
}

/* One that cannot be exchanged stays. */
static void the_mode_is_the_callers_again(void) {
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal;
    arena = kit_open(GPUPOOL_SOURCE_AUTO);
    CHECK_EQ(cudaThreadExchangeStreamCaptureMode(&mode), cudaSuccess);
    fake_fail_call("cuThreadExchangeStreamCaptureMode", 1, 0, 0);
    CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_E_CUDA);
    CHECK_EQ(cudaThreadExchangeStreamCaptureMode(&mode), cudaSuccess);
    CHECK_EQ(mode, cudaStreamCaptureModeThreadLocal);
    kit_close(arena);
}

/* A call of the runtime that fails leaves an error there only if the program had one before. */
static void an_error_of_the_program_stays(void) {
    for (int had = 0; had < 2; had++) {
        if (had) CHECK_EQ(cudaSetDevice(99), cudaErrorInvalidDevice);
        fake_fail_call("cudaGetDevice", 1, 0, 0);
        CHECK_RESULT(gpupool_arena_create(&arena, NULL), GPUPOOL_E_CUDA);
        CHECK_EQ(fake_fail_fired(), 1);
        fake_fail_clear();
        CHECK_EQ(cudaGetLastError() != cudaSuccess, had);
    }
}

/* Where the runtime has not come yet, an arena makes the context, and the last one ends it. */
static void *before_the_runtime(void *user) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_AUTO);
    gpupool_arena *second = NULL;
    (void)user;
    config.device = 2;
    CHECK_RESULT(gpupool_arena_create(&arena, &config), GPUPOOL_OK);
    CHECK_RESULT(gpupool_arena_create(&second, &config), GPUPOOL_OK);
    CHECK_EQ(fake_has_context(2), 1);
    CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_OK);
    CHECK_RESULT(kit_why(gpupool_alloc(second, MIB, 0)), GPUPOOL_OK);
    CHECK_RESULT(gpupool_arena_destroy(second), GPUPOOL_E_IN_USE);
    CHECK_EQ(fake_has_context(2), 1);
    CHECK_EQ(cudaSetDevice(2), cudaSuccess);
    CHECK_EQ(cudaDeviceReset(), cudaSuccess); /* which the hold outlives */
    CHECK_EQ(fake_has_context(2), 0);
    CHECK_RESULT(gpupool_arena_destroy(second), GPUPOOL_OK);
    CHECK_EQ(fake_has_context(2), 0);
    CHECK_EQ(cudaGetLastError(), cudaSuccess);
    return NULL;
}

static void an_arena_holds_its_context(void) {
    pthread_t thread;
    fake_devices(3);
    CHECK_EQ(pthread_create(&thread, NULL, before_the_runtime, NULL), 0);
    pthread_join(thread, NULL);
}

/* What a destroy of a reset arena enters by anew, it also leaves, where CUDA refuses on the way. */
static void *destroy_after_a_reset(void *refuses) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
    config.device = 2;
    CHECK_RESULT(gpupool_arena_create(&arena, &config), GPUPOOL_OK);
    CHECK_RESULT(kit_why(gpupool_alloc(arena, MIB, 0)), GPUPOOL_OK);
    CHECK_EQ(cudaSetDevice(2), cudaSuccess);
    CHECK_EQ(cudaDeviceReset(), cudaSuccess);
    fake_fail_call((const char *)refuses, 1, 0, 0);
    CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_E_CUDA);
    CHECK_EQ(fake_fail_fired(), 1);
    fake_fail_clear();
    CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_OK);
    CHECK_EQ(fake_has_context(2), 0); /* released as often as retained */
    return NULL;
}

static void a_context_that_is_entered_anew(void) {
    char *calls[] = {"cuCtxPushCurrent", "cuThreadExchangeStreamCaptureMode"};
    fake_devices(3);
    for (size_t i = 0; i < KIT_COUNT(calls); i++) {
        pthread_t thread;
        check_case("%s", calls[i]);
        CHECK_EQ(pthread_create(&thread, NULL, destroy_after_a_reset, calls[i]), 0);
        pthread_join(thread, NULL);
    }
}

/* A thread waits for the default stream's frees while another device is current, whose default
   stream has another id: it is the arena's device's all the same. */
static void a_wait_while_another_device_is_current(void) {
    void *block;
    fake_devices(2);
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    fake_mode(FAKE_STEPPED);
    for (int device = 0; device < 2; device++) {
        check_case("device %d", device);
        block = kit_alloc(arena, MIB, 0);
        kit_mark(0, block, MIB, 1);
        CHECK_RESULT(gpupool_free(arena, block, 0), GPUPOOL_OK);
        CHECK(kit_stats(arena).pending.now >= MIB);
        CHECK_EQ(cudaSetDevice(device), cudaSuccess);
        CHECK_RESULT(gpupool_wait_stream(arena, 0), GPUPOOL_OK);
        CHECK_EQ(cudaSetDevice(0), cudaSuccess);
        CHECK_EQ(kit_stats(arena).pending.now, 0);
    }
    fake_run_all();
    fake_mode(FAKE_EAGER);
    kit_close(arena);
}

static void mapped(void) { run_with(GPUPOOL_SOURCE_MAPPED, -1); }
static void in_chunks(void) { run_with(GPUPOOL_SOURCE_DEVICE, 2); }
static void each_by_itself(void) { run_with(GPUPOOL_SOURCE_BYPASS, 2); }
static void pinned(void) { run_with(GPUPOOL_SOURCE_PINNED, -1); }
#endif

int main(void) {
    FAKE_TEST(a_wait_while_another_device_is_current);
    FAKE_TEST(mapped);
    FAKE_TEST(in_chunks);
    FAKE_TEST(each_by_itself);
    FAKE_TEST(pinned);
    FAKE_TEST(the_default_arena_is_the_streams);
    FAKE_TEST(a_device_that_is_not_told);
    FAKE_TEST(the_mode_is_the_callers_again);
    FAKE_TEST(an_error_of_the_program_stays);
    FAKE_TEST(an_arena_holds_its_context);
    FAKE_TEST(a_context_that_is_entered_anew);
    return check_finish();
}
