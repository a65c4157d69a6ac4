/* replay: recorded allocations through a gpupool arena, and what that took. */
#include "machine.h"
#include "replay_run.h"

#include <stdlib.h>
#include <string.h>

#define MOST_STREAMS 1024
enum { FINE = 0, FAILURES = 1, BAD_INPUT = 2 };

static const char usage[] =
    "usage: replay [--limit TEXT] [--min-limit] [--source NAME] [--streams N] [--behind]\n"
    "              [--svg FILE] TRACE[.gz]...\n"
    "  --limit TEXT   the arena's limit: 12GiB, 80%, -2GiB\n"
    "  --min-limit    also find the smallest limit that will do for one pass\n"
    "  --source NAME  auto (default), mapped, device, managed, pinned or bypass\n"
    "  --streams N    block ID on stream ID mod N, not on the trace's own stream\n"
    "  --behind       no work is finished before a call waits for it (simulated GPU only)\n"
    "  --svg FILE     draw the arena at its fullest moment\n"
    "A trace is replayed three times over: reserved is the most that was held meanwhile.\n"
    "The first pass is called cold, the last warm.\n";

static const char *const sources[] = {"auto", "mapped", "device", "managed", "pinned", "bypass"};
static const gpupool_source source_of[] = {GPUPOOL_SOURCE_AUTO,   GPUPOOL_SOURCE_MAPPED,
                                           GPUPOOL_SOURCE_DEVICE, GPUPOOL_SOURCE_MANAGED,
                                           GPUPOOL_SOURCE_PINNED, GPUPOOL_SOURCE_BYPASS};

typedef struct command {
    replay_options options;
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
        c->options.config.source = source_of[i];
        return 0;
    }
    return refuse("--source takes auto, mapped, device, managed, pinned or bypass, not ", name);
}

static int take_streams(command *c, const char *text) {
    char *end;
    long n = strtol(text, &end, 10);
    c->options.streams = (unsigned)n;
    if (end != text && !*end && n >= 1 && n <= MOST_STREAMS) return 0;
    return refuse("--streams takes a number from 1 to 1024, not ", text);
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
    if (strcmp(option, "--source") == 0) return take_source(c, value);
    if (strcmp(option, "--streams") == 0) return take_streams(c, value);
    if (strcmp(option, "--limit") == 0) return take_limit(c, value);
    if (strcmp(option, "--svg") != 0) return refuse("unknown option ", option);
    c->options.svg = value;
    return 0;
}

static int read_command(command *c, int argc, char **argv) {
    *c = (command){.options.config.name = "replay"};
    c->trace = argv; /* the words that are no options move to the front */
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--min-limit") == 0) c->options.min_limit = 1;
        else if (strcmp(argv[i], "--behind") == 0) c->options.behind = 1;
        else if (argv[i][0] != '-') c->trace[c->traces++] = argv[i];
        else if (i + 1 == argc) return refuse("unknown option, or its value is missing: ", argv[i]);
        else if (take_option(c, argv[i], argv[i + 1]) != 0) return -1;
        else i++;
    }
    if (c->traces == 0) return refuse("names no trace", "");
    if (c->options.svg && c->traces > 1) return refuse("--svg draws one trace, not several", "");
    return 0;
}

static void print_head(const replay_options *o) {
    printf("on: %s; MB are 10^6 bytes; ns per operation include the driver's time\n\n",
           machine_name());
    printf("%-22s %9s %10s %10s %8s ", "trace", "events", "live MB", "reserved", "/ live");
    if (o->min_limit) printf("%8s ", "least");
    printf("%9s %9s %11s %11s %9s\n", "ns cold", "ns warm", "calls cold", "calls warm", "failures");
}

static void print_row(const char *path, const command *c, const trace *t, const replay_result *r) {
    const char *slash = strrchr(path, '/');
    double live = (double)t->peak_live_bytes;
    printf("%-22s %9zu %10.3f %10.3f %8.4f ", slash ? slash + 1 : path, t->events, live / 1e6,
           (double)r->peak_reserved_bytes / 1e6, (double)r->peak_reserved_bytes / live);
    if (r->min_limit_bytes) printf("%8.4f ", (double)r->min_limit_bytes / live);
    else if (c->options.min_limit) printf("%8s ", "none");
    printf("%9.1f %9.1f %11ld %11ld %9zu\n", r->ns[0], r->ns[REPLAY_PASSES - 1], r->calls[0],
           r->calls[REPLAY_PASSES - 1], r->failures);
}

static int replay_one(const command *c, const char *path) {
    replay_result r;
    gpupool_result why;
    trace t;
    int status = FINE;
    if (trace_read(&t, path) != 0) return BAD_INPUT;
    if (replay_run(&c->options, &t, &r, &why) != 0)
        status = why == GPUPOOL_E_ARGUMENT ? BAD_INPUT : FAILURES;
    else print_row(path, c, &t, &r);
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
    print_head(&c.options);
    for (int i = 0; i < c.traces && status != BAD_INPUT; i++) {
        int one = replay_one(&c, c.trace[i]);
        if (one > status) status = one;
    }
    return machine_close() != 0 ? FAILURES : status;
}
