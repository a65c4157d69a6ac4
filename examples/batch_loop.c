/* How do upload, work and download of successive batches overlap?

   Each of two streams has a batch on its way, from ordinary host memory and back to it. The ring
   uploads; the stream works; a download with a ticket returns at once, so that the other stream's
   batch goes up meanwhile. Blocks come from an arena.
   Build: cc -I.. -I$CUDA_HOME/include batch_loop.c -L$CUDA_HOME/lib64 -lcudart -lpthread
   Prints the seconds, and how little memory was pinned; the last batches are checked. */
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "example.h"

#include <string.h>

enum { STREAMS = 2, BATCHES = 24 };
static const size_t BYTES = 8 * MIB; /* of a batch */

static char *in, *out[STREAMS]; /* a batch each, in ordinary memory */

/* Your kernels go here: this one hands the batch on. */
static void work(void *to, const void *from, cudaStream_t stream) {
    CUDA(cudaMemcpyAsync(to, from, BYTES, cudaMemcpyDeviceToDevice, stream));
}

static gpupool_arena *arena;
static gpupool_ring *ring;

typedef struct lane {
    cudaStream_t stream;
    void *result; /* on its way down, until the ticket has been waited for */
    gpupool_ticket down;
} lane;

static void land(lane *l) {
    if (!l->result) return;
    POOL(gpupool_ring_wait(ring, l->down, -1, NULL));
    POOL(gpupool_free(arena, l->result, l->stream));
    l->result = NULL;
}

static void launch(lane *l, char *to) {
    gpupool_transfer down = {0};
    land(l);
    void *batch = BLOCK(gpupool_alloc(arena, BYTES, l->stream));
    l->result = BLOCK(gpupool_alloc(arena, BYTES, l->stream));
    POOL(gpupool_upload(ring, batch, in, BYTES, l->stream));
    work(l->result, batch, l->stream);
    POOL(gpupool_free(arena, batch, l->stream));
    down.direction = GPUPOOL_DOWN;
    down.from = l->result;
    down.to = to;
    down.bytes = BYTES;
    down.stream = l->stream; /* begins when the work above has finished */
    down.ticket = &l->down;
    POOL(gpupool_ring_transfer(ring, &down));
}

static void overlapped(void) {
    lane lanes[STREAMS] = {{0}};
    for (int i = 0; i < STREAMS; i++)
        CUDA(cudaStreamCreateWithFlags(&lanes[i].stream, cudaStreamNonBlocking));
    for (int i = 0; i < BATCHES; i++) launch(&lanes[i % STREAMS], out[i % STREAMS]);
    for (int i = 0; i < STREAMS; i++) {
        land(&lanes[i]);
        POOL(gpupool_retire_stream(lanes[i].stream));
        CUDA(cudaStreamDestroy(lanes[i].stream));
    }
}

static char *batch_of_the_host(void) {
    char *batch = (char *)malloc(BYTES);
    if (!batch) FAIL("a batch", "no memory");
    for (size_t i = 0; i < BYTES; i++) batch[i] = (char)(i % 251);
    return batch;
}

int main(void) {
    gpupool_ring_stats stats;
    in = batch_of_the_host();
    for (int i = 0; i < STREAMS; i++) out[i] = (char *)memset(batch_of_the_host(), 0, BYTES);
    POOL(gpupool_arena_create(&arena, NULL));
    POOL(gpupool_ring_create(&ring, NULL));
    overlapped(); /* once to warm up: pages, the ring's pinned memory */
    double start = example_seconds();
    overlapped();
    double seconds = example_seconds() - start;
    POOL(gpupool_ring_get_stats(ring, &stats));
    printf("%d batches of %zu MiB, up, worked on, and down again: %.3f s, with %.0f MiB pinned\n",
           BATCHES, BYTES / MIB, seconds, example_mib(stats.pinned));
    for (int i = 0; i < STREAMS; i++) {
        if (memcmp(in, out[i], BYTES) != 0) FAIL("a batch", "a byte is wrong");
        free(out[i]);
    }
    free(in);
    POOL(gpupool_ring_destroy(ring));
    POOL(gpupool_arena_destroy(arena));
    return EXIT_SUCCESS;
}
