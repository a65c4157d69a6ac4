/* gpupool_alloc_request: all that can be asked for with a block, on every source; and the promise
   of GPUPOOL_ONE_CHUNK, which others check by cuMemGetAddressRange. */
// build: plain
// build: asan -fsanitize=address,undefined
// build: sites -DGPUPOOL_SITES=1
// build: check2 -O1 -DGPUPOOL_CHECK=2
#include "gpupool.h"
#include "arena_kit.h"

#include <cuda.h>

static gpupool_arena *arena;

static void put(void *block) {
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
}

/* ---- each thing that can be asked for ---- */

static void zeros_ask_for_what_alloc_gives(void) {
    for (size_t i = 0; i < KIT_SOURCES; i++) {
        check_case("%s", kit_sources[i].name);
        arena = kit_open(kit_sources[i].source);
        void *block = kit_alloc_as(arena, 5000, kit_stream[0], 0);
        CHECK_RESULT(kit_why(block), GPUPOOL_OK);
        CHECK_EQ((uintptr_t)block % 512, 0);
        CHECK_EQ(kit_size(arena, block), 5000);
        put(block);
        kit_close(arena);
    }
}

static void zeroed_and_aligned_together(void) {
    for (size_t i = 0; i < KIT_SOURCES; i++) {
        check_case("%s", kit_sources[i].name);
        arena = kit_open(kit_sources[i].source);
        void *dirty = kit_alloc(arena, 100000, kit_stream[0]);
        kit_fill(kit_stream[0], dirty, 100000, 7);
        put(dirty);
        gpupool_request request = kit_request(70000, kit_stream[0], GPUPOOL_ZEROED);
        request.alignment = 65536;
        void *block = gpupool_alloc_request(arena, &request);
        CHECK_RESULT(kit_why(block), GPUPOOL_OK);
        CHECK_EQ((uintptr_t)block % 65536, 0);
        kit_expect(kit_stream[0], block, 70000, 0);
        put(block);
        kit_close(arena);
    }
}

static void alignment_of_zero_is_a_unit(void) {
    arena = kit_open(GPUPOOL_SOURCE_AUTO);
    void *block = gpupool_alloc_aligned(arena, 100, 0, kit_stream[0]);
    CHECK_RESULT(kit_why(block), GPUPOOL_OK);
    put(block);
    kit_close(arena);
}

static void refused(const gpupool_request *request, const char *words) {
    gpupool_stats before = kit_stats(arena);
    CHECK(gpupool_alloc_request(arena, request) == NULL);
    CHECK_RESULT(gpupool_last_result(), GPUPOOL_E_ARGUMENT);
    CHECK(strstr(gpupool_last_error(), words) != NULL);
    CHECK_EQ(kit_stats(arena).reserved.now, before.reserved.now);
    CHECK_EQ(kit_stats(arena).failures, before.failures + 1); /* whatever is wrong */
}

static void mistakes_are_named(void) {
    gpupool_request request = kit_request(100, kit_stream[0], 16);
    arena = kit_open(GPUPOOL_SOURCE_AUTO);
    refused(NULL, "request is NULL");
    refused(&request, "request.flags is 0x10");
    request = kit_request(100, kit_stream[0], GPUPOOL_EXPORTABLE);
    refused(&request, "GPUPOOL_EXPORTABLE is for arenas with GPUPOOL_SHARE_PROCESSES");
    request = kit_request(100, kit_stream[0], 0);
    request.tag = 7;
    refused(&request, "tag is 7");
    request = kit_request(0, kit_stream[0], 0);
    refused(&request, "bytes is 0");
    request = kit_request(100, kit_stream[0], GPUPOOL_ONE_CHUNK);
    request.alignment = 3000;
    refused(&request, "alignment is 3000");
    kit_close(arena);
    request = kit_request(100, kit_stream[0], 0);
    CHECK(gpupool_alloc_request(NULL, &request) == NULL);
    CHECK_RESULT(gpupool_last_result(), GPUPOOL_E_ARGUMENT);
}

#if GPUPOOL_SITES
static void the_line_is_the_requests(void) {
    gpupool_block found;
    arena = kit_open(GPUPOOL_SOURCE_AUTO);
    void *named = kit_alloc_at(arena, 100, kit_stream[0], "model.c", 88);
    void *here = gpupool_zalloc(arena, 100, kit_stream[0]); /* a macro */
    int line = __LINE__ - 1;
    CHECK_RESULT(gpupool_get_block(arena, named, &found), GPUPOOL_OK);
    CHECK(strcmp(found.file, "model.c") == 0);
    CHECK_EQ(found.line, 88);
    CHECK_RESULT(gpupool_get_block(arena, here, &found), GPUPOOL_OK);
    CHECK(strstr(found.file, "test_requests.c") != NULL);
    CHECK_EQ(found.line, line);
    put(named);
    put(here);
    kit_close(arena);
}
#endif

/* ---- one chunk ---- */

typedef CUresult(CUDAAPI *range_fn)(CUdeviceptr *, size_t *, CUdeviceptr);

/* Whether the block lies in one allocation, as CUDA tells others. */
static int is_in_one(const void *block, size_t bytes) {
    CUdeviceptr base = 0, at = (CUdeviceptr)(uintptr_t)block;
    enum cudaDriverEntryPointQueryResult found;
    size_t size = 0;
    range_fn range = NULL;
    CHECK_EQ(cudaGetDriverEntryPointByVersion("cuMemGetAddressRange", (void **)&range, 12000,
                                              cudaEnableDefault, &found), cudaSuccess);
    CHECK_EQ(range(&base, &size, at), CUDA_SUCCESS);
    return at >= base && at + bytes <= base + size;
}

static gpupool_arena *open_with_chunks(size_t chunk, size_t limit) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
    config.chunk_bytes = chunk;
    config.limit_bytes = limit;
    return kit_create(&config);
}

/* Blocks side by side in chunks of 2 MiB, all free but for the last. */
static void *free_chunks(size_t count) {
    void *blocks[64];
    for (size_t i = 0; i < count; i++) blocks[i] = kit_alloc(arena, 2 * MIB, kit_stream[0]);
    for (size_t i = 0; i + 1 < count; i++) put(blocks[i]);
    kit_finish(arena);
    return blocks[count - 1];
}

static void free_memory_of_one_chunk_serves(void) {
    static const size_t sizes[] = {1, 4096, 64 * KIB, MIB, MIB + 512, 2 * MIB - 1024, 2 * MIB};
    for (size_t i = 0; i < KIT_COUNT(sizes); i++) {
        void *blocks[7];
        check_case("%zu bytes", sizes[i]);
        arena = open_with_chunks(2 * MIB, 0);
        void *last = free_chunks(8);
        for (size_t k = 0; k < KIT_COUNT(blocks); k++) {
            blocks[k] = kit_alloc_as(arena, sizes[i], kit_stream[0], GPUPOOL_ONE_CHUNK);
            CHECK_RESULT(kit_why(blocks[k]), GPUPOOL_OK);
            CHECK(is_in_one(blocks[k], sizes[i]));
            kit_mark(kit_stream[0], blocks[k], sizes[i], (int)k);
        }
        CHECK_EQ(kit_reserved(arena), 16 * MIB);
        for (size_t k = 0; k < KIT_COUNT(blocks); k++) {
            kit_expect_mark(kit_stream[0], blocks[k], sizes[i], (int)k);
            put(blocks[k]);
        }
        put(last);
        kit_close(arena);
    }
}

#if CHECK_FAKE
/* Runs side by side in one chunk make the block, though one is anybody's, and the other the
   stream's own, with work at it: the host waits for nothing. */
static void runs_side_by_side(void) {
    void *large, *small, *whole;
    arena = open_with_chunks(4 * MIB, 4 * MIB);
    large = kit_alloc(arena, 3 * MIB, kit_stream[0]);
    small = kit_alloc(arena, MIB, kit_stream[1]); /* with two streams not all neighbours join */
    put(large);
    CHECK_RESULT(gpupool_wait_all(arena), GPUPOOL_OK);
    fake_mode(FAKE_STEPPED);
    kit_mark(kit_stream[0], small, MIB, 1);
    put(small);
    uint64_t waits = kit_stats(arena).host_syncs;
    whole = kit_alloc_as(arena, 4 * MIB, kit_stream[0], GPUPOOL_ONE_CHUNK);
    CHECK_RESULT(kit_why(whole), GPUPOOL_OK);
    CHECK(is_in_one(whole, 4 * MIB));
    CHECK_EQ(kit_stats(arena).host_syncs, waits);
    CHECK(fake_pending(kit_stream[0]) > 0);
    put(whole);
    fake_run_all();
    fake_mode(FAKE_EAGER);
    kit_close(arena);
}
#endif

/* Free memory that is enough, but in several chunks, is left alone; the new chunk is as large as
   the block. */
static void a_larger_block_gets_a_chunk_of_its_own(void) {
    for (size_t bytes = 3 * MIB; bytes < 100 * MIB; bytes = 2 * bytes + 512) {
        check_case("%zu bytes", bytes);
        arena = open_with_chunks(2 * MIB, 0);
        void *last = free_chunks(8);
        void *block = kit_alloc_as(arena, bytes, kit_stream[0], GPUPOOL_ONE_CHUNK | GPUPOOL_ZEROED);
        CHECK_RESULT(kit_why(block), GPUPOOL_OK);
        CHECK(is_in_one(block, bytes));
        CHECK(kit_reserved(arena) <= 16 * MIB + bytes + 2 * MIB);
        kit_expect_mark(kit_stream[0], block, bytes, 0);
        put(block);
        kit_finish(arena);
        CHECK(kit_alloc_as(arena, bytes, kit_stream[0], GPUPOOL_ONE_CHUNK) == block);
        put(block);
        put(last);
        kit_close(arena);
    }
}

static void other_sources_have_no_other_blocks(void) {
    for (size_t i = 0; i < KIT_SOURCES; i++) {
        check_case("%s", kit_sources[i].name);
        arena = kit_open(kit_sources[i].source);
        void *block = kit_alloc_as(arena, 5 * MIB, kit_stream[0], GPUPOOL_ONE_CHUNK);
        CHECK_RESULT(kit_why(block), GPUPOOL_OK);
        kit_mark(kit_stream[0], block, 5 * MIB, 1);
        if (kit_sources[i].source != GPUPOOL_SOURCE_PINNED) CHECK(is_in_one(block, 5 * MIB));
        put(block);
        kit_close(arena);
    }
}

/* Idle chunks are given back for one that is large enough. */
static void idle_chunks_make_room(void) {
    arena = open_with_chunks(2 * MIB, 16 * MIB);
    void *last = free_chunks(8);
    void *block = kit_alloc_as(arena, 14 * MIB, kit_stream[0], GPUPOOL_ONE_CHUNK);
    CHECK_RESULT(kit_why(block), GPUPOOL_OK);
    CHECK(is_in_one(block, 14 * MIB));
    put(block);
    put(last);
    kit_close(arena);
}

/* The limit leaves no room, and what is free is in several chunks. The verdict says so; what it
   advises helps. */
static void the_verdict_knows_of_chunks(void) {
    void *blocks[16];
    gpupool_verdict why;
    arena = open_with_chunks(2 * MIB, 16 * MIB);
    for (size_t i = 0; i < 16; i++) blocks[i] = kit_alloc(arena, MIB, kit_stream[0]);
    for (size_t i = 0; i < 15; i++) /* the end of one chunk, the start of the next */
        if (i % 4 == 1 || i % 4 == 2) put(blocks[i]);
    kit_finish(arena);
    CHECK(kit_fits(arena, 2 * MIB, NULL));
    CHECK(kit_alloc_as(arena, 2 * MIB, kit_stream[0], GPUPOOL_ONE_CHUNK) == NULL);
    CHECK_RESULT(gpupool_last_result(), GPUPOOL_E_OUT_OF_MEMORY);
    CHECK_RESULT(gpupool_last_verdict(&why), GPUPOOL_OK);
    CHECK_EQ(why.cause, GPUPOOL_CAUSE_FRAGMENTED);
    CHECK(strstr(why.sentence, "in one chunk") != NULL);
    CHECK_EQ(why.fits_bytes, MIB);
    CHECK_RESULT(gpupool_set_limit(arena, (size_t)(why.limit_bytes + why.raise_bytes)), GPUPOOL_OK);
    void *block = kit_alloc_as(arena, 2 * MIB, kit_stream[0], GPUPOOL_ONE_CHUNK);
    CHECK_RESULT(kit_why(block), GPUPOOL_OK);
    if (block) put(block);
    for (size_t i = 0; i < 16; i++)
        if (i == 15 || (i % 4 != 1 && i % 4 != 2)) put(blocks[i]);
    kit_close(arena);
}

/* Random sizes and frees: each such block is in one chunk, and nothing else changes. */
static void whatever_memory_looks_like(void) {
    uint64_t random = 5;
    void *blocks[64] = {0};
    size_t sizes[64];
    int marks[64];
    arena = open_with_chunks(0, 256 * MIB);
    for (int step = 0; step < 4000; step++) {
        size_t i = check_below(&random, 64);
        if (blocks[i]) {
            kit_expect_mark(kit_stream[0], blocks[i], sizes[i], marks[i]);
            put(blocks[i]);
            blocks[i] = NULL;
            continue;
        }
        unsigned flags = check_below(&random, 2) ? GPUPOOL_ONE_CHUNK : 0;
        sizes[i] = 1 + (size_t)check_below(&random, (uint64_t)1 << (9 + check_below(&random, 16)));
        marks[i] = step % 251;
        blocks[i] = kit_alloc_as(arena, sizes[i], kit_stream[0], flags);
        if (!blocks[i]) continue;
        if (flags) CHECK(is_in_one(blocks[i], sizes[i]));
        kit_mark(kit_stream[0], blocks[i], sizes[i], marks[i]);
    }
    for (int i = 0; i < 64; i++)
        if (blocks[i]) put(blocks[i]);
    kit_close(arena);
}

int main(void) {
    ARENA_TEST(zeros_ask_for_what_alloc_gives);
    ARENA_TEST(zeroed_and_aligned_together);
    ARENA_TEST(alignment_of_zero_is_a_unit);
    ARENA_TEST(mistakes_are_named);
#if GPUPOOL_SITES
    ARENA_TEST(the_line_is_the_requests);
#endif
    ARENA_TEST(free_memory_of_one_chunk_serves);
    FAKE_TEST(runs_side_by_side);
    ARENA_TEST(a_larger_block_gets_a_chunk_of_its_own);
    ARENA_TEST(other_sources_have_no_other_blocks);
    ARENA_TEST(idle_chunks_make_room);
    ARENA_TEST(the_verdict_knows_of_chunks);
    ARENA_TEST(whatever_memory_looks_like);
    return check_finish();
}
