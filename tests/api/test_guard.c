/* GPUPOOL_GUARD: writes behind a block are told at its free; new and freed memory is filled. */
// build: plain -DGPUPOOL_GUARD=1
// build: check3 -DGPUPOOL_CHECK=3
// build: unit256 -DGPUPOOL_GUARD=1 -DGPUPOOL_UNIT_BYTES=256
// build: sites -DGPUPOOL_GUARD=1 -DGPUPOOL_SITES=1
// build: asked -DGPUPOOL_GUARD=1 -DGPUPOOL_STREAM_CHECK=1
#include "fail_malloc.h"
#include "gpupool.h"
#include "arena_kit.h"

static gpupool_arena *arena;
static gpupool_source source; /* where its memory is from */

static char *get(size_t bytes, int stream) {
    return (char *)kit_alloc(arena, bytes, kit_stream[stream]);
}

static gpupool_result put(void *block, int stream) {
    return gpupool_free(arena, block, kit_stream[stream]);
}

static void for_each_source(void (*scene)(void)) {
    for (size_t i = 0; i < KIT_SOURCES; i++) {
        check_case("source %s", kit_sources[i].name);
        source = kit_sources[i].source;
        arena = kit_open(source);
        scene();
        kit_finish(arena);
        kit_close(arena);
    }
}

static const size_t sizes[] = {1, 511, 512, 513, 4096, 100000, (2 << 20) - 1, 2 << 20, 3 << 20};

/* All of it may be written, again and again, as the cache hands it out for other sizes. */
static void whole_blocks(void) {
    for (int round = 0; round < 3; round++)
        for (size_t i = 0; i < KIT_COUNT(sizes); i++) {
            char *block = get(sizes[i], 0);
            kit_expect(kit_stream[0], block, sizes[i], 0xcd);
            kit_fill(kit_stream[0], block, sizes[i], 1 + round);
            CHECK_EQ(kit_size(arena, block), sizes[i]);
            CHECK_RESULT(put(block, 0), GPUPOOL_OK);
        }
}
static void what_is_inside_is_the_callers(void) { for_each_source(whole_blocks); }

static void one_byte_behind(void) {
    for (size_t i = 0; i < KIT_COUNT(sizes); i++)
        for (size_t at = 0; at < 256; at += 255) {
            char *block = get(sizes[i], 0), words[64];
            kit_fill(kit_stream[0], block + sizes[i] + at, 1, 7);
            CHECK_RESULT(put(block, 0), GPUPOOL_E_OVERRUN);
            snprintf(words, sizeof words, "byte %zu has changed", sizes[i] + at);
            CHECK(strstr(gpupool_last_error(), words) != NULL);
            CHECK(put(block, 0) != GPUPOOL_OK); /* it is free */
            CHECK_EQ(kit_stats(arena).blocks.now, 0);
        }
}
static void a_byte_behind_is_told(void) { for_each_source(one_byte_behind); }

static void count(const gpupool_soft_limit *what, void *user) {
    ((int *)user)[what->is_over]++;
}

/* The block is freed all the same, so its tag may be under its soft limit again. */
static void an_overrun_is_a_free(void) {
    gpupool_request request = kit_request(2 * MIB, kit_stream[0], 0);
    gpupool_tag_config config;
    int told[2] = {0, 0};
    char *block;
    memset(&config, 0, sizeof config);
    config.soft_limit_bytes = MIB;
    config.on_soft_limit = count;
    config.user = told;
    CHECK_RESULT(gpupool_tag(arena, "soft", &config, &request.tag), GPUPOOL_OK);
    block = (char *)gpupool_alloc_request(arena, &request);
    CHECK_EQ(told[1], 1);
    kit_fill(kit_stream[0], block + 2 * MIB, 1, 7);
    CHECK_RESULT(put(block, 0), GPUPOOL_E_OVERRUN);
    CHECK_RESULT(gpupool_last_result(), GPUPOOL_E_OVERRUN);
    CHECK_EQ(told[0], 1);
}
static void an_overrun_meets_the_soft_limit(void) { for_each_source(an_overrun_is_a_free); }

static void freed_is_filled(void) {
    char *block = get(3000, 0);
    kit_fill(kit_stream[0], block, 3000, 1);
    CHECK_RESULT(put(block, 0), GPUPOOL_OK);
    if (source != GPUPOOL_SOURCE_BYPASS)
        kit_expect(kit_stream[0], block, 3000, 0xdd);
}
static void a_stale_pointer_reads_a_pattern(void) { for_each_source(freed_is_filled); }

/* A stitched block whose last part is its guard and nothing else: it is shown as asked for, too. */
static int add_part(const gpupool_block *part, void *user) {
    size_t *least = (size_t *)user;
    if (part->state != GPUPOOL_STATE_LIVE) return 0;
    CHECK(part->requested_bytes > 0);
    if (part->bytes < *least) *least = part->bytes;
    return 0;
}

static void a_part_that_is_all_guard(void) {
    size_t least = SIZE_MAX;
    char *block[8];
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 16 * MIB);
    for (int i = 0; i < 8; i++) block[i] = get(2 * MIB - GPUPOOL_UNIT_BYTES, 0);
    for (int i = 0; i < 8; i += 2) CHECK_RESULT(put(block[i], 0), GPUPOOL_OK);
    block[0] = get(4 * MIB, 0);
    CHECK_RESULT(gpupool_walk_blocks(arena, add_part, &least), GPUPOOL_OK);
    CHECK_EQ(least, GPUPOOL_UNIT_BYTES);
    CHECK_RESULT(put(block[0], 0), GPUPOOL_OK);
    for (int i = 1; i < 8; i += 2) CHECK_RESULT(put(block[i], 0), GPUPOOL_OK);
    kit_close(arena);
}

static void zeroed(void) {
    char *block = (char *)gpupool_zalloc(arena, 1000, kit_stream[0]);
    kit_expect(kit_stream[0], block, 1000, 0);
    CHECK_RESULT(put(block, 0), GPUPOOL_OK);
    CHECK_RESULT(gpupool_free(arena, NULL, kit_stream[0]), GPUPOOL_OK);
}
static void zalloc_is_zero(void) { for_each_source(zeroed); }

static void put_to_sleep(const gpupool_soft_limit *news, void *unused) {
    (void)unused;
    if (news->is_over)
        CHECK_RESULT(gpupool_sleep(arena, GPUPOOL_ALL, GPUPOOL_DISCARD, NULL), GPUPOOL_OK);
}

/* A new block is not filled when its arena falls asleep first: the block goes back. */
static void asleep_before_it_is_filled(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
    config.soft_limit_bytes = 16 * MIB;
    config.on_soft_limit = put_to_sleep;
    arena = kit_create(&config);
    CHECK_RESULT(kit_why(gpupool_alloc(arena, 32 * MIB, kit_stream[0])), GPUPOOL_E_ASLEEP);
    CHECK_EQ(kit_stats(arena).blocks.now, 0);
    CHECK_RESULT(gpupool_wake(arena, GPUPOOL_ALL, NULL), GPUPOOL_OK);
    char *block = get(MIB, 0);
    kit_expect(kit_stream[0], block, MIB, 0xcd);
    CHECK_RESULT(put(block, 0), GPUPOOL_OK);
    kit_close(arena);
}

/* What a graph is handed has no guard, and nothing is added to the graph. */
static void nothing_in_a_capture(void) {
    cudaGraph_t graph = NULL;
    arena = kit_open(GPUPOOL_SOURCE_AUTO);
    char *before = get(4096, 0), *kept;
    CHECK_EQ(cudaStreamBeginCapture(kit_stream[0], cudaStreamCaptureModeGlobal), cudaSuccess);
    char *inside = get(4096, 0), *other = get(4096, 1); /* of a stream that does not capture */
    CHECK_RESULT(put(before, 0), GPUPOOL_OK);
    CHECK_RESULT(put(other, 1), GPUPOOL_OK);
    kept = get(4096, 0);
    CHECK_EQ(cudaStreamEndCapture(kit_stream[0], &graph), cudaSuccess);
#if !CHECK_FAKE
    size_t nodes = 9;
    CHECK_EQ(cudaGraphGetNodes(graph, NULL, &nodes), cudaSuccess);
    CHECK_EQ(nodes, 0);
#endif
    CHECK_EQ(cudaGraphDestroy(graph), cudaSuccess);
    kit_fill(kit_stream[0], inside + 4096, 1, 1);
    CHECK_RESULT(put(inside, 0), GPUPOOL_OK);
    CHECK_RESULT(put(kept, 0), GPUPOOL_OK);
    kit_finish(arena);
    kit_close(arena);
}

#if CHECK_FAKE
/* Nor in a scope while nothing is captured: a graph that has the blocks may run on any stream. */
static void nothing_in_a_scope(void) {
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    gpupool_capture *scope = NULL;
    arena = kit_open(GPUPOOL_SOURCE_AUTO);
    char *before = get(4096, 0);
    kit_fill(kit_stream[0], before, 4096, 3);
    fake_mode(FAKE_STEPPED);
    CHECK_RESULT(gpupool_begin_capture(arena, kit_stream[0], &scope), GPUPOOL_OK);
    char *inside = get(4096, 0);
    CHECK_EQ(cudaStreamBeginCapture(kit_stream[0], cudaStreamCaptureModeGlobal), cudaSuccess);
    kit_fill(kit_stream[0], inside, 4096, 7);
    kit_expect(kit_stream[0], before, 4096, 3);
    CHECK_EQ(cudaStreamEndCapture(kit_stream[0], &graph), cudaSuccess);
    CHECK_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    CHECK_EQ(cudaGraphLaunch(exec, kit_stream[1]), cudaSuccess);
    while (fake_step(kit_stream[1])) continue;
    CHECK_RESULT(put(before, 0), GPUPOOL_OK); /* kept for the graph */
    CHECK_RESULT(gpupool_end_capture(scope), GPUPOOL_OK);
    CHECK_EQ(cudaGraphLaunch(exec, kit_stream[0]), cudaSuccess);
    CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
    CHECK_EQ(fake_failures(), 0);
    CHECK_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
    CHECK_EQ(cudaGraphDestroy(graph), cudaSuccess);
    CHECK_RESULT(gpupool_release_capture(scope), GPUPOOL_OK);
    kit_close(arena);
}
#endif

/* Another stream reads it after the free, rightly: it is looked at, not filled. */
static void a_used_block_is_left_alone(void) {
    arena = kit_open(GPUPOOL_SOURCE_AUTO);
    char *block = get(4096, 0);
    kit_fill(kit_stream[0], block, 4096, 5);
    kit_order(kit_stream[0], kit_stream[1]);
#if CHECK_FAKE
    fake_mode(FAKE_STEPPED);
#endif
    kit_expect(kit_stream[1], block, 4096, 5);
    CHECK_RESULT(gpupool_record_stream(arena, block, kit_stream[1]), GPUPOOL_OK);
    CHECK_RESULT(put(block, 0), GPUPOOL_OK);
    CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
    kit_finish(arena);
    kit_close(arena);
}

/* The guard's unit is not for handing out. */
static void what_is_available_can_be_had(void) {
    arena = kit_open_limited(GPUPOOL_SOURCE_AUTO, 8 * MIB);
    char *block = get(5000, 0), *rest = get(kit_available(arena), 0);
    CHECK_EQ(kit_available(arena), 0);
    CHECK_RESULT(put(block, 0), GPUPOOL_OK);
    CHECK_RESULT(put(rest, 0), GPUPOOL_OK);
    kit_finish(arena);
    CHECK_EQ(kit_fits(arena, 8 * MIB, NULL), 0);
    CHECK_EQ(kit_fits(arena, 8 * MIB - GPUPOOL_UNIT_BYTES, NULL), 1);
    CHECK(!gpupool_alloc_aligned(arena, 8 * MIB, 1024, kit_stream[0]));
    CHECK(strstr(gpupool_last_error(), "aligned") == NULL); /* it is the guard that lacks room */
    kit_close(arena);
}

/* cudaMalloc's memory may be used on any stream at once, and cudaFree waits for all of them. */
static void in_cudaMallocs_shape(void) {
    void *block = NULL;
    CHECK_EQ(gpupool_cudaMalloc(&block, 5000), cudaSuccess);
    kit_fill(kit_stream[1], block, 5000, 3);
    CHECK_EQ(gpupool_cudaFree(block), cudaSuccess);
    CHECK_EQ(gpupool_cudaMalloc(&block, 5000), cudaSuccess);
    kit_fill(kit_stream[1], block, 5001, 3);
    CHECK_EQ(gpupool_cudaFree(block), cudaErrorIllegalAddress);
    CHECK_RESULT(gpupool_last_result(), GPUPOOL_E_OVERRUN);
    CHECK_RESULT(gpupool_arena_destroy(gpupool_get_default_arena(GPUPOOL_DEVICE_CURRENT)),
                 GPUPOOL_OK);
}

#if CHECK_FAKE
/* A stream of another device may have no way to the memory. */
static void a_stream_of_another_device(void) {
    cudaStream_t far;
    arena = kit_open(GPUPOOL_SOURCE_AUTO);
    CHECK_EQ(cudaSetDevice(1), cudaSuccess);
    CHECK_EQ(cudaStreamCreateWithFlags(&far, cudaStreamNonBlocking), cudaSuccess);
    CHECK_EQ(cudaSetDevice(0), cudaSuccess);
    void *block = kit_alloc(arena, 4096, far);
    CHECK_RESULT(gpupool_free(arena, block, far), GPUPOOL_OK);
    block = get(4096, 0);
    CHECK_EQ(cudaStreamSynchronize(kit_stream[0]), cudaSuccess);
    CHECK_RESULT(gpupool_free(arena, block, far), GPUPOOL_OK);
    CHECK_EQ(cudaStreamDestroy(far), cudaSuccess);
    kit_finish(arena);
    kit_close(arena);
}

static void memory_that_a_reset_took(void) {
    arena = kit_open(GPUPOOL_SOURCE_DEVICE);
    void *live = kit_alloc(arena, 4096, 0), *free = kit_alloc(arena, 4096, 0);
    CHECK_RESULT(gpupool_free(arena, free, 0), GPUPOOL_OK);
    CHECK_EQ(cudaDeviceReset(), cudaSuccess);
    for (int i = 0; i < KIT_STREAMS; i++) kit_stream[i] = NULL;
    CHECK_EQ(cudaFree(NULL), cudaSuccess); /* a new context */
    CHECK(gpupool_alloc(arena, 4096, 0) == NULL);
    CHECK(strstr(gpupool_last_error(), "was reset") != NULL);
    CHECK_RESULT(gpupool_free(arena, live, 0), GPUPOOL_OK);
    CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_OK);
}

/* A call that fails leaves no block behind where it was for the fills, and nothing else undone. */
static void calls_that_fail(void) {
    arena = kit_open(GPUPOOL_SOURCE_AUTO);
    char *block = get(4096, 0);
    for (long nth = 1; nth <= 2; nth++) {
        fake_fail_call("cuMemsetD8Async", nth, 0, 0);
        CHECK(gpupool_alloc(arena, 4096, kit_stream[0]) == NULL);
        CHECK_RESULT(gpupool_last_result(), GPUPOOL_E_CUDA);
        CHECK_EQ(kit_stats(arena).blocks.now, 1);
        fake_fail_clear();
    }
    fake_fail_call("cuCtxPushCurrent", 1, 0, 0);
    CHECK(gpupool_alloc(arena, 4096, kit_stream[0]) == NULL);
    CHECK_EQ(kit_stats(arena).blocks.now, 1);
    fake_fail_clear();
    static const char *const looking[] = {"cuMemcpyAsync", "cuStreamSynchronize",
                                          "cuCtxPushCurrent"};
    for (size_t i = 0; i < KIT_COUNT(looking); i++) { /* then it is simply freed */
        fake_fail_call(looking[i], 1, 0, 0);
        CHECK_RESULT(put(block, 0), GPUPOOL_OK);
        fake_fail_clear();
        block = get(4096, 0);
    }
    kit_fill(kit_stream[0], block, 4097, 5);
    fake_fail_call("cuMemsetD8Async", 1, 0, 0); /* what was found before is told */
    CHECK_RESULT(put(block, 0), GPUPOOL_E_OVERRUN);
    CHECK_RESULT(gpupool_last_result(), GPUPOOL_E_OVERRUN);
    CHECK(strstr(gpupool_last_error(), "byte 4096 ") != NULL);
    fake_fail_clear();
    CHECK(put(block + 1, 0) != GPUPOOL_OK);
    CHECK_RESULT(gpupool_free(NULL, block, kit_stream[0]), GPUPOOL_E_ARGUMENT);
    kit_finish(arena);
    kit_close(arena);
}

/* A thread that frees too late, by a stale pointer, may hit the next block there before that is
   anybody's: nothing is filled then. */
static void free_stale(void *block) { CHECK_RESULT(put(block, 1), GPUPOOL_OK); }

static void freed_before_it_is_handed_out(void) {
    arena = kit_open(GPUPOOL_SOURCE_AUTO);
    char *block = get(4 * MIB, 0); /* too large for a cache */
    CHECK_RESULT(put(block, 0), GPUPOOL_OK);
    long fills = fake_calls("cuMemsetD8Async");
    fake_before_call("cuCtxPushCurrent", 1, free_stale, block);
    CHECK(gpupool_alloc(arena, 4 * MIB, kit_stream[0]) == block);
    CHECK_EQ(fake_calls("cuMemsetD8Async"), fills);
    CHECK_RESULT(put(block, 0), GPUPOOL_E_DOUBLE_FREE);
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    kit_finish(arena);
    kit_close(arena);
}

/* The block is still the caller's, with its bytes and its guard. */
static void a_free_that_fails(void) {
    arena = kit_open(GPUPOOL_SOURCE_AUTO);
    char *block = get(4096, 0);
    kit_fill(kit_stream[0], block, 4097, 5);
    kit_order(kit_stream[0], kit_stream[1]);
    fail_malloc_nth(1, 1); /* none for the stream's record */
    CHECK_RESULT(put(block, 1), GPUPOOL_E_HOST_MEMORY);
    fail_malloc_nth(0, 0);
    kit_expect(kit_stream[1], block, 4097, 5);
    CHECK_RESULT(put(block, 1), GPUPOOL_E_OVERRUN);
    kit_finish(arena);
    kit_close(arena);
}

/* What was found is told, though CUDA does not take the chunk back, or records no event. */
static void a_free_that_cuda_fails_is_a_free(void) {
    for (int i = 0; i < 2; i++) {
        check_case("failure %d", i);
        arena = kit_open(i == 0 ? GPUPOOL_SOURCE_BYPASS : GPUPOOL_SOURCE_AUTO);
        char *block = get(4096, 0);
        kit_fill(kit_stream[0], block, 4097, 5);
        if (i == 1) CHECK_RESULT(gpupool_record_stream(arena, block, kit_stream[2]), GPUPOOL_OK);
        kit_order(kit_stream[0], kit_stream[1]);
        fake_fail_call(i == 0 ? "cuMemFree" : "cuEventRecord", 1, 0, 0);
        CHECK_RESULT(put(block, 1), GPUPOOL_E_OVERRUN);
        CHECK_EQ(fake_fail_fired(), 1);
        fake_fail_clear();
        kit_finish(arena);
        kit_close(arena);
    }
}

/* Whichever call of a free fails, a block that stays live has its guard, and one that went has not
   gone half. */
static void each_call_of_a_free_fails_in_turn(void) {
    static const gpupool_source sources[] = {GPUPOOL_SOURCE_AUTO, GPUPOOL_SOURCE_BYPASS};
    for (size_t i = 0; i < KIT_COUNT(sources); i++)
        for (long n = 1, fired = 1; fired; n++) {
            check_case("source %d, call %ld", (int)sources[i], n);
            arena = kit_open(sources[i]);
            char *block = get(4096, 0);
            kit_fill(kit_stream[0], block, 4096, 5);
            fake_fail_nth(n, 1);
            gpupool_result result = put(block, 0);
            fired = fake_fail_fired();
            fake_fail_clear();
            kit_capture_globally();
            CHECK_EQ(kit_stats(arena).blocks.now, result != GPUPOOL_OK);
            if (result != GPUPOOL_OK) {
                CHECK_RESULT(result, GPUPOOL_E_CUDA);
                kit_expect(kit_stream[0], block, 4096, 5);
                kit_fill(kit_stream[0], block + 4096, 1, 5);
                CHECK_RESULT(put(block, 0), GPUPOOL_E_OVERRUN);
            }
            kit_close(arena);
        }
}

/* What cudaFree would have waited for is still in use: it is neither looked at nor filled. */
static void nothing_is_filled_without_the_wait(void) {
    void *block = NULL;
    CHECK_EQ(gpupool_cudaMalloc(&block, 5000), cudaSuccess);
    fake_hold(kit_stream[1], 1);
    kit_fill(kit_stream[1], block, 5000, 3);
    kit_expect(kit_stream[1], block, 5000, 3);
    fake_fail_call("cuMemFree", 1, 0, 0);
    CHECK_EQ(gpupool_cudaFree(block), cudaSuccess);
    CHECK_EQ(fake_fail_fired(), 1);
    fake_fail_clear();
    fake_hold(kit_stream[1], 0);
    CHECK_RESULT(gpupool_arena_destroy(gpupool_get_default_arena(GPUPOOL_DEVICE_CURRENT)),
                 GPUPOOL_OK);
}

#if GPUPOOL_STREAM_CHECK
static void ask_in_vain(void *unused) {
    (void)unused;
    fake_fail_call("cuStreamGetId", 1, 1, 0);
}

/* A block that is filled is freed, though CUDA does not tell once more which stream this is. */
static void what_is_filled_is_freed(void) {
    for (size_t behind = 0; behind < 2; behind++) {
        arena = kit_open(GPUPOOL_SOURCE_AUTO);
        char *block = get(4096, 0);
        kit_fill(kit_stream[0], block, 4096 + behind, 7);
        fake_before_call("cuMemcpyAsync", 1, ask_in_vain, NULL);
        CHECK_RESULT(put(block, 0), behind ? GPUPOOL_E_OVERRUN : GPUPOOL_OK);
        CHECK(fake_fail_fired() > 0);
        fake_fail_clear();
        CHECK_EQ(kit_stats(arena).blocks.now, 0);
        kit_close(arena);
    }
}
#endif

/* BYPASS: what could not be filled, nor given back, is the arena's, to be given back when more is
   needed; what alignment leaves over is nobody's. */
static void nothing_is_given_back(void) {
    void *block[2];
    arena = kit_open_limited(GPUPOOL_SOURCE_BYPASS, 16 * MIB);
    fake_fail_call("cuMemsetD8Async", 1, 0, 0);
    fake_fail_call("cuMemFree", 1, 0, 0);
    CHECK(gpupool_alloc(arena, 4096, kit_stream[0]) == NULL);
    CHECK(strstr(gpupool_last_error(), "cuMemsetD8Async") != NULL);
    fake_fail_clear();
    CHECK_EQ(kit_stats(arena).blocks.now, 0);
    CHECK_EQ(kit_stats(arena).failures, 1);
    CHECK(kit_reserved(arena) > 0);
    CHECK_EQ(kit_available(arena), 16 * MIB - GPUPOOL_UNIT_BYTES);
    CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
    for (int i = 0; i < 2; i++)
        block[i] = gpupool_alloc_aligned(arena, 4096, 4 * MIB, kit_stream[0]);
    CHECK_EQ(kit_available(arena),
             16 * MIB - kit_reserved(arena) - GPUPOOL_UNIT_BYTES);
    for (int i = 0; i < 2; i++)
        CHECK_RESULT(gpupool_free(arena, block[i], kit_stream[0]), GPUPOOL_OK);
    kit_close(arena);
}

/* The chunk of a block that could not be filled is gone, so the arena is under its soft limit. */
static void unfilled_blocks_meet_the_soft_limit(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_BYPASS);
    int told[2] = {0, 0};
    config.soft_limit_bytes = MIB;
    config.on_soft_limit = count;
    config.user = told;
    arena = kit_create(&config);
    fake_fail_call("cuMemsetD8Async", 1, 0, 0);
    CHECK(gpupool_alloc(arena, 2 * MIB, kit_stream[0]) == NULL);
    fake_fail_clear();
    CHECK_EQ(kit_reserved(arena), 0);
    CHECK_EQ(told[1], 1);
    CHECK_EQ(told[0], 1);
    kit_close(arena);
}
#endif

static void the_build_says_so(void) { CHECK(strstr(gpupool_get_build(), " guard=1 ") != NULL); }

int main(void) {
    ARENA_TEST(the_build_says_so);
    ARENA_TEST(what_is_inside_is_the_callers);
    ARENA_TEST(a_byte_behind_is_told);
    ARENA_TEST(an_overrun_meets_the_soft_limit);
    ARENA_TEST(a_stale_pointer_reads_a_pattern);
    ARENA_TEST(a_part_that_is_all_guard);
    ARENA_TEST(zalloc_is_zero);
    ARENA_TEST(asleep_before_it_is_filled);
    ARENA_TEST(nothing_in_a_capture);
    FAKE_TEST(nothing_in_a_scope);
    ARENA_TEST(a_used_block_is_left_alone);
    ARENA_TEST(what_is_available_can_be_had);
    ARENA_TEST(in_cudaMallocs_shape);
    FAKE_TEST(a_stream_of_another_device);
    FAKE_TEST(memory_that_a_reset_took);
    FAKE_TEST(calls_that_fail);
    FAKE_TEST(freed_before_it_is_handed_out);
    FAKE_TEST(a_free_that_fails);
    FAKE_TEST(a_free_that_cuda_fails_is_a_free);
    FAKE_TEST(each_call_of_a_free_fails_in_turn);
    FAKE_TEST(nothing_is_filled_without_the_wait);
#if GPUPOOL_STREAM_CHECK
    FAKE_TEST(what_is_filled_is_freed);
#endif
    FAKE_TEST(nothing_is_given_back);
    FAKE_TEST(unfilled_blocks_meet_the_soft_limit);
    return check_finish();
}
