/* While a poll asks CUDA after one stream, the next one in its list ends, and another stream gets
   the free list of that one. The other thread's part is done within CUDA's call, so that they
   always meet. */
// build: plain
// build: asan -fsanitize=address
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "arena_kit.h"

#if CHECK_FAKE

#define BYTES (2 * MIB)

static gpupool_arena *arena;
static char *part[2]; /* side by side; stream 2 frees them, by its first calls */

static gpi_stream *known(int stream) {
    return gpi_clock_find(&arena->clocks, gpi_clock_key(kit_stream[stream]));
}

static void put(void *block, int stream) {
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[stream]), GPUPOOL_OK);
}

/* Its work before the free is still to be done. */
static void work_and_put(void *block, int stream) {
    kit_fill(kit_stream[stream], block, 512, stream);
    put(block, stream);
}

/* Streams 0 and 1 have a mark each, and stream 3 is known. There is no other memory. */
static void open_full(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_DEVICE);
    void *block[3];
    config.chunk_bytes = config.limit_bytes = 8 * BYTES;
    arena = kit_create(&config);
    for (int i = 0; i < 2; i++) part[i] = (char *)kit_alloc(arena, BYTES, kit_stream[0]);
    CHECK(part[1] == part[0] + BYTES);
    for (int i = 0; i < 2; i++) block[i] = kit_alloc(arena, BYTES, kit_stream[i]);
    block[2] = kit_alloc(arena, 4 * BYTES, kit_stream[3]);
    CHECK_EQ(kit_reserved(arena), 8 * BYTES);
    fake_mode(FAKE_STEPPED);
    for (int i = 0; i < 2; i++) {
        work_and_put(block[i], i);
        CHECK(gpi_clock_mark(&arena->clocks, known(i), 0) != NULL);
    }
    put(block[2], 3);
}

/* As another thread. */
static void end_the_next(void *unused) {
    gpi_stream *ended = known(1);
    uint32_t list = ended->list;
    (void)unused;
    CHECK_RESULT(gpupool_retire_stream(arena, kit_stream[1]), GPUPOOL_OK);
    CHECK_RESULT(gpupool_wait_all(arena), GPUPOOL_OK);
    CHECK_EQ(ended->handle, 0);
    put(kit_alloc(arena, BYTES, kit_stream[0]), 0);
    CHECK_RESULT(gpupool_wait_all(arena), GPUPOOL_OK); /* it is behind what the ended one knew */
    work_and_put(part[0], 2);
    CHECK_EQ(known(2)->list, list);
    CHECK(gpi_clock_mark(&arena->clocks, known(2), 0) != NULL);
}

/* What a stream has freed can be had as soon as the mark behind it has passed, whatever it has
   freed since beside it. */
static void its_list_is_anothers(void) {
    void *rest[2];
    open_full();
    fake_before_call("cuEventQuery", 1, end_the_next, NULL);
    CHECK_RESULT(gpupool_retire_stream(arena, kit_stream[3]), GPUPOOL_OK); /* which polls */
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    int before = fake_pending(kit_stream[2]); /* the work on one part, and its mark */
    work_and_put(part[1], 2);
    CHECK(fake_pending(kit_stream[2]) > before);
    while (before--) CHECK_EQ(fake_step(kit_stream[2]), 1);
    rest[0] = kit_alloc(arena, 6 * BYTES, kit_stream[0]);
    long waits = fake_calls("cuStreamWaitEvent");
    rest[1] = kit_alloc(arena, BYTES, kit_stream[0]);
    CHECK(rest[1] == part[0]);
    CHECK_EQ(fake_calls("cuStreamWaitEvent"), waits);
    CHECK(fake_pending(kit_stream[2]) > 0);
    for (int i = 0; i < 2; i++) put(rest[i], 0);
    fake_mode(FAKE_EAGER);
    kit_close(arena);
}
#endif

int main(void) {
    FAKE_TEST(its_list_is_anothers);
    return check_finish();
}
