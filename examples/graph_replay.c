/* How does a captured graph keep its memory while other streams allocate?

   gpupool_begin_capture opens a scope on the stream, before CUDA's capture begins. What the stream
   allocates in the scope belongs to the graph, also what it frees in it, until
   gpupool_release_capture: so a replay writes into nobody else's blocks. Within the graph a freed
   block's memory is used again.
   Build: cc -I.. -I$CUDA_HOME/include graph_replay.c -L$CUDA_HOME/lib64 -lcudart -lpthread
   Prints how many of 200 replays, beside another stream's blocks, had a wrong byte: none. */
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "example.h"

enum { REPLAYS = 200, LAYERS = 4 };
static const size_t BYTES = 2 * MIB;

/* Each layer fills a block and hands a byte of it to the result; the next one may reuse it. */
static void step(gpupool_arena *arena, cudaStream_t stream, int value, unsigned char *result) {
    for (int i = 0; i < LAYERS; i++) {
        char *layer = (char *)BLOCK(gpupool_alloc(arena, BYTES, stream));
        CUDA(cudaMemsetAsync(layer, value, BYTES, stream)); /* your kernels go here */
        CUDA(cudaMemcpyAsync(result + i, layer + BYTES / 2, 1, cudaMemcpyDeviceToDevice, stream));
        POOL(gpupool_free(arena, layer, stream));
    }
}

static cudaGraphExec_t capture(gpupool_arena *arena, cudaStream_t stream, unsigned char *result,
                               gpupool_capture **scope) {
    cudaGraph_t graph;
    cudaGraphExec_t replay;
    POOL(gpupool_begin_capture(arena, stream, scope));
    CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    step(arena, stream, 7, result);
    CUDA(cudaStreamEndCapture(stream, &graph));
    POOL(gpupool_end_capture(*scope)); /* the graph keeps its memory */
    CUDA(cudaGraphInstantiate(&replay, graph, 0));
    CUDA(cudaGraphDestroy(graph));
    return replay;
}

static int is_wrong(const unsigned char *result, cudaStream_t stream) {
    unsigned char seen[LAYERS];
    int wrong = 0;
    CUDA(cudaMemcpyAsync(seen, result, LAYERS, cudaMemcpyDeviceToHost, stream));
    CUDA(cudaStreamSynchronize(stream));
    for (int i = 0; i < LAYERS; i++) wrong |= seen[i] != 7;
    return wrong;
}

int main(void) {
    gpupool_arena *arena;
    gpupool_capture *scope;
    cudaStream_t graphs, eager;
    int wrong = 0;
    POOL(gpupool_arena_create(&arena, NULL));
    CUDA(cudaStreamCreateWithFlags(&graphs, cudaStreamNonBlocking));
    CUDA(cudaStreamCreateWithFlags(&eager, cudaStreamNonBlocking));
    unsigned char *result = (unsigned char *)BLOCK(gpupool_alloc(arena, LAYERS, graphs));
    unsigned char *other = (unsigned char *)BLOCK(gpupool_alloc(arena, LAYERS, eager));

    cudaGraphExec_t replay = capture(arena, graphs, result, &scope);
    for (int i = 0; i < REPLAYS; i++) {
        CUDA(cudaGraphLaunch(replay, graphs));
        step(arena, eager, 9, other); /* at the same time, with memory of its own */
        wrong += is_wrong(result, graphs);
    }
    printf("%d of %d replays had a wrong byte\n", wrong, REPLAYS);

    CUDA(cudaGraphExecDestroy(replay));
    POOL(gpupool_free(arena, result, graphs));
    POOL(gpupool_free(arena, other, eager));
    POOL(gpupool_release_capture(scope)); /* the graph is gone: so may its memory be */
    POOL(gpupool_arena_destroy(arena));
    CUDA(cudaStreamDestroy(graphs));
    CUDA(cudaStreamDestroy(eager));
    return wrong ? EXIT_FAILURE : EXIT_SUCCESS;
}
