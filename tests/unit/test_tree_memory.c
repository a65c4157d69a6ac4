/* TREE on a host that has no memory left: each request that it makes is refused in turn. The call
   says so, and what was in the tree is still there. */
// build: asan -fsanitize=address
#include "fail_malloc.h"
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "tree_kit.h"

/* Fails the first request, the second, ... until none is left to fail. */
static void try_until_it_succeeds(int (*call)(void), long least_requests) {
    model m = {.units = 16, .list_count = 2, .list = {GPI_LIST_ANY, FIRST}};
    long n = 1;
    model_take(&m, 3, 5);
    model_take(&m, 9, 2);
    for (int done = 0; !done; n++) {
        check_case("request %ld", n);
        tree_open(&m);
        tree_build(&m);
        fail_malloc_nth(n, 0);
        done = call();
        CHECK_EQ(done, !fail_malloc_fired);
        fail_malloc_nth(0, 0);
        expect_state(&m);
        CHECK_EQ(call(), 1); /* now there is memory */
        expect_state(&m);
        tree_close();
        CHECK_EQ(fail_malloc_live, 0);
    }
    CHECK(n - 1 > least_requests);
}

static int prepare_runs(void) { return gpi_tree_prepare(&tree, 20 * GPI_PAGE); }

/* The index grows by a page of buckets, and its list of pages as well, at 17 pages. */
static int fill_buckets(void) {
    gpi_run *run;
    for (int i = 0; i < 17 * (int)GPI_PAGE; i++) {
        if (!gpi_tree_prepare(&tree, 1)) return 0;
        run = gpi_tree_add_chunk(&tree, TREE_BASE * 2 + (uint64_t)i, 1);
        gpi_tree_make_live(&tree, run, 0);
    }
    return 1;
}

static void drop_buckets(void) {
    for (uint64_t unit = TREE_BASE * 2; unit < TREE_BASE * 2 + 17 * GPI_PAGE; unit++) {
        gpi_run *run = gpi_tree_live(&tree, unit);
        if (!run) break;
        gpi_tree_end_life(&tree, run);
        gpi_tree_remove_chunk(&tree, run);
    }
}

static int fill_and_drop_buckets(void) {
    int done = fill_buckets();
    drop_buckets();
    return done;
}

static int add_lanes(void) {
    uint32_t lists[80], count = 0;
    while (count < 80 && (lists[count] = gpi_tree_list_add(&tree)) != GPI_LIST_LIVE) count++;
    for (uint32_t i = count; i-- > 0;) gpi_tree_list_drop(&tree, lists[i]);
    return count == 80;
}

/* Addresses in three pages of cells, and so one request for each. */
static int prepare_cells(void) {
    return gpi_tree_prepare_cells(&tree, TREE_BASE, 2 * GPI_PAGE * TREE_GRANULE);
}

/* What was there of it by then, close frees. */
static int open_a_table(void) {
    gpi_tree other;
    int done;
    memset(&other, 0, sizeof other);
    done = gpi_tree_open_table(&other, TREE_BASE - 1, 2 * GPI_PAGE, 3 * GPI_PAGE, TREE_GRANULE);
    CHECK_EQ(other.host_bytes != 0, done);
    gpi_tree_close(&other);
    return done;
}

static void no_memory_for_cells(void) { try_until_it_succeeds(prepare_cells, 2); }
static void no_memory_for_a_table(void) { try_until_it_succeeds(open_a_table, 2); }
static void no_memory_for_run_structs(void) { try_until_it_succeeds(prepare_runs, 20); }
static void no_memory_for_buckets(void) { try_until_it_succeeds(fill_and_drop_buckets, 17 + 18); }
static void no_memory_for_lanes(void) { try_until_it_succeeds(add_lanes, 40); }

static void no_memory_to_open(void) {
    gpi_tree none, opened;
    long n = 1;
    memset(&none, 0, sizeof none);
    for (int done = 0; !done; n++) {
        check_case("request %ld", n);
        memset(&opened, 0, sizeof opened);
        fail_malloc_nth(n, 0);
        done = gpi_tree_open(&opened);
        CHECK_EQ(done, !fail_malloc_fired);
        if (done) gpi_tree_close(&opened);
        CHECK(memcmp(&opened, &none, sizeof none) == 0);
        CHECK_EQ(fail_malloc_live, 0);
    }
    fail_malloc_nth(0, 0);
    CHECK(n > 6); /* the list of lists, three lists, and pages of run structs and of buckets */
}

int main(void) {
    TEST(no_memory_for_run_structs);
    TEST(no_memory_for_buckets);
    TEST(no_memory_for_lanes);
    TEST(no_memory_for_cells);
    TEST(no_memory_for_a_table);
    TEST(no_memory_to_open);
    return check_finish();
}
