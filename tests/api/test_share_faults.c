/* Every CUDA call, and every host allocation, of the calls about memory that others hold is made to
   fail in turn. A call that fails has changed nothing, leaves no descriptor, and succeeds when it
   is made again. */
// build: plain
// build: asan -fsanitize=address,undefined
#define _DEFAULT_SOURCE
#include "fail_malloc.h"
#include "gpupool.h"
#include "share_kit.h"

#if CHECK_FAKE

#define BYTES (4 * MIB)

/* Gives back what was changed for the call; where it cannot there is nothing to be done. */
#define GIVES_BACK "cuThreadExchangeStreamCaptureMode"

static char *block, *asked;
static gpupool_exported exported, again;
static gpupool_imported imported;

/* ---- one call each: from a state in which it succeeds ---- */

static gpupool_result do_alloc(void) { return kit_why(asked = (char *)share_try(BYTES, 0)); }
static gpupool_result do_zeroed(void) {
    return kit_why(asked = (char *)share_try(BYTES, GPUPOOL_ZEROED));
}
static gpupool_result do_export(void) {
    gpupool_result result = gpupool_export(arena, block, &again);
    CHECK_EQ(again.descriptor >= 0, result == GPUPOOL_OK);
    return result;
}
static gpupool_result do_export_close(void) { return gpupool_export_close(arena, block); }
static gpupool_result do_import(void) {
    gpupool_result result = gpupool_import(0, &exported, &imported);
    CHECK_EQ(imported.memory != NULL, result == GPUPOOL_OK);
    CHECK_EQ(imported.bytes, result == GPUPOOL_OK ? BYTES : 0);
    return result;
}
static gpupool_result do_import_elsewhere(void) {
    gpupool_result result = gpupool_import(1, &exported, &imported);
    CHECK_EQ(imported.memory != NULL, result == GPUPOOL_OK);
    return result;
}
static gpupool_result do_import_close(void) { return gpupool_import_close(&imported); }

static int see(const gpupool_mapping *mapping, void *user) {
    *(size_t *)user += mapping->bytes;
    return 0;
}
static gpupool_result do_walk(void) {
    size_t bytes = 0;
    gpupool_result result = gpupool_walk_chunks(arena, block, see, &bytes);
    CHECK_EQ(bytes, result == GPUPOOL_OK ? BYTES : 0);
    return result;
}

static const struct {
    const char *name;
    gpupool_result (*run)(void);
    int is_exported, is_imported; /* 1: before */
    int is_grown;                 /* 1: the arena has the memory */
} calls[] = {
    {"alloc", do_alloc, 0, 0, 0},
    {"alloc with zeros", do_zeroed, 0, 0, 1},
    {"export", do_export, 0, 0, 0},
    {"export once more", do_export, 1, 0, 0},
    {"export_close", do_export_close, 1, 0, 0},
    {"import", do_import, 1, 0, 0},
    {"import on another device", do_import_elsewhere, 1, 0, 0},
    {"import_close", do_import_close, 1, 1, 0},
    {"walk_chunks", do_walk, 0, 0, 0},
};

/* ---- what is there ---- */

typedef struct census {
    long objects, mappings, host;
    int descriptors;
    size_t used;
    gpupool_stats stats;
} census;

static census taken(void) {
    return (census){fake_live_objects(), fake_mappings(), fail_malloc_live, share_descriptors(),
                    fake_used_bytes(0), kit_stats(arena)};
}

static void is_as_before(const census *before) {
    census now = taken();
    CHECK_EQ(now.objects, before->objects);
    CHECK_EQ(now.mappings, before->mappings);
    CHECK_EQ(now.host, before->host);
    CHECK_EQ(now.descriptors, before->descriptors);
    CHECK_EQ(now.used, before->used);
    CHECK_EQ(now.stats.reserved.now, before->stats.reserved.now);
    CHECK_EQ(now.stats.blocks.now, before->stats.blocks.now);
    CHECK_EQ(now.stats.granted.now, before->stats.granted.now);
    CHECK_EQ(cudaPeekAtLastError(), cudaSuccess);
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
}

/* ---- a script for each call and fault ---- */

static void prepare(size_t i) {
    share_prepare();
    fail_malloc_live = 0;
    share_open(0, 0);
    block = share_get(BYTES);
    asked = NULL;
    memset(&imported, 0, sizeof imported);
    share_put(share_any(100)); /* what the arena keeps of the stream is there */
    if (calls[i].is_grown) share_put(share_get(BYTES));
    kit_fill(kit_stream[0], block, BYTES, 9);
    if (calls[i].is_exported) exported = share_exported(block);
    if (calls[i].is_imported) imported = share_imported(0, &exported);
}

static void clean_up(void) {
    if (asked) share_put(asked);
    if (imported.memory) {
        CHECK_EQ(cudaStreamSynchronize(kit_stream[0]), cudaSuccess);
        share_unimport(&imported);
    }
    while (gpupool_export_close(arena, block) == GPUPOOL_OK) continue;
    kit_expect(kit_stream[0], block, BYTES, 9);
    share_put(block);
    kit_close(arena);
    CHECK_EQ(fail_malloc_live, 0);
    share_settle();
}

/* Returns 0 when nothing was left to fail. */
static int one_fault(size_t i, long n, int host, int persist) {
    prepare(i);
    census before = taken();
    fake_fail_except(GIVES_BACK);
    if (host) fail_malloc_nth(n, persist);
    else fake_fail_nth(n, persist);
    gpupool_result result = calls[i].run();
    long fired = fake_fail_fired() + fail_malloc_fired;
    fake_fail_clear();
    fail_malloc_nth(0, 0);
    if (!fired) CHECK_RESULT(result, GPUPOOL_OK);
    if (result != GPUPOOL_OK) {
        CHECK(gpupool_last_error()[0] != 0);
        if (calls[i].run != do_import_close) is_as_before(&before);
        if (host) CHECK_EQ(result, GPUPOOL_E_HOST_MEMORY);
        else if (result != GPUPOOL_E_OUT_OF_MEMORY) CHECK_RESULT(result, GPUPOOL_E_CUDA);
        CHECK_RESULT(calls[i].run(), GPUPOOL_OK);
    }
    clean_up();
    return fired > 0;
}

/* With persist only the first call is made to fail for good: what was got before a later one could
   not be given back. */
static void each_fails_in_turn(void) {
    long most = 0;
    for (size_t i = 0; i < KIT_COUNT(calls); i++)
        for (int host = 0; host < 2; host++) {
            long n = 1, bad = atomic_load(&check_bad);
            const char *what = host ? "host memory" : "CUDA call";
            do check_case("%s: %s number %ld", calls[i].name, what, n);
            while (one_fault(i, n, host, 0) && atomic_load(&check_bad) == bad && ++n);
            one_fault(i, 1, host, 1);
            if (n > most) most = n;
        }
    CHECK(most > 5); /* else nothing was made to fail */
}

/* Closing goes on where it was stopped. */
static void closing_stopped_anywhere(void) {
    static const char *const names[] = {"cuMemRelease", "cuMemUnmap", "cuMemAddressFree"};
    for (size_t k = 0; k < KIT_COUNT(names); k++)
        for (int times = 1; times <= 3; times++) {
            check_case("%s fails %d times", names[k], times);
            prepare(7);
            CHECK(calls[7].run == do_import_close);
            for (int t = 0; t < times; t++) {
                fake_fail_call(names[k], 1, 0, 0);
                CHECK_RESULT(gpupool_import_close(&imported), GPUPOOL_E_CUDA);
                if (t == 0) CHECK(strstr(gpupool_last_error(), names[k]) != NULL);
                CHECK(imported.memory != NULL);
                fake_fail_clear();
            }
            share_unimport(&imported);
            clean_up();
        }
}

/* An import that fails leaves nothing, even if each call of its undoing fails once, too. */
static void undone_in_the_end(void) {
    static const char *const failing[] = {"cuMemMap", "cuMemSetAccess"};
    static const char *const undoing[] = {"cuMemRelease", "cuMemUnmap", "cuMemAddressFree"};
    for (unsigned k = 0; k < KIT_COUNT(failing) << KIT_COUNT(undoing); k++) {
        const char *first = failing[k % KIT_COUNT(failing)];
        unsigned which = k / KIT_COUNT(failing);
        int armed = 1;
        check_case("%s, and %u of its undoing", first, which);
        prepare(5);
        CHECK(calls[5].run == do_import);
        census before = taken();
        fake_fail_call(first, 1, 0, 0);
        for (unsigned i = 0; i < KIT_COUNT(undoing); i++) {
            if (!(which >> i & 1)) continue;
            fake_fail_call(undoing[i], 1, 0, 0);
            armed++;
        }
        CHECK_RESULT(do_import(), GPUPOOL_E_CUDA);
        CHECK(strstr(gpupool_last_error(), first) != NULL);
        CHECK_EQ(fake_fail_fired(), armed);
        fake_fail_clear();
        is_as_before(&before);
        clean_up();
    }
}

/* Where no addresses were to be had nothing was mapped, and nothing is unmapped. */
static void no_addresses_to_be_had(void) {
    prepare(5);
    census before = taken();
    long unmaps = fake_calls("cuMemUnmap"), frees = fake_calls("cuMemAddressFree");
    fake_fail_call("cuMemAddressReserve", 1, 0, CUDA_ERROR_UNKNOWN);
    CHECK_RESULT(do_import(), GPUPOOL_E_CUDA);
    fake_fail_clear();
    CHECK_EQ(fake_calls("cuMemUnmap"), unmaps);
    CHECK_EQ(fake_calls("cuMemAddressFree"), frees);
    is_as_before(&before);
    clean_up();
}

int main(void) {
    TEST(each_fails_in_turn);
    TEST(closing_stopped_anywhere);
    TEST(undone_in_the_end);
    TEST(no_addresses_to_be_had);
    return check_finish();
}

#else

int main(void) {
    check_skip("faults", "needs fakecuda's controls");
    return check_finish();
}

#endif
