/* Bystanders: a thread of small requests, and what goes on beside it. */
#define _DEFAULT_SOURCE
#include "bench.h"
#include "machine.h"

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)
#define GIB ((size_t)1 << 30)
#define WARM_PAIRS 1000
#define ALONE_NS ((uint64_t)100000000)

typedef struct stage {
    const bench_peer *peer;
    const bench_plan *plan;
    bench_result *out;
    void *pool;
    cudaStream_t here, there; /* the bystander's, and the other's */
    atomic_int warm, stop;
    uint64_t worst_ns;
    unsigned long calls;
} stage;

/* ---- the bystander ---- */

static void *timed_get(stage *s, size_t bytes) {
    uint64_t start = machine_now_ns();
    void *block = s->peer->get(s->pool, bytes, s->here);
    uint64_t ns = machine_now_ns() - start;
    if (ns > s->worst_ns) s->worst_ns = ns;
    return block;
}

static void timed_put(stage *s, void *block) {
    uint64_t start = machine_now_ns();
    if (s->peer->put(s->pool, block, s->here)) s->out->failures++;
    uint64_t ns = machine_now_ns() - start;
    if (ns > s->worst_ns) s->worst_ns = ns;
}

static void *pairs(void *of) {
    stage *s = of;
    for (s->calls = 0; s->calls < 2 * WARM_PAIRS || !atomic_load(&s->stop); s->calls += 2) {
        if (s->calls == 2 * WARM_PAIRS) {
            s->worst_ns = 0;
            atomic_store(&s->warm, 1);
        }
        void *block = timed_get(s, s->calls % 4 ? MIB : 4096);
        if (block) timed_put(s, block);
        else s->out->failures++;
    }
    atomic_store(&s->warm, 1);
    return NULL;
}

/* ---- what is beside it ---- */

static void grow(void *of) {
    enum { BLOCKS = 640 };
    stage *s = of;
    static void *block[BLOCKS];
    size_t blocks = BLOCKS / (s->plan->part > 20 ? 20 : s->plan->part), n = 0;
    while (n < blocks && (block[n] = s->peer->get(s->pool, 64 * MIB, s->there))) n++;
    if (n < blocks) snprintf(s->out->why, BENCH_WHY, "no 40 GiB for it");
    while (n) s->peer->put(s->pool, block[--n], s->there);
}

static void fail(void *of) {
    enum { BLOCKS = 20000, TIMES = 5 };
    stage *s = of;
    static void *block[BLOCKS];
    size_t blocks = BLOCKS / s->plan->part, n = 0;
    while (n < blocks && (block[n] = s->peer->get(s->pool, 1024, s->there))) n++;
    s->worst_ns = 0; /* a race with the bystander's own note is one call of many */
    for (int i = 0; i < TIMES; i++)
        if (s->peer->get(s->pool, 1024 * GIB, s->there))
            snprintf(s->out->why, BENCH_WHY, "it hands out 1 TiB");
    while (n) s->peer->put(s->pool, block[--n], s->there);
}

#if GPUPOOL_TEST_GPU

static void CUDART_CB hold(void *unused) {
    (void)unused;
    usleep(300000);
}

/* A stream that does nothing for 0.3 s, and a thread that goes on launching there, with requests in
   between, until a launch has to wait. */
static void fill_queue(void *of) {
    enum { LAUNCHES = 4000 };
    stage *s = of;
    uint64_t longest = 0;
    void *block = s->peer->get(s->pool, MIB, s->there);
    if (!block || cudaLaunchHostFunc(s->there, hold, NULL) != cudaSuccess) return;
    for (int i = 0; i < LAUNCHES; i++) {
        uint64_t start = machine_now_ns();
        cudaMemsetAsync(block, 0, 4096, s->there);
        if (i % 16 == 0) {
            void *other = s->peer->get(s->pool, 4096 * (size_t)(1 + i % 64), s->there);
            if (other) s->peer->put(s->pool, other, s->there);
        }
        uint64_t ns = machine_now_ns() - start;
        if (ns > longest) longest = ns;
    }
    s->peer->put(s->pool, block, s->there);
    cudaStreamSynchronize(s->there);
    if (longest < 20000000) snprintf(s->out->why, BENCH_WHY, "the launch queue never filled");
}

#else

static void fill_queue(void *of) {
    snprintf(((stage *)of)->out->why, BENCH_WHY, "needs a GPU: queues are never full here");
}

#endif

const bystander bench_bystanders[] = {
    {"beside-growth", "worst call beside growth of 40 GiB", grow},
    {"beside-queue", "worst call beside a full launch queue", fill_queue},
    {"beside-failure", "worst call beside requests that fail", fail},
};
const size_t bench_bystanders_n = sizeof bench_bystanders / sizeof *bench_bystanders;

/* ---- running ---- */

/* 0, or -1 with a sentence in why. */
static int stand_by_once(const bystander *b, stage *s) {
    pthread_t thread;
    s->pool = s->peer->open(0, s->out->why);
    if (!s->pool) return -1;
    if (cudaStreamCreateWithFlags(&s->here, cudaStreamNonBlocking) != cudaSuccess ||
        cudaStreamCreateWithFlags(&s->there, cudaStreamNonBlocking) != cudaSuccess ||
        pthread_create(&thread, NULL, pairs, s) != 0)
        exit(EXIT_FAILURE);
    while (!atomic_load(&s->warm)) usleep(100);
    b->beside(s);
    atomic_store(&s->stop, 1);
    pthread_join(thread, NULL);
    cudaDeviceSynchronize();
    s->peer->close(s->pool);
    cudaStreamDestroy(s->here);
    cudaStreamDestroy(s->there);
    return s->out->why[0] ? -1 : 0;
}

static void summarize(bench_result *out, double *worst, unsigned times) {
    out->first = worst[0];
    out->last = bench_median(worst, times);
    out->least = worst[0];
    out->most = worst[times - 1];
}

void bench_stand_by(const bystander *b, const bench_peer *peer, const bench_plan *plan,
                    bench_result *out) {
    double worst[BENCH_TIMES];
    *out = (bench_result){.calls_first = -1, .calls_last = -1};
    for (unsigned i = 0; i < plan->times; i++) {
        stage s = {.peer = peer, .plan = plan, .out = out};
        if (stand_by_once(b, &s) != 0) return;
        worst[i] = (double)s.worst_ns / 1e3;
    }
    summarize(out, worst, plan->times);
}

void bench_stand_alone(const bench_plan *plan, bench_result *out) {
    double worst[BENCH_TIMES];
    *out = (bench_result){.calls_first = -1, .calls_last = -1};
    for (unsigned i = 0; i < plan->times; i++) {
        uint64_t longest = 0, now = machine_now_ns(), end = now + ALONE_NS / plan->part;
        while (now < end) {
            uint64_t then = machine_now_ns();
            if (then - now > longest) longest = then - now;
            now = then;
        }
        worst[i] = (double)longest / 1e3;
    }
    summarize(out, worst, plan->times);
}
