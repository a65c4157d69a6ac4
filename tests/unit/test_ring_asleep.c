/* Threads of the ring with nothing to do sleep, and look again by themselves or when they are
   woken: who waits for a ticket, with and without workers, and a worker. What happens meanwhile is
   done where they would sleep: nothing here hangs on time. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>

static int sleep_at(pthread_cond_t *turned, pthread_mutex_t *mutex, const struct timespec *until);
#define pthread_cond_timedwait sleep_at
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#undef pthread_cond_timedwait
#include "ring_kit.h"
#include "worker_kit.h"

static pthread_t sleeper;       /* whose sleeps count */
static void (*at_sleep)(void);  /* runs at each of them, instead */

static int sleep_at(pthread_cond_t *turned, pthread_mutex_t *mutex, const struct timespec *until) {
    if (!at_sleep || !pthread_equal(pthread_self(), sleeper))
        return pthread_cond_timedwait(turned, mutex, until);
    pthread_mutex_unlock(mutex);
    at_sleep();
    pthread_mutex_lock(mutex);
    return ETIMEDOUT;
}

#if CHECK_FAKE
#define BYTES (3 * MIB)

static gpupool_ring *ring;
static unsigned char *host, *device;
static gpupool_ticket ticket;
static int naps;

static void scene_open(int workers) {
    ring = kit_ring(8 * MIB, 0, workers);
    host = kit_host(BYTES);
    device = kit_device(BYTES);
    kit_pattern(host, BYTES, 1);
    naps = 0;
    sleeper = pthread_self();
    fake_hold(kit_stream[0], 1);
    CHECK_RESULT(kit_upload_async(ring, device, host, BYTES, kit_stream[0], &ticket),
                 GPUPOOL_OK);
}

static void scene_close(void) {
    at_sleep = NULL;
    fake_hold(kit_stream[0], 0);
    CHECK_RESULT(gpupool_ring_wait(ring, ticket, -1), GPUPOOL_OK);
    kit_expect_device(device, BYTES, 1);
    kit_device_free(device, BYTES);
    kit_host_free(host, BYTES);
    kit_ring_close(ring);
}

static void let_go_at_the_third(void) {
    if (++naps == 3) fake_hold(kit_stream[0], 0);
    sched_yield();
}

static void a_ticket_is_waited_for_asleep(void) {
    for (int workers = 0; workers < 2; workers++) {
        scene_open(workers);
        at_sleep = let_go_at_the_third;
        CHECK_RESULT(gpupool_ring_wait(ring, ticket, -1), GPUPOOL_OK);
        CHECK(naps >= 3);
        scene_close();
    }
}

/* Those who sleep are woken for a ticket, and for a transfer that is worth it; and when one is
   done. */
static unsigned turns;

static unsigned turned_since(void) {
    unsigned before = turns;
    turns = gpi_host_gate_seen(&gpi_process.gate);
    return turns - before;
}

static void those_who_sleep_are_woken(void) {
    unsigned char *other = kit_device(BYTES);
    turned_since();
    scene_open(0);
    CHECK_EQ(turned_since(), 1);
    CHECK_RESULT(gpupool_upload(ring, other, host, 300 * KIB, kit_stream[1]), GPUPOOL_OK);
    CHECK_EQ(turned_since(), 1);
    CHECK_RESULT(gpupool_upload(ring, other, host, BYTES, kit_stream[1]), GPUPOOL_OK);
    CHECK_EQ(turned_since(), 2);
    kit_device_free(other, BYTES);
    scene_close();
}

/* There is work again: who has slept wakes the others, and looks as often as at first. */
static void who_has_slept_wakes_the_others(void) {
    scene_open(0);
    for (int slept = 0; slept < 2; slept++) {
        unsigned round = slept ? GPI_RING_SPIN + 1 : GPI_RING_SPIN - 1, news = ring->stage.news;
        check_case("slept %d", slept);
        turned_since();
        gpi_ring_lock(ring);
        gpi_ring_busy(ring, &round);
        gpi_ring_unlock(ring);
        CHECK_EQ(round, 0);
        CHECK_EQ(turned_since(), slept);
        CHECK_EQ(ring->stage.news != news, slept); /* for those who are still awake */
    }
    scene_close();
}

/* A full ring, none of whose slots has landed: the caller sleeps too. */
static void an_upload_is_waited_for_asleep(void) {
    unsigned char *more = kit_device(16 * MIB), *from = kit_host(16 * MIB);
    kit_pattern(from, 16 * MIB, 2);
    scene_open(0);
    at_sleep = let_go_at_the_third;
    CHECK_RESULT(gpupool_upload(ring, more, from, 16 * MIB, kit_stream[0]), GPUPOOL_OK);
    CHECK_EQ(naps, 3);
    kit_expect_device(more, 16 * MIB, 2);
    kit_device_free(more, 16 * MIB);
    kit_host_free(from, 16 * MIB);
    scene_close();
}

/* Another thread looks at the slots without end: a trim waits for the look that is under way, and
   for a whole one after it, which has seen all that had ended before. */
static void begin_another_look(void) {
    naps++;
    gpi_ring_lock(ring);
    ring->stage.polls++;
    gpi_ring_unlock(ring);
}

static void a_trim_waits_for_two_looks(void) {
    scene_open(0);
    ring->stage.polling = 1;
    at_sleep = begin_another_look;
    CHECK_RESULT(gpupool_ring_trim(ring, 0, NULL), GPUPOOL_OK);
    CHECK_EQ(naps, 2);
    ring->stage.polling = 0;
    scene_close();
}

/* A worker that is wanted looks by itself; one that nothing is wanted of ends, unless it is woken
   for a transfer. */
static void let_go_and_end(void) {
    let_go_at_the_third();
    if (naps == 10 && !ring->transfers)
        CHECK_RESULT(kit_upload_async(ring, device, host, BYTES, kit_stream[0], &ticket),
                     GPUPOOL_OK);
}

static void a_worker_looks_by_itself(void) {
    scene_open(0);
    at_sleep = let_go_and_end;
    worker_be(ring, 0);
    CHECK(!ring->transfers);
    CHECK(naps >= 4); /* thrice for the ticket, once or more for none */
    scene_close();
}

/* Every second worker looks for downloads first, the others for uploads, whichever came first. */
static int first_way;

static void note_the_way(void *unused) {
    (void)unused;
    gpi_ring_lock(ring);
    for (const gpi_transfer *t = ring->transfers; t; t = t->next)
        if (t->working) first_way = t->down;
    gpi_ring_unlock(ring);
}

static void end_at_once(void) { naps++; }

static void each_worker_has_a_way_of_its_own(void) {
    unsigned char *other = kit_device(BYTES), *back = kit_host(BYTES);
    gpupool_ticket down, up;
    for (int i = 0; i < 4; i++) {
        check_case("worker %d", i);
        scene_open(0);
        fake_hold(kit_stream[0], 0);
        CHECK_RESULT(gpupool_ring_wait(ring, ticket, -1), GPUPOOL_OK);
        if (i % 2) CHECK_RESULT(kit_upload_async(ring, device, host, BYTES, kit_stream[0], &up),
                                GPUPOOL_OK);
        CHECK_RESULT(kit_download_async(ring, back, other, BYTES, kit_stream[0], &down),
                     GPUPOOL_OK);
        if (i % 2 == 0) CHECK_RESULT(kit_upload_async(ring, device, host, BYTES, kit_stream[0],
                                                      &up), GPUPOOL_OK);
        first_way = -1;
        at_sleep = end_at_once;
        fake_before_call("cuMemcpyAsync", 1, note_the_way, NULL);
        worker_be(ring, i);
        CHECK_EQ(first_way, i % 2 ? (int)GPUPOOL_DOWN : (int)GPUPOOL_UP);
        CHECK_RESULT(gpupool_ring_wait(ring, up, 0), GPUPOOL_OK);
        CHECK_RESULT(gpupool_ring_wait(ring, down, 0), GPUPOOL_OK);
        scene_close();
    }
    kit_is_byte(back, BYTES, 0xdd);
    memset(back, 0xee, BYTES);
    kit_host_free(back, BYTES);
    kit_device_free(other, BYTES);
}
#endif

int main(void) {
    FAKE_TEST(a_ticket_is_waited_for_asleep);
    FAKE_TEST(those_who_sleep_are_woken);
    FAKE_TEST(who_has_slept_wakes_the_others);
    FAKE_TEST(an_upload_is_waited_for_asleep);
    FAKE_TEST(a_trim_waits_for_two_looks);
    FAKE_TEST(a_worker_looks_by_itself);
    FAKE_TEST(each_worker_has_a_way_of_its_own);
    return check_finish();
}
