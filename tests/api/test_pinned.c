/* A pinned arena's blocks are the host's to write at once: what is freed comes back only when the
   work queued before has finished, to any stream. */
#include "gpupool.h"
#include "stream_kit.h"

#if CHECK_FAKE

#define PIECE (64 * KIB)

static void *host_block(int stream) {
    void *block = kit_alloc(arena, PIECE, kit_stream[stream]);
    if (block) fake_host_access(block, PIECE, 1, "the host writes");
    return block;
}

static void open_pinned(size_t bytes) {
    arena = kit_open_limited(GPUPOOL_SOURCE_PINNED, bytes);
    fake_mode(FAKE_STEPPED);
}

static void unfinished_memory_is_not_reused(void) {
    open_pinned(64 * PIECE);
    void *first = host_block(0);
    kit_mark(kit_stream[0], first, PIECE, 1);
    put(first, 0);
    void *second = host_block(0), *third = host_block(1);
    CHECK(second != first && third != first);
    CHECK_EQ(fake_failures(), 0);
    put(second, 0);
    put(third, 1);
    close_arena();
}

static void finished_memory_is(void) {
    open_pinned(PIECE);
    for (int i = 0; i < 3; i++) {
        void *block = host_block(i % 2);
        CHECK(block != NULL);
        kit_mark(kit_stream[i % 2], block, PIECE, i + 1);
        put(block, i % 2);
        fake_run_all();
    }
    CHECK_EQ(kit_stats(arena).host_syncs, 0);
    close_arena();
}

static void at_the_limit_the_host_waits(void) {
    open_pinned(PIECE);
    void *first = host_block(0);
    kit_mark(kit_stream[0], first, PIECE, 1);
    put(first, 0);
    void *second = host_block(1);
    CHECK(second != NULL && kit_stats(arena).host_syncs == 1);
    CHECK_EQ(fake_failures(), 0);
    put(second, 1);
    close_arena();
}

static void zeroed_at_once(void) {
    open_pinned(PIECE);
    unsigned char *block = host_block(0);
    memset(block, 7, PIECE);
    put(block, 0);
    block = gpupool_zalloc(arena, PIECE, kit_stream[0]);
    if (CHECK(block != NULL)) {
        for (size_t i = 0; i < PIECE; i++)
            if (!CHECK(block[i] == 0)) break;
        put(block, 0);
    }
    close_arena();
}

int main(void) {
    FAKE_TEST(unfinished_memory_is_not_reused);
    FAKE_TEST(finished_memory_is);
    FAKE_TEST(at_the_limit_the_host_waits);
    FAKE_TEST(zeroed_at_once);
    return check_finish();
}
#else
int main(void) { return check_finish(); }
#endif
