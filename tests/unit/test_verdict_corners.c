/* Whose work a verdict says to wait for: default streams by name, one of two that use a block, and
   what a graph keeps, which no wait brings back. And what it says where the limit and the device
   are in the way at once, or neither is, and the driver refuses all the same. */
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "verdict_kit.h"

#if CHECK_FAKE

static gpupool_arena *arena;

static void *get(size_t bytes, cudaStream_t stream) { return kit_alloc(arena, bytes, stream); }
static void put(void *block, cudaStream_t stream) {
    CHECK_RESULT(gpupool_free(arena, block, stream), GPUPOOL_OK);
}

/* gpupool_alloc says no, where gpupool_would_fit could not know. */
static gpupool_verdict refused(size_t bytes, cudaStream_t stream, gpupool_cause cause) {
    gpupool_verdict v;
    CHECK_RESULT(kit_why(gpupool_alloc(arena, bytes, stream)), GPUPOOL_E_OUT_OF_MEMORY);
    CHECK_RESULT(gpupool_last_verdict(&v), GPUPOOL_OK);
    if (v.cause != cause)
        check_fail(__FILE__, __LINE__, "cause %d, not %d: %s", (int)v.cause, (int)cause,
                   v.sentence);
    return v;
}

/* Another stream reads it, and is not done. */
static void use_on(void *block, cudaStream_t stream) {
    kit_expect(stream, block, 64, -1);
    CHECK_RESULT(gpupool_record_stream(arena, block, stream), GPUPOOL_OK);
}

static void default_streams_are_named(void) {
    static const char *const words[] = {"the default stream", "a thread's default stream"};
    cudaStream_t streams[] = {cudaStreamLegacy, cudaStreamPerThread};
    for (size_t i = 0; i < 2; i++) {
        arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 64 * MIB);
        void *block = get(40 * MIB, kit_stream[1]), *rest = get(20 * MIB, kit_stream[1]);
        fake_mode(FAKE_STEPPED);
        kit_order(kit_stream[1], streams[i]);
        use_on(block, streams[i]);
        put(block, kit_stream[1]);
        fake_run(kit_stream[1]);
        gpupool_verdict v = would_not_fit(arena, 40 * MIB, GPUPOOL_CAUSE_PENDING);
        CHECK_EQ(v.pending_streams, 1);
        CHECK(v.pending_stream == streams[i]);
        if (!strstr(v.sentence, words[i]))
            check_fail(__FILE__, __LINE__, "not of %s: %s", words[i], v.sentence);
        fake_mode(FAKE_EAGER);
        put(rest, kit_stream[1]);
        kit_close(arena);
    }
}

/* A question saw all work done. What a cache got since is not known to be, and counts as pending in
   a verdict, as it does elsewhere. */
static void seen_before_the_latest_work(void) {
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 64 * MIB);
    void *block = get(4096, kit_stream[1]);
    put(block, kit_stream[1]);
    CHECK_EQ(kit_stats(arena).pending.now, 4096);
    CHECK(kit_fits(arena, MIB, NULL));
    CHECK(get(4096, kit_stream[1]) == block);
    fake_mode(FAKE_STEPPED);
    kit_fill(kit_stream[1], block, 4096, 1);
    put(block, kit_stream[1]);
    gpupool_verdict v = refused(100 * MIB, kit_stream[2], GPUPOOL_CAUSE_LIMIT);
    CHECK_EQ(kit_stats(arena).pending.now, 4096);
    CHECK_EQ(v.pending_bytes, 4096);
    fake_mode(FAKE_EAGER);
    kit_close(arena);
}

/* Neither alone is enough, until one of them is done; nor is the default stream. */
static void two_streams_at_one_block(void) {
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 64 * MIB);
    void *first = get(40 * MIB, kit_stream[1]);
    fake_mode(FAKE_STEPPED);
    use_on(first, kit_stream[2]);
    use_on(first, cudaStreamLegacy);
    put(first, kit_stream[1]);
    fake_run(kit_stream[1]);
    gpupool_verdict both = would_not_fit(arena, 64 * MIB, GPUPOOL_CAUSE_PENDING);
    CHECK_EQ(both.pending_streams, 2);
    CHECK(both.pending_stream == NULL);
    fake_mode(FAKE_EAGER);
    kit_close(arena);
    for (int done = 2; done <= 3; done++) {
        arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 64 * MIB);
        void *block = get(40 * MIB, kit_stream[1]), *rest = get(20 * MIB, kit_stream[1]);
        fake_mode(FAKE_STEPPED);
        use_on(block, kit_stream[2]);
        use_on(block, kit_stream[3]);
        put(block, kit_stream[1]);
        fake_run(kit_stream[1]);
        gpupool_verdict v = would_not_fit(arena, 40 * MIB, GPUPOOL_CAUSE_PENDING);
        CHECK_EQ(v.pending_streams, 2);
        CHECK(v.pending_stream == NULL);
        fake_run(kit_stream[done]);
        v = would_not_fit(arena, 40 * MIB, GPUPOOL_CAUSE_PENDING);
        CHECK_EQ(v.pending_streams, 1);
        CHECK(v.pending_stream == kit_stream[5 - done]);
        fake_mode(FAKE_EAGER);
        put(rest, kit_stream[1]);
        kit_close(arena);
    }
}

/* Where CUDA does not tell a request what is done, its verdict does not go by what a question
   before has seen. Pinned memory, so that no wait on the device would do. */
static void what_was_seen_before_counts_no_more(void) {
    gpupool_verdict v;
    arena = kit_open_limited(GPUPOOL_SOURCE_PINNED, 8 * MIB);
    put(get(4096, kit_stream[0]), kit_stream[0]);
    put(get(6 * MIB, kit_stream[1]), kit_stream[1]);
    CHECK(kit_fits(arena, 6 * MIB, NULL));
    fake_fail_call("cuEventQuery", 1, 1, 0);
    CHECK(!kit_fits(arena, 64 * MIB, &v)); /* nor does the next question */
    CHECK_EQ(v.pending_bytes, 6 * MIB);
    CHECK_RESULT(kit_why(kit_alloc_as(arena, 6 * MIB, kit_stream[0], GPUPOOL_NO_WAIT)),
                 GPUPOOL_E_OUT_OF_MEMORY);
    fake_fail_clear();
    CHECK_RESULT(gpupool_last_verdict(&v), GPUPOOL_OK);
    CHECK_EQ(v.cause, GPUPOOL_CAUSE_PENDING);
    CHECK_EQ(v.pending_streams, 1);
    CHECK(v.pending_stream == kit_stream[1]);
    put(get(6 * MIB, kit_stream[0]), kit_stream[0]);
    kit_close(arena);
}

/* Nor what it has seen by an event over all streams: the last block is behind no other. */
static void what_was_seen_of_all_counts_no_more(void) {
    gpupool_verdict v;
    void *block[3];
    arena = kit_open_limited(GPUPOOL_SOURCE_PINNED, 8 * MIB);
    put(get(4096, kit_stream[0]), kit_stream[0]);
    put(get(6 * MIB, kit_stream[1]), kit_stream[1]);
    CHECK_RESULT(gpupool_wait_all(arena), GPUPOOL_OK);
    for (int i = 0; i < 3; i++) block[i] = get(2 * MIB, kit_stream[1]);
    fake_mode(FAKE_STEPPED);
    for (int i = 0; i < 3; i++) put(block[i], kit_stream[1]);
    fake_mode(FAKE_EAGER);
    CHECK(kit_fits(arena, 6 * MIB, NULL));
    CHECK(arena->clocks.seen > 0);
    fake_fail_call("cuEventQuery", 1, 1, 0);
    CHECK_RESULT(kit_why(kit_alloc_as(arena, 6 * MIB, kit_stream[0], GPUPOOL_NO_WAIT)),
                 GPUPOOL_E_OUT_OF_MEMORY);
    fake_fail_clear();
    CHECK_RESULT(gpupool_last_verdict(&v), GPUPOOL_OK);
    CHECK_EQ(v.cause, GPUPOOL_CAUSE_PENDING);
    CHECK(v.pending_bytes >= 6 * MIB);
    put(get(6 * MIB, kit_stream[0]), kit_stream[0]);
    kit_close(arena);
}

/* Streams are counted, not blocks, up to a number that is as good as all. */
static void blocks_that_the_same_streams_use(void) {
    cudaStream_t streams[20];
    void *block[2];
    for (int many = 0; many < 2; many++) {
        int count = many ? 20 : 2;
        arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 64 * MIB);
        for (int i = 0; i < 2; i++) block[i] = get(32 * MIB, kit_stream[1]);
        fake_mode(FAKE_STEPPED);
        for (int i = 0; i < count; i++) {
            CHECK_EQ(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking), cudaSuccess);
            for (int k = 0; k < 2; k++) use_on(block[k], streams[i]);
        }
        for (int i = 0; i < 2; i++) put(block[i], kit_stream[1]);
        fake_run(kit_stream[1]);
        gpupool_verdict v = would_not_fit(arena, 48 * MIB, GPUPOOL_CAUSE_PENDING);
        CHECK_EQ(v.pending_streams, many ? 0 : 2);
        CHECK(strstr(v.sentence, many ? "all work in flight on the device"
                                      : "the work in flight on 2 streams") != NULL);
        fake_mode(FAKE_EAGER);
        fits(arena, 48 * MIB);
        for (int i = 0; i < count; i++) CHECK_EQ(cudaStreamDestroy(streams[i]), cudaSuccess);
        kit_close(arena);
    }
}

/* Neither waiting nor in the graph's free lists is it to be had by others. */
static void what_a_graph_keeps_does_not_fit(void) {
    gpupool_capture *scope = NULL;
    gpupool_verdict v;
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 64 * MIB);
    void *block = get(40 * MIB, kit_stream[1]), *rest = get(20 * MIB, kit_stream[1]);
    fake_mode(FAKE_STEPPED);
    use_on(block, kit_stream[2]);
    CHECK_RESULT(gpupool_begin_capture(arena, kit_stream[1], &scope), GPUPOOL_OK);
    put(block, kit_stream[1]);
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(kit_fits(arena, 40 * MIB, &v), 0);
        CHECK(v.cause != GPUPOOL_CAUSE_PENDING && v.largest_block_bytes < 40 * MIB);
        CHECK_RESULT(kit_why(gpupool_alloc(arena, 40 * MIB, kit_stream[3])),
                     GPUPOOL_E_OUT_OF_MEMORY);
        fake_mode(FAKE_EAGER);
    }
    CHECK_RESULT(gpupool_release_capture(scope), GPUPOOL_OK);
    fits(arena, 40 * MIB);
    put(rest, kit_stream[1]);
    kit_close(arena);
}

/* The blocks that hold most lie in a chunk with others, which would keep it: another holder is the
   one to turn to. */
static void the_biggest_holder_is_of_no_help(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_DEVICE);
    void *block[7];
    config.limit_bytes = 64 * MIB;
    config.reserve_bytes = 32 * MIB;
    arena = kit_create(&config);
    for (int i = 0; i < 6; i++) block[i] = get(i % 2 ? (size_t)(i + 1) * KIB : 10 * MIB, 0);
    block[6] = get(28 * MIB, 0);
    gpupool_verdict v = would_not_fit(arena, 28 * MIB, GPUPOOL_CAUSE_LIMIT);
    CHECK(v.holders[0].block_bytes == 10 * MIB && v.holders[0].enough == 0);
    CHECK(v.holders[1].block_bytes == 28 * MIB && v.holders[1].enough == 1);
    if (!strstr(v.sentence, "free the block of 28.00 MiB"))
        check_fail(__FILE__, __LINE__, "not of 28 MiB: %s", v.sentence);
    for (int i = 6; i >= 0; i--) put(block[i], 0);
    kit_close(arena);
}

/* Of what is to be freed, that which only waits for its stream makes the rest of the room. */
static void what_will_be_free_needs_no_freeing(void) {
    void *block[4];
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 8 * MIB);
    fake_mode(FAKE_STEPPED);
    for (int i = 0; i < 4; i++) block[i] = get(2 * MIB, kit_stream[1]);
    kit_fill(kit_stream[1], block[0], 64, 1);
    put(block[0], kit_stream[1]);
    gpupool_verdict v = would_not_fit(arena, 4 * MIB, GPUPOOL_CAUSE_LIMIT);
    CHECK_EQ(v.pending_bytes, 2 * MIB);
    CHECK_EQ(v.holders[0].enough, 1);
    for (int i = 1; i < 4; i++) put(block[i], kit_stream[1]);
    fake_mode(FAKE_EAGER);
    kit_close(arena);
}

/* Of many blocks, one that shares its chunk makes no room when it goes: then it takes all. */
static void the_first_of_many_blocks_is_of_no_help(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_DEVICE);
    void *block[9], *beside = NULL;
    config.chunk_bytes = 4 * MIB;
    arena = kit_create(&config);
    for (int i = 0; i < 9; i++) {
        block[i] = get(2 * MIB, kit_stream[0]);
        if (i == 0) beside = get(2 * MIB - 512, kit_stream[0]);
        CHECK_RESULT(gpupool_set_limit(arena, kit_reserved(arena) + 2 * MIB), GPUPOOL_OK);
    }
    gpupool_verdict v = would_not_fit(arena, 6 * MIB, GPUPOOL_CAUSE_LIMIT);
    CHECK_EQ(v.holders[0].blocks, 9);
    CHECK_EQ(v.holders[0].enough, 9);
    CHECK_RESULT(gpupool_set_limit(arena, kit_reserved(arena) + 6 * MIB - 512), GPUPOOL_OK);
    v = would_not_fit(arena, 6 * MIB, GPUPOOL_CAUSE_FRAGMENTED); /* for want of a unit */
    CHECK_EQ(v.holders[0].enough, 9);
    for (int i = 0; i < 9; i++) put(block[i], kit_stream[0]);
    put(beside, kit_stream[0]);
    kit_close(arena);
}

/* Up to 1 MiB a chunk of cudaMalloc costs what it is; larger ones cost whole granules. The advice
   is enough, and no more than that. */
static void the_least_raise_for_a_chunk(void) {
    static const size_t sizes[] = {600 * KIB, 1000 * KIB, MIB, MIB + 512, 3 * MIB / 2};
    for (size_t i = 0; i < KIT_COUNT(sizes); i++) {
        check_case("%zu bytes", sizes[i]);
        arena = kit_open_limited(GPUPOOL_SOURCE_DEVICE, 512 * KIB);
        gpupool_verdict v = would_not_fit(arena, sizes[i], GPUPOOL_CAUSE_LIMIT);
        CHECK_RESULT(gpupool_set_limit(arena, 512 * KIB + v.raise_bytes - 512), GPUPOOL_OK);
        CHECK_RESULT(kit_why(gpupool_alloc(arena, sizes[i], kit_stream[0])),
                     GPUPOOL_E_OUT_OF_MEMORY);
        CHECK_RESULT(gpupool_set_limit(arena, 512 * KIB + v.raise_bytes), GPUPOOL_OK);
        put(get(sizes[i], kit_stream[0]), kit_stream[0]);
        kit_close(arena);
    }
}

/* The device has 800 KiB left, or more, in no whole granule: so large a block can be had, up to
   1 MiB, though a larger one cannot be made of what is free. */
static void a_small_chunk_is_what_fits(void) {
    static const gpupool_source sources[] = {GPUPOOL_SOURCE_DEVICE, GPUPOOL_SOURCE_CUSTOM};
    static const size_t left[] = {800 * KIB, 1200 * KIB};
    void *block[8];
    for (size_t k = 0; k < 4; k++) {
        /* a chunk of one's own may begin anywhere, which costs a unit */
        size_t fit = k < 2 ? 800 * KIB - k % 2 * 512 : MIB - k % 2 * 512;
        gpupool_arena_config config = kit_config(sources[k % 2]);
        check_case("source %d, %zu left", (int)sources[k % 2], left[k / 2]);
        fake_device_memory(0, 4 * MIB + left[k / 2]);
        config.chunk_bytes = 4 * MIB;
        arena = kit_create(&config);
        for (int i = 0; i < 8; i++) block[i] = get(512 * KIB - 512, kit_stream[0]);
        for (int i = 0; i < 8; i += 2) put(block[i], kit_stream[0]);
        CHECK_EQ(kit_reserved(arena), 4 * MIB);
        gpupool_verdict v = would_not_fit(arena, 3 * MIB / 2, GPUPOOL_CAUSE_FRAGMENTED);
        CHECK_EQ(v.fits_bytes, fit);
        CHECK(strstr(v.sentence, k < 2 ? "no more than 800 KiB in one piece"
                                       : "no more than 1.00 MiB in one piece") != NULL);
        put(get(fit, kit_stream[0]), kit_stream[0]);
        for (int i = 1; i < 8; i += 2) put(block[i], kit_stream[0]);
        kit_close(arena);
    }
}

/* The only block there is, whatever its size. */
static void a_holder_of_any_size(void) {
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 8 * MIB);
    for (size_t bytes = 1; bytes < 1000 * KIB; bytes += 999) {
        void *block = get(bytes, kit_stream[0]);
        gpupool_verdict v = would_not_fit(arena, 8 * MIB, GPUPOOL_CAUSE_LIMIT);
        CHECK_EQ(v.holders[0].block_bytes, bytes);
        CHECK_EQ(v.holders[0].blocks, 1);
        CHECK_EQ(v.holders[0].enough, 1);
        CHECK_EQ(v.holders[1].blocks, 0);
        put(block, kit_stream[0]);
    }
    kit_close(arena);
}

/* What an open scope has freed is kept, though the scope may have it again. */
static void an_open_scope_keeps_what_it_freed(void) {
    gpupool_capture *scope;
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 32 * MIB);
    CHECK_RESULT(gpupool_begin_capture(arena, kit_stream[0], &scope), GPUPOOL_OK);
    put(kit_alloc(arena, 4 * MIB, kit_stream[0]), kit_stream[0]);
    gpupool_verdict v = would_not_fit(arena, 30 * MIB, GPUPOOL_CAUSE_LIMIT);
    CHECK_EQ(v.kept_bytes, 4 * MIB);
    CHECK_RESULT(gpupool_release_capture(scope), GPUPOOL_OK);
    kit_close(arena);
}

/* All that is reserved, given back, and what the device has free, to the unit. */
static void alone_on_a_full_device(void) {
    arena = kit_open(GPUPOOL_SOURCE_BYPASS);
    void *block = get(10 * 512, kit_stream[0]);
    gpi_scene scene = {.arena = arena, .align_units = 1, .rest_units = 3, .device_units = 20};
    for (int i = 0; i < 4; i++) {
        scene.units = i == 1 ? 28 : 27;
        scene.reserved_bytes = arena->ledger.reserved.now;
        scene.limit_bytes = i < 2 ? UINT64_MAX : i == 2 ? 27 * 512 : 27 * 512 - 1;
        CHECK_EQ(gpi_verdict_fits_alone(&scene), i % 2 == 0);
    }
    put(block, kit_stream[0]);
    kit_close(arena);
}

/* Freed for all streams, as by cudaFree, beside what one stream has freed: for a block of both, it
   is the device that has to be waited for, be that the default stream, too. */
static void what_was_freed_for_all_waits_for_the_device(void) {
    cudaStream_t streams[] = {kit_stream[1], cudaStreamLegacy};
    fake_device_vmm(0, 0); /* chunks that have to go for a larger one */
    for (int k = 0; k < 2; k++) {
        void *block[2] = {NULL, NULL};
        check_case("stream %d", k);
        fake_mode(FAKE_STEPPED);
        arena = gpupool_get_default_arena(0);
        CHECK_RESULT(gpupool_set_limit(arena, 64 * MIB), GPUPOOL_OK);
        for (int i = 0; i < 2; i++) {
            CHECK_EQ(gpupool_cudaMalloc(&block[i], 32 * MIB), cudaSuccess);
            kit_mark(i ? streams[k] : kit_stream[0], block[i], 32 * MIB, i);
        }
        CHECK_EQ(gpupool_cudaFree(block[0]), cudaSuccess);
        put(block[1], streams[k]);
        gpupool_verdict v = would_not_fit(arena, 64 * MIB, GPUPOOL_CAUSE_PENDING);
        CHECK_EQ(v.pending_streams, 0);
        CHECK(strstr(v.sentence, "all work in flight on the device") != NULL);
        fake_run_all();
        fits(arena, 64 * MIB);
        fake_mode(FAKE_EAGER);
        kit_close(arena);
    }
}

/* The work of two streams is to be waited for, but not the graph. */
static void two_are_waited_for(size_t bytes, gpupool_capture *scope) {
    gpupool_verdict v = would_not_fit(arena, bytes, GPUPOOL_CAUSE_PENDING);
    CHECK_EQ(v.pending_streams, 2);
    fake_mode(FAKE_EAGER);
    fits(arena, bytes);
    CHECK_RESULT(gpupool_release_capture(scope), GPUPOOL_OK);
    kit_close(arena);
}

/* Two blocks that the same stream is at, one of them a graph's: only the other is waited for. */
static void a_graphs_block_beside_one_to_wait_for(void) {
    gpupool_capture *scope = NULL;
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 64 * MIB);
    void *kept = get(20 * MIB, kit_stream[1]), *block = get(40 * MIB, kit_stream[0]);
    fake_mode(FAKE_STEPPED);
    use_on(kept, kit_stream[2]);
    use_on(block, kit_stream[2]);
    use_on(block, kit_stream[3]);
    CHECK_RESULT(gpupool_begin_capture(arena, kit_stream[1], &scope), GPUPOOL_OK);
    put(kept, kit_stream[1]);
    put(block, kit_stream[0]);
    fake_run(kit_stream[0]);
    two_are_waited_for(40 * MIB, scope);
}

static void two_streams_beside_a_graph(void) {
    gpupool_capture *scope = NULL;
    void *blocks[3];
    arena = kit_open_unstitched(64 * MIB);
    for (int i = 0; i < 3; i++) blocks[i] = get((i ? 20 : 16) * MIB, kit_stream[i + 1]);
    fake_mode(FAKE_STEPPED);
    CHECK_RESULT(gpupool_begin_capture(arena, kit_stream[1], &scope), GPUPOOL_OK);
    for (int i = 0; i < 3; i++) {
        kit_mark(kit_stream[i + 1], blocks[i], 16 * MIB, 1);
        put(blocks[i], kit_stream[i + 1]);
    }
    two_are_waited_for(36 * MIB, scope);
}

/* ---- the limit and the device ---- */

/* Without a device's word, and for more than there is. */
static void where_the_device_does_not_say(void) {
    gpupool_verdict v;
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 64 * MIB);
    fake_fail_call("cuMemGetInfo", 1, 1, 0);
    v = would_not_fit(arena, 100 * MIB, GPUPOOL_CAUSE_LIMIT);
    CHECK_EQ(v.device_total_bytes, 0);
    CHECK(v.raise_bytes > 0);
    fake_fail_call("cuMemCreate", 1, 1, 0);
    v = refused(30 * MIB, kit_stream[0], GPUPOOL_CAUSE_DEVICE_FULL);
    fake_fail_clear();
    CHECK_EQ(cudaGetLastError(), cudaSuccess);
    CHECK(strstr(v.sentence, "the driver refuses memory for 30.00 MiB") != NULL);
    kit_close(arena);
}

/* Above a lowered limit: the limit to the byte from which on the request fits. */
static void raised_by_as_much_as_is_missing(void) {
    static const size_t odds[] = {0, 1, 511, 512};
    for (size_t i = 0; i < KIT_COUNT(odds); i++) {
        size_t odd = odds[i];
        arena = kit_open(GPUPOOL_SOURCE_DEVICE);
        void *block = get(40 * MIB, kit_stream[0]);
        size_t limit = 39 * MIB + odd;
        CHECK_RESULT(gpupool_set_limit(arena, limit), GPUPOOL_OK);
        gpupool_verdict v = would_not_fit(arena, 8 * MIB, GPUPOOL_CAUSE_LIMIT);
        CHECK_EQ(v.raise_bytes, 9 * MIB - odd / 512 * 512);
        CHECK(strstr(v.sentence, "raise the limit by 9.00 MiB") != NULL);
        CHECK_RESULT(gpupool_set_limit(arena, limit + v.raise_bytes - 512), GPUPOOL_OK);
        would_not_fit(arena, 8 * MIB, GPUPOOL_CAUSE_LIMIT);
        CHECK_RESULT(gpupool_set_limit(arena, limit + v.raise_bytes), GPUPOOL_OK);
        fits(arena, 8 * MIB);
        put(block, kit_stream[0]);
        kit_close(arena);
    }
}

/* Three digits before the unit, at most; and "free 9 MiB" is never rounded down to too little. */
static void sizes_are_spelled(void) {
    static const struct { uint64_t bytes; const char *near, *enough; } sizes[] = {
        {0, "0 B", "0 B"},
        {999, "999 B", "999 B"},
        {1000, "0.98 KiB", "0.98 KiB"},
        {9 * MIB + 1, "9.00 MiB", "9.01 MiB"},
        {99 * KIB + 512, "99.50 KiB", "99.50 KiB"},
        {100 * MIB + 1, "100 MiB", "101 MiB"},
        {1000 * GIB, "0.98 TiB", "0.98 TiB"},
        {2000 * 1024 * GIB, "2000 TiB", "2000 TiB"}};
    char room[32];
    for (size_t i = 0; i < KIT_COUNT(sizes); i++) {
        check_case("%s", sizes[i].near);
        CHECK_EQ(strcmp(gpi_limit_human(room, sizes[i].bytes), sizes[i].near), 0);
        CHECK_EQ(strcmp(gpi_limit_enough(room, sizes[i].bytes), sizes[i].enough), 0);
    }
}

/* Whichever leaves less is named; where they leave the same, the limit, though to raise it alone
   would not do. */
static void both_are_in_the_way(void) {
    size_t free_bytes, total_bytes;
    gpupool_verdict v;
    fake_device_memory(0, GIB);
    arena = kit_open_limited(GPUPOOL_SOURCE_DEVICE, 64 * MIB);
    void *block = get(64 * MIB, kit_stream[0]);
    CHECK_EQ(cudaMemGetInfo(&free_bytes, &total_bytes), cudaSuccess);
    fake_other_process(0, free_bytes);
    v = would_not_fit(arena, 32 * MIB, GPUPOOL_CAUSE_LIMIT);
    CHECK_EQ(v.raise_bytes, 0);
    CHECK_EQ(v.missing_bytes, 32 * MIB);
    CHECK_RESULT(gpupool_set_limit(arena, 80 * MIB), GPUPOOL_OK);
    v = would_not_fit(arena, 32 * MIB, GPUPOOL_CAUSE_OTHERS);
    CHECK_EQ(v.raise_bytes, 0);
    CHECK_EQ(v.missing_bytes, 32 * MIB);
    CHECK(strstr(v.sentence, "have others free 32.00 MiB and raise the limit by as much") != NULL);
    fake_other_process(0, free_bytes - 32 * MIB);
    CHECK_RESULT(gpupool_set_limit(arena, 80 * MIB + 32 * MIB), GPUPOOL_OK);
    fits(arena, 32 * MIB);
    fake_other_process(0, 0);
    put(block, kit_stream[0]);
    kit_close(arena);
}

/* What would be free after a wait is not missing: the limit has to be raised by the rest. */
static void what_is_pending_is_not_missing(void) {
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 32 * MIB);
    void *blocks[3];
    for (int i = 0; i < 3; i++) blocks[i] = get((i ? 8 : 16) * MIB, kit_stream[i % 2]);
    fake_mode(FAKE_STEPPED);
    kit_mark(kit_stream[1], blocks[1], 8 * MIB, 1);
    put(blocks[1], kit_stream[1]);
    gpupool_verdict v = would_not_fit(arena, 16 * MIB, GPUPOOL_CAUSE_LIMIT);
    CHECK_EQ(v.raise_bytes, 8 * MIB);
    CHECK_EQ(v.missing_bytes, 8 * MIB);
    raise_as_advised(arena, &v);
    void *block = get(16 * MIB, kit_stream[0]);
    fake_mode(FAKE_EAGER);
    put(block, kit_stream[0]);
    put(blocks[0], kit_stream[0]);
    put(blocks[2], kit_stream[0]);
    kit_close(arena);
}

/* No more is to be freed than there is. */
static void more_than_all_blocks_hold(void) {
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 16 * MIB);
    void *one = get(512 * KIB, kit_stream[0]), *other = get(300 * KIB, kit_stream[0]);
    gpupool_verdict v = refuses(arena, 17 * MIB, GPUPOOL_CAUSE_LIMIT);
    CHECK(strstr(v.sentence, ": raise the limit by ") != NULL);
    CHECK(strstr(v.sentence, "free") == NULL);
    v = refuses(arena, 16 * MIB, GPUPOOL_CAUSE_LIMIT);
    CHECK(strstr(v.sentence, ", or free all blocks, which hold 812 KiB") != NULL);
    put(one, kit_stream[0]);
    put(other, kit_stream[0]);
    fits(arena, 16 * MIB);
    kit_close(arena);
    arena = kit_open(GPUPOOL_SOURCE_DEVICE); /* where addresses for it would have to be got too */
    one = get(KIB, kit_stream[0]);
    CHECK(!gpupool_alloc_aligned(arena, MIB, (size_t)1 << 40, kit_stream[0]));
    CHECK(strstr(gpupool_last_error(), ": ask for less") != NULL);
    put(one, kit_stream[0]);
    kit_close(arena);
}

/* The longest run has room for it, but nowhere at such an address. */
static void room_that_is_not_aligned(void) {
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 4 * MIB);
    void *before = get(512, kit_stream[0]), *block = get(MIB, kit_stream[0]);
    void *rest = get(3 * MIB - 512, kit_stream[0]);
    cudaGraph_t graph;
    put(block, kit_stream[0]);
    CHECK(!gpupool_alloc_aligned(arena, 4096, MIB, kit_stream[0]));
    gpupool_verdict v;
    CHECK_RESULT(gpupool_last_verdict(&v), GPUPOOL_OK);
    CHECK_EQ(v.cause, GPUPOOL_CAUSE_FRAGMENTED);
    CHECK(strstr(v.sentence, "no more than 1.00 MiB in one piece, and none that would do is "
                             "aligned as asked: ") != NULL);
    CHECK_EQ(v.fits_bytes, 512);
    CHECK(!gpupool_alloc_aligned(arena, 4096, 2 * MIB, kit_stream[0]));
    CHECK_RESULT(gpupool_last_verdict(&v), GPUPOOL_OK);
    CHECK_EQ(v.fits_bytes, 0);
    CHECK(!gpupool_alloc_aligned(arena, MIB, MIB, kit_stream[0]));
    CHECK(strstr(gpupool_last_error(), " is aligned as asked") != NULL);
    CHECK(!gpupool_alloc_aligned(arena, 4 * MIB, MIB, kit_stream[0])); /* too large for any */
    CHECK(strstr(gpupool_last_error(), "aligned") == NULL);
    fake_hold(kit_stream[1], 1); /* a place that will do, but cannot be waited for */
    kit_fill(kit_stream[1], before, 512, 1);
    put(before, kit_stream[1]);
    CHECK_EQ(cudaStreamBeginCapture(kit_stream[0], cudaStreamCaptureModeRelaxed), cudaSuccess);
    CHECK(!gpupool_alloc_aligned(arena, 4096, MIB, kit_stream[0]));
    CHECK(strstr(gpupool_last_error(), "a capturing stream cannot wait") != NULL);
    CHECK(strstr(gpupool_last_error(), "aligned") == NULL);
    CHECK_EQ(cudaStreamEndCapture(kit_stream[0], &graph), cudaSuccess);
    CHECK_EQ(cudaGraphDestroy(graph), cudaSuccess);
    fake_hold(kit_stream[1], 0);
    put(rest, kit_stream[0]);
    put(kit_alloc(arena, 4096, kit_stream[0]), kit_stream[0]);
    kit_close(arena);
}

/* Without a pool, what alignment left over of another block's memory is no room. */
static void left_over_without_a_pool(void) {
    arena = kit_open_limited(GPUPOOL_SOURCE_BYPASS, 4 * MIB);
    void *block = gpupool_alloc_aligned(arena, MIB, MIB, kit_stream[0]);
    void *rest = get(2 * MIB, kit_stream[0]);
    CHECK_EQ(kit_reserved(arena), 4 * MIB - 512);
    gpupool_verdict v = would_not_fit(arena, KIB, GPUPOOL_CAUSE_LIMIT);
    CHECK(strstr(v.sentence, ": raise the limit by 512 B, or free ") != NULL);
    put(block, kit_stream[0]);
    put(rest, kit_stream[0]);
    kit_close(arena);
}

/* Each block alone is too little, and both are just enough. */
static void two_blocks_are_what_is_missing(void) {
    arena = kit_open_limited(GPUPOOL_SOURCE_BYPASS, 4 * MIB);
    void *large = get(3 * 512 * KIB, kit_stream[0]), *small = get(512 * KIB, kit_stream[0]);
    gpupool_verdict v = refuses(arena, 4 * MIB, GPUPOOL_CAUSE_LIMIT);
    CHECK(strstr(v.sentence, "free 2.00 MiB of what blocks hold, most of it in the block of 1.50"));
    v = refuses(arena, 4 * MIB + 512, GPUPOOL_CAUSE_LIMIT); /* a unit more than they hold */
    CHECK(strstr(v.sentence, "free") == NULL);
    put(large, kit_stream[0]);
    put(small, kit_stream[0]);
    fits(arena, 4 * MIB);
    kit_close(arena);
}

/* No address of those that the driver gave will do: no limit is in the way where there is none. */
static void alignments_beyond_the_addresses(void) {
    fake_device_memory(0, 100 * GIB);
    fake_fail_call("cuMemAddressReserve", 1, 0, 0); /* half as many are asked for then */
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    CHECK_EQ(fake_fail_fired(), 1);
    fake_fail_clear();
    CHECK(!gpupool_alloc_aligned(arena, MIB, (size_t)1 << 40, kit_stream[0]));
    CHECK(strstr(gpupool_last_error(), ": ask for less") != NULL);
    CHECK(strstr(gpupool_last_error(), "limit") == NULL);
    kit_close(arena);
}

/* The driver gives whole granules, of which the device has 4 MiB here, and 6 are wanted: the limit
   alone would not help, and lacks less. */
static void less_than_a_granule_is_none(void) {
    fake_device_memory(0, 5 * MIB);
    arena = kit_open_limited(GPUPOOL_SOURCE_BYPASS, 4 * MIB);
    gpupool_verdict v = would_not_fit(arena, 9 * MIB / 2, GPUPOOL_CAUSE_DEVICE_FULL);
    CHECK_EQ(v.device_free_bytes, 5 * MIB);
    CHECK_EQ(v.missing_bytes, 2 * MIB);
    CHECK_EQ(v.raise_bytes, 0);
    CHECK_RESULT(gpupool_set_limit(arena, 5 * MIB), GPUPOOL_OK);
    would_not_fit(arena, 9 * MIB / 2, GPUPOOL_CAUSE_DEVICE_FULL);
    fits(arena, 4 * MIB);
    kit_close(arena);
}

/* BYPASS: a chunk that nobody has, since CUDA did not take it back, makes room like any other. */
static void a_chunk_that_was_not_taken_back(void) {
    arena = kit_open_limited(GPUPOOL_SOURCE_BYPASS, 2 * MIB);
    fake_fail_call("cuMemsetD8Async", 1, 0, 0);
    fake_fail_call("cuMemFree", 1, 0, 0);
    CHECK(gpupool_zalloc(arena, MIB, kit_stream[0]) == NULL);
    fake_fail_clear();
    CHECK_EQ(kit_reserved(arena), MIB);
    fits(arena, 2 * MIB);
    CHECK_EQ(kit_reserved(arena), 0);
    kit_close(arena);
}

/* Managed memory may be more than the device has, as long as the driver has it. */
static void managed_memory_beyond_the_device(void) {
    fake_device_memory(0, 256 * MIB);
    arena = kit_open_limited(GPUPOOL_SOURCE_MANAGED, 64 * MIB);
    gpupool_verdict v = refuses(arena, 300 * MIB, GPUPOOL_CAUSE_LIMIT);
    raise_as_advised(arena, &v);
    fake_fail_call("cuMemAllocManaged", 1, 1, 0);
    v = refused(300 * MIB, kit_stream[0], GPUPOOL_CAUSE_TOO_LARGE);
    fake_fail_clear();
    CHECK(strstr(v.sentence, "300 MiB is more than the whole device has") != NULL);
    CHECK(strstr(v.sentence, "raise the limit") == NULL);
    fits(arena, 300 * MIB);
    kit_close(arena);
}

/* ---- a driver that refuses, although as much is free ---- */

/* What is advised then is to be enough without it. */
static void blocks_freed_for_a_driver_that_refuses(void) {
    arena = kit_open(GPUPOOL_SOURCE_DEVICE);
    void *block[3];
    for (int i = 0; i < 3; i++) block[i] = get(32 * MIB, kit_stream[0]);
    void *large = get(64 * MIB, kit_stream[0]);
    fake_fail_call("cuMemAlloc", 1, 1, 0);
    gpupool_verdict v = refused(60 * MIB, kit_stream[0], GPUPOOL_CAUSE_DEVICE_FULL);
    CHECK(strstr(v.sentence, "the driver refuses memory for 60.00 MiB") != NULL);
    CHECK_EQ(v.missing_bytes, 60 * MIB);
    CHECK_EQ(v.holders[0].block_bytes, 32 * MIB);
    CHECK(v.holders[0].enough > 1); /* a single one is too small */
    CHECK_EQ(v.holders[1].block_bytes, 64 * MIB);
    CHECK_EQ(v.holders[1].enough, 1);
    put(large, kit_stream[0]);
    large = get(60 * MIB, kit_stream[0]);
    fake_fail_clear();
    put(large, kit_stream[0]);
    for (int i = 0; i < 3; i++) put(block[i], kit_stream[0]);
    kit_close(arena);
}

/* Idle memory would do, but is not to be had where it is needed. */
static void idle_memory_that_cannot_be_moved(void) {
    static const gpupool_cause causes[] = {GPUPOOL_CAUSE_DEVICE_FULL, GPUPOOL_CAUSE_OTHERS};
    for (size_t others = 0; others < 2; others++) {
        fake_other_process(0, others * GIB);
        arena = kit_open(GPUPOOL_SOURCE_MAPPED);
        void *block[8];
        for (int i = 0; i < 8; i++) block[i] = get(2 * MIB, kit_stream[0]);
        for (int i = 0; i < 8; i += 2) put(block[i], kit_stream[0]);
        CHECK_RESULT(gpupool_trim(arena, SIZE_MAX, NULL), GPUPOOL_OK); /* known to be idle */
        fake_fail_call("cuMemMap", 1, 1, CUDA_ERROR_OUT_OF_MEMORY);
        gpupool_verdict v = refused(8 * MIB, kit_stream[0], causes[others]);
        fake_fail_clear();
        CHECK(strstr(v.sentence, "the driver refuses memory for 8.00 MiB") != NULL);
        CHECK_EQ(v.missing_bytes, 8 * MIB);
        fits(arena, 8 * MIB);
        for (int i = 1; i < 8; i += 2) put(block[i], kit_stream[0]);
        kit_close(arena);
    }
}

/* To wait is advised where it brings as much as is asked for, not where a little is pending. */
static void waiting_in_place_of_the_driver(void) {
    static const gpupool_cause causes[] = {GPUPOOL_CAUSE_CAPTURING, GPUPOOL_CAUSE_DEVICE_FULL};
    cudaStream_t capturing;
    cudaGraph_t graph = NULL;
    CHECK_EQ(cudaStreamCreate(&capturing), cudaSuccess);
    for (size_t i = 0; i < 2; i++) {
        arena = kit_open(GPUPOOL_SOURCE_MAPPED);
        void *block[2] = {get(16 * MIB, kit_stream[0]), get(16 * MIB, kit_stream[1])};
        fake_mode(FAKE_STEPPED);
        kit_mark(kit_stream[1], block[1], 16 * MIB, 1);
        put(block[1], kit_stream[1]);
        CHECK_EQ(cudaStreamBeginCapture(capturing, cudaStreamCaptureModeGlobal), cudaSuccess);
        fake_fail_call("cuMemCreate", 1, 1, 0);
        gpupool_verdict v = refused((i ? 40 : 16) * MIB, capturing, causes[i]);
        fake_fail_clear();
        CHECK_EQ(strstr(v.sentence, "the driver refuses") != NULL, i);
        CHECK_EQ(cudaStreamEndCapture(capturing, &graph), cudaSuccess);
        CHECK_EQ(cudaGraphDestroy(graph), cudaSuccess);
        fake_mode(FAKE_EAGER);
        put(block[0], kit_stream[0]);
        kit_close(arena);
    }
    CHECK_EQ(cudaStreamDestroy(capturing), cudaSuccess);
}

/* What a failed growth could not take off its addresses is nobody's to wait for; it is not lost. */
static void memory_that_could_not_be_unmapped(void) {
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 32 * MIB);
    fake_fail_call("cuMemSetAccess", 1, 0, 0);
    fake_fail_call("cuMemUnmap", 1, 1, 0);
    CHECK_RESULT(kit_why(gpupool_alloc(arena, 16 * MIB, kit_stream[0])), GPUPOOL_E_CUDA);
    gpupool_verdict v = would_not_fit(arena, 40 * MIB, GPUPOOL_CAUSE_LIMIT);
    fake_fail_clear();
    CHECK_EQ(v.reserved_bytes, 16 * MIB);
    CHECK_EQ(v.largest_block_bytes + v.pending_bytes, 0);
    CHECK_EQ(v.raise_bytes, 8 * MIB);
    fits(arena, 32 * MIB);
    kit_close(arena);
}

/* ---- more memory than a verdict looks at ---- */

#define LARGE 7
#define PARTS 200000

/* Of the large blocks, side by side, any two neighbours would do: so any five of seven. Where it
   can look at some of the choices only, it does not advise fewer. */
static void choices_among_too_much_memory(void) {
    static void *part[PARTS];
    void *large[LARGE];
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_DEVICE);
    config.limit_bytes = config.chunk_bytes = 320 * MIB;
    arena = kit_create(&config);
    for (int i = 0; i < LARGE; i++) large[i] = get(30 * MIB, kit_stream[0]);
    void *rest = get(100 * MIB, kit_stream[0]);
    gpupool_verdict v = would_not_fit(arena, 60 * MIB, GPUPOOL_CAUSE_LIMIT);
    CHECK_EQ(v.holders[0].block_bytes, 30 * MIB);
    CHECK_EQ(v.holders[0].enough, 5);
    put(rest, kit_stream[0]);
    for (int i = 0; i < PARTS; i++) part[i] = get(512, kit_stream[0]);
    for (int i = 0; i < PARTS; i += 2) put(part[i], kit_stream[0]);
    v = would_not_fit(arena, 60 * MIB, GPUPOOL_CAUSE_FRAGMENTED);
    CHECK_EQ(v.holders[0].block_bytes, 30 * MIB);
    CHECK(v.holders[0].enough > 5 && v.holders[0].enough <= LARGE);
    for (int i = 0; i < LARGE; i++) put(large[i], kit_stream[0]);
    for (int i = 1; i < PARTS; i += 2) put(part[i], kit_stream[0]);
    kit_close(arena);
}
#endif

#if CHECK_FAKE
/* Of more blocks than every choice is tried of, so many are enough wherever they lie. */
static void many_blocks_of_one_size(void) {
    void *blocks[12], *others[2];
    arena = kit_open_limited(GPUPOOL_SOURCE_BYPASS, 25 * MIB);
    others[0] = get(MIB / 2, kit_stream[0]);
    for (size_t i = 0; i < 12; i++) blocks[i] = get(2 * MIB, kit_stream[0]);
    others[1] = get(MIB / 2, kit_stream[0]);
    gpupool_verdict v = would_not_fit(arena, 6 * MIB, GPUPOOL_CAUSE_LIMIT);
    CHECK_EQ(v.holders[0].blocks, 12);
    CHECK_EQ(v.holders[0].enough, 3);
    v = would_not_fit(arena, 4 * MIB + 1, GPUPOOL_CAUSE_LIMIT);
    CHECK_EQ(v.holders[0].enough, 3);
    for (size_t i = 0; i < 2; i++) put(others[i], kit_stream[0]);
    for (size_t i = 0; i < 12; i++) put(blocks[i], kit_stream[0]);
    kit_close(arena);
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 36 * MIB);
    for (size_t i = 0; i < 12; i++) blocks[i] = get(3 * MIB, kit_stream[0]);
    v = would_not_fit(arena, 3 * MIB, GPUPOOL_CAUSE_LIMIT);
    CHECK_EQ(v.holders[0].enough, 1); /* as large as what is asked for */
    v = would_not_fit(arena, 4 * MIB, GPUPOOL_CAUSE_LIMIT);
    CHECK_EQ(v.holders[0].enough, 3); /* each has a piece of its own; one more may be in the way */
    for (size_t i = 0; i < 12; i++) put(blocks[i], kit_stream[0]);
    kit_close(arena);
    for (size_t count = 8; count < 10; count++) {
        arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, count * 2 * MIB);
        for (size_t i = 0; i < count; i++) blocks[i] = get(2 * MIB, kit_stream[0]);
        v = would_not_fit(arena, 4 * MIB, GPUPOOL_CAUSE_LIMIT);
        CHECK_EQ(v.holders[0].enough, count == 8 ? 2 : 3); /* of eight, all choices are tried */
        for (size_t i = 0; i < count; i++) put(blocks[i], kit_stream[0]);
        kit_close(arena);
    }
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_DEVICE);
    config.chunk_bytes = 64 * MIB; /* a chunk each */
    config.limit_bytes = 12 * 64 * MIB;
    arena = kit_create(&config);
    for (size_t i = 0; i < 12; i++) blocks[i] = get(64 * MIB, kit_stream[0]);
    v = would_not_fit(arena, 128 * MIB, GPUPOOL_CAUSE_LIMIT);
    CHECK_EQ(v.holders[0].enough, 2);
    for (size_t i = 3; i < 12; i += 5) put(blocks[i], kit_stream[0]);
    void *large = get(128 * MIB, kit_stream[0]);
    put(large, kit_stream[0]);
    for (size_t i = 0; i < 12; i++)
        if (i % 5 != 3) put(blocks[i], kit_stream[0]);
    kit_close(arena);
}

/* A size stays with a slot while more bytes spoke for it than against it. */
static void a_slot_goes_to_the_size_with_most_bytes(void) {
    static const struct { uint64_t bytes, size, votes; } said[] = {
        {10, 10, 10}, {10, 10, 20}, {14, 10, 6}, {9, 9, 3}, {3, 9, 0}, {4, 4, 4}, {4, 4, 8}};
    gpi_votes ballot;
    memset(&ballot, 0, sizeof ballot);
    for (size_t i = 0; i < KIT_COUNT(said); i++) {
        check_case("vote %zu", i);
        gpi_verdict_vote_in(&ballot, 1, said[i].bytes, 0);
        CHECK_EQ(ballot.sizes[1], said[i].size);
        CHECK_EQ(ballot.votes[1], said[i].votes);
    }
}

/* Three sizes of which none has most of the slot where they meet: each has its own blocks. */
static void sizes_that_meet_in_a_slot(void) {
    static const uint64_t asked[] = {6922, 8142, 2364, 2364};
    gpi_snapshot_run runs[KIT_COUNT(asked)];
    gpi_holding top[GPUPOOL_HOLDERS];
    gpi_scene scene = {.runs = runs, .run_count = KIT_COUNT(asked)};
    memset(runs, 0, sizeof runs);
    for (size_t i = 0; i < KIT_COUNT(asked); i++) {
        runs[i].is_block = 1;
        runs[i].asked_bytes = asked[i];
        CHECK_EQ(gpi_verdict_bucket(asked[i], 0), gpi_verdict_bucket(asked[0], 0));
    }
    gpi_verdict_holders(&scene, top, GPUPOOL_HOLDERS);
    for (size_t i = 0; i < 3; i++) {
        uint64_t size = asked[i == 0 ? 1 : i == 1 ? 0 : 2];
        CHECK_EQ(top[i].shown.block_bytes, size);
        CHECK_EQ(top[i].shown.blocks, i < 2 ? 1 : 2);
        CHECK_EQ(top[i].shown.bytes, i < 2 ? size : 2 * size);
    }
}

/* What lies behind the last run that was copied, and behind the last block that there is room for,
   is left alone. */
static void no_further_than_the_last(void) {
    struct { gpi_holding holding; uint64_t behind; } noted;
    gpi_snapshot_run runs[GPI_SUBSETS + 1];
    gpi_scene scene = {.runs = runs, .run_count = GPI_SUBSETS + 1};
    memset(&noted, 0, sizeof noted);
    memset(runs, 0, sizeof runs);
    noted.holding.shown.block_bytes = 700;
    for (uint64_t i = 0; i <= GPI_SUBSETS; i++) {
        runs[i].state = GPI_SNAPSHOT_LIVE;
        runs[i].is_block = 1;
        runs[i].asked_bytes = 700;
        runs[i].units = 2;
        runs[i].block = 10 + i;
    }
    gpi_verdict_find_blocks(&scene, &noted.holding);
    CHECK_EQ(noted.holding.blocks[GPI_SUBSETS - 1], 10 + GPI_SUBSETS - 1);
    CHECK_EQ(noted.behind, 0);
    memset(noted.holding.blocks, 0, sizeof noted.holding.blocks);
    scene.run_count = 1;
    gpi_verdict_find_blocks(&scene, &noted.holding);
    CHECK_EQ(noted.holding.blocks[0], 10);
    CHECK_EQ(noted.holding.blocks[1], 0);
    CHECK_EQ(gpi_verdict_own_bytes(&scene), 2 * 512);
    gpupool_verdict verdict = {.reserved_bytes = 10 * 512};
    for (int i = 0; i < 2; i++) {
        runs[i].tag = 1;
        runs[i].state = GPI_SNAPSHOT_FREE;
    }
    CHECK_EQ(gpi_verdict_free_bytes(&verdict, &scene), 8 * 512);
}

/* One holder more than a verdict has room for: the biggest are named, and the tag behind them is
   left alone. */
static void no_more_holders_than_there_is_room_for(void) {
    gpi_snapshot_run runs[GPUPOOL_HOLDERS + 1];
    gpi_scene scene = {.runs = runs, .run_count = GPUPOOL_HOLDERS + 1};
    gpupool_verdict verdict = {.cause = GPUPOOL_CAUSE_TOO_LARGE, .tag = 77,
                               .sentence = "as before"};
    memset(runs, 0, sizeof runs);
    for (uint64_t i = 0; i <= GPUPOOL_HOLDERS; i++) {
        runs[i].is_block = 1;
        runs[i].asked_bytes = 700 + i;
    }
    gpi_verdict_name_holders(&verdict, &scene);
    for (uint64_t i = 0; i < GPUPOOL_HOLDERS; i++)
        CHECK_EQ(verdict.holders[i].block_bytes, 700 + GPUPOOL_HOLDERS - i);
    CHECK_EQ(verdict.tag, 77);
    CHECK(strcmp(verdict.sentence, "as before") == 0);
}

/* Where nothing is in the way, and still there is no memory, all of it is missing: not by the limit
   that is set. */
static void nothing_is_in_the_way(void) {
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    gpi_scene scene = {.arena = arena, .units = 1000};
    gpi_lacking lacking = {.is_refused = 1};
    gpupool_verdict verdict = {.limit_bytes = GIB};
    CHECK_EQ(gpi_verdict_choose_cause(&verdict, &scene, &lacking), GPUPOOL_CAUSE_DEVICE_FULL);
    gpi_verdict_set_missing(&verdict, &scene, &lacking);
    CHECK_EQ(verdict.missing_bytes, 1000 * 512);
    CHECK_EQ(verdict.raise_bytes, 0);
    kit_close(arena);
}

/* A chunk of one's own need not be of whole granules, though the device gives these: the limit
   counts what was asked for. What is said to fit is had, and not a unit more. */
static void chunks_of_ones_own_up_to_the_limit(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_CUSTOM);
    void *block[6];
    config.chunk_bytes = 60 * MIB;
    arena = kit_create(&config);
    for (int i = 0; i < 6; i++) block[i] = get(10 * MIB - 512, kit_stream[0]);
    CHECK_EQ(kit_reserved(arena), 60 * MIB);
    for (int i = 0; i < 6; i += 2) put(block[i], kit_stream[0]);
    for (int full = 0; full < 2; full++) {
        size_t limit = full ? GIB : 60 * MIB + 25 * MIB / 2, more = full ? 12 * MIB : 25 * MIB / 2;
        size_t free_bytes, total_bytes;
        check_case("device full: %d", full);
        CHECK_RESULT(gpupool_set_limit(arena, limit), GPUPOOL_OK);
        CHECK_EQ(cudaMemGetInfo(&free_bytes, &total_bytes), cudaSuccess);
        if (full) fake_other_process(0, free_bytes - more);
        gpupool_verdict v = refuses(arena, 15 * MIB + 4096, GPUPOOL_CAUSE_FRAGMENTED);
        CHECK(strstr(v.sentence, full ? "42.00 MiB is free in all" : "42.50 MiB is free in all"));
        CHECK_EQ(v.fits_bytes, more - 512);
        CHECK(!kit_fits(arena, (size_t)v.fits_bytes + 512, NULL));
        fits(arena, (size_t)v.fits_bytes);
        CHECK_RESULT(gpupool_trim(arena, SIZE_MAX, NULL), GPUPOOL_OK);
        CHECK_RESULT(gpupool_trim(arena, 60 * MIB, NULL), GPUPOOL_OK);
    }
    fake_other_process(0, 0);
    for (int i = 1; i < 6; i += 2) put(block[i], kit_stream[0]);
    kit_close(arena);
}

/* Three chunks of 1 MiB that go make one granule and a half: no larger chunk is had of the half. */
static void half_a_granule_is_none(void) {
    size_t free_bytes, total_bytes;
    void *block[4];
    fake_packed(1);
    arena = kit_open(GPUPOOL_SOURCE_CUSTOM);
    for (size_t i = 0; i < 4; i++) {
        CHECK_RESULT(gpupool_set_limit(arena, (i + 1) * MIB), GPUPOOL_OK);
        block[i] = get(MIB - 512, kit_stream[0]);
    }
    CHECK_RESULT(gpupool_set_limit(arena, 0), GPUPOOL_OK);
    CHECK_EQ(kit_stats(arena).chunks_gained, 4);
    CHECK_EQ(cudaMemGetInfo(&free_bytes, &total_bytes), cudaSuccess);
    fake_other_process(0, free_bytes);
    for (int i = 0; i < 3; i++) put(block[i], kit_stream[0]);
    gpupool_verdict v = would_not_fit(arena, 3 * MIB - 512, GPUPOOL_CAUSE_FRAGMENTED);
    CHECK_EQ(v.fits_bytes, 2 * MIB - 512);
    fits(arena, 2 * MIB - 512);
    put(block[3], kit_stream[0]);
    fake_other_process(0, 0);
    kit_close(arena);
}

/* Nor is it had of a chunk of 1 MiB and one of half as much. */
static void three_quarters_of_a_granule_are_none(void) {
    size_t free_bytes, total_bytes;
    void *block[3];
    fake_packed(1);
    arena = kit_open(GPUPOOL_SOURCE_CUSTOM);
    for (size_t i = 0; i < 3; i++) {
        size_t bytes = i == 1 ? MIB / 2 : MIB;
        CHECK_RESULT(gpupool_set_limit(arena, kit_reserved(arena) + bytes), GPUPOOL_OK);
        block[i] = get(bytes - 512, kit_stream[0]);
    }
    CHECK_RESULT(gpupool_set_limit(arena, 0), GPUPOOL_OK);
    CHECK_EQ(kit_stats(arena).chunks_gained, 3);
    CHECK_EQ(cudaMemGetInfo(&free_bytes, &total_bytes), cudaSuccess);
    fake_other_process(0, free_bytes);
    for (int i = 0; i < 2; i++) put(block[i], kit_stream[0]);
    gpupool_verdict v = would_not_fit(arena, 3 * MIB / 2 - 512, GPUPOOL_CAUSE_FRAGMENTED);
    CHECK_EQ(v.fits_bytes, MIB);
    fits(arena, MIB);
    put(block[2], kit_stream[0]);
    fake_other_process(0, 0);
    kit_close(arena);
}

/* A limit may be below what is reserved while work is in flight. Raised, it is to be no longer:
   else memory would be given back that the request may need. */
static void a_limit_below_what_is_reserved(void) {
    void *block[3];
    arena = kit_open(GPUPOOL_SOURCE_DEVICE);
    for (int i = 0; i < 3; i++) {
        CHECK_RESULT(gpupool_set_limit(arena, (i == 2 ? 48 : (size_t)(i + 1) * 12) * MIB),
                     GPUPOOL_OK);
        block[i] = get((i == 2 ? 24 : 12) * MIB, kit_stream[0]);
    }
    CHECK_EQ(kit_reserved(arena), 48 * MIB);
    fake_mode(FAKE_STEPPED);
    for (int i = 0; i < 2; i++) {
        kit_mark(kit_stream[0], block[i], 12 * MIB, 1);
        put(block[i], kit_stream[0]);
    }
    CHECK_RESULT(gpupool_set_limit(arena, 40 * MIB), GPUPOOL_OK);
    fake_mode(FAKE_EAGER);
    CHECK_RESULT(gpupool_wait_all(arena), GPUPOOL_OK);
    CHECK_EQ(kit_reserved(arena), 48 * MIB);
    gpupool_verdict v = would_not_fit(arena, 20 * MIB, GPUPOOL_CAUSE_FRAGMENTED);
    CHECK_EQ(v.raise_bytes, 8 * MIB);
    CHECK_EQ(v.missing_bytes, 4 * MIB);
    raise_as_advised(arena, &v);
    CHECK_EQ(kit_reserved(arena), 48 * MIB);
    fits(arena, 20 * MIB);
    put(block[2], kit_stream[0]);
    kit_close(arena);
}

/* Of many that are stitched, each gives all of its chunks. */
static void many_stitched_blocks(void) {
    enum { CHUNKS = 36, STITCHED = CHUNKS / 4 };
    void *chunk[CHUNKS], *stitched[STITCHED];
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, CHUNKS * 2 * MIB);
    for (int i = 0; i < CHUNKS; i++) chunk[i] = get(2 * MIB, kit_stream[0]);
    for (int i = 0; i < CHUNKS; i += 2) put(chunk[i], kit_stream[0]);
    for (int i = 0; i < STITCHED; i++) stitched[i] = get(4 * MIB, kit_stream[0]);
    CHECK_EQ(kit_stats(arena).stitches, STITCHED);
    gpupool_verdict v = would_not_fit(arena, 8 * MIB, GPUPOOL_CAUSE_LIMIT);
    const gpupool_holder *large = &v.holders[v.holders[0].block_bytes == 2 * MIB];
    CHECK_EQ(large->blocks, STITCHED);
    CHECK_EQ(large->block_bytes, 4 * MIB);
    CHECK_EQ(large->enough, 3); /* as if one lay across chunks */
    for (int i = 0; i < STITCHED; i++) put(stitched[i], kit_stream[0]);
    for (int i = 1; i < CHUNKS; i += 2) put(chunk[i], kit_stream[0]);
    kit_close(arena);
}

/* The largest that free memory makes: where it can be stitched of several pieces, whoever has freed
   them; of the host's only once nobody is at it. */
static void the_largest_block_there_is(void) {
    void *block[4];
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 8 * MIB);
    for (int i = 0; i < 4; i++) block[i] = get(2 * MIB, kit_stream[i]);
    fake_mode(FAKE_STEPPED);
    for (int i = 0; i < 3; i += 2) {
        kit_mark(kit_stream[i], block[i], 2 * MIB, 1);
        put(block[i], kit_stream[i]);
    }
    CHECK_EQ(would_not_fit(arena, 8 * MIB, GPUPOOL_CAUSE_LIMIT).largest_block_bytes, 4 * MIB);
    CHECK_EQ(kit_stats(arena).largest_free_bytes, 2 * MIB);
    for (int i = 1; i < 4; i += 2) put(block[i], kit_stream[i]);
    fake_mode(FAKE_EAGER);
    kit_close(arena);
    arena = kit_open_limited(GPUPOOL_SOURCE_PINNED, MIB);
    block[0] = get(MIB, kit_stream[0]);
    fake_mode(FAKE_STEPPED);
    kit_fill(kit_stream[0], block[0], 64, 1);
    put(block[0], kit_stream[0]);
    CHECK_EQ(would_not_fit(arena, MIB, GPUPOOL_CAUSE_PENDING).largest_block_bytes, 0);
    fake_mode(FAKE_EAGER);
    CHECK_RESULT(gpupool_wait_all(arena), GPUPOOL_OK);
    CHECK_EQ(would_not_fit(arena, 2 * MIB, GPUPOOL_CAUSE_LIMIT).largest_block_bytes, MIB);
    kit_close(arena);
}

/* Free in all, but in no run, and some of it not even free yet. */
static void fragments_not_yet_free(void) {
    void *block[6];
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_DEVICE);
    config.limit_bytes = 64 * MIB; /* and what it leaves for more counts as free */
    config.chunk_bytes = 60 * MIB;
    arena = kit_create(&config);
    for (int i = 0; i < 6; i++) block[i] = get(10 * MIB, kit_stream[0]);
    fake_mode(FAKE_STEPPED);
    put(block[0], kit_stream[0]);
    kit_mark(kit_stream[0], block[2], 64, 1);
    put(block[2], kit_stream[0]);
    gpupool_verdict v = would_not_fit(arena, 15 * MIB, GPUPOOL_CAUSE_FRAGMENTED);
    CHECK(strstr(v.sentence, "24.00 MiB is free in all, but no more than 10.00 MiB in one "
                             "piece, with 20.00 MiB pending: ") != NULL);
    /* the largest that fits is found by trying others: the sentence is of what was asked for */
    for (size_t more = 512; more < 64 * 512; more += 512) {
        v = would_not_fit(arena, 15 * MIB + more, GPUPOOL_CAUSE_FRAGMENTED);
        CHECK_EQ(v.fits_bytes, 10 * MIB);
        CHECK(strstr(v.sentence, "no more than 10.00 MiB in one piece, with") != NULL);
    }
    fake_mode(FAKE_EAGER);
    for (int i = 1; i < 6; i++)
        if (i != 2) put(block[i], kit_stream[0]);
    kit_close(arena);
}

/* However many blocks a stream is at, whether to wait for it is found out once. */
static void a_stream_is_tried_once(void) {
    enum { BLOCKS = 300 };
    void *block[BLOCKS];
    gpupool_verdict verdict;
    gpi_scene scene;
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 64 * MIB);
    for (int i = 0; i < BLOCKS; i++) block[i] = get(64 * KIB, kit_stream[0]);
    void *rest = get(64 * MIB - BLOCKS * 64 * KIB, kit_stream[0]);
    fake_mode(FAKE_STEPPED);
    for (int i = 0; i < BLOCKS; i++) {
        use_on(block[i], kit_stream[1 + i % 2]);
        put(block[i], kit_stream[0]);
    }
    /* of all that use blocks, and of what lies behind no mark: all of the device's work */
    CHECK_EQ(would_not_fit(arena, 8 * MIB, GPUPOOL_CAUSE_PENDING).pending_streams, 0);
    for (int late = 0; late < 2; late++) {
        gpi_request request = {.bytes = 8 * MIB, .units = 8 * MIB / 512, .align_units = 1};
        gpi_siblings siblings = {.reserved_bytes = 0};
        gpi_host_mutex_lock(&arena->growing);
        gpi_verdict_begin(arena, &request, &siblings, &verdict, &scene);
        scene.visits = GPI_VISITS_MOST;
        CHECK(gpi_verdict_wait_would_do(&scene, 0));
        scene.visits = GPI_VISITS_MOST + 1; /* it has taken long enough: none is tried */
        CHECK(!gpi_verdict_wait_would_do(&scene, 0));
        if (!late) scene.visits = 0;
        gpi_verdict_judge(&verdict, &scene);
        gpi_verdict_end(&scene);
        gpi_host_mutex_unlock(&arena->growing);
        if (!late) CHECK(scene.visits < 20 * BLOCKS);
    }
    CHECK_EQ(verdict.pending_streams, 0);
    fake_mode(FAKE_EAGER);
    put(rest, kit_stream[0]);
    kit_close(arena);
}
#endif

int main(void) {
    FAKE_TEST(default_streams_are_named);
    FAKE_TEST(seen_before_the_latest_work);
    FAKE_TEST(two_streams_at_one_block);
    FAKE_TEST(what_was_seen_before_counts_no_more);
    FAKE_TEST(what_was_seen_of_all_counts_no_more);
    FAKE_TEST(blocks_that_the_same_streams_use);
    FAKE_TEST(what_a_graph_keeps_does_not_fit);
    FAKE_TEST(the_biggest_holder_is_of_no_help);
    FAKE_TEST(what_will_be_free_needs_no_freeing);
    FAKE_TEST(the_first_of_many_blocks_is_of_no_help);
    FAKE_TEST(a_holder_of_any_size);
    FAKE_TEST(the_least_raise_for_a_chunk);
    FAKE_TEST(a_small_chunk_is_what_fits);
    FAKE_TEST(an_open_scope_keeps_what_it_freed);
    FAKE_TEST(alone_on_a_full_device);
    FAKE_TEST(what_was_freed_for_all_waits_for_the_device);
    FAKE_TEST(a_graphs_block_beside_one_to_wait_for);
    FAKE_TEST(two_streams_beside_a_graph);
    FAKE_TEST(where_the_device_does_not_say);
    FAKE_TEST(raised_by_as_much_as_is_missing);
    FAKE_TEST(sizes_are_spelled);
    FAKE_TEST(sizes_that_meet_in_a_slot);
    FAKE_TEST(no_further_than_the_last);
    FAKE_TEST(no_more_holders_than_there_is_room_for);
    FAKE_TEST(nothing_is_in_the_way);
    FAKE_TEST(chunks_of_ones_own_up_to_the_limit);
    FAKE_TEST(half_a_granule_is_none);
    FAKE_TEST(three_quarters_of_a_granule_are_none);
    FAKE_TEST(a_limit_below_what_is_reserved);
    FAKE_TEST(many_stitched_blocks);
    FAKE_TEST(the_largest_block_there_is);
    FAKE_TEST(fragments_not_yet_free);
    FAKE_TEST(a_stream_is_tried_once);
    FAKE_TEST(both_are_in_the_way);
    FAKE_TEST(what_is_pending_is_not_missing);
    FAKE_TEST(more_than_all_blocks_hold);
    FAKE_TEST(room_that_is_not_aligned);
    FAKE_TEST(left_over_without_a_pool);
    FAKE_TEST(two_blocks_are_what_is_missing);
    FAKE_TEST(alignments_beyond_the_addresses);
    FAKE_TEST(less_than_a_granule_is_none);
    FAKE_TEST(a_chunk_that_was_not_taken_back);
    FAKE_TEST(managed_memory_beyond_the_device);
    FAKE_TEST(blocks_freed_for_a_driver_that_refuses);
    FAKE_TEST(idle_memory_that_cannot_be_moved);
    FAKE_TEST(waiting_in_place_of_the_driver);
    FAKE_TEST(memory_that_could_not_be_unmapped);
    FAKE_TEST(choices_among_too_much_memory);
    FAKE_TEST(many_blocks_of_one_size);
    FAKE_TEST(a_slot_goes_to_the_size_with_most_bytes);
    return check_finish();
}
