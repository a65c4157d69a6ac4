// build: plain -O1
/* BUDDY's search in every state of seven slots: it finds the closest fit among all runs, by units,
   alignment, lists and position; and the index of live blocks. */
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "check.h"
#include "buddy_kit.h"

static long states, calls;
static gpi_run *runs[BUDDY_SLOTS];

/* Where a block would begin, and whether it fits: by addresses alone. */
static int fits(const gpi_run *run, uint64_t units, uint64_t alignment, uint64_t *start) {
    uint64_t odd = gpi_address(&buddy, run->unit) % alignment;
    *start = run->unit + (odd ? alignment - odd : 0) / GPI_UNIT;
    return *start + units <= run->unit + run->units;
}

/* The bin of the closest fit; GPI_NO_BIN: nothing fits. */
static uint32_t closest(const gpi_search *search) {
    uint32_t best = GPI_NO_BIN;
    for (int slot = 0; slot < BUDDY_SLOTS; slot++) {
        const gpi_run *run = runs[slot];
        uint64_t start;
        if (!run || run->state != GPI_FREE || run->of.at >= search->below) continue;
        if (run->list != search->lists[0] && run->list != search->lists[1]) continue;
        if (!fits(run, search->units, search->alignment, &start)) continue;
        if (gpi_buddy_bin(run->units) < best) best = gpi_buddy_bin(run->units);
    }
    return best;
}

static void look(const gpi_search *search) {
    uint32_t best = closest(search);
    gpi_run *run = gpi_buddy_find(&buddy, search);
    uint64_t start;
    calls++;
    if (!CHECK_EQ(run != NULL, best != GPI_NO_BIN) || !run) return;
    CHECK_EQ(gpi_buddy_bin(run->units), best);
    CHECK(run->of.at < search->below);
    CHECK(fits(run, search->units, search->alignment, &start));
    CHECK_EQ(gpi_buddy_start(&buddy, run, search->alignment), start);
}

static void look_for_all(const buddy_state *state) {
    static const uint64_t alignments[] = {512, 4096, 2 << 20};
    if (atomic_load(&check_bad) || states++ % EVERY) return;
    buddy_make(state, runs);
    check_case("state %ld", states);
    for (int from = 0; from < BUDDY_SLOTS; from++)
        for (int to = from + 1; to <= BUDDY_SLOTS; to += 2)
            for (int k = 0; k < 9; k++) {
                gpi_search search = {{&buddy.any, NULL}, 0, alignments[k / 3], UINT64_MAX, 256};
                search.units = buddy_cut.at[to] - buddy_cut.at[from] + (uint64_t)(from % 2);
                if (k % 3) search.lists[1] = buddy_list(BUDDY_ONE);
                if (k % 3 == 2) search.lists[0] = buddy_list(BUDDY_TWO), search.below = 103;
                look(&search);
            }
}

static void every_state(void) {
    static const buddy_cuts cuts = {{0, 3, 5, 4096, 6000, 8192, 8193, 12288}};
    for (int is_apart = 0; is_apart < 2; is_apart++) {
        buddy_state state;
        states = calls = 0;
        buddy_open(&cuts, is_apart);
        buddy_each_state(&state, 0, look_for_all);
        printf("%ld states, %ld searches\n", states, calls);
    }
}

/* A larger size has no lower bin, and a bin's runs differ by an eighth at most. */
static void bins(void) {
    uint32_t before = 0;
    for (uint64_t units = 1; units < 1 << 20; units += 1 + units / 1000) {
        uint32_t bin = gpi_buddy_bin(units);
        CHECK(bin >= before && bin < GPI_BINS);
        if (bin == gpi_buddy_bin(units + units / 8 + 1) && units >= GPI_STEPS)
            check_fail(__FILE__, __LINE__, "the bin of %llu units is too wide",
                       (unsigned long long)units);
        before = bin;
    }
    CHECK(gpi_buddy_bin((uint64_t)1 << 55) < GPI_BINS);
}

/* The next bin in use, whichever are. */
static void next_bin(void) {
    uint64_t seed = 1;
    for (int round = 0; round < 20000; round++) {
        static gpi_list list;
        static gpi_run run;
        uint32_t used[3], from = (uint32_t)check_below(&seed, GPI_BINS), expected = GPI_NO_BIN;
        memset(&list, 0, sizeof list);
        for (int i = 0; i < 3; i++) {
            used[i] = (uint32_t)check_below(&seed, GPI_BINS);
            list.heads[used[i]] = &run;
            list.used[used[i] / 64] |= (uint64_t)1 << used[i] % 64;
            if (used[i] >= from && used[i] < expected) expected = used[i];
        }
        CHECK_EQ(gpi_buddy_next_bin(&list, from), expected);
        if (round % 4 == 0) CHECK_EQ(gpi_buddy_next_bin(&list, used[0]), used[0]);
    }
    CHECK_EQ(gpi_buddy_next_bin(&buddy.any, GPI_BINS), GPI_NO_BIN);
}

/* ---- the index ---- */

/* Each block is found by its address, no other is, in any order of leaving. */
static void index_of_blocks(void) {
    enum { COUNT = 1 << 12 };
    static gpi_run blocks[COUNT];
    static gpi_run *buckets[1 << GPI_INDEX_BITS];
    uint64_t i, seed = 1;
    int shared = 0; /* blocks that share a bucket with an earlier one */
    buddy.base = (uint64_t)1 << 40;
    buddy.is_apart = 0;
    buddy.index = buckets;
    for (i = 0; i < COUNT; i++) {
        blocks[i].unit = i * 65536 + check_below(&seed, 65536);
        gpi_buddy_index(&buddy, &blocks[i]);
        shared += blocks[i].hash_next != NULL;
    }
    CHECK(shared > 10);
    for (i = 0; i < COUNT; i++) {
        uint64_t address = buddy.base + blocks[i].unit * GPI_UNIT;
        gpi_run *found = gpi_buddy_lookup(&buddy, address, INT32_MAX), *seen;
        CHECK(found == &blocks[i]);
        seen = gpi_buddy_lookup(&buddy, address, GPI_PEEKS); /* it may miss, in a long bucket */
        CHECK(!seen || seen == found);
        CHECK(!gpi_buddy_lookup(&buddy, address + 8, INT32_MAX));
    }
    for (i = 0; i < COUNT; i++) {
        gpi_run *gone = &blocks[(i * 2731) % COUNT];
        gpi_buddy_unindex(&buddy, gone);
        CHECK(!gpi_buddy_lookup(&buddy, gone->address, INT32_MAX));
    }
    for (i = 0; i < 1 << GPI_INDEX_BITS; i++) CHECK(!buckets[i]);
}

int main(void) {
    TEST(every_state);
    TEST(bins);
    TEST(next_bin);
    TEST(index_of_blocks);
    munmap(buddy.region.base, buddy.region.size);
    return check_finish();
}
