/* tree_calls.h: every call that TREE takes in a state, and what must come of it. */
#ifndef TREE_CALLS_H
#define TREE_CALLS_H

#include "tree_ask.h"

static uint64_t states, calls;
static void (*arrived)(const model *m); /* told of each state that a call leads to; or NULL */

static struct { uint64_t splits, merges; int runs; } was;

static inline void begin(const model *m, const char *call, int a, int b, uint64_t c) {
    check_case("%s %s %d %d %llu", model_text(m), call, a, b, (unsigned long long)c);
    tree_build(m);
    was.splits = tree.splits;
    was.merges = tree.merges;
    was.runs = model_runs(m);
    calls++;
}

/* Each split makes one run more, each merge one less, and no call here needs both. */
static inline void end(const model *m) {
    int runs = model_runs(m);
    CHECK_EQ(tree.splits - was.splits, runs > was.runs ? runs - was.runs : 0);
    CHECK_EQ(tree.merges - was.merges, runs < was.runs ? was.runs - runs : 0);
    expect_state(m);
    expect_sums(m);
    if (arrived) arrived(m);
}

static inline void call_take(const model *m, int from, int unit, int units) {
    uint64_t first = TREE_BASE + (uint64_t)unit;
    model after = *m;
    gpi_run *run;
    begin(m, "take", unit, units, 0);
    run = gpi_tree_take(&tree, tree_run(from), first, (uint64_t)units);
    CHECK(run->list == GPI_LIST_TAKEN && run->unit == first && run->units == (uint64_t)units);
    gpi_tree_make_live(&tree, run, 0);
    model_take(&after, unit, units);
    end(&after);
}

static inline void call_put(const model *m, int unit, unsigned kind, uint64_t absorb_units) {
    model after = *m;
    gpi_run *run;
    begin(m, "put", unit, (int)kind, absorb_units);
    run = tree_run(unit);
    gpi_tree_end_life(&tree, run);
    run = tree_put(run, kind, absorb_units);
    CHECK(run->list == lane_of(kind) && run->of.at == at_of(kind));
    CHECK(TREE_BASE + (uint64_t)unit - run->unit < run->units);
    model_put(&after, unit, kind, absorb_units);
    end(&after);
}

static inline void call_finish(const model *m, uint32_t list, uint64_t at) {
    model after = *m;
    begin(m, "finish", (int)list, 0, at);
    gpi_tree_finish(&tree, list, at);
    model_finish(&after, list, at);
    end(&after);
}

/* Whether the granule from `unit` on is free in one of these free lists, and no slab. */
static inline int may_be_slab(const model *m, unsigned lane_mask, int unit) {
    int end = unit + TREE_GRANULE;
    if (tree_granule(unit) == tree_granule(unit - 1) || end > m->units || m->slab[unit]) return 0;
    for (int i = unit; i < end; i++)
        if (m->owner[i] != m->owner[unit]) return 0;
    return model_is_free(m, unit) && lane_mask >> index_of(m->owner[unit]) & 1;
}

/* A granule that was free becomes a slab, and its memory stays free for the same users. */
static inline void call_add_slab(const model *m, unsigned lane_mask) {
    model after = *m;
    gpi_lists lists = tree_lanes(lane_mask);
    uint64_t slabs;
    int any = 0;
    begin(m, "add_slab", (int)lane_mask, 0, 0);
    slabs = tree.slabs[0];
    gpi_run *run = gpi_search_add_slab(&tree, &lists, UINT64_MAX);
    for (int unit = 1; unit < m->units; unit++) {
        any |= may_be_slab(m, lane_mask, unit);
        if (!run || TREE_BASE + (uint64_t)unit != run->unit) continue;
        CHECK(may_be_slab(m, lane_mask, unit));
        CHECK_EQ(tree.slabs[0], slabs | (uint64_t)1 << tree_granule(unit));
        memset(&after.slab[unit], 1, TREE_GRANULE);
    }
    CHECK_EQ(run != NULL, any);
    expect_state(&after);
    expect_sums(&after);
}

/* What is free in slabs is one with what is beside them. */
static inline void call_drop_slabs(const model *m) {
    model after = *m;
    begin(m, "drop_slabs", 0, 0, 0);
    gpi_tree_drop_slabs(&tree);
    memset(after.slab, 0, sizeof after.slab);
    expect_state(&after);
    expect_sums(&after);
}

static inline void take_all_parts(const model *m, int unit) {
    int run_end = model_end(m, unit);
    for (int start = unit; start < run_end; start++)
        for (int units = 1; units <= run_end - start; units++) call_take(m, unit, start, units);
}

/* Whatever the bound, only the list of a stream absorbs. */
static inline void put_into_all_lanes(const model *m, int unit) {
    for (int i = 0; i < m->list_count; i++) {
        call_put(m, unit, m->list[i], UINT64_MAX);
        if (m->list[i] < FIRST) continue;
        call_put(m, unit, m->list[i], (uint64_t)(model_end(m, unit) - unit));
        call_put(m, unit, m->list[i], 0);
    }
}

static inline void make_every_call(const model *m) {
    for (int unit = 0; unit < m->units; unit = model_end(m, unit)) {
        if (model_is_free(m, unit)) take_all_parts(m, unit);
        else put_into_all_lanes(m, unit);
    }
    for (int i = 0; i < m->list_count; i++)
        if (m->list[i] >= FIRST)
            for (uint64_t at = 0; at <= at_of(m->list[i]); at++)
                call_finish(m, lane_of(m->list[i]), at);
    for (int i = 0; i < m->list_count; i++)
        if (m->list[i] != GPI_LIST_EMPTY) call_add_slab(m, 1u << index_of(m->list[i]));
    call_drop_slabs(m);
}

static inline void visit(const model *m) {
    states++;
    check_case("%s", model_text(m));
    tree_build(m);
    expect_state(m);
    ask_everything(m);
    make_every_call(m);
}

static inline void report(const model *m, const char *lists, const char *bound) {
    printf("%d units, %s%s: %llu states, %llu calls\n", m->units, lists, bound,
           (unsigned long long)states, (unsigned long long)calls);
}

#endif
