#include "works.h"

#include "gpupool.h"
#include "check.h"
#include "trace.h"

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define GIB ((size_t)1 << 30)
#define ALONE BENCH_BLOCKS
#define LARGE (BENCH_BLOCKS | BENCH_DEVICE | BENCH_MANY)
#define SPREAD (BENCH_BLOCKS | BENCH_THREADS)
#define PAIRS(id, threads, shared, words) \
    {id, words, BENCH_PAIR, SPREAD, 0, 4 * KIB, 4 * KIB, threads, shared, 0, 0}
#define PAIR(id, live, words) \
    {id, words, BENCH_PAIR, ALONE, live, 4 * KIB, 4 * KIB, 1, 0, 0, 0}
#define HAND_OVER(id, busy, words) \
    {id, words, BENCH_PING_PONG, BENCH_HAND_OVER, 0, 2 * MIB, 2 * MIB, 1, 0, busy, 0}
#define CHURN(id, threads, words) \
    {id, words, BENCH_CHURN, SPREAD | BENCH_MANY, 2048, 512, 64 * KIB, threads, 0, 0, 0}
#define TRACE(name, words) \
    {name, words, BENCH_TRACE, LARGE, 0, 0, 0, 1, 0, 0, 0}

const bench_work bench_works[] = {
    PAIR("pair", 0, "pair of 4 KiB, nothing else live"),
    PAIR("pair-live", 4096, "the pair, 4,096 others live"),
    {"churn-16k", "churn, 16,384 live, 512 B to 64 KiB", BENCH_CHURN, ALONE, 16384, 512, 64 * KIB,
     1, 0, 0, 0},
    {"churn-large", "churn, 4,096 live, 512 B to 64 MiB", BENCH_CHURN, LARGE, 4096, 512, 64 * MIB,
     1, 0, 0, 0},
    {"churn-reserved", "churn to 64 MiB, 64 GiB reserved", BENCH_CHURN, LARGE, 4096, 512, 64 * MIB,
     1, 0, 0, 64 * GIB},
    {"live-1k", "churn, 1,024 live, 512 B to 256 KiB", BENCH_CHURN, ALONE | BENCH_MANY, 1024, 512,
     256 * KIB, 1, 0, 0, 0},
    {"live-256k", "churn, 262,144 live, 512 B to 256 KiB", BENCH_CHURN, ALONE | BENCH_HUGE, 262144,
     512, 256 * KIB, 1, 0, 0, 0},
    {"holes", "alloc that fits none of 65,536 holes", BENCH_PAST_HOLES, ALONE | BENCH_HUGE, 131072,
     5 * KIB, 64 * KIB, 1, 0, 0, 0},
    HAND_OVER("hand-over", 0, "hand-over to a stream, all idle"),
    HAND_OVER("hand-over-busy", 1, "hand-over, work in flight"),
    TRACE("gpt2var", "trace: GPT-2 training, warm"),
    TRACE("frcnn", "trace: Faster R-CNN training, warm"),
    TRACE("resnet50", "trace: ResNet-50 training, warm"),
    TRACE("llamagen", "trace: Llama generation, warm"),
    PAIRS("pair-1", 1, 0, "pairs of 4 KiB, 1 thread"),
    PAIRS("pair-2", 2, 0, "pairs, 2 threads, a stream each"),
    PAIRS("pair-4", 4, 0, "pairs, 4 threads"),
    PAIRS("pair-8", 8, 0, "pairs, 8 threads"),
    PAIRS("pair-16", 16, 0, "pairs, 16 threads"),
    PAIRS("pair-shared", 8, 1, "pairs, 8 threads on one stream"),
    CHURN("churn-1", 1, "churn, 2,048 live a thread, 1 thread"),
    CHURN("churn-2", 2, "churn, 2 threads"),
    CHURN("churn-4", 4, "churn, 4 threads"),
    CHURN("churn-8", 8, "churn, 8 threads"),
    CHURN("churn-16", 16, "churn, 16 threads"),
};
const size_t bench_works_n = sizeof bench_works / sizeof *bench_works;

/* Log-uniform: each doubling of size is as likely as the next. */
static size_t draw_size(const bench_work *w, uint64_t *random) {
    unsigned doublings = 0;
    while (w->least << (doublings + 1) <= w->most) doublings++;
    size_t low = doublings ? w->least << check_below(random, doublings) : w->least;
    size_t high = low * 2 < w->most ? low * 2 : w->most;
    return low + (size_t)check_below(random, high - low + 1);
}

static int read_recorded(const bench_work *w, work_steps *s) {
    char path[200];
    trace t;
    snprintf(path, sizeof path, "tests/traces/%s.trace.gz", w->id);
    if (trace_read(&t, path) != 0) return -1;
    *s = (work_steps){malloc(t.events * sizeof *s->op), t.events, t.slots};
    for (size_t i = 0; s->op && i < t.events; i++)
        s->op[i] = (work_op){t.event[i].bytes, t.event[i].slot};
    trace_free(&t);
    return s->op ? 0 : -1;
}

int work_draw(const bench_work *w, unsigned thread, work_steps *s) {
    uint64_t random = 1 + thread;
    size_t ops = w->threads > 1 ? (size_t)1 << 17 : (size_t)1 << 20;
    if (w->kind == BENCH_TRACE) return read_recorded(w, s);
    *s = (work_steps){malloc(ops * sizeof *s->op), ops, w->live};
    for (size_t i = 0; s->op && i < s->ops; i++)
        s->op[i] = (work_op){draw_size(w, &random),
                               w->live ? (uint32_t)check_below(&random, w->live) : 0};
    return s->op ? 0 : -1;
}

void work_drop(work_steps *s) {
    free(s->op);
    *s = (work_steps){0};
}
