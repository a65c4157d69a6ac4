/* trace.h: a recorded run of allocations and frees, read from a file.
 *
 * Two formats, either of them gzip'ed or not:
 *   a ID BYTES STREAM | f ID STREAM   one event a line, as examples/trace.h writes them, with
 *   u ID STREAM | o BYTES STREAM      a use by another stream and a request in vain; # is a comment
 *   Thread,Time,Action,Pointer,Size,Stream   RMM's log: allocate, free, allocate failure. Streams 0
 *                                            and 0x1 are one, 0x2 is another for each thread */
#ifndef TRACE_H
#define TRACE_H

#include <stddef.h>
#include <stdint.h>

typedef enum trace_kind {
    TRACE_BLOCK, /* a or f, by bytes */
    TRACE_USE,
    TRACE_IN_VAIN
} trace_kind;

typedef struct trace_event {
    uint64_t id;     /* the trace's own name for the block; in an RMM log, its serial number */
    uint64_t bytes;  /* 0: a free, or a use */
    uint32_t slot;   /* small number of the block, used again after its free */
    uint32_t stream; /* index into stream_number */
    trace_kind kind;
} trace_event;

typedef struct trace {
    trace_event *event;
    size_t events;
    uint64_t *stream_number; /* the trace's name for each stream, in order of appearance */
    size_t streams;
    size_t slots; /* the most blocks that live at one time */
    uint64_t peak_live_bytes;
    size_t peak_event; /* the event that reaches it first */
} trace;

int trace_read(trace *, const char *path); /* 0, or -1 after a message on stderr */
void trace_free(trace *);

#endif
