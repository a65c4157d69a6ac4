/* Capture scopes under the oracle: graphs that run beside work on other streams, which is what only
   stepped streams can show. */
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "capture_kit.h"

#if CHECK_FAKE

/* ---- under the oracle: graphs launched on streams that wait for nothing ---- */

static void launch_at_once(cudaGraphExec_t exec, int stream) {
    CHECK_EQ(cudaGraphLaunch(exec, kit_stream[stream]), cudaSuccess);
    while (fake_step(kit_stream[stream])) continue;
    CHECK_EQ(fake_failures(), 0);
}

/* The scope's graph, at once and to its end. */
static void replay(gpupool_capture *scope, int stream) {
    CHECK_RESULT(gpupool_end_capture(scope), GPUPOOL_OK);
    cudaGraphExec_t exec = end(kit_stream[0]);
    launch_at_once(exec, stream);
    fake_run_all();
    release(scope, exec);
}

/* The stream's eager work on memory that it freed is not done when the graph runs elsewhere. */
static void the_graph_takes_none_of_the_streams_own(void) {
    for (int scope_first = 0; scope_first < 2; scope_first++) {
        check_case("scope first %d", scope_first);
        arena = kit_open(GPUPOOL_SOURCE_AUTO);
        gpupool_capture *scope = NULL;
        fake_mode(FAKE_STEPPED);
        void *block = get(BYTES, kit_stream[0]);
        fill(kit_stream[0], block, BYTES, 1);
        put(block, kit_stream[0]);
        if (scope_first) scope = scope_on(kit_stream[0]);
        begin(kit_stream[0], cudaStreamCaptureModeGlobal);
        if (!scope_first) scope = scope_on(kit_stream[0]);
        void *inside = get(BYTES, kit_stream[0]);
        fill(kit_stream[0], inside, BYTES, 2);
        replay(scope, 1);
        kit_close(arena);
    }
}

/* Memory is short and another stream has some, with work on it: a wait of the scope's stream would
   not hold the graph back. */
static void the_graph_takes_none_behind_a_wait(void) {
    for (int scope_first = 0; scope_first < 2; scope_first++) {
        check_case("scope first %d", scope_first);
        arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 4 * MIB);
        gpupool_capture *scope = NULL;
        fake_mode(FAKE_STEPPED);
        void *idle = get(MIB, kit_stream[2]), *block = get(3 * MIB, kit_stream[1]);
        fill(kit_stream[1], block, 3 * MIB, 1);
        put(block, kit_stream[1]);
        put(idle, kit_stream[2]);
        if (scope_first) scope = scope_on(kit_stream[0]);
        else begin(kit_stream[0], cudaStreamCaptureModeGlobal);
        if (!scope_first) scope = scope_on(kit_stream[0]);
        void *inside = gpupool_alloc(arena, 3 * MIB, kit_stream[0]);
        if (scope_first) begin(kit_stream[0], cudaStreamCaptureModeGlobal);
        if (inside) fill(kit_stream[0], inside, 3 * MIB, 2);
        replay(scope, 3);
        kit_close(arena);
    }
}

/* A block from before the scope is freed inside, while eager work on it is queued. */
static void a_block_from_before_is_not_reused_early(void) {
    arena = kit_open(GPUPOOL_SOURCE_AUTO);
    fake_mode(FAKE_STEPPED);
    void *block = get(BYTES, kit_stream[0]);
    fill(kit_stream[0], block, BYTES, 1);
    begin(kit_stream[0], cudaStreamCaptureModeGlobal);
    gpupool_capture *scope = scope_on(kit_stream[0]);
    put(block, kit_stream[0]);
    void *inside = get(BYTES, kit_stream[0]);
    fill(kit_stream[0], inside, BYTES, 2);
    replay(scope, 1);
    all_is_back();
    kit_close(arena);
}

/* Nor by others, though all work so far is done: a replay may come. */
static void a_block_from_before_is_kept_till_the_release(void) {
    arena = kit_open_limited(GPUPOOL_SOURCE_DEVICE, 8 * MIB);
    void *old = get(5 * MIB, kit_stream[0]);
    gpupool_capture *scope = scope_on(kit_stream[0]);
    put(old, kit_stream[0]);
    CHECK_RESULT(gpupool_end_capture(scope), GPUPOOL_OK);
    CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
    for (int i = 0; i < 4; i++) put(get(KIB, kit_stream[2]), kit_stream[2]); /* looks at fences */
    CHECK_RESULT(kit_why(gpupool_alloc(arena, 5 * MIB, kit_stream[1])), GPUPOOL_E_OUT_OF_MEMORY);
    release(scope, NULL);
    put(get(5 * MIB, kit_stream[1]), kit_stream[1]);
    kit_close(arena);
}

/* A branch of the graph frees it, on a stream in a scope of its own or in none: another branch, of
   which nothing is known to come later, does not have it. */
static void a_branch_takes_none_of_another(void) {
    for (int own = 0; own < 2; own++) {
        check_case("scope of its own %d", own);
        arena = kit_open(GPUPOOL_SOURCE_AUTO);
        gpupool_capture *scope = scope_on(kit_stream[0]), *other = NULL;
        if (own) other = scope_on(kit_stream[1]);
        begin(kit_stream[0], cudaStreamCaptureModeGlobal);
        void *block = get(BYTES, kit_stream[0]);
        kit_order(kit_stream[0], kit_stream[1]);
        fill(kit_stream[1], block, BYTES, 1);
        put(block, kit_stream[1]);
        fill(kit_stream[0], get(BYTES, kit_stream[0]), BYTES, 2);
        kit_order(kit_stream[1], kit_stream[0]);
        cudaGraphExec_t exec = end(kit_stream[0]);
        launch_at_once(exec, 2);
        release(scope, exec);
        if (own) release(other, NULL);
        all_is_back();
        kit_close(arena);
    }
}

/* Another stream needs all there is, what others freed without a fence included: the capture is on
   a non-blocking stream, where nothing tells of it but the scope, or that there was one. */
static void running_out_loses_no_capture(void) {
    for (size_t i = 0; i < 2 * KIT_COUNT(sources) * KIT_COUNT(modes); i++) {
        gpupool_source source = sources[i / 3 % 2];
        check_case("source %d, mode %d, scope %d", (int)source, (int)modes[i % 3], (int)(i / 6));
        arena = kit_open_limited(source, 16 * MIB);
        fake_mode(FAKE_STEPPED);
        void *block[15];
        for (int k = 0; k < 15; k++) {
            block[k] = get(MIB, kit_stream[1]);
            fill(kit_stream[1], block[k], MIB, k);
        }
        gpupool_capture *scope = scope_on(kit_stream[0]);
        begin(kit_stream[0], modes[i % 3]);
        void *inside = get(256 * KIB, kit_stream[0]); /* a little is left */
        if (i / 6) CHECK_RESULT(gpupool_end_capture(scope), GPUPOOL_OK);
        for (int k = 0; k < 12; k++) put(block[k], kit_stream[1]);
        void *most = gpupool_alloc(arena, 11 * MIB, kit_stream[2]);
        for (int k = 12; k < 15; k++) put(block[k], kit_stream[1]);
        void *more = gpupool_alloc(arena, 2 * MIB, kit_stream[3]);
        CHECK(gpupool_alloc(arena, 17 * MIB, kit_stream[3]) == NULL);
        CHECK(source != GPUPOOL_SOURCE_AUTO || (most && more));
        CHECK_RESULT(gpupool_retire_stream(arena, kit_stream[1]), GPUPOOL_OK);
        if (most) put(most, kit_stream[2]);
        if (more) put(more, kit_stream[3]);
        fill(kit_stream[0], inside, 256 * KIB, 1);
        release(scope, end(kit_stream[0]));
        kit_close(arena);
    }
}

/* Nor a capture that begins after the scope, and asks for nothing. */
static void running_out_after_a_scope_loses_no_capture(void) {
    arena = kit_open_limited(GPUPOOL_SOURCE_DEVICE, 4 * MIB);
    void *rest = get(7 * 512 * KIB, kit_stream[1]), *small = get(512 * KIB, kit_stream[1]);
    gpupool_capture *scope = scope_on(kit_stream[0]);
    CHECK_RESULT(gpupool_end_capture(scope), GPUPOOL_OK);
    begin(kit_stream[0], cudaStreamCaptureModeGlobal);
    put(small, kit_stream[1]); /* too little for a fence of its own */
    small = get(512 * KIB, kit_stream[2]);
    fill(kit_stream[0], rest, 256 * KIB, 1);
    release(scope, end(kit_stream[0]));
    put(small, kit_stream[2]);
    put(rest, kit_stream[1]);
    kit_close(arena);
}

/* On a stream of its own, at once: all 4 MiB are to be had, and nobody is at them. */
static void overwrite_all(void) {
    void *all = get(4 * MIB, kit_stream[3]);
    fill(kit_stream[3], all, 4 * MIB, 5);
    while (fake_step(kit_stream[3])) continue;
    CHECK_EQ(fake_failures(), 0);
    put(all, kit_stream[3]);
    fake_run_all();
}

/* Released while its last replay still runs, and eager work on blocks freed elsewhere as well. */
static void a_release_waits_for_replays(void) {
    for (int way = 0; way < 4; way++) {
        int ended = way % 2, freed_elsewhere = way / 2;
        check_case("way %d", way);
        arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 4 * MIB);
        fake_mode(FAKE_STEPPED);
        begin(kit_stream[0], cudaStreamCaptureModeGlobal);
        gpupool_capture *scope = scope_on(kit_stream[0]);
        void *block[4];
        for (int i = 0; i < 4; i++) fill(kit_stream[0], block[i] = get(MIB, kit_stream[0]), MIB, i);
        if (ended) CHECK_RESULT(gpupool_end_capture(scope), GPUPOOL_OK);
        cudaGraphExec_t exec = end(kit_stream[0]);
        CHECK_EQ(cudaGraphLaunch(exec, kit_stream[1]), cudaSuccess);
        if (freed_elsewhere) {
            kit_order(kit_stream[1], kit_stream[2]);
            fill(kit_stream[2], block[1], MIB, 9);
            put(block[1], kit_stream[2]);
        }
        release(scope, exec);
        overwrite_all();
        kit_close(arena);
    }
}

/* The release cannot wait: blocks of the graph that only another stream's work stood in front of,
   which is done, are for nobody before its replays are. */
static void a_release_that_fails_to_wait_for_replays(void) {
    for (int is_freed = 0; is_freed < 2; is_freed++) {
        check_case("freed on another stream %d", is_freed);
        arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 4 * MIB);
        fake_mode(FAKE_STEPPED);
        begin(kit_stream[0], cudaStreamCaptureModeGlobal);
        gpupool_capture *scope = scope_on(kit_stream[0]);
        void *block = get(4 * MIB, kit_stream[0]);
        fill(kit_stream[0], block, 4 * MIB, 1);
        cudaGraphExec_t exec = end(kit_stream[0]);
        CHECK_EQ(cudaGraphLaunch(exec, kit_stream[1]), cudaSuccess);
        if (is_freed) put(block, kit_stream[2]);
        else CHECK_RESULT(gpupool_record_stream(arena, block, kit_stream[2]), GPUPOOL_OK);
        CHECK_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
        fake_fail_call("cuMemFree", 1, 1, 0);
        release(scope, NULL);
        CHECK_EQ(fake_fail_fired(), 1);
        fake_fail_clear();
        CHECK_EQ(cudaGetLastError(), cudaSuccess);
        gpupool_verdict verdict;
        CHECK(!kit_fits(arena, 4 * MIB, &verdict)); /* but to wait would do */
        CHECK_EQ(verdict.cause, GPUPOOL_CAUSE_PENDING);
        CHECK_EQ(verdict.pending_streams, 0); /* for one stream's work alone it would not */
        while (fake_step(kit_stream[2])) continue;
        CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK); /* looks at fences */
        CHECK_EQ(kit_stats(arena).pending.now, 4 * MIB);
        CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
        overwrite_all();
        for (int i = 0; i < 2; i++) CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
        CHECK_EQ(arena->clocks.stream_count, 0); /* nor is any of the graph's lists left */
        kit_close(arena);
    }
}

/* The graph's free lists stay for as long as any of its blocks is yet to come into them. */
static void lanes_stay_for_the_last_parked_block(void) {
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    fake_mode(FAKE_STEPPED);
    void *eager = get(MIB, kit_stream[3]), *block[2];
    gpupool_capture *scope = scope_on(kit_stream[0]);
    for (int i = 0; i < 2; i++) block[i] = get(MIB, kit_stream[0]);
    CHECK_RESULT(gpupool_end_capture(scope), GPUPOOL_OK);
    for (int i = 0; i < 2; i++) {
        fill(kit_stream[1 + i], block[i], MIB, i);
        put(block[i], kit_stream[1 + i]);
    }
    fill(kit_stream[2], eager, MIB, 2); /* a parked one that is nobody's, between or behind them */
    CHECK_RESULT(gpupool_record_stream(arena, eager, kit_stream[2]), GPUPOOL_OK);
    put(eager, kit_stream[3]);
    fake_fail_call("cuMemFree", 1, 1, 0);
    release(scope, NULL);
    fake_fail_clear();
    CHECK_EQ(cudaGetLastError(), cudaSuccess);
    while (fake_step(kit_stream[3])) continue;
    for (int i = 0; i < 2; i++) {
        while (fake_step(kit_stream[1 + i])) continue;
        for (int k = 0; k < 3; k++) CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
        CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
        CHECK_EQ(arena->clocks.stream_count > 0, i == 0);
    }
    CHECK_EQ(kit_reserved(arena), 0);
    kit_close(arena);
}

/* ---- a stream that ends inside its scope, and another under its handle ---- */

static void a_stream_ends_inside_its_scope(void) {
    for (int known = 0; known < 2; known++) {
        cudaStream_t brief, next;
        arena = kit_open(GPUPOOL_SOURCE_AUTO);
        fake_mode(FAKE_STEPPED);
        CHECK_EQ(cudaStreamCreateWithFlags(&brief, cudaStreamNonBlocking), cudaSuccess);
        if (known) { /* it leaves eager memory behind, with work on it */
            void *eager = get(BYTES, brief);
            fill(brief, eager, BYTES, 8);
            put(eager, brief);
        }
        gpupool_capture *scope = scope_on(brief);
        begin(brief, cudaStreamCaptureModeGlobal);
        void *inside = get(BYTES, brief);
        fill(brief, inside, BYTES, 1);
        cudaGraphExec_t exec = end(brief);
        CHECK_EQ(cudaStreamDestroy(brief), cudaSuccess);
        CHECK_EQ(cudaStreamCreateWithFlags(&next, cudaStreamNonBlocking), cudaSuccess);
        CHECK(next == brief);
        put(get(BYTES, next), next);
        CHECK_RESULT(gpupool_end_capture(scope), GPUPOOL_OK);
        for (int i = 0; i < 3; i++) {
            void *eager = get(BYTES, next);
            fill(next, eager, BYTES, 2);
            put(eager, next);
        }
        while (fake_step(next)) continue;
        CHECK_EQ(fake_failures(), 0);
        launch_at_once(exec, 1);
        fake_run_all();
        release(scope, exec);
        CHECK_EQ(cudaStreamDestroy(next), cudaSuccess);
        all_is_back();
        CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
        CHECK_EQ(kit_reserved(arena), 0);
        kit_close(arena);
    }
}

/* Its capture ends with it: the arena does not take it for one that still goes on. */
static void a_stream_ends_while_it_captures(void) {
    for (int scoped = 0; scoped < 2; scoped++) {
        check_case("scoped %d", scoped);
        arena = kit_open(GPUPOOL_SOURCE_MAPPED);
        gpupool_capture *scope = NULL;
        put(get(BYTES, kit_stream[0]), kit_stream[0]);
        if (scoped) scope = scope_on(kit_stream[0]);
        begin(kit_stream[0], cudaStreamCaptureModeGlobal);
        CHECK_RESULT(gpupool_retire_stream(arena, kit_stream[0]), GPUPOOL_OK);
        CHECK_EQ(arena->clocks.capturing, 0);
        cudaGraphExec_t exec = end(kit_stream[0]);
        if (scoped) release(scope, exec);
        else CHECK_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
        CHECK_RESULT(gpupool_sleep(arena, GPUPOOL_ALL, GPUPOOL_DISCARD, NULL), GPUPOOL_OK);
        CHECK_RESULT(gpupool_wake(arena, GPUPOOL_ALL, NULL), GPUPOOL_OK);
        kit_close(arena);
    }
}
#endif

int main(void) {
    FAKE_TEST(the_graph_takes_none_of_the_streams_own);
    FAKE_TEST(the_graph_takes_none_behind_a_wait);
    FAKE_TEST(a_block_from_before_is_not_reused_early);
    FAKE_TEST(a_block_from_before_is_kept_till_the_release);
    FAKE_TEST(a_branch_takes_none_of_another);
    FAKE_TEST(running_out_loses_no_capture);
    FAKE_TEST(running_out_after_a_scope_loses_no_capture);
    FAKE_TEST(a_release_waits_for_replays);
    FAKE_TEST(a_release_that_fails_to_wait_for_replays);
    FAKE_TEST(lanes_stay_for_the_last_parked_block);
    FAKE_TEST(a_stream_ends_inside_its_scope);
    FAKE_TEST(a_stream_ends_while_it_captures);
    return check_finish();
}
