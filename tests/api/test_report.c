/* Reports: the walk, text, JSON, and GPUPOOL_REPORT. tests/gates/report_test.sh reads the JSON. Who
   has memory without a label is said by file and line. */
#define _GNU_SOURCE
#define GPUPOOL_SITES 1
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gpupool.h"
#include "kit.h"

#define A kit_stream[0]
#define B kit_stream[1]

static gpupool_arena *arena;
static int is_mapped = 1; /* chunks come by address, too */

static char *text; /* of the last report */

static const char *reports(gpupool_result (*report)(gpupool_arena *, FILE *)) {
    size_t bytes = 0;
    FILE *file;
    free(text);
    text = NULL;
    file = open_memstream(&text, &bytes);
    CHECK_RESULT(report(arena, file), GPUPOOL_OK);
    fclose(file);
    CHECK_EQ(strlen(text), bytes);
    return text;
}

/* ---- the walk ---- */

typedef struct seen {
    uint64_t chunks, asleep, left, parts, bytes[GPUPOOL_FREE + 1], blocks;
    char *next; /* where the next part of the chunk must begin */
    int stop_at;
    gpupool_part last[16];
} seen;

/* Parts of a chunk lie side by side. */
static int see(const gpupool_part *part, void *user) {
    seen *s = (seen *)user;
    if (part->kind == GPUPOOL_CHUNK) {
        CHECK_EQ(s->left, 0);
        s->chunks++;
        s->asleep += part->is_asleep ? part->bytes : 0;
        s->left = part->bytes;
        CHECK((char *)part->memory >= s->next || !is_mapped);
        s->next = part->memory;
        CHECK(!part->block.memory && !part->stream && part->bytes);
    } else {
        CHECK_EQ((uintptr_t)part->memory, (uintptr_t)s->next);
        CHECK(part->bytes && part->bytes <= s->left);
        s->left -= part->bytes;
        s->next += part->bytes;
        s->last[s->parts++ % 16] = *part;
    }
    if (part->kind == GPUPOOL_LIVE) {
        CHECK(part->offset + part->bytes <= part->block.bytes);
        CHECK(part->block.requested && part->block.requested <= part->block.bytes);
        s->blocks += part->offset == 0;
    } else CHECK(!part->block.memory && !part->block.label && !part->offset);
    s->bytes[part->kind] += part->bytes;
    return s->stop_at && (int)(s->chunks + s->parts) == s->stop_at;
}

static seen walk(void) {
    seen s;
    memset(&s, 0, sizeof s);
    CHECK_RESULT(gpupool_walk_blocks(arena, see, &s), GPUPOOL_OK);
    CHECK_EQ(s.left, 0);
    return s;
}

/* What the walk has shown adds up to the statistics. */
static seen agrees(void) {
    seen s = walk();
    gpupool_stats stats = kit_stats(arena);
    CHECK_EQ(s.chunks, stats.chunks);
    CHECK_EQ(s.bytes[GPUPOOL_CHUNK], stats.reserved.now);
    CHECK_EQ(s.bytes[GPUPOOL_LIVE], stats.allocated.now);
    CHECK_EQ(s.blocks, stats.blocks);
    CHECK(s.bytes[GPUPOOL_PENDING] + s.bytes[GPUPOOL_KEPT] <= stats.pending.now);
    return s;
}

static void walks(void) {
    gpupool_request request = {3 * MIB, 0, A, 0, "weights"};
    void *block, *other;
    seen s;
    arena = kit_open(8 * MIB);
    s = agrees();
    CHECK_EQ(s.chunks, 0);
    block = gpupool_alloc_request(arena, &request);
    other = gpupool_alloc(arena, MIB, B);
    s = agrees();
    CHECK_EQ(s.last[0].kind, GPUPOOL_LIVE);
    CHECK_EQ((uintptr_t)s.last[0].block.memory, (uintptr_t)block);
    CHECK_EQ(s.last[0].block.requested, 3 * MIB);
    CHECK(!strcmp(s.last[0].block.label, "weights"));
    kit_hold(B);
    kit_write(other, MIB, B, 1);
    kit_free(arena, other, B);
    s = agrees();
    CHECK_EQ(s.bytes[GPUPOOL_PENDING], MIB);
    CHECK_EQ(s.bytes[GPUPOOL_FREE], 0);
    for (unsigned i = 0; i < s.parts; i++)
        if (s.last[i].kind == GPUPOOL_PENDING) CHECK_EQ((uintptr_t)s.last[i].stream, (uintptr_t)B);
    kit_let_go(B);
    memset(&s, 0, sizeof s);
    s.stop_at = 2;
    CHECK_RESULT(gpupool_walk_blocks(arena, see, &s), GPUPOOL_OK);
    CHECK_EQ(s.chunks + s.parts, 2);
    kit_free(arena, block, A);
    kit_close(arena);
}

/* What a graph keeps; and a sleeping arena, which has its blocks and none of its memory. */
static void walks_what_is_kept_and_asleep(void) {
    gpupool_capture *scope;
    void *block;
    seen s;
    arena = kit_open(0);
    CHECK_RESULT(gpupool_begin_capture(arena, A, &scope), GPUPOOL_OK);
    kit_free(arena, gpupool_alloc(arena, MIB, A), A);
    CHECK_EQ(agrees().bytes[GPUPOOL_KEPT], MIB);
    CHECK_RESULT(gpupool_release_capture(scope), GPUPOOL_OK);
    CHECK_EQ(agrees().bytes[GPUPOOL_KEPT], 0);
    block = gpupool_alloc(arena, 5 * MIB, A);
    CHECK_RESULT(gpupool_sleep(arena, GPUPOOL_KEEP), GPUPOOL_OK);
    s = walk();
    CHECK_EQ(s.bytes[GPUPOOL_CHUNK], s.asleep);
    CHECK_EQ(s.asleep, kit_stats(arena).asleep);
    CHECK_EQ(s.bytes[GPUPOOL_LIVE], 5 * MIB);
    CHECK(strstr(reports(gpupool_report), "5.00 MiB in 1 block"));
    CHECK(strstr(reports(gpupool_write_json), "\"is_asleep\":1"));
    CHECK_RESULT(gpupool_wake(arena), GPUPOOL_OK);
    CHECK_EQ(agrees().asleep, 0);
    kit_free(arena, block, A);
    kit_close(arena);
}

/* ---- text and JSON ---- */

static int lines_of(const char *from) {
    int count = 0;
    for (; *from; from++) count += *from == '\n';
    return count;
}

static void says_what_there_is(void) {
    gpupool_request request = {5 * MIB, 0, A, 0, "weights"};
    const char *said;
    void *blocks[3];
    int i;
    arena = kit_open(40 * MIB);
    for (i = 0; i < 3; i++) blocks[i] = gpupool_alloc_request(arena, &request);
    said = reports(gpupool_report);
    CHECK(strstr(said, "arena \"arena\" on device 0, mapped"));
    CHECK(strstr(said, "15.00 MiB in 3 blocks of weights\n"));
    CHECK(strstr(said, "40.00 MiB")); /* the limit */
    said = reports(gpupool_write_json);
    CHECK_EQ(lines_of(said), 1);
    CHECK(strstr(said, "\"requested\":15728640,"));
    CHECK(strstr(said, "\"label\":\"weights\""));
    for (i = 0; i < 3; i++) kit_free(arena, blocks[i], A);
    said = reports(gpupool_report);
    CHECK(!strstr(said, "weights"));
    kit_close(arena);
}

static void says_where(void) {
    char place[64];
    gpupool_block told;
    void *block;
    arena = kit_open(8 * MIB);
    block = gpupool_alloc(arena, 6 * MIB, A);
    snprintf(place, sizeof place, "test_report.c:%d", __LINE__ - 1);
    CHECK_RESULT(gpupool_get_block(arena, block, &told), GPUPOOL_OK);
    CHECK(strstr(told.label, place));
    KIT_FAILS(gpupool_alloc(arena, 6 * MIB, A), GPUPOOL_E_OUT_OF_MEMORY, place);
    kit_free(arena, block, A);
    kit_close(arena);
}

/* Whatever is in names and labels, a line stays one line, and is UTF-8. */
static void keeps_to_lines(void) {
    static const char *const labels[] = {"a\nb\tc\x7f",
                                         "\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80",
                                         "\xff\xc3",
                                         "\xed\xa0\x80",
                                         "quote\" back\\slash",
                                         "%s%n",
                                         ""};
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_AUTO, 2 * MIB);
    gpupool_request request = {MIB, 0, A, 0, NULL};
    int lines;
    config.name = "1234567890\n1234567890123456789\xc3\xa4\xc3\xa4"; /* cut inside of a letter? */
    arena = kit_create(&config);
    lines = lines_of(reports(gpupool_report));
    CHECK(strstr(text, "\"1234567890\\x0a"));
    for (unsigned i = 0; i < KIT_COUNT(labels); i++) {
        void *block;
        check_case("label %u", i);
        request.label = labels[i];
        block = gpupool_alloc_request(arena, &request);
        CHECK(block);
        CHECK_EQ(lines_of(reports(gpupool_report)), lines + 1);
        CHECK_EQ(lines_of(reports(gpupool_write_json)), 1);
        CHECK(!gpupool_alloc(arena, 9 * MIB, A));
        CHECK(!strpbrk(gpupool_last_error(), "\n\t\x7f"));
        kit_free(arena, block, A);
    }
    kit_close(arena);
}

/* ---- GPUPOOL_REPORT ---- */

static char path[64];

static int reports_in_file(const char *event) {
    static char line[1 << 16];
    FILE *file = fopen(path, "r");
    int count = 0;
    while (file && fgets(line, sizeof line, file)) count += strstr(line, event) != NULL;
    if (file) fclose(file);
    return count;
}

static void set_report(const char *ending) {
    FILE *file;
    snprintf(path, sizeof path, "/tmp/gpupool_report_%d%s", (int)getpid(), ending);
    file = fopen(path, "w"); /* what was there stays */
    CHECK(file && fputs("before\n", file) >= 0);
    if (file) fclose(file);
    setenv("GPUPOOL_REPORT", path, 1);
}

static void end_report(void) {
    CHECK_EQ(reports_in_file("before"), 1);
    unsetenv("GPUPOOL_REPORT");
    remove(path);
}

static void appends(void) {
    static const char *const endings[] = {".txt", ".json"};
    for (int form = 0; form < 2; form++) {
        set_report(endings[form]);
        arena = kit_open(8 * MIB);
        for (int i = 0; i < 9; i++)
            KIT_FAILS(gpupool_alloc(arena, 9 * MIB, A), GPUPOOL_E_OUT_OF_MEMORY, "does not fit");
        CHECK_EQ(reports_in_file("out of memory"), 4); /* the 1st, 2nd, 4th and 8th */
        CHECK_EQ(reports_in_file("9.00 MiB does not fit under the limit of 8.00 MiB"), 4);
        kit_close(arena);
        CHECK_EQ(reports_in_file(form ? "\"event\":\"destroy\"" : "mapped: destroy"), 1);
        CHECK_EQ(reports_in_file("\"gpupool\":3"), form ? 5 : 0);
        end_report();
    }
}

/* A full disk, and a file that cannot be made: an error, and all else goes on. */
static void cannot_be_written(void) {
    FILE *full = fopen("/dev/full", "w"), *said = tmpfile();
    int before = dup(STDERR_FILENO);
    char line[200] = "";
    arena = kit_open(0);
    if (full) {
        KIT_REFUSES(gpupool_report(arena, full), GPUPOOL_E_FILE, "file");
        fclose(full);
    }
    setenv("GPUPOOL_REPORT", "/no/such/folder/report", 1);
    fflush(stderr);
    dup2(fileno(said), STDERR_FILENO);
    kit_close(arena);
    fflush(stderr);
    dup2(before, STDERR_FILENO);
    close(before);
    unsetenv("GPUPOOL_REPORT");
    rewind(said);
    CHECK(fgets(line, sizeof line, said) && strstr(line, "cannot write /no/such/folder/report"));
    fclose(said);
}

/* In a process of its own: leaves an arena to the exit, also to a forked child's, which reports
   nothing. */
static int child(void) {
    gpupool_arena *left = NULL;
    pid_t forked;
    if (gpupool_arena_create(&left, NULL) != GPUPOOL_OK || !gpupool_alloc(left, MIB, 0)) return 1;
    forked = fork();
    if (forked == 0) exit(0);
    return waitpid(forked, NULL, 0) != forked;
}

static void at_exit(void) {
    int status = -1;
    pid_t started;
    set_report(".json");
    fflush(stdout);
    started = fork();
    if (started == 0) {
        setenv("ASAN_OPTIONS", "detect_leaks=0", 1);
        execl("/proc/self/exe", "test_report", "child", (char *)NULL);
        _exit(1);
    }
    CHECK_EQ(waitpid(started, &status, 0), started);
    CHECK_EQ(status, 0);
    CHECK_EQ(reports_in_file("\"event\":\"exit\""), 1);
    CHECK_EQ(reports_in_file("\"blocks\":1,"), 1);
    end_report();
}

#if CHECK_FAKE
#include "scene.h"

static void walks_whatever_there_is(void) {
    scene s;
    for (int round = 0; round < 120; round++) {
        check_case("round %d", round);
        scene_seed = (uint64_t)round + 1;
        scene_open(&s, (gpupool_source)(GPUPOOL_SOURCE_MAPPED + round % 6));
        arena = s.arena;
        is_mapped = s.source == GPUPOOL_SOURCE_MAPPED;
        for (int step = 0; step < 60; step++) {
            scene_step(&s);
            agrees();
        }
        reports(gpupool_report);
        reports(gpupool_write_json);
        CHECK_EQ(lines_of(text), 1);
        scene_close(&s);
    }
}
#endif

int main(int count, char **words) {
    (void)words;
    if (count > 1) return child();
    KIT_TEST(walks);
    KIT_TEST(walks_what_is_kept_and_asleep);
    KIT_TEST(says_what_there_is);
    KIT_TEST(says_where);
    KIT_TEST(keeps_to_lines);
    KIT_TEST(appends);
    KIT_TEST(cannot_be_written);
    KIT_TEST(at_exit);
#if CHECK_FAKE
    KIT_TEST(walks_whatever_there_is);
#endif
    free(text);
    return check_finish();
}
