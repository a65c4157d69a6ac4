/* What every language version must take, as C and as C++: the header, and calls to it. */
#include "user.h"

#include "../../../gpupool.h"
#include "../../../gpupool.h" /* a second inclusion changes nothing */

int user_runs(void) {
    gpupool_arena *arena = NULL;
    gpupool_stats stats;
    gpupool_block found;
    destroy_fn destroy = cudaStreamDestroy; /* a deleter knows the arenas too */
    if (destroy == cudas_destroy()) return 0;
    if (gpupool_arena_create(&arena, NULL) != GPUPOOL_OK) return 0;
    void *block = gpupool_alloc(arena, 1000, 0);
    int fine = block != NULL && gpupool_get_block(arena, block, &found) == GPUPOOL_OK &&
               found.requested_bytes == 1000;
    fine = gpupool_free(arena, block, 0) == GPUPOOL_OK && fine;
    fine = gpupool_get_stats(arena, &stats) == GPUPOOL_OK && stats.blocks.now == 0 && fine;
    return gpupool_arena_destroy(arena) == GPUPOOL_OK && fine;
}
