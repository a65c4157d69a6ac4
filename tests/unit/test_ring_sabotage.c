/* Each of the ring's invariants is broken by hand, in a ring that is at work: the check names it,
   and is content again when the damage is undone. */
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "ring_kit.h"

#if CHECK_FAKE
typedef struct scene { /* a ring with a span, chunks in flight, and a transfer that waits */
    gpupool_ring *ring;
    gpupool_span span;
    gpi_stage_slot *held, *flying;
    gpi_transfer *waiting;
} scene;

static unsigned char *host, *device;

static scene scene_open(void) {
    scene s;
    gpupool_ticket ticket;
    memset(&s, 0, sizeof s);
    host = kit_host(MIB);
    device = kit_device(MIB);
    s.ring = kit_ring(8 * MIB, 64 * KIB, 0); /* the span takes two slots */
    fake_hold(kit_stream[0], 1);
    CHECK_RESULT(gpupool_ring_acquire_span(s.ring, 100000, 0, &s.span), GPUPOOL_OK);
    CHECK_RESULT(gpupool_upload(s.ring, device, host, MIB, kit_stream[0]), GPUPOOL_OK);
    for (int i = 0; i < 2; i++)
        CHECK_RESULT(kit_upload_async(s.ring, device, host, MIB, kit_stream[0], &ticket),
                     GPUPOOL_OK);
    s.held = s.ring->stage.slots;
    s.flying = &s.ring->stage.slots[s.ring->stage.top - 1];
    s.waiting = s.ring->transfers;
    CHECK(s.held->state == GPI_STAGE_TAKEN && s.held->run == 2);
    CHECK(s.flying->state == GPI_STAGE_FLYING && s.waiting && s.waiting->next);
    CHECK_RESULT(gpupool_ring_check(s.ring), GPUPOOL_OK);
    return s;
}

static void scene_close(scene *s) {
    fake_hold(kit_stream[0], 0);
    CHECK_RESULT(gpupool_ring_cancel_span(s->ring, &s->span), GPUPOOL_OK);
    kit_ring_close(s->ring);
    kit_host_free(host, MIB);
    kit_device_free(device, MIB);
}

static void is_named(scene *s, int number) {
    char name[8];
    snprintf(name, sizeof name, "R%d", number);
    CHECK_EQ(gpi_ring_check(s->ring), number);
    CHECK_RESULT(gpupool_ring_check(s->ring), GPUPOOL_E_CORRUPT);
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
    scene s = scene_open();
    gpupool_ring *ring = s.ring;
    gpi_stage *stage = &ring->stage;
    BREAK(1, stage->top, stage->top - 1);
    BREAK(1, stage->top, stage->top + 1);
    BREAK(1, stage->pinned_slots, stage->top - 1);
    BREAK(1, stage->count, stage->pinned_slots - 1);
    BREAK(1, s.flying->state, GPI_STAGE_FREE);
    BREAK(2, s.held->run, 0);
    BREAK(2, s.held->run, 3);
    BREAK(2, s.flying->run, 2);
    BREAK(2, s.held[1].run, 1);
    BREAK(2, s.held[1].state, GPI_STAGE_FLYING);
    BREAK(3, stage->used.now, stage->used.now + 512);
    BREAK(3, stage->slot_bytes, 2 * stage->slot_bytes);
    BREAK(4, s.flying->event, NULL);
    BREAK(4, s.flying->flight, stage->flights + 1);
    BREAK(4, stage->flying.now, stage->flying.now - 1);
    BREAK(5, s.waiting->cursor, s.waiting->bytes + 1);
    BREAK(5, s.waiting->working, -1);
    BREAK(5, s.waiting->asking, -1);
    BREAK(6, s.waiting->ticket, s.waiting->next->ticket);
    BREAK(6, s.waiting->next->ticket, ring->tickets + 1);
    scene_close(&s);
}
#endif

int main(void) {
    FAKE_TEST(every_invariant_is_watched);
    return check_finish();
}
