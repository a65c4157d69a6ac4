/* Caches of streams whose threads meet at the arena's lock: they do without it as far as they can,
   and nobody is told anything else about memory than without them. */
// build: asan -fsanitize=address
// build: sites -DGPUPOOL_SITES=1
#define _POSIX_C_SOURCE 200809L /* barriers */
#include "fail_malloc.h"
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "arena_kit.h"

#include <pthread.h>
#include <sys/select.h>

#define WAITS 512 /* gpupool.h takes its private macros back */
#define SLOTS 64
#define MANY 300

static gpupool_arena *arena;

static gpi_cache *cache_of(int stream) {
    return &gpi_clock_find(&arena->clocks, gpi_clock_key(kit_stream[stream]))->cache;
}

static void *get(size_t bytes, int stream) { return kit_alloc(arena, bytes, kit_stream[stream]); }

static void put(void *block, int stream) {
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[stream]), GPUPOOL_OK);
}

static void put_after_waits(void *block, int stream, uint32_t waits) {
    gpi_host_lock(&arena->lock);
    cache_of(stream)->waits = waits;
    gpi_host_unlock(&arena->lock);
    put(block, stream);
}

/* As after many waits. The next free on the stream makes its cache a crowded one. */
static void crowd(int stream) {
    put_after_waits(get(100, stream), stream, WAITS);
    CHECK(cache_of(stream)->crowded);
}

static void open_crowded(gpupool_source source, size_t limit) {
    arena = kit_open_limited(source, limit);
    crowd(0);
}

static void close_all(void **block, size_t count, int stream) {
    for (size_t i = 0; i < count; i++) put(block[i], stream);
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    CHECK_EQ(kit_stats(arena).blocks.now, 0);
    kit_close(arena);
    CHECK_EQ(fail_malloc_live, 0);
}

/* With the arena's lock held by nobody who would give it back, only a call that does without it
   returns. */
static void calls_that_need_no_lock(void) {
    void *block[MANY];
    open_crowded(GPUPOOL_SOURCE_DEVICE, 0);
    for (size_t i = 0; i < MANY; i++) block[i] = get(512 * (1 + i % 7), 0);
    CHECK_EQ(cache_of(0)->room, 4 * 4 * SLOTS); /* with room for all that are out */
    gpi_host_lock(&arena->lock);
    for (size_t i = 0; i < MANY; i++) put(block[i], 0);
    for (size_t i = 0; i < MANY; i++) block[i] = get(512 * (1 + i % 7), 0);
    gpi_host_unlock(&arena->lock);
    CHECK_EQ(kit_stats(arena).blocks.now, MANY);
    CHECK_EQ(kit_stats(arena).blocks.peak, MANY);
    close_all(block, MANY, 0);
}

static void *hold_for_long(void *nothing) {
    struct timeval nap = {0, 50000}; /* many pauses of its waiter's */
    select(0, NULL, NULL, NULL, &nap);
    gpi_host_unlock(&arena->lock);
    return nothing;
}

static void who_waits_long_is_crowded(void) {
    pthread_t holder;
    arena = kit_open(GPUPOOL_SOURCE_DEVICE);
    void *block = get(5000, 0);
    cache_of(0)->rest = 1000;
    gpi_host_lock(&arena->lock);
    CHECK_EQ(pthread_create(&holder, NULL, hold_for_long, NULL), 0);
    put(block, 0);
    pthread_join(holder, NULL);
    CHECK_EQ(cache_of(0)->rest, 0);
    CHECK(cache_of(0)->crowded);
    CHECK_EQ(cache_of(0)->waits, WAITS - 1); /* it took the lock once more */
    CHECK(get(5000, 0) == block);
    put(block, 0);
    close_all(NULL, 0, 0);
}

/* The free takes one off: then as many waits as the bound are enough, and one less is not. */
static void as_many_waits_as_the_bound(void) {
    arena = kit_open(GPUPOOL_SOURCE_DEVICE);
    void *first = get(5000, 0), *second = get(9000, 0);
    put_after_waits(first, 0, GPI_CACHE_WAITS);
    CHECK(!cache_of(0)->crowded);
    put_after_waits(second, 0, GPI_CACHE_WAITS + 1);
    CHECK(cache_of(0)->crowded);
    close_all(NULL, 0, 0);
}

/* A block of up to an eighth more than was asked for will do, and is told as what it is. */
static void an_eighth_more_will_do(void) {
    open_crowded(GPUPOOL_SOURCE_DEVICE, 0);
    void *block = get(18 * 512, 0), *larger;
    put(block, 0);
    larger = get(15 * 512, 0);
    CHECK(larger != block);
    put(larger, 0);
    CHECK(get(16 * 512 - 3, 0) == block);
    CHECK_EQ(kit_size(arena, block), 16 * 512 - 3);
    CHECK_EQ(kit_stats(arena).requested.now, 16 * 512 - 3);
    CHECK_EQ(kit_stats(arena).granted.now, 18 * 512);
    close_all(&block, 1, 0);
}

/* Two blocks that are out, and the memory between them: whoever needs it has it. */
static void who_looks_for_memory_finds_it(void) {
    void *block[MANY], *large;
    open_crowded(GPUPOOL_SOURCE_DEVICE, 32 * MIB);
    for (size_t i = 0; i < MANY; i++) block[i] = get(64 * KIB, 0);
    for (size_t i = 1; i + 1 < MANY; i++) put(block[i], 0);
    CHECK(cache_of(0)->free_blocks > 0);
    large = get(18 * MIB, 1); /* in the place of them all, behind their mark */
    CHECK_EQ(cache_of(0)->free_blocks, 0);
    CHECK(cache_of(0)->crowded && cache_of(0)->used >= 2); /* it still knows the two */
    block[1] = block[MANY - 1];
    put(large, 1);
    close_all(block, 2, 0);
}

/* What is freed while another thread looks for memory does not stay in a cache. */
#if CHECK_FAKE
static void *freed_meanwhile;
static void free_it(void *nothing) {
    (void)nothing;
    put(freed_meanwhile, 0);
}

static void freed_while_memory_is_looked_for(void) {
    open_crowded(GPUPOOL_SOURCE_DEVICE, 0);
    freed_meanwhile = get(8 * KIB, 0);
    CHECK_EQ(cache_of(0)->used - cache_of(0)->free_blocks, 1);
    uint64_t free_before = cache_of(0)->free_blocks;
    fake_before_call("cuMemAlloc", 1, free_it, NULL);
    void *large = get(200 * MIB, 1);
    CHECK_EQ(cache_of(0)->free_blocks, free_before);
    CHECK_EQ(cache_of(0)->used, free_before);
    CHECK_RESULT(gpupool_free(arena, freed_meanwhile, kit_stream[0]), GPUPOOL_E_DOUBLE_FREE);
    close_all(&large, 1, 1);
}

/* What is freed while a verdict waits for a cache is found before the verdict is spoken. */
static pthread_t freer;
static pthread_barrier_t gate;
static void *free_it_amid_the_verdict(void *nothing) {
    struct timeval nap = {0, 50000};
    gpi_host_lock(&cache_of(0)->lock);
    pthread_barrier_wait(&gate);
    select(0, NULL, NULL, NULL, &nap);
    put(freed_meanwhile, 2);
    gpi_host_unlock(&cache_of(0)->lock);
    return nothing;
}

static void hold_the_cache(void *nothing) {
    CHECK_EQ(pthread_create(&freer, NULL, free_it_amid_the_verdict, nothing), 0);
    pthread_barrier_wait(&gate);
}

static void freed_while_a_verdict_is_made(void) {
    fake_device_memory(0, 64 * MIB);
    open_crowded(GPUPOOL_SOURCE_DEVICE, 0);
    void *small = get(8 * KIB, 0), *other = get(100, 2), *large;
    freed_meanwhile = get(40 * MIB, 1);
    pthread_barrier_init(&gate, NULL, 2);
    fake_before_call("cuMemAlloc", 1, hold_the_cache, NULL);
    large = get(40 * MIB, 1);
    pthread_join(freer, NULL);
    pthread_barrier_destroy(&gate);
    CHECK(large != NULL);
    put(small, 0);
    put(other, 2);
    close_all(&large, 1, 1);
}

/* A mark for what has to leave cannot be recorded: the frees have freed, and do not fail. */
static void no_mark_for_what_leaves(void) {
    void *block[MANY];
    int current = -1;
    open_crowded(GPUPOOL_SOURCE_DEVICE, 0);
    put(get(4096, 1), 1); /* a stream alone needs no mark */
    for (size_t i = 0; i < MANY; i++) block[i] = get(32 * KIB, 0);
    CHECK_EQ(cudaSetDevice(1), cudaSuccess);
    fake_fail_nth(1, 1);
    for (size_t i = 0; i < MANY; i++) {
        put(block[i], 0);
        CHECK_RESULT(gpupool_last_result(), GPUPOOL_OK);
    }
    CHECK(fake_fail_fired() > 0);
    fake_fail_clear();
    cudaGetLastError();
    CHECK_EQ(cudaGetDevice(&current), cudaSuccess);
    CHECK_EQ(current, 1);
    close_all(NULL, 0, 0);
}

#endif

/* The sentence names the holder of all blocks, those that caches keep track of among them. */
static void the_verdict_knows_what_is_out(void) {
    void *block[20];
    gpupool_verdict why;
    open_crowded(GPUPOOL_SOURCE_DEVICE, 32 * MIB);
    for (size_t i = 0; i < 20; i++) block[i] = get(64 * KIB - 5, 0);
    CHECK(cache_of(0)->used > 10); /* but for those that the arena had to grow for */
    for (int stream = 0; stream < 2; stream++) { /* the only one, and another */
        CHECK(gpupool_alloc(arena, 31 * MIB, kit_stream[stream]) == NULL);
        CHECK_RESULT(gpupool_last_verdict(&why), GPUPOOL_OK);
        CHECK_EQ(why.cause, GPUPOOL_CAUSE_LIMIT);
        CHECK_EQ(why.holders[0].blocks, 20);
        CHECK_EQ(why.holders[0].bytes, 20 * (64 * KIB - 5));
    }
    close_all(block, 20, 0);
}

/* No more than a share is kept; when there is more, a quarter of it goes at once. */
static void no_more_than_a_share_is_kept(void) {
    void *block[MANY];
    open_crowded(GPUPOOL_SOURCE_DEVICE, 0);
    for (size_t i = 0; i < MANY; i++) block[i] = get(32 * KIB, 0);
    uint64_t share = kit_reserved(arena) / 8 / 512, free_before = 0;
    int fell = 0;
    for (size_t i = 0; i < MANY; i++) {
        put(block[i], 0);
        CHECK(cache_of(0)->free_units <= share || share < 2048);
        fell += cache_of(0)->free_units < free_before;
        if (cache_of(0)->free_units < free_before)
            CHECK(cache_of(0)->free_units <= cache_of(0)->most_units / 4 * 3 + 64);
        free_before = cache_of(0)->free_units;
    }
    CHECK(fell > 1 && fell < 100);
    close_all(NULL, 0, 0);
}

/* It is for small blocks, however much is reserved: large ones join what is free beside them. */
static void large_ones_are_not_kept(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_DEVICE);
    void *block[40];
    config.reserve_bytes = 64 * MIB;
    arena = kit_create(&config);
    crowd(0);
    for (size_t i = 0; i < 40; i++) block[i] = get(128 * KIB, 0);
    for (size_t i = 0; i < 40; i++) put(block[i], 0);
    CHECK_EQ(cache_of(0)->free_blocks, 1); /* the first, a small one */
    close_all(NULL, 0, 0);
}

/* What it keeps is too little to be what a large request lacks. */
static void large_requests_leave_it_alone(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_DEVICE);
    config.reserve_bytes = 16 * MIB;
    arena = kit_create(&config);
    crowd(0);
    void *small[2] = {get(512, 0), get(512, 0)};
    for (int i = 0; i < 2; i++) put(small[i], 0);
    uint64_t kept = cache_of(0)->free_blocks;
    void *large = get(3 * MIB, 0);
    CHECK(kept > 0);
    CHECK_EQ(cache_of(0)->free_blocks, kept);
    close_all(&large, 1, 0);
}

/* While blocks are out it goes on to keep track of them, whoever looks or trims. Once nothing is
   left of its stream, it is as it was before. */
static void crowded_no_longer(void) {
    void *block[MANY], *next;
    open_crowded(GPUPOOL_SOURCE_DEVICE, 0);
    for (size_t i = 0; i < MANY; i++) block[i] = get(700, 0);
    uint32_t out = cache_of(0)->used - cache_of(0)->free_blocks;
    kit_stats(arena);
    CHECK(cache_of(0)->crowded && cache_of(0)->room > SLOTS);
    CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
    CHECK(cache_of(0)->crowded && cache_of(0)->room > SLOTS);
    CHECK(out > 1 && cache_of(0)->used == out && cache_of(0)->free_blocks == 0);
    for (size_t i = 0; i < MANY; i++) put(block[i], 0);
    CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
    CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
    next = get(700, 0);
    CHECK(!cache_of(0)->crowded && cache_of(0)->room == SLOTS);
    close_all(&next, 1, 0);
}

/* Emptied as for a stream that ends, it keeps its entries as long as its threads have waited of
   late: they would need them again at once. */
static void who_still_waits_keeps_its_entries(void) {
    void *block[MANY];
    open_crowded(GPUPOOL_SOURCE_DEVICE, 0);
    for (size_t i = 0; i < MANY; i++) block[i] = get(700, 0);
    for (size_t i = 0; i < MANY; i++) put(block[i], 0);
    gpi_stream *stream = gpi_clock_find(&arena->clocks, gpi_clock_key(kit_stream[0]));
    uint32_t room = cache_of(0)->room;
    CHECK(room > SLOTS && cache_of(0)->free_blocks > 0);
    for (unsigned waits = 2; waits-- > 0;) {
        gpi_host_lock(&stream->cache.lock);
        gpi_host_lock(&arena->lock);
        stream->cache.waits = waits;
        gpi_arena_drain(arena, stream);
        gpi_arena_unlock(arena);
        gpi_host_unlock(&stream->cache.lock);
        CHECK_EQ(cache_of(0)->used, 0);
        CHECK_EQ(cache_of(0)->room, waits ? room : SLOTS);
        CHECK_EQ(cache_of(0)->crowded != 0, waits);
    }
    close_all(NULL, 0, 0);
}

/* Without host memory for more entries, it does with those that it has. */
static void no_memory_for_entries(void) {
    void *block[MANY];
    open_crowded(GPUPOOL_SOURCE_DEVICE, 0);
    fail_malloc_least = 8000;
    fail_malloc_nth(1, 1);
    for (size_t i = 0; i < MANY; i++) block[i] = get(700, 0);
    fail_malloc_nth(0, 0);
    fail_malloc_least = 0;
    CHECK_EQ(cache_of(0)->room, SLOTS);
    CHECK_EQ(cache_of(0)->used, SLOTS);
    close_all(block, MANY, 0);
}

/* Of thousands, the most that it keeps track of; each is freed as what it is. */
static void more_than_there_are_entries(void) {
    static void *block[5000];
    open_crowded(GPUPOOL_SOURCE_DEVICE, 0);
    for (size_t i = 0; i < 5000; i++) block[i] = get(600, 0);
    CHECK_EQ(cache_of(0)->used, 4096);
    for (size_t i = 0; i < 5000; i += 2) put(block[i], 0);
    for (size_t i = 0; i < 5000; i += 2)
        CHECK_RESULT(gpupool_free(arena, block[i], kit_stream[0]), GPUPOOL_E_DOUBLE_FREE);
    for (size_t i = 1; i < 5000; i += 2) put(block[i], 1);
    close_all(NULL, 0, 0);
}

int main(void) {
    ARENA_TEST(calls_that_need_no_lock);
    ARENA_TEST(who_waits_long_is_crowded);
    ARENA_TEST(as_many_waits_as_the_bound);
    ARENA_TEST(an_eighth_more_will_do);
    ARENA_TEST(who_looks_for_memory_finds_it);
    FAKE_TEST(no_mark_for_what_leaves);
    ARENA_TEST(the_verdict_knows_what_is_out);
    ARENA_TEST(no_more_than_a_share_is_kept);
    ARENA_TEST(large_ones_are_not_kept);
    ARENA_TEST(large_requests_leave_it_alone);
    ARENA_TEST(crowded_no_longer);
    ARENA_TEST(who_still_waits_keeps_its_entries);
    ARENA_TEST(no_memory_for_entries);
    ARENA_TEST(more_than_there_are_entries);
    FAKE_TEST(freed_while_memory_is_looked_for);
    FAKE_TEST(freed_while_a_verdict_is_made);
    return check_finish();
}
