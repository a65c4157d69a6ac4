/* Why memory ran out: the cause, the figures, the sentence. That what it advises helps, test_advice
   judges. */
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

static void drop(int which) {
    kit_free(arena, blocks[which], A);
    blocks[which] = NULL;
}

static void free_all(int count) {
    for (int i = 0; i < count; i++) drop(i);
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

/* What the sentence must say. */
static void says(const gpupool_verdict *verdict, const char *words) {
    if (!strstr(verdict->sentence, words))
        check_fail(__FILE__, __LINE__, "no \"%s\" in: %s", words, verdict->sentence);
}

/* It is the thread's: another request that fails replaces it, a success does not. */
static void limit(void) {
    const gpupool_verdict *verdict;
    arena = kit_open(32 * MIB);
    fails(40 * MIB, GPUPOOL_CAUSE_LIMIT);
    fill(3, 8 * MIB);
    CHECK_EQ(gpupool_last_verdict()->asked, 40 * MIB);
    verdict = fails(20 * MIB, GPUPOOL_CAUSE_LIMIT);
    CHECK_EQ(verdict->limit, 32 * MIB);
    CHECK_EQ(verdict->allocated, 24 * MIB);
    CHECK_EQ(verdict->pending, 0);
    CHECK_EQ(verdict->reserved, kit_stats(arena).reserved.now);
    CHECK(verdict->reserved >= 24 * MIB && verdict->reserved <= 32 * MIB);
    CHECK_EQ(verdict->missing, 12 * MIB);
    CHECK_EQ(kit_stats(arena).failures, 2);
    free_all(3);
    kit_close(arena);
}

/* Live blocks of 1 MiB are in each chunk: a stitch of whole chunks is not to be had. */
static void fragmented(void) {
    const gpupool_verdict *verdict;
    arena = kit_open(16 * MIB);
    fill(16, MIB);
    for (int i = 0; i < 16; i += 2) drop(i);
    verdict = fails(6 * MIB, GPUPOOL_CAUSE_FRAGMENTED);
    CHECK_EQ(verdict->allocated, 8 * MIB);
    CHECK_EQ(verdict->reserved, 16 * MIB);
    CHECK_EQ(verdict->largest, MIB);
    free_all(16);
    kit_close(arena);
}

/* A request that may not wait fails as it would if it waited. No word of graphs: there are none. */
static void fragmented_and_pending(void) {
    gpupool_request request = {3 * MIB, 0, B, GPUPOOL_NO_WAIT, NULL};
    arena = kit_open(8 * MIB);
    fill(16, MIB / 2);
    kit_hold(A);
    for (int i = 0; i < 16; i++) kit_write(blocks[i], MIB / 2, A, 1);
    for (int i = 0; i < 16; i += 2) drop(i);
    CHECK(!gpupool_alloc_request(arena, &request));
    CHECK_EQ(gpupool_last_verdict()->cause, GPUPOOL_CAUSE_FRAGMENTED);
    says(gpupool_last_verdict(), "3.00 MiB does not fit in one piece: 4.00 MiB is free");
    kit_let_go(A);
    request.flags = 0;
    CHECK(!gpupool_alloc_request(arena, &request));
    CHECK_EQ(gpupool_last_verdict()->cause, GPUPOOL_CAUSE_FRAGMENTED);
    free_all(16);
    kit_close(arena);
}

/* What the limit leaves is less than the driver gives: the limit is the cause. */
static void less_than_a_granule(void) {
    const gpupool_verdict *verdict;
    arena = kit_open(MIB);
    verdict = fails(1, GPUPOOL_CAUSE_LIMIT);
    says(verdict, "1 B does not fit: the limit of 1.00 MiB leaves 1.00 MiB, but memory comes in "
                  "pages of 2 MiB: raise the limit by 1.00 MiB");
    CHECK_EQ(verdict->missing, MIB);
    kit_close(arena);
    arena = kit_open(5 * MIB);
    fill(1, 4 * MIB);
    says(fails(512, GPUPOOL_CAUSE_LIMIT), "the limit of 5.00 MiB leaves 1.00 MiB, but memory");
    free_all(1);
    kit_close(arena);
}

/* Who has most: by label, else by size; and nobody's label ends the line or the sentence. */
static void holders(void) {
    gpupool_request request = {2 * MIB, 0, A, 0, NULL};
    char label[40] = "layers.py:88";
    arena = kit_open(64 * MIB);
    fill(4, 8 * MIB);
    says(fails(40 * MIB, GPUPOOL_CAUSE_LIMIT), "free at least 8.00 MiB of the 32.00 MiB that "
                                               "blocks hold, most in 4 blocks of up to 8.00 MiB");
    request.bytes = 10 * MIB;
    request.label = "layers.py:88";
    blocks[4] = gpupool_alloc_request(arena, &request);
    request.label = label; /* the same text at another address */
    request.bytes = 9 * MIB;
    blocks[5] = gpupool_alloc_request(arena, &request);
    request.bytes = 12 * MIB;
    blocks[6] = gpupool_alloc_request(arena, &request);
    CHECK(blocks[6]);
    says(fails(30 * MIB, GPUPOOL_CAUSE_LIMIT), "most in 4 blocks of up to 8.00 MiB");
    drop(3);
    says(fails(30 * MIB, GPUPOOL_CAUSE_LIMIT), "most in 3 blocks of layers.py:88");
    strcpy(label, "a\n%s%s%s%n");
    drop(4);
    drop(2);
    says(fails(42 * MIB, GPUPOOL_CAUSE_LIMIT), "most in 2 blocks of a\\x0a%s%s%s%n");
    free_all(7);
    kit_close(arena);
}

/* Memory that graphs keep would do. */
static void graphs(void) {
    const gpupool_verdict *verdict;
    gpupool_capture *scope;
    arena = kit_open(16 * MIB);
    CHECK_RESULT(gpupool_begin_capture(arena, B, &scope), GPUPOOL_OK);
    kit_use(arena, 12 * MIB, B);
    verdict = fails(10 * MIB, GPUPOOL_CAUSE_PENDING);
    CHECK_EQ(verdict->pending, 12 * MIB);
    says(verdict, "10.00 MiB does not fit in the 4.00 MiB that is free; 12.00 MiB is pending, or "
                  "kept by graphs: release captures whose graphs are gone, or raise the limit");
    CHECK_RESULT(gpupool_release_capture(scope), GPUPOOL_OK);
    kit_use(arena, 10 * MIB, A);
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

/* A request that cannot be met does not take what the device has left. */
static void others(void) {
    const gpupool_verdict *verdict;
    uint64_t reserved;
    fake_device_memory(0, 100 * MIB);
    fake_other_process(0, 50 * MIB);
    arena = kit_open(0);
    fill(1, 10 * MIB);
    reserved = kit_stats(arena).reserved.now;
    verdict = fails(60 * MIB, GPUPOOL_CAUSE_OTHERS);
    says(verdict, "20.00 MiB is missing");
    CHECK_EQ(verdict->device_total, 100 * MIB);
    CHECK_EQ(verdict->allocated, 10 * MIB);
    CHECK_EQ(kit_stats(arena).reserved.now, reserved);
    fake_other_process(0, 0);
    kit_use(arena, 60 * MIB, A);
    free_all(1);
    kit_close(arena);
}

static void host(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_PINNED, 0);
    arena = kit_create(&config);
    fake_pinned_limit(32 * MIB);
    fill(1, 10 * MIB);
    says(fails(40 * MIB, GPUPOOL_CAUSE_HOST),
         "40.00 MiB does not fit: the arena's source gives no more");
    fake_pinned_limit(0);
    kit_use(arena, 40 * MIB, A);
    free_all(1);
    kit_close(arena);
}

/* An alignment that cannot be met is called that. */
static void alignment(void) {
    const gpupool_verdict *verdict = gpupool_last_verdict();
    fake_device_memory(0, 8192 * MIB);
    arena = kit_open(0);
    CHECK(!kit_alloc_as(arena, 1, (size_t)1 << 40, A, 0));
    CHECK_EQ(verdict->cause, GPUPOOL_CAUSE_FRAGMENTED);
    says(verdict, "1 B does not fit at a multiple of 1.00 TiB: 8.00 GiB is free, but not at such "
                  "an address");
    says(verdict, ": ask for a smaller alignment");
    CHECK_EQ(verdict->missing, 0);
    kit_close(arena);
}

/* The device has what is asked for, says the driver, and does not give it. */
static void refused(void) {
    const gpupool_verdict *verdict;
    fake_device_memory(0, 100 * MIB);
    arena = kit_open(0);
    fake_fail_call("cuMemCreate", 1, 1, 0);
    verdict = fails(20 * MIB, GPUPOOL_CAUSE_DEVICE_FULL);
    says(verdict, "20.00 MiB does not fit, although the driver says that 100.00 MiB is free: ask "
                  "for less");
    CHECK_EQ(verdict->missing, 0);
    fake_fail_clear();
    kit_close(arena);
}

#endif

int main(void) {
    KIT_TEST(limit);
    KIT_TEST(fragmented);
    KIT_TEST(fragmented_and_pending);
    KIT_TEST(less_than_a_granule);
    KIT_TEST(holders);
    KIT_TEST(graphs);
#if CHECK_FAKE
    KIT_TEST(device_full);
    KIT_TEST(others);
    KIT_TEST(host);
    KIT_TEST(alignment);
    KIT_TEST(refused);
#endif
    return check_finish();
}
