/* churn_kit.h: an arena that works for a long time, in ways that change: sizes that drift, steps
   that repeat, bursts, a limit that moves at random, also below what is held. Include it after
   gpupool.h.

   Work rises to a high mark of live bytes and falls to a low one, over and over; a phase says how,
   and lasts for some 100,000 operations. No kernels run: whether memory is handed on safely is for
   other tests; here it is about the limit, the account, and what is left of a long life. */
#ifndef CHURN_KIT_H
#define CHURN_KIT_H

#include "arena_kit.h"

#include <math.h>

#define CHURN_STREAMS 3
#define CHURN_MOST 32768u /* blocks that are live at one time */
#define CHURN_LEAST_BITS 9.0 /* sizes are from 2^9 to 2^26 bytes */
#define CHURN_MOST_BITS 26.0
#define CHURN_GRANULE (2 * MIB)
#define CHURN_CAUSES ((size_t)GPUPOOL_CAUSE_CAPTURING + 1)
#define CHURN_LOOK 4096     /* operations from one look at the statistics to the next */
#define CHURN_CHECK 1000000 /* and from one gpupool_check to the next */

typedef struct churn_block {
    void *at;
    size_t bytes;
    unsigned stream;
} churn_block;

typedef struct churn_phase {
    double bits, span, drift; /* sizes: 2^bits to 2^(bits + span); bits moves by drift each time */
    unsigned up, down;        /* allocations in 100 operations, rising and falling */
    int newest;               /* 1: what was allocated last is freed first; 0: any */
    uint64_t repeat;          /* not 0: each rise has the same sizes */
    size_t low, high;         /* marks, in live bytes */
    uint64_t until;           /* operation */
} churn_phase;

typedef struct churn {
    gpupool_arena *arena;
    gpupool_source source;
    churn_block *block;
    size_t count, live; /* blocks and bytes */
    churn_phase phase;
    uint64_t random, sizes; /* where the two sequences are */
    int rising;
    size_t limit; /* 0: none */
    size_t bound; /* what may be reserved: the limit, or what was unmovable when it came down */
    size_t bound_of_peak; /* the same when the peak was last reset */
    uint64_t ops, limits, lowered, trims, failures[CHURN_CAUSES];
    size_t peak_reserved, peak_granted;
    double emptiest; /* least share of the limit, live and asked, at which memory was out */
    uint64_t weighed, strict; /* failures looked into, and those that granules would have avoided */
} churn;

static inline size_t churn_below(churn *c, size_t bound) {
    return (size_t)check_below(&c->random, bound);
}

static inline double churn_share(uint64_t *state) { /* 0 to 1 */
    return (double)(check_random(state) >> 11) / 9007199254740992.0;
}

/* ---- phases ---- */

static inline size_t churn_marks(churn *c) { /* as if there were 16 GiB where there is no limit */
    return c->limit ? c->limit : 16 * GIB;
}

static inline void churn_new_phase(churn *c) {
    churn_phase p = {.bits = CHURN_LEAST_BITS, .span = CHURN_MOST_BITS - CHURN_LEAST_BITS,
                     .up = 60, .down = 40};
    double window = 1 + 6 * churn_share(&c->random);
    double at = CHURN_LEAST_BITS + (p.span - window) * churn_share(&c->random);
    p.until = c->ops + 50000 + churn_below(c, 200000);
    p.high = (size_t)((double)churn_marks(c) * (0.4 + 0.65 * churn_share(&c->random)));
    p.low = (size_t)((double)p.high * (0.2 + 0.7 * churn_share(&c->random)));
    switch (churn_below(c, 4)) {
    case 0: break;         /* all sizes at once */
    case 1:                /* a few, which drift */
        p.drift = (churn_below(c, 2) ? 1 : -1) * 4e-5;
        p.bits = at;
        p.span = window;
        break;
    case 2:                /* steps, as of training: up with a few temporaries, and down in order */
        p = (churn_phase){14, 12, 0, 85, 0, 1, check_random(&c->random) | 1, p.high / 4, p.high,
                          p.until};
        break;
    default:               /* bursts of one kind of size */
        p = (churn_phase){at, window, 0, 100, 0, 0, 0, p.low / 4, p.high, p.until};
    }
    c->phase = p;
}

static inline size_t churn_size(churn *c) {
    churn_phase *p = &c->phase;
    double bits = p->bits + p->span * churn_share(p->repeat ? &c->sizes : &c->random);
    p->bits += p->drift;
    if (p->bits < CHURN_LEAST_BITS || p->bits + p->span > CHURN_MOST_BITS) {
        p->drift = -p->drift;
        p->bits += p->drift;
    }
    return (size_t)exp2(bits);
}

static inline void churn_turn(churn *c, int rising) {
    c->rising = rising;
    if (rising) c->sizes = c->phase.repeat;
}

/* ---- what is checked ---- */

/* What could not be given back when the limit came down may only become less. */
static inline void churn_holds(churn *c, size_t held) {
    if (held > c->bound)
        check_fail(__FILE__, __LINE__, "operation %llu: %zu bytes are held, %zu are allowed",
                   (unsigned long long)c->ops, held, c->bound);
    if (c->limit && held < c->bound) c->bound = held > c->limit ? held : c->limit;
}

/* After every operation. The simulated device keeps its own account, which no statistic can belie;
   it rounds up what other sources ask for. */
static inline void churn_device_holds(churn *c) {
#if CHECK_FAKE
    if (c->source == GPUPOOL_SOURCE_MAPPED) churn_holds(c, fake_used_bytes(0));
#else
    (void)c;
#endif
}

static inline gpupool_stats churn_look(churn *c) {
    gpupool_stats s = kit_stats(c->arena);
    CHECK_EQ(s.requested.now, c->live);
    CHECK_EQ(s.blocks.now, c->count);
    CHECK_EQ(s.limit_bytes, c->limit);
    churn_holds(c, (size_t)s.reserved.now);
    CHECK(s.reserved.peak <= c->bound_of_peak); /* what is held for a moment inside a call counts */
    CHECK(s.granted.now <= s.reserved.now);
    if (s.reserved.peak > c->peak_reserved) c->peak_reserved = (size_t)s.reserved.peak;
    if (s.granted.peak > c->peak_granted) c->peak_granted = (size_t)s.granted.peak;
    return s;
}

/* Bytes of the driver's granules that live blocks touch: what an arena would need at least, if each
   granule could be moved by itself. */
static inline size_t churn_touched(const churn *c) {
    static unsigned char seen[(size_t)1 << 19]; /* of a TiB */
    uintptr_t low = UINTPTR_MAX;
    size_t granules = 0;
    memset(seen, 0, sizeof seen);
    for (size_t i = 0; i < c->count; i++)
        if ((uintptr_t)c->block[i].at < low) low = (uintptr_t)c->block[i].at;
    for (size_t i = 0; i < c->count; i++) {
        size_t first = (size_t)((uintptr_t)c->block[i].at / CHURN_GRANULE - low / CHURN_GRANULE);
        size_t last = first + (c->block[i].bytes - 1) / CHURN_GRANULE + 1;
        for (size_t g = first; g <= last && g < sizeof seen; g++) {
            uintptr_t end = (uintptr_t)c->block[i].at + c->block[i].bytes;
            if ((low / CHURN_GRANULE + g) * CHURN_GRANULE >= end) break;
            granules += !seen[g];
            seen[g] = 1;
        }
    }
    return granules * CHURN_GRANULE;
}

/* Memory may run out under a limit only. One failure in eight is looked into, for the time. */
static inline void churn_failed(churn *c, size_t bytes) {
    gpupool_verdict v;
    if (!CHECK_RESULT(gpupool_last_result(), GPUPOOL_E_OUT_OF_MEMORY)) return;
    if (!CHECK_RESULT(gpupool_last_verdict(&v), GPUPOOL_OK) || !CHECK(c->limit != 0)) return;
    if (CHECK((size_t)v.cause < CHURN_CAUSES)) c->failures[v.cause]++;
    double share = (double)(v.granted_bytes + bytes) / (double)c->limit;
    if (share < c->emptiest) c->emptiest = share;
    if (churn_below(c, 8)) return;
    c->weighed++;
    c->strict += churn_touched(c) + bytes + 2 * CHURN_GRANULE <= c->limit;
}

/* ---- operations ---- */

static inline void churn_alloc(churn *c) {
    churn_block b = {NULL, churn_size(c), (unsigned)churn_below(c, CHURN_STREAMS)};
    b.at = gpupool_alloc(c->arena, b.bytes, kit_stream[b.stream]);
    if (!b.at) {
        churn_failed(c, b.bytes);
        churn_turn(c, 0);
        return;
    }
    c->block[c->count++] = b;
    c->live += b.bytes;
    if (c->live >= c->phase.high || c->count == CHURN_MOST) churn_turn(c, 0);
}

static inline void churn_free(churn *c) {
    size_t i = c->phase.newest ? c->count - 1 : churn_below(c, c->count);
    churn_block b = c->block[i];
    CHECK_RESULT(gpupool_free(c->arena, b.at, kit_stream[b.stream]), GPUPOOL_OK);
    c->block[i] = c->block[--c->count];
    c->live -= b.bytes;
    if (c->live <= c->phase.low || c->count == 0) churn_turn(c, 1);
}

static inline void churn_trim(churn *c) {
    size_t before = kit_reserved(c->arena), keep = churn_below(c, before + 1), released = 0;
    CHECK_RESULT(gpupool_trim(c->arena, keep, &released), GPUPOOL_OK);
    size_t after = kit_reserved(c->arena);
    CHECK_EQ(released, before - after);
    CHECK(after >= keep);
    c->trims++;
}

static inline size_t churn_some_limit(churn *c, size_t reserved) {
    double share = churn_share(&c->random);
    switch (churn_below(c, 8)) {
    case 0: return 0;
    case 1:
    case 2: return (size_t)((double)reserved * (0.3 + 0.7 * share)) + 1;
    case 3: return (size_t)((double)reserved * (1 + 0.05 * share)) + 1;
    default: return 2 * GIB + (size_t)(18.0 * share * (double)GIB);
    }
}

/* What is above a limit that came down is what live blocks keep: then nothing is left to trim. */
static inline void churn_limit(churn *c) {
    size_t before = (size_t)churn_look(c).reserved.now, released = 0;
    c->limit = churn_some_limit(c, before);
    CHECK_RESULT(gpupool_set_limit(c->arena, c->limit), GPUPOOL_OK);
    size_t after = kit_reserved(c->arena);
    CHECK(after <= before);
    c->bound = !c->limit ? SIZE_MAX : after > c->limit ? after : c->limit;
    c->limits++;
    if (c->bound > c->limit && c->limit) {
        CHECK_RESULT(gpupool_trim(c->arena, 0, &released), GPUPOOL_OK);
        CHECK_EQ(released, 0);
        c->lowered++;
    }
    CHECK_RESULT(gpupool_reset_peaks(c->arena), GPUPOOL_OK);
    c->bound_of_peak = c->bound;
    churn_new_phase(c); /* its marks belong to the limit */
}

static inline void churn_now_and_then(churn *c) {
    size_t what = churn_below(c, 100);
    cudaStream_t stream = kit_stream[churn_below(c, CHURN_STREAMS)];
    churn_look(c);
    if (what < 12) churn_limit(c);
    else if (what < 32) churn_trim(c);
    else if (what < 34) CHECK_RESULT(gpupool_retire_stream(c->arena, stream), GPUPOOL_OK);
    churn_device_holds(c);
}

static inline void churn_step(churn *c) {
    if (c->ops >= c->phase.until) churn_new_phase(c);
    unsigned allocations = c->rising ? c->phase.up : c->phase.down;
    if (c->live >= c->phase.high || c->count == CHURN_MOST) allocations = 0;
    if (c->count == 0 || churn_below(c, 100) < allocations) churn_alloc(c);
    else churn_free(c);
    c->ops++;
    churn_device_holds(c);
    if (c->ops % CHURN_LOOK == 0) churn_now_and_then(c);
    if (c->ops % CHURN_CHECK == 0) CHECK_RESULT(gpupool_check(c->arena), GPUPOOL_OK);
}

/* ---- from first to last ---- */

static inline void churn_open(churn *c, gpupool_source source, uint64_t seed) {
    *c = (churn){.source = source, .random = seed, .emptiest = 1};
    c->bound = c->bound_of_peak = SIZE_MAX;
#if CHECK_FAKE
    fake_oracle(0);
#endif
    c->block = (churn_block *)calloc(CHURN_MOST, sizeof *c->block);
    if (!CHECK(c->block != NULL)) exit(EXIT_FAILURE);
    c->arena = kit_open(source);
    churn_new_phase(c);
    churn_turn(c, 1);
}

/* The statistics of the last moment; all is given back afterwards. */
static inline gpupool_stats churn_close(churn *c) {
    gpupool_stats last = churn_look(c);
    CHECK_RESULT(gpupool_check(c->arena), GPUPOOL_OK);
    while (c->count) churn_free(c);
    kit_close(c->arena);
    free(c->block);
    return last;
}

#endif
