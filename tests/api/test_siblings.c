/* Two arenas of a device that is full: before a request of one fails, it gets the idle chunks of
   the other. */
#include "gpupool.h"
#include "kit.h"

#define A kit_stream[0]
#define B kit_stream[1]
#define ALL (64 * MIB) /* of the device */
#define MOST (40 * MIB)

static gpupool_arena *arena, *other;

#if CHECK_FAKE

static void begin(size_t limit) {
    fake_device_memory(0, ALL);
    arena = kit_open(limit);
    other = kit_open(0);
}

static void end(void) {
    kit_close(arena);
    kit_close(other);
}

/* The other arena has freed most of the device's memory, and keeps it. */
static void fill_other(void) {
    void *block = gpupool_alloc(other, MOST, B);
    CHECK(block);
    kit_write(block, MOST, B, 1);
    kit_free(other, block, B);
    CHECK(kit_stats(other).reserved.now >= MOST);
}

static void *use(unsigned flags, cudaStream_t stream) {
    void *block = kit_alloc_as(arena, MOST, 0, stream, flags);
    kit_write(block, MOST, A, 2);
    return block;
}

static void idle_chunks_go_over(void) {
    for (int i = 0; i < 4; i++) {
        check_case("%d", i);
        begin(0);
        fill_other();
        CHECK_RESULT(i & 1 ? gpupool_trim(other, MOST) : GPUPOOL_OK, GPUPOOL_OK);
        kit_free(arena, use(0, i & 2 ? GPUPOOL_NO_STREAM : A), A);
        CHECK(kit_stats(arena).reserved.now >= MOST);
        CHECK(kit_stats(other).reserved.now <= ALL - MOST);
        end();
    }
}

/* To and fro, each the other's sibling; work is queued and not run before somebody waits. */
static void by_turns(void) {
    begin(0);
    fake_mode(FAKE_STEPPED);
    for (int i = 0; i < 10; i++) {
        gpupool_arena *one = i % 2 ? other : arena;
        void *block = gpupool_alloc(one, MOST, kit_stream[i % 3]);
        check_case("turn %d", i);
        CHECK(block);
        kit_write(block, MOST, kit_stream[i % 3], i);
        kit_free(one, block, kit_stream[i % 3]);
    }
    fake_mode(FAKE_EAGER);
    end();
}

/* Its own limit, live blocks and pending work are no sibling's affair. */
static void not_for_everything(void) {
    uint64_t reserved;
    void *block;
    begin(16 * MIB);
    fill_other();
    reserved = kit_stats(other).reserved.now;
    KIT_FAILS(gpupool_alloc(arena, MOST, A), GPUPOOL_E_OUT_OF_MEMORY, "limit");
    CHECK_EQ(kit_stats(other).reserved.now, reserved);
    CHECK_RESULT(gpupool_set_limit(arena, 0), GPUPOOL_OK);
    block = gpupool_alloc(other, MOST, B);
    KIT_FAILS(gpupool_alloc(arena, MOST, A), GPUPOOL_E_OUT_OF_MEMORY, "on the device");
    kit_hold(B); /* NO_WAIT does not wait for the other's work either */
    kit_write(block, MOST, B, 3);
    kit_free(other, block, B);
    CHECK(!use(GPUPOOL_NO_WAIT, A));
    CHECK_EQ(gpupool_last_result(), GPUPOOL_E_OUT_OF_MEMORY);
    kit_let_go(B);
    kit_free(arena, use(0, A), A);
    end();
}

/* Another device's arena, or one that has no device memory, is no sibling. */
static void who_is_none(void) {
    for (int device = 0; device < 2; device++) {
        gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_PINNED, 0);
        gpupool_arena *stranger;
        void *block;
        begin(0);
        if (device) config.source = GPUPOOL_SOURCE_MAPPED;
        config.device = device;
        stranger = kit_create(&config);
        kit_free(stranger, gpupool_alloc(stranger, MOST, GPUPOOL_NO_STREAM), GPUPOOL_NO_STREAM);
        block = gpupool_alloc(arena, MOST, A);
        KIT_FAILS(gpupool_alloc(other, MOST, A), GPUPOOL_E_OUT_OF_MEMORY, "on the device");
        CHECK(kit_stats(stranger).reserved.now >= MOST);
        kit_free(arena, block, A);
        kit_close(stranger);
        end();
    }
}

int main(void) {
    KIT_TEST(idle_chunks_go_over);
    KIT_TEST(by_turns);
    KIT_TEST(not_for_everything);
    KIT_TEST(who_is_none);
    return check_finish();
}

#else
int main(void) {
    (void)arena, (void)other;
    check_skip("siblings", "needs a small device");
    return check_finish();
}
#endif
