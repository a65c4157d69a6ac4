/* fuzz_sleep_model.h: what the calls of fuzz_sleep.h must lead to: which parts of the arena sleep,
   what each block holds, and what the figures add up to. */
#ifndef FUZZ_SLEEP_MODEL_H
#define FUZZ_SLEEP_MODEL_H

#include "fuzz_graph.h"
#include "tag_kit.h"

#define FUZZ_KEPT 4 /* blocks of the graph */

static struct {
    int tags;                        /* that were made: 1, 2, ... */
    int apart[TAGS];                 /* 1: the tag has chunks of its own, and is a part */
    int can_sleep[TAGS];
    int asleep[TAGS];                /* the parts; [0] is what no tag has of its own */
    int lost[TAGS][TAG_SLOTS];       /* what the block holds is not known */
    tag_block kept[FUZZ_KEPT];
    int kept_tag[FUZZ_KEPT], kept_lost[FUZZ_KEPT];
    fuzz_graph graph;
    size_t backup_bytes;             /* the most; 0: any */
    int is_tight;                    /* a limit, or others, may leave too little memory */
    int is_sound;                    /* no call of CUDA has failed; else memory may have stayed */
    int is_told;                     /* on_map and on_unmap are set */
    int checks_all;                  /* after each step */
    int unsure[TAGS];                /* whether the part sleeps is not known */
    fuzz_step callback;              /* what the program's next function does; verb 0: nothing */
    int called, inside;              /* how often one has done so; 1: one is doing so */
} fs;

/* ---- parts ---- */

static int fuzz_part(int tag) { return fs.apart[tag] ? tag : 0; }

static int fuzz_sleeps(int tag) { return fs.asleep[fuzz_part(tag)]; }

/* Whether a call that names the tag, or GPUPOOL_ALL, is about the part. */
static int fuzz_is_in(int part, int tag) {
    return (tag == GPUPOOL_ALL && (part == 0 || fs.apart[part])) || (tag == part && part > 0);
}

/* How many of the parts that a call is about sleep, or are awake. */
static int fuzz_parts(int tag, int asleep) {
    int count = 0;
    for (int part = 0; part <= fs.tags; part++)
        count += fuzz_is_in(part, tag) && fs.asleep[part] == asleep;
    return count;
}

static int fuzz_may_sleep(int tag) {
    return tag == GPUPOOL_ALL || (tag > 0 && tag <= fs.tags && fs.can_sleep[tag]);
}

static void fuzz_lose(int part) {
    for (int tag = 0; tag <= fs.tags; tag++)
        for (int i = 0; i < TAG_SLOTS; i++)
            if (fuzz_part(tag) == part) fs.lost[tag][i] = 1;
    for (int i = 0; i < FUZZ_KEPT; i++)
        if (fuzz_part(fs.kept_tag[i]) == part) fs.kept_lost[i] = 1;
}

/* Parts that a call was about have this state now, */
static void fuzz_are(int tag, int asleep) {
    for (int part = 0; part <= fs.tags; part++)
        if (fuzz_is_in(part, tag)) fs.asleep[part] = asleep;
}

/* or which one they have is not known. */
static void fuzz_are_unsure(int tag) {
    for (int part = 0; part <= fs.tags; part++) fs.unsure[part] |= fuzz_is_in(part, tag);
}

/* Asks the arena, by a request. */
static int fuzz_is_asleep(int part) {
    void *block = take(1, part, 0);
    if (!block) return gpupool_last_result() == GPUPOOL_E_ASLEEP;
    give(block, 0);
    return 0;
}

static void fuzz_make_sure(void) {
    for (int part = 0; part <= fs.tags; part++) {
        if (!fs.unsure[part]) continue;
        fs.callback.verb = 0;
        fs.asleep[part] = fuzz_is_asleep(part);
        fs.unsure[part] = 0;
    }
}

/* ---- blocks ---- */

/* A stream that captures is left alone. */
static int fuzz_is_free(int stream) { return !fs.graph.capturing || stream != FUZZ_CAPTURER; }

/* The block of the slot, for work on its stream; NULL: there is none. */
static tag_block *fuzz_slot(int tag, int i) {
    return slot[tag][i].at && fuzz_is_free(i % KIT_STREAMS) ? &slot[tag][i] : NULL;
}

static void fuzz_expect(int tag, int i) {
    if (fuzz_slot(tag, i) && !fuzz_sleeps(tag) && !fs.lost[tag][i])
        expect_slot(slot_stream(i), tag, i);
}

static void fuzz_expect_kept(void) {
    for (int i = 0; i < FUZZ_KEPT && !fs.graph.capturing; i++) {
        const tag_block *b = &fs.kept[i];
        if (b->at && !fs.kept_lost[i] && !fuzz_sleeps(fs.kept_tag[i]))
            kit_expect_mark(kit_stream[FUZZ_CAPTURER], b->at, b->bytes, b->byte);
    }
}

static void fuzz_expect_all(void) {
    for (int tag = 0; tag <= fs.tags; tag++)
        for (int i = 0; i < TAG_SLOTS; i++) fuzz_expect(tag, i);
    fuzz_expect_kept();
}

/* Writes what it must hold from now on, after all readers. */
static void fuzz_write(int tag, int i, int byte) {
    for (int stream = 0; stream < KIT_STREAMS; stream++)
        if (stream != i % KIT_STREAMS && fuzz_is_free(stream))
            kit_order(kit_stream[stream], slot_stream(i));
    slot[tag][i].byte = byte;
    stamp_slot(tag, i);
    fs.lost[tag][i] = 0;
}

/* What is not known any more is written anew. */
static void fuzz_write_lost(void) {
    for (int tag = 0; tag <= fs.tags; tag++)
        for (int i = 0; i < TAG_SLOTS; i++)
            if (fs.lost[tag][i] && fuzz_slot(tag, i) && !fuzz_sleeps(tag))
                fuzz_write(tag, i, slot[tag][i].byte);
}

/* ---- figures ---- */

static uint64_t fuzz_tag_agrees(int tag, uint64_t *blocks) {
    uint64_t bytes = 0, count = 0;
    gpupool_tag_stats stats;
    for (int i = 0; i < TAG_SLOTS; i++) {
        bytes += slot[tag][i].at ? slot[tag][i].bytes : 0;
        count += slot[tag][i].at != NULL;
    }
    for (int i = 0; i < FUZZ_KEPT; i++) {
        if (!fs.kept[i].at || fs.kept_tag[i] != tag) continue;
        bytes += fs.kept[i].bytes;
        count++;
    }
    *blocks += count;
    if (!tag) return bytes;
    stats = stats_of(tag);
    CHECK_EQ(stats.blocks.now, count);
    CHECK(stats.granted.now >= bytes && stats.granted.now <= bytes + count * UNIT);
    if (!fuzz_sleeps(tag) || !fs.apart[tag]) CHECK_EQ(stats.asleep_bytes, 0);
    return bytes;
}

static void fuzz_sleep_agrees(void) {
    uint64_t bytes = 0, blocks = 0;
    gpupool_stats stats;
    for (int tag = 0; tag <= fs.tags; tag++) bytes += fuzz_tag_agrees(tag, &blocks);
    stats = kit_stats(arena);
    CHECK_EQ(stats.requested.now, bytes);
    CHECK_EQ(stats.blocks.now, blocks);
    CHECK_EQ(stats.allocs - stats.frees, blocks);
    CHECK(stats.granted.now <= stats.reserved.now + stats.asleep_bytes);
    if (!fuzz_parts(GPUPOOL_ALL, 1)) CHECK_EQ(stats.asleep_bytes, 0);
    if (!fuzz_parts(GPUPOOL_ALL, 1)) CHECK_EQ(stats.backup_bytes, 0);
    if (fs.backup_bytes) CHECK(stats.backup_bytes <= fs.backup_bytes);
    if (fs.is_sound) CHECK_EQ(fake_used_bytes(0), stats.reserved.now);
    if (fs.is_told) registry_verify();
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
}

#endif
