/* Calls in which the host runs out of memory half way: for a stream's struct, and for run structs
   while another stream's memory is taken over. Nothing is lost, and the call can be made again. */
// build: plain
// build: asan -fsanitize=address
#include "fail_malloc.h"
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "arena_kit.h"

#include <pthread.h>

#if CHECK_FAKE

static gpupool_arena *arena;

static void *get(size_t bytes, int stream) { return kit_alloc(arena, bytes, kit_stream[stream]); }
static gpupool_result put(void *block, int stream) {
    return gpupool_free(arena, block, kit_stream[stream]);
}

static gpi_stream *stream_of(int stream) {
    return gpi_clock_find(&arena->clocks, gpi_clock_key(kit_stream[stream]));
}

/* ---- a stream's struct ---- */

static void none_for_a_host_functions_stream(void) {
    arena = kit_open(GPUPOOL_SOURCE_AUTO);
    void *block = get(4096, 0);
    fail_malloc_nth(1, 1);
    CHECK_RESULT(gpupool_free_in_host_function(arena, block, kit_stream[3]),
                 GPUPOOL_E_HOST_MEMORY);
    fail_malloc_nth(0, 0);
    CHECK_EQ(kit_stats(arena).blocks.now, 1);
    CHECK_RESULT(gpupool_free_in_host_function(arena, block, kit_stream[3]), GPUPOOL_OK);
    kit_close(arena);
}

/* A stream with the handle of an earlier one needs a struct of its own. */
static void none_for_a_handle_had_again(void) {
    arena = kit_open(GPUPOOL_SOURCE_AUTO);
    void *block = get(4096, 0);
    CHECK_RESULT(gpupool_record_stream(arena, block, kit_stream[1]), GPUPOOL_OK);
    for (int lasting = 0; lasting < 2; lasting++) {
        check_case("lasting %d", lasting);
        stream_of(1)->identity++; /* that was another one */
        fail_malloc_nth(1, lasting);
        CHECK_RESULT(gpupool_record_stream(arena, block, kit_stream[1]), GPUPOOL_E_HOST_MEMORY);
        fail_malloc_nth(0, 0);
        CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
        CHECK_RESULT(gpupool_record_stream(arena, block, kit_stream[1]), GPUPOOL_OK);
    }
    fail_malloc_nth(1, 0);
    CHECK_RESULT(gpupool_record_stream(arena, block, kit_stream[2]), GPUPOOL_E_HOST_MEMORY);
    fail_malloc_nth(0, 0);
    CHECK_RESULT(put(block, 0), GPUPOOL_OK);
    kit_close(arena);
}

/* That a stream captures is noted with the stream, which was unknown. */
static void none_for_a_stream_that_captures(void) {
    cudaGraph_t graph = NULL;
    arena = kit_open(GPUPOOL_SOURCE_AUTO);
    void *block = get(4096, 0);
    CHECK_EQ(cudaStreamBeginCapture(kit_stream[1], cudaStreamCaptureModeRelaxed), cudaSuccess);
    fail_malloc_nth(1, 1);
    CHECK_RESULT(gpupool_record_stream(arena, block, kit_stream[1]), GPUPOOL_E_HOST_MEMORY);
    fail_malloc_nth(0, 0);
    CHECK_RESULT(gpupool_record_stream(arena, block, kit_stream[1]), GPUPOOL_E_CAPTURING);
    CHECK_EQ(cudaStreamEndCapture(kit_stream[1], &graph), cudaSuccess);
    CHECK_EQ(cudaGraphDestroy(graph), cudaSuccess);
    CHECK_RESULT(put(block, 0), GPUPOOL_OK);
    kit_close(arena);
}

/* Nor for a use in a scope, by a stream that was unknown before. */
static void none_for_a_use_in_a_scope(void) {
    gpupool_capture *scope = NULL;
    arena = kit_open(GPUPOOL_SOURCE_AUTO);
    void *block = get(4096, 0);
    CHECK_RESULT(gpupool_begin_capture(arena, kit_stream[1], &scope), GPUPOOL_OK);
    fail_malloc_nth(1, 1);
    CHECK_RESULT(gpupool_record_stream(arena, block, kit_stream[1]), GPUPOOL_E_HOST_MEMORY);
    fail_malloc_nth(0, 0);
    CHECK_RESULT(gpupool_record_stream(arena, block, kit_stream[1]), GPUPOOL_OK);
    CHECK_RESULT(gpupool_end_capture(scope), GPUPOOL_OK);
    CHECK_RESULT(gpupool_release_capture(scope), GPUPOOL_OK);
    CHECK_RESULT(put(block, 0), GPUPOOL_OK);
    kit_close(arena);
}

/* A graph's stream frees what another stream's cache has: the graph keeps it, for which a record is
   needed. */
static void none_for_what_a_graph_keeps(void) {
    gpupool_capture *scope = NULL;
    arena = kit_open(GPUPOOL_SOURCE_AUTO);
    CHECK_RESULT(put(get(4096, 0), 0), GPUPOOL_OK);
    void *block = get(4096, 0);
    CHECK_EQ(stream_of(0)->cache.used, 1);
    CHECK_RESULT(gpupool_begin_capture(arena, kit_stream[1], &scope), GPUPOOL_OK);
    fail_malloc_nth(1, 1);
    CHECK_RESULT(put(block, 1), GPUPOOL_E_HOST_MEMORY);
    fail_malloc_nth(0, 0);
    CHECK_EQ(kit_stats(arena).blocks.now, 1);
    CHECK_RESULT(put(block, 1), GPUPOOL_OK);
    CHECK_RESULT(gpupool_end_capture(scope), GPUPOOL_OK);
    CHECK_RESULT(gpupool_release_capture(scope), GPUPOOL_OK);
    kit_close(arena);
}

/* What the earlier one had in its cache is free memory behind its own clock then. */
static void a_handle_had_again_starts_anew(void) {
    arena = kit_open(GPUPOOL_SOURCE_AUTO);
    void *block = get(4096, 0);
    CHECK_RESULT(gpupool_record_stream(arena, block, kit_stream[1]), GPUPOOL_OK);
    CHECK_RESULT(put(get(4096, 1), 1), GPUPOOL_OK);
    gpi_stream *earlier = stream_of(1);
    CHECK_EQ(earlier->cache.free_blocks, 1);
    earlier->identity++; /* that was another one */
    CHECK_RESULT(gpupool_record_stream(arena, block, kit_stream[1]), GPUPOOL_OK);
    CHECK(stream_of(1) != earlier);
    CHECK_EQ(earlier->key, 0);
    CHECK_EQ(earlier->cache.used, 0);
    CHECK_RESULT(put(block, 0), GPUPOOL_OK);
    kit_close(arena);
}

/* Where CUDA does not say which stream it is, it is the one that had the handle. */
static void a_handle_that_cuda_does_not_tell(void) {
    arena = kit_open(GPUPOOL_SOURCE_AUTO);
    void *block = get(4096, 0);
    CHECK_RESULT(gpupool_record_stream(arena, block, kit_stream[1]), GPUPOOL_OK);
    gpi_stream *known = stream_of(1);
    uint64_t identity = known->identity;
    CHECK(identity > 1);
    fake_fail_call("cuStreamGetId", 1, 1, 0);
    CHECK_RESULT(gpupool_record_stream(arena, block, kit_stream[1]), GPUPOOL_OK);
    CHECK(fake_fail_fired() > 0);
    fake_fail_clear();
    CHECK(stream_of(1) == known);
    CHECK_EQ(known->identity, identity);
    CHECK_RESULT(put(block, 0), GPUPOOL_OK);
    kit_close(arena);
}

static void *record_in_vain(void *block) {
    CHECK_RESULT(gpupool_record_stream(arena, block, kit_stream[1]), GPUPOOL_E_HOST_MEMORY);
    return NULL;
}

/* The stream is known, and then renamed, before the use is added. */
static void none_for_a_stream_renamed_meanwhile(void) {
    pthread_t thread;
    arena = kit_open(GPUPOOL_SOURCE_AUTO);
    void *block = get(4096, 0);
    CHECK_RESULT(put(get(4096, 1), 1), GPUPOOL_OK);
    gpi_stream *owner = stream_of(1);
    long asked = fake_calls("cuStreamGetId");
    /* The other thread waits for the lock once it has identified the stream. */
    gpi_host_lock(&arena->lock);
    CHECK_EQ(pthread_create(&thread, NULL, record_in_vain, block), 0);
    while (fake_calls("cuStreamGetId") == asked) continue;
    gpi_host_lock(&owner->cache.lock);
    gpi_arena_drain(arena, owner);
    gpi_clock_unbind(&arena->clocks, owner);
    gpi_host_unlock(&owner->cache.lock);
    fail_malloc_nth(1, 1);
    gpi_host_unlock(&arena->lock);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    fail_malloc_nth(0, 0);
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    CHECK_RESULT(gpupool_record_stream(arena, block, kit_stream[1]), GPUPOOL_OK);
    CHECK_RESULT(put(block, 0), GPUPOOL_OK);
    kit_close(arena);
}

/* ---- run structs ---- */

static gpi_run *used_up;

/* As if other threads had used all of them, and the host had no more. */
static void use_up(void *unused) {
    gpi_tree *tree = &arena->tree;
    (void)unused;
    gpi_host_lock(&arena->lock);
    while (tree->spare) {
        gpi_run *run = tree->spare;
        tree->spare = run->list_next;
        tree->spare_count--;
        run->list_next = used_up;
        used_up = run;
    }
    gpi_host_unlock(&arena->lock);
    fail_malloc_nth(1, 1);
}

static void have_again(void) {
    gpi_tree *tree = &arena->tree;
    fail_malloc_nth(0, 0);
    while (used_up) {
        gpi_run *run = used_up;
        used_up = run->list_next;
        run->list_next = tree->spare;
        tree->spare = run;
        tree->spare_count++;
    }
}

/* While CUDA is asked whether one of two streams has finished, and it has, or has not; or while the
   one stream that there is has to be waited for. */
static void none_while_memory_is_taken_over(void) {
    static const struct { const char *call; int streams, finished; } cases[] = {
        {"cuStreamWaitEvent", 1, 0}, {"cuEventQuery", 2, 1}, {"cuEventQuery", 2, 0}};
    for (size_t n = 0; n < KIT_COUNT(cases); n++) {
        const int streams = cases[n].streams;
        void *block[2], *other;
        check_case("case %zu", n);
        arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, (size_t)streams * 8 * MIB);
        for (int i = 0; i < streams; i++) block[i] = get(8 * MIB, i + 1);
        CHECK_RESULT(kit_why(gpupool_alloc(arena, 8 * MIB, kit_stream[0])),
                     GPUPOOL_E_OUT_OF_MEMORY); /* it is short now */
        fake_mode(FAKE_STEPPED);
        for (int i = 0; i < streams; i++) {
            kit_fill(kit_stream[i + 1], block[i], 4096, i);
            CHECK_RESULT(put(block[i], i + 1), GPUPOOL_OK);
        }
        if (cases[n].finished) fake_run_all();
        fake_before_call(cases[n].call, 1, use_up, NULL);
        CHECK_RESULT(kit_why(gpupool_alloc(arena, 8 * MIB, kit_stream[0])),
                     GPUPOOL_E_HOST_MEMORY);
        CHECK(used_up != NULL);
        have_again();
        CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
        other = get(8 * MIB, 0);
        kit_fill(kit_stream[0], other, 4096, 9);
        fake_mode(FAKE_EAGER);
        CHECK_RESULT(put(other, 0), GPUPOOL_OK);
        kit_close(arena);
    }
}
#endif

int main(void) {
    FAKE_TEST(none_for_a_host_functions_stream);
    FAKE_TEST(none_for_a_handle_had_again);
    FAKE_TEST(none_for_a_stream_that_captures);
    FAKE_TEST(none_for_a_use_in_a_scope);
    FAKE_TEST(none_for_what_a_graph_keeps);
    FAKE_TEST(a_handle_had_again_starts_anew);
    FAKE_TEST(a_handle_that_cuda_does_not_tell);
    FAKE_TEST(none_for_a_stream_renamed_meanwhile);
    FAKE_TEST(none_while_memory_is_taken_over);
    return check_finish();
}
