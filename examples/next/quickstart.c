/* How does a program get device memory, use it on a stream, and free it?

   It makes an arena, allocates a block for work on a stream, queues the work, and frees the block
   on the same stream. Nobody waits: later blocks of the stream may have the memory at once, since
   their work comes behind.
   Build: cc -I.. -I$CUDA_HOME/include quickstart.c -L$CUDA_HOME/lib64 -lcudart -lpthread
   Prints the arena's report: 64 MiB reserved, no block live, and host_waits 0. */
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"

static int failed(const char *what, const char *why) {
    fprintf(stderr, "%s: %s\n", what, why);
    return 1;
}

static int work(gpupool_arena *arena, cudaStream_t stream) {
    size_t bytes = (size_t)64 << 20;
    void *block = gpupool_alloc(arena, bytes, stream);
    if (!block) return failed("alloc", gpupool_last_error());

    cudaError_t error = cudaMemsetAsync(block, 0, bytes, stream); /* your kernels go here */
    if (error != cudaSuccess) failed("memset", cudaGetErrorString(error));

    if (gpupool_free(arena, block, stream) != GPUPOOL_OK)
        return failed("free", gpupool_last_error());
    return error != cudaSuccess;
}

int main(void) {
    gpupool_arena *arena;
    cudaStream_t stream;
    if (gpupool_arena_create(&arena, NULL) != GPUPOOL_OK)
        return failed("arena", gpupool_last_error());
    cudaError_t error = cudaStreamCreate(&stream);
    if (error != cudaSuccess) return failed("stream", cudaGetErrorString(error));

    int status = work(arena, stream);
    if (gpupool_report(arena, stdout) != GPUPOOL_OK)
        status = failed("report", gpupool_last_error());
    gpupool_retire_stream(stream); /* before its end: the arena forgets the stream */
    cudaStreamDestroy(stream);
    if (gpupool_arena_destroy(arena) != GPUPOOL_OK)
        status = failed("destroy", gpupool_last_error());
    return status;
}
