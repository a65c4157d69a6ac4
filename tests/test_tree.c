/* TREE by enumeration: every state of a small chunk and every call in it, against the naive model.
   A state is the sequence of its runs, each a block or free in a lane. Each is made anew in the tree
   for each call, and what the call leaves is compared whole. */
// build: plain -O2 -g
// build: asan -O1 -g -fsanitize=address,undefined -DFEW_UNITS=6 -DLONG_RUNS=3
#define GPUPOOL_IMPLEMENTATION
#include "../gpupool.h"
#include "tree_kit.h"
#include "tree_ask.h"

#ifndef FEW_UNITS
#define FEW_UNITS 8 /* of which every state is met */
#endif
#ifndef LONG_RUNS
#define LONG_RUNS 4 /* of which 16 units are made */
#endif

static uint64_t states, calls;
static void (*arrived)(const model *m); /* or NULL */

/* ---- one call ---- */

static struct { uint64_t splits, merges; int runs; } was;

static void begin(const model *m, const char *call, int a, int b, uint64_t c) {
    check_case("%s %s %d %d %llu", model_text(m), call, a, b, (unsigned long long)c);
    tree_build(m);
    was.splits = tree.splits;
    was.merges = tree.merges;
    was.runs = model_runs(m);
    calls++;
}

/* Each split makes one run more, each merge one less, and no call here needs both. */
static void end(const model *m) {
    int runs = model_runs(m);
    CHECK_EQ(tree.splits - was.splits, runs > was.runs ? runs - was.runs : 0);
    CHECK_EQ(tree.merges - was.merges, runs < was.runs ? was.runs - runs : 0);
    expect_state(m);
    expect_sums(m);
    if (arrived) arrived(m);
}

static void call_take(const model *m, int from, int unit, int units) {
    uint64_t first = TREE_BASE + (uint64_t)unit;
    model after = *m;
    gpi_run *run;
    begin(m, "take", unit, units, 0);
    run = gpi_tree_take(&tree, tree_run(from), first, (uint64_t)units);
    CHECK(run->lane == LANE_HELD && run->unit == first && run->units == (uint64_t)units);
    gpi_tree_bring_alive(&tree, run, 0);
    model_take(&after, unit, units);
    end(&after);
}

static void call_put(const model *m, int unit, unsigned lane, uint64_t absorb_units) {
    model after = *m;
    gpi_run *run;
    begin(m, "put", unit, (int)lane, absorb_units);
    run = tree_run(unit);
    gpi_tree_lay_down(&tree, run);
    run = gpi_tree_put(&tree, run, lane, absorb_units);
    CHECK(run->lane == lane && TREE_BASE + (uint64_t)unit - run->unit < run->units);
    model_put(&after, unit, lane, absorb_units);
    end(&after);
}

static void call_pour(const model *m, unsigned from, unsigned to) {
    model after = *m;
    begin(m, "pour", (int)from, (int)to, 0);
    gpi_tree_pour(&tree, from, to);
    model_pour(&after, from, to);
    end(&after);
}

static void take_all_parts(const model *m, int unit) {
    int run_end = model_end(m, unit);
    for (int start = unit; start < run_end; start++)
        for (int units = 1; units <= run_end - start; units++) call_take(m, unit, start, units);
}

static void put_into_all_lanes(const model *m, int unit) {
    for (int i = 0; i < m->lane_count; i++) {
        call_put(m, unit, m->lane[i], 0);
        call_put(m, unit, m->lane[i], (uint64_t)(model_end(m, unit) - unit));
        call_put(m, unit, m->lane[i], UINT64_MAX);
    }
}

static void make_every_call(const model *m) {
    for (int unit = 0; unit < m->units; unit = model_end(m, unit)) {
        if (model_is_free(m, unit)) take_all_parts(m, unit);
        else put_into_all_lanes(m, unit);
    }
    for (int from = 0; from < m->lane_count; from++)
        for (int to = 0; to < m->lane_count; to++)
            if (m->lane[from] >= LANE_STREAMS && m->lane[to] != LANE_BARE && to != from)
                call_pour(m, m->lane[from], m->lane[to]);
}

static void visit(const model *m) {
    states++;
    check_case("%s", model_text(m));
    tree_build(m);
    expect_state(m);
    ask_everything(m);
    make_every_call(m);
}

static void report(const model *m, const char *lanes, const char *bound) {
    printf("%d units, %s%s: %llu states, %llu calls\n", m->units, lanes, bound,
           (unsigned long long)states, (unsigned long long)calls);
}

/* ---- all states: by breadth-first search from one free run, so all that calls can reach ---- */

static struct {
    unsigned char seen[((size_t)1 << (3 * FEW_UNITS)) / 8]; /* a bit for each possible state */
    tree_code *states;
    uint64_t count, room;
} queue;

/* Three bits a unit will do for a state, where no run of a lane meets another of the same. */
static void enqueue(const model *m) {
    size_t bit = 0;
    for (int unit = 0; unit < m->units; unit++) {
        size_t kind = m->owner[unit];
        if (kind >= BLOCK) kind = kind == (size_t)(BLOCK + unit) ? 4 : 5;
        bit = bit << 3 | kind;
    }
    if (queue.seen[bit / 8] >> (bit % 8) & 1) return;
    queue.seen[bit / 8] |= (unsigned char)(1u << (bit % 8));
    if (CHECK(queue.count < queue.room)) queue.states[queue.count++] = model_code(m);
}

static void search(model *m, const char *lanes) {
    memset(&queue, 0, sizeof queue);
    queue.room = model_states(m->units, m->lane_count);
    queue.states = (tree_code *)malloc(queue.room * sizeof *queue.states);
    states = calls = 0;
    arrived = enqueue;
    tree_open(m);
    enqueue(m);
    for (uint64_t i = 0; i < queue.count; i++) {
        model_decode(m, queue.states[i]);
        visit(m);
    }
    CHECK_EQ(states, queue.room);
    tree_close();
    free(queue.states);
    report(m, lanes, "");
}

static void every_state_with_two_streams(void) {
    model m = {.units = FEW_UNITS, .lane_count = 3,
               .lane = {LANE_QUIET, LANE_STREAMS, LANE_STREAMS + 1}};
    search(&m, "quiet memory, two streams");
}

static void every_state_with_bare_addresses(void) {
    model m = {.units = FEW_UNITS - 1, .lane_count = 3,
               .lane = {LANE_QUIET, LANE_BARE, LANE_STREAMS}};
    search(&m, "quiet memory, bare addresses, one stream");
}

/* ---- longer runs, with more orders and steps between them, as far as there is time ---- */

static void visit_all(model *m, int unit, int runs) {
    for (int kind = 0; kind <= m->lane_count; kind++) {
        int owner = kind < m->lane_count ? m->lane[kind] : BLOCK + unit;
        if (unit > 0 && m->owner[unit - 1] == owner) continue; /* would be one run */
        for (int units = 1; unit + units <= m->units; units++) {
            memset(&m->owner[unit], owner, (size_t)units);
            if (unit + units == m->units) visit(m);
            else if (runs > 1) visit_all(m, unit + units, runs - 1);
        }
    }
}

static void every_state_of_a_few_long_runs(void) {
    model m = {.units = TREE_MOST, .lane_count = 2, .lane = {LANE_QUIET, LANE_STREAMS}};
    char bound[40];
    snprintf(bound, sizeof bound, ", at most %d runs", LONG_RUNS);
    states = calls = 0;
    arrived = NULL;
    tree_open(&m);
    visit_all(&m, 0, LONG_RUNS);
    tree_close();
    report(&m, "quiet memory, one stream", bound);
}

int main(void) {
    TEST(every_state_with_two_streams);
    TEST(every_state_with_bare_addresses);
    TEST(every_state_of_a_few_long_runs);
    return check_finish();
}
