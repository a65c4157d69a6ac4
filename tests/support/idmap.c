#include "idmap.h"

#include <stdlib.h>

/* Linear probing: the entry that holds the name, or the empty one where it belongs. */
static idmap_entry *place(idmap_entry *entry, size_t room, uint64_t name) {
    uint64_t hash = name * 0x9e3779b97f4a7c15u;
    size_t at = (size_t)(hash ^ (hash >> 32)) & (room - 1);
    while (entry[at].used && entry[at].name != name) at = (at + 1) & (room - 1);
    return &entry[at];
}

static int grow(idmap *map) {
    size_t room = map->room ? map->room * 2 : 1024;
    idmap_entry *entry = calloc(room, sizeof *entry);
    if (!entry) return -1;
    for (size_t i = 0; i < map->room; i++)
        if (map->entry[i].used) *place(entry, room, map->entry[i].name) = map->entry[i];
    free(map->entry);
    map->entry = entry;
    map->room = room;
    return 0;
}

uint32_t *idmap_get(idmap *map, uint64_t name, uint32_t first_value) {
    if (map->count >= map->room / 2 && grow(map) != 0) return NULL;
    idmap_entry *e = place(map->entry, map->room, name);
    if (!e->used) {
        *e = (idmap_entry){name, first_value, 1};
        map->count++;
    }
    return &e->value;
}

void idmap_free(idmap *map) {
    free(map->entry);
    *map = (idmap){0};
}
