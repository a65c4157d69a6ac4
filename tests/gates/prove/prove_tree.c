/* TREE, for all runs and requests of fewer than 2^40 units; two cuts in runs of fewer than 64. */
// rooms: GROUND HOST LEDGER TREE SEARCH
// unwind: 7
#include "prove.h"

#define MOST ((uint64_t)1 << 40)

// broken: s/return order \* GPI_STEPS + (uint32_t)((units << 3) >> order)/return order * GPI_STEPS + (uint32_t)((units << 4) >> order)/
void prove_later_places_have_larger_runs(void) {
    uint64_t a = any_below(MOST), b = any_below(MOST);
    ASSUME(a > 0 && a <= b);
    CLAIM(gpi_tree_bin(a) <= gpi_tree_bin(b));
    CLAIM(gpi_tree_bin(b) < GPUPOOL_ORDERS * GPI_STEPS);
}

// broken: s/return lost < run->units \&\& run->units - lost >= units/return run->units - lost >= units/
void prove_start(void) {
    gpi_run run;
    uint64_t units = any_below(MOST), align = any_power(), start, other = any_below(MOST);
    run.unit = any_below(MOST);
    run.units = any_below(MOST);
    ASSUME(units > 0 && align <= MOST);
    start = gpi_search_start(&run, units, align);
    if (start != UINT64_MAX) {
        CLAIM((start & (align - 1)) == 0 && start >= run.unit);
        CLAIM(start + units <= run.unit + run.units);
    } else if (other >= run.unit && (other & (align - 1)) == 0) {
        CLAIM(other + units > run.unit + run.units); /* nor would it fit anywhere else */
    }
}

/* Of two positions, whichever comes first, and any border: it is told if and only if it lies at or
   after the one, and before the other. */
// broken: s/low <= borders\[1\]/low < borders[1]/
void prove_what_is_between_two_positions(void) {
    static gpi_list list;
    uint64_t a = any(), b = any();
    int i, is_between = 0;
    for (i = 0; i < 3; i++) {
        list.borders[i] = any();
        is_between |= (a <= list.borders[i]) != (b <= list.borders[i]);
    }
    CLAIM(gpi_tree_has_border(&list, a, b) == is_between);
    CLAIM(gpi_tree_has_border(&list, b, a) == is_between);
}

// broken: s/return bucket \& tree->bucket_mask >> (bucket >= tree->bucket_count);/return bucket >> (bucket >= tree->bucket_count);/
void prove_a_bucket_more_takes_only_from_the_one_that_is_split(void) {
    gpi_tree tree;
    uint64_t unit = any(), before, after, half = (uint64_t)1 << any_below(40);
    tree.bucket_mask = 2 * half - 1;
    tree.bucket_count = any_below(MOST);
    ASSUME(tree.bucket_count >= half && tree.bucket_count < 2 * half);
    before = gpi_tree_bucket(&tree, unit);
    CLAIM(before < tree.bucket_count);
    tree.bucket_count++;
    after = gpi_tree_bucket(&tree, unit);
    CLAIM(after == before || (before == tree.bucket_count - 1 - half &&
                              after == tree.bucket_count - 1));
}

// broken: s/right->units = run->unit + run->units - unit;/right->units = run->units;/
void prove_what_is_cut_is_made_one_again(void) {
    static gpi_run runs[2], left, right;
    static gpi_tree tree;
    gpi_run *run = &runs[0], *part;
    uint64_t unit = any_below(MOST), units = any_below(MOST), at = any_below(2 * MOST);
    ASSUME(at > unit && at < unit + units);
    run->unit = unit;
    run->units = units;
    run->list = GPI_LIST_TAKEN;
    if (any() & 1) (run->prev = &left)->next = run;
    if (any() & 1) (run->next = &right)->prev = run;
    tree.spare = &runs[1];
    tree.spare_count = 1;
    part = gpi_tree_split(&tree, run, at);
    CLAIM(run->unit == unit && run->unit + run->units == at && run->units > 0);
    CLAIM(part->unit == at && part->unit + part->units == unit + units && part->units > 0);
    CLAIM(run->next == part && part->prev == run && tree.spare_count == 0);
    CLAIM(!part->next || (part->next == &right && right.prev == part));
    gpi_tree_join(&tree, run, part);
    CLAIM(run->unit == unit && run->units == units && tree.spare_count == 1);
    CLAIM(!run->next || (run->next == &right && right.prev == run));
    CLAIM(!run->prev || (run->prev == &left && left.next == run));
}

#define FEW ((uint64_t)1 << 6) /* with 2^40 the checker does not come to an end */

/* Cuts at any two places, in any order, and welds in any order: no two parts overlap, together they
   are all, and the struct that was the leftmost stays so (T5). */
// broken: s/    left->units += right->units;/    left->units = right->units;/
void prove_two_cuts_are_mended_in_any_order(void) {
    static gpi_run first, second, third;
    static gpi_tree tree;
    uint64_t unit = any_below(FEW), units = any_below(FEW);
    uint64_t one = any_below(2 * FEW), two = any_below(2 * FEW);
    gpi_run *middle, *last;
    ASSUME(one > unit && one < unit + units && two > unit && two < unit + units && one != two);
    first.unit = unit;
    first.units = units;
    first.list = GPI_LIST_TAKEN;
    tree.spare = &second;
    tree.spare_count = 2;
    second.list_next = &third;
    middle = gpi_tree_split(&tree, &first, one);
    last = gpi_tree_split(&tree, two < one ? &first : middle, two);
    if (two < one) {
        gpi_run *swap = middle;
        middle = last;
        last = swap;
    }
    CLAIM(first.unit == unit && first.unit + first.units == middle->unit && first.units > 0);
    CLAIM(middle->unit + middle->units == last->unit && middle->units > 0);
    CLAIM(last->unit + last->units == unit + units && last->units > 0);
    CLAIM(first.next == middle && middle->next == last && !last->next);
    CLAIM(!first.prev && middle->prev == &first && last->prev == middle);
    if (any() & 1) gpi_tree_join(&tree, middle, last);
    else gpi_tree_join(&tree, &first, middle);
    gpi_tree_join(&tree, &first, first.next);
    CLAIM(first.unit == unit && first.units == units && !first.next && !first.prev);
    CLAIM(tree.spare_count == 2 && tree.splits == 2 && tree.merges == 2);
}
