/* fuzz_arena.h: calls of an arena, right ones and wrong ones, against a list of what must be live.
   Both ends of every block are stamped and verified by queued work under the race oracle. */
#ifndef FUZZ_ARENA_H
#define FUZZ_ARENA_H

#include "fuzz_graph.h"

#define FUZZ_BLOCKS 128

typedef struct fuzz_block {
    char *at; /* NULL: there is none */
    size_t bytes;
    int home;    /* the stream whose work comes last, and where it may be freed */
    int byte;    /* what both ends hold */
    int scoped;  /* 1: it belongs to a graph: only captured work touches it */
} fuzz_block;

static struct {
    gpupool_arena *arena;
    gpupool_source source;
    int check_all, scopes;
    FILE *trace;           /* NULL: calls are not recorded */
    fuzz_block block[FUZZ_BLOCKS];
    fuzz_graph graph;
} fz;

/* ---- work ---- */

static void fuzz_touch(const fuzz_block *b, int stream, int write) {
    size_t edge = kit_edge(b->bytes);
    fake_access access[2] = {{b->at, edge, write, FAKE_BYTE(b->byte)},
                             {b->at + b->bytes - edge, edge, write, FAKE_BYTE(b->byte)}};
    CHECK_EQ(fake_kernel(kit_stream[stream], write ? "write" : "read", access, 2), cudaSuccess);
}

/* A stream for a step's work: the capturing one takes part only by steps of its own. */
static int fuzz_stream(uint8_t byte) {
    return byte % (fz.graph.capturing ? FUZZ_CAPTURER : KIT_STREAMS);
}

static void fuzz_order(int earlier, int later) {
    if (earlier != later) kit_order(kit_stream[earlier], kit_stream[later]);
}

/* Ordinary blocks only; those of a graph, and those whose stream captures, are left alone. */
static fuzz_block *fuzz_pick(uint8_t byte) {
    fuzz_block *b = &fz.block[byte % FUZZ_BLOCKS];
    return b->at && !b->scoped && !(fz.graph.capturing && b->home == FUZZ_CAPTURER) ? b : NULL;
}

/* ---- the list ---- */

static void fuzz_add(fuzz_block *b) {
    for (fuzz_block *other = fz.block; other < fz.block + FUZZ_BLOCKS; other++)
        if (other != b && other->at && other->at < b->at + b->bytes &&
            b->at < other->at + other->bytes)
            check_fail(__FILE__, __LINE__, "blocks %td and %td overlap", b - fz.block,
                       other - fz.block);
}

static void fuzz_agrees(void) {
    gpupool_stats s;
    uint64_t requested = 0, blocks = 0;
    memset(&s, 0, sizeof s);
    CHECK_RESULT(gpupool_check(fz.arena), GPUPOOL_OK);
    CHECK_RESULT(gpupool_get_stats(fz.arena, &s), GPUPOOL_OK);
    for (const fuzz_block *b = fz.block; b < fz.block + FUZZ_BLOCKS; b++) {
        if (!b->at) continue;
        requested += b->bytes;
        blocks++;
        CHECK_EQ(kit_size(fz.arena, b->at), b->bytes);
    }
    CHECK_EQ(s.requested.now, requested);
    CHECK_EQ(s.blocks.now, blocks);
    CHECK(requested <= s.granted.now && s.granted.now <= s.reserved.now);
    CHECK_EQ(s.allocs - s.frees, blocks);
    CHECK_RESULT(gpupool_check(fz.arena), GPUPOOL_OK);
}

/* ---- blocks come and go ---- */

static void fuzz_get(fuzz_step s) {
    fuzz_block *b = &fz.block[s.a % FUZZ_BLOCKS];
    int captured = fz.graph.capturing && s.b % 4 == FUZZ_CAPTURER;
    int home = captured ? FUZZ_CAPTURER : fuzz_stream(s.b);
    int kind = s.b / 4 % 8;
    size_t alignment = (size_t)1 << s.b / 32 * 3;
    cudaStream_t stream = kit_stream[home];
    if (b->at) return;
    b->bytes = fuzz_size(s.c, s.a / FUZZ_BLOCKS);
    b->byte = s.c;
    b->home = home;
    b->scoped = captured;
    if (kind == 1 && b->bytes > MIB) b->bytes = MIB; /* clearing more would take the time */
    FUZZ_TRY(kit_why(b->at = (char *)(
        kind == 1 ? gpupool_zalloc(fz.arena, b->bytes, stream) :
        kind == 2 ? gpupool_alloc_aligned(fz.arena, b->bytes, alignment, stream) :
                    gpupool_alloc(fz.arena, b->bytes, stream))),
        FUZZ_NO_MEMORY | (captured ? 1u << GPUPOOL_E_CAPTURING : 0u));
    if (!b->at) return;
    fuzz_add(b);
    CHECK(kind != 2 || (uintptr_t)b->at % alignment == 0);
    if (kind == 1) kit_expect_mark(stream, b->at, b->bytes, 0);
    fuzz_touch(b, home, 1);
}

static void fuzz_put(fuzz_step s) {
    fuzz_block *b = &fz.block[s.a % FUZZ_BLOCKS];
    int to = b->home;
    if (!b->at) return;
    if (!b->scoped) {
        if (!fuzz_pick(s.a)) return;
        if (s.b & 1) fuzz_order(b->home, to = fuzz_stream(s.c));
        fuzz_touch(b, to, 0);
    } else if (fz.graph.capturing) {
        fuzz_touch(b, FUZZ_CAPTURER, 0);
    }
    /* of a block with uses by others an event is wanted, and a fault may be in the way */
    if (FUZZ_TRY(gpupool_free(fz.arena, b->at, kit_stream[to]),
                 b->scoped && fz.graph.capturing ? 1u << GPUPOOL_E_CAPTURING : 0u))
        b->at = NULL;
    else b->home = to;
}

/* Many of one size, as programs have them: more than a cache holds. */
static void fuzz_many(fuzz_step s, void (*step)(fuzz_step)) {
    for (int i = 0; i < 72; i++, s.a = (uint8_t)(s.a + 1)) step(s);
}

/* Another stream reads it and says so; where it cannot, the block moves there. */
static void fuzz_lend(fuzz_step s) {
    fuzz_block *b = fuzz_pick(s.a);
    int other = fuzz_stream(s.b);
    if (!b) return;
    fuzz_order(b->home, other);
    fuzz_touch(b, other, 0);
    if (!FUZZ_TRY(gpupool_record_stream(fz.arena, b->at, kit_stream[other]), 0))
        fuzz_order(other, b->home);
}

/* Written on another stream, after all its readers. */
static void fuzz_hand_over(fuzz_step s) {
    fuzz_block *b = fuzz_pick(s.a);
    int to = fuzz_stream(s.b);
    if (!b) return;
    for (int i = 0; i < (fz.graph.capturing ? FUZZ_CAPTURER : KIT_STREAMS); i++) fuzz_order(i, to);
    b->home = to;
    b->byte = s.c;
    fuzz_touch(b, to, 1);
}

static void fuzz_misuse(fuzz_step s) {
    fuzz_block *b = fuzz_pick(s.a);
    cudaStream_t stream = kit_stream[fuzz_stream(s.b)];
    gpupool_stats before = kit_stats(fz.arena);
    static char host[64];
    if (b && s.c % 4 == 0 && b->bytes > 1)
        CHECK_RESULT(gpupool_free(fz.arena, b->at + b->bytes - 1, stream), GPUPOOL_E_INSIDE);
    else if (b && s.c % 4 == 1) CHECK_EQ(kit_size(fz.arena, b->at + 1), 0);
    else if (s.c % 4 == 2)
        CHECK_RESULT(gpupool_free(fz.arena, host, stream), GPUPOOL_E_NOT_OURS);
    else CHECK(gpupool_alloc_aligned(fz.arena, s.c & 4 ? SIZE_MAX - s.c : 0, 3, stream) == NULL);
    CHECK(kit_same_stats(before, kit_stats(fz.arena)));
}

/* Of nobody by now, since no other call came between: a double free. */
static void fuzz_free_again(fuzz_step s) {
    fuzz_block *b = fuzz_pick(s.a);
    char *was;
    if (!b || fz.source == GPUPOOL_SOURCE_BYPASS) return; /* there the memory is gone */
    was = b->at;
    fuzz_put(s);
    if (b->at) return;
    gpupool_result again = gpupool_free(fz.arena, was, kit_stream[b->home]);
    CHECK(again == GPUPOOL_E_DOUBLE_FREE || again == GPUPOOL_E_NOT_OURS);
}

/* ---- the arena ---- */

static void fuzz_limit_moves(fuzz_step s) {
    static const char *const texts[] = {"50%", "10%free", "96MiB", "-100MB", "1", "bad"};
    size_t bytes = s.a & 1 ? fuzz_size(s.b, 0) : 0;
    if (s.a & 2)
        FUZZ_TRY(gpupool_set_limit_text(fz.arena, texts[s.b % KIT_COUNT(texts)]),
                 1u << GPUPOOL_E_ARGUMENT);
    else FUZZ_TRY(gpupool_set_limit(fz.arena, bytes), 0);
}

static void fuzz_trim(fuzz_step s) {
    size_t released = 0, before = kit_reserved(fz.arena);
    FUZZ_TRY(gpupool_trim(fz.arena, fuzz_size(s.a, 0), &released), 0);
    CHECK_EQ(before - released, kit_reserved(fz.arena));
}

static void fuzz_ask(fuzz_step s) {
    gpupool_verdict why;
    size_t bytes = fuzz_size(s.b, 0);
    int fits = 0;
    memset(&why, 0, sizeof why);
    switch (s.a % 4) {
    case 0: FUZZ_ASK((kit_available(fz.arena), gpupool_last_result())); break;
    case 1:
        FUZZ_TRY((fits = kit_fits(fz.arena, bytes, &why), gpupool_last_result()),
                 FUZZ_NO_MEMORY);
        CHECK(fits || fuzz_fault.fired || why.cause != GPUPOOL_CAUSE_NONE);
        break;
    case 2: FUZZ_TRY(gpupool_reset_peaks(fz.arena), 0); break;
    default: fuzz_agrees();
    }
}

static void fuzz_scopes(fuzz_step s) {
    gpupool_stats phase;
    if (s.a & 1 && fz.scopes < 8) fz.scopes += FUZZ_TRY(gpupool_begin_phase(fz.arena), 0);
    else if (fz.scopes) fz.scopes -= FUZZ_TRY(gpupool_end_phase(fz.arena, &phase), 0);
    else CHECK_RESULT(gpupool_end_phase(fz.arena, NULL), GPUPOOL_E_ARGUMENT);
}

static void fuzz_record(int on) {
    FILE *before = fz.trace;
    fz.trace = on ? fopen("/dev/null", "w") : NULL;
    FUZZ_TRY(gpupool_set_trace(fz.arena, fz.trace), 0);
    if (before) fclose(before);
}

static void fuzz_report(fuzz_step s) {
    FILE *nowhere = s.a % 5 == 4 ? NULL : fopen("/dev/null", "w");
    switch (s.a % 5) {
    case 0: FUZZ_TRY(gpupool_report(fz.arena, nowhere), 0); break;
    case 1: FUZZ_TRY(gpupool_write_json(fz.arena, nowhere), 0); break;
    case 2: FUZZ_TRY(gpupool_write_svg(fz.arena, nowhere), 0); break;
    case 3: FUZZ_TRY(gpupool_write_snapshot(fz.arena, nowhere), 0); break;
    default: fuzz_record(!fz.trace);
    }
    if (nowhere) fclose(nowhere);
}

/* ---- streams ---- */

static void fuzz_let_run(fuzz_step s) {
    cudaStream_t stream = kit_stream[fuzz_stream(s.a)];
    int steps = s.b % 32;
    if (fz.graph.capturing || s.c % 4) while (steps-- > 0) fake_step(stream);
    else if (s.c % 8 == 0) CHECK_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    else CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

/* A stream goes, with its work in flight, and another takes its place, often with its handle. */
static void fuzz_renew(fuzz_step s) {
    int gone = s.a % FUZZ_CAPTURER, heir = (gone + 1) % FUZZ_CAPTURER;
    fuzz_order(gone, heir);
    for (fuzz_block *b = fz.block; b < fz.block + FUZZ_BLOCKS; b++)
        if (b->home == gone) b->home = heir;
    if (!FUZZ_TRY(gpupool_retire_stream(fz.arena, kit_stream[gone]), 0) || s.b & 1) return;
    if (fz.graph.capturing) return;
    CHECK_EQ(cudaStreamDestroy(kit_stream[gone]), cudaSuccess);
    CHECK_EQ(cudaStreamCreateWithFlags(&kit_stream[gone], cudaStreamNonBlocking), cudaSuccess);
}

/* ---- a graph, and its blocks ---- */

static void fuzz_release(void) {
    if (!fuzz_graph_release(&fz.graph, 0)) return;
    for (fuzz_block *b = fz.block; b < fz.block + FUZZ_BLOCKS; b++) {
        if (b->scoped) b->at = NULL;
        b->scoped = 0;
    }
}

/* ---- from first byte to last ---- */

static void fuzz_arena_step(fuzz_step s) {
    switch (s.verb % 32) {
    case 0: case 1: case 2: case 3: case 4: case 5: fuzz_get(s); break;
    case 6: case 7: case 8: case 9: fuzz_put(s); break;
    case 10: fuzz_lend(s); break;
    case 11: fuzz_hand_over(s); break;
    case 12: case 13: fuzz_let_run(s); break;
    case 14: fuzz_limit_moves(s); break;
    case 15: fuzz_trim(s); break;
    case 16: case 17: fuzz_fault.due = s; break;
    case 18: fuzz_ask(s); break;
    case 19: fuzz_scopes(s); break;
    case 20: fuzz_misuse(s); break;
    case 21: fuzz_free_again(s); break;
    case 22: fuzz_renew(s); break;
    case 23: fuzz_report(s); break;
    case 24:
        fuzz_graph_begin(&fz.graph, fz.arena, s,
                         fz.source == GPUPOOL_SOURCE_BYPASS ? 1u << GPUPOOL_E_UNSUPPORTED : 0u);
        break;
    case 25: fuzz_graph_end(&fz.graph, s); break;
    case 26: fuzz_release(); break;
    case 27: fuzz_graph_launch(&fz.graph); break;
    case 28: fake_other_process(0, s.a & 1 ? fuzz_size(s.b, 0) : 0); break;
    case 29:
        kit_custom.refuse = s.a & 1;
        if (s.a & 2 && !fz.graph.capturing)
            FUZZ_TRY(gpupool_allow_peer(fz.arena, 1), 1u << GPUPOOL_E_UNSUPPORTED);
        if (s.a & 4) linked_crowd(fz.arena, kit_stream[fuzz_stream(s.b)]);
        break;
    case 30: fuzz_many(s, fuzz_get); break;
    default: fuzz_many(s, fuzz_put);
    }
    if (fz.check_all) fuzz_agrees();
}

static int fuzz_arena_open(fuzz_step s) {
    gpupool_arena_config config = kit_config(kit_sources[s.verb % KIT_SOURCES].source);
    config.limit_bytes = s.a & 1 ? fuzz_size(s.b, 0) : 0;
    config.chunk_bytes = s.a & 2 ? fuzz_size(s.b, 0) : 0;
    config.reserve_bytes = s.a & 4 ? fuzz_size(s.c, 0) : 0;
    memset(&fz, 0, sizeof fz);
    fz.source = config.source;
    fz.check_all = s.a & 8;
    fake_device_memory(0, 256 * MIB);
    fake_mode(s.a & 16 ? FAKE_EAGER : FAKE_STEPPED);
    return FUZZ_TRY(gpupool_arena_create(&fz.arena, &config),
                    FUZZ_NO_MEMORY | 1u << GPUPOOL_E_ARGUMENT);
}

static void fuzz_arena_close(void) {
    fuzz_step none = {0, 0, 0, 0};
    fuzz_fault.due.verb = 0;
    fuzz_record(0);
    fuzz_agrees();
    fuzz_graph_end(&fz.graph, none);
    fuzz_release();
    for (int i = 0; i < FUZZ_BLOCKS; i++) {
        none.a = (uint8_t)i;
        fuzz_put(none);
    }
    fake_run_all();
    fuzz_agrees();
    kit_close(fz.arena);
}

static int fuzz_arena(const uint8_t *data, size_t size) {
    fuzz_bytes in = {data, size};
    fuzz_step step = {0, 0, 0, 0};
    if (size < 8 || size > 2048) return 1;
    fuzz_prepare();
    fuzz_next(&in, &step);
    if (fuzz_arena_open(step)) {
        while (fuzz_next(&in, &step)) fuzz_arena_step(step);
        if (!atomic_load(&check_bad)) fuzz_arena_close();
    }
    return fuzz_settle();
}

#endif
