/* What sleep copies, and in which pieces: gaps between blocks, many stretches, one larger than the
   first piece up, what is freed meanwhile; and each driver call that may fail on the way. */
#include "gpupool.h"
#include "kit.h"

#define A kit_stream[0]
#define GRANULE (2 * MIB)
#define MOST 320

static gpupool_arena *arena;

typedef struct block {
    void *at;
    size_t bytes;
} block;

static block blocks[MOST];
static int count;

static void begin(size_t chunk_bytes) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED, 0);
    config.chunk_bytes = chunk_bytes;
    arena = kit_create(&config);
    count = 0;
}

static int byte_of(int i) {
    return i % 251 + 1;
}

static void add(size_t bytes) {
    blocks[count].bytes = bytes;
    blocks[count].at = gpupool_alloc(arena, bytes, A);
    CHECK(blocks[count].at);
    kit_write(blocks[count].at, bytes, A, byte_of(count));
    count++;
}

static void drop(int i) {
    kit_free(arena, blocks[i].at, A);
    blocks[i].at = NULL;
}

static void verify(void) {
    for (int i = 0; i < count; i++) kit_verify(blocks[i].at, blocks[i].bytes, A, byte_of(i));
}

static void end(void) {
    for (int i = 0; i < count; i++) drop(i);
    kit_close(arena);
}

static void fall_asleep(void) {
    CHECK_RESULT(gpupool_sleep(arena, GPUPOOL_KEEP), GPUPOOL_OK);
    CHECK_EQ(kit_stats(arena).reserved.now, 0);
}

static void wake(void) {
    CHECK_RESULT(gpupool_wake(arena), GPUPOOL_OK);
    CHECK_EQ(kit_stats(arena).asleep, 0);
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    verify();
}

/* ---- pieces ---- */

/* Blocks with gaps of all sizes between them, less than a granule and more, in chunks of several
   granules: whatever is copied as one, each block has what it had. */
static void gaps(void) {
    static const size_t sizes[] = {20 << 10, 300 << 10, MIB, 3 * MIB, 100 << 10, 5 * MIB};
    begin(16 * MIB);
    for (int i = 0; i < 60; i++) add(sizes[i % 6] + (size_t)i * 512);
    for (int round = 0; round < 4; round++) {
        check_case("round %d", round);
        fall_asleep();
        wake();
        for (int i = round; i < count; i += 4 + round) drop(i);
    }
    end();
}

/* More stretches than copies that are under way at a time, all a granule apart. */
static void many_pieces(void) {
    begin(32 * MIB);
    for (int i = 0; i < MOST; i++) add(GRANULE);
    for (int i = 1; i < MOST; i += 2) drop(i);
    fall_asleep();
    wake();
    end();
}

/* A block that is larger than the first piece up, with marks at its ends and at the seams; its
   memory is mapped piece by piece. */
static void large_pieces(void) {
    static const size_t marks[] = {0, 199, 200, 255, 256, 299};
    char *large;
    begin(100 * MIB);
    large = (char *)gpupool_alloc(arena, 300 * MIB, A);
    CHECK(large);
    for (size_t i = 0; i < KIT_COUNT(marks); i++)
        kit_write(large + marks[i] * MIB, MIB, A, (int)i + 1);
    fall_asleep();
    wake();
    for (size_t i = 0; i < KIT_COUNT(marks); i++)
        kit_verify(large + marks[i] * MIB, MIB, A, (int)i + 1);
    kit_free(arena, large, A);
    end();
}

/* What is freed while the arena sleeps is forgotten: a whole chunk in the middle of a stretch, a
   part of a chunk, and the beginning of one. */
static void freed_meanwhile(void) {
    begin(4 * MIB);
    for (int i = 0; i < 24; i++) add(MIB);
    fall_asleep();
    for (int i = 8; i < 13; i++) drop(i); /* a chunk and a quarter */
    drop(16);
    drop(23);
    wake();
    CHECK_EQ(kit_stats(arena).reserved.now, 20 * MIB);
    for (int i = 0; i < count; i++)
        if (!blocks[i].at) {
            blocks[i].at = gpupool_alloc(arena, MIB, A);
            kit_write(blocks[i].at, MIB, A, byte_of(i));
        }
    fall_asleep();
    wake();
    end();
}

/* The memory that kept the content is used again, by a larger arena and a smaller one; it goes by a
   trim, and by a sleep that drops the content. */
static void backups_again(void) {
    begin(4 * MIB);
    for (int round = 0; round < 6; round++) {
        check_case("round %d", round);
        add((size_t)(round % 2 ? 9 : 2) * MIB);
        fall_asleep();
        wake();
        if (round == 2) CHECK_RESULT(gpupool_trim(arena, 0), GPUPOOL_OK);
        if (round == 3) {
            CHECK_RESULT(gpupool_sleep(arena, GPUPOOL_DISCARD), GPUPOOL_OK);
            CHECK_RESULT(gpupool_wake(arena), GPUPOOL_OK);
            for (int i = 0; i < count; i++) kit_write(blocks[i].at, blocks[i].bytes, A, byte_of(i));
        }
        if (round == 4) drop(3);
    }
    end();
}

int main(void) {
    KIT_TEST(gaps);
    KIT_TEST(many_pieces);
    KIT_TEST(large_pieces);
    KIT_TEST(freed_meanwhile);
    KIT_TEST(backups_again);
    return check_finish();
}
