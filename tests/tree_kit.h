/* tree_kit.h: TREE beside a naive model of one chunk, an array that says of every unit whose it is.
   Include it after gpupool.h; everything here goes through the calls that other rooms use. */
#ifndef TREE_KIT_H
#define TREE_KIT_H

#include "check.h"

/* gpupool.h takes its private macros back. */
#define LANE_QUIET 0u
#define LANE_BARE 1u
#define LANE_SPACE 2u
#define LANE_STREAMS 3u
#define LANE_LAST (LANE_STREAMS + 1) /* of a model's */
#define LANE_HELD 0xfffffffeu
#define LANE_LIVE 0xffffffffu
#define STEPS 8u
#define PAGE 1024u /* run structs got from the host at a time */

#define TREE_MOST 16                   /* units of a model */
#define TREE_BASE ((uint64_t)0x7ff01)  /* odd: alignment has to look at addresses, not at offsets */
#define TREE_GRANULE 4                 /* units: a model's table has several cells */
#define TREE_TABLE (TREE_BASE - 1)     /* where the first granule begins */
#define TREE_CELLS (TREE_MOST / TREE_GRANULE + 1)

/* ---- the model ---- */

/* An owner is a lane's number, or BLOCK plus the block's first unit. */
#define BLOCK 16
typedef struct model {
    int units;
    int lane_count;
    unsigned char lane[4];             /* those that memory may be free in */
    unsigned char owner[TREE_MOST];
    unsigned char slab[TREE_MOST];     /* 1: of a granule that is a slab */
} model;

/* Nothing that is one run has a slab's border in it. */
static inline int model_border(const model *m, int unit) {
    return unit > 0 && m->slab[unit] != m->slab[unit - 1];
}

static inline int model_is_free(const model *m, int unit) { return m->owner[unit] < BLOCK; }

/* The end of the run that begins at this unit. */
static inline int model_end(const model *m, int unit) {
    int end = unit + 1;
    while (end < m->units && m->owner[end] == m->owner[unit] && !model_border(m, end)) end++;
    return end;
}

static inline int model_runs(const model *m) {
    int runs = 0;
    for (int unit = 0; unit < m->units; unit = model_end(m, unit)) runs++;
    return runs;
}

static inline void model_take(model *m, int unit, int units) {
    memset(&m->owner[unit], BLOCK + unit, (size_t)units);
}

/* The run around `unit` joins the lane if it is quiet memory of at most so many units. */
static inline int model_absorb(model *m, int unit, unsigned lane, uint64_t absorb_units) {
    int first = unit, end;
    while (first > 0 && m->owner[first - 1] == m->owner[unit] && !model_border(m, first)) first--;
    end = model_end(m, first);
    if (m->owner[unit] != LANE_QUIET || (uint64_t)(end - first) > absorb_units) return 0;
    memset(&m->owner[first], (int)lane, (size_t)(end - first));
    return 1;
}

/* The block becomes free in a lane, and a stream's lane takes short quiet neighbours along. */
static inline void model_put(model *m, int unit, unsigned lane, uint64_t absorb_units) {
    int first = unit, end = model_end(m, unit), again = lane >= LANE_STREAMS;
    memset(&m->owner[unit], (int)lane, (size_t)(end - unit));
    while (again) {
        while (first > 0 && m->owner[first - 1] == lane && !model_border(m, first)) first--;
        while (end < m->units && m->owner[end] == lane && !model_border(m, end)) end++;
        again = first > 0 && !model_border(m, first) &&
                model_absorb(m, first - 1, lane, absorb_units);
        again |= end < m->units && !model_border(m, end) &&
                 model_absorb(m, end, lane, absorb_units);
    }
}

static inline void model_pour(model *m, unsigned from, unsigned to) {
    for (int unit = 0; unit < m->units; unit++)
        if (m->owner[unit] == from) m->owner[unit] = (unsigned char)to;
}

/* The state as one number, four bits a unit: the lane, or 7 in a block; 8 more where runs begin. */
#define CODE_BLOCK 7u
typedef uint64_t tree_code;

static inline tree_code code_add(tree_code code, int unit, int units, unsigned owner) {
    tree_code each = (tree_code)0x1111111111111111 >> (64 - 4 * units);
    return code | (each * owner | 8) << (4 * unit);
}

static inline tree_code model_code(const model *m) {
    tree_code code = 0;
    for (int unit = 0, end; unit < m->units; unit = end) {
        end = model_end(m, unit);
        code = code_add(code, unit, end - unit,
                        model_is_free(m, unit) ? m->owner[unit] : CODE_BLOCK);
    }
    return code;
}

static inline void model_decode(model *m, tree_code code) {
    for (int unit = 0; unit < m->units; unit++, code >>= 4) {
        m->owner[unit] = code & 7;
        if ((code & 7) != CODE_BLOCK) continue;
        m->owner[unit] = code & 8 ? (unsigned char)(BLOCK + unit) : m->owner[unit - 1];
    }
}

/* For a failure: a letter a unit, with bars at the borders of slabs, '.' in quiet memory, '_' in
   bare, A and B in lanes of streams, 1 2 3 in blocks. */
static inline const char *model_text(const model *m) {
    static char text[2 * TREE_MOST + 1];
    int block = 0, at = 0;
    memset(text, 0, sizeof text);
    for (int unit = 0, end; unit < m->units; unit = end) {
        end = model_end(m, unit);
        if (model_border(m, unit)) text[at++] = '|';
        int letter = model_is_free(m, unit) ? "._sAB"[m->owner[unit]] : '1' + block++ % 9;
        memset(&text[at], letter, (size_t)(end - unit));
        at += end - unit;
    }
    return text;
}

/* How many states there are: runs of one lane never meet, blocks may. One more unit lengthens the
   last run, or begins a block, or begins a run of another lane than the last one's; at the border
   of a slab it begins a block or a run of any lane. */
static inline uint64_t model_states(const model *m) {
    uint64_t lanes = (uint64_t)m->lane_count, in_block = 1, in_lane = lanes, block;
    for (int unit = 1; unit < m->units; unit++) {
        block = in_block * (model_border(m, unit) ? 1 : 2) + in_lane;
        in_lane = in_lane * lanes + in_block * lanes;
        in_block = block;
    }
    return in_block + in_lane;
}

/* Calls `visit` for each way to fill the model from `unit` on with at most so many runs. */
static inline void model_each(model *m, int unit, int runs, void (*visit)(const model *)) {
    for (int kind = 0; kind <= m->lane_count; kind++) {
        int owner = kind < m->lane_count ? m->lane[kind] : BLOCK + unit;
        if (unit > 0 && m->owner[unit - 1] == owner && !model_border(m, unit))
            continue; /* would be one run */
        for (int units = 1; unit + units <= m->units; units++) {
            if (units > 1 && model_border(m, unit + units - 1)) break;
            memset(&m->owner[unit], owner, (size_t)units);
            if (unit + units == m->units) visit(m);
            else if (runs > 1) model_each(m, unit + units, runs - 1, visit);
        }
    }
}

/* ---- the tree ---- */

static gpi_tree tree;
static gpi_run *tree_first; /* the chunk's leftmost, for good */

/* The model's lanes, and no others: gpi_tree_check, which takes most of the time here, would look
   at each. */
static inline void tree_open_lanes(const model *m) {
    unsigned used = 0;
    CHECK_EQ(gpi_tree_open(&tree), 1);
    for (int i = 0; i < m->lane_count; i++) used |= 1u << m->lane[i];
    for (uint32_t lane = LANE_STREAMS; used >> lane; lane++)
        CHECK_EQ(gpi_tree_lane_add(&tree), lane);
    for (uint32_t lane = 0; lane < tree.lane_count; lane++)
        if (!(used >> lane & 1)) gpi_tree_lane_drop(&tree, lane);
    CHECK_EQ(gpi_tree_prepare(&tree, 2 * TREE_MOST), 1);
}

/* Cells for so many units and a granule more; and addresses behind these that have no runs. */
static inline void tree_open_table(uint64_t units, uint64_t granule) {
    uint64_t base = TREE_BASE - TREE_BASE % granule, cells = units / granule + 2;
    CHECK_EQ(gpi_tree_open_table(&tree, base, cells, cells + 3 * PAGE, granule), 1);
    CHECK_EQ(gpi_tree_prepare_cells(&tree, base, units + granule), 1);
}

/* One chunk, all of it free in a lane. */
static inline void tree_open_chunk(uint64_t units, uint32_t lane) {
    tree_first = gpi_tree_add_chunk(&tree, TREE_BASE, units);
    gpi_tree_put(&tree, tree_first, lane, 0);
}

static inline uint64_t tree_granule(int unit) {
    return (TREE_BASE - TREE_TABLE + (uint64_t)unit) / TREE_GRANULE;
}

/* The model's slabs; all runs are held when they change. */
static inline void tree_mark_slabs(const model *m) {
    tree.slab_count = 0;
    tree.slabs[0] = 0;
    for (int unit = 0; unit < m->units; unit++) {
        uint64_t bit = m->slab[unit] ? (uint64_t)1 << tree_granule(unit) : 0;
        tree.slab_count += bit && !(tree.slabs[0] & bit);
        tree.slabs[0] |= bit;
    }
}

static inline void tree_open(const model *m) {
    tree_open_lanes(m);
    tree_open_table(TREE_MOST, TREE_GRANULE);
    tree_open_chunk((uint64_t)m->units, m->lane[0]);
}

/* A run leaves its lane or the index, whole. */
static inline void tree_hold(gpi_run *run) {
    if (run->lane == LANE_LIVE) gpi_tree_lay_down(&tree, run);
    else if (run->lane != LANE_HELD) gpi_tree_take(&tree, run, run->unit, run->units);
}

/* The chunk becomes one held run. */
static inline gpi_run *tree_hold_all(void) {
    tree_hold(tree_first);
    while (tree_first->next) {
        tree_hold(tree_first->next);
        gpi_tree_weld(&tree, tree_first, tree_first->next);
    }
    return tree_first;
}

static inline void tree_close(void) {
    gpi_tree_remove_chunk(&tree, tree_hold_all());
    CHECK_EQ(gpi_tree_check(&tree), 0);
    CHECK_EQ(tree.spare_count, tree.page_count * PAGE);
    gpi_tree_close(&tree);
}

/* From whatever the chunk's runs were to the model's. */
static inline void tree_build(const model *m) {
    gpi_run *run = tree_hold_all();
    tree_mark_slabs(m);
    for (int unit = 0, end; unit < m->units; unit = end) {
        gpi_run *rest = NULL;
        end = model_end(m, unit);
        if (end < m->units) rest = gpi_tree_split(&tree, run, TREE_BASE + (uint64_t)end);
        if (model_is_free(m, unit)) gpi_tree_put(&tree, run, m->owner[unit], 0);
        else gpi_tree_bring_alive(&tree, run, 0);
        run = rest;
    }
}

/* The run that begins at a unit of the model. */
static inline gpi_run *tree_run(int unit) {
    gpi_run *run = tree_first;
    while (run && run->unit != TREE_BASE + (uint64_t)unit) run = run->next;
    return run;
}

static inline gpi_lanes tree_lanes(unsigned lane_mask) {
    gpi_lanes lanes;
    lanes.count = 0;
    for (uint32_t lane = LANE_LAST + 1; lane-- > 0;) /* quiet memory last, as the arena has it */
        if (lane_mask >> lane & 1) lanes.number[lanes.count++] = lane;
    return lanes;
}

/* In the lanes of this mask; in no slab. */
static inline gpi_run *tree_find(unsigned lane_mask, uint64_t units, uint64_t align,
                                 uint64_t tries) {
    gpi_lanes lanes = tree_lanes(lane_mask);
    return gpi_tree_find(&tree, &lanes, units, align, tries);
}

static inline gpi_run *tree_find_in_slabs(unsigned lane_mask, uint64_t units, uint64_t align,
                                          uint64_t tries) {
    gpi_lanes lanes = tree_lanes(lane_mask);
    return gpi_tree_find_in_slabs(&tree, &lanes, units, align, tries);
}

/* The chunk's runs from left to right as a code; 0, which no state has, if they do not tile it. */
static inline tree_code tree_read(int units) {
    tree_code code = 0;
    uint64_t unit = 0, end = (uint64_t)units;
    if (tree_first->prev) return 0;
    for (const gpi_run *run = tree_first; run; run = run->next) {
        if (run->unit != TREE_BASE + unit || run->units > end - unit) return 0;
        if (run->lane > LANE_LAST && run->lane != LANE_LIVE) return 0;
        code = code_add(code, (int)unit, (int)run->units,
                        run->lane > LANE_LAST ? CODE_BLOCK : run->lane);
        unit += run->units;
    }
    return unit == end ? code : 0;
}

/* ---- the two side by side ---- */

static inline int expect_state(const model *m) {
    return CHECK_EQ(tree_read(m->units), model_code(m)) && CHECK_EQ(gpi_tree_check(&tree), 0) &&
           CHECK_EQ(gpi_tree_check_table(&tree, tree_first), 0);
}

static inline void expect_sums(const model *m) {
    uint64_t units[LANE_LAST + 1] = {0}, live = 0;
    for (int unit = 0; unit < m->units; unit++) {
        if (model_is_free(m, unit)) units[m->owner[unit]]++;
        else live++;
    }
    for (int i = 0; i < m->lane_count; i++)
        CHECK_EQ(tree.lanes[m->lane[i]]->units, units[m->lane[i]]);
    CHECK_EQ(tree.live_units, live);
    CHECK_EQ(tree.pending_units, units[LANE_STREAMS] + units[LANE_LAST]);
    CHECK_EQ(tree.spare_count + (uint64_t)model_runs(m), tree.page_count * PAGE);
}

#endif
