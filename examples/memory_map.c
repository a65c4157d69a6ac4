/* What is in an arena's memory, block by block?

   gpupool_walk_blocks shows every piece of it: memory_map.h draws that as a picture. memory_viz.py
   turns gpupool's JSON into what PyTorch's viewer shows. trace.h records the program's calls for
   build/replay, with GPUPOOL_TRACE_FILE=calls.trace in the environment.
   Build: cc -I.. -I$CUDA_HOME/include memory_map.c -L$CUDA_HOME/lib64 -lcudart -lpthread
   Run: ./a.out [SVG]
   Prints why 240 MiB are not to be had, and the report. Writes memory_map.svg: weights of layers,
   and between them scratch blocks that three streams have freed, beneath a limit. */
#include "trace.h"

#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "example.h"
#include "memory_map.h"

enum { LAYERS = 24, STREAMS = 3 };

static void *layer(gpupool_arena *arena, size_t bytes, cudaStream_t stream, const char *label) {
    gpupool_request request = {bytes, 0, stream, 0, label};
    return gpupool_alloc_request(arena, &request);
}

int main(int count, char **words) {
    const char *path = count > 1 ? words[1] : "memory_map.svg";
    gpupool_arena_config config = {0};
    gpupool_arena *arena;
    cudaStream_t streams[STREAMS];
    void *weights[LAYERS], *scratch[LAYERS];
    config.limit_bytes = 256 * MIB;
    POOL(gpupool_arena_create(&arena, &config));
    for (int i = 0; i < STREAMS; i++)
        CUDA(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking));
    for (size_t i = 0; i < LAYERS; i++) {
        weights[i] = BLOCK(layer(arena, 3 * MIB + i * 100000, streams[0], "weights"));
        scratch[i] = BLOCK(layer(arena, MIB + i * 110000, streams[i % STREAMS], "scratch"));
    }
    for (int i = 0; i < LAYERS; i++) POOL(gpupool_free(arena, scratch[i], streams[i % STREAMS]));

    FILE *file = fopen(path, "w"); /* drawn before work is waited for: so some is pending */
    if (!file) FAIL(path, "cannot be written");
    POOL(memory_map_write(arena, file));
    if (fclose(file) != 0) FAIL(path, "cannot be written");
    if (!layer(arena, 240 * MIB, streams[0], "too much")) printf("%s\n", gpupool_last_error());
    POOL(gpupool_report(arena, stdout));

    for (int i = 0; i < LAYERS; i++) POOL(gpupool_free(arena, weights[i], streams[0]));
    POOL(gpupool_arena_destroy(arena));
    for (int i = 0; i < STREAMS; i++) CUDA(cudaStreamDestroy(streams[i]));
    return EXIT_SUCCESS;
}
