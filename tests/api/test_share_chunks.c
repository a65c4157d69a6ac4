/* gpupool_walk_chunks: the chunks behind a block, in every source, of blocks at home and of
   stitched ones: what is written through the block is read where the walk says it is. */
// build: plain
// build: asan -fsanitize=address,undefined
// build: check2 -O1 -DGPUPOOL_CHECK=2
#define _DEFAULT_SOURCE
#include "gpupool.h"
#include "share_kit.h"
#include "stripe_kit.h"

typedef struct seen {
    gpupool_mapping list[100];
    size_t count;
    int most; /* after so many the function ends the walk; 0: never */
} seen;

static int see(const gpupool_mapping *mapping, void *user) {
    seen *s = (seen *)user;
    if (s->count < KIT_COUNT(s->list)) s->list[s->count] = *mapping;
    s->count++;
    return (int)s->count == s->most ? 77 : 0;
}

static seen walked(const void *block) {
    seen s = {{{0}}, 0, 0};
    CHECK_RESULT(gpupool_walk_chunks(arena, block, see, &s), GPUPOOL_OK);
    CHECK(s.count > 0 && s.count < KIT_COUNT(s.list));
    return s;
}

/* What holds of every walk: parts that lie side by side, inside their chunks, and are the block. */
static seen are_parts(const void *block, size_t bytes, int is_mapped) {
    seen s = walked(block);
    const char *at = (const char *)block;
    for (size_t i = 0; i < s.count; i++) {
        const gpupool_mapping *m = &s.list[i];
        CHECK(m->memory == at);
        CHECK(m->bytes > 0 && m->offset + m->bytes <= m->chunk_bytes);
        CHECK_EQ(m->handle != 0, is_mapped);
        at += m->bytes;
    }
    CHECK(at >= (const char *)block + bytes && at < (const char *)block + bytes + 512);
    return s;
}

/* ---- every source ---- */

static void blocks_of_every_source(void) {
    static const size_t sizes[] = {1, 700, 65536, 3 * MIB + 5};
    for (size_t i = 0; i < KIT_SOURCES; i++)
        for (size_t k = 0; k < KIT_COUNT(sizes); k++) {
            gpupool_source source = kit_sources[i].source;
            check_case("%s, %zu bytes", kit_sources[i].name, sizes[k]);
            arena = kit_open(source);
            void *first = share_any(1000), *block = share_any(sizes[k]);
            int is_mapped = source <= GPUPOOL_SOURCE_MAPPED;
            seen s = are_parts(block, sizes[k], is_mapped);
            if (!is_mapped) CHECK_EQ(s.count, 1);
            if (source == GPUPOOL_SOURCE_BYPASS) CHECK_EQ(s.list[0].offset, 0);
            share_put(first);
            share_put(block);
            kit_close(arena);
        }
}

/* Small blocks of one chunk tell of the same one, a freed and cached one's successor, too. */
static void small_blocks_of_one_chunk(void) {
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    char *a = (char *)share_any(100), *b = (char *)share_any(5000), *c;
    seen of_a = are_parts(a, 100, 1), of_b = are_parts(b, 5000, 1);
    CHECK_EQ(of_a.list[0].handle, of_b.list[0].handle);
    CHECK_EQ(a - of_a.list[0].offset, b - of_b.list[0].offset);
    for (int i = 0; i < 5; i++) share_put(share_any(100));
    c = (char *)share_any(100); /* of the stream's cache */
    CHECK_EQ(are_parts(c, 100, 1).list[0].handle, of_a.list[0].handle);
    share_put(a);
    share_put(b);
    share_put(c);
    kit_close(arena);
}

/* ---- several chunks ---- */

/* As CUDA itself tells them. */
static void at_home_over_several_chunks(void) {
    share_open(2 * MIB, 0);
    char *parts[8], *block;
    for (int i = 0; i < 8; i++) parts[i] = (char *)share_any(2 * MIB);
    for (int i = 0; i < 8; i++) share_put(parts[i]);
    kit_finish(arena);
    block = (char *)share_any(16 * MIB - 600);
    CHECK(block == parts[0]); /* side by side */
    seen s = are_parts(block, 16 * MIB - 600, 1);
    CHECK_EQ(s.count, 8);
    for (size_t i = 0; i < s.count; i++) {
        const char *base = NULL;
        CHECK_EQ(share_range(s.list[i].memory, &base), s.list[i].chunk_bytes);
        CHECK(base == (const char *)s.list[i].memory - s.list[i].offset);
        CHECK_EQ(s.list[i].offset, 0);
        CHECK_EQ(s.list[i].chunk_bytes, 2 * MIB);
        for (size_t k = 0; k < i; k++) CHECK(s.list[k].handle != s.list[i].handle);
    }
    share_put(block);
    kit_close(arena);
}

#if CHECK_FAKE
/* Chunks of the driver's own, side by side, and got in this order or another. */
static void chunks_side_by_side(void) {
    char *block[3];
    fake_packed(1);
    arena = kit_open(GPUPOOL_SOURCE_BYPASS);
    for (int i = 0; i < 3; i++) block[i] = (char *)share_any(4096);
    for (int again = 0; again < 2; again++) {
        CHECK(block[1] == block[0] + 4096 && block[2] == block[1] + 4096);
        for (int i = 0; i < 3; i++) CHECK_EQ(are_parts(block[i], 4096, 0).list[0].offset, 0);
        share_put(block[0]);
        block[0] = (char *)share_any(4096);
    }
    for (int i = 0; i < 3; i++) share_put(block[i]);
    kit_close(arena);
}
#endif

/* A block that is to be exported is all of one. */
static void exportable_blocks(void) {
    share_open(0, 0);
    char *block = share_get(5 * MIB);
    seen s = are_parts(block, 6 * MIB, 1);
    CHECK_EQ(s.count, 1);
    CHECK_EQ(s.list[0].offset, 0);
    CHECK_EQ(s.list[0].bytes, 6 * MIB);
    CHECK_EQ(s.list[0].chunk_bytes, 6 * MIB);
    share_put(block);
    kit_close(arena);
}

/* More than the first try has room for. */
static void very_many_chunks(void) {
    share_open(2 * MIB, 0);
    char *parts[90], *block;
    for (int i = 0; i < 90; i++) parts[i] = (char *)share_any(2 * MIB);
    for (int i = 0; i < 90; i++) share_put(parts[i]);
    kit_finish(arena);
    block = (char *)share_any(180 * MIB);
    CHECK_EQ(are_parts(block, 180 * MIB, 1).count, 90);
    share_put(block);
    kit_close(arena);
}

#if CHECK_FAKE
/* A part's handle, mapped once more: the bytes of the chunk at its offset. */
static void is_what_the_handle_has(const gpupool_mapping *m, int byte) {
    CUmemAccessDesc access;
    CUdeviceptr at = 0;
    memset(&access, 0, sizeof access);
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    CHECK_EQ(cuMemAddressReserve(&at, m->chunk_bytes, 0, 0, 0), CUDA_SUCCESS);
    CHECK_EQ(cuMemMap(at, m->chunk_bytes, 0, m->handle, 0), CUDA_SUCCESS);
    CHECK_EQ(cuMemSetAccess(at, m->chunk_bytes, &access, 1), CUDA_SUCCESS);
    kit_expect(kit_stream[0], (const char *)(uintptr_t)at + m->offset, m->bytes, byte);
    CHECK_EQ(cudaStreamSynchronize(kit_stream[0]), cudaSuccess);
    CHECK_EQ(cuMemUnmap(at, m->chunk_bytes), CUDA_SUCCESS);
    CHECK_EQ(cuMemAddressFree(at, m->chunk_bytes), CUDA_SUCCESS);
}

static void content_is_where_the_walk_says(const char *block, size_t bytes) {
    seen s = are_parts(block, bytes, 1);
    for (size_t i = 0; i < s.count; i++)
        kit_fill(kit_stream[0], s.list[i].memory, s.list[i].bytes, (int)i + 1);
    for (size_t i = 0; i < s.count; i++) is_what_the_handle_has(&s.list[i], (int)i + 1);
}

static void stitched_blocks(void) {
    gpupool_arena_config config = stripe_config();
    config.share = GPUPOOL_SHARE_PROCESSES;
    stripe_open_with(&config);
    for (int round = 0; round < 2; round++) { /* the second time they are idle stitches */
        char *large = stripe_stitched(5 * STRIPE - 3 * 512, 0);
        char *small = stripe_stitched(3 * MIB, 0);
        content_is_where_the_walk_says(large, 5 * STRIPE - 3 * 512);
        content_is_where_the_walk_says(small, 3 * MIB);
        gpupool_exported none;
        CHECK_RESULT(gpupool_export(arena, large, &none), GPUPOOL_E_ARGUMENT);
        CHECK_RESULT(gpupool_export_close(arena, large), GPUPOOL_E_ARGUMENT);
        CHECK_RESULT(gpupool_export(arena, large + STRIPE, &none), GPUPOOL_E_INSIDE);
        share_put(large);
        share_put(small);
    }
    stripe_close();
}

/* Stitches over a chunk, and a block for export in it: one after the other, and beside. */
static void exported_beside_stitches(void) {
    gpupool_arena_config config = stripe_config();
    config.share = GPUPOOL_SHARE_PROCESSES;
    stripe_open_with(&config);
    share_put(stripe_stitched(LAID * STRIPE, 0));
    char *exportable = share_get(STRIPE);
    share_expect_alone(exportable, STRIPE);
    share_exported(exportable);
    char *other = stripe_stitched((LAID - 1) * STRIPE, 0);
    kit_fill(kit_stream[0], exportable, STRIPE, 1);
    kit_fill(kit_stream[0], other, (LAID - 1) * STRIPE, 2);
    kit_expect(kit_stream[0], exportable, STRIPE, 1);
    CHECK_RESULT(gpupool_free(arena, exportable, kit_stream[0]), GPUPOOL_E_IN_USE);
    share_put(other);
    share_unexport(exportable);
    share_put(exportable);
    share_put(stripe_stitched(LAID * STRIPE, 0));
    stripe_close();
}
#endif

static void blocks_at_random(void) {
    uint64_t random = 3;
    char *blocks[32] = {NULL};
    size_t sizes[32];
    share_open(0, 96 * MIB);
    for (int step = 0; step < 500; step++) {
        size_t i = (size_t)check_below(&random, 32);
        check_case("step %d", step);
        if (blocks[i]) {
            are_parts(blocks[i], sizes[i], 1);
            share_put(blocks[i]);
            blocks[i] = NULL;
        } else {
            uint64_t bound = (uint64_t)1 << (8 + check_below(&random, 17));
            sizes[i] = 1 + (size_t)check_below(&random, bound);
            blocks[i] = (char *)gpupool_alloc(arena, sizes[i], kit_stream[check_below(&random, 2)]);
        }
    }
    for (int i = 0; i < 32; i++)
        if (blocks[i]) share_put(blocks[i]);
    kit_close(arena);
}

/* ---- the function ---- */

static void it_may_end_the_walk(void) {
    seen s = {{{0}}, 0, 3};
    share_open(2 * MIB, 0);
    char *parts[5], *block;
    for (int i = 0; i < 5; i++) parts[i] = (char *)share_any(2 * MIB);
    for (int i = 0; i < 5; i++) share_put(parts[i]);
    kit_finish(arena);
    block = (char *)share_any(10 * MIB);
    CHECK_RESULT(gpupool_walk_chunks(arena, block, see, &s), GPUPOOL_E_CALLBACK);
    CHECK(strstr(gpupool_last_error(), "77") != NULL);
    CHECK_EQ(s.count, 3);
    share_put(block);
    kit_close(arena);
}

/* It frees the very block, and gives the chunk back: what is walked was copied before. */
static int use_the_arena(const gpupool_mapping *mapping, void *user) {
    void *block = *(void **)user;
    if (block) share_put(block);
    *(void **)user = NULL;
    share_put(share_any(5000));
    CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
    CHECK(gpupool_alloc(arena, 0, kit_stream[0]) == NULL); /* a failure of its own */
    CHECK(mapping->bytes > 0);
    return 0;
}

static void it_may_use_the_arena(void) {
    share_open(2 * MIB, 0);
    void *block = share_any(9 * MIB), *same = block;
    CHECK_RESULT(gpupool_walk_chunks(arena, block, use_the_arena, &same), GPUPOOL_OK);
    CHECK_RESULT(gpupool_last_result(), GPUPOOL_OK);
    CHECK(same == NULL);
    kit_close(arena);
}

/* ---- mistakes ---- */

static void pointers_that_start_no_block(void) {
    seen s = {{{0}}, 0, 0};
    char on_host;
    share_open(0, 0);
    char *block = (char *)share_any(5 * MIB), *freed = (char *)share_any(6 * MIB);
    share_put(freed);
    CHECK_RESULT(gpupool_walk_chunks(arena, block + 512, see, &s), GPUPOOL_E_INSIDE);
    CHECK_RESULT(gpupool_walk_chunks(arena, block + 1, see, &s), GPUPOOL_E_INSIDE);
    CHECK_RESULT(gpupool_walk_chunks(arena, freed, see, &s), GPUPOOL_E_DOUBLE_FREE);
    CHECK_RESULT(gpupool_walk_chunks(arena, &on_host, see, &s), GPUPOOL_E_NOT_OURS);
    CHECK(gpupool_walk_chunks(arena, NULL, see, &s) != GPUPOOL_OK);
    CHECK_RESULT(gpupool_walk_chunks(arena, block, NULL, &s), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(gpupool_walk_chunks(NULL, block, see, &s), GPUPOOL_E_ARGUMENT);
    CHECK_EQ(s.count, 0);
    share_put(block);
    kit_close(arena);
}

int main(void) {
    SHARE_TEST(blocks_of_every_source);
    SHARE_TEST(small_blocks_of_one_chunk);
    SHARE_TEST(at_home_over_several_chunks);
    SHARE_FAKE_TEST(chunks_side_by_side);
    SHARE_TEST(exportable_blocks);
    SHARE_TEST(very_many_chunks);
    SHARE_FAKE_TEST(stitched_blocks);
    SHARE_FAKE_TEST(exported_beside_stitches);
    SHARE_TEST(blocks_at_random);
    SHARE_TEST(it_may_end_the_walk);
    SHARE_TEST(it_may_use_the_arena);
    SHARE_TEST(pointers_that_start_no_block);
    return check_finish();
}
