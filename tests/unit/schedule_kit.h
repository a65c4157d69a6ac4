/* schedule_kit.h: two threads in every order that a bounded number of interruptions can make.
 *
 * The threads are coroutines of this one, and the header under test is the real one: where it reads
 * or writes what threads share without a lock, takes or gives back a lock, or has CUDA record, ask
 * or wait for an event, it may be interrupted in favour of the other thread. All such orders with
 * up to SCHEDULE_CUTS interruptions are run, one after the other, each from the same beginning.
 * Waiting for a lock or a gate lets the other thread go on, and is no interruption.
 *
 * Include it before gpupool.h and after nothing, and schedule_run.h after it. */
#ifndef SCHEDULE_KIT_H
#define SCHEDULE_KIT_H

#include <cuda.h>
#include <cuda_runtime_api.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/select.h>

static void schedule_point(void);   /* the other thread may go on here */
static void schedule_waiting(void); /* and here it must */

#define __atomic_exchange_n(place, value, order) \
    (schedule_point(), __atomic_exchange_n(place, value, order))
#define __atomic_load_n(place, order) (schedule_point(), __atomic_load_n(place, order))
#define __atomic_store_n(place, value, order) \
    (schedule_point(), __atomic_store_n(place, value, order))
#define __atomic_fetch_add(place, more, order) \
    (schedule_point(), __atomic_fetch_add(place, more, order))
#define __atomic_compare_exchange_n(place, was, now, weak, well, ill) \
    (schedule_point(), __atomic_compare_exchange_n(place, was, now, weak, well, ill))
#define __builtin_ia32_pause() schedule_waiting()
#define sched_yield() schedule_waiting()
#define select(count, in, out, bad, until) ((void)(until), schedule_waiting())
#define pthread_cond_wait(turned, mutex) schedule_gate(mutex)
#define pthread_cond_timedwait(turned, mutex, until) ((void)(until), schedule_gate(mutex))

static inline void schedule_gate(pthread_mutex_t *mutex) {
    pthread_mutex_unlock(mutex);
    schedule_waiting();
    pthread_mutex_lock(mutex);
}

#endif
