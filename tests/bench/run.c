/* Runs one work on one peer. A session opens the peer afresh, fills it, warms it with the work
   itself, and then measures: one session for the mean, in several runs, and another in which each
   operation is timed by itself, since the clock would spoil the mean. For a peer that tells of its
   growth there are three of the second kind, which with one thread are alike, operation by
   operation: what is slow in all of them is not the machine's doing. */
#define _GNU_SOURCE
#include "lane.h"

#include "tick.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#define PASSES 3          /* sessions that time each operation */
#define SETTLED_OPS ((size_t)1 << 17)
#define RUN_NS 20e6       /* one run should take as long */
#define MOST_OPS ((size_t)1 << 20)
#define MOST_SAMPLES ((size_t)1 << 16) /* operations timed by themselves, of all threads */

unsigned bench_hurry = 1;

typedef struct session {
    bench_cell *cell;
    unsigned threads;
    int each;         /* 1: time each operation */
    size_t n;         /* operations of a run, of each thread */
    void *pool;
    lane *lane;
    pthread_barrier_t gate;
    double run_ns[BENCH_RUNS];
    double calls;
} session;

typedef struct runner {
    session *s;
    unsigned number;
} runner;

static _Noreturn void give_up(const char *sentence) {
    fprintf(stderr, "bench: %s\n", sentence);
    exit(EXIT_FAILURE); /* threads may be waiting for each other: nothing can be undone */
}

static void *need(size_t n, size_t bytes) {
    void *memory = calloc(n ? n : 1, bytes);
    if (!memory) give_up("host memory is out");
    return memory;
}

/* ---- threads and cores ---- */

static cpu_set_t cores;

unsigned bench_cores(void) {
    static unsigned count;
    if (!count && sched_getaffinity(0, sizeof cores, &cores) == 0)
        count = (unsigned)CPU_COUNT(&cores);
    return count ? count : 1;
}

static void pin(unsigned number) {
    unsigned seen = 0;
    for (size_t core = 0; core < CPU_SETSIZE; core++) {
        if (!CPU_ISSET(core, &cores) || seen++ != number) continue;
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(core, &one);
        pthread_setaffinity_np(pthread_self(), sizeof one, &one);
    }
}

/* ---- a thread's part of a session ---- */

/* Of all threads together: the time of the slowest. Every thread must call it. */
static double all_ran(session *s, unsigned number) {
    double slowest = 0;
    pthread_barrier_wait(&s->gate);
    for (unsigned i = 0; i < s->threads && number == 0; i++)
        if (s->lane[i].ns > slowest) slowest = s->lane[i].ns;
    return slowest;
}

/* Finds how many operations fill the time of a run. */
static void calibrate(session *s, unsigned number) {
    const bench_work *w = s->cell->work;
    lane *l = &s->lane[number];
    for (size_t n = LANE_BATCH; w->kind != BENCH_TRACE && s->n == 0; n *= 16) {
        lane_run(l, n);
        double ns = all_ran(s, number);
        if (number == 0 && (ns > RUN_NS / 64 || n >= 65536)) {
            double fitting = RUN_NS / bench_hurry / ns * (double)n;
            s->n = fitting > (double)MOST_OPS ? MOST_OPS : (size_t)fitting;
            s->n = (s->n / LANE_BATCH + 1) * LANE_BATCH;
        }
        pthread_barrier_wait(&s->gate);
    }
}

static void measure_mean(session *s, unsigned number) {
    lane *l = &s->lane[number];
    for (int run = 0; run < BENCH_RUNS; run++) {
        pthread_barrier_wait(&s->gate);
        lane_run(l, s->n);
        double ns = all_ran(s, number);
        if (number == 0) s->run_ns[run] = ns / (double)s->n;
    }
}

/* At least a run, and until pools have settled: every live block has been replaced several times,
   in 131,072 operations or more. What keeps nothing needs no more than the run. */
static size_t warm_ops(const session *s) {
    const bench_cell *c = s->cell;
    size_t settled = 4 * c->work->live / LANE_BATCH * LANE_BATCH;
    if (settled < SETTLED_OPS) settled = SETTLED_OPS;
    int short_of = c->work->kind == BENCH_CHURN && settled > s->n;
    return short_of && (c->peer->can & BENCH_MANY) ? settled : s->n;
}

static void *take_part(void *argument) {
    const runner *r = argument;
    session *s = r->s;
    lane *l = &s->lane[r->number];
    if (s->threads > 1 && s->threads <= bench_cores()) pin(r->number);
    cudaSetDevice(0);
    if (lane_fill(l) != 0) l->failed = 1;
    int filled = !l->failed;
    all_ran(s, r->number);
    for (unsigned i = 0; i < s->threads; i++) filled &= !s->lane[i].failed;
    pthread_barrier_wait(&s->gate);
    if (filled) {
        calibrate(s, r->number);
        lane_run(l, warm_ops(s));
        pthread_barrier_wait(&s->gate);
        if (s->each) lane_time_each(l, s->n);
        else measure_mean(s, r->number);
    }
    pthread_barrier_wait(&s->gate);
    lane_drain(l);
    return NULL;
}

/* ---- a session ---- */

static void open_lane(session *s, unsigned number, cudaStream_t shared) {
    const bench_work *w = s->cell->work;
    lane *l = &s->lane[number];
    *l = (lane){.work = w, .peer = s->cell->peer, .pool = s->pool, .lanes = s->threads};
    l->priced = machine_is_simulated() && (l->peer->can & (BENCH_DEVICE | BENCH_HAND_OVER));
    l->clock_ns = lane_clock_ns();
    l->beside_ns = l->priced ? lane_beside_ns() : 0;
    if (work_draw(w, number, &l->steps) != 0) give_up("a work cannot be drawn");
    l->block = need(l->steps.slots, sizeof *l->block);
    if (w->kind == BENCH_TRACE) s->n = l->steps.ops;
    for (int i = 0; i < 2; i++) {
        l->stream[i] = shared;
        if (!shared &&
            cudaStreamCreateWithFlags(&l->stream[i], cudaStreamNonBlocking) != cudaSuccess)
            give_up("no stream can be created");
    }
}

static void close_lane(lane *l) {
    for (int i = 0; i < 2 && !l->work->shared; i++) cudaStreamDestroy(l->stream[i]);
    work_drop(&l->steps);
    free(l->block);
    free(l->sample);
    free(l->grew);
}

static void run_threads(session *s) {
    runner *r = need(s->threads, sizeof *r);
    pthread_t *thread = need(s->threads, sizeof *thread);
    if (pthread_barrier_init(&s->gate, NULL, s->threads) != 0) give_up("no barrier");
    for (unsigned i = 0; i < s->threads; i++) r[i] = (runner){s, i};
    for (unsigned i = 0; i < s->threads && s->threads > 1; i++)
        if (pthread_create(&thread[i], NULL, take_part, &r[i]) != 0) give_up("no more threads");
    if (s->threads == 1) take_part(&r[0]);
    else
        for (unsigned i = 0; i < s->threads; i++) pthread_join(thread[i], NULL);
    pthread_barrier_destroy(&s->gate);
    free(thread);
    free(r);
}

/* 0, or -1 with the cell's why. The lanes stay for the caller to read. */
static int hold_session(session *s) {
    bench_cell *c = s->cell;
    const bench_work *w = c->work;
    cudaStream_t shared = NULL;
    size_t each = w->kind == BENCH_CHURN ? 2 * s->n : s->n;
    int failed = 0;
    s->threads = w->threads;
    s->pool = c->peer->open(w->kind == BENCH_PING_PONG ? w->most : 0, w->reserve, c->why);
    if (!s->pool) return -1;
    if (w->shared && cudaStreamCreateWithFlags(&shared, cudaStreamNonBlocking) != cudaSuccess)
        give_up("no stream can be created");
    s->lane = need(s->threads, sizeof *s->lane);
    for (unsigned i = 0; i < s->threads; i++) {
        open_lane(s, i, shared);
        if (s->each) s->lane[i].sample = need(each, sizeof(float));
        if (s->each) s->lane[i].grew = need(each, 1);
    }
    run_threads(s);
    for (unsigned i = 0; i < s->threads; i++) failed |= s->lane[i].failed;
    s->calls = s->lane[0].priced ? s->lane[0].calls / (double)s->n : -1;
    if (failed) snprintf(c->why, BENCH_WHY, "an allocation or a free was refused");
    c->peer->close(s->pool);
    if (shared) cudaStreamDestroy(shared);
    return failed ? -1 : 0;
}

static void end_session(session *s) {
    for (unsigned i = 0; s->lane && i < s->threads; i++) close_lane(&s->lane[i]);
    free(s->lane);
    s->lane = NULL;
}

/* ---- what comes out ---- */

static int by_double(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int by_float(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static double at_share(const float *sorted, size_t n, double share) {
    size_t at = (size_t)(share * (double)n);
    return (double)sorted[at < n ? at : n - 1];
}

typedef struct tails { /* the samples of all passes, and what they have in common */
    float *all, *least;
    unsigned char *grew;
    size_t n, passes;
} tails;

static void add_pass(tails *t, const float *sample, const unsigned char *grew, size_t at,
                     size_t n) {
    memcpy(t->all + t->passes * t->n + at, sample, n * sizeof *sample);
    for (size_t i = 0; i < n; i++) {
        float *least = &t->least[at + i];
        if (t->passes == 0 || sample[i] < *least) *least = sample[i];
        if (grew) t->grew[at + i] |= grew[i];
    }
}

static void open_tails(tails *t, size_t n) {
    *t = (tails){.n = n};
    t->all = need(n * PASSES, sizeof *t->all);
    t->least = need(n, sizeof *t->least);
    t->grew = need(n, 1);
}

static void close_tails(tails *t, bench_cell *c) {
    size_t n = t->n * t->passes;
    for (size_t i = 0; i < t->n && t->passes == PASSES; i++) {
        if ((double)t->least[i] > c->max_again) c->max_again = (double)t->least[i];
        c->late += (double)t->least[i] > BENCH_LATE_NS && !t->grew[i];
    }
    qsort(t->all, n, sizeof *t->all, by_float);
    c->samples = t->n;
    if (n) {
        c->p50 = at_share(t->all, n, 0.5);
        c->p99 = at_share(t->all, n, 0.99);
        c->p999 = at_share(t->all, n, 0.999);
        c->max = (double)t->all[n - 1];
    }
    free(t->all);
    free(t->least);
    free(t->grew);
}

static int run_tails(bench_cell *c, size_t n, int passes) {
    size_t each = c->work->kind == BENCH_CHURN ? 2 * n : n;
    tails t;
    int result = 0;
    open_tails(&t, each * c->work->threads);
    for (int pass = 0; pass < passes && result == 0; pass++) {
        session s = {.cell = c, .each = 1, .n = n};
        result = hold_session(&s);
        for (unsigned i = 0; result == 0 && i < s.threads; i++)
            add_pass(&t, s.lane[i].sample, s.lane[i].grew, i * each, each);
        t.passes += result == 0;
        end_session(&s);
    }
    close_tails(&t, c);
    return result;
}

void bench_run(bench_cell *c) {
    session s = {.cell = c};
    if ((c->peer->can & c->work->needs) != c->work->needs) {
        snprintf(c->why, BENCH_WHY, "not a work for it");
        return;
    }
    int result = hold_session(&s);
    end_session(&s);
    if (result != 0) return;
    qsort(s.run_ns, BENCH_RUNS, sizeof *s.run_ns, by_double);
    c->ns_least = s.run_ns[0];
    c->ns = s.run_ns[BENCH_RUNS / 2];
    c->ns_most = s.run_ns[BENCH_RUNS - 1];
    c->calls = s.calls;
    c->ops = s.n;
    if (c->work->kind == BENCH_CHURN) { /* an operation is a get or a put; a pair is both */
        c->ns /= 2, c->ns_least /= 2, c->ns_most /= 2, c->calls /= c->calls > 0 ? 2 : 1;
    }
    size_t n = (MOST_SAMPLES / c->work->threads / bench_hurry / LANE_BATCH + 1) * LANE_BATCH;
    if (c->work->kind == BENCH_TRACE || s.n < n) n = s.n;
    run_tails(c, n, c->work->threads > 1 || !c->peer->growths ? 1 : PASSES);
}

void bench_run_clock(bench_cell *c) {
    tails t;
    double clock_ns = lane_clock_ns();
    float *sample = need(MOST_SAMPLES, sizeof *sample);
    open_tails(&t, MOST_SAMPLES);
    for (; t.passes < PASSES; t.passes++) {
        for (size_t i = 0; i < MOST_SAMPLES; i++) {
            uint64_t from = tick();
            double ns = (double)(tick() - from) * tick_ns() - clock_ns;
            sample[i] = ns > 0 ? (float)ns : 0;
        }
        add_pass(&t, sample, NULL, 0, MOST_SAMPLES);
    }
    close_tails(&t, c);
    free(sample);
}
