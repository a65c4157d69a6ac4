/* What verdicts and figures say of memory that tags set apart: reserves that are awake, asleep, or
   the request's own, blocks that a tag's graph keeps, and budgets. */
// build: plain
// build: check2 -O1 -DGPUPOOL_CHECK=2
#include "gpupool.h"
#include "verdict_kit.h"
#include "tag_kit.h"

#if CHECK_FAKE

enum { WEIGHTS = 1, LIMIT = 20 };

/* Two holders, of one chunk: what they hold is less than what a large request lacks. */
static void *small[2];
static void open_with_reserve(void) {
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, LIMIT * MIB);
    CHECK_EQ(make_tag("weights", 1, 4 * MIB), WEIGHTS);
    for (int i = 0; i < 2; i++) small[i] = must_take((i ? 300 : 512) * KIB, 0, 0);
}

/* It says that all blocks have to go, and then the request is met. */
static void all_blocks_have_to_go(size_t bytes, int tag) {
    refused(bytes, tag, GPUPOOL_E_OUT_OF_MEMORY);
    if (!strstr(last_verdict().sentence, "free all blocks, which hold 812 KiB"))
        check_fail(__FILE__, __LINE__, "%s", last_verdict().sentence);
    for (int i = 0; i < 2; i++) give(small[i], 0);
    give(must_take(bytes, tag, 0), 0);
    close_tags();
}

static void a_reserve_of_others_is_in_the_way(void) {
    open_with_reserve();
    refused((LIMIT - 3) * MIB, 0, GPUPOOL_E_OUT_OF_MEMORY);
    CHECK(strstr(last_verdict().sentence, "free") == NULL);
    all_blocks_have_to_go((LIMIT - 4) * MIB, 0);
}

static void but_not_while_it_sleeps(void) {
    open_with_reserve();
    CHECK_RESULT(sleep_tag(WEIGHTS, GPUPOOL_DISCARD), GPUPOOL_OK);
    all_blocks_have_to_go(LIMIT * MIB, 0);
}

static void its_own_reserve_is_the_requests(void) {
    open_with_reserve();
    all_blocks_have_to_go(LIMIT * MIB, WEIGHTS);
}

/* Where nothing is stitched, a reserve that is free makes no room for a larger block: it stays. */
static void a_reserve_is_not_given_back(void) {
    ring = NULL;
    memset(slot, 0, sizeof slot);
    arena = kit_open_unstitched(18 * MIB);
    CHECK_EQ(make_tag("weights", 1, 8 * MIB), WEIGHTS);
    void *behind = must_take(2 * MIB, 0, 0);
    refused(12 * MIB, WEIGHTS, GPUPOOL_E_OUT_OF_MEMORY);
    CHECK_EQ(last_verdict().cause, GPUPOOL_CAUSE_FRAGMENTED);
    CHECK_EQ(last_verdict().raise_bytes, 4 * MIB);
    CHECK_RESULT(gpupool_set_limit(arena, 22 * MIB), GPUPOOL_OK);
    give(must_take(12 * MIB, WEIGHTS, 0), 0);
    give(behind, 0);
    close_tags();
}

/* ---- twelve blocks, each a chunk, that fill an arena ---- */

static void *many[12];

static void take_many(int from, int to, int tag) {
    for (int i = from; i < to; i++) many[i] = must_take(2 * MIB, tag, 0);
}

static void give_many(int from, int to) {
    for (int i = from; i < to; i++) give(many[i], 0);
}

/* All with the tag, whose reserve is so much of the arena. */
static void open_with_many(size_t reserve) {
    open_tags(0, 24 * MIB);
    CHECK_EQ(make_tag("weights", 1, reserve), WEIGHTS);
    take_many(0, 12, WEIGHTS);
    CHECK_EQ(kit_reserved(arena), 24 * MIB);
}

/* So many of them would have to go for a block of twice their size. */
static void a_larger_one_needs(int enough, int tag) {
    refused(4 * MIB, tag, GPUPOOL_E_OUT_OF_MEMORY);
    CHECK_EQ(last_verdict().holders[0].blocks, 12);
    CHECK_EQ(last_verdict().holders[0].enough, enough);
}

/* To free blocks that sleep wins nothing: which of a size are enough is not known, so it is all. */
static void blocks_that_sleep_win_nothing(void) {
    open_tags(1, LIMIT * MIB);
    take_many(0, 2, WEIGHTS);
    CHECK_RESULT(sleep_tag(WEIGHTS, GPUPOOL_DISCARD), GPUPOOL_OK);
    take_many(2, 12, 0);
    a_larger_one_needs(12, 0);
    give_many(2, 12);
    CHECK_RESULT(wake_tag(WEIGHTS), GPUPOOL_OK);
    give_many(0, 2);
    close_tags();
}

/* Of many blocks, each a chunk of the tag's reserve: a few of them make a larger one of the tag. */
static void many_blocks_of_a_reserve(void) {
    open_with_many(24 * MIB);
    a_larger_one_needs(3, WEIGHTS); /* as if one lay across two chunks */
    for (int i = 0; i < 9; i += 4) give(many[i], 0);
    give(must_take(4 * MIB, WEIGHTS, 0), 0);
    for (int i = 1; i < 12; i += 4) give_many(i, i + 3);
    close_tags();
}

/* A reserve is not given back for others: of many blocks it may be those in it that are freed. */
static void many_blocks_of_which_some_are_in_a_reserve(void) {
    open_with_many(4 * MIB);
    a_larger_one_needs(12, 0);
    give_many(0, 3);
    refused(4 * MIB, 0, GPUPOOL_E_OUT_OF_MEMORY);
    give_many(3, 12);
    give(must_take(4 * MIB, 0, 0), 0);
    close_tags();
}

/* ---- budgets ---- */

/* Fills what the next calls have on their stack. */
static void fill_the_stack(void) {
    volatile char room[64 << 10];
    for (size_t i = 0; i < sizeof room; i++) room[i] = 0x55;
}

/* A budget says nothing of the arena's memory, whatever was on the stack. */
static void a_budget_has_no_other_numbers(void) {
    open_tags(1, 0);
    CHECK_RESULT(gpupool_set_tag_limits(arena, WEIGHTS, 3 * MIB, 0), GPUPOOL_OK);
    fill_the_stack();
    CHECK(take(4 * MIB, WEIGHTS, 0) == NULL);
    gpupool_verdict v = last_verdict();
    CHECK_EQ(v.cause, GPUPOOL_CAUSE_TAG);
    CHECK_EQ(v.tag, WEIGHTS);
    CHECK_EQ(v.limit_bytes, 3 * MIB);
    CHECK_EQ(v.asked_bytes, 4 * MIB);
    CHECK_EQ(v.granted_bytes, 0);
    CHECK_EQ(v.reserved_bytes, 0);
    CHECK_EQ(v.largest_block_bytes, 0);
    CHECK_EQ(v.pending_bytes, 0);
    CHECK_EQ(v.kept_bytes, 0);
    CHECK_EQ(v.device_free_bytes, 0);
    CHECK_EQ(v.device_total_bytes, 0);
    CHECK_EQ(v.others_bytes, 0);
    CHECK_EQ(v.siblings_bytes, 0);
    CHECK_EQ(v.fits_bytes, 0);
    CHECK_EQ(v.pending_streams, 0);
    for (int i = 0; i < GPUPOOL_HOLDERS; i++) CHECK_EQ(v.holders[i].blocks, 0);
    close_tags();
}

/* What a verdict advises of a budget is enough, and a byte less is not. */
static void a_budget_is_raised_as_far_as_told(void) {
    open_tags(1, 0);
    CHECK_RESULT(gpupool_set_tag_limits(arena, WEIGHTS, 3 * MIB, 0), GPUPOOL_OK);
    void *block = must_take(2 * MIB, WEIGHTS, 0);
    refused(4 * MIB, WEIGHTS, GPUPOOL_E_OUT_OF_MEMORY);
    CHECK_EQ(last_verdict().cause, GPUPOOL_CAUSE_TAG);
    CHECK_EQ(last_verdict().asked_bytes, 4 * MIB);
    size_t raised = 3 * MIB + (size_t)last_verdict().raise_bytes;
    CHECK_RESULT(gpupool_set_tag_limits(arena, WEIGHTS, raised - 1, 0), GPUPOOL_OK);
    refused(4 * MIB, WEIGHTS, GPUPOOL_E_OUT_OF_MEMORY);
    CHECK_EQ(last_verdict().raise_bytes, 1);
    CHECK_RESULT(gpupool_set_tag_limits(arena, WEIGHTS, raised, 0), GPUPOOL_OK);
    give(must_take(4 * MIB, WEIGHTS, 0), 0);
    give(block, 0);
    close_tags();
}

/* ---- figures ---- */

/* What is free in a tag's reserve, or will be, is so for nobody else, and no piece of what is. */
static void a_free_reserve_of_others(void) {
    void *block[4];
    open_tags(0, LIMIT * MIB);
    CHECK_EQ(make_tag("weights", 1, 8 * MIB), WEIGHTS);
    for (int i = 0; i < 4; i++) block[i] = must_take(2 * MIB, WEIGHTS, 0);
    void *rest = must_take((LIMIT - 8) * MIB, 0, 0);
    give(block[0], 0);
    CHECK_RESULT(gpupool_wait_all(arena), GPUPOOL_OK);
    fake_mode(FAKE_STEPPED);
    kit_mark(kit_stream[0], block[2], 2 * MIB, 1);
    give(block[2], 0);
    gpupool_verdict verdict = would_not_fit(arena, UNIT, GPUPOOL_CAUSE_LIMIT);
    CHECK_EQ(verdict.pending_bytes, 2 * MIB);
    CHECK_EQ(verdict.granted_bytes, (LIMIT - 4) * MIB);
    fake_mode(FAKE_EAGER);
    for (int i = 1; i < 4; i += 2) give(block[i], 0);
    give(rest, 0);
    close_tags();
}

/* Blocks that sleep hold nothing. */
static void what_sleeps_is_not_granted(void) {
    open_tags(1, LIMIT * MIB);
    void *asleep = must_take(4 * MIB, WEIGHTS, 0), *awake = must_take(2 * MIB, 0, 0);
    CHECK_EQ(kit_available(arena), (LIMIT - 6) * MIB);
    CHECK_RESULT(sleep_tag(WEIGHTS, GPUPOOL_DISCARD), GPUPOOL_OK);
    CHECK_EQ(kit_available(arena), (LIMIT - 2) * MIB);
    CHECK_EQ(would_not_fit(arena, LIMIT * MIB, GPUPOOL_CAUSE_LIMIT).granted_bytes, 2 * MIB);
    CHECK_RESULT(wake_tag(WEIGHTS), GPUPOOL_OK);
    give(asleep, 0);
    give(awake, 0);
    close_tags();
}

/* Nor do they when one tag is to wake, and another sleeps on. */
static void what_sleeps_on_is_not_granted(void) {
    void *asleep[2], *awake;
    open_tags(2, LIMIT * MIB);
    for (int i = 0; i < 2; i++) asleep[i] = must_take((size_t)(i + 2) * 2 * MIB, WEIGHTS + i, 0);
    awake = must_take(2 * MIB, 0, 0);
    for (int i = 0; i < 2; i++)
        CHECK_RESULT(sleep_tag(WEIGHTS + i, GPUPOOL_DISCARD), GPUPOOL_OK);
    CHECK_RESULT(gpupool_set_limit(arena, 3 * MIB), GPUPOOL_OK);
    CHECK_RESULT(wake_tag(WEIGHTS), GPUPOOL_E_OUT_OF_MEMORY);
    CHECK_EQ(last_verdict().granted_bytes, 2 * MIB);
    CHECK_RESULT(gpupool_set_limit(arena, LIMIT * MIB), GPUPOOL_OK);
    for (int i = 0; i < 2; i++) CHECK_RESULT(wake_tag(WEIGHTS + i), GPUPOOL_OK);
    for (int i = 0; i < 2; i++) give(asleep[i], 0);
    give(awake, 0);
    close_tags();
}

/* An open scope has again what it freed itself; an ended one keeps it, as far as it is awake. */
static void what_a_tags_graph_keeps(void) {
    gpupool_capture *scope = NULL;
    gpupool_verdict verdict;
    open_tags(1, LIMIT * MIB);
    give(must_take(4 * MIB, WEIGHTS, 0), 0);
    size_t available = kit_available(arena);
    CHECK_RESULT(gpupool_begin_capture(arena, kit_stream[0], &scope), GPUPOOL_OK);
    give(must_take(4 * MIB, WEIGHTS, 0), 0);
    CHECK_EQ(kit_available(arena), available);
    verdict = would_not_fit(arena, LIMIT * MIB, GPUPOOL_CAUSE_LIMIT);
    CHECK_EQ(verdict.kept_bytes, 4 * MIB);
    CHECK_RESULT(gpupool_end_capture(scope), GPUPOOL_OK);
    CHECK_EQ(kit_available(arena), available - 4 * MIB);
    CHECK_RESULT(sleep_tag(WEIGHTS, GPUPOOL_DISCARD), GPUPOOL_OK);
    verdict = would_not_fit(arena, (LIMIT + 1) * MIB, GPUPOOL_CAUSE_LIMIT);
    CHECK_EQ(verdict.kept_bytes, 0);
    CHECK_RESULT(wake_tag(WEIGHTS), GPUPOOL_OK);
    CHECK_EQ(kit_available(arena), available - 4 * MIB);
    CHECK_RESULT(gpupool_release_capture(scope), GPUPOOL_OK);
    CHECK_EQ(kit_available(arena), available);
    close_tags();
}
#endif

int main(void) {
    FAKE_TEST(a_reserve_of_others_is_in_the_way);
    FAKE_TEST(but_not_while_it_sleeps);
    FAKE_TEST(its_own_reserve_is_the_requests);
    FAKE_TEST(a_reserve_is_not_given_back);
    FAKE_TEST(blocks_that_sleep_win_nothing);
    FAKE_TEST(many_blocks_of_a_reserve);
    FAKE_TEST(many_blocks_of_which_some_are_in_a_reserve);
    FAKE_TEST(a_budget_has_no_other_numbers);
    FAKE_TEST(a_budget_is_raised_as_far_as_told);
    FAKE_TEST(a_free_reserve_of_others);
    FAKE_TEST(what_sleeps_is_not_granted);
    FAKE_TEST(what_sleeps_on_is_not_granted);
    FAKE_TEST(what_a_tags_graph_keeps);
    return check_finish();
}
