/* trace.h: records a program's calls for build/replay. Include it before gpupool.h in the file that
   has GPUPOOL_IMPLEMENTATION. The file is named by the environment's GPUPOOL_TRACE_FILE; without it
   nothing is recorded. One line for each call, as one write of the C library's, so threads may
   call:

       a ID BYTES STREAM   a block; its ID is its address in units of 512 bytes
       f ID STREAM         its free
       u ID STREAM         gpupool_record_stream
       o BYTES STREAM      a request that failed
   STREAM is the stream's handle as a number; 0: the default stream. */
#ifndef TRACE_H
#define TRACE_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static FILE *trace_file;

__attribute__((constructor)) static void trace_open(void) { /* before there are threads */
    const char *path = getenv("GPUPOOL_TRACE_FILE");
    if (path && *path) trace_file = fopen(path, "w");
}

static inline void trace_write(const char *kind, const void *block, size_t bytes,
                               const void *stream) {
    unsigned long long id = (unsigned long long)(uintptr_t)block / 512;
    unsigned long long handle = (unsigned long long)(uintptr_t)stream;
    if (!trace_file) return;
    if (*kind == 'a' && !block) fprintf(trace_file, "o %zu %llu\n", bytes, handle);
    else if (*kind == 'a') fprintf(trace_file, "a %llu %zu %llu\n", id, bytes, handle);
    else fprintf(trace_file, "%c %llu %llu\n", *kind, id, handle); /* "free", "use" */
}

#define GPUPOOL_TRACE(kind, arena, pointer, bytes, stream, label) \
    trace_write(kind, pointer, bytes, stream)

#endif
