/* Many streams that hold one small block each: crowd [STREAMS [BYTES]], 2,000 with 4 KiB else.
   Says what is reserved for them, at once and after each stream has taken its block anew. */
#include "gpupool.h"
#include "machine.h"

#include <stdio.h>
#include <stdlib.h>

#define ROUNDS 3

typedef struct crowd {
    gpupool_arena *arena;
    size_t streams, bytes;
    cudaStream_t *stream;
    void **block;
} crowd;

static int failed(const char *what) {
    fprintf(stderr, "crowd: %s\n", what);
    return -1;
}

static int take_all(crowd *c) {
    for (size_t i = 0; i < c->streams; i++) {
        if (c->block[i] && gpupool_free(c->arena, c->block[i], c->stream[i]) != GPUPOOL_OK)
            return failed(gpupool_last_error());
        c->block[i] = gpupool_alloc(c->arena, c->bytes, c->stream[i]);
        if (!c->block[i]) return failed(gpupool_last_error());
    }
    return 0;
}

static int show(const crowd *c, const char *when) {
    gpupool_stats stats;
    if (gpupool_get_stats(c->arena, &stats) != GPUPOOL_OK) return failed(gpupool_last_error());
    printf("%zu streams with a live block of %zu bytes each, %s: ", c->streams, c->bytes, when);
    printf("%.2f MiB live, %.2f MiB reserved\n", (double)stats.requested.now / 1048576.0,
           (double)stats.reserved.peak / 1048576.0);
    return 0;
}

static int run(crowd *c) {
    if (take_all(c) != 0 || show(c, "at once") != 0) return -1;
    for (int i = 0; i < ROUNDS; i++)
        if (take_all(c) != 0) return -1;
    return show(c, "each freed and taken anew three times");
}

static int make_streams(crowd *c) {
    c->stream = calloc(c->streams, sizeof *c->stream);
    c->block = calloc(c->streams, sizeof *c->block);
    if (!c->stream || !c->block) return failed("host memory is out");
    for (size_t i = 0; i < c->streams; i++)
        if (cudaStreamCreateWithFlags(&c->stream[i], cudaStreamNonBlocking) != cudaSuccess)
            return failed("no more streams");
    return 0;
}

int main(int argc, char **argv) {
    crowd c = {.streams = argc > 1 ? strtoull(argv[1], NULL, 10) : 2000,
               .bytes = argc > 2 ? strtoull(argv[2], NULL, 10) : 4096};
    if (!c.streams || !c.bytes || argc > 3) {
        fputs("usage: crowd [STREAMS [BYTES]]\n", stderr);
        return 2;
    }
    if (machine_open() != 0 || make_streams(&c) != 0) return EXIT_FAILURE;
    if (gpupool_arena_create(&c.arena, NULL) != GPUPOOL_OK) {
        failed(gpupool_last_error());
        return EXIT_FAILURE;
    }
    int result = run(&c);
    for (size_t i = 0; i < c.streams; i++) gpupool_free(c.arena, c.block[i], c.stream[i]);
    if (gpupool_arena_destroy(c.arena) != GPUPOOL_OK) result = failed(gpupool_last_error());
    for (size_t i = 0; i < c.streams; i++) cudaStreamDestroy(c.stream[i]);
    free(c.stream);
    free(c.block);
    return result == 0 && machine_close() == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
