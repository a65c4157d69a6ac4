/* tree_ask.h: every question that TREE answers, asked of a state and answered naively beside. */
#ifndef TREE_ASK_H
#define TREE_ASK_H

#include "tree_kit.h"

/* The lowest start of a request in the run that begins at `unit`; -1: none. */
static inline int naive_start(const model *m, int unit, int units, int align) {
    int end = model_end(m, unit);
    for (int start = unit; start + units <= end; start++)
        if ((TREE_BASE + (uint64_t)start) % (uint64_t)align == 0) return start;
    return -1;
}

static inline int naive_is_edge(const model *m, int unit) {
    int end = model_end(m, unit);
    return (unit > 0 && m->owner[unit - 1] == LANE_BARE) ||
           (end < m->units && m->owner[end] == LANE_BARE);
}

/* Smaller runs come first, by order and step, and all those beside bare addresses last. */
static inline unsigned naive_rank(const model *m, int unit) {
    unsigned units = (unsigned)(model_end(m, unit) - unit), order = 0;
    while (units >> order > 1) order++;
    return (unsigned)naive_is_edge(m, unit) * 1000 + order * 8 + (units * 8 >> order) % 8;
}

/* What find must answer: the rank of the best run that fits; 0 if there is none. */
static inline unsigned naive_find(const model *m, unsigned lane_mask, int units, int align) {
    unsigned best = 0;
    for (int unit = 0; unit < m->units; unit = model_end(m, unit)) {
        unsigned rank = naive_rank(m, unit) + 1;
        if (!model_is_free(m, unit) || !(lane_mask >> m->owner[unit] & 1)) continue;
        if (naive_start(m, unit, units, align) < 0) continue;
        if (!best || rank < best) best = rank;
    }
    return best;
}

/* Whether there is a run of a size that no misfit has, which few tries have to find as well. */
static inline int naive_is_sure(const model *m, unsigned lane_mask, int units, int align) {
    gpi_place sure = gpi_tree_place((uint64_t)(units + align - 1)), place;
    for (int unit = 0; unit < m->units; unit = model_end(m, unit)) {
        if (!model_is_free(m, unit) || !(lane_mask >> m->owner[unit] & 1)) continue;
        place = gpi_tree_place((uint64_t)(model_end(m, unit) - unit));
        if (place.order > sure.order || (place.order == sure.order && place.step > sure.step))
            return 1;
    }
    return 0;
}

static inline void ask_find(const model *m, unsigned lane_mask, int units, int align) {
    static const uint64_t tries[] = {0, TRIES, UINT64_MAX};
    unsigned best = naive_find(m, lane_mask, units, align);
    for (int i = 0; i < 3; i++) {
        const gpi_run *run = tree_find(lane_mask, (uint64_t)units, (uint64_t)align, tries[i]);
        int unit = run ? (int)(run->unit - TREE_BASE) : 0;
        if (!run && tries[i] != UINT64_MAX) CHECK(!naive_is_sure(m, lane_mask, units, align));
        if (!run && tries[i] == UINT64_MAX) CHECK_EQ(best, 0);
        if (!run) continue;
        CHECK(lane_mask >> run->lane & 1 && m->owner[unit] == run->lane);
        CHECK(naive_start(m, unit, units, align) >= 0);
        if (tries[i] == UINT64_MAX) CHECK_EQ(naive_rank(m, unit) + 1, best);
    }
}

static inline void ask_start(const model *m, int units, int align) {
    for (const gpi_run *run = tree_first; run; run = run->next) {
        uint64_t start = gpi_tree_start(run, (uint64_t)units, (uint64_t)align);
        int naive = naive_start(m, (int)(run->unit - TREE_BASE), units, align);
        CHECK_EQ(start, naive < 0 ? UINT64_MAX : TREE_BASE + (uint64_t)naive);
    }
}

static inline void ask_largest(const model *m, unsigned lane) {
    int largest = 0;
    for (int unit = 0, end; unit < m->units; unit = end) {
        end = model_end(m, unit);
        if (m->owner[unit] == lane && end - unit > largest) largest = end - unit;
    }
    CHECK_EQ(gpi_tree_largest(tree.lanes[lane]), largest);
}

/* Only the first unit of a block leads to it: not the others, no free one, none outside. */
static inline void ask_live(const model *m) {
    for (int unit = -2; unit < m->units + 2; unit++) {
        const gpi_run *run = gpi_tree_live(&tree, TREE_BASE + (uint64_t)unit);
        int inside = unit >= 0 && unit < m->units;
        CHECK_EQ(run != NULL, inside && m->owner[unit] == BLOCK + unit);
        if (run) CHECK(run == tree_run(unit) && run->lane == LANE_LIVE);
    }
    CHECK(!gpi_tree_live(&tree, 0) && !gpi_tree_live(&tree, UINT64_MAX));
}

/* The lanes that a request may look in: a stream's own with quiet memory, or any one alone. */
static inline void ask_lanes(const model *m, int units, int align) {
    unsigned all = 0;
    for (int i = 0; i < m->lane_count; i++) {
        unsigned lane = 1u << m->lane[i];
        ask_find(m, lane, units, align);
        if (lane != 1u << LANE_BARE) all |= lane;
    }
    ask_find(m, all, units, align);
}

static inline void ask_everything(const model *m) {
    ask_live(m);
    for (int i = 0; i < m->lane_count; i++) ask_largest(m, m->lane[i]);
    for (int units = 1; units <= m->units + 1; units++)
        for (int align = 1; align <= m->units; align *= 2) {
            ask_start(m, units, align);
            ask_lanes(m, units, align);
        }
}

#endif
