/* Functions of the program that throw, against rule 4: each call ends, with an error, and no lock
   stays held, so that another thread's calls go on. */
#define GPUPOOL_IMPLEMENTATION
#include "cpp.h"

#include <cstdlib>
#include <thread>

static checks outcome;

/* What the functions below count, and which of them throw. */
static struct {
    bool alloc, free, map, unmap;
    gpupool_arena *out_of_memory; /* whose limit it raises, and throws */
    int chunks, ranges, told;
} state;

static void *chunk_alloc(size_t bytes, void *) {
    if (state.alloc) throw 1;
    state.chunks++;
    return aligned_alloc(2 * MIB, bytes);
}

static void chunk_free(void *chunk, size_t, void *) {
    std::free(chunk);
    state.chunks--;
    if (state.free) throw 1;
}

static int on_map(const gpupool_mapping *, void *) {
    if (state.map) throw 1;
    state.ranges++;
    return 0;
}

static void on_unmap(const gpupool_mapping *, void *) {
    state.ranges--;
    if (state.unmap) throw 1;
}

static int on_out_of_memory(const gpupool_verdict *, void *) {
    state.told++;
    if (!state.out_of_memory) return 0;
    CHECK(gpupool_set_limit(state.out_of_memory, size_t(state.told) * 128 * MIB) == GPUPOOL_OK);
    throw 1;
}

static gpupool_arena *create(gpupool_source source) {
    gpupool_arena_config config = from(source, 64 * MIB);
    gpupool_arena *arena = nullptr;
    state = {};
    config.chunk_alloc = chunk_alloc;
    config.chunk_free = chunk_free;
    config.on_map = on_map;
    config.on_unmap = on_unmap;
    config.on_out_of_memory = on_out_of_memory;
    CHECK(gpupool_arena_create(&arena, &config) == GPUPOOL_OK);
    return arena;
}

/* A thread that finds a lock held would wait for ever: the test's time limit sees it. */
static void other_threads_go_on(gpupool_arena *arena, gpupool_result expected) {
    std::thread([=] {
        void *block = gpupool_alloc(arena, MIB, nullptr);
        CHECK((block ? GPUPOOL_OK : gpupool_last_result()) == expected);
        CHECK(gpupool_free(arena, block, nullptr) == GPUPOOL_OK);
        CHECK(gpupool_check(arena) == GPUPOOL_OK);
    }).join();
}

static bool fails_by_callback(gpupool_arena *arena, size_t bytes, const char *word) {
    return !gpupool_alloc(arena, bytes, nullptr) && strstr(gpupool_last_error(), word) &&
           gpupool_last_result() == GPUPOOL_E_CALLBACK;
}

static void making_a_chunk(gpupool_source source, bool *throws, const char *word) {
    gpupool_arena *arena = create(source);
    *throws = true;
    CHECK(fails_by_callback(arena, MIB, word));
    CHECK(state.chunks == 0 && state.ranges == 0);
    *throws = false;
    other_threads_go_on(arena, GPUPOOL_OK);
    CHECK(gpupool_arena_destroy(arena) == GPUPOOL_OK);
    CHECK(state.chunks == 0 && state.ranges == 0);
}

/* Two chunks of memory whose ends are live leave nothing side by side for the third block. */
static void a_stitch() {
    gpupool_arena *arena = create(GPUPOOL_SOURCE_MAPPED);
    void *block[8];
    for (void *&b : block) b = gpupool_alloc(arena, 8 * MIB, nullptr);
    for (int i = 0; i < 8; i += 2) CHECK(gpupool_free(arena, block[i], nullptr) == GPUPOOL_OK);
    int ranges = state.ranges;
    state.map = true;
    CHECK(fails_by_callback(arena, 16 * MIB, "on_map"));
    CHECK(state.ranges == ranges);
    state.map = false;
    void *stitched = gpupool_alloc(arena, 16 * MIB, nullptr);
    CHECK(stitched && state.ranges > ranges);
    CHECK(gpupool_free(arena, stitched, nullptr) == GPUPOOL_OK);
    state.unmap = true;
    for (int i = 1; i < 8; i += 2) CHECK(gpupool_free(arena, block[i], nullptr) == GPUPOOL_OK);
    CHECK(gpupool_trim(arena, 0) == GPUPOOL_E_CUDA);
    CHECK(strstr(gpupool_last_error(), "on_unmap threw"));
    other_threads_go_on(arena, GPUPOOL_E_CUDA);
    CHECK(gpupool_arena_destroy(arena) == GPUPOOL_E_CALLBACK && state.ranges == 0);
}

/* What must not fail breaks the arena. The chunk is gone, and not given back a second time. */
static void giving_a_chunk_back(gpupool_source source, bool *throws, const char *word) {
    gpupool_arena *arena = create(source);
    void *block = gpupool_alloc(arena, MIB, nullptr);
    CHECK(block && gpupool_free(arena, block, nullptr) == GPUPOOL_OK);
    *throws = true;
    CHECK(gpupool_trim(arena, 0) == GPUPOOL_E_CUDA && strstr(gpupool_last_error(), word));
    CHECK(state.chunks == 0 && state.ranges == 0);
    other_threads_go_on(arena, GPUPOOL_E_CUDA);
    CHECK(strstr(gpupool_last_error(), word));
    CHECK(gpupool_arena_destroy(arena) == GPUPOOL_OK);
}

static void destroying(gpupool_source source, bool *throws, const char *word) {
    gpupool_arena *arena = create(source);
    void *block = gpupool_alloc(arena, MIB, nullptr);
    CHECK(block && gpupool_free(arena, block, nullptr) == GPUPOOL_OK);
    *throws = true;
    CHECK(gpupool_arena_destroy(arena) == GPUPOOL_E_CALLBACK);
    CHECK(strstr(gpupool_last_error(), word) && state.chunks == 0 && state.ranges == 0);
}

/* It is as if the function had said no, though it made room; and it is told again the next time. */
static void when_memory_runs_out() {
    gpupool_arena *arena = create(GPUPOOL_SOURCE_AUTO);
    state.out_of_memory = arena;
    for (int time = 1; time <= 2; time++) {
        CHECK(!gpupool_alloc(arena, time * 65 * MIB, nullptr) && state.told == time);
        CHECK(gpupool_last_result() == GPUPOOL_E_OUT_OF_MEMORY);
    }
    other_threads_go_on(arena, GPUPOOL_OK);
    CHECK(gpupool_arena_destroy(arena) == GPUPOOL_OK);
}

int main() {
    making_a_chunk(GPUPOOL_SOURCE_CUSTOM, &state.alloc, "chunk_alloc");
    for (gpupool_source source : {GPUPOOL_SOURCE_MAPPED, GPUPOOL_SOURCE_DEVICE,
                                  GPUPOOL_SOURCE_PINNED, GPUPOOL_SOURCE_CUSTOM}) {
        making_a_chunk(source, &state.map, "on_map");
        giving_a_chunk_back(source, &state.unmap, "on_unmap");
        destroying(source, &state.unmap, "on_unmap");
    }
    giving_a_chunk_back(GPUPOOL_SOURCE_CUSTOM, &state.free, "chunk_free");
    destroying(GPUPOOL_SOURCE_CUSTOM, &state.free, "chunk_free");
    a_stitch();
    when_memory_runs_out();
    CHECK(fake_failures() == 0 && fake_misuses() == 0 && fake_live_objects() == 0);
    return outcome.bad != 0;
}
