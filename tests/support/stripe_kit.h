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
