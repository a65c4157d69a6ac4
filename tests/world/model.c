/* What the world expects: contents by stamps, order by fakecuda's race oracle, figures by sums. */
#include "world.h"

#include <string.h>

void world_expect(world *w, int holds, const char *what) {
    if (!holds && !w->wrong[0]) snprintf(w->wrong, sizeof w->wrong, "%s", what);
}

/* Faults fire inside gpupool only, so the world's own calls tell the truth. */
void world_enter(world *w) {
    w->entered = w->intrusions;
    if (!w->has_faults) return;
    w->fired = fake_fail_fired();
    w->is_host_short = 0;
    fake_fail_pause(0);
}
void world_leave(world *w) {
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
    if (w->has_faults) fake_fail_pause(1);
    if (w->has_faults && world_host_memory_refused()) w->is_host_short = 1;
    cudaThreadExchangeStreamCaptureMode(&mode);
    world_expect(w, mode == cudaStreamCaptureModeGlobal || fake_is_broken(),
                 "a call left another capture mode");
    world_expect(w, cudaPeekAtLastError() == cudaSuccess, "a call left an error behind");
}

/* Calls of the world that a capture of another stream would forbid. */
void world_own(world *w, int on) {
    enum cudaStreamCaptureMode mode =
        on ? cudaStreamCaptureModeRelaxed : cudaStreamCaptureModeGlobal;
    (void)w;
    cudaThreadExchangeStreamCaptureMode(&mode);
}

/* Whether the last call failed by a fault. */
int world_is_faulty(const world *w, gpupool_result result) {
    if (result == GPUPOOL_E_HOST_MEMORY && w->is_host_short) return 1;
    return (result == GPUPOOL_E_OUT_OF_MEMORY || result == GPUPOOL_E_HOST_MEMORY) &&
           w->has_faults && fake_fail_fired() != w->fired;
}

/* Whether the call succeeded. A failure must be allowed, and be told. */
int world_judge(world *w, gpupool_result result, unsigned allowed, const char *call) {
    char text[560];
    if (allowed & OR_BROKEN && fake_is_broken()) allowed |= BIT(GPUPOOL_OK) | BIT(GPUPOOL_E_CUDA);
    if (result == GPUPOOL_OK && (allowed & BIT(GPUPOOL_OK))) return 1;
    snprintf(text, sizeof text, "%s: %s: %s", call, gpupool_result_name(result),
             result ? gpupool_last_error() : "succeeds");
    world_expect(w, (allowed & BIT(result)) != 0, text);
    if (result == GPUPOOL_OK) return 1;
    world_expect(w, gpupool_last_result() == result || w->intrusions != w->entered,
                 "last_result is another one");
    world_expect(w, gpupool_last_error()[0] != 0, "a failure without a sentence");
    return 0;
}

/* -- order -- */

void world_follow(world *w, int first, int then) {
    cudaEvent_t event;
    if (first == then) return;
    cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    cudaEventRecord(event, w->streams[first]);
    cudaStreamWaitEvent(w->streams[then], event, 0);
    cudaEventDestroy(event);
}

void world_sync(world *w, int stream) {
    world_own(w, 1);
    cudaStreamSynchronize(w->streams[stream]);
    world_own(w, 0);
}

/* The graph that the stream captures into, or NULL. */
graph *world_capture_of(world *w, int stream) {
    int i;
    for (i = 0; i < GRAPHS; i++)
        if (w->graphs[i].state == GRAPH_CAPTURING && w->graphs[i].stream == stream)
            return &w->graphs[i];
    return NULL;
}

int world_is_host_source(const world *w) {
    return w->config.source == GPUPOOL_SOURCE_PINNED || w->config.source == GPUPOOL_SOURCE_MANAGED;
}

/* -- contents: both ends and the middle, since stitches lie over several chunks -- */

static uint64_t part_of(const block *b, int part, char **at) {
    uint64_t bytes = b->asked > 4096 ? 4096 : b->asked;
    *at = b->memory + (b->asked - bytes) * (uint64_t)part / 2;
    return bytes;
}
static int parts_of(const block *b) {
    return b->asked > 4096 ? 3 : 1;
}

void world_stamp(world *w, block *b) {
    const graph *g = world_capture_of(w, b->home);
    char *at;
    int i;
    b->written = g ? (int)(g - w->graphs) : NOBODY;
    for (i = 0; i < parts_of(b) && !fake_is_broken(); i++) { /* a lost context launches nothing */
        uint64_t bytes = part_of(b, i, &at);
        fake_write(w->streams[b->home], "stamp", at, bytes, b->stamp);
    }
}

/* In a capture only what this capture wrote is certain at each launch; and outside of it what a
   graph writes is there after a launch. */
void world_verify(world *w, const block *b, int stream) {
    const graph *g = world_capture_of(w, stream);
    char *at;
    int i;
    if (b->written == UNKNOWN || (g && b->written != g - w->graphs)) return;
    if (!g && b->written >= 0 && !w->graphs[b->written].launches) return;
    for (i = 0; i < parts_of(b) && !fake_is_broken(); i++) {
        uint64_t bytes = part_of(b, i, &at);
        fake_read(w->streams[stream], "verify", at, bytes, b->stamp);
    }
}

/* Another stream reads the block; what a graph writes again is not written before that. */
void world_use_elsewhere(world *w, const block *b, int other) {
    world_follow(w, b->home, other);
    world_verify(w, b, other);
    if (b->written != NOBODY) world_follow(w, other, b->home);
}

/* -- figures -- */

static void ask_block(world *w, block *b) {
    gpupool_block told = {0};
    if (world_judge(w, SURE(w, gpupool_get_block(w->arena, b->memory, &told)), BIT(GPUPOOL_OK),
                    "get_block of a live block")) {
        world_expect(w, told.memory == b->memory && told.requested == b->asked,
                     "get_block tells of another block");
        world_expect(w, told.bytes >= b->allocated, "a block is smaller than asked for");
        b->allocated = told.bytes;
    }
}

/* A block is asked about now and then, for it might not be the same any more. */
void world_add(world *w, block *b, int is_asked) {
    uint64_t asked;
    b->world = w;
    b->allocated = (b->asked + 511) / 512 * 512;
    if (is_asked) ask_block(w, b);
    __atomic_fetch_add(&w->allocated, b->allocated, __ATOMIC_RELAXED);
    __atomic_fetch_add(&w->live, 1, __ATOMIC_RELAXED);
    asked = __atomic_add_fetch(&w->asked, b->asked, __ATOMIC_RELAXED);
    if (asked > w->peak) w->peak = asked;
}

/* In a worker's thread too: a host function frees there. */
void world_drop(block *b) {
    world *w = b->world;
    __atomic_fetch_sub(&w->asked, b->asked, __ATOMIC_RELAXED);
    __atomic_fetch_sub(&w->allocated, b->allocated, __ATOMIC_RELAXED);
    __atomic_fetch_sub(&w->live, 1, __ATOMIC_RELAXED);
    __atomic_store_n(&b->memory, NULL, __ATOMIC_RELEASE);
}

static void expect_figure(world *w, const char *name, uint64_t is, uint64_t expected) {
    char text[120];
    snprintf(text, sizeof text, "%s is %llu, expected %llu", name, (unsigned long long)is,
             (unsigned long long)expected);
    world_expect(w, is == expected, text);
}

void world_figures(world *w) {
    gpupool_source source = w->config.source;
    gpupool_stats stats;
    uint64_t live, caches;
    if (w->is_shared || w->is_real) return;
    live = w->live;
    if (!world_judge(w, SURE(w, gpupool_get_stats(w->arena, &stats)), BIT(GPUPOOL_OK), "get_stats"))
        return;
    if (fake_is_broken()) return; /* a release may have failed, and its blocks are live */
    /* a host function or an intruder came in between */
    if (w->live != live || w->intrusions != w->entered) return;
    expect_figure(w, "requested", stats.requested.now, w->asked);
    expect_figure(w, "allocated", stats.allocated.now, w->allocated);
    expect_figure(w, "blocks", stats.blocks, w->live);
    expect_figure(w, "limit", stats.limit, w->limit);
    /* each stream's cache adds what it counts later, and holds 1 MiB or 1/256 of reserved memory */
    caches = (STREAMS + 1) * (stats.reserved.peak / 256 + (1 << 20));
    if (w->stream_count == 1 && !w->is_inexact)
        expect_figure(w, "requested's peak", stats.requested.peak, w->peak);
    world_expect(w, stats.requested.peak + caches >= w->peak, "a peak is lost");
    world_expect(w, stats.allocated.now + stats.pending.now <= stats.reserved.now + stats.asleep,
                 "reserved is less than allocated and pending");
    world_expect(
        w,
        stats.requested.peak >= stats.requested.now && stats.reserved.peak >= stats.reserved.now &&
            stats.allocated.peak >= stats.allocated.now && stats.pending.peak >= stats.pending.now,
        "a peak is below its figure");
    if (source == GPUPOOL_SOURCE_AUTO || source == GPUPOOL_SOURCE_MAPPED)
        expect_figure(w, "reserved", stats.reserved.now, fake_used_bytes(0));
    if (source == GPUPOOL_SOURCE_PINNED)
        expect_figure(w, "reserved", stats.reserved.now, fake_pinned_bytes());
}
