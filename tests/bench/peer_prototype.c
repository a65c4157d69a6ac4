/* A prototype of gpupool's core as a peer: PROTOTYPE names its one file, which brings its own names
   (gpi_...) and no public ones. */
#include "bench.h"

#if GPUPOOL_TEST_GPU
#include "counted_cuda.h"
#endif
#include "machine.h"

#include PROTOTYPE

static void *open_arena(size_t limit_bytes, size_t reserve_bytes, char why[BENCH_WHY]) {
    gpi_arena *arena = NULL;
    (void)reserve_bytes;
    gpi_result result = gpi_arena_create(&arena, 0, limit_bytes);
    if (result == GPI_OK) return arena;
    snprintf(why, BENCH_WHY, "the prototype's arena: error %d", (int)result);
    return NULL;
}

static void *get(void *arena, size_t bytes, cudaStream_t stream) {
    gpi_result result;
    return gpi_alloc(arena, bytes, 1, stream, &result);
}

static int put(void *arena, void *block, cudaStream_t stream) {
    return gpi_free(arena, block, stream) != GPI_OK;
}

static void close_arena(void *arena) {
    if (gpi_arena_destroy(arena) != GPI_OK) fputs("the prototype's arena does not end\n", stderr);
}

static uint64_t reserved_peak(void *arena) { return ((gpi_arena *)arena)->reserved_peak; }

static uint64_t calls(void *arena) {
    machine_calls all = machine_count_calls();
    (void)arena;
    return (uint64_t)machine_all_calls(&all);
}

const bench_peer bench_prototype = {
    .name = "prototype", .about = "a prototype of the third edition's core",
    .can = BENCH_BLOCKS | BENCH_DEVICE | BENCH_MANY | BENCH_HUGE | BENCH_HAND_OVER | BENCH_THREADS,
    .open = open_arena, .get = get, .put = put, .close = close_arena,
    .reserved_peak = reserved_peak, .calls = calls};
