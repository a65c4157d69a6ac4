/* Sleep and wake: the device memory goes, addresses, blocks and what they hold stay; whatever fails
   on the way leaves the arena awake as before or asleep as before. */
// build: plain -O1
// build: asan -fsanitize=address,undefined -DEVERY=5
// build: check2 -O1 -DGPUPOOL_CHECK=2 -DEVERY=5
// build: guard -DGPUPOOL_GUARD=1 -DEVERY=5
// build: sites -DGPUPOOL_SITES=1 -DEVERY=5
// build: thread -fsanitize=thread -DEVERY=25
#include "fail_malloc.h"
#include "gpupool.h"
#include "registry_kit.h"

#if CHECK_FAKE

#define BLOCKS 32

static gpupool_arena *arena;
static gpupool_ring *ring;
static char *block[BLOCKS];
static size_t bytes[BLOCKS];
static unsigned doublings = 13; /* of 512 bytes, and up to twice that: the largest block */

static void put(int i) {
    if (block[i])
        CHECK_RESULT(gpupool_free(arena, block[i], kit_stream[i % KIT_STREAMS]), GPUPOOL_OK);
    block[i] = NULL;
}

/* Blocks of all kinds: small ones of caches, large ones, some stitched, on several streams. */
static void fill(uint64_t seed) {
    uint64_t random = seed;
    for (int round = 0; round < 4; round++)
        for (int i = 0; i < BLOCKS; i++) {
            if (block[i] && check_below(&random, 2)) put(i);
            if (block[i]) continue;
            bytes[i] = (size_t)512 << check_below(&random, doublings);
            bytes[i] += check_below(&random, bytes[i]);
            block[i] = gpupool_alloc(arena, bytes[i], kit_stream[i % KIT_STREAMS]);
            if (!block[i]) continue;
            kit_mark(kit_stream[i % KIT_STREAMS], block[i], bytes[i], i + 1);
        }
}

static void expect(void) {
    for (int i = 0; i < BLOCKS; i++)
        if (block[i])
            kit_expect_mark(kit_stream[i % KIT_STREAMS], block[i], bytes[i], i + 1);
    CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

static void stamp(void) {
    for (int i = 0; i < BLOCKS; i++)
        if (block[i]) kit_mark(kit_stream[i % KIT_STREAMS], block[i], bytes[i], i + 1);
}

static void open_arena(void) {
    gpupool_ring_config config;
    memset(&config, 0, sizeof config);
    config.bytes = 4 * MIB;
    config.workers = 2;
    CHECK_RESULT(gpupool_ring_create(&ring, &config), GPUPOOL_OK);
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 48 * MIB);
    memset(block, 0, sizeof block);
}

static void close_arena(void) {
    for (int i = 0; i < BLOCKS; i++) put(i);
    kit_close(arena);
    CHECK_RESULT(gpupool_ring_destroy(ring), GPUPOOL_OK);
}

static void is_asleep(void) {
    gpupool_stats stats = kit_stats(arena);
    CHECK_EQ(stats.reserved.now, 0);
    CHECK(stats.asleep_bytes > 0);
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    CHECK_EQ(fake_mappings(), 0);
    CHECK(!gpupool_alloc(arena, 4096, kit_stream[0]));
    CHECK_EQ(gpupool_last_result(), GPUPOOL_E_ASLEEP);
    CHECK(!gpupool_alloc(arena, 30 * MIB, kit_stream[3]));
    CHECK_EQ(gpupool_last_result(), GPUPOOL_E_ASLEEP);
}

static void is_awake(void) {
    gpupool_stats stats = kit_stats(arena);
    CHECK_EQ(stats.asleep_bytes, 0);
    CHECK_EQ(stats.backup_bytes, 0);
    CHECK(stats.reserved.now >= stats.granted.now);
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
}

static void what_blocks_hold_is_kept(void) {
    for (int with = 0; with < 2; with++)
        for (uint64_t seed = 1; seed <= 3; seed += EVERY) {
            check_case("ring %d, seed %d", with, (int)seed);
            open_arena();
            for (int cycle = 0; cycle < 5; cycle++) {
                fill(seed * 10 + (uint64_t)cycle);
                CHECK_RESULT(gpupool_sleep(arena, GPUPOOL_ALL, GPUPOOL_KEEP, with ? ring : NULL),
                             GPUPOOL_OK);
                CHECK(fake_used_bytes(0) == 0);
                CHECK(kit_stats(arena).backup_bytes > 0);
                is_asleep();
                CHECK_RESULT(gpupool_wake(arena, GPUPOOL_ALL, with ? ring : NULL), GPUPOOL_OK);
                is_awake();
                expect();
            }
            CHECK(kit_stats(arena).stitches > 0);
            close_arena();
        }
    check_case(" ");
}

static void discarded_blocks_are_blocks_still(void) {
    open_arena();
    for (int cycle = 0; cycle < 20; cycle++) {
        fill((uint64_t)cycle + 1);
        CHECK_RESULT(gpupool_sleep(arena, GPUPOOL_ALL, GPUPOOL_DISCARD, NULL), GPUPOOL_OK);
        CHECK_EQ(kit_stats(arena).backup_bytes, 0);
        is_asleep();
        CHECK_RESULT(gpupool_wake(arena, GPUPOOL_ALL, NULL), GPUPOOL_OK);
        is_awake();
        stamp();
        expect();
    }
    close_arena();
}

static void freed_while_it_sleeps(void) {
    for (int all = 0; all < 2; all++) {
        size_t before;
        check_case("all %d", all);
        open_arena();
        fill(3);
        before = kit_reserved(arena);
        CHECK_RESULT(gpupool_sleep(arena, GPUPOOL_ALL, GPUPOOL_KEEP, ring), GPUPOOL_OK);
        for (int i = 0; i < BLOCKS; i += all ? 1 : 2) put(i);
        is_asleep();
        for (int i = 0; i < BLOCKS; i += 2) CHECK(!block[i]);
        CHECK_RESULT(gpupool_wake(arena, GPUPOOL_ALL, ring), GPUPOOL_OK);
        is_awake();
        if (all) CHECK_EQ(kit_reserved(arena), 0);
        else CHECK(kit_reserved(arena) < before);
        expect();
        fill(4);
        expect();
        close_arena();
    }
    check_case(" ");
}

/* Copies to and from it are refused; reports say that it sleeps. */
static void what_is_seen_of_it(void) {
    char text[8192] = {0}, host[4096];
    gpupool_block found;
    FILE *file = tmpfile();
    void *elsewhere;
    open_arena();
    gpupool_arena *other = kit_open(GPUPOOL_SOURCE_MAPPED);
    elsewhere = kit_alloc(other, 4096, kit_stream[0]);
    block[0] = kit_alloc(arena, bytes[0] = 5 * MIB, kit_stream[0]);
    kit_mark(kit_stream[0], block[0], bytes[0], 1);
    CHECK_RESULT(gpupool_sleep(arena, GPUPOOL_ALL, GPUPOOL_KEEP, ring), GPUPOOL_OK);
    CHECK_RESULT(gpupool_upload(ring, block[0], host, 4096, kit_stream[0]), GPUPOOL_E_ASLEEP);
    CHECK(strstr(gpupool_last_error(), "sleeps"));
    CHECK_RESULT(gpupool_download(ring, host, block[0] + MIB, 4096, kit_stream[0]),
                 GPUPOOL_E_ASLEEP);
    memset(host, 5, sizeof host);
    CHECK_RESULT(gpupool_upload(ring, elsewhere, host, 4096, kit_stream[0]), GPUPOOL_OK);
    fake_quiet(1); /* where nothing was ever mapped nothing sleeps: CUDA is to say what is wrong */
    CHECK(gpupool_upload(ring, block[0] + GIB, host, 4096, kit_stream[0]) != GPUPOOL_E_ASLEEP);
    CHECK_EQ(fake_failures(), 1);
    fake_clear_failures();
    fake_quiet(0);
    CHECK_RESULT(gpupool_get_block(arena, block[0], &found), GPUPOOL_OK);
    CHECK_EQ(found.requested_bytes, 5 * MIB);
    CHECK_RESULT(gpupool_report(arena, file), GPUPOOL_OK);
    rewind(file);
    CHECK(fread(text, 1, sizeof text - 1, file) > 0);
    if (!GPUPOOL_GUARD) /* else blocks are larger */
        CHECK(strstr(text, "asleep       6.00 MiB; the host holds 5.00 MiB of it") != NULL);
    fclose(file);
    CHECK_RESULT(gpupool_wake(arena, GPUPOOL_ALL, ring), GPUPOOL_OK);
    CHECK_RESULT(gpupool_upload(ring, block[0] + MIB, host, 4096, kit_stream[0]), GPUPOOL_OK);
    expect();
    CHECK_RESULT(gpupool_free(other, elsewhere, kit_stream[0]), GPUPOOL_OK);
    kit_close(other);
    close_arena();
}

/* Nor does a span go there, or a copy between device memory: the one would end the context, and
   the host would read from the other. */
static void spans_and_device_copies_are_refused(void) {
    gpupool_arena *other;
    gpupool_span span;
    void *elsewhere;
    open_arena();
    other = kit_open(GPUPOOL_SOURCE_MAPPED);
    elsewhere = kit_alloc(other, 4096, kit_stream[0]);
    block[0] = kit_alloc(arena, bytes[0] = 5 * MIB, kit_stream[0]);
    kit_mark(kit_stream[0], block[0], bytes[0], 1);
    CHECK_RESULT(gpupool_ring_acquire_span(ring, 4096, 0, &span), GPUPOOL_OK);
    memset(span.memory, 5, 4096);
    CHECK_RESULT(gpupool_sleep(arena, GPUPOOL_ALL, GPUPOOL_KEEP, ring), GPUPOOL_OK);
    CHECK_RESULT(gpupool_ring_upload_span(ring, &span, block[0], kit_stream[0]),
                 GPUPOOL_E_ASLEEP);
    CHECK_RESULT(gpupool_upload(ring, elsewhere, block[0], 4096, kit_stream[0]),
                 GPUPOOL_E_ASLEEP);
    CHECK_RESULT(gpupool_wake(arena, GPUPOOL_ALL, ring), GPUPOOL_OK);
    CHECK_RESULT(gpupool_ring_upload_span(ring, &span, block[0] + MIB, kit_stream[0]),
                 GPUPOOL_OK);
    CHECK_RESULT(gpupool_upload(ring, elsewhere, block[0], 4096, kit_stream[0]), GPUPOOL_OK);
    expect();
    CHECK_RESULT(gpupool_free(other, elsewhere, kit_stream[0]), GPUPOOL_OK);
    kit_close(other);
    close_arena();
}

/* With nothing live it needs no memory to end. */
static void destroyed_while_it_sleeps(void) {
    open_arena();
    fill(3);
    CHECK_RESULT(gpupool_sleep(arena, GPUPOOL_ALL, GPUPOOL_KEEP, ring), GPUPOOL_OK);
    CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_E_IN_USE);
    is_asleep();
    for (int i = 0; i < BLOCKS; i++) put(i);
    CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_OK);
    CHECK_RESULT(gpupool_ring_destroy(ring), GPUPOOL_OK);
}

/* Transfers look for sleeping memory only while some is counted as asleep. */
static void transfers_are_refused(void) {
    static char host[4096];
    kit_prepare();
    open_arena();
    fill(3);
    CHECK_RESULT(gpupool_sleep(arena, GPUPOOL_ALL, GPUPOOL_KEEP, ring), GPUPOOL_OK);
    CHECK_RESULT(gpupool_upload(ring, block[0], host, sizeof host, kit_stream[0]),
                 GPUPOOL_E_ASLEEP);
    CHECK_RESULT(gpupool_wake(arena, GPUPOOL_ALL, ring), GPUPOOL_OK);
    close_arena();
}

/* What the host keeps of the content goes with the arena, which then counts as asleep no more. */
static void reset_while_it_sleeps(void) {
    long live = fail_malloc_live;
    open_arena();
    fill(3);
    CHECK_RESULT(gpupool_sleep(arena, GPUPOOL_ALL, GPUPOOL_KEEP, ring), GPUPOOL_OK);
    CHECK_EQ(cudaDeviceReset(), cudaSuccess);
    memset(kit_stream, 0, sizeof kit_stream);
    CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_OK);
    CHECK_RESULT(gpupool_ring_destroy(ring), GPUPOOL_OK);
    CHECK_EQ(fail_malloc_live, live);
    transfers_are_refused();
}

/* A wake that CUDA refuses half-way, and whose undoing it refuses as well, leaves some mapped.
   After a reset that goes back too, at the second try at the latest. */
static void reset_while_it_is_half_awake(void) {
    int failed = 1;
    for (long nth = 1; failed; nth += EVERY) {
        check_case("call %ld", nth);
        open_arena();
        fill(3);
        CHECK_RESULT(gpupool_sleep(arena, GPUPOOL_ALL, GPUPOOL_KEEP, ring), GPUPOOL_OK);
        fake_fail_call("cuMemSetAccess", nth, 0, 0);
        fake_fail_call("cuMemUnmap", 1, 1, 0);
        failed = gpupool_wake(arena, GPUPOOL_ALL, ring) != GPUPOOL_OK;
        fake_fail_clear();
        CHECK_EQ(cudaDeviceReset(), cudaSuccess);
        memset(kit_stream, 0, sizeof kit_stream);
        fake_fail_call("cuMemUnmap", 1, 0, 0);
        CHECK_RESULT(gpupool_arena_destroy(arena), fake_mappings() ? GPUPOOL_E_CUDA : GPUPOOL_OK);
        fake_fail_clear();
        if (fake_mappings()) {
            CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK); /* half gone, and not corrupt */
            CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_OK);
        }
        CHECK_EQ(fake_mappings(), 0);
        CHECK_RESULT(gpupool_ring_destroy(ring), GPUPOOL_OK);
        memset(block, 0, sizeof block);
        kit_prepare();
    }
    check_case(" ");
}

static void what_may_not_sleep(void) {
    gpupool_capture *scope;
    gpupool_exported exported;
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_DEVICE);
    arena = kit_create(&config);
    CHECK_RESULT(gpupool_sleep(arena, GPUPOOL_ALL, GPUPOOL_KEEP, NULL), GPUPOOL_E_UNSUPPORTED);
    CHECK_RESULT(gpupool_wake(arena, GPUPOOL_ALL, NULL), GPUPOOL_E_UNSUPPORTED);
    kit_close(arena);
    config = kit_config(GPUPOOL_SOURCE_MAPPED);
    config.share = GPUPOOL_SHARE_PROCESSES;
    config.backup_bytes = MIB;
    arena = kit_create(&config);
    CHECK_RESULT(gpupool_begin_capture(arena, kit_stream[0], &scope), GPUPOOL_OK);
    CHECK_RESULT(gpupool_sleep(arena, GPUPOOL_ALL, GPUPOOL_KEEP, NULL), GPUPOOL_E_CAPTURING);
    CHECK_RESULT(gpupool_release_capture(scope), GPUPOOL_OK);
    gpupool_arena *other = kit_open(GPUPOOL_SOURCE_AUTO); /* whichever arena's scope it is */
    CHECK_RESULT(gpupool_begin_capture(other, kit_stream[0], &scope), GPUPOOL_OK);
    CHECK_RESULT(gpupool_sleep(arena, GPUPOOL_ALL, GPUPOOL_KEEP, NULL), GPUPOOL_E_CAPTURING);
    CHECK_RESULT(gpupool_release_capture(scope), GPUPOOL_OK);
    kit_close(other);
    CHECK_RESULT(gpupool_sleep(arena, GPUPOOL_ALL, (gpupool_content)7, NULL), GPUPOOL_E_ARGUMENT);
    void *shared = kit_alloc_as(arena, MIB, kit_stream[0], GPUPOOL_EXPORTABLE);
    CHECK_RESULT(gpupool_export(arena, shared, &exported), GPUPOOL_OK);
    CHECK_RESULT(gpupool_sleep(arena, GPUPOOL_ALL, GPUPOOL_KEEP, NULL), GPUPOOL_E_IN_USE);
    CHECK_RESULT(gpupool_export_close(arena, shared), GPUPOOL_OK);
    CHECK_RESULT(gpupool_sleep(arena, GPUPOOL_ALL, GPUPOOL_KEEP, NULL), GPUPOOL_E_HOST_MEMORY);
    is_awake();
    CHECK_RESULT(gpupool_sleep(arena, GPUPOOL_ALL, GPUPOOL_DISCARD, NULL), GPUPOOL_OK);
    CHECK_RESULT(gpupool_sleep(arena, GPUPOOL_ALL, GPUPOOL_DISCARD, NULL), GPUPOOL_E_ASLEEP);
    CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_E_ASLEEP);
    CHECK_RESULT(gpupool_would_fit(arena, 1, NULL), GPUPOOL_E_ASLEEP);
    size_t available = 1;
    CHECK_RESULT(gpupool_get_available(arena, &available), GPUPOOL_E_ASLEEP);
    CHECK_EQ(available, 0);
    CHECK_RESULT(gpupool_allow_peer(arena, 1), GPUPOOL_E_ASLEEP);
    CHECK_RESULT(gpupool_export(arena, shared, &exported), GPUPOOL_E_ASLEEP);
    CHECK_RESULT(gpupool_wake(arena, GPUPOOL_ALL, NULL), GPUPOOL_OK);
    CHECK_RESULT(gpupool_free(arena, shared, kit_stream[0]), GPUPOOL_OK);
    kit_close(arena);
}

/* A graph that was captured before is launched after: the same addresses. */
static void graphs_are_good_after_waking(void) {
    gpupool_capture *scope;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    char *in, *kept;
    open_arena();
    in = kit_alloc(arena, 3 * MIB, kit_stream[0]);
    CHECK_RESULT(gpupool_begin_capture(arena, kit_stream[0], &scope), GPUPOOL_OK);
    CHECK_EQ(cudaStreamBeginCapture(kit_stream[0], cudaStreamCaptureModeGlobal), cudaSuccess);
    kept = kit_alloc(arena, 5 * MIB, kit_stream[0]);
    void *scratch = kit_alloc(arena, 4 * MIB, kit_stream[0]);
    CHECK_EQ(cudaMemsetAsync(scratch, 7, 4 * MIB, kit_stream[0]), cudaSuccess);
    CHECK_EQ(cudaMemcpyAsync(kept, in, 3 * MIB, cudaMemcpyDeviceToDevice, kit_stream[0]),
             cudaSuccess);
    CHECK_RESULT(gpupool_free(arena, scratch, kit_stream[0]), GPUPOOL_OK);
    CHECK_EQ(cudaStreamEndCapture(kit_stream[0], &graph), cudaSuccess);
    CHECK_RESULT(gpupool_end_capture(scope), GPUPOOL_OK);
    CHECK_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    for (int cycle = 0; cycle < 5; cycle++) {
        kit_fill(kit_stream[0], in, 3 * MIB, cycle + 1);
        CHECK_RESULT(gpupool_sleep(arena, GPUPOOL_ALL, GPUPOOL_KEEP, cycle % 2 ? ring : NULL),
                     GPUPOOL_OK);
        CHECK_RESULT(gpupool_release_capture(scope), GPUPOOL_E_ASLEEP);
        CHECK_RESULT(gpupool_wake(arena, GPUPOOL_ALL, NULL), GPUPOOL_OK);
        CHECK_EQ(cudaGraphLaunch(exec, kit_stream[0]), cudaSuccess);
        kit_expect(kit_stream[0], kept, 3 * MIB, cycle + 1);
    }
    CHECK_EQ(cudaStreamSynchronize(kit_stream[0]), cudaSuccess);
    CHECK_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
    CHECK_EQ(cudaGraphDestroy(graph), cudaSuccess);
    CHECK_RESULT(gpupool_release_capture(scope), GPUPOOL_OK);
    CHECK_RESULT(gpupool_free(arena, in, kit_stream[0]), GPUPOOL_OK);
    close_arena();
}

/* Another takes the memory meanwhile: waking fails, changes nothing, and works later. */
static void memory_is_gone_when_it_wakes(void) {
    open_arena();
    fill(5);
    CHECK_RESULT(gpupool_sleep(arena, GPUPOOL_ALL, GPUPOOL_KEEP, ring), GPUPOOL_OK);
    fake_other_process(0, (size_t)140 * GIB - 4 * MIB);
    CHECK_RESULT(gpupool_wake(arena, GPUPOOL_ALL, ring), GPUPOOL_E_OUT_OF_MEMORY);
    CHECK(strstr(gpupool_last_error(), "hold the rest"));
    is_asleep();
    fake_other_process(0, 0);
    CHECK_RESULT(gpupool_set_limit(arena, 4 * MIB), GPUPOOL_OK);
    CHECK_RESULT(gpupool_wake(arena, GPUPOOL_ALL, ring), GPUPOOL_E_OUT_OF_MEMORY);
    CHECK(strstr(gpupool_last_error(), "the limit leaves"));
    is_asleep();
    CHECK_RESULT(gpupool_set_limit(arena, 48 * MIB), GPUPOOL_OK);
    CHECK_RESULT(gpupool_wake(arena, GPUPOOL_ALL, ring), GPUPOOL_OK);
    is_awake();
    expect();
    close_arena();
}

/* Whether it sleeps although gpupool_sleep failed: then it wakes. */
static int wakes_after_all(void) {
    gpupool_result woken = gpupool_wake(arena, GPUPOOL_ALL, ring);
    if (woken != GPUPOOL_OK) CHECK_RESULT(woken, GPUPOOL_E_ARGUMENT);
    return woken == GPUPOOL_OK;
}

/* Each CUDA call of both in turn; or that one and all that follow, so that what sleep has unmapped
   cannot be mapped again: then it sleeps, and nothing is lost. */
static void calls_that_fail(void) {
    int failed[2] = {0, 0}, slept_after_all = 0;
    doublings = 10;
    for (int way = 0; way < 4; way++)
        for (long nth = 1;; nth += EVERY) {
            const int keep = way % 2, persist = way / 2;
            long fired;
            gpupool_result slept, woken = GPUPOOL_OK;
            check_case("keep %d, persist %d, call %ld", keep, persist, nth);
            open_arena();
            fill(6);
            cudaDeviceSynchronize();
            fake_fail_nth(nth, persist);
            if (persist) fake_fail_except("cuStreamDestroy"); /* one that stays is lost */
            slept = gpupool_sleep(arena, GPUPOOL_ALL, keep ? GPUPOOL_KEEP : GPUPOOL_DISCARD,
                                  keep ? ring : NULL);
            if (slept == GPUPOOL_OK) woken = gpupool_wake(arena, GPUPOOL_ALL, keep ? ring : NULL);
            fired = fake_fail_fired();
            fake_fail_clear();
            cudaGetLastError();
            kit_capture_globally();
            failed[0] += slept != GPUPOOL_OK;
            failed[1] += woken != GPUPOOL_OK;
            if (slept != GPUPOOL_OK) slept_after_all += wakes_after_all();
            if (woken != GPUPOOL_OK) {
                if (!persist) is_asleep(); /* else it could not unmap all of it again */
                CHECK_RESULT(gpupool_wake(arena, GPUPOOL_ALL, keep ? ring : NULL), GPUPOOL_OK);
            }
            is_awake();
            if (!keep && slept == GPUPOOL_OK) stamp();
            expect();
            close_arena();
            if (!fired) break;
        }
    CHECK(failed[0] > 10 / EVERY && failed[1] > 10 / EVERY);
    if (EVERY == 1) CHECK(slept_after_all > 0);
    doublings = 13;
    check_case(" ");
}

static void holders_are_told(void) {
    gpupool_arena_config config = registry_config(GPUPOOL_SOURCE_MAPPED, 48 * MIB);
    registry_clear();
    arena = kit_create(&config);
    memset(block, 0, sizeof block);
    for (int cycle = 0; cycle < 5; cycle++) {
        fill((uint64_t)cycle + 1);
        CHECK_RESULT(gpupool_sleep(arena, GPUPOOL_ALL, GPUPOOL_KEEP, NULL), GPUPOOL_OK);
        CHECK_EQ(known.count, 0);
        if (cycle % 2) {
            known.refuse_at = 2;
            CHECK_RESULT(gpupool_wake(arena, GPUPOOL_ALL, NULL), GPUPOOL_E_CALLBACK);
            known.refuse_at = 0;
            CHECK_EQ(known.count, 0);
            is_asleep();
        }
        CHECK_RESULT(gpupool_wake(arena, GPUPOOL_ALL, NULL), GPUPOOL_OK);
        registry_verify();
        for (int i = 0; i < BLOCKS; i++)
            if (block[i]) CHECK(registry_covers(block[i], bytes[i]));
        expect();
    }
    for (int i = 0; i < BLOCKS; i++) put(i);
    kit_close(arena);
    CHECK_EQ(known.count, 0);
    CHECK_EQ(known.told, known.gone);
}

/* Threads work, and meet the sleep: what they have stays, what they ask for is refused. */
static void *beside(void *number) {
    uint64_t random = 1 + (uint64_t)(uintptr_t)number;
    int stream = (int)(uintptr_t)number;
    void *mine[16] = {NULL};
    for (int i = 0; i < 3000; i++) {
        void **one = &mine[check_below(&random, 16)];
        if (*one) {
            CHECK_RESULT(gpupool_free(arena, *one, kit_stream[stream]), GPUPOOL_OK);
            *one = NULL;
        } else {
            *one = gpupool_alloc(arena, 1 + check_below(&random, MIB), kit_stream[stream]);
            if (!*one)
                CHECK(gpupool_last_result() == GPUPOOL_E_ASLEEP ||
                      gpupool_last_result() == GPUPOOL_E_OUT_OF_MEMORY);
        }
    }
    for (int i = 0; i < 16; i++)
        if (mine[i]) CHECK_RESULT(gpupool_free(arena, mine[i], kit_stream[stream]), GPUPOOL_OK);
    return NULL;
}

static void threads_meet_it(void) {
    pthread_t thread[3];
    open_arena();
    for (int i = 0; i < 3; i++)
        pthread_create(&thread[i], NULL, beside, (void *)(uintptr_t)i);
    for (int i = 0; i < 20; i++) {
        CHECK_RESULT(gpupool_sleep(arena, GPUPOOL_ALL, i % 2 ? GPUPOOL_KEEP : GPUPOOL_DISCARD,
                                   NULL),
                     GPUPOOL_OK);
        CHECK_RESULT(gpupool_wake(arena, GPUPOOL_ALL, NULL), GPUPOOL_OK);
    }
    for (int i = 0; i < 3; i++) pthread_join(thread[i], NULL);
    close_arena();
}

/* Scopes of another arena open and end meanwhile: E_CAPTURING, or no scope was seen. */
static int stops;

static void *open_scopes(void *other) {
    while (!__atomic_load_n(&stops, __ATOMIC_RELAXED)) {
        gpupool_capture *scope[50];
        for (int i = 0; i < 50; i++) {
            CHECK_RESULT(gpupool_begin_capture(other, kit_stream[1], &scope[i]), GPUPOOL_OK);
            CHECK_RESULT(gpupool_end_capture(scope[i]), GPUPOOL_OK);
        }
        for (int i = 0; i < 50; i++) CHECK_RESULT(gpupool_release_capture(scope[i]), GPUPOOL_OK);
    }
    return NULL;
}

static void scopes_of_another_arena_meet_it(void) {
    gpupool_arena *other = kit_open(GPUPOOL_SOURCE_MAPPED);
    pthread_t thread;
    open_arena();
    __atomic_store_n(&stops, 0, __ATOMIC_RELAXED);
    pthread_create(&thread, NULL, open_scopes, other);
    for (int i = 0; i < 2000; i++) {
        gpupool_result result = gpupool_sleep(arena, GPUPOOL_ALL, GPUPOOL_DISCARD, NULL);
        if (result == GPUPOOL_OK) result = gpupool_wake(arena, GPUPOOL_ALL, NULL);
        CHECK(result == GPUPOOL_OK || result == GPUPOOL_E_CAPTURING);
    }
    __atomic_store_n(&stops, 1, __ATOMIC_RELAXED);
    pthread_join(thread, NULL);
    close_arena();
    kit_close(other);
}

static void fall_asleep(void *unused) {
    (void)unused;
    CHECK_RESULT(gpupool_sleep(arena, GPUPOOL_ALL, GPUPOOL_DISCARD, NULL), GPUPOOL_OK);
}

/* The question is about an arena that sleeps when it is answered. */
static void asked_while_it_falls_asleep(void) {
    size_t available = 1;
    open_arena();
    fake_before_call("cuMemGetInfo", 1, fall_asleep, NULL);
    CHECK_RESULT(gpupool_get_available(arena, &available), GPUPOOL_E_ASLEEP);
    CHECK_EQ(available, 0);
    CHECK_RESULT(gpupool_wake(arena, GPUPOOL_ALL, NULL), GPUPOOL_OK);
    close_arena();
}

#endif

/* cudaFree is over all streams, like the use by which a sleeping arena keeps its blocks. */
static void freed_by_cudaFree(void) {
    gpupool_arena *whole = gpupool_get_default_arena(0);
    void *before = NULL, *again = NULL;
    CHECK_EQ(gpupool_cudaMalloc(&before, 4 * MIB), cudaSuccess);
    CHECK_RESULT(gpupool_sleep(whole, GPUPOOL_ALL, GPUPOOL_DISCARD, NULL), GPUPOOL_OK);
    CHECK_EQ(gpupool_cudaFree(before), cudaSuccess);
    CHECK(!gpupool_alloc(whole, MIB, kit_stream[0]));
    CHECK_EQ(gpupool_last_result(), GPUPOOL_E_ASLEEP);
    CHECK(gpupool_cudaMalloc(&again, MIB) != cudaSuccess);
    cudaGetLastError();
    CHECK_RESULT(gpupool_wake(whole, GPUPOOL_ALL, NULL), GPUPOOL_OK);
    CHECK_RESULT(gpupool_check(whole), GPUPOOL_OK);
    CHECK_EQ(gpupool_cudaMalloc(&again, 4 * MIB), cudaSuccess);
    CHECK_EQ(gpupool_cudaFree(again), cudaSuccess);
    kit_close(whole);
}

int main(void) {
    FAKE_TEST(what_blocks_hold_is_kept);
    FAKE_TEST(discarded_blocks_are_blocks_still);
    FAKE_TEST(freed_while_it_sleeps);
    FAKE_TEST(freed_by_cudaFree);
    FAKE_TEST(what_is_seen_of_it);
    FAKE_TEST(spans_and_device_copies_are_refused);
    FAKE_TEST(destroyed_while_it_sleeps);
    FAKE_TEST(reset_while_it_sleeps);
    FAKE_TEST(reset_while_it_is_half_awake);
    FAKE_TEST(what_may_not_sleep);
    FAKE_TEST(graphs_are_good_after_waking);
    FAKE_TEST(memory_is_gone_when_it_wakes);
    FAKE_TEST(calls_that_fail);
    FAKE_TEST(holders_are_told);
    FAKE_TEST(threads_meet_it);
    FAKE_TEST(scopes_of_another_arena_meet_it);
    FAKE_TEST(asked_while_it_falls_asleep);
    return check_finish();
}
