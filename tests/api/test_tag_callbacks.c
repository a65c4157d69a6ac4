/* What functions of the program do while a request with a tag is under way; and what other threads
   do beside a tag that cannot be made. */
// build: plain
// build: thread -O1 -fsanitize=thread
#define _DEFAULT_SOURCE /* alarm */
#include "gpupool.h"
#include "arena_kit.h"

#include <pthread.h>
#include <unistd.h>

#if CHECK_FAKE

static gpupool_arena *arena;
static int tags[2], calls, sleeps; /* sleeps: what the functions below put to sleep */
static pthread_barrier_t both;
static _Thread_local int mine; /* which of the two tags this thread asks for */

static int make_tag(const char *name, size_t reserve_bytes) {
    gpupool_tag_config config;
    int tag = 0;
    memset(&config, 0, sizeof config);
    config.can_sleep = 1;
    config.reserve_bytes = reserve_bytes;
    CHECK_RESULT(gpupool_tag(arena, name, &config, &tag), GPUPOOL_OK);
    return tag;
}

static void *take(size_t bytes, int tag) {
    gpupool_request request;
    memset(&request, 0, sizeof request);
    request.bytes = bytes;
    request.stream = kit_stream[0];
    request.tag = tag;
    return gpupool_alloc_request(arena, &request);
}

/* ---- sleep in the functions of a request ---- */

static int sleep_for_memory(const gpupool_verdict *verdict, void *unused) {
    (void)unused;
    CHECK_EQ(verdict->cause, GPUPOOL_CAUSE_LIMIT);
    calls++;
    CHECK_RESULT(gpupool_sleep(arena, sleeps, GPUPOOL_DISCARD, NULL), GPUPOOL_OK);
    return 0;
}

static void sleep_over_the_limit(const gpupool_soft_limit *what, void *unused) {
    (void)unused;
    calls++;
    if (what->is_over)
        CHECK_RESULT(gpupool_sleep(arena, sleeps, GPUPOOL_DISCARD, NULL), GPUPOOL_OK);
}

/* The request's own tag: neither call waits for the other. */
static void a_request_puts_its_own_tag_to_sleep(void) {
    for (int i = 0; i < 3; i++) {
        gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
        config.limit_bytes = 64 * MIB;
        if (i < 2) config.on_out_of_memory = sleep_for_memory;
        else config.on_soft_limit = sleep_over_the_limit;
        if (i == 2) config.soft_limit_bytes = 16 * MIB;
        arena = kit_create(&config);
        tags[0] = make_tag("t", 0);
        sleeps = i == 1 ? GPUPOOL_ALL : tags[0];
        calls = 0;
        alarm(60); /* it would wait for ever */
        void *block = take((i < 2 ? 128 : 32) * MIB, i == 1 ? 0 : tags[0]);
        alarm(0);
        CHECK_EQ(block != NULL, i == 2);
        CHECK(calls > 0);
        CHECK_RESULT(gpupool_wake(arena, GPUPOOL_ALL, NULL), GPUPOOL_OK);
        CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
        kit_close(arena);
    }
}

static int sleep_the_others(const gpupool_verdict *verdict, void *unused) {
    (void)verdict, (void)unused;
    pthread_barrier_wait(&both);
    CHECK_RESULT(gpupool_sleep(arena, tags[1 - mine], GPUPOOL_DISCARD, NULL), GPUPOOL_OK);
    return 0;
}

static void *ask_too_much(void *number) {
    mine = *(int *)number;
    CHECK(!take(128 * MIB, tags[mine]));
    return NULL;
}

static void two_put_each_other_to_sleep(void) {
    static int numbers[2] = {0, 1};
    pthread_t threads[2];
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
    config.limit_bytes = 64 * MIB;
    config.on_out_of_memory = sleep_the_others;
    arena = kit_create(&config);
    for (int i = 0; i < 2; i++) tags[i] = make_tag("t", 0);
    pthread_barrier_init(&both, NULL, 2);
    alarm(60);
    for (int i = 0; i < 2; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, ask_too_much, &numbers[i]), 0);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    alarm(0);
    pthread_barrier_destroy(&both);
    CHECK_RESULT(gpupool_wake(arena, GPUPOOL_ALL, NULL), GPUPOOL_OK);
    kit_close(arena);
}

/* A block that is to be zeroed, when its arena falls asleep first: the block goes back. */
static void asleep_before_it_is_zeroed(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
    config.soft_limit_bytes = 16 * MIB;
    config.on_soft_limit = sleep_over_the_limit;
    arena = kit_create(&config);
    sleeps = GPUPOOL_ALL;
    calls = 0;
    CHECK_RESULT(kit_why(gpupool_zalloc(arena, 32 * MIB, kit_stream[0])), GPUPOOL_E_ASLEEP);
    CHECK_EQ(calls, 2); /* over the limit, and under it once all is asleep */
    CHECK_EQ(kit_stats(arena).blocks.now, 0);
    CHECK_EQ(kit_stats(arena).failures, 1);
    CHECK_RESULT(gpupool_wake(arena, GPUPOOL_ALL, NULL), GPUPOOL_OK);
    kit_close(arena);
}

/* ---- requests in on_map: what the program is being told of is not theirs ---- */

static unsigned flags_within;

static void *ask_within(void *unused) {
    void *block = kit_alloc_as(arena, 40 * MIB, kit_stream[1], flags_within);
    CHECK_RESULT(kit_why(block), GPUPOOL_E_OUT_OF_MEMORY);
    calls++;
    return unused;
}

static int ask_here(const gpupool_mapping *mapping, void *unused) {
    (void)mapping;
    if (!calls) ask_within(unused);
    return 0;
}

static int ask_in_a_thread(const gpupool_mapping *mapping, void *unused) {
    pthread_t thread;
    (void)mapping;
    if (calls) return 0;
    CHECK_EQ(pthread_create(&thread, NULL, ask_within, unused), 0);
    pthread_join(thread, NULL);
    return 0;
}

/* Neither the thread that is in on_map waits for its own memory, nor one that may not wait. */
static void a_request_in_on_map_does_not_wait(void) {
    for (int here = 0; here < 2; here++) {
        gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
        config.limit_bytes = 64 * MIB;
        config.on_map = here ? ask_here : ask_in_a_thread;
        flags_within = here ? 0 : GPUPOOL_NO_WAIT;
        calls = 0;
        arena = kit_create(&config);
        alarm(60); /* it would wait for ever */
        void *block = kit_alloc(arena, 40 * MIB, kit_stream[0]);
        alarm(0);
        CHECK_EQ(calls, 1);
        CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
        kit_close(arena);
    }
}

/* ---- soft limits of the arena ---- */

static void count(const gpupool_soft_limit *what, void *unused) {
    (void)unused;
    CHECK_EQ(what->is_over, ++calls % 2); /* over, and under again, in turn */
}

/* By the call that changes what is reserved, before it returns. */
static void reserves_and_sleep_are_told(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
    config.soft_limit_bytes = 16 * MIB;
    config.on_soft_limit = count;
    arena = kit_create(&config);
    calls = 0;
    tags[0] = make_tag("t", 64 * MIB);
    CHECK_EQ(calls, 1);
    void *block = take(MIB, tags[0]);
    CHECK_RESULT(gpupool_sleep(arena, tags[0], GPUPOOL_DISCARD, NULL), GPUPOOL_OK);
    CHECK_EQ(calls, 2);
    CHECK_RESULT(gpupool_wake(arena, tags[0], NULL), GPUPOOL_OK);
    CHECK_EQ(calls, 3);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
    kit_close(arena);
}

/* What the program gives back by other calls than a free or a trim is told by these calls, too. */
static void limits_and_releases_are_told(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
    config.soft_limit_bytes = 16 * MIB;
    config.on_soft_limit = count;
    arena = kit_create(&config);
    calls = 0;
    CHECK_RESULT(gpupool_free(arena, kit_alloc(arena, 64 * MIB, 0), 0), GPUPOOL_OK);
    CHECK_EQ(calls, 1);
    CHECK_RESULT(gpupool_set_limit(arena, 8 * MIB), GPUPOOL_OK);
    CHECK_EQ(calls, 2);
    CHECK_RESULT(gpupool_set_limit(arena, 0), GPUPOOL_OK);
    CHECK_RESULT(gpupool_free(arena, kit_alloc(arena, 64 * MIB, 0), 0), GPUPOOL_OK);
    CHECK_EQ(calls, 3);
    CHECK_RESULT(gpupool_set_limit_text(arena, "8MiB"), GPUPOOL_OK);
    CHECK_EQ(calls, 4);
    kit_close(arena);
}

static void a_released_scope_is_told(void) {
    gpupool_tag_config config;
    gpupool_capture *scope;
    memset(&config, 0, sizeof config);
    config.soft_limit_bytes = MIB;
    config.on_soft_limit = count;
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    CHECK_RESULT(gpupool_tag(arena, "t", &config, &tags[0]), GPUPOOL_OK);
    calls = 0;
    CHECK_RESULT(gpupool_begin_capture(arena, kit_stream[0], &scope), GPUPOOL_OK);
    CHECK(take(2 * MIB, tags[0]) != NULL);
    CHECK_EQ(calls, 1);
    CHECK_RESULT(gpupool_release_capture(scope), GPUPOOL_OK);
    CHECK_EQ(calls, 2);
    kit_close(arena);
}

static void an_arena_that_begins_over_it(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
    config.soft_limit_bytes = 16 * MIB;
    config.on_soft_limit = count;
    config.reserve_bytes = 64 * MIB;
    calls = 0;
    arena = kit_create(&config);
    CHECK_EQ(calls, 1);
    kit_close(arena);
}

/* By the next allocation, also one that finds memory at once: in the tree, or in a cache. */
static void a_host_function_is_told_by_an_allocation(void) {
    gpupool_tag_config config;
    void *block[2];
    memset(&config, 0, sizeof config);
    config.soft_limit_bytes = MIB;
    config.on_soft_limit = count;
    for (int cached = 0; cached < 2; cached++) {
        arena = kit_open(GPUPOOL_SOURCE_MAPPED);
        CHECK_RESULT(gpupool_tag(arena, "t", &config, &tags[0]), GPUPOOL_OK);
        calls = 0;
        block[0] = take(2 * MIB, tags[0]);
        CHECK_EQ(calls, 1);
        for (int i = 0; i < 3; i++) {
            block[1] = kit_alloc(arena, 512, kit_stream[1]);
            CHECK_RESULT(gpupool_free(arena, block[1], kit_stream[1]), GPUPOOL_OK);
        }
        CHECK_RESULT(gpupool_free_in_host_function(arena, block[0], kit_stream[0]), GPUPOOL_OK);
        CHECK_EQ(calls, 1);
        block[1] = kit_alloc(arena, cached ? 512 : 4096, kit_stream[1]);
        CHECK_EQ(calls, 2);
        CHECK_RESULT(gpupool_free(arena, block[1], kit_stream[1]), GPUPOOL_OK);
        kit_close(arena);
    }
}

/* The block was over the soft limit, and is none. */
static void a_block_that_cannot_be_zeroed(void) {
    gpupool_tag_config config;
    gpupool_request request;
    memset(&config, 0, sizeof config);
    config.soft_limit_bytes = MIB;
    config.on_soft_limit = count;
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    memset(&request, 0, sizeof request);
    CHECK_RESULT(gpupool_tag(arena, "t", &config, &request.tag), GPUPOOL_OK);
    request.bytes = 2 * MIB;
    request.stream = kit_stream[0];
    request.flags = GPUPOOL_ZEROED;
    calls = 0;
    fake_fail_call("cuMemsetD8Async", 1, 0, 0);
    CHECK(gpupool_alloc_request(arena, &request) == NULL);
    CHECK_RESULT(gpupool_last_result(), GPUPOOL_E_CUDA);
    fake_fail_clear();
    CHECK_EQ(calls, 2);
    kit_close(arena);
}

/* A request that has no block yet is not over a soft limit: it may fail. */
static void a_request_that_gets_no_block(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
    gpupool_tag_config of_tag;
    config.limit_bytes = 16 * MIB;
    config.soft_limit_bytes = 16 * MIB; /* the arena looks for news whenever it has grown */
    config.on_soft_limit = count;
    arena = kit_create(&config);
    memset(&of_tag, 0, sizeof of_tag);
    of_tag.soft_limit_bytes = MIB;
    of_tag.on_soft_limit = count;
    CHECK_RESULT(gpupool_tag(arena, "t", &of_tag, &tags[0]), GPUPOOL_OK);
    calls = 0;
    CHECK(take(64 * MIB, tags[0]) == NULL);
    CHECK_RESULT(gpupool_last_result(), GPUPOOL_E_OUT_OF_MEMORY);
    CHECK_EQ(calls, 0);
    kit_close(arena);
}

/* Nobody is told. */
static void a_soft_limit_without_a_function(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
    config.soft_limit_bytes = MIB;
    arena = kit_create(&config);
    void *block = kit_alloc(arena, 4 * MIB, kit_stream[0]);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
    kit_close(arena);
}

/* ---- tags that cannot be made ---- */

static int stops;

static void *list_tags(void *unused) {
    gpupool_tag_stats stats;
    while (!__atomic_load_n(&stops, __ATOMIC_RELAXED))
        for (int tag = 1; gpupool_get_tag_stats(arena, tag, &stats) == GPUPOOL_OK; tag++)
            CHECK_EQ(stats.blocks.now, 0);
    return unused;
}

static void tags_are_listed_beside_one_that_fails(void) {
    gpupool_tag_config config;
    pthread_t thread;
    int tag;
    memset(&config, 0, sizeof config);
    config.can_sleep = 1;
    config.reserve_bytes = 1024 * MIB;
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 64 * MIB);
    __atomic_store_n(&stops, 0, __ATOMIC_RELAXED);
    CHECK_EQ(pthread_create(&thread, NULL, list_tags, NULL), 0);
    for (int i = 0; i < 3000; i++)
        CHECK_RESULT(gpupool_tag(arena, "t", &config, &tag), GPUPOOL_E_OUT_OF_MEMORY);
    __atomic_store_n(&stops, 1, __ATOMIC_RELAXED);
    pthread_join(thread, NULL);
    kit_close(arena);
}

/* What another call does while the program is told of a tag's reserve, which it then refuses. */
static void (*meanwhile)(void);

static int refuse_after(const gpupool_mapping *mapping, void *unused) {
    void (*act)(void) = meanwhile;
    (void)mapping, (void)unused;
    meanwhile = NULL; /* the act itself is told of memory, too */
    if (act) act();
    return act != NULL;
}

static void *kept; /* what the act has got of the tag */
static int added;

static void add_a_tag(void) {
    CHECK_RESULT(gpupool_tag(arena, "added", NULL, &added), GPUPOOL_OK);
}
static void use_the_tag(void) {
    kept = take(MIB, 1);
    CHECK(kept != NULL);
}
static void use_and_free(void) {
    CHECK_RESULT(gpupool_free(arena, take(MIB, 1), kit_stream[0]), GPUPOOL_OK);
}

static pthread_t user;
static pthread_barrier_t comes;
static void *ask_for_the_tag(void *unused) {
    use_the_tag();
    return unused;
}
static void wait_for_both(void) {
    pthread_barrier_wait(&comes); /* the request is on its way, and told of its own memory */
    pthread_barrier_wait(&comes); /* the tag has failed */
}
static void begin_to_use(void) {
    meanwhile = wait_for_both;
    CHECK_EQ(pthread_create(&user, NULL, ask_for_the_tag, NULL), 0);
    pthread_barrier_wait(&comes);
}
static int stay_after_a_wait(const gpupool_mapping *mapping, void *unused) {
    int is_the_tags = meanwhile == begin_to_use;
    (void)refuse_after(mapping, unused);
    return is_the_tags;
}

/* Its number stays taken where somebody has used it, or a number after it. */
static void a_tag_that_fails_after_a_use(void) {
    static void (*const acts[])(void) = {add_a_tag, use_the_tag, use_and_free, begin_to_use};
    gpupool_tag_config reserve;
    memset(&reserve, 0, sizeof reserve);
    reserve.reserve_bytes = 8 * MIB;
    pthread_barrier_init(&comes, NULL, 2);
    for (size_t i = 0; i < KIT_COUNT(acts); i++) {
        gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
        int tag = 5, next = 0;
        check_case("act %zu", i);
        config.on_map = acts[i] == begin_to_use ? stay_after_a_wait : refuse_after;
        arena = kit_create(&config);
        meanwhile = acts[i];
        kept = NULL;
        added = 0;
        CHECK_RESULT(gpupool_tag(arena, "t", &reserve, &tag), GPUPOOL_E_CALLBACK);
        CHECK_EQ(tag, 0);
        if (acts[i] == begin_to_use) {
            pthread_barrier_wait(&comes);
            CHECK_EQ(pthread_join(user, NULL), 0);
        }
        CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
        CHECK_EQ(added, acts[i] == add_a_tag ? 2 : 0);
        CHECK_RESULT(gpupool_tag(arena, "next", NULL, &next), GPUPOOL_OK);
        CHECK_EQ(next, acts[i] == add_a_tag ? 3 : 2);
        CHECK_RESULT(gpupool_free(arena, kept, kit_stream[0]), GPUPOOL_OK);
        kit_close(arena);
    }
    pthread_barrier_destroy(&comes);
}

static void *sleep_all(void *unused) {
    CHECK_RESULT(gpupool_sleep(arena, GPUPOOL_ALL, GPUPOOL_DISCARD, NULL), GPUPOOL_OK);
    return unused;
}
static void begin_to_sleep(void) {
    CHECK_EQ(pthread_create(&user, NULL, sleep_all, NULL), 0);
    usleep(50000); /* it waits for the end of this on_map by then */
}

/* The number does not go on sleeping without the tag: the next tag has it. */
static void a_tag_that_fails_while_all_falls_asleep(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
    gpupool_tag_config reserve;
    memset(&reserve, 0, sizeof reserve);
    reserve.reserve_bytes = 8 * MIB;
    config.on_map = refuse_after;
    arena = kit_create(&config);
    meanwhile = begin_to_sleep;
    CHECK_RESULT(gpupool_tag(arena, "t", &reserve, &tags[0]), GPUPOOL_E_CALLBACK);
    CHECK_EQ(pthread_join(user, NULL), 0);
    CHECK_RESULT(gpupool_wake(arena, GPUPOOL_ALL, NULL), GPUPOOL_OK);
    CHECK_RESULT(gpupool_tag(arena, "next", NULL, &tags[0]), GPUPOOL_OK);
    void *block = take(MIB, tags[0]);
    CHECK(block != NULL);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
    kit_close(arena);
}

/* ---- idle chunks of another tag, where the device is full ---- */

static void no_more_is_given_back_than_is_missing(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
    void *block[16], *more;
    size_t free_bytes, total_bytes;
    config.chunk_bytes = 16 * MIB;
    CHECK_EQ(cudaMemGetInfo(&free_bytes, &total_bytes), cudaSuccess);
    fake_other_process(0, free_bytes - 512 * MIB);
    arena = kit_create(&config);
    for (int i = 0; i < 2; i++) tags[i] = make_tag("t", 0);
    for (int i = 0; i < 16; i++) block[i] = take(16 * MIB, tags[0]);
    for (int i = 0; i < 16; i++)
        CHECK_RESULT(gpupool_free(arena, block[i], kit_stream[0]), GPUPOOL_OK);
    CHECK_RESULT(gpupool_wait_all(arena), GPUPOOL_OK);
    for (int i = 0; i < 15; i++) block[i] = take(16 * MIB, tags[1]);
    uint64_t lost = kit_stats(arena).chunks_lost;
    more = take(32 * MIB, tags[1]); /* 16 MiB are free on the device */
    CHECK(more != NULL);
    CHECK(kit_stats(arena).chunks_lost - lost <= 2); /* of 16 that are idle */
    CHECK_RESULT(gpupool_free(arena, more, kit_stream[0]), GPUPOOL_OK);
    for (int i = 0; i < 15; i++)
        CHECK_RESULT(gpupool_free(arena, block[i], kit_stream[0]), GPUPOOL_OK);
    fake_other_process(0, 0);
    kit_close(arena);
}
/* ---- another arena that gives back its idle chunks ---- */

static gpupool_arena *full_of_idle_chunks(gpupool_arena_config *config) {
    size_t free_bytes, total_bytes;
    CHECK_EQ(cudaMemGetInfo(&free_bytes, &total_bytes), cudaSuccess);
    fake_other_process(0, free_bytes - 64 * MIB);
    gpupool_arena *other = kit_create(config);
    CHECK_RESULT(gpupool_free(other, kit_alloc(other, 48 * MIB, 0), 0), GPUPOOL_OK);
    return other;
}

static int trim_the_first(const gpupool_mapping *mapping, void *unused) {
    (void)mapping, (void)unused;
    calls++;
    CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
    return 0;
}

/* Its on_unmap is called with no lock of the arena that reserves: it would wait for itself. */
static void a_reserve_makes_others_call_the_arena(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
    arena = kit_create(&config);
    calls = 0;
    config.on_unmap = trim_the_first;
    gpupool_arena *other = full_of_idle_chunks(&config);
    alarm(20);
    tags[0] = make_tag("t", 32 * MIB);
    CHECK(calls > 0);
    fake_other_process(0, 0);
    CHECK_RESULT(gpupool_sleep(arena, GPUPOOL_ALL, GPUPOOL_DISCARD, NULL), GPUPOOL_OK);
    CHECK_RESULT(gpupool_wake(arena, GPUPOOL_ALL, NULL), GPUPOOL_OK);
    alarm(0);
    kit_close(other);
    kit_close(arena);
}

/* The call that gave them back is of another arena, and does not tell. */
static void a_soft_limit_that_others_meet(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
    arena = kit_create(&config);
    calls = 0;
    config.soft_limit_bytes = 16 * MIB;
    config.on_soft_limit = count;
    gpupool_arena *other = full_of_idle_chunks(&config);
    CHECK_EQ(calls, 1);
    void *block = kit_alloc(arena, 60 * MIB, kit_stream[0]);
    CHECK_EQ(calls, 1);
    void *small = kit_alloc(other, 512, kit_stream[0]);
    CHECK_EQ(calls, 2);
    CHECK_RESULT(gpupool_free(other, small, kit_stream[0]), GPUPOOL_OK);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
    fake_other_process(0, 0);
    kit_close(other);
    kit_close(arena);
}
#endif

int main(void) {
    FAKE_TEST(a_request_puts_its_own_tag_to_sleep);
    FAKE_TEST(two_put_each_other_to_sleep);
    FAKE_TEST(asleep_before_it_is_zeroed);
    FAKE_TEST(a_request_in_on_map_does_not_wait);
    FAKE_TEST(reserves_and_sleep_are_told);
    FAKE_TEST(limits_and_releases_are_told);
    FAKE_TEST(a_released_scope_is_told);
    FAKE_TEST(an_arena_that_begins_over_it);
    FAKE_TEST(a_host_function_is_told_by_an_allocation);
    FAKE_TEST(tags_are_listed_beside_one_that_fails);
    FAKE_TEST(a_tag_that_fails_after_a_use);
    FAKE_TEST(a_tag_that_fails_while_all_falls_asleep);
    FAKE_TEST(a_block_that_cannot_be_zeroed);
    FAKE_TEST(a_request_that_gets_no_block);
    FAKE_TEST(a_soft_limit_without_a_function);
    FAKE_TEST(no_more_is_given_back_than_is_missing);
    FAKE_TEST(a_reserve_makes_others_call_the_arena);
    FAKE_TEST(a_soft_limit_that_others_meet);
    return check_finish();
}
