/* How do two programs share a GPU when their models do not fit on it together?

   By turns: each program sleeps (gpupool_sleep) while the other works. A lock file says whose turn
   it is. A program has two arenas, for an arena sleeps as a whole: the weights are kept in host
   memory, and the cache is dropped, as its content is made anew in each turn. While both are awake,
   each gets the other's idle memory when the device is full.
   What to look at: the time to wake beside the time to load the model from its file. After waking
   the model is as it was, at the same address.
   Build: cc -D_GNU_SOURCE take_turns.c -I.. -I$CUDA_HOME/include -L$CUDA_HOME/lib64 -lcudart \
       -lpthread
   Run: ./a.out [MIB [TURNS]], with MIB more than half of the GPU's memory: two do not fit */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"

#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef SIMULATED_GPU
#define SIMULATED_GPU 0
#endif
#define MIB ((size_t)1 << 20)
#define LAYERS 16

typedef struct model {
    const char *name;
    gpupool_arena *weights, *cache;
    gpupool_ring *ring;
    char *layer[LAYERS], *keys;
    size_t layer_bytes;
    double load_s, wake_s, sleep_s;
} model;

static void stop(const char *name, const char *what, const char *why) {
    fprintf(stderr, "%s: %s: %s\n", name, what, why);
    exit(EXIT_FAILURE);
}

static void pool(const model *m, const char *what, gpupool_result result) {
    if (result != GPUPOOL_OK) stop(m->name, what, gpupool_last_error());
}

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* A file with a pattern stands for the model's. */
static int make_file(const model *m) {
    FILE *file = tmpfile();
    char *row = (char *)malloc(MIB);
    if (!file || !row) stop(m->name, "the model's file", "cannot be made");
    for (size_t i = 0; i < LAYERS * m->layer_bytes / MIB; i++) {
        memset(row, (int)(i % 251), MIB);
        if (fwrite(row, 1, MIB, file) != MIB) stop(m->name, "the model's file", "is short");
    }
    free(row);
    fflush(file);
    return fileno(file);
}

static void load(model *m) {
    int file = make_file(m);
    double start = seconds();
    for (size_t i = 0; i < LAYERS; i++) {
        gpupool_file_part part = {file, i * m->layer_bytes, m->layer_bytes};
        m->layer[i] = (char *)gpupool_alloc(m->weights, m->layer_bytes, 0);
        if (!m->layer[i]) stop(m->name, "a layer", gpupool_last_error());
        pool(m, "load", gpupool_upload_file(m->ring, m->layer[i], &part, 0));
    }
    m->keys = (char *)gpupool_alloc(m->cache, m->layer_bytes, 0);
    if (!m->keys) stop(m->name, "the cache", gpupool_last_error());
    cudaDeviceSynchronize();
    m->load_s = seconds() - start;
}

/* Stands for the work of a turn: the model is there, every byte of it; the cache is written
   anew. */
static void use(const model *m) {
    char *host = (char *)malloc(m->layer_bytes);
    if (!host) stop(m->name, "a turn", "the host has no memory");
    cudaMemsetAsync(m->keys, 1, m->layer_bytes, 0);
    for (size_t i = 0; i < LAYERS; i++) {
        pool(m, "use", gpupool_download(m->ring, host, m->layer[i], m->layer_bytes, 0));
        for (size_t at = 0; at < m->layer_bytes; at += 4096)
            if (host[at] != (char)((i * m->layer_bytes + at) / MIB % 251))
                stop(m->name, "use", "the model is not what it was");
    }
    free(host);
}

static void fall_asleep(const model *m) {
    pool(m, "sleep", gpupool_sleep(m->weights, GPUPOOL_KEEP));
    pool(m, "sleep", gpupool_sleep(m->cache, GPUPOOL_DISCARD));
}

static void wake(const model *m) {
    pool(m, "wake", gpupool_wake(m->weights));
    pool(m, "wake", gpupool_wake(m->cache));
}

static void work(const char *name, size_t mib, int turns, int lock) {
    model m = {name, NULL, NULL, NULL, {NULL}, NULL, mib / (LAYERS + 1) * MIB, 0, 0, 0};
    double start;
    while (flock(lock, LOCK_EX) != 0) continue; /* its turn, to load */
    pool(&m, "arena", gpupool_arena_create(&m.weights, NULL));
    pool(&m, "arena", gpupool_arena_create(&m.cache, NULL));
    pool(&m, "ring", gpupool_ring_create(&m.ring, NULL));
    load(&m);
    fall_asleep(&m);
    flock(lock, LOCK_UN);
    for (int turn = 0; turn < turns; turn++) {
        usleep(1000); /* so that the other one gets its turn */
        while (flock(lock, LOCK_EX) != 0) continue;
        start = seconds();
        wake(&m);
        m.wake_s += seconds() - start;
        use(&m);
        start = seconds();
        fall_asleep(&m);
        m.sleep_s += seconds() - start;
        flock(lock, LOCK_UN);
    }
    printf("%s: %zu MiB loaded from a file in %.1f ms; woken in %.1f ms, asleep again in %.1f ms, "
           "mean of %d turns\n", name, mib, m.load_s * 1e3, m.wake_s * 1e3 / turns,
           m.sleep_s * 1e3 / turns, turns);
    for (size_t i = 0; i < LAYERS; i++) gpupool_free(m.weights, m.layer[i], 0);
    gpupool_free(m.cache, m.keys, 0);
    pool(&m, "the end", gpupool_arena_destroy(m.weights));
    pool(&m, "the end", gpupool_arena_destroy(m.cache));
    pool(&m, "the end", gpupool_ring_destroy(m.ring));
}

int main(int argc, char **argv) {
    size_t mib = argc > 1 ? (size_t)atol(argv[1]) : SIMULATED_GPU ? 64 : 4096;
    int turns = argc > 2 ? atoi(argv[2]) : 5, status = 0;
    char path[] = "/tmp/take_turns.XXXXXX";
    int made = mkstemp(path), lock;
    pid_t child = made < 0 || mib <= LAYERS || turns < 1 ? -1 : fork(); /* before CUDA is touched */
    if (child < 0) {
        fprintf(stderr, "no lock file, no process, or a size below %d MiB\n", LAYERS);
        return EXIT_FAILURE;
    }
    lock = open(path, O_RDWR); /* each its own, or both would have the lock */
    work(child ? "first" : "second", mib, turns, lock);
    if (!child) return EXIT_SUCCESS;
    waitpid(child, &status, 0);
    unlink(path);
    return status == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
