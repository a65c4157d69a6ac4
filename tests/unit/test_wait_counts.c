/* How long the calls of a stream wait for the arena's lock is counted in the stream's cache, which
   comes to use once that is long. Another thread gives the lock back where this one looks at it, so
   that they always meet. */
static void on_look(const void *place);
#define __atomic_load_n(place, order) (on_look(place), __atomic_load_n(place, order))
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#undef __atomic_load_n
#include "arena_kit.h"

enum { PAUSE = 64, LONG = 256, RESTS = 1000 }; /* what counts for a pause, and as a long wait */

static gpupool_arena *arena;
static unsigned looks, opens_at; /* opens_at 0: the lock is open */

static void on_look(const void *place) {
    if (opens_at && place == &arena->lock.held && ++looks == opens_at) {
        opens_at = 0;
        arena->lock.held = 0;
    }
}

static gpi_cache *cache(void) {
    return &gpi_clock_find(&arena->clocks, gpi_clock_key(kit_stream[0]))->cache;
}

/* A free that finds the lock taken, for so many looks. */
static void free_and_wait(unsigned rounds) {
    void *block = kit_alloc(arena, 5000, kit_stream[0]);
    cache()->waits = 0;
    cache()->rest = RESTS;
    gpi_host_lock(&arena->lock);
    looks = 0;
    opens_at = rounds;
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
    CHECK_EQ(opens_at, 0);
    CHECK_EQ(looks, rounds);
}

/* A short wait is forgotten, by as many calls that do not wait as there were pauses times 64; and
   the cache goes on with its rest. */
static void a_short_wait(void) {
    arena = kit_open(GPUPOOL_SOURCE_DEVICE);
    for (unsigned rounds = 1; rounds < LONG / PAUSE; rounds++) {
        check_case("%u rounds", rounds);
        free_and_wait(rounds);
        CHECK_EQ(cache()->waits, PAUSE * rounds);
        CHECK_EQ(cache()->rest, RESTS - 1);
        CHECK(!cache()->crowded);
    }
    uint32_t before = cache()->waits;
    void *block = kit_alloc(arena, 5000, kit_stream[0]);
    CHECK_EQ(cache()->waits, before - 1);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
    CHECK_EQ(cache()->waits, before - 2);
    kit_close(arena);
}

/* A long one ends the rest, and the block goes to the cache. A free takes the lock once more for
   that, without a wait: one pause more makes the cache a crowded one. */
static void a_long_wait(void) {
    for (unsigned more = 0; more < 2; more++) {
        arena = kit_open(GPUPOOL_SOURCE_DEVICE);
        free_and_wait(LONG / PAUSE + more);
        CHECK_EQ(cache()->rest, 0);
        CHECK_EQ(cache()->free_blocks, 1);
        CHECK_EQ(cache()->crowded != 0, more);
        kit_close(arena);
    }
}

int main(void) {
    ARENA_TEST(a_short_wait);
    ARENA_TEST(a_long_wait);
    return check_finish();
}
