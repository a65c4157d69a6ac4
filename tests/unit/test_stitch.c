/* Blocks that are stitched while streams are at work: under limits that move, with trims, and
   graphs that are captured in scopes and replayed; the race oracle watches, and every place where
   chunks may meet is written, and verified before the free. */
// build: plain
// build: asan -fsanitize=address
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "stitch_kit.h"

#if CHECK_FAKE

#define ARENAS 40
#define REQUESTS 400 /* in the life of each */

static uint64_t stitched, reused, waited, replayed;

/* ---- one graph at a time ---- */

typedef struct life {
    stitch_work work;
    gpupool_capture *scope; /* NULL: there is no graph now */
    cudaGraphExec_t exec;
    stitch_block block;
    int is_live;            /* the graph's block was not freed in it */
} life;

/* Captures the work on one block, which may be freed inside. A scope takes finished memory only, so
   there may be none. */
static void make_graph(life *l) {
    stitch_work *w = &l->work;
    stitch_block b = {NULL, MIB + stitch_below(w, STITCH_LARGEST - MIB),
                      (int)stitch_below(w, (size_t)w->streams), (int)stitch_below(w, 256)};
    cudaStream_t stream = kit_stream[b.stream];
    cudaGraph_t graph = NULL;
    CHECK_RESULT(gpupool_begin_capture(w->arena, stream, &l->scope), GPUPOOL_OK);
    CHECK_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), cudaSuccess);
    b.at = (char *)gpupool_alloc(w->arena, b.bytes, stream);
    if (!b.at) CHECK_RESULT(gpupool_last_result(), GPUPOOL_E_OUT_OF_MEMORY);
    l->is_live = b.at && stitch_below(w, 2);
    if (b.at) {
        stitch_touch(&b, 1);
        stitch_touch(&b, 0);
        if (!l->is_live) CHECK_RESULT(gpupool_free(w->arena, b.at, stream), GPUPOOL_OK);
    }
    CHECK_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    CHECK_EQ(cudaGraphInstantiate(&l->exec, graph, 0), cudaSuccess);
    CHECK_EQ(cudaGraphDestroy(graph), cudaSuccess);
    CHECK_RESULT(gpupool_end_capture(l->scope), GPUPOOL_OK);
    l->block = b;
    w->kept_bytes = l->is_live ? b.bytes : 0;
    w->kept = (size_t)l->is_live;
}

static void release_graph(life *l) {
    CHECK_EQ(cudaGraphExecDestroy(l->exec), cudaSuccess);
    CHECK_RESULT(gpupool_release_capture(l->scope), GPUPOOL_OK);
    l->scope = NULL;
    l->work.kept_bytes = l->work.kept = 0;
}

static void use_graph(life *l) {
    if (!l->scope) make_graph(l);
    else if (stitch_below(&l->work, 6) == 0) release_graph(l);
    else {
        CHECK_EQ(cudaGraphLaunch(l->exec, kit_stream[l->block.stream]), cudaSuccess);
        replayed++;
    }
}

/* ---- limits and trims ---- */

/* It may be below what is reserved: then it is met as blocks go. */
static void move_limit(stitch_work *w, size_t limit) {
    size_t now = limit - limit / 8 + stitch_below(w, limit / 4), reserved;
    CHECK_RESULT(gpupool_set_limit(w->arena, now), GPUPOOL_OK);
    reserved = kit_reserved(w->arena);
    w->limit = now > reserved ? now : reserved;
    CHECK_RESULT(gpupool_reset_peaks(w->arena), GPUPOOL_OK);
}

static void trim(stitch_work *w) {
    size_t before = kit_reserved(w->arena), released = 0;
    CHECK_RESULT(gpupool_trim(w->arena, before - stitch_below(w, before / 2 + 1), &released),
                 GPUPOOL_OK);
    CHECK_EQ(kit_reserved(w->arena), before - released);
}

static void meanwhile(life *l, size_t limit) {
    size_t what = stitch_below(&l->work, 64);
    if (what < 2) move_limit(&l->work, limit);
    else if (what < 4) trim(&l->work);
    else if (what < 16) use_graph(l);
}

static void one_arena(fake_run_mode mode, uint64_t seed) {
    uint64_t draw = seed;
    size_t most = 60 * MIB + (size_t)check_below(&draw, 440 * MIB);
    size_t limit = most + 2 * MIB + (size_t)check_below(&draw, most / 8);
    size_t chunk = (size_t)check_below(&draw, 4) * 6 * MIB;
    int streams = 1 + (int)check_below(&draw, KIT_STREAMS);
    life l = {.scope = NULL};
    stitch_work *w = &l.work;
    check_case("mode %d, seed %llu, %d streams, most %zu, limit %zu, chunk %zu", (int)mode,
               (unsigned long long)seed, streams, most, limit, chunk);
    stitch_open(w, mode, streams, most, limit, chunk, seed);
    for (int i = 0; i < REQUESTS && !atomic_load(&check_bad); i++) {
        if (i % 32 == 0) stitch_agrees(w);
        meanwhile(&l, limit);
        if (stitch_take(w, stitch_next(w))) continue;
        CHECK_RESULT(gpupool_last_result(), GPUPOOL_E_OUT_OF_MEMORY);
        if (w->count) stitch_free(w, stitch_below(w, w->count));
        stitch_agrees(w);
    }
    if (l.scope) release_graph(&l);
    gpupool_stats s = stitch_close(w);
    stitched += s.stitches;
    reused += s.stitches_reused;
    waited += s.fence_waits;
}

static void run(fake_run_mode mode) {
    stitched = reused = waited = replayed = 0;
    for (uint64_t seed = 1; seed <= ARENAS; seed++) {
        one_arena(mode, seed);
        if (atomic_load(&check_bad)) return;
    }
    CHECK(stitched > ARENAS * REQUESTS / 20); /* else these sizes no longer need stitches */
    CHECK(reused > 0 && replayed > ARENAS);
    if (mode == FAKE_STEPPED) CHECK(waited > 0);
}

/* Hundreds of chunks, none beside another: one block of as many as are wanted. */
static void many_small_chunks(void) {
    enum { CHUNKS = 1200, WANTED = 600 };
    void *block[2 * CHUNKS];
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
    config.limit_bytes = 2 * CHUNKS * 2 * MIB;
    config.chunk_bytes = 2 * MIB;
    gpupool_arena *arena = kit_create(&config);
    for (int i = 0; i < 2 * CHUNKS; i++) block[i] = kit_alloc(arena, 2 * MIB, kit_stream[0]);
    for (int i = 0; i < 2 * CHUNKS; i += 2)
        CHECK_RESULT(gpupool_free(arena, block[i], kit_stream[0]), GPUPOOL_OK);
    void *wide = kit_alloc(arena, WANTED * 2 * MIB, kit_stream[0]);
    CHECK_EQ(kit_stats(arena).stitches, 1);
    CHECK_EQ(kit_stats(arena).stitched_bytes, WANTED * 2 * MIB);
    CHECK_EQ(fake_mappings(), 2 * CHUNKS + WANTED);
    CHECK_RESULT(gpupool_free(arena, wide, kit_stream[0]), GPUPOOL_OK);
    for (int i = 1; i < 2 * CHUNKS; i += 2)
        CHECK_RESULT(gpupool_free(arena, block[i], kit_stream[0]), GPUPOOL_OK);
    CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
    CHECK_EQ(kit_reserved(arena), 0);
    kit_close(arena);
}

static void stepped(void) { run(FAKE_STEPPED); }
static void eager(void) { run(FAKE_EAGER); }

#endif

int main(void) {
    FAKE_TEST(many_small_chunks);
    FAKE_TEST(stepped);
    FAKE_TEST(eager);
    return check_finish();
}
