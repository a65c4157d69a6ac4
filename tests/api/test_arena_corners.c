/* What few programs ever ask of an arena, and each may: results, figures and order of things that
   nothing else depends on. */
#include "cudas_own.h"

#include "fail_malloc.h"
#include "gpupool.h"
#include "race_kit.h"

#if CHECK_FAKE

static void *get(size_t bytes, int stream) { return kit_alloc(arena, bytes, kit_stream[stream]); }
static void put(void *block, int stream) {
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[stream]), GPUPOOL_OK);
}

/* ---- results ---- */

static void a_trim_that_fails_has_released_nothing(void) {
    size_t released = 5;
    CHECK_RESULT(gpupool_trim(NULL, 0, &released), GPUPOOL_E_ARGUMENT);
    CHECK_EQ(released, 0);
}

/* Pinned memory is every device's. */
static void pinned_memory_is_within_reach(void) {
    fake_device_peers(0, 0);
    fake_device_peers(1, 0);
    arena = kit_open(GPUPOOL_SOURCE_PINNED);
    CHECK_RESULT(gpupool_allow_peer(arena, 1), GPUPOOL_OK);
    kit_close(arena);
    arena = kit_open(GPUPOOL_SOURCE_DEVICE);
    CHECK_RESULT(gpupool_allow_peer(arena, 1), GPUPOOL_E_UNSUPPORTED);
    kit_close(arena);
}

/* Each mistake is told as what it is. */
static void sizes_that_are_refused(void) {
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    CHECK(gpupool_alloc(arena, 0, kit_stream[0]) == NULL);
    CHECK(strstr(gpupool_last_error(), "bytes is 0") != NULL);
    CHECK(gpupool_alloc_aligned(arena, 512, 3, kit_stream[0]) == NULL);
    CHECK(strstr(gpupool_last_error(), "alignment is 3") != NULL);
    CHECK_RESULT(gpupool_last_result(), GPUPOOL_E_ARGUMENT);
    CHECK_EQ(kit_fits(arena, 512, NULL), 1);
    CHECK_RESULT(gpupool_last_result(), GPUPOOL_OK);
    kit_close(arena);
}

/* Chunks have gone once a wait has freed them, and CUDA fails to map others. */
static void fail_to_map(void *unused) {
    (void)unused;
    fake_fail_call("cuMemMap", 1, 0, 0);
}

static void growth_that_fails_after_a_wait(void) {
    void *block[3];
    fake_mode(FAKE_STEPPED);
    arena = kit_open_unstitched(6 * MIB);
    for (int i = 0; i < 3; i++) block[i] = get(2 * MIB, i);
    for (int i = 0; i < 3; i += 2) {
        kit_fill(kit_stream[i], block[i], 512, 1);
        put(block[i], i);
    }
    fake_before_call("cuEventSynchronize", 1, fail_to_map, NULL);
    CHECK_RESULT(kit_why(gpupool_alloc(arena, 4 * MIB, kit_stream[3])), GPUPOOL_E_CUDA);
    CHECK_EQ(fake_fail_fired(), 1);
    fake_fail_clear();
    put(get(4 * MIB, 3), 3);
    put(block[1], 1);
    fake_mode(FAKE_EAGER);
    kit_close(arena);
}

/* What a stream has freed is waited for before what others have, and not at all once its work is
   done: the chunk, which goes back for a larger one, has a fence only then. */
static void own_work_is_waited_for_first(void) {
    for (int done = 0; done < 2; done++) {
        check_case("done %d", done);
        gpupool_capture *scope = NULL;
        arena = kit_open_limited(GPUPOOL_SOURCE_CUSTOM, 3 * MIB + 512 * KIB);
        CHECK_RESULT(gpupool_begin_capture(arena, kit_stream[2], &scope), GPUPOOL_OK);
        CHECK_RESULT(gpupool_release_capture(scope), GPUPOOL_OK); /* nobody asks after all */
        void *other = get(1200 * KIB, 1), *rest = get(848 * KIB, 1), *block = get(MIB - 512, 0);
        uint64_t waits = kit_stats(arena).host_syncs;
        fake_mode(done ? FAKE_EAGER : FAKE_STEPPED);
        kit_fill(kit_stream[1], other, 512, 1);
        kit_fill(kit_stream[0], block, 512, 1);
        if (!done) put(other, 1);
        put(block, 0);
        block = get(1300 * KIB, 0);
        CHECK_EQ(kit_stats(arena).host_syncs, waits + !done);
        put(block, 0);
        if (done) put(other, 1);
        put(rest, 1);
        fake_mode(FAKE_EAGER);
        kit_close(arena);
    }
}

/* Only waits that are made count; where one fails there is another way. */
static void waits_that_fail(void) {
    static const char *const waits[] = {"cuStreamWaitEvent", "cuEventSynchronize"};
    fake_mode(FAKE_STEPPED);
    for (size_t i = 0; i < 2; i++) {
        check_case("%s", waits[i]);
        void *block[2];
        arena = kit_open_unstitched(4 * MIB);
        for (int k = 0; k < 2; k++) block[k] = get(2 * MIB, k);
        for (int k = 0; k < 2; k++) {
            kit_fill(kit_stream[k], block[k], 512, 1);
            put(block[k], k);
        }
        fake_fail_call(waits[i], 1, 1, 0);
        put(get(i == 0 ? 2 * MIB : 4 * MIB, 2), 2); /* of one stream's, and of both */
        CHECK_EQ(fake_fail_fired(), 1);
        fake_fail_clear();
        CHECK_EQ(kit_stats(arena).fence_waits, 0);
        CHECK_EQ(kit_stats(arena).host_syncs, 1);
        kit_close(arena);
    }
    fake_mode(FAKE_EAGER);
}

/* ---- without host memory ---- */

/* A request on a stream that there is no memory to know fails as one. */
static void no_memory_for_a_stream(void) {
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    fail_malloc_nth(1, 1);
    CHECK_RESULT(kit_why(gpupool_alloc(arena, 512, kit_stream[0])), GPUPOOL_E_HOST_MEMORY);
    fail_malloc_nth(0, 0);
    CHECK_EQ(kit_stats(arena).failures, 1);
    kit_close(arena);
}

static void no_memory_for_a_use(void) {
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    void *first = get(512, 0), *block = get(512, 0);
    for (int i = 1; i <= 2; i++) /* events are had */
        CHECK_RESULT(gpupool_record_stream(arena, first, kit_stream[i]), GPUPOOL_OK);
    for (long n = 1; n < 4; n++) {
        fail_malloc_nth(n, 1);
        gpupool_result result = gpupool_record_stream(arena, block, kit_stream[1]);
        CHECK_EQ(result == GPUPOOL_OK, fail_malloc_fired == 0);
        fail_malloc_nth(0, 0);
        fail_malloc_fired = 0;
    }
    put(first, 0);
    put(block, 0);
    kit_close(arena);
}

/* What cannot be reserved is told; else it is there. */
static void no_memory_for_a_reserve(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
    gpupool_result result = GPUPOOL_E_HOST_MEMORY;
    config.reserve_bytes = 4 * MIB;
    for (long n = 1; result != GPUPOOL_OK; n++) {
        fail_malloc_nth(n, 0);
        result = gpupool_arena_create(&arena, &config);
        fail_malloc_nth(0, 0);
        if (result != GPUPOOL_OK) CHECK_RESULT(result, GPUPOOL_E_HOST_MEMORY);
    }
    CHECK_EQ(kit_reserved(arena), 4 * MIB);
    kit_close(arena);
}

/* Not even after a reset, which has taken the chunks, with a block that waits for a stream. */
static void no_host_memory_is_lost(void) {
    long before = fail_malloc_live;
    arena = kit_open(GPUPOOL_SOURCE_DEVICE);
    put(get(MIB, 0), 0);
    put(get(64 * MIB, 0), 0);
    void *waiting = get(2 * MIB, 0);
    CHECK_RESULT(gpupool_record_stream(arena, waiting, kit_stream[1]), GPUPOOL_OK);
    put(waiting, 0);
    CHECK_EQ(cudaDeviceReset(), cudaSuccess);
    for (int i = 0; i < KIT_STREAMS; i++) kit_stream[i] = NULL;
    CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_OK);
    CHECK_EQ(fail_malloc_live, before);
}

/* Without addresses there is no arena. */
static void no_addresses(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
    fake_fail_call("cuMemAddressReserve", 1, 1, 0);
    CHECK(gpupool_arena_create(&arena, &config) != GPUPOOL_OK);
    CHECK(arena == NULL);
    CHECK(strstr(gpupool_last_error(), "cuMemAddressReserve: the process has no") != NULL);
    fake_fail_clear();
    fake_fail_call("cuMemAddressReserve", 1, 1, CUDA_ERROR_INVALID_DEVICE);
    CHECK_RESULT(gpupool_arena_create(&arena, &config), GPUPOOL_E_CUDA);
    fake_fail_clear();
}

/* ---- figures ---- */

static void a_free_run_of_one_unit(void) {
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    void *unit = get(512, 0), *next = get(512, 0);
    put(unit, 0);
    CHECK_EQ(kit_stats(arena).free_by_order[0], 1);
    put(next, 0);
    kit_close(arena);
}

/* What is neither free nor the arena's is others'. */
static void others_beside_an_arena(void) {
    gpupool_verdict why;
    fake_other_process(0, 100 * MIB);
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    void *block = get(64 * MIB, 0);
    CHECK_EQ(kit_fits(arena, (size_t)1 << 47, &why), 0);
    CHECK_EQ(why.reserved_bytes, 64 * MIB);
    CHECK_EQ(why.others_bytes,
             why.device_total_bytes - why.device_free_bytes - why.reserved_bytes);
    CHECK(why.others_bytes >= 100 * MIB);
    put(block, 0);
    kit_close(arena);
    fake_other_process(0, 0);
}

/* ---- what is had first ---- */

/* Blocks that a cache keeps merge before more memory is asked of the driver. */
static void cached_blocks_come_before_growth(void) {
    void *block[32];
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    for (int i = 0; i < 32; i++) block[i] = get(64 * KIB, 0);
    CHECK_EQ(kit_reserved(arena), 2 * MIB);
    for (int i = 0; i < 32; i++) put(block[i], 0);
    put(get(2 * MIB, 0), 0);
    CHECK_EQ(kit_reserved(arena), 2 * MIB);
    kit_close(arena);
}

/* Memory is got for more than was ever live at once; else free memory is stitched, whatever the
   peaks say that were counted anew. */
static void growth_is_for_more_than_ever_was(void) {
    for (int way = 0; way < 4; way++) {
        size_t held = (way < 2 ? 64 : 56) * MIB; /* less: little enough for peaks that are new */
        void *block[10];
        arena = kit_open(GPUPOOL_SOURCE_MAPPED);
        check_case("way %d", way);
        for (int i = 0; i < 10; i++) block[i] = get(8 * MIB, 0);
        for (int i = 0; i < 10; i += 2) put(block[i], 0);
        CHECK_RESULT(gpupool_trim(arena, held, NULL), GPUPOOL_OK);
        CHECK_EQ(kit_reserved(arena), held);
        if (way % 2) CHECK_RESULT(gpupool_begin_phase(arena), GPUPOOL_OK);
        else CHECK_RESULT(gpupool_reset_peaks(arena), GPUPOOL_OK);
        void *large = get(16 * MIB, 0);
        CHECK_EQ(kit_reserved(arena), held);
        CHECK_EQ(kit_stats(arena).stitches, 1);
        void *more = get(32 * MIB, 0);
        CHECK(kit_reserved(arena) > 80 * MIB);
        put(more, 0);
        if (way % 2) CHECK_RESULT(gpupool_end_phase(arena, NULL), GPUPOOL_OK);
        put(large, 0);
        for (int i = 1; i < 10; i += 2) put(block[i], 0);
        kit_close(arena);
    }
}

/* So it is where a little more would do no harm. */
static void peaks_counted_anew_change_no_growth(void) {
    for (int way = 0; way < 2; way++) {
        gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
        void *block[10];
        check_case("way %d", way);
        config.chunk_bytes = 2 * MIB;
        arena = kit_create(&config);
        for (int i = 0; i < 10; i++) block[i] = get(2 * MIB, 0);
        for (int i = 0; i < 10; i += 2) put(block[i], 0);
        if (way) CHECK_RESULT(gpupool_begin_phase(arena), GPUPOOL_OK);
        else CHECK_RESULT(gpupool_reset_peaks(arena), GPUPOOL_OK);
        void *large = get(4 * MIB, 0);
        CHECK_EQ(kit_reserved(arena), 20 * MIB);
        CHECK_EQ(kit_stats(arena).stitches, 1);
        put(large, 0);
        for (int i = 1; i < 10; i += 2) put(block[i], 0);
        kit_close(arena);
    }
}

/* ---- streams ---- */

/* A request on a stream that captures outside of any scope: memory that another stream freed is not
   asked after in a way that would lose the capture. */
static void a_capture_that_only_a_request_has_shown(void) {
    cudaGraph_t graph = NULL;
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 4 * MIB);
    void *own = get(MIB, 1), *block = get(MIB - 512, 2);
    CHECK_EQ(cudaStreamBeginCapture(kit_stream[0], cudaStreamCaptureModeRelaxed), cudaSuccess);
    void *captured = get(2 * MIB, 0);
    put(block, 2); /* too little for a fence */
    void *taken = get(MIB - 512, 1);
    CHECK_EQ(kit_stats(arena).host_syncs, 1);
    CHECK_EQ(cudaStreamEndCapture(kit_stream[0], &graph), cudaSuccess);
    CHECK_EQ(cudaGraphDestroy(graph), cudaSuccess);
    put(captured, 0);
    put(taken, 1);
    put(own, 1);
    kit_close(arena);
}

/* A stream that has a destroyed one's handle does not take its place among a block's uses. */
static void a_use_by_each_stream_of_a_handle(void) {
    fake_mode(FAKE_STEPPED);
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 2 * MIB);
    void *block = get(2 * MIB, 0);
    cudaStream_t stream = NULL, first;
    CHECK_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    kit_mark(stream, block, 2 * MIB, 1);
    CHECK_RESULT(gpupool_record_stream(arena, block, stream), GPUPOOL_OK);
    first = stream;
    CHECK_EQ(own_stream_destroy(stream), cudaSuccess);
    CHECK_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    CHECK(stream == first);
    CHECK_RESULT(gpupool_record_stream(arena, block, stream), GPUPOOL_OK);
    put(block, 0);
    void *again = get(2 * MIB, 0);
    kit_mark(kit_stream[0], again, 2 * MIB, 2);
    fake_run_all();
    CHECK_EQ(fake_failures(), 0);
    put(again, 0);
    CHECK_EQ(own_stream_destroy(stream), cudaSuccess);
    fake_mode(FAKE_EAGER);
    kit_close(arena);
}
#endif

int main(void) {
    FAKE_TEST(a_trim_that_fails_has_released_nothing);
    FAKE_TEST(pinned_memory_is_within_reach);
    FAKE_TEST(sizes_that_are_refused);
    FAKE_TEST(growth_that_fails_after_a_wait);
    FAKE_TEST(own_work_is_waited_for_first);
    FAKE_TEST(waits_that_fail);
    FAKE_TEST(no_memory_for_a_stream);
    FAKE_TEST(no_memory_for_a_use);
    FAKE_TEST(no_memory_for_a_reserve);
    FAKE_TEST(no_host_memory_is_lost);
    FAKE_TEST(no_addresses);
    FAKE_TEST(a_free_run_of_one_unit);
    FAKE_TEST(others_beside_an_arena);
    FAKE_TEST(cached_blocks_come_before_growth);
    FAKE_TEST(growth_is_for_more_than_ever_was);
    FAKE_TEST(peaks_counted_anew_change_no_growth);
    FAKE_TEST(a_capture_that_only_a_request_has_shown);
    FAKE_TEST(a_use_by_each_stream_of_a_handle);
    return check_finish();
}
