/* The prototype of the third edition as the world sees it. Build with -I to its core.h's folder. */
#include "core.h"

typedef gpi_arena world_arena;

static int world_open(world_arena **arena, uint64_t limit) {
    return gpi_arena_create(arena, 0, limit);
}
/* *is_short: whether memory ran out, the one failure that is no bug. */
static void *world_alloc(world_arena *arena, uint64_t bytes, uint64_t alignment,
                         cudaStream_t stream, int *is_short) {
    gpi_result result = 0;
    void *block = gpi_alloc(arena, bytes, alignment, stream, &result);
    *is_short = result == GPI_E_OUT_OF_MEMORY;
    return block;
}
static int world_free(world_arena *a, void *block, cudaStream_t s) {
    return gpi_free(a, block, s);
}
static int world_record(world_arena *a, void *block, cudaStream_t s) {
    return gpi_record_stream(a, block, s);
}
static void world_retire(world_arena *arena, cudaStream_t stream) {
    gpi_retire(arena, stream);
}
static int world_trim(world_arena *arena) {
    return gpi_trim_all(arena, 0);
}
static int world_check(world_arena *arena) {
    return gpi_check(arena);
}
static int world_close(world_arena *arena) {
    return gpi_arena_destroy(arena);
}

enum { WORLD_INNER = 512 }; /* the prototype takes any address of the first unit for the block */
