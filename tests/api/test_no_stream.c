/* GPUPOOL_NO_STREAM: memory whose work has finished, for any stream at once, and without a wait
   where there is some. */
// build: plain
// build: asan -fsanitize=address,undefined
// build: asked -DGPUPOOL_STREAM_CHECK=1
// build: guard -DGPUPOOL_GUARD=1
#include "gpupool.h"
#include "arena_kit.h"

#if CHECK_FAKE

#define NONE GPUPOOL_NO_STREAM

static gpupool_arena *arena;

static void *get(size_t bytes, cudaStream_t stream) { return kit_alloc(arena, bytes, stream); }

static void put(void *block, cudaStream_t stream) {
    CHECK_RESULT(gpupool_free(arena, block, stream), GPUPOOL_OK);
}

static const size_t sizes[] = {100, 5000, 64 * KIB, 3 * MIB, 40 * MIB};

/* Twice the same: the second time it is there, whatever else is under way. */
static void the_same_again_makes_no_call(void) {
    for (size_t s = 0; s + 2 < KIT_SOURCES; s++) {
        check_case("%s", kit_sources[s].name);
        arena = kit_open(kit_sources[s].source);
        void *busy = get(1000, kit_stream[1]);
        fake_mode(FAKE_STEPPED);
        fake_write(kit_stream[1], "busy", busy, 1000, 1);
        for (int round = 0; round < 4; round++) {
            long before = kit_calls();
            void *block[KIT_COUNT(sizes)];
            for (size_t i = 0; i < KIT_COUNT(sizes); i++) block[i] = get(sizes[i], NONE);
            for (size_t i = 0; i < KIT_COUNT(sizes); i++) put(block[i], NONE);
#if !GPUPOOL_GUARD
            if (round > 1) CHECK_EQ(kit_calls(), before);
#else
            (void)before;
#endif
        }
        CHECK_EQ(kit_stats(arena).pending.now, 0);
        CHECK_EQ(kit_stats(arena).host_syncs, 0);
        fake_mode(FAKE_EAGER);
        put(busy, kit_stream[1]);
        kit_close(arena);
    }
}

/* Two streams use it, one after the other, and no order is between them: fakecuda would see a
   race. */
static void any_stream_may_use_it(void) {
    for (size_t i = 0; i < KIT_COUNT(sizes); i++) {
        check_case("%zu bytes", sizes[i]);
        arena = kit_open(GPUPOOL_SOURCE_MAPPED);
        fake_mode(FAKE_STEPPED);
        void *block = get(sizes[i], NONE);
        fake_write(kit_stream[0], "first", block, sizes[i], 1);
        CHECK_EQ(cudaStreamSynchronize(kit_stream[0]), cudaSuccess);
        put(block, NONE);
        void *next = get(sizes[i], kit_stream[1]);
        fake_write(kit_stream[1], "second", next, sizes[i], 2);
        put(next, kit_stream[1]); /* its work has not run: others must not have the memory */
        void *third = get(sizes[i], NONE);
        fake_write(kit_stream[2], "third", third, sizes[i], 3);
        CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
        put(third, NONE);
        fake_mode(FAKE_EAGER);
        CHECK_EQ(fake_failures(), 0);
        kit_close(arena);
    }
}

/* Only where all memory is pending the host waits. */
static void waits_where_nothing_is_finished(void) {
    gpupool_request request = {.bytes = 3 * MIB, .stream = NONE, .flags = GPUPOOL_NO_WAIT};
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 4 * MIB);
    fake_mode(FAKE_STEPPED);
    void *block = get(3 * MIB, kit_stream[0]), *next;
    fake_write(kit_stream[0], "earlier", block, 3 * MIB, 1);
    put(block, kit_stream[0]);
    CHECK_RESULT(kit_why(gpupool_alloc_request(arena, &request)), GPUPOOL_E_OUT_OF_MEMORY);
    next = get(3 * MIB, NONE);
    fake_write(kit_stream[1], "later", next, 3 * MIB, 2);
    CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
    put(next, NONE);
    fake_mode(FAKE_EAGER);
    CHECK_EQ(fake_failures(), 0);
    kit_close(arena);
}

/* What a stream does not know to be over is recorded, and counts. */
static void a_recorded_use_is_waited_for(void) {
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    fake_mode(FAKE_STEPPED);
    void *block = get(3 * MIB, NONE), *next;
    fake_write(kit_stream[1], "use", block, 3 * MIB, 1);
    CHECK_RESULT(gpupool_record_stream(arena, block, kit_stream[1]), GPUPOOL_OK);
    put(block, NONE);
    next = get(3 * MIB, NONE);
    CHECK(next != block);
    fake_write(kit_stream[2], "other", next, 3 * MIB, 2);
    CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
    put(next, NONE);
    fake_mode(FAKE_EAGER);
    CHECK_EQ(fake_failures(), 0);
    CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
    CHECK_EQ(kit_reserved(arena), 0);
    kit_close(arena);
}

/* A memset that the caller need not wait for. */
static void zeros_are_there(void) {
    gpupool_request request = {.bytes = 3 * MIB, .stream = NONE, .flags = GPUPOOL_ZEROED};
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    for (int round = 0; round < 2; round++) {
        void *block = gpupool_alloc_request(arena, &request);
        kit_expect(kit_stream[0], block, 3 * MIB, 0);
        kit_fill(kit_stream[0], block, 3 * MIB, 9);
        CHECK_EQ(cudaStreamSynchronize(kit_stream[0]), cudaSuccess);
        put(block, NONE);
    }
    CHECK_EQ(fake_failures(), 0);
    kit_close(arena);
}

static void other_calls_refuse_it(void) {
    gpupool_capture *capture;
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    void *block = get(5000, NONE);
    gpupool_stats before = kit_stats(arena);
    CHECK_RESULT(gpupool_record_stream(arena, block, NONE), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(gpupool_wait_stream(arena, NONE), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(gpupool_retire_stream(arena, NONE), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(gpupool_begin_capture(arena, NONE, &capture), GPUPOOL_E_ARGUMENT);
    kit_same_stats(before, kit_stats(arena));
    put(block, NONE);
    CHECK_RESULT(gpupool_free(arena, block, NONE), GPUPOOL_E_DOUBLE_FREE);
    kit_close(arena);
}

#endif

int main(void) {
    FAKE_TEST(the_same_again_makes_no_call);
    FAKE_TEST(any_stream_may_use_it);
    FAKE_TEST(waits_where_nothing_is_finished);
    FAKE_TEST(a_recorded_use_is_waited_for);
    FAKE_TEST(zeros_are_there);
    FAKE_TEST(other_calls_refuse_it);
    return check_finish();
}
