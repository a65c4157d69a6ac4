// build: tsan -fsanitize=thread -DROUNDS=400
/* Programs that go on for ever hold no more after many rounds than after a few: blocks with chunks
   of their own, threads and streams that come and go, and threads that share a limit. */
#define _GNU_SOURCE
#include "gpupool.h"
#include "kit.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#define A kit_stream[0]
#ifndef ROUNDS
#define ROUNDS 2000
#endif

static gpupool_arena *arena;

static void own_chunk(size_t bytes) {
    void *block = kit_alloc_as(arena, bytes, 0, A, GPUPOOL_OWN_CHUNK);
    CHECK(block);
    kit_write(block, bytes, A, 1);
    kit_free(arena, block, A);
}

/* On one stream the order of the stream is enough: no wait, and no second chunk. */
static void own_chunk_of_one_size(void) {
    arena = kit_open(0);
    kit_hold(A); /* nothing finishes meanwhile */
    for (int i = 0; i < ROUNDS / 8; i++) own_chunk(4 * MIB);
    kit_let_go(A);
    CHECK_EQ(kit_stats(arena).reserved.peak, 4 * MIB);
    CHECK_EQ(kit_stats(arena).host_waits, 0);
    kit_close(arena);
}

/* Chunks of other sizes make room. */
static void own_chunks_of_all_sizes(void) {
    gpupool_source source = GPUPOOL_SOURCE_MAPPED;
    for (; source <= GPUPOOL_SOURCE_PINNED; source++) {
        gpupool_arena_config config = kit_config(source, 0);
        check_case("source %d", (int)source);
        arena = kit_create(&config);
        for (int i = 0; i < ROUNDS / 8; i++) {
            own_chunk(MIB + (size_t)(i * 7919 % 4001) * KIB);
            if (i % 8 == 7) CHECK_EQ(cudaStreamSynchronize(A), cudaSuccess);
        }
        CHECK(kit_stats(arena).reserved.peak <= 128 * MIB); /* of 750 */
        kit_close(arena);
    }
}

/* A thread frees in its own default stream, and ends: nobody can record a mark there any more. If
   it says so before, nobody waits. */
static void *task(void *user) {
    kit_use(arena, 3 * MIB, cudaStreamPerThread);
    if (user) CHECK_RESULT(gpupool_retire_stream(cudaStreamPerThread), GPUPOOL_OK);
    return NULL;
}

static void run_tasks(void *user) {
    arena = kit_open(0);
    for (int i = 0; i < ROUNDS / 4; i++) {
        pthread_t thread;
        CHECK_EQ(pthread_create(&thread, NULL, task, user), 0);
        CHECK_EQ(pthread_join(thread, NULL), 0);
    }
}

static void threads_that_end(void) {
    run_tasks(NULL);
    CHECK(kit_stats(arena).reserved.peak <= 48 * MIB);
    CHECK(kit_stats(arena).host_waits < ROUNDS / 4 / 4); /* several share one */
    kit_close(arena);
}

static void threads_that_retire_their_stream(void) {
    run_tasks(&arena);
    CHECK(kit_stats(arena).reserved.peak <= 16 * MIB);
    CHECK_EQ(kit_stats(arena).host_waits, 0);
    kit_close(arena);
}

/* Streams that come and go have memory of their own, and use a block that stays: each leaves a use,
   but no event, and no more records than a few do. */
static void streams_that_come_and_go(void) {
    void *block;
    long events = 0;
    uint64_t host = 0;
    arena = kit_open(0);
    block = gpupool_alloc(arena, MIB, A);
    kit_write(block, MIB, A, 1);
    CHECK_EQ(cudaStreamSynchronize(A), cudaSuccess);
    for (int i = 0; i < ROUNDS; i++) {
        cudaStream_t stream = kit_new_stream();
        kit_use(arena, 1000, stream);
        kit_verify(block, MIB, stream, 1);
        CHECK_RESULT(gpupool_record_stream(arena, block, stream), GPUPOOL_OK);
        CHECK_RESULT(gpupool_retire_stream(stream), GPUPOOL_OK);
        CHECK_EQ(cudaStreamDestroy(stream), cudaSuccess);
        if (i != ROUNDS / 10) continue;
        host = kit_stats(arena).host;
#if CHECK_FAKE
        events = fake_live_objects();
#endif
    }
#if CHECK_FAKE
    CHECK(fake_live_objects() <= events);
#endif
    (void)events;
    CHECK_EQ(kit_stats(arena).host, host);
    CHECK(kit_stats(arena).reserved.now <= 4 * MIB);
    kit_free(arena, block, A);
    kit_close(arena);
}

/* A stream retires in each arena by one call. One that no arena knows is no mistake. */
static void in_all_arenas(void) {
    cudaStream_t stream = kit_new_stream();
    gpupool_arena *other = kit_open(24 * MIB);
    arena = kit_open(24 * MIB);
    CHECK_RESULT(gpupool_retire_stream(stream), GPUPOOL_OK);
    kit_delay();
    kit_use(arena, 24 * MIB, stream);
    kit_use(other, 24 * MIB, stream);
    CHECK_RESULT(gpupool_retire_stream(stream), GPUPOOL_OK);
    CHECK_EQ(cudaStreamDestroy(stream), cudaSuccess);
    if (CHECK_FAKE) /* its work is under way */
        CHECK(!kit_alloc_as(arena, 24 * MIB, 0, GPUPOOL_NO_STREAM, GPUPOOL_NO_WAIT));
    kit_use(arena, 24 * MIB, A); /* A waits for it */
    kit_use(other, 24 * MIB, A);
    kit_close(other);
    kit_close(arena);
}

/* Threads with streams of their own share a limit that has room for what all of them hold: a
   request may wait, but fails for no memory that another thread has just freed. */
#define HELD 2

static void *share(void *user) {
    cudaStream_t stream = *(cudaStream_t *)user;
    void *held[HELD] = {NULL};
    uint64_t seed = (uint64_t)((cudaStream_t *)user - kit_stream);
    for (int i = 0; i < ROUNDS / 2; i++) {
        size_t bytes = KIB << check_below(&seed, 13);
        int at = i % HELD;
        kit_free(arena, held[at], stream);
        held[at] = gpupool_alloc(arena, bytes, stream);
        if (!held[at]) check_fail(__FILE__, __LINE__, "%s", gpupool_last_error());
        kit_write(held[at], bytes, stream, i & 255);
    }
    for (int i = 0; i < HELD; i++) kit_free(arena, held[i], stream);
    return NULL;
}

static void run_threads(void *(*body)(void *)) { /* each with a stream of its own */
    pthread_t thread[KIT_STREAMS];
#if CHECK_FAKE
    fake_mode(FAKE_THREADED);
#endif
    for (int i = 0; i < KIT_STREAMS; i++)
        CHECK_EQ(pthread_create(&thread[i], NULL, body, &kit_stream[i]), 0);
    for (int i = 0; i < KIT_STREAMS; i++) CHECK_EQ(pthread_join(thread[i], NULL), 0);
}

static void threads_share_a_limit(void) {
    arena = kit_open(2 * KIT_STREAMS * HELD * 4 * MIB);
    run_threads(share);
    CHECK_EQ(kit_stats(arena).failures, 0);
    kit_close(arena);
}

/* Where a source may wait, it gets chunks with the arena's lock open: what is under way counts. */
static pthread_barrier_t together;
static size_t wanted;

static void *slow_chunk(size_t bytes, void *user) {
    void *chunk = NULL;
    (void)user;
    usleep(2000);
    return cudaMalloc(&chunk, bytes) == cudaSuccess ? chunk : NULL;
}

static void end_chunk(void *chunk, size_t bytes, void *user) {
    (void)bytes;
    (void)user;
    CHECK_EQ(cudaFree(chunk), cudaSuccess);
}

static void *grow(void *user) {
    cudaStream_t stream = *(cudaStream_t *)user;
    void *block;
    pthread_barrier_wait(&together);
    block = gpupool_alloc(arena, wanted, stream);
    pthread_barrier_wait(&together);
    kit_free(arena, block, stream);
    return NULL;
}

static int is_part(const gpupool_part *part, void *user) {
    (void)user;
    return !CHECK(part->bytes > 0);
}

static void *walk(void *user) {
    while (!atomic_load((atomic_int *)user))
        CHECK_RESULT(gpupool_walk_blocks(arena, is_part, NULL), GPUPOOL_OK);
    return NULL;
}

/* Two have room, in chunks that are no multiple of 2 MiB; and where a chunk takes all of the limit,
   one has, for all: the others wait for it. */
static void threads_that_grow_at_once(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_CUSTOM, 32 * MIB);
    pthread_t walker;
    CHECK_EQ(pthread_barrier_init(&together, NULL, KIT_STREAMS), 0);
    config.chunk_alloc = slow_chunk;
    config.chunk_free = end_chunk;
    for (wanted = 15 * MIB + 512; wanted; wanted = wanted > MIB ? MIB : 0) {
        atomic_int is_over = 0;
        check_case("%zu bytes", wanted);
        arena = kit_create(&config);
        CHECK_EQ(pthread_create(&walker, NULL, walk, &is_over), 0);
        run_threads(grow);
        atomic_store(&is_over, 1);
        CHECK_EQ(pthread_join(walker, NULL), 0);
        CHECK_EQ(kit_stats(arena).reserved.peak, wanted == MIB ? 32 * MIB : 2 * wanted);
        CHECK_EQ(kit_stats(arena).failures, wanted == MIB ? 0 : KIT_STREAMS - 2);
        kit_close(arena);
        config.chunk_bytes = 32 * MIB;
    }
    CHECK_EQ(pthread_barrier_destroy(&together), 0);
}

int main(void) {
    KIT_TEST(own_chunk_of_one_size);
    KIT_TEST(own_chunks_of_all_sizes);
    KIT_TEST(threads_that_end);
    KIT_TEST(threads_that_retire_their_stream);
    KIT_TEST(streams_that_come_and_go);
    KIT_TEST(in_all_arenas);
    KIT_TEST(threads_share_a_limit);
    KIT_TEST(threads_that_grow_at_once);
    return check_finish();
}
