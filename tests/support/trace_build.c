#include "trace_build.h"

#include <stdlib.h>

#define MAX_BYTES ((uint64_t)1 << 48) /* of one block: more is a damaged number */
#define MAX_EVENTS ((size_t)1 << 31)
#define MAX_STREAMS 65536u
#define FREED UINT32_MAX /* beside the slots in trace_builder.live */
#define NEW (UINT32_MAX - 1)

static const char no_memory[] = "host memory is out";

/* The array with room for one more item, doubled if need be; NULL leaves it as it was. */
static void *roomy(void *array, size_t *room, size_t used, size_t item_bytes) {
    if (used < *room) return array;
    size_t wanted = *room ? *room * 2 : 256;
    void *grown = realloc(array, wanted * item_bytes);
    if (grown) *room = wanted;
    return grown;
}

static const char *find_stream(trace_builder *b, uint64_t number, uint32_t *index) {
    trace *t = b->out;
    uint32_t i = b->last_stream;
    if (i >= t->streams || t->stream_number[i] != number)
        for (i = 0; i < t->streams && t->stream_number[i] != number; i++) continue;
    if (i == t->streams) {
        if (i == MAX_STREAMS) return "absurd: more than 65536 streams";
        uint64_t *grown = roomy(t->stream_number, &b->stream_room, i, sizeof *grown);
        if (!grown) return no_memory;
        t->stream_number = grown;
        grown[t->streams++] = number;
    }
    b->last_stream = *index = i;
    return NULL;
}

static const char *add_event(trace_builder *b, trace_event event, uint64_t stream) {
    trace *t = b->out;
    if (t->events == MAX_EVENTS) return "absurd: more than 2^31 events";
    const char *wrong = find_stream(b, stream, &event.stream);
    if (wrong) return wrong;
    trace_event *grown = roomy(t->event, &b->event_room, t->events, sizeof *grown);
    if (!grown) return no_memory;
    t->event = grown;
    grown[t->events++] = event;
    return NULL;
}

static const char *take_slot(trace_builder *b, uint32_t *slot) {
    size_t slots = b->out->slots;
    if (b->free_slots) {
        *slot = b->free_slot[--b->free_slots];
        return NULL;
    }
    trace_slot *grown = roomy(b->slot, &b->slot_room, slots, sizeof *grown);
    if (grown) b->slot = grown;
    uint32_t *stack = roomy(b->free_slot, &b->free_room, slots, sizeof *stack);
    if (stack) b->free_slot = stack;
    if (!grown || !stack) return no_memory;
    *slot = (uint32_t)slots;
    b->out->slots++;
    return NULL;
}

/* 0 to 40 for a power of two, or none; else 255. */
static uint8_t power_of(uint64_t alignment) {
    uint8_t power = 0;
    while (power <= 40 && alignment >> power > 1) power++;
    return alignment && (power > 40 || alignment != (uint64_t)1 << power) ? 255 : power;
}

const char *trace_add_alloc(trace_builder *b, uint64_t key, uint64_t id, uint64_t bytes,
                            uint64_t stream, uint64_t alignment) {
    trace *t = b->out;
    uint32_t slot;
    uint8_t align = power_of(alignment);
    if (align == 255) return "has an alignment that is no power of two up to 2^40";
    uint32_t *state = idmap_get(&b->live, key, NEW);
    if (!state) return no_memory;
    if (*state < NEW) return "allocated twice without a free";
    if (bytes == 0) return "has 0 bytes";
    if (bytes > MAX_BYTES || b->live_bytes > UINT64_MAX - bytes) return "has an absurd size";
    const char *wrong = take_slot(b, &slot);
    if (wrong) return wrong;
    *state = slot;
    b->slot[slot] = (trace_slot){id, bytes};
    b->live_bytes += bytes;
    if (b->live_bytes > t->peak_live_bytes) {
        t->peak_live_bytes = b->live_bytes;
        t->peak_event = t->events;
    }
    return add_event(b, (trace_event){.id = id, .bytes = bytes, .slot = slot, .align = align},
                     stream);
}

const char *trace_add_free(trace_builder *b, uint64_t key, uint64_t stream) {
    uint32_t *state = idmap_get(&b->live, key, NEW);
    if (!state) return no_memory;
    if (*state == NEW) return "freed, but never allocated";
    if (*state == FREED) return "freed twice";
    uint32_t slot = *state;
    *state = FREED;
    b->live_bytes -= b->slot[slot].bytes;
    b->free_slot[b->free_slots++] = slot;
    return add_event(b, (trace_event){.id = b->slot[slot].id, .slot = slot}, stream);
}

const char *trace_add_use(trace_builder *b, trace_kind kind, uint64_t key, uint64_t stream) {
    uint32_t *state = idmap_get(&b->live, key, NEW);
    if (!state) return no_memory;
    if (*state >= NEW) return "used, but not live";
    return add_event(b, (trace_event){.id = key, .slot = *state, .kind = (uint8_t)kind}, stream);
}

const char *trace_add_call(trace_builder *b, trace_kind kind, uint64_t bytes, uint64_t stream,
                           uint64_t alignment) {
    uint8_t align = power_of(alignment);
    if (align == 255) return "has an alignment that is no power of two up to 2^40";
    return add_event(b, (trace_event){.bytes = bytes, .kind = (uint8_t)kind, .align = align},
                     stream);
}

void trace_builder_free(trace_builder *b) {
    idmap_free(&b->live);
    free(b->slot);
    free(b->free_slot);
}
