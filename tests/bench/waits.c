/* What a call costs beside others: many idle streams, a request that fails, many threads, threads
   that end. waits [NAME]: all of it, or one of streams, looks, failure, threads, ended. */
#include "gpupool.h"
#include "call_kit.h"
#include "machine.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MIB ((size_t)1 << 20)

static gpupool_arena *arena;

static double now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void *must(void *block) {
    if (block) return block;
    fprintf(stderr, "waits: %s\n", gpupool_last_error());
    exit(EXIT_FAILURE);
}

static void open_arena(size_t limit_bytes) {
    gpupool_arena_config config = {.limit_bytes = limit_bytes};
    if (gpupool_arena_create(&arena, &config) != GPUPOOL_OK) must(NULL);
}

static void close_arena(void) {
    if (gpupool_arena_destroy(arena) != GPUPOOL_OK) must(NULL);
}

static void pair(size_t bytes, cudaStream_t stream) {
    gpupool_free(arena, must(gpupool_alloc(arena, bytes, stream)), stream);
}

static double mean_pair(size_t bytes, cudaStream_t stream, int rounds) {
    double start = now_ns();
    for (int i = 0; i < rounds; i++) pair(bytes, stream);
    return (now_ns() - start) / rounds;
}

static cudaStream_t *make_streams(int count) {
    cudaStream_t *stream = calloc((size_t)count, sizeof *stream);
    for (int i = 0; stream && i < count; i++)
        if (cudaStreamCreateWithFlags(&stream[i], cudaStreamNonBlocking) != cudaSuccess) exit(1);
    return stream;
}

static void drop_streams(cudaStream_t *stream, int count) {
    for (int i = 0; i < count; i++) cudaStreamDestroy(stream[i]);
    free(stream);
}

/* A pair that no cache has, and growth by small steps, beside streams that have freed something and
   are idle. */
static void beside_streams(int count) {
    enum { GROWTHS = 4096, LAST = 256 };
    cudaStream_t *stream = make_streams(count);
    static void *kept[GROWTHS];
    double start = 0;
    open_arena(0);
    for (int i = 0; i < count; i++) {
        pair(4096, stream[i]);
        pair(MIB, stream[i]);
    }
    for (int i = 0; i < GROWTHS; i++) {
        if (i == GROWTHS - LAST) start = now_ns(); /* by then it has asked all the others */
        kept[i] = must(gpupool_alloc(arena, 3 * MIB, stream[0]));
    }
    double grown = (now_ns() - start) / LAST;
    for (int i = 0; i < GROWTHS; i++) gpupool_free(arena, kept[i], stream[0]);
    mean_pair(128 * 1024, stream[0], 1000);
    double again = mean_pair(128 * 1024, stream[0], 100000);
    printf(
        "beside %5d idle streams: a pair of 128 KiB %6.0f ns, an allocation that grows %7.0f ns\n",
        count, again, grown);
    close_arena();
    drop_streams(stream, count);
}

static void looks(void) {
    enum { STREAMS = 2000, ROUNDS = 200 };
    cudaStream_t *stream = make_streams(STREAMS);
    gpupool_stats stats;
    open_arena(0);
    for (int i = 0; i < STREAMS; i++) pair(4096, stream[i]);
    double start = now_ns();
    for (int i = 0; i < ROUNDS; i++) kit_limit(arena);
    double limit = (now_ns() - start) / ROUNDS;
    start = now_ns();
    for (int i = 0; i < ROUNDS; i++) gpupool_get_stats(arena, &stats);
    printf("beside %d streams: gpupool_get_limit %.0f ns, gpupool_get_stats %.1f us\n", STREAMS,
           limit, (now_ns() - start) / ROUNDS / 1e3);
    close_arena();
    drop_streams(stream, STREAMS);
}

static atomic_int stop;

typedef struct worst {
    cudaStream_t stream;
    double call_ns;
    long calls;
} worst;

static void note(worst *w, double start) {
    double ns = now_ns() - start;
    if (ns > w->call_ns) w->call_ns = ns;
    w->calls++;
}

static void *pairs(void *of) {
    worst *w = of;
    while (!atomic_load(&stop)) {
        double start = now_ns();
        pair(4096, w->stream);
        note(w, start);
    }
    return NULL;
}

/* The worst pair while another thread's requests fail, in an arena of many blocks. */
static void beside_failures(long blocks) {
    cudaStream_t *stream = make_streams(2);
    worst w = {stream[1], 0, 0};
    pthread_t thread;
    void **block = calloc((size_t)blocks, sizeof *block);
    if (!block) exit(EXIT_FAILURE);
    open_arena((size_t)blocks * 1024 + 64 * MIB);
    for (long i = 0; i < blocks; i++) block[i] = must(gpupool_alloc(arena, 1024, stream[0]));
    pair(4096, stream[1]);
    atomic_store(&stop, 0);
    pthread_create(&thread, NULL, pairs, &w);
    double start = now_ns();
    for (int i = 0; i < 5; i++)
        if (gpupool_alloc(arena, (size_t)blocks * 1024, stream[0])) exit(EXIT_FAILURE);
    double failure = (now_ns() - start) / 5;
    atomic_store(&stop, 1);
    pthread_join(thread, NULL);
    printf("beside requests that fail, %ld blocks: the worst pair of %ld %.0f us; a failure takes "
           "%.0f ms\n",
           blocks, w.calls, w.call_ns / 1e3, failure / 1e6);
    for (long i = 0; i < blocks; i++) gpupool_free(arena, block[i], stream[0]);
    free(block);
    close_arena();
    drop_streams(stream, 2);
}

static void *any_sizes(void *of) {
    worst *w = of;
    unsigned seed = (unsigned)(size_t)of | 1;
    void *kept[16] = {NULL};
    while (!atomic_load(&stop)) {
        seed = seed * 1664525u + 1013904223u;
        int i = (int)(seed >> 28);
        size_t bytes = (size_t)512 << (seed >> 20) % 12;
        double start = now_ns();
        if (kept[i]) gpupool_free(arena, kept[i], w->stream);
        kept[i] = must(gpupool_alloc(arena, bytes, w->stream));
        note(w, start);
    }
    for (int i = 0; i < 16; i++) gpupool_free(arena, kept[i], w->stream);
    return NULL;
}

static void many_threads(int count) {
    cudaStream_t *stream = make_streams(count);
    pthread_t thread[64];
    worst w[64], all = {NULL, 0, 0};
    struct timespec two_seconds = {2, 0};
    open_arena(0);
    atomic_store(&stop, 0);
    for (int i = 0; i < count; i++) {
        w[i] = (worst){stream[i], 0, 0};
        pthread_create(&thread[i], NULL, any_sizes, &w[i]);
    }
    nanosleep(&two_seconds, NULL);
    atomic_store(&stop, 1);
    for (int i = 0; i < count; i++) {
        pthread_join(thread[i], NULL);
        if (w[i].call_ns > all.call_ns) all.call_ns = w[i].call_ns;
        all.calls += w[i].calls;
    }
    printf("%d threads with a stream each, 512 B to 1 MiB: %ld calls, the worst %.1f ms\n", count,
           all.calls, all.call_ns / 1e6);
    close_arena();
    drop_streams(stream, count);
}

static void *one_pair(void *of) {
    double start = now_ns();
    pair(700 * 1024, cudaStreamPerThread);
    *(double *)of += now_ns() - start;
    return NULL;
}

static void ended_threads(int count) {
    double first = 0, last = 0;
    gpupool_stats stats;
    open_arena(0);
    for (int i = 0; i < count; i++) {
        double ns = 0;
        pthread_t thread;
        pthread_create(&thread, NULL, one_pair, &ns);
        pthread_join(thread, NULL);
        if (i < 1000) first += ns;
        if (i >= count - 1000) last += ns;
    }
    gpupool_get_stats(arena, &stats);
    printf("%d threads one after the other, 700 KiB each: %.0f MiB reserved; a pair %.1f us in the "
           "first thousand, %.1f us in the last\n",
           count, (double)stats.reserved.peak / MIB, first / 1e6, last / 1e6);
    close_arena();
}

int main(int argc, char **argv) {
    const char *only = argc > 1 ? argv[1] : "";
    if (machine_open() != 0) return EXIT_FAILURE;
    if (!*only || !strcmp(only, "streams")) {
        beside_streams(8);
        beside_streams(8192);
    }
    if (!*only || !strcmp(only, "looks")) looks();
    if (!*only || !strcmp(only, "failure")) beside_failures(1000000);
    if (!*only || !strcmp(only, "threads")) many_threads(32);
    if (!*only || !strcmp(only, "ended")) ended_threads(8000);
    return machine_close() == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
