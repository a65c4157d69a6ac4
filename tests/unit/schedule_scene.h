/* schedule_scene.h: an arena for two threads of schedule_run.h, and blocks whose content is looked
   at. Include it after gpupool.h. */
#ifndef SCHEDULE_SCENE_H
#define SCHEDULE_SCENE_H

#include "schedule_run.h"

static gpupool_arena *arena;
static void *kept[4]; /* blocks that outlive a thread, on stream i / 2 */
static size_t kept_bytes;

static void scene_open(const gpupool_arena_config *config) {
    memset(kept, 0, sizeof kept);
    kept_bytes = 512;
    arena = kit_create(config);
    schedule_driver(&arena->chunks.driver);
    fake_mode(FAKE_STEPPED);
}

static void *get(size_t bytes, int stream, int byte) {
    void *block = gpupool_alloc(arena, bytes, kit_stream[stream]);
    if (block) kit_mark(kit_stream[stream], block, bytes, byte);
    else CHECK_RESULT(gpupool_last_result(), GPUPOOL_E_OUT_OF_MEMORY);
    return block;
}

static void put(void *block, size_t bytes, int stream, int byte) {
    if (!block) return;
    kit_expect_mark(kit_stream[stream], block, bytes, byte);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[stream]), GPUPOOL_OK);
}

static void trims(void) { CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK); }

static void close_all(void) {
    for (int i = 0; i < 4; i++) put(kept[i], kept_bytes, i / 2, i);
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    CHECK_EQ(kit_stats(arena).requested.now, 0);
    CHECK_EQ(kit_stats(arena).allocs, kit_stats(arena).frees);
    fake_run_all();
    CHECK_EQ(fake_failures(), 0);
    kit_close(arena);
}

#endif
