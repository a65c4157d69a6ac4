/* Arenas are made and destroyed. */
#include "gpupool.h"
#include "kit.h"

static void without_a_config(void) {
    gpupool_arena *arena = kit_create(NULL);
    gpupool_stats stats = kit_stats(arena);
    void *block = gpupool_alloc(arena, 1, kit_stream[0]);
    CHECK_EQ(stats.reserved.now, 0);
    CHECK_EQ(stats.limit, 0);
    CHECK(block);
    kit_write(block, 1, kit_stream[0], 1);
    kit_free(arena, block, kit_stream[0]);
    kit_close(arena);
}

/* NULL config means the current device, and a config's device is CUDA's ordinal. */
static void on_a_device(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_AUTO, 0);
    struct cudaPointerAttributes where;
    gpupool_arena *arena;
    void *block;
    int count = 0;
    CHECK_EQ(cudaGetDeviceCount(&count), cudaSuccess);
    for (int i = 0; i < 2 * count; i++) {
        check_case("device %d, by %s", i / 2, i % 2 ? "config" : "cudaSetDevice");
        CHECK_EQ(cudaSetDevice(i % 2 ? 0 : i / 2), cudaSuccess);
        config.device = i / 2;
        arena = kit_create(i % 2 ? &config : NULL);
        block = gpupool_alloc(arena, MIB, 0);
        CHECK(block);
        CHECK_EQ(cudaPointerGetAttributes(&where, block), cudaSuccess);
        CHECK_EQ(where.device, i / 2);
        kit_free(arena, block, 0);
        kit_close(arena);
    }
    CHECK_EQ(cudaSetDevice(0), cudaSuccess);
}

static void refused(const gpupool_arena_config *config, const char *word) {
    gpupool_arena *arena = (gpupool_arena *)(void *)&arena; /* must be set to NULL */
    KIT_REFUSES(gpupool_arena_create(&arena, config), GPUPOOL_E_ARGUMENT, word);
    CHECK(!arena);
}

static void *chunk_alloc(size_t bytes, void *user) {
    (void)bytes, (void)user;
    return NULL;
}

static void chunk_free(void *chunk, size_t bytes, void *user) {
    (void)chunk, (void)bytes, (void)user;
}

static void wrong_configs(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_AUTO, 0);
    KIT_REFUSES(gpupool_arena_create(NULL, NULL), GPUPOOL_E_ARGUMENT, "arena");
    config.device = -1;
    refused(&config, "device");
    config.device = 1000;
    refused(&config, "device");
    config = kit_config((gpupool_source)99, 0);
    refused(&config, "source");
    config = kit_config(GPUPOOL_SOURCE_MAPPED, 0);
    config.chunk_bytes = SIZE_MAX;
    refused(&config, "chunk_bytes");
    config.chunk_bytes = 0;
    config.share = 8;
    refused(&config, "share");
    config = kit_config(GPUPOOL_SOURCE_PINNED, 0);
    config.share = GPUPOOL_SHARE_PROCESSES;
    refused(&config, "share");
    config = kit_config(GPUPOOL_SOURCE_CUSTOM, 0);
    refused(&config, "chunk_alloc");
    config.chunk_alloc = chunk_alloc;
    refused(&config, "chunk_free");
    config.chunk_alloc = NULL;
    config.chunk_free = chunk_free;
    refused(&config, "chunk_alloc");
}

static void name_is_copied(void) {
    char name[] = "a name";
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_AUTO, 0);
    gpupool_arena *arena;
    config.name = name;
    arena = kit_create(&config);
    memset(name, 'x', sizeof name - 1);
    kit_close(arena);
}

/* While blocks are live nothing is destroyed, and the arena goes on. */
static void not_while_in_use(void) {
    gpupool_arena *arena = kit_open(0);
    void *small = gpupool_alloc(arena, 100, kit_stream[0]);
    void *large = gpupool_alloc(arena, 20 * MIB, kit_stream[0]);
    KIT_REFUSES(gpupool_arena_destroy(arena), GPUPOOL_E_IN_USE, "2");
    kit_free(arena, large, kit_stream[0]);
    KIT_REFUSES(gpupool_arena_destroy(arena), GPUPOOL_E_IN_USE, "1");
    kit_write(small, 100, kit_stream[0], 5);
    kit_verify(small, 100, kit_stream[0], 5);
    CHECK_EQ(kit_stats(arena).blocks, 1);
    kit_free(arena, small, kit_stream[0]);
    kit_close(arena);
}

static void of_nothing(void) {
    KIT_REFUSES(gpupool_arena_destroy(NULL), GPUPOOL_E_ARGUMENT, "arena");
}

/* Destroy waits for the work of what was freed. */
static void waits_for_work(void) {
    gpupool_arena *arena = kit_open(0);
    void *block = gpupool_alloc(arena, 20 * MIB, kit_stream[0]);
#if CHECK_FAKE
    fake_mode(FAKE_STEPPED);
#endif
    kit_write(block, 20 * MIB, kit_stream[0], 1);
    kit_free(arena, block, kit_stream[0]);
    CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_OK);
}

int main(void) {
    KIT_TEST(without_a_config);
    KIT_TEST(on_a_device);
    KIT_TEST(wrong_configs);
    KIT_TEST(name_is_copied);
    KIT_TEST(not_while_in_use);
    KIT_TEST(of_nothing);
    KIT_TEST(waits_for_work);
    return check_finish();
}
