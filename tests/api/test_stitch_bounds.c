/* How much is mapped, and for how long: idle stitches are bounded, go with their chunks, and come
   back without a call where a program repeats itself; no_stitch makes none; many streams with
   little memory each take little. */
// build: plain -O1
// build: asan -fsanitize=address,undefined -DROUNDS=1 -DSIZES=760
#include "gpupool.h"
#include "stripe_kit.h"

#if CHECK_FAKE

#ifndef SIZES
#define SIZES 1800
#endif
#ifndef ROUNDS
#define ROUNDS 5
#endif
#define IDLE_MOST 8192 /* handles that idle stitches may hold in an arena of this size */

/* ---- how many handles ---- */

/* More than it is worth mapping where the arena may grow; here it may not, and nothing is given
   back and got anew. For a stream that captures no step stitches others' memory. */
static void as_many_as_it_takes(void) {
    enum { CHUNKS = 2 * 4100 };
    static void *chunk[CHUNKS];
    cudaGraph_t graph = NULL;
    gpupool_arena_config config = stripe_config();
    config.limit_bytes = 0;
    arena = kit_create(&config);
    for (int i = 0; i < CHUNKS; i++) chunk[i] = get(STRIPE, 0);
    CHECK_RESULT(gpupool_set_limit(arena, kit_reserved(arena)), GPUPOOL_OK);
    for (int i = 0; i < CHUNKS; i += 2) put(chunk[i], 0);
    CHECK_RESULT(gpupool_trim(arena, SIZE_MAX, NULL), GPUPOOL_OK);
    CHECK_EQ(cudaStreamBeginCapture(kit_stream[1], cudaStreamCaptureModeRelaxed), cudaSuccess);
    long created = fake_calls("cuMemCreate");
    void *block = get(CHUNKS / 2 * STRIPE, 1);
    CHECK_EQ(fake_calls("cuMemCreate"), created);
    CHECK_EQ(cudaStreamEndCapture(kit_stream[1], &graph), cudaSuccess);
    CHECK_EQ(cudaGraphDestroy(graph), cudaSuccess);
    put(block, 1);
    for (int i = 1; i < CHUNKS; i += 2) put(chunk[i], 0);
    kit_close(arena);
}

/* ---- config.no_stitch ---- */

static void none_where_the_config_says_so(void) {
    gpupool_verdict verdict;
    gpupool_arena_config config = stripe_config();
    config.no_stitch = 1;
    stripe_open_with(&config);
    CHECK_EQ(kit_stats(arena).largest_free_bytes, STRIPE);
    CHECK_EQ(kit_stats(arena).largest_block_bytes, STRIPE);
    CHECK_EQ(kit_fits(arena, STRIPE + 1, &verdict), 1); /* idle chunks make room at home */
    char *block = (char *)get(3 * STRIPE, 0);
    kit_fill(kit_stream[0], block, 3 * STRIPE, 1);
    CHECK_EQ(kit_stats(arena).stitches, 0);
    CHECK_EQ(kit_stats(arena).stitched_bytes, 0);
    CHECK_EQ(kit_reserved(arena) / STRIPE, fake_mappings());
    put(block, 0);
    stripe_close();
}

/* The end of one chunk and the start of another, between live blocks: of these a block can be
   stitched, or else none. */
static void nor_for_want_of_anything_else(void) {
    enum { HALVES = 12 };
    void *half[HALVES];
    gpupool_verdict verdict;
    for (int no_stitch = 0; no_stitch < 2; no_stitch++) {
        check_case("no_stitch %d", no_stitch);
        gpupool_arena_config config = stripe_config();
        config.limit_bytes = HALVES / 2 * STRIPE;
        config.no_stitch = no_stitch;
        arena = kit_create(&config);
        for (int i = 0; i < HALVES; i++) half[i] = get(MIB, 0);
        put(half[1], 0); /* the end of the first chunk, */
        put(half[6], 0); /* the start of the fourth */
        kit_finish(arena);
        CHECK_EQ(kit_stats(arena).largest_free_bytes, MIB);
        CHECK_EQ(kit_stats(arena).largest_block_bytes, no_stitch ? MIB : 2 * MIB);
        CHECK_EQ(kit_fits(arena, 2 * MIB, &verdict), !no_stitch);
        if (no_stitch) CHECK_EQ(verdict.cause, GPUPOOL_CAUSE_FRAGMENTED);
        void *block = gpupool_alloc(arena, 2 * MIB, kit_stream[0]);
        CHECK_RESULT(kit_why(block), no_stitch ? GPUPOOL_E_OUT_OF_MEMORY : GPUPOOL_OK);
        CHECK_EQ(kit_stats(arena).stitches, no_stitch ? 0 : 1);
        if (block) put(block, 0);
        for (int i = 0; i < HALVES; i++)
            if (i != 1 && i != 6) put(half[i], 0);
        kit_close(arena);
    }
}

/* ---- the bound of what is idle ---- */

static void idle_stitches_are_bounded(void) {
    stripe_open();
    uint64_t host = 0;
    long most = 0;
    put(stripe_stitched(LAID * STRIPE, 0), 0); /* the oldest */
    for (size_t i = 0; i < SIZES; i++) {
        put(stripe_stitched_of(i, 0), 0);
        if (fake_mappings() > most) most = fake_mappings();
        if (i == 740) host = kit_stats(arena).host_bytes;
    }
    put(stripe_stitched((LAID - 1) * STRIPE, 0), 0); /* the latest */
    CHECK_EQ(kit_stats(arena).stitches, 1 + SIZES + 1);
    CHECK(most <= STRIPES + IDLE_MOST + 2 * LAID);
    CHECK(most > IDLE_MOST / 2); /* and there is something to bound */
    CHECK(kit_stats(arena).host_bytes < host + host / 8 + 65536);
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    long calls = kit_calls();
    put(stripe_stitched((LAID - 1) * STRIPE, 0), 0);
    CHECK_EQ(kit_calls(), calls); /* it is there yet */
    put(stripe_stitched(LAID * STRIPE, 0), 0);
    CHECK(kit_calls() > calls);
    stripe_close();
}

/* Those that the device may still be at stay over the bound, and go when it is done. */
static void but_for_those_in_use(void) {
    enum { MANY = 800 }; /* of STRIPE_SET handles each */
    stripe_open();
    fake_mode(FAKE_STEPPED);
    for (size_t i = 0; i < MANY; i++) {
        char *block = stripe_stitched_of(i, 0);
        kit_fill(kit_stream[0], block, 64, 1);
        put(block, 0);
    }
    CHECK_EQ(fake_failures(), 0);
    fake_run_all(); /* nothing was unmapped that this touches */
    CHECK_EQ(fake_failures(), 0);
    for (size_t i = 0; i < 4; i++) put(stripe_stitched_of(MANY + i, 0), 0);
    fake_run_all();
    put(stripe_stitched_of(MANY + 5, 0), 0);
    CHECK(fake_mappings() <= STRIPES + IDLE_MOST + 2 * LAID);
    stripe_close();
}

/* ---- chunks that go take their stitches along ---- */

static void trim_takes_them_along(void) {
    size_t released = 0;
    stripe_open();
    char *live = stripe_stitched(4 * STRIPE, 0), *idle[3];
    for (int i = 0; i < 3; i++) idle[i] = stripe_stitched((size_t)(i + 2) * STRIPE, 0);
    for (int i = 0; i < 3; i++) put(idle[i], 0);
    CHECK_EQ(fake_mappings(), STRIPES + 4 + 2 + 3 + 4);
    kit_finish(arena);
    CHECK_RESULT(gpupool_trim(arena, 0, &released), GPUPOOL_OK);
    CHECK_EQ(released, (LAID - 4) * STRIPE);
    CHECK_EQ(fake_mappings(), LAID + 4 + 4);
    CHECK_EQ(fake_used_bytes(0), kit_reserved(arena));
    kit_fill(kit_stream[0], live, 4 * STRIPE, 1); /* it has lost nothing */
    put(live, 0);
    CHECK_RESULT(gpupool_trim(arena, 0, &released), GPUPOOL_OK);
    CHECK_EQ(released, 4 * STRIPE);
    CHECK_EQ(fake_mappings(), LAID);
    stripe_close();
}

/* Of several stitches over one chunk all go, and none that is not over it. */
static void only_those_over_what_goes(void) {
    stripe_open();
    for (size_t i = 0; i < 6; i++) put(stripe_stitched((i + 2) * STRIPE, 0), 0);
    kit_finish(arena);
    long mapped = fake_mappings();
    CHECK_EQ(mapped, STRIPES + 2 + 3 + 4 + 5 + 6 + 7);
    CHECK_RESULT(gpupool_trim(arena, (STRIPES - 4) * STRIPE, NULL), GPUPOOL_OK);
    CHECK_EQ(kit_reserved(arena), (STRIPES - 4) * STRIPE);
    CHECK(fake_mappings() <= mapped - 4);
    for (size_t i = 0; i < 6; i++) {
        char *block = stripe_stitched((i + 2) * STRIPE, 0);
        kit_fill(kit_stream[0], block, (i + 2) * STRIPE, (int)i);
        put(block, 0);
    }
    stripe_close();
}

static void a_lowered_limit_takes_them_along(void) {
    stripe_open();
    char *live = stripe_stitched(4 * STRIPE, 0);
    put(stripe_stitched(6 * STRIPE, 0), 0);
    kit_finish(arena);
    CHECK_RESULT(gpupool_set_limit(arena, (LAID + 4) * STRIPE), GPUPOOL_OK);
    CHECK_EQ(kit_reserved(arena), (LAID + 4) * STRIPE);
    CHECK_EQ(fake_mappings(), LAID + 4 + 4);
    CHECK_RESULT(gpupool_set_limit(arena, STRIPE), GPUPOOL_OK); /* more than it can */
    CHECK_EQ(fake_mappings(), LAID + 4 + 4);
    put(live, 0);
    CHECK_RESULT(gpupool_set_limit(arena, 0), GPUPOOL_OK);
    stripe_close();
}

/* A request that needs the memory elsewhere: its stitches go with the chunks. */
static void so_does_a_request_for_new_memory(void) {
    gpupool_arena_config config = stripe_config();
    config.no_stitch = 0;
    stripe_open_with(&config);
    put(stripe_stitched(6 * STRIPE, 0), 0);
    for (int i = 1; i < STRIPES; i += 2) {
        put(stripe[i], 0);
        stripe_is_live[i] = 0;
    }
    char *whole = (char *)get(STRIPES * STRIPE, 0);
    kit_fill(kit_stream[0], whole, STRIPES * STRIPE, 1);
    put(whole, 0);
    stripe_close();
}

/* Destroyed with idle stitches of all kinds, and after a reset. */
static void what_is_left_at_the_end(void) {
    for (int reset = 0; reset < 2; reset++) {
        check_case("%s", reset ? "after a reset" : "without a reset");
        stripe_open();
        char *live = stripe_stitched(4 * STRIPE, 0);
        put(stripe_stitched(6 * STRIPE, 1), 1);
        if (reset) {
            CHECK_EQ(cudaDeviceReset(), cudaSuccess);
            for (int i = 0; i < KIT_STREAMS; i++) kit_stream[i] = NULL;
        } else {
            put(live, 0);
            for (int i = 1; i < STRIPES; i += 2) put(stripe[i], 0);
        }
        CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_OK);
        CHECK_EQ(fake_mappings(), 0);
        CHECK_EQ(fake_used_bytes(0), 0);
    }
}

/* ---- programs that repeat themselves ---- */

#define STEPS 400
#define SLOTS 40

typedef struct program { /* what is asked for in each step: 0: the slot is freed */
    size_t bytes[STEPS];
    int slot[STEPS], stream[STEPS];
} program;

/* Sizes between 1 KiB and 40 MiB, as often of one order as of another. */
static void write_program(program *p, uint64_t seed, int streams) {
    size_t held[SLOTS] = {0};
    for (int i = 0; i < STEPS; i++) {
        int slot = (int)check_below(&seed, SLOTS);
        p->slot[i] = slot;
        p->stream[i] = slot % streams;
        p->bytes[i] = 0;
        if (!held[slot])
            p->bytes[i] = 1 + (size_t)check_below(&seed, KIB << check_below(&seed, 16));
        held[slot] = p->bytes[i];
    }
}

/* Once from begin to end; what is left is freed. Returns the most that was live. */
static size_t run_program(const program *p) {
    void *block[SLOTS] = {NULL};
    size_t bytes[SLOTS] = {0}, live = 0, most = 0;
    for (int i = 0; i < STEPS; i++) {
        int slot = p->slot[i];
        if (block[slot]) {
            put(block[slot], p->stream[i]);
            block[slot] = NULL;
            live -= bytes[slot];
        } else {
            block[slot] = get(p->bytes[i], p->stream[i]);
            bytes[slot] = (p->bytes[i] + 511) / 512 * 512;
            live += bytes[slot];
            if (live > most) most = live;
        }
    }
    for (int slot = 0; slot < SLOTS; slot++)
        if (block[slot]) put(block[slot], 0);
    return most;
}

/* What the third round calls, and the fifth: a program may need more than two to settle, but it
   does. */
static void repeated(size_t limit_percent) {
    long third = 0, calls;
    program p;
    for (uint64_t seed = 1; seed <= 10 * ROUNDS; seed++) {
        check_case("seed %llu, limit %zu%%", (unsigned long long)seed, limit_percent);
        write_program(&p, seed, 1);
        arena = kit_open(GPUPOOL_SOURCE_MAPPED);
        size_t most = run_program(&p);
        if (limit_percent) {
            kit_close(arena);
            arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, most / 100 * limit_percent + 4 * MIB);
            run_program(&p);
        }
        run_program(&p);
        calls = kit_calls();
        run_program(&p);
        third += kit_calls() > calls;
        run_program(&p);
        calls = kit_calls();
        run_program(&p);
        CHECK_EQ(kit_calls(), calls);
        kit_close(arena);
    }
    CHECK(third <= ROUNDS);
}

static void repeated_without_a_limit(void) { repeated(0); }
static void repeated_under_a_limit(void) { repeated(110); }

/* ---- many streams ---- */

static void two_thousand_streams(gpupool_source source) {
    enum { MANY = 2000 };
    static cudaStream_t stream[MANY];
    static void *block[MANY];
    arena = kit_open(source);
    for (int i = 0; i < MANY; i++)
        CHECK_EQ(cudaStreamCreateWithFlags(&stream[i], cudaStreamNonBlocking), cudaSuccess);
    for (int i = 0; i < MANY; i++) block[i] = kit_alloc(arena, 4 * KIB, stream[i]);
    CHECK(kit_reserved(arena) < 32 * MIB);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < MANY; i++)
            CHECK_RESULT(gpupool_free(arena, block[i], stream[i]), GPUPOOL_OK);
        for (int i = 0; i < MANY; i++) block[i] = kit_alloc(arena, 4 * KIB, stream[i]);
    }
    CHECK(kit_reserved(arena) < 32 * MIB);
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    for (int i = 0; i < MANY; i++) {
        CHECK_RESULT(gpupool_free(arena, block[i], stream[i]), GPUPOOL_OK);
        CHECK_EQ(gpupool_cudaStreamDestroy(stream[i]), cudaSuccess);
    }
    kit_close(arena);
}
static void two_thousand_streams_mapped(void) { two_thousand_streams(GPUPOOL_SOURCE_MAPPED); }
static void two_thousand_streams_of_chunks(void) { two_thousand_streams(GPUPOOL_SOURCE_DEVICE); }

/* A request for one chunk cannot have pieces: what stitched blocks have helps it once it is back on
   the device, and so many of them as the verdict says are enough. */
static void a_request_for_one_chunk(void) {
    enum { ONE_AND_A_HALF = LAID * 2 / 3 - 1 }; /* blocks of three halves of a stripe */
    gpupool_request request = kit_request(4 * STRIPE_BYTES, kit_stream[0], GPUPOOL_ONE_CHUNK);
    const gpupool_holder *holder;
    gpupool_verdict verdict;
    char *block[ONE_AND_A_HALF];
    stripe_open();
    for (int i = 0; i < ONE_AND_A_HALF; i++) block[i] = stripe_stitched(3 * STRIPE / 2, 0);
    CHECK_RESULT(kit_why(gpupool_alloc_request(arena, &request)), GPUPOOL_E_OUT_OF_MEMORY);
    CHECK_RESULT(gpupool_last_verdict(&verdict), GPUPOOL_OK);
    CHECK_EQ(verdict.cause, GPUPOOL_CAUSE_LIMIT);
    holder = &verdict.holders[verdict.holders[0].block_bytes != 3 * STRIPE / 2];
    CHECK_EQ(holder->block_bytes, 3 * STRIPE / 2);
    CHECK(holder->enough > 0 && holder->enough <= ONE_AND_A_HALF);
    for (uint64_t i = 0; i < holder->enough; i++) put(block[i], 0);
    void *whole = gpupool_alloc_request(arena, &request);
    CHECK(whole != NULL);
    put(whole, 0);
    for (uint64_t i = holder->enough; i < ONE_AND_A_HALF; i++) put(block[i], 0);
    stripe_close();
}

#endif

int main(void) {
    FAKE_TEST(as_many_as_it_takes);
    FAKE_TEST(none_where_the_config_says_so);
    FAKE_TEST(nor_for_want_of_anything_else);
    FAKE_TEST(idle_stitches_are_bounded);
    FAKE_TEST(but_for_those_in_use);
    FAKE_TEST(trim_takes_them_along);
    FAKE_TEST(only_those_over_what_goes);
    FAKE_TEST(a_lowered_limit_takes_them_along);
    FAKE_TEST(so_does_a_request_for_new_memory);
    FAKE_TEST(what_is_left_at_the_end);
    FAKE_TEST(a_request_for_one_chunk);
    FAKE_TEST(repeated_without_a_limit);
    FAKE_TEST(repeated_under_a_limit);
    FAKE_TEST(two_thousand_streams_mapped);
    FAKE_TEST(two_thousand_streams_of_chunks);
    return check_finish();
}
