/* TREE by enumeration in 16 units, where runs have more orders and steps: every state of one list,
   and with anybody's memory beside a stream's list every state of a few runs (all: 291 million). */
// build: plain -O2
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "tree_calls.h"

#ifndef ONE_LANE_UNITS
#define ONE_LANE_UNITS 16
#endif
#ifndef LONG_RUNS
#define LONG_RUNS 4
#endif

/* ---- anybody's memory and a stream's list ---- */

static void every_state_of_a_few_long_runs(void) {
    model m = {.units = 16, .list_count = 2, .list = {GPI_LIST_ANY, FIRST}};
    char bound[40];
    snprintf(bound, sizeof bound, ", at most %d runs", LONG_RUNS);
    states = calls = 0;
    tree_open(&m);
    model_each(&m, 0, LONG_RUNS, visit);
    tree_close();
    report(&m, "anybody's memory, one stream", bound);
}

/* ---- one list ---- */

/* With one list a call is undone by another: what take cuts out, put makes one again. So the states
   are a graph whose edges are blocks, and going there and back over each makes every call. Taking
   blocks from left to right meets each state once, in place. The runs are compared after each call,
   lists and index once in a state, after all of its calls. */

static struct block { int unit, units; } blocks[ONE_LANE_UNITS];
static int block_count;

static gpi_run *put_block(model *m, struct block b) {
    gpi_run *run = gpi_tree_live(&tree, TREE_BASE + (uint64_t)b.unit);
    gpi_tree_end_life(&tree, run);
    memset(&m->owner[b.unit], (int)m->list[0], (size_t)b.units);
    return tree_put(run, m->list[0], UINT64_MAX);
}

static void take_block(model *m, struct block b, gpi_run *from) {
    gpi_run *run = gpi_tree_take(&tree, from, TREE_BASE + (uint64_t)b.unit, (uint64_t)b.units);
    gpi_tree_make_live(&tree, run, 0);
    model_take(m, b.unit, b.units);
}

static void there_and_back(model *m, struct block b, tree_code here) {
    gpi_run *run = put_block(m, b);
    if (tree_read(m->units) != model_code(m))
        check_fail(__FILE__, __LINE__, "%s after put of %d", model_text(m), b.unit);
    take_block(m, b, run);
    if (tree_read(m->units) != here)
        check_fail(__FILE__, __LINE__, "%s after take of %d", model_text(m), b.unit);
    calls += 2;
}

/* All states that extend this one to the right of its last block, which ends at `from`. */
static void visit_blocks(model *m, int from) {
    tree_code here = model_code(m);
    gpi_run *rest;
    states++;
    for (int i = 0; i < block_count; i++) there_and_back(m, blocks[i], here);
    if (gpi_check_tree(&tree) != 0) check_fail(__FILE__, __LINE__, "%s check", model_text(m));
    rest = tree_run(from);
    for (int unit = from; unit < m->units; unit++)
        for (int units = 1; unit + units <= m->units; units++) {
            struct block b = {unit, units};
            take_block(m, b, rest);
            blocks[block_count++] = b;
            visit_blocks(m, unit + units);
            block_count--;
            rest = put_block(m, b);
        }
}

static void every_state_of_one_lane(void) {
    model m = {.units = ONE_LANE_UNITS, .list_count = 1, .list = {FIRST}};
    memset(m.owner, FIRST, sizeof m.owner);
    states = calls = 0;
    tree_open(&m);
    visit_blocks(&m, 0);
    CHECK_EQ(states, model_states(&m));
    expect_state(&m);
    expect_sums(&m);
    tree_close();
    report(&m, "one list", "");
}

int main(void) {
    TEST(every_state_of_one_lane);
    TEST(every_state_of_a_few_long_runs);
    return check_finish();
}
