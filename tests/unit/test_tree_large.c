/* TREE where it is large: all orders up to 2^40 bytes, and an index of 100,000 live runs; and where
   it is small: single calls on a few runs. */
// build: asan -fsanitize=address
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "tree_kit.h"

#define HUGE_UNITS ((uint64_t)1 << 31) /* 2^40 bytes in units of 512 */
#define HUGE_GRANULE 4096

/* ---- order and step of a size ---- */

/* The sizes of an order go by, an eighth of it a step. */
static void expect_place(uint64_t units) {
    uint32_t place = gpi_tree_bin(units);
    unsigned order = 0, step = 0;
    check_case("%llu units", (unsigned long long)units);
    while ((uint64_t)2 << order <= units) order++;
    while (step < 7 && (uint64_t)(8 + step + 1) << order <= units * 8) step++;
    CHECK_EQ(place / GPI_STEPS, order);
    CHECK_EQ(place % GPI_STEPS, step);
}

static void places_of_all_sizes(void) {
    for (uint64_t units = 1; units <= 65536; units++) expect_place(units);
    for (unsigned order = 3; order < GPUPOOL_ORDERS; order++)
        for (uint64_t step = 8; step <= 16; step++)
            for (uint64_t around = 0; around < 3; around++)
                expect_place((step << (order - 3)) + around - 1);
}

/* ---- the largest run that has a place ---- */

/* In the last step of the last order: where a request misses it, there is no step after it. */
static void the_last_place(void) {
    uint64_t most = ((uint64_t)1 << GPUPOOL_ORDERS) - 1;
    gpi_lists any = {{GPI_LIST_ANY, 0}, 1, UINT64_MAX};
    gpi_fit fit = tree_fit(most, 1, 4);
    gpi_tree one;
    gpi_run *run;
    memset(&one, 0, sizeof one);
    CHECK_EQ(gpi_tree_open(&one), 1);
    run = gpi_tree_put(&one, gpi_tree_add_chunk(&one, TREE_BASE, most), GPI_LIST_ANY, 0);
    CHECK_EQ(gpi_tree_bin(most), (GPUPOOL_ORDERS - 1) * 8 + 7);
    CHECK(gpi_search_find(&one, &any, &fit) == run);
    fit.align_units = 2;
    CHECK(gpi_search_find(&one, &any, &fit) == NULL); /* it begins at an odd unit */
    fit.units = (uint64_t)1 << (GPUPOOL_ORDERS - 1);
    CHECK(gpi_search_find(&one, &any, &fit) == run);
    CHECK_EQ(gpi_check_tree(&one), 0);
    gpi_tree_close(&one);
}

/* ---- a walk that stands at a run ---- */

/* The run joins its left neighbour, or its right one joins it: the walk goes on with what it is in
   then. */
static void a_walk_goes_on_with_the_left_one(void) {
    gpi_tree one;
    gpi_run *first, *second, *third;
    memset(&one, 0, sizeof one);
    CHECK_EQ(gpi_tree_open(&one), 1);
    CHECK_EQ(gpi_tree_prepare(&one, 4), 1);
    first = gpi_tree_add_chunk(&one, TREE_BASE, 12);
    second = gpi_tree_split(&one, first, TREE_BASE + 4);
    third = gpi_tree_split(&one, second, TREE_BASE + 8);
    gpi_tree_put(&one, second, GPI_LIST_ANY, 0);
    one.cursor = second;
    gpi_tree_put(&one, third, GPI_LIST_ANY, 0);
    CHECK(one.cursor->unit == TREE_BASE + 4 && one.cursor->units == 8);
    gpi_tree_put(&one, first, GPI_LIST_ANY, 0);
    CHECK(one.cursor->unit == TREE_BASE && one.cursor->units == 12);
    one.cursor = NULL;
    CHECK_EQ(gpi_check_tree(&one), 0);
    gpi_tree_close(&one);
}

/* ---- trees of a few runs ---- */

#define FEW_GRANULE 16

static gpi_tree few;

/* A table of so many granules, all with cells. */
static void open_few(uint64_t granules) {
    memset(&few, 0, sizeof few);
    CHECK_EQ(gpi_tree_open(&few), 1);
    CHECK_EQ(gpi_tree_open_table(&few, 0, granules, granules, FEW_GRANULE), 1);
    CHECK_EQ(gpi_tree_prepare_cells(&few, 0, (granules - 1) * FEW_GRANULE), 1);
    CHECK_EQ(gpi_tree_prepare(&few, 8), 1);
    CHECK_EQ(gpi_tree_list_add(&few), GPI_LIST_STREAMS);
}

static void close_few(void) {
    CHECK_EQ(gpi_check_tree(&few), 0);
    gpi_tree_close(&few);
}

static gpi_run *add_free(uint64_t unit, uint64_t units, uint32_t list, uint64_t at) {
    gpi_run *run = gpi_tree_add_chunk(&few, unit, units);
    run->of.at = at;
    return gpi_tree_put(&few, run, list, 0);
}

/* Memory of a stream is not, that of a tag is. */
static void what_is_finished(void) {
    gpi_run run;
    memset(&run, 0, sizeof run);
    for (run.list = GPI_LIST_ANY; run.list < GPI_LIST_STREAMS + 2; run.list++)
        CHECK_EQ(gpi_tree_is_finished(&run),
                 run.list == GPI_LIST_ANY ||
                     (run.list >= GPI_LIST_TAGS && run.list < GPI_LIST_STREAMS));
    run.list = GPI_LIST_LIVE;
    CHECK(!gpi_tree_is_finished(&run));
}

/* Runs that join are at the latest position of any of them, on whichever side that lies. */
static void what_joins_is_at_the_latest_position(void) {
    static const uint64_t at[][3] = {{5, 3, 7}, {7, 3, 5}, {5, 7, 3}};
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        gpi_run *run[3], *all = NULL;
        open_few(4);
        run[0] = gpi_tree_add_chunk(&few, 0, 12);
        for (uint64_t k = 1; k < 3; k++) run[k] = gpi_tree_split(&few, run[k - 1], 4 * k);
        for (int k = 0; k < 3; k++) run[k]->of.at = at[i][k];
        for (int k = 0; k < 3; k++) /* the middle one last */
            all = gpi_tree_put(&few, run[k == 0 ? 0 : 3 - k], GPI_LIST_STREAMS, 0);
        CHECK_EQ(all->units, 12);
        CHECK_EQ(all->of.at, 7);
        close_few();
    }
}

/* All of a list, a single unit as well as the largest run, and nothing of another list. */
static void a_list_gets_one_position(void) {
    static const uint64_t units[] = {1, 2, 9, 30};
    gpi_run *run[4], *other;
    open_few(16);
    for (uint64_t i = 0; i < 4; i++)
        run[i] = add_free(i * 2 * FEW_GRANULE, units[i], GPI_LIST_STREAMS, i + 1);
    CHECK_EQ(gpi_tree_list_add(&few), GPI_LIST_STREAMS + 1);
    other = add_free(10 * FEW_GRANULE, 1, GPI_LIST_STREAMS + 1, 1);
    gpi_tree_restamp(&few, GPI_LIST_STREAMS, 9);
    for (int i = 0; i < 4; i++) CHECK_EQ(run[i]->of.at, 9);
    CHECK_EQ(other->of.at, 1);
    close_few();
}

/* Of the last granule, too; and of what lies behind the table there is none. */
static void owners_up_to_the_end_of_the_table(void) {
    uint64_t last = (GPI_PAGE + 3) * FEW_GRANULE;
    open_few(4);
    gpi_tree_own(&few, 0, 4 * FEW_GRANULE, &few);
    for (uint64_t i = 0; i < 4; i++) CHECK(gpi_tree_owner(&few, i * FEW_GRANULE + 5) == &few);
    close_few();
    open_few(GPI_PAGE + 4);
    gpi_tree_own(&few, last, FEW_GRANULE, &few);
    CHECK(gpi_tree_owner(&few, last) == &few);
    few.cell_pages--; /* as if it ended before */
    CHECK(gpi_tree_owner(&few, last) == NULL);
    few.cell_pages++;
    close_few();
}

/* The last granule but one of a table, the last of which is in use: no slab afterwards. */
static void slabs_are_dropped_up_to_the_last(void) {
    uint64_t slab = 192 * FEW_GRANULE;
    open_few(194);
    gpi_tree_mark_slab(&few, slab);
    CHECK(gpi_tree_is_slab(&few, slab));
    gpi_tree_drop_slabs(&few);
    gpi_tree_mark_slab(&few, 0); /* a later one does not bring it back */
    CHECK(gpi_tree_is_slab(&few, 0) && !gpi_tree_is_slab(&few, slab));
    gpi_tree_drop_slabs(&few);
    close_few();
}

/* Of any stretch of granules, wherever in a word of bits it begins and ends. */
static void slabs_of_a_stretch_are_counted(void) {
    static const uint64_t slabs[] = {0, 3, 63, 64, 65, 127, 128, 131};
    open_few(132);
    for (int i = 0; i < 8; i++) gpi_tree_mark_slab(&few, slabs[i] * FEW_GRANULE);
    for (uint64_t first = 0; first < 132; first++)
        for (uint64_t end = first; end <= 132; end++) {
            uint64_t count = 0;
            for (int i = 0; i < 8; i++) count += slabs[i] >= first && slabs[i] < end;
            check_case("from %d to %d", (int)first, (int)end);
            CHECK_EQ(gpi_check_slabs(&few, first, end), count);
        }
    gpi_tree_drop_slabs(&few);
    close_few();
}

/* What lies behind the last list is none, though the array has room there. */
static void lists_up_to_the_last(void) {
    gpi_run *run;
    open_few(4);
    run = add_free(FEW_GRANULE, FEW_GRANULE, GPI_LIST_STREAMS, 0);
    gpi_tree_unfile(&few, run);
    gpi_tree_mark_slab(&few, run->unit);
    gpi_tree_file(&few, run, GPI_LIST_STREAMS);
    few.lists[GPI_LIST_STREAMS]->usable_below = 7;
    few.list_count--; /* as if it were no list */
    gpi_tree_clear_usable(&few);
    gpi_tree_drop_slabs(&few);
    few.list_count++;
    CHECK_EQ(few.lists[GPI_LIST_STREAMS]->usable_below, 7);
    CHECK_EQ(run->as.bin / GPI_KIND_BINS, GPI_KIND_SLABS);
    gpi_tree_clear_usable(&few);
    CHECK_EQ(few.lists[GPI_LIST_STREAMS]->usable_below, 0);
    gpi_tree_mark_slab(&few, run->unit);
    gpi_tree_drop_slabs(&few);
    CHECK_EQ(run->as.bin / GPI_KIND_BINS, GPI_INNER);
    close_few();
}

/* The struct of a dropped list becomes another list, and nothing of the old one is in it. */
static void a_list_that_was_another_streams(void) {
    gpi_list *list;
    open_few(4);
    list = few.lists[GPI_LIST_STREAMS];
    list->owner = &few;
    list->borders[1] = 3;
    gpi_tree_list_drop(&few, GPI_LIST_STREAMS);
    CHECK_EQ(gpi_tree_list_open(&few, GPI_LIST_TAGS), 1);
    CHECK(few.lists[GPI_LIST_TAGS] == list);
    CHECK(list->owner == NULL);
    CHECK_EQ(list->borders[1], 0);
    close_few();
}

/* A slab made of a stream's memory takes in nothing of a slab of finished memory beside it. */
static void a_slab_beside_a_unit_of_another(void) {
    gpi_lists any = {{GPI_LIST_ANY, 0}, 1, UINT64_MAX};
    gpi_lists own = {{GPI_LIST_STREAMS, 0}, 1, UINT64_MAX};
    gpi_run *slab, *taken, *second;
    open_few(8);
    taken = gpi_tree_add_chunk(&few, 0, 2 * FEW_GRANULE);
    second = gpi_tree_split(&few, taken, FEW_GRANULE);
    gpi_tree_put(&few, taken, GPI_LIST_ANY, 0);
    second->of.at = 1;
    gpi_tree_put(&few, second, GPI_LIST_STREAMS, 0);
    slab = gpi_search_add_slab(&few, &any, 0);
    CHECK_EQ(slab->unit, 0);
    taken = gpi_tree_take(&few, slab, 0, FEW_GRANULE - 1); /* a unit is free in it */
    slab = gpi_search_add_slab(&few, &own, 0);
    CHECK_EQ(slab->unit, FEW_GRANULE);
    CHECK_EQ(slab->units, FEW_GRANULE);
    CHECK_EQ(slab->prev->list, GPI_LIST_ANY);
    gpi_tree_put(&few, taken, GPI_LIST_ANY, 0);
    gpi_tree_drop_slabs(&few);
    close_few();
}

/* A run that holds no whole granule is passed over for the next of its size, as often as said. */
static void a_slab_behind_a_run_that_does_not_fit(void) {
    gpi_lists any = {{GPI_LIST_ANY, 0}, 1, UINT64_MAX};
    gpi_run *fits, *slab;
    open_few(16);
    fits = add_free(4 * FEW_GRANULE, FEW_GRANULE, GPI_LIST_ANY, 0);
    add_free(8 * FEW_GRANULE + 8, FEW_GRANULE + 1, GPI_LIST_ANY, 0); /* looked at first */
    CHECK(gpi_search_add_slab(&few, &any, 0) == NULL);
    slab = gpi_search_add_slab(&few, &any, 1);
    CHECK(slab == fits && gpi_tree_is_slab(&few, 4 * FEW_GRANULE));
    gpi_tree_drop_slabs(&few);
    close_few();
}

/* ---- random calls in 2^31 units ---- */

static void open_huge(void) {
    model lists = {.units = 1, .list_count = 3,
                   .list = {GPI_LIST_ANY, FIRST, SECOND}};
    tree_open_lanes(&lists);
    tree_open_table(HUGE_UNITS, HUGE_GRANULE);
    tree_open_chunk(HUGE_UNITS, GPI_LIST_ANY);
}

/* The chunk is tiled from end to end by runs that know their neighbours. */
static void expect_tiled(void) {
    uint64_t unit = TREE_BASE;
    const gpi_run *run = tree_first, *last = NULL;
    for (; run; last = run, run = run->next) {
        CHECK(run->unit == unit && run->units > 0 && run->prev == last);
        unit += run->units;
    }
    CHECK_EQ(unit, TREE_BASE + HUGE_UNITS);
}

/* Each run by the last of its units, and by one that chance picks; but for those with no run behind
   them in a later granule. */
static void expect_found(uint64_t *random) {
    const gpi_run *run = tree_first;
    CHECK_EQ(gpi_check_table(&tree, run), 0);
    for (; run; run = run->next) {
        uint64_t last = run->unit + run->units - 1;
        const gpi_run *next = run->next;
        while (next && next->unit / HUGE_GRANULE <= last / HUGE_GRANULE) next = next->next;
        if (!next) return;
        CHECK(gpi_tree_at(&tree, last) == run);
        CHECK(gpi_tree_at(&tree, run->unit + check_below(random, run->units)) == run);
    }
}

static int fits_somewhere(unsigned lane_mask, uint64_t units, uint64_t align) {
    for (const gpi_run *run = tree_first; run; run = run->next) {
        uint64_t over = run->unit % align, lost = over ? align - over : 0;
        if (run->list > LIST_LAST || !(lane_mask >> kind_of(run) & 1)) continue;
        if (run->units >= lost && run->units - lost >= units) return 1;
    }
    return 0;
}

/* As often of one order as of another. */
static uint64_t random_units(uint64_t *random) {
    return 1 + check_below(random, (uint64_t)1 << check_below(random, 32));
}

static gpi_run *take_somewhere(uint64_t *random) {
    unsigned lane_mask = check_below(random, 2) ? 1u : 1u | 1u << FIRST;
    uint64_t units = random_units(random), align = (uint64_t)1 << check_below(random, 30), start;
    gpi_run *run = tree_find(lane_mask, units, align, UINT64_MAX);
    CHECK_EQ(run != NULL, fits_somewhere(lane_mask, units, align));
    if (!run) return NULL;
    start = gpi_search_start(run, units, align);
    CHECK(start % align == 0 && start >= run->unit &&
          run->unit + run->units >= start + units);
    run = gpi_tree_take(&tree, run, start, units);
    gpi_tree_make_live(&tree, run, 0);
    return run;
}

/* Each free has a later position than any before; a mark now and then is a border of both free
   lists. */
static uint64_t position, marked;

static void set_mark(uint64_t *random) {
    for (uint32_t list = GPI_LIST_STREAMS; list <= LIST_LAST; list++)
        tree.lists[list]->borders[1 + check_below(random, 2)] = position;
    marked = position;
}

/* What was freed before the mark is finished; of one list it is anybody's from now on. */
static void pass_mark(void) {
    const gpi_run *run = tree_first;
    for (uint32_t list = GPI_LIST_STREAMS; list <= LIST_LAST; list++)
        tree.lists[list]->borders[0] = marked;
    gpi_tree_finish(&tree, LIST_LAST, marked);
    for (; run; run = run->next)
        CHECK(run->list == GPI_LIST_ANY ? run->of.at == 0
                                    : run->list != LIST_LAST || run->of.at > marked);
}

static void put_somewhere(gpi_run *run, uint64_t *random) {
    uint64_t absorb = check_below(random, 2) ? run->units : UINT64_MAX;
    uint32_t list = check_below(random, 3) ? GPI_LIST_ANY : GPI_LIST_STREAMS;
    if (list) list += (uint32_t)check_below(random, 2);
    gpi_tree_end_life(&tree, run);
    run->of.at = ++position;
    run = gpi_tree_put(&tree, run, list, absorb);
    CHECK_EQ(run->of.at, list ? position : 0);
}

static void random_calls_of_all_orders(void) {
    gpi_run *live[300] = {NULL};
    uint64_t random = 7;
    unsigned long long taken = 0, orders = 0;
    open_huge();
    for (int call = 0; call < 20000; call++) {
        size_t i = (size_t)check_below(&random, 300);
        check_case("seed 7, call %d", call);
        CHECK_EQ(gpi_tree_prepare(&tree, 3), 1);
        if (live[i]) put_somewhere(live[i], &random);
        live[i] = live[i] ? NULL : take_somewhere(&random);
        if (live[i]) taken++, orders |= 1ull << gpi_tree_order(gpi_tree_bin(live[i]->units));
        if (call % 100 == 0) set_mark(&random);
        if (call % 1000 == 50) pass_mark();
        if (call % 16 == 0) CHECK_EQ(gpi_check_tree(&tree), 0);
        if (call % 16 == 0) expect_tiled();
        if (call % 1000 == 0) expect_found(&random);
    }
    CHECK(taken > 5000);
    CHECK_EQ(orders & 0x1fffffff, 0x1fffffff); /* a block of each order up to 2^37 bytes */
    tree_close();
}

static void one_block_of_all_units(void) {
    open_huge();
    gpi_run *run = tree_find(1, HUGE_UNITS, 1, 0);
    if (CHECK(run == tree_first)) {
        run = gpi_tree_take(&tree, run, TREE_BASE, HUGE_UNITS);
        gpi_tree_make_live(&tree, run, 0);
        CHECK_EQ(tree.live_by_order[31], 1);
        CHECK(!tree_find(1, 1, 1, UINT64_MAX));
        CHECK_EQ(gpi_check_tree(&tree), 0);
    }
    tree_close();
}

/* ---- the index ---- */

#define MANY 100000

static gpi_run *many[MANY];

static void shuffle(uint64_t *random) {
    for (size_t i = MANY; i-- > 1;) {
        size_t other = (size_t)check_below(random, i + 1);
        gpi_run *run = many[i];
        many[i] = many[other];
        many[other] = run;
    }
}

static uint64_t longest_bucket(void) {
    uint64_t longest = 0;
    for (uint64_t bucket = 0; bucket < tree.bucket_count; bucket++) {
        uint64_t length = 0;
        const gpi_run *run = *gpi_tree_head(&tree, bucket);
        for (; run; run = run->list_next) length++;
        if (length > longest) longest = length;
    }
    return longest;
}

/* A lookup of each that is in, and of each that is not. */
static void expect_first(size_t count) {
    for (size_t i = 0; i < MANY; i++)
        CHECK((gpi_tree_live(&tree, many[i]->unit) == many[i]) == (i < count));
}

/* Held runs, `stride` units apart, are brought alive and laid down in random order. */
static void index_with_stride(uint64_t stride) {
    uint64_t random = stride;
    gpi_run *rest = NULL;
    check_case("stride %llu", (unsigned long long)stride);
    open_huge();
    CHECK_EQ(gpi_tree_prepare(&tree, MANY + 1), 1);
    rest = gpi_tree_take(&tree, tree_first, TREE_BASE, HUGE_UNITS);
    for (size_t i = 0; i < MANY; i++) {
        many[i] = rest;
        rest = gpi_tree_split(&tree, rest, TREE_BASE + (uint64_t)(i + 1) * stride);
    }
    shuffle(&random);
    for (size_t i = 0; i < MANY; i++) {
        if (!CHECK_EQ(gpi_tree_prepare(&tree, 0), 1)) break;
        gpi_tree_make_live(&tree, many[i], 0);
        if (i % 20000 == 0) expect_first(i + 1);
    }
    CHECK_EQ(gpi_check_tree(&tree), 0);
    CHECK(longest_bucket() <= 24); /* evenly spread, about ten */
    shuffle(&random);
    for (size_t i = MANY; i-- > 0;) {
        gpi_tree_end_life(&tree, many[i]);
        if (i % 20000 == 0) expect_first(i);
    }
    CHECK_EQ(gpi_check_tree(&tree), 0);
    CHECK_EQ(tree.live_runs, 0);
    tree_close();
}

static void index_of_many_live_runs(void) {
    index_with_stride(1);
    index_with_stride(37);
    index_with_stride(4096);  /* 2 MiB: what granules begin at */
    index_with_stride(20000);
}

int main(void) {
    TEST(places_of_all_sizes);
    TEST(the_last_place);
    TEST(a_walk_goes_on_with_the_left_one);
    TEST(what_is_finished);
    TEST(what_joins_is_at_the_latest_position);
    TEST(a_list_gets_one_position);
    TEST(owners_up_to_the_end_of_the_table);
    TEST(slabs_are_dropped_up_to_the_last);
    TEST(slabs_of_a_stretch_are_counted);
    TEST(lists_up_to_the_last);
    TEST(a_list_that_was_another_streams);
    TEST(a_slab_beside_a_unit_of_another);
    TEST(a_slab_behind_a_run_that_does_not_fit);
    TEST(random_calls_of_all_orders);
    TEST(one_block_of_all_units);
    TEST(index_of_many_live_runs);
    return check_finish();
}
