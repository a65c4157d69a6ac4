/* Tags: what blocks with them have is counted until they are freed, whoever frees them and however;
   budgets hold, verdicts tell what would help, and soft limits call before anything fails. */
// build: plain -O1
// build: asan -fsanitize=address,undefined
// build: check2 -O1 -DGPUPOOL_CHECK=2 -DSTEPS=1500
// build: guard -DGPUPOOL_GUARD=1
// build: sites -DGPUPOOL_SITES=1
// build: nostats -DGPUPOOL_STATS=0
// build: thread -fsanitize=thread -DSTEPS=1500
#include "gpupool.h"
#include "arena_kit.h"

#include <pthread.h>

#ifndef STEPS
#define STEPS 6000
#endif
#define UNIT ((size_t)GPUPOOL_UNIT_BYTES)
#define GUARDS (GPUPOOL_GUARD * UNIT) /* a guarded block has a unit more */

static gpupool_arena *arena;
static int weights, cache; /* tags */

static gpupool_tag_stats stats_of(int tag) {
    gpupool_tag_stats stats;
    CHECK_RESULT(gpupool_get_tag_stats(arena, tag, &stats), GPUPOOL_OK);
    return stats;
}

static int make_tag(const char *name, size_t limit) {
    gpupool_tag_config config;
    int tag = -1;
    memset(&config, 0, sizeof config);
    config.limit_bytes = limit;
    CHECK_RESULT(gpupool_tag(arena, name, &config, &tag), GPUPOOL_OK);
    return tag;
}

static void open_tagged(size_t limit) {
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, limit);
    weights = make_tag("weights", 0);
    cache = make_tag("kv_cache", 16 * MIB);
}

static void *take(size_t bytes, int tag, int stream) {
    gpupool_request request = kit_request(bytes, kit_stream[stream], 0);
    request.tag = tag;
    return gpupool_alloc_request(arena, &request);
}

static void give(void *block, int stream) {
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[stream]), GPUPOOL_OK);
}

static void nothing_is_left(void) {
    CHECK_EQ(stats_of(weights).granted.now, 0);
    CHECK_EQ(stats_of(weights).blocks.now, 0);
    CHECK_EQ(stats_of(cache).granted.now, 0);
    CHECK_EQ(stats_of(cache).blocks.now, 0);
    kit_close(arena);
}

static void counted_until_the_free(void) {
    static const size_t sizes[] = {1, 512, 4096, 70000, 300 * KIB, 5 * MIB, 12345678};
    size_t granted = 0;
    gpupool_block found;
    void *block[KIT_COUNT(sizes)];
    open_tagged(0);
    for (size_t i = 0; i < KIT_COUNT(sizes); i++) {
        block[i] = take(sizes[i], weights, 0);
        granted += (sizes[i] + UNIT - 1) / UNIT * UNIT + GUARDS;
        CHECK_EQ(stats_of(weights).granted.now, granted);
        CHECK_EQ(stats_of(weights).blocks.now, i + 1);
        CHECK_RESULT(gpupool_get_block(arena, block[i], &found), GPUPOOL_OK);
        CHECK_EQ(found.tag, weights);
        CHECK_EQ(found.requested_bytes, sizes[i]);
    }
    CHECK_EQ(stats_of(cache).granted.now, 0);
    CHECK(!strcmp(stats_of(weights).name, "weights"));
    CHECK_EQ(stats_of(cache).limit_bytes, 16 * MIB);
    CHECK_EQ(stats_of(weights).limit_bytes, 0); /* none */
    CHECK_EQ(stats_of(weights).soft_limit_bytes, 0);
    give(block[0], 0);
    CHECK_EQ(stats_of(weights).granted.peak, granted);
    CHECK_EQ(stats_of(weights).blocks.peak, KIT_COUNT(sizes));
    CHECK_RESULT(gpupool_reset_peaks(arena), GPUPOOL_OK);
    CHECK_EQ(stats_of(weights).granted.peak, granted - UNIT - GUARDS);
    CHECK_EQ(stats_of(weights).blocks.peak, KIT_COUNT(sizes) - 1);
    for (size_t i = 1; i < KIT_COUNT(sizes); i++) give(block[i], (int)i % 2);
    nothing_is_left();
}

/* Whoever has the memory next has it without the tag. */
static void memory_keeps_no_tag(void) {
    gpupool_block found;
    open_tagged(0);
    for (int i = 0; i < 200; i++) {
        size_t bytes = (size_t)(1 + i % 7) * 3000;
        void *tagged = take(bytes, i % 2 ? weights : cache, 0);
        give(tagged, 0);
        void *plain = kit_alloc(arena, bytes, kit_stream[0]);
        CHECK_RESULT(gpupool_get_block(arena, plain, &found), GPUPOOL_OK);
        CHECK_EQ(found.tag, 0);
        give(plain, 0);
    }
    nothing_is_left();
}

static void every_kind_of_block(void) {
    static const unsigned flags[] = {0, GPUPOOL_ZEROED, GPUPOOL_NO_WAIT, GPUPOOL_ONE_CHUNK};
    for (size_t s = 0; s < KIT_SOURCES; s++)
        for (size_t f = 0; f < KIT_COUNT(flags); f++) {
            check_case("source %s, flags %u", kit_sources[s].name, flags[f]);
            arena = kit_open(kit_sources[s].source);
            weights = make_tag("weights", 0);
            cache = make_tag("kv_cache", 0);
            gpupool_request request = kit_request(3 * MIB, kit_stream[0], flags[f]);
            request.tag = cache;
            request.alignment = 1 * MIB;
            void *block = gpupool_alloc_request(arena, &request);
            CHECK(block && (uintptr_t)block % MIB == 0);
            CHECK_EQ(stats_of(cache).granted.now, 3 * MIB + GUARDS);
            give(block, 0);
            nothing_is_left();
        }
    check_case(" ");
}

static void a_budget_holds(void) {
    gpupool_verdict verdict;
    void *first, *second;
    open_tagged(0);
    first = take(10 * MIB - GUARDS, cache, 0);
    CHECK(!take(7 * MIB - GUARDS, cache, 0));
    CHECK_EQ(gpupool_last_result(), GPUPOOL_E_OUT_OF_MEMORY);
    CHECK_RESULT(gpupool_last_verdict(&verdict), GPUPOOL_OK);
    CHECK_EQ(verdict.cause, GPUPOOL_CAUSE_TAG);
    CHECK_EQ(verdict.tag, cache);
    CHECK_EQ(verdict.limit_bytes, 16 * MIB);
    CHECK_EQ(verdict.granted_bytes, 10 * MIB);
    CHECK_EQ(verdict.missing_bytes, MIB);
    CHECK_EQ(verdict.raise_bytes, MIB);
    CHECK(strstr(gpupool_last_error(), "over the budget of tag \"kv_cache\": 16.00 MiB, of which "
                                       "blocks hold 10.00 MiB: raise it by 1.00 MiB, or free 1.00 "
                                       "MiB of it"));
    CHECK_EQ(stats_of(cache).failures, GPUPOOL_STATS);
    CHECK_EQ(kit_stats(arena).failures, GPUPOOL_STATS);
    second = take(7 * MIB - GUARDS, weights, 0); /* others may */
    CHECK(second != NULL);
    give(second, 0);
    /* what it advises, to the letter */
    CHECK_RESULT(gpupool_set_tag_limits(arena, cache, 16 * MIB + (size_t)verdict.raise_bytes, 0),
                 GPUPOOL_OK);
    second = take(7 * MIB - GUARDS, cache, 0);
    CHECK(second != NULL);
    give(first, 0);
    CHECK_RESULT(gpupool_set_tag_limits(arena, cache, MIB, 0), GPUPOOL_OK); /* what is there */
    CHECK(!take(1, cache, 0));
    give(second, 0);
    second = take(1, cache, 0);
    CHECK(second != NULL);
    give(second, 0);
    CHECK(!take((size_t)1 << 40, cache, 0));
    CHECK_EQ(gpupool_last_result(), GPUPOOL_E_OUT_OF_MEMORY);
    nothing_is_left();
}

static void *to_free[2];

static int free_it(const gpupool_verdict *verdict, void *user) {
    (void)user;
    CHECK_EQ(verdict->cause, GPUPOOL_CAUSE_TAG);
    for (int i = 0; i < 2; i++) {
        if (!to_free[i]) continue;
        give(to_free[i], 0);
        to_free[i] = NULL;
        return 1;
    }
    return 0;
}

static void out_of_budget_may_free_something(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
    void *block;
    config.on_out_of_memory = free_it;
    arena = kit_create(&config);
    weights = make_tag("weights", 0);
    cache = make_tag("kv_cache", 16 * MIB);
    for (int i = 0; i < 2; i++) to_free[i] = take(6 * MIB, cache, 0);
    block = take(14 * MIB, cache, 0);
    CHECK(block != NULL);
    CHECK_EQ(stats_of(cache).failures, GPUPOOL_STATS); /* helped twice: it was over it, once */
    CHECK_EQ(kit_stats(arena).failures, 0);
    CHECK(!take(10 * MIB, cache, 0));
    CHECK_EQ(stats_of(cache).failures, 2 * GPUPOOL_STATS);
    CHECK_EQ(kit_stats(arena).failures, GPUPOOL_STATS);
    give(block, 0);
    nothing_is_left();
}

/* What fails for another reason gives the budget its bytes back. */
static void a_failure_costs_no_budget(void) {
    void *block;
    open_tagged(8 * MIB);
    block = take(6 * MIB, cache, 0);
    CHECK(!take(6 * MIB, cache, 0));
    CHECK_EQ(stats_of(cache).granted.now, 6 * MIB + GUARDS);
    CHECK_EQ(stats_of(cache).blocks.now, 1);
    CHECK(!take(0, cache, 0));
    CHECK_EQ(gpupool_last_result(), GPUPOOL_E_ARGUMENT);
    gpupool_request request = kit_request(4096, kit_stream[0], 0);
    request.tag = cache;
    request.alignment = 3;
    CHECK(!gpupool_alloc_request(arena, &request));
    CHECK_EQ(gpupool_last_result(), GPUPOOL_E_ARGUMENT);
    CHECK_EQ(stats_of(cache).granted.now, 6 * MIB + GUARDS);
    CHECK(!take((size_t)1 << 40, weights, 0)); /* no budget, and no device has so much */
    CHECK_EQ(stats_of(weights).granted.peak, 0);
    CHECK_EQ(stats_of(weights).blocks.total, 0);
    CHECK_EQ(stats_of(cache).granted.peak, 6 * MIB + GUARDS);
    CHECK_EQ(stats_of(cache).granted.total, GPUPOOL_STATS * (6 * MIB + GUARDS));
    CHECK_EQ(stats_of(cache).blocks.peak, 1);
    CHECK_EQ(stats_of(cache).blocks.total, GPUPOOL_STATS);
    for (int i = 0; i < 3; i++) { /* were it charged for these, the budget would be what lacks */
        gpupool_verdict verdict;
        CHECK(!take(6 * MIB, cache, 0));
        CHECK_RESULT(gpupool_last_verdict(&verdict), GPUPOOL_OK);
        CHECK_EQ(verdict.cause, GPUPOOL_CAUSE_LIMIT);
    }
    give(block, 0);
    nothing_is_left();
}

static void *taken_inside;

static int take_inside(const gpupool_verdict *verdict, void *user) {
    (void)verdict, (void)user;
    taken_inside = take(MIB, cache, 0);
    CHECK_EQ(stats_of(cache).granted.now, MIB + GUARDS);
    CHECK_EQ(stats_of(cache).blocks.now, 1);
    CHECK_RESULT(gpupool_reset_peaks(arena), GPUPOOL_OK);
    CHECK_EQ(stats_of(cache).granted.peak, MIB + GUARDS);
    CHECK_EQ(stats_of(cache).blocks.peak, 1);
    return 0;
}

/* A tag's figures leave out a request that has no block yet, and may never have. */
static void a_request_inside_anothers(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
    void *blocks[2];
    config.limit_bytes = 8 * MIB;
    config.on_out_of_memory = take_inside;
    arena = kit_create(&config);
    weights = make_tag("weights", 0);
    cache = make_tag("kv_cache", 16 * MIB);
    for (int i = 0; i < 2; i++) blocks[i] = take(2 * MIB, cache, 0);
    for (int i = 0; i < 2; i++) give(blocks[i], 0);
    CHECK(!take(10 * MIB, cache, 0));
    CHECK_EQ(stats_of(cache).granted.now, MIB + GUARDS);
    CHECK_EQ(stats_of(cache).blocks.now, 1);
    give(taken_inside, 0);
    nothing_is_left();
}

/* What cannot be allocated at all is refused as that, whatever the budget. No arena has no tags. */
static void refused_whatever_the_budget(void) {
    gpupool_tag_stats stats;
    open_tagged(0);
    void *block = take(8 * MIB, cache, 0);
    CHECK_RESULT(gpupool_set_tag_limits(arena, cache, MIB, 0), GPUPOOL_OK); /* below what it has */
    CHECK_RESULT(kit_why(take(0, cache, 0)), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(kit_why(take(SIZE_MAX, cache, 0)), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(kit_why(take(4096, cache, 0)), GPUPOOL_E_OUT_OF_MEMORY);
    CHECK_RESULT(gpupool_set_tag_limits(NULL, cache, 0, 0), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(gpupool_get_tag_stats(NULL, cache, &stats), GPUPOOL_E_ARGUMENT);
    give(block, 0);
    nothing_is_left();
}

static void what_is_no_tag(void) {
    gpupool_tag_stats stats;
    int tag = 7;
    open_tagged(0);
    static const int wrong[] = {-1, 3, 65, 1 << 20};
    for (size_t i = 0; i < KIT_COUNT(wrong); i++) {
        CHECK(!take(4096, wrong[i], 0));
        CHECK_EQ(gpupool_last_result(), GPUPOOL_E_ARGUMENT);
        CHECK_EQ(kit_stats(arena).failures, GPUPOOL_STATS * (i + 1));
        CHECK_RESULT(gpupool_get_tag_stats(arena, wrong[i], &stats), GPUPOOL_E_ARGUMENT);
        CHECK_RESULT(gpupool_set_tag_limits(arena, wrong[i], 1, 1), GPUPOOL_E_ARGUMENT);
    }
    CHECK_RESULT(gpupool_get_tag_stats(arena, 0, &stats), GPUPOOL_E_ARGUMENT); /* that is no tag */
    CHECK_RESULT(gpupool_set_tag_limits(arena, 0, 1, 1), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(gpupool_get_tag_stats(arena, weights, NULL), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(gpupool_tag(arena, NULL, NULL, &tag), GPUPOOL_E_ARGUMENT);
    CHECK(strstr(gpupool_last_error(), ": name is NULL") != NULL);
    CHECK_EQ(tag, 0);
    CHECK_RESULT(gpupool_tag(arena, "x", NULL, NULL), GPUPOOL_E_ARGUMENT);
    CHECK(strstr(gpupool_last_error(), ": tag is NULL") != NULL);
    for (int i = 3; i <= GPUPOOL_TAGS; i++) {
        CHECK_RESULT(gpupool_tag(arena, "one more", NULL, &tag), GPUPOOL_OK);
        CHECK_EQ(tag, i);
    }
    CHECK_RESULT(gpupool_tag(arena, "too many", NULL, &tag), GPUPOOL_E_UNSUPPORTED);
    CHECK_EQ(tag, 0);
    void *last = take(4096, GPUPOOL_TAGS, 0);
    CHECK_EQ(stats_of(GPUPOOL_TAGS).blocks.now, 1);
    give(last, 0);
    nothing_is_left();
}

/* ---- soft limits ---- */

typedef struct calls {
    int count, over, under;
    gpupool_soft_limit last;
    void *shed; /* freed when over */
} calls;

static void note(const gpupool_soft_limit *what, void *user) {
    calls *c = (calls *)user;
    c->count++;
    if (what->is_over) c->over++;
    else c->under++;
    c->last = *what;
    CHECK(what->is_over == (what->now_bytes > what->soft_limit_bytes));
    CHECK(kit_stats(what->arena).granted.now <= kit_stats(what->arena).reserved.now); /* no lock */
    if (what->is_over && c->shed) {
        void *block = c->shed;
        c->shed = NULL;
        give(block, 0);
    }
}

/* A tag with a soft limit, in place of the cache's. */
static void add_soft_tag(size_t soft_limit_bytes, gpupool_soft_fn called, void *user) {
    gpupool_tag_config config;
    memset(&config, 0, sizeof config);
    config.soft_limit_bytes = soft_limit_bytes;
    config.on_soft_limit = called;
    config.user = user;
    CHECK_RESULT(gpupool_tag(arena, "soft", &config, &cache), GPUPOOL_OK);
}

static void a_soft_limit_calls_once_each_way(void) {
    calls c;
    void *block[3];
    memset(&c, 0, sizeof c);
    open_tagged(0);
    add_soft_tag(10 * MIB, note, &c);
    block[0] = take(8 * MIB, cache, 0);
    CHECK_EQ(c.count, 0);
    give(take(2 * MIB - 2 * GUARDS, cache, 0), 0); /* all that the limit allows */
    CHECK_EQ(c.count, 0);
    block[1] = take(4 * MIB, cache, 0);
    CHECK_EQ(c.over, 1);
    CHECK_EQ(c.last.tag, cache);
    CHECK(c.last.arena == arena);
    CHECK_EQ(c.last.soft_limit_bytes, 10 * MIB);
    block[2] = take(4 * MIB, cache, 0);
    CHECK_EQ(c.count, 1);
    give(block[2], 0);
    CHECK_EQ(c.count, 1);
    give(block[1], 1);
    CHECK_EQ(c.under, 1);
    CHECK_RESULT(gpupool_set_tag_limits(arena, cache, 0, 4 * MIB), GPUPOOL_OK);
    CHECK_EQ(c.over, 2);
    CHECK_RESULT(gpupool_set_tag_limits(arena, cache, 0, 0), GPUPOOL_OK);
    CHECK_EQ(c.under, 2);
    CHECK_RESULT(gpupool_set_tag_limits(arena, cache, 0, 10 * MIB), GPUPOOL_OK);
    c.shed = block[0]; /* the function frees, and is told of that, too */
    block[1] = take(4 * MIB, cache, 0);
    CHECK(!c.shed);
    CHECK_EQ(c.over, 3);
    CHECK_EQ(c.under, 3);
    give(block[1], 0);
    CHECK_EQ(c.count, 6);
    nothing_is_left();
}

static void fail_within(const gpupool_soft_limit *what, void *user) {
    (void)what;
    ++*(int *)user;
    CHECK_RESULT(gpupool_trim(NULL, 0, NULL), GPUPOOL_E_ARGUMENT);
}

/* What fails in the function is not what the call reports that it is called by. */
static void failures_of_the_function_are_its_own(void) {
    int count = 0;
    open_tagged(0);
    add_soft_tag(MIB, fail_within, &count);
    CHECK_RESULT(gpupool_free(arena, arena, 0), GPUPOOL_E_NOT_OURS);
    void *block = take(2 * MIB, cache, 0);
    CHECK_EQ(count, 1);
    CHECK_RESULT(gpupool_last_result(), GPUPOOL_OK);
    CHECK(strstr(gpupool_last_error(), "in no memory of arena") != NULL); /* of the call before */
    give(block, 0);
    CHECK_EQ(count, 2);
    CHECK(strstr(gpupool_last_error(), "in no memory of arena") != NULL);
    nothing_is_left();
}

/* No calls are made in a host function: the next free does. */
static void a_host_function_tells_later(void) {
    calls c;
    memset(&c, 0, sizeof c);
    open_tagged(0);
    add_soft_tag(MIB, note, &c);
    void *block = take(2 * MIB, cache, 0), *other = take(4096, weights, 0);
    CHECK_EQ(c.over, 1);
    CHECK_RESULT(gpupool_free_in_host_function(arena, block, kit_stream[0]), GPUPOOL_OK);
    CHECK_EQ(c.under, 0);
    give(other, 0);
    CHECK_EQ(c.under, 1);
    nothing_is_left();
}

static void the_arena_has_one_too(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
    calls c;
    void *block[2];
    memset(&c, 0, sizeof c);
    config.soft_limit_bytes = 20 * MIB;
    config.on_soft_limit = note;
    config.user = &c;
    config.chunk_bytes = 2 * MIB;
    arena = kit_create(&config);
    weights = make_tag("weights", 0);
    cache = make_tag("kv_cache", 0);
    block[0] = kit_alloc(arena, 16 * MIB, kit_stream[0]);
    CHECK_EQ(c.count, 0);
    block[1] = kit_alloc(arena, 10 * MIB, kit_stream[0]);
    CHECK_EQ(c.over, 1);
    CHECK_EQ(c.last.tag, 0);
    CHECK_EQ(c.last.now_bytes, kit_reserved(arena));
    give(block[1], 0);
    CHECK_EQ(c.count, 1); /* it is still reserved */
    CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
    CHECK_EQ(c.under, 1);
    give(block[0], 0);
    nothing_is_left();
}

/* ---- threads, scopes, reports ---- */

static void *churn(void *number) {
    uint64_t random = 1 + (uint64_t)(uintptr_t)number;
    int stream = (int)(uintptr_t)number;
    void *block[32] = {NULL};
    for (int i = 0; i < STEPS; i++) {
        void **one = &block[check_below(&random, 32)];
        if (*one) {
            give(*one, stream);
            *one = NULL;
        } else {
            int tag = (int)check_below(&random, 3);
            *one = take((size_t)1 + check_below(&random, MIB / 2), tag, stream);
            if (!*one) CHECK_EQ(gpupool_last_result(), GPUPOOL_E_OUT_OF_MEMORY);
        }
        if (i % 500 == 0) CHECK(stats_of(cache).granted.now <= 16 * MIB);
    }
    for (int i = 0; i < 32; i++)
        if (block[i]) give(block[i], stream);
    return NULL;
}

static void threads_share_a_budget(void) {
    pthread_t thread[KIT_STREAMS];
    open_tagged(0);
    for (int i = 0; i < KIT_STREAMS; i++)
        pthread_create(&thread[i], NULL, churn, (void *)(uintptr_t)i);
    for (int i = 0; i < KIT_STREAMS; i++) pthread_join(thread[i], NULL);
    CHECK(stats_of(cache).granted.peak <= 16 * MIB);
    CHECK(stats_of(weights).blocks.peak > 4);
    nothing_is_left();
}

static void a_graph_keeps_it_charged(void) {
    gpupool_capture *scope;
    cudaGraph_t graph;
    void *block;
    open_tagged(0);
    CHECK_RESULT(gpupool_begin_capture(arena, kit_stream[0], &scope), GPUPOOL_OK);
    CHECK_EQ(cudaStreamBeginCapture(kit_stream[0], cudaStreamCaptureModeGlobal), cudaSuccess);
    block = take(3 * MIB, cache, 0);
    CHECK(block != NULL);
    CHECK_EQ(cudaStreamEndCapture(kit_stream[0], &graph), cudaSuccess);
    CHECK_RESULT(gpupool_end_capture(scope), GPUPOOL_OK);
    CHECK_EQ(stats_of(cache).granted.now, 3 * MIB + GUARDS);
    CHECK_EQ(cudaGraphDestroy(graph), cudaSuccess);
    CHECK_RESULT(gpupool_release_capture(scope), GPUPOOL_OK);
    nothing_is_left();
}

static int has_tag(const gpupool_block *block, void *user) {
    if (block->state == GPUPOOL_STATE_LIVE && block->tag) ((int *)user)[block->tag]++;
    return 0;
}

static int file_has(FILE *file, const char *words) {
    char text[65536];
    size_t length;
    rewind(file);
    length = fread(text, 1, sizeof text - 1, file);
    text[length] = 0;
    fclose(file);
    return strstr(text, words) != NULL;
}

static void reports_show_tags(void) {
    int seen[3] = {0, 0, 0};
    FILE *file;
    open_tagged(0);
    void *block[3] = {take(3 * MIB, cache, 0), take(MIB, cache, 0), take(5 * MIB, weights, 0)};
    CHECK_RESULT(gpupool_walk_blocks(arena, has_tag, seen), GPUPOOL_OK);
    CHECK_EQ(seen[weights], 1);
    CHECK_EQ(seen[cache], 2);
    file = tmpfile();
    CHECK_RESULT(gpupool_report(arena, file), GPUPOOL_OK);
    CHECK(file_has(file, "kv_cache"));
    file = tmpfile();
    CHECK_RESULT(gpupool_write_json(arena, file), GPUPOOL_OK);
    CHECK(file_has(file, "{\"name\":\"kv_cache\",\"limit_bytes\":16777216"));
    CHECK_RESULT(gpupool_set_tag_limits(arena, cache, 16 * MIB, 8 * MIB), GPUPOOL_OK);
    file = tmpfile();
    CHECK_RESULT(gpupool_write_json(arena, file), GPUPOOL_OK);
    CHECK(file_has(file, "\"limit_bytes\":16777216,\"soft_limit_bytes\":8388608"));
    file = tmpfile();
    CHECK_RESULT(gpupool_write_svg(arena, file), GPUPOOL_OK);
    CHECK(file_has(file, ", tag kv_cache"));
    for (int i = 0; i < 3; i++) give(block[i], 0);
    nothing_is_left();
}

int main(void) {
    ARENA_TEST(counted_until_the_free);
    ARENA_TEST(memory_keeps_no_tag);
    ARENA_TEST(every_kind_of_block);
    ARENA_TEST(a_budget_holds);
    ARENA_TEST(out_of_budget_may_free_something);
    ARENA_TEST(a_failure_costs_no_budget);
    ARENA_TEST(a_request_inside_anothers);
    ARENA_TEST(refused_whatever_the_budget);
    ARENA_TEST(what_is_no_tag);
    ARENA_TEST(a_soft_limit_calls_once_each_way);
    ARENA_TEST(failures_of_the_function_are_its_own);
    ARENA_TEST(a_host_function_tells_later);
    ARENA_TEST(the_arena_has_one_too);
    ARENA_TEST(threads_share_a_budget);
    ARENA_TEST(a_graph_keeps_it_charged);
    ARENA_TEST(reports_show_tags);
    return check_finish();
}
