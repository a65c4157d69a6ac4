/* sweep_world.h: what test_sweep.c calls every function on. An arena has blocks of each kind,
   memory that waits for work of two streams, stitches, a peer and a graph's memory; beside it there
   are a default arena and a ring. Include it after kit.h. */
#ifndef SWEEP_WORLD_H
#define SWEEP_WORLD_H

#include <fcntl.h>
#include <unistd.h>

#define A kit_stream[0]
#define B kit_stream[1]       /* held: what it has freed is pending */
#define C kit_stream[2]       /* held: uses a block that A has freed */
#define D kit_stream[3]       /* has a scope, which is closed */
#define SENT ((size_t)200000) /* more than a ring copies directly: several slots */
#define LIMIT (56 * MIB)

enum { SMALL, LARGE, FAR, STITCHED, OWN, OF_GRAPH, SHAPED, MADE, BLOCKS };
typedef struct world_block {
    void *at;
    size_t bytes;
    cudaStream_t stream;
    gpupool_arena *of;
} world_block;

static world_block blocks[BLOCKS];
static gpupool_source source;
static gpupool_arena *arena, *made; /* made: by a row */
static gpupool_ring *ring, *made_ring;
static gpupool_capture *scope, *made_scope;
static gpupool_ticket ticket;
static gpupool_exported exported;
static gpupool_imported imported;
static cudaStream_t far;            /* of device 1, a peer, where it reaches the memory */
static int is_asleep, is_discarded; /* discarded: a sleep has dropped all content */
static int maps, default_devices;   /* a bit for each device that has a default arena */
static char sent[SENT], back[SENT];
static void *shaped_at;             /* the newest block in cudaMalloc's shape */
static gpupool_file_part sent_file; /* holds what `sent` holds */
static struct {
    gpupool_block block;
    gpupool_stats stats;
    gpupool_ring_stats ring;
    size_t bytes;
    uint64_t sum;
} told; /* what functions have told */

/* From here on no call fails: it is the test's own. 0: as before. */
static void own_calls(int on) {
    static int depth;
    depth += on ? 1 : -1;
    fake_fail_pause(depth > 0);
    fail_malloc_least = depth > 0 ? SIZE_MAX : 0;
}

static void fill_file(void) {
    FILE *file = tmpfile();
    memset(sent, LARGE + 1, SENT);
    CHECK_EQ(fwrite(sent, 1, SENT, file) + (size_t)fflush(file), SENT);
    sent_file.file = fileno(file);
    sent_file.bytes = SENT;
}

static gpupool_result why(const void *result) {
    return result ? GPUPOOL_OK : gpupool_last_result();
}

/* Checks that a table has each function that the header declares. */
static void each_declared(int (*has)(const char *function)) {
    FILE *header = fopen("gpupool.h", "r");
    char line[256], *end, *name;
    if (!CHECK(header)) return;
    while (fgets(line, sizeof line, header)) {
        end = strncmp(line, "GPUPOOL_API ", 12) ? NULL : strchr(line, '(');
        if (!end || end[-1] == '*') continue; /* not the definition `(gpupool_alloc)(` */
        *end = 0;
        name = strrchr(line, ' ') + 1;
        name += *name == '*';
        if (!has(name)) check_fail(__FILE__, __LINE__, "not in the table: %s", name);
    }
    fclose(header);
}

/* ---- the program's functions ---- */

static int on_map(const gpupool_mapping *mapping, void *user) {
    maps += mapping->bytes > 0;
    return user != NULL;
}
static void on_unmap(const gpupool_mapping *mapping, void *user) {
    maps -= mapping->bytes > 0;
    CHECK(!user);
}
static int on_out_of_memory(const gpupool_verdict *verdict, void *user) {
    CHECK(verdict->sentence[0] && !user);
    return 0;
}
static void *chunk_alloc(size_t bytes, void *user) {
    void *chunk = NULL;
    own_calls(1);
    CHECK_EQ(cudaMalloc(&chunk, bytes), cudaSuccess);
    own_calls(0);
    return user ? NULL : chunk;
}
static void chunk_free(void *chunk, size_t bytes, void *user) {
    own_calls(1);
    CHECK_EQ(cudaFree(chunk), cudaSuccess);
    own_calls(0);
    CHECK(bytes && !user);
}

/* ---- a world begins ---- */

static gpupool_arena_config config_of(gpupool_source from, const char *name) {
    gpupool_arena_config config = kit_config(from, LIMIT);
    config.name = name;
    config.share = from == GPUPOOL_SOURCE_MAPPED ? GPUPOOL_SHARE_PROCESSES : 0;
    config.on_map = on_map;
    config.on_unmap = on_unmap;
    config.on_out_of_memory = on_out_of_memory;
    config.chunk_alloc = chunk_alloc;
    config.chunk_free = chunk_free;
    return config;
}

#define SHORT(bytes) ((bytes) < 4096 ? (bytes) : 4096)

/* Has both ends of a block written, or read and compared: to touch all of it takes long. */
static void write_ends(const world_block *block, int byte) {
    char *end = (char *)block->at + block->bytes - SHORT(block->bytes);
    kit_write(block->at, SHORT(block->bytes), block->stream, byte);
    kit_write(end, SHORT(block->bytes), block->stream, byte);
}
static void verify_ends(const world_block *block, int byte) {
    char *end = (char *)block->at + block->bytes - SHORT(block->bytes);
    kit_verify(block->at, SHORT(block->bytes), block->stream, byte);
    kit_verify(end, SHORT(block->bytes), block->stream, byte);
}

/* A block of the world, with a byte of its own. */
static gpupool_result keep(int which, void *at, size_t bytes, cudaStream_t stream) {
    world_block block = {at, bytes, stream == GPUPOOL_NO_STREAM ? A : stream, arena};
    if (!at) return gpupool_last_result();
    own_calls(1);
    blocks[which] = block;
    write_ends(&block, which + 1);
    own_calls(0);
    return GPUPOOL_OK;
}

static gpupool_result take(int which, size_t bytes, cudaStream_t stream) {
    return keep(which, gpupool_alloc(arena, bytes, stream), bytes, stream);
}

/* Two pieces of free memory, each of two chunks, with a block between. */
static void split_memory(int between) {
    void *left = gpupool_alloc(arena, 4 * MIB, A), *right;
    CHECK_RESULT(take(between, 4 * MIB, A), GPUPOOL_OK);
    right = gpupool_alloc(arena, 4 * MIB, A);
    kit_free(arena, left, A);
    kit_free(arena, right, A);
}

/* Frees memory with work on it. */
static void leave_pending(size_t bytes, cudaStream_t owner, cudaStream_t user) {
    void *block = gpupool_alloc(arena, bytes, owner);
    kit_write(block, SHORT(bytes), owner, 99);
    if (user != owner) {
        kit_follow(user, owner);
        kit_write(block, SHORT(bytes), user, 98);
        CHECK_RESULT(gpupool_record_stream(arena, block, user), GPUPOOL_OK);
    }
    kit_free(arena, block, owner);
}

static void build_arena(void) {
    gpupool_arena_config config = config_of(source, "swept");
    int is_mapped = source == GPUPOOL_SOURCE_MAPPED;
    maps = 0;
    arena = kit_create(&config);
    CHECK_RESULT(gpupool_allow_peer(arena, 1), GPUPOOL_OK);
    CHECK_RESULT(take(SMALL, 700, A), GPUPOOL_OK);
    kit_free(arena, gpupool_alloc(arena, 700, A), A); /* stays in the cache */
    split_memory(LARGE);
    CHECK_RESULT(take(STITCHED, 6 * MIB, A), GPUPOOL_OK);
    split_memory(FAR);
    fake_hold(B, 1);
    fake_hold(C, 1);
    leave_pending(6 * MIB, B, B); /* a stitch that is idle from then on */
    leave_pending(4 * MIB, A, C);
    leave_pending(3 * MIB, B, B);
    CHECK(kit_stats(arena).stitches > 0 || !is_mapped);
    CHECK(kit_stats(arena).pending.now || source == GPUPOOL_SOURCE_BYPASS);
    keep(OWN, kit_alloc_as(arena, 2 * MIB, 0, A, GPUPOOL_OWN_CHUNK), 2 * MIB, A);
    CHECK_RESULT(gpupool_begin_capture(arena, D, &scope), GPUPOOL_OK);
    CHECK_RESULT(take(OF_GRAPH, MIB, D), GPUPOOL_OK);
    CHECK_RESULT(gpupool_end_capture(scope), GPUPOOL_OK);
}

static void build(void) {
    gpupool_ring_config config = {0, -1, MIB, 64 * KIB};
    kit_prepare();
    fake_quiet(1); /* what went wrong is asked for at the end */
    fake_devices(3);
    for (int i = 0; i < 3; i++) fake_device_memory(i, 256 * MIB); /* tables are as small */
    CHECK_EQ(cudaSetDevice(source != GPUPOOL_SOURCE_CUSTOM), cudaSuccess);
    CHECK_EQ(cudaStreamCreateWithFlags(&far, cudaStreamNonBlocking), cudaSuccess);
    CHECK_EQ(cudaSetDevice(0), cudaSuccess);
    memset(blocks, 0, sizeof blocks);
    memset(&imported, 0, sizeof imported);
    exported.descriptor = -1;
    made = NULL;
    made_ring = NULL;
    made_scope = NULL;
    ticket = 0;
    is_asleep = is_discarded = 0;
    build_arena();
    CHECK_EQ(gpupool_cudaMalloc(&shaped_at, 3 * MIB), cudaSuccess);
    keep(SHAPED, shaped_at, 3 * MIB, A);
    blocks[SHAPED].of = gpupool_get_default_arena(0);
    default_devices = 1;
    CHECK_RESULT(gpupool_ring_create(&ring, &config), GPUPOOL_OK);
}

/* ---- what can be seen of it ---- */

typedef struct sight {
    uint64_t requested, allocated, blocks, limit, asleep, live;
} sight;

static int see_part(const gpupool_part *part, void *user) {
    uint64_t *sum = (uint64_t *)user;
    if (part->kind == GPUPOOL_LIVE) /* in whatever order */
        *sum += ((uintptr_t)part->block.memory + part->block.requested * 3 + part->offset * 7 +
                 (uintptr_t)part->memory * 11 + part->bytes * 13 + (unsigned)part->is_asleep) *
                0x9e3779b97f4a7c15u;
    return 0;
}

static void see(gpupool_arena *of, sight *seen) {
    gpupool_stats stats = kit_stats(of);
    memset(seen, 0, sizeof *seen);
    CHECK_RESULT(gpupool_walk_blocks(of, see_part, &seen->live), GPUPOOL_OK);
    seen->requested = stats.requested.now;
    seen->allocated = stats.allocated.now;
    seen->blocks = stats.blocks;
    seen->limit = stats.limit;
    seen->asleep = stats.asleep;
}

static void is_as_before(const sight *before) {
    sight now;
    see(arena, &now);
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    CHECK_EQ(now.requested, before->requested);
    CHECK_EQ(now.allocated, before->allocated);
    CHECK_EQ(now.blocks, before->blocks);
    CHECK_EQ(now.limit, before->limit);
    CHECK_EQ(now.asleep, before->asleep);
    CHECK_EQ(now.live, before->live);
}

/* ---- a world ends: all of it can, and what is whole is still what it was ---- */

static int is_whole; /* nothing has failed for good */

static void ends(gpupool_result result) {
    if (is_whole) CHECK_RESULT(result, GPUPOOL_OK);
    else CHECK(result == GPUPOOL_OK || result == GPUPOOL_E_CUDA);
}

static void end_blocks(void) {
    for (int i = 0; i < BLOCKS; i++) {
        if (!blocks[i].at) continue;
        if (is_whole && !is_discarded) verify_ends(&blocks[i], i + 1);
        if (i != OF_GRAPH) kit_free(blocks[i].of, blocks[i].at, blocks[i].stream);
    }
}

/* Of a broken context: what CUDA did not take back is left to it. */
static void drop_the_rest(void) {
    if (fake_failures()) check_fail(__FILE__, __LINE__, "%s", fake_failure_text());
    if (fake_misuses()) check_fail(__FILE__, __LINE__, "%s", fake_misuse_text());
    memset(kit_stream, 0, sizeof kit_stream);
    fake_reset();
}

static void end(void) {
    fake_hold(B, 0); /* their work ends, as with a broken context */
    fake_hold(C, 0);
    if (is_asleep && is_whole) CHECK_RESULT(gpupool_wake(arena), GPUPOOL_OK);
    if (ticket) ends(gpupool_ring_wait(ring, ticket, -1, NULL));
    CHECK_RESULT(gpupool_ring_destroy(ring), GPUPOOL_OK);
    if (made_ring) CHECK_RESULT(gpupool_ring_destroy(made_ring), GPUPOOL_OK);
    if (imported.memory) ends(gpupool_import_close(&imported));
    if (exported.descriptor >= 0) CHECK_EQ(close(exported.descriptor), 0);
    end_blocks();
    if (made_scope) ends(gpupool_release_capture(made_scope));
    if (scope) ends(gpupool_release_capture(scope));
    if (made) ends(gpupool_arena_destroy(made));
    ends(gpupool_arena_destroy(arena));
    if (is_whole) CHECK_EQ(maps, 0);
    for (int device = 0; device < 3; device++)
        if (default_devices >> device & 1 && (made = gpupool_get_default_arena(device)) != NULL)
            ends(gpupool_arena_destroy(made));
    if (is_whole) CHECK_EQ(cudaStreamDestroy(far), cudaSuccess);
    if (is_whole) kit_settle();
    else drop_the_rest();
    CHECK_EQ(fail_malloc_live, 0);
}

#endif
