/* schedule_run.h: runs what schedule_kit.h is about; include it after gpupool.h. */
#ifndef SCHEDULE_RUN_H
#define SCHEDULE_RUN_H

#include "ring_kit.h"

#include <ucontext.h>

#ifndef SCHEDULE_CUTS
#define SCHEDULE_CUTS 2
#endif
#define SCHEDULE_POINTS 4096   /* of one order */
#define SCHEDULE_STEPS 1000000 /* so many in one order, and nobody will ever go on */
#define SCHEDULE_PATIENCE 1000 /* so many waits beside one that sleeps, and nobody wakes it */
#define SCHEDULE_STACK ((size_t)256 << 10)

typedef struct schedule_case {
    const char *name;
    void (*open)(void);
    void (*thread[2])(void);
    void (*close)(void); /* after both; what must hold then */
} schedule_case;

static struct {
    ucontext_t home, thread[2];
    char *stack[2];
    struct gpi_thread own[2]; /* what the header keeps for each thread, */
    enum cudaStreamCaptureMode mode[2]; /* and CUDA */
    const schedule_case *now;
    int running;              /* 0 or 1; -1: neither */
    const void *asleep[2];    /* the lock's gate that the thread sleeps at */
    int done[2], cuts, most_cuts;
    long steps;               /* points and waits of this order */
    int pauses;               /* the thread has paused, and looked at nothing since */
    long waits;               /* of one thread, since the other fell asleep */
    unsigned char choice[SCHEDULE_POINTS]; /* at each point with a choice: 1 interrupts */
    size_t at, choices;
} sch = {.running = -1};

static void schedule_switch(void) {
    int from = sch.running, to = 1 - from;
    sch.own[from] = gpi_thread;
    gpi_thread = sch.own[to];
    sch.mode[from] = sch.mode[to];
    cudaThreadExchangeStreamCaptureMode(&sch.mode[from]);
    sch.running = to;
    sch.pauses = 0;
    swapcontext(&sch.thread[from], &sch.thread[to]);
}

static int schedule_choose(void) {
    if (sch.at == SCHEDULE_POINTS) {
        check_fail(__FILE__, __LINE__, "%s has too many points", sch.now->name);
        exit(check_finish());
    }
    if (sch.at == sch.choices) sch.choice[sch.choices++] = 0;
    return sch.choice[sch.at++];
}

static void schedule_step(void) {
    if (++sch.steps <= SCHEDULE_STEPS) return;
    sch.running = -1; /* to fail is atomic, too, and would come here again */
    check_fail(__FILE__, __LINE__, "%s: nobody goes on", sch.now->name);
    check_failed++;
    exit(check_finish());
}

static void schedule_look(void) { sch.pauses = 0; }

static void schedule_point(void) {
    if (sch.running < 0) return;
    schedule_look();
    schedule_step();
    if (sch.done[1 - sch.running] || sch.asleep[1 - sch.running]) return;
    if (sch.cuts == sch.most_cuts || !schedule_choose()) return;
    sch.cuts++;
    schedule_switch();
}

static void schedule_waiting(void) {
    if (sch.running < 0) return;
    schedule_step();
    if (sch.done[1 - sch.running]) return;
    if (sch.asleep[1 - sch.running] && ++sch.waits < SCHEDULE_PATIENCE) return;
    schedule_switch();
}

static void schedule_pause(void) {
    if (sch.running >= 0 && !sch.pauses) schedule_waiting();
    sch.pauses = 1;
}

static void schedule_wake(const void *gate) {
    for (int i = 0; i < 2; i++)
        if (sch.asleep[i] == gate) sch.asleep[i] = NULL;
}

/* The time limit of an idle thread of a ring, which sleeps at the process's gate, may pass at any
   moment. Who sleeps for a lock has to be woken. */
static void schedule_sleep(const void *gate) {
    int me = sch.running;
    if (me < 0 || gate == &gpi_process.gate.turned) {
        schedule_waiting();
        return;
    }
    sch.asleep[me] = gate;
    sch.waits = 0;
    schedule_waiting();
    if (sch.asleep[me]) check_fail(__FILE__, __LINE__, "nobody wakes who waits for a lock");
    sch.asleep[me] = NULL;
}

/* A thread ends in the other, or where the two were started. */
static void schedule_main(void) {
    int me = sch.running, other = 1 - me;
    sch.now->thread[me]();
    sch.done[me] = 1;
    gpi_thread = sch.own[other];
    if (!sch.done[other]) cudaThreadExchangeStreamCaptureMode(&sch.mode[other]);
    CHECK_EQ(sch.done[other] || sch.mode[other] == cudaStreamCaptureModeGlobal, 1);
    sch.running = sch.done[other] ? -1 : other;
    setcontext(sch.done[other] ? &sch.home : &sch.thread[other]);
}

/* Calls that the header makes with the arena's lock, or the ring's, open. */
#define SCHEDULE_CALL(field, call, parameters, arguments) \
    static CUresult CUDAAPI schedule_##field parameters { \
        schedule_point(); \
        return call arguments; \
    }
SCHEDULE_CALL(event_record, cuEventRecord, (CUevent event, CUstream stream), (event, stream))
SCHEDULE_CALL(event_create, cuEventCreate, (CUevent * event, unsigned flags), (event, flags))
SCHEDULE_CALL(record_all, cuCtxRecordEvent, (CUcontext context, CUevent event), (context, event))
SCHEDULE_CALL(stream_wait, cuStreamWaitEvent, (CUstream stream, CUevent event, unsigned flags),
              (stream, event, flags))
SCHEDULE_CALL(event_query, cuEventQuery, (CUevent event), (event))
SCHEDULE_CALL(event_sync, cuEventSynchronize, (CUevent event), (event))
SCHEDULE_CALL(memory_alloc, cuMemAlloc, (CUdeviceptr *at, size_t bytes), (at, bytes))
SCHEDULE_CALL(fill, cuMemsetD8Async,
              (CUdeviceptr at, unsigned char byte, size_t bytes, CUstream stream),
              (at, byte, bytes, stream))
SCHEDULE_CALL(map, cuMemMap,
              (CUdeviceptr at, size_t bytes, size_t offset, gpi_handle handle,
               unsigned long long flags),
              (at, bytes, offset, handle, flags))
SCHEDULE_CALL(unmap, cuMemUnmap, (CUdeviceptr at, size_t bytes), (at, bytes))
SCHEDULE_CALL(export_handle, cuMemExportToShareableHandle,
              (void *descriptor, gpi_handle handle, CUmemAllocationHandleType type,
               unsigned long long flags),
              (descriptor, handle, type, flags))
SCHEDULE_CALL(host_register, cuMemHostRegister, (void *at, size_t bytes, unsigned flags),
              (at, bytes, flags))
SCHEDULE_CALL(host_unregister, cuMemHostUnregister, (void *at), (at))

static void schedule_driver(gpi_driver *driver) {
    driver->event_record = schedule_event_record;
    driver->event_create = schedule_event_create;
    driver->record_all = schedule_record_all;
    driver->stream_wait = schedule_stream_wait;
    driver->event_query = schedule_event_query;
    driver->event_sync = schedule_event_sync;
    driver->memory_alloc = schedule_memory_alloc;
    driver->fill = schedule_fill;
    driver->map = schedule_map;
    driver->unmap = schedule_unmap;
    driver->export_handle = schedule_export_handle;
    driver->host_register = schedule_host_register;
    driver->host_unregister = schedule_host_unregister;
}

static void schedule_one(void) {
    kit_prepare();
    sch.now->open();
    sch.at = 0;
    sch.cuts = sch.done[0] = sch.done[1] = 0;
    sch.steps = 0;
    for (int i = 0; i < 2; i++) {
        memset(&sch.own[i], 0, sizeof sch.own[i]);
        sch.mode[i] = cudaStreamCaptureModeGlobal;
        if (!sch.stack[i]) sch.stack[i] = (char *)malloc(SCHEDULE_STACK);
        getcontext(&sch.thread[i]);
        sch.thread[i].uc_stack.ss_sp = sch.stack[i];
        sch.thread[i].uc_stack.ss_size = SCHEDULE_STACK;
        makecontext(&sch.thread[i], schedule_main, 0);
    }
    struct gpi_thread before = gpi_thread;
    sch.running = schedule_choose(); /* either begins */
    gpi_thread = sch.own[sch.running];
    swapcontext(&sch.home, &sch.thread[sch.running]);
    gpi_thread = before;
    sch.now->close();
    kit_settle();
}

/* The next order that was not run yet; 0: there is none. */
static int schedule_next(void) {
    while (sch.choices && sch.choice[sch.choices - 1]) sch.choices--;
    if (sch.choices) sch.choice[sch.choices - 1] = 1;
    return sch.choices > 0;
}

/* Runs every order with up to so many interruptions. Stops at the first that goes wrong. */
static long schedule_case_with(const schedule_case *now, int cuts) {
    long orders = 0;
    atomic_store(&check_bad, 0);
    sch.now = now;
    sch.most_cuts = cuts;
    sch.choices = 0;
    do {
        check_case("%s, order %ld", now->name, ++orders);
        schedule_one();
    } while (!atomic_load(&check_bad) && schedule_next());
    check_context[0] = 0;
    return orders;
}

/* Few interruptions first, for all cases, since most mistakes need one only. */
static void schedule_cases(const schedule_case *cases, size_t count) {
    for (int cuts = 1; cuts <= SCHEDULE_CUTS && !check_failed; cuts++)
        for (size_t i = 0; i < count && !check_failed; i++) {
            if (!check_is_wanted(cases[i].name)) continue;
            long orders = schedule_case_with(&cases[i], cuts);
            int is_wrong = atomic_load(&check_bad) != 0;
            check_failed += is_wrong;
            if (is_wrong) printf("%s GOES WRONG in order %ld\n", cases[i].name, orders);
            if (is_wrong || cuts < SCHEDULE_CUTS) continue;
            printf("%s: %ld orders\n", cases[i].name, orders);
            CHECK(orders > 5);
            check_passed++;
        }
}

#endif
