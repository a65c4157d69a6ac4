/* edition.h: what the tools and benches need of gpupool.h where its editions differ, under one name
   for both: the version below 300 (the header at the top), and the one in tests/next. Include it
   after gpupool.h. */
#ifndef EDITION_H
#define EDITION_H

#if GPUPOOL_VERSION < 300

static inline void edition_reserve(gpupool_arena_config *config, size_t bytes) {
    config->reserve_bytes = bytes;
}

#ifdef GPUPOOL_NO_STREAM
static inline void *edition_alloc_ready(gpupool_arena *arena, size_t bytes) {
    return gpupool_alloc(arena, bytes, GPUPOOL_NO_STREAM);
}
static inline gpupool_result edition_free_ready(gpupool_arena *arena, void *block) {
    return gpupool_free(arena, block, GPUPOOL_NO_STREAM);
}
#else
/* As this edition's allocate_sync and deallocate_sync do. */
static inline void *edition_alloc_ready(gpupool_arena *arena, size_t bytes) {
    void *block = gpupool_alloc(arena, bytes, NULL);
    if (!block || gpupool_wait_all(arena) == GPUPOOL_OK) return block;
    gpupool_free(arena, block, NULL);
    return NULL;
}
static inline gpupool_result edition_free_ready(gpupool_arena *arena, void *block) {
    return gpupool_free(arena, block, NULL);
}
#endif

static inline void *edition_alloc_aligned(gpupool_arena *arena, size_t bytes, size_t alignment,
                                          cudaStream_t stream) {
    return gpupool_alloc_aligned(arena, bytes, alignment, stream);
}

static inline uint64_t edition_growths(const gpupool_stats *stats) {
    return stats->chunks_gained + stats->chunks_lost + stats->stitches;
}

static inline uint64_t edition_limit(const gpupool_stats *stats) { return stats->limit_bytes; }

static inline gpupool_result edition_trim(gpupool_arena *arena, size_t keep_bytes) {
    return gpupool_trim(arena, keep_bytes, NULL);
}

static inline gpupool_result edition_retire(gpupool_arena *arena, cudaStream_t stream) {
    return gpupool_retire_stream(arena, stream);
}

/* What is wrong when a request has failed, in a sentence. */
static inline const char *edition_why(gpupool_verdict *room) {
    int told = gpupool_last_result() == GPUPOOL_E_OUT_OF_MEMORY &&
               gpupool_last_verdict(room) == GPUPOOL_OK;
    return told ? room->sentence : gpupool_last_error();
}

/* Takes a limit as text; 0, or -1: the arena cannot read it. */
static inline int edition_set_limit_text(gpupool_arena_config *config, const char *text) {
    config->limit_text = text;
    return 0;
}

static inline void edition_set_limit(gpupool_arena_config *config, size_t bytes) {
    config->limit_text = NULL;
    config->limit_bytes = bytes;
}

static inline gpupool_result edition_ask_size(gpupool_arena *arena, const void *memory) {
    gpupool_block block;
    return gpupool_get_block(arena, memory, &block);
}

static inline void edition_ask_fit(gpupool_arena *arena, size_t bytes) {
    gpupool_would_fit(arena, bytes, NULL);
}

static inline void edition_ask_limit(gpupool_arena *arena) {
    size_t bytes;
    gpupool_get_limit(arena, &bytes);
}

static inline gpupool_result edition_draw(gpupool_arena *arena, FILE *file) {
    return gpupool_write_svg(arena, file);
}

/* The device's default arena; NULL: there is none yet. */
static inline gpupool_arena *edition_default_arena(int device) {
    return gpupool_find_default_arena(device);
}

#else

#include "examples/next/memory_map.h"

/* A third edition reserves nothing at its start. */
static inline void edition_reserve(gpupool_arena_config *config, size_t bytes) {
    (void)config, (void)bytes;
}

static inline void *edition_alloc_ready(gpupool_arena *arena, size_t bytes) {
    return gpupool_alloc(arena, bytes, GPUPOOL_NO_STREAM);
}

static inline gpupool_result edition_free_ready(gpupool_arena *arena, void *block) {
    return gpupool_free(arena, block, GPUPOOL_NO_STREAM);
}

static inline void *edition_alloc_aligned(gpupool_arena *arena, size_t bytes, size_t alignment,
                                          cudaStream_t stream) {
    gpupool_request request = {bytes, alignment, stream, 0, NULL};
    return gpupool_alloc_request(arena, &request);
}

static inline uint64_t edition_growths(const gpupool_stats *stats) { return stats->driver_calls; }

static inline uint64_t edition_limit(const gpupool_stats *stats) { return stats->limit; }

static inline gpupool_result edition_trim(gpupool_arena *arena, size_t keep_bytes) {
    return gpupool_trim(arena, keep_bytes);
}

static inline gpupool_result edition_retire(gpupool_arena *arena, cudaStream_t stream) {
    (void)arena;
    return gpupool_retire_stream(stream);
}

static inline const char *edition_why(gpupool_verdict *room) {
    (void)room;
    return gpupool_last_error();
}

/* An arena reads the text, since a config has none. */
static inline int edition_set_limit_text(gpupool_arena_config *config, const char *text) {
    gpupool_arena *reader;
    gpupool_stats stats;
    int wrong = gpupool_arena_create(&reader, NULL) != GPUPOOL_OK;
    if (wrong) return -1;
    wrong = gpupool_set_limit_text(reader, text) != GPUPOOL_OK ||
            gpupool_get_stats(reader, &stats) != GPUPOOL_OK;
    if (!wrong) config->limit_bytes = (size_t)stats.limit;
    gpupool_arena_destroy(reader);
    return wrong ? -1 : 0;
}

static inline void edition_set_limit(gpupool_arena_config *config, size_t bytes) {
    config->limit_bytes = bytes;
}

static inline gpupool_result edition_ask_size(gpupool_arena *arena, const void *memory) {
    gpupool_block block;
    return gpupool_get_block(arena, memory, &block);
}

static inline void edition_ask_fit(gpupool_arena *arena, size_t bytes) {
    (void)arena, (void)bytes;
}

static inline void edition_ask_limit(gpupool_arena *arena) {
    gpupool_stats stats;
    gpupool_get_stats(arena, &stats);
}

static inline gpupool_arena *edition_default_arena(int device) {
    return gpupool_get_default_arena(device);
}

static inline gpupool_result edition_draw(gpupool_arena *arena, FILE *file) {
    return memory_map_write(arena, file);
}

#endif
#endif
