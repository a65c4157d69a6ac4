/* Stitched blocks of parts that sleep and wake: live ones, those that a graph keeps, and spoilt
   ones; and calls that fail while they go and come. */
// build: plain
// build: check2 -O1 -DGPUPOOL_CHECK=2
// build: asan -fsanitize=address,undefined
#include "gpupool.h"
#include "arena_kit.h"

#if CHECK_FAKE

enum { PARTS = 3, LAID = 8, STITCHED = LAID / 2 }; /* part 0: what has no tag */
#define STRIPE (2 * MIB)

static gpupool_arena *arena;
static char *stripe[PARTS][LAID], *stitched[PARTS];

static char *take(size_t bytes, int tag, int stream) {
    gpupool_request request = kit_request(bytes, kit_stream[stream], 0);
    request.tag = tag;
    return (char *)gpupool_alloc_request(arena, &request);
}

static void put(void *block, int stream) {
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[stream]), GPUPOOL_OK);
}

/* Every other chunk of each part is free, and the arena may not grow. */
static void lay(const gpupool_arena_config *more) {
    gpupool_arena_config config = *more;
    gpupool_tag_config can_sleep;
    int tag;
    memset(&can_sleep, 0, sizeof can_sleep);
    can_sleep.can_sleep = 1;
    config.chunk_bytes = STRIPE;
    config.limit_bytes = PARTS * LAID * STRIPE;
    arena = kit_create(&config);
    for (int i = 1; i < PARTS; i++)
        CHECK_RESULT(gpupool_tag(arena, i == 1 ? "a" : "b", &can_sleep, &tag), GPUPOOL_OK);
    for (int part = 0; part < PARTS; part++)
        for (int i = 0; i < LAID; i++) {
            stripe[part][i] = take(STRIPE, part, 0);
            kit_mark(kit_stream[0], stripe[part][i], STRIPE, part * LAID + i + 1);
        }
    for (int part = 0; part < PARTS; part++)
        for (int i = 0; i < LAID; i += 2) put(stripe[part][i], 0);
    CHECK_RESULT(gpupool_wait_all(arena), GPUPOOL_OK);
}

static void lay_plainly(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
    lay(&config);
}

/* A block over all free chunks of the part. */
static void stitch(int part, int stream) {
    gpupool_stats before = kit_stats(arena), after;
    stitched[part] = take(STITCHED * STRIPE, part, stream);
    after = kit_stats(arena);
    CHECK_EQ(after.stitches + after.stitches_reused, before.stitches + before.stitches_reused + 1);
    kit_mark(kit_stream[stream], stitched[part], STITCHED * STRIPE, 100 + part);
}

static void expect_stripes(int part) {
    for (int i = 1; i < LAID; i += 2)
        kit_expect_mark(kit_stream[0], stripe[part][i], STRIPE, part * LAID + i + 1);
}

static void expect(int part) {
    expect_stripes(part);
    kit_expect_mark(kit_stream[0], stitched[part], STITCHED * STRIPE, 100 + part);
    CHECK_EQ(cudaStreamSynchronize(kit_stream[0]), cudaSuccess);
}

static void close_arena(void) {
    for (int part = 0; part < PARTS; part++) {
        for (int i = 1; i < LAID; i += 2) put(stripe[part][i], 0);
        if (stitched[part]) put(stitched[part], 0);
        stitched[part] = NULL;
    }
    kit_close(arena);
    CHECK_EQ(fake_mappings(), 0);
    CHECK_EQ(fake_used_bytes(0), 0);
}

static gpupool_result sleep_part(int part, gpupool_content content) {
    return gpupool_sleep(arena, part ? part : GPUPOOL_ALL, content, NULL);
}

static gpupool_result wake_part(int part) {
    return gpupool_wake(arena, part ? part : GPUPOOL_ALL, NULL);
}

/* ---- waking ---- */

/* Each mapping fails in turn, and can only be undone later; then that fails, too. */
static void maps_and_unmaps_that_fail_at_waking(void) {
    gpupool_result result = GPUPOOL_E_CUDA;
    for (long n = 1; result != GPUPOOL_OK; n++) {
        check_case("mapping %ld", n);
        lay_plainly();
        stitch(1, 0);
        CHECK_RESULT(sleep_part(1, GPUPOOL_KEEP), GPUPOOL_OK);
        fake_fail_call("cuMemMap", n, 0, 0);
        fake_fail_call("cuMemUnmap", 1, 1, 0);
        result = wake_part(1);
        CHECK_EQ(result == GPUPOOL_OK, fake_fail_fired() == 0);
        for (int again = 0; again < 2 && result != GPUPOOL_OK; again++) {
            fake_fail_clear();
            CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
            CHECK_RESULT(kit_why(take(STRIPE, 1, 0)), GPUPOOL_E_ASLEEP);
            if (!again) fake_fail_call("cuMemUnmap", 1, 0, 0);
            if (wake_part(1) == GPUPOOL_OK) break;
            CHECK_EQ(fake_fail_fired(), 1);
        }
        fake_fail_clear();
        expect(1);
        close_arena();
    }
}

/* A block that is freed asleep leaves nothing mapped, whatever failed before. */
static void freed_after(const char *failed, int n) {
    check_case("after %s %d", failed, n);
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    put(stitched[1], 0);
    stitched[1] = NULL;
    for (int unmaps_fail = 1; unmaps_fail >= 0; unmaps_fail--) {
        if (unmaps_fail) fake_fail_call("cuMemUnmap", 1, 0, 0);
        fake_fail_call("cuMemSetAccess", 1, 0, 0);
        CHECK_RESULT(wake_part(1), GPUPOOL_E_CUDA);
        CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
        fake_fail_clear();
    }
    CHECK_RESULT(wake_part(1), GPUPOOL_OK);
    CHECK_EQ(fake_used_bytes(0), kit_stats(arena).reserved.now);
    stitched[1] = take(STITCHED * STRIPE, 1, 0);
    kit_mark(kit_stream[0], stitched[1], STITCHED * STRIPE, 101);
    expect(1);
    close_arena();
}

/* At waking, the block was mapped in part. */
static void freed_after_a_waking_that_failed(void) {
    for (int n = 1; n <= STITCHED; n++) {
        lay_plainly();
        stitch(1, 0);
        CHECK_RESULT(sleep_part(1, GPUPOOL_KEEP), GPUPOOL_OK);
        fake_fail_call("cuMemMap", LAID + n, 0, 0);
        fake_fail_call("cuMemUnmap", 1, 1, 0);
        CHECK_RESULT(wake_part(1), GPUPOOL_E_CUDA);
        fake_fail_clear();
        freed_after("mapping", n);
    }
}

/* What a waking that failed has left mapped is no memory beside what the arena has: either it goes
   before the chunks under it, or they stay with it. */
static void what_is_left_mapped_is_counted(void) {
    for (int unmaps_fail = 0; unmaps_fail < 2; unmaps_fail++)
        for (int freed = 0; freed < 2; freed++) {
            check_case("unmaps fail %d, freed %d", unmaps_fail, freed);
            lay_plainly();
            for (int part = 0; part < PARTS; part++) stitch(part, 0);
            CHECK_RESULT(sleep_part(1, GPUPOOL_KEEP), GPUPOOL_OK);
            fake_fail_call("cuMemMap", LAID + 2, 0, 0);
            fake_fail_call("cuMemUnmap", 1, unmaps_fail, 0);
            CHECK_RESULT(wake_part(1), GPUPOOL_E_CUDA);
            CHECK_EQ(kit_reserved(arena), fake_used_bytes(0));
            if (freed) put(stitched[1], 0);
            if (freed) stitched[1] = NULL;
            if (freed && unmaps_fail) CHECK_RESULT(wake_part(1), GPUPOOL_E_CUDA);
            CHECK_EQ(kit_reserved(arena), fake_used_bytes(0));
            fake_fail_clear();
            CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
            /* the device has just what waking needs */
            fake_device_memory(0, (size_t)(PARTS * LAID - (freed ? STITCHED : 0)) * STRIPE);
            CHECK_RESULT(wake_part(1), GPUPOOL_OK);
            CHECK_EQ(kit_reserved(arena), fake_used_bytes(0));
            if (freed) expect_stripes(1);
            else expect(1);
            close_arena();
            fake_device_memory(0, (size_t)140 << 30);
        }
}

/* A waking that fails at the first of two stitches finds nothing to unmap of the second. */
static void the_second_stitch_has_nothing_mapped(void) {
    size_t asleep;
    void *two[2];
    lay_plainly();
    for (int i = 0; i < 2; i++) two[i] = take(STITCHED / 2 * STRIPE, 1, 0);
    CHECK_EQ(kit_stats(arena).stitches, 2);
    CHECK_RESULT(sleep_part(1, GPUPOOL_KEEP), GPUPOOL_OK);
    asleep = kit_reserved(arena);
    fake_fail_call("cuMemMap", LAID + 2, 0, 0);
    CHECK_RESULT(wake_part(1), GPUPOOL_E_CUDA);
    CHECK_EQ(kit_reserved(arena), asleep);
    CHECK_EQ(fake_used_bytes(0), asleep);
    CHECK_RESULT(wake_part(1), GPUPOOL_OK);
    for (int i = 0; i < 2; i++) put(two[i], 0);
    close_arena();
}

/* And then the device is reset: what was mapped in part goes once, though the arena's end fails. */
static void a_reset_after_a_waking_that_failed(void) {
    lay_plainly();
    stitch(1, 0);
    CHECK_RESULT(sleep_part(1, GPUPOOL_DISCARD), GPUPOOL_OK);
    fake_fail_call("cuMemMap", LAID + 2, 0, 0);
    fake_fail_call("cuMemUnmap", 1, 1, 0);
    CHECK_RESULT(wake_part(1), GPUPOOL_E_CUDA);
    fake_fail_clear();
    CHECK_EQ(cudaDeviceReset(), cudaSuccess);
    for (int i = 0; i < KIT_STREAMS; i++) kit_stream[i] = NULL;
    fake_fail_call("cuMemRelease", 1, 0, 0);
    CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_E_CUDA);
    fake_fail_clear();
    CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_OK);
    CHECK_EQ(fake_mappings(), 0);
    CHECK_EQ(fake_used_bytes(0), 0);
    stitched[1] = NULL;
}

/* At falling asleep, the block or a chunk stayed mapped. */
static void freed_after_a_sleep_that_failed(void) {
    for (int n = 1; n <= 1 + LAID; n++) {
        lay_plainly();
        stitch(1, 0);
        fake_fail_call("cuMemUnmap", n, 0, 0);
        fake_fail_call("cuMemSetAccess", 1, 1, 0);
        CHECK_RESULT(sleep_part(1, GPUPOOL_KEEP), GPUPOOL_E_CUDA);
        fake_fail_clear();
        freed_after("unmapping", n);
    }
}

/* ---- falling asleep ---- */

/* The device does not let go of something: all is awake as before. */
static void unmaps_that_fail_at_falling_asleep(void) {
    for (int idle = 0; idle < 2; idle++)
        for (long n = 1, fired = 1; fired; n++) {
            check_case("idle %d, unmapping %ld", idle, n);
            lay_plainly();
            for (int part = 0; part < PARTS; part++) stitch(part, 0);
            for (int part = 0; idle && part < PARTS; part++) put(stitched[part], 0);
            CHECK_RESULT(gpupool_wait_all(arena), GPUPOOL_OK);
            fake_fail_call("cuMemUnmap", n, 0, 0);
            gpupool_result result = sleep_part(0, GPUPOOL_KEEP);
            fired = fake_fail_fired();
            fake_fail_clear();
            CHECK_RESULT(result, fired ? GPUPOOL_E_CUDA : GPUPOOL_OK);
            CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
            if (!fired) CHECK_RESULT(wake_part(0), GPUPOOL_OK);
            for (int part = 0; part < PARTS; part++) {
                if (idle) stitched[part] = take(STITCHED * STRIPE, part, 1);
                if (idle) CHECK(stitched[part] != NULL);
                else expect(part);
            }
            close_arena();
        }
}

/* It maps nothing again either, so all sleeps: what was unmapped is no memory beside what the arena
   has, and the first failure is told. */
static void what_cannot_be_mapped_again_goes(void) {
    for (int n = 1; n <= LAID; n++) {
        check_case("chunk %d", n);
        lay_plainly();
        stitch(1, 0);
        fake_fail_call("cuMemUnmap", 1 + n, 0, 0);
        fake_fail_call("cuMemMap", 1, 1, 0);
        fake_fail_call("cuMemSetAccess", 1, 1, 0);
        fake_fail_call("cuMemRelease", 1, 0, 0);
        CHECK_RESULT(sleep_part(1, GPUPOOL_KEEP), GPUPOOL_E_CUDA);
        CHECK(strstr(gpupool_last_error(), "cuMemUnmap") != NULL);
        fake_fail_clear();
        CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
        /* all but the handle that the driver has refused */
        CHECK_EQ(fake_used_bytes(0), kit_reserved(arena) + (n > 1 ? STRIPE : 0));
        CHECK_RESULT(wake_part(1), GPUPOOL_OK);
        expect(1);
        close_arena();
    }
}

/* Another part's block is taken and freed while the device lets go of an idle one. */
static void take_and_put(void *unused) {
    (void)unused;
    stitched[0] = take(STITCHED * STRIPE, 0, 0);
    put(stitched[0], 0);
    stitched[0] = NULL;
}

/* No idle one is left mapped, whatever others use meanwhile: it would keep the memory of chunks
   that sleep. */
static void idle_ones_of_others_come_and_go(void) {
    char *half[2];
    uint64_t reused;
    lay_plainly();
    for (int i = 0; i < 2; i++) half[i] = take(STITCHED / 2 * STRIPE, 1, 0);
    stitch(0, 0);
    put(half[0], 0);
    CHECK_RESULT(gpupool_wait_all(arena), GPUPOOL_OK); /* idle, in the order of freeing */
    put(stitched[0], 0);
    stitched[0] = NULL;
    put(half[1], 0);
    CHECK_RESULT(gpupool_wait_all(arena), GPUPOOL_OK);
    reused = kit_stats(arena).stitches_reused;
    fake_before_call("cuMemUnmap", 1, take_and_put, NULL);
    CHECK_RESULT(sleep_part(1, GPUPOOL_DISCARD), GPUPOOL_OK);
    CHECK_EQ(kit_stats(arena).stitches_reused, reused + 1);
    CHECK_EQ(fake_used_bytes(0), kit_stats(arena).reserved.now);
    CHECK_RESULT(wake_part(1), GPUPOOL_OK);
    close_arena();
}

/* A handle that the driver keeps is the chunk's at waking, whatever sleeps meanwhile. */
static void handles_that_are_not_taken_back(void) {
    lay_plainly();
    for (int part = 1; part < PARTS; part++) stitch(part, 0);
    fake_fail_call("cuMemRelease", 1, 1, 0);
    CHECK_RESULT(sleep_part(1, GPUPOOL_KEEP), GPUPOOL_OK);
    fake_fail_clear();
    size_t used = fake_used_bytes(0);
    CHECK_RESULT(sleep_part(2, GPUPOOL_KEEP), GPUPOOL_OK);
    CHECK_EQ(used - fake_used_bytes(0), LAID * STRIPE); /* those of the second alone */
    for (int part = 1; part < PARTS; part++) CHECK_RESULT(wake_part(part), GPUPOOL_OK);
    for (int part = 1; part < PARTS; part++) expect(part);
    close_arena();
}

/* Also where nothing in the chunk is live: then it counts against the limit, too. A call that fails
   for that gives it back. */
static void handles_of_free_chunks(void) {
    size_t limit;
    lay_plainly();
    fake_fail_call("cuMemRelease", 1, 1, 0);
    CHECK_RESULT(sleep_part(1, GPUPOOL_KEEP), GPUPOOL_OK);
    fake_fail_clear();
    CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
    limit = kit_reserved(arena) + (LAID - STITCHED) * STRIPE; /* just what is live */
    CHECK_RESULT(gpupool_set_limit(arena, limit), GPUPOOL_OK);
    CHECK_RESULT(wake_part(1), GPUPOOL_E_OUT_OF_MEMORY);
    CHECK_RESULT(wake_part(1), GPUPOOL_OK);
    CHECK_EQ(kit_reserved(arena), limit);
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    expect_stripes(1);
    close_arena();
}

/* A chunk that trim could not give back counts as reserved, though everything sleeps. */
static void a_chunk_that_was_stuck(void) {
    lay_plainly();
    fake_fail_call("cuMemRelease", 1, 1, 0);
    CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_E_CUDA);
    fake_fail_clear();
    CHECK_RESULT(sleep_part(0, GPUPOOL_KEEP), GPUPOOL_OK);
    CHECK_EQ(kit_reserved(arena), fake_used_bytes(0));
    CHECK(kit_reserved(arena) > 0);
    CHECK_RESULT(wake_part(0), GPUPOOL_OK);
    for (int part = 0; part < PARTS; part++) expect_stripes(part);
    close_arena();
}

/* Captured outside of a scope: the arena has seen it, and the capture goes on. */
static void not_while_a_stream_captures(void) {
    cudaGraph_t graph = NULL;
    lay_plainly();
    CHECK_EQ(cudaStreamBeginCapture(kit_stream[1], cudaStreamCaptureModeRelaxed), cudaSuccess);
    put(take(STRIPE, 0, 1), 1); /* which would record an event */
    CHECK_RESULT(sleep_part(0, GPUPOOL_DISCARD), GPUPOOL_E_CAPTURING);
    CHECK_EQ(cudaStreamEndCapture(kit_stream[1], &graph), cudaSuccess);
    CHECK_EQ(cudaGraphDestroy(graph), cudaSuccess);
    put(take(STRIPE, 0, 1), 1); /* CUDA is asked again */
    CHECK_RESULT(sleep_part(1, GPUPOOL_DISCARD), GPUPOOL_OK);
    CHECK_EQ(cudaStreamBeginCapture(kit_stream[1], cudaStreamCaptureModeRelaxed), cudaSuccess);
    CHECK_RESULT(gpupool_record_stream(arena, stripe[0][1], kit_stream[1]), GPUPOOL_E_CAPTURING);
    CHECK_RESULT(sleep_part(1, GPUPOOL_DISCARD), GPUPOOL_E_CAPTURING); /* and not E_ASLEEP */
    CHECK_EQ(cudaStreamEndCapture(kit_stream[1], &graph), cudaSuccess);
    CHECK_EQ(cudaGraphDestroy(graph), cudaSuccess);
    CHECK_RESULT(wake_part(1), GPUPOOL_OK);
    close_arena();
}

/* A stitch that could be neither mapped nor unmapped is no block, and another part sleeps past
   it. */
static void beside_a_spoilt_stitch(void) {
    lay_plainly();
    stitch(1, 0);
    fake_fail_call("cuMemMap", 2, 0, 0);
    fake_fail_call("cuMemUnmap", 1, 1, 0);
    CHECK(take(STITCHED * STRIPE, 0, 0) == NULL);
    fake_fail_clear();
    CHECK_RESULT(sleep_part(1, GPUPOOL_KEEP), GPUPOOL_OK);
    CHECK_RESULT(wake_part(1), GPUPOOL_OK);
    expect(1);
    stitch(0, 0);
    expect(0);
    close_arena();
}

/* The idle stitches of a part that stays awake are there to be used again. */
static void beside_idle_stitches(void) {
    lay_plainly();
    for (int part = 0; part < 2; part++) {
        stitch(part, 0);
        put(stitched[part], 0);
        stitched[part] = NULL;
    }
    uint64_t made = kit_stats(arena).stitches;
    CHECK_RESULT(sleep_part(1, GPUPOOL_KEEP), GPUPOOL_OK);
    stitch(0, 0);
    CHECK_EQ(kit_stats(arena).stitches, made);
    CHECK_RESULT(wake_part(1), GPUPOOL_OK);
    expect(0);
    expect_stripes(1);
    close_arena();
}

/* An arena ends asleep if the device can be waited for; else it sleeps on. */
static void an_end_that_fails(void) {
    lay_plainly();
    for (int part = 0; part < PARTS; part++)
        for (int i = 1; i < LAID; i += 2) put(stripe[part][i], 0);
    CHECK_RESULT(sleep_part(0, GPUPOOL_DISCARD), GPUPOOL_OK);
    fake_fail_call("cuMemAlloc", 1, 1, 0); /* the wait */
    fake_fail_call("cuMemHostAlloc", 1, 1, CUDA_ERROR_LAUNCH_FAILED);
    CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_E_CUDA);
    fake_fail_clear();
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    CHECK_RESULT(kit_why(take(STRIPE, 0, 0)), GPUPOOL_E_ASLEEP);
    kit_close(arena);
}

/* Next, content is copied: down, as the part falls asleep, or up, as it wakes. */
static void lay_before_copies(int waking) {
    check_case("waking %d", waking);
    lay_plainly();
    stitch(1, 0);
    if (waking) CHECK_RESULT(sleep_part(1, GPUPOOL_KEEP), GPUPOOL_OK);
}

/* The copies are waited for once more: they run, and there is no memory to wait with for the
   device. */
static void copies_that_are_not_waited_for(void) {
    for (int waking = 0; waking < 2; waking++) {
        lay_before_copies(waking);
        fake_mode(FAKE_STEPPED);
        fake_reset_counters();
        fake_fail_call("cuStreamSynchronize", 1, 0, 0);
        fake_fail_call("cuMemAlloc", 2, 1, 0); /* the first is the wait before the copies */
        fake_fail_call("cuMemHostAlloc", 1, 1, 0);
        CHECK_RESULT(waking ? wake_part(1) : sleep_part(1, GPUPOOL_KEEP), GPUPOOL_E_CUDA);
        CHECK(strstr(gpupool_last_error(), "cuStreamSynchronize") != NULL);
        CHECK_EQ(fake_pending_all(), 0);
        CHECK_EQ(fake_calls("cuStreamSynchronize"), 2); /* the second wait was for all */
        fake_fail_clear();
        fake_mode(FAKE_EAGER);
        if (waking) CHECK_RESULT(wake_part(1), GPUPOOL_OK);
        expect(1);
        close_arena();
    }
}

/* A copy fails, and then the wait for the earlier copies, too: the first failure is told. */
static void a_copy_that_fails_first(void) {
    for (int waking = 0; waking < 2; waking++) {
        lay_before_copies(waking);
        fake_fail_call("cuMemcpyAsync", 1, 0, CUDA_ERROR_OUT_OF_MEMORY);
        fake_fail_call("cuStreamSynchronize", 1, 0, 0);
        CHECK_RESULT(waking ? wake_part(1) : sleep_part(1, GPUPOOL_KEEP), GPUPOOL_E_OUT_OF_MEMORY);
        CHECK_RESULT(gpupool_last_result(), GPUPOOL_E_OUT_OF_MEMORY);
        CHECK(strstr(gpupool_last_error(), "cuMemcpyAsync") != NULL);
        fake_fail_clear();
        if (waking) CHECK_RESULT(wake_part(1), GPUPOOL_OK);
        expect(1);
        close_arena();
    }
}

/* ---- freed meanwhile ---- */

/* The stitch of a block that was freed asleep goes when its own part wakes. */
static void freed_in_two_parts(void) {
    lay_plainly();
    for (int part = 1; part < PARTS; part++) {
        stitch(part, 0);
        CHECK_RESULT(sleep_part(part, GPUPOOL_DISCARD), GPUPOOL_OK);
    }
    for (int part = 1; part < PARTS; part++) put(stitched[part], 0);
    for (int part = 1; part < PARTS; part++) {
        CHECK_RESULT(wake_part(part), GPUPOOL_OK);
        CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
        stitched[part] = take(STITCHED * STRIPE, part, 1);
        CHECK(stitched[part] != NULL);
    }
    close_arena();
}

/* What a graph has freed stays mapped where its replays expect it. */
static void a_graphs_stitch(void) {
    gpupool_capture *scope = NULL;
    lay_plainly();
    CHECK_RESULT(gpupool_begin_capture(arena, kit_stream[1], &scope), GPUPOOL_OK);
    stitch(0, 1);
    char *at = stitched[0];
    put(at, 1);
    stitched[0] = NULL;
    CHECK_RESULT(gpupool_end_capture(scope), GPUPOOL_OK);
    for (int cycle = 0; cycle < 2; cycle++) {
        CHECK_RESULT(sleep_part(0, GPUPOOL_KEEP), GPUPOOL_OK);
        CHECK_EQ(fake_mappings(), 0); /* but its memory goes, too */
        CHECK_RESULT(wake_part(0), GPUPOOL_OK);
        kit_mark(kit_stream[0], at, STITCHED * STRIPE, cycle); /* as a replay */
        kit_expect_mark(kit_stream[0], at, STITCHED * STRIPE, cycle);
        CHECK_EQ(cudaStreamSynchronize(kit_stream[0]), cudaSuccess);
    }
    CHECK_RESULT(gpupool_release_capture(scope), GPUPOOL_OK);
    stitched[0] = take(STITCHED * STRIPE, 0, 0);
    CHECK(stitched[0] != NULL);
    for (int part = 0; part < PARTS; part++) expect_stripes(part);
    close_arena();
}

/* ---- the program refuses ---- */

static int refusals;   /* how many stitches are refused yet */
static uintptr_t told; /* of those that are there: their addresses, added up */

static int refuse_stitches(const gpupool_mapping *mapping, void *unused) {
    (void)unused;
    if (mapping->chunk_bytes) return 0;
    if (refusals) return refusals--;
    told += (uintptr_t)mapping->memory;
    return 0;
}

static int a_stitch_goes(const gpupool_mapping *mapping, void *unused) {
    (void)unused;
    if (!mapping->chunk_bytes) told -= (uintptr_t)mapping->memory;
    return 0;
}

/* One refusal or several: the part sleeps on, and the next waking tells of all again. What was
   refused does not go, since it never came. */
static void stitches_that_the_program_refuses(void) {
    for (int count = 1; count <= 2; count++) {
        gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
        config.on_map = refuse_stitches;
        config.on_unmap = a_stitch_goes;
        uintptr_t all = 0;
        refusals = 0;
        told = 0;
        lay(&config);
        for (int part = 0; part < PARTS; part++) stitch(part, 0);
        for (int part = 0; part < PARTS; part++) all += (uintptr_t)stitched[part];
        CHECK_RESULT(sleep_part(0, GPUPOOL_KEEP), GPUPOOL_OK);
        refusals = count;
        CHECK_RESULT(wake_part(0), GPUPOOL_E_CALLBACK);
        CHECK_EQ(refusals, 0);
        CHECK_EQ(told, 0);
        CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
        CHECK_RESULT(wake_part(0), GPUPOOL_OK);
        CHECK_EQ(told, all);
        for (int part = 0; part < PARTS; part++) expect(part);
        close_arena();
        CHECK_EQ(told, 0);
    }
}
#endif

int main(void) {
    FAKE_TEST(maps_and_unmaps_that_fail_at_waking);
    FAKE_TEST(freed_after_a_waking_that_failed);
    FAKE_TEST(what_is_left_mapped_is_counted);
    FAKE_TEST(the_second_stitch_has_nothing_mapped);
    FAKE_TEST(a_reset_after_a_waking_that_failed);
    FAKE_TEST(freed_after_a_sleep_that_failed);
    FAKE_TEST(unmaps_that_fail_at_falling_asleep);
    FAKE_TEST(what_cannot_be_mapped_again_goes);
    FAKE_TEST(idle_ones_of_others_come_and_go);
    FAKE_TEST(handles_that_are_not_taken_back);
    FAKE_TEST(handles_of_free_chunks);
    FAKE_TEST(a_chunk_that_was_stuck);
    FAKE_TEST(not_while_a_stream_captures);
    FAKE_TEST(beside_a_spoilt_stitch);
    FAKE_TEST(beside_idle_stitches);
    FAKE_TEST(an_end_that_fails);
    FAKE_TEST(copies_that_are_not_waited_for);
    FAKE_TEST(a_copy_that_fails_first);
    FAKE_TEST(freed_in_two_parts);
    FAKE_TEST(a_graphs_stitch);
    FAKE_TEST(stitches_that_the_program_refuses);
    return check_finish();
}
