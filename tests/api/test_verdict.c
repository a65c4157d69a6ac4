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

/* What the sentence must say. */
static void says(const gpupool_verdict *verdict, const char *words) {
    if (!strstr(verdict->sentence, words))
        check_fail(__FILE__, __LINE__, "no \"%s\" in: %s", words, verdict->sentence);
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
    verdict = fails(512, GPUPOOL_CAUSE_LIMIT);
    says(verdict, "512 B does not fit: the limit of 5.00 MiB leaves 1.00 MiB, but memory comes in "
                  "pages of 2 MiB: raise the limit by 1.00 MiB");
    CHECK_EQ(verdict->missing, MIB);
    free_all(1);
    kit_close(arena);
}

/* An alignment that cannot be met is called that. */
#if CHECK_FAKE
static void alignment(void) {
    static const gpupool_source sources[] = {GPUPOOL_SOURCE_MAPPED, GPUPOOL_SOURCE_DEVICE};
    for (size_t i = 0; i < KIT_COUNT(sources); i++) {
        gpupool_arena_config config = kit_config(sources[i], 0);
        size_t alignment = (size_t)1 << 40;
        const gpupool_verdict *verdict = gpupool_last_verdict();
        check_case("source %d", (int)sources[i]);
        fake_device_memory(0, 8192 * MIB);
        arena = kit_create(&config);
        CHECK(!kit_alloc_as(arena, 1, alignment, A, 0));
        CHECK_EQ(verdict->cause, GPUPOOL_CAUSE_FRAGMENTED);
        says(verdict, "1 B does not fit at a multiple of 1.00 TiB: 8.00 GiB is free, but not at "
                      "such an address");
        says(verdict, ": ask for a smaller alignment");
        CHECK_EQ(verdict->missing, 0);
        kit_close(arena);
    }
}
#endif

/* Who has most: by label, else by size; and nobody's label ends the line or the sentence. */
static void holders(void) {
    gpupool_request request = {2 * MIB, 0, A, 0, NULL};
    char label[40] = "layers.py:88";
    request.stream = A;
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
    kit_free(arena, blocks[3], A);
    blocks[3] = NULL;
    says(fails(30 * MIB, GPUPOOL_CAUSE_LIMIT), "most in 3 blocks of layers.py:88");
    strcpy(label, "a\n%s%s%s%n");
    kit_free(arena, blocks[4], A);
    blocks[4] = NULL;
    kit_free(arena, blocks[2], A);
    blocks[2] = NULL;
    says(fails(42 * MIB, GPUPOOL_CAUSE_LIMIT), "most in 2 blocks of a\\x0a%s%s%s%n");
    free_all(7);
    kit_close(arena);
}

/* DEVICE: an idle chunk goes back for a new one, and the limit need not be raised by as much. */
static void idle_chunks(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_DEVICE, 20 * MIB);
    const gpupool_verdict *verdict;
    arena = kit_create(&config);
    fill(2, 8 * MIB);
    kit_free(arena, blocks[0], A);
    blocks[0] = NULL;
    verdict = fails(16 * MIB, GPUPOOL_CAUSE_LIMIT);
    CHECK_EQ(verdict->reserved, 16 * MIB);
    CHECK_EQ(verdict->missing, 4 * MIB);
    CHECK_RESULT(gpupool_set_limit(arena, 24 * MIB), GPUPOOL_OK);
    CHECK((blocks[0] = gpupool_alloc(arena, 16 * MIB, A)) != NULL);
    free_all(2);
    kit_close(arena);
}

/* Memory that graphs keep would do. */
static void graphs(void) {
    const gpupool_verdict *verdict;
    gpupool_capture *scope;
    arena = kit_open(16 * MIB);
    CHECK_RESULT(gpupool_begin_capture(arena, B, &scope), GPUPOOL_OK);
    kit_free(arena, gpupool_alloc(arena, 12 * MIB, B), B);
    verdict = fails(10 * MIB, GPUPOOL_CAUSE_PENDING);
    says(verdict, "10.00 MiB does not fit in the 4.00 MiB that is free; 12.00 MiB is pending, or "
                  "kept by graphs: release captures whose graphs are gone, or raise the limit");
    CHECK_RESULT(gpupool_release_capture(scope), GPUPOOL_OK);
    kit_free(arena, gpupool_alloc(arena, 10 * MIB, A), A);
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
    says(fails(40 * MIB, GPUPOOL_CAUSE_HOST),
         "40.00 MiB does not fit: the arena's source gives no more");
    fake_pinned_limit(0);
    CHECK((blocks[1] = gpupool_alloc(arena, 40 * MIB, A)) != NULL);
    free_all(2);
    kit_close(arena);
}

/* A request that cannot be met does not take what the device has left. */
static void leaves_the_device(void) {
    uint64_t reserved;
    fake_device_memory(0, 100 * MIB);
    fake_other_process(0, 50 * MIB);
    arena = kit_open(0);
    fill(1, 10 * MIB);
    reserved = kit_stats(arena).reserved.now;
    says(fails(60 * MIB, GPUPOOL_CAUSE_OTHERS), "20.00 MiB is missing");
    CHECK_EQ(kit_stats(arena).reserved.now, reserved);
    free_all(1);
    kit_close(arena);
    fake_other_process(0, 0);
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
/* cudaMalloc takes whole pages of the device: what is left may not do, and what goes back is more.
 */
static void pages_of_the_device(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_DEVICE, 11 * MIB);
    const gpupool_verdict *verdict;
    fake_device_memory(0, 16 * MIB - 100 * KIB);
    arena = kit_create(&config);
    fill(1, 10 * MIB);
    CHECK(!gpupool_alloc(arena, 4 * MIB + 100 * KIB, A));
    verdict = gpupool_last_verdict();
    CHECK_EQ(verdict->device_free, 6 * MIB - 100 * KIB);
    CHECK_EQ(verdict->missing, 0); /* no limit helps */
    CHECK(verdict->device_missing > 0);
    free_all(1);
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
    KIT_TEST(less_than_a_granule);
    KIT_TEST(holders);
    KIT_TEST(idle_chunks);
    KIT_TEST(graphs);
#if CHECK_FAKE
    KIT_TEST(device_full);
    KIT_TEST(others);
    KIT_TEST(host);
    KIT_TEST(leaves_the_device);
    KIT_TEST(last_of_the_device);
    KIT_TEST(alignment);
    KIT_TEST(pages_of_the_device);
    KIT_TEST(refused);
#endif
    return check_finish();
}
