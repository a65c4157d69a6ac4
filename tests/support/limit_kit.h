/* limit_kit.h: random blocks under a limit of 40 MiB, of every source: what is reserved never
   exceeds the limit. For builds with statistics and without. */
#ifndef LIMIT_KIT_H
#define LIMIT_KIT_H

#include "arena_kit.h"

/* reserved: the most that the arena has had, or has now. */
static void limit_holds(uint64_t seed, uint64_t (*reserved)(gpupool_arena *)) {
    for (size_t i = 0; i < KIT_SOURCES; i++) {
        gpupool_arena *arena = kit_open_limited(kit_sources[i].source, 40 * MIB);
        void *block[64] = {NULL};
        uint64_t random = seed;
        int refused = 0;
        for (int step = 0; step < 1500; step++) {
            check_case("%s, step %d", kit_sources[i].name, step);
            size_t k = (size_t)check_below(&random, 64);
            cudaStream_t stream = kit_stream[check_below(&random, 4)];
            if (block[k]) {
                CHECK_RESULT(gpupool_free(arena, block[k], stream), GPUPOOL_OK);
                block[k] = NULL;
            } else {
                block[k] = gpupool_alloc(arena, 1 + (size_t)check_below(&random, 5 * MIB), stream);
                refused += block[k] == NULL;
                if (!block[k]) CHECK_RESULT(gpupool_last_result(), GPUPOOL_E_OUT_OF_MEMORY);
            }
            CHECK(reserved(arena) <= 40 * MIB);
            if (step % 20 == 0) CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
#if CHECK_FAKE /* cudaMalloc itself rounds up, so only mapped memory comes out the same */
            if (kit_sources[i].source == GPUPOOL_SOURCE_MAPPED)
                CHECK(fake_used_bytes(0) <= 40 * MIB);
#endif
        }
        CHECK(refused > 0);
        for (size_t k = 0; k < 64; k++)
            CHECK_RESULT(gpupool_free(arena, block[k], kit_stream[0]), GPUPOOL_OK);
        kit_close(arena);
    }
}

#endif
