/* An arena whose memory others may hold: what config.share asks of the device, what chunks are made
   with, and blocks that have a chunk for themselves. */
// build: plain
// build: asan -fsanitize=address,undefined
// build: check2 -O1 -DGPUPOOL_CHECK=2
#define _DEFAULT_SOURCE
#include "gpupool.h"
#include "share_kit.h"

#define BOTH ((unsigned)GPUPOOL_SHARE_PROCESSES | GPUPOOL_SHARE_RDMA)

/* ---- config.share ---- */

static void is_refused(gpupool_source source, unsigned share, gpupool_result expected,
                       const char *words) {
    gpupool_arena_config config = kit_config(source);
    gpupool_arena *none = (gpupool_arena *)&config;
    config.share = share;
    CHECK_RESULT(gpupool_arena_create(&none, &config), expected);
    CHECK(none == NULL);
    if (!CHECK(strstr(gpupool_last_error(), words) != NULL)) puts(gpupool_last_error());
}

static void works(gpupool_source source, unsigned share) {
    gpupool_arena_config config = kit_config(source);
    config.share = share;
    arena = kit_create(&config);
    share_put(share_any(5000));
    kit_close(arena);
}

static void values_that_are_no_sum(void) {
    is_refused(GPUPOOL_SOURCE_AUTO, 4, GPUPOOL_E_ARGUMENT, "config.share is 0x4");
    is_refused(GPUPOOL_SOURCE_MAPPED, 7, GPUPOOL_E_ARGUMENT, "config.share is 0x7");
    is_refused(GPUPOOL_SOURCE_MAPPED, ~0u, GPUPOOL_E_ARGUMENT, "config.share is 0xffffffff");
}

static void it_is_for_mapped_memory(void) {
    for (size_t i = 0; i < KIT_SOURCES; i++) {
        gpupool_source source = kit_sources[i].source;
        check_case("%s", kit_sources[i].name);
        if (source == GPUPOOL_SOURCE_AUTO || source == GPUPOOL_SOURCE_MAPPED) continue;
        for (unsigned share = 1; share <= BOTH; share++)
            is_refused(source, share, GPUPOOL_E_UNSUPPORTED, "has no SOURCE_MAPPED");
        works(source, 0);
    }
}

#if CHECK_FAKE
static void devices_that_cannot_share(void) {
    static const char *words[] = {"", "file descriptors", "RDMA", "file descriptors"};
    fake_device_sharing(0, 0);
    for (unsigned share = 1; share <= BOTH; share++) {
        is_refused(GPUPOOL_SOURCE_AUTO, share, GPUPOOL_E_UNSUPPORTED, words[share]);
        is_refused(GPUPOOL_SOURCE_MAPPED, share, GPUPOOL_E_UNSUPPORTED, words[share]);
    }
    works(GPUPOOL_SOURCE_AUTO, 0);
    CHECK_EQ(cudaSetDevice(1), cudaSuccess);
    gpupool_arena_config config = share_config(BOTH);
    config.device = GPUPOOL_DEVICE_CURRENT;
    kit_close(kit_create(&config));
    CHECK_EQ(cudaSetDevice(0), cudaSuccess);
}

static void devices_that_cannot_map(void) {
    fake_device_vmm(0, 0);
    for (unsigned share = 1; share <= BOTH; share++) {
        is_refused(GPUPOOL_SOURCE_AUTO, share, GPUPOOL_E_UNSUPPORTED, "has no SOURCE_MAPPED");
        is_refused(GPUPOOL_SOURCE_MAPPED, share, GPUPOOL_E_UNSUPPORTED, "no virtual memory");
    }
    works(GPUPOOL_SOURCE_AUTO, 0);
}

/* A device that says it can, and does not: nobody gets other memory than was asked for. */
static void auto_does_not_fall_back(void) {
    static const char *const calls[] = {"cuMemCreate", "cuMemMap", "cuMemSetAccess"};
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_AUTO);
    gpupool_block found;
    for (size_t i = 0; i < KIT_COUNT(calls); i++)
        for (unsigned share = 0; share <= BOTH; share++) {
            check_case("%s, share %u", calls[i], share);
            fake_fail_call(calls[i], 1, 1, CUDA_ERROR_NOT_SUPPORTED);
            if (share) {
                is_refused(GPUPOOL_SOURCE_AUTO, share, GPUPOOL_E_CUDA, calls[i]);
            } else {
                arena = kit_create(&config);
                void *block = share_any(100);
                CHECK_RESULT(gpupool_get_block(arena, block, &found), GPUPOOL_OK);
                CHECK_EQ(found.source, GPUPOOL_SOURCE_DEVICE);
                share_put(block);
                kit_close(arena);
            }
            fake_fail_clear();
        }
}

/* Of every chunk, whatever it is for. */
static void what_chunks_are_made_with(void) {
    for (int source = GPUPOOL_SOURCE_AUTO; source <= GPUPOOL_SOURCE_MAPPED; source++)
        for (unsigned share = 0; share <= BOTH; share++) {
            gpupool_arena_config config = kit_config((gpupool_source)source);
            char *blocks[3];
            check_case("source %d, share %u", source, share);
            config.share = share;
            config.reserve_bytes = 4 * MIB;
            arena = kit_create(&config);
            blocks[0] = (char *)share_any(100);
            blocks[1] = (char *)share_any(33 * MIB);
            blocks[2] = share & GPUPOOL_SHARE_PROCESSES ? share_get(MIB) : (char *)share_any(MIB);
            for (int i = 0; i < 3; i++) {
                CHECK_EQ(share_attribute(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, blocks[i]),
                         share & GPUPOOL_SHARE_PROCESSES ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
                                                         : CU_MEM_HANDLE_TYPE_NONE);
                CHECK_EQ(share_attribute(CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE,
                                         blocks[i]), (share & GPUPOOL_SHARE_RDMA) != 0);
                share_put(blocks[i]);
            }
            kit_close(arena);
        }
}
#endif

/* ---- blocks with a chunk for themselves ---- */

static void asked_for_without_config_share(void) {
    for (size_t i = 0; i < KIT_SOURCES; i++) {
        check_case("%s", kit_sources[i].name);
        arena = kit_open(kit_sources[i].source);
        CHECK_RESULT(kit_why(share_try(100, 0)), GPUPOOL_E_ARGUMENT);
        CHECK(strstr(gpupool_last_error(), "GPUPOOL_SHARE_PROCESSES") != NULL);
        CHECK_EQ(kit_stats(arena).blocks.now, 0);
        kit_close(arena);
    }
#if CHECK_FAKE
    gpupool_arena_config config = share_config(GPUPOOL_SHARE_RDMA);
    arena = kit_create(&config);
    CHECK_RESULT(kit_why(share_try(100, 0)), GPUPOOL_E_ARGUMENT);
    kit_close(arena);
#endif
}

static void sizes_that_no_block_has(void) {
    static const size_t sizes[] = {0, (size_t)1 << 50, ((size_t)1 << 48) + 1, SIZE_MAX - 100,
                                   SIZE_MAX};
    share_open(0, 0);
    for (size_t i = 0; i < KIT_COUNT(sizes); i++) {
        check_case("%zu bytes", sizes[i]);
        CHECK_RESULT(kit_why(share_try(sizes[i], 0)), GPUPOOL_E_ARGUMENT);
    }
    CHECK_RESULT(kit_why(share_try((size_t)1 << 48, 0)), GPUPOOL_E_OUT_OF_MEMORY);
    CHECK_EQ(kit_stats(arena).blocks.now, 0);
    kit_close(arena);
}

static void sizes_are_whole_granules(void) {
    static const size_t sizes[] = {1, 512, 65536, 2 * MIB - 1, 2 * MIB, 2 * MIB + 1, 5 * MIB,
                                   64 * MIB - 511, 100 * MIB};
    share_open(0, 0);
    for (size_t i = 0; i < KIT_COUNT(sizes); i++) {
        check_case("%zu bytes", sizes[i]);
        char *block = share_get(sizes[i]);
        size_t bytes = share_rounded(sizes[i]);
        CHECK_EQ((uintptr_t)block % SHARE_GRANULE, 0);
        CHECK_EQ(kit_size(arena, block), bytes);
        CHECK_EQ(kit_stats(arena).requested.now, bytes);
        CHECK_EQ(kit_stats(arena).granted.now, bytes);
        share_expect_alone(block, bytes);
        kit_mark(kit_stream[0], block, bytes, (int)i);
        kit_expect_mark(kit_stream[0], block, bytes, (int)i);
        share_put(block);
    }
    kit_close(arena);
}

/* Live blocks, and free memory of all sizes in chunks of theirs: none of it is of use. */
static void beside_many_others(void) {
    char *others[40], *blocks[8];
    share_open(8 * MIB, 0);
    for (int i = 0; i < 40; i++) others[i] = (char *)share_any(((size_t)i % 5 + 1) * 700 * KIB);
    for (int i = 0; i < 40; i++) {
        if (i % 3 == 0) share_put(others[i]);
        else kit_mark(kit_stream[0], others[i], 700 * KIB, i);
    }
    kit_finish(arena);
    for (int i = 0; i < 8; i++) {
        size_t bytes = ((size_t)i % 3 + 1) * 2 * MIB;
        blocks[i] = share_get(bytes - 5);
        share_expect_alone(blocks[i], bytes);
        kit_mark(kit_stream[0], blocks[i], bytes, 100 + i);
    }
    for (int i = 0; i < 40; i++)
        if (i % 3) kit_expect_mark(kit_stream[0], others[i], 700 * KIB, i);
    for (int i = 0; i < 8; i++) {
        kit_expect_mark(kit_stream[0], blocks[i], ((size_t)i % 3 + 1) * 2 * MIB, 100 + i);
        share_put(blocks[i]);
    }
    for (int i = 0; i < 40; i++)
        if (i % 3) share_put(others[i]);
    kit_close(arena);
}

/* Its chunk serves the next such block of that size, and ordinary blocks; not both at a time. */
static void its_chunk_is_memory_like_any_other(void) {
    share_open(0, 12 * MIB);
    char *block = share_get(6 * MIB), *small, *rest;
    share_put(block);
    uint64_t gained = kit_stats(arena).chunks_gained;
    for (int i = 0; i < 5; i++) {
        CHECK(share_get(6 * MIB) == block);
        share_put(block);
    }
    CHECK_EQ(kit_stats(arena).chunks_gained, gained);
    rest = share_get(6 * MIB - 1);
    CHECK(rest == block);
    char *other = share_get(6 * MIB); /* the limit is reached */
    share_put(rest);
    small = (char *)share_any(100);
    CHECK(small >= block && small < block + 6 * MIB);
    kit_mark(kit_stream[0], small, 100, 7);
    CHECK_RESULT(kit_why(share_try(6 * MIB, 0)), GPUPOOL_E_OUT_OF_MEMORY);
    CHECK_RESULT(kit_why(share_try(MIB, 0)), GPUPOOL_E_OUT_OF_MEMORY);
    kit_expect_mark(kit_stream[0], small, 100, 7);
    share_put(small);
    kit_finish(arena);
    CHECK(share_get(6 * MIB) == block);
    share_put(block);
    share_put(other);
    kit_close(arena);
}

static void at_a_limit(void) {
    char *blocks[4];
    gpupool_verdict why;
    share_open(0, 8 * MIB);
    for (int i = 0; i < 4; i++) blocks[i] = share_get(MIB + (size_t)i);
    for (unsigned more = 0; more <= GPUPOOL_NO_WAIT; more += GPUPOOL_NO_WAIT) {
        CHECK_RESULT(kit_why(share_try(1, more)), GPUPOOL_E_OUT_OF_MEMORY);
        CHECK_RESULT(gpupool_last_verdict(&why), GPUPOOL_OK);
        CHECK_EQ(why.cause, GPUPOOL_CAUSE_LIMIT);
        CHECK_EQ(why.asked_bytes, 2 * MIB);
        CHECK_EQ(why.raise_bytes, 2 * MIB);
    }
    CHECK_RESULT(gpupool_set_limit(arena, 8 * MIB + (size_t)why.raise_bytes), GPUPOOL_OK);
    share_put(share_get(1));
    CHECK_RESULT(gpupool_set_limit(arena, 8 * MIB), GPUPOOL_OK);
    share_put(blocks[2]);
    kit_finish(arena);
    CHECK((blocks[2] = (char *)share_try(1, GPUPOOL_NO_WAIT)) != NULL);
    for (int i = 0; i < 4; i++) share_put(blocks[i]);
    kit_close(arena);
}

/* What is free is enough, but in one larger chunk, or in several small ones: they go back. */
static void idle_chunks_make_room(void) {
    char *blocks[8], *block;
    share_open(8 * MIB, 8 * MIB);
    share_put(share_any(8 * MIB));
    kit_finish(arena);
    block = share_get(2 * MIB);
    share_expect_alone(block, 2 * MIB);
    share_put(block);
    kit_close(arena);
    share_open(2 * MIB, 16 * MIB);
    for (int i = 0; i < 8; i++) blocks[i] = share_get(2 * MIB);
    for (int i = 0; i < 8; i++) share_put(blocks[i]);
    kit_finish(arena);
    block = share_get(15 * MIB);
    share_expect_alone(block, 16 * MIB);
    share_put(block);
    kit_close(arena);
}

static void with_all_other_flags(void) {
    unsigned flags = GPUPOOL_EXPORTABLE | GPUPOOL_ZEROED | GPUPOOL_NO_WAIT | GPUPOOL_ONE_CHUNK;
    share_open(0, 0);
    char *dirty = share_get(4 * MIB);
    kit_fill(kit_stream[0], dirty, 4 * MIB, 9);
    share_put(dirty);
    for (size_t alignment = 1; alignment <= 64 * MIB; alignment *= 4) {
        gpupool_request request = kit_request(3 * MIB, kit_stream[0], flags);
        check_case("aligned to %zu", alignment);
        request.alignment = alignment;
        char *block = (char *)gpupool_alloc_request(arena, &request);
        if (!CHECK_RESULT(kit_why(block), GPUPOOL_OK)) continue;
        CHECK_EQ((uintptr_t)block % alignment, 0);
        share_expect_alone(block, 4 * MIB);
        kit_expect(kit_stream[0], block, 4 * MIB, 0);
        kit_fill(kit_stream[0], block, 4 * MIB, 9);
        share_put(block);
    }
    gpupool_request wrong = kit_request(3 * MIB, kit_stream[0], flags);
    wrong.alignment = 3 * MIB;
    CHECK_RESULT(kit_why(gpupool_alloc_request(arena, &wrong)), GPUPOOL_E_ARGUMENT);
    kit_close(arena);
}

#if CHECK_FAKE
/* The stream that frees has it again at once, another one when its work is done. */
static void between_streams(void) {
    unsigned flags = GPUPOOL_EXPORTABLE;
    share_open(0, 4 * MIB);
    fake_mode(FAKE_STEPPED);
    char *block = share_get(4 * MIB), *again;
    kit_mark(kit_stream[0], block, 4 * MIB, 1);
    share_put(block);
    again = share_get(4 * MIB);
    CHECK(again == block);
    CHECK(fake_pending(kit_stream[0]) > 0);
    kit_mark(kit_stream[0], again, 4 * MIB, 2);
    share_put(again);
    again = (char *)kit_alloc_as(arena, 4 * MIB, kit_stream[1], flags | GPUPOOL_NO_WAIT);
    if (!again) again = (char *)kit_alloc_as(arena, 4 * MIB, kit_stream[1], flags);
    CHECK_RESULT(kit_why(again), GPUPOOL_OK);
    share_expect_alone(again, 4 * MIB);
    kit_mark(kit_stream[1], again, 4 * MIB, 3); /* the race oracle looks */
    kit_expect_mark(kit_stream[1], again, 4 * MIB, 3);
    CHECK_RESULT(gpupool_free(arena, again, kit_stream[1]), GPUPOOL_OK);
    fake_run_all();
    fake_mode(FAKE_EAGER);
    kit_close(arena);
}

static void where_the_driver_has_large_pages(void) {
    fake_granularity(8 * MIB);
    share_open(0, 0);
    char *block = share_get(MIB);
    const char *base = NULL;
    CHECK_EQ(share_range(block, &base), 8 * MIB);
    CHECK(base == block);
    CHECK_EQ(kit_size(arena, block), 8 * MIB);
    CHECK_EQ(share_exported(block).bytes, 8 * MIB);
    share_unexport(block);
    share_put(block);
    kit_close(arena);
}
#endif

/* Such blocks among others, at random: each is alone while it lives. */
static void whatever_memory_looks_like(void) {
    uint64_t random = 11;
    struct { char *at; size_t bytes; int mark, is_alone; } live[32] = {{0}};
    share_open(0, 128 * MIB);
    for (int step = 0; step < 1000; step++) {
        size_t i = (size_t)check_below(&random, 32);
        check_case("step %d", step);
        if (live[i].at) {
            kit_expect_mark(kit_stream[0], live[i].at, live[i].bytes, live[i].mark);
            if (live[i].is_alone) share_expect_alone(live[i].at, live[i].bytes);
            share_put(live[i].at);
            live[i].at = NULL;
            continue;
        }
        live[i].is_alone = check_below(&random, 3) == 0;
        live[i].bytes =
            1 + (size_t)check_below(&random, (uint64_t)1 << (9 + check_below(&random, 15)));
        live[i].mark = step % 251;
        live[i].at = live[i].is_alone ? (char *)share_try(live[i].bytes, 0)
                                      : (char *)gpupool_alloc(arena, live[i].bytes, kit_stream[0]);
        if (live[i].at) kit_mark(kit_stream[0], live[i].at, live[i].bytes, live[i].mark);
        else CHECK_RESULT(gpupool_last_result(), GPUPOOL_E_OUT_OF_MEMORY);
    }
    for (int i = 0; i < 32; i++)
        if (live[i].at) share_put(live[i].at);
    kit_close(arena);
}

int main(void) {
    SHARE_TEST(values_that_are_no_sum);
    SHARE_TEST(it_is_for_mapped_memory);
    SHARE_FAKE_TEST(devices_that_cannot_share);
    SHARE_FAKE_TEST(devices_that_cannot_map);
    SHARE_FAKE_TEST(auto_does_not_fall_back);
    SHARE_FAKE_TEST(what_chunks_are_made_with);
    SHARE_TEST(asked_for_without_config_share);
    SHARE_TEST(sizes_that_no_block_has);
    SHARE_TEST(sizes_are_whole_granules);
    SHARE_TEST(beside_many_others);
    SHARE_TEST(its_chunk_is_memory_like_any_other);
    SHARE_TEST(at_a_limit);
    SHARE_TEST(idle_chunks_make_room);
    SHARE_TEST(with_all_other_flags);
    SHARE_FAKE_TEST(between_streams);
    SHARE_FAKE_TEST(where_the_driver_has_large_pages);
    SHARE_TEST(whatever_memory_looks_like);
    return check_finish();
}
