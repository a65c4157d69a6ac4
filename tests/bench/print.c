/* The table, the tails, the bars; and all of it as JSON. */
#include "bench.h"

#include "machine.h"

#include <string.h>

#define COLUMN 10

static const char *short_name(const bench_peer *p) {
    static const struct { const char *name, *head; } heads[] = {
        {"record + wait", "rec+wait"},
        {"cudaMallocAsync", "Async"}};
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++)
        if (strcmp(heads[i].name, p->name) == 0) return heads[i].head;
    return p->name;
}

static void text_ns(char text[32], double ns) {
    if (ns < 99.95) snprintf(text, 32, "%.1f", ns);
    else if (ns < 9999.5) snprintf(text, 32, "%.0f", ns);
    else if (ns < 999950) snprintf(text, 32, "%.1f us", ns / 1e3);
    else snprintf(text, 32, "%.1f ms", ns / 1e6);
}

/* ---- the table ---- */

static int is_unsure(const bench_cell *c) {
    return c->why[0] == 0 && c->ns_most > 1.5 * c->ns_least;
}

void bench_print_head(FILE *out, const bench_results *r) {
    fprintf(out, "gpupool on a %s, %u cores\n", machine_name(), r->cores);
    fprintf(out,
            "ns an operation, medians of %d runs; a pair is an allocation and its free. All have\n"
            "the same sizes and victims, drawn before the clock starts, and are warmed by the\n"
            "work itself. Nobody touches the blocks, though heaps keep records in theirs.\n",
            BENCH_RUNS);
    if (machine_is_simulated())
        fprintf(out, "CUDA is simulated: its calls are priced as measured on an NVIDIA H200, and "
                     "the GPU's own\nallocators are left out.\n");
    fprintf(out, "\n%-40s", "");
    for (size_t p = 0; p < r->peers; p++) fprintf(out, " %*s", COLUMN, short_name(r->peer[p]));
    fprintf(out, "\n");
    fflush(out);
}

void bench_print_row(FILE *out, const bench_results *r, size_t work) {
    const bench_work *w = r->work[work];
    char text[32];
    fprintf(out, "%-38s%s ", w->words, w->threads > r->cores ? " *" : "  ");
    for (size_t p = 0; p < r->peers; p++) {
        const bench_cell *c = &r->cell[work * r->peers + p];
        if (c->why[0]) snprintf(text, sizeof text, "-");
        else text_ns(text, c->ns);
        fprintf(out, "%*s%c", COLUMN, text, is_unsure(c) ? '~' : ' ');
    }
    fprintf(out, "\n");
    fflush(out);
}

/* ---- single operations ---- */

static void print_tail(FILE *out, const char *words, const bench_cell *c) {
    const double ns[] = {c->p50, c->p99, c->p999, c->max, c->max_again};
    char text[32];
    fprintf(out, "%-40s", words);
    for (size_t i = 0; i < sizeof ns / sizeof *ns; i++) {
        text_ns(text, ns[i]);
        fprintf(out, " %*s", COLUMN, text);
    }
    fprintf(out, " %*zu\n", COLUMN, c->late);
}

static void print_tails(FILE *out, const bench_results *r) {
    fprintf(out,
            "\ngpupool's single operations, timed one by one in other passes, less the clock.\n"
            "max: the slowest of all, interrupts included. again: the slowest of those that were\n"
            "as slow in each of three equal passes. over 20us: how many were again over 20 us,\n"
            "and did not get or move memory.\n\n%-40s",
            "");
    static const char *const heads[] = {"p50", "p99", "p99.9", "max", "again", "over 20us"};
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++)
        fprintf(out, " %*s", COLUMN, heads[i]);
    fprintf(out, "\n");
    for (size_t w = 0; w < r->works; w++) {
        const bench_cell *c = bench_find(r, r->work[w]->id, "gpupool");
        if (c && r->work[w]->threads == 1) print_tail(out, r->work[w]->words, c);
    }
    print_tail(out, "the clock alone", &r->clock);
}

/* ---- bars ---- */

static void print_bars(FILE *out, const bench_results *r) {
    static const char *const words[] = {"met", "MISSED", "not judged"};
    fprintf(out, "\n%-51s %10s %10s\n", "bars", "gpupool", "at most");
    for (size_t i = 0; i < bench_bars(); i++) {
        bench_judged j = bench_judge(r, i);
        char value[32] = "-", allowed[32] = "-";
        if (j.value > 0) text_ns(value, j.value);
        if (j.allowed > 0) text_ns(allowed, j.allowed);
        fprintf(out, "%-51s %10s %10s  %s%s%s\n", j.bar->words, value, allowed, words[j.verdict],
                j.why ? ": " : "", j.why ? j.why : "");
    }
    size_t late = 0;
    for (size_t w = 0; w < r->works; w++) {
        const bench_cell *c = bench_find(r, r->work[w]->id, "gpupool");
        if (c && r->work[w]->threads == 1) late += c->late;
    }
    fprintf(out, "%-51s %10zu %10d  %s\n", "one thread: operations over 20 us, no growth", late, 0,
            words[late ? BENCH_MISSED : BENCH_MET]);
}

void bench_print_rest(FILE *out, const bench_results *r) {
    for (size_t w = 0; w < r->works; w++)
        if (r->work[w]->threads > r->cores) {
            fprintf(out, "* more threads than cores: they take turns, and so does the figure\n");
            break;
        }
    for (size_t i = 0; i < r->works * r->peers; i++)
        if (is_unsure(&r->cell[i])) {
            fprintf(out, "~ runs differed by more than half: is the machine busy?\n");
            break;
        }
    print_tails(out, r);
    print_bars(out, r);
    fprintf(out, "\n");
    for (size_t i = 0; i < r->left_outs; i++) fprintf(out, "left out: %s\n", r->left_out[i]);
    for (size_t i = 0; i < r->works * r->peers; i++) {
        const bench_cell *c = &r->cell[i];
        int its_work = (c->peer->can & c->work->needs) == c->work->needs && c->peer->open;
        if (c->why[0] && its_work)
            fprintf(out, "not measured: %s, %s: %s\n", c->peer->name, c->work->words, c->why);
    }
    fprintf(out, "%.0f seconds\n", r->seconds);
}

/* ---- JSON ---- */

static void json_text(FILE *out, const char *name, const char *text) {
    fprintf(out, "\"%s\":\"", name);
    for (; *text; text++) {
        if (*text == '"' || *text == '\\') fputc('\\', out);
        fputc((unsigned char)*text < ' ' ? ' ' : *text, out);
    }
    fputc('"', out);
}

static void json_tail(FILE *out, const bench_cell *c) {
    fprintf(out,
            "\"samples\":%zu,\"p50\":%.1f,\"p99\":%.1f,\"p999\":%.1f,\"max\":%.1f",
            c->samples, c->p50, c->p99, c->p999, c->max);
    if (c->max_again > 0)
        fprintf(out, ",\"max_again\":%.1f,\"over_20us\":%zu", c->max_again, c->late);
}

static void json_cell(FILE *out, const bench_cell *c, unsigned cores) {
    fprintf(out, "  {");
    json_text(out, "work", c->work->id);
    fputc(',', out);
    json_text(out, "words", c->work->words);
    fputc(',', out);
    json_text(out, "peer", c->peer->name);
    fprintf(out, ",\"threads\":%u,\"more_threads_than_cores\":%s", c->work->threads,
            c->work->threads > cores ? "true" : "false");
    fprintf(out, ",\"ns\":%.2f,\"ns_least\":%.2f,\"ns_most\":%.2f,\"ops\":%zu", c->ns, c->ns_least,
            c->ns_most, c->ops);
    if (c->calls < 0) fprintf(out, ",\"cuda_calls\":null,");
    else fprintf(out, ",\"cuda_calls\":%.4f,", c->calls);
    json_tail(out, c);
    fputc('}', out);
}

static void json_bar(FILE *out, const bench_judged *j) {
    static const char *const words[] = {"true", "false", "null"};
    fprintf(out, "  {");
    json_text(out, "bar", j->bar->words);
    fprintf(out, ",\"ns\":%.2f,\"at_most\":%.2f,\"met\":%s,", j->value, j->allowed,
            words[j->verdict]);
    json_text(out, "why", j->why ? j->why : "");
    fputc('}', out);
}

void bench_write_json(FILE *out, const bench_results *r) {
    const char *comma = "";
    fprintf(out, "{");
    json_text(out, "machine", machine_name());
    fprintf(out, ",\"simulated\":%s,\"cores\":%u,\"seconds\":%.1f,\n\"clock\":{",
            machine_is_simulated() ? "true" : "false", r->cores, r->seconds);
    json_tail(out, &r->clock);
    fprintf(out, "},\n\"cells\":[\n");
    for (size_t i = 0; i < r->works * r->peers; i++) {
        if (r->cell[i].why[0]) continue;
        fputs(comma, out);
        json_cell(out, &r->cell[i], r->cores);
        comma = ",\n";
    }
    fprintf(out, "],\n\"bars\":[\n");
    for (size_t i = 0; i < bench_bars(); i++) {
        bench_judged j = bench_judge(r, i);
        if (i) fputs(",\n", out);
        json_bar(out, &j);
    }
    fprintf(out, "],\n\"left_out\":[");
    for (size_t i = 0; i < r->left_outs; i++) {
        fputs(i ? ",\n  {" : "\n  {", out);
        json_text(out, "why", r->left_out[i]);
        fputc('}', out);
    }
    fprintf(out, "]}\n");
}
