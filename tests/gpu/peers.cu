/* Two GPUs: each one's kernels and copies in stitched blocks of the other's arena, blocks that were
   stitched before gpupool_allow_peer and after it. */
#include "kit.h"

static const size_t BYTES = 5 * KIT_CHUNK + 3 * MIB;

struct side {
    int device;
    kit_arena arena;
    cudaStream_t stream;   /* of this device */
    void *earlier, *later; /* stitched before the other device was allowed, and after */
};

static side sides[2];

static void on(const side &s) {
    CUDA(cudaSetDevice(s.device));
}

static void sides_are_open() {
    for (int i = 0; i < 2; i++) {
        side &s = sides[i];
        gpupool_arena_config config = {};
        s.device = config.device = i;
        on(s);
        s.arena = kit_open(config, 16);
        s.stream = kit_stream();
        s.earlier = kit_stitched(s.arena.pool, BYTES, s.stream);
        POOL(gpupool_allow_peer(s.arena.pool, 1 - i));
        s.later = kit_stitched(s.arena.pool, BYTES, s.stream);
    }
}

static void expect_no_wrong_words() {
    for (const side &s : sides) {
        on(s);
        CHECK(kit_wrong_words() == 0);
    }
}

/* user writes what owner reads, and then the other way round. */
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
    kit_stamp(block, BYTES, mark + 2, owner.stream);
    kit_order(owner.stream, user.stream);
    on(user);
    kit_verify(block, BYTES, mark + 2, user.stream);
    expect_no_wrong_words();
}

static void kernels_of_the_peer() {
    for (int i = 0; i < 2; i++)
        for (word round = 0; round < 20; round++) {
            write_and_read(sides[i], sides[1 - i], sides[i].earlier, 10 * round);
            write_and_read(sides[i], sides[1 - i], sides[i].later, 10 * round + 5);
        }
}

/* At odd offsets, so that the seams of one lie elsewhere in the other. */
static void copy_between(const side &from, const side &to, void *source, void *target) {
    const size_t start = 3 * 4096 + 8, at = 8, bytes = BYTES - start - 24;
    char *read = (char *)source + start, *written = (char *)target + at;
    on(from);
    kit_stamp(source, BYTES, 1000, from.stream);
    on(to);
    kit_stamp(target, BYTES, 0, to.stream);
    kit_order(to.stream, from.stream);
    on(from);
    CUDA(cudaMemcpyPeerAsync(written, to.device, read, from.device, bytes, from.stream));
    kit_order(from.stream, to.stream);
    on(to);
    kit_verify(written, bytes, 1000 + start / sizeof(word), to.stream);
    kit_verify(target, at, 0, to.stream);
    kit_verify(written + bytes, BYTES - at - bytes, (at + bytes) / sizeof(word), to.stream);
    expect_no_wrong_words();
}

static void copies_from_stitch_to_stitch() {
    for (int i = 0; i < 2; i++)
        for (int round = 0; round < 5; round++) {
            copy_between(sides[i], sides[1 - i], sides[i].earlier, sides[1 - i].later);
            copy_between(sides[i], sides[1 - i], sides[i].later, sides[1 - i].earlier);
        }
}

/* ---- memory that changes hands: a holder has all that is free of an arena, as one stitched block
   or as blocks at home. The kernel of each holder verifies that every word is as the holder before
   left it, whatever address that wrote it at, and then writes its own. ---- */

enum { PIECES = 8 };

struct holding { /* of one holder */
    word count;
    word *at[PIECES];
    word words[PIECES];
};

static __device__ word place_sum; /* of the places that the words had with the holders before */

/* A word is the number of the holder that wrote it, in the upper half, and its place there. */
static __device__ void take_words(const holding &mine, word before, word me) {
    word bad = 0, sum = 0, place = 0;
    for (word piece = 0; piece < mine.count; piece++) {
        for (word i = blockIdx.x * (word)blockDim.x + threadIdx.x; i < mine.words[piece];
             i += (word)gridDim.x * blockDim.x) {
            word found = mine.at[piece][i];
            bad += found >> 32 != before;
            sum += found & 0xffffffffu;
            mine.at[piece][i] = me << 32 | (place + i);
        }
        place += mine.words[piece];
    }
    if (bad) atomicAdd(&kit_wrong, bad);
    atomicAdd(&place_sum, sum);
}

/* Sizes that make all that is free, in this order; those above KIT_CHUNK have to be stitched. */
static holding hold(gpupool_arena *pool, const std::vector<size_t> &sizes,
                                   cudaStream_t stream) {
    holding mine = {};
    for (size_t bytes : sizes) {
        mine.at[mine.count] = (word *)(bytes > KIT_CHUNK ? kit_stitched(pool, bytes, stream)
                                                         : gpupool_alloc(pool, bytes, stream));
        CHECK(mine.at[mine.count]);
        mine.words[mine.count++] = bytes / sizeof(word);
    }
    return mine;
}

static void let_go(gpupool_arena *pool, const holding &mine, cudaStream_t stream) {
    for (word piece = 0; piece < mine.count; piece++)
        POOL(gpupool_free(pool, mine.at[piece], stream));
}

/* The sum of all places that was found on the current device since this was asked last. */
static word places_seen() {
    word found = 0, none = 0;
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaMemcpyFromSymbol(&found, place_sum, sizeof found));
    CUDA(cudaMemcpyToSymbol(place_sum, &none, sizeof none));
    return found;
}

/* ---- memory of device 0 that goes, by gpupool_free, from a kernel of one device to a kernel of
   the other ---- */

static __global__ void take_over(holding mine, word before, word me) {
    take_words(mine, before, me);
}

static void hand_over(kit_arena &arena, const side &user, const std::vector<size_t> &sizes,
                      word before) {
    on(user);
    holding mine = hold(arena.pool, sizes, user.stream);
    if (kit_bad) return;
    take_over<<<128, 256, 0, user.stream>>>(mine, before, before + 1);
    CUDA(cudaGetLastError());
    let_go(arena.pool, mine, user.stream);
}

static void memory_changes_devices() {
    const size_t chunks = 5, words = chunks * KIT_CHUNK / sizeof(word);
    const std::vector<size_t> home(chunks, KIT_CHUNK), whole(1, chunks * KIT_CHUNK);
    const word rounds = 100;
    gpupool_arena_config config = {};
    word places = 0, holder = 0;
    on(sides[0]);
    kit_arena arena = kit_open(config, chunks);
    POOL(gpupool_allow_peer(arena.pool, 1));
    holding first = hold(arena.pool, whole, arena.stream);
    kit_stamp(first.at[0], chunks * KIT_CHUNK, 0, arena.stream);
    let_go(arena.pool, first, arena.stream);
    for (word round = 0; round < rounds && !kit_bad; round++) {
        hand_over(arena, sides[0], home, holder++);
        hand_over(arena, sides[1], whole, holder++);
        hand_over(arena, sides[1], home, holder++);
        hand_over(arena, sides[0], whole, holder++);
    }
    expect_no_wrong_words();
    for (const side &s : sides) on(s), places += places_seen();
    CHECK(places == holder * (words * (words - 1) / 2));
    printf("%llu holders, %llu waits on the device\n", holder,
           (word)kit_stats(arena.pool).stream_waits);
    on(sides[0]);
    kit_close(arena);
}

static void all_is_given_back() {
    for (side &s : sides) {
        on(s);
        POOL(gpupool_free(s.arena.pool, s.earlier, s.stream));
        POOL(gpupool_free(s.arena.pool, s.later, s.stream));
        kit_close(s.arena);
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
    RUN(sides_are_open);
    if (kit_bad) return kit_end();
    RUN(kernels_of_the_peer);
    RUN(copies_from_stitch_to_stitch);
    RUN(memory_changes_devices);
    RUN(all_is_given_back);
    return kit_end();
}
