/* How much does a run with varying sizes reserve, by how its blocks are placed?

   The program runs forward and backward passes of varying length beside blocks that stay, in four
   ways. Sizes rounded to powers of two waste what the rounding adds. Exact sizes in fixed chunks
   leave holes that fit no later request. Mapped memory can put a block together from such holes,
   and reserves little more than what is live. With a limit it reserves still less.
   What to look at: the column "over live", and the maps of each arena at its fullest step,
   fragmentation-1.svg to -4.svg, here or in the directory named as the argument.
   Build: nvcc -I.. fragmentation.c */
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"

#include <stdlib.h>

#define STEPS 400
#define LAYERS 24
#define KEPT 64 /* blocks of earlier steps that are still alive: caches, logs, results */

typedef struct way {
    const char *name;
    gpupool_source source;
    int power_of_two;
    double limit; /* over what is live; 0: none */
} way;

static const way ways[] = {
    {"powers of two, in chunks", GPUPOOL_SOURCE_DEVICE, 1, 0},
    {"exact sizes, in chunks", GPUPOOL_SOURCE_DEVICE, 0, 0},
    {"exact sizes, re-mapped", GPUPOOL_SOURCE_MAPPED, 0, 0},
    {"the same, and a limit", GPUPOOL_SOURCE_MAPPED, 0, 1.05},
};
#define WAYS (sizeof ways / sizeof *ways)

typedef struct run {
    const way *how;
    gpupool_arena *arena;
    uint64_t random;
    size_t live, live_peak; /* bytes as the program asked for them */
    size_t draw_step;       /* the step to draw in; STEPS: none */
    const char *svg;
} run;

typedef struct piece { void *block; size_t bytes; } piece;

static void die(const char *what, const char *why) {
    fprintf(stderr, "%s: %s\n", what, why);
    exit(EXIT_FAILURE);
}

static size_t pick(run *r, size_t least, size_t most) {
    r->random = r->random * 6364136223846793005u + 1442695040888963407u;
    return least + (size_t)(r->random >> 33) % (most - least + 1);
}

static piece get(run *r, size_t bytes) {
    size_t asked = 512;
    piece p = {NULL, bytes};
    if (!r->how->power_of_two) asked = bytes;
    while (asked < bytes) asked *= 2;
    p.block = gpupool_alloc(r->arena, asked, 0);
    if (!p.block) die("alloc", gpupool_last_error());
    r->live += bytes;
    if (r->live > r->live_peak) r->live_peak = r->live;
    return p;
}

static void give(run *r, piece *p) {
    if (gpupool_free(r->arena, p->block, 0) != GPUPOOL_OK) die("free", gpupool_last_error());
    r->live -= p->bytes;
    p->block = NULL;
}

static void draw(const run *r) {
    FILE *file = fopen(r->svg, "w");
    if (!file) die(r->svg, "cannot be written");
    if (gpupool_write_svg(r->arena, file) != GPUPOOL_OK) die(r->svg, gpupool_last_error());
    if (fclose(file) != 0) die(r->svg, "cannot be written");
}

/* Activations grow layer by layer and go in the opposite order; something of each step stays. The
   step at which most was alive. */
static size_t train(run *r) {
    piece kept[KEPT] = {{NULL, 0}}, layer[LAYERS];
    size_t fullest = 0;
    for (size_t step = 0; step < STEPS; step++) {
        size_t length = pick(r, 64, 1024), before = r->live_peak;
        for (size_t i = 0; i < LAYERS; i++) layer[i] = get(r, length * (50000 + 2500 * i));
        piece *slot = &kept[pick(r, 0, KEPT - 1)];
        if (slot->block) give(r, slot);
        *slot = get(r, pick(r, 500000, 50000000));
        if (r->live_peak > before) fullest = step;
        if (step == r->draw_step) draw(r);
        for (size_t i = LAYERS; i > 0; i--) give(r, &layer[i - 1]);
    }
    for (size_t i = 0; i < KEPT; i++)
        if (kept[i].block) give(r, &kept[i]);
    return fullest;
}

/* draw_step and live: of an earlier run, or STEPS and 0; set for a later one. */
static gpupool_stats measure(const way *how, size_t *draw_step, const char *svg, size_t *live) {
    run r = {how, NULL, 1, 0, 0, *draw_step, svg};
    gpupool_stats stats;
    gpupool_arena_config config = {0};
    config.source = how->source;
    config.name = how->name;
    config.limit_bytes = (size_t)(how->limit * (double)*live);
    if (gpupool_arena_create(&r.arena, &config) != GPUPOOL_OK) die("arena", gpupool_last_error());
    *draw_step = train(&r);
    *live = r.live_peak;
    if (gpupool_get_stats(r.arena, &stats) != GPUPOOL_OK) die("stats", gpupool_last_error());
    if (gpupool_arena_destroy(r.arena) != GPUPOOL_OK) die("destroy", gpupool_last_error());
    return stats;
}

int main(int argc, char **argv) {
    const char *directory = argc > 1 ? argv[1] : ".";
    double over[WAYS];
    printf("%d steps of %d layers, lengths from 64 to 1024\n\n", STEPS, LAYERS);
    printf("                              live at most   reserved   over live       stitches\n");
    for (size_t i = 0; i < WAYS; i++) {
        char svg[4096];
        size_t step = STEPS, live = 0;
        snprintf(svg, sizeof svg, "%s/fragmentation-%zu.svg", directory, i + 1);
        measure(&ways[i], &step, svg, &live); /* which step is the fullest? */
        gpupool_stats stats = measure(&ways[i], &step, svg, &live);
        over[i] = (double)stats.reserved.peak / (double)live;
        printf("  %-26s %9.1f MB %7.1f MB %11.3f %14d\n", ways[i].name, (double)live / 1e6,
               (double)stats.reserved.peak / 1e6, over[i], (int)stats.stitches);
    }
    printf("\npictures of the fullest step: %s/fragmentation-1.svg to -4.svg\n",
           directory);
    for (size_t i = 1; i < WAYS; i++)
        if (over[i] >= over[i - 1]) die(ways[i].name, "reserved no less than the way before it");
    return EXIT_SUCCESS;
}
