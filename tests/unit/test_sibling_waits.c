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
#endif

int main(void) {
    FAKE_TEST(the_lock_comes_back);
    return check_finish();
}
