/* What the system answers now and then: no pages, no number of processors, a gate that has turned
   before the wait for it, another time of day. What the process has of the system, and what a
   child has of it. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

static long processors = 1;
static int pages_left = 1000;
/* A function, so that the calls in the header have the branches of their own lines only. */
static void *map(void *at, size_t bytes, int may, int how, int file, off_t offset) {
    return pages_left-- > 0 ? mmap(at, bytes, may, how, file, offset) : MAP_FAILED;
}
#define gettimeofday(now, zone) (gettimeofday(now, zone), (now)->tv_sec += 3600)
static int conditions; /* condition variables that are open; each has a mutex beside it */
static int open_condition(pthread_cond_t *condition, const pthread_condattr_t *how) {
    conditions++;
    return pthread_cond_init(condition, how);
}
static int close_condition(pthread_cond_t *condition) {
    conditions--;
    return pthread_cond_destroy(condition);
}
static int mutexes; /* and these by themselves */
static int open_mutex(pthread_mutex_t *mutex, const pthread_mutexattr_t *how) {
    mutexes++;
    return pthread_mutex_init(mutex, how);
}
static int close_mutex(pthread_mutex_t *mutex) {
    mutexes--;
    return pthread_mutex_destroy(mutex);
}
#define pthread_cond_init open_condition
#define pthread_cond_destroy close_condition
#define pthread_mutex_init open_mutex
#define pthread_mutex_destroy close_mutex
#define sysconf(what) processors
#define mmap map
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#undef gettimeofday
#undef mmap
#undef sysconf
#include "ring_kit.h"

static int workers_by_default(long on) {
    gpupool_ring *ring = NULL;
    int workers;
    processors = on;
    CHECK_RESULT(gpupool_ring_create(&ring, NULL), GPUPOOL_OK);
    workers = ring->workers_wanted;
    kit_ring_close(ring);
    return workers;
}

static void a_worker_for_each_processor_but_one(void) {
    CHECK_EQ(workers_by_default(-1), 0); /* the system does not say */
    CHECK_EQ(workers_by_default(1), 0);
    CHECK_EQ(workers_by_default(2), 1);
    CHECK_EQ(workers_by_default(12), 11);
    CHECK_EQ(workers_by_default(500), 11);
}

static void no_pages(void) {
    gpupool_ring *ring = kit_ring(MIB, 0, 0);
    unsigned char *host = kit_host(MIB), *device = kit_device(MIB);
    gpupool_span span;
    pages_left = 0;
    CHECK_RESULT(gpupool_ring_acquire_span(ring, 1000, -1, &span), GPUPOOL_E_HOST_MEMORY);
    CHECK_EQ(kit_ring_stats(ring).pinned.now, 0);
    kit_pattern(host, MIB, 1);
    CHECK_RESULT(gpupool_upload(ring, device, host, MIB, kit_stream[0]), GPUPOOL_OK); /* without */
    kit_expect_device(device, MIB, 1);
    pages_left = 1000;
    ring->stage.refused_ns = 0;
    CHECK_RESULT(gpupool_ring_acquire_span(ring, 1000, -1, &span), GPUPOOL_OK);
    CHECK_RESULT(gpupool_ring_cancel_span(ring, &span), GPUPOOL_OK);
    memset(host, 0xee, MIB);
    kit_host_free(host, MIB);
    kit_device_free(device, MIB);
    kit_ring_close(ring);
}

/* Somebody has set the clock, and a wait lasts as long as ever: not until the hour has come again,
   nor no time at all. */
static void the_clock_was_set(void) {
    static gpi_gate gate;
    uint64_t start = gpi_host_now_ns();
    gpi_host_gate_open(&gate);
    alarm(30);
    for (int i = 0; i < 10; i++)
        gpi_host_gate_wait(&gate, gpi_host_gate_seen(&gate), 5000000);
    alarm(0);
    CHECK(gpi_host_now_ns() - start >= 50000000);
    CHECK_EQ(gate.sleepers, 0);
}

/* Would wait for ten minutes, had it not turned. */
static void the_gate_has_turned(void) {
    static gpi_gate gate;
    gpi_host_gate_open(&gate);
    unsigned seen = gpi_host_gate_seen(&gate);
    gpi_host_gate_turn(&gate);
    gpi_host_gate_wait(&gate, seen, 600000000000u);
    CHECK(gpi_host_gate_seen(&gate) != seen);
    CHECK_EQ(gate.sleepers, 0);
}

static void *wait_for_a_turn(void *gate) {
    gpi_host_gate_wait((gpi_gate *)gate, gpi_host_gate_seen((gpi_gate *)gate), 600000000000u);
    return NULL;
}

/* Who sleeps is woken by a turn, ten minutes before it would wake by itself. */
static void a_turn_wakes_who_sleeps(void) {
    static gpi_gate gate;
    pthread_t sleeper;
    unsigned sleepers = 0;
    gpi_host_gate_open(&gate);
    CHECK_EQ(pthread_create(&sleeper, NULL, wait_for_a_turn, &gate), 0);
    while (!sleepers) {
        gpi_host_gate_lock(&gate);
        sleepers = gate.sleepers;
        gpi_host_gate_unlock(&gate);
    }
    alarm(20);
    gpi_host_gate_turn(&gate);
    CHECK_EQ(pthread_join(sleeper, NULL), 0);
    alarm(0);
    gpi_host_gate_close(&gate);
}

/* ---- memory ---- */

/* Wherever the system puts them: there is room for the alignment, and for what is behind. */
static void pages_and_more_behind_them(void) {
    const size_t more = 64 * KIB;
    gpi_pages pages;
    CHECK_EQ(gpi_host_pages_get(&pages, 2 * MIB, more), 1);
    CHECK_EQ((uintptr_t)pages.memory % (2 * MIB), 0);
    CHECK(pages.whole_bytes >= 2 * MIB + more + 2 * MIB - GPI_PAGE_BYTES);
    memset(pages.memory, 1, 2 * MIB);
    for (size_t i = 0; i < more; i += KIB) CHECK_EQ(pages.memory[2 * MIB + i], 0);
    gpi_host_pages_give(&pages);
}

/* Past the caches, page by page or not: all of it, and nothing beside it. */
static void copied_away(void) {
    enum { ROOM = 9 * GPI_PAGE_BYTES };
    static unsigned char from[ROOM], to[ROOM];
    const size_t most = ROOM - 256, four = 4 * GPI_PAGE_BYTES;
    const size_t bytes[] = {0, 1, 63, 64, 65, four - 1, four, four + 64, 2 * four, most};
    for (size_t i = 0; i < ROOM; i++) from[i] = (unsigned char)(i / 64 % 50 + i % 64 + 1);
    for (size_t at = 0; at < 128; at += 32)
        for (size_t i = 0; i < KIT_COUNT(bytes); i++) {
            check_case("%zu bytes at %zu", bytes[i], at);
            memset(to, 0, sizeof to);
            gpi_host_copy_away(to + at, from + 1, bytes[i]);
            CHECK_EQ(memcmp(to + at, from + 1, bytes[i]), 0);
            for (size_t k = 0; k < ROOM; k++)
                if (k < at || k >= at + bytes[i]) CHECK_EQ(to[k], 0);
        }
}

/* ---- what is opened is closed ---- */

static void the_gates_of_a_mutex(void) {
    gpi_mutex mutex;
    int before = conditions, mutexes_before = mutexes;
    memset(&mutex, 0, sizeof mutex);
    gpi_host_mutex_close(&mutex); /* it was never opened */
    CHECK_EQ(conditions, before);
    gpi_host_mutex_open(&mutex);
    CHECK_EQ(conditions, before + GPI_MUTEX_GATES);
    CHECK_EQ(mutexes, mutexes_before + GPI_MUTEX_GATES);
    for (int i = 0; i < 2; i++) {
        gpi_host_mutex_close(&mutex);
        CHECK_EQ(conditions, before);
        CHECK_EQ(mutexes, mutexes_before);
    }
}

/* An arena has two: one for growth, one for waits. */
static void the_mutexes_of_an_arena(void) {
    int before = conditions;
    gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_AUTO);
    CHECK_EQ(conditions, before + 2 * GPI_MUTEX_GATES);
    kit_close(arena);
    CHECK_EQ(conditions, before);
}

/* The gate of the workers is opened once, however many rings there are. */
static void the_gate_of_the_workers(void) {
    gpi_host_prepare_workers(gpi_ring_at_exit);
    int before = conditions;
    gpi_host_prepare_workers(gpi_ring_at_exit);
    CHECK_EQ(conditions, before);
}

/* Workers are the parent's: a child waits for none at its exit. */
static void a_child_has_no_workers(void) {
    int status = -1;
    gpi_host_watch_forks();
    gpi_host_count_worker(2);
    pid_t child = fork();
    if (child == 0) _exit(gpi_host_count_worker(0));
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK_EQ(gpi_host_count_worker(-2), 0);
}

int main(void) {
    ARENA_TEST(a_worker_for_each_processor_but_one);
    ARENA_TEST(no_pages);
    ARENA_TEST(the_gate_has_turned);
    ARENA_TEST(the_clock_was_set);
    ARENA_TEST(a_turn_wakes_who_sleeps);
    ARENA_TEST(pages_and_more_behind_them);
    ARENA_TEST(copied_away);
    ARENA_TEST(the_gates_of_a_mutex);
    ARENA_TEST(the_mutexes_of_an_arena);
    ARENA_TEST(the_gate_of_the_workers);
    ARENA_TEST(a_child_has_no_workers);
    return check_finish();
}
