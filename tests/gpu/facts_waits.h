/* facts_waits.h: which work a call waits for that names no stream. The kernels themselves say
   whether they had ended when the call came back; the time is only told. */
#ifndef GPU_FACTS_WAITS_H
#define GPU_FACTS_WAITS_H

#include "facts.h"

/* ---- the calls that wait ---- */

struct waiter {
    const char *name;
    CUresult (*prepare)(void **what);
    CUresult (*wait)(void *what);
};

static CUresult no_memory(void **what) {
    *what = nullptr;
    return CUDA_SUCCESS;
}

static CUresult host_byte(void **what) {
    return cuMemHostAlloc(what, 1, 0);
}

static CUresult portable_byte(void **what) {
    return cuMemHostAlloc(what, 1, CU_MEMHOSTALLOC_PORTABLE);
}

static CUresult device_byte(void **what) {
    CUdeviceptr at = 0;
    const CUresult error = cuMemAlloc(&at, 1);
    *what = (void *)at;
    return error;
}

static CUresult free_device(void *what) {
    return cuMemFree((CUdeviceptr)what);
}

static CUresult synchronize(void *) {
    return cuCtxSynchronize();
}

static const waiter WAITERS[] = {
    {"cuMemFreeHost of one byte", host_byte, cuMemFreeHost},
    {"cuMemFreeHost of one portable byte", portable_byte, cuMemFreeHost},
    {"cuMemFree of one byte", device_byte, free_device},
    {"cuCtxSynchronize", no_memory, synchronize}};
static const int N_WAITERS = sizeof WAITERS / sizeof *WAITERS;

/* ---- the work that they may wait for ---- */

struct work {
    const char *name;
    CUcontext context; /* the kernels are launched in it */
    CUstream stream[2];
    int streams;
    bool is_destroyed; /* the streams, as soon as they have their kernels */
    const char *expected[N_WAITERS];
};

static const int WORK_MS[] = {200, 300};

static CUresult begin_work(const work &w) {
    CUresult error = CUDA_SUCCESS;
    push(w.context);
    for (int i = 0; i < w.streams && !error; i++) {
        error = try_hold(w.stream[i], i, WORK_MS[i]);
        if (w.is_destroyed) MUST(cuStreamDestroy(w.stream[i]));
    }
    pop();
    return error;
}

static bool all_ended(const work &w) {
    bool all = true;
    for (int i = 0; i < w.streams; i++) all = all && has_ended(i);
    return all;
}

static void let_end(const work &w) {
    for (int i = 0; i < w.streams; i++) open_gate(i);
    while (!all_ended(w)) nap_ms(1);
    push(w.context);
    MUST(cuCtxSynchronize());
    pop();
}

static void ask_what_it_covers(const waiter &call, const work &w, const char *expected) {
    const std::string question = std::string(call.name) + " waits for " + w.name;
    void *what = nullptr;
    asking = call.name;
    MUST(call.prepare(&what));
    const CUresult began = begin_work(w);
    if (began != CUDA_SUCCESS) {
        skipped(question, "the kernel was not launched: " + name_of(began));
        MUST(call.wait(what));
        return;
    }
    const double start = now_ms();
    const CUresult error = call.wait(what);
    const double ms = now_ms() - start;
    const bool covered = all_ended(w);
    fact(question, ms, error ? name_of(error) : covered ? "yes" : "no", expected);
    let_end(w);
}

static void ask_each_waiter(work w) {
    for (int i = 0; i < N_WAITERS; i++) {
        if (w.is_destroyed) w.stream[0] = new_stream(CU_STREAM_NON_BLOCKING);
        ask_what_it_covers(WAITERS[i], w, w.expected[i]);
    }
}

/* ---- the kinds of work ---- */

static void ask_about_own_streams() {
    work two = {"two non-blocking streams of the context",
                primary,
                {new_stream(CU_STREAM_NON_BLOCKING), new_stream(CU_STREAM_NON_BLOCKING)},
                2,
                false,
                {"yes", "yes", "yes", "yes"}};
    work gone = {
        "a destroyed stream's kernel", primary, {nullptr, nullptr}, 1, true, {"", "", "", ""}};
    ask_each_waiter(two);
    ask_each_waiter(gone);
    for (CUstream stream : two.stream) MUST(cuStreamDestroy(stream));
}

/* The memory is of the first device's context, and so is the context that is current. */
static void ask_about_a_peer() {
    int devices = 0;
    CUcontext other;
    MUST(cuDeviceGetCount(&devices));
    if (devices < 2) {
        skipped("which calls wait for a stream of another device's context", "there is one GPU");
        return;
    }
    MUST(cuDevicePrimaryCtxRetain(&other, 1));
    push(other);
    work peer = {"a stream of another device's context",
                 other,
                 {new_stream(CU_STREAM_NON_BLOCKING), nullptr},
                 1,
                 false,
                 {"no", "no", "no", "no"}};
    warm_up(peer.stream[0]);
    pop();
    ask_each_waiter(peer);
    push(other);
    MUST(cuStreamDestroy(peer.stream[0]));
    pop();
    MUST(cuDevicePrimaryCtxRelease(1));
}

/* Some of the device's processors, as a context of their own. */
static CUresult make_green(CUgreenCtx *green, CUcontext *context) {
    CUdevResource whole, part;
    CUdevResourceDesc description;
    unsigned groups = 1;
    CUresult error = cuDeviceGetDevResource(device, &whole, CU_DEV_RESOURCE_TYPE_SM);
    if (!error) error = cuDevSmResourceSplitByCount(&part, &groups, &whole, nullptr, 0, 8);
    if (!error) error = cuDevResourceGenerateDesc(&description, &part, 1);
    if (!error) error = cuGreenCtxCreate(green, description, device, CU_GREEN_CTX_DEFAULT_STREAM);
    if (!error) error = cuCtxFromGreenCtx(context, *green);
    return error;
}

static const char *answer(bool yes) {
    return yes ? "yes" : "no";
}

/* Whether a green context's stream is, for events and for who asks, the primary context's. */
static void ask_whose_a_green_stream_is(CUstream stream, CUcontext context) {
    CUcontext found = nullptr;
    CUevent event;
    MUST(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    double start = now_ms();
    CUresult error = cuStreamGetCtx(stream, &found);
    fact("cuStreamGetCtx of a green context's stream tells the green context", now_ms() - start,
         error ? name_of(error) : answer(found == context), "");
    start = now_ms();
    error = cuEventRecord(event, stream);
    fact("cuEventRecord on a green context's stream, the event of the primary context",
         now_ms() - start, name_of(error), "");
    MUST(cuEventDestroy(event));
}

static void ask_about_a_green_context() {
    CUgreenCtx green = nullptr;
    CUcontext context = nullptr;
    const CUresult error = make_green(&green, &context);
    if (error) {
        skipped("which calls wait for a green context's stream", name_of(error));
        return;
    }
    work part = {
        "a green context's stream", context, {nullptr, nullptr}, 1, false, {"", "", "", ""}};
    MUST(cuGreenCtxStreamCreate(&part.stream[0], green, CU_STREAM_NON_BLOCKING, 0));
    push(context);
    warm_up(part.stream[0]);
    pop();
    ask_each_waiter(part);
    ask_whose_a_green_stream_is(part.stream[0], context);
    MUST(cuStreamDestroy(part.stream[0]));
    MUST(cuGreenCtxDestroy(green));
}

static void ask_about_waits() {
    ask_about_own_streams();
    ask_about_a_green_context();
    ask_about_a_peer();
}

#endif
