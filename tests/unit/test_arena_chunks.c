/* An arena's chunks: how large they may be, one that is coming and one that goes, those that a
   block has to itself, and those that sleep. */
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "arena_scene.h"

#if CHECK_FAKE

/* ---- their size ---- */

static void config_sizes_that_cannot_be(void) {
    for (int i = 0; i < 2; i++) {
        gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_DEVICE);
        if (i) config.chunk_bytes = ((size_t)1 << 48) + 1;
        else config.reserve_bytes = ((size_t)1 << 48) + 1;
        CHECK_RESULT(gpupool_arena_create(&arena, &config), GPUPOOL_E_ARGUMENT);
        CHECK(arena == NULL);
    }
}

/* 2^48 is one that can be; it is only more than there is. */
static void config_sizes_that_are_large(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_DEVICE);
    config.chunk_bytes = (size_t)1 << 48;
    arena = kit_create(&config);
    kit_close(arena);
    config.reserve_bytes = (size_t)1 << 48;
    CHECK_RESULT(gpupool_arena_create(&arena, &config), GPUPOOL_E_OUT_OF_MEMORY);
    CHECK(strstr(gpupool_last_error(), "config.reserve_bytes: ") == gpupool_last_error());
}

/* Reserved is all that was asked for, if not in whole units. */
static void a_reserve_of_odd_bytes(void) {
    static const gpupool_source sources[] = {GPUPOOL_SOURCE_MAPPED, GPUPOOL_SOURCE_DEVICE,
                                             GPUPOOL_SOURCE_PINNED};
    for (size_t i = 0; i < 3; i++) {
        gpupool_arena_config config = kit_config(sources[i]);
        config.reserve_bytes = 2 * MIB + 100;
        arena = kit_create(&config);
        CHECK(kit_stats(arena).reserved.now >= 2 * MIB + 100);
        kit_close(arena);
    }
}

/* ---- one that comes, one that goes ---- */

/* While the program is told of memory, a request waits for it that might just fit there. */
static void what_may_be_coming(void) {
    gpi_request request;
    arena = kit_open(GPUPOOL_SOURCE_DEVICE);
    void *block = get(512, 0);
    memset(&request, 0, sizeof request);
    request.bytes = kit_reserved(arena) - 512;
    gpi_host_lock(&arena->lock);
    CHECK(!gpi_alloc_is_coming(arena, &request));
    arena->chunks.telling = 1;
    CHECK(gpi_alloc_is_coming(arena, &request));
    request.bytes++;
    CHECK(!gpi_alloc_is_coming(arena, &request));
    arena->chunks.telling = 0;
    gpi_host_unlock(&arena->lock);
    put(block, 0);
    kit_close(arena);
}

/* A chunk that was divided for small blocks goes back once they are free. */
static void divided_for_small_blocks(void) {
    open_in_chunks(GPUPOOL_SOURCE_MAPPED, 8 * MIB);
    void *first = get(512, 0), *divided = get(512, 0);
    CHECK(arena->tree.slab_count > 0);
    put(first, 0);
    put(divided, 0);
    CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
    CHECK_EQ(kit_reserved(arena), 0);
    kit_close(arena);
}

/* ---- a block's own ---- */

/* A block that can be exported has whole chunks; a size that no block has is left as it is. */
static void the_size_of_what_can_be_exported(void) {
    const uint64_t most = (uint64_t)1 << 48;
    const uint64_t asked[] = {1, 2 * MIB, 2 * MIB + 1, most / 2 + 1, most, most + 1, 0, UINT64_MAX};
    const uint64_t given[] = {2 * MIB, 2 * MIB, 4 * MIB, most / 2 + 2 * MIB, most, most + 1, 0,
                              UINT64_MAX};
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    for (size_t i = 0; i < KIT_COUNT(asked); i++) {
        gpi_request request;
        uint64_t alignment = 512;
        check_case("%llu bytes", (unsigned long long)asked[i]);
        memset(&request, 0, sizeof request);
        request.bytes = asked[i];
        gpi_hand_choose_owners(arena, &request, GPUPOOL_EXPORTABLE, &alignment);
        CHECK_EQ(request.owners, GPI_OWNERS_WHOLE);
        CHECK_EQ(request.bytes, given[i]);
        CHECK_EQ(alignment, 2 * MIB);
    }
    kit_close(arena);
}

/* Each with a chunk of its own; it is found again beside the one had last, just below it. */
static void blocks_side_by_side(void) {
    void *block[3], *below;
    fake_packed(1);
    arena = kit_open(GPUPOOL_SOURCE_BYPASS);
    for (int i = 0; i < 3; i++) block[i] = get(4096, 0);
    CHECK_EQ((char *)block[2] - (char *)block[1], 4096);
    put(block[0], 0);
    below = get(4096, 0);
    CHECK(below == block[0]);
    put(block[1], 0);
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    CHECK_EQ(kit_size(arena, below), 4096);
    put(block[2], 0);
    put(below, 0);
    kit_close(arena);
}

static void a_chunk_that_cuda_refuses_is_freed(void) {
    char line[100];
    FILE *file = tmpfile();
    int frees = 0, others = 0;
    arena = kit_open(GPUPOOL_SOURCE_BYPASS);
    void *block = get(4096, 0);
    CHECK_RESULT(gpupool_set_trace(arena, file), GPUPOOL_OK);
    fake_fail_call("cuMemFree", 1, 0, 0);
    put(block, 0);
    CHECK_EQ(fake_fail_fired(), 1);
    fake_fail_clear();
    CHECK_RESULT(gpupool_set_trace(arena, NULL), GPUPOOL_OK);
    rewind(file);
    while (fgets(line, sizeof line, file)) {
        frees += !strncmp(line, "f ", 2);
        others += frees && !strncmp(line, "a ", 2);
    }
    CHECK_EQ(frees, 1);
    CHECK_EQ(others, 0);
    fclose(file);
    kit_close(arena);
}

/* Only the content of a block of this process sleeps: a closed arena's, or a parent's, is nobody's
   here. */
static void what_sleeps_elsewhere(void) {
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    void *block = get(4096, 0);
    CHECK_RESULT(gpupool_sleep(arena, GPUPOOL_ALL, GPUPOOL_DISCARD, NULL), GPUPOOL_OK);
    CHECK_RESULT(gpi_block_sleeps("upload", block), GPUPOOL_E_ASLEEP);
    arena->forks++;
    CHECK_RESULT(gpi_block_sleeps("upload", block), GPUPOOL_OK);
    arena->forks--;
    CHECK_RESULT(gpupool_wake(arena, GPUPOOL_ALL, NULL), GPUPOOL_OK);
    put(block, 0);
    kit_close(arena);
}
#endif

int main(void) {
    FAKE_TEST(config_sizes_that_cannot_be);
    FAKE_TEST(config_sizes_that_are_large);
    FAKE_TEST(a_reserve_of_odd_bytes);
    FAKE_TEST(what_may_be_coming);
    FAKE_TEST(divided_for_small_blocks);
    FAKE_TEST(the_size_of_what_can_be_exported);
    FAKE_TEST(blocks_side_by_side);
    FAKE_TEST(a_chunk_that_cuda_refuses_is_freed);
    FAKE_TEST(what_sleeps_elsewhere);
    return check_finish();
}
