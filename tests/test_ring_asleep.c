/* Threads of the ring with nothing to do: who waits long for a ticket sleeps, who uploads through a
   full ring leaves the watch to a worker that has it, and a worker that is wanted no more leaves it
   to others; one that is wanted does not rely on who has it. What happens meanwhile is done where
   they would sleep: nothing here hangs on time. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>

static int give_way(void);
static int sleep_at(pthread_cond_t *turned, pthread_mutex_t *mutex, const struct timespec *until);
static int sleep_long(pthread_cond_t *turned, pthread_mutex_t *mutex);
#define sched_yield give_way
#define pthread_cond_timedwait sleep_at
#define pthread_cond_wait sleep_long
#define GPUPOOL_IMPLEMENTATION
#include "../gpupool.h"
#undef sched_yield
#undef pthread_cond_timedwait
#undef pthread_cond_wait
#include "ring_kit.h"

static void (*at_yield)(void), (*at_sleep)(void), (*at_long_sleep)(void);

static int run_once(void (**hook)(void)) {
    void (*run)(void) = *hook;
    if (!run) return 0;
    *hook = NULL;
    run();
    return 1;
}

static int give_way(void) {
    if (!run_once(&at_yield)) sched_yield();
    return 0;
}

static int sleep_with(void (**hook)(void), pthread_mutex_t *mutex) {
    int ran;
    pthread_mutex_unlock(mutex);
    ran = run_once(hook);
    pthread_mutex_lock(mutex);
    return ran;
}

static int sleep_at(pthread_cond_t *turned, pthread_mutex_t *mutex, const struct timespec *until) {
    return sleep_with(&at_sleep, mutex) ? 0 : pthread_cond_timedwait(turned, mutex, until);
}

static int sleep_long(pthread_cond_t *turned, pthread_mutex_t *mutex) {
    return sleep_with(&at_long_sleep, mutex) ? 0 : pthread_cond_wait(turned, mutex);
}

#if CHECK_FAKE
#define BYTES (3 * MIB)

static gpupool_ring *ring;
static unsigned char *host, *device[2];
static gpupool_ticket ticket[2];

static void scene_open(size_t bytes, int workers) {
    ring = kit_ring(bytes, 0, workers);
    host = kit_host(BYTES);
    kit_pattern(host, BYTES, 1);
    for (int i = 0; i < 2; i++) device[i] = kit_device(BYTES);
}

static void scene_close(void) {
    for (int i = 0; i < 2; i++) {
        kit_expect_device(device[i], BYTES, 1);
        kit_device_free(device[i], BYTES);
    }
    kit_host_free(host, BYTES);
    kit_ring_close(ring);
}

/* Each behind a stream that stands still. */
static void post(int i) {
    fake_hold(kit_stream[i], 1);
    CHECK_RESULT(gpupool_upload_async(ring, device[i], host, BYTES, kit_stream[i], &ticket[i]),
                 GPUPOOL_OK);
}

static void expect_done(int i) {
    CHECK_RESULT(gpupool_ticket_wait(ring, ticket[i], -1), GPUPOOL_OK);
}

/* ---- who waits for a ticket ---- */

static int naps;

static void let_go(void) {
    for (int i = 0; i < 2; i++) fake_hold(kit_stream[i], 0);
}

/* It looks now and then whether there is something to do for it. */
static void sleep_thrice(void) {
    if (++naps == 3) let_go();
    else at_sleep = sleep_thrice;
}

static void a_ticket_is_waited_for_asleep(void) {
    scene_open(8 * MIB, 1);
    naps = 0;
    for (int i = 0; i < 2; i++) post(i);
    at_sleep = sleep_thrice;
    expect_done(0);
    CHECK_EQ(naps, 3);
    expect_done(1);
    scene_close();
}

/* Without workers nobody would wake it: it goes on looking. */
static void yield_for_long(void) {
    if (++naps == 2000) let_go();
    else at_yield = yield_for_long;
}

static void without_workers_it_stays_awake(void) {
    scene_open(8 * MIB, 0);
    naps = 0;
    for (int i = 0; i < 2; i++) post(i);
    at_yield = yield_for_long;
    expect_done(0);
    CHECK_EQ(naps, 2000);
    expect_done(1);
    scene_close();
}

/* ---- who uploads through a full ring ---- */

static void beside_one_that_watches(void) {
    scene_open(MIB, 0);
    for (int i = 0; i < 2; i++) {
        fake_hold(kit_stream[i], 1);
        ring->watching = 1; /* as a worker does */
        at_yield = yield_for_long;
        naps = -2000; /* longer than it looks for news without the lock */
        CHECK_RESULT(gpupool_upload(ring, device[i], host, BYTES, kit_stream[i]), GPUPOOL_OK);
        CHECK_EQ(naps, 2000);
        CHECK_EQ(ring->watching, 1);
        ring->watching = 0;
    }
    scene_close();
}

/* ---- a worker ---- */

static unsigned turns;

static void stop(void) {
    gpi_ring_lock(ring);
    gpi_ring_stop(ring);
    gpi_ring_unlock(ring);
}

static void finish_the_first(void) {
    CHECK_EQ(ring->watching, 1);
    turns = ring->work.turns;
    fake_hold(kit_stream[0], 0);
    expect_done(0);
}

static void dismiss(void) {
    CHECK_EQ(ring->watching, 0);        /* free for another to take, */
    CHECK(ring->work.turns > turns);    /* and those that sleep are told */
    CHECK(ring->transfers != NULL);
    stop();
}

/* Wanted for two transfers, it watches the device for them; not for one. */
static void a_worker_leaves_the_watch(void) {
    scene_open(8 * MIB, 0);
    for (int i = 0; i < 2; i++) post(i);
    at_yield = finish_the_first;
    at_long_sleep = dismiss;
    gpi_ring_lock(ring);
    gpi_ring_worker_loop(ring, 7);
    gpi_ring_unlock(ring);
    CHECK(!at_yield && !at_long_sleep);
    let_go();
    expect_done(1);
    scene_close();
}

/* Who watches may be in its own function for long: a worker that sleeps looks now and then. */
static void a_worker_looks_by_itself(void) {
    scene_open(8 * MIB, 0);
    CHECK_RESULT(gpupool_upload(ring, device[1], host, BYTES, kit_stream[1]), GPUPOOL_OK);
    post(0);
    ring->watching = 1; /* as a caller in its function */
    at_sleep = let_go;
    at_long_sleep = stop;
    gpi_ring_lock(ring);
    gpi_ring_worker_loop(ring, 0);
    CHECK(!ring->transfers);
    ring->watching = 0;
    gpi_ring_unlock(ring);
    CHECK(!at_sleep && !at_long_sleep);
    let_go();
    expect_done(0);
    scene_close();
}
#endif

int main(void) {
    FAKE_TEST(a_ticket_is_waited_for_asleep);
    FAKE_TEST(without_workers_it_stays_awake);
    FAKE_TEST(beside_one_that_watches);
    FAKE_TEST(a_worker_leaves_the_watch);
    FAKE_TEST(a_worker_looks_by_itself);
    return check_finish();
}
