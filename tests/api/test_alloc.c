/* Blocks: sizes, alignments, flags, and what a block is asked for. */
#include "gpupool.h"
#include "kit.h"

/* Sizes around units, caches' largest block, granules and chunks. Blocks do not overlap: each keeps
   its own byte. */
static void sizes(void) {
    static const size_t edges[] = {1, 512, 16384, 65536, 2 << 20, 4 << 20, 32 << 20};
    gpupool_arena *arena = kit_open(0);
    void *blocks[KIT_COUNT(edges) * 3];
    size_t bytes[KIT_COUNT(blocks)], i;
    for (i = 0; i < KIT_COUNT(blocks); i++) {
        bytes[i] = edges[i / 3] + i % 3 - (edges[i / 3] > 1);
        check_case("%zu bytes", bytes[i]);
        blocks[i] = gpupool_alloc(arena, bytes[i], kit_stream[0]);
        CHECK(blocks[i]);
        CHECK_EQ((uintptr_t)blocks[i] % 512, 0);
        kit_write(blocks[i], bytes[i], kit_stream[0], (int)i + 1);
    }
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    for (i = 0; i < KIT_COUNT(blocks); i++) {
        check_case("%zu bytes", bytes[i]);
        kit_verify(blocks[i], bytes[i], kit_stream[0], (int)i + 1);
        kit_free(arena, blocks[i], kit_stream[0]);
    }
    kit_close(arena);
}

/* Every power of two, in an arena whose memory is in pieces by then. */
static void alignments(void) {
    gpupool_arena *arena = kit_open(0);
    void *blocks[64];
    int count = 0, power, i;
    for (power = 0; power <= 26; power++) {
        size_t alignment = (size_t)1 << power;
        check_case("alignment %zu", alignment);
        for (i = 0; i < 2; i++) {
            void *block = kit_alloc_as(arena, 3000, alignment, kit_stream[0], 0);
            CHECK(block);
            CHECK_EQ((uintptr_t)block % alignment, 0);
            kit_write(block, 3000, kit_stream[0], count);
            blocks[count++] = block;
        }
    }
    while (count--) {
        kit_verify(blocks[count], 3000, kit_stream[0], count);
        kit_free(arena, blocks[count], kit_stream[0]);
    }
    kit_close(arena);
}

/* A block of an earlier alignment that is freed serves a later one only if it is aligned so. */
static void alignment_of_cached_blocks(void) {
    gpupool_arena *arena = kit_open(0);
    void *blocks[64];
    int i;
    for (i = 0; i < 64; i++) blocks[i] = gpupool_alloc(arena, 1000, kit_stream[0]);
    for (i = 0; i < 64; i++) kit_free(arena, blocks[i], kit_stream[0]);
    for (i = 0; i < 64; i++) {
        blocks[i] = kit_alloc_as(arena, 1000, 8192, kit_stream[0], 0);
        CHECK(blocks[i]);
        CHECK_EQ((uintptr_t)blocks[i] % 8192, 0);
    }
    for (i = 0; i < 64; i++) kit_free(arena, blocks[i], kit_stream[0]);
    kit_close(arena);
}

static void zeroed_on(gpupool_arena *arena, size_t bytes, cudaStream_t stream) {
    cudaStream_t work = stream == GPUPOOL_NO_STREAM ? kit_stream[1] : stream;
    void *block = gpupool_alloc(arena, bytes, work);
    kit_write(block, bytes, work, 0xff); /* so that it is not zero by chance */
    kit_free(arena, block, work);
    CHECK_EQ(cudaStreamSynchronize(work), cudaSuccess);
    block = kit_alloc_as(arena, bytes, 0, stream, GPUPOOL_ZEROED);
    CHECK(block);
    kit_verify(block, bytes, work, 0);
    kit_free(arena, block, stream);
}

static void zeroed(void) {
    static const size_t bytes[] = {1, 513, 16384, 100000, 5 << 20};
    gpupool_arena *arena = kit_open(0);
    for (size_t i = 0; i < KIT_COUNT(bytes); i++) {
        check_case("%zu bytes", bytes[i]);
        zeroed_on(arena, bytes[i], kit_stream[0]);
        zeroed_on(arena, bytes[i], 0);
        zeroed_on(arena, bytes[i], GPUPOOL_NO_STREAM);
    }
    kit_close(arena);
}

/* Such a block shares its chunk with no other, so that the driver's ranges begin and end with it.
 */
static void own_chunk(void) {
    gpupool_arena *arena = kit_open(0);
    void *before = gpupool_alloc(arena, 1000, kit_stream[0]), *block, *after;
    uint64_t chunks = kit_stats(arena).chunks, reserved = kit_stats(arena).reserved.now;
    block = kit_alloc_as(arena, 3 * MIB, 0, kit_stream[0], GPUPOOL_OWN_CHUNK);
    CHECK(block);
    CHECK_EQ(kit_stats(arena).chunks, chunks + 1);
    CHECK_EQ(kit_stats(arena).reserved.now, reserved + 4 * MIB);
    after = gpupool_alloc(arena, 512, kit_stream[0]);
    CHECK((char *)after < (char *)block || (char *)after >= (char *)block + 4 * MIB);
    kit_write(block, 3 * MIB, kit_stream[0], 9);
    kit_verify(block, 3 * MIB, kit_stream[0], 9);
    kit_free(arena, after, kit_stream[0]);
    kit_free(arena, block, kit_stream[0]);
    kit_free(arena, before, kit_stream[0]);
    kit_close(arena);
}

/* A second one gets another chunk, although the first has room behind its block. */
static void own_chunks(void) {
    gpupool_arena *arena = kit_open(0);
    void *blocks[8];
    int i;
    for (i = 0; i < 8; i++) {
        blocks[i] = kit_alloc_as(arena, 512, 0, kit_stream[0], GPUPOOL_OWN_CHUNK);
        CHECK(blocks[i]);
        CHECK_EQ(kit_stats(arena).chunks, i + 1);
    }
    for (i = 0; i < 8; i++) kit_free(arena, blocks[i], kit_stream[0]);
    kit_close(arena);
}

/* Under a label, and as it was asked for. */
static void described(void) {
    gpupool_arena *arena = kit_open(0);
    gpupool_request request = {700, 0, kit_stream[0], 0, "weights"};
    void *block = gpupool_alloc_request(arena, &request);
    gpupool_block found;
    CHECK_RESULT(gpupool_get_block(arena, block, &found), GPUPOOL_OK);
    CHECK(found.memory == block);
    CHECK_EQ(found.requested, 700);
    CHECK_EQ(found.bytes, 1024);
    CHECK(found.label && strcmp(found.label, "weights") == 0);
    memset(&found, 0, sizeof found);
    KIT_REFUSES(gpupool_get_block(arena, (char *)block + 600, &found), GPUPOOL_E_INSIDE, "inside");
    CHECK(found.memory == block);
    CHECK_EQ(found.requested, 700);
    kit_free(arena, block, kit_stream[0]);
    KIT_REFUSES(gpupool_get_block(arena, &request, &found), GPUPOOL_E_NOT_OURS, "");
    kit_close(arena);
}

/* A stitched block is described, and freed, as any other. */
static void described_if_stitched(void) {
    gpupool_arena *arena = kit_open(40 * MIB);
    gpupool_block found;
    void *blocks[4], *large;
    int i;
    for (i = 0; i < 4; i++) blocks[i] = gpupool_alloc(arena, 10 * MIB, kit_stream[0]);
    kit_free(arena, blocks[0], kit_stream[0]);
    kit_free(arena, blocks[2], kit_stream[0]);
    large = gpupool_alloc(arena, 20 * MIB - 100, kit_stream[0]);
    CHECK(large);
    CHECK_EQ(kit_stats(arena).stitches, 1);
    CHECK_RESULT(gpupool_get_block(arena, large, &found), GPUPOOL_OK);
    CHECK_EQ(found.requested, 20 * MIB - 100);
    CHECK_EQ(found.bytes, 20 * MIB);
    CHECK_RESULT(gpupool_get_block(arena, (char *)large + 15 * MIB, &found), GPUPOOL_E_INSIDE);
    CHECK(found.memory == large);
    kit_write(large, 20 * MIB - 100, kit_stream[0], 3);
    kit_verify(large, 20 * MIB - 100, kit_stream[0], 3);
    kit_free(arena, large, kit_stream[0]);
    kit_free(arena, blocks[1], kit_stream[0]);
    kit_free(arena, blocks[3], kit_stream[0]);
    kit_close(arena);
}

int main(void) {
    KIT_TEST(sizes);
    KIT_TEST(alignments);
    KIT_TEST(alignment_of_cached_blocks);
    KIT_TEST(zeroed);
    KIT_TEST(own_chunk);
    KIT_TEST(own_chunks);
    KIT_TEST(described);
    KIT_TEST(described_if_stitched);
    return check_finish();
}
