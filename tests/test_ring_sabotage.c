/* Each of the ring's invariants is broken by hand, in a ring that is at work: the check names it,
   and is content again when the damage is undone. */
#define GPUPOOL_IMPLEMENTATION
#include "../gpupool.h"
#include "ring_kit.h"

#if CHECK_FAKE
typedef struct stage { /* a ring with a span, chunks in flight, and a transfer that waits */
    gpupool_ring *ring;
    gpupool_span span;
    gpi_ring_slot *held, *flying, *rest;
    gpi_transfer *waiting;
} stage;

static unsigned char *host, *device;

static stage stage_open(void) {
    stage s;
    gpupool_ticket ticket;
    memset(&s, 0, sizeof s);
    host = kit_host(MIB);
    device = kit_device(MIB);
    s.ring = kit_ring(8 * MIB, 64 * KIB, 0);
    fake_hold(kit_stream[0], 1);
    CHECK_RESULT(gpupool_span_acquire(s.ring, 100000, 0, &s.span), GPUPOOL_OK);
    CHECK_RESULT(gpupool_upload(s.ring, device, host, MIB, kit_stream[0]), GPUPOOL_OK);
    for (int i = 0; i < 2; i++)
        CHECK_RESULT(gpupool_upload_async(s.ring, device, host, MIB, kit_stream[0], &ticket),
                     GPUPOOL_OK);
    for (gpi_ring_slot *slot = s.ring->slots; slot; slot = slot->next) {
        if (slot->state == GPI_RING_HELD) s.held = slot;
        if (slot->state == GPI_RING_FLYING) s.flying = slot;
        if (slot->state == GPI_RING_FREE) s.rest = slot;
    }
    s.waiting = s.ring->transfers;
    CHECK(s.held && s.flying && s.rest && s.waiting && s.waiting->next);
    CHECK_RESULT(gpupool_ring_check(s.ring), GPUPOOL_OK);
    return s;
}

static void stage_close(stage *s) {
    fake_hold(kit_stream[0], 0);
    CHECK_RESULT(gpupool_span_cancel(s->ring, &s->span), GPUPOOL_OK);
    kit_ring_close(s->ring);
    kit_host_free(host, MIB);
    kit_device_free(device, MIB);
}

static void is_named(stage *s, int number) {
    char name[8];
    snprintf(name, sizeof name, "R%d", number);
    CHECK_EQ(gpi_ring_check(s->ring), number);
    CHECK_RESULT(gpupool_ring_check(s->ring), GPUPOOL_E_ARGUMENT);
    CHECK(strstr(gpupool_last_error(), name) != NULL);
}

/* The damage, the number of what it breaks, and the mending. */
#define BREAK(number, place, value)                             \
    do {                                                        \
        __typeof__(place) was_ = (place);                       \
        check_case("%s = %s", #place, #value);                  \
        (place) = (value);                                      \
        is_named(&s, number);                                   \
        (place) = was_;                                         \
        CHECK_RESULT(gpupool_ring_check(s.ring), GPUPOOL_OK);   \
    } while (0)

static void every_invariant_is_watched(void) {
    stage s = stage_open();
    gpupool_ring *ring = s.ring;
    BREAK(1, s.flying->bytes, 0);
    BREAK(1, s.flying->at, s.flying->at + 512);
    BREAK(1, s.flying->bytes, s.flying->bytes - 512);
    BREAK(1, s.held->next->prev, s.flying);
    BREAK(1, s.rest->bytes, s.rest->bytes - 512);
    BREAK(1, s.rest->prev->state, GPI_RING_FREE); /* two free neighbours */
    BREAK(2, ring->pinned.now, s.flying->at);
    BREAK(2, ring->pinned.now, ring->pinned.now + 512);
    BREAK(2, ring->pinned.now, ring->bytes + ring->piece_bytes);
    BREAK(3, ring->used.now, ring->used.now + 512);
    BREAK(3, ring->held, 0);
    BREAK(4, s.flying->event, NULL);
    BREAK(4, s.flying->number, ring->numbers + 1);
    BREAK(4, ring->flights[GPUPOOL_UP], ring->flights[GPUPOOL_UP] - 1);
    BREAK(4, s.flying->down, GPUPOOL_DOWN);
    BREAK(5, s.flying->transfer, s.waiting);
    BREAK(5, s.waiting->filled, 1);
    BREAK(5, s.waiting->started, s.waiting->bytes + 1);
    BREAK(5, s.waiting->working, -1);
    BREAK(6, s.waiting->ticket, s.waiting->next->ticket);
    BREAK(6, s.waiting->next->ticket, ring->tickets + 1);
    stage_close(&s);
}
#endif

int main(void) {
    FAKE_TEST(every_invariant_is_watched);
    return check_finish();
}
