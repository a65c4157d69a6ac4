/* Wrong calls of TREE, in every state of 8 units with anybody's memory and two streams: an
   assertion refuses each, and has changed nothing by then. */
// build: plain -O2
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>

static jmp_buf refusal;
static int may_refuse;

static _Noreturn void refused(const char *truth) {
    if (may_refuse) longjmp(refusal, 1);
    printf("assertion %s in a right call\n", truth);
    exit(EXIT_FAILURE);
}

#define GPUPOOL_ASSERT(truth) ((truth) ? (void)0 : refused(#truth))
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "tree_kit.h"

#ifndef MISUSE_UNITS
#define MISUSE_UNITS 8
#endif

/* ---- the wrong calls: each of a run, with the run's own figures ---- */

static void lay_down(gpi_run *run) { gpi_tree_end_life(&tree, run); }
static void bring_alive(gpi_run *run) { gpi_tree_make_live(&tree, run, 0); }
static void split_inside(gpi_run *run) { gpi_tree_split(&tree, run, run->unit + 1); }
static void split_before(gpi_run *run) { gpi_tree_split(&tree, run, run->unit - 1); }
static void split_at_start(gpi_run *run) { gpi_tree_split(&tree, run, run->unit); }
static void split_at_end(gpi_run *run) { gpi_tree_split(&tree, run, run->unit + run->units); }
static void split_without_spare(gpi_run *run) {
    tree.spare = NULL;
    gpi_tree_split(&tree, run, run->unit + 1);
}
static void weld_to_itself(gpi_run *run) { gpi_tree_join(&tree, run, run); }
static void weld_to_left(gpi_run *run) { gpi_tree_join(&tree, run->prev, run); }
static void weld_to_right(gpi_run *run) { gpi_tree_join(&tree, run, run->next); }
static void weld_backwards(gpi_run *run) { gpi_tree_join(&tree, run->next, run); }
static void remove_chunk(gpi_run *run) { gpi_tree_remove_chunk(&tree, run); }
static void drop_lane(gpi_run *run) { gpi_tree_list_drop(&tree, run->list); }
static void take_all(gpi_run *run) { gpi_tree_take(&tree, run, run->unit, run->units); }
static void take_more(gpi_run *run) { gpi_tree_take(&tree, run, run->unit, run->units + 1); }
static void take_before(gpi_run *run) { gpi_tree_take(&tree, run, run->unit - 1, run->units); }
static void take_nothing(gpi_run *run) { gpi_tree_take(&tree, run, run->unit, 0); }
static void put_held(gpi_run *run) { gpi_tree_put(&tree, run, GPI_LIST_ANY, 0); }

enum { FREE = 1, LIVE = 2, HELD = 4, LEFT = 8, RIGHT = 16 }; /* LEFT: with a neighbour there */

static const struct {
    void (*call)(gpi_run *);
    int of, needs;
    const char *name;
} wrong[] = {
    {lay_down, FREE | HELD, 0, "lay_down"},
    {bring_alive, FREE | LIVE, 0, "bring_alive"},
    {split_inside, FREE | LIVE, 0, "split"},
    {split_before, HELD, 0, "split before the start"},
    {split_at_start, HELD, 0, "split at the start"},
    {split_at_end, HELD, 0, "split at the end"},
    {split_without_spare, HELD, 0, "split without a spare struct"},
    {weld_to_itself, FREE | LIVE | HELD, 0, "weld to itself"},
    {weld_to_left, FREE | LIVE | HELD, LEFT, "weld to the left"},
    {weld_to_right, FREE | LIVE | HELD, RIGHT, "weld to the right"},
    {weld_backwards, FREE | LIVE | HELD, RIGHT, "weld backwards"},
    {remove_chunk, FREE | LIVE, 0, "remove_chunk"},
    {remove_chunk, HELD, LEFT, "remove_chunk, not the first run"},
    {remove_chunk, HELD, RIGHT, "remove_chunk, not the last run"},
    {drop_lane, FREE, 0, "lane_drop"},
    {take_all, LIVE | HELD, 0, "take of a run that is not free"},
    {take_more, FREE, 0, "take of more than the run"},
    {take_before, FREE, 0, "take from before the run"},
    {take_nothing, FREE, 0, "take of no units"},
    {put_held, FREE | LIVE, 0, "put of a run that is not held"},
};
#define WRONG (sizeof wrong / sizeof wrong[0])
static uint64_t refusals[WRONG];

/* ---- each of them, at each run ---- */

static int is_refused(void (*call)(gpi_run *), gpi_run *run) {
    if (setjmp(refusal)) {
        may_refuse = 0;
        return 1;
    }
    may_refuse = 1;
    call(run);
    may_refuse = 0;
    return 0;
}

/* A struct taken for the call may be lost with it, so the counts of spare ones are put back. */
static void try_wrong(size_t i, gpi_run *run, const model *m) {
    gpi_tree before = tree;
    int free_of_it = !is_refused(wrong[i].call, run);
    check_case("%s %s of unit %d", model_text(m), wrong[i].name, (int)(run->unit - TREE_BASE));
    if (free_of_it) {
        check_fail(__FILE__, __LINE__, "nothing refuses this call");
        check_failed++;
        exit(check_finish()); /* the tree is in pieces */
    }
    tree.spare = before.spare;
    tree.spare_count = before.spare_count;
    if (memcmp(&before, &tree, sizeof tree) != 0)
        check_fail(__FILE__, __LINE__, "a refused call has changed the tree");
    refusals[i]++;
}

static void try_all(gpi_run *run, int kind, const model *m) {
    if (run->prev) kind |= LEFT;
    if (run->next) kind |= RIGHT;
    for (size_t i = 0; i < WRONG; i++)
        if (wrong[i].of & kind && (wrong[i].needs & kind) == wrong[i].needs) try_wrong(i, run, m);
}

static void visit(const model *m) {
    tree_build(m);
    for (gpi_run *run = tree_first; run; run = run->next) {
        uint32_t list = run->list;
        unsigned kind = kind_of(run);
        try_all(run, list == GPI_LIST_LIVE ? LIVE : FREE, m);
        tree_hold(run);
        try_all(run, HELD, m);
        if (list == GPI_LIST_LIVE) gpi_tree_make_live(&tree, run, 0);
        else tree_put(run, kind, 0);
    }
    expect_state(m);
}

static void wrong_calls_are_refused(void) {
    model m = {.units = MISUSE_UNITS, .list_count = 3,
               .list = {GPI_LIST_ANY, FIRST, SECOND}};
    uint64_t all = 0;
    tree_open(&m);
    model_each(&m, 0, m.units, visit);
    tree_close();
    for (size_t i = 0; i < WRONG; i++) {
        all += refusals[i];
        CHECK(refusals[i] > 0);
    }
    printf("%llu wrong calls refused\n", (unsigned long long)all);
}

int main(void) {
    TEST(wrong_calls_are_refused);
    return check_finish();
}
