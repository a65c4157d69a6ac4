/* What differs from source to source, and that all memory goes back. That blocks hold what is
   written is judged in tests/world and test_sweep. */
#include "gpupool.h"
#include "kit.h"

#define A kit_stream[0]

typedef struct program { /* of CUSTOM: cudaMalloc, with a record of what is out */
    int out, calls, refuse;
    size_t bytes;
} program;

static program p;

static void *chunk_alloc(size_t bytes, void *user) {
    program *own = (program *)user;
    void *chunk = NULL;
    own->calls++;
    if (own->refuse || cudaMalloc(&chunk, bytes) != cudaSuccess) return NULL;
    own->out++;
    own->bytes += bytes;
    return chunk;
}

static void chunk_free(void *chunk, size_t bytes, void *user) {
    program *own = (program *)user;
    CHECK_EQ(cudaFree(chunk), cudaSuccess);
    own->out--;
    own->bytes -= bytes;
}

static gpupool_arena *create(gpupool_source source) {
    gpupool_arena_config config = kit_config(source, 0);
    memset(&p, 0, sizeof p);
    config.user = &p;
    if (source == GPUPOOL_SOURCE_CUSTOM) {
        config.chunk_alloc = chunk_alloc;
        config.chunk_free = chunk_free;
    }
    return kit_create(&config);
}

static void zeroed_host_memory(void) {
    gpupool_arena *arena = create(GPUPOOL_SOURCE_PINNED);
    char *block = (char *)gpupool_alloc(arena, 5000, A);
    CHECK(block);
    memset(block, 1, 5000);
    kit_free(arena, block, GPUPOOL_NO_STREAM);
    block = (char *)kit_alloc_as(arena, 5000, 0, A, GPUPOOL_ZEROED);
    CHECK(block);
    for (int i = 0; i < 5000; i++)
        if (!CHECK_EQ(block[i], 0)) break; /* at once, and not behind the stream */
    kit_free(arena, block, A);
    kit_close(arena);
}

/* chunk_alloc's NULL is no error of CUDA's, and the next request asks again. */
static void custom_refuses(void) {
    gpupool_arena *arena = create(GPUPOOL_SOURCE_CUSTOM);
    void *block;
    p.refuse = 1;
    KIT_FAILS(gpupool_alloc(arena, 1000, A), GPUPOOL_E_OUT_OF_MEMORY, "");
    CHECK(p.calls >= 1);
    p.refuse = 0;
    block = gpupool_alloc(arena, 1000, A);
    CHECK(block);
    CHECK_EQ(p.bytes, kit_stats(arena).reserved.now);
    kit_free(arena, block, A);
    kit_close(arena);
    CHECK_EQ(p.out, 0);
}

/* Where the device cannot map, AUTO takes cudaMalloc, and MAPPED is refused. */
static void without_mapping(void) {
#if CHECK_FAKE
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED, 0);
    gpupool_arena *arena = NULL;
    fake_device_vmm(0, 0);
    KIT_REFUSES(gpupool_arena_create(&arena, &config), GPUPOOL_E_UNSUPPORTED, "map");
    CHECK(!arena);
    arena = create(GPUPOOL_SOURCE_AUTO);
    kit_free(arena, gpupool_alloc(arena, MIB, A), A);
    CHECK_EQ(fake_mappings(), 0);
    kit_close(arena);
#endif
}

/* Memory that the host uses at once is handed out only when its work has finished: one stream that
   frees and waits in turn needs little of it, though it never frees without a stream. In the end
   all goes back. */
static void one_stream_stages(void) {
    for (int source = GPUPOOL_SOURCE_AUTO; source <= GPUPOOL_SOURCE_BYPASS; source++) {
        gpupool_arena *arena = create((gpupool_source)source);
        for (int round = 0; round < 4000; round++) {
            size_t bytes = round % 2 ? MIB : 4 * KIB;
            void *block = gpupool_alloc(arena, bytes, A);
            CHECK(block);
            kit_write(block, 64, A, round);
            kit_free(arena, block, A);
            CHECK_EQ(cudaStreamSynchronize(A), cudaSuccess);
        }
        check_case("source %d", source);
        CHECK(kit_stats(arena).reserved.peak <= 32 * MIB);
        CHECK_EQ(kit_stats(arena).host_waits, 0);
        if (source == GPUPOOL_SOURCE_BYPASS) CHECK_EQ(kit_stats(arena).chunks, 0);
        else CHECK(kit_stats(arena).chunks > 0);
        CHECK_RESULT(gpupool_trim(arena, 0), GPUPOOL_OK);
        CHECK_EQ(kit_stats(arena).reserved.now, 0);
        CHECK_EQ(p.out, 0);
        kit_close(arena);
    }
}

int main(void) {
    KIT_TEST(zeroed_host_memory);
    KIT_TEST(custom_refuses);
    KIT_FAKE_TEST(without_mapping);
    KIT_TEST(one_stream_stages);
    return check_finish();
}
