/* TREE: what is taken out of a free run, and what a freed run joins, for runs of fewer than 2^6
   units, positions and borders below 2^6, with a neighbour on each side at most. Here a run that is
   filed or unfiled only notes its list, and a run's unions are structs: the checker is slow with
   either. test_tree has the bins, on small trees in every order. */
// rooms: GROUND HOST LEDGER TREE
// unwind: 4
// as: s/^    union {/    struct {/
// as: s/gpi_tree_file(tree, /prove_file(tree, /
// as: s/gpi_tree_unfile(tree, /prove_unfile(tree, /
#include <stdint.h>
struct gpi_tree;
struct gpi_run;
static void prove_file(struct gpi_tree *tree, struct gpi_run *run, uint32_t number);
static void prove_unfile(struct gpi_tree *tree, struct gpi_run *run);
#include "prove.h"

#define MOST ((uint64_t)1 << 6)
#define STREAM GPI_LIST_STREAMS

static gpi_list any_list, stream_list;
static gpi_list *lists[STREAM + 1];
static gpi_run left, middle, right;
static gpi_tree tree;
static uint64_t filed_units;

static void prove_file(gpi_tree *in, gpi_run *run, uint32_t number) {
    CLAIM(in == &tree && run->list == GPI_LIST_TAKEN && run->units > 0);
    run->list = number;
    filed_units += run->units;
}

static void prove_unfile(gpi_tree *in, gpi_run *run) {
    CLAIM(in == &tree && run->list < GPI_LIST_WAITING);
    run->list = GPI_LIST_TAKEN;
    filed_units -= run->units;
}

/* A list of any kind, or a state that is none. */
static uint32_t any_list_number(void) {
    uint64_t kind = any_below(3);
    return kind == 0 ? (uint32_t)GPI_LIST_ANY : kind == 1 ? (uint32_t)STREAM
                                                          : (uint32_t)GPI_LIST_LIVE;
}

static void neighbour(gpi_run *run) {
    run->list = any_list_number();
    run->of.at = run->list == GPI_LIST_ANY ? 0 : any_below(MOST);
    if (run->list != GPI_LIST_LIVE) filed_units += run->units;
}

static void three_runs(void) {
    lists[GPI_LIST_ANY] = &any_list;
    lists[STREAM] = &stream_list;
    tree.lists = lists;
    tree.list_count = STREAM + 1;
    middle.unit = MOST;
    middle.units = 1 + any_below(MOST);
    middle.list = GPI_LIST_TAKEN;
    left.units = 1 + any_below(MOST);
    left.unit = middle.unit - left.units;
    right.units = 1 + any_below(MOST);
    right.unit = middle.unit + middle.units;
    if (any() & 1) (middle.prev = &left)->next = &middle;
    if (any() & 1) (middle.next = &right)->prev = &middle;
}

// broken: s/prove_file(tree, gpi_tree_split(tree, run, unit + units), list)/gpi_tree_split(tree, run, unit + units)/
void prove_what_is_taken_leaves_the_rest_free(void) {
    uint32_t list = any() & 1 ? (uint32_t)GPI_LIST_ANY : (uint32_t)STREAM;
    uint64_t units = any_below(2 * MOST), unit = any_below(4 * MOST), all;
    gpi_run *run;
    three_runs();
    middle.list = list;
    middle.of.at = any();
    filed_units = all = middle.units;
    tree.spare = &left;
    left.list_next = &right;
    middle.prev = middle.next = NULL;
    tree.spare_count = 2;
    ASSUME(units > 0 && unit >= middle.unit && unit + units <= middle.unit + middle.units);
    run = gpi_tree_take(&tree, &middle, unit, units);
    CLAIM(run->unit == unit && run->units == units && run->list == GPI_LIST_TAKEN);
    CLAIM(filed_units == all - units);
    CLAIM((run->prev != NULL) == (unit > MOST));
    CLAIM((run->next != NULL) == (unit + units < MOST + all));
    CLAIM(!run->prev || (run->prev->list == list && run->prev == &middle));
    CLAIM(!run->next || (run->next->list == list && run->next->of.at == middle.of.at));
}

// broken: s/side->list != GPI_LIST_ANY || side->units > absorb_units/side->list != GPI_LIST_ANY/
void prove_a_freed_run_joins_what_may_join(void) {
    uint32_t list = any() & 1 ? (uint32_t)GPI_LIST_ANY : (uint32_t)STREAM;
    uint64_t absorb_units = any_below(MOST), at = any_below(MOST), units, middle_units;
    gpi_run *run;
    int i, stays;
    three_runs();
    for (i = 0; i < 3; i++) stream_list.borders[i] = any_below(MOST);
    neighbour(&left);
    neighbour(&right);
    middle.of.at = at;
    /* whoever absorbs frees at the stream's latest position */
    ASSUME(!absorb_units || (at >= left.of.at && at >= right.of.at));
    /* finished memory that is too large stays what other streams may take */
    stays = middle.prev && list == STREAM && left.list == GPI_LIST_ANY && left.units > absorb_units;
    middle_units = middle.units;
    units = filed_units + middle_units;
    run = gpi_tree_put(&tree, &middle, list, absorb_units);
    CLAIM(run->list == list && filed_units == units && run->unit <= MOST &&
          run->unit + run->units >= MOST + middle_units);
    CLAIM(!run->prev || run->prev->list != list || run->prev->of.at != run->of.at); /* T3 */
    CLAIM(!run->next || run->next->list != list || run->next->of.at != run->of.at);
    CLAIM(run->of.at >= (list == STREAM ? at : 0) && (!stays || run->prev == &left));
}
