/* A thread has a run in hand, and the lock open, while CUDA makes its stream wait. Another thread,
   which finds no memory meanwhile, does not fail before the first has decided. That one's part goes
   on where the other gives way, so that they always meet. */
// build: plain
// build: asan -fsanitize=address
#define _GNU_SOURCE
#include <sched.h>

static int give_way(void);
#define sched_yield give_way
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#undef sched_yield
#include "arena_kit.h"

#include <pthread.h>
#include <semaphore.h>

#if CHECK_FAKE

#define BYTES (40 * MIB)

static gpupool_arena *arena;
static sem_t has_come, may_go;
static pthread_t first;
static void *first_block;
static int stands; /* 1: the first thread stands with the run in hand */

static void stand_here(void *unused) {
    (void)unused;
    CHECK_EQ(sem_post(&has_come), 0);
    CHECK_EQ(sem_wait(&may_go), 0);
}

static void *take_first(void *unused) {
    gpupool_request request = kit_request(BYTES, kit_stream[0], GPUPOOL_NO_WAIT);
    first_block = gpupool_alloc_request(arena, &request);
    if (!first_block) CHECK_RESULT(gpupool_last_result(), GPUPOOL_E_OUT_OF_MEMORY);
    return unused;
}

static void go_on(void) {
    stands = 0;
    CHECK_EQ(sem_post(&may_go), 0);
    CHECK_EQ(pthread_join(first, NULL), 0);
}
#endif

static int give_way(void) {
#if CHECK_FAKE
    if (stands) {
        go_on();
        return 0;
    }
#endif
    return sched_yield();
}

#if CHECK_FAKE
/* All there is was freed on stream 1, with work before it, and memory is short. */
static void open_short(void) {
    arena = kit_open_unstitched(64 * MIB);
    void *block = kit_alloc(arena, BYTES, kit_stream[1]);
    CHECK_RESULT(kit_why(gpupool_alloc(arena, BYTES, kit_stream[0])), GPUPOOL_E_OUT_OF_MEMORY);
    fake_mode(FAKE_STEPPED);
    kit_fill(kit_stream[1], block, MIB, 1);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[1]), GPUPOOL_OK);
    CHECK_EQ(sem_init(&has_come, 0, 0), 0);
    CHECK_EQ(sem_init(&may_go, 0, 0), 0);
    first_block = NULL;
}

static void *take_second(void) {
    fake_before_call("cuStreamWaitEvent", 1, stand_here, NULL);
    CHECK_EQ(pthread_create(&first, NULL, take_first, NULL), 0);
    CHECK_EQ(sem_wait(&has_come), 0);
    CHECK_EQ(arena->in_hand, 1);
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    stands = 1;
    void *block = gpupool_alloc(arena, BYTES, kit_stream[2]);
    gpupool_result why = kit_why(block);
    CHECK_EQ(stands, 0);
    if (stands) go_on();
    CHECK_RESULT(why, block ? GPUPOOL_OK : GPUPOOL_E_OUT_OF_MEMORY);
    return block;
}

static void close_it(void *block, int stream) {
    kit_fill(kit_stream[stream], block, MIB, 2);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[stream]), GPUPOOL_OK);
    fake_run_all();
    CHECK_EQ(fake_failures(), 0);
    sem_destroy(&has_come);
    sem_destroy(&may_go);
    kit_close(arena);
}

/* Its stream cannot be made to wait, and it may not wait itself: the other gets the memory. */
static void it_comes_back(void) {
    open_short();
    fake_fail_call("cuStreamWaitEvent", 1, 1, 0);
    void *block = take_second();
    fake_fail_clear();
    CHECK(block != NULL && first_block == NULL);
    close_it(block, 2);
}

/* It is gone for good: the other is told so, and does not look for it for ever. */
static void it_stays_taken(void) {
    open_short();
    void *block = take_second();
    CHECK(block == NULL && first_block != NULL);
    close_it(first_block, 0);
}
#endif

int main(void) {
    FAKE_TEST(it_comes_back);
    FAKE_TEST(it_stays_taken);
    return check_finish();
}
