/* tag_kit.h: tags with chunks of their own, and blocks with them whose content is compared. Include
   it after gpupool.h. It needs fakecuda's controls. */
#ifndef TAG_KIT_H
#define TAG_KIT_H

#include "registry_kit.h"

#if CHECK_FAKE

#define TAG_SLOTS 16 /* blocks of each tag */
#define TAGS 4       /* slots of tag 0 (untagged), and of the first three tags */
#define UNIT ((size_t)GPUPOOL_UNIT_BYTES)
#define GUARDS (GPUPOOL_GUARD * UNIT) /* a guarded block has a unit more */

typedef struct tag_block {
    char *at;
    size_t bytes;
    int byte;
} tag_block;

static gpupool_arena *arena;
static gpupool_ring *ring;
static tag_block slot[TAGS][TAG_SLOTS];
static unsigned tag_doublings = 13; /* of 512 bytes, and up to twice that: the largest block */
static int tag_edges; /* 1: of each block only the ends are written and compared: faster */

static inline int make_tag(const char *name, int can_sleep, size_t reserve_bytes) {
    gpupool_tag_config config;
    int tag = -1;
    memset(&config, 0, sizeof config);
    config.can_sleep = can_sleep;
    config.reserve_bytes = reserve_bytes;
    CHECK_RESULT(gpupool_tag(arena, name, &config, &tag), GPUPOOL_OK);
    return tag;
}

static inline void open_ring(void) {
    gpupool_ring_config config;
    memset(&config, 0, sizeof config);
    config.bytes = 4 * MIB;
    config.workers = 2;
    CHECK_RESULT(gpupool_ring_create(&ring, &config), GPUPOOL_OK);
}

/* An arena with so many tags that can sleep: 1, 2, ... */
static inline void open_tags(int tags, size_t limit) {
    static const char *names[] = {"weights", "kv", "draft"};
    open_ring();
    memset(slot, 0, sizeof slot);
    tag_edges = limit != 0 && GPUPOOL_CHECK > 1;
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, limit);
    for (int i = 0; i < tags; i++) CHECK_EQ(make_tag(names[i], 1, 0), i + 1);
}

static inline gpupool_tag_stats stats_of(int tag) {
    gpupool_tag_stats stats;
    memset(&stats, 0, sizeof stats);
    CHECK_RESULT(gpupool_get_tag_stats(arena, tag, &stats), GPUPOOL_OK);
    return stats;
}

static inline void *take_as(size_t bytes, int tag, int stream, unsigned flags) {
    gpupool_request request = kit_request(bytes, kit_stream[stream], flags);
    request.tag = tag;
    return gpupool_alloc_request(arena, &request);
}

static inline void *take(size_t bytes, int tag, int stream) {
    return take_as(bytes, tag, stream, 0);
}

static inline void *must_take(size_t bytes, int tag, int stream) {
    void *block = take(bytes, tag, stream);
    if (!block) check_fail(__FILE__, __LINE__, "no block: %s", gpupool_last_error());
    return block;
}

static inline void give(void *block, int stream) {
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[stream]), GPUPOOL_OK);
}

static inline void refused(size_t bytes, int tag, gpupool_result why) {
    CHECK_RESULT(kit_why(take(bytes, tag, 0)), why);
}

/* ---- blocks in slots: slot i works on stream i % KIT_STREAMS ---- */

static inline cudaStream_t slot_stream(int i) { return kit_stream[i % KIT_STREAMS]; }

static inline void put(int tag, int i) {
    if (slot[tag][i].at) give(slot[tag][i].at, i % KIT_STREAMS);
    slot[tag][i].at = NULL;
}

static inline void put_all(int tag) {
    for (int i = 0; i < TAG_SLOTS; i++) put(tag, i);
}

static inline void stamp_slot(int tag, int i) {
    const tag_block *block = &slot[tag][i];
    if (tag_edges) kit_mark(slot_stream(i), block->at, block->bytes, block->byte);
    else kit_fill(slot_stream(i), block->at, block->bytes, block->byte);
}

static inline void expect_slot(cudaStream_t stream, int tag, int i) {
    const tag_block *block = &slot[tag][i];
    if (tag_edges) kit_expect_mark(stream, block->at, block->bytes, block->byte);
    else kit_expect(stream, block->at, block->bytes, block->byte);
}

static inline void stamp(int tag) {
    for (int i = 0; i < TAG_SLOTS; i++)
        if (slot[tag][i].at) stamp_slot(tag, i);
}

/* A block for the slot, if it is empty and there is memory. */
static inline int get(int tag, int i, size_t bytes) {
    tag_block *block = &slot[tag][i];
    if (block->at) return 1;
    block->at = (char *)take(bytes, tag, i % KIT_STREAMS);
    block->bytes = bytes;
    block->byte = (tag * 50 + i * 3 + (int)(bytes % 47)) % 250 + 1;
    if (block->at) stamp_slot(tag, i);
    else CHECK_RESULT(gpupool_last_result(), GPUPOOL_E_OUT_OF_MEMORY);
    return block->at != NULL;
}

static inline size_t tag_size(uint64_t *random) {
    size_t bytes = (size_t)512 << check_below(random, tag_doublings);
    return bytes + check_below(random, bytes);
}

static inline void fill_slots(int tag, uint64_t seed) {
    uint64_t random = seed * 77 + (uint64_t)tag;
    for (int round = 0; round < 3; round++)
        for (int i = 0; i < TAG_SLOTS; i++) {
            if (check_below(&random, 2)) put(tag, i);
            get(tag, i, tag_size(&random));
        }
}

static inline void expect_slots(int tag) {
    for (int i = 0; i < TAG_SLOTS; i++)
        if (slot[tag][i].at) expect_slot(slot_stream(i), tag, i);
    CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

static inline void close_tags(void) {
    for (int tag = 0; tag < TAGS; tag++) put_all(tag);
    kit_close(arena);
    if (ring) CHECK_RESULT(gpupool_ring_destroy(ring), GPUPOOL_OK);
    ring = NULL;
    tag_edges = 0;
}

/* ---- what holds between calls ---- */

/* Figures agree, and the device has what the arena says it has. */
static inline void figures_agree(int tags) {
    gpupool_stats stats = kit_stats(arena);
    uint64_t asleep = 0;
    for (int tag = 1; tag <= tags; tag++) asleep += stats_of(tag).asleep_bytes;
    CHECK(stats.asleep_bytes >= asleep);
    CHECK(fake_used_bytes(0) - stats.reserved.now <= 512); /* what waits for a device may have */
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
}

#define TAG_HANDLES 512
typedef struct tag_handles {
    struct { unsigned long long handle; int tag; } of[TAG_HANDLES];
    int count, tag;
} tag_handles;

static inline int note_chunk(const gpupool_mapping *mapping, void *user) {
    tag_handles *handles = (tag_handles *)user;
    int i = 0;
    if (!mapping->handle) return 0; /* it sleeps */
    while (i < handles->count && handles->of[i].handle != mapping->handle) i++;
    if (i == handles->count && CHECK(i < TAG_HANDLES)) {
        handles->of[i].handle = mapping->handle;
        handles->of[i].tag = handles->tag;
        handles->count++;
    }
    CHECK_EQ(handles->of[i].tag, handles->tag);
    return 0;
}

/* No chunk has blocks of two tags. Returns how many chunks have blocks. */
static inline int no_chunk_is_shared(int tags) {
    static tag_handles handles;
    handles.count = 0;
    for (handles.tag = 0; handles.tag <= tags; handles.tag++)
        for (int i = 0; i < TAG_SLOTS; i++)
            if (slot[handles.tag][i].at)
                CHECK_RESULT(gpupool_walk_chunks(arena, slot[handles.tag][i].at, note_chunk,
                                                 &handles),
                             GPUPOOL_OK);
    return handles.count;
}

static inline gpupool_verdict last_verdict(void) {
    gpupool_verdict verdict;
    memset(&verdict, 0, sizeof verdict);
    CHECK_RESULT(gpupool_last_verdict(&verdict), GPUPOOL_OK);
    return verdict;
}

static inline gpupool_result sleep_tag(int tag, gpupool_content content) {
    return gpupool_sleep(arena, tag, content, NULL);
}

static inline gpupool_result wake_tag(int tag) { return gpupool_wake(arena, tag, NULL); }

#endif
#endif
