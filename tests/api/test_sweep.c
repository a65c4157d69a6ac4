/* Every public function is called in one program, which is run for each CUDA call and each host
   allocation that it makes: with that one made to fail, and with all from there on. A call that
   fails has changed nothing, and succeeds when it is made again; whatever fails, nothing stays
   behind. tests/gates/hygiene_test.sh compares the functions with those of the header. */
// build: plain -O1
// build: asan -fsanitize=address,undefined -DEVERY=7
#define _DEFAULT_SOURCE
#include <malloc.h>

#include "fail_malloc.h"
#include "gpupool.h"
#include "ring_kit.h"

#if CHECK_FAKE

#include "sweep_arena.h"
#include "sweep_ring.h"
#include "sweep_shape.h"

#ifndef EVERY
#define EVERY 1 /* so many calls are gone on by */
#endif

#define LOOKS 15 /* of so many runs one looks at everything after each call, the others after the
                    first call in which something failed, and at the end: that takes its time */

/* ---- the program ---- */

/* What a call that makes something has got before it fails, it cannot give back while every release
   fails; and a stream of gpupool's own that stays is lost. */
#define MAKES "cuCtxPushCurrent,cuMemFree,cuMemFreeHost,cuMemUnmap,cuMemRelease,cuMemAddressFree," \
              "cuEventDestroy,cuStreamDestroy,cuCtxGetId,"

typedef struct step {
    const char *name;
    gpupool_result (*run)(void);
    const char *spared;      /* these calls do not fail for good */
    gpupool_result expected; /* when nothing fails */
} step;

/* What copies the content of sleeping memory cannot tell whether a copy has ended, when all waits
   fail. */
#define WAITS "cuCtxRecordEvent,cuEventSynchronize,cuStreamSynchronize,"

#define STEP(run) {#run, run, "", GPUPOOL_OK}
#define MAKING(run) {#run, run, MAKES, GPUPOOL_OK}
#define COPYING(run) {#run, run, MAKES WAITS, GPUPOOL_OK}
#define LACKING(run) {#run, run, "", GPUPOOL_E_OUT_OF_MEMORY}

static const step steps[] = {
    STEP(words), MAKING(create), MAKING(create_ring), MAKING(make_tag), STEP(set_tag_limits),
    STEP(begin_trace), STEP(begin_phase), STEP(alloc_small), STEP(alloc_large),
    STEP(alloc_aligned), STEP(zalloc), STEP(alloc_tagged), STEP(alloc_rough), STEP(tag_stats),
    STEP(get_block), STEP(walk_blocks), STEP(walk_chunks),
    STEP(work_runs), STEP(upload), STEP(download), STEP(upload_file), STEP(upload_list),
    STEP(transfer), STEP(wait_for_ticket), STEP(acquire_span), STEP(upload_span),
    STEP(acquire_span), STEP(cancel_span), STEP(ring_stats), STEP(check_ring), STEP(trim_ring),
    STEP(work_queues), STEP(free_small), STEP(free_rough), STEP(free_large), STEP(alloc_across),
    STEP(record_stream), STEP(free_across), STEP(free_aligned), STEP(wait_stream), STEP(wait_all),
    STEP(begin_capture), STEP(alloc_kept), STEP(alloc_rough_in_scope), STEP(free_rough_in_scope),
    STEP(end_capture), STEP(release_capture), STEP(alloc_exportable), STEP(export_block),
    MAKING(import_block), MAKING(import_close), STEP(export_close), STEP(free_exported),
    STEP(allow_peer), STEP(alloc_large), STEP(free_large), STEP(disallow_peer),
    STEP(work_runs), COPYING(sleep_tag), COPYING(wake_tag), COPYING(sleep_all), COPYING(wake_all),
    STEP(work_queues), STEP(free_tagged), STEP(alloc_piece_0), STEP(alloc_piece_1),
    STEP(alloc_piece_2), STEP(alloc_piece_3), STEP(alloc_piece_4), STEP(alloc_piece_5),
    STEP(free_piece_0), STEP(free_piece_2), STEP(free_piece_4), STEP(set_limit), STEP(get_limit),
    STEP(alloc_stitched), LACKING(alloc_in_vain), STEP(last_verdict), STEP(would_fit),
    LACKING(would_not_fit), STEP(get_available), STEP(report), STEP(write_json), STEP(write_svg),
    STEP(write_snapshot), STEP(free_stitched), STEP(free_piece_1), STEP(free_piece_3),
    STEP(free_piece_5), STEP(trim), STEP(set_limit_text), STEP(get_stats), STEP(reset_peaks),
    STEP(end_phase), STEP(check), STEP(end_trace), STEP(retire_stream), STEP(destroy_stream),
    STEP(free_zeroed),
    STEP(work_runs), STEP(destroy_ring), STEP(work_queues), STEP(destroy),
    MAKING(get_default), STEP(find_default), STEP(cuda_malloc), STEP(cuda_malloc_async),
    STEP(cuda_free_async), STEP(cuda_free), MAKING(renew_default), STEP(cuda_malloc),
    STEP(cuda_free), STEP(destroy_default),
};

/* ---- what fails ---- */

/* The call that gives this thread's mode of capture back cannot do so when it fails: it is spared
   where the mode is compared, and has a plan of its own. */
#define GIVES_BACK "cuThreadExchangeStreamCaptureMode"

typedef struct plan {
    const char *name;
    const char *only; /* just this call fails, or NULL: each does */
    int is_host;      /* host allocations fail, and no CUDA call */
} plan;

static const plan plans[] = {
    {"CUDA calls", NULL, 0},
    {"the call that sets the mode of capture", GIVES_BACK, 0},
    {"host memory", NULL, 1},
};

static const plan *now;

static void spare(const char *names) {
    char all[512];
    snprintf(all, sizeof all, "%s%s", for_good ? names : "", now->only ? "" : GIVES_BACK);
    fake_fail_except(all);
}

static void arm(long n) {
    if (now->is_host) fail_malloc_nth(n, for_good);
    else if (now->only) fake_fail_call(now->only, n, for_good, 0);
    else fake_fail_nth(n, for_good);
}

static void disarm(void) {
    fake_fail_clear();
    fail_malloc_nth(0, 0);
}

/* ---- what must hold after a call in which something failed ---- */

static void nothing_else_changed(void) {
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
    int device = -1;
    CHECK_EQ(cudaPeekAtLastError(), cudaSuccess);
    CHECK_EQ(cudaGetDevice(&device), cudaSuccess);
    CHECK_EQ(device, 0);
    CHECK_EQ(cudaThreadExchangeStreamCaptureMode(&mode), cudaSuccess);
    if (!now->only) CHECK_EQ(mode, cudaStreamCaptureModeGlobal);
}

static void all_is_sound(void) {
    if (arena) CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    if (shared && !is_stale) CHECK_RESULT(gpupool_check(shared), GPUPOOL_OK);
    if (ring) CHECK_RESULT(gpupool_ring_check(ring), GPUPOOL_OK);
}

static gpupool_stats stats_of(gpupool_arena *of) {
    gpupool_stats none;
    memset(&none, 0, sizeof none);
    return of ? kit_stats(of) : none;
}

/* When calls fail for good, the arena may sleep, or have blocks that earlier steps did not free. */
static void is_proper(gpupool_result result, const step *s) {
    CHECK(gpupool_last_error()[0] != 0);
    if (result == GPUPOOL_E_ASLEEP) CHECK(is_asleep && for_good);
    else if (result == GPUPOOL_E_IN_USE) CHECK(s->run == destroy && was_left_out);
    else if (now->is_host) CHECK_RESULT(result, GPUPOOL_E_HOST_MEMORY);
    else if (result != GPUPOOL_E_OUT_OF_MEMORY) CHECK_RESULT(result, GPUPOOL_E_CUDA);
}

/* Idle memory that was given back on the way is no loss to anyone. */
static void is_as_before(const gpupool_stats *before, gpupool_arena *of) {
    gpupool_stats after = stats_of(of);
    CHECK_EQ(after.requested.now, before->requested.now);
    CHECK_EQ(after.granted.now, before->granted.now);
    CHECK_EQ(after.blocks.now, before->blocks.now);
    CHECK_EQ(after.allocs - after.frees, before->allocs - before->frees);
    CHECK_EQ(after.limit_bytes, before->limit_bytes);
    CHECK_EQ(after.asleep_bytes, before->asleep_bytes);
    /* what the driver would not take back the arena holds on to */
    if (!for_good) CHECK(after.reserved.now <= before->reserved.now);
}

/* Returns how many calls failed in the step. looks: every invariant is checked after a failure. */
static long one_step(const step *s, int looks) {
    int may_fail = for_good || !fired();
    gpupool_stats before = stats_of(may_fail ? arena : NULL);
    gpupool_stats shared_before = stats_of(may_fail && !is_stale ? shared : NULL);
    long failed = fired();
    spare(s->spared);
    gpupool_result result = s->run();
    failed = fired() - failed;
    own_begin();
    if (result != s->expected && !failed && !was_left_out)
        check_fail(__FILE__, __LINE__, "%s", gpupool_last_error());
    if (failed) nothing_else_changed();
    if (failed && looks) all_is_sound();
    if (failed && result != s->expected) {
        is_proper(result, s);
        is_as_before(&before, arena);
        if (!is_stale) is_as_before(&shared_before, shared);
        if (!for_good) CHECK_RESULT(s->run(), s->expected);
    }
    if (!for_good) CHECK(!was_left_out);
    own_end();
    return failed;
}

/* With the faults over, all that is left can be given back. */
static void clean_up(void) {
    work_runs();
    if (ticket) CHECK_RESULT(wait_for_ticket(), GPUPOOL_OK);
    if (is_asleep) CHECK_RESULT(wake_all(), GPUPOOL_OK);
    if (scope) CHECK_RESULT(release_capture(), GPUPOOL_OK);
    if (imported.memory) CHECK_RESULT(import_close(), GPUPOOL_OK);
    if (is_exported) CHECK_RESULT(export_close(), GPUPOOL_OK);
    if (span.memory) CHECK_RESULT(cancel_span(), GPUPOOL_OK);
    for (int i = 0; i < BLOCKS; i++)
        if (blocks[i].at) CHECK_RESULT(put(i), GPUPOOL_OK);
    if (arena) CHECK_RESULT(destroy(), GPUPOOL_OK);
    if (ring) CHECK_RESULT(destroy_ring(), GPUPOOL_OK);
    if (plain) CHECK_RESULT(cuda_free(), GPUPOOL_OK);
    if (ordered) CHECK_RESULT(cuda_free_async(), GPUPOOL_OK);
    if (shared) CHECK_RESULT(destroy_default(), GPUPOOL_OK);
    CHECK_EQ(fail_malloc_live, 0);
}

static void prepare(void) {
    kit_prepare();
    work_queues();
    fail_malloc_live = 0;
    memset(blocks, 0, sizeof blocks);
    arena = shared = NULL;
    ring = NULL;
    tag = was_left_out = is_asleep = is_exported = has_peer = is_in_phase = is_reset = is_stale = 0;
}

/* Returns how many calls failed: 0 where the program makes fewer than n. */
static long run_program(long n) {
    long failed = 0;
    prepare();
    arm(n);
    for (size_t i = 0; i < KIT_COUNT(steps); i++) {
        check_case("%s, number %ld%s, %s", now->name, n, for_good ? " and on" : "", steps[i].name);
        failed += one_step(&steps[i], !failed || n % LOOKS == 1);
    }
    check_case("%s, number %ld%s, the end", now->name, n, for_good ? " and on" : "");
    disarm();
    all_is_sound();
    kit_capture_globally();
    clean_up();
    kit_settle();
    return failed;
}

static void each_in_turn(void) {
    for (for_good = 0; for_good < 2; for_good++) {
        long n = 1, bad = atomic_load(&check_bad);
        while (run_program(n) && atomic_load(&check_bad) == bad) n += EVERY;
        CHECK(n > 20); /* else hardly anything was made to fail */
    }
}

int main(void) {
    mallopt(M_MMAP_THRESHOLD, (int)MIB); /* else each of fakecuda's tables is zeroed by a memset */
    for (size_t i = 0; i < SENT; i++) sent[i] = kit_byte(5, i);
    trace = tmpfile();
    source = tmpfile();
    CHECK_EQ(fwrite(sent, 1, SENT, source), SENT);
    CHECK_EQ(fflush(source), 0);
    for (size_t i = 0; i < KIT_COUNT(plans); i++) {
        now = &plans[i];
        check_run(now->name, each_in_turn, NULL, NULL);
    }
    fclose(source);
    fclose(trace);
    return check_finish();
}

#else

int main(void) {
    check_skip("sweep", "needs fakecuda's controls");
    return check_finish();
}

#endif
