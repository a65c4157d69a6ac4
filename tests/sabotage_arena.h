/* sabotage_arena.h: what breaks the invariants of LEDGER, FENCE and ARENA. Each breaks the at-th
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
    gpi_scope *scope;
    if (at >= 5) return 0;
    if (!CHECK_RESULT(gpupool_scope_push(arena), GPUPOOL_OK)) return 0;
    scope = arena->ledger.scopes;
    break_u64(&(&scope->before.requested)[at].total, (&arena->ledger.requested)[at].total + 1);
    return 1;
}

static inline int less_in_all_than_now(size_t at) {
    gpupool_counter *before;
    if (at >= 5) return 0;
    if (!CHECK_RESULT(gpupool_scope_push(arena), GPUPOOL_OK)) return 0;
    before = &(&arena->ledger.scopes->before.requested)[at];
    break_u64(&before->now, before->total + 1);
    return 1;
}

static inline void pop_scope(void) {
    CHECK_RESULT(gpupool_scope_pop(arena, NULL), GPUPOOL_OK);
}

/* ---- F1: events ---- */

static cudaEvent_t fresh_event;

static inline gpi_fence **sealing_fence_at(size_t at) {
    gpi_stream *stream = sealed_stream_at(at / 2);
    if (!stream) return NULL;
    return at % 2 ? &stream->fences[stream->seals - 1] : &stream->fences[0];
}

static inline int event_never_recorded(size_t at) {
    gpi_fence **fence = sealing_fence_at(at);
    if (!fence) return 0;
    CHECK_EQ(cudaEventCreateWithFlags(&fresh_event, cudaEventDisableTiming), cudaSuccess);
    break_bytes(&(*fence)->event, &fresh_event, sizeof fresh_event);
    return 1;
}

static inline void drop_event(void) { CHECK_EQ(cudaEventDestroy(fresh_event), cudaSuccess); }

/* ---- F2: lanes of streams ---- */

static inline gpi_stream *stream_at(size_t at) {
    gpi_stream *stream = arena->fences.streams;
    while (stream && at--) stream = stream->next;
    return stream;
}

/* The number of a lane that there was, but is no more. */
static inline uint32_t dropped_lane(void) {
    uint32_t lane = gpi_tree_lane_add(&arena->tree);
    gpi_tree_lane_drop(&arena->tree, lane);
    return lane;
}

static inline int young_beyond_all_lanes(size_t at) {
    gpi_stream *stream = stream_at(at);
    if (stream) break_u32(&stream->young, arena->tree.lane_count);
    return stream != NULL;
}

static inline int young_in_a_dropped_lane(size_t at) {
    gpi_stream *stream = stream_at(at);
    if (stream) break_u32(&stream->young, dropped_lane());
    return stream != NULL;
}

static inline int sealed_in_a_dropped_lane(size_t at) {
    gpi_stream *stream = sealed_stream_at(at / 2);
    if (stream) break_u32(&stream->sealed[at % 2 ? stream->seals - 1 : 0], dropped_lane());
    return stream != NULL;
}

static inline int sealed_beyond_all_lanes(size_t at) {
    gpi_stream *stream = sealed_stream_at(at / 2);
    if (stream) break_u32(&stream->sealed[at % 2 ? stream->seals - 1 : 0], LANE_HELD);
    return stream != NULL;
}

static inline int seal_of_no_lane(size_t at) {
    gpi_stream *stream = sealed_stream_at(at);
    static gpi_fence later;
    gpi_fence *fence = &later;
    if (!stream) return 0;
    later = *stream->fences[stream->seals - 1];
    later.number++;
    break_u32(&stream->sealed[stream->seals], arena->tree.lane_count);
    break_bytes(&stream->fences[stream->seals], &fence, sizeof fence);
    break_int(&stream->seals, stream->seals + 1);
    return 1;
}

static inline int young_is_quiet(size_t at) {
    gpi_stream *stream = stream_at(at);
    if (stream) break_u32(&stream->young, LANE_QUIET);
    return stream != NULL;
}

static inline int young_of_another_stream(size_t at) {
    gpi_stream *stream = stream_at(at);
    if (!stream || !stream->next) return 0;
    break_u32(&stream->young, stream->next->young);
    return 1;
}

static inline int newest_seal_first(size_t at) {
    gpi_stream *stream = sealed_stream_at(at);
    uint32_t lane;
    gpi_fence *fence;
    if (!stream) return 0;
    lane = stream->sealed[0];
    fence = stream->fences[0];
    break_u32(&stream->sealed[0], stream->sealed[stream->seals - 1]);
    break_u32(&stream->sealed[stream->seals - 1], lane);
    break_bytes(&stream->fences[0], &stream->fences[stream->seals - 1], sizeof fence);
    break_bytes(&stream->fences[stream->seals - 1], &fence, sizeof fence);
    return 1;
}

/* ---- F3: users of fences ---- */

/* Of a live block, then of parked ones. */
static inline gpi_fence *use_fence_at(size_t at) {
    gpi_run *run;
    if (at > 0) run = parked_at(at - 1);
    else run = run_at(0, is_live_in_use);
    return run ? ((gpi_use *)run->uses)->fence : NULL;
}

static inline gpi_fence *seal_fence_at(size_t at) {
    gpi_fence **fence = sealing_fence_at(at);
    return fence ? *fence : NULL;
}

static inline int set_users(gpi_fence *fence, int more) {
    if (fence) break_int(&fence->users, fence->users + more);
    return fence != NULL;
}

static inline int seal_without_users(size_t at) { return set_users(seal_fence_at(at), -1); }
static inline int seal_with_another_user(size_t at) { return set_users(seal_fence_at(at), 1); }
static inline int use_without_users(size_t at) { return set_users(use_fence_at(at), -1); }
static inline int use_with_another_user(size_t at) { return set_users(use_fence_at(at), 1); }

static inline int make_idle(gpi_fence *fence) {
    if (!fence) return 0;
    break_bytes(&fence->next, &arena->fences.idle, sizeof fence);
    break_bytes(&arena->fences.idle, &fence, sizeof fence);
    return 1;
}

static inline int idle_seal(size_t at) { return make_idle(seal_fence_at(at)); }
static inline int idle_use(size_t at) { return make_idle(use_fence_at(at)); }

/* ---- F4: streams by their handles ---- */

static inline void break_key(uintptr_t *at, uintptr_t now) { break_bytes(at, &now, sizeof now); }

static inline int key_of_another_handle(size_t at) {
    gpi_stream *stream = stream_at(at);
    if (stream) break_key(&stream->key, stream->key + 64);
    return stream != NULL;
}

static inline int stream_in_no_bucket(size_t at) {
    gpi_stream *stream = stream_at(at), **link;
    if (!stream) return 0;
    link = gpi_fence_bucket(&arena->fences, stream->handle);
    while (*link != stream) link = &(*link)->chain;
    break_bytes(link, &stream->chain, sizeof stream->chain);
    return 1;
}

/* Both in the bucket of that key. */
static inline int two_of_one_key(size_t at) {
    gpi_stream *stream = stream_at(at), *other = at ? stream_at(0) : stream_at(1);
    gpi_stream **bucket, *only = stream;
    if (!stream) return 0;
    bucket = gpi_fence_bucket(&arena->fences, other->key);
    stream_in_no_bucket(at);
    break_bytes(&stream->chain, bucket, sizeof *bucket);
    break_bytes(bucket, &only, sizeof only);
    break_key(&stream->handle, other->key);
    break_key(&stream->key, other->key);
    return 1;
}

/* ---- A: the arena's own sums, and parked blocks ---- */

static inline int wrong_granted(size_t at) {
    gpupool_counter *granted = &arena->ledger.granted;
    if (at < 2) set_counter(granted, at ? granted->now - 512 : granted->now + 512);
    return at < 2;
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

static inline int wrong_parked_sum(size_t at) {
    uint64_t *sum = &arena->parked_units;
    if (at < 2) break_u64(sum, at ? *sum - 1 : *sum + 1);
    return at < 2;
}

static inline int lost_parked_run(size_t at) {
    gpi_run *run = parked_at(at);
    if (run) break_run(at ? &parked_at(at - 1)->list_next : &arena->parked, run->list_next);
    return run != NULL;
}

static inline int parked_but_live(size_t at) {
    gpi_run *run = parked_at(at);
    if (run) break_u32(&run->lane, LANE_LIVE);
    return run != NULL;
}

static inline int parked_but_free(size_t at) {
    gpi_run *run = parked_at(at);
    if (run) break_u32(&run->lane, LANE_QUIET);
    return run != NULL;
}

/* A live block that another stream uses, after all that are parked. */
static inline int live_but_parked(size_t at) {
    gpi_run *run = at == 0 ? run_at(0, is_live_in_use) : NULL;
    if (!run) return 0;
    break_run(&run->list_next, NULL);
    break_run(&arena->parked_last->list_next, run);
    break_u64(&arena->parked_units, arena->parked_units + run->units);
    return 1;
}

static inline int parked_without_fence(size_t at) {
    gpi_run *run = parked_at(at);
    void *none = NULL;
    if (run) break_bytes(&run->uses, &none, sizeof none);
    return run != NULL;
}

static inline int parked_behind_passed_fences(size_t at) {
    gpi_run *run = parked_at(at);
    gpi_use *use = run ? (gpi_use *)run->uses : NULL;
    for (; use; use = use->next) break_int(&use->fence->passed, 1);
    return run != NULL;
}

#if GPUPOOL_SITES
/* ---- A1: what each line of source holds ---- */

static inline gpi_site *site_at(size_t at) {
    gpi_site *site = NULL;
    int bucket;
    do site = gpi_ledger_next_site(&arena->ledger, site, &bucket);
    while (site && (site->blocks == 0 || at--));
    return site;
}

static inline int site_above_its_peak(size_t at) {
    gpi_site *site = site_at(at);
    if (site) break_u64(&site->bytes_peak, site->bytes - 1);
    return site != NULL;
}

static inline int site_with_more_than_it_asked_for(size_t at) {
    gpi_site *site = site_at(at);
    if (site) break_u64(&site->allocs, site->blocks - 1);
    return site != NULL;
}

static inline int site_counted_elsewhere(size_t at) {
    gpi_site *site = site_at(at), *same = &arena->ledger.unknown;
    if (site) break_bytes(&site->same, &same, sizeof same);
    return site != NULL;
}

static inline int site_with_another_block(size_t at) {
    gpi_site *site = site_at(at);
    if (!site) return 0;
    break_u64(&site->allocs, site->allocs + 1);
    break_u64(&site->blocks, site->blocks + 1);
    return 1;
}

static inline int site_with_more_bytes(size_t at) {
    gpi_site *site = site_at(at);
    if (!site) return 0;
    break_u64(&site->bytes_peak, site->bytes_peak + 512);
    break_u64(&site->bytes, site->bytes + 512);
    return 1;
}
#endif

#endif
