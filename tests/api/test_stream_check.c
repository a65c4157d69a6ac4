// build: asan -fsanitize=address,undefined -DGPUPOOL_STREAM_CHECK=1
/* GPUPOOL_STREAM_CHECK: streams are destroyed with work under way, and nobody tells gpupool. A
   handle that comes again is known for another stream by CUDA's ids. */
#include "gpupool.h"
#include "kit.h"

#define B kit_stream[0]

static gpupool_arena *arena;
static cudaStream_t stream, before;

static void begin(size_t limit_bytes) {
    arena = kit_open(limit_bytes);
    CHECK_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
}

/* Another stream with the same handle, while the old one's work goes on. */
static int exchange(void) {
    before = stream;
    CHECK_EQ(cudaStreamDestroy(stream), cudaSuccess);
    CHECK_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
#if CHECK_FAKE
    CHECK(stream == before);
#endif
    return stream == before;
}

static void end(void) {
    CHECK_EQ(cudaStreamDestroy(stream), cudaSuccess);
    kit_close(arena);
}

static void step_by_step(void) {
#if CHECK_FAKE
    fake_mode(FAKE_STEPPED);
#endif
}

/* Memory that the old stream freed is not the new one's: of a cache, of a list, of a stitch. */
static void what_the_old_one_freed(void) {
    static const size_t bytes[] = {1000, 16 * KIB, 50000, 3 * MIB, 24 * MIB};
    for (size_t i = 0; i < KIT_COUNT(bytes); i++) {
        void *block, *next;
        check_case("%zu bytes", bytes[i]);
        begin(0);
        step_by_step();
        block = gpupool_alloc(arena, bytes[i], stream);
        kit_write(block, bytes[i], stream, 1);
        kit_free(arena, block, stream);
        exchange();
        next = gpupool_alloc(arena, bytes[i], stream);
        CHECK(next);
        kit_write(next, bytes[i], stream, 2);
        kit_verify(next, bytes[i], stream, 2);
        kit_free(arena, next, stream);
        end();
    }
}

/* Nor is it lost: when it is needed, a wait for the device brings it. */
static void it_passes_by_a_wait(void) {
    void *block;
    begin(24 * MIB);
    for (int i = 0; i < 5; i++) {
        block = gpupool_alloc(arena, 24 * MIB, stream);
        CHECK(block);
        kit_write(block, 24 * MIB, stream, i);
        kit_verify(block, 24 * MIB, stream, i);
        kit_write(block, 24 * MIB, stream, i + 1);
        kit_free(arena, block, stream);
        exchange();
    }
    end();
}

/* Nor does it pile up in an arena without a limit, whose requests could always grow. */
static void a_stream_for_each_task(void) {
    begin(0);
    for (int i = 0; i < 1000; i++) {
        void *block = gpupool_alloc(arena, MIB, stream);
        CHECK(block);
        kit_write(block, MIB, stream, i & 255);
        kit_free(arena, block, stream);
        exchange();
    }
    CHECK(kit_stats(arena).reserved.peak <= 48 * MIB);
    CHECK(kit_stats(arena).host_waits <= 1000 / 10); /* many share one */
    end();
}

/* A block of the old stream's is freed on the new one, which has waited for it. */
static void blocks_live_on(void) {
    void *small, *large, *next;
    begin(0);
    small = gpupool_alloc(arena, 1000, stream);
    large = gpupool_alloc(arena, 5 * MIB, stream);
    kit_write(small, 1000, stream, 1);
    kit_write(large, 5 * MIB, stream, 1);
    kit_follow(B, stream);
    exchange();
    kit_follow(stream, B);
    kit_write(small, 1000, stream, 2);
    kit_write(large, 5 * MIB, stream, 2);
    kit_free(arena, small, stream);
    kit_free(arena, large, stream);
    next = gpupool_alloc(arena, 1000, stream); /* its own now */
    CHECK(next == small);
    kit_write(next, 1000, stream, 3);
    kit_free(arena, next, stream);
    CHECK_EQ(kit_stats(arena).blocks, 0);
    end();
}

/* A use that was recorded of the old stream is not one of the new stream's. */
static void a_use_is_the_old_ones(void) {
    void *block, *next;
    begin(8 * MIB);
    step_by_step();
    block = gpupool_alloc(arena, 8 * MIB, B);
    kit_write(block, 8 * MIB, B, 1);
    kit_follow(stream, B);
    kit_write(block, 8 * MIB, stream, 2);
    CHECK_RESULT(gpupool_record_stream(arena, block, stream), GPUPOOL_OK);
    exchange();
    kit_follow(stream, B);
    kit_free(arena, block, stream);
    next = gpupool_alloc(arena, 8 * MIB, stream);
    kit_write(next, 8 * MIB, stream, 3);
    kit_verify(next, 8 * MIB, stream, 3);
    CHECK_RESULT(gpupool_record_stream(arena, next, stream), GPUPOOL_OK);
    kit_free(arena, next, stream);
    end();
}

static cudaGraph_t end_capture(void) {
    cudaGraph_t graph = NULL;
    CHECK_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    return graph;
}

/* A capturing stream is not asked, which would end its capture: known before, or first seen so. */
static void captures_go_on(void) {
    for (int is_known = 0; is_known < 2; is_known++) {
        gpupool_capture *scope = NULL;
        void *block;
        check_case("known %d", is_known);
        begin(0);
        if (is_known) kit_free(arena, gpupool_alloc(arena, 1000, stream), stream);
        CHECK_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
        CHECK_RESULT(gpupool_begin_capture(arena, stream, &scope), GPUPOOL_OK);
        block = gpupool_alloc(arena, 1000, stream);
        CHECK(block);
        kit_write(block, 1000, stream, 1);
        kit_free(arena, block, stream);
        CHECK_EQ(cudaGraphDestroy(end_capture()), cudaSuccess);
        CHECK_RESULT(gpupool_release_capture(scope), GPUPOOL_OK);
        kit_free(arena, gpupool_alloc(arena, 1000, stream), stream);
        exchange();
        kit_free(arena, gpupool_alloc(arena, 1000, stream), stream);
        end();
    }
}

/* The old one's open scope is closed: the new stream's memory is no graph's. */
static void scopes_end(void) {
    gpupool_capture *old = NULL, *scope = NULL;
    void *block;
    begin(0);
    CHECK_RESULT(gpupool_begin_capture(arena, stream, &old), GPUPOOL_OK);
    kit_free(arena, gpupool_alloc(arena, 3 * MIB, stream), stream);
    if (exchange()) {
        block = gpupool_alloc(arena, 3 * MIB, stream);
        kit_free(arena, block, stream);
        CHECK(gpupool_alloc(arena, 3 * MIB, stream) == block);
        kit_free(arena, block, stream);
        CHECK_RESULT(gpupool_begin_capture(arena, stream, &scope), GPUPOOL_OK);
        CHECK_RESULT(gpupool_release_capture(scope), GPUPOOL_OK);
    }
    CHECK_RESULT(gpupool_release_capture(old), GPUPOOL_OK);
    end();
}

#if CHECK_FAKE
/* Only ordinary streams are asked, once in each call. */
static void who_is_asked(void) {
    long asked;
    void *block;
    begin(0);
    kit_free(arena, gpupool_alloc(arena, 1000, stream), stream);
    asked = fake_calls("cuStreamGetId");
    block = gpupool_alloc(arena, 1000, stream);
    CHECK_EQ(fake_calls("cuStreamGetId"), asked + 1);
    kit_free(arena, block, stream);
    CHECK_EQ(fake_calls("cuStreamGetId"), asked + 2);
    kit_free(arena, gpupool_alloc(arena, 1000, 0), 0);
    kit_free(arena, gpupool_alloc(arena, 1000, cudaStreamPerThread), cudaStreamPerThread);
    kit_free(arena, gpupool_alloc(arena, 1000, GPUPOOL_NO_STREAM), GPUPOOL_NO_STREAM);
    CHECK_EQ(fake_calls("cuStreamGetId"), asked + 2);
    end();
}

/* CUDA does not tell the id: the call goes on as without the option. */
static void no_answer(void) {
    begin(0);
    fake_fail_call("cuStreamGetId", 1, 1, CUDA_ERROR_UNKNOWN);
    kit_free(arena, gpupool_alloc(arena, 1000, stream), stream);
    fake_fail_clear();
    kit_free(arena, gpupool_alloc(arena, 1000, stream), stream);
    end();
}
#endif

int main(void) {
    KIT_TEST(what_the_old_one_freed);
    KIT_TEST(it_passes_by_a_wait);
    KIT_TEST(a_stream_for_each_task);
    KIT_TEST(blocks_live_on);
    KIT_TEST(a_use_is_the_old_ones);
    KIT_TEST(captures_go_on);
    KIT_TEST(scopes_end);
#if CHECK_FAKE
    KIT_TEST(who_is_asked);
    KIT_TEST(no_answer);
#endif
    return check_finish();
}
