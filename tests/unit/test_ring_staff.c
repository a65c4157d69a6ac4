/* The ring's workers: when there are none to be had, when one fails while others are at work, and
   when the process ends around them. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <unistd.h>

static int start_thread(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                        void *user);
static long processors;                 /* that the system says it has; 0: as it is */
#define pthread_create start_thread /* of the ring's */
#define sysconf(name) (processors ? processors : (sysconf)(name))
static int stays;                       /* 1: no thread can be detached */
/* A function, so that the call in the header has the branches of its own line only. */
static int leave(pthread_t thread) { return stays ? EINVAL : pthread_detach(thread); }
#define pthread_detach leave
static int join(pthread_t thread, void **said);
#define pthread_join join
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#undef pthread_create
#undef sysconf
#undef pthread_detach
#undef pthread_join
#include "ring_kit.h"

#include <sys/wait.h>

static int joined;                  /* threads that the ring has waited for */
static int (*may_join)(void);       /* whether such a thread is told to end */
static int join(pthread_t thread, void **said) {
    joined++;
    if (may_join) CHECK(may_join());
    return pthread_join(thread, said);
}

static int threads_left = 1000;     /* that the system has */
static void (*at_start)(void);      /* runs when the first is asked for */

static int start_thread(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                        void *user) {
    void (*first)(void) = at_start;
    at_start = NULL;
    if (first) first();
    if (threads_left <= 0) return EAGAIN;
    threads_left--;
    return pthread_create(thread, attributes, run, user);
}

#if CHECK_FAKE
#define BYTES (3 * MIB)

static gpupool_ring *ring;
static unsigned char *host, *device;

static void scene_open(int workers) {
    ring = kit_ring(4 * MIB, 0, workers);
    host = kit_host(BYTES);
    device = kit_device(BYTES);
    kit_pattern(host, BYTES, 1);
}

static void scene_close(void) {
    kit_expect_device(device, BYTES, 1);
    kit_host_free(host, BYTES);
    kit_device_free(device, BYTES);
    kit_ring_close(ring);
}

static int under_lock(const int *number) {
    int now;
    gpi_host_lock(&ring->stage.lock);
    now = *number;
    gpi_host_unlock(&ring->stage.lock);
    return now;
}

static void upload(void) {
    CHECK_RESULT(gpupool_upload(ring, device, host, BYTES, kit_stream[0]), GPUPOOL_OK);
}

/* ---- how many ---- */

/* One for each processor but the caller's, if nothing else is asked for. */
static void as_many_as_there_are_processors(void) {
    static const struct { long processors; int workers; } cases[] = {
        {-1, 0}, {1, 0}, {2, 1}, {3, 2}, {11, 10}, {12, 11}, {13, 11}, {256, 11}};
    for (size_t i = 0; i < KIT_COUNT(cases); i++) {
        check_case("%ld processors", cases[i].processors);
        processors = cases[i].processors;
        CHECK_RESULT(gpupool_ring_create(&ring, NULL), GPUPOOL_OK);
        CHECK_EQ(ring->workers_wanted, cases[i].workers);
        kit_ring_close(ring);
    }
    processors = 0;
}

/* A transfer that is alone has nine of them; two have all. */
static void no_more_than_a_transfer_needs(void) {
    gpupool_ticket tickets[2];
    scene_open(-1);
    fake_hold(kit_stream[0], 1);
    for (int n = 0; n <= 2; n++) {
        if (n) CHECK_RESULT(kit_upload_async(ring, device, host, BYTES, kit_stream[0],
                                                 &tickets[n - 1]), GPUPOOL_OK);
        check_case("%d transfers", n);
        CHECK_EQ(gpi_ring_wants(ring, &ring->threads[8]), n > 0);
        CHECK_EQ(gpi_ring_wants(ring, &ring->threads[9]), n > 1);
    }
    fake_hold(kit_stream[0], 0);
    for (int i = 0; i < 2; i++) CHECK_RESULT(gpupool_ring_wait(ring, tickets[i], -1), GPUPOOL_OK);
    scene_close();
}

/* Half of them look for uploads first, and half for downloads, whichever came first. */
static void both_ways_at_once(void) {
    gpupool_ticket tickets[2];
    unsigned char *back = kit_host(BYTES);
    scene_open(-1);
    upload();
    for (int way = 0; way < 2; way++) {
        uint64_t before = kit_ring_stats(ring).chunks[way];
        uint64_t other = kit_ring_stats(ring).chunks[!way];
        CHECK_RESULT(way ? kit_upload_async(ring, device, host, BYTES, kit_stream[0], tickets)
                         : kit_download_async(ring, back, device, BYTES, kit_stream[0],
                                                  tickets), GPUPOOL_OK);
        CHECK_RESULT(way ? kit_download_async(ring, back, device, BYTES, kit_stream[0],
                                                  &tickets[1])
                         : kit_upload_async(ring, device, host, BYTES, kit_stream[0],
                                                &tickets[1]), GPUPOOL_OK);
        gpi_ring_lock(ring);
        CHECK(gpi_ring_work(ring, (gpi_ring_role)way));
        gpi_ring_unlock(ring);
        CHECK(kit_ring_stats(ring).chunks[way] > before);
        CHECK_EQ(kit_ring_stats(ring).chunks[!way], other);
        for (int i = 0; i < 2; i++)
            CHECK_RESULT(gpupool_ring_wait(ring, tickets[i], -1), GPUPOOL_OK);
    }
    kit_is_pattern(back, BYTES, 1, 0);
    kit_host_free(back, BYTES);
    scene_close();
}

/* Two MiB are worth a worker, a byte less is not. */
static void from_two_mib_on(void) {
    scene_open(1);
    for (int worth = 0; worth < 2; worth++) {
        size_t bytes = 2 * MIB - 1 + (size_t)worth;
        CHECK_RESULT(gpupool_upload(ring, device, host, bytes, kit_stream[0]), GPUPOOL_OK);
        CHECK_EQ(kit_ring_stats(ring).workers, worth);
    }
    upload();
    scene_close();
}

/* ---- starting ---- */

static void as_many_as_the_system_has(void) {
    for (threads_left = 0; threads_left <= 1;) {
        int had = threads_left;
        scene_open(3);
        upload();
        CHECK_EQ(kit_ring_stats(ring).workers, had);
        CHECK_EQ(ring->threads[had].started, 0); /* nobody is to be joined */
        threads_left = 1000;
        upload(); /* it does not ask again */
        CHECK_EQ(kit_ring_stats(ring).workers, had);
        scene_close();
        threads_left = had + 1;
    }
    threads_left = 1000;
}

static void *upload_too(void *unused) {
    (void)unused;
    upload();
    return NULL;
}

/* While one thread starts the workers, another has a transfer: it does not start them again. */
static void upload_elsewhere(void) {
    pthread_t thread;
    CHECK_EQ(pthread_create(&thread, NULL, upload_too, NULL), 0);
    pthread_join(thread, NULL);
}

static void started_once(void) {
    scene_open(2);
    at_start = upload_elsewhere;
    upload();
    CHECK_EQ(kit_ring_stats(ring).workers, 2);
    scene_close();
}

/* A worker that CUDA does not let in goes, and the transfer goes on. */
static int when_the_worker_has_gone(void *to, size_t bytes, uint64_t offset, void *unused) {
    (void)unused;
    while (under_lock(&ring->workers_running)) gpi_host_idle(64);
    for (size_t i = 0; i < bytes; i++) ((unsigned char *)to)[i] = kit_byte(1, offset + i);
    return 0;
}

static void a_worker_that_cannot_work(void) {
    scene_open(1);
    fake_fail_call("cuThreadExchangeStreamCaptureMode", 2, 0, 0); /* 1: the caller's */
    CHECK_RESULT(kit_upload_from(ring, device, BYTES, when_the_worker_has_gone, NULL,
                                     kit_stream[0]), GPUPOOL_OK);
    CHECK_EQ(fake_fail_fired(), 1);
    fake_fail_clear();
    scene_close();
}

/* Worker 0, as if it had been started, and had not come yet. */
static gpi_ring_thread *announce_a_worker(void) {
    gpi_ring_thread *own = &ring->threads[0];
    own->ring = ring;
    own->running = ring->workers_running = 1;
    gpi_host_count_worker(1);
    return own;
}

static void *be_a_worker(void *thread) {
    gpi_ring_worker(thread);
    return NULL;
}

/* Nor does it change the ring, when it goes, while another thread has the lock. */
static void a_worker_goes_with_the_lock(void) {
    gpi_ring_thread *own;
    pthread_t thread;
    scene_open(1);
    own = announce_a_worker();
    gpi_ring_lock(ring);
    ring->stopping = 1; /* so that it goes at once, and is joined */
    CHECK_EQ(pthread_create(&thread, NULL, be_a_worker, own), 0);
    for (int i = 0; i < 100; i++) gpi_host_idle(10000); /* it has come to the lock long since */
    CHECK_EQ(own->running, 1);
    CHECK_EQ(ring->workers_running, 1);
    gpi_ring_unlock(ring);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK_EQ(own->running, 0);
    CHECK_EQ(ring->workers_running, 0);
    CHECK_EQ(gpi_host_count_worker(0), 0);
    ring->stopping = 0;
    upload();
    scene_close();
}

/* The caller has done all alone before its worker comes, and has reset the device: the worker makes
   no CUDA call, and so the device has no context again. */
static void a_worker_that_comes_after_a_reset(void) {
    gpi_ring_thread *own;
    pthread_t thread;
    scene_open(1);
    own = announce_a_worker();
    upload();
    CHECK_EQ(cudaDeviceReset(), cudaSuccess);
    CHECK_EQ(fake_has_context(0), 0);
    memset(kit_stream, 0, sizeof kit_stream);
    stays = 1; /* it is joined here */
    CHECK_EQ(pthread_create(&thread, NULL, be_a_worker, own), 0);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    stays = 0;
    CHECK_EQ(fake_has_context(0), 0);
    CHECK_EQ(ring->workers_running, 0);
    CHECK_RESULT(gpupool_ring_destroy(ring), GPUPOOL_OK);
    kit_host_free(host, BYTES);
    kit_prepare();
}

/* A ring that could not be destroyed goes on, with workers again. Each is told to end, and waited
   for once. */
static int is_stopping(void) { return ring->stopping; } /* which only this thread sets */

static void workers_come_back(void) {
    scene_open(1);
    stays = 1; /* or one might have gone by itself */
    joined = 0;
    may_join = is_stopping;
    upload();
    fake_fail_call("cuMemHostUnregister", 1, 0, 0);
    CHECK_RESULT(gpupool_ring_destroy(ring), GPUPOOL_E_CUDA);
    fake_fail_clear();
    CHECK_EQ(kit_ring_stats(ring).workers, 0);
    CHECK_EQ(joined, 1);
    upload();
    CHECK_EQ(kit_ring_stats(ring).workers, 1);
    CHECK_EQ(joined, 1);
    scene_close();
    CHECK_EQ(joined, 2);
    may_join = NULL;
    stays = 0;
}

/* A ring without workers is destroyed: the call itself runs the functions of what has a ticket. */
static int fill_with_pattern(void *to, size_t bytes, uint64_t offset, void *unused) {
    (void)unused;
    kit_pattern_at((unsigned char *)to, bytes, 1, (size_t)offset);
    return 0;
}

static void destroyed_without_workers(void) {
    for (int none_left = 0; none_left < 2; none_left++) {
        gpupool_ticket ticket = 0;
        gpupool_transfer transfer;
        memset(&transfer, 0, sizeof transfer);
        scene_open(none_left ? 2 : 0);
        threads_left = 0;
        transfer.to = device;
        transfer.bytes = BYTES;
        transfer.stream = kit_stream[0];
        transfer.read = fill_with_pattern;
        transfer.ticket = &ticket;
        CHECK_RESULT(gpupool_ring_transfer(ring, &transfer), GPUPOOL_OK);
        kit_ring_close(ring);
        threads_left = 1000;
        kit_expect_device(device, BYTES, 1);
        kit_host_free(host, BYTES);
        kit_device_free(device, BYTES);
    }
}

/* CUDA lets the only worker not in, once. Who then only asks for the ticket has another one. */
static void a_worker_for_who_only_asks(void) {
    gpupool_result result = GPUPOOL_E_TIMEOUT;
    gpupool_ticket ticket = 0;
    gpupool_transfer transfer;
    memset(&transfer, 0, sizeof transfer);
    scene_open(1);
    transfer.to = device;
    transfer.bytes = BYTES;
    transfer.stream = kit_stream[0];
    transfer.read = fill_with_pattern;
    transfer.ticket = &ticket;
    fake_fail_call("cuCtxPushCurrent", 2, 0, 0); /* 1: the caller's */
    CHECK_RESULT(gpupool_ring_transfer(ring, &transfer), GPUPOOL_OK);
    while (under_lock(&ring->workers_running)) gpi_host_idle(64);
    CHECK_EQ(fake_fail_fired(), 1);
    fake_fail_clear();
    for (int i = 0; i < 100000 && result == GPUPOOL_E_TIMEOUT; i++) { /* naps: 2 s and more */
        result = gpupool_ring_wait(ring, ticket, 0);
        gpi_host_idle(10000);
    }
    CHECK_RESULT(result, GPUPOOL_OK);
    scene_close();
}

/* Where CUDA does not tell whether there was a reset, a worker goes on as if there was none. */
static void a_worker_that_is_not_told(void) {
    gpupool_ticket ticket = 0;
    scene_open(1);
    fake_hold(kit_stream[0], 1);
    CHECK_RESULT(kit_upload_async(ring, device, host, BYTES, kit_stream[0], &ticket),
                 GPUPOOL_OK);
    fake_fail_call("cuCtxGetId", 1, 1, 0);
    fake_hold(kit_stream[0], 0);
    for (int i = 0, pending = 1; i < 100000 && pending; i++) { /* naps: 10 s and more */
        gpi_host_idle(10000);
        gpi_host_lock(&ring->stage.lock);
        pending = ring->transfers != NULL;
        gpi_host_unlock(&ring->stage.lock);
    }
    fake_fail_clear();
    CHECK_RESULT(gpupool_ring_wait(ring, ticket, 0), GPUPOOL_OK);
    scene_close();
}

/* ---- one fails while another is at work ---- */

static pthread_t caller;
static atomic_int caller_failed, others_at_work;

/* The caller's chunk is refused as soon as a worker is at one; the worker's then goes well. */
static int refuse_the_callers(void *to, size_t bytes, uint64_t offset, void *unused) {
    (void)offset, (void)unused;
    memset(to, 1, bytes);
    if (pthread_equal(pthread_self(), caller)) {
        while (!atomic_load(&others_at_work)) gpi_host_idle(64);
        atomic_store(&caller_failed, 1);
        return 42;
    }
    atomic_fetch_add(&others_at_work, 1);
    while (!atomic_load(&caller_failed)) gpi_host_idle(64);
    for (int i = 0; i < 100; i++) gpi_host_idle(10000); /* the caller is back long since */
    return 0;
}

static void the_caller_waits_for_those_at_work(void) {
    scene_open(1);
    caller = pthread_self();
    for (int own = 0; own < 2; own++) {
        cudaStream_t stream = own ? cudaStreamPerThread : kit_stream[0];
        atomic_store(&caller_failed, 0);
        atomic_store(&others_at_work, 0);
        CHECK_RESULT(kit_upload_from(ring, device, BYTES, refuse_the_callers, NULL, stream),
                     GPUPOOL_E_CALLBACK);
        CHECK(strstr(gpupool_last_error(), "returned 42") != NULL);
        CHECK_EQ(cudaStreamSynchronize(stream), cudaSuccess);
        CHECK_RESULT(gpupool_ring_check(ring), GPUPOOL_OK);
    }
    upload();
    scene_close();
}

/* To a worker the handle of the caller's own stream means another one: it queues no chunk there,
   and none anywhere before that stream is done. */
static void let_workers_come(void *unused) {
    (void)unused;
    for (int i = 0; i < 20; i++) gpi_host_idle(10000);
    CHECK_EQ(kit_ring_stats(ring).chunks[GPUPOOL_DOWN], 0);
    fake_hold(kit_stream[1], 0);
}

static void downloads_of_the_callers_own_stream(void) {
    scene_open(2);
    fake_hold(kit_stream[1], 1);
    kit_order(kit_stream[1], cudaStreamPerThread);
    CHECK_EQ(cudaMemcpyAsync(device, host, BYTES, cudaMemcpyHostToDevice, cudaStreamPerThread),
             cudaSuccess);
    unsigned char *back = kit_host(BYTES);
    fake_before_call("cuEventQuery", 1, let_workers_come, NULL);
    CHECK_RESULT(gpupool_download(ring, back, device, BYTES, cudaStreamPerThread), GPUPOOL_OK);
    kit_is_pattern(back, BYTES, 1, 0);
    kit_host_free(back, BYTES);
    scene_close();
}

/* ---- the end of the process ---- */

static int exit_from_a_worker(void *to, size_t bytes, uint64_t offset, void *unused) {
    (void)offset, (void)unused;
    memset(to, 1, bytes);
    if (!pthread_equal(pthread_self(), caller)) exit(3);
    while (1) gpi_host_idle(64);
}

/* Returns about when the last of them went to sleep. */
static uint64_t wait_for_sleepers(unsigned count) {
    gpi_gate *gate = &gpi_process.gate;
    uint64_t looked = 0;
    for (unsigned asleep = 0; asleep < count;) {
        if (under_lock(&ring->workers_running) < (int)count) return 0;
        looked = gpi_host_now_ns();
        gpi_host_gate_lock(gate);
        asleep = gate->sleepers;
        gpi_host_gate_unlock(gate);
        if (asleep < count) gpi_host_idle(64);
    }
    return looked;
}

/* The ring gives its workers a second to end, which may be too little on a slow machine; who sleeps
   and is not woken never ends. */
static void upload_at_exit(void) {
    while (under_lock(&ring->workers_running)) gpi_host_idle(64);
    if (gpupool_upload(ring, device, host, BYTES, kit_stream[0]) != GPUPOOL_OK) _exit(5);
}

/* A worker that never comes back from its function; the process ends all the same. */
static atomic_int stuck, finished;

static int never_come_back(void *to, size_t bytes, uint64_t offset, void *unused) {
    (void)to, (void)bytes, (void)offset, (void)unused;
    if (!pthread_equal(pthread_self(), caller)) stuck = 1;
    do gpi_host_idle(64);
    while (!finished);
    return 0;
}

static void *upload_for_ever(void *unused) {
    caller = pthread_self();
    kit_upload_from(ring, device, BYTES, never_come_back, NULL, kit_stream[0]);
    return unused;
}

static int die_with_a_stuck_worker(void) {
    pthread_t uploader;
    scene_open(1);
    if (pthread_create(&uploader, NULL, upload_for_ever, NULL)) _exit(5);
    while (!stuck) gpi_host_idle(64);
    exit(6);
}

/* The main thread is over, and nobody destroys the ring: its workers must not keep the process. The
   last of them runs what is to run at the end. */
static int end_the_main_thread(void) {
    scene_open(2);
    upload();
    pthread_exit(NULL);
}

/* Processes of their own. */
static int die(const char *how) {
    int from_worker = how[0] == 'w';
    alarm(20);
    kit_prepare();
    if (how[0] == 's') return die_with_a_stuck_worker();
    if (how[0] == 'm') return end_the_main_thread();
    if (!from_worker) atexit(upload_at_exit); /* runs after the ring's own */
    scene_open(from_worker ? 1 : 2); /* two threads at once may not exit */
    upload();
    caller = pthread_self();
    if (from_worker)
        kit_upload_from(ring, device, BYTES, exit_from_a_worker, NULL, kit_stream[0]);
    while (!wait_for_sleepers(2)) upload(); /* one may have gone before the other slept */
    exit(4);
}

static const char *own_name;

static int status_of(const char *how) {
    int status = -1;
    pid_t child = fork();
    if (child == 0) {
        execl(own_name, own_name, how, (char *)NULL);
        _exit(99);
    }
    if (waitpid(child, &status, 0) != child) return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

static void exit_beside_a_stuck_worker(void) { CHECK_EQ(status_of("stuck"), 6); }
static void exit_from_a_workers_callback(void) { CHECK_EQ(status_of("worker"), 3); }
/* ThreadSanitizer has a thread of its own, that would never end. */
#if defined(__SANITIZE_THREAD__)
#define OTHER_THREADS 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define OTHER_THREADS 1
#endif
#endif

static void the_main_thread_ends_alone(void) {
#if !defined(OTHER_THREADS)
    CHECK_EQ(status_of("main"), 0);
#endif
}

/* A worker looks whether the process ends, then the process begins to end, then the worker falls
   asleep: it is woken once more. */
static void *fall_asleep_late(void *unused) {
    gpi_gate *gate = &gpi_process.gate;
    unsigned before = *(unsigned *)unused;
    while (gpi_host_gate_seen(gate) == before) sched_yield();
    gpi_host_gate_wait(gate, gpi_host_gate_seen(gate), 30 * (uint64_t)KIT_SECOND);
    gpi_host_count_worker(-1);
    return NULL;
}

static void nobody_sleeps_through_the_end(void) {
    pthread_t sleeper;
    scene_open(1);
    unsigned seen = gpi_host_gate_seen(&gpi_process.gate);
    gpi_host_count_worker(1);
    CHECK_EQ(pthread_create(&sleeper, NULL, fall_asleep_late, &seen), 0);
    gpi_ring_at_exit();
    CHECK_EQ(gpi_host_count_worker(0), 0);
    gpi_host_gate_turn(&gpi_process.gate);
    pthread_join(sleeper, NULL);
    gpi_process.ending = 0;
    upload();
    scene_close();
}

/* What has gone for want of work comes back for the next transfer. */
static void workers_leave_and_come_back(void) {
    scene_open(2);
    for (int i = 0; i < 2; i++) {
        upload();
        CHECK_EQ(kit_ring_stats(ring).workers, 2);
        while (kit_ring_stats(ring).workers) gpi_host_idle(10000);
        CHECK_EQ(gpi_process.workers, 0);
        for (int k = 0; k < 2; k++) /* and nobody is to join them */
            CHECK_EQ(under_lock(&ring->threads[k].started), 0);
    }
    scene_close();
}

/* What cannot be detached is joined, before another takes its place or the ring ends. */
static void workers_that_cannot_be_detached(void) {
    scene_open(1);
    stays = 1;
    joined = 0;
    for (int i = 0; i < 2; i++) {
        upload();
        CHECK_EQ(kit_ring_stats(ring).workers, 1);
        CHECK_EQ(joined, i);
        while (kit_ring_stats(ring).workers) gpi_host_idle(10000);
        CHECK_EQ(under_lock(&ring->threads[0].started), 1);
    }
    scene_close();
    CHECK_EQ(joined, 2);
    stays = 0;
}

/* A transfer comes while a worker is about to end, which finds it without being woken. On a busy
   machine the worker may have ended before the transfer comes, or may still be awake and do it at
   once: then the test begins again. */
static uint64_t since; /* about when the worker went to sleep, for GPI_RING_LEAVE_NS */
static int came_late;

static void sleep_longer_than_a_worker(void) {
    uint64_t begun = gpi_host_now_ns();
    came_late = begun - since > GPI_RING_LEAVE_NS / 2;
    if (came_late) return;
    while (gpi_host_now_ns() - begun < GPI_RING_LEAVE_NS + GPI_RING_LEAVE_NS / 4) {
        gpi_host_idle(10000);
        gpi_ring_lock(ring);
        came_late = !ring->transfers && gpi_host_now_ns() - begun < GPI_RING_LEAVE_NS / 4;
        gpi_ring_unlock(ring);
        if (came_late) return;
    }
    CHECK_EQ(under_lock(&ring->workers_running), 2); /* with the one that is just starting */
}

static void a_transfer_just_before_the_end(void) {
    came_late = 1;
    for (int i = 0; came_late && i < 20; i++) {
        scene_open(1);
        upload();
        since = wait_for_sleepers(1);
        ring->workers_wanted = 2;
        at_start = since ? sleep_longer_than_a_worker : NULL;
        upload();
        scene_close();
    }
    CHECK(!came_late);
}

static void transfers_at_exit_need_no_workers(void) { CHECK_EQ(status_of("late"), 4); }
#endif

int main(int argc, char **argv) {
#if CHECK_FAKE
    own_name = argv[0];
    if (argc > 1) return die(argv[1]);
#endif
    FAKE_TEST(as_many_as_there_are_processors);
    FAKE_TEST(no_more_than_a_transfer_needs);
    FAKE_TEST(both_ways_at_once);
    FAKE_TEST(from_two_mib_on);
    FAKE_TEST(as_many_as_the_system_has);
    FAKE_TEST(started_once);
    FAKE_TEST(a_worker_that_cannot_work);
    FAKE_TEST(a_worker_goes_with_the_lock);
    FAKE_TEST(a_worker_that_comes_after_a_reset);
    FAKE_TEST(workers_come_back);
    FAKE_TEST(destroyed_without_workers);
    FAKE_TEST(a_worker_for_who_only_asks);
    FAKE_TEST(a_worker_that_is_not_told);
    FAKE_TEST(the_caller_waits_for_those_at_work);
    FAKE_TEST(downloads_of_the_callers_own_stream);
    FAKE_TEST(exit_beside_a_stuck_worker);
    FAKE_TEST(exit_from_a_workers_callback);
    FAKE_TEST(transfers_at_exit_need_no_workers);
    FAKE_TEST(the_main_thread_ends_alone);
    FAKE_TEST(nobody_sleeps_through_the_end);
    FAKE_TEST(workers_leave_and_come_back);
    FAKE_TEST(workers_that_cannot_be_detached);
    FAKE_TEST(a_transfer_just_before_the_end);
    (void)argc, (void)argv;
    return check_finish();
}
