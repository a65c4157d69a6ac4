// build: asan -fsanitize=address,undefined
// build: tsan -fsanitize=thread
/* What a ring does while streams of the program stand still: rule G, tickets that wait for others,
   time-outs, hands that are short; and when calls of CUDA fail. Simulated GPU only: its streams can
   be held. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include "gpupool.h"
#include "ring_kit.h"

#if CHECK_FAKE

enum { MANY = 9 };
#define BYTES (300 * KIB + 5)

static gpupool_ring *ring;
static job jobs[MANY], *const first = jobs;
static int count; /* of jobs */

static void begin(int job_count, size_t ring_bytes, int workers) {
    ring = kit_ring(ring_bytes, 64 * KIB, workers);
    count = job_count;
    for (int i = 0; i < count; i++) job_open(&jobs[i], ring, BYTES, (uint64_t)i);
}
static void end(void) {
    for (int i = 0; i < count; i++) job_close(&jobs[i]);
    OK(gpupool_ring_destroy(ring));
}
static void all_have_arrived(void) {
    for (int i = 0; i < count; i++) kit_device_is(jobs[i].device, BYTES, (uint64_t)i);
}
static void in_threads(int thread_count, void *(*run)(void *)) {
    for (int i = 0; i < thread_count; i++) job_begin(&jobs[i], run);
    for (int i = 0; i < thread_count; i++) pthread_join(jobs[i].thread, NULL);
}

static void *job_waits(void *user) {
    job *j = (job *)user;
    OK(gpupool_ring_wait(j->ring, j->ticket, -1, NULL));
    atomic_store(&j->is_done, 1);
    return NULL;
}
static void *job_uploads(void *user) {
    job *j = (job *)user;
    OK(job_upload(j));
    atomic_store(&j->is_done, 1);
    return NULL;
}

/* Eight calls, or tickets, behind streams that stand still, more than there are hands: a ninth goes
   on, whether it is a call or a ticket. */
static void eight(void *(*run)(void *), int workers) {
    check_case("%d workers", workers);
    begin(MANY, 256 * KIB, workers);
    for (int i = 0; i < MANY; i++) {
        if (i < MANY - 1) fake_hold(jobs[i].stream, FAKE_FIRM);
        fake_write(jobs[i].stream, "before", jobs[i].device, BYTES, 1);
        if (run == job_waits) job_post(&jobs[i]);
    }
    for (int i = 0; i < MANY - 1; i++) job_begin(&jobs[i], run);
    for (int i = 0; i < 20; i++) run(&jobs[MANY - 1]);
    for (int i = 0; i < MANY - 1; i++) CHECK_EQ(atomic_load(&jobs[i].is_done), 0);
    for (int i = 0; i < MANY - 1; i++) fake_hold(jobs[i].stream, 0);
    for (int i = 0; i < MANY - 1; i++) pthread_join(jobs[i].thread, NULL);
    all_have_arrived();
    CHECK(fake_pinned_peak() <= 256 * KIB);
    end();
}
static void eight_wait_for_a_ninth(void) {
    for (int workers = 0; workers < 3; workers++) eight(job_waits, workers);
}
static void calls_that_stand_still_hold_no_hand(void) {
    eight(job_uploads, 2);
}

/* A transfer begins after the work that was queued before, and not after what comes later. */
static void rule_g(void) {
    gpupool_ticket ticket;
    uint64_t done = 1;
    begin(1, MIB, 1);
    fake_hold(first->stream, FAKE_FIRM);
    fake_write(first->stream, "before", first->device, BYTES, 7);
    ticket = kit_post(ring, kit_down(first->host, first->device, BYTES, first->stream));
    CHECK_RESULT(gpupool_ring_wait(ring, ticket, 0, &done), GPUPOOL_E_TIMEOUT);
    CHECK_RESULT(gpupool_ring_wait(ring, ticket, 3000000, &done), GPUPOOL_E_TIMEOUT);
    CHECK_EQ(done, 0);
    kit_is(first->host, BYTES, 0, 0); /* untouched */
    fake_hold(first->stream, 0);
    OK(gpupool_ring_wait(ring, ticket, -1, &done));
    CHECK_EQ(done, BYTES);
    kit_is_all(first->host, BYTES, 7);
    job_post(first);
    job_waits(first);
    fake_read(NULL, "any stream", first->device, BYTES, 256); /* the oracle sees no race */
    CUDA(cudaDeviceSynchronize());
    job_uploads(first);
    fake_read(NULL, "any stream", first->device, BYTES, 256);
    CUDA(cudaDeviceSynchronize());
    end();
}

/* A copy of pinned memory is over when its call returns, or its ticket is done. */
static void pinned_memory_is_waited_for(void) {
    unsigned char *pinned = NULL;
    gpupool_ticket ticket;
    begin(1, MIB, 1);
    CUDA(cudaHostAlloc((void **)&pinned, BYTES, 0));
    kit_fill(pinned, BYTES, 5, 0);
    fake_hold(first->stream, 1); /* lets through what somebody waits for */
    OK(gpupool_upload(ring, first->device, pinned, BYTES, first->stream));
    CHECK_EQ(fake_pending(first->stream), 0);
    fake_hold(first->stream, FAKE_FIRM);
    ticket = kit_post(ring, kit_down(pinned, first->device, BYTES, first->stream));
    CHECK_RESULT(gpupool_ring_wait(ring, ticket, 1000000, NULL), GPUPOOL_E_TIMEOUT);
    fake_hold(first->stream, 0);
    OK(gpupool_ring_wait(ring, ticket, -1, NULL));
    kit_is(pinned, BYTES, 5, 0);
    CUDA(cudaFreeHost(pinned));
    end();
}

/* Several threads may wait for one ticket, at once or later: each gets its result. */
static atomic_int entered;
static void *also_waits(void *user) {
    (void)user;
    atomic_fetch_add(&entered, 1);
    return job_waits(first);
}
static void many_waiters(void) {
    for (int workers = 0; workers < 3; workers += 2) {
        begin(5, MIB, workers);
        fake_hold(first->stream, FAKE_FIRM);
        for (int i = 0; i < 5; i++) job_post(&jobs[i]);
        atomic_store(&entered, 0);
        for (int i = 1; i < 5; i++) job_begin(&jobs[i], also_waits);
        while (atomic_load(&entered) < 4) sched_yield();
        for (int i = 0; i < 100; i++) sched_yield();
        fake_hold(first->stream, 0);
        for (int i = 1; i < 5; i++) pthread_join(jobs[i].thread, NULL);
        for (int i = 0; i < 5; i++) job_waits(&jobs[i]);
        all_have_arrived();
        end();
    }
}

/* A function of the program that takes long, until it is in haste, or three are in it. */
static atomic_int fillers, fillers_most, in_haste;
static int fills(void *to, size_t bytes, uint64_t offset, void *user) {
    int now = atomic_fetch_add(&fillers, 1) + 1;
    (void)user;
    memset(to, (int)offset, bytes);
    if (now > atomic_load(&fillers_most)) atomic_store(&fillers_most, now);
    for (int i = 0; i < 20 && atomic_load(&fillers) < 3 && !atomic_load(&in_haste); i++)
        usleep(250);
    atomic_fetch_sub(&fillers, 1);
    return 0;
}
static void *job_fills(void *user) {
    job *j = (job *)user;
    gpupool_transfer what = kit_up(j->device, NULL, BYTES, j->stream);
    what.read = fills;
    OK(gpupool_ring_transfer(j->ring, &what));
    return NULL;
}

/* Four callers and two hands: two threads at most have a slot to fill. */
static void no_more_hands_than_bytes(void) {
    begin(4, 256 * KIB, 0);
    atomic_store(&in_haste, 0);
    atomic_store(&fillers_most, 0);
    in_threads(4, job_fills);
    CHECK_EQ(atomic_load(&fillers_most), 2);
    CHECK_EQ(ring_stats(ring).pinned, 256 * KIB);
    end();
}

/* A transfer that takes long, and has both workers: others that come later are done meanwhile,
   also one whose stream stands still for a while, though nobody waits for them. */
static void others_go_on_beside_a_long_one(void) {
    size_t bytes = 32 * MIB;
    unsigned char *device = kit_device(bytes);
    gpupool_transfer what = kit_up(device, NULL, bytes, NULL);
    gpupool_ticket ticket;
    begin(2, MIB, 2);
    atomic_store(&in_haste, 0);
    atomic_store(&fillers_most, 0);
    what.read = fills;
    ticket = kit_post(ring, what);
    while (atomic_load(&fillers_most) < 2) sched_yield();
    fake_hold(jobs[1].stream, FAKE_FIRM);
    for (int i = 0; i < 2; i++) job_post(&jobs[i]);
    while (ring_stats(ring).transfers[GPUPOOL_UP] < 1) sched_yield();
    fake_hold(jobs[1].stream, 0);
    while (ring_stats(ring).transfers[GPUPOOL_UP] < 2) sched_yield();
    CHECK_RESULT(gpupool_ring_wait(ring, ticket, 0, NULL), GPUPOOL_E_TIMEOUT);
    atomic_store(&in_haste, 1);
    OK(gpupool_ring_wait(ring, ticket, -1, NULL));
    all_have_arrived();
    kit_device_free(device, bytes);
    end();
}

/* A host that pins little: the ring makes do. One that pins nothing: an error, and later again. */
static void short_of_pinned_memory(void) {
    gpupool_ring *other = kit_ring(4 * MIB, 64 * KIB, 3);
    begin(1, 4 * MIB, 3);
    fake_pinned_limit(128 * KIB);
    for (int i = 0; i < 5; i++) job_uploads(first);
    CHECK_EQ(ring_stats(ring).pinned, 128 * KIB);
    first->ring = other;
    KIT_REFUSES(job_upload(first), GPUPOOL_E_HOST_MEMORY, "cuMemHostRegister");
    fake_pinned_limit(0);
    job_uploads(first);
    all_have_arrived();
    OK(gpupool_ring_destroy(other));
    end();
}

/* ---- calls of CUDA that fail ---- */

/* One failed wait for a hand breaks the ring for good: the first cause stays. What has ended well,
   has. */
static void stays_broken(void) {
    uint64_t done = 0;
    begin(1, MIB, 0);
    job_post(first);
    job_waits(first);
    fake_fail_call("cuEventSynchronize", 1, 0, 719);
    fake_fail_call("cuStreamSynchronize", 2, 0, 719); /* the first waits for the program's work */
    CHECK_RESULT(job_upload(first), GPUPOOL_E_CUDA);
    KIT_REFUSES(job_download(first), GPUPOOL_E_CUDA, "broken");
    CHECK(strstr(gpupool_last_error(), "cudaErrorLaunchFailure"));
    CHECK_RESULT(gpupool_upload(ring, first->device, first->host, 1, NULL), GPUPOOL_E_CUDA);
    OK(gpupool_ring_wait(ring, first->ticket, -1, &done));
    CHECK_EQ(done, BYTES);
    OK(gpupool_ring_destroy(ring));
    fake_fail_clear();
    job_close(first);
}

/* A copy that CUDA refuses fails its transfer only. */
static void refused_copy(void) {
    begin(1, MIB, 1);
    for (int n = 1; n < 4; n++) {
        fake_fail_call("cuMemcpyAsync", n, 0, 1);
        KIT_REFUSES(job_upload(first), GPUPOOL_E_CUDA, "cuMemcpyAsync: cudaErrorInvalidValue");
        fake_fail_call("cuMemcpyAsync", n, 0, 1);
        CHECK_RESULT(job_download(first), GPUPOOL_E_CUDA);
    }
    kit_fill(first->host, BYTES, 0, 0);
    job_uploads(first);
    all_have_arrived();
    end();
}

/* The context breaks while four threads are at it: all calls return, and say why. */
static void says_why(gpupool_result result) {
    if (result == GPUPOOL_OK) return;
    CHECK(result == GPUPOOL_E_CUDA || result == GPUPOOL_E_HOST_MEMORY);
    CHECK(gpupool_last_result() == result && gpupool_last_error()[0]);
}
static void *job_tries(void *user) {
    for (int i = 0; i < 6; i++) {
        says_why(job_upload((job *)user));
        says_why(job_download((job *)user));
    }
    return NULL;
}
static void breaks_amid_threads(void) {
    for (long n = 1; n < 400; n += 37) {
        check_case("call %ld", n);
        begin(4, MIB, 2);
        fake_break(n);
        in_threads(4, job_tries);
        CHECK(fake_is_broken());
        fake_fail_clear();
        end();
        CHECK_EQ(fake_failures() + fake_misuses(), 0);
        memset(kit_stream, 0, sizeof kit_stream);
        fake_quiet(1); /* what CUDA did not take back is left to the broken context */
        fake_reset();
        fake_quiet(0);
    }
}

/* The only part of a transfer is a worker's: it begins, and ends when somebody waits already. */
static atomic_int has_begun, may_end;

static int read_slowly(void *to, size_t bytes, uint64_t offset, void *user) {
    memset(to, 7, bytes);
    atomic_store(&has_begun, 1);
    while (!atomic_load(&may_end)) usleep(1000);
    return offset || user;
}

static void *let_it_end(void *unused) {
    usleep(100000);
    atomic_store(&may_end, 1);
    return unused;
}

static void the_end_is_told(void) {
    gpupool_ring *with = kit_ring(MIB, 64 * KIB, 1);
    unsigned char *memory = kit_device(1000);
    gpupool_transfer what = kit_up(memory, NULL, 1000, NULL);
    gpupool_ticket ticket;
    pthread_t thread;
    atomic_store(&has_begun, 0);
    atomic_store(&may_end, 0);
    what.read = read_slowly;
    ticket = kit_post(with, what);
    while (!atomic_load(&has_begun)) usleep(1000);
    if (pthread_create(&thread, NULL, let_it_end, NULL)) exit(1);
    OK(gpupool_ring_wait(with, ticket, -1, NULL));
    pthread_join(thread, NULL);
    OK(gpupool_ring_destroy(with));
    kit_device_free(memory, 1000);
}

int main(void) {
    KIT_TEST(eight_wait_for_a_ninth);
    KIT_TEST(calls_that_stand_still_hold_no_hand);
    KIT_TEST(rule_g);
    KIT_TEST(pinned_memory_is_waited_for);
    KIT_TEST(many_waiters);
    KIT_TEST(no_more_hands_than_bytes);
    KIT_TEST(others_go_on_beside_a_long_one);
    KIT_TEST(short_of_pinned_memory);
    KIT_TEST(stays_broken);
    KIT_TEST(refused_copy);
    KIT_TEST(breaks_amid_threads);
    KIT_TEST(the_end_is_told);
    return check_finish();
}

#else
int main(void) {
    check_skip("streams", "needs fakecuda's controls");
    return check_finish();
}
#endif
