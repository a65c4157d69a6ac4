/* What other threads are in the midst of when gpupool_sleep comes: it waits for them, whatever they
   hold, and they find the memory asleep afterwards. */
// build: plain
// build: tsan -fsanitize=thread
#define _DEFAULT_SOURCE /* nanosleep */
#define GPUPOOL_IMPLEMENTATION
#include "fail_malloc.h"
#include "gpupool.h"
#include "arena_kit.h"

#include <pthread.h>
#include <time.h>
#include <unistd.h>

#if CHECK_FAKE

static gpupool_arena *arena;
static int tag, sleeps; /* sleeps: what the other thread puts to sleep */
static pthread_t sleeper;
static atomic_int is_asleep, came;

static void *fall_asleep(void *unused) {
    CHECK_RESULT(gpupool_sleep(arena, sleeps, GPUPOOL_DISCARD, NULL), GPUPOOL_OK);
    atomic_store(&is_asleep, 1);
    return unused;
}

/* Within a call of this thread: the other thread goes to sleep, and is about to wait for the call
   when this returns. Sleep changes states under the lock, and opens that only to wait. */
static void let_it_sleep(void *unused) {
    int changing = 0;
    (void)unused;
    if (atomic_exchange(&came, 1)) return;
    CHECK_EQ(pthread_create(&sleeper, NULL, fall_asleep, NULL), 0);
    while (!changing) {
        gpi_host_lock(&arena->lock);
        changing = gpi_arena_any_part(arena, GPI_CHANGING);
        gpi_host_unlock(&arena->lock);
    }
    CHECK_EQ(atomic_load(&is_asleep), 0);
}

static int in_on_map(const gpupool_mapping *mapping, void *user) {
    (void)mapping;
    let_it_sleep(user);
    return 0;
}

static void open_arena(gpupool_map_fn on_map) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
    gpupool_tag_config can_sleep;
    memset(&can_sleep, 0, sizeof can_sleep);
    can_sleep.can_sleep = 1;
    config.limit_bytes = 64 * MIB;
    config.on_map = on_map;
    arena = kit_create(&config);
    CHECK_RESULT(gpupool_tag(arena, "t", &can_sleep, &tag), GPUPOOL_OK);
    atomic_store(&came, 0);
    atomic_store(&is_asleep, 0);
}

static void *take(size_t bytes, int of_tag, int stream) {
    gpupool_request request = kit_request(bytes, kit_stream[stream], 0);
    request.tag = of_tag;
    return gpupool_alloc_request(arena, &request);
}

/* The other thread came to its end, and so does the arena. */
static void wake_and_close(void *block) {
    CHECK_EQ(pthread_join(sleeper, NULL), 0);
    CHECK_EQ(atomic_load(&is_asleep), 1);
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    CHECK_RESULT(gpupool_wake(arena, sleeps, NULL), GPUPOOL_OK);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
    kit_close(arena);
}

/* A request searches, for memory of the part, or the program is told of memory of another part. */
static void told_of_new_memory(void) {
    for (int asks = 0; asks < 2; asks++)
        for (int all = 0; all < 2; all++) {
            check_case("tag asked %d, all sleep %d", asks, all);
            open_arena(in_on_map);
            sleeps = all ? GPUPOOL_ALL : tag;
            void *block = take(8 * MIB, asks ? tag : 0, 0);
            if (!block) CHECK_RESULT(gpupool_last_result(), GPUPOOL_E_ASLEEP);
            CHECK_EQ(atomic_load(&came), 1);
            wake_and_close(block);
        }
}

/* A run is in the hand of a thread that makes its stream wait for the work of another one. */
static void while_a_stream_is_made_to_wait(void) {
    open_arena(NULL);
    sleeps = GPUPOOL_ALL;
    void *block = take(40 * MIB, 0, 1);
    CHECK_RESULT(kit_why(take(40 * MIB, 0, 0)), GPUPOOL_E_OUT_OF_MEMORY); /* it is short now */
    fake_mode(FAKE_STEPPED);
    kit_fill(kit_stream[1], block, MIB, 1);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[1]), GPUPOOL_OK);
    fake_before_call("cuStreamWaitEvent", 1, let_it_sleep, NULL);
    block = take(40 * MIB, 0, 0);
    CHECK(block != NULL);
    CHECK_EQ(atomic_load(&came), 1);
    fake_mode(FAKE_EAGER);
    wake_and_close(block);
}
/* A call found the arena awake, and waits for the device before it goes on. */
static void while_a_scope_is_released(void) {
    gpupool_capture *scope;
    open_arena(NULL);
    sleeps = GPUPOOL_ALL;
    void *block = take(MIB, 0, 0);
    CHECK_RESULT(gpupool_begin_capture(arena, kit_stream[1], &scope), GPUPOOL_OK);
    CHECK_RESULT(gpupool_free(arena, take(MIB, 0, 1), kit_stream[1]), GPUPOOL_OK);
    CHECK_RESULT(gpupool_end_capture(scope), GPUPOOL_OK);
    fake_before_call("cuMemFree", 1, let_it_sleep, NULL); /* the wait */
    CHECK_RESULT(gpupool_release_capture(scope), GPUPOOL_OK);
    CHECK_EQ(atomic_load(&came), 1);
    wake_and_close(block);
}

/* ---- a request that found its tag awake goes on while sleep waits for the device ---- */

static gpi_request late;
static void *late_block;
static int no_memory; /* 1: and then the host has none */

static void charge_it(void) {
    CHECK_RESULT(gpi_tag_charge(arena, tag, 8 * MIB, 8 * MIB), GPUPOOL_OK);
    gpi_hand_request(&late, 8 * MIB, kit_stream[0], gpi_hand_origin(NULL, 0));
    late.tag = tag;
    late.finished = gpi_tree_tag_list(tag);
    late.has_come = 0;
}

static void go_on_with_it(void *unused) {
    (void)unused;
    late_block = gpi_hand_alloc(arena, "gpupool_alloc", &late, 2 * GPUPOOL_UNIT_BYTES);
    gpi_tag_finish(arena, tag, 8 * MIB, late.has_come);
    if (no_memory) fail_malloc_nth(1, 1);
}

/* It gets what its stream has freed with work in flight. The block sleeps as all others do; or, if
   the host has no memory for that, none does, and the block can be used. */
static void a_request_goes_on_while_sleep_waits(void) {
    gpi_run *run;
    for (no_memory = 0; no_memory < 2; no_memory++) {
        check_case("no memory %d", no_memory);
        open_arena(NULL);
        fake_mode(FAKE_STEPPED);
        void *block = take(8 * MIB, tag, 0);
        kit_fill(kit_stream[0], block, MIB, 1);
        CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
        charge_it();
        fake_before_call("cuMemFree", 1, go_on_with_it, NULL); /* the wait for the device */
        CHECK_RESULT(gpupool_sleep(arena, tag, GPUPOOL_DISCARD, NULL),
                     no_memory ? GPUPOOL_E_HOST_MEMORY : GPUPOOL_OK);
        CHECK_EQ(fail_malloc_fired, no_memory);
        fail_malloc_nth(0, 0);
        CHECK(late_block == block);
        CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
        run = gpi_tree_live(&arena->tree, (uint64_t)(uintptr_t)block / GPUPOOL_UNIT_BYTES);
        CHECK_EQ(*gpi_clock_sleeper(run) != NULL, !no_memory);
        CHECK_EQ(kit_stats(arena).asleep_bytes != 0, !no_memory);
        if (!no_memory) CHECK_RESULT(gpupool_wake(arena, tag, NULL), GPUPOOL_OK);
        kit_fill(kit_stream[0], block, MIB, 2);
        CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
        fake_mode(FAKE_EAGER);
        kit_close(arena);
    }
}

/* ---- a stitch that another thread takes apart ---- */

static atomic_int is_going; /* the program is being told so */
static pthread_t taker;

static int a_moment_later(const gpupool_mapping *mapping, void *unused) {
    struct timespec moment = {0, 20000000}; /* for gpupool_sleep to find it going */
    (void)mapping, (void)unused;
    if (!atomic_exchange(&is_going, 1)) nanosleep(&moment, NULL);
    return 0;
}

/* As a request for another part does that makes a stitch too many. */
static void *take_idle_stitches_apart(void *unused) {
    gpi_visit visit;
    CHECK_RESULT(gpi_driver_enter(&arena->chunks.driver, &visit), GPUPOOL_OK);
    gpi_host_mutex_lock(&arena->growing);
    gpi_host_lock(&arena->lock);
    gpi_stitch_bound(&arena->stitches, 0);
    gpi_host_unlock(&arena->lock);
    gpi_host_mutex_unlock(&arena->growing);
    gpi_driver_leave(&visit);
    return unused;
}

static void begin_to_take_apart(void *unused) {
    (void)unused;
    CHECK_EQ(pthread_create(&taker, NULL, take_idle_stitches_apart, NULL), 0);
    while (!atomic_load(&is_going)) continue;
}

/* Sleep waits until the stitch is gone: its chunks cannot go before. */
static void a_stitch_is_taken_apart(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
    void *stripe[8];
    config.chunk_bytes = 2 * MIB;
    config.limit_bytes = 16 * MIB;
    config.on_unmap = a_moment_later;
    arena = kit_create(&config);
    for (int i = 0; i < 8; i++) stripe[i] = take(2 * MIB, 0, 0);
    for (int i = 0; i < 8; i += 2) CHECK_RESULT(gpupool_free(arena, stripe[i], kit_stream[0]), 0);
    CHECK_RESULT(gpupool_free(arena, take(8 * MIB, 0, 0), kit_stream[0]), GPUPOOL_OK);
    CHECK_EQ(kit_stats(arena).stitches, 1);
    CHECK_RESULT(gpupool_wait_all(arena), GPUPOOL_OK);
    atomic_store(&is_going, 0);
    fake_before_call("cuMemFree", 1, begin_to_take_apart, NULL); /* the wait for the device */
    CHECK_RESULT(gpupool_sleep(arena, GPUPOOL_ALL, GPUPOOL_DISCARD, NULL), GPUPOOL_OK);
    CHECK_EQ(fake_mappings(), 0);
    CHECK_EQ(pthread_join(taker, NULL), 0);
    CHECK_RESULT(gpupool_wake(arena, GPUPOOL_ALL, NULL), GPUPOOL_OK);
    for (int i = 1; i < 8; i += 2) CHECK_RESULT(gpupool_free(arena, stripe[i], kit_stream[0]), 0);
    kit_close(arena);
}

/* Sleep tells the program of one that goes, and the others are taken apart meanwhile: at once, or
   by a thread that has begun with one of them when the program returns. */
static int take_the_others_apart(const gpupool_mapping *mapping, void *unused) {
    (void)mapping, (void)unused;
    if (!atomic_exchange(&came, 1)) take_idle_stitches_apart(NULL);
    return 0;
}

static pthread_t sleeping;

static int begin_with_the_others(const gpupool_mapping *mapping, void *unused) {
    if (!pthread_equal(pthread_self(), sleeping)) return a_moment_later(mapping, unused);
    if (!atomic_exchange(&came, 1)) begin_to_take_apart(NULL);
    return 0;
}

static void taken_apart(gpupool_map_fn on_unmap) {
    enum { STITCHES = 3, STRIPES = 4 * STITCHES };
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
    void *stripe[STRIPES], *stitched[STITCHES];
    config.chunk_bytes = 2 * MIB;
    config.limit_bytes = STRIPES * 2 * MIB;
    arena = kit_create(&config);
    for (int i = 0; i < STRIPES; i++) stripe[i] = take(2 * MIB, 0, 0);
    for (int i = 0; i < STRIPES; i += 2)
        CHECK_RESULT(gpupool_free(arena, stripe[i], kit_stream[0]), GPUPOOL_OK);
    for (int i = 0; i < STITCHES; i++) stitched[i] = take(4 * MIB, 0, 0);
    for (int i = 0; i < STITCHES; i++)
        CHECK_RESULT(gpupool_free(arena, stitched[i], kit_stream[0]), GPUPOOL_OK);
    CHECK_RESULT(gpupool_wait_all(arena), GPUPOOL_OK);
    CHECK_EQ(arena->stitches.count, STITCHES);
    atomic_store(&came, 0);
    atomic_store(&is_going, 0);
    arena->chunks.on_unmap = on_unmap;
    CHECK_RESULT(gpupool_sleep(arena, GPUPOOL_ALL, GPUPOOL_DISCARD, NULL), GPUPOOL_OK);
    CHECK_EQ(atomic_load(&came), 1);
    if (on_unmap == begin_with_the_others) CHECK_EQ(pthread_join(taker, NULL), 0);
    CHECK_EQ(arena->stitches.count, 0);
    CHECK_EQ(fake_mappings(), 0);
    CHECK_RESULT(gpupool_wake(arena, GPUPOOL_ALL, NULL), GPUPOOL_OK);
    for (int i = 1; i < STRIPES; i += 2)
        CHECK_RESULT(gpupool_free(arena, stripe[i], kit_stream[0]), GPUPOOL_OK);
    kit_close(arena);
}

static void stitches_are_taken_apart_meanwhile(void) {
    sleeping = pthread_self();
    taken_apart(take_the_others_apart);
    taken_apart(begin_with_the_others);
}

/* ---- waking ---- */

static int lower_the_limit(const gpupool_mapping *mapping, void *unused) {
    (void)mapping, (void)unused;
    if (atomic_exchange(&came, 1)) return 0;
    CHECK_RESULT(gpupool_set_limit(arena, 4 * MIB), GPUPOOL_OK);
    return 0;
}

/* The program lowers the limit while idle chunks make room on the device: that limit holds. */
static void a_limit_comes_down_while_waking(void) {
    size_t free_bytes, total_bytes;
    gpupool_verdict verdict;
    open_arena(NULL);
    void *block = take(8 * MIB, tag, 0);
    CHECK_RESULT(gpupool_sleep(arena, tag, GPUPOOL_DISCARD, NULL), GPUPOOL_OK);
    CHECK_RESULT(gpupool_free(arena, take(16 * MIB, 0, 0), kit_stream[0]), GPUPOOL_OK);
    CHECK_RESULT(gpupool_wait_all(arena), GPUPOOL_OK);
    CHECK_EQ(cudaMemGetInfo(&free_bytes, &total_bytes), cudaSuccess);
    fake_other_process(0, free_bytes - 2 * MIB);
    arena->chunks.on_unmap = lower_the_limit;
    CHECK_RESULT(gpupool_wake(arena, tag, NULL), GPUPOOL_E_OUT_OF_MEMORY);
    CHECK_EQ(atomic_load(&came), 1);
    CHECK_RESULT(gpupool_last_verdict(&verdict), GPUPOOL_OK);
    CHECK_EQ(verdict.cause, GPUPOOL_CAUSE_LIMIT);
    CHECK_EQ(verdict.limit_bytes, 4 * MIB);
    CHECK_EQ(verdict.raise_bytes, 4 * MIB);
    CHECK_RESULT(gpupool_set_limit(arena, 8 * MIB), GPUPOOL_OK);
    CHECK_RESULT(gpupool_wake(arena, tag, NULL), GPUPOOL_OK);
    fake_other_process(0, 0);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
    kit_close(arena);
}

/* ---- two threads at sleep and waking ---- */

static void *sleep_too(void *unused) {
    CHECK_RESULT(gpupool_sleep(arena, GPUPOOL_ALL, GPUPOOL_DISCARD, NULL), GPUPOOL_E_ASLEEP);
    return unused;
}

static void start_another_sleep(void *unused) {
    struct timespec moment = {0, 20000000}; /* for the other thread to come, and find it changing */
    (void)unused;
    CHECK_EQ(pthread_create(&sleeper, NULL, sleep_too, NULL), 0);
    nanosleep(&moment, NULL);
}

/* The second one waits for the first, and finds all asleep. */
static void two_sleeps_at_once(void) {
    open_arena(NULL);
    void *block = take(MIB, 0, 0);
    fake_before_call("cuMemFree", 1, start_another_sleep, NULL); /* the wait for the device */
    CHECK_RESULT(gpupool_sleep(arena, GPUPOOL_ALL, GPUPOOL_DISCARD, NULL), GPUPOOL_OK);
    atomic_store(&is_asleep, 1);
    sleeps = GPUPOOL_ALL;
    wake_and_close(block);
}

static atomic_int is_asking;
static void *sleeping_block;

static void *upload_to_it(void *ring) {
    unsigned char host[64] = {0};
    atomic_store(&is_asking, 1);
    CHECK_RESULT(gpupool_upload((gpupool_ring *)ring, sleeping_block, host, sizeof host, 0),
                 GPUPOOL_E_ASLEEP);
    return NULL;
}

/* A transfer that asks whether its memory sleeps waits for the arena's lock, and holds no lock that
   a request of this arena asks for meanwhile. */
static void a_transfer_asks_while_the_arena_is_locked(void) {
    const struct timespec moment = {.tv_nsec = 20000000};
    gpupool_ring *ring;
    pthread_t asking;
    open_arena(NULL);
    sleeping_block = take(MIB, tag, 0);
    CHECK_RESULT(gpupool_ring_create(&ring, NULL), GPUPOOL_OK);
    CHECK_RESULT(gpupool_sleep(arena, tag, GPUPOOL_DISCARD, NULL), GPUPOOL_OK);
    atomic_store(&is_asking, 0);
    gpi_host_lock(&arena->lock);
    CHECK_EQ(pthread_create(&asking, NULL, upload_to_it, ring), 0);
    while (!atomic_load(&is_asking)) nanosleep(&moment, NULL);
    nanosleep(&moment, NULL); /* the thread waits for the lock now, most likely */
    alarm(20); /* a deadlock ends the program */
    CHECK_EQ(gpi_sibling_exist(arena), 0);
    alarm(0);
    gpi_host_unlock(&arena->lock);
    CHECK_EQ(pthread_join(asking, NULL), 0);
    CHECK_RESULT(gpupool_wake(arena, tag, NULL), GPUPOOL_OK);
    CHECK_RESULT(gpupool_free(arena, sleeping_block, kit_stream[0]), GPUPOOL_OK);
    CHECK_RESULT(gpupool_ring_destroy(ring), GPUPOOL_OK);
    kit_close(arena);
}
#endif

int main(void) {
    FAKE_TEST(a_transfer_asks_while_the_arena_is_locked);
    FAKE_TEST(told_of_new_memory);
    FAKE_TEST(while_a_stream_is_made_to_wait);
    FAKE_TEST(while_a_scope_is_released);
    FAKE_TEST(a_request_goes_on_while_sleep_waits);
    FAKE_TEST(a_stitch_is_taken_apart);
    FAKE_TEST(stitches_are_taken_apart_meanwhile);
    FAKE_TEST(a_limit_comes_down_while_waking);
    FAKE_TEST(two_sleeps_at_once);
    return check_finish();
}
