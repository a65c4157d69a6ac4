/* A tag wakes while other work uses up the run structs that waking has prepared. */
// build: plain
// build: asan -fsanitize=address,undefined
// build: check2 -DGPUPOOL_CHECK=2
#define GPUPOOL_IMPLEMENTATION
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
static int let_work_go_on(const gpupool_mapping *mapping, void *user) {
    pthread_t thread;
    (void)mapping;
    (void)user;
    if (!work_goes_on) return 0;
    work_goes_on = 0;
    pthread_create(&thread, NULL, use_up_run_structs, NULL);
    pthread_join(thread, NULL);
    return 0;
}

static void work_goes_on_while_a_tag_wakes(void) {
    gpupool_arena_config config;
    gpupool_tag_config can_sleep;
    gpupool_request request;
    char *of_tag[60];
    memset(&config, 0, sizeof config);
    memset(&can_sleep, 0, sizeof can_sleep);
    memset(&request, 0, sizeof request);
    config.source = GPUPOOL_SOURCE_MAPPED;
    config.chunk_bytes = 2 * MIB;
    config.reserve_bytes = 512 * MIB;
    config.no_stitch = 1;
    config.on_map = let_work_go_on;
    arena = kit_create(&config);
    can_sleep.can_sleep = 1;
    CHECK_RESULT(gpupool_tag(arena, "sleeper", &can_sleep, &request.tag), GPUPOOL_OK);
    request.bytes = MIB;
    request.stream = kit_stream[0];
    for (int i = 0; i < 60; i++) of_tag[i] = gpupool_alloc_request(arena, &request);
    CHECK_RESULT(gpupool_sleep(arena, request.tag, GPUPOOL_DISCARD, NULL), GPUPOOL_OK);
    /* Of every three chunks two are vacant, and free memory in the third is beside them. */
    for (int i = 0; i < 60; i++)
        if (i % 6) CHECK_RESULT(gpupool_free(arena, of_tag[i], kit_stream[0]), GPUPOOL_OK);
    work_goes_on = 1;
    CHECK_RESULT(gpupool_wake(arena, request.tag, NULL), GPUPOOL_OK);
    CHECK_EQ(work_goes_on, 0);
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    CHECK_EQ(kit_stats(arena).asleep_bytes, 0);
    CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_E_IN_USE);
    gpi_run *run;
    for (uint64_t at = 0; (run = gpi_tree_next_live(&arena->tree, &at)) != NULL;)
        CHECK_RESULT(gpupool_free(arena, (void *)(uintptr_t)(run->unit * GPUPOOL_UNIT_BYTES),
                                  kit_stream[0]),
                     GPUPOOL_OK);
    kit_close(arena);
}

#endif

int main(void) {
    FAKE_TEST(work_goes_on_while_a_tag_wakes);
    return check_finish();
}
