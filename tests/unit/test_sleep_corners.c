/* Sleep and waking: what they count, what they wait for, the words of a call of which two things
   fail, what the program is told then, and a wake that just has room enough. */
// build: plain
// build: check2 -DGPUPOOL_CHECK=2
#define GPUPOOL_IMPLEMENTATION
#include <stdlib.h>
static void *malloc_some(size_t bytes) { return bytes ? malloc(bytes) : NULL; }
#define malloc malloc_some /* as on hosts that have nothing of 0 bytes */
#include "fail_malloc.h"
#undef malloc
#include "gpupool.h"
#include "tag_kit.h"

#if CHECK_FAKE

enum { KV = 1, DRAFT = 2 };

/* An arena with the tag alone, of a certain configuration. */
static void open_as(const gpupool_arena_config *config) {
    memset(slot, 0, sizeof slot);
    arena = kit_create(config);
    CHECK_EQ(make_tag("kv", 1, 0), KV);
}

static void open_in_chunks(size_t bytes) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
    config.chunk_bytes = bytes;
    open_as(&config);
}

/* A block of the tag, which sleeps without its content. */
static void *fall_asleep(size_t bytes) {
    void *block = must_take(bytes, KV, 0);
    CHECK_RESULT(sleep_tag(KV, GPUPOOL_DISCARD), GPUPOOL_OK);
    return block;
}

/* An idle chunk beside what sleeps. */
static void leave_an_idle_chunk(void) {
    give(must_take(8 * MIB, 0, 0), 0);
    CHECK_RESULT(gpupool_wait_all(arena), GPUPOOL_OK);
}

/* ---- what is counted ---- */

/* Each part by itself; while it is 0, transfers look for no sleeping memory. */
static void parts_that_sleep_are_counted(void) {
    open_tags(2, 0);
    CHECK_EQ(gpi_process.asleep, 0);
    CHECK_RESULT(sleep_tag(KV, GPUPOOL_DISCARD), GPUPOOL_OK);
    CHECK_EQ(gpi_process.asleep, 1);
    CHECK_RESULT(sleep_tag(GPUPOOL_ALL, GPUPOOL_DISCARD), GPUPOOL_OK);
    CHECK_EQ(gpi_process.asleep, 3);
    CHECK_RESULT(wake_tag(DRAFT), GPUPOOL_OK);
    CHECK_EQ(gpi_process.asleep, 2);
    CHECK_RESULT(wake_tag(GPUPOOL_ALL), GPUPOOL_OK);
    CHECK_EQ(gpi_process.asleep, 0);
    close_tags();
}

static void an_arena_that_a_reset_ends_counts_no_more(void) {
    open_tags(1, 0);
    CHECK_RESULT(sleep_tag(GPUPOOL_ALL, GPUPOOL_DISCARD), GPUPOOL_OK);
    CHECK_EQ(gpi_process.asleep, 2);
    CHECK_EQ(cudaDeviceReset(), cudaSuccess);
    memset(kit_stream, 0, sizeof kit_stream);
    CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_OK);
    CHECK_EQ(gpi_process.asleep, 0);
    CHECK_RESULT(gpupool_ring_destroy(ring), GPUPOOL_OK);
    ring = NULL;
}

/* Chunks without memory, which end, were reserved before they slept. */
static void the_peak_is_of_what_was_reserved(void) {
    open_tags(1, 0);
    void *block = must_take(8 * MIB, KV, 0);
    uint64_t peak = kit_stats(arena).reserved.peak;
    CHECK_RESULT(sleep_tag(KV, GPUPOOL_DISCARD), GPUPOOL_OK);
    give(block, 0);
    CHECK_RESULT(wake_tag(KV), GPUPOOL_OK);
    CHECK_EQ(kit_reserved(arena), 0);
    CHECK_EQ(kit_stats(arena).reserved.peak, peak);
    close_tags();
}

/* ---- what sleep waits for ---- */

static int is_requested(int part) {
    arena->sleep.states[part] = GPI_CHANGING;
    int is = gpi_sleep_is_requested(arena);
    arena->sleep.states[part] = GPI_AWAKE;
    return is;
}

static void calls_under_way(void) {
    open_tags(2, 0);
    gpi_host_lock(&arena->lock);
    arena->searching = 1; /* as of gpupool_sleep itself */
    for (int part = 0; part <= DRAFT; part++) CHECK_EQ(is_requested(part), 0);
    arena->searching = 2;
    for (int part = 0; part <= DRAFT; part++) CHECK_EQ(is_requested(part), part == 0);
    arena->searching = 1;
    arena->in_hand = 1;
    for (int part = 0; part <= DRAFT; part++) CHECK_EQ(is_requested(part), part == 0);
    arena->in_hand = 0;
    arena->seekers[KV] = 1;
    for (int part = 0; part <= DRAFT; part++) CHECK_EQ(is_requested(part), part == KV);
    arena->seekers[KV] = 0;
    arena->seekers[GPUPOOL_TAGS] = 1;
    CHECK_EQ(is_requested(GPUPOOL_TAGS), 1);
    arena->seekers[GPUPOOL_TAGS] = 0;
    arena->chunks.telling = 1;
    for (int part = 0; part <= DRAFT; part++) CHECK_EQ(is_requested(part), 1);
    arena->chunks.telling = 0;
    arena->halfway = 1;
    for (int part = 0; part <= DRAFT; part++) CHECK_EQ(is_requested(part), 1);
    arena->halfway = 0;
    arena->searching = 0;
    gpi_host_unlock(&arena->lock);
    close_tags();
}

static void both_locks_are_taken_again(void) {
    open_tags(0, 0);
    gpi_host_mutex_lock(&arena->growing);
    gpi_host_lock(&arena->lock);
    gpi_sleep_let_others(arena, 0);
    CHECK_EQ(arena->lock.held, 1);
    CHECK_EQ(arena->growing.next, arena->growing.serving + 1);
    gpi_host_unlock(&arena->lock);
    gpi_host_mutex_unlock(&arena->growing);
    close_tags();
}

static void *got; /* by another thread, while sleep waits for the device */

static void take_one(void *unused) {
    (void)unused;
    CHECK_RESULT(kit_why(got = take(MIB, 0, 0)), GPUPOOL_E_ASLEEP);
}

/* Free memory is nobody's from the start, and not only after the wait for the device. */
static void free_memory_is_set_aside_at_once(void) {
    open_tags(0, 0);
    give(must_take(MIB, 0, 0), 0);
    CHECK_RESULT(gpupool_wait_all(arena), GPUPOOL_OK);
    fake_before_call("cuMemFree", 1, take_one, NULL); /* the wait for the device */
    CHECK_RESULT(sleep_tag(GPUPOOL_ALL, GPUPOOL_DISCARD), GPUPOOL_OK);
    CHECK(got == NULL);
    CHECK_RESULT(wake_tag(GPUPOOL_ALL), GPUPOOL_OK);
    close_tags();
}

/* ---- bounds ---- */

/* The last tag of as many as there can be; and the backup is just as large as it may be. */
static void the_last_of_all_tags(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
    memset(slot, 0, sizeof slot);
    config.backup_bytes = 8 * MIB;
    arena = kit_create(&config);
    for (int tag = 1; tag <= GPUPOOL_TAGS; tag++) CHECK_EQ(make_tag("t", 1, 0), tag);
    void *block = must_take(8 * MIB, GPUPOOL_TAGS, 0);
    kit_fill(kit_stream[0], block, 8 * MIB, 3);
    for (int cycle = 0; cycle < 2; cycle++) {
        CHECK_RESULT(sleep_tag(GPUPOOL_TAGS, GPUPOOL_KEEP), GPUPOOL_OK);
        CHECK_EQ(gpi_process.asleep, 1);
        CHECK_EQ(arena->sleep.backup_bytes, 8 * MIB);
        CHECK_RESULT(wake_tag(GPUPOOL_TAGS), GPUPOOL_OK);
        CHECK_EQ(gpi_process.asleep, 0);
        CHECK_EQ(arena->sleep.backup_bytes, 0);
        kit_expect(kit_stream[0], block, 8 * MIB, 3);
    }
    give(block, 0);
    close_tags();
}

/* On a host, too, that has nothing of 0 bytes. */
static void nothing_to_keep(void) {
    open_tags(1, 0);
    for (int all = 0; all < 2; all++) {
        CHECK_RESULT(sleep_tag(all ? GPUPOOL_ALL : KV, GPUPOOL_KEEP), GPUPOOL_OK);
        CHECK_RESULT(wake_tag(GPUPOOL_ALL), GPUPOOL_OK);
    }
    close_tags();
}

/* ---- failures ---- */

/* Else the block could be had again while it sleeps. */
static void no_memory_for_the_use_of_a_block(void) {
    open_tags(1, 0);
    void *block = must_take(MIB, KV, 0);
    fail_malloc_nth(1, 1);
    CHECK_RESULT(sleep_tag(KV, GPUPOOL_DISCARD), GPUPOOL_E_HOST_MEMORY);
    CHECK_EQ(fail_malloc_fired, 1);
    fail_malloc_nth(0, 0);
    CHECK_EQ(stats_of(KV).asleep_bytes, 0);
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    give(block, 0);
    close_tags();
}

/* Kernels may still use the memory then, so it stays. */
static void the_wait_for_kernels_fails(void) {
    open_tags(1, 0);
    void *block = must_take(8 * MIB, KV, 0);
    fake_fail_call("cuMemFree", 1, 0, 0);
    CHECK_RESULT(sleep_tag(KV, GPUPOOL_DISCARD), GPUPOOL_E_CUDA);
    CHECK_EQ(fake_fail_fired(), 1);
    fake_fail_clear();
    CHECK_EQ(stats_of(KV).asleep_bytes, 0);
    CHECK_EQ(kit_reserved(arena), 8 * MIB);
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    CHECK_RESULT(sleep_tag(KV, GPUPOOL_DISCARD), GPUPOOL_OK);
    CHECK_RESULT(wake_tag(KV), GPUPOOL_OK);
    give(block, 0);
    close_tags();
}

/* The first failure is the cause, and is told; a second one, of undoing, is not. */
static void the_first_failure_is_told(void) {
    void *block[2];
    open_tags(1, 0);
    for (int i = 0; i < 2; i++) block[i] = must_take(8 * MIB, KV, 0);
    fake_fail_call("cuMemUnmap", 2, 0, 0);
    fake_fail_call("cuMemMap", 1, 0, 0);
    CHECK_RESULT(sleep_tag(KV, GPUPOOL_DISCARD), GPUPOOL_E_CUDA);
    CHECK_EQ(fake_fail_fired(), 2);
    CHECK(strstr(gpupool_last_error(), "cuMemUnmap") != NULL);
    fake_fail_clear();
    CHECK_RESULT(wake_tag(KV), GPUPOOL_OK);
    CHECK_RESULT(sleep_tag(KV, GPUPOOL_DISCARD), GPUPOOL_OK);
    size_t used = fake_used_bytes(0);
    for (int twice = 1; twice >= 0; twice--) {
        fake_fail_call("cuMemMap", 2, 0, 0);
        if (twice) fake_fail_call("cuMemUnmap", 1, 0, 0);
        CHECK_RESULT(wake_tag(KV), GPUPOOL_E_CUDA);
        CHECK_EQ(fake_fail_fired(), 1 + twice);
        CHECK(strstr(gpupool_last_error(), "cuMemMap") != NULL);
        fake_fail_clear();
        CHECK_EQ(fake_used_bytes(0), used + kit_reserved(arena));
    }
    CHECK_EQ(fake_used_bytes(0), used);
    CHECK_RESULT(wake_tag(KV), GPUPOOL_OK);
    for (int i = 0; i < 2; i++) give(block[i], 0);
    close_tags();
}

/* Whatever CUDA refuses: a part without all its memory is not awake. */
static void memory_is_refused_for_another_reason(void) {
    open_tags(1, 0);
    void *block = must_take(8 * MIB, KV, 0);
    kit_fill(kit_stream[0], block, 8 * MIB, 3);
    CHECK_RESULT(sleep_tag(KV, GPUPOOL_KEEP), GPUPOOL_OK);
    fake_fail_call("cuMemCreate", 1, 0, CUDA_ERROR_UNKNOWN);
    CHECK_RESULT(wake_tag(KV), GPUPOOL_E_CUDA);
    fake_fail_clear();
    CHECK(stats_of(KV).asleep_bytes >= 8 * MIB);
    CHECK_RESULT(wake_tag(KV), GPUPOOL_OK);
    kit_expect(kit_stream[0], block, 8 * MIB, 3);
    give(block, 0);
    close_tags();
}

/* The driver refuses memory by these, one after the other, and leaves nonsense behind. */
static CUresult refusals[3];
static int refused_so_far;

static CUresult CUDAAPI refuse(CUmemGenericAllocationHandle *handle, size_t bytes,
                               const CUmemAllocationProp *properties, unsigned long long flags) {
    (void)bytes, (void)properties, (void)flags;
    *handle = 0xbad;
    return refusals[refused_so_far++];
}

/* The second try is only for a device that was full; what it meets is told. */
static void refused_once_more_for_another_reason(void) {
    open_tags(1, 0);
    void *block = fall_asleep(8 * MIB);
    gpi_driver driver = arena->chunks.driver;
    refusals[0] = CUDA_ERROR_OUT_OF_MEMORY;
    refusals[1] = CUDA_ERROR_UNKNOWN;
    refused_so_far = 0;
    arena->chunks.driver.create = refuse;
    CHECK_RESULT(wake_tag(KV), GPUPOOL_E_CUDA);
    CHECK_EQ(refused_so_far, 2);
    arena->chunks.driver.create = driver.create;
    CHECK(stats_of(KV).asleep_bytes >= 8 * MIB);
    CHECK_RESULT(wake_tag(KV), GPUPOOL_OK);
    kit_fill(kit_stream[0], block, 8 * MIB, 1);
    give(block, 0);
    close_tags();
}

/* ---- what the program is told ---- */

static void open_registered(void) {
    gpupool_arena_config config = registry_config(GPUPOOL_SOURCE_MAPPED, 0);
    registry_clear();
    open_as(&config);
}

/* A part that stays awake is told of again. */
static void told_of_what_could_not_go(void) {
    void *block[2];
    open_registered();
    for (int i = 0; i < 2; i++) block[i] = must_take(8 * MIB, KV, 0);
    size_t count = known.count;
    CHECK(count >= 2);
    fake_fail_call("cuMemUnmap", 2, 0, 0);
    CHECK_RESULT(sleep_tag(KV, GPUPOOL_DISCARD), GPUPOOL_E_CUDA);
    fake_fail_clear();
    CHECK_EQ(stats_of(KV).asleep_bytes, 0);
    CHECK_EQ(known.count, count);
    registry_verify();
    for (int i = 0; i < 2; i++) give(block[i], 0);
    close_tags();
    CHECK_EQ(known.count, 0);
}

static void *to_free; /* by the next call of on_map */

static int free_it(const gpupool_mapping *mapping, void *unused) {
    void *block = to_free;
    (void)mapping, (void)unused;
    to_free = NULL;
    if (!block) return 0;
    give(block, 0);
    CHECK_RESULT(gpupool_wait_all(arena), GPUPOOL_OK); /* it cannot go yet */
    CHECK(kit_stats(arena).pending.now > 0);
    return 0;
}

/* A block that is freed while its part wakes is free memory in the end, without another call. */
static void freed_by_on_map(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
    config.on_map = free_it;
    open_as(&config);
    to_free = fall_asleep(8 * MIB);
    CHECK_RESULT(wake_tag(KV), GPUPOOL_OK);
    CHECK(to_free == NULL);
    CHECK_EQ(kit_stats(arena).pending.now, 0);
    close_tags();
}

/* Nor does one wait that is freed while its part falls asleep, and that fails. */
static void freed_by_on_unmap(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
    config.on_unmap = free_it;
    open_as(&config);
    to_free = must_take(8 * MIB, KV, 0);
    fake_fail_call("cuMemUnmap", 1, 0, 0);
    CHECK_RESULT(sleep_tag(KV, GPUPOOL_DISCARD), GPUPOOL_E_CUDA);
    fake_fail_clear();
    CHECK(to_free == NULL);
    CHECK_EQ(kit_stats(arena).pending.now, 0);
    close_tags();
}

/* ---- how it is done ---- */

/* What lies side by side is copied at once, whatever chunks it is in. */
static void neighbours_are_one_copy(void) {
    void *block[4];
    open_in_chunks(2 * MIB);
    for (int i = 0; i < 4; i++) block[i] = must_take(2 * MIB, KV, 0);
    for (int i = 1; i < 4; i++) CHECK((char *)block[i] == (char *)block[i - 1] + 2 * MIB);
    long copies = fake_calls("cuMemcpyAsync");
    CHECK_RESULT(sleep_tag(KV, GPUPOOL_KEEP), GPUPOOL_OK);
    CHECK_EQ(fake_calls("cuMemcpyAsync"), copies + 1);
    CHECK_RESULT(wake_tag(KV), GPUPOOL_OK);
    CHECK_EQ(fake_calls("cuMemcpyAsync"), copies + 2);
    for (int i = 0; i < 4; i++) give(block[i], 0);
    close_tags();
}

/* Free memory of two streams side by side makes a block only as a stitch, over one chunk here. */
static void a_stitch_of_one_chunk(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
    void *block[2];
    config.limit_bytes = config.chunk_bytes = 2 * MIB;
    open_as(&config);
    for (int i = 0; i < 2; i++) {
        block[i] = must_take(MIB, 0, i + 1);
        fake_hold(kit_stream[i + 1], 1);
        kit_fill(kit_stream[i + 1], block[i], MIB, 1);
    }
    for (int i = 0; i < 2; i++) give(block[i], i + 1);
    void *whole = must_take(2 * MIB, 0, 0);
    CHECK_EQ(kit_stats(arena).stitches, 1);
    for (int i = 0; i < 2; i++) fake_hold(kit_stream[i + 1], 0);
    kit_mark(kit_stream[0], whole, 2 * MIB, 2);
    CHECK_RESULT(sleep_tag(GPUPOOL_ALL, GPUPOOL_KEEP), GPUPOOL_OK);
    CHECK_RESULT(wake_tag(GPUPOOL_ALL), GPUPOOL_OK);
    kit_expect_mark(kit_stream[0], whole, 2 * MIB, 2);
    give(whole, 0);
    close_tags();
}

/* ---- just enough room ---- */

/* The limit has room for all of it and no more, and the device for none at the first try. */
static void the_limit_is_just_enough(void) {
    open_tags(1, 0);
    void *block = fall_asleep(8 * MIB);
    CHECK_RESULT(gpupool_set_limit(arena, kit_reserved(arena) + stats_of(KV).asleep_bytes),
                 GPUPOOL_OK);
    fake_fail_call("cuMemCreate", 1, 0, CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_RESULT(wake_tag(KV), GPUPOOL_OK);
    CHECK_EQ(fake_fail_fired(), 1);
    fake_fail_clear();
    give(block, 0);
    close_tags();
}

/* What is idle stays where all of it would not be enough, and goes where it is just enough. */
static void idle_chunks_under_a_limit(void) {
    open_in_chunks(8 * MIB);
    void *block = must_take(16 * MIB, KV, 0), *live = must_take(8 * MIB, 0, 0);
    CHECK_RESULT(sleep_tag(KV, GPUPOOL_DISCARD), GPUPOOL_OK);
    leave_an_idle_chunk();
    CHECK_EQ(kit_reserved(arena), 16 * MIB);
    CHECK_RESULT(gpupool_set_limit(arena, 24 * MIB - 1), GPUPOOL_OK);
    CHECK_RESULT(wake_tag(KV), GPUPOOL_E_OUT_OF_MEMORY);
    CHECK_EQ(last_verdict().cause, GPUPOOL_CAUSE_LIMIT);
    CHECK_EQ(last_verdict().granted_bytes, 8 * MIB);
    CHECK_EQ(kit_reserved(arena), 16 * MIB);
    CHECK_RESULT(gpupool_set_limit(arena, 24 * MIB), GPUPOOL_OK);
    CHECK_RESULT(wake_tag(KV), GPUPOOL_OK);
    CHECK_EQ(kit_reserved(arena), 24 * MIB);
    give(block, 0);
    give(live, 0);
    close_tags();
}

/* Where its verdict will be the stack has had other values. */
static void leave_a_mark_on_the_stack(void) {
    unsigned char used[16384];
    memset(used, 0xa5, sizeof used);
    __asm__ volatile("" : : "r"(used) : "memory"); /* or the compiler leaves the memset out */
}

static gpupool_verdict wake_in_vain(void) {
    leave_a_mark_on_the_stack();
    CHECK_RESULT(wake_tag(KV), GPUPOOL_E_OUT_OF_MEMORY);
    gpupool_verdict verdict = last_verdict();
    CHECK_EQ(verdict.kept_bytes, 0);
    CHECK_EQ(verdict.pending_bytes, 0);
    CHECK_EQ(verdict.pending_streams, 0);
    CHECK_EQ(verdict.largest_block_bytes, 0);
    for (int i = 0; i < GPUPOOL_HOLDERS; i++) CHECK_EQ(verdict.holders[i].blocks, 0);
    return verdict;
}

/* Who has most of the device: others, or this arena, if it has no less than they have. */
static void who_has_the_device(void) {
    size_t free_bytes, total_bytes;
    fake_device_memory(0, 64 * MIB);
    open_tags(1, 0);
    void *block = fall_asleep(32 * MIB);
    void *live = must_take(24 * MIB, 0, 0);
    CHECK_EQ(cudaMemGetInfo(&free_bytes, &total_bytes), cudaSuccess);
    size_t others = total_bytes - free_bytes - kit_reserved(arena);
    for (size_t more = 0; more < 2; more++) {
        fake_other_process(0, kit_reserved(arena) - others + more);
        gpupool_verdict verdict = wake_in_vain();
        CHECK_EQ(verdict.others_bytes, kit_reserved(arena) + more);
        CHECK_EQ(verdict.cause, more ? GPUPOOL_CAUSE_OTHERS : GPUPOOL_CAUSE_DEVICE_FULL);
        CHECK_EQ(strstr(verdict.sentence, "own blocks") == NULL, more);
    }
    fake_fail_call("cuMemGetInfo", 1, 1, 0);
    gpupool_verdict unknown = wake_in_vain();
    CHECK_EQ(unknown.device_total_bytes, 0); /* neither is known */
    CHECK_EQ(unknown.device_free_bytes, 0);
    fake_fail_clear();
    fake_other_process(0, 0);
    CHECK_RESULT(wake_tag(KV), GPUPOOL_OK);
    give(block, 0);
    give(live, 0);
    close_tags();
}

static void a_small_block_comes_and_goes(void *unused) {
    (void)unused;
    give(must_take(4 * KIB, 0, 0), 0);
    gpi_host_lock(&arena->lock); /* as gpupool_wait_all does: what it used is done */
    gpi_arena_empty_all(arena, gpi_arena_empty_free);
    gpi_host_unlock(&arena->lock);
    CHECK_RESULT(gpi_event_wait_device(&arena->clocks, &arena->chunks.driver), GPUPOOL_OK);
}

/* An idle chunk makes room on the device, although another thread had a small block in it
   meanwhile. */
static void an_idle_chunk_makes_room(void) {
    size_t free_bytes, total_bytes;
    open_in_chunks(8 * MIB);
    void *block = fall_asleep(8 * MIB);
    leave_an_idle_chunk();
    CHECK_EQ(cudaMemGetInfo(&free_bytes, &total_bytes), cudaSuccess);
    fake_other_process(0, free_bytes - 2 * MIB);
    fake_before_call("cuMemCreate", 1, a_small_block_comes_and_goes, NULL);
    CHECK_RESULT(wake_tag(KV), GPUPOOL_OK);
    CHECK_EQ(kit_reserved(arena), 8 * MIB);
    fake_other_process(0, 0);
    give(block, 0);
    close_tags();
}

#endif

int main(void) {
    FAKE_TEST(parts_that_sleep_are_counted);
    FAKE_TEST(an_arena_that_a_reset_ends_counts_no_more);
    FAKE_TEST(the_peak_is_of_what_was_reserved);
    FAKE_TEST(calls_under_way);
    FAKE_TEST(both_locks_are_taken_again);
    FAKE_TEST(free_memory_is_set_aside_at_once);
    FAKE_TEST(the_last_of_all_tags);
    FAKE_TEST(nothing_to_keep);
    FAKE_TEST(no_memory_for_the_use_of_a_block);
    FAKE_TEST(the_wait_for_kernels_fails);
    FAKE_TEST(the_first_failure_is_told);
    FAKE_TEST(memory_is_refused_for_another_reason);
    FAKE_TEST(refused_once_more_for_another_reason);
    FAKE_TEST(told_of_what_could_not_go);
    FAKE_TEST(freed_by_on_map);
    FAKE_TEST(freed_by_on_unmap);
    FAKE_TEST(neighbours_are_one_copy);
    FAKE_TEST(a_stitch_of_one_chunk);
    FAKE_TEST(the_limit_is_just_enough);
    FAKE_TEST(idle_chunks_under_a_limit);
    FAKE_TEST(who_has_the_device);
    FAKE_TEST(an_idle_chunk_makes_room);
    return check_finish();
}
