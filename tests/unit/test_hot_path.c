/* A block that is freed and asked for again on the same stream: no CUDA call, no lock but the
   stream's own, the size just so; and a cache that hides nothing from anyone. */
// build: asan -fsanitize=address
// build: check2 -O1 -DGPUPOOL_CHECK=2
#define _DEFAULT_SOURCE /* alarm */
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "arena_kit.h"

#include <pthread.h>
#include <unistd.h>

static gpupool_arena *arena;

/* BYPASS keeps nothing, and what PINNED has is the host's at once: every free has a mark. */
static int has_cache(gpupool_source source) {
    return source != GPUPOOL_SOURCE_BYPASS && source != GPUPOOL_SOURCE_PINNED;
}

static void for_pools(void (*body)(void)) {
    for (size_t i = 0; i < KIT_SOURCES; i++) {
        if (!has_cache(kit_sources[i].source)) continue;
        check_case("%s", kit_sources[i].name);
        arena = kit_open(kit_sources[i].source);
        body();
        kit_close(arena);
    }
}

static void *get(size_t bytes, int stream) { return kit_alloc(arena, bytes, kit_stream[stream]); }

static void put(void *block, int stream) {
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[stream]), GPUPOOL_OK);
}

static uint64_t cached_bytes(void) { /* as it is, without emptying anything */
    uint64_t units = 0;
    for (const gpi_stream *stream = arena->clocks.streams; stream; stream = stream->next)
        units += stream->cache.free_units;
    return units * GPUPOOL_UNIT_BYTES;
}

/* ---- what it costs ---- */

static const size_t sizes[] = {1, 511, 512, 513, 4096, 5000, 40000, 65536};

static void pairs(void) {
    void *block[KIT_COUNT(sizes)], *again;
    uint64_t hits = kit_stats(arena).same_stream_allocs;
    for (int round = 0; round < 2; round++) {
        for (size_t i = 0; i < KIT_COUNT(sizes); i++) block[i] = get(sizes[i], 1);
        for (size_t i = 0; i < KIT_COUNT(sizes); i++) put(block[i], 1);
    }
    long calls = kit_calls();
    uint64_t splits = arena->tree.splits, merges = arena->tree.merges;
#if GPUPOOL_CHECK < 2
    alarm(20); /* who asks for the arena's lock waits for ever */
    gpi_host_lock(&arena->lock);
#endif
    for (int round = 0; round < 100; round++) {
        for (size_t i = 0; i < KIT_COUNT(sizes); i++) {
            again = get(sizes[i], 1);
            CHECK(again == block[i] || i < 3); /* the first three share two blocks of one unit */
            put(again, 1);
        }
    }
#if GPUPOOL_CHECK < 2
    gpi_host_unlock(&arena->lock);
    alarm(0);
#endif
    CHECK_EQ(kit_calls(), calls);
    CHECK_EQ(arena->tree.splits, splits);
    CHECK_EQ(arena->tree.merges, merges);
    CHECK(kit_stats(arena).same_stream_allocs >= hits + 100 * KIT_COUNT(sizes));
}
static void a_pair_asks_neither_cuda_nor_the_arena(void) { for_pools(pairs); }

/* Large blocks, with another stream about: each free has a mark, for seven calls at most: whether
   the device was reset, whether the older mark passed, whether the stream captures, the event. */
static void marks(void) {
    void *other = get(4096, 1);
    for (int round = 0; round < 4; round++) put(get(4 * MIB, 0), 0);
    long calls = kit_calls();
    for (int round = 0; round < 10; round++) put(get(4 * MIB, 0), 0);
    if (CHECK_FAKE) CHECK(kit_calls() >= calls + 30 && kit_calls() <= calls + 70);
    put(other, 1);
}
static void a_mark_costs_few_calls(void) { for_pools(marks); }

/* Bypass keeps nothing: every pair is a cudaMalloc and a cudaFree. */
static void bypass_pair(void) {
    arena = kit_open(GPUPOOL_SOURCE_BYPASS);
    for (int i = 0; i < 4; i++) put(get(4096, 0), 0);
    CHECK_EQ(kit_stats(arena).chunks_gained, 4);
    CHECK_EQ(kit_stats(arena).chunks_lost, 4);
    CHECK_EQ(cached_bytes(), 0);
    kit_close(arena);
}

/* ---- sizes ---- */

static void exact(void) {
    void *three = get(3 * 512, 0), *two, *four, *again;
    put(three, 0);
    two = get(2 * 512, 0);
    four = get(4 * 512, 0);
    CHECK(two != three && four != three); /* a cached block is for its own size only */
    again = get(2 * 512 + 1, 0);
    CHECK(again == three);
    CHECK_EQ(kit_size(arena, again), 2 * 512 + 1);
    put(again, 0);
    again = get(3 * 512, 0);
    CHECK_EQ(kit_size(arena, again), 3 * 512);
    CHECK_EQ(kit_stats(arena).requested.now, 9 * 512);
    CHECK_EQ(kit_stats(arena).granted.now, 9 * 512);
    put(again, 0);
    put(two, 0);
    put(four, 0);
    CHECK_EQ(kit_stats(arena).requested.now, 0);
}
static void a_block_serves_its_own_size_only(void) { for_pools(exact); }

static void aligned(void) {
    void *block = gpupool_alloc_aligned(arena, 4096, 1 << 16, kit_stream[0]), *again;
    CHECK_EQ((uintptr_t)block % (1 << 16), 0);
    put(block, 0);
    put(get(4096, 0), 0);
    again = gpupool_alloc_aligned(arena, 4096, 1 << 20, kit_stream[0]);
    CHECK_EQ((uintptr_t)again % (1 << 20), 0);
    put(again, 0);
}
static void alignment_is_kept_beside_the_cache(void) { for_pools(aligned); }

/* ---- how much it keeps ---- */

#define CROWD 400

static uint64_t cache_most(void) {
    uint64_t share = arena->ledger.reserved.now / 256;
    return share > 1 << 20 ? share : 1 << 20;
}

/* Blocks that are out when others join the cache come back to it as well. */
static void crowd(void) {
    static void *block[CROWD];
    uint64_t random = 5, most = 0;
    for (size_t i = 0; i < CROWD; i++) block[i] = get(33000 + 512 * (i % 60), 0);
    for (int call = 0; call < 4000; call++) {
        size_t i = (size_t)check_below(&random, CROWD);
        if (block[i]) put(block[i], 0);
        block[i] = block[i] ? NULL : get(33000 + 512 * (i % 60), 0);
        most = cached_bytes() > most ? cached_bytes() : most;
        CHECK(cached_bytes() <= cache_most());
    }
    CHECK(most > cache_most() / 2); /* or it would prove nothing */
    for (size_t i = 0; i < CROWD; i++)
        if (block[i]) put(block[i], 0);
    CHECK(cached_bytes() <= cache_most());
}
static void a_cache_is_bounded_in_bytes(void) { for_pools(crowd); }

static void out_and_back(void) {
    static void *block[64];
    for (size_t i = 0; i < 64; i++) block[i] = get(33000 + 512 * i, 0);
    for (size_t i = 0; i < 64; i++) { /* each joins the cache, and goes out of it again */
        put(block[i], 0);
        block[i] = get(33000 + 512 * i, 0);
    }
    for (size_t i = 0; i < 64; i++) {
        put(block[i], 0);
        CHECK(cached_bytes() <= cache_most());
    }
}
static void what_comes_back_is_bounded_too(void) { for_pools(out_and_back); }

/* ---- before anyone is told that memory is out ---- */

static void last_bytes(int by) {
    static void *block[48]; /* fewer than a cache admits before it asks how many came again */
    size_t limit = 32 * MIB, n = 0;
    gpupool_verdict why;
    for (size_t i = 0; i < KIT_SOURCES; i++) {
        if (!has_cache(kit_sources[i].source)) continue;
        check_case("%s, stream %d", kit_sources[i].name, by);
        arena = kit_open_limited(kit_sources[i].source, limit);
        for (n = 0; n < 48 && (block[n] = gpupool_alloc(arena, 60 * KIB, kit_stream[0])); n++)
            kit_mark(kit_stream[0], block[n], 60 * KIB, (int)n);
        for (size_t k = 0; k < n; k++) put(block[k], 0);
        CHECK(cached_bytes() > 0);
        void *all = gpupool_alloc(arena, limit - 2 * MIB, kit_stream[by]);
        CHECK_RESULT(kit_why(all), GPUPOOL_OK);
        if (all) kit_mark(kit_stream[by], all, limit - 2 * MIB, 99);
        CHECK_EQ(kit_fits(arena, limit, &why), 0);
        if (all) put(all, by);
        kit_close(arena);
    }
}
static void the_own_cache_is_emptied_first(void) { last_bytes(0); }
static void the_cache_of_another_stream_is_emptied_first(void) { last_bytes(1); }

/* ---- free is free, in every account ---- */

static size_t text_of(gpupool_result (*call)(gpupool_arena *, FILE *), char *text, size_t room) {
    FILE *file = tmpfile();
    size_t bytes = 0;
    if (!CHECK(file != NULL)) return 0;
    CHECK_RESULT(call(arena, file), GPUPOOL_OK);
    rewind(file);
    bytes = fread(text, 1, room - 1, file);
    text[bytes] = 0;
    fclose(file);
    return bytes;
}

static void accounts(void) {
    static char text[1 << 16];
    void *block[8];
    gpupool_stats stats;
    for (size_t i = 0; i < 8; i++) block[i] = get(4096, 0);
    for (size_t i = 0; i < 8; i++) put(block[i], 0);
    CHECK_EQ(cached_bytes(), 8 * 4096);
    stats = kit_stats(arena);
    CHECK_EQ(stats.blocks.now, 0);
    CHECK_EQ(stats.blocks.peak, 8);
    CHECK_EQ(stats.granted.now, 0);
    CHECK_EQ(stats.allocs, 8);
    CHECK_EQ(stats.frees, 8);
    for (int order = 0; order < GPUPOOL_ORDERS; order++) CHECK_EQ(stats.live_by_order[order], 0);
    CHECK(stats.largest_free_bytes >= 8 * 4096); /* they have met again */
    put(get(4096, 0), 0);
    CHECK_EQ(kit_available(arena) >= kit_reserved(arena), 1);
    put(get(4096, 0), 0);
    CHECK_EQ(kit_fits(arena, (size_t)stats.largest_free_bytes, NULL), 1);
    put(get(4096, 0), 0);
    CHECK(text_of(gpupool_report, text, sizeof text) > 0);
    CHECK(strstr(text, "requested           0 B") != NULL || strstr(text, "requested") != NULL);
    put(get(4096, 0), 0);
    CHECK(text_of(gpupool_write_svg, text, sizeof text) > 0);
    CHECK(strstr(text, "<title>live") == NULL);
    CHECK(strstr(text, "<title>free") || strstr(text, "<title>freed on a stream"));
}
static void cached_blocks_are_free_in_every_account(void) { for_pools(accounts); }

/* What a cache did is known to the ledger, peaks included, as if it had been done there. */
static void peaks(void) {
    void *block[40];
    gpupool_stats stats;
    for (size_t i = 0; i < 40; i++) block[i] = get(1000, 0);
    for (size_t i = 0; i < 40; i++) put(block[i], 0);
    CHECK_RESULT(gpupool_reset_peaks(arena), GPUPOOL_OK);
    for (size_t i = 0; i < 40; i++) block[i] = get(1000, 0);
    for (size_t i = 0; i < 40; i++) put(block[i], 0); /* now all are cached */
    for (size_t i = 0; i < 30; i++) block[i] = get(900, 0);
    for (size_t i = 0; i < 30; i++) put(block[i], 0);
    stats = kit_stats(arena);
    CHECK_EQ(stats.requested.peak, 40 * 1000);
    CHECK_EQ(stats.granted.peak, 40 * 1024);
    CHECK_EQ(stats.blocks.peak, 40);
    CHECK_EQ(stats.requested.total, 80 * 1000 + 30 * 900);
    CHECK_EQ(stats.blocks.total, 110);
}
static void peaks_are_those_of_every_call(void) { for_pools(peaks); }

/* So it is of a block that leaves the cache before it is freed: in a host function, or as one that
   another stream uses. */
static void peaks_of_a_block_that_leaves(void) {
    for (int used = 0; used < 2; used++) {
        check_case("used %d", used);
        put(get(1000, 0), 0);
        CHECK_RESULT(gpupool_reset_peaks(arena), GPUPOOL_OK);
        void *block = get(1000, 0); /* the cache has it */
        if (used) {
            CHECK_RESULT(gpupool_record_stream(arena, block, kit_stream[1]), GPUPOOL_OK);
            put(block, 1);
        } else {
            CHECK_RESULT(gpupool_free_in_host_function(arena, block, kit_stream[0]), GPUPOOL_OK);
        }
        gpupool_stats stats = kit_stats(arena);
        CHECK_EQ(stats.granted.peak, 1024);
        CHECK_EQ(stats.requested.peak, 1000);
        CHECK_EQ(stats.blocks.peak, 1);
        CHECK_EQ(stats.blocks.now, 0);
    }
}
static void peaks_are_those_of_blocks_that_leave(void) { for_pools(peaks_of_a_block_that_leaves); }

/* What was done in the cache alone comes to light when the next call takes a block from it. */
static void untold(void) {
    void *one = get(4096, 0), *two = get(5000, 0);
    put(one, 0);
    put(two, 0);
    one = get(4096, 0);
    two = get(5000, 0);
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    put(one, 0);
    CHECK_EQ(kit_size(arena, two), 5000);
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    put(two, 0);
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
}
static void the_check_finds_sums_as_they_are(void) { for_pools(untold); }

/* ---- mistakes ---- */

typedef struct mistake {
    void *at;
    int stream;
    gpupool_result expected;
} mistake;

static void *make_mistake(void *argument) {
    const mistake *m = (const mistake *)argument;
    CHECK_RESULT(gpupool_free(arena, m->at, kit_stream[m->stream]), m->expected);
    CHECK_EQ(kit_size(arena, m->at), 0);
    CHECK_RESULT(gpupool_last_result(), m->expected);
    CHECK_RESULT(gpupool_record_stream(arena, m->at, kit_stream[m->stream]), m->expected);
    return NULL;
}

/* By this thread and by another, on the stream that has the block in its cache and on others. */
static void mistaken(void *at, gpupool_result expected) {
    for (int stream = 0; stream < 3; stream++) {
        mistake m = {at, stream, expected};
        pthread_t thread;
        make_mistake(&m);
        CHECK_EQ(pthread_create(&thread, NULL, make_mistake, &m), 0);
        CHECK_EQ(pthread_join(thread, NULL), 0);
    }
}

static void put_in_cache(void *block) {
    put(block, 0);
    CHECK(cached_bytes() >= 4096);
}

static void mistakes(void) {
    int foreign = 0;
    char *block = (char *)get(4096, 0), *other = (char *)get(4096, 0);
    put_in_cache(block);
    mistaken(block, GPUPOOL_E_DOUBLE_FREE);
    block = (char *)get(4096, 0);
    put_in_cache(block);
    mistaken(block + 512, GPUPOOL_E_DOUBLE_FREE);
    put_in_cache(get(4096, 0));
    block = (char *)get(4096, 0); /* handed out by the cache */
    mistaken(block + 512, GPUPOOL_E_INSIDE);
    mistaken(block + 1, GPUPOOL_E_INSIDE);
    mistaken(other + 4095, GPUPOOL_E_INSIDE);
    mistaken(&foreign, GPUPOOL_E_NOT_OURS);
    CHECK_EQ(kit_stats(arena).blocks.now, 2);
    put(block, 0);
    put(other, 0);
}
static void mistakes_are_told_beside_the_cache(void) { for_pools(mistakes); }

/* ---- a block that a cache has handed out, in the hands of other streams ---- */

static void elsewhere(void) {
    void *block = get(4096, 0);
    for (int round = 0; round < 20; round++) {
        put(block, 0);
        block = get(4096, 0);
        if (round % 4 < 2) CHECK_EQ(kit_size(arena, block), 4096); /* out of the cache */
        kit_mark(kit_stream[0], block, 4096, round);
        kit_order(kit_stream[0], kit_stream[1]);
        kit_expect_mark(kit_stream[1], block, 4096, round);
        if (round % 2) CHECK_RESULT(gpupool_record_stream(arena, block, kit_stream[1]), GPUPOOL_OK);
        put(block, round % 2 ? 0 : 1);
        CHECK_RESULT(gpupool_free(arena, block, kit_stream[2]), GPUPOOL_E_DOUBLE_FREE);
        block = get(4096, round % 3);
        kit_mark(kit_stream[round % 3], block, 4096, 1);
        put(block, round % 3);
        block = get(4096, 0);
    }
    put(block, 0);
    CHECK_EQ(kit_stats(arena).blocks.now, 0);
}
static void other_streams_may_use_and_free_it(void) { for_pools(elsewhere); }

int main(void) {
    ARENA_TEST(a_pair_asks_neither_cuda_nor_the_arena);
    ARENA_TEST(a_mark_costs_few_calls);
    ARENA_TEST(bypass_pair);
    ARENA_TEST(a_block_serves_its_own_size_only);
    ARENA_TEST(alignment_is_kept_beside_the_cache);
    ARENA_TEST(a_cache_is_bounded_in_bytes);
    ARENA_TEST(what_comes_back_is_bounded_too);
    ARENA_TEST(the_own_cache_is_emptied_first);
    ARENA_TEST(the_cache_of_another_stream_is_emptied_first);
    ARENA_TEST(cached_blocks_are_free_in_every_account);
    ARENA_TEST(peaks_are_those_of_every_call);
    ARENA_TEST(peaks_are_those_of_blocks_that_leave);
    ARENA_TEST(the_check_finds_sums_as_they_are);
    ARENA_TEST(mistakes_are_told_beside_the_cache);
    ARENA_TEST(other_streams_may_use_and_free_it);
    return check_finish();
}
