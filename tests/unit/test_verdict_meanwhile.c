/* GPUPOOL_SITES: a verdict copies all runs first and counts the blocks of each line later. Another
   thread frees and allocates in between: the advice is about the blocks that were copied, and never
   about more than there are. */
// build: plain -fsanitize=address,undefined
#define GPUPOOL_SITES 1
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "arena_scene.h"

#if CHECK_FAKE

static void *block[13];

/* All of one line; the limit leaves room for four of them more. */
static void get_some(int first, int behind) {
    for (int i = first; i < behind; i++)
        block[i] = kit_alloc_at(arena, 4 * MIB, kit_stream[0], "model.c", 7);
}

static void put_some(int first, int behind) {
    for (int i = first; i < behind; i++) put(block[i], 0);
}

static void open_with(int count) {
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, ((size_t)count + 4) * 4 * MIB);
    get_some(0, count);
}

/* As gpi_alloc_give_up has it; `meanwhile` is the other thread, which needs the arena's lock. */
static gpupool_verdict judge(size_t bytes, void (*meanwhile)(void)) {
    gpi_siblings siblings;
    gpupool_verdict verdict;
    gpi_request request;
    gpi_scene scene;
    memset(&siblings, 0, sizeof siblings);
    memset(&request, 0, sizeof request);
    gpi_hand_request(&request, bytes, kit_stream[0], gpi_hand_origin("model.c", 8));
    request.units = gpi_verdict_units(bytes);
    request.align_units = 1;
    gpi_host_mutex_lock(&arena->growing);
    gpi_verdict_begin(arena, &request, &siblings, &verdict, &scene);
    meanwhile();
    gpi_verdict_judge(&verdict, &scene);
    gpi_verdict_end(&scene);
    gpi_host_mutex_unlock(&arena->growing);
    return verdict;
}

static void put_the_first_two(void) { put_some(0, 2); }

/* Ten were copied, so not every choice is tried, although so few are left. */
static void fewer_than_were_copied(void) {
    open_with(10);
    gpupool_verdict v = judge(28 * MIB, put_the_first_two);
    CHECK_EQ(v.holders[0].blocks, 8);
    CHECK_EQ(v.holders[0].enough, 4); /* three are missing, and one may lie across chunks */
    put_some(2, 10);
    kit_close(arena);
}

/* All ten would have to go: all that are left. */
static void no_more_than_are_left(void) {
    open_with(10);
    gpupool_verdict v = judge(56 * MIB, put_the_first_two);
    CHECK_EQ(v.holders[0].blocks, 8);
    CHECK_EQ(v.holders[0].enough, 8);
    put_some(2, 10);
    kit_close(arena);
}

static void put_all(void) { put_some(0, 4); }

static void none_is_left(void) {
    open_with(4);
    gpupool_verdict v = judge(20 * MIB, put_all);
    CHECK_EQ(v.holders[0].blocks, 0);
    CHECK_EQ(v.holders[0].enough, 0);
    kit_close(arena);
}

/* As many more come as were freed before the copy: of those in it `enough` have to go. */
static void three_more(int copied, size_t bytes, void (*get_them)(void), uint64_t enough) {
    open_with(copied + 3);
    put_some(copied, copied + 3);
    gpupool_verdict v = judge(bytes, get_them);
    CHECK_EQ(v.holders[0].blocks, copied + 3);
    CHECK_EQ(v.holders[0].enough, enough);
    put_some(0, copied + 3);
    kit_close(arena);
}

static void get_three(void) { get_some(7, 10); }
static void get_the_last_three(void) { get_some(10, 13); }

/* Of seven every choice is tried. */
static void more_than_were_copied(void) { three_more(7, 40 * MIB, get_three, 3); }

/* Ten are too many for that, and all of them would have to go. */
static void many_more_than_were_copied(void) {
    three_more(10, 68 * MIB, get_the_last_three, 10);
}
#endif

int main(void) {
    FAKE_TEST(fewer_than_were_copied);
    FAKE_TEST(no_more_than_are_left);
    FAKE_TEST(none_is_left);
    FAKE_TEST(more_than_were_copied);
    FAKE_TEST(many_more_than_were_copied);
    return check_finish();
}
