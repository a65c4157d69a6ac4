/* remap_kit.h: work that makes an arena move its memory about: large blocks of all sizes on four
   streams, freed with work queued, under a limit a little above what is live. Include it after
   gpupool.h; it needs fakecuda's controls. */
#ifndef REMAP_KIT_H
#define REMAP_KIT_H

#include "arena_kit.h"

#if CHECK_FAKE

#define REMAP_BLOCKS 512
#define REMAP_LARGEST (40 * MIB)
#define REMAP_STRIDE (2 * MIB) /* the driver's granule */
#define REMAP_TOUCHES (2 + REMAP_LARGEST / REMAP_STRIDE)
#define REMAP_TOUCH ((size_t)64)

typedef struct remap_block {
    char *at;
    size_t bytes;
    int stream, byte; /* byte: what it holds wherever it was touched */
} remap_block;

typedef struct remap_work {
    gpupool_arena *arena;
    fake_run_mode mode;
    uint64_t random;
    int streams;              /* that the work is on */
    size_t most, live, limit; /* most: live bytes that the work stays within */
    remap_block block[REMAP_BLOCKS];
    size_t count;
} remap_work;

static inline size_t remap_below(remap_work *w, size_t bound) {
    return (size_t)check_below(&w->random, bound);
}

/* Both ends and a place in every granule between them, so that none can be taken from under a block
   unseen. */
static inline void remap_touch(const remap_block *b, int write) {
    fake_access access[REMAP_TOUCHES];
    int n = 0;
    for (size_t at = 0; at + REMAP_TOUCH < b->bytes; at += REMAP_STRIDE)
        access[n++] = (fake_access){b->at + at, REMAP_TOUCH, write, FAKE_BYTE(b->byte)};
    access[n++] =
        (fake_access){b->at + b->bytes - REMAP_TOUCH, REMAP_TOUCH, write, FAKE_BYTE(b->byte)};
    CHECK_EQ(fake_kernel(kit_stream[b->stream], write ? "write" : "read", access, n), cudaSuccess);
}

static inline void remap_step(remap_work *w) {
    if (w->mode != FAKE_STEPPED) return;
    for (size_t i = remap_below(w, 6); i > 0; i--)
        fake_step(kit_stream[remap_below(w, KIT_STREAMS)]);
    if (fake_pending_all() > 100) fake_run(kit_stream[remap_below(w, KIT_STREAMS)]);
}

/* Its last reader is queued, not finished, when it is freed. */
static inline void remap_free(remap_work *w, size_t i) {
    remap_block b = w->block[i];
    remap_touch(&b, 0);
    CHECK_RESULT(gpupool_free(w->arena, b.at, kit_stream[b.stream]), GPUPOOL_OK);
    w->block[i] = w->block[--w->count];
    w->live -= b.bytes;
    remap_step(w);
}

/* The next request, with room made for it; remap_take asks for it, any number of times. */
static inline remap_block remap_next(remap_work *w) {
    size_t bytes = MIB + remap_below(w, REMAP_LARGEST - MIB + 1);
    while (w->count == REMAP_BLOCKS || (w->count && w->live + bytes > w->most))
        remap_free(w, remap_below(w, w->count));
    return (remap_block){NULL, bytes, (int)remap_below(w, (size_t)w->streams),
                         (int)remap_below(w, 256)};
}

static inline int remap_take(remap_work *w, remap_block b) {
    b.at = (char *)gpupool_alloc(w->arena, b.bytes, kit_stream[b.stream]);
    if (!b.at) return 0;
    remap_touch(&b, 1);
    w->block[w->count++] = b;
    w->live += b.bytes;
    remap_step(w);
    return 1;
}

/* The arena's account, the test's and the device's agree, and the limit is kept. */
static inline void remap_agrees(remap_work *w) {
    gpupool_stats s = kit_stats(w->arena);
    CHECK_RESULT(gpupool_check(w->arena), GPUPOOL_OK);
    CHECK_EQ(s.requested.now, w->live);
    CHECK_EQ(s.blocks.now, w->count);
    CHECK_EQ(s.reserved.now, fake_used_bytes(0));
    CHECK(s.reserved.peak <= w->limit);
    CHECK_EQ(fake_failures(), 0);
}

/* chunk: how much moves at a time; 0: as the arena likes */
static inline void remap_open(remap_work *w, fake_run_mode mode, int streams, size_t most,
                              size_t limit, size_t chunk, uint64_t seed) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
    *w = (remap_work){
        .mode = mode, .random = seed, .streams = streams, .most = most, .limit = limit};
    config.limit_bytes = limit;
    config.chunk_bytes = chunk;
    w->arena = kit_create(&config);
    fake_mode(mode);
}

/* The statistics of the last moment; then all is read once more, freed and given back. */
static inline gpupool_stats remap_close(remap_work *w) {
    gpupool_stats last = kit_stats(w->arena);
    remap_agrees(w);
    while (w->count) remap_free(w, w->count - 1);
    fake_run_all();
    CHECK_EQ(fake_failures(), 0);
    CHECK_RESULT(gpupool_trim(w->arena, 0, NULL), GPUPOOL_OK);
    CHECK(w->arena->backing.first->next == NULL); /* no address is lost */
    kit_close(w->arena);
    CHECK_EQ(fake_used_bytes(0), 0);
    return last;
}

#endif
#endif
