/* stitch_kit.h: work that makes an arena stitch blocks together: large blocks of all sizes on four
   streams, freed with work queued, under a limit a little above what is live. Include it after
   gpupool.h; it needs fakecuda's controls. */
#ifndef STITCH_KIT_H
#define STITCH_KIT_H

#include "arena_kit.h"

#if CHECK_FAKE

#define STITCH_BLOCKS 512
#define STITCH_LARGEST (40 * MIB)
#define STITCH_GRANULE (2 * MIB) /* the driver's: only at its borders does one chunk end */
#define STITCH_TOUCHES (3 + STITCH_LARGEST / STITCH_GRANULE)
#define STITCH_TOUCH ((size_t)64) /* on both sides of each border */

typedef struct stitch_block {
    char *at;
    size_t bytes;
    int stream, byte; /* byte: what it holds where it is touched first; one more from place to
                         place */
} stitch_block;

typedef struct stitch_work {
    gpupool_arena *arena;
    fake_run_mode mode;
    uint64_t random;
    int streams;              /* that the work is on */
    size_t most, live, limit; /* most: live bytes that the work stays within */
    stitch_block block[STITCH_BLOCKS];
    size_t count;
    size_t kept_bytes, kept;  /* live blocks that are a graph's, beside those */
} stitch_work;

static inline size_t stitch_below(stitch_work *w, size_t bound) {
    return (size_t)check_below(&w->random, bound);
}

/* Both ends, and both sides of every place where chunks may meet: a kernel writes, or verifies,
   what is there, so that no part of a block can be another's, or lie elsewhere in it, unseen. */
static inline void stitch_touch(const stitch_block *b, int write) {
    fake_access access[STITCH_TOUCHES];
    uintptr_t begin = (uintptr_t)b->at, end = begin + b->bytes, border = begin, done = begin;
    int n = 0;
    while (done < end) {
        uintptr_t from = border > begin + STITCH_TOUCH ? border - STITCH_TOUCH : begin;
        uintptr_t to = border + STITCH_TOUCH < end ? border + STITCH_TOUCH : end;
        if (from < done) from = done;
        if (from < to)
            access[n] = (fake_access){b->at + (from - begin), to - from, write,
                                      FAKE_BYTE(b->byte + n)};
        n += from < to;
        done = to;
        border += STITCH_GRANULE - border % STITCH_GRANULE;
        if (border > end) border = end;
    }
    CHECK_EQ(fake_kernel(kit_stream[b->stream], write ? "write" : "read", access, n), cudaSuccess);
}

static inline void stitch_step(stitch_work *w) {
    if (w->mode != FAKE_STEPPED) return;
    for (size_t i = stitch_below(w, 6); i > 0; i--)
        fake_step(kit_stream[stitch_below(w, KIT_STREAMS)]);
    if (fake_pending_all() > 100) fake_run(kit_stream[stitch_below(w, KIT_STREAMS)]);
}

/* Its last reader is queued, not finished, when it is freed. */
static inline void stitch_free(stitch_work *w, size_t i) {
    stitch_block b = w->block[i];
    stitch_touch(&b, 0);
    CHECK_RESULT(gpupool_free(w->arena, b.at, kit_stream[b.stream]), GPUPOOL_OK);
    w->block[i] = w->block[--w->count];
    w->live -= b.bytes;
    stitch_step(w);
}

/* The next request, with room made for it; stitch_take asks for it, any number of times. */
static inline stitch_block stitch_next(stitch_work *w) {
    size_t bytes = MIB + stitch_below(w, STITCH_LARGEST - MIB + 1);
    if (stitch_below(w, 2) && bytes >= 4 * MIB) bytes -= bytes % (4 * MIB); /* some come again */
    while (w->count == STITCH_BLOCKS || (w->count && w->live + bytes > w->most))
        stitch_free(w, stitch_below(w, w->count));
    return (stitch_block){NULL, bytes, (int)stitch_below(w, (size_t)w->streams),
                         (int)stitch_below(w, 256)};
}

static inline int stitch_take(stitch_work *w, stitch_block b) {
    b.at = (char *)gpupool_alloc(w->arena, b.bytes, kit_stream[b.stream]);
    if (!b.at) return 0;
    stitch_touch(&b, 1);
    w->block[w->count++] = b;
    w->live += b.bytes;
    stitch_step(w);
    return 1;
}

/* How many mappings of handles the arena knows of: one for each chunk, but those that are only not
   released yet, and one for each chunk of each stitch. */
static inline long stitch_mappings(const gpupool_arena *arena) {
    const gpi_chunk *chunk = arena->chunks.stuck;
    long count = (long)(arena->chunks.count + arena->stitches.seams);
    for (; chunk; chunk = chunk->next) count--;
    for (chunk = arena->chunks.stuck; chunk; chunk = chunk->next)
        if (chunk->stuck) count += (long)(chunk->stuck_units / (chunk->bytes / GPUPOOL_UNIT_BYTES));
    return count;
}

typedef struct stitch_bytes { /* of physical memory, as the host of the simulation sees it */
    const unsigned char *from, *to;
} stitch_bytes;

static inline int stitch_by_place(const void *a, const void *b) {
    const stitch_bytes *x = (const stitch_bytes *)a, *y = (const stitch_bytes *)b;
    return x->from < y->from ? -1 : x->from > y->from;
}

/* Every byte of physical memory is in at most one block, whatever addresses lead to it. */
static inline void stitch_expect_disjoint(const stitch_work *w) {
    static stitch_bytes bytes[STITCH_BLOCKS * STITCH_TOUCHES];
    size_t n = 0;
    for (size_t i = 0; i < w->count; i++) {
        char *at = w->block[i].at, *end = at + w->block[i].bytes;
        while (at < end) {
            size_t most = STITCH_GRANULE - (uintptr_t)at % STITCH_GRANULE;
            if (most > (size_t)(end - at)) most = (size_t)(end - at);
            bytes[n].from = fake_peek(at);
            if (!CHECK(bytes[n].from != NULL)) return;
            bytes[n].to = bytes[n].from + most;
            at += most;
            n++;
        }
    }
    qsort(bytes, n, sizeof *bytes, stitch_by_place);
    for (size_t i = 1; i < n; i++) CHECK(bytes[i - 1].to <= bytes[i].from);
}

/* The arena's account, the test's and the device's agree, and the limit is kept. */
static inline void stitch_agrees(stitch_work *w) {
    gpupool_stats s = kit_stats(w->arena);
    CHECK_RESULT(gpupool_check(w->arena), GPUPOOL_OK);
    CHECK_EQ(s.requested.now, w->live + w->kept_bytes);
    CHECK_EQ(s.blocks.now, w->count + w->kept);
    CHECK_EQ(s.reserved.now, fake_used_bytes(0));
    CHECK_EQ(fake_mappings(), stitch_mappings(w->arena));
    stitch_expect_disjoint(w);
    CHECK(s.reserved.peak <= w->limit);
    CHECK_EQ(fake_failures(), 0);
}

/* chunk: how large chunks are; 0: as the arena likes */
static inline void stitch_open(stitch_work *w, fake_run_mode mode, int streams, size_t most,
                              size_t limit, size_t chunk, uint64_t seed) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
    *w = (stitch_work){
        .mode = mode, .random = seed, .streams = streams, .most = most, .limit = limit};
    config.limit_bytes = limit;
    config.chunk_bytes = chunk;
    w->arena = kit_create(&config);
    fake_mode(mode);
}

/* The statistics of the last moment; then all is read once more, freed and given back. */
static inline gpupool_stats stitch_close(stitch_work *w) {
    gpupool_stats last = kit_stats(w->arena);
    stitch_agrees(w);
    while (w->count) stitch_free(w, w->count - 1);
    fake_run_all();
    CHECK_EQ(fake_failures(), 0);
    CHECK_RESULT(gpupool_trim(w->arena, 0, NULL), GPUPOOL_OK);
    CHECK_EQ(fake_mappings(), 0); /* the stitches went with their chunks */
    CHECK(!w->arena->chunks.home->next && !w->arena->chunks.space->next); /* no address is lost */
    kit_close(w->arena);
    CHECK_EQ(fake_used_bytes(0), 0);
    return last;
}

#endif
#endif
