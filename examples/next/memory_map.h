/* memory_map.h: draws an arena's memory as an SVG picture, from one gpupool_walk_blocks. Include it
   after gpupool.h.

       FILE *file = fopen("map.svg", "w");
       memory_map_write(arena, file);

   One row is a power of two of bytes, so that there are at most 40. Chunks follow each other by
   address, each with a frame; point at a piece to read what it is. */
#ifndef MEMORY_MAP_H
#define MEMORY_MAP_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MEMORY_MAP_WIDTH = 1000, MEMORY_MAP_ROW = 18, MEMORY_MAP_TOP = 44 };

typedef struct memory_map {
    FILE *file;
    size_t row_bytes; /* of a row */
    size_t at;        /* bytes drawn */
    size_t bytes[GPUPOOL_FREE + 1];
} memory_map;

static const char *const memory_map_colours[] = {"none", "#2563a8", "#e8a33d", "#8a63b8",
                                                 "#e3e8ee"};
static const char *const memory_map_kinds[] = {"chunk", "live", "pending", "kept by a graph",
                                               "free"};

static inline int memory_map_add(const gpupool_part *part, void *user) {
    memory_map *map = (memory_map *)user;
    map->bytes[part->kind] += part->bytes;
    return 0;
}

/* A label as XML: printable ASCII as it is, the rest as question marks. */
static inline void memory_map_label(FILE *file, const char *label) {
    for (; *label; label++)
        if (strchr("<>&\"'", *label)) fprintf(file, "&#%d;", *label);
        else fputc(*label >= ' ' && *label <= '~' ? *label : '?', file);
}

/* One rectangle, or more where it goes over the ends of rows. */
static inline void memory_map_draw_part(const gpupool_part *part, memory_map *map) {
    size_t at = map->at, end = at + part->bytes;
    while (at < end) {
        size_t row = at / map->row_bytes, stop = (row + 1) * map->row_bytes;
        double scale = (double)MEMORY_MAP_WIDTH / (double)map->row_bytes;
        if (stop > end) stop = end;
        fprintf(map->file, "<rect x=\"%.2f\" y=\"%zu\" width=\"%.2f\" height=\"%d\" fill=\"%s\"%s>",
                (double)(at % map->row_bytes) * scale, MEMORY_MAP_TOP + row * MEMORY_MAP_ROW,
                (double)(stop - at) * scale, MEMORY_MAP_ROW - 3, memory_map_colours[part->kind],
                part->kind == GPUPOOL_CHUNK ? " stroke=\"#445\" stroke-width=\".4\"" : "");
        if (part->kind != GPUPOOL_CHUNK)
            fprintf(map->file, "<title>%s, %zu bytes at %p", memory_map_kinds[part->kind],
                    part->bytes, part->memory);
        if (part->kind == GPUPOOL_LIVE)
            fprintf(map->file, ", of the block of %zu bytes at %p ", part->block.requested,
                    part->block.memory);
        if (part->block.label) memory_map_label(map->file, part->block.label);
        fprintf(map->file, "%s</rect>\n", part->kind == GPUPOOL_CHUNK ? "" : "</title>");
        at = stop;
    }
}

/* A chunk's frame comes before its parts, so it is drawn under them, and is seen between them. */
static inline int memory_map_draw(const gpupool_part *part, void *user) {
    memory_map *map = (memory_map *)user;
    memory_map_draw_part(part, map);
    if (part->kind != GPUPOOL_CHUNK) map->at += part->bytes;
    return 0;
}

static inline void memory_map_legend(const memory_map *map) {
    int kind, x = 0;
    for (kind = GPUPOOL_LIVE; kind <= GPUPOOL_FREE; kind++, x += 220)
        fprintf(map->file,
                "<rect x=\"%d\" y=\"14\" width=\"14\" height=\"14\" fill=\"%s\"/>"
                "<text x=\"%d\" y=\"26\">%s %.1f MiB</text>\n",
                x, memory_map_colours[kind], x + 20, memory_map_kinds[kind],
                (double)map->bytes[kind] / (1 << 20));
}

/* Two walks: other threads may change the arena in between, and then a row more is drawn or less.
 */
static inline gpupool_result memory_map_write(gpupool_arena *arena, FILE *file) {
    memory_map map;
    gpupool_result result;
    size_t rows;
    memset(&map, 0, sizeof map);
    map.file = file;
    result = gpupool_walk_blocks(arena, memory_map_add, &map);
    if (result != GPUPOOL_OK) return result;
    for (map.row_bytes = 2 << 20; map.bytes[GPUPOOL_CHUNK] / map.row_bytes >= 40;)
        map.row_bytes *= 2;
    rows = map.bytes[GPUPOOL_CHUNK] / map.row_bytes + 1;
    fprintf(file,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%zu\" "
            "font-family=\"sans-serif\" font-size=\"13\">\n"
            "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
            MEMORY_MAP_WIDTH, MEMORY_MAP_TOP + rows * MEMORY_MAP_ROW);
    memory_map_legend(&map);
    result = gpupool_walk_blocks(arena, memory_map_draw, &map);
    fprintf(file, "</svg>\n");
    return result;
}

#endif
