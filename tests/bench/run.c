/* One work in a fresh pool, in passes. */
#define _DEFAULT_SOURCE
#include "bench.h"
#include "machine.h"

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#define LOOK_EVERY 64 /* operations between looks at the clock: some take milliseconds */
#define MOST_STREAMS 8
#define MOST_THREADS 8

typedef struct lane { /* what one thread does in a pass */
    struct session *session;
    bench_ops ops;
    void **block;
    cudaStream_t stream[MOST_STREAMS];
    size_t done;         /* operations */
    uint64_t ns;
    unsigned long failures;
    pthread_t thread;
} lane;

typedef struct session { /* a work in one pool */
    const bench_work *work;
    const bench_peer *peer;
    const bench_plan *plan;
    bench_result *out;
    void *pool;
    void *(*get)(void *, size_t, cudaStream_t);
    int (*put)(void *, void *, cudaStream_t);
    lane lane[MOST_THREADS];
    pthread_barrier_t gate;
    uint64_t cut_ns;     /* of the pass that runs */
    double ns[BENCH_PASSES], calls[BENCH_PASSES]; /* of the last passes, in turn */
    uint64_t spent_ns;   /* by all passes */
} session;

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_median(double *value, size_t n) {
    qsort(value, n, sizeof *value, by_value);
    return value[n / 2];
}

/* ---- the two calls of a mode ---- */

static const bench_peer *of_now; /* for the calls that a peer does not have */

static void *get_and_wait(void *pool, size_t bytes, cudaStream_t stream) {
    void *block = of_now->get(pool, bytes, stream);
    if (block && cudaStreamSynchronize(stream) == cudaSuccess) return block;
    if (block) of_now->put(pool, block, stream);
    return NULL;
}

static int choose_calls(session *s) {
    const bench_peer *p = s->peer;
    of_now = p;
    s->get = p->get, s->put = p->put;
    if (s->work->mode == BENCH_READY) {
        s->get = p->get_ready ? p->get_ready : get_and_wait;
        s->put = p->put_ready ? p->put_ready : p->put;
    }
    if (s->work->mode == BENCH_AS_CUDA) s->get = p->get_as_cuda, s->put = p->put_as_cuda;
    if (s->work->mode == BENCH_ADDRESS) s->get = p->get_addressed, s->put = p->put_addressed;
    if (s->get && s->put) return 0;
    snprintf(s->out->why, BENCH_WHY, "it has no such calls");
    return -1;
}

/* ---- a pass ---- */

/* Only where blocks come in cudaMalloc's shape: a kernel that fills the block is under way. */
static void fill(const session *s, void *block, size_t bytes, cudaStream_t stream) {
    if (s->work->mode == BENCH_AS_CUDA) cudaMemsetAsync(block, 0, bytes, stream);
}

static void run_ops(lane *l) {
    session *s = l->session;
    uint64_t start = machine_now_ns(), end = start + s->cut_ns;
    size_t i;
    for (i = 0; i < l->ops.count; i++) {
        const bench_op *op = &l->ops.op[i];
        cudaStream_t stream = l->stream[op->stream];
        void **at = &l->block[op->slot];
        if (i % LOOK_EVERY == 0 && machine_now_ns() > end) break;
        if (op->bytes) {
            *at = s->get(s->pool, op->bytes, stream);
            if (*at) fill(s, *at, op->bytes, stream);
            else l->failures++;
        } else if (*at) {
            if (s->put(s->pool, *at, stream)) l->failures++;
            *at = NULL;
        }
    }
    l->ns = machine_now_ns() - start;
    l->done = i;
}

static void *run_lane(void *of) {
    lane *l = of;
    pthread_barrier_wait(&l->session->gate);
    run_ops(l);
    return NULL;
}

static void run_threads(session *s) {
    unsigned threads = s->work->threads;
    pthread_barrier_init(&s->gate, NULL, threads);
    for (unsigned i = 0; i < threads; i++)
        if (pthread_create(&s->lane[i].thread, NULL, run_lane, &s->lane[i]) != 0) exit(1);
    for (unsigned i = 0; i < threads; i++) pthread_join(s->lane[i].thread, NULL);
    pthread_barrier_destroy(&s->gate);
}

/* Each block on the stream that it was allocated on, the last of them first. */
static void free_leftover(session *s, lane *l) {
    for (size_t i = l->done; i-- > 0;) {
        const bench_op *op = &l->ops.op[i];
        void **at = &l->block[op->slot];
        if (!op->bytes || !*at) continue;
        if (s->put(s->pool, *at, l->stream[op->stream])) l->failures++;
        *at = NULL;
    }
}

/* Simulated calls' own time is taken out, and their price put in. */
static uint64_t priced(const machine_meter *before, uint64_t ns) {
    machine_meter after = machine_read();
    uint64_t inside = after.inside_ns - before->inside_ns;
    return (ns > inside ? ns - inside : 0) + after.driver_ns - before->driver_ns;
}

static uint64_t count_calls(const session *s) {
    return s->peer->calls ? s->peer->calls(s->pool) : 0;
}

/* Nanoseconds an operation, the mean over the threads; what they left is freed outside of it. */
static double run_pass(session *s, double *calls) {
    unsigned threads = s->work->threads;
    uint64_t calls_before = count_calls(s), ns = 0, live = 0;
    machine_meter before = machine_read();
    size_t ops = 0;
    if (threads > 1) run_threads(s);
    else run_ops(&s->lane[0]);
    for (unsigned i = 0; i < threads; i++) {
        lane *l = &s->lane[i];
        ns += l->ns;
        ops += l->done;
        live += ops_live_peak(&l->ops, l->done);
        s->out->cut += l->done < l->ops.count;
    }
    ns = priced(&before, ns);
    *calls = s->peer->calls ? (double)(count_calls(s) - calls_before) / (double)ops : -1;
    for (unsigned i = 0; i < threads; i++) {
        free_leftover(s, &s->lane[i]);
        s->out->failures += s->lane[i].failures;
    }
    s->spent_ns += ns / threads;
    cudaDeviceSynchronize();
    if ((double)live > s->out->live) s->out->live = (double)live;
    return (double)ns / (double)ops;
}

/* ---- a pool ---- */

static int draw_all(session *s, bench_draw *draw, uint64_t seed, size_t count) {
    bench_work scaled = *s->work;
    scaled.count = count;
    for (unsigned i = 0; i < s->work->threads; i++) {
        lane *l = &s->lane[i];
        ops_free(&l->ops);
        free(l->block);
        l->failures = 0;
        if (draw(&scaled, seed, i, &l->ops) != 0) return -1;
        l->block = calloc(l->ops.slots ? l->ops.slots : 1, sizeof *l->block);
        if (!l->block) return -1;
    }
    return 0;
}

/* Not timed: what a program did before its sizes changed for good. */
static int run_rounds(session *s) {
    bench_work gpt2 = {.id = "gpt2", .traces = "gpt2var", .streams = 1, .threads = 1};
    const bench_work *work = s->work;
    unsigned rounds = work->rounds / s->plan->rounds_part;
    uint64_t end = machine_now_ns() + s->plan->rounds_ns;
    double calls, live = s->out->live;
    if (!work->rounds) return 0;
    s->work = &gpt2;
    int result = draw_all(s, draw_traces, 0, (size_t)1 << 24);
    for (s->out->rounds = 0; result == 0 && s->out->rounds < rounds; s->out->rounds++) {
        if (machine_now_ns() > end) break;
        run_pass(s, &calls);
    }
    s->work = work;
    s->out->live = live > s->out->live ? live : s->out->live;
    return result;
}

static int open_streams(session *s) {
    cudaStream_t shared = NULL;
    for (unsigned t = 0; t < s->work->threads; t++)
        for (unsigned i = 0; i < (s->work->threads > 1 ? 1 : s->work->streams); i++) {
            cudaStream_t *stream = &s->lane[t].stream[i];
            if (shared) *stream = shared;
            else if (cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking) != cudaSuccess)
                return -1;
            if (s->work->shared) shared = *stream;
        }
    return 0;
}

static void close_streams(session *s) {
    unsigned threads = s->work->shared ? 1 : s->work->threads;
    for (unsigned t = 0; t < threads; t++)
        for (unsigned i = 0; i < MOST_STREAMS; i++)
            if (s->lane[t].stream[i]) cudaStreamDestroy(s->lane[t].stream[i]);
}

static int run_passes(session *s) {
    size_t count = s->work->count / s->plan->part;
    unsigned pass = 0;
    s->cut_ns = s->plan->pass_ns;
    if (run_rounds(s) != 0) return -1;
    s->spent_ns = 0;
    do {
        unsigned turn = pass % s->plan->kept;
        if (draw_all(s, s->work->draw, BENCH_FIRST_SEED + pass, count < 64 ? 64 : count) != 0)
            return -1;
        s->ns[turn] = run_pass(s, &s->calls[turn]);
        s->out->calls_last = s->calls[turn];
        if (pass == 0) s->out->first = s->ns[0], s->out->calls_first = s->calls[0];
    } while (++pass < BENCH_PASSES || s->spent_ns < s->plan->warm_ns);
    return 0;
}

/* 0, or -1 with a sentence in why. */
static int run_session(session *s) {
    for (unsigned i = 0; i < MOST_THREADS; i++) s->lane[i].session = s;
    if (choose_calls(s) != 0) return -1;
    s->pool = s->peer->open(s->work->limit, s->out->why);
    if (!s->pool) return -1;
    int result = open_streams(s) == 0 ? run_passes(s) : -1;
    if (result != 0) snprintf(s->out->why, BENCH_WHY, "the work cannot be prepared");
    double reserved = s->peer->reserved_peak ? (double)s->peer->reserved_peak(s->pool) : 0;
    if (reserved > s->out->reserved) s->out->reserved = reserved;
    s->peer->close(s->pool);
    close_streams(s);
    for (unsigned i = 0; i < MOST_THREADS; i++) {
        ops_free(&s->lane[i].ops);
        free(s->lane[i].block);
    }
    return result;
}

void bench_run(const bench_work *work, const bench_peer *peer, const bench_plan *plan,
               bench_result *out) {
    session s = {.work = work, .peer = peer, .plan = plan, .out = out};
    unsigned needs = work->needs ? work->needs : BENCH_BLOCKS | BENCH_DEVICE;
    *out = (bench_result){.live = 0};
    if ((peer->can & needs) != needs) {
        snprintf(out->why, BENCH_WHY, "not for such a work");
        return;
    }
    if (run_session(&s) != 0) return;
    out->last = bench_median(s.ns, plan->kept);
    out->least = s.ns[0];
    out->most = s.ns[plan->kept - 1];
}
