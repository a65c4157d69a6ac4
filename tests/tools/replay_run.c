#define _POSIX_C_SOURCE 200809L
#include "replay_run.h"

#include "memory_map.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define LIMIT_STEP ((uint64_t)2 << 20)

typedef struct op { /* an event, made short */
    uint64_t bytes;
    uint32_t slot, stream;
    trace_kind kind;
} op;

typedef struct run {
    const replay_options *options;
    const trace *trace;
    gpupool_arena *arena;
    op *ops;
    cudaStream_t *streams;
    size_t stream_count;
    unsigned threads;
    int gives_up; /* at the first failure */
    int pass, passes;
    replay_result *out;
    int failed;
} run;

typedef struct runner { /* one thread of a pass */
    run *run;
    cudaStream_t *streams;
    void **block; /* by slot */
    uint64_t ns;
    size_t failures;
    pthread_barrier_t *start;
    pthread_t thread;
} runner;

static int failed(const char *what) {
    fprintf(stderr, "replay: %s\n", what);
    return -1;
}

/* ---- before: operations and streams ---- */

static int make_streams(run *r) {
    const replay_options *o = r->options;
    size_t wanted = r->threads > 1 ? r->threads : o->streams ? o->streams : r->trace->streams;
    r->streams = calloc(wanted, sizeof *r->streams);
    if (!r->streams) return failed("host memory is out");
    for (; r->stream_count < wanted; r->stream_count++) {
        int is_own = r->threads == 1 && !o->streams;
        if (is_own && r->trace->stream_number[r->stream_count] == 0) continue;
        cudaError_t error = cudaStreamCreate(&r->streams[r->stream_count]);
        if (error != cudaSuccess) return failed(cudaGetErrorString(error));
    }
    return 0;
}

static int make(run *r) {
    const trace *t = r->trace;
    r->ops = malloc(t->events * sizeof *r->ops);
    if (!r->ops) return failed("host memory is out");
    for (size_t i = 0; i < t->events; i++) {
        const trace_event *e = &t->event[i];
        uint32_t stream = r->options->streams ? (uint32_t)(e->id % r->options->streams) : e->stream;
        r->ops[i] = (op){e->bytes, e->slot, r->threads > 1 ? 0 : stream, e->kind};
    }
    return make_streams(r);
}

static void unmake(run *r) {
    for (size_t i = 0; i < r->stream_count; i++)
        if (r->streams[i]) cudaStreamDestroy(r->streams[i]);
    free(r->streams);
    free(r->ops);
}

/* ---- a pass ---- */

static pthread_mutex_t first_failure = PTHREAD_MUTEX_INITIALIZER;

/* Keeps the sentence of the first failure. */
static void note_failure(runner *t) {
    replay_result *out = t->run->out;
    t->failures++;
    pthread_mutex_lock(&first_failure);
    if (!out->first_sentence[0])
        snprintf(out->first_sentence, sizeof out->first_sentence, "%s: %.400s",
                 gpupool_result_name(gpupool_last_result()), gpupool_last_error());
    pthread_mutex_unlock(&first_failure);
}

/* What was asked for in vain may be had, but is not kept. */
static void other_call(runner *t, const op *o, cudaStream_t stream) {
    gpupool_arena *arena = t->run->arena;
    gpupool_result result = GPUPOOL_OK;
    if (o->kind == TRACE_USE) {
        result = gpupool_record_stream(arena, t->block[o->slot], stream);
    } else {
        void *block = gpupool_alloc(arena, o->bytes, stream);
        if (block) result = gpupool_free(arena, block, stream);
    }
    if (result != GPUPOOL_OK) note_failure(t);
}

/* The loop that is timed: nothing is in it but the calls and one table. */
static void run_ops(runner *t, const op *o, const op *end) {
    gpupool_arena *arena = t->run->arena;
    uint64_t begin = machine_now_ns();
    for (; o < end && !(t->failures && t->run->gives_up); o++) {
        cudaStream_t stream = t->streams[o->stream];
        void **at = &t->block[o->slot];
        if (o->kind != TRACE_BLOCK) {
            other_call(t, o, stream);
        } else if (o->bytes) {
            *at = gpupool_alloc(arena, o->bytes, stream);
            if (!*at) note_failure(t);
        } else {
            if (gpupool_free(arena, *at, stream) != GPUPOOL_OK) note_failure(t);
            *at = NULL;
        }
    }
    t->ns += machine_now_ns() - begin;
}

static void draw(run *r) {
    FILE *file = fopen(r->options->svg, "w");
    gpupool_result result = file ? memory_map_write(r->arena, file) : GPUPOOL_OK;
    r->failed = !file || result != GPUPOOL_OK;
    if (result != GPUPOOL_OK) failed(gpupool_last_error());
    if (file && fclose(file) == 0) return;
    fprintf(stderr, "%s: %s\n", r->options->svg, strerror(errno));
    r->failed = 1;
}

/* The first thread stops at the fullest moment of the last pass, and after each part. */
static size_t next_stop(const run *r, size_t from) {
    size_t events = r->trace->events, peak = r->trace->peak_event + 1, part = events;
    if (r->options->on_progress && events >= REPLAY_PARTS)
        for (size_t i = REPLAY_PARTS; i > 0; i--)
            if (events * i / REPLAY_PARTS > from) part = events * i / REPLAY_PARTS;
    return r->options->svg && r->pass == r->passes && peak > from && peak < part ? peak : part;
}

static void stop(run *r, size_t done) {
    const replay_options *o = r->options;
    if (o->svg && r->pass == r->passes && done == r->trace->peak_event + 1) draw(r);
    if (o->on_progress)
        o->on_progress(o->user, &(replay_progress){r->pass, done, r->trace->events, r->arena});
}

static void *run_thread(void *user) {
    runner *t = user;
    size_t done = 0, events = t->run->trace->events, end = events;
    if (t->start) pthread_barrier_wait(t->start);
    for (; done < events; done = end) {
        if (!t->start) end = next_stop(t->run, done);
        run_ops(t, t->run->ops + done, t->run->ops + end);
        if (!t->start && t->run->pass) stop(t->run, end);
    }
    return NULL;
}

/* What the trace left alive, each on the stream that allocated it, as its owner would. */
static void free_leftover(runner *t) {
    for (size_t i = t->run->trace->events; i-- > 0;) {
        const op *o = &t->run->ops[i];
        void *block = o->kind == TRACE_BLOCK && o->bytes ? t->block[o->slot] : NULL;
        if (!block) continue;
        if (gpupool_free(t->run->arena, block, t->streams[o->stream]) != GPUPOOL_OK)
            note_failure(t);
        t->block[o->slot] = NULL;
    }
}

static void run_threads(runner *t, unsigned threads) {
    pthread_barrier_t start;
    pthread_barrier_init(&start, NULL, threads);
    for (unsigned i = 0; i < threads; i++) {
        t[i].start = &start;
        if (pthread_create(&t[i].thread, NULL, run_thread, &t[i]) == 0) continue;
        failed("so many threads cannot be started");
        exit(EXIT_FAILURE); /* those that run wait for the missing one for ever */
    }
    for (unsigned i = 0; i < threads; i++) pthread_join(t[i].thread, NULL);
    pthread_barrier_destroy(&start);
}

/* Simulated calls take the simulation's time, which is none of the arena's: it is taken out, and
   the price of the calls put in. Each thread made its share of them. */
static double real_ns(const run *r, uint64_t wall, machine_meter before, machine_meter after) {
    double inside = (double)(after.inside_ns - before.inside_ns) / r->threads;
    double driver = (double)(after.driver_ns - before.driver_ns) / r->threads;
    return ((double)wall > inside ? (double)wall - inside : 0) + driver;
}

/* Runs the trace, then frees what it left alive, outside the time. Returns the failures. */
static size_t run_pass(run *r, replay_figure *out) {
    runner *t = calloc(r->threads, sizeof *t);
    void **block = calloc(r->threads * r->trace->slots + 1, sizeof *block);
    machine_calls calls = machine_count_calls();
    machine_meter before = machine_read(), after;
    uint64_t slowest = 0;
    size_t failures = 0;
    if (!t || !block) exit(failed("host memory is out"));
    for (unsigned i = 0; i < r->threads; i++)
        t[i] = (runner){.run = r, .streams = r->streams + i, .block = block + i * r->trace->slots};
    if (r->threads > 1) run_threads(t, r->threads);
    else run_thread(t);
    after = machine_read();
    out->calls = machine_count_calls();
    for (int i = 0; i < MACHINE_KINDS; i++) out->calls.of[i] -= calls.of[i];
    for (unsigned i = 0; i < r->threads; i++) {
        if (t[i].ns > slowest) slowest = t[i].ns;
        free_leftover(&t[i]);
        failures += t[i].failures;
    }
    out->ns = real_ns(r, slowest, before, after) / (double)r->trace->events;
    out->driver_us = (double)(after.driver_ns - before.driver_ns) / 1e3;
    free(block);
    free(t);
    return failures;
}

/* ---- the smallest limit under which a trace completes in a fresh arena ---- */

/* 1 and 0: it does, and does not; -1 on failure. */
static int completes(const run *whole, uint64_t steps, unsigned passes) {
    replay_result unused = {0};
    replay_figure figure;
    run r = *whole;
    gpupool_arena_config config = r.options->config;
    size_t failures = 0;
    config.limit_bytes = (size_t)(steps * LIMIT_STEP);
    r.out = &unused;
    r.gives_up = 1;
    r.pass = 0; /* nobody is shown it */
    if (gpupool_arena_create(&r.arena, &config) != GPUPOOL_OK) return failed(gpupool_last_error());
    while (passes-- > 0 && !failures) failures = run_pass(&r, &figure);
    if (gpupool_arena_destroy(r.arena) != GPUPOOL_OK) return failed(gpupool_last_error());
    return !failures;
}

/* To 2 MiB; 0 bytes when not even eight times what is live is enough. */
static int find_min_limit(const run *r, uint64_t *bytes) {
    unsigned passes = r->options->limit_passes ? r->options->limit_passes : 1;
    uint64_t least = (r->trace->peak_live_bytes + LIMIT_STEP - 1) / LIMIT_STEP;
    uint64_t fails = least - 1, enough = least;
    int answer;
    while ((answer = completes(r, enough, passes)) == 0) {
        if (enough > least * 8 + 8) return 0;
        fails = enough;
        enough += enough - least + 1;
    }
    while (answer >= 0 && enough - fails > 1) {
        uint64_t middle = fails + (enough - fails) / 2;
        answer = completes(r, middle, passes);
        if (answer == 1) enough = middle;
        else fails = middle;
    }
    if (answer < 0) return -1;
    *bytes = enough * LIMIT_STEP;
    return 0;
}

/* ---- all passes ---- */

static int run_passes(run *r) {
    replay_result *out = r->out;
    for (r->pass = 1; r->pass <= r->passes; r->pass++) {
        replay_figure *figure = &out->pass[r->pass - 1];
        gpupool_stats stats;
        gpupool_reset_peaks(r->arena);
        out->failures += run_pass(r, figure);
        if (r->failed || gpupool_get_stats(r->arena, &stats) != GPUPOOL_OK) return -1;
        figure->reserved_bytes = stats.reserved.peak;
        figure->live_bytes = r->threads > 1 ? stats.requested.peak : r->trace->peak_live_bytes;
        if (figure->reserved_bytes > out->peak_reserved_bytes)
            out->peak_reserved_bytes = figure->reserved_bytes;
        if (figure->live_bytes > out->peak_live_bytes) out->peak_live_bytes = figure->live_bytes;
    }
    return 0;
}

static gpupool_result complain(gpupool_result result) {
    if (result != GPUPOOL_OK)
        fprintf(stderr, "%s: %s\n", gpupool_result_name(result), gpupool_last_error());
    return result;
}

static int run_all(run *r, gpupool_result *why) {
    const replay_options *o = r->options;
    machine_meter before = machine_read(), after;
    int result;
    *why = complain(gpupool_arena_create(&r->arena, &o->config));
    if (*why != GPUPOOL_OK) return -1;
    result = run_passes(r);
    after = machine_read();
    r->out->calls = after.calls - before.calls;
    r->out->driver_us = (double)(after.driver_ns - before.driver_ns) / 1e3;
    *why = complain(gpupool_arena_destroy(r->arena));
    if (result != 0 || *why != GPUPOOL_OK) return -1;
    return o->min_limit ? find_min_limit(r, &r->out->min_limit_bytes) : 0;
}

static int hold(const run *r, int on) {
    for (size_t i = 0; i < r->stream_count; i++)
        if (machine_hold((void *)r->streams[i], on) != 0)
            return failed("--behind needs a simulated GPU");
    return 0;
}

int replay_run(const replay_options *o, const trace *t, replay_result *out, gpupool_result *why) {
    run r = {.options = o, .trace = t, .out = out, .threads = o->threads ? o->threads : 1};
    int result;
    *out = (replay_result){.passes = o->passes ? o->passes : REPLAY_PASSES, .events = t->events,
                           .peak_live_bytes = t->peak_live_bytes};
    *why = GPUPOOL_OK;
    r.passes = (int)out->passes;
    result = make(&r);
    if (result == 0 && o->behind) result = hold(&r, 1);
    if (result == 0) result = run_all(&r, why);
    if (o->behind) hold(&r, 0);
    unmake(&r);
    return result;
}
