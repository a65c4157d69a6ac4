/* The picture: a panel a work, a bar a peer, all on one scale that grows tenfold from line to line.
   Bars are told apart by words as well as by colour, and by lightness as well as by hue. */
#include "bench.h"

#include "machine.h"

#include <math.h>
#include <string.h>

#define PANELS 3       /* side by side */
#define PANEL_WIDTH 428
#define NAMES 118      /* room for the peers' names */
#define PLOT 228       /* for the bars */
#define VALUES 54      /* for the figures beside them */
#define ROW 16
#define HEAD 26        /* over the bars of a panel */
#define FOOT 34        /* under them */
#define TOP 92
#define DECADES 6      /* 1 ns to 1 ms */

static double along(double ns) {
    double share = log10(ns < 1 ? 1 : ns) / DECADES;
    return share < 1 ? share * PLOT : PLOT;
}

static const char *colour(const bench_peer *p) {
    if (strncmp(p->name, "gpupool", 7) == 0) return "#0072b2";
    return p->can & BENCH_DEVICE ? "#e69f00" : "#a9a9a9";
}

static void text_ns(char value[32], double ns) {
    if (ns < 99.95) snprintf(value, 32, "%.1f ns", ns);
    else if (ns < 9999.5) snprintf(value, 32, "%.0f ns", ns);
    else snprintf(value, 32, "%.1f us", ns / 1e3);
}

static void text(FILE *out, int x, int y, const char *more, const char *words) {
    fprintf(out, "<text x=\"%d\" y=\"%d\"%s>", x, y, more);
    for (; *words; words++) {
        if (*words == '<') fputs("&lt;", out);
        else if (*words == '&') fputs("&amp;", out);
        else fputc(*words, out);
    }
    fputs("</text>\n", out);
}

static int rows(const bench_results *r, size_t work) {
    int count = 0;
    for (size_t p = 0; p < r->peers; p++) count += r->cell[work * r->peers + p].why[0] == 0;
    return count;
}

static void grid(FILE *out, int x, int y, int height) {
    static const char *const marks[] = {"1 ns", "10", "100", "1 us", "10", "100", "1 ms"};
    for (int d = 0; d <= DECADES; d++) {
        int at = x + NAMES + d * PLOT / DECADES;
        fprintf(out, "<path d=\"M%d %dv%d\" stroke=\"#ddd\"/>\n", at, y, height);
        text(out, at, y + height + 11, " class=\"mark\"", marks[d]);
    }
}

/* The least that a bar allows for this work; 0: there is none. */
static double allowed(const bench_results *r, const bench_work *w) {
    double least = 0;
    for (size_t i = 0; i < bench_bars(); i++) {
        bench_judged j = bench_judge(r, i);
        if (strcmp(j.bar->work, w->id) || j.allowed <= 0) continue;
        if (least <= 0 || j.allowed < least) least = j.allowed;
    }
    return least;
}

static void panel(FILE *out, const bench_results *r, size_t work, int x, int y) {
    const bench_work *w = r->work[work];
    char title[120], value[32];
    double bar = allowed(r, w);
    int top = y + HEAD, height = rows(r, work) * ROW;
    snprintf(title, sizeof title, "%s%s", w->words, w->threads > r->cores ? " *" : "");
    text(out, x, y + 14, " class=\"title\"", title);
    grid(out, x, top, height);
    for (size_t p = 0, row = 0; p < r->peers; p++) {
        const bench_cell *c = &r->cell[work * r->peers + p];
        int at = top + (int)row * ROW;
        if (c->why[0]) continue;
        row++;
        text(out, x + NAMES - 6, at + 12, " class=\"name\"", c->peer->name);
        fprintf(out, "<rect x=\"%d\" y=\"%d\" width=\"%.1f\" height=\"%d\" fill=\"%s\"/>\n",
                x + NAMES, at + 2, along(c->ns), ROW - 4, colour(c->peer));
        text_ns(value, c->ns);
        text(out, x + NAMES + PLOT + VALUES, at + 12, " class=\"name\"", value);
    }
    if (bar > 0)
        fprintf(out, "<path d=\"M%.1f %dv%d\" stroke=\"#000\" stroke-width=\"1.5\" "
                     "stroke-dasharray=\"3 2\"/>\n",
                x + NAMES + along(bar), top - 3, height + 4);
}

static void legend(FILE *out, const bench_results *r) {
    static const struct { const char *words, *fill; } keys[] = {
        {"gpupool", "#0072b2"}, {"device memory from others", "#e69f00"},
        {"heaps of the host; CUDA calls", "#a9a9a9"}};
    char line[200];
    snprintf(line, sizeof line, "gpupool and others: time of an operation, on a %s, %u cores",
             machine_name(), r->cores);
    text(out, 24, 32, " class=\"head\"", line);
    int x = 24;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        fprintf(out, "<rect x=\"%d\" y=\"46\" width=\"14\" height=\"12\" fill=\"%s\"/>\n", x,
                keys[i].fill);
        text(out, x + 20, 56, "", keys[i].words);
        x += 50 + 7 * (int)strlen(keys[i].words);
    }
    fprintf(out, "<path d=\"M%d 45v14\" stroke=\"#000\" stroke-width=\"1.5\" "
                 "stroke-dasharray=\"3 2\"/>\n", x);
    text(out, x + 8, 56, "", "the most that gpupool may take");
    text(out, 24, 76, " class=\"mark\" style=\"text-anchor:start\"",
         "Shorter is better; each line is ten times the one before. * more threads than cores.");
}

/* Panels of one line are as high as the highest of them. */
static int line_height(const bench_results *r, size_t first) {
    int most = 0;
    for (size_t w = first; w < first + PANELS && w < r->works; w++)
        if (rows(r, w) > most) most = rows(r, w);
    return most ? HEAD + most * ROW + FOOT : 0;
}

void bench_write_svg(FILE *out, const bench_results *r) {
    int height = TOP, y = TOP;
    for (size_t w = 0; w < r->works; w += PANELS) height += line_height(r, w);
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
            "font-family=\"sans-serif\" font-size=\"11\">\n<style>.head{font-size:18px;"
            "font-weight:bold}.title{font-size:13px;font-weight:bold}.name{text-anchor:end}"
            ".mark{text-anchor:middle;font-size:9px;fill:#666}</style>\n"
            "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n",
            PANELS * PANEL_WIDTH + 24, height);
    legend(out, r);
    for (size_t w = 0; w < r->works; w++) {
        int column = (int)(w % PANELS);
        if (rows(r, w)) panel(out, r, w, 24 + column * PANEL_WIDTH, y);
        if (column == PANELS - 1) y += line_height(r, w - PANELS + 1);
    }
    fprintf(out, "</svg>\n");
}
