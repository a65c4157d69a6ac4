/* facts_captures.h: what a capture on another stream allows, and what it does not survive; and what
   the default streams answer. */
#ifndef GPU_FACTS_CAPTURES_H
#define GPU_FACTS_CAPTURES_H

#include "facts.h"

static const CUstreamCaptureMode MODES[] = {CU_STREAM_CAPTURE_MODE_GLOBAL,
                                            CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                                            CU_STREAM_CAPTURE_MODE_RELAXED};
static const char *const MODE_NAMES[] = {"global", "thread-local", "relaxed"};

static CUstreamCaptureMode exchange(CUstreamCaptureMode mode) {
    MUST(cuThreadExchangeStreamCaptureMode(&mode));
    return mode;
}

/* What the call said, and what became of the capture. */
static std::string both(CUresult of_call, bool is_whole) {
    return (of_call ? name_of(of_call) : "SUCCESS") +
           (is_whole ? ", capture whole" : ", capture lost");
}

static bool ends_well(CUstream stream) {
    CUgraph graph = nullptr;
    const bool whole = cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS && graph;
    if (graph) MUST(cuGraphDestroy(graph));
    return whole;
}

/* ---- a wait beside a capture ---- */

struct freeing {
    CUstreamCaptureMode capture,
        thread;              /* the modes of the capture, and of the thread that frees */
    bool is_of_other_thread; /* the free, not the capture */
    const char *expected;
};

static void free_in(void *host, CUstreamCaptureMode mode, CUresult *error, double *ms) {
    MUST(cuCtxSetCurrent(primary));
    const CUstreamCaptureMode before = exchange(mode);
    const double start = now_ms();
    *error = cuMemFreeHost(host);
    *ms = now_ms() - start;
    exchange(before);
}

static void ask_about_a_free(const freeing &f, CUstream capturing, CUstream working) {
    const int gate_at = 6;
    void *host = nullptr;
    CUresult error = CUDA_SUCCESS;
    double ms = 0;
    MUST(cuMemHostAlloc(&host, 1, 0));
    MUST(try_hold(working, gate_at, 200));
    MUST(cuStreamBeginCapture(capturing, f.capture));
    if (f.is_of_other_thread) std::thread(free_in, host, f.thread, &error, &ms).join();
    else free_in(host, f.thread, &error, &ms);
    const bool waited = has_ended(gate_at), whole = ends_well(capturing);
    open_gate(gate_at);
    MUST(cuCtxSynchronize());
    if (error) MUST(cuMemFreeHost(host));
    fact(std::string("cuMemFreeHost, ") + MODE_NAMES[f.thread] + " mode, by " +
             (f.is_of_other_thread ? "another" : "the same") + " thread beside a " +
             MODE_NAMES[f.capture] + " capture",
         ms,
         both(error, whole) + (error    ? ""
                               : waited ? ", waits"
                                        : ", does not wait"),
         f.expected);
}

static void ask_about_frees(CUstream capturing, CUstream working) {
    const CUstreamCaptureMode global = MODES[0], local = MODES[1], relaxed = MODES[2];
    const freeing all[] = {{global, relaxed, false, "SUCCESS, capture whole, waits"},
                           {global, relaxed, true, ""},
                           {local, relaxed, false, ""},
                           {relaxed, relaxed, false, ""},
                           {relaxed, global, false, ""},
                           {global, global, false, "STREAM_CAPTURE_UNSUPPORTED, capture lost"},
                           {global, global, true, "STREAM_CAPTURE_UNSUPPORTED, capture lost"}};
    for (const freeing &f : all) ask_about_a_free(f, capturing, working);
}

/* ---- an event of a capture ---- */

static void ask_about_an_event(int mode, CUstream capturing) {
    CUevent event;
    MUST(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    MUST(cuStreamBeginCapture(capturing, MODES[mode]));
    MUST(cuEventRecord(event, capturing));
    const CUstreamCaptureMode before = exchange(CU_STREAM_CAPTURE_MODE_RELAXED);
    const double start = now_ms();
    const CUresult error = cuEventQuery(event);
    const double ms = now_ms() - start;
    exchange(before);
    fact(std::string("cuEventQuery, relaxed, of an event recorded in a ") + MODE_NAMES[mode] +
             " capture",
         ms, both(error, ends_well(capturing)), "CAPTURED_EVENT, capture lost");
    const CUresult later = cuEventQuery(event);
    fact(std::string("the same event after the ") + MODE_NAMES[mode] + " capture has ended", 0,
         name_of(later), "INVALID_VALUE");
    MUST(cuEventDestroy(event));
}

static void ask_about_an_event_before(CUstream capturing, CUstream working) {
    CUevent event;
    MUST(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    MUST(cuEventRecord(event, working));
    MUST(cuStreamSynchronize(working));
    MUST(cuStreamBeginCapture(capturing, CU_STREAM_CAPTURE_MODE_GLOBAL));
    const CUstreamCaptureMode before = exchange(CU_STREAM_CAPTURE_MODE_RELAXED);
    const CUresult error = cuEventQuery(event);
    exchange(before);
    fact("cuEventQuery, relaxed, of an event recorded outside of a global capture", 0,
         both(error, ends_well(capturing)), "SUCCESS, capture whole");
    MUST(cuEventDestroy(event));
}

/* ---- the default streams ---- */

static void ask_whether_it_captures(const char *which, CUstream asked, unsigned flags,
                                    const char *expected) {
    CUstream capturing = new_stream(flags);
    CUstreamCaptureStatus status;
    MUST(cuStreamBeginCapture(capturing, CU_STREAM_CAPTURE_MODE_GLOBAL));
    const double start = now_ms();
    const CUresult error = cuStreamIsCapturing(asked, &status);
    const double ms = now_ms() - start;
    fact(std::string("cuStreamIsCapturing of the ") + which + " stream, a " +
             (flags ? "non-blocking" : "blocking") + " one captures",
         ms, both(error, ends_well(capturing)), expected);
    MUST(cuStreamDestroy(capturing));
}

static void ask_whose_it_is(const char *which, CUstream asked) {
    CUcontext found = nullptr, was;
    double start = now_ms();
    CUresult error = cuStreamGetCtx(asked, &found);
    fact(std::string("cuStreamGetCtx of the ") + which + " stream tells the current context",
         now_ms() - start,
         error              ? name_of(error)
         : found == primary ? "yes"
                            : "no",
         "yes");
    MUST(cuCtxPopCurrent(&was));
    start = now_ms();
    error = cuStreamGetCtx(asked, &found);
    fact(std::string("cuStreamGetCtx of the ") + which + " stream, no context is current",
         now_ms() - start, name_of(error), "INVALID_CONTEXT");
    MUST(cuCtxPushCurrent(was));
}

/* Of two devices: whose event may be recorded where, and who may wait for it. */
static void ask_about_events_of_a_peer(CUstream own) {
    int devices = 0;
    CUcontext other;
    CUevent event;
    MUST(cuDeviceGetCount(&devices));
    if (devices < 2) {
        skipped("events and streams of two devices' contexts", "there is one GPU");
        return;
    }
    MUST(cuDevicePrimaryCtxRetain(&other, 1));
    push(other);
    MUST(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    pop();
    fact("cuEventRecord on a stream of another context than the event's", 0,
         name_of(cuEventRecord(event, own)), "INVALID_HANDLE");
    fact("cuStreamWaitEvent for an event of another device's context", 0,
         name_of(cuStreamWaitEvent(own, event, 0)), "SUCCESS");
    MUST(cuEventDestroy(event));
    MUST(cuDevicePrimaryCtxRelease(1));
}

static void ask_about_default_streams() {
    const char *const refused = "STREAM_CAPTURE_IMPLICIT, capture whole";
    ask_whether_it_captures("legacy", CU_STREAM_LEGACY, CU_STREAM_DEFAULT, refused);
    ask_whether_it_captures("legacy", CU_STREAM_LEGACY, CU_STREAM_NON_BLOCKING, "");
    ask_whether_it_captures("null", nullptr, CU_STREAM_DEFAULT, refused);
    ask_whether_it_captures("per-thread", CU_STREAM_PER_THREAD, CU_STREAM_DEFAULT, "");
    ask_whose_it_is("null", nullptr);
    ask_whose_it_is("legacy", CU_STREAM_LEGACY);
    ask_whose_it_is("per-thread", CU_STREAM_PER_THREAD);
}

static void ask_about_captures() {
    CUstream capturing = new_stream(CU_STREAM_NON_BLOCKING);
    CUstream working = new_stream(CU_STREAM_NON_BLOCKING);
    asking = "captures";
    ask_about_frees(capturing, working);
    for (int mode = 0; mode < 3; mode++) ask_about_an_event(mode, capturing);
    ask_about_an_event_before(capturing, working);
    ask_about_default_streams();
    ask_about_events_of_a_peer(working);
    MUST(cuStreamDestroy(capturing));
    MUST(cuStreamDestroy(working));
}

#endif
