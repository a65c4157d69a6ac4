/* schedule_kit.h: two threads in every order that a bounded number of interruptions can make.
 *
 * The threads are coroutines of this one, and the header under test is the real one: where it reads
 * or writes what threads share without a lock, takes or gives back a lock, or calls CUDA with its
 * locks open, it may be interrupted in favour of the other thread. All such orders with up to
 * SCHEDULE_CUTS interruptions are run, one after the other, each from the same beginning. Waiting
 * for a lock or a gate lets the other thread go on, and is no interruption. A thread that sleeps
 * for a lock goes on when it is woken, and fails if it is not. Host memory that the header frees is
 * filled, so that who reads it goes wrong.
 *
 * Include it before gpupool.h and after nothing, and schedule_run.h after it. */
#ifndef SCHEDULE_KIT_H
#define SCHEDULE_KIT_H

#include <cuda.h>
#include <cuda_runtime_api.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/select.h>

static void schedule_point(void);   /* the other thread may go on here */
static void schedule_waiting(void); /* and here it must */
static void schedule_pause(void);   /* and here, at the first of many pauses in a row */
static void schedule_look(void);    /* the row ends */
static void schedule_sleep(const void *gate); /* until the other turns the gate */
static void schedule_wake(const void *gate);

#define __atomic_exchange_n(place, value, order) \
    (schedule_point(), __atomic_exchange_n(place, value, order))
/* a relaxed load orders nothing: the header only saves a look at a lock by it */
#define __atomic_load_n(place, order) \
    (((order) == __ATOMIC_RELAXED ? schedule_look() : schedule_point()), \
     __atomic_load_n(place, order))
#define __atomic_store_n(place, value, order) \
    (schedule_point(), __atomic_store_n(place, value, order))
#define __atomic_fetch_add(place, more, order) \
    (schedule_point(), __atomic_fetch_add(place, more, order))
#define __atomic_compare_exchange_n(place, was, now, weak, well, ill) \
    (schedule_point(), __atomic_compare_exchange_n(place, was, now, weak, well, ill))
#define __builtin_ia32_pause() schedule_pause()
#define sched_yield() schedule_waiting()
#define select(count, in, out, bad, until) ((void)(until), schedule_waiting())
#define pthread_cond_broadcast(turned) schedule_wake(turned)
#define pthread_cond_timedwait(turned, mutex, until) \
    ((void)(until), schedule_gate(turned, mutex))

static inline int schedule_gate(const void *turned, pthread_mutex_t *mutex) {
    pthread_mutex_unlock(mutex);
    schedule_sleep(turned);
    pthread_mutex_lock(mutex);
    return ETIMEDOUT;
}

#define pthread_mutex_lock(mutex) (schedule_point(), pthread_mutex_lock(mutex))

#define GPUPOOL_MALLOC(bytes) schedule_malloc(bytes)
#define GPUPOOL_FREE(memory) schedule_free(memory)
enum { SCHEDULE_HEAD = 64 }; /* in front of each piece: how many bytes it has */

static inline void *schedule_malloc(size_t bytes) {
    char *memory = (char *)malloc(bytes + SCHEDULE_HEAD);
    if (!memory) return NULL;
    memcpy(memory, &bytes, sizeof bytes);
    return memory + SCHEDULE_HEAD;
}

static inline void schedule_free(void *memory) {
    size_t bytes;
    if (!memory) return;
    memcpy(&bytes, (char *)memory - SCHEDULE_HEAD, sizeof bytes);
    memset(memory, 0xdd, bytes);
    free((char *)memory - SCHEDULE_HEAD);
}

#endif
