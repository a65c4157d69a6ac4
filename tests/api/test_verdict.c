/* Each cause of running out, and its advice: followed, it helps. Sizes name the holders in one
   build, lines of source in the other. */
// build: sizes -fsanitize=address,undefined
// build: sites -fsanitize=address,undefined -DGPUPOOL_SITES=1
#include "gpupool.h"
#include "verdict_kit.h"

#define BLOCKS ((size_t)6)
static void *block[BLOCKS];

static void fill_arena(gpupool_arena *arena, size_t blocks, size_t bytes) {
    for (size_t i = 0; i < blocks; i++) {
        block[i] = gpupool_alloc(arena, bytes, kit_stream[0]);
        CHECK(block[i] != NULL);
    }
}

static void put(gpupool_arena *arena, void **at) {
    CHECK_RESULT(gpupool_free(arena, *at, kit_stream[0]), GPUPOOL_OK);
    *at = NULL;
    kit_finish(arena);
}

static void empty_arena(gpupool_arena *arena) {
    for (size_t i = 0; i < BLOCKS; i++) put(arena, &block[i]);
    kit_close(arena);
}

/* ---- the limit ---- */

static const gpupool_source sources[] = {GPUPOOL_SOURCE_MAPPED,  GPUPOOL_SOURCE_DEVICE,
                                         GPUPOOL_SOURCE_MANAGED, GPUPOOL_SOURCE_PINNED,
                                         GPUPOOL_SOURCE_CUSTOM,  GPUPOOL_SOURCE_BYPASS};

static void the_limit_raised(void) {
    for (size_t i = 0; i < KIT_COUNT(sources); i++) {
        check_case("source %d", (int)sources[i]);
        gpupool_arena *arena = kit_open_limited(sources[i], 65 * MIB);
        fill_arena(arena, 4, 15 * MIB);
        gpupool_verdict v = refuses(arena, 33 * MIB, GPUPOOL_CAUSE_LIMIT);
        CHECK(strstr(v.sentence, "under the limit of 65.00 MiB") != NULL);
        CHECK(v.raise_bytes == v.missing_bytes && v.pending_streams == 0);
        raise_as_advised(arena, &v);
        fits(arena, 33 * MIB);
        empty_arena(arena);
    }
}

/* Whichever blocks of the holder are freed, so many of them are enough. */
static void any_blocks_freed(gpupool_source source, size_t first) {
    gpupool_arena *arena = kit_open_limited(source, 65 * MIB);
    fill_arena(arena, BLOCKS, 10 * MIB);
    gpupool_verdict v = refuses(arena, 23 * MIB, GPUPOOL_CAUSE_LIMIT);
    CHECK_EQ(v.holders[0].blocks, BLOCKS);
    CHECK_EQ(v.holders[0].bytes, BLOCKS * 10 * MIB);
    CHECK(v.holders[0].enough >= 2 && v.holders[0].enough <= 4);
    CHECK_EQ(v.holders[1].bytes, 0);
    for (size_t i = 0; i < v.holders[0].enough; i++) put(arena, &block[(first + 2 * i) % BLOCKS]);
    fits(arena, 23 * MIB);
    empty_arena(arena);
}

static void the_limit_met_by_freeing(void) {
    for (size_t i = 0; i < KIT_COUNT(sources); i++) {
        /* cudaMalloc has no chunk for parts of others: there, freed blocks need be neighbours */
        if (sources[i] != GPUPOOL_SOURCE_MAPPED && sources[i] != GPUPOOL_SOURCE_BYPASS) continue;
        for (size_t first = 0; first < 2; first++) {
            check_case("source %d, from block %zu", (int)sources[i], first);
            any_blocks_freed(sources[i], first);
        }
    }
}

static int line_of_small;

static void holders_are_named(void) {
    gpupool_arena *arena = kit_open_limited(GPUPOOL_SOURCE_AUTO, 64 * MIB);
    fill_arena(arena, 2, 20 * MIB);
    for (size_t i = 2; i < 5; i++) {
        line_of_small = __LINE__ + 1;
        block[i] = gpupool_alloc(arena, 4 * MIB, kit_stream[i % KIT_STREAMS]); /* one line */
    }
    gpupool_verdict v = refuses(arena, 30 * MIB, GPUPOOL_CAUSE_LIMIT);
    const gpupool_holder *small = &v.holders[1];
    CHECK_EQ(v.holders[0].blocks, 2);
    CHECK_EQ(v.holders[0].bytes, 40 * MIB);
    CHECK_EQ(v.holders[0].enough, 1);
    CHECK_EQ(small->blocks, 3);
    CHECK_EQ(small->bytes, 12 * MIB);
    CHECK_EQ(small->enough, 0); /* all three would not do */
#if GPUPOOL_SITES
    CHECK(small->file && strstr(small->file, "test_verdict.c"));
    CHECK_EQ(small->line, line_of_small);
    CHECK_EQ(small->block_bytes, 0);
    CHECK(strstr(v.sentence, "free 1 of the 2 blocks of test_verdict.c:") != NULL);
#else
    CHECK(small->file == NULL);
    CHECK_EQ(small->block_bytes, 4 * MIB);
    CHECK(strstr(v.sentence, "free 1 of the 2 blocks of 20.00 MiB") != NULL);
#endif
    put(arena, &block[1]);
    fits(arena, 30 * MIB);
    empty_arena(arena);
}

/* Whatever the two sizes are. */
static void the_second_holder_is_not_passed_over(void) {
    gpupool_arena *arena = kit_open_limited(GPUPOOL_SOURCE_AUTO, 64 * MIB);
    gpupool_verdict v;
    fill_arena(arena, 3, 40000);
    for (size_t bytes = 40512; bytes < 40512 + 800 * 32; bytes += 32) {
        check_case("%zu bytes", bytes);
        block[3] = gpupool_alloc(arena, bytes, kit_stream[0]);
        CHECK(!kit_fits(arena, 64 * MIB, &v));
        CHECK_EQ(v.holders[0].bytes, 3 * 40000);
        CHECK_EQ(v.holders[1].bytes, bytes);
        CHECK_EQ(v.holders[2].blocks, 0);
        put(arena, &block[3]);
    }
    empty_arena(arena);
}

/* ---- pieces ---- */

static void fragments_joined(void) {
    static const gpupool_source chunked[] = {GPUPOOL_SOURCE_DEVICE, GPUPOOL_SOURCE_MANAGED,
                                             GPUPOOL_SOURCE_PINNED};
    for (size_t i = 0; i < KIT_COUNT(chunked); i++) {
        for (int way = 0; way < 2; way++) {
            check_case("source %d, way %d", (int)chunked[i], way);
            gpupool_arena_config config = kit_config(chunked[i]);
            config.limit_bytes = 60 * MIB;
            config.chunk_bytes = 60 * MIB;
            gpupool_arena *arena = kit_create(&config);
            fill_arena(arena, BLOCKS, 10 * MIB);
            for (size_t k = 0; k < BLOCKS; k += 2) put(arena, &block[k]);
            gpupool_verdict v = refuses(arena, 15 * MIB, GPUPOOL_CAUSE_FRAGMENTED);
            CHECK(strstr(v.sentence, "30.00 MiB is free in all, but no more than 10.00"));
            CHECK_EQ(v.holders[0].enough, 1);
            if (way == 0) raise_as_advised(arena, &v);
            else put(arena, &block[3]);
            fits(arena, 15 * MIB);
            empty_arena(arena);
        }
    }
}

/* ---- the device ---- */

#if CHECK_FAKE
static const gpupool_source of_device[] = {GPUPOOL_SOURCE_MAPPED, GPUPOOL_SOURCE_DEVICE,
                                           GPUPOOL_SOURCE_BYPASS};

static void more_than_the_device_has(void) {
    for (size_t i = 0; i < KIT_COUNT(of_device); i++) {
        fake_device_memory(0, GIB);
        gpupool_arena *arena = kit_open(of_device[i]);
        gpupool_verdict v = refuses(arena, 3 * GIB, GPUPOOL_CAUSE_TOO_LARGE);
        CHECK_EQ(strcmp(strrchr(v.sentence, ':'), ": ask for less"), 0);
        CHECK(advised_bytes(&v, "which is") <= GIB);
        fake_other_process(0, 2 * MIB);
        would_not_fit(arena, (size_t)v.device_total_bytes, GPUPOOL_CAUSE_OTHERS); /* not more */
        fake_other_process(0, 0);
        fits(arena, (size_t)v.device_free_bytes / (2 * MIB) * (2 * MIB));
        kit_close(arena);
    }
}

static void the_device_full_of_our_blocks(void) {
    for (size_t i = 0; i < KIT_COUNT(of_device); i++) {
        check_case("source %d", (int)of_device[i]);
        fake_device_memory(0, GIB);
        gpupool_arena *arena = kit_open(of_device[i]);
        fill_arena(arena, 4, 240 * MIB);
        gpupool_verdict v = refuses(arena, 200 * MIB, GPUPOOL_CAUSE_DEVICE_FULL);
        CHECK_EQ(v.raise_bytes, 0);
        CHECK_EQ(v.holders[0].enough, 1);
        put(arena, &block[2]);
        fits(arena, 200 * MIB);
        empty_arena(arena);
    }
}

static void the_device_full_of_others(void) {
    for (size_t i = 0; i < KIT_COUNT(of_device); i++) {
        check_case("source %d", (int)of_device[i]);
        fake_device_memory(0, GIB);
        fake_other_process(0, 700 * MIB);
        gpupool_arena *arena = kit_open(of_device[i]);
        fill_arena(arena, 1, 100 * MIB);
        gpupool_verdict v = refuses(arena, 300 * MIB, GPUPOOL_CAUSE_OTHERS);
        size_t held = advised_bytes(&v, "others (processes, libraries, CUDA itself) hold");
        CHECK(held + MIB > v.others_bytes && v.others_bytes >= 700 * MIB);
        size_t back = advised_bytes(&v, "have others free");
        CHECK(back >= v.missing_bytes && back > 0);
        fake_other_process(0, 700 * MIB - back);
        fits(arena, 300 * MIB);
        empty_arena(arena);
        fake_other_process(0, 0);
    }
}

/* The device gives whole granules for a block that is counted as less. */
static void others_give_back_whole_granules(void) {
    size_t free_bytes, total_bytes;
    fake_device_memory(0, GIB);
    gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_BYPASS);
    void *other = kit_alloc(arena, 300 * KIB, kit_stream[0]);
    CHECK_EQ(cudaMemGetInfo(&free_bytes, &total_bytes), cudaSuccess);
    fake_other_process(0, free_bytes - 9 * MIB / 2);
    gpupool_verdict v = refuses(arena, 17 * MIB / 4, GPUPOOL_CAUSE_OTHERS);
    CHECK_EQ(v.holders[0].enough, 0); /* which would make 4.79 MiB, and 6 are wanted */
    fake_other_process(0, free_bytes - 9 * MIB / 2 - advised_bytes(&v, "have others free"));
    fits(arena, 17 * MIB / 4);
    CHECK_RESULT(gpupool_free(arena, other, kit_stream[0]), GPUPOOL_OK);
    kit_close(arena);
}

/* What is less than a granule is there for blocks up to 1 MiB, and for no larger one. */
static void less_than_a_granule_is_left(void) {
    static const struct { size_t left, fits, not; } cases[] = {
        {768 * KIB, 600 * KIB, 800 * KIB}, {7 * MIB / 4, MIB, 3 * MIB / 2}};
    size_t free_bytes, total_bytes;
    fake_device_memory(0, GIB);
    gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_BYPASS);
    CHECK_EQ(cudaMemGetInfo(&free_bytes, &total_bytes), cudaSuccess);
    for (size_t i = 0; i < KIT_COUNT(cases); i++) {
        fake_other_process(0, free_bytes - cases[i].left);
        fits(arena, cases[i].fits);
        gpupool_verdict v = refuses(arena, cases[i].not, GPUPOOL_CAUSE_OTHERS);
        CHECK(strstr(v.sentence, "raise the limit") == NULL); /* there is none */
    }
    fake_other_process(0, 0);
    kit_close(arena);
}

/* Nor does that help those above 1 MiB once blocks are freed: these have to make whole granules. */
static void what_is_left_does_not_add_to_a_granule(void) {
    size_t free_bytes, total_bytes;
    fake_device_memory(0, GIB);
    gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_BYPASS);
    fill_arena(arena, 5, 512 * KIB);
    CHECK_EQ(cudaMemGetInfo(&free_bytes, &total_bytes), cudaSuccess);
    fake_other_process(0, free_bytes - 7 * MIB / 4);
    gpupool_verdict v = refuses(arena, 3 * MIB / 2, GPUPOOL_CAUSE_OTHERS);
    CHECK_EQ(v.holders[0].enough, 4);
    for (size_t i = 0; i < 4; i++) put(arena, &block[i]);
    fits(arena, 3 * MIB / 2);
    empty_arena(arena);
}

/* So it does for a small block whose alignment takes more. */
static void others_give_back_what_alignment_takes(void) {
    size_t free_bytes, total_bytes;
    gpupool_verdict v;
    fake_device_memory(0, GIB);
    gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_BYPASS);
    CHECK_EQ(cudaMemGetInfo(&free_bytes, &total_bytes), cudaSuccess);
    fake_other_process(0, free_bytes - 5 * MIB / 2);
    CHECK(gpupool_alloc_aligned(arena, 300 * KIB, 2 * MIB, kit_stream[0]) == NULL);
    CHECK_RESULT(gpupool_last_verdict(&v), GPUPOOL_OK);
    CHECK(strstr(v.sentence, "driver refuses") == NULL); /* for 2.29 MiB of 2.50, but it has 2 */
    CHECK_EQ(v.missing_bytes, 2 * MIB);
    fake_other_process(0, free_bytes - 5 * MIB / 2 - advised_bytes(&v, "have others free"));
    void *small = gpupool_alloc_aligned(arena, 300 * KIB, 2 * MIB, kit_stream[0]);
    CHECK_RESULT(kit_why(small), GPUPOOL_OK);
    CHECK_RESULT(gpupool_free(arena, small, kit_stream[0]), GPUPOOL_OK);
    kit_close(arena);
}

static void the_driver_refuses_for_no_visible_reason(void) {
    gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    fake_fail_call("cuMemCreate", 1, 1, 0);
    CHECK_RESULT(kit_why(gpupool_alloc(arena, 30 * MIB, kit_stream[0])),
                 GPUPOOL_E_OUT_OF_MEMORY);
    CHECK(strstr(gpupool_last_error(), "the driver refuses") != NULL);
    fake_fail_clear();
    fits(arena, 30 * MIB);
    kit_close(arena);
}

/* To give an idle chunk back, CUDA waits: a request that forbids waits does without, and is told
   so. In a mapped arena nothing waits, and in a BYPASS arena nothing is idle. */
static void idle_chunks_that_only_a_wait_gives_back(void) {
    gpupool_request request = kit_request(7 * MIB, kit_stream[1], GPUPOOL_NO_WAIT);
    for (size_t i = 0; i < KIT_COUNT(sources); i++) {
        gpupool_verdict v;
        int keeps = sources[i] != GPUPOOL_SOURCE_MAPPED && sources[i] != GPUPOOL_SOURCE_BYPASS;
        check_case("source %d", (int)sources[i]);
        gpupool_arena *arena = kit_open_limited(sources[i], 12 * MIB);
        fill_arena(arena, 2, 5 * MIB);
        put(arena, &block[1]);
        CHECK_RESULT(gpupool_wait_all(arena), GPUPOOL_OK);
        void *got = gpupool_alloc_request(arena, &request);
        CHECK_EQ(got == NULL, keeps);
        if (keeps && CHECK_RESULT(gpupool_last_verdict(&v), GPUPOOL_OK)) {
            raise_as_advised(arena, &v);
            got = gpupool_alloc_request(arena, &request);
            CHECK(got != NULL);
        }
        CHECK_RESULT(gpupool_free(arena, got, kit_stream[1]), GPUPOOL_OK);
        empty_arena(arena);
    }
}

/* ---- work in flight ---- */

static int names_stream(const gpupool_verdict *v, cudaStream_t stream) {
    char words[40];
    snprintf(words, sizeof words, "wait for stream %p", (void *)stream);
    CHECK_EQ(v->pending_streams, 1);
    return v->pending_stream == stream && strstr(v->sentence, words) != NULL;
}

/* With several streams about, each free of such size has a fence of its own stream. */
static void know_two_streams(gpupool_arena *arena) {
    put(arena, &block[3]);
    block[3] = kit_alloc(arena, 16 * MIB, kit_stream[1]);
}

/* Chunks that a stream has freed go only once its work is done; stitched, they need not go. */
static void the_stream_of_freed_blocks_waited_for(void) {
    gpupool_arena *arena = kit_open_unstitched(64 * MIB);
    fill_arena(arena, 4, 16 * MIB);
    know_two_streams(arena);
    fake_mode(FAKE_STEPPED);
    for (size_t i = 0; i < 4; i++) kit_mark(kit_stream[i % 2], block[i], 16 * MIB, 1);
    CHECK_RESULT(gpupool_free(arena, block[0], kit_stream[0]), GPUPOOL_OK);
    CHECK_RESULT(gpupool_free(arena, block[2], kit_stream[0]), GPUPOOL_OK);
    CHECK_RESULT(gpupool_free(arena, block[3], kit_stream[1]), GPUPOOL_OK);
    block[0] = block[2] = block[3] = NULL;
    gpupool_verdict v = would_not_fit(arena, 30 * MIB, GPUPOOL_CAUSE_PENDING);
    CHECK(names_stream(&v, kit_stream[0]));
    CHECK(fake_pending(kit_stream[0]) > 0); /* nobody has waited */
    fake_run(kit_stream[0]);
    CHECK_EQ(kit_fits(arena, 30 * MIB, NULL), 1);
    v = would_not_fit(arena, 48 * MIB, GPUPOOL_CAUSE_PENDING);
    CHECK(names_stream(&v, kit_stream[1]));
    fake_run(kit_stream[1]);
    fits(arena, 48 * MIB);
    empty_arena(arena);
    fake_mode(FAKE_EAGER);
}

/* A block is free that another stream may still use. The host waits for that stream; any other
   stream gets the block at once, behind a wait on the device. */
static void the_stream_of_a_recorded_use_waited_for(void) {
    gpupool_request request = kit_request(32 * MIB, kit_stream[2], GPUPOOL_NO_WAIT);
    for (size_t i = 0; i + 1 < KIT_COUNT(sources); i++) {
        int of_host = sources[i] == GPUPOOL_SOURCE_PINNED;
        check_case("source %d", (int)sources[i]);
        gpupool_arena *arena = kit_open_limited(sources[i], 33 * MIB);
        fill_arena(arena, 1, 32 * MIB);
        fake_mode(FAKE_STEPPED);
        kit_mark(kit_stream[3], block[0], 32 * MIB, 1);
        CHECK_RESULT(gpupool_record_stream(arena, block[0], kit_stream[3]), GPUPOOL_OK);
        put(arena, &block[0]);
        fake_run(kit_stream[0]);
        if (of_host) {
            gpupool_verdict v = would_not_fit(arena, 32 * MIB, GPUPOOL_CAUSE_PENDING);
            CHECK(names_stream(&v, kit_stream[3]));
            fake_run(kit_stream[3]);
        }
        CHECK(kit_fits(arena, 32 * MIB, NULL));
        CHECK((block[0] = gpupool_alloc_request(arena, &request)) != NULL);
        CHECK_EQ(fake_pending(kit_stream[3]) > 0, !of_host);
        put(arena, &block[0]);
        fake_run_all();
        empty_arena(arena);
        fake_mode(FAKE_EAGER);
    }
}

static void several_streams_waited_for(void) {
    gpupool_arena *arena = kit_open_unstitched(48 * MIB);
    for (size_t i = 0; i < 3; i++) block[i] = kit_alloc(arena, 16 * MIB, kit_stream[i]);
    fake_mode(FAKE_STEPPED);
    for (size_t i = 0; i < 3; i++) {
        kit_mark(kit_stream[i], block[i], 16 * MIB, 1);
        CHECK_RESULT(gpupool_free(arena, block[i], kit_stream[i]), GPUPOOL_OK);
        block[i] = NULL;
    }
    gpupool_verdict v = would_not_fit(arena, 40 * MIB, GPUPOOL_CAUSE_PENDING);
    CHECK_EQ(v.pending_streams, 3);
    CHECK(v.pending_stream == NULL && strstr(v.sentence, "the work in flight on 3 streams"));
    fake_run_all();
    fits(arena, 40 * MIB);
    empty_arena(arena);
    fake_mode(FAKE_EAGER);
}

/* Where it may be stitched, the device waits for them, and nobody else need. */
static void several_streams_that_the_device_waits_for(void) {
    gpupool_arena *arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 48 * MIB);
    for (size_t i = 0; i < 3; i++) block[i] = kit_alloc(arena, 16 * MIB, kit_stream[i]);
    fake_mode(FAKE_STEPPED);
    for (size_t i = 0; i < 3; i++) {
        kit_mark(kit_stream[i], block[i], 16 * MIB, 1);
        CHECK_RESULT(gpupool_free(arena, block[i], kit_stream[i]), GPUPOOL_OK);
        block[i] = NULL;
    }
    fits(arena, 40 * MIB);
    CHECK_EQ(kit_stats(arena).host_syncs, 0);
    would_not_fit(arena, 48 * MIB + 1, GPUPOOL_CAUSE_LIMIT);
    empty_arena(arena);
    fake_mode(FAKE_EAGER);
}

/* One stream's memory beside another's is one piece only once both are done: the device waits for
   either, but not for both at once. */
static void two_streams_side_by_side(void) {
    gpupool_request request = kit_request(20 * MIB, kit_stream[3], GPUPOOL_NO_WAIT);
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
    config.limit_bytes = config.chunk_bytes = config.reserve_bytes = 48 * MIB;
    gpupool_arena *arena = kit_create(&config);
    for (size_t i = 0; i < 4; i++) block[i] = kit_alloc(arena, 12 * MIB, kit_stream[i]);
    fake_mode(FAKE_STEPPED);
    for (size_t i = 1; i < 3; i++) {
        kit_mark(kit_stream[i], block[i], 12 * MIB, 1);
        CHECK_RESULT(gpupool_free(arena, block[i], kit_stream[i]), GPUPOOL_OK);
        block[i] = NULL;
    }
    would_not_fit(arena, 20 * MIB, GPUPOOL_CAUSE_PENDING);
    would_not_fit(arena, 12 * MIB + 1, GPUPOOL_CAUSE_PENDING);
    CHECK(gpupool_alloc_request(arena, &request) == NULL);
    fits(arena, 12 * MIB);
    fake_run_all();
    fits(arena, 20 * MIB);
    empty_arena(arena);
    fake_mode(FAKE_EAGER);
}

/* The start of a chunk, of which small blocks had a part, and the end of another are enough for a
   stitch, behind a wait of the device. A tag keeps the small block out of caches. */
static void a_piece_beginning_small(int is_capturing) {
    cudaGraph_t graph = NULL;
    gpupool_request small = kit_request(4 * KIB, kit_stream[1], 0);
    gpupool_request large = kit_request(3 * MIB, kit_stream[3], GPUPOOL_NO_WAIT);
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
    config.chunk_bytes = 4 * MIB;
    config.limit_bytes = config.reserve_bytes = 8 * MIB;
    gpupool_arena *arena = kit_create(&config);
    CHECK_RESULT(gpupool_tag(arena, "small", NULL, &small.tag), GPUPOOL_OK);
    block[0] = kit_alloc(arena, 2 * MIB, kit_stream[0]);
    block[1] = kit_alloc(arena, 2 * MIB, kit_stream[1]);
    block[2] = gpupool_alloc_request(arena, &small);
    block[3] = kit_alloc(arena, 2 * MIB, kit_stream[0]);
    fake_mode(FAKE_STEPPED);
    for (size_t i = 3; i-- > 1;) {
        kit_mark(kit_stream[1], block[i], 4 * KIB, 1);
        CHECK_RESULT(gpupool_free(arena, block[i], kit_stream[1]), GPUPOOL_OK);
        block[i] = NULL;
    }
    if (is_capturing) {
        CHECK_EQ(cudaStreamBeginCapture(kit_stream[3], cudaStreamCaptureModeRelaxed), cudaSuccess);
        CHECK_RESULT(kit_why(gpupool_alloc_request(arena, &large)), GPUPOOL_E_OUT_OF_MEMORY);
        CHECK_EQ(cudaStreamEndCapture(kit_stream[3], &graph), cudaSuccess);
        CHECK_EQ(cudaGraphDestroy(graph), cudaSuccess);
    } else {
        CHECK(kit_fits(arena, large.bytes, NULL));
        block[1] = gpupool_alloc_request(arena, &large);
        CHECK(block[1] != NULL);
    }
    fake_run_all();
    empty_arena(arena);
    fake_mode(FAKE_EAGER);
}

static void a_piece_that_begins_with_small_blocks(void) {
    a_piece_beginning_small(0);
    a_piece_beginning_small(1);
}

/* A capturing stream cannot wait; it can have the memory once the work is done. */
static void a_capture_in_the_way(void) {
    cudaGraph_t graph = NULL;
    cudaStream_t capturing;
    gpupool_verdict v;
    CHECK_EQ(cudaStreamCreate(&capturing), cudaSuccess);
    gpupool_arena *arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 32 * MIB);
    for (size_t i = 0; i < 2; i++) block[i] = kit_alloc(arena, 16 * MIB, kit_stream[i]);
    fake_mode(FAKE_STEPPED);
    kit_mark(kit_stream[1], block[0], 16 * MIB, 1);
    CHECK_RESULT(gpupool_free(arena, block[0], kit_stream[1]), GPUPOOL_OK);
    block[0] = NULL;
    CHECK_EQ(cudaStreamBeginCapture(capturing, cudaStreamCaptureModeGlobal), cudaSuccess);
    CHECK_RESULT(kit_why(gpupool_alloc(arena, 16 * MIB, capturing)), GPUPOOL_E_OUT_OF_MEMORY);
    CHECK_RESULT(gpupool_last_verdict(&v), GPUPOOL_OK);
    CHECK_EQ(v.cause, GPUPOOL_CAUSE_CAPTURING);
    CHECK_EQ(v.raise_bytes, 16 * MIB);
    CHECK_EQ(v.pending_streams, 1);
    CHECK(v.pending_stream == kit_stream[1]);
    CHECK(strstr(v.sentence, "before the capture begins, allocate it, or wait for stream"));
    fake_run(kit_stream[1]);
    block[0] = kit_alloc(arena, 16 * MIB, capturing); /* the capture was not lost */
    CHECK_EQ(cudaStreamEndCapture(capturing, &graph), cudaSuccess);
    CHECK_EQ(cudaGraphDestroy(graph), cudaSuccess);
    empty_arena(arena);
    fake_mode(FAKE_EAGER);
    CHECK_EQ(cudaStreamDestroy(capturing), cudaSuccess);
}

/* What a graph keeps is no advice: nobody else gets it before the release. */
static void memory_that_a_graph_keeps(void) {
    gpupool_capture *scope;
    gpupool_arena *arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 32 * MIB);
    CHECK_RESULT(gpupool_begin_capture(arena, kit_stream[1], &scope), GPUPOOL_OK);
    void *kept = kit_alloc(arena, 20 * MIB, kit_stream[1]);
    CHECK_RESULT(gpupool_free(arena, kept, kit_stream[1]), GPUPOOL_OK);
    CHECK_RESULT(gpupool_end_capture(scope), GPUPOOL_OK);
    gpupool_verdict v = refuses(arena, 24 * MIB, GPUPOOL_CAUSE_LIMIT);
    raise_as_advised(arena, &v);
    fits(arena, 24 * MIB);
    CHECK_RESULT(gpupool_set_limit(arena, 32 * MIB), GPUPOOL_OK);
    v = refuses(arena, 16 * MIB, GPUPOOL_CAUSE_LIMIT); /* nor is it free in pieces */
    CHECK_EQ(v.kept_bytes, 20 * MIB);
    CHECK(strstr(v.sentence, "; graphs keep 20.00 MiB that they freed: ") != NULL);
    CHECK_RESULT(gpupool_release_capture(scope), GPUPOOL_OK);
    kit_close(arena);
}

/* Nor is it advised to free what a graph has: that comes back with the release only. */
static void blocks_that_a_graph_has(void) {
    gpupool_capture *scope;
    for (int i = 0; i < 2; i++) {
        gpupool_source source = i ? GPUPOOL_SOURCE_DEVICE : GPUPOOL_SOURCE_MAPPED;
        gpupool_arena *arena = kit_open_limited(source, 32 * MIB);
        CHECK_RESULT(gpupool_begin_capture(arena, kit_stream[1], &scope), GPUPOOL_OK);
        for (int k = 0; k < 10; k++) kit_alloc(arena, 2 * MIB, kit_stream[1]);
        CHECK_RESULT(gpupool_end_capture(scope), GPUPOOL_OK);
        void *own = gpupool_alloc(arena, 6 * MIB, kit_stream[0]);
        gpupool_verdict v = refuses(arena, 16 * MIB, GPUPOOL_CAUSE_LIMIT);
        CHECK(strstr(v.sentence, "free") == NULL);
        v = refuses(arena, 10 * MIB, GPUPOOL_CAUSE_LIMIT);
        CHECK_EQ(v.holders[0].blocks, 10);
        CHECK_EQ(v.holders[0].enough, 0);
        CHECK_EQ(v.holders[1].enough, 1);
        CHECK(strstr(v.sentence, ", or free the block of ") != NULL);
        CHECK_RESULT(gpupool_free(arena, own, kit_stream[0]), GPUPOOL_OK);
        fits(arena, 10 * MIB);
        if (source == GPUPOOL_SOURCE_MAPPED) {
            void *one = gpupool_alloc(arena, 6 * MIB, kit_stream[0]);
            void *other = gpupool_alloc(arena, 5 * MIB, kit_stream[0]);
            v = refuses(arena, 10 * MIB, GPUPOOL_CAUSE_LIMIT); /* neither alone would do */
            CHECK(strstr(v.sentence, " of what blocks outside of graphs hold") != NULL);
            CHECK_RESULT(gpupool_free(arena, one, kit_stream[0]), GPUPOOL_OK);
            CHECK_RESULT(gpupool_free(arena, other, kit_stream[0]), GPUPOOL_OK);
            fits(arena, 10 * MIB);
        }
        CHECK_RESULT(gpupool_release_capture(scope), GPUPOOL_OK);
        kit_close(arena);
    }
}

/* Of many blocks it may be the graph's that are freed, which would win nothing. */
static void many_blocks_of_which_a_graph_has_one(void) {
    gpupool_arena *arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 64 * MIB);
    gpupool_capture *scope;
    void *own[11];
    CHECK_RESULT(gpupool_begin_capture(arena, kit_stream[1], &scope), GPUPOOL_OK);
    kit_alloc(arena, 2 * MIB, kit_stream[1]);
    CHECK_RESULT(gpupool_end_capture(scope), GPUPOOL_OK);
    for (int i = 0; i < 11; i++) own[i] = kit_alloc(arena, 2 * MIB, kit_stream[0]);
    gpupool_verdict v = refuses(arena, 44 * MIB, GPUPOOL_CAUSE_LIMIT);
    CHECK_EQ(v.holders[0].blocks, 12);
    CHECK_EQ(v.holders[0].enough, 12);
    CHECK_RESULT(gpupool_set_limit(arena, (24 + 44) * MIB - 512), GPUPOOL_OK);
    v = refuses(arena, 44 * MIB, GPUPOOL_CAUSE_LIMIT); /* for want of a unit */
    CHECK_EQ(v.holders[0].enough, 12);
    for (int i = 0; i < 11; i++)
        CHECK_RESULT(gpupool_free(arena, own[i], kit_stream[0]), GPUPOOL_OK);
    CHECK_RESULT(gpupool_release_capture(scope), GPUPOOL_OK);
    kit_close(arena);
}
#endif

int main(void) {
    ARENA_TEST(the_limit_raised);
    ARENA_TEST(the_limit_met_by_freeing);
    ARENA_TEST(holders_are_named);
    ARENA_TEST(the_second_holder_is_not_passed_over);
    ARENA_TEST(fragments_joined);
    FAKE_TEST(more_than_the_device_has);
    FAKE_TEST(the_device_full_of_our_blocks);
    FAKE_TEST(the_device_full_of_others);
    FAKE_TEST(others_give_back_whole_granules);
    FAKE_TEST(less_than_a_granule_is_left);
    FAKE_TEST(what_is_left_does_not_add_to_a_granule);
    FAKE_TEST(others_give_back_what_alignment_takes);
    FAKE_TEST(the_driver_refuses_for_no_visible_reason);
    FAKE_TEST(idle_chunks_that_only_a_wait_gives_back);
    FAKE_TEST(the_stream_of_freed_blocks_waited_for);
    FAKE_TEST(the_stream_of_a_recorded_use_waited_for);
    FAKE_TEST(several_streams_waited_for);
    FAKE_TEST(several_streams_that_the_device_waits_for);
    FAKE_TEST(two_streams_side_by_side);
    FAKE_TEST(a_piece_that_begins_with_small_blocks);
    FAKE_TEST(a_capture_in_the_way);
    FAKE_TEST(memory_that_a_graph_keeps);
    FAKE_TEST(blocks_that_a_graph_has);
    FAKE_TEST(many_blocks_of_which_a_graph_has_one);
    return check_finish();
}
