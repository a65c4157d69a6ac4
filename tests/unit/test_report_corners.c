/* Reports of arenas that are not as usual: names that need quoting, streams without a number or
   beyond those with a colour, an empty arena, a host without memory, and an arena that grows while
   it is looked at. */
// build: sizes -fsanitize=address
// build: sites -fsanitize=address -DGPUPOOL_SITES=1
#include <locale.h>
#include <stdlib.h>

static void *hook_malloc(size_t bytes);
#define GPUPOOL_MALLOC(bytes) hook_malloc(bytes)
#define GPUPOOL_FREE(memory) free(memory)
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "report_kit.h"

static void (*at_malloc)(void); /* runs at the next request: as another thread would meanwhile */
static long refused;            /* the request that fails, counted from now; 0: none */

static void *hook_malloc(size_t bytes) {
    void (*run)(void) = at_malloc;
    at_malloc = NULL;
    if (run) run();
    if (refused > 0 && --refused == 0) return NULL;
    return malloc(bytes);
}

static report *const reports[] = {gpupool_report, gpupool_write_json, gpupool_write_svg,
                                  gpupool_write_snapshot};

/* ---- room ---- */

/* The parts of what is looked at lie one behind the other, in as much room as was asked for. */
static void a_view_lies_in_its_room(void) {
    gpi_view view;
    memset(&view, 0, sizeof view);
    open_named("room", GPUPOOL_SOURCE_AUTO);
    for (int i = 0; i < KIT_STREAMS; i++)
        CHECK_RESULT(gpupool_free(arena, kit_alloc(arena, 4096, kit_stream[i]), kit_stream[i]),
                     GPUPOOL_OK);
    CHECK_EQ(gpi_view_lay_out(&view, arena), 0);
    size_t need = view.need_bytes;
    view.room = malloc(need);
    view.room_bytes = need - 1;
    CHECK_EQ(gpi_view_lay_out(&view, arena), 0);
    view.room_bytes = need;
    CHECK_EQ(gpi_view_lay_out(&view, arena), 1);
    CHECK(view.stretches == view.room);
    CHECK((char *)(view.lists + arena->tree.list_count) == (char *)view.room + view.need_bytes);
    free(view.room);
    kit_close(arena);
}

/* ---- text ---- */

static void names_that_need_quoting(void) {
    open_named("a\"b\\c\x01\n\x0f\x10\x1f<&>", GPUPOOL_SOURCE_AUTO);
    CHECK(strstr(written(gpupool_write_json),
                 "a\\\"b\\\\c\\u0001\\u000a\\u000f\\u0010\\u001f<&>") != NULL);
    CHECK(strstr(written(gpupool_write_svg), "&lt;&amp;&gt;") != NULL);
    CHECK(strchr(text, 1) == NULL); /* no control character is allowed in XML */
    kit_close(arena);
    open_named("\xef\xac\xbe \xef\xbf\xbe \xef\xbf\xbf", GPUPOOL_SOURCE_AUTO); /* two are none */
    CHECK(strstr(written(gpupool_write_svg), "\"\xef\xac\xbe ??? ???\"") != NULL);
    kit_close(arena);
    open_named("\xef\xbf\xbd", GPUPOOL_SOURCE_AUTO);
    CHECK(strstr(written(gpupool_write_svg), "\"\xef\xbf\xbd\"") != NULL);
    kit_close(arena);
}

/* What is no letter in UTF-8 is shown as ?, also the first byte of one that the name's end cuts. */
static void names_in_other_encodings(void) {
    static const struct { const char *given, *shown; } names[] = {
        {"caf\xc3( \xdf\xc3\xa9", "caf?( ?\xc3\xa9"},
        {"caf\xe9 A\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80",
         "caf? A\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80"},
        {"\x80\xc1\xbf\xe0\x9f\xbf\xed\xa0\x80\xf0\x8f\xbf\xbf\xf4\x90\x80\x80\xf5\xe2\x82",
         "????????????????????"},
        {"\xf5\x80\x80\x80", "????"},
        {"\x7f", "\x7f"},
        {"no end \xc3(", "no end ?("},
        {"0123456789abcdef0123456789abcd\xc3\xa9", "0123456789abcdef0123456789abcd?"},
        {"\xc2\x80\xdf\xbf", "\xc2\x80\xdf\xbf"},
        {"\xe0\xa0\x80\xed\x9f\xbf\xf0\x90\x80\x80\xf4\x8f\xbf\xbd",
         "\xe0\xa0\x80\xed\x9f\xbf\xf0\x90\x80\x80\xf4\x8f\xbf\xbd"}};
    for (size_t i = 0; i < KIT_COUNT(names); i++) {
        char quoted[64];
        check_case("name %zu", i);
        open_named(names[i].given, GPUPOOL_SOURCE_AUTO);
        snprintf(quoted, sizeof quoted, "\"%s\"", names[i].shown);
        CHECK(strstr(written(gpupool_write_json), quoted) != NULL);
        CHECK(strstr(written(gpupool_write_svg), quoted) != NULL);
        kit_close(arena);
    }
}

/* A program may have set one whose numbers have a comma. */
static void numbers_in_another_locale(void) {
    static const char *const locales[] = {"de_DE.UTF-8", "de_DE", "fr_FR.UTF-8", "fr_FR"};
    size_t i = 0;
    while (i < KIT_COUNT(locales) && !setlocale(LC_NUMERIC, locales[i])) i++;
    open_named("comma", GPUPOOL_SOURCE_AUTO);
    CHECK(strstr(written(gpupool_write_json), "\"fragmentation\":0.000000,") != NULL);
    CHECK(strstr(written(gpupool_write_svg), "<rect x=\"16.00\"") != NULL);
    kit_close(arena);
    setlocale(LC_NUMERIC, "C");
}

#if GPUPOOL_SITES
/* Two literals of one text may be one or two strings: in a report they are one line. A block of
   nobody knows where is shown as such. */
static void lines_by_their_text(void) {
    static const char one[] = "src/model.c", other[] = "src/model.c";
    open_named("lines", GPUPOOL_SOURCE_DEVICE);
    void *blocks[] = {kit_alloc_at(arena, MIB, kit_stream[0], one, 7),
                      kit_alloc_at(arena, 2 * MIB, kit_stream[0], other, 7),
                      kit_alloc_at(arena, 4 * MIB, kit_stream[0], NULL, 9)};
    written(gpupool_write_json);
    CHECK_EQ(times("\"file\""), 2);
    CHECK(strstr(text, "\"file\":\"src/model.c\",\"line\":7,\"stream\":0,\"allocs\":2,"
                       "\"blocks\":2,\"bytes\":3145728") != NULL);
    CHECK(strstr(text, "\"file\":null,\"line\":0,\"stream\":0,\"allocs\":1,"
                       "\"blocks\":1,\"bytes\":4194304") != NULL);
    written(gpupool_write_svg);
    CHECK_EQ(times("model.c:7"), 2);
    CHECK_EQ(times("null"), 0);
    for (size_t i = 0; i < KIT_COUNT(blocks); i++)
        CHECK_RESULT(gpupool_free(arena, blocks[i], kit_stream[0]), GPUPOOL_OK);
    kit_close(arena);
}
#endif

/* ---- streams ---- */

static void streams_by_other_names(void) {
    arena = gpupool_get_default_arena(0);
    void *blocks[3];
    CHECK_EQ(gpupool_cudaMalloc(&blocks[0], MIB), cudaSuccess);
    blocks[1] = kit_alloc(arena, MIB, cudaStreamPerThread);
    blocks[2] = kit_alloc(arena, MIB, 0);
#if CHECK_FAKE
    fake_mode(FAKE_STEPPED);
#endif
    CHECK_EQ(gpupool_cudaFree(blocks[0]), cudaSuccess);
    CHECK_RESULT(gpupool_free(arena, blocks[1], cudaStreamPerThread), GPUPOOL_OK);
    CHECK_RESULT(gpupool_free(arena, blocks[2], 0), GPUPOOL_OK);
    written(gpupool_write_svg);
    CHECK(strstr(text, "all streams (cudaFree)") != NULL);
#if CHECK_FAKE
    fake_mode(FAKE_EAGER);
#endif
    kit_close(arena);
}

#define MANY 40

/* The legend has colours for the first, and one for all others; it goes on below. */
static void more_streams_than_colours(void) {
    cudaStream_t streams[MANY];
    void *blocks[MANY];
    open_named("many", GPUPOOL_SOURCE_DEVICE);
    for (int i = 0; i < MANY; i++) {
        CHECK_EQ(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking), cudaSuccess);
        blocks[i] = kit_alloc(arena, 70000, streams[i]);
    }
    CHECK(strstr(written(gpupool_write_svg), "other streams") != NULL);
    for (int i = 0; i < MANY; i++)
        CHECK_RESULT(gpupool_free(arena, blocks[i], streams[i]), GPUPOOL_OK);
    CHECK(strstr(written(gpupool_write_svg), "other streams") != NULL);
    kit_close(arena);
    for (int i = 0; i < MANY; i++) CHECK_EQ(cudaStreamDestroy(streams[i]), cudaSuccess);
}

/* Blocks outlive their streams. Of more streams that are no more than a report has room for, the
   rest has no number. */
static void blocks_of_streams_that_are_no_more(void) {
    cudaStream_t streams[MANY];
    void *blocks[MANY];
    open_named("outlived", GPUPOOL_SOURCE_DEVICE);
    for (int i = 0; i < MANY; i++)
        CHECK_EQ(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking), cudaSuccess);
    for (int i = 0; i < MANY; i++) blocks[i] = kit_alloc_at(arena, 5000, streams[i], "f.c", 1);
    for (int i = 0; i < MANY; i++) CHECK_EQ(cudaStreamDestroy(streams[i]), cudaSuccess);
    CHECK_RESULT(gpupool_trim(arena, SIZE_MAX, NULL), GPUPOOL_OK); /* they are forgotten */
    written(gpupool_write_json);
    CHECK_EQ(times("\"state\":\"live\""), MANY);
    int nameless = times("\"requested_bytes\":5000,\"stream\":null");
    if (GPUPOOL_SITES) CHECK_EQ(nameless, 0); /* lines know their streams: there is room */
    else CHECK(nameless > 0 && nameless < MANY);
    for (int i = 0; i < MANY; i++)
        CHECK_RESULT(gpupool_free(arena, blocks[i], kit_stream[0]), GPUPOOL_OK);
    kit_close(arena);
}

/* ---- sizes ---- */

static void nothing_at_all(void) {
    open_named(NULL, GPUPOOL_SOURCE_AUTO);
    CHECK(strstr(written(gpupool_report), "0 B") != NULL);
    CHECK(strstr(written(gpupool_write_json), "\"fragmentation\":0.0") != NULL);
    CHECK(strstr(text, "\"chunks\":[]") != NULL);
    CHECK(strstr(text, "\"limit_bytes\":null,") != NULL);
    CHECK_RESULT(gpupool_set_limit(arena, 12345678), GPUPOOL_OK);
    CHECK(strstr(written(gpupool_write_json), "\"limit_bytes\":12345678,") != NULL);
    CHECK_RESULT(gpupool_set_limit(arena, 0), GPUPOOL_OK);
    CHECK(written(gpupool_write_svg)[0] == '<');
#if CHECK_FAKE
    fake_fail_call("cuMemGetInfo", 1, 1, 0);
    CHECK(strstr(written(gpupool_report), "no limit\n") != NULL); /* the device does not say */
    CHECK(strstr(text, "\n  [  ") != NULL); /* and nothing is shown as a little */
    fake_fail_clear();
    CHECK_EQ(cudaGetLastError(), cudaSuccess);
#endif
    kit_close(arena);
}

/* More memory than the map has rows for at its usual scale. */
static void a_large_map(void) {
    void *blocks[60];
    open_named("large", GPUPOOL_SOURCE_DEVICE);
    for (int i = 0; i < 60; i++) blocks[i] = kit_alloc(arena, 700 * MIB, kit_stream[i % 4]);
    CHECK(strstr(written(gpupool_write_svg), "</svg>") != NULL);
    for (int i = 0; i < 60; i++)
        CHECK_RESULT(gpupool_free(arena, blocks[i], kit_stream[i % 4]), GPUPOOL_OK);
    kit_close(arena);
}

/* As much as there are rows for at the usual scale, and a chunk more: then three share a row. */
static void a_map_that_is_full(void) {
    void *blocks[GPI_MAP_ROWS + 1];
    open_named("full", GPUPOOL_SOURCE_BYPASS);
    for (int i = 0; i <= GPI_MAP_ROWS; i++) {
        blocks[i] = kit_alloc(arena, 2 * MIB, kit_stream[0]);
        if (i < GPI_MAP_ROWS - 1) continue;
        written(gpupool_write_svg);
        CHECK_EQ(strstr(text, "a row is 2.00 MiB") != NULL, i < GPI_MAP_ROWS);
        CHECK_EQ(strstr(text, "a row is 8.00 MiB") != NULL, i == GPI_MAP_ROWS);
    }
    for (int i = 0; i <= GPI_MAP_ROWS; i++)
        CHECK_RESULT(gpupool_free(arena, blocks[i], kit_stream[0]), GPUPOOL_OK);
    kit_close(arena);
}

#if CHECK_FAKE
/* More chunks than gaps have room between them: none is left out of the picture. */
static void a_map_of_many_chunks(void) {
    enum { CHUNKS = 13000 };
    static void *blocks[CHUNKS];
    open_named("many", GPUPOOL_SOURCE_BYPASS);
    for (int i = 0; i < CHUNKS; i++) blocks[i] = kit_alloc(arena, 512, kit_stream[0]);
    CHECK(strstr(written(gpupool_write_svg), "a row is 2.00 MiB") != NULL);
    for (int i = 0; i < CHUNKS; i++)
        CHECK_RESULT(gpupool_free(arena, blocks[i], kit_stream[0]), GPUPOOL_OK);
    kit_close(arena);
}
#endif

/* Blocks are sorted by address in a room that is just as large as they are. */
static void a_holder_has_its_own_blocks(void) {
    void *blocks[3];
    char line[80];
    open_named("full", GPUPOOL_SOURCE_DEVICE);
    for (int i = 0; i < 3; i++) blocks[i] = kit_alloc_at(arena, 2 * MIB, 0, "f.c", 1);
    snprintf(line, sizeof line, "  %-30s %12d %12s\n", GPUPOOL_SITES ? "f.c:1" : "2.00 MiB", 3,
             "6.00 MiB");
    CHECK(strstr(written(gpupool_report), line) != NULL);
    for (int i = 0; i < 3; i++) CHECK_RESULT(gpupool_free(arena, blocks[i], 0), GPUPOOL_OK);
    kit_close(arena);
}

/* ---- the host ---- */

static void no_memory_for_a_report(void) {
    open_named("poor", GPUPOOL_SOURCE_AUTO);
    void *block = kit_alloc(arena, MIB, kit_stream[0]);
    for (size_t i = 0; i < KIT_COUNT(reports); i++) {
        int more = 1;
        for (long n = 1; more; n++) {
            FILE *file = tmpfile();
            check_case("report %zu, request %ld", i, n);
            refused = n;
            gpupool_result result = reports[i](arena, file);
            more = refused == 0;
            refused = 0;
            CHECK_RESULT(result, more ? GPUPOOL_E_HOST_MEMORY : GPUPOOL_OK);
            fclose(file);
        }
    }
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
    kit_close(arena);
}

/* ---- meanwhile ---- */

#define MORE 1500
static void *added[MORE];
static cudaStream_t added_stream[40];

static void add_runs(void) {
    for (int i = 0; i < MORE; i++) added[i] = kit_alloc(arena, 600, kit_stream[0]);
}

static void add_streams(void) {
    for (int i = 0; i < 40; i++) {
        CHECK_EQ(cudaStreamCreateWithFlags(&added_stream[i], cudaStreamNonBlocking), cudaSuccess);
        added[i] = kit_alloc(arena, 600, added_stream[i]);
    }
}

static void add_sites(void) {
    static char files[60][24];
    for (int i = 0; i < 60; i++) {
        snprintf(files[i], sizeof files[i], "f%d.c", i);
        added[i] = kit_alloc_at(arena, 600, kit_stream[0], files[i], i);
    }
}

/* A look at memory begins anew where there has come to be more than it made room for. */
static void grown_while_looked_at(void) {
    static void (*const grow[])(void) = {add_runs, add_streams, add_sites};
    for (size_t i = 0; i < KIT_COUNT(grow); i++) {
        check_case("growth %zu", i);
        open_named("growing", GPUPOOL_SOURCE_DEVICE);
        memset(added, 0, sizeof added);
        void *block = kit_alloc(arena, 600, kit_stream[0]);
        at_malloc = grow[i];
        CHECK(strstr(written(gpupool_write_json), "\"chunks\"") != NULL);
        CHECK(added[0] != NULL);
        CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
        for (int k = 0; k < MORE; k++)
            CHECK_RESULT(gpupool_free(arena, added[k], kit_stream[0]), GPUPOOL_OK);
        CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
        kit_close(arena);
        for (int k = 0; k < 40; k++) {
            if (added_stream[k]) CHECK_EQ(cudaStreamDestroy(added_stream[k]), cudaSuccess);
            added_stream[k] = NULL;
        }
    }
}

int main(void) {
    ARENA_TEST(a_view_lies_in_its_room);
    ARENA_TEST(names_that_need_quoting);
    ARENA_TEST(names_in_other_encodings);
    ARENA_TEST(numbers_in_another_locale);
#if GPUPOOL_SITES
    ARENA_TEST(lines_by_their_text);
#endif
    ARENA_TEST(streams_by_other_names);
    ARENA_TEST(more_streams_than_colours);
    ARENA_TEST(blocks_of_streams_that_are_no_more);
    ARENA_TEST(nothing_at_all);
    ARENA_TEST(a_large_map);
    ARENA_TEST(a_map_that_is_full);
    FAKE_TEST(a_map_of_many_chunks);
    ARENA_TEST(a_holder_has_its_own_blocks);
    ARENA_TEST(no_memory_for_a_report);
    ARENA_TEST(grown_while_looked_at);
    return check_finish();
}
