/* GPUPOOL_SITES: blocks are counted by the line that asked for them, whichever way they come and
   go, and those that are left at the end are told by line. */
// build: plain -fsanitize=address
// build: no_stats -DGPUPOOL_STATS=0
// build: tsan -fsanitize=thread
#define GPUPOOL_SITES 1
#define GPUPOOL_IMPLEMENTATION
#include "fail_malloc.h"
#include "gpupool.h"
#include "arena_kit.h"

#include <pthread.h>

typedef struct figures { uint64_t allocs, blocks, bytes, bytes_peak; } figures;

/* What all streams have asked for from one line; "" and 0: from nobody knows where. */
static figures of_line(gpupool_arena *arena, const char *file, int line) {
    figures sum = {0, 0, 0, 0};
    gpi_site *site = NULL;
    int bucket;
    kit_stats(arena); /* any look puts the caches' notes in order */
    while ((site = gpi_ledger_next_site(&arena->ledger, site, &bucket)) != NULL) {
        if (site->line != line || strcmp(site->file, file) != 0) continue;
        sum.allocs += site->allocs;
        sum.blocks += site->blocks;
        sum.bytes += site->bytes;
        sum.bytes_peak += site->bytes_peak;
    }
    return sum;
}

static void expect_line(gpupool_arena *arena, const char *file, int line, figures expected) {
    figures got = of_line(arena, file, line);
    CHECK_EQ(got.allocs, expected.allocs);
    CHECK_EQ(got.blocks, expected.blocks);
    CHECK_EQ(got.bytes, expected.bytes);
    CHECK_EQ(got.bytes_peak, expected.bytes_peak);
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
}

static void put(gpupool_arena *arena, void *block, cudaStream_t stream) {
    CHECK_RESULT(gpupool_free(arena, block, stream), GPUPOOL_OK);
}

static void lines_are_counted(void) {
    for (size_t i = 0; i < KIT_SOURCES; i++) {
        check_case("%s", kit_sources[i].name);
        gpupool_arena *arena = kit_open(kit_sources[i].source);
        void *block[3];
        for (int k = 0; k < 3; k++) block[k] = gpupool_alloc(arena, 1000, kit_stream[0]);
        int line = __LINE__ - 1;
        void *other = gpupool_alloc_aligned(arena, 5000, 1024, kit_stream[1]);
        expect_line(arena, __FILE__, line, (figures){3, 3, 3000, 3000});
        expect_line(arena, __FILE__, line + 2, (figures){1, 1, 5000, 5000});
        put(arena, block[1], kit_stream[1]);
        put(arena, other, kit_stream[0]);
        expect_line(arena, __FILE__, line, (figures){3, 2, 2000, 3000});
        expect_line(arena, __FILE__, line + 2, (figures){1, 0, 0, 5000});
        put(arena, block[0], 0);
        put(arena, block[2], kit_stream[0]);
        expect_line(arena, __FILE__, line, (figures){3, 0, 0, 3000});
        kit_close(arena);
    }
}

/* Blocks that go from hand to hand through a stream's cache, and never through the tree. */
static void cached_blocks_change_lines(void) {
    gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_DEVICE);
    void *last = gpupool_alloc(arena, 4000, kit_stream[0]);
    put(arena, last, kit_stream[0]);
    for (int k = 0; k < 10; k++) {
        void *one = gpupool_alloc(arena, 4000, kit_stream[0]); /* line A */
        put(arena, one, kit_stream[0]);
        last = gpupool_alloc(arena, 3900, kit_stream[0]); /* line B */
        CHECK(one == last);
        if (k < 9) put(arena, last, kit_stream[0]);
    }
    int b = __LINE__ - 4;
    expect_line(arena, __FILE__, b - 2, (figures){10, 0, 0, 4000});
    expect_line(arena, __FILE__, b, (figures){10, 1, 3900, 3900});
    put(arena, last, kit_stream[1]);
    expect_line(arena, __FILE__, b, (figures){10, 0, 0, 3900});
    kit_close(arena);
}

/* Reports show the line that has the block now, not the one that had it before. */
static void reports_show_the_line_of_a_cached_block(void) {
    FILE *paper = tmpfile();
    gpi_view view;
    int found = 0;
    if (!CHECK(paper != NULL)) return;
    gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_AUTO);
    put(arena, gpupool_alloc(arena, 4000, kit_stream[0]), kit_stream[0]);
    void *block = gpupool_alloc(arena, 3900, kit_stream[0]);
    int line = __LINE__ - 1;
    uint64_t unit = (uint64_t)(uintptr_t)block / GPUPOOL_UNIT_BYTES;
    CHECK_EQ(gpi_tree_live(&arena->tree, unit)->list, GPI_LIST_CACHED);
    CHECK_RESULT(gpi_view_open_for(&view, arena, "test", paper), GPUPOOL_OK);
    for (uint64_t i = 0; i < view.count; i++) {
        const gpi_stretch *stretch = &view.stretches[i];
        if (stretch->state != GPUPOOL_STATE_LIVE || stretch->block_unit != unit) continue;
        found++;
        CHECK_EQ(view.sites[stretch->site].line, line);
        CHECK(strcmp(view.sites[stretch->site].file, __FILE__) == 0);
    }
    CHECK_EQ(found, 1);
    CHECK_RESULT(gpi_view_close(&view, "test", paper), GPUPOOL_OK);
    fclose(paper);
    put(arena, block, kit_stream[0]);
    kit_close(arena);
}

typedef struct walked { const void *live; int lives, others; } walked;

static int look_at(const gpupool_block *block, void *user) {
    walked *seen = (walked *)user;
    if (block->memory == seen->live) {
        seen->lives++;
        CHECK(block->file && strcmp(block->file, "src/model.c") == 0);
        CHECK_EQ(block->line, 7);
    } else {
        seen->others++;
        CHECK(block->file == NULL);
        CHECK_EQ(block->line, 0);
    }
    return 0;
}

/* What is free is of no line, also behind a block that is. */
static void walks_tell_lines(void) {
    gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_DEVICE);
    walked seen = {kit_alloc_at(arena, 3000, kit_stream[0], "src/model.c", 7), 0, 0};
    void *nameless = kit_alloc_at(arena, 5000, kit_stream[0], NULL, 9);
    CHECK_RESULT(gpupool_walk_blocks(arena, look_at, &seen), GPUPOOL_OK);
    CHECK_EQ(seen.lives, 1);
    CHECK_EQ(seen.others, 2);
    put(arena, (void *)(uintptr_t)seen.live, kit_stream[0]);
    put(arena, nameless, kit_stream[0]);
    kit_close(arena);
}

/* All lines are in the file, and nothing else is. */
static void lines_in_a_file(void) {
    static char text[20000];
    gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_DEVICE);
    FILE *paper = tmpfile();
    if (!CHECK(paper != NULL)) return;
    void *block[] = {kit_alloc_at(arena, 3000, kit_stream[0], "src/model.c", 7),
                     kit_alloc_at(arena, 5000, kit_stream[0], NULL, 9)};
    CHECK_RESULT(gpupool_write_json(arena, paper), GPUPOOL_OK);
    rewind(paper);
    text[fread(text, 1, sizeof text - 1, paper)] = 0;
    fclose(paper);
    const char *from = strstr(text, "\n\"sites\":[{"), *at = from;
    const char *end = strstr(text, "\"chunks\"");
    CHECK(from && strstr(from, "}],\n\"chunks\":["));
    CHECK(strstr(text, "{\"file\":\"src/model.c\",\"line\":7,\"stream\":0,\"allocs\":1,"
                       "\"blocks\":1,\"bytes\":3000,\"bytes_peak\":3000}"));
    CHECK(strstr(text, "{\"file\":null,\"line\":0,\"stream\":0,\"allocs\":1,"
                       "\"blocks\":1,\"bytes\":5000,\"bytes_peak\":5000}"));
    int lines = 0;
    for (; at && (at = strstr(at, "\"file\":")) != NULL && at < end; at++) lines++;
    CHECK_EQ(lines, 2);
    for (size_t i = 0; i < 2; i++) put(arena, block[i], kit_stream[0]);
    kit_close(arena);
}

/* One line in a loop over streams: a block that another stream has freed counts for the stream that
   has it next. */
static void cached_blocks_change_streams(void) {
    uint64_t key = (uint64_t)(uintptr_t)kit_stream[0];
    gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_DEVICE);
    void *block = NULL, *before = NULL;
    for (int k = 1; k >= 0; k--) {
        before = block;
        block = kit_alloc_at(arena, 4000, kit_stream[k], "loop.c", 5);
        if (k == 1) put(arena, block, kit_stream[0]); /* into the other one's cache */
    }
    CHECK(block == before);
    expect_line(arena, "loop.c", 5, (figures){2, 1, 4000, 8000});
    const gpi_site *site =
        gpi_tree_live(&arena->tree, (uint64_t)(uintptr_t)block / GPUPOOL_UNIT_BYTES)->site;
    CHECK(site->key == key && site->allocs == 1 && site->bytes == 4000);
    put(arena, block, kit_stream[0]);
    kit_close(arena);
}

/* Two literals of one text may be one or two strings: they are one line all the same. */
static void text_counts_not_its_address(void) {
    static const char one[] = "src/model.c", other[] = "src/model.c";
    gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_AUTO);
    void *a = kit_alloc_at(arena, 100, kit_stream[0], one, 7);
    gpupool_request zeroed = {200, 0, kit_stream[0], GPUPOOL_ZEROED, other, 7, 0};
    gpupool_request aligned = {300, 4096, kit_stream[1], 0, other, 7, 0};
    void *b = gpupool_alloc_request(arena, &zeroed);
    void *c = gpupool_alloc_request(arena, &aligned);
    void *d = kit_alloc_at(arena, 400, kit_stream[0], NULL, 9);
    expect_line(arena, "src/model.c", 7, (figures){3, 3, 600, 600});
    expect_line(arena, "", 0, (figures){1, 1, 400, 400});
    CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_E_IN_USE);
    CHECK(strstr(gpupool_last_error(), ": 4, holding 2.00 KiB; the biggest: "
                 "3 of model.c:7 (600 B), 1 of unknown origin (400 B)") != NULL);
    put(arena, a, kit_stream[0]);
    put(arena, b, kit_stream[0]);
    put(arena, c, kit_stream[0]);
    put(arena, d, kit_stream[0]);
    kit_close(arena);
}

/* People are told the last part of a path, of either kind; in the map too. */
static void paths_are_shortened(void) {
    static char map[1 << 16];
    gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_AUTO);
    void *a = kit_alloc_at(arena, 600, kit_stream[0], "C:\\net\\layers\\norm.c", 3);
    void *b = kit_alloc_at(arena, 500, kit_stream[0], "net/layers/mask.c", 4);
    void *wide = kit_alloc_at(arena, MIB, kit_stream[0], "net/fill.c", 5);
    FILE *file = tmpfile();
    CHECK_RESULT(gpupool_write_svg(arena, file), GPUPOOL_OK);
    rewind(file);
    CHECK(fread(map, 1, sizeof map - 1, file) > 0);
    fclose(file);
    CHECK(strstr(map, ", chunk 1, fill.c:5, stream ") != NULL);
    put(arena, wide, kit_stream[0]);
    CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_E_IN_USE);
    CHECK(strstr(gpupool_last_error(), "1 of norm.c:3 (600 B), 1 of mask.c:4 (500 B)") != NULL);
    put(arena, a, kit_stream[0]);
    put(arena, b, kit_stream[0]);
    kit_close(arena);
}

static void without_host_memory_the_line_is_unknown(void) {
    long live = fail_malloc_live;
    gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_AUTO);
    void *a = kit_alloc_at(arena, 600, kit_stream[0], "a.c", 1), *b, *c;
    put(arena, a, kit_stream[0]);
    fail_malloc_nth(1, 1);
    b = kit_alloc_at(arena, 600, kit_stream[0], "b.c", 2); /* from the cache */
    c = kit_alloc_at(arena, 700, kit_stream[0], "c.c", 3);
    fail_malloc_nth(0, 0);
    CHECK(b == a && c != NULL);
    expect_line(arena, "b.c", 2, (figures){0, 0, 0, 0});
    expect_line(arena, "", 0, (figures){2, 2, 1300, 1300});
    put(arena, b, kit_stream[0]);
    put(arena, c, kit_stream[1]);
    kit_close(arena);
    CHECK_EQ(fail_malloc_live, live);
}

/* Of each stream, the first unknown line from its cache has a site at hand; it stays the one. */
static void one_unknown_line_of_a_stream(void) {
    gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_AUTO);
    for (int i = 0; i < 3; i++)
        put(arena, kit_alloc_at(arena, 600, kit_stream[0], "a.c", 1), kit_stream[0]);
    fail_malloc_nth(1, 1);
    for (int i = 0; i < 3; i++)
        put(arena, kit_alloc_at(arena, 600, kit_stream[0], "b.c", 2 + i), kit_stream[0]);
    fail_malloc_nth(0, 0);
    expect_line(arena, "", 0, (figures){3, 0, 0, 600});
    kit_close(arena);
}

/* More lines than buckets, equal ones in two files and on two streams: none is taken for another,
   in whatever order they stand in a bucket. */
static void lines_that_share_buckets(void) {
    enum { LINES = 3000 };
    static const char *const files[] = {"left.c", "right.c"};
    static void *block[LINES * 4];
    gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_DEVICE);
    for (int i = 0; i < LINES * 4; i++)
        block[i] = kit_alloc_at(arena, 512, kit_stream[i / 2 % 2], files[i % 2], i / 4 + 1);
    for (int i = 0; i < LINES * 4; i++) {
        CHECK_EQ(gpi_tree_live(&arena->tree, (uint64_t)(uintptr_t)block[i] / GPUPOOL_UNIT_BYTES)
                     ->site->blocks, 1);
        put(arena, block[i], kit_stream[i / 2 % 2]);
    }
    for (int i = 1; i <= LINES; i += 97)
        for (int k = 0; k < 2; k++) expect_line(arena, files[k], i, (figures){2, 0, 0, 1024});
    kit_close(arena);
}

/* One line on more streams than there are buckets: two of them must share one. */
static void streams_that_share_buckets(void) {
    enum { STREAMS = 300 };
    static cudaStream_t stream[STREAMS];
    static void *block[STREAMS];
    gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_DEVICE);
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < STREAMS; i++) {
            if (!stream[i])
                CHECK_EQ(cudaStreamCreateWithFlags(&stream[i], cudaStreamNonBlocking), cudaSuccess);
            block[i] = kit_alloc_at(arena, 512, stream[i], "one.c", 1);
            if (round == 0) put(arena, block[i], stream[i]);
        }
    expect_line(arena, "one.c", 1, (figures){2 * STREAMS, STREAMS, 512 * STREAMS, 512 * STREAMS});
    for (int i = 0; i < STREAMS; i++) {
        put(arena, block[i], stream[i]);
        CHECK_EQ(cudaStreamDestroy(stream[i]), cudaSuccess);
        stream[i] = NULL;
    }
    kit_close(arena);
}

static void a_wrong_site_is_noticed(void) {
    gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_AUTO);
    void *a = kit_alloc_at(arena, 600, kit_stream[0], "a.c", 1);
    void *b = kit_alloc_at(arena, 600, kit_stream[0], "b.c", 2);
    kit_stats(arena);
    gpi_run *run = gpi_tree_live(&arena->tree, (uint64_t)(uintptr_t)a / GPUPOOL_UNIT_BYTES);
    gpi_site *site = run->site;
    run->site = gpi_tree_live(&arena->tree, (uint64_t)(uintptr_t)b / GPUPOOL_UNIT_BYTES)->site;
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_E_CORRUPT);
    CHECK(strstr(gpupool_last_error(), "invariant A1") != NULL);
    run->site = site;
    site->bytes++;
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_E_CORRUPT);
    site->bytes--;
    put(arena, a, kit_stream[0]);
    put(arena, b, kit_stream[0]);
    kit_close(arena);
}

/* ---- threads ---- */

static gpupool_arena *shared;

static void *work(void *number) {
    int i = *(const int *)number;
    void *block[8] = {NULL};
    for (int k = 0; k < 4000; k++) {
        void **at = &block[k % 8];
        if (*at) gpupool_free(shared, *at, kit_stream[(i + k % 3) % 2]);
        *at = gpupool_alloc(shared, 512 * (1 + (size_t)(k % 3)), kit_stream[i % 2]);
    }
    for (int k = 0; k < 8; k++) gpupool_free(shared, block[k], kit_stream[i % 2]);
    return NULL;
}

static void threads_share_lines(void) {
    enum { THREADS = 4 };
    pthread_t thread[THREADS];
    int number[THREADS];
    shared = kit_open(GPUPOOL_SOURCE_DEVICE);
    for (int i = 0; i < THREADS; i++) {
        number[i] = i;
        CHECK_EQ(pthread_create(&thread[i], NULL, work, &number[i]), 0);
    }
    for (int i = 0; i < 50; i++) CHECK_RESULT(gpupool_check(shared), GPUPOOL_OK);
    for (int i = 0; i < THREADS; i++) pthread_join(thread[i], NULL);
    gpi_site *site = NULL;
    int bucket;
    uint64_t allocs = 0, blocks = 0;
    kit_stats(shared);
    while ((site = gpi_ledger_next_site(&shared->ledger, site, &bucket)) != NULL) {
        allocs += site->allocs;
        blocks += site->blocks + site->bytes;
    }
    CHECK_EQ(allocs, THREADS * 4000);
    CHECK_EQ(blocks, 0);
    kit_close(shared);
}

/* As the options in the header say. */
static void what_a_line_and_stream_cost(void) {
    CHECK_EQ(sizeof(gpi_site), 160);
}

int main(void) {
    ARENA_TEST(what_a_line_and_stream_cost);
    ARENA_TEST(lines_are_counted);
    ARENA_TEST(cached_blocks_change_lines);
    ARENA_TEST(reports_show_the_line_of_a_cached_block);
    ARENA_TEST(walks_tell_lines);
    ARENA_TEST(lines_in_a_file);
    ARENA_TEST(cached_blocks_change_streams);
    ARENA_TEST(text_counts_not_its_address);
    ARENA_TEST(paths_are_shortened);
    ARENA_TEST(without_host_memory_the_line_is_unknown);
    ARENA_TEST(one_unknown_line_of_a_stream);
    ARENA_TEST(lines_that_share_buckets);
    ARENA_TEST(streams_that_share_buckets);
    ARENA_TEST(a_wrong_site_is_noticed);
    ARENA_TEST(threads_share_lines);
    return check_finish();
}
