/* Streams end: their memory passes when their work has finished, and a handle that comes again
   means another stream. */
#include "gpupool.h"
#include "kit.h"

#define SIZE (24 * MIB)
#define A kit_stream[0]
#define B kit_stream[1]

static gpupool_arena *arena; /* its limit admits one block of SIZE at a time */

static void begin(void) {
    arena = kit_open(SIZE);
}

static void *get(size_t bytes, cudaStream_t stream) {
    return kit_alloc_as(arena, bytes, 0, stream, GPUPOOL_NO_WAIT);
}

/* Ends a stream with whatever it has queued. */
static void retire(cudaStream_t *stream) {
    CHECK_RESULT(gpupool_retire_stream(*stream), GPUPOOL_OK);
    CHECK_EQ(cudaStreamDestroy(*stream), cudaSuccess);
    *stream = NULL;
}

static void memory_passes_on(void) {
    static const size_t bytes[] = {1000, 50000, SIZE};
    for (size_t i = 0; i < KIT_COUNT(bytes); i++) {
        cudaStream_t stream;
        void *block;
        check_case("%zu bytes", bytes[i]);
        begin();
        CHECK_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
        block = get(bytes[i], stream);
        kit_write(block, bytes[i], stream, 1);
        kit_free(arena, block, stream);
        retire(&stream);
        block = gpupool_alloc(arena, SIZE, B);
        CHECK(block);
        kit_write(block, SIZE, B, 2);
        kit_verify(block, SIZE, B, 2);
        kit_free(arena, block, B);
        kit_close(arena);
    }
}

/* The work goes on when its stream has been destroyed; until then nobody gets the memory. */
static void work_goes_on(void) {
#if CHECK_FAKE
    cudaStream_t stream;
    void *block;
    begin();
    fake_mode(FAKE_STEPPED);
    CHECK_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    block = get(SIZE, stream);
    kit_write(block, SIZE, stream, 1);
    kit_free(arena, block, stream);
    retire(&stream);
    block = get(SIZE, GPUPOOL_NO_STREAM);
    CHECK(!block);
    fake_run_all();
    block = gpupool_alloc(arena, SIZE, GPUPOOL_NO_STREAM);
    CHECK(block);
    fake_host_access(block, SIZE, 1, "any use");
    kit_free(arena, block, GPUPOOL_NO_STREAM);
    kit_close(arena);
#endif
}

/* CUDA gives the handle of a destroyed stream to the very next new one, whose work is not ordered
   behind the old one's. */
static void handle_comes_again(void) {
    cudaStream_t stream, old;
    void *block, *next;
    int rounds = 0;
    begin();
    do {
        CHECK_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
        block = get(1000, stream);
        kit_write(block, 1000, stream, 1);
        kit_free(arena, block, stream);
        old = stream;
        retire(&stream);
        CHECK_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
        next = gpupool_alloc(arena, 1000, stream);
        kit_write(next, 1000, stream, 2);
        kit_verify(next, 1000, stream, 2);
        kit_free(arena, next, stream);
        if (stream == old) rounds++;
        retire(&stream);
    } while (rounds && rounds < 5);
#if CHECK_FAKE
    CHECK_EQ(rounds, 5);
#endif
    CHECK_EQ(kit_stats(arena).blocks, 0);
    kit_close(arena);
}

/* In each arena, one call. A stream that no arena knows is no mistake. */
static void in_all_arenas(void) {
    gpupool_arena *other;
    cudaStream_t stream;
    begin();
    other = kit_open(SIZE);
    CHECK_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    CHECK_RESULT(gpupool_retire_stream(stream), GPUPOOL_OK);
    kit_free(arena, get(SIZE, stream), stream);
    kit_free(other, kit_alloc_as(other, SIZE, 0, stream, GPUPOOL_NO_WAIT), stream);
    retire(&stream);
    kit_free(arena, gpupool_alloc(arena, SIZE, B), B);
    kit_free(other, gpupool_alloc(other, SIZE, B), B);
    kit_close(other);
    kit_close(arena);
}

/* Blocks outlive the stream that they were allocated on; so does a recorded use. */
static void blocks_live_on(void) {
    cudaStream_t stream;
    void *block, *used;
    begin();
    CHECK_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    block = get(1000, stream);
    used = get(SIZE / 2, B);
    kit_follow(stream, B);
    kit_write(block, 1000, stream, 1);
    kit_write(used, SIZE / 2, stream, 2);
    CHECK_RESULT(gpupool_record_stream(arena, used, stream), GPUPOOL_OK);
    kit_follow(B, stream);
    retire(&stream);
    kit_verify(block, 1000, B, 1);
    kit_free(arena, block, B);
    kit_free(arena, used, B);
    block = gpupool_alloc(arena, SIZE, B);
    CHECK(block);
    kit_write(block, SIZE, B, 3);
    kit_free(arena, block, B);
    kit_close(arena);
}

/* Ten thousand streams that come and go need no more records than a few. */
static void many_streams(void) {
    uint64_t host = 0;
    begin();
    for (int i = 0; i < (CHECK_FAKE ? 10000 : 1000); i++) {
        cudaStream_t stream;
        void *block;
        CHECK_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
        block = get(1000, stream);
        CHECK(block);
        kit_write(block, 1000, stream, i);
        kit_free(arena, block, stream);
        CHECK_EQ(cudaStreamSynchronize(stream), cudaSuccess);
        retire(&stream);
        if (i == 100) host = kit_stats(arena).host;
    }
    CHECK_EQ(kit_stats(arena).host, host);
    CHECK(kit_stats(arena).reserved.now <= 4 * MIB);
    kit_close(arena);
}

/* Default streams have no end, and lose nothing by the attempt. */
static void default_streams(void) {
    void *block;
    begin();
    block = get(SIZE, 0);
    kit_write(block, SIZE, 0, 1);
    kit_free(arena, block, 0);
    KIT_REFUSES(gpupool_retire_stream(0), GPUPOOL_E_ARGUMENT, "stream");
    block = gpupool_alloc(arena, SIZE, cudaStreamPerThread);
    CHECK(block);
    kit_write(block, SIZE, cudaStreamPerThread, 2);
    kit_free(arena, block, cudaStreamPerThread);
    CHECK_RESULT(gpupool_retire_stream(cudaStreamPerThread), GPUPOOL_OK); /* the thread may end */
    block = gpupool_alloc(arena, SIZE, 0);
    CHECK(block);
    kit_write(block, SIZE, 0, 3);
    kit_free(arena, block, 0);
    kit_close(arena);
}

int main(void) {
    KIT_TEST(memory_passes_on);
    KIT_FAKE_TEST(work_goes_on);
    KIT_TEST(handle_comes_again);
    KIT_TEST(in_all_arenas);
    KIT_TEST(blocks_live_on);
    KIT_TEST(many_streams);
    KIT_TEST(default_streams);
    return check_finish();
}
