/* TREE, what it is asked: for all runs and requests of fewer than 2^40 units. */
// rooms: GROUND HOST LEDGER TREE
// unwind: 8
#include "prove.h"

#define MOST ((uint64_t)1 << 40)

// broken: s/units >> (place.order - 3) : /units >> (place.order - 4) : /
void prove_later_steps_have_larger_runs(void) {
    uint64_t a = any_below(MOST), b = any_below(MOST);
    gpi_place at, then;
    ASSUME(a > 0 && a <= b);
    at = gpi_tree_place(a);
    then = gpi_tree_place(b);
    CLAIM(then.order < GPUPOOL_ORDERS && then.step < GPI_STEPS);
    CLAIM(at.order < then.order || (at.order == then.order && at.step <= then.step));
}

// broken: s/return lost < run->units \&\& run->units - lost >= units/return run->units - lost >= units/
void prove_start(void) {
    gpi_run run;
    uint64_t units = any_below(MOST), align = any_power(), start, other = any_below(MOST);
    run.unit = any_below(MOST);
    run.units = any_below(MOST);
    ASSUME(units > 0 && align <= MOST);
    start = gpi_tree_start(&run, units, align);
    if (start != UINT64_MAX) {
        CLAIM(start % align == 0 && start >= run.unit);
        CLAIM(start + units <= run.unit + run.units);
    } else if (other >= run.unit && (other & (align - 1)) == 0) {
        CLAIM(other + units > run.unit + run.units); /* nor would it fit anywhere else */
    }
}

// broken: s/hash \& ((2ull << bits) - 1)/hash % (tree->bucket_count + 1)/
void prove_a_bucket_more_takes_only_from_the_one_that_is_split(void) {
    gpi_tree tree;
    uint64_t unit = any(), before, after, old;
    tree.bucket_count = any_below(MOST);
    ASSUME(tree.bucket_count > 0);
    before = gpi_tree_bucket(&tree, unit);
    CLAIM(before < tree.bucket_count);
    old = tree.bucket_count - (1ull << gpi_ground_high_bit(tree.bucket_count));
    tree.bucket_count++;
    after = gpi_tree_bucket(&tree, unit);
    CLAIM(after < tree.bucket_count);
    CLAIM(after == before || (before == old && after == tree.bucket_count - 1));
}
