/* TREE with five orders: one chunk of fewer than 16 units, anywhere, cut twice. */
// rooms: GROUND HOST LEDGER TREE
// as: s/#define GPUPOOL_ORDERS 41 /#define GPUPOOL_ORDERS 5 /
// unwind: 7
#include "prove.h"

#define MOST ((uint64_t)1 << 40)
#define UNITS 16

// broken: s/shelf->steps\[place.order\] \& (0xffu << place.step)/shelf->steps[place.order]/
void prove_next_step_with_runs(void) {
    gpi_shelf shelf;
    gpi_place from, next, other;
    unsigned order;
    shelf.orders = any();
    from.order = (unsigned)any_below(GPUPOOL_ORDERS + 1);
    from.step = (unsigned)any_below(GPI_STEPS);
    other.order = (unsigned)any_below(GPUPOOL_ORDERS);
    other.step = (unsigned)any_below(GPI_STEPS);
    ASSUME(shelf.orders >> GPUPOOL_ORDERS == 0);
    for (order = 0; order < GPUPOOL_ORDERS; order++) {
        shelf.steps[order] = (uint8_t)any();
        ASSUME((shelf.steps[order] != 0) == (shelf.orders >> order & 1));
    }
    next = gpi_tree_next(&shelf, from);
    CLAIM(next.order <= GPUPOOL_ORDERS);
    if (next.order < GPUPOOL_ORDERS) {
        CLAIM(shelf.steps[next.order] >> next.step & 1);
        CLAIM(next.order * 8 + next.step >= from.order * 8 + from.step);
    }
    if (shelf.steps[other.order] >> other.step & 1) /* no step with runs is passed over */
        CLAIM(other.order * 8 + other.step < from.order * 8 + from.step ||
              other.order * 8 + other.step >= next.order * 8 + next.step);
}

/* ---- one chunk, free for all, with two lanes ---- */

static gpi_lane quiet, bare, own;
static gpi_lane *lanes[3] = {&quiet, &bare, &own};
static gpi_run runs[6];
static gpi_tree tree;

static gpi_run *any_chunk(void) {
    gpi_run *run;
    int i;
    tree.lanes = lanes;
    tree.lane_count = 3;
    for (i = 5; i >= 0; i--) {
        runs[i].list_next = tree.spare;
        tree.spare = &runs[i];
    }
    tree.spare_count = 6;
    run = gpi_tree_add_chunk(&tree, any_below(MOST), any_below(UNITS));
    ASSUME(run->units > 0);
    return gpi_tree_put(&tree, run, GPI_LANE_QUIET, 0);
}

// broken: s/    right->units = run->unit + run->units - unit;/    right->units = run->units;/
void prove_what_is_taken_and_put_back_leaves_no_trace(void) {
    gpi_run *chunk = any_chunk(), *taken;
    uint64_t unit = chunk->unit, units = chunk->units, at = any_below(2 * MOST);
    uint64_t length = any_below(UNITS);
    ASSUME(length > 0 && at >= unit && at + length <= unit + units);
    taken = gpi_tree_take(&tree, chunk, at, length);
    CLAIM(taken->unit == at && taken->units == length && taken->lane == GPI_LANE_HELD);
    CLAIM(!taken->prev || taken->prev->unit + taken->prev->units == at);
    CLAIM(!taken->next || taken->next->unit == at + length);
    CLAIM((at == unit) == !taken->prev && (at + length == unit + units) == !taken->next);
    CLAIM(quiet.units == units - length);
    chunk = gpi_tree_put(&tree, taken, GPI_LANE_QUIET, 0);
    CLAIM(chunk == &runs[0] && chunk->unit == unit && chunk->units == units);
    CLAIM(!chunk->prev && !chunk->next && quiet.units == units && quiet.runs == 1);
    CLAIM(tree.spare_count == 5);
}

// broken: s/return side->lane == lane || (/return side->lane != GPI_LANE_LIVE || (/
void prove_two_blocks_never_overlap(void) {
    gpi_run *chunk = any_chunk(), *a, *b;
    uint64_t unit = chunk->unit, units = chunk->units, at = any_below(2 * MOST);
    uint64_t length = any_below(UNITS);
    ASSUME(length > 0 && at >= unit && at + length <= unit + units);
    a = gpi_tree_take(&tree, chunk, at, length);
    if (any() & 1) chunk = a->prev; /* whatever free run the second is taken of */
    else chunk = a->next;
    ASSUME(chunk != NULL);
    at = any_below(2 * MOST);
    length = any_below(UNITS);
    ASSUME(length > 0 && at >= chunk->unit && at + length <= chunk->unit + chunk->units);
    b = gpi_tree_take(&tree, chunk, at, length);
    CLAIM(b->unit >= a->unit + a->units || a->unit >= b->unit + b->units);
    CLAIM(quiet.units == units - a->units - b->units);
    if (any() & 1) gpi_tree_put(&tree, a, GPI_LANE_STREAMS, 0);
    else gpi_tree_put(&tree, a, GPI_LANE_QUIET, 0);
    CLAIM(quiet.units + own.units == units - b->units && tree.pending_units == own.units);
    gpi_tree_put(&tree, b, GPI_LANE_QUIET, 0);
    CLAIM(quiet.units + own.units == units && quiet.runs + own.runs + tree.spare_count == 6);
    if (own.runs) gpi_tree_pour(&tree, GPI_LANE_STREAMS, GPI_LANE_QUIET);
    CLAIM(quiet.runs == 1 && runs[0].unit == unit && runs[0].units == units);
}
