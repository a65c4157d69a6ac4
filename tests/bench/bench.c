/* bench: what an allocation costs on the host, beside what it costs with others: make bench.

   bench-run [--work ID]... [--plugin LIBRARY]... [--hurry]

   Each peer does each work from the start: it is filled, warmed by the work itself, and then runs
   it several times; the median counts. In one more run each operation is timed by itself: the clock
   is in these figures. A churn's operation is a free and an allocation. Where CUDA is simulated its
   time is taken out and its price put in. */
#define _GNU_SOURCE
#include "gpupool.h"
#include "bench.h"
#include "check.h"
#include "machine.h"
#include "trace.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define RUNS 7
#define RUN_NS 20e6 /* a run should take as long */
#define OPS ((size_t)1 << 17)
#define MOST_PEERS 16

typedef enum kind {
    PAIR,      /* get a block and put it back */
    CHURN,     /* put back any block of the live ones, and get another */
    HAND_OVER, /* a pair on one stream, a pair on the other, of all the memory there is */
    TRACE      /* the operations of a recorded program */
} kind;

typedef struct work {
    const char *id, *words;
    kind kind;
    unsigned needs;           /* of the peer: BENCH_BLOCKS ... */
    size_t live, least, most; /* blocks alive all the time, of each thread; their sizes in bytes */
    unsigned threads;
    int shared;               /* the threads have one stream; else each its own */
    double bar;               /* gpupool's: so many ns, or times the other peer's figure */
    const char *bar_peer;
} work;

#define ALONE BENCH_BLOCKS
#define LARGE (BENCH_BLOCKS | BENCH_DEVICE | BENCH_MANY)
#define SPREAD (BENCH_BLOCKS | BENCH_THREADS)
static const work works[] = {
    {"pair", "pair of 4 KiB, nothing else live", PAIR, ALONE, 0, 4 * KIB, 4 * KIB, 1, 0, 2.5,
     "mimalloc"},
    {"churn-16k", "churn, 16,384 live, 512 B to 64 KiB", CHURN, ALONE, 16384, 512, 64 * KIB, 1, 0,
     2, "mimalloc"},
    {"churn-large", "churn, 4,096 live, 512 B to 64 MiB", CHURN, LARGE, 4096, 512, 64 * MIB, 1, 0,
     100, NULL},
    {"live-256k", "churn, 262,144 live, 512 B to 256 KiB", CHURN, ALONE | BENCH_HUGE, 262144, 512,
     256 * KIB, 1, 0, 0, NULL},
    {"hand-over", "hand-over of 2 MiB to another stream", HAND_OVER, BENCH_HAND_OVER, 0, 2 * MIB,
     2 * MIB, 1, 0, 1, "record + wait"},
    {"gpt2var", "trace: GPT-2 training, warm", TRACE, LARGE, 0, 0, 0, 1, 0, 60, NULL},
    {"frcnn", "trace: Faster R-CNN training, warm", TRACE, LARGE, 0, 0, 0, 1, 0, 60, NULL},
    {"resnet50", "trace: ResNet-50 training, warm", TRACE, LARGE, 0, 0, 0, 1, 0, 60, NULL},
    {"llamagen", "trace: Llama generation, warm", TRACE, LARGE, 0, 0, 0, 1, 0, 60, NULL},
    {"pair-2", "pairs, 2 threads, a stream each", PAIR, SPREAD, 0, 4 * KIB, 4 * KIB, 2, 0, 0, NULL},
    {"pair-8", "pairs, 8 threads", PAIR, SPREAD, 0, 4 * KIB, 4 * KIB, 8, 0, 0, NULL},
    {"pair-shared", "pairs, 8 threads on one stream", PAIR, SPREAD, 0, 4 * KIB, 4 * KIB, 8, 1, 1000,
     NULL},
    {"churn-8", "churn, 8 threads, 2,048 live each", CHURN, SPREAD | BENCH_MANY, 2048, 512,
     64 * KIB, 8, 0, 0, NULL}};
#define WORKS (sizeof works / sizeof *works)

typedef struct cell { /* of a work and a peer */
    double ns, calls; /* an operation; 0: not measured */
    double p50, p99, most;
} cell;

typedef struct op {
    uint64_t bytes; /* 0: a free, in a trace */
    uint32_t slot;
} op;

typedef struct session session;
typedef struct lane { /* a thread's part */
    session *session;
    cudaStream_t stream[2];
    op *ops;
    size_t count, slots, next;
    void **block; /* by slot */
    double ns;
    int failed;
    pthread_t thread;
} lane;

struct session {
    const work *work;
    const bench_peer *peer;
    void *pool;
    size_t n;     /* operations of a run, of each thread */
    float *each;  /* of the first thread: ns of each operation, if wanted */
    lane *lanes;
    pthread_barrier_t gate;
    cell *to;
};

static const bench_peer *peer[MOST_PEERS];
static size_t peers;
static double hurry = 1;

static void *need(size_t n, size_t bytes) {
    void *memory = calloc(n ? n : 1, bytes);
    if (memory) return memory;
    fprintf(stderr, "bench: host memory is out\n");
    exit(EXIT_FAILURE);
}

/* ---- the steps, drawn before any clock starts; the same for every peer ---- */

/* Log-uniform: each doubling of size is as likely as the next. */
static size_t draw_size(const work *w, uint64_t *random) {
    unsigned doublings = 0;
    while (w->least << (doublings + 1) <= w->most) doublings++;
    size_t low = doublings ? w->least << check_below(random, doublings) : w->least;
    size_t high = low * 2 < w->most ? low * 2 : w->most;
    return low + (size_t)check_below(random, high - low + 1);
}

static void draw(lane *l, uint64_t random) {
    const work *w = l->session->work;
    char path[200];
    trace t = {0};
    snprintf(path, sizeof path, "tests/traces/%s.trace.gz", w->id);
    if (w->kind == TRACE && trace_read(&t, path) != 0) exit(EXIT_FAILURE);
    l->count = w->kind == TRACE ? t.events : OPS;
    l->slots = w->kind == TRACE ? t.slots : w->live;
    l->ops = need(l->count, sizeof *l->ops);
    l->block = need(l->slots, sizeof *l->block);
    for (size_t i = 0; i < l->count; i++) {
        if (w->kind == TRACE) l->ops[i] = (op){t.event[i].bytes, t.event[i].slot};
        else
            l->ops[i] = (op){draw_size(w, &random),
                             w->live ? (uint32_t)check_below(&random, w->live) : 0};
    }
    if (w->kind == TRACE) trace_free(&t);
}

/* ---- the loops: all go through the peer's functions, so nobody's calls are inlined ---- */

#define GET(l, bytes, s) (l)->session->peer->get((l)->session->pool, (bytes), (l)->stream[s])
#define PUT(l, at, s) (l)->session->peer->put((l)->session->pool, (at), (l)->stream[s])

/* One operation of the work: 0, or it was refused. */
static inline int step(lane *l, kind what, size_t i) {
    const op *o = &l->ops[i % OPS];
    void *block;
    switch (what) {
    case PAIR: block = GET(l, o->bytes, 0); return !block || PUT(l, block, 0);
    case HAND_OVER: block = GET(l, o->bytes, i & 1); return !block || PUT(l, block, i & 1);
    case CHURN:
        if (PUT(l, l->block[o->slot], 0)) return 1;
        return !(l->block[o->slot] = GET(l, o->bytes, 0));
    case TRACE:
        o = &l->ops[i];
        if (o->bytes) return !(l->block[o->slot] = GET(l, o->bytes, 0));
        block = l->block[o->slot];
        l->block[o->slot] = NULL;
        return PUT(l, block, 0);
    }
    return 1;
}

static inline __attribute__((always_inline)) void loop(lane *l, kind what, size_t n, float *each) {
    for (size_t i = 0; i < n; i++) {
        uint64_t from = each ? machine_now_ns() : 0;
        l->failed |= step(l, what, i);
        if (each) each[i] = (float)(machine_now_ns() - from);
    }
}

static void put_all(lane *l) {
    for (size_t i = 0; i < l->slots; i++) {
        if (l->block[i] && PUT(l, l->block[i], 0)) l->failed = 1;
        l->block[i] = NULL;
    }
}

/* What to add to a time that began when the meter was read. */
static double owed(const session *s, machine_meter before) {
    machine_meter now = machine_read();
    double ns = (double)(now.driver_ns - before.driver_ns) -
                (double)(now.inside_ns - before.inside_ns);
    return machine_is_simulated() ? ns / s->work->threads : 0;
}

static void run(lane *l, size_t n, float *each) {
    machine_meter before = machine_read();
    uint64_t from = machine_now_ns();
    switch (l->session->work->kind) { /* a constant in each loop */
    case PAIR: loop(l, PAIR, n, each); break;
    case CHURN: loop(l, CHURN, n, each); break;
    case HAND_OVER: loop(l, HAND_OVER, n, each); break;
    case TRACE: loop(l, TRACE, n, each); break;
    }
    l->ns = (double)(machine_now_ns() - from) + owed(l->session, before);
    if (l->session->work->kind == TRACE) put_all(l); /* what the trace leaves alive */
}

/* ---- a session ---- */

static int by_double(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int by_float(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* The slowest thread's time. Every thread must call it. */
static double all_ran(lane *l) {
    session *s = l->session;
    double slowest = 0;
    pthread_barrier_wait(&s->gate);
    for (unsigned i = 0; i < s->work->threads; i++)
        if (s->lanes[i].ns > slowest) slowest = s->lanes[i].ns;
    pthread_barrier_wait(&s->gate);
    return slowest;
}

/* How many operations fill the time of a run. */
static void calibrate(lane *l) {
    session *s = l->session;
    size_t n = 256;
    double ns = 0;
    if (s->work->kind == TRACE) {
        if (l == s->lanes) s->n = l->count;
        return;
    }
    for (; ns < RUN_NS / 64 && n < 65536; n *= 16) {
        run(l, n, NULL);
        ns = all_ran(l) * 16;
    }
    if (l == s->lanes) s->n = (size_t)(RUN_NS / hurry / ns * (double)n) + 256;
    pthread_barrier_wait(&s->gate);
}

static void tails(session *s) {
    qsort(s->each, s->n, sizeof *s->each, by_float);
    s->to->p50 = (double)s->each[s->n / 2];
    s->to->p99 = (double)s->each[s->n / 100 * 99];
    s->to->most = (double)s->each[s->n - 1];
}

static void *take_part(void *user) {
    lane *l = user;
    session *s = l->session;
    double ns[RUNS];
    machine_meter before;
    cudaSetDevice(0);
    for (size_t i = 0; i < s->work->live; i++)
        l->failed |= !(l->block[i] = GET(l, l->ops[i % OPS].bytes, 0));
    pthread_barrier_wait(&s->gate);
    calibrate(l);
    run(l, s->n > 4 * l->slots || s->work->kind == TRACE ? s->n : 4 * l->slots, NULL);
    all_ran(l);
    before = machine_read();
    for (int i = 0; i < RUNS; i++) {
        run(l, s->n, NULL);
        ns[i] = all_ran(l) / (double)s->n;
    }
    if (l == s->lanes) {
        double all = (double)s->n * RUNS * s->work->threads;
        qsort(ns, RUNS, sizeof *ns, by_double);
        s->to->ns = ns[RUNS / 2];
        s->to->calls = (double)(machine_read().calls - before.calls) / all;
        s->each = need(s->n, sizeof *s->each);
    }
    pthread_barrier_wait(&s->gate);
    run(l, s->n, l == s->lanes ? s->each : NULL);
    pthread_barrier_wait(&s->gate);
    if (l == s->lanes) tails(s);
    put_all(l);
    return NULL;
}

static void new_stream(cudaStream_t *stream) {
    if (cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking) == cudaSuccess) return;
    fprintf(stderr, "bench: no stream can be created\n");
    exit(EXIT_FAILURE);
}

static void measure(const work *w, const bench_peer *p, cell *to) {
    session s = {.work = w, .peer = p, .to = to, .lanes = need(w->threads, sizeof(lane))};
    char why[BENCH_WHY] = "";
    int failed = 0;
    s.pool = p->open(w->kind == HAND_OVER ? w->most : 0, 0, why);
    if (!s.pool) return;
    pthread_barrier_init(&s.gate, NULL, w->threads);
    for (unsigned i = 0; i < w->threads; i++) {
        lane *l = &s.lanes[i];
        l->session = &s;
        draw(l, 1 + i);
        for (int k = 0; k < 2; k++) {
            if (i && w->shared) l->stream[k] = s.lanes[0].stream[k];
            else new_stream(&l->stream[k]);
        }
    }
    for (unsigned i = 1; i < w->threads; i++)
        if (pthread_create(&s.lanes[i].thread, NULL, take_part, &s.lanes[i])) exit(EXIT_FAILURE);
    take_part(&s.lanes[0]);
    for (unsigned i = 1; i < w->threads; i++) pthread_join(s.lanes[i].thread, NULL);
    p->close(s.pool);
    for (unsigned i = 0; i < w->threads; i++) {
        lane *l = &s.lanes[i];
        for (int k = 0; k < 2 && !(i && w->shared); k++) cudaStreamDestroy(l->stream[k]);
        failed |= l->failed;
        free(l->ops);
        free(l->block);
    }
    if (failed) printf("%s, %s: an allocation or a free was refused\n", p->name, w->words);
    if (failed) *to = (cell){0};
    pthread_barrier_destroy(&s.gate);
    free(s.each);
    free(s.lanes);
}

/* ---- the table ---- */

static void print_bar(const work *w, const cell *row) {
    double most = w->bar;
    for (size_t p = 0; p < peers && w->bar_peer; p++)
        if (strcmp(peer[p]->name, w->bar_peer) == 0) most = w->bar * row[p].ns;
    if (w->bar_peer && most <= w->bar) most = 0; /* it was not measured */
    if (most > 0) printf("  at most %.0f: %s", most, row[0].ns <= most ? "met" : "MISSED");
}

static void print_row(const work *w, const cell *row, unsigned cores) {
    printf("%-38s%s", w->words, w->threads > cores ? "*" : " ");
    for (size_t p = 0; p < peers; p++) {
        if (row[p].ns > 0) printf(" %15.1f", row[p].ns);
        else printf(" %15s", "-");
    }
    printf("  gpupool: %.2f calls, p50 %.0f, p99 %.0f, most %.0f", row[0].calls, row[0].p50,
           row[0].p99, row[0].most);
    print_bar(w, row);
    printf("\n");
    fflush(stdout);
}

static void add_peer(const bench_peer *p) { /* opened once to see whether it is there */
    char why[BENCH_WHY] = "";
    void *pool = p->open(0, 0, why);
    if (pool) p->close(pool);
    if (!pool) printf("left out: %s: %s\n", p->name, why);
    else if (peers < MOST_PEERS) peer[peers++] = p;
}

static void add_plugin(const char *path) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const bench_peer *p = library ? dlsym(library, "bench_plugin") : NULL;
    if (p) add_peer(p);
    else printf("left out: %s: %s\n", path, dlerror());
}

static int is_wanted(const char *id, int count, char **words) {
    int any = 0;
    for (int i = 1; i + 1 < count; i++) {
        if (strcmp(words[i], "--work") != 0) continue;
        if (strcmp(words[i + 1], id) == 0) return 1;
        any = 1;
    }
    return !any;
}

int main(int count, char **words) {
    size_t done = 0;
    cpu_set_t set;
    unsigned cores = sched_getaffinity(0, sizeof set, &set) ? 1 : (unsigned)CPU_COUNT(&set);
    if (machine_open() != 0) return 2;
    for (size_t i = 0; i < bench_peers_n; i++) add_peer(bench_peers[i]);
    for (int i = 1; i < count; i++) {
        if (strcmp(words[i], "--hurry") == 0) hurry = 20;
        if (strcmp(words[i], "--plugin") == 0 && i + 1 < count) add_plugin(words[i + 1]);
    }
    printf("gpupool on a %s, %u cores; ns an operation%s\n%-39s", machine_name(), cores,
           machine_is_simulated() ? ", CUDA's calls as priced on an H200" : "", "");
    for (size_t p = 0; p < peers; p++) printf(" %15s", peer[p]->name);
    printf("\n");
    for (size_t w = 0; w < WORKS; w++) {
        cell row[MOST_PEERS] = {{0}};
        if (!is_wanted(works[w].id, count, words)) continue;
        for (size_t p = 0; p < peers; p++)
            if ((peer[p]->can & works[w].needs) == works[w].needs)
                measure(&works[w], peer[p], &row[p]);
        print_row(&works[w], row, cores);
        done++;
        if (row[0].ns <= 0) return 1;
    }
    printf("* more threads than cores: they take turns, and so does the figure\n");
    if (!done) fprintf(stderr, "bench: there is no work of that name\n");
    return done ? 0 : 2;
}
