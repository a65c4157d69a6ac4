/* Threads that stitch at once, each on a stream of its own, in an arena that has just enough for
   all of them: nobody is told that memory is out while another thread holds it for a moment only,
   and nobody's bytes are another's. */
// build: plain -O1
// build: thread -fsanitize=thread -DROUNDS=300
#define _POSIX_C_SOURCE 200809L /* barriers */
#include "gpupool.h"
#include "stripe_kit.h"

#include <pthread.h>

#if CHECK_FAKE

#ifndef ROUNDS
#define ROUNDS 1000
#endif
#define THREADS 4
#define MOST (LAID / THREADS) /* chunks that a thread has at once: together all that are free */
#define HELD 3                /* in so many blocks */

static pthread_barrier_t begun; /* all are there: else one would be done before the next begins */

typedef struct worker {
    pthread_t thread;
    cudaStream_t stream;
    uint64_t random;
} worker;

/* Each chunk's first bytes, and its last: of this block alone. */
static void touch(cudaStream_t stream, char *block, size_t chunks, int byte, int write) {
    fake_access access[2 * MOST];
    for (size_t i = 0; i < chunks; i++)
        for (size_t end = 0; end < 2; end++)
            access[2 * i + end] = (fake_access){block + i * STRIPE + end * (STRIPE - 64), 64, write,
                                                FAKE_BYTE(byte + (int)i)};
    CHECK_EQ(fake_kernel(stream, write ? "write" : "read", access, (int)(2 * chunks)), cudaSuccess);
}

typedef struct held_block {
    char *at; /* NULL: none */
    size_t chunks;
    int byte;
} held_block;

static void let_go(const worker *w, held_block *b, size_t *held) {
    if (!b->at) return;
    touch(w->stream, b->at, b->chunks, b->byte, 0);
    CHECK_RESULT(gpupool_free(arena, b->at, w->stream), GPUPOOL_OK);
    *held -= b->chunks;
    b->at = NULL;
}

/* Blocks of whole chunks: whatever is free can be stitched for them. */
static void *work(void *of) {
    worker *w = (worker *)of;
    held_block block[HELD] = {{NULL, 0, 0}};
    size_t held = 0;
    CHECK_EQ(cudaSetDevice(0), cudaSuccess);
    pthread_barrier_wait(&begun);
    for (int i = 0; i < ROUNDS && !atomic_load(&check_bad); i++) {
        held_block *b = &block[check_below(&w->random, HELD)];
        let_go(w, b, &held);
        if (held == MOST) continue;
        b->chunks = 1 + (size_t)check_below(&w->random, MOST - held);
        b->byte = (int)check_below(&w->random, 256);
        b->at = (char *)kit_alloc(arena, b->chunks * STRIPE, w->stream);
        if (!b->at) break;
        held += b->chunks;
        touch(w->stream, b->at, b->chunks, b->byte, 1);
        if (i % 8 == 0) CHECK_EQ(kit_size(arena, b->at), b->chunks * STRIPE);
    }
    for (int i = 0; i < HELD; i++) let_go(w, &block[i], &held);
    return NULL;
}

static void just_enough_for_all(int in_threads) {
    worker w[THREADS];
    gpupool_arena_config config = stripe_config();
    stripe_open_with(&config);
    pthread_barrier_init(&begun, NULL, THREADS);
    fake_mode(in_threads ? FAKE_THREADED : FAKE_EAGER);
    for (int i = 0; i < THREADS; i++) {
        w[i].stream = kit_stream[i];
        w[i].random = (uint64_t)i + 1;
        CHECK_EQ(pthread_create(&w[i].thread, NULL, work, &w[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) CHECK_EQ(pthread_join(w[i].thread, NULL), 0);
    pthread_barrier_destroy(&begun);
    CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
    fake_mode(FAKE_EAGER);
    gpupool_stats s = kit_stats(arena);
    CHECK_EQ(s.failures, 0);
    CHECK_EQ(s.blocks.now, LAID);
    CHECK(s.stitches > 0); /* every block of more than one chunk was */
    CHECK(s.reserved.peak <= STRIPES * STRIPE);
    stripe_close();
}

static void work_that_is_done_at_once(void) { just_enough_for_all(0); }
static void work_in_threads_of_its_own(void) { just_enough_for_all(1); }

/* Meanwhile the limit moves, and all that is idle is given back again and again. */
static atomic_int over;

static void *give_back(void *unused) {
    uint64_t random = 9;
    (void)unused;
    CHECK_EQ(cudaSetDevice(0), cudaSuccess);
    while (!atomic_load(&over)) {
        CHECK_RESULT(gpupool_trim(arena, check_below(&random, STRIPES) * STRIPE, NULL), GPUPOOL_OK);
        CHECK_RESULT(gpupool_set_limit(arena, (STRIPES + check_below(&random, 4)) * STRIPE),
                     GPUPOOL_OK);
        CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    }
    return NULL;
}

static void with_trims_meanwhile(void) {
    worker w[THREADS];
    pthread_t trimmer;
    gpupool_arena_config config = stripe_config();
    stripe_open_with(&config);
    pthread_barrier_init(&begun, NULL, THREADS);
    atomic_store(&over, 0);
    CHECK_EQ(pthread_create(&trimmer, NULL, give_back, NULL), 0);
    for (int i = 0; i < THREADS; i++) {
        w[i].stream = kit_stream[i];
        w[i].random = (uint64_t)i + 11;
        CHECK_EQ(pthread_create(&w[i].thread, NULL, work, &w[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) CHECK_EQ(pthread_join(w[i].thread, NULL), 0);
    pthread_barrier_destroy(&begun);
    atomic_store(&over, 1);
    CHECK_EQ(pthread_join(trimmer, NULL), 0);
    CHECK_EQ(kit_stats(arena).failures, 0);
    stripe_close();
}

#endif

int main(void) {
    FAKE_TEST(work_that_is_done_at_once);
    FAKE_TEST(work_in_threads_of_its_own);
    FAKE_TEST(with_trims_meanwhile);
    return check_finish();
}
