/* The arena at its edges: blocks that caches have, ladders whose rungs fail, parked blocks out of
   order, and streams whose caches rest. */
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "arena_kit.h"

#include <pthread.h>

#if CHECK_FAKE

static gpupool_arena *arena;

static void *get(size_t bytes, int stream) { return kit_alloc(arena, bytes, kit_stream[stream]); }
static void put(void *block, int stream) {
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[stream]), GPUPOOL_OK);
}

/* Another stream reads the block, and is not done. */
static void use_on(void *block, int stream) {
    kit_expect(kit_stream[stream], block, 64, -1);
    CHECK_RESULT(gpupool_record_stream(arena, block, kit_stream[stream]), GPUPOOL_OK);
}

/* ---- caches ---- */

static void mistakes_with_cached_blocks(void) {
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    void *keep = get(4096, 0), *block = get(4096, 0);
    put(block, 0);
    CHECK_EQ(kit_size(arena, block), 0);
    CHECK_RESULT(gpupool_last_result(), GPUPOOL_E_DOUBLE_FREE);
    put(keep, 0);
    CHECK_RESULT(gpupool_record_stream(arena, keep, kit_stream[1]), GPUPOOL_E_DOUBLE_FREE);
    put(get(4096, 0), 0);
    keep = get(4096, 0);
    CHECK_EQ(kit_size(arena, keep), 4096); /* handed out by the cache */
    put(keep, 0);
    kit_close(arena);
}

#define SLOTS 64

/* A cache whose every slot is of a block that is out: one of them has to make room. */
static void a_cache_full_of_blocks_that_are_out(void) {
    void *out[SLOTS], *one;
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    for (size_t i = 0; i < SLOTS; i++) {
        put(get(512 * (i + 1), 0), 0);
        out[i] = get(512 * (i + 1), 0); /* found there */
    }
    gpi_stream *known = gpi_clock_find(&arena->clocks, gpi_clock_key(kit_stream[0]));
    CHECK_EQ(known->cache.used, SLOTS);
    CHECK_EQ(known->cache.free_blocks, 0);
    one = get(60000, 0);
    put(one, 0);
    CHECK(known->cache.used <= SLOTS && known->cache.free_blocks == 1);
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    for (size_t i = 0; i < SLOTS; i++) put(out[i], 0);
    CHECK_EQ(kit_stats(arena).blocks.now, 0);
    kit_close(arena);
}

/* As when another thread forgets the stream between two locks: it is known anew. */
static void the_stream_is_forgotten_meanwhile(void) {
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    void *block = get(4096, 0);
    gpi_caller call = gpi_arena_call(kit_stream[1]);
    CHECK_RESULT(gpi_block_free_slow(arena, block, &call), GPUPOOL_OK);
    CHECK(gpi_clock_find(&arena->clocks, gpi_clock_key(kit_stream[1])) != NULL);
    CHECK_EQ(kit_stats(arena).blocks.now, 0);
    kit_close(arena);
}

/* It takes a rest where fewer than half of the blocks that it had come again. */
static void a_cache_that_finds_little_rests(void) {
    for (size_t found = 16; found <= 48; found += 32) {
        arena = kit_open(GPUPOOL_SOURCE_MAPPED);
        for (size_t i = 0; i < SLOTS; i++) {
            put(get(512 * (i + 1), 0), 0);
            if (i < found) put(get(512 * (i + 1), 0), 0);
        }
        gpi_stream *known = gpi_clock_find(&arena->clocks, gpi_clock_key(kit_stream[0]));
        CHECK_EQ(known->cache.rest, found < 32 ? 1024 : 0);
        CHECK_EQ(known->cache.used != 0, found >= 32); /* while it rests it has no blocks */
        put(get(100000, 0), 0);
        CHECK_EQ(known->cache.rest, found < 32 ? 1023 : 0);
        kit_close(arena);
    }
}

/* While a stream's cache rests, the arena's lock alone does: not for what another cache has, nor
   for what is no block. */
static void frees_on_a_stream_that_rests(void) {
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    void *plain = get(4096, 0), *theirs;
    put(get(8192, 1), 1);
    theirs = get(8192, 1); /* from stream 1's cache, and out */
    gpi_stream *resting = gpi_clock_find(&arena->clocks, gpi_clock_key(kit_stream[0]));
    resting->cache.rest = 100;
    put(plain, 0);
    CHECK_EQ(resting->cache.rest, 99);
    CHECK_RESULT(gpupool_free(arena, plain, kit_stream[0]), GPUPOOL_E_DOUBLE_FREE);
    put(theirs, 0);
    CHECK_EQ(kit_stats(arena).blocks.now, 0);
    kit_close(arena);
}

/* What a capturing stream has freed gets no mark: its event would be the graph's. */
static void no_mark_in_a_capture(void) {
    cudaGraph_t graph = NULL;
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    void *block = get(30 * MIB, 0), *larger;
    put(block, 0);
    CHECK_EQ(cudaStreamBeginCapture(kit_stream[0], cudaStreamCaptureModeRelaxed), cudaSuccess);
    larger = get(60 * MIB, 0);
    CHECK_EQ(fake_calls("cuEventRecord"), 0);
    CHECK_EQ(cudaStreamEndCapture(kit_stream[0], &graph), cudaSuccess);
    CHECK_EQ(cudaGraphDestroy(graph), cudaSuccess);
    put(larger, 0);
    kit_close(arena);
}

/* ---- caches ---- */

/* A block that another stream's cache has handed out, freed on a stream whose own cache rests. */
static void freed_where_the_cache_rests(void) {
    arena = kit_open(GPUPOOL_SOURCE_DEVICE);
    put(get(512, 0), 0);
    void *lent = get(512, 0), *own = get(70000, 1);
    gpi_clock_find(&arena->clocks, gpi_clock_key(kit_stream[1]))->cache.rest = 8;
    kit_order(kit_stream[0], kit_stream[1]);
    put(lent, 1);
    put(own, 1);
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    CHECK_RESULT(gpupool_free(arena, lent, kit_stream[1]), GPUPOOL_E_DOUBLE_FREE);
    CHECK_EQ(kit_stats(arena).blocks.now, 0);
    kit_close(arena);
}

/* What a cache keeps free makes room, all together, for what its stream asks: not new memory. */
static void a_cache_makes_room(void) {
    void *small[16], *rest;
    arena = kit_open(GPUPOOL_SOURCE_DEVICE);
    for (int i = 0; i < 16; i++) small[i] = get(4096, 0);
    rest = get((size_t)kit_stats(arena).largest_free_bytes, 0);
    size_t reserved = kit_reserved(arena);
    for (int i = 0; i < 16; i++) put(small[i], 0);
    gpi_stream *known = gpi_clock_find(&arena->clocks, gpi_clock_key(kit_stream[0]));
    CHECK_EQ(known->cache.free_blocks, 16);
    put(get(32 * KIB, 0), 0);
    CHECK_EQ(kit_reserved(arena), reserved);
    put(rest, 0);
    kit_close(arena);
}

/* A block that the freeing stream's cache hands out is that stream's, whoever had it before. */
static void whose_a_cached_block_is(void) {
    gpupool_block found;
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    put(get(4096, 0), 0);
    void *block = get(8192, 1);
    kit_order(kit_stream[1], kit_stream[0]);
    put(block, 0);
    CHECK(get(8192, 0) == block);
    CHECK_RESULT(gpupool_get_block(arena, block, &found), GPUPOOL_OK);
    CHECK(found.stream == kit_stream[0]);
    put(block, 0);
    kit_close(arena);
}

/* A request that fails has emptied a cache: the block alone becomes the stream's, and not the
   finished unit beside it. */
static void emptied_without_the_neighbour(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_DEVICE);
    config.chunk_bytes = 64 * MIB;
    arena = kit_create(&config);
    char *cached = (char *)get(512, 0), *beside = (char *)get(512, 0);
    CHECK(beside == cached + 512);
    void *rest = get((size_t)kit_stats(arena).largest_free_bytes, 0);
    CHECK_RESULT(gpupool_set_limit(arena, kit_reserved(arena)), GPUPOOL_OK);
    put(beside, 0);
    CHECK_RESULT(gpupool_trim(arena, SIZE_MAX, NULL), GPUPOOL_OK);
    fake_mode(FAKE_STEPPED);
    kit_fill(kit_stream[0], cached, 64, 1);
    put(cached, 0);
    gpi_stream *known = gpi_clock_find(&arena->clocks, gpi_clock_key(kit_stream[0]));
    CHECK_EQ(known->cache.free_blocks, 1);
    CHECK_EQ(kit_stats(arena).pending.now, 512);
    CHECK_RESULT(kit_why(kit_alloc_as(arena, MIB, kit_stream[1], GPUPOOL_NO_WAIT)),
                 GPUPOOL_E_OUT_OF_MEMORY);
    CHECK_EQ(known->cache.free_blocks, 0);
    CHECK_EQ(kit_stats(arena).pending.now, 512);
    put(rest, 0);
    fake_mode(FAKE_EAGER);
    kit_close(arena);
}

/* A chunk that was divided for small blocks goes back once they are free. */
static void divided_for_small_blocks(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
    config.chunk_bytes = 8 * MIB;
    arena = kit_create(&config);
    void *first = get(512, 0), *divided = get(512, 0);
    CHECK(arena->tree.slab_count > 0);
    put(first, 0);
    put(divided, 0);
    CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
    CHECK_EQ(kit_reserved(arena), 0);
    kit_close(arena);
}

/* ---- the record of calls ---- */

static void a_chunk_that_cuda_refuses_is_freed(void) {
    char line[100];
    FILE *file = tmpfile();
    int frees = 0, others = 0;
    arena = kit_open(GPUPOOL_SOURCE_BYPASS);
    void *block = get(4096, 0);
    CHECK_RESULT(gpupool_set_trace(arena, file), GPUPOOL_OK);
    fake_fail_call("cuMemFree", 1, 0, 0);
    put(block, 0);
    CHECK_EQ(fake_fail_fired(), 1);
    fake_fail_clear();
    CHECK_RESULT(gpupool_set_trace(arena, NULL), GPUPOOL_OK);
    rewind(file);
    while (fgets(line, sizeof line, file)) {
        frees += !strncmp(line, "f ", 2);
        others += frees && !strncmp(line, "a ", 2);
    }
    CHECK_EQ(frees, 1);
    CHECK_EQ(others, 0);
    fclose(file);
    kit_close(arena);
}

/* ---- each block by itself ---- */

/* Each is found again beside the one had last, which lies just below it. */
static void blocks_side_by_side(void) {
    void *block[3], *below;
    fake_packed(1);
    arena = kit_open(GPUPOOL_SOURCE_BYPASS);
    for (int i = 0; i < 3; i++) block[i] = get(4096, 0);
    CHECK_EQ((char *)block[2] - (char *)block[1], 4096);
    put(block[0], 0);
    below = get(4096, 0);
    CHECK(below == block[0]);
    put(block[1], 0);
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    CHECK_EQ(kit_size(arena, below), 4096);
    put(block[2], 0);
    put(below, 0);
    kit_close(arena);
}

/* ---- captures that the legacy stream tells of ---- */

static void beside_a_capture_on_a_blocking_stream(void) {
    cudaStream_t blocking = NULL;
    cudaGraph_t graph = NULL;
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    void *block = get(4096, 1), *large;
    CHECK_EQ(cudaStreamCreate(&blocking), cudaSuccess);
    CHECK_EQ(cudaStreamBeginCapture(blocking, cudaStreamCaptureModeGlobal), cudaSuccess);
    put(get(30 * MIB, 1), 1); /* no event behind it, and none over all streams either */
    CHECK_RESULT(gpupool_trim(arena, SIZE_MAX, NULL), GPUPOOL_OK);
    CHECK_EQ(fake_calls("cuCtxRecordEvent"), 0);
    CHECK_RESULT(gpupool_record_stream(arena, block, 0), GPUPOOL_E_CAPTURING);
    large = kit_alloc(arena, 30 * MIB, 0);
    CHECK_RESULT(gpupool_free(arena, large, 0), GPUPOOL_OK);
    CHECK_EQ(cudaStreamEndCapture(blocking, &graph), cudaSuccess); /* not lost */
    CHECK_EQ(cudaGraphDestroy(graph), cudaSuccess);
    CHECK_EQ(cudaStreamDestroy(blocking), cudaSuccess);
    fake_fail_call("cuCtxPushCurrent", 1, 0, 0); /* where CUDA cannot be asked */
    CHECK_RESULT(gpupool_record_stream(arena, block, 0), GPUPOOL_OK);
    CHECK_EQ(fake_fail_fired(), 1);
    fake_fail_clear();
    CHECK_RESULT(gpupool_record_stream(arena, block, 0), GPUPOOL_OK);
    put(block, 1);
    kit_close(arena);
}

/* ---- blocks that wait ---- */

/* The first is not done, the second is: a request that can neither wait nor grow gets it. */
static void waiting_out_of_order(void) {
    cudaGraph_t graph = NULL;
    arena = kit_open_limited(GPUPOOL_SOURCE_DEVICE, 64 * MIB);
    void *slow = get(20 * MIB, 0), *fast = get(20 * MIB, 0), *rest = get(20 * MIB, 0), *block;
    use_on(slow, 1);
    use_on(fast, 2);
    fake_hold(kit_stream[1], 1);
    kit_expect(kit_stream[1], slow, 64, -1);
    CHECK_RESULT(gpupool_record_stream(arena, slow, kit_stream[1]), GPUPOOL_OK);
    put(slow, 0);
    put(fast, 0);
    CHECK_EQ(kit_stats(arena).pending.now, 40 * MIB);
    CHECK_EQ(cudaStreamBeginCapture(kit_stream[3], cudaStreamCaptureModeRelaxed), cudaSuccess);
    block = gpupool_alloc(arena, 20 * MIB, kit_stream[3]);
    CHECK(block == fast);
    CHECK_RESULT(kit_why(gpupool_alloc(arena, 20 * MIB, kit_stream[3])), GPUPOOL_E_OUT_OF_MEMORY);
    CHECK_EQ(cudaStreamEndCapture(kit_stream[3], &graph), cudaSuccess);
    CHECK_EQ(cudaGraphDestroy(graph), cudaSuccess);
    fake_hold(kit_stream[1], 0);
    put(block, 3);
    put(rest, 0);
    kit_close(arena);
}

/* One stream is done with a waiting block, another is not: that is the one to wait for. */
static void waiting_for_the_second_stream(void) {
    arena = kit_open_limited(GPUPOOL_SOURCE_PINNED, 64 * MIB);
    void *block = get(60 * MIB, 0);
    use_on(block, 2);
    use_on(block, 1);
    fake_mode(FAKE_STEPPED);
    kit_expect(kit_stream[2], block, 64, -1);
    CHECK_RESULT(gpupool_record_stream(arena, block, kit_stream[2]), GPUPOOL_OK);
    put(block, 0);
    block = get(60 * MIB, 0);
    CHECK(kit_stats(arena).host_syncs > 0);
    put(block, 0);
    fake_mode(FAKE_EAGER);
    kit_close(arena);
}

/* What a graph keeps is passed over, and a wait on the device that fails ends the search. */
static void waiting_blocks_that_cannot_be_followed(void) {
    gpupool_capture *scope = NULL;
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 64 * MIB);
    fake_mode(FAKE_STEPPED);
    void *kept = get(20 * MIB, 0), *block = get(30 * MIB, 3);
    kit_order(kit_stream[0], kit_stream[1]);
    kit_order(kit_stream[3], kit_stream[1]);
    use_on(kept, 1);
    use_on(block, 1);
    CHECK_RESULT(gpupool_begin_capture(arena, kit_stream[0], &scope), GPUPOOL_OK);
    put(kept, 0);
    put(block, 3);
    fake_fail_call("cuStreamWaitEvent", 1, 0, 0);
    void *second = get(16 * MIB, 2); /* it waits on the host instead */
    CHECK(second != NULL && second != kept);
    fake_fail_clear();
    put(second, 2);
    CHECK_RESULT(gpupool_release_capture(scope), GPUPOOL_OK);
    fake_mode(FAKE_EAGER);
    kit_close(arena);
}

/* 64 MiB, all of them live, on streams that run when they are told to. Each free has an event. */
static void *piece[6];
static void open_full(const size_t mib[6], const int stream[6]) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
    config.limit_bytes = 64 * MIB;
    config.chunk_bytes = 2 * MIB;
    arena = kit_create(&config);
    for (int i = 0; i < 6; i++) piece[i] = get(mib[i] * MIB, stream[i]);
    CHECK_EQ(kit_reserved(arena), 64 * MIB);
    arena->short_until = arena->clocks.position + 1024;
}

static void free_behind_work(int i, int stream) {
    kit_fill(kit_stream[stream], piece[i], 64, 1);
    put(piece[i], stream);
    piece[i] = NULL;
}

static void close_full(void *block, int stream) {
    if (block) kit_mark(kit_stream[stream], block, 4096, 2);
    if (block) put(block, stream);
    for (int i = 0; i < 6; i++)
        if (piece[i]) put(piece[i], i);
    fake_run_all();
    CHECK_EQ(fake_failures(), 0);
    fake_mode(FAKE_EAGER);
    kit_close(arena);
}

static void *take_without_a_wait(size_t bytes, int stream) {
    void *block = kit_alloc_as(arena, bytes, kit_stream[stream], GPUPOOL_NO_WAIT);
    CHECK_RESULT(kit_why(block), GPUPOOL_OK);
    CHECK_EQ(kit_stats(arena).host_syncs, 0);
    return block;
}

/* A waiting block cannot be followed: what a third stream has freed is stitched instead. */
static void stitched_where_none_can_be_followed(void) {
    open_full((const size_t[]){20, 2, 10, 2, 10, 20}, (const int[]){0, 0, 3, 0, 3, 0});
    void *waits = piece[0];
    fake_mode(FAKE_STEPPED);
    kit_order(kit_stream[0], kit_stream[1]);
    use_on(waits, 1);
    put(waits, 0);
    piece[0] = NULL;
    free_behind_work(2, 3);
    free_behind_work(4, 3);
    fake_fail_call("cuStreamWaitEvent", 1, 0, 0);
    void *block = take_without_a_wait(20 * MIB, 2);
    CHECK_EQ(fake_fail_fired(), 1);
    fake_fail_clear();
    CHECK(block != waits);
    CHECK_EQ(kit_stats(arena).stitches, 1);
    close_full(block, 2);
}

/* What another stream has freed is stitched to what anybody may have. */
static void stitched_of_finished_and_unfinished(void) {
    open_full((const size_t[]){20, 2, 10, 2, 10, 20}, (const int[]){0, 0, 3, 0, 3, 0});
    put(piece[2], 3);
    piece[2] = NULL;
    CHECK_RESULT(gpupool_trim(arena, SIZE_MAX, NULL), GPUPOOL_OK);
    CHECK_EQ(kit_stats(arena).pending.now, 0);
    fake_mode(FAKE_STEPPED);
    free_behind_work(4, 3);
    void *block = take_without_a_wait(20 * MIB, 2);
    CHECK_EQ(kit_stats(arena).stitches, 1);
    close_full(block, 2);
}

/* A stitch is taken again as soon as its stream is seen to have done with it, and none is made. */
static void an_idle_stitch_whose_user_is_done(void) {
    open_full((const size_t[]){20, 2, 10, 2, 10, 20}, (const int[]){0, 0, 3, 0, 3, 0});
    free_behind_work(2, 3);
    free_behind_work(4, 3);
    void *stitched = get(20 * MIB, 3);
    CHECK_EQ(kit_stats(arena).stitches, 1);
    fake_mode(FAKE_STEPPED);
    kit_fill(kit_stream[3], stitched, 64, 1);
    put(stitched, 3);
    fake_run_all();
    CHECK(take_without_a_wait(20 * MIB, 2) == stitched);
    CHECK_EQ(kit_stats(arena).stitches, 1);
    CHECK_EQ(kit_stats(arena).stitches_reused, 1);
    CHECK_EQ(kit_stats(arena).fence_waits, 0);
    close_full(stitched, 2);
}

/* The waiting block alone becomes the stream's, and not the finished unit beside it. */
static void followed_without_its_neighbour(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_DEVICE);
    config.chunk_bytes = 64 * MIB;
    arena = kit_create(&config);
    char *waits = (char *)get(20 * MIB, 0), *tiny = (char *)get(512, 0);
    CHECK(tiny == waits + 20 * MIB);
    void *rest = get((size_t)kit_stats(arena).largest_free_bytes, 0);
    CHECK_RESULT(gpupool_set_limit(arena, kit_reserved(arena)), GPUPOOL_OK);
    put(tiny, 0);
    CHECK_RESULT(gpupool_trim(arena, SIZE_MAX, NULL), GPUPOOL_OK);
    fake_mode(FAKE_STEPPED);
    kit_order(kit_stream[0], kit_stream[1]);
    use_on(waits, 1);
    put(waits, 0);
    CHECK(take_without_a_wait(20 * MIB, 2) == waits);
    CHECK(kit_stats(arena).fence_waits > 0);
    CHECK_EQ(kit_stats(arena).pending.now, 0);
    put(waits, 2);
    put(rest, 0);
    fake_mode(FAKE_EAGER);
    kit_close(arena);
}

/* All that another stream has freed lies in a slab. */
static void followed_into_a_slab(void) {
    enum { SMALL = 32 * KIB, COUNT = 2 * MIB / SMALL };
    void *small[COUNT], *first;
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
    config.limit_bytes = config.chunk_bytes = 4 * MIB;
    config.no_stitch = 1;
    arena = kit_create(&config);
    first = get(2 * MIB, 0);
    for (int i = 0; i < COUNT; i++) small[i] = get(SMALL, 1);
    CHECK(gpi_tree_is_slab(&arena->tree, (uintptr_t)small[10] / GPUPOOL_UNIT_BYTES));
    CHECK_EQ(kit_stats(arena).largest_free_bytes, 0);
    arena->short_until = arena->clocks.position + 1024;
    fake_mode(FAKE_STEPPED);
    kit_fill(kit_stream[1], small[10], SMALL, 1);
    put(small[10], 1);
    CHECK(take_without_a_wait(SMALL, 0) == small[10]);
    CHECK_EQ(kit_stats(arena).fence_waits, 1);
    kit_fill(kit_stream[0], small[10], SMALL, 2);
    for (int i = 0; i < COUNT; i++) put(small[i], i == 10 ? 0 : 1);
    put(first, 0);
    fake_run_all();
    CHECK_EQ(fake_failures(), 0);
    fake_mode(FAKE_EAGER);
    kit_close(arena);
}

/* Of two streams' work the older is waited for, whichever stream the arena met first. */
static void the_older_work_is_waited_for(void) {
    for (int older = 1; older < 3; older++) {
        void *block[3];
        arena = kit_open_limited(GPUPOOL_SOURCE_PINNED, 64 * MIB);
        for (int i = 1; i < 3; i++) block[i] = get(30 * MIB, i);
        fake_mode(FAKE_STEPPED);
        for (int i = 1; i < 3; i++) kit_fill(kit_stream[i], block[i], 64, 1);
        put(block[older], older);
        put(block[3 - older], 3 - older);
        CHECK(get(30 * MIB, 3) == block[older]);
        CHECK_EQ(fake_pending(kit_stream[older]), 0);
        CHECK(fake_pending(kit_stream[3 - older]) > 0);
        put(block[older], 3);
        fake_mode(FAKE_EAGER);
        kit_close(arena);
    }
}

/* Of more streams than are asked at once, none has put an event behind the little that it has
   freed: one event over all streams finds that all have done, without a wait. */
static void one_event_for_many_streams(void) {
    enum { STREAMS = 70, EACH = 100 * KIB };
    cudaStream_t stream[STREAMS];
    void *block[STREAMS], *rest;
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_DEVICE);
    config.chunk_bytes = 16 * MIB;
    arena = kit_create(&config);
    for (int i = 0; i < STREAMS; i++) {
        CHECK_EQ(cudaStreamCreateWithFlags(&stream[i], cudaStreamNonBlocking), cudaSuccess);
        block[i] = kit_alloc(arena, EACH, stream[i]);
    }
    rest = get((size_t)kit_stats(arena).largest_free_bytes, 0);
    CHECK_RESULT(gpupool_set_limit(arena, kit_reserved(arena)), GPUPOOL_OK);
    for (int i = 0; i < STREAMS; i++)
        CHECK_RESULT(gpupool_free(arena, block[i], stream[i]), GPUPOOL_OK);
    CHECK_EQ(fake_calls("cuEventRecord") + fake_calls("cuCtxRecordEvent"), 0);
    CHECK(take_without_a_wait(STREAMS * EACH, 0) == block[0]);
    put(block[0], 0);
    put(rest, 0);
    for (int i = 0; i < STREAMS; i++) CHECK_EQ(cudaStreamDestroy(stream[i]), cudaSuccess);
    kit_close(arena);
}

static void finish_all_streams(void *unused) {
    (void)unused;
    fake_run_all();
    for (int i = 0; i < KIT_STREAMS; i++) {
        gpi_stream *stream = gpi_clock_find(&arena->clocks, gpi_clock_key(kit_stream[i]));
        gpi_host_lock(&arena->lock);
        if (stream) gpi_event_poll(&arena->clocks, stream);
        gpi_host_unlock(&arena->lock);
    }
}

/* While the wait for the first user is queued, another thread sees that the others are done. */
static void users_that_finish_meanwhile(void) {
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 64 * MIB);
    fake_mode(FAKE_STEPPED);
    void *block = get(60 * MIB, 0);
    for (int i = 1; i < 4; i += 2) {
        kit_order(kit_stream[0], kit_stream[i]);
        kit_expect(kit_stream[i], block, 64, -1);
        CHECK_RESULT(gpupool_record_stream(arena, block, kit_stream[i]), GPUPOOL_OK);
    }
    put(block, 0);
    fake_reset_counters();
    fake_before_call("cuStreamWaitEvent", 1, finish_all_streams, NULL);
    CHECK(get(60 * MIB, 2) == block);
    CHECK_EQ(fake_calls("cuStreamWaitEvent"), 1);
    CHECK_EQ(kit_stats(arena).host_syncs, 0);
    kit_fill(kit_stream[2], block, 64, 1);
    put(block, 2);
    fake_run_all();
    CHECK_EQ(fake_failures(), 0);
    fake_mode(FAKE_EAGER);
    kit_close(arena);
}

static void look_at_all_streams(void *unused) {
    finish_all_streams(unused);
    gpi_host_lock(&arena->lock);
    gpi_arena_ask_waiting(arena);
    gpi_host_unlock(&arena->lock);
}

/* While the wait for its user is queued, and fails, another thread sees that the user is done, and
   looks at all that waits: the block, which is back only after that, is looked at all the same. */
static void back_after_the_latest_look(void) {
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 64 * MIB);
    fake_mode(FAKE_STEPPED);
    void *block = get(60 * MIB, 0), *again;
    kit_order(kit_stream[0], kit_stream[1]);
    use_on(block, 1);
    put(block, 0);
    fake_before_call("cuStreamWaitEvent", 1, look_at_all_streams, NULL);
    fake_fail_call("cuStreamWaitEvent", 1, 0, 0);
    again = kit_alloc_as(arena, 60 * MIB, kit_stream[2], GPUPOOL_NO_WAIT);
    CHECK_EQ(fake_fail_fired(), 1);
    fake_fail_clear();
    if (again) put(again, 2);
    CHECK_RESULT(gpupool_trim(arena, SIZE_MAX, NULL), GPUPOOL_OK);
    CHECK_EQ(kit_stats(arena).pending.now, 0);
    CHECK(take_without_a_wait(60 * MIB, 2) == block);
    put(block, 2);
    fake_mode(FAKE_EAGER);
    kit_close(arena);
}

/* The legacy stream waits in the arena's context. Where that cannot be entered, or left, there is
   another way to the memory or an error, and nobody overtakes. */
static void waits_that_cannot_be_queued(void) {
    static const char *const calls[] = {"cuCtxPushCurrent", "cuCtxPopCurrent"};
    for (size_t c = 0; c < KIT_COUNT(calls); c++)
        for (long nth = 1, fired = 1; fired; nth++) {
            check_case("%s %ld", calls[c], nth);
            arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 64 * MIB);
            fake_mode(FAKE_STEPPED);
            void *other = get(4096, 2), *block = get(50 * MIB, 1), *again;
            kit_fill(kit_stream[1], block, 64, 1);
            put(block, 1);
            fake_fail_call(calls[c], nth, 0, 0);
            again = gpupool_alloc(arena, 50 * MIB, 0);
            fired = fake_fail_fired();
            fake_fail_clear();
            CHECK_EQ(cudaSetDevice(0), cudaSuccess); /* a context that was not popped is there */
            kit_capture_globally();
            if (!again) CHECK_RESULT(gpupool_last_result(), GPUPOOL_E_CUDA);
            if (again) kit_fill(0, again, 64, 2);
            if (again) CHECK_RESULT(gpupool_free(arena, again, 0), GPUPOOL_OK);
            fake_run_all();
            CHECK_EQ(fake_failures(), 0);
            put(other, 2);
            fake_mode(FAKE_EAGER);
            kit_close(arena);
        }
    check_case(" ");
}

/* Of three streams' runs that fit, one is known to be finished, and has not moved to list ANY yet:
   that is the one to take, wherever it stands in the queue. */
static void a_finished_run_is_the_first_choice(void) {
    gpi_request request;
    gpi_stream *of_2;
    void *block[4];
    arena = kit_open(GPUPOOL_SOURCE_DEVICE);
    fake_mode(FAKE_STEPPED);
    for (int i = 0; i < 4; i++) block[i] = get(20 * MIB, i);
    for (int i = 1; i < 4; i++) {
        kit_mark(kit_stream[i], block[i], 64, 1);
        put(block[i], i);
    }
    memset(&request, 0, sizeof request);
    request.units = 20 * MIB / GPUPOOL_UNIT_BYTES;
    request.align_units = 1;
    gpi_host_lock(&arena->lock);
    request.owner = gpi_clock_find(&arena->clocks, gpi_clock_key(kit_stream[0]));
    of_2 = gpi_clock_find(&arena->clocks, gpi_clock_key(kit_stream[2]));
    CHECK(arena->clocks.busy != of_2 && arena->clocks.busy_last != of_2);
    gpi_run *run = gpi_ladder_find_of_all(arena, &request);
    CHECK(run && run->list == arena->clocks.busy->list); /* none is better than another */
    gpi_clock_pass(&arena->clocks, of_2, of_2->clock.issued); /* as another thread sees */
    run = gpi_ladder_find_of_all(arena, &request);
    CHECK(run && run->list == of_2->list);
    gpi_host_unlock(&arena->lock);
    put(block[0], 0);
    fake_mode(FAKE_EAGER);
    kit_close(arena);
}

/* What another stream has freed is waited for while memory is short, and to the very position; from
   then on there is new memory. Where there is no choice no event is asked after. */
static void as_long_as_memory_is_short(void) {
    for (int more = 0; more < 2; more++) {
        gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_DEVICE);
        config.chunk_bytes = 64 * MIB;
        arena = kit_create(&config);
        void *block = get(20 * MIB, 1), *again;
        void *rest = get((size_t)kit_stats(arena).largest_free_bytes, 0);
        fake_mode(FAKE_STEPPED);
        kit_fill(kit_stream[1], block, 64, 1);
        put(block, 1);
        arena->short_until = arena->clocks.position + (uint64_t)more;
        fake_reset_counters();
        again = get(20 * MIB, 0);
        CHECK_EQ(again == block, more);
        CHECK_EQ(kit_stats(arena).fence_waits, more);
        if (more) CHECK_EQ(fake_calls("cuEventQuery"), 0);
        put(again, 0);
        put(rest, 0);
        fake_mode(FAKE_EAGER);
        kit_close(arena);
    }
}

/* While the program is told of memory, a request waits for it that might just fit there. */
static void what_may_be_coming(void) {
    gpi_request request;
    arena = kit_open(GPUPOOL_SOURCE_DEVICE);
    void *block = get(512, 0);
    memset(&request, 0, sizeof request);
    request.bytes = kit_reserved(arena) - 512;
    gpi_host_lock(&arena->lock);
    CHECK(!gpi_alloc_is_coming(arena, &request));
    arena->chunks.telling = 1;
    CHECK(gpi_alloc_is_coming(arena, &request));
    request.bytes++;
    CHECK(!gpi_alloc_is_coming(arena, &request));
    arena->chunks.telling = 0;
    gpi_host_unlock(&arena->lock);
    put(block, 0);
    kit_close(arena);
}

/* With threads' streams about, a request records an event over all streams once more than an eighth
   of what is reserved is pending. */
static void much_is_pending(void) {
    for (int more = 0; more < 2; more++) {
        gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_DEVICE);
        config.chunk_bytes = 72 * MIB;
        arena = kit_create(&config);
        void *of_thread = kit_alloc(arena, 512, cudaStreamPerThread);
        void *eighth = get(9 * MIB, 0), *little = get(100 * KIB, 0), *larger;
        void *rest = get((size_t)kit_stats(arena).largest_free_bytes, 0);
        CHECK_EQ(kit_reserved(arena), 72 * MIB);
        fake_mode(FAKE_STEPPED);
        fake_reset_counters();
        put(eighth, 0);
        if (more) put(little, 0);
        larger = get(20 * MIB, 1);
        CHECK_EQ(fake_calls("cuCtxRecordEvent"), more);
        put(larger, 1);
        put(rest, 0);
        if (!more) put(little, 0);
        CHECK_RESULT(gpupool_free(arena, of_thread, cudaStreamPerThread), GPUPOOL_OK);
        fake_mode(FAKE_EAGER);
        kit_close(arena);
    }
}

/* ---- looks ---- */

/* With peers no event goes over all streams: what has none of its own is not known to be finished,
   until a wait for the device tells. */
static void a_look_beside_a_peer(void) {
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 64 * MIB);
    CHECK_RESULT(gpupool_allow_peer(arena, 1), GPUPOOL_OK);
    put(get(60 * MIB, 0), 0);
    CHECK(!kit_fits(arena, 30 * MIB, NULL));
    CHECK_EQ(fake_calls("cuCtxRecordEvent"), 0);
    CHECK_RESULT(gpupool_trim(arena, SIZE_MAX, NULL), GPUPOOL_OK);
    CHECK(kit_fits(arena, 30 * MIB, NULL));
    kit_close(arena);
}

/* What one look has seen counts no longer at the next: a block in a cache was taken and freed again
   in between, behind work that is not done. */
static void a_look_after_a_look(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
    config.limit_bytes = config.chunk_bytes = 2 * MIB;
    arena = kit_create(&config);
    put(get(4096, 0), 0);
    CHECK(kit_fits(arena, 2 * MIB, NULL));
    CHECK_RESULT(gpupool_allow_peer(arena, 1), GPUPOOL_OK); /* no event over all streams any more */
    fake_mode(FAKE_STEPPED);
    void *block = get(4096, 0);
    kit_fill(kit_stream[0], block, 64, 1);
    put(block, 0);
    CHECK(!kit_fits(arena, 2 * MIB, NULL));
    fake_mode(FAKE_EAGER);
    kit_close(arena);
}

/* No event goes over all streams for a stream that has nothing free, and that no waiting block
   names: it has taken again what it had freed. */
static void nothing_that_lacks_an_event(void) {
    for (int used = 0; used < 2; used++) {
        arena = kit_open(GPUPOOL_SOURCE_DEVICE);
        void *block = get(100 * KIB, 0), *theirs = get(20 * MIB, 1);
        void *rest = get((size_t)kit_stats(arena).largest_free_bytes, 0);
        kit_order(kit_stream[1], kit_stream[0]);
        if (used) use_on(theirs, 0);
        put(block, 0);
        CHECK(get(100 * KIB, 0) == block);
        gpi_stream *known = gpi_clock_find(&arena->clocks, gpi_clock_key(kit_stream[0]));
        CHECK_EQ(known->refs, used);
        CHECK(gpi_clock_lacks_mark(&arena->clocks, known));
        CHECK_RESULT(gpupool_trim(arena, SIZE_MAX, NULL), GPUPOOL_OK);
        CHECK_EQ(fake_calls("cuCtxRecordEvent"), 0);
        put(block, 0);
        put(rest, 0);
        kit_order(kit_stream[0], kit_stream[1]);
        put(theirs, 1);
        kit_close(arena);
    }
}

/* The event of a look is destroyed with the arena, unless a reset has taken it. */
static void ask_and_destroy(const char *refuses, long nth) {
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    put(get(30 * MIB, 0), 0);
    CHECK(kit_fits(arena, MIB, NULL));
    CHECK(arena->clocks.look_event != NULL);
    if (!refuses) CHECK_EQ(cudaDeviceReset(), cudaSuccess);
    if (!refuses) memset(kit_stream, 0, sizeof kit_stream);
    if (refuses) fake_fail_call(refuses, nth, 0, 0);
    gpupool_result result = gpupool_arena_destroy(arena);
    /* whether the context can be entered is asked first, and no answer to that is a yes */
    int is_told = fake_fail_fired() && (nth > 1 || strcmp(refuses, "cuCtxGetId") != 0);
    CHECK_RESULT(result, is_told ? GPUPOOL_E_CUDA : GPUPOOL_OK);
    if (result != GPUPOOL_OK) CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_OK);
}

static void the_event_of_a_look(void) {
    static const char *const calls[] = {"cuEventDestroy", "cuCtxGetId"};
    for (size_t c = 0; c < KIT_COUNT(calls); c++)
        for (long nth = 1, fired = 1; fired; nth++) {
            check_case("%s %ld", calls[c], nth);
            ask_and_destroy(calls[c], nth);
            fired = fake_fail_fired();
            fake_fail_clear();
        }
    check_case("a reset");
    ask_and_destroy(NULL, 0);
    CHECK_EQ(fake_misuses(), 0);
    check_case(" ");
}

/* ---- gpupool_cudaFree's memory ---- */

/* What came back is too small after the wait for it; and where the wait fails, there is more memory
   from the driver. */
static void blocks_of_all_streams(void) {
    void *block[3];
    gpupool_arena *all = gpupool_get_default_arena(0);
    size_t reserved;
    fake_mode(FAKE_STEPPED);
    fake_fail_call("cuCtxRecordEvent", 1, 1, 0); /* so that no event goes over all streams */
    for (int i = 0; i < 3; i++) CHECK_EQ(gpupool_cudaMalloc(&block[i], 20 * MIB), cudaSuccess);
    CHECK_EQ(gpupool_cudaFree(block[1]), cudaSuccess);
    CHECK_EQ(gpupool_cudaMalloc(&block[1], 30 * MIB), cudaSuccess);
    CHECK_EQ(gpupool_cudaFree(block[0]), cudaSuccess);
    reserved = kit_reserved(all);
    fake_fail_call("cuMemAlloc", 1, 1, 0);
    fake_fail_call("cuMemHostAlloc", 1, 1, 0);
    fake_fail_call("cuMemFree", 1, 1, 0);
    CHECK_EQ(gpupool_cudaMalloc(&block[0], 20 * MIB), cudaSuccess);
    CHECK(kit_reserved(all) > reserved);
    fake_fail_clear();
    CHECK_EQ(cudaGetLastError(), cudaSuccess);
    for (int i = 0; i < 3; i++) CHECK_EQ(gpupool_cudaFree(block[i]), cudaSuccess);
    fake_mode(FAKE_EAGER);
    kit_close(all);
}

/* The default arena, at its limit, with one block of 20 MiB, which a stream is at work on. */
static gpupool_arena *full_default_at_work(void **block) {
    gpupool_arena *all = gpupool_get_default_arena(0);
    CHECK_EQ(gpupool_cudaMalloc(block, 20 * MIB), cudaSuccess);
    CHECK_RESULT(gpupool_set_limit(all, kit_reserved(all)), GPUPOOL_OK);
    fake_mode(FAKE_STEPPED);
    kit_fill(kit_stream[1], *block, 20 * MIB, 1);
    return all;
}

/* The free could record no event over all streams: the request records one, and waits for it
   alone. */
static void an_event_for_the_wait(void) {
    void *block;
    gpupool_arena *all = full_default_at_work(&block);
    fake_fail_call("cuCtxRecordEvent", 1, 0, 0);
    CHECK_EQ(gpupool_cudaFree(block), cudaSuccess);
    CHECK_EQ(fake_fail_fired(), 1);
    fake_fail_clear();
    CHECK_EQ(gpupool_cudaMalloc(&block, 20 * MIB), cudaSuccess);
    CHECK_EQ(fake_calls("cuEventSynchronize"), 1);
    CHECK_EQ(gpupool_cudaFree(block), cudaSuccess);
    fake_mode(FAKE_EAGER);
    kit_close(all);
}

/* The event over all streams covers a recorded use, too: the block is free memory at once. */
static void used_by_a_stream_and_freed_for_all(void) {
    void *block;
    gpupool_arena *all = gpupool_get_default_arena(0);
    CHECK_EQ(gpupool_cudaMalloc(&block, 20 * MIB), cudaSuccess);
    fake_mode(FAKE_STEPPED);
    kit_fill(kit_stream[1], block, 20 * MIB, 1);
    CHECK_RESULT(gpupool_record_stream(all, block, kit_stream[1]), GPUPOOL_OK);
    CHECK_EQ(gpupool_cudaFree(block), cudaSuccess);
    CHECK(all->waiting == NULL);
    CHECK_EQ(kit_stats(all).pending.now, 20 * MIB);
    fake_mode(FAKE_EAGER);
    kit_close(all);
}

/* But a graph's block is the graph's until its release, whoever frees it. */
static void a_graphs_block_freed_for_all(void) {
    gpupool_arena *all = gpupool_get_default_arena(0);
    gpupool_capture *scope = NULL;
    CHECK_RESULT(gpupool_begin_capture(all, kit_stream[0], &scope), GPUPOOL_OK);
    void *block = kit_alloc(all, 20 * MIB, kit_stream[0]);
    CHECK_RESULT(gpupool_end_capture(scope), GPUPOOL_OK);
    CHECK_RESULT(gpupool_set_limit(all, kit_reserved(all)), GPUPOOL_OK);
    CHECK_EQ(gpupool_cudaFree(block), cudaSuccess);
    CHECK_RESULT(kit_why(gpupool_alloc(all, 20 * MIB, kit_stream[1])), GPUPOOL_E_OUT_OF_MEMORY);
    CHECK_RESULT(gpupool_release_capture(scope), GPUPOOL_OK);
    CHECK_EQ(gpupool_cudaMalloc(&block, 20 * MIB), cudaSuccess);
    CHECK_EQ(gpupool_cudaFree(block), cudaSuccess);
    kit_close(all);
}

/* A call that has to open the locks keeps its stream's struct, and only as long as it runs. */
static void structs_are_kept_during_calls_only(void) {
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    put(get(4096, 1), 1);
    put(get(4096, 0), 0);
    gpi_stream *first = gpi_clock_find(&arena->clocks, gpi_clock_key(kit_stream[0]));
    gpi_stream *second = gpi_clock_find(&arena->clocks, gpi_clock_key(kit_stream[1]));
    put(get(4096, 0), 1); /* from the other's cache */
    CHECK_EQ(first->cache.used, 0);
    CHECK_EQ(second->refs, 0);
    void *block = get(4096, 0);
    put(block, 0);
    CHECK(get(4096, 0) == block);
    first->cache.most_units = 0; /* as if the bound had sunk meanwhile */
    put(block, 0);
    CHECK(first->cache.most_units > 0);
    CHECK_EQ(first->refs, 0);
    kit_close(arena);
}

/* The most that was in use is counted of all together, what a cache has handed out included. */
static void a_peak_of_a_cache_and_the_tree(void) {
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    void *large = get(20 * MIB, 0);
    put(get(1024, 0), 0);
    CHECK_RESULT(gpupool_reset_peaks(arena), GPUPOOL_OK);
    void *small = get(1024, 0);
    put(large, 0);
    CHECK_EQ(kit_stats(arena).granted.peak, 20 * MIB + 1024);
    put(small, 0);
    kit_close(arena);
}

/* A block that can be exported has whole chunks; a size that no block has is left as it is. */
static void the_size_of_what_can_be_exported(void) {
    const uint64_t most = (uint64_t)1 << 48;
    const uint64_t asked[] = {1, 2 * MIB, 2 * MIB + 1, most / 2 + 1, most, most + 1, 0, UINT64_MAX};
    const uint64_t given[] = {2 * MIB, 2 * MIB, 4 * MIB, most / 2 + 2 * MIB, most, most + 1, 0,
                              UINT64_MAX};
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    for (size_t i = 0; i < KIT_COUNT(asked); i++) {
        gpi_request request;
        uint64_t alignment = 512;
        check_case("%llu bytes", (unsigned long long)asked[i]);
        memset(&request, 0, sizeof request);
        request.bytes = asked[i];
        gpi_hand_choose_owners(arena, &request, GPUPOOL_EXPORTABLE, &alignment);
        CHECK_EQ(request.owners, GPI_OWNERS_WHOLE);
        CHECK_EQ(request.bytes, given[i]);
        CHECK_EQ(alignment, 2 * MIB);
    }
    kit_close(arena);
}

/* Only the content of a block of this process sleeps: a closed arena's, or a parent's, is nobody's
   here. */
static void what_sleeps_elsewhere(void) {
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    void *block = get(4096, 0);
    CHECK_RESULT(gpupool_sleep(arena, GPUPOOL_ALL, GPUPOOL_DISCARD, NULL), GPUPOOL_OK);
    CHECK_RESULT(gpi_block_sleeps("upload", block), GPUPOOL_E_ASLEEP);
    arena->forks++;
    CHECK_RESULT(gpi_block_sleeps("upload", block), GPUPOOL_OK);
    arena->forks--;
    CHECK_RESULT(gpupool_wake(arena, GPUPOOL_ALL, NULL), GPUPOOL_OK);
    put(block, 0);
    kit_close(arena);
}

/* With both marks under way an event is recorded again only where memory is short, up to the very
   position; either way the next frees are counted from nothing. */
static void marks_move_where_memory_is_short(void) {
    void *block[4];
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    for (int i = 0; i < 4; i++) block[i] = get(20 * MIB, 1);
    void *other = get(4096, 0);
    fake_mode(FAKE_STEPPED);
    for (int i = 0; i < 4; i++) {
        kit_fill(kit_stream[1], block[i], 4096, i);
        put(block[i], 1);
    }
    gpi_stream *owner = gpi_clock_find(&arena->clocks, gpi_clock_key(kit_stream[1]));
    gpi_host_lock(&arena->lock);
    CHECK(gpi_clock_spare_mark(&arena->clocks, owner) == NULL);
    CHECK(gpi_clock_lacks_mark(&arena->clocks, owner));
    for (int is_short = 0; is_short < 2; is_short++) {
        check_case("short %d", is_short);
        owner->frees = owner->freed_units = 9;
        arena->short_until = arena->clocks.position - !is_short;
        gpi_block_record(arena, owner, kit_stream[1]);
        CHECK_EQ(gpi_clock_lacks_mark(&arena->clocks, owner), !is_short);
        CHECK_EQ(owner->frees, 0);
        CHECK_EQ(owner->freed_units, 0);
    }
    gpi_host_unlock(&arena->lock);
    fake_mode(FAKE_EAGER);
    put(other, 0);
    kit_close(arena);
}

/* Where no event can be had, CUDA is not asked for one at each free from then on. */
static void frees_without_an_event(void) {
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    void *block = get(4096, 0);
    put(get(4096, 1), 1);
    gpi_stream *owner = gpi_clock_find(&arena->clocks, gpi_clock_key(kit_stream[1]));
    owner->frees = 64;
    fake_fail_call("cuEventRecord", 1, 1, 0);
    gpi_host_lock(&arena->lock);
    CHECK(gpi_block_is_due(arena, owner));
    gpi_block_record(arena, owner, kit_stream[1]);
    CHECK(!gpi_block_is_due(arena, owner));
    gpi_host_unlock(&arena->lock);
    fake_fail_clear();
    put(block, 0);
    kit_close(arena);
}

/* The wait for the event over all streams fails: the host waits for the device. */
static void an_event_that_cannot_be_waited_for(void) {
    void *block;
    gpupool_arena *all = full_default_at_work(&block);
    CHECK_EQ(gpupool_cudaFree(block), cudaSuccess);
    fake_fail_call("cuEventSynchronize", 1, 1, 0);
    CHECK_EQ(gpupool_cudaMalloc(&block, 20 * MIB), cudaSuccess);
    CHECK(fake_fail_fired() > 0);
    fake_fail_clear();
    CHECK_EQ(fake_pending(kit_stream[1]), 0);
    CHECK_EQ(gpupool_cudaFree(block), cudaSuccess);
    fake_mode(FAKE_EAGER);
    kit_close(all);
}

/* The wait for the device failed at its end: what it waited with is the arena's until it can be
   given back, and so long there is no end of the arena. */
static void what_a_wait_left(void) {
    void *block;
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 64 * MIB);
    fake_mode(FAKE_STEPPED);
    put(get(40 * MIB, 0), 0);
    arena->clocks.has_captured = 1; /* so that no event goes over all streams */
    fake_fail_call("cuMemFree", 1, 1, 0);
    CHECK(gpupool_alloc(arena, 60 * MIB, kit_stream[1]) == NULL); /* it would have to wait */
    CHECK(fake_fail_fired() > 0);
    block = get(40 * MIB, 0);
    fake_mode(FAKE_EAGER);
    put(block, 0);
    arena->clocks.has_captured = 0;
    CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
    CHECK_EQ(kit_stats(arena).pending.now, 0); /* nothing to wait for any more */
    CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_E_CUDA);
    fake_fail_clear();
    kit_close(arena);
}

/* ---- resets ---- */

/* Frees that would have put fences behind them, after the device was reset. */
static void many_frees_after_a_reset(void) {
    void *block[100], *other;
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    other = get(4096, 1);
    for (int i = 0; i < 100; i++) block[i] = get(2 * MIB, 0);
    CHECK_EQ(cudaDeviceReset(), cudaSuccess);
    for (int i = 0; i < 100; i++)
        CHECK_RESULT(gpupool_free(arena, block[i], kit_stream[0]), GPUPOOL_OK);
    CHECK_EQ(fake_calls("cuEventRecord"), 0);
    (void)other;
    for (int i = 0; i < KIT_STREAMS; i++) kit_stream[i] = NULL;
    CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_OK);
}

static void config_sizes_that_cannot_be(void) {
    for (int i = 0; i < 2; i++) {
        gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_DEVICE);
        if (i) config.chunk_bytes = ((size_t)1 << 48) + 1;
        else config.reserve_bytes = ((size_t)1 << 48) + 1;
        CHECK_RESULT(gpupool_arena_create(&arena, &config), GPUPOOL_E_ARGUMENT);
        CHECK(arena == NULL);
    }
}

/* 2^48 is one that can be; it is only more than there is. */
static void config_sizes_that_are_large(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_DEVICE);
    config.chunk_bytes = (size_t)1 << 48;
    arena = kit_create(&config);
    kit_close(arena);
    config.reserve_bytes = (size_t)1 << 48;
    CHECK_RESULT(gpupool_arena_create(&arena, &config), GPUPOOL_E_OUT_OF_MEMORY);
    CHECK(strstr(gpupool_last_error(), "config.reserve_bytes: ") == gpupool_last_error());
}

/* Reserved is all that was asked for, if not in whole units. */
static void a_reserve_of_odd_bytes(void) {
    static const gpupool_source sources[] = {GPUPOOL_SOURCE_MAPPED, GPUPOOL_SOURCE_DEVICE,
                                             GPUPOOL_SOURCE_PINNED};
    for (size_t i = 0; i < 3; i++) {
        gpupool_arena_config config = kit_config(sources[i]);
        config.reserve_bytes = 2 * MIB + 100;
        arena = kit_create(&config);
        CHECK(kit_stats(arena).reserved.now >= 2 * MIB + 100);
        kit_close(arena);
    }
}
#endif

int main(void) {
    FAKE_TEST(mistakes_with_cached_blocks);
    FAKE_TEST(a_cache_full_of_blocks_that_are_out);
    FAKE_TEST(the_stream_is_forgotten_meanwhile);
    FAKE_TEST(a_cache_that_finds_little_rests);
    FAKE_TEST(frees_on_a_stream_that_rests);
    FAKE_TEST(no_mark_in_a_capture);
    FAKE_TEST(freed_where_the_cache_rests);
    FAKE_TEST(a_cache_makes_room);
    FAKE_TEST(whose_a_cached_block_is);
    FAKE_TEST(emptied_without_the_neighbour);
    FAKE_TEST(divided_for_small_blocks);
    FAKE_TEST(a_chunk_that_cuda_refuses_is_freed);
    FAKE_TEST(blocks_side_by_side);
    FAKE_TEST(beside_a_capture_on_a_blocking_stream);
    FAKE_TEST(waiting_out_of_order);
    FAKE_TEST(waiting_for_the_second_stream);
    FAKE_TEST(waiting_blocks_that_cannot_be_followed);
    FAKE_TEST(stitched_where_none_can_be_followed);
    FAKE_TEST(stitched_of_finished_and_unfinished);
    FAKE_TEST(an_idle_stitch_whose_user_is_done);
    FAKE_TEST(followed_without_its_neighbour);
    FAKE_TEST(followed_into_a_slab);
    FAKE_TEST(the_older_work_is_waited_for);
    FAKE_TEST(one_event_for_many_streams);
    FAKE_TEST(much_is_pending);
    FAKE_TEST(as_long_as_memory_is_short);
    FAKE_TEST(what_may_be_coming);
    FAKE_TEST(users_that_finish_meanwhile);
    FAKE_TEST(back_after_the_latest_look);
    FAKE_TEST(waits_that_cannot_be_queued);
    FAKE_TEST(a_finished_run_is_the_first_choice);
    FAKE_TEST(a_look_beside_a_peer);
    FAKE_TEST(a_look_after_a_look);
    FAKE_TEST(nothing_that_lacks_an_event);
    FAKE_TEST(the_event_of_a_look);
    FAKE_TEST(blocks_of_all_streams);
    FAKE_TEST(an_event_for_the_wait);
    FAKE_TEST(used_by_a_stream_and_freed_for_all);
    FAKE_TEST(a_graphs_block_freed_for_all);
    FAKE_TEST(structs_are_kept_during_calls_only);
    FAKE_TEST(a_peak_of_a_cache_and_the_tree);
    FAKE_TEST(the_size_of_what_can_be_exported);
    FAKE_TEST(what_sleeps_elsewhere);
    FAKE_TEST(marks_move_where_memory_is_short);
    FAKE_TEST(frees_without_an_event);
    FAKE_TEST(an_event_that_cannot_be_waited_for);
    FAKE_TEST(what_a_wait_left);
    FAKE_TEST(many_frees_after_a_reset);
    FAKE_TEST(config_sizes_that_cannot_be);
    FAKE_TEST(config_sizes_that_are_large);
    FAKE_TEST(a_reserve_of_odd_bytes);
    return check_finish();
}
