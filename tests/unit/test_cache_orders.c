/* CACHE: every sequence of eight calls on three blocks that share a bin and a chain, in a cache
   that is empty, or full but for two entries. After every call its invariants hold and its answers
   are a model's; a call that is refused changes nothing. */
// build: plain
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "check.h"

#define MINE 3
#define OTHERS 62
#define BLOCKS (MINE + OTHERS)
#define CALLS 8
#define UNIT ((uint64_t)GPUPOOL_UNIT_BYTES)

typedef enum place { NOWHERE, PLAIN, FREE, OUT } place; /* not live, live, and in the cache */

static struct state {
    gpi_cache cache;
    gpi_run runs[BLOCKS];
    place where[BLOCKS];
} now;

static uint64_t sizes[2]; /* in units: of one bin */
static long sequences;

static size_t count(place where) {
    size_t n = 0;
    for (size_t i = 0; i < BLOCKS; i++) n += now.where[i] == where;
    return n;
}

static int has_free(uint64_t units) {
    for (size_t i = 0; i < BLOCKS; i++)
        if (now.where[i] == FREE && now.runs[i].units == units) return 1;
    return 0;
}

static void agrees(void) {
    uint64_t units = 0;
    for (size_t i = 0; i < BLOCKS; i++) units += now.where[i] == FREE ? now.runs[i].units : 0;
    CHECK_EQ(gpi_cache_check(&now.cache), 0);
    CHECK_EQ(now.cache.used, count(FREE) + count(OUT));
    CHECK_EQ(now.cache.free_blocks, count(FREE));
    CHECK_EQ(now.cache.free_units, units);
    CHECK_EQ(now.cache.empty == GPI_NO_ENTRY, now.cache.used == GPI_ENTRIES);
}

/* ---- calls: 1 if it has changed something ---- */

static int admit(size_t i) {
    if (now.where[i] == NOWHERE) { /* handed out by the tree first */
        now.runs[i].list = GPI_LIST_LIVE;
        now.runs[i].as.slack = 0;
        now.where[i] = PLAIN;
    }
    if (now.where[i] != PLAIN || now.cache.empty == GPI_NO_ENTRY) return 0;
    gpi_host_lock(&now.cache.lock);
    gpi_cache_admit(&now.cache, &now.runs[i], GPI_ENTRY_FREE);
    gpi_host_unlock(&now.cache.lock);
    now.where[i] = FREE;
    return 1;
}

static int take(uint64_t units) {
    gpi_entry *entry;
    int there = has_free(units);
    size_t i;
    entry = gpi_cache_take(&now.cache, units, units * UNIT - 7);
    CHECK_EQ(entry != NULL, there);
    if (!entry) return 0;
    i = (size_t)(entry->run - now.runs);
    CHECK(now.where[i] == FREE && entry->units == units && entry->unit == now.runs[i].unit);
    now.where[i] = OUT;
    return 1;
}

static int give(size_t i) {
    gpi_entry *entry = gpi_cache_give(&now.cache, now.runs[i].unit);
    CHECK_EQ(entry != NULL, now.where[i] == OUT);
    if (!entry) return 0;
    CHECK(entry->run == &now.runs[i]);
    now.where[i] = FREE;
    return 1;
}

static int let_go(size_t i) {
    gpi_cache_release(&now.cache, now.runs[i].unit);
    if (now.where[i] != OUT) return 0;
    CHECK_EQ(now.runs[i].list, GPI_LIST_LIVE);
    CHECK_EQ(now.runs[i].as.slack, 7);
    now.where[i] = PLAIN;
    return 1;
}

/* One that is free comes out, or one that is out is the tree's alone; the latter while many are. */
static int evict(void) {
    int many = count(OUT) > GPI_ENTRIES / 4;
    gpi_run *run;
    if (now.cache.used == 0) return 0;
    run = gpi_cache_evict(&now.cache);
    if (run) {
        size_t i = (size_t)(run - now.runs);
        CHECK(!many && now.where[i] == FREE && run->list == GPI_LIST_LIVE && !run->of.uses);
        run->list = 0;
        now.where[i] = NOWHERE;
        return 1;
    }
    for (size_t i = 0; i < BLOCKS; i++)
        if (now.where[i] == OUT && now.runs[i].of.uses == NULL) now.where[i] = PLAIN;
    return 1;
}

static int call(int number) {
    size_t i = (size_t)number % MINE;
    switch (number / MINE) {
    case 0: return admit(i);
    case 1: return give(i);
    case 2: return let_go(i);
    default: return i == 2 ? evict() : take(sizes[i]);
    }
}

static void all_from_here(int left) {
    static struct state before[CALLS + 1];
    sequences += left == 0;
    for (int number = 0; left && number < 4 * MINE && !atomic_load(&check_bad); number++) {
        before[left] = now;
        if (call(number)) {
            agrees();
            all_from_here(left - 1);
        } else if (number >= MINE) {
            CHECK(!memcmp(&before[left], &now, sizeof now));
        }
        now = before[left];
    }
}

/* ---- the beginnings ---- */

static void start(size_t others, size_t out) {
    uint64_t unit = 1000, units = 2;
    memset(&now, 0, sizeof now);
    gpi_cache_open(&now.cache);
    sizes[0] = 1;
    while (gpi_cache_bin(units) != gpi_cache_bin(1)) units++;
    sizes[1] = units;
    for (size_t i = 0; i < MINE; unit += 64)
        if (gpi_cache_chain(&now.cache, unit) == gpi_cache_chain(&now.cache, 1000)) {
            now.runs[i].unit = unit;
            now.runs[i].units = sizes[i == 1];
            i++;
        }
    for (size_t i = MINE; i < BLOCKS; i++, unit += 1024) {
        now.runs[i].unit = unit;
        now.runs[i].units = units + 1 + i % 5; /* no request is for these */
        if (i - MINE < others) CHECK(admit(i));
        if (i - MINE < others && i >= BLOCKS - out) CHECK(take(now.runs[i].units));
    }
    agrees();
    sequences = 0;
    all_from_here(CALLS);
    CHECK(sequences > 1000);
}

static void from_an_empty_cache(void) { start(0, 0); }
static void from_a_nearly_full_one(void) { start(OTHERS, 0); }
static void from_one_with_many_out(void) { start(OTHERS, GPI_ENTRIES / 4); }

int main(void) {
    TEST(from_an_empty_cache);
    TEST(from_a_nearly_full_one);
    TEST(from_one_with_many_out);
    return check_finish();
}
