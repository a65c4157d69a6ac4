/* The interpreter: what a world is like, what an operation does, and how a world ends. */
#include "world.h"

#include <stdlib.h>
#include <string.h>

/* The device is slow in some worlds, and in others it comes after what is queued. */
static void step(world *w, const operation *op) {
    int i;
    for (i = 0; i <= op->flags % w->speed; i++) fake_step(w->streams[op->stream % w->stream_count]);
}

void world_do(world *w, const operation *op) {
    int kind = op->kind;
    w->done++;
    if (kind < 150) world_block(w, op);
    else if (kind < 215) step(w, op);
    else if (kind < 218) world_fault(w, op);
    else if (kind < 222) return; /* for a new operation, so that seeds stay what they are */
    else if (kind < 230) world_tune(w, op);
    else if (kind < 236) world_intrude(w, op);
    else if (w->is_shared) return;
    else if (kind < 254) world_graph(w, op);
    else world_renew(w, op);
    world_expect(w, !fake_failures() && !fake_misuses(),
                 fake_failures() ? fake_failure_text() : fake_misuse_text());
}

static void describe(world *w, const operation *op) {
    static const gpupool_source sources[] = {GPUPOOL_SOURCE_AUTO,    GPUPOOL_SOURCE_MAPPED,
                                             GPUPOOL_SOURCE_MAPPED,  GPUPOOL_SOURCE_MAPPED,
                                             GPUPOOL_SOURCE_DEVICE,  GPUPOOL_SOURCE_PINNED,
                                             GPUPOOL_SOURCE_MANAGED, GPUPOOL_SOURCE_BYPASS};
    static const uint64_t limits[] = {0, 0, 0, 256 << 20, 64 << 20, 24 << 20, 10 << 20, 6 << 20};
    static const uint64_t chunks[] = {0, 0, 0, 4 << 20};
    w->config.source = sources[op->kind % 8];
    w->config.limit_bytes = w->limit = w->old_limit = limits[op->slot % 8];
    w->config.chunk_bytes = chunks[op->stream % 4];
    w->config.name = "world";
    w->stream_count = op->flags % 8 ? STREAMS : 1;
    w->has_fresh_sizes = op->flags / 8 % 4 == 0;
    w->has_faults = op->flags / 32 % 2;
    w->is_plenty = !w->limit;
    w->speed = 1 + (int)(op->number >> 8) % 6;
    w->room = w->limit ? w->limit : UINT64_MAX;
    if (op->flags / 64 % 4 == 0) {
        uint64_t room = (uint64_t)(8 + op->number % 256) << 20;
        w->is_plenty = 0;
        if (room < w->room) w->room = room;
        fake_device_memory(0, room);
        fake_pinned_limit(room);
    }
}

static int open_world(world *w, const operation *op) {
    int i;
    fake_mode(FAKE_STEPPED);
    describe(w, op);
    for (i = 0; i < RENEWABLE; i++)
        cudaStreamCreateWithFlags(&w->streams[i], cudaStreamNonBlocking);
    w->streams[RENEWABLE] = cudaStreamLegacy;
    w->streams[RENEWABLE + 1] = cudaStreamPerThread;
    if (w->has_faults) fake_fail_pause(1);
    return world_judge(w, gpupool_arena_create(&w->arena, &w->config), BIT(GPUPOOL_OK), "create");
}

static void expect_empty(world *w) {
    gpupool_stats stats = {0};
    if (fake_is_broken() || w->wrong[0]) return;
    world_judge(w, SURE(w, gpupool_trim(w->arena, 0)), BIT(GPUPOOL_OK) | OR_BROKEN,
                "the last trim");
    if (fake_is_broken()) return;
    gpupool_get_stats(w->arena, &stats);
    world_expect(w, stats.blocks == 0 && stats.pending.now == 0 && stats.reserved.now == 0,
                 "an empty arena keeps memory after a trim");
}

static const operation plain = {255, 0, 0, 255, 0};

void world_free_all(world *w) {
    int i;
    for (i = 0; i < BLOCKS; i++)
        if (__atomic_load_n(&w->blocks[i].memory, __ATOMIC_ACQUIRE))
            world_free_block(w, &w->blocks[i], &plain);
    fake_run_all();
}

void world_close(world *w) {
    gpupool_result result;
    int i;
    w->guard = NO_INTRUDER;
    for (i = 0; i < GRAPHS; i++)
        if (w->graphs[i].state == GRAPH_CAPTURING) world_graph(w, &plain);
    if (w->live && !fake_is_broken())
        world_judge(w, CALL(w, gpupool_arena_destroy(w->arena)), BIT(GPUPOOL_E_IN_USE),
                    "destroy with live blocks");
    for (i = GRAPHS; i-- > 0;) world_drop_graph(w, &w->graphs[i]);
    world_free_all(w);
    world_figures(w);
    expect_empty(w);
    result = CALL(w, gpupool_arena_destroy(w->arena));
    world_judge(w, result, BIT(GPUPOOL_OK) | OR_BROKEN, "destroy");
}

/* Runs the operations; the first one says what the world is like. Returns what was wrong, or "". */
const char *world_run(const operation *ops, long count) {
    static world w;
    int i, was_broken;
    memset(&w, 0, sizeof w);
    w.is_real = fake_used_bytes(0) == SIZE_MAX;
    if (count > 0 && open_world(&w, &ops[0])) {
        for (i = 1; i < count && !w.wrong[0]; i++) world_do(&w, &ops[i]);
        if (!w.wrong[0]) world_close(&w);
    }
    was_broken = fake_is_broken();
    world_refuse_host_memory(0);
    fake_fail_clear();
    fake_fail_pause(0);
    for (i = 0; i < RENEWABLE && count > 0; i++) cudaStreamDestroy(w.streams[i]);
    world_expect(&w, !fake_failures() && !fake_misuses(),
                 fake_failures() ? fake_failure_text() : fake_misuse_text());
    if (w.wrong[0]) return w.wrong;
    world_expect(&w, was_broken || !fake_live_objects(), "an arena leaves CUDA's objects behind");
    fake_quiet(1);
    fake_reset();
    fake_quiet(0);
    fake_clear_failures();
    return w.wrong;
}

/* -- for all drivers: operations from seeds, and a line that repeats a failure -- */

operation world_operation_of(uint64_t seed, long index) {
    uint64_t x = seed * 0x9e3779b97f4a7c15ull + (uint64_t)index * 0xd1342543de82ef95ull;
    operation op;
    x = (x ^ x >> 31) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    x ^= x >> 31;
    memcpy(&op, &x, sizeof op);
    return op;
}

int world_drive(const driver *d, int count, char **words) {
    uint64_t seed = count > 1 ? strtoull(words[1], NULL, 10) : 1;
    uint64_t last = count > 2 ? strtoull(words[2], NULL, 10) : count > 1 ? seed : d->last;
    long passed = 0, operations = count > 3 ? atol(words[3]) : d->operations;
    const char *wrong = "";
    for (; seed <= last && !*wrong; seed++) {
        wrong = d->run(seed, operations);
        if (!*wrong) passed++;
        else
            printf("%s\nrepeat: %s %llu %llu %ld\n", wrong, d->name, (unsigned long long)seed,
                   (unsigned long long)seed, operations);
    }
    printf("%ld passed, %d failed\n", passed, *wrong != 0);
    return *wrong != 0;
}
