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
    int done[2], cuts;
    long steps;               /* points and waits of this order */
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
    check_fail(__FILE__, __LINE__, "%s: nobody goes on", sch.now->name);
    check_failed++;
    exit(check_finish());
}

static void schedule_point(void) {
    if (sch.running < 0) return;
    schedule_step();
    if (sch.done[1 - sch.running] || sch.cuts == SCHEDULE_CUTS) return;
    if (!schedule_choose()) return;
    sch.cuts++;
    schedule_switch();
}

static void schedule_waiting(void) {
    if (sch.running < 0) return;
    schedule_step();
    if (!sch.done[1 - sch.running]) schedule_switch();
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

static CUresult CUDAAPI schedule_record(CUevent event, CUstream stream) {
    schedule_point();
    return cuEventRecord(event, stream);
}
static CUresult CUDAAPI schedule_wait(CUstream stream, CUevent event, unsigned flags) {
    schedule_point();
    return cuStreamWaitEvent(stream, event, flags);
}
static CUresult CUDAAPI schedule_query(CUevent event) {
    schedule_point();
    return cuEventQuery(event);
}
static void schedule_driver(gpi_driver *driver) {
    driver->event_record = schedule_record;
    driver->stream_wait = schedule_wait;
    driver->event_query = schedule_query;
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

/* Stops at the first order that goes wrong. */
static void schedule_all(const schedule_case *now) {
    long orders = 0;
    atomic_store(&check_bad, 0);
    sch.now = now;
    sch.choices = 0;
    do {
        check_case("%s, order %ld", now->name, ++orders);
        schedule_one();
    } while (!atomic_load(&check_bad) && schedule_next());
    printf("%s: %ld orders%s\n", now->name, orders, atomic_load(&check_bad) ? ", GOES WRONG" : "");
    CHECK(orders > 5 || atomic_load(&check_bad));
    if (atomic_load(&check_bad)) check_failed++;
    else check_passed++;
    check_context[0] = 0;
}

#endif
