// build: tsan -fsanitize=thread
/* One thread lets the arena sleep and wake, while others allocate, free and ask; a second arena of
   the device takes its idle chunks, and is asked for its own. The others' blocks are touched only
   by gpupool, which zeroes them: never memory that sleeps. */
#define _GNU_SOURCE
#include "gpupool.h"
#include "kit.h"

#include <pthread.h>

#define WORKERS 3
#define ROUNDS 30
#define KEPT (5 * MIB)

static gpupool_arena *arena, *other;
static atomic_int is_over;
static atomic_long served, refused;

/* An arena that sleeps says so; the second one only ever runs out. */
static void work_once(gpupool_arena *of, uint64_t *random, cudaStream_t stream) {
    size_t bytes;
    void *block;
    bytes = 1 + check_below(random, check_below(random, 4) ? 20000 : 2 * MIB);
    block = kit_alloc_as(of, bytes, 0, stream, check_below(random, 2) ? GPUPOOL_ZEROED : 0);
    if (!block) {
        gpupool_result why = gpupool_last_result();
        CHECK(why == GPUPOOL_E_OUT_OF_MEMORY || (why == GPUPOOL_E_ASLEEP && of == arena));
        atomic_fetch_add(&refused, 1);
        return;
    }
    atomic_fetch_add(&served, 1);
    if (check_below(random, 4)) {
        kit_free(of, block, stream);
    } else { /* its work has finished, as in a host function */
        CHECK_EQ(cudaStreamSynchronize(stream), cudaSuccess);
        CHECK_RESULT(gpupool_free_in_host_function(of, block), GPUPOOL_OK);
    }
}

static void *work(void *user) {
    uintptr_t number = (uintptr_t)user;
    uint64_t random = number;
    while (!atomic_load(&is_over)) {
        gpupool_stats stats;
        work_once(number % 2 ? other : arena, &random, kit_stream[number + 1]);
        work_once(arena, &random, kit_stream[number + 1]);
        CHECK_RESULT(gpupool_get_stats(arena, &stats), GPUPOOL_OK);
    }
    return NULL;
}

static void others_go_on(void) {
    pthread_t threads[WORKERS];
    void *kept;
    uintptr_t i;
#if CHECK_FAKE
    fake_device_memory(0, 96 * MIB);
#endif
    arena = kit_open(64 * MIB);
    other = kit_open(64 * MIB);
    kept = gpupool_alloc(arena, KEPT, kit_stream[0]);
    kit_write(kept, KEPT, kit_stream[0], 3);
    for (i = 0; i < WORKERS; i++) CHECK_EQ(pthread_create(&threads[i], NULL, work, (void *)i), 0);
    for (i = 0; i < ROUNDS; i++) {
        gpupool_result result = gpupool_sleep(arena, GPUPOOL_KEEP);
        check_case("round %d", (int)i);
        if (!CHECK_RESULT(result, GPUPOOL_OK)) break;
        CHECK_EQ(kit_stats(arena).reserved.now, 0);
        CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
        do result = gpupool_wake(arena);
        while (result == GPUPOOL_E_OUT_OF_MEMORY);
        CHECK_RESULT(result, GPUPOOL_OK);
        kit_verify(kept, KEPT, kit_stream[0], 3);
    }
    atomic_store(&is_over, 1);
    for (i = 0; i < WORKERS; i++) CHECK_EQ(pthread_join(threads[i], NULL), 0);
    CHECK(atomic_load(&served) > 100 && atomic_load(&refused) > 0);
    kit_free(arena, kept, kit_stream[0]);
    kit_close(arena);
    kit_close(other);
}

/* ---- a request that has memory in hand (O8) ---- */

#if CHECK_FAKE
static pthread_t sleeper;
static atomic_int is_asleep;
static int intrusions;

static void *fall_asleep(void *user) {
    (void)user;
    CHECK_RESULT(gpupool_sleep(arena, GPUPOOL_DISCARD), GPUPOOL_OK);
    atomic_store(&is_asleep, 1);
    return NULL;
}

/* In the request, with the lock open: another thread's sleep begins, and must not come far. */
static void intrude(void *user) {
    struct timespec pause = {0, 100000};
    void *block;
    (void)user;
    intrusions++;
    CHECK_EQ(pthread_create(&sleeper, NULL, fall_asleep, NULL), 0);
    while ((block = gpupool_alloc(arena, 1, GPUPOOL_NO_STREAM)) != NULL)
        CHECK_RESULT(gpupool_free(arena, block, GPUPOOL_NO_STREAM), GPUPOOL_OK);
    CHECK_EQ(gpupool_last_result(), GPUPOOL_E_ASLEEP);
    for (int i = 0; i < 300 && !atomic_load(&is_asleep); i++) nanosleep(&pause, NULL);
    CHECK(!atomic_load(&is_asleep));
}

static void sleep_waits_for_requests(void) {
    static const char *const windows[] = {"cuStreamWaitEvent", "cuMemsetD8Async"};
    for (size_t i = 0; i < KIT_COUNT(windows); i++) {
        void *block;
        check_case("%s", windows[i]);
        atomic_store(&is_asleep, 0);
        intrusions = 0;
        arena = kit_open(10 * MIB);
        kit_free(arena, gpupool_alloc(arena, 100, kit_stream[1]), kit_stream[1]);
        block = gpupool_alloc(arena, 8 * MIB, kit_stream[0]);
        kit_hold(kit_stream[0]);
        kit_write(block, 8 * MIB, kit_stream[0], 1);
        kit_free(arena, block, kit_stream[0]);
        fake_before_call(windows[i], 1, intrude, NULL);
        block = kit_alloc_as(arena, 8 * MIB, 0, kit_stream[1], GPUPOOL_ZEROED);
        CHECK_EQ(intrusions, 1);
        kit_let_go(kit_stream[0]);
        CHECK_EQ(pthread_join(sleeper, NULL), 0);
        CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
        CHECK_RESULT(gpupool_wake(arena), GPUPOOL_OK);
        kit_free(arena, block, kit_stream[1]);
        kit_close(arena);
    }
}
#endif

int main(void) {
#if CHECK_FAKE
    KIT_TEST(sleep_waits_for_requests);
#endif
    KIT_TEST(others_go_on);
    return check_finish();
}
