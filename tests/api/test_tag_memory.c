/* Whose memory is whose, with tags that have chunks of their own: what a stream frees it has again
   at once, others get it once the work is done; frees while asleep; and what verdicts advise when
   one tag's chunks are in another's way, or waking finds no memory. */
// build: plain -O1
// build: asan -fsanitize=address,undefined
// build: check2 -O1 -DGPUPOOL_CHECK=2
// build: guard -DGPUPOOL_GUARD=1
// build: sites -DGPUPOOL_SITES=1
#include "gpupool.h"
#include "tag_kit.h"

#include <pthread.h>

#if CHECK_FAKE

enum { WEIGHTS = 1, KV = 2 };

/* ---- the order of work ---- */

static void a_stream_has_its_own_again(void) {
    open_tags(2, 0);
    fake_mode(FAKE_STEPPED);
    for (size_t bytes = 3000; bytes < 8 * MIB; bytes *= 7) {
        void *block = must_take(bytes, KV, 0), *again, *other;
        size_t reserved = kit_reserved(arena);
        long calls;
        check_case("%zu bytes", bytes);
        kit_fill(kit_stream[0], block, bytes, 1);
        give(block, 0);
        calls = fake_calls(NULL);
        again = must_take(bytes, KV, 0);
        CHECK(again == block);
        if (!GPUPOOL_GUARD) CHECK_EQ(fake_calls(NULL), calls); /* a guard is filled */
        CHECK_EQ(kit_reserved(arena), reserved);
        kit_fill(kit_stream[0], again, bytes, 2);
        kit_expect(kit_stream[0], again, bytes, 2);
        give(again, 0);
        other = must_take(bytes, KV, 1); /* its work is queued: not to be had */
        CHECK(other != block);
        kit_fill(kit_stream[1], other, bytes, 3);
        give(must_take(bytes, WEIGHTS, 0), 0); /* nor by another tag, ever */
        fake_run_all();
        reserved = kit_reserved(arena);
        again = must_take(bytes, KV, 1); /* without growth */
        CHECK_EQ(kit_reserved(arena), reserved);
        kit_fill(kit_stream[1], again, bytes, 4);
        give(other, 1);
        give(again, 1);
        fake_run_all();
    }
    CHECK_EQ(fake_failures(), 0);
    check_case(" ");
    close_tags();
}

static void recorded_streams_are_waited_for(void) {
    open_tags(2, 0);
    fake_mode(FAKE_STEPPED);
    for (int round = 0; round < 3; round++) {
        const size_t bytes = 2 * MIB + (size_t)round * 4096;
        void *block = must_take(bytes, KV, 0), *other, *again;
        kit_fill(kit_stream[0], block, bytes, 1);
        kit_order(kit_stream[0], kit_stream[1]);
        kit_expect(kit_stream[1], block, bytes, 1);
        CHECK_RESULT(gpupool_record_stream(arena, block, kit_stream[1]), GPUPOOL_OK);
        give(block, 0);
        fake_run(kit_stream[0]);
        other = must_take(bytes, KV, 0);
        CHECK(other != block); /* stream 1 has yet to read it */
        kit_fill(kit_stream[0], other, bytes, 2);
        fake_run_all();
        again = must_take(bytes, KV, 0);
        CHECK(again == block);
        kit_fill(kit_stream[0], again, bytes, 3);
        give(other, 0);
        give(again, 0);
        fake_run_all();
    }
    CHECK_EQ(fake_failures(), 0);
    close_tags();
}

/* Nobody waits on the host who may not. */
static void random_orders(void) {
    for (uint64_t seed = 1; seed <= 12; seed++) {
        uint64_t random = seed;
        check_case("seed %d", (int)seed);
        open_tags(2, 24 * MIB);
        fake_mode(FAKE_STEPPED);
        for (int step = 0; step < 150; step++) {
            int tag = (int)check_below(&random, 3), i = (int)check_below(&random, TAG_SLOTS);
            cudaStream_t reader = kit_stream[check_below(&random, KIT_STREAMS)];
            size_t bytes = (size_t)1 << (12 + check_below(&random, 10));
            if (!slot[tag][i].at) {
                get(tag, i, bytes); /* few sizes: they meet again */
            } else {
                expect_slot(slot_stream(i), tag, i);
                if (check_below(&random, 3) == 0) {
                    kit_order(slot_stream(i), reader);
                    expect_slot(reader, tag, i);
                    CHECK_RESULT(gpupool_record_stream(arena, slot[tag][i].at, reader),
                                 GPUPOOL_OK);
                }
                put(tag, i);
            }
            for (uint64_t n = check_below(&random, 6); n; n--)
                fake_step(kit_stream[check_below(&random, KIT_STREAMS)]);
            if (step % 50 == 49) { /* what is freed and unfinished is waited for */
                CHECK_RESULT(sleep_tag(1 + step / 50 % 2, GPUPOOL_KEEP), GPUPOOL_OK);
                fill_slots(0, seed);
                if (wake_tag(1 + step / 50 % 2) != GPUPOOL_OK) { /* others have its memory */
                    CHECK_RESULT(gpupool_last_result(), GPUPOOL_E_OUT_OF_MEMORY);
                    put_all(0);
                    CHECK_RESULT(wake_tag(1 + step / 50 % 2), GPUPOOL_OK);
                }
            }
        }
        fake_run_all();
        CHECK_EQ(fake_failures(), 0);
        close_tags();
    }
    check_case(" ");
}

/* A graph's blocks with the tag: replays after each sleep are as good as before. */
static void graphs_of_a_tag(void) {
    gpupool_capture *scope;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaStream_t stream;
    open_tags(2, 0);
    stream = kit_stream[0];
    char *in = must_take(3 * MIB, KV, 0), *other = must_take(4 * MIB, WEIGHTS, 0);
    kit_fill(stream, other, 4 * MIB, 77);
    CHECK_RESULT(gpupool_begin_capture(arena, stream, &scope), GPUPOOL_OK);
    CHECK_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
    char *kept = must_take(5 * MIB, KV, 0), *scratch = must_take(4 * MIB, KV, 0);
    CHECK_EQ(cudaMemcpyAsync(scratch, in, 3 * MIB, cudaMemcpyDeviceToDevice, stream),
             cudaSuccess);
    CHECK_EQ(cudaMemcpyAsync(kept, scratch, 3 * MIB, cudaMemcpyDeviceToDevice, stream),
             cudaSuccess);
    give(scratch, 0);
    CHECK(must_take(4 * MIB, KV, 0) == scratch); /* the graph has it again */
    CHECK_EQ(cudaMemsetAsync(scratch, 9, 4 * MIB, stream), cudaSuccess);
    give(scratch, 0);
    CHECK_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    CHECK_RESULT(gpupool_end_capture(scope), GPUPOOL_OK);
    CHECK_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    for (int cycle = 0; cycle < 6; cycle++) {
        void *mine = must_take(4 * MIB, KV, 1); /* not the graph's scratch */
        CHECK(mine != scratch);
        kit_fill(kit_stream[1], mine, 4 * MIB, 50);
        kit_fill(stream, in, 3 * MIB, cycle + 1);
        CHECK_RESULT(gpupool_sleep(arena, cycle % 3 == 2 ? GPUPOOL_ALL : KV, GPUPOOL_KEEP,
                                   cycle % 2 ? ring : NULL),
                     GPUPOOL_OK);
        if (cycle % 3 != 2) kit_expect(stream, other, 4 * MIB, 77);
        CHECK_RESULT(gpupool_wake(arena, KV, NULL), GPUPOOL_OK);
        CHECK_EQ(cudaGraphLaunch(exec, stream), cudaSuccess);
        kit_expect(stream, kept, 3 * MIB, cycle + 1);
        kit_expect(kit_stream[1], mine, 4 * MIB, 50);
        give(mine, 1);
        if (cycle % 3 == 2) CHECK_RESULT(wake_tag(GPUPOOL_ALL), GPUPOOL_OK);
    }
    CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
    CHECK_RESULT(sleep_tag(KV, GPUPOOL_DISCARD), GPUPOOL_OK); /* the release finds it asleep */
    CHECK_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
    CHECK_EQ(cudaGraphDestroy(graph), cudaSuccess);
    if (gpupool_release_capture(scope) != GPUPOOL_OK) {
        CHECK_RESULT(gpupool_last_result(), GPUPOOL_E_ASLEEP);
        CHECK_RESULT(wake_tag(KV), GPUPOOL_OK);
        CHECK_RESULT(gpupool_release_capture(scope), GPUPOOL_OK);
    } else {
        CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
        CHECK_RESULT(wake_tag(KV), GPUPOOL_OK);
    }
    kit_expect(stream, other, 4 * MIB, 77);
    CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
    give(in, 0);
    give(other, 0);
    CHECK_EQ(stats_of(KV).blocks.now, 0);
    close_tags();
}

/* Of an arena that sleeps one tag is awake: a verdict counts what that tag has alone. The blocks of
   a tag that has no chunks of its own sleep with the others. */
static void what_sleeps_holds_no_memory(void) {
    open_tags(2, 64 * MIB);
    void *plain = must_take(MIB, make_tag("plain", 0, 0), 0);
    void *kv = must_take(10 * MIB, KV, 0), *weights = must_take(20 * MIB, WEIGHTS, 0);
    void *shared = kit_alloc(arena, 8 * MIB, kit_stream[0]);
    CHECK_RESULT(sleep_tag(GPUPOOL_ALL, GPUPOOL_DISCARD), GPUPOOL_OK);
    CHECK_RESULT(wake_tag(KV), GPUPOOL_OK);
    refused(60 * MIB, KV, GPUPOOL_E_OUT_OF_MEMORY);
    CHECK_EQ(last_verdict().granted_bytes, stats_of(KV).granted.now);
    CHECK_RESULT(wake_tag(GPUPOOL_ALL), GPUPOOL_OK);
    refused(60 * MIB, KV, GPUPOOL_E_OUT_OF_MEMORY);
    CHECK_EQ(last_verdict().granted_bytes, kit_stats(arena).granted.now);
    give(plain, 0);
    give(kv, 0);
    give(weights, 0);
    give(shared, 0);
    close_tags();
}

/* What a verdict says of another stream's memory that no tag's chunks hold: its work is in the way,
   and once that is done the tag has the memory. */
static void untagged_work_in_the_way(void) {
    open_tags(2, 64 * MIB);
    void *kv = must_take(3 * MIB, KV, 0), *shared = kit_alloc(arena, 40 * MIB, kit_stream[1]);
    fake_mode(FAKE_STEPPED);
    kit_mark(kit_stream[1], shared, 40 * MIB, 1);
    give(shared, 1);
    CHECK_RESULT(gpupool_record_stream(arena, kv, kit_stream[1]), GPUPOOL_OK); /* an event there */
    CHECK_RESULT(kit_why(take_as(50 * MIB, KV, 0, GPUPOOL_NO_WAIT)), GPUPOOL_E_OUT_OF_MEMORY);
    CHECK_EQ(last_verdict().cause, GPUPOOL_CAUSE_PENDING);
    CHECK_EQ(fake_pending(kit_stream[1]) > 0, 1);
    CHECK_EQ(cudaStreamSynchronize(kit_stream[1]), cudaSuccess);
    void *large = take_as(50 * MIB, KV, 0, GPUPOOL_NO_WAIT);
    CHECK_RESULT(kit_why(large), GPUPOOL_OK);
    give(large, 0);
    give(kv, 0);
    fake_mode(FAKE_EAGER);
    close_tags();
}

/* ---- frees while asleep ---- */

static void freed_while_asleep(void) {
    for (int way = 0; way < 8; way++) {
        const int all = way % 2;
        const gpupool_content content = way / 2 % 2 ? GPUPOOL_KEEP : GPUPOOL_DISCARD;
        const int whole = way / 4;
        size_t before;
        check_case("way %d", way);
        open_tags(2, 60 * MIB);
        for (int tag = 0; tag <= KV; tag++) fill_slots(tag, (uint64_t)way + 1);
        before = kit_reserved(arena);
        CHECK_RESULT(sleep_tag(whole ? GPUPOOL_ALL : KV, content), GPUPOOL_OK);
        for (int i = 0; i < TAG_SLOTS; i += all ? 1 : 2) put(KV, i);
        CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
        if (!whole) fill_slots(0, (uint64_t)way + 5);
        if (all) fake_other_process(0, (size_t)140 * GIB - fake_used_bytes(0));
        CHECK_RESULT(wake_tag(KV), GPUPOOL_OK); /* all freed: without memory */
        fake_other_process(0, 0);
        if (all) CHECK_EQ(stats_of(KV).granted.now, 0);
        if (whole) CHECK_RESULT(wake_tag(GPUPOOL_ALL), GPUPOOL_OK);
        if (all && whole) CHECK(kit_reserved(arena) < before);
        if (content == GPUPOOL_DISCARD)
            for (int tag = whole ? 0 : KV; tag <= KV; tag++) stamp(tag);
        for (int tag = 0; tag <= KV; tag++) expect_slots(tag);
        figures_agree(KV);
        for (int tag = 0; tag <= KV; tag++) fill_slots(tag, (uint64_t)way + 9);
        for (int tag = 0; tag <= KV; tag++) expect_slots(tag);
        no_chunk_is_shared(KV);
        close_tags();
    }
    check_case(" ");
}

/* ---- waking without memory ---- */

static void no_room_to_wake(void) {
    gpupool_verdict verdict;
    for (int way = 0; way < 4; way++) {
        const int by_device = way % 2;
        void *big;
        check_case("way %d", way);
        open_tags(2, by_device ? 0 : 64 * MIB);
        fill_slots(KV, 3);
        fill_slots(WEIGHTS, 3);
        CHECK_RESULT(sleep_tag(KV, GPUPOOL_KEEP), GPUPOOL_OK);
        size_t asleep = (size_t)stats_of(KV).asleep_bytes;
        big = must_take(20 * MIB, 0, 0);
        if (by_device)
            fake_other_process(0, (size_t)140 * GIB - kit_reserved(arena) - asleep + 3 * MIB);
        else CHECK_RESULT(gpupool_set_limit(arena, kit_reserved(arena) + asleep - 3 * MIB),
                          GPUPOOL_OK);
        CHECK_RESULT(wake_tag(KV), GPUPOOL_E_OUT_OF_MEMORY);
        verdict = last_verdict();
        CHECK_EQ(verdict.cause, by_device ? GPUPOOL_CAUSE_OTHERS : GPUPOOL_CAUSE_LIMIT);
        CHECK_EQ(verdict.asked_bytes, asleep);
        CHECK_EQ(verdict.limit_bytes, kit_limit(arena));
        CHECK_EQ(verdict.device_total_bytes, 140 * GIB);
        CHECK_EQ(verdict.device_free_bytes,
                 by_device ? asleep - 3 * MIB : 140 * GIB - fake_used_bytes(0));
        CHECK(strlen(verdict.sentence) > 20 && strstr(gpupool_last_error(), verdict.sentence));
        CHECK_EQ(verdict.missing_bytes, 3 * MIB);
        CHECK_EQ(verdict.raise_bytes, by_device ? 0 : 3 * MIB);
        if (by_device)
            CHECK_EQ(verdict.others_bytes,
                     (size_t)140 * GIB - kit_reserved(arena) - asleep + 3 * MIB);
        CHECK_EQ(stats_of(KV).asleep_bytes, asleep);
        figures_agree(KV);
        expect_slots(WEIGHTS);
        if (way >= 2) { /* it says that freeing blocks would do, too */
            give(big, 0);
            big = NULL;
        } else if (by_device) {
            fake_other_process(0, (size_t)140 * GIB - kit_reserved(arena) - asleep);
        } else {
            CHECK_RESULT(gpupool_set_limit(arena,
                                           kit_limit(arena) + (size_t)verdict.raise_bytes),
                         GPUPOOL_OK);
        }
        CHECK_RESULT(wake_tag(KV), GPUPOOL_OK);
        expect_slots(KV);
        expect_slots(WEIGHTS);
        figures_agree(KV);
        if (big) give(big, 0);
        fake_other_process(0, 0);
        close_tags();
    }
    check_case(" ");
}

/* What is free makes room, though it lies in its stream's cache, and no event was recorded. */
static void caches_make_room_to_wake(void) {
    for (int blocks = 1; blocks <= 64; blocks += 21) {
        check_case("%d freed", blocks);
        open_tags(1, 0);
        void *block = must_take(8 * MIB, WEIGHTS, 0), *small[64];
        CHECK_RESULT(sleep_tag(WEIGHTS, GPUPOOL_DISCARD), GPUPOOL_OK);
        for (int i = 0; i < blocks; i++) small[i] = must_take(4096, 0, 0);
        for (int i = 0; i < blocks; i++) give(small[i], 0);
        CHECK_RESULT(gpupool_set_limit(arena, (size_t)stats_of(WEIGHTS).asleep_bytes),
                     GPUPOOL_OK);
        CHECK_RESULT(wake_tag(WEIGHTS), GPUPOOL_OK);
        CHECK_EQ(kit_reserved(arena), kit_limit(arena));
        give(block, 0);
        close_tags();
    }
    check_case(" ");
}

/* ---- memory in the chunks of another tag ---- */

/* What is idle in one tag's chunks is given back for another's request. */
static void idle_chunks_go_to_others(void) {
    for (int owner = 0; owner <= KV; owner++)
        for (int asker = 0; asker <= KV; asker++) {
            check_case("of %d, for %d", owner, asker);
            open_tags(2, 32 * MIB);
            void *small = must_take(3000, owner, 0);
            give(must_take(25 * MIB, owner, 1), 1);
            void *block = take(20 * MIB, asker, 2);
            CHECK(block != NULL);
            if (block) give(block, 2);
            give(small, 0);
            close_tags();
        }
    check_case(" ");
}

/* More than idle chunks of another tag would hold: with these gone, what the tag has free in its
   own is stitched to new memory. */
static void idle_chunks_go_for_a_stitch(void) {
    void *block[8];
    open_tags(2, 40 * MIB);
    for (int i = 0; i < 8; i++) block[i] = must_take(MIB - GUARDS, KV, 0);
    give(must_take(32 * MIB - GUARDS, WEIGHTS, 1), 1);
    CHECK_EQ(kit_reserved(arena), 40 * MIB);
    give(block[0], 0);
    void *large = must_take(33 * MIB - GUARDS, KV, 0); /* alone it would need 34 */
    CHECK_EQ(kit_reserved(arena), 40 * MIB);
    give(large, 0);
    for (int i = 1; i < 8; i++) give(block[i], 0);
    close_tags();
}

/* No more of them go than the stitch needs: half. */
static void half_of_the_idle_chunks_go(void) {
    for (int aligned = 0; aligned < 2; aligned++) {
        gpupool_request request = kit_request(17 * MIB - GUARDS, kit_stream[0], 0);
        void *block[8], *large;
        open_tags(2, 40 * MIB);
        for (int i = 0; i < 8; i++) block[i] = must_take(MIB - GUARDS, KV, 0);
        give(must_take(32 * MIB - GUARDS, WEIGHTS, 1), 1);
        give(block[7 * aligned], 0); /* at the end of a chunk, where no aligned block begins */
        request.tag = KV;
        if (aligned) request.alignment = 2 * MIB;
        large = gpupool_alloc_request(arena, &request);
        CHECK_RESULT(kit_why(large), GPUPOOL_OK);
        CHECK_EQ(kit_stats(arena).stitches, !aligned);
        CHECK_EQ(kit_reserved(arena), 40 * MIB);
        if (large) give(large, 0);
        for (int i = 0; i < 8; i++)
            if (i != 7 * aligned) give(block[i], 0);
        close_tags();
    }
}

static int trims;

static void *trim_to_22_mib(void *unused) {
    CHECK_RESULT(gpupool_trim(arena, 22 * MIB, NULL), GPUPOOL_OK);
    return unused;
}

static int trim_elsewhere(const gpupool_mapping *mapping, void *user) {
    pthread_t thread;
    (void)mapping;
    if (trims++) return 0;
    CHECK_EQ(pthread_create(&thread, NULL, trim_to_22_mib, user), 0);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    return 0;
}

/* While the program is told that the first one goes, another thread makes all the room that is
   needed: no further one goes. */
static void idle_chunks_that_others_give_back(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
    void *block[8];
    config.limit_bytes = 40 * MIB;
    config.on_unmap = trim_elsewhere;
    arena = kit_create(&config);
    CHECK_EQ(make_tag("weights", 1, 0), WEIGHTS);
    CHECK_EQ(make_tag("kv", 1, 0), KV);
    for (int i = 0; i < 8; i++) block[i] = must_take(MIB - GUARDS, KV, 0);
    give(must_take(32 * MIB - GUARDS, WEIGHTS, 1), 1);
    give(block[0], 0);
    trims = 0;
    block[0] = must_take(17 * MIB - GUARDS, KV, 0);
    CHECK_EQ(kit_stats(arena).stitches, 1);
    CHECK_EQ(trims, 10);
    CHECK_EQ(kit_reserved(arena), 36 * MIB);
    for (int i = 0; i < 8; i++) give(block[i], 0);
    kit_close(arena);
}

/* All that is idle would be too little, whether or not the tag has something free to stitch: so
   none goes. */
static void too_few_idle_chunks_stay(void) {
    for (int some_free = 0; some_free < 2; some_free++) {
        void *small[2], *live, *idle;
        open_tags(2, 42 * MIB);
        for (int i = 0; i < 2; i++) small[i] = must_take(MIB - GUARDS, KV, 0);
        live = must_take(20 * MIB - GUARDS, WEIGHTS, 1);
        idle = must_take(20 * MIB - GUARDS, WEIGHTS, 1);
        give(idle, 1);
        if (some_free) give(small[0], 0);
        CHECK_EQ(kit_reserved(arena), 42 * MIB);
        refused(31 * MIB - GUARDS, KV, GPUPOOL_E_OUT_OF_MEMORY);
        CHECK_EQ(kit_reserved(arena), 42 * MIB);
        give(live, 1);
        for (int i = some_free; i < 2; i++) give(small[i], 0);
        close_tags();
    }
}

/* Nor where the limit is a byte too low. */
static void a_byte_is_missing(void) {
    for (int missing = 0; missing < 2; missing++) {
        void *block[8], *large;
        open_tags(2, 42 * MIB - (size_t)missing);
        for (int i = 0; i < 8; i++) block[i] = must_take(MIB - GUARDS, KV, 0);
        give(must_take(32 * MIB - GUARDS, WEIGHTS, 1), 1);
        give(block[0], 0);
        CHECK_EQ(kit_reserved(arena), 40 * MIB);
        large = take(35 * MIB - GUARDS, KV, 0);
        CHECK_RESULT(kit_why(large), missing ? GPUPOOL_E_OUT_OF_MEMORY : GPUPOOL_OK);
        CHECK_EQ(kit_reserved(arena), (missing ? 40 : 42) * MIB);
        if (large) give(large, 0);
        for (int i = 1; i < 8; i++) give(block[i], 0);
        close_tags();
    }
}

/* What a person would do who frees blocks as advised: any of those that are meant. */
static int free_some(const gpupool_holder *holder, uint64_t *random) {
    uint64_t freed = 0;
    for (int tries = 0; tries < 4000 && freed < holder->enough; tries++) {
        int tag = (int)check_below(random, TAGS), i = (int)check_below(random, TAG_SLOTS);
        if (!slot[tag][i].at) continue;
        if (!GPUPOOL_SITES && slot[tag][i].bytes != holder->block_bytes) continue;
        put(tag, i);
        freed++;
    }
    return CHECK_EQ(freed, holder->enough);
}

static long raised, followed;

/* Refusals in random states: with each piece of advice followed the request succeeds. */
static void follow(uint64_t seed, int way) {
    uint64_t random = seed;
    gpupool_verdict verdict;
    void *block;
    open_tags(2, 40 * MIB);
    tag_edges = 1;
    if (seed % 5 == 4) CHECK_EQ(make_tag("kept", 0, 6 * MIB), 3);
    for (int step = 0; step < 60; step++) {
        int tag = (int)check_below(&random, 3), i = (int)check_below(&random, TAG_SLOTS);
        if (slot[tag][i].at) put(tag, i);
        else get(tag, i, (size_t)(1 + check_below(&random, 8)) * 512 * KIB);
    }
    if (seed % 3 == 0) CHECK_RESULT(sleep_tag(WEIGHTS, GPUPOOL_KEEP), GPUPOOL_OK);
    int asker = (int)check_below(&random, 2) * KV;
    size_t bytes = (size_t)(8 + check_below(&random, 30)) * MIB;
    block = take(bytes, asker, 0);
    if (!block) {
        CHECK_RESULT(gpupool_last_result(), GPUPOOL_E_OUT_OF_MEMORY);
        verdict = last_verdict();
        CHECK(verdict.asked_bytes == bytes && strlen(verdict.sentence) > 20);
        CHECK(verdict.granted_bytes <= verdict.reserved_bytes);
        CHECK_EQ(verdict.reserved_bytes, kit_reserved(arena));
        if (way == 0 && verdict.raise_bytes) {
            CHECK_RESULT(gpupool_set_limit(arena, 40 * MIB + (size_t)verdict.raise_bytes),
                         GPUPOOL_OK);
            block = must_take(bytes, asker, 0);
            raised++;
        } else if (way >= 1 && verdict.holders[way - 1].enough) {
            if (free_some(&verdict.holders[way - 1], &random)) {
                block = must_take(bytes, asker, 0);
                followed++;
            }
        }
        if (way == 0 && !block && !verdict.raise_bytes)
            CHECK(0); /* the device is empty: a higher limit always helps */
    }
    if (block) give(block, 0);
    if (seed % 3 == 0) {
        CHECK_RESULT(gpupool_set_limit(arena, 0), GPUPOOL_OK);
        CHECK_RESULT(wake_tag(WEIGHTS), GPUPOOL_OK);
    }
    for (int tag = 0; tag < TAGS; tag++) expect_slots(tag);
    close_tags();
}

static void advice_is_good(void) {
    raised = followed = 0;
    for (uint64_t seed = 1; seed <= 60; seed++)
        for (int way = 0; way <= 2; way++) {
            check_case("seed %d, way %d", (int)seed, way);
            follow(seed, way);
        }
    CHECK(raised > 3 && followed > 3);
    check_case(" ");
}

/* A callback of a request that lacks memory may put another tag to sleep: that frees memory. */
static int sleep_kv(const gpupool_verdict *verdict, void *user) {
    (void)verdict;
    ++*(int *)user;
    return sleep_tag(KV, GPUPOOL_KEEP) == GPUPOOL_OK;
}

static void sleep_when_memory_is_short(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
    int calls = 0;
    config.limit_bytes = 32 * MIB;
    config.on_out_of_memory = sleep_kv;
    config.user = &calls;
    ring = NULL;
    memset(slot, 0, sizeof slot);
    arena = kit_create(&config);
    make_tag("weights", 1, 0);
    make_tag("kv", 1, 0);
    CHECK(get(KV, 0, 20 * MIB));
    for (int tag = 0; tag <= WEIGHTS; tag++) {
        void *block = must_take(25 * MIB, tag, 0);
        CHECK_EQ(calls, tag + 1);
        CHECK_EQ(stats_of(KV).asleep_bytes >= 20 * MIB, 1);
        CHECK_RESULT(wake_tag(KV), GPUPOOL_E_OUT_OF_MEMORY);
        if (block) give(block, 0);
        CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
        CHECK_RESULT(wake_tag(KV), GPUPOOL_OK);
        expect_slots(KV);
    }
    close_tags();
}

/* Nothing is left of a tag whose reserve does not fit: neither its number, nor memory. */
static void a_reserve_that_does_not_fit(void) {
    gpupool_tag_config config;
    gpupool_stats before, after;
    void *live;
    int tag;
    memset(&config, 0, sizeof config);
    config.reserve_bytes = 40 * MIB;
    for (int way = 0; way < 3; way++) {
        check_case("way %d", way);
        config.can_sleep = way != 0;
        open_tags(1, way == 2 ? 0 : 32 * MIB);
        live = must_take(3 * MIB, WEIGHTS, 0);
        if (way == 2) fake_other_process(0, (size_t)140 * GIB - 20 * MIB);
        before = kit_stats(arena);
        CHECK_RESULT(gpupool_tag(arena, "large", &config, &tag), GPUPOOL_E_OUT_OF_MEMORY);
        CHECK_EQ(tag, 0);
        gpupool_verdict verdict = last_verdict();
        CHECK_EQ(verdict.cause, way == 2 ? GPUPOOL_CAUSE_OTHERS : GPUPOOL_CAUSE_LIMIT);
        CHECK_EQ(verdict.asked_bytes, 40 * MIB);
        CHECK_EQ(verdict.siblings_bytes, 0);
        CHECK(strstr(gpupool_last_error(), "config.reserve_bytes"));
        after = kit_stats(arena);
        after.splits = before.splits; /* to ask the driver, addresses were split and merged */
        after.merges = before.merges;
        kit_same_stats(before, after);
        CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
        refused(4096, 2, GPUPOOL_E_ARGUMENT);
        if (way == 2) fake_other_process(0, 0);
        else CHECK_RESULT(gpupool_set_limit(arena, 32 * MIB + (size_t)verdict.raise_bytes),
                          GPUPOOL_OK);
        CHECK_RESULT(gpupool_tag(arena, "large", &config, &tag), GPUPOOL_OK);
        CHECK_EQ(tag, 2);
        CHECK_EQ(kit_reserved(arena), before.reserved.now + 40 * MIB);
        give(live, 0);
        close_tags();
    }
    check_case(" ");
}

/* Nor does the next tag get what it was to be, nor do others lose what they are. */
static void a_tag_after_one_that_failed(void) {
    gpupool_tag_config config;
    int tag;
    memset(&config, 0, sizeof config);
    config.can_sleep = 1;
    config.reserve_bytes = 40 * MIB;
    open_tags(1, 32 * MIB);
    void *own = must_take(2 * MIB, WEIGHTS, 0), *other;
    CHECK_RESULT(gpupool_tag(arena, "large", &config, &tag), GPUPOOL_E_OUT_OF_MEMORY);
    give(own, 0);
    CHECK_RESULT(gpupool_wait_all(arena), GPUPOOL_OK);
    other = must_take(2 * MIB, 0, 0);
    CHECK(other != own);
    CHECK(must_take(2 * MIB, WEIGHTS, 0) == own);
    CHECK_EQ(make_tag("plain", 0, 0), KV);
    CHECK_RESULT(sleep_tag(KV, GPUPOOL_DISCARD), GPUPOOL_E_ARGUMENT);
    give(own, 0);
    give(other, 0);
    close_tags();
}

#endif

int main(void) {
    FAKE_TEST(a_stream_has_its_own_again);
    FAKE_TEST(recorded_streams_are_waited_for);
    FAKE_TEST(random_orders);
    FAKE_TEST(graphs_of_a_tag);
    FAKE_TEST(what_sleeps_holds_no_memory);
    FAKE_TEST(untagged_work_in_the_way);
    FAKE_TEST(freed_while_asleep);
    FAKE_TEST(no_room_to_wake);
    FAKE_TEST(caches_make_room_to_wake);
    FAKE_TEST(idle_chunks_go_to_others);
    FAKE_TEST(idle_chunks_go_for_a_stitch);
    FAKE_TEST(half_of_the_idle_chunks_go);
    FAKE_TEST(idle_chunks_that_others_give_back);
    FAKE_TEST(too_few_idle_chunks_stay);
    FAKE_TEST(a_byte_is_missing);
    FAKE_TEST(advice_is_good);
    FAKE_TEST(sleep_when_memory_is_short);
    FAKE_TEST(a_reserve_that_does_not_fit);
    FAKE_TEST(a_tag_after_one_that_failed);
    return check_finish();
}
