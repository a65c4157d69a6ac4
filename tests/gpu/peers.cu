/* Two GPUs: kernels of both in each one's arena, in blocks at home and stitched ones, in one that
   was stitched before gpupool_allow_peer and in ones that come after it. */
#include "kit.h"

enum { ROUNDS = 100, CHUNKS = 5 };
static const size_t BYTES = CHUNKS * KIT_CHUNK;

struct side {
    int device;
    cudaStream_t stream; /* of this device */
};

static side sides[2];

static void on(const side &s) { CUDA(cudaSetDevice(s.device)); }

/* ---- a block that both have: user writes what owner reads, and then the other way round ---- */

static void write_and_read(const side &owner, const side &user, void *block, word mark) {
    on(owner);
    kit_stamp(block, BYTES, mark, owner.stream);
    kit_order(owner.stream, user.stream);
    on(user);
    kit_verify(block, BYTES, mark, user.stream);
    kit_stamp(block, BYTES, mark + 1, user.stream);
    kit_order(user.stream, owner.stream);
    on(owner);
    kit_verify(block, BYTES, mark + 1, owner.stream);
}

/* ---- memory that changes hands: a holder has all that is free of an arena, as one stitched block
   or as blocks at home. Its kernels verify that every word is as the holder before left it,
   whatever address that wrote it at, and then write its own. ---- */

static __global__ void take_over(word *block, size_t words, word before, word me) {
    word bad = 0;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < words;
         i += (size_t)gridDim.x * blockDim.x) {
        bad += block[i] != before;
        block[i] = me;
    }
    if (bad) atomicAdd(&kit_wrong, bad);
}

/* Sizes that make all that is free; those above KIT_CHUNK have to be stitched. */
static void hold(gpupool_arena *pool, const side &user, const std::vector<size_t> &sizes,
                 word before) {
    std::vector<void *> mine;
    on(user);
    for (size_t bytes : sizes) {
        void *block = bytes > KIT_CHUNK ? kit_stitched(pool, bytes, user.stream)
                                        : gpupool_alloc(pool, bytes, user.stream);
        CHECK(block);
        if (kit_bad) return;
        take_over<<<128, 256, 0, user.stream>>>((word *)block, bytes / sizeof(word), before,
                                                before + 1);
        CUDA(cudaGetLastError());
        mine.push_back(block);
    }
    for (void *block : mine) POOL(gpupool_free(pool, block, user.stream));
}

static void memory_of(const side &owner, const side &peer) {
    const std::vector<size_t> home(CHUNKS, KIT_CHUNK), whole(1, BYTES);
    gpupool_arena_config config = {};
    word holder = 0;
    on(owner);
    config.device = owner.device;
    kit_arena arena = kit_open(config, 2 * CHUNKS);
    void *early = kit_stitched(arena.pool, BYTES, owner.stream);
    POOL(gpupool_allow_peer(arena.pool, peer.device));
    void *first = kit_stitched(arena.pool, BYTES, owner.stream);
    CUDA(cudaMemsetAsync(first, 0, BYTES, owner.stream));
    POOL(gpupool_free(arena.pool, first, owner.stream));
    for (word round = 0; round < ROUNDS && !kit_bad; round++) {
        hold(arena.pool, owner, home, holder++);
        hold(arena.pool, peer, whole, holder++);
        hold(arena.pool, peer, home, holder++);
        hold(arena.pool, owner, whole, holder++);
        write_and_read(owner, peer, early, 10 * round);
    }
    for (const side &s : sides) {
        on(s);
        CHECK(kit_wrong_words() == 0);
    }
    printf("%llu holders, %llu waits on the device\n", holder,
           (word)kit_stats(arena.pool).stream_waits);
    on(owner);
    POOL(gpupool_free(arena.pool, early, owner.stream));
    kit_close(arena);
}

static void both_ways() {
    for (int i = 0; i < 2; i++) {
        sides[i].device = i;
        on(sides[i]);
        sides[i].stream = kit_stream();
    }
    memory_of(sides[0], sides[1]);
    memory_of(sides[1], sides[0]);
    for (const side &s : sides) {
        on(s);
        CUDA(cudaStreamDestroy(s.stream));
    }
}

int main() {
    int count = 0, there = 0, back = 0;
    CUDA(cudaGetDeviceCount(&count));
    if (kit_bad) return 1;
    if (count < 2) return kit_skip("this needs two GPUs");
    CUDA(cudaDeviceCanAccessPeer(&there, 0, 1));
    CUDA(cudaDeviceCanAccessPeer(&back, 1, 0));
    if (!there || !back) return kit_skip("the GPUs cannot access each other");
    RUN(both_ways);
    return kit_end();
}
