/* Allocating on a capturing stream, growth included, in every mode of capture: the capture is not
   lost, and the graph's work reaches its blocks. Runs on a GPU too. */
#include "gpupool.h"
#include "capture_kit.h"

static void launch(cudaGraphExec_t exec, cudaStream_t stream, int times) {
    for (int i = 0; i < times; i++) CHECK_EQ(cudaGraphLaunch(exec, stream), cudaSuccess);
    CHECK_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    CHECK_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
}

static void captured(gpupool_source source, enum cudaStreamCaptureMode mode) {
    cudaStream_t stream = kit_stream[0];
    arena = kit_open(source);
    begin(stream, mode);
    void *kept = get(BYTES, stream); /* nothing is held yet, so this grows */
    fill(stream, kept, BYTES, 7);
    void *passing = gpupool_zalloc(arena, 16 * BYTES, stream);
    CHECK(passing != NULL);
    put(passing, stream);
    CHECK_EQ((size_t)get(16 * BYTES, stream), (size_t)passing);
    launch(end(stream), stream, 3);
    expect(kept, BYTES, 7);
    put(passing, stream);
    put(kept, stream);
    kit_close(arena);
}

static void a_capturing_stream_allocates(void) {
    for (size_t s = 0; s < KIT_COUNT(sources); s++) {
        for (size_t m = 0; m < KIT_COUNT(modes); m++) {
            check_case("source %d, mode %d", (int)sources[s], (int)modes[m]);
            captured(sources[s], modes[m]);
        }
    }
}

/* Growth on an ordinary stream while another captures: cudaMalloc would end the capture. */
static void another_stream_grows_meanwhile(void) {
    for (size_t s = 0; s < KIT_COUNT(sources); s++) {
        for (size_t m = 0; m < KIT_COUNT(modes); m++) {
            check_case("source %d, mode %d", (int)sources[s], (int)modes[m]);
            arena = kit_open(sources[s]);
            begin(kit_stream[0], modes[m]);
            void *block = get(BYTES, kit_stream[1]);
            put(get(40 * BYTES, kit_stream[2]), kit_stream[2]);
            CHECK_RESULT(gpupool_record_stream(arena, block, kit_stream[2]), GPUPOOL_OK);
            put(block, kit_stream[1]);
            CHECK_EQ(cudaGraphDestroy(ended(kit_stream[0])), cudaSuccess);
            kit_close(arena);
        }
    }
}

#if CHECK_FAKE
/* A stream that captures without a scope is remembered even if nothing of it is left: an event over
   all streams would end its capture. */
static void a_capture_without_a_scope_is_remembered(void) {
    for (size_t m = 0; m < KIT_COUNT(modes); m++) {
        check_case("mode %d", (int)modes[m]);
        arena = kit_open(GPUPOOL_SOURCE_MAPPED);
        void *other = get(512, kit_stream[1]); /* of a cache, which records no event */
        begin(kit_stream[0], modes[m]);
        void *kept = get(40 * BYTES, kit_stream[0]); /* it has nothing else, and no event */
        CHECK_RESULT(gpupool_trim(arena, SIZE_MAX, NULL), GPUPOOL_OK);
        put(other, kit_stream[1]);
        fake_reset_counters();
        CHECK_RESULT(gpupool_trim(arena, SIZE_MAX, NULL), GPUPOOL_OK);
        CHECK_EQ(fake_calls("cuCtxRecordEvent"), 0);
        CHECK_EQ(cudaGraphDestroy(ended(kit_stream[0])), cudaSuccess);
        put(kept, kit_stream[0]);
        kit_close(arena);
    }
}

/* What one arena knows of a capture without a scope holds for all arenas: an event over all streams
   that another arena records would end the capture. */
static void every_arena_minds_a_capture_without_a_scope(void) {
    for (size_t m = 0; m < KIT_COUNT(modes); m++) {
        check_case("mode %d", (int)modes[m]);
        gpupool_arena *other = kit_open(GPUPOOL_SOURCE_MAPPED);
        void *block = kit_alloc(other, 512, kit_stream[1]);
        arena = kit_open(GPUPOOL_SOURCE_MAPPED);
        begin(kit_stream[0], modes[m]);
        void *kept = get(BYTES, kit_stream[0]);
        CHECK_RESULT(gpupool_free(other, block, kit_stream[1]), GPUPOOL_OK);
        CHECK_RESULT(gpupool_trim(other, SIZE_MAX, NULL), GPUPOOL_OK);
        CHECK_EQ(cudaGraphDestroy(ended(kit_stream[0])), cudaSuccess);
        put(kept, kit_stream[0]);
        kit_close(arena);
        CHECK_RESULT(gpupool_trim(other, 0, NULL), GPUPOOL_OK);
        kit_close(other);
    }
}

/* An allocation that finds free memory asks CUDA nothing, and so does not learn of the capture.
   gpupool_record_stream does. */
static void a_refused_use_tells_of_the_capture(void) {
    for (size_t m = 0; m < KIT_COUNT(modes); m++) {
        check_case("mode %d", (int)modes[m]);
        arena = kit_open(GPUPOOL_SOURCE_MAPPED);
        put(get(BYTES, kit_stream[0]), kit_stream[0]);
        void *other = get(512, kit_stream[1]);
        begin(kit_stream[0], modes[m]);
        void *kept = get(BYTES, kit_stream[0]);
        CHECK_RESULT(gpupool_record_stream(arena, kept, kit_stream[0]), GPUPOOL_E_CAPTURING);
        put(other, kit_stream[1]);
        CHECK_RESULT(gpupool_trim(arena, SIZE_MAX, NULL), GPUPOOL_OK);
        CHECK_EQ(cudaGraphDestroy(ended(kit_stream[0])), cudaSuccess);
        put(kept, kit_stream[0]);
        kit_close(arena);
    }
}

/* gpupool_wait_stream does, too, also where the arena has not met the stream. Once the capture has
   ended, the next wait tells of that. */
static void a_refused_wait_tells_of_the_capture(void) {
    for (int is_met = 0; is_met < 2; is_met++)
        for (size_t m = 0; m < KIT_COUNT(modes); m++) {
            check_case("mode %d, is_met %d", (int)modes[m], is_met);
            arena = kit_open(GPUPOOL_SOURCE_MAPPED);
            if (is_met) put(get(BYTES, kit_stream[0]), kit_stream[0]);
            void *other = get(512, kit_stream[1]);
            begin(kit_stream[0], modes[m]);
            CHECK_RESULT(gpupool_wait_stream(arena, kit_stream[0]), GPUPOOL_E_CAPTURING);
            CHECK(strstr(gpupool_last_error(), "gpupool_wait_stream") != NULL);
            put(other, kit_stream[1]);
            CHECK_RESULT(gpupool_trim(arena, SIZE_MAX, NULL), GPUPOOL_OK);
            CHECK_RESULT(gpupool_sleep(arena, GPUPOOL_ALL, GPUPOOL_DISCARD, NULL),
                         GPUPOOL_E_CAPTURING);
            CHECK_EQ(cudaGraphDestroy(ended(kit_stream[0])), cudaSuccess);
            CHECK_RESULT(gpupool_wait_stream(arena, kit_stream[0]), GPUPOOL_OK);
            CHECK_RESULT(gpupool_sleep(arena, GPUPOOL_ALL, GPUPOOL_DISCARD, NULL), GPUPOOL_OK);
            kit_close(arena);
        }
    check_case(" ");
}

/* To zero a block on the legacy stream would end the capture of a blocking stream, so that is
   refused. Where the host zeroes, the device has nothing to do. */
static void nothing_is_zeroed_beside_a_capture(gpupool_source source,
                                               enum cudaStreamCaptureMode mode) {
    int is_host = source == GPUPOOL_SOURCE_PINNED;
    gpupool_capture *scope;
    cudaStream_t blocking;
    unsigned char *zeroed;
    CHECK_EQ(cudaStreamCreate(&blocking), cudaSuccess);
    arena = kit_open(source);
    scope = scope_on(blocking);
    begin(blocking, mode);
    fill(blocking, get(BYTES, blocking), BYTES, 1);
    zeroed = (unsigned char *)gpupool_zalloc(arena, BYTES, 0);
    CHECK_RESULT(kit_why(zeroed), is_host ? GPUPOOL_OK : GPUPOOL_E_CAPTURING);
    if (zeroed) CHECK(zeroed[0] == 0 && zeroed[BYTES - 1] == 0);
    put(zeroed, 0);
    CHECK_EQ(cudaGraphDestroy(ended(blocking)), cudaSuccess);
    put(gpupool_zalloc(arena, BYTES, 0), 0); /* afterwards it works */
    CHECK_RESULT(gpupool_last_result(), GPUPOOL_OK);
    release(scope, NULL);
    kit_close(arena);
    CHECK_EQ(cudaStreamDestroy(blocking), cudaSuccess);
}

static void a_zeroed_block_ends_no_capture(void) {
    static const gpupool_source all[] = {GPUPOOL_SOURCE_MAPPED, GPUPOOL_SOURCE_DEVICE,
                                         GPUPOOL_SOURCE_PINNED};
    for (size_t s = 0; s < KIT_COUNT(all); s++)
        for (size_t m = 0; m < KIT_COUNT(modes); m++) {
            check_case("source %d, mode %d", (int)all[s], (int)modes[m]);
            nothing_is_zeroed_beside_a_capture(all[s], modes[m]);
        }
    check_case(" ");
}
#endif

int main(void) {
    ARENA_TEST(a_capturing_stream_allocates);
    ARENA_TEST(another_stream_grows_meanwhile);
    FAKE_TEST(a_capture_without_a_scope_is_remembered);
    FAKE_TEST(every_arena_minds_a_capture_without_a_scope);
    FAKE_TEST(a_refused_use_tells_of_the_capture);
    FAKE_TEST(a_refused_wait_tells_of_the_capture);
    FAKE_TEST(a_zeroed_block_ends_no_capture);
    return check_finish();
}
