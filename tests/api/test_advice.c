/* Advice in arenas of every kind, after random work on three streams, some of it aligned, and with
   limits that move: whatever a verdict says would do, does. And gpupool_would_fit knows which
   requests need none. */
// build: sizes
// build: sites -fsanitize=address,undefined -DGPUPOOL_SITES=1 -DROUNDS=1
// build: units -DGPUPOOL_UNIT_BYTES=65536 -DROUNDS=1
#include "gpupool.h"
#include "verdict_kit.h"

#ifndef ROUNDS
#define ROUNDS 3 /* of other random numbers */
#endif
#define SLOTS 48
#define LIMIT (40 * MIB)

typedef struct slot {
    void *block;
    size_t bytes;
    int line; /* of the call, or the size, by which a holder is known */
} slot;

static slot slots[SLOTS];
static uint64_t streams; /* of the random choice among them */
static gpupool_arena *arena;
static size_t limit, alignment; /* of now; of the request of now */
static long followed_raise, followed_free;

static cudaStream_t any_stream(void) { return kit_stream[check_below(&streams, 3)]; }

static void get(slot *s, size_t bytes, int which) {
    s->bytes = bytes;
    if (which == 0) {
        s->line = __LINE__ + 1;
        s->block = gpupool_alloc_aligned(arena, bytes, alignment, any_stream());
    } else {
        s->line = __LINE__ + 1;
        s->block = gpupool_alloc_aligned(arena, bytes, alignment, any_stream());
    }
}

static void put(slot *s) {
    CHECK_RESULT(gpupool_free(arena, s->block, any_stream()), GPUPOOL_OK);
    s->block = NULL;
}

static int is_of(const gpupool_holder *holder, const slot *s) {
    return s->block && (holder->file ? holder->line == s->line : holder->block_bytes == s->bytes);
}

/* Frees as many as would do, any of them. */
static void free_as_advised(const gpupool_holder *holder, uint64_t *random) {
    uint64_t left = 0, freed = 0;
    for (size_t i = 0; i < SLOTS; i++) left += (uint64_t)is_of(holder, &slots[i]);
    CHECK_EQ(left, holder->blocks);
    while (freed < holder->enough) {
        slot *s = &slots[check_below(random, SLOTS)];
        if (!is_of(holder, s)) continue;
        put(s);
        freed++;
    }
}

static void follow(size_t bytes, uint64_t *random) {
    gpupool_verdict v;
    if (!CHECK_RESULT(gpupool_last_verdict(&v), GPUPOOL_OK)) return;
    const gpupool_holder *holder = advised_holder(&v);
    int raise = v.raise_bytes && (!holder || check_below(random, 2));
    if (!raise && !holder) {
        check_fail(__FILE__, __LINE__, "no advice in \"%s\"", v.sentence);
        return;
    }
    if (raise) raise_as_advised(arena, &v);
    else free_as_advised(holder, random);
    void *block = gpupool_alloc_aligned(arena, bytes, alignment, any_stream());
    if (!block)
        check_fail(__FILE__, __LINE__, "\"%s\": %s did not help: %s", v.sentence,
                   raise ? "raising" : "freeing", gpupool_last_error());
    CHECK_RESULT(gpupool_free(arena, block, any_stream()), GPUPOOL_OK);
    CHECK_RESULT(gpupool_set_limit(arena, limit), GPUPOOL_OK);
    followed_raise += raise;
    followed_free += !raise;
}

/* chunk_bytes: of each piece, or 0. rough: limits move, and requests are aligned. */
static void run(gpupool_source source, size_t chunk_bytes, int rough, uint64_t seed) {
    uint64_t random = seed;
    const size_t sizes[] = {700 * KIB, 2 * MIB, 3 * MIB, 5 * MIB + 100, 11 * MIB};
    gpupool_arena_config config = kit_config(source);
    config.limit_bytes = limit = LIMIT;
    config.chunk_bytes = chunk_bytes;
    arena = kit_create(&config);
    streams = seed;
    followed_raise = followed_free = 0;
    for (int step = 0; step < 1200; step++) {
        check_case("source %d, chunks %zu, %s, seed %llu, step %d", (int)source, chunk_bytes,
                   rough ? "rough" : "plain", (unsigned long long)seed, step);
        if (rough && step % 16 == 0) {
            limit = LIMIT / 4 + (size_t)check_below(&random, LIMIT);
            CHECK_RESULT(gpupool_set_limit(arena, limit), GPUPOOL_OK);
        }
        alignment = 1;
        if (rough && step % 4 == 0)
            alignment = (size_t)GPUPOOL_UNIT_BYTES << check_below(&random, 10);
        slot *s = &slots[check_below(&random, SLOTS)];
        size_t bytes = sizes[check_below(&random, KIT_COUNT(sizes))];
        if (s->block) {
            put(s);
            continue;
        }
        int fits = kit_fits(arena, bytes, NULL);
        get(s, bytes, (int)check_below(&random, 2));
        if (CHECK_FAKE && alignment == 1) /* a GPU may not be done meanwhile */
            CHECK_EQ(s->block != NULL, fits);
        if (!s->block) follow(bytes, &random);
    }
    CHECK(followed_raise > 20);
    CHECK(followed_free > 20);
    for (size_t i = 0; i < SLOTS; i++) put(&slots[i]);
    kit_close(arena);
}

static void advice_helps(void) {
    for (size_t i = 0; i < KIT_SOURCES; i++)
        for (uint64_t seed = 1; seed <= ROUNDS; seed++) {
            run(kit_sources[i].source, 0, 0, seed);
            run(kit_sources[i].source, 0, 1, seed);
        }
    for (uint64_t seed = 1; seed <= 2 * ROUNDS; seed++)
        run(GPUPOOL_SOURCE_MAPPED, seed % 2 ? 8 * MIB : 14 * MIB, seed > 2 || ROUNDS == 1, seed);
}

int main(void) {
    ARENA_TEST(advice_helps);
    return check_finish();
}
