/* Questions about an arena whose answer changes between two steps: a block is freed while its
   mappings are listed, a chunk goes, an event is being recorded, a limit is set again. */
// build: plain
// build: asan -fsanitize=address
#include <stdlib.h>

static void (*before_malloc)(void); /* run before the next but one */
static int mallocs_before, mallocs_fail;
static void *told_malloc(size_t bytes) {
    void (*run)(void) = mallocs_before-- == 0 ? before_malloc : NULL;
    if (run) run();
    return mallocs_fail ? NULL : malloc(bytes);
}
#define GPUPOOL_MALLOC(bytes) told_malloc(bytes)
#define GPUPOOL_REALLOC(at, bytes) realloc(at, bytes)
#define GPUPOOL_FREE(at) free(at)
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#define STRIPES 64
#include "stripe_kit.h"

#include <pthread.h>

#if CHECK_FAKE

/* ---- a block's mappings ---- */

static char *listed;
static int mappings;

static void free_listed(void) { put(listed, 0); }

static int count_mapping(const gpupool_mapping *mapping, void *unused) {
    (void)unused;
    mappings += mapping->bytes > 0;
    return 0;
}

/* It has more of them than there is room for at first: freed before the second look, it is gone. */
static void freed_while_it_is_listed(void) {
    stripe_open();
    listed = stripe_stitched(LAID * STRIPE_BYTES, 0);
    mappings = 0;
    CHECK_RESULT(gpupool_walk_chunks(arena, listed, count_mapping, NULL), GPUPOOL_OK);
    CHECK_EQ(mappings, LAID);
    mappings = 0;
    mallocs_before = 1;
    before_malloc = free_listed;
    CHECK_RESULT(gpupool_walk_chunks(arena, listed, count_mapping, NULL), GPUPOOL_E_DOUBLE_FREE);
    before_malloc = NULL;
    CHECK_EQ(mappings, 0);
    stripe_close();
}

/* ---- the block around an address ---- */

static void no_block_is_there(void) {
    gpupool_block found;
    stripe_open();
    CHECK_RESULT(gpupool_get_block(arena, stripe[1] + 5000, &found), GPUPOOL_E_INSIDE);
    CHECK(found.memory == stripe[1]);
    char *end = stripe[STRIPES - 1] + GIB; /* of the arena, and never mapped */
    CHECK_RESULT(gpupool_get_block(arena, end, &found), GPUPOOL_E_DOUBLE_FREE);
    CHECK(found.memory == NULL);
    stripe_close();
}

/* Memory of several chunks, at its second address. */
static void inside_a_stitched_block(void) {
    gpupool_block found;
    stripe_open();
    char *block = stripe_stitched(LAID * STRIPE_BYTES, 0);
    CHECK_RESULT(gpupool_get_block(arena, block + STRIPE_BYTES + 1, &found), GPUPOOL_E_INSIDE);
    CHECK(found.memory == block);
    CHECK_EQ(found.bytes, LAID * STRIPE_BYTES);
    put(block, 0);
    stripe_close();
}

/* ---- a wait for a stream ---- */

static void *wait_for_the_stream(void *unused) {
    CHECK_RESULT(gpupool_wait_stream(arena, kit_stream[0]), GPUPOOL_OK);
    CHECK_EQ(fake_pending(kit_stream[0]), 0);
    return unused;
}

static void wait_meanwhile(void *unused) {
    pthread_t thread;
    CHECK_EQ(pthread_create(&thread, NULL, wait_for_the_stream, unused), 0);
    CHECK_EQ(pthread_join(thread, NULL), 0);
}

/* Another thread is recording the stream's event: the device is waited for instead. */
static void an_event_is_being_recorded(void) {
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 64 * MIB);
    void *other = get(MIB, 1), *block = get(32 * MIB, 0);
    fake_mode(FAKE_STEPPED);
    kit_fill(kit_stream[0], block, 4096, 1);
    fake_before_call("cuEventRecord", 1, wait_meanwhile, NULL);
    uint64_t waits = kit_stats(arena).host_syncs;
    put(block, 0);
    CHECK_EQ(kit_stats(arena).host_syncs, waits + 1);
    put(other, 1);
    fake_mode(FAKE_EAGER);
    kit_close(arena);
}

/* ---- a limit ---- */

static int limits_set;

static int set_another_limit(const gpupool_mapping *mapping, void *unused) {
    (void)mapping, (void)unused;
    if (limits_set++ == 0) CHECK_RESULT(gpupool_set_limit(arena, GIB), GPUPOOL_OK);
    return 0;
}

/* Lowering it fails when a chunk does not go. What the program has set meanwhile stays. */
static void a_limit_set_meanwhile(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
    for (int meanwhile = 0; meanwhile < 2; meanwhile++) {
        config.limit_bytes = 64 * MIB;
        config.on_unmap = meanwhile ? set_another_limit : NULL;
        arena = kit_create(&config);
        put(get(32 * MIB, 0), 0);
        limits_set = 0;
        fake_fail_call("cuMemUnmap", 1, 0, 0);
        CHECK_RESULT(gpupool_set_limit(arena, 4 * MIB), GPUPOOL_E_CUDA);
        fake_fail_clear();
        CHECK_EQ(limits_set > 0, meanwhile);
        CHECK_EQ(kit_limit(arena), meanwhile ? GIB : 64 * MIB);
        kit_close(arena);
    }
}

/* Nothing is given back where CUDA cannot be called, and that is told. */
static void a_limit_that_cannot_be_met(void) {
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 64 * MIB);
    void *block = get(32 * MIB, 0);
    fake_fail_call("cuThreadExchangeStreamCaptureMode", 1, 0, 0);
    CHECK_RESULT(gpupool_set_limit(arena, 16 * MIB), GPUPOOL_E_CUDA);
    CHECK_EQ(fake_fail_fired(), 1);
    fake_fail_clear();
    CHECK_EQ(kit_limit(arena), 64 * MIB);
    put(block, 0);
    kit_close(arena);
}

/* Another thread grows, which may take long: only a limit that is lower has to wait for it. */
static void no_wait_for_a_limit_that_is_no_lower(void) {
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 64 * MIB);
    gpi_host_mutex_lock(&arena->growing);
    CHECK_RESULT(gpupool_set_limit(arena, 64 * MIB), GPUPOOL_OK);
    CHECK_RESULT(gpupool_set_limit(arena, 65 * MIB), GPUPOOL_OK);
    gpi_host_mutex_unlock(&arena->growing);
    CHECK_EQ(kit_limit(arena), 65 * MIB);
    kit_close(arena);
}

/* Nor does CUDA have to be called, if all that is reserved fits. */
static void no_call_for_a_limit_that_is_met(void) {
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 64 * MIB);
    void *block = get(24 * MIB, 0), *other = get(8 * MIB, 1);
    put(other, 1);
    CHECK_EQ(kit_reserved(arena), 32 * MIB);
    long calls = fake_calls("cuEventRecord") + fake_calls("cuEventQuery");
    CHECK_RESULT(gpupool_set_limit(arena, 48 * MIB), GPUPOOL_OK);
    CHECK_RESULT(gpupool_set_limit(arena, 32 * MIB), GPUPOOL_OK);
    CHECK_EQ(fake_calls("cuEventRecord") + fake_calls("cuEventQuery"), calls);
    CHECK_EQ(kit_reserved(arena), 32 * MIB);
    put(block, 0);
    kit_close(arena);
}

/* Where the host has no memory for a copy of the arena, a verdict has its figures all the same. */
static void a_verdict_without_a_copy(void) {
    gpupool_verdict v;
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 64 * MIB);
    void *block = get(40 * MIB, 0), *rest = get(24 * MIB, 1);
    fake_mode(FAKE_STEPPED);
    kit_fill(kit_stream[0], block, 4096, 1);
    put(block, 0);
    mallocs_fail = 1;
    CHECK_RESULT(gpupool_would_fit(arena, 64 * MIB, &v), GPUPOOL_E_OUT_OF_MEMORY);
    mallocs_fail = 0;
    CHECK_EQ(v.pending_bytes, 40 * MIB);
    CHECK_EQ(v.granted_bytes, 24 * MIB);
    fake_mode(FAKE_EAGER);
    put(rest, 1);
    kit_close(arena);
}

/* What may be above a limit is what was reserved when it was set, and no more than that. */
static void what_may_stay_above_a_limit(void) {
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 64 * MIB);
    void *block[2] = {get(24 * MIB, 0), get(24 * MIB, 0)};
    CHECK_RESULT(gpupool_set_limit(arena, 16 * MIB), GPUPOOL_OK);
    CHECK_EQ(arena->ledger.over_bytes, 48 * MIB);
    put(block[0], 0);
    fake_fail_call("cuMemUnmap", 2, 0, 0);
    CHECK_RESULT(gpupool_set_limit(arena, 8 * MIB), GPUPOOL_E_CUDA); /* after some was given back */
    fake_fail_clear();
    CHECK_EQ(kit_limit(arena), 16 * MIB);
    CHECK(kit_reserved(arena) < 48 * MIB);
    CHECK_EQ(arena->ledger.over_bytes, kit_reserved(arena));
    put(block[1], 0);
    CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
    CHECK_RESULT(gpupool_set_limit(arena, 20 * MIB), GPUPOOL_OK);
    CHECK_EQ(arena->ledger.over_bytes, 0);
    kit_close(arena);
}
#endif

int main(void) {
    FAKE_TEST(freed_while_it_is_listed);
    FAKE_TEST(no_block_is_there);
    FAKE_TEST(inside_a_stitched_block);
    FAKE_TEST(an_event_is_being_recorded);
    FAKE_TEST(a_limit_set_meanwhile);
    FAKE_TEST(a_limit_that_cannot_be_met);
    FAKE_TEST(no_wait_for_a_limit_that_is_no_lower);
    FAKE_TEST(no_call_for_a_limit_that_is_met);
    FAKE_TEST(a_verdict_without_a_copy);
    FAKE_TEST(what_may_stay_above_a_limit);
    return check_finish();
}
