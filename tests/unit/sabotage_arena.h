/* sabotage_arena.h: what breaks the invariants of LEDGER, CLOCK and ARENA. Each breaks the at-th
   place that it knows; 0: there is none. */
#ifndef SABOTAGE_ARENA_H
#define SABOTAGE_ARENA_H

#include "sabotage_kit.h"

/* ---- L: counters ---- */

/* Its peak and total go along, so that no other invariant of the ledger is broken. */
static inline void set_counter(gpupool_counter *counter, uint64_t now) {
    uint64_t more = now > counter->now ? now - counter->now : 0;
    break_u64(&counter->now, now);
    break_u64(&counter->total, counter->total + more);
    if (now > counter->peak) break_u64(&counter->peak, now);
}

static inline int more_requested_than_granted(size_t at) {
    if (at == 0) set_counter(&arena->ledger.requested, arena->ledger.granted.now + 1);
    return at == 0;
}

static inline int more_granted_than_reserved(size_t at) {
    if (at == 0) set_counter(&arena->ledger.granted, arena->ledger.reserved.now + 512);
    return at == 0;
}

static inline int more_reserved_than_allowed(size_t at) {
    if (at == 0) break_u64(&arena->ledger.limit_bytes, arena->ledger.reserved.now - 1);
    if (at == 0) break_u64(&arena->ledger.over_bytes, 0);
    return at == 0;
}

static inline gpupool_counter *counter_at(size_t at) {
    gpi_ledger *ledger = &arena->ledger;
    gpupool_counter *counters[] = {&ledger->requested, &ledger->granted, &ledger->reserved,
                                   &ledger->pending, &ledger->blocks};
    return at < KIT_COUNT(counters) ? counters[at] : NULL;
}

static inline int more_than_the_peak(size_t at) {
    gpupool_counter *counter = counter_at(at);
    if (counter && CHECK(counter->now > 0)) break_u64(&counter->peak, counter->now - 1);
    return counter != NULL;
}

static inline int more_than_the_total(size_t at) {
    gpupool_counter *counter = counter_at(at);
    if (counter && CHECK(counter->now > 0)) break_u64(&counter->total, counter->now - 1);
    return counter != NULL;
}

/* ---- L3: scopes ---- */

static inline int more_in_a_scope_than_in_all(size_t at) {
    gpi_phase *scope;
    if (at >= 5) return 0;
    if (!CHECK_RESULT(gpupool_begin_phase(arena), GPUPOOL_OK)) return 0;
    scope = arena->ledger.phases;
    break_u64(&(&scope->before.requested)[at].total, (&arena->ledger.requested)[at].total + 1);
    return 1;
}

static inline int less_in_all_than_now(size_t at) {
    gpupool_counter *before;
    if (at >= 5) return 0;
    if (!CHECK_RESULT(gpupool_begin_phase(arena), GPUPOOL_OK)) return 0;
    before = &(&arena->ledger.phases->before.requested)[at];
    break_u64(&before->now, before->total + 1);
    return 1;
}

static inline void pop_scope(void) {
    CHECK_RESULT(gpupool_end_phase(arena, NULL), GPUPOOL_OK);
}

/* ---- K1: how far streams have come ---- */

static inline uint64_t issued_by(const gpi_stream *stream) {
    return stream == arena->clocks.all ? arena->clocks.position : stream->clock.issued;
}

static inline int passed_what_is_not_issued(size_t at) {
    gpi_stream *stream = stream_at(at);
    if (stream) break_u64(&stream->clock.passed, issued_by(stream) + 1);
    return stream != NULL;
}

static inline int mark_behind_what_is_not_issued(size_t at) {
    gpi_stream *stream = stream_at(at / 2);
    if (stream) break_u64(&stream->clock.marks[at % 2].at, issued_by(stream) + 1);
    return stream != NULL;
}

static inline int issued_beyond_the_latest(size_t at) {
    gpi_stream *stream = stream_at(at);
    if (stream) break_u64(&stream->clock.issued, arena->clocks.position + 1);
    return stream != NULL;
}

/* ---- K2: free lists of streams ---- */

static inline int lane_of_another_stream(size_t at) {
    gpi_stream *stream = stream_at(at), *other = stream_at(at == 0);
    if (stream) break_u32(&stream->list, other->list);
    return stream != NULL;
}

static inline int lane_with_another_owner(size_t at) {
    gpi_stream *stream = stream_at(at);
    void *other = at % 2 ? NULL : (void *)stream_at(at == 0);
    if (stream) break_bytes(&arena->tree.lists[stream->list]->owner, &other, sizeof other);
    return stream != NULL;
}

static inline int lane_of_nobody(size_t at) {
    if (at == 0) gpi_tree_list_add(&arena->tree);
    return at == 0;
}

static inline void drop_lane_of_nobody(void) {
    uint32_t list = arena->tree.list_count;
    while (!arena->tree.lists[list - 1] || arena->tree.lists[list - 1]->owner) list--;
    gpi_tree_list_drop(&arena->tree, list - 1);
}

static inline int is_a_streams(const gpi_run *run) {
    return run->list >= GPI_LIST_STREAMS && run->list < GPI_LIST_WAITING;
}

static inline int run_later_than_issued(size_t at) {
    gpi_run *run = run_at(at, is_a_streams);
    gpi_stream *stream = run ? (gpi_stream *)arena->tree.lists[run->list]->owner : NULL;
    if (run) break_u64(&run->of.at, stream->clock.issued + 1);
    return run != NULL;
}

static inline int run_at_no_position(size_t at) {
    gpi_run *run = run_at(at, is_a_streams);
    if (run) break_u64(&run->of.at, 0);
    return run != NULL;
}

/* ---- K3: what refers to streams ---- */

/* Of live blocks, then of waiting ones. */
static inline gpi_stream *user_at(size_t at) {
    gpi_run *run = at ? waiting_at(at - 1) : run_at(0, is_live_in_use);
    return run ? ((gpi_use *)run->of.uses)->stream : NULL;
}

/* All references that there must be, less one. */
static inline int stream_without_refs(size_t at) {
    gpi_stream *user = user_at(at), *stream;
    uint64_t least = arena->clocks.uses;
    for (const gpi_stitch *s = arena->stitches.oldest; s; s = s->newer) least += s->user != NULL;
    for (size_t i = 0; user && (stream = stream_at(i)) != NULL; i++)
        break_u64(&stream->refs, i ? 0 : least - 1);
    return user != NULL;
}

/* As many as there are uses, and none for idle stitches. */
static inline int only_refs_of_uses(size_t at) {
    gpi_stream *stream;
    for (size_t i = 0; at == 0 && (stream = stream_at(i)) != NULL; i++)
        break_u64(&stream->refs, i ? 0 : arena->clocks.uses);
    return at == 0;
}

static inline int lost_use(size_t at) {
    gpi_run *run = at ? waiting_at(at - 1) : run_at(0, is_live_in_use);
    gpi_use *use = run ? (gpi_use *)run->of.uses : NULL;
    if (run && use->next) break_bytes(&use->next, &use->next->next, sizeof use->next);
    else if (run) break_u64(&arena->clocks.uses, arena->clocks.uses + 1);
    return run != NULL;
}

/* ---- K5: the queue of busy streams ---- */

static inline gpi_stream *busy_at(size_t at) {
    gpi_stream *stream;
    for (size_t i = 0; (stream = stream_at(i)) != NULL; i++)
        if (gpi_clock_is_busy(&arena->clocks, stream) && at-- == 0) return stream;
    return NULL;
}

/* Nor does any other invariant of the queue tell of it. */
static inline int busy_in_no_queue(size_t at) {
    gpi_stream *stream = busy_at(at), **link = &arena->clocks.busy;
    if (!stream) return 0;
    while (*link != stream) link = &(*link)->busy_next;
    break_bytes(link, &stream->busy_next, sizeof *link);
    break_int(&stream->is_busy, 0);
    return 1;
}

static inline int last_busy_is_not_the_last(size_t at) {
    if (at || arena->clocks.busy == arena->clocks.busy_last) return 0;
    break_bytes(&arena->clocks.busy_last, &arena->clocks.busy, sizeof arena->clocks.busy);
    return 1;
}

/* Behind the last one. */
static inline int idle_in_the_queue(size_t at) {
    gpi_stream *stream = stream_at(at);
    while (stream && stream->is_busy) stream = stream_at(++at);
    if (!stream) return 0;
    break_bytes(&arena->clocks.busy_last->busy_next, &stream, sizeof stream);
    break_bytes(&arena->clocks.busy_last, &stream, sizeof stream);
    return 1;
}

/* ---- K4: streams by their handles ---- */

static inline void break_key(uintptr_t *at, uintptr_t now) { break_bytes(at, &now, sizeof now); }

static inline int key_of_another_handle(size_t at) {
    gpi_stream *stream = stream_at(at);
    if (stream) break_key(&stream->key, stream->key + 64);
    return stream != NULL;
}

static inline int stream_in_no_bucket(size_t at) {
    gpi_stream *stream = stream_at(at), **link;
    if (!stream) return 0;
    link = &arena->clocks.buckets[gpi_clock_bucket(stream->handle)];
    while (*link != stream) link = &(*link)->chain;
    break_bytes(link, &stream->chain, sizeof stream->chain);
    return 1;
}

/* Both in the bucket of that key. */
static inline int two_of_one_key(size_t at) {
    gpi_stream *stream = stream_at(at), *other = at ? stream_at(0) : stream_at(1);
    gpi_stream **bucket, *only = stream;
    if (!stream) return 0;
    bucket = &arena->clocks.buckets[gpi_clock_bucket(other->key)];
    stream_in_no_bucket(at);
    break_bytes(&stream->chain, bucket, sizeof *bucket);
    break_bytes(bucket, &only, sizeof only);
    break_key(&stream->handle, other->key);
    break_key(&stream->key, other->key);
    return 1;
}

/* ---- A: the arena's own sums, and waiting blocks ---- */

static inline int wrong_granted(size_t at) {
    gpupool_counter *granted = &arena->ledger.granted;
    if (at < 2) set_counter(granted, at ? granted->now - 512 : granted->now + 512);
    return at < 2;
}

static inline int stream_not_counted(size_t at) {
    gpi_clocks *clocks = &arena->clocks;
    if (at < 2) break_u64(&clocks->stream_count, clocks->stream_count + (at ? 1 : UINT64_MAX));
    if (at == 2) break_u64(&clocks->thread_streams, clocks->thread_streams + 1);
    return at < 3;
}

static inline int wrong_blocks(size_t at) {
    gpupool_counter *blocks = &arena->ledger.blocks;
    if (at < 2) set_counter(blocks, at ? blocks->now - 1 : blocks->now + 1);
    return at < 2;
}

static inline int wrong_requested(size_t at) {
    gpupool_counter *requested = &arena->ledger.requested;
    if (at == 0) set_counter(requested, requested->now - 1);
    return at == 0;
}

static inline int wrong_pending(size_t at) {
    gpupool_counter *pending = &arena->ledger.pending;
    if (at < 2) set_counter(pending, at ? pending->now - 512 : pending->now + 512);
    return at < 2;
}

static inline int wrong_cached_sum(size_t at) {
    uint64_t *sum = &arena->ledger.cached_bytes;
    if (at < 2) break_u64(sum, at ? *sum - 512 : *sum + 512);
    return at < 2;
}

/* ---- A4 ---- */

static inline int is_live_but_not_cached(const gpi_run *run) {
    return is_live(run) && !is_cached(run);
}

static inline int block_of_no_tag(size_t at) {
    gpi_run *run = run_at(at, is_live_but_not_cached);
    uint32_t tag = (uint32_t)arena->ledger.tag_count + 1;
    if (run) break_u32(&run->as.slack, run->as.slack | tag << GPI_SLACK_BITS);
    return run != NULL;
}

static inline int wrong_tag_sum(size_t at) {
    gpi_ledger_tag *tag = arena->ledger.tags[1];
    if (at == 0) break_u64(&tag->stats.granted.now, tag->stats.granted.now - 512);
    if (at == 1) break_u64(&tag->stats.blocks.now, tag->stats.blocks.now - 1);
    if (at == 2) break_u64(&tag->coming, 512);
    return at < 3;
}

static inline int wrong_waiting_sum(size_t at) {
    uint64_t *sum = &arena->waiting_units;
    if (at < 2) break_u64(sum, at ? *sum - 1 : *sum + 1);
    return at < 2;
}

static inline int lost_waiting_run(size_t at) {
    gpi_run *run = waiting_at(at);
    if (run) break_run(at ? &waiting_at(at - 1)->list_next : &arena->waiting, run->list_next);
    return run != NULL;
}

static inline int waiting_but_live(size_t at) {
    gpi_run *run = waiting_at(at);
    if (run) break_u32(&run->list, GPI_LIST_LIVE);
    return run != NULL;
}

static inline int waiting_but_free(size_t at) {
    gpi_run *run = waiting_at(at);
    if (run) break_u32(&run->list, GPI_LIST_ANY);
    return run != NULL;
}

/* A live block that another stream uses, after all that are waiting. */
static inline int live_but_waiting(size_t at) {
    gpi_run *run = at == 0 ? run_at(0, is_live_in_use) : NULL;
    if (!run) return 0;
    break_run(&run->list_next, NULL);
    break_run(&arena->waiting_last->list_next, run);
    break_u64(&arena->waiting_units, arena->waiting_units + run->units);
    return 1;
}

/* A live block that nobody else uses, the last of its bucket, after all that are waiting. */
static inline int is_plain_and_last(const gpi_run *run) {
    return run->list == GPI_LIST_LIVE && !run->of.uses && !run->list_next;
}

static inline int plain_but_waiting(size_t at) {
    gpi_run *run = run_at(at, is_plain_and_last);
    if (!run) return 0;
    break_run(&arena->waiting_last->list_next, run);
    break_u64(&arena->waiting_units, arena->waiting_units + run->units);
    return 1;
}

static inline int waiting_without_use(size_t at) {
    gpi_run *run = waiting_at(at);
    void *none = NULL;
    if (run) break_bytes(&run->of.uses, &none, sizeof none);
    return run != NULL;
}

/* All that referred to its streams has forgotten it. */
static inline int waiting_for_nobody(size_t at) {
    gpi_run *run = waiting_at(at);
    gpi_use *use = run ? (gpi_use *)run->of.uses : NULL;
    for (; use; use = use->next) {
        break_u64(&use->stream->refs, use->stream->refs - 1);
        break_u64(&arena->clocks.uses, arena->clocks.uses - 1);
    }
    return waiting_without_use(at);
}

#endif
