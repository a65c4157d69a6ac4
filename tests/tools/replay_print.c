#include "replay_print.h"

#include "machine.h"

#include <string.h>

/* Bytes of the letter there, in UTF-8; 0: that is none. */
static int letter_bytes(const char *text) {
    static const unsigned least[] = {0, 0, 0x80, 0x800, 0x10000};
    unsigned char c = (unsigned char)*text;
    int bytes = c < 0x80 ? 1 : c < 0xc0 ? 0 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : c < 0xf8 ? 4 : 0;
    unsigned code = bytes > 1 ? c & (0x7fu >> bytes) : c;
    for (int i = 1; i < bytes; i++) {
        if ((text[i] & 0xc0) != 0x80) return 0;
        code = code << 6 | ((unsigned char)text[i] & 0x3fu);
    }
    return code < least[bytes] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000) ? 0 : bytes;
}

void replay_print_text(FILE *out, const char *text, int xml) {
    for (int bytes; *text; text += bytes ? bytes : 1) {
        unsigned char c = (unsigned char)*text;
        bytes = letter_bytes(text);
        if (bytes != 1) fwrite(bytes ? text : "?", 1, bytes ? (size_t)bytes : 1, out);
        else if (xml && (c == '<' || c == '&')) fputs(c == '<' ? "&lt;" : "&amp;", out);
        else if (c < ' ') fprintf(out, xml ? "?" : "\\u%04x", c);
        else if (!xml && (c == '"' || c == '\\')) fprintf(out, "\\%c", c);
        else fputc(c, out);
    }
}

static double figure_ns(const replay_figure *f) { return f->ns; }
static double figure_calls(const replay_figure *f) { return (double)machine_all_calls(&f->calls); }
static double figure_memory(const replay_figure *f) { return (double)f->calls.of[MACHINE_MEMORY]; }
static double figure_live(const replay_figure *f) { return (double)f->live_bytes; }
static double figure_reserved(const replay_figure *f) { return (double)f->reserved_bytes; }
static double figure_events(const replay_figure *f) { return (double)f->calls.of[MACHINE_EVENT]; }

/* A number only the simulation knows: null on a GPU. */
static void json_simulated(FILE *out, const char *name, double value, int decimals) {
    if (machine_is_simulated()) fprintf(out, ",\"%s\":%.*f", name, decimals, value);
    else fprintf(out, ",\"%s\":null", name);
}

static void json_list(FILE *out, const char *name, const replay_result *r,
                      double (*value)(const replay_figure *)) {
    fprintf(out, ",\"%s\":[", name);
    for (unsigned i = 0; i < r->passes; i++)
        fprintf(out, "%s%.*f", i ? "," : "", value == figure_ns ? 1 : 0, value(&r->pass[i]));
    fputc(']', out);
}

static void json_passes(FILE *out, const replay_result *r) {
    json_list(out, "ns_per_op_by_pass", r, figure_ns);
    json_list(out, "cuda_calls_by_pass", r, figure_calls);
    json_list(out, "memory_calls_by_pass", r, figure_memory);
    json_list(out, "event_calls_by_pass", r, figure_events);
    json_list(out, "live_bytes_by_pass", r, figure_live);
    json_list(out, "reserved_bytes_by_pass", r, figure_reserved);
}

static double over_live(const replay_result *r, uint64_t bytes) {
    return (double)bytes / (double)r->peak_live_bytes;
}

void replay_print_json(FILE *out, const char *path, const char *source, const replay_options *o,
                       const replay_result *r) {
    fputs("{\"trace\":\"", out);
    replay_print_text(out, path, 0);
    fprintf(out, "\",\"source\":\"%s\",\"streams\":%u,\"threads\":%u,\"events\":%zu", source,
            o->streams, o->threads, r->events);
    fprintf(out, ",\"peak_live_bytes\":%llu,\"peak_reserved_bytes\":%llu",
            (unsigned long long)r->peak_live_bytes, (unsigned long long)r->peak_reserved_bytes);
    fprintf(out, ",\"reserved_over_live\":%.4f", over_live(r, r->peak_reserved_bytes));
    if (o->min_limit && r->min_limit_bytes)
        fprintf(out, ",\"min_limit_over_live\":%.4f,\"min_limit_bytes\":%llu",
                over_live(r, r->min_limit_bytes), (unsigned long long)r->min_limit_bytes);
    else if (o->min_limit) fputs(",\"min_limit_over_live\":null,\"min_limit_bytes\":null", out);
    fprintf(out, ",\"ns_per_op_cold\":%.1f,\"ns_per_op_warm\":%.1f", r->ns_cold, r->ns_warm);
    fprintf(out, ",\"cuda_calls\":%ld", r->calls);
    json_simulated(out, "driver_us", r->driver_us, 1);
    fprintf(out, ",\"cuda_calls_warm\":%ld", r->calls_warm);
    json_simulated(out, "driver_us_warm", r->driver_us_warm, 1);
    json_passes(out, r);
    fprintf(out, ",\"failures\":%zu}\n", r->failures);
}

void replay_print_head(FILE *out, const replay_options *o) {
    fprintf(out, "on: %s; GB are 10^9 bytes; ns per operation include the driver's time\n\n",
            machine_name());
    fprintf(out, "%-22s %9s %9s %9s %9s ", "trace", "events", "live GB", "reserved", "/ live");
    if (o->min_limit) fprintf(out, "%9s ", "least");
    fprintf(out, "%8s %8s %8s %9s %8s\n", "ns cold", "ns warm", "calls", "driver ms", "failures");
}

/* The first, third, fifth and last. */
static void print_passes(FILE *out, const replay_result *r) {
    for (unsigned i = 0; i < r->passes; i++) {
        const replay_figure *f = &r->pass[i];
        if (i != 0 && i != 2 && i != 4 && i + 1 != r->passes) continue;
        fprintf(out, "  pass %-3u %10.1f ns  %7ld CUDA calls: ", i + 1, f->ns,
                machine_all_calls(&f->calls));
        fprintf(out, "%7ld memory, %7ld events, %7ld other\n", f->calls.of[MACHINE_MEMORY],
                f->calls.of[MACHINE_EVENT], f->calls.of[MACHINE_OTHER]);
    }
}

void replay_print_row(FILE *out, const char *path, const replay_options *o,
                      const replay_result *r) {
    const char *slash = strrchr(path, '/');
    fprintf(out, "%-22s %9zu %9.3f %9.3f %9.4f ", slash ? slash + 1 : path, r->events,
            (double)r->peak_live_bytes / 1e9, (double)r->peak_reserved_bytes / 1e9,
            over_live(r, r->peak_reserved_bytes));
    if (o->min_limit && r->min_limit_bytes)
        fprintf(out, "%9.4f ", over_live(r, r->min_limit_bytes));
    else if (o->min_limit) fprintf(out, "%9s ", "none");
    fprintf(out, "%8.1f %8.1f ", r->ns_cold, r->ns_warm);
    fprintf(out, "%8ld ", r->calls);
    if (machine_is_simulated()) fprintf(out, "%9.2f ", r->driver_us / 1e3);
    else fprintf(out, "%9s ", "-");
    fprintf(out, "%8zu\n", r->failures);
    if (o->passes) print_passes(out, r);
}
