/* race_kit.h: random schedules under the race oracle of fakecuda. A script is a function that makes
   calls with random figures and lets random streams run a little in between; race_each runs it with
   one seed after the other. Include it after gpupool.h; needs fakecuda's controls. */
#ifndef RACE_KIT_H
#define RACE_KIT_H

#include "arena_kit.h"

#if CHECK_FAKE

#define RACE_BYTES (2 * MIB) /* what an arena of these tests may hold */

static gpupool_arena *arena;
static size_t race_bytes = RACE_BYTES; /* what race_each lets them hold */
static uint64_t race_random;
static cudaStream_t race_others[8]; /* streams beside kit_stream that a script may let run */

static inline uint64_t race_below(uint64_t bound) { return check_below(&race_random, bound); }

static inline cudaStream_t race_stream(void) { return kit_stream[race_below(KIT_STREAMS)]; }

/* Random streams run a few operations. */
static inline void race_drift(void) {
    uint64_t steps = race_below(3) ? race_below(8) : 0;
    while (steps--) {
        uint64_t at = race_below(KIT_STREAMS + KIT_COUNT(race_others));
        cudaStream_t stream = at < KIT_STREAMS ? kit_stream[at] : race_others[at - KIT_STREAMS];
        if (stream) fake_step(stream);
    }
}

/* Work over the whole block, and then some that verifies it. */
static inline void race_work(cudaStream_t stream, void *block, size_t bytes) {
    int byte = (int)race_below(256);
    CHECK_EQ(fake_write(stream, "write", block, bytes, byte), cudaSuccess);
    CHECK_EQ(fake_read(stream, "read", block, bytes, byte), cudaSuccess);
}

/* A block with work on it; NULL where memory is out. */
static inline void *race_get(size_t bytes, cudaStream_t stream) {
    void *block = gpupool_alloc(arena, bytes, stream);
    if (block) race_work(stream, block, bytes);
    else CHECK_RESULT(gpupool_last_result(), GPUPOOL_E_OUT_OF_MEMORY);
    race_drift();
    return block;
}

static inline void race_put(void *block, cudaStream_t stream) {
    if (block) CHECK_RESULT(gpupool_free(arena, block, stream), GPUPOOL_OK);
    race_drift();
}

static inline void race_open(gpupool_source source, size_t bytes) {
    memset(race_others, 0, sizeof race_others);
    arena = kit_open_limited(source, bytes);
    fake_mode(FAKE_STEPPED);
}

static inline void race_close(void) {
    fake_run_all();
    CHECK_EQ(fake_failures(), 0);
    kit_close(arena);
}

/* Stops at the first seed that goes wrong. */
static inline void race_each(int schedules, void (*script)(void)) {
    static const gpupool_source sources[] = {GPUPOOL_SOURCE_MAPPED, GPUPOOL_SOURCE_DEVICE};
    for (size_t s = 0; s < KIT_COUNT(sources); s++) {
        race_open(sources[s], race_bytes);
        for (int seed = 1; seed <= schedules && !fake_failures(); seed++) {
            check_case("source %d, seed %d", (int)sources[s], seed);
            race_random = (uint64_t)seed;
            script();
            if (seed % 64 == 0) CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
            if (seed % 16 == 0) fake_run_all();
        }
        race_close();
    }
}

#endif
#endif
