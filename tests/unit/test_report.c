/* The reports of an arena in every state: they are well-formed and agree with each other and with
   gpupool_get_stats. Files that cannot be written are errors. */
// build: sizes -fsanitize=address
// build: sites -fsanitize=address -DGPUPOOL_SITES=1
#define _DEFAULT_SOURCE /* mkdtemp */
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "arena_kit.h"

#include <time.h>
#include <unistd.h>

#define BLOCKS 300
#define MANY 2500

typedef gpupool_result report(gpupool_arena *, FILE *);
static report *const reports[] = {gpupool_report, gpupool_write_json, gpupool_write_svg,
                                  gpupool_write_snapshot};
#define REPORTS KIT_COUNT(reports)

static void *block[MANY];

/* Live, free, freed on several streams, and parked. */
static gpupool_arena *busy_arena(gpupool_source source, const char *name, size_t blocks) {
    gpupool_arena_config config = kit_config(source);
    uint64_t random = 21;
    config.name = name;
    config.limit_text = "3GiB";
    gpupool_arena *arena = kit_create(&config);
    for (size_t i = 0; i < blocks; i++) {
        size_t bytes = 1 + (size_t)check_below(&random, (uint64_t)1 << (8 + i % 15));
        cudaStream_t stream = i % 7 ? kit_stream[i % 4] : 0;
        block[i] = i % 2 ? gpupool_alloc(arena, bytes, stream)
                         : gpupool_alloc_aligned(arena, bytes, 4096, stream);
        CHECK(block[i] != NULL);
    }
#if CHECK_FAKE
    fake_mode(FAKE_STEPPED);
#endif
    for (size_t i = 0; i < blocks; i += 3) {
        if (i % 2) kit_mark(kit_stream[3], block[i], kit_size(arena, block[i]), 1);
        if (i % 6 == 3 && source != GPUPOOL_SOURCE_BYPASS)
            CHECK_RESULT(gpupool_record_stream(arena, block[i], kit_stream[3]), GPUPOOL_OK);
        CHECK_RESULT(gpupool_free(arena, block[i], kit_stream[i % 3]), GPUPOOL_OK);
        block[i] = NULL;
    }
    return arena;
}

static void empty_and_close(gpupool_arena *arena, size_t blocks) {
#if CHECK_FAKE
    fake_run_all();
    fake_mode(FAKE_EAGER);
#endif
    for (size_t i = 0; i < blocks; i++)
        CHECK_RESULT(gpupool_free(arena, block[i], kit_stream[0]), GPUPOOL_OK);
    kit_close(arena);
}

/* Every other chunk is free, or a part of three stitched blocks; a fourth such has been freed. */
#define STRIPE (2 * MIB)
#define STRIPES 32
static gpupool_arena *stitched_arena(const char *name) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
    config.name = name;
    config.chunk_bytes = STRIPE;
    config.limit_bytes = STRIPES * STRIPE;
    gpupool_arena *arena = kit_create(&config);
    for (int i = 0; i < STRIPES; i++) block[i] = kit_alloc(arena, STRIPE, kit_stream[i % 3]);
    for (int i = 0; i < STRIPES; i += 2)
        CHECK_RESULT(gpupool_free(arena, block[i], kit_stream[0]), GPUPOOL_OK);
    kit_finish(arena);
    for (int i = 0; i < 8; i += 2)
        block[i] = kit_alloc(arena, 3 * STRIPE - 1000 - (size_t)i, kit_stream[i / 2]);
    CHECK_RESULT(gpupool_free(arena, block[6], kit_stream[3]), GPUPOOL_OK);
    for (int i = 6; i < STRIPES; i += 2) block[i] = NULL;
    CHECK_EQ(kit_stats(arena).stitched_bytes, 3 * (3 * STRIPE - 512));
    return arena;
}

/* ---- for programs ---- */

static char folder[] = P_tmpdir "/gpupool-report-XXXXXX";

static void write_to(gpupool_arena *arena, report *write, const char *name) {
    char path[100];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    if (!CHECK(file != NULL)) return;
    CHECK_RESULT(write(arena, file), GPUPOOL_OK);
    CHECK_EQ(fclose(file), 0);
}

static int python(const char *arguments) {
    char command[400];
    snprintf(command, sizeof command, "cd %s && python3 %s", folder, arguments);
    return system(command);
}

/* The figures that gpupool_stats has behind its first, as they are in memory. */
static gpupool_result write_stats(gpupool_arena *arena, FILE *file) {
    gpupool_stats stats = kit_stats(arena);
    size_t bytes = sizeof stats - offsetof(gpupool_stats, requested);
    return fwrite(&stats.requested, 1, bytes, file) == bytes ? GPUPOOL_OK : GPUPOOL_E_ARGUMENT;
}

static void files_agree(gpupool_arena *arena) {
    char cwd[200], script[300];
    arena->stitches.made += 3; /* figures that might be taken for one another */
    arena->stitches.reused += 4;
    arena->clocks.device_waits += 5;
    arena->clocks.host_waits += 7;
    write_to(arena, write_stats, "arena.stats");
    write_to(arena, gpupool_write_json, "arena.json");
    write_to(arena, gpupool_write_svg, "arena.svg");
    write_to(arena, gpupool_write_snapshot, "arena.pickle");
    if (!CHECK(getcwd(cwd, sizeof cwd) != NULL)) return;
    snprintf(script, sizeof script, "%s/tests/tools/report_check.py arena.json arena.svg "
             "arena.pickle arena.stats", cwd);
    CHECK_EQ(python(script), 0);
}

static void programs_can_read_them(void) {
    if (python("-c 0") != 0) {
        check_skip("programs_can_read_them", "needs python3");
        return;
    }
    gpupool_arena *stitched = stitched_arena("stitched");
    files_agree(stitched);
    empty_and_close(stitched, STRIPES);
    for (size_t i = 0; i < KIT_SOURCES; i++) {
        check_case("%s", kit_sources[i].name);
        gpupool_arena *arena = busy_arena(kit_sources[i].source, "A <b> & \"c\\d\"", BLOCKS);
        files_agree(arena);
        empty_and_close(arena, BLOCKS);
    }
    for (int chunks = 0; chunks < 2; chunks++) {
        check_case("many %s", chunks ? "chunks" : "blocks");
        gpupool_arena *arena =
            busy_arena(chunks ? GPUPOOL_SOURCE_BYPASS : GPUPOOL_SOURCE_AUTO, "many", MANY);
        files_agree(arena);
        empty_and_close(arena, MANY);
    }
}

static void report_text(gpupool_arena *arena, char *text, size_t size) {
    FILE *file = tmpfile();
    if (!CHECK(file != NULL)) return;
    CHECK_RESULT(gpupool_report(arena, file), GPUPOOL_OK);
    rewind(file);
    text[fread(text, 1, size - 1, file)] = 0;
    fclose(file);
}

/* Of 64 MiB or more, four blocks of 8 MiB are live, with free ones between, one of them still in
   use where work runs when it is told to. */
static void the_report_shows_each_byte(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_DEVICE);
    char text[8192] = "", words[40];
    double live = 0, freed = 0, all = 0, exact;
    void *part[8];
    gpupool_stats stats;
    config.reserve_bytes = 64 * MIB;
    config.limit_bytes = 128 * MIB;
    gpupool_arena *arena = kit_create(&config);
    for (size_t i = 0; i < 8; i++) part[i] = kit_alloc(arena, 8 * MIB, kit_stream[0]);
    for (size_t i = 2; i < 8; i += 2)
        CHECK_RESULT(gpupool_free(arena, part[i], kit_stream[0]), GPUPOOL_OK);
    CHECK_RESULT(gpupool_trim(arena, SIZE_MAX, NULL), GPUPOOL_OK);
    kit_finish(arena);
#if CHECK_FAKE
    fake_mode(FAKE_STEPPED);
    kit_mark(kit_stream[0], part[0], 8 * MIB, 1);
#endif
    CHECK_RESULT(gpupool_free(arena, part[0], kit_stream[0]), GPUPOOL_OK);
    CHECK_RESULT(gpupool_get_stats(arena, &stats), GPUPOOL_OK);
    report_text(arena, text, sizeof text);
    exact = 1 - (double)stats.largest_free_bytes / (double)(stats.reserved.now - 32 * MIB);
    CHECK(exact > 0.6);
    snprintf(words, sizeof words, "fragmentation %.0f%%\n", exact * 100);
    CHECK(strstr(text, words) != NULL);
    const char *mark = strstr(text, "\n  map: ");
    if (!CHECK(mark != NULL)) return;
    for (mark = strchr(mark + 1, '\n'); *mark; mark++) {
        live += *mark == '#';
        freed += *mark == '~';
        all += strchr("#+-~.", *mark) != NULL;
    }
    exact = all * 32 * MIB / (double)stats.reserved.now;
    CHECK(all > 128 && all <= 256 && live > exact - 8 && live < exact + 8);
    exact = all * (double)stats.pending.now / (double)stats.reserved.now;
    CHECK(freed > exact - 2 && freed < exact + 2);
#if CHECK_FAKE
    CHECK_EQ(stats.pending.now, 8 * MIB);
    CHECK(strstr(text, "  [################~~~~............"
                       "                                ] ") != NULL);
    fake_mode(FAKE_EAGER);
#endif
    for (size_t i = 1; i < 8; i += 2)
        CHECK_RESULT(gpupool_free(arena, part[i], kit_stream[0]), GPUPOOL_OK);
    kit_close(arena);
}

static void an_empty_arena_has_reports(void) {
    gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_AUTO);
    for (size_t i = 0; i < REPORTS; i++) {
        FILE *file = tmpfile();
        if (!CHECK(file != NULL)) return;
        CHECK_RESULT(reports[i](arena, file), GPUPOOL_OK);
        CHECK(ftell(file) > 100);
        fclose(file);
    }
    kit_close(arena);
}

/* ---- for people ---- */

static char page[20000];

static void read_report(gpupool_arena *arena) {
    FILE *file = tmpfile();
    page[0] = 0;
    if (!CHECK(file != NULL)) return;
    CHECK_RESULT(gpupool_report(arena, file), GPUPOOL_OK);
    rewind(file);
    page[fread(page, 1, sizeof page - 1, file)] = 0;
    fclose(file);
}

static int says(const char *words) {
    return strstr(page, words) != NULL || check_fail(__FILE__, __LINE__, "no \"%s\" in:\n%s",
                                                     words, page);
}

static void a_report_is_one_screen(void) {
    for (size_t i = 0; i < KIT_SOURCES; i++) {
        check_case("%s", kit_sources[i].name);
        gpupool_arena *arena = busy_arena(kit_sources[i].source, "training", BLOCKS);
        size_t lines = 0;
        read_report(arena);
        for (const char *at = page, *end; (end = strchr(at, '\n')) != NULL; at = end + 1, lines++)
            if (end - at > 110) check_fail(__FILE__, __LINE__, "too long: %.*s", (int)(end - at),
                                           at);
        CHECK(lines >= 25 && lines <= 40);
        says("gpupool arena \"training\": device 0, source ");
        says("of a limit of 3.00 GiB");
        says("biggest holders");
        says("requested");
        says("~ freed, perhaps still in use");
        says("map: a character is ");
        if (kit_sources[i].source != GPUPOOL_SOURCE_PINNED) says("CUDA's context, libraries");
        empty_and_close(arena, BLOCKS);
    }
}

/* The map as said: units one by one, in shares of which there are at most four lines of 64. */
static void map_by_units(gpupool_arena *arena, char *map) {
    gpi_view view;
    CHECK_RESULT(gpi_view_open(&view, arena, "map_by_units"), GPUPOOL_OK);
    uint64_t all = 0, at = 0, units[3] = {0, 0, 0}, share;
    for (uint64_t i = 0; i < view.count; i++) all += view.stretches[i].units;
    share = (all + 255) / 256;
    for (uint64_t i = 0; i < view.count; i++)
        for (uint64_t k = 0; k < view.stretches[i].units; k++) {
            units[view.stretches[i].state]++;
            if (++at % share && at < all) continue;
            uint64_t live = units[GPUPOOL_STATE_LIVE], freed = units[GPUPOOL_STATE_PENDING];
            uint64_t rest = freed + units[GPUPOOL_STATE_FREE];
            if ((at - 1) / share % 64 == 0) map += sprintf(map, "\n  ");
            *map++ = !rest ? '#' : live >= rest ? '+' : live ? '-' : freed * 2 >= rest ? '~' : '.';
            memset(units, 0, sizeof units);
        }
    strcpy(map, "\n");
    free(view.room);
}

static void the_map_shows_each_unit(void) {
    char map[400] = "";
    for (size_t i = 0; i < KIT_SOURCES; i++) {
        check_case("%s", kit_sources[i].name);
        gpupool_arena *arena = busy_arena(kit_sources[i].source, "map", 100 + 40 * i);
        read_report(arena);
        const char *shown = strstr(page, "\n  map: ");
        map_by_units(arena, map);
        shown = shown ? strchr(shown + 1, '\n') : NULL;
        if (!shown || strcmp(shown, map) != 0)
            check_fail(__FILE__, __LINE__, "the map should be%s\nin: %s", map, page);
        empty_and_close(arena, 100 + 40 * i);
    }
}

#if CHECK_FAKE
static void what_the_limit_does_not_count(void) {
    fake_device_memory(0, 8 * GIB);
    fake_other_process(0, 3 * GIB);
    gpupool_arena *arena = kit_open_limited(GPUPOOL_SOURCE_AUTO, GIB);
    block[0] = kit_alloc(arena, 100 * MIB, kit_stream[0]);
    read_report(arena);
    says("not counted  3.00 GiB of the device's 8.00 GiB");
    says("100 MiB of a limit of 1.00 GiB");
    says("[######      ");
    says("\n  granted             100 MiB        100 MiB        100 MiB\n");
    says("\n  pending                 0 B            0 B            0 B\n");
    says("\n  blocks                    1              1              1\n");
    CHECK_RESULT(gpupool_set_limit(arena, 60 * MIB), GPUPOOL_OK);
    read_report(arena);
    says("above the limit by 40.00 MiB");
    CHECK_RESULT(gpupool_set_limit(arena, 0), GPUPOOL_OK);
    read_report(arena);
    says("no limit; the device has 4.90 GiB more free");
    says("[#       "); /* of what it could have */
    CHECK_RESULT(gpupool_free(arena, block[0], kit_stream[0]), GPUPOOL_OK);
    block[0] = NULL;
    kit_close(arena);
}
#endif

static int times(const char *words) { /* in what was read */
    int count = 0;
    for (const char *at = page; (at = strstr(at, words)) != NULL; at++) count++;
    return count;
}

/* Three blocks, in as many places as their chunks, none of which is beside another. */
static void stitched_blocks_are_told(void) {
    gpupool_arena *arena = stitched_arena("stitched");
    read_report(arena);
    says("stitches: 4 made, 0 reused\n");
    says("\n  stitched     18.00 MiB of live memory\n");
    says("\n  free memory  longest run 2.00 MiB, largest block 14.00 MiB; ");
    FILE *file = tmpfile();
    if (!CHECK(file != NULL)) return;
    CHECK_RESULT(gpupool_write_json(arena, file), GPUPOOL_OK);
    rewind(file);
    page[fread(page, 1, sizeof page - 1, file)] = 0;
    CHECK_EQ(fclose(file), 0);
    CHECK_EQ(times("\"stitched_at\""), 9);
    for (int i = 0; i < 6; i += 2) {
        char at[64];
        snprintf(at, sizeof at, "\"stitched_at\":%llu,", (unsigned long long)(uintptr_t)block[i]);
        CHECK_EQ(times(at), 3);
    }
    empty_and_close(arena, STRIPES);
}

static void calls_are_counted(void) {
    gpupool_arena *arena = kit_open_limited(GPUPOOL_SOURCE_DEVICE, 64 * MIB);
    void *chunk[2];
    for (size_t i = 0; i < 2; i++) chunk[i] = kit_alloc(arena, 8 * MIB, kit_stream[0]);
    CHECK_RESULT(gpupool_free(arena, chunk[1], kit_stream[0]), GPUPOOL_OK);
    chunk[1] = kit_alloc(arena, 8 * MIB, kit_stream[0]);
    for (size_t i = 0; i < 2; i++)
        CHECK_RESULT(gpupool_free(arena, chunk[i], kit_stream[0]), GPUPOOL_OK);
    CHECK(!gpupool_alloc(arena, 100 * MIB, kit_stream[0])); /* no chunk went for it */
    CHECK_EQ(kit_reserved(arena), 16 * MIB);
    CHECK_EQ(cudaStreamSynchronize(kit_stream[0]), cudaSuccess);
    CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
    read_report(arena);
    says("\n  calls        allocs 3 (1 from the same stream), frees 3, failures 1\n");
    says("\n  driver       chunks: 2 gained, 2 given back; stitches: 0 made, 0 reused\n");
    says("\n  waits        0 on the device, ");
    says("\n  free memory  longest run 0 B, largest block 0 B; fragmentation 0%\n");
    says("\n  records      ");
    kit_close(arena);
}

static void numbers_are_read_by_their_groups(void) {
    static const struct { uint64_t number; const char *words; } cases[] = {
        {0, "0"}, {7, "7"}, {999, "999"}, {1000, "1,000"}, {12345, "12,345"}, {654321, "654,321"},
        {1234567, "1,234,567"}, {UINT64_MAX, "18,446,744,073,709,551,615"}};
    char room[32];
    for (size_t i = 0; i < KIT_COUNT(cases); i++)
        CHECK(!strcmp(gpi_report_number(room, cases[i].number), cases[i].words));
}

static void leaks_are_listed_largest_first(void) {
    gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_AUTO);
    for (size_t i = 0; i < 3; i++) block[i] = gpupool_alloc(arena, 100 * KIB, kit_stream[0]);
    block[3] = gpupool_alloc(arena, 5 * MIB, kit_stream[0]);
    CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_E_IN_USE);
    CHECK(strstr(gpupool_last_error(), ": 4, holding 5.29 MiB; the biggest: 1 of "));
    read_report(arena);
#if GPUPOOL_SITES
    const char *large = strstr(page, "test_report.c:"), *small;
    says("  3      300 KiB\n");
    small = strstr(page, "      300 KiB");
#else
    const char *large = strstr(page, "  5.00 MiB    "), *small = strstr(page, "  100 KiB    ");
#endif
    CHECK(large && small && large < small);
    for (size_t i = 0; i < 4; i++) {
        CHECK_RESULT(gpupool_free(arena, block[i], kit_stream[0]), GPUPOOL_OK);
        block[i] = NULL;
    }
    kit_close(arena);
}

/* Of more holders than a sentence names, the biggest. */
static void no_more_leaks_than_three_are_named(void) {
    static const char *const names[] = {"a.c", "b.c", "c.c", "d.c", "e.c"}; /* with GPUPOOL_SITES */
    gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_AUTO);
    void *held[5];
    int named = 0;
    for (int i = 0; i < 5; i++)
        held[i] = kit_alloc_at(arena, (size_t)(i + 1) * MIB, kit_stream[0], names[i], 1);
    CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_E_IN_USE);
    const char *at = strstr(gpupool_last_error(), ": 5, holding 15.00 MiB; the biggest: 1 of ");
    CHECK(at != NULL && strstr(at, "5.00 MiB") && strstr(at, "3.00 MiB"));
    for (; at; at = strstr(at + 1, "1 of ")) named++;
    CHECK_EQ(named, 1 + GPUPOOL_HOLDERS);
    for (int i = 0; i < 5; i++) CHECK_RESULT(gpupool_free(arena, held[i], kit_stream[0]), 0);
    kit_close(arena);
}

/* ---- files that are none ---- */

static void wrong_files_are_errors(void) {
    gpupool_arena *arena = busy_arena(GPUPOOL_SOURCE_AUTO, "a", 20);
    for (size_t i = 0; i < REPORTS; i++) {
        check_case("report %zu", i);
        CHECK_RESULT(reports[i](arena, NULL), GPUPOOL_E_ARGUMENT);
        CHECK_RESULT(reports[i](NULL, stdout), GPUPOOL_E_ARGUMENT);
        FILE *full = fopen("/dev/full", "w");
        if (!full) continue; /* this system has none */
        CHECK_RESULT(reports[i](arena, full), GPUPOOL_E_FILE);
        CHECK(strstr(gpupool_last_error(), "cannot be written") != NULL);
        fclose(full);
        FILE *reading = fopen("/dev/null", "r");
        CHECK_RESULT(reports[i](arena, reading), GPUPOOL_E_FILE);
        fclose(reading);
    }
    empty_and_close(arena, 20);
}

/* ---- many blocks ---- */

/* To compare each with each would be 26 billion comparisons, which no processor does in 5 seconds
   under a sanitizer; to go through them a few times is far from that. */
static void many_blocks_take_no_time(void) {
    gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_DEVICE);
    size_t blocks = 160000;
    void **many = (void **)malloc(blocks * sizeof *many);
    FILE *null = fopen("/dev/null", "w");
    if (!CHECK(many && null)) return;
    for (size_t i = 0; i < blocks; i++) many[i] = gpupool_alloc(arena, 512, kit_stream[0]);
    clock_t start = clock();
    CHECK_RESULT(gpupool_report(arena, null), GPUPOOL_OK);
    CHECK((clock() - start) / CLOCKS_PER_SEC < 5);
    for (size_t i = 0; i < blocks; i++) gpupool_free(arena, many[i], kit_stream[0]);
    fclose(null);
    free(many);
    kit_close(arena);
}

int main(void) {
    if (!mkdtemp(folder)) return 1;
    ARENA_TEST(programs_can_read_them);
    ARENA_TEST(an_empty_arena_has_reports);
    ARENA_TEST(the_report_shows_each_byte);
    ARENA_TEST(a_report_is_one_screen);
    ARENA_TEST(the_map_shows_each_unit);
    FAKE_TEST(what_the_limit_does_not_count);
    ARENA_TEST(stitched_blocks_are_told);
    ARENA_TEST(calls_are_counted);
    TEST(numbers_are_read_by_their_groups);
    ARENA_TEST(leaks_are_listed_largest_first);
    ARENA_TEST(no_more_leaks_than_three_are_named);
    ARENA_TEST(wrong_files_are_errors);
    ARENA_TEST(many_blocks_take_no_time);
    char command[100];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    if (system(command) != 0) printf("%s is left\n", folder);
    return check_finish();
}
