/* The ladder's steps one by one: what each of them finds, what it asks CUDA, what it waits for, and
   the figures by which it decides. */
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "arena_scene.h"

#if CHECK_FAKE

static char *piece[8]; /* side by side, in a chunk that has nothing else free */
static void *rest;

static void open_chunk(gpupool_source source, size_t chunk_bytes) {
    gpupool_arena_config config = kit_config(source);
    config.chunk_bytes = chunk_bytes;
    config.no_stitch = 1;
    arena = kit_create(&config);
}

/* All of the chunk is live, and there is no other. Streams run when they are told to, and each free
   has an event. */
static void fill_chunk(void) {
    size_t left = (size_t)kit_stats(arena).largest_free_bytes;
    rest = left ? get(left, 0) : NULL;
    CHECK_EQ(kit_stats(arena).chunks_gained, 1);
    CHECK_RESULT(gpupool_set_limit(arena, kit_reserved(arena)), GPUPOOL_OK);
    arena->short_until = arena->clocks.position + 2048;
    fake_mode(FAKE_STEPPED);
}

static void open_row(gpupool_source source, size_t chunk_bytes, const size_t *bytes, int count) {
    memset(piece, 0, sizeof piece);
    open_chunk(source, chunk_bytes);
    for (int i = 0; i < count; i++) {
        piece[i] = (char *)get(bytes[i], 0);
        if (i) CHECK(piece[i] == piece[i - 1] + bytes[i - 1]);
    }
    fill_chunk();
}
#define ROW(source, mib, ...)                                                                      \
    open_row(source, (mib) * MIB, (const size_t[]){__VA_ARGS__},                                   \
             (int)KIT_COUNT(((const size_t[]){__VA_ARGS__})))

/* Freed behind work that goes on. */
static void free_behind_work(int i, int stream) {
    kit_fill(kit_stream[stream], piece[i], 64, 1);
    put(piece[i], stream);
    piece[i] = NULL;
}

/* Freed on another stream, which has done with it: anybody may have it. */
static void free_finished(int i) {
    put(piece[i], 1);
    piece[i] = NULL;
    fake_run(kit_stream[1]);
}

static void close_row(void *block, size_t bytes, int stream) {
    if (block) kit_mark(kit_stream[stream], block, bytes, 2);
    if (block) put(block, stream);
    for (size_t i = 0; i < KIT_COUNT(piece); i++)
        if (piece[i]) put(piece[i], 0);
    if (rest) put(rest, 0);
    fake_run_all();
    CHECK_EQ(fake_failures(), 0);
    fake_mode(FAKE_EAGER);
    kit_close(arena);
}

/* ---- slabs ---- */

/* Another stream's memory in a slab is taken behind a wait, and the slab stays. */
static void a_slab_of_another_streams_memory(void) {
    enum { SMALL = 65 }; /* the first lies beside the slab that the others fill */
    void *small[SMALL];
    memset(piece, 0, sizeof piece);
    open_chunk(GPUPOOL_SOURCE_MAPPED, 4 * MIB);
    for (int i = 0; i < SMALL; i++) small[i] = get(32 * KIB, 1);
    fill_chunk();
    CHECK_EQ(arena->tree.slab_count, 1);
    kit_fill(kit_stream[1], small[7], 64, 1);
    put(small[7], 1);
    arena->short_until = 0; /* nobody looks at others before the ladder's own step */
    small[7] = take_without_a_wait(32 * KIB, 2);
    CHECK_EQ(arena->tree.slab_count, 1);
    for (int i = 0; i < SMALL; i++) put(small[i], i == 7 ? 2 : 1);
    close_row(NULL, 0, 0);
}

/* ---- runs side by side ---- */

/* What the stream itself has freed and what anybody may have are one block together, if the former
   is a single unit. */
static void a_unit_beside_a_finished_run(void) {
    const size_t bytes = 20 * MIB;
    ROW(GPUPOOL_SOURCE_DEVICE, 64, bytes, 512);
    char *first = piece[0];
    free_behind_work(1, 0);
    free_finished(0);
    CHECK(take_without_a_wait(bytes + 512, 0) == first);
    CHECK_EQ(kit_stats(arena).same_stream_allocs, 1);
    close_row(first, bytes + 512, 0);
}

/* A run that has no such neighbour stands before one that has, in the next smaller bin. */
static void beside_the_second_run(void) {
    ROW(GPUPOOL_SOURCE_DEVICE, 64, 16 * MIB, 512, 18 * MIB, 4 * MIB);
    char *second = piece[2];
    free_behind_work(0, 0);
    free_behind_work(2, 0);
    free_finished(3);
    CHECK(take_without_a_wait(22 * MIB, 0) == second);
    close_row(second, 22 * MIB, 0);
}

/* The stream's run lies at the end of all that is mapped. */
static void beside_empty_addresses(void) {
    ROW(GPUPOOL_SOURCE_MAPPED, 64, 30 * MIB, 4 * MIB, 30 * MIB);
    char *block = piece[1];
    free_behind_work(2, 0);
    free_finished(1);
    gpi_stream *owner = known_stream(0);
    CHECK(gpi_tree_first(arena->tree.lists[owner->list], GPI_INNER) == GPI_NO_BIN);
    CHECK(take_without_a_wait(33 * MIB, 0) == block);
    close_row(block, 33 * MIB, 0);
}

/* An aligned block begins where the second of three runs does, or in its midst. */
static void aligned_beyond_the_first_run(void) {
    for (size_t more = 0; more < 2 * MIB; more += MIB) {
        gpupool_request request;
        ROW(GPUPOOL_SOURCE_MAPPED, 64, MIB, 3 * MIB - more, 2 * MIB + more, 2 * MIB);
        char *aligned = piece[0] + 4 * MIB;
        free_behind_work(1, 0);
        free_behind_work(3, 0);
        free_finished(2);
        request = kit_request(4 * MIB, kit_stream[0], GPUPOOL_NO_WAIT);
        request.alignment = 4 * MIB;
        CHECK(gpupool_alloc_request(arena, &request) == aligned);
        CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
        close_row(aligned, 4 * MIB, 0);
    }
}

/* So many of the stream's runs are looked at, and no more: only the last of them has a neighbour
   that is free. */
static void as_many_runs_as_are_looked_at(void) {
    enum { EACH = 66 * KIB, MOST = GPI_ADJACENT_TRIES + 1 };
    for (int count = MOST - 1; count <= MOST; count++) {
        void *hole[MOST], *beside[MOST], *wall[MOST], *block;
        check_case("%d runs", count);
        memset(piece, 0, sizeof piece);
        open_chunk(GPUPOOL_SOURCE_DEVICE, 64 * MIB);
        for (int i = 0; i < count; i++) {
            hole[i] = get(EACH, 0);
            beside[i] = get(EACH, 0);
            wall[i] = get(EACH, 0);
        }
        fill_chunk();
        kit_fill(kit_stream[0], hole[0], 64, 1);
        for (int i = 0; i < count; i++) put(hole[i], 0); /* the newest is the first in its list */
        put(beside[0], 1);
        fake_run(kit_stream[1]);
        block = kit_alloc_as(arena, 2 * EACH, kit_stream[0], GPUPOOL_NO_WAIT);
        CHECK(block == (count < MOST ? hole[0] : NULL));
        for (int i = 0; i < count; i++) put(wall[i], 0);
        for (int i = 1; i < count; i++) put(beside[i], 0);
        close_row(block, 2 * EACH, 0);
    }
    check_case(" ");
}

/* The very first small block lies in a slab already, not beside one. */
static void the_first_small_block(void) {
    open_chunk(GPUPOOL_SOURCE_MAPPED, 32 * MIB);
    put(get(30 * MIB, 0), 0);
    CHECK_RESULT(gpupool_trim(arena, SIZE_MAX, NULL), GPUPOOL_OK); /* anybody's, and no slab yet */
    void *block = get(20 * KIB, 0);
    CHECK(gpi_tree_is_slab(&arena->tree, (uintptr_t)block / GPUPOOL_UNIT_BYTES));
    put(block, 0);
    kit_close(arena);
}

/* ---- memory of other streams ---- */

/* A small block that another stream has freed, and that lies in no slab: there is no choice, so
   that CUDA is not asked, but the stream waits. */
static void a_small_block_of_another_stream(void) {
    ROW(GPUPOOL_SOURCE_DEVICE, 64, 512, 32 * KIB, 512);
    char *small = piece[1];
    free_behind_work(1, 1);
    fake_reset_counters();
    CHECK(take_without_a_wait(32 * KIB, 0) == small);
    CHECK_EQ(kit_stats(arena).fence_waits, 1);
    CHECK_EQ(fake_calls("cuEventQuery"), 0);
    close_row(small, 32 * KIB, 0);
}

/* Without a wait another stream's run is had only once its work has finished, which CUDA is asked
   about; until then it stays where it is, and counts as no allocation. */
static void another_streams_run_once_it_is_done(void) {
    gpi_request request;
    ROW(GPUPOOL_SOURCE_DEVICE, 64, 512, 20 * MIB, 512);
    char *block = piece[1];
    free_behind_work(1, 1);
    memset(&request, 0, sizeof request);
    request.units = 20 * MIB / GPUPOOL_UNIT_BYTES;
    request.align_units = 1;
    gpi_host_lock(&arena->lock);
    request.owner = known_stream(0);
    CHECK(gpi_tree_prepare(&arena->tree, 3));
    gpi_run *run = gpi_ladder_find_of_all(arena, &request);
    CHECK(run && gpi_ladder_take_over(arena, &request, run, GPI_IF_FINISHED) == NULL);
    CHECK_EQ(arena->ledger.same_stream_allocs, 0);
    gpi_host_unlock(&arena->lock);
    fake_run_all();
    gpi_host_lock(&arena->lock);
    run = gpi_ladder_find_of_all(arena, &request);
    run = run ? gpi_ladder_take_over(arena, &request, run, GPI_IF_FINISHED) : NULL;
    CHECK(run && run->unit == (uintptr_t)block / GPUPOOL_UNIT_BYTES);
    if (run) gpi_tree_put(&arena->tree, run, GPI_LIST_ANY, 0);
    gpi_arena_unlock(arena);
    close_row(NULL, 0, 0);
}

/* Many streams have done, each with an event behind the little that it has freed: all of them are
   asked before the host would have to wait. */
static void all_streams_are_asked(void) {
    enum { STREAMS = 200, EACH = 30 * KIB };
    cudaStream_t stream[STREAMS];
    void *block[STREAMS];
    memset(piece, 0, sizeof piece);
    open_chunk(GPUPOOL_SOURCE_DEVICE, 16 * MIB);
    for (int i = 0; i < STREAMS; i++) {
        CHECK_EQ(cudaStreamCreateWithFlags(&stream[i], cudaStreamNonBlocking), cudaSuccess);
        block[i] = kit_alloc(arena, EACH, stream[i]);
    }
    fill_chunk();
    for (int i = 0; i < STREAMS; i++)
        CHECK_RESULT(gpupool_free(arena, block[i], stream[i]), GPUPOOL_OK);
    fake_run_all();
    CHECK_EQ(kit_stats(arena).pending.now, STREAMS * EACH);
    CHECK(take_without_a_wait(STREAMS * EACH, 0) == block[0]);
    CHECK_EQ(fake_calls("cuCtxRecordEvent"), 0);
    close_row(block[0], STREAMS * EACH, 0);
    for (int i = 0; i < STREAMS; i++) CHECK_EQ(cudaStreamDestroy(stream[i]), cudaSuccess);
}

/* Above 64 streams a request records an event over all of them, where much is pending. */
static void as_many_streams_as_are_asked(void) {
    enum { MOST = GPI_THREADS_KEPT + 1 };
    for (int count = MOST - 1; count <= MOST; count++) {
        cudaStream_t stream[MOST];
        void *block[MOST], *much, *larger;
        check_case("%d streams", count);
        open_chunk(GPUPOOL_SOURCE_DEVICE, 64 * MIB);
        for (int i = 0; i < count; i++) {
            CHECK_EQ(cudaStreamCreateWithFlags(&stream[i], cudaStreamNonBlocking), cudaSuccess);
            block[i] = kit_alloc(arena, 512, stream[i]);
        }
        CHECK_EQ(arena->clocks.stream_count, count);
        much = kit_alloc(arena, 20 * MIB, stream[0]);
        fake_mode(FAKE_STEPPED);
        CHECK_RESULT(gpupool_free(arena, much, stream[0]), GPUPOOL_OK);
        larger = kit_alloc(arena, 50 * MIB, stream[1]);
        CHECK_EQ(fake_calls("cuCtxRecordEvent"), count == MOST);
        CHECK_RESULT(gpupool_free(arena, larger, stream[1]), GPUPOOL_OK);
        for (int i = 0; i < count; i++)
            CHECK_RESULT(gpupool_free(arena, block[i], stream[i]), GPUPOOL_OK);
        fake_mode(FAKE_EAGER);
        kit_close(arena);
        for (int i = 0; i < count; i++) CHECK_EQ(cudaStreamDestroy(stream[i]), cudaSuccess);
        fake_reset_counters();
    }
    check_case(" ");
}

/* ---- gpupool_cudaFree's memory ---- */

/* The host waits for it for the sake of gpupool_cudaMalloc, and where there is some to wait for. */
static void who_waits_for_cuda_free(void) {
    void *block, *grown, *followed;
    arena = gpupool_get_default_arena(0);
    CHECK_EQ(gpupool_cudaMalloc(&block, 20 * MIB), cudaSuccess);
    fake_mode(FAKE_STEPPED);
    kit_fill(kit_stream[1], block, 64, 1);
    CHECK_EQ(gpupool_cudaFree(block), cudaSuccess);
    grown = get(20 * MIB, 0);
    CHECK(grown != block);
    CHECK_EQ(kit_stats(arena).host_syncs, 0);
    arena->short_until = arena->clocks.position + 1024;
    followed = get(20 * MIB, 2);
    CHECK(followed == block);
    CHECK_EQ(kit_stats(arena).fence_waits, 1);
    CHECK_EQ(gpupool_cudaMalloc(&block, 20 * MIB), cudaSuccess);
    CHECK(block != followed);
    CHECK_EQ(kit_stats(arena).host_syncs, 0);
    CHECK_EQ(gpupool_cudaFree(block), cudaSuccess);
    put(grown, 0);
    put(followed, 2);
    fake_mode(FAKE_EAGER);
    kit_close(arena);
}

/* A request like gpupool_cudaMalloc's has its event over all streams. */
static void an_event_of_all_streams(void) {
    gpi_request request;
    ROW(GPUPOOL_SOURCE_DEVICE, 64, 20 * MIB);
    fake_fail_call("cuEventRecord", 1, 0, 0);
    free_behind_work(0, 1);
    CHECK_EQ(fake_fail_fired(), 1);
    fake_fail_clear();
    memset(&request, 0, sizeof request);
    gpi_host_lock(&arena->lock);
    request.owner = arena->clocks.all;
    gpi_ladder_record_own(arena, &request);
    CHECK(!gpi_arena_lacks_marks(arena, arena->clocks.position));
    gpi_arena_unlock(arena);
    CHECK_EQ(fake_calls("cuCtxRecordEvent"), 1);
    close_row(NULL, 0, 0);
}

/* ---- waits of the host: pinned memory is had only once the work is done ---- */

static void count_from_here(void *unused) {
    (void)unused;
    fake_reset_counters();
}

/* What was waited for is not asked about, and its stream is let go. */
static void a_wait_for_one_stream(void) {
    ROW(GPUPOOL_SOURCE_PINNED, 64, 20 * MIB, 512);
    char *block = piece[0];
    free_behind_work(0, 1);
    fake_before_call("cuEventSynchronize", 1, count_from_here, NULL);
    CHECK(get(20 * MIB, 2) == block);
    CHECK_EQ(kit_stats(arena).host_syncs, 1);
    CHECK_EQ(fake_calls("cuEventQuery"), 0);
    CHECK_EQ(known_stream(1)->refs, 0);
    close_row(block, 20 * MIB, 2);
}

static void free_without_an_event(int i, int stream) {
    fake_fail_call("cuEventRecord", 1, 0, 0);
    free_behind_work(i, stream);
    CHECK_EQ(fake_fail_fired(), 1);
    fake_fail_clear();
}

/* The stream's own event could not be recorded: the one over all streams is waited for. */
static void a_wait_for_all_streams(void) {
    ROW(GPUPOOL_SOURCE_PINNED, 64, 20 * MIB, 512);
    char *block = piece[0];
    free_without_an_event(0, 1);
    fake_reset_counters();
    CHECK(get(20 * MIB, 2) == block);
    CHECK_EQ(fake_calls("cuEventSynchronize"), 1);
    CHECK_EQ(kit_stats(arena).host_syncs, 1);
    close_row(block, 20 * MIB, 2);
}

/* That one cannot be recorded either: it is tried once, though the host waits twice. */
static void an_event_that_is_tried_once(void) {
    ROW(GPUPOOL_SOURCE_PINNED, 64, 20 * MIB, 20 * MIB, 512);
    char *block = piece[0];
    free_behind_work(0, 1);
    free_without_an_event(1, 2);
    fake_reset_counters();
    fake_fail_call("cuCtxRecordEvent", 1, 1, 0);
    CHECK(get(40 * MIB, 3) == block);
    CHECK_EQ(fake_fail_fired(), 1);
    fake_fail_clear();
    CHECK_EQ(kit_stats(arena).host_syncs, 2);
    close_row(block, 40 * MIB, 3);
}

/* ---- figures ---- */

/* 1% and 16 MiB more than is live. */
static void the_target(void) {
    gpi_attempt attempt;
    gpi_request request;
    arena = kit_open(GPUPOOL_SOURCE_DEVICE);
    void *block = get(199 * MIB, 0);
    memset(&attempt, 0, sizeof attempt);
    memset(&request, 0, sizeof request);
    attempt.arena = arena;
    attempt.request = &request;
    request.units = MIB / GPUPOOL_UNIT_BYTES;
    CHECK_EQ(gpi_ladder_target(&attempt), (200 + 2 + 16) * MIB);
    put(block, 0);
    kit_close(arena);
}

/* What may be given back counts in units. */
static void the_estimate(void) {
    gpi_attempt attempt;
    gpi_estimate estimate;
    gpi_request request;
    ROW(GPUPOOL_SOURCE_DEVICE, 64, 20 * MIB);
    memset(&attempt, 0, sizeof attempt);
    memset(&request, 0, sizeof request);
    memset(&estimate, 0, sizeof estimate);
    attempt.arena = arena;
    attempt.request = &request;
    request.units = 1;
    request.align_units = 1;
    gpi_table_estimate(&attempt, &estimate);
    CHECK_EQ(estimate.idle_units * 512, 64 * MIB);
    CHECK_EQ(estimate.growable_units, 0);
    close_row(NULL, 0, 0);
}

/* The limit leaves 30 MiB and the device 10. */
static void what_growth_lacks(void) {
    size_t free_bytes, total_bytes;
    arena = kit_open_limited(GPUPOOL_SOURCE_DEVICE, 32 * MIB);
    void *block = get(2 * MIB, 0);
    CHECK_EQ(kit_reserved(arena), 2 * MIB);
    CHECK_EQ(cudaMemGetInfo(&free_bytes, &total_bytes), cudaSuccess);
    fake_other_process(0, free_bytes - 10 * MIB);
    CHECK_EQ(gpi_ladder_lacks(arena, 42 * MIB), 12 * MIB);
    CHECK_EQ(gpi_ladder_lacks(arena, 30 * MIB), 20 * MIB);
    CHECK_EQ(gpi_ladder_lacks(arena, 12 * MIB), 2 * MIB);
    CHECK_EQ(gpi_ladder_lacks(arena, 10 * MIB), 10 * MIB); /* there is enough: it lacks all */
    CHECK_EQ(gpi_ladder_lacks(arena, 4 * MIB), 4 * MIB);
    fake_other_process(0, 0);
    put(block, 0);
    kit_close(arena);
}
#endif

int main(void) {
    FAKE_TEST(a_slab_of_another_streams_memory);
    FAKE_TEST(a_unit_beside_a_finished_run);
    FAKE_TEST(beside_the_second_run);
    FAKE_TEST(beside_empty_addresses);
    FAKE_TEST(aligned_beyond_the_first_run);
    FAKE_TEST(as_many_runs_as_are_looked_at);
    FAKE_TEST(the_first_small_block);
    FAKE_TEST(a_small_block_of_another_stream);
    FAKE_TEST(another_streams_run_once_it_is_done);
    FAKE_TEST(all_streams_are_asked);
    FAKE_TEST(as_many_streams_as_are_asked);
    FAKE_TEST(who_waits_for_cuda_free);
    FAKE_TEST(an_event_of_all_streams);
    FAKE_TEST(a_wait_for_one_stream);
    FAKE_TEST(a_wait_for_all_streams);
    FAKE_TEST(an_event_that_is_tried_once);
    FAKE_TEST(the_target);
    FAKE_TEST(the_estimate);
    FAKE_TEST(what_growth_lacks);
    return check_finish();
}
