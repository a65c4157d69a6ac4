/* Captures while other threads are at work in the same arena: none is lost, in any mode, whatever
   the others ask for. */
// build: plain -O1
// build: tsan -fsanitize=thread -DTURNS=50
// build: asan -fsanitize=address,undefined
// build: check2 -O1 -DGPUPOOL_CHECK=2 -DTURNS=10
#define _DEFAULT_SOURCE /* pthread_barrier_t */
#include "gpupool.h"
#include "arena_kit.h"

#include <pthread.h>

#define LIMIT (48 * MIB)
#ifndef TURNS
#define TURNS 300
#endif

static gpupool_arena *arena;
static atomic_int stop;
static atomic_long refused;

/* ---- the others: each has a stream of its own ---- */

/* The same few sizes, so from the cache. */
static void *work_in_cache(void *stream) {
    void *block[8] = {NULL};
    for (uint64_t i = 0; !atomic_load(&stop); i++) {
        void **at = &block[i * 5 % 8];
        if (*at) CHECK_RESULT(gpupool_free(arena, *at, (cudaStream_t)stream), GPUPOOL_OK);
        *at = *at ? NULL : gpupool_alloc(arena, (size_t)4096 << i % 3, (cudaStream_t)stream);
    }
    for (int i = 0; i < 8; i++)
        CHECK_RESULT(gpupool_free(arena, block[i], (cudaStream_t)stream), GPUPOOL_OK);
    return NULL;
}

/* More than there is, so growth, moves, waits and refusals. */
static void *run_out(void *stream) {
    uint64_t random = 3;
    void *block[6] = {NULL};
    while (!atomic_load(&stop)) {
        size_t i = (size_t)check_below(&random, 6);
        if (block[i]) {
            CHECK_RESULT(gpupool_free(arena, block[i], (cudaStream_t)stream), GPUPOOL_OK);
            block[i] = NULL;
            continue;
        }
        block[i] = gpupool_alloc(arena, (size_t)(1 + check_below(&random, 16)) * MIB,
                                 (cudaStream_t)stream);
        if (block[i]) {
            kit_mark((cudaStream_t)stream, block[i], MIB, (int)i);
        } else {
            CHECK_RESULT(gpupool_last_result(), GPUPOOL_E_OUT_OF_MEMORY);
            atomic_fetch_add(&refused, 1);
        }
    }
    for (int i = 0; i < 6; i++)
        CHECK_RESULT(gpupool_free(arena, block[i], (cudaStream_t)stream), GPUPOOL_OK);
    return NULL;
}

/* Blocks used elsewhere, streams that come and go, and questions. */
static void *come_and_go(void *unused) {
    (void)unused;
    while (!atomic_load(&stop)) {
        cudaStream_t one, two;
        gpupool_stats stats;
        CHECK_EQ(cudaStreamCreateWithFlags(&one, cudaStreamNonBlocking), cudaSuccess);
        CHECK_EQ(cudaStreamCreateWithFlags(&two, cudaStreamNonBlocking), cudaSuccess);
        void *block = gpupool_alloc(arena, 100000, one);
        if (block) {
            CHECK_RESULT(gpupool_record_stream(arena, block, two), GPUPOOL_OK);
            CHECK_RESULT(gpupool_free(arena, block, one), GPUPOOL_OK);
        }
        CHECK_EQ(cudaStreamDestroy(one), cudaSuccess);
        CHECK_EQ(cudaStreamDestroy(two), cudaSuccess);
        CHECK_RESULT(gpupool_get_stats(arena, &stats), GPUPOOL_OK);
        CHECK(kit_available(arena) <= LIMIT);
        CHECK_RESULT(gpupool_trim(arena, 8 * MIB, NULL), GPUPOOL_OK); /* a scope is seen */
        CHECK_EQ(kit_fits(arena, 2 * LIMIT, NULL), 0);
        CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    }
    return NULL;
}

/* ---- captures beside them ---- */

static void capture_once(cudaStream_t stream, enum cudaStreamCaptureMode mode, int turn) {
    gpupool_capture *scope = NULL;
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    void *kept, *passing;
    CHECK_RESULT(gpupool_begin_capture(arena, stream, &scope), GPUPOOL_OK);
    CHECK_EQ(cudaStreamBeginCapture(stream, mode), cudaSuccess);
    kept = gpupool_alloc(arena, 64 * KIB, stream);
    passing = gpupool_alloc(arena, 300 * KIB, stream);
    if (kept) CHECK_EQ(cudaMemsetAsync(kept, turn, 64 * KIB, stream), cudaSuccess);
    if (passing) CHECK_EQ(cudaMemsetAsync(passing, 1, 300 * KIB, stream), cudaSuccess);
    CHECK_RESULT(gpupool_free(arena, passing, stream), GPUPOOL_OK);
    CHECK_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    if (turn % 2) CHECK_RESULT(gpupool_end_capture(scope), GPUPOOL_OK);
    CHECK_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    CHECK_EQ(cudaGraphLaunch(exec, stream), cudaSuccess);
    CHECK_EQ(cudaGraphDestroy(graph), cudaSuccess);
    if (kept && turn % 3 == 0) {
        unsigned char *host = (unsigned char *)malloc(64 * KIB);
        CHECK_EQ(cudaMemcpyAsync(host, kept, 64 * KIB, cudaMemcpyDeviceToHost, stream),
                 cudaSuccess);
        CHECK_EQ(cudaStreamSynchronize(stream), cudaSuccess);
        CHECK_EQ(host[64 * KIB - 1], (unsigned char)turn);
        free(host);
    }
    CHECK_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
    CHECK_RESULT(gpupool_release_capture(scope), GPUPOOL_OK);
}

static void beside(gpupool_source source, enum cudaStreamCaptureMode mode, int blocking) {
    pthread_t thread[4];
    cudaStream_t stream = kit_stream[0];
    arena = kit_open_limited(source, LIMIT);
    atomic_store(&stop, 0);
    atomic_store(&refused, 0);
    if (blocking) CHECK_EQ(cudaStreamCreate(&stream), cudaSuccess);
    capture_once(stream, mode, 0); /* the arena has seen a capture before the others start */
    CHECK_EQ(pthread_create(&thread[0], NULL, work_in_cache, kit_stream[1]), 0);
    CHECK_EQ(pthread_create(&thread[1], NULL, work_in_cache, kit_stream[2]), 0);
    CHECK_EQ(pthread_create(&thread[2], NULL, run_out, kit_stream[3]), 0);
    CHECK_EQ(pthread_create(&thread[3], NULL, come_and_go, NULL), 0);
    for (int turn = 1; turn <= TURNS; turn++)
        capture_once(stream, mode, turn);
    while (atomic_load(&refused) == 0) capture_once(stream, mode, 0); /* until they ran out */
    atomic_store(&stop, 1);
    for (int i = 0; i < 4; i++) CHECK_EQ(pthread_join(thread[i], NULL), 0);
    if (blocking) CHECK_EQ(cudaStreamDestroy(stream), cudaSuccess);
    CHECK_EQ(kit_stats(arena).blocks.now, 0);
    kit_close(arena);
}

static const enum cudaStreamCaptureMode modes[] = {
    cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeRelaxed};

static void no_capture_is_lost(void) {
    for (int i = 0; i < 6; i++) {
        check_case("mode %d, blocking %d", (int)modes[i / 2], i % 2);
        beside(GPUPOOL_SOURCE_MAPPED, modes[i / 2], i % 2);
    }
    check_case("DEVICE");
    beside(GPUPOOL_SOURCE_DEVICE, cudaStreamCaptureModeGlobal, 0);
}

/* ---- captures on several threads at once ---- */

static pthread_barrier_t gate;

static void *capture_often(void *stream) {
    pthread_barrier_wait(&gate);
    for (int turn = 0; turn < TURNS / 2; turn++)
        capture_once((cudaStream_t)stream, cudaStreamCaptureModeThreadLocal, turn);
    return NULL;
}

static void captures_on_every_thread(void) {
    pthread_t thread[KIT_STREAMS];
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, LIMIT);
    CHECK_EQ(pthread_barrier_init(&gate, NULL, KIT_STREAMS), 0);
    for (int i = 0; i < KIT_STREAMS; i++)
        CHECK_EQ(pthread_create(&thread[i], NULL, capture_often, kit_stream[i]), 0);
    for (int i = 0; i < KIT_STREAMS; i++) CHECK_EQ(pthread_join(thread[i], NULL), 0);
    CHECK_EQ(pthread_barrier_destroy(&gate), 0);
    CHECK_EQ(kit_stats(arena).blocks.now, 0);
    kit_close(arena);
}

/* ---- scopes on a stream that another thread is using: whose a block is depends on who was first,
   but nothing is lost, and nobody crashes ---- */

static void *scopes_only(void *stream) {
    for (int turn = 0; turn < TURNS; turn++) {
        gpupool_capture *scope = NULL;
        CHECK_RESULT(gpupool_begin_capture(arena, (cudaStream_t)stream, &scope), GPUPOOL_OK);
        if (turn % 2) CHECK_RESULT(gpupool_end_capture(scope), GPUPOOL_OK);
        if (scope) CHECK_RESULT(gpupool_release_capture(scope), GPUPOOL_OK);
    }
    return NULL;
}

/* Frees what it was given, unless a scope has taken it back. */
static void *pairs_until_stopped(void *stream) {
    while (!atomic_load(&stop)) {
        void *block = gpupool_alloc(arena, 4096, (cudaStream_t)stream);
        gpupool_result result = gpupool_free(arena, block, (cudaStream_t)stream);
        CHECK(block != NULL);
        CHECK(result == GPUPOOL_OK || result == GPUPOOL_E_DOUBLE_FREE);
    }
    return NULL;
}

static void scopes_on_a_busy_stream(void) {
    pthread_t scopes, pairs;
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    atomic_store(&stop, 0);
    CHECK_EQ(pthread_create(&pairs, NULL, pairs_until_stopped, kit_stream[0]), 0);
    CHECK_EQ(pthread_create(&scopes, NULL, scopes_only, kit_stream[0]), 0);
    CHECK_EQ(pthread_join(scopes, NULL), 0);
    atomic_store(&stop, 1);
    CHECK_EQ(pthread_join(pairs, NULL), 0);
    CHECK_EQ(kit_stats(arena).blocks.now, 0);
    kit_close(arena);
}

int main(void) {
    ARENA_TEST(no_capture_is_lost);
    ARENA_TEST(captures_on_every_thread);
    ARENA_TEST(scopes_on_a_busy_stream);
    return check_finish();
}
