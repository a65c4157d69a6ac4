/* Tags that sleep alone, and everything that goes wrong: each CUDA call and each host allocation
   fails in turn; random calls and threads; the program is told of what goes and comes; arenas end,
   devices are reset and processes forked while a tag sleeps. */
// build: plain -O1
// build: asan -fsanitize=address,undefined -DEVERY=5
// build: check2 -O1 -DGPUPOOL_CHECK=2 -DEVERY=5
// build: guard -DGPUPOOL_GUARD=1 -DEVERY=5
// build: sites -DGPUPOOL_SITES=1 -DEVERY=5
// build: thread -fsanitize=thread -DEVERY=25
#include "fail_malloc.h"
#include "gpupool.h"
#include "tag_kit.h"

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#if CHECK_FAKE

enum { WEIGHTS = 1, KV = 2, DRAFT = 3 };

/* ---- what fails ---- */

static void fail(int host, long nth, int persist) {
    if (host) {
        fail_malloc_nth(nth, persist);
    } else {
        fake_fail_nth(nth, persist);
        if (persist) fake_fail_except("cuStreamDestroy"); /* one that stays is lost */
    }
}

/* Nothing fails any more. Returns how many calls did. */
static long end_failing(int host) {
    long fired = host ? (long)fail_malloc_fired : fake_fail_fired();
    fail_malloc_nth(0, 0);
    fake_fail_clear();
    cudaGetLastError();
    kit_capture_globally();
    return fired;
}

static void kv_is_asleep(uint64_t asleep) {
    CHECK_EQ(stats_of(KV).asleep_bytes, asleep);
    refused(4096, KV, GPUPOOL_E_ASLEEP);
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
}

static int others_are_untouched(void) {
    void *block = must_take(3000, 0, 1), *other = must_take(3000, WEIGHTS, 1);
    if (block) give(block, 1);
    if (other) give(other, 1);
    expect_slots(0);
    expect_slots(WEIGHTS);
    return block && other;
}

static void calls_that_fail(void) {
    long failed[2] = {0, 0}, slept_after_all = 0;
    for (int way = 0; way < 8; way++)
        for (long nth = 1;; nth += EVERY) {
            const int keep = way % 2, persist = way / 2 % 2, host = way / 4;
            gpupool_ring *by;
            gpupool_result slept, woken = GPUPOOL_OK;
            gpupool_stats before;
            uint64_t asleep = 0;
            long fired;
            check_case("keep %d, persist %d, host %d, call %ld", keep, persist, host, nth);
            open_tags(2, 24 * MIB);
            tag_doublings = 10;
            tag_edges = 1;
            by = keep && !host ? ring : NULL;
            for (int tag = 0; tag <= KV; tag++) fill_slots(tag, 6);
            cudaDeviceSynchronize();
            before = kit_stats(arena);
            fail(host, nth, persist);
            slept = gpupool_sleep(arena, KV, keep ? GPUPOOL_KEEP : GPUPOOL_DISCARD, by);
            if (slept == GPUPOOL_OK) {
                asleep = stats_of(KV).asleep_bytes;
                woken = gpupool_wake(arena, KV, by);
            }
            fired = end_failing(host);
            failed[0] += slept != GPUPOOL_OK;
            failed[1] += woken != GPUPOOL_OK;
            if (host && slept != GPUPOOL_OK) CHECK_RESULT(slept, GPUPOOL_E_HOST_MEMORY);
            if (slept != GPUPOOL_OK && wake_tag(KV) == GPUPOOL_OK) slept_after_all++;
            if (woken != GPUPOOL_OK) {
                if (!persist) kv_is_asleep(asleep); /* else not all could be unmapped again */
                others_are_untouched();
                CHECK_RESULT(gpupool_wake(arena, KV, by), GPUPOOL_OK);
            }
            CHECK_EQ(stats_of(KV).asleep_bytes, 0);
            CHECK_EQ(kit_stats(arena).backup_bytes, 0);
            CHECK_EQ(kit_stats(arena).granted.now, before.granted.now);
            CHECK_EQ(kit_stats(arena).blocks.now, before.blocks.now);
            others_are_untouched();
            if (!keep && slept == GPUPOOL_OK) stamp(KV);
            expect_slots(KV);
            figures_agree(KV);
            close_tags();
            if (!fired) break;
        }
    CHECK(failed[0] > 20 / EVERY && failed[1] > 20 / EVERY);
    if (EVERY == 1) CHECK(slept_after_all > 0);
    tag_doublings = 13;
    check_case(" ");
}

/* Of a tag that could not be made nothing is left. */
static void tags_that_fail(void) {
    gpupool_tag_config config;
    memset(&config, 0, sizeof config);
    config.can_sleep = 1;
    config.reserve_bytes = 5 * MIB;
    for (int way = 0; way < 4; way++)
        for (long nth = 1;; nth += EVERY) {
            const int persist = way % 2, host = way / 2;
            gpupool_result result;
            int tag = 7, again;
            long fired;
            check_case("persist %d, host %d, call %ld", persist, host, nth);
            open_tags(1, 0);
            CHECK(get(WEIGHTS, 0, 3 * MIB));
            fail(host, nth, persist);
            result = gpupool_tag(arena, "kv", &config, &tag);
            fired = end_failing(host);
            CHECK_EQ(tag, result == GPUPOOL_OK ? KV : 0);
            CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
            if (result != GPUPOOL_OK) {
                CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
                CHECK_EQ(fake_used_bytes(0), kit_reserved(arena));
                CHECK_RESULT(gpupool_tag(arena, "kv", &config, &again), GPUPOOL_OK);
                CHECK(again == KV || (again == KV + 1 && !host)); /* memory may have stayed */
                give(must_take(3 * MIB, again, 0), 0);
                CHECK_RESULT(sleep_tag(again, GPUPOOL_KEEP), GPUPOOL_OK);
                CHECK_RESULT(wake_tag(again), GPUPOOL_OK);
            }
            expect_slots(WEIGHTS);
            close_tags();
            if (!fired) break;
        }
    check_case(" ");
}

/* ---- random calls ---- */

static int asleep[TAGS], discarded[TAGS]; /* [0]: all that no tag has of its own */

/* GPUPOOL_ALL takes the shared chunks, too; a tag by itself never does. */
static void note_sleep(int tag, int content) {
    for (int t = 0; t < TAGS; t++)
        if ((tag == GPUPOOL_ALL || t == tag) && !asleep[t]) {
            asleep[t] = 1;
            discarded[t] = content == GPUPOOL_DISCARD;
        }
}

static void note_wake(int tag) {
    for (int t = 0; t < TAGS; t++)
        if ((tag == GPUPOOL_ALL || t == tag) && asleep[t]) {
            asleep[t] = 0;
            if (discarded[t]) stamp(t);
        }
}

static int is_any_asleep(int tag) {
    int any = 0;
    for (int t = 0; t < TAGS; t++) any |= asleep[t] && (tag == GPUPOOL_ALL || t == tag);
    return any;
}

static void wake_random(int tag) {
    gpupool_result result = wake_tag(tag);
    if (!is_any_asleep(tag)) {
        CHECK_RESULT(result, GPUPOOL_E_ARGUMENT);
        return;
    }
    if (result == GPUPOOL_E_OUT_OF_MEMORY) {
        CHECK(last_verdict().raise_bytes > 0);
        CHECK_RESULT(gpupool_set_limit(arena,
                                       kit_limit(arena) + (size_t)last_verdict().raise_bytes),
                     GPUPOOL_OK);
        result = wake_tag(tag);
    }
    if (CHECK_RESULT(result, GPUPOOL_OK)) note_wake(tag);
}

static void sleep_random(int tag, gpupool_content content) {
    int all = 1;
    for (int t = 0; t < TAGS; t++) all &= asleep[t] || (tag != GPUPOOL_ALL && t != tag);
    if (CHECK_RESULT(sleep_tag(tag, content), all ? GPUPOOL_E_ASLEEP : GPUPOOL_OK) && !all)
        note_sleep(tag, (int)content);
}

/* What the arena says could be had, can be. */
static void what_could_be_had(size_t bytes) {
    size_t most = kit_limit(arena), reserved = kit_reserved(arena);
    int fits = kit_fits(arena, bytes, NULL);
    CHECK(kit_available(arena) <= (most > reserved ? most : reserved));
    if (bytes > kit_available(arena) && !GPUPOOL_GUARD) CHECK(!fits);
    void *block = gpupool_alloc(arena, bytes, kit_stream[0]);
    if (fits) CHECK(block != NULL);
    if (block) give(block, 0);
}

static void random_step(uint64_t *random) {
    int tag = (int)check_below(random, TAGS), i = (int)check_below(random, TAG_SLOTS);
    int part = tag ? tag : check_below(random, 3) ? KV : GPUPOOL_ALL;
    gpupool_result shared = asleep[0] ? GPUPOOL_E_ASLEEP : GPUPOOL_OK;
    switch (check_below(random, 16)) {
    case 0: sleep_random(part, GPUPOOL_KEEP); break;
    case 1: sleep_random(part, GPUPOOL_DISCARD); break;
    case 2:
    case 3: wake_random(part); break;
    case 4: CHECK_RESULT(gpupool_trim(arena, check_below(random, 64) * MIB, NULL), shared); break;
    case 5:
        if (!asleep[0])
            CHECK_RESULT(gpupool_set_limit(arena, (24 + check_below(random, 80)) * MIB),
                         GPUPOOL_OK);
        break;
    case 6:
        if (!asleep[tag] && slot[tag][i].at) expect_slot(slot_stream(i), tag, i);
        if (!asleep[0]) what_could_be_had(check_below(random, 40) * MIB + 1);
        break;
    default:
        if (slot[tag][i].at) put(tag, i);
        else if (asleep[tag]) refused(tag_size(random), tag, GPUPOOL_E_ASLEEP);
        else get(tag, i, tag_size(random));
    }
    for (uint64_t n = check_below(random, 8); n; n--)
        fake_step(kit_stream[check_below(random, KIT_STREAMS)]);
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
}

static void random_calls(void) {
    for (uint64_t seed = 1; seed <= 8; seed += EVERY) {
        uint64_t random = seed;
        check_case("seed %d", (int)seed);
        open_tags(3, 96 * MIB);
        tag_doublings = 12;
        tag_edges = 1;
        memset(asleep, 0, sizeof asleep);
        fake_mode(FAKE_STEPPED);
        for (int step = 0; step < 500 && !fake_failures(); step++) {
            random_step(&random);
            if (step % 25 == 0) no_chunk_is_shared(3);
        }
        CHECK_RESULT(gpupool_set_limit(arena, 0), GPUPOOL_OK);
        if (is_any_asleep(GPUPOOL_ALL)) wake_random(GPUPOOL_ALL);
        fake_run_all();
        for (int tag = 0; tag < TAGS; tag++) expect_slots(tag);
        figures_agree(3);
        CHECK_EQ(fake_failures(), 0);
        close_tags();
    }
    tag_doublings = 13;
    check_case(" ");
}

/* ---- threads ---- */

static void *beside(void *number) {
    const int stream = (int)(uintptr_t)number, tag = stream % 3; /* the last: untagged, too */
    uint64_t random = 1 + (uint64_t)stream;
    struct { void *at; size_t bytes; } mine[12];
    memset(mine, 0, sizeof mine);
    for (int i = 0; i < 1500; i++) {
        size_t n = check_below(&random, 12);
        if (mine[n].at) {
            if (tag != KV) kit_expect_mark(kit_stream[stream], mine[n].at, mine[n].bytes, stream);
            give(mine[n].at, stream);
            mine[n].at = NULL;
        } else {
            mine[n].bytes = 1 + check_below(&random, MIB);
            mine[n].at = take(mine[n].bytes, tag, stream);
            if (!mine[n].at && CHECK(tag == KV)) CHECK_EQ(gpupool_last_result(), GPUPOOL_E_ASLEEP);
            if (mine[n].at && tag != KV)
                kit_mark(kit_stream[stream], mine[n].at, mine[n].bytes, stream);
        }
    }
    for (size_t n = 0; n < 12; n++)
        if (mine[n].at) give(mine[n].at, stream);
    return NULL;
}

static void threads_work_beside_sleep(void) {
    pthread_t thread[KIT_STREAMS];
    open_tags(2, 0);
    for (int i = 0; i < KIT_STREAMS; i++)
        pthread_create(&thread[i], NULL, beside, (void *)(uintptr_t)i);
    for (int i = 0; i < 40; i++) {
        CHECK_RESULT(sleep_tag(KV, i % 2 ? GPUPOOL_KEEP : GPUPOOL_DISCARD), GPUPOOL_OK);
        CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
        CHECK_RESULT(wake_tag(KV), GPUPOOL_OK);
    }
    for (int i = 0; i < KIT_STREAMS; i++) pthread_join(thread[i], NULL);
    close_tags();
}

static atomic_int uploads_end;

static void *upload_often(void *block) {
    static char host[64 * KIB];
    while (!atomic_load(&uploads_end))
        CHECK_RESULT(gpupool_upload(ring, block, host, sizeof host, kit_stream[1]),
                     GPUPOOL_E_ASLEEP);
    return NULL;
}

/* A transfer to what sleeps is refused, while another tag falls asleep and wakes. */
static void transfers_beside_sleep(void) {
    pthread_t thread[2];
    open_tags(3, 0);
    void *block = must_take(64 * KIB, DRAFT, 1);
    CHECK_RESULT(sleep_tag(DRAFT, GPUPOOL_KEEP), GPUPOOL_OK);
    atomic_store(&uploads_end, 0);
    for (int i = 0; i < 2; i++) pthread_create(&thread[i], NULL, upload_often, block);
    for (int i = 0; i < 4000; i++) {
        CHECK_RESULT(sleep_tag(KV, GPUPOOL_KEEP), GPUPOOL_OK);
        CHECK_RESULT(wake_tag(KV), GPUPOOL_OK);
    }
    atomic_store(&uploads_end, 1);
    for (int i = 0; i < 2; i++) pthread_join(thread[i], NULL);
    CHECK_RESULT(wake_tag(DRAFT), GPUPOOL_OK);
    give(block, 1);
    close_tags();
}

/* ---- the program is told ---- */

static int all_covered(int tag) {
    int covered = 0, blocks = 0;
    for (int i = 0; i < TAG_SLOTS; i++)
        if (slot[tag][i].at) {
            blocks++;
            covered += registry_covers(slot[tag][i].at, slot[tag][i].bytes);
        }
    return covered == blocks ? 1 : covered == 0 ? 0 : -1;
}

static void only_its_own_go_and_come(void) {
    gpupool_arena_config config = registry_config(GPUPOOL_SOURCE_MAPPED, 60 * MIB);
    registry_clear();
    memset(slot, 0, sizeof slot);
    arena = kit_create(&config);
    make_tag("weights", 1, 0);
    make_tag("kv", 1, 4 * MIB);
    CHECK(known.told > 0 && known.gone == 0); /* the reserve */
    for (int cycle = 0; cycle < 6; cycle++) {
        size_t count;
        long gone;
        check_case("cycle %d", cycle);
        for (int tag = 0; tag <= KV; tag++) fill_slots(tag, (uint64_t)cycle + 1);
        count = known.count;
        gone = known.gone;
        CHECK_RESULT(sleep_tag(KV, GPUPOOL_KEEP), GPUPOOL_OK);
        CHECK(known.gone > gone && known.count > 0 && known.count < count);
        CHECK_EQ(all_covered(KV), 0);
        CHECK_EQ(all_covered(0), 1);
        CHECK_EQ(all_covered(WEIGHTS), 1);
        count = known.count;
        if (cycle % 2) {
            known.refuse_at = 1 + cycle / 2;
            CHECK_RESULT(wake_tag(KV), GPUPOOL_E_CALLBACK);
            known.refuse_at = 0;
            CHECK_EQ(known.count, count);
            CHECK_EQ(all_covered(KV), 0);
            CHECK(stats_of(KV).asleep_bytes > 0);
        }
        registry_verify();
        CHECK_RESULT(wake_tag(KV), GPUPOOL_OK);
        for (int tag = 0; tag <= KV; tag++) {
            CHECK_EQ(all_covered(tag), 1);
            expect_slots(tag);
        }
        registry_verify();
    }
    ring = NULL;
    close_tags();
    CHECK_EQ(known.count, 0);
    CHECK_EQ(known.told, known.gone);
    check_case(" ");
}

/* ---- ends ---- */

/* Of an arena that ends no reserve is wanted again: it needs no memory. */
static void destroyed_while_a_tag_sleeps(void) {
    for (int reserve = 0; reserve < 2; reserve++) {
        check_case("reserve %d", reserve);
        open_tags(1, 0);
        CHECK_EQ(make_tag("kv", 1, reserve ? 8 * MIB : 0), KV);
        for (int tag = 0; tag <= KV; tag++) fill_slots(tag, 3);
        CHECK_RESULT(sleep_tag(KV, GPUPOOL_KEEP), GPUPOOL_OK);
        CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_E_IN_USE);
        put_all(0);
        put_all(WEIGHTS);
        CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_E_IN_USE);
        CHECK(stats_of(KV).asleep_bytes > 0);
        put_all(KV);
        CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK); /* nothing idle makes room */
        fake_other_process(0, (size_t)140 * GIB - fake_used_bytes(0));
        CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_OK);
        fake_other_process(0, 0);
        CHECK_RESULT(gpupool_ring_destroy(ring), GPUPOOL_OK);
    }
    check_case(" ");
}

/* An arena that could not end goes on, and keeps its reserves. */
static void an_end_in_vain(void) {
    open_tags(0, 0);
    make_tag("kept", 0, 8 * MIB);
    for (int in_use = 0; in_use < 2; in_use++) {
        void *block = in_use ? must_take(4096, 0, 0) : NULL;
        if (!in_use) fake_fail_call("cuMemUnmap", 1, 0, 0);
        CHECK_RESULT(gpupool_arena_destroy(arena), in_use ? GPUPOOL_E_IN_USE : GPUPOOL_E_CUDA);
        fake_fail_clear();
        if (in_use) give(block, 0);
        CHECK_RESULT(gpupool_wait_all(arena), GPUPOOL_OK);
        CHECK(kit_reserved(arena) >= 8 * MIB);
        CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
        CHECK_EQ(kit_reserved(arena), 8 * MIB);
    }
    close_tags();
}

static void reset_while_a_tag_sleeps(void) {
    for (int way = 0; way < 2; way++) {
        if (way) kit_prepare();
        open_tags(2, 60 * MIB);
        for (int tag = 0; tag <= KV; tag++) fill_slots(tag, 3);
        CHECK_RESULT(sleep_tag(KV, way ? GPUPOOL_KEEP : GPUPOOL_DISCARD), GPUPOOL_OK);
        CHECK_EQ(cudaDeviceReset(), cudaSuccess);
        memset(kit_stream, 0, sizeof kit_stream);
        CHECK(wake_tag(KV) != GPUPOOL_OK);
        CHECK(sleep_tag(WEIGHTS, GPUPOOL_KEEP) != GPUPOOL_OK);
        CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_OK);
        CHECK_RESULT(gpupool_ring_destroy(ring), GPUPOOL_OK);
    }
}

/* The child can do nothing with it, and the parent goes on. */
static void forked_while_a_tag_sleeps(void) {
    int status = -1;
    open_tags(2, 60 * MIB);
    for (int tag = 0; tag <= KV; tag++) fill_slots(tag, 3);
    CHECK_RESULT(sleep_tag(KV, GPUPOOL_KEEP), GPUPOOL_OK);
    pid_t child = fork();
    if (child == 0) {
        int good = wake_tag(KV) == GPUPOOL_E_FORKED && sleep_tag(WEIGHTS, GPUPOOL_KEEP) ==
                                                           GPUPOOL_E_FORKED;
        good &= !take(4096, KV, 0) && gpupool_last_result() == GPUPOOL_E_FORKED;
        _exit(good ? 0 : 1);
    }
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
    CHECK_RESULT(wake_tag(KV), GPUPOOL_OK);
    for (int tag = 0; tag <= KV; tag++) expect_slots(tag);
    close_tags();
}

#endif

int main(void) {
    FAKE_TEST(calls_that_fail);
    FAKE_TEST(tags_that_fail);
    FAKE_TEST(random_calls);
    FAKE_TEST(threads_work_beside_sleep);
    FAKE_TEST(transfers_beside_sleep);
    FAKE_TEST(only_its_own_go_and_come);
    FAKE_TEST(destroyed_while_a_tag_sleeps);
    FAKE_TEST(an_end_in_vain);
    FAKE_TEST(reset_while_a_tag_sleeps);
    FAKE_TEST(forked_while_a_tag_sleeps);
    return check_finish();
}
