#include "replay_run.h"

#include "memory_map.h"

#include <errno.h>
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
    void **block; /* by slot */
    cudaStream_t *streams;
    size_t stream_count;
    int gives_up; /* at the first failure */
    int draws;    /* at the fullest moment; -1: that failed */
    replay_result *out;
} run;

static int failed(const char *what) {
    fprintf(stderr, "replay: %s\n", what);
    return -1;
}

/* ---- before: operations and streams ---- */

static int make_streams(run *r) {
    const replay_options *o = r->options;
    size_t wanted = o->streams ? o->streams : r->trace->streams;
    r->streams = calloc(wanted, sizeof *r->streams);
    if (!r->streams) return failed("host memory is out");
    for (; r->stream_count < wanted; r->stream_count++) {
        if (!o->streams && r->trace->stream_number[r->stream_count] == 0) continue;
        cudaError_t error = cudaStreamCreate(&r->streams[r->stream_count]);
        if (error != cudaSuccess) return failed(cudaGetErrorString(error));
        if (o->behind && machine_hold((void *)r->streams[r->stream_count], 1) != 0)
            return failed("--behind needs a simulated GPU");
    }
    return 0;
}

static int make(run *r) {
    const trace *t = r->trace;
    r->ops = malloc(t->events * sizeof *r->ops);
    r->block = calloc(t->slots + 1, sizeof *r->block);
    if (!r->ops || !r->block) return failed("host memory is out");
    for (size_t i = 0; i < t->events; i++) {
        const trace_event *e = &t->event[i];
        uint32_t stream = r->options->streams ? (uint32_t)(e->id % r->options->streams) : e->stream;
        r->ops[i] = (op){e->bytes, e->slot, stream, e->kind};
    }
    return make_streams(r);
}

static void unmake(run *r) {
    for (size_t i = 0; i < r->stream_count; i++) {
        if (!r->streams[i]) continue;
        if (r->options->behind) machine_hold((void *)r->streams[i], 0);
        cudaStreamDestroy(r->streams[i]);
    }
    free(r->streams);
    free(r->block);
    free(r->ops);
}

/* ---- a pass ---- */

/* Keeps the sentence of the first failure. */
static void note_failure(run *r) {
    if (r->out->failures++) return;
    snprintf(r->out->first_sentence, sizeof r->out->first_sentence, "%s: %.400s",
             gpupool_result_name(gpupool_last_result()), gpupool_last_error());
}

/* What was asked for in vain may be had, but is not kept. */
static void other_call(run *r, const op *o, cudaStream_t stream) {
    gpupool_result result = GPUPOOL_OK;
    if (o->kind == TRACE_USE) {
        result = gpupool_record_stream(r->arena, r->block[o->slot], stream);
    } else {
        void *block = gpupool_alloc(r->arena, o->bytes, stream);
        if (block) result = gpupool_free(r->arena, block, stream);
    }
    if (result != GPUPOOL_OK) note_failure(r);
}

/* The loop that is timed: nothing is in it but the calls and one table. Returns nanoseconds. */
static uint64_t run_ops(run *r, const op *o, const op *end) {
    uint64_t begin = machine_now_ns();
    for (; o < end && !(r->out->failures && r->gives_up); o++) {
        cudaStream_t stream = r->streams[o->stream];
        void **at = &r->block[o->slot];
        if (o->kind != TRACE_BLOCK) {
            other_call(r, o, stream);
        } else if (o->bytes) {
            *at = gpupool_alloc(r->arena, o->bytes, stream);
            if (!*at) note_failure(r);
        } else {
            if (gpupool_free(r->arena, *at, stream) != GPUPOOL_OK) note_failure(r);
            *at = NULL;
        }
    }
    return machine_now_ns() - begin;
}

static void draw(run *r) {
    FILE *file = fopen(r->options->svg, "w");
    gpupool_result result = file ? memory_map_write(r->arena, file) : GPUPOOL_OK;
    if (!file || result != GPUPOOL_OK) r->draws = -1;
    if (result != GPUPOOL_OK) failed(gpupool_last_error());
    if (file && fclose(file) == 0) return;
    fprintf(stderr, "%s: %s\n", r->options->svg, strerror(errno));
    r->draws = -1;
}

/* What the trace left alive, each on the stream that allocated it, as its owner would. */
static void free_leftover(run *r) {
    for (size_t i = r->trace->events; i-- > 0;) {
        const op *o = &r->ops[i];
        void *block = o->kind == TRACE_BLOCK && o->bytes ? r->block[o->slot] : NULL;
        if (!block) continue;
        if (gpupool_free(r->arena, block, r->streams[o->stream]) != GPUPOOL_OK) note_failure(r);
        r->block[o->slot] = NULL;
    }
}

/* Runs the trace, then frees what it left alive, outside the time. Returns nanoseconds per
   operation: simulated calls take the simulation's time, which is none of the arena's: it is taken
   out, and the price of the calls put in. */
static double run_pass(run *r, long *calls) {
    machine_meter before = machine_read(), after;
    const op *peak = r->ops + r->trace->peak_event + 1, *end = r->ops + r->trace->events;
    double ns = (double)run_ops(r, r->ops, peak), inside;
    if (r->draws > 0) draw(r);
    ns += (double)run_ops(r, peak, end);
    after = machine_read();
    inside = (double)(after.inside_ns - before.inside_ns);
    *calls = after.calls - before.calls;
    free_leftover(r);
    return ((ns > inside ? ns - inside : 0) + (double)(after.driver_ns - before.driver_ns)) /
           (double)r->trace->events;
}

/* ---- the smallest limit under which a trace completes in a fresh arena ---- */

/* 1 and 0: it does, and does not; -1 on failure. */
static int completes(const run *whole, uint64_t steps) {
    replay_result unused = {0};
    long calls;
    run r = *whole;
    gpupool_arena_config config = r.options->config;
    config.limit_bytes = (size_t)(steps * LIMIT_STEP);
    r.out = &unused;
    r.gives_up = 1;
    r.draws = 0;
    if (gpupool_arena_create(&r.arena, &config) != GPUPOOL_OK) return failed(gpupool_last_error());
    run_pass(&r, &calls);
    if (gpupool_arena_destroy(r.arena) != GPUPOOL_OK) return failed(gpupool_last_error());
    return !unused.failures;
}

/* To 2 MiB; 0 bytes when not even eight times what is live is enough. */
static int find_min_limit(const run *r, uint64_t *bytes) {
    uint64_t least = (r->trace->peak_live_bytes + LIMIT_STEP - 1) / LIMIT_STEP;
    uint64_t fails = least - 1, enough = least;
    int answer;
    while ((answer = completes(r, enough)) == 0) {
        if (enough > least * 8 + 8) return 0;
        fails = enough;
        enough += enough - least + 1;
    }
    while (answer >= 0 && enough - fails > 1) {
        uint64_t middle = fails + (enough - fails) / 2;
        answer = completes(r, middle);
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
    for (int i = 0; i < REPLAY_PASSES; i++) {
        gpupool_stats stats;
        r->draws = r->options->svg && i + 1 == REPLAY_PASSES;
        out->ns[i] = run_pass(r, &out->calls[i]);
        if (r->draws < 0 || gpupool_get_stats(r->arena, &stats) != GPUPOOL_OK) return -1;
        out->peak_reserved_bytes = stats.reserved.peak;
    }
    return 0;
}

static gpupool_result complain(gpupool_result result) {
    if (result != GPUPOOL_OK)
        fprintf(stderr, "%s: %s\n", gpupool_result_name(result), gpupool_last_error());
    return result;
}

static int run_all(run *r, gpupool_result *why) {
    *why = complain(gpupool_arena_create(&r->arena, &r->options->config));
    if (*why != GPUPOOL_OK) return -1;
    int result = run_passes(r);
    *why = complain(gpupool_arena_destroy(r->arena));
    if (result != 0 || *why != GPUPOOL_OK) return -1;
    return r->options->min_limit ? find_min_limit(r, &r->out->min_limit_bytes) : 0;
}

int replay_run(const replay_options *o, const trace *t, replay_result *out, gpupool_result *why) {
    run r = {.options = o, .trace = t, .out = out};
    *out = (replay_result){0};
    *why = GPUPOOL_OK;
    int result = make(&r) == 0 ? run_all(&r, why) : -1;
    unmake(&r);
    return result;
}
