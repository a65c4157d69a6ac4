/* Every call that manages virtual memory is made to fail in turn, once and for good, amid work
   whose blocks are stitched. A request that fails because of it changes nothing, and the same
   request is met once the fault is over. */
// build: plain -O1
// build: asan -fsanitize=address -DAFTER=6 -DEVERY=5
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "stitch_kit.h"

#if CHECK_FAKE

#define BEFORE 20 /* requests until blocks are stitched */
#ifndef AFTER
#define AFTER 12 /* requests of which the fault hits one or all */
#endif
#define MOST (160 * MIB)
#define LIMIT (190 * MIB) /* enough that nothing is refused without a fault */
#define LOWER (175 * MIB)
#define SEEDS 1

/* The call of which one fails, and another that fails whenever it is made: so that what fails is
   also the undoing of what had been done by then. Fresh: after a lull, when memory is got anew. */
static const struct { const char *call, *always; int fresh; } faults[] = {
    {"cuMemCreate", NULL, 0},          {"cuMemMap", NULL, 0},
    {"cuMemSetAccess", NULL, 0},       {"cuMemUnmap", NULL, 0},
    {"cuMemRelease", NULL, 0},         {"cuMemUnmap", "cuMemMap", 0},
    {"cuMemUnmap", "cuMemSetAccess", 0}, {"cuMemUnmap", "cuMemSetAccess", 1},
    {"cuMemRelease", "cuMemMap", 1},   {"cuMemRelease", "cuMemSetAccess", 1},
};
#define FAULTS KIT_COUNT(faults)

typedef struct life {
    stitch_work work;
    size_t fault;
    int for_good;
    long calls;  /* of the one that fails, before the fault */
    long failed; /* which of them failed first; 0: none */
} life;

static uint64_t stitched, refused, withstood, lives[FAULTS];

static void arm(const life *l, long n) {
    fake_fail_call(faults[l->fault].call, n, l->for_good, 0);
    if (faults[l->fault].always) fake_fail_call(faults[l->fault].always, 1, 1, 0);
}

/* What a failed call may not change. What it gave back to make room is no one's loss; what the
   driver would not take back it may hold on to, within the limit. */
static void nothing_changed(life *l, const gpupool_stats *before) {
    gpupool_stats after = kit_stats(l->work.arena);
    CHECK_EQ(after.requested.now, before->requested.now);
    CHECK_EQ(after.granted.now, before->granted.now);
    CHECK_EQ(after.blocks.now, before->blocks.now);
    CHECK_EQ(after.allocs, before->allocs);
    CHECK_EQ(after.limit_bytes, before->limit_bytes);
    CHECK_EQ(cudaPeekAtLastError(), cudaSuccess);
    stitch_agrees(&l->work);
}

static int met_a_fault(life *l) {
    int met = fake_fail_fired() != 0;
    if (met && !l->failed) l->failed = fake_calls(faults[l->fault].call) - l->calls;
    return met;
}

static void request(life *l) {
    stitch_work *w = &l->work;
    stitch_block b = stitch_next(w);
    gpupool_stats before = kit_stats(w->arena);
    int taken = stitch_take(w, b), hit = met_a_fault(l);
    if (!hit) CHECK(taken);
    if (!hit) return;
    withstood += (uint64_t)taken;
    refused += (uint64_t)!taken;
    fake_fail_clear();
    if (taken) stitch_agrees(w);
    else {
        CHECK(gpupool_last_error()[0] != 0);
        nothing_changed(l, &before);
        if (!CHECK(stitch_take(w, b))) printf("  %s\n", gpupool_last_error());
        stitch_agrees(w);
    }
    if (l->for_good) arm(l, 1);
}

/* The limit comes down and goes up again, and some is trimmed: that is where chunks go back. */
static gpupool_result lower_limit(life *l) {
    gpupool_result result = gpupool_set_limit(l->work.arena, LOWER);
    if (result != GPUPOOL_OK) return result;
    size_t reserved = kit_reserved(l->work.arena); /* more than LOWER where blocks keep it */
    l->work.limit = reserved > LOWER ? reserved : LOWER;
    return gpupool_reset_peaks(l->work.arena);
}
static gpupool_result raise_limit(life *l) {
    l->work.limit = LIMIT;
    return gpupool_set_limit(l->work.arena, LIMIT);
}
static gpupool_result trim(life *l) {
    size_t before = kit_reserved(l->work.arena), released = 0;
    gpupool_result result = gpupool_trim(l->work.arena, 0, &released);
    CHECK_EQ(released, before - kit_reserved(l->work.arena));
    return result;
}

static void call(life *l, gpupool_result (*what)(life *)) {
    gpupool_stats before = kit_stats(l->work.arena);
    gpupool_result result = what(l);
    int hit = met_a_fault(l);
    if (!hit) CHECK_RESULT(result, GPUPOOL_OK);
    if (!hit) return;
    fake_fail_clear();
    if (result != GPUPOOL_OK) {
        nothing_changed(l, &before);
        CHECK_RESULT(what(l), GPUPOOL_OK);
    }
    stitch_agrees(&l->work);
    if (l->for_good) arm(l, 1);
}

/* Half of the blocks go, and the memory under them. */
static void lull(life *l) {
    while (l->work.live > MOST / 2) stitch_free(&l->work, stitch_below(&l->work, l->work.count));
    fake_run_all();
    call(l, trim);
}

/* Whether so many calls were made that the fault was met. */
static int one_life(fake_run_mode mode, uint64_t seed, size_t fault, long n, int for_good) {
    life l = {.fault = fault, .for_good = for_good};
    const char *always = faults[fault].always;
    check_case("mode %d, seed %llu, %s fails, number %ld%s%s%s", (int)mode,
               (unsigned long long)seed, faults[fault].call, n, for_good ? " and on" : "",
               always ? ", and each " : "", always ? always : "");
    stitch_open(&l.work, mode, KIT_STREAMS, MOST, LIMIT, 0, seed);
    for (int i = 0; i < BEFORE; i++) CHECK(stitch_take(&l.work, stitch_next(&l.work)));
    if (faults[fault].fresh) lull(&l);
    l.calls = fake_calls(faults[fault].call);
    arm(&l, n);
    for (int i = 0; i < AFTER && !atomic_load(&check_bad); i++) {
        if (i == AFTER / 3) lull(&l);
        if (i == AFTER * 2 / 3) call(&l, lower_limit);
        request(&l);
    }
    call(&l, raise_limit);
    fake_fail_clear();
    stitched += stitch_close(&l.work).stitches;
    return l.failed >= n;
}

static void each_in_turn(fake_run_mode mode) {
    stitched = refused = withstood = 0;
    memset(lives, 0, sizeof lives);
    for (size_t i = 0; i < FAULTS; i++) {
        for (uint64_t run = 0; run < 2 * SEEDS; run++) {
            long n = 1;
            while (!atomic_load(&check_bad) && one_life(mode, 1 + run / 2, i, n, (int)(run % 2)))
                n += EVERY;
            lives[i] += (uint64_t)n - 1;
        }
        CHECK(lives[i] > 0); /* else the work does not make this call */
    }
    CHECK(stitched > 0 && refused > 0 && withstood > 0);
}

static void stepped(void) { each_in_turn(FAKE_STEPPED); }
static void eager(void) { each_in_turn(FAKE_EAGER); }

#endif

int main(void) {
    FAKE_TEST(stepped);
    FAKE_TEST(eager);
    return check_finish();
}
