/* arena_scene.h: one arena at a time, and streams by their numbers, on which blocks are had, used
   and freed. For tests that include the implementation; they need fakecuda's controls. Include it
   after the kits whose functions are told which arena. */
#ifndef ARENA_SCENE_H
#define ARENA_SCENE_H

#include "arena_kit.h"

#if CHECK_FAKE

static gpupool_arena *arena;

static inline void open_in_chunks(gpupool_source source, size_t chunk_bytes) {
    gpupool_arena_config config = kit_config(source);
    config.chunk_bytes = chunk_bytes;
    arena = kit_create(&config);
}

/* ---- blocks; _on: a stream that has no number ---- */

static inline void *get_on(size_t bytes, cudaStream_t stream) {
    return kit_alloc(arena, bytes, stream);
}
static inline void *get(size_t bytes, int stream) { return get_on(bytes, kit_stream[stream]); }

/* All of the longest run that is free. */
static inline void *get_the_rest(int stream) {
    return get((size_t)kit_stats(arena).largest_free_bytes, stream);
}

static inline void *take_without_a_wait(size_t bytes, int stream) {
    void *block = kit_alloc_as(arena, bytes, kit_stream[stream], GPUPOOL_NO_WAIT);
    CHECK_RESULT(kit_why(block), GPUPOOL_OK);
    CHECK_EQ(kit_stats(arena).host_syncs, 0);
    return block;
}

/* Another stream reads the block, and is not done. */
static inline void use_on(void *block, cudaStream_t stream) {
    kit_expect(stream, block, 64, -1);
    CHECK_RESULT(gpupool_record_stream(arena, block, stream), GPUPOOL_OK);
}
static inline void use(void *block, int stream) { use_on(block, kit_stream[stream]); }

static inline void put_on(void *block, cudaStream_t stream) {
    CHECK_RESULT(gpupool_free(arena, block, stream), GPUPOOL_OK);
}
static inline void put(void *block, int stream) { put_on(block, kit_stream[stream]); }

/* ---- the arena ---- */

static inline void no_more_memory(void) {
    CHECK_RESULT(gpupool_set_limit(arena, kit_reserved(arena)), GPUPOOL_OK);
}

/* What is done is known to be so afterwards. */
static inline void trim_none(void) {
    CHECK_RESULT(gpupool_trim(arena, SIZE_MAX, NULL), GPUPOOL_OK);
}

/* What the arena knows of a stream; NULL: it has not met it. */
static inline gpi_stream *known_stream(int stream) {
    return gpi_clock_find(&arena->clocks, gpi_clock_key(kit_stream[stream]));
}

/* The capture was not lost; its graph is not wanted. */
static inline void drop_capture(cudaStream_t stream) {
    cudaGraph_t graph = NULL;
    CHECK_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    CHECK_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

/* ---- the end of a scene whose streams run when they are told to ---- */

static inline void finish(void) {
    fake_mode(FAKE_EAGER);
    kit_close(arena);
}

static inline void finish_with(void *last, int stream) {
    fake_mode(FAKE_EAGER);
    put(last, stream);
    kit_close(arena);
}

/* All that is queued runs first, and overtakes nothing. */
static inline void run_and_finish(void) {
    fake_run_all();
    CHECK_EQ(fake_failures(), 0);
    finish();
}

#endif
#endif
