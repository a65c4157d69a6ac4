/* Arenas are made, break and are destroyed; blocks have the sizes, places and flags that were asked
   for. */
#include "gpupool.h"
#include "kit.h"

#define A kit_stream[0]
#define B kit_stream[1]

static gpupool_arena *arena;

/* NULL config means the current device, and a config's device is CUDA's ordinal. */
static void on_a_device(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_AUTO, 0);
    struct cudaPointerAttributes where;
    void *block;
    int count = 0;
    CHECK_EQ(cudaGetDeviceCount(&count), cudaSuccess);
    for (int i = 0; i < 2 * count; i++) {
        check_case("device %d, by %s", i / 2, i % 2 ? "config" : "cudaSetDevice");
        CHECK_EQ(cudaSetDevice(i % 2 ? 0 : i / 2), cudaSuccess);
        config.device = i / 2;
        arena = kit_create(i % 2 ? &config : NULL);
        CHECK_EQ(kit_stats(arena).reserved.now, 0);
        block = gpupool_alloc(arena, MIB, 0);
        CHECK(block);
        CHECK_EQ(cudaPointerGetAttributes(&where, block), cudaSuccess);
        CHECK_EQ(where.device, i / 2);
        kit_free(arena, block, 0);
        kit_close(arena);
    }
    CHECK_EQ(cudaSetDevice(0), cudaSuccess);
}

/* Destroy waits for the work of what was freed. */
static void destroy_waits_for_work(void) {
    arena = kit_open(0);
    kit_delay();
    kit_use(arena, 20 * MIB, A);
    CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_OK);
}

/* ---- blocks ---- */

/* Sizes around units, caches' largest block, granules and chunks. Blocks do not overlap: each keeps
   its own byte. */
static void sizes(void) {
    static const size_t edges[] = {1, 512, 16384, 65536, 2 << 20, 4 << 20, 32 << 20};
    void *blocks[KIT_COUNT(edges) * 3];
    size_t bytes[KIT_COUNT(blocks)], i;
    arena = kit_open(0);
    for (i = 0; i < KIT_COUNT(blocks); i++) {
        bytes[i] = edges[i / 3] + i % 3 - (edges[i / 3] > 1);
        check_case("%zu bytes", bytes[i]);
        blocks[i] = gpupool_alloc(arena, bytes[i], A);
        CHECK(blocks[i]);
        CHECK_EQ((uintptr_t)blocks[i] % 512, 0);
        kit_write(blocks[i], bytes[i], A, (int)i + 1);
    }
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    for (i = 0; i < KIT_COUNT(blocks); i++) {
        check_case("%zu bytes", bytes[i]);
        kit_verify(blocks[i], bytes[i], A, (int)i + 1);
        kit_free(arena, blocks[i], A);
    }
    kit_close(arena);
}

/* Every power of two. A cached block serves a later request only if it is aligned so. */
static void alignments(void) {
    void *blocks[16];
    int i;
    arena = kit_open(0);
    for (int power = 0; power <= 26; power++) {
        size_t alignment = (size_t)1 << power;
        check_case("alignment %zu", alignment);
        for (i = 0; i < 16; i++) {
            blocks[i] = kit_alloc_as(arena, 1000, i % 2 ? alignment : 1, A, 0);
            CHECK(blocks[i]);
            CHECK_EQ((uintptr_t)blocks[i] % (i % 2 ? alignment : 512), 0);
        }
        for (i = 0; i < 16; i++) kit_free(arena, blocks[i], A);
    }
    kit_close(arena);
}

/* Such a block shares its chunk with no other, so that the driver's ranges begin and end with it. A
   second one gets another chunk, although the first has room behind its block. */
static void own_chunks(void) {
    void *blocks[8], *after;
    arena = kit_open(0);
    for (int i = 0; i < 8; i++) {
        blocks[i] = kit_alloc_as(arena, 3 * MIB, 0, A, GPUPOOL_OWN_CHUNK);
        CHECK(blocks[i]);
        CHECK_EQ(kit_stats(arena).chunks, i + 1);
        CHECK_EQ(kit_stats(arena).reserved.now, (uint64_t)(i + 1) * 4 * MIB);
    }
    after = gpupool_alloc(arena, 512, A);
    for (int i = 0; i < 8; i++) {
        CHECK((char *)after < (char *)blocks[i] || (char *)after >= (char *)blocks[i] + 4 * MIB);
        kit_free(arena, blocks[i], A);
    }
    kit_free(arena, after, A);
    kit_close(arena);
}

/* Of a stitched block, too: its label, and what was asked for. */
static void described(void) {
    gpupool_request request = {20 * MIB - 100, 0, A, 0, "weights"};
    gpupool_block found;
    void *blocks[4], *large;
    arena = kit_open(40 * MIB);
    for (int i = 0; i < 4; i++) blocks[i] = gpupool_alloc(arena, 10 * MIB, A);
    kit_free(arena, blocks[0], A);
    kit_free(arena, blocks[2], A);
    large = gpupool_alloc_request(arena, &request);
    CHECK_EQ(kit_stats(arena).stitches, 1);
    CHECK_RESULT(gpupool_get_block(arena, (char *)large + 15 * MIB, &found), GPUPOOL_E_INSIDE);
    CHECK(large && found.memory == large);
    CHECK_RESULT(gpupool_get_block(arena, large, &found), GPUPOOL_OK);
    CHECK_EQ(found.requested, request.bytes);
    CHECK_EQ(found.bytes, 20 * MIB);
    CHECK(found.label && strcmp(found.label, "weights") == 0);
    kit_write(large, request.bytes, A, 3);
    kit_verify(large, request.bytes, A, 3);
    kit_free(arena, large, A);
    kit_free(arena, blocks[1], A);
    kit_free(arena, blocks[3], A);
    kit_close(arena);
}

/* ---- CUDA fails ---- */

#if CHECK_FAKE

/* Every request now fails so, with the first cause's name. */
static void is_broken(const char *cause) {
    KIT_FAILS(gpupool_alloc(arena, 1000, A), GPUPOOL_E_CUDA, cause);
    KIT_FAILS(gpupool_alloc(arena, 10 * MIB, GPUPOOL_NO_STREAM), GPUPOOL_E_CUDA, cause);
}

/* One call fails that can neither fail nor be undone: live blocks stay as they are, and the arena
   is ended with whatever is live, and with open scopes. */
static void broken(void) {
    gpupool_capture *scope = NULL;
    void *live, *small;
    arena = kit_open(0);
    live = gpupool_alloc(arena, 4 * MIB, A);
    small = gpupool_alloc(arena, 1000, A);
    CHECK_RESULT(gpupool_begin_capture(arena, B, &scope), GPUPOOL_OK);
    kit_use(arena, 20 * MIB, A);
    fake_fail_call("cuMemUnmap", 1, 0, 0);
    KIT_REFUSES(gpupool_trim(arena, 0), GPUPOOL_E_CUDA, "cuMemUnmap");
    is_broken("cuMemUnmap");
    kit_write(live, 4 * MIB, A, 1);
    kit_verify(live, 4 * MIB, A, 1);
    kit_free(arena, small, B);
    CHECK_EQ(kit_stats(arena).blocks, 1);
    is_broken("cuMemUnmap");
    CHECK(gpupool_arena_destroy(arena) != GPUPOOL_E_IN_USE);
    CHECK_EQ(cudaGetLastError(), cudaSuccess);
    CHECK_EQ(fake_failures(), 0);
    CHECK_EQ(fake_misuses(), 0);
    fake_fail_clear();
    memset(kit_stream, 0, sizeof kit_stream);
    fake_quiet(1); /* what CUDA kept is not the arena's fault */
    fake_reset();
    fake_quiet(0);
}

#endif

int main(void) {
    KIT_TEST(on_a_device);
    KIT_TEST(destroy_waits_for_work);
    KIT_TEST(sizes);
    KIT_TEST(alignments);
    KIT_TEST(own_chunks);
    KIT_TEST(described);
#if CHECK_FAKE
    KIT_TEST(broken);
#endif
    return check_finish();
}
