/* tree_kit.h: TREE beside a naive model of one chunk, an array that says of every unit whose it is.
   Include it after gpupool.h; everything here goes through the calls that other sections use. */
#ifndef TREE_KIT_H
#define TREE_KIT_H

#include "check.h"

/* Kinds of free memory: lists ANY and EMPTY by their numbers, and those of two streams. */
#define FIRST 3u                       /* of the first stream */
#define SECOND 4u
#define LATE 5u                        /* of the first stream too, freed after its mark */
#define KINDS 6u
#define LIST_LAST (GPI_LIST_STREAMS + 1u) /* of a model's */

#define TREE_MOST 16                   /* units of a model */
#define TREE_BASE ((uint64_t)0x7ff01)  /* odd: alignment has to look at addresses, not at offsets */
#define TREE_GRANULE 4                 /* units: a model's table has several cells */
#define TREE_TABLE (TREE_BASE - 1)     /* where the first granule begins */
#define TREE_CELLS (TREE_MOST / TREE_GRANULE + 1)

/* ---- the model ---- */

/* An owner is a kind of free memory, or BLOCK plus the block's first unit. LATE is the
   first stream's memory at a later position, with a border between. */
#define BLOCK 16
typedef struct model {
    int units;
    int list_count;
    unsigned char list[4];             /* kinds that memory may be free in */
    int is_passed;                     /* what was freed before the mark is known to be finished */
    unsigned char owner[TREE_MOST];
    unsigned char slab[TREE_MOST];     /* 1: of a granule that is a slab */
} model;

/* Nothing that is one run has a slab's border in it. */
static inline int model_border(const model *m, int unit) {
    return unit > 0 && m->slab[unit] != m->slab[unit - 1];
}

static inline int model_is_free(const model *m, int unit) { return m->owner[unit] < BLOCK; }

static inline unsigned index_of(unsigned kind) { return kind == LATE ? FIRST : kind; }

static inline uint32_t lane_of(unsigned kind) {
    return index_of(kind) < FIRST ? kind : GPI_LIST_STREAMS + index_of(kind) - FIRST;
}

static inline uint64_t at_of(unsigned kind) {
    return kind == LATE ? 2 : kind >= FIRST ? 1 : 0;
}

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

/* Whether the run around `unit`, beside memory that becomes free, is one with it from then on. */
static inline int model_joins(const model *m, int unit, unsigned kind, uint64_t absorb_units) {
    unsigned side = m->owner[unit];
    int first = unit;
    if (side == kind) return 1;
    if (kind < FIRST) return 0;
    if (side != GPI_LIST_ANY && !(side == FIRST && kind == LATE && m->is_passed))
        return 0;
    while (first > 0 && m->owner[first - 1] == side && !model_border(m, first)) first--;
    return (uint64_t)(model_end(m, first) - first) <= absorb_units;
}

/* The block becomes free of a kind, and a stream's takes short finished neighbours along. */
static inline void model_put(model *m, int unit, unsigned kind, uint64_t absorb_units) {
    int end = model_end(m, unit);
    memset(&m->owner[unit], (int)kind, (size_t)(end - unit));
    for (; unit > 0 && !model_border(m, unit) && model_joins(m, unit - 1, kind, absorb_units);
         unit--)
        for (int side = unit - 1, owner = m->owner[side];; side--) {
            m->owner[side] = (unsigned char)kind;
            if (side == 0 || m->owner[side - 1] != owner || model_border(m, side)) break;
        }
    for (; end < m->units && !model_border(m, end) && model_joins(m, end, kind, absorb_units);
         end++)
        memset(&m->owner[end], (int)kind, (size_t)(model_end(m, end) - end));
}

/* What of a stream's memory is at or below a position is anybody's. */
static inline void model_finish(model *m, uint32_t list, uint64_t at) {
    for (int unit = 0; unit < m->units; unit++) {
        unsigned kind = m->owner[unit];
        if (kind < BLOCK && lane_of(kind) == list && at_of(kind) <= at)
            m->owner[unit] = GPI_LIST_ANY;
    }
}

/* The state as one number, four bits a unit: the list, or 7 in a block; 8 more where runs begin. */
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

/* For a failure: a letter a unit, with bars at the borders of slabs, '.' in anybody's memory, '_'
   in bare, A and B in free lists of streams, a: LATE, 1 2 3 in blocks. */
static inline const char *model_text(const model *m) {
    static char text[2 * TREE_MOST + 1];
    int block = 0, at = 0;
    memset(text, 0, sizeof text);
    for (int unit = 0, end; unit < m->units; unit = end) {
        end = model_end(m, unit);
        if (model_border(m, unit)) text[at++] = '|';
        int letter = model_is_free(m, unit) ? "._sABa"[m->owner[unit]] : '1' + block++ % 9;
        memset(&text[at], letter, (size_t)(end - unit));
        at += end - unit;
    }
    return text;
}

/* How many states there are: runs of one list never meet, blocks may. One more unit lengthens the
   last run, or begins a block, or begins a run of another list than the last one's; at the border
   of a slab it begins a block or a run of any list. */
static inline uint64_t model_states(const model *m) {
    uint64_t lists = (uint64_t)m->list_count, in_block = 1, in_lane = lists, block;
    for (int unit = 1; unit < m->units; unit++) {
        block = in_block * (model_border(m, unit) ? 1 : 2) + in_lane;
        in_lane = in_lane * lists + in_block * lists;
        in_block = block;
    }
    return in_block + in_lane;
}

/* Calls `visit` for each way to fill the model from `unit` on with at most so many runs. */
static inline void model_each(model *m, int unit, int runs, void (*visit)(const model *)) {
    for (int kind = 0; kind <= m->list_count; kind++) {
        int owner = kind < m->list_count ? m->list[kind] : BLOCK + unit;
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

/* The model's free lists, and no others: gpi_check_tree, which takes most of the time here, would
   look at each. */
static inline void tree_open_lanes(const model *m) {
    unsigned used = 0;
    CHECK_EQ(gpi_tree_open(&tree), 1);
    for (int i = 0; i < m->list_count; i++) used |= 1u << index_of(m->list[i]);
    for (unsigned kind = FIRST; used >> kind; kind++)
        CHECK_EQ(gpi_tree_list_add(&tree), lane_of(kind));
    for (unsigned kind = 0; kind <= SECOND; kind++) {
        if (lane_of(kind) >= tree.list_count) continue;
        if (!(used >> kind & 1)) gpi_tree_list_drop(&tree, lane_of(kind));
        else if (kind == FIRST) tree.lists[lane_of(kind)]->borders[m->is_passed ? 0 : 2] = 1;
    }
    CHECK_EQ(gpi_tree_prepare(&tree, 2 * TREE_MOST), 1);
}

/* Cells for so many units and a granule more; and addresses behind these that have no runs. */
static inline void tree_open_table(uint64_t units, uint64_t granule) {
    uint64_t base = TREE_BASE - TREE_BASE % granule, cells = units / granule + 2;
    CHECK_EQ(gpi_tree_open_table(&tree, base, cells, cells + 3 * GPI_PAGE, granule), 1);
    CHECK_EQ(gpi_tree_prepare_cells(&tree, base, units + granule), 1);
}

/* A held run becomes free. */
static inline gpi_run *tree_put(gpi_run *run, unsigned kind, uint64_t absorb_units) {
    run->of.at = at_of(kind);
    return gpi_tree_put(&tree, run, lane_of(kind), absorb_units);
}

/* One chunk, all of it free of a kind. */
static inline void tree_open_chunk(uint64_t units, unsigned kind) {
    tree_first = gpi_tree_add_chunk(&tree, TREE_BASE, units);
    tree_put(tree_first, kind, 0);
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
    tree_open_chunk((uint64_t)m->units, m->list[0]);
}

/* A run leaves its list or the index, whole. */
static inline void tree_hold(gpi_run *run) {
    if (run->list == GPI_LIST_LIVE) gpi_tree_end_life(&tree, run);
    else if (run->list != GPI_LIST_TAKEN) gpi_tree_take(&tree, run, run->unit, run->units);
}

/* The chunk becomes one held run. */
static inline gpi_run *tree_hold_all(void) {
    tree_hold(tree_first);
    while (tree_first->next) {
        tree_hold(tree_first->next);
        gpi_tree_join(&tree, tree_first, tree_first->next);
    }
    return tree_first;
}

static inline void tree_close(void) {
    gpi_tree_remove_chunk(&tree, tree_hold_all());
    CHECK_EQ(gpi_check_tree(&tree), 0);
    CHECK_EQ(tree.spare_count, tree.page_count * GPI_PAGE);
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
        if (model_is_free(m, unit)) tree_put(run, m->owner[unit], 0);
        else gpi_tree_make_live(&tree, run, 0);
        run = rest;
    }
}

/* The run that begins at a unit of the model. */
static inline gpi_run *tree_run(int unit) {
    gpi_run *run = tree_first;
    while (run && run->unit != TREE_BASE + (uint64_t)unit) run = run->next;
    return run;
}

static inline gpi_lists tree_lanes(unsigned lane_mask) {
    gpi_lists lists = {{0, 0}, 0, UINT64_MAX};
    for (unsigned kind = SECOND + 1; kind-- > 0;) /* anybody's last, as the arena has it */
        if (lane_mask >> kind & 1) lists.number[lists.count++] = lane_of(kind);
    return lists;
}

static inline gpi_fit tree_fit(uint64_t units, uint64_t align, uint64_t tries) {
    gpi_fit fit = {units, align, tries, 0};
    return fit;
}

/* In the free lists of this mask; in no slab. */
static inline gpi_run *tree_find(unsigned lane_mask, uint64_t units, uint64_t align,
                                 uint64_t tries) {
    gpi_lists lists = tree_lanes(lane_mask);
    gpi_fit fit = tree_fit(units, align, tries);
    return gpi_search_find(&tree, &lists, &fit);
}

static inline unsigned kind_of(const gpi_run *run) {
    if (run->list < GPI_LIST_STREAMS) return run->list;
    if (run->list > GPI_LIST_STREAMS) return SECOND;
    return run->of.at == at_of(LATE) ? LATE : FIRST;
}

/* The chunk's runs from left to right as a code; 0, which no state has, if they do not tile it. */
static inline tree_code tree_read(int units) {
    tree_code code = 0;
    uint64_t unit = 0, end = (uint64_t)units;
    if (tree_first->prev) return 0;
    for (const gpi_run *run = tree_first; run; run = run->next) {
        if (run->unit != TREE_BASE + unit || run->units > end - unit) return 0;
        if (run->list > LIST_LAST && run->list != GPI_LIST_LIVE) return 0;
        if (run->list <= LIST_LAST && run->of.at != at_of(kind_of(run))) return 0;
        code = code_add(code, (int)unit, (int)run->units,
                        run->list > LIST_LAST ? CODE_BLOCK : kind_of(run));
        unit += run->units;
    }
    return unit == end ? code : 0;
}

/* ---- the two side by side ---- */

static inline int expect_state(const model *m) {
    return CHECK_EQ(tree_read(m->units), model_code(m)) && CHECK_EQ(gpi_check_tree(&tree), 0) &&
           CHECK_EQ(gpi_check_table(&tree, tree_first), 0);
}

static inline void expect_sums(const model *m) {
    uint64_t units[KINDS] = {0}, live = 0;
    for (int unit = 0; unit < m->units; unit++) {
        if (model_is_free(m, unit)) units[index_of(m->owner[unit])]++;
        else live++;
    }
    for (int i = 0; i < m->list_count; i++)
        CHECK_EQ(tree.lists[lane_of(m->list[i])]->units, units[index_of(m->list[i])]);
    CHECK_EQ(tree.live_units, live);
    CHECK_EQ(tree.pending_units, units[FIRST] + units[SECOND]);
    CHECK_EQ(tree.spare_count + (uint64_t)model_runs(m), tree.page_count * GPI_PAGE);
}

#endif
