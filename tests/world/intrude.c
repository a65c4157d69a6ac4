/* Intruders: while gpupool makes a call of CUDA with its lock open, other operations come in, as
   another thread's would, but at a place that repeats. */
#include "world.h"

static void intrude(void *user) {
    world *w = user;
    operation op = w->intruder;
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
    long fired = w->fired, entered = w->entered;
    int i, is_host_short = w->is_host_short;
    if (w->guard == NO_INTRUDER) return;
    w->intrusions++;
    w->is_intruding = 1;
    if (w->has_faults) fake_fail_pause(1);
    cudaThreadExchangeStreamCaptureMode(&mode);
    for (i = 0; i < 1 + op.kind % 4; i++) {
        op.slot = (unsigned char)(op.slot + 41);
        op.number = op.number * 2891336453u + 1;
        world_block(w, &op);
    }
    if (op.flags & 64 && w->guard == ANY_INTRUDER) world_graph(w, &op);
    cudaThreadExchangeStreamCaptureMode(&mode);
    if (w->has_faults) fake_fail_pause(0);
    w->is_intruding = 0;
    w->fired = fired;
    w->entered = entered;
    w->is_host_short = is_host_short;
}

/* gpupool asks behind its record whether the stream captures, with the lock open still. */
static void intrude_behind_the_record(void *user) {
    const world *w = user;
    if (w->guard == NO_INTRUDER) return; /* the record may be a ring's, which asks nothing */
    fake_before_call("cuStreamIsCapturing", 1, intrude, user);
}

void world_intrude(world *w, const operation *op) {
    static const char *const windows[] = {
        "cuEventRecord",      "cuEventRecord",  "cuEventCreate", "cuStreamWaitEvent",
        "cuEventSynchronize", "cuMemHostAlloc", "cuMemFreeHost", "cuMemAlloc",
        "cuMemFree",          "cuMemsetD8Async"};
    const char *window = windows[op->slot % 10];
    if (w->is_shared || w->stream_count == 1) return; /* on one stream peaks are exact */
    w->intruder = *op;
    fake_before_call(window, 1 + op->stream / 8 % 4,
                     op->slot % 10 == 0 ? intrude_behind_the_record : intrude, w);
}
