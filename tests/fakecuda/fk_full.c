/* Full launch queues: a stream takes so many operations that have not run, and a call that gives it
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

#define FK_ROOM 1020

static struct {
    int  room;                 /* operations that a queue takes; 0: any number */
    int  stuck;                /* threads that wait in a full queue now */
} fk = {.room = FK_ROOM};

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

void fk_full_defaults(void) { fk.room = FK_ROOM; }

FK_CONTROL(fake_queue, (int operations), fk.room = operations)
FK_QUESTION(int, fake_stuck, (void), fk.stuck)
