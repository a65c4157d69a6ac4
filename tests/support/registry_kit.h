/* registry_kit.h: a cache of registrations, as a program keeps one for a network card: what on_map
   tells is in it until on_unmap takes it out, and each address in it must map the same memory all
   the time. Include it after gpupool.h. Any thread may be told. It needs fakecuda's controls. */
#ifndef REGISTRY_KIT_H
#define REGISTRY_KIT_H

#include "arena_kit.h"

#include <pthread.h>

#if CHECK_FAKE

#define REGISTRY_MOST 16384

typedef struct registry_entry {
    uintptr_t begin, end;
    size_t chunk_bytes;
    const void *first, *last; /* the memory behind both ends, by where fakecuda has it */
} registry_entry;

typedef struct registry {
    pthread_mutex_t mutex;
    registry_entry entry[REGISTRY_MOST];
    size_t count;
    long told, gone, refused;
    long refuse_at; /* the n-th call from now is refused; 0: none */
    int mapped;     /* of a MAPPED arena: chunks have handles */
} registry;

static registry known = {.mutex = PTHREAD_MUTEX_INITIALIZER, .mapped = 1};

static inline void registry_clear(void) {
    known.count = 0;
    known.told = known.gone = known.refused = known.refuse_at = 0;
    known.mapped = 1;
}

static inline const void *registry_memory(uintptr_t address) {
    const void *memory = fake_peek((const void *)address);
    CHECK(memory != NULL);
    return memory;
}

static inline int registry_add(const gpupool_mapping *mapping, void *user) {
    registry_entry entry;
    int refused;
    (void)user;
    pthread_mutex_lock(&known.mutex);
    refused = known.refuse_at && --known.refuse_at == 0;
    known.refused += refused;
    entry.begin = (uintptr_t)mapping->memory;
    entry.end = entry.begin + mapping->bytes;
    entry.chunk_bytes = mapping->chunk_bytes;
    entry.first = registry_memory(entry.begin);
    entry.last = registry_memory(entry.end - 1);
    CHECK(mapping->bytes > 0 && mapping->offset == 0);
    CHECK(!mapping->chunk_bytes || mapping->chunk_bytes == mapping->bytes);
    CHECK_EQ(mapping->handle != 0, mapping->chunk_bytes && known.mapped);
    for (size_t i = 0; i < known.count; i++)
        CHECK(entry.end <= known.entry[i].begin || entry.begin >= known.entry[i].end);
    if (!refused && CHECK(known.count < REGISTRY_MOST)) known.entry[known.count++] = entry;
    known.told += !refused;
    pthread_mutex_unlock(&known.mutex);
    return refused;
}

static inline int registry_remove(const gpupool_mapping *mapping, void *user) {
    uintptr_t begin = (uintptr_t)mapping->memory;
    size_t i = 0;
    (void)user;
    pthread_mutex_lock(&known.mutex);
    while (i < known.count && known.entry[i].begin != begin) i++;
    if (CHECK(i < known.count)) { /* it is still mapped, and the same */
        CHECK_EQ(known.entry[i].end, begin + mapping->bytes);
        CHECK(known.entry[i].first == registry_memory(begin));
        CHECK(known.entry[i].last == registry_memory(known.entry[i].end - 1));
        known.entry[i] = known.entry[--known.count];
    }
    known.gone++;
    pthread_mutex_unlock(&known.mutex);
    return 1; /* what it says changes nothing */
}

/* No registration is stale. */
static inline void registry_verify(void) {
    pthread_mutex_lock(&known.mutex);
    for (size_t i = 0; i < known.count; i++) {
        CHECK(known.entry[i].first == registry_memory(known.entry[i].begin));
        CHECK(known.entry[i].last == registry_memory(known.entry[i].end - 1));
    }
    pthread_mutex_unlock(&known.mutex);
}

/* Every byte of a block is registered. */
static inline int registry_covers(const void *block, size_t bytes) {
    uintptr_t at = (uintptr_t)block, end = at + bytes, before = 0;
    pthread_mutex_lock(&known.mutex);
    while (at < end && at != before) {
        before = at;
        for (size_t i = 0; i < known.count; i++)
            if (known.entry[i].begin <= at && at < known.entry[i].end) at = known.entry[i].end;
    }
    pthread_mutex_unlock(&known.mutex);
    return at >= end;
}

static inline gpupool_arena_config registry_config(gpupool_source source, size_t limit) {
    gpupool_arena_config config = kit_config(source);
    config.limit_bytes = limit;
    config.on_map = registry_add;
    config.on_unmap = registry_remove;
    known.mapped = source == GPUPOOL_SOURCE_MAPPED || source == GPUPOOL_SOURCE_AUTO;
    return config;
}

#endif
#endif
