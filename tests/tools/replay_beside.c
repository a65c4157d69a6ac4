#include "replay_beside.h"

#include "trace_build.h"

#include <stdio.h>

static const char *add(trace_builder *b, const trace_event *e, uint64_t id, uint64_t stream) {
    uint64_t alignment = e->align ? (uint64_t)1 << e->align : 0;
    switch (e->kind) {
    case TRACE_BLOCK:
        return e->bytes ? trace_add_alloc(b, id, id, e->bytes, stream, alignment)
                        : trace_add_free(b, id, stream);
    case TRACE_USE:
    case TRACE_SIZE: return trace_add_use(b, (trace_kind)e->kind, id, stream);
    default: return trace_add_call(b, (trace_kind)e->kind, e->bytes, stream, alignment);
    }
}

int replay_beside(trace *out, const trace *of, size_t traces) {
    trace_builder b = {.out = out};
    const char *wrong = NULL;
    size_t longest = 0;
    *out = (trace){0};
    for (size_t t = 0; t < traces; t++)
        if (of[t].events > longest) longest = of[t].events;
    for (size_t i = 0; i < longest && !wrong; i++)
        for (size_t t = 0; t < traces && !wrong; t++)
            if (i < of[t].events)
                wrong = add(&b, &of[t].event[i], of[t].event[i].id * traces + t, t + 1);
    trace_builder_free(&b);
    if (!wrong) return 0;
    fprintf(stderr, "the traces do not go side by side: a block %s\n", wrong);
    trace_free(out);
    return -1;
}
