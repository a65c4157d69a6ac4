/* CUDA gives the handle of a destroyed stream to the next one, while the old one's work may still
   be queued: what the old one freed is not the new one's. Once for each way in which an arena can
   learn of it, random schedules under the oracle. */
// build: plain
// build: asked -DGPUPOOL_STREAM_HOOK=0 -DGPUPOOL_STREAM_CHECK=1
#include "cudas_own.h"

#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "race_kit.h"

#include <pthread.h>

#if CHECK_FAKE

#define SCHEDULES 1500

static int same_handles; /* streams that had the handle of the one before: or nothing is proved */
static void (*destroy)(cudaStream_t);

static cudaStream_t new_stream(void) {
    cudaStream_t stream = NULL;
    CHECK_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    return stream;
}

/* Small blocks are in a cache when the stream goes, large ones in its list. */
static void old_handle(void) {
    static const size_t sizes[] = {512, 4096, 100000, MIB};
    size_t bytes = sizes[race_below(KIT_COUNT(sizes))];
    cudaStream_t brief = new_stream(), next;
    void *blocks[4], *block;
    size_t n = 1 + (size_t)race_below(4);
    int stays = race_below(2) != 0;
    race_others[0] = brief;
    for (size_t i = 0; i < n; i++) blocks[i] = race_get(bytes, brief);
    for (size_t i = 0; i < n; i++) race_put(blocks[i], brief);
    block = race_get(bytes, brief);
    race_drift();
    if (stays) CHECK_EQ(cudaStreamSynchronize(brief), cudaSuccess); /* freed by the next one */
    else race_put(block, brief);
    race_others[0] = NULL;
    destroy(brief);
    next = new_stream();
    same_handles += next == brief;
    race_others[0] = next;
    if (stays) race_put(block, next);
    for (int i = 0; i < 2; i++) {
        cudaStream_t taker = race_below(3) ? next : race_stream();
        race_put(race_get(bytes, taker), taker);
    }
    race_others[0] = NULL;
    destroy(next);
}

static void old_handles(void) {
    same_handles = 0;
    race_bytes = 4 * MIB; /* memory is short: all has to be had again */
    race_each(SCHEDULES, old_handle);
    race_bytes = 64 * MIB;
    race_each(SCHEDULES, old_handle);
    CHECK(same_handles > SCHEDULES);
}

#if GPUPOOL_STREAM_HOOK
static void by_macro(cudaStream_t stream) {
    CHECK_EQ(cudaStreamDestroy(stream), cudaSuccess);
}
static void the_macro_tells_the_arena(void) {
    destroy = by_macro;
    old_handles();
}

static void by_word(cudaStream_t stream) {
    CHECK_RESULT(gpupool_retire_stream(arena, stream), GPUPOOL_OK);
    CHECK_EQ(own_stream_destroy(stream), cudaSuccess);
}
static void stream_retired_tells_the_arena(void) {
    destroy = by_word;
    old_handles();
}

/* The macro tells all arenas, and those only that know the stream. */
static void every_arena_is_told(void) {
    gpupool_arena *arenas[3];
    void *block[3];
    for (int i = 0; i < 3; i++) arenas[i] = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 2 * MIB);
    fake_mode(FAKE_STEPPED);
    cudaStream_t brief = new_stream(), next;
    for (int i = 0; i < 2; i++) {
        block[i] = kit_alloc(arenas[i], MIB, brief);
        kit_fill(brief, block[i], MIB, i);
        CHECK_RESULT(gpupool_free(arenas[i], block[i], brief), GPUPOOL_OK);
    }
    long syncs = fake_calls("cudaDeviceSynchronize") + fake_calls("cuEventSynchronize");
    CHECK_EQ(cudaStreamDestroy(brief), cudaSuccess);
    next = new_stream();
    CHECK(next == brief);
    for (int i = 0; i < 3; i++) {
        block[i] = kit_alloc(arenas[i], 2 * MIB, next);
        kit_fill(next, block[i], 2 * MIB, i);
        CHECK_RESULT(gpupool_free(arenas[i], block[i], next), GPUPOOL_OK);
    }
    CHECK_EQ(fake_calls("cudaDeviceSynchronize") + fake_calls("cuEventSynchronize"), syncs);
    CHECK_EQ(cudaStreamDestroy(next), cudaSuccess);
    cudaStream_t unknown = new_stream();
    long calls = fake_calls(NULL);
    CHECK_EQ(cudaStreamDestroy(unknown), cudaSuccess);
    CHECK_EQ(fake_calls(NULL), calls + 1); /* its own */
    fake_run_all();
    CHECK_EQ(fake_failures(), 0);
    next = new_stream(); /* which none of them knows: nobody is told, and no result is changed */
    CHECK_RESULT(gpupool_trim(NULL, 0, NULL), GPUPOOL_E_ARGUMENT);
    CHECK_EQ(cudaStreamDestroy(next), cudaSuccess);
    CHECK_RESULT(gpupool_last_result(), GPUPOOL_E_ARGUMENT);
    for (int i = 0; i < 3; i++) kit_close(arenas[i]);
}

/* Whatever CUDA says meanwhile: the next stream has the handle, and must not have the memory. */
static void a_fault_does_not_keep_the_handle(void) {
    for (long n = 1, fired = 1; fired; n++) {
        check_case("call %ld fails", n);
        arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 4 * MIB);
        fake_mode(FAKE_STEPPED);
        cudaStream_t brief = new_stream();
        void *block = kit_alloc(arena, MIB, brief);
        kit_fill(brief, block, MIB, 1);
        CHECK_RESULT(gpupool_free(arena, block, brief), GPUPOOL_OK);
        fake_fail_except("cudaStreamDestroy");
        fake_fail_nth(n, 0);
        CHECK_EQ(cudaStreamDestroy(brief), cudaSuccess);
        fired = fake_fail_fired();
        fake_fail_clear();
        kit_capture_globally();
        CHECK_EQ(cudaGetLastError(), cudaSuccess);
        cudaStream_t next = new_stream();
        CHECK(next == brief);
        CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
        block = kit_alloc(arena, MIB, next);
        kit_fill(next, block, MIB, 2);
        CHECK_RESULT(gpupool_free(arena, block, next), GPUPOOL_OK);
        CHECK_EQ(fake_failures(), 0);
        CHECK_EQ(cudaStreamDestroy(next), cudaSuccess);
        fake_run_all();
        kit_close(arena);
    }
}

/* Nor does an arena whose end is refused, or fails, while another thread destroys a stream. */
static cudaStream_t ended;

static void end_a_stream(void *unused) {
    (void)unused;
    CHECK_EQ(cudaStreamDestroy(ended), cudaSuccess);
}

static void an_end_in_vain_does_not_keep_the_handle(void) {
    for (int in_use = 0; in_use < 2; in_use++) {
        check_case("in use %d", in_use);
        arena = kit_open(GPUPOOL_SOURCE_MAPPED);
        fake_mode(FAKE_STEPPED);
        ended = new_stream();
        void *other = in_use ? kit_alloc(arena, MIB, kit_stream[0]) : NULL;
        void *block = kit_alloc(arena, MIB, ended);
        kit_fill(ended, block, MIB, 1);
        CHECK_RESULT(gpupool_free(arena, block, ended), GPUPOOL_OK);
        fake_before_call(in_use ? "cuCtxPushCurrent" : "cuMemFree", 1, end_a_stream, NULL);
        fake_fail_call("cuMemFree", 1, 0, 0);
        CHECK_RESULT(gpupool_arena_destroy(arena), in_use ? GPUPOOL_E_IN_USE : GPUPOOL_E_CUDA);
        fake_fail_clear();
        cudaStream_t next = new_stream();
        CHECK(next == ended);
        block = kit_alloc(arena, MIB, next);
        kit_fill(next, block, MIB, 2);
        CHECK_RESULT(gpupool_free(arena, block, next), GPUPOOL_OK);
        CHECK_RESULT(gpupool_free(arena, other, kit_stream[0]), GPUPOOL_OK);
        CHECK_EQ(cudaStreamDestroy(next), cudaSuccess);
        fake_run_all();
        kit_close(arena);
    }
}

/* What is no stream is CUDA's to refuse, and the arenas are none the worse. */
static void the_macro_answers_as_cuda_does(void) {
    arena = kit_open(GPUPOOL_SOURCE_AUTO);
    CHECK_RESULT(gpupool_free(arena, kit_alloc(arena, 4096, 0), 0), GPUPOOL_OK);
    CHECK_EQ(cudaStreamDestroy(NULL), cudaErrorInvalidResourceHandle);
    CHECK_EQ(cudaStreamDestroy(cudaStreamLegacy), cudaErrorInvalidResourceHandle);
    CHECK_EQ(cudaStreamDestroy(cudaStreamPerThread), cudaErrorInvalidResourceHandle);
    cudaGetLastError();
    CHECK_EQ(kit_stats(arena).blocks.now, 0);
    kit_close(arena);
}

#else

static void by_cuda_alone(cudaStream_t stream) {
    CHECK_EQ(cudaStreamDestroy(stream), cudaSuccess);
}
static void the_stream_itself_is_asked(void) {
    destroy = by_cuda_alone;
    old_handles();
}

/* A stream that captures is not asked: that would be the end of its capture. */
static void asking_loses_no_capture(void) {
    cudaGraph_t graph = NULL;
    arena = kit_open(GPUPOOL_SOURCE_AUTO);
    CHECK_RESULT(gpupool_free(arena, kit_alloc(arena, 4096, kit_stream[0]), kit_stream[0]),
                 GPUPOOL_OK);
    CHECK_EQ(cudaStreamBeginCapture(kit_stream[0], cudaStreamCaptureModeGlobal), cudaSuccess);
    void *known = kit_alloc(arena, 4096, kit_stream[0]);
    CHECK_EQ(cudaStreamBeginCapture(kit_stream[1], cudaStreamCaptureModeGlobal), cudaSuccess);
    void *unknown = kit_alloc(arena, 4096, kit_stream[1]);
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(cudaStreamEndCapture(kit_stream[i], &graph), cudaSuccess);
        CHECK_EQ(cudaGraphDestroy(graph), cudaSuccess);
    }
    CHECK_RESULT(gpupool_free(arena, known, kit_stream[0]), GPUPOOL_OK);
    CHECK_RESULT(gpupool_free(arena, unknown, kit_stream[1]), GPUPOOL_OK);
    CHECK_RESULT(gpupool_free(arena, kit_alloc(arena, 4096, kit_stream[1]), kit_stream[1]),
                 GPUPOOL_OK);
    kit_close(arena);
}
#endif

/* To wait for the stream that has the handle now is not to wait for what the old one freed. */
static void a_wait_is_for_the_new_one(void) {
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    cudaStream_t brief = new_stream(), next;
    void *block = kit_alloc(arena, MIB, brief);
    CHECK_RESULT(gpupool_wait_stream(arena, brief), GPUPOOL_OK);
    fake_hold(brief, 1);
    kit_fill(brief, block, MIB, 1);
    CHECK_RESULT(gpupool_free(arena, block, brief), GPUPOOL_OK);
    uint64_t pending = kit_stats(arena).pending.now;
    CHECK(pending >= MIB);
    CHECK_EQ(own_stream_destroy(brief), cudaSuccess);
    next = new_stream();
    CHECK(next == brief);
    CHECK_RESULT(gpupool_wait_stream(arena, next), GPUPOOL_OK);
    CHECK_EQ(kit_stats(arena).pending.now, pending);
    CHECK_EQ(own_stream_destroy(next), cudaSuccess);
    fake_run_all();
    CHECK_RESULT(gpupool_wait_all(arena), GPUPOOL_OK);
    CHECK_EQ(kit_stats(arena).pending.now, 0);
    kit_close(arena);
}

/* Streams that come and go leave no records behind that grow with their number; where nobody tells
   of their end, not beyond the next gpupool_trim. */
static void records_do_not_pile_up(void) {
    uint64_t streams = 0;
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    for (int i = 0; i < 4000; i++) {
        cudaStream_t a = new_stream(), b = new_stream();
        CHECK_RESULT(gpupool_free(arena, kit_alloc(arena, 4096, a), a), GPUPOOL_OK);
        CHECK_RESULT(gpupool_free(arena, kit_alloc(arena, 4096, b), b), GPUPOOL_OK);
        if (i % 4 == 0) CHECK_RESULT(gpupool_wait_stream(arena, a), GPUPOOL_OK);
        CHECK_EQ(cudaStreamDestroy(a), cudaSuccess);
        CHECK_EQ(cudaStreamDestroy(b), cudaSuccess);
        if (!GPUPOOL_STREAM_HOOK && i % 100 == 0)
            CHECK_RESULT(gpupool_trim(arena, SIZE_MAX, NULL), GPUPOOL_OK);
    }
    for (gpi_stream *stream = arena->clocks.streams; stream; stream = stream->next) streams++;
    CHECK(streams < 600); /* at most one empty one a bucket, and those of marks not yet asked */
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    kit_close(arena);
}

#if GPUPOOL_STREAM_HOOK
static uint64_t records(void) {
    uint64_t count = 0;
    for (gpi_stream *stream = arena->clocks.streams; stream; stream = stream->next) count++;
    return count;
}

/* Lets another stream come and go, so that the arena looks at its busy streams. */
static void come_and_go(void) {
    cudaStream_t brief = new_stream();
    CHECK_RESULT(gpupool_free(arena, kit_alloc(arena, 200000, brief), brief), GPUPOOL_OK);
    CHECK_RESULT(gpupool_wait_stream(arena, brief), GPUPOOL_OK);
    CHECK_EQ(cudaStreamDestroy(brief), cudaSuccess);
}

/* Nor do those that an idle stitch still refers to when they go. */
static void users_of_a_stitch_do_not_pile_up(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
    void *held[8], *small;
    config.chunk_bytes = 2 * MIB;
    arena = kit_create(&config);
    for (int i = 0; i < 8; i++) held[i] = kit_alloc(arena, 2 * MIB, kit_stream[0]);
    small = kit_alloc(arena, 100000, kit_stream[0]);
    for (int i = 0; i < 8; i += 2)
        CHECK_RESULT(gpupool_free(arena, held[i], kit_stream[0]), GPUPOOL_OK);
    CHECK_RESULT(gpupool_wait_all(arena), GPUPOOL_OK);
    for (int i = 0; i < 1000; i++) {
        cudaStream_t brief = new_stream();
        CHECK_RESULT(gpupool_free(arena, kit_alloc(arena, 6 * MIB, brief), brief), GPUPOOL_OK);
        CHECK_RESULT(gpupool_wait_stream(arena, brief), GPUPOOL_OK);
        come_and_go();
        CHECK_EQ(cudaStreamDestroy(brief), cudaSuccess);
    }
    CHECK(arena->stitches.reused > 900);
    CHECK(records() < 30);
    CHECK_RESULT(gpupool_free(arena, small, kit_stream[0]), GPUPOOL_OK);
    for (int i = 1; i < 8; i += 2)
        CHECK_RESULT(gpupool_free(arena, held[i], kit_stream[0]), GPUPOOL_OK);
    kit_close(arena);
}
#endif

#endif

int main(void) {
#if GPUPOOL_STREAM_HOOK
    FAKE_TEST(the_macro_tells_the_arena);
    FAKE_TEST(stream_retired_tells_the_arena);
    FAKE_TEST(every_arena_is_told);
    FAKE_TEST(a_fault_does_not_keep_the_handle);
    FAKE_TEST(an_end_in_vain_does_not_keep_the_handle);
    FAKE_TEST(the_macro_answers_as_cuda_does);
    FAKE_TEST(users_of_a_stitch_do_not_pile_up);
#else
    FAKE_TEST(the_stream_itself_is_asked);
    FAKE_TEST(asking_loses_no_capture);
#endif
    FAKE_TEST(a_wait_is_for_the_new_one);
    FAKE_TEST(records_do_not_pile_up);
    return check_finish();
}
