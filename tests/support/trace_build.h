/* trace_build.h: makes a trace event by event, and says which events make no sense. */
#ifndef TRACE_BUILD_H
#define TRACE_BUILD_H

#include "idmap.h"
#include "trace.h"

typedef struct trace_slot {
    uint64_t id, bytes;
} trace_slot;

typedef struct trace_builder { /* all zero but out */
    trace *out;
    idmap live; /* the file's name of a block -> its slot, or what became of it */
    trace_slot *slot;
    uint32_t *free_slot; /* a stack, so that few slots serve and stay in the cache */
    size_t event_room, stream_room, slot_room, free_room, free_slots;
    uint64_t live_bytes;
    uint32_t last_stream;
} trace_builder;

/* key is what the file calls the block, id what the trace will. NULL, or what is wrong. */
const char *trace_add_alloc(trace_builder *, uint64_t key, uint64_t id, uint64_t bytes,
                            uint64_t stream, uint64_t alignment /* 0: not asked for */);
const char *trace_add_free(trace_builder *, uint64_t key, uint64_t stream);
/* Calls on no block of their own; bytes 0 where the call has none. */
const char *trace_add_call(trace_builder *, trace_kind, uint64_t bytes, uint64_t stream,
                           uint64_t alignment);
/* Calls on a live block. */
const char *trace_add_use(trace_builder *, trace_kind, uint64_t key, uint64_t stream);
void trace_builder_free(trace_builder *); /* leaves out alone */

#endif
