/* gpupool.h: device memory for CUDA programs in C and C++, in one file. Version 0.3 (being written)

What it is. An arena gets large chunks of one device's memory from the CUDA driver, keeps them, and
hands out blocks of them: a generalised buddy system. An allocation that finds memory makes no CUDA
call and takes tens of nanoseconds.

How to use it. In exactly one C, C++ or .cu file of the program, write
    #define GPUPOOL_IMPLEMENTATION
before the include of this file. All other files include it without that line. Link the CUDA runtime.
Linux, CUDA 12.5 or later, C11 or C++11, gcc, clang or nvcc.

    #define GPUPOOL_IMPLEMENTATION
    #include "gpupool.h"

    int main(void) {
        gpupool_arena *arena;
        void *block;
        if (gpupool_arena_create(&arena, NULL) != GPUPOOL_OK ||
            !(block = gpupool_alloc(arena, 1 << 20, 0))) {
            fprintf(stderr, "%s\n", gpupool_last_error());
            return 1;
        }
        cudaMemsetAsync(block, 0, 1 << 20, 0);    // your kernels, on the same stream
        gpupool_free(arena, block, 0);            // no need to wait for them
        return gpupool_arena_destroy(arena) != GPUPOOL_OK;
    }

Five rules:
1. ORDER. Free a block on the stream whose work used it last; that stream may get the memory again at
   once. Another stream that used it: gpupool_record_stream after its last use. A block allocated on
   A and first used on B: make B wait for A. Order means streams and events; a kernel that learns by a
   flag in memory is outside of it.
2. ENDS. Free blocks, destroy the arena, then (if ever) reset the device. Before cudaStreamDestroy,
   call gpupool_retire_stream, or wait for the stream's work. (GPUPOOL_STREAM_CHECK asks CUDA for the
   stream's id in each call: for programs whose libraries destroy streams with work under way.)
3. GRAPHS. What a graph uses is allocated in a scope, or lives as long as the graph. Release the scope
   when the graph is gone. On a capturing stream without a scope a request gets only memory at hand.
4. CALLBACKS. on_map, on_unmap, chunk_alloc and chunk_free call nothing of gpupool, throw nothing, and
   take no lock that a thread may hold while it calls gpupool. on_out_of_memory may free and allocate;
   it is not called again inside itself.
5. CALLS. Any thread, any time, except during destroy. A failed call changes nothing that you can see.
   Device, context and last CUDA error stay. The host waits for the device in trim, a lowered limit,
   release, destroy, and in an allocation that finds no memory otherwise (never with GPUPOOL_NO_WAIT).

Words:
    unit        512 bytes: sizes of blocks are rounded up to units
    granule     2 MiB, the driver's page: sizes of mapped chunks are multiples of it
    block       what gpupool_alloc returns
    chunk       memory that the arena got from its source in one call
    home        the address at which a chunk is mapped as long as it exists
    stitch      a second range of addresses, mapped over free memory of several chunks for one block
    run         consecutive units that are all free, or all of one block
    cache       of a stream: blocks of up to 16 KiB that it freed, ready for its next requests
    position    the number of a free; an arena numbers frees in order
    mark        an event that was recorded on a stream behind all its frees up to a position
    pending     of freed memory: work that was queued before the free may still use it
    finished    of freed memory: no work uses it any more, so any stream may have it (list ANY)
    idle        of a chunk: all of it is finished free memory
    scope       what gpupool_begin_capture opens: memory for a graph, until gpupool_release_capture

Contents (search for "== NAME"):
    OPTIONS WORDS API                what you use
    SYSTEM DRIVER                    locks, memory for records, errors; CUDA's driver
    COUNTERS BUDDY STREAM            counts; free memory; streams, marks, caches
    CHUNK STITCH LADDER              memory from the driver; the steps that find memory
    ALLOC CAPTURE VERDICT            allocate and free; graphs; why memory ran out
    LIFE FIGURES CHECK               arenas made and destroyed; limits, statistics; invariants */
#ifndef GPUPOOL_H
#define GPUPOOL_H

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* == OPTIONS ======================================================================================
   Define an option before the include, in the file with GPUPOOL_IMPLEMENTATION. */

#ifndef GPUPOOL_API
#define GPUPOOL_API extern      /* linkage of public functions; "static": all in one file */
#endif
#ifndef GPUPOOL_LIMIT
#define GPUPOOL_LIMIT 0         /* bytes that an arena may reserve where its config has no limit; 0: any */
#endif
#ifndef GPUPOOL_CHUNK_BYTES
#define GPUPOOL_CHUNK_BYTES 0   /* size of new chunks; 0: 2 to 32 MiB, as reserved memory grows */
#endif
#ifndef GPUPOOL_SOURCE
#define GPUPOOL_SOURCE GPUPOOL_SOURCE_AUTO /* where the config says AUTO */
#endif
#ifndef GPUPOOL_STREAM_CHECK
#define GPUPOOL_STREAM_CHECK 0  /* 1: notice destroyed streams by CUDA's stream ids (rule 2); 65 ns a call */
#endif
#ifndef GPUPOOL_CHECK
#define GPUPOOL_CHECK 0         /* 1: every call ends with gpupool_check; for tests */
#endif
#ifndef GPUPOOL_MALLOC          /* host memory; both, or neither */
#include <stdlib.h>
#define GPUPOOL_MALLOC(bytes) malloc(bytes)
#define GPUPOOL_FREE(memory) free(memory)
#endif
#ifndef GPUPOOL_TRACE           /* told of each call that allocates or frees, after it; bytes 0: a free */
#define GPUPOOL_TRACE(kind, arena, pointer, bytes, stream, label)
#endif

/* == WORDS ========================================================================================
   Constants, enums and structs. A struct that the program fills may be all zeros. */

#define GPUPOOL_VERSION 300          /* 10000 x major + 100 x minor + patch */

/* In place of a stream. A request gets only memory whose work has finished, so that any stream may use
   it at once; a free says that the block's work has finished. */
#define GPUPOOL_NO_STREAM ((cudaStream_t)~(uintptr_t)0)

typedef enum gpupool_result {
    GPUPOOL_OK = 0,
    GPUPOOL_E_ARGUMENT,      /* fix the call: gpupool_last_error names argument and rule */
    GPUPOOL_E_OUT_OF_MEMORY, /* gpupool_last_verdict says why, and what helps */
    GPUPOOL_E_NOT_OURS,      /* the pointer is in no memory of the arena */
    GPUPOOL_E_INSIDE,        /* the pointer is inside a live block, not at its start */
    GPUPOOL_E_DOUBLE_FREE,   /* the pointer is in memory that is free already */
    GPUPOOL_E_IN_USE,        /* destroy refused: blocks are live, or scopes not released */
    GPUPOOL_E_CAPTURING,     /* not possible while the stream captures; the capture goes on */
    GPUPOOL_E_ASLEEP,        /* the arena sleeps */
    GPUPOOL_E_TIMEOUT,       /* the allowed time has passed */
    GPUPOOL_E_UNSUPPORTED,   /* this device cannot do it */
    GPUPOOL_E_FORKED,        /* a forked child has no CUDA context */
    GPUPOOL_E_CALLBACK,      /* the program's function returned an error */
    GPUPOOL_E_FILE,          /* a file could not be read or written */
    GPUPOOL_E_HOST_MEMORY,   /* no host memory for records; nothing changed */
    GPUPOOL_E_CUDA           /* a CUDA call failed: gpupool_last_error names call and error. If it was a
                                call that must not fail, the arena is broken: requests return E_CUDA
                                with the first cause, frees and destroy work */
} gpupool_result;

typedef enum gpupool_source {    /* where an arena's chunks come from */
    GPUPOOL_SOURCE_AUTO = 0,     /* MAPPED if device and driver can map, else DEVICE */
    GPUPOOL_SOURCE_MAPPED,       /* cuMemCreate and cuMemMap: the only source that stitches */
    GPUPOOL_SOURCE_DEVICE,       /* cudaMalloc */
    GPUPOOL_SOURCE_MANAGED,      /* cudaMallocManaged: blocks are finished memory (the host may write) */
    GPUPOOL_SOURCE_PINNED,       /* cudaHostAlloc: page-locked host memory, likewise */
    GPUPOOL_SOURCE_CUSTOM,       /* config.chunk_alloc and chunk_free */
    GPUPOOL_SOURCE_BYPASS        /* no pool: each block is a cudaMalloc; to bisect a bug */
} gpupool_source;

typedef enum gpupool_flag {      /* of a request; add up several */
    GPUPOOL_NO_WAIT = 1,         /* the host waits for no GPU work; fails if only a wait would help */
    GPUPOOL_ZEROED = 2,          /* zeroes the block in stream order (PINNED, NO_STREAM: at once) */
    GPUPOOL_OWN_CHUNK = 4        /* the block is a chunk to itself: for export, cuMemGetAddressRange */
} gpupool_flag;

typedef enum gpupool_cause {     /* why memory ran out */
    GPUPOOL_CAUSE_NONE = 0,
    GPUPOOL_CAUSE_LIMIT,         /* the arena's limit */
    GPUPOOL_CAUSE_DEVICE_FULL,   /* the device is full, mostly of this arena's memory */
    GPUPOOL_CAUSE_OTHERS,        /* the device is full, mostly of memory that is not this arena's */
    GPUPOOL_CAUSE_FRAGMENTED,    /* enough bytes are free, but not side by side */
    GPUPOOL_CAUSE_PENDING,       /* enough bytes are free once work or graphs have ended */
    GPUPOOL_CAUSE_HOST           /* the host has no memory to give (PINNED, CUSTOM) */
} gpupool_cause;

typedef enum gpupool_share { GPUPOOL_SHARE_PROCESSES = 1, GPUPOOL_SHARE_RDMA = 2 } gpupool_share;

typedef struct gpupool_arena gpupool_arena;
typedef struct gpupool_capture gpupool_capture;

typedef struct gpupool_mapping {     /* for on_map and on_unmap: a whole chunk, or a stitch */
    void *memory;
    size_t bytes;
    unsigned long long handle;       /* CUmemGenericAllocationHandle; 0: a stitch, or not MAPPED */
} gpupool_mapping;

typedef struct gpupool_verdict {     /* figures of one moment, in bytes */
    gpupool_cause cause;
    uint64_t asked, missing;         /* missing: raise the limit by it and the request succeeds */
    uint64_t limit, reserved, allocated, pending;
    uint64_t largest;                /* the longest run of free memory that the request could take */
    uint64_t device_free, device_total;
    char sentence[400];
} gpupool_verdict;

typedef struct gpupool_request {
    size_t bytes, alignment;         /* alignment: a power of two, at most 2^40; 0: a unit */
    cudaStream_t stream;
    unsigned flags;                  /* gpupool_flag */
    const char *label;               /* groups blocks in reports; not copied; NULL: none */
} gpupool_request;

typedef struct gpupool_block {
    void *memory;
    size_t bytes, requested;         /* whole units; as asked for */
    const char *label;
} gpupool_block;

typedef struct gpupool_arena_config {
    int device;                      /* CUDA's ordinal */
    const char *name;                /* for reports; copied */
    gpupool_source source;
    size_t limit_bytes;              /* 0: GPUPOOL_LIMIT */
    size_t chunk_bytes;              /* 0: GPUPOOL_CHUNK_BYTES */
    unsigned share;                  /* gpupool_share: MAPPED memory for other processes, or RDMA */
    void *(*chunk_alloc)(size_t bytes, void *user);             /* CUSTOM: NULL means none left */
    void (*chunk_free)(void *chunk, size_t bytes, void *user);  /* and takes back what it gave */
    int (*on_map)(const gpupool_mapping *, void *user);         /* nonzero: refused */
    void (*on_unmap)(const gpupool_mapping *, void *user);
    int (*on_out_of_memory)(const gpupool_verdict *, void *user); /* nonzero: try once more */
    void *user;
} gpupool_arena_config;

typedef struct gpupool_counter { uint64_t now, peak; } gpupool_counter;

typedef struct gpupool_stats {       /* sizes in bytes, counts since the arena was made */
    gpupool_counter requested;       /* live blocks, as asked for */
    gpupool_counter allocated;       /* the same in whole units */
    gpupool_counter reserved;        /* chunks */
    gpupool_counter pending;         /* freed, and not known to be finished */
    uint64_t blocks, free_blocks;    /* live blocks; runs of free memory */
    uint64_t allocs, frees, failures;
    uint64_t chunks, stitches;       /* that exist */
    uint64_t stitched, reused;       /* stitches mapped; blocks that took one that was mapped */
    uint64_t driver_calls;           /* calls that create, map, unmap or release memory */
    uint64_t marks;                  /* events recorded */
    uint64_t stream_waits;           /* a stream was made to wait for another, on the device */
    uint64_t host_waits;             /* the host waited for a stream or the device */
    uint64_t limit;                  /* 0: none */
    uint64_t asleep;                 /* bytes that sleep gave back */
    uint64_t host;                   /* host memory of the arena's records */
} gpupool_stats;

/* == API ==========================================================================================
   Functions that return a pointer return NULL if they fail; gpupool_last_result says why. */

#ifdef __cplusplus
extern "C" {
#endif

/* Of this thread's last failed call: its result, a sentence, and the verdict of E_OUT_OF_MEMORY. */
GPUPOOL_API gpupool_result gpupool_last_result(void);
GPUPOOL_API const char *gpupool_last_error(void);
GPUPOOL_API const gpupool_verdict *gpupool_last_verdict(void);
GPUPOOL_API const char *gpupool_result_name(gpupool_result); /* "GPUPOOL_E_CUDA" */

/* Makes an arena. NULL config: the current device and all defaults. *arena is NULL after a failure. */
GPUPOOL_API gpupool_result gpupool_arena_create(gpupool_arena **arena, const gpupool_arena_config *);

/* Returns all memory and ends the arena. Waits for the device. E_IN_USE while blocks are live or scopes
   are not released. No other thread may use the arena. A broken arena is always ended. */
GPUPOOL_API gpupool_result gpupool_arena_destroy(gpupool_arena *);

/* Allocates a block of 1 to 2^46 bytes for work that is queued on the stream from now on. */
GPUPOOL_API void *gpupool_alloc(gpupool_arena *, size_t bytes, cudaStream_t);
GPUPOOL_API void *gpupool_alloc_request(gpupool_arena *, const gpupool_request *);

/* Frees a block on the stream whose work used it last (rule 1). NULL is allowed. */
GPUPOOL_API gpupool_result gpupool_free(gpupool_arena *, void *block, cudaStream_t);

/* gpupool_free for CUDA's host functions: no CUDA call and no lock that is held long. The block's
   stream work has come as far as the host function; recorded streams are waited for as ever. */
GPUPOOL_API gpupool_result gpupool_free_in_host_function(gpupool_arena *, void *block);

/* Says that the work which is queued on this stream so far uses the block too. E_CAPTURING on a
   capturing stream. */
GPUPOOL_API gpupool_result gpupool_record_stream(gpupool_arena *, const void *block, cudaStream_t);

/* Before a stream is destroyed, in all arenas (rule 2): its memory passes when its work has finished,
   and its handle may come to mean another stream. Closes its scope. */
GPUPOOL_API gpupool_result gpupool_retire_stream(cudaStream_t);

/* Describes the live block that begins at this address. E_INSIDE: *block is the one around it. */
GPUPOOL_API gpupool_result gpupool_get_block(gpupool_arena *, const void *memory, gpupool_block *block);

/* Returns idle chunks until at most keep_bytes stay reserved. Waits for the device. */
GPUPOOL_API gpupool_result gpupool_trim(gpupool_arena *, size_t keep_bytes);

/* Sets the limit on reserved bytes; 0: none. If more is reserved, waits for the device and returns idle
   chunks; what live blocks keep above the limit stays. */
GPUPOOL_API gpupool_result gpupool_set_limit(gpupool_arena *, size_t bytes);

GPUPOOL_API gpupool_result gpupool_get_stats(gpupool_arena *, gpupool_stats *);
GPUPOOL_API gpupool_result gpupool_reset_peaks(gpupool_arena *);

/* Checks the arena's records. E_CUDA, with the invariant's name, if one is broken. */
GPUPOOL_API gpupool_result gpupool_check(gpupool_arena *);

/* Opens a scope on the stream, best before cudaStreamBeginCapture. Blocks that the stream allocates in
   the scope, and what it frees in it, belong to the graph until the release. E_ARGUMENT: it has one. */
GPUPOOL_API gpupool_result gpupool_begin_capture(gpupool_arena *, cudaStream_t, gpupool_capture **);

/* Closes the scope. The graph keeps its memory. */
GPUPOOL_API gpupool_result gpupool_end_capture(gpupool_capture *);

/* Frees the graph's memory, blocks that are still live too. Waits for the device. Call it when the
   graph is destroyed, or the capture failed; closes the scope if it is open. */
GPUPOOL_API gpupool_result gpupool_release_capture(gpupool_capture *);

/* CUDA's shapes over the device's default arena are in a later part. */

#ifdef __cplusplus
}
#endif
#endif /* GPUPOOL_H */
