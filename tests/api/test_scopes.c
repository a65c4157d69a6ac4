/* Nested scopes: what a phase has used, and RMM's law of merging it into the phase around. */
// build: plain -fsanitize=address,undefined
#include "fail_malloc.h"
#include "gpupool.h"
#include "arena_kit.h"

#define DEPTH 6
#define SLOTS 40
#define COUNTERS 5

static int64_t below_zero(uint64_t now) { return (int64_t)now; }

static void a_phase_counts_from_zero(void) {
    gpupool_arena *arena = kit_open_limited(GPUPOOL_SOURCE_AUTO, 64 * MIB);
    gpupool_stats s;
    void *before = kit_alloc(arena, 3 * MIB, kit_stream[0]);
    CHECK_RESULT(gpupool_begin_phase(arena), GPUPOOL_OK);
    void *a = kit_alloc(arena, 2 * MIB, kit_stream[0]), *b = kit_alloc(arena, MIB, kit_stream[0]);
    CHECK_RESULT(gpupool_free(arena, a, kit_stream[0]), GPUPOOL_OK);
    CHECK_RESULT(gpupool_end_phase(arena, &s), GPUPOOL_OK);
    CHECK_EQ(s.struct_bytes, sizeof s);
    CHECK_EQ(s.requested.now, MIB);
    CHECK_EQ(s.requested.peak, 3 * MIB);
    CHECK_EQ(s.requested.total, 3 * MIB);
    CHECK_EQ(s.blocks.now, 1);
    CHECK_EQ(s.blocks.peak, 2);
    CHECK_EQ(s.allocs, 2);
    CHECK_EQ(s.frees, 1);
    CHECK_EQ(s.limit_bytes, 64 * MIB); /* of the moment */
    s = kit_stats(arena);
    CHECK_EQ(s.requested.now, 4 * MIB);
    CHECK_EQ(s.requested.peak, 6 * MIB);
    CHECK_EQ(s.allocs, 3);
    CHECK_RESULT(gpupool_free(arena, before, kit_stream[0]), GPUPOOL_OK);
    CHECK_RESULT(gpupool_free(arena, b, kit_stream[0]), GPUPOOL_OK);
    kit_close(arena);
}

static void a_phase_may_end_below_zero(void) {
    gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_AUTO);
    gpupool_stats s;
    void *block = kit_alloc(arena, 5 * MIB, kit_stream[0]);
    CHECK_RESULT(gpupool_begin_phase(arena), GPUPOOL_OK);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    CHECK_RESULT(gpupool_end_phase(arena, &s), GPUPOOL_OK);
    CHECK_EQ(below_zero(s.requested.now), -(int64_t)(5 * MIB));
    CHECK_EQ(below_zero(s.blocks.now), -1);
    CHECK_EQ(s.requested.peak, 0);
    CHECK_EQ(s.requested.total, 0);
    kit_close(arena);
}

/* ---- the law, against a stack that follows it to the letter ---- */

typedef struct level { int64_t now, peak, total; } level;

static level stack[DEPTH + 1];
static int depth;

static void model_add(int64_t amount) { /* only the innermost counts; popping merges */
    level *top = &stack[depth];
    top->now += amount;
    if (amount > 0) top->total += amount;
    if (top->now > top->peak) top->peak = top->now;
}

static void model_pop(void) {
    level inner = stack[depth], *outer = &stack[--depth];
    if (outer->now + inner.peak > outer->peak) outer->peak = outer->now + inner.peak;
    outer->now += inner.now;
    outer->total += inner.total;
}

static void same_level(gpupool_counter counter, level expected) {
    CHECK_EQ(below_zero(counter.now), expected.now);
    CHECK_EQ(counter.peak, expected.peak);
    CHECK_EQ(counter.total, expected.total);
}

static void one_step(gpupool_arena *arena, uint64_t *random, void **block, size_t *bytes) {
    uint64_t what = check_below(random, 10);
    size_t i = (size_t)check_below(random, SLOTS);
    gpupool_stats s;
    if (what == 0 && depth < DEPTH) {
        CHECK_RESULT(gpupool_begin_phase(arena), GPUPOOL_OK);
        stack[++depth] = (level){0, 0, 0};
    } else if (what == 1 && depth > 0) {
        CHECK_RESULT(gpupool_end_phase(arena, &s), GPUPOOL_OK);
        same_level(s.requested, stack[depth]);
        model_pop();
    } else if (block[i]) {
        CHECK_RESULT(gpupool_free(arena, block[i], kit_stream[0]), GPUPOOL_OK);
        model_add(-(int64_t)bytes[i]);
        block[i] = NULL;
    } else {
        bytes[i] = 1 + (size_t)check_below(random, 100 * KIB);
        block[i] = kit_alloc(arena, bytes[i], kit_stream[0]);
        model_add((int64_t)bytes[i]);
    }
    if (depth == 0) same_level(kit_stats(arena).requested, stack[0]);
}

static void scopes_follow_the_law(void) {
    gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_DEVICE);
    void *block[SLOTS] = {NULL};
    size_t bytes[SLOTS] = {0};
    uint64_t random = 11;
    memset(stack, 0, sizeof stack);
    depth = 0;
    for (int step = 0; step < 6000; step++) {
        check_case("seed 11, step %d", step);
        one_step(arena, &random, block, bytes);
        if (step % 50 == 0) CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    }
    for (size_t i = 0; i < SLOTS; i++)
        CHECK_RESULT(gpupool_free(arena, block[i], kit_stream[0]), GPUPOOL_OK);
    kit_close(arena);
}

/* ---- the edges ---- */

static void the_arena_s_life_is_told_within_a_scope(void) {
    gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_AUTO);
    void *large = kit_alloc(arena, 8 * MIB, kit_stream[0]);
    CHECK_RESULT(gpupool_free(arena, large, kit_stream[0]), GPUPOOL_OK);
    CHECK_RESULT(gpupool_begin_phase(arena), GPUPOOL_OK);
    CHECK_EQ(kit_stats(arena).requested.peak, 8 * MIB);
    CHECK_RESULT(gpupool_reset_peaks(arena), GPUPOOL_OK);
    CHECK_EQ(kit_stats(arena).requested.peak, 0);
    CHECK_RESULT(gpupool_end_phase(arena, NULL), GPUPOOL_OK);
    CHECK_EQ(kit_stats(arena).requested.peak, 0);
    kit_close(arena);
}

static void a_pop_too_many(void) {
    gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_AUTO);
    gpupool_stats s;
    memset(&s, 0x55, sizeof s);
    CHECK_RESULT(gpupool_end_phase(arena, &s), GPUPOOL_E_ARGUMENT);
    CHECK_EQ(s.struct_bytes, 0x5555555555555555u);
    CHECK(strstr(gpupool_last_error(), "is in no phase") != NULL);
    CHECK_RESULT(gpupool_begin_phase(NULL), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(gpupool_end_phase(NULL, &s), GPUPOOL_E_ARGUMENT);
    kit_close(arena);
}

static void open_scopes_go_with_the_arena(void) {
    long live = fail_malloc_live;
    gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_AUTO);
    for (int i = 0; i < 3; i++) CHECK_RESULT(gpupool_begin_phase(arena), GPUPOOL_OK);
    fail_malloc_nth(1, 1);
    CHECK_RESULT(gpupool_begin_phase(arena), GPUPOOL_E_HOST_MEMORY);
    fail_malloc_nth(0, 0);
    kit_close(arena);
    CHECK_EQ(fail_malloc_live, live);
}

int main(void) {
    ARENA_TEST(a_phase_counts_from_zero);
    ARENA_TEST(a_phase_may_end_below_zero);
    ARENA_TEST(scopes_follow_the_law);
    ARENA_TEST(the_arena_s_life_is_told_within_a_scope);
    ARENA_TEST(a_pop_too_many);
    ARENA_TEST(open_scopes_go_with_the_arena);
    return check_finish();
}
