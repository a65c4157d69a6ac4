/* How do two programs share a GPU when their models do not fit on it together?

   By turns: each program sleeps while the other works; a lock file says whose turn it is. An arena
   sleeps as a whole, so a program has two: the weights are kept in host memory meanwhile; the cache
   is dropped, as each turn writes it anew. Blocks keep their addresses.
   Build: cc -I.. -I$CUDA_HOME/include take_turns.c -L$CUDA_HOME/lib64 -lcudart -lpthread
   Run: ./a.out [MIB [TURNS]], with MIB more than half of the GPU's memory: two do not fit.
   Prints the time to wake and to fall asleep. */
#define _GNU_SOURCE
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "example.h"

#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LAYERS = 16 };

typedef struct model {
    gpupool_arena *weights, *cache;
    char *layer[LAYERS], *keys;
    size_t layer_bytes;
} model;

static int pattern(size_t layer) {
    return (int)layer + 1; /* of each byte */
}

/* A program would upload its model here, from a file, say. */
static void load(model *m) {
    for (size_t i = 0; i < LAYERS; i++) {
        m->layer[i] = (char *)BLOCK(gpupool_alloc(m->weights, m->layer_bytes, 0));
        CUDA(cudaMemsetAsync(m->layer[i], pattern(i), m->layer_bytes, 0));
    }
    m->keys = (char *)BLOCK(gpupool_alloc(m->cache, m->layer_bytes, 0));
}

/* Stands for the work of a turn: writes the cache, and looks at the weights. */
static void use(const model *m) {
    unsigned char found[LAYERS];
    CUDA(cudaMemsetAsync(m->keys, 1, m->layer_bytes, 0));
    for (size_t i = 0; i < LAYERS; i++) {
        const char *at = m->layer[i] + i * m->layer_bytes / LAYERS;
        CUDA(cudaMemcpy(&found[i], at, 1, cudaMemcpyDeviceToHost));
        if (found[i] != pattern(i)) FAIL("use", "the model is not what it was");
    }
}

static void fall_asleep(const model *m) {
    POOL(gpupool_sleep(m->weights, GPUPOOL_KEEP));
    POOL(gpupool_sleep(m->cache, GPUPOOL_DISCARD));
}

static void wake(const model *m) {
    POOL(gpupool_wake(m->weights));
    POOL(gpupool_wake(m->cache));
}

static void work(const char *name, size_t mib, int turns, const char *path) {
    model m = {0};
    double wake_s = 0, sleep_s = 0;
    int lock = open(path, O_RDWR); /* each its own, or both would have the lock */
    m.layer_bytes = mib * MIB / (LAYERS + 1);
    while (flock(lock, LOCK_EX) != 0) continue; /* its turn, to load */
    POOL(gpupool_arena_create(&m.weights, NULL));
    POOL(gpupool_arena_create(&m.cache, NULL));
    load(&m);
    fall_asleep(&m);
    flock(lock, LOCK_UN);
    for (int turn = 0; turn < turns; turn++) {
        usleep(1000); /* so that the other one gets its turn */
        while (flock(lock, LOCK_EX) != 0) continue;
        double start = example_seconds();
        wake(&m);
        wake_s += example_seconds() - start;
        use(&m);
        start = example_seconds();
        fall_asleep(&m);
        sleep_s += example_seconds() - start;
        flock(lock, LOCK_UN);
    }
    printf("%s: %zu MiB woken in %.1f ms, asleep again in %.1f ms (mean of %d)\n", name, mib,
           wake_s * 1e3 / turns, sleep_s * 1e3 / turns, turns);
    for (size_t i = 0; i < LAYERS; i++) POOL(gpupool_free(m.weights, m.layer[i], 0));
    POOL(gpupool_free(m.cache, m.keys, 0));
    POOL(gpupool_arena_destroy(m.weights));
    POOL(gpupool_arena_destroy(m.cache));
}

int main(int count, char **words) {
    size_t mib = count > 1 ? (size_t)atol(words[1]) : 64;
    int turns = count > 2 ? atoi(words[2]) : 5, status = 0;
    char path[] = "/tmp/take_turns.XXXXXX";
    if (mib <= LAYERS || turns < 1) FAIL("arguments", "at least 17 MiB, and one turn");
    if (mkstemp(path) < 0) FAIL("the lock file", "cannot be made");
    pid_t child = fork(); /* before CUDA is used, which no fork survives */
    if (child < 0) FAIL("fork", "no process");
    work(child ? "first" : "second", mib, turns, path);
    if (!child) return EXIT_SUCCESS;
    waitpid(child, &status, 0);
    unlink(path);
    return status == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
