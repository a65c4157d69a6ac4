/* memory_map.h: draws an arena's memory as an SVG picture, from gpupool_walk_blocks. Include it
   after gpupool.h.

       FILE *file = fopen("map.svg", "w");
       memory_map_write(arena, file);

   The bar at the top is the arena's limit, or without one all that is reserved, and what it holds.
   Below it chunks follow each other by address, each with a frame, in at most 32 rows. A row is a
   power of two of bytes, and MiB are the only unit. In a browser, point at a piece to read what it
   is. */
#ifndef MEMORY_MAP_H
#define MEMORY_MAP_H

#include <stdio.h>
#include <string.h>

enum { MEMORY_MAP_LEFT = 104, MEMORY_MAP_WIDTH = 1000, MEMORY_MAP_ROW = 18, MEMORY_MAP_ROWS = 32 };
/* A part's colour and name: pending memory has those of the stream that freed it. */
enum {
    MEMORY_MAP_LIVE,
    MEMORY_MAP_FREE,
    MEMORY_MAP_KEPT,
    MEMORY_MAP_PENDING,
    MEMORY_MAP_LOOKS = 8,
    MEMORY_MAP_UNRESERVED = MEMORY_MAP_LOOKS
};

typedef struct memory_map {
    FILE *file;
    size_t row_bytes, at; /* at: bytes drawn */
    size_t reserved, all; /* all: the limit, or what is reserved */
    size_t top;           /* of the first row */
    size_t bytes[MEMORY_MAP_LOOKS + 1];
    cudaStream_t streams[MEMORY_MAP_LOOKS]; /* that freed memory: the first ones, by address */
    int looks;
} memory_map;

static inline double memory_map_mib(size_t bytes) {
    return (double)bytes / (1 << 20);
}

static inline int memory_map_look(memory_map *map, const gpupool_part *part) {
    int look = MEMORY_MAP_PENDING + 1;
    if (part->kind == GPUPOOL_LIVE) return MEMORY_MAP_LIVE;
    if (part->kind == GPUPOOL_FREE) return MEMORY_MAP_FREE;
    if (part->kind == GPUPOOL_KEPT) return MEMORY_MAP_KEPT;
    if (!part->stream) return MEMORY_MAP_PENDING;
    while (look < map->looks && map->streams[look] != part->stream) look++;
    if (look == MEMORY_MAP_LOOKS) return MEMORY_MAP_PENDING;
    if (look == map->looks) map->streams[map->looks++] = part->stream;
    return look;
}

static inline void memory_map_name(const memory_map *map, int look, char name[40]) {
    static const char *const names[] = {"live", "free", "kept by a graph",
                                        "pending, of several streams"};
    if (look <= MEMORY_MAP_PENDING) snprintf(name, 40, "%s", names[look]);
    else if (look == MEMORY_MAP_UNRESERVED) snprintf(name, 40, "not reserved");
    else if (map->streams[look] == cudaStreamLegacy) snprintf(name, 40, "pending, default stream");
    else snprintf(name, 40, "pending, stream %d", look - MEMORY_MAP_PENDING);
}

static const char memory_map_frame_paint[] = "none\" stroke=\"black";
static const char *const memory_map_colours[] = {"#2563a8", "#e3e8ee", "#8a63b8",
                                                 "#c9b28f", "#e8a33d", "#d96c4f",
                                                 "#b9c04a", "#cf7fa8", "white"};

/* A label as XML: printable ASCII as it is, the rest as question marks. */
static inline void memory_map_label(FILE *file, const char *label) {
    for (; *label; label++)
        if (strchr("<>&\"'", *label)) fprintf(file, "&#%d;", *label);
        else fputc(*label >= ' ' && *label <= '~' ? *label : '?', file);
}

/* What one reads when one points at a part. */
static inline void memory_map_title(memory_map *map, const gpupool_part *part) {
    char name[40];
    memory_map_name(map, memory_map_look(map, part), name);
    fprintf(map->file, "<title>%s%s: %.4f MiB", name, part->is_asleep ? ", asleep" : "",
            memory_map_mib(part->bytes));
    if (part->block.label) fputs(" of ", map->file);
    if (part->block.label) memory_map_label(map->file, part->block.label);
    fputs("</title>", map->file);
}

/* Opens it: what it holds follows. */
static inline void memory_map_open(memory_map *map, double x, size_t y, double width,
                                   const char *paint) {
    fprintf(map->file, "<rect x=\"%.2f\" y=\"%zu\" width=\"%.2f\" height=\"%d\" fill=\"%s\">", x, y,
            width, MEMORY_MAP_ROW - 3, paint);
}

/* One rectangle, or more where the part goes over the ends of rows. */
static inline void memory_map_draw_part(memory_map *map, const gpupool_part *part) {
    size_t at = map->at, end = at + part->bytes;
    double scale = (double)MEMORY_MAP_WIDTH / (double)map->row_bytes;
    const char *paint = memory_map_frame_paint;
    if (part->kind != GPUPOOL_CHUNK) paint = memory_map_colours[memory_map_look(map, part)];
    while (at < end) {
        size_t row = at / map->row_bytes, stop = (row + 1) * map->row_bytes;
        if (stop > end) stop = end;
        memory_map_open(map, MEMORY_MAP_LEFT + (double)(at % map->row_bytes) * scale,
                        map->top + row * MEMORY_MAP_ROW, (double)(stop - at) * scale, paint);
        if (part->kind != GPUPOOL_CHUNK) memory_map_title(map, part);
        fputs("</rect>\n", map->file);
        at = stop;
    }
}

static inline int memory_map_draw(const gpupool_part *part, void *user) {
    memory_map *map = (memory_map *)user;
    memory_map_draw_part(map, part);
    if (part->kind != GPUPOOL_CHUNK) map->at += part->bytes; /* a chunk's parts follow it */
    return 0;
}

static inline int memory_map_add(const gpupool_part *part, void *user) {
    memory_map *map = (memory_map *)user;
    if (part->kind == GPUPOOL_CHUNK) map->reserved += part->bytes;
    else map->bytes[memory_map_look(map, part)] += part->bytes;
    return 0;
}

/* A line for each thing that there is, and its share of the bar at the top. */
static inline void memory_map_legend(memory_map *map) {
    const int left = MEMORY_MAP_LEFT;
    double x = left;
    size_t y = 76;
    char name[40];
    fprintf(map->file, "<text x=\"%d\" y=\"18\">%.2f MiB reserved; 100%% is %.2f MiB</text>\n",
            left, memory_map_mib(map->reserved), memory_map_mib(map->all));
    for (int look = 0; look <= MEMORY_MAP_UNRESERVED; look++) {
        double share = (double)map->bytes[look] / (double)map->all;
        if (!map->bytes[look]) continue;
        memory_map_name(map, look, name);
        memory_map_open(map, x, 28, share * MEMORY_MAP_WIDTH, memory_map_colours[look]);
        fputs("</rect>\n", map->file);
        memory_map_open(map, left, y - 12, 15, memory_map_colours[look]);
        fprintf(map->file, "</rect><text x=\"%d\" y=\"%zu\">%s: %.2f MiB, %.1f%%</text>\n",
                left + 22, y, name, memory_map_mib(map->bytes[look]), 100 * share);
        x += share * MEMORY_MAP_WIDTH;
        y += MEMORY_MAP_ROW;
    }
    memory_map_open(map, left, 28, MEMORY_MAP_WIDTH, memory_map_frame_paint);
    fputs("</rect>", map->file);
    fprintf(map->file,
            "<text x=\"%d\" y=\"%zu\">by address, %.0f MiB a row; a frame is a chunk</text>\n",
            left, y + 18, memory_map_mib(map->row_bytes));
}

static inline void memory_map_frame(memory_map *map) {
    size_t rows, row;
    int look;
    map->row_bytes = 2 << 20;
    while (map->reserved > map->row_bytes * MEMORY_MAP_ROWS) map->row_bytes *= 2;
    rows = (map->reserved + map->row_bytes - 1) / map->row_bytes;
    for (map->top = 104, look = 0; look <= MEMORY_MAP_UNRESERVED; look++)
        if (map->bytes[look]) map->top += MEMORY_MAP_ROW;
    fprintf(map->file,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%zu\" "
            "font-family=\"sans-serif\" font-size=\"13\" stroke=\"white\" stroke-width=\".4\">\n"
            "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n<g stroke=\"none\">\n",
            MEMORY_MAP_LEFT + MEMORY_MAP_WIDTH + 10, map->top + rows * MEMORY_MAP_ROW + 6);
    memory_map_legend(map);
    for (row = 0; row < rows; row++)
        fprintf(map->file, "<text x=\"%d\" y=\"%zu\" text-anchor=\"end\">+ %.0f MiB</text>\n",
                MEMORY_MAP_LEFT - 8, map->top + row * MEMORY_MAP_ROW + 12,
                memory_map_mib(row * map->row_bytes));
    fputs("</g>\n", map->file);
}

/* Two walks. What other threads change in between may draw a row more, or one less. */
static inline gpupool_result memory_map_write(gpupool_arena *arena, FILE *file) {
    memory_map map;
    gpupool_stats stats;
    gpupool_result result = gpupool_get_stats(arena, &stats);
    memset(&map, 0, sizeof map);
    map.file = file;
    map.looks = MEMORY_MAP_PENDING + 1;
    if (result == GPUPOOL_OK) result = gpupool_walk_blocks(arena, memory_map_add, &map);
    if (result != GPUPOOL_OK) return result;
    map.all = stats.limit > map.reserved ? (size_t)stats.limit : map.reserved;
    map.bytes[MEMORY_MAP_UNRESERVED] = map.all - map.reserved;
    memory_map_frame(&map);
    result = gpupool_walk_blocks(arena, memory_map_draw, &map);
    fprintf(file, "</svg>\n");
    return result;
}

#endif
