// build: asan -fsanitize=address,undefined
/* Why memory ran out: the cause, the figures, and that what helps does help. */
#include "gpupool.h"
#include "kit.h"

#define A kit_stream[0]
#define B kit_stream[1]

static gpupool_arena *arena;
static void *blocks[16];

static void fill(int count, size_t bytes) {
    for (int i = 0; i < count; i++) {
        blocks[i] = gpupool_alloc(arena, bytes, A);
        CHECK(blocks[i]);
    }
}

static void free_all(int count) {
    for (int i = 0; i < count; i++) {
        if (blocks[i]) kit_free(arena, blocks[i], A);
        blocks[i] = NULL;
    }
}

/* Fails, for this cause; the sentence has figures. */
static const gpupool_verdict *fails(size_t bytes, gpupool_cause cause) {
    const gpupool_verdict *verdict;
    CHECK(!gpupool_alloc(arena, bytes, A));
    CHECK_EQ(gpupool_last_result(), GPUPOOL_E_OUT_OF_MEMORY);
    verdict = gpupool_last_verdict();
    if (verdict->cause != cause)
        check_fail(__FILE__, __LINE__, "the cause is %d, not %d: %s", (int)verdict->cause,
                   (int)cause, verdict->sentence);
    CHECK_EQ(verdict->asked, bytes);
    CHECK(strpbrk(verdict->sentence, "0123456789"));
    CHECK(memchr(verdict->sentence, 0, sizeof verdict->sentence));
    CHECK(strstr(gpupool_last_error(), "MiB") || strstr(gpupool_last_error(), "bytes"));
    return verdict;
}

static void limit(void) {
    const gpupool_verdict *verdict;
    arena = kit_open(32 * MIB);
    fill(3, 8 * MIB);
    verdict = fails(20 * MIB, GPUPOOL_CAUSE_LIMIT);
    CHECK_EQ(verdict->limit, 32 * MIB);
    CHECK_EQ(verdict->allocated, 24 * MIB);
    CHECK_EQ(verdict->pending, 0);
    CHECK_EQ(verdict->reserved, kit_stats(arena).reserved.now);
    CHECK(verdict->reserved >= 24 * MIB && verdict->reserved <= 32 * MIB);
    CHECK_EQ(verdict->missing, 12 * MIB);
    CHECK(strstr(verdict->sentence, "limit"));
    free_all(3);
    kit_close(arena);
}

/* `missing` is enough, and never more than the request and a granule. */
static void missing_is_enough(void) {
    static const size_t asked[] = {8 << 20, 12 << 20, 20 << 20, (20 << 20) + 1};
    for (size_t i = 0; i < KIT_COUNT(asked); i++) {
        size_t missing;
        void *block;
        check_case("%zu bytes", asked[i]);
        arena = kit_open(12 * MIB);
        fill(4, 2 * MIB);
        kit_free(arena, blocks[1], A);
        blocks[1] = NULL;
        CHECK(!gpupool_alloc(arena, 12 * MIB, A));
        if (gpupool_alloc(arena, asked[i], A)) check_fail(__FILE__, __LINE__, "it fits");
        missing = (size_t)gpupool_last_verdict()->missing;
        CHECK(missing > 0 && missing < asked[i] + 2 * MIB);
        CHECK_RESULT(gpupool_set_limit(arena, 12 * MIB + missing), GPUPOOL_OK);
        block = gpupool_alloc(arena, asked[i], A);
        CHECK(block);
        if (block) kit_free(arena, block, A);
        free_all(4);
        kit_close(arena);
    }
}

/* Blocks of 512 bytes at the ends of chunks: a stitch of whole chunks is not to be had. */
static void fragmented(void) {
    const gpupool_verdict *verdict;
    void *pads[8];
    int i;
    arena = kit_open(16 * MIB);
    for (i = 0; i < 8; i++) {
        blocks[i] = gpupool_alloc(arena, MIB, A);
        pads[i] = gpupool_alloc(arena, MIB, A);
    }
    free_all(8);
    verdict = fails(6 * MIB, GPUPOOL_CAUSE_FRAGMENTED);
    CHECK_EQ(verdict->allocated, 8 * MIB);
    CHECK_EQ(verdict->reserved, 16 * MIB);
    CHECK_EQ(verdict->largest, MIB);
    for (i = 0; i < 8; i++) kit_free(arena, pads[i], A);
    kit_close(arena);
}

/* The most that is said to fit does fit, when there is room for nothing more. */
static void largest_fits(void) {
    void *block;
    size_t largest;
    arena = kit_open(32 * MIB);
    fill(16, 2 * MIB);
    for (int i = 3; i < 8; i++) {
        kit_free(arena, blocks[i], A);
        blocks[i] = NULL;
    }
    CHECK(!gpupool_alloc(arena, 30 * MIB, A));
    largest = (size_t)gpupool_last_verdict()->largest;
    CHECK(largest >= 2 * MIB && largest <= 10 * MIB);
    block = gpupool_alloc(arena, largest, A);
    CHECK(block);
    if (block) kit_free(arena, block, A);
    free_all(16);
    kit_close(arena);
}

static void pending(void) {
    const gpupool_verdict *verdict;
    arena = kit_open(16 * MIB);
    fill(2, 8 * MIB);
    kit_hold(A);
    kit_write(blocks[0], 8 * MIB, A, 1);
    free_all(1);
    CHECK(!kit_alloc_as(arena, 8 * MIB, 0, GPUPOOL_NO_STREAM, GPUPOOL_NO_WAIT));
    verdict = gpupool_last_verdict();
    CHECK_EQ(verdict->cause, GPUPOOL_CAUSE_PENDING);
    CHECK_EQ(verdict->pending, 8 * MIB);
    CHECK_EQ(verdict->allocated, 8 * MIB);
    kit_let_go(A);
    free_all(2);
    kit_close(arena);
}

#if CHECK_FAKE
static void device_full(void) {
    const gpupool_verdict *verdict;
    fake_device_memory(0, 100 * MIB);
    arena = kit_open(0);
    fill(9, 10 * MIB);
    verdict = fails(20 * MIB, GPUPOOL_CAUSE_DEVICE_FULL);
    CHECK_EQ(verdict->device_total, 100 * MIB);
    CHECK_EQ(verdict->device_free, 100 * MIB - kit_stats(arena).reserved.now);
    CHECK_EQ(verdict->limit, 0);
    free_all(9);
    kit_close(arena);
}

static void others(void) {
    const gpupool_verdict *verdict;
    fake_device_memory(0, 100 * MIB);
    fake_other_process(0, 70 * MIB);
    arena = kit_open(0);
    fill(1, 10 * MIB);
    verdict = fails(40 * MIB, GPUPOOL_CAUSE_OTHERS);
    CHECK_EQ(verdict->device_total, 100 * MIB);
    CHECK_EQ(verdict->allocated, 10 * MIB);
    fake_other_process(0, 0);
    CHECK((blocks[1] = gpupool_alloc(arena, 40 * MIB, A)) != NULL);
    free_all(2);
    kit_close(arena);
}

static void host(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_PINNED, 0);
    arena = kit_create(&config);
    fake_pinned_limit(32 * MIB);
    fill(1, 10 * MIB);
    fails(40 * MIB, GPUPOOL_CAUSE_HOST);
    fake_pinned_limit(0);
    CHECK((blocks[1] = gpupool_alloc(arena, 40 * MIB, A)) != NULL);
    free_all(2);
    kit_close(arena);
}

/* The device's last memory goes into the request, and not into a chunk of the usual size. */
static void last_of_the_device(void) {
    fake_device_memory(0, 50 * MIB);
    arena = kit_open(0);
    fill(5, 10 * MIB);
    CHECK_EQ(fake_used_bytes(0), 50 * MIB);
    free_all(5);
    CHECK((blocks[0] = gpupool_alloc(arena, 50 * MIB, A)) != NULL);
    free_all(1);
    kit_close(arena);
}
#endif

/* A verdict is the thread's: another request that fails replaces it, a success does not. */
static void stays(void) {
    arena = kit_open(16 * MIB);
    fails(20 * MIB, GPUPOOL_CAUSE_LIMIT);
    fill(1, MIB);
    free_all(1);
    CHECK_EQ(gpupool_last_verdict()->asked, 20 * MIB);
    fails(40 * MIB, GPUPOOL_CAUSE_LIMIT);
    CHECK_EQ(kit_stats(arena).failures, 2);
    kit_close(arena);
}

int main(void) {
    KIT_TEST(limit);
    KIT_TEST(missing_is_enough);
    KIT_TEST(fragmented);
    KIT_TEST(largest_fits);
    KIT_TEST(pending);
    KIT_TEST(stays);
#if CHECK_FAKE
    KIT_TEST(device_full);
    KIT_TEST(others);
    KIT_TEST(host);
    KIT_TEST(last_of_the_device);
#endif
    return check_finish();
}
