// build: plain
/* A forked child has no CUDA context: every call says so, makes no CUDA call, and nobody hangs. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gpupool.h"
#include "kit.h"

#define A kit_stream[0]

static gpupool_arena *arena;
static gpupool_ring *ring;
static void *block;
static char bytes[1000];

/* In a child, whose checks the parent cannot see: ends with whether all held. */
static void in_a_child(void (*body)(void)) {
    int status = -1;
    pid_t child;
    fflush(stdout); /* or the child's exit prints it once more */
    child = fork();
    if (child == 0) {
        alarm(20); /* a child that hangs has failed */
        atomic_store(&check_bad, 0);
        body();
        _exit(atomic_load(&check_bad) != 0);
    }
    CHECK(child > 0);
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
}

static void each_call(void) {
    gpupool_capture *scope = NULL;
    gpupool_arena *another = NULL;
    gpupool_ring *second = NULL;
    KIT_FAILS(gpupool_alloc(arena, 1000, A), GPUPOOL_E_FORKED, "fork");
    KIT_FAILS(gpupool_alloc(arena, 10 * MIB, A), GPUPOOL_E_FORKED, "fork");
    KIT_REFUSES(gpupool_free(arena, block, A), GPUPOOL_E_FORKED, "fork");
    KIT_REFUSES(gpupool_free_in_host_function(arena, block), GPUPOOL_E_FORKED, "fork");
    KIT_REFUSES(gpupool_record_stream(arena, block, A), GPUPOOL_E_FORKED, "fork");
    KIT_REFUSES(gpupool_trim(arena, 0), GPUPOOL_E_FORKED, "fork");
    KIT_REFUSES(gpupool_set_limit(arena, 2 * MIB), GPUPOOL_E_FORKED, "fork");
    KIT_REFUSES(gpupool_begin_capture(arena, A, &scope), GPUPOOL_E_FORKED, "fork");
    KIT_REFUSES(gpupool_arena_create(&another, NULL), GPUPOOL_E_FORKED, "fork");
    KIT_REFUSES(gpupool_arena_destroy(arena), GPUPOOL_E_FORKED, "fork");
    KIT_REFUSES(gpupool_retire_stream(A), GPUPOOL_E_FORKED, "fork");
    KIT_REFUSES(gpupool_upload(ring, block, bytes, 1000, A), GPUPOOL_E_FORKED, "fork");
    KIT_REFUSES(gpupool_ring_wait(ring, 1, 0, NULL), GPUPOOL_E_FORKED, "fork");
    KIT_REFUSES(gpupool_ring_create(&second, NULL), GPUPOOL_E_FORKED, "fork");
    KIT_REFUSES(gpupool_ring_destroy(ring), GPUPOOL_E_FORKED, "fork");
    CHECK(!scope && !another && !second);
}

/* Not beside threads, whose locks of fakecuda's a child never gets. */
static void each_call_is_gpupools_alone(void) {
    long calls = kit_calls();
    each_call();
    CHECK_EQ(kit_calls(), calls);
}

static void begin(void) {
    gpupool_ring_config config = {0, 2, MIB, 64 * KIB};
    arena = kit_open(0);
    block = gpupool_alloc(arena, 1000, A);
    kit_free(arena, gpupool_alloc(arena, 1000, A), A); /* a cache has one */
    CHECK_RESULT(gpupool_ring_create(&ring, &config), GPUPOOL_OK);
    memset(bytes, 1, sizeof bytes);
    CHECK_RESULT(gpupool_upload(ring, block, bytes, sizeof bytes, A), GPUPOOL_OK);
}

/* The parent goes on. */
static void end(void) {
    kit_verify(block, 1000, A, 1);
    CHECK_RESULT(gpupool_upload(ring, block, bytes, sizeof bytes, A), GPUPOOL_OK);
    CHECK_RESULT(gpupool_ring_destroy(ring), GPUPOOL_OK);
    kit_free(arena, block, A);
    kit_free(arena, gpupool_alloc(arena, 10 * MIB, A), A);
    kit_close(arena);
}

static void leaves(void) {
    exit(0); /* by what is registered for an exit, too */
}

static void has_a_child(void) {
    in_a_child(each_call);
}

static void child_is_told(void) {
    begin();
    in_a_child(each_call_is_gpupools_alone);
    in_a_child(has_a_child);
    in_a_child(leaves);
    end();
}

/* The fork may come while other threads hold any lock. */
static atomic_int stop;

static void *allocate_and_free(void *user) {
    cudaStream_t stream = *(cudaStream_t *)user;
    uint64_t seed = 1;
    while (!atomic_load(&stop)) {
        void *one = gpupool_alloc(arena, 1 + check_below(&seed, 40000), stream);
        gpupool_free(arena, one, stream);
    }
    return NULL;
}

static void beside_threads(void) {
    pthread_t threads[2];
    begin();
    atomic_store(&stop, 0);
    for (int i = 0; i < 2; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, allocate_and_free, &kit_stream[i]), 0);
    for (int i = 0; i < 30; i++) in_a_child(each_call);
    atomic_store(&stop, 1);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    end();
}

int main(void) {
    KIT_TEST(child_is_told);
    KIT_TEST(beside_threads);
    return check_finish();
}
