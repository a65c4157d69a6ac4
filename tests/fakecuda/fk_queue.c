/* Queues of operations, and the three ways in which they run.
 *
 * What an operation must wait for is fixed when it is queued: a vector clock over all streams. It
 * may run when everything in that clock is done. Waiting for an event, the legacy stream's
 * barriers, a graph's edges: each is one clock joined into another, and by the same clocks the race
 * oracle judges. All modes share this; they differ only in who runs what is ready, and when.
 *
 * Full launch queues: a stream takes so many operations that have not run, and a call that gives it
 * one more waits until one has.
 *
 * Seen on an H100 (CUDA 13.0): behind a kernel launch 1,021 of a stream blocks until the kernel has
 * ended. Beside the thread that is stuck in it, cuMemAddressReserve, Create, Map, SetAccess, Unmap,
 * Release and AddressFree, cuEventQuery, cuMemGetInfo, cuStreamIsCapturing and cuStreamGetId of
 * that stream, launches, records and waits on others take a fraction of a millisecond;
 * cuEventCreate blocks until the queue moves (the next one may not).
 *
 * Assumed, and strict: what allocates or pins memory, makes or destroys a stream blocks there, too;
 * every cuEventCreate does. `make gpu-facts` asks a GPU. */
#include "fk.h"

#include <stdlib.h>
#include <string.h>

#define FK_WORKERS 4
#define FK_ROOM    1020

typedef struct fk_slot {
    uint64_t   issued, force;  /* force: up to here even a held stream runs */
    fk_stream *stream;         /* NULL: may be taken again once the host knows all of it is done */
} fk_slot;

static struct {
    fake_run_mode mode;
    fk_pool       handles;
    fk_slot      *slots;
    uint32_t      n_slots;
    fk_clock      done;        /* operations run, by slot */
    fk_clock      known;       /* what the host knows to be done */
    fk_clock      retired[FK_DEVICES];  /* work of destroyed streams */
    fk_clock      retired_blocking[FK_DEVICES];
    fk_stream    *legacy[FK_DEVICES];
    unsigned long long next_id;
    uint64_t      epoch[FK_DEVICES];    /* grows when the context's streams are dropped */
    long          queued;
    int           room;        /* operations that a queue takes; 0: any number */
    int           stuck;       /* threads that wait in a full queue now */
    pthread_t     worker[FK_WORKERS];
    int           workers, stopping;
    uint64_t      random;
} fk = {.handles = {.base = FK_DEVICE_BASE + 4096}, .room = FK_ROOM,
      .next_id = 1, .random = 88172645463325252u};

const fk_clock *fk_known(void) { return &fk.known; }
void fk_learn(const fk_clock *clock) { fk_clock_join(&fk.known, clock); }
int  fk_done(const fk_clock *clock) { return fk_clock_covers(&fk.done, clock); }

/* ---- making and finding streams ---- */

static uint32_t fk_take_slot(fk_stream *stream) {
    uint32_t i;
    for (i = 0; i < fk.n_slots; i++)
        if (!fk.slots[i].stream && fk_clock_get(&fk.known, i) >= fk.slots[i].issued) break;
    if (i == fk.n_slots) {
        fk.slots = fk_grow(fk.slots, (size_t)fk.n_slots + 1, sizeof *fk.slots);
        memset(&fk.slots[i], 0, sizeof fk.slots[i]);
        fk.n_slots++;
    }
    fk.slots[i].stream = stream;
    fk.slots[i].force = 0;
    return i;
}

fk_stream *fk_new_stream(int device, int nonblocking, int hidden) {
    fk_stream *stream = fk_new(1, sizeof *stream);
    stream->device = device;
    stream->nonblocking = nonblocking;
    stream->hidden = hidden;
    stream->live = 1;
    stream->id = fk.next_id++;
    stream->slot = fk_take_slot(stream);
    if (!hidden) {
        uint64_t handle = fk_pool_add(&fk.handles, stream);
        stream->handle = (cudaStream_t)(uintptr_t)handle;
    }
    return stream;
}

static void fk_free_stream(fk_stream *stream) {
    fk.slots[stream->slot].stream = NULL;
    fk_clock_drop(&stream->tail);
    free(stream);
}

void fk_retire_stream(fk_stream *stream) {
    fk_capture_forget(stream);
    fk_clock_join(&fk.retired[stream->device], &stream->tail);
    if (!stream->nonblocking)
        fk_clock_join(&fk.retired_blocking[stream->device], &stream->tail);
    if (!stream->hidden) fk_pool_remove(&fk.handles, (uint64_t)(uintptr_t)stream->handle);
    stream->live = 0;
    stream->held = 0;
    if (!stream->first && !stream->busy) fk_free_stream(stream);
}

fk_stream *fk_legacy(int context) {
    if (!fk.legacy[context]) fk.legacy[context] = fk_new_stream(context, 0, 1);
    return fk.legacy[context];
}

static fk_stream *fk_own_stream(int context) {
    fk_thread *me = fk_me();
    if (me->epoch[context] != fk.epoch[context]) me->own[context] = NULL;
    me->epoch[context] = fk.epoch[context];
    if (!me->own[context]) me->own[context] = fk_new_stream(context, 0, 1);
    return me->own[context];
}

/* A real GPU has no answer for a destroyed stream: every call that names one, cudaStreamQuery too,
   ends the process with SIGSEGV (confirmed on an H200). Here it is a misuse and an error. */
fk_stream *fk_stream_of(cudaStream_t handle, int *error) {
    fk_thread *me = fk_me();
    fk_stream *stream;
    if (!handle || handle == cudaStreamLegacy || handle == cudaStreamPerThread) {
        int own = handle == cudaStreamPerThread || (!handle && me->own_stream);
        if (!fk_of_driver() || !fk_no_context())
            return own ? fk_own_stream(me->device) : fk_legacy(me->device);
        *error = fk_no_context(); /* whose default stream? */
        return NULL;
    }
    stream = fk_pool_get(&fk.handles, (uint64_t)(uintptr_t)handle);
    if (!stream) {
        fk_misuse("stream %p is destroyed or never was", (void *)handle);
        *error = (int)cudaErrorInvalidResourceHandle;
    }
    return stream;
}

/* ---- running ---- */

static int fk_ready(const fk_stream *stream) {
    const fk_op *op = stream->first;
    uint32_t i;
    if (!op || stream->busy) return 0;
    if (stream->held == FAKE_FIRM) return 0;
    if (stream->held && op->tick > fk.slots[stream->slot].force) return 0;
    for (i = 0; i < op->need.n; i++)
        if (i != stream->slot && op->need.tick[i] > fk_clock_get(&fk.done, i)) return 0;
    return 1;
}

/* The function's own calls, though forbidden, may not look like the one that waits for it. */
static void fk_call_host(const fk_work *work) {
    fk_thread *me = fk_me();
    fk_call call = me->call;
    int own_stream = me->own_stream;
    me->in_host_function = 1;
    fk_unlock();
    work->function(work->user);
    fk_lock();
    me->in_host_function = 0;
    me->call = call;
    me->own_stream = own_stream;
}

static void fk_do(fk_stream *stream, fk_work *work, uint64_t tick) {
    if (work->kind == FK_HOSTCALL) {
        stream->busy = 1;
        fk_call_host(work);
        stream->busy = 0;
    } else {
        fk_run_work(work);
    }
    fk_clock_set(&fk.done, stream->slot, tick);
    fk_unref_work(work);
}

static void fk_run_first(fk_stream *stream) {
    fk_op *op = stream->first;
    stream->first = op->next;
    if (!stream->first) stream->last = NULL;
    stream->queued--;
    fk.queued--;
    /* the host's thread comes behind the work that its function waited for */
    if (op->work->kind == FK_HOSTCALL) fk_learn(&op->need);
    fk_do(stream, op->work, op->tick);
    fk_clock_drop(&op->need);
    free(op);
    if (!stream->live && !stream->first) fk_free_stream(stream);
    fk_changed();
}

fk_stream *fk_next_stream(uint32_t *i) {
    while (*i < fk.n_slots && !fk.slots[*i].stream) ++*i;
    return *i < fk.n_slots ? fk.slots[(*i)++].stream : NULL;
}

static fk_stream *fk_any_ready(uint32_t start) {
    uint32_t i;
    for (i = 0; i < fk.n_slots; i++) {
        fk_stream *stream = fk.slots[(start + i) % fk.n_slots].stream;
        if (stream && fk_ready(stream)) return stream;
    }
    return NULL;
}

/* Another thread may make what is queued go on: one in a host function, or one that lets go. */
static int fk_others_move(void) {
    const fk_stream *stream;
    uint32_t i = 0;
    while ((stream = fk_next_stream(&i)) != NULL)
        if (stream->busy || stream->held == FAKE_FIRM) return 1;
    return 0;
}

static int fk_pump(void) {
    fk_stream *stream;
    int ran = 0;
    while (fk.queued > 0 && (stream = fk_any_ready(0)) != NULL) {
        fk_run_first(stream);
        ran++;
    }
    return ran;
}

/* One operation that the target needs, if one is ready. Clocks are closed: whatever an operation
   needs is in the target too. */
static int fk_drive_one(const fk_clock *target) {
    uint32_t i;
    for (i = 0; i < target->n; i++) {
        fk_stream *stream = fk.slots[i].stream;
        if (target->tick[i] <= fk_clock_get(&fk.done, i) || !stream) continue;
        if (fk.slots[i].force < target->tick[i]) fk.slots[i].force = target->tick[i];
        if (fk_ready(stream) && fk.mode != FAKE_THREADED) {
            fk_run_first(stream);
            return 1;
        }
    }
    return 0;
}

static int fk_drive_to(const fk_clock *target) {
    int ran = 0;
    while (!fk_done(target)) {
        if (fk_drive_one(target)) {
            ran++;
        } else if (fk.mode == FAKE_THREADED || fk_others_move()) {
            fk_changed();
            fk_wait_change();
        } else {
            fputs("fakecuda: work that can never run\n", stderr);
            abort();
        }
    }
    return ran;
}

/* Of a copy: the target may move while the lock is dropped. Whoever steps work teaches the host
   nothing: that the device is done is not that the program knows. */
int fk_run_for(const fk_clock *target) {
    fk_clock goal = {NULL, 0};
    int ran;
    fk_clock_copy(&goal, target);
    ran = fk_drive_to(&goal);
    fk_clock_drop(&goal);
    return ran;
}

void fk_drive(const fk_clock *target) {
    fk_clock goal = {NULL, 0};
    fk_clock_copy(&goal, target);
    fk_drive_to(&goal);
    fk_learn(&goal);
    fk_clock_drop(&goal);
}

/* All that was ever queued there (-1: anywhere). Of destroyed streams, too: whether their work has
   run by now may not decide what is ordered. */
static void fk_all_of(int device, int blocking_only, fk_clock *into) {
    const fk_clock *retired = blocking_only ? fk.retired_blocking : fk.retired;
    const fk_stream *stream;
    uint32_t i = 0;
    while ((stream = fk_next_stream(&i)) != NULL)
        if ((device < 0 || stream->device == device) && !(blocking_only && stream->nonblocking))
            fk_clock_join(into, &stream->tail);
    for (i = 0; i < FK_DEVICES; i++)
        if (device < 0 || (int)i == device) fk_clock_join(into, &retired[i]);
}

void fk_drive_context(int device) {
    fk_clock all = {NULL, 0};
    fk_all_of(device, 0, &all);
    fk_drive(&all);
    fk_clock_drop(&all);
}

/* ---- queueing ---- */

static void fk_order(fk_stream *stream, const fk_clock *after) {
    fk_stream *legacy = fk.legacy[stream->device];
    fk_clock_join(&stream->tail, &fk.known);
    if (after) fk_clock_join(&stream->tail, after);
    if (stream == legacy) fk_all_of(stream->device, 1, &stream->tail);
    else if (legacy && !stream->nonblocking) fk_clock_join(&stream->tail, &legacy->tail);
    fk_clock_set(&stream->tail, stream->slot, ++fk.slots[stream->slot].issued);
}

static void fk_enqueue(fk_stream *stream, fk_work *work, uint64_t tick) {
    fk_op *op = fk_new(1, sizeof *op);
    op->work = work;
    op->tick = tick;
    fk_clock_copy(&op->need, &stream->tail);
    if (stream->last) stream->last->next = op;
    else stream->first = op;
    stream->last = op;
    stream->queued++;
    fk.queued++;
}

void fk_issue(fk_stream *stream, fk_work *work, const fk_clock *after) {
    fk_actor actor;
    fk_order(stream, after);
    actor.slot = stream->slot;
    actor.tick = fk.slots[stream->slot].issued;
    actor.stream_id = stream->id;
    actor.clock = &stream->tail;
    actor.name = work->name;
    fk_note_work(work, &actor);
    fk_enqueue(stream, work, actor.tick);
    if (fk.mode == FAKE_EAGER) fk_pump();
    if (fk.mode == FAKE_THREADED) fk_changed();
}

cudaError_t fk_submit(fk_stream *stream, fk_work *work) {
    cudaError_t error = cudaSuccess;
    if (stream->capture) error = fk_capture_add(stream, work);
    else error = fk_implicit(stream);
    if (error || stream->capture) fk_unref_work(work);
    else fk_issue(stream, work, NULL);
    return error;
}

/* ---- full queues ---- */

/* The oldest operation makes room. A held stream lets it through, as any call that waits does. */
static void fk_await_oldest(const fk_stream *stream) {
    fk_clock goal = {NULL, 0};
    fk_clock_copy(&goal, &stream->first->need);
    fk.stuck++;
    fk_changed();
    fk_run_for(&goal);
    fk.stuck--;
    fk_changed();
    fk_clock_drop(&goal);
}

/* The stream may go while a thread waits: it is looked up anew. */
fk_stream *fk_stream_with_room(cudaStream_t handle, int *error) {
    fk_stream *stream = fk_stream_of(handle, error);
    while (stream && !stream->capture && fk.room && stream->queued >= fk.room && stream->first) {
        fk_await_oldest(stream);
        stream = fk_stream_of(handle, error);
    }
    return stream;
}

void fk_stall(void) {
    if (!fk.stuck) return;
    while (fk.stuck) fk_wait_change();
}

/* ---- controls ---- */

static void *fk_worker(void *unused) {
    (void)unused;
    fk_lock();
    while (!fk.stopping) {
        fk_stream *stream;
        fk.random ^= fk.random << 13;
        fk.random ^= fk.random >> 7;
        fk.random ^= fk.random << 17;
        stream = fk.n_slots ? fk_any_ready((uint32_t)(fk.random % fk.n_slots)) : NULL;
        if (stream) {
            fk_run_first(stream);
            fk_unlock();
            fk_lock();
        } else {
            fk_wait_change();
        }
    }
    fk_unlock();
    return NULL;
}

static void fk_stop_workers(void) {
    int i, n = fk.workers;
    fk.stopping = 1;
    fk_changed();
    fk_unlock();
    for (i = 0; i < n; i++) pthread_join(fk.worker[i], NULL);
    fk_lock();
    fk.workers = 0;
    fk.stopping = 0;
}

static void fk_set_mode(fake_run_mode mode) {
    if (mode == fk.mode) return;
    fk_drive_context(-1);
    if (fk.mode == FAKE_THREADED) fk_stop_workers();
    fk.mode = mode;
    while (mode == FAKE_THREADED && fk.workers < FK_WORKERS) {
        if (pthread_create(&fk.worker[fk.workers], NULL, fk_worker, NULL)) abort();
        fk.workers++;
    }
}

FK_CONTROL(fake_mode, (fake_run_mode mode), fk_set_mode(mode))

static fk_stream *fk_controlled(cudaStream_t handle) {
    int error = 0;
    return fk_stream_of(handle, &error);
}

static int fk_step(fk_stream *stream) {
    if (!stream || !fk_ready(stream)) return 0;
    fk_run_first(stream);
    return 1;
}

static int fk_count_pending(const fk_stream *stream) {
    return stream ? stream->queued + stream->busy : 0;
}

static int fk_run(const fk_stream *stream) { return stream ? fk_run_for(&stream->tail) : 0; }

static void fk_hold(fk_stream *stream, int on) {
    if (stream) stream->held = on;
    if (fk.mode == FAKE_EAGER) fk_pump();
    fk_changed();
}

FK_QUESTION(int, fake_step, (cudaStream_t handle), fk_step(fk_controlled(handle)))
FK_QUESTION(int, fake_run, (cudaStream_t handle), fk_run(fk_controlled(handle)))
FK_QUESTION(int, fake_run_all, (void), fk_pump())
FK_QUESTION(int, fake_pending, (cudaStream_t handle), fk_count_pending(fk_controlled(handle)))
FK_CONTROL(fake_queue, (int operations), fk.room = operations)
FK_QUESTION(int, fake_stuck, (void), fk.stuck)
FK_CONTROL(fake_hold, (cudaStream_t handle, int on), fk_hold(fk_controlled(handle), on))

/* ---- dropping ---- */

void fk_holds_end(void) {
    fk_stream *stream;
    uint32_t i = 0;
    while ((stream = fk_next_stream(&i)) != NULL) stream->held = 0;
    fk_changed();
}

void fk_streams_drop_context(int device) {
    fk_stream *stream;
    uint32_t i = 0;
    while ((stream = fk_next_stream(&i)) != NULL) {
        if (device >= 0 && stream->device != device) continue;
        if (fk.legacy[stream->device] == stream) fk.legacy[stream->device] = NULL;
        fk_retire_stream(stream);
    }
    for (i = 0; i < FK_DEVICES; i++)
        if (device < 0 || (int)i == device) fk.epoch[i]++;
}

long fk_stream_objects(void) { return (long)fk.handles.live; }

void fk_streams_defaults(void) {
    int i;
    fk_set_mode(FAKE_EAGER);
    fk.room = FK_ROOM;
    for (i = 0; i < FK_DEVICES; i++) {
        fk_clock_drop(&fk.retired[i]);
        fk_clock_drop(&fk.retired_blocking[i]);
    }
    if (fk.handles.live || fk.queued) return;
    free(fk.slots);
    fk.slots = NULL;
    fk.n_slots = 0;
    fk_clock_drop(&fk.done);
    fk_clock_drop(&fk.known);
    fk_pool_reset(&fk.handles);
}
