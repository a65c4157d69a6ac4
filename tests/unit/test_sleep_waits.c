/* What other threads do while gpupool_sleep or gpupool_wake waits for the device, or for a call in
   the middle, with both locks open: the memory of the part is out of everybody's hands when the
   call goes on, and figures are right meanwhile. */
// build: plain
// build: asan -fsanitize=address
#define _DEFAULT_SOURCE /* nanosleep */
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "arena_kit.h"

#include <pthread.h>
#include <time.h>

#if CHECK_FAKE

#define MANY (40 * MIB)

static gpupool_arena *arena;
static int tag;
static pthread_t other, own;
static atomic_int came;

static void *take(size_t bytes, int of_tag, int stream) {
    gpupool_request request = kit_request(bytes, kit_stream[stream], 0);
    request.tag = of_tag;
    return gpupool_alloc_request(arena, &request);
}

static void put(void *block, int stream) {
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[stream]), GPUPOOL_OK);
}

static void open_arena(gpupool_map_fn on_map, gpupool_map_fn on_unmap) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
    gpupool_tag_config can_sleep;
    memset(&can_sleep, 0, sizeof can_sleep);
    can_sleep.can_sleep = 1;
    config.chunk_bytes = 2 * MIB;
    config.on_map = on_map;
    config.on_unmap = on_unmap;
    arena = kit_create(&config);
    CHECK_RESULT(gpupool_tag(arena, "t", &can_sleep, &tag), GPUPOOL_OK);
    atomic_store(&came, 0);
    own = pthread_self();
}

static void a_moment(void) {
    struct timespec moment = {0, 20000000};
    nanosleep(&moment, NULL);
}

static void until_it_came(void) {
    while (!atomic_load(&came)) continue;
}

/* ---- another thread gives a chunk of the part back ---- */

enum { TELLS = 8 };
static void *gone[TELLS];
static int tells;

/* Each chunk goes once. The other thread takes its time, with the chunk in its hands. */
static int goes_once(const gpupool_mapping *mapping, void *unused) {
    (void)unused;
    for (int i = 0; i < tells; i++) CHECK(gone[i] != mapping->memory);
    if (CHECK(tells < TELLS)) gone[tells++] = mapping->memory;
    if (pthread_equal(pthread_self(), own)) return 0;
    atomic_store(&came, 1);
    a_moment();
    return 0;
}

static void *trim(void *unused) {
    CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
    return unused;
}

static void start_a_trim(void *unused) {
    (void)unused;
    fake_mode(FAKE_EAGER);
    CHECK_EQ(pthread_create(&other, NULL, trim, NULL), 0);
    until_it_came();
}

/* A block that still waited for its users becomes free during the wait, and its chunk idle. */
static void a_chunk_is_given_back(void) {
    void *block[3];
    open_arena(NULL, goes_once);
    tells = 0;
    for (int i = 0; i < 3; i++) block[i] = take(2 * MIB, tag, 0);
    fake_mode(FAKE_STEPPED);
    kit_fill(kit_stream[0], block[1], MIB, 1);
    put(block[1], 0);
    fake_before_call("cuMemFree", 1, start_a_trim, NULL);
    CHECK_RESULT(gpupool_sleep(arena, tag, GPUPOOL_DISCARD, NULL), GPUPOOL_OK);
    CHECK_EQ(pthread_join(other, NULL), 0);
    CHECK_EQ(tells, 3);
    CHECK_EQ(fake_mappings(), 0);
    tells = 0;
    CHECK_RESULT(gpupool_wake(arena, tag, NULL), GPUPOOL_OK);
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    put(block[0], 0);
    put(block[2], 0);
    kit_close(arena);
}

/* ---- another thread has a free run in its hands ---- */

static void *in_hand;

static void *take_in_hand(void *unused) {
    in_hand = take(MANY, 0, 3);
    return unused;
}

static void take_long(void *unused) {
    (void)unused;
    atomic_store(&came, 1);
    a_moment();
}

/* The waiting block becomes free. It is taken, freed with work in flight, and then taken over for
   another stream by a thread that asks CUDA about that work. */
static void take_it_over(void *unused) {
    void *block;
    (void)unused;
    fake_mode(FAKE_EAGER);
    CHECK_RESULT(gpupool_wait_stream(arena, kit_stream[1]), GPUPOOL_OK);
    CHECK_RESULT(gpupool_wait_stream(arena, kit_stream[2]), GPUPOOL_OK);
    block = take(MANY, 0, 0);
    if (!CHECK(block != NULL)) return;
    fake_mode(FAKE_STEPPED);
    kit_fill(kit_stream[0], block, MIB, 1);
    put(block, 0);
    fake_before_call("cuEventQuery", 1, take_long, NULL);
    CHECK_EQ(pthread_create(&other, NULL, take_in_hand, NULL), 0);
    until_it_came();
    fake_mode(FAKE_EAGER);
}

/* Sleep waits for that thread, and its block sleeps as all others do. */
static void a_run_is_in_hand(void) {
    open_arena(NULL, NULL);
    void *small = take(2 * MIB, 0, 0), *block = take(MANY, 0, 1);
    fake_mode(FAKE_STEPPED);
    kit_fill(kit_stream[1], block, MIB, 1);
    kit_fill(kit_stream[2], (char *)block + 2 * MIB, MIB, 1);
    CHECK_RESULT(gpupool_record_stream(arena, block, kit_stream[2]), GPUPOOL_OK);
    put(block, 1);
    fake_before_call("cuMemFree", 1, take_it_over, NULL);
    CHECK_RESULT(gpupool_sleep(arena, GPUPOOL_ALL, GPUPOOL_KEEP, NULL), GPUPOOL_OK);
    CHECK_EQ(arena->in_hand, 0);
    CHECK_EQ(pthread_join(other, NULL), 0);
    CHECK(in_hand == block);
    CHECK(*gpi_clock_sleeper(gpi_tree_live(&arena->tree, (uint64_t)(uintptr_t)block /
                                                             GPUPOOL_UNIT_BYTES)) != NULL);
    put(block, 3);
    CHECK_RESULT(kit_why(take(MANY, 0, 3)), GPUPOOL_E_ASLEEP);
    CHECK_RESULT(gpupool_wake(arena, GPUPOOL_ALL, NULL), GPUPOOL_OK);
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    put(small, 0);
    kit_close(arena);
}

/* ---- another thread begins to capture ---- */

static gpupool_capture *scope;
static gpupool_result slept;
static int is_watched;

static void *fall_asleep(void *unused) {
    slept = gpupool_sleep(arena, GPUPOOL_ALL, GPUPOOL_DISCARD, NULL);
    return unused;
}

/* Sleep waits for this call; the scope has free memory of its own when sleep goes on. */
static int capture_meanwhile(const gpupool_mapping *mapping, void *unused) {
    int changing = 0;
    (void)mapping, (void)unused;
    if (!is_watched) return 0;
    is_watched = 0;
    CHECK_EQ(pthread_create(&other, NULL, fall_asleep, NULL), 0);
    while (!changing) {
        gpi_host_lock(&arena->lock);
        changing = gpi_arena_any_part(arena, GPI_CHANGING);
        gpi_host_unlock(&arena->lock);
    }
    CHECK_RESULT(gpupool_begin_capture(arena, kit_stream[1], &scope), GPUPOOL_OK);
    put(take(256 * KIB, 0, 1), 1);
    return 0;
}

static void a_scope_is_opened(void) {
    open_arena(capture_meanwhile, NULL);
    void *block[3] = {take(2 * MIB, 0, 0), take(512 * KIB, 0, 0), take(2 * MIB, 0, 0)};
    put(block[1], 0);
    CHECK_RESULT(gpupool_wait_all(arena), GPUPOOL_OK);
    is_watched = 1;
    block[1] = take(MANY, 0, 0);
    CHECK_EQ(pthread_join(other, NULL), 0);
    CHECK_RESULT(slept, GPUPOOL_E_CAPTURING);
    put(take(256 * KIB, 0, 1), 1);
    CHECK_RESULT(gpupool_end_capture(scope), GPUPOOL_OK);
    CHECK_RESULT(gpupool_release_capture(scope), GPUPOOL_OK);
    for (int i = 0; i < 3; i++)
        if (block[i]) put(block[i], 0);
    kit_close(arena);
}

/* The same while it waits for the device, with no call in the middle. */
static void begin_a_scope(void *unused) {
    (void)unused;
    CHECK_RESULT(gpupool_begin_capture(arena, kit_stream[1], &scope), GPUPOOL_OK);
}

static void a_scope_is_opened_in_the_wait(void) {
    open_arena(NULL, NULL);
    void *block = take(2 * MIB, 0, 0);
    fake_before_call("cuMemFree", 1, begin_a_scope, NULL);
    CHECK_RESULT(gpupool_sleep(arena, GPUPOOL_ALL, GPUPOOL_DISCARD, NULL), GPUPOOL_E_CAPTURING);
    put(take(256 * KIB, 0, 1), 1);
    CHECK_RESULT(gpupool_end_capture(scope), GPUPOOL_OK);
    CHECK_RESULT(gpupool_release_capture(scope), GPUPOOL_OK);
    put(block, 0);
    kit_close(arena);
}

/* ---- waking ---- */

static void *pending;

static void raise_the_limit(void *unused) {
    (void)unused;
    CHECK_RESULT(gpupool_set_limit(arena, 10 * MIB), GPUPOOL_OK);
}

/* A look at this block's users is made as waking makes room. */
static void leave_a_look_to_make(void *unused) {
    (void)unused;
    fake_mode(FAKE_STEPPED);
    pending = take(512 * KIB, 0, 1);
    kit_fill(kit_stream[1], pending, 512, 1);
    CHECK_RESULT(gpupool_record_stream(arena, pending, kit_stream[1]), GPUPOOL_OK);
    fake_before_call("cuEventQuery", 1, raise_the_limit, NULL);
    fake_mode(FAKE_EAGER);
}

/* The limit that counts is the one at the end of the look: idle chunks make room below it. */
static void a_limit_goes_up_while_waking(void) {
    open_arena(NULL, NULL);
    void *block = take(8 * MIB, tag, 0), *idle[2];
    CHECK_RESULT(gpupool_sleep(arena, tag, GPUPOOL_DISCARD, NULL), GPUPOOL_OK);
    for (int i = 0; i < 2; i++) idle[i] = take(2 * MIB, 0, i);
    for (int i = 0; i < 2; i++) put(idle[i], i);
    CHECK_RESULT(gpupool_wait_all(arena), GPUPOOL_OK);
    CHECK_RESULT(gpupool_set_limit(arena, 6 * MIB), GPUPOOL_OK);
    fake_before_call("cuMemFree", 1, leave_a_look_to_make, NULL);
    CHECK_RESULT(gpupool_wake(arena, tag, NULL), GPUPOOL_OK);
    CHECK_EQ(kit_stats(arena).limit_bytes, 10 * MIB);
    put(pending, 1);
    put(block, 0);
    kit_close(arena);
}

/* ---- what sleeps is not what blocks have of the memory that is there ---- */

static void *from_the_rest;

static void *take_from_the_rest(void *unused) {
    atomic_store(&came, 1);
    from_the_rest = take(4 * MIB, 0, 1);
    return unused;
}

static int ask_for_the_rest(const gpupool_mapping *mapping, void *unused) {
    (void)unused;
    if (!is_watched || !mapping->chunk_bytes) return 0;
    is_watched = 0;
    CHECK_EQ(pthread_create(&other, NULL, take_from_the_rest, NULL), 0);
    until_it_came();
    a_moment();
    return 0;
}

/* A request waits for memory of which the program is being told, if there will be enough. */
static void a_chunk_comes_while_a_part_sleeps(void) {
    open_arena(ask_for_the_rest, NULL);
    void *asleep = take(6 * MIB, tag, 0), *block;
    CHECK_RESULT(gpupool_sleep(arena, tag, GPUPOOL_DISCARD, NULL), GPUPOOL_OK);
    CHECK_RESULT(gpupool_set_limit(arena, 8 * MIB), GPUPOOL_OK);
    arena->chunks.chunk_bytes = 8 * MIB;
    is_watched = 1;
    block = take(2 * MIB, 0, 0);
    CHECK_EQ(pthread_join(other, NULL), 0);
    CHECK(from_the_rest != NULL);
    put(block, 0);
    if (from_the_rest) put(from_the_rest, 1);
    put(asleep, 0);
    CHECK_RESULT(gpupool_wake(arena, tag, NULL), GPUPOOL_OK);
    kit_close(arena);
}

static size_t available;

static void ask_what_is_available(void *unused) {
    (void)unused;
    CHECK_RESULT(gpupool_get_available(arena, &available), GPUPOOL_OK);
}

/* What changes counts as asleep: nobody can have it now. */
static void what_is_available_meanwhile(void) {
    size_t asleep;
    open_arena(NULL, NULL);
    CHECK_RESULT(gpupool_set_limit(arena, 64 * MIB), GPUPOOL_OK);
    void *block = take(16 * MIB, tag, 0), *others = take(30 * MIB, 0, 0);
    CHECK_RESULT(gpupool_get_available(arena, &asleep), GPUPOOL_OK);
    fake_before_call("cuMemFree", 1, ask_what_is_available, NULL);
    CHECK_RESULT(gpupool_sleep(arena, tag, GPUPOOL_DISCARD, NULL), GPUPOOL_OK);
    CHECK_EQ(available, asleep); /* the limit still counts its chunks */
    CHECK_RESULT(gpupool_get_available(arena, &asleep), GPUPOOL_OK);
    CHECK_EQ(asleep, available + 16 * MIB);
    fake_before_call("cuMemFree", 1, ask_what_is_available, NULL);
    CHECK_RESULT(gpupool_wake(arena, tag, NULL), GPUPOOL_OK);
    CHECK_EQ(available, asleep);
    fake_before_call("cuMemRelease", 1, ask_what_is_available, NULL);
    CHECK_RESULT(gpupool_sleep(arena, tag, GPUPOOL_DISCARD, NULL), GPUPOOL_OK);
    CHECK_EQ(available, asleep - 16 * MIB);
    CHECK_RESULT(gpupool_wake(arena, tag, NULL), GPUPOOL_OK);
    put(block, 0);
    put(others, 0);
    kit_close(arena);
}

static void refuse_a_large_one(void *unused) {
    (void)unused;
    CHECK_RESULT(kit_why(take(31 * MIB, 0, 0)), GPUPOOL_E_OUT_OF_MEMORY);
    CHECK(strstr(gpupool_last_error(), "does not fit under the limit") != NULL);
}

/* The verdict on a request beside a part that wakes sees no free memory where there is none. */
static void a_verdict_meanwhile(void) {
    open_arena(NULL, NULL);
    void *block = take(16 * MIB, tag, 0), *others = take(3 * MIB, 0, 0);
    CHECK_RESULT(gpupool_set_limit(arena, 32 * MIB), GPUPOOL_OK);
    CHECK_RESULT(gpupool_sleep(arena, tag, GPUPOOL_DISCARD, NULL), GPUPOOL_OK);
    fake_before_call("cuMemFree", 1, refuse_a_large_one, NULL);
    CHECK_RESULT(gpupool_wake(arena, tag, NULL), GPUPOOL_OK);
    put(block, 0);
    put(others, 0);
    kit_close(arena);
}
#endif

int main(void) {
    FAKE_TEST(a_chunk_is_given_back);
    FAKE_TEST(a_run_is_in_hand);
    FAKE_TEST(a_scope_is_opened);
    FAKE_TEST(a_scope_is_opened_in_the_wait);
    FAKE_TEST(a_limit_goes_up_while_waking);
    FAKE_TEST(a_chunk_comes_while_a_part_sleeps);
    FAKE_TEST(what_is_available_meanwhile);
    FAKE_TEST(a_verdict_meanwhile);
    return check_finish();
}
