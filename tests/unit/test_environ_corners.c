/* The environment's GPUPOOL_REPORT where the system fails in odd ways: a file that closes badly, no
   host memory, two threads at the first arena; and what comes at exit: a thread that writes, arenas
   in another order, a closed default arena, arenas that end later. */
// left at exit: arenas of which a report is written then
// build: plain
// build: asan -fsanitize=address
#define _DEFAULT_SOURCE /* mkdtemp, setenv */
#include "fail_malloc.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>

static FILE *open_oddly(const char *name, const char *mode);
static int yield_oddly(void);
static int flush_oddly(FILE *file);
static int close_oddly(FILE *file);
static void *malloc_oddly(size_t bytes);
#undef GPUPOOL_MALLOC
#define GPUPOOL_MALLOC(bytes) malloc_oddly(bytes)
#define fopen open_oddly
#define sched_yield yield_oddly
#define fflush flush_oddly
#define fclose close_oddly
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#undef fopen
#undef sched_yield
#undef fflush
#undef fclose
#include "environ_kit.h"

/* ---- what the system does ---- */

static int open_fails, close_fails, close_errno, flush_lies; /* close_errno 0: it is left alone */
static atomic_int in_flush, may_flush;        /* 1: a report waits there; it may go on */
static void (*at_malloc)(void);
static char *name_room; /* what the first arena got for the file's name, and a byte behind it */
static gpi_mutex *_Atomic until_a_yield; /* held until the next one */
static atomic_int flush_ends_in_a_yield;

static FILE *open_oddly(const char *name, const char *mode) {
    return open_fails ? NULL : fopen(name, mode);
}

static int yield_oddly(void) {
    gpi_mutex *held = atomic_exchange(&until_a_yield, NULL);
    if (held) gpi_host_mutex_unlock(held);
    if (atomic_load(&flush_ends_in_a_yield)) atomic_store(&may_flush, 1);
    return sched_yield();
}

static int flush_oddly(FILE *file) {
    int result = fflush(file);
    if (result == 0) errno = ENOENT; /* as any call may leave it */
    if (atomic_exchange(&in_flush, 0) == 1)
        for (atomic_store(&in_flush, 2); !atomic_load(&may_flush);) usleep(1000);
    return flush_lies ? 0 : result;
}

static int close_oddly(FILE *file) {
    int result = fclose(file);
    if (close_fails && close_errno) errno = close_errno;
    return close_fails ? EOF : result;
}

static void *malloc_oddly(size_t bytes) {
    void (*act)(void) = bytes == sizeof "report.txt" ? at_malloc : NULL; /* for the file's name */
    if (act) at_malloc = NULL;
    if (act) act();
    if (bytes != sizeof "report.txt" || name_room) return fail_malloc(bytes);
    name_room = (char *)fail_malloc(bytes + 1);
    if (name_room) name_room[bytes] = '#';
    return name_room;
}

#if CHECK_FAKE

/* ---- files ---- */

static void one_failure(void) {
    gpupool_arena *arena = opened("first");
    errno = ENOENT; /* as an earlier call may have left it */
    fail(arena);
}

/* The reason is none that an earlier call has left. */
static void a_file_that_opens_badly(void) {
    open_fails = 1;
    run("report.txt", one_failure);
    open_fails = 0;
    CHECK_EQ(times(read_into(text, "said"), "report.txt cannot be written: the system does not "
                                            "say why\n"), 1);
    CHECK_EQ(strlen(strchr(text, '\n')), 1);
}

static void said(const char *reason, int count) {
    run("report.txt", one_failure);
    CHECK_EQ(times(read_into(text, "said"), "report.txt cannot be written: "), count);
    CHECK_EQ(times(text, reason), count);
    CHECK_EQ(times(read_into(text, "report.txt"), "---- "), 2); /* all the same */
    CHECK_EQ(times(text, "not counted"), 1); /* what the device has, which exit does not ask */
}

/* A network's file system tells when the file is closed, or that it failed and not why. */
static void files_that_close_badly(void) {
    close_fails = 1;
    close_errno = ENOSPC;
    said(strerror(ENOSPC), 1);
    close_errno = 0;
    said("the system does not say why", 1);
    close_fails = 0;
    said("report.txt", 0);
}

/* What could not be written is told, though the flush has nothing left to do: once. */
static void writes_that_fail_before_the_flush(void) {
    if (access("/dev/full", W_OK) != 0) return;
    flush_lies = 1;
    for (close_fails = 0; close_fails < 2; close_fails++) {
        run("/dev/full", one_failure);
        CHECK_EQ(times(read_into(text, "said"), "/dev/full cannot be written: "), 1);
    }
    flush_lies = close_fails = 0;
}

/* ---- the first arena ---- */

static void opens_and_looks_behind_the_name(void) {
    opened("first");
    if (CHECK(name_room != NULL)) CHECK_EQ(name_room[sizeof "report.txt"], '#');
}

static void nothing_is_written_behind_the_name(void) {
    run("report.txt", opens_and_looks_behind_the_name);
}

static void whichever_request_fails(void) {
    for (long n = 1, fired = 1; fired; n++) {
        gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_DEVICE);
        gpupool_arena *arena = NULL;
        fail_malloc_nth(n, 0);
        gpupool_result result = gpupool_arena_create(&arena, &config);
        fired = fail_malloc_fired;
        fail_malloc_nth(0, 0);
        CHECK(result == GPUPOOL_OK || (result == GPUPOOL_E_HOST_MEMORY && fired));
        /* made, but without memory for the file's name: it has no reports */
        if (arena) CHECK_EQ(arena->report_number, fired ? 0 : 1);
        if (arena) CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_OK);
    }
}

static void no_memory_at_first(void) {
    run("report.txt", whichever_request_fails);
    CHECK_EQ(times(read_into(text, "report.txt"), "---- when the arena was destroyed"), 1);
}

static void *open_too(void *unused) {
    opened("other");
    return unused;
}

static void open_elsewhere(void) {
    pthread_t thread;
    CHECK_EQ(pthread_create(&thread, NULL, open_too, NULL), 0);
    pthread_join(thread, NULL);
}

static void opens_beside_another(void) {
    at_malloc = open_elsewhere;
    gpupool_arena *arena = opened("this");
    CHECK(at_malloc == NULL);
    CHECK_EQ(arena->report_number, 2);
}

static void two_at_the_first_arena(void) {
    run("report.txt", opens_beside_another);
    CHECK_EQ(times(read_into(text, "report.txt"), "---- at exit"), 2);
}

/* What comes at exit comes once, though both have read the variable. */
static void opens_beside_another_and_stays_at_work(void) {
    at_malloc = open_elsewhere;
    gpi_host_mutex_lock(&opened("this")->growing);
}

static void one_end_of_two_beginnings(void) {
    run("report.txt", opens_beside_another_and_stays_at_work);
    CHECK_EQ(times(read_into(text, "report.txt"), "---- at exit"), 1);
    CHECK_EQ(times(read_into(text, "said"), "arena \"this\" is at work at exit"), 1);
}

/* ---- at exit ---- */

static gpupool_arena *late;

static void end_late(void) {
    CHECK_RESULT(gpupool_arena_destroy(late), GPUPOOL_OK);
    if (atomic_load(&check_bad)) _exit(1);
}

static void ends_after_the_reports(void) {
    atexit(end_late); /* runs after the reports at exit */
    late = opened("late");
    CHECK_RESULT(gpupool_arena_destroy(NULL), GPUPOOL_E_ARGUMENT);
}

static void one_report_at_the_end(void) {
    run("report.txt", ends_after_the_reports);
    CHECK_EQ(times(read_into(text, "report.txt"), "---- at exit"), 1);
    CHECK_EQ(times(text, "---- "), 1);
}

/* The first is put at the list's front again; the default arena is closed by a reset. */
static void leaves_a_list_in_disorder(void) {
    gpupool_arena *one = opened("one");
    opened("two");
    CHECK(gpupool_get_default_arena(0) != NULL);
    CHECK_RESULT(gpupool_free(one, kit_alloc(one, MIB, 0), 0), GPUPOOL_OK);
    fake_fail_call("cuMemUnmap", 1, 0, 0);
    CHECK_RESULT(gpupool_arena_destroy(one), GPUPOOL_E_CUDA);
    fake_fail_clear();
    CHECK_EQ(cudaDeviceReset(), cudaSuccess);
    fake_fail_call("cuInit", 1, 0, 0);
    CHECK(gpupool_get_default_arena(0) == NULL);
    fake_fail_clear();
}

static void in_the_order_of_their_numbers(void) {
    run("report.txt", leaves_a_list_in_disorder);
    const char *one = strstr(read_into(text, "report.txt"), "gpupool arena \"one\"");
    CHECK(one != NULL && strstr(one, "gpupool arena \"two\"") != NULL);
    CHECK_EQ(times(text, "---- at exit"), 2);
}

static void have_no_memory(void) { fail_malloc_nth(1, 1); }

static void leaves_without_memory(void) {
    opened("first");
    atexit(have_no_memory); /* before the reports */
}

static void no_memory_at_exit(void) {
    unlink("report.txt");
    run("report.txt", leaves_without_memory);
    CHECK(access("report.txt", F_OK) != 0);
    CHECK_EQ(strlen(read_into(text, "said")), 0);
}

/* Who has it lets go of it soon. */
static void leaves_while_another_grows(void) {
    atomic_store(&until_a_yield, &opened("grows")->growing);
    gpi_host_mutex_lock(until_a_yield);
}

static void a_growth_is_waited_for(void) {
    run("report.txt", leaves_while_another_grows);
    CHECK_EQ(times(read_into(text, "report.txt"), "---- at exit"), 1);
    CHECK_EQ(strlen(read_into(text, "said")), 0);
}

/* There is nothing to tell of an arena that a reset has closed. */
static void ends_what_is_closed(void) {
    gpupool_arena *arena = gpupool_get_default_arena(0);
    CHECK_EQ(cudaDeviceReset(), cudaSuccess);
    fake_fail_call("cuInit", 1, 0, 0);
    CHECK(gpupool_get_default_arena(0) == NULL);
    fake_fail_clear();
    CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_OK);
}

static void no_report_of_what_is_closed(void) {
    unlink("report.txt");
    run("report.txt", ends_what_is_closed);
    CHECK(access("report.txt", F_OK) != 0);
}

/* At the end of an arena neither the report, nor that there is none, is a failure of the call. */
static void end_with_memory_or_without(void) {
    for (int without = 1; without >= 0; without--) {
        gpupool_arena *arena = opened(without ? "without" : "with");
        fail(arena);
        fail_malloc_nth(without, 1);
        gpupool_result result = gpupool_arena_destroy(arena);
        fail_malloc_nth(0, 0);
        CHECK_RESULT(result, GPUPOOL_OK);
        CHECK_RESULT(gpupool_last_result(), GPUPOOL_OK);
        CHECK(strstr(gpupool_last_error(), without ? "\"without\"" : "\"with\"") != NULL);
    }
}

static void what_an_end_tells(void) {
    run("report.txt", end_with_memory_or_without);
    const char *end = strstr(read_into(text, "report.txt"), "---- when the arena was destroyed");
    CHECK_EQ(times(text, "---- when the arena was destroyed"), 1);
    CHECK(end != NULL && strstr(end, " of the device's ") != NULL); /* CUDA was asked before */
}

static pthread_t writer, waiter;

static void *fail_in(void *arena) {
    CHECK(gpupool_alloc((gpupool_arena *)arena, 100 * MIB, 0) == NULL);
    CHECK_RESULT(gpupool_last_result(), GPUPOOL_E_OUT_OF_MEMORY);
    return NULL;
}

static void let_the_writer_go_on(void) {
    atomic_store(&may_flush, 1);
    pthread_join(writer, NULL);
    pthread_join(waiter, NULL);
    if (atomic_load(&check_bad)) _exit(1);
}

static void leaves_while_another_writes(void) {
    atexit(let_the_writer_go_on); /* runs after the reports at exit */
    late = opened("late");
    atomic_store(&in_flush, 1);
    CHECK_EQ(pthread_create(&writer, NULL, fail_in, late), 0);
    while (atomic_load(&in_flush) != 2) usleep(1000);
    CHECK_EQ(pthread_create(&waiter, NULL, fail_in, late), 0);
    while (kit_stats(late).failures < 2) usleep(1000);
    usleep(20000); /* it is about to write now, but another thread does */
}

static void join_the_writer(void) {
    pthread_join(writer, NULL);
    if (atomic_load(&check_bad)) _exit(1);
}

static void leaves_while_another_is_about_to_end(void) {
    atexit(join_the_writer); /* runs after the reports at exit */
    late = opened("late");
    atomic_store(&in_flush, 1);
    CHECK_EQ(pthread_create(&writer, NULL, fail_in, late), 0);
    while (atomic_load(&in_flush) != 2) usleep(1000);
    atomic_store(&flush_ends_in_a_yield, 1); /* of the thread that exits, and waits */
}

static void a_writer_that_is_waited_for(void) {
    run("report.txt", leaves_while_another_is_about_to_end);
    CHECK_EQ(times(read_into(text, "report.txt"), "---- out of memory"), 1);
    CHECK_EQ(times(text, "---- at exit"), 1);
}

/* Exit waits for a second, and has no report then; nor has who waited beside it. */
static void a_writer_that_takes_too_long(void) {
    run("report.txt", leaves_while_another_writes);
    CHECK_EQ(times(read_into(text, "report.txt"), "---- out of memory"), 1);
    CHECK_EQ(times(text, "---- "), 1);
}
#endif

int main(void) {
    environ_begin();
#if CHECK_FAKE
    TEST(a_file_that_opens_badly);
    TEST(files_that_close_badly);
    TEST(writes_that_fail_before_the_flush);
    TEST(nothing_is_written_behind_the_name);
    TEST(no_memory_at_first);
    TEST(two_at_the_first_arena);
    TEST(one_end_of_two_beginnings);
    TEST(one_report_at_the_end);
    TEST(in_the_order_of_their_numbers);
    TEST(no_memory_at_exit);
    TEST(a_growth_is_waited_for);
    TEST(no_report_of_what_is_closed);
    TEST(what_an_end_tells);
    TEST(a_writer_that_is_waited_for);
    TEST(a_writer_that_takes_too_long);
#endif
    return environ_finish();
}
