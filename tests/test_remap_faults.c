/* Every call that manages virtual memory is made to fail in turn, once and for good, amid work that
   makes memory move. A request that fails because of it changes nothing, and the same request is
   met once the fault is over. */
// build: plain -O2 -g
// build: asan -O1 -g -fsanitize=address,undefined
#define GPUPOOL_IMPLEMENTATION
#include "../gpupool.h"
#include "remap_kit.h"

#if CHECK_FAKE

#define BEFORE 30 /* requests until memory moves */
#define AFTER 12  /* requests of which the fault hits one or all */
#define MOST (300 * MIB)
#define LIMIT (330 * MIB) /* enough that nothing is refused without a fault */
#define LOWER (320 * MIB)

/* The call that fails, and one by which the arena would undo what it had done by then. */
static const struct { const char *call, *undo; } faults[] = {
    {"cuMemCreate", NULL},            {"cuMemMap", NULL},
    {"cuMemSetAccess", NULL},         {"cuMemUnmap", NULL},
    {"cuMemRelease", NULL},           {"cuMemMap", "cuMemRelease"},
    {"cuMemMap", "cuMemUnmap"},       {"cuMemSetAccess", "cuMemRelease"},
    {"cuMemSetAccess", "cuMemUnmap"}, {"cuMemCreate", "cuMemUnmap"},
};

typedef struct life {
    remap_work work;
    size_t fault;
    int for_good;
    long met; /* failed calls of CUDA */
} life;

static uint64_t moved, refused, withstood;

static void arm(const life *l, long n) {
    fake_fail_call(faults[l->fault].call, n, l->for_good, 0);
    if (faults[l->fault].undo) fake_fail_call(faults[l->fault].undo, 1, 1, 0);
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
    remap_agrees(&l->work);
}

static int met_a_fault(life *l) {
    long more = fake_fail_fired();
    l->met += more;
    return more != 0;
}

static void request(life *l) {
    remap_work *w = &l->work;
    remap_block b = remap_next(w);
    gpupool_stats before = kit_stats(w->arena);
    int taken = remap_take(w, b), hit = met_a_fault(l);
    if (!hit) CHECK(taken);
    if (!hit) return;
    withstood += (uint64_t)taken;
    refused += (uint64_t)!taken;
    fake_fail_clear();
    if (taken) remap_agrees(w);
    else {
        CHECK(gpupool_last_error()[0] != 0);
        nothing_changed(l, &before);
        if (!CHECK(remap_take(w, b))) printf("  %s\n", gpupool_last_error());
        remap_agrees(w);
    }
    if (l->for_good) arm(l, 1);
}

/* The limit comes down and goes up again, and some is trimmed: that is where pieces go back. */
static gpupool_result lower_limit(life *l) {
    gpupool_result result = gpupool_set_limit(l->work.arena, LOWER);
    if (result == GPUPOOL_OK) l->work.limit = LOWER;
    return result;
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
    remap_agrees(&l->work);
    if (l->for_good) arm(l, 1);
}

/* Whether the fault was met at all. */
static int one_life(fake_run_mode mode, size_t fault, long n, int for_good) {
    life l = {.fault = fault, .for_good = for_good};
    const char *undo = faults[fault].undo;
    check_case("mode %d, %s fails, number %ld%s%s%s", (int)mode, faults[fault].call, n,
               for_good ? " and on" : "", undo ? ", and each " : "", undo ? undo : "");
    remap_open(&l.work, mode, MOST, LIMIT, 5);
    for (int i = 0; i < BEFORE; i++) CHECK(remap_take(&l.work, remap_next(&l.work)));
    arm(&l, n);
    for (int i = 0; i < AFTER && !atomic_load(&check_bad); i++) {
        if (i == AFTER / 3) call(&l, trim);
        if (i == AFTER * 2 / 3) call(&l, lower_limit);
        request(&l);
    }
    call(&l, raise_limit);
    fake_fail_clear();
    moved += remap_close(&l.work).remaps;
    return l.met > 0;
}

static void each_in_turn(fake_run_mode mode) {
    moved = refused = withstood = 0;
    for (size_t i = 0; i < KIT_COUNT(faults); i++)
        for (int for_good = 0; for_good < 2; for_good++) {
            long n = 1;
            while (!atomic_load(&check_bad) && one_life(mode, i, n, for_good)) n++;
            CHECK(n > 1); /* else the work does not make this call */
            if (getenv("SHOW")) printf("%s %ld\n", faults[i].call, n);
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
