/* What the header makes of the system's clock, which stands still here: nanoseconds, and until when
   a wait is to last, though it be woken before without a reason. */
#include <errno.h>
#include <pthread.h>
#include <sys/time.h>
#include <time.h>

#define SECONDS 1700000000
#define MICROSECONDS 654321

static struct timespec told; /* to the latest wait */
static int wakes;            /* of a wait, without a reason, that are still to come */

#define gettimeofday(now, zone) \
    ((void)(zone), (now)->tv_sec = SECONDS, (now)->tv_usec = MICROSECONDS)
#define clock_gettime(which, now) \
    ((void)(which), (now)->tv_sec = SECONDS, (now)->tv_nsec = 1000 * MICROSECONDS)
/* A function, so that the call in the header has the branches of its own line only. */
static int sleep_until(pthread_cond_t *turned, pthread_mutex_t *mutex, const struct timespec *at) {
    (void)turned, (void)mutex;
    told = *at;
    return wakes-- > 0 ? 0 : ETIMEDOUT;
}
#define pthread_cond_timedwait sleep_until
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "check.h"

static void nanoseconds(void) {
    CHECK_EQ(gpi_host_now_ns(), ((uint64_t)SECONDS * 1000000 + MICROSECONDS) * 1000);
}

static void until_when(void) {
    static gpi_gate gate;
    gpi_host_gate_open(&gate);
    wakes = 3;
    gpi_host_gate_wait(&gate, 0, 5000000);
    CHECK_EQ(wakes, -1); /* it has slept four times */
    CHECK_EQ(told.tv_sec, SECONDS);
    CHECK_EQ(told.tv_nsec, 1000 * MICROSECONDS + 5000000);
    gpi_host_gate_wait(&gate, 0, 2400000000); /* into another second */
    CHECK_EQ(told.tv_sec, SECONDS + 3);
    CHECK_EQ(told.tv_nsec, 1000 * MICROSECONDS + 400000000 - 1000000000);
}

int main(void) {
    TEST(nanoseconds);
    TEST(until_when);
    return check_finish();
}
