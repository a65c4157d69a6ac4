/* arena_kit.h: what the tests of the public arena share. Include it after gpupool.h.
   Memory is only ever touched by queued work, so that the same tests run on a real GPU. */
#ifndef ARENA_KIT_H
#define ARENA_KIT_H

#include "call_kit.h"
#include "check.h"

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define GIB ((size_t)1 << 30)
#define KIT_STREAMS 4
#define KIT_EDGE ((size_t)512) /* how much of each end of a block kit_mark touches */
#define KIT_COUNT(array) (sizeof(array) / sizeof(array)[0])

static cudaStream_t kit_stream[KIT_STREAMS]; /* made anew for every test */

/* ---- chunks of GPUPOOL_SOURCE_CUSTOM: cudaMalloc, with a record of what is out ---- */

typedef struct kit_chunks {
    long gained, lost, wrong; /* wrong: given back with other figures than it was got with */
    int refuse;               /* 1: hand out nothing */
    struct { void *at; size_t bytes; int device, stuck; } held[256];
} kit_chunks;

static inline void *kit_chunk_alloc(size_t bytes, int device, void *user) {
    kit_chunks *chunks = (kit_chunks *)user;
    void *at = NULL;
    if (chunks->refuse || cudaMalloc(&at, bytes) != cudaSuccess) {
        cudaGetLastError();
        return NULL;
    }
    chunks->gained++;
    for (size_t i = 0; i < KIT_COUNT(chunks->held); i++) {
        if (chunks->held[i].at) continue;
        chunks->held[i].at = at;
        chunks->held[i].bytes = bytes;
        chunks->held[i].device = device;
        return at;
    }
    chunks->wrong++;
    return at;
}

/* chunk_free has no way to fail: what cudaFree refuses is put aside for kit_free_stuck. */
static inline void kit_chunk_free(void *at, size_t bytes, int device, void *user) {
    kit_chunks *chunks = (kit_chunks *)user;
    size_t i = 0;
    while (i < KIT_COUNT(chunks->held) && (chunks->held[i].at != at || chunks->held[i].stuck)) i++;
    chunks->lost++;
    if (i == KIT_COUNT(chunks->held) || chunks->held[i].bytes != bytes ||
        chunks->held[i].device != device) {
        chunks->wrong++;
    } else if (cudaFree(at) == cudaSuccess) {
        chunks->held[i].at = NULL;
    } else {
        chunks->held[i].stuck = 1;
        cudaGetLastError();
    }
}

static inline void kit_free_stuck(kit_chunks *chunks) {
    for (size_t i = 0; i < KIT_COUNT(chunks->held); i++) {
        if (!chunks->held[i].stuck) continue;
        CHECK_EQ(cudaFree(chunks->held[i].at), cudaSuccess);
        chunks->held[i].at = NULL;
        chunks->held[i].stuck = 0;
    }
}

static kit_chunks kit_custom; /* of all arenas of a test; whatever it was given must come back */

/* ---- the frame around a test ---- */

static inline void kit_prepare(void) {
#if CHECK_FAKE
    fake_reset();
#endif
    memset(&kit_custom, 0, sizeof kit_custom);
    CHECK_EQ(cudaSetDevice(0), cudaSuccess);
    for (int i = 0; i < KIT_STREAMS; i++)
        CHECK_EQ(cudaStreamCreateWithFlags(&kit_stream[i], cudaStreamNonBlocking), cudaSuccess);
}

#if CHECK_FAKE
/* Drops what fakecuda still has, the test's streams included, and prints nothing: for a test whose
   faults make something stay behind. Returns how much that was, without the streams. */
static inline long kit_drop_the_rest(void) {
    long own = 0;
    for (int i = 0; i < KIT_STREAMS; i++) {
        own += kit_stream[i] != NULL;
        kit_stream[i] = NULL;
    }
    fake_quiet(1);
    return fake_reset() - own;
}
#endif

/* After faults: what should have given this thread its mode of capture back may have failed. */
static inline void kit_capture_globally(void) {
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
    CHECK_EQ(cudaThreadExchangeStreamCaptureMode(&mode), cudaSuccess);
}

/* What no test may leave behind: a sticky error, a race, a misused handle, anything unreleased, or
   another mode of capture than this thread began with. */
static inline void kit_settle(void) {
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
    CHECK_EQ(cudaThreadExchangeStreamCaptureMode(&mode), cudaSuccess);
    CHECK_EQ(mode, cudaStreamCaptureModeGlobal);
    CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
    for (int i = 0; i < KIT_STREAMS; i++) {
        if (kit_stream[i]) CHECK_EQ(cudaStreamDestroy(kit_stream[i]), cudaSuccess);
        kit_stream[i] = NULL;
    }
    CHECK_EQ(kit_custom.gained, kit_custom.lost);
    CHECK_EQ(kit_custom.wrong, 0);
    CHECK_EQ(cudaGetLastError(), cudaSuccess); /* and no later test is to see it */
#if CHECK_FAKE
    if (fake_failures()) check_fail(__FILE__, __LINE__, "fakecuda: %s", fake_failure_text());
    if (fake_misuses()) check_fail(__FILE__, __LINE__, "fakecuda: %s", fake_misuse_text());
    CHECK_EQ(fake_live_objects(), 0);
    fake_clear_failures();
#endif
}

static inline int kit_devices(void) {
    int count = 0;
    CHECK_EQ(cudaGetDeviceCount(&count), cudaSuccess);
    return count;
}

#define ARENA_TEST(body) check_run(#body, body, kit_prepare, kit_settle)
#if CHECK_FAKE
#define FAKE_TEST(body) ARENA_TEST(body)
#else
#define FAKE_TEST(body) check_skip(#body, "needs fakecuda's controls")
#endif

/* ---- arenas ---- */

typedef struct kit_source { gpupool_source source; const char *name; } kit_source;

static const kit_source kit_sources[] = {
    {GPUPOOL_SOURCE_AUTO, "AUTO"},       {GPUPOOL_SOURCE_MAPPED, "MAPPED"},
    {GPUPOOL_SOURCE_DEVICE, "DEVICE"},   {GPUPOOL_SOURCE_MANAGED, "MANAGED"},
    {GPUPOOL_SOURCE_PINNED, "PINNED"},   {GPUPOOL_SOURCE_CUSTOM, "CUSTOM"},
    {GPUPOOL_SOURCE_BYPASS, "BYPASS"},
};
#define KIT_SOURCES KIT_COUNT(kit_sources)

static inline gpupool_arena_config kit_config(gpupool_source source) {
    gpupool_arena_config config;
    memset(&config, 0, sizeof config);
    config.source = source;
    if (source == GPUPOOL_SOURCE_CUSTOM) {
        config.chunk_alloc = kit_chunk_alloc;
        config.chunk_free = kit_chunk_free;
        config.user = &kit_custom;
    }
    return config;
}

/* A test can go on without a block, but not without an arena. */
static inline gpupool_arena *kit_create(const gpupool_arena_config *config) {
    gpupool_arena *arena = NULL;
    if (CHECK_RESULT(gpupool_arena_create(&arena, config), GPUPOOL_OK)) return arena;
    check_failed++;
    exit(check_finish());
}

static inline gpupool_arena *kit_open_limited(gpupool_source source, size_t limit) {
    gpupool_arena_config config = kit_config(source);
    config.limit_bytes = limit;
    return kit_create(&config);
}

/* What other streams have freed serves a larger block only once it is done: it is not stitched. */
static inline gpupool_arena *kit_open_unstitched(size_t limit) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
    config.limit_bytes = limit;
    config.no_stitch = 1;
    return kit_create(&config);
}

static inline gpupool_arena *kit_open(gpupool_source source) { return kit_open_limited(source, 0); }

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

static inline size_t kit_reserved(gpupool_arena *arena) {
    return (size_t)kit_stats(arena).reserved.now;
}

/* CUDA calls made so far; on a GPU nobody counts them. */
static inline long kit_calls(void) {
#if CHECK_FAKE
    return fake_calls(NULL);
#else
    return 0;
#endif
}

/* ---- touching memory, always as work queued on a stream ---- */

static inline void kit_fill(cudaStream_t stream, void *at, size_t bytes, int byte) {
#if CHECK_FAKE
    CHECK_EQ(fake_write(stream, "fill", at, bytes, byte), cudaSuccess);
#else
    CHECK_EQ(cudaMemsetAsync(at, byte, bytes, stream), cudaSuccess);
#endif
}

static inline void kit_expect(cudaStream_t stream, const void *at, size_t bytes, int byte) {
#if CHECK_FAKE
    CHECK_EQ(fake_read(stream, "expect", at, bytes, byte), cudaSuccess);
#else
    unsigned char *copy = (unsigned char *)malloc(bytes);
    size_t wrong = 0;
    CHECK_EQ(cudaMemcpyAsync(copy, at, bytes, cudaMemcpyDefault, stream), cudaSuccess);
    CHECK_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    for (size_t i = 0; i < bytes; i++) wrong += copy[i] != (unsigned char)byte;
    CHECK_EQ(wrong, 0);
    free(copy);
#endif
}

static inline size_t kit_edge(size_t bytes) { return bytes < KIT_EDGE ? bytes : KIT_EDGE; }

/* Writes, and later verifies, both ends of a block: cheap, and an overlap of blocks shows. */
static inline void kit_mark(cudaStream_t stream, void *block, size_t bytes, int byte) {
    size_t edge = kit_edge(bytes);
    kit_fill(stream, block, edge, byte);
    kit_fill(stream, (char *)block + bytes - edge, edge, byte);
}

static inline void kit_expect_mark(cudaStream_t stream, const void *block, size_t bytes,
                                   int byte) {
    size_t edge = kit_edge(bytes);
    kit_expect(stream, block, edge, byte);
    kit_expect(stream, (const char *)block + bytes - edge, edge, byte);
}

/* later's work from here on comes after earlier's work so far. */
static inline void kit_order(cudaStream_t earlier, cudaStream_t later) {
    cudaEvent_t event;
    CHECK_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
    CHECK_EQ(cudaEventRecord(event, earlier), cudaSuccess);
    CHECK_EQ(cudaStreamWaitEvent(later, event, 0), cudaSuccess);
    CHECK_EQ(cudaEventDestroy(event), cudaSuccess);
}

/* What was freed so far is done, and the arena can see that. fakecuda does work at once, or when
   the test says so; a GPU takes a moment. */
static inline void kit_finish(gpupool_arena *arena) {
#if CHECK_FAKE
    (void)arena;
#else
    CHECK_RESULT(gpupool_trim(arena, SIZE_MAX, NULL), GPUPOOL_OK); /* puts a fence behind it */
    CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
#endif
}

/* A block that the test cannot do without. */
static inline void *kit_alloc(gpupool_arena *arena, size_t bytes, cudaStream_t stream) {
    void *block = gpupool_alloc(arena, bytes, stream);
    if (!block)
        check_fail(__FILE__, __LINE__, "gpupool_alloc of %zu bytes: %s", bytes,
                   gpupool_last_error());
    else CHECK_RESULT(gpupool_last_result(), GPUPOOL_OK); /* of the latest call, whatever failed */
    return block;
}

/* A call that returns NULL must say why: the result for CHECK_RESULT. */
static inline gpupool_result kit_why(const void *block) {
    return block ? GPUPOOL_OK : gpupool_last_result();
}

/* Whether nothing has changed that a failed call may not change: all but the count of failures, and
   the records that the arena keeps of a stream from the first call on. */
static inline int kit_same_stats(gpupool_stats a, gpupool_stats b) {
    uint64_t x[sizeof a / 8], y[sizeof b / 8];
    a.failures = b.failures = 0;
    a.host_bytes = b.host_bytes = 0;
    memcpy(x, &a, sizeof x);
    memcpy(y, &b, sizeof y);
    for (size_t i = 0; i < KIT_COUNT(x); i++)
        if (x[i] != y[i])
            return check_fail(__FILE__, __LINE__, "byte %zu of gpupool_stats was %llu, is %llu",
                              8 * i, (unsigned long long)x[i], (unsigned long long)y[i]);
    return 1;
}

#endif
