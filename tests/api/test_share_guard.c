/* Exported blocks with a guard behind them: the guard is no part of the block that is exported, and
   a free that is refused fills nothing. */
// build: guard -DGPUPOOL_GUARD=1
// build: check3 -DGPUPOOL_CHECK=3
#define _DEFAULT_SOURCE
#include "gpupool.h"
#include "share_kit.h"

#define BYTES (4 * MIB)

static void a_refused_free_fills_nothing(void) {
    share_open(0, 0);
    char *block = share_get(BYTES);
    kit_fill(kit_stream[0], block, BYTES, 5);
    gpupool_exported exported = share_exported(block);
    CHECK_EQ(exported.bytes, BYTES + SHARE_GRANULE);
    CHECK_EQ(kit_size(arena, block), BYTES + SHARE_GRANULE - 512);
    for (int i = 0; i < 2; i++) {
        CHECK_RESULT(gpupool_free(arena, block, kit_stream[i]), GPUPOOL_E_IN_USE);
        kit_expect(kit_stream[0], block, BYTES, 5);
    }
    gpupool_imported imported = share_imported(0, &exported);
    kit_expect(kit_stream[0], imported.memory, BYTES, 5);
    CHECK_EQ(cudaStreamSynchronize(kit_stream[0]), cudaSuccess);
    share_unimport(&imported);
    share_unexport(block);
    share_put(block);
    kit_close(arena);
}

/* The guard is still there after the free that was refused. */
static void the_guard_stays(void) {
    share_open(0, 0);
    char *block = share_get(BYTES);
    share_exported(block);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_E_IN_USE);
    kit_fill(kit_stream[0], block + kit_size(arena, block), 4, 0);
    share_unexport(block);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_E_OVERRUN);
    kit_close(arena);
}

/* What is not exported is guarded and filled as ever, while another block is. */
static void beside_an_exported_block(void) {
    share_open(0, 0);
    char *exported = share_get(BYTES), *block = (char *)share_any(3000);
    share_exported(exported);
    kit_fill(kit_stream[0], block + 3000, 1, 7);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_E_OVERRUN);
    kit_expect(kit_stream[0], block, 3000, 0xdd);
    share_unexport(exported);
    share_put(exported);
    kit_close(arena);
}

/* With its guard, the longest block would be longer than a block may be. No device has so much. */
static void as_long_as_a_block_can_be(void) {
    size_t most = (size_t)1 << 48;
    share_open(0, 0);
    for (size_t less = 0; less < 3 * SHARE_GRANULE; less += SHARE_GRANULE / 2 + 1) {
        gpupool_request request = kit_request(most - less, kit_stream[0], GPUPOOL_EXPORTABLE);
        check_case("%zu less", less);
        CHECK(gpupool_alloc_request(arena, &request) == NULL);
        CHECK_RESULT(gpupool_last_result(), GPUPOOL_E_OUT_OF_MEMORY);
    }
    kit_close(arena);
}

int main(void) {
    SHARE_TEST(a_refused_free_fills_nothing);
    SHARE_TEST(the_guard_stays);
    SHARE_TEST(beside_an_exported_block);
    SHARE_TEST(as_long_as_a_block_can_be);
    return check_finish();
}
