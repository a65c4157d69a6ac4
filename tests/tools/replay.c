/* replay: recorded allocations through a gpupool arena, and what that took. */
#include "machine.h"
#include "replay_run.h"

#include <stdlib.h>
#include <string.h>

#define MAX_MANY 1024 /* streams or threads */
enum { FINE = 0, FAILURES = 1, BAD_INPUT = 2 };

static const char usage[] =
    "usage: replay [--json] [--passes N] [--limit TEXT] [--min-limit] [--limit-passes N]\n"
    "              [--source NAME] [--streams N] [--threads N] [--behind] [--svg FILE]\n"
    "              TRACE[.gz]...\n"
    "  --json         one object a trace, one a line\n"
    "  --passes N     replay N times over, not three; show what single passes took\n"
    "  --limit TEXT   the arena's limit: 12GiB, 80%, -2GiB\n"
    "  --min-limit    also find the smallest limit that will do for one pass\n"
    "  --limit-passes N  for N passes\n"
    "  --source NAME  auto (default), mapped, device, managed, pinned or bypass\n"
    "  --streams N    block ID on stream ID mod N, not on the trace's own stream\n"
    "  --threads N    N threads, each the whole trace on a stream of its own\n"
    "  --behind       no work is finished before a call waits for it (simulated GPU only)\n"
    "  --svg FILE     draw the arena at its fullest moment\n"
    "A trace is replayed three times over: reserved is the most that was held meanwhile.\n"
    "The first pass is called cold, the last warm.\n";

static const char *const sources[] = {"auto", "mapped", "device", "managed", "pinned", "bypass"};
static const gpupool_source source_of[] = {GPUPOOL_SOURCE_AUTO,    GPUPOOL_SOURCE_MAPPED,
                                           GPUPOOL_SOURCE_DEVICE,  GPUPOOL_SOURCE_MANAGED,
                                           GPUPOOL_SOURCE_PINNED,  GPUPOOL_SOURCE_BYPASS};

typedef struct command {
    replay_options options;
    const char *source;
    int json;
    char **trace;
    int traces;
} command;

static int refuse(const char *sentence, const char *about) {
    fprintf(stderr, "replay: %s%s\n", sentence, about);
    return -1;
}

static int take_source(command *c, const char *name) {
    for (size_t i = 0; i < sizeof sources / sizeof *sources; i++) {
        if (strcmp(sources[i], name) != 0) continue;
        c->source = sources[i];
        c->options.config.source = source_of[i];
        return 0;
    }
    return refuse("--source takes auto, mapped, device, managed, pinned or bypass, not ", name);
}

static int take_count(unsigned *count, const char *option, const char *text) {
    int passes = strstr(option, "passes") != NULL;
    char *end;
    long n = strtol(text, &end, 10);
    *count = (unsigned)n;
    if (end != text && !*end && n >= 1 && n <= (passes ? REPLAY_MOST_PASSES : MAX_MANY)) return 0;
    return refuse(option, passes ? " takes a number from 1 to 100"
                                 : " takes a number from 1 to 1024");
}

/* An arena reads the text, since a config has none. */
static int take_limit(command *c, const char *text) {
    gpupool_arena *reader;
    gpupool_stats stats;
    gpupool_result result = gpupool_arena_create(&reader, NULL);
    if (result == GPUPOOL_OK) {
        result = gpupool_set_limit_text(reader, text);
        if (result == GPUPOOL_OK) result = gpupool_get_stats(reader, &stats);
        if (result == GPUPOOL_OK) c->options.config.limit_bytes = (size_t)stats.limit;
        else fprintf(stderr, "%s: ", gpupool_result_name(result));
        if (result != GPUPOOL_OK) refuse("--limit: ", gpupool_last_error());
        gpupool_arena_destroy(reader);
    }
    return result == GPUPOOL_OK ? 0 : -1;
}

static int take_option(command *c, const char *option, const char *value) {
    replay_options *o = &c->options;
    if (strcmp(option, "--source") == 0) return take_source(c, value);
    if (strcmp(option, "--streams") == 0) return take_count(&o->streams, option, value);
    if (strcmp(option, "--threads") == 0) return take_count(&o->threads, option, value);
    if (strcmp(option, "--passes") == 0) return take_count(&o->passes, option, value);
    if (strcmp(option, "--limit-passes") == 0) return take_count(&o->limit_passes, option, value);
    if (strcmp(option, "--limit") == 0) return take_limit(c, value);
    if (strcmp(option, "--svg") != 0) return refuse("unknown option ", option);
    o->svg = value;
    return 0;
}

static int check_command(const command *c) {
    const replay_options *o = &c->options;
    if (c->traces == 0) return refuse("names no trace", "");
    if (o->limit_passes && !o->min_limit) return refuse("--limit-passes needs --min-limit", "");
    if (o->svg && c->traces > 1) return refuse("--svg draws one trace, not several", "");
    if (o->threads > 1 && o->streams)
        return refuse("--threads gives each thread its stream: --streams does not go with it", "");
    if (o->threads > 1 && o->min_limit)
        return refuse("--min-limit needs a fixed order of events: no --threads with it", "");
    return 0;
}

static int read_command(command *c, int argc, char **argv) {
    *c = (command){.source = "auto", .options.threads = 1};
    c->options.config.name = "replay";
    c->trace = argv; /* the words that are no options move to the front */
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0) c->json = 1;
        else if (strcmp(argv[i], "--min-limit") == 0) c->options.min_limit = 1;
        else if (strcmp(argv[i], "--behind") == 0) c->options.behind = 1;
        else if (argv[i][0] != '-') c->trace[c->traces++] = argv[i];
        else if (i + 1 == argc) return refuse("unknown option, or its value is missing: ", argv[i]);
        else if (take_option(c, argv[i], argv[i + 1]) != 0) return -1;
        else i++;
    }
    return check_command(c);
}

/* ---- figures for programs ---- */

static void json_list(const char *name, const replay_result *r, int kind) {
    printf(",\"%s\":[", name);
    for (unsigned i = 0; i < r->passes; i++) {
        const replay_figure *f = &r->pass[i];
        printf("%s%ld", i ? "," : "",
               kind < MACHINE_KINDS ? f->calls.of[kind] : machine_all_calls(&f->calls));
    }
    putchar(']');
}

static void print_json(const char *path, const command *c, const replay_result *r) {
    const replay_figure *warm = &r->pass[r->passes - 1];
    double live = (double)r->peak_live_bytes;
    printf("{\"trace\":\"");
    for (; *path; path++)
        putchar(strchr("\"\\", *path) || (unsigned char)*path < ' ' ? '?' : *path);
    printf("\",\"source\":\"%s\",\"streams\":%u,\"threads\":%u,\"events\":%zu", c->source,
           c->options.streams, c->options.threads, r->events);
    printf(",\"peak_live_bytes\":%llu,\"peak_reserved_bytes\":%llu,\"reserved_over_live\":%.4f",
           (unsigned long long)r->peak_live_bytes, (unsigned long long)r->peak_reserved_bytes,
           (double)r->peak_reserved_bytes / live);
    if (r->min_limit_bytes)
        printf(",\"min_limit_over_live\":%.4f,\"min_limit_bytes\":%llu",
               (double)r->min_limit_bytes / live, (unsigned long long)r->min_limit_bytes);
    else if (c->options.min_limit) printf(",\"min_limit_over_live\":null,\"min_limit_bytes\":null");
    printf(",\"ns_per_op_cold\":%.1f,\"ns_per_op_warm\":%.1f,\"cuda_calls\":%ld", r->pass[0].ns,
           warm->ns, r->calls);
    if (machine_is_simulated()) printf(",\"driver_us\":%.1f", r->driver_us);
    printf(",\"cuda_calls_warm\":%ld", machine_all_calls(&warm->calls));
    json_list("cuda_calls_by_pass", r, MACHINE_KINDS);
    json_list("memory_calls_by_pass", r, MACHINE_MEMORY);
    json_list("event_calls_by_pass", r, MACHINE_EVENT);
    printf(",\"failures\":%zu}\n", r->failures);
}

/* ---- figures for people ---- */

static void print_head(const replay_options *o) {
    printf("on: %s; GB are 10^9 bytes; ns per operation include the driver's time\n\n",
           machine_name());
    printf("%-22s %9s %9s %9s %9s ", "trace", "events", "live GB", "reserved", "/ live");
    if (o->min_limit) printf("%9s ", "least");
    printf("%8s %8s %8s %9s %8s\n", "ns cold", "ns warm", "calls", "driver ms", "failures");
}

/* The first, third, fifth and last. */
static void print_passes(const replay_result *r) {
    for (unsigned i = 0; i < r->passes; i++) {
        const replay_figure *f = &r->pass[i];
        if (i != 0 && i != 2 && i != 4 && i + 1 != r->passes) continue;
        printf("  pass %-3u %10.1f ns  %7ld CUDA calls: %7ld memory, %7ld events, %7ld other\n",
               i + 1, f->ns, machine_all_calls(&f->calls), f->calls.of[MACHINE_MEMORY],
               f->calls.of[MACHINE_EVENT], f->calls.of[MACHINE_OTHER]);
    }
}

static void print_row(const char *path, const replay_options *o, const replay_result *r) {
    const char *slash = strrchr(path, '/');
    double live = (double)r->peak_live_bytes;
    printf("%-22s %9zu %9.3f %9.3f %9.4f ", slash ? slash + 1 : path, r->events, live / 1e9,
           (double)r->peak_reserved_bytes / 1e9, (double)r->peak_reserved_bytes / live);
    if (o->min_limit && r->min_limit_bytes) printf("%9.4f ", (double)r->min_limit_bytes / live);
    else if (o->min_limit) printf("%9s ", "none");
    printf("%8.1f %8.1f %8ld %9.2f %8zu\n", r->pass[0].ns, r->pass[r->passes - 1].ns, r->calls,
           r->driver_us / 1e3, r->failures);
    if (o->passes) print_passes(r);
}

static int replay_one(const command *c, const char *path) {
    replay_result r;
    gpupool_result why;
    trace t;
    int status = FINE;
    if (trace_read(&t, path) != 0) return BAD_INPUT;
    if (replay_run(&c->options, &t, &r, &why) != 0)
        status = why == GPUPOOL_E_ARGUMENT ? BAD_INPUT : FAILURES;
    else if (c->json) print_json(path, c, &r);
    else print_row(path, &c->options, &r);
    if (status == FINE && r.failures) {
        fflush(stdout); /* the figures come first */
        fprintf(stderr, "%s: %s\n", path, r.first_sentence);
        status = FAILURES;
    }
    trace_free(&t);
    return status;
}

int main(int argc, char **argv) {
    command c;
    int status = FINE;
    if (argc == 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
        fputs(usage, stdout);
        return FINE;
    }
    if (read_command(&c, argc, argv) != 0) {
        fputs(usage, stderr);
        return BAD_INPUT;
    }
    if (machine_open() != 0) return FAILURES;
    if (!c.json) print_head(&c.options);
    for (int i = 0; i < c.traces && status != BAD_INPUT; i++) {
        int one = replay_one(&c, c.trace[i]);
        if (one > status) status = one;
    }
    return machine_close() != 0 ? FAILURES : status;
}
