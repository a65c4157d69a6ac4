/* Every CUDA call and every host allocation that the library makes is made to fail in turn, once
   and for good. A call that fails because of it changes nothing; nothing stays behind. */
// build: plain -O1
// build: asan -fsanitize=address,undefined -DEVERY=5
#include "fail_malloc.h"
#include "gpupool.h"
#include "arena_kit.h"

#if CHECK_FAKE

#define SLOTS 8

/* ---- what is made to fail ---- */

typedef struct plan {
    const char *name;
    const char *only;   /* just this call fails, or NULL */
    const char *spared; /* these do not */
    int host;           /* 1: host allocations fail, no CUDA call */
    int device;         /* current while the script runs; the arena is on device 0 */
    int is_swept;       /* test_sweep.c has the same for MAPPED, with more calls */
} plan;

/* The call that gives the caller's capture mode back cannot do so when just this call fails; it is
   spared where the mode is checked, and failed where it is not. So are the calls
   that release, while all others fail for good, and the question that comes before (was the device
   reset?): what a failed creation has got, it could not give back. They are failed one by one
   instead. */
#define TESTS_OWN "fake_kernel,"
#define GIVES_BACK "cudaSetDevice,cuThreadExchangeStreamCaptureMode,"
#define RELEASES "cuCtxPushCurrent,cuMemFree,cuMemFreeHost,cuMemUnmap,cuMemRelease," \
                 "cuMemAddressFree,cuEventDestroy,cuCtxGetId,"

static const plan plans[] = {
    {"any call", NULL, TESTS_OWN GIVES_BACK, 0, 0, 1},
    {"any call, another device current", NULL, TESTS_OWN GIVES_BACK, 0, 1, 0},
    {"the call that pushes the context", "cuCtxPushCurrent", "", 0, 1, 0},
    {"the call that sets the capture mode", "cuThreadExchangeStreamCaptureMode", "", 0, 0, 0},
    {"cuMemFree", "cuMemFree", "", 0, 0, 0},
    {"cuMemFreeHost", "cuMemFreeHost", "", 0, 0, 0},
    {"cuMemUnmap", "cuMemUnmap", "", 0, 0, 0},
    {"cuMemRelease", "cuMemRelease", "", 0, 0, 0},
    {"cuMemAddressFree", "cuMemAddressFree", "", 0, 0, 0},
    {"cuEventDestroy", "cuEventDestroy", "", 0, 0, 0},
    {"host memory", NULL, "", 1, 0, 1},
};

static const plan *now; /* the one that is running */
static int for_good;    /* and whether what has failed once fails ever after */

static void spare(void) {
    char names[512];
    snprintf(names, sizeof names, "%s%s", now->spared, for_good ? RELEASES : "");
    fake_fail_except(names);
}

static void arm(long n) {
    if (now->host) fail_malloc_nth(n, for_good);
    else if (now->only) fake_fail_call(now->only, n, for_good, 0);
    else fake_fail_nth(n, for_good);
    spare();
}

static long fired(void) { return fake_fail_fired() + fail_malloc_fired; }

static void disarm(void) {
    fake_fail_clear();
    fail_malloc_nth(0, 0);
}

/* ---- the script: one public call a step, and the work that a program would queue ---- */

static gpupool_source source;
static gpupool_arena *arena;
static struct { void *block; size_t bytes; int stream; } slot[SLOTS];
static FILE *sink;

static gpupool_result put(int i, void *block, size_t bytes, int stream) {
    slot[i].block = block;
    slot[i].bytes = bytes;
    slot[i].stream = stream;
    if (block) kit_mark(kit_stream[stream], block, bytes, i + 1);
    return kit_why(block);
}

static gpupool_result take(int i, int stream) {
    void *block = slot[i].block;
    if (block && stream == slot[i].stream)
        kit_expect_mark(kit_stream[stream], block, slot[i].bytes, i + 1);
    gpupool_result result = gpupool_free(arena, block, kit_stream[stream]);
    if (result == GPUPOOL_OK) slot[i].block = NULL;
    return result;
}

static gpupool_result alloc_at(int i, size_t bytes, int stream) {
    if (slot[i].block) return GPUPOOL_OK;
    return put(i, gpupool_alloc(arena, bytes, kit_stream[stream]), bytes, stream);
}

static gpupool_result do_create(void) {
    gpupool_arena_config config = kit_config(source);
    config.reserve_bytes = 3 * MIB;
    config.chunk_bytes = 2 * MIB;
    config.limit_text = "50%";
    config.name = "faults";
    gpupool_result result = gpupool_arena_create(&arena, &config);
    CHECK_EQ(result == GPUPOOL_OK, arena != NULL);
    return result;
}

static gpupool_result do_small(void) { return alloc_at(0, 700, 0); }
static gpupool_result do_large(void) { return alloc_at(1, 3 * MIB + 1, 0); }
static gpupool_result do_aligned(void) {
    return put(2, gpupool_alloc_aligned(arena, 100000, 256, kit_stream[1]), 100000, 1);
}
static gpupool_result do_zalloc(void) {
    void *block = gpupool_zalloc(arena, 5000, kit_stream[1]);
    if (block) kit_expect(kit_stream[1], block, 5000, 0);
    return put(3, block, 5000, 1);
}
static gpupool_result do_record(void) {
    if (!slot[0].block) return GPUPOOL_OK;
    return gpupool_record_stream(arena, slot[0].block, kit_stream[2]);
}
static gpupool_result do_free_small(void) { return take(0, 0); }
static gpupool_result do_free_large(void) { return take(1, 0); }
static gpupool_result do_cross(void) { return alloc_at(4, 3 * MIB + 1, 1); }
static gpupool_result do_back(void) { return alloc_at(5, 3 * MIB + 1, 0); }
static gpupool_result do_fit(void) {
    kit_fits(arena, 10 * MIB, NULL);
    return GPUPOOL_OK;
}
static gpupool_result do_available(void) {
    kit_available(arena);
    return gpupool_last_result();
}
static gpupool_result do_free_elsewhere(void) {
    fake_fail_pause(1); /* the calls with which the test orders its own work */
    CHECK_EQ(cudaSetDevice(0), cudaSuccess); /* where the streams are */
    kit_order(kit_stream[1], kit_stream[2]);
    CHECK_EQ(cudaSetDevice(now->device), cudaSuccess);
    fake_fail_pause(0);
    return take(2, 2);
}
static gpupool_result do_limit(void) { return gpupool_set_limit(arena, 64 * MIB); }
static gpupool_result do_in_vain(void) { return alloc_at(6, 80 * MIB, 2); }
static gpupool_result do_too_much(void) { return alloc_at(6, 60 * MIB, 2); }
static gpupool_result do_most(void) { return alloc_at(6, 40 * MIB, 2); }
static gpupool_result do_free_most(void) { return take(6, 2); }
static gpupool_result do_most_elsewhere(void) { return alloc_at(7, 40 * MIB, 3); }
static gpupool_result do_free_last(void) { return take(7, 3); }
static gpupool_result do_trim(void) {
    fake_run_all(); /* else nothing is idle yet */
    size_t before = kit_reserved(arena), released = 0;
    gpupool_result result = gpupool_trim(arena, MIB, &released);
    gpupool_stats after;
    CHECK_EQ(gpupool_get_stats(arena, &after), GPUPOOL_OK);
    CHECK_EQ(released, before - (size_t)after.reserved.now);
    return result;
}
static gpupool_result do_text(void) { return gpupool_set_limit_text(arena, "50%free"); }
static gpupool_result do_low_limit(void) { return gpupool_set_limit(arena, 12 * MIB); }
static gpupool_result do_size(void) {
    if (!slot[3].block) return GPUPOOL_OK;
    kit_size(arena, slot[3].block);
    return gpupool_last_result();
}
static gpupool_result do_wait_stream(void) { return gpupool_wait_stream(arena, kit_stream[1]); }
static gpupool_result do_wait_all(void) { return gpupool_wait_all(arena); }
static gpupool_result do_one_chunk(void) {
    return put(7, kit_alloc_as(arena, 3 * MIB, kit_stream[3], GPUPOOL_ONE_CHUNK), 3 * MIB, 3);
}
static int see(const gpupool_block *block, void *user) {
    *(uint64_t *)user += block->bytes;
    return 0;
}
static gpupool_result do_walk(void) {
    uint64_t bytes = 0;
    gpupool_result result = gpupool_walk_blocks(arena, see, &bytes);
    CHECK(bytes <= kit_reserved(arena)); /* what the driver has not taken back is no memory */
    return result;
}
static gpupool_result do_stats(void) {
    gpupool_stats stats;
    return gpupool_get_stats(arena, &stats);
}
static gpupool_result do_peaks(void) { return gpupool_reset_peaks(arena); }
static gpupool_result do_check(void) { return gpupool_check(arena); }
static gpupool_result do_report(void) { return gpupool_report(arena, sink); }
static gpupool_result do_svg(void) { return gpupool_write_svg(arena, sink); }
static gpupool_result do_retired(void) { return gpupool_retire_stream(arena, kit_stream[2]); }
static gpupool_result do_free_next(void) {
    for (int i = 0; i < SLOTS; i++)
        if (slot[i].block) return take(i, slot[i].stream);
    return GPUPOOL_OK;
}
/* What it could not give back it must keep, so that it can be called again. */
static gpupool_result do_destroy(void) {
    gpupool_result result = gpupool_arena_destroy(arena);
    if (result == GPUPOOL_OK) arena = NULL;
    return result;
}

static const struct { const char *name; gpupool_result (*run)(void); } steps[] = {
    {"create", do_create},       {"alloc small", do_small},
    {"alloc large", do_large},   {"alloc aligned", do_aligned},
    {"zalloc", do_zalloc},       {"record_stream", do_record},
    {"free small", do_free_small},
    {"free large", do_free_large},
    {"alloc across", do_cross},  {"alloc back", do_back},
    {"alloc in one chunk", do_one_chunk},
    {"free it", do_free_last},
    {"would_fit", do_fit},       {"get_available", do_available},
    {"free elsewhere", do_free_elsewhere},
    {"set_limit", do_limit},     {"alloc in vain", do_in_vain},
    {"alloc too much", do_too_much},
    {"alloc most", do_most},     {"free most", do_free_most},
    {"alloc most elsewhere", do_most_elsewhere},
    {"free last", do_free_last}, {"trim", do_trim},
    {"set_limit_text", do_text}, {"set_limit low", do_low_limit},
    {"size", do_size},           {"get_stats", do_stats},
    {"wait_stream", do_wait_stream},
    {"wait_all", do_wait_all},   {"walk", do_walk},
    {"reset_peaks", do_peaks},   {"check", do_check},
    {"report", do_report},       {"write_svg", do_svg},
    {"retire_stream", do_retired},
    {"free one", do_free_next},  {"free another", do_free_next},
    {"free a third", do_free_next},
    {"trim again", do_trim},
    {"destroy", do_destroy},
};

/* ---- what must hold after a fault, whether or not the call could do without what failed ---- */

static void nothing_else_changed(void) {
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal;
    int device = -1;
    CHECK_EQ(cudaPeekAtLastError(), cudaSuccess);
    CHECK_EQ(cudaGetDevice(&device), cudaSuccess);
    if (!now->only) CHECK_EQ(device, now->device);
    CHECK_EQ(cudaSetDevice(now->device), cudaSuccess);
    CHECK_EQ(cudaThreadExchangeStreamCaptureMode(&mode), cudaSuccess);
    if (!now->only) CHECK_EQ(mode, cudaStreamCaptureModeThreadLocal);
    if (arena) CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
}

/* These give idle memory back on their way, as an allocation does before it gives up; what has been
   given back when a fault comes cannot be had again, and is no loss to anyone. */
static int may_give_back(gpupool_result (*step)(void), gpupool_result result) {
    return result == GPUPOOL_E_OUT_OF_MEMORY || step == do_trim || step == do_low_limit ||
           step == do_destroy;
}

/* BYPASS: a block that cannot be zeroed goes back to CUDA; while all of its calls fail it is the
   arena's, for the next request. */
static int may_keep_chunk(gpupool_result (*step)(void)) {
    return source == GPUPOOL_SOURCE_BYPASS && step == do_zalloc && for_good;
}

static void counters_as_before(const gpupool_stats *before, gpupool_result result,
                               gpupool_result (*step)(void)) {
    gpupool_stats after = kit_stats(arena);
    CHECK_EQ(after.requested.now, before->requested.now);
    CHECK_EQ(after.granted.now, before->granted.now);
    CHECK_EQ(after.blocks.now, before->blocks.now);
    CHECK_EQ(after.limit_bytes, before->limit_bytes);
    if (may_keep_chunk(step)) CHECK(after.reserved.now <= before->reserved.now + 8 * KIB);
    else if (may_give_back(step, result)) CHECK(after.reserved.now <= before->reserved.now);
    else CHECK_EQ(after.reserved.now, before->reserved.now);
}

static long run_steps(long n) {
    long all = 0;
    arm(n);
    for (size_t i = 0; i < KIT_COUNT(steps); i++) {
        gpupool_stats before;
        memset(&before, 0, sizeof before);
        if (arena) before = kit_stats(arena);
        check_case("%s fails, number %ld%s: source %d, %s", now->name, n,
                   for_good ? " and on" : "", (int)source, steps[i].name);
        gpupool_result result = steps[i].run();
        long hit = fired();
        if (result && !all && !hit && steps[i].run != do_too_much && steps[i].run != do_in_vain)
            check_fail(__FILE__, __LINE__, "failed without a fault: %s", gpupool_last_error());
        if (hit) {
            disarm();
            if (result) CHECK(gpupool_last_error()[0] != 0);
            nothing_else_changed();
            if (result && arena) counters_as_before(&before, result, steps[i].run);
            if (for_good) arm(1);
        }
        all += hit;
        if (!arena) break; /* it could not be made, or is closed */
    }
    disarm();
    return all;
}

/* With the faults over, all that is left can be given back. */
static void clean_up(void) {
    for (int i = 0; i < SLOTS; i++) {
        if (!arena) break;
        CHECK_RESULT(gpupool_free(arena, slot[i].block, kit_stream[slot[i].stream]), GPUPOOL_OK);
    }
    if (arena) kit_close(arena);
    arena = NULL;
    kit_free_stuck(&kit_custom);
    CHECK_EQ(fail_malloc_live, 0);
}

static long run_script(long n) {
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal;
    kit_prepare();
    fake_mode(FAKE_STEPPED);
    fail_malloc_live = 0;
    memset(slot, 0, sizeof slot);
    CHECK_EQ(cudaSetDevice(now->device), cudaSuccess);
    CHECK_EQ(cudaThreadExchangeStreamCaptureMode(&mode), cudaSuccess);
    long all = run_steps(n);
    clean_up();
    CHECK_EQ(cudaThreadExchangeStreamCaptureMode(&mode), cudaSuccess);
    kit_settle();
    return all;
}

static void fail_each_in_turn(void) {
    long most = 0;
    for (size_t i = 1; i < KIT_SOURCES; i++) { /* the first is AUTO, which is MAPPED */
        source = kit_sources[i].source;
        if (source == GPUPOOL_SOURCE_MAPPED && now->is_swept) continue;
        for (for_good = 0; for_good < 2; for_good++) {
            long n = 1, bad = atomic_load(&check_bad);
            while (run_script(n) && atomic_load(&check_bad) == bad) n += EVERY;
            if (n > most) most = n;
        }
    }
    CHECK(most > 1); /* else nothing was ever made to fail */
}

int main(void) {
    sink = fopen("/dev/null", "w");
    for (size_t i = 0; i < KIT_COUNT(plans); i++) {
        now = &plans[i];
        check_run(now->name, fail_each_in_turn, NULL, NULL);
    }
    fclose(sink);
    return check_finish();
}

#else

int main(void) {
    check_skip("faults", "needs fakecuda's controls");
    return check_finish();
}

#endif
