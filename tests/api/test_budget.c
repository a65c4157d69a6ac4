/* The budget for mapping: a program whose sizes never come again ends up without a call of CUDA,
   since its arena grows where a stitch would not pay; and an idle stitch serves whatever needs the
   same granules. */
// build: plain
// build: asan -fsanitize=address,undefined
#include "gpupool.h"
#include "stripe_kit.h"

#if CHECK_FAKE

#define MOST 256                       /* live blocks */
#define LIVE (4 * GIB)
#define LARGE (5 * STRIPE - 8 * 512)   /* four whole chunks, and a part of a fifth */
#define AFFORDED 2942                  /* a credit for 5,000 handles at 1.7 each, rounded up */

static uint64_t random_state;

static uint64_t below(uint64_t n) {
    random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
    return (random_state >> 33) % n;
}

typedef struct heap { void *block[MOST]; size_t bytes[MOST], count, live; } heap;

static void drop(heap *h, size_t at) {
    put(h->block[at], 0);
    h->live -= h->bytes[at];
    h->count--;
    h->block[at] = h->block[h->count];
    h->bytes[at] = h->bytes[h->count];
}

/* Sizes up to 128 MiB. Returns the mappings that were made. */
static long random_steps(uint64_t seed, int steps) {
    heap h = {.count = 0};
    long before = fake_calls("cuMemMap");
    random_state = seed;
    for (int i = 0; i < steps; i++) {
        size_t bytes = 1 + (size_t)below(128 * MIB);
        if (h.count == MOST || h.live + bytes > LIVE || (h.count && below(100) < 27)) {
            drop(&h, (size_t)below(h.count));
            continue;
        }
        h.block[h.count] = get(bytes, 0);
        h.bytes[h.count++] = bytes;
        h.live += bytes;
    }
    while (h.count) drop(&h, h.count - 1);
    return fake_calls("cuMemMap") - before;
}

static void sizes_that_never_come_again(void) {
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    random_steps(7, 8000);
    long mapped = random_steps(8, 8000) + random_steps(9, 8000);
    CHECK(mapped < 200); /* they were 20,000 and more */
    CHECK(kit_reserved(arena) < LIVE / 2 * 3);
    kit_close(arena);
}

/* The new buffer is there before the old one goes. */
static void a_buffer_that_grows(void) {
    size_t bytes = 100 * MIB;
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    void *buffer = get(bytes, 0);
    for (int step = 0; step < 4000; step++) {
        long before = fake_calls("cuMemMap");
        void *next = get(bytes += 8 * KIB, 0);
        put(buffer, 0);
        buffer = next;
        /* what it grows by comes from the driver, a chunk at a time */
        if (step > 3500) CHECK(fake_calls("cuMemMap") - before < 20);
    }
    CHECK(fake_calls("cuMemMap") < 4000); /* as many as steps at most; they were fifty a step */
    put(buffer, 0);
    kit_close(arena);
}

/* What is mapped is the same; the block ends elsewhere in the last granule. */
static void another_size_in_the_same_granules(void) {
    static const size_t less[] = {0, 5 * 512, 512, STRIPE - 9 * 512, 0};
    stripe_open();
    put(stripe_stitched(LARGE, 0), 0);
    for (size_t i = 0; i < KIT_COUNT(less); i++) {
        long before = fake_calls("cuMemMap");
        check_case("%zu bytes less", less[i]);
        char *block = stripe_stitched(LARGE - less[i], 0);
        kit_mark(kit_stream[0], block, LARGE - less[i], 77);
        kit_expect_mark(kit_stream[0], block, LARGE - less[i], 77);
        CHECK_EQ(kit_size(arena, block), LARGE - less[i]);
        CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
        stripe_expect_all();
        put(block, 0);
        CHECK_EQ(fake_calls("cuMemMap"), before);
    }
    CHECK_EQ(kit_stats(arena).stitches, 1);
    CHECK_EQ(kit_stats(arena).stitches_reused, KIT_COUNT(less));
    /* one more granule is another stitch */
    put(stripe_stitched(LARGE + STRIPE, 0), 0);
    CHECK_EQ(kit_stats(arena).stitches, 2);
    stripe_close();
}

/* Where more of the last chunk is needed, and is not free, the stitch does not do. */
static void more_of_it_is_taken(void) {
    char *block, *beside;
    stripe_open();
    block = stripe_stitched(LARGE, 0);
    put(block, 0);
    block = stripe_stitched(LARGE - STRIPE / 2, 0);
    beside = (char *)get(STRIPE / 2, 0); /* in the rest of the fifth chunk */
    put(block, 0);
    block = stripe_stitched(LARGE, 0);
    kit_mark(kit_stream[0], block, LARGE, 5);
    kit_mark(kit_stream[0], beside, STRIPE / 2, 6);
    kit_expect_mark(kit_stream[0], block, LARGE, 5);
    kit_expect_mark(kit_stream[0], beside, STRIPE / 2, 6);
    put(block, 0);
    put(beside, 0);
    stripe_close();
}

/* Each block holds all that is free of some stripes, whichever they are: no two need the same. */
static void a_limit_comes_first(void) {
    uint64_t made = 0;
    stripe_open();
    for (unsigned round = 0; made < 2 * AFFORDED / 8; round++) {
        void *taken[LAID];
        int count = 0;
        for (int i = 0; i < LAID; i++) taken[i] = get(STRIPE_BYTES, 0);
        for (int i = 0; i < LAID; i++)
            if ((round * 2654435761u >> i & 1) == 0 && count < 8) {
                put(taken[i], 0);
                taken[i] = NULL;
                count++;
            }
        if (count == 8) put(stripe_stitched(8 * STRIPE, 0), 0);
        for (int i = 0; i < LAID; i++)
            if (taken[i]) put(taken[i], 0);
        made = kit_stats(arena).stitches;
        if (round == 20000) break;
    }
    CHECK(made >= 2 * AFFORDED / 8);
    stripe_close();
}

#endif

int main(void) {
    FAKE_TEST(sizes_that_never_come_again);
    FAKE_TEST(a_buffer_that_grows);
    FAKE_TEST(another_size_in_the_same_granules);
    FAKE_TEST(more_of_it_is_taken);
    FAKE_TEST(a_limit_comes_first);
    return check_finish();
}
