/* Two GPUs: NCCL's all-reduce in place over a stitched block of each, registered with NCCL and not:
   every word of every sum is verified. */
#include "kit.h"

#include <nccl.h>

static const size_t BYTES = 9 * KIT_CHUNK + 3 * MIB + 8, WORDS = BYTES / sizeof(word);

#define NCCL(call) \
    do { \
        ncclResult_t result_ = (call); \
        if (result_ != ncclSuccess) \
            kit_fail(__FILE__, __LINE__, #call, ncclGetErrorString(result_)); \
    } while (0)

struct rank {
    kit_arena arena;
    cudaStream_t stream;
    ncclComm_t comm;
    word *block;
    void *handle; /* NCCL's, on the block */
};

static rank ranks[2];

static __global__ void verify_sums(const word *block, size_t words, word first) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < words;
         i += (size_t)gridDim.x * blockDim.x)
        if (block[i] != first + 2 * i) atomicAdd(&kit_wrong, 1);
}

static void ranks_are_open() {
    const int devices[2] = {0, 1};
    ncclComm_t comms[2] = {};
    int version = 0;
    NCCL(ncclGetVersion(&version));
    NCCL(ncclCommInitAll(comms, 2, devices));
    printf("NCCL %d\n", version);
    for (int i = 0; i < 2; i++) {
        gpupool_arena_config config = {};
        rank &r = ranks[i];
        config.device = i;
        r.comm = comms[i];
        CUDA(cudaSetDevice(i));
        r.arena = kit_open(config, 20);
        r.stream = kit_stream();
    }
}

static void take_blocks() {
    for (int i = 0; i < 2; i++) {
        CUDA(cudaSetDevice(i));
        ranks[i].block = (word *)kit_stitched(ranks[i].arena.pool, BYTES, ranks[i].stream);
    }
}

static void free_blocks() {
    for (int i = 0; i < 2; i++) {
        CUDA(cudaSetDevice(i));
        POOL(gpupool_free(ranks[i].arena.pool, ranks[i].block, ranks[i].stream));
    }
}

/* Each word of rank i is (i + 1) x mark and its place; of the sum, 3 x mark and twice its place. */
static void reduce(word mark) {
    for (word i = 0; i < 2; i++) {
        CUDA(cudaSetDevice((int)i));
        kit_stamp(ranks[i].block, BYTES, (i + 1) * mark, ranks[i].stream);
    }
    NCCL(ncclGroupStart());
    for (rank &r : ranks)
        NCCL(ncclAllReduce(r.block, r.block, WORDS, ncclUint64, ncclSum, r.comm, r.stream));
    NCCL(ncclGroupEnd());
    for (int i = 0; i < 2; i++) {
        CUDA(cudaSetDevice(i));
        verify_sums<<<256, 256, 0, ranks[i].stream>>>(ranks[i].block, WORDS, 3 * mark);
        CUDA(cudaGetLastError());
    }
}

static void expect_no_wrong_words() {
    for (int i = 0; i < 2; i++) {
        CUDA(cudaSetDevice(i));
        CHECK(kit_wrong_words() == 0);
    }
}

/* The blocks come and go with no wait between. */
static void without_registration() {
    for (word round = 1; round <= 20 && !kit_bad; round++) {
        take_blocks();
        reduce(round * 1000003);
        free_blocks();
    }
    expect_no_wrong_words();
}

static void registered() {
    for (word round = 1; round <= 5 && !kit_bad; round++) {
        take_blocks();
        for (rank &r : ranks) NCCL(ncclCommRegister(r.comm, r.block, BYTES, &r.handle));
        for (word k = 0; k < 4; k++) reduce(round * 7000003 + k);
        expect_no_wrong_words();
        for (rank &r : ranks) NCCL(ncclCommDeregister(r.comm, r.handle));
        free_blocks();
    }
}

static void all_is_given_back() {
    for (int i = 0; i < 2; i++) {
        CUDA(cudaSetDevice(i));
        NCCL(ncclCommDestroy(ranks[i].comm));
        kit_close(ranks[i].arena);
        CUDA(cudaStreamDestroy(ranks[i].stream));
    }
}

int main() {
    int count = 0;
    CUDA(cudaGetDeviceCount(&count));
    if (kit_bad) return 1;
    if (count < 2) return kit_skip("this needs two GPUs");
    RUN(ranks_are_open);
    if (kit_bad) return kit_end();
    RUN(without_registration);
    RUN(registered);
    RUN(all_is_given_back);
    return kit_end();
}
