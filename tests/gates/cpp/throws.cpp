/* Functions of the program that throw, against rule 4: each call ends, with an error, and no lock
   stays held, so that another thread's calls go on. */
#define GPUPOOL_IMPLEMENTATION
#include "cpp.h"

#include <cstdlib>
#include <thread>

static checks outcome;

static const char *throwing; /* the function that throws, by its name */
static int held;             /* chunks and mappings that are there, as the functions were told */

static void may_throw(const char *name) {
    if (throwing && !strcmp(throwing, name)) throw 1;
}

static void *chunk_alloc(size_t bytes, void *) {
    may_throw("chunk_alloc");
    held++;
    return aligned_alloc(2 * MIB, bytes);
}

static void chunk_free(void *chunk, size_t, void *) {
    std::free(chunk);
    held--;
    may_throw("chunk_free");
}

static int on_map(const gpupool_mapping *, void *) {
    may_throw("on_map");
    held++;
    return 0;
}

static void on_unmap(const gpupool_mapping *, void *) {
    held--;
    may_throw("on_unmap");
}

static int times_told;

static int on_out_of_memory(const gpupool_verdict *, void *) {
    times_told++;
    may_throw("on_out_of_memory");
    return 0;
}

static gpupool_arena *create(gpupool_source source) {
    gpupool_arena_config config = from(source, 64 * MIB);
    gpupool_arena *arena = nullptr;
    throwing = nullptr;
    held = 0;
    config.chunk_alloc = chunk_alloc;
    config.chunk_free = chunk_free;
    config.on_map = on_map;
    config.on_unmap = on_unmap;
    config.on_out_of_memory = on_out_of_memory;
    CHECK(gpupool_arena_create(&arena, &config) == GPUPOOL_OK);
    return arena;
}

static gpupool_arena *create_with_idle_chunk(gpupool_source source) {
    gpupool_arena *arena = create(source);
    void *block = gpupool_alloc(arena, MIB, nullptr);
    CHECK(block && gpupool_free(arena, block, nullptr) == GPUPOOL_OK);
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

static void making_a_chunk(gpupool_source source, const char *name) {
    gpupool_arena *arena = create(source);
    throwing = name;
    CHECK(!gpupool_alloc(arena, MIB, nullptr) && gpupool_last_result() == GPUPOOL_E_CALLBACK);
    CHECK(strstr(gpupool_last_error(), name) && held == 0);
    throwing = nullptr;
    other_threads_go_on(arena, GPUPOOL_OK);
    CHECK(gpupool_arena_destroy(arena) == GPUPOOL_OK && held == 0);
}

/* What must not fail breaks the arena. The chunk is gone, and not given back a second time. */
static void giving_a_chunk_back(gpupool_source source, const char *name) {
    gpupool_arena *arena = create_with_idle_chunk(source);
    throwing = name;
    CHECK(gpupool_trim(arena, 0) == GPUPOOL_E_CUDA && strstr(gpupool_last_error(), name));
    CHECK(held == 0);
    other_threads_go_on(arena, GPUPOOL_E_CUDA);
    CHECK(gpupool_arena_destroy(arena) == GPUPOOL_OK);
    arena = create_with_idle_chunk(source);
    throwing = name;
    CHECK(gpupool_arena_destroy(arena) == GPUPOOL_E_CALLBACK);
    CHECK(strstr(gpupool_last_error(), name) && held == 0);
}

/* It is as if the function had said no; and it is told again the next time. */
static void when_memory_runs_out() {
    gpupool_arena *arena = create(GPUPOOL_SOURCE_AUTO);
    throwing = "on_out_of_memory";
    for (int time = 1; time <= 2; time++) {
        CHECK(!gpupool_alloc(arena, 65 * MIB, nullptr) && times_told == time);
        CHECK(gpupool_last_result() == GPUPOOL_E_OUT_OF_MEMORY);
    }
    other_threads_go_on(arena, GPUPOOL_OK);
    CHECK(gpupool_arena_destroy(arena) == GPUPOOL_OK);
}

int main() {
    making_a_chunk(GPUPOOL_SOURCE_CUSTOM, "chunk_alloc");
    giving_a_chunk_back(GPUPOOL_SOURCE_CUSTOM, "chunk_free");
    for (gpupool_source source : {GPUPOOL_SOURCE_MAPPED, GPUPOOL_SOURCE_DEVICE}) {
        making_a_chunk(source, "on_map");
        giving_a_chunk_back(source, "on_unmap");
    }
    when_memory_runs_out();
    CHECK(fake_failures() == 0 && fake_misuses() == 0 && fake_live_objects() == 0);
    return outcome.bad != 0;
}
