/* The ring at its edges: large chunks, many streams, more in flight than it wants, what is lost,
   and what trimming and ending find. */
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "ring_kit.h"

#include <pthread.h>

/* ---- sizes ---- */

/* Slots of 2 MiB each, and at most a quarter of the ring, or what is given. */
static void chunks_by_ring_and_workers(void) {
    static const struct { size_t bytes, given; int workers; size_t made; } cases[] = {
        {64 * MIB, 0, 3, 2 * MIB},     {64 * MIB, 0, 1, 2 * MIB},      {64 * MIB, 0, 0, 2 * MIB},
        {6 * MIB, 0, 3, 3 * MIB / 2},  {256 * KIB, 0, 3, 64 * KIB},    {256 * KIB, 0, 0, 64 * KIB},
        {64 * MIB, 100000, 3, 98304},  {64 * MIB, 16 * MIB, 0, 16 * MIB}};
    for (size_t i = 0; i < KIT_COUNT(cases); i++) {
        gpupool_ring *ring = kit_ring(cases[i].bytes, cases[i].given, cases[i].workers);
        check_case("case %zu", i);
        CHECK_EQ(ring->stage.slot_bytes, cases[i].made);
        CHECK_EQ(ring->workers_wanted, cases[i].workers);
        kit_ring_close(ring);
    }
    gpupool_ring *odd = kit_ring(MIB - 1, 0, 0);
    CHECK_EQ(kit_ring_stats(odd).limit_bytes, MIB - 4 * 4096); /* slots of whole pages */
    kit_ring_close(odd);
}

/* In the memory that the ring asks for at its first slot. */
static void every_slot_has_a_record(void) {
    gpupool_ring *ring = kit_ring(256 * MIB, 0, 0);
    gpi_stage *stage = &ring->stage;
    const gpi_pages *pages = &stage->pages;
    gpupool_span span;
    stage->slot_bytes = GPI_PAGE_BYTES; /* for records of 5 MiB, as of a ring of 4 GiB */
    stage->count = 256 * MIB / GPI_PAGE_BYTES;
    CHECK_RESULT(gpupool_ring_acquire_span(ring, 1, 0, &span), GPUPOOL_OK);
    uintptr_t end = (uintptr_t)(stage->slots + stage->count);
    CHECK(end <= (uintptr_t)pages->whole + pages->whole_bytes);
    CHECK_RESULT(gpupool_ring_cancel_span(ring, &span), GPUPOOL_OK);
    kit_ring_close(ring);
}

/* ---- trim ---- */

static void trim_stops_at_what_is_in_use(void) {
    gpupool_ring *ring = kit_ring(12 * MIB, 3 * MIB, 0);
    gpupool_span low, high;
    size_t released = 77;
    CHECK_RESULT(gpupool_ring_acquire_span(ring, 4 * MIB, 0, &low), GPUPOOL_OK);
    CHECK_RESULT(gpupool_ring_acquire_span(ring, 3 * MIB, 0, &high), GPUPOOL_OK);
    CHECK_EQ(kit_ring_stats(ring).pinned.now, 9 * MIB); /* slots of 3 MiB: two, and one */
    CHECK_RESULT(gpupool_ring_trim(ring, 0, &released), GPUPOOL_OK); /* the upper one is used */
    CHECK_EQ(released, 0);
    CHECK_RESULT(gpupool_ring_cancel_span(ring, &high), GPUPOOL_OK);
    CHECK_RESULT(gpupool_ring_trim(ring, 9 * MIB, &released), GPUPOOL_OK);
    CHECK_EQ(released, 0);
    CHECK_RESULT(gpupool_ring_trim(ring, 0, &released), GPUPOOL_OK);
    CHECK_EQ(released, 3 * MIB);
    CHECK_RESULT(gpupool_ring_trim(ring, 0, NULL), GPUPOOL_OK);
    CHECK_EQ(kit_ring_stats(ring).pinned.now, 6 * MIB);
    CHECK_RESULT(gpupool_ring_cancel_span(ring, &low), GPUPOOL_OK);
    CHECK_RESULT(gpupool_ring_acquire_span(ring, 3 * MIB, 0, &low), GPUPOOL_OK);
    CHECK_RESULT(gpupool_ring_acquire_span(ring, 512 * KIB, 0, &high), GPUPOOL_OK);
    CHECK_RESULT(gpupool_ring_cancel_span(ring, &low), GPUPOOL_OK); /* free below, and at the end */
    CHECK_RESULT(gpupool_ring_trim(ring, 0, &released), GPUPOOL_OK);
    CHECK_EQ(released, 0);
    CHECK_RESULT(gpupool_ring_cancel_span(ring, &high), GPUPOOL_OK);
    kit_ring_close(ring);
}

#if CHECK_FAKE
/* ---- in flight ---- */

#define MANY 12

/* However many streams stand still, what lands on others comes free. */
static void many_still_streams(void) {
    size_t bytes = 64 * KIB;
    gpupool_ring *ring = kit_ring(MIB, 64 * KIB, 0);
    unsigned char *host = kit_host(bytes), *device = kit_device(2 * bytes);
    cudaStream_t streams[MANY];
    for (int i = 0; i < MANY; i++) {
        CHECK_EQ(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking), cudaSuccess);
        fake_hold(streams[i], 1);
        if (i) kit_order(streams[i - 1], streams[i]);
        CHECK_RESULT(gpupool_upload(ring, device, host, bytes, streams[i]), GPUPOOL_OK);
    }
    CHECK_RESULT(gpupool_upload(ring, device + bytes, host, bytes, kit_stream[0]), GPUPOOL_OK);
    CHECK_RESULT(gpupool_ring_trim(ring, 0, NULL), GPUPOOL_OK);
    CHECK_EQ(kit_ring_stats(ring).used.now, MANY * bytes);
    for (int i = 0; i < MANY; i++) fake_hold(streams[i], 0);
    CHECK_RESULT(gpupool_ring_trim(ring, 0, NULL), GPUPOOL_OK);
    CHECK_EQ(kit_ring_stats(ring).used.now, 0);
    for (int i = 0; i < MANY; i++) CHECK_EQ(cudaStreamDestroy(streams[i]), cudaSuccess);
    kit_host_free(host, bytes);
    kit_device_free(device, 2 * bytes);
    kit_ring_close(ring);
}

/* Copies of one stream end in their order: behind the first that has not ended none is asked
   after. */
static void one_question_for_a_still_stream(void) {
    size_t bytes = 512 * KIB;
    gpupool_ring *ring = kit_ring(MIB, 64 * KIB, 0);
    unsigned char *host = kit_host(bytes), *device = kit_device(bytes);
    fake_hold(kit_stream[0], 1);
    CHECK_RESULT(gpupool_upload(ring, device, host, bytes, kit_stream[0]), GPUPOOL_OK);
    CHECK(ring->stage.flying.now > 1);
    fake_reset_counters();
    unsigned looks = ring->stage.polls;
    CHECK_RESULT(gpupool_ring_trim(ring, 0, NULL), GPUPOOL_OK);
    CHECK_EQ(fake_calls("cuEventQuery"), 1);
    CHECK_EQ(ring->stage.polls, looks + 1);
    fake_hold(kit_stream[0], 0);
    kit_host_free(host, bytes);
    kit_device_free(device, bytes);
    kit_ring_close(ring);
}

/* What lies behind the record of the last slot is none, even where the whole ring is in flight. */
static void no_record_behind_the_last(void) {
    gpupool_ring *ring = kit_ring(MIB, 0, 0);
    gpi_stage *stage = &ring->stage;
    unsigned char *device = kit_device(MIB);
    kit_ring_fly(ring, MIB, device, kit_stream[0]);
    CHECK_EQ(stage->top, stage->count);
    gpi_stage_slot *behind = &stage->slots[stage->count]; /* in their last page */
    behind->state = GPI_STAGE_FLYING;
    behind->run = behind->length = behind->flight = 1;
    behind->key = gpi_ring_key(kit_stream[1]);
    CHECK_EQ(gpi_stage_flying_bytes(stage, behind->key), 0);
    CHECK_EQ(gpi_stage_flying_bytes(stage, gpi_ring_key(kit_stream[0])), MIB);
    fake_reset_counters();
    CHECK_RESULT(gpupool_ring_trim(ring, 0, NULL), GPUPOOL_OK);
    CHECK_EQ(fake_calls("cuEventQuery"), 1);
    memset(behind, 0, sizeof *behind);
    fake_hold(kit_stream[0], 0);
    kit_device_free(device, MIB);
    kit_ring_close(ring);
}

/* Where copies end at once, no more than two slots are ever used, however many are pinned. */
static void what_lands_at_once_takes_two_slots(void) {
    gpupool_ring *ring = kit_ring(MIB, 0, 0);
    unsigned char *host = kit_host(MIB), *device = kit_device(MIB);
    gpupool_span all;
    int used = 0;
    CHECK_RESULT(gpupool_ring_acquire_span(ring, MIB, 0, &all), GPUPOOL_OK);
    CHECK_RESULT(gpupool_ring_cancel_span(ring, &all), GPUPOOL_OK);
    CHECK_RESULT(gpupool_upload(ring, device, host, MIB, kit_stream[0]), GPUPOOL_OK);
    CHECK(kit_ring_stats(ring).chunks[GPUPOOL_UP] > 3);
    for (int i = 0; i < 4; i++) used += ring->stage.slots[i].event != NULL;
    CHECK_EQ(used, 2);
    kit_host_free(host, MIB);
    kit_device_free(device, MIB);
    kit_ring_close(ring);
}

/* An upload with a ticket takes no more of the ring than keeps the link busy, though there is more;
   and those whose stream goes on pass it. */
static void no_further_ahead_than_the_link_needs(void) {
    size_t bytes = 48 * MIB;
    gpupool_ring *ring = kit_ring(64 * MIB, 0, 0);
    unsigned char *host = kit_host(bytes), *device = kit_device(bytes);
    gpupool_ticket ticket, second;
    CHECK_RESULT(kit_upload_async(ring, device, host, bytes, kit_stream[0], &ticket),
                 GPUPOOL_OK);
    CHECK_RESULT(kit_upload_async(ring, device, host, MIB, kit_stream[0], &second),
                 GPUPOOL_OK);
    fake_hold(ring->streams[GPUPOOL_UP], 1);
    for (int i = 0; i < 200 && kit_ring_stats(ring).used.now < 24 * MIB; i++)
        CHECK_RESULT(gpupool_ring_wait(ring, ticket, KIT_SECOND / 20), GPUPOOL_E_TIMEOUT);
    CHECK_RESULT(gpupool_ring_wait(ring, ticket, KIT_SECOND / 20), GPUPOOL_E_TIMEOUT);
    CHECK(kit_ring_stats(ring).used.now >= 24 * MIB);
    CHECK(kit_ring_stats(ring).used.now <= 48 * MIB); /* the first chunks fill no slot */
    CHECK_EQ(kit_ring_stats(ring).slow_chunks, 0);
    fake_fail_call("cuEventQuery", 1, 1, 0); /* what is in the way is asked after in vain */
    CHECK_RESULT(gpupool_ring_wait(ring, ticket, -1), GPUPOOL_E_CUDA);
    fake_fail_clear();
    fake_hold(ring->streams[GPUPOOL_UP], 0);
    CHECK_RESULT(gpupool_ring_wait(ring, second, -1), GPUPOOL_OK);
    CHECK_RESULT(gpupool_ring_wait(ring, ticket, -1), GPUPOOL_E_CUDA);
    memset(host, 0xee, bytes);
    kit_host_free(host, bytes);
    kit_device_free(device, bytes);
    kit_ring_close(ring);
}

/* ---- what fails ---- */

/* One of the copies of a span that takes several slots: it is still held, and can be sent. */
static void span_over_several_slots_fails(void) {
    size_t bytes = 6 * MIB;
    gpupool_ring *ring = kit_ring(8 * MIB, 0, 0);
    unsigned char *device = kit_device(bytes);
    gpupool_span span;
    CHECK_RESULT(gpupool_ring_acquire_span(ring, bytes, 0, &span), GPUPOOL_OK);
    kit_pattern((unsigned char *)span.memory, bytes, 4);
    for (int n = 1; n <= 2; n++) {
        span.bytes = bytes - KIB; /* this time */
        fake_fail_call("cuMemcpyAsync", n, 0, 0);
        CHECK_RESULT(gpupool_ring_upload_span(ring, &span, device, kit_stream[0]), GPUPOOL_E_CUDA);
        fake_fail_clear();
        span.bytes = bytes + 1; /* no more than before, though */
        CHECK_RESULT(gpupool_ring_upload_span(ring, &span, device, kit_stream[0]),
                     GPUPOOL_E_ARGUMENT);
    }
    CHECK_EQ(fake_calls("cuMemcpyAsync"), 3); /* none after the first that fails */
    span.bytes = bytes;
    CHECK_RESULT(gpupool_ring_upload_span(ring, &span, device, kit_stream[0]), GPUPOOL_OK);
    kit_expect_device(device, bytes, 4);
    kit_device_free(device, bytes);
    kit_ring_close(ring);
}

/* A copy was queued, and then neither an event nor a wait works: its slot is out of use, told as in
   the way, and comes back when the ring ends. */
static void what_is_lost_stays_lost_until_the_end(void) {
    size_t bytes = 100 * KIB;
    gpupool_ring *ring = kit_ring(MIB, 0, 0);
    unsigned char *host = kit_host(bytes), *device = kit_device(bytes);
    gpupool_span span;
    fake_fail_call("cuEventRecord", 1, 1, 0);
    fake_fail_call("cuStreamSynchronize", 1, 1, 0);
    CHECK_RESULT(gpupool_upload(ring, device, host, bytes, kit_stream[0]), GPUPOOL_E_CUDA);
    fake_fail_clear();
    CHECK_EQ(kit_ring_stats(ring).used.now, MIB / 4); /* a slot */
    CHECK_RESULT(gpupool_ring_acquire_span(ring, MIB, -1, &span), GPUPOOL_E_TIMEOUT);
    CHECK_RESULT(gpupool_upload(ring, device, host, bytes, kit_stream[0]), GPUPOOL_OK);
    CHECK_RESULT(gpupool_ring_check(ring), GPUPOOL_OK);
    fake_fail_call("cuMemFree", 1, 0, 0); /* which waits for the device */
    CHECK_RESULT(gpupool_ring_destroy(ring), GPUPOOL_E_CUDA);
    fake_fail_clear();
    CHECK_RESULT(gpupool_ring_check(ring), GPUPOOL_OK);
    kit_host_free(host, bytes);
    kit_device_free(device, bytes);
    kit_ring_close(ring);
}

/* Asking after a flight fails: what asks says so, and the flight is asked after again. */
static void asking_fails(void) {
    size_t bytes = 100 * KIB;
    gpupool_ring *ring = kit_ring(MIB, 0, 0);
    unsigned char *host = kit_host(bytes), *device = kit_device(bytes);
    gpupool_span span;
    CHECK_RESULT(gpupool_upload(ring, device, host, bytes, kit_stream[0]), GPUPOOL_OK);
    fake_fail_call("cuEventQuery", 1, 0, 0);
    CHECK_RESULT(gpupool_ring_trim(ring, 0, NULL), GPUPOOL_E_CUDA);
    CHECK_EQ(kit_ring_stats(ring).used.now, MIB / 4);
    fake_fail_call("cuEventQuery", 1, 0, 0);
    CHECK_RESULT(gpupool_ring_acquire_span(ring, MIB, -1, &span), GPUPOOL_E_CUDA);
    fake_fail_clear();
    CHECK_RESULT(gpupool_ring_acquire_span(ring, MIB, 0, &span), GPUPOOL_OK);
    CHECK_RESULT(gpupool_ring_cancel_span(ring, &span), GPUPOOL_OK);
    kit_host_free(host, bytes);
    kit_device_free(device, bytes);
    kit_ring_close(ring);
}

/* But not where a pinned slot is free all the same. */
static void asking_fails_and_nothing_lacks(void) {
    size_t bytes = 400 * KIB; /* not all four slots, which the first span pins */
    gpupool_ring *ring = kit_ring(MIB, 0, 0);
    unsigned char *host = kit_host(bytes), *device = kit_device(bytes);
    gpupool_span span;
    CHECK_RESULT(gpupool_ring_acquire_span(ring, MIB, 0, &span), GPUPOOL_OK);
    CHECK_RESULT(gpupool_ring_cancel_span(ring, &span), GPUPOOL_OK);
    fake_hold(kit_stream[0], 1);
    CHECK_RESULT(gpupool_upload(ring, device, host, bytes, kit_stream[0]), GPUPOOL_OK);
    fake_fail_call("cuEventQuery", 1, 0, 0);
    CHECK_RESULT(gpupool_ring_acquire_span(ring, 100, 0, &span), GPUPOOL_OK);
    CHECK_EQ(fake_fail_fired(), 1);
    fake_fail_clear();
    CHECK_RESULT(gpupool_ring_cancel_span(ring, &span), GPUPOOL_OK);
    fake_hold(kit_stream[0], 0);
    kit_host_free(host, bytes);
    kit_device_free(device, bytes);
    kit_ring_close(ring);
}

/* The same of what a ticket comes after: it fails, rather than begin too early. */
static void asking_what_comes_before_fails(void) {
    size_t bytes = 300 * KIB;
    gpupool_ring *ring = kit_ring(MIB, 0, 0);
    unsigned char *host = kit_host(bytes), *device = kit_device(bytes);
    gpupool_ticket ticket;
    fake_hold(kit_stream[0], 1);
    CHECK_RESULT(kit_upload_async(ring, device, host, bytes, kit_stream[0], &ticket),
                 GPUPOOL_OK);
    CHECK_RESULT(gpupool_ring_wait(ring, ticket, 0), GPUPOOL_E_TIMEOUT);
    fake_fail_call("cuEventQuery", 1, 0, 0);
    CHECK_RESULT(gpupool_ring_wait(ring, ticket, -1), GPUPOOL_E_CUDA);
    fake_fail_clear();
    CHECK_EQ(kit_ring_stats(ring).chunks[GPUPOOL_UP], 0);
    fake_hold(kit_stream[0], 0);
    kit_host_free(host, bytes);
    kit_device_free(device, bytes);
    kit_ring_close(ring);
}

/* The end of all that a ticket has queued cannot be asked after: it has failed, and nothing of it
   is on its way any more. */
static void asking_for_the_end_fails(void) {
    size_t bytes = 100 * KIB;
    gpupool_ring *ring = kit_ring(MIB, 0, 0);
    unsigned char *host = kit_host(bytes), *device = kit_device(bytes);
    gpupool_ticket ticket;
    CHECK_RESULT(kit_upload_async(ring, device, host, bytes, kit_stream[0], &ticket),
                 GPUPOOL_OK);
    fake_hold(ring->streams[GPUPOOL_UP], 1);
    CHECK_RESULT(gpupool_ring_wait(ring, ticket, 0), GPUPOOL_E_TIMEOUT);
    CHECK_EQ(kit_ring_stats(ring).chunks[GPUPOOL_UP], 1);
    CHECK_RESULT(gpupool_ring_wait(ring, ticket, 0), GPUPOOL_E_TIMEOUT);
    CHECK(fake_pending(ring->streams[GPUPOOL_UP]) > 0);
    fake_fail_call("cuEventQuery", 1, 0, 0);
    CHECK_RESULT(gpupool_ring_wait(ring, ticket, -1), GPUPOOL_E_CUDA);
    CHECK_EQ(fake_fail_fired(), 1);
    fake_fail_clear();
    CHECK_EQ(fake_pending(ring->streams[GPUPOOL_UP]), 0);
    CHECK_EQ(kit_ring_stats(ring).transfers[GPUPOOL_UP], 0);
    fake_hold(ring->streams[GPUPOOL_UP], 0);
    memset(host, 0xee, bytes);
    kit_host_free(host, bytes);
    kit_device_free(device, bytes);
    kit_ring_close(ring);
}

/* All of a ticket is queued, and there is no event for its end: it has failed, and nothing of it is
   on its way any more. */
static void no_event_for_the_end(void) {
    size_t bytes = 100 * KIB;
    gpupool_ring *ring = kit_ring(MIB, 0, 0);
    unsigned char *host = kit_host(bytes), *device = kit_device(bytes);
    gpupool_ticket ticket;
    CHECK_RESULT(kit_upload_async(ring, device, host, bytes, kit_stream[0], &ticket),
                 GPUPOOL_OK);
    fake_hold(ring->streams[GPUPOOL_UP], 1);
    fake_fail_call("cuEventRecord", 2, 0, 0); /* the first is behind its only chunk */
    CHECK_RESULT(gpupool_ring_wait(ring, ticket, -1), GPUPOOL_E_CUDA);
    CHECK_EQ(fake_fail_fired(), 1);
    fake_fail_clear();
    CHECK_EQ(kit_ring_stats(ring).chunks[GPUPOOL_UP], 1);
    CHECK_EQ(fake_pending(ring->streams[GPUPOOL_UP]), 0);
    fake_hold(ring->streams[GPUPOOL_UP], 0);
    memset(host, 0xee, bytes);
    kit_host_free(host, bytes);
    kit_device_free(device, bytes);
    kit_ring_close(ring);
}

/* A transfer fails when a part of it flies: nobody waits for that, and its slots stay in use. */
static void what_flies_goes_on_after_a_failure(void) {
    size_t bytes = 600 * KIB;
    gpupool_ring *ring = kit_ring(MIB, 0, 0);
    unsigned char *host = kit_host(bytes), *device = kit_device(bytes);
    fake_hold(kit_stream[0], 1);
    fake_fail_call("cuMemcpyAsync", 2, 0, 0);
    CHECK_RESULT(gpupool_upload(ring, device, host, bytes, kit_stream[0]), GPUPOOL_E_CUDA);
    fake_fail_clear();
    CHECK(fake_pending(kit_stream[0]) > 0);
    CHECK(kit_ring_stats(ring).used.now > 0);
    CHECK_RESULT(gpupool_ring_trim(ring, 0, NULL), GPUPOOL_OK);
    CHECK(kit_ring_stats(ring).used.now > 0);
    fake_hold(kit_stream[0], 0);
    CHECK_RESULT(gpupool_ring_trim(ring, 0, NULL), GPUPOOL_OK);
    CHECK_EQ(kit_ring_stats(ring).used.now, 0);
    kit_host_free(host, bytes);
    kit_device_free(device, bytes);
    kit_ring_close(ring);
}

/* CUDA's own copy fails: nothing is at the caller's memory. */
static void direct_copies_that_fail(void) {
    gpupool_ring *ring = kit_ring(MIB, 0, 0);
    unsigned char *device = kit_device(MIB), *pinned;
    CHECK_EQ(cudaHostAlloc((void **)&pinned, MIB, cudaHostAllocDefault), cudaSuccess);
    fake_fail_call("cuMemcpyAsync", 1, 0, cudaErrorIllegalAddress);
    CHECK_RESULT(gpupool_upload(ring, device, pinned, MIB, kit_stream[0]), GPUPOOL_E_CUDA);
    CHECK(strstr(gpupool_last_error(), "cuMemcpyAsync") != NULL);
    fake_host_access(pinned, MIB, 1, "the caller, after a failure");
    fake_fail_call("cuStreamSynchronize", 1, 0, 0);
    CHECK_RESULT(gpupool_upload(ring, device, pinned, MIB, kit_stream[0]), GPUPOOL_E_CUDA);
    CHECK(strstr(gpupool_last_error(), "cuStreamSynchronize") != NULL);
    fake_fail_clear();
    CHECK_EQ(cudaFreeHost(pinned), cudaSuccess);
    kit_device_free(device, MIB);
    kit_ring_close(ring);
}

/* What CUDA does not take of device memory is no memory for the host to copy either. */
static void device_memory_that_cuda_refuses(void) {
    gpupool_ring *ring = kit_ring(MIB, 0, 0);
    unsigned char *device = kit_device(MIB);
    fake_fail_call("cuMemcpyAsync", 1, 1, cudaErrorInvalidValue);
    CHECK_RESULT(gpupool_upload(ring, device, device, MIB, kit_stream[0]), GPUPOOL_E_CUDA);
    CHECK_RESULT(gpupool_download(ring, device, device, MIB, kit_stream[0]), GPUPOOL_E_CUDA);
    fake_fail_clear();
    kit_device_free(device, MIB);
    kit_ring_close(ring);
}

/* No event can be made: the copies were queued, and are waited for. */
static void no_more_events(void) {
    gpupool_ring *ring = kit_ring(MIB, 0, 0);
    unsigned char *host = kit_host(MIB), *device = kit_device(MIB);
    gpupool_ticket ticket = 0;
    fake_fail_call("cuEventCreate", 1, 1, 0);
    CHECK_RESULT(gpupool_upload(ring, device, host, MIB, kit_stream[0]), GPUPOOL_E_CUDA);
    CHECK_RESULT(kit_upload_async(ring, device, host, MIB, kit_stream[0], &ticket),
                 GPUPOOL_E_CUDA);
    fake_fail_clear();
    CHECK_EQ(ticket, 0);
    CHECK_EQ(kit_ring_stats(ring).used.now, 0);
    CHECK_RESULT(gpupool_upload(ring, device, host, MIB, kit_stream[0]), GPUPOOL_OK);
    kit_host_free(host, MIB);
    kit_device_free(device, MIB);
    kit_ring_close(ring);
}

/* Two flights are over, asking after the second fails: trim has had the first, and says so. */
static void the_second_question_fails(void) {
    gpupool_ring *ring = kit_ring(MIB, 0, 0);
    unsigned char *host = kit_host(100 * KIB), *device = kit_device(100 * KIB);
    for (int i = 0; i < 2; i++) {
        fake_hold(kit_stream[i], 1); /* or the second would get the first one's slot */
        CHECK_RESULT(gpupool_upload(ring, device, host, 100 * KIB, kit_stream[i]), GPUPOOL_OK);
        kit_order(kit_stream[0], kit_stream[1]);
    }
    for (int i = 0; i < 2; i++) fake_hold(kit_stream[i], 0);
    fake_fail_call("cuEventQuery", 2, 0, 0);
    CHECK_RESULT(gpupool_ring_trim(ring, 0, NULL), GPUPOOL_E_CUDA);
    fake_fail_clear();
    CHECK_EQ(kit_ring_stats(ring).used.now, MIB / 4);
    kit_host_free(host, 100 * KIB);
    kit_device_free(device, 100 * KIB);
    kit_ring_close(ring);
}

/* A ring of another device than the current one: small transfers find their way too. */
static void of_another_device(void) {
    gpupool_ring_config config;
    gpupool_ring *ring = NULL;
    unsigned char *host = kit_host(1000), *device = NULL;
    int now = -1;
    memset(&config, 0, sizeof config);
    config.device = 1;
    CHECK_RESULT(gpupool_ring_create(&ring, &config), GPUPOOL_OK);
    CHECK_EQ(cudaSetDevice(1), cudaSuccess);
    device = kit_device(1000);
    CHECK_EQ(cudaSetDevice(0), cudaSuccess);
    kit_pattern(host, 1000, 6);
    CHECK_RESULT(gpupool_upload(ring, device, host, 1000, 0), GPUPOOL_OK);
    CHECK_EQ(cudaSetDevice(1), cudaSuccess);
    kit_expect_device(device, 1000, 6);
    kit_device_free(device, 1000);
    CHECK_EQ(cudaSetDevice(0), cudaSuccess);
    kit_ring_close(ring);
    CHECK_EQ(cudaGetDevice(&now), cudaSuccess);
    CHECK_EQ(now, 0);
    kit_host_free(host, 1000);
}

static void *name_own_stream(void *key) {
    *(uint64_t *)key = gpi_ring_key(cudaStreamPerThread);
    return NULL;
}

/* No two threads have the same, and none a stream's, which would be even. */
static void each_thread_has_its_own_stream(void) {
    uint64_t key[8];
    for (size_t i = 0; i < KIT_COUNT(key); i++) {
        pthread_t thread;
        CHECK_EQ(pthread_create(&thread, NULL, name_own_stream, &key[i]), 0);
        CHECK_EQ(pthread_join(thread, NULL), 0);
        CHECK_EQ(key[i] & 1, 1);
        for (size_t k = 0; k < i; k++) CHECK(key[i] != key[k]);
    }
}

/* What CUDA stages without a wait does not wait for the thread's own stream. */
static void little_on_a_threads_own_stream(void) {
    size_t bytes = 64 * KIB;
    gpupool_ring *ring = kit_ring(MIB, 0, 0);
    unsigned char *host = kit_host(bytes), *device = kit_device(bytes);
    kit_pattern(host, bytes, 2);
    fake_hold(cudaStreamPerThread, 1);
    CHECK_RESULT(gpupool_upload(ring, device, host, bytes, cudaStreamPerThread), GPUPOOL_OK);
    memset(host, 0xee, bytes);
    CHECK(fake_pending(cudaStreamPerThread) > 0);
    fake_hold(cudaStreamPerThread, 0);
    CHECK_EQ(kit_ring_stats(ring).direct_bytes[GPUPOOL_UP], bytes);
    kit_expect_device(device, bytes, 2);
    kit_host_free(host, bytes);
    kit_device_free(device, bytes);
    kit_ring_close(ring);
}

typedef struct holder { gpupool_ring *ring; gpupool_span span; } holder;

static void *hold_some(void *argument) {
    holder *h = (holder *)argument;
    CHECK_RESULT(gpupool_ring_acquire_span(h->ring, 300 * KIB, -1, &h->span), GPUPOOL_OK);
    return NULL;
}

/* What another thread holds may come free: it is waited for, unless this thread holds some too. */
static void spans_of_another_thread(void) {
    holder h = {kit_ring(MIB, 0, 0), {0}};
    gpupool_span own, more;
    pthread_t thread;
    CHECK_EQ(pthread_create(&thread, NULL, hold_some, &h), 0);
    pthread_join(thread, NULL);
    CHECK_RESULT(gpupool_ring_acquire_span(h.ring, MIB, KIT_SECOND / 100, &more),
                 GPUPOOL_E_TIMEOUT);
    CHECK(strstr(gpupool_last_error(), "stayed full") != NULL);
    CHECK_RESULT(gpupool_ring_acquire_span(h.ring, 100 * KIB, 0, &own), GPUPOOL_OK);
    CHECK_RESULT(gpupool_ring_acquire_span(h.ring, 900 * KIB, -1, &more), GPUPOOL_E_TIMEOUT);
    CHECK(strstr(gpupool_last_error(), "would wait for") != NULL);
    CHECK(strstr(gpupool_last_error(), " 262144 bytes") != NULL); /* a slot of four */
    CHECK_RESULT(gpupool_ring_cancel_span(h.ring, &own), GPUPOOL_OK);
    CHECK_RESULT(gpupool_ring_acquire_span(h.ring, 512 * KIB, 0, &own), GPUPOOL_OK);
    CHECK_RESULT(gpupool_ring_acquire_span(h.ring, 1, -1, &more), GPUPOOL_E_TIMEOUT);
    CHECK(strstr(gpupool_last_error(), " 0 bytes") != NULL);
    CHECK_RESULT(gpupool_ring_cancel_span(h.ring, &own), GPUPOOL_OK);
    CHECK_RESULT(gpupool_ring_cancel_span(h.ring, &h.span), GPUPOOL_OK);
    kit_ring_close(h.ring);
}

/* Slots that another thread's span has may come free, and a slot that is lost does not. */
static void no_hope_of_what_is_lost(void) {
    size_t bytes = 100 * KIB;
    holder h = {kit_ring(MIB, 0, 0), {0}};
    unsigned char *host = kit_host(bytes), *device = kit_device(bytes);
    gpupool_span more;
    pthread_t thread;
    CHECK_EQ(pthread_create(&thread, NULL, hold_some, &h), 0); /* two of four slots */
    pthread_join(thread, NULL);
    fake_fail_call("cuEventRecord", 1, 1, 0);
    fake_fail_call("cuStreamSynchronize", 1, 1, 0);
    CHECK_RESULT(gpupool_upload(h.ring, device, host, bytes, kit_stream[0]), GPUPOOL_E_CUDA);
    fake_fail_clear();
    CHECK_EQ(h.ring->stage.slots[2].state, GPI_STAGE_TAKEN);
    CHECK_RESULT(gpupool_ring_acquire_span(h.ring, MIB, 0, &more), GPUPOOL_E_TIMEOUT);
    CHECK(strstr(gpupool_last_error(), "would wait for") != NULL);
    CHECK(strstr(gpupool_last_error(), " 524288 bytes") != NULL);
    CHECK_RESULT(gpupool_ring_cancel_span(h.ring, &h.span), GPUPOOL_OK);
    kit_host_free(host, bytes);
    kit_device_free(device, bytes);
    kit_ring_close(h.ring);
}

/* A span that was given back, or sent, is not its thread's own any more: what others hold is waited
   for again. */
static void a_span_that_is_gone_is_not_ones_own(void) {
    unsigned char *device = kit_device(1000);
    for (int sent = 0; sent < 2; sent++) {
        holder h = {kit_ring(MIB, 0, 0), {0}};
        gpupool_span own, more;
        pthread_t thread;
        check_case("sent %d", sent);
        CHECK_RESULT(gpupool_ring_acquire_span(h.ring, 1000, 0, &own), GPUPOOL_OK);
        CHECK_EQ(pthread_create(&thread, NULL, hold_some, &h), 0);
        pthread_join(thread, NULL);
        fake_hold(kit_stream[0], 1);
        CHECK_RESULT(sent ? gpupool_ring_upload_span(h.ring, &own, device, kit_stream[0])
                          : gpupool_ring_cancel_span(h.ring, &own), GPUPOOL_OK);
        CHECK_RESULT(gpupool_ring_acquire_span(h.ring, MIB, 0, &more), GPUPOOL_E_TIMEOUT);
        CHECK(strstr(gpupool_last_error(), "stayed full") != NULL);
        fake_hold(kit_stream[0], 0);
        CHECK_RESULT(gpupool_ring_cancel_span(h.ring, &h.span), GPUPOOL_OK);
        kit_ring_close(h.ring);
    }
    kit_device_free(device, 1000);
}

/* An error of the caller's is still CUDA's last one after a small transfer, and none of ours is. */
static void the_callers_error_stays(void) {
    gpupool_ring *ring = kit_ring(MIB, 0, 0);
    unsigned char *host = kit_host(100), *device = kit_device(100);
    CHECK_EQ(cudaSetDevice(1000), cudaErrorInvalidDevice);
    CHECK_RESULT(gpupool_upload(ring, device, host, 100, kit_stream[0]), GPUPOOL_OK);
    CHECK_EQ(cudaGetLastError(), cudaErrorInvalidDevice);
    fake_fail_call("cuCtxGetId", 1, 0, 0);
    CHECK_RESULT(gpupool_upload(ring, device, host, 100, kit_stream[0]), GPUPOOL_OK);
    fake_fail_call("cuPointerGetAttributes", 1, 0, 0);
    CHECK_RESULT(gpupool_upload(ring, device, host, 100, kit_stream[0]), GPUPOOL_OK);
    fake_fail_clear();
    CHECK_EQ(cudaGetLastError(), cudaSuccess);
    fake_fail_call("cuPointerGetAttributes", 1, 1, 0); /* nor is memory of no known kind copied */
    CHECK_RESULT(gpupool_upload(ring, device, host, 100, kit_stream[0]), GPUPOOL_E_CUDA);
    fake_fail_clear();
    kit_host_free(host, 100);
    kit_device_free(device, 100);
    kit_ring_close(ring);
}

/* Pinning is refused just when a span asks for it: that is what it is told. */
static void no_span_without_pinned_memory(void) {
    gpupool_ring *ring = kit_ring(MIB, 0, 0);
    gpupool_span span;
    fake_pinned_limit(1000);
    CHECK_RESULT(gpupool_ring_acquire_span(ring, 100, -1, &span), GPUPOOL_E_HOST_MEMORY);
    CHECK(strstr(gpupool_last_error(), "the host does not pin 262144 bytes more") != NULL);
    fake_pinned_limit(0);
    kit_ring_close(ring);
}

/* A little of pinned memory: it is the caller's again on return, though CUDA stages nothing. */
static void small_transfers_of_pinned_memory(void) {
    gpupool_ring *ring = kit_ring(MIB, 0, 0);
    unsigned char *device = kit_device(1000), *pinned;
    CHECK_EQ(cudaHostAlloc((void **)&pinned, 1000, cudaHostAllocDefault), cudaSuccess);
    kit_pattern(pinned, 1000, 8);
    fake_mode(FAKE_STEPPED);
    CHECK_RESULT(gpupool_upload(ring, device, pinned, 1000, kit_stream[0]), GPUPOOL_OK);
    fake_host_access(pinned, 1000, 1, "the caller, after an upload");
    memset(pinned, 0, 1000);
    CHECK_RESULT(gpupool_download(ring, pinned, device, 1000, kit_stream[0]), GPUPOOL_OK);
    fake_host_access(pinned, 1000, 0, "the caller, after a download");
    kit_is_pattern(pinned, 1000, 8, 0);
    fake_mode(FAKE_EAGER);
    uint64_t before = kit_ring_stats(ring).direct_bytes[GPUPOOL_UP];
    CHECK_RESULT(gpupool_upload(ring, device, pinned, 1, kit_stream[0]), GPUPOOL_OK);
    CHECK_EQ(kit_ring_stats(ring).direct_bytes[GPUPOOL_UP], before + 1);
    CHECK_EQ(cudaFreeHost(pinned), cudaSuccess);
    kit_device_free(device, 1000);
    kit_ring_close(ring);
}

/* What CUDA copies directly is waited for where the call's promise needs it: not of device memory,
   nor with a ticket. */
static void no_wait_for_copies_that_nobody_needs_yet(void) {
    gpupool_ring *ring = kit_ring(MIB, 0, 0);
    unsigned char *device = kit_device(MIB), *other = kit_device(MIB), *pinned;
    gpupool_ticket ticket;
    CHECK_EQ(cudaHostAlloc((void **)&pinned, MIB, cudaHostAllocDefault), cudaSuccess);
    fake_hold(kit_stream[0], 1);
    CHECK_RESULT(gpupool_upload(ring, device, other, MIB, kit_stream[0]), GPUPOOL_OK);
    int pending = fake_pending(kit_stream[0]);
    CHECK(pending > 0);
    CHECK_RESULT(kit_download_async(ring, pinned, device, MIB, kit_stream[0], &ticket),
                 GPUPOOL_OK);
    CHECK(fake_pending(kit_stream[0]) > pending);
    fake_hold(kit_stream[0], 0);
    CHECK_RESULT(gpupool_ring_wait(ring, ticket, -1), GPUPOOL_OK);
    CHECK_EQ(kit_ring_stats(ring).staged_bytes[GPUPOOL_UP], 0);
    CHECK_EQ(cudaFreeHost(pinned), cudaSuccess);
    kit_device_free(device, MIB);
    kit_device_free(other, MIB);
    kit_ring_close(ring);
}

/* ---- who does what ---- */

/* A thread leaves a download after sixteen chunks: other transfers may have come. */
static void sixteen_chunks_in_a_row(void) {
    size_t bytes = 2 * MIB;
    gpupool_ring *ring = kit_ring(MIB, 64 * KIB, 0);
    unsigned char *host = kit_host(bytes), *device = kit_device(bytes);
    gpupool_ticket ticket;
    CHECK_RESULT(kit_download_async(ring, host, device, bytes, kit_stream[0], &ticket),
                 GPUPOOL_OK);
    gpi_ring_lock(ring);
    CHECK_EQ(gpi_ring_step(ring, ring->transfers), 1);
    gpi_ring_unlock(ring);
    CHECK_EQ(kit_ring_stats(ring).chunks[GPUPOOL_DOWN], 16);
    CHECK_RESULT(gpupool_ring_wait(ring, ticket, -1), GPUPOOL_OK);
    kit_is_byte(host, bytes, 0xdd);
    memset(host, 0xee, bytes);
    kit_host_free(host, bytes);
    kit_device_free(device, bytes);
    kit_ring_close(ring);
}

/* Who waits for something else works for a ticket only if no worker is free for it. That slots come
   free is for all. */
static void help_where_no_worker_is_free(void) {
    size_t bytes = 300 * KIB;
    gpupool_ring *ring = kit_ring(MIB, 0, 0);
    unsigned char *host = kit_host(bytes), *device = kit_device(bytes);
    gpupool_ticket ticket;
    CHECK_RESULT(gpupool_upload(ring, device, host, bytes, kit_stream[0]), GPUPOOL_OK);
    CHECK_RESULT(kit_upload_async(ring, device, host, bytes, kit_stream[0], &ticket),
                 GPUPOOL_OK);
    CHECK(kit_ring_stats(ring).used.now > 0);
    ring->workers_running = 1; /* as if there was one, that has nothing to do */
    CHECK_RESULT(gpupool_ring_wait(ring, ticket, 0), GPUPOOL_E_TIMEOUT);
    CHECK_EQ(kit_ring_stats(ring).used.now, 0);
    gpi_ring_lock(ring);
    CHECK_EQ(gpi_ring_help(ring), 0);
    ring->workers_running = 0;
    CHECK_EQ(gpi_ring_help(ring), 1);
    gpi_ring_unlock(ring);
    CHECK_RESULT(gpupool_ring_wait(ring, ticket, -1), GPUPOOL_OK);
    kit_host_free(host, bytes);
    kit_device_free(device, bytes);
    kit_ring_close(ring);
}

/* The ring is full: a worker moves along by CUDA's own staging what has waited long, if it is on
   the ring's own stream; on a caller's it would have to wait. */
static void workers_stage_on_the_rings_streams_only(void) {
    size_t bytes = 300 * KIB;
    gpupool_ring *ring = kit_ring(MIB, 0, 0);
    unsigned char *host = kit_host(bytes), *device = kit_device(bytes);
    gpupool_ticket ticket;
    gpupool_span span;
    CHECK_RESULT(gpupool_ring_acquire_span(ring, MIB, 0, &span), GPUPOOL_OK);
    CHECK_RESULT(kit_upload_async(ring, device, host, bytes, kit_stream[0], &ticket),
                 GPUPOOL_OK);
    gpi_ring_lock(ring);
    gpi_transfer *transfer = ring->transfers;
    CHECK(transfer->stream == ring->streams[GPUPOOL_UP]);
    for (int own = 0; own < 2; own++) {
        check_case("the ring's own stream: %d", own);
        transfer->stream = own ? ring->streams[GPUPOOL_UP] : kit_stream[0];
        transfer->stalled_ns = 1; /* long ago */
        CHECK_EQ(gpi_ring_work(ring, GPI_RING_UPLOADS), own);
        CHECK_EQ(ring->stats.slow_chunks, own);
    }
    gpi_ring_unlock(ring);
    CHECK_RESULT(gpupool_ring_cancel_span(ring, &span), GPUPOOL_OK);
    CHECK_RESULT(gpupool_ring_wait(ring, ticket, -1), GPUPOOL_OK);
    kit_host_free(host, bytes);
    kit_device_free(device, bytes);
    kit_ring_close(ring);
}

/* ---- the end ---- */

static int refuse_and_let_go(const void *from, size_t bytes, uint64_t offset, void *stream) {
    (void)from, (void)bytes;
    if (offset) return 0;
    fake_hold((cudaStream_t)stream, 0);
    return 5;
}

static void hold(void *stream) { fake_hold((cudaStream_t)stream, 1); }

/* A download has failed while the rest of it was on its way: it returns once that has landed. */
static void a_failed_download_leaves_nothing(void) {
    size_t bytes = 4 * MIB;
    gpupool_ring *ring = kit_ring(8 * MIB, 0, 0);
    unsigned char *device = kit_device(bytes);
    fake_before_call("cuMemcpyAsync", 2, hold, kit_stream[0]);
    CHECK_RESULT(kit_download_to(ring, device, bytes, refuse_and_let_go, kit_stream[0],
                                     kit_stream[0]), GPUPOOL_E_CALLBACK);
    CHECK_EQ(fake_pending(kit_stream[0]), 0);
    CHECK_EQ(kit_ring_stats(ring).used.now, 0);
    kit_ring_close(ring);
    kit_device_free(device, bytes);
}

static void *let_go(void *stream) {
    gpi_host_idle(1000);
    for (int i = 0; i < 1000; i++) gpi_host_idle(10000); /* 20 ms at least */
    fake_hold((cudaStream_t)stream, 0);
    return NULL;
}

/* The ring is full of what the same stream has yet to do: in small steps it would do no more. */
static void no_step_past_a_still_stream(void) {
    size_t bytes = 3 * MIB;
    gpupool_ring *ring = kit_ring(MIB, 0, 0);
    unsigned char *host = kit_host(bytes), *device = kit_device(bytes);
    pthread_t thread;
    kit_pattern(host, bytes, 4);
    fake_hold(kit_stream[0], 1);
    CHECK_EQ(pthread_create(&thread, NULL, let_go, kit_stream[0]), 0);
    CHECK_RESULT(gpupool_upload(ring, device, host, bytes, kit_stream[0]), GPUPOOL_OK);
    pthread_join(thread, NULL);
    CHECK_EQ(kit_ring_stats(ring).slow_chunks, 0);
    kit_expect_device(device, bytes, 4);
    memset(host, 0xee, bytes);
    kit_host_free(host, bytes);
    kit_device_free(device, bytes);
    kit_ring_close(ring);
}

static void let_it_go(void *stream) { fake_hold((cudaStream_t)stream, 0); }

/* But what CUDA stages without a wait goes past it: 64 KiB are no more than that. */
static void a_small_upload_past_a_still_stream(void) {
    size_t bytes = 64 * KIB;
    gpupool_ring *ring = kit_ring(MIB, 0, 0);
    unsigned char *host = kit_host(bytes), *device = kit_device(MIB);
    kit_ring_fly(ring, MIB, device, kit_stream[0]);
    fake_before_call("cuEventQuery", 5, let_it_go, kit_stream[0]); /* for who waits all the same */
    CHECK_RESULT(gpupool_upload(ring, device, host, bytes, kit_stream[0]), GPUPOOL_OK);
    CHECK_EQ(kit_ring_stats(ring).slow_chunks, 1);
    CHECK(fake_pending(kit_stream[0]) > 0);
    fake_hold(kit_stream[0], 0);
    kit_host_free(host, bytes);
    kit_device_free(device, MIB);
    kit_ring_close(ring);
}

/* More cannot be pinned, but what is pinned already comes free: that is worth the wait. */
static void a_span_waits_for_what_is_pinned(void) {
    gpupool_ring *ring = kit_ring(8 * MIB, 0, 0);
    unsigned char *device = kit_device(4 * MIB);
    gpupool_span span;
    pthread_t thread;
    fake_pinned_limit(4 * MIB);
    fake_hold(kit_stream[0], 1);
    CHECK_RESULT(gpupool_ring_acquire_span(ring, 4 * MIB, 0, &span), GPUPOOL_OK);
    kit_pattern((unsigned char *)span.memory, 4 * MIB, 5);
    CHECK_RESULT(gpupool_ring_upload_span(ring, &span, device, kit_stream[0]), GPUPOOL_OK);
    CHECK_EQ(pthread_create(&thread, NULL, let_go, kit_stream[0]), 0);
    CHECK_RESULT(gpupool_ring_acquire_span(ring, 4 * MIB, -1, &span), GPUPOOL_OK);
    CHECK(kit_ring_stats(ring).pin_failures > 0);
    pthread_join(thread, NULL);
    CHECK_RESULT(gpupool_ring_cancel_span(ring, &span), GPUPOOL_OK);
    fake_pinned_limit(0);
    kit_expect_device(device, 4 * MIB, 5);
    kit_device_free(device, 4 * MIB);
    kit_ring_close(ring);
}

static void destroy_waits_for_a_still_stream(void) {
    size_t bytes = 300 * KIB;
    gpupool_ring *ring = kit_ring(MIB, 0, 0);
    unsigned char *host = kit_host(bytes), *device = kit_device(bytes);
    gpupool_ticket ticket;
    pthread_t thread;
    kit_pattern(host, bytes, 3);
    fake_hold(kit_stream[0], 1);
    CHECK_RESULT(kit_upload_async(ring, device, host, bytes, kit_stream[0], &ticket),
                 GPUPOOL_OK);
    CHECK_EQ(pthread_create(&thread, NULL, let_go, kit_stream[0]), 0);
    CHECK_RESULT(gpupool_ring_destroy(ring), GPUPOOL_OK);
    pthread_join(thread, NULL);
    kit_expect_device(device, bytes, 3);
    kit_host_free(host, bytes);
    kit_device_free(device, bytes);
}
#endif

int main(void) {
    ARENA_TEST(chunks_by_ring_and_workers);
    ARENA_TEST(every_slot_has_a_record);
    ARENA_TEST(trim_stops_at_what_is_in_use);
    FAKE_TEST(many_still_streams);
    FAKE_TEST(one_question_for_a_still_stream);
    FAKE_TEST(no_record_behind_the_last);
    FAKE_TEST(what_lands_at_once_takes_two_slots);
    FAKE_TEST(no_further_ahead_than_the_link_needs);
    FAKE_TEST(span_over_several_slots_fails);
    FAKE_TEST(what_is_lost_stays_lost_until_the_end);
    FAKE_TEST(asking_fails);
    FAKE_TEST(asking_fails_and_nothing_lacks);
    FAKE_TEST(asking_what_comes_before_fails);
    FAKE_TEST(asking_for_the_end_fails);
    FAKE_TEST(no_event_for_the_end);
    FAKE_TEST(what_flies_goes_on_after_a_failure);
    FAKE_TEST(direct_copies_that_fail);
    FAKE_TEST(device_memory_that_cuda_refuses);
    FAKE_TEST(no_more_events);
    FAKE_TEST(the_second_question_fails);
    FAKE_TEST(of_another_device);
    FAKE_TEST(each_thread_has_its_own_stream);
    FAKE_TEST(little_on_a_threads_own_stream);
    FAKE_TEST(spans_of_another_thread);
    FAKE_TEST(no_hope_of_what_is_lost);
    FAKE_TEST(a_span_that_is_gone_is_not_ones_own);
    FAKE_TEST(the_callers_error_stays);
    FAKE_TEST(no_span_without_pinned_memory);
    FAKE_TEST(small_transfers_of_pinned_memory);
    FAKE_TEST(no_wait_for_copies_that_nobody_needs_yet);
    FAKE_TEST(sixteen_chunks_in_a_row);
    FAKE_TEST(help_where_no_worker_is_free);
    FAKE_TEST(workers_stage_on_the_rings_streams_only);
    FAKE_TEST(a_failed_download_leaves_nothing);
    FAKE_TEST(no_step_past_a_still_stream);
    FAKE_TEST(a_small_upload_past_a_still_stream);
    FAKE_TEST(a_span_waits_for_what_is_pinned);
    FAKE_TEST(destroy_waits_for_a_still_stream);
    return check_finish();
}
