/* How does a captured graph keep its memory while other streams allocate?

   A captured step with allocations is replayed a thousand times beside eager work. Between
   gpupool_begin_capture and gpupool_end_capture the blocks belong to the graph. Meanwhile another
   stream allocates, stamps, verifies and frees blocks of its own.
   What to look at: no wrong numbers; and after gpupool_release_capture the arena has the graph's
   memory again.
   Build: nvcc -I.. graph_replay.cu */
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"

#include <chrono>

static const int STEPS = 1000, LAYERS = 8;
static const size_t COUNT = (size_t)1 << 18; /* numbers of a layer: 2 MiB */

static void die(const char *what, const char *why) {
    fprintf(stderr, "%s: %s\n", what, why);
    exit(EXIT_FAILURE);
}

static void cuda(cudaError_t error, const char *what) {
    if (error != cudaSuccess) die(what, cudaGetErrorString(error));
}

static void pool(gpupool_result result, const char *what) {
    if (result != GPUPOOL_OK) die(what, gpupool_last_error());
}

__global__ void stamp(unsigned long long *x, size_t count, unsigned long long value) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count;
         i += (size_t)gridDim.x * blockDim.x)
        x[i] = value;
}

/* Every number that is not value is an error. */
__global__ void verify(const unsigned long long *x, size_t count, unsigned long long value,
                       unsigned long long *errors) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count;
         i += (size_t)gridDim.x * blockDim.x)
        if (x[i] != value) atomicAdd(errors, 1ull);
}

__global__ void count_step(unsigned long long *steps) { atomicAdd(steps, 1ull); }

struct shared { /* on the device: wrong numbers seen, and steps made */
    unsigned long long errors, steps;
};

static unsigned long long *get(gpupool_arena *arena, size_t count, cudaStream_t stream) {
    void *block = gpupool_alloc(arena, count * sizeof(unsigned long long), stream);
    if (!block) die("alloc", gpupool_last_error());
    return (unsigned long long *)block;
}

/* A step: every layer gets its block, is stamped while the others live, and verified after. */
static void step(gpupool_arena *arena, cudaStream_t stream, shared *on_device, int salt) {
    unsigned long long *layer[LAYERS];
    for (int i = 0; i < LAYERS; i++) {
        layer[i] = get(arena, COUNT, stream);
        stamp<<<64, 256, 0, stream>>>(layer[i], COUNT, salt * 100ull + i);
    }
    for (int i = 0; i < LAYERS; i++) {
        verify<<<64, 256, 0, stream>>>(layer[i], COUNT, salt * 100ull + i, &on_device->errors);
        pool(gpupool_free(arena, layer[i], stream), "free");
    }
    count_step<<<1, 1, 0, stream>>>(&on_device->steps);
    cuda(cudaGetLastError(), "kernel");
}

static cudaGraphExec_t capture(gpupool_arena *arena, cudaStream_t stream, shared *on_device,
                               gpupool_capture **scope) {
    cudaGraph_t graph;
    cudaGraphExec_t replay;
    pool(gpupool_begin_capture(arena, stream, scope), "capture_begin");
    cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "begin");
    step(arena, stream, on_device, 1);
    cuda(cudaStreamEndCapture(stream, &graph), "end");
    pool(gpupool_end_capture(*scope), "capture_end");
    cuda(cudaGraphInstantiate(&replay, graph, 0), "instantiate");
    cuda(cudaGraphDestroy(graph), "graph");
    return replay;
}

static double now() {
    auto since = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration<double>(since).count();
}

static uint64_t reserved(gpupool_arena *arena) {
    gpupool_stats stats;
    pool(gpupool_get_stats(arena, &stats), "stats");
    return stats.reserved.now >> 20;
}

int main() {
    gpupool_arena *arena;
    gpupool_capture *scope;
    cudaStream_t graphs, eager;
    shared *on_device, seen = {};
    pool(gpupool_arena_create(&arena, NULL), "arena");
    cuda(cudaStreamCreateWithFlags(&graphs, cudaStreamNonBlocking), "stream");
    cuda(cudaStreamCreateWithFlags(&eager, cudaStreamNonBlocking), "stream");
    on_device = (shared *)gpupool_zalloc(arena, sizeof *on_device, eager);
    if (!on_device) die("zalloc", gpupool_last_error());
    cuda(cudaStreamSynchronize(eager), "synchronize"); /* zeroed before the other stream uses it */

    cudaGraphExec_t replay = capture(arena, graphs, on_device, &scope);
    double start = now();
    for (int i = 0; i < STEPS; i++) {
        cuda(cudaGraphLaunch(replay, graphs), "launch");
        step(arena, eager, on_device, 2 + i);
    }
    cuda(cudaDeviceSynchronize(), "synchronize");
    double both = now() - start;
    start = now();
    for (int i = 0; i < STEPS; i++) cuda(cudaGraphLaunch(replay, graphs), "launch");
    cuda(cudaDeviceSynchronize(), "synchronize");
    double alone = now() - start;

    cuda(cudaMemcpy(&seen, on_device, sizeof seen, cudaMemcpyDeviceToHost), "download");
    printf("%d replays beside as many eager steps: %.1f us a pair; replays alone: %.1f us each\n",
           STEPS, both * 1e6 / STEPS, alone * 1e6 / STEPS);
    printf("wrong numbers seen: %llu, steps made: %llu\n", seen.errors, seen.steps);
    cuda(cudaGraphExecDestroy(replay), "graph");
    pool(gpupool_release_capture(scope), "capture_release");
    pool(gpupool_free(arena, on_device, eager), "free");
    uint64_t before = reserved(arena);
    pool(gpupool_trim(arena, 0, NULL), "trim");
    printf("reserved: %d MiB; trimmed, now that the graph is gone: %d MiB\n", (int)before,
           (int)reserved(arena));
    cuda(cudaStreamDestroy(graphs), "stream");
    cuda(cudaStreamDestroy(eager), "stream");
    pool(gpupool_arena_destroy(arena), "arena");
    return seen.errors == 0 && seen.steps == 3ull * STEPS ? EXIT_SUCCESS : EXIT_FAILURE;
}
