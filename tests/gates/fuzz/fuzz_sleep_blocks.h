/* fuzz_sleep_blocks.h: what fuzz_sleep.h does with the blocks of tags, and with a graph's. */
#ifndef FUZZ_SLEEP_BLOCKS_H
#define FUZZ_SLEEP_BLOCKS_H

#include "fuzz_sleep_calls.h"

#define FUZZ_LARGEST (4 * MIB)

static size_t fuzz_sleep_size(uint8_t byte) {
    size_t bytes = fuzz_size(byte, byte & 1);
    return bytes < FUZZ_LARGEST ? bytes : FUZZ_LARGEST;
}

/* ---- blocks ---- */

/* What a request may fail with. */
static unsigned fuzz_get_fails(int tag) {
    unsigned told = fs.is_told ? 1u << GPUPOOL_E_CALLBACK : 0u;
    if (fs.is_told && fs.graph.capturing) told |= 1u << GPUPOOL_E_CAPTURING;
    if (fuzz_sleeps(tag) || fs.callback.verb) told |= 1u << GPUPOOL_E_ASLEEP;
    return told | FUZZ_NO_MEMORY;
}

static void fuzz_sleep_get(fuzz_step s) {
    int tag = s.a % (fs.tags + 1), i = s.b % TAG_SLOTS, slept = fuzz_sleeps(tag);
    unsigned flags = s.a / TAGS % 8; /* ZEROED, NO_WAIT, ONE_CHUNK */
    tag_block *b = &slot[tag][i];
    void *at = NULL;
    if (b->at || !fuzz_is_free(i % KIT_STREAMS)) return;
    b->bytes = fuzz_sleep_size(s.c);
    if (!FUZZ_TRY(kit_why(at = take_as(b->bytes, tag, i % KIT_STREAMS, flags)),
                  fuzz_get_fails(tag)))
        return;
    CHECK(!slept);
    b->at = (char *)at;
    b->byte = s.c;
    fuzz_make_sure();
    fs.lost[tag][i] = fuzz_sleeps(tag);
    if (fuzz_sleeps(tag)) return;
    if (flags & GPUPOOL_ZEROED) kit_expect_mark(slot_stream(i), at, b->bytes, 0);
    stamp_slot(tag, i);
}

/* Its last work is on another stream now and then. */
static void fuzz_sleep_put(fuzz_step s) {
    int tag = s.a % (fs.tags + 1), i = s.b % TAG_SLOTS, to = i % KIT_STREAMS;
    const tag_block *b = fuzz_slot(tag, i);
    if (!b) return;
    fuzz_expect(tag, i);
    if (s.c & 1 && fuzz_is_free(s.c / 2 % KIT_STREAMS)) to = s.c / 2 % KIT_STREAMS;
    if (to != i % KIT_STREAMS) kit_order(slot_stream(i), kit_stream[to]);
    char *at = b->at;
    slot[tag][i].at = NULL; /* its budget's function may be called, and finds it gone */
    if (!FUZZ_TRY(gpupool_free(arena, at, kit_stream[to]), 0)) slot[tag][i].at = at;
}

static void fuzz_sleep_lend(fuzz_step s) {
    int tag = s.a % (fs.tags + 1), i = s.b % TAG_SLOTS, to = s.c % KIT_STREAMS;
    const tag_block *b = fuzz_slot(tag, i);
    if (!b || fuzz_sleeps(tag) || fs.lost[tag][i] || !fuzz_is_free(to)) return;
    if (to == i % KIT_STREAMS) return;
    kit_order(slot_stream(i), kit_stream[to]);
    expect_slot(kit_stream[to], tag, i);
    if (!FUZZ_TRY(gpupool_record_stream(arena, b->at, kit_stream[to]), 0))
        kit_order(kit_stream[to], slot_stream(i));
}

static void fuzz_sleep_upload(fuzz_step s) {
    static char host[512 * KIB];
    int tag = s.a % (fs.tags + 1), i = s.b % TAG_SLOTS;
    tag_block *b = fuzz_slot(tag, i);
    if (!ring || !b || b->bytes > sizeof host) return;
    if (!fuzz_sleeps(tag)) fuzz_write(tag, i, 1); /* in order */
    memset(host, s.c, b->bytes);
    if (FUZZ_TRY(gpupool_upload(ring, b->at, host, b->bytes, slot_stream(i)),
                 fuzz_sleeps(tag) ? 1u << GPUPOOL_E_ASLEEP : 0u)) {
        CHECK(!fuzz_sleeps(tag));
        b->byte = s.c;
    } else if (!fuzz_sleeps(tag)) {
        fs.lost[tag][i] = 1; /* some may have been written */
    }
}

typedef struct fuzz_walk { int sleeps; size_t bytes; } fuzz_walk;

static int fuzz_see_chunk(const gpupool_mapping *mapping, void *user) {
    fuzz_walk *walk = (fuzz_walk *)user;
    walk->bytes += mapping->bytes;
    if (fs.is_sound) CHECK_EQ(mapping->handle == 0, walk->sleeps);
    return 0;
}

static void fuzz_sleep_walk(fuzz_step s) {
    int tag = s.a % (fs.tags + 1);
    const tag_block *b = &slot[tag][s.b % TAG_SLOTS];
    fuzz_walk walk = {fuzz_sleeps(tag), 0};
    if (b->at && FUZZ_TRY(gpupool_walk_chunks(arena, b->at, fuzz_see_chunk, &walk), 0))
        CHECK_EQ(walk.bytes, (b->bytes + UNIT - 1) / UNIT * UNIT);
}

/* ---- the graph ---- */

static void fuzz_kept_get(fuzz_step s) {
    int tag = s.a % (fs.tags + 1), i = s.b % FUZZ_KEPT, slept = fuzz_sleeps(tag);
    tag_block *b = &fs.kept[i];
    void *at = NULL;
    if (!fs.graph.capturing || b->at) return;
    b->bytes = fuzz_sleep_size(s.c);
    if (!FUZZ_TRY(kit_why(at = take(b->bytes, tag, FUZZ_CAPTURER)),
                  fuzz_get_fails(tag) | 1u << GPUPOOL_E_CAPTURING))
        return;
    CHECK(!slept);
    b->at = (char *)at;
    b->byte = s.c;
    fs.kept_tag[i] = tag;
    fs.kept_lost[i] = 1;
    if (!fuzz_sleeps(tag)) kit_mark(kit_stream[FUZZ_CAPTURER], at, b->bytes, b->byte);
}

static void fuzz_kept_launch(void) {
    int asleep = 0;
    if (fs.graph.capturing || !fs.graph.exec) return;
    for (int i = 0; i < FUZZ_KEPT; i++) asleep |= fs.kept[i].at && fuzz_sleeps(fs.kept_tag[i]);
    if (asleep) return;
    fuzz_graph_launch(&fs.graph);
    memset(fs.kept_lost, 0, sizeof fs.kept_lost);
}

static void fuzz_kept_release(void) {
    if (!fuzz_graph_release(&fs.graph, fs.asleep[0] ? 1u << GPUPOOL_E_ASLEEP : 0u)) return;
    CHECK(!fs.asleep[0]);
    memset(fs.kept, 0, sizeof fs.kept);
}

#endif
