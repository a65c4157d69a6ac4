/* Two GPUs: each arena registers its chunks and stitches with NCCL by on_map, once, and ends that
   by on_unmap, while blocks of all sizes come and go under a limit that moves: no registration is
   ever stale, every block is in one or several side by side, every sum of all-reduces in place is
   right. CHURN=SECONDS, 10 if not set. */
#include "kit.h"

#include <chrono>
#include <cuda.h>
#include <map>
#include <nccl.h>
#include <random>

#define NCCL(call) \
    do { \
        ncclResult_t result_ = (call); \
        if (result_ != ncclSuccess) \
            kit_fail(__FILE__, __LINE__, #call, ncclGetErrorString(result_)); \
    } while (0)

struct registration {
    size_t bytes;
    CUmemGenericAllocationHandle first, last; /* what both ends map */
    void *nccl;
};

struct rank {
    gpupool_arena *pool;
    cudaStream_t stream;
    ncclComm_t comm;
    std::map<char *, registration> known;
    long told, gone;
};

static rank ranks[2];

static CUmemGenericAllocationHandle mapped_at(void *address) {
    CUmemGenericAllocationHandle handle = 0;
    CHECK(cuMemRetainAllocationHandle(&handle, address) == CUDA_SUCCESS);
    CHECK(cuMemRelease(handle) == CUDA_SUCCESS);
    return handle;
}

static int on_map(const gpupool_mapping *mapping, void *user) {
    rank &r = *(rank *)user;
    char *begin = (char *)mapping->memory;
    registration now = {mapping->bytes, mapped_at(begin), mapped_at(begin + mapping->bytes - 1),
                        nullptr};
    if (ncclCommRegister(r.comm, begin, mapping->bytes, &now.nccl) != ncclSuccess) return 1;
    r.known[begin] = now;
    r.told++;
    return 0;
}

static void on_unmap(const gpupool_mapping *mapping, void *user) {
    rank &r = *(rank *)user;
    auto found = r.known.find((char *)mapping->memory);
    CHECK(found != r.known.end());
    if (found == r.known.end()) return;
    NCCL(ncclCommDeregister(r.comm, found->second.nccl));
    r.known.erase(found);
    r.gone++;
}

static void no_registration_is_stale(rank &r) {
    for (auto &entry : r.known) {
        CHECK(mapped_at(entry.first) == entry.second.first);
        CHECK(mapped_at(entry.first + entry.second.bytes - 1) == entry.second.last);
    }
}

static int is_registered(rank &r, char *block, size_t bytes) {
    for (char *end = block + bytes; block < end;) {
        auto next = r.known.upper_bound(block);
        if (next == r.known.begin()) return 0;
        --next;
        if (block >= next->first + next->second.bytes) return 0;
        block = next->first + next->second.bytes;
    }
    return 1;
}

static void ranks_are_open() {
    const int devices[2] = {0, 1};
    ncclComm_t comms[2] = {};
    NCCL(ncclCommInitAll(comms, 2, devices));
    for (int i = 0; i < 2 && !kit_bad; i++) {
        gpupool_arena_config config = {};
        rank &r = ranks[i];
        CUDA(cudaSetDevice(i));
        r.comm = comms[i];
        r.stream = kit_stream();
        config.device = i;
        config.source = GPUPOOL_SOURCE_MAPPED;
        config.limit_bytes = 1024 * MIB;
        config.on_map = on_map;
        config.on_unmap = on_unmap;
        config.user = &r;
        POOL(gpupool_arena_create(&r.pool, &config));
    }
}

static __global__ void verify_sums(const word *block, size_t words, word first) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < words;
         i += (size_t)gridDim.x * blockDim.x)
        if (block[i] != first + 2 * i) atomicAdd(&kit_wrong, 1);
}

/* Each word of rank i is (i + 1) x mark and its place; of the sum, 3 x mark and twice its place. */
static void reduce(void *const block[2], size_t bytes, word mark) {
    for (word i = 0; i < 2; i++) {
        CUDA(cudaSetDevice((int)i));
        kit_stamp(block[i], bytes, (i + 1) * mark, ranks[i].stream);
    }
    NCCL(ncclGroupStart());
    for (int i = 0; i < 2; i++)
        NCCL(ncclAllReduce(block[i], block[i], bytes / sizeof(word), ncclUint64, ncclSum,
                           ranks[i].comm, ranks[i].stream));
    NCCL(ncclGroupEnd());
    for (int i = 0; i < 2; i++) {
        CUDA(cudaSetDevice(i));
        verify_sums<<<256, 256, 0, ranks[i].stream>>>((const word *)block[i], bytes / sizeof(word),
                                                      3 * mark);
        CUDA(cudaGetLastError());
    }
}

struct pair {
    void *block[2];
    size_t bytes;
};

static void free_pair(pair &p) {
    for (int i = 0; i < 2; i++) {
        CUDA(cudaSetDevice(i));
        if (p.block[i]) POOL(gpupool_free(ranks[i].pool, p.block[i], ranks[i].stream));
        p.block[i] = nullptr;
    }
}

static void alloc_pair(pair &p, std::mt19937_64 &random) {
    p.bytes = (size_t)8 << (17 + random() % 8);
    p.bytes += random() % p.bytes / 8 * 8;
    for (int i = 0; i < 2; i++) {
        CUDA(cudaSetDevice(i));
        p.block[i] = gpupool_alloc(ranks[i].pool, p.bytes, ranks[i].stream);
        if (!p.block[i]) CHECK(gpupool_last_result() == GPUPOOL_E_OUT_OF_MEMORY);
        else CHECK(is_registered(ranks[i], (char *)p.block[i], p.bytes));
    }
    if (!p.block[0] || !p.block[1]) free_pair(p);
}

static void blocks_come_and_go() {
    const char *seconds = getenv("CHURN");
    auto end = std::chrono::steady_clock::now() +
               std::chrono::seconds(seconds ? atoi(seconds) : 10);
    std::mt19937_64 random(1);
    std::vector<pair> pairs(12);
    word steps = 0, sums = 0;
    for (; std::chrono::steady_clock::now() < end && !kit_bad; steps++) {
        pair &p = pairs[random() % pairs.size()];
        if (p.block[0]) free_pair(p);
        else alloc_pair(p, random);
        if (p.block[0]) reduce(p.block, p.bytes, ++sums * 1000003);
        for (rank &r : ranks) {
            if (random() % 100 == 0) POOL(gpupool_set_limit(r.pool, (700 + random() % 400) * MIB));
            if (steps % 8 == 0) no_registration_is_stale(r);
        }
    }
    for (pair &p : pairs) free_pair(p);
    for (int i = 0; i < 2; i++) {
        CUDA(cudaSetDevice(i));
        CHECK(kit_wrong_words() == 0);
        printf("GPU %d: %llu steps, %llu sums, %ld registrations, %ld of them ended, "
               "%llu stitches\n", i, steps, sums, ranks[i].told, ranks[i].gone,
               (word)kit_stats(ranks[i].pool).stitches);
    }
}

static void all_is_given_back() {
    for (int i = 0; i < 2; i++) {
        CUDA(cudaSetDevice(i));
        POOL(gpupool_arena_destroy(ranks[i].pool));
        CHECK(ranks[i].known.empty() && ranks[i].told == ranks[i].gone);
        NCCL(ncclCommDestroy(ranks[i].comm));
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
    RUN(blocks_come_and_go);
    RUN(all_is_given_back);
    return kit_end();
}
