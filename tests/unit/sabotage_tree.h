/* sabotage_tree.h: what breaks TREE's invariants. Each breaks the at-th place that it knows; 0:
   there is none. Links and figures are mended by the log, what took calls has an undo. */
#ifndef SABOTAGE_TREE_H
#define SABOTAGE_TREE_H

#include "sabotage_kit.h"

static gpi_run *cut_run, *cut_rest; /* what the undo needs to know */
static uint32_t cut_lane;

/* ---- T1: neighbours ---- */

/* Pairs of neighbours, by the left one; those with a waiting block in them apart. */
static inline int is_held_pair(const gpi_run *run) {
    return is_held(run) || (run->next && is_held(run->next));
}
static inline int is_free_pair(const gpi_run *run) { return is_free(run) && !is_held_pair(run); }
static inline int is_live_pair(const gpi_run *run) { return is_live(run) && !is_held_pair(run); }

/* The right one points elsewhere, or the left one does, or they do not meet. */
static inline int wrong_prev(size_t at, run_test test) {
    gpi_run *run = left_of_another(at / 2, test);
    if (run) break_run(&run->next->prev, at % 2 ? NULL : run->next);
    return run != NULL;
}

static inline int wrong_next(size_t at, run_test test) {
    gpi_run *run = left_of_another(at / 2, test);
    if (run) break_run(&run->next, at % 2 ? NULL : run->next->next);
    return run != NULL;
}

static inline int gap_after(size_t at, run_test test) {
    gpi_run *run = left_of_another(at, test);
    if (run) break_u64(&run->units, run->units + 1);
    return run != NULL;
}

static inline int free_wrong_prev(size_t at) { return wrong_prev(at, is_free_pair); }
static inline int live_wrong_prev(size_t at) { return wrong_prev(at, is_live_pair); }
static inline int held_wrong_prev(size_t at) { return wrong_prev(at, is_held_pair); }
static inline int free_wrong_next(size_t at) { return wrong_next(at, is_free_pair); }
static inline int live_wrong_next(size_t at) { return wrong_next(at, is_live_pair); }
static inline int held_wrong_next(size_t at) { return wrong_next(at, is_held_pair); }
static inline int free_gap(size_t at) { return gap_after(at, is_free_pair); }
static inline int live_gap(size_t at) { return gap_after(at, is_live_pair); }
static inline int held_gap(size_t at) { return gap_after(at, is_held_pair); }

/* ---- T2: lists, bits and sums of free lists ---- */

static inline gpi_list *lane_of(const gpi_run *run) { return arena->tree.lists[run->list]; }

static inline gpi_run **list_of(const gpi_run *run) { return &lane_of(run)->heads[run->as.bin]; }

static inline void unlink_free(gpi_run *run) {
    break_run(run->by.list_prev ? &run->by.list_prev->list_next : list_of(run), run->list_next);
    if (run->list_next) break_run(&run->list_next->by.list_prev, run->by.list_prev);
}

static inline void link_free(gpi_run *run, gpi_run **list) {
    break_run(&run->list_next, *list);
    break_run(&run->by.list_prev, NULL);
    if (*list) break_run(&(*list)->by.list_prev, run);
    break_run(list, run);
}

/* A copy stands in a list in the place of the run that its neighbours know. */
static gpi_run twin;

static inline int twin_in_a_list(size_t at) {
    gpi_run *run = run_at(at / 2, is_free), *copy = &twin;
    if (!run) return 0;
    twin = *run;
    if (at % 2) twin.prev = NULL;
    else twin.next = NULL;
    if (!twin.prev && !twin.next) twin.prev = run;
    break_run(run->by.list_prev ? &run->by.list_prev->list_next : list_of(run), copy);
    if (run->list_next) break_run(&run->list_next->by.list_prev, copy);
    return 1;
}

static inline int twin_in_a_bucket(size_t at) {
    gpi_run *run = run_at(at / 2, is_live), *copy = &twin, **link;
    if (!run) return 0;
    twin = *run;
    if (at % 2) twin.prev = NULL;
    else twin.next = NULL;
    if (!twin.prev && !twin.next) twin.prev = run;
    link = gpi_tree_head(&arena->tree, gpi_tree_bucket(&arena->tree, run->unit));
    while (*link != run) link = &(*link)->list_next;
    break_run(link, copy);
    return 1;
}

/* In a list of an order that has no bits. */
static inline int run_without_bits(size_t at) {
    gpi_run *run = run_at(at, is_free);
    gpi_list *list;
    size_t row = 0;
    if (!run) return 0;
    list = lane_of(run);
    while (list->steps[row]) row++;
    break_run(&list->heads[row * GPI_STEPS], run);
    return 1;
}

static inline int in_no_list(size_t at) {
    gpi_run *run = run_at(at, is_free);
    if (run) unlink_free(run);
    return run != NULL;
}

/* The bits of a list as they should be. */
static inline void set_bits(gpi_list *list, uint32_t place) {
    uint32_t row = place / GPI_STEPS;
    uint8_t bit = (uint8_t)(1u << place % GPI_STEPS);
    uint64_t order = 1ull << row % 64, *orders = &list->orders[row / 64];
    break_u8(&list->steps[row], list->heads[place] ? list->steps[row] | bit
                                                   : list->steps[row] & ~bit);
    break_u64(orders, list->steps[row] ? *orders | order : *orders & ~order);
}

/* Filed by the book, but elsewhere. */
static inline int move_to_list(gpi_run *run, uint32_t place) {
    gpi_list *list;
    if (!run) return 0;
    list = lane_of(run);
    unlink_free(run);
    set_bits(list, run->as.bin);
    break_u32(&run->as.bin, place);
    link_free(run, &list->heads[place]);
    set_bits(list, place);
    return 1;
}

static inline int in_another_list(size_t at) {
    gpi_run *run = run_at(at / 2, is_free);
    return move_to_list(run, run ? run->as.bin ^ (at % 2 ? 1 : GPI_STEPS) : 0);
}

static inline int on_another_shelf(size_t at) {
    gpi_run *run = run_at(at, is_free);
    return move_to_list(run, run ? (run->as.bin + GPI_KIND_BINS) % (SHELVES * GPI_KIND_BINS) : 0);
}

static inline int wrong_place(size_t at) {
    static const uint32_t off[] = {1, GPI_STEPS, GPI_KIND_BINS};
    gpi_run *run = run_at(at / 3, is_free);
    if (run) break_u32(&run->as.bin, run->as.bin ^ off[at % 3]);
    return run != NULL;
}

static inline int wrong_list_prev(size_t at) {
    gpi_run *run = run_at(at, is_free);
    if (run) break_run(&run->by.list_prev, run->by.list_prev ? NULL : run);
    return run != NULL;
}

static inline int wrong_lane_number(size_t at) {
    gpi_run *run = run_at(at, is_free);
    if (run) break_u32(&run->list, run->list == GPI_LIST_ANY ? GPI_LIST_STREAMS : GPI_LIST_ANY);
    return run != NULL;
}

static inline int live_run_in_a_list(size_t at) {
    gpi_run *run = run_at(at, is_free), *live = run_at(at, is_live);
    if (run && live) break_run(list_of(run), live);
    return run && live;
}

static inline int wrong_step_bit(size_t at) {
    gpi_list *list = at / 24 < arena->tree.list_count ? arena->tree.lists[at / 24] : NULL;
    uint8_t *steps = list ? &list->steps[at / 8 % 3 * 64 + at % 8 * 4] : NULL;
    if (steps) break_u8(steps, *steps ^ 1u << at % 8);
    return steps != NULL;
}

/* An empty list, and all bits say that it is not. */
static inline int bits_of_no_run(size_t at) {
    gpi_list *list = at / 2 < arena->tree.list_count ? arena->tree.lists[at / 2] : NULL;
    uint32_t row = 0;
    if (!list) return 0;
    while (list->steps[row]) row++;
    break_u8(&list->steps[row], (uint8_t)(at % 2 ? 1u << (GPI_STEPS - 1) : 1u));
    break_u64(&list->orders[row / 64], list->orders[row / 64] | 1ull << row % 64);
    return 1;
}

static inline int wrong_order_bit(size_t at) {
    gpi_list *list = at / 24 < arena->tree.list_count ? arena->tree.lists[at / 24] : NULL;
    uint64_t *orders = list ? &list->orders[at / 8 % 3] : NULL;
    if (orders) break_u64(orders, *orders ^ 1ull << (at % 8 * 4));
    return orders != NULL;
}

static inline int wrong_lane_sum(size_t at) {
    gpi_list *list = at / 3 < arena->tree.list_count ? arena->tree.lists[at / 3] : NULL;
    if (!list) return 0;
    if (at % 3 == 0) break_u64(&list->units, list->units + 1);
    if (at % 3 == 1) break_u64(&arena->tree.free_by_order[0], arena->tree.free_by_order[0] + 1);
    if (at % 3 == 2) break_u64(&arena->tree.free_by_order[35], arena->tree.free_by_order[35] + 1);
    return 1;
}

static inline int wrong_pending_sum(size_t at) {
    uint64_t *sum = &arena->tree.pending_units;
    if (at < 2) break_u64(sum, at ? *sum - 1 : *sum + 1);
    return at < 2;
}

/* In no list, as all sums have it too: only who walks the addresses can miss it. */
static inline int lost_free_run(size_t at) {
    cut_run = run_at(at, is_free);
    if (!cut_run) return 0;
    cut_lane = cut_run->list;
    gpi_tree_unfile(&arena->tree, cut_run);
    cut_run->list = cut_lane;
    return 1;
}

static inline void find_free_run(void) {
    cut_run->list = GPI_LIST_TAKEN;
    gpi_tree_file(&arena->tree, cut_run, cut_lane);
}

/* ---- T3: what should be one run ---- */

static inline int can_be_cut(const gpi_run *run) { return is_free(run) && run->units > 1; }
static inline int cut_in_two(size_t at) {
    cut_run = run_at(at, can_be_cut);
    if (!cut_run || !CHECK_EQ(gpi_tree_prepare(&arena->tree, 1), 1)) return 0;
    if (is_mapped())
        CHECK_EQ(gpi_tree_prepare_cells(&arena->tree, cut_run->unit + cut_run->units / 2, 0), 1);
    cut_lane = cut_run->list;
    gpi_tree_unfile(&arena->tree, cut_run);
    cut_rest = gpi_tree_split(&arena->tree, cut_run, cut_run->unit + cut_run->units / 2);
    gpi_tree_file(&arena->tree, cut_run, cut_lane);
    gpi_tree_file(&arena->tree, cut_rest, cut_lane);
    return 1;
}

static inline void make_one(void) {
    gpi_tree_unfile(&arena->tree, cut_run);
    gpi_tree_unfile(&arena->tree, cut_rest);
    gpi_tree_join(&arena->tree, cut_run, cut_rest);
    gpi_tree_file(&arena->tree, cut_run, cut_lane);
}

/* ---- T4: the index ---- */

static inline gpi_run **bucket_link(const gpi_run *run) {
    gpi_run **link = gpi_tree_head(&arena->tree, gpi_tree_bucket(&arena->tree, run->unit));
    while (*link != run) link = &(*link)->list_next;
    return link;
}

static inline int in_no_bucket(size_t at) {
    gpi_run *run = run_at(at, is_live);
    if (run) break_run(bucket_link(run), run->list_next);
    return run != NULL;
}

static inline int in_another_bucket(size_t at) {
    gpi_run *run = run_at(at, is_live), **head;
    uint64_t bucket;
    if (!run) return 0;
    bucket = gpi_tree_bucket(&arena->tree, run->unit) + 1;
    head = gpi_tree_head(&arena->tree, bucket % arena->tree.bucket_count);
    break_run(bucket_link(run), run->list_next);
    break_run(&run->list_next, *head);
    break_run(head, run);
    return 1;
}

static inline int not_live_in_a_bucket(size_t at) {
    gpi_run *run = at % 2 ? waiting_at(at / 2) : run_at(at / 2, is_free);
    if (!run) return 0;
    break_run(gpi_tree_head(&arena->tree, gpi_tree_bucket(&arena->tree, run->unit)), run);
    return 1;
}

static inline int wrong_live_sum(size_t at) {
    gpi_tree *tree = &arena->tree;
    if (at == 0) break_u64(&tree->live_runs, tree->live_runs + 1);
    if (at == 1) break_u64(&tree->live_units, tree->live_units + 1);
    if (at == 2) break_u64(&tree->live_by_order[0], tree->live_by_order[0] + 1);
    if (at == 3) break_u64(&tree->live_by_order[35], tree->live_by_order[35] + 1);
    return at < 4;
}

static inline int is_live_and_plain(const gpi_run *run) {
    return run->list == GPI_LIST_LIVE && !run->of.uses;
}

/* In no bucket, as all sums have it too, the ledger's among them. */
static inline int lost_live_run(size_t at) {
    gpi_ledger *ledger = &arena->ledger;
    uint64_t bytes;
    cut_run = run_at(at, is_live_and_plain);
    if (!cut_run) return 0;
    bytes = cut_run->units * GPUPOOL_UNIT_BYTES;
    break_u64(&ledger->requested.now, ledger->requested.now - (bytes - gpi_tree_slack(cut_run)));
    break_u64(&ledger->granted.now, ledger->granted.now - bytes);
    break_u64(&ledger->blocks.now, ledger->blocks.now - 1);
    gpi_tree_end_life(&arena->tree, cut_run);
    cut_run->list = GPI_LIST_LIVE;
    return 1;
}

static inline void find_live_run(void) {
    cut_run->list = GPI_LIST_TAKEN;
    gpi_tree_make_live(&arena->tree, cut_run, cut_run->as.slack);
}

/* ---- T5: the leftmost struct ---- */

static inline int owner_points_to_the_second(size_t at) {
    gpi_run **range = range_at(at);
    if (!range || !(*range)->next) return 0;
    break_run(range, (*range)->next);
    return 1;
}

/* ---- T6: the table of addresses ---- */

static inline int is_home(const gpi_run *run) { return run->unit < arena->chunks.stitch_unit; }

/* The cell of the granule that the at-th run begins in leads to no run, or to the run after it. */
static inline int cell_of_another_run(size_t at) {
    gpi_run *run = is_mapped() ? run_at(at / 2, is_home) : NULL;
    gpi_cell *cell = run ? gpi_tree_cell(&arena->tree, run->unit) : NULL;
    if (cell) break_run(&cell->first, at % 2 ? NULL : cell->first->next);
    return cell != NULL;
}

static inline void flip_start(uint64_t unit) {
    uint64_t bit, *word = gpi_tree_start_bit(&arena->tree, unit, &bit);
    break_u64(word, *word ^ bit);
}

static inline int granule_without_its_bit(size_t at) {
    gpi_run *run = is_mapped() ? run_at(at, is_home) : NULL;
    if (run) flip_start(run->unit);
    return run != NULL;
}

static inline int is_long(const gpi_run *run) {
    return is_home(run) && run->units > 2 * arena->chunks.granule_units;
}

/* A granule in the midst of a run, in which none begins. */
static inline int bit_of_no_run(size_t at) {
    gpi_run *run = is_mapped() ? run_at(at, is_long) : NULL;
    if (run) flip_start(run->unit + arena->chunks.granule_units);
    return run != NULL;
}

/* As many bits as there are to be. */
static inline int bit_of_another_granule(size_t at) {
    gpi_run *run = is_mapped() ? run_at(at, is_long) : NULL;
    if (run) flip_start(run->unit);
    if (run) flip_start(run->unit + arena->chunks.granule_units);
    return run != NULL;
}

/* ---- T7: slabs ---- */

static inline void flip_slab_at(uint64_t unit) {
    gpi_tree *tree = &arena->tree;
    uint64_t granule = (unit - tree->base_unit) >> tree->granule_shift;
    break_u64(&tree->slabs[granule / 64], tree->slabs[granule / 64] ^ 1ull << granule % 64);
}

/* The granule that the at-th free run begins in becomes a slab, or is one no more. */
static inline int flip_slab(size_t at, int is_slab) {
    gpi_tree *tree = &arena->tree;
    gpi_run *run;
    if (!is_mapped()) return 0;
    do run = run_at(at++, is_free);
    while (run && (!is_home(run) || gpi_tree_is_slab(tree, run->unit) != is_slab));
    if (run) flip_slab_at(run->unit);
    return run != NULL;
}

static inline int slab_that_is_none(size_t at) { return flip_slab(at, 0); }
static inline int slab_no_more(size_t at) { return flip_slab(at, 1); }

/* A granule in the midst of a free run becomes a slab, which the run's others are not. The sum has
   it. */
static inline int is_long_and_free(const gpi_run *run) { return is_free(run) && is_long(run); }
static inline int slab_within_a_run(size_t at) {
    gpi_run *run = is_mapped() ? run_at(at, is_long_and_free) : NULL;
    if (!run) return 0;
    flip_slab_at(run->unit + arena->chunks.granule_units);
    break_u64(&arena->tree.slab_count, arena->tree.slab_count + 1);
    return 1;
}

/* The last granule of a long free run, which is the run's alone. */
static inline int slab_at_the_end(size_t at) {
    gpi_run *run;
    uint64_t end;
    if (!is_mapped()) return 0;
    do run = run_at(at++, is_long_and_free);
    while (run && (run->unit + run->units) % arena->chunks.granule_units);
    if (!run) return 0;
    end = run->unit + run->units;
    flip_slab_at(end - 1);
    break_u64(&arena->tree.slab_count, arena->tree.slab_count + 1);
    return 1;
}

/* Empty addresses are a slab. */
static inline int is_bare_granule(const gpi_run *run) {
    return is_bare(run) && run->units == arena->chunks.granule_units;
}
static inline int slab_of_empty_addresses(size_t at) {
    gpi_run *run = is_mapped() ? run_at(at, is_bare_granule) : NULL;
    if (!run) return 0;
    flip_slab_at(run->unit);
    break_u64(&arena->tree.slab_count, arena->tree.slab_count + 1);
    return 1;
}

#endif
