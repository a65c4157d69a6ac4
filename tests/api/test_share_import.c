/* Importing a block, in the process that exports it: the same memory at one more address, for
   whichever device, and what is no such block. */
// build: plain
// build: asan -fsanitize=address,undefined
// build: check2 -O1 -DGPUPOOL_CHECK=2
#define _DEFAULT_SOURCE
#include "gpupool.h"
#include "share_kit.h"

#define BYTES (4 * MIB)

static char *block; /* exported, of an arena on device 0 */
static gpupool_exported exported;

static void open_exported(void) {
    share_open(0, 0);
    block = share_get(BYTES);
    exported = share_exported(block);
}

static void close_exported(void) {
    share_unexport(block);
    share_put(block);
    kit_close(arena);
}

/* ---- the same memory ---- */

static void what_one_writes_the_other_reads(void) {
    open_exported();
    gpupool_imported imported = share_imported(0, &exported);
    char *there = (char *)imported.memory;
    CHECK(there != NULL && there != block);
    CHECK_EQ(imported.bytes, BYTES);
    CHECK_EQ(imported.device, 0);
    CHECK_EQ((uintptr_t)there % SHARE_GRANULE, 0);
    kit_fill(kit_stream[0], block, BYTES, 1);
    kit_expect(kit_stream[0], there, BYTES, 1);
    kit_fill(kit_stream[0], there + MIB, MIB, 2);
    kit_expect(kit_stream[0], block, MIB, 1);
    kit_expect(kit_stream[0], block + MIB, MIB, 2);
    kit_expect(kit_stream[0], block + 2 * MIB, BYTES - 2 * MIB, 1);
    CHECK_EQ(cudaStreamSynchronize(kit_stream[0]), cudaSuccess);
    share_unimport(&imported);
    CHECK(imported.memory == NULL && imported.bytes == 0 && imported.handle == 0);
    kit_expect(kit_stream[0], block + MIB, MIB, 2);
    close_exported();
}

static void two_imports_of_one_export(void) {
    open_exported();
    gpupool_imported a = share_imported(0, &exported), b = share_imported(0, &exported);
    CHECK(a.memory != b.memory);
    kit_fill(kit_stream[0], a.memory, BYTES, 3);
    kit_expect(kit_stream[0], b.memory, BYTES, 3);
    CHECK_EQ(cudaStreamSynchronize(kit_stream[0]), cudaSuccess);
    share_unimport(&a);
    kit_fill(kit_stream[0], b.memory, BYTES, 4);
    kit_expect(kit_stream[0], block, BYTES, 4);
    CHECK_EQ(cudaStreamSynchronize(kit_stream[0]), cudaSuccess);
    share_unimport(&b);
    close_exported();
}

/* The descriptor may be closed, the block freed, the arena gone. */
static void it_outlives_the_exporter(void) {
    open_exported();
    gpupool_exported copy = exported;
    copy.descriptor = dup(exported.descriptor);
    gpupool_imported imported = share_imported(0, &copy);
    CHECK_EQ(close(copy.descriptor), 0);
    kit_mark(kit_stream[0], block, BYTES, 5);
    CHECK_EQ(cudaStreamSynchronize(kit_stream[0]), cudaSuccess);
    close_exported();
    kit_expect_mark(kit_stream[0], imported.memory, BYTES, 5);
    CHECK_EQ(cudaStreamSynchronize(kit_stream[0]), cudaSuccess);
#if CHECK_FAKE
    CHECK_EQ(fake_used_bytes(0), BYTES);
#endif
    share_unimport(&imported);
#if CHECK_FAKE
    CHECK_EQ(fake_used_bytes(0), 0);
#endif
}

/* Whoever closes the export too early lets the importer see who has the memory next. */
static void closed_too_early(void) {
    open_exported();
    gpupool_imported imported = share_imported(0, &exported);
    share_unexport(block);
    share_put(block);
    char *next = (char *)share_any(BYTES);
    CHECK(next == block);
    kit_fill(kit_stream[0], next, BYTES, 6);
    kit_expect(kit_stream[0], imported.memory, BYTES, 6);
    CHECK_EQ(cudaStreamSynchronize(kit_stream[0]), cudaSuccess);
    share_unimport(&imported);
    kit_expect(kit_stream[0], next, BYTES, 6);
    share_put(next);
    kit_close(arena);
}

/* ---- devices ---- */

static void on_another_device(void) {
    cudaStream_t there;
    int now = -1;
    if (kit_devices() < 2) return;
    open_exported();
    gpupool_imported imported = share_imported(1, &exported);
    CHECK_EQ(imported.device, 1);
    CHECK_EQ(cudaGetDevice(&now), cudaSuccess);
    CHECK_EQ(now, 0);
    kit_mark(kit_stream[0], block, BYTES, 7);
    CHECK_EQ(cudaStreamSynchronize(kit_stream[0]), cudaSuccess);
    CHECK_EQ(cudaSetDevice(1), cudaSuccess);
    CHECK_EQ(cudaStreamCreateWithFlags(&there, cudaStreamNonBlocking), cudaSuccess);
    kit_expect_mark(there, imported.memory, BYTES, 7);
    kit_mark(there, imported.memory, BYTES, 8);
    CHECK_EQ(cudaStreamSynchronize(there), cudaSuccess);
    CHECK_EQ(cudaStreamDestroy(there), cudaSuccess);
    gpupool_imported current = share_imported(GPUPOOL_DEVICE_CURRENT, &exported);
    CHECK_EQ(current.device, 1);
    share_unimport(&current);
    CHECK_EQ(cudaSetDevice(0), cudaSuccess);
    kit_expect_mark(kit_stream[0], block, BYTES, 8);
    share_unimport(&imported);
    close_exported();
}

static void is_refused(int device, const gpupool_exported *wrong, gpupool_result expected) {
    gpupool_imported none;
    memset(&none, 0xff, sizeof none);
    CHECK_RESULT(gpupool_import(device, wrong, &none), expected);
    CHECK(gpupool_last_error()[0] != 0);
    CHECK(none.memory == NULL && none.bytes == 0 && none.handle == 0);
    CHECK_EQ(cudaPeekAtLastError(), cudaSuccess);
}

static void devices_that_are_not_there(void) {
    open_exported();
    char words[40];
    snprintf(words, sizeof words, "(the current one) to %d", kit_devices() - 1);
    is_refused(kit_devices(), &exported, GPUPOOL_E_ARGUMENT);
    CHECK(strstr(gpupool_last_error(), words) != NULL);
    is_refused(1000, &exported, GPUPOOL_E_ARGUMENT);
    is_refused(INT32_MAX, &exported, GPUPOOL_E_ARGUMENT);
    is_refused(-2, &exported, GPUPOOL_E_ARGUMENT);
    close_exported();
}

#if CHECK_FAKE
static void devices_that_cannot_map(void) {
    open_exported();
    fake_device_vmm(1, 0);
    is_refused(1, &exported, GPUPOOL_E_UNSUPPORTED);
    close_exported();
}
#endif

/* ---- what is no such block ---- */

static void wrong_descriptors(void) {
    int file = open("/dev/null", O_RDWR), ends[2];
    gpupool_exported wrong;
    open_exported();
    CHECK_EQ(pipe(ends), 0);
    wrong = exported;
    wrong.descriptor = file;
    is_refused(0, &wrong, GPUPOOL_E_CUDA);
    wrong.descriptor = ends[1];
    is_refused(0, &wrong, GPUPOOL_E_CUDA);
    close(file);
    close(ends[0]);
    close(ends[1]);
    is_refused(0, &wrong, GPUPOOL_E_CUDA); /* closed */
    wrong.descriptor = -1;
    is_refused(0, &wrong, GPUPOOL_E_ARGUMENT);
    wrong.descriptor = INT32_MIN;
    is_refused(0, &wrong, GPUPOOL_E_ARGUMENT);
    close_exported();
    is_refused(0, &exported, GPUPOOL_E_CUDA); /* no longer exported */
}

static void wrong_sizes(void) {
    static const uint64_t sizes[] = {1, 4096, BYTES - 1, BYTES + 1, BYTES + 2 * MIB,
                                     (uint64_t)1 << 48};
    gpupool_exported wrong;
    open_exported();
    wrong = exported;
    wrong.bytes = 0;
    is_refused(0, &wrong, GPUPOOL_E_ARGUMENT);
    wrong.bytes = ((uint64_t)1 << 48) + 1;
    is_refused(0, &wrong, GPUPOOL_E_ARGUMENT);
    wrong.bytes = UINT64_MAX;
    is_refused(0, &wrong, GPUPOOL_E_ARGUMENT);
    wrong.bytes = (uint64_t)1 << 48; /* as large as a block can be */
    CHECK(gpupool_import(0, &wrong, &(gpupool_imported){0}) != GPUPOOL_E_ARGUMENT);
    for (size_t i = 0; i < KIT_COUNT(sizes); i++) {
        gpupool_imported none;
        check_case("%llu bytes", (unsigned long long)sizes[i]);
        wrong.bytes = sizes[i];
        gpupool_result why = gpupool_import(0, &wrong, &none);
        CHECK(why == GPUPOOL_E_CUDA || why == GPUPOOL_E_OUT_OF_MEMORY); /* CUDA refuses it */
        CHECK(none.memory == NULL);
    }
    close_exported();
}

#if CHECK_FAKE
/* The device has room, the process has no addresses: the sentence says which. */
static void no_addresses_left(void) {
    gpupool_imported none;
    open_exported();
    fake_fail_call("cuMemAddressReserve", 1, 0, CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_RESULT(gpupool_import(0, &exported, &none), GPUPOOL_E_OUT_OF_MEMORY);
    CHECK(strstr(gpupool_last_error(), "no 4194304 addresses side by side left") != NULL);
    fake_fail_clear();
    gpupool_imported imported = share_imported(0, &exported);
    share_unimport(&imported);
    close_exported();
}
#endif

static void nulls_and_closing_twice(void) {
    gpupool_imported imported, copy;
    open_exported();
    memset(&imported, 0, sizeof imported);
    CHECK_RESULT(gpupool_import(0, NULL, &imported), GPUPOOL_E_ARGUMENT);
    CHECK(strstr(gpupool_last_error(), "exported is NULL") != NULL);
    CHECK_RESULT(gpupool_import(0, &exported, NULL), GPUPOOL_E_ARGUMENT);
    CHECK(strstr(gpupool_last_error(), "imported is NULL") != NULL);
    CHECK_RESULT(gpupool_import_close(NULL), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(gpupool_import_close(&imported), GPUPOOL_E_ARGUMENT);
    imported = share_imported(0, &exported);
    copy = imported;
    share_unimport(&imported);
    CHECK_RESULT(gpupool_import_close(&imported), GPUPOOL_E_ARGUMENT);
    CHECK(strstr(gpupool_last_error(), "closed") != NULL);
    (void)copy;
    close_exported();
}

/* What failed last is told until something else fails. */
static void failures_are_kept(void) {
    open_exported();
    CHECK_RESULT(gpupool_trim(NULL, 0, NULL), GPUPOOL_E_ARGUMENT);
    gpupool_imported imported = share_imported(0, &exported);
    CHECK_RESULT(gpupool_last_result(), GPUPOOL_OK);
    CHECK(strstr(gpupool_last_error(), "gpupool_trim") != NULL);
    CHECK_RESULT(gpupool_check(NULL), GPUPOOL_E_ARGUMENT);
    share_unimport(&imported);
    CHECK_RESULT(gpupool_last_result(), GPUPOOL_OK);
    CHECK(strstr(gpupool_last_error(), "gpupool_check") != NULL);
    close_exported();
}

/* ---- captures and resets ---- */

static void during_a_capture(void) {
    cudaGraph_t graph;
    open_exported();
    CHECK_EQ(cudaStreamBeginCapture(kit_stream[0], cudaStreamCaptureModeGlobal), cudaSuccess);
    gpupool_imported imported = share_imported(0, &exported);
    share_unimport(&imported);
    CHECK_EQ(cudaStreamEndCapture(kit_stream[0], &graph), cudaSuccess);
    CHECK(graph != NULL);
    CHECK_EQ(cudaGraphDestroy(graph), cudaSuccess);
    close_exported();
}

/* What is mapped outlives a reset, of the importer's device too. */
static void after_a_reset(void) {
    open_exported();
    gpupool_imported imported = share_imported(0, &exported);
    close_exported();
    CHECK_EQ(cudaDeviceReset(), cudaSuccess);
    for (int i = 0; i < KIT_STREAMS; i++) kit_stream[i] = NULL;
    share_unimport(&imported);
    CHECK(imported.memory == NULL);
}

int main(void) {
    SHARE_TEST(what_one_writes_the_other_reads);
    SHARE_TEST(two_imports_of_one_export);
    SHARE_TEST(it_outlives_the_exporter);
    SHARE_TEST(closed_too_early);
    SHARE_TEST(on_another_device);
    SHARE_TEST(devices_that_are_not_there);
    SHARE_FAKE_TEST(devices_that_cannot_map);
    SHARE_TEST(wrong_descriptors);
    SHARE_TEST(wrong_sizes);
    SHARE_FAKE_TEST(no_addresses_left);
    SHARE_TEST(nulls_and_closing_twice);
    SHARE_TEST(failures_are_kept);
    SHARE_TEST(during_a_capture);
    SHARE_TEST(after_a_reset);
    return check_finish();
}
