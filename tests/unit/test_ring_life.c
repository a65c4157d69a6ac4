/* Children of fork, and processes that end while a ring is at work.

// build: plain
// build: asan -fsanitize=address
// build: tsan -fsanitize=thread
// left at exit: what children use that end in the middle
*/
#define _GNU_SOURCE
#include <sched.h>

static int give_way(void);
#define sched_yield give_way
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#undef sched_yield
#include "ring_kit.h"

#include <pthread.h>

#include <sys/wait.h>
#include <unistd.h>

#define BYTES (8 * MIB)

/* A child leaves with what runs at exit, but not on a GPU, where CUDA's own part in a child is not
   for a test to find out, nor where a search for leaks would wait for a lock that another thread
   held at the fork. */
#if defined(__SANITIZE_ADDRESS__)
#define LEAVE_CHILD _exit
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define LEAVE_CHILD _exit
#endif
#endif
#if !defined(LEAVE_CHILD) && CHECK_FAKE
#define LEAVE_CHILD exit
#elif !defined(LEAVE_CHILD)
#define LEAVE_CHILD _exit
#endif

/* ThreadSanitizer lets a process that has threads sleep for a second before it ends. The time that
   a process takes to end is measured here. */
const char *__tsan_default_options(void);
const char *__tsan_default_options(void) { return "atexit_sleep_ms=0"; }

static const char *own_name;

/* From a child to its parent: when it began to leave. */
static int told[2];

static void leave(void) {
    uint64_t left = gpi_host_now_ns();
    if (write(told[1], &left, sizeof left) != (ssize_t)sizeof left) _exit(9);
    exit(0);
}

/* A process of its own that leaves a ring, its workers and transfers behind. */
static int leave_it_all(void) {
    gpupool_ring_config config;
    gpupool_ring *ring;
    gpupool_ticket ticket;
    unsigned char *host = (unsigned char *)calloc(1, BYTES), *device;
    memset(&config, 0, sizeof config);
    config.bytes = MIB;
    config.workers = 3;
    if (cudaMalloc((void **)&device, BYTES) != cudaSuccess) return 2;
    if (gpupool_ring_create(&ring, &config) != GPUPOOL_OK) return 3;
    if (gpupool_upload(ring, device, host, BYTES, 0) != GPUPOOL_OK) return 4;
    for (int i = 0; i < 4; i++)
        if (kit_upload_async(ring, device, host, BYTES, 0, &ticket) != GPUPOOL_OK) return 5;
    leave();
    return 0;
}

/* One that ends while another thread destroys the ring, whose workers the end waits for. */
static gpupool_ring *ending;
static pthread_t caller, destroyer;
static atomic_int answer = -1; /* what destroy has said */

static void *destroy(void *unused) {
    atomic_store(&answer, (int)gpupool_ring_destroy(ending));
    return unused;
}

static int last_worker; /* 1: one is counted, which ends while the process waits for it */

static int give_way(void) {
    if (last_worker) return last_worker = 0, gpi_host_count_worker(-1);
    if (!pthread_equal(pthread_self(), caller) || !ending || destroyer) return sched_yield();
    if (pthread_create(&destroyer, NULL, destroy, NULL)) _exit(6);
    for (int i = 0; i < 200 && atomic_load(&answer) < 0; i++) usleep(1000);
    return gpi_host_count_worker(-1);
}

/* CUDA itself may have come to its end before, and says so. */
static void expect_answer(void) {
    int last = CHECK_FAKE ? (int)GPUPOOL_OK : (int)GPUPOOL_E_CUDA;
    if (!destroyer || pthread_join(destroyer, NULL)) _exit(7);
    if (atomic_load(&answer) != (int)GPUPOOL_OK && atomic_load(&answer) != last) _exit(8);
}

static int destroy_at_exit(void) {
    unsigned char *host = (unsigned char *)calloc(1, BYTES), *device;
    gpupool_ring *ring;
    caller = pthread_self();
    alarm(20);
    atexit(expect_answer); /* after the ring's own part */
    if (cudaMalloc((void **)&device, BYTES) != cudaSuccess) return 2;
    ring = kit_ring(MIB, 0, 3);
    if (gpupool_upload(ring, device, host, BYTES, 0) != GPUPOOL_OK) return 4;
    ending = ring;
    gpi_host_count_worker(1); /* so that the end waits, even if the ring's own have gone */
    leave();
    return 0;
}

static int status_of(pid_t child) {
    int status = -1;
    if (waitpid(child, &status, 0) != child) return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

/* Nanoseconds that the child took to leave. */
static uint64_t run_as(const char *what) {
    uint64_t left = 0, end;
    CHECK_EQ(pipe(told), 0);
    char descriptor[16];
    snprintf(descriptor, sizeof descriptor, "%d", told[1]);
    pid_t child = fork();
    if (child == 0) {
        execl(own_name, own_name, what, descriptor, (char *)NULL);
        _exit(99);
    }
    CHECK_EQ(status_of(child), 0);
    end = gpi_host_now_ns();
    close(told[1]);
    CHECK_EQ(read(told[0], &left, sizeof left), (ssize_t)sizeof left);
    close(told[0]);
    return end - left;
}

/* Nor does the end wait longer for the workers than they take. */
static void ending_in_the_middle_is_no_crash(void) {
    uint64_t quickest = UINT64_MAX;
    for (int i = 0; i < 10; i++) {
        uint64_t took = run_as("leave");
        if (took < quickest) quickest = took;
    }
    CHECK(quickest < (uint64_t)KIT_SECOND);
}

static void the_end_and_destroy_meet(void) { run_as("destroy"); }

static void a_child_is_told(void) {
    gpupool_ring *ring = kit_ring(MIB, 0, 2);
    unsigned char *host = kit_host(3 * MIB), *device = kit_device(3 * MIB);
    CHECK_RESULT(gpupool_upload(ring, device, host, 3 * MIB, kit_stream[0]), GPUPOOL_OK);
    pid_t child = fork();
    if (child == 0) {
        gpupool_ticket ticket;
        gpupool_span span;
        int wrong = 0;
        wrong += gpupool_upload(ring, device, host, 3 * MIB, kit_stream[0]) != GPUPOOL_E_FORKED;
        wrong += gpupool_upload(ring, device, host, 100, kit_stream[0]) != GPUPOOL_E_FORKED;
        wrong += kit_upload_async(ring, device, host, 100, 0, &ticket) != GPUPOOL_E_FORKED;
        wrong += gpupool_ring_acquire_span(ring, 100, -1, &span) != GPUPOOL_E_FORKED;
        wrong += gpupool_ring_destroy(ring) != GPUPOOL_E_FORKED;
        wrong += gpupool_ring_create(&ring, NULL) != GPUPOOL_E_FORKED;
        LEAVE_CHILD(wrong);
    }
    CHECK_EQ(status_of(child), 0);
    kit_pattern(host, 3 * MIB, 3); /* the parent goes on */
    CHECK_RESULT(gpupool_upload(ring, device, host, 3 * MIB, kit_stream[0]), GPUPOOL_OK);
    kit_expect_device(device, 3 * MIB, 3);
    memset(host, 0xee, 3 * MIB);
    kit_host_free(host, 3 * MIB);
    kit_device_free(device, 3 * MIB);
    kit_ring_close(ring);
}

/* The end wakes those that sleep, and waits for the last. */
static void the_end_waits_for_the_last_worker(void) {
    gpupool_ring *ring = kit_ring(MIB, 0, 0);
    unsigned seen = gpi_host_gate_seen(&gpi_process.gate);
    CHECK_EQ(gpi_host_count_worker(1), 1);
    last_worker = 1;
    gpi_ring_at_exit();
    CHECK_EQ(gpi_host_count_worker(0), 0);
    CHECK(gpi_host_gate_seen(&gpi_process.gate) != seen);
    CHECK_EQ(gpi_ring_stops(ring), 1);
    gpi_process.ending = 0;
    kit_ring_close(ring);
}

/* Another thread may be waking those that sleep when the process forks: the child, which has no
   workers, does not wait at exit for a mutex that nobody gives back. */
static void a_child_ends_without_the_gate(void) {
    gpupool_ring *ring = kit_ring(MIB, 0, 0);
    gpi_host_gate_lock(&gpi_process.gate);
    pid_t child = fork();
    if (child == 0) {
        alarm(20);
        LEAVE_CHILD(0);
    }
    gpi_host_gate_unlock(&gpi_process.gate);
    CHECK_EQ(status_of(child), 0);
    kit_ring_close(ring);
}

#if CHECK_FAKE
/* Where CUDA does not tell whether the device was reset, the ring is there for the next try. */
static void a_reset_that_is_not_told(void) {
    gpupool_ring *ring = kit_ring(MIB, 0, 0);
    unsigned char *host = kit_host(3 * MIB), *device = kit_device(3 * MIB);
    for (int reset = 0; reset < 2; reset++) {
        if (reset) CHECK_EQ(cudaDeviceReset(), cudaSuccess);
        fake_fail_call("cuCtxGetId", 1, 1, 0);
        CHECK_RESULT(gpupool_upload(ring, device, host, 100, 0), GPUPOOL_E_CUDA);
        CHECK_RESULT(gpupool_ring_destroy(ring), GPUPOOL_E_CUDA);
        CHECK(strstr(gpupool_last_error(), "cuCtxGetId") != NULL);
        fake_fail_clear();
        CHECK_RESULT(gpupool_upload(ring, device, host, 100, 0),
                     reset ? GPUPOOL_E_CUDA : GPUPOOL_OK);
    }
    for (int i = 0; i < KIT_STREAMS; i++) kit_stream[i] = NULL;
    kit_ring_close(ring);
    kit_host_free(host, 3 * MIB);
}
#endif

/* Of a ring with workers that sleep, and of one that had work: a held span, a ticket, chunks that
   nobody has asked after. */
static void a_reset_takes_it_all(void) {
    gpupool_ring *staffed = kit_ring(MIB, 0, 2), *ring = kit_ring(MIB, 0, 0);
    unsigned char *host = kit_host(3 * MIB), *device = kit_device(3 * MIB);
    gpupool_ticket ticket;
    gpupool_span span, other;
    CHECK_RESULT(gpupool_upload(staffed, device, host, 3 * MIB, kit_stream[0]), GPUPOOL_OK);
    CHECK_RESULT(gpupool_ring_acquire_span(ring, 100, 0, &span), GPUPOOL_OK);
    CHECK_RESULT(gpupool_upload(ring, device, host, MIB, kit_stream[0]), GPUPOOL_OK);
#if CHECK_FAKE
    fake_hold(kit_stream[1], 1);
#endif
    CHECK_EQ(cudaMemsetAsync(device, 1, 100, kit_stream[1]), cudaSuccess);
    CHECK_RESULT(kit_upload_async(ring, device, host, MIB, kit_stream[1], &ticket), GPUPOOL_OK);
    CHECK_EQ(cudaDeviceReset(), cudaSuccess);
    for (int i = 0; i < KIT_STREAMS; i++) kit_stream[i] = NULL;
    CHECK_RESULT(gpupool_upload(ring, device, host, MIB, 0), GPUPOOL_E_CUDA);
    CHECK(strstr(gpupool_last_error(), "was reset") != NULL);
    CHECK_EQ(cudaMalloc((void **)&device, 100), cudaSuccess); /* the device works again */
    CHECK_RESULT(gpupool_upload(ring, device, host, 100, 0), GPUPOOL_E_CUDA);
    CHECK_RESULT(gpupool_download(ring, host, device, 100, 0), GPUPOOL_E_CUDA);
    CHECK_EQ(cudaFree(device), cudaSuccess);
    CHECK_RESULT(gpupool_ring_wait(ring, ticket, -1), GPUPOOL_E_CUDA);
    CHECK_RESULT(gpupool_ring_acquire_span(ring, 100, -1, &other), GPUPOOL_E_CUDA);
    CHECK_RESULT(gpupool_ring_cancel_span(ring, &span), GPUPOOL_E_CUDA);
    CHECK_RESULT(gpupool_ring_trim(ring, 0, NULL), GPUPOOL_E_CUDA);
    kit_ring_close(ring);
    kit_ring_close(staffed);
    memset(host, 0xee, 3 * MIB);
    kit_host_free(host, 3 * MIB);
}

#if CHECK_FAKE
/* A ticket for part of a file: what the ring has opened for it is closed. */
static void a_reset_closes_files(void) {
    gpupool_ring *ring = kit_ring(MIB, 0, 0);
    unsigned char *device = kit_device(3 * MIB);
    FILE *file = tmpfile();
    gpupool_transfer transfer = kit_transfer(GPUPOOL_UP, device, NULL, 3 * MIB, kit_stream[0]);
    gpupool_ticket ticket;
    int least, after;
    CHECK_EQ(ftruncate(fileno(file), 3 * MIB), 0);
    least = dup(0); /* the lowest descriptor that is free */
    close(least);
    transfer.is_file = 1;
    transfer.file = fileno(file);
    transfer.ticket = &ticket;
    CHECK_RESULT(gpupool_ring_transfer(ring, &transfer), GPUPOOL_OK);
    CHECK_EQ(cudaDeviceReset(), cudaSuccess);
    for (int i = 0; i < KIT_STREAMS; i++) kit_stream[i] = NULL;
    kit_ring_close(ring);
    after = dup(0);
    CHECK_EQ(after, least);
    close(after);
    fclose(file);
}
#endif

int main(int argc, char **argv) {
    own_name = argv[0];
    if (argc > 2) {
        told[1] = atoi(argv[2]);
        return strcmp(argv[1], "leave") ? destroy_at_exit() : leave_it_all();
    }
    TEST(ending_in_the_middle_is_no_crash);
    TEST(the_end_and_destroy_meet);
    ARENA_TEST(a_child_is_told);
    ARENA_TEST(a_child_ends_without_the_gate);
    ARENA_TEST(the_end_waits_for_the_last_worker);
    FAKE_TEST(a_reset_that_is_not_told);
    ARENA_TEST(a_reset_takes_it_all);
    FAKE_TEST(a_reset_closes_files);
    return check_finish();
}
