/* The environment's GPUPOOL_REPORT: reports that no line of code asks for. Each scene is a process
   of its own, which this one, that uses no CUDA, starts, and whose files it reads. */
// left at exit: arenas of which a report is written then
// build: plain
// build: asan -fsanitize=address,undefined
// build: tsan -fsanitize=thread
// build: single -DGPUPOOL_SINGLE_THREAD=1
#define _DEFAULT_SOURCE /* mkdtemp, setenv, symlink */
#include "gpupool.h"
#include "environ_kit.h"

#include <errno.h>
#include <pthread.h>

static char other[MOST];

/* ---- text ---- */

static void one_life(void) {
    gpupool_arena *arena = opened("first"), *stays = opened("stays");
    void *block = gpupool_alloc(arena, 5 * MIB, 0);
    CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_E_IN_USE); /* which is no end */
    CHECK_RESULT(gpupool_free(arena, block, 0), GPUPOOL_OK);
    fail(arena);
    CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_OK);
#if CHECK_FAKE
    fake_fail_call("cuMemCreate", 1, 0, 999); /* which is no lack of memory */
    CHECK(gpupool_alloc(stays, 7 * MIB, 0) == NULL);
    CHECK_RESULT(gpupool_last_result(), GPUPOOL_E_CUDA);
    fake_fail_clear();
#endif
    CHECK(gpupool_alloc(stays, 7 * MIB, 0) != NULL);
    CHECK(gpupool_get_default_arena(0) != NULL);
}

static void check_one_life(const char *name) {
    const char *at = read_into(text, name);
    static const char *const order[] = {
        "---- out of memory: arena \"first\": ", "gpupool arena \"first\": device 0",
        "failures 1\n",
        "---- when the arena was destroyed\n", "gpupool arena \"first\": device 0", "5.00 MiB",
        "---- at exit\n", "gpupool arena \"stays\": device 0", "7.00 MiB",
        "---- at exit\n", "gpupool arena \"default\": device 0"};
    for (size_t i = 0; at && i < KIT_COUNT(order); i++) {
        check_case("%s", order[i]);
        at = strstr(at, order[i]);
        CHECK(at != NULL);
    }
    CHECK_EQ(times(text, "gpupool arena "), 4);
    CHECK_EQ(times(text, "---- "), 4);
    CHECK_EQ(strncmp(text, "---- ", 5), 0);
    CHECK_EQ(times(text, "\n\n---- "), 3); /* an empty line between each two of them */
}

static void text_is_appended(void) {
    run("report.txt", one_life);
    check_one_life("report.txt");
    CHECK_EQ(strlen(read_into(text, "said")), 0);
    run("report.txt", one_life); /* another process: from the beginning */
    check_one_life("report.txt");
}

static void to_stderr(void) {
    run("stderr", one_life);
    check_one_life("said");
    CHECK(access("stderr", F_OK) != 0);
}

static void only_where_it_is_set(void) {
    run(NULL, one_life);
    CHECK_EQ(strlen(read_into(text, "said")), 0);
    run("", one_life);
    CHECK_EQ(strlen(read_into(text, "said")), 0);
}

static void set_too_late(void) { /* for the first arena */
    gpupool_arena *early = opened("early"), *late;
    setenv("GPUPOOL_REPORT", "late.txt", 1);
    fail(early);
    late = opened("late");
    fail(early);
    CHECK_RESULT(gpupool_arena_destroy(early), GPUPOOL_OK);
    setenv("GPUPOOL_REPORT", "elsewhere.txt", 1); /* the first value holds */
    CHECK_RESULT(gpupool_arena_destroy(late), GPUPOOL_OK);
}

static void what_was_made_before_is_left_out(void) {
    run(NULL, set_too_late);
    CHECK_EQ(times(read_into(text, "late.txt"), "gpupool arena \"late\""), 1);
    CHECK_EQ(times(text, "gpupool arena "), 1);
    CHECK(access("elsewhere.txt", F_OK) != 0);
}

/* ---- JSON and SVG: the latest report, a file for each arena ---- */

static void two_arenas(void) {
    gpupool_arena *one = opened("one"), *two = opened("two");
    FILE *file = fopen("own.json", "w");
    CHECK(gpupool_alloc(one, 3 * MIB, 0) != NULL);
    fail(one);
    fail(two);
    CHECK(gpupool_alloc(one, 4 * MIB, 0) != NULL);
    CHECK_RESULT(gpupool_arena_destroy(two), GPUPOOL_OK);
    CHECK_RESULT(gpupool_write_json(one, file), GPUPOOL_OK);
    fclose(file);
}

static void the_latest_of_each(void) {
    const char *own, *json;
    run("r.e/report.json", two_arenas);
    /* but for what the device has, at exit all is as the program saw it */
    own = strstr(read_into(other, "own.json"), "\"counters\"");
    json = strstr(read_into(text, "r.e/report.json"), "\"counters\"");
    if (CHECK(own && json)) CHECK(!strcmp(own, json));
    CHECK(!strncmp(text, "{\"gpupool\":1,\"name\":\"one\",", 26));
    CHECK(strstr(text, "\"device_free_bytes\":null") != NULL);
    read_into(text, "r.e/report-2.json");
    CHECK(!strncmp(text, "{\"gpupool\":1,\"name\":\"two\",", 26));
    CHECK(strstr(text, "\"failures\":1") != NULL && !strcmp(text + strlen(text) - 3, "]}\n"));
    CHECK(access("r.e/report-3.json", F_OK) != 0);

    run("r.e/report.svg", two_arenas);
    read_into(text, "r.e/report.svg");
    CHECK(!strncmp(text, "<svg ", 5) && !strcmp(text + strlen(text) - 7, "</svg>\n"));
    CHECK_EQ(times(text, "arena \"one\""), 1);
    CHECK_EQ(times(read_into(text, "r.e/report-2.svg"), "arena \"two\""), 1);
    CHECK_EQ(strlen(read_into(text, "said")), 0);
}

static void endings_alone(void) { /* are names of files like any other */
    run(".json", one_life);
    check_one_life(".json");
}

/* ---- files that cannot be written ---- */

static gpupool_verdict why;

/* Everything is as it would be without a report. */
static void fails_as_ever(void) {
    static char said[600];
    gpupool_arena *arena;
    gpupool_tag_config budget;
    gpupool_request request;
    const char *report = getenv("GPUPOOL_REPORT");
    int tag = 0;
    unsetenv("GPUPOOL_REPORT");
    gpupool_arena *silent = opened("named");
    fail(silent);
    snprintf(said, sizeof said, "%s", gpupool_last_error());
    gpupool_last_verdict(&why);
    CHECK_RESULT(gpupool_arena_destroy(silent), GPUPOOL_OK);
    setenv("GPUPOOL_REPORT", report, 1);

    arena = opened("named");
    for (int i = 0; i < 3; i++) {
        gpupool_verdict verdict;
        errno = EDOM;
        fail(arena);
        CHECK_EQ(errno, EDOM);
        CHECK(!strcmp(gpupool_last_error(), said));
        CHECK_RESULT(gpupool_last_verdict(&verdict), GPUPOOL_OK);
        CHECK_EQ(verdict.cause, why.cause);
        CHECK_EQ(verdict.asked_bytes, 100 * MIB);
        CHECK(!strcmp(verdict.sentence, why.sentence));
    }
    memset(&budget, 0, sizeof budget);
    budget.limit_bytes = MIB;
    CHECK_RESULT(gpupool_tag(arena, "small", &budget, &tag), GPUPOOL_OK);
    memset(&request, 0, sizeof request);
    request.bytes = 2 * MIB;
    request.tag = tag;
    CHECK(gpupool_alloc_request(arena, &request) == NULL);
    CHECK_RESULT(gpupool_last_result(), GPUPOOL_E_OUT_OF_MEMORY);
    CHECK_RESULT(gpupool_last_verdict(&why), GPUPOOL_OK);
    CHECK_EQ(why.cause, GPUPOOL_CAUSE_TAG);
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    CHECK(gpupool_free(arena, NULL, 0) == GPUPOOL_OK);
    errno = EDOM;
    CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_OK);
    CHECK_EQ(errno, EDOM);
    CHECK_RESULT(gpupool_last_result(), GPUPOOL_OK);
}

static void the_verdict_stays(void) {
    run("kept.txt", fails_as_ever);
    read_into(text, "kept.txt");
    CHECK_EQ(times(text, "---- out of memory: arena \"named\": "), 4);
    CHECK_EQ(times(text, "budget of tag \"small\""), 1);
    CHECK_EQ(times(text, "when the arena was destroyed"), 1);
    CHECK_EQ(strlen(read_into(text, "said")), 0);
}

static void said_once(const char *file, const char *reason) {
    check_case("%s", file);
    run(file, fails_as_ever);
    read_into(text, "said");
    CHECK_EQ(times(text, "gpupool: GPUPOOL_REPORT: "), 1);
    CHECK_EQ(times(text, "\n"), 1);
    CHECK_EQ(times(text, file), 1);
    CHECK_EQ(times(text, reason), 1);
}

static void files_that_cannot_be_written(void) {
    static const char *const names[] = {"no/such/report", "no/such/report.json", "no/such/r.svg"};
    for (size_t i = 0; i < KIT_COUNT(names); i++) said_once(names[i], strerror(ENOENT));
    said_once("r.e", strerror(EISDIR));
    if (access("/dev/full", W_OK) != 0) {
        check_skip("a full disk", "there is no /dev/full");
        return;
    }
    said_once("/dev/full", strerror(ENOSPC));
    CHECK_EQ(symlink("/dev/full", "full.json"), 0);
    CHECK_EQ(symlink("/dev/full", "full.svg"), 0);
    said_once("full.json", strerror(ENOSPC));
    said_once("full.svg", strerror(ENOSPC));
}

/* ---- threads, children, and ends in the middle ---- */

static gpupool_arena *shared;

#if !GPUPOOL_SINGLE_THREAD
#define THREADS 4
#define FAILURES 10

static void *fails_often(void *unused) {
    (void)unused;
    for (int i = 0; i < FAILURES; i++) fail(shared);
    return NULL;
}

static void threads_that_fail(void) {
    pthread_t thread[THREADS];
    shared = opened("shared");
    for (int i = 0; i < THREADS; i++) pthread_create(&thread[i], NULL, fails_often, NULL);
    for (int i = 0; i < THREADS; i++) pthread_join(thread[i], NULL);
}

static void one_after_the_other(void) {
    const char *at = read_into(text, "none");
    int reports = 0;
    run("many.txt", threads_that_fail);
    at = read_into(text, "many.txt");
    for (; (at = strstr(at, "---- ")) != NULL; reports++) { /* each is whole */
        const char *next = strstr(++at, "---- ");
        const char *map = strstr(at, "records "); /* the last line of an arena without memory */
        CHECK(map && (!next || map < next));
        CHECK(!next || next[-1] == '\n');
    }
    CHECK_EQ(reports, THREADS * FAILURES + 1);
    run("many.json", threads_that_fail);
    read_into(text, "many.json");
    CHECK(!strncmp(text, "{\"gpupool\":1,", 13) && !strcmp(text + strlen(text) - 4, "[]}\n"));
}
#endif

static void has_a_child(void) {
    int status = -1;
    shared = opened("parent");
    pid_t child = fork();
    if (child == 0) {
        CHECK(gpupool_alloc(shared, 100 * MIB, 0) == NULL);
        CHECK_RESULT(gpupool_last_result(), GPUPOOL_E_FORKED);
        CHECK_RESULT(gpupool_arena_destroy(shared), GPUPOOL_E_FORKED);
        exit(atomic_load(&check_bad) ? EXIT_FAILURE : EXIT_SUCCESS);
    }
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
    CHECK(access("child.txt", F_OK) != 0);
}

static void a_child_writes_none(void) {
    run("child.txt", has_a_child);
    CHECK_EQ(times(read_into(text, "child.txt"), "gpupool arena \"parent\""), 1);
    CHECK_EQ(times(text, "---- at exit"), 1);
}

static int leave(const gpupool_verdict *verdict, void *user) {
    (void)verdict, (void)user;
    exit(EXIT_SUCCESS);
}

static void leaves_when_memory_is_out(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_AUTO);
    config.limit_bytes = 64 * MIB;
    config.on_out_of_memory = leave;
    fail(kit_create(&config));
}

static void *leave_from_inside(size_t bytes, int device, void *user) {
    (void)bytes, (void)device, (void)user;
    exit(EXIT_SUCCESS);
}

static void leaves_while_it_grows(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_CUSTOM);
    config.name = "busy";
    config.chunk_alloc = leave_from_inside;
    config.chunk_free = kit_chunk_free;
    fail(kit_create(&config));
}

static void ends_in_the_middle(void) {
    run("middle.txt", leaves_when_memory_is_out);
    CHECK_EQ(times(read_into(text, "middle.txt"), "---- at exit"), 1);
    run("inside.txt", leaves_while_it_grows);
    CHECK(access("inside.txt", F_OK) != 0);
    CHECK_EQ(times(read_into(text, "said"), "arena \"busy\" is at work at exit"), 1);
}

int main(void) {
    environ_begin();
    if (system("mkdir r.e") != 0) return 2;
    TEST(text_is_appended);
    TEST(to_stderr);
    TEST(only_where_it_is_set);
    TEST(what_was_made_before_is_left_out);
    TEST(the_latest_of_each);
    TEST(endings_alone);
    TEST(the_verdict_stays);
    TEST(files_that_cannot_be_written);
#if !GPUPOOL_SINGLE_THREAD
    TEST(one_after_the_other);
#endif
#if CHECK_FAKE /* a real CUDA's own part at the end of a child is not for a test to find out */
    TEST(a_child_writes_none);
#endif
    TEST(ends_in_the_middle);
    return environ_finish();
}
