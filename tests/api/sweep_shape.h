/* sweep_shape.h: the steps of test_sweep.c about the default arena and cudaMalloc's own shape, and
   what comes after a reset of the device. */
#ifndef SWEEP_SHAPE_H
#define SWEEP_SHAPE_H

#include "sweep_world.h"

static void *plain, *ordered; /* from cudaMalloc, and from cudaMallocAsync */
static int is_reset, is_stale; /* stale: the default arena, until it is renewed */

/* What CUDA's own call would have left as its last error is what this call returned; it makes a
   call of CUDA's for that, which must not fail in another way. */
static gpupool_result shaped(cudaError_t error) {
    int is_kept = error == cudaErrorMemoryAllocation || error == cudaErrorInvalidValue;
    cudaError_t last = cudaGetLastError();
    if (!for_good) CHECK(last == (is_kept ? error : cudaSuccess));
    CHECK_EQ(error == cudaSuccess, gpupool_last_result() == GPUPOOL_OK);
    return gpupool_last_result();
}

static gpupool_result get_default(void) {
    gpupool_arena *found = gpupool_get_default_arena(0);
    if (found && shared) CHECK(found == shared);
    if (found) shared = found;
    return kit_why(found);
}

static gpupool_result find_default(void) {
    gpupool_arena *found = gpupool_find_default_arena(0);
    CHECK(found == shared);
    return gpupool_last_result();
}

static gpupool_result cuda_malloc(void) {
    NEEDS(shared && !is_stale);
    void *at = NULL;
    gpupool_result result = shaped(gpupool_cudaMalloc(&at, 3 * MIB));
    CHECK_EQ(result == GPUPOOL_OK, at != NULL);
    plain = at;
    if (at) kit_mark(0, at, 3 * MIB, 1);
    return result;
}

static gpupool_result cuda_malloc_async(void) {
    NEEDS(shared && kit_stream[1]);
    void *at = NULL;
    gpupool_result result = shaped(gpupool_cudaMallocAsync(&at, 5000, kit_stream[1]));
    CHECK_EQ(result == GPUPOOL_OK, at != NULL);
    ordered = at;
    if (at) kit_mark(kit_stream[1], at, 5000, 2);
    return result;
}

static gpupool_result cuda_free(void) {
    NEEDS(plain);
    kit_expect_mark(0, plain, 3 * MIB, 1);
    gpupool_result result = shaped(gpupool_cudaFree(plain));
    if (result == GPUPOOL_OK) plain = NULL;
    return result;
}

static gpupool_result cuda_free_async(void) {
    NEEDS(ordered);
    kit_expect_mark(kit_stream[1], ordered, 5000, 2);
    gpupool_result result = shaped(gpupool_cudaFreeAsync(ordered, kit_stream[1]));
    if (result == GPUPOOL_OK) ordered = NULL;
    return result;
}

/* The test's own reset, when nothing but the default arena is left; then the arena is renewed. */
static gpupool_result renew_default(void) {
    NEEDS(shared && !arena && !ring && !plain && !ordered);
    if (!is_reset) {
        own_begin();
        CHECK_EQ(cudaDeviceReset(), cudaSuccess);
        own_end();
        memset(kit_stream, 0, sizeof kit_stream);
        is_reset = is_stale = 1;
    }
    gpupool_result result = get_default();
    if (result == GPUPOOL_OK) is_stale = 0;
    return result;
}

static gpupool_result destroy_default(void) {
    NEEDS(shared);
    gpupool_result result = gpupool_arena_destroy(shared);
    if (result != GPUPOOL_OK) return result;
    shared = NULL;
    is_stale = 0;
    return result;
}

#endif
