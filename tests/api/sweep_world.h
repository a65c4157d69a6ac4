/* sweep_world.h: what the steps of test_sweep.c work on: an arena, its blocks, and how a step tells
   that it has nothing to do. Include it after gpupool.h and fail_malloc.h. */
#ifndef SWEEP_WORLD_H
#define SWEEP_WORLD_H

#include "ring_kit.h"

static gpupool_arena *arena, *shared; /* one of the program's own, and the default arena */
static gpupool_ring *ring;
static gpupool_capture *scope;
static gpupool_ticket ticket; /* of a transfer to LARGE: until its end nobody may touch that */
static int tag, is_asleep;
static int for_good;     /* what fails once fails ever after; */
static int was_left_out; /* and then a step had nothing to do */

/* A call before this one was made to fail, and what it makes is not there. */
static gpupool_result left_out(void) {
    was_left_out = 1;
    return GPUPOOL_OK;
}
#define NEEDS(condition) \
    do { if (!(condition)) return left_out(); } while (0)

/* ---- the test's own calls, which neither fail nor count ---- */

static int own_depth;

static void own_begin(void) {
    own_depth++;
    fake_fail_pause(1);
    fail_malloc_least = SIZE_MAX;
}

static void own_end(void) {
    if (--own_depth) return;
    fail_malloc_least = 0;
    fake_fail_pause(0);
}

/* Work runs when a call waits for it, */
static gpupool_result work_queues(void) {
    fake_mode(FAKE_STEPPED);
    return GPUPOOL_OK;
}

/* or at once, as a ring needs, which asks again and again whether work has finished. */
static gpupool_result work_runs(void) {
    fake_mode(FAKE_EAGER);
    return GPUPOOL_OK;
}

static long fired(void) { return fake_fail_fired() + fail_malloc_fired; }

/* ---- blocks ---- */

enum { SMALL, LARGE, ALIGNED, ZEROED, TAGGED, ACROSS, KEPT, ROUGH, EXPORTED, MOST,
       PIECE, PIECES = PIECE + 6, STITCHED = PIECES, BLOCKS };

typedef struct sweep_block {
    char *at;
    size_t bytes;
    int stream;
} sweep_block;

static sweep_block blocks[BLOCKS];

static cudaStream_t stream_of(int i) { return kit_stream[blocks[i].stream]; }

static void mark(int i) { kit_mark(stream_of(i), blocks[i].at, blocks[i].bytes, i + 1); }

static gpupool_result took(int i, void *at, size_t bytes, int stream) {
    blocks[i].at = (char *)at;
    blocks[i].bytes = bytes;
    blocks[i].stream = stream;
    return kit_why(at);
}

static gpupool_result take(int i, size_t bytes, int stream) {
    NEEDS(arena && kit_stream[stream] && !blocks[i].at);
    took(i, gpupool_alloc(arena, bytes, kit_stream[stream]), bytes, stream);
    if (blocks[i].at) mark(i);
    return kit_why(blocks[i].at);
}

static gpupool_result take_as(int i, gpupool_request request, int stream) {
    NEEDS(arena && !blocks[i].at);
    request.stream = kit_stream[stream];
    took(i, gpupool_alloc_request(arena, &request), request.bytes, stream);
    if (blocks[i].at) mark(i);
    return kit_why(blocks[i].at);
}

/* With its content compared: sleep, peers and whatever failed may not have changed it. */
static gpupool_result put(int i) {
    NEEDS(blocks[i].at);
    if (!is_asleep) kit_expect_mark(stream_of(i), blocks[i].at, blocks[i].bytes, i + 1);
    gpupool_result result = gpupool_free(arena, blocks[i].at, stream_of(i));
    if (result == GPUPOOL_OK) blocks[i].at = NULL;
    return result;
}

#endif
