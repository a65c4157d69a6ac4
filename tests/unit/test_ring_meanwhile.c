/* What other threads do to the ring while one has its lock open around a CUDA call, or is in the
   caller's function. */
#define _DEFAULT_SOURCE /* usleep */
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "ring_kit.h"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#define BYTES (300 * KIB)

static gpupool_ring *ring;
static unsigned char *host, *device;

static void scene_of(size_t bytes, size_t chunk_bytes) {
    ring = kit_ring(bytes, chunk_bytes, 0);
    host = kit_host(BYTES);
    device = kit_device(BYTES);
    kit_pattern(host, BYTES, 1);
}

static void scene_open(size_t bytes) { scene_of(bytes, 0); }

static void scene_close(void) {
    kit_host_free(host, BYTES);
    kit_device_free(device, BYTES);
    kit_ring_close(ring);
}

/* ---- in the caller's function ---- */

static int ask(void *to, size_t bytes, uint64_t offset, void *answer) {
    memset(to, 1, bytes);
    CHECK_RESULT(gpupool_ring_check(ring), GPUPOOL_OK);
    CHECK_RESULT(gpupool_ring_wait(ring, 0, -1), GPUPOOL_E_ARGUMENT); /* its own has none */
    CHECK(kit_ring_stats(ring).under_way_ns[GPUPOOL_UP] > 0 || offset == 0);
    return *(int *)answer;
}

static void a_function_may_ask_after_the_ring(void) {
    int answer = 0;
    scene_open(MIB);
    CHECK_RESULT(kit_upload_from(ring, device, BYTES, ask, &answer, kit_stream[0]), GPUPOOL_OK);
    answer = 7;
    CHECK_RESULT(kit_upload_from(ring, device, BYTES, ask, &answer, kit_stream[0]),
                 GPUPOOL_E_CALLBACK);
    CHECK_RESULT(kit_upload_from(ring, device, 100 * KIB, ask, &answer, kit_stream[0]),
                 GPUPOOL_E_CALLBACK); /* of a single chunk */
    CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
    CHECK_RESULT(gpupool_ring_trim(ring, 0, NULL), GPUPOOL_OK);
    CHECK_EQ(kit_ring_stats(ring).used.now, 0);
    scene_close();
}

/* Which would be where the ring makes its next event, and where the caller finds himself. */
static int leave_for_another_device(void *to, size_t bytes, uint64_t offset, void *unused) {
    (void)offset, (void)unused;
    memset(to, 1, bytes);
    CHECK_EQ(cudaSetDevice(kit_devices() - 1), cudaSuccess);
    return 0;
}

static void a_function_may_change_the_device(void) {
    int current = -1;
    scene_open(MIB);
    CHECK_RESULT(kit_upload_from(ring, device, BYTES, leave_for_another_device, NULL,
                                     kit_stream[0]), GPUPOOL_OK);
    CHECK_EQ(cudaGetDevice(&current), cudaSuccess);
    CHECK_EQ(current, 0);
    CHECK_EQ(cudaSetDevice(0), cudaSuccess);
    CHECK_RESULT(gpupool_upload(ring, device, host, BYTES, kit_stream[0]), GPUPOOL_OK);
    kit_expect_device(device, BYTES, 1);
    scene_close();
}

/* Without workers a function has one call at a time, whatever others wait for meanwhile. */
static int bring_alone(void *to, size_t bytes, uint64_t offset, void *elsewhere) {
    static int inside;
    gpupool_ticket ticket = 0;
    CHECK_EQ(inside++, 0);
    memset(to, 1, bytes);
    if (offset == 0) {
        CHECK_RESULT(kit_upload_async(ring, elsewhere, host, BYTES, kit_stream[1], &ticket),
                     GPUPOOL_OK);
        CHECK_RESULT(gpupool_ring_wait(ring, ticket, -1), GPUPOOL_OK);
    }
    inside--;
    return 0;
}

static void a_function_is_its_callers_alone(void) {
    scene_open(2 * MIB);
    unsigned char *elsewhere = kit_device(BYTES);
    CHECK_RESULT(kit_upload_from(ring, device, BYTES, bring_alone, elsewhere, kit_stream[0]),
                 GPUPOOL_OK);
    kit_expect_device(elsewhere, BYTES, 1);
    kit_device_free(elsewhere, BYTES);
    scene_close();
}

#if CHECK_FAKE

static gpupool_result upload(void) {
    return gpupool_upload(ring, device, host, BYTES, kit_stream[0]);
}

/* Nor do two threads that wait for its ticket call it at the same time, or in another order. */
static atomic_int callers;
static uint64_t next_offset;

static int one_at_a_time(size_t bytes, uint64_t offset) {
    CHECK_EQ(callers++, 0);
    CHECK_EQ(offset, next_offset);
    usleep(5000); /* the other thread looks for work meanwhile */
    next_offset = offset + bytes;
    callers--;
    return 0;
}

static int bring_in_order(void *to, size_t bytes, uint64_t offset, void *unused) {
    (void)unused;
    memset(to, 1, bytes);
    return one_at_a_time(bytes, offset);
}

static int take_in_order(const void *from, size_t bytes, uint64_t offset, void *unused) {
    (void)unused;
    kit_is_byte(from, bytes, 1);
    return one_at_a_time(bytes, offset);
}

static void *wait_for_it(void *ticket) {
    CHECK_RESULT(gpupool_ring_wait(ring, *(gpupool_ticket *)ticket, -1), GPUPOOL_OK);
    return NULL;
}

static void a_ticket_of_two_waiters(void) {
    gpupool_ticket ticket = 0;
    scene_open(MIB);
    for (int down = 0; down < 2; down++) {
        gpupool_transfer one = kit_transfer(down ? GPUPOOL_DOWN : GPUPOOL_UP, down ? NULL : device,
                                            down ? device : NULL, BYTES, kit_stream[0]);
        pthread_t thread;
        if (down) one.write = take_in_order;
        else one.read = bring_in_order;
        one.ticket = &ticket;
        next_offset = 0;
        CHECK_RESULT(gpupool_ring_transfer(ring, &one), GPUPOOL_OK);
        CHECK_EQ(pthread_create(&thread, NULL, wait_for_it, &ticket), 0);
        wait_for_it(&ticket);
        CHECK_EQ(pthread_join(thread, NULL), 0);
        CHECK_EQ(next_offset, BYTES);
    }
    scene_close();
}

/* Where the transfer has no function, both work for it. */
static void ask_for_it(void *ticket) {
    CHECK_RESULT(gpupool_ring_wait(ring, *(gpupool_ticket *)ticket, 1), GPUPOOL_E_TIMEOUT);
    CHECK(ring->transfers->working == 1 && ring->transfers->cursor > 0);
}

static void memory_of_two_waiters(void) {
    gpupool_ticket ticket = 0;
    scene_open(MIB);
    CHECK_RESULT(kit_upload_async(ring, device, host, BYTES, kit_stream[0], &ticket), GPUPOOL_OK);
    fake_before_call("cuEventQuery", 1, ask_for_it, &ticket);
    CHECK_RESULT(gpupool_ring_wait(ring, ticket, -1), GPUPOOL_OK);
    kit_expect_device(device, BYTES, 1);
    scene_close();
}

/* With workers it is theirs and its caller's: who waits for a ticket, for which nothing can be done
   now, may hold what the function needs. */
static pthread_t waiter;
static atomic_int inside, wait_is_over;

static int bring_for_others(void *to, size_t bytes, uint64_t offset, void *unused) {
    (void)offset, (void)unused;
    CHECK(!pthread_equal(pthread_self(), waiter));
    inside++;
    while (!wait_is_over && !pthread_equal(pthread_self(), waiter)) sched_yield();
    memset(to, 1, bytes);
    return 0;
}

static void *upload_from_elsewhere(void *unused) {
    (void)unused;
    CHECK_RESULT(kit_upload_from(ring, device, 4 * MIB, bring_for_others, NULL, kit_stream[0]),
                 GPUPOOL_OK);
    return NULL;
}

static pthread_t hold_up_the_workers(void) {
    pthread_t thread;
    ring = kit_ring(4 * MIB, 256 * KIB, 2);
    device = kit_device(4 * MIB);
    waiter = pthread_self();
    inside = wait_is_over = 0;
    CHECK_EQ(pthread_create(&thread, NULL, upload_from_elsewhere, NULL), 0);
    while (inside < 3) sched_yield(); /* the caller and both workers */
    return thread;
}

static void let_the_workers_go(pthread_t thread) {
    wait_is_over = 1;
    pthread_join(thread, NULL);
    kit_device_free(device, 4 * MIB);
    kit_ring_close(ring);
}

static void a_function_is_no_waiters(void) {
    unsigned char byte = 7, *elsewhere = kit_device(1);
    gpupool_ticket ticket = 0;
    pthread_t thread = hold_up_the_workers();
    fake_hold(kit_stream[1], 1);
    CHECK_RESULT(kit_upload_async(ring, elsewhere, &byte, 1, kit_stream[1], &ticket),
                 GPUPOOL_OK);
    CHECK_RESULT(gpupool_ring_wait(ring, ticket, KIT_SECOND / 10), GPUPOOL_E_TIMEOUT);
    fake_hold(kit_stream[1], 0);
    CHECK_RESULT(gpupool_ring_wait(ring, ticket, -1), GPUPOOL_OK);
    kit_device_free(elsewhere, 1);
    let_the_workers_go(thread);
}

/* All workers are in a function that waits for this thread: what this one waits for gets on, once
   they have had their time, however short it looks each time. */
static void a_ticket_beside_held_up_workers(void) {
    unsigned char byte = 7, *elsewhere = kit_device(1);
    gpupool_ticket ticket = 0;
    gpupool_result result = GPUPOOL_E_TIMEOUT;
    unsigned asked = 0;
    pthread_t thread = hold_up_the_workers();
    CHECK_RESULT(kit_upload_async(ring, elsewhere, &byte, 1, kit_stream[1], &ticket),
                 GPUPOOL_OK);
    for (; asked < 1000 && result == GPUPOOL_E_TIMEOUT; asked++)
        result = gpupool_ring_wait(ring, ticket, 0);
    CHECK_RESULT(result, GPUPOOL_OK);
    kit_device_free(elsewhere, 1);
    let_the_workers_go(thread);
}

/* Nor is it who waits for a span's: without workers it is its caller's alone. */
static atomic_int begun;

static int bring_slowly(void *to, size_t bytes, uint64_t offset, void *unused) {
    (void)offset, (void)unused;
    begun = 1;
    CHECK(!pthread_equal(pthread_self(), waiter));
    gpi_host_idle(1000);
    memset(to, 1, bytes);
    return 0;
}

static void *upload_slowly(void *unused) {
    (void)unused;
    CHECK_RESULT(kit_upload_from(ring, device, 4 * MIB, bring_slowly, NULL, kit_stream[0]),
                 GPUPOOL_OK);
    return NULL;
}

static void a_function_is_not_for_who_waits_for_a_span(void) {
    gpupool_span span;
    pthread_t thread;
    ring = kit_ring(256 * KIB, 0, 0);
    device = kit_device(4 * MIB);
    waiter = pthread_self();
    CHECK_EQ(pthread_create(&thread, NULL, upload_slowly, NULL), 0);
    while (!begun) sched_yield();
    CHECK_RESULT(gpupool_ring_acquire_span(ring, 256 * KIB, -1, &span), GPUPOOL_OK);
    CHECK_RESULT(gpupool_ring_cancel_span(ring, &span), GPUPOOL_OK);
    pthread_join(thread, NULL);
    kit_device_free(device, 4 * MIB);
    kit_ring_close(ring);
}

/* Chunks that have landed for a function that takes its time fill the ring: others on the same
   stream go on without. */
static int full, done_beside;

static int take_until_another_is_done(const void *from, size_t bytes, uint64_t at, void *unused) {
    uint64_t start = gpi_host_now_ns();
    (void)from, (void)bytes, (void)at, (void)unused;
    __atomic_store_n(&full, 1, __ATOMIC_RELEASE);
    while (!__atomic_load_n(&done_beside, __ATOMIC_ACQUIRE))
        if (gpi_host_now_ns() - start > 60 * (uint64_t)KIT_SECOND) return 5;
    return 0;
}

static void *download_beside(void *unused) {
    (void)unused;
    while (!__atomic_load_n(&full, __ATOMIC_ACQUIRE)) sched_yield();
    CHECK_RESULT(gpupool_download(ring, host, device, BYTES, kit_stream[0]), GPUPOOL_OK);
    __atomic_store_n(&done_beside, 1, __ATOMIC_RELEASE);
    return NULL;
}

static void a_slow_function_holds_up_nobody(void) {
    pthread_t thread;
    scene_open(256 * KIB);
    unsigned char *much = kit_device(4 * MIB);
    CHECK_EQ(pthread_create(&thread, NULL, download_beside, NULL), 0);
    CHECK_RESULT(kit_download_to(ring, much, 4 * MIB, take_until_another_is_done, NULL,
                                     kit_stream[0]), GPUPOOL_OK);
    pthread_join(thread, NULL);
    kit_device_free(much, 4 * MIB);
    memset(host, 0xee, BYTES);
    scene_close();
}

/* ---- in a CUDA call ---- */

static void trim_and_upload(void *unused) {
    size_t released = 77;
    (void)unused;
    CHECK_RESULT(gpupool_ring_trim(ring, 0, &released), GPUPOOL_OK);
    CHECK_EQ(released, 0);
    CHECK_RESULT(upload(), GPUPOOL_OK); /* without pinned memory */
}

static void one_pins_at_a_time(void) {
    scene_open(MIB);
    fake_before_call("cuMemHostRegister", 1, trim_and_upload, NULL);
    CHECK_RESULT(upload(), GPUPOOL_OK);
    CHECK_EQ(fake_calls("cuMemHostRegister"), 1);
    CHECK(kit_ring_stats(ring).slow_chunks > 0);
    kit_expect_device(device, BYTES, 1);
    scene_close();
}

static void ask_and_trim(void *unused) {
    gpupool_span span;
    size_t released = 77;
    (void)unused;
    CHECK_RESULT(gpupool_ring_acquire_span(ring, 8 * MIB, 0, &span), GPUPOOL_E_TIMEOUT);
    CHECK_RESULT(gpupool_ring_trim(ring, 0, &released), GPUPOOL_OK);
    CHECK_EQ(released, 0);
}

static void trim_only(void *unused) {
    size_t released = 77;
    (void)unused;
    CHECK_EQ(kit_ring_stats(ring).pinned.now, 2 * MIB);
    CHECK_RESULT(gpupool_ring_trim(ring, 0, &released), GPUPOOL_OK);
    CHECK_EQ(released, 0);
}

static void nobody_pins_what_is_being_unpinned(void) {
    gpupool_span span;
    size_t released = 77;
    scene_open(8 * MIB);
    for (int i = 0; i < 2; i++) {
        CHECK_RESULT(gpupool_ring_acquire_span(ring, 8 * MIB, 0, &span), GPUPOOL_OK);
        CHECK_RESULT(gpupool_ring_cancel_span(ring, &span), GPUPOOL_OK);
        if (i) break;
        fake_before_call("cuMemHostUnregister", 1, ask_and_trim, NULL);
        CHECK_RESULT(gpupool_ring_trim(ring, 0, &released), GPUPOOL_OK);
        CHECK_EQ(released, 8 * MIB);
        CHECK_EQ(kit_ring_stats(ring).pin_failures, 0);
    }
    scene_close();
}

/* A span on its way is no longer held: nobody else gives it up, or sends it once more. */
static void give_up_and_send(void *span) {
    gpupool_span same = *(gpupool_span *)span;
    CHECK_RESULT(gpupool_ring_cancel_span(ring, &same), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(gpupool_ring_upload_span(ring, &same, device, kit_stream[1]), GPUPOOL_E_ARGUMENT);
}

static void a_span_is_sent_once(void) {
    gpupool_span span;
    scene_open(MIB);
    CHECK_RESULT(gpupool_ring_acquire_span(ring, BYTES, 0, &span), GPUPOOL_OK);
    kit_pattern((unsigned char *)span.memory, BYTES, 2);
    fake_before_call("cuMemcpyAsync", 1, give_up_and_send, &span);
    CHECK_RESULT(gpupool_ring_upload_span(ring, &span, device, kit_stream[0]), GPUPOOL_OK);
    CHECK_EQ(fake_calls("cuMemcpyAsync"), 2); /* it takes two slots */
    kit_expect_device(device, BYTES, 2);
    scene_close();
}

/* A trim tells what it has unpinned, whatever others pin while it asks after copies. */
static void pin_all(void *unused) {
    gpupool_span span;
    (void)unused;
    CHECK_RESULT(gpupool_ring_acquire_span(ring, 6 * MIB, 0, &span), GPUPOOL_OK);
    CHECK_RESULT(gpupool_ring_cancel_span(ring, &span), GPUPOOL_OK);
}

static void a_trim_counts_its_own(void) {
    size_t released = 77;
    scene_open(8 * MIB);
    CHECK_RESULT(upload(), GPUPOOL_OK);
    CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
    fake_before_call("cuEventQuery", 1, pin_all, NULL);
    CHECK_RESULT(gpupool_ring_trim(ring, 0, &released), GPUPOOL_OK);
    CHECK_EQ(fake_calls("cuMemHostUnregister"), 4);
    CHECK_EQ(released, 8 * MIB);
    scene_close();
}

/* What is pinned already stays, free as it is, while more is being pinned beside it. */
static void nothing_is_unpinned_while_another_pins(void) {
    gpupool_span span;
    size_t released = 0;
    scene_open(8 * MIB);
    CHECK_RESULT(gpupool_ring_acquire_span(ring, MIB, 0, &span), GPUPOOL_OK);
    CHECK_RESULT(gpupool_ring_cancel_span(ring, &span), GPUPOOL_OK);
    fake_before_call("cuMemHostRegister", 1, trim_only, NULL);
    CHECK_RESULT(gpupool_ring_acquire_span(ring, 8 * MIB, 0, &span), GPUPOOL_OK);
    CHECK_EQ(fake_calls("cuMemHostRegister"), 4);
    CHECK_RESULT(gpupool_ring_cancel_span(ring, &span), GPUPOOL_OK);
    CHECK_RESULT(gpupool_ring_trim(ring, 0, &released), GPUPOOL_OK);
    CHECK_EQ(released, 8 * MIB);
    scene_close();
}

/* A trim misses no slot whose copy has ended, though another thread is just asking after it. */
static pthread_t trimmer;

static void *trim_all(void *unused) {
    size_t released = 0;
    CHECK_RESULT(gpupool_ring_trim(ring, 0, &released), GPUPOOL_OK);
    CHECK(released > 0);
    CHECK_EQ(kit_ring_stats(ring).pinned.now, 0);
    return unused;
}

static void trim_beside(void *unused) {
    CHECK_EQ(pthread_create(&trimmer, NULL, trim_all, unused), 0);
    usleep(30000); /* it comes to the slots while this thread asks */
}

static void a_trim_beside_a_look_at_the_slots(void) {
    gpupool_result result = GPUPOOL_OK;
    scene_open(MIB);
    CHECK_RESULT(upload(), GPUPOOL_OK);
    CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
    fake_before_call("cuEventQuery", 1, trim_beside, NULL);
    gpi_ring_lock(ring);
    gpi_stage_poll(&ring->stage, &result);
    gpi_ring_unlock(ring);
    pthread_join(trimmer, NULL);
    CHECK_RESULT(result, GPUPOOL_OK);
    scene_close();
}

/* A slot whose copy nobody knows the end of stays taken, and is no span of the caller's. */
static void a_lost_slot_is_no_span(void) {
    gpupool_span forged;
    scene_open(MIB);
    fake_fail_call("cuEventRecord", 1, 1, 0);
    fake_fail_call("cuStreamSynchronize", 1, 1, 0);
    CHECK_RESULT(upload(), GPUPOOL_E_CUDA);
    fake_fail_clear();
    CHECK_EQ(ring->stage.slots[0].state, GPI_STAGE_TAKEN);
    memset(&forged, 0, sizeof forged);
    forged.memory = gpi_stage_memory(&ring->stage, &ring->stage.slots[0]);
    forged.bytes = 1000;
    CHECK_RESULT(gpupool_ring_cancel_span(ring, &forged), GPUPOOL_E_ARGUMENT);
    CHECK_EQ(ring->stage.slots[0].state, GPI_STAGE_TAKEN);
    scene_close();
}

/* As another thread's chunk of the same transfer does. */
static void fail_it(void *unused) {
    (void)unused;
    gpi_ring_lock(ring);
    gpi_host_fail(GPUPOOL_E_CUDA, "elsewhere");
    gpi_ring_fail(ring->transfers, GPUPOOL_E_CUDA);
    gpi_ring_unlock(ring);
}

static void failed_elsewhere(void) {
    scene_open(MIB);
    fake_before_call("cuMemHostRegister", 1, fail_it, NULL);
    CHECK_RESULT(upload(), GPUPOOL_E_CUDA);
    CHECK(!strcmp(gpupool_last_error(), "elsewhere"));
    CHECK_EQ(kit_ring_stats(ring).used.now, 0);
    CHECK_RESULT(upload(), GPUPOOL_OK);
    scene_close();
}

/* Another thread takes the chunk that this one was about to, or all but a smaller one, or all that
   are left: it goes on with the next, or has nothing to do. */
static void take_chunks(void *most) {
    gpi_ring_lock(ring);
    for (int i = 0; i < *(int *)most && ring->transfers->cursor < BYTES; i++)
        CHECK_EQ(gpi_ring_step(ring, ring->transfers), 1);
    gpi_ring_unlock(ring);
}

static void begun_elsewhere(void) {
    int mosts[] = {1, 2, 100};
    for (size_t i = 0; i < KIT_COUNT(mosts); i++) {
        scene_of(4 * MIB, 64 * KIB);
        unsigned char *other = kit_device(BYTES);
        gpupool_span all; /* so that all is pinned */
        CHECK_RESULT(gpupool_ring_acquire_span(ring, 4 * MIB, 0, &all), GPUPOOL_OK);
        CHECK_RESULT(gpupool_ring_cancel_span(ring, &all), GPUPOOL_OK);
        fake_hold(kit_stream[1], 1);
        CHECK_RESULT(gpupool_upload(ring, other, host, BYTES, kit_stream[1]), GPUPOOL_OK);
        fake_before_call("cuEventQuery", 1, take_chunks, &mosts[i]); /* after what flies */
        CHECK_RESULT(upload(), GPUPOOL_OK);
        fake_hold(kit_stream[1], 0);
        kit_expect_device(device, BYTES, 1);
        kit_device_free(other, BYTES);
        scene_close();
    }
}

/* A chunk fails while another thread is at one of the same transfer: the end waits for it. */
static void fail_a_chunk(void *unused) {
    (void)unused;
    fake_fail_call("cuMemcpyAsync", 1, 0, 0);
    gpi_ring_lock(ring);
    for (int i = 0; i < 3; i++) gpi_ring_step(ring, ring->transfers);
    CHECK(ring->transfers && ring->transfers->result != GPUPOOL_OK);
    gpi_ring_unlock(ring);
}

static void failed_beside_another_chunk(void) {
    gpupool_ticket ticket = 0;
    scene_open(4 * MIB);
    CHECK_RESULT(kit_upload_async(ring, device, host, BYTES, kit_stream[0], &ticket),
                 GPUPOOL_OK);
    fake_before_call("cuMemcpyAsync", 1, fail_a_chunk, NULL);
    CHECK_RESULT(gpupool_ring_wait(ring, ticket, -1), GPUPOOL_E_CUDA);
    fake_fail_clear();
    CHECK_RESULT(gpupool_ring_trim(ring, 0, NULL), GPUPOOL_OK);
    CHECK_EQ(kit_ring_stats(ring).used.now, 0);
    CHECK_RESULT(upload(), GPUPOOL_OK);
    kit_expect_device(device, BYTES, 1);
    scene_close();
}

/* A worker asks whether earlier copies have ended. The only transfer, which others do meanwhile,
   does not end before the answer: afterwards the program may reset the device. */
static void do_all_of_it(void *unused) {
    (void)unused;
    fake_hold(kit_stream[0], 0); /* the work that the transfer waits for */
    gpi_ring_lock(ring);
    gpi_transfer *transfer = ring->transfers;
    CHECK_EQ(transfer->asking, 1);
    for (int i = 0; i < 20 && ring->transfers; i++) gpi_ring_step(ring, transfer);
    CHECK(ring->transfers == transfer && transfer->cursor == transfer->bytes);
    CHECK(!transfer->gated && !transfer->lands && !transfer->working);
    gpi_ring_unlock(ring);
}

static void who_asks_keeps_a_transfer(void) {
    gpupool_ticket ticket = 0;
    scene_open(4 * MIB);
    unsigned char *other = kit_device(BYTES);
    CHECK_RESULT(gpupool_upload(ring, other, host, BYTES, kit_stream[1]), GPUPOOL_OK);
    CHECK(kit_ring_stats(ring).used.now > 0); /* nobody has asked */
    fake_hold(kit_stream[0], 1);
    CHECK_RESULT(kit_upload_async(ring, device, host, BYTES, kit_stream[0], &ticket),
                 GPUPOOL_OK);
    fake_before_call("cuEventQuery", 2, do_all_of_it, NULL); /* the first is about its own wait */
    gpi_ring_lock(ring);
    CHECK_EQ(gpi_ring_work(ring, GPI_RING_UPLOADS), 1);
    CHECK(ring->transfers == NULL);
    gpi_ring_unlock(ring);
    CHECK_RESULT(gpupool_ring_wait(ring, ticket, -1), GPUPOOL_OK);
    kit_expect_device(device, BYTES, 1);
    kit_device_free(other, BYTES);
    scene_close();
}

/* A span is waited for without end: until what flies has landed. */
static void let_it_land(void *stream) { fake_hold((cudaStream_t)stream, 0); }

static void a_span_waited_for_without_end(void) {
    gpupool_span span;
    scene_open(MIB);
    CHECK_RESULT(gpupool_ring_acquire_span(ring, MIB, 0, &span), GPUPOOL_OK);
    kit_pattern((unsigned char *)span.memory, BYTES, 1);
    span.bytes = BYTES;
    fake_hold(kit_stream[0], 1);
    CHECK_RESULT(gpupool_ring_upload_span(ring, &span, device, kit_stream[0]), GPUPOOL_OK);
    fake_before_call("cuEventQuery", 5, let_it_land, kit_stream[0]);
    CHECK_RESULT(gpupool_ring_acquire_span(ring, MIB, -1, &span), GPUPOOL_OK);
    CHECK_EQ(fake_calls("cuEventQuery"), 5);
    kit_expect_device(device, BYTES, 1);
    CHECK_RESULT(gpupool_ring_cancel_span(ring, &span), GPUPOOL_OK);
    scene_close();
}

/* Another thread may not pin; this one waits for what flies, which is in its way. */
static void let_another_fail_to_pin(void *other) {
    fake_fail_call("cuMemHostRegister", 1, 1, 0);
    CHECK_RESULT(gpupool_upload(ring, other, host, BYTES, kit_stream[1]), GPUPOOL_OK);
    CHECK(kit_ring_stats(ring).pin_failures >= 1); /* more, where 100 ms have passed */
}

static void another_may_not_pin(void) {
    unsigned char *other = kit_device(BYTES);
    gpupool_span first, span;
    memset(&span, 0, sizeof span);
    scene_open(8 * MIB);
    fake_hold(kit_stream[0], 1);
    CHECK_RESULT(gpupool_ring_acquire_span(ring, 4 * MIB, 0, &first), GPUPOOL_OK);
    first.bytes = BYTES;
    memset(first.memory, 0, BYTES);
    CHECK_RESULT(gpupool_ring_upload_span(ring, &first, device, kit_stream[0]), GPUPOOL_OK);
    fake_before_call("cuEventQuery", 1, let_another_fail_to_pin, other);
    CHECK_RESULT(gpupool_ring_acquire_span(ring, 4 * MIB, KIT_SECOND / 50, &span),
                 GPUPOOL_E_TIMEOUT);
    CHECK(kit_ring_stats(ring).pin_failures >= 1);
    fake_fail_clear();
    fake_hold(kit_stream[0], 0);
    CHECK_RESULT(gpupool_ring_acquire_span(ring, 4 * MIB, -1, &span), GPUPOOL_OK);
    CHECK_RESULT(gpupool_ring_cancel_span(ring, &span), GPUPOOL_OK);
    kit_device_free(other, BYTES);
    scene_close();
}
#endif

int main(void) {
    ARENA_TEST(a_function_may_ask_after_the_ring);
    ARENA_TEST(a_function_may_change_the_device);
    ARENA_TEST(a_function_is_its_callers_alone);
    FAKE_TEST(a_ticket_of_two_waiters);
    FAKE_TEST(memory_of_two_waiters);
    FAKE_TEST(a_function_is_no_waiters);
    FAKE_TEST(a_ticket_beside_held_up_workers);
    FAKE_TEST(a_function_is_not_for_who_waits_for_a_span);
    FAKE_TEST(a_slow_function_holds_up_nobody);
    FAKE_TEST(one_pins_at_a_time);
    FAKE_TEST(nobody_pins_what_is_being_unpinned);
    FAKE_TEST(a_span_is_sent_once);
    FAKE_TEST(nothing_is_unpinned_while_another_pins);
    FAKE_TEST(a_trim_counts_its_own);
    FAKE_TEST(a_trim_beside_a_look_at_the_slots);
    FAKE_TEST(a_lost_slot_is_no_span);
    FAKE_TEST(who_asks_keeps_a_transfer);
    FAKE_TEST(a_span_waited_for_without_end);
    FAKE_TEST(failed_elsewhere);
    FAKE_TEST(begun_elsewhere);
    FAKE_TEST(failed_beside_another_chunk);
    FAKE_TEST(another_may_not_pin);
    return check_finish();
}
