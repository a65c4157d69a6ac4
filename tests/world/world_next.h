/* The third edition as the world sees it. */
#define GPUPOOL_IMPLEMENTATION
#include "../next/gpupool.h"

typedef gpupool_arena world_arena;

static int world_open(world_arena **arena, uint64_t limit) {
    gpupool_arena_config config = {0};
    config.limit_bytes = limit;
    return gpupool_arena_create(arena, &config);
}
/* *is_short: whether memory ran out, the one failure that is no bug. */
static void *world_alloc(world_arena *arena, uint64_t bytes, uint64_t alignment,
                         cudaStream_t stream, int *is_short) {
    gpupool_request request = {bytes, alignment, stream, 0, "world"};
    void *block = gpupool_alloc_request(arena, &request);
    *is_short = !block && gpupool_last_result() == GPUPOOL_E_OUT_OF_MEMORY;
    return block;
}
static int world_free(world_arena *a, void *block, cudaStream_t s) {
    return gpupool_free(a, block, s);
}
static int world_record(world_arena *a, void *block, cudaStream_t s) {
    return gpupool_record_stream(a, block, s);
}
static void world_retire(world_arena *arena, cudaStream_t stream) {
    (void)arena;
    gpupool_retire_stream(stream);
}
static int world_trim(world_arena *arena) {
    return gpupool_trim(arena, 0);
}
static int world_check(world_arena *arena) {
    return gpupool_check(arena);
}
static int world_close(world_arena *arena) {
    return gpupool_arena_destroy(arena);
}

enum { WORLD_INNER = 1 }; /* bytes from a block that are refused as inside it */
