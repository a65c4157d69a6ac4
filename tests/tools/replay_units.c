#include "replay_units.h"

#include "gpupool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct { const char *name; gpupool_source source; } sources[] = {
    {"mapped", GPUPOOL_SOURCE_MAPPED}, {"device", GPUPOOL_SOURCE_DEVICE},
    {"bypass", GPUPOOL_SOURCE_BYPASS}};

static const struct { int bytes; replay_unit_run *run; } units[] = {
    {256, replay_unit_256}, {512, replay_unit_512}, {2048, replay_unit_2048},
    {8192, replay_unit_8192}};

#define COUNT(array) (sizeof(array) / sizeof *(array))

static cudaStream_t *make_streams(const trace *t) {
    cudaStream_t *stream = calloc(t->streams, sizeof *stream);
    for (size_t i = 0; stream && i < t->streams; i++)
        if (t->stream_number[i] && cudaStreamCreate(&stream[i]) != cudaSuccess) {
            free(stream);
            return NULL;
        }
    return stream;
}

static int print_rows(const trace *t, const cudaStream_t *stream) {
    double live = (double)t->peak_live_bytes;
    for (size_t s = 0; s < COUNT(sources); s++) {
        for (size_t u = 0; u < COUNT(units); u++) {
            replay_figures f;
            if (sources[s].source == GPUPOOL_SOURCE_BYPASS && units[u].bytes != 512) continue;
            if (units[u].run(t, stream, (int)sources[s].source, 1, &f) != 0) return -1;
            printf("  %-8s %6d  %12.3f %8.4f %12.3f %8.4f %9d\n", sources[s].name, units[u].bytes,
                   (double)f.reserved_bytes / 1e9, (double)f.reserved_bytes / live,
                   (double)f.least_bytes / 1e9, (double)f.least_bytes / live, f.pieces);
            fflush(stdout);
        }
    }
    return 0;
}

int replay_print_plan(const trace *t, const char *path) {
    const char *slash = strrchr(path, '/');
    cudaStream_t *stream = make_streams(t);
    int result = -1;
    printf("%s: %.3f GB live at most (GB are 10^9 bytes)\n", slash ? slash + 1 : path,
           (double)t->peak_live_bytes / 1e9);
    printf("  %-8s %6s  %12s %8s %12s %8s %9s\n", "source", "unit", "reserved GB", "/ live",
           "least limit", "/ live", "pieces");
    if (stream) result = print_rows(t, stream);
    else fprintf(stderr, "%s: no streams for it\n", path);
    for (size_t i = 0; stream && i < t->streams; i++)
        if (stream[i]) cudaStreamDestroy(stream[i]);
    free(stream);
    return result;
}
