/* A driver that lacks an entry point, each in turn: the arena does without it, by another source or
   by waiting on the host, and keeps its promises. */
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "arena_kit.h"

#if CHECK_FAKE

#define LOOK_UP "cudaGetDriverEntryPointByVersion"
#define SIZE (4 * MIB)

/* Memory that stream 0 has freed, with its work done or not, serves stream 1. */
static void pass_on(gpupool_arena *arena, int finish) {
    void *first = kit_alloc(arena, SIZE, kit_stream[0]);
    if (first) kit_mark(kit_stream[0], first, SIZE, 1);
    CHECK_RESULT(gpupool_free(arena, first, kit_stream[0]), GPUPOOL_OK);
    if (finish) CHECK_EQ(cudaStreamSynchronize(kit_stream[0]), cudaSuccess);
    void *second = kit_alloc(arena, SIZE, kit_stream[1]);
    if (second) kit_mark(kit_stream[1], second, SIZE, 2);
    fake_run(kit_stream[1]);
    CHECK_EQ(fake_failures(), 0);
    CHECK_RESULT(gpupool_record_stream(arena, second, kit_stream[0]), GPUPOOL_OK);
    CHECK_RESULT(gpupool_free(arena, second, kit_stream[1]), GPUPOOL_OK);
}

/* And what one stream alone has freed can be given back. */
static void give_back(gpupool_arena *arena) {
    void *block = kit_alloc(arena, SIZE, kit_stream[0]);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
    CHECK_EQ(cudaStreamSynchronize(kit_stream[0]), cudaSuccess);
    CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
    CHECK_EQ(kit_reserved(arena), 0);
}

/* Nothing opens where the search for the call ends like this. */
static void refuse(const gpi_call *call, cudaError_t error, gpupool_result result,
                   const char *word) {
    gpupool_arena *arena = NULL;
    gpupool_ring *ring = NULL;
    long nth = call - gpi_calls + 1;
    fake_fail_call(LOOK_UP, nth, 0, (int)error);
    CHECK_RESULT(gpupool_arena_create(&arena, NULL), result);
    CHECK(strstr(gpupool_last_error(), word) != NULL);
    CHECK(arena == NULL);
    fake_fail_call(LOOK_UP, nth, 0, (int)error);
    CHECK_RESULT(gpupool_ring_create(&ring, NULL), result);
    CHECK(ring == NULL);
    CHECK_EQ(fake_fail_fired(), 2);
    fake_fail_clear();
    CHECK_EQ(cudaPeekAtLastError(), cudaSuccess);
}

/* What the driver has had longer than there is gpupool: without it nothing opens. */
static void refuse_without(const gpi_call *call) {
    refuse(call, cudaErrorSymbolNotFound, GPUPOOL_E_UNSUPPORTED, call->name);
    refuse(call, cudaErrorInvalidValue, GPUPOOL_E_UNSUPPORTED, call->name);
}

static void live_without(const gpi_call *call, cudaError_t error) {
    fake_fail_call(LOOK_UP, call - gpi_calls + 1, 0, (int)error);
    gpupool_arena *arena = kit_open_limited(GPUPOOL_SOURCE_AUTO, SIZE);
    CHECK_EQ(fake_fail_fired(), 1);
    CHECK_EQ(arena->chunks.driver.mapped, call->group != GPI_CALL_MAPS);
    fake_fail_clear();
    fake_mode(FAKE_STEPPED);
    give_back(arena);
    pass_on(arena, 1);
    pass_on(arena, 0);
    CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
    CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
    CHECK_EQ(kit_reserved(arena), 0);
    pass_on(arena, 0);
    CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
    CHECK_RESULT(gpupool_set_limit(arena, 2 * MIB), GPUPOOL_OK);
    CHECK(kit_reserved(arena) <= 2 * MIB);
    kit_close(arena);
    fake_mode(FAKE_EAGER);
}

/* Without a fence over all streams what others have freed takes a wait for the device. Where that
   fails, nobody has the memory, nor is it lost. */
static void a_wait_that_fails(void) {
    gpupool_verdict v;
    gpupool_arena *arena = kit_open_limited(GPUPOOL_SOURCE_DEVICE, MIB);
    arena->chunks.driver.record_all = NULL;
    void *first = kit_alloc(arena, MIB / 2, kit_stream[0]);
    void *second = kit_alloc(arena, MIB / 2, kit_stream[1]);
    fake_mode(FAKE_STEPPED);
    kit_mark(kit_stream[0], first, MIB / 2, 1);
    CHECK_RESULT(gpupool_free(arena, first, kit_stream[0]), GPUPOOL_OK);
    fake_fail_call("cuMemAlloc", 1, 1, 0);
    fake_fail_call("cuMemHostAlloc", 1, 1, 0);
    for (int i = 0; i < 2; i++) { /* by the long way, and then by the short one */
        CHECK_RESULT(kit_why(gpupool_alloc(arena, MIB / 2, kit_stream[1])),
                     GPUPOOL_E_OUT_OF_MEMORY);
        CHECK_RESULT(gpupool_last_verdict(&v), GPUPOOL_OK);
        CHECK_EQ(v.cause, GPUPOOL_CAUSE_PENDING);
        CHECK_EQ(v.pending_streams, 0);
        CHECK(strstr(v.sentence, "wait for all work in flight on the device") != NULL);
        CHECK(fake_pending(kit_stream[0]) > 0);
    }
    fake_fail_clear();
    first = kit_alloc(arena, MIB / 2, kit_stream[1]);
    kit_mark(kit_stream[1], first, MIB / 2, 2);
    fake_run(kit_stream[1]);
    CHECK_EQ(fake_failures(), 0);
    CHECK_RESULT(gpupool_free(arena, first, kit_stream[1]), GPUPOOL_OK);
    CHECK_RESULT(gpupool_free(arena, second, kit_stream[1]), GPUPOOL_OK);
    fake_mode(FAKE_EAGER);
    kit_close(arena);
}

/* What another stream has freed with no event behind it takes a wait for the device: a request that
   must not wait cannot have it, and the verdict knows. */
static void memory_without_an_event(void) {
    gpupool_arena *arena = kit_open_limited(GPUPOOL_SOURCE_DEVICE, 64 * MIB);
    gpupool_request request = kit_request(40 * MIB, kit_stream[1], GPUPOOL_NO_WAIT);
    gpupool_verdict v;
    arena->chunks.driver.record_all = NULL;
    void *block = kit_alloc(arena, 60 * MIB, kit_stream[0]);
    fake_mode(FAKE_STEPPED);
    kit_mark(kit_stream[0], block, 64, 1);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK); /* alone: no event */
    CHECK_RESULT(kit_why(gpupool_alloc_request(arena, &request)), GPUPOOL_E_OUT_OF_MEMORY);
    CHECK_RESULT(gpupool_last_verdict(&v), GPUPOOL_OK);
    CHECK_EQ(v.cause, GPUPOOL_CAUSE_PENDING);
    CHECK(fake_pending(kit_stream[0]) > 0);
    block = kit_alloc(arena, 40 * MIB, kit_stream[1]); /* which may wait */
    CHECK_EQ(fake_pending(kit_stream[0]), 0);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[1]), GPUPOOL_OK);
    fake_mode(FAKE_EAGER);
    kit_close(arena);
}

/* A driver that cannot name its errors: that something has failed is told all the same. */
static void errors_without_a_name(void) {
    gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_AUTO);
    arena->chunks.driver.error_name = NULL;
    fake_fail_call("cuMemCreate", 1, 0, 999);
    CHECK_RESULT(kit_why(gpupool_alloc(arena, SIZE, kit_stream[0])), GPUPOOL_E_CUDA);
    CHECK(strstr(gpupool_last_error(), "cuMemCreate failed: unknown error") != NULL);
    fake_fail_clear();
    kit_close(arena);
}

/* Pages that are no power of two, or smaller than a unit, are none that this could map. What a
   chunk takes of the device is then counted in the usual ones. */
static void odd_pages(void) {
    static const size_t odd[] = {3 * MIB, 256};
    for (size_t i = 0; i < KIT_COUNT(odd); i++) {
        gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
        gpupool_arena *arena = NULL;
        fake_granularity(odd[i]);
        CHECK_RESULT(gpupool_arena_create(&arena, &config), GPUPOOL_E_UNSUPPORTED);
        arena = kit_open(GPUPOOL_SOURCE_AUTO);
        CHECK_EQ(arena->chunks.source, GPUPOOL_SOURCE_DEVICE);
        fake_granularity(0);
        void *block = kit_alloc(arena, 2 * MIB + 1, kit_stream[0]);
        CHECK_EQ(kit_reserved(arena), fake_used_bytes(0));
        CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
        kit_close(arena);
    }
}

/* What is got and mapped is whole pages. */
static void large_pages(void) {
    fake_granularity(8 * MIB);
    gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    void *block = kit_alloc(arena, MIB, kit_stream[0]);
    CHECK_EQ(kit_reserved(arena) % (8 * MIB), 0);
    CHECK_EQ(kit_reserved(arena), fake_used_bytes(0));
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
    kit_close(arena);
}

/* Where the device has less than a page left, half a chunk is not rounded up to the same page again
   and again: what the request needs is asked for next. */
static void less_than_a_large_page(void) {
    size_t free_bytes, total_bytes;
    fake_granularity(8 * MIB);
    gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_DEVICE);
    CHECK_EQ(cudaMemGetInfo(&free_bytes, &total_bytes), cudaSuccess);
    fake_other_process(0, free_bytes - 3 * MIB);
    void *block = kit_alloc(arena, MIB, kit_stream[0]);
    CHECK_EQ(kit_reserved(arena), MIB);
    fake_other_process(0, 0);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
    kit_close(arena);
}

/* Nor is memory shared where the driver gives handles only one way, or none. */
static void not_shared_one_way(void) {
    static const char *const names[] = {"cuMemExportToShareableHandle",
                                        "cuMemImportFromShareableHandle"};
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
    config.share = GPUPOOL_SHARE_PROCESSES;
    for (size_t i = 0; i < KIT_COUNT(names); i++) {
        const gpi_call *call = gpi_calls;
        gpupool_arena *arena = NULL;
        while (strcmp(call->name, names[i]) != 0) call++;
        fake_fail_call(LOOK_UP, call - gpi_calls + 1, 0, cudaErrorSymbolNotFound);
        CHECK_RESULT(gpupool_arena_create(&arena, &config), GPUPOOL_E_UNSUPPORTED);
        CHECK_EQ(fake_fail_fired(), 1);
        fake_fail_clear();
        CHECK(strstr(gpupool_last_error(), "handles that are file descriptors") != NULL);
    }
}

/* A descriptor is of no use to a driver that maps none. */
static void nothing_imported(void) {
    const gpi_call *call = gpi_calls;
    gpupool_exported exported = {.bytes = 2 * MIB, .descriptor = 0};
    gpupool_imported imported;
    while (strcmp(call->name, "cuMemImportFromShareableHandle") != 0) call++;
    fake_fail_call(LOOK_UP, call - gpi_calls + 1, 0, cudaErrorSymbolNotFound);
    CHECK_RESULT(gpupool_import(0, &exported, &imported), GPUPOOL_E_UNSUPPORTED);
    CHECK_EQ(fake_fail_fired(), 1);
    fake_fail_clear();
    CHECK(imported.memory == NULL);
}

/* Contexts have no ids there: a peer's counts as alive, and its streams are waited for. */
static void a_peer_without_an_id(void) {
    const gpi_call *call = gpi_calls;
    cudaStream_t far = NULL;
    while (strcmp(call->name, "cuCtxGetId") != 0) call++;
    fake_fail_call(LOOK_UP, call - gpi_calls + 1, 0, cudaErrorSymbolNotFound);
    gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    CHECK_EQ(fake_fail_fired(), 1);
    fake_fail_clear();
    CHECK_RESULT(gpupool_allow_peer(arena, 1), GPUPOOL_OK);
    CHECK_EQ(cudaSetDevice(1), cudaSuccess);
    CHECK_EQ(cudaStreamCreateWithFlags(&far, cudaStreamNonBlocking), cudaSuccess);
    CHECK_EQ(cudaSetDevice(0), cudaSuccess);
    void *block = kit_alloc(arena, SIZE, far);
    kit_mark(far, block, SIZE, 1);
    CHECK_RESULT(gpupool_free(arena, block, far), GPUPOOL_OK);
    CHECK_RESULT(gpupool_wait_stream(arena, far), GPUPOOL_OK);
    CHECK_EQ(kit_stats(arena).pending.now, 0);
    CHECK_RESULT(gpupool_wait_all(arena), GPUPOOL_OK);
    CHECK_EQ(cudaStreamDestroy(far), cudaSuccess);
    kit_close(arena);
}

/* What it is asked when an arena is made, whose limit is a share of the device's memory. */
static const struct { const char *call; long nth; } questions[] = {
    {"cuInit", 1},       {"cuDevicePrimaryCtxRetain", 1}, {"cuCtxPushCurrent", 1},
    {"cuCtxGetId", 2},   {"cuDeviceGetAttribute", 1},     {"cuMemGetAllocationGranularity", 1},
    {"cuMemGetInfo", 1}, {"cuDeviceGetAttribute", 2},     {"cuMemGetInfo", 2},
    {"cuDeviceGetAttribute", 3}, {"cuDeviceGetAttribute", 4}}; /* of config.share */

/* That it has not answered is no answer: nothing is made, by no source. */
static void a_device_that_does_not_answer(void) {
    static const gpupool_source sources[] = {GPUPOOL_SOURCE_AUTO, GPUPOOL_SOURCE_MAPPED};
    long objects = fake_live_objects();
    for (size_t i = 0; i < KIT_COUNT(questions) * KIT_COUNT(sources); i++) {
        const char *call = questions[i / 2].call;
        gpupool_arena_config config = kit_config(sources[i % 2]);
        gpupool_arena *arena = NULL;
        config.limit_text = "50%";
        config.share = GPUPOOL_SHARE_PROCESSES | GPUPOOL_SHARE_RDMA;
        check_case("%s %ld, source %d", call, questions[i / 2].nth, (int)config.source);
        fake_fail_call(call, questions[i / 2].nth, 0, 0);
        CHECK_RESULT(gpupool_arena_create(&arena, &config), GPUPOOL_E_CUDA);
        CHECK_EQ(fake_fail_fired(), 1);
        fake_fail_clear();
        CHECK(strstr(gpupool_last_error(), call) != NULL);
        CHECK(arena == NULL);
        CHECK_EQ(fake_live_objects(), objects);
    }
}

/* Giving back what it had fails, too, each call once: no later call could, so it is tried again. */
static void a_creation_that_is_hard_to_undo(void) {
    static const char *const calls[] = {"cuMemSetAccess", "cuMemUnmap", "cuMemRelease",
                                        "cuMemAddressFree"};
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_AUTO);
    gpupool_arena *arena = NULL;
    long objects = fake_live_objects();
    for (size_t i = 0; i < KIT_COUNT(calls); i++) fake_fail_call(calls[i], 1, 0, 0);
    CHECK_RESULT(gpupool_arena_create(&arena, &config), GPUPOOL_E_CUDA);
    CHECK_EQ(fake_fail_fired(), KIT_COUNT(calls));
    fake_fail_clear();
    CHECK(strstr(gpupool_last_error(), calls[0]) != NULL);
    CHECK_EQ(fake_live_objects(), objects);
}

/* Where the driver takes nothing back the call ends all the same, after some tries. */
static void what_cannot_be_undone(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_AUTO); /* which tries to map */
    gpupool_exported exported;
    gpupool_imported imported;
    gpupool_arena *arena = NULL;
    fake_fail_call("cuMemSetAccess", 1, 0, 0);
    fake_fail_call("cuMemRelease", 1, 1, 0);
    CHECK_RESULT(gpupool_arena_create(&arena, &config), GPUPOOL_E_CUDA);
    CHECK(fake_fail_fired() > GPI_UNDO_TRIES);
    fake_fail_clear();
    config.source = GPUPOOL_SOURCE_MAPPED;
    config.share = GPUPOOL_SHARE_PROCESSES;
    CHECK_RESULT(gpupool_arena_create(&arena, &config), GPUPOOL_OK);
    gpupool_request request = {.bytes = MIB, .flags = GPUPOOL_EXPORTABLE};
    void *block = gpupool_alloc_request(arena, &request);
    CHECK_RESULT(gpupool_export(arena, block, &exported), GPUPOOL_OK);
    fake_fail_call("cuMemSetAccess", 1, 0, 0);
    fake_fail_call("cuMemRelease", 1, 1, 0);
    CHECK_RESULT(gpupool_import(0, &exported, &imported), GPUPOOL_E_CUDA);
    CHECK_EQ(fake_fail_fired(), 1 + GPI_UNDO_TRIES);
    fake_fail_clear();
    CHECK_RESULT(gpupool_export_close(arena, block), GPUPOOL_OK);
    CHECK_RESULT(gpupool_free(arena, block, 0), GPUPOOL_OK);
    CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_OK);
    fake_reset();
}

/* A driver that is older than the question, or says that the device cannot: that is a no. */
static void a_question_refused_is_a_no(void) {
    static const struct { const char *call; long nth; gpupool_source source; } asked[] = {
        {"cuDeviceGetAttribute", 1, GPUPOOL_SOURCE_DEVICE},           /* maps memory? */
        {"cuMemGetAllocationGranularity", 1, GPUPOOL_SOURCE_DEVICE},
        {"cuDeviceGetAttribute", 2, GPUPOOL_SOURCE_MAPPED}};          /* is integrated? */
    static const int refusals[] = {CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED};
    for (size_t i = 0; i < KIT_COUNT(asked) * KIT_COUNT(refusals); i++) {
        fake_fail_call(asked[i / 2].call, asked[i / 2].nth, 0, refusals[i % 2]);
        gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_AUTO);
        CHECK_EQ(fake_fail_fired(), 1);
        fake_fail_clear();
        CHECK_EQ(arena->chunks.source, asked[i / 2].source);
        CHECK(!arena->chunks.driver.is_integrated);
        kit_close(arena);
    }
}

static void any_entry_point_may_be_missing(void) {
    kit_close(kit_open(GPUPOOL_SOURCE_AUTO));
    CHECK_EQ(fake_calls(LOOK_UP), KIT_COUNT(gpi_calls));
    for (size_t i = 0; i < KIT_COUNT(gpi_calls); i++) {
        check_case("without %s", gpi_calls[i].name);
        if (gpi_calls[i].group == GPI_CALL_NEEDED) {
            refuse_without(&gpi_calls[i]);
            continue;
        }
        live_without(&gpi_calls[i], cudaErrorSymbolNotFound);
        live_without(&gpi_calls[i], cudaErrorInvalidValue); /* of a driver before that version */
    }
}

/* That a call may be missing is known only of a search that has ended well. Without cuCtxGetId, for
   one, no reset of the device would be seen. */
static void no_search_may_fail(void) {
    for (size_t i = 0; i < KIT_COUNT(gpi_calls); i++) {
        check_case("%s is not searched", gpi_calls[i].name);
        refuse(&gpi_calls[i], cudaErrorUnknown, GPUPOOL_E_CUDA, "cudaErrorUnknown");
    }
}

#endif

int main(void) {
#if CHECK_FAKE
    TEST(what_cannot_be_undone);
#endif
    FAKE_TEST(any_entry_point_may_be_missing);
    FAKE_TEST(no_search_may_fail);
    FAKE_TEST(a_wait_that_fails);
    FAKE_TEST(a_peer_without_an_id);
    FAKE_TEST(memory_without_an_event);
    FAKE_TEST(errors_without_a_name);
    FAKE_TEST(odd_pages);
    FAKE_TEST(large_pages);
    FAKE_TEST(less_than_a_large_page);
    FAKE_TEST(not_shared_one_way);
    FAKE_TEST(nothing_imported);
    FAKE_TEST(a_device_that_does_not_answer);
    FAKE_TEST(a_question_refused_is_a_no);
    FAKE_TEST(a_creation_that_is_hard_to_undo);
    return check_finish();
}
