/* PLAN: the addresses of a new stitch, and its parts, for blocks of fewer than 32 units. What is
   free and the host's memory are given here; test_stitch has arenas that find them. */
// rooms: GROUND HOST DRIVER LEDGER TREE SEARCH CACHE CLOCK EVENT CHECK CHUNK GROWTH STITCH PLAN
// unwind: 4
// as: s/^    union {/    struct {/
// as: s/\b64\b/4/g
// as: s/gpi_search_find(tree, &space, &fit);/space_run();/
// as: s/gpi_tree_prepare(tree, 4)/1/
// as: s/gpi_tree_prepare_cells(tree, start + skip, 0)/1/
// as: s/run = gpi_tree_take(tree, run, start, stitch->units);/take_space(run, start, stitch->units);/
// as: s/gpi_tree_own(tree, gpi/own(tree, gpi/
// as: s/gpi_tree_own(stitches->tree, gpi/own(stitches->tree, gpi/
// as: s/gpi_tree_put(stitches->tree, run, GPI_LIST_SPACE, 0);/put_space(run);/
#include <stdint.h>
struct gpi_run;
static struct gpi_run *space_run(void);
static void take_space(struct gpi_run *run, uint64_t unit, uint64_t units);
static void put_space(struct gpi_run *run);
#define own(tree, unit, units, owner) ((void)(owner))
#include "prove.h"

#define MOST ((uint64_t)1 << 5)
#define START ((uint64_t)1 << 12)

static gpi_chunk head;
static gpi_chunks chunks;
static gpi_stitches stitches;
static gpi_plan plan;
static gpi_tree tree;
static gpi_run space, spare, last_spare;
static gpi_stitch stitch;

static gpi_run *space_run(void) { return &space; }

static void take_space(gpi_run *run, uint64_t unit, uint64_t units) {
    run->unit = unit;
    run->units = units;
    run->list = GPI_LIST_TAKEN;
}

/* The addresses come back as one run. */
static void put_space(gpi_run *run) {
    CLAIM(run == &space && run->unit == stitch.unit && run->units == stitch.units);
    CLAIM(!run->prev && !run->next && tree.spare_count == 2);
}

/* A stitch with so many units of the head's chunk before its block, and any behind it. */
static void any_stitch(uint64_t skip) {
    plan.align_units = (uint64_t)1 << any_below(8);
    plan.units = 1 + any_below(MOST);
    plan.head.chunk = &head;
    plan.head.units = plan.align_units > 1 ? 0 : any_below(MOST); /* S7 */
    head.units = skip + plan.head.units;
    ASSUME(plan.head.units > 0 || skip == 0);
    stitch.units = skip + plan.units + any_below(MOST);
    space.unit = START;
    space.units = 8 * MOST;
    chunks.granule_units = 4;
    stitches.chunks = &chunks;
    stitches.tree = &tree;
    tree.spare = &spare;
    spare.list_next = &last_spare;
    tree.spare_count = 2;
}

// broken: s/plan->head.chunk->units - plan->head.units : 0, start;/plan->head.units : 0, start;/
void prove_a_block_begins_where_its_head_does(void) {
    uint64_t skip = any_below(MOST);
    const gpi_run *body;
    any_stitch(skip);
    CLAIM(gpi_plan_take_addresses(&stitches, &plan, &stitch) == GPUPOOL_OK);
    body = stitch.body;
    CLAIM(stitch.unit == START && body->unit == START + skip && body->units == plan.units);
    CLAIM((body->prev != NULL) == (skip > 0));
    CLAIM(body->next ? body->next->units == stitch.units - skip - plan.units
                     : stitch.units == skip + plan.units);
}

// broken: s/while (run->unit > stitch->unit) {/while (run->unit > stitch->unit + 1) {/
void prove_the_addresses_of_a_stitch_come_back_as_one_run(void) {
    any_stitch(any_below(MOST));
    CLAIM(gpi_plan_take_addresses(&stitches, &plan, &stitch) == GPUPOOL_OK);
    gpi_stitch_free_addresses(&stitches, &stitch);
}

static gpi_run one, two;
static gpi_part parts[2];

static void part(int number, gpi_run *run, uint64_t unit) {
    run->unit = unit;
    run->units = 1 + any_below(MOST);
    run->list = GPI_LIST_TAKEN;
    parts[number].run = run;
    parts[number].unit = unit;
    parts[number].units = run->units;
}

// broken: s/last->units += part->units;//
void prove_parts_become_one_where_they_are_side_by_side(void) {
    uint64_t apart = any_below(2), units, first_units;
    uint32_t i;
    part(0, &one, START);
    part(1, &two, START + one.units + apart);
    first_units = one.units;
    units = one.units + two.units;
    if (!apart) one.next = &two, two.prev = &one;
    stitches.tree = &tree;
    stitch.parts = parts;
    stitch.part_count = 2;
    gpi_plan_use_parts(&stitches, &stitch);
    CLAIM(stitch.part_count == 1 + apart);
    CLAIM(parts[0].unit == START && parts[0].run == &one);
    if (apart) CLAIM(parts[0].units == first_units && parts[1].units == units - first_units &&
                     parts[1].unit == START + first_units + 1 && parts[1].run == &two);
    else CLAIM(parts[0].units == units && tree.spare == &two);
    for (i = 0; i < stitch.part_count; i++) {
        const gpi_run *run = parts[i].run;
        CLAIM(run->unit == parts[i].unit && run->units == parts[i].units);
        CLAIM(run->list == GPI_LIST_PART && run->of.uses == &stitch);
    }
}
