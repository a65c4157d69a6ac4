/* Streams that come and go, host functions, scopes of long ago: nothing grows for ever, nothing
   waits that need not. Counted, not timed. */
#include "gpupool.h"
#include <pthread.h>
#include "arena_kit.h"

#if CHECK_FAKE

static gpupool_arena *arena;

static void *one_block(void *bytes) {
    void *block = kit_alloc(arena, *(size_t *)bytes, cudaStreamPerThread);
    CHECK_RESULT(gpupool_free(arena, block, cudaStreamPerThread), GPUPOOL_OK);
    return NULL;
}

/* Threads one after the other, each with its own default stream, of which nobody says that it
   ends. */
static void threads_that_end(void) {
    size_t bytes = 700 * 1024;
    pthread_t thread;
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    for (int i = 0; i < 2000; i++) {
        CHECK_EQ(pthread_create(&thread, NULL, one_block, &bytes), 0);
        CHECK_EQ(pthread_join(thread, NULL), 0);
    }
    CHECK(kit_reserved(arena) < 64 * MIB);
    CHECK(kit_stats(arena).host_bytes < 16 * MIB); /* nor do the records */
    CHECK_EQ(kit_stats(arena).host_syncs, 0);
    kit_close(arena);
}

/* One request at the limit, and then plenty of room: a pair is what it was before. */
static void after_a_shortage(void) {
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 64 * MIB);
    void *block = kit_alloc(arena, 64 * MIB, kit_stream[0]);
    CHECK_RESULT(kit_why(gpupool_alloc(arena, MIB, kit_stream[0])), GPUPOOL_E_OUT_OF_MEMORY);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
    CHECK_RESULT(gpupool_set_limit(arena, 0), GPUPOOL_OK);
    for (int i = 0; i < 3000; i++) {
        block = kit_alloc(arena, 4096, kit_stream[0]);
        CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
    }
    long calls = kit_calls();
    uint64_t splits = kit_stats(arena).splits;
    for (int i = 0; i < 1000; i++) {
        block = kit_alloc(arena, 4096, kit_stream[0]);
        CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
    }
    CHECK_EQ(kit_calls(), calls);
    CHECK_EQ(kit_stats(arena).splits, splits); /* it comes from the cache */
    kit_close(arena);
}

/* The device is far behind: its events do not pass, and frees ask ever less often whether they
   have. Once they have, the next ones are recorded as before. */
static void frees_far_ahead_of_the_device(void) {
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    void *other = kit_alloc(arena, 4096, kit_stream[0]), *blocks[4];
    fake_mode(FAKE_STEPPED);
    long asked = fake_calls("cuEventQuery"), recorded = 0;
    for (int i = 0; i < 2000; i++) {
        for (int k = 0; k < 4; k++) {
            blocks[k] = kit_alloc(arena, 4 * MIB, kit_stream[1]);
            kit_mark(kit_stream[1], blocks[k], 4 * MIB, k);
        }
        for (int k = 0; k < 4; k++)
            CHECK_RESULT(gpupool_free(arena, blocks[k], kit_stream[1]), GPUPOOL_OK);
    }
    CHECK(fake_calls("cuEventQuery") - asked < 400); /* of 8,000 frees */
    fake_run_all();
    for (int i = 0; i < 300; i++) {
        if (i == 150) recorded = fake_calls("cuEventRecord");
        blocks[0] = kit_alloc(arena, 4 * MIB, kit_stream[1]);
        kit_mark(kit_stream[1], blocks[0], 4 * MIB, 1);
        CHECK_RESULT(gpupool_free(arena, blocks[0], kit_stream[1]), GPUPOOL_OK);
        fake_run_all();
    }
    CHECK(fake_calls("cuEventRecord") - recorded > 100);
    fake_mode(FAKE_EAGER);
    CHECK_RESULT(gpupool_free(arena, other, kit_stream[0]), GPUPOOL_OK);
    kit_close(arena);
}

static void *taken[2];

static void take_them(void *unused) {
    (void)unused;
    for (int i = 0; i < 2; i++) taken[i] = kit_alloc(arena, 4 * MIB, kit_stream[1 + i]);
}

/* While a request asks two streams how far they are, both take back what it had in mind. */
static void runs_that_go_meanwhile(void) {
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 8 * MIB);
    void *block = kit_alloc(arena, 8 * MIB, kit_stream[3]), *mine;
    CHECK_RESULT(kit_why(gpupool_alloc(arena, MIB, kit_stream[3])), GPUPOOL_E_OUT_OF_MEMORY);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[3]), GPUPOOL_OK); /* memory was short */
    take_them(NULL);
    fake_mode(FAKE_STEPPED);
    for (int i = 0; i < 2; i++) {
        kit_mark(kit_stream[1 + i], taken[i], 4 * MIB, i);
        CHECK_RESULT(gpupool_free(arena, taken[i], kit_stream[1 + i]), GPUPOOL_OK);
    }
    taken[0] = taken[1] = NULL;
    fake_before_call("cuEventQuery", 1, take_them, NULL);
    mine = gpupool_alloc(arena, 2 * MIB, kit_stream[0]);
    CHECK(taken[0] != NULL && taken[1] != NULL);
    CHECK_RESULT(kit_why(mine), GPUPOOL_E_OUT_OF_MEMORY);
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    for (int i = 0; i < 2; i++)
        CHECK_RESULT(gpupool_free(arena, taken[i], kit_stream[1 + i]), GPUPOOL_OK);
    fake_run_all();
    fake_mode(FAKE_EAGER);
    kit_close(arena);
}

/* However often a block's use is recorded, the stream has two events. */
static void uses_without_end(void) {
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    void *block = kit_alloc(arena, MIB, kit_stream[0]);
    long events = fake_calls("cuEventCreate");
    fake_mode(FAKE_STEPPED);
    for (int i = 0; i < 4000; i++) {
        kit_mark(kit_stream[1], block, MIB, i & 127);
        CHECK_RESULT(gpupool_record_stream(arena, block, kit_stream[1]), GPUPOOL_OK);
    }
    CHECK(fake_calls("cuEventCreate") - events <= 2);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
    fake_mode(FAKE_EAGER);
    kit_close(arena);
}

/* With several streams about, frees that add up to 1 MiB have an event. */
static void an_event_for_each_mib(void) {
    void *blocks[16], *other;
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    other = kit_alloc(arena, 4096, kit_stream[0]);
    for (size_t i = 0; i < KIT_COUNT(blocks); i++)
        blocks[i] = kit_alloc(arena, 640 * KIB, kit_stream[1]);
    long events = fake_calls("cuEventRecord");
    for (size_t i = 0; i < KIT_COUNT(blocks); i++)
        CHECK_RESULT(gpupool_free(arena, blocks[i], kit_stream[1]), GPUPOOL_OK);
    CHECK_EQ(fake_calls("cuEventRecord") - events, KIT_COUNT(blocks) / 2);
    CHECK_RESULT(gpupool_free(arena, other, kit_stream[0]), GPUPOOL_OK);
    kit_close(arena);
}

/* It counts from zero behind an event that a wait has recorded, and for a stream that gets another
   one's record. */
static void bytes_are_counted_from_zero(void) {
    for (int is_new = 0; is_new < 2; is_new++) {
        check_case("is new %d", is_new);
        arena = kit_open(GPUPOOL_SOURCE_MAPPED);
        void *other = kit_alloc(arena, 4096, kit_stream[0]);
        CHECK_RESULT(gpupool_free(arena, other, kit_stream[0]), GPUPOOL_OK);
        void *block = kit_alloc(arena, 640 * KIB, kit_stream[1]);
        void *rest = kit_alloc(arena, MIB - 512, kit_stream[1]);
        CHECK_RESULT(gpupool_free(arena, block, kit_stream[1]), GPUPOOL_OK);
        CHECK_RESULT(is_new ? gpupool_wait_all(arena) : gpupool_wait_stream(arena, kit_stream[1]),
                     GPUPOOL_OK);
        if (is_new) CHECK_RESULT(gpupool_retire_stream(arena, kit_stream[1]), GPUPOOL_OK);
        long events = fake_calls("cuEventRecord");
        CHECK_RESULT(gpupool_free(arena, rest, kit_stream[1]), GPUPOOL_OK);
        CHECK_EQ(fake_calls("cuEventRecord"), events);
        kit_close(arena);
    }
}

/* Or 64 of them do, where 1 MiB is little. */
static void an_event_for_64_frees(void) {
    void *blocks[64];
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    void *most = kit_alloc(arena, 32 * GIB, kit_stream[0]);
    for (size_t i = 0; i < KIT_COUNT(blocks); i++)
        blocks[i] = kit_alloc(arena, 256 * KIB, kit_stream[1]);
    long events = fake_calls("cuEventRecord");
    for (size_t i = 0; i < KIT_COUNT(blocks); i++) {
        CHECK_EQ(fake_calls("cuEventRecord"), events);
        CHECK_RESULT(gpupool_free(arena, blocks[i], kit_stream[1]), GPUPOOL_OK);
    }
    CHECK_EQ(fake_calls("cuEventRecord"), events + 1);
    CHECK_RESULT(gpupool_free(arena, most, kit_stream[0]), GPUPOOL_OK);
    kit_close(arena);
}

/* A wait for a stream keeps nothing of it: its record is the next stream's. */
static void streams_that_were_waited_for(void) {
    uint64_t bytes = 0;
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    for (int i = 0; i < 200; i++) {
        cudaStream_t brief = NULL;
        CHECK_EQ(cudaStreamCreateWithFlags(&brief, cudaStreamNonBlocking), cudaSuccess);
        void *block = kit_alloc(arena, MIB, brief);
        CHECK_RESULT(gpupool_free(arena, block, brief), GPUPOOL_OK);
        CHECK_RESULT(gpupool_wait_stream(arena, brief), GPUPOOL_OK);
        CHECK_RESULT(gpupool_retire_stream(arena, brief), GPUPOOL_OK);
        CHECK_EQ(cudaStreamDestroy(brief), cudaSuccess);
        CHECK_RESULT(gpupool_wait_all(arena), GPUPOOL_OK);
        if (i == 0) bytes = kit_stats(arena).host_bytes;
    }
    CHECK_EQ(kit_stats(arena).host_bytes, bytes);
    kit_close(arena);
}

/* A scope of a graph that is gone keeps nobody waiting for the device. */
static void cuda_free_after_a_scope(void) {
    gpupool_capture *scope;
    void *block = NULL;
    arena = gpupool_get_default_arena(0);
    CHECK_RESULT(gpupool_begin_capture(arena, kit_stream[0], &scope), GPUPOOL_OK);
    CHECK_RESULT(gpupool_end_capture(scope), GPUPOOL_OK);
    CHECK_RESULT(gpupool_release_capture(scope), GPUPOOL_OK);
    uint64_t waits = kit_stats(arena).host_syncs;
    for (int i = 0; i < 1000; i++) {
        CHECK_EQ(gpupool_cudaMalloc(&block, MIB), cudaSuccess);
        CHECK_EQ(gpupool_cudaFree(block), cudaSuccess);
    }
    CHECK_EQ(kit_stats(arena).host_syncs, waits);
    CHECK(kit_reserved(arena) < 32 * MIB);
    kit_close(arena);
}

/* -- host functions -- */

static void *in_function;

static void CUDART_CB free_there(void *stream) {
    gpupool_stats stats;
    CHECK_EQ(kit_size(arena, in_function), MIB);
    CHECK_RESULT(gpupool_get_stats(arena, &stats), GPUPOOL_OK);
    CHECK_RESULT(gpupool_free_in_host_function(arena, in_function, (cudaStream_t)stream),
                 GPUPOOL_OK);
    CHECK_RESULT(gpupool_free_in_host_function(arena, in_function, (cudaStream_t)stream),
                 GPUPOOL_E_DOUBLE_FREE);
}

/* CUDA forbids its calls there (fakecuda calls each of them misuse), and none is made. What is
   freed so comes back: to the stream itself, and behind its next mark to others. */
static void freed_in_a_host_function(void) {
    static const gpupool_source sources[] = {GPUPOOL_SOURCE_MAPPED, GPUPOOL_SOURCE_DEVICE,
                                             GPUPOOL_SOURCE_PINNED, GPUPOOL_SOURCE_BYPASS};
    for (size_t i = 0; i < KIT_COUNT(sources); i++) {
        check_case("source %d", (int)sources[i]);
        arena = kit_open_limited(sources[i], 2 * MIB);
        void *other = kit_alloc(arena, 4096, kit_stream[1]); /* so that there are two streams */
        CHECK_RESULT(gpupool_free(arena, other, kit_stream[1]), GPUPOOL_OK);
        for (int round = 0; round < 3; round++) {
            in_function = kit_alloc(arena, MIB, kit_stream[0]);
            kit_mark(kit_stream[0], in_function, MIB, round);
            CHECK_EQ(cudaLaunchHostFunc(kit_stream[0], free_there, kit_stream[0]), cudaSuccess);
            CHECK_EQ(cudaStreamSynchronize(kit_stream[0]), cudaSuccess);
        }
        CHECK_EQ(fake_misuses(), 0);
        CHECK_EQ(kit_stats(arena).granted.now, 0);
        void *all = kit_alloc(arena, 2 * MIB, kit_stream[2]);
        CHECK(all != NULL);
        CHECK_RESULT(gpupool_free(arena, all, kit_stream[2]), GPUPOOL_OK);
        CHECK_RESULT(gpupool_free_in_host_function(arena, all, cudaStreamPerThread),
                     GPUPOOL_E_ARGUMENT);
        CHECK_RESULT(gpupool_free_in_host_function(arena, NULL, kit_stream[0]), GPUPOOL_OK);
        kit_close(arena);
    }
}

/* A small one comes from the stream's cache, and goes past it: there nothing waits for a mark. */
static void freed_out_of_a_cache(void) {
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    for (int i = 0; i < 2; i++) { /* the cache has it from the first free on */
        in_function = kit_alloc(arena, 4096, kit_stream[0]);
        if (!i) CHECK_RESULT(gpupool_free(arena, in_function, kit_stream[0]), GPUPOOL_OK);
    }
    uint64_t frees = kit_stats(arena).frees;
    CHECK_RESULT(gpupool_free_in_host_function(arena, in_function, kit_stream[0]), GPUPOOL_OK);
    CHECK_RESULT(gpupool_free_in_host_function(arena, in_function, kit_stream[0]),
                 GPUPOOL_E_DOUBLE_FREE);
    CHECK_EQ(kit_stats(arena).frees, frees + 1);
    CHECK_EQ(kit_stats(arena).requested.now, 0);
    kit_close(arena);
}

/* There the arena may meet a stream first. It is the same stream afterwards, and has its memory
   again without a wait. */
static void first_met_in_a_host_function(void) {
    void *blocks[2];
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 8 * MIB);
    for (int i = 0; i < 2; i++) blocks[i] = kit_alloc(arena, 4 * MIB, kit_stream[0]);
    fake_mode(FAKE_STEPPED);
    kit_mark(kit_stream[1], blocks[0], 4 * MIB, 1);
    CHECK_RESULT(gpupool_free_in_host_function(arena, blocks[0], kit_stream[1]), GPUPOOL_OK);
    CHECK_RESULT(gpupool_record_stream(arena, blocks[1], kit_stream[1]), GPUPOOL_OK);
    CHECK(kit_alloc(arena, 4 * MIB, kit_stream[1]) == blocks[0]);
    CHECK_EQ(kit_stats(arena).fence_waits + kit_stats(arena).host_syncs, 0);
    CHECK(fake_pending(kit_stream[1]) > 0);
    CHECK_RESULT(gpupool_free(arena, blocks[0], kit_stream[1]), GPUPOOL_OK);
    CHECK_RESULT(gpupool_free(arena, blocks[1], kit_stream[0]), GPUPOOL_OK);
    fake_mode(FAKE_EAGER);
    kit_close(arena);
}

/* -- what a call tells is about the call -- */

/* The check of an arena that finds nothing leaves the sentence of the failure before. */
static void a_check_tells_of_no_other_call(void) {
    char text[600];
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    for (int round = 0; round < 2; round++) {
        CHECK_RESULT(round ? gpupool_free(arena, &arena, kit_stream[0])
                           : gpupool_set_limit_text(arena, "much"),
                     round ? GPUPOOL_E_NOT_OURS : GPUPOOL_E_ARGUMENT);
        snprintf(text, sizeof text, "%s", gpupool_last_error());
        CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
        CHECK(strcmp(gpupool_last_error(), text) == 0);
    }
    kit_close(arena);
}

static void what_was_repaired_is_not_told(void) {
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 64 * MIB);
    void *block = kit_alloc(arena, 48 * MIB, kit_stream[0]), *other;
    char text[600];
    CHECK_RESULT(gpupool_free(arena, (char *)block + 512, kit_stream[0]), GPUPOOL_E_INSIDE);
    snprintf(text, sizeof text, "%s", gpupool_last_error());
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
    fake_fail_call("cuMemCreate", 1, 0, 0); /* less is asked for, or free memory is stitched */
    other = kit_alloc(arena, 56 * MIB, kit_stream[1]);
    fake_fail_clear();
    CHECK(other != NULL);
    CHECK_RESULT(gpupool_last_result(), GPUPOOL_OK);
    CHECK(strcmp(gpupool_last_error(), text) == 0);
    CHECK(kit_available(arena) > 0);
    CHECK_RESULT(gpupool_last_result(), GPUPOOL_OK);
    CHECK_RESULT(gpupool_free(arena, other, kit_stream[1]), GPUPOOL_OK);
    kit_close(arena);
}

/* -- looking changes nothing -- */

static void looking(FILE *file) {
    gpupool_verdict why;
    void *block = kit_alloc(arena, 4096, kit_stream[0]);
    (void)kit_stats(arena);
    kit_limit(arena);
    kit_available(arena);
    kit_fits(arena, 16 * MIB, &why);
    CHECK_EQ(kit_size(arena, block), 4096);
    CHECK_RESULT(gpupool_report(arena, file), GPUPOOL_OK);
    CHECK_RESULT(gpupool_write_json(arena, file), GPUPOOL_OK);
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
}

/* Nor does it ask after work that is known to be done. */
static void looking_asks_nothing_twice(void) {
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    void *block = kit_alloc(arena, MIB, kit_stream[0]);
    void *other = kit_alloc(arena, MIB, kit_stream[1]); /* so that a free has an event */
    long asked = fake_calls("cuEventRecord");
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
    CHECK_EQ(fake_calls("cuEventRecord"), asked + 1);
    CHECK_RESULT(gpupool_wait_stream(arena, kit_stream[0]), GPUPOOL_OK);
    asked = fake_calls("cuEventQuery");
    CHECK(kit_fits(arena, MIB, NULL));
    CHECK_EQ(fake_calls("cuEventQuery"), asked);
    CHECK_RESULT(gpupool_free(arena, other, kit_stream[1]), GPUPOOL_OK);
    kit_close(arena);
}

static void looking_leaves_caches_alone(void) {
    FILE *file = tmpfile();
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    void *block = kit_alloc(arena, 4096, kit_stream[0]),
         *keep = kit_alloc(arena, MIB, kit_stream[1]);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
    gpupool_stats before = kit_stats(arena), after;
    for (int i = 0; i < 100; i++) looking(file);
    after = kit_stats(arena);
    CHECK_EQ(after.splits, before.splits);
    CHECK_EQ(after.merges, before.merges);
    CHECK(memcmp(after.free_by_order, before.free_by_order, sizeof after.free_by_order) == 0);
    CHECK_EQ(after.pending.now, before.pending.now);
    CHECK_RESULT(gpupool_free(arena, keep, kit_stream[1]), GPUPOOL_OK);
    fclose(file);
    kit_close(arena);
}

#endif

int main(void) {
    FAKE_TEST(threads_that_end);
    FAKE_TEST(after_a_shortage);
    FAKE_TEST(frees_far_ahead_of_the_device);
    FAKE_TEST(runs_that_go_meanwhile);
    FAKE_TEST(uses_without_end);
    FAKE_TEST(an_event_for_each_mib);
    FAKE_TEST(bytes_are_counted_from_zero);
    FAKE_TEST(an_event_for_64_frees);
    FAKE_TEST(streams_that_were_waited_for);
    FAKE_TEST(cuda_free_after_a_scope);
    FAKE_TEST(freed_in_a_host_function);
    FAKE_TEST(freed_out_of_a_cache);
    FAKE_TEST(first_met_in_a_host_function);
    FAKE_TEST(a_check_tells_of_no_other_call);
    FAKE_TEST(what_was_repaired_is_not_told);
    FAKE_TEST(looking_asks_nothing_twice);
    FAKE_TEST(looking_leaves_caches_alone);
    return check_finish();
}
