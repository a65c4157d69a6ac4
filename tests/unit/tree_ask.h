/* tree_ask.h: every question that TREE answers, asked of a state and answered naively beside. */
#ifndef TREE_ASK_H
#define TREE_ASK_H

#include "tree_kit.h"

/* The state's free runs, as find sees them. */
typedef struct free_run {
    int unit, units;
    unsigned list, slab; /* list: the kind */
    unsigned rank; /* find prefers low ones: by step, and those beside bare addresses last */
} free_run;
static free_run ask_runs[TREE_MOST];
static int ask_count;

static inline unsigned naive_step(unsigned units) {
    unsigned order = 0;
    while (units >> order > 1) order++;
    return order * 8 + (units * 8 >> order) % 8;
}

static inline void ask_prepare(const model *m) {
    ask_count = 0;
    for (int unit = 0, end; unit < m->units; unit = end) {
        int edge = unit > 0 && m->owner[unit - 1] == GPI_LIST_EMPTY;
        end = model_end(m, unit);
        edge |= end < m->units && m->owner[end] == GPI_LIST_EMPTY;
        if (!model_is_free(m, unit)) continue;
        ask_runs[ask_count].unit = unit;
        ask_runs[ask_count].units = end - unit;
        ask_runs[ask_count].list = m->owner[unit];
        ask_runs[ask_count].slab = m->slab[unit];
        ask_runs[ask_count++].rank = (edge && !m->slab[unit] ? 1000 : 0) +
                                     naive_step((unsigned)(end - unit));
    }
}

/* The lowest start of a request in so many units from `unit` on; -1: none. */
static inline int naive_start(int unit, int run_units, int units, int align) {
    for (int start = unit; start + units <= unit + run_units; start++)
        if ((TREE_BASE + (uint64_t)start) % (uint64_t)align == 0) return start;
    return -1;
}

static inline int may_find(const gpi_lists *lists, const free_run *run) {
    int found = 0;
    for (int i = 0; i < lists->count; i++) found |= lists->number[i] == lane_of(run->list);
    return found && at_of(run->list) < lists->below;
}

/* The rank of the best run that fits; UINT32_MAX if there is none. Sure: among runs of a step that
   no misfit is in, which few tries must find as well as many. */
static inline unsigned naive_find(const gpi_lists *lists, unsigned slab, const gpi_fit *fit,
                                  int sure) {
    int units = (int)fit->units, align = (int)fit->align_units;
    unsigned best = UINT32_MAX, sure_step = naive_step((unsigned)(units + align - 1));
    for (const free_run *run = ask_runs; run < ask_runs + ask_count; run++) {
        if (!may_find(lists, run) || run->rank >= best || run->slab != slab) continue;
        if (sure && (run->rank % 1000 <= sure_step || lists->below <= at_of(LATE))) continue;
        if (naive_start(run->unit, run->units, units, align) >= 0) best = run->rank;
    }
    return best;
}

static inline const free_run *ask_run(const gpi_run *run) {
    for (int i = 0; i < ask_count; i++)
        if (TREE_BASE + (uint64_t)ask_runs[i].unit == run->unit) return &ask_runs[i];
    return NULL;
}

/* Runs that were looked at before this one in its list, and did not fit. */
static inline uint64_t in_front(const gpi_run *run) {
    uint64_t count = 0;
    while ((run = run->by.list_prev) != NULL) count++;
    return count;
}

static inline void ask_find_among(const gpi_lists *lists, unsigned slab, gpi_fit *fit) {
    static const uint64_t tries[] = {0, 1, UINT64_MAX};
    unsigned best = naive_find(lists, slab, fit, 0);
    for (int i = 0; i < 3; i++) {
        int all = tries[i] == UINT64_MAX;
        const gpi_run *run;
        const free_run *found;
        fit->tries = tries[i];
        run = slab ? gpi_search_find_in_slabs(&tree, lists, fit)
                   : gpi_search_find(&tree, lists, fit);
        found = run ? ask_run(run) : NULL;
        if (all) CHECK_EQ(found ? found->rank : UINT32_MAX, best);
        if (!run && !all) CHECK_EQ(naive_find(lists, slab, fit, 1), UINT32_MAX);
        if (!run || !CHECK(found)) continue;
        CHECK(found->list == kind_of(run) && may_find(lists, found) && found->slab == slab);
        CHECK(naive_start(found->unit, found->units, (int)fit->units, (int)fit->align_units) >= 0);
        CHECK(in_front(run) <= tries[i]);
    }
}

/* At any position, and where a position bounds what may be had. */
static inline void ask_find(unsigned lane_mask, int units, int align) {
    gpi_lists lists = tree_lanes(lane_mask);
    gpi_fit fit = tree_fit((uint64_t)units, (uint64_t)align, 0);
    for (int i = 0; i < 2; i++) {
        lists.below = i ? at_of(LATE) : UINT64_MAX;
        ask_find_among(&lists, 0, &fit);
        if (tree.slab_count) ask_find_among(&lists, 1, &fit);
    }
}

/* The free lists that a request may look in: any one, or a stream's own and anybody's. */
static inline void ask_lanes(const model *m, int units, int align) {
    unsigned asked = 0;
    for (int i = 0; i < m->list_count; i++) {
        unsigned kind = index_of(m->list[i]);
        if (asked >> kind & 1) continue; /* LATE */
        asked |= 1u << kind;
        ask_find(1u << kind, units, align);
        if (kind >= FIRST) ask_find(1u << kind | 1u << GPI_LIST_ANY, units, align);
    }
}

static inline void ask_start(int units, int align) {
    for (const gpi_run *run = tree_first; run; run = run->next) {
        uint64_t start = gpi_search_start(run, (uint64_t)units, (uint64_t)align);
        int naive = naive_start((int)(run->unit - TREE_BASE), (int)run->units, units, align);
        CHECK_EQ(start, naive < 0 ? UINT64_MAX : TREE_BASE + (uint64_t)naive);
    }
}

static inline void ask_largest(unsigned list) {
    int largest = 0;
    for (int i = 0; i < ask_count; i++)
        if (lane_of(ask_runs[i].list) == list && ask_runs[i].units > largest)
            largest = ask_runs[i].units;
    CHECK_EQ(gpi_search_largest(tree.lists[list]), largest);
}

/* Only the first unit of a block leads to it: not the others, no free one, none outside. */
static inline void ask_live(const model *m) {
    for (int unit = -2; unit < m->units + 2; unit++) {
        const gpi_run *run = gpi_tree_live(&tree, TREE_BASE + (uint64_t)unit);
        int inside = unit >= 0 && unit < m->units;
        CHECK_EQ(run != NULL, inside && m->owner[unit] == BLOCK + unit);
        if (run) CHECK(run == tree_run(unit) && run->list == GPI_LIST_LIVE);
    }
    CHECK(!gpi_tree_live(&tree, 0) && !gpi_tree_live(&tree, UINT64_MAX));
}

/* The unit in which the leftmost run of a granule begins; -1: none begins in it. */
static inline int naive_first(const model *m, int granule) {
    for (int unit = 0; unit < m->units; unit = model_end(m, unit))
        if ((unit + (int)(TREE_BASE - TREE_TABLE)) / TREE_GRANULE == granule) return unit;
    return -1;
}

static inline int naive_around(const model *m, int unit) {
    int first = 0;
    while (model_end(m, first) <= unit) first = model_end(m, first);
    return first;
}

/* Of each granule the first run, and the first from there on; of each unit that a run begins behind
   in a later granule, the run around it. */
static inline void ask_table(const model *m) {
    int next = -1;
    for (int granule = TREE_CELLS - 1; granule >= 0; granule--) {
        uint64_t begin = TREE_TABLE + (uint64_t)granule * TREE_GRANULE;
        int first = naive_first(m, granule);
        for (int i = 0; i < TREE_GRANULE && next >= 0; i++) {
            int unit = (int)(begin - TREE_BASE) + i;
            if (unit >= 0)
                CHECK(gpi_tree_at(&tree, begin + (uint64_t)i) == tree_run(naive_around(m, unit)));
        }
        CHECK(gpi_tree_cell(&tree, begin)->first == (first < 0 ? NULL : tree_run(first)));
        if (first >= 0) next = first;
        if (next >= 0) CHECK(gpi_tree_from(&tree, begin) == tree_run(next));
    }
}

static inline void ask_everything(const model *m) {
    ask_prepare(m);
    ask_live(m);
    ask_table(m);
    for (int i = 0; i < m->list_count; i++) ask_largest(lane_of(m->list[i]));
    for (int units = 1; units <= m->units + 1; units++)
        for (int align = 1; align <= m->units; align *= 2) {
            ask_start(units, align);
            ask_lanes(m, units, align);
        }
}

#endif
