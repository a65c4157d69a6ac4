/* What is the largest batch that fits?

   First the program doubles the batch until a step runs out of memory half-way, and the work of the
   step is lost. Then gpupool_would_fit finds the largest batch, and the step runs.
   What to look at: the second search has no failed allocation, and the verdict says what one sample
   more would need.
   Build: nvcc -I.. growing_batch.c */
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"

#include <stdlib.h>

#define LIMIT "200MiB"
#define INPUT_BYTES ((size_t)150528) /* of one sample: 224 x 224 x 3 */
#define ACTIVATION_BYTES ((size_t)1500000)
#define PARTS 3

static void die(const char *what, const char *why) {
    fprintf(stderr, "%s: %s\n", what, why);
    exit(EXIT_FAILURE);
}

/* A training step: input, activations and their gradients are alive together. 0: out of memory, and
   the verdict says why. */
static int step(gpupool_arena *arena, size_t batch, cudaStream_t stream, gpupool_verdict *why) {
    const size_t bytes[PARTS] = {batch * INPUT_BYTES, batch * ACTIVATION_BYTES,
                                 batch * ACTIVATION_BYTES};
    void *block[PARTS] = {NULL};
    int done = 0;
    for (; done < PARTS; done++) {
        block[done] = gpupool_alloc(arena, bytes[done], stream);
        if (!block[done]) break;
        cudaError_t error = cudaMemsetAsync(block[done], 0, bytes[done], stream); /* your kernels */
        if (error != cudaSuccess) die("memset", cudaGetErrorString(error));
    }
    if (done < PARTS && gpupool_last_result() != GPUPOOL_E_OUT_OF_MEMORY)
        die("alloc", gpupool_last_error());
    if (done < PARTS && gpupool_last_verdict(why) != GPUPOOL_OK)
        die("verdict", gpupool_last_error());
    for (int i = 0; i < done; i++)
        if (gpupool_free(arena, block[i], stream) != GPUPOOL_OK) die("free", gpupool_last_error());
    return done == PARTS;
}

/* What a step takes in all: where one block of it fits, so do its parts, which the extra units for
   rounding each of them up make sure of. */
static size_t step_bytes(size_t batch) {
    return batch * (INPUT_BYTES + 2 * ACTIVATION_BYTES) + PARTS * (size_t)512;
}

static uint64_t failures(gpupool_arena *arena) {
    gpupool_stats stats;
    if (gpupool_get_stats(arena, &stats) != GPUPOOL_OK) die("stats", gpupool_last_error());
    return stats.failures;
}

static void by_crashing(gpupool_arena *arena, cudaStream_t stream) {
    size_t batch = 1;
    gpupool_verdict why;
    printf("before: doubling until it breaks\n");
    for (; step(arena, batch, stream, &why); batch *= 2) printf("  batch %4zu  fine\n", batch);
    printf("  batch %4zu  lost half way: %s\n\n", batch, why.sentence);
}

static int would_fit(gpupool_arena *arena, size_t bytes, gpupool_verdict *why) {
    gpupool_result result = gpupool_would_fit(arena, bytes, why);
    if (result != GPUPOOL_OK && result != GPUPOOL_E_OUT_OF_MEMORY)
        die("would_fit", gpupool_last_error());
    return result == GPUPOOL_OK;
}

/* The largest batch that fits: `fits` does, `fails` does not. */
static size_t by_asking(gpupool_arena *arena, cudaStream_t stream) {
    size_t fits = 0, fails = 1;
    int questions = 0;
    gpupool_verdict why;
    cudaError_t error = cudaStreamSynchronize(stream); /* work in flight could blur the answer */
    if (error != cudaSuccess) die("synchronize", cudaGetErrorString(error));
    printf("after: asking\n");
    for (; would_fit(arena, step_bytes(fails), NULL); fails *= 2, questions++) fits = fails;
    while (fails - fits > 1) {
        size_t middle = fits + (fails - fits) / 2;
        questions++;
        if (would_fit(arena, step_bytes(middle), NULL)) fits = middle;
        else fails = middle;
    }
    printf("  batch %4zu  is the largest, after %d questions\n", fits, questions);
    if (would_fit(arena, step_bytes(fails), &why)) die("would_fit", "changed its mind");
    printf("  batch %4zu  would not: %s\n", fails, why.sentence);
    return fits;
}

int main(void) {
    gpupool_arena *arena;
    gpupool_arena_config config = {0};
    gpupool_verdict why;
    cudaStream_t stream;
    config.limit_text = LIMIT;
    config.name = "training";
    if (gpupool_arena_create(&arena, &config) != GPUPOOL_OK) die("arena", gpupool_last_error());
    cudaError_t error = cudaStreamCreate(&stream);
    if (error != cudaSuccess) die("stream", cudaGetErrorString(error));

    by_crashing(arena, stream);
    uint64_t failed = failures(arena);
    size_t batch = by_asking(arena, stream);
    if (batch == 0) die("would_fit", "not even one sample fits");
    for (int i = 0; i < 10; i++)
        if (!step(arena, batch, stream, &why)) die("a step of the batch found", why.sentence);
    printf("  10 steps of it ran; allocations that failed: %d\n", (int)(failures(arena) - failed));

    error = cudaStreamDestroy(stream);
    if (error != cudaSuccess) die("stream", cudaGetErrorString(error));
    if (gpupool_arena_destroy(arena) != GPUPOOL_OK) die("destroy", gpupool_last_error());
    return failed == 0 ? EXIT_FAILURE : EXIT_SUCCESS; /* the first part was to fail once */
}
