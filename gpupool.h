/* gpupool.h: device memory for CUDA programs in C and C++, in one file. Version 0.3

What it is. cudaMalloc and cudaFree take 50 us a pair, and cudaFree waits for the device: too much
for programs that allocate all the time. An arena gets large chunks of one device's memory from the
driver, keeps them, and hands out blocks of them. An allocation that finds memory makes no CUDA call
and takes some 20 to 190 ns; a free waits for no work. A ring copies ordinary host memory and
files to the device and back at the speed of pinned memory. Arenas and rings need not each other.

How to use it. In exactly one C, C++ or .cu file of the program, write
    #define GPUPOOL_IMPLEMENTATION
before the include of this file. All other files include it without that line. Link the CUDA runtime
(nvcc does; else -lcudart -lpthread). Linux, CUDA 12.5 or later, C11 or C++11, gcc, clang or nvcc.

A complete program:

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
        gpupool_report(arena, stdout);
        return gpupool_arena_destroy(arena) != GPUPOOL_OK;
    }

The same in C++, on a stream of its own:

    #define GPUPOOL_IMPLEMENTATION
    #include "gpupool.h"

    int main() {
        gpupool::arena arena;                           // failures throw gpupool::bad_alloc
        gpupool::resource memory(arena, "scratch");     // cuda::mr and RMM take it, too
        cudaStream_t stream;
        if (cudaStreamCreate(&stream) != cudaSuccess) return 1;
        void *block = memory.allocate(stream, 1 << 20);
        cudaMemsetAsync(block, 0, 1 << 20, stream);     // your kernels, on the same stream
        memory.deallocate(stream, block);               // no need to wait for them
        gpupool_retire_stream(stream);                  // rule 2
        return cudaStreamDestroy(stream) != cudaSuccess;
    }

An existing program: compile each file with -DGPUPOOL_REPLACE_CUDA_MALLOC=1 -include gpupool.h, and
one of them with -DGPUPOOL_IMPLEMENTATION besides. Its cudaMalloc and cudaFree are then gpupool's.

How it works. The arena's memory is divided into runs of units. A run is live, free for one stream
only, or free for all:

    |  chunk                              |  chunk                  |  chunk            |   grows
    |LLLLLLLL..........LLL1111111LLLLLLLLL|LLLLLL22222LLLL..........|LLLLL1111..........|  ------->
     L  live
     1  freed by stream 1, whose work may still use it: only stream 1 may take it at once, since
        its later work runs after that work;  2  likewise of stream 2
     .  finished: no work uses it any more

A request of stream 1 is served by the first of these that can:

    its cache      blocks of up to 16 KiB that stream 1 freed, by exact size; no lock but its own
    free runs      of stream 1, and finished ones, in lists by size (powers of two, in eighths): the
                   closest fit is split, and what becomes free joins its free neighbours
    a stitch       free memory of several chunks, mapped a second time, side by side:
                       |LLL..........|  |LLLLL....|  |L........|      free at the chunks' ends
                             |               |           |
                             +------|..........|....|........|        one block
    new chunks     of 2 to 32 MiB, as the arena grows; a large block lies over several
    the rest       memory of other streams: stream 1 waits on the device, or else the host waits;
                   idle chunks, of other arenas too, go back; your on_out_of_memory

This is a buddy system, generalised: a block takes its exact number of units, and any neighbour is a
buddy. (A plain one rounds sizes up to powers of two.) To learn that freed memory has finished,
gpupool records events behind frees (marks) and queries them later: hardly any while one stream uses
the arena, few while memory is plenty, and never more than one for each free or
gpupool_record_stream. Stitching has a budget, so that a program whose sizes never come again grows
instead of mapping for ever. When all fails, a verdict says why in figures, and what would help.
gpupool moves no live block, has no records in device memory, starts no thread but a ring's workers,
and prints nothing unless asked.

Five rules:
1. ORDER. A block allocated on A and first used on B: make B wait for A, by an event. Free a block
   on a stream that used it: that stream's later work may get the memory at once. If another stream
   used it, too, and the freeing stream has not waited (by an event) for that use, then call
   gpupool_record_stream for the other one, after its use and before the free: the memory is used
   again only behind that work. (A consumer that waited for the producer, and frees: nothing to
   record.) Order is made by streams and events. Kernels that wait for a flag in memory, or that a
   programmatic launch starts early, do not count as ordered.
2. ENDS. Free blocks, destroy the arena, then (if ever) reset the device. Tell gpupool before you
   destroy a stream that it has seen, unless all work of the stream has finished. For CUDA gives the
   handle of a destroyed stream to a new one, which gpupool would take for the old one: what the old
   stream freed would go to the new one, though the old one's work may still run. (The stream's live
   blocks stay valid: free them on another stream.) Gpupool is told
     - by gpupool_retire_stream, which does not wait, called before cudaStreamDestroy; or
     - by a file with GPUPOOL_REPLACE_CUDA_MALLOC, where cudaStreamDestroy is a macro that does it
       (and cudaDeviceReset one that first destroys the device's default arenas); or
     - by GPUPOOL_STREAM_CHECK, which asks CUDA for the stream's id in each call, in 65 ns: for
       programs whose libraries destroy streams with work under way, as cuda::stream and RMM's do.
3. GRAPHS. Memory that a graph uses is allocated in a scope (gpupool_begin_capture) on its stream,
   and kept until the scope is released; or it is a block that you free after the graph is gone.
   Release the scope when the graph and what was instantiated from it are destroyed. A capturing
   stream without a scope gets memory that is free already, or E_CAPTURING, and may free what the
   graph does not use.
4. CALLBACKS. on_map, on_unmap, chunk_alloc and chunk_free call nothing of gpupool, throw nothing,
   and take no lock that a thread may hold while it calls gpupool (an interpreter's lock).
   on_out_of_memory runs in the request's thread, several threads at a time, and no lock is held:
   it may free and allocate. It is called once for a request, with NO_WAIT too, and not inside
   itself. CUDA's host functions call only gpupool_free_in_host_function.
5. CALLS. Any thread, any time, except during destroy; no thread is cancelled in one. A failed call
   changes nothing that you can see. Device, context and last CUDA error stay. The host waits for
   the device only in trim, a lowered limit, sleep, wake, release, destroy and a ring's transfers;
   and in an allocation (never with GPUPOOL_NO_WAIT) that
     - finds no memory and cannot grow; or
     - would grow, but finds 16 MiB or more (gpupool_cudaMalloc: the block's size or more) of freed
       memory that only a wait makes reusable: freed by gpupool_cudaFree, or on the default stream
       of a thread that has ended since, or on a stream that GPUPOOL_STREAM_CHECK found to have
       ended.
   While one thread maps, others may wait for it: 0.1 ms as a rule, up to 3 ms. An arena grows
   before it makes a stream wait. A host that queues work far ahead of the device on several streams
   needs a limit: then streams wait, on the device, for each other's memory.

Options, macros before the include: values are in OPTIONS.
    in one file    GPUPOOL_IMPLEMENTATION
    in each file   GPUPOOL_API, GPUPOOL_REPLACE_CUDA_MALLOC, GPUPOOL_SITES
    defaults       GPUPOOL_LIMIT, GPUPOOL_CHUNK_BYTES, GPUPOOL_SOURCE, GPUPOOL_RING_BYTES,
                   GPUPOOL_RING_SLOT_BYTES, GPUPOOL_RING_WORKERS, GPUPOOL_SHARE
    behaviour      GPUPOOL_ENVIRONMENT, GPUPOOL_STREAM_CHECK, GPUPOOL_CHECK
    hooks          GPUPOOL_MALLOC and GPUPOOL_FREE, GPUPOOL_TRACE
    environment    GPUPOOL_LIMIT, GPUPOOL_LIMIT_<device>, GPUPOOL_SOURCE, GPUPOOL_REPORT

Words. E_FILE stands for GPUPOOL_E_FILE, MAPPED for GPUPOOL_SOURCE_MAPPED, and so on.
    unit        512 bytes: sizes of blocks are rounded up to units
    granule     2 MiB, the driver's page: sizes of mapped chunks are multiples of it
    block       what gpupool_alloc returns; live until it is freed
    chunk       memory that the arena got from its source in one call
    reserved    bytes of all chunks of an arena; what a limit is about
    pending     of freed memory: work that was queued before the free may still use it. Finished
                memory that has merged with pending memory counts as pending
    finished    of freed memory: no work uses it any more, so any stream may have it
    idle        of a chunk: all of it is finished free memory
    stitch      a second range of addresses, mapped over free memory of several chunks for one block
    scope       what gpupool_begin_capture opens: memory for a graph, until gpupool_release_capture
    label       a text of your request that groups blocks in reports and verdicts
    verdict     why an allocation found no memory: figures, a cause, a sentence, and what helps
    ticket      the number of a ring's transfer, to wait for it later
    broken      of an arena or ring: a CUDA call failed that must not. Requests return E_CUDA with
                the first cause; frees and destroy work
Words of the implementation:
    home        the address at which a chunk is mapped as long as it exists
    run         consecutive units that are all free, or all of one block
    cache       of a stream: blocks of up to 16 KiB that it freed, ready for its next requests
    position    the number of a free; an arena numbers frees in order
    mark        an event that was recorded on a stream behind all its frees up to a position
    away        of a chunk or a stitch: it has addresses and no memory, since the arena sleeps

Contents (search for "== NAME"; a section uses only those above it):
    OPTIONS WORDS API CPP            what you use
    SYSTEM DRIVER TEXT               locks, records, errors; CUDA's driver; what users write
    COUNTERS BUDDY STREAM            counts; free memory; streams, marks, caches
    CHUNK STITCH LADDER              memory from the driver; the steps that find memory
    SIBLING VERDICT                  other arenas' idle memory; why memory ran out
    ALLOC CAPTURE                    allocate and free; graphs
    LIFE FIGURES                     arenas made and destroyed; limits, statistics
    REPORT SHAPE CHECK               a walk, text, JSON; cudaMalloc's shape; invariants
    FILE RING                        parts of files; transfers through pinned slots
    SHARE SLEEP                      peers, other processes; memory given back for a while
    NAMES                            CUDA's names replaced
Each section's head says what it is for and which functions to read first. Begin with BUDDY, STREAM,
ALLOC and LADDER. */
#ifndef GPUPOOL_H
#define GPUPOOL_H

#include <cuda_runtime_api.h>
#include <stdint.h>
#include <stdio.h>

/* == OPTIONS ======================================================================================
   Macros to define before the include. GPUPOOL_API, GPUPOOL_REPLACE_CUDA_MALLOC and GPUPOOL_SITES
   concern each file that includes this one, all others the file with GPUPOOL_IMPLEMENTATION. Three
   are off unless they are defined:

       GPUPOOL_REPLACE_CUDA_MALLOC 1    CUDA's names are gpupool's in this file (section NAMES)
       GPUPOOL_SITES 1                  gpupool_alloc labels blocks "file.c:12", in this file
       GPUPOOL_CHECK 1                  every call ends with gpupool_check; for tests

   What the config sets is used, else a variable of the environment, else the macro:

       GPUPOOL_LIMIT_0 (_1, ..)         of each arena on device 0, a text as for
                                        gpupool_set_limit_text; it is not for PINNED arenas
       GPUPOOL_LIMIT                    the same on devices without a variable of their own
       GPUPOOL_SOURCE                   auto, mapped, device, managed, pinned, bypass
       GPUPOOL_REPORT                   a file to which reports are appended: gpupool_report */

#ifndef GPUPOOL_API
#define GPUPOOL_API extern /* linkage of the functions; "static": for a program of one file */
#endif
#ifndef GPUPOOL_LIMIT
#define GPUPOOL_LIMIT 0 /* bytes that an arena may reserve; 0: no limit */
#endif
#ifndef GPUPOOL_CHUNK_BYTES
#define GPUPOOL_CHUNK_BYTES 0 /* bytes of a new chunk; 0: 2 to 32 MiB, as the arena grows */
#endif
#ifndef GPUPOOL_SOURCE
#define GPUPOOL_SOURCE GPUPOOL_SOURCE_AUTO /* what AUTO in a config means */
#endif
#ifndef GPUPOOL_SHARE
#define GPUPOOL_SHARE 0 /* with whom arenas share: GPUPOOL_SHARE_PROCESSES, _RDMA; 0: nobody */
#endif
#ifndef GPUPOOL_RING_BYTES
#define GPUPOOL_RING_BYTES ((size_t)64 << 20) /* the most memory that a ring pins */
#endif
#ifndef GPUPOOL_RING_SLOT_BYTES
#define GPUPOOL_RING_SLOT_BYTES ((size_t)2 << 20) /* the largest piece that it copies at once */
#endif
#ifndef GPUPOOL_RING_WORKERS
#define GPUPOOL_RING_WORKERS 0 /* its threads; 0: processors less one, 1 to 11; -1: none */
#endif
#ifndef GPUPOOL_ENVIRONMENT
#define GPUPOOL_ENVIRONMENT 1 /* 0: no variable of the environment is read */
#endif
#ifndef GPUPOOL_STREAM_CHECK
#define GPUPOOL_STREAM_CHECK 0 /* 1: each call asks for the stream's id (rule 2), in 65 ns */
#endif
#ifndef GPUPOOL_MALLOC /* host memory for records; define both, or neither */
#define GPUPOOL_MALLOC(bytes) malloc(bytes)
#define GPUPOOL_FREE(memory) free(memory)
#endif
/* Told of each allocation and free, for a trace of the program. kind: "alloc" and "use" (that is
   record_stream) after the call, with pointer NULL if it failed; "free" before it. So what it is
   told about one address comes in order, from several threads too. */
#ifndef GPUPOOL_TRACE
#define GPUPOOL_TRACE(kind, arena, pointer, bytes, stream, label)
#endif

/* == WORDS ========================================================================================
   Constants, enums and structs. Sizes are in bytes. A struct that the program fills may be all
   zeros, which means the defaults. */

#define GPUPOOL_VERSION 300 /* 10000 x major + 100 x minor + patch */

/* What stream 0 means in the file that includes this one; and CUDA's name for a function that
   depends on it. */
#ifdef CUDA_API_PER_THREAD_DEFAULT_STREAM /* nvcc --default-stream per-thread */
#define GPUPOOL_STREAM_HERE cudaStreamPerThread
#define GPUPOOL_HERE(name) name##_ptsz
#else
#define GPUPOOL_STREAM_HERE cudaStreamLegacy
#define GPUPOOL_HERE(name) name
#endif

/* GPUPOOL_NO_STREAM: in place of a stream. A request gets only memory whose work has finished, so
   that any stream may use it at once; a free says that the block's work has finished. */
#ifdef __cplusplus
extern "C" {
#define GPUPOOL_NO_STREAM (reinterpret_cast<cudaStream_t>(UINTPTR_MAX))
#else
#define GPUPOOL_NO_STREAM ((cudaStream_t)UINTPTR_MAX)
#endif

enum { GPUPOOL_PINNED = -2 }; /* for gpupool_get_default_arena, in place of a device */

typedef enum gpupool_result {
    GPUPOOL_OK = 0,
    GPUPOOL_E_ARGUMENT,      /* fix the call: gpupool_last_error names argument and rule */
    GPUPOOL_E_OUT_OF_MEMORY, /* gpupool_last_verdict says why, and what helps */
    GPUPOOL_E_NOT_OURS,      /* the pointer is in no memory of the arena */
    GPUPOOL_E_INSIDE,        /* the pointer is inside a live block, not at its start */
    GPUPOOL_E_DOUBLE_FREE,   /* the pointer is in memory that is free already */
    GPUPOOL_E_IN_USE,        /* refused: blocks are live or exported, or scopes not released */
    GPUPOOL_E_CAPTURING,     /* not possible while the stream captures; the capture goes on */
    GPUPOOL_E_ASLEEP,        /* the arena sleeps */
    GPUPOOL_E_TIMEOUT,       /* the allowed time has passed */
    GPUPOOL_E_UNSUPPORTED,   /* this device cannot do it, or these two */
    GPUPOOL_E_FORKED,        /* a forked child has no CUDA context */
    GPUPOOL_E_CALLBACK,      /* the program's function returned an error, or threw */
    GPUPOOL_E_FILE,          /* a file could not be read or written */
    GPUPOOL_E_HOST_MEMORY,   /* no host memory for records; nothing changed */
    GPUPOOL_E_CUDA           /* a CUDA call failed: gpupool_last_error names call and error */
} gpupool_result;

/* Where an arena's chunks come from. The host may write to a new block of MANAGED or PINNED memory
   at once, whatever stream asked: all work that used the memory before has finished. */
typedef enum gpupool_source {
    GPUPOOL_SOURCE_AUTO = 0, /* MAPPED if device and driver can map, else DEVICE */
    GPUPOOL_SOURCE_MAPPED,   /* cuMemCreate and cuMemMap: the only source that stitches */
    GPUPOOL_SOURCE_DEVICE,   /* cudaMalloc */
    GPUPOOL_SOURCE_MANAGED,  /* cudaMallocManaged */
    GPUPOOL_SOURCE_PINNED,   /* cudaHostAlloc: page-locked host memory */
    GPUPOOL_SOURCE_CUSTOM,   /* config.chunk_alloc and chunk_free */
    GPUPOOL_SOURCE_BYPASS    /* no pool: blocks by cudaMalloc and cudaFree; to bisect a bug */
} gpupool_source;

/* Of a request; add up several.
   NO_WAIT: the host waits for no GPU work, though the stream may, on the device. A request that
   needs the host to wait fails. gpupool learns of ended work from the events that it has recorded;
   behind a free without one only a request without NO_WAIT, or the stream's next free, finds out.
   ZEROED: zeroes the block, in stream order (PINNED and NO_STREAM: before the call returns).
   OWN_CHUNK: the block is a chunk to itself, as export and cuMemGetAddressRange need it. To make
   one, idle chunks may be given back; CUDA then waits unless they are MAPPED. */
enum gpupool_flag { GPUPOOL_NO_WAIT = 1, GPUPOOL_ZEROED = 2, GPUPOOL_OWN_CHUNK = 4 };

/* Why memory ran out. */
typedef enum gpupool_cause {
    GPUPOOL_CAUSE_NONE = 0,
    GPUPOOL_CAUSE_LIMIT,       /* the arena's limit */
    GPUPOOL_CAUSE_DEVICE_FULL, /* the device is full, mostly of this arena's memory */
    GPUPOOL_CAUSE_OTHERS,      /* the device is full, mostly of memory that is not this arena's */
    GPUPOOL_CAUSE_FRAGMENTED,  /* enough bytes are free, but not side by side */
    GPUPOOL_CAUSE_PENDING,     /* enough bytes are free once work or graphs have ended */
    GPUPOOL_CAUSE_HOST         /* the host has no memory to give (PINNED, CUSTOM) */
} gpupool_cause;

/* What live blocks hold after sleep and wake: any bytes; or their own, which host memory keeps. */
typedef enum gpupool_content { GPUPOOL_DISCARD = 0, GPUPOOL_KEEP } gpupool_content;

/* Whom MAPPED memory can be shared with; add them up. */
enum gpupool_share { GPUPOOL_SHARE_PROCESSES = 1, GPUPOOL_SHARE_RDMA = 2 };

typedef struct gpupool_arena gpupool_arena;
typedef struct gpupool_capture gpupool_capture;

typedef struct gpupool_mapping { /* for on_map and on_unmap: a whole chunk, or a stitch */
    void *memory;
    size_t bytes;
    unsigned long long handle; /* CUmemGenericAllocationHandle; 0: a stitch, or not MAPPED */
} gpupool_mapping;

/* Figures of one moment, in bytes. missing: raise the limit by so much, and the identical request
   succeeds; 0: raising it does not help, or not alone. device_missing: what the device lacks for
   it. to_free: at least so much more must be free, and finished. 0: not known, since enough is free
   but scattered, or since the source does not tell what it has left (MANAGED, PINNED, CUSTOM).
   largest: a request on the same stream for this much succeeds, even with NO_WAIT. limit: 0 is
   none. */
typedef struct gpupool_verdict {
    gpupool_cause cause;
    uint64_t asked, missing, device_missing, to_free, largest;
    uint64_t limit, reserved, allocated, pending, device_free, device_total;
    char sentence[400];
} gpupool_verdict;

typedef struct gpupool_request {
    size_t bytes, alignment; /* alignment: a power of two; 0: a unit. At most 2^40; BYPASS: a
                                unit; OWN_CHUNK: a unit, or 2 MiB if MAPPED. The arena may reserve
                                up to bytes + alignment for it */
    cudaStream_t stream;
    unsigned flags;    /* gpupool_flag */
    const char *label; /* groups blocks in reports; not copied, so best a literal; NULL: none */
} gpupool_request;

typedef struct gpupool_block {
    void *memory;
    size_t bytes, requested; /* whole units; as asked for */
    const char *label;
} gpupool_block;

/* Of a part of an arena's memory. CHUNK: all of a chunk; its parts follow. LIVE: a block, or a
   piece of one. PENDING: freed, and queued work may still use it. KEPT: freed, and a graph keeps it
   until its release. FREE: finished, or never used. */
enum gpupool_kind { GPUPOOL_CHUNK = 0, GPUPOOL_LIVE, GPUPOOL_PENDING, GPUPOOL_KEPT, GPUPOOL_FREE };

typedef struct gpupool_part { /* for gpupool_walk_blocks */
    enum gpupool_kind kind;
    void *memory;
    size_t bytes, offset; /* LIVE: where it begins in its block: a stitched one lies in pieces */
    gpupool_block block;  /* LIVE: the block that it is a part of */
    cudaStream_t stream;  /* PENDING: which freed it last, if that is known */
    int is_asleep;        /* the memory is the driver's: the arena sleeps */
} gpupool_part;

typedef int (*gpupool_visit_fn)(const gpupool_part *, void *user); /* nonzero ends the walk */

typedef struct gpupool_arena_config {
    int device;       /* CUDA's ordinal: 0 is the first device, not the current one */
    const char *name; /* for reports and messages; copied */
    gpupool_source source;
    size_t limit_bytes, chunk_bytes;                /* 0: GPUPOOL_LIMIT, GPUPOOL_CHUNK_BYTES */
    unsigned share;                                 /* gpupool_share; 0: GPUPOOL_SHARE */
    void *(*chunk_alloc)(size_t bytes, void *user); /* CUSTOM: NULL means none left */
    void (*chunk_free)(void *chunk, size_t bytes, void *user); /* gets back each chunk */
    int (*on_map)(const gpupool_mapping *, void *user);        /* nonzero: refused */
    void (*on_unmap)(const gpupool_mapping *, void *user);
    int (*on_out_of_memory)(const gpupool_verdict *, void *user); /* nonzero: tries once more */
    void *user;
} gpupool_arena_config;

typedef struct gpupool_exported { /* to be sent to another process, descriptor and all */
    uint64_t bytes;
    int descriptor; /* close it when it was sent; the receiver puts its own number here */
} gpupool_exported;

typedef struct gpupool_imported {
    void *memory;
    size_t bytes;
    int device;
} gpupool_imported;

typedef struct gpupool_counter {
    uint64_t now, peak;
} gpupool_counter;

/* Sizes in bytes: what there is now, and of the first four also the peak.
       requested, allocated   live blocks: as asked for, and in whole units
       reserved               chunks
       pending                freed, and not known to be finished, or kept by graphs (not: blocks
                              of up to 16 KiB that a stream's cache has)
       blocks, free_blocks    live blocks; runs of free memory
       chunks, stitches       that there are
       limit                  on reserved bytes; 0: none
       asleep, host           what sleep gave back; host memory of the arena's records
   Counts since the arena was made:
       stitched, reused       stitches mapped; blocks that took one which was mapped before
       driver_calls           calls that get, map, unmap or return memory; a wait for the device
                              counts as two
       marks                  events recorded
       stream_waits           a stream was made to wait for another, on the device
       host_waits             the host waited for a stream or the device */
typedef struct gpupool_stats {
    gpupool_counter requested, allocated, reserved, pending;
    uint64_t blocks, free_blocks, chunks, stitches, limit, asleep, host;
    uint64_t allocs, frees, failures, stitched, reused;
    uint64_t driver_calls, marks, stream_waits, host_waits;
} gpupool_stats;

/* -- the ring -- */

typedef struct gpupool_ring gpupool_ring;
typedef uint64_t gpupool_ticket; /* of one transfer: never 0, never used twice by a ring */

/* UP: from the host to the device. DOWN: from the device to the host. */
typedef enum gpupool_direction { GPUPOOL_UP = 0, GPUPOOL_DOWN } gpupool_direction;

typedef struct gpupool_ring_config { /* 0 in workers, bytes, slot_bytes: the option's value */
    int device, workers;      /* CUDA's ordinal; threads that help callers: up to 64; -1: none */
    size_t bytes, slot_bytes; /* 256 KiB to 16 TiB; 64 KiB to a quarter of bytes */
} gpupool_ring_config;

/* Your functions. A call is about bytes [offset, offset + bytes) of the transfer: read writes them
   to `to`, write gets them at `from`. Each byte comes once, in any order, from several threads at a
   time. Nonzero fails the transfer with E_CALLBACK. They do not use the ring, and do not throw. */
typedef int (*gpupool_read_fn)(void *to, size_t bytes, uint64_t offset, void *user);
typedef int (*gpupool_write_fn)(const void *from, size_t bytes, uint64_t offset, void *user);

typedef struct gpupool_file_part {
    int file;        /* a descriptor */
    uint64_t offset; /* of the first byte */
    size_t bytes;
} gpupool_file_part;

typedef struct gpupool_transfer {
    gpupool_direction direction;
    void *to;         /* UP: device memory; DOWN: host memory */
    const void *from; /* UP: host memory; DOWN: device memory */
    size_t bytes;     /* in all; with rows: of each row */
    cudaStream_t stream;
    size_t rows, to_pitch, from_pitch; /* as in cudaMemcpy2DAsync; all 0: no rows */
    gpupool_read_fn read;   /* UP: fills pinned memory with the data, in place of `from` */
    gpupool_write_fn write; /* DOWN: takes the data from pinned memory, in place of `to` */
    void *user;             /* passed to read and write */
    int is_file, file;      /* is_file 1, UP: the data is in the file of this descriptor, */
    uint64_t offset;        /* from this offset on: the file is in place of `from` */
    gpupool_ticket *ticket; /* receives a ticket; NULL: the call returns when all is done */
} gpupool_transfer;

/* Bytes and counts; arrays by gpupool_direction.
       pinned, limit          pinned memory, and the most; the limit falls if the host refuses more
       workers                threads that it has started
       transfers, failures    that have ended
       bytes, direct_bytes    of transfers that ended well; of these, what CUDA copied by itself:
                              pinned, device and small memory */
typedef struct gpupool_ring_stats {
    uint64_t pinned, limit, workers;
    uint64_t transfers[2], failures, bytes[2], direct_bytes[2];
} gpupool_ring_stats;

/* == API ==========================================================================================
   Calls return GPUPOOL_OK, or say by their result and gpupool_last_error what is wrong; those that
   return a pointer return NULL, and gpupool_last_result says why. "Waits" means that the host waits
   for the device: a call whose comment does not say so does not wait (but BYPASS frees as cudaFree
   does). */

/* Of this thread's last failed call: its result, a sentence, and the verdict of E_OUT_OF_MEMORY.
   They are never NULL, and hold until the thread's next call that fails. */
GPUPOOL_API gpupool_result gpupool_last_result(void);
GPUPOOL_API const char *gpupool_last_error(void);
GPUPOOL_API const gpupool_verdict *gpupool_last_verdict(void);
GPUPOOL_API const char *gpupool_result_name(gpupool_result); /* "GPUPOOL_E_CUDA" */

/* Makes an arena, which gets memory when it is first asked for some. NULL config: the current
   device, and all defaults. The arena is NULL after a failure. */
GPUPOOL_API gpupool_result gpupool_arena_create(gpupool_arena **, const gpupool_arena_config *);

/* Returns all memory and ends the arena. Waits. E_IN_USE, and nothing happens, while blocks are
   live or scopes are not released; a broken arena is always ended. No other thread may use it. */
GPUPOOL_API gpupool_result gpupool_arena_destroy(gpupool_arena *);

/* The default arena of a device, or of pinned memory (GPUPOOL_PINNED), which all callers share. The
   first call makes it, the pinned one on the current device. It lives until it is destroyed; the
   next call makes another. */
GPUPOOL_API gpupool_arena *gpupool_get_default_arena(int device);

/* Allocates a block of 1 to 2^46 bytes for work that is queued on the stream from now on. Waits if
   no memory is found otherwise (rule 5), unless the request says NO_WAIT. (To reserve memory ahead,
   allocate so much in one block, and free it.) */
GPUPOOL_API void *gpupool_alloc(gpupool_arena *, size_t bytes, cudaStream_t);
GPUPOOL_API void *gpupool_alloc_request(gpupool_arena *, const gpupool_request *);

/* Frees a block on a stream that used it (rule 1). NULL is allowed. */
GPUPOOL_API gpupool_result gpupool_free(gpupool_arena *, void *block, cudaStream_t);

/* gpupool_free for CUDA's host functions, on the stream that runs the function: no CUDA call and no
   lock that is held long. Recorded streams are waited for as ever. */
GPUPOOL_API gpupool_result gpupool_free_in_host_function(gpupool_arena *, void *block);

/* Says that work which is queued on this stream so far uses the block, too. After the free nobody,
   the freeing stream included, uses the memory before that work has finished. On a stream with a
   scope: the graph uses it. On a capturing stream without a scope: E_CAPTURING. */
GPUPOOL_API gpupool_result gpupool_record_stream(gpupool_arena *, const void *block, cudaStream_t);

/* Says, to all arenas, that the stream is about to be destroyed (rule 2). What it freed may be used
   again when its work has finished, and its handle may come to mean another stream. Closes its
   scope. A thread that ends may say so of cudaStreamPerThread; the legacy stream is E_ARGUMENT. */
GPUPOOL_API gpupool_result gpupool_retire_stream(cudaStream_t);

/* Describes the live block that begins at this address; with E_INSIDE the one around it. */
GPUPOOL_API gpupool_result gpupool_get_block(gpupool_arena *, const void *, gpupool_block *);

/* Gives idle chunks back to the source until at most keep_bytes stay reserved. Waits. */
GPUPOOL_API gpupool_result gpupool_trim(gpupool_arena *, size_t keep_bytes);

/* A size that a request on this stream would surely get now, waits included. It counts what all
   streams have freed, and not what other arenas could give back. Of sources that do not tell what
   they have left (MANAGED, PINNED, CUSTOM) only what is reserved counts. */
GPUPOOL_API gpupool_result gpupool_get_available(gpupool_arena *, cudaStream_t, size_t *bytes);

/* Sets the limit on reserved bytes; 0: none. If more is reserved, waits, and returns idle chunks;
   chunks with live blocks stay, above the limit, until trim or the next such call. As text:
   "12GiB", "80%" of the device, or "-2GiB", all of the device but that; units B, K M G T or KiB ..
   (1024), KB .. (1000). */
GPUPOOL_API gpupool_result gpupool_set_limit(gpupool_arena *, size_t bytes);
GPUPOOL_API gpupool_result gpupool_set_limit_text(gpupool_arena *, const char *text);

/* Statistics; and begins all peaks anew, at what there is now. */
GPUPOOL_API gpupool_result gpupool_get_stats(gpupool_arena *, gpupool_stats *);
GPUPOOL_API gpupool_result gpupool_reset_peaks(gpupool_arena *);

/* Shows each chunk to the function, and after it the parts that make it up, by address. The arena
   is locked meanwhile: the function calls nothing of gpupool, waits for no thread that does, and
   throws nothing. */
GPUPOOL_API gpupool_result gpupool_walk_blocks(gpupool_arena *, gpupool_visit_fn, void *user);

/* Writes what the arena has: as text for people, or as one line of JSON, whose words are those of
   gpupool_stats and gpupool_part. GPUPOOL_REPORT=file has such a report appended, as JSON if the
   name ends in ".json": when memory runs out (the 1st, 2nd, 4th, 8th .. time), at destroy, and at
   exit for arenas that were not destroyed. */
GPUPOOL_API gpupool_result gpupool_report(gpupool_arena *, FILE *);
GPUPOOL_API gpupool_result gpupool_write_json(gpupool_arena *, FILE *);

/* Checks the arena's records. E_CUDA, with the invariant's name, if one is broken. */
GPUPOOL_API gpupool_result gpupool_check(gpupool_arena *);

/* Opens a scope on the stream, before cudaStreamBeginCapture (in any mode). What the stream
   allocates in the scope, and any block that it frees there, is the graph's until the release. A
   stream that joins the capture needs a scope of its own. Graphs that never run at one time can be
   captured in one scope, and share its memory. E_ARGUMENT: the stream has a scope. */
GPUPOOL_API gpupool_result gpupool_begin_capture(gpupool_arena *, cudaStream_t, gpupool_capture **);

/* Closes the scope, before or after cudaStreamEndCapture. The graph keeps its memory. */
GPUPOOL_API gpupool_result gpupool_end_capture(gpupool_capture *);

/* Frees the graph's memory, blocks that are still live too. Waits. Call it when the graph and what
   was instantiated from it are gone, or the capture failed; it closes an open scope. */
GPUPOOL_API gpupool_result gpupool_release_capture(gpupool_capture *);

/* Gives an arena's MAPPED memory back to the driver; blocks and addresses stay, for graphs too.
   Waits. Until gpupool_wake no work may touch the memory, requests and trim say E_ASLEEP, and frees
   go on. A failure leaves the arena awake. E_UNSUPPORTED: it is not MAPPED. What GPUPOOL_KEEP
   copies lies in host memory. After waking, that host memory is kept for the next sleep, which is
   then twice as fast; but the system may take it when it needs some; gpupool_trim returns it. */
GPUPOOL_API gpupool_result gpupool_sleep(gpupool_arena *, gpupool_content);

/* Gets memory again at the same addresses, all of it or, after a failure, none: then the arena
   sleeps as before, and what it kept is still there. Waits. */
GPUPOOL_API gpupool_result gpupool_wake(gpupool_arena *);

/* Lets another device's kernels and streams use the arena's memory, until the arena ends.
   E_UNSUPPORTED: the devices cannot reach each other. Do not reset that device meanwhile. */
GPUPOOL_API gpupool_result gpupool_allow_peer(gpupool_arena *, int device);

/* Makes a new descriptor of a block, for another process: send it (SCM_RIGHTS), and close it. The
   block is of GPUPOOL_OWN_CHUNK, in an arena with GPUPOOL_SHARE_PROCESSES. Free it when the others
   have closed their imports: they see the memory until then. */
GPUPOOL_API gpupool_result gpupool_export(gpupool_arena *, const void *block, gpupool_exported *);

/* Maps another process's block for this device; the descriptor may be closed afterwards. The memory
   lives until import_close, whoever ends first. Order work by cudaIpcGetEventHandle's events. */
GPUPOOL_API gpupool_result gpupool_import(int device, const gpupool_exported *, gpupool_imported *);

/* Unmaps an import, and does not wait: no work may use the memory. */
GPUPOOL_API gpupool_result gpupool_import_close(gpupool_imported *);

/* In CUDA's shapes: memory of the current device's default arena, or the stream's device's; what is
   in no arena goes to CUDA. cudaFree does not wait: a later allocation that would otherwise grow
   waits in its place, and reuses the memory. On a capturing stream without a scope cudaMallocAsync
   is CUDA's, and makes graph memory. cudaDeviceReset destroys the device's default arenas first,
   with live blocks. GPUPOOL_REPLACE_CUDA_MALLOC gives CUDA's names to these. */
GPUPOOL_API cudaError_t gpupool_cudaMalloc(void **pointer, size_t bytes);
GPUPOOL_API cudaError_t gpupool_cudaFree(void *block);
GPUPOOL_API cudaError_t gpupool_cudaMallocAsync(void **pointer, size_t bytes, cudaStream_t);
GPUPOOL_API cudaError_t gpupool_cudaFreeAsync(void *block, cudaStream_t);
GPUPOOL_API cudaError_t gpupool_cudaDeviceReset(void);

/* A ring cuts a transfer into pieces, which callers and the ring's workers copy side by side by way
   of pinned slots. The transfer begins when the stream's earlier work has finished, and is complete
   when the call, or the wait for its ticket, returns. Without a ticket two kinds are complete only
   in stream order, since CUDA copies them itself: a copy from device to device memory, and an
   upload of up to 64 KiB, whose source you may change at once. E_CAPTURING on a capturing stream,
   which goes on. */

/* Makes a ring; it pins memory and starts workers when they are first needed. NULL config: the
   current device, and all defaults. The ring is NULL after a failure. */
GPUPOOL_API gpupool_result gpupool_ring_create(gpupool_ring **ring, const gpupool_ring_config *);

/* Ends the ring, also a broken one. Waits, for all transfers too. No other thread may use it. */
GPUPOOL_API gpupool_result gpupool_ring_destroy(gpupool_ring *);

/* Copies, and waits for it. After a failure any part of the destination may have been written. */
GPUPOOL_API gpupool_result gpupool_upload(gpupool_ring *, void *device_to, const void *host_from,
                                          size_t bytes, cudaStream_t);
GPUPOOL_API gpupool_result gpupool_download(gpupool_ring *, void *host_to, const void *device_from,
                                            size_t bytes, cudaStream_t);

/* Uploads a part of an open file, and waits for it. Each piece comes from the page cache, if its
   pages seem to be there, else by O_DIRECT where the file system has it. The descriptor's own
   offset stays. E_FILE: the file ends too early, or cannot be read at an offset (a pipe). Locks by
   fcntl that the process sets on the file meanwhile may be lost; earlier ones are kept. With a
   ticket: gpupool_ring_transfer. */
GPUPOOL_API gpupool_result gpupool_upload_file(gpupool_ring *, void *device_to,
                                               const gpupool_file_part *, cudaStream_t);

/* Any transfer. With a ticket the call returns at once, and LATER WORK OF THE STREAM DOES NOT WAIT
   for the transfer: wait for the ticket, then any stream may use the data. Until then leave source,
   destination and file alone. A ring without workers copies only while somebody waits, with a
   timeout other than 0. */
GPUPOOL_API gpupool_result gpupool_ring_transfer(gpupool_ring *, const gpupool_transfer *);

/* Waits up to timeout_ns (negative: for ever; 0: looks only) and returns the transfer's result;
   E_TIMEOUT: it is not done. *bytes_done, unless NULL, receives how many bytes have arrived. Any
   thread may wait, also again, and a ticket need not be waited for. The ring remembers its last
   1,024 tickets. An older one is OK, with UINT64_MAX in *bytes_done; but E_ARGUMENT if it failed,
   or one after it that is forgotten as well. A ticket that the ring never gave is E_ARGUMENT. */
GPUPOOL_API gpupool_result gpupool_ring_wait(gpupool_ring *, gpupool_ticket, int64_t timeout_ns,
                                             uint64_t *bytes_done);

GPUPOOL_API gpupool_result gpupool_ring_get_stats(gpupool_ring *, gpupool_ring_stats *);

#if defined(GPUPOOL_SITES) && GPUPOOL_SITES
static inline void *gpi_sites_alloc(gpupool_arena *arena, size_t bytes, cudaStream_t stream,
                                    const char *site) {
    gpupool_request request = {bytes, 0, stream, 0, site};
    return gpupool_alloc_request(arena, &request);
}
#define GPI_SITES_TEXT(line) #line
#define GPI_SITES_LINE(line) GPI_SITES_TEXT(line)
#define gpupool_alloc(arena, bytes, stream) \
    gpi_sites_alloc(arena, bytes, stream, __FILE__ ":" GPI_SITES_LINE(__LINE__))
#endif

#ifdef __cplusplus
/* == CPP ==========================================================================================
   For C++: an owner of an arena, a resource for cuda::mr and RMM, an allocator for containers.

       gpupool::arena arena;                             // or arena(config): a std::unique_ptr
       gpupool::resource memory(arena);                  // where cuda::mr or RMM want a resource
       gpupool::allocator<char> scratch(arena, stream);  // thrust::cuda::par(scratch)
       thrust::device_vector<int, gpupool::allocator<int, gpupool::resource, thrust::device_ptr>>
       std::vector<int, gpupool::allocator<int, gpupool::host_resource>> // of PINNED or MANAGED
           numbers(1000, {gpupool::host_resource(gpupool_get_default_arena(GPUPOOL_PINNED))});

   What fails throws gpupool::bad_alloc. In a file without exceptions an allocation that fails
   returns a null pointer, and an arena that could not be made owns nothing. A request for 0 bytes
   returns a null pointer and does not fail. */

extern "C++" {
#include <memory>
#include <new>
#include <type_traits>
/* cuda::mr's names for where memory can be used; the whole of <cuda/memory_resource> would take
   nvcc seconds. Before CCCL 3.1 they exist only in programs that ask for them. */
#if __cplusplus >= 201703L && __has_include(<cuda/version>)
#include <cuda/version>
#if CCCL_VERSION >= 3001000 || defined(LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE)
#include <cuda/__memory_resource/properties.h>
#define GPI_CPP_PROPERTIES
#endif
#endif

/* Files of one program may mean different streams by 0, and have exceptions or not. So the classes
   are in inline namespaces: the linker does not take one file's functions for another's. */
namespace gpupool {
#ifdef __cpp_exceptions
#define GPI_CPP_FILE GPUPOOL_HERE(throwing)
#define GPI_CPP_FAIL() throw bad_alloc()
#else
#define GPI_CPP_FILE GPUPOOL_HERE(returning)
#define GPI_CPP_FAIL() static_cast<void>(0)
#endif
inline namespace GPI_CPP_FILE {

/* What a failed call throws; what() is its gpupool_last_error. */
struct bad_alloc : std::bad_alloc {
    char text[600];
    bad_alloc() noexcept { snprintf(text, sizeof text, "%s", gpupool_last_error()); }
    const char *what() const noexcept override { return text; }
};

/* A stream as an argument: a cudaStream_t, or what converts to one (rmm::cuda_stream_view) or has
   one as get() (cuda::stream_ref). None, or 0: the default stream of the file. */
struct stream {
    cudaStream_t handle;
    template <class S> static auto of(const S &s, int) -> decltype(s.get()) { return s.get(); }
    template <class S> static auto of(const S &s, long) -> decltype(cudaStream_t{s}) { return s; }
    stream(cudaStream_t s = nullptr) noexcept : handle(s ? s : GPUPOOL_STREAM_HERE) {}
    template <class S>
    stream(const S &s, decltype(cudaStreamQuery(of(s, 0))) = {}) : stream(cudaStream_t{of(s, 0)}) {}
    bool operator==(const stream &other) const noexcept { return handle == other.handle; }
};

/* Owns an arena; can be moved, not copied. Its end destroys the arena. Free all blocks before:
   while one is live, the arena stays (E_IN_USE), and only GPUPOOL_REPORT's file says whose. */
struct arena : std::unique_ptr<gpupool_arena, decltype(&gpupool_arena_destroy)> {
    explicit arena(const gpupool_arena_config *config = nullptr)
        : unique_ptr(nullptr, gpupool_arena_destroy) {
        gpupool_arena *made;
        if (gpupool_arena_create(&made, config) != GPUPOOL_OK) GPI_CPP_FAIL();
        reset(made);
    }
    explicit arena(const gpupool_arena_config &config) : arena(&config) {}
};

#if defined(GPI_CPP_PROPERTIES) && CCCL_VERSION >= 3002000
typedef cuda::mr::properties_list<cuda::mr::device_accessible> gpi_of_device;
typedef cuda::mr::properties_list<cuda::mr::device_accessible, cuda::mr::host_accessible>
    gpi_of_both;
#else
typedef void gpi_of_device, gpi_of_both;
#endif
/* Refers to an arena, which must live longer. Meets cuda::mr's concepts and RMM's. Calls with a
   stream are gpupool_alloc_request and gpupool_free (rule 1). The others name none
   (GPUPOOL_NO_STREAM): any stream may use the block at once; see to it that all work that uses it
   has ended before you deallocate it. Alignment: a power of two; 0: a unit. Resources are equal if
   their arena is the same. */
class resource {
    gpupool_arena *arena_;
    const char *label_;
    static stream none() noexcept { return GPUPOOL_NO_STREAM; }

  public:
    typedef gpi_of_device default_queries;
    resource(gpupool_arena *of, const char *label = nullptr) noexcept : arena_(of), label_(label) {}
    resource(const arena &of, const char *label = nullptr) noexcept : resource(of.get(), label) {}
    gpupool_arena *get() const noexcept { return arena_; }
    void *allocate(stream on, size_t bytes, size_t alignment = 0) const {
        gpupool_request request = {bytes, alignment, on.handle, 0, label_};
        void *block = bytes ? gpupool_alloc_request(arena_, &request) : nullptr;
        if (bytes && !block) GPI_CPP_FAIL();
        return block;
    }
    void deallocate(stream on, void *block, size_t = 0, size_t = 0) const noexcept {
        gpupool_free(arena_, block, on.handle);
    }
    void *allocate_sync(size_t n, size_t align = 0) const { return allocate(none(), n, align); }
    void deallocate_sync(void *p, size_t = 0, size_t = 0) const noexcept { deallocate(none(), p); }
    /* Names of before CCCL 3.1. That of nullptr is there to make allocate(0, bytes) an error. */
    void *allocate(size_t bytes, size_t alignment) const { return allocate_sync(bytes, alignment); }
    void *allocate(decltype(nullptr), size_t bytes) const { return allocate(stream(), bytes); }
    void deallocate(void *p, size_t = 0, size_t = 0) const noexcept { deallocate_sync(p); }
    void *allocate_async(size_t n, size_t align, stream on) const { return allocate(on, n, align); }
    void deallocate_async(void *p, size_t, size_t, stream on) const noexcept { deallocate(on, p); }
    bool operator==(const resource &other) const noexcept { return arena_ == other.arena_; }
    bool operator!=(const resource &other) const noexcept { return !(*this == other); }
};

/* The resource of an arena whose source must be PINNED or MANAGED, which nobody checks: the host
   may use the memory, too. */
struct host_resource : resource {
    typedef gpi_of_both default_queries;
    explicit host_resource(const resource &of) noexcept : resource(of) {}
};
#ifdef GPI_CPP_PROPERTIES
constexpr void get_property(const resource &, cuda::mr::device_accessible) noexcept {
}
constexpr void get_property(const host_resource &, cuda::mr::host_accessible) noexcept {
}
#endif

/* What a container calls a pointer: its library's template, or without one a plain pointer. */
template <class T, template <class> class... Pointer> struct gpi_pointer { typedef T *type; };
template <class T, template <class> class P> struct gpi_pointer<T, P> { typedef P<T> type; };

/* How a container makes its elements. The host's containers do not get memory of the device. */
template <bool is_possible> struct gpi_elements {};
template <> struct gpi_elements<false> {
    template <class U, class... V> void construct(U *, V &&...) const {
        static_assert(sizeof(U) == 0, "std containers need gpupool::host_resource's memory");
    }
};

/* An allocator for containers whose work is on one stream, from a resource. Thrust's vectors want
   one of Thrust's pointers besides. */
template <class T, class Memory = resource, template <class> class... Pointer>
struct allocator : gpi_elements<std::is_base_of<host_resource, Memory>() || sizeof...(Pointer)> {
    typedef T value_type;
    typedef typename gpi_pointer<T, Pointer...>::type pointer;
    template <class U> struct rebind { typedef allocator<U, Memory, Pointer...> other; };
    Memory memory;
    stream on;
    allocator(Memory of, stream s = stream()) : memory(of), on(s) {}
    template <class U>
    allocator(const allocator<U, Memory, Pointer...> &other) : memory(other.memory), on(other.on) {}
    pointer allocate(size_t count) {
        size_t bytes = count <= SIZE_MAX / sizeof(T) ? count * sizeof(T) : SIZE_MAX; /* refused */
        return static_cast<pointer>(static_cast<T *>(memory.allocate(on, bytes, alignof(T))));
    }
    void deallocate(T *block, size_t) noexcept { memory.deallocate(on, block); }
    template <class P> void deallocate(P p, size_t n) noexcept { deallocate(p.get(), n); }
    bool operator==(const allocator &a) const noexcept { return memory == a.memory && on == a.on; }
    bool operator!=(const allocator &a) const noexcept { return !(*this == a); }
};
} // namespace GPI_CPP_FILE
} /* namespace gpupool */
} /* extern "C++" */
} /* extern "C" */
#undef GPI_CPP_FILE
#undef GPI_CPP_FAIL
#undef GPI_CPP_PROPERTIES
#endif
#endif /* GPUPOOL_H */
#if defined(GPUPOOL_IMPLEMENTATION) && !defined(GPUPOOL_IMPLEMENTED)
#define GPUPOOL_IMPLEMENTED /* a second include adds nothing */
#undef GPUPOOL_NAME         /* what an earlier include has replaced is CUDA's here (NAMES) */
#define GPUPOOL_NAME(cuda, ours) cuda

/* == SYSTEM =======================================================================================
   What the arena needs of Linux and of the compiler: arithmetic, atomic access, a lock, records
   that never move, the process, and the calling thread's last error.

   S1  A lock's word is 0: open, 1: held, 2: held, and threads may sleep on it.
   S2  Records lie in one region of addresses for each arena. They never move and stay mapped as
       long as the arena exists, so that a thread without a lock may read a record that is spare.
   S3  Pages that a fork wipes tell a child that it is one (O17).

   Read first: gpi_system_lock, gpi_region, gpi_system_fail. */

#include <cuda.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <linux/mman.h>
#include <pthread.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#if !defined(__cplusplus) && !defined(_GNU_SOURCE)
long syscall(long number, ...); /* -std=c11 leaves these out */
ssize_t pread(int file, void *to, size_t bytes, off_t at);
char *secure_getenv(const char *name);
FILE *open_memstream(char **text, size_t *bytes);
#endif

#define GPI_READ(at) __atomic_load_n(at, __ATOMIC_ACQUIRE)
#define GPI_PUBLISH(at, value) __atomic_store_n(at, value, __ATOMIC_RELEASE)
#define GPI_LOOK(at) __atomic_load_n(at, __ATOMIC_RELAXED)
#define GPI_SET(at, value) __atomic_store_n(at, value, __ATOMIC_RELAXED)

#ifdef __x86_64__
#include <emmintrin.h>
#define GPI_PAUSE() _mm_pause()
#else
#define GPI_PAUSE() __asm__ __volatile__("yield") /* of ARM: CUDA runs on these two */
#endif

static uint64_t gpi_min(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}
static uint64_t gpi_max(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}
static uint64_t gpi_less(uint64_t a, uint64_t b) {
    return a > b ? a - b : 0;
}
static uint64_t gpi_down(uint64_t n, uint64_t power) {
    return n & ~(power - 1);
}
static uint64_t gpi_up(uint64_t n, uint64_t power) {
    return (n + power - 1) & ~(power - 1);
}
static unsigned gpi_high_bit(uint64_t n) {
    return 63u - (unsigned)__builtin_clzll(n);
}
static uint64_t gpi_hash(uint64_t n) {
    return n * 0x9e3779b97f4a7c15ull;
} /* its upper bits */

/* -- locks -- */

typedef int gpi_lock; /* its word */

static int gpi_system_try(gpi_lock *lock) {
    int open = 0;
    return GPI_LOOK(lock) == 0 &&
           __atomic_compare_exchange_n(lock, &open, 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

/* What a lock protects takes some 100 ns, a sleep and its end some 10 us. So a thread first looks
   again after gaps, in which the others' cache lines stay with the holder. They grow to 256 pauses
   and no further, so that it sees when the holder lets others pass (gpi_arena_pass). */
static void gpi_system_lock_wait(gpi_lock *lock) {
    int looks, i;
    for (looks = 1; looks <= 32; looks++) {
        for (i = 0; i < 32 * looks && i < 256; i++) GPI_PAUSE();
        if (gpi_system_try(lock)) return;
    }
    while (__atomic_exchange_n(lock, 2, __ATOMIC_ACQUIRE))
        syscall(SYS_futex, lock, FUTEX_WAIT_PRIVATE, 2, NULL, NULL, 0);
}

static inline void gpi_system_lock(gpi_lock *lock) {
    if (!gpi_system_try(lock)) gpi_system_lock_wait(lock);
}

static inline void gpi_system_unlock(gpi_lock *lock) {
    if (__atomic_exchange_n(lock, 0, __ATOMIC_RELEASE) == 2)
        syscall(SYS_futex, lock, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

/* Sleeps while *word is `old`; some other thread changes it and then wakes all. */
static void gpi_system_sleep_on(int *word, int old) {
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, old, NULL, NULL, 0);
}

static void gpi_system_wake_all(int *word) {
    __atomic_fetch_add(word, 1, __ATOMIC_RELEASE);
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

static uint64_t gpi_system_now(void) {
    struct timespec now = {0, 0};
    syscall(SYS_clock_gettime, 1L, &now); /* CLOCK_MONOTONIC, which c11 hides */
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* -- memory of the host -- */

/* Zeroed memory of whole pages that the host backs when it is touched; the advice is madvise's.
   NULL: no addresses. */
static void *gpi_system_pages(uint64_t bytes, int protection, int advice) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void *pages = mmap(NULL, bytes, protection, flags, -1, 0);
    if (pages == MAP_FAILED) return NULL;
    syscall(SYS_madvise, pages, bytes, (long)advice);
    return pages;
}

/* Host memory of zeros, for GPUPOOL_FREE. NULL: the host has none. */
static void *gpi_system_zeroed(uint64_t bytes) {
    void *memory = GPUPOOL_MALLOC((size_t)bytes);
    if (memory) memset(memory, 0, (size_t)bytes);
    return memory;
}

/* memcpy to memory that this processor does not read soon: the stores bypass its caches, and go to
   four pages in turn. Out of a slot it takes 0.6 of memcpy's time. */
static void gpi_system_copy_away(unsigned char *to, const unsigned char *from, uint64_t bytes) {
#ifdef __x86_64__
    enum { LINE = 64, PAGE = 4096, BLOCK = 4 * PAGE };
    uint64_t head = gpi_min(-(uintptr_t)to % LINE, bytes), line, at, i;
    memcpy(to, from, head); /* stores to half a line would take twice as long */
    to += head;
    from += head;
    for (bytes -= head; bytes >= BLOCK; bytes -= BLOCK, to += BLOCK, from += BLOCK)
        for (line = 0; line < PAGE; line += LINE)
            for (at = line; at < BLOCK; at += PAGE) {
                const __m128i *source = (const __m128i *)(const void *)(from + at);
                __m128i *target = (__m128i *)(void *)(to + at);
                _mm_prefetch((const char *)from + at + 4 * LINE, _MM_HINT_T0);
                for (i = 0; i < 4; i++) _mm_stream_si128(target + i, _mm_loadu_si128(source + i));
            }
    _mm_sfence(); /* orders these stores before what tells others that the bytes are there */
#endif
    memcpy(to, from, bytes);
}

/* Addresses for records: [base, base + opened) may be used, and up to `used` is. */
typedef struct gpi_region {
    char *base;
    uint64_t size, opened, used;
} gpi_region;

enum { GPI_STEP = 2 << 20 };

static int gpi_region_open(gpi_region *region, uint64_t size) {
    region->base = (char *)gpi_system_pages(size, PROT_NONE, MADV_DONTDUMP);
    region->size = size;
    return region->base != NULL;
}

/* Makes sure that so many bytes more can be used: then gpi_region_get cannot fail. Returns 0 if the
   host or the region has too few. */
static int gpi_region_ensure(gpi_region *region, uint64_t bytes) {
    uint64_t need = gpi_up(region->used + bytes, GPI_STEP);
    if (need <= region->opened) return 1;
    if (need > region->size || mprotect(region->base, need, PROT_READ | PROT_WRITE)) return 0;
    region->opened = need;
    return 1;
}

static void *gpi_region_get(gpi_region *region, uint64_t bytes) {
    void *record = region->base + region->used;
    region->used += bytes;
    return record;
}

/* -- the process and the thread -- */

enum { GPI_DEVICES = 64 }; /* that have default arenas */

static struct {
    gpi_lock lock;         /* of everything in here: never held across a call out of this file */
    gpupool_arena *arenas; /* linked by `next_arena`, with those that have ended */
    uint64_t threads;      /* numbers given to threads */
    gpupool_arena *defaults[GPI_DEVICES + 1]; /* PINNED, then by device (SHAPE) */
    int *page;                                /* 1; a fork wipes it */
} gpi_process;

typedef struct gpi_failure {
    gpupool_result result;
    char text[512];
} gpi_failure;

static __thread struct {
    uint64_t number;     /* never used twice; 0: not asked for */
    int in_callback;     /* on_out_of_memory runs */
    cudaError_t runtime; /* its last error before the call under way */
    gpi_failure last;
    gpupool_verdict verdict;
} gpi_thread;

/* Whether this process is the child of one that had made an arena. */
static int gpi_system_is_forked(void) {
    const int *page = GPI_READ(&gpi_process.page);
    return page && *page == 0;
}

static int gpi_system_has_ended(int thread) {
    return syscall(SYS_tgkill, getpid(), thread, 0) != 0 && errno == ESRCH;
}

static int gpi_system_open(void) {
    int *page;
    gpi_system_lock(&gpi_process.lock);
    page = gpi_process.page;
    if (!page) {
        page = (int *)gpi_system_pages(4096, PROT_READ | PROT_WRITE, MADV_WIPEONFORK);
        if (page) *page = 1;
        GPI_PUBLISH(&gpi_process.page, page);
    }
    gpi_system_unlock(&gpi_process.lock);
    return page != NULL;
}

/* Sets the thread's last error, and returns `result`. */
__attribute__((format(printf, 2, 3))) static gpupool_result
gpi_system_fail(gpupool_result result, const char *format, ...) {
    va_list rest;
    va_start(rest, format);
    vsnprintf(gpi_thread.last.text, sizeof gpi_thread.last.text, format, rest);
    va_end(rest);
    return gpi_thread.last.result = result;
}

/* Calls a function of the program. In C++ what it throws ends here: through the frames above it
   would leave locks held. (C cannot catch: rule 4.) */
#ifdef __cpp_exceptions
#define GPI_CALLBACK(call, if_it_throws) \
    try { \
        call; \
    } catch (...) { \
        if_it_throws; \
    }
#else
#define GPI_CALLBACK(call, if_it_throws) call;
#endif

static gpupool_result gpi_system_no_memory(void) {
    return gpi_system_fail(GPUPOOL_E_HOST_MEMORY, "the host has no memory; nothing was changed");
}

GPUPOOL_API gpupool_result gpupool_last_result(void) {
    return gpi_thread.last.result;
}
GPUPOOL_API const char *gpupool_last_error(void) {
    return gpi_thread.last.text;
}
GPUPOOL_API const gpupool_verdict *gpupool_last_verdict(void) {
    return &gpi_thread.verdict;
}

GPUPOOL_API const char *gpupool_result_name(gpupool_result result) {
    static const char *const names[] = {
        "GPUPOOL_OK",         "GPUPOOL_E_ARGUMENT",    "GPUPOOL_E_OUT_OF_MEMORY",
        "GPUPOOL_E_NOT_OURS", "GPUPOOL_E_INSIDE",      "GPUPOOL_E_DOUBLE_FREE",
        "GPUPOOL_E_IN_USE",   "GPUPOOL_E_CAPTURING",   "GPUPOOL_E_ASLEEP",
        "GPUPOOL_E_TIMEOUT",  "GPUPOOL_E_UNSUPPORTED", "GPUPOOL_E_FORKED",
        "GPUPOOL_E_CALLBACK", "GPUPOOL_E_FILE",        "GPUPOOL_E_HOST_MEMORY",
        "GPUPOOL_E_CUDA"};
    return (unsigned)result < sizeof names / sizeof *names ? names[result] : "no result of gpupool";
}

/* == DRIVER =======================================================================================
   CUDA's driver, by function pointers that the runtime finds, so that a program links the runtime
   only. The runtime's last error and current device never change.

       GPI_VISIT: the context is current and the capture mode relaxed, until the block ends

   D1  In relaxed mode no call ends a capture of any stream, but for a query of an event that was
       recorded in the capture, a wait for a capturing stream, and a wait of a capturing stream for
       an event from outside. Whoever makes such a call asks first whether the stream captures.
   D2  Which calls may block, measured on an H100 (driver 580): calls that name a stream or wait,
       and cuEventCreate, block while a launch queue is full. cuMemCreate, Map, SetAccess, Unmap,
       Release, AddressReserve, AddressFree, cuEventQuery and cuStreamIsCapturing do not. So the
       first group is called without the arena's lock.
   D3  With no context current, or another, all calls on mapped memory work, and all calls on an
       event or a stream of its own handle; not those on default streams, nor cuEventCreate (seen
       on CUDA 13.0). Nor do cuEventRecord and cuStreamWaitEvent need relaxed mode: they end no
       capture of another stream.

   Read first: GPI_CALLS, GPI_TELL, GPI_VISIT, gpi_driver_wait. */

/* From memory_alloc on they get, map or return memory, and are counted. */
#define GPI_CALLS(CALL) \
    CALL(attribute, cuDeviceGetAttribute) \
    CALL(retain, cuDevicePrimaryCtxRetain) \
    CALL(release_context, cuDevicePrimaryCtxRelease) \
    CALL(current, cuCtxGetCurrent) \
    CALL(push, cuCtxPushCurrent) \
    CALL(pop, cuCtxPopCurrent) \
    CALL(exchange, cuThreadExchangeStreamCaptureMode) \
    CALL(is_capturing, cuStreamIsCapturing) \
    CALL(context_device, cuCtxGetDevice) \
    CALL(stream_context, cuStreamGetCtx) \
    CALL(stream_id, cuStreamGetId) \
    CALL(stream_sync, cuStreamSynchronize) \
    CALL(stream_create, cuStreamCreate) \
    CALL(stream_destroy, cuStreamDestroy) \
    CALL(stream_wait, cuStreamWaitEvent) \
    CALL(event_create, cuEventCreate) \
    CALL(event_destroy, cuEventDestroy) \
    CALL(event_record, cuEventRecord) \
    CALL(event_query, cuEventQuery) \
    CALL(event_sync, cuEventSynchronize) \
    CALL(fill, cuMemsetD8Async) \
    CALL(copy, cuMemcpyAsync) \
    CALL(copy_rows, cuMemcpy2DAsync) \
    CALL(host_register, cuMemHostRegister) \
    CALL(host_unregister, cuMemHostUnregister) \
    CALL(pointer, cuPointerGetAttributes) \
    CALL(can_access, cuDeviceCanAccessPeer) \
    CALL(enable_peer, cuCtxEnablePeerAccess) \
    CALL(export_handle, cuMemExportToShareableHandle) \
    CALL(import_handle, cuMemImportFromShareableHandle) \
    CALL(memory_info, cuMemGetInfo) \
    CALL(granularity, cuMemGetAllocationGranularity) \
    CALL(memory_alloc, cuMemAlloc) \
    CALL(memory_free, cuMemFree) \
    CALL(managed_alloc, cuMemAllocManaged) \
    CALL(host_alloc, cuMemHostAlloc) \
    CALL(host_free, cuMemFreeHost) \
    CALL(reserve, cuMemAddressReserve) \
    CALL(unreserve, cuMemAddressFree) \
    CALL(create, cuMemCreate) \
    CALL(release, cuMemRelease) \
    CALL(map, cuMemMap) \
    CALL(unmap, cuMemUnmap) \
    CALL(access, cuMemSetAccess)

#define GPI_CALL_NAME(field, name) #name,
static const char *const gpi_call_names[] = {GPI_CALLS(GPI_CALL_NAME)};

enum { GPI_PEERS = 16, GPI_CALL_COUNT = sizeof gpi_call_names / sizeof *gpi_call_names };

/* The functions come first, so that a function's place in the struct is its name's in the list. */
typedef struct gpi_driver {
#define GPI_CALL_FIELD(field, name) __typeof__(name) *field;
    GPI_CALLS(GPI_CALL_FIELD)
    int device, can_map;
    CUmemAllocationProp properties; /* of mapped memory */
    CUcontext context;              /* the device's primary context; NULL: not open */
    size_t total_bytes;             /* of the device */
    uint64_t memory_calls;          /* made so far: calls that get, map or return memory */
    int peers[GPI_PEERS];           /* devices that may use the memory too, */
    CUcontext peer_contexts[GPI_PEERS];
    int peer_count;
} gpi_driver;

/* Makes a call of the table, and turns its result into gpupool's. */
#define GPI_TELL(driver, field, ...) GPI_TOLD(driver, field, (driver)->field(__VA_ARGS__))
#define GPI_TOLD(driver, field, error) \
    gpi_driver_told(driver, offsetof(gpi_driver, field) / sizeof(void *), error)

static gpupool_result gpi_driver_told(gpi_driver *driver, size_t call, CUresult error) {
    int is_memory = error == CUDA_ERROR_OUT_OF_MEMORY;
    if (call >= offsetof(gpi_driver, memory_alloc) / sizeof(void *))
        __atomic_add_fetch(&driver->memory_calls, 1, __ATOMIC_RELAXED);
    if (error == CUDA_SUCCESS) return GPUPOOL_OK;
    return gpi_system_fail(is_memory ? GPUPOOL_E_OUT_OF_MEMORY : GPUPOOL_E_CUDA, "%s: %s",
                           gpi_call_names[call], cudaGetErrorName((cudaError_t)error));
}

/* What a thread had before it entered. */
typedef struct gpi_visit {
    const gpi_driver *driver;
    CUstreamCaptureMode mode;
    int is_pushed;
} gpi_visit;

/* Without a context, what is called names what it works on (D3); without a driver nothing is done.
 */
static gpi_visit gpi_driver_enter(const gpi_driver *driver, CUcontext context) {
    gpi_visit visit = {driver, CU_STREAM_CAPTURE_MODE_RELAXED, 0};
    CUcontext current = NULL;
    if (!driver) return visit;
    if (context && (driver->current(&current) != CUDA_SUCCESS || current != context))
        visit.is_pushed = driver->push(context) == CUDA_SUCCESS;
    driver->exchange(&visit.mode);
    return visit;
}

static void gpi_driver_leave(gpi_visit *visit) {
    CUcontext popped;
    if (!visit->driver) return;
    visit->driver->exchange(&visit->mode);
    if (visit->is_pushed) visit->driver->pop(&popped);
}

/* Enters, and leaves at the end of the block in which this stands, also by a return. */
#define GPI_VISIT(driver, context) \
    __attribute__((cleanup(gpi_driver_leave), unused)) gpi_visit visit = \
        gpi_driver_enter(driver, context)

/* Makes a call of the runtime, whose last error stays what it was (rule 5). */
#define GPI_RUN(call, ...) \
    (gpi_thread.runtime = cudaPeekAtLastError(), gpi_driver_ran(#call, call(__VA_ARGS__)))

static gpupool_result gpi_driver_ran(const char *call, cudaError_t error) {
    if (error == cudaSuccess) return GPUPOOL_OK;
    if (gpi_thread.runtime == cudaSuccess) cudaGetLastError();
    return gpi_system_fail(GPUPOOL_E_CUDA, "%s: %s", call, cudaGetErrorName(error));
}

static gpupool_result gpi_driver_has(int device) {
    int devices = 0;
    gpupool_result result = GPI_RUN(cudaGetDeviceCount, &devices);
    if (result != GPUPOOL_OK || (device >= 0 && device < devices)) return result;
    return gpi_system_fail(GPUPOOL_E_ARGUMENT, "device: %d is not in 0 to %d", device, devices - 1);
}

static gpupool_result gpi_driver_open(gpi_driver *driver, int device, unsigned share) {
    gpupool_result result = gpi_driver_has(device);
    CUmemAllocationProp *properties = &driver->properties;
    size_t i, page = 0, free_bytes;
    memset(driver, 0, sizeof *driver);
    driver->device = device;
    for (i = 0; i < GPI_CALL_COUNT && result == GPUPOOL_OK; i++) {
        const char *name = gpi_call_names[i];
        void *found = NULL;
        cudaError_t error =
            cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, NULL);
        result = gpi_driver_ran(name, error || found ? error : cudaErrorSymbolNotFound);
        memcpy((char *)driver + i * sizeof found, &found, sizeof found);
    }
    if (result == GPUPOOL_OK) result = GPI_TELL(driver, retain, &driver->context, device);
    if (result != GPUPOOL_OK) return result;
    GPI_VISIT(driver, driver->context);
    properties->type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties->location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties->location.id = device;
    if (share & GPUPOOL_SHARE_PROCESSES)
        properties->requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    properties->allocFlags.gpuDirectRDMACapable = (share & GPUPOOL_SHARE_RDMA) != 0;
    driver->attribute(&driver->can_map, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
                      device);
    driver->granularity(&page, properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    if (!page || (2 << 20) % page) driver->can_map = 0;
    return GPI_TELL(driver, memory_info, &free_bytes, &driver->total_bytes);
}

static void gpi_driver_close(gpi_driver *driver) {
    int i;
    for (i = 0; i < driver->peer_count; i++) driver->release_context(driver->peers[i]);
    if (driver->context) driver->release_context(driver->device);
}

/* Lets the device and its peers use mapped memory. */
static gpupool_result gpi_driver_access(gpi_driver *driver, uint64_t address, uint64_t bytes) {
    CUmemAccessDesc access[GPI_PEERS + 1];
    int i;
    for (i = 0; i <= driver->peer_count; i++) {
        access[i].location.type = CU_MEM_LOCATION_TYPE_DEVICE;
        access[i].location.id = i ? driver->peers[i - 1] : driver->device;
        access[i].flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    }
    return GPI_TELL(driver, access, address, bytes, access, (size_t)driver->peer_count + 1);
}

/* Whether an event recorded on the stream would be part of a graph. The legacy stream also says so
   while any blocking stream captures. A question that fails counts as no: the next call tells. */
static int gpi_driver_is_capturing(const gpi_driver *driver, cudaStream_t stream) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult error = driver->is_capturing(stream, &status);
    return error == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT ||
           (error == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE);
}

static gpupool_result gpi_driver_capturing(void) {
    return gpi_system_fail(GPUPOOL_E_CAPTURING,
                           "the stream captures (rule 3): open a scope by gpupool_begin_capture");
}

/* In place of a stream: ALL. No handle of CUDA's, which are 0, 1, 2 or addresses of structs. */
#define GPI_ALL_STREAM ((cudaStream_t)(uintptr_t)4)

/* Default streams, all, and none: what no program makes or destroys. */
static int gpi_driver_is_special(cudaStream_t stream) {
    return (uintptr_t)stream <= (uintptr_t)GPI_ALL_STREAM || stream == GPUPOOL_NO_STREAM;
}

typedef enum gpi_memory { GPI_MEMORY_ORDINARY, GPI_MEMORY_VISIBLE, GPI_MEMORY_DEVICE } gpi_memory;

/* What CUDA knows about a byte: nothing, that the host sees it too (pinned, managed), or that only
   the device does. After a question that failed, the copy tells. */
static gpi_memory gpi_driver_look(const gpi_driver *driver, uint64_t at) {
    CUpointer_attribute asked[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                   CU_POINTER_ATTRIBUTE_IS_MANAGED};
    unsigned type = 0, is_managed = 0;
    void *answers[] = {&type, &is_managed};
    if (driver->pointer(2, asked, answers, at) != CUDA_SUCCESS) return GPI_MEMORY_DEVICE;
    if (type == CU_MEMORYTYPE_HOST || is_managed) return GPI_MEMORY_VISIBLE;
    return type ? GPI_MEMORY_DEVICE : GPI_MEMORY_ORDINARY;
}

/* Destroys an event that may be part of a graph. */
static void gpi_driver_drop(const gpi_driver *driver, CUevent *event) {
    GPI_VISIT(driver, NULL);
    driver->event_destroy(*event);
    *event = NULL;
}

/* Not under the arena's lock. A failure leaves NULL, and is none of the call. */
static void gpi_driver_make_event(gpi_driver *driver, CUcontext context, CUevent *event) {
    GPI_VISIT(driver, context);
    if (driver->event_create(event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) *event = NULL;
}

/* Records the stream's event, and makes it first if there is none. O2: if a capture began in
   between, the event is part of a graph, and a query would end the capture: it is thrown away
   unasked. Not under the arena's lock. */
static gpupool_result gpi_driver_mark(gpi_driver *driver, CUcontext context, CUevent *event,
                                      cudaStream_t stream) {
    gpupool_result result = GPUPOOL_OK;
    GPI_VISIT(*event && !gpi_driver_is_special(stream) ? NULL : driver, context); /* D3 */
    if (gpi_driver_is_capturing(driver, stream)) return gpi_driver_capturing();
    if (!*event) result = GPI_TELL(driver, event_create, event, CU_EVENT_DISABLE_TIMING);
    if (result == GPUPOOL_OK) result = GPI_TELL(driver, event_record, *event, stream);
    if (*event && gpi_driver_is_capturing(driver, stream)) {
        gpi_driver_drop(driver, event);
        return gpi_driver_capturing();
    }
    return result;
}

/* Waits for all work of the device, and of each peer (O12); of destroyed streams too:
   cuMemFreeHost of a byte does, and unlike cuCtxSynchronize it ends no capture (seen on CUDA 13.0).
   So does cuMemFree, for a host that can pin no byte more. It takes 0.5 to 1 ms even on an idle
   device, and other threads' cuEventRecord waits for it. Not under a lock. */
static gpupool_result gpi_driver_wait(gpi_driver *driver) {
    gpupool_result result = GPUPOOL_OK;
    CUdeviceptr other = 0;
    void *memory = NULL;
    int i;
    for (i = -1; i < GPI_READ(&driver->peer_count) && result == GPUPOOL_OK; i++) {
        GPI_VISIT(driver, i < 0 ? driver->context : driver->peer_contexts[i]);
        result = GPI_TELL(driver, host_alloc, &memory, 1, 0);
        if (result == GPUPOOL_OK) result = GPI_TELL(driver, host_free, memory);
        else if (result == GPUPOOL_E_OUT_OF_MEMORY) {
            result = GPI_TELL(driver, memory_alloc, &other, 1);
            if (result == GPUPOOL_OK) result = GPI_TELL(driver, memory_free, other);
        }
    }
    return result;
}

/* What the device has free, by other programs too; 0 if CUDA doesn't say. */
static uint64_t gpi_driver_free_bytes(gpi_driver *driver) {
    size_t free_bytes = 0, total;
    GPI_VISIT(driver, driver->context);
    return driver->memory_info(&free_bytes, &total) == CUDA_SUCCESS ? free_bytes : 0;
}
/* == TEXT =========================================================================================
   What users write: variables of the environment, limits, names of sources.

       limit = [ "-" ] number [ unit ]       "-": all of the memory but this much
       unit  = "%" | B | K M G T | KiB MiB GiB TiB (1024) | KB MB GB TB (1000)       in any case

   Read first: gpi_text_limit. */

/* A variable's value; NULL: it is not set, or empty, as a shell takes one away for a command. */
static const char *gpi_text_variable(const char *name) {
    const char *text = GPUPOOL_ENVIRONMENT ? secure_getenv(name) : NULL;
    return text && *text ? text : NULL;
}

typedef struct gpi_text {
    char text[32];
} gpi_text;

/* "12.50 MiB", rounded up: who frees or raises so much does enough. */
static gpi_text gpi_text_size(uint64_t bytes) {
    static const char *const names[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    unsigned power = (unsigned)gpi_min(gpi_high_bit(bytes | 1) / 10, 4);
    uint64_t one = (uint64_t)1 << 10 * power, hundredths = (bytes * 100 + one - 1) / one;
    gpi_text size;
    snprintf(size.text, sizeof size.text, power ? "%llu.%02u %s" : "%llu%.0u %s", /* no ".00 B" */
             (unsigned long long)(hundredths / 100), (unsigned)(hundredths % 100), names[power]);
    return size;
}

/* The length of a letter in UTF-8; 0: a control character, or no letter. */
static unsigned gpi_text_letter(const char *text) {
    static const uint32_t first[] = {0, 0, 0xc0, 0xe0, 0xf0}, least[] = {0, 32, 0xa0, 2048, 65536};
    const unsigned char *t = (const unsigned char *)text;
    unsigned length = t[0] < 0x80 ? 1 : t[0] < 0xe0 ? 2 : t[0] < 0xf0 ? 3 : 4, i;
    uint32_t code = t[0] - first[length]; /* below a first byte: far beyond all letters */
    for (i = 1; i < length && (t[i] & 0xc0) == 0x80; i++) code = code << 6 | (t[i] & 0x3f);
    if (i < length || code < least[length] || code == 0x7f || code > 0x10ffff) return 0;
    return code >> 11 == 0x1b ? 0 : length; /* half of a pair */
}

/* Copies a text so that it stays one line of UTF-8: cut between letters; what is no letter as \xNN.
 */
static const char *gpi_text_line(char *to, size_t room, const char *from) {
    size_t used = 0, length;
    for (; *from; from += gpi_max(length, 1), used += length ? length : 4) {
        length = gpi_text_letter(from);
        if (used + (length ? length : 4) >= room) break;
        if (length) memcpy(to + used, from, length);
        else snprintf(to + used, 5, "\\x%02x", (unsigned char)*from);
    }
    to[used] = 0;
    return to;
}

/* Whether a text is the word, which is in small letters of ASCII, in any case; not by the locale.
 */
static int gpi_text_is(const char *text, const char *word) {
    for (; *word && (*text | 32) == *word; text++) word++;
    return *text == *word;
}

/* The bytes that a unit stands for; 0: it is none. */
static double gpi_text_unit(const char *text, uint64_t total) {
    const char *powers = strchr("tgmk", *text | 32);
    double bytes = 1, base;
    if (!*text || gpi_text_is(text, "b")) return 1;
    if (*text == '%' && !text[1]) return (double)total / 100;
    base = gpi_text_is(text + 1, "b") ? 1000 : 1024;
    if (!powers || (base > 1000 && text[1] && !gpi_text_is(text + 1, "ib"))) return 0;
    for (; *powers; powers++) bytes *= base;
    return bytes;
}

/* Reads a limit; `total` is all of the memory. NULL, or what is wrong with the text. */
static const char *gpi_text_limit(const char *text, uint64_t total, uint64_t *bytes) {
    double number = 0, scale = 1, unit;
    int digits = 0, is_whole = 1, is_rest;
    while (*text == ' ') text++;
    is_rest = *text == '-';
    text += is_rest;
    /* by hand: what strtod takes for the point depends on the locale */
    for (; *text >= '0' && *text <= '9'; text++, digits++) number = number * 10 + (*text - '0');
    if (!digits) return "does not begin with a number";
    if (*text == '.')
        for (is_whole = 0, text++; *text >= '0' && *text <= '9'; text++)
            number += (*text - '0') * (scale /= 10);
    while (*text == ' ') text++;
    unit = gpi_text_unit(text, total);
    if (unit <= 0) return "ends in no unit of: % B KiB MiB GiB TiB KB MB GB TB K M G T";
    /* with 0.8 the user may mean 80%, and with -1 no limit */
    if (*text != '%' && unit < 2 && (is_rest || !is_whole)) return "needs a unit, or %";
    number = number * unit + 0.5; /* tenths have no exact double */
    if (!(number < 9e18)) return "is larger than any memory";
    *bytes = (uint64_t)number;
    if (is_rest) *bytes = gpi_less(total, *bytes);
    return *bytes || (*text != '%' && number <= 0.5) ? NULL : "leaves nothing"; /* "0": no limit */
}
/* == COUNTERS =====================================================================================
   Counts with peaks. A stream's cache counts for itself, under its own lock, and the arena adds
   that up later (gpi_stream_fold): so the parts of a count may be negative.

   C1  peak >= now, and a stream's `high` is the most that `now` was since it was last added up. So
   an arena's peaks are exact if one stream is used (NO_STREAM counts as one).

   Read first: gpi_counter_move, gpi_counter_fold. */

typedef struct gpi_part {
    int64_t now, high;
} gpi_part; /* of a counter, by one stream's cache */

static inline void gpi_counter_part(gpi_part *part, int64_t more) {
    part->now += more;
    if (part->now > part->high) part->high = part->now;
}

static void gpi_counter_move(gpupool_counter *counter, int64_t more) {
    GPI_SET(&counter->now, counter->now + (uint64_t)more); /* fast paths look at `reserved` */
    counter->peak = gpi_max(counter->peak, counter->now);
}

static void gpi_counter_fold(gpupool_counter *counter, gpi_part *part) {
    counter->peak = gpi_max(counter->peak, counter->now + (uint64_t)part->high);
    counter->now += (uint64_t)part->now;
    part->now = part->high = 0;
}

/* == BUDDY ========================================================================================
   Which memory is free. A generalised buddy system over the arena's addresses: a block takes its
   exact number of units out of a free run, and a run that becomes free joins its neighbours. Any
   neighbour is a buddy, not only the one at a power-of-two address. This section also has the
   arena's structs, since all later sections share them; a comment says which section writes which.

       addresses:  [chunk][chunk][ no memory ][chunk][ ....... ][ addresses for stitches .... ]
       runs:        LIVE FREE OUT  EMPTY       FREE    EMPTY       LIVE (stitched)  SPACE

   Units count from the arena's first address. MAPPED arenas reserve all addresses once; the chunks
   of other sources have units of the same space, and lie elsewhere (gpi_address).

   B1  Runs are side by side, without gaps. Each unit is in one run; run->right->left == run.
   B2  A run that is FREE, EMPTY or SPACE is in the bin of its size in `list`, and in no other. The
       neighbours of such a run are not of the same state and list (but across chunks that are no
       neighbours in memory, and where a mark covers one and not the other).
   B3  cells[granule].first is the leftmost run that starts in the granule; `starts` has a bit for
       each granule where one starts.
   B4  Live blocks are in the index by address. A thread without a lock may read address, hash_next
       and cache of a run (O15): so these three are written atomically, and cache is not NULL only
       while a stream's cache takes the block back.

   Read first: gpi_run, gpi_list, gpi_buddy_put, gpi_buddy_take, gpi_buddy_find. */

enum {
    GPI_UNIT = 512,
    GPI_PAGE = 2 << 20, /* bytes */
    GPI_GRANULE = GPI_PAGE / GPI_UNIT,
    GPI_STEPS = 8, /* bins for each power of two */
    GPI_BINS = 64 * GPI_STEPS,
    GPI_NO_BIN = GPI_BINS,
    GPI_SMALL = 16384 / GPI_UNIT, /* larger blocks join no cache: with 32 KiB, recorded programs
                                     went on mapping stitches in every round */
    GPI_LARGE = 65536 / GPI_UNIT, /* from here on bins are in the order of addresses */
    GPI_TRIES = 4,
    GPI_TRIES_SLOW = 256, /* runs of a bin that a search looks at */
    GPI_INDEX_BITS = 18,
    GPI_PEEKS = 16,     /* entries of the index that a look without the lock takes */
    GPI_TABLE_BITS = 10 /* of the table of streams */
};

typedef enum gpi_state {
    GPI_TAKEN = 0, /* in the hands of a thread: nobody else touches it */
    GPI_EMPTY,     /* addresses for chunks, without memory */
    GPI_SPACE,     /* addresses for stitches, not in use */
    GPI_FREE,      /* in the list of a stream, or in list ANY: all work on it has finished */
    GPI_LIVE,      /* a block of the program */
    GPI_OUT,       /* likewise, but `cache` takes it back, or has it (is_cached) */
    GPI_PART,      /* home memory of a stitched block */
    GPI_IDLE,      /* a stitch that no block uses, still mapped */
    GPI_WAITING    /* a freed block: other streams or a graph still use it */
} gpi_state;

typedef enum gpi_kind {
    GPI_ORDINARY, /* a stream of the program */
    GPI_NONE,     /* GPUPOOL_NO_STREAM: what it frees is finished */
    GPI_ALL,      /* cudaFree: behind all work of the device; passes by a device wait */
    GPI_GRAPH     /* a scope: passes when the scope is released */
} gpi_kind;

typedef struct gpi_stream gpi_stream;
typedef struct gpi_run gpi_run;

typedef struct gpi_list {         /* free runs by size (BUDDY) */
    gpi_stream *stream;           /* whose; NULL: ANY, EMPTY or SPACE */
    uint64_t units;               /* of all runs */
    uint64_t used[GPI_BINS / 64]; /* a bit for each bin that has runs */
    gpi_run *heads[GPI_BINS];
} gpi_list;

typedef struct gpi_use { /* a stream, besides the one that frees it, uses a block (STREAM) */
    struct gpi_use *next;
    gpi_stream *stream;
    uint64_t at; /* until its work up to here has passed */
} gpi_use;

struct gpi_run {           /* (BUDDY; of a block: STREAM, ALLOC) */
    gpi_run *hash_next;    /* in the index */
    uint64_t address;      /* of a live block: its key in the index */
    gpi_stream *cache;     /* OUT: the stream whose cache takes it back */
    gpi_run *next, *prev;  /* in a bin; of a cache's bin; WAITING; blocks of a graph */
    gpi_run *left, *right; /* neighbours by address; spare records are linked by `left` */
    uint64_t unit, units;
    gpi_list *list;            /* FREE, EMPTY, SPACE: its list */
    struct gpi_stitch *stitch; /* of a stitched block and of its parts */
    union {
        uint64_t at;   /* FREE in a stream's list: the position of its free */
        gpi_use *uses; /* a block: streams that use it too */
    } of;
    union {
        const char *label;    /* a block: the request's */
        gpi_stream *freed_by; /* FREE: whose list its larger part was last put into */
    } by;
    uint32_t slack; /* a block: bytes that were not asked for */
    uint8_t state, is_cached;
    uint8_t is_of_graph; /* a block: allocated in a scope, whose release frees it */
};

typedef struct gpi_cell {
    gpi_run *first;
    struct gpi_chunk *chunk;
} gpi_cell; /* of a granule */

typedef struct gpi_buddy { /* (BUDDY; cells' chunks: CHUNK) */
    gpi_region region;     /* of all records */
    gpi_run *spare;
    gpi_use *spare_uses;
    gpi_run **index;
    gpi_cell *cells;
    uint64_t *starts;
    uint64_t granules; /* with addresses for stitches */
    uint64_t base;     /* MAPPED: the address of unit 0; else 0 */
    int is_apart;      /* chunks are no neighbours in memory */
    gpi_list any, empty, space;
    gpupool_counter pending;
    uint64_t free_runs;
} gpi_buddy;

struct gpi_stream {    /* (STREAM) */
    char apart[128];   /* no other record shares a cache line with the rest */
    gpi_lock lock;     /* of the cache: bins to blocks, and of changes of key and scope */
    uintptr_t key;     /* 0: retired */
    gpi_stream *chain; /* in the table; of retired ones */
    gpi_stream *scope; /* the open scope: its requests and frees are the graph's */
    gpi_run *bins[GPI_SMALL + 1]; /* the cache: free blocks by exact units */
    uint64_t cached_units;
    int is_stirred;                /* atomic. 0: the cache is empty, and has counted nothing */
    gpi_part allocated, requested; /* what the arena's counters lack */
    int64_t more_allocs, more_frees;
    /* from here on under the arena's lock */
    gpi_kind kind;
    gpi_stream *next; /* of all, but for graphs */
    CUcontext context;
    gpi_list list;
    uint64_t issued, passed; /* positions: last given; finished */
    CUevent event; /* recorded behind all frees up to mark_at; NULL: none, or a thread records it */
    uint64_t mark_at;
    CUevent older; /* the mark before, not recorded anew until it has passed; up to older_at */
    uint64_t older_at;
    int users; /* threads that record the event, or wait for it, lock open */
    uint64_t fresh_frees, fresh_units; /* freed since the last mark */
    gpi_run *owned;                    /* GRAPH: live and waiting blocks that belong to it */
    gpi_stream *origin;                /* GRAPH: whose scope it is, while it is open */
    uint64_t outs;                     /* blocks that are OUT to this cache, or in it */
    uint64_t id;                       /* GPUPOOL_STREAM_CHECK: CUDA's id; 0: not asked for */
    uint64_t used_at;                  /* the last position of a use or of a stitch */
    int thread;                        /* whose per-thread default stream it is; 0: nobody's */
    char apart_too[128];
};

typedef struct gpi_streams { /* (STREAM) */
    gpi_stream *table[1 << GPI_TABLE_BITS];
    gpi_stream *all_streams;
    gpi_stream *retired; /* structs that serve again, linked by `chain` */
    gpi_stream all, none;
    int has_users; /* of marks: requests that may want other streams' memory, O5, OWN_CHUNK */
    uint64_t position, passed; /* last given; what a wait for the device has passed */
    uint64_t fresh_units;      /* freed and not marked, of all streams */
    uint64_t marks_in_vain;    /* since marks were wanted: gpi_stream_mark_due */
    gpi_run *waiting;          /* WAITING blocks without a graph's use */
    uint64_t quiet_until;      /* the marks under way are not asked up to this position */
    uint64_t progress, asked;  /* counts what passes; its value when `waiting` was asked */
} gpi_streams;

typedef struct gpi_range {
    uint64_t unit, units;
} gpi_range;

typedef struct gpi_chunk { /* a range of addresses with memory (CHUNK) */
    uint64_t unit, units;
    void *memory;                        /* where unit lies */
    CUmemGenericAllocationHandle handle; /* 0: a stitch, or not MAPPED */
    struct gpi_stitch *stitch;           /* whose range it is; NULL: it has memory of its own */
    int is_away;                         /* it has no memory: the arena sleeps (SLEEP) */
    int is_exported;                     /* while the block that has it is live (SHARE) */
    uint64_t usable;                     /* in one plan of STITCH: units from its start on, */
    int is_chosen;                       /* and whether the plan has it */
} gpi_chunk;

typedef struct gpi_chunks { /* (CHUNK) */
    const struct gpi_source *source;
    gpi_chunk **all; /* the largest first */
    uint64_t count;
    uint64_t limit;       /* bytes; UINT64_MAX: none */
    uint64_t chunk_units; /* size of new chunks; 0: by reserved memory */
    gpupool_counter reserved;
    uint64_t asleep;            /* bytes of chunks that are away */
    uint64_t coming, returning; /* bytes that threads grow by, and give back, lock open (O10) */
    int returned;               /* counts up when one of them has changed */
} gpi_chunks;

typedef struct gpi_stitch {  /* (STITCH) */
    struct gpi_stitch *next; /* of the same bin by granules */
    gpi_chunk range;         /* where it is mapped */
    gpi_run *body;           /* of the range; the block, while one has it; else IDLE */
    uint64_t units;          /* of the block */
    gpi_stream *user;        /* idle: who freed it last, at which position and tick */
    uint64_t user_at, freed_at;
    int is_repaid;
    uint32_t count;
    gpi_range *pieces; /* each is the start of a chunk */
} gpi_stitch;

typedef struct gpi_stitches { /* (STITCH) */
    gpi_stitch *bins[GPI_BINS];
    uint64_t idle_pieces, ticks;
    uint64_t credit;    /* what may still be mapped, in frees: gpi_stitch_affords */
    uint64_t credit_at; /* the position up to which frees have earned credit */
} gpi_stitches;

typedef struct gpi_mail {
    struct gpi_mail *next;
    void *block;
} gpi_mail;

typedef enum gpi_sleep { GPI_AWAKE = 0, GPI_FALLING, GPI_ASLEEP, GPI_RISING } gpi_sleep;

typedef struct gpi_backup { /* content of live blocks, while the arena sleeps (SLEEP) */
    void *pages;
    uint64_t bytes;
    char *content; /* of unit 0 on; NULL: none is kept */
} gpi_backup;

enum { GPI_MAGIC = 0x6770756c, GPI_ENDED }; /* in use; ended: its struct is free */

struct gpupool_arena {
    gpupool_arena
        *next_arena; /* of the process's list; stays when the struct serves again (LIFE) */
    int magic;       /* 0: comes or goes, or in a forked child */
    int attention;   /* not 0: fast paths go the slow way (mail, broken, not awake) */
    gpi_lock lock;   /* of all that follows but where a comment says otherwise */
    int outside;     /* threads that have opened the lock for a call, and come back */
    int returns;     /* counts up when one does, while the arena falls asleep */
    gpi_sleep sleep;
    gpi_backup backup;
    gpi_driver driver;
    gpi_buddy buddy;
    gpi_streams streams;
    gpi_chunks chunks;
    gpi_stitches stitches;
    gpupool_stats stats;  /* what gpi_figures_read does not find elsewhere */
    uint64_t short_until; /* memory was short: up to this position frees keep no caches */
    gpi_mail *mail;       /* atomic: blocks freed in host functions (ALLOC) */
    gpupool_capture *spare_captures; /* released scopes, linked by graph.next (CAPTURE) */
    uint64_t captures;               /* scopes that are not released */
    uint64_t shortages;              /* requests that found no memory (REPORT) */
    char broken[256];                /* the first cause; "": not broken */
    char name[32];
    gpupool_arena_config config;
    gpupool_arena **default_at; /* the process's place for it, if it is a default arena (SHAPE) */
    int visitors, departures;   /* threads that found it in the process's list; that left (LIFE) */
};

/* -- the arena's lock -- */

/* Opens the lock for a call that may wait or names a stream. What the thread has in hand is TAKEN.
 */
static void gpi_arena_open(gpupool_arena *arena) {
    arena->outside++;
    gpi_system_unlock(&arena->lock);
}

static void gpi_arena_close(gpupool_arena *arena) {
    gpi_system_lock(&arena->lock);
    arena->outside--;
    if (arena->sleep == GPI_FALLING) gpi_system_wake_all(&arena->returns);
}

/* Between two steps of long work a thread that waits for the lock has it first: who takes its lock
   again at once would win each time against a thread that must wake up. */
static void gpi_arena_pass(gpupool_arena *arena) {
    int pauses = GPI_LOOK(&arena->lock) == 2 ? 4096 : 64;
    gpi_arena_open(arena);
    while (pauses-- && !GPI_LOOK(&arena->lock)) GPI_PAUSE();
    gpi_arena_close(arena);
}

/* A call that must not fail has failed: from now on requests fail with this cause. */
static gpupool_result gpi_arena_break(gpupool_arena *arena) {
    if (!*arena->broken) {
        snprintf(arena->broken, sizeof arena->broken, "%.200s", gpi_thread.last.text);
        GPI_PUBLISH(&arena->attention, 1);
    }
    return gpi_system_fail(
        GPUPOOL_E_CUDA, "the arena is broken since a call failed that must not: %s", arena->broken);
}

/* Whether the arena takes requests. O8: whoever takes the lock again asks anew. */
static gpupool_result gpi_arena_ready(gpupool_arena *arena) {
    if (*arena->broken) return gpi_arena_break(arena);
    if (arena->sleep == GPI_AWAKE) return GPUPOOL_OK;
    return gpi_system_fail(GPUPOOL_E_ASLEEP, "arena \"%s\" sleeps: gpupool_wake comes first",
                           arena->name);
}

/* -- bins -- */

static uint32_t gpi_buddy_bin(uint64_t units) {
    unsigned order = gpi_high_bit(units);
    return order * GPI_STEPS + (uint32_t)((units << 3) >> order) - GPI_STEPS;
}

/* The first bin from `bin` on that has a run. */
static uint32_t gpi_buddy_next_bin(const gpi_list *list, uint32_t bin) {
    uint64_t bits = ~(uint64_t)0 << bin % 64;
    for (; bin < GPI_BINS; bin = (bin / 64 + 1) * 64, bits = ~(uint64_t)0)
        if (list->used[bin / 64] & bits)
            return bin / 64 * 64 + (unsigned)__builtin_ctzll(list->used[bin / 64] & bits);
    return GPI_NO_BIN;
}

/* -- chains of runs, by next and prev: bins, and what hangs from a stream -- */

static void gpi_run_link(gpi_run **head, gpi_run *before, gpi_run *run) {
    run->prev = before;
    run->next = before ? before->next : *head;
    if (run->next) run->next->prev = run;
    *(before ? &before->next : head) = run;
}

static void gpi_run_unlink(gpi_run **head, gpi_run *run) {
    if (run->next) run->next->prev = run->prev;
    *(run->prev ? &run->prev->next : head) = run->next;
}

/* Bins of large runs are in the order of addresses: so where a large block lies depends on what is
   free, and not on the order in which it became free. A program that repeats itself then meets the
   same choices again, and after a few rounds maps nothing any more. The walk is bounded: a program
   with very many free runs of one size gets an order that is only nearly that of addresses. */
static void gpi_buddy_file(gpi_buddy *buddy, gpi_run *run) {
    gpi_list *list = run->list;
    uint32_t bin = gpi_buddy_bin(run->units);
    gpi_run *before = NULL, *after = list->heads[bin];
    int steps = run->units >= GPI_LARGE ? 512 : 0;
    for (; after && steps-- > 0 && after->unit < run->unit; after = after->next) before = after;
    gpi_run_link(&list->heads[bin], before, run);
    list->used[bin / 64] |= (uint64_t)1 << bin % 64;
    list->units += run->units;
    if (list->stream) gpi_counter_move(&buddy->pending, (int64_t)(run->units * GPI_UNIT));
    buddy->free_runs += run->state == GPI_FREE;
}

static void gpi_buddy_unfile(gpi_buddy *buddy, gpi_run *run) {
    gpi_list *list = run->list;
    uint32_t bin = gpi_buddy_bin(run->units);
    gpi_run_unlink(&list->heads[bin], run);
    if (!list->heads[bin]) list->used[bin / 64] &= ~((uint64_t)1 << bin % 64);
    list->units -= run->units;
    if (list->stream) buddy->pending.now -= run->units * GPI_UNIT;
    buddy->free_runs -= run->state == GPI_FREE;
}

/* -- the table of granules -- */

static gpi_chunk *gpi_buddy_chunk(const gpi_buddy *buddy, uint64_t unit) {
    return buddy->cells[unit / GPI_GRANULE].chunk;
}

static uint64_t gpi_address(const gpi_buddy *buddy, uint64_t unit) {
    const gpi_chunk *chunk = buddy->is_apart ? gpi_buddy_chunk(buddy, unit) : NULL;
    if (!chunk) return buddy->base + unit * GPI_UNIT;
    return (uint64_t)(uintptr_t)chunk->memory + (unit - chunk->unit) * GPI_UNIT;
}

static void gpi_buddy_enter(gpi_buddy *buddy, gpi_run *run) {
    uint64_t granule = run->unit / GPI_GRANULE;
    gpi_cell *cell = &buddy->cells[granule];
    if (cell->first && cell->first->unit < run->unit) return;
    cell->first = run;
    buddy->starts[granule / 64] |= (uint64_t)1 << granule % 64;
}

/* The run that has a unit. */
static gpi_run *gpi_buddy_at(const gpi_buddy *buddy, uint64_t unit) {
    uint64_t granule = unit / GPI_GRANULE, word = granule / 64;
    gpi_run *run = buddy->cells[granule].first;
    if (!run || run->unit > unit) {
        uint64_t bits = buddy->starts[word] & (((uint64_t)1 << granule % 64) - 1);
        while (!bits) bits = buddy->starts[--word]; /* a run starts in the first granule */
        run = buddy->cells[word * 64 + gpi_high_bit(bits)].first;
    }
    while (run->unit + run->units <= unit) run = run->right;
    return run;
}

/* -- split and join: the runs are in no list -- */

/* The caller has ensured room for a record. What others may read of it without a lock stays (B4).
 */
static gpi_run *gpi_buddy_split(gpi_buddy *buddy, gpi_run *run, uint64_t unit) {
    size_t skip = offsetof(gpi_run, next);
    gpi_run *right = buddy->spare;
    if (right) buddy->spare = right->left;
    else right = (gpi_run *)gpi_region_get(&buddy->region, sizeof *right);
    memcpy((char *)right + skip, (const char *)run + skip, sizeof *right - skip);
    right->unit = unit;
    right->units -= unit - run->unit;
    right->left = run;
    run->units = unit - run->unit;
    run->right = right;
    if (right->right) right->right->left = right;
    gpi_buddy_enter(buddy, right);
    return right;
}

/* Joins a run and its right neighbour. */
static gpi_run *gpi_buddy_join(gpi_buddy *buddy, gpi_run *left) {
    gpi_run *right = left->right, *next = right->right;
    uint64_t granule = right->unit / GPI_GRANULE;
    gpi_run **first = &buddy->cells[granule].first;
    if (*first == right) *first = next && next->unit / GPI_GRANULE == granule ? next : NULL;
    if (!*first) buddy->starts[granule / 64] &= ~((uint64_t)1 << granule % 64);
    if (right->units > left->units) left->by = right->by;
    left->units += right->units;
    left->right = next;
    if (next) next->left = left;
    right->units = 0;
    right->left = buddy->spare;
    buddy->spare = right;
    return left;
}

/* -- memory becomes free, and is taken -- */

/* Whether a mark covers what a stream freed at one position, and not what it freed at the other. If
   the one joined later frees again and again, it would never pass, and never serve another stream.
 */
static int gpi_buddy_passes_apart(const gpi_stream *s, uint64_t x, uint64_t y) {
    return s &&
           ((x <= s->mark_at) != (y <= s->mark_at) || (x <= s->older_at) != (y <= s->older_at));
}

/* The neighbour that joins a run that becomes free; NULL: none. It is of the same list; or finished
   memory, which then waits for the stream's work again: at most as much as was freed (*most). */
static gpi_run *gpi_buddy_mate(const gpi_buddy *buddy, const gpi_run *run, uint64_t *most) {
    gpi_run *side = run->left;
    int i;
    for (i = 0; i < 2; i++, side = run->right) {
        if (!side || side->state != run->state) continue;
        if (buddy->is_apart && run->state == GPI_FREE &&
            gpi_buddy_chunk(buddy, side->unit) != gpi_buddy_chunk(buddy, run->unit))
            continue;
        if (side->list == run->list &&
            !gpi_buddy_passes_apart(run->list->stream, side->of.at, run->of.at))
            return side;
        if (side->list != &buddy->any || side->units > *most) continue;
        *most -= side->units;
        return side;
    }
    return NULL;
}

/* Files a run that the caller has in hand: EMPTY, SPACE or FREE, in a list, freed at a position. */
static gpi_run *gpi_buddy_put(gpi_buddy *buddy, gpi_run *run, gpi_state state, gpi_list *list,
                              uint64_t at) {
    uint64_t most = list->stream && list->stream->kind != GPI_GRAPH ? run->units : 0;
    gpi_run *side;
    run->state = (uint8_t)state;
    run->list = list;
    run->of.at = list->stream ? at : 0;
    run->stitch = NULL;
    while ((side = gpi_buddy_mate(buddy, run, &most)) != NULL) {
        gpi_buddy_unfile(buddy, side);
        side->of.at = run->of.at = gpi_max(side->of.at, run->of.at);
        run = gpi_buddy_join(buddy, side == run->left ? side : run);
        run->list = list;
    }
    gpi_buddy_file(buddy, run);
    return run;
}

/* Takes [unit, unit + units) out of a filed run; the rest stays in its list. */
static gpi_run *gpi_buddy_take(gpi_buddy *buddy, gpi_run *run, uint64_t unit, uint64_t units) {
    gpi_buddy_unfile(buddy, run);
    if (unit > run->unit) {
        gpi_run *head = run;
        run = gpi_buddy_split(buddy, run, unit);
        gpi_buddy_file(buddy, head);
    }
    if (run->units > units) gpi_buddy_file(buddy, gpi_buddy_split(buddy, run, unit + units));
    run->state = GPI_TAKEN;
    return run;
}

/* -- search -- */

/* Where in a run a block would start: addresses without memory at a granule, a block as aligned. */
static uint64_t gpi_buddy_start(const gpi_buddy *buddy, const gpi_run *run, uint64_t alignment) {
    uint64_t address;
    if (alignment <= GPI_UNIT) return run->unit;
    if (run->state == GPI_EMPTY) return gpi_up(run->unit, GPI_GRANULE);
    address = gpi_address(buddy, run->unit);
    return run->unit + (gpi_up(address, alignment) - address) / GPI_UNIT;
}

typedef struct gpi_search {
    gpi_list *lists[2]; /* where to look; lists[1] may be NULL */
    uint64_t units, alignment;
    uint64_t below; /* only what was freed before this position */
    int tries;      /* runs of a bin to look at */
} gpi_search;

/* The closest fit: the first bin, from the request's own on, that has a run that fits. */
static gpi_run *gpi_buddy_find(const gpi_buddy *buddy, const gpi_search *search) {
    uint32_t bin = gpi_buddy_bin(search->units), least;
    for (; bin != GPI_NO_BIN; bin = least) {
        int i, left;
        least = GPI_NO_BIN;
        for (i = 0; i < 2 && search->lists[i]; i++) {
            gpi_run *run = search->lists[i]->heads[bin];
            if (search->lists[i]->units < search->units) continue;
            for (left = search->tries; run && left; run = run->next, left--)
                if (run->of.at < search->below &&
                    gpi_buddy_start(buddy, run, search->alignment) + search->units <=
                        run->unit + run->units)
                    return run;
            least = (uint32_t)gpi_min(least, gpi_buddy_next_bin(search->lists[i], bin + 1));
        }
    }
    return NULL;
}

/* Takes units of one list, aligned, or returns NULL. */
static gpi_run *gpi_buddy_get(gpi_buddy *buddy, gpi_list *list, uint64_t units,
                              uint64_t alignment) {
    gpi_search search = {{list, NULL}, units, alignment, UINT64_MAX, GPI_TRIES_SLOW};
    gpi_run *run = gpi_buddy_find(buddy, &search);
    return run ? gpi_buddy_take(buddy, run, gpi_buddy_start(buddy, run, alignment), units) : NULL;
}

/* -- the index of live blocks -- */

static gpi_run **gpi_buddy_bucket(const gpi_buddy *buddy, uint64_t address) {
    return &buddy->index[gpi_hash(address / GPI_UNIT) >> (64 - GPI_INDEX_BITS)];
}

/* Looks at `steps` entries. Without the lock it may miss a block: then the caller asks again under
   the lock. What it finds is to be believed only after a look under the lock of the stream that
   `cache` names. */
static inline gpi_run *gpi_buddy_lookup(const gpi_buddy *buddy, uint64_t address, int steps) {
    gpi_run *run = GPI_READ(gpi_buddy_bucket(buddy, address));
    while (run && steps-- && GPI_LOOK(&run->address) != address) run = GPI_READ(&run->hash_next);
    return steps > 0 ? run : NULL;
}

static void gpi_buddy_index(gpi_buddy *buddy, gpi_run *run) {
    uint64_t address = gpi_address(buddy, run->unit);
    gpi_run **head = gpi_buddy_bucket(buddy, address);
    GPI_SET(&run->address, address);
    GPI_SET(&run->hash_next, *head);
    GPI_PUBLISH(head, run);
}

static void gpi_buddy_unindex(gpi_buddy *buddy, gpi_run *run) {
    gpi_run **link = gpi_buddy_bucket(buddy, run->address);
    while (*link != run) link = &(*link)->hash_next;
    GPI_PUBLISH(link, run->hash_next);
}

static uint64_t gpi_block_units(const gpi_run *run) {
    return run->stitch ? run->stitch->units : run->units;
}
/* == STREAM =======================================================================================
   When freed memory may be used again. Each free of a stream gets the next position. What is known
   of a stream is how far its work has come (gpi_stream_done); a mark, an event behind all frees up
   to mark_at, makes that known without a wait, and lets another stream wait on the device.

   ST1  passed <= issued, mark_at <= issued. (stream, position) stays true for ever, since positions
        only grow; so nothing counts references to streams.
   ST2  A stream's list has runs with at <= issued; runs of list ANY have finished.
   ST3  `users`: threads record an event, or wait for one, lock open; nobody else records. While a
        thread records it, `event` or `older` is NULL: nobody asks for it, or waits.
   ST4  cached_units is the sum of the cache. A run has cache == s only while s->lock protects it.
   ST5  A WAITING block with a graph's use is owned by that graph; others hang in `waiting`.

   Rules of order: O1 gpi_stream_mark, O2 gpi_driver_mark, O3 gpi_stream_follow, O4 O6
   gpi_stream_key, O15 gpi_stream_get.

   Read first: gpi_stream_done, gpi_stream_mark, gpi_stream_mark_due, gpi_stream_poll. */

/* -- finding streams -- */

/* O6: the per-thread default stream's key is the thread's number, which is never used twice; so
   only its thread records marks for it. Handles are even, these keys are odd. */
static inline uintptr_t gpi_stream_key(cudaStream_t stream) {
    if (!stream) stream = GPUPOOL_STREAM_HERE;
    if (stream != cudaStreamPerThread) return (uintptr_t)stream;
    if (!gpi_thread.number)
        gpi_thread.number = __atomic_add_fetch(&gpi_process.threads, 1, __ATOMIC_RELAXED);
    return (uintptr_t)(gpi_thread.number * 2 + 1);
}

static inline gpi_stream **gpi_stream_bucket(gpupool_arena *arena, uintptr_t key) {
    return &arena->streams.table[gpi_hash(key) >> (64 - GPI_TABLE_BITS)];
}

/* Without the lock too: structs stay as long as the arena. */
static inline gpi_stream *gpi_stream_find(gpupool_arena *arena, uintptr_t key) {
    gpi_stream *s = GPI_READ(gpi_stream_bucket(arena, key));
    while (s && GPI_LOOK(&s->key) != key) s = GPI_READ(&s->chain);
    return s;
}

/* The position up to which its work is known to have finished. */
static uint64_t gpi_stream_done(const gpupool_arena *arena, const gpi_stream *s) {
    if (s->kind == GPI_GRAPH) return s->passed;
    return gpi_max(s->passed, arena->streams.passed);
}

/* And up to which another stream can wait for it on the device. */
static uint64_t gpi_stream_marked(const gpupool_arena *arena, const gpi_stream *s) {
    uint64_t done = gpi_stream_done(arena, s);
    return s->event ? gpi_max(done, s->mark_at) : done;
}

static uint64_t gpi_stream_issue(gpupool_arena *arena, gpi_stream *s) {
    GPI_SET(&arena->streams.position, arena->streams.position + 1); /* fast paths look at it */
    return s->issued = arena->streams.position;
}

/* CUDA's id of a stream, which two streams with one handle, one after the other, do not share. 0:
   not asked for; while the stream captures, the question would end the capture. */
static inline uint64_t gpi_stream_id(const gpi_driver *driver, cudaStream_t stream) {
    unsigned long long id = 0;
    if (!GPUPOOL_STREAM_CHECK || gpi_driver_is_special(stream) ||
        gpi_driver_is_capturing(driver, stream))
        return 0;
    return driver->stream_id(stream, &id) == CUDA_SUCCESS ? id : 0;
}

/* O12: a stream of the program works in the context of the device or of a peer. */
static gpupool_result gpi_stream_context(gpi_driver *driver, cudaStream_t stream,
                                         CUcontext *context) {
    CUresult error = stream == GPUPOOL_NO_STREAM ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
    int i = 0;
    *context = driver->context;
    if (!gpi_driver_is_special(stream)) error = driver->stream_context(stream, context);
    if (error == CUDA_ERROR_INVALID_HANDLE || error == CUDA_ERROR_INVALID_VALUE ||
        error == CUDA_ERROR_CONTEXT_IS_DESTROYED)
        return gpi_system_fail(GPUPOOL_E_ARGUMENT,
                               "stream %p: CUDA does not know it (rule 2: a "
                               "stream lives until its last call)",
                               (void *)stream);
    if (error != CUDA_SUCCESS) return GPI_TOLD(driver, stream_context, error);
    while (i < driver->peer_count && *context != driver->peer_contexts[i]) i++;
    if (i < driver->peer_count || *context == driver->context) return GPUPOOL_OK;
    return gpi_system_fail(GPUPOOL_E_ARGUMENT,
                           "stream %p belongs to another device or context than "
                           "the arena or ring, and to no peer of it",
                           (void *)stream);
}

/* -- what has finished -- */

/* Moves finished memory of a stream to list ANY; or with a position of ALL, what no mark covers, to
   ALL's list. */
static void gpi_stream_move(gpupool_arena *arena, gpi_stream *s, uint64_t at) {
    gpi_list *to = at ? &arena->streams.all.list : &arena->buddy.any;
    uint64_t from = at ? gpi_stream_marked(arena, s) + 1 : 0;
    uint64_t last = at ? s->issued : gpi_stream_done(arena, s);
    gpi_run *run, *next;
    uint32_t bin;
    for (bin = gpi_buddy_next_bin(&s->list, 0); bin != GPI_NO_BIN;
         bin = gpi_buddy_next_bin(&s->list, bin + 1))
        for (run = s->list.heads[bin]; run; run = next) {
            next = run->next;
            if (run->of.at < from || run->of.at > last) continue;
            gpi_buddy_unfile(&arena->buddy, run);
            gpi_buddy_put(&arena->buddy, run, GPI_FREE, to, at);
        }
}

/* The work of a stream, or with NULL of the whole device, is known to have come so far. */
static void gpi_stream_pass(gpupool_arena *arena, gpi_stream *s, uint64_t at) {
    uint64_t *passed = s ? &s->passed : &arena->streams.passed;
    gpi_stream *each = s ? s : arena->streams.all_streams;
    *passed = gpi_max(*passed, at);
    arena->streams.progress++;
    for (; each; each = s ? NULL : each->next) gpi_stream_move(arena, each, 0);
}

/* Asks a stream's marks under way, the older one first, but for one that a thread records. */
static void gpi_stream_ask(gpupool_arena *arena, gpi_stream *s) {
    CUresult error = CUDA_SUCCESS;
    int i;
    GPI_VISIT(&arena->driver, NULL);
    for (i = 0; i < 2 && error == CUDA_SUCCESS; i++) {
        CUevent event = i ? s->event : s->older;
        uint64_t at = i ? s->mark_at : s->older_at;
        if (!event || at <= gpi_stream_done(arena, s)) continue;
        error = arena->driver.event_query(event);
        if (error == CUDA_SUCCESS) gpi_stream_pass(arena, s, at);
    }
    if (error != CUDA_ERROR_NOT_READY && GPI_TOLD(&arena->driver, event_query, error))
        gpi_arena_break(arena); /* O11 */
}

static int gpi_stream_is_under_way(const gpupool_arena *arena, const gpi_stream *s) {
    return gpi_max(gpi_stream_marked(arena, s), s->older_at) > gpi_stream_done(arena, s);
}

static void gpi_stream_poll(gpupool_arena *arena) {
    gpi_stream *s = arena->streams.all_streams;
    for (; s && !*arena->broken; s = s->next)
        if (gpi_stream_is_under_way(arena, s)) gpi_stream_ask(arena, s);
}

/* -- marks -- */

static void gpi_stream_forget_fresh(gpupool_arena *arena, gpi_stream *s) {
    arena->streams.fresh_units -= s->fresh_units;
    s->fresh_frees = s->fresh_units = 0;
}

/* Records the mark behind all that the stream has freed and used. `handle` is the stream of the
   call under way. O1: the position is noted before the lock opens, and what is freed meanwhile has
   none. */
static gpupool_result gpi_stream_mark(gpupool_arena *arena, gpi_stream *s, cudaStream_t handle) {
    int is_short = arena->streams.position < arena->short_until, is_second;
    CUevent event, older = s->older;
    uint64_t at = s->issued, done;
    gpupool_result result;
    gpi_stream_forget_fresh(arena, s);
    if (s->kind != GPI_ORDINARY || s->users || at <= gpi_stream_marked(arena, s)) return GPUPOOL_OK;
    if (!is_short && gpi_stream_is_under_way(arena, s)) gpi_stream_ask(arena, s);
    done = gpi_stream_done(arena, s);
    is_second = s->event && older && s->mark_at > done && s->older_at <= done;
    event = is_second ? older : s->event;
    *(is_second ? &s->older : &s->event) = NULL;
    s->users++;
    gpi_arena_open(arena);
    result = gpi_driver_mark(&arena->driver, s->context, &event, handle);
    if (!older)
        gpi_driver_make_event(&arena->driver, s->context, &older); /* at once: it may block */
    gpi_arena_close(arena);
    s->users--;
    if (is_second && result == GPUPOOL_OK) { /* the one before is the older one now */
        s->older = s->event;
        s->older_at = s->mark_at;
    } else s->older = is_second ? event : older;
    if (!is_second || result == GPUPOOL_OK) s->event = event;
    if (!s->event) s->mark_at = 0;
    if (result != GPUPOOL_OK) return result;
    s->mark_at = gpi_max(s->mark_at, at);
    arena->stats.marks++;
    return GPUPOOL_OK;
}

enum { GPI_MARKS = 256 }; /* in vain, after which marks become rarer: a power of two */

/* Ends a free: records a mark if one is due and the one before has passed. Refusals don't matter:
   what no mark covers passes by a wait for the device. After 1/128 of reserved memory or 256 frees
   a mark costs three calls and makes memory known to be finished early enough: twice as many marks
   save no memory (recorded programs over four streams, and side by side). Marks must pay: while 256
   in a row lead to no memory that another stream takes, the threshold doubles, but all streams
   together leave at most 1/8 of reserved memory unmarked. While memory is short each free records
   one, since the next request asks. (With one stream and no request without a stream nobody needs
   any, and nobody calls this.) */
static void gpi_stream_mark_due(gpupool_arena *arena, gpi_stream *s, cudaStream_t handle) {
    gpi_streams *streams = &arena->streams;
    uint64_t reserved = arena->chunks.reserved.now;
    uint64_t base = gpi_max(reserved / 128, 4 << 20) / GPI_UNIT;
    uint64_t shift = gpi_min(streams->marks_in_vain / GPI_MARKS, 8);
    int is_short = streams->position < arena->short_until;
    int is_much = s->fresh_units >= base && streams->fresh_units > reserved / 8 / GPI_UNIT;
    gpi_failure before;
    if (!s->fresh_frees || s->kind != GPI_ORDINARY || s->users) return;
    if (!is_short && !is_much && s->fresh_frees < (uint64_t)256 << shift &&
        s->fresh_units < base << shift)
        return;
    if (!is_short) gpi_stream_poll(arena);
    if (!is_short && s->mark_at > gpi_stream_done(arena, s)) {
        gpi_stream_forget_fresh(arena, s);
        return;
    }
    streams->marks_in_vain++;
    before = gpi_thread.last;
    gpi_stream_mark(arena, s, handle);
    gpi_thread.last = before;
}

/* A request wanted memory of others that no mark covers. */
static void gpi_stream_want_marks(gpupool_arena *arena) {
    arena->streams.marks_in_vain = 0;
}

/* A request takes memory: if another stream freed it, marks have paid. */
static void gpi_stream_note_taken(gpupool_arena *arena, const gpi_run *run, const gpi_stream *s) {
    uint64_t *in_vain = &arena->streams.marks_in_vain;
    if (run->by.freed_by && run->by.freed_by != s) *in_vain = gpi_down(*in_vain, GPI_MARKS);
}

/* Makes the request's stream wait, on the device, for another stream's mark. The lock opens; the
   memory in question is TAKEN (O3). */
static gpupool_result gpi_stream_follow(gpupool_arena *arena, gpi_stream *s, gpi_stream *owner,
                                        cudaStream_t handle) {
    gpi_driver *driver = &arena->driver;
    gpupool_result result;
    CUevent event = s->event; /* a thread that records may exchange them */
    if (!event) return GPUPOOL_E_OUT_OF_MEMORY;
    GPI_VISIT(gpi_driver_is_special(handle) ? driver : NULL, owner->context); /* D3 */
    s->users++;
    gpi_arena_open(arena);
    if (gpi_driver_is_capturing(driver, handle)) result = gpi_driver_capturing();
    else result = GPI_TELL(driver, stream_wait, handle, event, 0);
    gpi_arena_close(arena);
    s->users--;
    arena->stats.stream_waits += result == GPUPOOL_OK;
    return result;
}

/* -- uses -- */

static void gpi_stream_add_use(gpupool_arena *arena, gpi_run *run, gpi_stream *s, uint64_t at) {
    gpi_use *use = run->of.uses, first = {use, s, 0};
    while (use && use->stream != s) use = use->next;
    if (!use) {
        gpi_buddy *buddy = &arena->buddy;
        use = buddy->spare_uses;
        if (use) buddy->spare_uses = use->next;
        else use = (gpi_use *)gpi_region_get(&buddy->region, sizeof *use);
        *use = first;
        run->of.uses = use;
    }
    use->at = gpi_max(use->at, at);
    s->used_at = gpi_max(s->used_at, at);
}

/* Drops the uses that have passed, and those of `s` (or NULL). Returns whether none is left. */
static int gpi_stream_drop_uses(gpupool_arena *arena, gpi_run *run, const gpi_stream *s) {
    gpi_use **link = &run->of.uses, *use;
    while ((use = *link) != NULL) {
        if (use->stream != s && use->at > gpi_stream_done(arena, use->stream)) {
            link = &use->next;
            continue;
        }
        *link = use->next;
        use->next = arena->buddy.spare_uses;
        arena->buddy.spare_uses = use;
    }
    return !run->of.uses;
}

/* The graph that a block belongs to: the one that has used it longest; or NULL. */
static gpi_stream *gpi_stream_graph_of(const gpi_run *run) {
    const gpi_use *use = run->of.uses;
    gpi_stream *graph = NULL;
    for (; use; use = use->next)
        if (use->stream->kind == GPI_GRAPH) graph = use->stream;
    return graph;
}

/* A freed block that is TAKEN waits for its uses, hung from `head`; and no longer. */
static void gpi_stream_wait_for_uses(gpupool_arena *arena, gpi_run *run, gpi_run **head) {
    run->state = GPI_WAITING;
    gpi_run_link(head, NULL, run);
    gpi_counter_move(&arena->buddy.pending, (int64_t)(gpi_block_units(run) * GPI_UNIT));
}

static void gpi_stream_stop_waiting(gpupool_arena *arena, gpi_run *run, gpi_run **head) {
    run->state = GPI_TAKEN;
    gpi_run_unlink(head, run);
    arena->buddy.pending.now -= gpi_block_units(run) * GPI_UNIT;
}

/* -- caches: a stream's lock comes after the arena's -- */

/* Adds up what the cache has counted. Both locks are held, or nobody else knows the stream. */
static void gpi_stream_fold(gpupool_arena *arena, gpi_stream *s) {
    gpi_counter_fold(&arena->stats.allocated, &s->allocated);
    gpi_counter_fold(&arena->stats.requested, &s->requested);
    arena->stats.allocs += (uint64_t)s->more_allocs;
    arena->stats.frees += (uint64_t)s->more_frees;
    s->more_allocs = s->more_frees = 0;
}

/* The stream has freed so much that only a mark will tell finished. */
static void gpi_stream_freshen(gpupool_arena *arena, gpi_stream *s, uint64_t units) {
    if (s->kind != GPI_ORDINARY) return;
    s->fresh_frees++;
    s->fresh_units += units;
    arena->streams.fresh_units += units;
}

/* Puts a free block that is not stitched into the list of the stream that freed it. */
static void gpi_stream_put(gpupool_arena *arena, gpi_run *run, gpi_stream *s, uint64_t at) {
    run->by.freed_by = s;
    gpi_stream_freshen(arena, s, run->units);
    gpi_buddy_put(&arena->buddy, run, GPI_FREE, s->kind == GPI_NONE ? &arena->buddy.any : &s->list,
                  at);
}

/* Puts cached blocks into the stream's list until at most so many units are cached, the largest
   first; and adds up its counts. */
static void gpi_stream_flush(gpupool_arena *arena, gpi_stream *s, uint64_t most) {
    int bin;
    if (!GPI_LOOK(&s->is_stirred)) return;
    gpi_system_lock(&s->lock);
    for (bin = GPI_SMALL; bin > 0 && s->cached_units > most; bin--)
        while (s->bins[bin] && s->cached_units > most) {
            gpi_run *run = s->bins[bin];
            GPI_SET(&s->bins[bin], run->next);
            s->cached_units -= run->units;
            run->is_cached = 0;
            s->outs--;
            GPI_PUBLISH(&run->cache, NULL);
            gpi_buddy_unindex(&arena->buddy, run);
            gpi_stream_put(arena, run, s, gpi_stream_issue(arena, s));
        }
    gpi_stream_fold(arena, s);
    GPI_SET(&s->is_stirred, s->cached_units > 0);
    gpi_system_unlock(&s->lock);
}

/* All streams likewise: with UINT64_MAX it only adds up. */
static void gpi_stream_flush_all(gpupool_arena *arena, uint64_t most) {
    gpi_stream *s = arena->streams.all_streams;
    for (; s; s = s->next) gpi_stream_flush(arena, s, most);
}

/* Takes a block that is OUT away from its cache: then only the arena's lock protects it. Returns 0
   if the cache has it: it is free. */
static int gpi_stream_recall(gpupool_arena *arena, gpi_run *run) {
    gpi_stream *cache = run->cache;
    int is_live;
    gpi_system_lock(&cache->lock);
    is_live = !run->is_cached;
    if (is_live) {
        gpi_stream_fold(arena, cache); /* or the arena would count less than nothing: C1 */
        run->state = GPI_LIVE;
        cache->outs--;
        GPI_PUBLISH(&run->cache, NULL);
    }
    gpi_system_unlock(&cache->lock);
    return is_live;
}

/* Describes a live block; 0: the run is none. What a fast path changes is read under its lock. */
static int gpi_stream_describe(const gpi_run *run, gpupool_block *block) {
    gpi_stream *cache = run->state == GPI_OUT ? run->cache : NULL;
    int is_live;
    if (run->state != GPI_LIVE && !cache) return 0;
    if (cache) gpi_system_lock(&cache->lock);
    is_live = !run->is_cached;
    block->memory = (void *)(uintptr_t)run->address;
    block->bytes = gpi_block_units(run) * GPI_UNIT;
    block->requested = block->bytes - run->slack;
    block->label = run->by.label;
    if (cache) gpi_system_unlock(&cache->lock);
    return is_live;
}

/* -- streams come -- */

/* What the fast paths ask under the stream's lock. */
static void gpi_stream_set(gpi_stream *s, uintptr_t key, gpi_stream *scope) {
    gpi_system_lock(&s->lock);
    GPI_PUBLISH(&s->key, key);
    GPI_SET(&s->scope, scope);
    gpi_system_unlock(&s->lock);
}

/* From now on the stream is found by its key. */
static void gpi_stream_link(gpupool_arena *arena, gpi_stream *s, uintptr_t key) {
    gpi_stream **head = gpi_stream_bucket(arena, key);
    if (!s->list.stream) { /* it is new */
        s->list.stream = s;
        s->next = arena->streams.all_streams;
        arena->streams.all_streams = s;
    }
    GPI_PUBLISH(&s->chain, *head);
    GPI_PUBLISH(head, s);
    gpi_stream_set(s, key, NULL);
}

/* A struct for a new stream: that of a retired one of which nothing is left, and whose events are
   of the same context; or a new one. O15: a block that is OUT names its stream's struct. (It is not
   malloc's, which may sort all that CUDA has freed first: 2 ms, with the arena's lock held.) */
static gpi_stream *gpi_stream_new(gpupool_arena *arena, CUcontext context) {
    gpi_stream **link = &arena->streams.retired, *s;
    gpi_stream_poll(arena);
    while ((s = *link) != NULL && (s->context != context || s->list.units || s->outs || s->users ||
                                   s->issued > gpi_stream_done(arena, s)))
        link = &s->chain;
    if (s) GPI_PUBLISH(link, s->chain);
    else s = (gpi_stream *)gpi_region_get(&arena->buddy.region, sizeof *s);
    s->context = context;
    return s;
}

/* The streams that an arena has from the start. */
static void gpi_stream_open(gpupool_arena *arena) {
    gpi_streams *streams = &arena->streams;
    streams->none.kind = GPI_NONE;
    streams->all.kind = GPI_ALL;
    streams->none.context = streams->all.context = arena->driver.context;
    gpi_stream_link(arena, &streams->none, gpi_stream_key(GPUPOOL_NO_STREAM));
    gpi_stream_link(arena, &streams->all, gpi_stream_key(GPI_ALL_STREAM));
}

static void gpi_stream_close(gpupool_arena *arena) {
    gpi_stream *s = arena->streams.all_streams;
    for (; s; s = s->next) {
        if (s->event) gpi_driver_drop(&arena->driver, &s->event);
        if (s->older) gpi_driver_drop(&arena->driver, &s->older);
    }
}

/* Finds the stream of a call, or makes its struct. Under the arena's lock. Where that fails, *out
   is ALL: in a broken arena or context frees succeed, behind all work. */
static gpupool_result gpi_stream_get(gpupool_arena *arena, cudaStream_t stream, gpi_stream **out) {
    uintptr_t key = gpi_stream_key(stream);
    gpupool_result result;
    CUcontext context;
    gpi_stream *s = *out = gpi_stream_find(arena, key);
    if (s) return GPUPOOL_OK;
    *out = &arena->streams.all;
    if (*arena->broken) return GPUPOOL_OK;
    result = gpi_stream_context(&arena->driver, stream, &context);
    if (result != GPUPOOL_OK) return result;
    /* the newest was an ordinary one: this is the second */
    arena->streams.has_users |= arena->streams.all_streams->kind == GPI_ORDINARY;
    s = *out = gpi_stream_new(arena, context);
    s->passed = gpi_max(s->passed, arena->streams.passed);
    s->thread = key & 1 ? (int)syscall(SYS_gettid) : 0;
    GPI_SET(&s->id, gpi_stream_id(&arena->driver, stream));
    gpi_stream_link(arena, s, key);
    return GPUPOOL_OK;
}

/* -- streams end -- */

/* Closes a stream's scope. The arena's lock is held. */
static void gpi_stream_close_scope(gpi_stream *s) {
    if (!s || !s->scope) return;
    s->scope->origin = NULL;
    gpi_stream_set(s, s->key, NULL);
}

/* The handle means this stream no more. What it freed and no mark covers is ALL's now, as memory of
   cudaFree is (O9). Uses and stitches of it keep the struct from serving again until they pass. */
static void gpi_stream_retire(gpupool_arena *arena, gpi_stream *s) {
    gpi_stream **link = gpi_stream_bucket(arena, s->key);
    gpi_stream_close_scope(s);
    gpi_stream_flush(arena, s, 0);
    gpi_stream_set(s, 0, NULL);
    while (*link != s) link = &(*link)->chain;
    GPI_PUBLISH(link, s->chain);
    GPI_PUBLISH(&s->chain, arena->streams.retired); /* who looks without the lock goes on there */
    arena->streams.retired = s;
    gpi_stream_forget_fresh(arena, s);
    gpi_stream_move(arena, s, gpi_stream_issue(arena, &arena->streams.all));
    if (!s->users) s->issued = gpi_max(gpi_max(s->passed, s->mark_at), s->used_at);
}

/* Retires the per-thread default streams of threads that have ended: O6, they leave no mark. */
static void gpi_stream_retire_ended(gpupool_arena *arena) {
    gpi_stream *s = arena->streams.all_streams;
    for (; s; s = s->next)
        if (s->key && s->thread && s->issued > gpi_stream_done(arena, s) &&
            gpi_system_has_ended(s->thread))
            gpi_stream_retire(arena, s);
}

/* A call names a stream. If the handle has come to mean another one, by CUDA's ids, the struct of
   the old one is retired: without a mark, which would be behind the new one's work. */
static inline void gpi_stream_check(gpupool_arena *arena, cudaStream_t stream) {
    uint64_t id = gpi_stream_id(&arena->driver, stream);
    gpi_stream *s = id ? gpi_stream_find(arena, gpi_stream_key(stream)) : NULL;
    if (!s || GPI_LOOK(&s->id) == id) return;
    gpi_system_lock(&arena->lock);
    s = gpi_stream_find(arena, gpi_stream_key(stream));
    if (s && s->id && s->id != id) gpi_stream_retire(arena, s);
    else if (s) GPI_SET(&s->id, id); /* it captured when it was first seen */
    gpi_system_unlock(&arena->lock);
}

/* How many units a cache may have: a free whose block finds it full takes the arena's lock. */
static uint64_t gpi_stream_cache_most(const gpupool_arena *arena) {
    return gpi_max(GPI_LOOK(&arena->chunks.reserved.now) / 256, 1 << 20) / GPI_UNIT;
}
/* == CHUNK ========================================================================================
   Memory from the arena's source, in chunks. Sources differ in a table of two functions and flags;
   all chunks have units of the arena's one space of addresses.

   CH1  all[] is in the order of sizes, the largest first. `reserved` is the sum of their bytes.
   CH2  cells[granule].chunk is the chunk of each granule that a chunk begins or lies in.
   CH3  A chunk that is MAPPED comes and goes under the arena's lock (D2: the driver does not wait
        there). Others come and go with the lock open, and their memory is TAKEN meanwhile.
   CH4  Growth only adds finished free memory. A failure of get leaves nothing; a failure of give
        breaks the arena.

   Read first: gpi_sources, gpi_chunk_make, gpi_chunk_grow, gpi_chunk_undo. */

typedef enum gpi_source_flag {
    GPI_MAPS = 1,     /* chunks can be mapped a second time: the arena stitches */
    GPI_HOST = 2,     /* the host uses new blocks at once: finished memory only goes out (O5) */
    GPI_ALONE = 4,    /* each block is a chunk of its own, and goes back when it is freed */
    GPI_ON_DEVICE = 8 /* what the device has free says how much more there is */
} gpi_source_flag;

typedef struct gpi_source {
    const char *name;
    unsigned flags;
    gpupool_result (*get)(gpupool_arena *, gpi_chunk *); /* sets memory; units are known */
    gpupool_result (*give)(gpupool_arena *, gpi_chunk *);
} gpi_source;

/* -- sources: under GPI_VISIT -- */

/* Maps a chunk's own memory, or what a stitch has side by side. Only what creates and maps is
   undone; what must not fail breaks the arena. */
static gpupool_result gpi_chunk_map(gpupool_arena *arena, gpi_chunk *chunk) {
    gpi_driver *driver = &arena->driver;
    const gpi_stitch *stitch = chunk->stitch;
    uint64_t address = gpi_address(&arena->buddy, chunk->unit), done = 0;
    uint32_t count = stitch ? stitch->count : 1, i;
    gpupool_result result = GPUPOOL_OK;
    if (!stitch)
        result = GPI_TELL(driver, create, &chunk->handle, chunk->units * GPI_UNIT,
                          &driver->properties, 0);
    if (result != GPUPOOL_OK) return result;
    chunk->memory = (void *)(uintptr_t)address;
    for (i = 0; i < count && result == GPUPOOL_OK; i++) {
        const gpi_chunk *part =
            stitch ? gpi_buddy_chunk(&arena->buddy, stitch->pieces[i].unit) : chunk;
        uint64_t bytes = part->units * GPI_UNIT;
        result = GPI_TELL(driver, map, address + done, bytes, 0, part->handle, 0);
        if (result == GPUPOOL_OK) done += bytes;
    }
    if (result == GPUPOOL_OK) result = gpi_driver_access(driver, address, done);
    if (result == GPUPOOL_OK) return GPUPOOL_OK;
    if (done && driver->unmap(address, done) != CUDA_SUCCESS) return gpi_arena_break(arena);
    if (!stitch) driver->release(chunk->handle);
    return result;
}

static gpupool_result gpi_chunk_unmap(gpupool_arena *arena, gpi_chunk *chunk) {
    gpi_driver *driver = &arena->driver;
    gpupool_result result =
        GPI_TELL(driver, unmap, (uintptr_t)chunk->memory, chunk->units * GPI_UNIT);
    if (result != GPUPOOL_OK || chunk->stitch) return result;
    return GPI_TELL(driver, release, chunk->handle);
}

static gpupool_result gpi_chunk_get_device(gpupool_arena *arena, gpi_chunk *chunk) {
    CUdeviceptr address = 0;
    uint64_t bytes = chunk->units * GPI_UNIT;
    gpupool_result result =
        arena->config.source == GPUPOOL_SOURCE_MANAGED
            ? GPI_TELL(&arena->driver, managed_alloc, &address, bytes, CU_MEM_ATTACH_GLOBAL)
            : GPI_TELL(&arena->driver, memory_alloc, &address, bytes);
    chunk->memory = (void *)(uintptr_t)address;
    return result;
}

static gpupool_result gpi_chunk_give_device(gpupool_arena *arena, gpi_chunk *chunk) {
    return GPI_TELL(&arena->driver, memory_free, (CUdeviceptr)(uintptr_t)chunk->memory);
}

static gpupool_result gpi_chunk_get_pinned(gpupool_arena *arena, gpi_chunk *chunk) {
    return GPI_TELL(&arena->driver, host_alloc, &chunk->memory, chunk->units * GPI_UNIT,
                    CU_MEMHOSTALLOC_PORTABLE);
}

static gpupool_result gpi_chunk_give_pinned(gpupool_arena *arena, gpi_chunk *chunk) {
    return GPI_TELL(&arena->driver, host_free, chunk->memory);
}

/* E_CALLBACK: chunk_free threw. It is not called again for this chunk. */
static gpupool_result gpi_chunk_give_custom(gpupool_arena *arena, gpi_chunk *chunk) {
    const gpupool_arena_config *config = &arena->config;
    GPI_CALLBACK(config->chunk_free(chunk->memory, chunk->units * GPI_UNIT, config->user),
                 return gpi_system_fail(GPUPOOL_E_CALLBACK, "chunk_free threw an exception"))
    return GPUPOOL_OK;
}

static gpupool_result gpi_chunk_get_custom(gpupool_arena *arena, gpi_chunk *chunk) {
    const gpupool_arena_config *config = &arena->config;
    GPI_CALLBACK(chunk->memory = config->chunk_alloc(chunk->units * GPI_UNIT, config->user),
                 return gpi_system_fail(GPUPOOL_E_CALLBACK, "chunk_alloc threw an exception"))
    if (!chunk->memory) return GPUPOOL_E_OUT_OF_MEMORY;
    if ((uintptr_t)chunk->memory % GPI_UNIT == 0) return GPUPOOL_OK;
    gpi_chunk_give_custom(arena, chunk);
    return gpi_system_fail(GPUPOOL_E_CALLBACK, "chunk_alloc's memory is not aligned to 512 bytes");
}

static const gpi_source gpi_sources[] = {
    /* by gpupool_source */
    {"auto", 0, NULL, NULL},
    {"mapped", GPI_MAPS | GPI_ON_DEVICE, gpi_chunk_map, gpi_chunk_unmap},
    {"device", GPI_ON_DEVICE, gpi_chunk_get_device, gpi_chunk_give_device},
    {"managed", GPI_HOST, gpi_chunk_get_device, gpi_chunk_give_device},
    {"pinned", GPI_HOST, gpi_chunk_get_pinned, gpi_chunk_give_pinned},
    {"custom", 0, gpi_chunk_get_custom, gpi_chunk_give_custom},
    {"bypass", GPI_ALONE | GPI_ON_DEVICE, gpi_chunk_get_device, gpi_chunk_give_device}};

/* -- the list -- */

static void gpi_chunk_cells(gpupool_arena *arena, const gpi_chunk *chunk, gpi_chunk *value) {
    uint64_t unit = chunk->unit;
    for (; unit < chunk->unit + chunk->units; unit += GPI_GRANULE)
        arena->buddy.cells[unit / GPI_GRANULE].chunk = value;
}

static void gpi_chunk_link(gpupool_arena *arena, gpi_chunk *chunk) {
    gpi_chunks *chunks = &arena->chunks;
    uint64_t i = chunks->count++;
    for (; i && chunks->all[i - 1]->units < chunk->units; i--) chunks->all[i] = chunks->all[i - 1];
    chunks->all[i] = chunk;
    gpi_chunk_cells(arena, chunk, chunk);
}

static void gpi_chunk_unlink(gpupool_arena *arena, gpi_chunk *chunk) {
    gpi_chunks *chunks = &arena->chunks;
    uint64_t i = 0;
    while (chunks->all[i] != chunk) i++;
    chunks->count--;
    memmove(&chunks->all[i], &chunks->all[i + 1], (chunks->count - i) * sizeof chunk);
    gpi_chunk_cells(arena, chunk, NULL);
}

/* -- chunks and stitches come and go -- */

/* Calls get or give, for sources that may wait with the arena's lock open (CH3). */
static gpupool_result gpi_chunk_call(gpupool_arena *arena, gpi_chunk *chunk,
                                     gpupool_result (*call)(gpupool_arena *, gpi_chunk *)) {
    int is_open = !(arena->chunks.source->flags & GPI_MAPS);
    gpupool_result result;
    GPI_VISIT(&arena->driver, arena->driver.context);
    if (is_open) gpi_arena_open(arena);
    result = call(arena, chunk);
    if (is_open) gpi_arena_close(arena);
    return result;
}

/* Gets a chunk's memory from the source, or maps a stitch; the program is told before a block lies
   there. */
static gpupool_result gpi_chunk_come(gpupool_arena *arena, gpi_chunk *chunk) {
    const gpupool_arena_config *config = &arena->config;
    const gpi_source *source = arena->chunks.source;
    gpupool_result result = gpi_chunk_call(arena, chunk, source->get);
    gpupool_mapping mapping = {chunk->memory, chunk->units * GPI_UNIT, chunk->handle};
    int refuses = 0;
    if (result != GPUPOOL_OK) return result;
    if (config->on_map)
        GPI_CALLBACK(refuses = config->on_map(&mapping, config->user),
                     result = gpi_system_fail(GPUPOOL_E_CALLBACK, "on_map threw an exception"))
    if (refuses)
        result = gpi_system_fail(GPUPOOL_E_CALLBACK, "on_map refused %zu bytes", mapping.bytes);
    if (result != GPUPOOL_OK && gpi_chunk_call(arena, chunk, source->give) != GPUPOOL_OK)
        return gpi_arena_break(arena);
    chunk->is_away = result != GPUPOOL_OK;
    if (!chunk->is_away && !chunk->stitch)
        gpi_counter_move(&arena->chunks.reserved, (int64_t)mapping.bytes);
    return result;
}

/* Tells the program, and gives the memory to its source or unmaps the stitch: then it is away, also
   after E_CALLBACK. */
static gpupool_result gpi_chunk_undo(gpupool_arena *arena, gpi_chunk *chunk) {
    const gpupool_arena_config *config = &arena->config;
    gpupool_mapping mapping = {chunk->memory, chunk->units * GPI_UNIT, chunk->handle};
    gpupool_result told = GPUPOOL_OK, result;
    if (chunk->is_away) return GPUPOOL_OK;
    if (config->on_unmap)
        GPI_CALLBACK(config->on_unmap(&mapping, config->user),
                     told = gpi_system_fail(GPUPOOL_E_CALLBACK, "on_unmap threw an exception"))
    result = gpi_chunk_call(arena, chunk, arena->chunks.source->give);
    if (result != GPUPOOL_OK && result != GPUPOOL_E_CALLBACK) return result;
    chunk->is_away = 1;
    if (!chunk->stitch) gpi_counter_move(&arena->chunks.reserved, -(int64_t)mapping.bytes);
    return result == GPUPOOL_OK ? told : result;
}

/* Gets one chunk. Its addresses are TAKEN. */
static gpupool_result gpi_chunk_make(gpupool_arena *arena, uint64_t unit, uint64_t units) {
    gpi_chunk *chunk = (gpi_chunk *)gpi_system_zeroed(sizeof *chunk);
    gpupool_result result;
    if (!chunk) return gpi_system_no_memory();
    chunk->unit = unit;
    chunk->units = units;
    result = gpi_chunk_come(arena, chunk);
    if (result == GPUPOOL_OK) gpi_chunk_link(arena, chunk);
    else GPUPOOL_FREE(chunk);
    return result;
}

typedef struct gpi_ask { /* a request under way */
    gpupool_arena *arena;
    const gpupool_request *request;
    gpi_stream *owner;   /* whose the block will be: the call's stream, or its scope */
    cudaStream_t handle; /* the stream, for CUDA */
    uint64_t units, alignment;
    uint64_t need;     /* units that a growth must add for it */
    int can_stitch;    /* the block may be stitched */
    int is_own_chunk;  /* the block is one chunk of exactly its size */
    int takes_own;     /* memory in the owner's list serves; 0: only finished memory */
    int takes_others;  /* memory is short: other streams' marked memory serves, behind waits */
    int takes_pending; /* whatever is free after waits: not to take it, but to add it up (VERDICT)
                        */
} gpi_ask;

/* The size of new chunks for a need: a share of what is reserved, since the driver's price is for a
   handle and not for a byte; 2 to 32 MiB. Under a limit chunks are smaller, so that less of it is
   lost. Chunks that are no neighbours must each have room for the whole block, however large. */
static uint64_t gpi_chunk_size(const gpi_ask *ask, uint64_t need) {
    const gpi_chunks *chunks = &ask->arena->chunks;
    int is_limited = chunks->limit != UINT64_MAX;
    uint64_t units = gpi_max(chunks->reserved.now / GPI_UNIT / (is_limited ? 512 : 192),
                             need / (is_limited ? 64 : 32));
    if (ask->is_own_chunk) return need;
    units = gpi_max(gpi_down(gpi_min(units, (32 << 20) / GPI_UNIT), GPI_GRANULE), GPI_GRANULE);
    if (chunks->chunk_units) units = chunks->chunk_units;
    return ask->arena->buddy.is_apart ? gpi_max(units, need) : units;
}

/* The bytes that the limit leaves beside growth under way. */
static uint64_t gpi_chunk_room(const gpi_chunks *chunks) {
    return gpi_less(chunks->limit, chunks->reserved.now + chunks->coming);
}

/* Adds finished free memory: `need` units side by side, in chunks of the usual size, and a whole
   chunk of that size where the limit lets it. The lock opens between two chunks. What was made
   before a failure stays, as free memory. */
static gpupool_result gpi_chunk_grow(const gpi_ask *ask, uint64_t need) {
    gpupool_arena *arena = ask->arena;
    gpi_buddy *buddy = &arena->buddy;
    gpi_chunks *chunks = &arena->chunks;
    uint64_t page = chunks->source->flags & GPI_MAPS ? GPI_GRANULE : 1, done = 0, left = 0;
    uint64_t room = gpi_down(gpi_chunk_room(chunks) / GPI_UNIT, page);
    uint64_t size = gpi_chunk_size(ask, need), most, part, planned;
    gpupool_result result = GPUPOOL_OK;
    gpi_run *run;
    need = gpi_up(need, page);
    most = gpi_max(need, gpi_min(size, room));
    if (need > room) return GPUPOOL_E_OUT_OF_MEMORY;
    /* what cannot be met with all free memory is not to leave the arena with all of the device */
    if (need > size && chunks->source->flags & GPI_ON_DEVICE)
        left = gpi_driver_free_bytes(&arena->driver);
    if (left) left += gpi_less(chunks->reserved.now, arena->stats.allocated.now) + GPI_PAGE;
    if (left && need * GPI_UNIT > left) return GPUPOOL_E_OUT_OF_MEMORY;
    run = gpi_buddy_get(buddy, &buddy->empty, gpi_up(most, GPI_GRANULE), GPI_GRANULE * GPI_UNIT);
    if (!run) return GPUPOOL_E_OUT_OF_MEMORY; /* no addresses are left */
    planned = most * GPI_UNIT;
    chunks->coming += planned;
    while (done < most) {
        part = most - done < size + size / 2 ? most - done : size; /* no small rest of its own */
        if (part > gpi_less(chunks->limit, chunks->reserved.now) / GPI_UNIT)
            result = GPUPOOL_E_OUT_OF_MEMORY; /* it was lowered */
        else result = gpi_chunk_make(arena, run->unit + done, part);
        if (result == GPUPOOL_E_OUT_OF_MEMORY && done < need && part > need - done) {
            size = need - done; /* no chunk of the usual size is left */
            most = need;
            continue;
        }
        if (result != GPUPOOL_OK) break;
        done += part;
        gpi_arena_pass(arena);
    }
    if (run->units > done)
        gpi_buddy_put(buddy, done ? gpi_buddy_split(buddy, run, run->unit + done) : run, GPI_EMPTY,
                      &buddy->empty, 0);
    run->by.freed_by = NULL;
    if (done) gpi_buddy_put(buddy, run, GPI_FREE, &buddy->any, 0);
    chunks->coming -= planned;
    gpi_system_wake_all(&chunks->returned);
    return done >= need ? GPUPOOL_OK : result;
}

/* -- idle chunks go -- */

static int gpi_chunk_is_idle(const gpupool_arena *arena, const gpi_chunk *chunk) {
    const gpi_run *run = gpi_buddy_at(&arena->buddy, chunk->unit);
    return run->state == GPI_FREE && run->list == &arena->buddy.any &&
           run->unit + run->units >= chunk->unit + chunk->units;
}
/* == STITCH =======================================================================================
   One block from free memory of several chunks: they are mapped a second time, side by side.

       home:     [ chunk 1, all used ][ live ][ chunk 2, used up to here | free ]
                          \                        /
       stitch:   [ piece 1 ][ piece 2      |      ]      the last chunk is mapped whole

   A freed stitch stays mapped, and is idle: a program that repeats itself takes it again without a
   CUDA call. It serves every request of the same number of granules.

   Mapping is worth it only if the program repeats itself: with sizes that never come again each
   request would map anew, some 30 us a piece, for ever. So stitches spend a credit, in frees. It
   starts with 250,000; each free earns 1; each piece that is mapped costs 51, and 153 more for each
   peer; its first reuse returns 30; credit never exceeds the start. Without credit the arena grows
   instead. A limit or a full device comes first: then stitches cost what they cost.

   M1  A used stitch has a PART run in each piece's chunk, from the chunk's first unit on. All but
       the last piece are whole chunks.
   M2  An idle one has no memory. Its body is IDLE; where its pieces lie there is anything.
   M3  O16: a stitch is unmapped only when its last user's work has passed. A chunk that is idle
       implies that for all stitches over it.
   M4  O3: memory of other streams stays in separate runs with their (list, position) in the hand of
       the thread until the waits are queued, so that a refused wait puts each back.

   Read first: gpi_ask, gpi_hand_take, gpi_stitch_plan, gpi_stitch_take, gpi_stitch_make. */

enum {
    GPI_CREDIT = 250000,
    GPI_PIECE_COSTS = 51,
    GPI_PIECE_RETURNS = 30,
    GPI_IDLE_PIECES = 8192, /* that idle stitches may have in a small arena */
    GPI_REUSE_TRIES = 32    /* idle stitches of a size whose memory a request looks at */
};

static int gpi_ask_can_use(const gpi_ask *ask, const gpi_run *run) {
    const gpi_run *block = run->state == GPI_PART ? run->stitch->body : run;
    const gpi_stream *s;
    if (ask->takes_pending && block->state == GPI_WAITING) return !gpi_stream_graph_of(block);
    if (run->state != GPI_FREE) return 0;
    s = run->list->stream;
    if (!s || (s == ask->owner && ask->takes_own)) return 1;
    if (ask->takes_pending) return s->kind != GPI_GRAPH;
    return ask->takes_others && s->kind == GPI_ORDINARY && s->event &&
           run->of.at <= gpi_stream_marked(ask->arena, s);
}

/* How many units from a home address on the request can use; at most `most`. */
static uint64_t gpi_ask_usable(const gpi_ask *ask, uint64_t unit, uint64_t most) {
    const gpi_run *run = gpi_buddy_at(&ask->arena->buddy, unit);
    uint64_t end = unit + most;
    while (run && run->unit < end && gpi_ask_can_use(ask, run)) run = run->right;
    return run ? gpi_min(gpi_max(run->unit, unit), end) - unit : most;
}

/* -- a hand: runs that a thread has taken, linked by `next` -- */

static void gpi_hand_take(gpi_ask *ask, uint64_t unit, uint64_t units, gpi_run **hand) {
    gpi_buddy *buddy = &ask->arena->buddy;
    uint64_t end = unit + units;
    while (unit < end) {
        gpi_run *run = gpi_buddy_at(buddy, unit);
        run = gpi_buddy_take(buddy, run, unit, gpi_min(end, run->unit + run->units) - unit);
        gpi_stream_note_taken(ask->arena, run, ask->takes_own ? ask->owner : NULL);
        run->next = *hand;
        *hand = run;
        unit += run->units;
    }
}

/* Makes the request's stream wait for all other streams that freed memory in the hand, once each.
 */
static gpupool_result gpi_hand_follow(gpi_ask *ask, gpi_run *hand) {
    gpupool_result result = GPUPOOL_OK;
    const gpi_run *run, *same;
    for (run = hand; run && result == GPUPOOL_OK; run = run->next) {
        gpi_stream *s = run->list->stream;
        if (!s || s == ask->owner) continue;
        for (same = hand; same->list != run->list;) same = same->next;
        if (same == run) result = gpi_stream_follow(ask->arena, s, ask->owner, ask->handle);
    }
    return result;
}

static void gpi_hand_put_back(gpupool_arena *arena, gpi_run *hand) {
    gpi_run *next;
    for (; hand; hand = next) {
        next = hand->next;
        gpi_buddy_put(&arena->buddy, hand, GPI_FREE, hand->list, hand->of.at);
    }
}

/* -- stitches -- */

static uint32_t gpi_stitch_bin(uint64_t units) {
    return gpi_buddy_bin(gpi_up(units, GPI_GRANULE) / GPI_GRANULE);
}

static int gpi_stitch_is_idle(const gpi_stitch *stitch) {
    return stitch->body->state == GPI_IDLE;
}

/* Takes the pieces of a stitch that is idle. */
static gpupool_result gpi_stitch_take(gpi_ask *ask, gpi_stitch *stitch) {
    gpupool_arena *arena = ask->arena;
    const gpi_range *piece = stitch->pieces, *end = piece + stitch->count;
    gpi_run *hand = NULL;
    gpupool_result result;
    arena->stitches.idle_pieces -= stitch->count;
    stitch->body->state = GPI_TAKEN;
    for (; piece < end; piece++) gpi_hand_take(ask, piece->unit, piece->units, &hand);
    result = gpi_hand_follow(ask, hand);
    if (result != GPUPOOL_OK) {
        gpi_hand_put_back(arena, hand);
        arena->stitches.idle_pieces += stitch->count;
        stitch->body->state = GPI_IDLE;
        return result;
    }
    for (piece = stitch->pieces; piece < end; piece++) {
        gpi_run *run = gpi_buddy_at(&arena->buddy, piece->unit);
        while (run->units < piece->units) gpi_buddy_join(&arena->buddy, run);
        run->state = GPI_PART;
        run->stitch = stitch;
    }
    return GPUPOOL_OK;
}

/* Frees the block of a stitch. */
static void gpi_stitch_put(gpupool_arena *arena, gpi_stitch *stitch, gpi_stream *s, uint64_t at) {
    uint32_t i;
    for (i = 0; i < stitch->count; i++)
        gpi_stream_put(arena, gpi_buddy_at(&arena->buddy, stitch->pieces[i].unit), s, at);
    stitch->body->state = GPI_IDLE;
    stitch->user = s->kind == GPI_NONE ? NULL : s;
    stitch->user_at = s->used_at = at;
    stitch->freed_at = ++arena->stitches.ticks;
    arena->stitches.idle_pieces += stitch->count;
}

/* Whether an idle stitch serves the request: only its last piece may be of another size. */
static int gpi_stitch_serves(const gpi_ask *ask, const gpi_stitch *stitch, uint64_t last) {
    uint32_t i;
    for (i = 0; i < stitch->count; i++) {
        uint64_t units = i + 1 < stitch->count ? stitch->pieces[i].units : last;
        if (gpi_ask_usable(ask, stitch->pieces[i].unit, units) < units) return 0;
    }
    return 1;
}

/* Takes an idle stitch, the one that was made first: a program that repeats itself meets the same
   choices. NULL: none serves. */
static gpi_run *gpi_stitch_reuse(gpi_ask *ask) {
    gpupool_arena *arena = ask->arena;
    gpi_stitches *stitches = &arena->stitches;
    gpi_stitch *stitch = stitches->bins[gpi_stitch_bin(ask->units)];
    uint64_t granules = gpi_up(ask->units, GPI_GRANULE);
    int tries = GPI_REUSE_TRIES;
    for (; stitch && tries; stitch = stitch->next) {
        uint64_t last = ask->units - (stitch->units - stitch->pieces[stitch->count - 1].units);
        if (!gpi_stitch_is_idle(stitch) || gpi_up(stitch->units, GPI_GRANULE) != granules ||
            (uintptr_t)stitch->range.memory % ask->alignment)
            continue;
        tries--;
        if (!gpi_stitch_serves(ask, stitch, last) ||
            !gpi_region_ensure(&arena->buddy.region, 2 * stitch->count * sizeof(gpi_run)))
            continue;
        stitch->pieces[stitch->count - 1].units = last;
        stitch->units = ask->units;
        if (gpi_stitch_take(ask, stitch) != GPUPOOL_OK) return NULL;
        if (!stitch->is_repaid) stitches->credit += stitch->count * GPI_PIECE_RETURNS;
        stitch->is_repaid = 1;
        arena->stats.reused++;
        return stitch->body;
    }
    return NULL;
}

/* -- idle stitches go -- */

static gpupool_result gpi_stitch_unmap(gpupool_arena *arena, gpi_stitch *stitch) {
    gpi_stitches *stitches = &arena->stitches;
    gpi_stitch **link = &stitches->bins[gpi_stitch_bin(stitch->units)];
    gpupool_result result = gpi_chunk_undo(arena, &stitch->range);
    if (!stitch->range.is_away) return gpi_arena_break(arena);
    while (*link != stitch) link = &(*link)->next;
    *link = stitch->next;
    arena->stats.stitches--;
    stitches->idle_pieces -= stitch->count;
    gpi_buddy_put(&arena->buddy, stitch->body, GPI_SPACE, &arena->buddy.space, 0);
    GPUPOOL_FREE(stitch);
    return result == GPUPOOL_OK ? GPUPOOL_OK : gpi_arena_break(arena);
}

static int gpi_stitch_is_over(const gpi_stitch *stitch, const gpi_chunk *chunk) {
    uint32_t i = 0;
    while (i < stitch->count && stitch->pieces[i].unit != chunk->unit) i++;
    return i < stitch->count;
}

/* Whether the work of an idle stitch's last user has passed (M3). */
static int gpi_stitch_has_passed(const gpupool_arena *arena, const gpi_stitch *stitch) {
    return !stitch->user || stitch->user_at <= gpi_stream_done(arena, stitch->user);
}

/* The idle stitch over a chunk that is idle too; or with NULL the one that was freed longest ago
   and whose user's work has passed (M3). NULL: none. */
static gpi_stitch *gpi_stitch_oldest(const gpupool_arena *arena, const gpi_chunk *chunk) {
    gpi_stitch *oldest = NULL, *stitch;
    int bin;
    for (bin = 0; bin < GPI_BINS; bin++)
        for (stitch = arena->stitches.bins[bin]; stitch; stitch = stitch->next) {
            if (!gpi_stitch_is_idle(stitch) || (oldest && oldest->freed_at < stitch->freed_at))
                continue;
            if (chunk ? gpi_stitch_is_over(stitch, chunk) : gpi_stitch_has_passed(arena, stitch))
                oldest = stitch;
        }
    return oldest;
}

/* Gives an idle chunk back, and unmaps what is stitched over it. O10: while the lock is open its
   bytes count as `returning`, and who is short of memory waits for them. */
static gpupool_result gpi_stitch_give_back(gpupool_arena *arena, gpi_chunk *chunk) {
    gpi_buddy *buddy = &arena->buddy;
    uint64_t bytes = chunk->units * GPI_UNIT;
    gpupool_result result;
    gpi_stitch *stitch;
    gpi_run *run;
    while ((stitch = gpi_stitch_oldest(arena, chunk)) != NULL)
        if (gpi_stitch_unmap(arena, stitch) != GPUPOOL_OK) return GPUPOOL_E_CUDA;
    run = gpi_buddy_take(buddy, gpi_buddy_at(buddy, chunk->unit), chunk->unit, chunk->units);
    if (chunk->is_away) arena->chunks.asleep -= bytes;
    arena->chunks.returning += bytes;
    result = gpi_chunk_undo(arena, chunk);
    arena->chunks.returning -= bytes;
    gpi_system_wake_all(&arena->chunks.returned);
    if (!chunk->is_away) return gpi_arena_break(arena);
    gpi_chunk_unlink(arena, chunk);
    gpi_buddy_put(buddy, run, GPI_EMPTY, &buddy->empty, 0);
    GPUPOOL_FREE(chunk);
    return result == GPUPOOL_OK ? GPUPOOL_OK : gpi_arena_break(arena);
}

/* Keeps idle stitches within bounds. */
static void gpi_stitch_bound(gpupool_arena *arena) {
    uint64_t most = gpi_max(GPI_IDLE_PIECES, 4 * arena->chunks.count);
    gpi_stitch *oldest;
    while (arena->stitches.idle_pieces > most && (oldest = gpi_stitch_oldest(arena, NULL)) != NULL)
        if (gpi_stitch_unmap(arena, oldest) != GPUPOOL_OK) return;
}

/* -- new stitches -- */

static uint64_t gpi_stitch_price(const gpupool_arena *arena, uint64_t pieces) {
    return pieces * GPI_PIECE_COSTS * (1 + 3 * (uint64_t)arena->driver.peer_count);
}

/* How many pieces a stitch may have. From half of the credit down one stitch gets at most 1/64 of
   it: what is left serves many small stitches rather than one large. */
static uint64_t gpi_stitch_affords(gpupool_arena *arena) {
    gpi_stitches *stitches = &arena->stitches;
    uint64_t frees = arena->streams.position - stitches->credit_at, credit;
    stitches->credit_at = arena->streams.position;
    credit = stitches->credit = gpi_min(stitches->credit + frees, GPI_CREDIT);
    if (credit < GPI_CREDIT / 2) credit /= 64;
    return credit / gpi_stitch_price(arena, 1);
}

typedef struct gpi_plan {
    uint64_t count;   /* of pieces */
    uint64_t missing; /* units that no chunk has */
    gpi_chunk *last;  /* of which a part is used; NULL: only whole chunks are chosen */
} gpi_plan;

/* Chooses chunks for a block: wholly usable ones, the largest first, while they fit; and for the
   rest the shortest usable start of another chunk. */
static void gpi_stitch_plan(const gpi_ask *ask, gpi_plan *plan) {
    const gpi_chunks *chunks = &ask->arena->chunks;
    uint64_t rest = ask->units, i;
    memset(plan, 0, sizeof *plan);
    for (i = 0; i < chunks->count; i++) {
        gpi_chunk *chunk = chunks->all[i];
        chunk->usable = gpi_ask_usable(ask, chunk->unit, chunk->units);
        chunk->is_chosen = chunk->usable == chunk->units && chunk->units <= rest;
        if (!chunk->is_chosen) continue;
        rest -= chunk->units;
        plan->count++;
    }
    for (i = 0; i < chunks->count && rest; i++) {
        gpi_chunk *chunk = chunks->all[i];
        if (chunk->is_chosen || chunk->usable < rest) continue;
        if (!plan->last || chunk->usable < plan->last->usable) plan->last = chunk;
    }
    if (plan->last) plan->count++;
    plan->missing = plan->last ? 0 : rest;
}

/* Makes the record of a planned stitch, with addresses; it is not mapped. */
static gpupool_result gpi_stitch_new(const gpi_ask *ask, const gpi_plan *plan, gpi_stitch **out) {
    const gpi_chunks *chunks = &ask->arena->chunks;
    gpi_stitch **link = &ask->arena->stitches.bins[gpi_stitch_bin(ask->units)], *stitch;
    gpi_buddy *buddy = &ask->arena->buddy;
    uint64_t mapped = 0, i;
    *out = stitch =
        (gpi_stitch *)gpi_system_zeroed(sizeof *stitch + plan->count * sizeof *stitch->pieces);
    if (!stitch || !gpi_region_ensure(&buddy->region, (2 * plan->count + 2) * sizeof(gpi_run))) {
        GPUPOOL_FREE(stitch);
        return gpi_system_no_memory();
    }
    stitch->pieces = (gpi_range *)(stitch + 1);
    for (i = 0; i <= chunks->count; i++) { /* the last piece comes last */
        const gpi_chunk *chunk = i < chunks->count ? chunks->all[i] : plan->last;
        if (!chunk || (!chunk->is_chosen && i < chunks->count)) continue;
        stitch->pieces[stitch->count].unit = chunk->unit;
        stitch->pieces[stitch->count++].units = gpi_min(chunk->units, ask->units - mapped);
        mapped += chunk->units;
    }
    stitch->body = gpi_buddy_get(buddy, &buddy->space, mapped, gpi_max(ask->alignment, GPI_PAGE));
    if (!stitch->body) {
        GPUPOOL_FREE(stitch);
        return GPUPOOL_E_OUT_OF_MEMORY; /* no addresses are left */
    }
    stitch->body->stitch = stitch->range.stitch = stitch;
    stitch->body->state = GPI_IDLE;
    stitch->units = ask->units;
    stitch->range.unit = stitch->body->unit;
    stitch->range.units = mapped;
    stitch->range.is_away = 1;
    while (*link) link = &(*link)->next;
    *link = stitch;
    ask->arena->stats.stitches++;
    ask->arena->stitches.idle_pieces += stitch->count;
    return GPUPOOL_OK;
}

/* Makes a stitched block of at most so many pieces, or grows by what it lacks. *run: the block;
   NULL after OK: memory was added, and the steps begin anew. */
static gpupool_result gpi_stitch_make(gpi_ask *ask, uint64_t most, gpi_run **run) {
    gpupool_arena *arena = ask->arena;
    uint64_t *credit = &arena->stitches.credit;
    gpupool_result result;
    gpi_stitch *stitch;
    gpi_plan plan;
    gpi_stitch_plan(ask, &plan);
    if (plan.missing == ask->units || plan.count + (plan.missing > 0) > most)
        return GPUPOOL_E_OUT_OF_MEMORY;
    if (plan.missing) return gpi_chunk_grow(ask, plan.missing);
    result = gpi_stitch_new(ask, &plan, &stitch);
    if (result != GPUPOOL_OK) return result;
    result = gpi_chunk_come(arena, &stitch->range);
    if (result != GPUPOOL_OK) {
        gpi_stitch_unmap(arena, stitch);
        return result;
    }
    arena->stats.stitched++;
    *credit = gpi_less(*credit, gpi_stitch_price(arena, stitch->count));
    result = gpi_stitch_take(ask, stitch);
    if (result == GPUPOOL_OK) *run = stitch->body;
    gpi_stitch_bound(arena);
    return result;
}
/* == LADDER =======================================================================================
   The steps that find memory for a request, cheapest first, in one loop: a step that changes
   something begins them anew, so a request fails only if the identical next call would fail.

       free memory of the stream, and finished memory; an idle stitch     no CUDA call
       ask the marks under way; if none has passed while memory is short,
       the next requests first take other streams' marked memory          queries
       a stitch within the mapping budget, which grows what it lacks      maps
       grow                                                               maps
       -- memory is short --
       flush all caches, and mark the own stream
       other streams' marked memory, behind waits on the device; a stitch whatever it costs
       give idle chunks back, and grow
       wait on the host for a mark, or for the device; for what other threads give back (O10)
       on_out_of_memory, once

   A step that lacks memory says only E_OUT_OF_MEMORY: the message is the verdict's, and to write
   one in each step would cost more than the step.

   Here is also where a freed block goes, since a wait frees blocks that waited for other streams.
   What frees memory for others:

       in the list of a stream   a mark of it that passes; a wait on the device for one that has not
                                 passed; without a mark (not each free leaves one) the device's wait
       WAITING for its uses      the marks of all their streams; with one use left it is that
                                 stream's, as if freed there
       in the list of ALL        the device's wait alone (O9)
       a graph's                 its release

   Read first: gpi_ladder_climb, gpi_ladder_settle, gpi_ladder_poll. */

enum {
    GPI_FREED_LEAST = 16 << 20, /* bytes of cudaFree's that a request waits for */
    GPI_QUIET = 16,             /* frees for which marks that have not passed are not asked again */
    GPI_SHORT = 1024            /* frees for which memory counts as short, and each is marked */
};

/* -- a freed block finds its place -- */

/* The block is TAKEN, in no index, and has no use any more but by the stream that frees it. For
   sources without a pool the lock opens: cuMemFree waits for the device itself. */
static void gpi_ladder_put(gpupool_arena *arena, gpi_run *run, gpi_stream *s, uint64_t at) {
    if (!s->key && s->kind == GPI_ORDINARY && at > gpi_stream_marked(arena, s)) { /* it has ended */
        s = &arena->streams.all;
        at = gpi_stream_issue(arena, s);
    }
    if (run->stitch) gpi_stitch_put(arena, run->stitch, s, at);
    else if (arena->chunks.source->flags & GPI_ALONE && s->kind != GPI_GRAPH) {
        run = gpi_buddy_put(&arena->buddy, run, GPI_FREE, &arena->buddy.any, 0);
        gpi_stitch_give_back(arena, gpi_buddy_chunk(&arena->buddy, run->unit));
    } else gpi_stream_put(arena, run, s, at);
}

/* Where a TAKEN block goes that a stream or a scope has freed: while other streams or a graph use
   it, it waits. */
static void gpi_ladder_settle(gpupool_arena *arena, gpi_run *run, gpi_stream *s) {
    gpi_stream *graph;
    if (gpi_stream_drop_uses(arena, run, s)) { /* its own earlier uses are in its order */
        gpi_ladder_put(arena, run, s, gpi_stream_issue(arena, s));
        return;
    }
    if (s->kind != GPI_NONE) {
        gpi_stream_add_use(arena, run, s, gpi_stream_issue(arena, s));
        gpi_stream_freshen(arena, s, gpi_block_units(run));
    }
    graph = gpi_stream_graph_of(run);
    gpi_stream_wait_for_uses(arena, run, graph ? &graph->owned : &arena->streams.waiting);
}

/* -- what has finished -- */

/* Asks the marks under way, and moves what has finished to list ANY. What only one stream still
   uses is free memory of that stream. Returns whether there is more. */
static int gpi_ladder_poll(gpupool_arena *arena) {
    gpi_streams *streams = &arena->streams;
    uint64_t before = arena->buddy.any.units;
    gpi_run *run, *next;
    int has_moved = 0;
    gpi_stream_poll(arena);
    if (streams->asked == streams->progress) return 0;
    streams->asked = streams->progress;
    for (run = streams->waiting; run; run = next) {
        const gpi_use *use;
        gpi_stream *s = &streams->none;
        uint64_t at = 0;
        next = run->next;
        gpi_stream_drop_uses(arena, run, NULL);
        use = run->of.uses;
        if (use && (use->next || use->stream->kind != GPI_ORDINARY)) continue;
        if (use) {
            s = use->stream;
            at = use->at;
        }
        gpi_stream_stop_waiting(arena, run, &streams->waiting);
        gpi_stream_drop_uses(arena, run, s);
        gpi_ladder_put(arena, run, s, at);
        has_moved = 1;
    }
    return has_moved || arena->buddy.any.units != before;
}

/* The stream whose mark to wait for, among frees up to `began`: the request's own, else the one
   with the earliest mark; ALL stands for the device. NULL: no wait would help. A stream counts,
   too, if all that its work still uses are WAITING blocks. */
static gpi_stream *gpi_ladder_choose_wait(const gpi_ask *ask, uint64_t began) {
    gpi_streams *streams = &ask->arena->streams;
    gpi_stream *s, *best = NULL;
    for (s = streams->all_streams; s; s = s->next) {
        uint64_t done = gpi_stream_done(ask->arena, s);
        int is_marked = gpi_stream_marked(ask->arena, s) > done;
        if (gpi_min(s->issued, began) <= done || (!s->list.units && !streams->waiting)) continue;
        if (is_marked && s == ask->owner) return s;
        if (!best) best = &streams->all;
        if (is_marked && (best == &streams->all || s->mark_at < best->mark_at)) best = s;
    }
    return best;
}

/* Waits on the host for a stream's mark, or for the device (ALL), with the lock open. O1: it passes
   what was issued before. */
static gpupool_result gpi_ladder_wait(gpupool_arena *arena, gpi_stream *s) {
    gpi_streams *streams = &arena->streams;
    int is_device = s == &streams->all;
    uint64_t at = is_device ? streams->position : s->mark_at;
    CUevent event = s->event;
    gpupool_result result;
    GPI_VISIT(&arena->driver, NULL);
    s->users++;
    gpi_arena_open(arena);
    result =
        is_device ? gpi_driver_wait(&arena->driver) : GPI_TELL(&arena->driver, event_sync, event);
    gpi_arena_close(arena);
    s->users--;
    arena->stats.host_waits++;
    if (result == GPUPOOL_E_CUDA) return gpi_arena_break(arena); /* O11 */
    if (result != GPUPOOL_OK) return result;
    gpi_stream_pass(arena, is_device ? NULL : s, at);
    gpi_ladder_poll(arena);
    return GPUPOOL_OK;
}

/* -- idle chunks go back -- */

/* Gives idle chunks back, the smallest first, until at most `keep` bytes are reserved. The lock
   opens between two chunks. */
static gpupool_result gpi_ladder_trim(gpupool_arena *arena, uint64_t keep) {
    gpi_chunks *chunks = &arena->chunks;
    gpupool_result result = GPUPOOL_OK;
    uint64_t i = chunks->count;
    while (i-- && chunks->reserved.now + chunks->asleep > keep && result == GPUPOOL_OK) {
        if (i >= chunks->count || !gpi_chunk_is_idle(arena, chunks->all[i])) continue;
        if (!gpi_region_ensure(&arena->buddy.region, 1 << 12)) return gpi_system_no_memory();
        result = gpi_stitch_give_back(arena, chunks->all[i]);
        gpi_arena_pass(arena);
    }
    return result;
}

/* Gives back as many idle chunks as the growth lacks, and grows. All of them could go: what must
   stay is reserved - idle. (gpi_ladder_extend makes room for a block with a chunk of its own before
   memory is short, if the request may wait.) */
static gpupool_result gpi_ladder_exchange(const gpi_ask *ask) {
    gpupool_arena *arena = ask->arena;
    const gpi_chunks *chunks = &arena->chunks;
    uint64_t page = chunks->source->flags & GPI_MAPS ? GPI_GRANULE : 1;
    uint64_t need = gpi_up(ask->need, page) * GPI_UNIT, room = INT64_MAX, idle = 0, keep, i;
    gpupool_result result = GPUPOOL_E_OUT_OF_MEMORY;
    for (i = 0; i < chunks->count; i++)
        if (gpi_chunk_is_idle(arena, chunks->all[i])) idle += chunks->all[i]->units * GPI_UNIT;
    if (idle && chunks->source->flags & GPI_ON_DEVICE) room = gpi_driver_free_bytes(&arena->driver);
    if (!idle || need > room + idle || chunks->reserved.now - idle + need > chunks->limit)
        return GPUPOOL_E_OUT_OF_MEMORY;
    keep = gpi_less(chunks->reserved.now, gpi_less(need, room));
    keep = gpi_min(keep, chunks->limit - need);
    for (i = 0; i < 2 && result == GPUPOOL_E_OUT_OF_MEMORY; i++) {
        result = gpi_ladder_trim(arena, i ? 0 : keep); /* if others have taken it: all idle ones */
        if (result == GPUPOOL_OK) result = gpi_chunk_grow(ask, ask->need);
    }
    return result;
}

/* -- the steps -- */

/* A chunk of the exact size, all of it (GPUPOOL_OWN_CHUNK, and sources without a pool). */
static gpi_run *gpi_ladder_take_chunk(gpi_ask *ask) {
    gpi_buddy *buddy = &ask->arena->buddy;
    const gpi_chunks *chunks = &ask->arena->chunks;
    uint64_t i;
    for (i = 0; i < chunks->count; i++) {
        const gpi_chunk *chunk = chunks->all[i];
        gpi_run *run = gpi_buddy_at(buddy, chunk->unit);
        if (chunk->units != ask->units || !gpi_ask_can_use(ask, run) ||
            run->unit + run->units < chunk->unit + chunk->units ||
            (uintptr_t)chunk->memory % ask->alignment)
            continue;
        gpi_stream_note_taken(ask->arena, run, ask->takes_own ? ask->owner : NULL);
        return gpi_buddy_take(buddy, run, chunk->unit, chunk->units);
    }
    return NULL;
}

/* Free memory at hand: without a CUDA call. O5: takes_own is 0 where only finished memory may go
   out. */
static gpi_run *gpi_ladder_take_free(gpi_ask *ask, int tries) {
    gpi_buddy *buddy = &ask->arena->buddy;
    gpi_list *any = &buddy->any, *first = ask->takes_own ? &ask->owner->list : any;
    gpi_search search = {
        {first, first == any ? NULL : any}, ask->units, ask->alignment, UINT64_MAX, tries};
    gpi_run *run;
    if (ask->is_own_chunk) return gpi_ladder_take_chunk(ask);
    run = gpi_buddy_find(buddy, &search);
    if (!run) return gpi_stitch_reuse(ask);
    gpi_stream_note_taken(ask->arena, run, ask->takes_own ? ask->owner : NULL);
    return gpi_buddy_take(buddy, run, gpi_buddy_start(buddy, run, ask->alignment), ask->units);
}

static int gpi_ladder_may_take_others(const gpi_ask *ask) {
    return ask->takes_own && ask->owner->kind == GPI_ORDINARY && !ask->is_own_chunk;
}

/* A run of another stream, behind a wait on the device. What no mark covers resets how rarely marks
   are recorded: somebody wants them. */
static gpi_run *gpi_ladder_take_others(gpi_ask *ask) {
    gpupool_arena *arena = ask->arena;
    gpi_buddy *buddy = &arena->buddy;
    gpi_search search = {{NULL, NULL}, ask->units, ask->alignment, 0, INT32_MAX};
    gpi_stream *s = arena->streams.all_streams;
    gpi_run *run;
    for (; s; s = s->next) {
        if (s == ask->owner || s->kind != GPI_ORDINARY || s->list.units < ask->units) continue;
        if (s->issued > gpi_stream_marked(arena, s)) gpi_stream_want_marks(arena);
        if (!s->event) continue;
        search.lists[0] = &s->list;
        search.below = gpi_stream_marked(arena, s) + 1;
        run = gpi_buddy_find(buddy, &search);
        if (!run) continue;
        run = gpi_buddy_take(buddy, run, gpi_buddy_start(buddy, run, ask->alignment), ask->units);
        run->next = NULL;
        if (gpi_hand_follow(ask, run) == GPUPOOL_OK) return run;
        gpi_hand_put_back(arena, run);
        return NULL;
    }
    return NULL;
}

/* A WAITING block of the request's size or more becomes free memory of the owner, behind waits for
   all its uses. (With one use left gpi_ladder_poll has made it that stream's memory.) O3: its
   position is issued after the last wait. Returns whether one did. */
static int gpi_ladder_adopt_waiting(gpi_ask *ask) {
    gpupool_arena *arena = ask->arena;
    gpi_run *run = arena->streams.waiting;
    gpi_use *use;
    for (; run; run = run->next) {
        if (gpi_block_units(run) < ask->units) continue;
        for (use = run->of.uses; use; use = use->next)
            if (use->at > gpi_stream_marked(arena, use->stream)) break;
        if (!use) break;
        gpi_stream_want_marks(arena);
    }
    if (!run) return 0;
    gpi_stream_stop_waiting(arena, run, &arena->streams.waiting);
    for (use = run->of.uses; use; use = use->next) {
        if (use->stream == ask->owner || use->at <= gpi_stream_done(arena, use->stream)) continue;
        if (gpi_stream_follow(arena, use->stream, ask->owner, ask->handle) == GPUPOOL_OK) continue;
        gpi_stream_wait_for_uses(arena, run, &arena->streams.waiting);
        return 0;
    }
    while (run->of.uses) gpi_stream_drop_uses(arena, run, run->of.uses->stream);
    gpi_ladder_put(arena, run, ask->owner, gpi_stream_issue(arena, ask->owner));
    return 1;
}

/* The arena maps or grows though another stream has freed memory, which no mark covers. */
static void gpi_ladder_note_unmarked(const gpi_ask *ask) {
    gpupool_arena *arena = ask->arena;
    const gpi_stream *s = arena->streams.all_streams;
    for (; s; s = s->next)
        if (s != ask->owner && s->kind == GPI_ORDINARY && s->list.units &&
            s->issued > gpi_stream_marked(arena, s))
            gpi_stream_want_marks(arena);
}

/* A stitch within the budget, or growth. *run stays NULL after OK: memory was added. A chunk of one
   block takes the place of idle ones, since chunks of sizes that never come again would stay. */
static gpupool_result gpi_ladder_extend(gpi_ask *ask, gpi_run **run) {
    gpupool_arena *arena = ask->arena;
    uint64_t most = ask->can_stitch ? gpi_stitch_affords(arena) : 0;
    gpupool_result result = GPUPOOL_E_OUT_OF_MEMORY;
    gpi_ladder_note_unmarked(ask);
    if (most >= 2) result = gpi_stitch_make(ask, most, run);
    if (result != GPUPOOL_E_OUT_OF_MEMORY) return result;
    result = GPUPOOL_OK;
    if (ask->is_own_chunk && !(ask->request->flags & GPUPOOL_NO_WAIT))
        result =
            gpi_ladder_trim(arena, gpi_less(arena->chunks.reserved.now, ask->units * GPI_UNIT));
    return result == GPUPOOL_OK ? gpi_chunk_grow(ask, ask->need) : result;
}

/* The host waits: for work, or for memory that another thread gives back or grows by (O10). */
static gpupool_result gpi_ladder_wait_for(gpi_ask *ask, uint64_t began) {
    gpupool_arena *arena = ask->arena;
    int returned = arena->chunks.returned;
    gpi_stream *s;
    if (ask->request->flags & GPUPOOL_NO_WAIT) return GPUPOOL_E_OUT_OF_MEMORY;
    s = gpi_ladder_choose_wait(ask, began);
    if (s) return gpi_ladder_wait(arena, s);
    if (!arena->chunks.returning && !arena->chunks.coming) return GPUPOOL_E_OUT_OF_MEMORY;
    gpi_arena_open(arena);
    gpi_system_sleep_on(&arena->chunks.returned, returned);
    gpi_arena_close(arena);
    return GPUPOOL_OK;
}

/* Memory is short: whatever helps, the cheapest first. OK: *run is the block, or begin anew. */
static gpupool_result gpi_ladder_squeeze(gpi_ask *ask, uint64_t began, gpi_run **run) {
    gpupool_result result;
    ask->takes_others = gpi_ladder_may_take_others(ask);
    if (ask->takes_others) {
        *run = gpi_ladder_take_others(ask);
        if (!*run) *run = gpi_stitch_reuse(ask);
        if (*run || gpi_ladder_adopt_waiting(ask)) return GPUPOOL_OK;
    }
    if (ask->can_stitch) {
        result = gpi_stitch_make(ask, UINT64_MAX, run);
        if (result != GPUPOOL_E_OUT_OF_MEMORY) return result;
    }
    result = gpi_ladder_exchange(ask);
    return result == GPUPOOL_E_OUT_OF_MEMORY ? gpi_ladder_wait_for(ask, began) : result;
}

/* O9: ALL's memory passes by a wait for the device: cudaFree's, and what streams left that ended
   untold. A request waits once for 1/16 of what is reserved and 16 MiB, or for as much as it needs
   if that must be finished memory, before it maps: never worse than CUDA's own cudaFree, which
   waits each time. */
static int gpi_ladder_wants_freed(const gpi_ask *ask) {
    gpupool_arena *arena = ask->arena;
    uint64_t units;
    gpi_stream_retire_ended(arena);
    units = arena->streams.all.list.units;
    if (!units || ask->owner->kind == GPI_GRAPH || ask->request->flags & GPUPOOL_NO_WAIT) return 0;
    return units >= gpi_max(arena->chunks.reserved.now / 16, GPI_FREED_LEAST) / GPI_UNIT ||
           (ask->owner->kind == GPI_NONE && units >= ask->units);
}

/* What no step below helps: a stream that captures, and a request for more than the limit or the
   device (or what is reserved above a lowered limit): nobody waits for it, and memory is not short
   for others. Live blocks do not count: a queued host function may free them. */
static gpupool_result gpi_ladder_refuses(const gpi_ask *ask) {
    gpupool_arena *arena = ask->arena;
    uint64_t most = gpi_max(arena->chunks.limit, arena->chunks.reserved.now);
    if (ask->owner->kind == GPI_ORDINARY && gpi_driver_is_capturing(&arena->driver, ask->handle))
        return gpi_driver_capturing();
    if (arena->chunks.source->flags & GPI_ON_DEVICE)
        most = gpi_min(most, arena->driver.total_bytes);
    return ask->units * GPI_UNIT > most ? GPUPOOL_E_OUT_OF_MEMORY : GPUPOOL_OK;
}

/* Gets the request's memory. The lock opens; what a failure leaves is only free memory. */
static gpupool_result gpi_ladder_climb(gpi_ask *ask, gpi_run **run) {
    gpupool_arena *arena = ask->arena;
    uint64_t began = 0, quiet_until = arena->streams.quiet_until;
    int has_waited = 0, is_short;
    gpupool_result result;
    for (;;) {
        result = gpi_arena_ready(arena);
        if (result != GPUPOOL_OK) return result;
        ask->takes_others = 0;
        *run = gpi_ladder_take_free(ask, GPI_TRIES_SLOW);
        if (*run) return GPUPOOL_OK;
        if (arena->streams.position < quiet_until && gpi_ladder_may_take_others(ask)) {
            *run = gpi_ladder_take_others(ask);
            if (*run) return GPUPOOL_OK;
            quiet_until = 0; /* the lock may have been open */
            continue;
        }
        is_short = arena->streams.position < arena->short_until;
        if (gpi_ladder_poll(arena)) {
            if (is_short && ask->need * GPI_UNIT > gpi_chunk_room(&arena->chunks))
                GPI_SET(&arena->short_until, arena->streams.position + GPI_SHORT);
            continue; /* without the marks the host would have had to wait: they go on */
        }
        if (is_short) arena->streams.quiet_until = arena->streams.position + GPI_QUIET;
        result = gpi_ladder_refuses(ask);
        if (result != GPUPOOL_OK) return result;
        if (!has_waited && gpi_ladder_wants_freed(ask)) {
            has_waited = 1;
            result = gpi_ladder_wait(arena, &arena->streams.all);
            if (result != GPUPOOL_OK) return result;
            continue;
        }
        result = gpi_ladder_extend(ask, run);
        if (result == GPUPOOL_E_OUT_OF_MEMORY) {
            GPI_SET(&arena->short_until, arena->streams.position + GPI_SHORT);
            if (!began) {
                gpi_stream_flush_all(arena, 0);
                gpi_stream_mark(arena, ask->owner, ask->handle);
                began = arena->streams.position + 1;
                result = gpi_arena_ready(arena); /* the lock was open (O8) */
                if (result == GPUPOOL_OK) *run = gpi_ladder_take_free(ask, GPI_TRIES_SLOW);
                if (result != GPUPOOL_OK || *run) return result;
            }
            result = gpi_ladder_squeeze(ask, began, run);
        }
        if (result != GPUPOOL_OK || *run) return result;
    }
}
/* == SIBLING ======================================================================================
   The other arenas of the process on the same device. Before a request fails because the device is
   full, their idle chunks go back to the driver.

   SI1  O13: no arena's lock is held while another's is taken, and that one is only tried: a sibling
        that is busy all the time keeps what it has. on_unmap may come from any arena's thread.

   Read first: gpi_sibling_help. */

static gpupool_arena *gpi_life_visit(gpupool_arena *left); /* LIFE */

/* Returns so many bytes of a sibling's idle chunks to the driver, and says how many it were. If the
   request may wait, what is pending becomes idle by a wait for the device. */
static uint64_t gpi_sibling_give(gpupool_arena *sibling, uint64_t need, unsigned flags) {
    uint64_t before, got, keep;
    int tries = 4096;
    for (; tries && !gpi_system_try(&sibling->lock); tries--) GPI_PAUSE();
    if (!tries) return 0;
    before = sibling->chunks.reserved.now;
    keep = gpi_less(before, need);
    if (gpi_arena_ready(sibling) == GPUPOOL_OK && sibling->chunks.source->flags & GPI_ON_DEVICE) {
        gpi_stream_flush_all(sibling, 0);
        gpi_ladder_poll(sibling);
        gpi_ladder_trim(sibling, keep);
        if (sibling->chunks.reserved.now > keep && sibling->buddy.pending.now &&
            !(flags & GPUPOOL_NO_WAIT) &&
            gpi_ladder_wait(sibling, &sibling->streams.all) == GPUPOOL_OK)
            gpi_ladder_trim(sibling, keep);
    }
    got = gpi_less(before, sibling->chunks.reserved.now);
    gpi_system_unlock(&sibling->lock);
    return got;
}

/* Asks the siblings for what device and arena lack of so many bytes, a granule at least, since they
   had too few. The arena's lock opens. Returns what they gave. */
static uint64_t gpi_sibling_help(gpupool_arena *arena, uint64_t need, unsigned flags) {
    gpupool_arena *other = NULL;
    uint64_t got = 0;
    need = gpi_less(need, arena->buddy.any.units * GPI_UNIT);
    gpi_arena_open(arena);
    need = gpi_max(gpi_less(need, gpi_driver_free_bytes(&arena->driver)), GPI_GRANULE * GPI_UNIT);
    while ((other = gpi_life_visit(other)) != NULL)
        if (other != arena && other->config.device == arena->config.device && got < need)
            got += gpi_sibling_give(other, need - got, flags);
    gpi_arena_close(arena);
    return got;
}

/* For a request that found no memory, though its arena's limit has room: whether it may find some
   now. */
static int gpi_sibling_helps(const gpi_ask *ask) {
    gpupool_arena *arena = ask->arena;
    uint64_t need = gpi_up(ask->need, GPI_GRANULE) * GPI_UNIT;
    uint64_t room = gpi_min(gpi_chunk_room(&arena->chunks), arena->driver.total_bytes);
    return arena->chunks.source->flags & GPI_ON_DEVICE && need <= room &&
           gpi_sibling_help(arena, need, ask->request->flags) > 0;
}

/* == VERDICT ======================================================================================
   Why memory ran out, and how much could be had. A survey adds up the free memory that a request
   could take, and comparing its sums gives the cause.

       reserved:  [ live ][ free, at hand ][ pending: after waits ][ kept: after graphs ]   room
       MAPPED:    largest = the longest free run; or all chunks that are wholly free, and with them
                  what a growth can add or the free start of one chunk more

   V1  A request for survey.largest succeeds, as long as no other thread takes memory.
   V2  With the limit raised by `missing` the identical request succeeds, if the source has so much.
   V3  Freeing blocks of less than `to_free` bytes does not make it succeed.

   Read first: gpi_survey_make, gpi_verdict_make, gpi_verdict_say. */

typedef struct gpi_survey { /* in bytes */
    uint64_t free, longest; /* all that the request could take; the longest run of it */
    uint64_t whole;         /* chunks that are all free: for a stitch, or to go back */
    uint64_t room, largest; /* what a growth can add; a request for so much succeeds */
} gpi_survey;

/* What a growth can add after `back` bytes went back to the source: nothing, if it doesn't tell. */
static uint64_t gpi_survey_room(const gpupool_arena *arena, uint64_t back, uint64_t device_free) {
    const gpi_chunks *chunks = &arena->chunks;
    uint64_t room = gpi_down(device_free + back, GPI_PAGE);
    if (!(chunks->source->flags & GPI_ON_DEVICE)) return 0;
    if (chunks->limit < UINT64_MAX - back)
        room = gpi_min(room, gpi_less(chunks->limit + back, chunks->reserved.now));
    return gpi_down(room, chunks->source->flags & GPI_MAPS || back ? GPI_PAGE : GPI_UNIT);
}

/* The run behind this one. There may be millions, and other threads do not wait for all of them:
   behind one record of 256, some 5 us, they have the lock first. So sums over runs are of no one
   moment, and what was read before the walk may have changed. */
static const gpi_run *gpi_survey_next(gpupool_arena *arena, const gpi_run *run) {
    uint64_t unit = run->unit + run->units;
    if ((uintptr_t)run / sizeof *run % 256 || !run->right) return run->right;
    gpi_arena_pass(arena);
    return gpi_buddy_at(&arena->buddy, unit);
}

/* What the request could take, and with takes_pending after waits. A stitch takes the whole chunks,
   and with them a growth or the start of one chunk more; other sources get a new chunk in place of
   them. */
static void gpi_survey_make(gpi_ask ask, uint64_t device_free, gpi_survey *survey) {
    const gpi_buddy *buddy = &ask.arena->buddy;
    const gpi_chunks *chunks = &ask.arena->chunks;
    const gpi_run *run = gpi_buddy_at(buddy, 0);
    uint64_t more, i;
    gpi_plan plan;
    memset(survey, 0, sizeof *survey);
    for (; run; run = gpi_survey_next(ask.arena, run)) {
        if (!gpi_buddy_chunk(buddy, run->unit) || !gpi_ask_can_use(&ask, run)) continue;
        survey->free += run->units * GPI_UNIT;
        survey->longest = gpi_max(survey->longest, run->units * GPI_UNIT);
    }
    ask.units = (uint64_t)1 << 50; /* the plan of a block that needs all there is */
    if (!ask.can_stitch) ask.takes_own = ask.takes_others = 0; /* only idle chunks go back */
    gpi_stitch_plan(&ask, &plan);
    survey->whole = (ask.units - plan.missing) * GPI_UNIT;
    survey->room = more = gpi_survey_room(ask.arena, 0, device_free);
    for (i = 0; i < chunks->count && ask.can_stitch; i++)
        if (!chunks->all[i]->is_chosen) more = gpi_max(more, chunks->all[i]->usable * GPI_UNIT);
    if (ask.can_stitch) more += survey->whole;
    else if (survey->whole)
        more = gpi_max(more, gpi_survey_room(ask.arena, survey->whole, device_free));
    survey->largest = ask.is_own_chunk ? more : gpi_max(more, survey->longest);
}

/* The largest request for this stream. While it captures, it gets what is at hand (rule 3). */
static uint64_t gpi_verdict_available(gpi_ask *ask) {
    gpi_driver *driver = &ask->arena->driver;
    int captures = ask->owner->kind == GPI_ORDINARY && gpi_driver_is_capturing(driver, ask->handle);
    gpi_survey survey;
    ask->takes_pending = !captures;
    gpi_survey_make(*ask, gpi_driver_free_bytes(driver), &survey);
    return gpi_min(captures ? survey.longest : survey.largest, (uint64_t)1 << 46);
}

/* -- who has memory -- */

enum { GPI_HOLDERS = 128 };

typedef struct gpi_holder { /* blocks of a label; without one: with the same power of two above */
    const char *label;
    uint64_t size, blocks, bytes; /* size: the largest one's; with a label 0 */
} gpi_holder;

static int gpi_holder_order(const void *left, const void *right) {
    const gpi_holder *a = (const gpi_holder *)left, *b = (const gpi_holder *)right;
    return (a->bytes < b->bytes) - (a->bytes > b->bytes);
}

/* Adds up the live blocks; who has most comes first. The last one found is all who come later. */
static void gpi_holder_list(const gpupool_arena *arena, gpi_holder *list) {
    const gpi_run *run = gpi_buddy_at(&arena->buddy, 0);
    gpupool_block block;
    memset(list, 0, GPI_HOLDERS * sizeof *list);
    for (; run; run = run->right) {
        gpi_holder *holder = list, *last = list + GPI_HOLDERS - 1;
        uint64_t size = 0;
        if (!gpi_stream_describe(run, &block)) continue;
        if (!block.label) block.label = "";
        if (!*block.label) size = block.requested;
        while (holder < last && holder->blocks &&
               (gpi_high_bit(holder->size * 2 - 1) != gpi_high_bit(size * 2 - 1) ||
                strcmp(holder->label, block.label)))
            holder++;
        holder->label = holder == last ? "others" : block.label;
        holder->size = gpi_max(holder->size, size);
        holder->blocks++;
        holder->bytes += block.requested;
    }
    qsort(list, GPI_HOLDERS, sizeof *list, gpi_holder_order);
}

/* "3 blocks of model.c:88". Of the blocks that a verdict counts others may have freed all. */
static void gpi_holder_write(const gpi_holder *holder, char *to, size_t bytes) {
    char label[64];
    gpi_text_line(label, sizeof label, holder->blocks ? holder->label : "");
    snprintf(to, bytes, "%llu block%s of %s%s", (unsigned long long)holder->blocks,
             holder->blocks == 1 ? "" : "s", *label ? label : "up to ",
             *label ? "" : gpi_text_size(holder->size).text);
}

/* -- the cause, and what helps -- */

/* Appends to the sentence: a form with up to two sizes. */
static void gpi_verdict_add(gpupool_verdict *v, const char *form, uint64_t x, uint64_t y) {
    size_t used = strlen(v->sentence);
    snprintf(v->sentence + used, sizeof v->sentence - used, form, gpi_text_size(x).text,
             gpi_text_size(y).text);
}

/* Says what helps besides: a higher limit; free blocks, and whose; "ask for less" if nothing does.
 */
static void gpi_verdict_say_help(const gpupool_arena *arena, gpupool_verdict *v, int parts) {
    gpi_holder holders[GPI_HOLDERS];
    size_t used;
    if (v->device_missing) v->missing = 0;
    if (v->missing)
        gpi_verdict_add(v, parts++ ? ", or raise the limit by %s" : ": raise the limit by %s",
                        v->missing, 0);
    if (v->allocated && v->to_free <= v->allocated) {
        gpi_holder_list(arena, holders);
        gpi_verdict_add(v, parts++ ? ", or " : ": ", 0, 0);
        gpi_verdict_add(v, v->to_free ? "free at least %s" : "free some", v->to_free, 0);
        gpi_verdict_add(v, " of the %s that blocks hold, most in ", v->allocated, 0);
        used = strlen(v->sentence);
        gpi_holder_write(holders, v->sentence + used, sizeof v->sentence - used);
    }
    if (!parts) gpi_verdict_add(v, ": ask for less", 0, 0);
}

typedef struct gpi_clause {
    int holds;
    gpupool_cause cause;
    const char *why, *help; /* help: NULL, or with the sizes that device and limit lack */
    uint64_t x, y;
} gpi_clause;

/* The cause, what is said about it, and what helps against it: by the first clause that holds.
   `all` is what there is after waits. Returns whether something does. */
static int gpi_verdict_say(const gpi_ask *ask, const gpi_survey *all, gpupool_verdict *v) {
    uint64_t asked = ask->units * GPI_UNIT, total = v->device_total, lacks = v->device_missing;
    uint64_t most = all->free + all->room, left = gpi_less(v->limit, v->reserved);
    uint64_t others = gpi_less(total, v->device_free + v->reserved);
    int fits = asked <= v->largest, is_aligned = fits && ask->alignment > GPI_UNIT;
    int is_pending = !fits && asked <= all->largest;
    int is_of_others = others > v->reserved && asked <= total;
    int by_limit = v->missing && v->missing >= lacks;
    const gpi_clause clauses[] = {
        {is_aligned, GPUPOOL_CAUSE_FRAGMENTED,
         " at a multiple of %s: %s is free, but not at such an address",
         ": ask for a smaller alignment", ask->alignment, most},
        {is_pending, GPUPOOL_CAUSE_PENDING, " before work in flight has finished",
         ": let the request wait", 0, 0},
        {fits, is_of_others ? GPUPOOL_CAUSE_OTHERS : GPUPOOL_CAUSE_DEVICE_FULL,
         ", although the driver says that %s is free", NULL, v->device_free, 0},
        {asked <= most, GPUPOOL_CAUSE_FRAGMENTED,
         " in one piece: %s is free, but only %s of it side by side", NULL, most, v->largest},
        {ask->arena->captures && asked <= most + v->pending, GPUPOOL_CAUSE_PENDING,
         " in the %s that is free", ": release captures whose graphs are gone", most, 0},
        {by_limit && asked <= all->free + left, GPUPOOL_CAUSE_LIMIT,
         ": the limit of %s leaves %s, but memory comes in pages of 2 MiB", NULL, v->limit, left},
        {by_limit, GPUPOOL_CAUSE_LIMIT, " under the limit of %s, of which blocks hold %s", NULL,
         v->limit, v->allocated},
        {!(ask->arena->chunks.source->flags & GPI_ON_DEVICE), GPUPOOL_CAUSE_HOST,
         ": the arena's source gives no more", NULL, 0, 0},
        {!is_of_others, GPUPOOL_CAUSE_DEVICE_FULL,
         " on the device, of whose %s this arena's blocks hold %s", NULL, total, v->allocated},
        {1, GPUPOOL_CAUSE_OTHERS,
         " on the device: %s is missing, and others (arenas, libraries, processes, CUDA) hold %s",
         v->missing ? ": have others free %s and raise the limit by %s" : ": have others free %s",
         lacks, others}};
    const gpi_clause *clause = clauses;
    while (!clause->holds) clause++;
    v->cause = clause->cause;
    gpi_verdict_add(v, "%s does not fit", v->asked, 0);
    gpi_verdict_add(v, clause->why, clause->x, clause->y);
    if (v->pending && !is_pending)
        gpi_verdict_add(v, "; %s is pending, or kept by graphs", v->pending, 0);
    if (clause->help) gpi_verdict_add(v, clause->help, lacks, v->missing);
    return clause->help != NULL;
}

/* The figures of this moment. The lock is held. */
static void gpi_verdict_fill(gpupool_arena *arena, gpupool_verdict *v) {
    memset(v, 0, sizeof *v);
    gpi_stream_flush_all(arena, UINT64_MAX);
    v->limit = arena->chunks.limit == UINT64_MAX ? 0 : arena->chunks.limit;
    v->reserved = arena->chunks.reserved.now;
    v->allocated = arena->stats.allocated.now;
    v->pending = arena->buddy.pending.now;
    v->device_free = gpi_driver_free_bytes(&arena->driver);
    v->device_total = arena->driver.total_bytes;
}

/* Says why a request found no memory. The lock is held. */
static void gpi_verdict_make(const gpi_ask *ask, gpupool_verdict *v) {
    gpupool_arena *arena = ask->arena;
    const gpi_chunks *chunks = &arena->chunks;
    uint64_t asked = ask->units * GPI_UNIT, needs = gpi_up(ask->need * GPI_UNIT, GPI_PAGE), most;
    gpi_ask later = *ask;
    gpi_survey all, now;
    gpi_verdict_fill(arena, v);
    v->asked = ask->request->bytes;
    later.takes_pending = 1;
    gpi_survey_make(later, v->device_free, &all);
    now = all;
    if (ask->request->flags & GPUPOOL_NO_WAIT) gpi_survey_make(*ask, v->device_free, &now);
    v->largest = now.largest;
    most = now.free + now.room + (arena->buddy.is_apart ? GPI_PAGE : 0); /* rounding */
    /* for a growth that would do, in place of whole chunks that go back, or with them in a stitch;
       but for that a larger alignment may find no addresses */
    if (ask->alignment > GPI_PAGE && ask->can_stitch) now.whole = 0;
    v->missing = gpi_less(gpi_less(v->reserved, now.whole) + needs, chunks->limit);
    if (chunks->source->flags & GPI_ON_DEVICE) {
        v->device_missing = gpi_less(needs, v->device_free + now.whole);
        v->to_free = gpi_less(asked, most);
    }
    gpi_verdict_say_help(arena, v, gpi_verdict_say(ask, &all, v));
}
static void gpi_report_event(gpupool_arena *arena, const char *event, const char *sentence);
static void gpi_report_open(void); /* both: REPORT */

/* == ALLOC ========================================================================================
   Blocks are allocated and freed. A small block goes out and comes back by its stream's cache, with
   only the stream's lock. All else takes the arena's lock, and climbs the ladder.

   O7   begin_capture sets a stream's scope under the stream's lock, where both fast paths ask it.
   O14  The mailbox has blocks that host functions freed. Whoever takes the arena's lock to
        allocate, free or report empties it. Until then `attention` keeps others from the fast
        paths, so that no peak is lost.
   O15  A block's `cache` is published last. Whoever finds the block without the arena's lock
        believes what it says only under that cache's lock.

   Read first: gpi_alloc_cached, gpi_alloc_slow, gpi_free_cached, gpi_free_slow. */

#ifndef GPUPOOL_CHECK
#define GPUPOOL_CHECK 0
#endif
static inline void gpi_alloc_check(gpupool_arena *arena) {
    if (!GPUPOOL_CHECK || gpupool_check(arena) == GPUPOOL_OK) return;
    fprintf(stderr, "gpupool: %s\n", gpupool_last_error());
    abort();
}

/* -- what the program names -- */

static gpupool_result gpi_alloc_enter(const gpupool_arena *arena) {
    if (arena && arena->magic == GPI_MAGIC) return GPUPOOL_OK;
    if (gpi_system_is_forked())
        return gpi_system_fail(GPUPOOL_E_FORKED, "this process is a forked child: CUDA's context, "
                                                 "arenas and rings are its parent's");
    return gpi_system_fail(GPUPOOL_E_ARGUMENT, "arena: %s",
                           arena ? "it was destroyed, or never created" : "it is NULL");
}

/* The run of home memory or of a stitch that an address is in; NULL: none. */
static gpi_run *gpi_alloc_around(const gpupool_arena *arena, uint64_t address) {
    const gpi_buddy *buddy = &arena->buddy;
    uint64_t at = address - buddy->base, i;
    gpi_run *run = NULL;
    if (!buddy->is_apart && at / GPI_PAGE < buddy->granules)
        run = gpi_buddy_at(buddy, at / GPI_UNIT);
    for (i = 0; i < arena->chunks.count && buddy->is_apart; i++) {
        const gpi_chunk *chunk = arena->chunks.all[i];
        at = address - (uint64_t)(uintptr_t)chunk->memory;
        if (at / GPI_UNIT < chunk->units) run = gpi_buddy_at(buddy, chunk->unit + at / GPI_UNIT);
    }
    return run && run->state != GPI_EMPTY && run->state != GPI_SPACE ? run : NULL;
}

/* Finds the live block at an address. E_INSIDE: *run is the one around it. */
static gpupool_result gpi_alloc_find(gpupool_arena *arena, const void *memory, gpi_run **run) {
    uint64_t address = (uint64_t)(uintptr_t)memory;
    gpupool_block block;
    *run = gpi_buddy_lookup(&arena->buddy, address, INT32_MAX);
    if (!*run) *run = gpi_alloc_around(arena, address);
    if (!*run)
        return gpi_system_fail(GPUPOOL_E_NOT_OURS, "block: %p is in no memory of this arena",
                               memory);
    if (!gpi_stream_describe(*run, &block))
        return gpi_system_fail(GPUPOOL_E_DOUBLE_FREE, "block: the memory at %p is free already",
                               memory);
    if (block.memory == memory) return GPUPOOL_OK;
    return gpi_system_fail(GPUPOOL_E_INSIDE,
                           "block: %p is inside the block at %p, not at its start", memory,
                           block.memory);
}

/* -- blocks end -- */

/* Finds a live block and keeps its cache from taking it back. */
static gpupool_result gpi_alloc_claim(gpupool_arena *arena, const void *block, gpi_run **run) {
    gpupool_result result;
    do result = gpi_alloc_find(arena, block, run);
    while (result == GPUPOOL_OK && (*run)->state == GPI_OUT && !gpi_stream_recall(arena, *run));
    return result;
}

/* Ends a live block, for a stream or a scope. */
static gpupool_result gpi_alloc_end(gpupool_arena *arena, void *block, gpi_stream *s) {
    gpi_stream *graph;
    gpi_run *run;
    gpupool_result result = gpi_alloc_claim(arena, block, &run);
    int64_t bytes;
    if (result != GPUPOOL_OK) return result;
    bytes = (int64_t)(gpi_block_units(run) * GPI_UNIT);
    gpi_buddy_unindex(&arena->buddy, run);
    gpi_counter_move(&arena->stats.allocated, -bytes);
    gpi_counter_move(&arena->stats.requested, (int64_t)run->slack - bytes);
    arena->stats.frees++;
    run->state = GPI_TAKEN;
    if (run->units >= GPI_GRANULE && !run->stitch)
        gpi_buddy_chunk(&arena->buddy, run->unit)->is_exported = 0;
    graph = gpi_stream_graph_of(run);
    if (graph) gpi_run_unlink(&graph->owned, run);
    gpi_ladder_settle(arena, run, s);
    return GPUPOOL_OK;
}

static void gpi_alloc_empty_mail(gpupool_arena *arena) {
    gpi_mail *mail, *next;
    if (!GPI_LOOK(&arena->mail)) return;
    GPI_PUBLISH(&arena->attention, *arena->broken || arena->sleep);
    mail = __atomic_exchange_n(&arena->mail, (gpi_mail *)NULL, __ATOMIC_ACQ_REL);
    gpi_stream_flush_all(arena, UINT64_MAX);
    for (; mail; mail = next) {
        next = mail->next;
        if (gpi_alloc_end(arena, mail->block, &arena->streams.none) != GPUPOOL_OK)
            arena->stats.failures++;
        GPUPOOL_FREE(mail);
    }
}

/* What calls that name a stream begin with: the lock is held after it, whatever the result. */
static gpupool_result gpi_alloc_begin(gpupool_arena *arena, cudaStream_t stream, gpi_stream **s) {
    gpi_system_lock(&arena->lock);
    gpi_alloc_empty_mail(arena);
    if (!gpi_region_ensure(&arena->buddy.region, 1 << 15)) return gpi_system_no_memory();
    return gpi_stream_get(arena, stream, s);
}

/* What other calls begin and end with. After E_OK the lock is held. `out` is what the call's
   argument `name` points to. */
static gpupool_result gpi_alloc_lock(gpupool_arena *arena, const char *name, const void *out) {
    gpupool_result result = gpi_alloc_enter(arena);
    if (result != GPUPOOL_OK) return result;
    if (!out) return gpi_system_fail(GPUPOOL_E_ARGUMENT, "%s: it is NULL", name);
    gpi_system_lock(&arena->lock);
    gpi_alloc_empty_mail(arena);
    return GPUPOOL_OK;
}

static gpupool_result gpi_alloc_unlock(gpupool_arena *arena, gpupool_result result) {
    gpi_system_unlock(&arena->lock);
    gpi_alloc_check(arena);
    return result;
}

/* -- allocate -- */

/* From the stream's cache; NULL: not this way. */
static inline void *gpi_alloc_cached(gpupool_arena *arena, const gpupool_request *request) {
    uint64_t units = (request->bytes + GPI_UNIT - 1) / GPI_UNIT;
    uintptr_t key = gpi_stream_key(request->stream);
    gpi_stream *s = gpi_stream_find(arena, key);
    gpi_run *run;
    if (!s || !GPI_LOOK(&s->bins[units])) return NULL;
    gpi_system_lock(&s->lock);
    run = s->key == key && !s->scope ? s->bins[units] : NULL;
    if (run) {
        GPI_SET(&s->bins[units], run->next);
        run->is_cached = 0;
        run->by.label = request->label;
        run->slack = (uint32_t)(units * GPI_UNIT - request->bytes);
        s->cached_units -= units;
        gpi_counter_part(&s->allocated, (int64_t)(units * GPI_UNIT));
        gpi_counter_part(&s->requested, (int64_t)request->bytes);
        s->more_allocs++;
    }
    gpi_system_unlock(&s->lock);
    return run ? (void *)(uintptr_t)run->address : NULL;
}

static gpupool_result gpi_alloc_refuses(const gpupool_arena *arena, const gpupool_request *r) {
    const gpi_source *source = arena->chunks.source;
    uint64_t most = arena->buddy.is_apart ? GPI_UNIT : GPI_PAGE;
    if (r->bytes == 0 || r->bytes > (uint64_t)1 << 46)
        return gpi_system_fail(GPUPOOL_E_ARGUMENT, "bytes: %zu is not in 1 to 2^46", r->bytes);
    if ((r->alignment & (r->alignment - 1)) || r->alignment > (uint64_t)1 << 40)
        return gpi_system_fail(GPUPOOL_E_ARGUMENT, "alignment: %zu is no power of two up to 2^40",
                               r->alignment);
    if (r->flags & ~(unsigned)(GPUPOOL_NO_WAIT | GPUPOOL_ZEROED | GPUPOOL_OWN_CHUNK))
        return gpi_system_fail(GPUPOOL_E_ARGUMENT, "flags: %#x has an unknown bit", r->flags);
    if ((r->flags & GPUPOOL_OWN_CHUNK || source->flags & GPI_ALONE) && r->alignment > most)
        return gpi_system_fail(GPUPOOL_E_ARGUMENT,
                               "alignment: a chunk begins at a multiple of %llu, not of %zu",
                               (unsigned long long)most, r->alignment);
    return GPUPOOL_OK;
}

/* Describes a request for the ladder. */
static void gpi_alloc_ask(gpi_ask *ask, gpupool_arena *arena, const gpupool_request *request,
                          gpi_stream *s) {
    unsigned flags = arena->chunks.source->flags;
    uint64_t aligned = arena->buddy.is_apart ? GPI_UNIT : GPI_PAGE; /* chunks begin so */
    memset(ask, 0, sizeof *ask);
    ask->arena = arena;
    ask->request = request;
    ask->owner = s->scope ? s->scope : s;
    ask->handle = request->stream ? request->stream : GPUPOOL_STREAM_HERE;
    ask->is_own_chunk = request->flags & GPUPOOL_OWN_CHUNK || flags & GPI_ALONE;
    ask->units = gpi_up(request->bytes, GPI_UNIT) / GPI_UNIT;
    if (ask->is_own_chunk && flags & GPI_MAPS) ask->units = gpi_up(ask->units, GPI_GRANULE);
    ask->alignment = gpi_max(request->alignment, GPI_UNIT);
    ask->need = ask->units + (ask->alignment > aligned ? ask->alignment / GPI_UNIT : 0);
    ask->can_stitch = flags & GPI_MAPS && !ask->is_own_chunk;
    ask->takes_own = ask->owner->kind == GPI_GRAPH ||
                     (ask->owner->kind == GPI_ORDINARY && !(flags & GPI_HOST)); /* O5 */
    if (!ask->takes_own || ask->is_own_chunk) arena->streams.has_users = 1;
}

/* A run in hand becomes a live block. */
static void gpi_alloc_grant(const gpi_ask *ask, gpi_run *run) {
    gpupool_arena *arena = ask->arena;
    gpi_stream *owner = ask->owner;
    uint64_t bytes = gpi_block_units(run) * GPI_UNIT;
    run->of.uses = NULL;
    run->by.label = ask->request->label;
    run->slack = (uint32_t)(bytes - ask->request->bytes);
    run->state = GPI_LIVE;
    run->is_of_graph = owner->kind == GPI_GRAPH;
    gpi_buddy_index(&arena->buddy, run);
    if (run->is_of_graph) {
        gpi_stream_add_use(arena, run, owner, gpi_stream_issue(arena, owner));
        gpi_run_link(&owner->owned, NULL, run);
    } else if (run->units <= GPI_SMALL && !run->stitch && !ask->is_own_chunk &&
               owner->key == gpi_stream_key(ask->handle) &&
               (owner->kind == GPI_NONE || ask->takes_own)) {
        /* its cache takes the block back */
        run->state = GPI_OUT;
        owner->outs++;
        GPI_PUBLISH(&run->cache, owner);
    }
    gpi_counter_move(&arena->stats.allocated, (int64_t)bytes);
    gpi_counter_move(&arena->stats.requested, (int64_t)ask->request->bytes);
    arena->stats.allocs++;
}

/* Tells the program that memory ran out; nonzero: try once more. The lock opens. */
static int gpi_alloc_tell(gpi_ask *ask, const gpupool_verdict *verdict) {
    const gpupool_arena_config *config = &ask->arena->config;
    int again;
    if (!config->on_out_of_memory || gpi_thread.in_callback) return 0;
    gpi_thread.in_callback = 1;
    gpi_arena_open(ask->arena);
    GPI_CALLBACK(again = config->on_out_of_memory(verdict, config->user), again = 0)
    gpi_arena_close(ask->arena);
    gpi_thread.in_callback = 0;
    return again;
}

enum { GPI_TRIES_FITTING = 16 }; /* a driver may refuse what it says is free: not for ever */

/* Climbs again with what host functions have freed while the ladder waited, with what siblings have
   given back, and once with what the program has freed; and where the request fits by now: while
   the ladder waited, other threads took what had been freed, and freed as much again. */
static gpupool_result gpi_alloc_climb(gpi_ask *ask, gpi_run **run) {
    gpupool_arena *arena = ask->arena;
    gpi_failure before = gpi_thread.last; /* steps that fail are no failure of the call */
    gpupool_verdict verdict;
    gpupool_result result;
    int is_told = 0, tries = GPI_TRIES_FITTING;
    while ((result = gpi_ladder_climb(ask, run)) == GPUPOOL_E_OUT_OF_MEMORY) {
        if (GPI_LOOK(&arena->mail)) gpi_alloc_empty_mail(arena);
        else if (!gpi_sibling_helps(ask)) {
            gpi_verdict_make(ask, &verdict);
            if (ask->need * GPI_UNIT <= verdict.largest && tries--) continue;
            if (is_told++ || !gpi_alloc_tell(ask, &verdict)) break;
        }
    }
    if (result == GPUPOOL_OK) gpi_thread.last = before;
    if (result != GPUPOOL_E_OUT_OF_MEMORY) return result;
    gpi_thread.verdict = verdict;
    arena->shortages++;
    /* programs that recover may run out often: ever more rarely */
    if (!(arena->shortages & (arena->shortages - 1))) {
        gpi_arena_open(arena);
        gpi_report_event(arena, "out of memory", verdict.sentence);
        gpi_arena_close(arena);
    }
    gpi_arena_pass(arena); /* a verdict takes long, and whoever fails may try again at once */
    return gpi_system_fail(result, "%s", verdict.sentence);
}

/* Zeroes a new block: in stream order; memory that the host may use, and without a stream, at once.
   A scope's memory is not finished, so there the stream zeroes it. The lock is open. */
static gpupool_result gpi_alloc_zero(gpi_ask *ask, void *block) {
    gpi_driver *driver = &ask->arena->driver;
    cudaStream_t stream = ask->owner->kind == GPI_NONE ? cudaStreamPerThread : ask->handle;
    gpupool_result result;
    if (ask->arena->chunks.source->flags & GPI_HOST && ask->owner->kind != GPI_GRAPH) {
        memset(block, 0, ask->request->bytes);
        return GPUPOOL_OK;
    }
    GPI_VISIT(driver, ask->owner->context);
    result = GPI_TELL(driver, fill, (CUdeviceptr)(uintptr_t)block, 0, ask->request->bytes, stream);
    if (result == GPUPOOL_OK && ask->owner->kind == GPI_NONE)
        result = GPI_TELL(driver, stream_sync, stream);
    return result;
}

/* Under the arena's lock. */
static void *gpi_alloc_slow(gpupool_arena *arena, const gpupool_request *request) {
    gpi_run *run = NULL;
    gpi_stream *s;
    gpi_ask ask;
    void *block;
    gpupool_result result = gpi_alloc_refuses(arena, request);
    if (result != GPUPOOL_OK) return NULL;
    result = gpi_alloc_begin(arena, request->stream, &s);
    if (result == GPUPOOL_OK) result = gpi_arena_ready(arena);
    if (result == GPUPOOL_OK) {
        gpi_alloc_ask(&ask, arena, request, s);
        /* cached blocks keep their neighbours from joining, and a large request may need those */
        gpi_stream_flush(arena, s, ask.units > GPI_SMALL ? 0 : UINT64_MAX);
        run = gpi_ladder_take_free(&ask, GPI_TRIES);
        if (!run) gpi_stream_flush(arena, s, 0);
        if (!run) result = gpi_alloc_climb(&ask, &run);
    }
    if (run) {
        gpi_alloc_empty_mail(arena); /* what came meanwhile is no part of the peak */
        gpi_alloc_grant(&ask, run);
    } else arena->stats.failures++;
    block = run ? (void *)(uintptr_t)run->address : NULL;
    if (block && request->flags & GPUPOOL_ZEROED) {
        gpi_arena_open(arena); /* sleep waits until the zeroing is queued */
        result = gpi_alloc_zero(&ask, block);
        gpi_arena_close(arena);
    }
    gpi_system_unlock(&arena->lock);
    if (result == GPUPOOL_OK || !block) return block;
    gpupool_free(arena, block, request->stream);
    return NULL;
}

static inline void *gpi_alloc(gpupool_arena *arena, const gpupool_request *request) {
    void *block = NULL;
    if (gpi_alloc_enter(arena) != GPUPOOL_OK) return NULL;
    gpi_stream_check(arena, request->stream);
    if (request->bytes - 1 < GPI_SMALL * GPI_UNIT && !request->flags &&
        request->alignment <= GPI_UNIT && !(request->alignment & (request->alignment - 1)) &&
        !GPI_LOOK(&arena->attention))
        block = gpi_alloc_cached(arena, request);
    if (!block) block = gpi_alloc_slow(arena, request);
    gpi_alloc_check(arena);
    GPUPOOL_TRACE("alloc", arena, block, request->bytes, request->stream, request->label);
    return block;
}

/* In parentheses, since with GPUPOOL_SITES the name is a macro. */
GPUPOOL_API void *(gpupool_alloc)(gpupool_arena *arena, size_t bytes, cudaStream_t stream) {
    gpupool_request request = {bytes, 0, stream, 0, NULL};
    return gpi_alloc(arena, &request);
}

GPUPOOL_API void *gpupool_alloc_request(gpupool_arena *arena, const gpupool_request *request) {
    if (request) return gpi_alloc(arena, request);
    gpi_system_fail(GPUPOOL_E_ARGUMENT, "request: it is NULL");
    return NULL;
}

/* -- free -- */

static int gpi_free_is_short(const gpupool_arena *arena) {
    return GPI_LOOK(&arena->streams.position) < GPI_LOOK(&arena->short_until);
}

/* Whether the stream's cache takes the block: not if it is full, or memory is short. */
static inline int gpi_free_cached(gpupool_arena *arena, void *block, cudaStream_t stream) {
    uint64_t address = (uint64_t)(uintptr_t)block;
    gpi_run *run = gpi_buddy_lookup(&arena->buddy, address, GPI_PEEKS);
    uintptr_t key = gpi_stream_key(stream);
    gpi_stream *s = run ? GPI_READ(&run->cache) : NULL;
    int is_ours;
    if (!s || GPI_LOOK(&s->key) != key || gpi_free_is_short(arena)) return 0;
    gpi_system_lock(&s->lock);
    is_ours = run->cache == s && !run->is_cached && run->address == address && s->key == key &&
              !s->scope && s->cached_units < gpi_stream_cache_most(arena);
    if (is_ours) {
        run->is_cached = 1;
        run->next = s->bins[run->units];
        GPI_SET(&s->bins[run->units], run);
        GPI_SET(&s->is_stirred, 1);
        s->cached_units += run->units;
        gpi_counter_part(&s->allocated, -(int64_t)(run->units * GPI_UNIT));
        gpi_counter_part(&s->requested, (int64_t)run->slack - (int64_t)(run->units * GPI_UNIT));
        s->more_frees++;
    }
    gpi_system_unlock(&s->lock);
    return is_ours;
}

/* Under the arena's lock. What comes this way, large blocks too, leaves the stream's cache at most
   half full, and empty while memory is short. */
static gpupool_result gpi_free_slow(gpupool_arena *arena, void *block, cudaStream_t stream) {
    gpi_stream *s;
    gpupool_result result = gpi_alloc_begin(arena, stream, &s);
    if (result == GPUPOOL_E_CUDA) result = GPUPOOL_OK; /* a broken context: frees go on */
    if (result == GPUPOOL_OK) {
        gpi_stream_flush(arena, s, gpi_free_is_short(arena) ? 0 : gpi_stream_cache_most(arena) / 2);
        result = gpi_alloc_end(arena, block, s->scope ? s->scope : s);
    }
    if (result != GPUPOOL_OK) arena->stats.failures++;
    else if (arena->streams.has_users)
        gpi_stream_mark_due(arena, s, stream ? stream : GPUPOOL_STREAM_HERE);
    return gpi_alloc_unlock(arena, result);
}

GPUPOOL_API gpupool_result gpupool_free(gpupool_arena *arena, void *block, cudaStream_t stream) {
    gpupool_result result = gpi_alloc_enter(arena);
    if (result != GPUPOOL_OK || !block) return result;
    GPUPOOL_TRACE("free", arena, block, 0, stream, NULL);
    gpi_stream_check(arena, stream);
    if (GPI_LOOK(&arena->attention) || !gpi_free_cached(arena, block, stream))
        result = gpi_free_slow(arena, block, stream);
    gpi_alloc_check(arena);
    return result;
}

GPUPOOL_API gpupool_result gpupool_free_in_host_function(gpupool_arena *arena, void *block) {
    gpupool_result result = gpi_alloc_enter(arena);
    gpi_mail *mail;
    if (result != GPUPOOL_OK || !block) return result;
    mail = (gpi_mail *)gpi_system_zeroed(sizeof *mail);
    if (!mail) return gpi_system_no_memory();
    GPUPOOL_TRACE("free", arena, block, 0, GPUPOOL_NO_STREAM, NULL);
    mail->block = block;
    do mail->next = GPI_LOOK(&arena->mail);
    while (!__atomic_compare_exchange_n(&arena->mail, &mail->next, mail, 0, __ATOMIC_RELEASE,
                                        __ATOMIC_RELAXED));
    GPI_PUBLISH(&arena->attention, 1);
    return GPUPOOL_OK;
}

/* -- more about blocks -- */

/* O4: a use is a position of its stream, and moves that stream's mark; while another thread records
   one, the next mark covers it. In a scope it is the graph that uses the block. */
static gpupool_result gpi_alloc_record(gpupool_arena *arena, gpi_run *run, gpi_stream *s,
                                       cudaStream_t handle) {
    gpi_stream *user = s->scope ? s->scope : s;
    gpupool_result result;
    if (user == s && gpi_driver_is_capturing(&arena->driver, handle)) return gpi_driver_capturing();
    if (user != s && !gpi_stream_graph_of(run)) gpi_run_link(&user->owned, NULL, run);
    gpi_stream_add_use(arena, run, user, gpi_stream_issue(arena, user));
    result = user == s ? gpi_stream_mark(arena, s, handle) : GPUPOOL_OK;
    /* without an event the use passes by a wait for the device */
    return result == GPUPOOL_E_OUT_OF_MEMORY ? GPUPOOL_OK : result;
}

GPUPOOL_API gpupool_result gpupool_record_stream(gpupool_arena *arena, const void *block,
                                                 cudaStream_t stream) {
    gpupool_result result = gpi_alloc_enter(arena);
    gpi_stream *s;
    gpi_run *run;
    if (result != GPUPOOL_OK) return result;
    if (stream == GPUPOOL_NO_STREAM)
        return gpi_system_fail(GPUPOOL_E_ARGUMENT, "stream: a use needs a stream");
    gpi_stream_check(arena, stream);
    result = gpi_alloc_begin(arena, stream, &s);
    if (result == GPUPOOL_OK) result = gpi_alloc_claim(arena, block, &run);
    if (result == GPUPOOL_OK)
        result = gpi_alloc_record(arena, run, s, stream ? stream : GPUPOOL_STREAM_HERE);
    result = gpi_alloc_unlock(arena, result);
    GPUPOOL_TRACE("use", arena, block, 0, stream, NULL);
    return result;
}

GPUPOOL_API gpupool_result gpupool_get_block(gpupool_arena *arena, const void *memory,
                                             gpupool_block *block) {
    gpupool_result result = gpi_alloc_lock(arena, "block", block);
    gpi_run *run;
    if (result != GPUPOOL_OK) return result;
    memset(block, 0, sizeof *block);
    result = gpi_alloc_find(arena, memory, &run);
    if (result == GPUPOOL_OK || result == GPUPOOL_E_INSIDE) gpi_stream_describe(run, block);
    return gpi_alloc_unlock(arena, result);
}
/* == CAPTURE ======================================================================================
   Memory of CUDA graphs. A graph runs again and again after its capture, so what its nodes use must
   stay as it is until the graph is gone. A scope hangs from its stream as a second stream struct:
   what the stream allocates and frees meanwhile belongs to the scope, and nothing of it passes
   before gpupool_release_capture, which waits for the device.

   K1  Live and waiting blocks with a use of the graph hang in its `owned`; free memory is in its
       list, for requests in the scope only.
   K2  Positions grow, so that a released scope's struct can serve another: old uses have passed.

   Read first: gpupool_begin_capture, gpupool_release_capture. */

struct gpupool_capture {  /* (CAPTURE); lies in the region */
    gpi_stream graph;     /* graph.next: the next spare one */
    gpupool_arena *arena; /* NULL: it was released */
};

/* Opens a scope on a stream. The arena's lock is held. */
static gpupool_capture *gpi_capture_open(gpupool_arena *arena, gpi_stream *s) {
    gpupool_capture *capture = arena->spare_captures;
    if (capture) arena->spare_captures = (gpupool_capture *)(void *)capture->graph.next;
    else capture = (gpupool_capture *)gpi_region_get(&arena->buddy.region, sizeof *capture);
    capture->graph.kind = GPI_GRAPH;
    capture->graph.context = s->context;
    capture->graph.list.stream = &capture->graph;
    capture->graph.origin = s;
    capture->arena = arena;
    arena->captures++;
    gpi_stream_set(s, s->key, &capture->graph);
    return capture;
}

GPUPOOL_API gpupool_result gpupool_begin_capture(gpupool_arena *arena, cudaStream_t stream,
                                                 gpupool_capture **capture) {
    gpupool_result result = gpi_alloc_enter(arena);
    gpi_stream *s;
    if (result != GPUPOOL_OK) return result;
    if (!capture) return gpi_system_fail(GPUPOOL_E_ARGUMENT, "capture: it is NULL");
    *capture = NULL;
    if (stream == GPUPOOL_NO_STREAM)
        return gpi_system_fail(GPUPOOL_E_ARGUMENT, "stream: a scope needs a stream");
    gpi_stream_check(arena, stream);
    result = gpi_alloc_begin(arena, stream, &s);
    if (result == GPUPOOL_OK) result = gpi_arena_ready(arena);
    if (result == GPUPOOL_OK && s->scope)
        result = gpi_system_fail(GPUPOOL_E_ARGUMENT, "stream: it has an open scope");
    if (result != GPUPOOL_OK) return gpi_alloc_unlock(arena, result);
    gpi_stream_flush(arena, s, 0);
    *capture = gpi_capture_open(arena, s);
    return gpi_alloc_unlock(arena, GPUPOOL_OK);
}

/* After E_OK the arena's lock is held. */
static gpupool_result gpi_capture_lock(const gpupool_capture *capture) {
    if (capture && capture->arena) return gpi_alloc_lock(capture->arena, "capture", capture);
    return gpi_system_fail(GPUPOOL_E_ARGUMENT, "capture: it %s",
                           capture ? "was released" : "is NULL");
}

GPUPOOL_API gpupool_result gpupool_end_capture(gpupool_capture *capture) {
    gpupool_result result = gpi_capture_lock(capture);
    if (result != GPUPOOL_OK) return result;
    gpi_stream_close_scope(capture->graph.origin);
    return gpi_alloc_unlock(capture->arena, GPUPOOL_OK);
}

/* Frees what the graph has: its work has finished. Live blocks that it only uses stay. */
static void gpi_capture_free(gpupool_arena *arena, gpi_stream *graph) {
    gpi_run *run;
    gpi_stream_flush_all(arena, UINT64_MAX); /* or a peak would be lost (C1) */
    while ((run = graph->owned) != NULL) {
        if (run->state != GPI_LIVE) {
            gpi_stream_stop_waiting(arena, run, &graph->owned);
            gpi_ladder_settle(arena, run, &arena->streams.none);
        } else if (run->is_of_graph) {
            gpi_alloc_end(arena, (void *)(uintptr_t)run->address, &arena->streams.none);
        } else {
            gpi_stream *next;
            gpi_run_unlink(&graph->owned, run);
            gpi_stream_drop_uses(arena, run, graph);
            next = gpi_stream_graph_of(run);
            if (next) gpi_run_link(&next->owned, NULL, run);
        }
    }
}

GPUPOOL_API gpupool_result gpupool_release_capture(gpupool_capture *capture) {
    gpupool_arena *arena = capture ? capture->arena : NULL;
    gpupool_result result = gpi_capture_lock(capture);
    uint64_t at;
    if (result != GPUPOOL_OK) return result;
    gpi_stream_close_scope(capture->graph.origin);
    at = arena->streams.position;
    result = gpi_ladder_wait(arena, &arena->streams.all);
    if (result == GPUPOOL_OK) {
        gpi_stream_pass(arena, &capture->graph, at);
        gpi_capture_free(arena, &capture->graph);
        capture->arena = NULL;
        capture->graph.next = (gpi_stream *)(void *)arena->spare_captures;
        arena->spare_captures = capture;
        arena->captures--;
    }
    return gpi_alloc_unlock(arena, result);
}
/* == LIFE =========================================================================================
   Arenas are made and destroyed, and the process has a list of them.

   L1  An arena's struct lies in pages of its own that a fork wipes (O17), and stays readable and in
       the list when the arena is destroyed: magic tells. The next arena uses it again.
   L2  The process's lock is held only to find an arena and count a visitor in. Destroy goes on when
       the arena has no visitors; visitors pass by an arena that is being destroyed.

   Read first: gpi_life_open, gpupool_arena_destroy, gpi_life_visit. */

enum { GPI_HOMES = 2, GPI_SPACES = 6 }; /* addresses, as a multiple of the device's memory */

/* -- the list -- */

/* Leaves one arena of the list (NULL: none), for whose end a thread may wait, and enters the next;
   NULL: that was the last. */
static gpupool_arena *gpi_life_visit(gpupool_arena *left) {
    gpupool_arena *arena;
    gpi_system_lock(&gpi_process.lock);
    arena = left ? left->next_arena : gpi_process.arenas;
    while (arena && arena->magic != GPI_MAGIC) arena = arena->next_arena;
    if (arena) arena->visitors++;
    if (left) left->visitors--;
    if (left && left->magic != GPI_MAGIC) gpi_system_wake_all(&left->departures);
    gpi_system_unlock(&gpi_process.lock);
    return arena;
}

/* Whether the program may use bytes from an address on, as far as arenas know. */
static gpupool_result gpi_life_may_use(uint64_t at, uint64_t bytes, const char *argument) {
    gpi_failure before = gpi_thread.last;
    int is_asleep = 0;
    gpupool_arena *arena = NULL;
    const char *wrong = NULL;
    gpupool_block block;
    while ((arena = gpi_life_visit(arena)) != NULL) {
        gpupool_result found = gpupool_get_block(arena, (void *)(uintptr_t)at, &block);
        if (found == GPUPOOL_E_DOUBLE_FREE) wrong = "it is in memory that is free";
        if (!block.memory) continue;
        if (bytes > (uintptr_t)block.memory + block.requested - at)
            wrong = "it goes beyond its block";
        gpi_system_lock(&arena->lock);
        is_asleep |= arena->sleep != GPI_AWAKE;
        gpi_system_unlock(&arena->lock);
    }
    gpi_thread.last = before;
    if (is_asleep) return gpi_system_fail(GPUPOOL_E_ASLEEP, "%s: its arena sleeps", argument);
    return wrong ? gpi_system_fail(GPUPOOL_E_ARGUMENT, "%s: %s", argument, wrong) : GPUPOOL_OK;
}

/* From now on nobody finds the arena. */
static void gpi_life_hide(gpupool_arena *arena) {
    gpi_system_lock(&gpi_process.lock);
    arena->magic = 0;
    while (arena->visitors) {
        int departures = arena->departures;
        gpi_system_unlock(&gpi_process.lock);
        gpi_system_sleep_on(&arena->departures, departures);
        gpi_system_lock(&gpi_process.lock);
    }
    if (arena->default_at && *arena->default_at == arena)
        GPI_PUBLISH(arena->default_at, (gpupool_arena *)NULL);
    gpi_system_unlock(&gpi_process.lock);
}

/* The struct of an arena that has ended, or a new one, all zeros; NULL: no host memory. */
static gpupool_arena *gpi_life_struct(void) {
    uint64_t bytes = gpi_up(sizeof(gpupool_arena), 4096), kept = offsetof(gpupool_arena, magic);
    int access = PROT_READ | PROT_WRITE;
    gpupool_arena *arena;
    gpi_system_lock(&gpi_process.lock);
    for (arena = gpi_process.arenas; arena && arena->magic != GPI_ENDED;) arena = arena->next_arena;
    if (arena) memset((char *)arena + kept, 0, sizeof *arena - kept);
    else if ((arena = (gpupool_arena *)gpi_system_pages(bytes, access, MADV_WIPEONFORK)) != NULL) {
        arena->next_arena = gpi_process.arenas;
        gpi_process.arenas = arena;
    }
    gpi_system_unlock(&gpi_process.lock);
    return arena;
}

static void gpi_life_set_magic(gpupool_arena *arena, int magic) {
    gpi_system_lock(&gpi_process.lock);
    arena->magic = magic;
    gpi_system_unlock(&gpi_process.lock);
}

/* -- an arena is made -- */

static gpupool_result gpi_life_refuses(const gpupool_arena_config *config) {
    const char *wrong = NULL;
    if ((unsigned)config->source > GPUPOOL_SOURCE_BYPASS) wrong = "source: there is none such";
    if (config->source == GPUPOOL_SOURCE_CUSTOM && (!config->chunk_alloc || !config->chunk_free))
        wrong = "source: CUSTOM needs both chunk_alloc and chunk_free";
    if (config->share && config->source > GPUPOOL_SOURCE_MAPPED)
        wrong = "share: only MAPPED memory is shared";
    if (config->share & ~(unsigned)(GPUPOOL_SHARE_PROCESSES | GPUPOOL_SHARE_RDMA))
        wrong = "share: it has an unknown bit";
    if (config->chunk_bytes > (uint64_t)1 << 46) wrong = "chunk_bytes: more than 2^46";
    return wrong ? gpi_system_fail(GPUPOOL_E_ARGUMENT, "config.%s", wrong) : GPUPOOL_OK;
}

/* Where the config says AUTO: the environment's source, in any case, else the macro's. */
static gpupool_result gpi_life_default_source(gpupool_source *source) {
    const char *text = gpi_text_variable("GPUPOOL_SOURCE");
    char line[40];
    int i = GPUPOOL_SOURCE_BYPASS;
    *source = GPUPOOL_SOURCE;
    if (!text) return GPUPOOL_OK;
    while (i >= 0 && !gpi_text_is(text, gpi_sources[i].name)) i--;
    *source = (gpupool_source)i;
    if (i >= 0 && i != GPUPOOL_SOURCE_CUSTOM) return GPUPOOL_OK; /* which needs functions */
    return gpi_system_fail(GPUPOOL_E_ARGUMENT,
                           "GPUPOOL_SOURCE in the environment: \"%s\" is none of auto, mapped, "
                           "device, managed, pinned, bypass",
                           gpi_text_line(line, sizeof line, text));
}

/* Fills in what the config leaves open. */
static gpupool_result gpi_life_configure(gpupool_arena *arena, const gpupool_arena_config *given) {
    gpupool_arena_config *config = &arena->config;
    gpupool_result result = GPUPOOL_OK;
    if (given) *config = *given;
    else result = GPI_RUN(cudaGetDevice, &config->device);
    if (result == GPUPOOL_OK && config->source == GPUPOOL_SOURCE_AUTO)
        result = gpi_life_default_source(&config->source);
    if (!config->chunk_bytes) config->chunk_bytes = GPUPOOL_CHUNK_BYTES;
    if (!config->share) config->share = GPUPOOL_SHARE;
    gpi_text_line(arena->name, sizeof arena->name, config->name ? config->name : "arena");
    config->name = arena->name;
    arena->chunks.chunk_units = gpi_up(config->chunk_bytes, GPI_GRANULE * GPI_UNIT) / GPI_UNIT;
    arena->stitches.credit = GPI_CREDIT;
    return result == GPUPOOL_OK ? gpi_life_refuses(config) : result;
}

static gpupool_result gpi_life_choose_source(gpupool_arena *arena) {
    gpupool_source *name = &arena->config.source;
    int can_map = arena->driver.can_map;
    if (*name == GPUPOOL_SOURCE_AUTO)
        *name = can_map ? GPUPOOL_SOURCE_MAPPED : GPUPOOL_SOURCE_DEVICE;
    if (*name == GPUPOOL_SOURCE_MAPPED && !can_map)
        return gpi_system_fail(GPUPOOL_E_UNSUPPORTED,
                               "config.source: device %d cannot map memory in pages of 2 MiB",
                               arena->config.device);
    arena->chunks.source = &gpi_sources[*name];
    arena->buddy.is_apart = *name != GPUPOOL_SOURCE_MAPPED;
    return GPUPOOL_OK;
}

/* The limit that `where` names: as a text, unless that is NULL; 0 is none, and a negative number is
   a mistake. A part of it is a part of the device's memory, or of the host's. */
static gpupool_result gpi_life_read_limit(const gpupool_arena *arena, const char *where,
                                          const char *text, uint64_t *bytes) {
    uint64_t total = arena->driver.total_bytes;
    const char *wrong = NULL;
    char line[64];
    if (arena->config.source == GPUPOOL_SOURCE_PINNED)
        total = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    if (text) wrong = gpi_text_limit(text, total, bytes);
    if (!wrong && *bytes > (uint64_t)1 << 46) wrong = "is more than 2^46 bytes (0: no limit)";
    if (!wrong) return GPUPOOL_OK;
    if (text) gpi_text_line(line, sizeof line, text);
    else snprintf(line, sizeof line, "%llu", (unsigned long long)*bytes);
    return gpi_system_fail(GPUPOOL_E_ARGUMENT, "%s: \"%s\" %s", where, line, wrong);
}

/* The limit: the config's, else the environment's for this device, else for all, else the macro's.
   The environment's is meant for the device's memory. */
static gpupool_result gpi_life_choose_limit(gpupool_arena *arena) {
    uint64_t bytes = arena->config.limit_bytes;
    const char *where = bytes ? "config.limit_bytes" : "GPUPOOL_LIMIT", *text = NULL;
    gpupool_result result;
    char name[40];
    if (!bytes && arena->config.source != GPUPOOL_SOURCE_PINNED) {
        snprintf(name, sizeof name, "GPUPOOL_LIMIT_%d", arena->config.device);
        text = gpi_text_variable(name);
        if (text) where = name;
        else text = gpi_text_variable(where);
    }
    if (!bytes) bytes = GPUPOOL_LIMIT;
    result = gpi_life_read_limit(arena, where, text, &bytes);
    arena->chunks.limit = bytes ? bytes : UINT64_MAX;
    return result;
}

/* Tables; addresses for chunks, then addresses for stitches. Sources whose memory lies elsewhere
   have numbers only. */
static gpupool_result gpi_life_open_buddy(gpupool_arena *arena) {
    gpi_buddy *buddy = &arena->buddy;
    gpi_region *region = &buddy->region;
    uint64_t total = gpi_up(arena->driver.total_bytes, GPI_PAGE), page = GPI_PAGE;
    uint64_t homes = buddy->is_apart ? (uint64_t)1 << 46 : total * GPI_HOMES;
    uint64_t bytes = buddy->is_apart ? homes : homes + total * GPI_SPACES, granules = bytes / page;
    uint64_t index = sizeof(gpi_run *) << GPI_INDEX_BITS, starts = gpi_up(granules, 64) / 8;
    uint64_t tables = index + starts + granules * (sizeof(gpi_cell) + sizeof(gpi_chunk *));
    gpupool_result result;
    gpi_run *run;
    if (!gpi_region_open(region, tables + ((uint64_t)1 << 34)) ||
        !gpi_region_ensure(region, tables + (1 << 15)))
        return gpi_system_no_memory();
    buddy->granules = granules;
    buddy->index = (gpi_run **)gpi_region_get(region, index);
    buddy->starts = (uint64_t *)gpi_region_get(region, starts);
    buddy->cells = (gpi_cell *)gpi_region_get(region, granules * sizeof(gpi_cell));
    arena->chunks.all = (gpi_chunk **)gpi_region_get(region, granules * sizeof(gpi_chunk *));
    if (!buddy->is_apart) {
        CUdeviceptr base = 0;
        GPI_VISIT(&arena->driver, arena->driver.context);
        result = GPI_TELL(&arena->driver, reserve, &base, bytes, page, 0, 0);
        if (result != GPUPOOL_OK) return result;
        buddy->base = base;
    }
    run = (gpi_run *)gpi_region_get(&buddy->region, sizeof *run);
    run->units = bytes / GPI_UNIT;
    gpi_buddy_enter(buddy, run);
    if (bytes > homes)
        gpi_buddy_put(buddy, gpi_buddy_split(buddy, run, homes / GPI_UNIT), GPI_SPACE,
                      &buddy->space, 0);
    gpi_buddy_put(buddy, run, GPI_EMPTY, &buddy->empty, 0);
    return GPUPOOL_OK;
}

static gpupool_result gpi_life_open(gpupool_arena *arena, const gpupool_arena_config *config) {
    gpupool_result result = gpi_life_configure(arena, config);
    if (result == GPUPOOL_OK)
        result = gpi_driver_open(&arena->driver, arena->config.device, arena->config.share);
    if (result == GPUPOOL_OK) result = gpi_life_choose_source(arena);
    if (result == GPUPOOL_OK) result = gpi_life_choose_limit(arena);
    if (result == GPUPOOL_OK) result = gpi_life_open_buddy(arena);
    if (result == GPUPOOL_OK) gpi_stream_open(arena);
    return result;
}

/* -- and ends -- */

/* Returns all memory to its source, whatever the state of the arena; the first failure. */
static gpupool_result gpi_life_return_memory(gpupool_arena *arena) {
    gpupool_result first = GPUPOOL_OK, result;
    gpi_chunks *chunks = &arena->chunks;
    int bin;
    gpi_system_lock(&arena->lock);
    gpi_alloc_empty_mail(arena);
    for (bin = 0; bin < GPI_BINS; bin++)
        while (arena->stitches.bins[bin]) {
            gpi_stitch *stitch = arena->stitches.bins[bin];
            arena->stitches.bins[bin] = stitch->next;
            result = gpi_chunk_undo(arena, &stitch->range);
            if (first == GPUPOOL_OK) first = result;
            GPUPOOL_FREE(stitch);
        }
    while (chunks->count) {
        gpi_chunk *chunk = chunks->all[--chunks->count];
        result = gpi_chunk_undo(arena, chunk);
        if (first == GPUPOOL_OK) first = result;
        GPUPOOL_FREE(chunk);
    }
    gpi_system_unlock(&arena->lock);
    return first;
}

static void gpi_backup_close(gpi_backup *backup) {
    if (backup->pages) munmap(backup->pages, backup->bytes);
    memset(backup, 0, sizeof *backup);
}

/* Frees all that an arena has but its struct, which may serve another one then. */
static gpupool_result gpi_life_close(gpupool_arena *arena) {
    gpi_buddy *buddy = &arena->buddy;
    gpupool_result result = gpi_life_return_memory(arena);
    if (arena->driver.context) {
        GPI_VISIT(&arena->driver, arena->driver.context);
        gpi_stream_close(arena);
        if (buddy->base) arena->driver.unreserve(buddy->base, buddy->granules * GPI_PAGE);
    }
    gpi_backup_close(&arena->backup);
    if (buddy->region.base) munmap(buddy->region.base, buddy->region.size);
    gpi_driver_close(&arena->driver);
    gpi_life_set_magic(arena, GPI_ENDED);
    return result;
}

GPUPOOL_API gpupool_result gpupool_arena_create(gpupool_arena **out,
                                                const gpupool_arena_config *config) {
    gpupool_arena *arena;
    gpupool_result result;
    if (!out) return gpi_system_fail(GPUPOOL_E_ARGUMENT, "arena: it is NULL");
    *out = NULL;
    if (gpi_system_is_forked()) return gpi_alloc_enter(NULL);
    arena = gpi_system_open() ? gpi_life_struct() : NULL;
    if (!arena) return gpi_system_no_memory();
    result = gpi_life_open(arena, config);
    if (result != GPUPOOL_OK) {
        gpi_life_close(arena);
        return result;
    }
    gpi_life_set_magic(arena, GPI_MAGIC);
    gpi_report_open();
    *out = arena;
    return GPUPOOL_OK;
}

/* Ends an arena, with what is live in it. */
static gpupool_result gpi_life_end(gpupool_arena *arena) {
    gpi_life_hide(arena);
    gpi_driver_wait(&arena->driver); /* what fails here fails below again */
    return gpi_life_close(arena);
}

GPUPOOL_API gpupool_result gpupool_arena_destroy(gpupool_arena *arena) {
    gpupool_result result = gpi_alloc_enter(arena);
    if (result != GPUPOOL_OK) return result;
    gpi_report_event(arena, "destroy", "");
    result = gpi_alloc_lock(arena, "arena", arena);
    gpi_stream_flush_all(arena, UINT64_MAX);
    if (!*arena->broken && (arena->stats.allocs > arena->stats.frees || arena->captures))
        result = gpi_system_fail(GPUPOOL_E_IN_USE,
                                 "%llu blocks are live, and %llu scopes are not released",
                                 (unsigned long long)(arena->stats.allocs - arena->stats.frees),
                                 (unsigned long long)arena->captures);
    gpi_system_unlock(&arena->lock);
    return result == GPUPOOL_OK ? gpi_life_end(arena) : result;
}

/* -- streams end -- */

GPUPOOL_API gpupool_result gpupool_retire_stream(cudaStream_t stream) {
    gpupool_arena *arena = NULL;
    gpi_stream *s;
    if (gpi_driver_is_special(stream) && stream != cudaStreamPerThread)
        return gpi_system_fail(GPUPOOL_E_ARGUMENT,
                               "stream: a default stream does not end, nor NO_STREAM");
    if (gpi_system_is_forked()) return gpi_alloc_enter(NULL); /* the process's lock may be held */
    while ((arena = gpi_life_visit(arena)) != NULL) {
        gpi_system_lock(&arena->lock);
        s = gpi_stream_find(arena, gpi_stream_key(stream));
        if (s) gpi_stream_flush(arena, s, 0);
        if (s) gpi_stream_mark(arena, s, stream); /* refused: it passes by a device wait */
        if (s) gpi_stream_retire(arena, s);
        gpi_system_unlock(&arena->lock);
    }
    return GPUPOOL_OK;
}
/* == FIGURES ======================================================================================
   Limits and statistics. */

/* Returns idle chunks after a wait for the device. The lock is held. */
static gpupool_result gpi_figures_trim(gpupool_arena *arena, uint64_t keep) {
    gpupool_result result = gpi_arena_ready(arena);
    if (result != GPUPOOL_OK || arena->chunks.reserved.now <= keep) return result;
    gpi_stream_flush_all(arena, 0);
    result = gpi_ladder_wait(arena, &arena->streams.all);
    return result == GPUPOOL_OK ? gpi_ladder_trim(arena, keep) : result;
}

GPUPOOL_API gpupool_result gpupool_trim(gpupool_arena *arena, size_t keep_bytes) {
    gpupool_result result = gpi_alloc_lock(arena, "arena", arena);
    if (result != GPUPOOL_OK) return result;
    if (arena->sleep == GPI_AWAKE) gpi_backup_close(&arena->backup);
    return gpi_alloc_unlock(arena, gpi_figures_trim(arena, keep_bytes));
}

GPUPOOL_API gpupool_result gpupool_set_limit(gpupool_arena *arena, size_t bytes) {
    gpupool_result result = gpi_alloc_enter(arena);
    uint64_t limit = bytes;
    if (result == GPUPOOL_OK) result = gpi_life_read_limit(arena, "limit", NULL, &limit);
    if (result == GPUPOOL_OK) result = gpi_alloc_lock(arena, "arena", arena);
    if (result != GPUPOOL_OK) return result;
    arena->chunks.limit = bytes ? bytes : UINT64_MAX;
    if (*arena->broken || !arena->sleep) result = gpi_figures_trim(arena, arena->chunks.limit);
    return gpi_alloc_unlock(arena, result);
}

GPUPOOL_API gpupool_result gpupool_set_limit_text(gpupool_arena *arena, const char *text) {
    gpupool_result result = gpi_alloc_enter(arena);
    uint64_t bytes;
    if (result != GPUPOOL_OK) return result;
    if (!text) return gpi_system_fail(GPUPOOL_E_ARGUMENT, "text: it is NULL");
    result = gpi_life_read_limit(arena, "text", text, &bytes);
    return result == GPUPOOL_OK ? gpupool_set_limit(arena, bytes) : result;
}

GPUPOOL_API gpupool_result gpupool_get_available(gpupool_arena *arena, cudaStream_t stream,
                                                 size_t *bytes) {
    gpupool_request request = {1, 0, stream, 0, NULL};
    gpupool_result result = gpi_alloc_enter(arena);
    gpi_stream *s;
    gpi_ask ask;
    if (result != GPUPOOL_OK) return result;
    if (!bytes) return gpi_system_fail(GPUPOOL_E_ARGUMENT, "bytes: it is NULL");
    *bytes = 0;
    result = gpi_alloc_begin(arena, stream, &s);
    if (result == GPUPOOL_OK) {
        gpi_alloc_ask(&ask, arena, &request, s);
        gpi_stream_flush_all(arena, 0);
        gpi_ladder_poll(arena);
        result = gpi_arena_ready(arena); /* the poll may have broken it */
    }
    if (result == GPUPOOL_OK) *bytes = gpi_verdict_available(&ask);
    return gpi_alloc_unlock(arena, result);
}

/* Under the lock. */
static void gpi_figures_read(gpupool_arena *arena, gpupool_stats *stats) {
    gpi_stream_flush_all(arena, UINT64_MAX);
    *stats = arena->stats;
    stats->blocks = stats->allocs - stats->frees;
    stats->reserved = arena->chunks.reserved;
    stats->pending = arena->buddy.pending;
    stats->free_blocks = arena->buddy.free_runs;
    stats->chunks = arena->chunks.count;
    stats->driver_calls = GPI_LOOK(&arena->driver.memory_calls);
    stats->limit = arena->chunks.limit == UINT64_MAX ? 0 : arena->chunks.limit;
    stats->asleep = arena->chunks.asleep;
    stats->host = sizeof *arena + arena->buddy.region.opened - /* tables of granules: hardly used */
                  arena->buddy.granules * (sizeof(gpi_cell) + sizeof(gpi_chunk *));
}

GPUPOOL_API gpupool_result gpupool_get_stats(gpupool_arena *arena, gpupool_stats *stats) {
    gpupool_result result = gpi_alloc_lock(arena, "stats", stats);
    if (result != GPUPOOL_OK) return result;
    gpi_figures_read(arena, stats);
    return gpi_alloc_unlock(arena, result);
}

GPUPOOL_API gpupool_result gpupool_reset_peaks(gpupool_arena *arena) {
    gpupool_result result = gpi_alloc_lock(arena, "arena", arena);
    if (result != GPUPOOL_OK) return result;
    gpi_stream_flush_all(arena, UINT64_MAX);
    arena->stats.requested.peak = arena->stats.requested.now;
    arena->stats.allocated.peak = arena->stats.allocated.now;
    arena->chunks.reserved.peak = arena->chunks.reserved.now;
    arena->buddy.pending.peak = arena->buddy.pending.now;
    return gpi_alloc_unlock(arena, result);
}
/* == REPORT =======================================================================================
   What an arena has, told part by part: one walk, of which text and JSON are made.

       chunk [ live | pending | live | free ]   chunk [ live (goes on) | kept ]   ...

   R1  The parts of a chunk follow it, side by side; their bytes add up to the chunk's.
   R2  A report is made in host memory under the arena's lock, and written without it.

   Read first: gpi_report_walk, gpi_report_part, gpi_report_write. */

/* -- the walk -- */

/* What a run's memory from a unit on is. */
static void gpi_report_part(const gpupool_arena *arena, const gpi_run *run, uint64_t unit,
                            gpupool_part *part) {
    const gpi_run *block = run->state == GPI_PART ? run->stitch->body : run;
    uint32_t i;
    const gpi_stream *s = run->state == GPI_FREE ? run->list->stream : NULL;
    int is_of_graph =
        s ? s->kind == GPI_GRAPH : block->state == GPI_WAITING && gpi_stream_graph_of(block);
    part->kind = is_of_graph ? GPUPOOL_KEPT : GPUPOOL_PENDING;
    if (gpi_stream_describe(block, &part->block)) {
        part->kind = GPUPOOL_LIVE;
        part->offset = (unit - run->unit) * GPI_UNIT;
        for (i = 0; run->state == GPI_PART && run->stitch->pieces[i].unit != run->unit; i++)
            part->offset += run->stitch->pieces[i].units * GPI_UNIT; /* pieces are side by side */
        return;
    }
    memset(&part->block, 0, sizeof part->block);
    if (run->state == GPI_FREE && (!s || run->of.at <= gpi_stream_done(arena, s)))
        part->kind = GPUPOOL_FREE;
    else if (s && s->kind == GPI_ORDINARY)
        part->stream = s->key & 1 && s->key != 1 ? cudaStreamPerThread : (cudaStream_t)s->key;
}

/* Under the lock. */
static void gpi_report_walk(gpupool_arena *arena, gpupool_visit_fn visit, void *user) {
    const gpi_run *run = gpi_buddy_at(&arena->buddy, 0);
    uint64_t unit = 0, end;
    int is_over = 0;
    gpi_stream_flush_all(arena, 0);
    for (; run && !is_over; unit = end) {
        const gpi_chunk *chunk = gpi_buddy_chunk(&arena->buddy, unit);
        end = run->unit + run->units;
        if (chunk && unit < chunk->unit + chunk->units && run->state != GPI_EMPTY) {
            gpupool_part part;
            end = gpi_min(end, chunk->unit + chunk->units);
            memset(&part, 0, sizeof part);
            part.memory = (void *)(uintptr_t)gpi_address(&arena->buddy, unit);
            part.is_asleep = chunk->is_away;
            part.bytes = chunk->units * GPI_UNIT;
            if (unit == chunk->unit) is_over = visit(&part, user);
            part.bytes = (end - unit) * GPI_UNIT;
            gpi_report_part(arena, run, unit, &part);
            if (!is_over) is_over = visit(&part, user);
        }
        if (end == run->unit + run->units) run = run->right;
    }
}

GPUPOOL_API gpupool_result gpupool_walk_blocks(gpupool_arena *arena, gpupool_visit_fn visit,
                                               void *user) {
    gpupool_result result = gpi_alloc_lock(arena, "visit", visit ? arena : NULL);
    if (result != GPUPOOL_OK) return result;
    gpi_report_walk(arena, visit, user);
    return gpi_alloc_unlock(arena, result);
}

/* -- as text, and as JSON in one line -- */

/* The words of gpupool_stats, in their order: the first eight are bytes, and three from the limit
   on. (A new one is for gpi_figures_read and WORDS in examples/pytorch_allocator.py, too.) */
static const char *const gpi_report_names[] = {
    "requested",     "requested_peak", "allocated",    "allocated_peak", "reserved",
    "reserved_peak", "pending",        "pending_peak", "blocks",         "free_blocks",
    "chunks",        "stitches",       "limit",        "asleep",         "host",
    "allocs",        "frees",          "failures",     "stitched",       "reused",
    "driver_calls",  "marks",          "stream_waits", "host_waits"};
enum { GPI_WORDS = sizeof gpi_report_names / sizeof *gpi_report_names };
enum { GPI_LIMIT_WORD = offsetof(gpupool_stats, limit) / sizeof(uint64_t) };
typedef char gpi_report_names_all[sizeof(gpupool_stats) == GPI_WORDS * sizeof(uint64_t) ? 1 : -1];

typedef struct gpi_report {
    gpupool_arena *arena;
    FILE *file;
    const char *event, *sentence; /* what happened; the verdict's sentence, or "" */
    const uint64_t *words;        /* of gpupool_stats, as gpi_report_names has them */
    int chunks, parts;
} gpi_report;

static void gpi_report_text(gpi_report *report) {
    const gpupool_arena *arena = report->arena;
    FILE *file = report->file;
    gpi_holder holders[GPI_HOLDERS];
    const uint64_t *words = report->words;
    unsigned i;
    char text[128];
    fprintf(file, "gpupool: arena \"%s\" on device %d, %s: %s\n", arena->name, arena->driver.device,
            arena->chunks.source->name, report->event);
    if (*report->sentence) fprintf(file, "  %s\n", report->sentence);
    for (i = 0; i < GPI_WORDS; i++) {
        snprintf(text, sizeof text, "%llu", (unsigned long long)words[i]);
        fprintf(file, "  %-15s%13s%s", gpi_report_names[i],
                i < 8 || i - GPI_LIMIT_WORD < 3 ? gpi_text_size(words[i]).text : text,
                i % 2 || i + 1 == GPI_WORDS ? "\n" : "");
    }
    gpi_holder_list(arena, holders);
    for (i = 0; i < 8 && holders[i].blocks; i++) {
        gpi_holder_write(&holders[i], text, sizeof text);
        fprintf(file, "  %15s in %s\n", gpi_text_size(holders[i].bytes).text, text);
    }
}

static void gpi_report_string(FILE *file, const char *name, const char *text) {
    fprintf(file, ",\"%s\":\"", name);
    for (; *text; text += gpi_max(gpi_text_letter(text), 1)) {
        unsigned length = gpi_text_letter(text);
        if (*text == '"' || *text == '\\') fputc('\\', file);
        if (length) fwrite(text, 1, length, file);
        else fprintf(file, "\\u%04x", *text & 0x80 ? 0xfffdu : (unsigned)*text);
    }
    fputc('"', file);
}

static void gpi_report_number(FILE *file, const char *name, uint64_t number) {
    fprintf(file, ",\"%s\":%llu", name, (unsigned long long)number);
}

static int gpi_report_json_part(const gpupool_part *part, void *user) {
    static const char *const kinds[] = {"", "live", "pending", "kept", "free"};
    gpi_report *report = (gpi_report *)user;
    FILE *file = report->file;
    if (part->kind == GPUPOOL_CHUNK) {
        fprintf(file, "%s{\"address\":%llu", report->chunks++ ? "]}," : "",
                (unsigned long long)(uintptr_t)part->memory);
        gpi_report_number(file, "bytes", part->bytes);
        fprintf(file, ",\"is_asleep\":%d,\"parts\":[", part->is_asleep);
        report->parts = 0;
        return 0;
    }
    fprintf(file, "%s{\"kind\":\"%s\"", report->parts++ ? "," : "", kinds[part->kind]);
    gpi_report_number(file, "bytes", part->bytes);
    if (part->stream) gpi_report_number(file, "stream", (uintptr_t)part->stream);
    if (part->kind == GPUPOOL_LIVE) {
        gpi_report_number(file, "block", (uintptr_t)part->block.memory);
        gpi_report_number(file, "offset", part->offset);
        gpi_report_number(file, "requested", part->block.requested);
    }
    if (part->block.label) gpi_report_string(file, "label", part->block.label);
    fputc('}', file);
    return 0;
}

static void gpi_report_json(gpi_report *report) {
    const gpupool_arena *arena = report->arena;
    int i;
    fprintf(report->file, "{\"gpupool\":3,\"device\":%d", arena->driver.device);
    gpi_report_string(report->file, "name", arena->name);
    gpi_report_string(report->file, "source", arena->chunks.source->name);
    gpi_report_string(report->file, "event", report->event);
    gpi_report_string(report->file, "sentence", report->sentence);
    for (i = 0; i < GPI_WORDS; i++)
        gpi_report_number(report->file, gpi_report_names[i], report->words[i]);
    fprintf(report->file, ",\"memory\":[");
    gpi_report_walk(report->arena, gpi_report_json_part, report);
    fprintf(report->file, "%s]}\n", report->chunks ? "]}" : "");
}

/* -- where reports go -- */

/* R2. What the text lies in is malloc's. */
static gpupool_result gpi_report_write(gpupool_arena *arena, void (*form)(gpi_report *), FILE *to,
                                       const char *event, const char *sentence) {
    gpupool_stats stats;
    gpi_report report = {arena, NULL, event, sentence, (const uint64_t *)&stats, 0, 0};
    gpupool_result result = gpi_alloc_lock(arena, "file", to);
    char *text = NULL;
    size_t bytes = 0;
    int is_lost = 1;
    if (result != GPUPOOL_OK) return result;
    report.file = open_memstream(&text, &bytes);
    if (report.file) {
        gpi_stream_flush_all(arena, 0);
        gpi_figures_read(arena, &stats);
        form(&report);
        is_lost = ferror(report.file);
        if (fclose(report.file)) is_lost = 1; /* sets text and bytes */
    }
    gpi_system_unlock(&arena->lock);
    if (is_lost) result = gpi_system_no_memory();
    else if (fwrite(text, 1, bytes, to) != bytes || fflush(to))
        result = gpi_system_fail(GPUPOOL_E_FILE, "file: it cannot be written");
    free(text);
    return result;
}

GPUPOOL_API gpupool_result gpupool_report(gpupool_arena *arena, FILE *file) {
    return gpi_report_write(arena, gpi_report_text, file, "report", "");
}

GPUPOOL_API gpupool_result gpupool_write_json(gpupool_arena *arena, FILE *file) {
    return gpi_report_write(arena, gpi_report_json, file, "report", "");
}

/* Appends a report to the environment's file, in one write. */
static void gpi_report_event(gpupool_arena *arena, const char *event, const char *sentence) {
    gpi_failure before = gpi_thread.last;
    const char *path = gpi_text_variable("GPUPOOL_REPORT");
    size_t length = path ? strlen(path) : 0;
    int is_json = length > 5 && !strcmp(path + length - 5, ".json");
    FILE *file = path ? fopen(path, "ae") : NULL;
    if (!path) return;
    if (file) setvbuf(file, NULL, _IONBF, 0);
    if (gpi_report_write(arena, is_json ? gpi_report_json : gpi_report_text, file, event,
                         sentence) != GPUPOOL_OK)
        fprintf(stderr, "gpupool: GPUPOOL_REPORT: cannot write %s\n", path);
    if (file) fclose(file);
    gpi_thread.last = before;
}

/* O17: a forked child writes none. Only arenas that were never destroyed are left: default ones. */
static void gpi_report_at_exit(void) {
    gpupool_arena *arena = NULL;
    if (gpi_system_is_forked()) return;
    while ((arena = gpi_life_visit(arena)) != NULL) gpi_report_event(arena, "exit", "");
}

static void gpi_report_open(void) {
    static int is_open;
    if (gpi_text_variable("GPUPOOL_REPORT") && !__atomic_exchange_n(&is_open, 1, __ATOMIC_RELAXED))
        atexit(gpi_report_at_exit);
}

/* == SHAPE ========================================================================================
   Default arenas, and functions in the shapes of cudaMalloc and cudaFree over them.

       a block of a default arena                gpupool frees it
       an address of another arena               cudaErrorInvalidValue: gpupool_free is for it
       an address of no arena                    CUDA's own cudaFree or cudaFreeAsync

   SP1  gpupool_cudaMalloc allocates without a stream: any stream may use the block at once.
        cudaFree frees on stream ALL, behind all work of the device (O9).

   SP2  No address in an arena's memory reaches CUDA's own free: where a chunk of cudaMalloc begins
        it would free all of that. But a CUSTOM arena's chunk_free may free its chunks so.

   SP3  An error is CUDA's last error too, as after CUDA's own calls, where a call can set it.

   Read first: gpupool_get_default_arena, gpi_shape_owner, gpi_shape_fail. */

/* -- default arenas -- */

/* Two threads may make one at once: the first to take the lock wins. */
GPUPOOL_API gpupool_arena *gpupool_get_default_arena(int device) {
    int is_pinned = device == GPUPOOL_PINNED;
    gpupool_arena_config config;
    gpupool_arena **at, *arena, *first;
    if (!is_pinned && (device < 0 || device >= GPI_DEVICES)) {
        gpi_system_fail(GPUPOOL_E_ARGUMENT, "device: %d is neither a device nor GPUPOOL_PINNED",
                        device);
        return NULL;
    }
    at = &gpi_process.defaults[is_pinned ? 0 : device + 1];
    arena = gpi_system_is_forked() ? NULL : GPI_READ(at);
    if (arena) return arena;
    memset(&config, 0, sizeof config);
    config.name = is_pinned ? "pinned" : "default";
    config.source = is_pinned ? GPUPOOL_SOURCE_PINNED : GPUPOOL_SOURCE_AUTO;
    config.device = device;
    if (is_pinned && GPI_RUN(cudaGetDevice, &config.device) != GPUPOOL_OK) return NULL;
    if (gpupool_arena_create(&arena, &config) != GPUPOOL_OK) return NULL;
    gpi_system_lock(&gpi_process.lock);
    first = *at;
    arena->default_at = at;
    if (!first) GPI_PUBLISH(at, arena);
    gpi_system_unlock(&gpi_process.lock);
    if (first) gpi_life_end(arena);
    return first ? first : arena;
}

/* Of two threads that reset a device one ends its arenas. */
GPUPOOL_API cudaError_t gpupool_cudaDeviceReset(void) {
    gpupool_arena **at = gpi_process.defaults, *arena;
    int device;
    if (!gpi_system_is_forked() && cudaGetDevice(&device) == cudaSuccess)
        for (; at <= &gpi_process.defaults[GPI_DEVICES]; at++) {
            arena = GPI_READ(at);
            if (!arena || arena->config.device != device ||
                !__atomic_compare_exchange_n(at, &arena, (gpupool_arena *)NULL, 0, __ATOMIC_ACQ_REL,
                                             __ATOMIC_RELAXED))
                continue;
            gpi_report_event(arena, "destroy", "");
            gpi_life_end(arena);
        }
    return cudaDeviceReset();
}

/* -- errors -- */

/* CUDA's error for a failure. Only a call that fails sets CUDA's last error (SP3): so one is made
   to fail, in relaxed mode, where it ends no capture. It also says which error has stayed. */
static cudaError_t gpi_shape_fail(gpupool_result result) {
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    int is_memory = result == GPUPOOL_E_OUT_OF_MEMORY || result == GPUPOOL_E_HOST_MEMORY;
    int is_cuda = result == GPUPOOL_E_CUDA;
    void *none = NULL;
    cudaError_t error;
    if (result == GPUPOOL_E_FORKED) return cudaErrorInitializationError;
    if (result == GPUPOOL_E_CAPTURING) return cudaErrorStreamCaptureUnsupported;
    cudaThreadExchangeStreamCaptureMode(&mode);
    error = cudaMalloc(is_memory || is_cuda ? &none : NULL, SIZE_MAX);
    cudaThreadExchangeStreamCaptureMode(&mode);
    if (!is_cuda || error != cudaErrorMemoryAllocation) return error;
    cudaGetLastError();
    return cudaErrorUnknown;
}

/* -- allocate -- */

/* The default arena of a stream's device, which need not be the current one. */
static gpupool_arena *gpi_shape_arena_of(cudaStream_t stream, int current) {
    gpupool_arena *arena = gpupool_get_default_arena(current);
    CUcontext context = NULL;
    CUdevice device = current;
    gpi_driver *driver;
    gpi_stream *s;
    if (!arena || gpi_driver_is_special(stream)) return arena;
    driver = &arena->driver;
    s = gpi_stream_find(arena, gpi_stream_key(stream));
    if (s) context = s->context;
    else if (driver->stream_context(stream, &context) != CUDA_SUCCESS) return arena;
    if (context == driver->context) return arena;
    GPI_VISIT(driver, context);
    driver->context_device(&device);
    return gpupool_get_default_arena(device);
}

/* Whether the stream captures without a scope, where memory is CUDA's graph's. */
static int gpi_shape_is_captured(gpupool_arena *arena, cudaStream_t stream) {
    const gpi_stream *s;
    if (!arena || stream == GPUPOOL_NO_STREAM || !gpi_driver_is_capturing(&arena->driver, stream))
        return 0;
    s = gpi_stream_find(arena, gpi_stream_key(stream));
    return !s || !GPI_LOOK(&s->scope);
}

/* 0 bytes are NULL and no error, and more than there can be is no mistake, as with CUDA. */
static cudaError_t gpi_shape_malloc(void **pointer, size_t bytes, cudaStream_t stream) {
    gpupool_request request = {bytes, 0, stream, 0, NULL};
    gpupool_arena *arena;
    cudaError_t error;
    int device;
    if (!pointer) return gpi_shape_fail(gpi_system_fail(GPUPOOL_E_ARGUMENT, "pointer: it is NULL"));
    error = cudaGetDevice(&device); /* an error is CUDA's last one already */
    gpi_thread.runtime = error;     /* and stays CUDA's last one */
    if (gpi_driver_ran("cudaGetDevice", error) != GPUPOOL_OK) return error;
    arena = gpi_shape_arena_of(stream, device);
    if (gpi_shape_is_captured(arena, stream))
        return GPUPOOL_HERE(cudaMallocAsync)(pointer, bytes, stream);
    *pointer = NULL;
    if (bytes == 0) return cudaSuccess;
    if (arena) *pointer = gpi_alloc(arena, &request);
    if (*pointer) return cudaSuccess;
    return gpi_shape_fail(bytes > (uint64_t)1 << 46 ? GPUPOOL_E_OUT_OF_MEMORY
                                                    : gpi_thread.last.result);
}

GPUPOOL_API cudaError_t gpupool_cudaMalloc(void **pointer, size_t bytes) {
    return gpi_shape_malloc(pointer, bytes, GPUPOOL_NO_STREAM);
}

GPUPOOL_API cudaError_t gpupool_cudaMallocAsync(void **pointer, size_t bytes, cudaStream_t stream) {
    return gpi_shape_malloc(pointer, bytes, stream ? stream : GPUPOOL_STREAM_HERE);
}

/* -- free -- */

/* Whether an address is the arena's, by SP2. */
static int gpi_shape_owns(gpupool_arena *arena, const void *block) {
    uint64_t address = (uint64_t)(uintptr_t)block;
    const gpi_run *run;
    gpi_system_lock(&arena->lock);
    run = gpi_buddy_lookup(&arena->buddy, address, INT32_MAX);
    if (!run && arena->config.source != GPUPOOL_SOURCE_CUSTOM)
        run = gpi_alloc_around(arena, address);
    gpi_system_unlock(&arena->lock);
    return run != NULL;
}

static cudaError_t gpi_shape_free_in(gpupool_arena *arena, void *block, cudaStream_t stream) {
    gpupool_result result;
    if (!arena->default_at)
        result = gpi_system_fail(GPUPOOL_E_NOT_OURS,
                                 "block: %p is in arena \"%s\", which is no default one: "
                                 "gpupool_free is for it",
                                 block, arena->name);
    else result = gpupool_free(arena, block, stream);
    return result == GPUPOOL_OK ? cudaSuccess : gpi_shape_fail(result);
}

/* The default arena that has a block at this address; NULL: none is seen without a lock. */
static gpupool_arena *gpi_shape_peek(const void *block) {
    uint64_t address = (uint64_t)(uintptr_t)block;
    int i;
    for (i = 0; i <= GPI_DEVICES; i++) {
        gpupool_arena *arena = GPI_READ(&gpi_process.defaults[i]);
        if (arena && gpi_buddy_lookup(&arena->buddy, address, GPI_PEEKS)) return arena;
    }
    return NULL;
}

/* Frees an address of any arena, without a CUDA call for one of a default arena; 0: it is of none.
 */
static int gpi_shape_free(void *block, cudaStream_t stream, cudaError_t *error) {
    gpupool_arena *arena = NULL;
    int is_found = gpi_system_is_forked();
    if (is_found) *error = gpi_shape_fail(gpi_alloc_enter(NULL));
    else arena = gpi_shape_peek(block);
    if (arena) *error = gpi_shape_free_in(arena, block, stream);
    if (arena || is_found) return 1;
    while ((arena = gpi_life_visit(arena)) != NULL) {
        if (is_found || !gpi_shape_owns(arena, block)) continue;
        *error = gpi_shape_free_in(arena, block, stream);
        is_found = 1;
    }
    return is_found;
}

/* NULL goes on to CUDA: programs call cudaFree(NULL) to make the context. */
GPUPOOL_API cudaError_t gpupool_cudaFree(void *block) {
    cudaError_t error;
    if (block && gpi_shape_free(block, GPI_ALL_STREAM, &error)) return error;
    return cudaFree(block);
}

GPUPOOL_API cudaError_t gpupool_cudaFreeAsync(void *block, cudaStream_t stream) {
    cudaError_t error;
    if (!block) return cudaSuccess;
    if (!stream) stream = GPUPOOL_STREAM_HERE;
    if (gpi_shape_free(block, stream, &error)) return error;
    return GPUPOOL_HERE(cudaFreeAsync)(block, stream);
}
/* == CHECK ========================================================================================
   The invariants of the sections above, asked one by one: for tests and for whoever suspects the
   arena. */

#define GPI_MUST(what, holds) \
    do { \
        if (!(holds)) \
            return gpi_system_fail(GPUPOOL_E_CUDA, "a record is broken: %s (%s)", what, #holds); \
    } while (0)

/* A free run: in its list, and not beside one that it should have joined. */
static gpupool_result gpi_check_free(const gpupool_arena *arena, const gpi_run *run) {
    const gpi_run *right = run->right, *filed = run->list->heads[gpi_buddy_bin(run->units)];
    const gpi_stream *s = run->list->stream;
    while (filed && filed != run) filed = filed->next;
    GPI_MUST("B2 in its bin", filed);
    GPI_MUST("B2 joined", !right || right->state != run->state || right->list != run->list ||
                              (run->state == GPI_FREE && (arena->buddy.is_apart || s)));
    GPI_MUST("ST2", !s || run->of.at <= s->issued);
    return GPUPOOL_OK;
}

static gpupool_result gpi_check_block(const gpupool_arena *arena, const gpi_run *run) {
    const gpi_stitch *stitch = run->stitch;
    uint32_t i;
    GPI_MUST("B4 index", gpi_buddy_lookup(&arena->buddy, run->address, INT32_MAX) == run);
    GPI_MUST("B4 address", run->address == gpi_address(&arena->buddy, run->unit));
    GPI_MUST("B4 slack", run->slack < gpi_block_units(run) * GPI_UNIT);
    GPI_MUST("ST4", (run->state == GPI_OUT) == (run->cache != NULL));
    for (i = 0; stitch && i < stitch->count; i++) {
        const gpi_run *part = gpi_buddy_at(&arena->buddy, stitch->pieces[i].unit);
        GPI_MUST("M1 part", part->state == GPI_PART && part->stitch == stitch);
        GPI_MUST("M1 place", part->unit == gpi_buddy_chunk(&arena->buddy, part->unit)->unit &&
                                 part->units == stitch->pieces[i].units);
    }
    return GPUPOOL_OK;
}

/* A run, which is added up. */
static gpupool_result gpi_check_run(const gpupool_arena *arena, const gpi_run *run,
                                    gpupool_stats *sums) {
    uint64_t bytes = gpi_block_units(run) * GPI_UNIT, end = run->unit + run->units;
    GPI_MUST("B1 side by side",
             end == (run->right ? run->right->unit : arena->buddy.granules * GPI_GRANULE));
    GPI_MUST("B1 links", !run->right || run->right->left == run);
    GPI_MUST("B3 start", gpi_buddy_at(&arena->buddy, run->unit) == run);
    GPI_MUST("B3 end", gpi_buddy_at(&arena->buddy, end - 1) == run);
    if (run->state == GPI_LIVE || run->state == GPI_OUT) {
        int is_cached = run->state == GPI_OUT && run->is_cached;
        sums->blocks += !is_cached;
        sums->allocated.now += is_cached ? 0 : bytes;
        sums->requested.now += is_cached ? 0 : bytes - run->slack;
        return gpi_check_block(arena, run);
    }
    if (run->state == GPI_WAITING) {
        GPI_MUST("ST5", run->of.uses);
        sums->pending.now += bytes;
    }
    if (run->state != GPI_FREE && run->state != GPI_EMPTY && run->state != GPI_SPACE)
        return GPUPOOL_OK;
    sums->free_blocks += run->state == GPI_FREE;
    if (run->list->stream) sums->pending.now += bytes;
    return gpi_check_free(arena, run);
}

static gpupool_result gpi_check_chunks(const gpupool_arena *arena) {
    const gpi_chunks *chunks = &arena->chunks;
    uint64_t bytes = 0, away = 0, i;
    for (i = 0; i < chunks->count; i++) {
        const gpi_chunk *chunk = chunks->all[i];
        GPI_MUST("CH1 order", !i || chunks->all[i - 1]->units >= chunk->units);
        GPI_MUST("CH2",
                 gpi_buddy_chunk(&arena->buddy, chunk->unit) == chunk &&
                     gpi_buddy_chunk(&arena->buddy, chunk->unit + chunk->units - 1) == chunk);
        *(chunk->is_away ? &away : &bytes) += chunk->units * GPI_UNIT;
    }
    GPI_MUST("CH1 reserved", bytes == chunks->reserved.now);
    GPI_MUST("SL1", away == chunks->asleep && (!away || arena->sleep || *arena->broken));
    return GPUPOOL_OK;
}

static gpupool_result gpi_check_stitches(const gpupool_arena *arena) {
    const gpi_stitches *stitches = &arena->stitches;
    uint64_t count = 0, idle = 0;
    const gpi_stitch *stitch;
    int bin;
    for (bin = 0; bin < GPI_BINS; bin++)
        for (stitch = stitches->bins[bin]; stitch; stitch = stitch->next) {
            count++;
            GPI_MUST("M2 body",
                     stitch->body->stitch == stitch && stitch->body->unit == stitch->range.unit);
            GPI_MUST("SL1 stitch", !stitch->range.is_away || arena->sleep || *arena->broken);
            if (gpi_stitch_is_idle(stitch)) idle += stitch->count;
        }
    GPI_MUST("M counts", count == arena->stats.stitches && idle == stitches->idle_pieces);
    return GPUPOOL_OK;
}

/* A stream's cache, whose lock is held. */
static gpupool_result gpi_check_stream(const gpupool_arena *arena, const gpi_stream *s) {
    uint64_t cached = 0;
    const gpi_run *run;
    int bin;
    for (bin = 0; bin <= GPI_SMALL; bin++)
        for (run = s->bins[bin]; run; run = run->next) {
            GPI_MUST("ST4 cached", run->is_cached && run->cache == s && run->state == GPI_OUT &&
                                       run->units == (uint64_t)bin);
            cached += run->units;
        }
    GPI_MUST("ST4 units", cached == s->cached_units);
    GPI_MUST("ST1", s->passed <= arena->streams.position && s->mark_at <= s->issued);
    GPI_MUST("O5", !s->list.units || s->kind == GPI_ORDINARY || s->kind == GPI_ALL);
    return GPUPOOL_OK;
}

static gpupool_result gpi_check_sums(gpupool_arena *arena) {
    gpupool_result result = GPUPOOL_OK;
    gpi_run *run = gpi_buddy_at(&arena->buddy, 0);
    gpupool_stats sums;
    memset(&sums, 0, sizeof sums);
    for (; run && result == GPUPOOL_OK; run = run->right) result = gpi_check_run(arena, run, &sums);
    if (result != GPUPOOL_OK) return result;
    GPI_MUST("blocks", sums.blocks == arena->stats.allocs - arena->stats.frees);
    GPI_MUST("allocated", sums.allocated.now == arena->stats.allocated.now);
    GPI_MUST("requested", sums.requested.now == arena->stats.requested.now);
    GPI_MUST("free runs", sums.free_blocks == arena->buddy.free_runs);
    GPI_MUST("pending", sums.pending.now == arena->buddy.pending.now);
    return GPUPOOL_OK;
}

GPUPOOL_API gpupool_result gpupool_check(gpupool_arena *arena) {
    gpupool_result result = gpi_alloc_lock(arena, "arena", arena);
    gpi_stream *s;
    if (result != GPUPOOL_OK) return result;
    for (s = arena->streams.all_streams; s; s = s->next) gpi_system_lock(&s->lock);
    for (s = arena->streams.all_streams; s; s = s->next) {
        gpi_stream_fold(arena, s);
        if (result == GPUPOOL_OK) result = gpi_check_stream(arena, s);
    }
    if (result == GPUPOOL_OK) result = gpi_check_sums(arena);
    if (result == GPUPOOL_OK) result = gpi_check_chunks(arena);
    if (result == GPUPOOL_OK) result = gpi_check_stitches(arena);
    for (s = arena->streams.all_streams; s; s = s->next) gpi_system_unlock(&s->lock);
    gpi_system_unlock(&arena->lock);
    return result;
}

/* == FILE =========================================================================================
   Reads parts of a file for a ring, at offsets, from several threads at a time. What is not in the
   system's page cache is read past it, straight into pinned memory, which saves one copy.

       caller's descriptor -- pread ----------------> memory    in the page cache, or not aligned
       our own descriptor, O_DIRECT -- pread -------> memory    not in the page cache

   F1  The caller's descriptor, its offset and its flags never change, nor do locks by fcntl that
       were set before gpi_file_open.
   F2  gpi_file_read fills all bytes or fails: pread goes on where a direct read ended, and tells
       the error that ended it.
   F3  Where memory and offset have equal remainders modulo a page, all pages that the memory
       touches belong to the caller: a direct read fills whole pages.

   Read first: gpi_file_read. */

enum {
    GPI_FILE_PAGE = 4096,      /* what O_DIRECT wants memory and offset to be multiples of */
    GPI_FILE_LEAST = 64 << 10, /* bytes from which a second descriptor pays */
    GPI_FILE_GET_LOCK = 36,    /* F_OFD_GETLK, */
    GPI_FILE_NO_WAIT = 8       /* RWF_NOWAIT, which c11 hides */
};

static gpupool_result gpi_file_failed(uint64_t at, const char *why) {
    return gpi_system_fail(GPUPOOL_E_FILE, "reading the file at byte %llu: %s",
                           (unsigned long long)at, why);
}

/* Whether a process, this one included, has locked a part of the file with fcntl. Closing any
   descriptor of a file drops all such locks that the process has on it (F1). */
static int gpi_file_is_locked(int file) {
    struct flock lock = {F_WRLCK, SEEK_SET, 0, 0, 0}; /* stays so if the system cannot tell */
    (void)fcntl(file, GPI_FILE_GET_LOCK, &lock);
    return lock.l_type != F_UNLCK;
}

/* Prepares reads of bytes from `at` on. *direct receives a second descriptor of the file with
   O_DIRECT, or keeps -1: a file system may refuse it. That is opened by its name under /proc, since
   dup would share the caller's flags. */
static gpupool_result gpi_file_open(int file, uint64_t at, uint64_t bytes, int *direct) {
    struct stat about;
    char name[32];
    if (fstat(file, &about)) return gpi_file_failed(at, strerror(errno));
    if (!S_ISREG(about.st_mode)) return GPUPOOL_OK;
    if ((uint64_t)about.st_size < at + bytes)
        return gpi_file_failed((uint64_t)about.st_size, "it ends here, before what is asked");
    if (bytes < GPI_FILE_LEAST || gpi_file_is_locked(file)) return GPUPOOL_OK;
    snprintf(name, sizeof name, "/proc/self/fd/%d", file);
    *direct = open(name, O_RDONLY | __O_CLOEXEC | __O_DIRECT);
    return GPUPOOL_OK;
}

/* Whether the page with byte `at` is in the page cache, or the system does not tell. A read that
   must not wait answers on most file systems, mincore of a fresh mapping on the others. */
static int gpi_file_is_cached(int file, uint64_t at) {
    unsigned char byte, is_in = 1;
    struct iovec part = {&byte, 1};
    long got = syscall(SYS_preadv2, file, &part, 1L, (long)at, 0L, (long)GPI_FILE_NO_WAIT);
    void *page;
    if (got >= 0 || errno == EAGAIN) return got >= 0;
    at = gpi_down(at, GPI_FILE_PAGE);
    page = mmap(NULL, GPI_FILE_PAGE, PROT_READ, MAP_SHARED, file, (off_t)at);
    if (page == MAP_FAILED) return 1;
    if (syscall(SYS_mincore, page, (long)GPI_FILE_PAGE, &is_in)) is_in = 1;
    munmap(page, GPI_FILE_PAGE);
    return is_in & 1;
}

/* Reads bytes of the file from `at` on: first whole pages past the page cache (F3), then what that
   left. The page that is asked about lies anywhere in the part: the question may start the system's
   own read of it, and always the first page would make the next transfer of the file look cached.
 */
static gpupool_result gpi_file_read(int file, int direct, unsigned char *memory, uint64_t at,
                                    uint64_t bytes) {
    uint64_t head = at % GPI_FILE_PAGE, whole = gpi_up(head + bytes, GPI_FILE_PAGE), done = 0;
    ssize_t got = 0;
    if (direct >= 0 && ((uintptr_t)memory - at) % GPI_FILE_PAGE == 0 &&
        !gpi_file_is_cached(file, at + gpi_hash(at + (uintptr_t)memory + bytes) % bytes))
        got = pread(direct, memory - head, whole, (off_t)(at - head));
    if (got > (ssize_t)head) done = gpi_min((uint64_t)got - head, bytes);
    for (; done < bytes; done += (uint64_t)got) {
        got = pread(file, memory + done, bytes - done, (off_t)(at + done));
        if (got == 0) return gpi_file_failed(at + done, "it ends here, before what is asked");
        if (got < 0 && errno != EINTR) return gpi_file_failed(at + done, strerror(errno));
        if (got < 0) got = 0;
    }
    return GPUPOOL_OK;
}

/* == RING =========================================================================================
   Transfers between ordinary host memory, or a file, and the device, at the speed of pinned memory.
   Callers and helpers (the ring's workers) copy the chunks of a transfer side by side. A thread
   that works has a hand: two pinned slots with an event each. All hands' copies of one direction
   are in one stream of the ring's: on an H100 a copy in another stream starts 10 us later.

       ring->first -> transfer -> transfer -> NULL    in order of arrival
       a transfer  |  parts given to threads  |       parts to come       |
                   0                          cursor                      bytes

       ring->idle -> hand -> hand -> NULL             others belong to the threads that work
       a hand      [ slot 0 | slot 1 ]  events 0, 1
           upload      host --memcpy--> slot --copy--> device, while the other slot's copy runs
           download    device --copy--> slot --memcpy--> host, while the other slot's copy runs

   R1  Rule G: a part begins after the work that the program's stream had before. A call without a
       ticket waits for the stream before its transfer is in the list; a ticket's transfer is gated
       until its event has passed. So no slot ever waits for a stream of the program.
   R2  The host touches a slot only after the slot's last copy has passed. Only the thread that has
       the hand asks. Between two turns nothing of a hand is under way.
   R3  A thread that has a hand waits for the hand's stream, for a file, or in the program's
       function, and for no other hand or transfer: so hands come back. In CUDA only the call's own
       thread waits for a stream of the program, without a hand.
   R4  done <= cursor <= bytes. Each byte belongs to one part. No part begins while the transfer is
       gated, or after its first failure.
   R5  A transfer is over once it is not gated, no thread is busy in it, and no part is to come:
       then nothing touches the program's memory, file or functions for it any more. When nobody
       waits in it either, the next transfer takes its record off the list; a ticket's failure stays
       until KEPT tickets have come after it. So a ticket that is not in the list, and later than
       each failure that has left it, has ended well.
   R6  stats.pinned <= stats.limit <= config.bytes, both whole hands.
   R7  The lock is held for lists, records and counts, and while an event is queried (D2); never
       across another call of CUDA, a copy, a file, or the program's function.
   R8  A hand whose stream cannot be waited for breaks the ring: all transfers fail with the first
       cause. A resource call that fails is undone; the ring then makes do with the hands it has,
       and the transfer fails if there is none.

   Read first: gpi_ring_turn, gpi_ring_await, gpi_ring_helper, gpi_ring_begin. */

enum {
    GPI_RING_SPIN = 800, /* pauses, some 30 us, before a thread sleeps: a wake takes as long */
    GPI_RING_SMALL = 64 << 10,  /* up to here CUDA copies ordinary memory quicker */
    GPI_RING_LEAST = 128 << 10, /* the smallest part, but for the last */
    GPI_RING_HELP = 1 << 20,    /* bytes from which helpers are called */
    GPI_RING_CREW = 10,         /* threads in one transfer: more wait for each other in CUDA */
    GPI_RING_TURN = 8,          /* parts, before a thread looks at other transfers */
    GPI_RING_MOST = 64,         /* workers; by default, */
    GPI_RING_USUAL = 11,        /* or one less than the processors; at least 1 */
    GPI_RING_POLL_NS = 100000,  /* between two queries of the events that gate transfers */
    GPI_RING_KEPT = 1024,       /* the latest tickets: of others no bytes or failures */
    GPI_RING_ASKED = 16,        /* of so many transfers each new one asks the event of one */
};

typedef struct gpi_ring_part { /* bytes [first, first + bytes) of a transfer, */
    uint64_t first, bytes;
    uint64_t at[2], pitch[2]; /* and where they go from and to: the host's, or a slot, is [down] */
} gpi_ring_part;

typedef struct gpi_hand {
    struct gpi_hand *next;  /* that is idle */
    uint64_t slots;         /* address of the pinned memory; 0: not pinned */
    CUevent events[2];      /* behind a slot's last copy */
    gpi_ring_part parts[2]; /* under way; bytes 0: none */
    gpi_visit *visit;       /* of the thread that has the hand */
} gpi_hand;

typedef struct gpi_transfer {
    CUevent event; /* kept from use to use; what it is behind gates the transfer */
    struct gpi_transfer *next;
    gpupool_transfer what;    /* as the program gave it */
    uint64_t at[2], pitch[2]; /* from, to: addresses, and bytes from row to row; [down]: host */
    uint64_t width, bytes;    /* of a row; of all rows */
    int direct_file;          /* the second descriptor of a file; -1: none */
    int down, is_gated, is_by_cuda, is_over; /* is_gated: event not known to have passed; R5 */
    uint64_t cursor, done, helpers;          /* done is atomic; how many helpers are of use */
    int busy, waiters;                       /* threads that work for it, or wait for its result */
    gpupool_ticket ticket;                   /* 0: its call waits itself */
    gpi_failure failure;                     /* the first */
} gpi_transfer;

struct gpupool_ring {
    gpi_driver driver;
    CUstream streams[2]; /* for copies up, and down */
    gpi_lock lock;
    int work, done;                        /* bells: helpers sleep on work, callers on done */
    int is_polled, is_stopping, is_broken; /* a helper asks events; they are to end; R8, atomic */
    int is_trusted; /* SLEEP's: the device has been waited for, and its ranges are no blocks */
    gpi_transfer *first, *spare;
    gpi_hand *idle;
    uint64_t slot_bytes, workers_most;
    gpupool_ticket tickets, forgotten; /* the latest; the latest failure that has left the list */
    uint64_t sizes[GPI_RING_KEPT];     /* bytes of the latest tickets, by their remainders */
    pthread_t threads[GPI_RING_MOST];
    gpupool_ring_stats stats; /* pinned: also hands in the making */
    gpi_failure cause;        /* of a broken ring */
};

/* -- threads sleep, and bytes move -- */

/* Opens the lock and sleeps until the bell rings, for at most ns. Bells are rung, and looked at
   before a sleep, with the lock held: so no ring is missed. */
static void gpi_ring_sleep(gpupool_ring *ring, int *bell, uint64_t ns) {
    struct timespec most = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    int seen = GPI_LOOK(bell), i;
    gpi_system_unlock(&ring->lock);
    for (i = 0; i < GPI_RING_SPIN && GPI_LOOK(bell) == seen; i++) GPI_PAUSE();
    if (i == GPI_RING_SPIN) syscall(SYS_futex, bell, FUTEX_WAIT_PRIVATE, seen, &most, NULL, 0);
    gpi_system_lock(&ring->lock);
}

static void gpi_ring_wake(int *bell, uint64_t threads) {
    __atomic_fetch_add(bell, 1, __ATOMIC_RELAXED);
    syscall(SYS_futex, bell, FUTEX_WAKE_PRIVATE, (int)threads, NULL, NULL, 0);
}

static uint64_t gpi_ring_address(const gpi_transfer *t, int side, uint64_t byte) {
    return t->at[side] + byte / t->width * t->pitch[side] + byte % t->width;
}

/* Queues the copy of a part, whole rows or a part of one row. */
static CUresult gpi_ring_copy(const gpi_driver *driver, const gpi_transfer *t,
                              const gpi_ring_part *part, CUstream stream) {
    CUDA_MEMCPY2D rows;
    if (part->bytes <= t->width) return driver->copy(part->at[1], part->at[0], part->bytes, stream);
    memset(&rows, 0, sizeof rows);
    rows.srcMemoryType = rows.dstMemoryType = CU_MEMORYTYPE_UNIFIED; /* the addresses tell */
    rows.srcDevice = part->at[0];
    rows.srcPitch = part->pitch[0];
    rows.dstDevice = part->at[1];
    rows.dstPitch = part->pitch[1];
    rows.WidthInBytes = t->width;
    rows.Height = part->bytes / t->width;
    return driver->copy_rows(&rows, stream);
}

/* Moves a part between its slot and the program's memory, file or function. Functions run in the
   context and the capture mode that the thread had outside of the ring. An upload's slot is read by
   the device at once, so it is written through the caches. */
static gpupool_result gpi_ring_move(gpupool_ring *ring, const gpi_transfer *t,
                                    const gpi_ring_part *part, gpi_visit *visit) {
    const gpupool_transfer *what = &t->what;
    unsigned char *slot = (unsigned char *)(uintptr_t)part->at[t->down];
    uint64_t at = part->first, end = at + part->bytes, bytes;
    int said;
    if (what->is_file)
        return gpi_file_read(what->file, t->direct_file, slot, what->offset + at, part->bytes);
    if (what->read || what->write) {
        gpi_driver_leave(visit);
        said = t->down ? what->write(slot, part->bytes, at, what->user)
                       : what->read(slot, part->bytes, at, what->user);
        *visit = gpi_driver_enter(&ring->driver, ring->driver.context);
        return !said ? GPUPOOL_OK
                     : gpi_system_fail(GPUPOOL_E_CALLBACK, "your function returned %d at byte %llu",
                                       said, (unsigned long long)at);
    }
    for (; at < end; at += bytes, slot += bytes) {
        unsigned char *host = (unsigned char *)(uintptr_t)gpi_ring_address(t, t->down, at);
        bytes = gpi_min(end - at, t->width - at % t->width);
        if (t->down) gpi_system_copy_away(host, slot, bytes);
        else memcpy(slot, host, bytes);
    }
    return GPUPOOL_OK;
}

/* -- a transfer's life: the lock is held, but where a comment says otherwise -- */

static int gpi_ring_has_more(const gpi_transfer *t) {
    return !t->is_gated && t->cursor < t->bytes && t->failure.result == GPUPOOL_OK;
}

/* Notes the first failure of a transfer that is not over: this thread's last. Memory that is short
   is the host's: of the device's the ring takes none. */
static void gpi_ring_fail(gpi_transfer *t, gpupool_result result) {
    if (result == GPUPOOL_OK || t->is_over || t->failure.result != GPUPOOL_OK) return;
    t->failure = gpi_thread.last;
    if (result == GPUPOOL_E_OUT_OF_MEMORY) t->failure.result = GPUPOOL_E_HOST_MEMORY;
}

/* Opens a gated transfer whose event has passed, and calls as many helpers as it can use; an event
   that cannot be asked fails its transfer. Ends a transfer that is over (R5), and tells who waits
   for it. */
static void gpi_ring_settle(gpupool_ring *ring, gpi_transfer *t) {
    if (t->is_gated) {
        CUresult error = ring->driver.event_query(t->event);
        if (error == CUDA_ERROR_NOT_READY) return;
        t->is_gated = 0;
        gpi_ring_fail(t, GPI_TOLD(&ring->driver, event_query, error));
        if (gpi_ring_has_more(t)) gpi_ring_wake(&ring->work, t->helpers);
    }
    if (t->is_over || t->busy || gpi_ring_has_more(t)) return;
    t->is_over = 1;
    if (t->direct_file >= 0) close(t->direct_file);
    if (t->failure.result == GPUPOOL_OK) {
        GPI_SET(&t->done, t->bytes);
        ring->stats.transfers[t->down]++;
        ring->stats.bytes[t->down] += t->bytes;
        if (t->is_by_cuda) ring->stats.direct_bytes[t->down] += t->bytes;
    } else ring->stats.failures++;
    if (t->waiters) gpi_ring_wake(&ring->done, INT32_MAX);
}

/* Takes transfers that are over, and whose records nobody needs, off the list (R5), and returns the
   list's end. Gates that no helper asks are asked in turn, so that the list stays about as long as
   what is under way. */
static gpi_transfer **gpi_ring_tidy(gpupool_ring *ring) {
    gpi_transfer **link = &ring->first, *t;
    uint64_t turn = ring->tickets;
    while ((t = *link) != NULL) {
        int is_old = !t->ticket || ring->tickets - t->ticket >= GPI_RING_KEPT;
        if (turn++ % GPI_RING_ASKED == 0) gpi_ring_settle(ring, t);
        if (t->is_over && !t->waiters && (is_old || t->failure.result == GPUPOOL_OK)) {
            if (t->failure.result) ring->forgotten = gpi_max(ring->forgotten, t->ticket);
            *link = t->next;
            t->next = ring->spare;
            ring->spare = t;
        } else link = &t->next;
    }
    return link;
}

/* Cuts the next part, if there is one. Parts are small at first, so that the device starts early,
   and at the end, so that all threads end at about the same time. A part is whole rows, or lies in
   one row. A part of a file ends where a page of the file does, and begins in the slot as in its
   page (F3): at[down] is an offset in the slot. */
static void gpi_ring_next(const gpupool_ring *ring, gpi_transfer *t, gpi_ring_part *part) {
    uint64_t threads = ring->stats.workers + 1, first = t->cursor, left = t->bytes - first;
    uint64_t offset = t->what.is_file ? (t->what.offset + first) % GPI_FILE_PAGE : 0;
    uint64_t column, most = gpi_max(first / threads, 2 * GPI_RING_LEAST);
    if (!gpi_ring_has_more(t)) return;
    most = gpi_min(most, gpi_max(left / (2 * threads), GPI_RING_LEAST));
    most = gpi_min(gpi_min(gpi_up(most, GPI_FILE_PAGE), ring->slot_bytes) - offset, left);
    column = first % t->width;
    part->first = first;
    part->bytes =
        column || t->width > most ? gpi_min(most, t->width - column) : most / t->width * t->width;
    part->at[t->down] = offset;
    part->pitch[t->down] = t->width;
    part->at[!t->down] = gpi_ring_address(t, !t->down, first);
    part->pitch[!t->down] = t->pitch[!t->down];
    t->cursor += part->bytes;
}

/* -- hands -- */

/* Without the lock. What the driver does not let go keeps its addresses: the device may use it. */
static void gpi_ring_close_hand(gpupool_ring *ring, gpi_hand *hand) {
    if (hand->events[0]) ring->driver.event_destroy(hand->events[0]);
    if (hand->events[1]) ring->driver.event_destroy(hand->events[1]);
    if (!hand->slots || !ring->driver.host_unregister((void *)(uintptr_t)hand->slots))
        munmap(hand, 2 * ring->slot_bytes + 2 * GPI_STEP);
}

/* Without the lock. Huge pages are pinned five times as fast; pages that a fork shares would be
   moved under the device at the parent's next write. */
static gpupool_result gpi_ring_pin_hand(gpupool_ring *ring, gpi_hand *hand) {
    void *slots = (void *)(uintptr_t)gpi_up((uintptr_t)(hand + 1), GPI_STEP);
    uint64_t bytes = 2 * ring->slot_bytes;
    gpupool_result result;
    int i;
    syscall(SYS_madvise, slots, bytes, (long)MADV_HUGEPAGE);
    result = GPI_TELL(&ring->driver, host_register, slots, bytes, CU_MEMHOSTREGISTER_PORTABLE);
    if (result == GPUPOOL_OK) hand->slots = (uintptr_t)slots;
    for (i = 0; i < 2 && result == GPUPOOL_OK; i++)
        result = GPI_TELL(&ring->driver, event_create, &hand->events[i], CU_EVENT_DISABLE_TIMING);
    return result;
}

/* A new hand; the lock opens. NULL: the host or the driver refuses (R8). */
static gpi_hand *gpi_ring_make_hand(gpupool_ring *ring, gpi_transfer *t) {
    uint64_t bytes = 2 * ring->slot_bytes, room = bytes + 2 * GPI_STEP;
    gpi_failure before = gpi_thread.last;
    gpupool_result result;
    gpi_hand *hand;
    ring->stats.pinned += bytes;
    gpi_system_unlock(&ring->lock);
    hand = (gpi_hand *)gpi_system_pages(room, PROT_READ | PROT_WRITE, MADV_DONTFORK);
    result = hand ? gpi_ring_pin_hand(ring, hand) : gpi_system_no_memory();
    if (hand && result != GPUPOOL_OK) gpi_ring_close_hand(ring, hand);
    gpi_system_lock(&ring->lock);
    if (result == GPUPOOL_OK) return hand;
    ring->stats.pinned -= bytes;
    if (ring->stats.pinned) ring->stats.limit = ring->stats.pinned;
    else gpi_ring_fail(t, result);
    gpi_thread.last = before;
    return NULL;
}

/* Without the lock: ends the use of a slot, and begins the next if it has bytes. A slot's copy is
   waited for, then a download's bytes go to the host; a new part is filled in for an upload, then
   its copy queued. */
static gpupool_result gpi_ring_step(gpupool_ring *ring, gpi_transfer *t, gpi_hand *hand, int slot,
                                    const gpi_ring_part *next) {
    gpi_driver *driver = &ring->driver;
    gpi_ring_part *part = &hand->parts[slot];
    CUstream stream = ring->streams[t->down];
    gpupool_result result = GPUPOOL_OK;
    if (part->bytes) result = GPI_TELL(driver, event_sync, hand->events[slot]);
    if (part->bytes && t->down && result == GPUPOOL_OK)
        result = gpi_ring_move(ring, t, part, hand->visit);
    if (result != GPUPOOL_OK) return result;
    __atomic_fetch_add(&t->done, part->bytes, __ATOMIC_RELAXED);
    *part = *next;
    if (!part->bytes) return GPUPOOL_OK;
    part->at[t->down] += hand->slots + (uint64_t)slot * ring->slot_bytes;
    if (!t->down) result = gpi_ring_move(ring, t, part, hand->visit);
    if (result == GPUPOOL_OK)
        result = GPI_TOLD(driver, copy, gpi_ring_copy(driver, t, part, stream));
    if (result == GPUPOOL_OK) result = GPI_TELL(driver, event_record, hand->events[slot], stream);
    return result;
}

/* Whether a thread may go on in a transfer: it has no clock to look at, all other gates and parts
   have a thread, and no other transfer has two threads less. */
static int gpi_ring_may_stay(const gpupool_ring *ring, const gpi_transfer *t, int most) {
    const gpi_transfer *other = ring->first;
    while (other && (other->is_over || (other->busy && other->busy + 1 >= t->busy)))
        other = other->next;
    return most == GPI_RING_TURN && !other;
}

/* Copies parts with a hand, in one slot and the other. Stops after `most` parts, unless nobody else
   needs this thread; then ends what it has under way (R2). The lock is held on entry and exit. */
static void gpi_ring_turn(gpupool_ring *ring, gpi_transfer *t, gpi_hand *hand, int most) {
    gpupool_result result;
    int i, idle = 0; /* slots in a row that got no part */
    for (i = 0; idle < 2 && t->failure.result == GPUPOOL_OK; i++) {
        gpi_ring_part part = {0, 0, {0, 0}, {0, 0}};
        if (i < most || gpi_ring_may_stay(ring, t, most)) gpi_ring_next(ring, t, &part);
        idle = part.bytes ? 0 : idle + 1;
        gpi_system_unlock(&ring->lock);
        result = gpi_ring_step(ring, t, hand, i % 2, &part);
        gpi_system_lock(&ring->lock);
        gpi_ring_fail(t, result);
    }
    if (idle == 2) return;
    gpi_system_unlock(&ring->lock);
    hand->parts[0].bytes = hand->parts[1].bytes = 0;
    result = GPI_TELL(&ring->driver, stream_sync, ring->streams[t->down]);
    gpi_system_lock(&ring->lock);
    if (result == GPUPOOL_OK || ring->is_broken) return;
    ring->cause = gpi_thread.last;
    GPI_PUBLISH(&ring->is_broken, 1);
    for (t = ring->first; t; t = t->next) gpi_ring_fail(t, result);
}

/* Works for a transfer, for up to `most` parts. Returns 0 if it did not, since others have all
   hands: a bell tells when one comes back, or could not be made. */
static int gpi_ring_run(gpupool_ring *ring, gpi_transfer *t, gpi_visit *visit, int most) {
    gpi_hand *hand = ring->idle;
    if (!hand && ring->stats.pinned == ring->stats.limit) return 0;
    t->busy++;
    if (hand) ring->idle = hand->next;
    else hand = gpi_ring_make_hand(ring, t);
    if (hand) {
        hand->visit = visit;
        gpi_ring_turn(ring, t, hand, most);
        hand->next = ring->idle;
        ring->idle = hand;
    }
    t->busy--;
    if (!hand || ring->stats.pinned == ring->stats.limit) { /* others may lack one */
        gpi_ring_wake(&ring->done, INT32_MAX);
        gpi_ring_wake(&ring->work, 1);
    }
    gpi_ring_settle(ring, t);
    return 1;
}

/* -- helpers, and callers that wait: the lock is held -- */

/* A helper's life. It works for the transfer that lacks helpers most, so that all go on side by
   side. Without work it sleeps. One at a time looks at gated transfers in between; when it opens
   one, it calls others, of which one takes its place. */
static void *gpi_ring_helper(void *user) {
    gpupool_ring *ring = (gpupool_ring *)user;
    GPI_VISIT(&ring->driver, ring->driver.context);
    gpi_system_lock(&ring->lock);
    while (!ring->is_stopping) {
        gpi_transfer *t, *best = NULL;
        int gated = 0, polls;
        for (t = ring->first; t; t = t->next) {
            gpi_ring_settle(ring, t);
            gated |= t->is_gated;
            if (gpi_ring_has_more(t) && t->busy < (best ? best->busy : GPI_RING_CREW)) best = t;
        }
        if (best && gpi_ring_run(ring, best, &visit, GPI_RING_TURN)) continue;
        polls = gated && !ring->is_polled;
        ring->is_polled |= polls;
        gpi_ring_sleep(ring, &ring->work, polls ? (uint64_t)GPI_RING_POLL_NS : UINT64_MAX);
        if (polls) ring->is_polled = 0;
    }
    gpi_system_unlock(&ring->lock);
    return NULL;
}

/* Works for a transfer until it is over, or ns have passed. Returns its result, or E_TIMEOUT. */
static gpupool_result gpi_ring_await(gpupool_ring *ring, gpi_transfer *t, uint64_t ns,
                                     gpi_visit *visit) {
    int for_ever = ns > INT64_MAX, most = for_ever ? GPI_RING_TURN : 2; /* parts at a time */
    uint64_t start = for_ever ? 0 : gpi_system_now(), left = ns;
    gpi_ring_settle(ring, t);
    t->waiters++;
    while (!t->is_over && left) {
        if (!gpi_ring_has_more(t) || !gpi_ring_run(ring, t, visit, most))
            gpi_ring_sleep(ring, &ring->done, t->is_gated ? gpi_min(left, GPI_RING_POLL_NS) : left);
        left = gpi_less(ns, gpi_system_now() - start);
        gpi_ring_settle(ring, t);
    }
    t->waiters--;
    if (!t->is_over) return gpi_system_fail(GPUPOOL_E_TIMEOUT, "the transfer is not done yet");
    if (t->failure.result != GPUPOOL_OK) gpi_thread.last = t->failure;
    return t->failure.result;
}

/* -- the way of a transfer: without the lock -- */

/* What can be seen to be wrong before anything is queued; of small transfers too little to be worth
   the time. */
static gpupool_result gpi_ring_may_begin(gpupool_ring *ring, const gpi_transfer *t) {
    gpupool_result result;
    CUcontext context;
    int side;
    result = gpi_stream_context(&ring->driver, t->what.stream, &context);
    if (result == GPUPOOL_OK && gpi_driver_is_capturing(&ring->driver, t->what.stream))
        return gpi_system_fail(GPUPOOL_E_CAPTURING, "stream: it captures; a graph copies later");
    for (side = 0; side < 2 && t->bytes > GPI_RING_SMALL && result == GPUPOOL_OK; side++) {
        uint64_t at = t->at[side], end = gpi_ring_address(t, side, t->bytes - 1) + 1;
        result = gpi_life_may_use(at, end - at, side ? "to" : "from");
    }
    return result;
}

/* Copies directly what CUDA knows, and a little of other memory, which CUDA stages quicker. Then a
   ticket's event is recorded, behind that or behind the stream's work; a call without one waits,
   unless the host sees neither side. A failure leaves nothing under way. Memory that begins pinned
   is taken for pinned; CUDA finds out if a part of it is not, or was pinned by another call. */
static gpupool_result gpi_ring_begin(gpupool_ring *ring, gpi_transfer *t) {
    const gpupool_transfer *what = &t->what;
    gpi_driver *driver = &ring->driver;
    gpi_ring_part all = {0, t->bytes, {t->at[0], t->at[1]}, {t->pitch[0], t->pitch[1]}};
    int is_memory = !what->read && !what->write && !what->is_file;
    int is_small = !what->ticket && t->width == t->bytes && t->bytes <= GPI_RING_SMALL;
    gpi_memory host = GPI_MEMORY_ORDINARY;
    gpupool_result result = GPUPOOL_OK;
    CUresult error = CUDA_SUCCESS;
    if (is_memory && t->bytes) host = gpi_driver_look(driver, t->at[t->down]);
    t->is_by_cuda = host != GPI_MEMORY_ORDINARY || !t->bytes || (is_memory && is_small);
    if (t->is_by_cuda && t->bytes) error = gpi_ring_copy(driver, t, &all, what->stream);
    if (error == CUDA_ERROR_INVALID_VALUE && host == GPI_MEMORY_VISIBLE) t->is_by_cuda = 0;
    else if (error != CUDA_SUCCESS) return GPI_TOLD(driver, copy, error);
    if (t->is_by_cuda) t->cursor = t->bytes;
    else if (gpi_driver_look(driver, t->at[!t->down]) == GPI_MEMORY_ORDINARY)
        return gpi_system_fail(GPUPOOL_E_ARGUMENT, "%s: it is ordinary host memory",
                               t->down ? "from" : "to");
    else if (what->ticket || t->bytes >= GPI_RING_HELP)
        t->helpers = gpi_min(t->bytes / (4 * GPI_RING_LEAST) + 1, GPI_RING_CREW);
    if (ring->is_trusted) return GPUPOOL_OK;
    if (what->ticket) {
        result = gpi_driver_mark(driver, driver->context, &t->event, what->stream);
        t->is_gated = result == GPUPOOL_OK;
    } else if (!t->is_by_cuda || host == GPI_MEMORY_VISIBLE)
        result = GPI_TELL(driver, stream_sync, what->stream);
    if (result != GPUPOOL_OK && t->is_by_cuda) driver->stream_sync(what->stream);
    return result;
}

/* -- in public -- */

/* The mistake in a transfer, in words; NULL: none. Products are compared by division. */
static const char *gpi_ring_mistake(const gpupool_transfer *what) {
    int down = what->direction == GPUPOOL_DOWN, has_pitch = what->to_pitch || what->from_pitch;
    int has_source = what->read || what->write || what->is_file;
    uint64_t pitch = gpi_max(what->to_pitch, what->from_pitch), most = INT64_MAX;
    if (what->direction != GPUPOOL_UP && !down) return "direction is neither UP nor DOWN";
    if (down ? what->read || what->is_file : what->write || (what->read && what->is_file))
        return "read or is_file are for UP, write is for DOWN";
    if (has_source && (has_pitch || what->rows)) return "functions and files have no rows";
    if (has_pitch ? !what->rows || gpi_min(what->to_pitch, what->from_pitch) < what->bytes
                  : what->rows != 0)
        return "rows need both pitches, of at least the bytes of a row, and pitches need rows";
    if (what->bytes > most || (what->rows && pitch > most / what->rows))
        return "bytes, or pitch by rows, is more than any memory has";
    if (what->is_file && what->offset > most - what->bytes) return "no file has so many bytes";
    if (what->bytes && !(down ? what->from : what->to)) return "the device pointer is NULL";
    if (what->bytes && !has_source && !(down ? what->to : what->from))
        return "the host pointer is NULL";
    return NULL;
}

static gpupool_result gpi_ring_exists(const void *ring) {
    if (gpi_system_is_forked()) return gpi_alloc_enter(NULL);
    return ring ? GPUPOOL_OK : gpi_system_fail(GPUPOOL_E_ARGUMENT, "ring: it is NULL");
}

/* A record of the transfer, not in the list. NULL: the host has no memory. */
static gpi_transfer *gpi_ring_record(gpupool_ring *ring, const gpupool_transfer *what) {
    gpi_transfer *t;
    gpi_system_lock(&ring->lock);
    t = ring->spare;
    if (t) ring->spare = t->next;
    gpi_system_unlock(&ring->lock);
    if (!t) t = (gpi_transfer *)gpi_system_zeroed(sizeof *t);
    if (!t) return NULL;
    memset(&t->next, 0, sizeof *t - offsetof(gpi_transfer, next));
    t->what = *what;
    t->direct_file = -1;
    t->down = what->direction == GPUPOOL_DOWN;
    t->at[0] = (uintptr_t)what->from;
    t->at[1] = (uintptr_t)what->to;
    t->pitch[0] = what->from_pitch;
    t->pitch[1] = what->to_pitch;
    t->width = what->bytes;
    t->bytes = what->rows ? what->bytes * what->rows : what->bytes;
    if (!what->rows || (what->from_pitch == what->bytes && what->to_pitch == what->bytes))
        t->width = t->pitch[0] = t->pitch[1] = t->bytes; /* one long row */
    return t;
}

/* A transfer is put into the list also if it has failed. Workers are started for the first that can
   use them; those that the system refuses are done without. */
GPUPOOL_API gpupool_result gpupool_ring_transfer(gpupool_ring *ring, const gpupool_transfer *what) {
    const char *mistake = what ? gpi_ring_mistake(what) : "the transfer is NULL";
    gpupool_result result = gpi_ring_exists(ring);
    gpi_transfer *t;
    if (result != GPUPOOL_OK) return result;
    if (mistake) return gpi_system_fail(GPUPOOL_E_ARGUMENT, "%s", mistake);
    if (GPI_READ(&ring->is_broken))
        return gpi_system_fail(GPUPOOL_E_CUDA, "the ring is broken: %.480s", ring->cause.text);
    t = gpi_ring_record(ring, what);
    if (!t) return gpi_system_no_memory();
    GPI_VISIT(&ring->driver, ring->driver.context);
    if (what->is_file) result = gpi_file_open(what->file, what->offset, t->bytes, &t->direct_file);
    if (result == GPUPOOL_OK && !ring->is_trusted) result = gpi_ring_may_begin(ring, t);
    if (result == GPUPOOL_OK) result = gpi_ring_begin(ring, t);
    gpi_ring_fail(t, result);
    gpi_system_lock(&ring->lock);
    if (result == GPUPOOL_OK && what->ticket) *what->ticket = t->ticket = ++ring->tickets;
    if (t->ticket) ring->sizes[t->ticket % GPI_RING_KEPT] = t->bytes;
    *gpi_ring_tidy(ring) = t;
    while (t->helpers && ring->stats.workers < ring->workers_most &&
           !pthread_create(&ring->threads[ring->stats.workers], NULL, gpi_ring_helper, ring))
        ring->stats.workers++;
    if (t->helpers) gpi_ring_wake(&ring->work, t->is_gated ? 1 : t->helpers); /* 1: to ask */
    if (!t->ticket) result = gpi_ring_await(ring, t, UINT64_MAX, &visit);
    gpi_system_unlock(&ring->lock);
    return result;
}

GPUPOOL_API gpupool_result gpupool_upload(gpupool_ring *ring, void *to, const void *from,
                                          size_t bytes, cudaStream_t stream) {
    gpupool_transfer what = {GPUPOOL_UP, to, from, bytes, stream, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
    return gpupool_ring_transfer(ring, &what);
}

GPUPOOL_API gpupool_result gpupool_download(gpupool_ring *ring, void *to, const void *from,
                                            size_t bytes, cudaStream_t stream) {
    gpupool_transfer what = {GPUPOOL_DOWN, to, from, bytes, stream, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
    return gpupool_ring_transfer(ring, &what);
}

GPUPOOL_API gpupool_result gpupool_upload_file(gpupool_ring *ring, void *to,
                                               const gpupool_file_part *part, cudaStream_t stream) {
    if (!part) return gpi_system_fail(GPUPOOL_E_ARGUMENT, "part: it is NULL");
    gpupool_transfer what = {GPUPOOL_UP, to, NULL, part->bytes, stream,       0, 0, 0, 0,
                             0,          0,  1,    part->file,  part->offset, 0};
    return gpupool_ring_transfer(ring, &what);
}

GPUPOOL_API gpupool_result gpupool_ring_wait(gpupool_ring *ring, gpupool_ticket ticket,
                                             int64_t timeout_ns, uint64_t *bytes_done) {
    gpupool_result result = gpi_ring_exists(ring);
    uint64_t done = UINT64_MAX;
    gpi_transfer *t;
    if (result != GPUPOOL_OK) return result;
    GPI_VISIT(&ring->driver, ring->driver.context);
    gpi_system_lock(&ring->lock);
    for (t = ring->first; t && (!ticket || t->ticket != ticket); t = t->next) continue;
    if (t) result = gpi_ring_await(ring, t, (uint64_t)timeout_ns, &visit);
    else if (ticket <= ring->forgotten || ticket > ring->tickets)
        result = gpi_system_fail(GPUPOOL_E_ARGUMENT, "no such ticket, or it is forgotten");
    if (t) done = GPI_LOOK(&t->done);
    else if (ring->tickets - ticket < GPI_RING_KEPT) done = ring->sizes[ticket % GPI_RING_KEPT];
    if (bytes_done && (t || result == GPUPOOL_OK)) *bytes_done = done;
    gpi_system_unlock(&ring->lock);
    return result;
}

GPUPOOL_API gpupool_result gpupool_ring_get_stats(gpupool_ring *ring, gpupool_ring_stats *stats) {
    gpupool_result result = gpi_ring_exists(ring);
    if (result != GPUPOOL_OK) return result;
    if (!stats) return gpi_system_fail(GPUPOOL_E_ARGUMENT, "stats: it is NULL");
    gpi_system_lock(&ring->lock);
    *stats = ring->stats;
    gpi_system_unlock(&ring->lock);
    return GPUPOOL_OK;
}

/* Sets up a ring as the config or defaults say. Returns the mistake in it; NULL: none. A worker for
   each processor but one, since callers copy too. */
static const char *gpi_ring_configure(gpupool_ring *ring, const gpupool_ring_config *config) {
    size_t bytes = config->bytes ? config->bytes : GPUPOOL_RING_BYTES, slot = config->slot_bytes;
    uint64_t others = (uint64_t)sysconf(_SC_NPROCESSORS_ONLN) - 1;
    int workers = config->workers ? config->workers : GPUPOOL_RING_WORKERS;
    if (!slot) slot = gpi_min(GPUPOOL_RING_SLOT_BYTES, bytes / 4);
    if (!workers) workers = (int)gpi_min(gpi_max(others, 1), GPI_RING_USUAL);
    if (bytes < (size_t)256 << 10 || bytes > (size_t)16 << 40)
        return "bytes is not from 256 KiB to 16 TiB";
    if (slot < (size_t)64 << 10 || slot > bytes / 4)
        return "slot_bytes is not from 64 KiB to a quarter of config.bytes";
    if (workers < -1 || workers > GPI_RING_MOST) return "workers is not from -1 to 64";
    ring->slot_bytes = gpi_down(slot, GPI_FILE_PAGE);
    ring->stats.limit = bytes / (2 * ring->slot_bytes) * 2 * ring->slot_bytes;
    ring->workers_most = workers > 0 ? (uint64_t)workers : 0;
    return NULL;
}

static void gpi_ring_close(gpupool_ring *ring) {
    if (ring->streams[0]) ring->driver.stream_destroy(ring->streams[0]);
    if (ring->streams[1]) ring->driver.stream_destroy(ring->streams[1]);
    gpi_driver_close(&ring->driver);
    GPUPOOL_FREE(ring);
}

GPUPOOL_API gpupool_result gpupool_ring_create(gpupool_ring **out,
                                               const gpupool_ring_config *given) {
    gpupool_ring_config config = {0, 0, 0, 0};
    gpupool_result result = gpi_ring_exists(out);
    gpupool_ring *ring = NULL;
    const char *mistake;
    int i;
    if (out) *out = NULL;
    if (result != GPUPOOL_OK) return result;
    if (given) config = *given;
    else result = GPI_RUN(cudaGetDevice, &config.device);
    if (result != GPUPOOL_OK) return result;
    if (gpi_system_open()) ring = (gpupool_ring *)gpi_system_zeroed(sizeof *ring);
    if (!ring) return gpi_system_no_memory();
    mistake = gpi_ring_configure(ring, &config);
    if (mistake) result = gpi_system_fail(GPUPOOL_E_ARGUMENT, "config.%s", mistake);
    else result = gpi_driver_open(&ring->driver, config.device, 0);
    if (result == GPUPOOL_OK) {
        GPI_VISIT(&ring->driver, ring->driver.context);
        for (i = 0; i < 2 && result == GPUPOOL_OK; i++)
            result =
                GPI_TELL(&ring->driver, stream_create, &ring->streams[i], CU_STREAM_NON_BLOCKING);
    }
    if (result == GPUPOOL_E_OUT_OF_MEMORY) result = gpi_thread.last.result = GPUPOOL_E_HOST_MEMORY;
    if (result == GPUPOOL_OK) *out = ring;
    else gpi_ring_close(ring);
    return result;
}

/* Ends what is under way, then all that only a used ring has. */
GPUPOOL_API gpupool_result gpupool_ring_destroy(gpupool_ring *ring) {
    gpupool_result result = gpi_ring_exists(ring);
    gpi_transfer *t, **link;
    gpi_hand *hand;
    gpi_visit visit;
    if (result != GPUPOOL_OK) return result;
    visit = gpi_driver_enter(&ring->driver, ring->driver.context);
    gpi_system_lock(&ring->lock);
    for (link = &ring->first; *link; link = &(*link)->next)
        gpi_ring_await(ring, *link, UINT64_MAX, &visit);
    ring->is_stopping = 1;
    gpi_ring_wake(&ring->work, INT32_MAX);
    gpi_system_unlock(&ring->lock);
    while (ring->stats.workers) pthread_join(ring->threads[--ring->stats.workers], NULL);
    while ((hand = ring->idle) != NULL) {
        ring->idle = hand->next;
        gpi_ring_close_hand(ring, hand);
    }
    *link = ring->spare;
    while ((t = ring->first) != NULL) {
        ring->first = t->next;
        if (t->event) ring->driver.event_destroy(t->event);
        GPUPOOL_FREE(t);
    }
    gpi_driver_leave(&visit);
    gpi_ring_close(ring);
    return GPUPOOL_OK;
}

/* == SHARE ========================================================================================
   Memory that others use: other devices of the process, and other processes.

   SH1  A peer is in driver.peers before its streams are known, so each wait for the device covers
        them, and each chunk that comes later is the peer's too.
   SH2  An exported block is all of its chunk. The kernel counts who has the memory: each export is
        a descriptor of its own. An import keeps the device's context.

   Read first: gpupool_allow_peer, gpupool_export, gpupool_import. */

/* Lets all peers use what the arena has by now. */
static gpupool_result gpi_share_access_all(gpupool_arena *arena) {
    gpi_driver *driver = &arena->driver;
    const gpi_chunks *chunks = &arena->chunks;
    gpupool_result result = GPUPOOL_OK;
    const gpi_stitch *stitch;
    uint64_t i;
    int bin;
    for (i = 0; i < chunks->count && result == GPUPOOL_OK; i++)
        result = gpi_driver_access(driver, (uint64_t)(uintptr_t)chunks->all[i]->memory,
                                   chunks->all[i]->units * GPI_UNIT);
    for (bin = 0; bin < GPI_BINS; bin++)
        for (stitch = arena->stitches.bins[bin]; stitch; stitch = stitch->next)
            if (result == GPUPOOL_OK)
                result = gpi_driver_access(driver, gpi_address(&arena->buddy, stitch->body->unit),
                                           stitch->body->units * GPI_UNIT);
    return result;
}

/* CUDA gives cudaMalloc's memory to whole devices, and pinned and managed memory to all. */
static gpupool_result gpi_share_enable(gpi_driver *driver, CUcontext peer) {
    CUresult error;
    GPI_VISIT(driver, peer);
    error = driver->enable_peer(driver->context, 0);
    if (error == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) return GPUPOOL_OK;
    return GPI_TOLD(driver, enable_peer, error);
}

/* Adds a peer; after a failure it is none. */
static gpupool_result gpi_share_add(gpupool_arena *arena, int peer) {
    gpi_driver *driver = &arena->driver;
    int count = driver->peer_count, can_access = 0;
    gpupool_result result = GPI_TELL(driver, can_access, &can_access, peer, driver->device);
    if (result == GPUPOOL_OK && (!can_access || count == GPI_PEERS))
        result = gpi_system_fail(GPUPOOL_E_UNSUPPORTED,
                                 "device: %d cannot reach device %d, or is "
                                 "one too many",
                                 peer, driver->device);
    if (result == GPUPOOL_OK)
        result = GPI_TELL(driver, retain, &driver->peer_contexts[count], peer);
    if (result != GPUPOOL_OK) return result;
    driver->peers[count] = peer;
    GPI_PUBLISH(&driver->peer_count, count + 1);
    if (arena->chunks.source->flags & GPI_MAPS) result = gpi_share_access_all(arena);
    else if (arena->chunks.source->flags & GPI_ON_DEVICE)
        result = gpi_share_enable(driver, driver->peer_contexts[count]);
    if (result == GPUPOOL_OK) return result;
    GPI_PUBLISH(&driver->peer_count, count);
    driver->release_context(peer);
    return result;
}

GPUPOOL_API gpupool_result gpupool_allow_peer(gpupool_arena *arena, int device) {
    gpupool_result result = gpi_alloc_enter(arena);
    int i;
    if (result == GPUPOOL_OK) result = gpi_driver_has(device);
    if (result != GPUPOOL_OK) return result;
    gpi_system_lock(&arena->lock);
    result = gpi_arena_ready(arena);
    for (i = 0; i < arena->driver.peer_count && arena->driver.peers[i] != device; i++) continue;
    if (result == GPUPOOL_OK && i == arena->driver.peer_count && device != arena->driver.device)
        result = gpi_share_add(arena, device);
    gpi_system_unlock(&arena->lock);
    gpi_alloc_check(arena);
    return result;
}

GPUPOOL_API gpupool_result gpupool_export(gpupool_arena *arena, const void *block,
                                          gpupool_exported *exported) {
    gpupool_result result = gpi_alloc_enter(arena);
    gpi_chunk *chunk = NULL;
    gpi_run *run;
    if (result != GPUPOOL_OK) return result;
    if (!exported) return gpi_system_fail(GPUPOOL_E_ARGUMENT, "exported: it is NULL");
    gpi_system_lock(&arena->lock);
    gpi_alloc_empty_mail(arena);
    result = gpi_arena_ready(arena);
    if (result == GPUPOOL_OK) result = gpi_alloc_claim(arena, block, &run);
    if (result == GPUPOOL_OK && !run->stitch) chunk = gpi_buddy_chunk(&arena->buddy, run->unit);
    if (result == GPUPOOL_OK && (!(arena->config.share & GPUPOOL_SHARE_PROCESSES) || !chunk ||
                                 chunk->unit != run->unit || chunk->units != run->units))
        result = gpi_system_fail(GPUPOOL_E_ARGUMENT,
                                 "block: it has no chunk of its own (GPUPOOL_OWN_CHUNK), or the "
                                 "arena's config.share lacks GPUPOOL_SHARE_PROCESSES");
    if (result == GPUPOOL_OK)
        result = GPI_TELL(&arena->driver, export_handle, &exported->descriptor, chunk->handle,
                          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    if (result == GPUPOOL_OK) {
        chunk->is_exported = 1;
        exported->bytes = chunk->units * GPI_UNIT;
        fcntl(exported->descriptor, F_SETFD, FD_CLOEXEC);
    }
    gpi_system_unlock(&arena->lock);
    return result;
}

/* Maps a handle at new addresses. Only the mapping keeps the memory then. */
static gpupool_result gpi_share_map(gpi_driver *driver, CUmemGenericAllocationHandle handle,
                                    uint64_t bytes, CUdeviceptr *address) {
    gpupool_result result = GPI_TELL(driver, reserve, address, bytes, 0, 0, 0);
    if (result != GPUPOOL_OK) return result;
    result = GPI_TELL(driver, map, *address, bytes, 0, handle, 0);
    if (result == GPUPOOL_OK) {
        result = gpi_driver_access(driver, *address, bytes);
        if (result == GPUPOOL_OK) return result;
        driver->unmap(*address, bytes);
    }
    driver->unreserve(*address, bytes);
    return result;
}

GPUPOOL_API gpupool_result gpupool_import(int device, const gpupool_exported *exported,
                                          gpupool_imported *imported) {
    CUmemGenericAllocationHandle handle;
    CUdeviceptr address = 0;
    gpupool_result result;
    gpi_driver driver;
    if (gpi_system_is_forked()) return gpi_alloc_enter(NULL);
    if (!exported || !imported)
        return gpi_system_fail(GPUPOOL_E_ARGUMENT, "exported, imported: one of them is NULL");
    memset(imported, 0, sizeof *imported);
    if (!exported->bytes || exported->bytes % (2 << 20))
        return gpi_system_fail(GPUPOOL_E_ARGUMENT, "exported.bytes: %llu is no size of a chunk",
                               (unsigned long long)exported->bytes);
    result = gpi_driver_open(&driver, device, 0);
    if (result == GPUPOOL_OK)
        result = GPI_TELL(&driver, import_handle, &handle, (void *)(intptr_t)exported->descriptor,
                          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (result == GPUPOOL_OK) {
        result = gpi_share_map(&driver, handle, exported->bytes, &address);
        driver.release(handle);
    }
    if (result == GPUPOOL_OK) {
        imported->memory = (void *)(uintptr_t)address;
        imported->bytes = exported->bytes;
        imported->device = device;
    } else gpi_driver_close(&driver);
    return result;
}

GPUPOOL_API gpupool_result gpupool_import_close(gpupool_imported *imported) {
    gpupool_result result;
    gpi_driver driver;
    CUdeviceptr address;
    if (gpi_system_is_forked()) return gpi_alloc_enter(NULL);
    if (!imported || !imported->memory)
        return gpi_system_fail(GPUPOOL_E_ARGUMENT, "imported: nothing is imported there");
    address = (CUdeviceptr)(uintptr_t)imported->memory;
    result = gpi_driver_open(&driver, imported->device, 0);
    if (result == GPUPOOL_OK) result = GPI_TELL(&driver, unmap, address, imported->bytes);
    if (result == GPUPOOL_OK) {
        driver.unreserve(address, imported->bytes);
        driver.release_context(imported->device); /* the import's */
        memset(imported, 0, sizeof *imported);
    }
    gpi_driver_close(&driver);
    return result;
}

/* == SLEEP ========================================================================================
   An arena's memory goes back to the driver while its blocks and their addresses stay.

       AWAKE -> FALLING: others leave; the device ends; content is copied; stitches and chunks are
                         unmapped -> ASLEEP -> RISING: the same backwards -> AWAKE

   SL1  A chunk or stitch that is_away has addresses and no memory; only in an arena that does not
        take requests. Chunks that are away count as asleep, not as reserved.
   SL2  O8: after gpi_sleep_quiet no block is in a cache and no run is TAKEN, and until the arena is
        awake again nobody takes one: the lock may open. Frees go on: what is freed meanwhile is
        copied in vain, and forgotten when the arena wakes.
   SL3  A failed call leaves the arena asleep or awake as it was, content too, or broken.

   Read first: gpi_sleep_fall, gpi_sleep_rise, gpi_sleep_quiet. */

enum {
    GPI_SLEEP_COPIES = 32,                   /* under way at a time */
    GPI_SLEEP_FIRST = (256 << 20) / GPI_UNIT /* units of the first copy up; meanwhile the memory of
                                                the next, four times as much, is mapped */
};

/* Mail that comes meanwhile keeps its `attention`. */
static void gpi_sleep_set(gpupool_arena *arena, gpi_sleep sleep) {
    arena->sleep = sleep;
    __atomic_exchange_n(&arena->attention, sleep || *arena->broken, __ATOMIC_SEQ_CST);
    if (GPI_READ(&arena->mail)) GPI_PUBLISH(&arena->attention, 1);
}

/* Waits until nobody has memory in hand, and takes all blocks away from the caches. A fast path
   that was under way may put one more there: so it looks again. */
static void gpi_sleep_quiet(gpupool_arena *arena) {
    const gpi_stream *s;
    gpi_run *run;
    do {
        while (arena->outside) {
            int returns = arena->returns;
            gpi_system_unlock(&arena->lock);
            gpi_system_sleep_on(&arena->returns, returns);
            gpi_system_lock(&arena->lock);
        }
        gpi_stream_flush_all(arena, 0);
        for (run = gpi_buddy_at(&arena->buddy, 0); run; run = run->right)
            if (run->state == GPI_OUT) gpi_stream_recall(arena, run);
        for (s = arena->streams.all_streams; s && !s->outs; s = s->next) continue;
    } while (s);
}

/* Whether a home run has content: of a block, or of a graph. */
static int gpi_sleep_keeps(const gpi_run *run) {
    if (run->state == GPI_FREE) return run->list->stream && run->list->stream->kind == GPI_GRAPH;
    if (run->state == GPI_PART) return 1;
    return (run->state == GPI_LIVE || run->state == GPI_WAITING) && !run->stitch;
}

/* Gets the memory of the chunks that are away, and lie in these units. A full device takes
   siblings' idle chunks. */
static gpupool_result gpi_sleep_get_chunks(gpupool_arena *arena, uint64_t unit, uint64_t units) {
    gpi_chunks *chunks = &arena->chunks;
    gpupool_result result = GPUPOOL_OK;
    uint64_t i;
    for (i = 0; i < chunks->count && result == GPUPOOL_OK; i++) {
        gpi_chunk *chunk = chunks->all[i];
        if (!chunk->is_away || chunk->unit + chunk->units <= unit || chunk->unit >= unit + units)
            continue;
        do result = gpi_chunk_come(arena, chunk);
        while (result == GPUPOOL_E_OUT_OF_MEMORY && gpi_sibling_help(arena, chunks->asleep, 0));
        if (result != GPUPOOL_OK) break;
        chunks->asleep -= chunk->units * GPI_UNIT;
        gpi_arena_pass(arena);
    }
    return result;
}

/* The next piece that has content, from *unit on; 0: none. It is of whole granules, which have
   memory: so one copy is for neighbouring blocks, also of several chunks, and small gaps. */
static uint64_t gpi_sleep_next(const gpi_buddy *buddy, uint64_t *unit, uint64_t most) {
    const gpi_run *run = gpi_buddy_at(buddy, *unit);
    uint64_t end;
    while (run && !gpi_sleep_keeps(run)) run = run->right;
    if (!run) return 0;
    end = *unit = gpi_max(*unit, gpi_down(run->unit, GPI_GRANULE));
    for (; run && gpi_down(run->unit, GPI_GRANULE) <= end && end - *unit < most; run = run->right)
        if (gpi_sleep_keeps(run)) end = gpi_up(run->unit + run->units, GPI_GRANULE);
    return gpi_min(end - *unit, most);
}

/* Host memory that mirrors the home addresses, in huge pages, which the ring's threads touch first:
   what they do not touch costs nothing. An earlier sleep's, if it is large enough, has been
   touched: fresh pages take twice the time of the copy. */
static gpupool_result gpi_sleep_open_backup(gpupool_arena *arena) {
    const gpi_chunks *chunks = &arena->chunks;
    gpi_backup *backup = &arena->backup;
    uint64_t end = 0, i;
    for (i = 0; i < chunks->count; i++)
        end = gpi_max(end, chunks->all[i]->unit + chunks->all[i]->units);
    end = end * GPI_UNIT + GPI_STEP;
    if (backup->bytes < end) {
        gpi_backup_close(backup);
        backup->pages = gpi_system_pages(end, PROT_READ | PROT_WRITE, MADV_HUGEPAGE);
        if (!backup->pages)
            return gpi_system_fail(GPUPOOL_E_HOST_MEMORY,
                                   "the host has no %llu bytes for the arena's content",
                                   (unsigned long long)chunks->reserved.now);
        backup->bytes = end;
    }
    backup->content = (char *)gpi_up((uintptr_t)backup->pages, GPI_STEP);
    return GPUPOOL_OK;
}

/* The content is needed no more. The system takes its pages when it lacks memory, and at once where
   it cannot do that later. The lock opens. */
static void gpi_sleep_drop_content(gpupool_arena *arena) {
    gpi_backup *backup = &arena->backup;
    backup->content = NULL;
    gpi_arena_open(arena);
    if (syscall(SYS_madvise, backup->pages, backup->bytes, (long)MADV_FREE))
        gpi_backup_close(backup);
    gpi_arena_close(arena);
}

/* Begins to copy a piece: down while the arena falls asleep, else up. The lock opens. */
static gpupool_result gpi_sleep_send(gpupool_arena *arena, gpupool_ring *ring, uint64_t unit,
                                     uint64_t units) {
    void *home = (void *)(uintptr_t)gpi_address(&arena->buddy, unit);
    void *content = arena->backup.content + unit * GPI_UNIT;
    int down = arena->sleep == GPI_FALLING;
    gpupool_ticket ticket = 0;
    gpupool_result result;
    gpupool_transfer what;
    memset(&what, 0, sizeof what);
    what.direction = down ? GPUPOOL_DOWN : GPUPOOL_UP;
    what.to = down ? content : home;
    what.from = down ? home : content;
    what.bytes = units * GPI_UNIT;
    what.ticket = &ticket;
    gpi_arena_open(arena);
    result = gpupool_ring_transfer(ring, &what);
    if (result == GPUPOOL_OK && ticket > GPI_SLEEP_COPIES)
        result = gpupool_ring_wait(ring, ticket - GPI_SLEEP_COPIES, -1, NULL);
    gpi_arena_close(arena);
    return result;
}

/* Copies the content through a ring of its own, on the way up into memory that it gets meanwhile.
   After a failure, too, it waits for what is under way. The lock opens. */
static gpupool_result gpi_sleep_copy(gpupool_arena *arena) {
    gpupool_ring_config config = {arena->config.device, 0, 0, 0};
    uint64_t unit = 0, units, most = UINT64_MAX;
    gpupool_ring *ring = NULL;
    gpupool_ticket ticket;
    gpupool_result result;
    gpi_failure first;
    gpi_arena_open(arena);
    result = gpupool_ring_create(&ring, &config);
    gpi_arena_close(arena);
    if (result != GPUPOOL_OK) return result;
    ring->is_trusted = 1;
    if (arena->sleep == GPI_RISING) most = GPI_SLEEP_FIRST;
    while (result == GPUPOOL_OK && (units = gpi_sleep_next(&arena->buddy, &unit, most)) != 0) {
        if (arena->sleep == GPI_RISING) result = gpi_sleep_get_chunks(arena, unit, units);
        if (result == GPUPOOL_OK) result = gpi_sleep_send(arena, ring, unit, units);
        unit += units;
        most = gpi_max(most, 4 * units);
    }
    gpi_arena_open(arena);
    ticket = gpi_less(ring->tickets, GPI_SLEEP_COPIES);
    while (ticket < ring->tickets && result == GPUPOOL_OK)
        result = gpupool_ring_wait(ring, ++ticket, -1, NULL);
    first = gpi_thread.last;
    gpupool_ring_destroy(ring);
    gpi_thread.last = first;
    gpi_arena_close(arena);
    return result;
}

/* Unmaps all that the arena has. E_CALLBACK: what on_unmap threw at is unmapped, too. */
static gpupool_result gpi_sleep_unmap(gpupool_arena *arena) {
    gpi_chunks *chunks = &arena->chunks;
    gpupool_result result = GPUPOOL_OK;
    gpi_stitch *stitch;
    uint64_t i;
    int bin;
    for (bin = 0; bin < GPI_BINS; bin++)
        for (stitch = arena->stitches.bins[bin]; stitch; stitch = stitch->next) {
            result = gpi_chunk_undo(arena, &stitch->range);
            if (result != GPUPOOL_OK) return gpi_arena_break(arena);
        }
    for (i = 0; i < chunks->count; i++) {
        gpi_chunk *chunk = chunks->all[i];
        if (chunk->is_away) continue;
        result = gpi_chunk_undo(arena, chunk);
        if (chunk->is_away) chunks->asleep += chunk->units * GPI_UNIT;
        if (result != GPUPOOL_OK) return gpi_arena_break(arena);
        gpi_arena_pass(arena);
    }
    return GPUPOOL_OK;
}

static gpupool_result gpi_sleep_fall(gpupool_arena *arena, gpupool_content content) {
    gpupool_result result;
    gpi_sleep_set(arena, GPI_FALLING);
    gpi_sleep_quiet(arena);
    gpi_alloc_empty_mail(arena);
    result = gpi_ladder_wait(arena, &arena->streams.all);
    if (result == GPUPOOL_OK && content == GPUPOOL_KEEP) {
        result = gpi_sleep_open_backup(arena);
        if (result == GPUPOOL_OK) result = gpi_sleep_copy(arena);
    }
    if (result == GPUPOOL_OK) result = gpi_ladder_trim(arena, 0);
    if (result == GPUPOOL_OK) result = gpi_sleep_unmap(arena);
    if (result != GPUPOOL_OK) gpi_sleep_drop_content(arena);
    return result;
}

static gpupool_result gpi_sleep_refuses(gpupool_arena *arena, gpupool_content content) {
    gpupool_result result = gpi_arena_ready(arena);
    uint64_t i;
    if (result != GPUPOOL_OK) return result;
    if ((unsigned)content > GPUPOOL_KEEP)
        return gpi_system_fail(GPUPOOL_E_ARGUMENT, "content: %d is neither DISCARD nor KEEP",
                               (int)content);
    if (gpi_thread.in_callback)
        return gpi_system_fail(GPUPOOL_E_ARGUMENT,
                               "on_out_of_memory may free and allocate (rule 4), not sleep");
    if (!(arena->chunks.source->flags & GPI_MAPS))
        return gpi_system_fail(GPUPOOL_E_UNSUPPORTED, "arena: only MAPPED memory can sleep");
    for (i = 0; i < arena->chunks.count; i++)
        if (arena->chunks.all[i]->is_exported)
            return gpi_system_fail(GPUPOOL_E_IN_USE, "the block at %p is exported",
                                   arena->chunks.all[i]->memory);
    return GPUPOOL_OK;
}

GPUPOOL_API gpupool_result gpupool_sleep(gpupool_arena *arena, gpupool_content content) {
    gpi_failure before = gpi_thread.last;
    gpupool_result result = gpi_alloc_lock(arena, "arena", arena);
    if (result != GPUPOOL_OK) return result;
    result = gpi_sleep_refuses(arena, content);
    if (result == GPUPOOL_OK) {
        result = gpi_sleep_fall(arena, content);
        gpi_sleep_set(arena, result == GPUPOOL_OK ? GPI_ASLEEP : GPI_AWAKE);
        if (result == GPUPOOL_OK) gpi_thread.last = before;
    }
    return gpi_alloc_unlock(arena, result);
}

/* Why the arena cannot wake: what it needs, who has it, and what helps. */
static gpupool_result gpi_sleep_out_of_memory(gpupool_arena *arena) {
    gpupool_verdict *v = &gpi_thread.verdict;
    gpi_verdict_fill(arena, v);
    v->asked = arena->chunks.asleep;
    v->missing = gpi_less(v->asked, arena->chunks.limit);
    v->cause = v->missing ? GPUPOOL_CAUSE_LIMIT : GPUPOOL_CAUSE_OTHERS;
    gpi_verdict_add(v, "waking needs %s", v->asked, 0);
    if (v->missing)
        gpi_verdict_add(v, ", and the limit is %s: raise the limit by %s", v->limit, v->missing);
    else {
        v->device_missing = gpi_max(gpi_less(v->asked, v->device_free), GPI_PAGE);
        gpi_verdict_add(v,
                        ", and %s of the device's %s is free: others (arenas, libraries, "
                        "processes, CUDA) hold the rest",
                        v->device_free, v->device_total);
        gpi_verdict_add(v, ", have them free %s", v->device_missing, 0);
    }
    return gpi_system_fail(GPUPOOL_E_OUT_OF_MEMORY, "%s", v->sentence);
}

/* Maps the stitches that a block or a graph uses, and forgets the others. These may be made again:
   the credit is as at the start. */
static gpupool_result gpi_sleep_get_stitches(gpupool_arena *arena) {
    gpupool_result result = GPUPOOL_OK;
    gpi_stitch *stitch, *next;
    int bin;
    for (bin = 0; bin < GPI_BINS; bin++)
        for (stitch = arena->stitches.bins[bin]; stitch && result == GPUPOOL_OK; stitch = next) {
            int is_over = gpi_stitch_is_idle(stitch) && gpi_stitch_has_passed(arena, stitch);
            next = stitch->next;
            result =
                is_over ? gpi_stitch_unmap(arena, stitch) : gpi_chunk_come(arena, &stitch->range);
        }
    arena->stitches.credit = GPI_CREDIT;
    return result;
}

/* All or nothing: what was mapped before a failure is unmapped again. */
static gpupool_result gpi_sleep_rise(gpupool_arena *arena) {
    gpupool_result result;
    gpi_sleep_set(arena, GPI_RISING);
    result = gpi_ladder_wait(arena, &arena->streams.all);
    if (result == GPUPOOL_OK) result = gpi_ladder_trim(arena, 0);
    if (result != GPUPOOL_OK) return result;
    if (arena->chunks.asleep > arena->chunks.limit) result = GPUPOOL_E_OUT_OF_MEMORY;
    else if (arena->backup.content) result = gpi_sleep_copy(arena);
    if (result == GPUPOOL_OK) result = gpi_sleep_get_chunks(arena, 0, UINT64_MAX);
    else if (result == GPUPOOL_E_HOST_MEMORY && /* a full device has no room for a ring, either */
             gpi_sleep_get_chunks(arena, 0, UINT64_MAX) == GPUPOOL_E_OUT_OF_MEMORY)
        result = GPUPOOL_E_OUT_OF_MEMORY;
    if (result == GPUPOOL_OK) result = gpi_sleep_get_stitches(arena);
    if (result == GPUPOOL_OK) gpi_sleep_drop_content(arena);
    if (result == GPUPOOL_OK) return result;
    if (*arena->broken) return gpi_arena_break(arena);
    if (gpi_sleep_unmap(arena) != GPUPOOL_OK) return GPUPOOL_E_CUDA;
    return result == GPUPOOL_E_OUT_OF_MEMORY ? gpi_sleep_out_of_memory(arena) : result;
}

GPUPOOL_API gpupool_result gpupool_wake(gpupool_arena *arena) {
    gpi_failure before = gpi_thread.last;
    gpupool_result result = gpi_alloc_lock(arena, "arena", arena);
    if (result != GPUPOOL_OK) return result;
    if (*arena->broken || arena->sleep % 2) result = gpi_arena_ready(arena);
    else if (arena->sleep == GPI_AWAKE)
        result = gpi_system_fail(GPUPOOL_E_ARGUMENT, "arena: it is awake");
    else {
        result = gpi_sleep_rise(arena);
        gpi_sleep_set(arena, result == GPUPOOL_OK ? GPI_AWAKE : GPI_ASLEEP);
        if (result == GPUPOOL_OK) gpi_thread.last = before;
    }
    return gpi_alloc_unlock(arena, result);
}
#endif /* GPUPOOL_IMPLEMENTATION */

/* == NAMES ========================================================================================
   With GPUPOOL_REPLACE_CUDA_MALLOC: CUDA's names become gpupool's functions, in calls, as pointers
   and as arguments of templates; in device code they stay CUDA's. They come last, so that nothing
   above sees them. A stream of 0 is what it is in CUDA's calls of this file: so there are two sets
   of functions, and each is one function in all files of a C++ program. */
#if defined(GPUPOOL_REPLACE_CUDA_MALLOC) && GPUPOOL_REPLACE_CUDA_MALLOC
#ifndef GPUPOOL_NAMED
#define GPUPOOL_NAMED
#ifdef __cplusplus
#include <cuda_runtime.h> /* its overloads come before the names are macros */
#define GPI_NAME extern "C" inline
#else
#define GPI_NAME static inline
#endif
#ifdef __CUDA_ARCH__ /* the compiler's pass for the device */
#define GPI_NAMED(cuda, ours) cuda
#else
#define GPI_NAMED(cuda, ours) ours
#endif

GPI_NAME __host__ __device__ cudaError_t gpi_names_malloc(void **pointer, size_t bytes) {
    return GPI_NAMED(cudaMalloc, gpupool_cudaMalloc)(pointer, bytes);
}
GPI_NAME __host__ __device__ cudaError_t gpi_names_free(void *block) {
    return GPI_NAMED(cudaFree, gpupool_cudaFree)(block);
}
GPI_NAME __host__ __device__ cudaError_t gpi_names_stream_destroy(cudaStream_t stream) {
    GPI_NAMED((void), gpupool_retire_stream)(stream); /* CUDA tells of a stream that is none */
    return cudaStreamDestroy(stream);
}
GPI_NAME cudaError_t GPUPOOL_HERE(gpi_names_malloc_async)(void **pointer, size_t bytes,
                                                          cudaStream_t stream) {
    return gpupool_cudaMallocAsync(pointer, bytes, stream ? stream : GPUPOOL_STREAM_HERE);
}
GPI_NAME cudaError_t GPUPOOL_HERE(gpi_names_free_async)(void *block, cudaStream_t stream) {
    return gpupool_cudaFreeAsync(block, stream ? stream : GPUPOOL_STREAM_HERE);
}
#ifdef __cplusplus /* CUDA's header has such overloads: for a float *p, and for its own pools */
template <class T> __host__ __device__ cudaError_t gpi_names_malloc(T **pointer, size_t bytes) {
    return gpi_names_malloc(static_cast<void **>(static_cast<void *>(pointer)), bytes);
}
template <class T>
cudaError_t GPUPOOL_HERE(gpi_names_malloc_async)(T **pointer, size_t bytes, cudaStream_t stream) {
    void *untyped = pointer;
    return GPUPOOL_HERE(gpi_names_malloc_async)(static_cast<void **>(untyped), bytes, stream);
}
template <class T, class Pool>
cudaError_t GPUPOOL_HERE(gpi_names_malloc_async)(T **pointer, size_t bytes, Pool pool,
                                                 cudaStream_t stream) {
    void *untyped = pointer;
    return cudaMallocFromPoolAsync(static_cast<void **>(untyped), bytes, pool, stream);
}
#endif
#undef GPI_NAME
#undef GPI_NAMED
#endif /* GPUPOOL_NAMED */

#undef GPUPOOL_NAME
#define GPUPOOL_NAME(cuda, ours) ours
#undef cudaMallocAsync /* CUDA's header may define these two */
#undef cudaFreeAsync
#define cudaMallocAsync GPUPOOL_NAME(cudaMallocAsync, GPUPOOL_HERE(gpi_names_malloc_async))
#define cudaFreeAsync GPUPOOL_NAME(cudaFreeAsync, GPUPOOL_HERE(gpi_names_free_async))
#define cudaMalloc GPUPOOL_NAME(cudaMalloc, gpi_names_malloc)
#define cudaFree GPUPOOL_NAME(cudaFree, gpi_names_free)
#define cudaStreamDestroy GPUPOOL_NAME(cudaStreamDestroy, gpi_names_stream_destroy)
#define cudaDeviceReset GPUPOOL_NAME(cudaDeviceReset, gpupool_cudaDeviceReset)
#endif /* GPUPOOL_REPLACE_CUDA_MALLOC */
