/* Every call that manages virtual memory is made to fail in turn, once and for good, amid work that
   makes memory move. A request that fails because of it changes nothing, and the same request is
   met once the fault is over. */
// build: plain -O2 -g
// build: asan -O1 -g -fsanitize=address,undefined
#define GPUPOOL_IMPLEMENTATION
#include "../gpupool.h"
#include "remap_kit.h"

#if CHECK_FAKE

#define BEFORE 40 /* requests until memory moves */
#define AFTER 12  /* requests of which the fault hits one or all */
#define MOST (300 * MIB)
#define LIMIT (400 * MIB) /* enough that nothing is refused without a fault */

static const char *const calls[] = {"cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap",
                                    "cuMemRelease"};

static uint64_t moved, refused, withstood;

/* What a failed request may not change. What it gave back to make room is no one's loss; what the
   driver would not take back it may hold on to, within the limit. */
static void nothing_changed(remap_work *w, const gpupool_stats *before) {
    gpupool_stats after = kit_stats(w->arena);
    CHECK_EQ(after.requested.now, before->requested.now);
    CHECK_EQ(after.granted.now, before->granted.now);
    CHECK_EQ(after.blocks.now, before->blocks.now);
    CHECK_EQ(after.allocs, before->allocs);
    CHECK_EQ(after.failures, before->failures + 1);
    CHECK_EQ(cudaPeekAtLastError(), cudaSuccess);
    remap_agrees(w);
}

static void request(remap_work *w, const char *call, long n, int for_good) {
    remap_block b = remap_next(w);
    gpupool_stats before = kit_stats(w->arena);
    long fired = fake_fail_fired();
    if (remap_take(w, b)) {
        withstood += fake_fail_fired() > fired;
        if (fake_fail_fired() > fired) remap_agrees(w);
        return;
    }
    CHECK(fake_fail_fired() > fired); /* no request fails without a fault */
    CHECK(gpupool_last_error()[0] != 0);
    nothing_changed(w, &before);
    refused++;
    fake_fail_clear();
    if (!CHECK(remap_take(w, b))) printf("  %s\n", gpupool_last_error());
    remap_agrees(w);
    if (for_good) fake_fail_call(call, 1, 1, 0);
    else (void)n;
}

/* Whether the fault was met at all. */
static int one_life(fake_run_mode mode, const char *call, long n, int for_good) {
    remap_work w;
    check_case("mode %d, %s fails, number %ld%s", (int)mode, call, n, for_good ? " and on" : "");
    remap_open(&w, mode, MOST, LIMIT, 5);
    for (int i = 0; i < BEFORE; i++) CHECK(remap_take(&w, remap_next(&w)));
    fake_fail_call(call, n, for_good, 0);
    uint64_t met = refused + withstood;
    for (int i = 0; i < AFTER && !atomic_load(&check_bad); i++) request(&w, call, n, for_good);
    fake_fail_clear();
    moved += remap_close(&w).remaps;
    return refused + withstood > met;
}

static void each_in_turn(fake_run_mode mode) {
    moved = refused = withstood = 0;
    for (size_t i = 0; i < KIT_COUNT(calls); i++)
        for (int for_good = 0; for_good < 2; for_good++)
            for (long n = 1; !atomic_load(&check_bad); n++) {
                if (one_life(mode, calls[i], n, for_good)) continue;
                CHECK(n > 1); /* else the work does not make this call */
                if (getenv("SHOW")) printf("%s %ld\n", calls[i], n);
                break;
            }
    CHECK(moved > 0 && refused > 0);
    if (getenv("SHOW")) printf("moved %lu refused %lu withstood %lu\n", moved, refused, withstood);
}

static void stepped(void) { each_in_turn(FAKE_STEPPED); }
static void eager(void) { each_in_turn(FAKE_EAGER); }

#endif

int main(void) {
    FAKE_TEST(stepped);
    FAKE_TEST(eager);
    return check_finish();
}
