/* What cudaDeviceReset leaves of mapped memory, stitched blocks included: all of it, in use or
   idle, until the arena is destroyed, or renewed. Then every byte is back, however often. */
#define GPUPOOL_CHUNK_BYTES 8388608 /* of the default arena too */
#include "kit.h"

enum { ROUNDS = 20 };
static const size_t CHUNKS = 16, HELD = 2 * CHUNKS * KIT_CHUNK, LARGE = 5 * KIT_CHUNK + MIB;

static size_t free_bytes() {
    size_t bytes = 0, total;
    CUDA(cudaMemGetInfo(&bytes, &total));
    return bytes;
}

static size_t free_bytes_anew() { /* of a context that has done nothing yet */
    CUDA(cudaDeviceReset());
    return free_bytes();
}

/* A drift of less than one chunk in all rounds is the driver's own. */
static void expect_free(size_t expected) {
    const size_t now = free_bytes();
    CHECK(now + KIT_CHUNK > expected && expected + KIT_CHUNK > now);
    if (now != expected) printf("%lld bytes more are free\n", (long long)now - (long long)expected);
}

struct left { /* by a reset, in an arena */
    kit_arena arena;
    void *stitched;
    size_t free_before, free_after; /* the arena was made, the device was reset */
};

/* A live stitched block, an idle stitch, live blocks at home, and a kernel at work. */
static left reset_with_all_of_it(gpupool_arena *pool) {
    left l = {};
    l.free_before = free_bytes();
    l.arena = kit_lay(pool, CHUNKS);
    l.stitched = kit_stitched(pool, LARGE, l.arena.stream);
    void *idle = kit_stitched(pool, LARGE, l.arena.stream);
    kit_stamp(idle, LARGE, 1, l.arena.stream);
    POOL(gpupool_free(pool, idle, l.arena.stream));
    kit_stamp(l.stitched, LARGE, 2, l.arena.stream);
    kit_stamp(l.arena.kept[0], KIT_CHUNK, 3, l.arena.stream);
    CUDA(cudaStreamSynchronize(l.arena.stream));
    CHECK(l.free_before - free_bytes() >= HELD);
    kit_linger(l.arena.stream, 3000000);
    CUDA(cudaDeviceReset());
    l.free_after = free_bytes();
    return l;
}

static gpupool_arena *open() {
    gpupool_arena *pool = nullptr;
    POOL(gpupool_arena_create(&pool, nullptr));
    if (!pool) exit(1);
    return pool;
}

/* Driver 580 on an H100: the next context reads, and writes, what was mapped, at every address. */
static void mapped_memory_stays() {
    const size_t start = free_bytes_anew();
    left l = reset_with_all_of_it(open());
    printf("free before %zu MiB, after the reset %zu MiB less: the arena holds %zu MiB\n",
           l.free_before / MIB, (l.free_before - l.free_after) / MIB, HELD / MIB);
    CHECK(l.free_before - l.free_after >= HELD);
    kit_verify(l.stitched, LARGE, 2, 0);
    kit_verify(l.arena.kept[0], KIT_CHUNK, 3, 0);
    CHECK(kit_wrong_words() == 0);
    kit_stamp(l.stitched, LARGE, 4, 0);
    kit_verify(l.stitched, LARGE, 4, 0);
    kit_verify(l.arena.kept[0], KIT_CHUNK, 3, 0);
    CHECK(kit_wrong_words() == 0);
    POOL(gpupool_arena_destroy(l.arena.pool));
    cudaPointerAttributes attributes = {};
    CUDA(cudaPointerGetAttributes(&attributes, l.stitched));
    CHECK(attributes.type == cudaMemoryTypeUnregistered);
    CHECK(free_bytes_anew() + KIT_CHUNK > start);
}

static void destroying_gives_it_back() {
    const size_t start = free_bytes_anew();
    for (int round = 0; round < ROUNDS && !kit_bad; round++) {
        left l = reset_with_all_of_it(open());
        POOL(gpupool_arena_destroy(l.arena.pool));
        expect_free(start);
    }
}

static void renewing_gives_it_back() {
    const size_t start = free_bytes_anew();
    gpupool_arena *pool = gpupool_get_default_arena(0);
    CHECK(pool);
    for (int round = 0; round < ROUNDS && !kit_bad; round++) {
        left l = reset_with_all_of_it(pool);
        CHECK(gpupool_get_default_arena(0) == pool && kit_stats(pool).reserved.now == 0);
        expect_free(start);
    }
    POOL(gpupool_arena_destroy(pool));
}

int main() {
    RUN(mapped_memory_stays);
    RUN(destroying_gives_it_back);
    RUN(renewing_gives_it_back);
    return kit_end();
}
