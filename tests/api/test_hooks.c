/* on_map and on_unmap: they hear of every range before a block lies in it, and until it is gone. */
#include "gpupool.h"
#include "kit.h"

#define A kit_stream[0]
#define RANGES 256

/* What a network card would have registered. */
static gpupool_mapping ranges[RANGES];
static size_t gone_bytes[RANGES]; /* of ranges without memory of their own: stitches */
static int gone;
static int count, maps, unmaps, wrong, refuse_from; /* refuse_from: the map of this number, or 0 */

static int on_map(const gpupool_mapping *mapping, void *user) {
    wrong += user != ranges || !mapping->bytes || count == RANGES;
    if (refuse_from && maps + 1 >= refuse_from) return 1;
    for (int i = 0; i < count; i++)
        wrong += (char *)mapping->memory < (char *)ranges[i].memory + ranges[i].bytes &&
                 (char *)ranges[i].memory < (char *)mapping->memory + mapping->bytes;
    ranges[count++] = *mapping;
    maps++;
    return 0;
}

static void on_unmap(const gpupool_mapping *mapping, void *user) {
    int i = 0;
    if (!mapping->handle) gone_bytes[gone++ % RANGES] = mapping->bytes;
    while (i < count && (ranges[i].memory != mapping->memory || ranges[i].bytes != mapping->bytes ||
                         ranges[i].handle != mapping->handle))
        i++;
    wrong += user != ranges || i == count;
    if (i < count) ranges[i] = ranges[--count];
    unmaps++;
}

static gpupool_arena *create(gpupool_source source, size_t limit, size_t chunk_bytes) {
    gpupool_arena_config config = kit_config(source, limit);
    config.chunk_bytes = chunk_bytes;
    config.on_map = on_map;
    config.on_unmap = on_unmap;
    config.user = ranges;
    count = maps = unmaps = wrong = refuse_from = gone = 0;
    return kit_create(&config);
}

static void end(gpupool_arena *arena) {
    kit_close(arena);
    CHECK_EQ(count, 0);
    CHECK_EQ(maps, unmaps);
    CHECK_EQ(wrong, 0);
}

static int is_inside(const void *block, size_t bytes) {
    for (int i = 0; i < count; i++)
        if ((const char *)block >= (char *)ranges[i].memory &&
            (const char *)block + bytes <= (char *)ranges[i].memory + ranges[i].bytes)
            return 1;
    return 0;
}

static uint64_t bytes_of_chunks(void) {
    uint64_t sum = 0;
    for (int i = 0; i < count; i++) sum += ranges[i].handle ? ranges[i].bytes : 0;
    return sum;
}

static void of_chunks(void) {
    static const gpupool_source sources[] = {GPUPOOL_SOURCE_MAPPED, GPUPOOL_SOURCE_DEVICE,
                                             GPUPOOL_SOURCE_PINNED};
    for (size_t i = 0; i < KIT_COUNT(sources); i++) {
        gpupool_arena *arena = create(sources[i], 0, 0);
        void *block = gpupool_alloc(arena, 1000, A);
        check_case("source %zu", i);
        CHECK(is_inside(block, 1000));
        CHECK_EQ(count, (int)kit_stats(arena).chunks);
        CHECK_EQ(bytes_of_chunks(), i ? 0 : kit_stats(arena).reserved.now);
        kit_free(arena, block, A);
        CHECK_RESULT(gpupool_trim(arena, 0), GPUPOOL_OK);
        CHECK_EQ(count, 0);
        end(arena);
    }
}

/* Refused at once, in the middle of a growth, or for the stitch itself: nothing is handed out,
   nothing is lost, and the same request succeeds later. */
static void refused(void) {
    for (int n = 1; n < 8; n++) {
        gpupool_arena *arena = create(GPUPOOL_SOURCE_MAPPED, 24 * MIB, 0);
        void *pads[3], *block;
        int i;
        check_case("map %d of the request", n);
        for (i = 0; i < 3; i++) pads[i] = gpupool_alloc(arena, 4 * MIB, A);
        kit_free(arena, pads[1], A);
        refuse_from = maps + n;
        block = gpupool_alloc(arena, 16 * MIB, A);
        if (!block) KIT_FAILS(block, GPUPOOL_E_CALLBACK, "on_map");
        else CHECK(is_inside(block, 16 * MIB));
        CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
        CHECK_EQ(bytes_of_chunks(), kit_stats(arena).reserved.now);
#if CHECK_FAKE
        CHECK_EQ(fake_used_bytes(0), kit_stats(arena).reserved.now);
#endif
        refuse_from = 0;
        if (!block) block = gpupool_alloc(arena, 16 * MIB, A);
        CHECK(block);
        kit_write(block, 16 * MIB, A, 1);
        kit_free(arena, block, A);
        kit_free(arena, pads[0], A);
        kit_free(arena, pads[2], A);
        end(arena);
    }
}

/* A stitch has a range of its own, without a handle, in which its block lies. Of idle stitches over
   one chunk the one goes first that was freed longest ago. */
static void oldest_first(void) {
    enum { CHUNKS = 6, BYTES = 2 * MIB };
    gpupool_arena *arena = create(GPUPOOL_SOURCE_MAPPED, CHUNKS * BYTES, BYTES);
    void *blocks[CHUNKS];
    for (int i = 0; i < CHUNKS; i++) blocks[i] = gpupool_alloc(arena, BYTES, A);
    kit_free(arena, blocks[4], A);
    for (size_t i = 2; i <= 3; i++) { /* a stitch of two chunks, and then one of three */
        void *block;
        kit_free(arena, blocks[6 - 2 * i], A);
        block = gpupool_alloc(arena, i * BYTES, A);
        CHECK(is_inside(block, i * BYTES));
        CHECK_EQ(ranges[count - 1].handle, 0);
        kit_free(arena, block, A);
    }
    CHECK_EQ(kit_stats(arena).stitches, 2);
    CHECK_RESULT(gpupool_trim(arena, 0), GPUPOOL_OK);
    CHECK_EQ(gone, 2);
    CHECK_EQ(gone_bytes[0], 2 * BYTES);
    CHECK_EQ(gone_bytes[1], 3 * BYTES);
    for (int i = 1; i < CHUNKS; i += 2) kit_free(arena, blocks[i], A);
    end(arena);
}

/* Sleep takes all ranges back; waking tells of them again or, where one is refused, of none. */
static void asleep(void) {
    gpupool_arena *arena = create(GPUPOOL_SOURCE_MAPPED, 64 * MIB, 2 * MIB);
    void *block = gpupool_alloc(arena, 9 * MIB, A);
    int n = 0;
    do {
        check_case("map %d", ++n);
        CHECK_RESULT(gpupool_sleep(arena, GPUPOOL_KEEP), GPUPOOL_OK);
        CHECK_EQ(count, 0);
        refuse_from = maps + n;
        if (gpupool_wake(arena) == GPUPOOL_OK) break;
        CHECK_EQ(gpupool_last_result(), GPUPOOL_E_CALLBACK);
        CHECK_EQ(count, 0);
        refuse_from = 0;
        CHECK_RESULT(gpupool_wake(arena), GPUPOOL_OK);
        CHECK_EQ(bytes_of_chunks(), kit_stats(arena).reserved.now);
    } while (n < 100);
    CHECK(n > 1);
    kit_free(arena, block, A);
    end(arena);
}

int main(void) {
    KIT_TEST(of_chunks);
    KIT_TEST(oldest_first);
    KIT_TEST(refused);
    KIT_TEST(asleep);
    return check_finish();
}
