/* A trim gives idle chunks back one by one, with the arena's lock open for each; another thread
   takes the memory of the next one meanwhile: within CUDA's call, so that they always meet. */
// build: plain
// build: asan -fsanitize=address
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "arena_kit.h"

#if CHECK_FAKE

#define CHUNK (2 * MIB)
enum { CHUNKS = 3 };

static gpupool_arena *arena;
static void *taken;

/* As another thread. */
static void take_the_next(void *unused) {
    (void)unused;
    taken = kit_alloc(arena, CHUNK, kit_stream[1]);
    kit_mark(kit_stream[1], taken, CHUNK, 5);
}

static void an_idle_chunk_is_taken(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
    void *block[CHUNKS];
    size_t released = 0;
    config.chunk_bytes = CHUNK;
    arena = kit_create(&config);
    for (int i = 0; i < CHUNKS; i++) block[i] = kit_alloc(arena, CHUNK, kit_stream[0]);
    for (int i = 0; i < CHUNKS; i++)
        CHECK_RESULT(gpupool_free(arena, block[i], kit_stream[0]), GPUPOOL_OK);
    CHECK_EQ(kit_reserved(arena), CHUNKS * CHUNK);
    CHECK_RESULT(gpupool_wait_all(arena), GPUPOOL_OK);
    taken = NULL;
    fake_before_call("cuMemUnmap", 1, take_the_next, NULL);
    CHECK_RESULT(gpupool_trim(arena, 0, &released), GPUPOOL_OK);
    CHECK(taken != NULL);
    CHECK_EQ(kit_reserved(arena), CHUNK);
    CHECK_EQ(released, (CHUNKS - 1) * CHUNK);
    CHECK_EQ(fake_mappings(), 1);
    kit_expect_mark(kit_stream[1], taken, CHUNK, 5);
    CHECK_EQ(fake_failures(), 0);
    CHECK_RESULT(gpupool_free(arena, taken, kit_stream[1]), GPUPOOL_OK);
    kit_close(arena);
}

static void *grown;

/* Once: it gets more than the trim gives back. */
static int grow_meanwhile(const gpupool_mapping *mapping, void *unused) {
    (void)mapping, (void)unused;
    if (!grown) grown = kit_alloc(arena, 8 * CHUNK, kit_stream[1]);
    return 0;
}

/* What the arena has in the end is more than at first: nothing was released. */
static void the_arena_grows(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
    size_t released = 1;
    config.chunk_bytes = CHUNK;
    config.on_unmap = grow_meanwhile;
    arena = kit_create(&config);
    void *block = kit_alloc(arena, CHUNK, kit_stream[0]);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
    CHECK_RESULT(gpupool_wait_all(arena), GPUPOOL_OK);
    grown = NULL;
    CHECK_RESULT(gpupool_trim(arena, 0, &released), GPUPOOL_OK);
    CHECK(grown != NULL);
    CHECK_EQ(released, 0);
    CHECK_RESULT(gpupool_free(arena, grown, kit_stream[1]), GPUPOOL_OK);
    kit_close(arena);
}
#endif

int main(void) {
    FAKE_TEST(an_idle_chunk_is_taken);
    FAKE_TEST(the_arena_grows);
    return check_finish();
}
