/* A stitched block is a block like any other: for whoever frees it, asks for its size, records a
   use, fills it with zeros, sends it through a ring, watches its end or reads it from another
   device. */
// build: plain
// build: asan -fsanitize=address,undefined
// build: guard -DGPUPOOL_GUARD=1
#include "gpupool.h"
#include "ring_kit.h"
#include "stripe_kit.h"

#if CHECK_FAKE

#define LARGE (5 * STRIPE - 3 * 512) /* four whole chunks, and a part of a fifth */

/* ---- its bytes are its own ---- */

/* Each byte by the copies of CUDA, in one go. */
static void every_byte_is_its_own(void) {
    unsigned char *bytes = (unsigned char *)malloc(LARGE), *back = (unsigned char *)malloc(LARGE);
    char *block[3];
    stripe_open();
    for (int round = 0; round < 2; round++) { /* the second time they are idle stitches */
        for (int i = 0; i < 3; i++) {
            block[i] = stripe_stitched(LARGE, 0);
            kit_pattern(bytes, LARGE, (uint64_t)(10 * round + i));
            CHECK_EQ(cudaMemcpyAsync(block[i], bytes, LARGE, cudaMemcpyDefault, kit_stream[0]),
                     cudaSuccess);
            CHECK_EQ(cudaStreamSynchronize(kit_stream[0]), cudaSuccess);
        }
        for (int i = 0; i < 3; i++) {
            CHECK_EQ(cudaMemcpyAsync(back, block[i], LARGE, cudaMemcpyDefault, kit_stream[0]),
                     cudaSuccess);
            CHECK_EQ(cudaStreamSynchronize(kit_stream[0]), cudaSuccess);
            kit_is_pattern(back, LARGE, (uint64_t)(10 * round + i), 0);
        }
        stripe_expect_all();
        for (int i = 0; i < 3; i++) put(block[i], 0);
    }
    CHECK_EQ(kit_stats(arena).stitches, 3);
    CHECK_EQ(kit_stats(arena).stitches_reused, 3);
    stripe_close();
    free(bytes);
    free(back);
}

/* The free ends of two chunks that are neighbours of nothing free: the block begins and ends in the
   midst of a chunk, and what is left and right of it there is another's. */
static void it_begins_and_ends_inside_chunks(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
    char *part[9], *block;
    config.chunk_bytes = STRIPE;
    config.limit_bytes = 3 * STRIPE;
    arena = kit_create(&config);
    for (int i = 0; i < 9; i++) { /* three to a chunk */
        part[i] = (char *)get(i % 3 == 1 ? MIB - 512 * GPUPOOL_GUARD
                                         : MIB / 2 - 512 * GPUPOOL_GUARD, 0);
        kit_fill(kit_stream[0], part[i], MIB / 2 - 512, i);
    }
    for (int i = 1; i < 9; i++)
        CHECK_EQ(part[i] - part[i - 1], i % 3 == 2 ? MIB : MIB / 2);
    put(part[1], 0);
    put(part[2], 0); /* the end of the first chunk: 1.5 MiB */
    put(part[6], 0);
    put(part[7], 0); /* the start of the last: 1.5 MiB */
    CHECK_RESULT(gpupool_trim(arena, SIZE_MAX, NULL), GPUPOOL_OK);
    CHECK_EQ(kit_stats(arena).largest_free_bytes, 3 * MIB / 2);
    CHECK_EQ(kit_stats(arena).largest_block_bytes, 3 * MIB);
    block = stripe_stitched(3 * MIB - 512 * GPUPOOL_GUARD, 0);
    kit_fill(kit_stream[0], block, 3 * MIB - 512 * GPUPOOL_GUARD, 77);
    static const int live[] = {0, 3, 4, 5, 8};
    for (size_t i = 0; i < KIT_COUNT(live); i++)
        kit_expect(kit_stream[0], part[live[i]], MIB / 2 - 512, live[i]);
    kit_expect(kit_stream[0], block, 3 * MIB - 512 * GPUPOOL_GUARD, 77);
    put(block, 0);
    CHECK_EQ(kit_stats(arena).stitched_bytes, 0);
    for (size_t i = 0; i < KIT_COUNT(live); i++) put(part[live[i]], 0);
    kit_close(arena);
}

/* Its units are free at home when it is free, each of them. */
static void its_chunks_are_free_again(void) {
    stripe_open();
    char *block = stripe_stitched(LAID * STRIPE - 512 * GPUPOOL_GUARD, 0);
    kit_fill(kit_stream[0], block, STRIPE, 99);
    CHECK_RESULT(kit_why(gpupool_alloc(arena, 512, kit_stream[0])), GPUPOOL_E_OUT_OF_MEMORY);
    put(block, 0);
    for (int i = 0; i < STRIPES; i += 2) {
        stripe[i] = (char *)get(STRIPE_BYTES, 0);
        stripe_is_live[i] = 1;
        kit_mark(kit_stream[0], stripe[i], STRIPE_BYTES, i);
    }
    CHECK_RESULT(kit_why(gpupool_alloc(arena, 512, kit_stream[0])), GPUPOOL_E_OUT_OF_MEMORY);
    stripe_close();
}

/* ---- figures ---- */

static void sizes_and_statistics(void) {
    size_t bytes = 3 * STRIPE + 1000;
    stripe_open();
    gpupool_stats before = kit_stats(arena);
    CHECK_EQ(before.largest_free_bytes, STRIPE);
    CHECK_EQ(before.largest_block_bytes, LAID * STRIPE);
    CHECK_EQ(kit_fits(arena, LAID * STRIPE - 512 * GPUPOOL_GUARD, NULL), 1);
    CHECK_EQ(kit_fits(arena, LAID * STRIPE + 1, NULL), 0);
    char *block = (char *)get(bytes, 0);
    gpupool_stats live = kit_stats(arena);
    CHECK_EQ(kit_size(arena, block), bytes);
    CHECK_EQ(live.requested.now - before.requested.now, bytes);
    CHECK_EQ(live.granted.now - before.granted.now, 3 * STRIPE + 1024 + 512 * GPUPOOL_GUARD);
    CHECK_EQ(live.stitched_bytes, 3 * STRIPE + 1024 + 512 * GPUPOOL_GUARD);
    CHECK_EQ(live.blocks.now, before.blocks.now + 1);
    CHECK_EQ(live.reserved.now, before.reserved.now);
    CHECK_EQ(live.stitches, 1);
    put(block, 0);
    gpupool_stats after = kit_stats(arena);
    CHECK_EQ(after.requested.now, before.requested.now);
    CHECK_EQ(after.granted.now, before.granted.now);
    CHECK_EQ(after.blocks.now, before.blocks.now);
    CHECK_EQ(after.stitched_bytes, 0);
    CHECK_EQ(after.largest_block_bytes, LAID * STRIPE);
    CHECK_EQ(kit_size(arena, block), 0);
    stripe_close();
}

/* Taken again, it makes no call of CUDA, and lies where it lay. With a guard each free waits. */
static void the_same_size_again_makes_no_call(void) {
    stripe_open();
    char *block = stripe_stitched(LARGE, 0);
    put(block, 0);
    long calls = kit_calls();
    for (int i = 0; i < 10; i++) {
        CHECK(get(LARGE, 0) == block);
        put(block, 0);
    }
    if (!GPUPOOL_GUARD) CHECK_EQ(kit_calls(), calls);
    CHECK_EQ(kit_stats(arena).stitches, 1);
    CHECK_EQ(kit_stats(arena).stitches_reused, 10);
    /* another size is another stitch; and one of them is in use while the other is taken */
    char *other = stripe_stitched(LARGE - 512, 0), *again = stripe_stitched(LARGE, 0);
    CHECK_EQ(kit_stats(arena).stitches, other == block ? 2 : 3);
    kit_fill(kit_stream[0], other, LARGE - 512, 1);
    kit_fill(kit_stream[0], again, LARGE, 2);
    kit_expect(kit_stream[0], other, LARGE - 512, 1);
    put(other, 0);
    put(again, 0);
    stripe_close();
}

/* An alignment counts from the block's first byte. */
static void aligned_blocks(void) {
    stripe_open();
    for (size_t alignment = 512; alignment <= 64 * MIB; alignment *= 2) {
        check_case("alignment %zu", alignment);
        char *block = (char *)gpupool_alloc_aligned(arena, LARGE, alignment, kit_stream[0]);
        if (!CHECK(block != NULL)) continue;
        CHECK_EQ((uintptr_t)block % alignment, 0);
        CHECK(kit_stats(arena).stitched_bytes >= LARGE);
        kit_fill(kit_stream[0], block, LARGE, 5);
        put(block, 0);
    }
    stripe_close();
}

/* ---- mistakes ---- */

static void is_refused(const void *pointer, gpupool_result expected) {
    gpupool_stats before = kit_stats(arena);
    CHECK_RESULT(gpupool_free(arena, (void *)(uintptr_t)pointer, kit_stream[0]), expected);
    CHECK_RESULT(gpupool_record_stream(arena, pointer, kit_stream[1]), expected);
    CHECK_EQ(kit_size(arena, pointer), 0);
    CHECK_RESULT(gpupool_last_result(), expected);
    CHECK(kit_same_stats(before, kit_stats(arena)));
}

static void pointers_that_start_no_block(void) {
    stripe_open();
    long mapped = fake_mappings();
    char *block = stripe_stitched(LAID * STRIPE - 512 * GPUPOOL_GUARD, 0);
    is_refused(block + 512, GPUPOOL_E_INSIDE);
    for (int i = 1; i < LAID; i++) is_refused(block + (size_t)i * STRIPE, GPUPOOL_E_INSIDE);
    for (int i = 0; i < STRIPES; i += 2) { /* all of which are its home addresses */
        is_refused(stripe[i], GPUPOOL_E_DOUBLE_FREE);
        is_refused(stripe[i] + STRIPE / 2, GPUPOOL_E_DOUBLE_FREE);
    }
    put(block, 0);
    is_refused(block, GPUPOOL_E_DOUBLE_FREE);
    for (int i = 0; i < LAID; i++) is_refused(block + (size_t)i * STRIPE, GPUPOOL_E_DOUBLE_FREE);
    is_refused(stripe[0], GPUPOOL_E_DOUBLE_FREE);
    CHECK_EQ(fake_mappings(), mapped + LAID);
    stripe_close();
}

/* Beside the block, in the chunks that it has a part of, its addresses are nobody's. */
static void pointers_beside_it(void) {
    stripe_open();
    char *block = stripe_stitched(LARGE, 0);
    is_refused(block + LARGE + 512 * GPUPOOL_GUARD, GPUPOOL_E_DOUBLE_FREE); /* its end */
    is_refused(block + (5 * STRIPE - 512), GPUPOOL_E_DOUBLE_FREE);
    is_refused(block + 64 * STRIPE, GPUPOOL_E_DOUBLE_FREE);
    put(block, 0);
    CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK); /* its addresses are unmapped */
    is_refused(block, GPUPOOL_E_DOUBLE_FREE);
    stripe_close();
}

static void is_not_cudas(void *pointer) {
    long calls = fake_calls("cudaFree") + fake_calls("cudaFreeAsync");
    CHECK_EQ(gpupool_cudaFree(pointer), cudaErrorInvalidValue);
    CHECK_EQ(gpupool_cudaFreeAsync(pointer, kit_stream[0]), cudaErrorInvalidValue);
    CHECK_EQ(cudaGetLastError(), cudaErrorInvalidValue);
    CHECK_EQ(fake_calls("cudaFree") + fake_calls("cudaFreeAsync"), calls);
}

/* None of these is passed on to CUDA, by the functions that pass on what they do not know. */
static void nor_are_they_cudas(void) {
    gpupool_arena *first = gpupool_get_default_arena(0);
    void *wide, *block[STRIPES], *cut;
    CHECK_RESULT(gpupool_set_limit(first, STRIPES * STRIPE), GPUPOOL_OK);
    for (int i = 0; i < STRIPES; i++)
        CHECK_EQ(gpupool_cudaMalloc(&block[i], STRIPE_BYTES), cudaSuccess);
    for (int i = 0; i < STRIPES; i += 2) CHECK_EQ(gpupool_cudaFree(block[i]), cudaSuccess);
    CHECK_EQ(gpupool_cudaMalloc(&wide, LARGE), cudaSuccess);
    CHECK_EQ(kit_stats(first).stitches, 1);
    for (int i = 0; i < 4; i++) {
        cut = i < 2 ? (char *)wide + 512 * (i ? 4096 : 1) : (char *)block[0] + 512 * (i - 2);
        is_not_cudas(cut);
    }
    CHECK_EQ(gpupool_cudaFree(wide), cudaSuccess);
    is_not_cudas(wide);
    for (int i = 1; i < STRIPES; i += 2) CHECK_EQ(gpupool_cudaFree(block[i]), cudaSuccess);
    CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
    CHECK_RESULT(gpupool_trim(first, 0, NULL), GPUPOOL_OK);
    CHECK_EQ(fake_mappings(), 0);
    CHECK_RESULT(gpupool_arena_destroy(first), GPUPOOL_OK);
}

#if GPUPOOL_GUARD
static void a_write_past_its_end_is_found(void) {
    stripe_open();
    char *block = stripe_stitched(LARGE, 0);
    kit_expect(kit_stream[0], block, LARGE, 0xcd);
    kit_fill(kit_stream[0], block, LARGE, 3);
    put(block, 0);
    block = stripe_stitched(LARGE - 100, 0);
    kit_fill(kit_stream[0], block + LARGE - 100, 1, 3);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_E_OVERRUN);
    CHECK_EQ(kit_stats(arena).stitched_bytes, 0);
    stripe_close();
}
#endif

/* ---- streams ---- */

/* Recorded uses: nobody gets a unit of it before they are done, at whatever address. */
static void recorded_uses(void) {
    stripe_open();
    char *block = stripe_stitched(LARGE, 0);
    fake_mode(FAKE_STEPPED);
    kit_fill(kit_stream[0], block, LARGE, 4);
    kit_order(kit_stream[0], kit_stream[1]);
    kit_expect(kit_stream[1], block, LARGE, 4);
    CHECK_RESULT(gpupool_record_stream(arena, block, kit_stream[1]), GPUPOOL_OK);
    put(block, 0);
    while (fake_step(kit_stream[0])) continue;
    /* what is left besides, and no more */
    char *rest = stripe_stitched((LAID - 5) * STRIPE - 512 * GPUPOOL_GUARD, 0);
    kit_fill(kit_stream[0], rest, (LAID - 5) * STRIPE - 512 * GPUPOOL_GUARD, 5);
    for (int i = 0; i < 4; i++) {
        char *home = (char *)get(STRIPE_BYTES, 0); /* waits for stream 1 */
        kit_fill(kit_stream[0], home, STRIPE_BYTES, 6);
        while (fake_step(kit_stream[0])) CHECK_EQ(fake_failures(), 0);
        put(home, 0);
    }
    put(rest, 0);
    stripe_close();
}

/* What stream 0 has freed stitched, stream 1 takes at home and stitched anew, and the other way
   round, with the work still queued: the device has to wait, and the oracle tells. */
static void from_stream_to_stream(void) {
    const size_t all = LAID * STRIPE - 512 * GPUPOOL_GUARD;
    stripe_open();
    fake_mode(FAKE_STEPPED);
    for (int i = 0; i < 12; i++) {
        int stream = i % 3;
        size_t bytes = i % 4 == 3 ? all : all - (size_t)i * STRIPE / 4;
        char *block = (char *)get(bytes, stream);
        if (!block) break;
        kit_fill(kit_stream[stream], block, bytes, i);
        kit_expect(kit_stream[stream], block, bytes, i);
        put(block, stream);
        fake_step(kit_stream[(i + 1) % 3]);
    }
    CHECK(kit_stats(arena).fence_waits + kit_stats(arena).host_syncs > 0);
    for (int i = 2; i >= 0; i--)
        while (fake_step(kit_stream[i])) CHECK_EQ(fake_failures(), 0);
    stripe_close();
}

/* Its own stream takes it at once, with all its work queued: that is a stream's order. */
static void its_own_stream_need_not_wait(void) {
    stripe_open();
    fake_mode(FAKE_STEPPED);
    char *block = stripe_stitched(LARGE, 0);
    kit_fill(kit_stream[0], block, LARGE, 4);
    put(block, 0);
    gpupool_stats before = kit_stats(arena);
    char *again = stripe_stitched(LARGE + STRIPE, 0);
    kit_fill(kit_stream[0], again, LARGE + STRIPE, 4);
    CHECK_EQ(kit_stats(arena).host_syncs, before.host_syncs);
    if (!GPUPOOL_GUARD) CHECK(fake_pending(kit_stream[0]) >= 2);
    put(again, 0);
    stripe_close();
}

/* ---- zeros and rings ---- */

static void zeros(void) {
    stripe_open();
    char *block = stripe_stitched(LARGE, 0);
    kit_fill(kit_stream[0], block, LARGE, 0xee);
    put(block, 0);
    for (int i = 0; i < 2; i++) {
        size_t bytes = LARGE - (size_t)i * 5000;
        block = (char *)gpupool_zalloc(arena, bytes, kit_stream[0]);
        if (!CHECK(block != NULL)) break;
        CHECK(kit_stats(arena).stitched_bytes > 0);
        kit_expect(kit_stream[0], block, bytes, 0);
        kit_fill(kit_stream[0], block, bytes, 0xee);
        put(block, 0);
    }
    stripe_close();
}

static void through_a_ring(int workers) {
    unsigned char *host = kit_host(LARGE);
    gpupool_ring *ring = kit_ring(4 * MIB, 512 * KIB, workers);
    gpupool_ticket ticket;
    stripe_open();
    char *block = stripe_stitched(LARGE, 0);
    kit_pattern(host, LARGE, 8);
    CHECK_RESULT(gpupool_upload(ring, block, host, LARGE, kit_stream[0]), GPUPOOL_OK);
    memset(host, 0, LARGE);
    CHECK_RESULT(gpupool_download(ring, host, block, LARGE, kit_stream[0]), GPUPOOL_OK);
    kit_is_pattern(host, LARGE, 8, 0);
    kit_pattern(host, LARGE, 9);
    CHECK_RESULT(kit_upload_async(ring, block, host, LARGE, kit_stream[0], &ticket),
                 GPUPOOL_OK);
    CHECK_RESULT(gpupool_ring_wait(ring, ticket, -1), GPUPOOL_OK);
    memset(host, 0, LARGE);
    CHECK_RESULT(kit_download_async(ring, host, block, LARGE, kit_stream[0], &ticket),
                 GPUPOOL_OK);
    CHECK_RESULT(gpupool_ring_wait(ring, ticket, -1), GPUPOOL_OK);
    kit_is_pattern(host, LARGE, 9, 0);
    put(block, 0);
    stripe_close();
    kit_ring_close(ring);
    kit_host_free(host, LARGE);
}
static void a_ring_without_workers(void) { through_a_ring(0); }
static void a_ring_with_workers(void) { through_a_ring(3); }

/* ---- another device ---- */

/* Stitches that were there when the other device was let in, those that came later, and those over
   chunks that came later. */
static void a_peer_reaches_it(void) {
    cudaStream_t far = NULL;
    char *block[3];
    stripe_open();
    CHECK_EQ(cudaSetDevice(1), cudaSuccess);
    CHECK_EQ(cudaStreamCreateWithFlags(&far, cudaStreamNonBlocking), cudaSuccess);
    CHECK_EQ(cudaSetDevice(0), cudaSuccess);
    block[0] = stripe_stitched(LARGE, 0);
    char *idle = stripe_stitched(LARGE - 512, 0);
    put(idle, 0);
    CHECK_RESULT(gpupool_allow_peer(arena, 1), GPUPOOL_OK);
    block[1] = stripe_stitched(LARGE - 512, 0);
    CHECK(block[1] == idle);
    CHECK_RESULT(gpupool_set_limit(arena, 40 * STRIPE), GPUPOOL_OK);
    size_t last = 7 * STRIPE + MIB; /* more than is left */
    block[2] = (char *)get(last, 0);
    CHECK(kit_reserved(arena) > STRIPES * STRIPE);
    CHECK_EQ(cudaStreamSynchronize(kit_stream[0]), cudaSuccess);
    for (int i = 0; i < 3; i++) {
        size_t bytes = i == 0 ? LARGE : i == 1 ? LARGE - 512 : last;
        kit_fill(far, block[i], bytes, 30 + i);
        kit_expect(far, block[i], bytes, 30 + i);
        CHECK_RESULT(gpupool_free(arena, block[i], far), GPUPOOL_OK);
    }
    CHECK_EQ(cudaStreamSynchronize(far), cudaSuccess);
    CHECK_EQ(cudaStreamDestroy(far), cudaSuccess);
    stripe_close();
}

/* Access for a peer that CUDA refuses at the stitch: the call fails, and the next is no worse. */
static void a_peer_that_is_refused(void) {
    stripe_open();
    char *block = stripe_stitched(LARGE, 0);
    for (long n = 1; n < STRIPES + 4; n++) {
        fake_fail_call("cuMemSetAccess", n, 0, 0);
        gpupool_result result = gpupool_allow_peer(arena, 1);
        long fired = fake_fail_fired();
        fake_fail_clear();
        if (!fired) CHECK_RESULT(result, GPUPOOL_OK);
        if (!fired) break;
        CHECK_RESULT(result, GPUPOOL_E_CUDA);
        CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
        CHECK(n <= STRIPES + 1);
    }
    put(block, 0);
    stripe_close();
}

#endif

int main(void) {
    FAKE_TEST(every_byte_is_its_own);
    FAKE_TEST(it_begins_and_ends_inside_chunks);
    FAKE_TEST(its_chunks_are_free_again);
    FAKE_TEST(sizes_and_statistics);
    FAKE_TEST(the_same_size_again_makes_no_call);
    FAKE_TEST(aligned_blocks);
    FAKE_TEST(pointers_that_start_no_block);
    FAKE_TEST(pointers_beside_it);
    FAKE_TEST(nor_are_they_cudas);
#if GPUPOOL_GUARD
    FAKE_TEST(a_write_past_its_end_is_found);
#endif
    FAKE_TEST(recorded_uses);
    FAKE_TEST(from_stream_to_stream);
    FAKE_TEST(its_own_stream_need_not_wait);
    FAKE_TEST(zeros);
    FAKE_TEST(a_ring_without_workers);
    FAKE_TEST(a_ring_with_workers);
    FAKE_TEST(a_peer_reaches_it);
    FAKE_TEST(a_peer_that_is_refused);
    return check_finish();
}
