/* How does NCCL get an arena's memory registered, once?

   config.on_map registers the arena's memory with NCCL when gpupool maps it. The program runs an
   all-reduce from three kinds of memory: buffers of cudaMalloc, not registered; buffers of
   ncclMemAlloc, each registered; blocks of the arena. The program checks the sum on every GPU. One
   process has a thread for each GPU; or a launcher starts a process for each GPU, on any machines:
       mpirun -np 2 -x NCCL_COMM_ID=node1:31337 ./nccl_allreduce
   What to look at: the bandwidth of the three.
   Build: cc nccl_allreduce.c -I.. -I$CUDA_HOME/include -L$CUDA_HOME/lib64 -lcudart -lnccl \
       -lpthread */
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"

#include <nccl.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#define RANKS_MAX 64
#define COUNT ((size_t)64 << 20)
#define BYTES (COUNT * sizeof(float))
#define ROUNDS 20

typedef struct rank {
    int number, of, device;
    ncclUniqueId id;
    ncclComm_t comm;
    cudaStream_t stream;
    pthread_t thread;
    void *handle; /* NCCL's, on the arena's memory */
} rank;

static void die(const char *what, const char *why) {
    fprintf(stderr, "%s: %s\n", what, why);
    exit(EXIT_FAILURE);
}

static void cuda(cudaError_t e, const char *what) { if (e) die(what, cudaGetErrorString(e)); }
static void nccl(ncclResult_t e, const char *what) { if (e) die(what, ncclGetErrorString(e)); }

/* Each chunk is registered once, when it appears, and as long as it is mapped. */
static int on_map(const gpupool_mapping *mapping, void *user) {
    rank *r = (rank *)user;
    if (r->handle) return 1; /* this program needs one chunk; others keep a list */
    return ncclCommRegister(r->comm, mapping->memory, mapping->bytes, &r->handle) != ncclSuccess;
}

static int on_unmap(const gpupool_mapping *mapping, void *user) {
    rank *r = (rank *)user;
    (void)mapping;
    nccl(ncclCommDeregister(r->comm, r->handle), "ncclCommDeregister");
    r->handle = NULL;
    return 0;
}

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Rank r contributes r + 1 everywhere, so each sum is of * (of + 1) / 2. Prints the bandwidth. */
static void measure(const rank *r, const char *kind, float *from, float *to) {
    float *host = (float *)malloc(BYTES), expected = (float)(r->of * (r->of + 1) / 2);
    double start = 0;
    if (!host) die("host", "out of memory");
    for (size_t i = 0; i < COUNT; i++) host[i] = (float)(r->number + 1);
    cuda(cudaMemcpyAsync(from, host, BYTES, cudaMemcpyHostToDevice, r->stream), "upload");
    for (int round = -3; round < ROUNDS; round++) { /* the first three warm up */
        if (round <= 0) cuda(cudaStreamSynchronize(r->stream), "all-reduce");
        if (round == 0) start = seconds();
        nccl(ncclAllReduce(from, to, COUNT, ncclFloat, ncclSum, r->comm, r->stream), "all-reduce");
    }
    cuda(cudaStreamSynchronize(r->stream), "all-reduce");
    double bus = 2.0 * (r->of - 1) / r->of * (double)BYTES * ROUNDS / (seconds() - start) / 1e9;
    cuda(cudaMemcpyAsync(host, to, BYTES, cudaMemcpyDeviceToHost, r->stream), "download");
    cuda(cudaStreamSynchronize(r->stream), "download");
    for (size_t i = 0; i < COUNT; i++)
        if (host[i] != expected) die(kind, "wrong sum");
    if (r->number == 0) printf("  %-36s %7.1f GB/s on the bus, sums right\n", kind, bus);
    free(host);
}

static void from_arena(rank *r) {
    gpupool_arena *arena;
    gpupool_arena_config config = {.device = r->device, .reserve_bytes = 2 * BYTES,
                                   .chunk_bytes = 2 * BYTES, .on_map = on_map,
                                   .on_unmap = on_unmap, .user = r, .name = "NCCL"};
    if (gpupool_arena_create(&arena, &config) != GPUPOOL_OK) die("arena", gpupool_last_error());
    float *from = (float *)gpupool_alloc(arena, BYTES, r->stream);
    float *to = (float *)gpupool_alloc(arena, BYTES, r->stream);
    if (!from || !to) die("alloc", gpupool_last_error());
    measure(r, "blocks of the arena", from, to);
    if (gpupool_free(arena, from, r->stream) || gpupool_free(arena, to, r->stream) ||
        gpupool_arena_destroy(arena)) die("the end", gpupool_last_error());
}

static void from_cuda_and_nccl(const rank *r) {
    void *block[2], *handle[2];
    for (int i = 0; i < 2; i++) cuda(cudaMalloc(&block[i], BYTES), "cudaMalloc");
    measure(r, "cudaMalloc, not registered", (float *)block[0], (float *)block[1]);
    for (int i = 0; i < 2; i++) {
        cuda(cudaFree(block[i]), "cudaFree");
        nccl(ncclMemAlloc(&block[i], BYTES), "ncclMemAlloc");
        nccl(ncclCommRegister(r->comm, block[i], BYTES, &handle[i]), "ncclCommRegister");
    }
    measure(r, "ncclMemAlloc, each registered", (float *)block[0], (float *)block[1]);
    for (int i = 0; i < 2; i++) {
        nccl(ncclCommDeregister(r->comm, handle[i]), "ncclCommDeregister");
        nccl(ncclMemFree(block[i]), "ncclMemFree");
    }
}

static void *work(void *argument) {
    rank *r = (rank *)argument;
    cuda(cudaSetDevice(r->device), "cudaSetDevice");
    cuda(cudaStreamCreateWithFlags(&r->stream, cudaStreamNonBlocking), "stream");
    nccl(ncclCommInitRank(&r->comm, r->of, r->id, r->number), "ncclCommInitRank");
    from_cuda_and_nccl(r);
    from_arena(r);
    nccl(ncclCommDestroy(r->comm), "ncclCommDestroy");
    cuda(cudaStreamDestroy(r->stream), "stream");
    return NULL;
}

static int setting(const char *mpi, const char *torch, int otherwise) { /* of the launcher */
    const char *text = getenv(mpi) ? getenv(mpi) : getenv(torch);
    return text ? atoi(text) : otherwise;
}

int main(void) {
    static rank ranks[RANKS_MAX];
    ncclUniqueId id;
    int devices = 0;
    cuda(cudaGetDeviceCount(&devices), "cudaGetDeviceCount");
    int first = setting("OMPI_COMM_WORLD_RANK", "RANK", -1); /* -1: all of them are here */
    int of = setting("OMPI_COMM_WORLD_SIZE", "WORLD_SIZE", devices);
    int device = setting("OMPI_COMM_WORLD_LOCAL_RANK", "LOCAL_RANK", 0);
    int here = first < 0 ? of : 1;
    if (first >= 0 && !getenv("NCCL_COMM_ID")) die("NCCL_COMM_ID", "not set to rank 0's host:port");
    if (of < 2 || here > RANKS_MAX || device + here > devices) die("ranks", "two, a GPU each");
    nccl(ncclGetUniqueId(&id), "ncclGetUniqueId");
    if (first <= 0) printf("all-reduce of %zu MiB on %d GPUs\n", BYTES >> 20, of);
    for (int i = 0; i < here; i++) {
        ranks[i] = (rank){first < 0 ? i : first, of, device + i, id, NULL, NULL, 0, NULL};
        if (pthread_create(&ranks[i].thread, NULL, work, &ranks[i]) != 0) die("thread", "none");
    }
    for (int i = 0; i < here; i++) pthread_join(ranks[i].thread, NULL);
    return EXIT_SUCCESS;
}
