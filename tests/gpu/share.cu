/* Blocks in two processes on a real GPU: a thousand rounds of export and import, with kernels that
   write and verify on both sides; and what registration for a network card asks of the memory. */
#include "kit.h"
#include "share_socket.h"

#include <cuda.h>
#include <fcntl.h>

static const int ROUNDS = 1000;

static int importer_socket;
static pid_t importer;

static size_t bytes_of(int round) { return (size_t)(round % 7 + 1) * 3 * MIB; }

/* The same kernels' mark says which round wrote, and which side. */
static word mark_of(int round, int side) { return ((word)round << 1 | (word)side) << 32; }

/* ---- CUDA's own calls, which nothing here links ---- */

static void *driver_call(const char *name) {
    enum cudaDriverEntryPointQueryResult found;
    void *call = nullptr;
    if (cudaGetDriverEntryPointByVersion(name, &call, 12000, cudaEnableDefault, &found) !=
            cudaSuccess || found != cudaDriverEntryPointSuccess)
        return nullptr;
    return call;
}
#define DRIVER(name) reinterpret_cast<decltype(&name)>(driver_call(#name))

static int attribute(CUpointer_attribute which, const void *at) {
    int value = -1;
    auto ask = DRIVER(cuPointerGetAttribute);
    CHECK(ask && ask(&value, which, (CUdeviceptr)(uintptr_t)at) == CUDA_SUCCESS);
    return value;
}

static int device_has(CUdevice_attribute which) {
    int value = 0;
    auto ask = DRIVER(cuDeviceGetAttribute);
    CHECK(ask && ask(&value, which, 0) == CUDA_SUCCESS);
    return value;
}

/* ---- an arena for sharing; a block for another process ---- */

static gpupool_arena *open_arena(unsigned share) {
    gpupool_arena_config config = {};
    gpupool_arena *arena = nullptr;
    config.source = GPUPOOL_SOURCE_MAPPED;
    config.share = share;
    POOL(gpupool_arena_create(&arena, &config));
    if (!arena) exit(1);
    return arena;
}

static void close_arena(gpupool_arena *arena) {
    POOL(gpupool_check(arena));
    POOL(gpupool_arena_destroy(arena));
}

static void *exportable(gpupool_arena *arena, size_t bytes, cudaStream_t stream) {
    gpupool_request request = {};
    request.bytes = bytes;
    request.stream = stream;
    request.flags = GPUPOOL_OWN_CHUNK;
    void *block = gpupool_alloc_request(arena, &request);
    if (!block) kit_fail(__FILE__, __LINE__, "a block for export", gpupool_last_error());
    return block;
}

static int descriptors() {
    int count = 0;
    for (int i = 0; i < 4096; i++) count += fcntl(i, F_GETFD) != -1;
    return count;
}

/* ---- the rounds ---- */

static int import_all(int socket) {
    gpupool_exported exported;
    int before = 0;
    for (int round = 0; share_receive(socket, &exported); round++) {
        gpupool_imported imported = {};
        if (round == 10) before = descriptors(); /* by then CUDA has opened its own */
        POOL(gpupool_import(0, &exported, &imported));
        close(exported.descriptor);
        if (kit_bad) return 1;
        kit_verify(imported.memory, bytes_of(round), mark_of(round, 0), 0);
        kit_stamp(imported.memory, bytes_of(round), mark_of(round, 1), 0);
        CHECK(kit_wrong_words() == 0); /* waits */
        POOL(gpupool_import_close(&imported));
        if (!share_say(socket, 'd')) return 1;
        if (round == ROUNDS - 1) CHECK(descriptors() <= before);
    }
    return kit_bad != 0;
}

static void a_thousand_rounds() {
    gpupool_arena *arena = open_arena(GPUPOOL_SHARE_PROCESSES);
    cudaStream_t stream = kit_stream();
    int before = 0;
    for (int round = 0; round < ROUNDS && !kit_bad; round++) {
        gpupool_exported exported;
        size_t bytes = bytes_of(round);
        if (round == 10) before = descriptors();
        void *block = exportable(arena, bytes, stream);
        if (!block) break;
        kit_stamp(block, bytes, mark_of(round, 0), stream);
        CUDA(cudaStreamSynchronize(stream));
        POOL(gpupool_export(arena, block, &exported));
        CHECK(share_send(importer_socket, &exported));
        CHECK(share_hear(importer_socket) == 'd');
        kit_verify(block, bytes, mark_of(round, 1), stream);
        CHECK(close(exported.descriptor) == 0);
        POOL(gpupool_free(arena, block, stream));
    }
    CHECK(kit_wrong_words() == 0);
    CHECK(descriptors() <= before);
    close(importer_socket);
    CHECK(share_end_of(importer) == 0);
    printf("%d rounds; chunks in the end: %llu\n", ROUNDS, (word)kit_stats(arena).chunks);
    close_arena(arena);
    CUDA(cudaStreamDestroy(stream));
}

/* ---- what chunks are made with ---- */

static void for_network_cards() {
    const int can = device_has(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
    for (unsigned share = 0; share <= 3; share++) {
        if ((share & GPUPOOL_SHARE_RDMA) && !can) {
            gpupool_arena_config config = {};
            gpupool_arena *none = nullptr;
            config.share = share;
            CHECK(gpupool_arena_create(&none, &config) == GPUPOOL_E_UNSUPPORTED && !none);
            continue;
        }
        gpupool_arena *arena = open_arena(share);
        void *block = gpupool_alloc(arena, 5 * MIB, 0);
        CHECK(attribute(CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, block) ==
              ((share & GPUPOOL_SHARE_RDMA) != 0));
        printf("config.share %u: ALLOWED_HANDLE_TYPES is %d\n", share,
               attribute(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, block));
        POOL(gpupool_free(arena, block, 0));
        close_arena(arena);
    }
    if (!can) printf("this device has no GPUDirect RDMA of mapped memory\n");
}

/* An importer that takes more than all of it. */
static void more_than_there_is() {
    gpupool_arena *arena = open_arena(GPUPOOL_SHARE_PROCESSES);
    void *block = exportable(arena, 8 * MIB, 0);
    gpupool_exported exported;
    gpupool_imported imported;
    POOL(gpupool_export(arena, block, &exported));
    exported.bytes = 10 * MIB;
    CHECK(gpupool_import(0, &exported, &imported) == GPUPOOL_E_CUDA && !imported.memory);
    printf("%s\n", gpupool_last_error());
    CHECK(close(exported.descriptor) == 0);
    POOL(gpupool_free(arena, block, 0));
    close_arena(arena);
}

int main() {
    importer = share_fork(&importer_socket, import_all);
    if (importer < 0) return kit_skip("no process could be made");
    RUN(a_thousand_rounds);
    RUN(for_network_cards);
    RUN(more_than_there_is);
    return kit_end();
}
