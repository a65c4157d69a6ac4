/* idmap.h: a hash map from 64-bit names to 32-bit numbers. Names are never taken out. */
#ifndef IDMAP_H
#define IDMAP_H

#include <stddef.h>
#include <stdint.h>

typedef struct idmap_entry {
    uint64_t name;
    uint32_t value;
    uint32_t used;
} idmap_entry;

typedef struct idmap { /* all zero is an empty map */
    idmap_entry *entry;
    size_t room; /* 0 or a power of two */
    size_t count;
} idmap;

/* The value kept for a name, made with first_value when it is new; NULL when memory is out.
   Good until the next call. */
uint32_t *idmap_get(idmap *, uint64_t name, uint32_t first_value);
void idmap_free(idmap *);

#endif
