/* replay: recorded allocations through a gpupool arena, and what that took. */
#include "machine.h"
#include "replay_beside.h"
#include "replay_print.h"
#include "replay_run.h"

#include <stdlib.h>
#include <string.h>

#define MAX_MANY 1024 /* streams or threads */
enum { FINE = 0, FAILURES = 1, BAD_INPUT = 2 };

static const char usage[] =
    "usage: replay [--json] [--passes N] [--limit TEXT] [--min-limit] [--limit-passes N]\n"
    "              [--source NAME] [--streams N] [--threads N] [--behind] [--sync]\n"
    "              [--in-turn] [--beside] [--cudafree] [--svg FILE] [--timeline FILE]\n"
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
    "  --sync         each request and each free names no stream\n"
    "  --in-turn      the traces are the passes, one after the other through one arena\n"
    "  --svg FILE     draw the arena at its fullest moment\n"
    "  --timeline FILE  draw live and reserved memory, and the limit, over the events\n"
    "  --beside       the traces at once: an event of each in turn, a stream for each trace\n"
    "  --cudafree     every free is gpupool_cudaFree, in the default arena\n"
    "A trace is replayed three times over: reserved is the most that was held meanwhile.\n"
    "The first pass is called cold, the last warm.\n";

static const struct {
    const char *name;
    gpupool_source source;
} sources[] = {
    {"auto", GPUPOOL_SOURCE_AUTO},     {"mapped", GPUPOOL_SOURCE_MAPPED},
    {"device", GPUPOOL_SOURCE_DEVICE}, {"managed", GPUPOOL_SOURCE_MANAGED},
    {"pinned", GPUPOOL_SOURCE_PINNED}, {"bypass", GPUPOOL_SOURCE_BYPASS},
};

typedef struct command {
    replay_options options;
    const char *source;
    const char *limit;
    int json, beside, in_turn;
    char **trace;
    int traces;
} command;

static int refuse(const char *sentence, const char *about) {
    fprintf(stderr, "replay: %s%s\n", sentence, about);
    return -1;
}

static int take_source(command *c, const char *name) {
    for (size_t i = 0; i < sizeof sources / sizeof *sources; i++) {
        if (strcmp(sources[i].name, name) != 0) continue;
        c->source = sources[i].name;
        c->options.config.source = sources[i].source;
        return 0;
    }
    return refuse("--source takes auto, mapped, device, managed, pinned or bypass, not ", name);
}

static int take_count(unsigned *count, const char *option, const char *text) {
    int passes = strstr(option, "passes") != NULL;
    long n, most = passes ? REPLAY_MOST_PASSES : MAX_MANY;
    char *end;
    n = strtol(text, &end, 10);
    *count = (unsigned)n;
    if (end != text && !*end && n >= 1 && n <= most) return 0;
    return refuse(option, passes ? " takes a number from 1 to 100"
                                 : " takes a number from 1 to 1024");
}

/* An arena reads the text, since a config has none. */
static gpupool_result read_limit(gpupool_arena_config *config, const char *text) {
    gpupool_arena *reader;
    gpupool_stats stats;
    gpupool_result result = gpupool_arena_create(&reader, NULL);
    if (result != GPUPOOL_OK) return result;
    result = gpupool_set_limit_text(reader, text);
    if (result == GPUPOOL_OK) result = gpupool_get_stats(reader, &stats);
    if (result == GPUPOOL_OK) config->limit_bytes = (size_t)stats.limit;
    gpupool_arena_destroy(reader);
    return result;
}

static int take_limit(command *c, const char *text) {
    c->limit = text;
    if (read_limit(&c->options.config, text) == GPUPOOL_OK) return 0;
    fprintf(stderr, "%s: ", gpupool_result_name(gpupool_last_result()));
    return refuse("--limit: ", gpupool_last_error());
}

static int take_option(command *c, const char *option, const char *value) {
    replay_options *o = &c->options;
    if (strcmp(option, "--source") == 0) return take_source(c, value);
    if (strcmp(option, "--streams") == 0) return take_count(&o->streams, option, value);
    if (strcmp(option, "--threads") == 0) return take_count(&o->threads, option, value);
    if (strcmp(option, "--passes") == 0) return take_count(&o->passes, option, value);
    if (strcmp(option, "--limit-passes") == 0) return take_count(&o->limit_passes, option, value);
    if (strcmp(option, "--limit") == 0) return take_limit(c, value);
    if (strcmp(option, "--svg") == 0) o->svg = value;
    else if (strcmp(option, "--timeline") == 0) o->timeline = value;
    else return refuse("unknown option ", option);
    return 0;
}

static int check_command(const command *c) {
    const replay_options *o = &c->options;
    if (c->traces == 0) return refuse("names no trace", "");
    if (o->cuda_free &&
        (c->limit || o->min_limit || o->timeline || strcmp(c->source, "auto") != 0))
        return refuse("--cudafree takes the default arena as it is: no limit, source or timeline",
                      "");
    if (o->cuda_free && o->sync) return refuse("--sync frees without a stream: no --cudafree", "");
    if (c->beside && o->streams)
        return refuse("--beside gives each trace its stream: --streams does not go with it", "");
    if (o->sync && (o->min_limit || o->timeline))
        return refuse("--sync goes with neither --min-limit nor --timeline", "");
    if (c->in_turn && (o->passes || o->min_limit || o->svg || o->timeline))
        return refuse("--in-turn makes a pass of each trace: no --passes, limits or pictures", "");
    if (c->in_turn && c->beside) return refuse("--in-turn or --beside, not both", "");
    if (c->in_turn && c->traces > REPLAY_MOST_PASSES)
        return refuse("--in-turn takes 100 traces at most", "");
    if (o->limit_passes && !o->min_limit)
        return refuse("--limit-passes needs --min-limit", "");
    if (o->svg && c->traces > 1 && !c->beside)
        return refuse("--svg draws one trace, not several", "");
    if (o->timeline && c->traces > 1 && !c->beside)
        return refuse("--timeline draws one trace, not several", "");
    if (o->timeline && o->threads > 1)
        return refuse("--timeline needs a fixed order of events: no --threads with it", "");
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
        else if (strcmp(argv[i], "--sync") == 0) c->options.sync = 1;
        else if (strcmp(argv[i], "--in-turn") == 0) c->in_turn = 1;
        else if (strcmp(argv[i], "--beside") == 0) c->beside = 1;
        else if (strcmp(argv[i], "--cudafree") == 0) c->options.cuda_free = 1;
        else if (argv[i][0] != '-') c->trace[c->traces++] = argv[i];
        else if (i + 1 == argc) return refuse("unknown option, or its value is missing: ", argv[i]);
        else if (take_option(c, argv[i], argv[i + 1]) != 0) return -1;
        else i++;
    }
    return check_command(c);
}

/* One trace, or in turn as many as the command names. */
static int replay_traces(const command *c, const trace *t, const char *path) {
    replay_result r;
    gpupool_result why;
    replay_options options = c->options;
    int status = FINE;
    options.name = path;
    if (c->in_turn) options.passes = options.turns = (unsigned)c->traces;
    if (replay_run(&options, t, &r, &why) != 0)
        status = why == GPUPOOL_E_ARGUMENT ? BAD_INPUT : FAILURES;
    else if (c->json) replay_print_json(stdout, path, c->source, &options, &r);
    else replay_print_row(stdout, path, &options, &r);
    if (status == FINE && r.failures) {
        fflush(stdout); /* the figures come first */
        fprintf(stderr, "%s: %s\n", path, r.first_sentence);
        status = FAILURES;
    }
    return status;
}

static int replay_one(const command *c, const char *path) {
    trace t;
    int status;
    if (trace_read(&t, path) != 0) return BAD_INPUT;
    status = replay_traces(c, &t, path);
    trace_free(&t);
    return status;
}

/* "A + B", to be freed; NULL without host memory. */
static char *join_names(const command *c) {
    size_t bytes = 1;
    for (int i = 0; i < c->traces; i++) bytes += strlen(c->trace[i]) + 3;
    char *names = calloc(bytes, 1);
    for (int i = 0; names && i < c->traces; i++) {
        if (i) strcat(names, " + ");
        strcat(names, c->trace[i]);
    }
    return names;
}

static int replay_all_at_once(const command *c) {
    trace *of = calloc((size_t)c->traces, sizeof *of), joined;
    char *names = join_names(c);
    int read = 0, status = of && names ? FINE : FAILURES;
    while (status == FINE && read < c->traces)
        if (trace_read(&of[read], c->trace[read]) == 0) read++;
        else status = BAD_INPUT;
    if (status == FINE && replay_beside(&joined, of, (size_t)read) != 0) status = BAD_INPUT;
    while (read) trace_free(&of[--read]);
    if (status == FINE) {
        status = replay_traces(c, &joined, names);
        trace_free(&joined);
    }
    free(names);
    free(of);
    return status;
}

static int replay_in_turn(const command *c) {
    trace *t = calloc((size_t)c->traces, sizeof *t);
    char *names = join_names(c);
    int read = 0, status = t && names ? FINE : FAILURES;
    while (status == FINE && read < c->traces)
        if (trace_read(&t[read], c->trace[read]) == 0) read++;
        else status = BAD_INPUT;
    if (status == FINE) status = replay_traces(c, t, names);
    while (read) trace_free(&t[--read]);
    free(names);
    free(t);
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
    if (!c.json) replay_print_head(stdout, &c.options);
    if (c.beside) status = replay_all_at_once(&c);
    if (c.in_turn) status = replay_in_turn(&c);
    for (int i = 0; i < c.traces && !c.beside && !c.in_turn && status != BAD_INPUT; i++) {
        int one = replay_one(&c, c.trace[i]);
        if (one > status) status = one;
    }
    return machine_close() != 0 ? FAILURES : status;
}
