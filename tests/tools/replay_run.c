#include "replay_run.h"

#include "memory_map.h"
#include "replay_limit.h"
#include "replay_timeline.h"
#include "replay_pass.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

typedef struct run { /* what the stops of a pass need to know */
    const replay_options *options;
    int pass, passes;
    int failed;
} run;

static size_t count_traces(const replay_options *o) { return o->turns ? o->turns : 1; }

static int is_fullest(const run *r, const replay_pass *pass, size_t event) {
    return r->options->svg && r->pass == r->passes && event == pass->plan->from->peak_event;
}

static size_t part_end(size_t part, size_t events) {
    return events * part / REPLAY_PARTS - 1;
}

static void draw(run *r, gpupool_arena *arena) {
    const char *path = r->options->svg;
    FILE *file = fopen(path, "w");
    gpupool_result result = file ? memory_map_write(arena, file) : GPUPOOL_OK;
    if (result != GPUPOOL_OK) {
        fprintf(stderr, "%s: %s\n", path, gpupool_last_error());
        r->failed = 1;
    }
    if (file && fclose(file) == 0) return;
    fprintf(stderr, "%s: %s\n", path, strerror(errno));
    r->failed = 1;
}

static void on_stop(void *user, const replay_pass *pass, size_t event) {
    run *r = user;
    const replay_options *o = r->options;
    if (is_fullest(r, pass, event)) draw(r, pass->arena);
    for (size_t part = 1; o->on_progress && part <= REPLAY_PARTS; part++)
        if (event == part_end(part, pass->plan->ops))
            o->on_progress(o->user,
                           &(replay_progress){r->pass, event + 1, pass->plan->ops, pass->arena});
}

static void add_stop(replay_pass *pass, size_t event) {
    if (pass->stops && pass->stop[pass->stops - 1] == event) return;
    pass->stop[pass->stops++] = event;
}

static void set_stops(const run *r, replay_pass *pass) {
    size_t events = pass->plan->ops, peak = pass->plan->from->peak_event;
    int parts = r->options->on_progress && events >= REPLAY_PARTS ? REPLAY_PARTS : 0;
    int fullest = is_fullest(r, pass, peak);
    for (int part = 1; part <= parts; part++) {
        size_t end = part_end((size_t)part, events);
        if (fullest && peak <= end) {
            add_stop(pass, peak);
            fullest = 0;
        }
        add_stop(pass, end);
    }
    if (fullest) add_stop(pass, peak);
    pass->on_stop = on_stop;
}

/* Of the passes so far, the newest is the warm one. */
static void add_up(replay_result *out, const replay_pass *pass, int number) {
    replay_figure *figure = &out->pass[number - 1];
    figure->ns = (double)pass->ns / (double)pass->plan->ops;
    figure->calls = pass->calls;
    if (number == 1) out->ns_cold = figure->ns;
    out->ns_warm = figure->ns;
    out->calls_warm = machine_all_calls(&pass->calls);
    out->driver_us_warm = (double)pass->spent.driver_ns / 1e3;
    if (!out->failures && pass->failures) {
        out->first_result = pass->first_result;
        memcpy(out->first_sentence, pass->first_sentence, sizeof out->first_sentence);
    }
    out->failures += pass->failures;
}

/* After a pass, at whose begin the peaks were reset. */
static int read_stats(gpupool_arena *arena, const replay_plan *plan, replay_result *out,
                      int number) {
    replay_figure *figure = &out->pass[number - 1];
    gpupool_stats stats;
    if (gpupool_get_stats(arena, &stats) != GPUPOOL_OK) return -1;
    figure->reserved_bytes = stats.reserved.peak;
    figure->live_bytes = plan->threads > 1 ? stats.requested.peak : plan->from->peak_live_bytes;
    if (figure->reserved_bytes > out->peak_reserved_bytes)
        out->peak_reserved_bytes = figure->reserved_bytes;
    if (figure->live_bytes > out->peak_live_bytes) out->peak_live_bytes = figure->live_bytes;
    return 0;
}

/* The plans are one, or one for each pass. */
static int run_passes(const replay_options *o, const replay_plan *plan, gpupool_arena *arena,
                      replay_result *out) {
    run r = {.options = o, .passes = (int)out->passes};
    for (r.pass = 1; r.pass <= r.passes; r.pass++) {
        const replay_plan *of = o->turns ? &plan[r.pass - 1] : plan;
        replay_pass pass = {
            .plan = of, .arena = arena, .sync = o->sync, .cuda_free = o->cuda_free, .user = &r};
        gpupool_reset_peaks(arena);
        set_stops(&r, &pass);
        if (replay_pass_run(&pass) != 0) r.failed = 1;
        else add_up(out, &pass, r.pass);
        if (r.failed || read_stats(arena, of, out, r.pass) != 0) return -1;
    }
    return 0;
}

static gpupool_result complain(gpupool_result result) {
    if (result != GPUPOOL_OK)
        fprintf(stderr, "%s: %s\n", gpupool_result_name(result), gpupool_last_error());
    return result;
}

static gpupool_result open_arena(const replay_options *o, gpupool_arena **arena) {
    if (o->cuda_free) {
        *arena = gpupool_get_default_arena(0);
        return *arena ? GPUPOOL_OK : gpupool_last_result();
    }
    return gpupool_arena_create(arena, &o->config);
}

static int run_plan(const replay_options *o, const replay_plan *plan, replay_result *out,
                    gpupool_result *why) {
    gpupool_arena *arena;
    machine_meter before = machine_read();
    *why = complain(open_arena(o, &arena));
    if (*why != GPUPOOL_OK) return -1;
    int result = run_passes(o, plan, arena, out);
    machine_meter after = machine_read();
    out->calls = after.calls - before.calls;
    out->driver_us = (double)(after.driver_ns - before.driver_ns) / 1e3;
    *why = complain(gpupool_arena_destroy(arena));
    if (result != 0 || *why != GPUPOOL_OK) return -1;
    if (o->timeline && replay_timeline(plan, &o->config, o->name, o->timeline) != 0) return -1;
    return o->min_limit ? replay_min_limit(plan, &o->config, o->limit_passes ? o->limit_passes : 1,
                                           &out->min_limit_bytes)
                        : 0;
}

static int hold(const replay_options *o, const replay_plan *plan, int on) {
    for (size_t p = 0; p < count_traces(o); p++)
        for (size_t i = 0; i < plan[p].streams; i++)
            if (machine_hold((void *)plan[p].stream[i], on) != 0) return -1;
    return 0;
}

static int run_behind(const replay_options *o, const replay_plan *plan, replay_result *out,
                      gpupool_result *why) {
    if (hold(o, plan, 1) != 0) {
        fprintf(stderr, "--behind needs a simulated GPU\n");
        return -1;
    }
    int result = run_plan(o, plan, out, why);
    hold(o, plan, 0);
    return result;
}

int replay_run(const replay_options *o, const trace *t, replay_result *out, gpupool_result *why) {
    replay_plan *plan = calloc(count_traces(o), sizeof *plan);
    size_t made = 0;
    *out = (replay_result){.passes = o->turns ? o->turns : o->passes ? o->passes : REPLAY_PASSES};
    *why = GPUPOOL_OK;
    for (; plan && made < count_traces(o); made++) {
        if (replay_plan_make(&plan[made], &t[made], o->streams, o->threads) != 0) break;
        out->events += t[made].events;
        if (t[made].peak_live_bytes > out->peak_live_bytes)
            out->peak_live_bytes = t[made].peak_live_bytes;
    }
    int result = made < count_traces(o) ? -1
                                         : (o->behind ? run_behind : run_plan)(o, plan, out, why);
    while (made) replay_plan_free(&plan[--made]);
    free(plan);
    return result;
}
