/* The way in and out of every call: one lock, faults, counters, prices, what went wrong. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "fk.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define FK_CALL(name, traits, price) #name,
const char *const fk_call_names[] = {
#include "fk_calls.h"
};
#undef FK_CALL
#define FK_CALL(name, traits, price) traits,
static const int fk_call_traits[] = {
#include "fk_calls.h"
};
#undef FK_CALL
#define FK_CALL(name, traits, price) price,
static const uint64_t fk_prices[] = {
#include "fk_calls.h"
};
#undef FK_CALL

static struct {
    long     calls[FK_CALL_COUNT];
    uint64_t driver_ns, inside_ns;
    long     failures, misuses;
    char     first[512], newest[512], misuse[512];
    int      quiet;
    struct { int call; long n; void (*run)(void *); void *user; } before;
} fk;

static pthread_mutex_t       fk_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t        fk_change = PTHREAD_COND_INITIALIZER;
static atomic_int            fk_forked;
static _Thread_local fk_thread fk_this_thread;

fk_thread *fk_me(void) { return &fk_this_thread; }

void fk_after_fork_in_child(void) { atomic_store(&fk_forked, 1); }

void fk_lock(void) {
    static int is_told;
    pthread_mutex_lock(&fk_mutex);
    fk_memory_start();
    if (!is_told++) fk_read_environment();
}

void fk_unlock(void) { pthread_mutex_unlock(&fk_mutex); }
void fk_wait_change(void) { pthread_cond_wait(&fk_change, &fk_mutex); }
void fk_changed(void) { pthread_cond_broadcast(&fk_change); }

static void fk_no_memory(void) {
    fputs("fakecuda: the host is out of memory\n", stderr);
    abort();
}

void *fk_new(size_t count, size_t bytes) {
    void *p = calloc(count ? count : 1, bytes);
    if (!p) fk_no_memory();
    return p;
}

void *fk_grow(void *old, size_t count, size_t bytes) {
    void *p = realloc(old, (count ? count : 1) * bytes);
    if (!p) fk_no_memory();
    return p;
}

/* A memmove by way of other memory: clang's address sanitizer does a memmove byte by byte.
   Volatile, or clang makes a memmove of it. */
void fk_shift(void *to, const void *from, size_t bytes) {
    static void *volatile between;
    static size_t room;
    if (bytes > room) between = fk_grow(between, room = 2 * bytes, 1);
    if (bytes == 0) return;
    memcpy(between, from, bytes);
    memcpy(to, between, bytes);
}

static uint64_t fk_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* The current call takes at least so long, as on a GPU. */
void fk_take_time(uint64_t ns) {
    while (fk_now() - fk_me()->entered < ns) {}
}

/* ---- calls by name ---- */

static int fk_find_call(const char *name) {
    int i;
    for (i = 0; i < FK_CALL_COUNT; i++)
        if (!strcmp(name, fk_call_names[i])) return i;
    return -1;
}

int fk_named_call(const char *name) {
    int call = fk_find_call(name);
    if (call < 0) fk_fail("a fault or count for %s, which is not a call of fakecuda", name);
    return call;
}

/* ---- what comes in between ---- */

void fake_before_call(const char *name, long n, void (*run)(void *), void *user) {
    fk_lock();
    fk.before.call = fk_named_call(name);
    fk.before.n = n;
    fk.before.run = run;
    fk.before.user = user;
    fk_unlock();
}

/* Once, and with the lock open, so that it may call CUDA too. */
static void fk_run_before(fk_call call) {
    void (*run)(void *) = NULL;
    void *user = fk.before.user;
    if (fk.before.run && fk.before.call == (int)call && --fk.before.n == 0) {
        run = fk.before.run;
        fk.before.run = NULL;
    }
    if (!run) return;
    fk_unlock();
    run(user);
    fk_lock();
}

/* ---- in and out ---- */

int fk_begin(fk_call call) {
    uint64_t now = fk_now();
    int traits = fk_call_traits[call];
    int error;
    if (atomic_load(&fk_forked)) return (int)cudaErrorInitializationError;
    fk_lock();
    fk_run_before(call);
    fk_this_thread.entered = now;
    fk_this_thread.of_driver = traits & FK_DRIVER;
    fk.calls[call]++;
    fk.driver_ns += fk_prices[call];
    if (fk_this_thread.in_host_function)
        fk_misuse("%s called from a host function", fk_call_names[call]);
    if (traits & FK_EXEMPT) return 0;
    if (fk_this_thread.in_host_function) return (int)cudaErrorNotPermitted;
    if (!(traits & (FK_BARE | FK_DRIVER | FK_OWN))) fk_context_made(fk_me()->device);
    error = fk_fault_of(call, traits);
    if (!error && (traits & FK_STALLS)) fk_stall();
    if (!error && (traits & FK_HERE)) error = fk_no_context();
    if (!error && (traits & FK_UNSAFE)) error = (int)fk_forbidden();
    return error;
}

static void fk_leave(void) {
    if (atomic_load(&fk_forked)) return;
    fk.inside_ns += fk_now() - fk_this_thread.entered;
    fk_unlock();
}

cudaError_t fk_end(cudaError_t error) {
    if (error != cudaSuccess && error != cudaErrorNotReady) fk_this_thread.last = error;
    fk_leave();
    return error;
}

CUresult fk_end_driver(int error) {
    fk_leave();
    return (CUresult)error;
}

/* ---- counters ---- */

void fk_price(uint64_t ns) { fk.driver_ns += ns; }

void fk_price_by_size(const fk_point *points, int n, size_t bytes) {
    double x = (double)bytes, part;
    int i = 1;
    if (x <= points[0].bytes) {
        fk_price((uint64_t)points[0].ns);
        return;
    }
    while (i < n - 1 && x > points[i].bytes) i++;
    part = (x - points[i - 1].bytes) / (points[i].bytes - points[i - 1].bytes);
    fk_price((uint64_t)(points[i - 1].ns + part * (points[i].ns - points[i - 1].ns)));
}

long fake_calls(const char *name) {
    long total = 0;
    int i;
    fk_lock();
    if (name) {
        i = fk_named_call(name);
        total = i < 0 ? 0 : fk.calls[i];
    } else {
        for (i = 0; i < FK_CALL_COUNT; i++)
            if (!(fk_call_traits[i] & FK_OWN)) total += fk.calls[i];
    }
    fk_unlock();
    return total;
}

void fake_each_call(void (*see)(void *user, const char *name, long calls), void *user) {
    int i;
    fk_lock();
    for (i = 0; i < FK_CALL_COUNT; i++)
        if (!(fk_call_traits[i] & FK_OWN)) see(user, fk_call_names[i], fk.calls[i]);
    fk_unlock();
}

static uint64_t fk_read(const uint64_t *value) {
    uint64_t copy;
    fk_lock();
    copy = *value;
    fk_unlock();
    return copy;
}

uint64_t fake_driver_ns(void) { return fk_read(&fk.driver_ns); }
uint64_t fake_inside_ns(void) { return fk_read(&fk.inside_ns); }

void fake_reset_counters(void) {
    fk_lock();
    memset(fk.calls, 0, sizeof fk.calls);
    fk.driver_ns = fk.inside_ns = 0;
    fk_unlock();
}

/* ---- failures ---- */

void fk_fail(const char *format, ...) {
    va_list list;
    va_start(list, format);
    vsnprintf(fk.newest, sizeof fk.newest, format, list);
    va_end(list);
    if (!fk.failures++) memcpy(fk.first, fk.newest, sizeof fk.first);
    if (!fk.quiet) fprintf(stderr, "fakecuda: failure: %s\n", fk.newest);
}

void fk_misuse(const char *format, ...) {
    va_list list;
    va_start(list, format);
    vsnprintf(fk.misuse, sizeof fk.misuse, format, list);
    va_end(list);
    fk.misuses++;
    if (!fk.quiet) fprintf(stderr, "fakecuda: misuse: %s\n", fk.misuse);
}

static long fk_read_long(const long *value) {
    long copy;
    fk_lock();
    copy = *value;
    fk_unlock();
    return copy;
}

long fake_failures(void) { return fk_read_long(&fk.failures); }
long fake_misuses(void) { return fk_read_long(&fk.misuses); }
const char *fake_failure_text(void) { return fk.first; }
const char *fake_misuse_text(void) { return fk.misuse; }

static void fk_forget_failures(void) {
    fk.failures = fk.misuses = 0;
    fk.first[0] = fk.newest[0] = fk.misuse[0] = 0;
}

void fake_clear_failures(void) {
    fk_lock();
    fk_forget_failures();
    fk_unlock();
}

int fk_is_quiet(void) { return fk.quiet; }

void fake_quiet(int on) {
    fk_lock();
    fk.quiet = on;
    fk_unlock();
}

/* ---- names that outlive the work they belong to ---- */

static struct {
    char **text;
    size_t n, room;            /* room: a power of two; n stays below half of it */
} fk_names;

static size_t fk_name_place(const char *text) {
    size_t hash = 5381, i;
    for (i = 0; text[i]; i++) hash = hash * 33 + (unsigned char)text[i];
    i = hash & (fk_names.room - 1);
    while (fk_names.text[i] && strcmp(fk_names.text[i], text)) i = (i + 1) & (fk_names.room - 1);
    return i;
}

static void fk_more_names(void) {
    char **old = fk_names.text;
    size_t i, n = fk_names.room;
    fk_names.room = n ? 2 * n : 64;
    fk_names.text = fk_new(fk_names.room, sizeof *fk_names.text);
    for (i = 0; i < n; i++)
        if (old[i]) fk_names.text[fk_name_place(old[i])] = old[i];
    free(old);
}

const char *fk_intern(const char *text) {
    size_t i;
    if (2 * (fk_names.n + 1) > fk_names.room) fk_more_names();
    i = fk_name_place(text);
    if (!fk_names.text[i]) {
        size_t bytes = strlen(text) + 1;
        fk_names.text[i] = fk_new(bytes, 1);
        memcpy(fk_names.text[i], text, bytes);
        fk_names.n++;
    }
    return fk_names.text[i];
}

/* Failures stay: a test asks for them after its last fake_reset. */
void fk_core_defaults(void) {
    size_t i;
    for (i = 0; i < fk_names.room; i++) free(fk_names.text[i]);
    free(fk_names.text);
    memset(&fk_names, 0, sizeof fk_names);
    fk_faults_clear();
    memset(fk.calls, 0, sizeof fk.calls);
    fk.driver_ns = fk.inside_ns = 0;
    fk.quiet = 0;
    memset(&fk.before, 0, sizeof fk.before);
}
