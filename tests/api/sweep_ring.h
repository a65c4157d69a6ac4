/* sweep_ring.h: the steps of test_sweep.c about a ring, which has no workers: so each run makes the
   same calls. What a transfer has brought is compared. */
#ifndef SWEEP_RING_H
#define SWEEP_RING_H

#include "sweep_world.h"

#define SENT ((size_t)90001) /* two slots of the ring */

static unsigned char sent[SENT], got[SENT];
static gpupool_span span;
static FILE *source; /* holds what `sent` holds */

static gpupool_result create_ring(void) {
    gpupool_ring_config config;
    gpupool_ring *made = (gpupool_ring *)1;
    memset(&config, 0, sizeof config);
    config.bytes = MIB;
    config.chunk_bytes = 64 * KIB;
    config.workers = -1;
    gpupool_result result = gpupool_ring_create(&made, &config);
    CHECK_EQ(result == GPUPOOL_OK, made != NULL);
    ring = made;
    return result;
}

/* A transfer that fails may have written any part of the block. */
static gpupool_result arrived(gpupool_result result, const char *at, const void *data,
                              size_t bytes) {
    own_begin();
    CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
    own_end();
    if (result == GPUPOOL_OK) CHECK(!memcmp(fake_peek(at), data, bytes));
    memset(fake_peek(at), 0, bytes);
    mark(LARGE);
    return result;
}

static gpupool_result upload(void) {
    NEEDS(ring && blocks[LARGE].at);
    char *to = blocks[LARGE].at;
    return arrived(gpupool_upload(ring, to, sent, SENT, kit_stream[0]), to, sent, SENT);
}

static gpupool_result download(void) {
    NEEDS(ring && blocks[LARGE].at);
    fake_run_all();
    memcpy(fake_peek(blocks[LARGE].at), sent, SENT);
    memset(got, 0, SENT);
    gpupool_result result = gpupool_download(ring, got, blocks[LARGE].at, SENT, kit_stream[0]);
    if (result == GPUPOOL_OK) CHECK(!memcmp(got, sent, SENT));
    return arrived(result, blocks[LARGE].at, sent, SENT);
}

static gpupool_result upload_file(void) {
    NEEDS(ring && blocks[LARGE].at);
    char *to = blocks[LARGE].at;
    return arrived(gpupool_upload_file(ring, to, fileno(source), 1, SENT - 1, kit_stream[0]), to,
                   sent + 1, SENT - 1);
}

static gpupool_result upload_list(void) {
    NEEDS(ring && blocks[LARGE].at);
    char *to = blocks[LARGE].at;
    gpupool_file_part parts[3] = {{to, 0, 40000}, {to + 40000, 40000, SENT - 40001},
                                  {to + SENT - 1, SENT - 1, 1}};
    return arrived(gpupool_upload_file_list(ring, fileno(source), parts, 3, kit_stream[0]), to,
                   sent, SENT);
}

static gpupool_result transfer(void) {
    NEEDS(ring && blocks[LARGE].at && !ticket);
    gpupool_transfer one = kit_transfer(GPUPOOL_UP, blocks[LARGE].at, sent, SENT, kit_stream[0]);
    one.ticket = &ticket;
    gpupool_result result = gpupool_ring_transfer(ring, &one);
    if (result == GPUPOOL_OK) CHECK(ticket != 0);
    else ticket = 0;
    return result;
}

/* A wait that fails may not have waited; and a transfer that has failed does not succeed later. So
   the next call gets a new transfer to wait for. */
static gpupool_result wait_for_ticket(void) {
    NEEDS(ticket);
    gpupool_result result = gpupool_ring_wait(ring, ticket, -1);
    if (result == GPUPOOL_OK) {
        ticket = 0;
        return arrived(result, blocks[LARGE].at, sent, SENT);
    }
    own_begin();
    gpupool_ring_wait(ring, ticket, -1);
    ticket = 0;
    CHECK_RESULT(transfer(), GPUPOOL_OK);
    own_end();
    return result;
}

static gpupool_result acquire_span(void) {
    NEEDS(ring && blocks[LARGE].at && !span.memory);
    return gpupool_ring_acquire_span(ring, 70000, KIT_SECOND, &span);
}

static gpupool_result upload_span(void) {
    NEEDS(span.memory);
    memcpy(span.memory, sent, 70000);
    gpupool_result result = gpupool_ring_upload_span(ring, &span, blocks[LARGE].at, kit_stream[0]);
    if (result == GPUPOOL_OK) span.memory = NULL;
    return arrived(result, blocks[LARGE].at, sent, 70000);
}

static gpupool_result cancel_span(void) {
    NEEDS(span.memory);
    gpupool_result result = gpupool_ring_cancel_span(ring, &span);
    if (result == GPUPOOL_OK) span.memory = NULL;
    return result;
}

static gpupool_result ring_stats(void) {
    gpupool_ring_stats stats;
    NEEDS(ring);
    gpupool_result result = gpupool_ring_get_stats(ring, &stats);
    if (result == GPUPOOL_OK && !for_good) CHECK(stats.transfers[GPUPOOL_UP] > 3);
    return result;
}

static gpupool_result check_ring(void) {
    NEEDS(ring);
    return gpupool_ring_check(ring);
}

static gpupool_result trim_ring(void) {
    size_t released = 1;
    NEEDS(ring);
    size_t before = (size_t)kit_ring_stats(ring).pinned.now;
    gpupool_result result = gpupool_ring_trim(ring, 64 * KIB, &released);
    CHECK_EQ(released, before - kit_ring_stats(ring).pinned.now);
    if (result == GPUPOOL_OK && !for_good) CHECK(released > 0);
    return result;
}

static gpupool_result destroy_ring(void) {
    NEEDS(ring);
    gpupool_result result = gpupool_ring_destroy(ring);
    if (result == GPUPOOL_OK) ring = NULL;
    return result;
}

#endif
