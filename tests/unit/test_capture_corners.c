/* Scopes at their corners: without host memory, with blocks that two graphs or another stream use,
   and with an arena that ends under them. */
#include "fail_malloc.h"
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "arena_scene.h"

#if CHECK_FAKE

static gpupool_capture *scope[3];

static void begin(int i) {
    CHECK_RESULT(gpupool_begin_capture(arena, kit_stream[i], &scope[i]), GPUPOOL_OK);
}
static void release(int i) { CHECK_RESULT(gpupool_release_capture(scope[i]), GPUPOOL_OK); }

/* ---- whose a stream's key is ---- */

static void set_aside_and_back(void) {
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    put(get(4096, 0), 0);
    gpi_stream *own = known_stream(0);
    for (int turn = 0; turn < 3; turn++) {
        begin(0);
        CHECK(known_stream(0) != own);
        CHECK_RESULT(gpupool_end_capture(scope[0]), GPUPOOL_OK);
        CHECK(known_stream(0) == own);
        release(0);
    }
    begin(0);
    CHECK_RESULT(gpupool_retire_stream(arena, kit_stream[0]), GPUPOOL_OK);
    CHECK_EQ(own->is_kept, 0);
    CHECK_RESULT(gpupool_end_capture(scope[0]), GPUPOOL_OK);
    CHECK(known_stream(0) == NULL); /* the key may be another stream's by now */
    release(0);
    kit_close(arena);
}

/* Its struct would be another stream's when the scope ends; afterwards it may be. */
static void not_forgotten_while_set_aside(void) {
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    put(get(4096, 0), 0);
    gpi_stream *own = known_stream(0);
    begin(0);
    CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
    CHECK(own->handle == gpi_clock_key(kit_stream[0]));
    CHECK_RESULT(gpupool_end_capture(scope[0]), GPUPOOL_OK);
    release(0);
    CHECK_RESULT(gpupool_retire_stream(arena, kit_stream[0]), GPUPOOL_OK);
    CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
    CHECK_EQ(own->handle, 0);
    kit_close(arena);
}

/* The release of a graph that kept a block leaves nothing of the graph's. */
static void forgotten_with_its_release(void) {
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    void *block = get(MIB, 0);
    begin(0);
    put(block, 0);
    CHECK_EQ(arena->clocks.stream_count, 2);
    CHECK_RESULT(gpupool_end_capture(scope[0]), GPUPOOL_OK);
    release(0);
    CHECK_EQ(arena->clocks.stream_count, 1);
    kit_close(arena);
}

/* ---- host memory ---- */

/* Of a stream that the arena knows, and of one that it does not; each record in turn is refused. */
static void no_memory_for_a_scope(void) {
    for (int known = 0; known < 2; known++) {
        long fired = 1;
        for (long n = 1; fired; n++) {
            check_case("%s stream, request %ld", known ? "known" : "new", n);
            arena = kit_open(GPUPOOL_SOURCE_MAPPED);
            void *block = known ? get(4096, 0) : NULL;
            gpupool_stats before = kit_stats(arena);
            gpi_stream *own = known_stream(0);
            fail_malloc_nth(n, 1);
            gpupool_result result = gpupool_begin_capture(arena, kit_stream[0], &scope[0]);
            fired = fail_malloc_fired;
            fail_malloc_nth(0, 0);
            CHECK_RESULT(result, fired ? GPUPOOL_E_HOST_MEMORY : GPUPOOL_OK);
            CHECK_EQ(scope[0] != NULL, !fired);
            CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
            if (fired) CHECK(kit_same_stats(before, kit_stats(arena)));
            if (fired) CHECK(known_stream(0) == own || !own);
            if (fired) begin(0); /* it is in no scope yet */
            release(0);
            if (block) put(block, 0);
            CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
            CHECK_EQ(arena->clocks.stream_count, 0);
            kit_close(arena);
        }
    }
    CHECK_EQ(gpi_process.scopes, 0);
}

/* A block needs a record that the graph keeps it, and so does one that is older than the scope: or
   nothing is taken, of what the graph has free, of finished memory, or of the driver's. */
static void no_memory_to_keep_a_block(void) {
    static const size_t sizes[] = {8192, MIB, 64 * MIB};
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    void *older = get(4096, 0);
    begin(0);
    void *inside = get(8192, 0);
    put(inside, 0); /* free there now, so that only the record is missing */
    gpupool_stats before = kit_stats(arena), after;
    for (int i = 0; i < 3; i++) {
        fail_malloc_nth(i < 2 ? 1 : 2, 1); /* what does not find memory at once has two */
        CHECK_RESULT(kit_why(gpupool_alloc(arena, sizes[i], kit_stream[0])), GPUPOOL_E_HOST_MEMORY);
    }
    CHECK_RESULT(gpupool_free(arena, older, kit_stream[0]), GPUPOOL_E_HOST_MEMORY);
    fail_malloc_nth(0, 0);
    after = kit_stats(arena);
    CHECK(kit_same_stats(before, after));
    CHECK_EQ(after.failures, before.failures + 3);
    CHECK(get(8192, 0) == inside);
    put(older, 0);
    release(0);
    kit_close(arena);
}

/* Without a pool, too. */
static void no_memory_to_keep_an_older_chunk(void) {
    arena = kit_open(GPUPOOL_SOURCE_BYPASS);
    void *older = get(4096, 0);
    begin(0);
    gpupool_stats before = kit_stats(arena);
    fail_malloc_nth(1, 1);
    CHECK_RESULT(gpupool_free(arena, older, kit_stream[0]), GPUPOOL_E_HOST_MEMORY);
    fail_malloc_nth(0, 0);
    CHECK(kit_same_stats(before, kit_stats(arena)));
    put(older, 0);
    release(0);
    kit_close(arena);
}

/* Where no graph keeps the chunk, a free needs none. */
static void a_free_without_a_pool_needs_no_memory(void) {
    arena = kit_open(GPUPOOL_SOURCE_BYPASS);
    void *block = get(4096, 0);
    fail_malloc_nth(1, 1);
    put(block, 0);
    fail_malloc_nth(0, 0);
    CHECK_EQ(kit_stats(arena).blocks.now, 0);
    kit_close(arena);
}

/* A release needs none, without a pool either. */
static void no_memory_at_the_release_without_a_pool(void) {
    arena = kit_open(GPUPOOL_SOURCE_BYPASS);
    void *busy = get(MIB, 2);
    begin(0);
    put(get(2 * MIB, 0), 0);
    fail_malloc_nth(1, 1);
    release(0);
    fail_malloc_nth(0, 0);
    CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK); /* to give the chunk back did */
    CHECK_EQ(kit_reserved(arena), MIB);
    put(busy, 2);
    kit_close(arena);
}

/* After a capture the host waits for what others freed, and has to keep it apart meanwhile. It
   would fit, so that without host memory this is the reason told. Each record in turn is
   refused. */
static void no_memory_to_wait_for_others(void) {
    size_t bytes = 768 << 10; /* what one free may leave without a mark */
    for (int persist = 0; persist < 2; persist++) {
        long fired = 1;
        for (long n = 1; fired; n++) {
            check_case("request %ld%s", n, persist ? " and all after it" : "");
            arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 2 * MIB);
            void *live = get(MIB, 1), *block = get(bytes, 0);
            put(block, 0);
            begin(2); /* which takes the spare list */
            gpupool_stats before = kit_stats(arena);
            fail_malloc_nth(n, persist);
            block = gpupool_alloc(arena, bytes, kit_stream[1]);
            fired = fail_malloc_fired;
            fail_malloc_nth(0, 0);
            CHECK_RESULT(kit_why(block), block ? GPUPOOL_OK : GPUPOOL_E_HOST_MEMORY);
            if (!block) {
                CHECK_EQ(kit_stats(arena).pending.now, before.pending.now);
                block = get(bytes, 1);
            }
            put(block, 1);
            put(live, 1);
            release(2);
            kit_close(arena);
        }
    }
}

static void release_without_the_wait(void) {
    fake_fail_call("cuMemFree", 1, 0, 0);
    release(0);
    CHECK_EQ(fake_fail_fired(), 1);
    fake_fail_clear();
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
}

/* What a release could not wait for waits for a mark, as what any stream has freed. */
static void no_wait_at_the_release(void) {
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    begin(0);
    put(get(4 * MIB, 0), 0);
    release_without_the_wait();
    CHECK_EQ(kit_stats(arena).host_syncs, 0);
    CHECK_EQ(kit_stats(arena).pending.now, 4 * MIB);
    CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
    CHECK_EQ(kit_reserved(arena), 0);
    kit_close(arena);
}

/* Nor has it passed with a mark of before a replay that the release could not wait for: the memory,
   and addresses that were stitched for it, may be in use. */
static void replayed_at_a_release_without_the_wait(void) {
    void *small[8], *older;
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    for (int stitched = 0; stitched < 2; stitched++) {
        check_case("stitched %d", stitched);
        arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 64 * MIB);
        for (int i = 0; i < 8; i++) small[i] = get(8 * MIB, 0);
        for (int i = 0; i < 8; i += 2) put(small[i], 0);
        CHECK_RESULT(gpupool_wait_all(arena), GPUPOOL_OK);
        begin(0);
        older = get((stitched ? 16 : 8) * MIB, 0);
        CHECK_EQ(kit_stats(arena).stitches, stitched);
        CHECK_EQ(cudaStreamBeginCapture(kit_stream[0], cudaStreamCaptureModeRelaxed), cudaSuccess);
        kit_fill(kit_stream[0], older, 64, 1);
        CHECK_EQ(cudaStreamEndCapture(kit_stream[0], &graph), cudaSuccess);
        CHECK_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
        CHECK_EQ(cudaGraphDestroy(graph), cudaSuccess);
        put(older, 0);
        CHECK_RESULT(gpupool_wait_all(arena), GPUPOOL_OK);
        fake_hold(kit_stream[0], 1);
        CHECK_EQ(cudaGraphLaunch(exec, kit_stream[0]), cudaSuccess);
        release_without_the_wait();
        CHECK_RESULT(gpupool_last_result(), GPUPOOL_OK);
        CHECK_EQ(kit_stats(arena).pending.now, (stitched ? 16 : 8) * MIB);
        const gpi_stitch *stitch = arena->stitches.oldest;
        CHECK_EQ(stitch != NULL, stitched);
        if (stitch) CHECK(!gpi_stitch_has_passed(&arena->stitches, stitch));
        fake_hold(kit_stream[0], 0);
        fake_run_all();
        CHECK_RESULT(gpupool_wait_all(arena), GPUPOOL_OK);
        CHECK_EQ(kit_stats(arena).pending.now, 0);
        if (stitch) CHECK(gpi_stitch_has_passed(&arena->stitches, stitch));
        CHECK_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
        for (int i = 1; i < 8; i += 2) put(small[i], 0);
        kit_close(arena);
    }
}

/* Another thread whose wait ends during the release's looks at the waiting blocks while they are
   the graph's yet. */
static void look_meanwhile(void *unused) {
    (void)unused;
    gpi_host_lock(&arena->lock);
    gpi_clock_pass(&arena->clocks, arena->clocks.all, arena->clocks.position);
    gpi_arena_ask_waiting(arena);
    CHECK(arena->waiting != NULL);
    gpi_host_unlock(&arena->lock);
}

static void looked_at_during_the_release(void) {
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    begin(0);
    get(4 * MIB, 0);
    fake_before_call("cuMemFree", 1, look_meanwhile, NULL);
    release(0);
    CHECK_EQ(kit_stats(arena).pending.now, 0);
    CHECK_EQ(kit_stats(arena).blocks.now, 0);
    kit_close(arena);
}

/* Without a pool, where no step waits for free lists, a request that lacks this memory does: also
   behind the mark of a trim that has not passed. */
static void no_wait_at_the_release_without_a_pool(void) {
    cudaGraph_t graph;
    for (int fenced = 0; fenced < 2; fenced++) {
        arena = kit_open_limited(GPUPOOL_SOURCE_BYPASS, 8 * MIB);
        void *busy = get(MIB, 2);
        begin(0);
        put(get(6 * MIB, 0), 0);
        CHECK_EQ(kit_available(arena), MIB); /* and the graph's for nobody */
        release_without_the_wait();
        CHECK_EQ(kit_stats(arena).pending.now, 6 * MIB);
        CHECK_EQ(kit_available(arena), 7 * MIB);
        fake_hold(kit_stream[2], 1);
        kit_fill(kit_stream[2], busy, MIB, 1);
        if (fenced) CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
        CHECK_EQ(kit_reserved(arena), 7 * MIB);
        fake_fail_call("cuMemFree", 1, 0, 0);
        CHECK_RESULT(kit_why(gpupool_alloc(arena, 4 * MIB, kit_stream[1])),
                     fenced ? GPUPOOL_E_CUDA : GPUPOOL_E_OUT_OF_MEMORY);
        fake_fail_clear();
        CHECK_EQ(cudaStreamBeginCapture(kit_stream[1], cudaStreamCaptureModeRelaxed), cudaSuccess);
        CHECK(gpupool_alloc(arena, 4 * MIB, kit_stream[1]) == NULL); /* for it must not wait */
        CHECK_EQ(cudaStreamEndCapture(kit_stream[1], &graph), cudaSuccess);
        CHECK_EQ(cudaGraphDestroy(graph), cudaSuccess);
        fail_malloc_nth(1, 1);
        CHECK_RESULT(kit_why(gpupool_alloc(arena, 4 * MIB, kit_stream[1])),
                     GPUPOOL_E_HOST_MEMORY);
        fail_malloc_nth(0, 0);
        put(get(4 * MIB, 1), 1);
        CHECK_EQ(kit_reserved(arena), MIB);
        put(busy, 2);
        kit_close(arena);
    }
}

/* The same of streams that go on freeing while the host waits, with marks and without. */
static void *late[5];
static void free_during_the_wait(void *unused) {
    (void)unused;
    arena->short_until = arena->clocks.position + 4; /* a mark for each */
    for (int i = 1; i < 5; i++) put(late[i], i < 3 ? 1 : 2);
}

static void frees_during_a_wait_that_fails(void) {
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    begin(0);
    put(get(4 * MIB, 0), 0);
    /* the first ones too small for a mark of their own */
    for (int i = 0; i < 5; i++) late[i] = get(i ? 2 * MIB : 512 * KIB, i < 3 ? 1 : 2);
    void *early = get(512 * KIB, 3);
    for (int i = 1; i < 3; i++) { /* so that the later marks do not pass */
        fake_hold(kit_stream[i], 1);
        kit_fill(kit_stream[i], late[i * 2], 64, 1);
    }
    put(late[0], 1);
    put(early, 3);
    fake_before_call("cuMemFree", 1, free_during_the_wait, NULL);
    release_without_the_wait();
    /* all of it, none of which is finished with */
    CHECK_EQ(kit_stats(arena).pending.now, 13 * MIB);
    for (int i = 1; i < 3; i++) fake_hold(kit_stream[i], 0);
    fake_run_all();
    CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
    CHECK_EQ(kit_reserved(arena), 0);
    kit_close(arena);
}

/* ---- blocks that several use ---- */

/* Waiting, with its graph first among its users, and another graph's beside it: each release takes
   its own and no more. */
static void waiting_blocks_of_two_graphs(void) {
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    fake_mode(FAKE_STEPPED);
    void *older[2] = {get(MIB, 0), get(MIB, 1)};
    for (int i = 0; i < 2; i++) {
        kit_order(kit_stream[i], kit_stream[2]);
        kit_fill(kit_stream[2], older[i], 64, i);
        CHECK_RESULT(gpupool_record_stream(arena, older[i], kit_stream[2]), GPUPOOL_OK);
        begin(i);
        put(older[i], i);
    }
    CHECK(arena->waiting && arena->waiting->list_next);
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    release(1);
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    release(0);
    fake_run_all();
    kit_close(arena);
}

/* The first waiting block is not done, the second is, and a graph keeps it: for nobody else. */
static void waiting_out_of_order_for_a_graph(void) {
    cudaGraph_t graph = NULL;
    arena = kit_open_limited(GPUPOOL_SOURCE_DEVICE, 64 * MIB);
    void *slow = get(20 * MIB, 0), *fast = get(20 * MIB, 0), *rest = get(20 * MIB, 0);
    CHECK_RESULT(gpupool_record_stream(arena, fast, kit_stream[2]), GPUPOOL_OK);
    fake_hold(kit_stream[1], 1);
    kit_expect(kit_stream[1], slow, 64, -1);
    CHECK_RESULT(gpupool_record_stream(arena, slow, kit_stream[1]), GPUPOOL_OK);
    put(slow, 0);
    begin(0);
    put(fast, 0);
    CHECK(arena->waiting && arena->waiting->list_next);
    CHECK_EQ(cudaStreamBeginCapture(kit_stream[3], cudaStreamCaptureModeRelaxed), cudaSuccess);
    CHECK_RESULT(kit_why(gpupool_alloc(arena, 20 * MIB, kit_stream[3])), GPUPOOL_E_OUT_OF_MEMORY);
    CHECK(arena->waiting && arena->waiting->list_next); /* until the release */
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    CHECK_EQ(cudaStreamEndCapture(kit_stream[3], &graph), cudaSuccess);
    CHECK_EQ(cudaGraphDestroy(graph), cudaSuccess);
    fake_hold(kit_stream[1], 0);
    release(0);
    put(rest, 0);
    kit_close(arena);
}

/* A graph's own block, which another stream reads when the scope is released: it waits. */
static void used_elsewhere_at_the_release(void) {
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    begin(0);
    void *block = get(MIB, 0);
    CHECK_RESULT(gpupool_record_stream(arena, block, kit_stream[2]), GPUPOOL_OK);
    fake_fail_call("cuMemFree", 1, 1, 0); /* the wait that the release makes */
    release(0);
    fake_fail_clear();
    CHECK_EQ(cudaGetLastError(), cudaSuccess);
    CHECK_EQ(kit_stats(arena).blocks.now, 0);
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    kit_close(arena);
}

/* Blocks in a cache are nobody's graph's; they stay there. */
static void caches_at_the_release(void) {
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    begin(0);
    void *inside = get(4096, 0), *outside;
    put(inside, 0);
    for (int i = 0; i < 3; i++) put(get(2048, 1), 1);
    outside = get(2048, 1);
    release(0);
    CHECK_EQ(kit_stats(arena).blocks.now, 1);
    put(outside, 1);
    kit_close(arena);
}

/* While a stream captures without a scope, a block that a graph keeps may be freed on it. */
static void freed_on_another_capturing_stream(void) {
    cudaGraph_t graph = NULL;
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    begin(0);
    void *block = get(MIB, 0);
    CHECK_EQ(cudaStreamBeginCapture(kit_stream[1], cudaStreamCaptureModeRelaxed), cudaSuccess);
    put(block, 1);
    fake_fail_call("cuStreamIsCapturing", 1, 0, 0);
    CHECK_EQ(cudaStreamEndCapture(kit_stream[1], &graph), cudaSuccess);
    fake_fail_clear();
    CHECK_EQ(cudaGraphDestroy(graph), cudaSuccess);
    CHECK(get(MIB, 2) != block); /* the graph's yet */
    CHECK_EQ(kit_stats(arena).blocks.now, 1);
    release(0);
    CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_E_IN_USE);
    gpi_run *run = arena->chunks.home;
    while (run->list != GPI_LIST_LIVE) run = run->next;
    put((void *)(uintptr_t)(run->unit * GPUPOOL_UNIT_BYTES), 2);
    kit_close(arena);
}

/* Freed in a scope, but handed out in another: neither graph's blocks may lie there before the
   release, for the replays of the one that freed it read it; also when its capture is over. */
static void freed_in_another_scope(void) {
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 4 * MIB);
    begin(0);
    begin(1);
    put(get(4 * MIB, 0), 1);
    for (int i = 0; i < 2; i++)
        CHECK_RESULT(kit_why(gpupool_alloc(arena, 4 * MIB, kit_stream[i])),
                     GPUPOOL_E_OUT_OF_MEMORY);
    CHECK_EQ(kit_stats(arena).blocks.now, 0);
    release(1);
    CHECK_RESULT(kit_why(gpupool_alloc(arena, 4 * MIB, kit_stream[1])), GPUPOOL_E_OUT_OF_MEMORY);
    release(0);
    put(get(4 * MIB, 1), 1);
    kit_close(arena);
}

/* Nor does its chunk go before both graphs are released, in whatever order. */
static void freed_in_another_scope_without_a_pool(void) {
    for (int first = 0; first < 2; first++) {
        arena = kit_open(GPUPOOL_SOURCE_BYPASS);
        begin(0);
        begin(1);
        put(get(4 * MIB, 0), 1);
        release(first);
        CHECK_EQ(kit_reserved(arena), 4 * MIB);
        release(!first);
        CHECK_EQ(kit_reserved(arena), 0);
        kit_close(arena);
    }
}

/* ---- the end ---- */

/* A scope that has ended, one that has not, and one that was, when the device is reset. */
/* A capturing stream cannot wait; but what others have finished with is found at last, though a
   stream that stands still was the first to use something. */
static void finished_behind_a_stuck_stream(void) {
    cudaGraph_t graph;
    void *block[2];
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 128 * MIB);
    put(get(60 * MIB, 0), 0); /* so far it may grow at once */
    CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
    for (int i = 0; i < 2; i++) block[i] = get(10 * MIB, 0);
    CHECK_RESULT(gpupool_set_limit(arena, 20 * MIB), GPUPOOL_OK);
    fake_mode(FAKE_STEPPED);
    for (int i = 0; i < 2; i++) {
        kit_mark(kit_stream[1 + i], block[i], 64, 1);
        CHECK_RESULT(gpupool_record_stream(arena, block[i], kit_stream[1 + i]), GPUPOOL_OK);
        put(block[i], 0);
    }
    fake_run(kit_stream[0]);
    fake_run(kit_stream[2]);
    CHECK_EQ(cudaStreamBeginCapture(kit_stream[3], cudaStreamCaptureModeRelaxed), cudaSuccess);
    void *again = get(10 * MIB, 3);
    CHECK(again == block[1]);
    CHECK(fake_pending(kit_stream[1]) > 0);
    put(again, 3);
    CHECK_EQ(cudaStreamEndCapture(kit_stream[3], &graph), cudaSuccess);
    CHECK_EQ(cudaGraphDestroy(graph), cudaSuccess);
    fake_mode(FAKE_EAGER);
    kit_close(arena);
}

static void reset_under_scopes(void) {
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    begin(2);
    release(2);
    kit_stats(arena); /* forgets it */
    get(MIB, 2);
    get(MIB, 3);
    begin(0);
    get(MIB, 0);
    CHECK_RESULT(gpupool_end_capture(scope[0]), GPUPOOL_OK);
    begin(1);
    get(MIB, 1);
    CHECK_EQ(cudaDeviceReset(), cudaSuccess);
    for (int i = 0; i < KIT_STREAMS; i++) kit_stream[i] = NULL;
    CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_OK);
    CHECK_EQ(gpi_process.scopes, 0);
    CHECK_EQ(fail_malloc_live, 0);
}
#endif

int main(void) {
    FAKE_TEST(set_aside_and_back);
    FAKE_TEST(not_forgotten_while_set_aside);
    FAKE_TEST(forgotten_with_its_release);
    FAKE_TEST(no_memory_for_a_scope);
    FAKE_TEST(no_memory_to_keep_a_block);
    FAKE_TEST(no_memory_to_keep_an_older_chunk);
    FAKE_TEST(a_free_without_a_pool_needs_no_memory);
    FAKE_TEST(no_memory_at_the_release_without_a_pool);
    FAKE_TEST(no_memory_to_wait_for_others);
    FAKE_TEST(no_wait_at_the_release);
    FAKE_TEST(replayed_at_a_release_without_the_wait);
    FAKE_TEST(looked_at_during_the_release);
    FAKE_TEST(no_wait_at_the_release_without_a_pool);
    FAKE_TEST(frees_during_a_wait_that_fails);
    FAKE_TEST(waiting_blocks_of_two_graphs);
    FAKE_TEST(waiting_out_of_order_for_a_graph);
    FAKE_TEST(used_elsewhere_at_the_release);
    FAKE_TEST(caches_at_the_release);
    FAKE_TEST(freed_on_another_capturing_stream);
    FAKE_TEST(freed_in_another_scope);
    FAKE_TEST(freed_in_another_scope_without_a_pool);
    FAKE_TEST(finished_behind_a_stuck_stream);
    FAKE_TEST(reset_under_scopes);
    return check_finish();
}
