/* Two threads at one ring, in every order that two interruptions can make, or one in `make test`.
   gates/schedules.sh breaks the header in ways that must show here. */
// build: plain -O1 -DSCHEDULE_CUTS=1
#if !defined(GPUPOOL_TEST_GPU)
#include "schedule_kit.h"
#endif
#define GPUPOOL_CHECK 2 /* the ring's invariants are checked whenever its lock changes hands */
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "check.h"

#if CHECK_FAKE
#include "schedule_run.h"

/* ---- tickets, and spans for which there is no room twice ---- */

#define LOAD (300 * KIB)
static gpupool_ring *ring;
static unsigned char *host[2], *device[2];

static void open_ring(void) {
    ring = kit_ring(256 * KIB, 64 * KIB, -1);
    schedule_driver(&ring->stage.driver);
    for (int i = 0; i < 2; i++) {
        host[i] = kit_host(LOAD);
        device[i] = kit_device(LOAD);
        kit_pattern(host[i], LOAD, (uint64_t)i);
    }
}
static void ticket(int i) {
    gpupool_ticket number = 0;
    CHECK_RESULT(kit_upload_async(ring, device[i], host[i], LOAD, kit_stream[i], &number),
                 GPUPOOL_OK);
    CHECK_RESULT(gpupool_ring_wait(ring, number, -1), GPUPOOL_OK);
    CHECK_RESULT(gpupool_ring_wait(ring, number, 0), GPUPOOL_OK);
}
static void ticket_first(void) { ticket(0); }
static void ticket_second(void) { ticket(1); }
static void span(int i) {
    gpupool_span held;
    gpupool_result result = gpupool_ring_acquire_span(ring, 200 * KIB, 0, &held);
    if (result != GPUPOOL_OK) {
        CHECK_RESULT(result, GPUPOOL_E_TIMEOUT);
        CHECK_RESULT(gpupool_upload(ring, device[i], host[i], LOAD, kit_stream[i]), GPUPOOL_OK);
        return;
    }
    memcpy(held.memory, host[i], 200 * KIB);
    CHECK_RESULT(gpupool_ring_upload_span(ring, &held, device[i], kit_stream[i]), GPUPOOL_OK);
    CHECK_RESULT(gpupool_upload(ring, device[i] + 200 * KIB, host[i] + 200 * KIB, 100 * KIB,
                                kit_stream[i]), GPUPOOL_OK);
}
static void span_first(void) { span(0); }
static void span_second(void) { span(1); }
/* ---- a trim beside a thread that uses slots, pins them, or just looks whether their copies have
   ended: the trim gives back what has ended when it begins ---- */

static void open_copied(void) { /* two slots, whose copies have not ended */
    open_ring();
    fake_mode(FAKE_STEPPED);
    for (int i = 0; i < 2; i++)
        CHECK_RESULT(gpupool_upload(ring, device[i], host[i], 64 * KIB + 1, kit_stream[i]),
                     GPUPOOL_OK);
}
static void looks_at_slots(void) {
    gpupool_result result = GPUPOOL_OK;
    for (int i = 0; i < 3; i++) {
        gpi_ring_lock(ring);
        gpi_stage_poll(&ring->stage, &result);
        gpi_ring_unlock(ring);
    }
    CHECK_RESULT(result, GPUPOOL_OK);
}
static void trims_all(void) {
    fake_run_all();
    CHECK_RESULT(gpupool_ring_trim(ring, 0, NULL), GPUPOOL_OK);
    CHECK_EQ(ring->stage.pinned.now, 0);
}
static void ring_trims(void) {
    size_t released;
    CHECK_RESULT(gpupool_ring_trim(ring, 0, &released), GPUPOOL_OK);
    CHECK(released <= 256 * KIB);
}
static void send(int i) {
    CHECK_RESULT(gpupool_upload(ring, device[i], host[i], LOAD, kit_stream[i]), GPUPOOL_OK);
}
static void sends_first(void) { send(0); }
static void sends_second(void) { send(1); }
/* Nothing is done by itself: so a transfer pins one slot after the other. */
static void open_stepped(void) {
    open_ring();
    fake_mode(FAKE_STEPPED);
    CHECK_RESULT(gpupool_upload(ring, device[1], host[1], 64 * KIB + 1, kit_stream[1]),
                 GPUPOOL_OK);
    fake_run_all();
}
static void sends_a_part(void) {
    CHECK_RESULT(gpupool_upload(ring, device[0], host[0], 180 * KIB, kit_stream[0]), GPUPOOL_OK);
}
static void trims_what_ended(void) {
    fake_run_all();
    ring_trims();
}
static void close_ring(void) {
    CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
    for (int i = 0; i < 2; i++) {
        kit_expect_device(device[i], LOAD, (uint64_t)i);
        kit_host_free(host[i], LOAD);
        kit_device_free(device[i], LOAD);
    }
    CHECK_RESULT(gpupool_ring_trim(ring, 0, NULL), GPUPOOL_OK);
    CHECK_EQ(kit_ring_stats(ring).used.now, 0);
    kit_ring_close(ring);
}
static void close_looked_at(void) {
    fake_mode(FAKE_EAGER);
    for (int i = 0; i < 2; i++) send(i);
    close_ring();
}
static void close_trimmed(void) { /* what the other thread did not send */
    send(1);
    close_ring();
}

static const schedule_case cases[] = {
    {"tickets", open_ring, {ticket_first, ticket_second}, close_ring},
    {"spans", open_ring, {span_first, span_second}, close_ring},
    {"trimmed and looked at", open_copied, {looks_at_slots, trims_all}, close_looked_at},
    {"trimmed and used", open_ring, {sends_first, ring_trims}, close_trimmed},
    {"trimmed and pinned", open_stepped, {sends_a_part, trims_what_ended}, close_looked_at},
    {"two pin", open_ring, {sends_first, sends_second}, close_ring},
};
#endif

int main(void) {
#if CHECK_FAKE
    schedule_cases(cases, KIT_COUNT(cases));
#else
    check_skip("schedules", "needs fakecuda's controls");
#endif
    return check_finish();
}
