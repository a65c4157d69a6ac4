/* Streams of both devices in one arena: whoever waits, waits for the right device. Random schedules
   under the oracle, and each wait by itself. */
// build: plain
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "peer_kit.h"

#if CHECK_FAKE

#define SCHEDULES 1000

/* ---- random schedules; two of the streams are of device 1, the first of race_others ---- */

static cudaStream_t any_stream(void) {
    uint64_t at = race_below(KIT_STREAMS + 2);
    return at < 2 ? race_others[at] : kit_stream[at - 2];
}

/* kit_order for streams of any device: an event is recorded on its own. */
static void order(cudaStream_t earlier, cudaStream_t later) {
    CHECK_EQ(cudaSetDevice(earlier == race_others[0] || earlier == race_others[1]), cudaSuccess);
    kit_order(earlier, later);
    CHECK_EQ(cudaSetDevice(0), cudaSuccess);
}

/* The mistake: an event over all streams of the arena's device, taken for one over all streams. */
static void both_devices(void) {
    cudaStream_t one = any_stream(), two = any_stream();
    size_t bytes = RACE_BYTES >> race_below(6);
    void *block;
    race_put(race_get(bytes, one), one);
    race_put(race_get(RACE_BYTES, two), two);
    block = race_get(bytes, one);
    if (block && race_below(2)) {
        order(one, two);
        CHECK_EQ(fake_read(two, "elsewhere", block, bytes, -1), cudaSuccess);
        CHECK_RESULT(gpupool_record_stream(arena, block, two), GPUPOOL_OK);
    }
    race_put(block, one);
    if (race_below(16) == 0) CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
    two = any_stream();
    block = race_get(RACE_BYTES, two);
    race_put(block, two);
}

static void streams_of_two_devices(gpupool_source source, size_t bytes) {
    for (int seed = 1; seed <= SCHEDULES && !fake_failures(); seed++) {
        if (seed % 100 == 1) {
            race_open(source, bytes);
            CHECK_RESULT(gpupool_allow_peer(arena, 1), GPUPOOL_OK);
            for (int i = 0; i < 2; i++) race_others[i] = stream_of(1);
        }
        check_case("source %d, seed %d", (int)source, seed);
        race_random = (uint64_t)seed;
        both_devices();
        if (seed % 100) continue;
        CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
        kit_close(arena); /* with work of both devices still queued */
        fake_run_all();
        for (int i = 0; i < 2; i++) CHECK_EQ(cudaStreamDestroy(race_others[i]), cudaSuccess);
    }
}
static void two_devices_on_mapped(void) {
    streams_of_two_devices(GPUPOOL_SOURCE_MAPPED, RACE_BYTES);
}
static void two_devices_on_device(void) {
    streams_of_two_devices(GPUPOOL_SOURCE_DEVICE, RACE_BYTES);
}
static void two_devices_with_room(void) {
    streams_of_two_devices(GPUPOOL_SOURCE_MAPPED, 8 * RACE_BYTES);
}

/* ---- what is waited for ---- */

/* The stream takes all that the arena has, and runs alone: what it would overtake has not run. */
static void use_all_at_once(cudaStream_t stream) {
    void *block = kit_alloc(arena, 8 * MIB, stream);
    kit_fill(stream, block, 8 * MIB, 3);
    while (fake_step(stream)) continue;
    give(block, stream);
}

/* Each by itself: device 1's work is queued, and nothing but a wait for all can tell of it. */
static void nothing_waits_for_the_wrong_device(void) {
    for (int way = 0; way < 4; way++) {
        check_case("way %d", way);
        open_stepped_for_the_peer(8 * MIB);
        void *block = kit_alloc(arena, 8 * MIB - 4096, far);
        void *small = kit_alloc(arena, 512, far);
        kit_fill(far, small, 512, 2);
        kit_fill(far, block, 8 * MIB - 4096, 1);
        give(block, far); /* alone: without a mark */
        give(small, far);
        if (way == 0) { /* taken */
            use_all_at_once(kit_stream[0]);
        } else if (way == 1) { /* trimmed */
            CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
        } else if (way == 2) { /* retired, and then taken */
            CHECK_RESULT(gpupool_retire_stream(arena, far), GPUPOOL_OK);
            use_all_at_once(kit_stream[1]);
        } /* else destroyed */
        CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_OK);
        fake_run_all();
        CHECK_EQ(fake_failures(), 0);
        end_far();
    }
}

/* An event over all streams of a device says nothing of its peers': cudaMalloc waits for them. */
static void all_streams_are_the_peers_too(void) {
    void *block;
    fake_mode(FAKE_STEPPED);
    arena = gpupool_get_default_arena(0);
    allow_the_peer();
    CHECK_RESULT(gpupool_set_limit(arena, 4 * MIB), GPUPOOL_OK);
    block = kit_alloc(arena, 4 * MIB, far);
    kit_mark(far, block, 4 * MIB, 1);
    give(block, far);
    CHECK_EQ(gpupool_cudaMalloc(&block, 4 * MIB), cudaSuccess);
    CHECK_EQ(fake_pending(far), 0);
    kit_mark(kit_stream[0], block, 4 * MIB, 2);
    fake_run_all();
    CHECK_EQ(fake_failures(), 0);
    CHECK_EQ(gpupool_cudaFree(block), cudaSuccess);
    end_far();
    fake_mode(FAKE_EAGER);
    kit_close(arena);
}

/* cudaFree waits for the device that the memory is of. */
static void without_a_pool_peers_are_waited_for(void) {
    open_for_the_peer(GPUPOOL_SOURCE_BYPASS, 0);
    fake_mode(FAKE_STEPPED);
    for (int recorded = 0; recorded < 2; recorded++) {
        void *block = kit_alloc(arena, MIB, far);
        kit_fill(far, block, MIB, 7);
        if (recorded) CHECK_RESULT(gpupool_record_stream(arena, block, far), GPUPOOL_OK);
        fake_fail_call("cuCtxPushCurrent", 2, 0, 0); /* then the chunk stays, and is tried again */
        give(block, recorded ? kit_stream[0] : far);
        CHECK_EQ(fake_fail_fired(), 1);
        fake_fail_clear();
        CHECK_EQ(fake_failures(), 0);
        CHECK_EQ(kit_stats(arena).blocks.now, 0);
        CHECK_EQ(kit_reserved(arena), MIB);
        CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
        CHECK_EQ(kit_reserved(arena), 0);
        CHECK_EQ(fake_failures(), 0);
        CHECK_EQ(cudaStreamSynchronize(far), cudaSuccess);
    }
    close_with_far();
}

/* ---- while a thread waits for both devices: what it waits for is not for others yet, though the
   event that stands for the wait is one of before, whose work is done ---- */

static int asked_for;

static void ask_for_it(void *unused) {
    gpi_request request = {.units = 2048, .align_units = 1, .by = gpi_arena_call(kit_stream[0])};
    (void)unused;
    gpi_host_lock(&arena->lock);
    request.owner = gpi_arena_owner(arena, request.by.key, 0);
    for (int is_short = 0; is_short < 2; is_short++) {
        arena->short_until = is_short ? UINT64_MAX : 0;
        CHECK(gpi_alloc_take_over(arena, &request) == NULL);
        asked_for++;
    }
    arena->short_until = 0;
    gpi_host_unlock(&arena->lock);
}

static void not_before_the_wait_is_over(void) {
    race_open(GPUPOOL_SOURCE_MAPPED, 64 * MIB);
    CHECK_RESULT(gpupool_allow_peer(arena, 1), GPUPOOL_OK);
    void *block = kit_alloc(arena, MIB, kit_stream[1]);
    CHECK_RESULT(gpupool_record_stream(arena, block, kit_stream[2]), GPUPOOL_OK);
    give(block, kit_stream[1]);
    fake_run_all();
    CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
    block = kit_alloc(arena, MIB, kit_stream[1]);
    kit_fill(kit_stream[1], block, 512, 1);
    give(block, kit_stream[1]);
    uint64_t waits = kit_stats(arena).host_syncs;
    asked_for = 0;
    fake_reset_counters();
    fake_before_call("cuMemFree", 1, ask_for_it, NULL);
    CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
    CHECK_EQ(asked_for, 2);
    CHECK_EQ(kit_stats(arena).host_syncs, waits + 1);
    CHECK_EQ(fake_calls("cuEventQuery"), 0); /* then it is known */
    CHECK_EQ(kit_stats(arena).pending.now, 0);
    void *live = kit_alloc(arena, MIB, kit_stream[0]); /* one of two streams, so with an event */
    block = kit_alloc(arena, 2 * MIB, kit_stream[1]);
    give(block, kit_stream[1]);
    give(live, kit_stream[0]);
    fake_reset_counters();
    kit_close(arena);
    CHECK_EQ(fake_calls("cuEventQuery"), 0);
}

/* ---- which device a stream is of ---- */

/* Stream 0 is that of the arena's device, whichever device is current. */
static void the_default_stream_is_the_arenas(void) {
    race_open(GPUPOOL_SOURCE_MAPPED, 8 * MIB);
    kit_order(kit_stream[1], 0); /* it is there */
    for (int round = 0; round < 2; round++) {
        void *block = kit_alloc(arena, 8 * MIB, kit_stream[0]);
        kit_fill(kit_stream[0], block, 8 * MIB, 1);
        give(block, kit_stream[0]);
        CHECK_EQ(cudaSetDevice(1), cudaSuccess);
        block = kit_alloc(arena, 8 * MIB, 0);
        CHECK_EQ(cudaSetDevice(0), cudaSuccess);
        kit_fill(0, block, 8 * MIB, 2);
        while (fake_step(0)) continue;
        CHECK_EQ(fake_failures(), 0);
        give(block, 0);
        fake_run_all();
    }
    kit_close(arena);
}

/* The driver's table for one question has no context, so a stream's is never taken for its own. */
static void a_table_for_one_question(void) {
    gpi_driver table;
    CUcontext context = NULL;
    far = stream_of(1);
    CHECK_EQ(cuStreamGetCtx(far, &context), CUDA_SUCCESS);
    memset(&table, 0, sizeof table);
    table.context = context; /* as memory may have been left */
    CHECK(gpi_driver_ask(&table)->context == NULL);
    CHECK(gpi_driver_foreign(&table, far) == context);
    CHECK_EQ(gpi_driver_device_of(&table, context), 1);
    end_far();
}

#endif

int main(void) {
    FAKE_TEST(two_devices_on_mapped);
    FAKE_TEST(two_devices_on_device);
    FAKE_TEST(two_devices_with_room);
    FAKE_TEST(nothing_waits_for_the_wrong_device);
    FAKE_TEST(all_streams_are_the_peers_too);
    FAKE_TEST(without_a_pool_peers_are_waited_for);
    FAKE_TEST(not_before_the_wait_is_over);
    FAKE_TEST(the_default_stream_is_the_arenas);
    FAKE_TEST(a_table_for_one_question);
    return check_finish();
}
