#include "bench.h"

#include "gpupool.h"
#include "check.h"
#include "trace.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KIB ((uint64_t)1 << 10)
#define MIB ((uint64_t)1 << 20)

/* ---- a list of operations, and the blocks that live in it ---- */

static void add(bench_ops *ops, uint64_t bytes, size_t slot, uint32_t stream) {
    if (ops->count == ops->room) {
        ops->room = ops->room ? 2 * ops->room : 4096;
        ops->op = realloc(ops->op, ops->room * sizeof *ops->op);
        if (!ops->op) exit(EXIT_FAILURE);
    }
    if (slot >= ops->slots) ops->slots = slot + 1;
    ops->op[ops->count++] = (bench_op){bytes, (uint32_t)slot, stream};
}

void ops_free(bench_ops *ops) {
    free(ops->op);
    *ops = (bench_ops){0};
}

uint64_t ops_live_peak(const bench_ops *ops, size_t done) {
    uint64_t *bytes = calloc(ops->slots ? ops->slots : 1, sizeof *bytes), live = 0, peak = 0;
    for (size_t i = 0; bytes && i < done; i++) {
        const bench_op *op = &ops->op[i];
        live += op->bytes - bytes[op->slot];
        bytes[op->slot] = op->bytes;
        if (live > peak) peak = live;
    }
    free(bytes);
    return peak;
}

typedef struct crowd { /* live blocks in any order, by slot */
    uint32_t *slot, *spare;
    uint64_t *bytes, live;
    size_t count, spares, slots;
} crowd;

static crowd crowd_open(size_t most) {
    crowd c = {.slot = malloc(most * sizeof *c.slot), .spare = malloc(most * sizeof *c.spare),
               .bytes = malloc(most * sizeof *c.bytes)};
    if (!c.slot || !c.spare || !c.bytes) exit(EXIT_FAILURE);
    return c;
}

static void crowd_close(crowd *c) {
    free(c->slot);
    free(c->spare);
    free(c->bytes);
}

static void crowd_get(crowd *c, bench_ops *ops, uint64_t bytes) {
    uint32_t slot = c->spares ? c->spare[--c->spares] : (uint32_t)c->slots++;
    c->slot[c->count] = slot;
    c->bytes[c->count++] = bytes;
    c->live += bytes;
    add(ops, bytes, slot, 0);
}

static void crowd_put(crowd *c, bench_ops *ops, size_t i) {
    add(ops, 0, c->slot[i], 0);
    c->spare[c->spares++] = c->slot[i];
    c->live -= c->bytes[i];
    c->slot[i] = c->slot[--c->count];
    c->bytes[i] = c->bytes[c->count];
}

static uint64_t start(uint64_t seed, unsigned thread) { return seed * 1000003 + thread + 1; }

static uint64_t between(uint64_t *random, uint64_t least, uint64_t most) {
    return least + check_below(random, most - least + 1);
}

/* ---- sizes that never come again ---- */

/* As RMM's benchmark random_allocations has it: 2 x count steps; each allocates with 73%
   probability unless live memory would be too much, else frees a random block. */
int draw_random(const bench_work *w, uint64_t seed, unsigned thread, bench_ops *ops) {
    uint64_t random = start(seed, thread);
    crowd c = crowd_open(w->count);
    size_t made = 0;
    for (size_t i = 0; i < 2 * w->count; i++) {
        uint64_t bytes = between(&random, 1, w->most);
        int gets = c.count == 0 || (check_below(&random, 100) < 73 && made < w->count &&
                                    c.live + bytes < w->live);
        if (gets) crowd_get(&c, ops, bytes), made++;
        else crowd_put(&c, ops, (size_t)check_below(&random, c.count));
    }
    crowd_close(&c);
    return 0;
}

/* Each size three times, one after the other, in the place of a random block of 64. */
int draw_thrice(const bench_work *w, uint64_t seed, unsigned thread, bench_ops *ops) {
    uint64_t random = start(seed, thread), bytes = 0;
    crowd c = crowd_open(w->count);
    for (size_t i = 0; i < w->count; i++) {
        if (i % 3 == 0) bytes = between(&random, 1, w->most);
        if (c.count == 64) crowd_put(&c, ops, (size_t)check_below(&random, c.count));
        crowd_get(&c, ops, bytes);
    }
    crowd_close(&c);
    return 0;
}

static double uniform(uint64_t *random) {
    return ((double)(check_random(random) >> 11) + 1) / 9007199254740993.0;
}

/* A median of 1 MiB, and every 2.5 logarithms a deviation: 512 B to 4 GiB. */
static uint64_t log_normal(uint64_t *random) {
    double normal = sqrt(-2 * log(uniform(random))) * cos(6.283185307179586 * uniform(random));
    double bytes = 1048576 * exp(2.5 * normal);
    if (bytes < 512) return 512;
    return bytes > 4294967296.0 ? 4294967296u : (uint64_t)bytes;
}

int draw_log_normal(const bench_work *w, uint64_t seed, unsigned thread, bench_ops *ops) {
    uint64_t random = start(seed, thread);
    crowd c = crowd_open(2 * w->count);
    for (size_t i = 0; i < 2 * w->count; i++) {
        uint64_t bytes = log_normal(&random);
        if (c.count == 0 || (c.live + bytes <= w->live && check_below(&random, 100) < 60))
            crowd_get(&c, ops, bytes);
        else crowd_put(&c, ops, (size_t)check_below(&random, c.count));
    }
    crowd_close(&c);
    return 0;
}

/* What grows goes on in a pass where it ended in the one before, and after eight passes begins
   again: live memory that grew for ever would not fit the device. */
static size_t passes_before(uint64_t seed) { return (size_t)(seed - BENCH_FIRST_SEED) % 8; }

/* Buffers that grow by 8 KiB in turn, as a cache does that is copied into its successor. */
int draw_growing(const bench_work *w, uint64_t seed, unsigned thread, bench_ops *ops) {
    size_t buffers = w->blocks, steps = w->count / buffers;
    uint64_t first = w->live / buffers + passes_before(seed) * (steps + 1) * 8 * KIB;
    (void)thread;
    for (size_t b = 0; b < buffers; b++) add(ops, first + b * 512, b, 0);
    for (size_t i = 1; i <= steps; i++)
        for (size_t b = 0; b < buffers; b++) {
            size_t from = b + (i % 2 ? 0 : buffers), to = b + (i % 2 ? buffers : 0);
            add(ops, first + b * 512 + i * 8 * KIB, to, 0);
            add(ops, 0, from, 0);
        }
    return 0;
}

/* A program of 32 blocks, round after round, each block 2 MiB larger than in the round before. */
int draw_drift(const bench_work *w, uint64_t seed, unsigned thread, bench_ops *ops) {
    enum { BLOCKS = 32 };
    uint64_t random = start(BENCH_FIRST_SEED, thread), least[BLOCKS];
    size_t rounds = w->count / BLOCKS, before = passes_before(seed) * rounds;
    for (size_t b = 0; b < BLOCKS; b++) least[b] = between(&random, 32 * MIB, 160 * MIB);
    for (size_t i = 0; i < rounds; i++) {
        for (size_t b = 0; b < BLOCKS; b++) add(ops, least[b] + (before + i) * 2 * MIB, b, 0);
        for (size_t b = 0; b < BLOCKS; b++) add(ops, 0, (b * 13 + i) % BLOCKS, 0);
    }
    return 0;
}

/* 64 blocks, eight rounds; then 64 blocks of other sizes. */
int draw_phases(const bench_work *w, uint64_t seed, unsigned thread, bench_ops *ops) {
    enum { BLOCKS = 64, ROUNDS = 8 };
    uint64_t random = start(seed, thread), bytes[BLOCKS];
    for (size_t made = 0; made < w->count; made += BLOCKS * ROUNDS) {
        for (size_t b = 0; b < BLOCKS; b++) bytes[b] = between(&random, 1, w->most);
        for (size_t i = 0; i < ROUNDS; i++) {
            for (size_t b = 0; b < BLOCKS; b++) add(ops, bytes[b], b, 0);
            for (size_t b = 0; b < BLOCKS; b++) add(ops, 0, b * 27 % BLOCKS, 0);
        }
    }
    return 0;
}

/* Blocks that one stream allocates and another frees, eight at a time. */
int draw_handed(const bench_work *w, uint64_t seed, unsigned thread, bench_ops *ops) {
    enum { LIVE = 8 };
    uint64_t random = start(seed, thread);
    for (size_t i = 0; i < w->count; i++) {
        if (i >= LIVE) add(ops, 0, i % LIVE, 1);
        add(ops, between(&random, 64 * KIB, w->most), i % LIVE, 0);
    }
    for (size_t b = 0; b < LIVE && b < w->count; b++) add(ops, 0, b, 1);
    return 0;
}

/* 64 requests under way: each gets a block a step for what it keeps, and one for the step alone;
   after 1 to 64 steps it ends, and another begins in its place. */
int draw_server(const bench_work *w, uint64_t seed, unsigned thread, bench_ops *ops) {
    enum { REQUESTS = 64, STEPS = 64 };
    uint64_t random = start(seed, thread), steps[REQUESTS], kept[REQUESTS] = {0};
    for (size_t r = 0; r < REQUESTS; r++) steps[r] = between(&random, 1, STEPS);
    for (size_t made = 0; made < w->count; made += 2) {
        size_t r = (size_t)check_below(&random, REQUESTS), slot = 1 + r * STEPS;
        add(ops, between(&random, 1, 4 * w->most), 0, 0);
        add(ops, between(&random, 64 * KIB, w->most), slot + kept[r]++, 0);
        add(ops, 0, 0, 0);
        if (kept[r] < steps[r]) continue;
        while (kept[r]) add(ops, 0, slot + --kept[r], 0);
        steps[r] = between(&random, 1, STEPS);
    }
    return 0;
}

/* ---- recorded programs ---- */

/* Read once: the same for each pass and each pool. NULL after a message on stderr. */
static const trace *recorded(const char *name, size_t length) {
    static struct { char name[32]; trace t; } kept[8];
    char path[100];
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) {
        if (!kept[i].t.events) {
            snprintf(kept[i].name, sizeof kept[i].name, "%.*s", (int)length, name);
            snprintf(path, sizeof path, "tests/traces/%s.trace.gz", kept[i].name);
            return trace_read(&kept[i].t, path) == 0 ? &kept[i].t : NULL;
        }
        if (strlen(kept[i].name) == length && memcmp(kept[i].name, name, length) == 0)
            return &kept[i].t;
    }
    fprintf(stderr, "bench: too many traces\n");
    return NULL;
}

/* Several traces: one event of each in turn, until the last of them ends, each on a stream of its
   own. One trace: block ID on stream ID modulo the work's streams. */
int draw_traces(const bench_work *w, uint64_t seed, unsigned thread, bench_ops *ops) {
    const trace *of[8];
    size_t traces = 0, slot[8] = {0}, slots = 0, longest = 0;
    (void)seed, (void)thread;
    for (const char *at = w->traces; *at && traces < 8; traces++) {
        size_t length = strcspn(at, " ");
        of[traces] = recorded(at, length);
        if (!of[traces]) return -1;
        slot[traces] = slots;
        slots += of[traces]->slots;
        if (of[traces]->events > longest) longest = of[traces]->events;
        at += length + (at[length] == ' ');
    }
    for (size_t i = 0; i < longest && ops->count < w->count; i++)
        for (size_t t = 0; t < traces; t++) {
            if (i >= of[t]->events) continue;
            const trace_event *e = &of[t]->event[i];
            if (e->kind != TRACE_BLOCK) continue;
            uint32_t stream = (uint32_t)(traces > 1 ? t : e->id % w->streams);
            add(ops, e->bytes, slot[t] + e->slot, stream);
        }
    return 0;
}

/* ---- what threads do ---- */

int draw_pairs(const bench_work *w, uint64_t seed, unsigned thread, bench_ops *ops) {
    (void)seed, (void)thread;
    for (size_t i = 0; i < w->count; i++) {
        add(ops, w->most, 0, 0);
        add(ops, 0, 0, 0);
    }
    return 0;
}

/* Half of the doublings of size from 512 bytes on are as likely as the other half. */
static uint64_t log_uniform(uint64_t *random, uint64_t most) {
    return (uint64_t)(512 * exp(log((double)most / 512) * uniform(random)));
}

/* So many live blocks; each step a random one goes, and another comes. */
int draw_churn(const bench_work *w, uint64_t seed, unsigned thread, bench_ops *ops) {
    uint64_t random = start(seed, thread);
    crowd c = crowd_open(w->blocks);
    for (size_t i = 0; i < w->count; i++) {
        if (c.count == w->blocks) crowd_put(&c, ops, (size_t)check_below(&random, c.count));
        crowd_get(&c, ops, log_uniform(&random, w->most));
    }
    crowd_close(&c);
    return 0;
}

/* All the memory that the limit leaves, on one stream and then on the other. */
int draw_whole(const bench_work *w, uint64_t seed, unsigned thread, bench_ops *ops) {
    (void)seed, (void)thread;
    for (uint32_t i = 0; i < w->count; i++) {
        add(ops, w->most, 0, i % 2);
        add(ops, 0, 0, i % 2);
    }
    return 0;
}

/* As many a program has it: a step gets eight buffers, and frees them at its end. */
int draw_loop(const bench_work *w, uint64_t seed, unsigned thread, bench_ops *ops) {
    enum { BUFFERS = 8 };
    uint64_t random = start(seed, thread);
    for (size_t made = 0; made < w->count; made += BUFFERS) {
        for (size_t b = 0; b < BUFFERS; b++) add(ops, log_uniform(&random, w->most), b, 0);
        for (size_t b = 0; b < BUFFERS; b++) add(ops, 0, b, 0);
    }
    return 0;
}
