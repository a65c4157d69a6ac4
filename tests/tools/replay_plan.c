#include "replay_plan.h"

#include <stdlib.h>

static int failed(const char *what) {
    fprintf(stderr, "cannot prepare the replay: %s\n", what);
    return -1;
}

static uint32_t stream_of(const trace_event *e, unsigned streams, unsigned threads) {
    if (threads > 1) return 0; /* each thread brings its own table of one */
    return streams ? (uint32_t)(e->id % streams) : e->stream;
}

static int make_streams(replay_plan *p, const trace *t, unsigned streams) {
    size_t wanted = p->threads > 1 ? p->threads : streams ? streams : t->streams;
    int own_numbers = p->threads == 1 && streams == 0;
    p->stream = calloc(wanted, sizeof *p->stream);
    if (!p->stream) return failed("host memory is out");
    for (; p->streams < wanted; p->streams++) {
        if (own_numbers && t->stream_number[p->streams] == 0) continue;
        cudaError_t error = cudaStreamCreate(&p->stream[p->streams]);
        if (error != cudaSuccess) return failed(cudaGetErrorString(error));
    }
    return 0;
}

int replay_plan_make(replay_plan *p, const trace *t, unsigned streams, unsigned threads) {
    *p = (replay_plan){.from = t, .ops = t->events, .threads = threads ? threads : 1};
    p->op = malloc(t->events * sizeof *p->op);
    if (!p->op) return failed("host memory is out");
    for (size_t i = 0; i < t->events; i++) {
        const trace_event *e = &t->event[i];
        p->op[i] = (replay_op){e->bytes, e->slot, stream_of(e, streams, p->threads), e->kind,
                               e->align};
    }
    if (make_streams(p, t, streams) == 0) return 0;
    replay_plan_free(p);
    return -1;
}

void replay_plan_free(replay_plan *p) {
    for (size_t i = 0; i < p->streams; i++)
        if (p->stream[i]) cudaStreamDestroy(p->stream[i]);
    free(p->stream);
    free(p->op);
    *p = (replay_plan){0};
}
