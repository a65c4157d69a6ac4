/* Operations on one block: allocate, free in every way, use on another stream, ask. */
#include "world.h"

#include <string.h>

/* -- allocate -- */

static gpupool_request request_of(world *w, const operation *op) {
    static const uint64_t most[] = {4096, 65536, 4 << 20, 40 << 20};
    static const unsigned flags[] = {GPUPOOL_NO_WAIT, GPUPOOL_ZEROED, GPUPOOL_OWN_CHUNK,
                                     GPUPOOL_NO_WAIT | GPUPOOL_ZEROED};
    gpupool_request request = {0};
    unsigned size = op->number & 3;
    if (w->stream_count == 1 && op->number & 24) size = 0; /* caches count in peaks */
    request.bytes = 1 + (op->number >> 2) % most[size];
    if (w->has_fresh_sizes) request.bytes += w->done * 512;
    if (request.bytes > w->room / 2) request.bytes = 1 + request.bytes % (w->room / 4);
    if (op->flags % 8 == 0) request.alignment = (size_t)1 << op->flags / 8 % 24;
    if (op->flags % 8 == 1) request.flags = flags[op->flags / 8 % 4];
    if (request.flags & GPUPOOL_ZEROED) request.bytes = 1 + request.bytes % (1 << 20);
    request.stream = w->streams[op->stream % w->stream_count];
    if (op->stream % 16 == 15 && w->stream_count > 1) request.stream = GPUPOOL_NO_STREAM;
    request.label = "world";
    return request;
}

/* Which failures are right. */
static unsigned allowed_of(world *w, const gpupool_request *request, const graph *capture) {
    unsigned allowed = 0;
    if (!w->is_plenty || fake_fail_fired() != w->fired) allowed |= BIT(GPUPOOL_E_OUT_OF_MEMORY);
    if (w->is_host_short) allowed |= BIT(GPUPOOL_E_HOST_MEMORY);
    if (capture) allowed |= BIT(GPUPOOL_E_CAPTURING);
    if (w->config.source == GPUPOOL_SOURCE_BYPASS && request->alignment > 256)
        allowed |= BIT(GPUPOOL_E_ARGUMENT) | BIT(GPUPOOL_E_UNSUPPORTED);
    return allowed | OR_BROKEN;
}

static void expect_verdict(world *w, const gpupool_request *request) {
    const gpupool_verdict *verdict = gpupool_last_verdict();
    world_expect(w, verdict->cause != GPUPOOL_CAUSE_NONE && verdict->sentence[0],
                 "a verdict without a cause");
    world_expect(w, verdict->asked >= request->bytes, "a verdict on another request");
    world_expect(w, verdict->limit == w->limit || verdict->limit == w->old_limit || w->is_shared,
                 "a verdict on another limit");
}

/* A request that fails must not succeed at once when nothing else has happened. */
static char *ask_for(world *w, const gpupool_request *request, const graph *capture) {
    long intrusions = w->intrusions;
    char *memory = CALL(w, gpupool_alloc_request(w->arena, request));
    gpupool_result result = gpupool_last_result();
    if (memory) return memory;
    world_judge(w, result, allowed_of(w, request, capture), "alloc");
    if (result != GPUPOOL_E_OUT_OF_MEMORY) return NULL;
    expect_verdict(w, request);
    if (w->is_shared || w->is_real || fake_fail_fired() != w->fired ||
        w->intrusions != intrusions || request->flags & GPUPOOL_NO_WAIT)
        return NULL;
    memory = CALL(w, gpupool_alloc_request(w->arena, request));
    world_expect(w, !memory || w->intrusions != intrusions,
                 "a request fails that the next call meets");
    return memory;
}

static int overlap(const block *b, const char *memory, uint64_t bytes) {
    return memory < b->memory + b->asked && b->memory < memory + bytes;
}

/* Neither a live block's memory, nor what a graph keeps. */
static void expect_free(world *w, const block *b) {
    int i, k;
    for (i = 0; i < BLOCKS; i++) {
        const block *other = &w->blocks[i];
        char *memory = __atomic_load_n(&other->memory, __ATOMIC_ACQUIRE);
        world_expect(w, other == b || !memory || !overlap(b, memory, other->asked),
                     "a block lies over another");
    }
    for (i = 0; i < GRAPHS; i++)
        for (k = 0; k < w->graphs[i].owned && i != b->graph; k++)
            world_expect(w, !overlap(b, w->graphs[i].freed[k].memory, w->graphs[i].freed[k].bytes),
                         "a block of memory that a graph keeps");
}

/* What is new: aligned, nobody's, finished where it must be, of zeros if asked. */
static void expect_fresh(world *w, block *b, const gpupool_request *request) {
    const graph *g = world_capture_of(w, b->home);
    int is_zeroed = (request->flags & GPUPOOL_ZEROED) != 0;
    world_expect(w, !request->alignment || (uintptr_t)b->memory % request->alignment == 0,
                 "alignment");
    world_expect(w, (uintptr_t)b->memory % 512 == 0, "a block begins inside a unit");
    expect_free(w, b);
    if (request->stream == GPUPOOL_NO_STREAM ||
        (world_is_host_source(w) && !is_zeroed && b->graph == NOBODY))
        fake_host_access(b->memory, b->asked, 0, "memory that has finished");
    if (is_zeroed) {
        int is_at_once = !g || (world_is_host_source(w) && !g->scope);
        b->written = is_at_once ? NOBODY : (int)(g - w->graphs);
        world_verify(w, b, b->home);
    }
}

/* The graph that gets what is allocated on the stream, or keeps what is freed on it. */
static int graph_on(const world *w, cudaStream_t stream) {
    int i;
    for (i = 0; i < GRAPHS; i++) {
        const graph *g = &w->graphs[i];
        if (stream != w->streams[g->stream]) continue;
        if (g->state == GRAPH_CAPTURING || (g->state == GRAPH_OPEN && g->scope)) return i;
    }
    return NOBODY;
}

static void allocate(world *w, block *b, const operation *op) {
    gpupool_request request = request_of(w, op);
    int home = op->stream % w->stream_count;
    const graph *capture = world_capture_of(w, home);
    gpupool_stats before = {0}, after = {0};
    long intrusions = w->intrusions;
    if (request.stream == GPUPOOL_NO_STREAM && capture) return;
    if (w->is_intruding) request.flags |= GPUPOOL_NO_WAIT; /* the other cannot go on meanwhile */
    if (request.flags & GPUPOOL_NO_WAIT) gpupool_get_stats(w->arena, &before);
    b->home = home;
    b->asked = request.bytes;
    b->graph = graph_on(w, request.stream);
    b->stamp = 0;
    b->is_leaving = 0;
    b->users = 0;
    b->memory = ask_for(w, &request, capture);
    if (request.flags & GPUPOOL_NO_WAIT && !w->is_shared && !w->is_real &&
        w->intrusions == intrusions) {
        gpupool_get_stats(w->arena, &after);
        world_expect(w, after.host_waits == before.host_waits, "a NO_WAIT request waited");
    }
    if (!b->memory) return;
    expect_fresh(w, b, &request);
    b->stamp = 1 + (int)(op->number % 255);
    world_add(w, b, request.flags & GPUPOOL_OWN_CHUNK || op->number % 16 == 0);
    world_stamp(w, b);
}

/* -- free -- */

static void keep(graph *g, const block *b) {
    if (!g->scope || g->owned == OWNED) return;
    g->freed[g->owned].memory = b->memory;
    g->freed[g->owned++].bytes = b->asked;
}

/* What a graph has or uses stays with it when it is freed, as does what is freed in its scope. */
static void keep_for_graphs(world *w, const block *b, cudaStream_t stream) {
    int i, on = graph_on(w, stream);
    for (i = 0; i < GRAPHS; i++)
        if (b->graph == i || b->users >> i & 1 || (b->graph == NOBODY && on == i))
            keep(&w->graphs[i], b);
}

/* A block is dropped first, for its memory may be another's as soon as it is free. What fails for
   want of host memory has changed nothing, and succeeds the next time. */
static void CUDART_CB free_from_host(void *user) {
    block *b = user;
    world *w = b->world;
    char *memory = b->memory;
    gpupool_result result;
    keep_for_graphs(w, b, GPUPOOL_NO_STREAM);
    world_drop(b);
    result = gpupool_free_in_host_function(w->arena, memory);
    if (w->has_faults && result == GPUPOOL_E_HOST_MEMORY)
        result = gpupool_free_in_host_function(w->arena, memory);
    world_judge(w, result, BIT(GPUPOOL_OK), "free_in_host_function");
}

static void free_on(world *w, block *b, cudaStream_t stream) {
    char *memory = b->memory;
    gpupool_result result;
    keep_for_graphs(w, b, stream);
    world_drop(b);
    w->is_inexact |= stream == GPUPOOL_NO_STREAM; /* it adds up no other stream's cache (C1) */
    result = SURE(w, gpupool_free(w->arena, memory, stream));
    world_judge(w, result, BIT(GPUPOOL_OK), "free");
}

static void free_twice(world *w, block *b, cudaStream_t stream) {
    unsigned allowed = BIT(GPUPOOL_E_DOUBLE_FREE);
    char *memory = b->memory;
    long intrusions = w->intrusions;
    free_on(w, b, stream);
    if (w->is_shared || w->intrusions != intrusions) return; /* it is another's by now */
    if (w->config.source == GPUPOOL_SOURCE_BYPASS) allowed |= BIT(GPUPOOL_E_NOT_OURS);
    world_judge(w, SURE(w, gpupool_free(w->arena, memory, stream)), allowed, "a double free");
}

static void free_behind(world *w, block *b, int last) { /* its last user is another stream */
    if (!world_capture_of(w, last)) {
        world_use_elsewhere(w, b, last);
        free_on(w, b, w->streams[last]);
    } else free_on(w, b, w->streams[b->home]);
}

/* A block that a capture without a scope uses lives as long as the graph. */
static int is_kept(const world *w, const block *b) {
    return b->is_leaving || (b->graph >= 0 && w->graphs[b->graph].state != GRAPH_UNUSED &&
                             !w->graphs[b->graph].scope);
}

void world_free_block(world *w, block *b, const operation *op) {
    int way = world_capture_of(w, b->home) ? 7 : op->flags / 8 % 8;
    if (is_kept(w, b)) return;
    world_verify(w, b, b->home);
    switch (way) {
    case 0: free_behind(w, b, op->stream % w->stream_count); break;
    case 1:
        world_sync(w, b->home);
        free_on(w, b, GPUPOOL_NO_STREAM);
        break;
    case 2:
        b->is_leaving = 1;
        cudaLaunchHostFunc(w->streams[b->home], free_from_host, b);
        break;
    case 3: free_twice(w, b, w->streams[b->home]); break;
    default: free_on(w, b, w->streams[b->home]);
    }
}

/* Nothing may touch its memory. */
void world_free_asleep(world *w, int slot) {
    block *b = &w->blocks[slot];
    if (b->memory && !is_kept(w, b)) free_on(w, b, w->streams[b->home]);
}

/* -- use and ask -- */

/* In a capture: with a scope the graph uses the block, as often as it runs. */
static void record_in_capture(world *w, block *b, int other, const graph *g) {
    int is_home = b->home == other;
    gpupool_result result;
    if (g->scope && b->written == NOBODY && b->graph == NOBODY &&
        (is_home || !world_capture_of(w, b->home))) {
        if (!is_home) world_sync(w, b->home);
        /* any bytes: freed in the scope, the memory may be the graph's next block's */
        fake_read(w->streams[other], "use", b->memory, b->asked > 4096 ? 4096 : b->asked, -1);
    }
    result = SURE(w, gpupool_record_stream(w->arena, b->memory, w->streams[other]));
    world_judge(w, result, BIT(g->scope ? GPUPOOL_OK : GPUPOOL_E_CAPTURING) | OR_BROKEN,
                "record_stream in a capture");
}

static void record(world *w, block *b, int other) {
    const graph *g = world_capture_of(w, other);
    int on = graph_on(w, w->streams[other]);
    gpupool_result result;
    if (!g && world_capture_of(w, b->home)) return;
    if (on >= 0 && w->graphs[on].scope) b->users |= 1u << on;
    if (g) {
        record_in_capture(w, b, other, g);
        return;
    }
    world_use_elsewhere(w, b, other);
    result = SURE(w, gpupool_record_stream(w->arena, b->memory, w->streams[other]));
    if (world_judge(w, result, BIT(GPUPOOL_OK) | OR_BROKEN, "record_stream")) return;
    world_follow(w, other, b->home); /* the use is the program's to care for */
}

/* Pointers that are wrong are named as what they are, and the block lives on. */
static void ask_and_err(world *w, block *b, const operation *op) {
    static char foreign[1024];
    char *inner = b->memory + 1 + (b->asked > 1 ? op->number % (b->asked - 1) : 0);
    gpupool_block told = {0};
    cudaStream_t stream = w->streams[b->home];
    gpupool_result result = SURE(w, gpupool_free(w->arena, foreign, stream));
    world_judge(w, result, BIT(GPUPOOL_E_NOT_OURS), "a free of a foreign pointer");
    if (b->asked > 1) {
        result = SURE(w, gpupool_free(w->arena, inner, stream));
        world_judge(w, result, BIT(GPUPOOL_E_INSIDE), "a free of an inner pointer");
        result = SURE(w, gpupool_get_block(w->arena, inner, &told));
        world_judge(w, result, BIT(GPUPOOL_E_INSIDE), "get_block of an inner pointer");
        world_expect(w, told.memory == b->memory, "get_block tells of another block around");
    }
    world_verify(w, b, b->home);
}

void world_block(world *w, const operation *op) {
    block *b = &w->blocks[op->slot % BLOCKS];
    const block *outer = w->busy;
    int is_recorded = op->flags % (w->is_plenty ? 8 : 3) == 0; /* memory is short: more waits */
    int guard = w->guard, is_live = __atomic_load_n(&b->memory, __ATOMIC_ACQUIRE) != NULL;
    if (b == outer) return;
    w->busy = b;
    /* and nobody releases a graph while a block of it is freed */
    if (!w->guard && (!is_live || is_recorded || b->graph != NOBODY || b->users))
        w->guard = NO_CAPTURE;
    if (!is_live) allocate(w, b, op);
    else if (b->is_leaving) fake_step(w->streams[b->home]);
    else if (is_recorded) record(w, b, op->stream % w->stream_count);
    else if (op->flags % 32 == 2) ask_and_err(w, b, op);
    else world_free_block(w, b, op);
    w->busy = outer;
    w->guard = guard;
}
