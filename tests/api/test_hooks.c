/* config.on_map and config.on_unmap: what is registered once stays right for as long as it is
   mapped, nothing is handed out before it is registered, and no lock is held meanwhile. */
// build: plain -O1
// build: check2 -O1 -DGPUPOOL_CHECK=2 -DSTEPS=2000 -DEVERY=5
// build: asan -fsanitize=address,undefined -DSTEPS=3000 -DEVERY=5
// build: thread -fsanitize=thread -DSTEPS=2000 -DEVERY=25
#define _POSIX_C_SOURCE 200809L
#include "gpupool.h"
#include "registry_kit.h"

#if CHECK_FAKE

#ifndef STEPS
#define STEPS 10000
#endif

static gpupool_arena *arena;

static void open_registered(gpupool_source source, size_t limit) {
    gpupool_arena_config config = registry_config(source, limit);
    arena = kit_create(&config);
}

static void close_registered(void) {
    registry_verify();
    kit_close(arena);
    CHECK_EQ(known.count, 0);
    CHECK_EQ(known.told, known.gone);
    registry_clear();
}

/* ---- everything is told ---- */

static void chunks_and_stitches_are_told(void) {
    void *block[16], *large;
    open_registered(GPUPOOL_SOURCE_MAPPED, 64 * MIB);
    for (int i = 0; i < 10; i++) {
        block[i] = kit_alloc(arena, 6 * MIB, kit_stream[0]);
        CHECK(registry_covers(block[i], 6 * MIB));
    }
    for (int i = 0; i < 10; i += 2)
        CHECK_RESULT(gpupool_free(arena, block[i], kit_stream[0]), GPUPOOL_OK);
    large = kit_alloc(arena, 20 * MIB, kit_stream[0]);
    CHECK_EQ(kit_stats(arena).stitches, 1);
    CHECK(registry_covers(large, 20 * MIB));
    CHECK_EQ(known.count, kit_stats(arena).chunks_gained + 1);
    registry_verify();
    CHECK_RESULT(gpupool_free(arena, large, kit_stream[0]), GPUPOOL_OK);
    for (int i = 1; i < 10; i += 2)
        CHECK_RESULT(gpupool_free(arena, block[i], kit_stream[0]), GPUPOOL_OK);
    CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
    CHECK_EQ(known.count, 0);
    close_registered();
}

static void chunks_of_every_source_are_told(void) {
    for (size_t s = 0; s < KIT_SOURCES; s++) {
        void *block[4];
        check_case("source %s", kit_sources[s].name);
        open_registered(kit_sources[s].source, 0);
        for (int i = 0; i < 4; i++) {
            block[i] = kit_alloc(arena, (size_t)(3 + i) * MIB, kit_stream[0]);
            CHECK(registry_covers(block[i], (size_t)(3 + i) * MIB));
        }
        for (int i = 0; i < 4; i++)
            CHECK_RESULT(gpupool_free(arena, block[i], kit_stream[0]), GPUPOOL_OK);
        close_registered();
    }
    check_case(" ");
}

static void memory_that_is_reserved_at_once_is_told(void) {
    gpupool_arena_config config = registry_config(GPUPOOL_SOURCE_MAPPED, 0);
    gpupool_arena *none;
    config.reserve_bytes = 100 * MIB;
    config.chunk_bytes = 10 * MIB;
    arena = kit_create(&config);
    CHECK_EQ(known.count, 10);
    close_registered();
    registry_config(GPUPOOL_SOURCE_MAPPED, 0);
    known.refuse_at = 4;
    CHECK_RESULT(gpupool_arena_create(&none, &config), GPUPOOL_E_CALLBACK);
    CHECK_EQ(known.count, 0);
    CHECK_EQ(known.told, 3);
    CHECK_EQ(fake_mappings(), 0);
    registry_clear();
}

/* ---- a refusal undoes the growth ---- */

/* A tag whose reserve is refused is none: its chunks go, and the next one has its number. */
static void a_refused_reserve_takes_the_tag_with_it(void) {
    gpupool_arena_config config = registry_config(GPUPOOL_SOURCE_MAPPED, 0);
    gpupool_tag_config reserves;
    int tag = 0;
    memset(&reserves, 0, sizeof reserves);
    reserves.reserve_bytes = 20 * MIB;
    config.chunk_bytes = 4 * MIB;
    arena = kit_create(&config);
    known.refuse_at = 3;
    CHECK_RESULT(gpupool_tag(arena, "refused", &reserves, &tag), GPUPOOL_E_CALLBACK);
    CHECK_EQ(kit_reserved(arena), 0);
    CHECK_RESULT(gpupool_tag(arena, "next", &reserves, &tag), GPUPOOL_OK);
    CHECK_EQ(tag, 1);
    CHECK_EQ(kit_reserved(arena), 20 * MIB);
    close_registered();
}

static void a_refused_chunk_takes_the_growth_with_it(void) {
    gpupool_source sources[] = {GPUPOOL_SOURCE_MAPPED, GPUPOOL_SOURCE_DEVICE, GPUPOOL_SOURCE_PINNED,
                                GPUPOOL_SOURCE_CUSTOM, GPUPOOL_SOURCE_BYPASS};
    for (size_t s = 0; s < KIT_COUNT(sources); s++)
        for (int nth = 1; nth <= 10; nth++) {
            gpupool_arena_config config = registry_config(sources[s], 0);
            size_t reserved, count;
            void *first, *block;
            check_case("source %d, call %d", (int)sources[s], nth);
            config.chunk_bytes = 2 * MIB;
            arena = kit_create(&config);
            first = kit_alloc(arena, 3 * MIB, kit_stream[0]);
            reserved = kit_reserved(arena);
            count = known.count;
            known.refuse_at = nth;
            block = gpupool_alloc(arena, 20 * MIB, kit_stream[0]);
            if (known.refused) {
                CHECK(!block);
                CHECK_EQ(gpupool_last_result(), GPUPOOL_E_CALLBACK);
                CHECK(strstr(gpupool_last_error(), "on_map"));
                CHECK_EQ(kit_reserved(arena), reserved);
                CHECK_EQ(known.count, count);
                CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
                block = kit_alloc(arena, 20 * MIB, kit_stream[0]);
            }
            known.refuse_at = 0;
            CHECK(registry_covers(block, 20 * MIB));
            CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
            CHECK_RESULT(gpupool_free(arena, first, kit_stream[0]), GPUPOOL_OK);
            close_registered();
        }
    check_case(" ");
}

/* What then cannot be unmapped is given back later; the refusal is the error all the same. */
static void a_refused_growth_that_is_not_unmapped(void) {
    gpupool_arena_config config = registry_config(GPUPOOL_SOURCE_MAPPED, 0);
    config.chunk_bytes = 2 * MIB;
    arena = kit_create(&config);
    known.refuse_at = 3;
    fake_fail_call("cuMemUnmap", 2, 0, 0);
    CHECK(!gpupool_alloc(arena, 20 * MIB, kit_stream[0]));
    CHECK_EQ(fake_fail_fired(), 1);
    fake_fail_clear();
    CHECK_EQ(gpupool_last_result(), GPUPOOL_E_CALLBACK);
    CHECK(strstr(gpupool_last_error(), "on_map") != NULL);
    CHECK_EQ(known.count, 0);
    CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
    CHECK_EQ(kit_reserved(arena), 0);
    close_registered();
}

static void a_refused_stitch_is_unmapped(void) {
    void *block[16], *large;
    long mappings;
    open_registered(GPUPOOL_SOURCE_MAPPED, 60 * MIB);
    for (int i = 0; i < 10; i++) block[i] = kit_alloc(arena, 6 * MIB, kit_stream[0]);
    for (int i = 0; i < 10; i += 2)
        CHECK_RESULT(gpupool_free(arena, block[i], kit_stream[0]), GPUPOOL_OK);
    mappings = fake_mappings();
    known.refuse_at = 1;
    CHECK(!gpupool_alloc(arena, 20 * MIB, kit_stream[0]));
    CHECK_EQ(gpupool_last_result(), GPUPOOL_E_CALLBACK);
    CHECK_EQ(fake_mappings(), mappings);
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    large = kit_alloc(arena, 20 * MIB, kit_stream[0]);
    CHECK(registry_covers(large, 20 * MIB));
    CHECK_RESULT(gpupool_free(arena, large, kit_stream[0]), GPUPOOL_OK);
    for (int i = 1; i < 10; i += 2)
        CHECK_RESULT(gpupool_free(arena, block[i], kit_stream[0]), GPUPOOL_OK);
    close_registered();
}

/* Nor does CUDA take it back: the failure is still the refusal, and the program hears of it no
   more. */
static void a_refused_chunk_that_stays(void) {
    void *block;
    open_registered(GPUPOOL_SOURCE_DEVICE, 0);
    known.refuse_at = 1;
    fake_fail_call("cuMemFree", 1, 1, 0);
    CHECK_RESULT(kit_why(gpupool_alloc(arena, 8 * MIB, kit_stream[0])), GPUPOOL_E_CALLBACK);
    CHECK(strstr(gpupool_last_error(), "on_map"));
    fake_fail_clear();
    size_t reserved = kit_reserved(arena);
    CHECK(reserved > 0);
    block = kit_alloc(arena, 8 * MIB, kit_stream[0]);
    CHECK_EQ(kit_reserved(arena), reserved);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
    CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
    CHECK_EQ(known.told, 0);
    CHECK_EQ(known.gone, 0);
    close_registered();
}

/* The same with a stitch, which is unmapped when CUDA does it. */
static void a_refused_stitch_that_stays(void) {
    void *block[10];
    open_registered(GPUPOOL_SOURCE_MAPPED, 60 * MIB);
    for (int i = 0; i < 10; i++) block[i] = kit_alloc(arena, 6 * MIB, kit_stream[0]);
    for (int i = 0; i < 10; i += 2)
        CHECK_RESULT(gpupool_free(arena, block[i], kit_stream[0]), GPUPOOL_OK);
    long mappings = fake_mappings(), told = known.told;
    known.refuse_at = 1;
    fake_fail_call("cuMemUnmap", 1, 1, 0);
    CHECK_RESULT(kit_why(gpupool_alloc(arena, 20 * MIB, kit_stream[0])), GPUPOOL_E_CALLBACK);
    CHECK(strstr(gpupool_last_error(), "on_map"));
    fake_fail_clear();
    CHECK(fake_mappings() > mappings);
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    CHECK_EQ(known.told, told);
    CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
    CHECK_EQ(fake_mappings(), known.count);
    for (int i = 1; i < 10; i += 2)
        CHECK_RESULT(gpupool_free(arena, block[i], kit_stream[0]), GPUPOOL_OK);
    close_registered();
}

/* Some chunks are free, and two more are wanted: the second one is refused. */
static void a_refused_chunk_of_a_stitch(void) {
    gpupool_arena_config config = registry_config(GPUPOOL_SOURCE_MAPPED, 12 * 2 * MIB);
    void *block[10], *large;
    config.chunk_bytes = 2 * MIB;
    arena = kit_create(&config);
    for (int i = 0; i < 10; i++) block[i] = kit_alloc(arena, 2 * MIB, kit_stream[0]);
    for (int i = 0; i < 10; i += 2)
        CHECK_RESULT(gpupool_free(arena, block[i], kit_stream[0]), GPUPOOL_OK);
    size_t reserved = kit_reserved(arena), count = known.count;
    known.refuse_at = 2;
    CHECK_RESULT(kit_why(gpupool_alloc(arena, 14 * MIB, kit_stream[0])), GPUPOOL_E_CALLBACK);
    CHECK_EQ(known.refused, 1);
    CHECK_EQ(kit_reserved(arena), reserved);
    CHECK_EQ(known.count, count);
    CHECK_EQ(kit_stats(arena).stitches, 0);
    large = kit_alloc(arena, 14 * MIB, kit_stream[0]);
    CHECK_EQ(kit_stats(arena).stitches, 1);
    CHECK(registry_covers(large, 14 * MIB));
    CHECK_RESULT(gpupool_free(arena, large, kit_stream[0]), GPUPOOL_OK);
    for (int i = 1; i < 10; i += 2)
        CHECK_RESULT(gpupool_free(arena, block[i], kit_stream[0]), GPUPOOL_OK);
    close_registered();
}

/* ---- nothing is stale, whatever happens ---- */

typedef struct held {
    void *at;
    size_t bytes;
    int stream;
} held;

static size_t draw(uint64_t *random) {
    size_t bytes = (size_t)512 << check_below(random, 17);
    return bytes + check_below(random, bytes);
}

static void one_step(uint64_t *random, held *block, size_t count) {
    held *one = &block[check_below(random, count)];
    if (one->at) {
        CHECK(registry_covers(one->at, one->bytes));
        kit_expect_mark(kit_stream[one->stream], one->at, one->bytes, (int)(one->bytes % 251));
        CHECK_RESULT(gpupool_free(arena, one->at, kit_stream[one->stream]), GPUPOOL_OK);
        one->at = NULL;
    } else {
        one->bytes = draw(random);
        one->stream = (int)check_below(random, KIT_STREAMS);
        one->at = gpupool_alloc(arena, one->bytes, kit_stream[one->stream]);
        if (!one->at) return;
        CHECK(registry_covers(one->at, one->bytes));
        kit_mark(kit_stream[one->stream], one->at, one->bytes, (int)(one->bytes % 251));
    }
}

static void random_steps(long steps, uint64_t seed, int refuse) {
    enum { HELD = 64 };
    held block[HELD] = {{NULL, 0, 0}};
    uint64_t random = seed;
    for (long i = 0; i < steps; i++) {
        if (refuse && check_below(&random, 50) == 0)
            known.refuse_at = 1 + (long)check_below(&random, 3);
        one_step(&random, block, HELD);
        if (check_below(&random, 200) == 0)
            CHECK_RESULT(gpupool_trim(arena, check_below(&random, 400) * MIB, NULL), GPUPOOL_OK);
        if (check_below(&random, 200) == 0)
            CHECK_RESULT(gpupool_set_limit(arena, (200 + check_below(&random, 300)) * MIB),
                         GPUPOOL_OK);
        if (i % 64 == 0) registry_verify();
        if (i % 8 == 0) fake_step(kit_stream[check_below(&random, KIT_STREAMS)]);
    }
    known.refuse_at = 0;
    for (int i = 0; i < HELD; i++)
        if (block[i].at)
            CHECK_RESULT(gpupool_free(arena, block[i].at, kit_stream[block[i].stream]), GPUPOOL_OK);
}

static void registrations_are_never_stale(void) {
    for (int mode = 0; mode < 2; mode++)
        for (int refuse = 0; refuse < 2; refuse++) {
            check_case("mode %d, refusals %d", mode, refuse);
            fake_mode(mode ? FAKE_STEPPED : FAKE_EAGER);
            open_registered(GPUPOOL_SOURCE_MAPPED, 400 * MIB);
            random_steps(STEPS, 7 + (uint64_t)mode, refuse);
            CHECK(kit_stats(arena).stitches > 10);
            fake_run_all();
            close_registered();
        }
    check_case(" ");
}

/* Each CUDA call in turn: what CUDA has not taken back is not handed out again unregistered. */
static void registrations_beside_calls_that_fail(void) {
    for (long nth = 1; nth < 200; nth += EVERY) {
        uint64_t random = (uint64_t)nth;
        held block[32] = {{NULL, 0, 0}};
        check_case("call %ld", nth);
        open_registered(GPUPOOL_SOURCE_MAPPED, 200 * MIB);
        fake_fail_nth(nth, 0);
        for (int i = 0; i < 150; i++) {
            one_step(&random, block, 32);
            if (i % 50 == 49) gpupool_trim(arena, 0, NULL);
        }
        fake_fail_clear();
        registry_verify();
        for (int i = 0; i < 32; i++)
            if (block[i].at)
                CHECK_RESULT(gpupool_free(arena, block[i].at, kit_stream[block[i].stream]),
                             GPUPOOL_OK);
        cudaGetLastError();
        kit_capture_globally();
        close_registered();
    }
    check_case(" ");
}

/* The program has given its registration up by then: the memory is no block's any more. */
static void what_cuda_does_not_unmap_is_nobodys(void) {
    for (int stitched = 0; stitched < 2; stitched++) {
        void *block[10], *large = NULL;
        check_case("stitched %d", stitched);
        open_registered(GPUPOOL_SOURCE_MAPPED, 60 * MIB);
        for (int i = 0; i < 10; i++) block[i] = kit_alloc(arena, 6 * MIB, kit_stream[0]);
        for (int i = 0; i < 10; i += 2)
            CHECK_RESULT(gpupool_free(arena, block[i], kit_stream[0]), GPUPOOL_OK);
        if (stitched) {
            large = kit_alloc(arena, 20 * MIB, kit_stream[0]);
            CHECK_RESULT(gpupool_free(arena, large, kit_stream[0]), GPUPOOL_OK);
        }
        fake_fail_call("cuMemUnmap", 1, 1, 0);
        CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_E_CUDA);
        CHECK_EQ(known.gone, 1);
        fake_fail_clear();
        if (stitched) {
            large = kit_alloc(arena, 20 * MIB, kit_stream[0]);
            CHECK(registry_covers(large, 20 * MIB));
            CHECK_RESULT(gpupool_free(arena, large, kit_stream[0]), GPUPOOL_OK);
        }
        for (int i = 0; i < 10; i += 2) {
            block[i] = kit_alloc(arena, 6 * MIB, kit_stream[0]);
            if (block[i]) CHECK(registry_covers(block[i], 6 * MIB));
        }
        for (int i = 0; i < 10; i++)
            CHECK_RESULT(gpupool_free(arena, block[i], kit_stream[0]), GPUPOOL_OK);
        large = kit_alloc(arena, 20 * MIB, kit_stream[0]);
        CHECK(registry_covers(large, 20 * MIB));
        CHECK_RESULT(gpupool_free(arena, large, kit_stream[0]), GPUPOOL_OK);
        close_registered();
    }
    check_case(" ");
}

/* Told that a chunk goes, and asked to take it back when CUDA has not freed it, the program may
   refuse: the arena uses the chunk, and tells of it no more. */
static void a_chunk_that_is_not_wanted_back(void) {
    void *block;
    open_registered(GPUPOOL_SOURCE_DEVICE, 0);
    block = kit_alloc(arena, 8 * MIB, kit_stream[0]);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
    known.refuse_at = 1;
    for (int i = 0; i < 2; i++) {
        fake_fail_call("cuMemFree", 1, 0, 0);
        CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_E_CUDA);
        CHECK(strstr(gpupool_last_error(), "cuMemFree") != NULL); /* not the refusal after it */
        CHECK_EQ(known.gone, 1);
        CHECK_EQ(known.refused, 1);
        CHECK_EQ(known.told, 1);
        block = kit_alloc(arena, 8 * MIB, kit_stream[0]);
        CHECK(!registry_covers(block, 8 * MIB));
        CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
    }
    CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
    CHECK_EQ(kit_reserved(arena), 0);
    close_registered();
}

static uint64_t went;

static int count_gone(const gpupool_mapping *mapping, void *user) {
    (void)mapping, (void)user;
    went++;
    return 0;
}

/* on_unmap without on_map: each range is told once, when it goes; nothing goes, nor comes, behind
   the program's back. */
static void only_what_goes_is_told(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
    void *block[10], *large;
    uint64_t gained;
    cudaGraph_t graph;
    config.on_unmap = count_gone;
    config.limit_bytes = 60 * MIB;
    went = 0;
    arena = kit_create(&config);
    for (int i = 0; i < 10; i++) block[i] = kit_alloc(arena, 6 * MIB, kit_stream[0]);
    for (int i = 0; i < 10; i += 2)
        CHECK_RESULT(gpupool_free(arena, block[i], kit_stream[0]), GPUPOOL_OK);
    large = kit_alloc(arena, 20 * MIB, kit_stream[0]);
    CHECK_EQ(kit_stats(arena).stitches, 1);
    CHECK_RESULT(gpupool_free(arena, large, kit_stream[0]), GPUPOOL_OK);
    fake_fail_call("cuMemUnmap", 1, 1, 0);
    CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_E_CUDA); /* the stitch is told, and stays */
    CHECK_EQ(went, 1);
    fake_fail_clear();
    fake_reset_counters();
    CHECK_RESULT(gpupool_allow_peer(arena, 1), GPUPOOL_OK); /* to what can be used only */
    CHECK_EQ((uint64_t)fake_calls("cuMemSetAccess"), kit_stats(arena).chunks_gained);
    CHECK_RESULT(gpupool_disallow_peer(arena, 1), GPUPOOL_OK);
    CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
    CHECK_EQ(went, 1 + kit_stats(arena).chunks_lost);
    fake_fail_call("cuMemUnmap", 1, 1, 0);
    CHECK_RESULT(gpupool_free(arena, block[1], kit_stream[0]), GPUPOOL_OK);
    CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_E_CUDA); /* nobody's, as it is told */
    CHECK_EQ(went, 1 + kit_stats(arena).chunks_lost + 1);
    fake_fail_clear();
    CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
    CHECK_EQ(went, 1 + kit_stats(arena).chunks_lost);
    CHECK_EQ(cudaStreamBeginCapture(kit_stream[0], cudaStreamCaptureModeGlobal), cudaSuccess);
    CHECK(!gpupool_alloc(arena, 30 * MIB, kit_stream[0]));
    CHECK_EQ(gpupool_last_result(), GPUPOOL_E_CAPTURING);
    CHECK_EQ(cudaStreamEndCapture(kit_stream[0], &graph), cudaSuccess);
    CHECK_EQ(cudaGraphDestroy(graph), cudaSuccess);
    for (int i = 3; i < 10; i += 2)
        CHECK_RESULT(gpupool_free(arena, block[i], kit_stream[0]), GPUPOOL_OK);
    gained = kit_stats(arena).chunks_gained;
    kit_close(arena);
    CHECK_EQ(went, 1 + gained);
}

/* ---- no lock is held ---- */

static pthread_barrier_t inside;
static int waits_inside;

static int add_slowly(const gpupool_mapping *mapping, void *user) {
    if (waits_inside) {
        waits_inside = 0;
        pthread_barrier_wait(&inside); /* the other thread begins */
        pthread_barrier_wait(&inside); /* and is done */
    }
    return registry_add(mapping, user);
}

static void *beside(void *unused) {
    void *small, *grown;
    (void)unused;
    pthread_barrier_wait(&inside);
    small = kit_alloc(arena, 4096, kit_stream[1]);
    CHECK_RESULT(gpupool_free(arena, small, kit_stream[1]), GPUPOOL_OK);
    grown = kit_alloc(arena, 30 * MIB, kit_stream[1]); /* it grows, too */
    CHECK(registry_covers(grown, 30 * MIB));
    CHECK_RESULT(gpupool_set_limit(arena, 500 * MIB), GPUPOOL_OK);
    CHECK(kit_fits(arena, MIB, NULL));
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
    CHECK_RESULT(gpupool_free(arena, grown, kit_stream[1]), GPUPOOL_OK);
    CHECK(!gpupool_alloc(arena, 600 * MIB, kit_stream[1]));
    CHECK_EQ(gpupool_last_result(), GPUPOOL_E_OUT_OF_MEMORY);
    CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
    pthread_barrier_wait(&inside);
    return NULL;
}

static void others_go_on_meanwhile(void) {
    gpupool_arena_config config = registry_config(GPUPOOL_SOURCE_MAPPED, 400 * MIB);
    pthread_t thread;
    void *block;
    config.on_map = add_slowly;
    pthread_barrier_init(&inside, NULL, 2);
    arena = kit_create(&config);
    block = kit_alloc(arena, 4096, kit_stream[0]);
    waits_inside = 1;
    pthread_create(&thread, NULL, beside, NULL);
    CHECK_RESULT(gpupool_free(arena, kit_alloc(arena, 40 * MIB, kit_stream[0]), kit_stream[0]),
                 GPUPOOL_OK);
    pthread_join(thread, NULL);
    pthread_barrier_destroy(&inside);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
    close_registered();
}

static void *ask_for_what_comes(void *unused) {
    (void)unused;
    pthread_barrier_wait(&inside);
    pthread_barrier_wait(&inside); /* on_map ends at about this time */
    CHECK_RESULT(gpupool_free(arena, kit_alloc(arena, 512, kit_stream[1]), kit_stream[1]),
                 GPUPOOL_OK);
    return NULL;
}

static int add_after_a_while(const gpupool_mapping *mapping, void *user) {
    struct timespec while_ = {0, 100000000};
    if (waits_inside) {
        waits_inside = 0;
        pthread_barrier_wait(&inside);
        pthread_barrier_wait(&inside);
        nanosleep(&while_, NULL);
    }
    CHECK_RESULT(gpupool_sleep(arena, GPUPOOL_ALL, GPUPOOL_DISCARD, NULL), GPUPOOL_E_IN_USE);
    return registry_add(mapping, user);
}

/* The limit's last chunk is told of: who asks meanwhile gets memory of it. */
static void a_request_waits_for_what_appears(void) {
    gpupool_arena_config config = registry_config(GPUPOOL_SOURCE_MAPPED, 2 * MIB);
    pthread_t thread;
    config.on_map = add_after_a_while;
    pthread_barrier_init(&inside, NULL, 2);
    arena = kit_create(&config);
    waits_inside = 1;
    pthread_create(&thread, NULL, ask_for_what_comes, NULL);
    CHECK_RESULT(gpupool_free(arena, kit_alloc(arena, 512, kit_stream[0]), kit_stream[0]),
                 GPUPOOL_OK);
    pthread_join(thread, NULL);
    pthread_barrier_destroy(&inside);
    close_registered();
}

static void *use_a_small_block(void *unused) {
    (void)unused;
    CHECK_RESULT(gpupool_free(arena, kit_alloc(arena, 4096, kit_stream[1]), kit_stream[1]),
                 GPUPOOL_OK);
    CHECK_RESULT(gpupool_wait_all(arena), GPUPOOL_OK);
    return NULL;
}

static int remove_beside_a_small_block(const gpupool_mapping *mapping, void *user) {
    if (waits_inside) {
        pthread_t thread;
        waits_inside = 0;
        pthread_create(&thread, NULL, use_a_small_block, NULL);
        pthread_join(thread, NULL);
    }
    return registry_remove(mapping, user);
}

/* While one chunk goes, another is used for small blocks, and is free again when its turn comes. */
static void chunks_that_are_used_before_they_go(void) {
    gpupool_arena_config config = registry_config(GPUPOOL_SOURCE_MAPPED, 0);
    config.chunk_bytes = 2 * MIB;
    config.on_unmap = remove_beside_a_small_block;
    arena = kit_create(&config);
    for (int i = 0; i < 2; i++)
        CHECK_RESULT(gpupool_free(arena, kit_alloc(arena, 8 * MIB, kit_stream[0]), kit_stream[0]),
                     GPUPOOL_OK);
    CHECK_RESULT(gpupool_wait_all(arena), GPUPOOL_OK);
    waits_inside = 1;
    CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
    CHECK_EQ(waits_inside, 0);
    CHECK_EQ(kit_reserved(arena), 0);
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    close_registered();
}

static void *churn(void *number) {
    uint64_t random = 100 + (uint64_t)(uintptr_t)number;
    int stream = (int)(uintptr_t)number;
    held block[16] = {{NULL, 0, 0}};
    for (int i = 0; i < STEPS / 8; i++) {
        held *one = &block[check_below(&random, 16)];
        if (one->at) {
            CHECK(registry_covers(one->at, one->bytes));
            CHECK_RESULT(gpupool_free(arena, one->at, kit_stream[stream]), GPUPOOL_OK);
            one->at = NULL;
        } else {
            one->bytes = draw(&random);
            one->at = gpupool_alloc(arena, one->bytes, kit_stream[stream]);
            if (one->at) CHECK(registry_covers(one->at, one->bytes));
        }
        if (check_below(&random, 100) == 0) gpupool_trim(arena, 100 * MIB, NULL);
    }
    for (int i = 0; i < 16; i++)
        if (block[i].at)
            CHECK_RESULT(gpupool_free(arena, block[i].at, kit_stream[stream]), GPUPOOL_OK);
    return NULL;
}

static void threads_grow_at_once(void) {
    pthread_t thread[KIT_STREAMS];
    open_registered(GPUPOOL_SOURCE_MAPPED, 400 * MIB);
    for (int i = 0; i < KIT_STREAMS; i++)
        pthread_create(&thread[i], NULL, churn, (void *)(uintptr_t)i);
    for (int i = 0; i < KIT_STREAMS; i++) pthread_join(thread[i], NULL);
    close_registered();
}

/* While the program is told of memory, another thread finds every invariant kept; also where the
   program refuses. */
static int refuses, checks;

static void *check_it(void *unused) {
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    checks++;
    return unused;
}

static int told_and_checked(const gpupool_mapping *mapping, void *unused) {
    pthread_t other;
    (void)mapping, (void)unused;
    if (!arena) return 0; /* it is just being made */
    CHECK_EQ(pthread_create(&other, NULL, check_it, NULL), 0);
    CHECK_EQ(pthread_join(other, NULL), 0);
    return refuses;
}

static void another_thread_checks_meanwhile(void) {
    void *block[12], *large;
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
    config.on_map = config.on_unmap = told_and_checked;
    arena = NULL;
    checks = 0;
    CHECK_RESULT(gpupool_arena_create(&arena, &config), GPUPOOL_OK);
    for (size_t i = 0; i < 12; i++) block[i] = kit_alloc(arena, (i + 1) * 3 * MIB, kit_stream[0]);
    for (size_t i = 0; i < 12; i += 3)
        CHECK_RESULT(gpupool_free(arena, block[i], kit_stream[0]), GPUPOOL_OK);
    large = kit_alloc(arena, 60 * MIB, kit_stream[0]);
    CHECK(kit_stats(arena).stitches > 0);
    CHECK_RESULT(gpupool_sleep(arena, GPUPOOL_ALL, GPUPOOL_DISCARD, NULL), GPUPOOL_OK);
    refuses = 1;
    CHECK_RESULT(gpupool_wake(arena, GPUPOOL_ALL, NULL), GPUPOOL_E_CALLBACK);
    refuses = 0;
    CHECK_RESULT(gpupool_wake(arena, GPUPOOL_ALL, NULL), GPUPOOL_OK);
    refuses = 1;
    CHECK_RESULT(kit_why(gpupool_alloc(arena, 500 * MIB, kit_stream[0])), GPUPOOL_E_CALLBACK);
    refuses = 0;
    for (size_t i = 0; i < 12; i++)
        if (i % 3) CHECK_RESULT(gpupool_free(arena, block[i], kit_stream[0]), GPUPOOL_OK);
    CHECK_RESULT(gpupool_free(arena, large, kit_stream[0]), GPUPOOL_OK);
    CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
    CHECK(checks > 12);
    kit_close(arena);
}

/* ---- captures, other arenas, resets ---- */

static void nothing_grows_while_a_stream_captures(void) {
    gpupool_capture *scope;
    cudaGraph_t graph;
    void *block, *more;
    long told;
    open_registered(GPUPOOL_SOURCE_MAPPED, 0);
    block = kit_alloc(arena, 8 * MIB, kit_stream[0]);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
    CHECK_RESULT(gpupool_trim(arena, 8 * MIB, NULL), GPUPOOL_OK);
    for (int scoped = 0; scoped < 2; scoped++) {
        check_case("scoped %d", scoped);
        if (scoped)
            CHECK_RESULT(gpupool_begin_capture(arena, kit_stream[0], &scope), GPUPOOL_OK);
        CHECK_EQ(cudaStreamBeginCapture(kit_stream[0], cudaStreamCaptureModeGlobal), cudaSuccess);
        block = kit_alloc(arena, 4 * MIB, kit_stream[0]); /* what is there already */
        CHECK(!gpupool_alloc(arena, 100 * MIB, kit_stream[0]));
        CHECK_EQ(gpupool_last_result(), GPUPOOL_E_CAPTURING);
        told = known.told;
        CHECK(!gpupool_alloc(arena, 100 * MIB, kit_stream[1])); /* nor elsewhere */
        CHECK_EQ(known.told, told);
        CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
        CHECK_EQ(cudaStreamEndCapture(kit_stream[0], &graph), cudaSuccess);
        CHECK_EQ(cudaGraphDestroy(graph), cudaSuccess);
        if (scoped) CHECK_RESULT(gpupool_release_capture(scope), GPUPOOL_OK);
        more = kit_alloc(arena, 100 * MIB, kit_stream[0]);
        CHECK_RESULT(gpupool_free(arena, more, kit_stream[0]), GPUPOOL_OK);
        CHECK_RESULT(gpupool_trim(arena, 8 * MIB, NULL), GPUPOOL_OK);
    }
    check_case(" ");
    close_registered();
}

static gpupool_arena *elsewhere;

static int add_with_another_arena(const gpupool_mapping *mapping, void *user) {
    void *block = kit_alloc(elsewhere, 3 * MIB, kit_stream[0]);
    CHECK_RESULT(gpupool_free(elsewhere, block, kit_stream[0]), GPUPOOL_OK);
    CHECK(!gpupool_alloc(elsewhere, 0, kit_stream[0])); /* a failure inside is no failure outside */
    CHECK_EQ(cudaSetDevice(1), cudaSuccess);
    return registry_add(mapping, user);
}

static void a_function_may_use_another_arena(void) {
    gpupool_arena_config config = registry_config(GPUPOOL_SOURCE_MAPPED, 0);
    int device = -1;
    void *block;
    elsewhere = kit_open(GPUPOOL_SOURCE_MAPPED);
    config.on_map = add_with_another_arena;
    arena = kit_create(&config);
    block = kit_alloc(arena, 40 * MIB, kit_stream[0]);
    CHECK_EQ(gpupool_last_result(), GPUPOOL_OK);
    CHECK_EQ(cudaGetDevice(&device), cudaSuccess);
    CHECK_EQ(device, 0);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
    close_registered();
    kit_close(elsewhere);
}

static void a_reset_is_not_told(void) {
    void *block;
    open_registered(GPUPOOL_SOURCE_MAPPED, 0);
    block = kit_alloc(arena, 40 * MIB, kit_stream[0]);
    CHECK(block != NULL);
    known.mapped = 0;
    CHECK_EQ(cudaDeviceReset(), cudaSuccess);
    memset(kit_stream, 0, sizeof kit_stream);
    CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_OK);
    CHECK_EQ(known.gone, 0);
    registry_clear();
}

#endif

int main(void) {
    FAKE_TEST(chunks_and_stitches_are_told);
    FAKE_TEST(chunks_of_every_source_are_told);
    FAKE_TEST(memory_that_is_reserved_at_once_is_told);
    FAKE_TEST(a_refused_reserve_takes_the_tag_with_it);
    FAKE_TEST(a_refused_chunk_takes_the_growth_with_it);
    FAKE_TEST(a_refused_growth_that_is_not_unmapped);
    FAKE_TEST(a_refused_stitch_is_unmapped);
    FAKE_TEST(a_refused_chunk_that_stays);
    FAKE_TEST(a_refused_stitch_that_stays);
    FAKE_TEST(a_refused_chunk_of_a_stitch);
    FAKE_TEST(registrations_are_never_stale);
    FAKE_TEST(registrations_beside_calls_that_fail);
    FAKE_TEST(what_cuda_does_not_unmap_is_nobodys);
    FAKE_TEST(a_chunk_that_is_not_wanted_back);
    FAKE_TEST(only_what_goes_is_told);
    FAKE_TEST(others_go_on_meanwhile);
    FAKE_TEST(a_request_waits_for_what_appears);
    FAKE_TEST(chunks_that_are_used_before_they_go);
    FAKE_TEST(threads_grow_at_once);
    FAKE_TEST(another_thread_checks_meanwhile);
    FAKE_TEST(nothing_grows_while_a_stream_captures);
    FAKE_TEST(a_function_may_use_another_arena);
    FAKE_TEST(a_reset_is_not_told);
    return check_finish();
}
