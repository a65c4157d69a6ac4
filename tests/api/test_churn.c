/* A long life of an arena, shortened: build/churn is the same at full length. */
// build: plain -O1
#include "gpupool.h"
#include "churn_kit.h"

#if CHECK_FAKE

/* All that a long run is there to meet was met. */
static void run(gpupool_source source, uint64_t ops, uint64_t seed) {
    churn c;
    churn_open(&c, source, seed);
    while (c.ops < ops && !atomic_load(&check_bad)) churn_step(&c);
    gpupool_stats s = churn_close(&c);
    CHECK(s.failures > 0 && c.lowered > 0 && c.trims > 0);
    if (source == GPUPOOL_SOURCE_MAPPED) CHECK(s.stitches > 0);
}

static void mapped(void) { run(GPUPOOL_SOURCE_MAPPED, 1000000, 1); }
static void device(void) { run(GPUPOOL_SOURCE_DEVICE, 500000, 3); }

#endif

int main(void) {
    FAKE_TEST(mapped);
    FAKE_TEST(device);
    return check_finish();
}
