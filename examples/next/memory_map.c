/* Draws what fragmentation looks like: memory_map.svg, and the same as text and JSON. With
   GPUPOOL_TRACE_FILE=calls.trace it records its calls for build/replay. */
#include "trace.h"

#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "memory_map.h"

enum { LAYERS = 24 };

static int fails(const char *what) {
    fprintf(stderr, "%s: %s\n", what, gpupool_last_error());
    return 1;
}

static void *layer(gpupool_arena *arena, size_t bytes, const char *label) {
    gpupool_request request = {bytes, 0, 0, 0, label};
    return gpupool_alloc_request(arena, &request);
}

int main(int count, char **words) {
    const char *path = count > 1 ? words[1] : "memory_map.svg";
    gpupool_arena_config config = {0};
    gpupool_arena *arena;
    void *weights[LAYERS], *scratch[LAYERS];
    FILE *file;
    config.limit_bytes = (size_t)256 << 20;
    if (gpupool_arena_create(&arena, &config) != GPUPOOL_OK) return fails("create");
    for (int i = 0; i < LAYERS; i++) {
        weights[i] = layer(arena, ((size_t)3 << 20) + (size_t)i * 100000, "weights");
        scratch[i] = layer(arena, ((size_t)2 << 20) + (size_t)i * 70000, "scratch");
        if (!weights[i] || !scratch[i]) return fails("alloc");
    }
    for (int i = 0; i < LAYERS; i++) gpupool_free(arena, scratch[i], 0);
    if (!layer(arena, (size_t)240 << 20, "too much")) printf("%s\n", gpupool_last_error());
    file = fopen(path, "w");
    if (!file || memory_map_write(arena, file) != GPUPOOL_OK || fclose(file)) return fails(path);
    if (gpupool_report(arena, stdout) != GPUPOOL_OK) return fails("report");
    for (int i = 0; i < LAYERS; i++) gpupool_free(arena, weights[i], 0);
    return gpupool_arena_destroy(arena) == GPUPOOL_OK ? 0 : fails("destroy");
}
