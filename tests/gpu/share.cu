/* Blocks in two processes on a real GPU: a thousand rounds of export and import, with kernels that
   write and verify on both sides; an exporter that is killed; what registration for a network card
   asks of the memory; and what CUDA itself says to such blocks, printed. */
#include "kit.h"
#include "../support/share_socket.h"

#include <cerrno>
#include <cuda.h>
#include <fcntl.h>

static const int ROUNDS = 1000;

static int importer_socket, exporter_socket;
static pid_t importer, exporter;

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

static const char *name_of(CUresult error) {
    const char *name = "?";
    if (auto ask = DRIVER(cuGetErrorName)) ask(error, &name);
    return name;
}

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

static unsigned long long last_handle; /* that on_map was told */

static int on_map(const gpupool_mapping *mapping, void *) {
    last_handle = mapping->handle;
    return 0;
}

static gpupool_arena *open_arena(unsigned share) {
    gpupool_arena_config config = {};
    gpupool_arena *arena = nullptr;
    config.source = GPUPOOL_SOURCE_MAPPED;
    config.share = share;
    config.on_map = on_map;
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

/* ---- the exporter is killed ---- */

static int export_and_wait(int socket) {
    close(importer_socket); /* or the importer would not see that the parent has closed it */
    gpupool_arena *arena = open_arena(GPUPOOL_SHARE_PROCESSES);
    for (int i = 0; i < 2; i++) {
        gpupool_exported exported;
        void *block = exportable(arena, bytes_of(i), 0);
        if (!block) return 1;
        kit_stamp(block, bytes_of(i), mark_of(i, 0), 0);
        CUDA(cudaDeviceSynchronize());
        POOL(gpupool_export(arena, block, &exported));
        if (kit_bad || !share_send(socket, &exported)) return 1;
    }
    share_hear(socket); /* never */
    return 2;
}

static void the_exporter_is_killed() {
    gpupool_exported first, second;
    gpupool_imported imported = {}, late = {};
    CHECK(share_receive(exporter_socket, &first) && share_receive(exporter_socket, &second));
    POOL(gpupool_import(0, &first, &imported));
    if (kit_bad) return;
    kit_verify(imported.memory, bytes_of(0), mark_of(0, 0), 0);
    kit_linger(0, 20000000); /* work is queued while it dies */
    kit_verify(imported.memory, bytes_of(0), mark_of(0, 0), 0);
    CHECK(kill(exporter, SIGKILL) == 0);
    CHECK(share_end_of(exporter) == 1000 + SIGKILL);
    kit_verify(imported.memory, bytes_of(0), mark_of(0, 0), 0);
    kit_stamp(imported.memory, bytes_of(0), mark_of(9, 0), 0);
    kit_verify(imported.memory, bytes_of(0), mark_of(9, 0), 0);
    CHECK(kit_wrong_words() == 0);
    gpupool_result result = gpupool_import(0, &second, &late);
    printf("after the exporter's death: what was imported is as it was; a descriptor that had "
           "arrived: %s\n", result == GPUPOOL_OK ? "imported, too" : gpupool_last_error());
    if (result == GPUPOOL_OK) {
        kit_verify(late.memory, bytes_of(1), mark_of(1, 0), 0);
        CHECK(kit_wrong_words() == 0);
        POOL(gpupool_import_close(&late));
    } else {
        CHECK(result == GPUPOOL_E_CUDA);
    }
    POOL(gpupool_import_close(&imported));
    close(first.descriptor);
    close(second.descriptor);
    close(exporter_socket);
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

/* A whole block as a dma-buf, which drivers of network cards take. */
static void as_a_dma_buf() {
    auto get = DRIVER(cuMemGetHandleForAddressRange);
    if (!get || !device_has(CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED) ||
        !device_has(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED)) {
        printf("dma-buf: skipped, this driver has none of mapped memory\n");
        return;
    }
    gpupool_arena *arena = open_arena(GPUPOOL_SHARE_PROCESSES | GPUPOOL_SHARE_RDMA);
    void *block = exportable(arena, 8 * MIB, 0);
    int descriptor = -1;
    CUresult error = get(&descriptor, (CUdeviceptr)(uintptr_t)block, 8 * MIB,
                         CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
    printf("dma-buf of a whole block: %s\n", name_of(error));
    CHECK(error == CUDA_SUCCESS || error == CUDA_ERROR_NOT_SUPPORTED);
    if (error == CUDA_SUCCESS) close(descriptor);
    POOL(gpupool_free(arena, block, 0));
    close_arena(arena);
}

/* ---- what CUDA says: facts on which the simulated GPU rests ---- */

static void what_cuda_says() {
    gpupool_arena *arena = open_arena(GPUPOOL_SHARE_PROCESSES);
    void *block = exportable(arena, 4 * MIB, 0);
    auto make = DRIVER(cuMemExportToShareableHandle);
    auto take = DRIVER(cuMemImportFromShareableHandle);
    auto let_go = DRIVER(cuMemRelease);
    const unsigned long long handle = last_handle;
    int plain = -1, ends[2];
    CHECK(make && take && let_go && handle);
    if (kit_bad) return;
    CHECK(make(&plain, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) == CUDA_SUCCESS);
    printf("a descriptor of cuMemExportToShareableHandle is%s close-on-exec by itself\n",
           fcntl(plain, F_GETFD) & FD_CLOEXEC ? "" : " not");
    CUmemGenericAllocationHandle own = 0;
    CHECK(take(&own, (void *)(uintptr_t)plain, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) ==
          CUDA_SUCCESS);
    printf("imported in the same process it is %s handle\n",
           own == handle ? "the same" : "another");
    CHECK(let_go(own) == CUDA_SUCCESS);
    close(plain);
    CHECK(pipe(ends) == 0);
    const int wrong[] = {plain, ends[0], 999, -1}; /* closed, a pipe's, never open */
    for (int descriptor : wrong) {
        CUresult error = take(&own, (void *)(uintptr_t)descriptor,
                              CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
        printf("cuMemImportFromShareableHandle of descriptor %d: %s\n", descriptor, name_of(error));
        CHECK(error != CUDA_SUCCESS);
        gpupool_exported exported = {4 * MIB, descriptor};
        gpupool_imported none;
        gpupool_result result = gpupool_import(0, &exported, &none);
        CHECK(result == GPUPOOL_E_CUDA && !none.memory);
    }
    close(ends[0]);
    close(ends[1]);
    cudaIpcMemHandle_t ipc;
    cudaError_t error = cudaIpcGetMemHandle(&ipc, block);
    printf("cudaIpcGetMemHandle of a block: %s\n", cudaGetErrorName(error));
    cudaGetLastError();
    POOL(gpupool_free(arena, block, 0));
    close_arena(arena);
}

/* An importer that takes less than all of it, or more. */
static void other_sizes() {
    gpupool_arena *arena = open_arena(GPUPOOL_SHARE_PROCESSES);
    void *block = exportable(arena, 8 * MIB, 0);
    gpupool_exported exported;
    POOL(gpupool_export(arena, block, &exported));
    const size_t sizes[] = {1, 4 * MIB, 10 * MIB};
    for (size_t bytes : sizes) {
        gpupool_exported wrong = exported;
        gpupool_imported imported;
        wrong.bytes = bytes;
        gpupool_result result = gpupool_import(0, &wrong, &imported);
        printf("import of %zu bytes of 8 MiB: %s\n", bytes,
               result == GPUPOOL_OK ? "mapped" : gpupool_last_error());
        CHECK(bytes <= 8 * MIB || result == GPUPOOL_E_CUDA);
        if (result == GPUPOOL_OK) POOL(gpupool_import_close(&imported));
    }
    CHECK(close(exported.descriptor) == 0);
    POOL(gpupool_free(arena, block, 0));
    close_arena(arena);
}

int main() {
    importer = share_fork(&importer_socket, import_all);
    exporter = share_fork(&exporter_socket, export_and_wait);
    if (importer < 0 || exporter < 0) return kit_skip("no process could be made");
    RUN(a_thousand_rounds);
    RUN(the_exporter_is_killed);
    RUN(for_network_cards);
    RUN(as_a_dma_buf);
    RUN(what_cuda_says);
    RUN(other_sizes);
    return kit_end();
}
