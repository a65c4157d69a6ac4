/* Stitched blocks and graphs: what a scope hands out, or frees, stays mapped for the replays until
   the scope's release, whatever is trimmed meanwhile; and then it comes back. */
// build: plain
// build: asan -fsanitize=address,undefined
#include "gpupool.h"
#include "stripe_kit.h"

#if CHECK_FAKE

#define LARGE (5 * STRIPE - 3 * 512)

static gpupool_capture *scope_begin(int stream) {
    gpupool_capture *scope = NULL;
    CHECK_RESULT(gpupool_begin_capture(arena, kit_stream[stream], &scope), GPUPOOL_OK);
    return scope;
}

static void capture_begin(int stream) {
    CHECK_EQ(cudaStreamBeginCapture(kit_stream[stream], cudaStreamCaptureModeRelaxed), cudaSuccess);
}

static cudaGraphExec_t capture_end(int stream) {
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    CHECK_EQ(cudaStreamEndCapture(kit_stream[stream], &graph), cudaSuccess);
    CHECK_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    CHECK_EQ(cudaGraphDestroy(graph), cudaSuccess);
    return exec;
}

static void replay(cudaGraphExec_t exec, int stream) {
    CHECK_EQ(cudaGraphLaunch(exec, kit_stream[stream]), cudaSuccess);
    CHECK_EQ(cudaStreamSynchronize(kit_stream[stream]), cudaSuccess);
    CHECK_EQ(fake_failures(), 0);
}

static void release(gpupool_capture *scope, cudaGraphExec_t exec) {
    CHECK_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
    CHECK_RESULT(gpupool_release_capture(scope), GPUPOOL_OK);
}

/* All that the arena would give back if it could, goes. */
static void trim_all(void) {
    CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
    CHECK_RESULT(gpupool_set_limit(arena, STRIPE), GPUPOOL_OK);
    CHECK_RESULT(gpupool_set_limit(arena, STRIPES * STRIPE), GPUPOOL_OK);
}

/* Made while the stream captures, as a driver allows. */
static void made_in_a_capture(void) {
    stripe_open();
    gpupool_capture *scope = scope_begin(1);
    capture_begin(1);
    char *block = stripe_stitched(LARGE, 1);
    CHECK_EQ(cudaMemsetAsync(block, 7, LARGE, kit_stream[1]), cudaSuccess);
    cudaGraphExec_t exec = capture_end(1);
    CHECK_RESULT(gpupool_end_capture(scope), GPUPOOL_OK);
    trim_all();
    for (int i = 0; i < 3; i++) {
        kit_fill(kit_stream[1], block, LARGE, i);
        replay(exec, 1);
        kit_expect(kit_stream[1], block, LARGE, 7);
    }
    put(block, 1);
    trim_all();
    replay(exec, 1); /* freed outside, it is the graph's all the same */
    release(scope, exec);
    CHECK_EQ(kit_stats(arena).blocks.now, LAID);
    trim_all();
    CHECK_EQ(fake_mappings(), LAID); /* the live ones' chunks */
    stripe_close();
}

/* Freed inside: the same scope takes it again without a call of CUDA, others cannot have a unit of
   it, and it stays mapped for the replays. */
static void freed_in_its_scope(void) {
    stripe_open();
    gpupool_capture *scope = scope_begin(1);
    capture_begin(1);
    char *block = stripe_stitched(LARGE, 1);
    CHECK_EQ(cudaMemsetAsync(block, 1, LARGE, kit_stream[1]), cudaSuccess);
    put(block, 1);
    char *again = (char *)get(LARGE, 1);
    CHECK(again == block);
    CHECK_EQ(cudaMemsetAsync(again, 2, LARGE, kit_stream[1]), cudaSuccess);
    put(again, 1);
    cudaGraphExec_t exec = capture_end(1);
    CHECK_RESULT(gpupool_end_capture(scope), GPUPOOL_OK);
    long mapped = fake_mappings();
    CHECK_EQ(mapped, STRIPES + 5);
    trim_all();
    CHECK_EQ(fake_mappings(), LAID + 5 + 5); /* the live ones', the graph's, its stitch */
    CHECK_RESULT(kit_why(gpupool_alloc(arena, (LAID - 4) * STRIPE, kit_stream[0])),
                 GPUPOOL_E_OUT_OF_MEMORY);
    char *rest = (char *)get((LAID - 5) * STRIPE, 0); /* all that is not the graph's */
    kit_fill(kit_stream[0], rest, (LAID - 5) * STRIPE, 3);
    replay(exec, 1);
    kit_expect(kit_stream[0], rest, (LAID - 5) * STRIPE, 3);
    put(rest, 0);
    release(scope, exec);
    char *all = (char *)get(LAID * STRIPE, 0);
    kit_fill(kit_stream[0], all, LAID * STRIPE, 4);
    put(all, 0);
    trim_all();
    CHECK_EQ(fake_mappings(), LAID);
    stripe_close();
}

/* Larger and larger ones, so that each frees its stitch for good: they stay mapped, whatever their
   number, until the release. */
static void many_in_one_scope(void) {
    enum { SIZES = 8 };
    char *block[SIZES];
    stripe_open();
    gpupool_capture *scope = scope_begin(1);
    capture_begin(1);
    for (int i = 0; i < SIZES; i++) {
        size_t bytes = (size_t)(i + 2) * STRIPE;
        block[i] = stripe_stitched(bytes, 1);
        CHECK_EQ(cudaMemsetAsync(block[i], i, bytes, kit_stream[1]), cudaSuccess);
        put(block[i], 1);
    }
    cudaGraphExec_t exec = capture_end(1);
    CHECK_RESULT(gpupool_end_capture(scope), GPUPOOL_OK);
    for (int i = 0; i < 3; i++) {
        trim_all();
        replay(exec, 1);
    }
    release(scope, exec);
    trim_all();
    CHECK_EQ(fake_mappings(), LAID);
    stripe_close();
}

/* More handles than idle stitches may hold: those of a scope stay over the bound, and are within it
   once the scope is released. */
static void over_the_bound_in_a_scope(void) {
    enum { SIZES = 700 }; /* of STRIPE_SET handles each */
    stripe_open();
    gpupool_capture *scope = scope_begin(1);
    capture_begin(1);
    for (size_t i = 0; i < SIZES; i++) {
        char *block = stripe_stitched_of(i, 1);
        CHECK_EQ(cudaMemsetAsync(block, 1, 512, kit_stream[1]), cudaSuccess);
        put(block, 1);
    }
    cudaGraphExec_t exec = capture_end(1);
    CHECK_RESULT(gpupool_end_capture(scope), GPUPOOL_OK);
    CHECK_EQ(fake_mappings(), STRIPES + SIZES * STRIPE_SET);
    replay(exec, 1);
    release(scope, exec);
    put(stripe_stitched_of(SIZES, 1), 1);
    CHECK(fake_mappings() <= STRIPES + 8192 + 2 * LAID);
    stripe_close();
}

/* Older than the scope that frees it: kept until the release as what it was. */
static void older_than_the_scope(void) {
    stripe_open();
    char *block = stripe_stitched(LARGE, 1);
    kit_fill(kit_stream[1], block, LARGE, 1);
    gpupool_capture *scope = scope_begin(1);
    capture_begin(1);
    CHECK_EQ(cudaMemsetAsync(block, 5, LARGE, kit_stream[1]), cudaSuccess);
    put(block, 1);
    cudaGraphExec_t exec = capture_end(1);
    CHECK_RESULT(gpupool_end_capture(scope), GPUPOOL_OK);
    trim_all();
    for (int i = 0; i < 3; i++) replay(exec, 1);
    CHECK_RESULT(kit_why(gpupool_alloc(arena, (LAID - 4) * STRIPE, kit_stream[0])),
                 GPUPOOL_E_OUT_OF_MEMORY);
    release(scope, exec);
    put(get(LAID * STRIPE, 0), 0);
    stripe_close();
}

/* Not freed by anyone: the release does it. */
static void left_to_the_release(void) {
    stripe_open();
    gpupool_capture *scope = scope_begin(1);
    capture_begin(1);
    char *block = stripe_stitched(LARGE, 1);
    CHECK_EQ(cudaMemsetAsync(block, 5, LARGE, kit_stream[1]), cudaSuccess);
    cudaGraphExec_t exec = capture_end(1);
    CHECK_RESULT(gpupool_end_capture(scope), GPUPOOL_OK);
    replay(exec, 1);
    release(scope, exec);
    CHECK_EQ(kit_stats(arena).stitched_bytes, 0);
    CHECK_EQ(kit_stats(arena).blocks.now, LAID);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[1]), GPUPOOL_E_DOUBLE_FREE);
    trim_all();
    CHECK_EQ(fake_mappings(), LAID);
    stripe_close();
}

/* Used on another stream too, and freed while that is at it: parked, then the graph's. */
static void parked_in_a_scope(void) {
    stripe_open();
    gpupool_capture *scope = scope_begin(1);
    char *block = stripe_stitched(LARGE, 1);
    fake_mode(FAKE_STEPPED);
    kit_fill(kit_stream[2], block, LARGE, 9);
    CHECK_RESULT(gpupool_record_stream(arena, block, kit_stream[2]), GPUPOOL_OK);
    put(block, 1);
    trim_all();
    CHECK_RESULT(kit_why(gpupool_alloc(arena, (LAID - 4) * STRIPE, kit_stream[0])),
                 GPUPOOL_E_OUT_OF_MEMORY);
    fake_run_all();
    trim_all();
    CHECK_EQ(fake_mappings(), LAID + 5 + 5);
    CHECK_RESULT(gpupool_release_capture(scope), GPUPOOL_OK);
    trim_all();
    CHECK_EQ(fake_mappings(), LAID);
    stripe_close();
}

/* A graph that was captured without a scope, of a block that outlives it. */
static void without_a_scope(void) {
    stripe_open();
    char *block = stripe_stitched(LARGE, 1);
    kit_fill(kit_stream[1], block, LARGE, 1);
    capture_begin(1);
    CHECK_EQ(cudaMemsetAsync(block, 6, LARGE, kit_stream[1]), cudaSuccess);
    cudaGraphExec_t exec = capture_end(1);
    for (int i = 0; i < 3; i++) replay(exec, 1);
    kit_expect(kit_stream[1], block, LARGE, 6);
    CHECK_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
    put(block, 1);
    stripe_close();
}

/* Two scopes, of which one frees what the other has handed out; each replays in turn, between
   work of a third stream on all that is left. */
static void two_scopes(void) {
    stripe_open();
    gpupool_capture *scope[2];
    cudaGraphExec_t exec[2];
    char *block[2];
    for (int i = 0; i < 2; i++) {
        scope[i] = scope_begin(1 + i);
        capture_begin(1 + i);
        block[i] = stripe_stitched(LARGE, 1 + i);
        CHECK_EQ(cudaMemsetAsync(block[i], 5 + i, LARGE, kit_stream[1 + i]), cudaSuccess);
        if (i) put(block[i], 1 + i);
        exec[i] = capture_end(1 + i);
        CHECK_RESULT(gpupool_end_capture(scope[i]), GPUPOOL_OK);
    }
    for (int i = 0; i < 4; i++) {
        size_t bytes = (LAID - 10 - (size_t)i) * STRIPE;
        char *rest = (char *)get(bytes, 3);
        kit_fill(kit_stream[3], rest, bytes, i);
        replay(exec[i % 2], 1 + i % 2);
        kit_expect(kit_stream[3], rest, bytes, i);
        put(rest, 3);
        kit_finish(arena);
        trim_all();
    }
    kit_expect(kit_stream[1], block[0], LARGE, 5);
    put(block[0], 1);
    for (int i = 0; i < 2; i++) release(scope[i], exec[i]);
    trim_all();
    CHECK_EQ(fake_mappings(), LAID);
    stripe_close();
}

#endif

int main(void) {
    FAKE_TEST(made_in_a_capture);
    FAKE_TEST(freed_in_its_scope);
    FAKE_TEST(many_in_one_scope);
    FAKE_TEST(over_the_bound_in_a_scope);
    FAKE_TEST(older_than_the_scope);
    FAKE_TEST(left_to_the_release);
    FAKE_TEST(parked_in_a_scope);
    FAKE_TEST(without_a_scope);
    FAKE_TEST(two_scopes);
    return check_finish();
}
