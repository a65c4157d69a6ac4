/* Exporting a block: its descriptor, what may not be done with it meanwhile, and what cannot be
   exported. */
// build: plain
// build: asan -fsanitize=address,undefined
// build: check2 -O1 -DGPUPOOL_CHECK=2
// build: default -DGPUPOOL_SHARE=1
#define _DEFAULT_SOURCE
#include "gpupool.h"
#include "share_kit.h"

#define BYTES (4 * MIB)

/* ---- the descriptor ---- */

static void exported_as_often_as_closed(void) {
    share_open(0, 0);
    char *block = share_get(BYTES);
    gpupool_exported first = share_exported(block);
    CHECK_EQ(first.bytes, BYTES);
    CHECK_EQ(first.device, 0);
    CHECK_EQ(fcntl(first.descriptor, F_GETFD), FD_CLOEXEC);
    for (int i = 0; i < 3; i++) {
        gpupool_exported next = share_exported(block);
        CHECK_EQ(next.bytes, first.bytes);
        CHECK_EQ(next.device, first.device);
        CHECK_EQ(next.descriptor, first.descriptor);
    }
    for (int i = 0; i < 4; i++) {
        CHECK(share_is_open(first.descriptor));
        share_unexport(block);
    }
    CHECK(!share_is_open(first.descriptor));
    CHECK_RESULT(gpupool_export_close(arena, block), GPUPOOL_E_ARGUMENT);
    CHECK(strstr(gpupool_last_error(), "not exported") != NULL);
    share_put(block);
    kit_close(arena);
}

/* A program without standard input gets the first of all descriptors. */
static void the_first_descriptor(void) {
    int input = dup(0), is_closed = close(0) == 0;
    share_open(0, 0);
    char *block = share_get(BYTES);
    gpupool_exported first = share_exported(block);
    if (CHECK_FAKE) CHECK_EQ(first.descriptor, 0);
    share_unexport(block);
    CHECK(!share_is_open(first.descriptor));
    share_put(block);
    kit_close(arena);
    if (is_closed) CHECK_EQ(dup2(input, 0), 0);
    if (is_closed) CHECK_EQ(close(input), 0);
}

/* The struct is the exporter's; a block is exported anew, by whoever has its memory then. */
static void one_after_the_other(void) {
    share_open(0, 0);
    for (int i = 0; i < 3; i++) {
        char *block = share_get(BYTES), *other = share_get(BYTES);
        gpupool_exported a = share_exported(block), b = share_exported(other);
        CHECK(a.descriptor != b.descriptor);
        share_unexport(block);
        CHECK(!share_is_open(a.descriptor) && share_is_open(b.descriptor));
        share_put(block);
        share_unexport(other);
        share_put(other);
    }
    kit_close(arena);
}

/* ---- while it is exported ---- */

#if CHECK_FAKE
static gpupool_result host_result;

static void CUDART_CB free_in_host_function(void *block) {
    host_result = gpupool_free_in_host_function(arena, block, kit_stream[0]);
}
#endif

static void stays(const char *block, const gpupool_exported *exported, gpupool_stats before) {
    gpupool_exported again = share_exported(block);
    CHECK(kit_same_stats(before, kit_stats(arena)));
    CHECK_EQ(again.descriptor, exported->descriptor);
    CHECK(share_is_open(exported->descriptor));
    CHECK_EQ(kit_size(arena, block), BYTES);
    kit_expect_mark(kit_stream[0], block, BYTES, 5);
    share_unexport(block);
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
}

static void it_cannot_be_freed(void) {
    gpupool_arena *same;
    share_open(0, 0);
    char *block = share_get(BYTES), *other = share_get(BYTES);
    kit_mark(kit_stream[0], block, BYTES, 5);
    gpupool_exported exported = share_exported(block);
    gpupool_stats before;
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[1]), GPUPOOL_E_IN_USE);
    CHECK_RESULT(gpupool_free(arena, block, 0), GPUPOOL_E_IN_USE);
    before = kit_stats(arena); /* these streams are known by now */
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_E_IN_USE);
    CHECK(strstr(gpupool_last_error(), "gpupool_export_close") != NULL);
    stays(block, &exported, before);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[1]), GPUPOOL_E_IN_USE);
    stays(block, &exported, before);
    CHECK_RESULT(gpupool_free(arena, block, 0), GPUPOOL_E_IN_USE);
    stays(block, &exported, before);
    CHECK_RESULT(gpupool_free(arena, block, cudaStreamPerThread), GPUPOOL_E_IN_USE);
#if CHECK_FAKE
    CHECK_EQ(cudaLaunchHostFunc(kit_stream[0], free_in_host_function, block), cudaSuccess);
    CHECK_EQ(cudaStreamSynchronize(kit_stream[0]), cudaSuccess);
    CHECK_EQ(host_result, GPUPOOL_E_IN_USE);
    stays(block, &exported, before);
#endif
    CHECK_EQ(gpupool_cudaFree(block), cudaErrorInvalidValue); /* of no default arena */
    CHECK_EQ(cudaGetLastError(), cudaErrorInvalidValue);
    CHECK_RESULT(gpupool_record_stream(arena, block, kit_stream[2]), GPUPOOL_OK);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_E_IN_USE);
    kit_expect_mark(kit_stream[0], block, BYTES, 5);
    same = arena;
    CHECK_RESULT(gpupool_arena_destroy(same), GPUPOOL_E_IN_USE);
    share_put(other); /* which is not exported */
    CHECK_RESULT(gpupool_arena_destroy(same), GPUPOOL_E_IN_USE);
    CHECK(share_is_open(exported.descriptor));
    share_unexport(block);
    share_put(block);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_E_DOUBLE_FREE);
    kit_close(arena);
}

static void a_trim_leaves_it(void) {
    size_t released = 0;
    share_open(0, 0);
    char *block = share_get(BYTES), *other = share_get(BYTES);
    kit_mark(kit_stream[0], block, BYTES, 5);
    gpupool_exported exported = share_exported(block);
    share_put(other);
    kit_finish(arena);
    CHECK_RESULT(gpupool_trim(arena, 0, &released), GPUPOOL_OK);
    CHECK_EQ(released, BYTES);
    CHECK_EQ(kit_reserved(arena), BYTES);
    CHECK_RESULT(gpupool_set_limit(arena, MIB), GPUPOOL_OK);
    stays(block, &exported, kit_stats(arena));
    share_unexport(block);
    share_put(block);
    kit_close(arena);
}

#if GPUPOOL_SHARE
/* A block of the default arena, in cudaFree's shape. */
static void nor_by_cuda_free(void) {
    arena = gpupool_get_default_arena(0);
    char *block = share_get(BYTES);
    kit_mark(kit_stream[0], block, BYTES, 5);
    gpupool_exported exported = share_exported(block);
    CHECK_EQ(gpupool_cudaFree(block), cudaErrorInvalidValue);
    CHECK_EQ(cudaGetLastError(), cudaErrorInvalidValue);
    CHECK_EQ(gpupool_cudaFreeAsync(block, kit_stream[1]), cudaErrorInvalidValue);
    CHECK_EQ(cudaGetLastError(), cudaErrorInvalidValue);
    stays(block, &exported, kit_stats(arena));
    share_unexport(block);
    CHECK_EQ(gpupool_cudaFree(block), cudaSuccess);
    kit_close(arena);
}
#endif

/* ---- graphs ---- */

static void blocks_of_a_graph(void) {
    gpupool_capture *scope;
    cudaGraph_t graph;
    share_open(0, 0);
    char *before = share_get(BYTES), *block;
    gpupool_exported exported = share_exported(before), none;
    CHECK_RESULT(gpupool_begin_capture(arena, kit_stream[0], &scope), GPUPOOL_OK);
    CHECK_EQ(cudaStreamBeginCapture(kit_stream[0], cudaStreamCaptureModeGlobal), cudaSuccess);
    block = share_get(BYTES);
    share_expect_alone(block, BYTES);
    kit_fill(kit_stream[0], block, BYTES, 3);
    CHECK_RESULT(gpupool_export(arena, block, &none), GPUPOOL_E_CAPTURING);
    CHECK_EQ(none.descriptor, -1);
    CHECK_RESULT(gpupool_export_close(arena, block), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(gpupool_free(arena, before, kit_stream[0]), GPUPOOL_E_IN_USE);
    CHECK_EQ(share_exported(before).descriptor, exported.descriptor); /* it was not freed */
    CHECK_EQ(cudaStreamEndCapture(kit_stream[0], &graph), cudaSuccess);
    CHECK(graph != NULL);
    CHECK_RESULT(gpupool_end_capture(scope), GPUPOOL_OK);
    CHECK_RESULT(gpupool_export(arena, block, &none), GPUPOOL_E_CAPTURING);
    CHECK_EQ(cudaGraphDestroy(graph), cudaSuccess);
    CHECK_RESULT(gpupool_release_capture(scope), GPUPOOL_OK);
    CHECK_RESULT(gpupool_export(arena, block, &none), GPUPOOL_E_DOUBLE_FREE);
    share_unexport(before);
    share_unexport(before);
    share_put(before);
    kit_close(arena);
}

/* Exporting ends no capture that is under way on any stream. */
static void during_a_capture(void) {
    cudaGraph_t graph;
    share_open(0, 0);
    char *block = share_get(BYTES);
    CHECK_EQ(cudaStreamBeginCapture(kit_stream[1], cudaStreamCaptureModeGlobal), cudaSuccess);
    share_exported(block);
    share_unexport(block);
    CHECK_EQ(cudaStreamEndCapture(kit_stream[1], &graph), cudaSuccess);
    CHECK(graph != NULL);
    CHECK_EQ(cudaGraphDestroy(graph), cudaSuccess);
    share_put(block);
    kit_close(arena);
}

/* ---- what cannot be exported ---- */

/* Sizes that no block has are refused as they were asked for. */
static void sizes_that_cannot_be(void) {
    char words[64];
    share_open(0, 0);
    for (size_t bytes = ((size_t)1 << 48) + 1; bytes; bytes = bytes < SIZE_MAX ? SIZE_MAX : 0) {
        CHECK_RESULT(kit_why(share_try(bytes, 0)), GPUPOOL_E_ARGUMENT);
        snprintf(words, sizeof words, "bytes is %zu,", bytes);
        CHECK(strstr(gpupool_last_error(), words) != NULL);
    }
    CHECK_RESULT(kit_why(share_try(0, 0)), GPUPOOL_E_ARGUMENT);
    kit_close(arena);
}

static void cannot(const void *pointer, gpupool_result expected) {
    gpupool_exported exported = {1, 1, 1};
    gpupool_stats before = kit_stats(arena);
    CHECK_RESULT(gpupool_export(arena, pointer, &exported), expected);
    CHECK_EQ(exported.descriptor, -1);
    CHECK_EQ(exported.bytes, 0);
    CHECK_RESULT(gpupool_export_close(arena, pointer), expected);
    CHECK(kit_same_stats(before, kit_stats(arena)));
}

static void blocks_and_pointers_that_are_not_for_it(void) {
    char on_host;
    void *foreign = NULL;
    gpupool_exported exported;
    share_open(8 * MIB, 0);
    char *front = (char *)share_any(3 * MIB); /* where its chunk begins, */
    char *small = (char *)share_any(100), *large = (char *)share_any(3 * MIB);
    char *huge = (char *)share_any(20 * MIB);
    char *block = share_get(BYTES), *freed = share_get(BYTES);
    CHECK_EQ(cudaMalloc(&foreign, 100), cudaSuccess);
    share_put(freed);
    share_put(small);
    small = (char *)share_any(100); /* now a cache has it, too */
    cannot(small, GPUPOOL_E_ARGUMENT);
    CHECK(strstr(gpupool_last_error(), "GPUPOOL_EXPORTABLE") != NULL);
    cannot(front, GPUPOOL_E_ARGUMENT); /* but not all of the chunk */
    cannot(large, GPUPOOL_E_ARGUMENT);
    cannot(huge + 512, GPUPOOL_E_INSIDE);
    cannot(block + 1, GPUPOOL_E_INSIDE);
    cannot(block + 2 * MIB, GPUPOOL_E_INSIDE);
    cannot(freed, GPUPOOL_E_DOUBLE_FREE);
    cannot(foreign, GPUPOOL_E_NOT_OURS);
    cannot(&on_host, GPUPOOL_E_NOT_OURS);
    CHECK(gpupool_export(arena, NULL, &exported) != GPUPOOL_OK);
    CHECK_EQ(exported.descriptor, -1);
    CHECK(gpupool_export_close(arena, NULL) != GPUPOOL_OK);
    CHECK_RESULT(gpupool_export(arena, block, NULL), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(gpupool_export(NULL, block, &exported), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(gpupool_export_close(NULL, block), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(gpupool_export_close(arena, block), GPUPOOL_E_ARGUMENT); /* not exported yet */
    share_put(small);
    share_put(front);
    share_put(large);
    share_put(huge);
    share_put(block);
    CHECK_EQ(cudaFree(foreign), cudaSuccess);
    kit_close(arena);
}

static void other_arenas(void) {
    for (size_t i = 0; i < KIT_SOURCES; i++) {
        check_case("%s", kit_sources[i].name);
        arena = kit_open(kit_sources[i].source);
        void *small = share_any(100), *block = share_any(4 * MIB);
        cannot(small, GPUPOOL_E_ARGUMENT);
        cannot(block, GPUPOOL_E_ARGUMENT);
        share_put(small);
        share_put(block);
        kit_close(arena);
    }
}

#if CHECK_FAKE
/* ---- others meanwhile ---- */

static void meanwhile(void *block) {
    CHECK_RESULT(gpupool_export_close(arena, block), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_E_IN_USE);
}

/* 0 is a descriptor like any other. */
static void a_descriptor_of_0(void) {
    int standard = dup(0);
    share_open(0, 0);
    char *block = share_get(BYTES);
    close(0);
    CHECK_EQ(share_exported(block).descriptor, 0);
    share_unexport(block);
    CHECK(!share_is_open(0));
    if (standard >= 0) CHECK_EQ(dup2(standard, 0), 0);
    if (standard >= 0) CHECK_EQ(close(standard), 0);
    share_put(block);
    kit_close(arena);
}

static void of_another_device(void) {
    gpupool_arena_config config = share_config(GPUPOOL_SHARE_PROCESSES);
    config.device = 1;
    CHECK_EQ(cudaSetDevice(1), cudaSuccess);
    arena = kit_create(&config);
    void *block = kit_alloc_as(arena, BYTES, 0, GPUPOOL_EXPORTABLE);
    CHECK_EQ(share_exported(block).device, 1);
    share_unexport(block);
    CHECK_RESULT(gpupool_free(arena, block, 0), GPUPOOL_OK);
    kit_close(arena);
    CHECK_EQ(cudaSetDevice(0), cudaSuccess);
}

/* Another thread's mistake, while CUDA makes the descriptor. */
static void closed_before_it_is_exported(void) {
    share_open(0, 0);
    char *block = share_get(BYTES);
    int standard = share_is_open(0);
    fake_before_call("cuMemExportToShareableHandle", 1, meanwhile, block);
    gpupool_exported exported = share_exported(block);
    CHECK_EQ(share_is_open(0), standard);
    CHECK(share_is_open(exported.descriptor));
    share_unexport(block);
    CHECK(!share_is_open(exported.descriptor));
    share_put(block);
    kit_close(arena);
}

/* A reset ends blocks; destroying the arena closes what was exported. */
static void a_reset(void) {
    share_open(0, 0);
    char *block = share_get(BYTES), *other = share_get(BYTES);
    gpupool_exported one = share_exported(block), two = share_exported(other), none;
    CHECK_EQ(share_exported(other).descriptor, two.descriptor);
    CHECK_EQ(cudaDeviceReset(), cudaSuccess);
    for (int i = 0; i < KIT_STREAMS; i++) kit_stream[i] = NULL;
    CHECK_RESULT(gpupool_export(arena, block, &none), GPUPOOL_E_CUDA);
    CHECK_EQ(none.descriptor, -1);
    CHECK(share_is_open(one.descriptor) && share_is_open(two.descriptor));
    CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_OK);
    CHECK(!share_is_open(one.descriptor) && !share_is_open(two.descriptor));
}

/* How many questions about the device it takes to make an arena. */
static long asked_for(unsigned share) {
    long before = fake_calls("cuDeviceGetAttribute");
    gpupool_arena_config config = share_config(share);
    kit_close(kit_create(&config));
    return fake_calls("cuDeviceGetAttribute") - before;
}

/* A driver that has no answer about one way to share is not in the way of the other, or of none. */
static void only_what_matters_is_asked(void) {
    long none = asked_for(0);
    CHECK_EQ(asked_for(GPUPOOL_SHARE_PROCESSES), none + 1);
    CHECK_EQ(asked_for(GPUPOOL_SHARE_RDMA), none + 1);
    CHECK_EQ(asked_for(GPUPOOL_SHARE_PROCESSES | GPUPOOL_SHARE_RDMA), none + 2);
}
#endif

int main(void) {
    SHARE_TEST(exported_as_often_as_closed);
    SHARE_TEST(the_first_descriptor);
    SHARE_TEST(one_after_the_other);
    SHARE_TEST(it_cannot_be_freed);
    SHARE_TEST(a_trim_leaves_it);
#if GPUPOOL_SHARE
    SHARE_TEST(nor_by_cuda_free);
#endif
    SHARE_TEST(blocks_of_a_graph);
    SHARE_TEST(during_a_capture);
    SHARE_TEST(sizes_that_cannot_be);
    SHARE_TEST(blocks_and_pointers_that_are_not_for_it);
    SHARE_TEST(other_arenas);
    SHARE_FAKE_TEST(a_descriptor_of_0);
    SHARE_FAKE_TEST(of_another_device);
    SHARE_FAKE_TEST(closed_before_it_is_exported);
    SHARE_FAKE_TEST(a_reset);
    SHARE_FAKE_TEST(only_what_matters_is_asked);
    return check_finish();
}
