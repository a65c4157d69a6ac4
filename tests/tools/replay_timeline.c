#include "replay_timeline.h"

#include "replay_pass.h"
#include "replay_print.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define POINTS 900 /* at most: a pixel each */
#define LEFT 84
#define TOP 60
#define HEIGHT 360
#define RIGHT 24

typedef struct point { /* the most in its share of the events */
    uint64_t live, reserved, limit;
} point;

typedef struct timeline {
    const replay_plan *plan;
    const char *name;
    size_t points;
    point *point;
    uint64_t top, limit; /* limit: the highest that there was */
} timeline;

static int failed(const char *path, const char *why) {
    fprintf(stderr, "%s: %s\n", path, why);
    return -1;
}

/* ---- the pass ---- */

static void look(void *user, const replay_pass *pass, size_t event) {
    timeline *t = user;
    point *p = &t->point[event * t->points / t->plan->ops];
    gpupool_stats stats;
    if (gpupool_get_stats(pass->arena, &stats) != GPUPOOL_OK) return;
    if (stats.requested.now > p->live) p->live = stats.requested.now;
    if (stats.reserved.now > p->reserved) p->reserved = stats.reserved.now;
    p->limit = stats.limit;
}

/* Often enough that no pixel is without a look, and at the trace's fullest moment. */
static int run(timeline *t, gpupool_arena *arena) {
    size_t ops = t->plan->ops, peak = t->plan->from->peak_event, at;
    size_t step = ops / (2 * POINTS) + 1;
    replay_pass pass = {.plan = t->plan, .arena = arena, .on_stop = look, .user = t};
    for (at = step - 1; at < ops && pass.stops + 2 < REPLAY_STOPS; at += step) {
        if (peak < at && (pass.stops == 0 || pass.stop[pass.stops - 1] < peak))
            pass.stop[pass.stops++] = peak;
        pass.stop[pass.stops++] = at;
    }
    return replay_pass_run(&pass);
}

/* ---- the picture ---- */

static double x_of(const timeline *t, size_t i) {
    return LEFT + (double)i * POINTS / (double)(t->points > 1 ? t->points - 1 : 1);
}

static double y_of(const timeline *t, uint64_t bytes) {
    return TOP + HEIGHT - (double)bytes / (double)t->top * HEIGHT;
}

/* A round number of GiB, MiB or KiB between lines, so that there are four to eight. */
static uint64_t line_step(uint64_t top) {
    uint64_t step = 1024;
    while (top / step > 8) step *= 2;
    return step;
}

static void print_size(FILE *f, uint64_t bytes) {
    if (bytes >= (uint64_t)1 << 40) fprintf(f, "%.4g TiB", (double)bytes / 1024 / (1 << 30));
    else if (bytes >= (uint64_t)1 << 30) fprintf(f, "%.4g GiB", (double)bytes / (1 << 30));
    else if (bytes >= 1 << 20) fprintf(f, "%.4g MiB", (double)bytes / (1 << 20));
    else fprintf(f, "%.4g KiB", (double)bytes / 1024);
}

static void print_axes(FILE *f, const timeline *t) {
    uint64_t step = line_step(t->top);
    for (uint64_t at = 0; at <= t->top; at += step) {
        double y = y_of(t, at);
        fprintf(f, "<path d=\"M%d,%.1f h%d\" stroke=\"#ddd\"/><text x=\"%d\" y=\"%.1f\" "
                "text-anchor=\"end\">", LEFT, y, POINTS, LEFT - 8, y + 4);
        print_size(f, at);
        fputs("</text>\n", f);
    }
    for (size_t i = 0, parts = t->plan->ops < 4 ? t->plan->ops : 4; i <= parts; i++)
        fprintf(f, "<text x=\"%zu\" y=\"%d\" text-anchor=\"%s\">%zu</text>\n",
                LEFT + POINTS * i / parts, TOP + HEIGHT + 18, i == parts ? "end" : "middle",
                t->plan->ops * i / parts);
    fprintf(f, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">allocations and frees</text>\n",
            LEFT + POINTS / 2, TOP + HEIGHT + 36);
}

static void print_live(FILE *f, const timeline *t) {
    fprintf(f, "<path fill=\"#56b4e9\" d=\"M%d,%d", LEFT, TOP + HEIGHT);
    for (size_t i = 0; i < t->points; i++)
        fprintf(f, " L%.1f,%.1f", x_of(t, i), y_of(t, t->point[i].live));
    fprintf(f, " L%d,%d z\"><title>live</title></path>\n", LEFT + POINTS, TOP + HEIGHT);
}

static void print_line(FILE *f, const timeline *t, size_t offset, const char *style,
                       const char *title) {
    int open = 0;
    fprintf(f, "<path fill=\"none\" %s d=\"", style);
    for (size_t i = 0; i < t->points; i++) {
        uint64_t bytes;
        memcpy(&bytes, (const char *)&t->point[i] + offset, sizeof bytes);
        if (bytes == 0 && offset == offsetof(point, limit)) open = 0; /* there was none */
        else fprintf(f, "%s%.1f,%.1f ", open++ ? "L" : "M", x_of(t, i), y_of(t, bytes));
    }
    fprintf(f, "\"><title>%s</title></path>\n", title);
}

static void print_head(FILE *f, const timeline *t) {
    const char *slash = strrchr(t->name, '/');
    int width = LEFT + POINTS + RIGHT, height = TOP + HEIGHT + 52;
    fprintf(f, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
            "viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" font-size=\"11\">\n"
            "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n"
            "<text x=\"%d\" y=\"22\" font-size=\"15\">",
            width, height, width, height, LEFT);
    replay_print_text(f, slash ? slash + 1 : t->name, 1);
    fprintf(f, ": at most ");
    print_size(f, t->plan->from->peak_live_bytes);
    fprintf(f, " live, at event %zu</text>\n", t->plan->from->peak_event + 1);
    fprintf(f, "<rect x=\"%d\" y=\"36\" width=\"18\" height=\"10\" fill=\"#56b4e9\"/>"
            "<text x=\"%d\" y=\"45\">live</text>"
            "<path d=\"M%d,41 h18\" stroke=\"#000\" stroke-width=\"2\"/>"
            "<text x=\"%d\" y=\"45\">reserved from the driver</text>\n",
            LEFT, LEFT + 24, LEFT + 70, LEFT + 94);
    if (t->limit == 0) return;
    fprintf(f, "<path d=\"M%d,41 h18\" stroke=\"#d55e00\" stroke-width=\"2\" "
            "stroke-dasharray=\"5,3\"/><text x=\"%d\" y=\"45\">limit: ", LEFT + 250, LEFT + 274);
    print_size(f, t->limit);
    fprintf(f, "%s</text>\n", t->limit > t->top ? ", above this picture" : "");
}

static int draw(const timeline *t, const char *path) {
    FILE *f = fopen(path, "w");
    if (!f) return failed(path, strerror(errno));
    print_head(f, t);
    print_axes(f, t);
    print_live(f, t);
    print_line(f, t, offsetof(point, reserved), "stroke=\"#000\" stroke-width=\"1.5\"", "reserved");
    print_line(f, t, offsetof(point, limit),
               "stroke=\"#d55e00\" stroke-width=\"1.5\" stroke-dasharray=\"5,3\"", "limit");
    fputs("</svg>\n", f);
    int bad = ferror(f);
    if (fclose(f) != 0 || bad) return failed(path, strerror(errno));
    return 0;
}

int replay_timeline(const replay_plan *plan, const gpupool_arena_config *config, const char *name,
                    const char *path) {
    timeline t = {.plan = plan, .name = name, .top = 1};
    gpupool_arena *arena;
    t.points = plan->ops < POINTS ? plan->ops : POINTS;
    t.point = calloc(t.points, sizeof *t.point);
    if (!t.point) return failed(path, "host memory is out");
    int result = gpupool_arena_create(&arena, config) == GPUPOOL_OK
                     ? 0 : failed(path, gpupool_last_error());
    if (result == 0) {
        result = run(&t, arena);
        if (gpupool_arena_destroy(arena) != GPUPOOL_OK)
            result = failed(path, gpupool_last_error());
    }
    for (size_t i = 0; i < t.points; i++) {
        const point *p = &t.point[i];
        uint64_t most = p->reserved > p->live ? p->reserved : p->live;
        /* a limit far above everything would leave nothing to see of the rest */
        if (p->limit > most && p->limit < 2 * most) most = p->limit;
        if (most + most / 16 > t.top) t.top = most + most / 16;
        if (p->limit > t.limit) t.limit = p->limit;
    }
    for (size_t i = 0; i < t.points; i++)
        if (t.point[i].limit > t.top) t.point[i].limit = 0;
    if (result == 0) result = draw(&t, path);
    free(t.point);
    return result;
}
