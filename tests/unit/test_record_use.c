/* record_use: work queued on other streams holds the memory back too. One step at a time. */
// build: plain
// build: asan -fsanitize=address
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "stream_kit.h"

#if CHECK_FAKE

static void recorded(gpupool_source source, int taker) {
    open_for(source, SIZE);
    void *block = get(SIZE, 0, 1);
    kit_order(kit_stream[0], kit_stream[1]);
    kit_expect(kit_stream[1], block, SIZE / 2, -1);
    CHECK_RESULT(gpupool_record_stream(arena, block, kit_stream[1]), GPUPOOL_OK);
    put(block, 0);
    fake_run(kit_stream[0]); /* its own stream is done, the reader is not */
    void *next = kit_alloc(arena, SIZE, kit_stream[taker]);
    kit_fill(kit_stream[taker], next, SIZE, 2);
    if (taker != 1) fake_run(kit_stream[taker]);
    CHECK_EQ(fake_failures(), 0);
    put(next, taker);
    close_arena();
}
static void recorded_then_same(gpupool_source source) { recorded(source, 0); }
static void recorded_then_reader(gpupool_source source) { recorded(source, 1); }
static void recorded_then_third(gpupool_source source) { recorded(source, 2); }
static void a_recorded_use_holds_back_the_stream_itself(void) {
    for_each_source(recorded_then_same);
}
static void a_recorded_use_holds_back_the_reader(void) { for_each_source(recorded_then_reader); }
static void a_recorded_use_holds_back_a_third_stream(void) {
    for_each_source(recorded_then_third);
}

/* The reader is done while the stream that frees is not: its work holds the memory back as well. */
static void reader_done_first(gpupool_source source) {
    open_for(source, SIZE);
    void *block = get(SIZE, 0, 1);
    kit_order(kit_stream[0], kit_stream[1]);
    kit_expect(kit_stream[1], block, SIZE, -1);
    CHECK_RESULT(gpupool_record_stream(arena, block, kit_stream[1]), GPUPOOL_OK);
    fake_run(kit_stream[1]);
    kit_expect(kit_stream[0], block, SIZE, -1);
    put(block, 0);
    void *next = kit_alloc(arena, SIZE, kit_stream[2]);
    kit_fill(kit_stream[2], next, SIZE, 2);
    run_alone(2);
    fake_run(kit_stream[2]);
    CHECK_EQ(fake_failures(), 0);
    put(next, 2);
    close_arena();
}
static void a_recorded_use_does_not_replace_the_own_stream(void) {
    for_each_source(reader_done_first);
}

/* Work queued after record_use is not covered by it; a second call covers that too. */
static void recorded_again(gpupool_source source) {
    open_for(source, SIZE);
    void *block = get(SIZE, 0, 1);
    for (int s = 1; s < 4; s++) {
        kit_order(kit_stream[0], kit_stream[s]);
        for (int twice = 0; twice < 2; twice++) {
            kit_expect(kit_stream[s], block, SIZE, -1);
            CHECK_RESULT(gpupool_record_stream(arena, block, kit_stream[s]), GPUPOOL_OK);
        }
    }
    put(block, 0);
    void *next = kit_alloc(arena, SIZE, kit_stream[0]);
    kit_fill(kit_stream[0], next, SIZE, 2);
    fake_run(kit_stream[0]);
    CHECK_EQ(fake_failures(), 0);
    put(next, 0);
    close_arena();
}
static void many_recorded_uses_are_all_kept(void) { for_each_source(recorded_again); }

/* However often: of default streams too the later use takes the earlier one's place. */
static void uses_do_not_pile_up(void) {
    const cudaStream_t streams[] = {0, cudaStreamLegacy, cudaStreamPerThread, kit_stream[1]};
    open_for(GPUPOOL_SOURCE_MAPPED, SIZE);
    void *block = get(SIZE, 0, 1);
    for (size_t i = 0; i < 100 * KIT_COUNT(streams); i++)
        CHECK_RESULT(gpupool_record_stream(arena, block, streams[i % KIT_COUNT(streams)]),
                     GPUPOOL_OK);
    CHECK_EQ(arena->clocks.uses, 3); /* the first two are one */
    CHECK(fake_live_objects() < 40); /* streams and events: two of these for each stream at most */
    put(block, 0);
    close_arena();
}

/* CUDA numbers its streams from 1 on; the default ones, which have no number, are none of them. */
static void each_stream_has_a_use_of_its_own(void) {
    cudaStream_t streams[16];
    open_for(GPUPOOL_SOURCE_MAPPED, SIZE);
    void *block = get(SIZE, 0, 1);
    for (int i = 0; i < 16; i++)
        CHECK_EQ(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking), cudaSuccess);
    CHECK_RESULT(gpupool_record_stream(arena, block, 0), GPUPOOL_OK);
    CHECK_RESULT(gpupool_record_stream(arena, block, cudaStreamPerThread), GPUPOOL_OK);
    for (int i = 0; i < KIT_STREAMS; i++)
        CHECK_RESULT(gpupool_record_stream(arena, block, kit_stream[i]), GPUPOOL_OK);
    for (int i = 0; i < 16; i++)
        CHECK_RESULT(gpupool_record_stream(arena, block, streams[i]), GPUPOOL_OK);
    CHECK_EQ(arena->clocks.uses, 2 + KIT_STREAMS + 16);
    put(block, 0);
    for (int i = 0; i < 16; i++) CHECK_EQ(cudaStreamDestroy(streams[i]), cudaSuccess);
    close_arena();
}

/* The recorded use follows the memory through a split and into other hands. */
static void recorded_split(gpupool_source source) {
    open_for(source, SIZE);
    void *block = get(SIZE, 0, 1);
    kit_order(kit_stream[0], kit_stream[3]);
    kit_expect(kit_stream[3], block, SIZE, -1);
    CHECK_RESULT(gpupool_record_stream(arena, block, kit_stream[3]), GPUPOOL_OK);
    put(block, 0);
    void *low = get(SIZE / 2, 1, 2);
    void *high = get(SIZE / 2, 2, 3);
    fake_hold(kit_stream[3], 1);
    while (fake_step(kit_stream[0]) + fake_step(kit_stream[1]) + fake_step(kit_stream[2]))
        CHECK_EQ(fake_failures(), 0);
    fake_hold(kit_stream[3], 0);
    put(low, 1);
    put(high, 2);
    close_arena();
}
static void a_recorded_use_survives_a_split(void) { for_each_source(recorded_split); }

/* Freed blocks that others use: the first one's stream stands still, the other one's is done. */
static void *open_behind_a_stuck_stream(gpupool_source source) {
    void *blocks[4];
    open_for(source, (source == GPUPOOL_SOURCE_CUSTOM ? 6 : 4) * SIZE); /* whole granules */
    for (int i = 0; i < 4; i++) blocks[i] = get(SIZE, 0, i);
    for (int i = 0; i < 3; i++) {
        int reader = i ? 2 : 1;
        kit_order(kit_stream[0], kit_stream[reader]);
        kit_expect(kit_stream[reader], blocks[i], SIZE, -1);
        CHECK_RESULT(gpupool_record_stream(arena, blocks[i], kit_stream[reader]), GPUPOOL_OK);
        put(blocks[i], 0);
        fake_run(kit_stream[0]); /* each free has a mark: two may be under way */
    }
    fake_run(kit_stream[2]);
    fake_hold(kit_stream[1], 1);
    return blocks[3];
}

static void close_behind_a_stuck_stream(void *live) {
    CHECK_EQ(kit_stats(arena).host_syncs, 0); /* nothing had to wait for it */
    fake_hold(kit_stream[1], 0);
    put(live, 0);
    close_arena();
}

static void recorded_then_trimmed(gpupool_source source) {
    void *live = open_behind_a_stuck_stream(source);
    size_t released = 0;
    CHECK_RESULT(gpupool_trim(arena, 0, &released), GPUPOOL_OK);
    CHECK(released >= 2 * SIZE);
    CHECK_EQ(kit_stats(arena).pending.now, SIZE);
    close_behind_a_stuck_stream(live);
}
static void what_is_done_is_trimmed_whoever_is_not(void) { for_each_source(recorded_then_trimmed); }

static void recorded_then_joined(gpupool_source source) {
    void *live = open_behind_a_stuck_stream(source);
    put(get(SIZE + SIZE / 2, 3, 9), 3); /* more than either of the two that are done */
    close_behind_a_stuck_stream(live);
}
static void what_is_done_is_moved_whoever_is_not(void) { for_each_source(recorded_then_joined); }

static void recorded_then_wanted(gpupool_source source) {
    open_for(source, 8 * SIZE);
    void *block = get(SIZE, 0, 1);
    size_t held = kit_reserved(arena);
    kit_order(kit_stream[0], kit_stream[1]);
    kit_expect(kit_stream[1], block, SIZE, -1);
    CHECK_RESULT(gpupool_record_stream(arena, block, kit_stream[1]), GPUPOOL_OK);
    put(block, 0);
    fake_run_all();
    put(get(SIZE, 2, 2), 2);
    CHECK_EQ(kit_reserved(arena), held);
    close_arena();
}
static void what_is_done_comes_before_growth(void) { for_each_source(recorded_then_wanted); }

/* A stream at a long kernel holds up what it uses: be it a few blocks or many, what others have
   finished with is had again before the arena grows. */
static void used_by(int reader, size_t bytes) {
    void *block = get(bytes, 0, 1);
    kit_order(kit_stream[0], kit_stream[reader]);
    kit_expect(kit_stream[reader], block, bytes, -1);
    CHECK_RESULT(gpupool_record_stream(arena, block, kit_stream[reader]), GPUPOOL_OK);
    put(block, 0);
    fake_run(kit_stream[0]);
}

static void at_a_long_kernel(gpupool_source source) {
    for (int blocks = 1; blocks <= 30; blocks += 29) {
        open_for(source, 1000 * SIZE);
        fake_hold(kit_stream[1], 1);
        for (int i = 0; i < blocks; i++) used_by(1, 4 * KIB);
        for (int i = 0; i < 100; i++) {
            used_by(2, SIZE);
            fake_run(kit_stream[2]);
        }
        CHECK(kit_reserved(arena) <= 6 * SIZE); /* the arena may run that far ahead */
        fake_hold(kit_stream[1], 0);
        close_arena();
    }
}
static void one_long_kernel_lets_nothing_grow(void) { for_each_source(at_a_long_kernel); }

/* More streams stand still than are asked after before growth. */
static void many_long_kernels(void) {
    enum { STREAMS = 12 };
    cudaStream_t stream[STREAMS];
    open_for(GPUPOOL_SOURCE_MAPPED, 1000 * SIZE);
    for (int i = 0; i < STREAMS; i++) {
        CHECK_EQ(cudaStreamCreateWithFlags(&stream[i], cudaStreamNonBlocking), cudaSuccess);
        void *block = get(SIZE, 0, i);
        kit_order(kit_stream[0], stream[i]);
        kit_expect(stream[i], block, SIZE, -1);
        CHECK_RESULT(gpupool_record_stream(arena, block, stream[i]), GPUPOOL_OK);
        put(block, 0);
        fake_run(kit_stream[0]);
    }
    CHECK_EQ(kit_stats(arena).pending.now, STREAMS * SIZE);
    fake_run_all();
    put(get(STREAMS * SIZE, 0, 1), 0);
    CHECK(kit_reserved(arena) <= (STREAMS + 2) * SIZE);
    for (int i = 0; i < STREAMS; i++) CHECK_EQ(cudaStreamDestroy(stream[i]), cudaSuccess);
    close_arena();
}

/* A request that has to wait for them waits for a mark behind many, and asks after each a few
   times, not after all of them each time. */
static void many_are_not_all_asked_each_time(void) {
    enum { COUNT = 1024 };
    void *block[COUNT];
    open_for(GPUPOOL_SOURCE_MAPPED, COUNT * 4 * KIB);
    for (int i = 0; i < COUNT; i++) block[i] = kit_alloc(arena, 4 * KIB, kit_stream[0]);
    for (int i = 0; i < COUNT; i++) {
        kit_mark(kit_stream[1], block[i], 512, i % 256);
        CHECK_RESULT(gpupool_record_stream(arena, block[i], kit_stream[1]), GPUPOOL_OK);
        put(block[i], 0);
    }
    fake_reset_counters();
    put(get(COUNT * 4 * KIB, 0, 1), 0);
    CHECK(kit_stats(arena).host_syncs < COUNT / 64);
    CHECK(fake_calls("cuEventQuery") < COUNT);
    close_arena();
}

#endif

int main(void) {
    FAKE_TEST(each_stream_has_a_use_of_its_own); /* first, while the numbers are small */
    FAKE_TEST(a_recorded_use_holds_back_the_stream_itself);
    FAKE_TEST(a_recorded_use_holds_back_the_reader);
    FAKE_TEST(a_recorded_use_holds_back_a_third_stream);
    FAKE_TEST(a_recorded_use_does_not_replace_the_own_stream);
    FAKE_TEST(many_recorded_uses_are_all_kept);
    FAKE_TEST(uses_do_not_pile_up);
    FAKE_TEST(a_recorded_use_survives_a_split);
    FAKE_TEST(what_is_done_comes_before_growth);
    FAKE_TEST(what_is_done_is_trimmed_whoever_is_not);
    FAKE_TEST(what_is_done_is_moved_whoever_is_not);
    FAKE_TEST(one_long_kernel_lets_nothing_grow);
    FAKE_TEST(many_long_kernels);
    FAKE_TEST(many_are_not_all_asked_each_time);
    return check_finish();
}
