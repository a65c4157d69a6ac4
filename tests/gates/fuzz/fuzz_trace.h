/* fuzz_trace.h: files for the reader of recorded runs. What it takes makes sense: every slot and
   stream exists, every free has its block, and the peak is the peak. Packed files are left out: it
   is gzip that would be tried. Link trace.c, trace_build.c, lines.c and idmap.c. */
#ifndef FUZZ_TRACE_H
#define FUZZ_TRACE_H

#include "trace.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int fuzz_trace_makes_sense(const trace *t) {
    uint64_t *held = calloc(t->slots + 1, sizeof *held), live = 0, peak = 0;
    size_t peak_event = 0, i;
    for (i = 0; held && i < t->events; i++) {
        const trace_event *e = &t->event[i];
        int of_a_block = e->kind == TRACE_BLOCK || e->kind == TRACE_USE || e->kind == TRACE_SIZE;
        if (e->stream >= t->streams || (of_a_block && e->slot >= t->slots)) break;
        if ((of_a_block && !e->bytes && !held[e->slot]) || e->kind > TRACE_LOOK) break;
        if (e->kind != TRACE_BLOCK) continue;
        if (e->bytes && held[e->slot]) break;
        live += e->bytes - (e->bytes ? 0 : held[e->slot]);
        held[e->slot] = e->bytes;
        if (live > peak) peak_event = i;
        if (live > peak) peak = live;
    }
    free(held);
    return i == t->events && peak == t->peak_live_bytes && peak_event == t->peak_event;
}

static int fuzz_trace(const uint8_t *data, size_t size) {
    char path[] = "/tmp/fuzz_trace_XXXXXX";
    trace t;
    int fd, good = 1;
    if (size >= 2 && data[0] == 0x1f && data[1] == 0x8b) return 1;
    fd = mkstemp(path);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size) {
        perror(path);
        exit(EXIT_FAILURE);
    }
    if (trace_read(&t, path) == 0) {
        good = fuzz_trace_makes_sense(&t) && t.events > 0;
        if (!good) printf("%s: read, but it makes no sense\n", path);
        trace_free(&t);
    } else {
        good = t.event == NULL && t.events == 0;
    }
    close(fd);
    unlink(path);
    return good;
}

#endif
