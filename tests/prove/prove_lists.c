/* TREE's lists, in lanes of four orders, with runs or none in each. The checker sees a struct with
   arrays as bytes, so that calls which file runs in a lane do not come to an end here; test_tree
   has them on small trees in every order. */
// rooms: GROUND HOST LEDGER TREE
// unwind: 3
// as: s/\b64\b/4/g; s/GPUPOOL_ORDERS 48/GPUPOOL_ORDERS 4/
#include "prove.h"

static int has_runs(const gpi_lane *lane, uint32_t place) {
    return lane->steps[place / GPI_STEPS] >> place % GPI_STEPS & 1;
}

static int bits_agree(const gpi_lane *lane, uint32_t place) {
    return (lane->steps[place / GPI_STEPS] != 0) ==
           (lane->orders[place / GPI_SHELF] >> place % GPI_SHELF / GPI_STEPS & 1);
}

// broken: s/(~(uint64_t)1 << row % 4)/(~(uint64_t)0 << row % 4)/
void prove_the_next_list_is_the_first_with_runs(void) {
    static gpi_lane lane;
    uint32_t place = (uint32_t)any_below(GPI_NO_PLACE), next, other;
    other = place / GPI_SHELF * GPI_SHELF + (uint32_t)any_below(GPI_SHELF);
    lane.orders[0] = any_below(1 << 4);
    lane.orders[1] = any_below(1 << 4);
    lane.orders[2] = any_below(1 << 4);
    /* the three rows that can matter */
    lane.steps[any_below(GPI_NO_PLACE / GPI_STEPS)] = (uint8_t)any();
    lane.steps[other / GPI_STEPS] = (uint8_t)any();
    lane.steps[place / GPI_STEPS] = (uint8_t)any();
    ASSUME(bits_agree(&lane, place) && bits_agree(&lane, other)); /* T2 */
    next = gpi_tree_next(&lane, place);
    if (next != GPI_NO_PLACE) {
        ASSUME(bits_agree(&lane, next));
        CLAIM(next >= place && next / GPI_SHELF == place / GPI_SHELF && has_runs(&lane, next));
    }
    if (other >= place && other < next) CLAIM(!has_runs(&lane, other));
}
