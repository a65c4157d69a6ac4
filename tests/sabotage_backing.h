/* sabotage_backing.h: what breaks BACKING's invariants. Each breaks the at-th place that it knows;
   0: there is none. Links and figures are mended by the log, what took calls has an undo. */
#ifndef SABOTAGE_BACKING_H
#define SABOTAGE_BACKING_H

#include "sabotage_kit.h"

/* ---- B1: pieces, and the table of a MAPPED arena ---- */

/* The first or the last granule of a piece leads elsewhere: at each piece in turn. */
static inline int wrong_slot(size_t at, gpi_piece *instead) {
    gpi_piece *piece = is_mapped() ? piece_at(arena->backing.placed, at / 2) : NULL;
    uint64_t unit;
    if (!piece) return 0;
    unit = at % 2 ? piece->unit + piece->units - arena->backing.granule_units : piece->unit;
    break_piece(gpi_backing_slot(&arena->backing, unit), instead);
    return 1;
}

static inline int empty_slot(size_t at) { return wrong_slot(at, NULL); }

static inline int slot_of_another_piece(size_t at) {
    gpi_piece *another = arena->backing.placed;
    if (at / 2 == 0) another = another->next;
    return wrong_slot(at, another);
}

static inline int overlap(size_t at) {
    gpi_piece *piece = piece_at(arena->backing.placed, at);
    if (piece && piece->next) break_u64(&piece->unit, piece->next->unit);
    return piece && piece->next;
}

static inline int mapped_overlap(size_t at) { return overlap(at); }
static inline int chunks_overlap(size_t at) { return overlap(at); }

static inline int piece_with_wrong_prev(size_t at) {
    gpi_piece *piece = piece_at(arena->backing.placed, at);
    if (piece && piece->next) break_piece(&piece->next->prev, piece->next);
    return piece && piece->next;
}

/* ---- B2: where memory is ---- */

static uint64_t moved_unit, moved_units;
static uint32_t moved_from;

/* A part of a free run joins another lane. */
static inline void move_part(gpi_run *run, uint64_t unit, uint64_t units, uint32_t lane) {
    CHECK_EQ(gpi_tree_prepare(&arena->tree, 2), 1);
    moved_unit = unit;
    moved_units = units;
    moved_from = run->lane;
    gpi_tree_put(&arena->tree, gpi_tree_take(&arena->tree, run, unit, units), lane, 0);
}

static inline int holds_moved(const gpi_run *run) { return moved_unit - run->unit < run->units; }

static inline void move_back(void) {
    move_part(run_at(0, holds_moved), moved_unit, moved_units, moved_from);
}

/* A granule at either end of a bare run. */
static inline int bare_turns_to(size_t at, uint32_t lane) {
    gpi_run *run = run_at(at / 2, is_bare);
    uint64_t units = arena->backing.granule_units;
    if (run) move_part(run, at % 2 ? run->unit + run->units - units : run->unit, units, lane);
    return run != NULL;
}

static inline int quiet_without_memory(size_t at) { return bare_turns_to(at, LANE_QUIET); }
static inline int young_without_memory(size_t at) {
    return bare_turns_to(at, arena->fences.streams->young);
}

static inline int bare_with_memory(size_t at) {
    gpi_run *run = run_at(at, is_quiet);
    if (run) move_part(run, run->unit, run->units, LANE_BARE);
    return run != NULL;
}

static inline int bare_in_a_chunk(size_t at) { return bare_with_memory(at); }

/* The table still has a piece where memory was taken away. */
static inline int bare_in_the_table(size_t at) {
    gpi_run *run = run_at(at, is_bare);
    gpi_piece **slot = run ? gpi_backing_slot(&arena->backing, run->unit) : NULL;
    if (slot) break_piece(slot, arena->backing.placed);
    return slot != NULL;
}

/* A piece ends a granule before its memory does. */
static inline int shorter_piece(size_t at) {
    gpi_piece *piece = piece_at(arena->backing.placed, at);
    if (piece) break_u64(&piece->units, piece->units - arena->backing.granule_units);
    return piece != NULL;
}

/* ---- B3: the sums ---- */

static inline int wrong_backing_sum(size_t at) {
    gpi_backing *backing = &arena->backing;
    if (at == 0) break_u64(&backing->placed_units, backing->placed_units + 1);
    if (at == 1) break_u64(&backing->stash_units, backing->stash_units + 1);
    if (at == 2) break_u64(&backing->pieces, backing->pieces + 1);
    if (at == 3) break_u64(&arena->ledger.reserved.now, arena->ledger.reserved.now - 512);
    if (at == 4) { /* a granule counted in one place rather than the other */
        break_u64(&backing->placed_units, backing->placed_units - backing->granule_units);
        break_u64(&backing->stash_units, backing->stash_units + backing->granule_units);
    }
    return at < 5;
}

static inline int larger_piece(size_t at) {
    gpi_piece *piece = piece_at(arena->backing.placed, at);
    if (piece) break_u64(&piece->bytes, piece->bytes + 512);
    return piece != NULL;
}

static inline int larger_stashed_piece(size_t at) {
    gpi_piece *piece = piece_at(arena->backing.stash, at);
    if (piece) break_u64(&piece->units, piece->units + 1);
    return piece != NULL;
}

static inline int lost_piece(size_t at) {
    gpi_piece *piece = piece_at(arena->backing.placed, at);
    if (!piece) return 0;
    break_piece(piece->prev ? &piece->prev->next : &arena->backing.placed, piece->next);
    if (piece->next) break_piece(&piece->next->prev, piece->prev);
    return 1;
}

static inline int lost_stashed_piece(size_t at) {
    gpi_piece *piece = piece_at(arena->backing.stash, at);
    if (piece) break_piece(piece->prev ? &piece->prev->next : &arena->backing.stash, piece->next);
    return piece != NULL;
}

#endif
