/* sabotage_cache.h: what breaks the invariants of CACHE. Each breaks the at-th place that it knows;
   0: there is none. */
#ifndef SABOTAGE_CACHE_H
#define SABOTAGE_CACHE_H

#include "sabotage_kit.h"


typedef struct slot_place { gpi_cache *cache; gpi_slot *slot; } slot_place;

/* The at-th slot in use, of all caches; one that no cache has: beyond the last. */
static inline slot_place slot_at(size_t at, int state) {
    slot_place place = {NULL, NULL};
    gpi_stream *stream = arena->clocks.streams;
    for (; stream; stream = stream->next) {
        for (size_t i = 0; i < stream->cache.room; i++) {
            gpi_slot *slot = &stream->cache.slots[i];
            if (slot->state == GPI_SLOT_EMPTY || (state && slot->state != state)) continue;
            if (at--) continue;
            place.cache = &stream->cache;
            place.slot = slot;
            return place;
        }
    }
    return place;
}

static inline size_t count_slots(int state) {
    size_t count = 0;
    while (slot_at(count, state).slot) count++;
    return count;
}

static inline gpi_slot *used_slot(size_t at) { return slot_at(at, 0).slot; }

/* What leads to the slot in its list. */
static inline uint16_t *slot_link(slot_place place) {
    uint16_t *link = gpi_cache_list(place.cache, place.slot);
    while (place.cache->slots + *link != place.slot) link = &place.cache->slots[*link].next;
    return link;
}

static inline unsigned slot_number(slot_place place) {
    return (unsigned)(place.slot - place.cache->slots);
}

/* ---- C1: a slot and its run ---- */

static inline int slot_of_a_held_run(size_t at) {
    gpi_slot *slot = used_slot(at);
    if (slot) break_u32(&slot->run->list, GPI_LIST_TAKEN);
    return slot != NULL;
}

static inline int slot_of_a_plain_run(size_t at) {
    gpi_slot *slot = used_slot(at);
    if (slot) break_u32(&slot->run->list, GPI_LIST_LIVE);
    return slot != NULL;
}

static inline int run_leads_nowhere(size_t at) {
    gpi_slot *slot = used_slot(at);
    void *none = NULL;
    if (slot) break_bytes(&slot->run->of.uses, &none, sizeof none);
    return slot != NULL;
}

static inline int run_leads_to_another_cache(size_t at) {
    slot_place place = slot_at(at, 0);
    gpi_stream *stream = arena->clocks.streams;
    gpi_cache *other;
    if (!place.slot) return 0;
    while (&stream->cache == place.cache) stream = stream->next;
    other = &stream->cache;
    break_bytes(&place.slot->run->of.uses, &other, sizeof other);
    return 1;
}

static inline int slot_of_another_run(size_t at) {
    gpi_slot *slot = used_slot(at);
    if (slot) break_run(&slot->run, run_at(0, is_live) == slot->run ? run_at(1, is_live)
                                                                    : run_at(0, is_live));
    return slot != NULL;
}

/* A free slot of other units would be in the wrong bin too. */
static inline int slot_of_other_units(size_t at) {
    gpi_slot *slot = slot_at(at, GPI_SLOT_OUT).slot;
    if (slot) break_u64(&slot->units, slot->units + 1);
    return slot != NULL;
}

/* One that is out would be in the wrong chain too. */
static inline int slot_of_another_unit(size_t at) {
    gpi_slot *slot = slot_at(at, GPI_SLOT_FREE).slot;
    if (slot) break_u64(&slot->unit, slot->unit + 1);
    return slot != NULL;
}

/* One that is free would be in the wrong list too. */
static inline int slot_of_another_bin(size_t at) {
    gpi_slot *slot = slot_at(at, GPI_SLOT_OUT).slot;
    if (slot) break_u8(&slot->bin, slot->bin + 1u);
    return slot != NULL;
}

/* ---- C2: lists ---- */

static inline int slot_in_no_list(size_t at) {
    slot_place place = slot_at(at, 0);
    if (place.slot) break_u16(slot_link(place), place.slot->next);
    return place.slot != NULL;
}

static inline int slot_in_the_empty_list(size_t at) {
    slot_place place = slot_at(at, 0);
    if (!place.slot) return 0;
    break_u16(slot_link(place), place.slot->next);
    break_u16(&place.slot->next, place.cache->empty);
    break_u16(&place.cache->empty, slot_number(place));
    return 1;
}

/* In its own list and, by an empty bin or chain, in another one. */
static inline int slot_in_two_lists(size_t at) {
    slot_place place = slot_at(at / 2, 0);
    uint16_t *head;
    if (!place.slot) return 0;
    head = at % 2 ? place.cache->bins : place.cache->chains;
    while (*head != GPI_NO_SLOT) head++;
    break_u16(head, slot_number(place));
    return 1;
}

static inline int slot_beyond_all(size_t at) {
    slot_place place = slot_at(at, 0);
    if (place.slot) break_u16(slot_link(place), 0xfffe);
    return place.slot != NULL;
}

static inline int list_in_a_circle(size_t at) {
    slot_place place = slot_at(at, 0);
    if (place.slot) break_u16(&place.slot->next, slot_number(place));
    return place.slot != NULL;
}

static inline int slot_in_the_other_state(size_t at) {
    gpi_slot *slot = used_slot(at);
    if (slot) break_u8(&slot->state, slot->state == GPI_SLOT_FREE ? GPI_SLOT_OUT : GPI_SLOT_FREE);
    return slot != NULL;
}

/* ---- C3: sums ---- */

static inline int wrong_cache_sum(size_t at) {
    gpi_stream *stream = arena->clocks.streams;
    size_t i = at / 3;
    while (stream && i--) stream = stream->next;
    if (!stream) return 0;
    if (at % 3 == 0) break_u64(&stream->cache.free_units, stream->cache.free_units + 1);
    if (at % 3 == 1) break_u32(&stream->cache.free_blocks, stream->cache.free_blocks + 1);
    if (at % 3 == 2) break_u32(&stream->cache.used, stream->cache.used + 1);
    return 1;
}

/* ---- C4: slots ---- */

static inline int slots_elsewhere(size_t at) {
    static gpi_slot copy[64], *elsewhere = copy;
    gpi_stream *stream = arena->clocks.streams;
    while (stream && at--) stream = stream->next;
    if (!stream) return 0;
    memcpy(copy, stream->cache.slots, sizeof copy);
    break_bytes(&stream->cache.slots, &elsewhere, sizeof elsewhere);
    return 1;
}

#endif
