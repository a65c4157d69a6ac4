/* Memory that moves while streams are at work: under random limits, with the race oracle watching
   and every granule of every block written, and verified before its free. */
// build: plain
// build: asan -fsanitize=address,undefined
#define GPUPOOL_IMPLEMENTATION
#include "../gpupool.h"
#include "remap_kit.h"

#if CHECK_FAKE

#define ARENAS 40
#define REQUESTS 400 /* in the life of each */

static uint64_t moved, waited;

static void one_arena(fake_run_mode mode, uint64_t seed) {
    uint64_t draw = seed;
    size_t most = 60 * MIB + (size_t)check_below(&draw, 440 * MIB);
    size_t limit = most + 2 * MIB + (size_t)check_below(&draw, most / 8);
    size_t chunk = (size_t)check_below(&draw, 4) * 6 * MIB;
    int streams = 1 + (int)check_below(&draw, KIT_STREAMS);
    remap_work w;
    check_case("mode %d, seed %llu, %d streams, most %zu, limit %zu, chunk %zu", (int)mode,
               (unsigned long long)seed, streams, most, limit, chunk);
    remap_open(&w, mode, streams, most, limit, chunk, seed);
    for (int i = 0; i < REQUESTS && !atomic_load(&check_bad); i++) {
        if (remap_take(&w, remap_next(&w))) continue;
        CHECK_RESULT(gpupool_last_result(), GPUPOOL_E_OUT_OF_MEMORY);
        CHECK(w.count > 0);
        if (w.count) remap_free(&w, remap_below(&w, w.count));
        remap_agrees(&w);
    }
    gpupool_stats s = remap_close(&w);
    moved += s.remaps;
    waited += s.fence_waits;
}

static void run(fake_run_mode mode) {
    moved = waited = 0;
    for (uint64_t seed = 1; seed <= ARENAS; seed++) {
        one_arena(mode, seed);
        if (atomic_load(&check_bad)) return;
    }
    CHECK(moved > ARENAS * REQUESTS / 20); /* else these sizes no longer make memory move */
    if (mode == FAKE_STEPPED) CHECK(waited > 0);
}

static void stepped(void) { run(FAKE_STEPPED); }
static void eager(void) { run(FAKE_EAGER); }

#endif

int main(void) {
    FAKE_TEST(stepped);
    FAKE_TEST(eager);
    return check_finish();
}
