/* Sixteen threads in one arena, for ThreadSanitizer: streams of their own, one that all share,
   streams that come and go, captures, trims and questions meanwhile. Short. */
// build: tsan -fsanitize=thread
// build: plain -O1
#define _DEFAULT_SOURCE /* pthread_barrier_t */
#include "gpupool.h"
#include "arena_kit.h"

#include <pthread.h>

#define THREADS 16
#define CALLS 500
#define OWN 12

static gpupool_arena *arena;
static cudaStream_t own_stream[THREADS];
static pthread_barrier_t gate;

typedef struct block { char *at; size_t bytes; cudaStream_t stream; int byte; } block;

static block take(uint64_t *random, cudaStream_t stream) {
    block b = {NULL, 1 + (size_t)check_below(random, (uint64_t)1 << (9 + check_below(random, 10))),
               stream, (int)check_below(random, 256)};
    b.at = (char *)gpupool_alloc(arena, b.bytes, stream);
    if (b.at) kit_mark(stream, b.at, b.bytes, b.byte);
    else CHECK_RESULT(gpupool_last_result(), GPUPOOL_E_OUT_OF_MEMORY);
    return b;
}

static void drop(block *b) {
    if (!b->at) return;
    kit_expect_mark(b->stream, b->at, b->bytes, b->byte);
    CHECK_RESULT(gpupool_free(arena, b->at, b->stream), GPUPOOL_OK);
    b->at = NULL;
}

/* Random blocks; what is asked for again and again comes from the cache. */
static void churn(uint64_t *random, cudaStream_t stream, block *held) {
    block *b = &held[check_below(random, OWN)];
    if (b->at) drop(b);
    else *b = take(random, stream);
}

static void brief_stream(uint64_t *random) {
    cudaStream_t brief;
    CHECK_EQ(cudaStreamCreateWithFlags(&brief, cudaStreamNonBlocking), cudaSuccess);
    for (int i = 0; i < 3; i++) {
        block b = take(random, brief);
        drop(&b);
    }
    CHECK_EQ(cudaStreamDestroy(brief), cudaSuccess);
}

static void brief_capture(uint64_t *random, cudaStream_t stream) {
    gpupool_capture *scope = NULL;
    cudaGraph_t graph = NULL;
    CHECK_RESULT(gpupool_begin_capture(arena, stream, &scope), GPUPOOL_OK);
    CHECK_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    void *inside = gpupool_alloc(arena, 1000 + (size_t)check_below(random, 100000), stream);
    CHECK_RESULT(gpupool_free(arena, inside, stream), GPUPOOL_OK);
    CHECK_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    CHECK_EQ(cudaGraphDestroy(graph), cudaSuccess);
    CHECK_RESULT(gpupool_release_capture(scope), GPUPOOL_OK);
}

static void question(uint64_t *random) {
    gpupool_stats stats;
    switch (check_below(random, 4)) {
    case 0: CHECK_RESULT(gpupool_get_stats(arena, &stats), GPUPOOL_OK); break;
    case 1: CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK); break;
    case 2: CHECK_RESULT(gpupool_reset_peaks(arena), GPUPOOL_OK); break;
    default: kit_available(arena); break;
    }
}

/* A hand-over to the next thread's stream. */
static void hand_over(uint64_t *random, int me) {
    cudaStream_t next = own_stream[(me + 1) % THREADS];
    block b = take(random, own_stream[me]);
    if (!b.at) return;
    kit_order(b.stream, next);
    if (check_below(random, 2)) b.stream = next;
    else CHECK_RESULT(gpupool_record_stream(arena, b.at, next), GPUPOOL_OK);
    drop(&b);
}

static void *live(void *number) {
    int me = *(int *)number;
    uint64_t random = 7 + (uint64_t)me;
    block held[OWN], shared[OWN];
    memset(held, 0, sizeof held);
    memset(shared, 0, sizeof shared);
    CHECK_EQ(cudaSetDevice(0), cudaSuccess);
    pthread_barrier_wait(&gate);
    for (int n = 0; n < CALLS; n++) {
        uint64_t kind = check_below(&random, 100);
        check_case("thread %d, call %d", me, n);
        if (kind < 60) churn(&random, own_stream[me], held);
        else if (kind < 85) churn(&random, kit_stream[0], shared);
        else if (kind < 90) hand_over(&random, me);
        else if (kind < 94) brief_stream(&random);
        else if (kind < 97) question(&random);
        else if (kind < 99 && me < 3) brief_capture(&random, kit_stream[me + 1]);
        else if (me == 15) CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
    }
    for (int i = 0; i < OWN; i++) {
        drop(&held[i]);
        drop(&shared[i]);
    }
    return NULL;
}

static void sixteen(gpupool_source source) {
    pthread_t thread[THREADS];
    int number[THREADS];
#if CHECK_FAKE
    fake_mode(FAKE_THREADED);
#endif
    arena = kit_open_limited(source, 64 * MIB);
    CHECK_EQ(pthread_barrier_init(&gate, NULL, THREADS), 0);
    for (int i = 0; i < THREADS; i++) {
        number[i] = i;
        CHECK_EQ(cudaStreamCreateWithFlags(&own_stream[i], cudaStreamNonBlocking), cudaSuccess);
    }
    for (int i = 0; i < THREADS; i++)
        CHECK_EQ(pthread_create(&thread[i], NULL, live, &number[i]), 0);
    for (int i = 0; i < THREADS; i++) CHECK_EQ(pthread_join(thread[i], NULL), 0);
    CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
    for (int i = 0; i < THREADS; i++) CHECK_EQ(cudaStreamDestroy(own_stream[i]), cudaSuccess);
    gpupool_stats stats = kit_stats(arena);
    CHECK_EQ(stats.blocks.now, 0);
    CHECK_EQ(stats.requested.now, 0);
    CHECK(stats.same_stream_allocs > 0);
    kit_close(arena);
    CHECK_EQ(pthread_barrier_destroy(&gate), 0);
}
static void sixteen_on_mapped(void) { sixteen(GPUPOOL_SOURCE_MAPPED); }
static void sixteen_on_device(void) { sixteen(GPUPOOL_SOURCE_DEVICE); }

int main(void) {
    ARENA_TEST(sixteen_on_mapped);
    ARENA_TEST(sixteen_on_device);
    return check_finish();
}
