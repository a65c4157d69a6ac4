/* GPUPOOL_NO_STREAM, and blocks that are freed in CUDA's host functions. */
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

/* New memory is finished memory: nothing waits, and any stream may use it at once. */
static void new_memory(void) {
    void *block;
    begin();
    block = get(SIZE, GPUPOOL_NO_STREAM);
    CHECK(block);
    kit_write(block, SIZE, B, 1);
    kit_verify(block, SIZE, B, 1);
    kit_free(arena, block, GPUPOOL_NO_STREAM);
    CHECK_EQ(kit_stats(arena).host_waits, 0);
    CHECK_EQ(kit_stats(arena).pending.now, 0);
    kit_close(arena);
}

/* What is freed so is finished: every stream has it at once, and no call waits. */
static void freed_memory(void) {
    begin();
    for (int i = 0; i < 12; i++) {
        size_t bytes = i % 3 ? (i % 3 == 1 ? 1000 : 20000) : SIZE;
        cudaStream_t stream = i & 1 ? GPUPOOL_NO_STREAM : kit_stream[i % KIT_STREAMS];
        cudaStream_t work = i & 1 ? B : stream;
        void *block = get(bytes, stream);
        check_case("round %d", i);
        CHECK(block);
        kit_write(block, bytes, work, i);
        CHECK_EQ(cudaStreamSynchronize(work), cudaSuccess);
        kit_free(arena, block, GPUPOOL_NO_STREAM);
        CHECK_EQ(kit_stats(arena).pending.now, 0);
    }
    CHECK_EQ(kit_stats(arena).host_waits, 0);
    CHECK_EQ(kit_stats(arena).stream_waits, 0);
    CHECK_EQ(kit_stats(arena).reserved.peak, SIZE);
    kit_close(arena);
}

/* A request without a stream has nobody who could wait on the device for it. */
static void unfinished_memory(void) {
    void *block;
    begin();
    block = gpupool_alloc(arena, SIZE, A);
    kit_hold(A);
    kit_write(block, SIZE, A, 1);
    kit_free(arena, block, A);
    CHECK(!get(SIZE, GPUPOOL_NO_STREAM));
    CHECK_EQ(gpupool_last_result(), GPUPOOL_E_OUT_OF_MEMORY);
    CHECK_EQ(gpupool_last_verdict()->cause, GPUPOOL_CAUSE_PENDING);
    kit_let_go(A);
    block = gpupool_alloc(arena, SIZE, GPUPOOL_NO_STREAM); /* it may wait, */
    CHECK(block);
    kit_write(block, SIZE, B, 2);
    kit_free(arena, block, B);
    CHECK_EQ(cudaStreamSynchronize(B), cudaSuccess);
    block = gpupool_alloc(arena, SIZE, GPUPOOL_NO_STREAM); /* and B has said that it is done */
    CHECK(block);
    kit_free(arena, block, GPUPOOL_NO_STREAM);
    kit_close(arena);
}

/* The wait of a request without a stream covers the work of the memory that it gets. */
static void waits_for_work(void) {
    void *block;
    begin();
    block = get(SIZE, A);
    kit_write(block, SIZE, A, 1);
    kit_free(arena, block, A);
    block = gpupool_alloc(arena, SIZE, GPUPOOL_NO_STREAM);
    CHECK(block);
    kit_write(block, SIZE, B, 2);
    kit_verify(block, SIZE, B, 2);
    kit_free(arena, block, B);
    kit_close(arena);
}

/* ---- host functions ---- */

static void *freed;

static void free_it(void *user) {
    CHECK_RESULT(gpupool_free_in_host_function((gpupool_arena *)user, freed), GPUPOOL_OK);
}

static void free_behind(cudaStream_t stream, void *block) {
    freed = block;
    CHECK_EQ(cudaLaunchHostFunc(stream, free_it, arena), cudaSuccess);
    CHECK_EQ(cudaStreamSynchronize(stream), cudaSuccess);
}

static void in_a_host_function(void) {
    static const size_t bytes[] = {1000, 100000, SIZE};
    begin();
    for (size_t i = 0; i < KIT_COUNT(bytes); i++) {
        void *block = get(bytes[i], A);
        check_case("%zu bytes", bytes[i]);
        kit_write(block, bytes[i], A, 1);
        free_behind(A, block);
        CHECK_EQ(kit_stats(arena).blocks, 0);
        CHECK_EQ(kit_stats(arena).pending.now, 0);
        block = get(SIZE, B); /* its work has finished: any stream has it */
        CHECK(block);
        kit_write(block, SIZE, B, 2);
        kit_free(arena, block, B);
        CHECK_EQ(cudaStreamSynchronize(B), cudaSuccess);
    }
    CHECK_EQ(kit_stats(arena).host_waits, 0);
    CHECK_RESULT(gpupool_free(arena, freed, A), GPUPOOL_E_DOUBLE_FREE);
    kit_close(arena);
}

/* Recorded streams are waited for as ever. (On a GPU the kit holds a stream by a host
   function, and CUDA runs one at a time.) */
static void in_a_host_function_if_recorded(void) {
    void *block;
    begin();
    block = get(SIZE, A);
    kit_write(block, SIZE, A, 1);
    kit_follow(B, A);
    kit_hold(B);
    kit_write(block, SIZE, B, 2);
    CHECK_RESULT(gpupool_record_stream(arena, block, B), GPUPOOL_OK);
    free_behind(A, block);
    CHECK_EQ(kit_stats(arena).pending.now, SIZE);
    CHECK(!get(SIZE, GPUPOOL_NO_STREAM)); /* B could only be waited for by the host */
    block = get(SIZE, A);                 /* A waits for it on the device */
    CHECK(block);
    CHECK_EQ(kit_stats(arena).stream_waits, 1);
    kit_write(block, SIZE, A, 3);
    kit_let_go(B);
    kit_verify(block, SIZE, A, 3);
    kit_free(arena, block, A);
    kit_close(arena);
}

/* It makes no CUDA call, as CUDA's host functions must not. */
static void without_a_cuda_call(void) {
    void *block;
    long calls;
    begin();
    block = get(SIZE, A);
    calls = kit_calls();
    CHECK_RESULT(gpupool_free_in_host_function(arena, block), GPUPOOL_OK);
    CHECK_EQ(kit_calls(), calls);
    CHECK_EQ(kit_stats(arena).blocks, 0);
    CHECK_EQ(kit_calls(), calls);
    kit_close(arena);
}

/* A second free is refused, now or when the first is carried out: never is a block lost or two. */
static void freed_twice(void) {
    void *block, *first, *second;
    begin();
    block = get(SIZE / 2, A);
    CHECK_RESULT(gpupool_free_in_host_function(arena, block), GPUPOOL_OK);
    gpupool_free_in_host_function(arena, block);
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    CHECK_EQ(kit_stats(arena).frees, 1);
    first = get(SIZE / 2, A);
    second = get(SIZE / 2, A);
    CHECK(first && second && first != second);
    kit_free(arena, first, A);
    kit_free(arena, second, A);
    kit_close(arena);
}

int main(void) {
    KIT_TEST(new_memory);
    KIT_TEST(freed_memory);
    KIT_TEST(unfinished_memory);
    KIT_TEST(waits_for_work);
    KIT_TEST(in_a_host_function);
    KIT_FAKE_TEST(in_a_host_function_if_recorded);
    KIT_TEST(without_a_cuda_call);
    KIT_TEST(freed_twice);
    return check_finish();
}
