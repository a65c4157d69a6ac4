// build: asan -fsanitize=address,undefined -DGPUPOOL_STREAM_CHECK=1
/* GPUPOOL_STREAM_CHECK: streams are destroyed with work under way, and nobody tells gpupool. A
   handle that comes again is known for another stream by CUDA's ids. */
#include "gpupool.h"
#include "kit.h"

#define B kit_stream[0]

static gpupool_arena *arena;
static cudaStream_t stream;

static void begin(size_t limit_bytes) {
    arena = kit_open(limit_bytes);
    stream = kit_new_stream();
}

/* Another stream with the same handle, while the old one's work goes on. */
static int exchange(void) {
    cudaStream_t before = stream;
    CHECK_EQ(cudaStreamDestroy(stream), cudaSuccess);
    stream = kit_new_stream();
#if CHECK_FAKE
    CHECK(stream == before);
#endif
    return stream == before;
}

static void end(void) {
    CHECK_EQ(cudaStreamDestroy(stream), cudaSuccess);
    kit_close(arena);
}

/* Memory that the old stream freed is not the new one's: of a cache, of a list, of a stitch. */
static void what_the_old_one_freed(void) {
    static const size_t bytes[] = {1000, 16 * KIB, 50000, 3 * MIB, 24 * MIB};
    for (size_t i = 0; i < KIT_COUNT(bytes); i++) {
        void *next;
        check_case("%zu bytes", bytes[i]);
        begin(0);
        kit_delay();
        kit_use(arena, bytes[i], stream);
        exchange();
        next = gpupool_alloc(arena, bytes[i], stream);
        CHECK(next);
        kit_write(next, bytes[i], stream, 2);
        kit_verify(next, bytes[i], stream, 2);
        kit_free(arena, next, stream);
        end();
    }
}

/* Nor does it pile up in an arena without a limit, whose requests could always grow. CUDA may give
   several handles in turn, and gpupool hears of a stream's end when its handle comes again. */
static void a_stream_for_each_task(void) {
    cudaStream_t seen[1000];
    size_t handles = 0;
    begin(0);
    for (int i = 0; i < 1000; i++) {
        size_t at = 0;
        while (at < handles && seen[at] != stream) at++;
        seen[at] = stream;
        if (at == handles) handles++;
        kit_use(arena, MIB, stream);
        exchange();
    }
    check_case("%zu handles", handles);
    CHECK(kit_stats(arena).reserved.peak <= (32 + 2 * handles) * MIB);
    CHECK(kit_stats(arena).host_waits <= 1000 / 10); /* many share one */
    end();
}

/* A use that was recorded of the old stream is not one of the new stream's. */
static void a_use_is_the_old_ones(void) {
    void *block, *next;
    begin(8 * MIB);
    kit_delay();
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

/* A capturing stream is not asked, which would end its capture: known before, or first seen so. */
static void captures_go_on(void) {
    for (int is_known = 0; is_known < 2; is_known++) {
        gpupool_capture *scope = NULL;
        check_case("known %d", is_known);
        begin(0);
        if (is_known) kit_use(arena, 1000, stream);
        CHECK_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
        CHECK_RESULT(gpupool_begin_capture(arena, stream, &scope), GPUPOOL_OK);
        kit_use(arena, 1000, stream);
        kit_end_capture(stream);
        CHECK_RESULT(gpupool_release_capture(scope), GPUPOOL_OK);
        kit_use(arena, 1000, stream);
        exchange();
        kit_use(arena, 1000, stream);
        end();
    }
}

/* The old one's open scope is closed: the new stream's memory is no graph's. */
static void scopes_end(void) {
    gpupool_capture *old = NULL, *scope = NULL;
    void *block;
    begin(0);
    CHECK_RESULT(gpupool_begin_capture(arena, stream, &old), GPUPOOL_OK);
    kit_use(arena, 3 * MIB, stream);
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
    kit_use(arena, 1000, stream);
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
#endif

int main(void) {
    KIT_TEST(what_the_old_one_freed);
    KIT_TEST(a_stream_for_each_task);
    KIT_TEST(a_use_is_the_old_ones);
    KIT_TEST(captures_go_on);
    KIT_TEST(scopes_end);
#if CHECK_FAKE
    KIT_TEST(who_is_asked);
#endif
    return check_finish();
}
