/* An arena whose lock another thread has is asked again until that gives the lock back, before a
   request goes without its idle memory. The lock comes back where the request gives way, so that
   they always meet. */
#define _GNU_SOURCE
#include <sched.h>

static int give_way(void);
#define sched_yield give_way
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#undef sched_yield
#include "arena_kit.h"

static gpupool_arena *taken; /* whose lock is taken; NULL: none is */
static int gives;            /* times that the request gives way yet, before the lock comes back */

static int give_way(void) {
    if (!taken || gives-- > 0) return 0;
    gpi_host_mutex_unlock(&taken->growing);
    taken = NULL;
    return 0;
}

#if CHECK_FAKE
static void the_lock_comes_back(void) {
    for (int times = 0; times < 8; times++) {
        check_case("%d times", times);
        fake_device_memory(0, 64 * MIB);
        gpupool_arena *first = kit_open(GPUPOOL_SOURCE_MAPPED);
        gpupool_arena *second = kit_open(GPUPOOL_SOURCE_MAPPED);
        void *block = kit_alloc(first, 48 * MIB, kit_stream[1]);
        CHECK_RESULT(gpupool_free(first, block, kit_stream[1]), GPUPOOL_OK);
        gives = times;
        taken = first;
        gpi_host_mutex_lock(&first->growing);
        block = gpupool_alloc(second, 32 * MIB, kit_stream[0]);
        CHECK_RESULT(kit_why(block), GPUPOOL_OK);
        CHECK(taken == NULL);
        if (taken) gpi_host_mutex_unlock(&first->growing);
        taken = NULL;
        if (block) CHECK_RESULT(gpupool_free(second, block, kit_stream[0]), GPUPOOL_OK);
        kit_close(second);
        kit_close(first);
    }
}

static gpupool_arena *asks;
static int waits; /* how often the host waited, with the lock open */

/* As another thread, which needs memory while the host waits. */
static void use_it_meanwhile(void *unused) {
    (void)unused;
    waits += gpi_host_mutex_try(&asks->growing);
    if (!waits) return;
    gpi_host_mutex_unlock(&asks->growing);
    CHECK_RESULT(gpupool_check(asks), GPUPOOL_OK);
    CHECK_RESULT(gpupool_free(asks, kit_alloc(asks, 4 * MIB, kit_stream[0]), kit_stream[0]),
                 GPUPOOL_OK);
}

/* `asks`, and another arena beside it on a device of 64 MiB. */
static gpupool_arena *open_beside(void) {
    fake_device_memory(0, 64 * MIB);
    asks = kit_open(GPUPOOL_SOURCE_MAPPED);
    return kit_open(GPUPOOL_SOURCE_MAPPED);
}

static void reserve(void) {
    gpupool_tag_config config;
    int tag;
    memset(&config, 0, sizeof config);
    config.reserve_bytes = 32 * MIB;
    CHECK_RESULT(gpupool_tag(asks, "kv", &config, &tag), GPUPOOL_OK);
}

/* For the reserve of a tag the host waits until a sibling's memory is finished: no request of the
   tag's arena has to wait for that. */
static void a_reserve_waits_with_no_lock(void) {
    gpupool_arena *first = open_beside();
    void *block = kit_alloc(first, 48 * MIB, kit_stream[1]);
    fake_mode(FAKE_STEPPED);
    kit_fill(kit_stream[1], block, 4096, 1);
    CHECK_RESULT(gpupool_free(first, block, kit_stream[1]), GPUPOOL_OK);
    waits = 0;
    fake_before_call("cuMemFree", 1, use_it_meanwhile, NULL);
    reserve();
    CHECK_EQ(waits, 1);
    fake_mode(FAKE_EAGER);
    kit_close(asks);
    kit_close(first);
}

/* The sibling has some idle memory, and more that is pending: it gives both. */
static void a_reserve_takes_what_comes_later(void) {
    gpupool_arena *first = open_beside();
    void *pending = kit_alloc(first, 40 * MIB, kit_stream[1]);
    void *between = kit_alloc(first, 2 * MIB, kit_stream[1]);
    void *idle = kit_alloc(first, 8 * MIB, kit_stream[1]);
    CHECK_RESULT(gpupool_free(first, idle, kit_stream[1]), GPUPOOL_OK);
    CHECK_RESULT(gpupool_wait_all(first), GPUPOOL_OK);
    fake_mode(FAKE_STEPPED);
    kit_fill(kit_stream[1], pending, 4096, 1);
    CHECK_RESULT(gpupool_free(first, pending, kit_stream[1]), GPUPOOL_OK);
    reserve();
    fake_mode(FAKE_EAGER);
    CHECK_RESULT(gpupool_free(first, between, kit_stream[1]), GPUPOOL_OK);
    kit_close(asks);
    kit_close(first);
}
#endif

int main(void) {
    FAKE_TEST(the_lock_comes_back);
    FAKE_TEST(a_reserve_waits_with_no_lock);
    FAKE_TEST(a_reserve_takes_what_comes_later);
    return check_finish();
}
