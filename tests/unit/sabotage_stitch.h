/* sabotage_stitch.h: what breaks STITCH's invariants. Each breaks the at-th place that it knows;
   0: there is none. */
#ifndef SABOTAGE_STITCH_H
#define SABOTAGE_STITCH_H

#include "sabotage_kit.h"

static inline void break_stitch(gpi_stitch **at, gpi_stitch *now) {
    break_bytes(at, &now, sizeof now);
}

typedef int (*stitch_test)(const gpi_stitch *stitch);
static inline int is_any(const gpi_stitch *stitch) { return stitch != NULL; }
static inline int is_used(const gpi_stitch *stitch) { return stitch->state == GPI_STITCH_USED; }
static inline int is_idle(const gpi_stitch *stitch) { return stitch->state == GPI_STITCH_IDLE; }
static inline int has_user(const gpi_stitch *stitch) { return is_idle(stitch) && stitch->user; }
static inline int has_no_user(const gpi_stitch *stitch) { return is_idle(stitch) && !stitch->user; }
static inline int is_waiting(const gpi_stitch *stitch) {
    return is_used(stitch) && stitch->body->list == GPI_LIST_WAITING;
}

static inline gpi_stitch *stitch_at(size_t at, stitch_test test) {
    gpi_stitch *stitch = arena->stitches.oldest;
    for (; stitch; stitch = stitch->newer)
        if (test(stitch) && at-- == 0) return stitch;
    return NULL;
}

static inline size_t count_stitches(stitch_test test) {
    size_t count = 0;
    while (stitch_at(count, test)) count++;
    return count;
}

/* The at-th part of all stitches that are so. */
static inline gpi_part *part_at(size_t at, stitch_test test) {
    gpi_stitch *stitch;
    for (size_t i = 0; (stitch = stitch_at(i, test)) != NULL; i++) {
        if (at < stitch->part_count) return &stitch->parts[at];
        at -= stitch->part_count;
    }
    return NULL;
}

static inline gpi_seam *seam_at(size_t at) {
    gpi_stitch *stitch;
    for (size_t i = 0; (stitch = stitch_at(i, is_any)) != NULL; i++) {
        if (at < stitch->seam_count) return &stitch->seams[at];
        at -= stitch->seam_count;
    }
    return NULL;
}

/* ---- S1: whose a unit is ---- */

/* Its run does not lead to the stitch, or to another one. */
static inline int part_leads_elsewhere(size_t at) {
    gpi_part *part = part_at(at / 2, is_used);
    void *other = at % 2 ? (void *)stitch_at(0, is_idle) : NULL;
    if (part) break_bytes(&part->run->of.uses, &other, sizeof other);
    return part != NULL;
}

static inline int part_is_held(size_t at) {
    gpi_part *part = part_at(at, is_used);
    if (part) break_u32(&part->run->list, GPI_LIST_TAKEN);
    return part != NULL;
}

/* It says that it begins a unit later, or is a unit longer, than its run. */
static inline int part_of_other_units(size_t at) {
    gpi_part *part = part_at(at / 2, is_used);
    if (part && at % 2) break_u64(&part->unit, part->unit + 1);
    if (part && at % 2 == 0) break_u64(&part->units, part->units + 1);
    return part != NULL;
}

/* What an idle stitch would take again is not what its addresses map. */
static inline int idle_part_of_other_units(size_t at) {
    gpi_part *part = part_at(at / 2, is_idle);
    if (part && at % 2) break_u64(&part->unit, part->unit + 1);
    if (part && at % 2 == 0) break_u64(&part->units, part->units - 1);
    return part != NULL;
}

/* The last part goes on behind the stitch's last chunk. */
static inline int part_beyond_the_seams(size_t at) {
    gpi_stitch *stitch = stitch_at(at, is_any);
    gpi_part *last = stitch ? &stitch->parts[stitch->part_count - 1] : NULL;
    if (last) break_u64(&last->units, last->units + stitch->units);
    return last != NULL;
}

/* Two parts have each other's runs. */
static inline int parts_with_each_others_runs(size_t at) {
    gpi_stitch *stitch = stitch_at(at, is_used);
    gpi_run *first;
    if (!stitch) return 0;
    if (!CHECK(stitch->part_count > 1)) return 0;
    first = stitch->parts[0].run;
    break_run(&stitch->parts[0].run, stitch->parts[1].run);
    break_run(&stitch->parts[1].run, first);
    return 1;
}

/* The last part is missing, and in none of the block. */
static inline int one_part_less(size_t at) {
    gpi_stitch *stitch = stitch_at(at, is_any);
    if (stitch) break_u32(&stitch->part_count, stitch->part_count - 1);
    return stitch != NULL;
}

/* A waiting block's run says that it is a part; no stitch has it. */
static inline int part_of_no_stitch(size_t at) {
    gpi_run *run = arena->waiting;
    for (; run; run = run->list_next)
        if (run->unit < arena->chunks.stitch_unit && at-- == 0) break;
    if (run) break_u32(&run->list, GPI_LIST_PART);
    return run != NULL;
}

/* Two parts change places: the block's first bytes are not where it maps them. */
static inline int parts_in_another_order(size_t at) {
    gpi_stitch *stitch = stitch_at(at, is_any);
    gpi_part first;
    while (stitch && stitch->part_count < 2) stitch = stitch_at(++at, is_any);
    if (!stitch) return 0;
    first = stitch->parts[0];
    break_bytes(&stitch->parts[0], &stitch->parts[1], sizeof first);
    break_bytes(&stitch->parts[1], &first, sizeof first);
    return 1;
}

/* ---- S2: idle stitches own nothing, and remember their users ---- */

static inline int idle_part_with_a_run(size_t at) {
    gpi_part *part = part_at(at, is_idle);
    if (part) break_run(&part->run, arena->chunks.home);
    return part != NULL;
}

static inline int used_part_without_a_run(size_t at) {
    gpi_part *part = part_at(at, is_used);
    if (part) break_run(&part->run, NULL);
    return part != NULL;
}

static inline int forgotten_user(size_t at) {
    gpi_stitch *stitch = stitch_at(at, has_user);
    gpi_stream *nobody = NULL;
    if (stitch) break_bytes(&stitch->user, &nobody, sizeof nobody);
    return stitch != NULL;
}

/* ---- S4: a chunk and what is over it ---- */

static inline int seam_of_another_chunk(size_t at) {
    gpi_seam *seam = seam_at(at);
    gpi_chunk *other = arena->chunks.first;
    if (!seam) return 0;
    while (other == seam->chunk || other->units != seam->chunk->units) other = other->next;
    break_chunk(&seam->chunk, other);
    return 1;
}

static inline int seam_of_another_stitch(size_t at) {
    gpi_seam *seam = seam_at(at);
    if (!seam) return 0;
    break_stitch(&seam->stitch, stitch_at(seam->stitch == stitch_at(0, is_any), is_any));
    return 1;
}

static inline void break_seam(gpi_seam **at, gpi_seam *now) { break_bytes(at, &now, sizeof now); }

static inline int seam_that_its_chunk_forgot(size_t at) {
    gpi_seam *seam = seam_at(at);
    if (seam) break_seam(seam->prev ? &seam->prev->next : &seam->chunk->seams, seam->next);
    return seam != NULL;
}

/* ---- S5: what is not live is in no index ---- */

static inline int idle_body_is_not_held(size_t at) {
    gpi_stitch *stitch = stitch_at(at, is_idle);
    if (stitch) break_u32(&stitch->body->list, GPI_LIST_PART);
    return stitch != NULL;
}

/* It looks like a block. */
static inline int idle_body_is_live(size_t at) {
    gpi_stitch *stitch = stitch_at(at, is_idle);
    if (stitch) break_u32(&stitch->body->list, GPI_LIST_LIVE);
    return stitch != NULL;
}

/* ---- S6: addresses, lists and sums ---- */

static inline int wrong_stitch_sum(size_t at) {
    gpi_stitches *s = &arena->stitches;
    uint64_t *sums[] = {&s->count, &s->seams, &s->idle_seams, &s->used_units};
    if (at / 2 < KIT_COUNT(sums))
        break_u64(sums[at / 2], *sums[at / 2] + (at % 2 ? 1 : UINT64_MAX));
    return at / 2 < KIT_COUNT(sums);
}

static inline int stitch_of_other_units(size_t at) {
    gpi_stitch *stitch = stitch_at(at, is_any);
    if (stitch) break_u64(&stitch->units, stitch->units + arena->chunks.granule_units);
    return stitch != NULL;
}

/* The addresses lead to another stitch, or to none. */
static inline int body_of_another_stitch(size_t at) {
    gpi_stitch *stitch = stitch_at(at / 2, is_any);
    void *other = at % 2 ? stitch_at(at / 2 == 0, is_any) : NULL;
    if (!stitch) return 0;
    break_bytes(&gpi_tree_cell(&arena->tree, stitch->body->unit)->owner, &other, sizeof other);
    return 1;
}

static inline int stitch_with_wrong_older(size_t at) {
    gpi_stitch *stitch = stitch_at(at, is_any);
    if (stitch) break_stitch(&stitch->older, stitch);
    return stitch != NULL;
}

static inline int newest_is_not_the_newest(size_t at) {
    if (at == 0) break_stitch(&arena->stitches.newest, arena->stitches.oldest);
    return at == 0;
}

static inline gpi_stitch **list_of_size(const gpi_stitch *stitch) {
    return &arena->stitches.first_of[gpi_stitch_bin(&arena->stitches, stitch->body->units)];
}

static inline int in_no_list_of_its_size(size_t at) {
    gpi_stitch *stitch = stitch_at(at, is_any);
    if (stitch)
        break_stitch(stitch->same_prev ? &stitch->same_prev->same_next : list_of_size(stitch),
                     stitch->same_next);
    return stitch != NULL;
}

static inline int in_the_list_of_another_size(size_t at) {
    gpi_stitch *stitch = stitch_at(at, is_any);
    if (!in_no_list_of_its_size(at)) return 0;
    break_stitch(&stitch->same_next, NULL);
    break_stitch(&arena->stitches.first_of[0], stitch);
    return 1;
}

/* Addresses that no stitch has, and that are not free either. */
static gpi_run *lost_run;

static inline int is_space(const gpi_run *run) { return run->list == GPI_LIST_SPACE; }

static inline int lost_addresses(size_t at) {
    gpi_run *run = run_at(at, is_space);
    if (!run) return 0;
    gpi_tree_prepare(&arena->tree, 2);
    lost_run = gpi_tree_take(&arena->tree, run, run->unit, arena->chunks.granule_units);
    return 1;
}

static inline void find_addresses(void) { gpi_tree_put(&arena->tree, lost_run, GPI_LIST_SPACE, 0); }

#endif
