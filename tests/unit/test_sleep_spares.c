/* A tag wakes while other work uses up the run structs that waking has prepared, or where the host
   has no memory for them. */
// build: plain
// build: asan -fsanitize=address
// build: check2 -DGPUPOOL_CHECK=2
#define GPUPOOL_IMPLEMENTATION
#include "fail_malloc.h"
#include "gpupool.h"
#include "arena_kit.h"

#include <pthread.h>

#if CHECK_FAKE

static gpupool_arena *arena;

static void *use_up_run_structs(void *unused) {
    while (arena->tree.spare_count > 2)
        if (!gpupool_alloc(arena, 64 << 10, kit_stream[0])) break;
    CHECK_EQ(arena->tree.spare_count, 2);
    return unused;
}

static int work_goes_on; /* in the next call of on_map */
static int no_memory;    /* 1: and the host has none from then on */
static int let_work_go_on(const gpupool_mapping *mapping, void *user) {
    pthread_t thread;
    (void)mapping;
    (void)user;
    if (!work_goes_on) return 0;
    work_goes_on = 0;
    pthread_create(&thread, NULL, use_up_run_structs, NULL);
    pthread_join(thread, NULL);
    if (no_memory) fail_malloc_nth(1, 1);
    return 0;
}

static char *of_tag[60];
static int tag;

static void *take(void) {
    gpupool_request request = kit_request(MIB, kit_stream[0], 0);
    request.tag = tag;
    return gpupool_alloc_request(arena, &request);
}

/* A tag with blocks of half a chunk, asleep. Of every three chunks two are vacant, and free memory
   in the third is beside them. */
static void open_asleep(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
    gpupool_tag_config can_sleep;
    memset(&can_sleep, 0, sizeof can_sleep);
    config.chunk_bytes = 2 * MIB;
    config.reserve_bytes = 512 * MIB;
    config.no_stitch = 1;
    config.on_map = let_work_go_on;
    arena = kit_create(&config);
    can_sleep.can_sleep = 1;
    CHECK_RESULT(gpupool_tag(arena, "sleeper", &can_sleep, &tag), GPUPOOL_OK);
    for (int i = 0; i < 60; i++) of_tag[i] = take();
    CHECK_RESULT(gpupool_sleep(arena, tag, GPUPOOL_DISCARD, NULL), GPUPOOL_OK);
    for (int i = 0; i < 60; i++)
        if (i % 6) CHECK_RESULT(gpupool_free(arena, of_tag[i], kit_stream[0]), GPUPOOL_OK);
}

static void close_awake(void) {
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    CHECK_EQ(kit_stats(arena).asleep_bytes, 0);
    CHECK_EQ(gpi_process.asleep, 0); /* no transfer looks for sleeping memory any more */
    CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_E_IN_USE);
    gpi_run *run;
    for (uint64_t at = 0; (run = gpi_tree_next_live(&arena->tree, &at)) != NULL;)
        CHECK_RESULT(gpupool_free(arena, (void *)(uintptr_t)(run->unit * GPUPOOL_UNIT_BYTES),
                                  kit_stream[0]),
                     GPUPOOL_OK);
    kit_close(arena);
}

static void work_goes_on_while_a_tag_wakes(void) {
    open_asleep();
    work_goes_on = 1;
    CHECK_RESULT(gpupool_wake(arena, tag, NULL), GPUPOOL_OK);
    CHECK_EQ(work_goes_on, 0);
    close_awake();
}

/* There were too few from the start, or work has used them up; and the host has no memory. */
static void no_memory_for_run_structs(void) {
    for (int meanwhile = 0; meanwhile < 2; meanwhile++) {
        open_asleep();
        if (!meanwhile) use_up_run_structs(NULL);
        work_goes_on = no_memory = meanwhile;
        if (!meanwhile) fail_malloc_nth(1, 1);
        CHECK_RESULT(gpupool_wake(arena, tag, NULL), GPUPOOL_E_HOST_MEMORY);
        fail_malloc_nth(0, 0);
        CHECK_EQ(work_goes_on, 0);
        CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
        CHECK_RESULT(kit_why(take()), GPUPOOL_E_ASLEEP);
        no_memory = 0;
        CHECK_RESULT(gpupool_wake(arena, tag, NULL), GPUPOOL_OK);
        close_awake();
    }
}

#endif

int main(void) {
    FAKE_TEST(work_goes_on_while_a_tag_wakes);
    FAKE_TEST(no_memory_for_run_structs);
    return check_finish();
}
