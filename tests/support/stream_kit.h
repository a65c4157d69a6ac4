/* stream_kit.h: one arena, streams that run only when they are told to, and the race oracle of
   fakecuda watching. What the tests of stream order share; they need fakecuda's controls. */
#ifndef STREAM_KIT_H
#define STREAM_KIT_H

#include "arena_kit.h"

#if CHECK_FAKE

#define SIZE (4 * MIB)

static gpupool_arena *arena;

/* An arena whose limit admits just this many bytes, and streams that run when they are told to.
   What CUSTOM gives may be unaligned, so that a chunk has to be a little larger than its block. */
static inline void open_for(gpupool_source source, size_t bytes) {
    arena = kit_open_limited(source, bytes + (source == GPUPOOL_SOURCE_CUSTOM ? KIB : 0));
    fake_mode(FAKE_STEPPED);
}

static inline void *get(size_t bytes, int stream, int byte) {
    void *block = kit_alloc(arena, bytes, kit_stream[stream]);
    if (block) kit_mark(kit_stream[stream], block, bytes, byte);
    return block;
}

static inline void put(void *block, int stream) {
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[stream]), GPUPOOL_OK);
}

static inline void close_arena(void) {
    fake_run_all();
    CHECK_EQ(fake_failures(), 0);
    kit_close(arena);
}

/* But PINNED, whose blocks are the host's at once: no stream gets one back unfinished. */
static const gpupool_source pooled[] = {GPUPOOL_SOURCE_MAPPED, GPUPOOL_SOURCE_DEVICE,
                                        GPUPOOL_SOURCE_MANAGED, GPUPOOL_SOURCE_CUSTOM};

static inline void for_each_source(void (*body)(gpupool_source)) {
    for (size_t i = 0; i < KIT_COUNT(pooled); i++) {
        check_case("source %d", (int)pooled[i]);
        body(pooled[i]);
    }
}

/* Runs the stream alone: what it would overtake has not run then, and the oracle tells. */
static inline void run_alone(int stream) {
    while (fake_step(kit_stream[stream])) CHECK_EQ(fake_failures(), 0);
}

#endif
#endif
