/* AUTO where a device says that it can map memory, and cannot: it takes chunks of cudaMalloc, and
   the report says why. Seen on a vGPU and on an old data-centre card. */
// build: plain
// build: asan -fsanitize=address,undefined
#include "fail_malloc.h"
#include "gpupool.h"
#include "arena_kit.h"

#if CHECK_FAKE

static const char *const calls[] = {"cuMemAddressReserve", "cuMemCreate", "cuMemMap",
                                    "cuMemSetAccess"};

/* In the report's first line. */
static int report_has(gpupool_arena *arena, const char *words) {
    char line[300] = "";
    FILE *file = tmpfile();
    CHECK_RESULT(gpupool_report(arena, file), GPUPOOL_OK);
    rewind(file);
    CHECK(fgets(line, sizeof line, file) != NULL);
    fclose(file);
    return strstr(line, words) != NULL;
}

static void works(gpupool_arena *arena) {
    void *block[3];
    for (int i = 0; i < 3; i++) {
        block[i] = kit_alloc(arena, (size_t)(i + 1) * 10 * MIB, kit_stream[i]);
        kit_mark(kit_stream[i], block[i], 10 * MIB, i);
    }
    for (int i = 0; i < 3; i++)
        CHECK_RESULT(gpupool_free(arena, block[i], kit_stream[i]), GPUPOOL_OK);
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
}

static void not_supported(void) {
    for (size_t i = 0; i < KIT_COUNT(calls); i++) {
        check_case("%s", calls[i]);
        gpupool_free(NULL, NULL, 0); /* a failure of this thread's, which stays the last */
        fake_fail_call(calls[i], 1, 1, CUDA_ERROR_NOT_SUPPORTED);
        gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_AUTO);
        CHECK(strstr(gpupool_last_error(), "the arena is NULL") != NULL);
        CHECK(report_has(arena, "source device"));
        CHECK(report_has(arena, calls[i]));
        works(arena);
        kit_close(arena);
        fake_fail_clear();
        CHECK_EQ(fake_live_objects(), KIT_STREAMS);
    }
}

/* Whoever asks for MAPPED by name is told. */
static void asked_for_by_name(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
    gpupool_arena *arena = NULL;
    fake_fail_call("cuMemAddressReserve", 1, 1, CUDA_ERROR_NOT_SUPPORTED);
    CHECK_RESULT(gpupool_arena_create(&arena, &config), GPUPOOL_E_CUDA);
    fake_fail_clear();
    fake_fail_call("cuMemCreate", 1, 1, CUDA_ERROR_NOT_SUPPORTED);
    arena = kit_create(&config);
    CHECK_RESULT(kit_why(gpupool_alloc(arena, MIB, 0)), GPUPOOL_E_CUDA);
    fake_fail_clear();
    kit_close(arena);
}

/* A device that is too full for a context, or no addresses: E_OUT_OF_MEMORY, with a verdict of this
   call and not of an earlier one. */
static void out_of_memory_has_a_verdict(void) {
    static const char *const lacking[] = {"cuMemAddressReserve", "cuDevicePrimaryCtxRetain"};
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
    for (size_t i = 0; i < KIT_COUNT(lacking); i++) {
        gpupool_arena *arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 2 * MIB);
        gpupool_verdict verdict;
        check_case("%s", lacking[i]);
        CHECK_RESULT(kit_why(gpupool_alloc(arena, 4 * MIB, 0)), GPUPOOL_E_OUT_OF_MEMORY);
        kit_close(arena);
        fake_fail_call(lacking[i], 1, 1, CUDA_ERROR_OUT_OF_MEMORY);
        CHECK_RESULT(gpupool_arena_create(&arena, &config), GPUPOOL_E_OUT_OF_MEMORY);
        fake_fail_clear();
        CHECK_RESULT(gpupool_last_verdict(&verdict), GPUPOOL_OK);
        CHECK_EQ(verdict.cause, GPUPOOL_CAUSE_OTHERS);
        CHECK_EQ(verdict.asked_bytes, 0);
        CHECK_EQ(verdict.limit_bytes, 0);
        CHECK(strstr(verdict.sentence, lacking[i]) != NULL);
        CHECK(!strcmp(verdict.sentence, gpupool_last_error()));
    }
}

/* An arena of 140 GiB takes 560 GiB of addresses at least. */
static void addresses_run_out(void) {
    gpupool_arena *arena[300];
    int count = 0;
    do arena[count] = kit_open(GPUPOOL_SOURCE_AUTO);
    while (report_has(arena[count], "source mapped") && ++count < 299);
    CHECK(count > 1 && count < 299);
    CHECK(report_has(arena[count], "addresses"));
    works(arena[count]);
    for (; count >= 0; count--) kit_close(arena[count]);
}

/* A device that is full when the arena is made is not one that cannot map. */
static void full_at_first(void) {
    fake_other_process(0, 140 * GIB);
    gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_AUTO);
    CHECK(report_has(arena, "source mapped"));
    fake_other_process(0, 0);
    works(arena);
    kit_close(arena);
}

/* What was got to see whether it can be got, and is not taken back, goes with the arena at last. */
static void not_taken_back(void) {
    const char *names[] = {"cuMemUnmap", "cuMemRelease"};
    for (int i = 0; i < 4; i++) {
        check_case("%s, supported %d", names[i % 2], i / 2);
        if (i / 2 == 0) fake_fail_call("cuMemSetAccess", 1, 0, CUDA_ERROR_NOT_SUPPORTED);
        fake_fail_call(names[i % 2], 1, 0, 0);
        gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_AUTO);
        fake_fail_clear();
        works(arena);
        kit_close(arena);
        CHECK_EQ(fake_live_objects(), KIT_STREAMS);
    }
}

/* Falling back fails, too: no arena is made, and nothing is left of it. */
static void not_even_that(void) {
    static const struct { const char *first, *second; } fails[] = {
        {"cuMemUnmap", "cuMemRelease"}, {"cuMemAddressFree", NULL}};
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_AUTO);
    for (size_t i = 0; i < KIT_COUNT(fails); i++) {
        gpupool_arena *arena = NULL;
        check_case("%s", fails[i].first);
        fake_fail_call("cuMemSetAccess", 1, 0, CUDA_ERROR_NOT_SUPPORTED);
        fake_fail_call(fails[i].first, 1, 0, 0);
        if (fails[i].second) fake_fail_call(fails[i].second, 1, 0, 0);
        CHECK_RESULT(gpupool_arena_create(&arena, &config), GPUPOOL_E_CUDA);
        CHECK_EQ(fake_fail_fired(), fails[i].second ? 3 : 2);
        fake_fail_clear();
        CHECK(arena == NULL);
        CHECK_EQ(fake_live_objects(), KIT_STREAMS);
    }
}

static void ignore(const gpupool_soft_limit *what, void *unused) { (void)what, (void)unused; }

/* Nor without host memory, whichever request for it fails. */
static void without_host_memory(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_AUTO);
    gpupool_result result = GPUPOOL_E_HOST_MEMORY;
    long live = fail_malloc_live;
    config.soft_limit_bytes = MIB;
    config.on_soft_limit = ignore;
    for (long n = 1; result != GPUPOOL_OK; n++) {
        gpupool_arena *arena = NULL;
        check_case("request %ld", n);
        fake_fail_call("cuMemSetAccess", 1, 0, CUDA_ERROR_NOT_SUPPORTED);
        fail_malloc_nth(n, 0);
        result = gpupool_arena_create(&arena, &config);
        CHECK_EQ(result == GPUPOOL_OK, fail_malloc_fired == 0);
        fail_malloc_nth(0, 0);
        fake_fail_clear();
        if (result != GPUPOOL_OK) CHECK_RESULT(result, GPUPOOL_E_HOST_MEMORY);
        else kit_close(arena);
        CHECK_EQ(fail_malloc_live, live);
        CHECK_EQ(fake_live_objects(), KIT_STREAMS);
    }
}

/* Any other failure is a failure. */
static void another_error(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_AUTO);
    for (size_t i = 0; i < KIT_COUNT(calls); i++) {
        gpupool_arena *arena = NULL;
        check_case("%s", calls[i]);
        fake_fail_call(calls[i], 1, 0, CUDA_ERROR_LAUNCH_FAILED);
        CHECK_RESULT(gpupool_arena_create(&arena, &config), GPUPOOL_E_CUDA);
        CHECK(arena == NULL && strstr(gpupool_last_error(), calls[i]) != NULL);
        fake_fail_clear();
        CHECK_EQ(fake_live_objects(), KIT_STREAMS);
    }
}

/* Where the attribute says no, the report says that. */
static void without_the_attribute(void) {
    fake_device_vmm(0, 0);
    gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_AUTO);
    CHECK(report_has(arena, "source device"));
    CHECK(report_has(arena, "no virtual memory management"));
    kit_close(arena);
    arena = kit_open(GPUPOOL_SOURCE_DEVICE);
    CHECK(!report_has(arena, "no virtual memory management"));
    kit_close(arena);
}
#endif

int main(void) {
    FAKE_TEST(not_supported);
    FAKE_TEST(asked_for_by_name);
    FAKE_TEST(out_of_memory_has_a_verdict);
    FAKE_TEST(addresses_run_out);
    FAKE_TEST(full_at_first);
    FAKE_TEST(not_taken_back);
    FAKE_TEST(not_even_that);
    FAKE_TEST(without_host_memory);
    FAKE_TEST(another_error);
    FAKE_TEST(without_the_attribute);
    return check_finish();
}
