/* The races that reuse between streams invites, thousands of random schedules each, under the
   oracle. Each is written for one mistake that is easily made. */
// build: plain -O2
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "race_kit.h"

#include <pthread.h>

#if CHECK_FAKE

/* ---- when an event is recorded, what it is recorded for is not takeable by it yet, and the lock
   is open ---- */

static gpupool_arena *watched;
static int watched_records, published_early, left_locked;

static CUresult CUDAAPI before_record(CUevent event, CUstream stream) {
    gpi_stream *other = watched ? watched->clocks.streams : NULL;
    for (; other; other = other->next)
        for (int i = 0; i < GPI_MARKS; i++)
            published_early += other->clock.marks[i].event == event &&
                               other->clock.marks[i].at >= other->clock.issued;
    if (watched) watched_records++;
    if (watched) left_locked += watched->lock.held;
    return cuEventRecord(event, stream);
}

#ifndef SCHEDULES
#define SCHEDULES 2000
#endif

/* Three different streams in random order. */
static void pick_three(cudaStream_t out[3]) {
    int first = (int)race_below(KIT_STREAMS), step = 1 + (int)race_below(2) * 2; /* odd */
    for (int i = 0; i < 3; i++) out[i] = kit_stream[(first + i * step) % KIT_STREAMS];
}

/* ---- A frees on s1, s2 takes of it, s3 takes what s2 freed: with or without work by s2, whose
   fence must cover s1's work either way. The mistake: to take a wait of s2 for work that is done,
   or to fence with s2's own work only. ---- */

static void three_streams(void) {
    cudaStream_t s[3], last;
    size_t part = RACE_BYTES / 4 * (1 + race_below(4));
    void *block;
    pick_three(s);
    race_put(race_get(RACE_BYTES, s[0]), s[0]);
    block = gpupool_alloc(arena, part, s[1]);
    if (CHECK(block != NULL) && race_below(2)) race_work(s[1], block, part);
    race_drift();
    race_put(block, s[1]);
    race_put(race_get(race_below(2) ? part : RACE_BYTES, s[2]), s[2]);
    last = s[race_below(3)];
    race_put(race_get(RACE_BYTES, last), last);
}
static void three_streams_one_after_the_other(void) { race_each(SCHEDULES, three_streams); }

/* ---- a block that is split while work on it is pending: every part has the fence. The mistake:
   the fence goes with the first part only. ---- */

static void split(void) {
    void *part[16];
    cudaStream_t stream[16], owner = race_stream();
    size_t n = 0, bytes = 512 * (1 + race_below(400));
    race_put(race_get(RACE_BYTES, owner), owner);
    while (n < 16) {
        stream[n] = race_stream();
        part[n] = gpupool_alloc(arena, bytes, stream[n]);
        if (!part[n]) break;
        race_work(stream[n], part[n], bytes);
        race_drift();
        n++;
    }
    CHECK(n > 0);
    while (n-- > 0) race_put(part[n], stream[n]);
}
static void parts_of_a_pending_block(void) { race_each(SCHEDULES, split); }

/* ---- ping-pong: what A frees, B has next, and A again. The mistake: an event that is recorded
   anew while a wait for its earlier meaning is still to come. ---- */

static void hand_over(void) {
    cudaStream_t s[3];
    pick_three(s);
    for (uint64_t turns = 2 + race_below(6), i = 0; i < turns; i++)
        race_put(race_get(RACE_BYTES, s[i % 2]), s[i % 2]);
}
static void memory_goes_back_and_forth(void) { race_each(SCHEDULES, hand_over); }

/* Freed on another stream than its own, which had waited for the work. */
static void free_elsewhere(void) {
    cudaStream_t s[3], last;
    void *block;
    pick_three(s);
    block = race_get(RACE_BYTES / 2, s[0]);
    kit_order(s[0], s[1]);
    if (block) race_work(s[1], block, RACE_BYTES / 2);
    race_put(block, s[1]);
    last = s[race_below(3)];
    race_put(race_get(RACE_BYTES, last), last);
}
static void freed_on_the_stream_that_used_it_last(void) {
    race_each(SCHEDULES, free_elsewhere);
}

static long recorded(void) { return fake_calls("cuEventRecord"); }

static long waited(void) { return fake_calls("cuStreamWaitEvent"); }

/* The price of a hand-over: one event recorded, one wait. */
static void a_hand_over_costs_one_event_and_one_wait(void) {
    race_open(GPUPOOL_SOURCE_MAPPED, RACE_BYTES);
    race_random = 1;
    for (int i = 0; i < 20; i++) {
        race_put(race_get(RACE_BYTES, kit_stream[i % 2]), kit_stream[i % 2]);
        fake_run_all();
    }
    for (int i = 0; i < 100; i++) {
        long records = recorded(), waits = waited();
        long made = fake_calls("cuEventCreate");
        void *block = gpupool_alloc(arena, RACE_BYTES, kit_stream[i % 2]);
        if (block) race_work(kit_stream[i % 2], block, RACE_BYTES);
        CHECK_RESULT(gpupool_free(arena, block, kit_stream[i % 2]), GPUPOOL_OK);
        CHECK(recorded() <= records + 1);
        CHECK(waited() <= waits + 1);
        CHECK_EQ(fake_calls("cuEventCreate"), made);
        if (i % 4) fake_run_all(); /* else the next stream comes while that work is queued */
    }
    CHECK_EQ(kit_stats(arena).host_syncs, 0);
    CHECK_EQ(kit_stats(arena).fence_waits, waited());
    CHECK(waited() > 50);
    race_close();
}

/* Two streams far behind the host hand one piece of memory to and fro: each time one event and one
   wait on the device, and the host waits for nothing. */
static void a_hand_over_far_ahead_of_the_device(void) {
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 2 * MIB);
    for (int i = 0; i < 8; i++) {
        void *block = kit_alloc(arena, 2 * MIB, kit_stream[i % 2]);
        CHECK_RESULT(gpupool_free(arena, block, kit_stream[i % 2]), GPUPOOL_OK);
    }
    for (int round = 0; round < 2; round++) {
        long records = recorded(), waits = waited();
        for (int i = 0; i < 2; i++) fake_hold(kit_stream[i], 1);
        for (int i = 0; i < 100; i++) {
            void *block = kit_alloc(arena, 2 * MIB, kit_stream[i % 2]);
            race_work(kit_stream[i % 2], block, 2 * MIB);
            CHECK_RESULT(gpupool_free(arena, block, kit_stream[i % 2]), GPUPOOL_OK);
        }
        CHECK_EQ(recorded() - records, 100);
        CHECK(waited() - waits >= 99);
        CHECK_EQ(fake_calls("cuEventSynchronize"), 0);
        CHECK_EQ(kit_stats(arena).host_syncs, 0);
        for (int i = 0; i < 2; i++) fake_hold(kit_stream[i], 0);
        fake_run_all();
    }
    kit_close(arena);
}

/* With another stream about, frees have one fence for each MiB; and each its own while memory is
   short, which is forgotten in time. */
static void fences_of_frees(int rounds, long expected) {
    void *block[16];
    long before = recorded();
    for (int n = 0; n < rounds; n++) {
        for (int i = 0; i < 16; i++) block[i] = kit_alloc(arena, 300 * KIB, kit_stream[0]);
        for (int i = 0; i < 16; i++)
            CHECK_RESULT(gpupool_free(arena, block[i], kit_stream[0]), GPUPOOL_OK);
    }
    CHECK_EQ(recorded() - before, expected);
}

static void frees_have_a_fence_now_and_then(void) {
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 16 * MIB);
    void *other = kit_alloc(arena, 4096, kit_stream[1]);
    fences_of_frees(1, 4);
    CHECK(!gpupool_alloc(arena, 16 * MIB, kit_stream[0]));
    fences_of_frees(64, 1024);
    fences_of_frees(2, 8);
    CHECK_RESULT(gpupool_free(arena, other, kit_stream[1]), GPUPOOL_OK);
    kit_close(arena);
}

/* Where there is room to grow, and the work is done: no more than a question, asked beside any
   capture, and before it whether the device was reset. */
static void a_finished_hand_over_costs_one_question(void) {
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    void *small = kit_alloc(arena, 4096, kit_stream[1]);
    for (int i = 0; i < 20; i++) {
        long calls = fake_calls(NULL), asked = fake_calls("cuEventQuery");
        void *block = kit_alloc(arena, 8 * MIB, kit_stream[i % 2]);
        if (i) CHECK_EQ(fake_calls("cuEventQuery"), asked + 1);
        if (i) CHECK_EQ(fake_calls(NULL), calls + 4);
        CHECK_RESULT(gpupool_free(arena, block, kit_stream[i % 2]), GPUPOOL_OK);
    }
    CHECK(kit_reserved(arena) < 16 * MIB);
    CHECK_RESULT(gpupool_free(arena, small, kit_stream[1]), GPUPOOL_OK);
    kit_close(arena);
}

/* ---- publish before record: a list that others may take before its event is recorded ---- */

static void watch(void) {
    watched = arena;
    arena->chunks.driver.event_record = before_record;
    three_streams();
    hand_over();
    watched = NULL;
}
static void events_are_recorded_before_they_are_relied_on(void) {
    watched_records = published_early = left_locked = 0;
    race_each(100, watch);
    CHECK(watched_records > 200);
    CHECK_EQ(published_early, 0);
    CHECK_EQ(left_locked, 0);
}

/* The same seen from outside, where it takes two threads to tell. */

#ifndef TURNS
#define TURNS 1500
#endif

static void *take_turns(void *number) {
    int me = *(int *)number;
    for (int had = 0, asked = 0; had < TURNS / 6 && asked < 1000 * TURNS && !fake_failures();
         asked++) {
        void *block = gpupool_alloc(arena, RACE_BYTES, kit_stream[me]);
        if (!block) continue; /* another has it: all there is */
        had++;
        CHECK_EQ(fake_write(kit_stream[me], "mine", block, RACE_BYTES, me), cudaSuccess);
        CHECK_EQ(fake_read(kit_stream[me], "still mine", block, RACE_BYTES, me), cudaSuccess);
        CHECK_RESULT(gpupool_free(arena, block, kit_stream[me]), GPUPOOL_OK);
    }
    return NULL;
}

static void threads_take_turns(void) {
    pthread_t thread[KIT_STREAMS];
    int number[KIT_STREAMS];
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, RACE_BYTES);
    fake_mode(FAKE_THREADED);
    for (int i = 0; i < KIT_STREAMS; i++) {
        number[i] = i;
        CHECK_EQ(pthread_create(&thread[i], NULL, take_turns, &number[i]), 0);
    }
    for (int i = 0; i < KIT_STREAMS; i++) CHECK_EQ(pthread_join(thread[i], NULL), 0);
    CHECK(kit_stats(arena).allocs > TURNS / 2);
    race_close();
}

/* ---- blocks that caches have: memory is plenty, so that nothing but the caches is reused. The
   mistake: a block that another stream frees goes back to the cache that handed it out. ---- */

static void cached_elsewhere(void) {
    static const size_t sizes[] = {512, 4096, 4000, 100000};
    cudaStream_t s[3];
    pick_three(s);
    for (int i = 0; i < 6; i++) {
        size_t bytes = sizes[race_below(KIT_COUNT(sizes))];
        void *block = race_get(bytes, s[0]);
        if (race_below(3) == 0) { /* freed by the one that used it last */
            kit_order(s[0], s[1]);
            race_work(s[1], block, bytes);
            race_put(block, s[1]);
        } else if (race_below(3) == 0) { /* used by another, and said so */
            kit_order(s[0], s[2]);
            CHECK_EQ(fake_read(s[2], "elsewhere", block, bytes, -1), cudaSuccess);
            CHECK_RESULT(gpupool_record_stream(arena, block, s[2]), GPUPOOL_OK);
            race_put(block, s[0]);
        } else {
            race_put(block, s[0]);
        }
    }
}
static void cached_blocks_in_other_hands(void) {
    race_bytes = 64 * MIB;
    race_each(SCHEDULES, cached_elsewhere);
    race_bytes = RACE_BYTES;
}

/* ---- a fence over all streams, and a later one of the first alone, which passes before it. The
   mistake: what that says of the first stream's memory is taken to be true of the others'. ---- */

#define LITTLE (256 * KIB) /* so little that its free records no event */

static void first_stream_is_done(void) {
    cudaStream_t s[3];
    void *block[24];
    pick_three(s);
    for (int i = 0; i < 2; i++) block[i] = race_get(LITTLE, s[i]);
    for (int i = 0; i < 2; i++) race_put(block[i], s[i]);
    CHECK_RESULT(gpupool_trim(arena, race_bytes, NULL), GPUPOOL_OK);
    race_put(race_get(8 * MIB, s[0]), s[0]);
    CHECK_EQ(cudaStreamSynchronize(s[0]), cudaSuccess);
    race_put(race_get(8 * MIB, s[2]), s[2]); /* behind the later fence */
    for (int i = 0; i < 24; i++) block[i] = race_get(LITTLE, s[2]); /* and all there is */
    for (int i = 0; i < 24; i++) race_put(block[i], s[2]);
    fake_run_all();
}
static void a_fence_over_all_outlasts_one_of_a_stream(void) {
    race_bytes = 64 * MIB;
    race_each(200, first_stream_is_done);
    race_bytes = RACE_BYTES;
}

/* ---- everything at once ---- */

#define CROWD 24

typedef struct crowd_block { void *at; size_t bytes; cudaStream_t stream; } crowd_block;
static crowd_block crowd[CROWD];

static void crowd_call(void) {
    crowd_block *b = &crowd[race_below(CROWD)];
    cudaStream_t other = race_stream();
    uint64_t kind = race_below(100);
    if (kind < 80 && !b->at) {
        b->stream = other;
        b->bytes = 1 + (size_t)race_below((uint64_t)1 << (9 + race_below(12)));
        b->at = race_get(b->bytes, b->stream);
    } else if (kind < 65) {
        race_put(b->at, b->stream);
        b->at = NULL;
    } else if (kind < 75 && b->at) { /* another stream uses it, and says so */
        kit_order(b->stream, other);
        CHECK_EQ(fake_read(other, "elsewhere", b->at, b->bytes, -1), cudaSuccess);
        CHECK_RESULT(gpupool_record_stream(arena, b->at, other), GPUPOOL_OK);
        kit_order(other, b->stream); /* its own next write is not gpupool's affair */
    } else if (kind < 85 && b->at) { /* handed to another stream */
        kit_order(b->stream, other);
        race_work(other, b->at, b->bytes);
        b->stream = other;
    } else if (kind < 88) {
        CHECK_EQ(cudaStreamSynchronize(other), cudaSuccess);
    } else if (kind < 91) {
        CHECK_RESULT(gpupool_trim(arena, (size_t)race_below(RACE_BYTES), NULL), GPUPOOL_OK);
    } else if (kind < 93) {
        CHECK_RESULT(gpupool_retire_stream(arena, other), GPUPOOL_OK);
    }
}

static void anything(void) {
    for (int call = 0; call < 60 && !fake_failures(); call++) crowd_call();
    if (race_below(4)) return; /* what is live stays for the next seed */
    for (size_t i = 0; i < CROWD; i++) {
        race_put(crowd[i].at, crowd[i].stream);
        crowd[i].at = NULL;
    }
}

static void crowd_leaves(void) {
    for (size_t i = 0; i < CROWD; i++) {
        if (crowd[i].at)
            CHECK_RESULT(gpupool_free(arena, crowd[i].at, crowd[i].stream), GPUPOOL_OK);
        crowd[i].at = NULL;
    }
}

static void random_programs(void) {
    for (int seed = 1; seed <= SCHEDULES && !fake_failures(); seed++) {
        if (seed % 200 == 1)
            race_open(seed % 400 == 1 ? GPUPOOL_SOURCE_MAPPED : GPUPOOL_SOURCE_DEVICE,
                      RACE_BYTES << 2 * (seed / 400 % 4));
        check_case("seed %d", seed);
        race_random = (uint64_t)seed;
        anything();
        if (seed % 16 == 0) CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
        if (seed % 200 || fake_failures()) continue;
        crowd_leaves();
        race_close();
    }
}

#endif

int main(void) {
    FAKE_TEST(three_streams_one_after_the_other);
    FAKE_TEST(parts_of_a_pending_block);
    FAKE_TEST(memory_goes_back_and_forth);
    FAKE_TEST(freed_on_the_stream_that_used_it_last);
    FAKE_TEST(a_hand_over_costs_one_event_and_one_wait);
    FAKE_TEST(a_hand_over_far_ahead_of_the_device);
    FAKE_TEST(frees_have_a_fence_now_and_then);
    FAKE_TEST(a_finished_hand_over_costs_one_question);
    FAKE_TEST(events_are_recorded_before_they_are_relied_on);
    FAKE_TEST(threads_take_turns);
    FAKE_TEST(cached_blocks_in_other_hands);
    FAKE_TEST(a_fence_over_all_outlasts_one_of_a_stream);
    FAKE_TEST(random_programs);
    return check_finish();
}
