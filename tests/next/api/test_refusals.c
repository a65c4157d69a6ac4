// build: asan -fsanitize=address,undefined
/* Wrong calls: the result says of which kind, the message names argument and rule, and nothing has
   changed. */
#include "gpupool.h"
#include "kit.h"

#define LARGEST ((size_t)1 << 46)

static gpupool_arena *arena;
static void *block; /* live: 1,000 bytes */
static gpupool_stats before;

/* Counts that say nothing of the arena's memory may move. */
static void same_as_before(void) {
    gpupool_stats now = kit_stats(arena);
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    CHECK_EQ(now.blocks, before.blocks);
    CHECK_EQ(now.allocated.now, before.allocated.now);
    CHECK_EQ(now.requested.now, before.requested.now);
    CHECK_EQ(now.reserved.now, before.reserved.now);
    CHECK_EQ(now.pending.now, before.pending.now);
    CHECK_EQ(now.driver_calls, before.driver_calls);
}

static void begin(void) {
    arena = kit_open(64 * MIB);
    block = gpupool_alloc(arena, 1000, kit_stream[0]);
    CHECK(block);
    before = kit_stats(arena);
}

static void finish(void) {
    same_as_before();
    kit_free(arena, block, kit_stream[0]);
    kit_close(arena);
}

static void requests(void) {
    gpupool_request request = {1000, 0, NULL, 0, NULL};
    begin();
    KIT_FAILS(gpupool_alloc(NULL, 1, NULL), GPUPOOL_E_ARGUMENT, "arena");
    KIT_FAILS(gpupool_alloc_request(NULL, &request), GPUPOOL_E_ARGUMENT, "arena");
    KIT_FAILS(gpupool_alloc_request(arena, NULL), GPUPOOL_E_ARGUMENT, "request");
    KIT_FAILS(gpupool_alloc(arena, 0, NULL), GPUPOOL_E_ARGUMENT, "bytes");
    KIT_FAILS(gpupool_alloc(arena, LARGEST + 1, NULL), GPUPOOL_E_ARGUMENT, "bytes");
    KIT_FAILS(gpupool_alloc(arena, SIZE_MAX, NULL), GPUPOOL_E_ARGUMENT, "bytes");
    KIT_FAILS(kit_alloc_as(arena, 1, 3, NULL, 0), GPUPOOL_E_ARGUMENT, "alignment");
    KIT_FAILS(kit_alloc_as(arena, 1, 768, NULL, 0), GPUPOOL_E_ARGUMENT, "alignment");
    KIT_FAILS(kit_alloc_as(arena, 1, (size_t)1 << 41, NULL, 0), GPUPOOL_E_ARGUMENT, "alignment");
    KIT_FAILS(kit_alloc_as(arena, 1, 0, NULL, 8), GPUPOOL_E_ARGUMENT, "flags");
    KIT_FAILS(kit_alloc_as(arena, 1, 0, NULL, ~0u), GPUPOOL_E_ARGUMENT, "flags");
    CHECK_EQ(kit_stats(arena).allocs, before.allocs);
    finish();
}

/* The largest request and the largest alignment are no mistakes: there is too little memory. */
static void largest_requests(void) {
    begin();
    KIT_FAILS(gpupool_alloc(arena, LARGEST, NULL), GPUPOOL_E_OUT_OF_MEMORY, "");
    KIT_FAILS(kit_alloc_as(arena, LARGEST, (size_t)1 << 40, NULL, 0), GPUPOOL_E_OUT_OF_MEMORY, "");
    CHECK_EQ(kit_stats(arena).failures, before.failures + 2);
    same_as_before();
    CHECK_RESULT(gpupool_trim(arena, 0), GPUPOOL_OK); /* what may have grown for it goes */
    kit_free(arena, block, kit_stream[0]);
    kit_close(arena);
}

static void frees(void) {
    char host[4096];
    gpupool_arena *other;
    void *theirs;
    begin();
    other = kit_open(0);
    theirs = gpupool_alloc(other, 1000, kit_stream[0]);
    CHECK_RESULT(gpupool_free(arena, NULL, kit_stream[0]), GPUPOOL_OK);
    CHECK_EQ(kit_stats(arena).frees, before.frees);
    KIT_REFUSES(gpupool_free(NULL, block, NULL), GPUPOOL_E_ARGUMENT, "arena");
    KIT_REFUSES(gpupool_free(arena, host, NULL), GPUPOOL_E_NOT_OURS, "");
    KIT_REFUSES(gpupool_free(arena, theirs, NULL), GPUPOOL_E_NOT_OURS, "");
    KIT_REFUSES(gpupool_free(arena, (void *)1, NULL), GPUPOOL_E_NOT_OURS, "");
    KIT_REFUSES(gpupool_free(arena, (void *)UINTPTR_MAX, NULL), GPUPOOL_E_NOT_OURS, "");
    KIT_REFUSES(gpupool_free(arena, (char *)block + 1, NULL), GPUPOOL_E_INSIDE, "");
    KIT_REFUSES(gpupool_free(arena, (char *)block + 512, NULL), GPUPOOL_E_INSIDE, "");
    KIT_REFUSES(gpupool_free(arena, (char *)block + 1024, NULL), GPUPOOL_E_DOUBLE_FREE, "");
    kit_free(other, theirs, kit_stream[0]);
    kit_close(other);
    finish();
}

/* Small blocks may lie in a cache, large ones in a list, stitched ones are mapped no more. */
static void double_frees(void) {
    static const size_t bytes[] = {1000, 16384, 20000, 3 << 20, 20 << 20};
    begin();
    for (size_t i = 0; i < KIT_COUNT(bytes); i++) {
        void *freed = gpupool_alloc(arena, bytes[i], kit_stream[0]);
        check_case("%zu bytes", bytes[i]);
        kit_free(arena, freed, kit_stream[0]);
        KIT_REFUSES(gpupool_free(arena, freed, kit_stream[0]), GPUPOOL_E_DOUBLE_FREE, "free");
        KIT_REFUSES(gpupool_free(arena, freed, kit_stream[1]), GPUPOOL_E_DOUBLE_FREE, "free");
        KIT_REFUSES(gpupool_record_stream(arena, freed, kit_stream[0]), GPUPOOL_E_DOUBLE_FREE,
                    "free");
        CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    }
    CHECK_EQ(kit_stats(arena).blocks, 1);
    kit_free(arena, block, kit_stream[0]);
    kit_close(arena);
}

static void record_stream(void) {
    begin();
    KIT_REFUSES(gpupool_record_stream(NULL, block, NULL), GPUPOOL_E_ARGUMENT, "arena");
    KIT_REFUSES(gpupool_record_stream(arena, NULL, NULL), GPUPOOL_E_NOT_OURS, "");
    KIT_REFUSES(gpupool_record_stream(arena, (char *)block + 8, NULL), GPUPOOL_E_INSIDE, "");
    KIT_REFUSES(gpupool_record_stream(arena, block, GPUPOOL_NO_STREAM), GPUPOOL_E_ARGUMENT,
                "stream");
    finish();
}

static void questions(void) {
    gpupool_block found;
    gpupool_stats stats;
    begin();
    KIT_REFUSES(gpupool_get_block(NULL, block, &found), GPUPOOL_E_ARGUMENT, "arena");
    KIT_REFUSES(gpupool_get_block(arena, block, NULL), GPUPOOL_E_ARGUMENT, "block");
    KIT_REFUSES(gpupool_get_block(arena, NULL, &found), GPUPOOL_E_NOT_OURS, "");
    KIT_REFUSES(gpupool_get_stats(NULL, &stats), GPUPOOL_E_ARGUMENT, "arena");
    KIT_REFUSES(gpupool_get_stats(arena, NULL), GPUPOOL_E_ARGUMENT, "stats");
    KIT_REFUSES(gpupool_reset_peaks(NULL), GPUPOOL_E_ARGUMENT, "arena");
    KIT_REFUSES(gpupool_check(NULL), GPUPOOL_E_ARGUMENT, "arena");
    finish();
}

static void settings(void) {
    begin();
    KIT_REFUSES(gpupool_trim(NULL, 0), GPUPOOL_E_ARGUMENT, "arena");
    KIT_REFUSES(gpupool_set_limit(NULL, 0), GPUPOOL_E_ARGUMENT, "arena");
    KIT_REFUSES(gpupool_retire_stream(GPUPOOL_NO_STREAM), GPUPOOL_E_ARGUMENT, "stream");
    KIT_REFUSES(gpupool_free_in_host_function(NULL, block), GPUPOOL_E_ARGUMENT, "arena");
    KIT_REFUSES(gpupool_begin_capture(NULL, kit_stream[0], NULL), GPUPOOL_E_ARGUMENT, "arena");
    KIT_REFUSES(gpupool_begin_capture(arena, kit_stream[0], NULL), GPUPOOL_E_ARGUMENT, "capture");
    KIT_REFUSES(gpupool_end_capture(NULL), GPUPOOL_E_ARGUMENT, "capture");
    KIT_REFUSES(gpupool_release_capture(NULL), GPUPOOL_E_ARGUMENT, "capture");
    CHECK_EQ(kit_stats(arena).limit, 64 * MIB);
    finish();
}

/* The last error is the thread's last failure, and a success leaves it. */
static void last_error(void) {
    begin();
    KIT_FAILS(gpupool_alloc(arena, 0, NULL), GPUPOOL_E_ARGUMENT, "bytes");
    kit_free(arena, gpupool_alloc(arena, 5000, kit_stream[0]), kit_stream[0]);
    CHECK_EQ(gpupool_last_result(), GPUPOOL_E_ARGUMENT);
    CHECK(strstr(gpupool_last_error(), "bytes"));
    CHECK(strcmp(gpupool_result_name(GPUPOOL_E_DOUBLE_FREE), "GPUPOOL_E_DOUBLE_FREE") == 0);
    CHECK(gpupool_result_name((gpupool_result)99));
    kit_free(arena, block, kit_stream[0]);
    kit_close(arena);
}

int main(void) {
    KIT_TEST(requests);
    KIT_TEST(largest_requests);
    KIT_TEST(frees);
    KIT_TEST(double_frees);
    KIT_TEST(record_stream);
    KIT_TEST(questions);
    KIT_TEST(settings);
    KIT_TEST(last_error);
    return check_finish();
}
