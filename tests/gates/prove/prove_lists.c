/* TREE's lists, in free lists of four orders, with runs or none in each. The checker sees a struct
   with arrays as bytes, so that calls which file runs in a list do not come to an end here;
   test_tree has them on small trees in every order. */
// rooms: GROUND HOST LEDGER TREE
// unwind: 3
// as: s/\b64\b/4/g
// as: s/GPUPOOL_ORDERS = 41/GPUPOOL_ORDERS = 4/
#include "prove.h"

static int has_runs(const gpi_list *list, uint32_t place) {
    return list->steps[place / GPI_STEPS] >> place % GPI_STEPS & 1;
}

static int bits_agree(const gpi_list *list, uint32_t place) {
    return (list->steps[place / GPI_STEPS] != 0) ==
           (list->orders[place / GPI_KIND_BINS] >> place % GPI_KIND_BINS / GPI_STEPS & 1);
}

// broken: s/(~(uint64_t)1 << row % 4)/(~(uint64_t)0 << row % 4)/
void prove_the_next_list_is_the_first_with_runs(void) {
    static gpi_list list;
    uint32_t place = (uint32_t)any_below(GPI_NO_BIN), next, other;
    other = place / GPI_KIND_BINS * GPI_KIND_BINS + (uint32_t)any_below(GPI_KIND_BINS);
    list.orders[0] = any_below(1 << 4);
    list.orders[1] = any_below(1 << 4);
    list.orders[2] = any_below(1 << 4);
    /* the three rows that can matter */
    list.steps[any_below(GPI_NO_BIN / GPI_STEPS)] = (uint8_t)any();
    list.steps[other / GPI_STEPS] = (uint8_t)any();
    list.steps[place / GPI_STEPS] = (uint8_t)any();
    ASSUME(bits_agree(&list, place) && bits_agree(&list, other)); /* T2 */
    next = gpi_tree_next(&list, place);
    if (next != GPI_NO_BIN) {
        ASSUME(bits_agree(&list, next));
        CLAIM(next >= place && next / GPI_KIND_BINS == place / GPI_KIND_BINS &&
              has_runs(&list, next));
    }
    if (other >= place && other < next) CLAIM(!has_runs(&list, other));
}
