/* random_faults.h: what test_random_faults.c has: an arena with tags that sleep, a ring, blocks
   with a stamp, faults of several kinds at once, and what holds whenever nothing fails. Include it
   after the implementation and fail_malloc.h. */
#ifndef RANDOM_FAULTS_H
#define RANDOM_FAULTS_H

#include "ring_kit.h"

#define PARTS 3 /* what has no tag, and two tags that can sleep */
#define BLOCKS 40
#define GRAPHS_BLOCKS 8
#define STRIPE (2 * MIB)
#define RING_BYTES (4 * MIB) /* of host and device memory, for transfers */

typedef struct block {
    char *at; /* NULL: there is none */
    size_t bytes;
    int tag, stream, byte; /* byte: its stamp */
    int is_lost;           /* 1: what it held was discarded */
    int exports, is_imported;
    gpupool_imported imported;
} block;

static gpupool_arena *arena;
static gpupool_ring *ring;
static int tag_of[PARTS];
static block blocks[BLOCKS];
static gpupool_capture *scope; /* on the last stream */
static int scope_is_open;
static void *of_graph[GRAPHS_BLOCKS];
static cudaStream_t far_stream; /* of a peer's, which reads and writes while it is allowed to */
static int is_peer;
static unsigned char *host_memory, *device_memory;

static uint64_t seed, dice;
static int verbose;
static int stamps;
static int refuse_in;      /* the mapping that on_map refuses, from now on; 0: none */
static int stream_wait_fails; /* cuStreamSynchronize may have failed, since act_ring began */
static long maps_told;     /* on_map less on_unmap */

static unsigned below(unsigned bound) { return (unsigned)check_below(&dice, bound); }

/* Under VERBOSE=1: to see what led to a failure. */
__attribute__((format(printf, 1, 2))) static void tell(const char *format, ...) {
    va_list args;
    if (!verbose) return;
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    fflush(stdout);
}

static int on_map(const gpupool_mapping *mapping, void *user) {
    (void)mapping, (void)user;
    if (refuse_in && !--refuse_in) return 1;
    maps_told++;
    return 0;
}

static int on_unmap(const gpupool_mapping *mapping, void *user) {
    (void)mapping, (void)user;
    maps_told--;
    return 0;
}

/* ---- faults ---- */

/* Those that manage memory come first, and fail more often. */
static const char *const calls[] = {
    "cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemRelease", "cuMemAlloc",
    "cuMemFree", "cuMemHostAlloc", "cuMemFreeHost", "cuMemAddressReserve", "cuMemcpyAsync",
    "cuMemExportToShareableHandle", "cuMemImportFromShareableHandle", "cuEventCreate",
    "cuEventRecord", "cuEventQuery", "cuEventSynchronize", "cuEventDestroy", "cuStreamWaitEvent",
    "cuStreamCreate", "cuStreamSynchronize", "cuStreamGetId", "cuCtxRecordEvent", "cuCtxGetId",
    "cuCtxPushCurrent", "cuDevicePrimaryCtxRetain"};
#define MEMORY_CALLS 5

static void arm_calls(int lasting) {
    for (unsigned i = below(3) + 1; i > 0; i--) {
        const char *call = calls[below(below(3) ? MEMORY_CALLS : (unsigned)KIT_COUNT(calls))];
        long nth = 1 + below(below(2) ? 3 : 20);
        int persist = lasting && below(2);
        fake_fail_call(call, nth, persist, 0);
        stream_wait_fails |= !strcmp(call, "cuStreamSynchronize");
        tell("    %s: number %ld%s fails\n", call, nth, persist ? " and on" : "");
    }
}

/* Each of them once. */
static void arm_once(void) {
    if (below(10) > 3) arm_calls(0);
}

/* All kinds at once, some of them for good; or none. */
static void arm(void) {
    if (below(10) < 4) return;
    arm_calls(1);
    if (below(8) == 0) {
        fake_fail_nth(1 + below(40), (int)below(2));
        fake_fail_except("cuStreamDestroy,cuMemFreeHost"); /* what these leave is lost */
        stream_wait_fails = 1;
        tell("    any call fails\n");
    }
    if (below(8) == 0) {
        fail_malloc_nth(1 + below(12), (int)below(2));
        tell("    the host has no memory\n");
    }
    if (below(8) == 0) refuse_in = 1 + (int)below(6);
}

static void calm(void) {
    fake_fail_clear();
    fail_malloc_nth(0, 0);
    refuse_in = 0;
}

static gpupool_result seen(gpupool_result result) {
    calm();
    tell("    -> %s\n", result ? gpupool_last_error() : "done");
    return result;
}
#define FAULTY(call) (arm(), seen(call))
#define FAULTY_ONCE(call) (arm_once(), seen(call))
#define MUST(call) CHECK_RESULT((call), GPUPOOL_OK)

/* ---- blocks ---- */

static int is_asleep(int part) { return arena->sleep.states[part] != GPI_AWAKE; }

static int any_asleep(void) {
    int any = 0;
    for (int part = 0; part < PARTS; part++) any |= is_asleep(part);
    return any;
}

static void stamp(block *b) {
    b->byte = ++stamps % 250;
    b->is_lost = 0;
    kit_mark(kit_stream[b->stream], b->at, b->bytes, b->byte);
}

static void expect(block *b) {
    if (b->is_lost) stamp(b);
    else kit_expect_mark(kit_stream[b->stream], b->at, b->bytes, b->byte);
}

static void close_shares(block *b) {
    if (b->is_imported) MUST(gpupool_import_close(&b->imported));
    for (; b->exports; b->exports--) MUST(gpupool_export_close(arena, b->at));
    b->is_imported = 0;
}

/* What it had is the arena's again. */
static void forget_scope(void) {
    scope = NULL;
    scope_is_open = 0;
    memset(of_graph, 0, sizeof of_graph);
}

/* ---- when nothing fails ---- */

static void check_arena(void) { MUST(gpupool_check(arena)); }

/* What fakecuda has mapped is what the arena has, and what the program was told of. */
static void mappings_agree(void) {
    long mapped = 0, told = 0;
    for (const gpi_chunk *c = arena->chunks.first; c; c = c->next) {
        CHECK(!c->is_away);
        mapped++;
        told += !c->is_untold;
    }
    for (const gpi_stitch *s = arena->stitches.oldest; s; s = s->newer) {
        CHECK(!s->is_away && !s->left_seams);
        mapped += (long)s->seam_count;
        told += s->is_told;
    }
    CHECK_EQ(fake_mappings(), mapped);
    if (arena->chunks.on_map) CHECK_EQ(maps_told, told);
}

static void figures_agree(void) {
    uint64_t count[PARTS] = {0}, all = 0;
    for (const block *b = blocks; b < blocks + BLOCKS; b++)
        if (b->at) {
            count[b->tag]++;
            all++;
        }
    CHECK_EQ(kit_stats(arena).blocks.now, all);
    CHECK_EQ(kit_stats(arena).pending.now, 0);
    CHECK_EQ(fake_used_bytes(0), kit_reserved(arena) + RING_BYTES);
    for (int part = 1; part < PARTS; part++) {
        gpupool_tag_stats stats;
        MUST(gpupool_get_tag_stats(arena, tag_of[part], &stats));
        CHECK_EQ(stats.blocks.now, count[part]);
        CHECK_EQ(stats.asleep_bytes, 0);
    }
}

/* Everything wakes, and nothing is in flight, exported or a graph's. */
static void wake_and_finish(void) {
    calm();
    for (block *b = blocks; b < blocks + BLOCKS; b++) close_shares(b);
    MUST(gpupool_set_limit(arena, 0));
    if (any_asleep()) MUST(gpupool_wake(arena, GPUPOOL_ALL, NULL));
    if (scope) MUST(gpupool_release_capture(scope));
    forget_scope();
    for (block *b = blocks; b < blocks + BLOCKS; b++)
        if (b->at) expect(b);
    MUST(gpupool_wait_all(arena));
}

/* Whatever has failed so far, all is as it would be without. */
static void all_is_well(void) {
    tell("all is well?\n");
    wake_and_finish();
    MUST(gpupool_trim(arena, 0, NULL));
    if (ring) MUST(gpupool_ring_trim(ring, 0, NULL));
    CHECK(!arena->chunks.stuck);
    check_arena();
    mappings_agree();
    figures_agree();
}

#endif
