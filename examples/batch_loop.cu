/* How much time do a ring and two streams save in a loop over batches?

   The program does the same work twice, from ordinary host memory and back to it. Before:
   cudaMalloc, upload, kernel, download and cudaFree, one batch after the other. After: blocks of an
   arena, and transfers through a ring on two streams, so batch i + 1 goes up while the device
   computes batch i and batch i - 1 comes down.
   What to look at: the seconds before and after. The program checks every number that comes back.
   Build: nvcc -I.. batch_loop.cu */
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"

#include <chrono>
#include <vector>

#ifdef GPUPOOL_NEXT /* the next edition's ring */
#define WAIT(ring, ticket) gpupool_ring_wait(ring, ticket, -1, NULL)
#define PINNED(stats) (stats).pinned
#else
#define WAIT(ring, ticket) gpupool_ring_wait(ring, ticket, -1)
#define PINNED(stats) (stats).pinned.peak
#endif

static const size_t COUNT = (size_t)16 << 20, BYTES = COUNT * sizeof(float); /* of a batch */
static const int BATCHES = 24, STREAMS = 2;

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

__global__ void work(float *x, size_t count) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count;
         i += (size_t)gridDim.x * blockDim.x) {
        float y = x[i];
        for (int k = 0; k < 200; k++) y = y * 0.5f + 1.0f; /* ends at 2, from anywhere */
        x[i] = y + x[i];
    }
}

struct batch {
    std::vector<float> in, out;
};

static void fill(std::vector<batch> &batches) {
    for (size_t b = 0; b < batches.size(); b++) {
        batches[b].in.resize(COUNT);
        batches[b].out.assign(COUNT, 0);
        for (size_t i = 0; i < COUNT; i++) batches[b].in[i] = (float)((i + b) % 1000);
    }
}

static void check(std::vector<batch> &batches, const char *way) {
    for (batch &b : batches) {
        for (size_t i = 0; i < COUNT; i++)
            if (b.out[i] != b.in[i] + 2) die(way, "a number is wrong");
        std::fill(b.out.begin(), b.out.end(), 0.0f);
    }
}

static void one_by_one(std::vector<batch> &batches) {
    for (batch &b : batches) {
        float *x;
        cuda(cudaMalloc((void **)&x, BYTES), "cudaMalloc");
        cuda(cudaMemcpy(x, b.in.data(), BYTES, cudaMemcpyHostToDevice), "upload");
        work<<<1024, 256>>>(x, COUNT);
        cuda(cudaGetLastError(), "kernel");
        cuda(cudaMemcpy(b.out.data(), x, BYTES, cudaMemcpyDeviceToHost), "download");
        cuda(cudaFree(x), "cudaFree");
    }
}

static gpupool_arena *arena;
static gpupool_ring *ring;
static cudaStream_t streams[STREAMS];

struct flight { /* a batch on its way */
    float *block;
    gpupool_ticket back;
};

static void land(flight &f, cudaStream_t stream) {
    if (f.block) pool(WAIT(ring, f.back), "wait"); /* until then it is in use */
    pool(gpupool_free(arena, f.block, stream), "free");
    f.block = NULL;
}

static void overlapped(std::vector<batch> &batches) {
    flight flights[STREAMS] = {};
    for (size_t b = 0; b < batches.size(); b++) {
        cudaStream_t stream = streams[b % STREAMS];
        flight &f = flights[b % STREAMS];
        land(f, stream);
        f.block = (float *)gpupool_alloc(arena, BYTES, stream);
        if (!f.block) die("alloc", gpupool_last_error());
        pool(gpupool_upload(ring, f.block, batches[b].in.data(), BYTES, stream), "upload");
        work<<<1024, 256, 0, stream>>>(f.block, COUNT);
        cuda(cudaGetLastError(), "kernel");
        gpupool_transfer back = {};
        back.direction = GPUPOOL_DOWN;
        back.to = batches[b].out.data();
        back.from = f.block;
        back.bytes = BYTES;
        back.stream = stream;
        back.ticket = &f.back;
        pool(gpupool_ring_transfer(ring, &back), "download");
    }
    for (int i = 0; i < STREAMS; i++) land(flights[i], streams[i]);
}

static double measure(const char *way, void (*how)(std::vector<batch> &),
                      std::vector<batch> &batches) {
    how(batches); /* once to warm up: pages, clocks, the ring's pinned memory */
    check(batches, way);
    cuda(cudaDeviceSynchronize(), "synchronize");
    auto start = std::chrono::steady_clock::now();
    how(batches);
    cuda(cudaDeviceSynchronize(), "synchronize");
    double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    check(batches, way);
    printf("  %-28s %6.3f s, %5.1f GB/s each way\n", way, seconds,
           (double)BYTES * BATCHES / seconds / 1e9);
    return seconds;
}

int main() {
    std::vector<batch> batches(BATCHES);
    gpupool_ring_stats stats;
    fill(batches);
    pool(gpupool_arena_create(&arena, NULL), "arena");
    pool(gpupool_ring_create(&ring, NULL), "ring");
    for (cudaStream_t &stream : streams) cuda(cudaStreamCreate(&stream), "stream");
    printf("%d batches of %zu MiB, up, computed, and down again\n", BATCHES, BYTES >> 20);
    double before = measure("one by one", one_by_one, batches);
    double after = measure("ring, two streams", overlapped, batches);
    pool(gpupool_ring_get_stats(ring, &stats), "stats");
    printf("  %.1f times as fast, with %.0f MiB pinned at most\n", before / after,
           (double)PINNED(stats) / (1 << 20));
    for (cudaStream_t stream : streams) cuda(cudaStreamDestroy(stream), "stream");
    pool(gpupool_ring_destroy(ring), "ring");
    pool(gpupool_arena_destroy(arena), "arena");
    return after < before ? EXIT_SUCCESS : EXIT_FAILURE;
}
