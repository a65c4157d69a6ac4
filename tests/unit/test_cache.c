/* CACHE against a naive model: random blocks come, are handed out, come back, and leave, in a cache
   that is crowded or not. After every call its invariants hold, its answers are the model's, and
   what it tells the ledger, and shows of itself, adds up. */
// build: asan -fsanitize=address
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "check.h"

#define BLOCKS 160 /* more than a cache has entries, unless it is crowded */
#define SIZES 40 /* units; an eighth is up to five, in up to three bins */
#define UNIT ((uint64_t)GPUPOOL_UNIT_BYTES)

typedef enum place { NOWHERE, PLAIN, FREE, OUT } place; /* not live, live, and in the cache */

static gpi_run runs[BLOCKS];
static struct { place where; uint64_t bytes; } model[BLOCKS];
static gpi_cache cache;
static gpi_ledger ledger;
static struct { uint64_t now, peak, total; } live, asked; /* blocks, bytes: as of a ledger */
static uint64_t takes, gives;
static uint64_t random_state;

static uint64_t below(uint64_t bound) { return check_below(&random_state, bound); }

/* ---- the model ---- */

static size_t count(place where) {
    size_t n = 0;
    for (size_t i = 0; i < BLOCKS; i++) n += model[i].where == where;
    return n;
}

static uint64_t free_units(void) {
    uint64_t units = 0;
    for (size_t i = 0; i < BLOCKS; i++) units += model[i].where == FREE ? runs[i].units : 0;
    return units;
}

/* A random block that is there; BLOCKS: none. */
static size_t any(place where) {
    size_t n = count(where), i = 0;
    if (n == 0) return BLOCKS;
    for (n = (size_t)below(n); model[i].where != where || n-- > 0; i++) continue;
    return i;
}

static int is_fit(size_t i, uint64_t units) {
    uint64_t most = cache.crowded ? units + units / 8 : units;
    return model[i].where == FREE && runs[i].units >= units && runs[i].units <= most;
}

static int has_free(uint64_t units) {
    for (size_t i = 0; i < BLOCKS; i++)
        if (is_fit(i, units)) return 1;
    return 0;
}

static void gain(size_t i, uint64_t bytes) {
    model[i].bytes = bytes;
    live.now++, live.total++;
    asked.now += bytes, asked.total += bytes;
    if (live.now > live.peak) live.peak = live.now;
    if (asked.now > asked.peak) asked.peak = asked.now;
}

static void lose(size_t i) {
    live.now--;
    asked.now -= model[i].bytes;
}

/* ---- calls, each made of both ---- */

static uint64_t bytes_for(uint64_t units) { return units * UNIT - below(UNIT); }

/* As the tree hands a block out: the ledger is told at once. The slack that a run has stays. */
static void make_plain(size_t i) {
    uint64_t bytes = bytes_for(runs[i].units);
    gpi_cache_fold(&cache, &ledger);
    runs[i].list = GPI_LIST_LIVE;
    runs[i].as.slack = (uint32_t)(runs[i].units * UNIT - bytes);
    model[i].where = PLAIN;
    gain(i, bytes);
    gpi_ledger_add(&ledger.blocks, 1);
    gpi_ledger_add(&ledger.requested, bytes);
    gpi_ledger_add(&ledger.granted, runs[i].units * UNIT);
}

static void forget(size_t i) {
    model[i].where = NOWHERE;
    runs[i].list = 0;
}

static void count_free(size_t i) {
    gpi_ledger_sub(&ledger.blocks, 1);
    gpi_ledger_sub(&ledger.requested, model[i].bytes);
    gpi_ledger_sub(&ledger.granted, runs[i].units * UNIT);
    lose(i);
}

/* One that was freed, or one that a crowded cache keeps track of. */
static void admit(size_t i) {
    int out = cache.crowded && below(2);
    CHECK_EQ(cache.empty == GPI_NO_ENTRY, count(FREE) + count(OUT) == cache.room);
    if (cache.empty == GPI_NO_ENTRY && cache.crowded) gpi_cache_widen(&cache);
    if (cache.empty == GPI_NO_ENTRY) return;
    gpi_cache_fold(&cache, &ledger);
    if (!out) count_free(i);
    gpi_host_lock(&cache.lock);
    gpi_cache_admit(&cache, &runs[i], out ? GPI_ENTRY_OUT : GPI_ENTRY_FREE);
    gpi_host_unlock(&cache.lock);
    model[i].where = out ? OUT : FREE;
}

static void take(void) {
    uint64_t units = 1 + below(SIZES), bytes = bytes_for(units);
    int there = has_free(units);
    gpi_entry *entry = gpi_cache_take(&cache, units, bytes);
    size_t i;
    CHECK_EQ(entry != NULL, there);
    if (!entry) return;
    i = (size_t)(entry->run - runs);
    CHECK(is_fit(i, units) && entry->unit == runs[i].unit && entry->units == runs[i].units);
    model[i].where = OUT;
    gain(i, bytes);
    takes++;
}

/* Any address at all: only one that is out comes back. */
static void give(size_t i, uint64_t offset) {
    int is_out = model[i].where == OUT && offset == 0;
    gpi_entry *entry = gpi_cache_give(&cache, runs[i].unit + offset);
    CHECK_EQ(entry != NULL, is_out);
    if (!entry) return;
    CHECK(entry->run == &runs[i]);
    model[i].where = FREE;
    lose(i);
    gives++;
}

static void let_go(size_t i) {
    int is_out = model[i].where == OUT;
    gpi_cache_release(&cache, runs[i].unit);
    CHECK_EQ(runs[i].list == GPI_LIST_LIVE, is_out || model[i].where == PLAIN);
    if (is_out) model[i].where = PLAIN;
}

static void evict(void) {
    size_t frees = count(FREE), outs = count(OUT);
    gpi_run *run;
    if (cache.used == 0) return;
    run = gpi_cache_evict(&cache);
    if (run) {
        size_t i = (size_t)(run - runs);
        CHECK(model[i].where == FREE && run->list == GPI_LIST_LIVE && run->as.slack == 0);
        forget(i);
    } else { /* one that was out is plain now: whose run leads here no more */
        for (size_t i = 0; i < BLOCKS; i++)
            if (model[i].where == OUT && runs[i].list == GPI_LIST_LIVE) model[i].where = PLAIN;
    }
    CHECK_EQ(count(FREE) + count(OUT) + 1, frees + outs);
}

static void evict_free(void) {
    gpi_run *run;
    size_t i;
    if (count(FREE) == 0) return;
    run = gpi_cache_evict_free(&cache);
    i = (size_t)(run - runs);
    CHECK(model[i].where == FREE && run->list == GPI_LIST_LIVE);
    forget(i);
}

/* ---- what holds after every call ---- */

static void agree(void) {
    CHECK_EQ(gpi_cache_check(&cache), 0);
    CHECK_EQ(cache.used, count(FREE) + count(OUT));
    CHECK_EQ(cache.free_blocks, count(FREE));
    CHECK_EQ(cache.free_units, free_units());
    for (size_t i = 0; i < BLOCKS; i++) {
        int cached = model[i].where == FREE || model[i].where == OUT;
        if (model[i].where == NOWHERE) continue;
        CHECK_EQ(runs[i].list, cached ? GPI_LIST_CACHED : GPI_LIST_LIVE);
        CHECK(runs[i].of.uses == (cached ? (void *)&cache : NULL));
        if (!cached) CHECK_EQ(runs[i].as.slack, runs[i].units * UNIT - model[i].bytes);
    }
}

/* What reports and mistakes show of it. */
static void shown(void) {
    gpi_cached seen, there;
    memset(&seen, 0, sizeof seen);
    memset(&there, 0, sizeof there);
    for (size_t i = 0; i < BLOCKS; i++) {
        uint64_t last = runs[i].unit + runs[i].units - 1;
        CHECK_EQ(gpi_cache_asked_around(&cache, last), model[i].where == OUT ? model[i].bytes : 0);
        if (model[i].where != FREE) continue;
        there.blocks++;
        there.by_order[gpi_ground_high_bit(runs[i].units)]++;
    }
    gpi_cache_count(&cache, &seen);
    CHECK(memcmp(&seen, &there, sizeof seen) == 0);
}

static void folded(void) {
    int has_news = gpi_cache_has_news(&cache);
    gpi_ledger before;
    memcpy(&before, &ledger, sizeof before);
    gpi_cache_fold(&cache, &ledger);
    CHECK_EQ(has_news, memcmp(&before, &ledger, sizeof before) != 0);
    CHECK_EQ(gpi_cache_has_news(&cache), 0);
    CHECK_EQ(ledger.blocks.now, live.now);
    CHECK_EQ(ledger.blocks.peak, live.peak);
    CHECK_EQ(ledger.blocks.total, live.total);
    CHECK_EQ(ledger.requested.now, asked.now);
    CHECK_EQ(ledger.requested.peak, asked.peak);
    CHECK_EQ(ledger.requested.total, asked.total);
    CHECK_EQ(ledger.cached_bytes, free_units() * UNIT);
    CHECK_EQ(ledger.allocs, takes);
    CHECK_EQ(ledger.same_stream_allocs, takes);
    CHECK_EQ(ledger.frees, gives);
}

static void one_call(void) {
    uint64_t kind = below(100);
    size_t i;
    if (kind < 15) {
        if ((i = any(NOWHERE)) < BLOCKS) make_plain(i);
    } else if (kind < 40) {
        if ((i = any(PLAIN)) < BLOCKS) admit(i);
    } else if (kind < 65) {
        take();
    } else if (kind < 85) {
        i = any(below(8) ? OUT : (place)below(4));
        if (i < BLOCKS) give(i, below(8) ? 0 : 1 + below(3));
    } else if (kind < 90) {
        i = any(below(2) ? OUT : (place)below(4));
        if (i < BLOCKS) let_go(i);
    } else if (kind < 95) {
        evict();
    } else if (kind < 97) {
        evict_free();
    } else {
        folded();
        shown();
    }
}

static void start(uint64_t seed) {
    random_state = seed;
    gpi_cache_open(&cache);
    cache.crowded = seed % 2 == 0;
    memset(&ledger, 0, sizeof ledger);
    memset(&live, 0, sizeof live);
    memset(&asked, 0, sizeof asked);
    takes = gives = 0;
    for (size_t i = 0; i < BLOCKS; i++) {
        memset(&runs[i], 0, sizeof runs[i]);
        runs[i].unit = 1000 + 64 * i; /* so that chains are shared */
        runs[i].units = 1 + i % SIZES;
        forget(i);
    }
}

static void random_calls_agree_with_the_model(void) {
    for (uint64_t seed = 1; seed <= 60; seed++) {
        start(seed);
        for (int call = 0; call < 2000; call++) {
            check_case("seed %d, call %d", (int)seed, call);
            one_call();
            agree();
        }
        folded();
        CHECK_EQ(cache.room, cache.crowded ? 4 * GPI_ENTRIES : GPI_ENTRIES);
        while (cache.used) evict();
        cache.waits = 1;
        gpi_cache_narrow(&cache);
        CHECK_EQ(cache.waits, 0);
        agree();
        gpi_cache_close(&cache);
    }
}

/* The cache takes 64 blocks, and every one comes out again in at most as many evictions. */
static void a_full_cache_is_emptied(void) {
    start(7);
    for (size_t i = 0; i < BLOCKS; i++) make_plain(i);
    for (size_t i = 0; cache.empty != GPI_NO_ENTRY; i++) admit(i);
    CHECK_EQ(cache.used, GPI_ENTRIES);
    for (int n = 0; n < 20; n++) take();
    for (int n = 0; n < GPI_ENTRIES; n++) {
        evict();
        agree();
    }
    CHECK_EQ(cache.used, 0);
    CHECK_EQ(cache.free_units, 0);
    folded();
}

/* Blocks that are out, where they have more than a quarter of the entries. */
static void whose_turn_it_is(void) {
    start(7);
    for (size_t i = 0; i < BLOCKS; i++) make_plain(i);
    for (size_t i = 0; cache.empty != GPI_NO_ENTRY; i++) admit(i);
    for (size_t i = 0; count(OUT) < GPI_ENTRIES / 4; i++) {
        take();
        for (size_t k = 0; k < 2; k++) give((size_t)(cache.entries[k].run - runs), 0);
    }
    for (size_t k = 0; k < 2; k++) {
        const gpi_run *next = cache.entries[k].run;
        CHECK(gpi_cache_evict(&cache) == next);
        forget((size_t)(next - runs));
    }
    while (count(OUT) <= GPI_ENTRIES / 4) take();
    CHECK(gpi_cache_evict(&cache) == NULL);
    gpi_cache_close(&cache);
}

/* A crowded cache may have thousands of one size: the next one to go is the first in their list,
   which no walk looks for. */
static void of_many_the_first_goes(void) {
    start(8);
    for (size_t i = 0; i < GPI_ENTRIES; i++) {
        runs[i].units = 3;
        make_plain(i);
        count_free(i);
        gpi_host_lock(&cache.lock);
        gpi_cache_admit(&cache, &runs[i], GPI_ENTRY_FREE);
        gpi_host_unlock(&cache.lock);
        model[i].where = FREE;
    }
    for (size_t left = GPI_ENTRIES; left > 1; left--) {
        const gpi_run *first = cache.entries[cache.bins[gpi_cache_bin(3)]].run;
        CHECK((left % 2 ? gpi_cache_evict : gpi_cache_evict_free)(&cache) == first);
    }
    gpi_cache_close(&cache);
}

/* What must make room for memory is of the sizes of which there is most. */
static void of_sizes_of_which_there_is_most(void) {
    for (uint64_t most = 2; most < 13; most++) {
        check_case("of %d units", (int)most);
        start(7);
        for (size_t i = 0; i < 2 * SIZES; i++) {
            if (i >= SIZES && runs[i].units != most) continue;
            make_plain(i);
            admit(i);
        }
        uint64_t units = gpi_cache_evict_free(&cache)->units;
        CHECK(units == most || units > 15); /* 16 and 17 units have a bin in common, and so on */
        gpi_cache_close(&cache);
    }
}

/* Where fewer than half of 64 blocks were found again, the next 1024 stay out. */
static void rests_where_little_is_found(void) {
    static const struct { unsigned found, rest; } cases[] = {
        {31, 1024}, {32, 0}, {0, 1024}, {64, 0}, {31, 1024}};
    start(7);
    cache.crowded = 0;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        unsigned rest = 0;
        check_case("case %zu", i);
        cache.found += cases[i].found;
        for (int block = i > 0; block < 64; block++) CHECK_EQ(gpi_cache_is_open(&cache), 1);
        while (rest < 5000 && !gpi_cache_is_open(&cache)) rest++; /* the first of the next 64 */
        CHECK_EQ(rest, cases[i].rest);
    }
    gpi_cache_close(&cache);
}

int main(void) {
    TEST(whose_turn_it_is);
    TEST(of_many_the_first_goes);
    TEST(of_sizes_of_which_there_is_most);
    TEST(rests_where_little_is_found);
    TEST(random_calls_agree_with_the_model);
    TEST(a_full_cache_is_emptied);
    return check_finish();
}
