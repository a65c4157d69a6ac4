/* check.h: checks, a tally and random numbers for the test programs. Include it after gpupool.h.
   A test is a function; it passes when none of its checks fails. Any thread may check. */
#ifndef CHECK_H
#define CHECK_H

#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#ifndef GPUPOOL_TEST_GPU
#define GPUPOOL_TEST_GPU 0
#endif
#define CHECK_FAKE (!GPUPOOL_TEST_GPU) /* the controls of fakecuda.h are there */
#if CHECK_FAKE
#include "fakecuda/fakecuda.h"
#endif

#ifndef CHECK_STOP
#define CHECK_STOP 0 /* 1: the first failed check ends the program */
#endif
#define CHECK_SHOWN 20 /* failures printed for one test: a broken loop must not bury the first */
#define CHECK_CODES ((int)GPUPOOL_E_CUDA + 1)
/* A sweep lets each call fail in turn. Builds that are slow (sanitizers, every invariant checked)
   set EVERY in their build line: they try every fifth call, say; a quick build tries each. */
#ifndef EVERY
#define EVERY 1
#endif

static atomic_long check_bad;               /* failed checks of the test that is running */
static atomic_long check_seen[CHECK_CODES]; /* how often CHECK_RESULT met each result */
static int check_passed, check_failed, check_skipped;
static _Thread_local char check_context[200]; /* what a loop is at, printed with a failure */

/* Names the case that a loop is at, seed included, for the failures that follow in this thread. */
__attribute__((format(printf, 1, 2))) static inline void check_case(const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(check_context, sizeof check_context, format, args);
    va_end(args);
}

__attribute__((format(printf, 3, 4))) static inline int check_fail(const char *file, int line,
                                                                   const char *format, ...) {
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (atomic_fetch_add(&check_bad, 1) < CHECK_SHOWN)
        printf("%s:%d: %s%s%s\n", file, line, text, check_context[0] ? ", in case " : "",
               check_context);
    fflush(stdout); /* the next call may be the one that aborts */
    if (CHECK_STOP) _Exit(EXIT_FAILURE);
    return 0;
}

static inline int check_equal(long long a, long long b, const char *text_a, const char *text_b,
                              const char *file, int line) {
    if (a == b) return 1;
    return check_fail(file, line, "%s is %lld, %s is %lld", text_a, a, text_b, b);
}

static inline int check_result(gpupool_result got, gpupool_result expected, const char *call,
                               const char *file, int line) {
    if ((int)got >= 0 && (int)got < CHECK_CODES) atomic_fetch_add(&check_seen[got], 1);
    if (got == expected) return 1;
    return check_fail(file, line, "%s is %s, not %s (%s)", call, gpupool_result_name(got),
                      gpupool_result_name(expected), got ? gpupool_last_error() : "no error");
}

/* All three are 1 when they hold, so that a test can stop where going on makes no sense. */
#define CHECK(condition) \
    ((condition) ? 1 : check_fail(__FILE__, __LINE__, "%s does not hold", #condition))
#define CHECK_EQ(a, b) \
    check_equal((long long)(a), (long long)(b), #a, #b, __FILE__, __LINE__)
#define CHECK_RESULT(call, expected) check_result((call), (expected), #call, __FILE__, __LINE__)

static inline double check_now(void) {
    struct timespec now;
    timespec_get(&now, TIME_UTC);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* CHECK_ONLY=NAME in the environment: that test alone is run. */
static inline int check_is_wanted(const char *name) {
    const char *only = getenv("CHECK_ONLY");
    return !only || strcmp(name, only) == 0;
}

/* Runs one test; prepare and settle (or NULL) stand around it, and settle may check too. Says which
   tests take longer than a second. */
static inline void check_run(const char *name, void (*body)(void), void (*prepare)(void),
                             void (*settle)(void)) {
    double start = check_now();
    if (!check_is_wanted(name)) return;
    atomic_store(&check_bad, 0);
    check_context[0] = 0;
    if (prepare) prepare();
    body();
    check_context[0] = 0;
    if (settle) settle();
    long bad = atomic_load(&check_bad);
    if (bad) printf("FAILED %s: %ld failed checks\n", name, bad);
    if (bad) check_failed++;
    else check_passed++;
    if (check_now() - start > 1) printf("%s took %.1f s\n", name, check_now() - start);
    fflush(stdout);
}

#define TEST(body) check_run(#body, body, NULL, NULL)

static inline void check_skip(const char *name, const char *why) {
    printf("skipped %s: %s\n", name, why);
    check_skipped++;
}

/* The last line of the program, and its exit status. */
static inline int check_finish(void) {
    printf("%d passed, %d failed", check_passed, check_failed);
    if (check_skipped) printf(", %d skipped", check_skipped);
    printf("\n");
    return check_failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

/* splitmix64: every seed gives a full-length sequence, the same on every machine. */
static inline uint64_t check_random(uint64_t *state) {
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static inline uint64_t check_below(uint64_t *state, uint64_t bound) {
    return check_random(state) % bound;
}

#endif
