/* sabotage_kit.h: an arena in the midst of work, and a log by which what is broken in it by hand is
   mended again. Include it after gpupool.h; needs fakecuda's controls. */
#ifndef SABOTAGE_KIT_H
#define SABOTAGE_KIT_H

#include "arena_kit.h"

/* gpupool.h takes its private macros back. */
#define SHELVES 3

/* ---- the log ---- */

static struct { void *at; size_t bytes; unsigned char was[64]; } broken[64];
static size_t broken_count;

static inline void break_bytes(void *at, const void *now, size_t bytes) {
    if (!CHECK(broken_count < KIT_COUNT(broken) && bytes <= sizeof broken[0].was)) return;
    broken[broken_count].at = at;
    broken[broken_count].bytes = bytes;
    memcpy(broken[broken_count++].was, at, bytes);
    memcpy(at, now, bytes);
}

static inline void break_u64(uint64_t *at, uint64_t now) { break_bytes(at, &now, sizeof now); }
static inline void break_u32(uint32_t *at, uint32_t now) { break_bytes(at, &now, sizeof now); }
static inline void break_u8(uint8_t *at, unsigned now) {
    uint8_t byte = (uint8_t)now;
    break_bytes(at, &byte, sizeof byte);
}
static inline void break_u16(uint16_t *at, unsigned now) {
    uint16_t word = (uint16_t)now;
    break_bytes(at, &word, sizeof word);
}
static inline void break_int(int *at, int now) { break_bytes(at, &now, sizeof now); }
static inline void break_run(gpi_run **at, gpi_run *now) { break_bytes(at, &now, sizeof now); }
static inline void break_chunk(gpi_chunk **at, gpi_chunk *now) {
    break_bytes(at, &now, sizeof now);
}

static inline void mend(void) {
    while (broken_count > 0) {
        broken_count--;
        memcpy(broken[broken_count].at, broken[broken_count].was, broken[broken_count].bytes);
    }
}

/* ---- the scene ---- */

#define SCENE_BLOCKS 96
#define SCENE_STITCHED 80 /* number of the first stitched block */
static gpupool_arena *arena;
static struct { void *at; int stream; } scene_block[SCENE_BLOCKS];
static size_t scene_count;
static void *scene_apart[2];

static inline void *scene_alloc(size_t bytes, int stream) {
    void *block = kit_alloc(arena, bytes, kit_stream[stream]);
    kit_mark(kit_stream[stream], block, bytes, 1);
    scene_block[scene_count].at = block;
    scene_block[scene_count++].stream = stream;
    return block;
}

static inline void scene_alloc_tagged(size_t bytes, int stream) {
    gpupool_request request = kit_request(bytes, kit_stream[stream], 0);
    CHECK_RESULT(gpupool_tag(arena, "scene", NULL, &request.tag), GPUPOOL_OK);
    scene_block[scene_count].at = gpupool_alloc_request(arena, &request);
    scene_block[scene_count++].stream = stream;
}

/* Two blocks with a tag that has chunks of its own, and free memory between and behind them. */
static inline void scene_alloc_apart(void) {
    gpupool_request request = kit_request(600000, kit_stream[0], 0);
    gpupool_tag_config config;
    void *between;
    if (arena->chunks.source != GPUPOOL_SOURCE_MAPPED) return;
    memset(&config, 0, sizeof config);
    config.can_sleep = 1;
    CHECK_RESULT(gpupool_tag(arena, "apart", &config, &request.tag), GPUPOOL_OK);
    scene_apart[0] = gpupool_alloc_request(arena, &request);
    between = gpupool_alloc_request(arena, &request);
    scene_apart[1] = gpupool_alloc_request(arena, &request);
    CHECK_RESULT(gpupool_free(arena, between, kit_stream[0]), GPUPOOL_OK);
}

static inline void scene_free(size_t i) {
    cudaStream_t stream = kit_stream[scene_block[i].stream];
    CHECK_RESULT(gpupool_free(arena, scene_block[i].at, stream), GPUPOOL_OK);
    scene_block[i].at = NULL;
}

/* Every block of these, so that what is freed lies between others. */
static inline void scene_free_each(size_t from, size_t to, size_t step) {
    for (size_t i = from; i < to; i += step) scene_free(i);
}

/* Other streams read the block, and are not done when it is freed: it is waiting. */
static inline void scene_wait(size_t i) {
    for (int stream = 2; stream < 4; stream++) {
        kit_order(kit_stream[scene_block[i].stream], kit_stream[stream]);
        kit_expect(kit_stream[stream], scene_block[i].at, 64, -1);
        CHECK_RESULT(gpupool_record_stream(arena, scene_block[i].at, kit_stream[stream]),
                     GPUPOOL_OK);
    }
    scene_free(i);
}

/* What was freed so far becomes anybody's: no work is in flight. */
static inline void scene_rest(void) {
    fake_run_all();
    CHECK_RESULT(gpupool_trim(arena, SIZE_MAX, NULL), GPUPOOL_OK);
}

static inline void scene_calm(void) {
    for (size_t i = 25; i < 32; i += 2)
        for (int stream = 0; stream < 4; stream++)
            CHECK_RESULT(gpupool_record_stream(arena, scene_block[i].at, kit_stream[stream]),
                         GPUPOOL_OK);
    scene_free_each(1, 12, 2);
    scene_free_each(25, 32, 2);
    scene_free_each(56, 80, 2);
    scene_rest();
}

/* Where memory can be stitched, it is: the arena may not grow. Of four such blocks one stays live,
   one will be waiting, one is freed by its stream, and one when all its users are done. */
static inline void scene_stitch(void) {
    if (arena->chunks.source == GPUPOOL_SOURCE_MAPPED)
        CHECK_RESULT(gpupool_set_limit(arena, kit_reserved(arena)), GPUPOOL_OK);
    scene_alloc(13 * MIB / 2, 0);
    scene_alloc(11 * MIB / 2, 1);
    scene_alloc(6 * MIB, 0);
    scene_alloc(21 * MIB / 4, 1);
    CHECK_RESULT(gpupool_set_limit(arena, 0), GPUPOOL_OK);
}

/* What the driver does not take back when it is trimmed is stuck, and leaves bare addresses. */
static inline void scene_trim(void) {
    if (arena->chunks.source != GPUPOOL_SOURCE_MAPPED) return;
    fake_fail_call("cuMemRelease", 2, 1, 0);
    CHECK_RESULT(gpupool_trim(arena, kit_reserved(arena) - 4 * MIB, NULL), GPUPOOL_E_CUDA);
    fake_fail_clear();
}

/* Blocks live on two streams, one of them in use on another; memory free in free lists of all
   kinds, in several runs each; two marks on each stream; waiting blocks; stitches in use and idle;
   blocks that caches have, free and handed out again. Of all that was freed since the calm the work
   is queued yet. */
static inline void scene_open(gpupool_source source) {
    gpupool_arena_config config = kit_config(source);
    config.chunk_bytes = source == GPUPOOL_SOURCE_MAPPED ? 2 * MIB : 8 * MIB;
    config.name = "scene";
    arena = kit_create(&config);
    scene_count = 0;
    for (size_t i = 0; i < 24; i++) scene_alloc(400 + (i * i * 911) % 300000, (int)(i % 2));
    for (size_t i = 0; i < 16; i++) scene_alloc(3 * MIB + i * 70000, (int)(i % 2));
    for (size_t i = 0; i < 16; i++) scene_alloc(20000 + i * 1000, (int)(i % 2));
    for (size_t i = 0; i < 24; i++) scene_alloc(4 * MIB + i * 50000, (int)(i % 2));
    scene_alloc_apart();
    scene_calm();
    scene_stitch();
    scene_trim();
    CHECK_RESULT(gpupool_record_stream(arena, scene_block[SCENE_STITCHED + 3].at, kit_stream[2]),
                 GPUPOOL_OK);
    scene_free(SCENE_STITCHED + 3);
    scene_rest();
    fake_mode(FAKE_STEPPED);
    scene_free_each(34, 40, 1); /* large: with two streams about, each gets a mark at once */
    scene_wait(12);
    scene_wait(15);
    scene_wait(18);
    scene_wait(SCENE_STITCHED + 1);
    scene_free(SCENE_STITCHED + 2);
    /* the very first run, which no check may pass over */
    CHECK_RESULT(gpupool_record_stream(arena, scene_block[0].at, kit_stream[3]), GPUPOOL_OK);
    scene_alloc(100, 0); /* one unit, the smallest run there is */
    scene_free(scene_count - 1);
    scene_free_each(42, 48, 1); /* small: into the caches, */
    for (gpi_stream *stream = arena->clocks.streams; stream; stream = stream->next) {
        gpi_host_lock(&stream->cache.lock); /* and from there into the free lists */
        gpi_host_lock(&arena->lock);
        gpi_arena_empty_free(arena, stream);
        gpi_arena_unlock(arena);
        gpi_host_unlock(&stream->cache.lock);
    }
    scene_free_each(48, 54, 1);
    scene_alloc(28000, 0); /* what 48 and 49 had */
    scene_alloc(29000, 1);
    scene_alloc(3000, 0); /* in a slab, or what a new one leaves free */
    scene_alloc_tagged(26000, 1);
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK); /* now the ledger knows of it too */
}

static inline void scene_close(void) {
    for (size_t i = 0; i < scene_count; i++)
        if (scene_block[i].at) scene_free(i);
    for (int i = 0; i < 2; i++)
        if (scene_apart[i])
            CHECK_RESULT(gpupool_free(arena, scene_apart[i], kit_stream[0]), GPUPOOL_OK);
    memset(scene_apart, 0, sizeof scene_apart);
    fake_run_all();
    kit_close(arena);
}

/* ---- places in it, counted from 0; NULL beyond the last ---- */

static inline int is_mapped(void) { return arena->chunks.source == GPUPOOL_SOURCE_MAPPED; }

static inline gpi_chunk *chunk_at(gpi_chunk *list, size_t at) {
    while (list && at--) list = list->next;
    return list;
}

/* What leads to the leftmost run of the at-th range: a chunk, or where chunks, or stitches, are. */
static inline gpi_run **range_at(size_t at) {
    gpi_chunk *chunk = is_mapped() ? NULL : chunk_at(arena->chunks.first, at);
    if (is_mapped() && at < 2) return at ? &arena->chunks.space : &arena->chunks.home;
    return chunk ? &chunk->first : NULL;
}

typedef int (*run_test)(const gpi_run *run);
static inline int is_free(const gpi_run *run) { return run->list < GPI_LIST_WAITING; }
static inline int is_live(const gpi_run *run) { return run->list >= GPI_LIST_CACHED; }
static inline int is_cached(const gpi_run *run) {
    return run->list == GPI_LIST_CACHED;
}
static inline int is_live_in_use(const gpi_run *run) {
    return is_live(run) && run->of.uses && !is_cached(run);
}
static inline int is_held(const gpi_run *run) {
    return run->list == GPI_LIST_TAKEN || run->list == GPI_LIST_WAITING;
}
static inline int is_anybodys(const gpi_run *run) { return run->list == GPI_LIST_ANY; }
static inline int is_bare(const gpi_run *run) { return run->list == GPI_LIST_EMPTY; }

static inline gpi_run *run_at(size_t at, run_test test) {
    gpi_run **range;
    for (size_t i = 0; (range = range_at(i)) != NULL; i++)
        for (gpi_run *run = *range; run; run = run->next)
            if (test(run) && at-- == 0) return run;
    return NULL;
}

/* The same among those with a neighbour on the right. */
static inline gpi_run *left_of_another(size_t at, run_test test) {
    gpi_run *run;
    for (size_t i = 0; (run = run_at(i, test)) != NULL; i++)
        if (run->next && at-- == 0) return run;
    return NULL;
}

static inline size_t count_runs(run_test test) {
    size_t count = 0;
    while (run_at(count, test)) count++;
    return count;
}

/* Streams that are known, ALL among them. */
static inline gpi_stream *stream_at(size_t at) {
    gpi_stream *stream = arena->clocks.streams;
    for (; stream; stream = stream->next)
        if (stream->handle && at-- == 0) return stream;
    return NULL;
}

/* Those with a mark that has not passed. */
static inline gpi_stream *marked_stream_at(size_t at) {
    gpi_stream *stream;
    for (size_t i = 0; (stream = stream_at(i)) != NULL; i++)
        if (gpi_clock_mark(&arena->clocks, stream, 0) && at-- == 0) return stream;
    return NULL;
}

static inline gpi_run *waiting_at(size_t at) {
    gpi_run *run = arena->waiting;
    while (run && at--) run = run->list_next;
    return run;
}

#endif
