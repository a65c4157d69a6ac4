/* Integrated GPUs: what CUDA calls free is the host's figure, which leaves out the system's page
   cache. It bounds no allocation, and so it bounds no answer. */
// build: plain
// build: asan -fsanitize=address,undefined
#include "gpupool.h"
#include "verdict_kit.h"

#if CHECK_FAKE

static const gpupool_source sources[] = {GPUPOOL_SOURCE_MAPPED, GPUPOOL_SOURCE_DEVICE,
                                         GPUPOOL_SOURCE_BYPASS};

/* 16 GiB, of which CUDA says that 1 GiB is free. */
static void make_device(void) {
    fake_device_memory(0, 16 * GIB);
    fake_device_integrated(0, 15 * GIB);
}

static void what_alloc_gives_would_fit(void) {
    for (size_t i = 0; i < KIT_COUNT(sources); i++) {
        check_case("source %d", (int)sources[i]);
        make_device();
        gpupool_arena *arena = kit_open(sources[i]);
        CHECK(kit_available(arena) >= 15 * GIB);
        fits(arena, 12 * GIB);
        void *block = kit_alloc(arena, 10 * GIB, kit_stream[0]);
        fits(arena, 3 * GIB);
        gpupool_verdict v = refuses(arena, 8 * GIB, GPUPOOL_CAUSE_DEVICE_FULL);
        CHECK(v.others_bytes < GIB);
        CHECK(kit_available(arena) <= 6 * GIB);
        CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
        would_not_fit(arena, 17 * GIB, GPUPOOL_CAUSE_TOO_LARGE);
        kit_close(arena);
    }
}

/* An idle chunk makes room for a larger one, though nothing seems free. */
static void idle_chunks_make_room(void) {
    make_device();
    gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_DEVICE);
    fits(arena, 6 * GIB);
    fits(arena, 12 * GIB);
    kit_close(arena);
}

static void percent_of_what_is_free(void) {
    make_device();
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_AUTO);
    config.limit_text = "50%free";
    gpupool_arena *arena = kit_create(&config);
    CHECK_EQ(kit_limit(arena), 8 * GIB);
    void *block = kit_alloc(arena, 6 * GIB, kit_stream[0]);
    CHECK_RESULT(gpupool_set_limit_text(arena, "80%free"), GPUPOOL_OK);
    size_t limit = kit_limit(arena);
    CHECK(limit > 7 * GIB && limit <= 8 * GIB); /* of 10 GiB, or a little less */
    CHECK_RESULT(gpupool_set_limit_text(arena, "50%"), GPUPOOL_OK);
    CHECK_EQ(kit_limit(arena), 8 * GIB);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
    kit_close(arena);
    config.limit_text = "100%free"; /* to the byte */
    arena = kit_create(&config);
    CHECK_EQ(kit_limit(arena), 16 * GIB);
    kit_close(arena);
}

/* Where others do hold it, the driver tells, and the sentence does not name what it cannot know. */
static void what_others_hold_is_not_known(void) {
    make_device();
    fake_other_process(0, 12 * GIB);
    gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_AUTO);
    gpupool_verdict v;
    CHECK_RESULT(kit_why(gpupool_alloc(arena, 8 * GIB, 0)), GPUPOOL_E_OUT_OF_MEMORY);
    CHECK_RESULT(gpupool_last_verdict(&v), GPUPOOL_OK);
    if (!CHECK(strstr(v.sentence, "the driver refuses memory") != NULL))
        printf("  %s\n", v.sentence);
    fits(arena, 3 * GIB);
    kit_close(arena);
}

/* What waking lacks there is told as for any request: free is all that the arena has not
   reserved. */
static void waking_tells_what_is_free(void) {
    int asleep;
    gpupool_tag_config config = {.can_sleep = 1};
    make_device();
    gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    CHECK_RESULT(gpupool_tag(arena, "weights", &config, &asleep), GPUPOOL_OK);
    gpupool_request request = kit_request(10 * GIB, kit_stream[0], 0);
    request.tag = asleep;
    void *block = gpupool_alloc_request(arena, &request), *other;
    CHECK_RESULT(kit_why(block), GPUPOOL_OK);
    CHECK_RESULT(gpupool_sleep(arena, asleep, GPUPOOL_DISCARD, NULL), GPUPOOL_OK);
    other = kit_alloc(arena, 12 * GIB, kit_stream[0]);
    CHECK_RESULT(gpupool_wake(arena, asleep, NULL), GPUPOOL_E_OUT_OF_MEMORY);
    gpupool_verdict v;
    CHECK_RESULT(gpupool_last_verdict(&v), GPUPOOL_OK);
    CHECK_EQ(v.cause, GPUPOOL_CAUSE_DEVICE_FULL);
    CHECK_EQ(v.others_bytes, 0);
    CHECK_EQ(v.device_free_bytes, v.device_total_bytes - v.reserved_bytes);
    CHECK_EQ(v.missing_bytes, 6 * GIB);
    CHECK_RESULT(gpupool_free(arena, other, kit_stream[0]), GPUPOOL_OK);
    CHECK_RESULT(gpupool_wake(arena, asleep, NULL), GPUPOOL_OK);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
    kit_close(arena);
}

/* A device with memory of its own is believed, as ever. */
static void other_devices_are_believed(void) {
    fake_device_memory(0, 16 * GIB);
    fake_other_process(0, 12 * GIB);
    gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_AUTO);
    would_not_fit(arena, 8 * GIB, GPUPOOL_CAUSE_OTHERS);
    CHECK(kit_available(arena) <= 4 * GIB);
    kit_close(arena);
}
#endif

int main(void) {
    FAKE_TEST(what_alloc_gives_would_fit);
    FAKE_TEST(idle_chunks_make_room);
    FAKE_TEST(percent_of_what_is_free);
    FAKE_TEST(what_others_hold_is_not_known);
    FAKE_TEST(waking_tells_what_is_free);
    FAKE_TEST(other_devices_are_believed);
    return check_finish();
}
