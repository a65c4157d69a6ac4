// build: plain
/* GPUPOOL_TRACE: a program's macro is told of each call that allocates or frees, in an order in
   which the calls for one address can be played again. */
#include <stddef.h>
#include <stdio.h>
static void note(const char *kind, const void *pointer, size_t bytes, const void *stream,
                 const char *label);
#define GPUPOOL_TRACE(kind, arena, pointer, bytes, stream, label) \
    note(kind, pointer, bytes, stream, label)
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "kit.h"

#define A kit_stream[0]
#define B kit_stream[1]

static gpupool_arena *arena;
static char told[2000]; /* a word for each call, with the block's number by first appearance */
static const void *numbered[16];
static int was_live; /* at the last free, when it was told */

static int number_of(const void *pointer) {
    int i = 0;
    while (numbered[i] && numbered[i] != pointer) i++;
    numbered[i] = pointer;
    return i;
}

static const char *name_of(const void *stream) {
    if (stream == (const void *)A) return "A";
    if (stream == (const void *)B) return "B";
    return stream == (const void *)GPUPOOL_NO_STREAM ? "none" : "?";
}

static void note(const char *kind, const void *pointer, size_t bytes, const void *stream,
                 const char *label) {
    size_t length = strlen(told);
    gpi_run *run;
    snprintf(told + length, sizeof told - length, "%s %d %zu %s%s%s;", kind,
             pointer ? number_of(pointer) : -1, bytes, name_of(stream), label ? " " : "",
             label ? label : "");
    if (strcmp(kind, "free") == 0) was_live = gpi_alloc_find(arena, pointer, &run) == GPUPOOL_OK;
}

static void each_call(void) {
    gpupool_request request = {5 * MIB, 0, B, 0, "weights"};
    void *small, *large, *again, *third;
    arena = kit_open(16 * MIB);
    small = gpupool_alloc(arena, 100, A);
    large = gpupool_alloc_request(arena, &request);
    CHECK_RESULT(gpupool_record_stream(arena, large, A), GPUPOOL_OK);
    kit_free(arena, small, A);
    CHECK_EQ(was_live, 1);
    again = gpupool_alloc(arena, 120, A); /* by the cache */
    CHECK(again == small);
    CHECK(!gpupool_alloc(arena, 64 * MIB, A));
    kit_free(arena, large, B);
    CHECK_EQ(was_live, 1);
    kit_free(arena, NULL, A); /* no call to play */
    CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess); /* so that the next block is the last one's */
    third = gpupool_alloc(arena, 7, GPUPOOL_NO_STREAM);
    kit_free(arena, third, GPUPOOL_NO_STREAM);
    CHECK_RESULT(gpupool_free_in_host_function(arena, again), GPUPOOL_OK);
    CHECK(strcmp(told, "alloc 0 100 A;alloc 1 5242880 B weights;use 1 0 A;free 0 0 A;alloc 0 120 A;"
                       "alloc -1 67108864 A;free 1 0 B;alloc 1 7 none;free 1 0 none;"
                       "free 0 0 none;") == 0);
    if (atomic_load(&check_bad)) printf("told: %s\n", told);
    kit_close(arena);
}

int main(void) {
    KIT_TEST(each_call);
    return check_finish();
}
