/* bench-run: one allocator through the works of a plan: bench-run [--plan NAME] [--peer NAME]
   [--plugin LIBRARY] [--as NAME] [--work ID]...; with --work, through these works only.

   Prints a line a work, tabs between: WORK PEER WORDS UNIT FIRST LAST LEAST MOST RESERVED LIVE
   CALLS_FIRST CALLS_LAST FAILURES CUT ROUNDS; or WORK PEER WORDS - WHY. Lines that begin with #
   say what was measured on. */
#define _POSIX_C_SOURCE 200809L
#include "bench.h"

#include "gpupool.h"
#include "machine.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MS ((uint64_t)1000000)
#define MOST_ASKED 64

static const struct { const char *name; bench_plan plan; } plans[] = {
    {"host", {.of = BENCH_HOST, .part = 1, .kept = BENCH_PASSES, .pass_ns = 300 * MS,
              .warm_ns = 300 * MS}},
    {"full", {.of = BENCH_CLIFFS, .part = 1, .kept = BENCH_PASSES, .times = BENCH_TIMES,
              .pass_ns = 150 * MS, .warm_ns = 700 * MS, .rounds_ns = 8000 * MS, .rounds_part = 1}},
    {"quick", {.of = BENCH_QUICK, .part = 1, .kept = BENCH_PASSES, .times = 1, .pass_ns = 100 * MS,
               .warm_ns = 300 * MS, .rounds_ns = 1000 * MS, .rounds_part = 1}},
    {"memory", {.of = BENCH_MEMORY, .part = 1, .kept = 1, .pass_ns = 60000 * MS}},
    {"tiny", {.of = ~0u, .part = 50, .kept = BENCH_PASSES, .times = 1, .pass_ns = 20 * MS,
              .rounds_ns = 50 * MS, .rounds_part = 500}},
};

typedef struct command {
    const bench_plan *plan;
    const bench_peer *peer;
    const char *name, *work[MOST_ASKED];
    size_t works;
} command;

static int complain(const char *about, const char *sentence) {
    fprintf(stderr, "bench: %s: %s\n", about, sentence);
    return -1;
}

static int take_plan(command *c, const char *name) {
    for (size_t i = 0; i < sizeof plans / sizeof *plans; i++)
        if (strcmp(plans[i].name, name) == 0) return c->plan = &plans[i].plan, 0;
    return complain(name, "no plan; there are host, full, quick, memory and tiny");
}

static int take_peer(command *c, const char *name) {
    for (size_t i = 0; i < bench_peers_n; i++)
        if (strcmp(bench_peers[i]->name, name) == 0) return c->peer = bench_peers[i], 0;
    return complain(name, "no allocator of that name is built in");
}

static int take_plugin(command *c, const char *path) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    c->peer = library ? dlsym(library, "bench_plugin") : NULL;
    return c->peer ? 0 : complain(path, dlerror());
}

static int take_work(command *c, const char *id) {
    if (c->works == MOST_ASKED) return complain(id, "too many works");
    c->work[c->works++] = id;
    for (size_t i = 0; i < bench_works_n; i++)
        if (strcmp(bench_works[i].id, id) == 0) return 0;
    for (size_t i = 0; i < bench_bystanders_n; i++)
        if (strcmp(bench_bystanders[i].id, id) == 0) return 0;
    return complain(id, "no work of that name");
}

static int read_command(command *c, int argc, char **argv) {
    *c = (command){.plan = &plans[1].plan, .peer = &bench_gpupool};
    for (int i = 1; i < argc; i += 2) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        int bad;
        if (!value) bad = complain(argv[i], "its value is missing");
        else if (strcmp(argv[i], "--plan") == 0) bad = take_plan(c, value);
        else if (strcmp(argv[i], "--peer") == 0) bad = take_peer(c, value);
        else if (strcmp(argv[i], "--plugin") == 0) bad = take_plugin(c, value);
        else if (strcmp(argv[i], "--work") == 0) bad = take_work(c, value);
        else if (strcmp(argv[i], "--as") == 0) bad = 0, c->name = value;
        else bad = complain(argv[i], "unknown option");
        if (bad) return -1;
    }
    if (!c->name) c->name = c->peer->name;
    return 0;
}

static int is_asked(const command *c, const char *id, unsigned in) {
    unsigned sets = in ? in : BENCH_CLIFFS | BENCH_QUICK;
    for (size_t i = 0; i < c->works; i++)
        if (strcmp(c->work[i], id) == 0) return 1;
    return c->works == 0 && (c->plan->of & sets);
}

static void print(const command *c, const char *id, const char *words, const char *unit,
                  const bench_result *r) {
    printf("%s\t%s\t%s\t", id, c->name, words);
    if (r->why[0]) printf("-\t%s\n", r->why);
    else
        printf("%s\t%.1f\t%.1f\t%.1f\t%.1f\t%.0f\t%.0f\t%.4f\t%.4f\t%lu\t%u\t%u\n", unit, r->first,
               r->last, r->least, r->most, r->reserved, r->live, r->calls_first, r->calls_last,
               r->failures, r->cut, r->rounds);
    fflush(stdout);
}

static void print_head(const command *c) {
    int runtime = 0, driver = 0;
    cudaRuntimeGetVersion(&runtime);
    cudaDriverGetVersion(&driver);
    printf("# on: %s; %ld processors; CUDA runtime %d, driver %d\n", machine_name(),
           sysconf(_SC_NPROCESSORS_ONLN), runtime, driver);
    printf("# %s: %s", c->name, c->peer->about);
    if (c->peer == &bench_gpupool) printf(" (version %d)", GPUPOOL_VERSION);
    putchar('\n');
}

int main(int argc, char **argv) {
    command c;
    bench_result r;
    if (read_command(&c, argc, argv) != 0) return 2;
    if (machine_open() != 0) return EXIT_FAILURE;
    print_head(&c);
    for (size_t i = 0; i < bench_works_n; i++) {
        const bench_work *w = &bench_works[i];
        if (!is_asked(&c, w->id, w->in)) continue;
        bench_run(w, c.peer, c.plan, &r);
        print(&c, w->id, w->words, "ns", &r);
    }
    for (size_t i = 0; i < bench_bystanders_n; i++) {
        const bystander *b = &bench_bystanders[i];
        if (!is_asked(&c, b->id, 0)) continue;
        bench_stand_by(b, c.peer, c.plan, &r);
        print(&c, b->id, b->words, "us", &r);
        command clock = {.name = "clock"}; /* the machine's own doing */
        bench_stand_alone(c.plan, &r);
        print(&clock, b->id, b->words, "us", &r);
    }
    return machine_close() == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
