/* Free memory that its own stream may still be at work on: it moves to that stream's requests at
   once, without a wait, and to nobody else's. Nothing that is queued runs until a test says so. */
// build: plain
// build: asan -fsanitize=address,undefined
#include "fail_malloc.h"

#define GPUPOOL_IMPLEMENTATION
#include "../gpupool.h"
#include "arena_kit.h"

#if CHECK_FAKE

#define BLOCKS 16
#define TABLE 512 /* pieces that a page of the arena's table has */
#define SIZE (4 * MIB)
#define LIMIT (BLOCKS * SIZE)
#define LARGE (6 * SIZE) /* of eight stripes that are free */

static gpupool_arena *arena;
static char *stripe[BLOCKS];

/* The limit's worth of blocks on a stream, with work queued on all; every other one is freed, so
   that a large request must have their memory at other addresses. */
static void *below; /* a block at lower addresses */
static void lay_stripes_above(size_t below_bytes, size_t chunk, int stream) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
    config.limit_bytes = LIMIT + below_bytes;
    config.chunk_bytes = chunk;
    arena = kit_create(&config);
    fake_mode(FAKE_STEPPED);
    below = below_bytes ? kit_alloc(arena, below_bytes, kit_stream[stream]) : NULL;
    for (int i = 0; i < BLOCKS; i++) {
        stripe[i] = (char *)kit_alloc(arena, SIZE, kit_stream[stream]);
        CHECK_EQ(fake_write(kit_stream[stream], "fill", stripe[i], SIZE, i), cudaSuccess);
    }
    for (int i = 0; i < BLOCKS; i += 2)
        CHECK_RESULT(gpupool_free(arena, stripe[i], kit_stream[stream]), GPUPOOL_OK);
}

static void lay_stripes(size_t chunk, int stream) { lay_stripes_above(0, chunk, stream); }

static void keep_stripes(int stream) {
    for (int i = 1; i < BLOCKS; i += 2) {
        if (!stripe[i]) continue;
        CHECK_EQ(fake_read(kit_stream[stream], "look", stripe[i], SIZE, i), cudaSuccess);
        CHECK_RESULT(gpupool_free(arena, stripe[i], kit_stream[stream]), GPUPOOL_OK);
    }
}

static void *use(void *block, size_t bytes, int stream) {
    CHECK(block != NULL);
    CHECK_EQ(fake_write(kit_stream[stream], "use", block, bytes, 99), cudaSuccess);
    CHECK_EQ(fake_read(kit_stream[stream], "used", block, bytes, 99), cudaSuccess);
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    CHECK_EQ(kit_reserved(arena), LIMIT);
    CHECK_EQ(fake_used_bytes(0), LIMIT);
    return block;
}

/* No address is lost, nor any of the host's bytes but for the table. */
static void nothing_is_left(void) {
    const gpi_backing *backing = &arena->backing;
    uint64_t bytes = backing->table_pages * sizeof *backing->table;
    CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
    CHECK_EQ(gpupool_would_fit(arena, 512, NULL), 1); /* looks for what is done */
    CHECK(backing->first->next == NULL);
    for (uint64_t page = 0; page < backing->table_pages; page++)
        if (backing->table[page]) bytes += TABLE * sizeof **backing->table;
    CHECK_EQ(backing->host_bytes, bytes);
}

static void finish(void *block, int stream) {
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[stream]), GPUPOOL_OK);
    keep_stripes(stream);
    fake_run_all();
    nothing_is_left();
    kit_close(arena);
    CHECK_EQ(fake_used_bytes(0), 0);
    CHECK_EQ(fail_malloc_live, 0);
}

/* ---- who has it ---- */

static void its_stream_has_it_at_once(void) {
    lay_stripes(0, 0);
    gpupool_stats before = kit_stats(arena);
    void *large = use(gpupool_alloc(arena, LARGE, kit_stream[0]), LARGE, 0);
    gpupool_stats after = kit_stats(arena);
    CHECK_EQ(after.host_syncs, before.host_syncs);
    CHECK_EQ(after.fence_waits, before.fence_waits);
    CHECK_EQ(after.remaps - before.remaps, LARGE / (2 * MIB));
    CHECK_EQ(fake_calls("cuMemUnmap"), 0);
    finish(large, 0);
}

/* Where gpupool_would_fit looks, a block may lie on echoes that nothing uses any more. */
static void would_fit_sees_the_addresses_again(void) {
    lay_stripes(0, 0);
    void *large = use(gpupool_alloc(arena, LARGE, kit_stream[0]), LARGE, 0);
    CHECK_EQ(gpupool_would_fit(arena, SIZE, NULL), 1);
    CHECK(arena->backing.echoes != NULL);
    fake_run_all();
    CHECK_EQ(gpupool_would_fit(arena, SIZE, NULL), 1);
    CHECK(arena->backing.echoes == NULL);
    finish(large, 0);
}

/* Which opens the lock: what another thread frees into its cache meanwhile is nobody's block. */
static void to_and_fro(void *nothing) {
    (void)nothing;
    void *block = kit_alloc(arena, 64 * KIB, kit_stream[1]);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[1]), GPUPOOL_OK);
}

static void would_fit_knows_no_blocks_of_caches(void) {
    gpupool_verdict v;
    lay_stripes(0, 0);
    void *large = use(gpupool_alloc(arena, LARGE, kit_stream[0]), LARGE, 0);
    fake_run_all();
    CHECK_RESULT(gpupool_trim(arena, SIZE_MAX, NULL), GPUPOOL_OK);
    arena->hurried = 0; /* so many frees ago; caches are in use again */
    fake_before_call("cuMemUnmap", 1, to_and_fro, NULL);
    CHECK_EQ(gpupool_would_fit(arena, LIMIT, &v), 0);
    CHECK_EQ(v.holders[0].block_bytes, SIZE);
    CHECK_EQ(v.holders[1].block_bytes, LARGE);
    CHECK_EQ(v.holders[2].blocks, 0);
    finish(large, 0);
}

/* Where its work is done, just what it takes is taken off its addresses. */
static void no_more_moves_than_it_takes(void) {
    lay_stripes(0, 0);
    CHECK_RESULT(gpupool_trim(arena, SIZE_MAX, NULL), GPUPOOL_OK);
    fake_run_all();
    void *large = use(gpupool_alloc(arena, LARGE, kit_stream[0]), LARGE, 0);
    CHECK_EQ(fake_calls("cuMemUnmap"), LARGE / (2 * MIB));
    finish(large, 0);
}

/* Pieces that are larger than what is missing have the addresses after it too, and what is left of
   them is the stream's alone: another one that asks for it waits, as the oracle would see. */
static void what_is_left_is_its_streams(void) {
    lay_stripes(SIZE, 0);
    void *large = use(gpupool_alloc(arena, LARGE - 3 * MIB, kit_stream[0]), LARGE - 3 * MIB, 0);
    CHECK_EQ(kit_stats(arena).remaps, LARGE / SIZE);
    CHECK_EQ(kit_stats(arena).host_syncs, 0);
    void *rest = use(gpupool_alloc(arena, 3 * MIB, kit_stream[1]), 3 * MIB, 1);
    CHECK_RESULT(gpupool_free(arena, rest, kit_stream[1]), GPUPOOL_OK);
    finish(large, 0);
}

static void another_stream_waits_for_it(void) {
    lay_stripes(0, 0);
    void *large = use(gpupool_alloc(arena, LARGE, kit_stream[1]), LARGE, 1);
    gpupool_stats after = kit_stats(arena);
    CHECK(after.host_syncs + after.fence_waits > 0);
    CHECK_RESULT(gpupool_free(arena, large, kit_stream[1]), GPUPOOL_OK);
    finish(use(gpupool_alloc(arena, SIZE, kit_stream[0]), SIZE, 0), 0);
}

/* A replay is no later work of the stream. */
static void a_capture_does_not_have_it(void) {
    cudaGraph_t graph;
    lay_stripes(0, 0);
    CHECK_EQ(cudaStreamBeginCapture(kit_stream[0], cudaStreamCaptureModeThreadLocal), cudaSuccess);
    CHECK_RESULT(kit_why(gpupool_alloc(arena, LARGE, kit_stream[0])), GPUPOOL_E_OUT_OF_MEMORY);
    CHECK_EQ(kit_stats(arena).remaps, 0);
    CHECK_EQ(cudaStreamEndCapture(kit_stream[0], &graph), cudaSuccess);
    CHECK_EQ(cudaGraphDestroy(graph), cudaSuccess);
    finish(use(gpupool_alloc(arena, LARGE, kit_stream[0]), LARGE, 0), 0);
}

/* ---- the addresses that it leaves ---- */

/* They stay mapped while work that was queued before may use them, and no longer than the next
   growth after it. */
static void addresses_outlast_the_work(void) {
    lay_stripes(0, 0);
    void *large = use(gpupool_alloc(arena, LARGE, kit_stream[0]), LARGE, 0);
    CHECK_EQ(fake_calls("cuMemUnmap"), 0);
    CHECK_EQ(fake_run_all() > 0, 1);
    for (int i = 1; i < 5; i += 2) {
        CHECK_RESULT(gpupool_free(arena, stripe[i], kit_stream[0]), GPUPOOL_OK);
        stripe[i] = NULL;
    }
    void *next = use(gpupool_alloc(arena, 3 * SIZE, kit_stream[0]), 3 * SIZE, 0);
    CHECK(fake_calls("cuMemUnmap") >= (long)(LARGE / (2 * MIB)));
    CHECK_RESULT(gpupool_free(arena, next, kit_stream[0]), GPUPOOL_OK);
    finish(large, 0);
}

/* What was freed after the newest fence does not move behind it: its addresses would be unmapped
   when that fence has passed, under work that is still queued. */
static void what_no_fence_covers_stays(void) {
    lay_stripes(0, 0);
    CHECK_RESULT(gpupool_trim(arena, SIZE_MAX, NULL), GPUPOOL_OK); /* puts a fence behind it */
    int covered = fake_pending(kit_stream[0]);
    CHECK_EQ(fake_read(kit_stream[0], "late", stripe[13], SIZE, 13), cudaSuccess);
    CHECK_RESULT(gpupool_free(arena, stripe[13], kit_stream[0]), GPUPOOL_OK);
    fake_fail_call("cudaEventRecord", 1, 1, 0);
    void *large = use(gpupool_alloc(arena, 9 * SIZE, kit_stream[0]), 9 * SIZE, 0);
    CHECK(fake_fail_fired() > 0);
    fake_fail_clear();
    for (; covered > 0; covered--) fake_step(kit_stream[0]);
    CHECK_RESULT(gpupool_free(arena, stripe[11], kit_stream[0]), GPUPOOL_OK);
    CHECK_RESULT(gpupool_free(arena, stripe[15], kit_stream[0]), GPUPOOL_OK);
    void *next = use(gpupool_alloc(arena, 2 * SIZE, kit_stream[0]), 2 * SIZE, 0);
    CHECK_RESULT(gpupool_free(arena, next, kit_stream[0]), GPUPOOL_OK);
    for (int i = 11; i < BLOCKS; i += 2) stripe[i] = NULL;
    finish(large, 0);
}

/* A report shows memory, and what is mapped twice once. */
static void a_report_has_each_piece_once(void) {
    static char line[1 << 16];
    unsigned long long bytes = 0, one = 0;
    lay_stripes(0, 0);
    void *large = use(gpupool_alloc(arena, LARGE, kit_stream[0]), LARGE, 0);
    FILE *file = tmpfile();
    if (!CHECK(file != NULL)) return;
    CHECK_RESULT(gpupool_write_json(arena, file), GPUPOOL_OK);
    rewind(file);
    while (fgets(line, sizeof line, file))
        for (const char *at = line; (at = strstr(at, "{\"address\"")) != NULL; at++) {
            int chunk = 0; /* and no block */
            sscanf(at, "{\"address\":%*u,\"bytes\":%llu,\"blocks\":%n", &one, &chunk);
            if (chunk) bytes += one;
        }
    fclose(file);
    CHECK_EQ(bytes, LIMIT);
    finish(large, 0);
}

/* Memory goes back to the driver only once it is mapped nowhere. */
static void trimmed_memory_is_gone(void) {
    lay_stripes(0, 0);
    void *large = use(gpupool_alloc(arena, LARGE, kit_stream[0]), LARGE, 0);
    CHECK_RESULT(gpupool_free(arena, large, kit_stream[0]), GPUPOOL_OK);
    fake_run_all();
    size_t released = 0;
    CHECK_RESULT(gpupool_trim(arena, 0, &released), GPUPOOL_OK);
    CHECK_EQ(released, LIMIT / 2);
    CHECK_EQ(fake_used_bytes(0), LIMIT / 2);
    finish(use(gpupool_alloc(arena, LIMIT / 2, kit_stream[0]), LIMIT / 2, 0), 0);
}

static void reset_while_they_are_mapped(void) {
    lay_stripes(0, 0);
    use(gpupool_alloc(arena, LARGE, kit_stream[0]), LARGE, 0);
    fake_run_all();
    CHECK_EQ(cudaDeviceReset(), cudaSuccess);
    for (int i = 0; i < KIT_STREAMS; i++) kit_stream[i] = NULL;
    CHECK_EQ(cudaFree(NULL), cudaSuccess); /* a new context */
    CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_OK);
    CHECK_EQ(fail_malloc_live, 0);
}

/* ---- the check ---- */

static void expect_broken(const char *invariant) {
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_E_ARGUMENT);
    CHECK(strstr(gpupool_last_error(), invariant) != NULL);
}

static void wrong_echoes_are_seen(void) {
    lay_stripes(0, 0);
    void *large = use(gpupool_alloc(arena, LARGE, kit_stream[0]), LARGE, 0);
    gpi_echo *echo = arena->backing.echoes;
    gpi_run *held = echo->held;
    const gpi_piece *piece = echo->piece;
    gpi_piece **slot = gpi_backing_slot(&arena->backing, held->unit);
    *slot = (gpi_piece *)(uintptr_t)piece;
    expect_broken("B2"); /* a piece is at one place only */
    *slot = NULL;
    echo->held = arena->backing.first;
    expect_broken("B4"); /* not held */
    echo->held = held;
    held->units += 1;
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_E_ARGUMENT);
    held->units -= 1;
    gpi_piece longer = *piece;
    longer.units *= 2;
    echo->piece = &longer;
    expect_broken("B4");
    echo->piece = piece;
    ((gpi_fence *)echo->until)->users++;
    expect_broken("F3");
    ((gpi_fence *)echo->until)->users--;
    fake_run_all();
    gpi_fence_poll(&arena->fences, &arena->tree); /* of the stream's lanes, not of echoes */
    ((gpi_fence *)echo->until)->users++;
    expect_broken("F3");
    ((gpi_fence *)echo->until)->users--;
    finish(large, 0);
}

/* ---- failures ---- */

static void failed_request(long n, const char *what, gpupool_stats before) {
    gpupool_stats after = kit_stats(arena);
    check_case("%s, number %ld", what, n);
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    CHECK_EQ(after.granted.now, before.granted.now);
    CHECK_EQ(after.reserved.now, before.reserved.now);
    CHECK_EQ(fake_used_bytes(0), LIMIT);
}

/* Each record that moving needs is refused in turn. */
static void no_memory_on_the_host(void) {
    long refused = 0, fired = 1;
    for (size_t chunk = 0; chunk <= SIZE; chunk += SIZE) {
        for (long n = 1; fired && CHECK(n < 200); n++) {
            lay_stripes(chunk, 0);
            gpupool_stats before = kit_stats(arena);
            fail_malloc_nth(n, 1);
            void *large = gpupool_alloc(arena, LARGE - 3 * MIB, kit_stream[0]);
            fired = fail_malloc_fired;
            fail_malloc_nth(0, 0);
            refused += large == NULL;
            if (!large) failed_request(n, "host memory", before);
            if (!large) large = gpupool_alloc(arena, LARGE - 3 * MIB, kit_stream[0]);
            finish(use(large, LARGE - 3 * MIB, 0), 0);
        }
        fired = 1;
    }
    CHECK(refused > 4);
}

/* Moved memory reaches just beyond the first GiB, of which the host has a table already. */
static void no_memory_for_a_table_from(int persist) {
    size_t bytes = 21 * MIB, under = GIB - LIMIT - 22 * MIB;
    int refused = 0;
    for (long n = 1, fired = 1; fired && CHECK(n < 40); n++) {
        check_case("request %ld%s", n, persist ? " and all after it" : "");
        lay_stripes_above(under, SIZE, 0);
        gpupool_stats before = kit_stats(arena);
        fail_malloc_nth(n, persist);
        void *large = gpupool_alloc(arena, bytes, kit_stream[0]);
        fired = fail_malloc_fired;
        fail_malloc_nth(0, 0);
        refused += large == NULL;
        if (!large) CHECK_RESULT(gpupool_last_result(), GPUPOOL_E_HOST_MEMORY);
        CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
        if (!large) CHECK_EQ(kit_stats(arena).granted.now, before.granted.now);
        if (!large) large = kit_alloc(arena, bytes, kit_stream[0]);
        CHECK((char *)large + bytes <= (char *)below + GIB);
        CHECK_RESULT(gpupool_free(arena, below, kit_stream[0]), GPUPOOL_OK);
        finish(large, 0);
    }
    CHECK(refused > 1);
}
static void no_memory_for_a_table(void) {
    no_memory_for_a_table_from(1);
    no_memory_for_a_table_from(0);
}

/* Run structs come a page at a time: they may end between two pieces that move, which takes up to
   three of them, and the host have no other page. */
#define STRUCTS 1024 /* that the arena gets at a time */
static uint64_t structs_left;
static void note_structs(void) { structs_left = arena->tree.spare_count; }
static uint64_t structs(void) { /* in use or spare */
    uint64_t count = arena->tree.spare_count;
    for (const gpi_run *run = arena->backing.first; run; run = run->next) count++;
    return count;
}

static void no_memory_for_run_structs(void) {
    static void *small[STRUCTS];
    int count, refused_with_two = 0, moved_without = 0;
    for (uint64_t left = 8; left < 24; left++) {
        check_case("%d structs left", (int)left);
        lay_stripes(0, 0);
        for (count = 0; count < STRUCTS && arena->tree.spare_count > left; count++)
            small[count] = kit_alloc(arena, 512, kit_stream[0]);
        CHECK_EQ(arena->tree.spare_count, left);
        gpupool_stats before = kit_stats(arena);
        structs_left = left;
        fail_malloc_least = STRUCTS * sizeof(gpi_run);
        fail_malloc_told = note_structs;
        fail_malloc_nth(1, 1);
        void *large = gpupool_alloc(arena, LARGE, kit_stream[0]);
        CHECK_EQ(fail_malloc_fired > 0, large == NULL);
        fail_malloc_nth(0, 0);
        fail_malloc_told = NULL;
        fail_malloc_least = 0;
        if (large) {
            moved_without++;
        } else {
            CHECK_RESULT(gpupool_last_result(), GPUPOOL_E_HOST_MEMORY);
            failed_request((long)left, "run structs", before);
            CHECK_EQ(structs(), STRUCTS);
            refused_with_two += structs_left == 2;
            large = gpupool_alloc(arena, LARGE, kit_stream[0]);
        }
        use(large, LARGE, 0);
        CHECK_EQ(structs(), arena->tree.page_count * STRUCTS);
        while (count) CHECK_RESULT(gpupool_free(arena, small[--count], kit_stream[0]), GPUPOOL_OK);
        finish(large, 0);
    }
    CHECK(refused_with_two > 0);
    CHECK(moved_without > 0);
}

/* Moving some of it is not enough, and the device has no more: refused, not tried for ever. */
static void the_device_is_full(void) {
    lay_stripes(0, 0);
    CHECK_RESULT(gpupool_set_limit(arena, 0), GPUPOOL_OK);
    size_t free_bytes = 0, total_bytes = 0;
    CHECK_EQ(cudaMemGetInfo(&free_bytes, &total_bytes), cudaSuccess);
    fake_other_process(0, free_bytes);
    CHECK_RESULT(kit_why(gpupool_alloc(arena, 9 * SIZE, kit_stream[0])), GPUPOOL_E_OUT_OF_MEMORY);
    finish(use(gpupool_alloc(arena, LARGE, kit_stream[0]), LARGE, 0), 0);
}

/* Of two calls the first fails once, so that what had been done is undone, and the second whenever
   it is made: then the undoing fails too. */
static void driver_calls_fail(void) {
    static const char *const calls[][2] = {
        {"cuMemMap", NULL},         {"cuMemSetAccess", NULL},        {"cuMemCreate", NULL},
        {"cuMemMap", "cuMemUnmap"}, {"cuMemSetAccess", "cuMemUnmap"}};
    for (size_t i = 0; i < KIT_COUNT(calls); i++) {
        long fired = 1;
        for (long n = 1; fired && CHECK(n < 200); n++) {
            lay_stripes(SIZE, 0);
            gpupool_stats before = kit_stats(arena);
            fake_fail_call(calls[i][0], n, 0, 0);
            if (calls[i][1]) fake_fail_call(calls[i][1], 1, 1, 0);
            void *large = gpupool_alloc(arena, LARGE - 3 * MIB, kit_stream[0]);
            fired = fake_fail_fired();
            fake_fail_clear();
            if (!large) failed_request(n, calls[i][0], before);
            if (!large) large = gpupool_alloc(arena, LARGE - 3 * MIB, kit_stream[0]);
            finish(use(large, LARGE - 3 * MIB, 0), 0);
        }
    }
}

#endif

int main(void) {
    FAKE_TEST(its_stream_has_it_at_once);
    FAKE_TEST(would_fit_sees_the_addresses_again);
    FAKE_TEST(would_fit_knows_no_blocks_of_caches);
    FAKE_TEST(no_more_moves_than_it_takes);
    FAKE_TEST(what_is_left_is_its_streams);
    FAKE_TEST(another_stream_waits_for_it);
    FAKE_TEST(a_capture_does_not_have_it);
    FAKE_TEST(addresses_outlast_the_work);
    FAKE_TEST(what_no_fence_covers_stays);
    FAKE_TEST(a_report_has_each_piece_once);
    FAKE_TEST(trimmed_memory_is_gone);
    FAKE_TEST(reset_while_they_are_mapped);
    FAKE_TEST(wrong_echoes_are_seen);
    FAKE_TEST(no_memory_on_the_host);
    FAKE_TEST(no_memory_for_a_table);
    FAKE_TEST(no_memory_for_run_structs);
    FAKE_TEST(the_device_is_full);
    FAKE_TEST(driver_calls_fail);
    return check_finish();
}
