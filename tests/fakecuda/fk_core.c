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

#define FK_CALL(name, kind, traits, price) {#name, FK_##kind | traits, price},
static const struct {
    const char *name;
    int         traits;
    uint64_t    price;
} fk_about[] = {
#include "fk_calls.h"
};
#undef FK_CALL

static struct {
    long     calls[FK_CALL_COUNT];
    uint64_t driver_ns, inside_ns;
    long     failures, misuses;
    char     first[512], misuse[512];
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
    pthread_mutex_lock(&fk_mutex);
    fk_memory_start();
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

const char *fk_call_name(void) { return fk_about[fk_me()->call].name; }

int fk_of_driver(void) { return fk_about[fk_me()->call].traits & FK_DRIVER; }

int fk_named_call(const char *name) {
    int call;
    for (call = 0; call < FK_CALL_COUNT; call++)
        if (!strcmp(name, fk_about[call].name)) return call;
    fk_fail("a fault or count for %s, which is not a call of fakecuda", name);
    return -1;
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

int fk_begin(fk_call call, int own_stream) {
    uint64_t now = fk_now();
    int traits = fk_about[call].traits;
    fk_thread *me = fk_me();
    int error;
    if (atomic_load(&fk_forked)) return (int)cudaErrorInitializationError;
    fk_lock();
    fk_run_before(call);
    me->entered = now;
    me->call = call;
    me->own_stream = own_stream;
    fk.calls[call]++;
    fk.driver_ns += fk_about[call].price;
    if (me->in_host_function) fk_misuse("called from a host function");
    if (traits & FK_EXEMPT) return 0;
    if (me->in_host_function) return (int)cudaErrorNotPermitted;
    if (!(traits & (FK_BARE | FK_DRIVER | FK_OWN))) fk_context_made(me->device);
    error = fk_fault_of(call, traits);
    if (!error && (traits & FK_STALLS)) fk_stall();
    if (!error && (traits & FK_HERE)) error = fk_no_context();
    if (!error && (traits & FK_UNSAFE)) error = (int)fk_forbidden();
    return error;
}

int fk_end(int error) {
    fk_thread *me = fk_me();
    if (error && error != (int)cudaErrorNotReady && !fk_of_driver()) me->last = (cudaError_t)error;
    if (atomic_load(&fk_forked)) return error;
    me->own_stream = 0;
    fk.inside_ns += fk_now() - me->entered;
    fk_unlock();
    return error;
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

static long fk_count_calls(const char *name) {
    int i = name ? fk_named_call(name) : 0;
    long total = 0;
    if (name) return i < 0 ? 0 : fk.calls[i];
    for (; i < FK_CALL_COUNT; i++)
        if (!(fk_about[i].traits & FK_OWN)) total += fk.calls[i];
    return total;
}

FK_QUESTION(long, fake_calls, (const char *name), fk_count_calls(name))

void fake_each_call(void (*see)(void *user, const char *name, long calls), void *user) {
    int i;
    fk_lock();
    for (i = 0; i < FK_CALL_COUNT; i++)
        if (!(fk_about[i].traits & FK_OWN)) see(user, fk_about[i].name, fk.calls[i]);
    fk_unlock();
}

static void fk_forget_counts(void) {
    memset(fk.calls, 0, sizeof fk.calls);
    fk.driver_ns = fk.inside_ns = 0;
}

FK_QUESTION(uint64_t, fake_driver_ns, (void), fk.driver_ns)
FK_QUESTION(uint64_t, fake_inside_ns, (void), fk.inside_ns)
FK_CONTROL(fake_reset_counters, (void), fk_forget_counts())

/* ---- failures ---- */

void fk_fail(const char *format, ...) {
    char newest[sizeof fk.first];
    va_list list;
    va_start(list, format);
    vsnprintf(newest, sizeof newest, format, list);
    va_end(list);
    if (!fk.failures++) memcpy(fk.first, newest, sizeof newest);
    if (!fk.quiet) fprintf(stderr, "fakecuda: failure: %s\n", newest);
}

void fk_misuse(const char *format, ...) {
    int name = snprintf(fk.misuse, sizeof fk.misuse, "%s: ", fk_call_name());
    va_list list;
    va_start(list, format);
    vsnprintf(fk.misuse + name, sizeof fk.misuse - (size_t)name, format, list);
    va_end(list);
    fk.misuses++;
    if (!fk.quiet) fprintf(stderr, "fakecuda: misuse: %s\n", fk.misuse);
}

static void fk_forget_failures(void) {
    fk.failures = fk.misuses = 0;
    fk.first[0] = fk.misuse[0] = 0;
}

const char *fake_failure_text(void) { return fk.first; }
const char *fake_misuse_text(void) { return fk.misuse; }
FK_QUESTION(long, fake_failures, (void), fk.failures)
FK_QUESTION(long, fake_misuses, (void), fk.misuses)
FK_CONTROL(fake_clear_failures, (void), fk_forget_failures())
FK_CONTROL(fake_quiet, (int on), fk.quiet = on)

/* ---- starting over: every object dropped and counted, every default restored ---- */

/* Failures stay: a test asks for them after its last fake_reset. */
static void fk_core_defaults(void) {
    fk_faults_clear();
    fk_forget_counts();
    fk.quiet = 0;
    memset(&fk.before, 0, sizeof fk.before);
}

static long fk_objects(void) {
    return fk_memory_objects() + fk_event_objects() + fk_stream_objects() + fk_graph_objects() +
           fk_capture_objects() + fk_retained_contexts();
}

FK_QUESTION(long, fake_live_objects, (void), fk_objects())

long fake_reset(void) {
    long left;
    fk_lock();
    left = fk_objects();
    if (left && !fk.quiet)
        fprintf(stderr, "fakecuda: left behind: %ld of memory (ranges and handles), %ld events, "
                "%ld streams, %ld graphs and captures, %ld holds on contexts\n",
                fk_memory_objects(), fk_event_objects(), fk_stream_objects(),
                fk_graph_objects() + fk_capture_objects(), fk_retained_contexts());
    fk_holds_end();
    fk_drive_context(-1);
    fk_captures_drop();
    fk_graphs_drop();
    fk_events_drop_context(-1);
    fk_streams_drop_context(-1);
    fk_memory_drop_device(-1);
    fk_streams_defaults();
    fk_memory_defaults();
    fk_devices_defaults();
    fk_core_defaults();
    fk_oracle_enable(1);
    fk_me()->device = fk_me()->current = fk_me()->depth = 0;
    fk_me()->last = cudaSuccess;
    fk_me()->mode = cudaStreamCaptureModeGlobal;
    fk_unlock();
    return left;
}

FK_CONTROL(fake_oracle, (int on), fk_oracle_enable(on))
