/* What gpupool has promised, against what was measured. */
#include "bench.h"

#include <string.h>

#define THAN(words, work, times, than_work, than_peer, cores) \
    {words, work, than_work, than_peer, times, 0, cores}
#define WITHIN(words, work, ns, cores) {words, work, NULL, NULL, 0, ns, cores}

static const bench_bar bars[] = {
    THAN("pair: at most 2.5 x mimalloc", "pair", 2.5, "pair", "mimalloc", 1),
    THAN("pair: at most 1/15 of cudaMallocAsync", "pair", 1.0 / 15, "pair", "cudaMallocAsync", 1),
    THAN("pair: at most 1/10 of PyTorch", "pair", 1.0 / 10, "pair", "PyTorch", 1),
    THAN("churn, 16,384 live: at most 2 x mimalloc", "churn-16k", 2, "churn-16k", "mimalloc", 1),
    WITHIN("churn to 64 MiB: at most 100 ns", "churn-large", 100, 1),
    WITHIN("the same, 64 GiB reserved: at most 100 ns", "churn-reserved", 100, 1),
    THAN("262,144 live: at most 3 x 1,024 live", "live-256k", 3, "live-1k", "gpupool", 1),
    WITHIN("past 65,536 holes: at most 200 ns", "holes", 200, 1),
    THAN("8 threads: at most 1.5 x one thread", "pair-8", 1.5, "pair-1", "gpupool", 8),
    THAN("8 threads: at most 1/200 of cudaMallocAsync", "pair-8", 1.0 / 200, "pair-8",
         "cudaMallocAsync", 8),
    WITHIN("8 threads on one stream: at most 1 us", "pair-shared", 1000, 8),
    WITHIN("trace gpt2var: at most 60 ns", "gpt2var", 60, 1),
    WITHIN("trace frcnn: at most 60 ns", "frcnn", 60, 1),
    WITHIN("trace resnet50: at most 60 ns", "resnet50", 60, 1),
    WITHIN("trace llamagen: at most 60 ns", "llamagen", 60, 1),
    THAN("hand-over: at most one record and one wait", "hand-over", 1, "hand-over",
         "record + wait", 1),
    THAN("hand-over, busy: at most one record and one wait", "hand-over-busy", 1, "hand-over-busy",
         "record + wait", 1),
};

const bench_cell *bench_find(const bench_results *r, const char *work, const char *peer) {
    for (size_t i = 0; i < r->works * r->peers; i++) {
        const bench_cell *c = &r->cell[i];
        if (c->why[0] == 0 && strcmp(c->work->id, work) == 0 && strcmp(c->peer->name, peer) == 0)
            return c;
    }
    return NULL;
}

size_t bench_bars(void) {
    return sizeof bars / sizeof *bars;
}

bench_judged bench_judge(const bench_results *r, size_t bar) {
    const bench_bar *b = &bars[bar];
    bench_judged j = {.bar = b, .verdict = BENCH_UNJUDGED, .allowed = b->ns};
    const bench_cell *c = bench_find(r, b->work, "gpupool");
    const bench_cell *than = b->than_work ? bench_find(r, b->than_work, b->than_peer) : NULL;
    if (c) j.value = c->ns;
    if (than) j.allowed = b->times * than->ns;
    if (!c) j.why = "not measured";
    else if (b->than_work && !than) j.why = "nothing to compare with";
    else if (r->cores < b->cores) j.why = "too few cores";
    else j.verdict = j.value <= j.allowed ? BENCH_MET : BENCH_MISSED;
    return j;
}
