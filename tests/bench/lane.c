#define _DEFAULT_SOURCE
#include "lane.h"

#include "tick.h"

#include <stdlib.h>
#include <unistd.h>

#define STALL_EVERY 128 /* hand-overs behind one stall: what a stream can queue is limited */
#define HOLE ((size_t)4096)
#define WALL ((size_t)512)

/* ---- clocks. Where CUDA is simulated its time is taken out, and its price put in ---- */

static void meter(lane *l) {
    if (!l->priced) return;
    machine_meter now = machine_read();
    l->meter.inside_ns = now.inside_ns;
    l->meter.driver_ns = now.driver_ns;
    l->meter.calls = now.calls;
}

double lane_beside_ns(void) {
    enum { CALLS = 1000, TRIES = 20 };
    double least = 0;
    for (int try = 0; try < TRIES; try++) { /* the least: interrupts only add */
        machine_meter before = machine_read();
        uint64_t from = machine_now_ns();
        for (int i = 0; i < CALLS; i++) cudaPeekAtLastError();
        double all = (double)(machine_now_ns() - from);
        double ns = (all - (double)(machine_read().inside_ns - before.inside_ns)) / CALLS;
        if (try == 0 || ns < least) least = ns;
    }
    return least;
}

/* What to add to a time that began when the meter was read. */
static double owed(lane *l) {
    if (!l->priced) return 0;
    machine_meter now = machine_read();
    double calls = (double)(now.calls - l->meter.calls);
    double ns = (double)(now.driver_ns - l->meter.driver_ns);
    ns -= (double)(now.inside_ns - l->meter.inside_ns);
    ns -= calls * l->beside_ns;
    l->calls += calls / l->lanes;
    return ns / l->lanes;
}

static void start(lane *l) {
    meter(l);
    l->start = machine_now_ns();
}

static void stop(lane *l) {
    double ns = (double)(machine_now_ns() - l->start);
    l->ns += ns + owed(l);
}

static uint64_t start_one(lane *l) {
    meter(l);
    return tick();
}

static void stop_one(lane *l, uint64_t from) {
    double ns = (double)(tick() - from) * tick_ns() - l->clock_ns;
    if (l->lanes == 1) ns += owed(l); /* with more, nobody knows whose calls they were */
    if (ns < 0) ns = 0;
    l->grew[l->samples] = 0;
    if (ns > BENCH_LATE_NS && l->peer->growths) {
        uint64_t growths = l->peer->growths(l->pool);
        l->grew[l->samples] = growths != l->growths;
        l->growths = growths;
    }
    l->sample[l->samples++] = (float)ns;
}

double lane_clock_ns(void) {
    enum { N = 1001 };
    static uint64_t took[N];
    for (size_t i = 0; i < N; i++) {
        uint64_t from = tick();
        took[i] = tick() - from;
    }
    for (size_t i = 1; i < N; i++) /* insertion: it is nearly sorted */
        for (size_t k = i; k && took[k - 1] > took[k]; k--) {
            uint64_t swap = took[k];
            took[k] = took[k - 1];
            took[k - 1] = swap;
        }
    return (double)took[N / 2] * tick_ns();
}

/* ---- streams with work in flight ---- */

#if GPUPOOL_TEST_GPU

static atomic_int stalled;

/* Gives up after some seconds: an allocator that waits for the stream would wait for ever. */
static void CUDART_CB stall(void *unused) {
    (void)unused;
    for (int i = 0; i < 50000 && atomic_load(&stalled); i++) usleep(20);
}

static void hold(lane *l) {
    atomic_store(&stalled, 1);
    for (int i = 0; i < 2; i++)
        if (cudaLaunchHostFunc(l->stream[i], stall, NULL) != cudaSuccess) l->failed = 1;
}

static void let_go(lane *l) {
    atomic_store(&stalled, 0);
    for (int i = 0; i < 2; i++)
        if (cudaStreamSynchronize(l->stream[i]) != cudaSuccess) l->failed = 1;
}

#else

#include "fakecuda/fakecuda.h"

static void hold(lane *l) {
    for (int i = 0; i < 2; i++) fake_hold(l->stream[i], 1);
}

static void let_go(lane *l) {
    for (int i = 0; i < 2; i++) fake_hold(l->stream[i], 0);
}

#endif

/* ---- the loops. `one`: every operation is timed by itself; a constant wherever they are used.
   All go through the peer's functions, so nobody's calls are inlined ---- */

#define GET(l, bytes, s) (l)->peer->get((l)->pool, (bytes), (l)->stream[s])
#define PUT(l, at, s) (l)->peer->put((l)->pool, (at), (l)->stream[s])
#define IN_LOOP static inline __attribute__((always_inline)) void

static inline const work_op *next_op(lane *l) {
    return &l->steps.op[l->next++ & (l->steps.ops - 1)];
}

IN_LOOP pairs(lane *l, size_t n, int one) {
    size_t bytes = l->work->least;
    start(l);
    for (size_t i = 0; i < n; i++) {
        uint64_t from = one ? start_one(l) : 0;
        void *block = GET(l, bytes, 0);
        int bad = !block || PUT(l, block, 0);
        if (one) stop_one(l, from);
        if (bad) l->failed = 1;
    }
    stop(l);
}

IN_LOOP churn(lane *l, size_t n, int one) {
    start(l);
    for (size_t i = 0; i < n; i++) {
        const work_op *op = next_op(l);
        void **at = &l->block[op->slot];
        uint64_t from = one ? start_one(l) : 0;
        int bad = PUT(l, *at, 0);
        if (one) stop_one(l, from);
        if (one) from = start_one(l);
        *at = GET(l, op->bytes, 0);
        if (one) stop_one(l, from);
        if (bad || !*at) l->failed = 1;
    }
    stop(l);
}

/* Only the allocations are timed. */
IN_LOOP past_holes(lane *l, size_t n, int one) {
    void *got[LANE_BATCH];
    for (size_t i = 0; i < n; i += LANE_BATCH) {
        start(l);
        for (size_t k = 0; k < LANE_BATCH; k++) {
            const work_op *op = next_op(l);
            uint64_t from = one ? start_one(l) : 0;
            got[k] = GET(l, op->bytes, 0);
            if (one) stop_one(l, from);
        }
        stop(l);
        for (size_t k = 0; k < LANE_BATCH; k++)
            if (!got[k] || PUT(l, got[k], 0)) l->failed = 1;
    }
}

IN_LOOP ping_pong(lane *l, size_t n, int one) {
    size_t bytes = l->work->least;
    for (size_t i = 0; i < n && !l->failed; i += STALL_EVERY) {
        if (l->work->busy) hold(l);
        start(l);
        for (size_t k = i; k < i + STALL_EVERY && k < n; k++) {
            uint64_t from = one ? start_one(l) : 0;
            void *block = GET(l, bytes, k & 1);
            int bad = !block || PUT(l, block, k & 1);
            if (one) stop_one(l, from);
            if (bad) l->failed = 1;
        }
        stop(l);
        if (l->work->busy) let_go(l);
    }
}

IN_LOOP recorded(lane *l, size_t n, int one) {
    start(l);
    for (size_t i = 0; i < n; i++) {
        const work_op *op = &l->steps.op[i];
        void **at = &l->block[op->slot];
        uint64_t from = one ? start_one(l) : 0;
        int bad = 0;
        if (op->bytes) bad = !(*at = GET(l, op->bytes, 0));
        else bad = PUT(l, *at, 0);
        if (one) stop_one(l, from);
        if (!op->bytes) *at = NULL;
        if (bad) l->failed = 1;
    }
    stop(l);
    lane_drain(l); /* what the trace leaves alive */
}

IN_LOOP run(lane *l, size_t n, int one) {
    l->ns = l->calls = 0;
    l->samples = 0;
    if (one && l->peer->growths) l->growths = l->peer->growths(l->pool);
    switch (l->work->kind) {
    case BENCH_PAIR: pairs(l, n, one); break;
    case BENCH_CHURN: churn(l, n, one); break;
    case BENCH_PAST_HOLES: past_holes(l, n, one); break;
    case BENCH_PING_PONG: ping_pong(l, n, one); break;
    case BENCH_TRACE: recorded(l, n, one); break;
    }
}

void lane_run(lane *l, size_t n) {
    run(l, n, 0);
}

void lane_time_each(lane *l, size_t n) {
    run(l, n, 1);
}

/* ---- before and after ---- */

int lane_fill(lane *l) {
    int holes = l->work->kind == BENCH_PAST_HOLES;
    for (size_t i = 0; i < l->work->live; i++) {
        size_t bytes = l->steps.op[i & (l->steps.ops - 1)].bytes;
        if (holes) bytes = i & 1 ? WALL : HOLE;
        if (!(l->block[i] = GET(l, bytes, 0))) return -1;
    }
    for (size_t i = 0; holes && i < l->work->live; i += 2) {
        if (PUT(l, l->block[i], 0)) return -1;
        l->block[i] = NULL;
    }
    return 0;
}

void lane_drain(lane *l) {
    for (size_t i = 0; i < l->steps.slots; i++) {
        if (l->block[i] && PUT(l, l->block[i], 0)) l->failed = 1;
        l->block[i] = NULL;
    }
}
