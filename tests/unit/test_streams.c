/* Memory passes from one stream to the next only behind a mark. One step at a time. */
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "stream_kit.h"

#if CHECK_FAKE

/* ---- the same stream ---- */

static void same_stream(gpupool_source source) {
    open_for(source, SIZE);
    void *first = get(SIZE, 0, 1);
    put(first, 0);
    long calls = fake_calls(NULL);
    void *again = get(SIZE, 0, 2);
    CHECK(again == first);
    CHECK_EQ(fake_calls(NULL), calls);
    CHECK_EQ(kit_stats(arena).same_stream_allocs, 1);
    CHECK_EQ(kit_stats(arena).fence_waits + kit_stats(arena).host_syncs, 0);
    put(again, 0);
    close_arena();
}
static void the_same_stream_takes_its_memory_back(void) { for_each_source(same_stream); }

/* What it freed is too small for the next request: the arena grows, and nobody waits. */
static void too_small(gpupool_source source) {
    open_for(source, 4 * SIZE);
    put(get(SIZE, 0, 1), 0);
    void *larger = get(2 * SIZE, 0, 2);
    CHECK_EQ(kit_stats(arena).fence_waits + kit_stats(arena).host_syncs, 0);
    CHECK(fake_pending(kit_stream[0]) > 0);
    put(larger, 0);
    close_arena();
}
static void a_larger_block_waits_for_nothing(void) { for_each_source(too_small); }

/* ---- another stream ---- */

static void while_unfinished(gpupool_source source) {
    open_for(source, 4 * SIZE);
    void *first = get(SIZE, 0, 1);
    put(first, 0);
    void *other = get(SIZE, 1, 2);
    if (other == first) CHECK(kit_stats(arena).fence_waits > 0);
    /* stream 1 alone: what it may not overtake must not run first */
    run_alone(1);
    put(other, 1);
    close_arena();
}
static void unfinished_memory_is_taken_behind_a_wait(void) { for_each_source(while_unfinished); }

static void under_a_limit(gpupool_source source) {
    open_for(source, SIZE);
    void *first = get(SIZE, 0, 1);
    put(first, 0);
    void *other = get(SIZE, 1, 2);
    CHECK(other == first);
    CHECK_EQ(kit_stats(arena).fence_waits, 1);
    CHECK_EQ(kit_stats(arena).host_syncs, 0);
    CHECK_EQ(kit_stats(arena).same_stream_allocs, 0);
    CHECK_EQ(fake_step(kit_stream[1]), 0);  /* it waits for stream 0, */
    CHECK(fake_pending(kit_stream[0]) > 0); /* for which nobody else had to */
    put(other, 1);
    close_arena();
}
static void under_a_limit_the_device_waits(void) { for_each_source(under_a_limit); }

/* A stream that frees more often than it has marks: what it freed last is had all the same, without
   a wait on the host. */
static void many_frees(gpupool_source source) {
    void *block[7], *last;
    open_for(source, 16 * SIZE);
    block[6] = get(4096, 1, 0); /* with one stream alone, no free would have a mark */
    for (int i = 0; i < 6; i++) block[i] = get(i < 5 ? SIZE : 2 * SIZE, 0, i);
    CHECK_RESULT(gpupool_set_limit(arena, kit_reserved(arena)), GPUPOOL_OK);
    for (int i = 0; i < 6; i++) put(block[i], 0);
    last = get(2 * SIZE, 1, 9);
    CHECK_EQ(kit_stats(arena).host_syncs, 0);
    CHECK(kit_stats(arena).fence_waits > 0);
    run_alone(1);
    put(last, 1);
    put(block[6], 1);
    close_arena();
}
static void the_last_of_many_frees(void) { for_each_source(many_frees); }

/* Memory was short of late: a wait on the device is taken, but for no memory where another stream
   has finished with some, whichever of three it is. */
static void short_of_late(gpupool_source source) {
    for (int done = 1; done < 4; done++) {
        void *block[4];
        open_for(source, 16 * SIZE);
        for (int i = 0; i < 4; i++) put(get(4096, i, i), i);
        for (int i = 1; i < 4; i++) block[i] = get(SIZE, i, i);
        CHECK_RESULT(gpupool_set_limit(arena, kit_reserved(arena)), GPUPOOL_OK);
        for (int i = 1; i < 4; i++) put(block[i], i);
        fake_run(kit_stream[done]);
        arena->short_until = arena->clocks.position + 1024;
        block[0] = get(SIZE, 0, 3);
        CHECK(block[0] == block[done]);
        CHECK_EQ(kit_stats(arena).fence_waits, 0);
        void *other = get(SIZE, 0, 4); /* behind a wait */
        CHECK_EQ(kit_stats(arena).fence_waits, 1);
        for (int i = 0; i < 4; i++) /* the calls keep no stream */
            CHECK_EQ(gpi_clock_find(&arena->clocks, gpi_clock_key(kit_stream[i]))->refs, 0);
        put(other, 0);
        put(block[0], 0);
        close_arena();
    }
}
static void no_wait_where_finished_memory_would_do(void) { for_each_source(short_of_late); }

/* Growth records no event: what the stream has freed joins what it frees next. */
static void growth_of_chunks_records_nothing(void) {
    open_for(GPUPOOL_SOURCE_DEVICE, 64 * SIZE);
    put(get(4096, 1, 1), 1); /* with one stream alone, nothing has a mark */
    put(get(8 * SIZE, 0, 1), 0);
    put(get(300 * KIB, 0, 1), 0);
    long events = fake_calls("cuEventRecord");
    uint64_t gained = kit_stats(arena).chunks_gained;
    void *larger = get(9 * SIZE, 0, 2);
    CHECK(kit_stats(arena).chunks_gained > gained);
    CHECK_EQ(fake_calls("cuEventRecord"), events);
    put(larger, 0);
    close_arena();
}

/* What the door says of a thread's default stream that is not retired. */
static void records_of_a_stream(void) {
    open_for(GPUPOOL_SOURCE_MAPPED, 16 * SIZE);
    put(get(4096, 0, 0), 0);
    uint64_t before = kit_stats(arena).host_bytes;
    put(get(4096, 1, 1), 1);
    CHECK(kit_stats(arena).host_bytes <= before + 16 * 1024);
    CHECK(kit_stats(arena).host_bytes > before + 8 * 1024);
    close_arena();
}

static void after_the_work(gpupool_source source) {
    open_for(source, SIZE);
    void *first = get(SIZE, 0, 1);
    put(first, 0);
    CHECK_EQ(cudaStreamSynchronize(kit_stream[0]), cudaSuccess);
    void *other = get(SIZE, 1, 2);
    CHECK(other == first);
    CHECK_EQ(kit_stats(arena).host_syncs, 0);
    put(other, 1);
    close_arena();
}
static void finished_memory_is_for_everyone(void) { for_each_source(after_the_work); }

/* ---- three streams ---- */

/* Stream 0 has written and freed all; stream 1 takes a part of it, and stream 2 what 1 left and
   what 1 freed. A mark behind only stream 1's work would let 2 overtake 0. */
static void three_streams(gpupool_source source) {
    open_for(source, SIZE);
    put(get(SIZE, 0, 1), 0);
    void *part = get(SIZE / 4, 1, 2);
    void *rest = get(SIZE / 2, 2, 3);
    put(part, 1);
    void *reused = get(SIZE / 4, 2, 4);
    fake_run(kit_stream[2]);
    CHECK_EQ(fake_failures(), 0);
    put(rest, 2);
    put(reused, 2);
    void *all = get(SIZE, 3, 5);
    fake_run(kit_stream[3]);
    put(all, 3);
    close_arena();
}
static void three_streams_one_memory(void) { for_each_source(three_streams); }

/* The same by way of a block that no work ever used: its new owner inherits the older wait. */
static void unused_between(gpupool_source source) {
    open_for(source, SIZE);
    put(get(SIZE, 0, 1), 0);
    void *idle = kit_alloc(arena, SIZE, kit_stream[1]);
    put(idle, 1);
    void *next = get(SIZE, 2, 2);
    run_alone(2);
    put(next, 2);
    close_arena();
}
static void an_unused_block_passes_its_wait_on(void) { for_each_source(unused_between); }

/* Memory of two streams, merged into one run, needs both waits. */
static void merged(gpupool_source source) {
    open_for(source, SIZE);
    void *a = get(SIZE / 2, 0, 1), *b = get(SIZE / 2, 1, 2);
    put(a, 0);
    put(b, 1);
    void *all = get(SIZE, 2, 3);
    kit_fill(kit_stream[2], all, SIZE, 3);
    fake_run(kit_stream[0]);
    run_alone(2);
    fake_run(kit_stream[1]);
    run_alone(2);
    put(all, 2);
    close_arena();
}
static void merged_memory_needs_both_waits(void) { for_each_source(merged); }

/* A pending block that is split keeps its mark in every part. */
static void split(gpupool_source source) {
    open_for(source, SIZE);
    void *whole = kit_alloc(arena, SIZE, kit_stream[0]);
    kit_fill(kit_stream[0], whole, SIZE, 1);
    put(whole, 0);
    void *part[8];
    for (int i = 0; i < 8; i++) {
        part[i] = kit_alloc(arena, SIZE / 8, kit_stream[1 + i % 3]);
        kit_fill(kit_stream[1 + i % 3], part[i], SIZE / 8, 10 + i);
    }
    for (int i = 0; i < 3; i++)
        run_alone(1 + i);
    for (int i = 0; i < 8; i++) put(part[i], 1 + i % 3);
    close_arena();
}
static void split_memory_keeps_its_mark(void) { for_each_source(split); }

/* ---- the host waits only when nothing else helps ---- */

/* Smaller idle chunks cannot serve a larger block but stitched, behind a wait on the device; or
   else they must be given back, and that has to wait for the work on them. */
static void host_waits(int no_stitch) {
    arena = no_stitch ? kit_open_unstitched(8 * SIZE)
                      : kit_open_limited(GPUPOOL_SOURCE_MAPPED, 8 * SIZE);
    fake_mode(FAKE_STEPPED);
    void *small[8];
    for (int i = 0; i < 8; i++) small[i] = get(SIZE, i % 3, i);
    for (int i = 0; i < 8; i += 2) put(small[i], i % 3);
    void *large = kit_alloc(arena, 3 * SIZE + SIZE / 2, kit_stream[3]);
    if (large) kit_fill(kit_stream[3], large, 3 * SIZE + SIZE / 2, 9);
    CHECK_EQ(kit_stats(arena).host_syncs > 0, no_stitch);
    CHECK_EQ(kit_stats(arena).fence_waits > 0, !no_stitch);
    CHECK_EQ(fake_failures(), 0);
    for (int i = 3; i >= 0; i--)
        while (fake_step(kit_stream[i])) CHECK_EQ(fake_failures(), 0);
    if (large) put(large, 3);
    for (int i = 1; i < 8; i += 2) put(small[i], i % 3);
    close_arena();
}
static void a_stitch_makes_the_device_wait(void) { host_waits(0); }
static void without_stitches_the_host_waits(void) { host_waits(1); }

static void trim_never_takes_memory_in_use(gpupool_source source) {
    open_for(source, 4 * SIZE);
    void *block = get(SIZE, 0, 1);
    put(block, 0);
    size_t released = 0;
    CHECK_RESULT(gpupool_trim(arena, 0, &released), GPUPOOL_OK);
    fake_run(kit_stream[0]); /* would touch what is no longer there */
    CHECK_EQ(fake_failures(), 0);
    close_arena();
}
static void trim_leaves_unfinished_work_its_memory(void) {
    for_each_source(trim_never_takes_memory_in_use);
}

#endif

int main(void) {
    FAKE_TEST(the_same_stream_takes_its_memory_back);
    FAKE_TEST(a_larger_block_waits_for_nothing);
    FAKE_TEST(unfinished_memory_is_taken_behind_a_wait);
    FAKE_TEST(under_a_limit_the_device_waits);
    FAKE_TEST(the_last_of_many_frees);
    FAKE_TEST(growth_of_chunks_records_nothing);
    FAKE_TEST(records_of_a_stream);
    FAKE_TEST(no_wait_where_finished_memory_would_do);
    FAKE_TEST(finished_memory_is_for_everyone);
    FAKE_TEST(three_streams_one_memory);
    FAKE_TEST(an_unused_block_passes_its_wait_on);
    FAKE_TEST(merged_memory_needs_both_waits);
    FAKE_TEST(split_memory_keeps_its_mark);
    FAKE_TEST(a_stitch_makes_the_device_wait);
    FAKE_TEST(without_stitches_the_host_waits);
    FAKE_TEST(trim_leaves_unfinished_work_its_memory);
    return check_finish();
}
