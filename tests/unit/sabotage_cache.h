/* sabotage_cache.h: what breaks the invariants of CACHE. Each breaks the at-th place that it knows;
   0: there is none. */
#ifndef SABOTAGE_CACHE_H
#define SABOTAGE_CACHE_H

#include "sabotage_kit.h"


typedef struct entry_place { gpi_cache *cache; gpi_entry *entry; } entry_place;

/* The at-th entry in use, of all caches; one that no cache has: beyond the last. */
static inline entry_place entry_at(size_t at, int state) {
    entry_place place = {NULL, NULL};
    gpi_stream *stream = arena->clocks.streams;
    for (; stream; stream = stream->next) {
        for (size_t i = 0; i < stream->cache.room; i++) {
            gpi_entry *entry = &stream->cache.entries[i];
            if (entry->state == GPI_ENTRY_EMPTY || (state && entry->state != state)) continue;
            if (at--) continue;
            place.cache = &stream->cache;
            place.entry = entry;
            return place;
        }
    }
    return place;
}

static inline size_t count_entries(int state) {
    size_t count = 0;
    while (entry_at(count, state).entry) count++;
    return count;
}

static inline gpi_entry *used_entry(size_t at) { return entry_at(at, 0).entry; }

/* What leads to the entry in its list. */
static inline uint16_t *entry_link(entry_place place) {
    uint16_t *link = gpi_cache_list(place.cache, place.entry);
    while (place.cache->entries + *link != place.entry) link = &place.cache->entries[*link].next;
    return link;
}

static inline unsigned entry_number(entry_place place) {
    return (unsigned)(place.entry - place.cache->entries);
}

/* ---- C1: a entry and its run ---- */

static inline int entry_of_a_held_run(size_t at) {
    gpi_entry *entry = used_entry(at);
    if (entry) break_u32(&entry->run->list, GPI_LIST_TAKEN);
    return entry != NULL;
}

static inline int entry_of_a_plain_run(size_t at) {
    gpi_entry *entry = used_entry(at);
    if (entry) break_u32(&entry->run->list, GPI_LIST_LIVE);
    return entry != NULL;
}

static inline int run_leads_nowhere(size_t at) {
    gpi_entry *entry = used_entry(at);
    void *none = NULL;
    if (entry) break_bytes(&entry->run->of.uses, &none, sizeof none);
    return entry != NULL;
}

static inline int run_leads_to_another_cache(size_t at) {
    entry_place place = entry_at(at, 0);
    gpi_stream *stream = arena->clocks.streams;
    gpi_cache *other;
    if (!place.entry) return 0;
    while (&stream->cache == place.cache) stream = stream->next;
    other = &stream->cache;
    break_bytes(&place.entry->run->of.uses, &other, sizeof other);
    return 1;
}

static inline int entry_of_another_run(size_t at) {
    gpi_entry *entry = used_entry(at);
    if (entry) break_run(&entry->run, run_at(0, is_live) == entry->run ? run_at(1, is_live)
                                                                    : run_at(0, is_live));
    return entry != NULL;
}

/* A free entry of other units would be in the wrong bin too. */
static inline int entry_of_other_units(size_t at) {
    gpi_entry *entry = entry_at(at, GPI_ENTRY_OUT).entry;
    if (entry) break_u64(&entry->units, entry->units + 1);
    return entry != NULL;
}

/* One that is out would be in the wrong chain too. */
static inline int entry_of_another_unit(size_t at) {
    gpi_entry *entry = entry_at(at, GPI_ENTRY_FREE).entry;
    if (entry) break_u64(&entry->unit, entry->unit + 1);
    return entry != NULL;
}

/* One that is free would be in the wrong list too. */
static inline int entry_of_another_bin(size_t at) {
    gpi_entry *entry = entry_at(at, GPI_ENTRY_OUT).entry;
    if (entry) break_u8(&entry->bin, entry->bin + 1u);
    return entry != NULL;
}

/* ---- C2: lists ---- */

static inline int entry_in_no_list(size_t at) {
    entry_place place = entry_at(at, 0);
    if (place.entry) break_u16(entry_link(place), place.entry->next);
    return place.entry != NULL;
}

static inline int entry_in_the_empty_list(size_t at) {
    entry_place place = entry_at(at, 0);
    if (!place.entry) return 0;
    break_u16(entry_link(place), place.entry->next);
    break_u16(&place.entry->next, place.cache->empty);
    break_u16(&place.cache->empty, entry_number(place));
    return 1;
}

/* In its own list and, by an empty bin or chain, in another one. */
static inline int entry_in_two_lists(size_t at) {
    entry_place place = entry_at(at / 2, 0);
    uint16_t *head;
    if (!place.entry) return 0;
    head = at % 2 ? place.cache->bins : place.cache->chains;
    while (*head != GPI_NO_ENTRY) head++;
    break_u16(head, entry_number(place));
    return 1;
}

static inline int entry_beyond_all(size_t at) {
    entry_place place = entry_at(at, 0);
    if (place.entry) break_u16(entry_link(place), 0xfffe);
    return place.entry != NULL;
}

static inline int list_in_a_circle(size_t at) {
    entry_place place = entry_at(at, 0);
    if (place.entry) break_u16(&place.entry->next, entry_number(place));
    return place.entry != NULL;
}

static inline int entry_in_the_other_state(size_t at) {
    gpi_entry *entry = used_entry(at);
    int is_free = entry && entry->state == GPI_ENTRY_FREE;
    if (entry) break_u8(&entry->state, is_free ? GPI_ENTRY_OUT : GPI_ENTRY_FREE);
    return entry != NULL;
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

/* ---- C4: entries ---- */

static inline int entries_elsewhere(size_t at) {
    static gpi_entry copy[64], *elsewhere = copy;
    gpi_stream *stream = arena->clocks.streams;
    while (stream && at--) stream = stream->next;
    if (!stream) return 0;
    memcpy(copy, stream->cache.entries, sizeof copy);
    break_bytes(&stream->cache.entries, &elsewhere, sizeof elsewhere);
    return 1;
}

#endif
