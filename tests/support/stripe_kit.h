/* stripe_kit.h: an arena in which every other chunk is free, and which may not grow: a block of
   more than one chunk has to be stitched. Include it after gpupool.h; needs fakecuda's controls. */
#ifndef STRIPE_KIT_H
#define STRIPE_KIT_H

#include "arena_kit.h"

#if CHECK_FAKE

#ifndef GPUPOOL_GUARD
#define GPUPOOL_GUARD 0
#endif
#define STRIPE (2 * MIB)                                /* the driver's granule, and a chunk */
#define STRIPE_BYTES (STRIPE - GPUPOOL_GUARD * (size_t)512) /* of a block that fills a chunk */
#ifndef STRIPES
#define STRIPES 32
#endif
#define LAID (STRIPES / 2) /* chunks that are free */

static gpupool_arena *arena;
static char *stripe[STRIPES];     /* where each chunk's own block is, or was */
static int stripe_is_live[STRIPES];

static inline void *get(size_t bytes, int stream) {
    return kit_alloc(arena, bytes, kit_stream[stream]);
}
static inline void put(void *block, int stream) {
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[stream]), GPUPOOL_OK);
}

static inline gpupool_arena_config stripe_config(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
    config.chunk_bytes = STRIPE;
    config.limit_bytes = STRIPES * STRIPE;
    return config;
}

/* Whether a chunk's own block is free is known by its number: even ones are. */
static inline void stripe_open_with(const gpupool_arena_config *config) {
    arena = kit_create(config);
    for (int i = 0; i < STRIPES; i++) {
        stripe[i] = (char *)get(STRIPE_BYTES, 0);
        stripe_is_live[i] = i % 2;
        kit_mark(kit_stream[0], stripe[i], STRIPE_BYTES, i);
    }
    for (int i = 0; i < STRIPES; i += 2) put(stripe[i], 0);
    CHECK_RESULT(gpupool_trim(arena, SIZE_MAX, NULL), GPUPOOL_OK); /* what is free is anybody's */
    CHECK_EQ(kit_stats(arena).pending.now, 0);
    CHECK_EQ(fake_mappings(), STRIPES);
}

static inline void stripe_open(void) {
    gpupool_arena_config config = stripe_config();
    stripe_open_with(&config);
}

/* The live ones are as they were, where they begin and end. */
static inline void stripe_expect_all(void) {
    for (int i = 0; i < STRIPES; i++)
        if (stripe_is_live[i]) kit_expect_mark(kit_stream[0], stripe[i], STRIPE_BYTES, i);
    CHECK_EQ(cudaStreamSynchronize(kit_stream[0]), cudaSuccess);
}

/* A block that must have been stitched, of new mappings or of those of an earlier one. */
static inline char *stripe_stitched(size_t bytes, int stream) {
    gpupool_stats before = kit_stats(arena), after;
    char *block = (char *)get(bytes, stream);
    after = kit_stats(arena);
    CHECK_EQ(after.stitches + after.stitches_reused,
             before.stitches + before.stitches_reused + 1);
    CHECK_EQ(after.stitched_bytes - before.stitched_bytes,
             (bytes + 511) / 512 * 512 + GPUPOOL_GUARD * 512);
    return block;
}

#define STRIPE_SET 12 /* chunks of a stitch by stripe_stitched_of */

/* The number-th set of STRIPE_SET of the free chunks, as bits. */
static inline unsigned stripe_set(size_t number) {
    unsigned set = (1u << STRIPE_SET) - 1;
    for (; number; number--) { /* the next larger number with as many bits */
        unsigned low = set & (0u - set), next = set + low;
        set = next | ((set ^ next) / low >> 2);
    }
    return set;
}

/* A stitch over just these chunks, which no other number has: the other free ones are taken
   meanwhile. */
static inline char *stripe_stitched_of(size_t number, int stream) {
    unsigned set = stripe_set(number);
    char *taken[LAID], *block;
    for (int i = 0; i < LAID; i++) taken[i] = (char *)get(STRIPE_BYTES, stream);
    for (int i = 0; i < LAID; i++)
        for (int chunk = 0; chunk < LAID; chunk++)
            if (taken[i] == stripe[2 * chunk] && (set >> chunk & 1)) {
                put(taken[i], stream);
                taken[i] = NULL;
                break;
            }
    block = stripe_stitched(STRIPE_SET * STRIPE - GPUPOOL_GUARD * 512, stream);
    for (int i = 0; i < LAID; i++)
        if (taken[i]) put(taken[i], stream);
    return block;
}

static inline void stripe_close(void) {
    fake_run_all();
    stripe_expect_all();
    for (int i = 0; i < STRIPES; i++)
        if (stripe_is_live[i]) put(stripe[i], 0);
    CHECK_EQ(fake_failures(), 0);
    kit_close(arena);
    CHECK_EQ(fake_mappings(), 0);
    CHECK_EQ(fake_used_bytes(0), 0);
}

#endif
#endif
