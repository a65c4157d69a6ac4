/* The first file: the implementation, and what the second is called with. */
#define GPUPOOL_IMPLEMENTATION
#include "names.h"

static bool served(uint64_t bytes) { /* by the pool, which holds so much for it */
    gpupool_stats stats;
    return gpupool_get_stats(gpupool_get_default_arena(0), &stats) == GPUPOOL_OK &&
           stats.requested.now == bytes;
}

int main() {
    bool fine;
    {
        blocks first(1000), second(2000);
        async_blocks third(50);
        streams mine;
        fine = served(3050) && other_has(first, mine) && other_has(second, mine);
        fine = other_has_async(third) && fine;
        fine = other_async_take() == static_cast<async_take>(cudaFreeAsync) && fine;
    }
    fine = served(0) && fine;
    if (!fine) fprintf(stderr, "names: not served as one program: %s\n", gpupool_last_error());
    return fine ? 0 : 1;
}
