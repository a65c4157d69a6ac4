/* Begin, end and release of a scope cost the same however many scopes are kept. Counted in calls of
   CUDA, and of the records that a scope leaves; never in time. */
#include "gpupool.h"
#include "kit.h"

#if CHECK_FAKE

enum { FEW = 10, MANY = 2000 };

static gpupool_arena *arena;
static gpupool_capture *kept[MANY];

static gpupool_capture *begin_one(size_t bytes) {
    gpupool_capture *scope = NULL;
    void *block;
    CHECK_RESULT(gpupool_begin_capture(arena, kit_stream[0], &scope), GPUPOOL_OK);
    block = gpupool_alloc(arena, bytes, kit_stream[0]);
    CHECK(block);
    kit_free(arena, block, kit_stream[0]);
    CHECK_RESULT(gpupool_end_capture(scope), GPUPOOL_OK);
    return scope;
}

/* CUDA calls of one more scope from begin to release. */
static long calls_of_one(void) {
    long before = kit_calls();
    CHECK_RESULT(gpupool_release_capture(begin_one(1000)), GPUPOOL_OK);
    return kit_calls() - before;
}

static void keep(int from, int to) {
    for (int i = from; i < to; i++) kept[i] = begin_one(1000);
}

static void cost_is_the_same(void) {
    long with_few, with_many;
    arena = kit_open(0);
    keep(0, FEW);
    calls_of_one(); /* memory that is not there yet comes with the first */
    with_few = calls_of_one();
    keep(FEW, MANY);
    calls_of_one();
    with_many = calls_of_one();
    CHECK_EQ(with_many, with_few);
    for (int i = 0; i < MANY; i++) {
        long before = kit_calls();
        CHECK_RESULT(gpupool_release_capture(kept[i]), GPUPOOL_OK);
        if (i == 0) with_few = kit_calls() - before;
        CHECK_EQ(kit_calls() - before, with_few);
    }
    kit_close(arena);
}

/* A released scope's records serve the next one. */
static void records_are_used_again(void) {
    uint64_t host;
    arena = kit_open(0);
    calls_of_one();
    host = kit_stats(arena).host;
    for (int i = 0; i < 1000; i++) calls_of_one();
    CHECK_EQ(kit_stats(arena).host, host);
    CHECK_EQ(kit_stats(arena).pending.now, 0);
    kit_close(arena);
}

/* In any order, and never twice the same memory in two of them. */
static void in_any_order(void) {
    void *blocks[50];
    arena = kit_open(0);
    for (int i = 0; i < 50; i++) {
        CHECK_RESULT(gpupool_begin_capture(arena, kit_stream[i % 4], &kept[i]), GPUPOOL_OK);
        blocks[i] = gpupool_alloc(arena, 100000, kit_stream[i % 4]);
        CHECK(blocks[i]);
        kit_write(blocks[i], 100000, kit_stream[i % 4], i);
        CHECK_RESULT(gpupool_end_capture(kept[i]), GPUPOOL_OK);
    }
    for (int i = 0; i < 50; i++) kit_verify(blocks[i], 100000, kit_stream[i % 4], i);
    for (int i = 0; i < 50; i++)
        CHECK_RESULT(gpupool_release_capture(kept[i * 27 % 50]), GPUPOOL_OK);
    CHECK_EQ(kit_stats(arena).blocks, 0);
    kit_close(arena);
}

int main(void) {
    KIT_TEST(cost_is_the_same);
    KIT_TEST(records_are_used_again);
    KIT_TEST(in_any_order);
    return check_finish();
}

#else
int main(void) {
    check_skip("scopes", "counts fakecuda's calls");
    return check_finish();
}
#endif
