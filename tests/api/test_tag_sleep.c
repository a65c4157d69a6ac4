/* Tags that sleep alone: chunks of their own go and come back, what they hold stays, and all others
   work on meanwhile. Errors, reserves, GPUPOOL_ALL, frees while asleep, hooks, and ends. */
// build: plain -O1
// build: asan -fsanitize=address,undefined
// build: check2 -O1 -DGPUPOOL_CHECK=2
// build: guard -DGPUPOOL_GUARD=1
// build: sites -DGPUPOOL_SITES=1
// build: single -DGPUPOOL_SINGLE_THREAD=1
#include "fail_malloc.h"
#include "gpupool.h"
#include "tag_kit.h"

#if CHECK_FAKE

enum { WEIGHTS = 1, KV = 2, DRAFT = 3 };

/* ---- one tag sleeps, others work ---- */

static int count_live(const gpupool_block *block, void *user) {
    if (block->state == GPUPOOL_STATE_LIVE && block->block_bytes) ((int *)user)[block->tag]++;
    return 0;
}

/* Reports and walks show all blocks, whether they sleep or not. */
static void reports_work(void) {
    gpupool_result (*write[])(gpupool_arena *, FILE *) = {
        gpupool_report, gpupool_write_json, gpupool_write_svg, gpupool_write_snapshot};
    int seen[TAGS] = {0};
    gpupool_block found;
    for (size_t i = 0; i < KIT_COUNT(write); i++) {
        FILE *file = tmpfile();
        CHECK_RESULT(write[i](arena, file), GPUPOOL_OK);
        CHECK(ftell(file) > 100);
        fclose(file);
    }
    CHECK_RESULT(gpupool_walk_blocks(arena, count_live, seen), GPUPOOL_OK);
    for (int tag = 0; tag < TAGS; tag++)
        for (int i = 0; i < TAG_SLOTS; i++) {
            const tag_block *block = &slot[tag][i];
            seen[tag] -= block->at != NULL;
            if (!block->at) continue;
            CHECK_RESULT(gpupool_get_block(arena, block->at, &found), GPUPOOL_OK);
            CHECK(found.block == block->at && found.requested_bytes == block->bytes);
            CHECK_EQ(found.tag, tag);
        }
    for (int tag = 0; tag < TAGS; tag++) CHECK_EQ(seen[tag], 0);
}

static void hold_streams(int on) {
    for (int i = 0; i < KIT_STREAMS; i++) fake_hold(kit_stream[i], on);
}

/* Untagged work on all streams, some of it still queued at the end. */
static void others_work(uint64_t seed) {
    hold_streams(1);
    for (int i = 0; i < TAG_SLOTS; i++) {
        if (slot[0][i].at) expect_slot(slot_stream(i), 0, i);
        if (i % 7 == 3) fake_run(slot_stream(i));
    }
    fill_slots(0, seed);
    CHECK(fake_pending_all() > 0);
}

static void others_work_while_tags_sleep(void) {
    for (int way = 0; way < 8; way++) {
        const int first = way % 2 ? KV : WEIGHTS, second = WEIGHTS + KV - first;
        gpupool_ring *by = way / 4 ? ring : NULL;
        check_case("way %d", way);
        open_tags(2, 100 * MIB);
        by = way / 4 ? ring : NULL;
        for (int cycle = 0; cycle < 3; cycle++) {
            gpupool_stats before, after;
            uint64_t granted;
            void *was[TAG_SLOTS];
            hold_streams(0);
            for (int tag = 0; tag <= KV; tag++) fill_slots(tag, (uint64_t)(way * 10 + cycle + 1));
            for (int i = 0; i < TAG_SLOTS; i++) was[i] = slot[WEIGHTS][i].at;
            no_chunk_is_shared(KV);
            before = kit_stats(arena);
            granted = stats_of(WEIGHTS).granted.now;
            CHECK_RESULT(gpupool_sleep(arena, WEIGHTS, GPUPOOL_KEEP, by), GPUPOOL_OK);
            after = kit_stats(arena);
            CHECK_EQ(after.backup_bytes, granted);
            CHECK(stats_of(WEIGHTS).asleep_bytes >= granted);
            CHECK_EQ(after.asleep_bytes, stats_of(WEIGHTS).asleep_bytes);
            CHECK_EQ(before.reserved.now - after.reserved.now, after.asleep_bytes);
            figures_agree(KV);
            expect_slots(KV);
            CHECK_RESULT(gpupool_sleep(arena, KV, GPUPOOL_DISCARD, by), GPUPOOL_OK);
            after = kit_stats(arena);
            CHECK_EQ(after.backup_bytes, granted); /* as before */
            CHECK_EQ(after.asleep_bytes,
                     stats_of(WEIGHTS).asleep_bytes + stats_of(KV).asleep_bytes);
            CHECK_EQ(before.reserved.now - after.reserved.now, after.asleep_bytes);
            figures_agree(KV);
            others_work((uint64_t)(way * 10 + cycle + 5));
            reports_work();
            refused(4096, WEIGHTS, GPUPOOL_E_ASLEEP);
            refused(20 * MIB, KV, GPUPOOL_E_ASLEEP);
            CHECK_RESULT(gpupool_wake(arena, first, by), GPUPOOL_OK);
            CHECK_EQ(kit_stats(arena).backup_bytes, first == WEIGHTS ? 0 : granted);
            CHECK_EQ(kit_stats(arena).asleep_bytes, stats_of(second).asleep_bytes);
            figures_agree(KV);
            others_work((uint64_t)(way * 10 + cycle + 7));
            CHECK_RESULT(gpupool_wake(arena, second, by), GPUPOOL_OK);
            CHECK_EQ(kit_stats(arena).backup_bytes, 0);
            CHECK_EQ(kit_stats(arena).asleep_bytes, 0);
            CHECK_EQ(stats_of(WEIGHTS).asleep_bytes + stats_of(KV).asleep_bytes, 0);
            figures_agree(KV);
            for (int i = 0; i < TAG_SLOTS; i++) CHECK(was[i] == slot[WEIGHTS][i].at);
            expect_slots(WEIGHTS);
            expect_slots(0);
            stamp(KV);
            expect_slots(KV);
            reports_work();
            no_chunk_is_shared(KV);
        }
        hold_streams(0);
        close_tags();
    }
    check_case(" ");
}

/* Over random allocs and frees, whatever way a block comes about. */
static void chunks_of_their_own(void) {
    long stitches = 0;
    for (uint64_t seed = 1; seed <= 6; seed++) {
        uint64_t random = seed;
        int chunks = 0;
        check_case("seed %d", (int)seed);
        open_tags(3, seed % 2 ? 80 * MIB : 400 * MIB);
        tag_edges = 1;
        for (int step = 0; step < (GPUPOOL_CHECK > 1 ? 150 : 400); step++) {
            int tag = (int)check_below(&random, TAGS), i = (int)check_below(&random, TAG_SLOTS);
            if (slot[tag][i].at) put(tag, i);
            else get(tag, i, tag_size(&random));
            if (step % 97 == 96) CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
            CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
            chunks += no_chunk_is_shared(3);
        }
        CHECK(chunks > 100);
        for (int tag = 0; tag < TAGS; tag++) expect_slots(tag);
        stitches += (long)kit_stats(arena).stitches;
        close_tags();
    }
    CHECK(stitches > (GPUPOOL_CHECK > 1 ? 3 : 20));
    check_case(" ");
}

/* ---- errors ---- */

static void what_is_no_sleeping_tag(void) {
    static const int wrong[] = {-2, 0, 4, GPUPOOL_TAGS, GPUPOOL_TAGS + 1, 1 << 20};
    open_tags(1, 0);
    int plain = make_tag("plain", 0, 0), kept = make_tag("kept", 0, 4 * MIB);
    CHECK_RESULT(sleep_tag(plain, GPUPOOL_KEEP), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(sleep_tag(kept, GPUPOOL_KEEP), GPUPOOL_E_ARGUMENT);
    CHECK(strstr(gpupool_last_error(), "can_sleep"));
    CHECK_RESULT(wake_tag(plain), GPUPOOL_E_ARGUMENT);
    for (size_t i = 0; i < KIT_COUNT(wrong); i++) {
        CHECK_RESULT(sleep_tag(wrong[i], GPUPOOL_KEEP), GPUPOOL_E_ARGUMENT);
        CHECK_RESULT(wake_tag(wrong[i]), GPUPOOL_E_ARGUMENT);
    }
    CHECK_RESULT(sleep_tag(WEIGHTS, (gpupool_content)9), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(wake_tag(WEIGHTS), GPUPOOL_E_ARGUMENT); /* it does not sleep */
    CHECK_RESULT(wake_tag(GPUPOOL_ALL), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(sleep_tag(WEIGHTS, GPUPOOL_KEEP), GPUPOOL_OK);
    CHECK_RESULT(sleep_tag(WEIGHTS, GPUPOOL_KEEP), GPUPOOL_E_ASLEEP);
    CHECK_RESULT(wake_tag(WEIGHTS), GPUPOOL_OK);
    CHECK_RESULT(wake_tag(WEIGHTS), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(sleep_tag(GPUPOOL_ALL, GPUPOOL_KEEP), GPUPOOL_OK);
    CHECK_RESULT(sleep_tag(WEIGHTS, GPUPOOL_KEEP), GPUPOOL_E_ASLEEP);
    CHECK_RESULT(sleep_tag(GPUPOOL_ALL, GPUPOOL_KEEP), GPUPOOL_E_ASLEEP);
    CHECK_RESULT(wake_tag(plain), GPUPOOL_E_ARGUMENT); /* its blocks are in the shared chunks */
    refused(4096, plain, GPUPOOL_E_ASLEEP);
    refused(4096, kept, GPUPOOL_E_ASLEEP);
    CHECK_RESULT(wake_tag(GPUPOOL_ALL), GPUPOOL_OK);
    give(must_take(4096, plain, 0), 0);
    give(must_take(4096, kept, 0), 0);
    close_tags();
}

/* Only a MAPPED arena can; a tag that is refused has no number. */
static void what_other_sources_refuse(void) {
    gpupool_tag_config config;
    open_ring();
    for (size_t s = 0; s < KIT_SOURCES; s++) {
        int tag = 7, can = kit_sources[s].source <= GPUPOOL_SOURCE_MAPPED; /* AUTO: here, too */
        check_case("source %s", kit_sources[s].name);
        arena = kit_open(kit_sources[s].source);
        memset(&config, 0, sizeof config);
        config.can_sleep = 1;
        CHECK_RESULT(gpupool_tag(arena, "weights", &config, &tag),
                     can ? GPUPOOL_OK : GPUPOOL_E_UNSUPPORTED);
        CHECK_EQ(tag, can ? 1 : 0);
        config.can_sleep = 0;
        config.reserve_bytes = MIB;
        CHECK_RESULT(gpupool_tag(arena, "kv", &config, &tag),
                     can ? GPUPOOL_OK : GPUPOOL_E_UNSUPPORTED);
        CHECK_EQ(tag, can ? 2 : 0);
        CHECK_EQ(make_tag("plain", 0, 0), can ? 3 : 1);
        close_tags();
        open_ring();
    }
    arena = kit_open(GPUPOOL_SOURCE_DEVICE);
    CHECK_RESULT(sleep_tag(1, GPUPOOL_KEEP), GPUPOOL_E_UNSUPPORTED);
    close_tags();
    check_case(" ");
}

/* All 64 may have chunks of their own, and all sleep; the last one alone, too. */
static void as_many_as_there_are(void) {
    static char host[64];
    gpupool_tag_config config;
    void *block[GPUPOOL_TAGS + 1];
    int tag;
    open_tags(0, 0);
    for (int i = 1; i <= GPUPOOL_TAGS; i++) CHECK_EQ(make_tag("one more", 1, 0), i);
    memset(&config, 0, sizeof config);
    config.can_sleep = 1;
    CHECK_RESULT(gpupool_tag(arena, "too many", &config, &tag), GPUPOOL_E_UNSUPPORTED);
    CHECK_EQ(tag, 0);
    for (int i = 1; i <= GPUPOOL_TAGS; i++) {
        block[i] = must_take(3000, i, 0);
        kit_fill(kit_stream[0], block[i], 3000, i);
    }
    for (int i = 1; i <= GPUPOOL_TAGS; i += 2)
        CHECK_RESULT(sleep_tag(i, GPUPOOL_KEEP), GPUPOOL_OK);
    for (int i = 1; i <= GPUPOOL_TAGS; i++)
        CHECK_EQ(stats_of(i).asleep_bytes >= 2 * MIB, i % 2);
    figures_agree(GPUPOOL_TAGS);
    CHECK_RESULT(sleep_tag(GPUPOOL_ALL, GPUPOOL_KEEP), GPUPOOL_OK);
    CHECK_EQ(kit_reserved(arena), 0);
    for (int i = GPUPOOL_TAGS; i >= 1; i--) CHECK_RESULT(wake_tag(i), GPUPOOL_OK);
    CHECK_RESULT(wake_tag(GPUPOOL_ALL), GPUPOOL_OK);
    CHECK_RESULT(sleep_tag(GPUPOOL_TAGS, GPUPOOL_KEEP), GPUPOOL_OK);
    CHECK_RESULT(gpupool_upload(ring, block[GPUPOOL_TAGS], host, sizeof host, kit_stream[0]),
                 GPUPOOL_E_ASLEEP);
    CHECK_RESULT(wake_tag(GPUPOOL_TAGS), GPUPOOL_OK);
    for (int i = 1; i <= GPUPOOL_TAGS; i++) {
        kit_expect(kit_stream[0], block[i], 3000, i);
        give(block[i], 0);
    }
    close_tags();
}

/* Transfers ask where their memory is: only what sleeps is refused. */
static void transfers_of_what_sleeps(void) {
    static char host[64 << 10];
    char *asleep, *awake, *shared;
    open_tags(2, 0);
    asleep = must_take(5 * MIB, WEIGHTS, 0);
    awake = must_take(5 * MIB, KV, 0);
    shared = must_take(5 * MIB, 0, 0);
    kit_fill(kit_stream[0], asleep, 5 * MIB, 1);
    CHECK_RESULT(gpupool_sleep(arena, WEIGHTS, GPUPOOL_KEEP, ring), GPUPOOL_OK);
    for (size_t at = 0; at < 5 * MIB; at += MIB) {
        CHECK_RESULT(gpupool_upload(ring, asleep + at, host, sizeof host, kit_stream[0]),
                     GPUPOOL_E_ASLEEP);
        CHECK_RESULT(gpupool_download(ring, host, asleep + at, sizeof host, kit_stream[0]),
                     GPUPOOL_E_ASLEEP);
        memset(host, 7, sizeof host);
        CHECK_RESULT(gpupool_upload(ring, awake + at, host, sizeof host, kit_stream[0]),
                     GPUPOOL_OK);
        CHECK_RESULT(gpupool_upload(ring, shared + at, host, sizeof host, kit_stream[0]),
                     GPUPOOL_OK);
        memset(host, 0, sizeof host);
        CHECK_RESULT(gpupool_download(ring, host, shared + at, sizeof host, kit_stream[0]),
                     GPUPOOL_OK);
        CHECK_EQ(cudaStreamSynchronize(kit_stream[0]), cudaSuccess);
        for (size_t i = 0; i < sizeof host; i += 997) CHECK_EQ(host[i], 7);
    }
    CHECK_RESULT(gpupool_wake(arena, WEIGHTS, ring), GPUPOOL_OK);
    kit_expect(kit_stream[0], asleep, 5 * MIB, 1);
    CHECK_RESULT(gpupool_upload(ring, asleep, host, sizeof host, kit_stream[0]), GPUPOOL_OK);
    CHECK_EQ(cudaStreamSynchronize(kit_stream[0]), cudaSuccess);
    give(asleep, 0);
    give(awake, 0);
    give(shared, 0);
    close_tags();
}

static void exported_and_captured(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
    gpupool_exported exported;
    gpupool_capture *scope;
    void *of_kv, *of_weights;
    open_ring();
    memset(slot, 0, sizeof slot);
    config.share = GPUPOOL_SHARE_PROCESSES;
    config.backup_bytes = (GPUPOOL_GUARD ? 6 : 3) * MIB; /* a guarded block has 4 */
    arena = kit_create(&config);
    make_tag("weights", 1, 0);
    make_tag("kv", 1, 0);
    of_kv = take_as(2 * MIB, KV, 0, GPUPOOL_EXPORTABLE);
    of_weights = take_as(2 * MIB, WEIGHTS, 0, GPUPOOL_EXPORTABLE);
    CHECK_RESULT(gpupool_export(arena, of_kv, &exported), GPUPOOL_OK);
    CHECK_RESULT(sleep_tag(KV, GPUPOOL_KEEP), GPUPOOL_E_IN_USE);
    CHECK_RESULT(sleep_tag(GPUPOOL_ALL, GPUPOOL_KEEP), GPUPOOL_E_IN_USE);
    CHECK_RESULT(sleep_tag(WEIGHTS, GPUPOOL_KEEP), GPUPOOL_OK);
    CHECK_RESULT(gpupool_export(arena, of_weights, &exported), GPUPOOL_E_ASLEEP);
    CHECK_RESULT(gpupool_export(arena, of_kv, &exported), GPUPOOL_OK);
    CHECK_RESULT(gpupool_export_close(arena, of_kv), GPUPOOL_OK);
    CHECK_RESULT(gpupool_export_close(arena, of_kv), GPUPOOL_OK);
    CHECK_RESULT(sleep_tag(KV, GPUPOOL_KEEP), GPUPOOL_E_HOST_MEMORY); /* 4 MiB in all */
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    CHECK_RESULT(sleep_tag(KV, GPUPOOL_DISCARD), GPUPOOL_OK);
    CHECK_RESULT(wake_tag(KV), GPUPOOL_OK);
    CHECK_RESULT(gpupool_begin_capture(arena, kit_stream[0], &scope), GPUPOOL_OK);
    CHECK_RESULT(sleep_tag(KV, GPUPOOL_DISCARD), GPUPOOL_E_CAPTURING);
    CHECK_RESULT(gpupool_release_capture(scope), GPUPOOL_OK);
    CHECK_RESULT(wake_tag(WEIGHTS), GPUPOOL_OK);
    CHECK_RESULT(gpupool_export(arena, of_weights, &exported), GPUPOOL_OK);
    CHECK_RESULT(gpupool_export_close(arena, of_weights), GPUPOOL_OK);
    give(of_kv, 0);
    give(of_weights, 0);
    close_tags();
}

/* What a graph has freed waits for the release of its scope. If the tag sleeps then, it waits for
   waking, too: nobody gives it back or gets it. */
static void released_while_it_sleeps(void) {
    gpupool_capture *scope;
    open_tags(2, 0);
    CHECK_RESULT(gpupool_begin_capture(arena, kit_stream[0], &scope), GPUPOOL_OK);
    give(must_take(4 * MIB, KV, 0), 0);
    CHECK_RESULT(gpupool_end_capture(scope), GPUPOOL_OK);
    fail_malloc_nth(1, 1); /* not even for its record: the tag stays awake */
    CHECK_RESULT(sleep_tag(KV, GPUPOOL_DISCARD), GPUPOOL_E_HOST_MEMORY);
    fail_malloc_nth(0, 0);
    give(must_take(2 * MIB, KV, 1), 1);
    CHECK_RESULT(sleep_tag(KV, GPUPOOL_KEEP), GPUPOOL_OK);
    CHECK_RESULT(gpupool_release_capture(scope), GPUPOOL_OK);
    give(must_take(4 * MIB, 0, 1), 1); /* to trim */
    CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
    CHECK_EQ(kit_reserved(arena), 0);
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    refused(4 * MIB, KV, GPUPOOL_E_ASLEEP);
    CHECK(strstr(gpupool_last_error(), "tag \"kv\" of arena") != NULL);
    CHECK_RESULT(wake_tag(KV), GPUPOOL_OK);
    CHECK_EQ(kit_reserved(arena), 0); /* it was freed: no memory for it */
    give(must_take(4 * MIB, KV, 1), 1);
    CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
    close_tags();
}

/* ---- GPUPOOL_ALL, and its parts ---- */

static void all_sleep_and_wake_one_by_one(void) {
    open_tags(3, 200 * MIB);
    for (int cycle = 0; cycle < 6; cycle++) {
        const int slept_before = cycle % 4; /* a tag that sleeps already; 0: none */
        check_case("cycle %d", cycle);
        for (int tag = 0; tag < TAGS; tag++) fill_slots(tag, (uint64_t)cycle + 3);
        if (slept_before)
            CHECK_RESULT(gpupool_sleep(arena, slept_before, GPUPOOL_KEEP, ring), GPUPOOL_OK);
        CHECK_RESULT(gpupool_sleep(arena, GPUPOOL_ALL, GPUPOOL_KEEP, ring), GPUPOOL_OK);
        CHECK_EQ(kit_reserved(arena), 0);
        CHECK_EQ(kit_stats(arena).backup_bytes, kit_stats(arena).granted.now);
        figures_agree(3);
        for (int tag = 0; tag < TAGS; tag++) refused(4096, tag, GPUPOOL_E_ASLEEP);
        for (int tag = 1 + cycle % 2; tag < TAGS; tag++) {
            CHECK_RESULT(gpupool_wake(arena, tag, cycle % 3 ? ring : NULL), GPUPOOL_OK);
            figures_agree(3);
            expect_slots(tag);
            CHECK_RESULT(wake_tag(tag), GPUPOOL_E_ARGUMENT);
            fill_slots(tag, (uint64_t)cycle + 9);
            refused(4096, 0, GPUPOOL_E_ASLEEP);
            if (tag < DRAFT) refused(4096, tag + 1, GPUPOOL_E_ASLEEP);
            CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_E_ASLEEP);
            expect_slots(tag);
            CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
        }
        CHECK_RESULT(sleep_tag(DRAFT, GPUPOOL_KEEP), GPUPOOL_OK); /* again */
        CHECK_RESULT(gpupool_wake(arena, GPUPOOL_ALL, ring), GPUPOOL_OK);
        CHECK_RESULT(wake_tag(GPUPOOL_ALL), GPUPOOL_E_ARGUMENT);
        CHECK_EQ(kit_stats(arena).backup_bytes, 0);
        CHECK_EQ(kit_stats(arena).asleep_bytes, 0);
        figures_agree(3);
        for (int tag = 0; tag < TAGS; tag++) expect_slots(tag);
        no_chunk_is_shared(3);
    }
    close_tags();
}

/* ---- reserves ---- */

static void a_reserve_is_kept(void) {
    gpupool_verdict verdict;
    size_t kept;
    void *block, *more;
    long calls;
    open_tags(0, 32 * MIB);
    CHECK_EQ(make_tag("weights", 1, 9 * MIB), WEIGHTS); /* in whole granules: 10 */
    CHECK_EQ(kit_reserved(arena), 10 * MIB);
    CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
    CHECK_EQ(kit_reserved(arena), 10 * MIB);
    CHECK_RESULT(kit_why(take(23 * MIB, 0, 0)), GPUPOOL_E_OUT_OF_MEMORY);
    verdict = last_verdict();
    CHECK_EQ(verdict.cause, GPUPOOL_CAUSE_LIMIT);
    CHECK_EQ(kit_reserved(arena), 10 * MIB);
    CHECK(verdict.raise_bytes > 0 && verdict.raise_bytes <= 2 * MIB + GUARDS * 4096);
    CHECK(strstr(verdict.sentence, "raise"));
    CHECK_RESULT(gpupool_set_limit(arena, 32 * MIB + (size_t)verdict.raise_bytes), GPUPOOL_OK);
    block = must_take(23 * MIB, 0, 0);
    CHECK_RESULT(gpupool_set_limit(arena, 4 * MIB), GPUPOOL_OK); /* nor does this give it back */
    calls = fake_calls(NULL);
    more = must_take(7 * MIB, WEIGHTS, 0);
    if (!GPUPOOL_GUARD) CHECK_EQ(fake_calls(NULL), calls); /* a guard is filled and compared */
    give(block, 0);
    CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
    CHECK_EQ(kit_reserved(arena), 10 * MIB);
    kit_fill(kit_stream[0], more, 7 * MIB, 5);
    CHECK_RESULT(sleep_tag(WEIGHTS, GPUPOOL_KEEP), GPUPOOL_OK);
    CHECK_EQ(kit_reserved(arena), 0);
    CHECK_EQ(stats_of(WEIGHTS).asleep_bytes, 10 * MIB);
    CHECK_RESULT(wake_tag(WEIGHTS), GPUPOOL_E_OUT_OF_MEMORY); /* the limit is 4 MiB */
    CHECK_RESULT(gpupool_set_limit(arena, 32 * MIB), GPUPOOL_OK);
    CHECK_RESULT(wake_tag(WEIGHTS), GPUPOOL_OK);
    CHECK_EQ(kit_reserved(arena), 10 * MIB);
    kit_expect(kit_stream[0], more, 7 * MIB, 5);
    CHECK_RESULT(sleep_tag(WEIGHTS, GPUPOOL_KEEP), GPUPOOL_OK);
    give(more, 0); /* nothing is live, and the reserve comes back all the same */
    CHECK_RESULT(wake_tag(WEIGHTS), GPUPOOL_OK);
    CHECK_EQ(kit_reserved(arena), 10 * MIB);
    calls = fake_calls("cuMemCreate");
    more = must_take(9 * MIB, WEIGHTS, 0);
    CHECK_EQ(fake_calls("cuMemCreate"), calls);
    block = must_take(9 * MIB, WEIGHTS, 0); /* more than the reserve, */
    kept = kit_reserved(arena);
    CHECK(kept > 10 * MIB);
    give(more, 0);
    give(block, 0);
    CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
    CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK); /* and only that is kept */
    CHECK(kit_reserved(arena) >= 9 * MIB && kit_reserved(arena) < kept);
    figures_agree(1);
    close_tags();
}

#endif

int main(void) {
    FAKE_TEST(others_work_while_tags_sleep);
    FAKE_TEST(chunks_of_their_own);
    FAKE_TEST(what_is_no_sleeping_tag);
    FAKE_TEST(what_other_sources_refuse);
    FAKE_TEST(as_many_as_there_are);
    FAKE_TEST(transfers_of_what_sleeps);
    FAKE_TEST(exported_and_captured);
    FAKE_TEST(released_while_it_sleeps);
    FAKE_TEST(all_sleep_and_wake_one_by_one);
    FAKE_TEST(a_reserve_is_kept);
    return check_finish();
}
