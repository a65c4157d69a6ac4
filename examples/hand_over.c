/* How does a block go from one stream to another?

   One stream fills blocks, another reads them, and the host waits for neither. An event makes the
   reader wait for the writer. Then there are two ways to end the block. The reader, who used the
   block last, frees it on its own stream. Or the writer frees it, after gpupool_record_stream has
   said that the reader uses it too: then the memory is the writer's again, once the reader is done.
   Build: cc -I.. -I$CUDA_HOME/include hand_over.c -L$CUDA_HOME/lib64 -lcudart -lpthread
   Prints for both ways the memory reserved for 200 blocks of 4 MiB, how often one stream waited for
   the other to get memory, and how often the host waited; and that no byte was wrong. */
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "example.h"

enum { BLOCKS = 200 };
static const size_t BYTES = 4 * MIB;

typedef struct pipeline {
    gpupool_arena *arena;
    cudaStream_t writer, reader;
    cudaEvent_t filled;
    unsigned char *seen; /* on the device: a byte of each block */
} pipeline;

/* Block i is filled by one stream, and read by the other. */
static void *pass_on(const pipeline *p, int i) {
    char *block = (char *)BLOCK(gpupool_alloc(p->arena, BYTES, p->writer));
    CUDA(cudaMemsetAsync(block, i, BYTES, p->writer));
    CUDA(cudaEventRecord(p->filled, p->writer));
    CUDA(cudaStreamWaitEvent(p->reader, p->filled, 0)); /* in both ways: the reader waits */
    CUDA(cudaMemcpyAsync(p->seen + i, block + BYTES / 2, 1, cudaMemcpyDeviceToDevice, p->reader));
    return block;
}

static void reader_frees(const pipeline *p, void *block) {
    POOL(gpupool_free(p->arena, block, p->reader));
}

static void writer_frees(const pipeline *p, void *block) {
    POOL(gpupool_record_stream(p->arena, block, p->reader));
    POOL(gpupool_free(p->arena, block, p->writer));
}

static int count_wrong(const pipeline *p) {
    unsigned char seen[BLOCKS];
    int wrong = 0;
    CUDA(cudaMemcpyAsync(seen, p->seen, BLOCKS, cudaMemcpyDeviceToHost, p->reader));
    CUDA(cudaStreamSynchronize(p->reader));
    for (int i = 0; i < BLOCKS; i++) wrong += seen[i] != i;
    return wrong;
}

static int run(const char *way, void (*end)(const pipeline *, void *)) {
    pipeline p;
    gpupool_stats stats;
    POOL(gpupool_arena_create(&p.arena, NULL));
    CUDA(cudaStreamCreateWithFlags(&p.writer, cudaStreamNonBlocking));
    CUDA(cudaStreamCreateWithFlags(&p.reader, cudaStreamNonBlocking));
    CUDA(cudaEventCreateWithFlags(&p.filled, cudaEventDisableTiming));
    p.seen = (unsigned char *)BLOCK(gpupool_alloc(p.arena, BLOCKS, p.reader));
    for (int i = 0; i < BLOCKS; i++) end(&p, pass_on(&p, i));
    POOL(gpupool_get_stats(p.arena, &stats));
    int wrong = count_wrong(&p);
    printf("  %-14s %6.0f MiB reserved, %3llu waits of a stream, %llu of the host, %d wrong\n", way,
           example_mib(stats.reserved.peak), (unsigned long long)stats.stream_waits,
           (unsigned long long)stats.host_waits, wrong);
    POOL(gpupool_free(p.arena, p.seen, p.reader));
    POOL(gpupool_arena_destroy(p.arena));
    CUDA(cudaEventDestroy(p.filled));
    CUDA(cudaStreamDestroy(p.writer));
    CUDA(cudaStreamDestroy(p.reader));
    return wrong;
}

int main(void) {
    printf("%d blocks of %zu MiB from one stream to another\n", BLOCKS, BYTES / MIB);
    int wrong = run("reader frees", reader_frees);
    wrong += run("writer frees", writer_frees);
    return wrong ? EXIT_FAILURE : EXIT_SUCCESS;
}
