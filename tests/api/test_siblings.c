/* Several arenas of one device: what is idle in one is given back before a request of another one
   fails, and what the verdict says of them. */
// build: plain
// build: asan -fsanitize=address,undefined -DEVERY=5
// build: check2 -O1 -DGPUPOOL_CHECK=2 -DEVERY=5
// build: tsan -fsanitize=thread -DEVERY=25
// build: single -DGPUPOOL_SINGLE_THREAD=1
#include "gpupool.h"
#include "verdict_kit.h"

#include <pthread.h>

#if CHECK_FAKE

static gpupool_arena *named(const char *name, gpupool_source source, size_t reserve) {
    gpupool_arena_config config = kit_config(source);
    config.name = name;
    config.reserve_bytes = reserve;
    return kit_create(&config);
}

static gpupool_arena *first, *second; /* the one has something, and the other one asks */

static void open_both(gpupool_source has, gpupool_source asks) {
    fake_device_memory(0, 16 * GIB);
    first = named("A", has, 0);
    second = named("B", asks, 0);
}

static void close_both(void) {
    kit_close(second);
    kit_close(first);
}

/* 12 GiB of 16, in some blocks, freed again. */
static void leave_idle(gpupool_arena *arena, int blocks) {
    void *block[12];
    for (int i = 0; i < blocks; i++)
        block[i] = kit_alloc(arena, 12 * GIB / (size_t)blocks, kit_stream[1]);
    for (int i = 0; i < blocks; i++)
        CHECK_RESULT(gpupool_free(arena, block[i], kit_stream[1]), GPUPOOL_OK);
}

static void open_beside_idle(int blocks) {
    open_both(GPUPOOL_SOURCE_AUTO, GPUPOOL_SOURCE_AUTO);
    leave_idle(first, blocks);
}

static void idle_memory_is_given_back(void) {
    for (size_t a = 0; a < KIT_SOURCES; a++)
        for (size_t b = 0; b < KIT_SOURCES; b++) {
            if (kit_sources[a].source == GPUPOOL_SOURCE_PINNED ||
                kit_sources[a].source == GPUPOOL_SOURCE_MANAGED ||
                kit_sources[b].source == GPUPOOL_SOURCE_PINNED ||
                kit_sources[b].source == GPUPOOL_SOURCE_MANAGED ||
                kit_sources[a].source == GPUPOOL_SOURCE_CUSTOM) /* it is the caller's */
                continue;
            check_case("%s, then %s", kit_sources[a].name, kit_sources[b].name);
            open_both(kit_sources[a].source, kit_sources[b].source);
            leave_idle(first, a % 2 ? 12 : 1);
            gpupool_verdict v;
            if (kit_sources[b].source != GPUPOOL_SOURCE_CUSTOM)
                CHECK(kit_fits(second, 8 * GIB, &v) || !printf("%s\n", v.sentence));
            CHECK(kit_available(second) >= 8 * GIB && kit_available(second) <= 16 * GIB);
            fits(second, 8 * GIB);
            void *block = kit_alloc(second, 8 * GIB, kit_stream[0]);
            kit_mark(kit_stream[0], block, 8 * GIB, 5);
            CHECK_RESULT(gpupool_free(second, block, kit_stream[0]), GPUPOOL_OK);
            close_both();
        }
}

/* What several streams use, and not all are done with, is not idle. */
static void what_others_still_use_is_not_idle(void) {
    open_both(GPUPOOL_SOURCE_AUTO, GPUPOOL_SOURCE_AUTO);
    void *block = kit_alloc(first, 12 * GIB, kit_stream[1]);
    fake_mode(FAKE_STEPPED);
    kit_expect(kit_stream[2], block, 64, -1);
    CHECK_RESULT(gpupool_record_stream(first, block, kit_stream[2]), GPUPOOL_OK);
    CHECK_RESULT(gpupool_free(first, block, kit_stream[1]), GPUPOOL_OK);
    CHECK(kit_available(second) <= 4 * GIB);
    fake_mode(FAKE_EAGER);
    CHECK_RESULT(gpupool_wait_all(first), GPUPOOL_OK);
    CHECK(kit_available(second) > 12 * GIB);
    close_both();
}

/* The first has most of the device, freed while a kernel still uses it. */
static void open_with_work_in_flight(void) {
    open_both(GPUPOOL_SOURCE_AUTO, GPUPOOL_SOURCE_AUTO);
    void *block = kit_alloc(first, 12 * GIB, kit_stream[1]);
    fake_mode(FAKE_STEPPED);
    kit_fill(kit_stream[1], block, 4096, 1);
    CHECK_RESULT(gpupool_free(first, block, kit_stream[1]), GPUPOOL_OK);
}

/* What is still in use, as far as anybody knows, is waited for. */
static void pending_memory_is_waited_for(void) {
    open_with_work_in_flight();
    void *block = kit_alloc(second, 8 * GIB, kit_stream[0]);
    kit_fill(kit_stream[0], block, 4096, 2);
    CHECK_RESULT(gpupool_free(second, block, kit_stream[0]), GPUPOOL_OK);
    fake_mode(FAKE_EAGER);
    close_both();
}

/* Live blocks stay, and so does what the other arena is to keep. */
static void what_is_to_stay_stays(void) {
    fake_device_memory(0, 16 * GIB);
    first = named("A", GPUPOOL_SOURCE_AUTO, 10 * GIB);
    second = named("B", GPUPOOL_SOURCE_AUTO, 0);
    leave_idle(first, 12);
    CHECK(!kit_fits(second, 8 * GIB, NULL));
    CHECK_RESULT(kit_why(gpupool_alloc(second, 8 * GIB, 0)), GPUPOOL_E_OUT_OF_MEMORY);
    CHECK(kit_reserved(first) >= 10 * GIB);
    fits(second, 5 * GIB);
    CHECK(kit_reserved(first) >= 10 * GIB);
    void *block = kit_alloc(first, 11 * GIB, kit_stream[1]);
    kit_mark(kit_stream[1], block, 11 * GIB, 3);
    CHECK_RESULT(kit_why(gpupool_alloc(second, 8 * GIB, 0)), GPUPOOL_E_OUT_OF_MEMORY);
    kit_expect_mark(kit_stream[1], block, 11 * GIB, 3);
    CHECK_RESULT(gpupool_free(first, block, kit_stream[1]), GPUPOOL_OK);
    close_both();
}

/* So does the reserve of a tag, which no question counts, either. */
static void the_reserve_of_a_tag_stays(void) {
    gpupool_tag_config config;
    int tag;
    open_both(GPUPOOL_SOURCE_MAPPED, GPUPOOL_SOURCE_MAPPED);
    memset(&config, 0, sizeof config);
    config.reserve_bytes = 10 * GIB;
    CHECK_RESULT(gpupool_tag(first, "kv", &config, &tag), GPUPOOL_OK);
    CHECK(kit_available(second) <= 6 * GIB);
    CHECK(!kit_fits(second, 8 * GIB, NULL));
    CHECK_RESULT(kit_why(gpupool_alloc(second, 8 * GIB, 0)), GPUPOOL_E_OUT_OF_MEMORY);
    CHECK_EQ(kit_reserved(first), 10 * GIB);
    fits(second, kit_available(second));
    close_both();
}

/* All that is idle is there for the other, to the last chunk; a question leaves it where it is. */
static void a_question_counts_all(void) {
    open_both(GPUPOOL_SOURCE_AUTO, GPUPOOL_SOURCE_AUTO);
    size_t available = kit_available(second);
    leave_idle(first, 1);
    gpupool_stats before = kit_stats(first);
    CHECK(before.pending.now > 0);
    CHECK_EQ(kit_available(second), available);
    CHECK(kit_fits(second, available, NULL));
    kit_same_stats(before, kit_stats(first));
    fits(second, available);
    close_both();
}

/* It counts what each of several others has idle, and nothing of what is live there. */
static void a_question_counts_each(void) {
    void *live[2], *idle[2];
    gpupool_arena *other[2];
    fake_device_memory(0, 16 * GIB);
    second = named("B", GPUPOOL_SOURCE_AUTO, 0);
    size_t available = kit_available(second);
    for (int i = 0; i < 2; i++) {
        other[i] = named("other", GPUPOOL_SOURCE_DEVICE, 0);
        live[i] = kit_alloc(other[i], 2 * GIB, kit_stream[1]);
        idle[i] = kit_alloc(other[i], 3 * GIB, kit_stream[1]);
        CHECK_RESULT(gpupool_free(other[i], idle[i], kit_stream[1]), GPUPOOL_OK);
    }
    CHECK_EQ(kit_available(second), available - 4 * GIB);
    CHECK(kit_fits(second, 12 * GIB, NULL));
    CHECK(!kit_fits(second, 12 * GIB + MIB, NULL));
    fits(second, 12 * GIB);
    for (int i = 0; i < 2; i++)
        CHECK_RESULT(gpupool_free(other[i], live[i], kit_stream[1]), GPUPOOL_OK);
    for (int i = 0; i < 2; i++) kit_close(other[i]);
    kit_close(second);
}

/* Others give for a request of all that the device has, and for none that is larger. */
static void the_whole_device(void) {
    open_beside_idle(1);
    size_t before = kit_reserved(first);
    CHECK(before >= 12 * GIB);
    CHECK_RESULT(kit_why(gpupool_alloc(second, 17 * GIB, kit_stream[0])),
                 GPUPOOL_E_OUT_OF_MEMORY);
    CHECK_EQ(kit_reserved(first), before);
    fits(second, 16 * GIB);
    CHECK_EQ(kit_reserved(first), 0);
    close_both();
}

/* Others give for a request of all that the limit leaves, and for none that is larger. */
static void all_that_the_limit_leaves(void) {
    fake_device_memory(0, 16 * GIB);
    first = named("A", GPUPOOL_SOURCE_AUTO, 0);
    second = kit_open_limited(GPUPOOL_SOURCE_AUTO, 8 * GIB);
    leave_idle(first, 1);
    size_t before = kit_reserved(first);
    CHECK_RESULT(kit_why(gpupool_alloc(second, 8 * GIB + 1, kit_stream[0])),
                 GPUPOOL_E_OUT_OF_MEMORY);
    CHECK_EQ(kit_reserved(first), before);
    fits(second, 8 * GIB);
    CHECK(kit_reserved(first) < before);
    close_both();
}

/* Small blocks that another arena keeps in a cache, in a chunk that was divided for them, do not
   hold the chunk back. */
static void what_small_blocks_leave(void) {
    void *small[4], *block;
    fake_device_memory(0, 64 * MIB);
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
    config.chunk_bytes = 48 * MIB;
    first = kit_create(&config);
    second = named("B", GPUPOOL_SOURCE_MAPPED, 0);
    for (int i = 0; i < 4; i++) small[i] = kit_alloc(first, 512, kit_stream[1]);
    for (int i = 0; i < 4; i++)
        CHECK_RESULT(gpupool_free(first, small[i], kit_stream[1]), GPUPOOL_OK);
    CHECK_EQ(kit_reserved(first), 48 * MIB);
    block = kit_alloc(second, 32 * MIB, kit_stream[0]);
    CHECK_EQ(kit_reserved(first), 0);
    CHECK_RESULT(gpupool_free(second, block, kit_stream[0]), GPUPOOL_OK);
    close_both();
}

/* Of many others each gives a little: all of them in one round. */
static void many_give_a_little(void) {
    enum { OTHERS = 10 };
    gpupool_arena *other[OTHERS];
    fake_device_memory(0, 6 * OTHERS * GIB);
    for (int i = 0; i < OTHERS; i++) {
        other[i] = named("other", GPUPOOL_SOURCE_DEVICE, 5 * GIB);
        void *kept = kit_alloc(other[i], 5 * GIB, kit_stream[1]);
        void *more = kit_alloc(other[i], GIB, kit_stream[1]);
        CHECK_RESULT(gpupool_free(other[i], kept, kit_stream[1]), GPUPOOL_OK);
        CHECK_RESULT(gpupool_free(other[i], more, kit_stream[1]), GPUPOOL_OK);
    }
    second = named("B", GPUPOOL_SOURCE_DEVICE, 0);
    void *block = kit_alloc(second, OTHERS * GIB, kit_stream[0]);
    CHECK_RESULT(gpupool_free(second, block, kit_stream[0]), GPUPOOL_OK);
    for (int i = 0; i < OTHERS; i++) {
        CHECK_EQ(kit_reserved(other[i]), 5 * GIB);
        kit_close(other[i]);
    }
    kit_close(second);
}

/* The second that is asked gives what is still lacking, and no more. */
static void the_rest_comes_from_the_next(void) {
    fake_device_memory(0, 16 * GIB);
    gpupool_arena *last = named("A", GPUPOOL_SOURCE_DEVICE, 0);
    leave_idle(last, 12);
    gpupool_arena *next = named("C", GPUPOOL_SOURCE_DEVICE, 0);
    void *block = kit_alloc(next, 4 * GIB, kit_stream[1]);
    CHECK_RESULT(gpupool_free(next, block, kit_stream[1]), GPUPOOL_OK);
    second = named("B", GPUPOOL_SOURCE_DEVICE, 0);
    block = kit_alloc(second, 8 * GIB, kit_stream[0]);
    CHECK_EQ(kit_reserved(next), 0);
    CHECK_EQ(kit_reserved(last), 8 * GIB);
    CHECK_RESULT(gpupool_free(second, block, kit_stream[0]), GPUPOOL_OK);
    kit_close(second);
    kit_close(next);
    kit_close(last);
}

/* Once one has given enough, or more, the next is not asked: nothing happens there that its record
   of calls would show. */
static void who_is_not_needed_is_left_alone(void) {
    for (int chunks = 1; chunks <= 2; chunks++) {
        FILE *file = tmpfile();
        fake_device_memory(0, 16 * GIB);
        gpupool_arena *last = named("A", GPUPOOL_SOURCE_DEVICE, 0);
        gpupool_arena *next = named("C", GPUPOOL_SOURCE_DEVICE, 0);
        void *block[2], *idle = kit_alloc(last, 4 * GIB, kit_stream[1]);
        CHECK_RESULT(gpupool_free(last, idle, kit_stream[1]), GPUPOOL_OK);
        size_t each = 12 * GIB / (size_t)chunks;
        for (int i = 0; i < chunks; i++) block[i] = kit_alloc(next, each, kit_stream[1]);
        for (int i = 0; i < chunks; i++)
            CHECK_RESULT(gpupool_free(next, block[i], kit_stream[1]), GPUPOOL_OK);
        second = named("B", GPUPOOL_SOURCE_DEVICE, 0);
        CHECK_RESULT(gpupool_set_trace(last, file), GPUPOOL_OK);
        long begun = ftell(file);
        fits(second, 6 * GIB);
        CHECK_EQ(kit_reserved(next), (size_t)(chunks - 1) * each);
        CHECK_RESULT(gpupool_set_trace(last, NULL), GPUPOOL_OK);
        CHECK_EQ(ftell(file), begun);
        CHECK_EQ(kit_reserved(last), 4 * GIB);
        fclose(file);
        kit_close(second);
        kit_close(next);
        kit_close(last);
    }
}

/* Chunks that the caller has lent an arena stay there: they are not the device's to hand on. */
static void what_the_caller_lent_stays(void) {
    open_both(GPUPOOL_SOURCE_CUSTOM, GPUPOOL_SOURCE_AUTO);
    leave_idle(first, 12);
    CHECK_RESULT(gpupool_trim(first, SIZE_MAX, NULL), GPUPOOL_OK); /* and it is known to be idle */
    size_t before = kit_reserved(first);
    CHECK_RESULT(kit_why(gpupool_alloc(second, 8 * GIB, 0)), GPUPOOL_E_OUT_OF_MEMORY);
    CHECK_EQ(kit_reserved(first), before);
    close_both();
}

/* How often one request that is refused asks the driver for memory. */
static long tries_of_a_refusal(gpupool_arena *arena, unsigned flags) {
    long before = fake_calls("cuMemCreate");
    CHECK_RESULT(kit_why(kit_alloc_as(arena, 8 * GIB, kit_stream[0], flags)),
                 GPUPOOL_E_OUT_OF_MEMORY);
    return fake_calls("cuMemCreate") - before;
}

/* Another arena has nothing to give: it is not waited for, and a request that is refused tries
   twice, before it asks the other and after. */
static void nothing_to_give(void) {
    fake_device_memory(0, 16 * GIB);
    second = named("B", GPUPOOL_SOURCE_AUTO, 0);
    fake_other_process(0, 12 * GIB);
    long once = tries_of_a_refusal(second, 0);
    CHECK(once > 0);
    fake_other_process(0, 0);
    first = named("A", GPUPOOL_SOURCE_AUTO, 0);
    void *block = kit_alloc(first, 12 * GIB, kit_stream[1]);
    CHECK_EQ(tries_of_a_refusal(second, 0), 2 * once);
    CHECK_EQ(tries_of_a_refusal(second, GPUPOOL_NO_WAIT), 2 * once);
    CHECK_EQ(kit_stats(first).host_syncs, 0);
    CHECK_RESULT(gpupool_free(first, block, kit_stream[1]), GPUPOOL_OK);
    close_both();
}

/* Where others cannot help, since the limit is in the way, a request tries no oftener either. */
static void no_help_behind_a_limit(void) {
    long asked[2];
    first = NULL;
    for (int others = 0; others < 2; others++) {
        fake_device_memory(0, 16 * GIB);
        if (others) first = named("A", GPUPOOL_SOURCE_AUTO, 0);
        second = kit_open_limited(GPUPOOL_SOURCE_AUTO, GIB);
        fake_reset_counters();
        CHECK_RESULT(kit_why(gpupool_alloc(second, 2 * GIB, kit_stream[0])),
                     GPUPOOL_E_OUT_OF_MEMORY);
        asked[others] = fake_calls("cuStreamIsCapturing");
        kit_close(second);
    }
    CHECK(asked[0] > 0);
    CHECK_EQ(asked[1], 2 * asked[0]); /* before it asks for the other's figures, and after */
    kit_close(first);
}

/* A block that begins in free memory needs less than its size, by the limit and of the others. */
static void what_the_limit_leaves_for_a_part(void) {
    open_beside_idle(2);
    void *live = kit_alloc(second, 2 * GIB, kit_stream[0]);
    void *idle = kit_alloc(second, 2 * GIB, kit_stream[0]);
    CHECK_RESULT(gpupool_free(second, idle, kit_stream[0]), GPUPOOL_OK);
    CHECK_RESULT(gpupool_set_limit(second, 5 * GIB), GPUPOOL_OK);
    fits(second, 3 * GIB);
    CHECK_RESULT(gpupool_free(second, live, kit_stream[0]), GPUPOOL_OK);
    close_both();
}

/* So it does where the free memory is of a chunk that stays. Behind a limit that leaves less,
   others keep what they have. */
static void what_the_limit_leaves_beside_a_live_block(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
    config.chunk_bytes = 32 * MIB;
    fake_device_memory(0, 64 * MIB);
    first = named("A", GPUPOOL_SOURCE_MAPPED, 0);
    second = kit_create(&config);
    void *live = kit_alloc(second, 16 * MIB, kit_stream[0]), *idle;
    CHECK_EQ(kit_reserved(second), 32 * MIB);
    size_t free_bytes = 0, total_bytes;
    CHECK_EQ(cudaMemGetInfo(&free_bytes, &total_bytes), cudaSuccess);
    idle = kit_alloc(first, free_bytes, kit_stream[1]);
    CHECK_RESULT(gpupool_free(first, idle, kit_stream[1]), GPUPOOL_OK);
    for (size_t left = 6; left < 10; left += 2) {
        check_case("%zu MiB", left);
        CHECK_RESULT(gpupool_set_limit(second, (32 + left) * MIB), GPUPOOL_OK);
        void *block = gpupool_alloc(second, 24 * MIB, kit_stream[0]);
        CHECK_RESULT(kit_why(block), left == 8 ? GPUPOOL_OK : GPUPOOL_E_OUT_OF_MEMORY);
        CHECK_EQ(kit_reserved(first) < free_bytes, left == 8);
        if (block) CHECK_RESULT(gpupool_free(second, block, kit_stream[0]), GPUPOOL_OK);
    }
    CHECK_RESULT(gpupool_free(second, live, kit_stream[0]), GPUPOOL_OK);
    close_both();
}

/* An idle chunk of its own goes back first, and makes room under the limit for what others give. */
static void what_its_own_chunk_makes_room_for(void) {
    open_both(GPUPOOL_SOURCE_DEVICE, GPUPOOL_SOURCE_DEVICE);
    leave_idle(first, 1);
    void *live = kit_alloc(second, GIB, kit_stream[0]);
    void *idle = kit_alloc(second, 2 * GIB, kit_stream[0]);
    CHECK_RESULT(gpupool_set_limit(second, 5 * GIB), GPUPOOL_OK);
    CHECK_RESULT(gpupool_free(second, idle, kit_stream[0]), GPUPOOL_OK);
    CHECK_EQ(kit_available(second), 4 * GIB);
    CHECK(kit_fits(second, 4 * GIB, NULL));
    CHECK(!kit_fits(second, 4 * GIB + MIB, NULL));
    fits(second, 4 * GIB);
    CHECK_RESULT(gpupool_free(second, live, kit_stream[0]), GPUPOOL_OK);
    close_both();
}

/* An arena whose memory is the host's has no use for the device's. */
static void pinned_memory_is_no_others(void) {
    open_beside_idle(1);
    size_t before = kit_reserved(first);
    gpupool_arena *pinned = kit_open_limited(GPUPOOL_SOURCE_PINNED, GIB);
    CHECK(kit_fits(pinned, GIB, NULL));
    CHECK(!kit_fits(pinned, 2 * GIB, NULL));
    CHECK_RESULT(kit_why(gpupool_alloc(pinned, 2 * GIB, 0)), GPUPOOL_E_OUT_OF_MEMORY);
    CHECK_EQ(kit_reserved(first), before);
    kit_close(pinned);
    close_both();
}

/* In the record of its calls an arena that gives memory back says so, and none that gives none. */
static void what_is_given_is_recorded(void) {
    char line[100];
    int lines = 0;
    FILE *file = tmpfile();
    open_both(GPUPOOL_SOURCE_AUTO, GPUPOOL_SOURCE_AUTO);
    void *block = kit_alloc(first, 12 * GIB, kit_stream[1]);
    CHECK_RESULT(gpupool_set_trace(first, file), GPUPOOL_OK);
    CHECK_RESULT(kit_why(gpupool_alloc(second, 8 * GIB, kit_stream[0])), GPUPOOL_E_OUT_OF_MEMORY);
    CHECK_RESULT(gpupool_free(first, block, kit_stream[1]), GPUPOOL_OK);
    fits(second, 8 * GIB);
    CHECK_RESULT(gpupool_set_trace(first, NULL), GPUPOOL_OK);
    rewind(file);
    while (fgets(line, sizeof line, file))
        if (!strncmp(line, "t ", 2)) {
            lines++;
            CHECK_EQ(strtoull(line + 2, NULL, 10), kit_reserved(first));
        }
    CHECK_EQ(lines, 1);
    fclose(file);
    close_both();
}

static void fill_the_device(void *unused) {
    fake_other_process(0, 16 * GIB - fake_used_bytes(0));
    fake_before_call("cuMemCreate", 1, fill_the_device, unused);
}

/* Another process takes what is given back, each time: after eight times the request fails. */
static void others_take_what_is_given(void) {
    open_both(GPUPOOL_SOURCE_DEVICE, GPUPOOL_SOURCE_MAPPED);
    leave_idle(first, 12);
    CHECK_EQ(kit_stats(first).chunks_gained, 12);
    fake_before_call("cuMemCreate", 1, fill_the_device, NULL);
    CHECK_RESULT(kit_why(gpupool_alloc(second, GIB, kit_stream[0])), GPUPOOL_E_OUT_OF_MEMORY);
    CHECK_EQ(kit_stats(first).chunks_lost, 8);
    fake_before_call("cuMemCreate", 0, NULL, NULL);
    fake_other_process(0, 0);
    fits(second, GIB);
    close_both();
}

/* So does a reserve. */
static void others_take_what_a_reserve_needs(void) {
    gpupool_tag_config config;
    int tag;
    memset(&config, 0, sizeof config);
    config.reserve_bytes = GIB;
    open_both(GPUPOOL_SOURCE_DEVICE, GPUPOOL_SOURCE_MAPPED);
    leave_idle(first, 12);
    fake_before_call("cuMemCreate", 1, fill_the_device, NULL);
    CHECK_RESULT(gpupool_tag(second, "kv", &config, &tag), GPUPOOL_E_OUT_OF_MEMORY);
    CHECK_EQ(kit_stats(first).chunks_lost, 8);
    fake_before_call("cuMemCreate", 0, NULL, NULL);
    fake_other_process(0, 0);
    CHECK_RESULT(gpupool_tag(second, "kv", &config, &tag), GPUPOOL_OK);
    close_both();
}

/* Where the limit leaves no room for a reserve, others give nothing for it. */
static void a_reserve_behind_a_limit(void) {
    gpupool_tag_config config;
    int tag;
    memset(&config, 0, sizeof config);
    config.reserve_bytes = 5 * GIB;
    open_beside_idle(1);
    size_t before = kit_reserved(first);
    void *idle = kit_alloc(second, 3 * GIB, kit_stream[0]);
    CHECK_RESULT(gpupool_free(second, idle, kit_stream[0]), GPUPOOL_OK);
    CHECK_RESULT(gpupool_set_limit(second, 5 * GIB), GPUPOOL_OK);
    CHECK_RESULT(gpupool_tag(second, "kv", &config, &tag), GPUPOOL_E_OUT_OF_MEMORY);
    CHECK_EQ(kit_reserved(first), before);
    /* and now just enough */
    CHECK_RESULT(gpupool_set_limit(second, kit_reserved(second) + 5 * GIB), GPUPOOL_OK);
    CHECK_RESULT(gpupool_tag(second, "kv", &config, &tag), GPUPOOL_OK);
    CHECK(kit_reserved(first) < before);
    close_both();
}

static gpupool_arena *lender;
static int lends; /* how often yet */

static int lend_again(const gpupool_verdict *verdict, void *unused) {
    (void)verdict, (void)unused;
    if (lends-- == 0) return 0;
    fake_other_process(0, 0);
    leave_idle(lender, 12);
    return 1;
}

/* Where on_out_of_memory has the request tried again, the others are asked anew, as often. */
static void asked_anew_after_a_verdict(void) {
    fake_device_memory(0, 16 * GIB);
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
    config.on_out_of_memory = lend_again;
    lender = named("A", GPUPOOL_SOURCE_DEVICE, 0);
    second = kit_create(&config);
    leave_idle(lender, 12);
    lends = 1;
    fake_before_call("cuMemCreate", 1, fill_the_device, NULL);
    CHECK_RESULT(kit_why(gpupool_alloc(second, GIB, kit_stream[0])), GPUPOOL_E_OUT_OF_MEMORY);
    CHECK_EQ(lends, -1);
    CHECK_EQ(kit_stats(lender).chunks_lost, 2 * 8);
    fake_before_call("cuMemCreate", 0, NULL, NULL);
    fake_other_process(0, 0);
    kit_close(second);
    kit_close(lender);
}

/* The one that holds most is named, and is not among the others. */
static void the_verdict_names_the_arena(void) {
    fake_device_memory(0, 16 * GIB);
    fake_other_process(0, GIB);
    gpupool_arena *before = named("D", GPUPOOL_SOURCE_DEVICE, 0); /* around it in the list */
    first = named("A", GPUPOOL_SOURCE_AUTO, 0);
    gpupool_arena *third = named("C", GPUPOOL_SOURCE_DEVICE, 0);
    second = named("B", GPUPOOL_SOURCE_AUTO, 0);
    void *block = kit_alloc(first, 10 * GIB, 0), *small = kit_alloc(third, GIB / 2, 0);
    void *little = kit_alloc(before, GIB / 2, 0);
    gpupool_verdict v = refuses(second, 8 * GIB, GPUPOOL_CAUSE_OTHERS);
    CHECK(v.siblings_bytes >= 11 * GIB && v.siblings_bytes < 11 * GIB + 64 * MIB);
    CHECK(v.others_bytes >= 12 * GIB);
    CHECK(strstr(v.sentence, "arena \"A\" the most of it, 10.00 GiB") != NULL);
    CHECK(strstr(v.sentence, "gpupool_trim") != NULL);
    CHECK(strstr(v.sentence, "; other arenas of this process hold 11.00 GiB, and") != NULL);
    CHECK_RESULT(gpupool_set_limit(second, GIB), GPUPOOL_OK);
    v = refuses(second, 2 * GIB, GPUPOOL_CAUSE_LIMIT); /* in which they have no part */
    CHECK(strstr(v.sentence, "arenas") == NULL);
    CHECK_RESULT(gpupool_set_limit(second, 0), GPUPOOL_OK);
    v = refuses(second, 8 * GIB, GPUPOOL_CAUSE_OTHERS);
    size_t others = advised_bytes(&v, "others (processes, libraries, CUDA itself) hold");
    CHECK(others < 2 * GIB);
    if (atomic_load(&check_bad)) printf("  %s\n", v.sentence);
    CHECK_RESULT(gpupool_free(first, block, 0), GPUPOOL_OK); /* as advised; it trims by itself */
    fits(second, 8 * GIB);
    CHECK_RESULT(gpupool_free(third, small, 0), GPUPOOL_OK);
    CHECK_RESULT(gpupool_free(before, little, 0), GPUPOOL_OK);
    kit_close(third);
    close_both();
    kit_close(before);
}

/* All that the other arena holds, and not a byte more, is what is missing: and nobody else holds
   anything worth a word. */
static void just_what_another_holds(void) {
    open_both(GPUPOOL_SOURCE_BYPASS, GPUPOOL_SOURCE_BYPASS);
    void *block = kit_alloc(first, 12 * GIB, 0);
    gpupool_verdict v = would_not_fit(second, 8 * GIB, GPUPOOL_CAUSE_OTHERS);
    size_t bytes = (size_t)(v.device_free_bytes + v.siblings_bytes);
    CHECK_EQ(v.siblings_bytes, 12 * GIB);
    v = refuses(second, bytes, GPUPOOL_CAUSE_OTHERS);
    CHECK_EQ(v.missing_bytes, v.siblings_bytes);
    CHECK(strstr(v.sentence, ": free 12.00 GiB of what those hold, and gpupool_trim them") != NULL);
    CHECK_RESULT(gpupool_free(first, block, 0), GPUPOOL_OK);
    fits(second, bytes);
    kit_close(first);
    fake_other_process(0, 12 * GIB);
    v = refuses(second, 8 * GIB, GPUPOOL_CAUSE_OTHERS);
    CHECK(strstr(v.sentence, "arenas") == NULL);
    fake_other_process(0, 0);
    kit_close(second);
}

static void behind_cudas_shape(void) {
    void *block = NULL;
    fake_device_memory(0, 16 * GIB);
    first = named("A", GPUPOOL_SOURCE_AUTO, 0);
    leave_idle(first, 12);
    CHECK_EQ(gpupool_cudaMalloc(&block, 8 * GIB), cudaSuccess);
    CHECK_EQ(gpupool_cudaFree(block), cudaSuccess);
    leave_idle(first, 1); /* and back again */
    kit_close(gpupool_get_default_arena(0));
    kit_close(first);
}

/* config.reserve_bytes of a new arena is a request, too. */
static void for_what_is_reserved_at_first(void) {
    fake_device_memory(0, 16 * GIB);
    first = named("A", GPUPOOL_SOURCE_AUTO, 0);
    leave_idle(first, 12);
    second = named("B", GPUPOOL_SOURCE_AUTO, 8 * GIB);
    CHECK(kit_reserved(second) >= 8 * GIB);
    close_both();
}

/* Another device's arena, or a limit in the way: nothing is taken from anybody. */
static void no_more_than_helps(void) {
    fake_device_memory(0, 16 * GIB);
    first = named("A", GPUPOOL_SOURCE_AUTO, 0);
    second = kit_open_limited(GPUPOOL_SOURCE_AUTO, 2 * GIB);
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_AUTO);
    config.device = 1;
    gpupool_arena *third = kit_create(&config);
    leave_idle(first, 12);
    size_t before = kit_reserved(first);
    CHECK_RESULT(kit_why(gpupool_alloc(second, 8 * GIB, 0)), GPUPOOL_E_OUT_OF_MEMORY);
    fake_device_memory(1, GIB);
    CHECK_RESULT(kit_why(gpupool_alloc(third, 8 * GIB, 0)), GPUPOOL_E_OUT_OF_MEMORY);
    CHECK_EQ(kit_reserved(first), before);
    gpupool_arena *fourth = named("D", GPUPOOL_SOURCE_AUTO, 0);
    fits(fourth, 5 * GIB); /* which lacks one */
    CHECK(kit_reserved(first) >= 6 * GIB);
    kit_close(fourth);
    kit_close(third);
    close_both();
}

/* A chunk_alloc that is itself a request of another arena, while its own arena grows. */
static gpupool_arena *beneath;
static void *chunk_of_beneath(size_t bytes, int device, void *user) {
    (void)device, (void)user;
    return gpupool_alloc(beneath, bytes, 0);
}
static void chunk_to_beneath(void *chunk, size_t bytes, int device, void *user) {
    (void)bytes, (void)device, (void)user;
    CHECK_RESULT(gpupool_free(beneath, chunk, 0), GPUPOOL_OK);
}
static void from_a_chunk_alloc(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_CUSTOM);
    fake_device_memory(0, 16 * GIB);
    first = named("A", GPUPOOL_SOURCE_AUTO, 0);
    beneath = named("beneath", GPUPOOL_SOURCE_AUTO, 0);
    config.chunk_alloc = chunk_of_beneath;
    config.chunk_free = chunk_to_beneath;
    gpupool_arena *above = kit_create(&config);
    leave_idle(first, 12);
    fits(above, 8 * GIB);
    CHECK_RESULT(kit_why(gpupool_alloc(above, 17 * GIB, 0)), GPUPOOL_E_OUT_OF_MEMORY);
    kit_close(above);
    kit_close(beneath);
    kit_close(first);
}

/* While a stream captures nobody is waited for, and no capture is lost. */
static void while_a_stream_captures(void) {
    cudaGraph_t graph = NULL;
    open_beside_idle(12);
    CHECK_EQ(cudaStreamBeginCapture(kit_stream[0], cudaStreamCaptureModeGlobal), cudaSuccess);
    void *block = gpupool_alloc(second, 8 * GIB, kit_stream[0]);
    CHECK_EQ(cudaStreamEndCapture(kit_stream[0], &graph), cudaSuccess);
    CHECK_EQ(cudaGraphDestroy(graph), cudaSuccess);
    if (block) CHECK_RESULT(gpupool_free(second, block, kit_stream[0]), GPUPOOL_OK);
    close_both();
}

/* Nor while another stream captures: what is idle helps all the same. */
static void while_another_stream_captures(void) {
    cudaGraph_t graph = NULL;
    open_beside_idle(12);
    CHECK_EQ(cudaStreamBeginCapture(kit_stream[1], cudaStreamCaptureModeRelaxed), cudaSuccess);
    void *captured = kit_alloc(second, MIB, kit_stream[1]);
    void *block = kit_alloc(second, 8 * GIB, kit_stream[0]);
    CHECK_EQ(cudaStreamEndCapture(kit_stream[1], &graph), cudaSuccess);
    CHECK(graph != NULL);
    CHECK_EQ(cudaGraphDestroy(graph), cudaSuccess);
    CHECK_RESULT(gpupool_free(second, block, kit_stream[0]), GPUPOOL_OK);
    CHECK_RESULT(gpupool_free(second, captured, kit_stream[1]), GPUPOOL_OK);
    close_both();
}

/* What a request that may not wait does without, one that may wait gets. */
static void nothing_is_waited_for(void) {
    open_with_work_in_flight();
    int pending = fake_pending(kit_stream[1]);
    void *block = kit_alloc_as(second, 8 * GIB, kit_stream[0], GPUPOOL_NO_WAIT);
    CHECK_RESULT(kit_why(block), GPUPOOL_E_OUT_OF_MEMORY);
    CHECK(pending > 0 && fake_pending(kit_stream[1]) >= pending);
    block = kit_alloc_as(second, 8 * GIB, kit_stream[0], 0);
    CHECK_RESULT(kit_why(block), GPUPOOL_OK);
    CHECK_RESULT(gpupool_free(second, block, kit_stream[0]), GPUPOOL_OK);
    fake_mode(FAKE_EAGER);
    close_both();
}

/* Nor need it be, where the work is done and only lacks an event. */
static void what_is_done_needs_no_wait(void) {
    open_beside_idle(12);
    void *block = kit_alloc_as(second, 8 * GIB, kit_stream[0], GPUPOOL_NO_WAIT);
    CHECK_RESULT(kit_why(block), GPUPOOL_OK);
    CHECK_RESULT(gpupool_free(second, block, kit_stream[0]), GPUPOOL_OK);
    close_both();
}

/* The host's memory is in no device's way. */
static void pinned_memory_is_none_of_the_device(void) {
    gpupool_verdict v;
    open_both(GPUPOOL_SOURCE_PINNED, GPUPOOL_SOURCE_AUTO);
    void *block = kit_alloc(first, MIB, kit_stream[0]);
    v = refuses(second, 17 * GIB, GPUPOOL_CAUSE_TOO_LARGE);
    CHECK_EQ(v.siblings_bytes, 0);
    fake_other_process(0, 12 * GIB);
    v = refuses(second, 8 * GIB, GPUPOOL_CAUSE_OTHERS);
    CHECK(v.others_bytes >= 12 * GIB);
    CHECK_EQ(v.siblings_bytes, 0);
    CHECK_RESULT(gpupool_free(first, block, kit_stream[0]), GPUPOOL_OK);
    close_both();
}

/* Whichever call fails, once or from then on, both arenas are sound, and the request is met once
   CUDA works again. */
static void each_call_fails_in_turn(void) {
    for (int persist = 0; persist < 2; persist++)
        for (long n = 1, fired = 1; fired; n += EVERY) {
            check_case("call %ld, persist %d", n, persist);
            fake_device_memory(0, 64 * MIB);
            first = named("A", GPUPOOL_SOURCE_AUTO, 0);
            second = named("B", GPUPOOL_SOURCE_AUTO, 0);
            void *block = kit_alloc(first, 48 * MIB, kit_stream[1]);
            fake_mode(FAKE_STEPPED);
            kit_fill(kit_stream[1], block, 4096, 1);
            CHECK_RESULT(gpupool_free(first, block, kit_stream[1]), GPUPOOL_OK);
            fake_fail_nth(n, persist);
            block = gpupool_alloc(second, 32 * MIB, kit_stream[0]);
            fired = fake_fail_fired();
            fake_fail_clear();
            fake_mode(FAKE_EAGER);
            CHECK_RESULT(gpupool_check(first), GPUPOOL_OK);
            CHECK_RESULT(gpupool_check(second), GPUPOOL_OK);
            CHECK_EQ(kit_stats(second).blocks.now, block != NULL);
            kit_capture_globally();
            cudaGetLastError();
            if (!block) block = kit_alloc(second, 32 * MIB, kit_stream[0]);
            CHECK_RESULT(gpupool_free(second, block, kit_stream[0]), GPUPOOL_OK);
            close_both();
        }
}

#if !GPUPOOL_SINGLE_THREAD
static void *ask_in_turns(void *of) {
    gpupool_arena *arena = (gpupool_arena *)of;
    for (int i = 0; i < 100; i++) {
        void *block = gpupool_alloc(arena, 9 * GIB, 0);
        if (block) CHECK_RESULT(gpupool_free(arena, block, 0), GPUPOOL_OK);
        else CHECK_RESULT(gpupool_last_result(), GPUPOOL_E_OUT_OF_MEMORY);
        kit_fits(arena, 9 * GIB, NULL);
    }
    return NULL;
}

/* Arenas that take memory from each other, and one that ends meanwhile. */
static void by_many_threads(void) {
    pthread_t thread[3];
    gpupool_arena *arena[3];
    fake_device_memory(0, 16 * GIB);
    for (int i = 0; i < 3; i++) arena[i] = named("of a thread", GPUPOOL_SOURCE_AUTO, 0);
    for (int i = 0; i < 3; i++)
        CHECK_EQ(pthread_create(&thread[i], NULL, ask_in_turns, arena[i]), 0);
    for (int i = 0; i < 20; i++) {
        gpupool_arena *passing = named("passing", GPUPOOL_SOURCE_DEVICE, 0);
        void *block = gpupool_alloc(passing, GIB, 0);
        if (block) CHECK_RESULT(gpupool_free(passing, block, 0), GPUPOOL_OK);
        kit_close(passing);
    }
    for (int i = 0; i < 3; i++) CHECK_EQ(pthread_join(thread[i], NULL), 0);
    for (int i = 0; i < 3; i++) kit_close(arena[i]);
}
#endif
#endif

int main(void) {
    FAKE_TEST(idle_memory_is_given_back);
    FAKE_TEST(what_others_still_use_is_not_idle);
    FAKE_TEST(pending_memory_is_waited_for);
    FAKE_TEST(what_is_to_stay_stays);
    FAKE_TEST(the_reserve_of_a_tag_stays);
    FAKE_TEST(a_question_counts_all);
    FAKE_TEST(a_question_counts_each);
    FAKE_TEST(the_whole_device);
    FAKE_TEST(all_that_the_limit_leaves);
    FAKE_TEST(what_small_blocks_leave);
    FAKE_TEST(many_give_a_little);
    FAKE_TEST(the_rest_comes_from_the_next);
    FAKE_TEST(who_is_not_needed_is_left_alone);
    FAKE_TEST(what_the_caller_lent_stays);
    FAKE_TEST(nothing_to_give);
    FAKE_TEST(no_help_behind_a_limit);
    FAKE_TEST(what_the_limit_leaves_for_a_part);
    FAKE_TEST(what_the_limit_leaves_beside_a_live_block);
    FAKE_TEST(what_its_own_chunk_makes_room_for);
    FAKE_TEST(pinned_memory_is_no_others);
    FAKE_TEST(what_is_given_is_recorded);
    FAKE_TEST(others_take_what_is_given);
    FAKE_TEST(others_take_what_a_reserve_needs);
    FAKE_TEST(a_reserve_behind_a_limit);
    FAKE_TEST(asked_anew_after_a_verdict);
    FAKE_TEST(the_verdict_names_the_arena);
    FAKE_TEST(just_what_another_holds);
    FAKE_TEST(behind_cudas_shape);
    FAKE_TEST(for_what_is_reserved_at_first);
    FAKE_TEST(no_more_than_helps);
    FAKE_TEST(from_a_chunk_alloc);
    FAKE_TEST(while_a_stream_captures);
    FAKE_TEST(while_another_stream_captures);
    FAKE_TEST(nothing_is_waited_for);
    FAKE_TEST(what_is_done_needs_no_wait);
    FAKE_TEST(pinned_memory_is_none_of_the_device);
    FAKE_TEST(each_call_fails_in_turn);
#if !GPUPOOL_SINGLE_THREAD
    FAKE_TEST(by_many_threads);
#endif
    return check_finish();
}
