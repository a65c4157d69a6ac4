/* Starting over: every object dropped and counted, every default restored. */
#include "fk.h"

static long fk_objects(void) {
    return fk_memory_objects() + fk_event_objects() + fk_stream_objects() + fk_graph_objects() +
           fk_capture_objects() + fk_retained_contexts();
}

FK_QUESTION(long, fake_live_objects, (void), fk_objects())

long fake_reset(void) {
    long left;
    fk_lock();
    left = fk_objects();
    if (left && !fk_is_quiet())
        fprintf(stderr, "fakecuda: left behind: %ld of memory (ranges and handles), %ld events, "
                "%ld streams, %ld graphs and captures, %ld holds on contexts\n",
                fk_memory_objects(), fk_event_objects(), fk_stream_objects(),
                fk_graph_objects() + fk_capture_objects(), fk_retained_contexts());
    fk_holds_end();
    fk_drive_context(-1);
    fk_captures_drop();
    fk_graphs_drop();
    fk_events_drop_context(-1);
    fk_streams_drop_context(-1);
    fk_memory_drop_device(-1);
    fk_streams_defaults();
    fk_memory_defaults();
    fk_devices_defaults();
    fk_core_defaults();
    fk_full_defaults();
    fk_oracle_enable(1);
    fk_me()->device = fk_me()->current = fk_me()->depth = 0;
    fk_me()->last = cudaSuccess;
    fk_me()->mode = cudaStreamCaptureModeGlobal;
    fk_unlock();
    return left;
}

FK_CONTROL(fake_oracle, (int on), fk_oracle_enable(on))
