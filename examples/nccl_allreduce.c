/* How does NCCL get an arena's memory registered, once for each chunk?

   config.on_map registers each chunk with NCCL when gpupool maps it, and config.on_unmap takes that
   back before the chunk goes: so every block is registered, and no registration is ever stale. A
   network card's ibv_reg_mr or ucp_mem_map go in the same place, with config.share =
   GPUPOOL_SHARE_RDMA. The program has a thread for each GPU.
   Build: cc -I.. -I$CUDA_HOME/include nccl_allreduce.c -L$CUDA_HOME/lib64 -lcudart -lnccl -lpthread
   Each GPU must have the right sum. Prints how many chunks were registered. Needs two GPUs. */
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "example.h"

#include <nccl.h>
#include <pthread.h>
#include <string.h>

#define NCCL(call) \
    do { \
        ncclResult_t nccl_error = (call); \
        if (nccl_error != ncclSuccess) FAIL(#call, ncclGetErrorString(nccl_error)); \
    } while (0)

enum { RANKS = 64, CHUNKS = 64 };
static const size_t COUNT = 64 * MIB;

typedef struct rank {
    int number, of;
    ncclUniqueId id;
    ncclComm_t comm;
    cudaStream_t stream;
    pthread_t thread;
    const void *memory[CHUNKS]; /* of the arena's chunks, and NCCL's handles of them */
    void *handle[CHUNKS];
    int chunks, registrations;
} rank;

static int on_map(const gpupool_mapping *mapping, void *user) {
    rank *r = (rank *)user;
    if (r->chunks == CHUNKS) return 1; /* refused: the arena does without this memory */
    r->memory[r->chunks] = mapping->memory;
    r->registrations++;
    return ncclCommRegister(r->comm, mapping->memory, mapping->bytes, &r->handle[r->chunks++]) !=
           ncclSuccess;
}

static void on_unmap(const gpupool_mapping *mapping, void *user) {
    rank *r = (rank *)user;
    int i = 0;
    while (r->memory[i] != mapping->memory) i++;
    NCCL(ncclCommDeregister(r->comm, r->handle[i]));
    r->memory[i] = r->memory[--r->chunks];
    r->handle[i] = r->handle[r->chunks];
}

/* Rank r adds a byte of r + 1 everywhere. */
static void add_up(const rank *r, void *from, void *to) {
    unsigned char sum = 0;
    CUDA(cudaMemsetAsync(from, r->number + 1, COUNT, r->stream));
    NCCL(ncclAllReduce(from, to, COUNT, ncclUint8, ncclSum, r->comm, r->stream));
    CUDA(cudaStreamSynchronize(r->stream));
    CUDA(cudaMemcpy(&sum, (char *)to + COUNT / 2, 1, cudaMemcpyDeviceToHost));
    if (sum != (unsigned char)(r->of * (r->of + 1) / 2)) FAIL("all-reduce", "the sum is wrong");
}

static void all_reduce(rank *r) {
    gpupool_arena *arena;
    gpupool_arena_config config = {0};
    config.device = r->number;
    config.name = "NCCL";
    config.chunk_bytes = 2 * COUNT; /* NCCL is quickest with few, large registrations */
    config.on_map = on_map;
    config.on_unmap = on_unmap;
    config.user = r;
    POOL(gpupool_arena_create(&arena, &config));
    void *from = BLOCK(gpupool_alloc(arena, COUNT, r->stream));
    void *to = BLOCK(gpupool_alloc(arena, COUNT, r->stream));
    add_up(r, from, to);
    POOL(gpupool_free(arena, from, r->stream));
    POOL(gpupool_free(arena, to, r->stream));
    POOL(gpupool_arena_destroy(arena));
    if (r->number == 0) printf("%d chunks registered, %d left\n", r->registrations, r->chunks);
}

static void *work(void *argument) {
    rank *r = (rank *)argument;
    CUDA(cudaSetDevice(r->number));
    CUDA(cudaStreamCreateWithFlags(&r->stream, cudaStreamNonBlocking));
    NCCL(ncclCommInitRank(&r->comm, r->of, r->id, r->number));
    all_reduce(r);
    NCCL(ncclCommDestroy(r->comm));
    CUDA(cudaStreamDestroy(r->stream));
    return NULL;
}

int main(void) {
    static rank ranks[RANKS];
    ncclUniqueId id;
    int of = 0;
    CUDA(cudaGetDeviceCount(&of));
    if (of < 2 || of > RANKS) FAIL("GPUs", "at least two");
    NCCL(ncclGetUniqueId(&id));
    printf("all-reduce of %zu MiB on %d GPUs\n", COUNT / MIB, of);
    for (int i = 0; i < of; i++) {
        ranks[i].number = i;
        ranks[i].of = of;
        ranks[i].id = id;
        if (pthread_create(&ranks[i].thread, NULL, work, &ranks[i]) != 0) FAIL("thread", "none");
    }
    for (int i = 0; i < of; i++) pthread_join(ranks[i].thread, NULL);
    return EXIT_SUCCESS;
}
