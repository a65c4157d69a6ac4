/* Running out: the verdict, what would fit, and the caller's chance to free something. */
#include "gpupool.h"
#include "arena_kit.h"

/* ---- the verdict ---- */

static gpupool_verdict refused(gpupool_arena *arena, size_t bytes, gpupool_cause cause) {
    gpupool_verdict verdict;
    memset(&verdict, 0xee, sizeof verdict);
    gpupool_stats before = kit_stats(arena);
    CHECK_RESULT(kit_why(gpupool_alloc(arena, bytes, kit_stream[0])), GPUPOOL_E_OUT_OF_MEMORY);
    gpupool_stats after = kit_stats(arena);
    CHECK_EQ(after.failures, before.failures + 1);
    CHECK_EQ(after.granted.now, before.granted.now);
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    CHECK_RESULT(gpupool_last_verdict(&verdict), GPUPOOL_OK);
    CHECK_EQ(verdict.cause, cause);
    CHECK_EQ(verdict.asked_bytes, bytes);
    CHECK_EQ(verdict.limit_bytes, kit_limit(arena));
    CHECK_EQ(verdict.granted_bytes, after.granted.now);
    CHECK_EQ(verdict.reserved_bytes, after.reserved.now);
    CHECK(verdict.missing_bytes > 0);
    CHECK(verdict.device_free_bytes <= verdict.device_total_bytes);
    CHECK(memchr(verdict.sentence, 0, sizeof verdict.sentence) != NULL);
    CHECK(strlen(verdict.sentence) > 20);
    CHECK(gpupool_last_error()[0] != 0);
    CHECK_EQ(cudaPeekAtLastError(), cudaSuccess);
    return verdict;
}

static void the_limit_is_the_cause(void) {
    for (size_t i = 0; i < KIT_SOURCES; i++) {
        check_case("%s", kit_sources[i].name);
        gpupool_arena *arena = kit_open_limited(kit_sources[i].source, 64 * MIB);
        void *block = kit_alloc(arena, 30 * MIB, kit_stream[0]);
        gpupool_verdict v = refused(arena, 50 * MIB, GPUPOOL_CAUSE_LIMIT);
        CHECK(v.missing_bytes <= 20 * MIB);
        CHECK(v.missing_bytes >= 16 * MIB);
        refused(arena, 64 * MIB + 1, GPUPOOL_CAUSE_LIMIT);
        CHECK_EQ(kit_stats(arena).host_syncs, 0); /* there is nothing to wait for */
        CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
        kit_close(arena);
    }
}

/* What the verdict says is missing, when it is allowed, makes the same call succeed. */
static void raising_the_limit_by_what_is_missing_helps(void) {
    for (size_t i = 0; i < KIT_SOURCES; i++) {
        check_case("%s", kit_sources[i].name);
        gpupool_arena *arena = kit_open_limited(kit_sources[i].source, 64 * MIB);
        void *block = kit_alloc(arena, 30 * MIB, kit_stream[0]);
        gpupool_verdict v = refused(arena, 50 * MIB, GPUPOOL_CAUSE_LIMIT);
        CHECK_RESULT(gpupool_set_limit(arena, 64 * MIB + (size_t)v.missing_bytes), GPUPOOL_OK);
        void *more = kit_alloc(arena, 50 * MIB, kit_stream[0]);
        CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
        CHECK_RESULT(gpupool_free(arena, more, kit_stream[0]), GPUPOOL_OK);
        kit_close(arena);
    }
}

#if CHECK_FAKE
static void the_device_is_the_cause(void) {
    static const gpupool_source device[] = {GPUPOOL_SOURCE_MAPPED, GPUPOOL_SOURCE_DEVICE,
                                            GPUPOOL_SOURCE_BYPASS};
    for (size_t i = 0; i < KIT_COUNT(device); i++) {
        check_case("source %d", (int)device[i]);
        fake_device_memory(0, GIB);
        gpupool_arena *arena = kit_open(device[i]);
        refused(arena, 3 * GIB, GPUPOOL_CAUSE_TOO_LARGE);
        void *most = kit_alloc(arena, 700 * MIB, kit_stream[0]);
        refused(arena, 500 * MIB, GPUPOOL_CAUSE_DEVICE_FULL);
        CHECK_RESULT(gpupool_free(arena, most, kit_stream[0]), GPUPOOL_OK);
        CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
        fake_other_process(0, 800 * MIB);
        gpupool_verdict v = refused(arena, 500 * MIB, GPUPOOL_CAUSE_OTHERS);
        CHECK(v.others_bytes >= 800 * MIB);
        void *less = kit_alloc(arena, 200 * MIB, kit_stream[0]);
        CHECK_RESULT(gpupool_free(arena, less, kit_stream[0]), GPUPOOL_OK);
        kit_close(arena);
        fake_other_process(0, 0);
    }
}
#endif

static void the_verdict_belongs_to_the_last_refusal(void) {
    gpupool_arena *arena = kit_open_limited(GPUPOOL_SOURCE_AUTO, 8 * MIB);
    gpupool_verdict v;
    refused(arena, 10 * MIB, GPUPOOL_CAUSE_LIMIT);
    refused(arena, 11 * MIB, GPUPOOL_CAUSE_LIMIT);
    void *block = kit_alloc(arena, 1000, kit_stream[0]); /* a success does not take it away */
    CHECK_RESULT(gpupool_last_verdict(&v), GPUPOOL_OK);
    CHECK_EQ(v.asked_bytes, 11 * MIB);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
    kit_close(arena);
}

static void a_reserve_above_the_limit(void) {
    for (size_t i = 0; i < KIT_SOURCES; i++) {
        if (kit_sources[i].source == GPUPOOL_SOURCE_BYPASS) continue; /* reserves nothing */
        check_case("%s", kit_sources[i].name);
        gpupool_arena_config config = kit_config(kit_sources[i].source);
        gpupool_arena *none = NULL;
        gpupool_verdict v;
        config.limit_bytes = 10 * MIB;
        config.reserve_bytes = 20 * MIB;
        CHECK_RESULT(gpupool_arena_create(&none, &config), GPUPOOL_E_OUT_OF_MEMORY);
        CHECK(none == NULL && gpupool_last_error()[0] != 0);
        CHECK_RESULT(gpupool_last_verdict(&v), GPUPOOL_OK);
        CHECK_EQ(v.cause, GPUPOOL_CAUSE_LIMIT);
        CHECK_EQ(v.asked_bytes, 20 * MIB);
        CHECK_EQ(v.raise_bytes / MIB, 10); /* and what a caller's function may have to align */
    }
}

/* ---- would_fit and available ---- */

static void would_fit_foretells(gpupool_source source, uint64_t seed) {
    gpupool_arena *arena = kit_open_limited(source, 24 * MIB);
    void *block[32] = {NULL};
    uint64_t random = seed;
    int fits = 0, refusals = 0;
    for (int step = 0; step < 2000; step++) {
        check_case("source %d, seed %llu, step %d", (int)source, (unsigned long long)seed, step);
        size_t i = (size_t)check_below(&random, 32), size;
        if (block[i]) {
            CHECK_RESULT(gpupool_free(arena, block[i], kit_stream[0]), GPUPOOL_OK);
            block[i] = NULL;
            kit_finish(arena);
            continue;
        }
        size = 1 + (size_t)check_below(&random, (uint64_t)1 << (10 + check_below(&random, 15)));
        gpupool_verdict why;
        int fit = kit_fits(arena, size, &why);
        CHECK_EQ(fit, kit_fits(arena, size, NULL));
        if (!fit) CHECK(why.cause != GPUPOOL_CAUSE_NONE && why.sentence[0] != 0);
        block[i] = gpupool_alloc(arena, size, kit_stream[0]);
        CHECK_EQ(block[i] != NULL, fit);
        if (!block[i]) CHECK_RESULT(gpupool_last_result(), GPUPOOL_E_OUT_OF_MEMORY);
        fits += fit;
        refusals += !fit;
    }
    CHECK(fits > 100 && refusals > 10); /* else the sizes above no longer suit the limit */
    for (size_t i = 0; i < 32; i++)
        CHECK_RESULT(gpupool_free(arena, block[i], kit_stream[0]), GPUPOOL_OK);
    kit_close(arena);
}

static void would_fit_agrees_with_alloc(void) {
    for (size_t i = 0; i < KIT_SOURCES; i++)
        would_fit_foretells(kit_sources[i].source, 77 + (uint64_t)i);
}

static void available_can_be_had(void) {
    for (size_t i = 0; i < KIT_SOURCES; i++) {
        if (kit_sources[i].source == GPUPOOL_SOURCE_CUSTOM) continue; /* has to be aligned first */
        check_case("%s", kit_sources[i].name);
        gpupool_arena *arena = kit_open_limited(kit_sources[i].source, 64 * MIB);
        CHECK_EQ(kit_available(arena), 64 * MIB);
        CHECK_EQ(kit_fits(arena, 64 * MIB, NULL), 1);
        CHECK_EQ(kit_fits(arena, 64 * MIB + 1, NULL), 0);
        void *half = kit_alloc(arena, 32 * MIB, kit_stream[0]);
        CHECK_EQ(kit_available(arena), 32 * MIB);
        void *rest = kit_alloc(arena, 32 * MIB, kit_stream[0]);
        CHECK_EQ(kit_available(arena), 0);
        CHECK_EQ(kit_fits(arena, 1, NULL), 0);
        CHECK_RESULT(gpupool_free(arena, half, kit_stream[0]), GPUPOOL_OK);
        CHECK_RESULT(gpupool_free(arena, rest, kit_stream[0]), GPUPOOL_OK);
        CHECK_EQ(kit_available(arena), 64 * MIB);
        kit_close(arena);
    }
}

/* Idle chunks are given back for a request that this helps, and for no other. */
static void idle_chunks_stay_where_they_would_not_do(void) {
    static const gpupool_source chunked[] = {GPUPOOL_SOURCE_DEVICE, GPUPOOL_SOURCE_MANAGED,
                                             GPUPOOL_SOURCE_PINNED, GPUPOOL_SOURCE_CUSTOM};
    for (size_t i = 0; i < KIT_COUNT(chunked); i++) {
        check_case("source %d", (int)chunked[i]);
        gpupool_arena *arena = kit_open_limited(chunked[i], 256 * MIB);
        void *idle = kit_alloc(arena, 100 * MIB, kit_stream[0]);
        void *block = kit_alloc(arena, 20 * MIB, kit_stream[0]);
        CHECK_RESULT(gpupool_free(arena, idle, kit_stream[0]), GPUPOOL_OK);
        CHECK_EQ(cudaStreamSynchronize(kit_stream[0]), cudaSuccess);
        size_t reserved = kit_reserved(arena);
        refused(arena, 250 * MIB, GPUPOOL_CAUSE_LIMIT);
        CHECK_EQ(kit_reserved(arena), reserved);
        void *larger = kit_alloc(arena, 200 * MIB, kit_stream[0]);
        CHECK(kit_reserved(arena) < 256 * MIB);
        CHECK_RESULT(gpupool_free(arena, larger, kit_stream[0]), GPUPOOL_OK);
        CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
        kit_close(arena);
    }
}

static void idle_chunks_stay_where_the_device_is_too_small(void) {
    gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_DEVICE);
    void *idle = kit_alloc(arena, 100 * MIB, kit_stream[0]);
    size_t reserved = kit_reserved(arena);
    CHECK_RESULT(gpupool_free(arena, idle, kit_stream[0]), GPUPOOL_OK);
    refused(arena, (size_t)1 << 42, GPUPOOL_CAUSE_TOO_LARGE);
    CHECK_EQ(kit_reserved(arena), reserved);
    kit_close(arena);
}

#if CHECK_FAKE
/* Without a limit, and by what the device has free: too little with all of them, and enough. */
static void idle_chunks_go_where_all_of_them_do(void) {
    fake_device_memory(0, 1000 * MIB);
    gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_DEVICE);
    void *idle = kit_alloc(arena, 300 * MIB, kit_stream[0]);
    void *block = kit_alloc(arena, 300 * MIB, kit_stream[0]), *larger;
    size_t reserved = kit_reserved(arena);
    CHECK_RESULT(gpupool_free(arena, idle, kit_stream[0]), GPUPOOL_OK);
    CHECK_EQ(cudaStreamSynchronize(kit_stream[0]), cudaSuccess);
    CHECK_RESULT(kit_why(gpupool_alloc(arena, 800 * MIB, kit_stream[0])),
                 GPUPOOL_E_OUT_OF_MEMORY);
    CHECK_EQ(kit_reserved(arena), reserved);
    larger = kit_alloc(arena, 600 * MIB, kit_stream[0]);
    CHECK_RESULT(gpupool_free(arena, larger, kit_stream[0]), GPUPOOL_OK);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
    kit_close(arena);
}

static void have_idle(gpupool_arena *arena, int chunks, size_t bytes) {
    void *idle[16];
    for (int i = 0; i < chunks; i++) idle[i] = kit_alloc(arena, bytes, kit_stream[0]);
    for (int i = 0; i < chunks; i++)
        CHECK_RESULT(gpupool_free(arena, idle[i], kit_stream[0]), GPUPOOL_OK);
}

/* The limit has room for a part, and the device for nothing more. */
static void idle_chunks_go_where_limit_and_device_are_met(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_DEVICE);
    config.chunk_bytes = 2 * MIB;
    config.limit_bytes = 34 * MIB;
    fake_device_memory(0, 64 * MIB);
    gpupool_arena *arena = kit_create(&config);
    have_idle(arena, 16, 2 * MIB);
    fake_other_process(0, 32 * MIB);
    CHECK_EQ(kit_fits(arena, 8 * MIB, NULL), 1);
    fake_fail_call("cuMemFree", 1, 0, 0);
    CHECK(gpupool_alloc(arena, 8 * MIB, kit_stream[0]) == NULL);
    void *block = kit_alloc(arena, 8 * MIB, kit_stream[0]);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
    kit_close(arena);
}

/* What the limit asks back leaves the device too full, and the rest of what is idle does not. */
static void idle_chunks_go_where_the_limit_is_met_first(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_DEVICE);
    config.chunk_bytes = 8 * MIB;
    config.limit_bytes = 48 * MIB;
    fake_device_memory(0, 64 * MIB);
    gpupool_arena *arena = kit_create(&config);
    have_idle(arena, 4, 8 * MIB);
    fake_other_process(0, 24 * MIB);
    void *block = kit_alloc(arena, 36 * MIB, kit_stream[0]);
    CHECK_EQ(kit_reserved(arena), 36 * MIB);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
    kit_close(arena);
}

static gpupool_arena *full_of_large_chunks(void *block[8], int no_stitch) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
    config.chunk_bytes = 8 * MIB;
    config.no_stitch = no_stitch;
    fake_device_memory(0, 64 * MIB);
    gpupool_arena *arena = kit_create(&config);
    for (int i = 0; i < 8; i++) block[i] = kit_alloc(arena, 8 * MIB, kit_stream[0]);
    return arena;
}

/* What is idle is in chunks larger than the gap that is to be filled, and the device has no more:
   where nothing may be stitched, they make room for new ones. */
static void large_chunks_make_room_on_a_full_device(void) {
    void *block[8];
    gpupool_arena *arena = full_of_large_chunks(block, 1);
    for (int i = 2; i < 8; i += 5) /* a hole, and the last, which bare addresses follow */
        CHECK_RESULT(gpupool_free(arena, block[i], kit_stream[0]), GPUPOOL_OK);
    CHECK_EQ(kit_fits(arena, 10 * MIB, NULL), 1);
    fake_fail_call("cuMemRelease", 1, 1, 0);
    CHECK_RESULT(kit_why(gpupool_alloc(arena, 10 * MIB, kit_stream[0])), GPUPOOL_E_CUDA);
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    fake_fail_clear();
    block[2] = kit_alloc(arena, 10 * MIB, kit_stream[0]);
    for (int i = 0; i < 7; i++)
        CHECK_RESULT(gpupool_free(arena, block[i], kit_stream[0]), GPUPOOL_OK);
    kit_close(arena);
}

/* Of chunks that this stream is still at work on a block is stitched, or they are waited for. */
static void own_chunks_make_room(void) {
    void *block[8];
    gpupool_arena *arena = full_of_large_chunks(block, 0);
    fake_mode(FAKE_STEPPED);
    for (int i = 2; i < 8; i += 5) {
        kit_fill(kit_stream[0], block[i], 8 * MIB, i);
        CHECK_RESULT(gpupool_free(arena, block[i], kit_stream[0]), GPUPOOL_OK);
    }
    block[2] = kit_alloc(arena, 10 * MIB, kit_stream[0]);
    kit_fill(kit_stream[0], block[2], 10 * MIB, 9);
    fake_run_all();
    for (int i = 0; i < 7; i++)
        CHECK_RESULT(gpupool_free(arena, block[i], kit_stream[0]), GPUPOOL_OK);
    kit_close(arena);
}

/* Pinned memory is the host's: what the device has free does not bound it. */
static void available_of_pinned_memory(void) {
    fake_device_memory(0, 1000 * MIB);
    gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_PINNED);
    CHECK(kit_available(arena) > (size_t)1 << 40);
    kit_close(arena);
}
#endif

/* Chunks that begin inside a unit: what their ends leave over is not counted. */
static void *awkward_alloc(size_t bytes, int device, void *user) {
    char *chunk = (char *)kit_chunk_alloc(bytes + 512, device, user);
    return chunk ? chunk + 64 : NULL;
}

static void awkward_free(void *chunk, size_t bytes, int device, void *user) {
    kit_chunk_free((char *)chunk - 64, bytes + 512, device, user);
}

static void available_of_awkward_chunks(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_CUSTOM);
    config.chunk_alloc = awkward_alloc;
    config.chunk_free = awkward_free;
    config.limit_bytes = 16 * MIB;
    gpupool_arena *arena = kit_create(&config);
    for (int round = 0; round < 2; round++) { /* with room for a chunk, and in one that is there */
        size_t available = kit_available(arena);
        CHECK_EQ(available, 16 * MIB - 512);
        void *block = kit_alloc(arena, available, kit_stream[0]);
        CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
    }
    kit_close(arena);
}

#if CHECK_FAKE
/* Neither the limit nor the device will ever allow it, whatever becomes free. */
static void no_wait_for_what_can_never_be(void) {
    static const gpupool_source pooled[] = {GPUPOOL_SOURCE_MAPPED, GPUPOOL_SOURCE_DEVICE,
                                            GPUPOOL_SOURCE_PINNED};
    for (size_t i = 0; i < 2 * KIT_COUNT(pooled); i++) {
        size_t limit = i & 1 ? 64 * MIB : 0;
        if (pooled[i / 2] == GPUPOOL_SOURCE_PINNED && !limit) continue; /* the host may have it */
        check_case("source %d, limit %zu", (int)pooled[i / 2], limit);
        gpupool_arena *arena = kit_open_limited(pooled[i / 2], limit);
        fake_mode(FAKE_STEPPED);
        for (int k = 0; k < 2; k++) {
            void *block = kit_alloc(arena, 10 * MIB, kit_stream[k]);
            kit_fill(kit_stream[k], block, KIB, 1);
            CHECK_RESULT(gpupool_free(arena, block, kit_stream[k]), GPUPOOL_OK);
        }
        refused(arena, GIB << 10, pooled[i / 2] == GPUPOOL_SOURCE_PINNED ? GPUPOOL_CAUSE_LIMIT
                                                                         : GPUPOOL_CAUSE_TOO_LARGE);
        CHECK_EQ(kit_stats(arena).host_syncs, 0);
        CHECK(fake_pending_all() > 0);
        fake_mode(FAKE_EAGER);
        kit_close(arena);
    }
}

/* A thread that goes on with its work all the while, on the stream of the request or on another:
   each round it frees a block that this stream is still at, or one more. */
static gpupool_arena *shared;
static int rounds, worker, parks;

static void go_on(void *unused) {
    cudaStream_t stream = kit_stream[worker];
    (void)unused;
    if (++rounds == 20) return; /* or it would not end where it is waited for */
    void *block = kit_alloc(shared, MIB, stream);
    kit_fill(stream, block, KIB, rounds);
    if (parks) CHECK_RESULT(gpupool_record_stream(shared, block, kit_stream[2]), GPUPOOL_OK);
    CHECK_RESULT(gpupool_free(shared, block, stream), GPUPOOL_OK);
    fake_before_call("cuEventSynchronize", 1, go_on, NULL);
}

static void no_wait_for_what_others_free_meanwhile(void) {
    for (int way = 0; way < 4; way++) {
        worker = way & 1;
        parks = way >> 1;
        check_case("worker %d, parks %d", worker, parks);
        shared = kit_open_limited(GPUPOOL_SOURCE_DEVICE, 64 * MIB);
        void *block = kit_alloc(shared, 40 * MIB, kit_stream[0]);
        CHECK_RESULT(gpupool_free(shared, kit_alloc(shared, 20 * MIB, kit_stream[0]),
                                  kit_stream[0]), GPUPOOL_OK);
        CHECK_RESULT(gpupool_trim(shared, SIZE_MAX, NULL), GPUPOOL_OK);
        void *beside = kit_alloc(shared, KIB, kit_stream[3]); /* so that all frees have a fence */
        fake_mode(FAKE_STEPPED);
        rounds = 0;
        go_on(NULL);
        refused(shared, 50 * MIB, GPUPOOL_CAUSE_LIMIT);
        CHECK(rounds > 1 && rounds < 5);
        fake_before_call("cuEventSynchronize", 0, NULL, NULL);
        fake_mode(FAKE_EAGER);
        CHECK_RESULT(gpupool_free(shared, block, kit_stream[0]), GPUPOOL_OK);
        CHECK_RESULT(gpupool_free(shared, beside, kit_stream[3]), GPUPOOL_OK);
        kit_close(shared);
    }
}

/* What was freed before and has since got a later mark, with what was freed meanwhile, is waited
   for all the same. */
static void free_once_more(void *unused) {
    (void)unused;
    void *block = kit_alloc(shared, MIB, kit_stream[1]);
    kit_fill(kit_stream[1], block, KIB, 1);
    CHECK_RESULT(gpupool_free(shared, block, kit_stream[1]), GPUPOOL_OK);
}

static void all_that_was_free_before_is_waited_for(void) {
    enum { FREES = 8 }; /* more than a stream has marks for */
    void *block[FREES], *other;
    shared = kit_open_limited(GPUPOOL_SOURCE_MAPPED, (FREES + 1) * 2 * MIB);
    other = kit_alloc(shared, 2 * MIB, kit_stream[2]);
    fake_mode(FAKE_STEPPED);
    for (int i = 0; i < FREES; i++) block[i] = kit_alloc(shared, 2 * MIB, kit_stream[1]);
    for (int i = 0; i < FREES; i++) {
        kit_fill(kit_stream[1], block[i], KIB, i);
        CHECK_RESULT(gpupool_free(shared, block[i], kit_stream[1]), GPUPOOL_OK);
    }
    fake_before_call("cuEventSynchronize", 1, free_once_more, NULL);
    block[0] = kit_alloc(shared, FREES * 2 * MIB, kit_stream[0]);
    CHECK_RESULT(gpupool_free(shared, block[0], kit_stream[0]), GPUPOOL_OK);
    CHECK_RESULT(gpupool_free(shared, other, kit_stream[2]), GPUPOOL_OK);
    fake_mode(FAKE_EAGER);
    kit_close(shared);
}
#endif

/* A limit may end inside a unit, or a piece of mapped memory: what that leaves is nobody's. */
static void available_under_odd_limits(void) {
    static const size_t limits[] = {1, 511, 1000, 3 * MIB, 10000000};
    for (size_t i = 0; i < KIT_SOURCES * KIT_COUNT(limits); i++) {
        gpupool_source source = kit_sources[i % KIT_SOURCES].source;
        size_t limit = limits[i / KIT_SOURCES], count = 0;
        void *block[64];
        if (source == GPUPOOL_SOURCE_CUSTOM) continue; /* has to be aligned first */
        check_case("source %d, limit %zu", (int)source, limit);
        gpupool_arena *arena = kit_open_limited(source, limit);
        size_t available = kit_available(arena);
        for (size_t bytes = available; bytes > 0 && count < KIT_COUNT(block);) {
            block[count] = gpupool_alloc(arena, bytes, kit_stream[0]);
            if (block[count]) count++;
            else bytes /= 2;
        }
        /* one block of so many is had, and behind it a small chunk at most */
        CHECK_RESULT(kit_why(block[0]), GPUPOOL_OK);
        CHECK_EQ(kit_size(arena, block[0]), available);
        CHECK(kit_stats(arena).granted.now < available + 2 * MIB);
        while (count > 0)
            CHECK_RESULT(gpupool_free(arena, block[--count], kit_stream[0]), GPUPOOL_OK);
        kit_close(arena);
    }
}

/* Sizes that gpupool_alloc takes from nobody, with free memory about and without. */
static void would_fit_of_no_size(void) {
    static const size_t huge[] = {((size_t)1 << 48) + 1, SIZE_MAX};
    gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_AUTO);
    for (int round = 0; round < 2; round++) {
        gpupool_verdict why;
        for (size_t i = 0; i < KIT_COUNT(huge); i++) {
            CHECK_EQ(kit_fits(arena, huge[i], &why), 0);
            CHECK_EQ(why.cause, GPUPOOL_CAUSE_TOO_LARGE);
            CHECK_EQ(why.asked_bytes, huge[i]);
        }
        CHECK_EQ(kit_fits(arena, 0, &why), 0);
        CHECK_RESULT(gpupool_last_result(), GPUPOOL_E_ARGUMENT);
        CHECK(why.cause == GPUPOOL_CAUSE_NONE && why.device_total_bytes == 0);
        CHECK_RESULT(gpupool_free(arena, kit_alloc(arena, MIB, kit_stream[0]), kit_stream[0]),
                     GPUPOOL_OK);
    }
    kit_close(arena);
    for (size_t i = 0; i < KIT_SOURCES; i++) { /* and no limit would do */
        gpupool_verdict why;
        check_case("%s", kit_sources[i].name);
        arena = kit_open_limited(kit_sources[i].source, 8 * MIB);
        CHECK_EQ(kit_fits(arena, huge[0], &why), 0);
        CHECK(why.cause != GPUPOOL_CAUSE_LIMIT);
        CHECK_EQ(why.raise_bytes, 0);
        kit_close(arena);
    }
}

#if CHECK_FAKE
/* Pinned memory is handed out once no work is at it: gpupool_alloc would wait on the host. */
static void would_fit_of_pinned_memory_in_use(void) {
    gpupool_arena *arena = kit_open_limited(GPUPOOL_SOURCE_PINNED, MIB);
    gpupool_verdict why;
    void *block = kit_alloc(arena, MIB, kit_stream[0]);
    fake_mode(FAKE_STEPPED);
    kit_fill(kit_stream[0], block, MIB, 1);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
    CHECK_EQ(kit_fits(arena, MIB, &why), 0);
    CHECK_EQ(why.cause, GPUPOOL_CAUSE_PENDING);
    CHECK(why.pending_stream == kit_stream[0]);
    CHECK_EQ(cudaStreamSynchronize(kit_stream[0]), cudaSuccess);
    CHECK_EQ(kit_fits(arena, MIB, NULL), 1);
    kit_close(arena);
}
#endif

/* ---- on_out_of_memory ---- */

typedef struct rescue {
    gpupool_arena *arena;
    void *spare[3]; /* freed one a call */
    int calls, give_up;
    uint64_t asked;
} rescue;

static int free_a_spare(const gpupool_verdict *verdict, void *user) {
    rescue *r = (rescue *)user;
    r->calls++;
    r->asked = verdict->asked_bytes;
    CHECK(verdict->sentence[0] != 0 && verdict->cause == GPUPOOL_CAUSE_LIMIT);
    if (r->give_up) return 0;
    for (size_t i = 0; i < 3; i++) {
        if (!r->spare[i]) continue;
        /* with the arena's lock held, each of these would wait for ever */
        CHECK_RESULT(gpupool_free(r->arena, r->spare[i], kit_stream[0]), GPUPOOL_OK);
        CHECK_RESULT(gpupool_check(r->arena), GPUPOOL_OK);
        r->spare[i] = NULL;
        return 1;
    }
    return 0;
}

static void the_callback_frees_and_the_call_succeeds(void) {
    for (size_t i = 0; i < KIT_SOURCES; i++) {
        if (kit_sources[i].source == GPUPOOL_SOURCE_CUSTOM) continue; /* user is taken there */
        check_case("%s", kit_sources[i].name);
        rescue r;
        memset(&r, 0, sizeof r);
        gpupool_arena_config config = kit_config(kit_sources[i].source);
        config.limit_bytes = 32 * MIB;
        config.on_out_of_memory = free_a_spare;
        config.user = &r;
        r.arena = kit_create(&config);
        for (size_t k = 0; k < 3; k++) r.spare[k] = kit_alloc(r.arena, 10 * MIB, kit_stream[0]);
        CHECK_EQ(r.calls, 0);
        void *block = kit_alloc(r.arena, 20 * MIB, kit_stream[0]); /* needs two of the three */
        CHECK_EQ(r.calls, 2);
        CHECK_EQ(r.asked, 20 * MIB);
        r.give_up = 1;
        CHECK_RESULT(kit_why(gpupool_alloc(r.arena, 20 * MIB, kit_stream[0])),
                     GPUPOOL_E_OUT_OF_MEMORY);
        CHECK_EQ(r.calls, 3);
        r.give_up = 0; /* frees the last, asks again, and then has nothing more to free */
        CHECK_RESULT(kit_why(gpupool_alloc(r.arena, 31 * MIB, kit_stream[0])),
                     GPUPOOL_E_OUT_OF_MEMORY);
        CHECK_EQ(r.calls, 5);
        CHECK_EQ(kit_stats(r.arena).blocks.now, 1);
        CHECK_RESULT(gpupool_free(r.arena, block, kit_stream[0]), GPUPOOL_OK);
        kit_close(r.arena);
    }
}

static int free_and_leave(const gpupool_verdict *verdict, void *user) {
    int freed = free_a_spare(verdict, user);
    CHECK_EQ(cudaSetDevice(1), cudaSuccess);
    return freed;
}

/* Stream 0 is another one where the callback has left for another device. */
static void zeros_come_on_the_arenas_device(void) {
    rescue r;
    int current = -1;
    memset(&r, 0, sizeof r);
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_AUTO);
    config.limit_bytes = 32 * MIB;
    config.on_out_of_memory = free_and_leave;
    config.user = &r;
    r.arena = kit_create(&config);
    r.spare[0] = kit_alloc(r.arena, 20 * MIB, kit_stream[0]);
    void *block = gpupool_zalloc(r.arena, 20 * MIB, cudaStreamLegacy);
    CHECK_EQ(r.calls, 1);
    CHECK_EQ(cudaGetDevice(&current), cudaSuccess);
    CHECK_EQ(current, 1); /* where the callback has gone */
    CHECK_EQ(cudaSetDevice(0), cudaSuccess);
    kit_expect(cudaStreamLegacy, block, 20 * MIB, 0); /* the oracle watches */
    CHECK_RESULT(gpupool_free(r.arena, block, cudaStreamLegacy), GPUPOOL_OK);
    kit_close(r.arena);
}

static int seen_device;
static enum cudaStreamCaptureMode seen_mode;

static enum cudaStreamCaptureMode mode_now(void) {
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed, was;
    CHECK_EQ(cudaThreadExchangeStreamCaptureMode(&mode), cudaSuccess);
    was = mode;
    CHECK_EQ(cudaThreadExchangeStreamCaptureMode(&mode), cudaSuccess);
    return was;
}

static int look_around(const gpupool_verdict *verdict, void *user) {
    CHECK_EQ(cudaGetDevice(&seen_device), cudaSuccess);
    seen_mode = mode_now();
    return free_a_spare(verdict, user);
}

/* Whichever call it is of: the callback is the caller's, and runs as the caller does. */
static void the_callback_runs_as_the_caller_does(void) {
    for (int i = 0; i < 6; i++) {
        enum cudaStreamCaptureMode mode = (enum cudaStreamCaptureMode)(i / 2);
        rescue r;
        check_case("mode %d, zalloc %d", i / 2, i % 2);
        memset(&r, 0, sizeof r);
        gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_AUTO);
        config.limit_bytes = 32 * MIB;
        config.on_out_of_memory = look_around;
        config.user = &r;
        r.arena = kit_create(&config);
        r.spare[0] = kit_alloc(r.arena, 20 * MIB, kit_stream[0]);
        CHECK_EQ(cudaSetDevice(1), cudaSuccess);
        CHECK_EQ(cudaThreadExchangeStreamCaptureMode(&mode), cudaSuccess);
        void *block = i % 2 ? gpupool_zalloc(r.arena, 20 * MIB, kit_stream[0])
                            : gpupool_alloc(r.arena, 20 * MIB, kit_stream[0]);
        CHECK_EQ(r.calls, 1);
        CHECK_EQ(seen_device, 1);
        CHECK_EQ(seen_mode, i / 2);
        CHECK_EQ(mode_now(), i / 2);
        CHECK_EQ(cudaThreadExchangeStreamCaptureMode(&mode), cudaSuccess);
        CHECK_EQ(cudaSetDevice(0), cudaSuccess);
        CHECK_RESULT(gpupool_free(r.arena, block, kit_stream[0]), GPUPOOL_OK);
        kit_close(r.arena);
    }
}

#if CHECK_FAKE
/* Takes 60 of the device's 64 MiB, then a block that fits only in a smaller chunk than usual. With
   `free_bytes` the block begins in free memory, or is stitched with it. */
static void take_the_last(gpupool_source source, size_t free_bytes, size_t bytes) {
    gpupool_arena_config config = kit_config(source);
    void *block[3], *last;
    check_case("source %d, %zu bytes free", (int)source, free_bytes);
    fake_device_memory(0, 64 * MIB);
    config.chunk_bytes = 8 * MIB;
    gpupool_arena *arena = kit_create(&config);
    for (int b = 0; b < 3; b++) block[b] = kit_alloc(arena, 20 * MIB, kit_stream[0]);
    if (free_bytes) {
        CHECK_RESULT(gpupool_free(arena, block[0], kit_stream[0]), GPUPOOL_OK);
        block[0] = kit_alloc(arena, 20 * MIB - free_bytes, kit_stream[0]);
    }
    CHECK_EQ(kit_reserved(arena), 60 * MIB);
    CHECK(kit_fits(arena, bytes, NULL));
    last = kit_alloc(arena, bytes, kit_stream[0]);
    CHECK(kit_reserved(arena) > 60 * MIB);
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    CHECK_RESULT(gpupool_free(arena, last, kit_stream[0]), GPUPOOL_OK);
    for (int b = 0; b < 3; b++)
        CHECK_RESULT(gpupool_free(arena, block[b], kit_stream[0]), GPUPOOL_OK);
    kit_close(arena);
}

static void the_last_of_the_device(void) {
    take_the_last(GPUPOOL_SOURCE_MAPPED, 0, MIB);
    take_the_last(GPUPOOL_SOURCE_MAPPED, 17 * MIB, 18 * MIB);
    take_the_last(GPUPOOL_SOURCE_DEVICE, 0, MIB);
}
#endif

int main(void) {
    FAKE_TEST(the_last_of_the_device);
    ARENA_TEST(the_limit_is_the_cause);
    ARENA_TEST(raising_the_limit_by_what_is_missing_helps);
    FAKE_TEST(the_device_is_the_cause);
    ARENA_TEST(the_verdict_belongs_to_the_last_refusal);
    ARENA_TEST(a_reserve_above_the_limit);
    ARENA_TEST(would_fit_agrees_with_alloc);
    ARENA_TEST(available_can_be_had);
    ARENA_TEST(available_under_odd_limits);
    ARENA_TEST(available_of_awkward_chunks);
    FAKE_TEST(no_wait_for_what_can_never_be);
    FAKE_TEST(no_wait_for_what_others_free_meanwhile);
    FAKE_TEST(all_that_was_free_before_is_waited_for);
    ARENA_TEST(idle_chunks_stay_where_they_would_not_do);
    ARENA_TEST(idle_chunks_stay_where_the_device_is_too_small);
    FAKE_TEST(idle_chunks_go_where_all_of_them_do);
    FAKE_TEST(idle_chunks_go_where_limit_and_device_are_met);
    FAKE_TEST(idle_chunks_go_where_the_limit_is_met_first);
    FAKE_TEST(large_chunks_make_room_on_a_full_device);
    FAKE_TEST(own_chunks_make_room);
    FAKE_TEST(available_of_pinned_memory);
    ARENA_TEST(would_fit_of_no_size);
    FAKE_TEST(would_fit_of_pinned_memory_in_use);
    ARENA_TEST(the_callback_frees_and_the_call_succeeds);
    if (kit_devices() > 1) {
        ARENA_TEST(zeros_come_on_the_arenas_device);
        ARENA_TEST(the_callback_runs_as_the_caller_does);
    } else {
        check_skip("zeros_come_on_the_arenas_device", "needs two devices");
        check_skip("the_callback_runs_as_the_caller_does", "needs two devices");
    }
    return check_finish();
}
