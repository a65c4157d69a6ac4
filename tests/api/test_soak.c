/* Everything at once, for a while: threads, streams that come and go, limits that move, calls of
   CUDA and requests for host memory that fail, memory that others take, graphs, tags that sleep and
   wake, files through a ring, blocks that are exported, a device that is reset, and on every block
   kernels that stamp and verify it, under the race oracle. First one thread that also says what the
   device does next: such a run can be repeated to the last step. One seed comes after the other,
   each for so many actions and with another source. Then several threads, with a device that does
   as it likes.

   test_soak [SECONDS [SEED [THREADS [ACTIONS]]]]: 0 threads leaves the second part out, and with
   ACTIONS the first is this seed alone, for so many, whatever the time. */
// build: plain -O1
// build: asked -O1 -DSOAK_SECONDS=3 -DGPUPOOL_STREAM_HOOK=0 -DGPUPOOL_STREAM_CHECK=1
// build: tsan -fsanitize=thread -DSOAK_SECONDS=3 -DGPUPOOL_STREAM_HOOK=0 -DGPUPOOL_STREAM_CHECK=1
#define _DEFAULT_SOURCE
#include "fail_malloc.h"
#include "gpupool.h"
#include "arena_kit.h"

#if CHECK_FAKE

#include "soak_actions.h"

#include <time.h>

#ifndef SOAK_SECONDS
#define SOAK_SECONDS 4
#endif
#define MOST_THREADS 64
#define REPEATED 3000 /* actions of the run that is made twice */
#define ALONE 3000 /* of each seed's */
#define LEAST_ACTIONS 5000 /* of each of several threads, however little time it gets */

static double seconds = SOAK_SECONDS;
static uint64_t seed = 1;
static unsigned threads = 4;
static long asked_actions, alone_actions;

static double deadline;
static atomic_long done[KIT_COUNT(actions)];

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* ---- a thread's life ---- */

static size_t choose(actor *a) {
    unsigned total = 0;
    size_t i;
    for (i = 0; i < KIT_COUNT(actions); i++) total += actions[i].weight;
    uint64_t at = below(a, total);
    for (i = 0; at >= actions[i].weight; i++) at -= actions[i].weight;
    return i;
}

static void one_action(actor *a) {
    size_t i = choose(a);
    world *w = &soak_world[below(a, WORLDS)];
    check_case("seed %llu, thread %u, action %ld, %s, device %d", (unsigned long long)seed,
               a->number, a->n, actions[i].name, w->device);
    note(a, i);
    if (soak_alone && actions[i].weight < 50 && below(a, 8) == 0) fault_at_once(a);
    if (actions[i].act == act_sleep_all) pthread_rwlock_wrlock(&w->lock);
    else pthread_rwlock_rdlock(&w->lock);
    actions[i].act(a, w);
    pthread_rwlock_unlock(&w->lock);
    for (int k = 0; k < WORLDS && soak_alone; k++) check_account(&soak_world[k]);
    a->n++;
    atomic_fetch_add(&done[i], 1);
    if (fake_failures()) check_fail(__FILE__, __LINE__, "fakecuda: %s", fake_failure_text());
    if (fake_misuses()) check_fail(__FILE__, __LINE__, "fakecuda: %s", fake_misuse_text());
}

static void *live(void *actor_) {
    actor *a = (actor *)actor_;
    MUST(cudaSetDevice(a->device));
    while (!atomic_load(&check_bad) &&
           (soak_alone ? a->n < alone_actions : now() < deadline || a->n < LEAST_ACTIONS))
        one_action(a);
    return NULL;
}

static actor born(unsigned number) {
    actor a = {.number = number, .random = seed * 1000 + number, .last = "no call"};
    return a;
}

/* ---- a run ---- */

static const gpupool_source others[] = {GPUPOOL_SOURCE_MANAGED, GPUPOOL_SOURCE_DEVICE,
                                        GPUPOOL_SOURCE_PINNED, GPUPOOL_SOURCE_BYPASS,
                                        GPUPOOL_SOURCE_CUSTOM};
#define SOURCES KIT_COUNT(others)

static void open_worlds(actor *a) {
    fake_devices(WORLDS + 1);
    /* if it fails, no stream is said to capture */
    fake_fail_except("cuStreamIsCapturing");
    soak_open_world(a, &soak_world[0], 0, GPUPOOL_SOURCE_MAPPED, seed & 1);
    soak_open_world(a, &soak_world[1], 1, others[seed % SOURCES], seed & 1);
}

static void close_worlds(actor *a) {
    fake_fail_clear();
    fail_malloc_nth(0, 0);
    kit_capture_globally();
    for (int i = 0; i < WORLDS; i++) {
        fake_other_process(i, 0);
        for (unsigned k = 0; k < PLACES; k++)
            if (soak_world[i].place[k].stream) fake_hold(soak_world[i].place[k].stream, 0);
    }
    a->device = -1; /* set it again, whatever it is */
    for (int i = 0; i < WORLDS; i++) release_graphs(a, &soak_world[i]);
    if (soak_alone && seed % 4 == 1) soak_lose_world(a, &soak_world[1]);
    else soak_close_world(a, &soak_world[1]);
    soak_close_world(a, &soak_world[0]);
    kit_free_stuck(&kit_custom);
    /* of a stream whose device CUDA has not told */
    if (linked_default_arena(1)) kit_close(linked_default_arena(1));
    be_on(a, 0);
}

static void tell(const char *words) {
    gpupool_stats s[WORLDS];
    for (int i = 0; i < WORLDS; i++) s[i] = kit_stats(soak_world[i].arena);
    printf("%s, seed %llu; allocs %llu, refused %llu, waits on the device %llu and the host %llu, "
           "moved %llu, faults %ld\n",
           words, (unsigned long long)seed, (unsigned long long)(s[0].allocs + s[1].allocs),
           (unsigned long long)(s[0].failures + s[1].failures),
           (unsigned long long)(s[0].fence_waits + s[1].fence_waits),
           (unsigned long long)(s[0].host_syncs + s[1].host_syncs),
           (unsigned long long)(s[0].stitches + s[1].stitches), fake_fail_fired());
    fflush(stdout);
}

/* What has happened so far, in all runs, and must, or they have shown little. */
static uint64_t allocs, failures, fence_waits, stitches;

static void add_up(void) {
    for (int i = 0; i < WORLDS; i++) {
        gpupool_stats s = kit_stats(soak_world[i].arena);
        allocs += s.allocs;
        failures += s.failures;
        fence_waits += s.fence_waits;
        stitches += s.stitches;
    }
}

static void must_have_happened(void) {
    for (size_t i = 0; i < KIT_COUNT(actions); i++)
        if (!atomic_load(&done[i])) check_fail(__FILE__, __LINE__, "never: %s", actions[i].name);
    CHECK(allocs > LEAST_ACTIONS / 5); /* a slow machine comes to no more actions */
    CHECK(failures > 0);
    CHECK(fence_waits > 0);
    CHECK(stitches > 0);
    CHECK(soak_resets > 0);
    CHECK(atomic_load(&soak_sleeps) > 0);
    CHECK(atomic_load(&soak_wakes) > 0);
    CHECK(atomic_load(&soak_files) > 0);
    CHECK(atomic_load(&soak_imports) > 0);
    CHECK(atomic_load(&soak_results[GPUPOOL_E_ASLEEP]) > 0);
    CHECK(atomic_load(&soak_results[GPUPOOL_E_CUDA]) > 0);
    CHECK(atomic_load(&soak_results[GPUPOOL_E_HOST_MEMORY]) > 0);
}

static actor run_alone(long actions_at_most) {
    actor a = born(0);
    alone_actions = actions_at_most;
    soak_alone = 1;
    fake_mode(FAKE_STEPPED);
    open_worlds(&a);
    live(&a);
    tell("alone");
    add_up();
    close_worlds(&a);
    return a;
}

static void a_seed(void) { run_alone(asked_actions ? asked_actions : ALONE); }

static void one_thread_and_a_device_in_step(void) {
    uint64_t first = seed;
    deadline = now() + seconds / 2;
    a_seed();
    while (!asked_actions && !atomic_load(&check_bad) &&
           (now() < deadline || seed + 1 < first + SOURCES)) {
        kit_settle();
        kit_prepare();
        seed++;
        a_seed();
    }
    if (!asked_actions) must_have_happened();
}

static void a_run_can_be_repeated(void) {
    actor first = run_alone(REPEATED);
    kit_settle();
    kit_prepare();
    actor second = run_alone(REPEATED);
    CHECK_EQ(first.n, second.n);
    CHECK_EQ(first.trail, second.trail);
}

static void threads_and_a_device_of_its_own_mind(void) {
    pthread_t thread[MOST_THREADS];
    actor a[MOST_THREADS];
    soak_alone = 0;
    a[0] = born(0);
    fake_mode(FAKE_THREADED);
    open_worlds(&a[0]);
    deadline = now() + seconds / 2;
    for (unsigned i = 1; i < threads; i++) {
        a[i] = born(i);
        CHECK_EQ(pthread_create(&thread[i], NULL, live, &a[i]), 0);
    }
    a[0].device = 0;
    live(&a[0]);
    for (unsigned i = 1; i < threads; i++) CHECK_EQ(pthread_join(thread[i], NULL), 0);
    tell("threads");
    add_up();
    must_have_happened();
    close_worlds(&a[0]);
}

static void read_arguments(int argc, char **argv) {
    if (argc > 1) seconds = strtod(argv[1], NULL);
    if (argc > 2) seed = strtoull(argv[2], NULL, 10);
    if (argc > 3) threads = (unsigned)strtoul(argv[3], NULL, 10);
    if (argc > 4) asked_actions = strtol(argv[4], NULL, 10);
    if (threads > MOST_THREADS) threads = MOST_THREADS;
}

int main(int argc, char **argv) {
    FILE *file = tmpfile();
    if (!file) return EXIT_FAILURE;
    soak_open_file(file);
    read_arguments(argc, argv);
    printf("soak: %g seconds, seed %llu, %u threads\n", seconds, (unsigned long long)seed, threads);
    ARENA_TEST(a_run_can_be_repeated);
    ARENA_TEST(one_thread_and_a_device_in_step);
    if (threads) ARENA_TEST(threads_and_a_device_of_its_own_mind);
    return check_finish();
}

#else

int main(void) {
    check_skip("soak", "needs fakecuda's controls");
    return check_finish();
}

#endif
