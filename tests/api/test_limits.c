/* The limit on reserved bytes: requests, set_limit and trim; and on_out_of_memory, which is asked
   when nothing else helps. */
#include "gpupool.h"
#include "kit.h"

#define A kit_stream[0]
#define B kit_stream[1]

static gpupool_arena *arena;

static void *get(size_t bytes) {
    return gpupool_alloc(arena, bytes, A);
}

/* Reserved memory never passes the limit, and all of it can be had. */
static void never_passed(void) {
    void *blocks[64];
    int count = 0;
    arena = kit_open(65 * MIB); /* what is odd counts to the granule below */
    while (count < 64 && (blocks[count] = get(2 * MIB)) != NULL) count++;
    CHECK_EQ(count, 32);
    CHECK_EQ(kit_stats(arena).limit, 65 * MIB);
    CHECK_EQ(kit_stats(arena).failures, 1);
    for (int i = 0; i < count; i++) kit_free(arena, blocks[i], A);
    kit_use(arena, 64 * MIB, A); /* in one piece too */
    CHECK_EQ(kit_stats(arena).reserved.peak, 64 * MIB);
    kit_close(arena);
}

static void raised(void) {
    void *block;
    arena = kit_open(8 * MIB);
    CHECK(!get(20 * MIB));
    CHECK_RESULT(gpupool_set_limit(arena, 20 * MIB), GPUPOOL_OK);
    CHECK_EQ(kit_stats(arena).limit, 20 * MIB);
    block = get(20 * MIB);
    CHECK(block);
    CHECK_RESULT(gpupool_set_limit(arena, 0), GPUPOOL_OK);
    CHECK_EQ(kit_stats(arena).limit, 0);
    kit_use(arena, 40 * MIB, A);
    kit_free(arena, block, A);
    kit_close(arena);
}

/* Idle chunks go at once; what live blocks keep stays, and nothing new comes. */
static void lowered(void) {
    void *blocks[4];
    int i;
    arena = kit_open(0);
    for (i = 0; i < 4; i++) blocks[i] = get(16 * MIB);
    kit_write(blocks[0], 16 * MIB, A, 7);
    for (i = 1; i < 4; i++) kit_free(arena, blocks[i], A);
    CHECK_RESULT(gpupool_set_limit(arena, 32 * MIB), GPUPOOL_OK);
    CHECK(kit_stats(arena).reserved.now <= 32 * MIB);
    CHECK_RESULT(gpupool_set_limit(arena, 4 * MIB), GPUPOOL_OK);
    CHECK(kit_stats(arena).reserved.now >= 16 * MIB);
    CHECK(kit_stats(arena).reserved.now < 16 * MIB + 2 * 32 * MIB);
    CHECK_EQ(kit_stats(arena).limit, 4 * MIB);
    CHECK(!get(40 * MIB));
    CHECK_EQ(gpupool_last_verdict()->cause, GPUPOOL_CAUSE_LIMIT);
    kit_verify(blocks[0], 16 * MIB, A, 7);
    kit_free(arena, blocks[0], A);
    CHECK_RESULT(gpupool_set_limit(arena, 2 * MIB), GPUPOOL_OK);
    CHECK(kit_stats(arena).reserved.now <= 2 * MIB);
    kit_close(arena);
}

/* To lower the limit waits for the work on what was freed. */
static void lowered_behind_work(void) {
    arena = kit_open(0);
    kit_delay();
    for (int i = 0; i < 3; i++) kit_use(arena, 8 * MIB, kit_stream[i]);
    CHECK_RESULT(gpupool_set_limit(arena, 2 * MIB), GPUPOOL_OK);
    CHECK(kit_stats(arena).reserved.now <= 2 * MIB);
    kit_close(arena);
}

static void trimmed(void) {
    void *small, *large;
    arena = kit_open(0);
    small = get(1000);
    large = get(100 * MIB);
    kit_write(small, 1000, A, 3);
    CHECK_RESULT(gpupool_trim(arena, 0), GPUPOOL_OK); /* nothing of it is idle */
    CHECK(kit_stats(arena).reserved.now >= 102 * MIB);
    kit_free(arena, large, A);
    CHECK_RESULT(gpupool_trim(arena, 40 * MIB), GPUPOOL_OK);
    CHECK(kit_stats(arena).reserved.now <= 40 * MIB);
    CHECK(kit_stats(arena).reserved.now > 0);
    CHECK_RESULT(gpupool_trim(arena, SIZE_MAX), GPUPOOL_OK);
    kit_verify(small, 1000, A, 3);
    kit_free(arena, small, A);
    CHECK_RESULT(gpupool_trim(arena, 0), GPUPOOL_OK);
    CHECK_EQ(kit_stats(arena).reserved.now, 0);
    CHECK_EQ(kit_stats(arena).chunks, 0);
    CHECK_EQ(kit_stats(arena).pending.now, 0);
    kit_use(arena, 1000, A); /* and the arena goes on */
    kit_close(arena);
}

/* Without waiting, a request only has what needs no wait; the same one that may wait succeeds. */
static void no_wait(void) {
#if CHECK_FAKE
    arena = kit_open(20 * MIB);
    kit_delay();
    kit_use(arena, 20 * MIB, A);
    CHECK(!kit_alloc_as(arena, 20 * MIB, 0, B, GPUPOOL_NO_WAIT));
    CHECK_EQ(gpupool_last_verdict()->cause, GPUPOOL_CAUSE_PENDING);
    CHECK_EQ(kit_stats(arena).host_waits, 0);
    kit_use(arena, 20 * MIB, B);
    kit_close(arena);
#endif
}

/* ---- on_out_of_memory ---- */

#define LIMIT (16 * MIB)

static void *spare[4]; /* what the program can do without */
static int spares, asked;

static void begin(int (*ask)(const gpupool_verdict *, void *), int count) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED, LIMIT);
    config.on_out_of_memory = ask;
    config.user = &spares;
    arena = kit_create(&config);
    asked = 0;
    for (spares = 0; spares < count; spares++) CHECK((spare[spares] = get(4 * MIB)) != NULL);
}

static void end(void) {
    while (spares) kit_free(arena, spare[--spares], A);
    kit_close(arena);
}

/* Frees what the request asks for, or all that there is. */
static int give(const gpupool_verdict *verdict, void *user) {
    uint64_t given = 0;
    asked++;
    CHECK(user == &spares);
    CHECK_EQ(verdict->cause, GPUPOOL_CAUSE_LIMIT);
    for (; spares && given < verdict->asked; given += 4 * MIB)
        kit_free(arena, spare[--spares], A);
    return given > 0;
}

/* The request is tried once more then: with NO_WAIT too, since the function is the program's own.
   Nobody is asked as long as there is memory. */
static void asked_for_more(void) {
    void *block;
    begin(give, 4);
    block = kit_alloc_as(arena, 12 * MIB, 0, A, GPUPOOL_NO_WAIT);
    CHECK(block);
    CHECK_EQ(asked, 1);
    CHECK_EQ(kit_stats(arena).failures, 0);
    CHECK_EQ(kit_stats(arena).host_waits, 0);
    kit_free(arena, block, A);
    kit_use(arena, 12 * MIB, B);
    CHECK_EQ(asked, 1);
    CHECK(!get(LIMIT + 1)); /* and nobody can help */
    CHECK_EQ(asked, 2);
    CHECK_EQ(gpupool_last_result(), GPUPOOL_E_OUT_OF_MEMORY);
    CHECK_EQ(gpupool_last_verdict()->asked, LIMIT + 1);
    CHECK_EQ(gpupool_last_verdict()->allocated, 0);
    CHECK_EQ(kit_stats(arena).failures, 1);
    end();
}

/* A request that the function itself makes fails without asking it again. */
static int ask_inside(const gpupool_verdict *verdict, void *user) {
    (void)verdict, (void)user;
    asked++;
    CHECK(!get(LIMIT + 1));
    CHECK_EQ(gpupool_last_result(), GPUPOOL_E_OUT_OF_MEMORY);
    kit_use(arena, MIB, A); /* what there is it may have */
    return 0;
}

static void not_inside_itself(void) {
    begin(ask_inside, 0);
    CHECK(!get(LIMIT + 1));
    CHECK_EQ(asked, 1);
    CHECK(!get(LIMIT + 1)); /* but in the next request it is */
    CHECK_EQ(asked, 2);
    end();
}

static int raise_the_limit(const gpupool_verdict *verdict, void *user) {
    (void)verdict, (void)user;
    asked++;
    CHECK_EQ(kit_stats(arena).reserved.now, LIMIT);
    CHECK_EQ(cudaStreamSynchronize(A), cudaSuccess);
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    CHECK_RESULT(gpupool_set_limit(arena, 2 * LIMIT), GPUPOOL_OK);
    return 1;
}

static void may_raise_the_limit(void) {
    begin(raise_the_limit, 4);
    kit_use(arena, LIMIT, A);
    CHECK_EQ(asked, 1);
    end();
}

int main(void) {
    KIT_TEST(never_passed);
    KIT_TEST(raised);
    KIT_TEST(lowered);
    KIT_TEST(lowered_behind_work);
    KIT_TEST(trimmed);
    KIT_FAKE_TEST(no_wait);
    KIT_TEST(asked_for_more);
    KIT_TEST(not_inside_itself);
    KIT_TEST(may_raise_the_limit);
    return check_finish();
}
