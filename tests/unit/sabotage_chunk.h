/* sabotage_chunk.h: what breaks CHUNK's invariants. Each breaks the at-th place that it knows;
   0: there is none. Links and figures are mended by the log, what took calls has an undo. */
#ifndef SABOTAGE_CHUNK_H
#define SABOTAGE_CHUNK_H

#include "sabotage_kit.h"

/* ---- H1: chunks, and the owners of their addresses ---- */

static inline void break_owner(gpi_cell *cell, void *owner) {
    break_bytes(&cell->owner, &owner, sizeof owner);
}

/* The first or the last granule of a chunk leads elsewhere: at each chunk in turn. */
static inline int wrong_owner(size_t at, gpi_chunk *instead) {
    gpi_chunk *chunk = is_mapped() ? chunk_at(arena->chunks.first, at / 2) : NULL;
    uint64_t unit;
    if (!chunk) return 0;
    unit = at % 2 ? chunk->unit + chunk->units - arena->chunks.granule_units : chunk->unit;
    break_owner(gpi_tree_cell(&arena->tree, unit), instead);
    return 1;
}

static inline int home_without_owner(size_t at) { return wrong_owner(at, NULL); }

static inline int home_of_another_chunk(size_t at) {
    gpi_chunk *another = arena->chunks.first;
    return wrong_owner(at, at / 2 == 0 ? another->next : another);
}

/* Addresses that a chunk has left still lead to one. */
static inline int bare_with_an_owner(size_t at) {
    gpi_run *run = run_at(at, is_bare);
    if (run) break_owner(gpi_tree_cell(&arena->tree, run->unit), arena->chunks.first);
    return run != NULL;
}

static inline int overlap(size_t at) {
    gpi_chunk *chunk = chunk_at(arena->chunks.first, at);
    if (chunk && chunk->next) break_u64(&chunk->unit, chunk->next->unit);
    return chunk && chunk->next;
}

static inline int mapped_overlap(size_t at) { return overlap(at); }
static inline int others_overlap(size_t at) { return overlap(at); }

static inline int chunk_with_wrong_prev(size_t at) {
    gpi_chunk *chunk = chunk_at(arena->chunks.first, at);
    if (chunk && chunk->next) break_chunk(&chunk->next->prev, chunk->next);
    return chunk && chunk->next;
}

/* Two neighbours change places in the list. */
static inline int chunks_in_another_order(size_t at) {
    gpi_chunk *left = is_mapped() ? chunk_at(arena->chunks.first, at) : NULL, *right;
    if (!left || !left->next) return 0;
    right = left->next;
    break_chunk(left->prev ? &left->prev->next : &arena->chunks.first, right);
    break_chunk(right->next ? &right->next->prev : &arena->chunks.last, left);
    break_chunk(&left->next, right->next);
    break_chunk(&right->prev, left->prev);
    break_chunk(&left->prev, right);
    break_chunk(&right->next, left);
    return 1;
}

static inline int last_is_not_the_last(size_t at) {
    if (at == 0) break_chunk(&arena->chunks.last, arena->chunks.first);
    return at == 0;
}

/* ---- H2: where memory is ---- */

static uint64_t moved_unit, moved_units;
static uint32_t moved_from;

/* A part of a free run joins another list. */
static inline void move_part(gpi_run *run, uint64_t unit, uint64_t units, uint32_t list) {
    CHECK_EQ(gpi_tree_prepare(&arena->tree, 2), 1);
    CHECK_EQ(gpi_tree_prepare_cells(&arena->tree, unit, units), 1);
    moved_unit = unit;
    moved_units = units;
    moved_from = run->list;
    gpi_tree_put(&arena->tree, gpi_tree_take(&arena->tree, run, unit, units), list, 0);
}

static inline int holds_moved(const gpi_run *run) { return moved_unit - run->unit < run->units; }

static inline void move_back(void) {
    move_part(run_at(0, holds_moved), moved_unit, moved_units, moved_from);
}

/* A granule at either end of a bare run. */
static inline int bare_turns_to(size_t at, uint32_t list) {
    gpi_run *run = run_at(at / 2, is_bare);
    uint64_t units = arena->chunks.granule_units;
    if (run) move_part(run, at % 2 ? run->unit + run->units - units : run->unit, units, list);
    return run != NULL;
}

static inline int free_without_memory(size_t at) { return bare_turns_to(at, GPI_LIST_ANY); }
static inline int freed_without_memory(size_t at) {
    return bare_turns_to(at, stream_at(0)->list);
}

static inline int bare_with_memory(size_t at) {
    gpi_run *run = run_at(at, is_anybodys);
    if (run) move_part(run, run->unit, run->units, GPI_LIST_EMPTY);
    return run != NULL;
}

/* A chunk ends a granule before its memory does. */
static inline int shorter_chunk(size_t at) {
    gpi_chunk *chunk = chunk_at(arena->chunks.first, at);
    if (chunk) break_u64(&chunk->units, chunk->units - arena->chunks.granule_units);
    return chunk != NULL;
}

/* ---- H3: the sums ---- */

static inline int wrong_chunk_sum(size_t at) {
    gpi_chunks *chunks = &arena->chunks;
    if (at == 0) break_u64(&chunks->units, chunks->units + 1);
    if (at == 1) break_u64(&chunks->count, chunks->count + 1);
    if (at == 2) break_u64(&arena->ledger.reserved.now, arena->ledger.reserved.now - 512);
    return at < 3;
}

static inline int larger_chunk(size_t at) {
    gpi_chunk *chunk = chunk_at(arena->chunks.first, at);
    if (chunk) break_u64(&chunk->bytes, chunk->bytes + 512);
    return chunk != NULL;
}

static inline int larger_stuck_chunk(size_t at) {
    gpi_chunk *chunk = chunk_at(arena->chunks.stuck, at);
    if (chunk) break_u64(&chunk->bytes, chunk->bytes + 512);
    return chunk != NULL;
}

static inline int lost_chunk(size_t at) {
    gpi_chunk *chunk = chunk_at(arena->chunks.first, at);
    if (!chunk) return 0;
    break_chunk(chunk->prev ? &chunk->prev->next : &arena->chunks.first, chunk->next);
    break_chunk(chunk->next ? &chunk->next->prev : &arena->chunks.last, chunk->prev);
    return 1;
}

static inline int lost_stuck_chunk(size_t at) {
    gpi_chunk *chunk = at == 0 ? arena->chunks.stuck : NULL;
    if (chunk) break_chunk(&arena->chunks.stuck, chunk->next);
    return chunk != NULL;
}

/* ---- H4 ---- */

static inline int wrong_export_sum(size_t at) {
    if (at == 0) break_u64(&arena->chunks.exports, arena->chunks.exports + 1);
    return at < 1;
}

/* ---- H5: whose chunk a run lies in ---- */

static inline int is_a_tags(const gpi_run *run) {
    return run->list >= GPI_LIST_TAGS && run->list < GPI_LIST_STREAMS;
}

static inline int is_finished(const gpi_run *run) { return gpi_tree_is_finished(run); }

static inline int tags_run_turns_to(size_t at, uint32_t list) {
    gpi_run *run = run_at(at, is_a_tags);
    if (run) move_part(run, run->unit, run->units, list);
    return run != NULL;
}

static inline int tags_run_for_anybody(size_t at) { return tags_run_turns_to(at, GPI_LIST_ANY); }
static inline int tags_run_for_a_stream(size_t at) {
    return tags_run_turns_to(at, stream_at(0)->list);
}

static inline int anybodys_run_for_a_tag(size_t at) {
    gpi_run *run = run_at(at, is_anybodys), *of_tag = run_at(0, is_a_tags);
    if (run) move_part(run, run->unit, run->units, of_tag->list);
    return run != NULL;
}

/* The chunk in which a free run begins is another tag's. */
static inline int chunk_of_another_tag(size_t at) {
    gpi_run *run = run_at(at, is_finished);
    gpi_chunk *chunk = run ? (gpi_chunk *)gpi_tree_owner(&arena->tree, run->unit) : NULL;
    if (chunk) break_int(&chunk->tag, chunk->tag + 1);
    return chunk != NULL;
}

#endif
