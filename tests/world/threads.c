/* world_threads FIRST LAST [OPERATIONS]: four threads with blocks of their own share an arena and
   two streams, and each has its default stream. Build it with ThreadSanitizer. */
#include "world.h"

#include <pthread.h>
#include <string.h>

enum { THREADS = 4 };
static world worlds[THREADS];
static uint64_t seed;
static long operations;

static void *work(void *user) {
    world *w = user;
    uint64_t mine = seed * THREADS + (uint64_t)(w - worlds);
    long i;
    for (i = 0; i < operations && !w->wrong[0]; i++) {
        operation op = world_operation_of(mine, i);
        world_do(w, &op);
    }
    world_free_all(w);
    return NULL;
}

static int open_worlds(void) {
    static const uint64_t limits[] = {0, 256 << 20, 64 << 20, 16 << 20};
    int i, s;
    fake_mode(seed % 3 ? FAKE_THREADED : FAKE_EAGER);
    memset(worlds, 0, sizeof worlds);
    worlds[0].config.limit_bytes = worlds[0].limit = limits[seed % 4];
    worlds[0].is_plenty = !worlds[0].limit;
    worlds[0].room = worlds[0].limit ? worlds[0].limit : UINT64_MAX;
    worlds[0].stream_count = 3;
    worlds[0].speed = 1;
    worlds[0].is_shared = 1;
    for (s = 0; s < 2; s++) cudaStreamCreateWithFlags(&worlds[0].streams[s], cudaStreamNonBlocking);
    worlds[0].streams[2] = cudaStreamPerThread;
    if (gpupool_arena_create(&worlds[0].arena, &worlds[0].config)) return 0;
    for (i = 1; i < THREADS; i++) worlds[i] = worlds[0];
    return 1;
}

static const char *close_worlds(void) {
    int i;
    worlds[0].is_shared = 0;
    world_close(&worlds[0]);
    for (i = 0; i < 2; i++) cudaStreamDestroy(worlds[0].streams[i]);
    for (i = 0; i < THREADS; i++)
        if (worlds[i].wrong[0]) return worlds[i].wrong;
    return fake_failures() ? fake_failure_text() : "";
}

static const char *run(uint64_t number, long count) {
    pthread_t threads[THREADS];
    int i;
    seed = number;
    operations = count;
    if (!open_worlds()) return "create";
    for (i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, work, &worlds[i]);
    for (i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    return close_worlds();
}

int main(int count, char **words) {
    static const driver threads = {"world_threads", 4, 1500, run};
    return world_drive(&threads, count, words);
}
