/* facts_calls.h: which calls block while the device does not move. Each is made by a thread of its
   own in four states: nothing under way; a kernel at work on another stream; beside a thread that
   is stuck in a launch, since that stream's queue is full; beside a thread in cuStreamSynchronize.
   A call that has not come back after a while has blocked: the kernel is let go, and the call with
   it. What a call needs is made before the kernel starts, and taken back after it has ended. */
#ifndef GPU_FACTS_CALLS_H
#define GPU_FACTS_CALLS_H

#include "facts.h"

static const size_t MAPPED_BYTES = (size_t)2 << 20, LARGE_BYTES = (size_t)64 << 20;
static const int EVENTS = 1000, GATE = 4;
static const int KERNEL_MS = 3000;  /* far longer than anybody waits for it to be let go */
static const int PATIENCE_MS = 300; /* a call that takes longer has blocked */
static const int STILLNESS_MS = 40; /* a thread that has not launched for so long is stuck */

/* ---- what the calls work on ---- */

static struct {
    CUdeviceptr address, memory;
    CUmemGenericAllocationHandle handle;
    void *host;
    CUevent event, events[EVENTS];
    int n_events;
    CUstream held, other, made; /* the kernel's, an idle one, and one that a call makes */
} on;

static const CUmemAllocationProp *mapped_memory() {
    static CUmemAllocationProp of;
    of.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    of.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    of.location.id = device;
    return &of;
}

static CUresult none() {
    return CUDA_SUCCESS;
}

static CUresult reserve() {
    return cuMemAddressReserve(&on.address, MAPPED_BYTES, 0, 0, 0);
}

static CUresult free_address() {
    return cuMemAddressFree(on.address, MAPPED_BYTES);
}

static CUresult create() {
    return cuMemCreate(&on.handle, MAPPED_BYTES, mapped_memory(), 0);
}

static CUresult release() {
    return cuMemRelease(on.handle);
}

static CUresult map() {
    return cuMemMap(on.address, MAPPED_BYTES, 0, on.handle, 0);
}

static CUresult unmap() {
    return cuMemUnmap(on.address, MAPPED_BYTES);
}

static CUresult set_access() {
    CUmemAccessDesc access;
    access.location = mapped_memory()->location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return cuMemSetAccess(on.address, MAPPED_BYTES, &access, 1);
}

static CUresult reserve_and_create() {
    const CUresult error = reserve();
    return error ? error : create();
}

static CUresult release_and_free_address() {
    const CUresult error = release();
    return error ? error : free_address();
}

static CUresult map_new() {
    const CUresult error = reserve_and_create();
    return error ? error : map();
}

static CUresult map_and_allow() {
    const CUresult error = map_new();
    return error ? error : set_access();
}

static CUresult unmap_all() {
    const CUresult error = unmap();
    return error ? error : release_and_free_address();
}

static CUresult allocate() {
    return cuMemAlloc(&on.memory, LARGE_BYTES);
}

static CUresult free_memory() {
    return cuMemFree(on.memory);
}

static CUresult allocate_host() {
    return cuMemHostAlloc(&on.host, MAPPED_BYTES, 0);
}

static CUresult allocate_host_byte() {
    return cuMemHostAlloc(&on.host, 1, 0);
}

static CUresult free_host() {
    return cuMemFreeHost(on.host);
}

static CUresult take_pages() {
    on.host = aligned_alloc(4096, MAPPED_BYTES);
    if (on.host) memset(on.host, 1, MAPPED_BYTES);
    return on.host ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult pin() {
    return cuMemHostRegister(on.host, MAPPED_BYTES, 0);
}

static CUresult take_and_pin() {
    const CUresult error = take_pages();
    return error ? error : pin();
}

static CUresult unpin() {
    return cuMemHostUnregister(on.host);
}

static CUresult give_pages() {
    free(on.host);
    return CUDA_SUCCESS;
}

static CUresult unpin_and_give() {
    const CUresult error = unpin();
    return error ? error : give_pages();
}

/* One event may be at hand in the driver; a thousand are not. */
static CUresult create_events() {
    CUresult error = CUDA_SUCCESS;
    for (on.n_events = 0; on.n_events < EVENTS && !error; on.n_events += !error)
        error = cuEventCreate(&on.events[on.n_events], CU_EVENT_DISABLE_TIMING);
    return error;
}

static CUresult destroy_events() {
    CUresult error = CUDA_SUCCESS;
    while (on.n_events > 0 && !error) error = cuEventDestroy(on.events[--on.n_events]);
    return error;
}

static CUresult record_elsewhere() {
    return cuEventRecord(on.event, on.other);
}

static CUresult record_there() {
    return cuEventRecord(on.event, on.held);
}

static CUresult record_and_finish() {
    const CUresult error = record_elsewhere();
    return error ? error : cuEventSynchronize(on.event);
}

static CUresult query() {
    return cuEventQuery(on.event);
}

static CUresult wait_elsewhere() {
    return cuStreamWaitEvent(on.other, on.event, 0);
}

static CUresult launch_elsewhere() {
    return launch_nothing(on.other);
}

static CUresult fill_elsewhere() {
    return cuMemsetD8Async(on.memory, 1, 4096, on.other);
}

static CUresult is_capturing_there() {
    CUstreamCaptureStatus status;
    return cuStreamIsCapturing(on.held, &status);
}

static CUresult id_there() {
    unsigned long long id;
    return cuStreamGetId(on.held, &id);
}

static CUresult context_there() {
    CUcontext context;
    return cuStreamGetCtx(on.held, &context);
}

static CUresult query_there() {
    const CUresult error = cuStreamQuery(on.held);
    return error == CUDA_ERROR_NOT_READY ? CUDA_SUCCESS : error;
}

static CUresult make_stream() {
    return cuStreamCreate(&on.made, CU_STREAM_NON_BLOCKING);
}

static CUresult destroy_stream() {
    return cuStreamDestroy(on.made);
}

static CUresult push_and_pop() {
    CUcontext was;
    const CUresult error = cuCtxPushCurrent(primary);
    return error ? error : cuCtxPopCurrent(&was);
}

static CUresult memory_info() {
    size_t free_bytes, total;
    return cuMemGetInfo(&free_bytes, &total);
}

/* ---- the states, and what was seen in them ---- */

enum state { IDLE, WORKING, STUCK, SYNCHRONIZING, STATES };

static const char *const STATE_NAMES[STATES] = {"idle", "beside a kernel",
                                                "beside a thread stuck in a full queue",
                                                "beside a thread in cuStreamSynchronize"};

struct call {
    const char *name;
    CUresult (*prepare)(), (*run)(), (*undo)();
    const char *expected[STATES]; /* n at once, b blocks, ? not known */
};

#define AT_ONCE \
    { "n", "n", "n", "?" }
#define NOT_KNOWN \
    { "n", "?", "?", "?" }
#define WAITS \
    { "n", "b", "b", "b" }
static const call CALLS[] = {
    {"cuMemAddressReserve", none, reserve, free_address, AT_ONCE},
    {"cuMemCreate", none, create, release, AT_ONCE},
    {"cuMemMap", reserve_and_create, map, unmap_all, AT_ONCE},
    {"cuMemSetAccess", map_new, set_access, unmap_all, AT_ONCE},
    {"cuMemUnmap", map_and_allow, unmap, release_and_free_address, AT_ONCE},
    {"cuMemRelease", create, release, none, AT_ONCE},
    {"cuMemAddressFree", reserve, free_address, none, AT_ONCE},
    {"cuMemAlloc of 64 MiB", none, allocate, free_memory, NOT_KNOWN},
    {"cuMemFree of 64 MiB", allocate, free_memory, none, WAITS},
    {"cuMemHostAlloc of 2 MiB", none, allocate_host, free_host, NOT_KNOWN},
    {"cuMemHostAlloc of one byte", none, allocate_host_byte, free_host, NOT_KNOWN},
    {"cuMemFreeHost of one byte", allocate_host_byte, free_host, none, WAITS},
    {"cuMemHostRegister of 2 MiB", take_pages, pin, unpin_and_give, NOT_KNOWN},
    {"cuMemHostUnregister of 2 MiB", take_and_pin, unpin, give_pages, WAITS},
    {"cuEventCreate, 1,000 times", none, create_events, destroy_events, {"n", "?", "b", "?"}},
    {"cuEventDestroy, 1,000 times", create_events, destroy_events, none, NOT_KNOWN},
    {"cuEventQuery of another stream's", record_and_finish, query, none, AT_ONCE},
    {"cuEventRecord on another stream", none, record_elsewhere, none, AT_ONCE},
    {"cuEventRecord on that stream", none, record_there, none, {"n", "n", "b", "?"}},
    {"cuStreamWaitEvent on another stream", record_and_finish, wait_elsewhere, none, AT_ONCE},
    {"cuLaunchKernel on another stream", none, launch_elsewhere, none, AT_ONCE},
    {"cuMemsetD8Async on another stream", allocate, fill_elsewhere, free_memory, NOT_KNOWN},
    {"cuStreamIsCapturing of that stream", none, is_capturing_there, none, AT_ONCE},
    {"cuStreamGetId of that stream", none, id_there, none, AT_ONCE},
    {"cuStreamGetCtx of that stream", none, context_there, none, NOT_KNOWN},
    {"cuStreamQuery of that stream", none, query_there, none, NOT_KNOWN},
    {"cuStreamCreate", none, make_stream, destroy_stream, NOT_KNOWN},
    {"cuStreamDestroy of an idle one", make_stream, destroy_stream, none, NOT_KNOWN},
    {"cuCtxPushCurrent and Pop", none, push_and_pop, none, NOT_KNOWN},
    {"cuMemGetInfo", none, memory_info, none, AT_ONCE}};

static const char *verdict_of(char letter) {
    return letter == 'n' ? "at once" : letter == 'b' ? "blocks" : "";
}

/* ---- threads that are in the driver ---- */

static std::atomic<long> launched;
static std::atomic<bool> may_launch, is_synchronizing;

static void launch_on_and_on() {
    MUST(cuCtxSetCurrent(primary));
    while (may_launch && launched < 100000) {
        MUST(launch_nothing(on.held));
        launched++;
    }
}

static void synchronize_held() {
    MUST(cuCtxSetCurrent(primary));
    is_synchronizing = true;
    MUST(cuStreamSynchronize(on.held));
}

static void wait_until_it_is_stuck() {
    long before;
    do {
        before = launched;
        nap_ms(STILLNESS_MS);
    } while (before == 0 || launched != before);
}

static std::thread enter(state s) {
    std::thread thread;
    launched = 0;
    may_launch = true;
    is_synchronizing = false;
    if (s != IDLE) MUST(try_hold(on.held, GATE, KERNEL_MS));
    if (s == STUCK) {
        thread = std::thread(launch_on_and_on);
        wait_until_it_is_stuck();
    }
    if (s == SYNCHRONIZING) {
        thread = std::thread(synchronize_held);
        while (!is_synchronizing) nap_ms(1);
        nap_ms(STILLNESS_MS);
    }
    return thread;
}

static void let_go() {
    may_launch = false;
    open_gate(GATE);
}

/* ---- asking ---- */

static std::atomic<bool> may_call, has_answered;
static CUresult answered;
static double took_ms;

/* Has its context before the state is entered, so that only the call itself is measured. */
static void make_the_call(CUresult (*run)()) {
    MUST(cuCtxSetCurrent(primary));
    while (!may_call) nap_ms(1);
    const double start = now_ms();
    answered = run();
    took_ms = now_ms() - start;
    has_answered = true;
}

/* Whether the call came back before the kernel was let go. */
static bool comes_back() {
    const double start = now_ms();
    may_call = true;
    while (!has_answered && now_ms() - start < PATIENCE_MS) nap_ms(1);
    return has_answered;
}

static void ask_in(const call &c, state s) {
    const std::string question = std::string(c.name) + ", " + STATE_NAMES[s];
    const std::string expected = verdict_of(c.expected[s][0]);
    asking = c.name;
    MUST(c.prepare());
    may_call = has_answered = false;
    std::thread caller(make_the_call, c.run);
    std::thread beside = enter(s);
    const bool at_once = comes_back();
    const bool still_held = s == IDLE || !has_ended(GATE);
    let_go();
    caller.join();
    if (beside.joinable()) beside.join();
    MUST(cuCtxSynchronize());
    if (answered) fact(question, took_ms, name_of(answered), expected);
    else if (!still_held) skipped(question, "the kernel had ended before");
    else fact(question, took_ms, verdict_of(at_once ? 'n' : 'b'), expected);
    if (!answered) MUST(c.undo());
}

/* ---- how much a queue holds ---- */

static CUresult launch_one() {
    return launch_nothing(on.held);
}

static CUresult record_one() {
    return cuEventRecord(on.event, on.held);
}

static void fill(CUresult (*one)()) {
    MUST(cuCtxSetCurrent(primary));
    while (may_launch && launched < 100000) {
        MUST(one());
        launched++;
    }
}

static void ask_how_many_fit(const char *what, CUresult (*one)(), const char *expected) {
    asking = what;
    launched = 0;
    may_launch = true;
    MUST(try_hold(on.held, GATE, KERNEL_MS));
    const double start = now_ms();
    std::thread filler(fill, one);
    wait_until_it_is_stuck();
    const long fitted = launched;
    let_go();
    filler.join();
    MUST(cuCtxSynchronize());
    fact(std::string(what) + " behind a kernel, before one blocks", now_ms() - start,
         std::to_string(fitted), expected);
}

static void ask_about_calls() {
    on.held = new_stream(CU_STREAM_NON_BLOCKING);
    on.other = new_stream(CU_STREAM_NON_BLOCKING);
    MUST(cuEventCreate(&on.event, CU_EVENT_DISABLE_TIMING));
    ask_how_many_fit("launches", launch_one, "");
    ask_how_many_fit("records of one event", record_one, "");
    for (const call &c : CALLS)
        for (int s = 0; s < STATES; s++) ask_in(c, (state)s);
    MUST(cuEventDestroy(on.event));
    MUST(cuStreamDestroy(on.held));
    MUST(cuStreamDestroy(on.other));
}

#endif
