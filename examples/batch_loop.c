/* How do upload, work and download of successive batches overlap?

   Each of two streams has a batch on its way, from ordinary host memory and back to it. The ring
   uploads; the stream works; a download with a ticket returns at once, so that the other stream's
   batch goes up meanwhile. Blocks come from an arena.
   Build: cc -I.. -I$CUDA_HOME/include batch_loop.c -L$CUDA_HOME/lib64 -lcudart -lpthread
   Run: ./a.out [MIB [BATCHES]]
   Prints the seconds, and how little memory was pinned; the last batches are checked. */
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "example.h"

#include <string.h>

enum { STREAMS = 2 };

typedef struct job {
    size_t bytes; /* of a batch */
    int batches;
    char *in, *out; /* of one batch each, in ordinary memory */
} job;

/* Your kernels go here: this one hands the batch on. */
static void work(void *to, const void *from, size_t bytes, cudaStream_t stream) {
    CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream));
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

static void launch(lane *l, const job *j, char *to) {
    gpupool_transfer down = {0};
    land(l);
    void *in = BLOCK(gpupool_alloc(arena, j->bytes, l->stream));
    l->result = BLOCK(gpupool_alloc(arena, j->bytes, l->stream));
    POOL(gpupool_upload(ring, in, j->in, j->bytes, l->stream));
    work(l->result, in, j->bytes, l->stream);
    POOL(gpupool_free(arena, in, l->stream));
    down.direction = GPUPOOL_DOWN;
    down.from = l->result;
    down.to = to;
    down.bytes = j->bytes;
    down.stream = l->stream; /* begins when the work above has finished */
    down.ticket = &l->down;
    POOL(gpupool_ring_transfer(ring, &down));
}

static void overlapped(const job *j) {
    lane lanes[STREAMS] = {{0}};
    for (int i = 0; i < STREAMS; i++)
        CUDA(cudaStreamCreateWithFlags(&lanes[i].stream, cudaStreamNonBlocking));
    for (int i = 0; i < j->batches; i++) {
        lane *l = &lanes[i % STREAMS];
        launch(l, j, j->out + (size_t)(i % STREAMS) * j->bytes);
    }
    for (int i = 0; i < STREAMS; i++) {
        land(&lanes[i]);
        POOL(gpupool_retire_stream(lanes[i].stream));
        CUDA(cudaStreamDestroy(lanes[i].stream));
    }
}

/* Once to warm up (pages, the ring's pinned memory), and once measured. */
static void measure(const job *j) {
    double start = 0;
    for (int round = 0; round < 2; round++) {
        start = example_seconds();
        overlapped(j);
    }
    double seconds = example_seconds() - start;
    for (int i = 0; i < STREAMS; i++)
        if (memcmp(j->in, j->out + (size_t)i * j->bytes, j->bytes) != 0)
            FAIL("a batch", "a byte is wrong");
    printf("  %.3f s, %.1f GB/s each way\n", seconds,
           (double)j->bytes * j->batches / seconds / 1e9);
}

int main(int count, char **words) {
    gpupool_ring_stats stats;
    job j = {(count > 1 ? (size_t)atol(words[1]) : 8) * MIB, count > 2 ? atoi(words[2]) : 8, 0, 0};
    j.in = (char *)malloc(j.bytes);
    j.out = (char *)malloc(STREAMS * j.bytes);
    if (!j.in || !j.out || j.batches < STREAMS) FAIL("a batch", "no memory, or too few batches");
    for (size_t i = 0; i < j.bytes; i++) j.in[i] = (char)(i % 251);
    POOL(gpupool_arena_create(&arena, NULL));
    POOL(gpupool_ring_create(&ring, NULL));
    printf("%d batches of %zu MiB, up, worked on, and down again\n", j.batches, j.bytes / MIB);
    measure(&j);
    POOL(gpupool_ring_get_stats(ring, &stats));
    printf("  with %.0f MiB pinned\n", example_mib(stats.pinned));
    POOL(gpupool_ring_destroy(ring));
    POOL(gpupool_arena_destroy(arena));
    free(j.in);
    free(j.out);
    return EXIT_SUCCESS;
}
