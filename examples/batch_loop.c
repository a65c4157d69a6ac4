/* How do upload, work and download of successive batches overlap?

   Each of two streams has a batch on its way, from ordinary host memory and back to it. The ring
   uploads; the stream works; a download with a ticket returns at once, so that the other stream's
   batch goes up meanwhile. Blocks come from an arena. The same loop with cudaMalloc and cudaMemcpy,
   one batch after the other, is what it is compared with.
   Build: cc -I.. -I$CUDA_HOME/include batch_loop.c -L$CUDA_HOME/lib64 -lcudart -lpthread
   Run: ./a.out [MIB [BATCHES]]
   Prints the seconds of both ways, and how little memory was pinned; every byte is checked. */
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

static void one_by_one(const job *j) {
    for (int i = 0; i < j->batches; i++) {
        void *in, *out;
        CUDA(cudaMalloc(&in, j->bytes));
        CUDA(cudaMalloc(&out, j->bytes));
        CUDA(cudaMemcpy(in, j->in, j->bytes, cudaMemcpyHostToDevice));
        work(out, in, j->bytes, 0);
        CUDA(cudaMemcpy(j->out, out, j->bytes, cudaMemcpyDeviceToHost));
        CUDA(cudaFree(in));
        CUDA(cudaFree(out));
    }
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

static double measure(const char *way, void (*how)(const job *), const job *j) {
    memset(j->out, 0, j->bytes);
    how(j); /* once to warm up: pages, the ring's pinned memory */
    double start = example_seconds();
    how(j);
    double seconds = example_seconds() - start;
    if (memcmp(j->in, j->out, j->bytes) != 0) FAIL(way, "a byte is wrong");
    printf("  %-18s %.3f s, %5.1f GB/s each way\n", way, seconds,
           (double)j->bytes * j->batches / seconds / 1e9);
    return seconds;
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
    double before = measure("one by one", one_by_one, &j);
    double after = measure("ring, two streams", overlapped, &j);
    POOL(gpupool_ring_get_stats(ring, &stats));
    printf("  %.1f times as fast, with %.0f MiB pinned\n", before / after,
           example_mib(stats.pinned));
    POOL(gpupool_ring_destroy(ring));
    POOL(gpupool_arena_destroy(arena));
    free(j.in);
    free(j.out);
    return EXIT_SUCCESS;
}
