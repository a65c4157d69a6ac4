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

#if CHECK_FAKE

/* ---- calls that fail ---- */

enum { AS_BEFORE, BROKEN, DONE };

/* How the arena is after a call that may have failed: what it says agrees with what it does. */
static int state_after(gpupool_result result, uint64_t asleep) {
    gpupool_result said;
    if (result == GPUPOOL_OK) return DONE;
    said = gpupool_trim(arena, 0);
    if (said == GPUPOOL_E_CUDA && strstr(gpupool_last_error(), "broken")) return BROKEN;
    CHECK_RESULT(said, asleep ? GPUPOOL_E_ASLEEP : GPUPOOL_OK);
    CHECK_EQ(kit_stats(arena).asleep, asleep);
    CHECK(!asleep || kit_stats(arena).reserved.now == 0);
    return AS_BEFORE;
}

/* The n-th call of that name fails, once, in a sleep or in the waking after it. Returns whether one
   did, and counts how that ended. */
static int call_fails(const char *name, int n, int ends[2]) {
    int state, fired = 0;
    uint64_t asleep = 0;
    begin(4 * MIB);
    for (int i = 0; i < 8; i++) add(MIB + (size_t)i * 4096);
    CHECK_EQ(cudaStreamSynchronize(A), cudaSuccess);
    fake_fail_call(name, n, 0, 0);
    state = state_after(gpupool_sleep(arena, GPUPOOL_KEEP), 0);
    if (state == DONE) {
        asleep = kit_stats(arena).asleep;
        state = state_after(gpupool_wake(arena), asleep);
    }
    fired = fake_fail_fired() > 0;
    fake_fail_clear();
    if (state == BROKEN && !strstr(gpupool_last_error(), name))
        check_fail(__FILE__, __LINE__, "no \"%s\" in: %s", name, gpupool_last_error());
    if (state == AS_BEFORE && asleep) CHECK_RESULT(gpupool_wake(arena), GPUPOOL_OK);
    if (state != BROKEN) verify();
    if (state != DONE) ends[state]++;
    for (int i = 0; i < count; i++) drop(i);
    CHECK(gpupool_arena_destroy(arena) != GPUPOOL_E_IN_USE);
    return fired;
}

/* Asleep as before, or awake, with the content; only what cannot be undone breaks the arena, and it
   says which call that was. */
static void each_call(void) {
    static const struct {
        const char *name;
        int breaks;
    } calls[] = {{"cuMemCreate", 0},    {"cuMemMap", 0},      {"cuMemSetAccess", 0},
                 {"cuStreamCreate", 0}, {"cuEventCreate", 0}, {"cuMemHostRegister", 0},
                 {"cuMemcpyAsync", 0},  {"cuEventRecord", 0}, {"cuEventSynchronize", 0},
                 {"cuMemUnmap", 1},     {"cuMemRelease", 1},  {"cuMemFreeHost", 1}};
    for (size_t i = 0; i < KIT_COUNT(calls); i++) {
        int ends[2] = {0, 0}, n = 1;
        for (; n < 60; n += 1 + n / 8) {
            int fired;
            check_case("%s, call %d", calls[i].name, n);
            kit_prepare();
            fake_quiet(1);
            fired = call_fails(calls[i].name, n, ends);
            CHECK_EQ(fake_misuses(), 0);
            memset(kit_stream, 0, sizeof kit_stream);
            fake_reset();
            if (!fired) break;
        }
        check_case("%s: %d as before, %d broken", calls[i].name, ends[AS_BEFORE], ends[BROKEN]);
        CHECK(n > 1 && n < 60);
        CHECK_EQ(ends[calls[i].breaks ? AS_BEFORE : BROKEN], 0);
        CHECK(calls[i].breaks ? ends[BROKEN] > 0 : 1);
    }
    fake_quiet(0);
}
#endif

int main(void) {
    KIT_TEST(gaps);
    KIT_TEST(many_pieces);
    KIT_TEST(large_pieces);
    KIT_TEST(freed_meanwhile);
    KIT_TEST(backups_again);
#if CHECK_FAKE
    KIT_TEST(each_call);
#endif
    return check_finish();
}
