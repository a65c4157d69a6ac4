/* Two threads at what a MAPPED arena does with its locks open, in every order that two
   interruptions can make, or one in `make test`: stitched blocks, on_map and on_unmap, sleep,
   exports. gates/schedules.sh breaks the header in ways that must show here. */
// build: plain -O1 -DSCHEDULE_CUTS=1
#if !defined(GPUPOOL_TEST_GPU)
#include "schedule_kit.h"
#endif
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "check.h"

#if CHECK_FAKE
#include "registry_kit.h"
#include "schedule_scene.h"

#define CHUNK (2 * MIB)

static gpupool_arena_config config_of(size_t limit) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
    config.limit_bytes = limit;
    config.chunk_bytes = CHUNK;
    return config;
}

/* ---- stitched blocks: of two chunks that lie apart, all that the limit leaves ---- */

#define STITCHED (2 * CHUNK)

/* Work of the first stream is queued on both. */
static void split(void) {
    void *block[4];
    kept_bytes = CHUNK;
    for (int i = 0; i < 4; i++) block[i] = get(CHUNK, 0, i < 2 ? 0 : 1);
    put(block[0], CHUNK, 0, 0);
    put(block[2], CHUNK, 0, 1);
    kept[0] = block[1];
    kept[1] = block[3];
}
static void stitched(int stream, int byte) {
    put(get(STITCHED, stream, byte), STITCHED, stream, byte);
}
static void open_split(void) {
    gpupool_arena_config config = config_of(4 * CHUNK);
    scene_open(&config);
    split();
}
static void open_idle(void) { /* the stitch is there, and its user has finished */
    open_split();
    stitched(0, 3);
    fake_run_all();
}
static void open_idle_in_use(void) { /* or has not */
    open_split();
    stitched(0, 3);
}
static void stitches_on_first(void) {
    stitched(0, 4);
    stitched(0, 5);
}
static void stitches_on_second(void) { stitched(1, 6); }
static void takes_a_part(void) { put(get(CHUNK, 1, 7), CHUNK, 1, 7); }
static void bounds(void) { /* as a request does where idle stitches have too many handles */
    gpi_host_mutex_lock(&arena->growing);
    gpi_host_lock(&arena->lock);
    CHECK_RESULT(gpi_event_record_all(&arena->clocks), GPUPOOL_OK);
    fake_run_all();
    gpi_arena_poll_all(arena);
    gpi_stitch_bound(&arena->stitches, 0);
    gpi_arena_unlock(arena);
    gpi_host_mutex_unlock(&arena->growing);
}
static void retires_first(void) {
    CHECK_RESULT(gpupool_retire_stream(arena, kit_stream[0]), GPUPOOL_OK);
}

/* ---- a program that registers what is mapped: others go on while it is told ---- */

static int told(const gpupool_mapping *mapping, void *user) {
    schedule_point();
    return registry_add(mapping, user);
}
static int told_of_the_end(const gpupool_mapping *mapping, void *user) {
    schedule_point();
    return registry_remove(mapping, user);
}
static void open_told_with(size_t limit) {
    gpupool_arena_config config = config_of(limit);
    registry_clear();
    config.on_map = told;
    config.on_unmap = told_of_the_end;
    scene_open(&config);
}
static void open_told(void) { open_told_with(CHUNK); }
static void open_told_split(void) {
    open_told_with(4 * CHUNK);
    split();
}
static void open_told_chunks(void) {
    open_told_split();
    fake_run_all();
}
static void open_told_idle(void) {
    open_told_split();
    stitched(0, 3);
    fake_run_all();
}
/* Each stream has two free chunks that lie apart, and the limit leaves one more for each. */
static void open_told_both(void) {
    void *block[8];
    open_told_with(10 * CHUNK);
    kept_bytes = CHUNK;
    for (int i = 0; i < 8; i++) block[i] = get(CHUNK, i / 4, i / 2);
    for (int i = 0; i < 8; i += 2) {
        kept[i / 2] = block[i + 1];
        put(block[i], CHUNK, i / 4, i / 2);
    }
}
static void grows(int stream) {
    size_t bytes = STITCHED + CHUNK;
    put(get(bytes, stream, 8), bytes, stream, 8);
}
static void grows_on_first(void) { grows(0); }
static void grows_on_second(void) { grows(1); }
static void small(int stream) { /* of the limit's only chunk: there is room for both threads */
    void *block = kit_alloc(arena, 1024, kit_stream[stream]);
    CHECK(registry_covers(block, 1024));
    kit_mark(kit_stream[stream], block, 1024, stream);
    put(block, 1024, stream, stream);
}
static void small_on_first(void) { small(0); }
static void small_on_second(void) { small(1); }
static void close_told(void) {
    registry_verify();
    close_all();
    CHECK_EQ(known.count, 0);
    CHECK_EQ(known.told, known.gone);
}

/* ---- sleep: blocks may come and go meanwhile, but nobody touches what sleeps ---- */

static int tags[2];
static void *late; /* a block that a thread got meanwhile */

static void open_tags(size_t limit) {
    gpupool_arena_config config = config_of(limit);
    gpupool_tag_config tag;
    memset(&tag, 0, sizeof tag);
    tag.can_sleep = 1;
    late = NULL;
    scene_open(&config);
    for (int i = 0; i < 2; i++)
        CHECK_RESULT(gpupool_tag(arena, "t", &tag, &tags[i]), GPUPOOL_OK);
}
static void *take(size_t bytes, int tag, unsigned flags) {
    gpupool_request request = kit_request(bytes, kit_stream[0], flags);
    request.tag = tag;
    return gpupool_alloc_request(arena, &request);
}
/* Each part has a live block with content, and free memory. */
static void open_parts(void) {
    void *block[3];
    open_tags(0);
    for (int i = 1; i >= 0; i--) put(get(512, i, 2), 512, i, 2); /* both streams have caches */
    for (int i = 0; i < 3; i++) {
        block[i] = take(512, i ? tags[i - 1] : 0, 0);
        if (i < 2) kit_mark(kit_stream[0], block[i], 512, i);
    }
    kept[0] = block[0];
    kept[1] = block[1];
    CHECK_RESULT(gpupool_free(arena, block[2], kit_stream[0]), GPUPOOL_OK);
}
/* SL1: free memory of a part that sleeps is nobody's, and its blocks are never free. */
static void is_asleep(int tag) {
    gpi_run *run;
    gpi_host_lock(&arena->lock);
    CHECK_EQ(arena->sleep.states[tag], GPI_ASLEEP);
    for (run = arena->chunks.home; run; run = run->next) {
        if (run->list == GPI_LIST_EMPTY) continue;
        if (gpi_stitch_tag_at(&arena->stitches, run->unit) != tag) continue;
        CHECK(!gpi_sleep_is_free(arena, run) && run->list != GPI_LIST_CACHED);
        CHECK(run->list < GPI_LIST_LIVE || *gpi_clock_sleeper(run));
    }
    gpi_host_unlock(&arena->lock);
}
static void falls_asleep(int part) {
    gpupool_result result = gpupool_sleep(arena, part, GPUPOOL_KEEP, NULL);
    if (result != GPUPOOL_OK) CHECK_RESULT(result, GPUPOOL_E_ASLEEP);
}
static void sleeps_as(int tag) {
    falls_asleep(tag ? tag : GPUPOOL_ALL);
    is_asleep(tag);
}
static void sleeps(void) { sleeps_as(tags[0]); }
static void sleeps_second(void) { sleeps_as(tags[1]); }
static void sleeps_whole(void) { sleeps_as(0); }
static void sleeps_and_wakes(void) {
    gpupool_result result;
    falls_asleep(tags[0]);
    result = gpupool_wake(arena, tags[0], NULL);
    if (result != GPUPOOL_OK) CHECK_RESULT(result, GPUPOOL_E_ARGUMENT); /* it is awake */
}
static void sleeps_and_works(void) { /* with memory of the part that is awake */
    sleeps();
    put(get(CHUNK, 2, 8), CHUNK, 2, 8);
}
static void works_beside(void) { put(get(CHUNK, 1, 9), CHUNK, 1, 9); }
static void *asks(size_t bytes, int tag, unsigned flags) {
    void *block = take(bytes, tag, flags);
    CHECK_RESULT(kit_why(block), block ? GPUPOOL_OK : GPUPOOL_E_ASLEEP);
    return block;
}
static void asks_twice(int tag) {
    void *block = asks(512, tag, 0);
    if (block) CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
    late = asks(512, tag, 0);
}
static void asks_tagged(void) { asks_twice(tags[0]); }
static void asks_untagged(void) { asks_twice(0); }
static void asks_for_zeros(void) { late = asks(512, tags[0], GPUPOOL_ZEROED); }
static void asks_for_more(void) { late = asks(CHUNK, tags[0], 0); }
static void close_parts(void) {
    gpupool_wake(arena, GPUPOOL_ALL, NULL);
    kit_mark(kit_stream[0], late ? late : kept[0], 512, 0);
    CHECK_RESULT(gpupool_free(arena, late, kit_stream[0]), GPUPOOL_OK);
    close_all();
}

/* A request that has to wait for the device, with the tag's memory all there is. */
static void open_tag_in_use(void) {
    void *block;
    open_tags(CHUNK);
    block = take(CHUNK, tags[0], 0);
    kit_mark(kit_stream[0], block, CHUNK, 1);
    CHECK_RESULT(gpupool_record_stream(arena, block, kit_stream[1]), GPUPOOL_OK);
    kit_order(kit_stream[0], kit_stream[1]);
    kit_mark(kit_stream[1], block, CHUNK, 2);
    CHECK_RESULT(gpupool_record_stream(arena, block, kit_stream[1]), GPUPOOL_OK);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
}
static void close_tag_in_use(void) {
    gpupool_wake(arena, GPUPOOL_ALL, NULL);
    if (late) kit_mark(kit_stream[0], late, CHUNK, 3);
    CHECK_RESULT(gpupool_free(arena, late, kit_stream[0]), GPUPOOL_OK);
    close_all();
}

/* ---- functions of the program that put tags to sleep, its own request's too ---- */

static int sleep_the_other(const gpupool_verdict *verdict, void *user) {
    gpupool_result result = gpupool_sleep(arena, tags[1 - sch.running], GPUPOOL_DISCARD, user);
    (void)verdict;
    CHECK(result == GPUPOOL_OK || result == GPUPOOL_E_ASLEEP);
    return 0;
}
static int sleep_its_own(const gpupool_verdict *verdict, void *user) {
    gpupool_result result = gpupool_sleep(arena, tags[0], GPUPOOL_DISCARD, user);
    (void)verdict;
    CHECK(result == GPUPOOL_OK || result == GPUPOOL_E_ASLEEP);
    return 0;
}
static void open_called_with(int (*fn)(const gpupool_verdict *, void *)) {
    open_parts();
    arena->on_out_of_memory = fn;
    CHECK_RESULT(gpupool_set_limit(arena, kit_reserved(arena)), GPUPOOL_OK);
}
static void open_called(void) { open_called_with(sleep_the_other); }
static void open_called_own(void) { open_called_with(sleep_its_own); }
static void asks_too_much(void) { CHECK(!take(64 * MIB, tags[sch.running], 0)); }
static void close_called(void) {
    gpupool_wake(arena, GPUPOOL_ALL, NULL);
    kit_mark(kit_stream[0], kept[1], 512, 1); /* what it held was discarded */
    close_parts();
}

/* ---- a block that another process uses ---- */

static int is_freed; /* or about to be */
static void open_exported(void) {
    gpupool_arena_config config = config_of(0);
    is_freed = 0;
    config.share = GPUPOOL_SHARE_PROCESSES;
    scene_open(&config);
    late = take(CHUNK, 0, GPUPOOL_EXPORTABLE);
    CHECK(late != NULL);
}
static void exports(void) {
    gpupool_exported exported;
    gpupool_result result = gpupool_export(arena, late, &exported);
    if (result != GPUPOOL_OK) {
        CHECK(result == GPUPOOL_E_ASLEEP || is_freed);
        return;
    }
    kit_mark(kit_stream[3], late, CHUNK, 4); /* as the other process does */
    schedule_point();
    kit_expect_mark(kit_stream[3], late, CHUNK, 4);
    fake_run_all();
    CHECK_RESULT(gpupool_export_close(arena, late), GPUPOOL_OK);
}
static void sleeps_or_not(void) {
    gpupool_result result = gpupool_sleep(arena, GPUPOOL_ALL, GPUPOOL_DISCARD, NULL);
    if (result == GPUPOOL_OK) CHECK_RESULT(gpupool_wake(arena, GPUPOOL_ALL, NULL), GPUPOOL_OK);
    else CHECK_RESULT(result, GPUPOOL_E_IN_USE);
}
static void frees_or_not(void) {
    gpupool_result result;
    is_freed = 1;
    result = gpupool_free(arena, late, kit_stream[0]);
    is_freed = result == GPUPOOL_OK;
    if (is_freed) trims();
    else CHECK_RESULT(result, GPUPOOL_E_IN_USE);
}
static int descriptor;
static void exports_only(void) {
    gpupool_exported exported;
    CHECK_RESULT(gpupool_export(arena, late, &exported), GPUPOOL_OK);
    descriptor = exported.descriptor;
}
static void closes(void) { /* before it is exported, or afterwards */
    gpupool_result result = gpupool_export_close(arena, late);
    CHECK(result == GPUPOOL_OK || result == GPUPOOL_E_ARGUMENT);
}
static void close_exported(void) {
    if (!is_freed) CHECK_RESULT(gpupool_free(arena, late, kit_stream[0]), GPUPOOL_OK);
    close_all();
}

static void close_closed(void) {
    gpupool_export_close(arena, late); /* if the other thread came too early */
    CHECK_EQ(fcntl(descriptor, F_GETFD), -1);
    close_exported();
}

static const schedule_case cases[] = {
    {"two stitch", open_split, {stitches_on_first, stitches_on_second}, close_all},
    {"stitched and in parts", open_split, {stitches_on_first, takes_a_part}, close_all},
    {"stitched again and in parts", open_idle_in_use, {stitches_on_first, takes_a_part}, close_all},
    {"stitched again on another", open_idle_in_use, {stitches_on_second, takes_a_part}, close_all},
    {"a stitch goes", open_idle, {trims, stitches_on_second}, close_all},
    {"a stitch in use goes", open_idle_in_use, {trims, stitches_on_second}, close_all},
    {"a stitch goes alone", open_idle, {bounds, stitches_on_second}, close_all},
    {"a chunk goes", open_idle, {trims, takes_a_part}, close_all},
    {"its stream ends", open_idle_in_use, {retires_first, stitches_on_second}, close_all},
    {"told of the only chunk", open_told, {small_on_first, small_on_second}, close_told},
    {"told of stitches", open_told_split, {stitches_on_first, stitches_on_second}, close_told},
    {"told of stitches that grow", open_told_both, {grows_on_first, grows_on_second}, close_told},
    {"told of chunks twice", open_told_chunks, {trims, trims}, close_told},
    {"told of their end", open_told_idle, {trims, stitches_on_second}, close_told},
    {"told of their end twice", open_told_idle, {trims, trims}, close_told},
    {"asked while it sleeps", open_parts, {sleeps, asks_tagged}, close_parts},
    {"zeroed while it sleeps", open_parts, {sleeps, asks_for_zeros}, close_parts},
    {"more while it sleeps", open_parts, {sleeps, asks_for_more}, close_parts},
    {"others work", open_parts, {sleeps_and_works, works_beside}, close_parts},
    {"asked while all sleeps", open_parts, {sleeps_whole, asks_untagged}, close_parts},
    {"two sleep", open_parts, {sleeps, sleeps_second}, close_parts},
    {"slept twice", open_parts, {sleeps, sleeps}, close_parts},
    {"woken", open_parts, {sleeps_and_wakes, asks_tagged}, close_parts},
    {"woken twice", open_parts, {sleeps_and_wakes, sleeps_and_wakes}, close_parts},
    {"a wait while it sleeps", open_tag_in_use, {sleeps, asks_for_more}, close_tag_in_use},
    {"put to sleep by each other", open_called, {asks_too_much, asks_too_much}, close_called},
    {"put to sleep by itself", open_called_own, {asks_too_much, asks_tagged}, close_called},
    {"exported and asleep", open_exported, {exports, sleeps_or_not}, close_exported},
    {"exported and closed", open_exported, {exports_only, closes}, close_closed},
    {"exported and freed", open_exported, {exports, frees_or_not}, close_exported},
};
#endif

int main(void) {
#if CHECK_FAKE
    schedule_cases(cases, KIT_COUNT(cases));
#else
    check_skip("schedules", "needs fakecuda's controls");
#endif
    return check_finish();
}
