/* An arena whose records are used up, on a host without memory for more: every call that would need
   one more struct than there is says so and changes nothing, and the same call works once there is
   memory again. */
// build: asan -fsanitize=address
#include <stdlib.h>

#define BEFORE 16 /* bytes in front of what is handed out, for its size */
static size_t refused_bytes; /* requests of this size, or a line more, fail */
static size_t counted_bytes;
static void *choosy_malloc(size_t bytes) {
    char *at = refused_bytes && bytes - refused_bytes <= 64 ? NULL : malloc(bytes + BEFORE);
    if (!at) return NULL;
    counted_bytes += *(size_t *)(void *)at = bytes;
    return at + BEFORE;
}
static void choosy_free(void *memory) {
    char *at = memory ? (char *)memory - BEFORE : NULL;
    if (at) counted_bytes -= *(size_t *)(void *)at;
    free(at);
}
#define GPUPOOL_MALLOC(bytes) choosy_malloc(bytes)
#define GPUPOOL_FREE(memory) choosy_free(memory)
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "arena_kit.h"

#if CHECK_FAKE

/* ---- run structs, put aside ---- */

static gpupool_arena *arena;
static gpi_run *aside;
static uint64_t aside_count;

static void put_aside_all_but(uint64_t left) {
    gpi_tree *tree = &arena->tree;
    while (tree->spare_count > left) {
        gpi_run *run = tree->spare;
        tree->spare = run->list_next;
        tree->spare_count--;
        run->list_next = aside;
        aside = run;
        aside_count++;
    }
    refused_bytes = GPI_PAGE * sizeof(gpi_run);
}

static void put_back(void) {
    refused_bytes = 0;
    while (aside_count > 0) {
        gpi_run *run = aside;
        aside = run->list_next;
        aside_count--;
        gpi_tree_free_run(&arena->tree, run);
    }
}

/* ---- scenes, and the call in each that needs structs ---- */

#define OUT 8
static void *block[OUT], *fresh; /* fresh: what the call has given */
static cudaStream_t other;       /* fresh's stream */

static void allocate(int i, size_t bytes, int stream) {
    block[i] = kit_alloc(arena, bytes, kit_stream[stream]);
    kit_mark(kit_stream[stream], block[i], bytes, i);
}

static void release(int i, int stream) {
    CHECK_RESULT(gpupool_free(arena, block[i], kit_stream[stream]), GPUPOOL_OK);
    block[i] = NULL;
}

static gpupool_result allocated(size_t bytes, int stream) {
    other = kit_stream[stream];
    fresh = gpupool_alloc(arena, bytes, other);
    return kit_why(fresh);
}

static void nothing_yet(void) {}

static void hole_of_finished_memory(void) {
    for (int i = 0; i < 3; i++) allocate(i, 3 * MIB, 0);
    release(1, 0);
    fake_run_all();
    CHECK_RESULT(gpupool_trim(arena, SIZE_MAX, NULL), GPUPOOL_OK);
}

/* Too small for the request at both ends of bare memory, so that it runs on into it. */
static void holes_beside_bare_memory(void) {
    hole_of_finished_memory();
    CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
    allocate(3, 4 * MIB + 512 * KIB, 0);
    allocate(4, 700 * KIB, 0);
    release(3, 0);
    fake_run_all();
    CHECK_RESULT(gpupool_trim(arena, SIZE_MAX, NULL), GPUPOOL_OK);
}

/* Under a limit: idle chunks are stitched, or go, for a larger request. */
static void idle_chunks_under_a_limit(void) {
    for (int i = 0; i < OUT; i++) allocate(i, 4 * MIB, 0);
    for (int i = 0; i < OUT; i += 2) release(i, 0);
    fake_run_all();
    CHECK_RESULT(gpupool_set_limit(arena, kit_reserved(arena)), GPUPOOL_OK);
}

/* An idle chunk amid free memory, of which it has to be cut out on both sides. */
static void an_idle_chunk_amid_free_memory(void) {
    allocate(0, 2 * MIB, 0);
    allocate(1, 8 * MIB, 0);
    allocate(2, 2 * MIB, 0);
    release(1, 0);
    fake_run_all();
    CHECK_RESULT(gpupool_trim(arena, SIZE_MAX, NULL), GPUPOOL_OK);
}

/* The same in runs of many chunks each. */
static void long_idle_runs_under_a_limit(void) {
    for (int i = 0; i < 4; i++) allocate(i, 32 * MIB, 0);
    release(0, 0);
    release(2, 0);
    fake_run_all();
    CHECK_RESULT(gpupool_set_limit(arena, kit_reserved(arena)), GPUPOOL_OK);
}

/* The same while the stream that asks is still at work on them: they are stitched all the same. */
static void own_runs_under_a_limit(void) {
    fake_mode(FAKE_STEPPED);
    for (int i = 0; i < 4; i++) allocate(i, 32 * MIB, 0);
    release(0, 0);
    release(2, 0);
    CHECK_RESULT(gpupool_set_limit(arena, kit_reserved(arena)), GPUPOOL_OK);
}

/* What stream 0 freed is behind a mark, and the limit leaves no room beside it. */
static void unfinished_memory_of_another_stream(void) {
    fake_mode(FAKE_STEPPED);
    CHECK_RESULT(gpupool_record_stream(arena, NULL, kit_stream[1]), GPUPOOL_E_NOT_OURS);
    allocate(1, MIB, 1);
    allocate(0, 30 * MIB, 0);
    CHECK_RESULT(gpupool_set_limit(arena, kit_reserved(arena)), GPUPOOL_OK);
    release(0, 0);
}

/* The same, waiting: another stream used it too. */
static void waiting_memory(void) {
    fake_mode(FAKE_STEPPED);
    allocate(1, MIB, 1);
    allocate(0, 30 * MIB, 0);
    kit_order(kit_stream[0], kit_stream[2]);
    kit_expect(kit_stream[2], block[0], 64, 0);
    CHECK_RESULT(gpupool_record_stream(arena, block[0], kit_stream[2]), GPUPOOL_OK);
    CHECK_RESULT(gpupool_set_limit(arena, kit_reserved(arena)), GPUPOOL_OK);
    release(0, 0);
}

static void one_block(void) { allocate(0, MIB, 0); }

static gpupool_result alloc_small(void) { return allocated(MIB, 0); }
static gpupool_result alloc_odd(void) { return allocated(2 * MIB + 700 * KIB, 0); }
static gpupool_result alloc_large(void) { return allocated(9 * MIB, 0); }
static gpupool_result alloc_huge(void) { return allocated(60 * MIB, 0); }
static gpupool_result alloc_half_a_chunk_less(void) { return allocated(58 * MIB, 0); }
static gpupool_result alloc_elsewhere(void) { return allocated(20 * MIB, 1); }
static gpupool_result trim_some(void) {
    return gpupool_trim(arena, kit_reserved(arena) - 4 * MIB, NULL);
}
static gpupool_result trim_all(void) { return gpupool_trim(arena, 0, NULL); }
static gpupool_result free_first(void) {
    gpupool_result result = block[0] ? gpupool_free(arena, block[0], kit_stream[0]) : GPUPOOL_OK;
    if (result == GPUPOOL_OK) block[0] = NULL;
    return result;
}
typedef struct act {
    gpupool_source source;
    void (*prepare)(void);
    gpupool_result (*play)(void);
    const char *name;
    int changes; /* on its way to failing it may give chunks back, or wait */
} act;

#define ACT(source, prepare, play, changes) \
    {GPUPOOL_SOURCE_##source, prepare, play, #source ": " #prepare ", " #play, changes}
static const act acts[] = {
    ACT(MAPPED, nothing_yet, alloc_small, 0),
    ACT(MAPPED, hole_of_finished_memory, alloc_small, 0),
    ACT(MAPPED, hole_of_finished_memory, alloc_large, 0),
    ACT(MAPPED, hole_of_finished_memory, trim_all, 1),
    ACT(MAPPED, holes_beside_bare_memory, alloc_large, 0),
    ACT(MAPPED, holes_beside_bare_memory, alloc_odd, 0),
    ACT(MAPPED, idle_chunks_under_a_limit, alloc_large, 1),
    ACT(MAPPED, long_idle_runs_under_a_limit, alloc_huge, 1),
    ACT(MAPPED, own_runs_under_a_limit, alloc_huge, 1),
    ACT(MAPPED, own_runs_under_a_limit, alloc_half_a_chunk_less, 1),
    ACT(MAPPED, idle_chunks_under_a_limit, trim_some, 1),
    ACT(MAPPED, idle_chunks_under_a_limit, trim_all, 1),
    ACT(MAPPED, an_idle_chunk_amid_free_memory, trim_some, 1),
    ACT(MAPPED, unfinished_memory_of_another_stream, alloc_elsewhere, 1),
    ACT(MAPPED, waiting_memory, alloc_elsewhere, 1),
    ACT(DEVICE, nothing_yet, alloc_small, 0),
    ACT(DEVICE, hole_of_finished_memory, alloc_small, 0),
    ACT(DEVICE, hole_of_finished_memory, alloc_large, 0),
    ACT(DEVICE, idle_chunks_under_a_limit, alloc_large, 1),
    ACT(DEVICE, unfinished_memory_of_another_stream, alloc_elsewhere, 1),
    ACT(BYPASS, nothing_yet, alloc_small, 0),
    ACT(BYPASS, one_block, free_first, 0),
};

static void scene_open(const act *a) {
    gpupool_arena_config config = kit_config(a->source);
    memset(block, 0, sizeof block);
    fresh = NULL;
    config.chunk_bytes = 4 * MIB;
    arena = kit_create(&config);
    a->prepare();
}

static void scene_close(void) {
    fake_mode(FAKE_EAGER);
    if (fresh) CHECK_RESULT(gpupool_free(arena, fresh, other), GPUPOOL_OK);
    for (int i = 0; i < OUT; i++)
        if (block[i]) release(i, 0);
    kit_close(arena);
}

/* What stays with a call that has failed: all but what was waited for, and what was idle. */
static void nothing_changed(int at_all, gpupool_stats before) {
    gpupool_stats after = kit_stats(arena);
    if (at_all) kit_same_stats(before, after);
    CHECK_EQ(after.granted.now, before.granted.now);
    CHECK_EQ(after.blocks.now, before.blocks.now);
    CHECK_EQ(after.allocs, before.allocs);
    CHECK_EQ(after.frees, before.frees);
    CHECK_EQ(after.limit_bytes, before.limit_bytes);
}

static uint64_t held_after; /* a call that had all that it needs */

/* With `left` structs. Returns whether that was enough. */
static int played_with(const act *a, uint64_t left) {
    scene_open(a);
    gpupool_stats before = kit_stats(arena);
    put_aside_all_but(left);
    gpupool_result result = a->play();
    int enough = result == GPUPOOL_OK;
    if (!enough) {
        CHECK_RESULT(result, GPUPOOL_E_HOST_MEMORY);
        CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
        nothing_changed(!a->changes, before);
    }
    put_back();
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    if (left == UINT64_MAX) held_after = kit_reserved(arena);
    if (enough) CHECK_EQ(kit_reserved(arena), held_after);
    else CHECK_RESULT(a->play(), GPUPOOL_OK);
    scene_close();
    return enough;
}

static void with_few_structs(void) {
    for (const act *a = acts; a < acts + KIT_COUNT(acts); a++) {
        int enough = played_with(a, UINT64_MAX);
        for (uint64_t left = 0; left < 120; left++) {
            check_case("%s, %d structs left", a->name, (int)left);
            enough = played_with(a, left);
        }
        CHECK(enough);
    }
}

/* ---- structs that other threads use up while the lock is open ---- */

static void use_up(void *left) { put_aside_all_but(*(uint64_t *)left); }

/* Before the call, and before the second of its kind. Returns whether it was made. */
static int used_up_before(const act *a, const char *call, long n, uint64_t left) {
    scene_open(a);
    gpupool_stats before = kit_stats(arena);
    aside_count = 0;
    fake_before_call(call, n, use_up, &left);
    gpupool_result result = a->play();
    int made = aside_count > 0;
    fake_before_call(call, 0, NULL, NULL);
    if (result != GPUPOOL_OK) {
        CHECK_RESULT(result, GPUPOOL_E_HOST_MEMORY);
        CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
        nothing_changed(0, before); /* memory was got, and given back */
    }
    put_back();
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    if (result != GPUPOOL_OK) CHECK_RESULT(a->play(), GPUPOOL_OK);
    scene_close();
    return made;
}

static void used_up_meanwhile(void) {
    static const char *const calls[] = {"cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap",
                                        "cuMemRelease", "cuMemAlloc", "cuMemFree",
                                        "cuCtxPushCurrent"};
    for (size_t i = 0; i < KIT_COUNT(calls); i++) {
        int made = 0;
        for (const act *a = acts; a < acts + KIT_COUNT(acts); a++)
            for (uint64_t left = 0; left < 5; left++)
                for (long n = 1; n <= 2; n++) {
                    check_case("%s, before %s %ld, %d structs left", a->name, calls[i], n,
                               (int)left);
                    made |= used_up_before(a, calls[i], n, left);
                }
        CHECK(made);
    }
}

/* The driver has no memory, and then there are no structs to look for it elsewhere with. */
static void refuse_and_use_up(void *unused) {
    (void)unused;
    fake_fail_call("cuMemCreate", 1, 1, 0);
    put_aside_all_but(0);
}

static void used_up_on_the_way_up(void) {
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    void *first = kit_alloc(arena, MIB, kit_stream[0]);
    fake_before_call("cuMemCreate", 1, refuse_and_use_up, NULL);
    CHECK_RESULT(allocated(30 * MIB, 1), GPUPOOL_E_HOST_MEMORY);
    put_back();
    fake_fail_clear();
    CHECK_RESULT(allocated(30 * MIB, 1), GPUPOOL_OK);
    CHECK_RESULT(gpupool_free(arena, fresh, other), GPUPOOL_OK);
    CHECK_RESULT(gpupool_free(arena, first, kit_stream[0]), GPUPOOL_OK);
    kit_close(arena);
}

/* While memory is mapped for a block, another thread's has the last of the index's first page. */
static void one_more(void *unused) {
    (void)unused;
    CHECK_EQ(arena->tree.live_runs, GPI_PAGE / 2 - 1);
    other = kit_stream[1];
    fresh = kit_alloc(arena, 512, other);
}

static void the_index_is_used_up_meanwhile(void) {
    static void *small[GPI_PAGE / 2];
    for (int stitched = 0; stitched < 2; stitched++) {
        gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
        int n = 0;
        config.chunk_bytes = 8 * MIB;
        arena = kit_create(&config);
        for (int i = 0; i < 4; i++) allocate(i, 8 * MIB, 0);
        small[n++] = kit_alloc(arena, 512, kit_stream[0]);
        for (int i = 0; stitched && i < 4; i += 2) release(i, 0);
        CHECK_RESULT(gpupool_trim(arena, SIZE_MAX, NULL), GPUPOOL_OK);
        if (stitched) CHECK_RESULT(gpupool_set_limit(arena, kit_reserved(arena)), GPUPOOL_OK);
        while (arena->tree.live_runs < GPI_PAGE / 2 - 1)
            small[n++] = kit_alloc(arena, 512, kit_stream[0]);
        fresh = NULL;
        fake_before_call("cuMemMap", 1, one_more, NULL);
        void *large = kit_alloc(arena, 14 * MIB, kit_stream[0]);
        CHECK(fresh != NULL);
        CHECK_EQ(kit_stats(arena).stitches, stitched);
        CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
        CHECK_RESULT(gpupool_free(arena, fresh, other), GPUPOOL_OK);
        CHECK_RESULT(gpupool_free(arena, large, kit_stream[0]), GPUPOOL_OK);
        while (n--) CHECK_RESULT(gpupool_free(arena, small[n], kit_stream[0]), GPUPOOL_OK);
        for (int i = stitched; i < 4; i += 1 + stitched) release(i, 0);
        kit_close(arena);
    }
}

/* The call's stream is forgotten meanwhile, and there is no memory to know it by. */
static gpi_list *lanes_aside;

static void forget_the_stream(void *unused) {
    (void)unused;
    CHECK_RESULT(gpupool_retire_stream(arena, kit_stream[0]), GPUPOOL_OK); /* its list is spare */
    lanes_aside = arena->tree.spare_lists;
    arena->tree.spare_lists = NULL;
    refused_bytes = sizeof(gpi_list);
}

static void streams_that_cannot_be_known(void) {
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    void *first = kit_alloc(arena, 4096, kit_stream[0]);
    fake_before_call("cuCtxPushCurrent", 1, forget_the_stream, NULL);
    CHECK_RESULT(allocated(30 * MIB, 0), GPUPOOL_E_HOST_MEMORY);
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    gpi_caller call = gpi_arena_call(kit_stream[1]);
    CHECK_RESULT(gpi_block_free_slow(arena, first, &call), GPUPOOL_E_HOST_MEMORY);
    refused_bytes = 0;
    arena->tree.spare_lists = lanes_aside;
    CHECK_EQ(kit_stats(arena).blocks.now, 1);
    CHECK_RESULT(gpupool_free(arena, first, kit_stream[1]), GPUPOOL_OK);
    kit_close(arena);
}

/* The driver does not take a block's chunk back: it is the arena's, and idle, also where there is
   no struct left. */
static void fail_without_structs(void *unused) {
    (void)unused;
    fake_fail_call("cuMemFree", 1, 0, 0);
    put_aside_all_but(0);
}

static void freed_and_not_taken_back(void) {
    arena = kit_open(GPUPOOL_SOURCE_BYPASS);
    void *lost = kit_alloc(arena, MIB, kit_stream[0]);
    fake_before_call("cuMemFree", 1, fail_without_structs, NULL);
    CHECK_RESULT(gpupool_free(arena, lost, kit_stream[0]), GPUPOOL_OK);
    CHECK_EQ(fake_fail_fired(), 1);
    put_back();
    fake_fail_clear();
    CHECK_EQ(cudaGetLastError(), cudaSuccess);
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    CHECK_EQ(kit_stats(arena).blocks.now, 0);
    CHECK_EQ(kit_reserved(arena), MIB);
    CHECK_RESULT(gpupool_free(arena, lost, kit_stream[0]), GPUPOOL_E_DOUBLE_FREE);
    kit_close(arena);
}

/* A block that could not be cleared, of a stream that can no longer be known, has to stay: some of
   its memory may be in use on that stream still. The arena knows of it. */
static void not_cleared_and_of_no_stream(void) {
    uint64_t at = 0;
    const gpi_run *run;
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    fake_before_call("cuMemsetD8Async", 1, forget_the_stream, NULL);
    fake_fail_call("cuMemsetD8Async", 1, 0, 0);
    CHECK_RESULT(kit_why(gpupool_zalloc(arena, 4096, kit_stream[0])), GPUPOOL_E_CUDA);
    CHECK(strstr(gpupool_last_error(), "cuMemsetD8Async") != NULL);
    fake_fail_clear();
    refused_bytes = 0;
    arena->tree.spare_lists = lanes_aside;
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_E_IN_USE);
    run = gpi_tree_next_live(&arena->tree, &at);
    if (CHECK(run != NULL))
        CHECK_RESULT(gpupool_free(arena, (void *)(uintptr_t)(run->unit * GPUPOOL_UNIT_BYTES),
                                  kit_stream[0]), GPUPOOL_OK);
    kit_close(arena);
}

/* With a chunk of its own it is the arena's, like one that its caller could not free. */
static void neither_cleared_nor_freed(void) {
    for (int structs = 0; structs < 2; structs++) {
        check_case("structs %d", structs);
        arena = kit_open(GPUPOOL_SOURCE_BYPASS);
        fake_fail_call("cuMemsetD8Async", 1, 0, 0);
        if (structs) fake_fail_call("cuMemFree", 1, 0, 0);
        else fake_before_call("cuMemFree", 1, fail_without_structs, NULL);
        CHECK_RESULT(kit_why(gpupool_zalloc(arena, MIB, kit_stream[0])), GPUPOOL_E_CUDA);
        CHECK(strstr(gpupool_last_error(), "cuMemsetD8Async") != NULL);
        CHECK_EQ(fake_fail_fired(), 2);
        if (!structs) put_back();
        fake_fail_clear();
        CHECK_EQ(cudaGetLastError(), cudaSuccess);
        CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
        CHECK_EQ(kit_stats(arena).blocks.now, 0);
        CHECK_EQ(kit_reserved(arena), MIB);
        kit_close(arena);
    }
}
/* What the arena says that it has from the host is what it has, of every kind of record. */
static void all_are_counted(void) {
    gpupool_capture *scope = NULL;
    void *blocks[8];
    size_t before = counted_bytes;
    arena = kit_open(GPUPOOL_SOURCE_AUTO);
    CHECK_EQ(kit_stats(arena).host_bytes, counted_bytes - before);
    for (int i = 0; i < 8; i++) blocks[i] = kit_alloc(arena, 5 * MIB, kit_stream[i % 4]);
    CHECK_RESULT(gpupool_begin_phase(arena), GPUPOOL_OK);
    CHECK_RESULT(gpupool_begin_capture(arena, kit_stream[0], &scope), GPUPOOL_OK);
    void *kept = kit_alloc(arena, MIB, kit_stream[0]);
    fake_hold(kit_stream[1], 1);
    kit_fill(kit_stream[1], blocks[0], MIB, 1);
    for (int i = 0; i < 8; i++)
        CHECK_RESULT(gpupool_record_stream(arena, blocks[i], kit_stream[1]), GPUPOOL_OK);
    CHECK_EQ(kit_stats(arena).host_bytes, counted_bytes - before);
    for (int i = 0; i < 8; i++)
        CHECK_RESULT(gpupool_free(arena, blocks[i], kit_stream[2]), GPUPOOL_OK);
    CHECK_RESULT(gpupool_free(arena, kept, kit_stream[3]), GPUPOOL_OK);
    CHECK_EQ(kit_stats(arena).host_bytes, counted_bytes - before);
    fake_hold(kit_stream[1], 0);
    CHECK_RESULT(gpupool_release_capture(scope), GPUPOOL_OK);
    CHECK_RESULT(gpupool_end_phase(arena, NULL), GPUPOOL_OK);
    gpi_stream *stream = gpi_clock_find(&arena->clocks, gpi_clock_key(kit_stream[3]));
    stream->cache.crowded = 1;
    gpi_cache_widen(&stream->cache);
    CHECK_EQ(kit_stats(arena).host_bytes, counted_bytes - before);
    CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
    CHECK_EQ(kit_stats(arena).host_bytes, counted_bytes - before);
    static void *many[17 * 1024]; /* more structs than the first list of their pages has room for */
    for (size_t i = 0; i < KIT_COUNT(many); i++) many[i] = kit_alloc(arena, 512, kit_stream[0]);
    CHECK_EQ(kit_stats(arena).host_bytes, counted_bytes - before);
    for (size_t i = 0; i < KIT_COUNT(many); i++)
        CHECK_RESULT(gpupool_free(arena, many[i], kit_stream[0]), GPUPOOL_OK);
    kit_close(arena);
    CHECK_EQ(counted_bytes, before);
}

/* The same of stitches, of few chunks and of many. */
static void stitches_are_counted(void) {
    enum { FEW = 4, MANY = 60 };
    void *blocks[MANY], *wide;
    size_t before = counted_bytes;
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
    config.chunk_bytes = 2 * MIB;
    arena = kit_create(&config);
    for (int chunks = FEW; chunks <= MANY; chunks += MANY - FEW) {
        CHECK_RESULT(gpupool_set_limit(arena, (size_t)chunks * 2 * MIB), GPUPOOL_OK);
        for (int i = 0; i < chunks; i++) blocks[i] = kit_alloc(arena, 2 * MIB, kit_stream[0]);
        for (int i = 0; i < chunks; i += 2)
            CHECK_RESULT(gpupool_free(arena, blocks[i], kit_stream[0]), GPUPOOL_OK);
        wide = kit_alloc(arena, (size_t)chunks * MIB, kit_stream[0]);
        CHECK_EQ(arena->stitches.count, 1);
        CHECK_EQ(kit_stats(arena).host_bytes, counted_bytes - before);
        CHECK_RESULT(gpupool_free(arena, wide, kit_stream[0]), GPUPOOL_OK);
        for (int i = 1; i < chunks; i += 2)
            CHECK_RESULT(gpupool_free(arena, blocks[i], kit_stream[0]), GPUPOOL_OK);
        CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
        CHECK_EQ(arena->stitches.count, 0);
        CHECK(gpi_tree_owner(&arena->tree, (uintptr_t)wide / GPUPOOL_UNIT_BYTES) == NULL);
        CHECK_EQ(kit_stats(arena).host_bytes, counted_bytes - before);
    }
    kit_close(arena);
    CHECK_EQ(counted_bytes, before);
}

#endif

int main(void) {
    FAKE_TEST(with_few_structs);
    FAKE_TEST(used_up_meanwhile);
    FAKE_TEST(used_up_on_the_way_up);
    FAKE_TEST(the_index_is_used_up_meanwhile);
    FAKE_TEST(streams_that_cannot_be_known);
    FAKE_TEST(freed_and_not_taken_back);
    FAKE_TEST(neither_cleared_nor_freed);
    FAKE_TEST(not_cleared_and_of_no_stream);
    FAKE_TEST(all_are_counted);
    FAKE_TEST(stitches_are_counted);
    return check_finish();
}
