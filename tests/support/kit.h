/* kit.h: what the contract tests of the arena share: a frame that finds what a test leaves behind,
   streams, work on blocks, and short forms of calls. Include it after gpupool.h.
   Memory is only touched by queued work, so the same tests run on fakecuda, whose race oracle
   watches, and on a GPU. */
#ifndef KIT_H
#define KIT_H

#include "check.h"

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define KIT_STREAMS 4
#define KIT_COUNT(array) (sizeof(array) / sizeof(array)[0])

static cudaStream_t kit_stream[KIT_STREAMS]; /* made anew for every test */

/* -- the frame around a test -- */

static inline void kit_prepare(void) {
#if CHECK_FAKE
    fake_reset();
#endif
    CHECK_EQ(cudaSetDevice(0), cudaSuccess);
    for (int i = 0; i < KIT_STREAMS; i++)
        CHECK_EQ(cudaStreamCreateWithFlags(&kit_stream[i], cudaStreamNonBlocking), cudaSuccess);
}

/* What no test may leave behind: an error of CUDA, a race, a misused handle, anything unreleased,
   another current device, or another mode of capture than the thread began with. */
static inline void kit_settle(void) {
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
    int device = -1;
    CHECK_EQ(cudaThreadExchangeStreamCaptureMode(&mode), cudaSuccess);
    CHECK_EQ(mode, cudaStreamCaptureModeGlobal);
    CHECK_EQ(cudaGetDevice(&device), cudaSuccess);
    CHECK_EQ(device, 0);
    CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
    for (int i = 0; i < KIT_STREAMS; i++) {
        if (kit_stream[i]) CHECK_EQ(cudaStreamDestroy(kit_stream[i]), cudaSuccess);
        kit_stream[i] = NULL;
    }
    CHECK_EQ(cudaGetLastError(), cudaSuccess); /* and no later test is to see it */
#if CHECK_FAKE
    if (fake_failures()) check_fail(__FILE__, __LINE__, "fakecuda: %s", fake_failure_text());
    if (fake_misuses()) check_fail(__FILE__, __LINE__, "fakecuda: %s", fake_misuse_text());
    CHECK_EQ(fake_live_objects(), 0);
    fake_clear_failures();
#endif
}

#define KIT_TEST(body) check_run(#body, body, kit_prepare, kit_settle)
#if CHECK_FAKE
#define KIT_FAKE_TEST(body) KIT_TEST(body)
#else /* the test's function is used, so that it compiles; it needs no run */
#define KIT_FAKE_TEST(body) ((void)(body), check_skip(#body, "needs fakecuda's controls"))
#endif

/* -- arenas -- */

static inline gpupool_arena_config kit_config(gpupool_source source, size_t limit_bytes) {
    gpupool_arena_config config;
    memset(&config, 0, sizeof config);
    config.source = source;
    config.limit_bytes = limit_bytes;
    return config;
}

/* A test can go on without a block, but not without an arena. */
static inline gpupool_arena *kit_create(const gpupool_arena_config *config) {
    gpupool_arena *arena = NULL;
    if (CHECK_RESULT(gpupool_arena_create(&arena, config), GPUPOOL_OK) && CHECK(arena))
        return arena;
    check_failed++;
    exit(check_finish());
}

/* An arena of mapped memory; bytes 0: no limit. */
static inline gpupool_arena *kit_open(size_t limit_bytes) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED, limit_bytes);
    return kit_create(&config);
}

/* Checks the arena's records once more, and ends it. */
static inline void kit_close(gpupool_arena *arena) {
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_OK);
}

static inline gpupool_stats kit_stats(gpupool_arena *arena) {
    gpupool_stats stats;
    memset(&stats, 0, sizeof stats);
    CHECK_RESULT(gpupool_get_stats(arena, &stats), GPUPOOL_OK);
    return stats;
}

/* -- blocks -- */

static inline void *kit_alloc_as(gpupool_arena *arena, size_t bytes, size_t alignment,
                                 cudaStream_t stream, unsigned flags) {
    gpupool_request request = {bytes, alignment, stream, flags, NULL};
    return gpupool_alloc_request(arena, &request);
}

/* Queues work that writes the whole block. */
static inline void kit_write(void *block, size_t bytes, cudaStream_t stream, int byte) {
    if (block) CHECK_EQ(cudaMemsetAsync(block, byte, bytes, stream), cudaSuccess);
}

/* Queues work that reads the whole block, and waits for it: every byte must be this one. */
static inline void kit_verify(const void *block, size_t bytes, cudaStream_t stream, int byte) {
#if CHECK_FAKE
    if (!block) return;
    CHECK_EQ(fake_read(stream, "verify", block, bytes, byte), cudaSuccess);
    CHECK_EQ(cudaStreamSynchronize(stream), cudaSuccess);
#else
    unsigned char *copy = (unsigned char *)malloc(bytes);
    size_t wrong = 0, i;
    if (!block || !CHECK(copy)) return;
    CHECK_EQ(cudaMemcpyAsync(copy, block, bytes, cudaMemcpyDefault, stream), cudaSuccess);
    CHECK_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    for (i = 0; i < bytes; i++) wrong += copy[i] != (unsigned char)byte;
    CHECK_EQ(wrong, 0);
    free(copy);
#endif
}

static inline void kit_free(gpupool_arena *arena, void *block, cudaStream_t stream) {
    CHECK_RESULT(gpupool_free(arena, block, stream), GPUPOOL_OK);
}

/* A block that is had, written and given back. */
static inline void kit_use(gpupool_arena *arena, size_t bytes, cudaStream_t stream) {
    void *block = gpupool_alloc(arena, bytes, stream);
    CHECK(block);
    kit_write(block, bytes, stream, 1);
    kit_free(arena, block, stream);
}

/* The last failed call: its result, and a word that its message must have. */
static inline int kit_failed(gpupool_result result, const char *word, const char *file, int line) {
    check_result(gpupool_last_result(), result, "the last call", file, line);
    if (strstr(gpupool_last_error(), word)) return 1;
    return check_fail(file, line, "no \"%s\" in: %s", word, gpupool_last_error());
}
#define KIT_FAILS(call, result, word) \
    do { \
        CHECK(!(call)); \
        kit_failed(result, word, __FILE__, __LINE__); \
    } while (0)
#define KIT_REFUSES(call, result, word) \
    do { \
        CHECK_RESULT(call, result); \
        kit_failed(result, word, __FILE__, __LINE__); \
    } while (0)

/* -- streams that stand still, as behind a long kernel -- */

#if !CHECK_FAKE
static atomic_int kit_held;
static inline void kit_stand(void *user) {
    (void)user;
    while (atomic_load(&kit_held)) continue;
}
#endif

/* From here on the stream does nothing; a call that waits for it meanwhile would hang on a GPU. */
static inline void kit_hold(cudaStream_t stream) {
#if CHECK_FAKE
    fake_hold(stream, 1);
#else
    atomic_store(&kit_held, 1);
    CHECK_EQ(cudaLaunchHostFunc(stream, kit_stand, NULL), cudaSuccess);
#endif
}

/* Lets a held stream go on, and waits for it. */
static inline void kit_let_go(cudaStream_t stream) {
#if CHECK_FAKE
    fake_hold(stream, 0);
#else
    atomic_store(&kit_held, 0);
#endif
    CHECK_EQ(cudaStreamSynchronize(stream), cudaSuccess);
}

/* From here on no work runs before the host waits for it. On a GPU it runs as ever. */
static inline void kit_delay(void) {
#if CHECK_FAKE
    fake_mode(FAKE_STEPPED);
#endif
}

/* A stream of the test's own, which destroys it. */
static inline cudaStream_t kit_new_stream(void) {
    cudaStream_t stream = NULL;
    CHECK_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    return stream;
}

/* Ends a capture, which no call may have lost; the graph is not wanted. */
static inline void kit_end_capture(cudaStream_t stream) {
    cudaGraph_t graph = NULL;
    CHECK_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    CHECK_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

/* What is queued on `later` from here on runs behind what `earlier` has now. */
static inline void kit_follow(cudaStream_t later, cudaStream_t earlier) {
    cudaEvent_t event;
    CHECK_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
    CHECK_EQ(cudaEventRecord(event, earlier), cudaSuccess);
    CHECK_EQ(cudaStreamWaitEvent(later, event, 0), cudaSuccess);
    CHECK_EQ(cudaEventDestroy(event), cudaSuccess);
}

/* CUDA calls so far; what a test does not count it makes outside of two of these. GPU: 0. */
static inline long kit_calls(void) {
#if CHECK_FAKE
    return fake_calls(NULL);
#else
    return 0;
#endif
}

#endif
