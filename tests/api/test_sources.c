/* Making and closing arenas: every source, every device, the default arenas. */
// left at exit: the default arena
#include "gpupool.h"
#include "arena_kit.h"

static void use_a_little(gpupool_arena *arena) {
    void *block = kit_alloc(arena, 3 * MIB + 5, kit_stream[0]);
    if (!block) return;
    kit_mark(kit_stream[0], block, 3 * MIB + 5, 0x5a);
    kit_expect_mark(kit_stream[0], block, 3 * MIB + 5, 0x5a);
    CHECK(kit_reserved(arena) >= 3 * MIB + 5);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
}

static void every_source_opens_and_closes(void) {
    for (size_t i = 0; i < KIT_SOURCES; i++) {
        check_case("%s", kit_sources[i].name);
        gpupool_arena *arena = kit_open(kit_sources[i].source);
        CHECK_EQ(kit_limit(arena), 0);
        CHECK_EQ(kit_stats(arena).blocks.now, 0);
        use_a_little(arena);
        kit_close(arena);
    }
    gpupool_arena *plain = kit_create(NULL);
    use_a_little(plain);
    kit_close(plain);
}

static void many_arenas_side_by_side(void) {
    gpupool_arena *arena[KIT_SOURCES];
    void *block[KIT_SOURCES];
    for (size_t i = 0; i < KIT_SOURCES; i++) {
        arena[i] = kit_open(kit_sources[i].source);
        block[i] = kit_alloc(arena[i], 70000, kit_stream[0]);
        kit_mark(kit_stream[0], block[i], 70000, (int)i);
    }
    for (size_t i = 0; i < KIT_SOURCES; i++) {
        kit_expect_mark(kit_stream[0], block[i], 70000, (int)i);
        CHECK_RESULT(gpupool_free(arena[i], block[i], kit_stream[0]), GPUPOOL_OK);
        kit_close(arena[i]);
    }
}

#if CHECK_FAKE
static void auto_maps_where_the_device_can(void) {
    gpupool_arena *mapped = kit_open(GPUPOOL_SOURCE_AUTO);
    use_a_little(mapped);
    CHECK(fake_calls("cuMemCreate") > 0);
    CHECK_EQ(fake_calls("cuMemAlloc"), 0);
    kit_close(mapped);
    fake_device_vmm(0, 0);
    fake_reset_counters();
    gpupool_arena *chunked = kit_open(GPUPOOL_SOURCE_AUTO);
    use_a_little(chunked);
    CHECK_EQ(fake_calls("cuMemCreate"), 0);
    CHECK(fake_calls("cuMemAlloc") > 0);
    kit_close(chunked);
}

static void each_source_makes_its_own_calls(void) {
    static const struct { gpupool_source source; const char *gain, *lose; } calls[] = {
        {GPUPOOL_SOURCE_MAPPED, "cuMemCreate", "cuMemRelease"},
        {GPUPOOL_SOURCE_DEVICE, "cuMemAlloc", "cuMemFree"},
        {GPUPOOL_SOURCE_MANAGED, "cuMemAllocManaged", "cuMemFree"},
        {GPUPOOL_SOURCE_PINNED, "cuMemHostAlloc", "cuMemFreeHost"},
        {GPUPOOL_SOURCE_BYPASS, "cuMemAlloc", "cuMemFree"}};
    for (size_t i = 0; i < KIT_COUNT(calls); i++) {
        check_case("%s", calls[i].gain);
        gpupool_arena *arena = kit_open(calls[i].source);
        fake_reset_counters(); /* opening makes calls of its own, to start CUDA */
        use_a_little(arena);
        /* of what is finished: a wait for the device is a cudaMalloc and a cudaFree of its own */
        CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
        kit_close(arena);
        CHECK(fake_calls(calls[i].gain) > 0);
        CHECK_EQ(fake_calls(calls[i].gain), fake_calls(calls[i].lose));
        CHECK_EQ(fake_used_bytes(0), 0);
        CHECK_EQ(fake_pinned_bytes(), 0);
    }
}

static void bypass_is_one_cudamalloc_a_block(void) {
    gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_BYPASS);
    void *block[20];
    fake_reset_counters();
    for (size_t i = 0; i < 20; i++) block[i] = kit_alloc(arena, 1000 * i + 1, kit_stream[0]);
    CHECK_EQ(fake_calls("cuMemAlloc"), 20);
    CHECK_EQ(fake_calls("cuMemFree"), 0);
    for (size_t i = 0; i < 20; i++)
        CHECK_RESULT(gpupool_free(arena, block[i], kit_stream[0]), GPUPOOL_OK);
    CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
    CHECK_EQ(fake_calls("cuMemFree"), 20);
    CHECK_EQ(kit_reserved(arena), 0);
    kit_close(arena);
}
#endif

/* What alignment left over is no other block's, nor is what a graph has freed. */
static void what_bypass_leaves_over_is_not_available(void) {
    gpupool_arena *arena = kit_open_limited(GPUPOOL_SOURCE_BYPASS, 16 * MIB);
    gpupool_capture *scope = NULL;
    void *block = gpupool_alloc_aligned(arena, MIB, 4 * MIB, kit_stream[0]);
    CHECK_EQ(kit_available(arena), 16 * MIB - kit_reserved(arena));
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
    CHECK_EQ(kit_available(arena), 16 * MIB);
    CHECK_RESULT(gpupool_begin_capture(arena, kit_stream[0], &scope), GPUPOOL_OK);
    block = kit_alloc(arena, 4 * MIB, kit_stream[0]);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
    CHECK_EQ(kit_available(arena), 12 * MIB);
    CHECK_RESULT(gpupool_release_capture(scope), GPUPOOL_OK);
    CHECK_EQ(kit_available(arena), 16 * MIB);
    kit_close(arena);
}

static void a_capture_is_no_use_that_can_be_recorded(void) {
    for (size_t i = 0; i < KIT_SOURCES; i++) {
        gpupool_arena *arena = kit_open(kit_sources[i].source);
        cudaGraph_t graph = NULL;
        void *block = kit_alloc(arena, 1000, kit_stream[1]);
        check_case("%s", kit_sources[i].name);
        CHECK_EQ(cudaStreamBeginCapture(kit_stream[0], cudaStreamCaptureModeGlobal), cudaSuccess);
        CHECK_RESULT(gpupool_record_stream(arena, block, kit_stream[0]), GPUPOOL_E_CAPTURING);
        CHECK_EQ(cudaStreamEndCapture(kit_stream[0], &graph), cudaSuccess);
        CHECK_EQ(cudaGraphDestroy(graph), cudaSuccess);
        CHECK_RESULT(gpupool_record_stream(arena, block, kit_stream[0]), GPUPOOL_OK);
        CHECK_RESULT(gpupool_free(arena, block, kit_stream[1]), GPUPOOL_OK);
        kit_close(arena);
    }
}

static void host_memory_sources_are_host_writable(void) {
    static const gpupool_source host[] = {GPUPOOL_SOURCE_MANAGED, GPUPOOL_SOURCE_PINNED};
    for (size_t i = 0; i < KIT_COUNT(host); i++) {
        gpupool_arena *arena = kit_open(host[i]);
        unsigned char *block = (unsigned char *)kit_alloc(arena, 100000, kit_stream[0]);
        memset(block, 0x3c, 100000);
        kit_expect(kit_stream[0], block, 100000, 0x3c);
        kit_fill(kit_stream[0], block, 100000, 0x4d);
        CHECK_EQ(cudaStreamSynchronize(kit_stream[0]), cudaSuccess);
        CHECK(block[0] == 0x4d && block[99999] == 0x4d);
        CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
        kit_close(arena);
    }
}

static void custom_uses_its_two_functions(void) {
    gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_CUSTOM);
    void *block[6];
    for (size_t i = 0; i < 6; i++) block[i] = kit_alloc(arena, 50 * MIB, kit_stream[0]);
    CHECK(kit_custom.gained >= 1);
    size_t held = 0;
    for (size_t i = 0; i < KIT_COUNT(kit_custom.held); i++)
        if (kit_custom.held[i].at) held += kit_custom.held[i].bytes;
    CHECK_EQ(held, kit_reserved(arena));
    for (size_t i = 0; i < 6; i++)
        CHECK_RESULT(gpupool_free(arena, block[i], kit_stream[0]), GPUPOOL_OK);
    kit_custom.refuse = 1;
    void *again = kit_alloc(arena, 50 * MIB, kit_stream[0]); /* what it holds still serves */
    CHECK_RESULT(kit_why(gpupool_alloc(arena, 400 * MIB, kit_stream[0])),
                 GPUPOOL_E_OUT_OF_MEMORY);
    CHECK_RESULT(gpupool_free(arena, again, kit_stream[0]), GPUPOOL_OK);
    kit_close(arena);
}

static void destroy_refuses_while_blocks_are_out(void) {
    for (size_t i = 0; i < KIT_SOURCES; i++) {
        check_case("%s", kit_sources[i].name);
        gpupool_arena *arena = kit_open(kit_sources[i].source);
        void *block = kit_alloc(arena, 5000, kit_stream[0]);
        kit_mark(kit_stream[0], block, 5000, 9);
        gpupool_stats before = kit_stats(arena);
        CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_E_IN_USE);
        CHECK(gpupool_last_error()[0] != 0);
        CHECK(kit_same_stats(before, kit_stats(arena)));
        kit_expect_mark(kit_stream[0], block, 5000, 9);
        use_a_little(arena);
        CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
        kit_close(arena);
    }
}

static void an_arena_leaves_the_current_device_alone(void) {
    int current = -1;
    for (size_t i = 0; i < KIT_SOURCES; i++) {
        check_case("%s", kit_sources[i].name);
        gpupool_arena_config config = kit_config(kit_sources[i].source);
        config.device = 1;
        gpupool_arena *arena = kit_create(&config);
        void *block = kit_alloc(arena, 3 * MIB, 0);
        CHECK_RESULT(gpupool_free(arena, block, 0), GPUPOOL_OK);
        CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
        block = gpupool_alloc_aligned(arena, 3 * MIB, 256, 0);
        CHECK_RESULT(kit_why(block), GPUPOOL_OK);
#if CHECK_FAKE
        if (config.source != GPUPOOL_SOURCE_PINNED) CHECK(fake_used_bytes(1) >= 3 * MIB);
        CHECK_EQ(fake_used_bytes(0), 0);
#endif
        CHECK_RESULT(gpupool_free(arena, block, 0), GPUPOOL_OK);
        kit_close(arena);
        CHECK_EQ(cudaGetDevice(&current), cudaSuccess);
        CHECK_EQ(current, 0);
    }
}

/* Nor do its functions, where they leave for another one. */
static void *chunk_alloc_elsewhere(size_t bytes, int device, void *user) {
    void *at = kit_chunk_alloc(bytes, device, user);
    CHECK_EQ(cudaSetDevice(1), cudaSuccess);
    return at;
}

static void chunk_free_elsewhere(void *at, size_t bytes, int device, void *user) {
    kit_chunk_free(at, bytes, device, user);
    CHECK_EQ(cudaSetDevice(1), cudaSuccess);
}

static void custom_functions_may_change_the_device(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_CUSTOM);
    int current = -1;
    config.chunk_alloc = chunk_alloc_elsewhere;
    config.chunk_free = chunk_free_elsewhere;
    gpupool_arena *arena = kit_create(&config);
    void *block = kit_alloc(arena, 3 * MIB, kit_stream[0]);
    CHECK_EQ(cudaGetDevice(&current), cudaSuccess);
    CHECK_EQ(current, 0);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
    CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
    CHECK_EQ(cudaGetDevice(&current), cudaSuccess);
    CHECK_EQ(current, 0);
    CHECK_EQ(cudaSetDevice(0), cudaSuccess);
    kit_close(arena);
}

/* An error that the caller has yet to ask for is not lost, and none of the arena's joins it. */
static void an_arena_leaves_the_callers_error_alone(void) {
    for (size_t i = 0; i < KIT_SOURCES; i++) {
        check_case("%s", kit_sources[i].name);
        CHECK_EQ(cudaSetDevice(1000), cudaErrorInvalidDevice);
        gpupool_arena *arena = kit_open(kit_sources[i].source);
        use_a_little(arena);
        CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
        kit_close(arena);
        CHECK_EQ(cudaGetLastError(), cudaErrorInvalidDevice);
    }
}

/* The mode decides what another thread's capture survives, so it must not stay relaxed. */
static void an_arena_leaves_the_capture_mode_alone(void) {
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal;
    CHECK_EQ(cudaThreadExchangeStreamCaptureMode(&mode), cudaSuccess);
    for (size_t i = 0; i < KIT_SOURCES; i++) {
        check_case("%s", kit_sources[i].name);
        gpupool_arena *arena = kit_open(kit_sources[i].source);
        use_a_little(arena);
        CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
        CHECK_RESULT(kit_why(gpupool_alloc(arena, (size_t)1 << 49, 0)), GPUPOOL_E_ARGUMENT);
        kit_close(arena);
        enum cudaStreamCaptureMode now = cudaStreamCaptureModeThreadLocal;
        CHECK_EQ(cudaThreadExchangeStreamCaptureMode(&now), cudaSuccess);
        CHECK_EQ(now, cudaStreamCaptureModeThreadLocal);
    }
    CHECK_EQ(cudaThreadExchangeStreamCaptureMode(&mode), cudaSuccess);
}

static void on_the_current_device(const gpupool_arena_config *config) {
    int count = kit_devices();
    CHECK_EQ(cudaSetDevice(count - 1), cudaSuccess);
    gpupool_arena *arena = kit_create(config);
    CHECK_EQ(cudaSetDevice(0), cudaSuccess);
    void *block = kit_alloc(arena, MIB, 0);
    struct cudaPointerAttributes about;
    CHECK_EQ(cudaPointerGetAttributes(&about, block), cudaSuccess);
    CHECK_EQ(about.device, count - 1);
    CHECK_RESULT(gpupool_free(arena, block, 0), GPUPOOL_OK);
    kit_close(arena);
}

static void device_current_means_the_current_one(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_DEVICE);
    config.device = GPUPOOL_DEVICE_CURRENT;
    on_the_current_device(&config);
    on_the_current_device(NULL);
}

/* Default arenas live as long as the process, so this one runs last, without the leak check. */
static void default_arenas(void) {
    int count = kit_devices();
    gpupool_arena *zero = gpupool_get_default_arena(0);
    CHECK_RESULT(kit_why(zero), GPUPOOL_OK);
    CHECK(gpupool_get_default_arena(-7) == NULL);
    CHECK(gpupool_get_default_arena(0) == zero);
    CHECK_RESULT(gpupool_last_result(), GPUPOOL_OK);
    CHECK(gpupool_get_default_arena(GPUPOOL_DEVICE_CURRENT) == zero);
    if (count > 1) {
        gpupool_arena *one = gpupool_get_default_arena(1);
        CHECK_RESULT(kit_why(one), GPUPOOL_OK);
        CHECK(one != zero && gpupool_get_default_arena(1) == one);
    }
    CHECK_RESULT(kit_why(gpupool_get_default_arena(count)), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(kit_why(gpupool_get_default_arena(-7)), GPUPOOL_E_ARGUMENT);
    void *block = kit_alloc(zero, 1000, 0);
    CHECK_RESULT(gpupool_arena_destroy(zero), GPUPOOL_E_IN_USE);
    CHECK(strstr(gpupool_last_error(), "\"default\"") != NULL);
    CHECK(gpupool_get_default_arena(0) == zero);
    CHECK_RESULT(gpupool_free(zero, block, 0), GPUPOOL_OK);
    CHECK_RESULT(gpupool_check(zero), GPUPOOL_OK);
    CHECK_EQ(cudaPeekAtLastError(), cudaSuccess);
}

int main(void) {
    ARENA_TEST(every_source_opens_and_closes);
    ARENA_TEST(many_arenas_side_by_side);
    ARENA_TEST(an_arena_leaves_the_callers_error_alone);
    FAKE_TEST(auto_maps_where_the_device_can);
    FAKE_TEST(each_source_makes_its_own_calls);
    FAKE_TEST(bypass_is_one_cudamalloc_a_block);
    ARENA_TEST(what_bypass_leaves_over_is_not_available);
    ARENA_TEST(a_capture_is_no_use_that_can_be_recorded);
    ARENA_TEST(host_memory_sources_are_host_writable);
    ARENA_TEST(custom_uses_its_two_functions);
    ARENA_TEST(destroy_refuses_while_blocks_are_out);
    if (kit_devices() > 1) {
        ARENA_TEST(an_arena_leaves_the_current_device_alone);
        ARENA_TEST(custom_functions_may_change_the_device);
    } else {
        check_skip("an_arena_leaves_the_current_device_alone", "needs two devices");
    }
    ARENA_TEST(an_arena_leaves_the_capture_mode_alone);
    ARENA_TEST(device_current_means_the_current_one);
    check_run("default_arenas", default_arenas, kit_prepare, NULL);
    return check_finish();
}
