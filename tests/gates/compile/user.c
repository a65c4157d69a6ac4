/* A file that uses gpupool and has no implementation; in any language. */
#include "user.h"

int use_blocks(gpupool_arena *arena) {
    gpupool_request request = {1000, 256, 0, GPUPOOL_ZEROED, "a label"};
    gpupool_stats stats;
    gpupool_block found;
    void *small = gpupool_alloc(arena, 100, 0);
    void *zeroed = gpupool_alloc_request(arena, &request);
    void *large = gpupool_alloc(arena, 10 << 20, GPUPOOL_NO_STREAM);
    int wrong = !small + !zeroed + !large;
    wrong += gpupool_get_block(arena, zeroed, &found) != GPUPOOL_OK || found.requested != 1000;
    wrong += gpupool_get_stats(arena, &stats) != GPUPOOL_OK || stats.blocks != 3;
    wrong += gpupool_free(arena, small, 0) != GPUPOOL_OK;
    wrong += gpupool_free(arena, zeroed, 0) != GPUPOOL_OK;
    wrong += gpupool_free(arena, large, GPUPOOL_NO_STREAM) != GPUPOOL_OK;
    return wrong;
}
