/* bench: what an allocation costs on the host, beside what it costs with others.

   bench [--json FILE] [--plugin LIBRARY]... [--lines FILE]... [--work ID]... [--hurry]
   A line of FILE: PEER WORK NS NS_LEAST NS_MOST OPS SAMPLES P50 P99 P99.9 MAX, tabs between, of a
   peer that measured itself; or `left out`, a tab, and a sentence. */
#define _POSIX_C_SOURCE 200809L
#include "bench.h"

#include "machine.h"
#include "works.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MOST 16 /* peers, plug-ins, files of lines, works asked for */

typedef struct command {
    const char *json, *plugin[MOST], *lines[MOST], *work[MOST];
    size_t plugins, files, works;
} command;

static bench_results results;
static const bench_work *work[64];
static const bench_peer *peer[MOST];
static char *left_out[64];

static void complain(const char *about, const char *sentence) {
    fprintf(stderr, "bench: %s: %s\n", about, sentence);
}

static void leave_out(const char *name, const char *why) {
    size_t bytes = strlen(name) + strlen(why) + 4;
    char *sentence = malloc(bytes);
    if (!sentence || results.left_outs == sizeof left_out / sizeof *left_out) return;
    snprintf(sentence, bytes, "%s%s%s", name, *name ? ": " : "", why);
    left_out[results.left_outs++] = sentence;
}

/* ---- what to run ---- */

static int take(const char **list, size_t *n, const char *value) {
    if (*n < MOST) list[(*n)++] = value;
    else complain(value, "too many of these");
    return *n <= MOST ? 0 : -1;
}

static int read_command(command *c, int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        int bad = 0;
        if (strcmp(argv[i], "--hurry") == 0) {
            bench_hurry = 20;
            continue;
        }
        if (!value) bad = 1;
        else if (strcmp(argv[i], "--json") == 0) c->json = value;
        else if (strcmp(argv[i], "--plugin") == 0) bad = take(c->plugin, &c->plugins, value);
        else if (strcmp(argv[i], "--lines") == 0) bad = take(c->lines, &c->files, value);
        else if (strcmp(argv[i], "--work") == 0) bad = take(c->work, &c->works, value);
        else bad = 1;
        if (bad) {
            complain(argv[i], "unknown option, or its value is missing");
            return -1;
        }
        i++;
    }
    return 0;
}

static int add_works(const command *c) {
    for (size_t i = 0; i < bench_works_n; i++) {
        size_t k = 0;
        while (k < c->works && strcmp(c->work[k], bench_works[i].id) != 0) k++;
        if (c->works == 0 || k < c->works) work[results.works++] = &bench_works[i];
    }
    if (results.works) return 0;
    complain("--work", "there is none of that name");
    return -1;
}

/* Opened once to see whether it is there. */
static void add_peer(const bench_peer *p) {
    char why[BENCH_WHY] = "";
    void *pool = p->open(0, 0, why);
    if (pool) p->close(pool);
    if (!pool) leave_out(p->name, why);
    else if (results.peers < MOST) peer[results.peers++] = p;
}

static void add_plugin(const char *path) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const bench_peer *p = library ? dlsym(library, "bench_plugin") : NULL;
    if (p) add_peer(p);
    else leave_out(path, dlerror());
}

/* ---- peers that measured themselves ---- */

static const bench_peer *named_peer(const char *name) {
    static bench_peer made[MOST];
    static size_t n;
    for (size_t i = 0; i < results.peers; i++)
        if (strcmp(peer[i]->name, name) == 0) return peer[i];
    if (results.peers == MOST || n == MOST) return NULL;
    made[n] = (bench_peer){.name = strdup(name), .about = "as its own program measured it",
                           .can = BENCH_DEVICE};
    return peer[results.peers++] = &made[n++];
}

static int read_line(const char *line, int store) {
    char name[32], id[32], why[BENCH_WHY];
    bench_cell c = {.calls = -1};
    if (sscanf(line, "left out\t%199[^\n]", why) == 1) {
        if (!store) leave_out("", why);
        return 0;
    }
    if (sscanf(line, "%31[^\t]\t%31[^\t]\t%lf\t%lf\t%lf\t%zu\t%zu\t%lf\t%lf\t%lf\t%lf", name, id,
               &c.ns, &c.ns_least, &c.ns_most, &c.ops, &c.samples, &c.p50, &c.p99, &c.p999,
               &c.max) != 11)
        return -1;
    c.peer = named_peer(name);
    for (size_t i = 0; i < results.works * results.peers && store; i++) {
        bench_cell *to = &results.cell[i];
        if (to->peer != c.peer || strcmp(to->work->id, id) != 0) continue;
        c.work = to->work;
        *to = c;
    }
    return 0;
}

/* Twice: first to see who is there, then, with the cells made, for the figures. */
static int read_lines(const char *path, int store) {
    char line[400];
    FILE *file = fopen(path, "r");
    int bad = 0;
    if (!file) {
        complain(path, strerror(errno));
        return -1;
    }
    while (fgets(line, sizeof line, file)) bad |= read_line(line, store);
    fclose(file);
    if (bad) complain(path, "a line is not as it should be");
    return bad;
}

/* ---- running ---- */

static int run_all(const command *c) {
    bench_results *r = &results;
    uint64_t start = machine_now_ns();
    r->cell = calloc(r->works * r->peers, sizeof *r->cell);
    if (!r->cell) return -1;
    for (size_t i = 0; i < r->works * r->peers; i++) {
        r->cell[i].work = work[i / r->peers];
        r->cell[i].peer = peer[i % r->peers];
        snprintf(r->cell[i].why, BENCH_WHY, "not a work for it");
    }
    for (size_t i = 0; i < c->files; i++) read_lines(c->lines[i], 1);
    bench_print_head(stdout, r);
    for (size_t w = 0; w < r->works; w++) {
        for (size_t p = 0; p < r->peers; p++) {
            bench_cell *cell = &r->cell[w * r->peers + p];
            if (!peer[p]->open) continue; /* its figures were read */
            cell->why[0] = 0;
            bench_run(cell);
        }
        bench_print_row(stdout, r, w);
    }
    bench_run_clock(&r->clock);
    r->seconds = (double)(machine_now_ns() - start) / 1e9;
    bench_print_rest(stdout, r);
    return 0;
}

static int write_json(const char *path) {
    FILE *file = path ? fopen(path, "w") : NULL;
    if (!path) return 0;
    if (file) bench_write_json(file, &results);
    if (file && fclose(file) == 0) return 0;
    complain(path, strerror(errno));
    return -1;
}

int main(int argc, char **argv) {
    command c = {0};
    results = (bench_results){.work = work, .peer = peer, .left_out = left_out,
                              .cores = bench_cores()};
    if (read_command(&c, argc, argv) != 0 || add_works(&c) != 0 || machine_open() != 0) return 2;
    for (size_t i = 0; i < bench_peers_n; i++) add_peer(bench_peers[i]);
    for (size_t i = 0; i < c.plugins; i++) add_plugin(c.plugin[i]);
    for (size_t i = 0; i < c.files; i++)
        if (read_lines(c.lines[i], 0) != 0) return 2;
    if (machine_is_simulated())
        leave_out("cudaMalloc, cudaMallocAsync, CUB, PyTorch, CuPy", "no GPU here");
    if (run_all(&c) != 0) return 1;
    int failed = write_json(c.json);
    for (size_t i = 0; i < results.works; i++)
        failed |= !bench_find(&results, work[i]->id, "gpupool");
    return failed ? 1 : 0;
}
