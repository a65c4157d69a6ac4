/* Blocks of a tag with chunks of its own that wait for their users: which of them a request of one
   of these users gets at once, and which it does not; and while another tag's idle chunks go. */
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "tag_kit.h"

#if CHECK_FAKE

#define BYTES (2 * MIB)
enum { KV = 1, OTHERS = GPI_TRIES + 2 };

static void work(cudaStream_t stream, void *block) { kit_fill(stream, block, BYTES, 1); }

static gpi_request request_of_stream_0(void) {
    gpi_request request;
    memset(&request, 0, sizeof request);
    request.units = BYTES / 512;
    request.align_units = 2;
    request.tag = KV;
    request.finished = gpi_tree_tag_list(KV);
    request.owner = gpi_clock_find(&arena->clocks, gpi_clock_key(kit_stream[0]));
    return request;
}

/* What other streams freed since, more than the quick way passes over, stands before the stream's
   own. */
static void behind_many_of_others(void) {
    void *other[OTHERS], *own;
    open_tags(1, 0);
    fake_mode(FAKE_STEPPED);
    for (int i = 0; i < OTHERS; i++) work(kit_stream[1], other[i] = must_take(BYTES, KV, 1));
    work(kit_stream[0], own = must_take(BYTES, KV, 0));
    give(own, 0);
    for (int i = 0; i < OTHERS; i++) give(other[i], 1);
    size_t reserved = kit_reserved(arena);
    uint64_t same = kit_stats(arena).same_stream_allocs;
    CHECK(must_take(BYTES, KV, 0) == own);
    CHECK_EQ(kit_stats(arena).same_stream_allocs, same + 1);
    CHECK_EQ(kit_reserved(arena), reserved);
    CHECK_EQ(kit_stats(arena).host_syncs, 0);
    void *another = must_take(BYTES, KV, 0); /* it has no other of its own */
    CHECK(another != own && kit_reserved(arena) > reserved);
    give(another, 0);
    give(own, 0);
    fake_run_all();
    CHECK_EQ(fake_failures(), 0);
    close_tags();
}

/* So many blocks of the size are looked at, and no more. */
static void as_many_as_it_may_look_at(void) {
    gpi_request request;
    void *own, *other;
    open_tags(1, 0);
    fake_mode(FAKE_STEPPED);
    work(kit_stream[1], other = must_take(BYTES, KV, 1));
    work(kit_stream[0], own = must_take(BYTES, KV, 0));
    give(own, 0);
    give(other, 1); /* in front */
    request = request_of_stream_0();
    gpi_host_lock(&arena->lock);
    CHECK(gpi_ladder_own_waiting(arena, &request, 1) == NULL);
    gpi_run *run = gpi_ladder_own_waiting(arena, &request, 2);
    CHECK(run && (void *)(uintptr_t)(run->unit * GPUPOOL_UNIT_BYTES) == own);
    if (run) gpi_tree_put(&arena->tree, run, request.finished, 0);
    gpi_arena_unlock(arena);
    close_tags();
}

/* A block over two chunks is none for a request that wants one chunk. */
static void not_in_one_chunk(void) {
    open_tags(1, 0);
    fake_mode(FAKE_STEPPED);
    char *first = must_take(3 * MIB, KV, 0), *block = must_take(3 * MIB, KV, 0), *whole;
    work(kit_stream[0], block);
    give(block, 0);
    whole = (char *)take_as(3 * MIB, KV, 0, GPUPOOL_ONE_CHUNK);
    CHECK_RESULT(kit_why(whole), GPUPOOL_OK);
    CHECK(whole != block);
    CHECK(must_take(3 * MIB, KV, 0) == block);
    give(block, 0);
    give(first, 0);
    give(whole, 0);
    close_tags();
}

/* A block of before the capture that the graph frees: each replay uses it up to there, so not even
   the graph's own stream gets it. */
static void a_graph_frees_it(void) {
    gpupool_capture *scope;
    cudaGraph_t graph;
    open_tags(1, 0);
    void *block = must_take(BYTES, KV, 1), *in_graph;
    CHECK_RESULT(gpupool_begin_capture(arena, kit_stream[0], &scope), GPUPOOL_OK);
    CHECK_EQ(cudaStreamBeginCapture(kit_stream[0], cudaStreamCaptureModeGlobal), cudaSuccess);
    give(block, 0);
    in_graph = must_take(BYTES, KV, 0);
    CHECK(in_graph != block);
    CHECK_EQ(cudaStreamEndCapture(kit_stream[0], &graph), cudaSuccess);
    CHECK_RESULT(gpupool_end_capture(scope), GPUPOOL_OK);
    CHECK_EQ(cudaGraphDestroy(graph), cudaSuccess);
    give(in_graph, 0);
    CHECK_RESULT(gpupool_release_capture(scope), GPUPOOL_OK);
    CHECK_EQ(stats_of(KV).blocks.now, 0);
    close_tags();
}

/* The tag goes to sleep while a request, which has seen it awake, waits for the lock. */
static void it_sleeps_meanwhile(void) {
    gpi_request request;
    open_tags(1, 0);
    void *block = must_take(BYTES, KV, 0);
    CHECK_RESULT(sleep_tag(KV, GPUPOOL_KEEP), GPUPOOL_OK);
    give(block, 0);
    request = request_of_stream_0();
    gpi_host_lock(&arena->lock);
    CHECK(gpi_ladder_own_waiting(arena, &request, GPI_TRIES) == NULL);
    gpi_host_unlock(&arena->lock);
    CHECK_RESULT(wake_tag(KV), GPUPOOL_OK);
    CHECK(must_take(BYTES, KV, 0) == block);
    give(block, 0);
    close_tags();
}

/* Another stream, too, has used the block, and is known to have done so just up to that use. */
static void the_other_user_is_done(void) {
    gpi_request request;
    open_tags(1, 0);
    fake_mode(FAKE_STEPPED);
    void *block = must_take(BYTES, KV, 0);
    kit_order(kit_stream[0], kit_stream[1]);
    work(kit_stream[1], block);
    CHECK_RESULT(gpupool_record_stream(arena, block, kit_stream[1]), GPUPOOL_OK);
    give(block, 0);
    CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
    request = request_of_stream_0();
    gpi_stream *other = gpi_clock_find(&arena->clocks, gpi_clock_key(kit_stream[1]));
    gpi_host_lock(&arena->lock);
    CHECK(gpi_ladder_own_waiting(arena, &request, GPI_TRIES) == NULL);
    gpi_clock_pass(&arena->clocks, other, other->clock.issued); /* as another thread sees */
    gpi_run *run = gpi_ladder_own_waiting(arena, &request, GPI_TRIES);
    CHECK(run && (void *)(uintptr_t)(run->unit * GPUPOOL_UNIT_BYTES) == block);
    if (run) gpi_tree_put(&arena->tree, run, request.finished, 0);
    gpi_arena_unlock(arena);
    close_tags();
}

/* What a tag's only stream has freed, without an event, makes room for its block of another size:
   an event is recorded then, and not for a request without a tag. */
static void another_size_of_its_own(void) {
    open_tags(1, 0);
    void *block = must_take(2 * BYTES, KV, 0), *other;
    fake_reset_counters();
    give(block, 0);
    other = must_take(BYTES, 0, 0);
    CHECK_EQ(fake_calls("cuEventRecord"), 0);
    size_t reserved = kit_reserved(arena);
    block = must_take(BYTES, KV, 0);
    CHECK_EQ(kit_reserved(arena), reserved);
    CHECK_EQ(fake_calls("cuEventRecord"), 1);
    give(block, 0);
    give(other, 0);
    close_tags();
}

static int looked;

static void no_list_is_usable(void *unused) {
    (void)unused;
    looked++;
    for (uint32_t i = 0; i < arena->tree.list_count; i++)
        if (arena->tree.lists[i]) CHECK_EQ(arena->tree.lists[i]->usable_below, 0);
}

/* Another tag's chunks go for a stitch. Other threads have the lock meanwhile: no list is marked as
   usable for them. */
static void while_idle_chunks_go(void) {
    void *block[4];
    open_tags(2, 20 * MIB);
    for (int i = 0; i < 4; i++) block[i] = must_take(MIB, KV, 0);
    give(must_take(16 * MIB, KV + 1, 1), 1);
    CHECK_EQ(kit_reserved(arena), 20 * MIB);
    give(block[0], 0);
    looked = 0;
    fake_before_call("cuMemUnmap", 1, no_list_is_usable, NULL);
    block[0] = must_take(9 * MIB, KV, 0);
    CHECK_EQ(looked, 1);
    CHECK_EQ(kit_stats(arena).stitches, 1);
    for (int i = 0; i < 4; i++) give(block[i], 0);
    close_tags();
}
#endif

int main(void) {
    FAKE_TEST(behind_many_of_others);
    FAKE_TEST(as_many_as_it_may_look_at);
    FAKE_TEST(not_in_one_chunk);
    FAKE_TEST(a_graph_frees_it);
    FAKE_TEST(it_sleeps_meanwhile);
    FAKE_TEST(the_other_user_is_done);
    FAKE_TEST(another_size_of_its_own);
    FAKE_TEST(while_idle_chunks_go);
    return check_finish();
}
