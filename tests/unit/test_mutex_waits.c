/* A thread waits for the sleeping lock, and the holder gives it back at each moment in between: the
   waiter has the lock then, and sleeps only where it has to. The holder's part is done where the
   waiter takes the gate's mutex, gives it back, or sleeps, so that they always meet. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>

typedef enum moment { NEVER, BEFORE_IT_COUNTS, AFTER_IT_COUNTED, BEFORE_IT_SLEEPS, ASLEEP } moment;

static void reached(moment now);
static int wait_at(pthread_cond_t *turned, pthread_mutex_t *mutex, const struct timespec *until);
static int enter(pthread_mutex_t *mutex);
static int leave(pthread_mutex_t *mutex);
#define pthread_mutex_lock enter
#define pthread_mutex_unlock leave
#define pthread_cond_timedwait wait_at
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#undef pthread_mutex_lock
#undef pthread_mutex_unlock
#undef pthread_cond_timedwait
#include "check.h"

static gpi_mutex mutex;
static moment gives_back;       /* when the holder does; NEVER: it has, or does not yet */
static int enters, sleeps;      /* of the waiter */
static int early;               /* wakes of it before its turn that are still to come, */
static int why_early;           /* which pthread_cond_timedwait returns then */

static void open_mutex(void) {
    memset(&mutex, 0, sizeof mutex);
    gpi_host_mutex_open(&mutex);
}

static void reached(moment now) {
    if (now != gives_back) return;
    gives_back = NEVER;
    gpi_host_mutex_unlock(&mutex);
}

/* A wait takes the gate's mutex to read the turns, and then to sleep. */
static int enter(pthread_mutex_t *gate) {
    if (gives_back) reached(enters++ ? BEFORE_IT_SLEEPS : BEFORE_IT_COUNTS);
    return pthread_mutex_lock(gate);
}

static int leave(pthread_mutex_t *gate) {
    int error = pthread_mutex_unlock(gate);
    reached(AFTER_IT_COUNTED);
    return error;
}

static int wait_at(pthread_cond_t *turned, pthread_mutex_t *gate, const struct timespec *until) {
    (void)turned, (void)until;
    sleeps++;
    int result = early > 0 ? why_early : 0;
    CHECK_EQ(pthread_mutex_unlock(gate), 0);
    if (early > 0) early--;
    else reached(ASLEEP);
    CHECK_EQ(pthread_mutex_lock(gate), 0);
    return result;
}

static void wait_for_it(moment when, int wakes_early, int sleeps_expected) {
    check_case("moment %d, woken early %d times", (int)when, wakes_early);
    open_mutex();
    gpi_host_mutex_lock(&mutex);
    CHECK(!gpi_host_mutex_try(&mutex));
    enters = sleeps = 0;
    early = wakes_early;
    gives_back = when;
    gpi_host_mutex_lock(&mutex);
    CHECK_EQ(gives_back, NEVER);        /* not before the holder had given it back, */
    CHECK_EQ(mutex.serving, 1);
    CHECK(!gpi_host_mutex_try(&mutex)); /* and nobody else gets it now */
    CHECK_EQ(sleeps, sleeps_expected);
    gpi_host_mutex_unlock(&mutex);
    CHECK(gpi_host_mutex_try(&mutex));
    gpi_host_mutex_unlock(&mutex);
    for (int i = 0; i < GPI_MUTEX_GATES; i++) CHECK_EQ(mutex.gates[i].sleepers, 0);
    gpi_host_mutex_close(&mutex);
}

/* Given back before it sleeps, the lock costs no sleep: a waiter that misses the turn would stand
   for the 100 ms of a nap. */
static void given_back_before_it_sleeps(void) {
    wait_for_it(BEFORE_IT_COUNTS, 0, 0);
    wait_for_it(AFTER_IT_COUNTED, 0, 0);
    wait_for_it(BEFORE_IT_SLEEPS, 0, 0);
}

static void given_back_while_it_sleeps(void) { wait_for_it(ASLEEP, 0, 1); }

/* Who wakes while another has the lock sleeps again: without a reason, or after a nap. */
static void it_wakes_too_early(void) {
    why_early = 0;
    wait_for_it(ASLEEP, 3, 4);
    why_early = ETIMEDOUT;
    wait_for_it(ASLEEP, 3, 4);
}

/* Nobody waits, and the next one that comes does not either. */
static void nobody_waits(void) {
    open_mutex();
    for (int i = 0; i < 3 * GPI_MUTEX_GATES; i++) {
        gpi_host_mutex_lock(&mutex);
        gpi_host_mutex_unlock(&mutex);
    }
    for (int i = 0; i < GPI_MUTEX_GATES; i++) CHECK_EQ(mutex.gates[i].turns, 0);
    gpi_host_mutex_close(&mutex);
}

int main(void) {
    TEST(given_back_before_it_sleeps);
    TEST(given_back_while_it_sleeps);
    TEST(it_wakes_too_early);
    TEST(nobody_waits);
    return check_finish();
}
