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
static void *block;

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
    long calls = kit_calls();
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
    CHECK(!scope && !another);
    CHECK_EQ(kit_calls(), calls);
}

static void begin(void) {
    arena = kit_open(0);
    block = gpupool_alloc(arena, 1000, A);
    kit_free(arena, gpupool_alloc(arena, 1000, A), A); /* a cache has one */
    kit_write(block, 1000, A, 1);
}

static void child_is_told(void) {
    begin();
    in_a_child(each_call);
    kit_verify(block, 1000, A, 1); /* and the parent goes on */
    kit_free(arena, block, A);
    kit_free(arena, gpupool_alloc(arena, 10 * MIB, A), A);
    kit_close(arena);
}

static void leaves(void) {
    exit(0); /* by what is registered for an exit, too */
}

static void child_exits(void) {
    begin();
    in_a_child(leaves);
    kit_free(arena, block, A);
    kit_close(arena);
}

/* A grandchild is a child too. */
static void grandchild(void) {
    in_a_child(each_call);
}

static void of_a_child(void) {
    begin();
    in_a_child(grandchild);
    kit_free(arena, block, A);
    kit_close(arena);
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

static void one_request(void) {
    CHECK(!gpupool_alloc(arena, 1000, A));
    CHECK_EQ(gpupool_last_result(), GPUPOOL_E_FORKED);
    CHECK_RESULT(gpupool_free(arena, block, A), GPUPOOL_E_FORKED);
    CHECK_RESULT(gpupool_retire_stream(A), GPUPOOL_E_FORKED);
}

static void beside_threads(void) {
    pthread_t threads[2];
    begin();
    atomic_store(&stop, 0);
    for (int i = 0; i < 2; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, allocate_and_free, &kit_stream[i]), 0);
    for (int i = 0; i < 30; i++) in_a_child(one_request);
    atomic_store(&stop, 1);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    kit_free(arena, block, A);
    kit_close(arena);
}

int main(void) {
    KIT_TEST(child_is_told);
    KIT_TEST(child_exits);
    KIT_TEST(of_a_child);
    KIT_TEST(beside_threads);
    return check_finish();
}
