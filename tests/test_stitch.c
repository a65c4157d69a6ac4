/* Blocks that are stitched while streams are at work: under random limits, with the race oracle
   watching, and every place where chunks may meet written, and verified before the free. */
// build: plain
// build: asan -fsanitize=address,undefined
#define GPUPOOL_IMPLEMENTATION
#include "../gpupool.h"
#include "stitch_kit.h"

#if CHECK_FAKE

#define ARENAS 40
#define REQUESTS 400 /* in the life of each */

static uint64_t stitched, reused, waited;

static void one_arena(fake_run_mode mode, uint64_t seed) {
    uint64_t draw = seed;
    size_t most = 60 * MIB + (size_t)check_below(&draw, 440 * MIB);
    size_t limit = most + 2 * MIB + (size_t)check_below(&draw, most / 8);
    size_t chunk = (size_t)check_below(&draw, 4) * 6 * MIB;
    int streams = 1 + (int)check_below(&draw, KIT_STREAMS);
    stitch_work w;
    check_case("mode %d, seed %llu, %d streams, most %zu, limit %zu, chunk %zu", (int)mode,
               (unsigned long long)seed, streams, most, limit, chunk);
    stitch_open(&w, mode, streams, most, limit, chunk, seed);
    for (int i = 0; i < REQUESTS && !atomic_load(&check_bad); i++) {
        if (stitch_take(&w, stitch_next(&w))) continue;
        CHECK_RESULT(gpupool_last_result(), GPUPOOL_E_OUT_OF_MEMORY);
        CHECK(w.count > 0);
        if (w.count) stitch_free(&w, stitch_below(&w, w.count));
        stitch_agrees(&w);
    }
    gpupool_stats s = stitch_close(&w);
    stitched += s.stitches;
    reused += s.stitches_reused;
    waited += s.fence_waits;
}

static void run(fake_run_mode mode) {
    stitched = reused = waited = 0;
    for (uint64_t seed = 1; seed <= ARENAS; seed++) {
        one_arena(mode, seed);
        if (atomic_load(&check_bad)) return;
    }
    CHECK(stitched > ARENAS * REQUESTS / 20); /* else these sizes no longer need stitches */
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
