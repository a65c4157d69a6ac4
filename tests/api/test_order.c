/* The order of work: a stream has its own memory again at once; another one only behind that
   stream's work, as a mark on the device or a wait of the host says; and whoever names no stream
   only what has finished. The race oracle watches here and in tests/world; what is judged here is
   that nobody waits without need. */
#include "gpupool.h"
#include "kit.h"

#define SIZE (24 * MIB)
#define A kit_stream[0]
#define B kit_stream[1]

static gpupool_arena *arena; /* its limit admits one block of SIZE at a time */

static void begin(void) {
    arena = kit_open(SIZE);
}

/* Both streams have been seen, so that frees record marks. */
static void begin_shared(void) {
    begin();
    kit_free(arena, gpupool_alloc(arena, SIZE / 2, A), A);
    kit_free(arena, gpupool_alloc(arena, SIZE / 2, B), B);
    CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

static void *get(size_t bytes, cudaStream_t stream, int byte) {
    void *block = kit_alloc_as(arena, bytes, 0, stream, GPUPOOL_NO_WAIT);
    kit_write(block, bytes, stream, byte);
    return block;
}

static void host_never_waited(void) {
    CHECK_EQ(kit_stats(arena).host_waits, 0);
}

/* While the stream stands still, its own memory of every size goes round. */
static void own_memory_at_once(void) {
    static const size_t bytes[] = {1, 512, 16384, 16385, 1 << 20, 3 << 20, SIZE};
    begin();
    kit_free(arena, get(SIZE, A, 0), A);
    long driver_calls = (long)kit_stats(arena).driver_calls;
    kit_hold(A);
    for (size_t i = 0; i < KIT_COUNT(bytes); i++)
        for (int round = 0; round < 3; round++) {
            void *block = get(bytes[i], A, round);
            check_case("%zu bytes", bytes[i]);
            CHECK(block);
            kit_free(arena, block, A);
        }
    kit_let_go(A);
    host_never_waited();
    CHECK_EQ(kit_stats(arena).driver_calls, driver_calls);
    CHECK_EQ(kit_stats(arena).stream_waits, 0);
    kit_close(arena);
}

/* Another stream waits on the device, and the host for nobody. */
static void others_memory_behind_a_mark(void) {
    void *block;
    begin_shared();
    block = get(SIZE, A, 1);
    kit_hold(A);
    kit_write(block, SIZE, A, 2);
    kit_free(arena, block, A);
    block = get(SIZE, B, 3);
    CHECK(block);
    CHECK_EQ(kit_stats(arena).stream_waits, 1);
    host_never_waited();
    kit_let_go(A);
    kit_verify(block, SIZE, B, 3);
    kit_free(arena, block, B);
    kit_close(arena);
}

/* Memory whose work has finished passes to any stream without a wait of anybody. */
static void finished_memory(void) {
    void *block;
    begin_shared();
    kit_free(arena, get(SIZE, A, 1), A);
    CHECK_EQ(cudaStreamSynchronize(A), cudaSuccess);
    block = get(SIZE, B, 2);
    CHECK(block);
    CHECK_EQ(kit_stats(arena).stream_waits, 0);
    host_never_waited();
    kit_verify(block, SIZE, B, 2);
    kit_free(arena, block, B);
    kit_close(arena);
}

/* The default stream, by its two names, is one stream. */
static void legacy_stream(void) {
    void *block;
    begin();
    block = get(SIZE, 0, 1);
    CHECK(block);
    kit_free(arena, block, cudaStreamLegacy);
    block = get(SIZE, 0, 2);
    CHECK(block);
    host_never_waited();
    kit_free(arena, block, 0);
    kit_close(arena);
}

/* ---- record_stream ---- */

/* The owner's next request may not have the block while the recorded stream uses it. */
static void recorded_stream(void) {
    void *block;
    begin();
    block = get(SIZE, A, 1);
    kit_follow(B, A);
    kit_hold(B);
    kit_write(block, SIZE, B, 2);
    CHECK_RESULT(gpupool_record_stream(arena, block, B), GPUPOOL_OK);
    kit_free(arena, block, A);
    CHECK_EQ(kit_stats(arena).pending.now, SIZE);
    CHECK(!get(SIZE, GPUPOOL_NO_STREAM, 3)); /* B could only be waited for by the host */
    CHECK_EQ(gpupool_last_result(), GPUPOOL_E_OUT_OF_MEMORY);
    CHECK_EQ(gpupool_last_verdict()->cause, GPUPOOL_CAUSE_PENDING);
    block = get(SIZE, A, 4); /* A waits for it on the device */
    CHECK(block);
    CHECK_EQ(kit_stats(arena).stream_waits, 1);
    host_never_waited();
    kit_let_go(B);
    kit_verify(block, SIZE, A, 4);
    kit_free(arena, block, A);
    kit_close(arena);
}

/* ---- programs that go on for ever ---- */

/* What one stream makes, another reads, and the first frees: once the reader has read, the memory
   is the maker's again, though no mark is behind its free. */
static void made_and_read(void) {
    arena = kit_open(0);
    for (int i = 0; i < 200; i++) {
        void *block = get(4 * MIB, A, i);
        kit_follow(B, A);
        kit_verify(block, 4 * MIB, B, i);
        CHECK_RESULT(gpupool_record_stream(arena, block, B), GPUPOOL_OK);
        kit_free(arena, block, A);
        CHECK_EQ(cudaStreamSynchronize(B), cudaSuccess);
    }
    CHECK(kit_stats(arena).reserved.peak <= 16 * MIB);
    host_never_waited();
    kit_close(arena);
}

/* One stream allocates, another frees, for ever: what the second has freed serves the first again
   and again. So it does requests without a stream. */
static void handed_on(void) {
    for (int with_stream = 0; with_stream < 2; with_stream++) {
        uint64_t seed = 1;
        arena = kit_open(0);
        for (int i = 0; i < 4000; i++) {
            size_t bytes = 64 * KIB + check_below(&seed, 4 * MIB);
            void *block = gpupool_alloc(arena, bytes, with_stream ? A : GPUPOOL_NO_STREAM);
            CHECK(block);
            kit_follow(B, A);
            kit_write(block, 64, B, i);
            kit_free(arena, block, B);
            CHECK_EQ(cudaStreamSynchronize(B), cudaSuccess);
        }
        CHECK(kit_stats(arena).reserved.peak <= 24 * MIB);
        host_never_waited();
        kit_close(arena);
    }
}

/* Two streams have all the memory that the limit allows in turn. Once marks serve them, the host
   waits no more, however long that goes on. */
static void to_and_fro(void) {
    uint64_t waits = 0;
    arena = kit_open(2 * MIB);
    for (int i = 0; i < 4000; i++) {
        void *block = gpupool_alloc(arena, 2 * MIB, i % 2 ? A : B);
        CHECK(block);
        kit_free(arena, block, i % 2 ? A : B);
        CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
        if (i == 10) waits = kit_stats(arena).host_waits;
    }
    CHECK_EQ(kit_stats(arena).host_waits, waits);
    kit_close(arena);
}

/* The reader's mark moves with each use that is recorded, and the host waits only now and then:
   what the older mark covers passes all the same. */
static void marks_that_move(void) {
    uint64_t seed = 1;
    arena = kit_open(0);
    kit_delay();
    for (int i = 0; i < 4000; i++) {
        void *block = gpupool_alloc(arena, 1 + check_below(&seed, 2000000), A);
        CHECK(block);
        kit_follow(B, A);
        CHECK_EQ(cudaMemsetAsync(block, 1, 1, B), cudaSuccess);
        CHECK_RESULT(gpupool_record_stream(arena, block, B), GPUPOOL_OK);
        kit_free(arena, block, A);
        if (i % 16 == 15) CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
    }
    CHECK(kit_stats(arena).reserved.peak <= 96 * MIB);
    host_never_waited();
    kit_close(arena);
}

/* ---- without a stream ---- */

/* What is freed so is finished: every stream has it at once, and no call waits. */
static void freed_without_a_stream(void) {
    static const size_t bytes[] = {SIZE, 1000, 20000};
    begin();
    for (int i = 0; i < 12; i++) {
        cudaStream_t stream = i & 1 ? GPUPOOL_NO_STREAM : kit_stream[i % KIT_STREAMS];
        cudaStream_t work = i & 1 ? B : stream;
        void *block = kit_alloc_as(arena, bytes[i % 3], 0, stream, GPUPOOL_NO_WAIT);
        check_case("round %d", i);
        CHECK(block);
        kit_write(block, bytes[i % 3], work, i);
        CHECK_EQ(cudaStreamSynchronize(work), cudaSuccess);
        kit_free(arena, block, GPUPOOL_NO_STREAM);
        CHECK_EQ(kit_stats(arena).pending.now, 0);
    }
    host_never_waited();
    CHECK_EQ(kit_stats(arena).stream_waits, 0);
    CHECK_EQ(kit_stats(arena).reserved.peak, SIZE);
    kit_close(arena);
}

static void *freed;

static void free_it(void *user) {
    CHECK_RESULT(gpupool_free_in_host_function((gpupool_arena *)user, freed), GPUPOOL_OK);
}

/* Nor does anybody wait for what a host function has freed. */
static void in_a_host_function(void) {
    static const size_t bytes[] = {1000, 100000, SIZE};
    begin();
    for (size_t i = 0; i < KIT_COUNT(bytes); i++) {
        check_case("%zu bytes", bytes[i]);
        freed = get(bytes[i], A, 1);
        CHECK_EQ(cudaLaunchHostFunc(A, free_it, arena), cudaSuccess);
        CHECK_EQ(cudaStreamSynchronize(A), cudaSuccess);
        CHECK_EQ(kit_stats(arena).blocks, 0);
        CHECK_EQ(kit_stats(arena).pending.now, 0);
        kit_use(arena, SIZE, B);
        CHECK_EQ(cudaStreamSynchronize(B), cudaSuccess);
    }
    host_never_waited();
    kit_close(arena);
}

/* A request waits for work whose host function frees what it lacks. */
static void in_one_under_way(void) {
    void *other;
    begin();
    kit_delay();
    freed = get(SIZE / 4 * 3, A, 1);
    other = get(SIZE / 8, A, 1);
    CHECK_EQ(cudaLaunchHostFunc(A, free_it, arena), cudaSuccess);
    kit_write(other, SIZE / 8, A, 2);
    kit_free(arena, other, A);
    kit_use(arena, SIZE, B);
    CHECK_EQ(kit_stats(arena).failures, 0);
    kit_close(arena);
}

/* It makes no CUDA call, as CUDA's host functions must not. A second free is refused, now or when
   the first is carried out: never is a block lost or two. */
static void posted_twice(void) {
    void *first, *second;
    long calls;
    begin();
    freed = gpupool_alloc(arena, SIZE / 2, A);
    calls = kit_calls();
    free_it(arena);
    gpupool_free_in_host_function(arena, freed);
    CHECK_EQ(kit_stats(arena).frees, 1);
    CHECK_EQ(kit_calls(), calls);
    first = get(SIZE / 2, A, 1);
    second = get(SIZE / 2, A, 1);
    CHECK(first && second && first != second);
    kit_free(arena, first, A);
    kit_free(arena, second, A);
    kit_close(arena);
}

int main(void) {
    KIT_TEST(own_memory_at_once);
    KIT_TEST(others_memory_behind_a_mark);
    KIT_TEST(finished_memory);
    KIT_TEST(legacy_stream);
    KIT_TEST(recorded_stream);
    KIT_TEST(made_and_read);
    KIT_TEST(handed_on);
    KIT_TEST(to_and_fro);
    KIT_TEST(marks_that_move);
    KIT_TEST(freed_without_a_stream);
    KIT_TEST(in_a_host_function);
    KIT_TEST(in_one_under_way);
    KIT_TEST(posted_twice);
    return check_finish();
}
