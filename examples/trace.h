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

static inline FILE *trace_file(void) {
    static FILE *file;
    static int is_asked; /* 1: a thread opens it, 2: it is open, or is not to be */
    int not_asked = 0;
    if (__atomic_compare_exchange_n(&is_asked, &not_asked, 1, 0, __ATOMIC_ACQUIRE,
                                    __ATOMIC_ACQUIRE)) {
        const char *path = getenv("GPUPOOL_TRACE_FILE");
        file = path && *path ? fopen(path, "w") : NULL;
        __atomic_store_n(&is_asked, 2, __ATOMIC_RELEASE);
    }
    while (__atomic_load_n(&is_asked, __ATOMIC_ACQUIRE) != 2) continue;
    return file;
}

static inline void trace_write(const char *kind, const void *block, size_t bytes,
                               const void *stream) {
    unsigned long long id = (unsigned long long)(uintptr_t)block / 512;
    unsigned long long handle = (unsigned long long)(uintptr_t)stream;
    FILE *file = trace_file();
    if (!file) return;
    if (*kind == 'a' && !block) fprintf(file, "o %zu %llu\n", bytes, handle);
    else if (*kind == 'a') fprintf(file, "a %llu %zu %llu\n", id, bytes, handle);
    else fprintf(file, "%c %llu %llu\n", *kind, id, handle); /* "free", "use" */
}

#define GPUPOOL_TRACE(kind, arena, pointer, bytes, stream, label) \
    trace_write(kind, pointer, bytes, stream)

#endif
