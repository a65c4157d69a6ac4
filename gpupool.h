/* gpupool.h: device memory for CUDA programs in C and C++, in one file. Version 0.2

Do this:
    #define GPUPOOL_IMPLEMENTATION
before you include this file in *one* C, C++ or .cu file; include it plainly everywhere else.
Link the CUDA runtime (-lcudart; nvcc does so itself; no -lcuda), before glibc 2.34 -lpthread too.

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

The picture:

    your program            gpupool_alloc(arena, bytes, stream)        gpupool_free(..., stream)
    CACHE                   blocks of just that size, freed on just that stream
    LADDER  VERDICT         where memory comes from, step by step      why there is none
    TREE    LEDGER          which units are free for whom              how much, and how much may be
    CLOCK                   how far each stream has come, and who must wait for whom
    CHUNK   STITCH          memory from the driver                     a second address for it
    DRIVER                  cuMemCreate, cuMemMap, cuMemAlloc, cuEventRecord, ...

    your program            gpupool_upload(ring, device, host, bytes, stream)  gpupool_download(...)
    RING                    transfers, whose chunks several threads fill and empty
    STAGE                   pinned memory, in equal slots

What it does: hands out device memory in tens of nanoseconds, without a CUDA call, where memory
freed earlier can be had; keeps peak reserved memory within a few per cent of peak live memory,
since a large block can be put together from free memory in several places; enforces limits; says
why memory ran out and what would help. A ring copies ordinary host memory to the device and back at
nearly nine tenths of pinned memory's speed.
What it does not do: it has no thread of its own but a ring's workers, moves no memory, keeps no
bookkeeping in device memory, prints nothing unless asked, and never aborts over a mistake of yours.

Contents (search for "== NAME"):
    OPTIONS LINKAGE WORDS API CPP                                what you use
    GROUND HOST DRIVER LEDGER TREE CACHE CLOCK CHECK CHUNK GROWTH STITCH PLAN    how it works
    LIMIT ARENA TAG LADDER SHOT VERDICT SIBLING BLOCK HAND CAPTURE SLEEP LIFE SHARE SHAPE FIGURES
    STAGE RING SEND WORDING VIEW REPORT PICTURE
    BACK NAMES                                                   macros: undone; over CUDA's names

Words. Unit: GPUPOOL_UNIT_BYTES (512). Block: what gpupool_alloc returns, a run of units. Chunk:
memory got from the driver in one call. Home: the address where a chunk is mapped for all its life.
Stitch: a second address range, over free memory of several chunks, for one large block. Requested:
the bytes asked for; granted: the same rounded up to units; reserved: held from the driver. Pending:
freed, while GPU work that was queued before the free may still run.
Further words of the inside. Position: the number of a free. Clock: up to which position a stream's
work is done. Mark: an event that was recorded behind all frees up to a position. Free list: the
free memory of one stream; list ANY: free memory whose work is done. Granule: 2 MiB, the driver's
page.

The rules:
  1. Order. Free a block on the stream whose work used it last. Later work of that stream may get
     the memory at once; other streams get it when the work queued before the free is done. If
     several streams use a block, make the freeing stream wait for the others before the free
     (cudaStreamWaitEvent), or call gpupool_record_stream for each of them, after its last work on
     the block and before the free. The stream of the allocation counts as a user, even if it never
     touches the block: its earlier work may still use the memory. If A allocates, and B uses and
     frees, make B wait for A before B's first use.
  2. Ends. Destroy an arena when no block of it is live. Streams, rings and arenas may be destroyed
     in any order, once no call with them is to come.
  3. Capture. Memory that a graph uses stays live as long as the graph and its executables, or is
     allocated or freed in a scope (gpupool_begin_capture). A graph that was captured without a
     scope: before it is launched, make the launching stream wait for the work that the captured
     streams had queued before the capture, which may still be at the memory.
     gpupool cannot see a capture on a non-blocking stream if the stream has no scope and no call of
     the arena was given the stream since the capture began. During such a capture do not call
     gpupool_trim, gpupool_would_fit, gpupool_get_available or gpupool_cudaFree, and do not lower a
     limit: CUDA might end the capture. In an arena that never saw a capture do not call
     gpupool_alloc either, if memory is short, if threads use default streams of their own, or if
     the arena knows more than 64 streams. With a scope none of this matters.
  4. Functions in the config. chunk_alloc and chunk_free must not call into the same arena, nor
     destroy a stream that it has seen. on_out_of_memory may: it frees something, or allocates.
  5. Destroyed streams. CUDA gives the handle of a destroyed stream to the next one, even while the
     old one's work still runs. An arena that does not know would take the two for one, and hand the
     old one's memory on too early. So tell it, in one of three ways. Destroy streams in files that
     include this one: its macro cudaStreamDestroy tells all arenas (with GPUPOOL_STATIC the
     file's). Or call gpupool_retire_stream first (both does no harm). Or set GPUPOOL_STREAM_CHECK,
     where a library destroys streams. A thread with a default stream of its own calls
     gpupool_retire_stream with cudaStreamPerThread before it ends. If it does not, its last frees
     stay pending until gpupool_trim, or until a request finds more than an eighth of the reserved
     memory pending; 16 KiB of records stay until then, or until the arena knows more than 64
     streams.
  6. Addresses. A mapped chunk keeps its home: as long as it lives, its home address is the same
     physical memory. A large block may lie at a second address, stitched from several chunks. Where
     memory is used through two addresses, CUDA wants the end of a device operation between the two
     uses. gpupool_free puts one between two owners. If running kernels pass memory on without a
     free (persistent kernels, flags in memory), set config.no_stitch.
     A kernel that may start early (programmatic dependent launch) touches a block only after
     griddepcontrol.wait, stitched or not: until then the block's last user may still run.
  7. Reset. cudaDeviceReset ends memory, streams and events of the device. All that is left to do
     with its arenas and rings is to destroy them; do so, since mapped memory outlives a reset (seen
     on an H100). The reset drops blocks, captures and spans; chunk_free is not called. Wait for all
     tickets before a reset. A default arena is renewed at the same address by
     gpupool_get_default_arena, and by an allocation in cudaMalloc's shape: it has no blocks, a
     limit that was set stays, a trace has ended, peers are to be allowed again. Before CUDA 12 a
     reset cannot be seen: destroy arenas and rings first.
  8. Host functions. In a function that CUDA calls (cudaLaunchHostFunc, cudaStreamAddCallback) CUDA
     forbids its own calls. These may be made there: gpupool_free_in_host_function,
     gpupool_get_block with an arena, gpupool_get_stats, gpupool_get_limit, and the last_ ones.
  9. Waits. gpupool_trim, gpupool_would_fit, gpupool_get_available and lowering a limit ask whether
     work is done, and do not wait for it. With four exceptions: they wait for the device if the
     driver is older than CUDA 12.5, if the arena has peers, or if a stream was capturing when it
     was last given to a call; and CUDA itself waits for the device when it takes back a chunk that
     is not MAPPED. Where gpupool waits for the device it ends no capture.
 10. Registration. Between config.on_map and config.on_unmap the addresses of a chunk or a stitch
     map the same physical memory: so register it once, for a network card, NCCL, or another
     library. Every byte of a block lies in one mapping that you were told of, whole: a chunk or
     several side by side at home, or a stitch. The functions run with no lock held, on the thread
     whose call maps or unmaps, with the arena's context current and the capture mode relaxed. They
     must not call into the same arena. If on_map returns anything but 0, what has appeared goes
     again, and the call fails with E_CALLBACK. While a stream captures, an arena with such
     functions does not grow: E_CAPTURING. A device reset ends all mappings without a call.

Options: define them in the file with GPUPOOL_IMPLEMENTATION, before its first include of this one;
those marked * in every file. Booleans are 0 or 1. gpupool_get_build() returns what is in force.

    GPUPOOL_STATIC *        0        1: everything static: each file with GPUPOOL_IMPLEMENTATION
                                     has a gpupool of its own, which knows of no other file's arenas
    GPUPOOL_API *           extern   what stands before each declaration, for a DLL say; in C++ they
                                     are extern "C" anyway
    GPUPOOL_UNIT_BYTES      512      the smallest piece: a power of two, from 256 to 2 MiB
    GPUPOOL_LIMIT           ""       the limit of arenas that are given none, as text: "80%"
    GPUPOOL_CHUNK_BYTES     0        see config.chunk_bytes; 0: in proportion to what is held
    GPUPOOL_SHARE           0        config.share of default arenas: 1 other processes, 2 RDMA, 3
    GPUPOOL_MAPPED          1        0: leave GPUPOOL_SOURCE_MAPPED out
    GPUPOOL_RING_BYTES      64 MiB   the default of a ring's config.bytes,
    GPUPOOL_RING_CHUNK_BYTES 2 MiB   of its config.chunk_bytes,
    GPUPOOL_RING_WORKERS    0        of its config.workers; 0: processors less one, at most 11
    GPUPOOL_CHECK           1        1: asserts. 0: none. 2: every invariant, around every call
                                     (slow). 3: that, and GPUPOOL_GUARD
    GPUPOOL_GUARD           0        1: writes in the 256 bytes past a block's end are found when it
                                     is freed, and blocks hold 0xcd when new, 0xdd when freed;
                                     frees wait. Not together with GPUPOOL_NVTX, by which a tool
                                     finds more
    GPUPOOL_STATS           1        0: count only what limits and verdicts need
    GPUPOOL_SITES *         0        1: each block remembers the file and line that asked for it,
                                     but for those in cudaMalloc's shape
    GPUPOOL_NVTX            0        1: tells compute-sanitizer (--nvtx yes) of every block in
                                     cudaMalloc chunks, which AUTO then takes; names are sites
    GPUPOOL_SINGLE_THREAD   0        1: no locks, and no ring has workers
    GPUPOOL_STREAM_HOOK *   1        0: the name cudaStreamDestroy is left alone; see rule 5
    GPUPOOL_STREAM_CHECK    0        1: each call asks CUDA (12 or later) for the stream's id, but
                                     for a capturing one; E_CUDA where CUDA gives none; rule 5
    GPUPOOL_REPLACE_CUDA_MALLOC *  0  1: the names cudaMalloc, cudaFree and their Async forms mean
                                     gpupool's functions, in calls, as pointers and as arguments of
                                     templates; in device code these call CUDA's
    GPUPOOL_ASSERT(x)       assert   for gpupool's own mistakes, not yours
    GPUPOOL_MALLOC(n)       malloc   host memory for the records, with GPUPOOL_FREE(p), where p may
                                     be NULL. Must be pageable memory, not pinned
*/
#ifndef GPUPOOL_H
#define GPUPOOL_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <cuda_runtime_api.h>
#if defined(__cplusplus) && defined(GPUPOOL_REPLACE_CUDA_MALLOC) && GPUPOOL_REPLACE_CUDA_MALLOC
#include <cuda_runtime.h> /* its overloads, before the names are macros */
#endif

/* CUDA's cudaFreeAsync, whatever this file makes of that name further down. */
static inline cudaError_t gpi_names_cuda_free_async(void *pointer, cudaStream_t stream) {
    return cudaFreeAsync(pointer, stream);
}

/* == OPTIONS ================================================================================== */

#ifndef GPUPOOL_STATIC
#define GPUPOOL_STATIC 0
#endif
#ifndef GPUPOOL_UNIT_BYTES
#define GPUPOOL_UNIT_BYTES 512
#endif
#ifndef GPUPOOL_LIMIT
#define GPUPOOL_LIMIT ""
#endif
#ifndef GPUPOOL_CHUNK_BYTES
#define GPUPOOL_CHUNK_BYTES 0
#endif
#ifndef GPUPOOL_SHARE
#define GPUPOOL_SHARE 0
#endif
#ifndef GPUPOOL_MAPPED
#define GPUPOOL_MAPPED 1
#endif
#ifndef GPUPOOL_RING_BYTES
#define GPUPOOL_RING_BYTES 67108864
#endif
#ifndef GPUPOOL_RING_CHUNK_BYTES
#define GPUPOOL_RING_CHUNK_BYTES 2097152
#endif
#ifndef GPUPOOL_RING_WORKERS
#define GPUPOOL_RING_WORKERS 0
#endif
#ifndef GPUPOOL_CHECK
#define GPUPOOL_CHECK 1
#endif
#ifndef GPUPOOL_GUARD
#define GPUPOOL_GUARD 0
#endif
#ifndef GPUPOOL_STATS
#define GPUPOOL_STATS 1
#endif
#ifndef GPUPOOL_SITES
#define GPUPOOL_SITES 0
#endif
#ifndef GPUPOOL_NVTX
#define GPUPOOL_NVTX 0
#endif
#ifndef GPUPOOL_SINGLE_THREAD
#define GPUPOOL_SINGLE_THREAD 0
#endif
#ifndef GPUPOOL_STREAM_HOOK
#define GPUPOOL_STREAM_HOOK 1
#endif
#ifndef GPUPOOL_REPLACE_CUDA_MALLOC
#define GPUPOOL_REPLACE_CUDA_MALLOC 0
#endif
#ifndef GPUPOOL_STREAM_CHECK
#define GPUPOOL_STREAM_CHECK 0
#endif

/* == LINKAGE ================================================================================== */

#ifndef GPUPOOL_API
#if GPUPOOL_STATIC && (defined(__GNUC__) || defined(__clang__))
#define GPUPOOL_API static __attribute__((unused))
#elif GPUPOOL_STATIC
#define GPUPOOL_API static
#else
#define GPUPOOL_API extern
#endif
#endif

/* == WORDS ==================================================================================== */

#define GPUPOOL_VERSION 200          /* 10000 x major + 100 x minor + patch */

enum {
    GPUPOOL_DEVICE_CURRENT = -1,     /* the device that is current when an arena or ring is made */
    GPUPOOL_ORDERS = 41,             /* order k: sizes of 2^k to 2^(k+1) - 1 units */
    GPUPOOL_HOLDERS = 3,             /* the biggest that a verdict names */
    GPUPOOL_TAGS = 64,               /* the most that an arena has */
    GPUPOOL_ALL = -1                 /* all of an arena, in gpupool_sleep and gpupool_wake */
};

typedef enum gpupool_result {
    GPUPOOL_OK = 0,
    GPUPOOL_E_ARGUMENT,      /* fix the call; gpupool_last_error() names argument and rule */
    GPUPOOL_E_OUT_OF_MEMORY, /* gpupool_last_verdict() says why a request failed, and what would
                                help; from other calls: the driver had no memory for itself */
    GPUPOOL_E_NOT_OURS,      /* the pointer is in no memory of this arena, or of any */
    GPUPOOL_E_INSIDE,        /* the pointer is inside a live block, not at its start */
    GPUPOOL_E_DOUBLE_FREE,   /* the block there is already free */
    GPUPOOL_E_OVERRUN,       /* something wrote past the end of the block; see GPUPOOL_GUARD */
    GPUPOOL_E_CORRUPT,       /* gpupool's own records are damaged: something wrote over them */
    GPUPOOL_E_IN_USE,        /* destroy refused: blocks, captures or spans are still out. free
                                refused: the block is exported */
    GPUPOOL_E_CAPTURING,     /* not while this stream captures; the capture goes on */
    GPUPOOL_E_TIMEOUT,       /* the time allowed has passed */
    GPUPOOL_E_UNSUPPORTED,   /* this device or build cannot do it */
    GPUPOOL_E_FORKED,        /* a child process after fork has no CUDA context */
    GPUPOOL_E_CALLBACK,      /* your walk, read, write or on_map function returned nonzero */
    GPUPOOL_E_FILE,          /* a file could not be read or written; the error has errno's words */
    GPUPOOL_E_HOST_MEMORY,   /* host allocation failed; nothing changed */
    GPUPOOL_E_ASLEEP,        /* the arena or the tag sleeps: gpupool_wake comes first */
    GPUPOOL_E_CUDA           /* a CUDA call failed; gpupool_last_error() has its name and CUDA's */
} gpupool_result;

typedef enum gpupool_content {   /* what becomes of it in gpupool_sleep */
    GPUPOOL_DISCARD = 0,         /* after waking, blocks hold anything */
    GPUPOOL_KEEP                 /* it is copied to host memory, and back */
} gpupool_content;

typedef enum gpupool_source {    /* where an arena's chunks come from */
    GPUPOOL_SOURCE_AUTO = 0,     /* MAPPED where the device can, and has addresses left; else
                                    DEVICE, and gpupool_report says why */
    GPUPOOL_SOURCE_MAPPED,       /* addresses reserved once, physical memory mapped on demand. CUDA
                                    cannot share it (cudaIpcGetMemHandle: cudaErrorInvalidValue).
                                    Who registers memory by cuMemGetAddressRange sees one chunk of
                                    it: ask for such blocks with GPUPOOL_ONE_CHUNK */
    GPUPOOL_SOURCE_DEVICE,       /* cudaMalloc chunks */
    GPUPOOL_SOURCE_MANAGED,      /* cudaMallocManaged chunks */
    GPUPOOL_SOURCE_PINNED,       /* cudaHostAlloc chunks: pinned host memory */
    GPUPOOL_SOURCE_CUSTOM,       /* your two functions: ncclMemAlloc, a test double, ... */
    GPUPOOL_SOURCE_BYPASS        /* no pool: every block its own cudaMalloc, to bisect a bug */
} gpupool_source;

typedef enum gpupool_cause {     /* why memory ran out */
    GPUPOOL_CAUSE_NONE = 0,
    GPUPOOL_CAUSE_LIMIT,         /* the arena's limit: raise it, or free */
    GPUPOOL_CAUSE_TOO_LARGE,     /* larger than the whole device */
    GPUPOOL_CAUSE_DEVICE_FULL,   /* the device is full, mostly of this arena's memory */
    GPUPOOL_CAUSE_OTHERS,        /* the device is full, and others hold what is missing */
    GPUPOOL_CAUSE_FRAGMENTED,    /* enough bytes are free or may be grown, but not in one block */
    GPUPOOL_CAUSE_PENDING,       /* would fit once work in flight has finished */
    GPUPOOL_CAUSE_CAPTURING,     /* the same, but a capturing stream cannot wait for that */
    GPUPOOL_CAUSE_TAG            /* over the budget of the request's tag */
} gpupool_cause;

typedef struct gpupool_arena gpupool_arena;
typedef struct gpupool_capture gpupool_capture;

typedef enum gpupool_flag {          /* of a request; several are added up */
    GPUPOOL_ZEROED = 1,              /* the block is zeroed by a memset on the request's stream */
    GPUPOOL_NO_WAIT = 2,             /* the host never waits: where only a wait would help, the
                                        request fails, with a verdict */
    GPUPOOL_ONE_CHUNK = 4,           /* the block lies in one allocation of the driver, for those
                                        who ask cuMemGetAddressRange: NCCL registration, UCX, ... */
    GPUPOOL_EXPORTABLE = 8           /* the block has a chunk for itself, and its size is rounded up
                                        to whole granules (2 MiB): for gpupool_export */
} gpupool_flag;

typedef enum gpupool_share {         /* who else may hold an arena's memory; added up */
    GPUPOOL_SHARE_PROCESSES = 1,     /* other processes: see gpupool_export. Linux */
    GPUPOOL_SHARE_RDMA = 2           /* network cards and the like (GPUDirect RDMA) */
} gpupool_share;

/* Addresses at which a chunk is mapped, or part of a chunk behind a block; or a stitch. */
typedef struct gpupool_mapping {
    void *memory;
    size_t bytes;
    size_t offset;                   /* of the first byte in its chunk */
    size_t chunk_bytes;              /* of all of the chunk; 0: a stitch, of several chunks */
    unsigned long long handle;       /* the chunk's CUmemGenericAllocationHandle, which stays the
                                        arena's; 0: a stitch, or not of SOURCE_MAPPED */
} gpupool_mapping;

typedef struct gpupool_exported {    /* of a block: see gpupool_export */
    uint64_t bytes;
    int device;                      /* the exporter's */
    int descriptor;                  /* by its number in the process that has the struct */
} gpupool_exported;

typedef struct gpupool_imported {    /* see gpupool_import */
    void *memory;
    size_t bytes;
    int device;
    unsigned long long handle;       /* gpupool's */
} gpupool_imported;

/* Gets a mapping. Anything but 0 ends a walk, or refuses what has appeared. */
typedef int (*gpupool_map_fn)(const gpupool_mapping *, void *user);

typedef struct gpupool_request {     /* all zeros but for bytes: gpupool_alloc on stream 0 */
    size_t bytes;
    size_t alignment;                /* a power of two, at most 2^40; 0: a unit */
    cudaStream_t stream;             /* whose work uses the block first */
    unsigned flags;                  /* GPUPOOL_ZEROED and so on */
    const char *file;                /* who asks, for reports with GPUPOOL_SITES 1; must stay valid
                                        as long as the arena, as __FILE__ does; NULL: not known */
    int line;
    int tag;                         /* of gpupool_tag, whose budget the block counts against; 0:
                                        none */
} gpupool_request;

typedef enum gpupool_state {
    GPUPOOL_STATE_LIVE,              /* handed out */
    GPUPOOL_STATE_FREE,              /* free, and the work that used it has finished */
    GPUPOOL_STATE_PENDING            /* freed; work that used it may still run */
} gpupool_state;

typedef struct gpupool_block {       /* a live block, or a stretch of free memory */
    gpupool_arena *arena;
    int device;
    gpupool_source source;
    gpupool_state state;
    void *memory;                    /* where this stretch begins */
    size_t bytes;                    /* its size, in whole units */
    size_t requested_bytes;          /* live: `bytes` less what rounding up has added */
    void *block;                     /* live: the pointer that was handed out. Of a stitched block a
                                        walk shows several stretches, each with its home address in
                                        `memory`; of any other block one, and both are the same */
    size_t block_bytes;              /* live: the whole block's requested size; in a walk only its
                                        first stretch has it, the others have 0 */
    cudaStream_t stream;             /* live: allocated on; pending: freed on. cudaStreamLegacy,
                                        cudaStreamPerThread (of any thread), or a handle; NULL: all
                                        streams, or not known */
    const char *file;                /* live, with GPUPOOL_SITES 1; NULL: not known */
    int line;
    int tag;                         /* live: the request's */
} gpupool_block;

/* Gets each block of a walk. Anything but 0 ends the walk. No lock is held. */
typedef int (*gpupool_block_fn)(const gpupool_block *, void *user);

typedef struct gpupool_holder {      /* live blocks that one line of source asked for (with
                                        GPUPOOL_SITES 1), or that are of one size */
    const char *file;                /* NULL: not known */
    int line;
    uint64_t block_bytes;            /* the size asked for with each; 0 with GPUPOOL_SITES */
    uint64_t blocks, bytes;          /* how many, and their sum; both 0: no more holders */
    uint64_t enough;                 /* free so many of these blocks, whichever, and the request
                                        succeeds; 0: not even all of them would do */
} gpupool_holder;

typedef struct gpupool_verdict {     /* on a request that could not be met; figures in bytes */
    gpupool_cause cause;
    uint64_t asked_bytes;
    uint64_t limit_bytes;            /* 0: none */
    uint64_t granted_bytes;          /* held by live blocks */
    uint64_t reserved_bytes;         /* held by the arena from the driver */
    uint64_t largest_block_bytes;    /* the largest block that free memory makes, whichever stream
                                        may have it; not a graph's memory. BYPASS: 0 */
    uint64_t pending_bytes;          /* freed; work that used it may still run */
    uint64_t kept_bytes;             /* of pending_bytes, a graph's until its release */
    uint64_t device_free_bytes;      /* what the driver says is free on the device; of an integrated
                                        GPU, whose memory is the host's, all but reserved_bytes */
    uint64_t device_total_bytes;
    uint64_t others_bytes;           /* device memory in use that this arena does not hold */
    uint64_t siblings_bytes;         /* of others_bytes, held by this process's other arenas */
    uint64_t missing_bytes;          /* the least that has to become free, of the limit or of the
                                        device; in scattered places it may not be enough */
    uint64_t fits_bytes;             /* FRAGMENTED: the largest block that could be had */
    uint64_t raise_bytes;            /* with a limit of limit_bytes + raise_bytes the request
                                        succeeds; 0: no limit would do */
    int pending_streams;             /* PENDING, CAPTURING: how many streams to wait for; 0: all of
                                        the device */
    cudaStream_t pending_stream;     /* if that is one: this one, or cudaStreamLegacy or
                                        cudaStreamPerThread */
    gpupool_holder holders[GPUPOOL_HOLDERS]; /* the biggest first */
    int tag;                         /* cause TAG: whose budget; limit_bytes, granted_bytes,
                                        missing_bytes and raise_bytes are then the tag's, and all
                                        that is said of free memory is 0 */
    char sentence[448];              /* the same for people, with what would make it succeed */
} gpupool_verdict;

/* A soft limit was passed, or memory has come back under it. */
typedef struct gpupool_soft_limit {
    gpupool_arena *arena;
    int tag;                         /* 0: the arena's own, on reserved bytes */
    int is_over;                     /* 1: passed */
    uint64_t now_bytes, soft_limit_bytes;
} gpupool_soft_limit;

/* Called once for each time that it was passed, and for each time that it no longer is: with no
   lock held, by the call that made it so, before that returns; or, where that was in a host
   function, by the next one that allocates or frees. May use the arena: a cache sheds load here. */
typedef void (*gpupool_soft_fn)(const gpupool_soft_limit *, void *user);

typedef struct gpupool_tag_config {  /* all zeros: counted, and not limited */
    size_t limit_bytes;              /* granted bytes that blocks with the tag may have; 0: any */
    size_t soft_limit_bytes;         /* the same for on_soft_limit; 0: none */
    gpupool_soft_fn on_soft_limit;
    void *user;
    int can_sleep;                   /* 1: gpupool_sleep takes this tag. Its blocks then have chunks
                                        of their own, and what they free goes to other streams, or
                                        to blocks of another size, once the work has finished */
    size_t reserve_bytes;            /* memory that only blocks with this tag get: chunks of their
                                        own, reserved now, in whole granules, and kept when
                                        trimming. Both need SOURCE_MAPPED, else E_UNSUPPORTED */
} gpupool_tag_config;

typedef struct gpupool_arena_config { /* all zeros: device 0, and every default. A NULL config
                                        differs in one thing: it means the current device */
    int device;                      /* CUDA device ordinal, or GPUPOOL_DEVICE_CURRENT */
    gpupool_source source;
    size_t limit_bytes;              /* the most that may be reserved; 0: GPUPOOL_LIMIT decides */
    const char *limit_text;          /* "12GiB", "80%", "-2GiB"; wins over limit_bytes */
    size_t reserve_bytes;            /* reserve so much now, in whole granules, and keep it when
                                        trimming; BYPASS: nothing */
    size_t chunk_bytes;              /* the least to get from the driver at a time; 0: a share of
                                        what is reserved */
    int no_stitch;                   /* 1: no block has a second address; see rule 6 */
    void *(*chunk_alloc)(size_t bytes, int device, void *user);  /* SOURCE_CUSTOM: both */
    void (*chunk_free)(void *chunk, size_t bytes, int device, void *user);
    unsigned share;                  /* gpupool_share, added up: asked for at each chunk's creation,
                                        of SOURCE_MAPPED alone. It costs next to nothing; but a
                                        process that exports cannot be checkpointed by the driver,
                                        so there is none unless you ask */
    gpupool_map_fn on_map, on_unmap; /* called when a chunk or a stitch has appeared, before anybody
                                        gets memory of it; and before it goes, when nobody has. See
                                        rule 10 */
    int (*on_out_of_memory)(const gpupool_verdict *, void *user); /* called when all else has
                                        failed for a request, of whatever stream and flags: free
                                        missing_bytes and return nonzero to have it tried again;
                                        0: it fails. Not called by gpupool_would_fit */
    size_t backup_bytes;             /* the most host memory that gpupool_sleep may take; 0: any */
    size_t soft_limit_bytes;         /* reserved bytes, for on_soft_limit; 0: none */
    gpupool_soft_fn on_soft_limit;
    void *user;
    const char *name;                /* appears in reports and pictures; 31 bytes are copied */
} gpupool_arena_config;

typedef struct gpupool_counter {
    uint64_t now, peak, total;       /* total: every increase added up. peak is exact with one
                                        stream. Each further one may make it off by the larger of
                                        1 MiB and a 256th of reserved, all by an 8th at most */
} gpupool_counter;

typedef struct gpupool_stats {
    size_t struct_bytes;             /* set by the library: sizeof of the struct it filled */
    gpupool_counter requested;       /* bytes asked for by live blocks */
    gpupool_counter granted;         /* the same, rounded up to units. While threads contend, up to
                                        an 8th of a cached block may go unused by its request */
    gpupool_counter reserved;        /* bytes held from the driver */
    gpupool_counter pending;         /* freed on some stream, not known to be finished there */
    gpupool_counter blocks;          /* live blocks */
    uint64_t allocs, frees, failures;
    uint64_t same_stream_allocs;              /* served from memory freed on the same stream */
    uint64_t splits, merges;
    uint64_t chunks_gained, chunks_lost; /* got from and given back to the driver */
    uint64_t stitches;               /* blocks put together from free memory in several places */
    uint64_t stitches_reused;        /* of the size of an earlier one, without a CUDA call */
    uint64_t fence_waits;            /* streams made to wait for another, on the device */
    uint64_t host_syncs;             /* times the host had to wait */
    uint64_t limit_bytes;            /* 0: none */
    uint64_t largest_free_bytes;     /* longest run of free reserved memory */
    uint64_t largest_block_bytes;    /* the largest block that it makes, stitched if need be */
    uint64_t stitched_bytes;         /* of granted: in stitched blocks */
    uint64_t asleep_bytes;           /* reserved before gpupool_sleep gave it back; 0: awake */
    uint64_t backup_bytes;           /* host memory that holds what blocks held */
    uint64_t host_bytes;             /* host memory used for the arena's own records */
    uint64_t live_by_order[GPUPOOL_ORDERS], free_by_order[GPUPOOL_ORDERS];
} gpupool_stats;

typedef struct gpupool_tag_stats {
    char name[32];
    gpupool_counter granted;         /* bytes of live blocks with the tag, in whole units */
    gpupool_counter blocks;          /* live ones */
    uint64_t failures;               /* requests that were over the budget */
    uint64_t limit_bytes, soft_limit_bytes; /* 0: none */
    uint64_t asleep_bytes;           /* of its own chunks, returned to the driver while it sleeps */
} gpupool_tag_stats;

/* ---- the staging ring ---- */

typedef struct gpupool_ring gpupool_ring;
typedef uint64_t gpupool_ticket;     /* of one transfer: never 0, never used twice by a ring */

typedef enum gpupool_direction {
    GPUPOOL_UP = 0,                  /* to the device */
    GPUPOOL_DOWN = 1
} gpupool_direction;

typedef struct gpupool_ring_config { /* all zeros: device 0, and every default. A NULL config
                                        differs in one thing: it means the current device */
    int device;                      /* CUDA device ordinal, or GPUPOOL_DEVICE_CURRENT */
    size_t bytes;                    /* the most pinned memory the ring ever holds: its limit; from
                                        256 KiB to 16 TiB */
    size_t chunk_bytes;              /* the size of the ring's slots, the most that is copied and
                                        sent at a time; from 64 KiB to a quarter of the ring */
    int workers;                     /* threads that help the caller, at most 64; -1: none; 0: see
                                        GPUPOOL_RING_WORKERS */
} gpupool_ring_config;

typedef struct gpupool_file_part {   /* of a file, and where it goes */
    void *device_dst;
    uint64_t offset;                 /* of its first byte in the file */
    size_t bytes;
} gpupool_file_part;

typedef struct gpupool_span {        /* pinned memory of the ring, yours to fill */
    void *memory;
    size_t bytes;                    /* may be lowered before it is sent */
    uint64_t number;                 /* the ring's */
} gpupool_span;

/* Your functions: bring, or take away, bytes [offset, offset + bytes) of the transfer, counted from
   its first; each byte once. Anything but 0 fails the transfer with E_CALLBACK. Workers and the
   caller call them at the same time, each for another part; without workers the caller does, in
   order of offset. They must not use the ring, nor throw. */
typedef int (*gpupool_read_fn)(void *to, size_t bytes, uint64_t offset, void *user);
typedef int (*gpupool_write_fn)(const void *from, size_t bytes, uint64_t offset, void *user);

typedef struct gpupool_transfer {    /* all zeros but for what is set */
    gpupool_direction direction;
    void *to;                        /* UP: device memory; DOWN: host memory */
    const void *from;                /* UP: host memory; DOWN: device memory */
    size_t bytes;                    /* in all; with pitches: of each row */
    size_t to_pitch, from_pitch;     /* from row to row, as of cudaMemcpy2DAsync; both 0: no rows */
    size_t rows;                     /* with pitches: how many */
    gpupool_read_fn read;            /* UP: fills pinned memory itself, instead of `from` */
    gpupool_write_fn write;          /* DOWN: empties pinned memory itself, instead of `to` */
    void *user;                      /* for read and write */
    int is_file;                     /* 1, UP: from an open file instead of `from`; see
                                        gpupool_upload_file */
    int file;
    uint64_t offset;                 /* of the first byte in the file */
    cudaStream_t stream;
    gpupool_ticket *ticket;          /* NULL: returns as gpupool_upload and gpupool_download do */
} gpupool_transfer;

typedef struct gpupool_ring_stats {  /* arrays: [GPUPOOL_UP], [GPUPOOL_DOWN] */
    size_t struct_bytes;             /* set by the library: sizeof of the struct it filled */
    gpupool_counter pinned;          /* bytes pinned */
    gpupool_counter used;            /* of them in spans and chunks; used.peak: high water */
    uint64_t limit_bytes;            /* the most that is ever pinned */
    uint64_t workers;                /* running now */
    uint64_t transfers[2];
    uint64_t staged_bytes[2];        /* through the ring, with what creeps did */
    uint64_t direct_bytes[2];        /* by CUDA itself: pinned memory, and tiny transfers */
    uint64_t chunks[2];
    uint64_t creeps;                 /* steps by CUDA's own staging, because the ring stayed full */
    uint64_t waits, wait_ns;         /* transfers that found the ring full, and for how long */
    uint64_t pin_ns, pin_failures;   /* time spent pinning; refusals by the system */
    uint64_t under_way_ns[2];        /* time with a transfer through the ring under way */
    uint64_t link_busy_ns[2];        /* time with a chunk on its way, as far as the ring looked */
    double gb_per_s[2];              /* staged_bytes but for spans by under_way_ns, 10^9 bytes a
                                        second */
    double link_busy[2];             /* link_busy_ns as a share of under_way_ns, at most 1 */
} gpupool_ring_stats;

/* == API ====================================================================================== */

#if defined(__cplusplus)
extern "C" { /* whatever GPUPOOL_API is */
#endif

/* Unless a call says otherwise: any thread may make it at any time, on a capturing stream too, but
   not in a host function (rule 8). If it fails, it has changed nothing. The calling thread's
   current device, capture mode and last CUDA error stay as they were; so does its context, and a
   thread that had none has none afterwards (the driver API needs one, the runtime makes it). Sizes
   are in bytes. Only the primary context of an arena's or a ring's device is used, and kept until
   they are gone. A stream of 0 means what CUDA takes it for in the file that makes the call: the
   legacy default stream, or with --default-stream per-thread each thread's own; of the arena's
   device. */

/* Of each thread: the result of its most recent call; and one line of text on its most recent call
   that failed, valid until its next failure. gpupool_last_verdict changes neither, nor does a call
   in CUDA's shape that reaches no arena. */
GPUPOOL_API gpupool_result gpupool_last_result(void);
GPUPOOL_API const char *gpupool_last_error(void);
GPUPOOL_API const char *gpupool_result_name(gpupool_result);

GPUPOOL_API int gpupool_get_version(void);             /* GPUPOOL_VERSION of the implementation */
GPUPOOL_API const char *gpupool_get_build(void);       /* its compile-time options */

/* ---- arena: the memory of one device ---- */

/* Makes an arena. A NULL config means the current device and every default; a config of zeros means
   device 0 and every default. On failure *arena is NULL. */
GPUPOOL_API gpupool_result gpupool_arena_create(gpupool_arena **arena,
                                                const gpupool_arena_config *config);

/* Waits for the device, and gives all memory back. E_IN_USE while blocks are live or captures not
   released, unless the device was reset (rule 7). If a CUDA call fails the arena is still there,
   perhaps with less reserved: try again. No other thread may use the arena any more. */
GPUPOOL_API gpupool_result gpupool_arena_destroy(gpupool_arena *arena);

/* The arena of a device that gpupool_cudaMalloc uses, the same for all callers. `get` makes it at
   the first call, and renews it after a reset (rule 7); NULL, with a result, when it cannot. `find`
   makes none: NULL, with GPUPOOL_OK, when there is none. It lives until gpupool_arena_destroy, or
   as long as the process. Its source: the environment's GPUPOOL_SOURCE (auto, mapped, device,
   managed or bypass; with bypass each block is cudaMalloc's own, as cudaIpcGetMemHandle needs). */
GPUPOOL_API gpupool_arena *gpupool_get_default_arena(int device);
GPUPOOL_API gpupool_arena *gpupool_find_default_arena(int device);

/* A block of so many bytes, aligned to a unit at least, for work queued on this stream from now on.
   NULL, with a result, on failure; 0 bytes and more than 2^48 are E_ARGUMENT. No CUDA call when
   memory freed earlier fits at once. Else it tries, in this order: stitch free memory or grow; make
   the stream wait for other streams; return idle memory to get a larger chunk; wait on the host. On
   a capturing stream it may grow, but waits for nothing: where only a wait would help, it
   is E_OUT_OF_MEMORY with cause CAPTURING, and the capture goes on. */
GPUPOOL_API void *gpupool_alloc(gpupool_arena *, size_t bytes, cudaStream_t);

/* The same with all that can be asked for; the three others are short forms of it. In a pinned
   arena ZEROED zeroes on the host, before the call returns; if the stream captures, also in each
   replay. */
GPUPOOL_API void *gpupool_alloc_request(gpupool_arena *, const gpupool_request *);
GPUPOOL_API void *gpupool_alloc_aligned(gpupool_arena *, size_t bytes, size_t alignment,
                                        cudaStream_t);
GPUPOOL_API void *gpupool_zalloc(gpupool_arena *, size_t bytes, cudaStream_t);

/* Frees a block, which may come from any stream's allocation, on the stream that used it last (rule
   1); NULL is allowed. E_NOT_OURS, E_INSIDE and E_DOUBLE_FREE change nothing. Records an event now
   and then; if CUDA refuses the event the block is freed, with GPUPOOL_OK, and CUDA is asked again
   later. Waits only with GPUPOOL_GUARD (for the stream; E_OVERRUN: bytes past the block were
   written, the block is freed) and with BYPASS (calls cudaFree). */
GPUPOOL_API gpupool_result gpupool_free(gpupool_arena *, void *block, cudaStream_t);

/* The same for host functions (rule 8): makes no CUDA call. Other streams get the memory once
   gpupool knows that the given stream is done: by a later call with the stream, or by a wait for
   the device. E_ARGUMENT for cudaStreamPerThread, which is another one on CUDA's thread. */
GPUPOOL_API gpupool_result gpupool_free_in_host_function(gpupool_arena *, void *block,
                                                         cudaStream_t);

/* The work queued on this stream so far uses the block too: once freed, nobody gets its memory
   before that work is done. Records an event for that, one of two that the stream has. E_CAPTURING
   on a capturing stream. */
GPUPOOL_API gpupool_result gpupool_record_stream(gpupool_arena *, const void *block, cudaStream_t);

/* Call it before cudaStreamDestroy (rule 5): what the stream freed no longer belongs to its handle,
   and others get it once the stream's work is done. No wait. Works after a CUDA error, too. The
   second call does it for all arenas, and then destroys the stream. */
GPUPOOL_API gpupool_result gpupool_retire_stream(gpupool_arena *, cudaStream_t);
GPUPOOL_API cudaError_t gpupool_cudaStreamDestroy(cudaStream_t);

/* Waits on the host for the work queued before this stream's frees so far. What the stream freed is
   then not pending, except where other streams use it too. E_CAPTURING on a capturing stream. */
GPUPOOL_API gpupool_result gpupool_wait_stream(gpupool_arena *, cudaStream_t);

/* The same for all frees so far, on any stream, of retired streams and host functions too: then
   only what graphs keep is pending. Waits for the device. */
GPUPOOL_API gpupool_result gpupool_wait_all(gpupool_arena *);

/* Describes the live block that begins at this address. E_INSIDE: the address is inside the block
   that is described. E_DOUBLE_FREE: it is in free memory; E_NOT_OURS: in no memory of the arena;
   *block is all zeros then. With a NULL arena: of whichever arena has it, but not in a host
   function (rule 8). */
GPUPOOL_API gpupool_result gpupool_get_block(gpupool_arena *, const void *memory,
                                             gpupool_block *block);

/* Calls fn for each stretch of the arena's reserved memory, live and free, in order of address, as
   all were at one moment. fn may use the arena. E_CALLBACK if fn ended the walk. */
GPUPOOL_API gpupool_result gpupool_walk_blocks(gpupool_arena *, gpupool_block_fn fn, void *user);

/* Returns idle chunks to the driver until at most max(keep_bytes, config.reserve_bytes) stays
   reserved. A chunk is idle when all its memory is free and the work that used it is done; what
   caches hold is free. Does not wait for that work (see rule 9). If a CUDA call fails, what went
   before stays given back, and released_bytes says how much. Captures: see rule 3. */
GPUPOOL_API gpupool_result gpupool_trim(gpupool_arena *, size_t keep_bytes,
                                        size_t *released_bytes /* or NULL */);

/* Lets kernels of another device use the arena's memory, also what comes later. E_UNSUPPORTED where
   the hardware cannot. All calls then take that device's streams, except its default streams: they
   have no handle of their own. After a reset of that device, allow it again. Before
   CUDA 12 such a reset cannot be seen: reset no peer while the arena lives. */
GPUPOOL_API gpupool_result gpupool_allow_peer(gpupool_arena *, int device);

/* The end of that: waits for the device and its peers, and takes the access back. Of DEVICE and
   MANAGED memory kernels keep their access, since CUDA gives it for whole devices. E_ARGUMENT for a
   device that is no peer. */
GPUPOOL_API gpupool_result gpupool_disallow_peer(gpupool_arena *, int device);

/* ---- sleep. A kernel or copy that touches sleeping memory, or a graph launch that does, faults
   and ends the CUDA context. Sleeping returns device memory to the driver; addresses and blocks
   stay. Waking gets memory again at the same addresses: pointers and captured graphs stay good. A
   tag made with can_sleep sleeps and wakes alone; GPUPOOL_ALL means all of the arena. ---- */

/* Waits for the device, copies what the tag's live blocks hold to host memory (KEEP; through the
   ring, or by CUDA alone if that is NULL), and returns the tag's chunks to the driver. Until
   gpupool_wake, gpupool_free works as ever, and a request with the tag fails with E_ASLEEP (after
   GPUPOOL_ALL also each call that gets or returns chunks). Tickets of a ring from or to the blocks
   must have ended. On failure the memory is awake as before; only if the driver neither unmaps
   chunks nor maps them again (E_CUDA) it sleeps, and gpupool_wake tries once more.
   E_ARGUMENT for a tag without can_sleep; E_UNSUPPORTED off SOURCE_MAPPED; E_CAPTURING while a
   stream captures; E_IN_USE while a block is exported; E_HOST_MEMORY beyond config.backup_bytes;
   E_ASLEEP if it sleeps already. */
GPUPOOL_API gpupool_result gpupool_sleep(gpupool_arena *, int tag /* or GPUPOOL_ALL */,
                                         gpupool_content, gpupool_ring * /* or NULL */);

/* Gets memory again for what is still live, waits for the device, and copies kept content back. The
   host memory is returned. E_OUT_OF_MEMORY with the reason where the limit or the device leave too
   little room: the memory sleeps as before, and a later call may succeed. E_ARGUMENT if nothing
   sleeps. After GPUPOOL_ALL slept, tags may be woken one by one; GPUPOOL_ALL wakes the rest. */
GPUPOOL_API gpupool_result gpupool_wake(gpupool_arena *, int tag /* or GPUPOOL_ALL */,
                                        gpupool_ring * /* or NULL */);

/* ---- memory that others hold: chunks for registration, and blocks for other processes ---- */

/* Calls fn for each chunk behind a live block, in the order of the block's addresses;
   mapping.memory is where in the block that chunk's part begins. fn may use the arena. While the
   arena sleeps handles are 0. E_CALLBACK if fn ended the walk; for other addresses see
   gpupool_get_block. */
GPUPOOL_API gpupool_result gpupool_walk_chunks(gpupool_arena *, const void *block,
                                               gpupool_map_fn fn, void *user);

/* Makes what another process needs to map a block that was asked for with GPUPOOL_EXPORTABLE. The
   struct and its descriptor go there over a Unix socket (SCM_RIGHTS). Exported again, the block has
   the same struct. The descriptor is the arena's, and close-on-exec. While exported the block is
   not to be freed: E_IN_USE. E_CAPTURING for a block that is a graph's. */
GPUPOOL_API gpupool_result gpupool_export(gpupool_arena *, const void *block, gpupool_exported *);

/* The end of one gpupool_export; with the last one the descriptor is closed. Call it when the other
   processes have closed what they imported, or are gone: they go on seeing the memory, whoever has
   it then. E_ARGUMENT for a block that is not exported. */
GPUPOOL_API gpupool_result gpupool_export_close(gpupool_arena *, const void *block);

/* Maps a block that another process exports, for kernels of this device. `exported` has the
   descriptor as it came here; it may be closed afterwards. The memory lives until both sides have
   let go, even if the other process dies. Whose work uses it when is for you to order: events go
   between processes too (cudaIpcGetEventHandle). E_CUDA if that is no such descriptor. */
GPUPOOL_API gpupool_result gpupool_import(int device, const gpupool_exported *exported,
                                          gpupool_imported *imported);

/* Unmaps it, and waits for no work: do so before. If a CUDA call fails, try again. */
GPUPOOL_API gpupool_result gpupool_import_close(gpupool_imported *imported);

/* ---- graph capture. No call on a capturing stream ends the capture, also where it fails. Memory
   that is to stay for replays is allocated in a scope:

       gpupool_begin_capture(arena, stream, &scope);   // before or after cudaStreamBeginCapture
       cudaStreamBeginCapture(stream, mode);           // any mode
       ...                                             // gpupool_alloc, gpupool_free on the stream
       cudaStreamEndCapture(stream, &graph);
       gpupool_end_capture(scope);                     // before or after cudaStreamEndCapture
       ...                                             // launch as often as you like
       cudaGraphExecDestroy(exec), cudaGraphDestroy(graph);
       gpupool_release_capture(scope);

   Blocks that a scope has handed out belong to the graph: their memory is at the same addresses in
   each replay, and nobody else's before the release. You may free them, in the scope or later, or
   leave them to the release; after it they must not be freed. What is freed in the scope may be
   handed out in it again, if it was allocated there. A block from before may be freed in the scope,
   too: its memory comes back with the release. A capture that forks needs a scope for each stream
   that allocates. If two graphs use one block, release last the scope that allocated it. ---- */

/* E_ARGUMENT if the stream has a scope already. On failure *capture is NULL. */
GPUPOOL_API gpupool_result gpupool_begin_capture(gpupool_arena *, cudaStream_t, gpupool_capture **);

/* The stream allocates as outside of the scope from now on; the graph's memory stays for replays.
   Retiring the stream ends its scope too. */
GPUPOOL_API gpupool_result gpupool_end_capture(gpupool_capture *);

/* Call it when graph and executables are destroyed, or when the capture failed; it ends a scope
   that is open. Gives back all the graph's memory, blocks that were not freed too. Waits for the
   device, since a replay may still run. */
GPUPOOL_API gpupool_result gpupool_release_capture(gpupool_capture *);

/* ---- cudaMalloc's own shape, on the default arena of the current device; cudaMallocAsync's, on
   that of the stream's device. cudaMalloc's promises hold: any stream may use the block at once,
   and others get it after all work queued before its free is done; the free itself does not wait.
   The Async forms are in stream order. A pointer of no arena goes to CUDA; a pointer of an arena
   that is no default one is cudaErrorInvalidValue. GPUPOOL_GUARD's finds are
   cudaErrorIllegalAddress. A CUDA call that fails inside is told as the error that it gave;
   cudaErrorMemoryAllocation and cudaErrorInvalidValue are CUDA's last error, too, as after its own
   calls. cudaMallocPitch, cudaMalloc3D, cudaMallocManaged and the like stay CUDA's. ---- */

GPUPOOL_API cudaError_t gpupool_cudaMalloc(void **, size_t);
GPUPOOL_API cudaError_t gpupool_cudaFree(void *);
GPUPOOL_API cudaError_t gpupool_cudaMallocAsync(void **, size_t, cudaStream_t);
GPUPOOL_API cudaError_t gpupool_cudaFreeAsync(void *, cudaStream_t);

/* ---- limits: on reserved bytes. What CUDA's context, other libraries and other processes hold is
   not counted. A new arena takes the first of these that is set: config.limit_text,
   config.limit_bytes, the environment's GPUPOOL_LIMIT_<device>, the environment's GPUPOOL_LIMIT,
   the macro GPUPOOL_LIMIT. ---- */

/* 0: no limit. Below what is reserved: gives back what it can, as gpupool_trim does, and does not
   grow until the limit is met. Waits for growth that is under way. If a CUDA call fails the limit
   is as before, and what went before stays given back. */
GPUPOOL_API gpupool_result gpupool_set_limit(gpupool_arena *, size_t bytes);

/* The same as text: "1073741824", "12GiB" (K, M, G, T and KiB ... are powers of 1024, KB ... of
   1000), "80%" of the device, "80%free" of what is free on it now, "-2GiB": all but that; also
   "1.5 gb". All else, and what comes to 0, is E_ARGUMENT. On an integrated GPU all that the arena
   does not hold counts as free: CUDA's own figure leaves out the system's caches. */
GPUPOOL_API gpupool_result gpupool_set_limit_text(gpupool_arena *, const char *);
GPUPOOL_API gpupool_result gpupool_get_limit(gpupool_arena *, size_t *bytes); /* 0: no limit */

/* Bytes that could still be handed out in all, by the limit and by what the device has free; at
   most 2^48. While no block is live, one block may have them all; else free memory may be in
   several places: gpupool_would_fit tells of one block. */
GPUPOOL_API gpupool_result gpupool_get_available(gpupool_arena *, size_t *bytes);

/* Whether one block of so many bytes could be had now, by some stream, without a wait on the host:
   GPUPOOL_OK, or E_OUT_OF_MEMORY with the verdict. If that has cause PENDING, gpupool_alloc would
   succeed all the same, since it waits. Any other result: the call itself failed, and the verdict
   is all zeros. Waits as rule 9 says. */
GPUPOOL_API gpupool_result gpupool_would_fit(gpupool_arena *, size_t bytes,
                                             gpupool_verdict *why /* or NULL */);

/* The verdict on this thread's most recent allocation that ended in E_OUT_OF_MEMORY. */
GPUPOOL_API gpupool_result gpupool_last_verdict(gpupool_verdict *);

/* ---- tags: what part of the program has how much, and how much it may have ---- */

/* Makes a tag, which lives as long as the arena. Requests name it in request.tag; the block counts
   against its budget, in granted bytes, until it is freed, whoever frees it. Untagged work pays
   nothing. A NULL config means all zeros. On failure *tag is 0; E_UNSUPPORTED beyond
   GPUPOOL_TAGS. */
GPUPOOL_API gpupool_result gpupool_tag(gpupool_arena *, const char *name,
                                       const gpupool_tag_config *, int *tag);

/* Other limits; 0: none. What is over a lowered one stays. */
GPUPOOL_API gpupool_result gpupool_set_tag_limits(gpupool_arena *, int tag, size_t limit_bytes,
                                                  size_t soft_limit_bytes);
GPUPOOL_API gpupool_result gpupool_get_tag_stats(gpupool_arena *, int tag, gpupool_tag_stats *);

/* ---- statistics: with GPUPOOL_STATS 0, only `now` of granted, reserved, pending and blocks, and
   what is asked for at that moment: limit, largest free run, free orders, host bytes ---- */

/* Each stream's figures are of one moment. Nothing is changed. */
GPUPOOL_API gpupool_result gpupool_get_stats(gpupool_arena *, gpupool_stats *);
GPUPOOL_API gpupool_result gpupool_reset_peaks(gpupool_arena *); /* peak := now, in phases too */

/* What did this phase of the program use? From begin to end counters and counts start at zero (so a
   peak is that of the phase's growth; limit, orders and host bytes are those of the moment). Phases
   nest, belong to the arena, and count all of its threads; the one around counts them too. A phase
   that frees blocks from before it may end below zero: read `now` as int64_t. gpupool_get_stats
   tells of the arena's whole life. E_ARGUMENT without a begin; E_UNSUPPORTED with GPUPOOL_STATS
   0. */
GPUPOOL_API gpupool_result gpupool_begin_phase(gpupool_arena *);
GPUPOOL_API gpupool_result gpupool_end_phase(gpupool_arena *, gpupool_stats * /* or NULL */);

/* Derives every invariant anew. E_CORRUPT, and the first that is broken is named. */
GPUPOOL_API gpupool_result gpupool_check(gpupool_arena *);

/* ---- reports. What is shown is copied in one piece, and written after the arena's lock is given
   back. E_FILE when the file cannot be written. ---- */

/* One screen for people: a bar of the limit, the counters, what the limit does not count, the
   biggest holders (by line of source with GPUPOOL_SITES 1, else by size), a map in characters. */
GPUPOOL_API gpupool_result gpupool_report(gpupool_arena *, FILE *);

/* For programs: one JSON object. All numbers are exact integers, but fragmentation: 1 - the largest
   block that free memory makes / all that is free.
     "gpupool": 1 (of this form), "name", "device", "source", "unit_bytes",
     "limit_bytes" (null: none), "device_free_bytes", "device_total_bytes", "others_bytes" (null:
     not known), "counters": {"requested", "granted", "reserved", "pending", "blocks": {"now",
     "peak", "total"}}, "counts": {"allocs", "frees", ... as in gpupool_stats}, "free_bytes",
     "largest_free_bytes" (in one run), "largest_block_bytes", "stitched_bytes", "fragmentation",
     "asleep_bytes", "backup_bytes", "host_bytes", "live_by_order": [], "free_by_order": [],
     "streams": [handle], "tags": [{"name", "limit_bytes", "soft_limit_bytes", "granted", "blocks":
     {"now", "peak", "total"}, "failures"}], "sites": [{"file", "line", "stream", "allocs",
     "blocks", "bytes", "bytes_peak"}] (with GPUPOOL_SITES 1), "chunks": [{"address", "bytes",
     "blocks": [{"address", "bytes", "state": "live" | "free" | "pending", "requested_bytes" (of
     live ones), "stitched_at" (the address of the block that this is a part of), "stream",
     "site", "tag" (if it has one)}]}].
   "stream", "site" and "tag" are indices; null: not known. A handle of 1 is the default stream, 5
   all streams (gpupool_cudaFree), another odd number a thread's default stream. In this list
   mapped chunks side by side are one. */
GPUPOOL_API gpupool_result gpupool_write_json(gpupool_arena *, FILE *);

/* The map of memory as one picture: chunks in rows, colours for streams, hatching for what is freed
   but may still be in use, sizes where the pointer is. */
GPUPOOL_API gpupool_result gpupool_write_svg(gpupool_arena *, FILE *);

/* A pickle that pytorch.org/memory_viz opens, with the fields of torch.cuda.memory._snapshot(). */
GPUPOOL_API gpupool_result gpupool_write_snapshot(gpupool_arena *, FILE *);

/* Records the calls, as text, until called with NULL or another file, or the arena is gone: the
   file must stay open as long. Lines are written under the lock, in the order in which calls took
   effect, so this is slow. build/replay reads them; of an arena that was fresh when recording
   began, on one thread, the same calls give the same addresses in another. E_FILE, from the call
   that stops, when a line could not be written.
     a ID BYTES STREAM [ALIGNMENT]   a block; ID: its address / unit, of a MAPPED arena counted from
                                     the arena's first address
     f ID STREAM                     freed
     o BYTES STREAM [ALIGNMENT]      asked for in vain
     u ID STREAM                     gpupool_record_stream
     r STREAM                        gpupool_retire_stream
     t BYTES                         gpupool_trim, keeping so much
     l BYTES                         a limit, 0: none
     # ...                           words; the first line has the arena's config
   STREAM: 0 is the default stream, and all of them for gpupool_cudaMalloc and gpupool_cudaFree;
   others are named by their handle, as a number. */
GPUPOOL_API gpupool_result gpupool_set_trace(gpupool_arena *, FILE * /* NULL: stop */);

/* ---- the staging ring: ordinary host memory to the device and back, at nearly the speed of pinned
   memory. A transfer is cut in chunks, which the calling thread and the ring's workers copy into
   pinned memory, each sent as soon as it is there. Workers start with the first transfer of 2 MiB
   or more, or with a ticket, and end after a second without work. Pinned, registered and managed
   memory is recognised and goes directly, device memory too; up to 16 KiB (64 KiB down) CUDA's own
   staging is used. A ring needs no arena: the device's side is any memory of its device. All calls
   but create and destroy may be made by any number of threads, on any streams of the ring's device;
   none in a host function (rule 8). A stream that captures is refused with E_CAPTURING, and its
   capture goes on. No call pins more than config.bytes, and no transfer waits for the ring for
   ever: one that gets no room goes on without, slowly. ---- */

/* Makes a ring, which pins nothing yet. A NULL config means the current device and every default; a
   config of zeros means device 0 and every default. On failure *ring is NULL. */
GPUPOOL_API gpupool_result gpupool_ring_create(gpupool_ring **ring,
                                               const gpupool_ring_config *config);

/* Waits for all that is in flight, and gives all back. E_IN_USE while spans are held, unless the
   device was reset (rule 7). If a CUDA call fails the ring is still there: try again. No other
   thread may use the ring any more. */
GPUPOOL_API gpupool_result gpupool_ring_destroy(gpupool_ring *ring);

/* In stream order: after what the stream was given before, before what it is given later. Upload
   returns when you may change the source (its last bytes may still be on their way), download when
   the destination is filled. With device memory on both sides, both only queue the copy. If it
   fails, any part of the destination may have been written, and nothing else. */
GPUPOOL_API gpupool_result gpupool_upload(gpupool_ring *, void *device_dst, const void *host_src,
                                          size_t bytes, cudaStream_t);
GPUPOOL_API gpupool_result gpupool_download(gpupool_ring *, void *host_dst, const void *device_src,
                                            size_t bytes, cudaStream_t);

/* The same from a file: several threads read it straight into pinned memory. Cached pages come from
   the page cache, others by O_DIRECT where the file system allows. The file's own offset is neither
   used nor changed. E_FILE where it cannot be read there (a pipe), or ends before. E_UNSUPPORTED on
   Windows, and where a strict -std=c11 hides pread: define _GNU_SOURCE or compile as gnu11 where
   the implementation is. */
GPUPOOL_API gpupool_result gpupool_upload_file(gpupool_ring *, void *device_dst, int file,
                                               uint64_t offset, size_t bytes, cudaStream_t);

/* Many parts of one file, each to its own place: returns when all of them are on the device, for
   any stream. If one fails, those after it may be missing. */
GPUPOOL_API gpupool_result gpupool_upload_file_list(gpupool_ring *, int file,
                                                    const gpupool_file_part *parts, size_t count,
                                                    cudaStream_t);

/* Any transfer; the calls above are short forms. With a ticket the call returns at once. The
   transfer begins after what the stream was given before, but later work of the stream does NOT
   wait for it: wait for the ticket, then any stream may use the data. Until then both memories, and
   the file, belong to the transfer. Transfers with tickets run at the same time, on one stream too.
   Without workers one advances only in gpupool_ring_wait with a timeout_ns other than 0. */
GPUPOOL_API gpupool_result gpupool_ring_transfer(gpupool_ring *, const gpupool_transfer *);

/* The result of a transfer with a ticket, once it is done; E_TIMEOUT before. timeout_ns: negative
   waits for ever, 0 only asks. In any order, by any thread, as often as you like. The ring
   remembers its 64 latest failures; when one is forgotten, its ticket and all before it are
   E_ARGUMENT. */
GPUPOOL_API gpupool_result gpupool_ring_wait(gpupool_ring *, gpupool_ticket, int64_t timeout_ns);

/* One stretch of pinned memory, to fill in place: so many bytes, in whole chunks of the ring. Waits
   up to timeout_ns (negative: for ever; 0: not at all). E_TIMEOUT at once where a wait might never
   end: this thread's own spans are in the way, or this thread holds a span and spans of other
   threads are in the way. More than the whole ring is E_ARGUMENT. */
GPUPOOL_API gpupool_result gpupool_ring_acquire_span(gpupool_ring *, size_t bytes,
                                                     int64_t timeout_ns, gpupool_span *span);

/* Sends the span, in stream order, and gives it back; the call does not wait. Or gives it back
   unsent. The span is not to be touched any more; if the call fails, it is still held. */
GPUPOOL_API gpupool_result gpupool_ring_upload_span(gpupool_ring *, gpupool_span *span,
                                                    void *device_dst, cudaStream_t);
GPUPOOL_API gpupool_result gpupool_ring_cancel_span(gpupool_ring *, gpupool_span *span);

/* Unpins what is not in use, from the end, while more than keep_bytes is pinned. Unpinning waits
   for the device. */
GPUPOOL_API gpupool_result gpupool_ring_trim(gpupool_ring *, size_t keep_bytes,
                                             size_t *released_bytes /* or NULL */);

/* What the ring has done since it was made, as of one moment. */
GPUPOOL_API gpupool_result gpupool_ring_get_stats(gpupool_ring *, gpupool_ring_stats *);

/* As gpupool_check, of a ring. */
GPUPOOL_API gpupool_result gpupool_ring_check(gpupool_ring *);

#if defined(__cplusplus)
} /* extern "C" */
#endif

/* ---- what the macros of NAMES, at this file's end, stand for. In C++ each is one function of the
   program, the same in every file and in both of nvcc's passes: a template that takes cudaFree as
   an argument is one type. They are extern "C", as CUDA's are: nvcc takes no other host function as
   an argument of a kernel. With GPUPOOL_STATIC each file has its own. ---- */

#if defined(__cplusplus) && !GPUPOOL_STATIC
#define GPI_NAME inline
#else
#define GPI_NAME static inline
#endif

#if defined(CUDA_API_PER_THREAD_DEFAULT_STREAM)
GPI_NAME cudaStream_t gpi_names_stream(cudaStream_t stream) {
#if defined(__cplusplus)
    const uintptr_t per_thread = 2; /* cudaStreamPerThread, which has a C cast */
    return stream ? stream : reinterpret_cast<cudaStream_t>(per_thread);
#else
    return stream ? stream : cudaStreamPerThread;
#endif
}
#endif

#if defined(CUDA_API_PER_THREAD_DEFAULT_STREAM)
GPI_NAME void *gpi_names_alloc_request(gpupool_arena *arena, const gpupool_request *request) {
    gpupool_request mine;
    if (!request) return gpupool_alloc_request(arena, request);
    mine = *request;
    mine.stream = gpi_names_stream(mine.stream);
    return gpupool_alloc_request(arena, &mine);
}

GPI_NAME gpupool_result gpi_names_ring_transfer(gpupool_ring *ring,
                                                const gpupool_transfer *transfer) {
    gpupool_transfer mine;
    if (!transfer) return gpupool_ring_transfer(ring, transfer);
    mine = *transfer;
    mine.stream = gpi_names_stream(mine.stream);
    return gpupool_ring_transfer(ring, &mine);
}
#endif

#if GPUPOOL_SITES
GPI_NAME gpupool_request gpi_names_request(size_t bytes, cudaStream_t stream, const char *file,
                                           int line) {
    gpupool_request request = {bytes, 0, stream, 0, file, line, 0};
    return request;
}

GPI_NAME void *gpi_names_alloc(gpupool_arena *arena, gpupool_request request) {
    return gpupool_alloc_request(arena, &request);
}

GPI_NAME void *gpi_names_alloc_aligned(gpupool_arena *arena, gpupool_request request,
                                       size_t alignment) {
    request.alignment = alignment;
    return gpupool_alloc_request(arena, &request);
}

GPI_NAME void *gpi_names_zalloc(gpupool_arena *arena, gpupool_request request) {
    request.flags = GPUPOOL_ZEROED;
    return gpupool_alloc_request(arena, &request);
}
#endif

#if defined(__cplusplus)
#if defined(__CUDACC__)
#define GPI_NAME_BOTH GPI_NAME __host__ __device__
#else
#define GPI_NAME_BOTH GPI_NAME
#endif
#if defined(__CUDA_ARCH__)
#define GPI_NAMED(name) name /* device code has CUDA's own */
#else
#define GPI_NAMED(name) gpupool_##name
#endif
#define GPI_UNTYPED(pointer) static_cast<void **>(static_cast<void *>(pointer))

extern "C" {
#if GPUPOOL_STREAM_HOOK
GPI_NAME_BOTH cudaError_t gpi_names_stream_destroy(cudaStream_t stream) {
    return GPI_NAMED(cudaStreamDestroy)(stream);
}
#endif
#if GPUPOOL_REPLACE_CUDA_MALLOC
GPI_NAME_BOTH cudaError_t gpi_names_free(void *block) { return GPI_NAMED(cudaFree)(block); }
GPI_NAME_BOTH cudaError_t gpi_names_malloc(void **pointer, size_t bytes) {
    return GPI_NAMED(cudaMalloc)(pointer, bytes);
}
#endif
} /* extern "C" */
#if GPUPOOL_REPLACE_CUDA_MALLOC
template <class T>
GPI_NAME_BOTH cudaError_t gpi_names_malloc(T **pointer, size_t bytes) {
    return gpi_names_malloc(GPI_UNTYPED(pointer), bytes);
}
#endif
#undef GPI_NAME_BOTH
#undef GPI_NAMED
#endif

#if GPUPOOL_REPLACE_CUDA_MALLOC
#if defined(CUDA_API_PER_THREAD_DEFAULT_STREAM)
/* Other functions, as CUDA's are: a stream of 0 is the legacy one in other files of the program. */
#define GPI_ASYNC(name) gpi_names_##name##_async_ptsz
#define GPI_STREAM(stream) gpi_names_stream(stream)
#else
#define GPI_ASYNC(name) gpi_names_##name##_async
#define GPI_STREAM(stream) (stream)
#endif

#if defined(__cplusplus)
extern "C" {
#endif
GPI_NAME cudaError_t GPI_ASYNC(free)(void *pointer, cudaStream_t stream) {
    return gpupool_cudaFreeAsync(pointer, GPI_STREAM(stream));
}
GPI_NAME cudaError_t GPI_ASYNC(malloc)(void **pointer, size_t bytes, cudaStream_t stream) {
    return gpupool_cudaMallocAsync(pointer, bytes, GPI_STREAM(stream));
}
#if defined(__cplusplus)
} /* extern "C" */
template <class T>
GPI_NAME cudaError_t GPI_ASYNC(malloc)(T **pointer, size_t bytes, cudaStream_t stream) {
    return GPI_ASYNC(malloc)(GPI_UNTYPED(pointer), bytes, stream);
}
/* With a pool of the caller's: it is left to CUDA. */
template <class T, class Pool>
GPI_NAME cudaError_t GPI_ASYNC(malloc)(T **pointer, size_t bytes, Pool pool, cudaStream_t stream) {
    return cudaMallocFromPoolAsync(GPI_UNTYPED(pointer), bytes, pool, stream);
}
#endif
#undef GPI_ASYNC
#undef GPI_STREAM
#endif

#undef GPI_UNTYPED
#undef GPI_NAME

/* == CPP ======================================================================================
   The same in C++: owners of an arena and of a block, a resource for cuda::mr and RMM, an allocator
   for Thrust. What fails throws gpupool::bad_alloc; in a file without exceptions it gives a null
   pointer or an empty owner. 0 bytes are a null pointer, and no failure. */

#if defined(__cplusplus)
#include <new> /* who catches std::bad_alloc needs it; small, and there without a C++ library */

/* Files of one program may differ in these: so do the names of what they make of this. */
#if GPUPOOL_STATIC
namespace gpupool { namespace {
#elif defined(CUDA_API_PER_THREAD_DEFAULT_STREAM)
namespace gpupool { inline namespace per_thread {
#else
namespace gpupool { inline namespace legacy {
#endif
#if defined(__cpp_exceptions) || defined(__EXCEPTIONS) || defined(_CPPUNWIND)
#define GPI_CPP_FAIL() throw bad_alloc()
inline namespace throwing {
#else
#define GPI_CPP_FAIL() static_cast<void>(0)
inline namespace returning {
#endif
#if !defined(CUDA_API_PER_THREAD_DEFAULT_STREAM)
inline cudaStream_t gpi_names_stream(cudaStream_t stream) { return stream; }
#endif
#define GPI_CPP_SITE const char *file = __builtin_FILE(), int line = __builtin_LINE()
struct bad_alloc : std::bad_alloc { /* what() is gpupool_last_error(), as it was then */
    char text[600];
    bad_alloc() noexcept { snprintf(text, sizeof text, "%s", gpupool_last_error()); }
    const char *what() const noexcept override { return text; }
};
struct stream { /* as an argument: a cudaStream_t, what converts to it, or has it as get() */
    cudaStream_t handle;
    stream(cudaStream_t of = nullptr) noexcept : handle(gpi_names_stream(of)) {}
    template <class S>
    stream(const S &s, decltype(cudaStreamQuery(s)) = cudaSuccess) : handle(gpi_names_stream(s)) {}
    template <class S>
    stream(const S &s, decltype(cudaStreamQuery(s.get())) = cudaSuccess) : stream(s.get()) {}
};
template <class T> T gpi_put(T &place, T next) { T last = place; place = next; return last; }

/* Owns an arena and destroys it, when no block of it is live any more (rule 2). */
class arena {
    gpupool_arena *arena_;
public:
    explicit arena(const gpupool_arena_config *config = nullptr) {
        if (gpupool_arena_create(&arena_, config) != GPUPOOL_OK) GPI_CPP_FAIL();
    }
    explicit arena(const gpupool_arena_config &config) : arena(&config) {}
    arena(arena &&from) noexcept : arena_(from.release()) {}
    arena &operator=(arena from) noexcept { arena_ = gpi_put(from.arena_, arena_); return *this; }
    ~arena() { if (arena_) gpupool_arena_destroy(arena_); }
    gpupool_arena *get() const noexcept { return arena_; } /* NULL: none */
    gpupool_arena *release() noexcept { return gpi_put<gpupool_arena *>(arena_, nullptr); }
};

/* Refers to an arena that lives longer; without one, to the current device's default arena. Meets
   the concepts of cuda::mr, from CUDA 12.2's to RMM 26's. With a stream these are gpupool_alloc and
   gpupool_free (rule 1). Without, the host waits for the device, and then any stream may use the
   block, whose work is done when it is given back. */
class resource {
    gpupool_arena *arena_;
    const char *file_; /* where it was made: in reports, the site of its blocks */
    int line_;
public:
    resource(const arena &of, GPI_CPP_SITE) : resource(of.get(), file, line) {}
    resource(gpupool_arena *of = gpupool_get_default_arena(GPUPOOL_DEVICE_CURRENT), GPI_CPP_SITE)
        : arena_(of), file_(file), line_(line) {}
    gpupool_arena *get() const noexcept { return arena_; }
    friend bool operator==(const resource &a, const resource &b) { return a.arena_ == b.arena_; }
    friend bool operator!=(const resource &a, const resource &b) { return a.arena_ != b.arena_; }
    void *allocate(stream on, size_t bytes, size_t align = 0) const {
        gpupool_request request = {bytes, align, on.handle, 0, file_, line_, 0};
        void *block = bytes ? gpupool_alloc_request(arena_, &request) : nullptr;
        if (bytes && !block) GPI_CPP_FAIL();
        return block;
    }
    void deallocate(stream on, void *block, size_t = 0, size_t = 0) const noexcept {
        gpupool_free(arena_, block, on.handle);
    }
    void *allocate_sync(size_t bytes, size_t align = 0) const {
        void *block = allocate(stream(), bytes, align);
        if (!block || gpupool_wait_all(arena_) == GPUPOOL_OK) return block;
        deallocate(stream(), block);
        GPI_CPP_FAIL();
        return nullptr;
    }
    void deallocate_sync(void *p, size_t = 0, size_t = 0) const noexcept { deallocate({}, p); }
    /* cuda::mr's older names. allocate(0, bytes) might mean two things, and does not compile. */
    void *allocate(decltype(nullptr), size_t bytes) const { return allocate(stream(), bytes); }
    void *allocate(size_t bytes, size_t align = 0) const { return allocate_sync(bytes, align); }
    void deallocate(void *block, size_t = 0, size_t = 0) const noexcept { deallocate_sync(block); }
    void *allocate_async(size_t n, size_t align, stream on) const { return allocate(on, n, align); }
    void deallocate_async(void *p, size_t, size_t, stream on) const noexcept { deallocate(on, p); }
};
struct host_resource : resource { /* of an arena of MANAGED or PINNED memory */
    explicit host_resource(resource of) : resource(of) {}
};
#if defined(_CUDA_MEMORY_RESOURCE) && /* is <cuda/memory_resource>, if included before this */ \
    (defined(LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE) || CCCL_VERSION >= 3001000)
constexpr void get_property(const resource &, cuda::mr::device_accessible) noexcept {}
constexpr void get_property(const host_resource &, cuda::mr::host_accessible) noexcept {}
#endif

/* Owns a block, and frees it on its stream; set_stream: another one uses it last (rule 1). */
class block {
    struct held { gpupool_arena *arena; void *data; size_t bytes; cudaStream_t on; } held_;
public:
    block() noexcept : held_() {}
    block(resource of, size_t bytes, stream on = stream(), size_t align = 0)
        : held_{of.get(), of.allocate(on, bytes, align), bytes, on.handle} {}
    block(block &&from) noexcept : held_(gpi_put(from.held_, held())) {}
    block &operator=(block from) noexcept { held_ = gpi_put(from.held_, held_); return *this; }
    ~block() { if (held_.data) gpupool_free(held_.arena, held_.data, held_.on); }
    void *data() const noexcept { return held_.data; }
    size_t size() const noexcept { return held_.data ? held_.bytes : 0; }
    void set_stream(stream on) noexcept { held_.on = on.handle; }
    void *release() noexcept { return gpi_put(held_, held()).data; } /* not freed any more */
};

/* A container's, for work on one stream. allocator<char>(arena, stream): the temporary storage of
   thrust::cuda::par. allocator<T, thrust::device_ptr>(arena): a thrust::device_vector of T, whose
   own work is on the default stream. */
template <class T, template <class> class... Pointer> struct gpi_pointer { typedef T *type; };
template <class T, template <class> class P> struct gpi_pointer<T, P> { typedef P<T> type; };
template <class T, template <class> class... Pointer> struct allocator {
    typedef T value_type;
    typedef typename gpi_pointer<T, Pointer...>::type pointer;
    template <class U> struct rebind { typedef allocator<U, Pointer...> other; };
    resource of;
    stream on;
    allocator(resource r = resource(), stream s = stream()) : of(r), on(s) {}
    template <class U, template <class> class... P>
    allocator(const allocator<U, P...> &other) : of(other.of), on(other.on) {}
    pointer allocate(size_t count) {
        size_t bytes = count <= SIZE_MAX / sizeof(T) ? count * sizeof(T) : SIZE_MAX;
        return static_cast<pointer>(static_cast<T *>(of.allocate(on, bytes, alignof(T))));
    }
    void deallocate(T *block, size_t) noexcept { of.deallocate(on, block); }
    template <class P> void deallocate(P p, decltype(sizeof p.get()) n) { deallocate(p.get(), n); }
    friend bool operator==(const allocator &a, const allocator &b) { return !(a != b); }
    friend bool operator!=(const allocator &a, const allocator &b) {
        return a.of != b.of || a.on.handle != b.on.handle;
    }
};
}}} /* namespace gpupool */
#undef GPI_CPP_FAIL
#undef GPI_CPP_SITE
#endif

#endif /* GPUPOOL_H */

/* ============================================================================================= *
 *  Everything below is how it works. Sections from the ground up: each uses only those above it.
 * ============================================================================================= */
#if defined(GPUPOOL_IMPLEMENTATION) && !defined(GPUPOOL_IMPLEMENTED)
#define GPUPOOL_IMPLEMENTED

#undef gpupool_alloc
#undef gpupool_alloc_aligned
#undef gpupool_zalloc
#undef gpupool_alloc_request
#undef gpupool_free
#undef gpupool_record_stream
#undef gpupool_retire_stream
#undef gpupool_wait_stream
#undef gpupool_begin_capture
#undef gpupool_cudaMallocAsync
#undef gpupool_cudaFreeAsync
#undef gpupool_upload
#undef gpupool_download
#undef gpupool_upload_file
#undef gpupool_upload_file_list
#undef gpupool_ring_transfer
#undef gpupool_ring_upload_span
#if GPUPOOL_STREAM_HOOK
#undef cudaStreamDestroy
#endif
#if GPUPOOL_REPLACE_CUDA_MALLOC
#undef cudaMalloc
#undef cudaFree
#endif

#include <cuda.h>
#if GPUPOOL_NVTX
#include <nvtx3/nvToolsExtMem.h>
#endif
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#if GPUPOOL_UNIT_BYTES < 256 || GPUPOOL_UNIT_BYTES > 2097152 || \
    ((GPUPOOL_UNIT_BYTES) & ((GPUPOOL_UNIT_BYTES) - 1))
#error "GPUPOOL_UNIT_BYTES must be a power of two, from 256 to 2 MiB"
#endif
#if 4194304 / GPUPOOL_UNIT_BYTES != 4194304 / (GPUPOOL_UNIT_BYTES)
#error "GPUPOOL_UNIT_BYTES must be one number, or in parentheses"
#endif
#if GPUPOOL_GUARD && GPUPOOL_NVTX
#error "GPUPOOL_GUARD fills what GPUPOOL_NVTX tells a tool to watch: choose one of them"
#endif
#if GPUPOOL_STREAM_CHECK && CUDART_VERSION < 12000
#error "GPUPOOL_STREAM_CHECK needs CUDA 12: before, streams have no ids"
#endif
#if UINTPTR_MAX < 0xffffffffffffffff
#error "gpupool needs a 64-bit build, as CUDA does: device addresses and sizes have 64 bits"
#endif
#if defined(GPUPOOL_MALLOC) != defined(GPUPOOL_FREE)
#error "define both GPUPOOL_MALLOC and GPUPOOL_FREE, or neither"
#endif
#ifndef GPUPOOL_MALLOC
#define GPUPOOL_MALLOC(bytes) malloc(bytes)
#define GPUPOOL_FREE(memory) free(memory)
#endif
#ifndef GPUPOOL_ASSERT
#include <assert.h>
#define GPUPOOL_ASSERT(truth) assert(truth)
#endif
#if GPUPOOL_GUARD || (GPUPOOL_CHECK >= 3 && !GPUPOOL_NVTX)
#define GPI_GUARD 1
#else
#define GPI_GUARD 0
#endif
#if GPUPOOL_CHECK >= 1
#define GPI_ASSERT(truth) GPUPOOL_ASSERT(truth)
#else
#define GPI_ASSERT(truth) ((void)0)
#endif
#if defined(__GNUC__) || defined(__clang__)
#define GPI_PRINTF(text, first) __attribute__((format(printf, text, first)))
#define GPI_THREAD_LOCAL __thread
#define GPI_HOT static inline __attribute__((always_inline)) /* a call would cost as much again */
#else
#define GPI_HOT static inline
#define GPI_PRINTF(text, first)
#define GPI_THREAD_LOCAL __declspec(thread)
#endif

/* == GROUND ===================================================================================
   Arithmetic that cannot surprise. uses: nothing */

static uint64_t gpi_ground_min(uint64_t a, uint64_t b) { return a < b ? a : b; }
static uint64_t gpi_ground_max(uint64_t a, uint64_t b) { return a > b ? a : b; }
static int gpi_ground_is_power(uint64_t n) { return n != 0 && (n & (n - 1)) == 0; }
static uint64_t gpi_ground_down(uint64_t n, uint64_t power) { return n & ~(power - 1); }

/* Callers keep n at least one power below 2^64, so the sum cannot wrap. */
static uint64_t gpi_ground_up(uint64_t n, uint64_t power) { return (n + power - 1) & ~(power - 1); }

static unsigned gpi_ground_low_bit(uint64_t n) { /* n != 0 */
#if defined(__GNUC__) || defined(__clang__)
    return (unsigned)__builtin_ctzll(n);
#else
    unsigned at = 0;
    while (!(n >> at & 1)) at++;
    return at;
#endif
}

static unsigned gpi_ground_high_bit(uint64_t n) { /* n != 0: floor(log2 n) */
#if defined(__GNUC__) || defined(__clang__)
    return 63u - (unsigned)__builtin_clzll(n);
#else
    unsigned at = 0;
    while (n >>= 1) at++;
    return at;
#endif
}

static unsigned gpi_ground_bits(uint64_t n) { /* that are set */
    unsigned bits = 0;
    for (; n; n &= n - 1) bits++;
    return bits;
}

/* == HOST =====================================================================================
   The operating system: lock, thread, fork, environment, memory, and this thread's last failure.
   The only room with an #ifdef for the system. uses: GROUND */

#if defined(_WIN32)
#ifndef WIN32_LEAN_AND_MEAN
#define WIN32_LEAN_AND_MEAN
#endif
#ifndef NOMINMAX
#define NOMINMAX
#endif
#include <windows.h>
#else
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <sys/uio.h>
#endif
#endif

typedef struct gpi_lock { /* zero is open */
    int held;
    int starved;            /* threads that have waited for long: those that come later let them
                               go first */
} gpi_lock;

/* Turned by who has news, and waited at by who has seen the turn before it. */
typedef struct gpi_gate {
#if defined(_WIN32)
    SRWLOCK mutex;
    CONDITION_VARIABLE turned;
#else
    pthread_mutex_t mutex;
    pthread_cond_t turned;
#endif
    unsigned turns, sleepers;
} gpi_gate;

enum { GPI_DEVICES_MAX = 64 };

static struct gpi_process { /* the only state that is not an arena's */
    gpi_lock lock;
    int watching_forks;
    int forks;              /* how often this process image is a fork's child */
    uint64_t threads;       /* numbers given out to threads so far */
    gpupool_arena *default_arenas[GPI_DEVICES_MAX];
    int scopes;             /* of captures, not yet ended, of all arenas */
    int asleep;             /* arenas that are */
    int workers;            /* threads of rings */
    int ending;             /* they are to stop, since the process ends */
    int watching_exit;      /* and the gate is open: where they sleep */
    gpi_gate gate;
    gpupool_arena *arenas;
} gpi_process;

static GPI_THREAD_LOCAL struct gpi_thread {
    uint64_t number;        /* 0: none yet; never used twice, unlike the system's thread ids */
    gpupool_result result;
    int cuda_error;         /* that made it E_CUDA; 0: gpupool found it by itself */
    gpupool_verdict verdict;
    char text[600];         /* of the last call that failed before the latest call, */
    char draft[600];        /* and of what failed in that: if result is OK, it was repaired */
    const void *telling;    /* it runs an on_map or on_unmap: of these chunks, the latest */
} gpi_thread;

#if !GPUPOOL_SINGLE_THREAD
enum { /* rounds */
    GPI_SPINS = 64,   /* before a thread sleeps */
    GPI_STARVED = 80  /* before it is starved */
};

static void gpi_host_relax(unsigned round) {
    /* long pauses: whoever looks at a lock takes its cache line from the holder, who does better to
       go on with a few more calls while the lines that it works on are near */
    unsigned pauses = 64u << (round < 2 ? round : 2);
#if defined(_WIN32)
    if (round >= GPI_SPINS) Sleep(round < GPI_SPINS + 8 ? 0 : 1);
    else while (pauses--) YieldProcessor();
#else
    if (round < GPI_SPINS) {
#if defined(__x86_64__) || defined(__i386__)
        while (pauses--) __builtin_ia32_pause();
#else
        (void)pauses;
#endif
    } else if (round < GPI_SPINS + 8) { /* each may take as long as all others are given */
        sched_yield();
    } else {
        struct timeval nap; /* select: declared under -std=c99 too, unlike nanosleep */
        nap.tv_sec = 0;
        nap.tv_usec = 20;
        select(0, NULL, NULL, NULL, &nap);
    }
#endif
}
#endif

static void gpi_host_add(int *place, int more) {
#if GPUPOOL_SINGLE_THREAD
    *place += more;
#elif defined(_WIN32)
    InterlockedExchangeAdd((volatile LONG *)place, more);
#else
    __atomic_fetch_add(place, more, __ATOMIC_RELAXED);
#endif
}

/* A spinning lock: held for tens of nanoseconds, so sleeping would cost more than waiting. */
#if GPUPOOL_SINGLE_THREAD
GPI_HOT int gpi_host_try(gpi_lock *lock) {
    int got = !lock->held;
    lock->held = 1;
    return got;
}

GPI_HOT unsigned gpi_host_lock(gpi_lock *lock) {
    GPI_ASSERT(!lock->held);
    lock->held = 1;
    return 0;
}
#else
GPI_HOT int gpi_host_try(gpi_lock *lock) {
#if defined(_WIN32)
    return !InterlockedExchange((volatile LONG *)&lock->held, 1);
#else
    return !__atomic_exchange_n(&lock->held, 1, __ATOMIC_ACQUIRE);
#endif
}

GPI_HOT int gpi_host_peek(const int *place) {
#if defined(_WIN32)
    return *(const volatile int *)place;
#else
    return __atomic_load_n(place, __ATOMIC_RELAXED);
#endif
}

/* It and lock return the number of pauses that it took. */
static unsigned gpi_host_wait(gpi_lock *lock) {
    unsigned round = 0;
    for (;;) {
        gpi_host_relax(round++);
        if (round == GPI_STARVED) gpi_host_add(&lock->starved, 1);
        if (gpi_host_peek(&lock->held)) continue;
        if (round < GPI_STARVED && gpi_host_peek(&lock->starved)) continue;
        if (gpi_host_try(lock)) break;
    }
    if (round >= GPI_STARVED) gpi_host_add(&lock->starved, -1);
    return round;
}

GPI_HOT unsigned gpi_host_lock(gpi_lock *lock) {
    return !gpi_host_peek(&lock->starved) && gpi_host_try(lock) ? 0 : gpi_host_wait(lock);
}
#endif

static void gpi_host_unlock(gpi_lock *lock) {
#if GPUPOOL_SINGLE_THREAD
    GPI_ASSERT(lock->held);
    lock->held = 0;
#elif defined(_WIN32)
    InterlockedExchange((volatile LONG *)&lock->held, 0);
#else
    __atomic_store_n(&lock->held, 0, __ATOMIC_RELEASE);
#endif
}

/* In the middle of long work under a lock: leaves it open for so long that a thread that waits for
   it sees that. */
static void gpi_host_reopen(gpi_lock *lock) {
    gpi_host_unlock(lock);
#if !GPUPOOL_SINGLE_THREAD
    gpi_host_relax(2);
#endif
    gpi_host_lock(lock);
}

/* What one thread publishes under a lock and others read without it. */
#if GPUPOOL_SINGLE_THREAD
#define GPI_READ(place) (*(place))
#define GPI_PUBLISH(place, value) (*(place) = (value))
#elif defined(__GNUC__) || defined(__clang__)
#define GPI_READ(place) __atomic_load_n(place, __ATOMIC_ACQUIRE)
#define GPI_PUBLISH(place, value) __atomic_store_n(place, value, __ATOMIC_RELEASE)
#elif defined(_M_X64) /* where a load is an acquire, and what follows depends on what is read */
#define GPI_READ(place) (MemoryBarrier(), *(place))
#define GPI_PUBLISH(place, value) (MemoryBarrier(), *(place) = (value))
#else
#error "gpupool knows how this processor orders loads with GCC and Clang only"
#endif

static void gpi_host_after_fork(void) {
    gpi_process.forks++;
    gpi_process.lock.held = 0;  /* its holder, if any, does not exist in the child */
    gpi_process.workers = 0;    /* nor do they */
}

static void gpi_host_watch_forks(void) {
    gpi_host_lock(&gpi_process.lock);
#if !defined(_WIN32)
    if (!gpi_process.watching_forks) pthread_atfork(NULL, NULL, gpi_host_after_fork);
#else
    (void)gpi_host_after_fork;
#endif
    gpi_process.watching_forks = 1;
    gpi_host_unlock(&gpi_process.lock);
}

static uint64_t gpi_host_thread_number(void) {
    if (gpi_thread.number == 0) {
        gpi_host_lock(&gpi_process.lock);
        gpi_thread.number = ++gpi_process.threads;
        gpi_host_unlock(&gpi_process.lock);
    }
    return gpi_thread.number;
}

static void gpi_host_count_scope(int more) {
    gpi_host_lock(&gpi_process.lock);
    gpi_process.scopes += more;
    gpi_host_unlock(&gpi_process.lock);
}

static void *gpi_host_zeroed(size_t bytes) {
    void *memory = GPUPOOL_MALLOC(bytes);
    if (memory) memset(memory, 0, bytes);
    return memory;
}

/* Every public call begins with gpi_host_begin, and ends with gpi_host_ok if it succeeds. */
static void gpi_host_keep_text(void) {
    memcpy(gpi_thread.text, gpi_thread.draft, sizeof gpi_thread.text);
    gpi_thread.result = GPUPOOL_OK;
}

GPI_HOT void gpi_host_begin(void) {
    if (gpi_thread.result != GPUPOOL_OK) gpi_host_keep_text();
}

static gpupool_result gpi_host_ok(void) { return gpi_thread.result = GPUPOOL_OK; }

GPI_PRINTF(2, 3)
static gpupool_result gpi_host_fail(gpupool_result result, const char *format, ...) {
    va_list rest;
    va_start(rest, format);
    vsnprintf(gpi_thread.draft, sizeof gpi_thread.draft, format, rest);
    va_end(rest);
    gpi_thread.cuda_error = 0;
    return gpi_thread.result = result;
}

static gpupool_result gpi_host_no_memory(void) {
    return gpi_host_fail(GPUPOOL_E_HOST_MEMORY,
                         "the host has no memory for the arena's records; nothing was changed");
}

/* Where an arena or a ring was made, CUDA was at work. */
static gpupool_result gpi_host_may_open(const char *call) {
    if (gpi_process.forks == 0) return GPUPOOL_OK;
    return gpi_host_fail(GPUPOOL_E_FORKED, "%s: this process is a fork of one that made an arena "
                         "or a ring, and has no CUDA context", call);
}

/* -- time, threads and pages: for the ring -- */

/* A strict -std=c99 hides the clock that nobody sets; the time of day stands in for it there. */
#if defined(CLOCK_MONOTONIC) && defined(_POSIX_C_SOURCE) && _POSIX_C_SOURCE >= 200112
#define GPI_STEADY 1
#else
#define GPI_STEADY 0
#endif

static uint64_t gpi_host_now_ns(void) {
#if defined(_WIN32)
    LARGE_INTEGER ticks, rate;
    QueryPerformanceCounter(&ticks);
    QueryPerformanceFrequency(&rate);
    return (uint64_t)((double)ticks.QuadPart * 1e9 / (double)rate.QuadPart);
#elif GPI_STEADY
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
#else
    struct timeval now;
    gettimeofday(&now, NULL);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_usec * 1000u;
#endif
}

/* Lets time pass for a thread that waits for something that nobody will wake it for. */
static void gpi_host_idle(unsigned round) {
#if GPUPOOL_SINGLE_THREAD
    (void)round;
#else
    /* a nap costs some 100 us, as much as 6 MiB of a transfer: yield for a good while before */
    gpi_host_relax(round < 4096 && round >= GPI_SPINS ? (unsigned)GPI_SPINS : round);
#endif
}

/* Reserved addresses of ordinary memory, which costs nothing until it is touched. */
typedef struct gpi_pages {
    unsigned char *memory;
    void *whole;               /* what the system gave, and how much */
    uint64_t whole_bytes;
} gpi_pages;

enum { GPI_PAGE_BYTES = 4096 };

/* So many bytes, to be pinned, and some more behind them, which are zero. Huge pages, where they
   can be had, are pinned in half the time. A child of fork() does not get these pages: the device
   must go on with the parent's, whichever of the two writes first. */
static int gpi_host_pages_get(gpi_pages *pages, uint64_t bytes, uint64_t more) {
    uint64_t align = (uint64_t)2 << 20;
    pages->whole_bytes = bytes + more + align;
#if defined(_WIN32)
    pages->whole = VirtualAlloc(NULL, (size_t)pages->whole_bytes, MEM_RESERVE | MEM_COMMIT,
                                PAGE_READWRITE);
#elif defined(MAP_ANONYMOUS) && defined(MAP_NORESERVE)
    pages->whole = mmap(NULL, (size_t)pages->whole_bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pages->whole == MAP_FAILED) pages->whole = NULL;
#else
    pages->whole = GPUPOOL_MALLOC((size_t)pages->whole_bytes);
#endif
    if (!pages->whole) return 0;
    pages->memory = (unsigned char *)(uintptr_t)gpi_ground_up((uintptr_t)pages->whole, align);
#if !defined(_WIN32) && !(defined(MAP_ANONYMOUS) && defined(MAP_NORESERVE))
    memset(pages->memory + bytes, 0, (size_t)more);
#endif
#if defined(MADV_HUGEPAGE) && defined(MADV_DONTFORK)
    madvise(pages->memory, (size_t)bytes, MADV_HUGEPAGE);
    madvise(pages->memory, (size_t)bytes, MADV_DONTFORK);
#endif
    return 1;
}

/* What is written there is no longer wanted; the system may have the memory back. */
static void gpi_host_pages_empty(const gpi_pages *pages, uint64_t at, uint64_t bytes) {
#if defined(MADV_DONTNEED) && defined(MAP_ANONYMOUS)
    madvise(pages->memory + at, (size_t)bytes, MADV_DONTNEED);
#else
    (void)pages;
    (void)at;
    (void)bytes;
#endif
}

static void gpi_host_pages_give(const gpi_pages *pages) {
    if (!pages->whole) return;
#if defined(_WIN32)
    VirtualFree(pages->whole, 0, MEM_RELEASE);
#elif defined(MAP_ANONYMOUS) && defined(MAP_NORESERVE)
    munmap(pages->whole, (size_t)pages->whole_bytes);
#else
    GPUPOOL_FREE(pages->whole);
#endif
}

/* -- files: for the ring -- */

/* A strict -std=c99 hides pread. */
#if !defined(_WIN32) && defined(_POSIX_C_SOURCE) && _POSIX_C_SOURCE >= 200809
#define GPI_FILES 1
#else
#define GPI_FILES 0
#endif
#if GPI_FILES && defined(__linux__) && defined(SYS_preadv2) && defined(__O_DIRECT) && \
    defined(_DEFAULT_SOURCE)
#define GPI_DIRECT 1 /* a file can be read past the page cache */
#else
#define GPI_DIRECT 0
#endif

typedef struct gpi_file {
    int descriptor;        /* the caller's */
    int direct;            /* ours: the same file, read past the page cache; -1: not to be had */
} gpi_file;

#if GPI_FILES
static gpupool_result gpi_host_file_failed(uint64_t at, const char *why) {
    return gpi_host_fail(GPUPOOL_E_FILE, "reading the file at byte %" PRIu64 ": %s", at, why);
}
#endif

/* Fails where the file is known to end before these bytes do. */
static gpupool_result gpi_host_file_open(gpi_file *file, int descriptor, uint64_t at,
                                         uint64_t bytes) {
    file->descriptor = descriptor;
    file->direct = -1;
#if GPI_FILES
    struct stat about;
    if (fstat(descriptor, &about) != 0) return gpi_host_file_failed(at, strerror(errno));
    if (S_ISREG(about.st_mode) && (uint64_t)about.st_size < at + bytes)
        return gpi_host_file_failed((uint64_t)about.st_size, "it ends here, before what is asked");
#if GPI_DIRECT
    if (S_ISREG(about.st_mode) && bytes >= 16 * GPI_PAGE_BYTES) {
        char name[32];
        snprintf(name, sizeof name, "/proc/self/fd/%d", descriptor);
        file->direct = open(name, O_RDONLY | O_CLOEXEC | __O_DIRECT);
    }
#endif
    return GPUPOOL_OK;
#else
    (void)at, (void)bytes;
    return gpi_host_fail(GPUPOOL_E_UNSUPPORTED, "files cannot be read by offset in this build: on "
                         "POSIX systems define _DEFAULT_SOURCE");
#endif
}

#if defined(_WIN32)
enum { GPI_DESCRIPTORS = 0 };
#else
enum { GPI_DESCRIPTORS = 1 }; /* the system has them */
#endif

/* A descriptor, or -1. */
static void gpi_host_close(int descriptor) {
#if !defined(_WIN32)
    if (descriptor >= 0) close(descriptor);
#else
    (void)descriptor;
#endif
}

/* No program that this process starts has it. */
static void gpi_host_close_on_exec(int descriptor) {
#if !defined(_WIN32)
    fcntl(descriptor, F_SETFD, FD_CLOEXEC);
#else
    (void)descriptor;
#endif
}

static void gpi_host_file_close(const gpi_file *file) {
#if GPI_DIRECT
    if (file->direct >= 0) close(file->direct);
#else
    (void)file;
#endif
}

#if GPI_DIRECT
/* Whether this place is in the page cache, as far as the system tells. Some file systems answer the
   first question, others the second. */
static int gpi_host_file_is_cached(const gpi_file *file, uint64_t at) {
    enum { WAITS_NOT = 8 }; /* RWF_NOWAIT, which the C library may not know */
    unsigned char byte, in = 1;
    struct iovec part;
    void *page;
    long got;
    part.iov_base = &byte;
    part.iov_len = 1;
    got = syscall(SYS_preadv2, file->descriptor, &part, 1L, (long)at, 0L, (long)WAITS_NOT);
    if (got >= 0 || errno == EAGAIN) return got >= 0;
    at = gpi_ground_down(at, GPI_PAGE_BYTES);
    page = mmap(NULL, (size_t)GPI_PAGE_BYTES, PROT_READ, MAP_SHARED, file->descriptor, (off_t)at);
    if (page == MAP_FAILED) return 1;
    if (mincore(page, (size_t)GPI_PAGE_BYTES, &in) != 0) in = 1;
    munmap(page, (size_t)GPI_PAGE_BYTES);
    return in & 1;
}

/* Past the page cache, whole pages around what is asked for. Returns how much of that it got. */
static uint64_t gpi_host_file_read_direct(const gpi_file *file, unsigned char *memory, uint64_t at,
                                          uint64_t bytes) {
    uint64_t head = at % GPI_PAGE_BYTES, most = gpi_ground_up(head + bytes, GPI_PAGE_BYTES);
    ssize_t got = pread(file->direct, memory - head, (size_t)most, (off_t)(at - head));
    return got > (ssize_t)head ? gpi_ground_min((uint64_t)got - head, bytes) : 0;
}
#endif

/* Bytes of the file to memory. Where that lies in its page as the bytes do in the file's, all of
   its pages are ours. What is not in the page cache is then read past it; which it is, is seen at
   any place, since the question may bring that page in. What the direct way does not get, or not
   without an error, the ordinary one does, or tells. */
static gpupool_result gpi_host_file_read(const gpi_file *file, unsigned char *memory, uint64_t at,
                                         uint64_t bytes) {
#if GPI_FILES
    uint64_t done = 0;
#if GPI_DIRECT
    if (file->direct >= 0 && ((uintptr_t)memory - at) % GPI_PAGE_BYTES == 0 &&
        !gpi_host_file_is_cached(file, at + gpi_host_now_ns() / 64 % bytes))
        done = gpi_host_file_read_direct(file, memory, at, bytes);
#endif
    while (done < bytes) {
        ssize_t got = pread(file->descriptor, memory + done, (size_t)(bytes - done),
                            (off_t)(at + done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return gpi_host_file_failed(at + done, strerror(errno));
        if (got == 0) return gpi_host_file_failed(at + done, "it ends here, before what is asked");
        done += (uint64_t)got;
    }
#else
    (void)file, (void)memory, (void)at, (void)bytes;
#endif
    return GPUPOOL_OK;
}

#if defined(__SSE2__) && !defined(memcpy)
static void gpi_host_copy_line(unsigned char *to, const unsigned char *from) { /* 64 bytes */
    __m128i a = _mm_loadu_si128((const __m128i *)(const void *)from);
    __m128i b = _mm_loadu_si128((const __m128i *)(const void *)(from + 16));
    __m128i c = _mm_loadu_si128((const __m128i *)(const void *)(from + 32));
    __m128i d = _mm_loadu_si128((const __m128i *)(const void *)(from + 48));
    _mm_stream_si128((__m128i *)(void *)to, a);
    _mm_stream_si128((__m128i *)(void *)(to + 16), b);
    _mm_stream_si128((__m128i *)(void *)(to + 32), c);
    _mm_stream_si128((__m128i *)(void *)(to + 48), d);
}
#endif

/* To memory that this processor does not read again soon: past its caches, four pages side by side.
   Out of the ring it takes 0.6 of memcpy's time. A program whose memcpy is a macro wants to see
   every copy, and does. */
static void gpi_host_copy_away(unsigned char *to, const unsigned char *from, uint64_t bytes) {
#if defined(__SSE2__) && !defined(memcpy)
    uint64_t page = GPI_PAGE_BYTES, line, i, head;
    head = (uint64_t)(-(uintptr_t)to & 63); /* whole lines, or it takes twice as long */
    head = gpi_ground_min(head, bytes);
    memcpy(to, from, (size_t)head);
    to += head;
    from += head;
    bytes -= head;
    for (; bytes >= 4 * page; bytes -= 4 * page, to += 4 * page, from += 4 * page)
        for (line = 0; line < page; line += 64)
            for (i = 0; i < 4 * page; i += page) {
                const char *ahead = (const char *)from + i + line + 256;
                _mm_prefetch(ahead, _MM_HINT_T0);
                gpi_host_copy_line(to + i + line, from + i + line);
            }
    for (; bytes >= 64; bytes -= 64, to += 64, from += 64) gpi_host_copy_line(to, from);
    _mm_sfence();
#endif
    memcpy(to, from, (size_t)bytes);
}

#if defined(_WIN32)
static void gpi_host_gate_lock(gpi_gate *gate) { AcquireSRWLockExclusive(&gate->mutex); }
static void gpi_host_gate_unlock(gpi_gate *gate) { ReleaseSRWLockExclusive(&gate->mutex); }
#else
static void gpi_host_gate_lock(gpi_gate *gate) { pthread_mutex_lock(&gate->mutex); }
static void gpi_host_gate_unlock(gpi_gate *gate) { pthread_mutex_unlock(&gate->mutex); }
#endif

/* Timed waits go by the clock that gpi_host_now_ns reads. */
static void gpi_host_gate_open(gpi_gate *gate) {
#if defined(_WIN32)
    InitializeSRWLock(&gate->mutex);
    InitializeConditionVariable(&gate->turned);
#else
    pthread_condattr_t by_clock;
    pthread_condattr_init(&by_clock);
#if GPI_STEADY
    pthread_condattr_setclock(&by_clock, CLOCK_MONOTONIC);
#endif
    pthread_mutex_init(&gate->mutex, NULL);
    pthread_cond_init(&gate->turned, &by_clock);
    pthread_condattr_destroy(&by_clock);
#endif
}

static void gpi_host_gate_close(gpi_gate *gate) {
#if defined(_WIN32)
    (void)gate;
#else
    pthread_cond_destroy(&gate->turned);
    pthread_mutex_destroy(&gate->mutex);
#endif
}

static unsigned gpi_host_gate_seen(gpi_gate *gate) {
    unsigned turns;
    gpi_host_gate_lock(gate);
    turns = gate->turns;
    gpi_host_gate_unlock(gate);
    return turns;
}

static void gpi_host_gate_turn(gpi_gate *gate) {
    gpi_host_gate_lock(gate);
    gate->turns++;
#if defined(_WIN32)
    if (gate->sleepers) WakeAllConditionVariable(&gate->turned);
#else
    if (gate->sleepers) pthread_cond_broadcast(&gate->turned);
#endif
    gpi_host_gate_unlock(gate);
}

/* Returns once the gate has turned since `seen`, or after so long, or now and then without a
   reason. */
static void gpi_host_gate_wait(gpi_gate *gate, unsigned seen, uint64_t ns) {
    gpi_host_gate_lock(gate);
    if (gate->turns == seen) {
#if defined(_WIN32)
        gate->sleepers++;
        SleepConditionVariableSRW(&gate->turned, &gate->mutex, (DWORD)(ns / 1000000 + 1), 0);
#else
        uint64_t until_ns = gpi_host_now_ns() + ns;
        struct timespec until;
        until.tv_sec = (time_t)(until_ns / 1000000000);
        until.tv_nsec = (long)(until_ns % 1000000000);
        gate->sleepers++;
        pthread_cond_timedwait(&gate->turned, &gate->mutex, &until);
#endif
        gate->sleepers--;
    }
    gpi_host_gate_unlock(gate);
}

/* A lock whose waiters sleep, and get it in the order in which they came. */
enum { GPI_MUTEX_GATES = 8 };

typedef struct gpi_mutex {
    unsigned next, serving; /* numbers: of the next thread to come, and of the one that has it */
    int is_open;
    gpi_gate gates[GPI_MUTEX_GATES]; /* where thread n sleeps: n % GPI_MUTEX_GATES */
} gpi_mutex;

static void gpi_host_mutex_open(gpi_mutex *mutex) {
    int i;
    mutex->next = mutex->serving = 0;
    mutex->is_open = 1;
    for (i = 0; i < GPI_MUTEX_GATES; i++) gpi_host_gate_open(&mutex->gates[i]);
}

static void gpi_host_mutex_close(gpi_mutex *mutex) {
    int i;
    for (i = 0; i < GPI_MUTEX_GATES && mutex->is_open; i++)
        gpi_host_gate_close(&mutex->gates[i]);
    mutex->is_open = 0;
}

#if GPUPOOL_SINGLE_THREAD
static int gpi_host_mutex_try(gpi_mutex *mutex) {
    if (mutex->next != mutex->serving) return 0;
    mutex->next++;
    return 1;
}

static void gpi_host_mutex_lock(gpi_mutex *mutex) {
    GPI_ASSERT(mutex->next == mutex->serving);
    mutex->next++;
}
#else
static int gpi_host_mutex_try(gpi_mutex *mutex) {
    unsigned serving = GPI_READ(&mutex->serving);
#if defined(_WIN32)
    return InterlockedCompareExchange((volatile LONG *)&mutex->next, (LONG)(serving + 1),
                                      (LONG)serving) == (LONG)serving;
#else
    return __atomic_compare_exchange_n(&mutex->next, &serving, serving + 1, 0, __ATOMIC_ACQUIRE,
                                       __ATOMIC_RELAXED);
#endif
}

static void gpi_host_mutex_lock(gpi_mutex *mutex) {
    enum { NAP_NS = 100000000 }; /* nobody waits so long; but a wait has to have an end */
#if defined(_WIN32)
    unsigned mine = (unsigned)InterlockedIncrement((volatile LONG *)&mutex->next) - 1;
#else
    unsigned mine = __atomic_fetch_add(&mutex->next, 1u, __ATOMIC_ACQUIRE);
#endif
    gpi_gate *gate = &mutex->gates[mine % GPI_MUTEX_GATES];
    while (GPI_READ(&mutex->serving) != mine) {
        unsigned seen = gpi_host_gate_seen(gate);
        if (GPI_READ(&mutex->serving) != mine) gpi_host_gate_wait(gate, seen, NAP_NS);
    }
}
#endif

static void gpi_host_mutex_unlock(gpi_mutex *mutex) {
    unsigned next = mutex->serving + 1;
    GPI_PUBLISH(&mutex->serving, next);
    if (GPI_READ(&mutex->next) != next) gpi_host_gate_turn(&mutex->gates[next % GPI_MUTEX_GATES]);
}

/* The calling thread is joined by nobody. 0: it has to be. */
static int gpi_host_thread_leave(void) {
#if defined(_WIN32)
    return 0;
#else
    return pthread_detach(pthread_self()) == 0;
#endif
}

/* One worker more, or less; returns how many there are. */
static int gpi_host_count_worker(int more) {
    int workers;
    gpi_host_lock(&gpi_process.lock);
    workers = gpi_process.workers += more;
    gpi_host_unlock(&gpi_process.lock);
    return workers;
}

/* Once in a process, before there are any. */
static void gpi_host_prepare_workers(void (*at_exit)(void)) {
    gpi_host_lock(&gpi_process.lock);
    if (!gpi_process.watching_exit) {
        gpi_host_gate_open(&gpi_process.gate);
        atexit(at_exit);
        gpi_process.watching_exit = 1;
    }
    gpi_host_unlock(&gpi_process.lock);
}

static int gpi_host_cores(void) { /* -1: not known */
#if defined(_WIN32)
    SYSTEM_INFO system;
    GetSystemInfo(&system);
    return (int)system.dwNumberOfProcessors;
#else
    return (int)sysconf(_SC_NPROCESSORS_ONLN);
#endif
}

typedef struct gpi_worker {
    void (*run)(void *);
    void *user;
#if defined(_WIN32)
    HANDLE thread;
#else
    pthread_t thread;
#endif
} gpi_worker;

#if defined(_WIN32)
static DWORD WINAPI gpi_host_thread_main(LPVOID argument) {
#else
static void *gpi_host_thread_main(void *argument) {
#endif
    gpi_worker *worker = (gpi_worker *)argument;
    worker->run(worker->user);
    return 0;
}

/* The worker struct stays where it is until it is joined. 0: the system has no thread. */
static int gpi_host_thread_start(gpi_worker *worker, void (*run)(void *), void *user) {
    worker->run = run;
    worker->user = user;
#if defined(_WIN32)
    worker->thread = CreateThread(NULL, 0, gpi_host_thread_main, worker, 0, NULL);
    return worker->thread != NULL;
#else
    return pthread_create(&worker->thread, NULL, gpi_host_thread_main, worker) == 0;
#endif
}

static void gpi_host_thread_join(gpi_worker *worker) {
#if defined(_WIN32)
    WaitForSingleObject(worker->thread, INFINITE);
    CloseHandle(worker->thread);
#else
    pthread_join(worker->thread, NULL);
#endif
}

/* == DRIVER ===================================================================================
   All calls of CUDA's driver API. uses: HOST

   Every function is found by name through the runtime and kept in a table. The runtime's own calls
   are used where the caller's current device is asked for, and where a call of this header stands
   for one of them; the runtime's last error and current device are never changed.
   D1  gpi_driver_enter makes the device's primary context current and the thread's capture mode
       relaxed; gpi_driver_leave undoes both. In relaxed mode a call loses no capture, of any
       thread. Two calls are exceptions in every mode: cuCtxRecordEvent while a stream of the
       context captures, and a call that waits for a stream that captures.
   D2  An open driver holds its primary context and those of its peers (cuDevicePrimaryCtxRetain),
       once each; gpi_driver_close releases them.

   Read first: GPI_DRIVER_CALLS, gpi_driver_told, gpi_driver_enter, gpi_driver_open. */

#if GPUPOOL_MAPPED
typedef CUmemGenericAllocationHandle gpi_handle;
#else
typedef unsigned long long gpi_handle;
#endif

/* (field, name, CUDA version that introduced the signature, group, parameters) */
#define GPI_DRIVER_CALLS(CALL)                                                                     \
    CALL(error_name, "cuGetErrorName", 10020, GPI_CALL_OPTIONAL, (CUresult, const char **))        \
    CALL(init, "cuInit", 10020, GPI_CALL_NEEDED, (unsigned))                                       \
    CALL(attribute, "cuDeviceGetAttribute", 10020, GPI_CALL_NEEDED,                                \
         (int *, CUdevice_attribute, CUdevice))                                                    \
    CALL(can_peer, "cuDeviceCanAccessPeer", 10020, GPI_CALL_NEEDED, (int *, CUdevice, CUdevice))   \
    CALL(retain, "cuDevicePrimaryCtxRetain", 10020, GPI_CALL_NEEDED, (CUcontext *, CUdevice))      \
    CALL(release_context, "cuDevicePrimaryCtxRelease", 11000, GPI_CALL_NEEDED, (CUdevice))         \
    CALL(push, "cuCtxPushCurrent", 10020, GPI_CALL_NEEDED, (CUcontext))                            \
    CALL(pop, "cuCtxPopCurrent", 10020, GPI_CALL_NEEDED, (CUcontext *))                            \
    CALL(set_current, "cuCtxSetCurrent", 10020, GPI_CALL_NEEDED, (CUcontext))                      \
    CALL(context_device, "cuCtxGetDevice", 10020, GPI_CALL_NEEDED, (CUdevice *))                   \
    CALL(context_id, "cuCtxGetId", 12000, GPI_CALL_OPTIONAL, (CUcontext, unsigned long long *))    \
    CALL(enable_peer, "cuCtxEnablePeerAccess", 10020, GPI_CALL_NEEDED, (CUcontext, unsigned))      \
    CALL(record_all, "cuCtxRecordEvent", 12050, GPI_CALL_OPTIONAL, (CUcontext, CUevent))           \
    CALL(exchange, "cuThreadExchangeStreamCaptureMode", 10020, GPI_CALL_NEEDED,                    \
         (CUstreamCaptureMode *))                                                                  \
    CALL(stream_create, "cuStreamCreate", 10020, GPI_CALL_NEEDED, (CUstream *, unsigned))          \
    CALL(stream_destroy, "cuStreamDestroy", 10020, GPI_CALL_NEEDED, (CUstream))                    \
    CALL(stream_sync, "cuStreamSynchronize", 10020, GPI_CALL_NEEDED, (CUstream))                   \
    CALL(stream_context, "cuStreamGetCtx", 10020, GPI_CALL_NEEDED, (CUstream, CUcontext *))        \
    CALL(stream_id, "cuStreamGetId", 12000, GPI_CALL_OPTIONAL, (CUstream, unsigned long long *))   \
    CALL(is_capturing, "cuStreamIsCapturing", 10020, GPI_CALL_NEEDED,                              \
         (CUstream, CUstreamCaptureStatus *))                                                      \
    CALL(stream_wait, "cuStreamWaitEvent", 10020, GPI_CALL_NEEDED, (CUstream, CUevent, unsigned))  \
    CALL(event_create, "cuEventCreate", 10020, GPI_CALL_NEEDED, (CUevent *, unsigned))             \
    CALL(event_destroy, "cuEventDestroy", 10020, GPI_CALL_NEEDED, (CUevent))                       \
    CALL(event_record, "cuEventRecord", 10020, GPI_CALL_NEEDED, (CUevent, CUstream))               \
    CALL(event_query, "cuEventQuery", 10020, GPI_CALL_NEEDED, (CUevent))                           \
    CALL(event_sync, "cuEventSynchronize", 10020, GPI_CALL_NEEDED, (CUevent))                      \
    CALL(memory_info, "cuMemGetInfo", 10020, GPI_CALL_NEEDED, (size_t *, size_t *))                \
    CALL(memory_alloc, "cuMemAlloc", 10020, GPI_CALL_NEEDED, (CUdeviceptr *, size_t))              \
    CALL(memory_free, "cuMemFree", 10020, GPI_CALL_NEEDED, (CUdeviceptr))                          \
    CALL(managed_alloc, "cuMemAllocManaged", 10020, GPI_CALL_NEEDED,                               \
         (CUdeviceptr *, size_t, unsigned))                                                        \
    CALL(host_alloc, "cuMemHostAlloc", 10020, GPI_CALL_NEEDED, (void **, size_t, unsigned))        \
    CALL(host_free, "cuMemFreeHost", 10020, GPI_CALL_NEEDED, (void *))                             \
    CALL(host_register, "cuMemHostRegister", 10020, GPI_CALL_NEEDED, (void *, size_t, unsigned))   \
    CALL(host_unregister, "cuMemHostUnregister", 10020, GPI_CALL_NEEDED, (void *))                 \
    CALL(pointer_attributes, "cuPointerGetAttributes", 10020, GPI_CALL_NEEDED,                     \
         (unsigned, CUpointer_attribute *, void **, CUdeviceptr))                                  \
    CALL(fill, "cuMemsetD8Async", 10020, GPI_CALL_NEEDED,                                          \
         (CUdeviceptr, unsigned char, size_t, CUstream))                                           \
    CALL(copy, "cuMemcpyAsync", 10020, GPI_CALL_NEEDED,                                            \
         (CUdeviceptr, CUdeviceptr, size_t, CUstream))                                             \
    CALL(copy_rows, "cuMemcpy2DAsync", 10020, GPI_CALL_NEEDED, (const CUDA_MEMCPY2D *, CUstream))  \
    CALL(reserve, "cuMemAddressReserve", 10020, GPI_CALL_MAPS,                                     \
         (CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long))                         \
    CALL(unreserve, "cuMemAddressFree", 10020, GPI_CALL_MAPS, (CUdeviceptr, size_t))               \
    CALL(create, "cuMemCreate", 10020, GPI_CALL_MAPS,                                              \
         (gpi_handle *, size_t, const CUmemAllocationProp *, unsigned long long))                  \
    CALL(release, "cuMemRelease", 10020, GPI_CALL_MAPS, (gpi_handle))                              \
    CALL(export_handle, "cuMemExportToShareableHandle", 10020, GPI_CALL_OPTIONAL,                  \
         (void *, gpi_handle, CUmemAllocationHandleType, unsigned long long))                      \
    CALL(import_handle, "cuMemImportFromShareableHandle", 10020, GPI_CALL_OPTIONAL,                \
         (gpi_handle *, void *, CUmemAllocationHandleType))                                        \
    CALL(map, "cuMemMap", 10020, GPI_CALL_MAPS,                                                    \
         (CUdeviceptr, size_t, size_t, gpi_handle, unsigned long long))                            \
    CALL(unmap, "cuMemUnmap", 10020, GPI_CALL_MAPS, (CUdeviceptr, size_t))                         \
    CALL(access, "cuMemSetAccess", 10020, GPI_CALL_MAPS,                                           \
         (CUdeviceptr, size_t, const CUmemAccessDesc *, size_t))                                   \
    CALL(granularity, "cuMemGetAllocationGranularity", 10020, GPI_CALL_MAPS,                       \
         (size_t *, const CUmemAllocationProp *, CUmemAllocationGranularity_flags))

typedef enum gpi_call_group {
    GPI_CALL_OPTIONAL, /* may be NULL: whoever calls it looks first */
    GPI_CALL_NEEDED,   /* without one of these no driver opens */
    GPI_CALL_MAPS      /* without one of these no memory is mapped */
} gpi_call_group;

typedef struct gpi_driver {
    int device;
    int mapped;              /* memory can be mapped: the functions are there, the device has it */
    unsigned share;          /* gpupool_share: what mapped memory is made with */
    uint64_t granule_bytes;  /* driver's page for mapping; what chunked sources round to */
    uint64_t total_bytes;    /* of the device */
    int is_integrated;       /* it has no memory but the host's */
    CUcontext context;       /* the device's primary one; NULL: not open */
    unsigned long long id;   /* of the context: another one after cudaDeviceReset; 0: not known */
    int peers[GPI_DEVICES_MAX], peer_count; /* devices that may use the memory too */
    CUcontext peer_contexts[GPI_DEVICES_MAX];
    void *wait_memory;             /* memory whose freeing is the wait for the device */
    int wait_memory_of_host;
    CUcontext wait_memory_context; /* it may be a peer's */
    unsigned long long wait_memory_id;
#define GPI_DRIVER_FIELD(field, name, version, group, parameters) \
    CUresult(CUDAAPI *field) parameters;
    GPI_DRIVER_CALLS(GPI_DRIVER_FIELD)
#undef GPI_DRIVER_FIELD
} gpi_driver;

typedef struct gpi_visit { /* what leave undoes, and how, also where the driver is gone by then */
    CUresult(CUDAAPI *pop)(CUcontext *);
    CUresult(CUDAAPI *exchange)(CUstreamCaptureMode *);
    CUresult(CUDAAPI *release_context)(CUdevice); /* NULL: no context was brought back */
    CUstreamCaptureMode mode;
    CUdevice device;
} gpi_visit;

/* -- results -- */

static const char *gpi_driver_name(const gpi_driver *driver, CUresult error) {
    const char *name = NULL;
    if (driver->error_name) driver->error_name(error, &name);
    return name ? name : "unknown error";
}

/* The result that stands for CUDA's, with the sentence. Out of memory is no failure of CUDA: the
   ladder goes on, and the verdict explains. */
static gpupool_result gpi_driver_told(const gpi_driver *driver, const char *call, CUresult error) {
    if (error == CUDA_SUCCESS) return GPUPOOL_OK;
    if (error == CUDA_ERROR_OUT_OF_MEMORY)
        return gpi_host_fail(GPUPOOL_E_OUT_OF_MEMORY, "%s: the device has no memory left", call);
    gpi_host_fail(GPUPOOL_E_CUDA, "%s failed: %s", call, gpi_driver_name(driver, error));
    gpi_thread.cuda_error = (int)error; /* the runtime's errors have the driver's numbers */
    return GPUPOOL_E_CUDA;
}

/* The same of a call of the runtime. Takes back the last error that it left, unless there was one
   before. */
static gpupool_result gpi_driver_told_runtime(const char *call, cudaError_t error, int had_error) {
    if (error == cudaSuccess) return GPUPOOL_OK;
    if (!had_error) cudaGetLastError();
    gpi_host_fail(GPUPOOL_E_CUDA, "%s failed: %s (%s)", call, cudaGetErrorName(error),
                  cudaGetErrorString(error));
    gpi_thread.cuda_error = (int)error;
    return GPUPOOL_E_CUDA;
}

/* How many devices an arena, or a peer, may be one of. */
static gpupool_result gpi_driver_devices(int *count) {
    int had_error = cudaPeekAtLastError() != cudaSuccess;
    cudaError_t error = cudaGetDeviceCount(count);
    gpupool_result result = gpi_driver_told_runtime("cudaGetDeviceCount", error, had_error);
    *count = result == GPUPOOL_OK ? (int)gpi_ground_min((uint64_t)*count, GPI_DEVICES_MAX) : 0;
    return result;
}

/* Which device is meant by GPUPOOL_DEVICE_CURRENT. */
static gpupool_result gpi_driver_name_device(int *device) {
    int had_error;
    if (*device != GPUPOOL_DEVICE_CURRENT) return GPUPOOL_OK;
    had_error = cudaPeekAtLastError() != cudaSuccess;
    return gpi_driver_told_runtime("cudaGetDevice", cudaGetDevice(device), had_error);
}

/* -- the table -- */

typedef struct gpi_call {
    const char *name;
    size_t field;
    unsigned version;
    gpi_call_group group;
} gpi_call;

#define GPI_DRIVER_ROW(field, name, version, group, parameters) \
    {name, offsetof(gpi_driver, field), version, group},
static const gpi_call gpi_calls[] = {GPI_DRIVER_CALLS(GPI_DRIVER_ROW)};
#undef GPI_DRIVER_ROW

/* Finds the function by name, so that nothing but the runtime is linked. NULL: the driver is older,
   or the search has failed, which *result tells. */
typedef void (*gpi_symbol)(void);
static gpi_symbol gpi_driver_symbol(const char *name, unsigned version, gpupool_result *result) {
    int had_error = cudaPeekAtLastError() != cudaSuccess;
    gpi_symbol symbol = NULL;
    void *found = NULL;
    cudaError_t error;
#if CUDART_VERSION >= 12050
    enum cudaDriverEntryPointQueryResult status = cudaDriverEntryPointSymbolNotFound;
    error = cudaGetDriverEntryPointByVersion(name, &found, version, cudaEnableDefault, &status);
    if (status != cudaDriverEntryPointSuccess) found = NULL;
#elif CUDART_VERSION >= 12000
    enum cudaDriverEntryPointQueryResult status = cudaDriverEntryPointSymbolNotFound;
    (void)version;
    error = cudaGetDriverEntryPoint(name, &found, cudaEnableDefault, &status);
#else
    (void)version;
    error = cudaGetDriverEntryPoint(name, &found, cudaEnableDefault);
#endif
    *result = gpi_driver_told_runtime("cudaGetDriverEntryPoint", error, had_error);
    if (*result == GPUPOOL_OK) memcpy(&symbol, &found, sizeof symbol);
    if (error == cudaErrorSymbolNotFound) *result = GPUPOOL_OK; /* CUDA 11 has no status for it */
    return symbol;
}

static gpupool_result gpi_driver_fill_table(gpi_driver *driver) {
    const gpi_call *call = gpi_calls, *end = call + sizeof gpi_calls / sizeof *gpi_calls;
    driver->mapped = GPUPOOL_MAPPED;
    for (; call < end; call++) {
        gpupool_result result;
        gpi_symbol symbol = gpi_driver_symbol(call->name, call->version, &result);
        memcpy((char *)driver + call->field, &symbol, sizeof symbol);
        if (symbol || call->group == GPI_CALL_OPTIONAL) continue;
        driver->mapped = 0;
        if (call->group == GPI_CALL_MAPS) continue;
        if (result != GPUPOOL_OK) return result;
        return gpi_host_fail(GPUPOOL_E_UNSUPPORTED, "the driver has no %s", call->name);
    }
    return GPUPOOL_OK;
}

/* -- contexts -- */

static gpupool_result gpi_driver_push(const gpi_driver *driver, CUcontext context) {
    if (!context) return GPUPOOL_OK;
    return gpi_driver_told(driver, "cuCtxPushCurrent", driver->push(context));
}

static gpupool_result gpi_driver_pop(const gpi_driver *driver, CUcontext context) {
    if (!context) return GPUPOOL_OK;
    return gpi_driver_told(driver, "cuCtxPopCurrent", driver->pop(&context));
}

/* Contexts have no ids before CUDA 12: *id stays. */
static gpupool_result gpi_driver_ask_id(const gpi_driver *driver, CUcontext context,
                                        unsigned long long *id) {
    if (!driver->context_id) return GPUPOOL_OK;
    return gpi_driver_told(driver, "cuCtxGetId", driver->context_id(context, id));
}

static int gpi_driver_is_gone(CUresult error) {
    return error == CUDA_ERROR_CONTEXT_IS_DESTROYED || error == CUDA_ERROR_INVALID_CONTEXT;
}

/* Whether the context that had this id is gone: its streams and events went with it. 0 for the id:
   it is not known. */
static gpupool_result gpi_driver_has_ended(const gpi_driver *driver, CUcontext context,
                                           unsigned long long id, int *ended) {
    unsigned long long now = 0;
    CUresult error = id ? driver->context_id(context, &now) : CUDA_SUCCESS;
    *ended = gpi_driver_is_gone(error) || (error == CUDA_SUCCESS && now != id);
    return *ended ? GPUPOOL_OK : gpi_driver_told(driver, "cuCtxGetId", error);
}

/* After a reset the primary context is at the same address, and has another id. */
static gpupool_result gpi_driver_was_reset(const gpi_driver *driver, int *reset) {
    return gpi_driver_has_ended(driver, driver->context, driver->id, reset);
}

static int gpi_driver_is_alive(const gpi_driver *driver, CUcontext context) {
    unsigned long long id = 0;
    return !driver->context_id || !gpi_driver_is_gone(driver->context_id(context, &id));
}

static void gpi_driver_leave(const gpi_visit *visit) {
    CUstreamCaptureMode mode = visit->mode;
    CUcontext popped;
    visit->exchange(&mode);
    visit->pop(&popped);
    if (visit->release_context) visit->release_context(visit->device);
}

/* Makes the primary context current, one that a reset has ended after bringing it back: the memory
   that is mapped outlives it. */
static gpupool_result gpi_driver_push_own(const gpi_driver *driver, gpi_visit *visit) {
    CUcontext context;
    gpupool_result result;
    if (!gpi_driver_is_alive(driver, driver->context)) {
        result = gpi_driver_told(driver, "cuDevicePrimaryCtxRetain",
                                 driver->retain(&context, driver->device));
        if (result != GPUPOOL_OK) return result;
        visit->release_context = driver->release_context;
    }
    result = gpi_driver_push(driver, driver->context);
    if (result != GPUPOOL_OK && visit->release_context) driver->release_context(driver->device);
    return result;
}

static gpupool_result gpi_driver_enter(const gpi_driver *driver, gpi_visit *visit) {
    gpupool_result result;
    CUcontext popped;
    memset(visit, 0, sizeof *visit);
    visit->pop = driver->pop;
    visit->exchange = driver->exchange;
    visit->device = driver->device;
    visit->mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    result = gpi_driver_push_own(driver, visit);
    if (result != GPUPOOL_OK) return result;
    result = gpi_driver_told(driver, "cuThreadExchangeStreamCaptureMode",
                             driver->exchange(&visit->mode));
    if (result == GPUPOOL_OK) return GPUPOOL_OK;
    driver->pop(&popped);
    if (visit->release_context) driver->release_context(driver->device);
    return result;
}

/* After a function of the caller's, which may have made another device current. Between enter and
   leave. */
static void gpi_driver_come_back(const gpi_driver *driver) { driver->set_current(driver->context); }

/* -- opening and closing -- */

static CUmemAllocationProp gpi_driver_kind(const gpi_driver *driver) {
    CUmemAllocationProp kind;
    memset(&kind, 0, sizeof kind);
    kind.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    kind.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    kind.location.id = driver->device;
    if (driver->share & GPUPOOL_SHARE_PROCESSES)
        kind.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    kind.allocFlags.gpuDirectRDMACapable = (driver->share & GPUPOOL_SHARE_RDMA) != 0;
    return kind;
}

static int gpi_driver_has(const gpi_driver *driver, CUdevice_attribute attribute) {
    int has = 0;
    return driver->attribute(&has, attribute, driver->device) == CUDA_SUCCESS && has;
}

/* The page for mapping; 0: memory of this device cannot be mapped. */
static uint64_t gpi_driver_page(const gpi_driver *driver) {
    CUmemAllocationProp kind = gpi_driver_kind(driver);
    size_t page = 0;
    if (!driver->mapped ||
        !gpi_driver_has(driver, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) ||
        driver->granularity(&page, &kind, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) != CUDA_SUCCESS)
        return 0;
    return gpi_ground_is_power(page) && page >= GPUPOOL_UNIT_BYTES ? page : 0;
}

/* What the device is. Between enter and leave. */
static gpupool_result gpi_driver_look(gpi_driver *driver) {
    size_t free_bytes = 0, total_bytes = 0;
    uint64_t page = gpi_driver_page(driver);
    gpupool_result result = gpi_driver_ask_id(driver, driver->context, &driver->id);
    driver->is_integrated = gpi_driver_has(driver, CU_DEVICE_ATTRIBUTE_INTEGRATED);
    driver->mapped = page != 0;
    driver->granule_bytes = page ? page : 2u << 20;
    if (result == GPUPOOL_OK)
        result = gpi_driver_told(driver, "cuMemGetInfo",
                                 driver->memory_info(&free_bytes, &total_bytes));
    driver->total_bytes = total_bytes;
    return result;
}

/* No memory for waits is left then. The driver is not entered; one that is not open is left
   alone. */
static void gpi_driver_close(gpi_driver *driver) {
    int i;
    for (i = 0; i < driver->peer_count; i++) driver->release_context(driver->peers[i]);
    if (driver->context) driver->release_context(driver->device);
    driver->context = NULL;
    driver->peer_count = 0;
}

static gpupool_result gpi_driver_open(gpi_driver *driver, int device) {
    gpupool_result result;
    gpi_visit visit;
    memset(driver, 0, sizeof *driver);
    driver->device = device;
    result = gpi_driver_fill_table(driver);
    if (result == GPUPOOL_OK) result = gpi_driver_told(driver, "cuInit", driver->init(0));
    if (result == GPUPOOL_OK)
        result = gpi_driver_told(driver, "cuDevicePrimaryCtxRetain",
                                 driver->retain(&driver->context, device));
    if (result != GPUPOOL_OK) return result;
    result = gpi_driver_enter(driver, &visit);
    if (result == GPUPOOL_OK) {
        result = gpi_driver_look(driver);
        gpi_driver_leave(&visit);
    }
    if (result != GPUPOOL_OK) gpi_driver_close(driver);
    return result;
}

/* What the device has free, to somebody who holds so much of it. On an integrated device CUDA's
   figure is the host's, where memory that the system gives up when asked, its page cache, does not
   count as free: nothing is known there but what there is. */
static CUresult gpi_driver_memory(const gpi_driver *driver, uint64_t held_bytes,
                                  size_t *free_bytes, size_t *total_bytes) {
    CUresult error = driver->memory_info(free_bytes, total_bytes);
    if (error == CUDA_SUCCESS && driver->is_integrated)
        *free_bytes = *total_bytes - (size_t)gpi_ground_min(*total_bytes, held_bytes);
    return error;
}

/* -- memory that is mapped -- */

/* A piece of physical memory: all of it, or nothing. */
static gpupool_result gpi_driver_create(const gpi_driver *driver, uint64_t bytes,
                                        gpi_handle *handle) {
    CUmemAllocationProp kind = gpi_driver_kind(driver);
    return gpi_driver_told(driver, "cuMemCreate", driver->create(handle, bytes, &kind, 0));
}

static gpupool_result gpi_driver_map(const gpi_driver *driver, uint64_t address, uint64_t bytes,
                                     gpi_handle handle) {
    return gpi_driver_told(driver, "cuMemMap", driver->map(address, bytes, 0, handle, 0));
}

/* For one device, this one or a peer: access, or none. */
static gpupool_result gpi_driver_set_access(const gpi_driver *driver, uint64_t address,
                                            uint64_t bytes, int device,
                                            CUmemAccess_flags flags) {
    CUmemAccessDesc access;
    access.location = gpi_driver_kind(driver).location;
    access.location.id = device;
    access.flags = flags;
    return gpi_driver_told(driver, "cuMemSetAccess", driver->access(address, bytes, &access, 1));
}

static gpupool_result gpi_driver_access_for(const gpi_driver *driver, uint64_t address,
                                            uint64_t bytes, int device) {
    return gpi_driver_set_access(driver, address, bytes, device,
                                 CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
}

static gpupool_result gpi_driver_access(const gpi_driver *driver, uint64_t address,
                                        uint64_t bytes) {
    gpupool_result result = gpi_driver_access_for(driver, address, bytes, driver->device);
    int i;
    for (i = 0; i < driver->peer_count && result == GPUPOOL_OK; i++)
        result = gpi_driver_access_for(driver, address, bytes, driver->peers[i]);
    return result;
}

/* A new descriptor of the memory, for other processes. */
static gpupool_result gpi_driver_export(const gpi_driver *driver, gpi_handle handle,
                                        int *descriptor) {
    CUresult error = driver->export_handle(descriptor, handle,
                                           CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    gpupool_result result = gpi_driver_told(driver, "cuMemExportToShareableHandle", error);
    if (result == GPUPOOL_OK) gpi_host_close_on_exec(*descriptor);
    return result;
}

static gpupool_result gpi_driver_import(const gpi_driver *driver, int descriptor,
                                        gpi_handle *handle) {
    CUresult error = driver->import_handle(handle, (void *)(uintptr_t)descriptor,
                                           CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    return gpi_driver_told(driver, "cuMemImportFromShareableHandle", error);
}

static gpupool_result gpi_driver_unmap(const gpi_driver *driver, uint64_t address, uint64_t bytes) {
    return gpi_driver_told(driver, "cuMemUnmap", driver->unmap(address, bytes));
}

static gpupool_result gpi_driver_release(const gpi_driver *driver, gpi_handle handle) {
    return gpi_driver_told(driver, "cuMemRelease", driver->release(handle));
}

/* -- streams: what is asked here loses no capture, and needs no current context where the stream is
   not a default one -- */

/* Whether an event recorded here would be a graph's, or would lose a capture: so it is on the
   legacy stream while any blocking stream captures. */
static int gpi_driver_is_capturing(const gpi_driver *driver, cudaStream_t stream) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult error = driver->is_capturing(stream, &status);
    if (error == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) return 1;
    return error == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/* *id stays where the stream captures, for CUDA would end the capture, and before CUDA 12. */
static CUresult gpi_driver_stream_id(const gpi_driver *driver, cudaStream_t stream, uint64_t *id) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    unsigned long long number = *id;
    CUresult error;
    if (!driver->stream_id) return CUDA_SUCCESS;
    error = driver->is_capturing(stream, &status);
    if (error == CUDA_SUCCESS && status == CU_STREAM_CAPTURE_STATUS_NONE)
        error = driver->stream_id(stream, &number);
    *id = number;
    return error;
}

static int gpi_driver_is_default(cudaStream_t stream) { /* NULL comes no further than ARENA */
    return stream == cudaStreamLegacy || stream == cudaStreamPerThread;
}

/* The stream's context where it is not the device's own: a stream of another device, say. */
static CUresult gpi_driver_ask_foreign(const gpi_driver *driver, cudaStream_t stream,
                                       CUcontext *context) {
    CUresult error = CUDA_SUCCESS;
    *context = NULL;
    if (gpi_driver_is_default(stream) || !driver->stream_context) return CUDA_SUCCESS;
    error = driver->stream_context(stream, context);
    if (error != CUDA_SUCCESS || *context == driver->context) *context = NULL;
    return error;
}

/* The same; also NULL where CUDA does not tell. */
static CUcontext gpi_driver_foreign(const gpi_driver *driver, cudaStream_t stream) {
    CUcontext context = NULL;
    return gpi_driver_ask_foreign(driver, stream, &context) == CUDA_SUCCESS ? context : NULL;
}

/* For gpi_driver_foreign and gpi_driver_device_of where no arena is: every stream is foreign. */
static const gpi_driver *gpi_driver_ask(gpi_driver *driver) {
    size_t i;
    memset(driver, 0, sizeof *driver);
    for (i = 0; i < sizeof gpi_calls / sizeof *gpi_calls; i++) {
        size_t field = gpi_calls[i].field;
        gpupool_result ignored;
        gpi_symbol symbol;
        if (field != offsetof(gpi_driver, stream_context) && field != offsetof(gpi_driver, push) &&
            field != offsetof(gpi_driver, pop) && field != offsetof(gpi_driver, context_device))
            continue;
        symbol = gpi_driver_symbol(gpi_calls[i].name, gpi_calls[i].version, &ignored);
        memcpy((char *)driver + field, &symbol, sizeof symbol);
    }
    if (!driver->push || !driver->pop || !driver->context_device) driver->stream_context = NULL;
    return driver;
}

/* The context's device; where CUDA cannot say, the current one. */
static int gpi_driver_device_of(const gpi_driver *driver, CUcontext context) {
    int device = GPUPOOL_DEVICE_CURRENT;
    if (driver->push(context) != CUDA_SUCCESS) return device;
    if (driver->context_device(&device) != CUDA_SUCCESS) device = GPUPOOL_DEVICE_CURRENT;
    driver->pop(&context);
    return device;
}

static gpupool_result gpi_driver_stream_sync(const gpi_driver *driver, cudaStream_t stream) {
    return gpi_driver_told(driver, "cuStreamSynchronize", driver->stream_sync(stream));
}

/* A stream of the current context, which does not wait for the legacy one. */
static gpupool_result gpi_driver_stream_new(const gpi_driver *driver, cudaStream_t *stream) {
    return gpi_driver_told(driver, "cuStreamCreate",
                           driver->stream_create(stream, CU_STREAM_NON_BLOCKING));
}

static gpupool_result gpi_driver_stream_drop(const gpi_driver *driver, cudaStream_t stream) {
    return gpi_driver_told(driver, "cuStreamDestroy", driver->stream_destroy(stream));
}

/* -- events: recording one, asking it and letting a stream wait for it need no current context
   where the stream is not a default one -- */

/* An event of the current context. */
static gpupool_result gpi_driver_event_new(const gpi_driver *driver, CUevent *event) {
    return gpi_driver_told(driver, "cuEventCreate",
                           driver->event_create(event, CU_EVENT_DISABLE_TIMING));
}

static gpupool_result gpi_driver_event_drop(const gpi_driver *driver, CUevent event) {
    return gpi_driver_told(driver, "cuEventDestroy", driver->event_destroy(event));
}

/* The stream is of the event's context, and gpi_driver_is_capturing has said no. */
static gpupool_result gpi_driver_event_record(const gpi_driver *driver, CUevent event,
                                              cudaStream_t stream) {
    return gpi_driver_told(driver, "cuEventRecord", driver->event_record(event, stream));
}

/* Whether the event has passed: CUDA_SUCCESS, or CUDA_ERROR_NOT_READY. CUDA allows the question in
   relaxed mode only, so the mode is exchanged for it, here and not by the caller. */
static CUresult gpi_driver_event_ask(const gpi_driver *driver, CUevent event) {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CUresult error = driver->exchange(&mode);
    if (error != CUDA_SUCCESS) return error;
    error = driver->event_query(event);
    driver->exchange(&mode);
    return error;
}

static gpupool_result gpi_driver_event_query(const gpi_driver *driver, CUevent event,
                                             int *passed) {
    CUresult error = gpi_driver_event_ask(driver, event);
    *passed = error == CUDA_SUCCESS;
    if (error == CUDA_ERROR_NOT_READY) return GPUPOOL_OK;
    return gpi_driver_told(driver, "cuEventQuery", error);
}

/* The host waits. Between enter and leave. */
static gpupool_result gpi_driver_event_wait(const gpi_driver *driver, CUevent event) {
    return gpi_driver_told(driver, "cuEventSynchronize", driver->event_sync(event));
}

/* The stream waits. */
static gpupool_result gpi_driver_stream_wait(const gpi_driver *driver, cudaStream_t stream,
                                             CUevent event) {
    return gpi_driver_told(driver, "cuStreamWaitEvent", driver->stream_wait(stream, event, 0));
}

/* Records all streams of the driver's context, destroyed ones too. While any of them captures CUDA
   refuses it, and the capture is lost. */
static gpupool_result gpi_driver_record_all(const gpi_driver *driver, CUevent event) {
    if (!driver->record_all)
        return gpi_host_fail(GPUPOOL_E_UNSUPPORTED, "cuCtxRecordEvent needs CUDA 12.5");
    return gpi_driver_told(driver, "cuCtxRecordEvent", driver->record_all(driver->context, event));
}

/* -- peers -- */

static gpupool_result gpi_driver_can_peer(const gpi_driver *driver, int device) {
    int can = 0;
    gpupool_result result = gpi_driver_told(
        driver, "cuDeviceCanAccessPeer", driver->can_peer(&can, device, driver->device));
    if (result != GPUPOOL_OK || can) return result;
    return gpi_host_fail(GPUPOOL_E_UNSUPPORTED, "gpupool_allow_peer: device %d cannot reach the "
                         "memory of device %d", device, driver->device);
}

/* The peer's place in the list; the one behind the last: it is not in it. */
static int gpi_driver_peer(const gpi_driver *driver, int device) {
    int i = 0;
    while (i < driver->peer_count && driver->peers[i] != device) i++;
    return i;
}

/* Takes hold of the context of a device that is to become a peer. That of a peer is there once more
   if a reset had ended it. */
static gpupool_result gpi_driver_hold_peer(gpi_driver *driver, int device) {
    int at = gpi_driver_peer(driver, device);
    gpupool_result result =
        gpi_driver_told(driver, "cuDevicePrimaryCtxRetain",
                        driver->retain(&driver->peer_contexts[at], device));
    if (result == GPUPOOL_OK && at < driver->peer_count) driver->release_context(device);
    driver->peers[at] = device;
    return result;
}

/* The device whose context is held becomes a peer, or is let go of. */
static void gpi_driver_end_holding(gpi_driver *driver, int device, gpupool_result result) {
    if (gpi_driver_peer(driver, device) < driver->peer_count) return;
    if (result == GPUPOOL_OK) driver->peer_count++;
    else driver->release_context(device);
}

/* A peer is one no longer. Nobody waits for the device meanwhile. */
static void gpi_driver_drop_peer(gpi_driver *driver, int device) {
    int at = gpi_driver_peer(driver, device);
    driver->release_context(device);
    driver->peer_count--;
    for (; at < driver->peer_count; at++) {
        driver->peers[at] = driver->peers[at + 1];
        driver->peer_contexts[at] = driver->peer_contexts[at + 1];
    }
}

/* What cuMemAlloc gives becomes accessible by whole devices. The device is held. */
static gpupool_result gpi_driver_enable_peer(const gpi_driver *driver, int device) {
    CUcontext context = driver->peer_contexts[gpi_driver_peer(driver, device)];
    gpupool_result result = gpi_driver_push(driver, context);
    CUresult error;
    if (result != GPUPOOL_OK) return result;
    error = driver->enable_peer(driver->context, 0);
    driver->pop(&context);
    if (error == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) return GPUPOOL_OK;
    return gpi_driver_told(driver, "cuCtxEnablePeerAccess", error);
}

/* -- the wait for the device -- */

/* Waits until all streams of the current context are done, destroyed ones too. It loses no capture,
   not even one on a non-blocking stream, which cuCtxSynchronize would lose: cuMemFree waits so, of
   whatever memory, and so does cuMemFreeHost (seen on CUDA 13.0). After a reset that memory is
   gone,
   and its address may be the program's. */
static gpupool_result gpi_driver_free_wait_memory(gpi_driver *driver) {
    gpupool_result result;
    int ended;
    if (!driver->wait_memory) return GPUPOOL_OK;
    result = gpi_driver_has_ended(driver, driver->wait_memory_context, driver->wait_memory_id,
                                  &ended);
    if (result == GPUPOOL_OK && !ended && driver->wait_memory_of_host)
        result = gpi_driver_told(driver, "cuMemFreeHost", driver->host_free(driver->wait_memory));
    else if (result == GPUPOOL_OK && !ended)
        result = gpi_driver_told(driver, "cuMemFree",
                                 driver->memory_free((CUdeviceptr)(uintptr_t)driver->wait_memory));
    if (result == GPUPOOL_OK) driver->wait_memory = NULL;
    return result;
}

/* The context is current. */
static gpupool_result gpi_driver_wait_here(gpi_driver *driver, CUcontext context) {
    gpupool_result result = gpi_driver_free_wait_memory(driver); /* of a wait that failed */
    CUdeviceptr wait_memory = 0;
    if (result != GPUPOOL_OK) return result;
    driver->wait_memory_id = 0;
    driver->wait_memory_context = context;
    result = gpi_driver_ask_id(driver, context, &driver->wait_memory_id);
    if (result != GPUPOOL_OK) return result;
    driver->wait_memory_of_host = driver->memory_alloc(&wait_memory, 1) != CUDA_SUCCESS;
    if (driver->wait_memory_of_host)
        result = gpi_driver_told(driver, "cuMemHostAlloc",
                                 driver->host_alloc(&driver->wait_memory, 1, 0));
    else driver->wait_memory = (void *)(uintptr_t)wait_memory;
    return result == GPUPOOL_OK ? gpi_driver_free_wait_memory(driver) : result;
}

/* Waits for the device and its peers, whose streams may be at the arena's memory as well. A peer's
   context that a reset has ended has no work. Between enter and leave; one thread at a time. */
static gpupool_result gpi_driver_wait(gpi_driver *driver) {
    gpupool_result result = gpi_driver_wait_here(driver, driver->context);
    int i;
    for (i = 0; i < driver->peer_count && result == GPUPOOL_OK; i++) {
        CUcontext context = driver->peer_contexts[i];
        if (!gpi_driver_is_alive(driver, context)) continue;
        result = gpi_driver_push(driver, context);
        if (result != GPUPOOL_OK) return result;
        result = gpi_driver_wait_here(driver, context);
        driver->pop(&context);
    }
    return result;
}

/* -- transfers: for the ring -- */

typedef enum gpi_place_kind { /* where a pointer points */
    GPI_PLACE_ORDINARY,       /* host memory that CUDA does not know */
    GPI_PLACE_PINNED,         /* the device reaches it, and the host too: pinned or managed */
    GPI_PLACE_DEVICE
} gpi_place_kind;

static gpupool_result gpi_driver_place(const gpi_driver *driver, const void *pointer,
                                       gpi_place_kind *kind) {
    CUpointer_attribute asked[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                   CU_POINTER_ATTRIBUTE_IS_MANAGED};
    unsigned type = 0, managed = 0; /* both stay 0 of memory that CUDA does not know */
    void *answers[] = {NULL, NULL};
    gpupool_result result;
    answers[0] = &type;
    answers[1] = &managed;
    result = gpi_driver_told(driver, "cuPointerGetAttributes",
                             driver->pointer_attributes(2, asked, answers,
                                                        (CUdeviceptr)(uintptr_t)pointer));
    if (result != GPUPOOL_OK) return result;
    *kind = type == 0 ? GPI_PLACE_ORDINARY
            : type == CU_MEMORYTYPE_HOST || managed ? GPI_PLACE_PINNED : GPI_PLACE_DEVICE;
    return GPUPOOL_OK;
}

static gpupool_result gpi_driver_pin(const gpi_driver *driver, void *memory, uint64_t bytes) {
    CUresult error = driver->host_register(memory, (size_t)bytes, CU_MEMHOSTREGISTER_PORTABLE);
    if (error == CUDA_ERROR_OUT_OF_MEMORY) /* not the device's: no verdict would explain it */
        return gpi_host_fail(GPUPOOL_E_HOST_MEMORY, "cuMemHostRegister: the host does not pin %"
                             PRIu64 " bytes more", bytes);
    return gpi_driver_told(driver, "cuMemHostRegister", error);
}

/* Waits for the device, as CUDA has it. */
static gpupool_result gpi_driver_unpin(const gpi_driver *driver, void *memory) {
    return gpi_driver_told(driver, "cuMemHostUnregister", driver->host_unregister(memory));
}

typedef struct gpi_copy { /* rows of width bytes, each `pitch` after the one before */
    void *to;
    const void *from;
    uint64_t to_pitch, from_pitch, width, rows;
} gpi_copy;

static CUresult gpi_driver_copy_rows(const gpi_driver *driver, const gpi_copy *copy,
                                     cudaStream_t stream) {
    CUDA_MEMCPY2D rows;
    memset(&rows, 0, sizeof rows);
    rows.srcMemoryType = rows.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
    rows.srcDevice = (CUdeviceptr)(uintptr_t)copy->from;
    rows.srcPitch = (size_t)copy->from_pitch;
    rows.dstDevice = (CUdeviceptr)(uintptr_t)copy->to;
    rows.dstPitch = (size_t)copy->to_pitch;
    rows.WidthInBytes = (size_t)copy->width;
    rows.Height = (size_t)copy->rows;
    return driver->copy_rows(&rows, stream);
}

/* `refused`: CUDA does not take these pointers. It is so for host memory that is registered in
   part, or in two parts. */
static gpupool_result gpi_driver_copy(const gpi_driver *driver, const gpi_copy *copy,
                                      cudaStream_t stream, int *refused) {
    CUresult error;
    if (copy->rows > 1)
        error = gpi_driver_copy_rows(driver, copy, stream);
    else
        error = driver->copy((CUdeviceptr)(uintptr_t)copy->to, (CUdeviceptr)(uintptr_t)copy->from,
                             (size_t)copy->width, stream);
    if (refused) *refused = error == CUDA_ERROR_INVALID_VALUE;
    return gpi_driver_told(driver, copy->rows > 1 ? "cuMemcpy2DAsync" : "cuMemcpyAsync", error);
}

static gpupool_result gpi_driver_fill(const gpi_driver *driver, void *at, int byte, uint64_t bytes,
                                      cudaStream_t stream) {
    CUresult error = driver->fill((CUdeviceptr)(uintptr_t)at, (unsigned char)byte, (size_t)bytes,
                                  stream);
    if (error == CUDA_ERROR_OUT_OF_MEMORY) /* no verdict would explain it */
        return gpi_host_fail(GPUPOOL_E_CUDA, "cuMemsetD8Async failed: CUDA_ERROR_OUT_OF_MEMORY: "
                             "the driver has no memory for itself");
    return gpi_driver_told(driver, "cuMemsetD8Async", error);
}

/* Records the event, made when it is first needed. */
static gpupool_result gpi_driver_record(const gpi_driver *driver, CUevent *event,
                                        cudaStream_t stream) {
    gpupool_result result = GPUPOOL_OK;
    if (!*event) result = gpi_driver_event_new(driver, event);
    return result == GPUPOOL_OK ? gpi_driver_event_record(driver, *event, stream) : result;
}

/* Destroys the event, if there is one. */
static gpupool_result gpi_driver_forget(const gpi_driver *driver, CUevent *event) {
    gpupool_result result = *event ? gpi_driver_event_drop(driver, *event) : GPUPOOL_OK;
    if (result == GPUPOOL_OK) *event = NULL;
    return result;
}

#if GPUPOOL_NVTX
/* -- what a tool is told: chunks are heaps, blocks regions in them. Tools refuse heaps over mapped
   memory (seen on CUDA 13.0). -- */

static void *gpi_driver_tell_chunk(const void *memory, uint64_t bytes) {
    nvtxMemVirtualRangeDesc_t range;
    nvtxMemHeapDesc_t heap;
    memset(&range, 0, sizeof range);
    memset(&heap, 0, sizeof heap);
    range.size = bytes;
    range.ptr = memory;
    heap.extCompatID = NVTX_EXT_COMPATID_MEM;
    heap.structSize = sizeof heap;
    heap.usage = NVTX_MEM_HEAP_USAGE_TYPE_SUB_ALLOCATOR;
    heap.type = NVTX_MEM_TYPE_VIRTUAL_ADDRESS;
    heap.typeSpecificDescSize = sizeof range;
    heap.typeSpecificDesc = &range;
    heap.messageType = NVTX_MESSAGE_TYPE_ASCII;
    heap.message.ascii = "gpupool chunk";
    return nvtxMemHeapRegister(NULL, &heap);
}

static void gpi_driver_tell_chunk_gone(void *heap) {
    nvtxMemHeapUnregister(NULL, (nvtxMemHeapHandle_t)heap);
}

static void gpi_driver_tell_block(void *heap, const void *block, uint64_t bytes,
                                  const char *name) {
    nvtxMemVirtualRangeDesc_t range;
    nvtxMemRegionHandle_t handle = NULL;
    nvtxMemRegionsRegisterBatch_t regions;
    nvtxMemRegionNameDesc_t title;
    nvtxMemRegionsNameBatch_t titles;
    memset(&range, 0, sizeof range);
    memset(&regions, 0, sizeof regions);
    memset(&title, 0, sizeof title);
    memset(&titles, 0, sizeof titles);
    range.size = bytes;
    range.ptr = block;
    regions.extCompatID = NVTX_EXT_COMPATID_MEM;
    regions.structSize = sizeof regions;
    regions.regionType = NVTX_MEM_TYPE_VIRTUAL_ADDRESS;
    regions.heap = (nvtxMemHeapHandle_t)heap;
    regions.regionCount = 1;
    regions.regionDescElementSize = sizeof range;
    regions.regionDescElements = &range;
    regions.regionHandleElementsOut = &handle;
    nvtxMemRegionsRegister(NULL, &regions);
    title.regionRefType = NVTX_MEM_REGION_REF_TYPE_POINTER;
    title.nameType = NVTX_MESSAGE_TYPE_ASCII;
    title.region.pointer = block;
    title.name.ascii = name;
    titles.extCompatID = NVTX_EXT_COMPATID_MEM;
    titles.structSize = sizeof titles;
    titles.regionCount = 1;
    titles.regionElementSize = sizeof title;
    titles.regionElements = &title;
    nvtxMemRegionsName(NULL, &titles);
}

static void gpi_driver_tell_block_gone(const void *block) {
    nvtxMemRegionRef_t region;
    nvtxMemRegionsUnregisterBatch_t regions;
    memset(&regions, 0, sizeof regions);
    region.pointer = block;
    regions.extCompatID = NVTX_EXT_COMPATID_MEM;
    regions.structSize = sizeof regions;
    regions.refType = NVTX_MEM_REGION_REF_TYPE_POINTER;
    regions.refCount = 1;
    regions.refElementSize = sizeof region;
    regions.refElements = &region;
    nvtxMemRegionsUnregister(NULL, &regions);
}
#endif

/* == LEDGER ===================================================================================
   The arena's numbers, the limit they are held to, and whose they are. Nobody else adds to a
   counter. uses: HOST
   L1  requested <= granted <= reserved, and reserved <= limit unless the limit was lowered since
   L2  each counter: now <= peak and now <= total
   L3  totals never shrink: each scope's is at least that of the scope around it at its push

   A scope costs nothing while it lasts: the counters run on, and only their peaks begin anew. What
   was there at its push is set aside, and taken off at its pop. */

/* Changes that are made elsewhere, under another lock, and folded in later. Their own peak is kept,
   so that the counter's comes out as if each had been made here, where one stream is at work; with
   several, it may be off by what they changed meanwhile: no more than their caches hold. */
typedef struct gpi_change {
    int64_t now, most;
    uint64_t total;
} gpi_change;

typedef struct gpi_site { /* blocks that one line of source has asked for on one stream */
    struct gpi_site *next; /* in the same bucket */
    struct gpi_site *same;  /* the one that counts for all of equal text: itself, mostly */
    struct gpi_site *place; /* the first of equal text, whatever its stream */
    const char *file;      /* "": not known */
    int line, embedded;    /* embedded: not of the host's heap */
    uint64_t key;          /* of the stream */
    uint64_t allocs;       /* in all */
    uint64_t blocks, bytes, bytes_peak; /* live */
    struct gpi_site *changed; /* of the next site that a cache has changed, while is_changed */
    int is_changed;
    gpi_change cached;     /* of bytes, under the stream's lock, not yet in the figures above */
    int64_t cached_blocks;
    uint64_t cached_allocs;
    uint64_t place_blocks, place_bytes; /* of a place: as last added up over its streams */
    uint32_t number;       /* in the latest copy of all */
} gpi_site;

enum { GPI_SITES = 256 }; /* buckets */

typedef struct gpi_origin { /* of a call, as the caller tells it */
    const char *file;
    int line;
} gpi_origin;

typedef struct gpi_scope {
    struct gpi_scope *outer;
    gpupool_stats before; /* as it was at the push; peaks: of the scope around, so far */
} gpi_scope;

typedef struct gpi_ledger_tag {
    gpupool_tag_stats stats; /* limits: UINT64_MAX for none */
    uint64_t coming;         /* of granted: of requests under way */
    uint64_t coming_blocks;
    gpupool_soft_fn on_soft_limit;
    void *user;
    int told;                /* is_over, as the program was told last */
} gpi_ledger_tag;

typedef struct gpi_ledger {
    gpupool_counter requested, granted, reserved, pending, blocks; /* in gpupool_stats' order */
    uint64_t limit_bytes; /* UINT64_MAX: none */
    uint64_t over_bytes;  /* what was reserved when the limit was last set: it may be more */
    uint64_t away_bytes;  /* what was reserved before the arena fell asleep */
    uint64_t allocs, frees, failures, same_stream_allocs;
    uint64_t cached_bytes; /* free in caches, when these were last folded in */
    gpi_scope *scopes;    /* the innermost first */
    gpi_ledger_tag *tags[GPUPOOL_TAGS + 1]; /* [0]: the arena's own soft limit, on reserved */
    int tag_count;        /* of the others; they are [1], [2], ... */
#if GPUPOOL_SITES
    gpi_site *sites[GPI_SITES];
    gpi_site unknown;     /* where the host had no memory for another */
    uint64_t site_count;
#endif
} gpi_ledger;

enum { GPI_COUNTERS = 5 };

/* The i-th counter of a ledger, and of statistics. */
static gpupool_counter *gpi_ledger_counter(const gpi_ledger *ledger, int i) {
    static const size_t offsets[GPI_COUNTERS] = {
        offsetof(gpi_ledger, requested), offsetof(gpi_ledger, granted),
        offsetof(gpi_ledger, reserved), offsetof(gpi_ledger, pending),
        offsetof(gpi_ledger, blocks)};
    return (gpupool_counter *)(void *)((char *)(uintptr_t)ledger + offsets[i]);
}

static gpupool_counter *gpi_ledger_counter_of(const gpupool_stats *stats, int i) {
    static const size_t offsets[GPI_COUNTERS] = {
        offsetof(gpupool_stats, requested), offsetof(gpupool_stats, granted),
        offsetof(gpupool_stats, reserved), offsetof(gpupool_stats, pending),
        offsetof(gpupool_stats, blocks)};
    return (gpupool_counter *)(void *)((char *)(uintptr_t)stats + offsets[i]);
}

static int gpi_ledger_check(const gpi_ledger *ledger) {
    const gpi_scope *scope, *inner = NULL;
    int i;
    if (ledger->requested.now > ledger->granted.now) return 1;
    if (ledger->granted.now > ledger->reserved.now + ledger->away_bytes) return 1;
    if (ledger->reserved.now > gpi_ground_max(ledger->limit_bytes, ledger->over_bytes)) return 1;
    for (i = 0; i < GPI_COUNTERS; i++) {
        const gpupool_counter *counter = gpi_ledger_counter(ledger, i);
        if (counter->now > counter->peak) return 2;
        if (GPUPOOL_STATS && counter->now > counter->total) return 2;
    }
    for (scope = ledger->scopes; scope; inner = scope, scope = scope->outer)
        for (i = 0; i < GPI_COUNTERS; i++) {
            const gpupool_counter *aside = gpi_ledger_counter_of(&scope->before, i);
            const gpupool_counter *later = inner ? gpi_ledger_counter_of(&inner->before, i)
                                                 : gpi_ledger_counter(ledger, i);
            if (aside->total > later->total || aside->now > aside->total) return 3;
        }
    return 0;
}

/* -- tags -- */

/* 1, 0: over its soft limit, or not. */
static int gpi_ledger_is_over(const gpi_ledger *ledger, int tag) {
    const gpi_ledger_tag *of = ledger->tags[tag];
    uint64_t now = tag ? of->stats.granted.now : ledger->reserved.now;
    return now > of->stats.soft_limit_bytes;
}

/* The first tag of which the program was not told how it is; -1: none. */
static int gpi_ledger_untold(const gpi_ledger *ledger) {
    int i;
    for (i = 0; i <= ledger->tag_count; i++)
        if (ledger->tags[i] && ledger->tags[i]->on_soft_limit &&
            gpi_ledger_is_over(ledger, i) != ledger->tags[i]->told)
            return i;
    return -1;
}

static uint64_t gpi_ledger_room(const gpi_ledger *ledger) {
    if (ledger->reserved.now >= ledger->limit_bytes) return 0;
    return ledger->limit_bytes - ledger->reserved.now;
}

/* The counters as of the arena's whole life, whatever scopes are open. */
static void gpi_ledger_read(const gpi_ledger *ledger, gpupool_stats *stats) {
    const gpi_scope *scope = ledger->scopes;
    int i;
    for (i = 0; i < GPI_COUNTERS; i++)
        *gpi_ledger_counter_of(stats, i) = *gpi_ledger_counter(ledger, i);
    for (; scope; scope = scope->outer)
        for (i = 0; i < GPI_COUNTERS; i++) {
            gpupool_counter *out = gpi_ledger_counter_of(stats, i);
            out->peak = gpi_ground_max(out->peak, gpi_ledger_counter_of(&scope->before, i)->peak);
        }
}

static void gpi_ledger_add(gpupool_counter *counter, uint64_t amount) {
    counter->now += amount;
#if GPUPOOL_STATS
    counter->total += amount;
#endif
    if (counter->now > counter->peak) counter->peak = counter->now;
}

static void gpi_ledger_sub(gpupool_counter *counter, uint64_t amount) {
    GPI_ASSERT(counter->now >= amount);
    counter->now -= amount;
}

/* A block with a tag is gone. Returns whether the program is to be told of something. */
static int gpi_ledger_untag(gpi_ledger *ledger, uint32_t tag, uint64_t bytes) {
    gpi_ledger_tag *of = ledger->tags[tag];
    gpi_ledger_sub(&of->stats.granted, bytes);
    gpi_ledger_sub(&of->stats.blocks, 1);
    return of->on_soft_limit && gpi_ledger_is_over(ledger, (int)tag) != of->told;
}

static void gpi_ledger_set(gpupool_counter *counter, uint64_t now) {
    if (now > counter->now) gpi_ledger_add(counter, now - counter->now);
    else counter->now = now;
}

static void gpi_ledger_note(gpi_change *change, uint64_t amount) {
    change->now += (int64_t)amount;
#if GPUPOOL_STATS
    change->total += amount;
#endif
    if (change->now > change->most) change->most = change->now;
}

static void gpi_ledger_fold(gpupool_counter *counter, gpi_change *change) {
    uint64_t most = counter->now + (uint64_t)change->most;
    counter->now += (uint64_t)change->now;
    counter->total += change->total;
    if (most > counter->peak) counter->peak = most;
    memset(change, 0, sizeof *change);
}

/* A block becomes live. Growth looks at the peak of granted, so that stays without statistics. */
GPI_HOT void gpi_ledger_charge(gpi_ledger *ledger, uint64_t requested, uint64_t granted) {
#if GPUPOOL_STATS
    gpi_ledger_add(&ledger->requested, requested);
    gpi_ledger_add(&ledger->blocks, 1);
    ledger->allocs++;
#else
    (void)requested;
#endif
    gpi_ledger_add(&ledger->granted, granted);
}

GPI_HOT void gpi_ledger_refund(gpi_ledger *ledger, uint64_t requested, uint64_t granted) {
#if GPUPOOL_STATS
    gpi_ledger_sub(&ledger->requested, requested);
    gpi_ledger_sub(&ledger->blocks, 1);
    ledger->frees++;
#else
    (void)requested;
#endif
    gpi_ledger_sub(&ledger->granted, granted);
}

static void gpi_ledger_reset_peaks(gpi_ledger *ledger) {
    gpi_scope *scope = ledger->scopes;
    int i;
    for (i = 0; i < GPI_COUNTERS; i++)
        gpi_ledger_counter(ledger, i)->peak = gpi_ledger_counter(ledger, i)->now;
    for (; scope; scope = scope->outer)
        for (i = 0; i < GPI_COUNTERS; i++) gpi_ledger_counter_of(&scope->before, i)->peak = 0;
}

/* -- scopes -- */

/* before: the statistics of this moment. */
static void gpi_ledger_push(gpi_ledger *ledger, gpi_scope *scope, const gpupool_stats *before) {
    int i;
    scope->before = *before;
    for (i = 0; i < GPI_COUNTERS; i++) {
        gpupool_counter *counter = gpi_ledger_counter(ledger, i);
        *gpi_ledger_counter_of(&scope->before, i) = *counter;
        counter->peak = counter->now;
    }
    scope->outer = ledger->scopes;
    ledger->scopes = scope;
}

/* From allocs to host_syncs. */
enum {
    GPI_COUNTS = (offsetof(gpupool_stats, limit_bytes) - offsetof(gpupool_stats, allocs)) /
                 sizeof(uint64_t)
};

/* What of stats, taken at this moment, belongs to the innermost scope, which is popped. */
static gpi_scope *gpi_ledger_pop(gpi_ledger *ledger, gpupool_stats *stats) {
    gpi_scope *scope = ledger->scopes;
    uint64_t counts[GPI_COUNTS], then[GPI_COUNTS];
    int i;
    for (i = 0; i < GPI_COUNTERS; i++) {
        const gpupool_counter *aside = gpi_ledger_counter_of(&scope->before, i);
        gpupool_counter *counter = gpi_ledger_counter(ledger, i);
        gpupool_counter *out = gpi_ledger_counter_of(stats, i);
        out->now = counter->now - aside->now;
        out->peak = counter->peak - gpi_ground_min(counter->peak, aside->now);
        out->total = counter->total - aside->total;
        counter->peak = gpi_ground_max(counter->peak, aside->peak);
    }
    memcpy(counts, (const char *)stats + offsetof(gpupool_stats, allocs), sizeof counts);
    memcpy(then, (const char *)&scope->before + offsetof(gpupool_stats, allocs), sizeof then);
    for (i = 0; i < GPI_COUNTS; i++) counts[i] -= then[i];
    memcpy((char *)stats + offsetof(gpupool_stats, allocs), counts, sizeof counts);
    ledger->scopes = scope->outer;
    return scope;
}

/* -- sites -- */

static void gpi_ledger_open(gpi_ledger *ledger) { /* all zero so far */
    ledger->limit_bytes = UINT64_MAX;
#if GPUPOOL_SITES
    ledger->unknown.same = ledger->unknown.place = &ledger->unknown;
    ledger->unknown.file = "";
#endif
}

#if GPUPOOL_SITES
/* Where the host had no memory for another site, one that was at hand takes its place. */
static gpi_site *gpi_ledger_adopt(gpi_ledger *ledger, gpi_site *site, uint64_t key) {
    if (site->file) return site;
    site->same = site->place = site;
    site->file = "";
    site->key = key;
    site->embedded = 1;
    ledger->site_count++;
    site->next = ledger->sites[0];
    GPI_PUBLISH(&ledger->sites[0], site);
    return site;
}

static gpi_site **gpi_ledger_bucket(gpi_ledger *ledger, gpi_origin origin, uint64_t key) {
    uint64_t hash = ((uint64_t)(uintptr_t)origin.file ^ key) + (uint64_t)origin.line * 31;
    return &ledger->sites[(hash * 0x9e3779b97f4a7c15ull) >> 56];
}

/* Called once for each new site: of those with equal text, the first counts for all. */
static gpi_site *gpi_ledger_new_site(gpi_ledger *ledger, gpi_origin origin, uint64_t key) {
    gpi_site *site = (gpi_site *)gpi_host_zeroed(sizeof *site), *other;
    gpi_site **bucket = gpi_ledger_bucket(ledger, origin, key);
    int i;
    if (!site) return &ledger->unknown;
    site->same = site->place = site;
    for (i = 0; i < GPI_SITES; i++)
        for (other = ledger->sites[i]; other; other = other->next) {
            if (other->line != origin.line || strcmp(other->file, origin.file) != 0) continue;
            site->place = other->place;
            if (other->key == key) site->same = other->same;
        }
    site->file = origin.file;
    site->line = origin.line;
    site->key = key;
    site->next = *bucket;
    GPI_PUBLISH(bucket, site);
    ledger->site_count++;
    return site->same;
}

/* NULL: there is none yet. Needs no lock. Inline, for every allocation comes here. */
static inline gpi_site *gpi_ledger_find_site(gpi_ledger *ledger, gpi_origin origin, uint64_t key) {
    gpi_site *site = GPI_READ(gpi_ledger_bucket(ledger, origin, key));
    for (; site; site = site->next)
        if (site->file == origin.file && site->line == origin.line && site->key == key)
            return site->same;
    return NULL;
}

static gpi_site *gpi_ledger_site(gpi_ledger *ledger, gpi_origin origin, uint64_t key) {
    gpi_site *site = gpi_ledger_find_site(ledger, origin, key);
    return site ? site : gpi_ledger_new_site(ledger, origin, key);
}

/* The first site, and the one after each: all but the unknown one, which comes last. */
static gpi_site *gpi_ledger_next_site(gpi_ledger *ledger, const gpi_site *site, int *bucket) {
    gpi_site *next = site ? site->next : NULL;
    if (site == &ledger->unknown) return NULL;
    if (!site) *bucket = -1;
    while (!next && ++*bucket < GPI_SITES) next = ledger->sites[*bucket];
    return next ? next : &ledger->unknown;
}

static void gpi_ledger_add_up_places(gpi_ledger *ledger) {
    gpi_site *site = NULL;
    int bucket;
    while ((site = gpi_ledger_next_site(ledger, site, &bucket)) != NULL)
        site->place_blocks = site->place_bytes = 0;
    while ((site = gpi_ledger_next_site(ledger, site, &bucket)) != NULL) {
        site->place->place_blocks += site->blocks;
        site->place->place_bytes += site->bytes;
    }
}

static void gpi_ledger_site_add(gpi_site *site, uint64_t bytes) {
    site->allocs++;
    site->blocks++;
    site->bytes += bytes;
    if (site->bytes > site->bytes_peak) site->bytes_peak = site->bytes;
}

static void gpi_ledger_site_sub(gpi_site *site, uint64_t bytes) {
    GPI_ASSERT(site->blocks > 0 && site->bytes >= bytes);
    site->blocks--;
    site->bytes -= bytes;
}

/* What a cache has noted becomes the site's figures. */
static void gpi_ledger_fold_site(gpi_site *site) {
    uint64_t most = site->bytes + (uint64_t)site->cached.most;
    site->bytes_peak = gpi_ground_max(site->bytes_peak, most);
    site->bytes += (uint64_t)site->cached.now;
    site->blocks += (uint64_t)site->cached_blocks;
    site->allocs += site->cached_allocs;
    site->cached_blocks = 0;
    site->cached_allocs = 0;
    site->is_changed = 0;
    memset(&site->cached, 0, sizeof site->cached);
}
#endif

static void gpi_ledger_close(gpi_ledger *ledger) {
    gpi_scope *scope = ledger->scopes, *outer;
    int tag;
    for (tag = 0; tag <= ledger->tag_count; tag++) GPUPOOL_FREE(ledger->tags[tag]);
    for (; scope; scope = outer) {
        outer = scope->outer;
        GPUPOOL_FREE(scope);
    }
#if GPUPOOL_SITES
    {
        gpi_site *site, *next;
        int i;
        for (i = 0; i < GPI_SITES; i++)
            for (site = ledger->sites[i]; site; site = next) {
                next = site->next;
                if (!site->embedded) GPUPOOL_FREE(site);
            }
    }
#endif
}

/* == TREE =====================================================================================
   Which units are free, and for whom. Integers only: a unit's number is its address divided by
   GPUPOOL_UNIT_BYTES, and nothing here touches the memory that it stands for. uses: HOST, LEDGER

   A buddy system with two rules of the classical one lifted. A run of units may start anywhere and
   have any length, so no request is rounded up to a power of two; and a run's buddies are simply
   the runs on its two sides: whenever one of them is free for the same users, the two are one.
   What stays is what made buddies quick: free runs are filed by order. The root says which orders
   have runs; an order says which of its eight steps (of an eighth of its size) have runs; a step
   has the list of them. The smallest step in which every run is large enough is two bit scans away.

       list -> order 12 (4096..8191 units) -> step 3 (5632..6143) -> run <-> run <-> run

   A list has two such trees: the free memory that certain users may take. Free list ANY is memory
   whose earlier work is known to be done; list EMPTY has home addresses without memory behind them;
   list SPACE has addresses for stitches; the other free lists belong to streams. A live run is in
   no list but in the index, which finds it by its unit. A run of a stitched block is in neither:
   PART.

   A MAPPED arena's tree also has a table of its addresses, one cell for each granule. A cell tells
   the leftmost run that starts in the granule, so the run that contains an address is found in a
   few steps, whatever its size; and the owner, which is for the sections below.

   The second tree of a list is its edge: runs beside empty addresses, taken last. Memory is
   added where it makes the most of an edge, so what is left alone there keeps large requests
   together; filled with small ones, it would cost a recorded training run 0.8% more memory.

   The third tree of a list is for blocks below 64 KiB. They share slabs, granules that are marked
   as such, so that they lie close together and leave whole chunks free. Where memory is short,
   slabs are no more: the marks are taken away, and their free runs join their neighbours.

   T1  neighbours meet: run.next.unit == run.unit + run.units, and run.next.prev == run
   T2  a free run is in its list's bin of its own order and step, in the tree that it belongs to:
       in the edge if a neighbour is empty, and it is in no slab; bits say which lists hold runs;
       counts and sums are those of the lists
   T3  no run stands next to a run of the same list and position, but at the border of a slab
   T4  the index holds exactly the live runs, each in the bucket of its unit
   T5  the leftmost run of a chunk stays the same struct while the chunk lives (owners know it)
   T6  a cell has the leftmost run that starts in its granule, or NULL; its bit says which
   T7  a free run lies in slabs wholly, and is in the third tree, or in none */

enum {
    GPI_STEPS = 8,
    GPI_KIND_BINS = 64 * GPI_STEPS,        /* places in one tree of a list */
    GPI_KINDS = 3,                   /* inner runs, the edge, slabs */
    GPI_SLABS = 2,                     /* the last of them */
    GPI_NO_BIN = GPI_KINDS * GPI_KIND_BINS,
    GPI_SLAB_UNITS = 65536 / GPUPOOL_UNIT_BYTES, /* blocks below this live in slabs */
    GPI_PAGE = 1024,                   /* runs, or buckets, got from the host at a time */
    GPI_LINE = 64,                     /* bytes that the processor reads at a time */
    GPI_TRIES = 4,                     /* runs looked at in a step where not every run fits, */
    GPI_TRIES_SLOW = 256               /* and before more memory is got */
};

enum { /* free lists: what a run is */
    GPI_LIST_ANY,
    GPI_LIST_EMPTY,
    GPI_LIST_SPACE,
    GPI_LIST_TAGS,                     /* finished memory of tags that have chunks of their own */
    GPI_LIST_STREAMS = GPI_LIST_TAGS + GPUPOOL_TAGS, /* the first list of a stream */
    GPI_LIST_WAITING = INT32_MAX - 4,  /* freed, but other streams may still be at it: `uses`; from
                                          here on free lists are not free */
    GPI_LIST_PART,                     /* in a stitched block, which `uses` leads to */
    GPI_LIST_TAKEN,                     /* not free, not live: being worked on by one thread */
    GPI_LIST_CACHED,                   /* in a stream's cache, which `uses` leads to; in the index,
                                          as live runs are */
    GPI_LIST_LIVE
};

struct gpi_tree_relies { /* does not compile where what the tree relies on does not hold */
    unsigned steps_have_a_byte : GPI_STEPS == 8 ? 1 : -1;
    unsigned live_is_the_last : GPI_LIST_LIVE == INT32_MAX ? 1 : -1;
};

typedef struct gpi_run {
    uint64_t unit, units;
    struct gpi_run *prev, *next;       /* neighbours by address; NULL at the chunk's edge */
    struct gpi_run *list_next;         /* free: same step; live: same bucket */
    union {
        struct gpi_run *list_prev;     /* free: same step */
        uintptr_t stream;              /* live: handle of the stream that asked for it, or in whose
                                          cache it was last; 0: not known */
    } by;
    union {
        void *uses;                    /* live: uses by other streams; cached: the cache; part: its
                                          stitch */
        uint64_t at;                   /* free: its position, see CLOCK; 0 in lists of nobody */
    } of;
    uint32_t list;
    union {
        uint32_t slack;                /* live: granted minus requested bytes, and above those
                                          GPI_SLACK_BITS the tag */
        uint32_t bin;                /* free: the list of its list that it is in */
    } as;
#if GPUPOOL_SITES
    gpi_site *site;                    /* live: who asked for it */
#endif
#if GPUPOOL_NVTX
    void *heap;                        /* live: what a tool calls its chunk; NULL: it has none */
#endif
#if GPI_GUARD
    uint64_t guarded_bytes;            /* live: where its guard begins; 0: it has none */
#endif
} gpi_run;

/* A list's place is one number: tree * GPI_KIND_BINS + order * GPI_STEPS + step. */
typedef struct gpi_list {
    struct gpi_list *spare;            /* of a list not in use, and so empty: the next one */
    void *owner;                       /* the stream that the list is of; NULL: anybody's */
    uint64_t units;                    /* free in this list */
    uint64_t usable_below;             /* runs at positions below this may be taken by the request
                                          that memory is looked for just now; 0: none */
    uint64_t borders[3];               /* runs join only where no border is between their positions:
                                          they are at or below the first (which is known to be
                                          finished), the second, the third, or above */
    uint64_t orders[GPI_KINDS];      /* bit k: order k has runs */
    uint8_t steps[GPI_KINDS * 64];   /* bit s: that step of the order has runs */
    gpi_run *heads[GPI_KINDS * GPI_KIND_BINS];
} gpi_list;

typedef struct gpi_lists {             /* where to look for a run */
    uint32_t number[2];
    int count;
    uint64_t below;                    /* at positions below this */
} gpi_lists;

typedef struct gpi_cell {              /* of a granule of addresses */
    gpi_run *first;                    /* the leftmost run that starts here, or NULL */
    void *owner;                       /* the chunk, or the stitch, whose addresses these are */
} gpi_cell;

typedef struct gpi_tree {
    gpi_list **lists;                  /* NULL: number not in use */
    uint32_t list_count, list_room;
    gpi_list *spare_lists;
    gpi_run **pages;                   /* where run structs live */
    uint64_t page_count, page_room;
    gpi_run ***buckets;                /* pages of heads of the index's lists */
    uint64_t bucket_page_count, bucket_page_room;
    uint64_t host_bytes;
    gpi_cell **cells;                  /* pages of the table; NULL: no address there is in use */
    uint64_t *starts;                  /* bit g: a run starts in granule g */
    uint64_t *slabs;                   /* bit g: granule g is a slab */
    uint64_t slab_count;
    uint64_t base_unit, granules;      /* of home addresses, in which runs are found; 0: no table */
    uint64_t cell_pages;
    unsigned granule_shift;            /* units in a granule, as a power of two */
    uint64_t bucket_count;             /* from here on what changes from call to call */
    uint64_t bucket_mask;              /* the power of two above the count, less one */
    gpi_run *spare;                    /* run structs not in use, linked by list_next */
    uint64_t spare_count;
    uint64_t live_runs, live_units;
    uint64_t pending_units;            /* free in free lists of streams */
    uint64_t splits, merges;
    uint64_t live_by_order[GPUPOOL_ORDERS], free_by_order[GPUPOOL_ORDERS];
    gpi_run *cursor;                   /* where a walk in slices goes on */
} gpi_tree;

static uint32_t gpi_tree_bin(uint64_t units) { /* of an inner run */
    unsigned order = gpi_ground_high_bit(units);
    return order * GPI_STEPS + (uint32_t)((units << 3) >> order) - GPI_STEPS;
}

static unsigned gpi_tree_order(uint32_t bin) { return bin % GPI_KIND_BINS / GPI_STEPS; }

/* Linear hashing: two more buckets per live run, split in turn, so that no call ever pays for a
   re-hash of the whole. Two, because where there are many each run looked at is a cache miss.
   Bucket b < count; hashes beyond the count fold onto the half below. */
GPI_HOT uint64_t gpi_tree_bucket(const gpi_tree *tree, uint64_t unit) {
    uint64_t bucket = ((unit * 0x9e3779b97f4a7c15ull) >> 24) & tree->bucket_mask;
    /* a branch could not be foretold */
    return bucket & tree->bucket_mask >> (bucket >= tree->bucket_count);
}

static gpi_run **gpi_tree_head(const gpi_tree *tree, uint64_t bucket) {
    return &tree->buckets[bucket / GPI_PAGE][bucket % GPI_PAGE];
}

static int gpi_tree_is_edge(const gpi_run *run) {
    return (run->prev && run->prev->list == GPI_LIST_EMPTY) ||
           (run->next && run->next->list == GPI_LIST_EMPTY);
}

GPI_HOT int gpi_tree_is_slab(const gpi_tree *tree, uint64_t unit) {
    uint64_t granule;
    if (tree->slab_count == 0) return 0;
    granule = (unit - tree->base_unit) >> tree->granule_shift;
    return granule < tree->granules && (tree->slabs[granule / 64] >> granule % 64 & 1);
}

/* Which tree of its list a free run belongs to. */
GPI_HOT uint32_t gpi_tree_kind(const gpi_tree *tree, const gpi_run *run) {
    if (gpi_tree_is_slab(tree, run->unit)) return GPI_SLABS;
    return gpi_tree_is_edge(run) ? 1 : 0;
}

/* Whether a run is free, and all work that used it has finished: in list ANY, or a tag's. */
static int gpi_tree_is_finished(const gpi_run *run) {
    return run->list == GPI_LIST_ANY ||
           (run->list >= GPI_LIST_TAGS && run->list < GPI_LIST_STREAMS);
}

/* Its neighbours know it: a run that a list has is one of a chunk's. */
static int gpi_tree_is_met(const gpi_run *run) {
    return (!run->prev || run->prev->next == run) && (!run->next || run->next->prev == run);
}

/* The cell of an address that the table has a page for. */
GPI_HOT gpi_cell *gpi_tree_cell(const gpi_tree *tree, uint64_t unit) {
    uint64_t granule = (unit - tree->base_unit) >> tree->granule_shift;
    return &tree->cells[granule / GPI_PAGE][granule % GPI_PAGE];
}

/* -- questions -- */

/* What leads to the live run that starts at this unit, or to NULL. */
GPI_HOT gpi_run **gpi_tree_link(const gpi_tree *tree, uint64_t unit) {
    gpi_run **link = gpi_tree_head(tree, gpi_tree_bucket(tree, unit));
    while (*link && (*link)->unit != unit) link = &(*link)->list_next;
    return link;
}

static gpi_run *gpi_tree_live(const gpi_tree *tree, uint64_t unit) {
    return *gpi_tree_link(tree, unit);
}

/* Whose address it is; NULL: nobody's. */
static void *gpi_tree_owner(const gpi_tree *tree, uint64_t unit) {
    uint64_t granule = (unit - tree->base_unit) >> tree->granule_shift;
    const gpi_cell *page = granule / GPI_PAGE < tree->cell_pages ? tree->cells[granule / GPI_PAGE]
                                                                 : NULL;
    return page ? page[granule % GPI_PAGE].owner : NULL;
}

/* The leftmost run that starts at or after a granule's first unit. There is one: addresses that are
   never used end the range. */
static gpi_run *gpi_tree_from(const gpi_tree *tree, uint64_t unit) {
    uint64_t granule = (unit - tree->base_unit) >> tree->granule_shift, word = granule / 64;
    uint64_t bits = tree->starts[word] & ~(uint64_t)0 << granule % 64;
    while (!bits) bits = tree->starts[++word];
    granule = word * 64 + gpi_ground_low_bit(bits);
    return tree->cells[granule / GPI_PAGE][granule % GPI_PAGE].first;
}

/* The run that contains this address, which is in the table and in use. Looked for from the right,
   where a free run that is worth looking for has no others between it and the granule's end. */
static gpi_run *gpi_tree_at(const gpi_tree *tree, uint64_t unit) {
    uint64_t granule = (uint64_t)1 << tree->granule_shift;
    gpi_run *run = gpi_tree_from(tree, gpi_ground_down(unit, granule) + granule)->prev;
    while (run->unit > unit) run = run->prev;
    return run;
}

/* Where a request of so many units would start in this run; UINT64_MAX if it does not fit. */
GPI_HOT uint64_t gpi_tree_start(const gpi_run *run, uint64_t units, uint64_t align_units) {
    uint64_t start = gpi_ground_up(run->unit, align_units);
    uint64_t lost = start - run->unit;
    return lost < run->units && run->units - lost >= units ? start : UINT64_MAX;
}

/* The next list with runs, at or after the given one, in the same tree of the list. */
GPI_HOT uint32_t gpi_tree_next(const gpi_list *list, uint32_t bin) {
    uint32_t row = bin / GPI_STEPS, kind = row / 64;
    unsigned steps = list->steps[row] & (0xffu << bin % GPI_STEPS);
    if (steps == 0) {
        uint64_t orders = list->orders[kind] & (~(uint64_t)1 << row % 64);
        if (orders == 0) return GPI_NO_BIN;
        row = kind * 64 + gpi_ground_low_bit(orders);
        steps = list->steps[row];
    }
    return row * GPI_STEPS + gpi_ground_low_bit(steps);
}

/* The first list with runs of an order; GPI_NO_BIN: there is none. */
static uint32_t gpi_tree_first(const gpi_list *list, uint32_t kind) {
    return list->orders[kind] ? gpi_tree_next(list, kind * GPI_KIND_BINS) : (uint32_t)GPI_NO_BIN;
}

typedef enum gpi_owners {              /* of the memory that a block lies in */
    GPI_OWNERS_ANY,
    GPI_OWNERS_ONE,                    /* all of it is in memory of one */
    GPI_OWNERS_WHOLE                   /* and is all that this one has */
} gpi_owners;

typedef struct gpi_fit {               /* what is looked for */
    uint64_t units, align_units;
    uint64_t tries;                    /* misfits that may be passed over in a list */
    gpi_owners owners;                 /* but for ANY, it is aligned to two units at least */
} gpi_fit;

/* Where memory of the owner that a unit has ends. */
static uint64_t gpi_tree_end_of_owner(const gpi_tree *tree, uint64_t unit, uint64_t end) {
    uint64_t granule = (uint64_t)1 << tree->granule_shift;
    const void *owner = gpi_tree_owner(tree, unit);
    for (unit = gpi_ground_down(unit, granule) + granule; unit < end; unit += granule)
        if (gpi_tree_owner(tree, unit) != owner) return unit;
    return end;
}

/* Where a request would start in this run; UINT64_MAX if it does not fit. */
static uint64_t gpi_tree_start_of(const gpi_tree *tree, const gpi_run *run, const gpi_fit *fit) {
    uint64_t start = gpi_tree_start(run, fit->units, fit->align_units), owned;
    uint64_t end = run->unit + run->units;
    if (fit->owners == GPI_OWNERS_ANY || !tree->granules) return start;
    for (; start != UINT64_MAX && start < end && end - start >= fit->units;
         start = gpi_ground_up(owned, fit->align_units)) {
        const void *owner = gpi_tree_owner(tree, start);
        owned = gpi_tree_end_of_owner(tree, start, end);
        if (owned - start < fit->units) continue;
        if (fit->owners == GPI_OWNERS_ONE || (gpi_tree_owner(tree, start - 1) != owner &&
                                              gpi_tree_owner(tree, start + fit->units) != owner))
            return start;
    }
    return UINT64_MAX;
}

/* The first run of a list that the request fits in. */
GPI_HOT gpi_run *gpi_tree_fit(const gpi_tree *tree, gpi_run *run, const gpi_fit *fit,
                              uint64_t below) {
    uint64_t tries = fit->tries;
    for (; run; run = run->list_next) {
        if (run->units >= fit->units && run->of.at < below &&
            (fit->align_units == 1 ||
             gpi_tree_start_of(tree, run, fit) != UINT64_MAX))
            return run;
        if (tries-- == 0) break;
    }
    return NULL;
}

/* A free run that the request fits in, in one tree of the free lists: list by list from the
   request's own step upward, the free lists in turn. In that step a run may be too short, and in
   any when aligned or where positions are bounded. */
GPI_HOT gpi_run *gpi_tree_find_on(const gpi_tree *tree, const gpi_lists *lists, uint32_t bin,
                                  const gpi_fit *fit) {
    for (;;) {
        uint32_t least = GPI_NO_BIN;
        int i;
        for (i = 0; i < lists->count; i++) {
            gpi_run *run = tree->lists[lists->number[i]]->heads[bin];
            run = gpi_tree_fit(tree, run, fit, lists->below);
            if (run) return run;
        }
        for (i = 0; i < lists->count; i++) {
            uint32_t next = gpi_tree_next(tree->lists[lists->number[i]], bin + 1);
            if (next < least) least = next;
        }
        if (least == GPI_NO_BIN) return NULL;
        bin = least;
    }
}

/* In no slab. */
GPI_HOT gpi_run *gpi_tree_find(const gpi_tree *tree, const gpi_lists *lists, const gpi_fit *fit) {
    uint32_t first = gpi_tree_bin(fit->units);
    gpi_run *run = gpi_tree_find_on(tree, lists, first, fit);
    return run ? run : gpi_tree_find_on(tree, lists, first + GPI_KIND_BINS, fit);
}

static uint64_t gpi_tree_largest(const gpi_list *list) {
    uint64_t largest = 0;
    uint32_t kind;
    for (kind = 0; kind < GPI_KINDS; kind++) {
        const gpi_run *run;
        uint32_t row;
        if (list->orders[kind] == 0) continue;
        row = kind * 64 + gpi_ground_high_bit(list->orders[kind]);
        run = list->heads[row * GPI_STEPS + gpi_ground_high_bit(list->steps[row])];
        for (; run; run = run->list_next) largest = gpi_ground_max(largest, run->units);
    }
    return largest;
}

/* -- changes: the host's memory is asked for before anything is changed -- */

static int gpi_tree_grow_list(gpi_tree *tree, void **list, uint64_t *room, uint64_t need) {
    uint64_t more = *room ? *room * 2 : 16;
    void *larger;
    if (need <= *room) return 1;
    while (more < need) more *= 2;
    larger = gpi_host_zeroed(more * sizeof(void *));
    if (!larger) return 0;
    if (*list) memcpy(larger, *list, *room * sizeof(void *));
    GPUPOOL_FREE(*list);
    tree->host_bytes += (more - *room) * sizeof(void *);
    *list = larger;
    *room = more;
    return 1;
}

/* The run structs of a page, each in a single cache line: where there are many, each one looked at
   is a miss. */
static gpi_run *gpi_tree_page(const gpi_tree *tree, uint64_t page) {
    uint64_t first = gpi_ground_up((uintptr_t)tree->pages[page], GPI_LINE);
    return (gpi_run *)(uintptr_t)first;
}

/* No list is usable any more: marks do not outlast the lock under which they were made. */
static void gpi_tree_unmark(gpi_tree *tree) {
    uint32_t i;
    for (i = 0; i < tree->list_count; i++)
        if (tree->lists[i]) tree->lists[i]->usable_below = 0;
}

/* For walks over all live runs, from *at = 0; NULL at the end. In the order of their structs in the
   host's memory: the index's lists would lead all over it. */
static gpi_run *gpi_tree_next_live(const gpi_tree *tree, uint64_t *at) {
    while (*at < tree->page_count * GPI_PAGE) {
        gpi_run *run = gpi_tree_page(tree, *at / GPI_PAGE) + *at % GPI_PAGE;
        ++*at;
        if (run->units && run->list >= GPI_LIST_CACHED) return run;
    }
    return NULL;
}

static int gpi_tree_is_ready(const gpi_tree *tree, uint64_t runs) {
    return tree->spare_count >= runs &&
           tree->bucket_count + 2 <= tree->bucket_page_count * GPI_PAGE;
}

/* Makes sure of so many run structs and two more buckets. 0: the host has no memory. */
static int gpi_tree_prepare(gpi_tree *tree, uint64_t runs) {
    void *list;
    while (tree->spare_count < runs) {
        gpi_run *page;
        int i;
        list = tree->pages;
        if (!gpi_tree_grow_list(tree, &list, &tree->page_room, tree->page_count + 1)) return 0;
        tree->pages = (gpi_run **)list;
        page = (gpi_run *)gpi_host_zeroed(GPI_PAGE * sizeof *page + GPI_LINE);
        if (!page) return 0;
        tree->pages[tree->page_count++] = page;
        tree->host_bytes += GPI_PAGE * sizeof *page + GPI_LINE;
        page = gpi_tree_page(tree, tree->page_count - 1);
        for (i = GPI_PAGE - 1; i >= 0; i--) {
            page[i].list_next = tree->spare;
            tree->spare = &page[i];
        }
        tree->spare_count += GPI_PAGE;
    }
    if (tree->bucket_count + 2 > tree->bucket_page_count * GPI_PAGE) {
        gpi_run **page;
        list = tree->buckets;
        if (!gpi_tree_grow_list(tree, &list, &tree->bucket_page_room, tree->bucket_page_count + 1))
            return 0;
        tree->buckets = (gpi_run ***)list;
        page = (gpi_run **)gpi_host_zeroed(GPI_PAGE * sizeof *page);
        if (!page) return 0;
        tree->buckets[tree->bucket_page_count++] = page;
        tree->host_bytes += GPI_PAGE * sizeof *page;
        if (tree->bucket_count == 0) tree->bucket_count = tree->bucket_mask = 1;
    }
    return 1;
}

/* A table for addresses from base_unit on, all of them nobody's: so many granules, of which the
   first home_granules have runs that are found by address. 0: the host has no memory. */
static int gpi_tree_open_table(gpi_tree *tree, uint64_t base_unit, uint64_t home_granules,
                               uint64_t granules, uint64_t granule_units) {
    uint64_t pages = granules / GPI_PAGE + 1, words = home_granules / 64 + 1;
    tree->cells = (gpi_cell **)gpi_host_zeroed(pages * sizeof *tree->cells);
    tree->starts = (uint64_t *)gpi_host_zeroed(words * sizeof *tree->starts);
    tree->slabs = (uint64_t *)gpi_host_zeroed(words * sizeof *tree->slabs);
    if (!tree->cells || !tree->starts || !tree->slabs) return 0; /* close frees what there is */
    tree->cell_pages = pages;
    tree->granule_shift = gpi_ground_high_bit(granule_units);
    tree->base_unit = base_unit;
    tree->granules = home_granules;
    tree->host_bytes += pages * sizeof *tree->cells + 2 * words * sizeof *tree->starts;
    return 1;
}

/* Makes sure of the cells for [unit, unit + units], the end included: a run starts there when the
   memory before it is cut off. 0: the host has no memory. */
static int gpi_tree_prepare_cells(gpi_tree *tree, uint64_t unit, uint64_t units) {
    uint64_t page = ((unit - tree->base_unit) >> tree->granule_shift) / GPI_PAGE;
    uint64_t last = ((unit + units - tree->base_unit) >> tree->granule_shift) / GPI_PAGE;
    for (; page <= last; page++) {
        if (tree->cells[page]) continue;
        tree->cells[page] = (gpi_cell *)gpi_host_zeroed(GPI_PAGE * sizeof **tree->cells);
        if (!tree->cells[page]) return 0;
        tree->host_bytes += GPI_PAGE * sizeof **tree->cells;
    }
    return 1;
}

/* The addresses [unit, unit + units), whole granules with cells, are this owner's from now on. */
static void gpi_tree_own(gpi_tree *tree, uint64_t unit, uint64_t units, void *owner) {
    uint64_t end = unit + units;
    for (; unit < end; unit += (uint64_t)1 << tree->granule_shift)
        gpi_tree_cell(tree, unit)->owner = owner;
}

static uint64_t *gpi_tree_word(const gpi_tree *tree, uint64_t unit, uint64_t *bit) {
    uint64_t granule = (unit - tree->base_unit) >> tree->granule_shift;
    *bit = (uint64_t)1 << granule % 64;
    return &tree->starts[granule / 64];
}

/* A run starts here from now on. */
GPI_HOT void gpi_tree_enter(gpi_tree *tree, gpi_run *run) {
    gpi_cell *cell;
    uint64_t *word, bit;
    if (run->unit - tree->base_unit >= tree->granules << tree->granule_shift) return;
    cell = gpi_tree_cell(tree, run->unit);
    if (cell->first && cell->first->unit < run->unit) return;
    cell->first = run;
    word = gpi_tree_word(tree, run->unit, &bit);
    *word |= bit;
}

/* A run starts here no longer; its neighbour on the right still knows what is beside it. */
GPI_HOT void gpi_tree_leave(gpi_tree *tree, const gpi_run *run) {
    const uint64_t in_granule = ((uint64_t)1 << tree->granule_shift) - 1;
    gpi_cell *cell;
    uint64_t *word, bit;
    if (run->unit - tree->base_unit >= tree->granules << tree->granule_shift) return;
    cell = gpi_tree_cell(tree, run->unit);
    if (cell->first != run) return;
    cell->first = run->next && run->next->unit <= (run->unit | in_granule) ? run->next : NULL;
    if (cell->first) return;
    word = gpi_tree_word(tree, run->unit, &bit);
    *word &= ~bit;
}

/* Makes the empty free list of this number, which is not in use. 0: the host has no memory. */
static int gpi_tree_list_open(gpi_tree *tree, uint32_t number) {
    uint64_t room = tree->list_room;
    void *grown = tree->lists;
    gpi_list *list;
    if (!gpi_tree_grow_list(tree, &grown, &room, (uint64_t)number + 1)) return 0;
    tree->lists = (gpi_list **)grown;
    tree->list_room = (uint32_t)room;
    list = tree->spare_lists;
    if (list) {
        tree->spare_lists = list->spare;
    } else {
        list = (gpi_list *)gpi_host_zeroed(sizeof *list);
        if (!list) return 0;
        tree->host_bytes += sizeof *list;
    }
    list->owner = NULL;
    memset(list->borders, 0, sizeof list->borders);
    while (tree->list_count <= number) tree->lists[tree->list_count++] = NULL;
    tree->lists[number] = list;
    return 1;
}

/* A new empty list for a stream: its number, or GPI_LIST_LIVE when the host has no memory. */
static uint32_t gpi_tree_list_add(gpi_tree *tree) {
    uint32_t number = GPI_LIST_STREAMS;
    while (number < tree->list_count && tree->lists[number]) number++;
    return gpi_tree_list_open(tree, number) ? number : (uint32_t)GPI_LIST_LIVE;
}

static void gpi_tree_list_drop(gpi_tree *tree, uint32_t number) {
    GPI_ASSERT(tree->lists[number]->units == 0);
    tree->lists[number]->spare = tree->spare_lists;
    tree->spare_lists = tree->lists[number];
    tree->lists[number] = NULL;
}

static void gpi_tree_close(gpi_tree *tree) {
    gpi_list *list, *next;
    uint64_t i;
    for (i = 0; i < tree->list_count; i++) GPUPOOL_FREE(tree->lists[i]);
    for (list = tree->spare_lists; list; list = next) {
        next = list->spare;
        GPUPOOL_FREE(list);
    }
    for (i = 0; i < tree->page_count; i++) GPUPOOL_FREE(tree->pages[i]);
    for (i = 0; i < tree->bucket_page_count; i++) GPUPOOL_FREE(tree->buckets[i]);
    for (i = 0; i < tree->cell_pages; i++) GPUPOOL_FREE(tree->cells[i]);
    GPUPOOL_FREE(tree->cells);
    GPUPOOL_FREE(tree->starts);
    GPUPOOL_FREE(tree->slabs);
    GPUPOOL_FREE(tree->lists);
    GPUPOOL_FREE(tree->pages);
    GPUPOOL_FREE(tree->buckets);
    memset(tree, 0, sizeof *tree);
}

/* Lists ANY, EMPTY and SPACE. 0: the host has no memory. */
static int gpi_tree_open(gpi_tree *tree) {
    if (gpi_tree_list_open(tree, GPI_LIST_ANY) && gpi_tree_list_open(tree, GPI_LIST_EMPTY) &&
        gpi_tree_list_open(tree, GPI_LIST_SPACE) && gpi_tree_prepare(tree, 1))
        return 1;
    gpi_tree_close(tree);
    return 0;
}

GPI_HOT void gpi_tree_file(gpi_tree *tree, gpi_run *run, uint32_t number) {
    gpi_list *list = tree->lists[number];
    uint64_t units = run->units;
    uint32_t kind = gpi_tree_kind(tree, run), inner = gpi_tree_bin(units);
    uint32_t order = inner / GPI_STEPS, bin = inner + kind * GPI_KIND_BINS;
    gpi_run *next = list->heads[bin];
    run->list = number;
    run->as.bin = bin;
    run->by.list_prev = NULL;
    run->list_next = next;
    if (next) next->by.list_prev = run;
    list->heads[bin] = run;
    list->orders[kind] |= (uint64_t)1 << order;
    list->steps[bin / GPI_STEPS] =
        (uint8_t)(list->steps[bin / GPI_STEPS] | 1u << bin % GPI_STEPS);
    list->units += units;
    if (number >= GPI_LIST_STREAMS) tree->pending_units += units;
    if (number == GPI_LIST_ANY || number >= GPI_LIST_TAGS) tree->free_by_order[order]++;
}

GPI_HOT void gpi_tree_unfile(gpi_tree *tree, gpi_run *run) {
    gpi_list *list = tree->lists[run->list];
    uint32_t bin = run->as.bin, row = bin / GPI_STEPS;
    if (run->list_next) run->list_next->by.list_prev = run->by.list_prev;
    if (run->by.list_prev) {
        run->by.list_prev->list_next = run->list_next;
    } else {
        list->heads[bin] = run->list_next;
        if (!run->list_next) {
            list->steps[row] = (uint8_t)(list->steps[row] & ~(1u << bin % GPI_STEPS));
            if (!list->steps[row]) list->orders[row / 64] &= ~((uint64_t)1 << row % 64);
        }
    }
    list->units -= run->units;
    if (run->list >= GPI_LIST_STREAMS) tree->pending_units -= run->units;
    if (run->list == GPI_LIST_ANY || run->list >= GPI_LIST_TAGS) tree->free_by_order[row % 64]--;
    run->list = GPI_LIST_TAKEN;
}

/* A run has become empty, or is empty no longer: its free neighbours change trees. */
static void gpi_tree_refile_sides(gpi_tree *tree, gpi_run *run) {
    gpi_run *sides[2];
    int i;
    sides[0] = run->prev;
    sides[1] = run->next;
    for (i = 0; i < 2; i++) {
        uint32_t list = sides[i] ? sides[i]->list : (uint32_t)GPI_LIST_TAKEN;
        if (list >= GPI_LIST_WAITING || list == GPI_LIST_EMPTY) continue;
        gpi_tree_unfile(tree, sides[i]);
        gpi_tree_file(tree, sides[i], list);
    }
}

GPI_HOT gpi_run *gpi_tree_new(gpi_tree *tree) {
    gpi_run *run = tree->spare;
    GPI_ASSERT(run != NULL);
    tree->spare = run->list_next;
    tree->spare_count--;
    return run;
}

GPI_HOT void gpi_tree_retire(gpi_tree *tree, gpi_run *run) {
    if (run == tree->cursor) tree->cursor = run->prev;
    run->units = 0; /* tells it from one in use to who walks the pages */
    run->list_next = tree->spare;
    tree->spare = run;
    tree->spare_count++;
}

/* Cuts a taken run in two at `unit`; returns the right part, taken too. Needs one spare struct. */
GPI_HOT gpi_run *gpi_tree_split(gpi_tree *tree, gpi_run *run, uint64_t unit) {
    gpi_run *right;
    GPI_ASSERT(run->list == GPI_LIST_TAKEN && unit > run->unit && unit < run->unit + run->units);
    right = gpi_tree_new(tree);
    right->unit = unit;
    right->units = run->unit + run->units - unit;
    run->units = unit - run->unit;
    right->prev = run;
    right->next = run->next;
    if (run->next) run->next->prev = right;
    run->next = right;
    right->list = GPI_LIST_TAKEN;
    right->of.at = run->of.at;
    gpi_tree_enter(tree, right);
    tree->splits += GPUPOOL_STATS;
    return right;
}

/* Makes two taken neighbours one. The left struct stays (T5). */
GPI_HOT void gpi_tree_weld(gpi_tree *tree, gpi_run *left, gpi_run *right) {
    GPI_ASSERT(right && left->next == right);
    GPI_ASSERT(left->list == GPI_LIST_TAKEN && right->list == GPI_LIST_TAKEN);
    gpi_tree_leave(tree, right);
    left->units += right->units;
    left->next = right->next;
    if (right->next) right->next->prev = left;
    gpi_tree_retire(tree, right);
    tree->merges += GPUPOOL_STATS;
}

/* Whether no border of a list is between two positions. */
GPI_HOT int gpi_tree_is_between(const gpi_list *list, uint64_t a, uint64_t b) {
    const uint64_t *borders = list->borders;
    uint64_t low = a < b ? a : b, high = a < b ? b : a;
    return (low <= borders[0] && borders[0] < high) || (low <= borders[1] && borders[1] < high) ||
           (low <= borders[2] && borders[2] < high);
}

/* Whether a neighbour becomes one with a run at this position in this list: memory that others may
   not have yet joins finished memory only up to a size. */
GPI_HOT int gpi_tree_joins(const gpi_tree *tree, const gpi_run *side, const gpi_run *run,
                           uint32_t number, uint64_t absorb_units) {
    const gpi_list *list = tree->lists[number];
    if (side->list == number) {
        if (gpi_tree_is_between(list, side->of.at, run->of.at) &&
            (side->of.at > list->borders[0] || side->units > absorb_units))
            return 0;
    } else if (side->list != GPI_LIST_ANY || side->units > absorb_units) {
        return 0;
    }
    return gpi_tree_is_slab(tree, side->unit) == gpi_tree_is_slab(tree, run->unit);
}

/* A taken run becomes free in a list, at the position that it has, and one with every neighbour
   that is free for the same users. Finished neighbours of up to absorb_units join a stream's run:
   not larger ones, since other streams could then no longer take them without a wait. */
static gpi_run *gpi_tree_put(gpi_tree *tree, gpi_run *run, uint32_t list, uint64_t absorb_units) {
    gpi_run *side;
    uint64_t at = run->of.at;
    GPI_ASSERT(run->list == GPI_LIST_TAKEN);
    if (list < GPI_LIST_STREAMS) absorb_units = run->of.at = at = 0;
    while ((side = run->prev) != NULL && gpi_tree_joins(tree, side, run, list, absorb_units)) {
        gpi_tree_unfile(tree, side);
        at = gpi_ground_max(at, side->of.at);
        gpi_tree_weld(tree, side, run);
        run = side;
        run->of.at = at;
    }
    while ((side = run->next) != NULL && gpi_tree_joins(tree, side, run, list, absorb_units)) {
        gpi_tree_unfile(tree, side);
        run->of.at = gpi_ground_max(run->of.at, side->of.at);
        gpi_tree_weld(tree, run, side);
    }
    gpi_tree_file(tree, run, list);
    if (list == GPI_LIST_EMPTY) gpi_tree_refile_sides(tree, run);
    return run;
}

/* Takes [unit, unit + units) out of a free run and holds it; what is left at both ends stays free
   where it was. Needs two spare structs. */
GPI_HOT gpi_run *gpi_tree_take(gpi_tree *tree, gpi_run *run, uint64_t unit, uint64_t units) {
    uint32_t list = run->list;
    gpi_run *head = NULL;
    GPI_ASSERT(list < GPI_LIST_WAITING && unit >= run->unit);
    GPI_ASSERT(units > 0 && units <= run->units && unit - run->unit <= run->units - units);
    gpi_tree_unfile(tree, run);
    if (unit > run->unit) {
        head = run;
        run = gpi_tree_split(tree, run, unit);
        gpi_tree_file(tree, head, list);
    }
    if (run->units > units) gpi_tree_file(tree, gpi_tree_split(tree, run, unit + units), list);
    if (list == GPI_LIST_EMPTY) gpi_tree_refile_sides(tree, run);
    return run;
}

/* One more bucket: takes its part of the one whose turn it is to be split. */
static void gpi_tree_split_bucket(gpi_tree *tree) {
    uint64_t fresh = tree->bucket_count;
    uint64_t old = fresh - (1ull << gpi_ground_high_bit(fresh));
    gpi_run *all = *gpi_tree_head(tree, old), *rest, **head;
    tree->bucket_count++;
    if (tree->bucket_count > tree->bucket_mask) tree->bucket_mask = tree->bucket_mask * 2 + 1;
    *gpi_tree_head(tree, old) = NULL; /* the fresh one's is NULL from the start */
    for (; all; all = rest) {
        rest = all->list_next;
        head = gpi_tree_head(tree, gpi_tree_bucket(tree, all->unit));
        all->list_next = *head;
        *head = all;
    }
}

enum { GPI_SLACK_BITS = 24 }; /* a block is rounded up by less than 2^24 bytes */

GPI_HOT uint32_t gpi_tree_slack(const gpi_run *run) { /* of a live one */
    return run->as.slack & ((1u << GPI_SLACK_BITS) - 1);
}

GPI_HOT uint32_t gpi_tree_tag(const gpi_run *run) { return run->as.slack >> GPI_SLACK_BITS; }

/* A taken run becomes live: found by its unit from now on. Needs what prepare made sure of. */
GPI_HOT void gpi_tree_bring_alive(gpi_tree *tree, gpi_run *run, uint32_t slack) {
    gpi_run **head;
    GPI_ASSERT(run->list == GPI_LIST_TAKEN);
    if (tree->live_runs * 2 >= tree->bucket_count) {
        gpi_tree_split_bucket(tree);
        gpi_tree_split_bucket(tree);
    }
    head = gpi_tree_head(tree, gpi_tree_bucket(tree, run->unit));
    run->list = GPI_LIST_LIVE;
    run->of.uses = NULL;
    run->as.slack = slack;
    run->by.stream = 0;
    run->list_next = *head;
    *head = run;
    tree->live_runs++;
    tree->live_units += run->units;
    tree->live_by_order[gpi_ground_high_bit(run->units)] += GPUPOOL_STATS;
}

/* A live run becomes held: forgotten by the index, not free yet. `link` leads to it. */
GPI_HOT void gpi_tree_lay_down_at(gpi_tree *tree, gpi_run **link) {
    gpi_run *run = *link;
    GPI_ASSERT(run && run->list == GPI_LIST_LIVE);
    *link = run->list_next;
    run->list = GPI_LIST_TAKEN;
    tree->live_runs--;
    tree->live_units -= run->units;
    tree->live_by_order[gpi_ground_high_bit(run->units)] -= GPUPOOL_STATS;
}

static void gpi_tree_lay_down(gpi_tree *tree, gpi_run *run) {
    gpi_tree_lay_down_at(tree, gpi_tree_link(tree, run->unit));
}

/* A chunk's units enter the tree, held. The struct returned is the chunk's leftmost for good (T5).
   Needs one spare struct. */
static gpi_run *gpi_tree_add_chunk(gpi_tree *tree, uint64_t unit, uint64_t units) {
    gpi_run *run = gpi_tree_new(tree);
    memset(run, 0, sizeof *run);
    run->unit = unit;
    run->units = units;
    run->list = GPI_LIST_TAKEN;
    gpi_tree_enter(tree, run);
    return run;
}

static void gpi_tree_remove_chunk(gpi_tree *tree, gpi_run *run) {
    GPI_ASSERT(run->list == GPI_LIST_TAKEN && !run->prev && !run->next);
    gpi_tree_retire(tree, run);
}

/* Of a list, what is at or below a position becomes anybody's. */
static void gpi_tree_finish(gpi_tree *tree, uint32_t number, uint64_t at) {
    gpi_list *list = tree->lists[number];
    uint32_t kind, bin;
    gpi_run *run, *next;
    for (kind = 0; kind < GPI_KINDS && list->units; kind++) {
        bin = gpi_tree_first(list, kind);
        for (; bin != GPI_NO_BIN; bin = gpi_tree_next(list, bin + 1)) {
            for (run = list->heads[bin]; run; run = next) {
                next = run->list_next;
                if (run->of.at > at) continue;
                gpi_tree_unfile(tree, run);
                gpi_tree_put(tree, run, GPI_LIST_ANY, 0);
            }
        }
    }
}

/* All of a list is at another position. */
static void gpi_tree_restamp(gpi_tree *tree, uint32_t number, uint64_t at) {
    gpi_list *list = tree->lists[number];
    uint32_t bin;
    gpi_run *run;
    for (bin = 0; list->units && bin < GPI_NO_BIN; bin++)
        for (run = list->heads[bin]; run; run = run->list_next) run->of.at = at;
}

/* -- slabs -- */

/* Where a small block would go among the slabs. */
GPI_HOT gpi_run *gpi_tree_find_in_slabs(const gpi_tree *tree, const gpi_lists *lists,
                                        const gpi_fit *fit) {
    return gpi_tree_find_on(tree, lists, gpi_tree_bin(fit->units) + GPI_SLABS * GPI_KIND_BINS, fit);
}

/* One more slab, of free memory of these free lists. NULL: there is no whole granule. Needs two
   spare structs. */
static gpi_run *gpi_tree_add_slab(gpi_tree *tree, const gpi_lists *lists, uint64_t tries) {
    uint64_t granule_units = (uint64_t)1 << tree->granule_shift, granule, start;
    gpi_fit fit;
    gpi_run *run;
    uint32_t list;
    memset(&fit, 0, sizeof fit);
    fit.units = fit.align_units = granule_units;
    fit.tries = tries;
    run = gpi_tree_find(tree, lists, &fit);
    if (!run) return NULL;
    list = run->list;
    start = gpi_ground_up(run->unit, granule_units);
    run = gpi_tree_take(tree, run, start, granule_units);
    granule = (start - tree->base_unit) >> tree->granule_shift;
    tree->slabs[granule / 64] |= (uint64_t)1 << granule % 64;
    tree->slab_count++;
    return gpi_tree_put(tree, run, list, 0);
}

/* There are no slabs any more: what is free in them joins what is beside it. */
static void gpi_tree_drop_slabs(gpi_tree *tree) {
    uint32_t number, bin;
    gpi_run *runs = NULL, *run;
    if (tree->slab_count == 0) return;
    for (number = 0; number < tree->list_count; number++) {
        gpi_list *list = tree->lists[number];
        while (list && list->orders[GPI_SLABS]) {
            bin = gpi_tree_next(list, GPI_SLABS * GPI_KIND_BINS);
            run = list->heads[bin];
            gpi_tree_unfile(tree, run);
            run->by.stream = number; /* where it goes back to */
            run->list_next = runs;
            runs = run;
        }
    }
    memset(tree->slabs, 0, (tree->granules / 64 + 1) * sizeof *tree->slabs);
    tree->slab_count = 0;
    while ((run = runs) != NULL) {
        runs = run->list_next;
        gpi_tree_put(tree, run, (uint32_t)run->by.stream, 0);
    }
}

/* == CACHE ====================================================================================
   Blocks that one stream has freed, kept whole for its next request of the same size; and blocks
   handed out again from there, which are found here when they come back. All of them are live in
   the tree, which so need not be asked for either. uses: LEDGER, TREE

       free block:  bin of its size -> slot -> slot          handed out:  chain of its unit -> slot

   Where many threads meet at the tree, their streams' caches do without it as far as they can: such
   a cache is crowded. It has more slots, the blocks that the tree hands out get one as well, and a
   block of up to an eighth more than is asked for will do.

   C1  a slot's run is in list CACHED, and leads back here
   C2  a slot is in the list that its state asks for, once
   C3  free_units and free_blocks are those of the bins; used counts all slots but the empty ones
   C4  only a crowded cache has slots from the host */

enum {
    GPI_BINS = 128,
    GPI_SLOTS = 64,
    GPI_SLOTS_MOST = 4096,             /* of a crowded one */
    GPI_NO_SLOT = UINT16_MAX,
    GPI_CACHE_UNITS = 65536 / GPUPOOL_UNIT_BYTES, /* of the largest block */
    GPI_SMALL_UNITS = 65536 / GPUPOOL_UNIT_BYTES, /* a crowded cache is for these */
    GPI_CACHE_WAITS = 256              /* 64 a pause, less one for each lock that is got at once */
};

struct gpi_cache_relies {
    unsigned a_slot_has_a_number : GPI_SLOTS_MOST < GPI_NO_SLOT ? 1 : -1;
    unsigned slots_are_a_power : (GPI_SLOTS & (GPI_SLOTS - 1)) == 0 ? 1 : -1;
};

typedef enum gpi_slot_state { GPI_SLOT_EMPTY, GPI_SLOT_FREE, GPI_SLOT_OUT } gpi_slot_state;

typedef struct gpi_slot {
    gpi_run *run;
    uint64_t unit, units;
    uint32_t slack_bytes;              /* handed out: granted minus requested */
    uint16_t next;
    uint8_t state, bin;
} gpi_slot;

typedef struct gpi_cache {
    gpi_lock lock;
    gpi_slot *slots;
    uint16_t *chains;
    uint32_t room;                     /* slots, and chains */
    uint16_t bins[GPI_BINS], empty;
    uint16_t hand, hand_bin;           /* the slot, or bin, that makes room next */
    int crowded;
    uint32_t waits;                    /* for the arena's lock, of late: see GPI_CACHE_WAITS */
    uint32_t admitted, found;          /* of late: blocks, and requests met */
    uint32_t rest;                     /* so many blocks are not admitted, since few were found */
    uint32_t used;                     /* 0: the arena's lock alone will do */
    uint32_t free_blocks;
    uint64_t free_units, told_units;   /* told: of them the ledger knows */
    uint64_t most_units;               /* that may be free here */
    gpi_change requested, granted, blocks; /* not yet in the ledger */
    uint64_t allocs, frees;
#if GPUPOOL_SITES
    gpi_site *changed;                 /* sites of this stream, with changes not yet folded in */
    gpi_site unknown;                  /* where the host had no memory for another */
#endif
    gpi_slot few_slots[GPI_SLOTS];     /* while it is not crowded */
    uint16_t few_chains[GPI_SLOTS];
} gpi_cache;

static unsigned gpi_cache_bin(uint64_t units) { return gpi_tree_bin(units) % GPI_BINS; }

GPI_HOT uint16_t *gpi_cache_chain(const gpi_cache *cache, uint64_t unit) {
    return &cache->chains[(unit * 0x9e3779b97f4a7c15ull) >> 32 & (cache->room - 1)];
}

/* The list that a slot is in. */
GPI_HOT uint16_t *gpi_cache_list(gpi_cache *cache, const gpi_slot *slot) {
    if (slot->state == GPI_SLOT_FREE) return &cache->bins[slot->bin];
    if (slot->state == GPI_SLOT_OUT) return gpi_cache_chain(cache, slot->unit);
    return &cache->empty;
}

/* How many slots all lists have; one too many if a slot is in two, or a list has no end. */
static uint32_t gpi_cache_listed(const gpi_cache *cache) {
    uint32_t list, listed = 0;
    for (list = 0; list <= GPI_BINS + cache->room; list++) {
        uint32_t at = list < GPI_BINS                 ? cache->bins[list]
                      : list < GPI_BINS + cache->room ? cache->chains[list - GPI_BINS]
                                                      : cache->empty;
        for (; at < cache->room && listed <= cache->room; at = cache->slots[at].next) listed++;
    }
    return listed;
}

static int gpi_cache_check(gpi_cache *cache) {
    uint64_t free_units = 0;
    uint32_t used = 0, free_blocks = 0, i, at;
    if (gpi_cache_listed(cache) != cache->room) return 2;
    for (i = 0; i < cache->room; i++) {
        const gpi_slot *slot = &cache->slots[i];
        for (at = *gpi_cache_list(cache, slot); at != i; at = cache->slots[at].next)
            if (at >= cache->room) return 2;
        if (slot->state == GPI_SLOT_EMPTY) continue;
        if (slot->run->list != GPI_LIST_CACHED || slot->run->of.uses != cache ||
            slot->run->unit != slot->unit ||
            slot->run->units != slot->units || slot->bin != gpi_cache_bin(slot->units))
            return 1;
        used++;
        if (slot->state != GPI_SLOT_FREE) continue;
        free_blocks++;
        free_units += slot->units;
    }
    if (used != cache->used || free_blocks != cache->free_blocks ||
        free_units != cache->free_units)
        return 3;
    return cache->crowded || cache->slots == cache->few_slots ? 0 : 4;
}

/* Empty slots and lists. */
static void gpi_cache_lay_out(gpi_cache *cache, gpi_slot *slots, uint16_t *chains, uint32_t room) {
    uint32_t i;
    cache->slots = slots;
    cache->chains = chains;
    cache->room = room;
    cache->empty = cache->hand = cache->hand_bin = 0;
    for (i = 0; i < GPI_BINS; i++) cache->bins[i] = GPI_NO_SLOT;
    for (i = 0; i < room; i++) {
        chains[i] = GPI_NO_SLOT;
        slots[i].state = GPI_SLOT_EMPTY;
        slots[i].next = i + 1 < room ? (uint16_t)(i + 1) : (uint16_t)GPI_NO_SLOT;
    }
}

static void gpi_cache_open(gpi_cache *cache) {
    memset(cache, 0, sizeof *cache);
    gpi_cache_lay_out(cache, cache->few_slots, cache->few_chains, GPI_SLOTS);
}

static void gpi_cache_close(gpi_cache *cache) { /* whatever is in it */
    if (cache->slots != cache->few_slots) GPUPOOL_FREE(cache->slots);
}

/* Takes a slot out of the list that has it, wherever in it. */
static void gpi_cache_unlink(gpi_cache *cache, gpi_slot *slot) {
    uint16_t *link = gpi_cache_list(cache, slot), at = (uint16_t)(slot - cache->slots);
    while (*link != at) link = &cache->slots[*link].next;
    *link = slot->next;
}

GPI_HOT void gpi_cache_link(gpi_cache *cache, gpi_slot *slot, gpi_slot_state state) {
    uint16_t *list;
    slot->state = (uint8_t)state;
    list = gpi_cache_list(cache, slot);
    slot->next = *list;
    *list = (uint16_t)(slot - cache->slots);
}

/* Four times the slots, none of which is empty, if the host has memory for them. */
static void gpi_cache_widen(gpi_cache *cache) {
    uint32_t few = cache->room, room = few * 4, i;
    gpi_slot *old = cache->slots;
    gpi_slot *slots = (gpi_slot *)gpi_host_zeroed(room * (sizeof *slots + sizeof(uint16_t)));
    if (!slots) return;
    gpi_cache_lay_out(cache, slots, (uint16_t *)(void *)(slots + room), room);
    for (i = 0; i < few; i++) {
        gpi_slot *slot = &slots[cache->empty];
        cache->empty = slot->next;
        *slot = old[i];
        gpi_cache_link(cache, slot, (gpi_slot_state)old[i].state);
    }
    if (old != cache->few_slots) GPUPOOL_FREE(old);
}

/* What it has from the host beside itself. */
static uint64_t gpi_cache_host_bytes(const gpi_cache *cache) {
    if (cache->slots == cache->few_slots) return 0;
    return cache->room * (sizeof *cache->slots + sizeof *cache->chains);
}

/* An empty cache is crowded no longer. */
static void gpi_cache_narrow(gpi_cache *cache) {
    gpi_slot *old = cache->slots;
    GPI_ASSERT(cache->used == 0);
    cache->crowded = 0;
    cache->waits = 0;
    if (old == cache->few_slots) return;
    gpi_cache_lay_out(cache, cache->few_slots, cache->few_chains, GPI_SLOTS);
    GPUPOOL_FREE(old);
}

#if GPUPOOL_SITES
static void gpi_cache_note_site(gpi_cache *cache, gpi_site *site) {
    if (site->is_changed) return;
    site->is_changed = 1;
    site->changed = cache->changed;
    cache->changed = site;
}

/* The block that was just taken is this site's. */
static void gpi_cache_sign(gpi_cache *cache, gpi_slot *slot, gpi_site *site) {
    slot->run->site = site;
    gpi_cache_note_site(cache, site);
    gpi_ledger_note(&site->cached, slot->units * GPUPOOL_UNIT_BYTES - slot->slack_bytes);
    site->cached_blocks++;
    site->cached_allocs++;
}

static void gpi_cache_unsign(gpi_cache *cache, gpi_slot *slot) {
    gpi_site *site = slot->run->site;
    gpi_cache_note_site(cache, site);
    site->cached.now -= (int64_t)(slot->units * GPUPOOL_UNIT_BYTES - slot->slack_bytes);
    site->cached_blocks--;
}
#endif

/* What leads to the first slot of a bin that has at least units and at most the most; to none. */
GPI_HOT uint16_t *gpi_cache_fit(gpi_cache *cache, unsigned bin, uint64_t units, uint64_t most) {
    uint16_t *link = &cache->bins[bin];
    while (*link != GPI_NO_SLOT && cache->slots[*link].units - units > most - units)
        link = &cache->slots[*link].next;
    return link;
}

/* A free block of just this size, or nearly so, is handed out. NULL: there is none. */
GPI_HOT gpi_slot *gpi_cache_take(gpi_cache *cache, uint64_t units, uint64_t bytes) {
    uint64_t most = cache->crowded ? units + units / 8 : units;
    unsigned bin = gpi_cache_bin(units);
    uint16_t *link = gpi_cache_fit(cache, bin, units, most);
    gpi_slot *slot;
    while (*link == GPI_NO_SLOT && bin != gpi_cache_bin(most)) {
        bin = (bin + 1) % GPI_BINS;
        link = gpi_cache_fit(cache, bin, units, most);
    }
    if (*link == GPI_NO_SLOT) return NULL;
    slot = &cache->slots[*link];
    *link = slot->next;
    gpi_cache_link(cache, slot, GPI_SLOT_OUT);
    slot->slack_bytes = (uint32_t)(slot->units * GPUPOOL_UNIT_BYTES - bytes);
    cache->free_units -= slot->units;
    cache->free_blocks--;
    cache->found++;
    gpi_ledger_note(&cache->granted, slot->units * GPUPOOL_UNIT_BYTES);
    cache->allocs++;
#if GPUPOOL_STATS
    gpi_ledger_note(&cache->requested, bytes);
    gpi_ledger_note(&cache->blocks, 1);
#endif
    return slot;
}

/* A block that was handed out here comes back. NULL: it was not, or is back already. */
GPI_HOT gpi_slot *gpi_cache_give(gpi_cache *cache, uint64_t unit) {
    uint16_t *link = gpi_cache_chain(cache, unit);
    gpi_slot *slot;
    while (*link != GPI_NO_SLOT && cache->slots[*link].unit != unit)
        link = &cache->slots[*link].next;
    if (*link == GPI_NO_SLOT) return NULL;
    slot = &cache->slots[*link];
    *link = slot->next;
    gpi_cache_link(cache, slot, GPI_SLOT_FREE);
    cache->free_units += slot->units;
    cache->free_blocks++;
    cache->granted.now -= (int64_t)(slot->units * GPUPOOL_UNIT_BYTES);
    cache->frees++;
#if GPUPOOL_STATS
    cache->requested.now -= (int64_t)(slot->units * GPUPOOL_UNIT_BYTES - slot->slack_bytes);
    cache->blocks.now--;
#endif
#if GPUPOOL_SITES
    gpi_cache_unsign(cache, slot);
#endif
    return slot;
}

/* Whether a block should join the cache. Where sizes rarely come again soon, it would only keep
   memory from merging: then it takes a rest. */
static int gpi_cache_is_open(gpi_cache *cache) {
    if (cache->crowded) return 1;
    if (cache->rest) {
        cache->rest--;
        return 0;
    }
    if (++cache->admitted == 64) {
        if (cache->found < 32) cache->rest = 1024;
        cache->admitted = cache->found = 0;
    }
    return 1;
}

/* A live block joins the cache, which has an empty slot: one that its stream has freed, or one that
   is handed out just now. */
static void gpi_cache_admit(gpi_cache *cache, gpi_run *run, gpi_slot_state state) {
    gpi_slot *slot = &cache->slots[cache->empty];
    GPI_ASSERT(GPI_READ(&cache->lock.held));
    GPI_ASSERT(cache->empty != GPI_NO_SLOT && run->list == GPI_LIST_LIVE && !run->of.uses);
    cache->empty = slot->next;
    slot->run = run;
    slot->unit = run->unit;
    slot->units = run->units;
    slot->bin = (uint8_t)gpi_cache_bin(run->units);
    slot->slack_bytes = run->as.slack; /* without a tag */
    run->list = GPI_LIST_CACHED;
    run->of.uses = cache;
    gpi_cache_link(cache, slot, state);
    GPI_PUBLISH(&cache->used, cache->used + 1);
    if (state == GPI_SLOT_OUT) return;
    cache->free_blocks++;
    cache->free_units += slot->units;
}

/* A slot leaves the cache: a block that is out becomes like any other; a free one is returned,
   live, for the caller to free in the tree. */
static gpi_run *gpi_cache_drop(gpi_cache *cache, gpi_slot *slot) {
    int was_free = slot->state == GPI_SLOT_FREE;
    gpi_run *run = slot->run;
    run->list = GPI_LIST_LIVE;
    run->as.slack = was_free ? 0 : slot->slack_bytes;
    run->of.uses = NULL;
    gpi_cache_unlink(cache, slot);
    gpi_cache_link(cache, slot, GPI_SLOT_EMPTY);
    GPI_PUBLISH(&cache->used, cache->used - 1);
    if (!was_free) return NULL;
    cache->free_blocks--;
    cache->free_units -= slot->units;
    return run;
}

/* The slot whose turn it is makes room: of blocks that are out while these are more than a quarter,
   since many of them never come back here. */
static gpi_run *gpi_cache_evict(gpi_cache *cache) {
    int out = cache->used - cache->free_blocks > cache->room / 4;
    gpi_slot *slot;
    do {
        slot = &cache->slots[cache->hand];
        cache->hand = (uint16_t)((cache->hand + 1u) % cache->room);
    } while (slot->state == GPI_SLOT_EMPTY || (out && slot->state == GPI_SLOT_FREE));
    return gpi_cache_drop(cache, slot);
}

/* The same where memory is wanted, and there is a free block: of a bin that has several, if one
   has. */
static gpi_run *gpi_cache_evict_free(gpi_cache *cache) {
    uint32_t looked = 0;
    uint16_t at;
    do {
        cache->hand_bin = (uint16_t)((cache->hand_bin + 1u) % GPI_BINS);
        at = cache->bins[cache->hand_bin];
    } while (at == GPI_NO_SLOT ||
             (looked++ < GPI_BINS && cache->slots[at].next == GPI_NO_SLOT));
    return gpi_cache_drop(cache, &cache->slots[at]);
}

typedef struct gpi_cached { /* blocks that are free in caches */
    uint64_t blocks, by_order[64];
} gpi_cached;

static void gpi_cache_count(const gpi_cache *cache, gpi_cached *cached) {
    uint32_t left = cache->free_blocks, i;
    for (i = 0; i < cache->room && left; i++) {
        if (cache->slots[i].state != GPI_SLOT_FREE) continue;
        cached->by_order[gpi_ground_high_bit(cache->slots[i].units)]++;
        cached->blocks++;
        left--;
    }
}

/* The slot of a block; NULL: another cache has it, or none. */
static gpi_slot *gpi_cache_slot(const gpi_cache *cache, uint64_t unit) {
    uint32_t i = *gpi_cache_chain(cache, unit);
    while (i != GPI_NO_SLOT && cache->slots[i].unit != unit) i = cache->slots[i].next;
    return i == GPI_NO_SLOT ? NULL : &cache->slots[i];
}

/* Whether a block is handed out from here. */
static int gpi_cache_is_out(const gpi_cache *cache, uint64_t unit) {
    return gpi_cache_slot(cache, unit) != NULL;
}

/* A block that is handed out from here is looked after by the tree alone from now on. */
static void gpi_cache_release(gpi_cache *cache, uint64_t unit) {
    gpi_slot *slot = gpi_cache_slot(cache, unit);
    if (slot) gpi_cache_drop(cache, slot);
}

/* What was asked for with a block that is handed out from here; 0 for one that is free here. */
static uint64_t gpi_cache_asked_at(const gpi_cache *cache, uint64_t unit) {
    const gpi_slot *slot = gpi_cache_slot(cache, unit);
    return slot ? slot->units * GPUPOOL_UNIT_BYTES - slot->slack_bytes : 0;
}

/* The same of the block around a unit, at any place in it. */
static uint64_t gpi_cache_asked_around(const gpi_cache *cache, uint64_t unit) {
    uint64_t asked = gpi_cache_asked_at(cache, unit);
    uint32_t i;
    for (i = 0; i < cache->room && !asked; i++)
        if (cache->slots[i].state == GPI_SLOT_OUT &&
            unit - cache->slots[i].unit < cache->slots[i].units)
            asked = gpi_cache_asked_at(cache, cache->slots[i].unit);
    return asked;
}

/* Whether the ledger does not know all of it. */
static int gpi_cache_has_news(const gpi_cache *cache) {
    return cache->free_units != cache->told_units || cache->allocs + cache->frees != 0;
}

/* What the cache has done since goes to the ledger. */
static void gpi_cache_fold(gpi_cache *cache, gpi_ledger *ledger) {
    ledger->cached_bytes += (cache->free_units - cache->told_units) * GPUPOOL_UNIT_BYTES;
    cache->told_units = cache->free_units;
    if (cache->allocs + cache->frees == 0) return;
    gpi_ledger_fold(&ledger->requested, &cache->requested);
    gpi_ledger_fold(&ledger->granted, &cache->granted);
    gpi_ledger_fold(&ledger->blocks, &cache->blocks);
    ledger->allocs += cache->allocs * GPUPOOL_STATS;
    ledger->frees += cache->frees * GPUPOOL_STATS;
    ledger->same_stream_allocs += cache->allocs * GPUPOOL_STATS;
    cache->allocs = cache->frees = 0;
#if GPUPOOL_SITES
    for (; cache->changed; cache->changed = cache->changed->changed)
        gpi_ledger_fold_site(cache->changed);
#endif
}

/* == CLOCK ====================================================================================
   Streams, how far each has come, and who must wait for whom. uses: HOST, DRIVER, TREE, CACHE

   Every free, and every use that is recorded, has a position: one more than the latest one of the
   arena. A stream's clock tells how far the stream has come:

       passed        work that was queued before frees up to this position is known to be done
       two marks     events, and the positions up to which frees lie behind them
       issued        the latest position of this stream

   The stream itself takes its free memory at any position, since its later work comes after
   anyway. Other streams take what has passed; or what lies behind a mark, once they have been made
   to wait for its event on the device.

   A mark is recorded only by a call that names the stream, by its own thread, with no lock held: a
   handle kept for later may be destroyed, be another thread's, or capture by then. Of two marks
   that have not passed the older stays until it has: so others get to know how far a stream has
   come that goes on freeing. The newer may be put further, which makes those who will wait for it
   wait for work that was queued before they asked, too; but not while a thread waits for it.

   Clocks that no call advances belong to destroyed streams, to threads that ended, and to streams
   that nobody uses just now. The stream ALL advances them: gpupool_cudaFree frees on it, its events
   are of the whole context (cuCtxRecordEvent), and a wait for the device advances it too. What has
   passed there has passed on every stream, but for graphs: their clocks pass at the release.

   CUDA gives a new stream the handle of a destroyed one at once, even while the old one's work
   still runs. So what the old one freed is taken from the handle when it is destroyed: the macro
   cudaStreamDestroy and gpupool_retire_stream see to that. Where neither can be, with
   GPUPOOL_STREAM_CHECK, a stream is asked for its id, which is never used twice.

   K1  passed and the marks are at most issued, and that at most the arena's latest position
   K2  a list of a stream belongs to one stream; its runs are at positions from 1 to issued
   K3  a stream's struct is kept while uses, idle stitches or runs refer to it: refs counts them
   K4  a stream is in the bucket of its handle, and no two have the same key
   K5  a stream with free memory or with a mark that has not passed is in the queue of busy ones
   Locks: a stream's lock is its cache's, and is taken before the arena's. The cache changes under
   it (and under both where the tree is concerned), all else under the arena's. */

enum {
    GPI_MARKS = 2,
    GPI_BUCKET_BITS = 12,
    GPI_BUCKETS = 1 << GPI_BUCKET_BITS, /* of streams */
    GPI_KEY_LEGACY = 1,
    GPI_KEY_ANY = 5         /* of the stream ALL */
};

typedef struct gpi_mark {
    CUevent event;          /* NULL: not made yet */
    uint64_t at;            /* what was freed up to here lies behind it */
    int pins;               /* threads that ask after it or wait for it: it stays as it is */
} gpi_mark;

typedef struct gpi_clock {
    uint64_t issued, passed;
    gpi_mark marks[GPI_MARKS];
    int is_recording;       /* by a thread, just now */
    int knows_context;
    CUcontext context;      /* of its events, where it is not the arena's */
    unsigned long long context_id; /* for a later context may be at the same address */
} gpi_clock;

typedef struct gpi_stream {
    struct gpi_stream *next;  /* all that there ever were: none is freed before the arena is */
    struct gpi_stream *chain; /* of the same bucket */
    struct gpi_stream *busy_next;
    int is_busy;
    int is_capturing;         /* when last asked, and in no scope */
    int is_kept;              /* though empty: a scope's stream has the key meanwhile */
    uintptr_t key;            /* of the handle, while calls with it come here; 0: none do */
    uintptr_t handle;         /* what the key is, or was; 0: the struct is empty */
    uint64_t identity;        /* CUDA's id; 0: not asked for. See GPI_PUBLISH, as to capture */
    struct gpupool_capture *capture; /* what it holds is a graph's, until the release */
    gpi_cache cache;
    gpi_clock clock;
    uint32_t list;
    uint32_t frees;           /* into the list since the newest mark */
    uint32_t misses, skips;   /* see gpi_clock_record_in_passing */
    uint64_t freed_units;
    uint64_t settled;         /* what is up to here was made anybody's */
    uint64_t refs;
    uint64_t visit;           /* the latest stitch whose stream was made to wait for this one */
    uint64_t seen, seen_in;   /* how far it had come in a look, and in which */
} gpi_stream;

typedef struct gpi_use {      /* of a block by work of a stream, up to a position */
    struct gpi_use *next;
    gpi_stream *stream;
    uint64_t at;
} gpi_use;

typedef struct gpi_clocks {
    const gpi_driver *driver;
    gpi_lock *lock;           /* the arena's */
    gpi_tree *tree;
    gpi_stream *streams;
    gpi_stream *buckets[GPI_BUCKETS];
    gpi_stream *busy, *busy_last;
    gpi_stream *all;
    gpi_mutex waits;          /* one thread at a time waits for the device */
    uint64_t stream_count;    /* those that are not empty, without ALL */
    uint64_t thread_streams;  /* of these, threads' own */
    uint64_t position;        /* the latest */
    uint64_t advances;        /* how often a clock has passed something */
    uint64_t capturing;       /* streams that are */
    int has_captured;         /* a stream or a scope has: requests record nothing on ALL (rule 3) */
    uint64_t uses;            /* structs */
    uint64_t loose_uses;      /* of these, those that requests on their way keep for their blocks */
    uint64_t visits;          /* of streams, for stitches of several streams' memory */
    uint64_t device_waits, host_waits;
    CUevent look_event;       /* over all streams, for those who only look */
    int is_all_seen;          /* in the latest look: all streams are done with everything */
    uint64_t looks, seen;     /* looks so far; in the latest, what has passed on all streams */
} gpi_clocks;

/* -- how far a stream has come -- */

/* The work before frees up to this position is known to be done. */
static uint64_t gpi_clock_done(const gpi_clocks *clocks, const gpi_stream *stream) {
    uint64_t passed = stream->clock.passed;
    return stream->capture ? passed : gpi_ground_max(passed, clocks->all->clock.passed);
}

/* Whether a run is free, and all work at it done. */
static int gpi_clock_is_finished(const gpi_clocks *clocks, const gpi_run *run) {
    const gpi_stream *owner;
    if (run->list < GPI_LIST_STREAMS || run->list >= GPI_LIST_WAITING)
        return gpi_tree_is_finished(run);
    owner = (const gpi_stream *)clocks->tree->lists[run->list]->owner;
    return run->of.at <= gpi_clock_done(clocks, owner);
}

/* The same as somebody has seen who only looks, and passes nothing. */
static uint64_t gpi_clock_seen(const gpi_clocks *clocks, const gpi_stream *stream) {
    uint64_t at = gpi_clock_done(clocks, stream);
    if (stream->seen_in == clocks->looks) at = gpi_ground_max(at, stream->seen);
    return stream->capture ? at : gpi_ground_max(at, clocks->seen);
}

/* Whether a run is free, and all work at it was seen to be done. */
static int gpi_clock_is_seen_finished(const gpi_clocks *clocks, const gpi_run *run) {
    if (run->list < GPI_LIST_STREAMS || run->list >= GPI_LIST_WAITING)
        return gpi_tree_is_finished(run);
    return run->of.at <= gpi_clock_seen(clocks,
                                        (gpi_stream *)clocks->tree->lists[run->list]->owner);
}

/* Frees up to this position are done, or behind a mark. */
static uint64_t gpi_clock_recorded(const gpi_clocks *clocks, const gpi_stream *stream) {
    uint64_t at = gpi_clock_done(clocks, stream);
    int i;
    for (i = 0; i < GPI_MARKS; i++) {
        at = gpi_ground_max(at, stream->clock.marks[i].at);
        if (!stream->capture) at = gpi_ground_max(at, clocks->all->clock.marks[i].at);
    }
    return at;
}

/* Whether it has frees that are neither. */
static int gpi_clock_lacks(const gpi_clocks *clocks, const gpi_stream *stream) {
    uint64_t issued = stream == clocks->all ? clocks->position : stream->clock.issued;
    return issued > gpi_clock_recorded(clocks, stream);
}

/* The first mark that a position lies behind, of those that have not passed; NULL: none. */
static gpi_mark *gpi_clock_mark(const gpi_clocks *clocks, gpi_stream *stream, uint64_t at) {
    uint64_t done = gpi_clock_done(clocks, stream);
    gpi_mark *first = NULL;
    int i;
    for (i = 0; i < GPI_MARKS; i++) {
        gpi_mark *mark = &stream->clock.marks[i];
        if (mark->at > done && mark->at >= at && (!first || mark->at < first->at)) first = mark;
    }
    return first;
}

/* One to spare: it was not recorded yet, or has passed. */
static gpi_mark *gpi_clock_spare(const gpi_clocks *clocks, gpi_stream *stream) {
    uint64_t done = gpi_clock_done(clocks, stream);
    int i;
    for (i = 0; i < GPI_MARKS; i++)
        if (stream->clock.marks[i].at <= done && !stream->clock.marks[i].pins)
            return &stream->clock.marks[i];
    return NULL;
}

static int gpi_clock_is_busy(const gpi_clocks *clocks, gpi_stream *stream) {
    return stream->handle && (clocks->tree->lists[stream->list]->units ||
                              gpi_clock_mark(clocks, stream, 0) != NULL);
}

static void gpi_clock_queue_up(gpi_clocks *clocks, gpi_stream *stream) {
    stream->is_busy = 1;
    stream->busy_next = NULL;
    if (clocks->busy) clocks->busy_last->busy_next = stream;
    else clocks->busy = stream;
    clocks->busy_last = stream;
}

GPI_HOT void gpi_clock_queue(gpi_clocks *clocks, gpi_stream *stream) {
    if (!stream->is_busy) gpi_clock_queue_up(clocks, stream);
}

/* Up to so many busy streams, the one that was not looked at for longest first; and those that have
   ended, which may be forgotten. */
static int gpi_clock_next_busy(gpi_clocks *clocks, gpi_stream **list, int most) {
    int count = 0;
    while (clocks->busy && count < most) {
        gpi_stream *stream = clocks->busy;
        if (count && stream == list[0]) break; /* all were looked at */
        clocks->busy = stream->busy_next;
        stream->is_busy = 0;
        if (!stream->handle || (stream->key && !gpi_clock_is_busy(clocks, stream))) continue;
        gpi_clock_queue(clocks, stream);
        list[count++] = stream;
    }
    return count;
}

/* Where the list's runs do not join: see gpi_tree_joins. */
static void gpi_clock_set_borders(const gpi_clocks *clocks, const gpi_stream *stream) {
    uint64_t *borders = clocks->tree->lists[stream->list]->borders;
    borders[0] = gpi_clock_done(clocks, stream);
    borders[1] = stream->clock.marks[0].at;
    borders[2] = stream->clock.marks[1].at;
}

/* The stream has come so far. */
static void gpi_clock_pass(gpi_clocks *clocks, gpi_stream *stream, uint64_t at) {
    if (at <= stream->clock.passed) return;
    stream->clock.passed = at;
    clocks->advances++;
    gpi_clock_set_borders(clocks, stream);
}

/* What of its free memory is known to be finished with becomes anybody's. */
static void gpi_clock_settle(gpi_clocks *clocks, gpi_stream *stream) {
    uint64_t done = gpi_clock_done(clocks, stream);
    if (!stream->handle || stream->settled >= done) return;
    stream->settled = done;
    gpi_clock_set_borders(clocks, stream);
    gpi_tree_finish(clocks->tree, stream->list, done);
}

/* The next position, for a free or a use of this stream. */
GPI_HOT uint64_t gpi_clock_issue(gpi_clocks *clocks, gpi_stream *stream) {
    return stream->clock.issued = ++clocks->position;
}

/* -- runs that are taken from a stream, and may come back -- */

/* The stream that a free run is of, which is kept until the run comes back; NULL: anybody's. */
static gpi_stream *gpi_clock_borrow(const gpi_tree *tree, const gpi_run *run) {
    gpi_stream *owner = (gpi_stream *)tree->lists[run->list]->owner;
    if (owner) owner->refs++;
    return owner;
}

/* A taken run is its owner's again, at its old position. */
static void gpi_clock_return(gpi_clocks *clocks, gpi_run *run, gpi_stream *owner, uint64_t at) {
    if (owner) owner->refs--;
    run->of.at = at;
    if (!owner || at <= gpi_clock_done(clocks, owner)) {
        gpi_tree_put(clocks->tree, run, GPI_LIST_ANY, 0);
        return;
    }
    gpi_tree_put(clocks->tree, run, owner->list, 0);
    gpi_clock_queue(clocks, owner);
}

/* A thread's own stream, which ends unsaid with the thread. */
static int gpi_clock_is_of_thread(const gpi_stream *stream) { return (stream->handle & 3) == 3; }

/* -- keys and handles -- */

static size_t gpi_clock_bucket(uintptr_t key) {
    uint64_t hash = (uint64_t)key * 0x9e3779b97f4a7c15ull;
    return (size_t)(hash >> (64 - GPI_BUCKET_BITS));
}

/* Handles are addresses, so even; the default streams take odd keys, one for each thread if they
   are per thread. Thread numbers are never used twice, unlike handles. */
static uintptr_t gpi_clock_key(cudaStream_t stream) {
    if (stream == cudaStreamPerThread) return (uintptr_t)gpi_host_thread_number() << 2 | 3;
    if (stream == NULL || stream == cudaStreamLegacy) return GPI_KEY_LEGACY;
    return (uintptr_t)stream;
}

/* What tells a stream from any other, ever; 0 of a default stream, and where it is not asked
   for. */
static CUresult gpi_clock_identity(const gpi_driver *driver, cudaStream_t stream,
                                   uint64_t *identity) {
    *identity = 0;
    if (!GPUPOOL_STREAM_CHECK || stream == cudaStreamLegacy || stream == cudaStreamPerThread)
        return CUDA_SUCCESS;
    return gpi_driver_stream_id(driver, stream, identity);
}

/* Calls with this key go to this stream. Needs no lock: see GPI_PUBLISH. NULL: to none yet. */
GPI_HOT gpi_stream *gpi_clock_find(gpi_clocks *clocks, uintptr_t key) {
    gpi_stream *stream = GPI_READ(&clocks->buckets[gpi_clock_bucket(key)]);
    while (stream && GPI_READ(&stream->key) != key) stream = GPI_READ(&stream->chain);
    return stream;
}

/* The same with its lock held. */
static gpi_stream *gpi_clock_enter(gpi_clocks *clocks, uintptr_t key) {
    gpi_stream *stream;
    while ((stream = gpi_clock_find(clocks, key)) != NULL) {
        gpi_host_lock(&stream->cache.lock);
        if (GPI_READ(&stream->key) == key) return stream;
        gpi_host_unlock(&stream->cache.lock); /* renamed meanwhile */
    }
    return NULL;
}

/* Whether the handle in this call is the stream's that has its key, and not one made since, as far
   as CUDA can tell: where it fails to, this is not known to be the same. Without a lock the struct
   may be another's by now: the caller looks at its key again. */
static int gpi_clock_is_same(const gpi_clocks *clocks, const gpi_stream *owner,
                             cudaStream_t stream) {
    uint64_t identity;
    if (!GPUPOOL_STREAM_CHECK || GPI_READ(&owner->capture)) return 1;
    if (gpi_clock_identity(clocks->driver, stream, &identity) != CUDA_SUCCESS) return 0;
    return identity == 0 || identity == GPI_READ(&owner->identity);
}

/* A struct for a key that none has: an empty one, or a new one. NULL: the host has no memory. */
static gpi_stream *gpi_clock_struct(gpi_clocks *clocks, uintptr_t key) {
    gpi_stream **bucket = &clocks->buckets[gpi_clock_bucket(key)], *stream;
    for (stream = *bucket; stream; stream = stream->chain)
        if (stream->handle == 0) return stream;
    stream = (gpi_stream *)gpi_host_zeroed(sizeof *stream);
    if (!stream) return NULL;
    gpi_cache_open(&stream->cache);
    stream->next = clocks->streams;
    stream->chain = *bucket;
    GPI_PUBLISH(&clocks->streams, stream);
    GPI_PUBLISH(bucket, stream);
    return stream;
}

/* Makes a stream known, but to no call before it is named; the arena's lock is held. NULL: the host
   has no memory. */
static gpi_stream *gpi_clock_know(gpi_clocks *clocks, uintptr_t key, uint64_t identity) {
    gpi_stream *stream = gpi_clock_struct(clocks, key);
    uint32_t list = stream ? gpi_tree_list_add(clocks->tree) : (uint32_t)GPI_LIST_LIVE;
    if (list == GPI_LIST_LIVE) return NULL;
    clocks->tree->lists[list]->owner = stream;
    stream->list = list;
    stream->handle = key;
    stream->frees = stream->misses = stream->skips = 0;
    stream->freed_units = stream->settled = 0;
    stream->clock.knows_context = 0;
    GPI_PUBLISH(&stream->identity, identity);
    GPI_PUBLISH(&stream->capture, NULL);
    /* whoever had the struct before is done, and so are the marks */
    if (clocks->all) stream->clock.passed = gpi_clock_recorded(clocks, stream);
    stream->clock.issued = gpi_ground_max(stream->clock.issued, stream->clock.passed);
    clocks->stream_count++;
    clocks->thread_streams += (uint64_t)gpi_clock_is_of_thread(stream);
    return stream;
}

/* Calls with its handle come here from now on, or again. */
static void gpi_clock_name(gpi_clocks *clocks, gpi_stream *stream) {
    gpi_stream **bucket = &clocks->buckets[gpi_clock_bucket(stream->handle)];
    gpi_stream **link = bucket;
    while (*link != stream) link = &(*link)->chain;
    if (link != bucket) { /* to the front: a stream has as many structs as graphs. Who looks for it
                             just now without the lock looks twice, or in vain: then with it */
        GPI_PUBLISH(link, stream->chain);
        GPI_PUBLISH(&stream->chain, *bucket);
        GPI_PUBLISH(bucket, stream);
    }
    stream->is_kept = 0;
    GPI_PUBLISH(&stream->key, stream->handle);
}

static void gpi_clock_set_capturing(gpi_clocks *clocks, gpi_stream *stream, int is_capturing) {
    if (stream->capture) is_capturing = 0; /* counted as a scope of the process */
    clocks->capturing += (uint64_t)is_capturing - (uint64_t)stream->is_capturing;
    clocks->has_captured |= is_capturing;
    stream->is_capturing = is_capturing;
}

/* Calls with its key no longer come here. What it holds stays until its clock lets others have
   it. */
static void gpi_clock_unname(gpi_clocks *clocks, gpi_stream *stream) {
    GPI_PUBLISH(&stream->key, 0);
    gpi_clock_set_capturing(clocks, stream, 0);
}

static int gpi_clock_is_empty(const gpi_clocks *clocks, gpi_stream *stream) {
    if (stream->handle == 0 || stream == clocks->all || stream->cache.used) return 0;
    if (stream->capture || stream->is_kept || stream->refs || stream->is_capturing) return 0;
    return !stream->clock.is_recording && !gpi_clock_is_busy(clocks, stream);
}

/* A stream of which nothing is left is forgotten, and known anew with its next call. The arena's
   lock is held; where the stream's is not free, a call with the stream is under way. */
static void gpi_clock_forget(gpi_clocks *clocks, gpi_stream *stream) {
    if (!gpi_clock_is_empty(clocks, stream) || !gpi_host_try(&stream->cache.lock)) return;
    gpi_clock_unname(clocks, stream);
    gpi_tree_list_drop(clocks->tree, stream->list);
    gpi_cache_narrow(&stream->cache);
    clocks->stream_count--;
    clocks->thread_streams -= (uint64_t)gpi_clock_is_of_thread(stream);
    stream->handle = 0;
    gpi_host_unlock(&stream->cache.lock);
}

enum { GPI_THREADS_KEPT = 64 };

/* The same for streams that nobody calls with any more: those that were said to end, and where
   there are many streams, those of threads, which may have ended unsaid. */
static void gpi_clock_forget_gone(gpi_clocks *clocks, gpi_stream *stream) {
    if (!stream->key ||
        (gpi_clock_is_of_thread(stream) && clocks->stream_count > GPI_THREADS_KEPT))
        gpi_clock_forget(clocks, stream);
}

/* -- events: no lock is held -- */

/* Whether the context of the stream's events is gone, with all the work, and the events, which must
   not be touched. */
static gpupool_result gpi_clock_has_ended(const gpi_clocks *clocks, const gpi_stream *stream,
                                          int *ended) {
    const gpi_clock *clock = &stream->clock;
    if (!clock->context) return gpi_driver_was_reset(clocks->driver, ended);
    return gpi_driver_has_ended(clocks->driver, clock->context, clock->context_id, ended);
}

/* Whether the work before a mark has ended with a peer's context. E_CUDA: the arena's own device
   was reset, and no memory of it is of use. */
static gpupool_result gpi_clock_mark_has_ended(const gpi_clocks *clocks, const gpi_stream *stream,
                                               const gpi_mark *mark, int *ended) {
    gpupool_result result;
    *ended = mark->event == NULL; /* the context is known to be gone: gpi_clock_know_context */
    if (*ended) return GPUPOOL_OK;
    result = gpi_clock_has_ended(clocks, stream, ended);
    return result == GPUPOOL_OK && *ended && !stream->clock.context ? GPUPOOL_E_CUDA : result;
}

static gpupool_result gpi_clock_drop_events(const gpi_clocks *clocks, gpi_stream *stream) {
    int ended, i;
    gpupool_result result = gpi_clock_has_ended(clocks, stream, &ended);
    for (i = 0; i < GPI_MARKS && result == GPUPOOL_OK; i++) {
        gpi_mark *mark = &stream->clock.marks[i];
        if (mark->event && !ended) result = gpi_driver_event_drop(clocks->driver, mark->event);
        if (result == GPUPOOL_OK) mark->event = NULL;
    }
    return result;
}

/* An event must be of the stream's own context: which that is, is asked for once, and again where
   it is another device's that was reset. The events go with it: see gpi_clock_mark_has_ended. */
static gpupool_result gpi_clock_know_context(const gpi_clocks *clocks, gpi_stream *stream,
                                             cudaStream_t handle) {
    gpi_clock *clock = &stream->clock;
    CUcontext context = NULL;
    unsigned long long id = 0;
    gpupool_result result = GPUPOOL_OK;
    int ended = 0;
    if (clock->knows_context && clock->context)
        result = gpi_clock_has_ended(clocks, stream, &ended);
    if (result != GPUPOOL_OK || (clock->knows_context && !ended)) return result;
    if (stream != clocks->all)
        result = gpi_driver_told(clocks->driver, "cuStreamGetCtx",
                                 gpi_driver_ask_foreign(clocks->driver, handle, &context));
    if (result == GPUPOOL_OK && context) result = gpi_driver_ask_id(clocks->driver, context, &id);
    if (result == GPUPOOL_OK && (context != clock->context || id != clock->context_id))
        result = gpi_clock_drop_events(clocks, stream);
    if (result != GPUPOOL_OK) return result;
    clock->context = context;
    clock->context_id = id;
    clock->knows_context = 1;
    return GPUPOOL_OK;
}

/* An event over all streams of the context, the destroyed ones included; there is none over several
   devices. While any of them captures it would be refused and the capture lost. The legacy stream
   tells of captures on blocking streams, and asking it is harmless; of one on a non-blocking stream
   only a scope tells, or a call that was given it (seen on CUDA 13.0). */
static gpupool_result gpi_clock_record_context(const gpi_clocks *clocks, CUevent event) {
    const gpi_driver *driver = clocks->driver;
    gpupool_result result = GPUPOOL_OK;
    gpi_host_lock(&gpi_process.lock); /* no scope is opened meanwhile */
    if (gpi_process.scopes || gpi_driver_is_capturing(driver, cudaStreamLegacy))
        result = GPUPOOL_E_CAPTURING;
    if (result == GPUPOOL_OK) result = gpi_driver_record_all(driver, event);
    gpi_host_unlock(&gpi_process.lock);
    return result;
}

/* A context to make current: a new event's, and the arena's for its default streams. */
static CUcontext gpi_clock_context(const gpi_clocks *clocks, const gpi_stream *stream,
                                   cudaStream_t handle, CUevent event) {
    if (event && !gpi_driver_is_default(handle)) return NULL;
    return stream->clock.context ? stream->clock.context : clocks->driver->context;
}

static gpupool_result gpi_clock_record_here(const gpi_clocks *clocks, gpi_stream *stream,
                                            CUevent *event, cudaStream_t handle) {
    const gpi_driver *driver = clocks->driver;
    gpupool_result result = GPUPOOL_OK;
    if (!*event) result = gpi_driver_event_new(driver, event);
    if (result != GPUPOOL_OK) return result;
    if (stream == clocks->all) return gpi_clock_record_context(clocks, *event);
    if (gpi_driver_is_capturing(driver, handle)) return GPUPOOL_E_CAPTURING;
    if (!gpi_clock_is_same(clocks, stream, handle))
        return gpi_host_fail(GPUPOOL_E_CUDA, "this stream is not known to be the one that had its "
                             "handle before");
    return gpi_driver_event_record(driver, *event, handle);
}

/* An event for the stream of a call: E_CAPTURING if the stream captures, for it would be the
   graph's. */
static gpupool_result gpi_clock_record_event(const gpi_clocks *clocks, gpi_stream *stream,
                                             CUevent *event, cudaStream_t handle) {
    const gpi_driver *driver = clocks->driver;
    CUcontext context;
    int reset;
    gpupool_result result = gpi_driver_was_reset(driver, &reset);
    if (result == GPUPOOL_OK && reset) result = GPUPOOL_E_CUDA;
    if (result == GPUPOOL_OK) result = gpi_clock_know_context(clocks, stream, handle);
    if (result != GPUPOOL_OK) return result;
    context = gpi_clock_context(clocks, stream, handle, *event);
    result = gpi_driver_push(driver, context);
    if (result != GPUPOOL_OK) return result;
    result = gpi_clock_record_here(clocks, stream, event, handle);
    if (gpi_driver_pop(driver, context) != GPUPOOL_OK) return GPUPOOL_E_CUDA;
    return result;
}

/* Whether a mark's event has passed; it is pinned. */
static int gpi_clock_ask(const gpi_clocks *clocks, const gpi_stream *stream, const gpi_mark *mark) {
    int passed = 0;
    if (gpi_clock_mark_has_ended(clocks, stream, mark, &passed) != GPUPOOL_OK) return 0;
    if (passed) return 1;
    return gpi_driver_event_query(clocks->driver, mark->event, &passed) == GPUPOOL_OK && passed;
}

/* Asks after the marks of a stream, the older first. Returns whether one has passed. The arena's
   lock is held, and open while CUDA is asked. */
static int gpi_clock_poll(gpi_clocks *clocks, gpi_stream *stream) {
    gpi_mark *mark;
    int any = 0, passed = 1;
    while (passed && (mark = gpi_clock_mark(clocks, stream, 0)) != NULL) {
        uint64_t at = mark->at;
        mark->pins++;
        gpi_host_unlock(clocks->lock);
        passed = gpi_clock_ask(clocks, stream, mark);
        gpi_host_lock(clocks->lock);
        mark->pins--;
        if (passed) gpi_clock_pass(clocks, stream, at);
        any |= passed;
    }
    return any;
}

/* Records the mark's event, behind all that the stream has freed so far. `handle` is the stream's,
   from the call that is made; of ALL it is not used. The arena's lock is held, and open while CUDA
   is called. */
static gpupool_result gpi_clock_put_mark(gpi_clocks *clocks, gpi_stream *stream, gpi_mark *mark,
                                         cudaStream_t handle) {
    uint64_t at = stream == clocks->all ? clocks->position : stream->clock.issued;
    gpupool_result result;
    stream->clock.is_recording = 1;
    gpi_host_unlock(clocks->lock);
    result = gpi_clock_record_event(clocks, stream, &mark->event, handle);
    gpi_host_lock(clocks->lock);
    stream->clock.is_recording = 0;
    if (stream != clocks->all)
        gpi_clock_set_capturing(clocks, stream, result == GPUPOOL_E_CAPTURING);
    if (result != GPUPOOL_OK) return result;
    mark->at = at;
    stream->frees = 0;
    stream->freed_units = 0;
    gpi_clock_set_borders(clocks, stream);
    gpi_clock_queue(clocks, stream);
    return GPUPOOL_OK;
}

/* Whether CUDA can make an event over all streams: there is none over several devices, nor while a
   stream captures, or did when it was last asked. */
static int gpi_clock_can_record_all(const gpi_clocks *clocks) {
    const gpi_driver *driver = clocks->driver;
    return driver->record_all && driver->context && !driver->peer_count && !clocks->capturing;
}

/* Whether a mark is of use behind what the stream has freed, and can be had now. */
static gpupool_result gpi_clock_can_record(const gpi_clocks *clocks, const gpi_stream *stream,
                                           int *can) {
    *can = 0;
    if (stream == clocks->all && !gpi_clock_can_record_all(clocks)) return GPUPOOL_E_UNSUPPORTED;
    *can = !stream->clock.is_recording && !stream->capture && gpi_clock_lacks(clocks, stream);
    return GPUPOOL_OK;
}

/* A mark behind what the stream has freed: one to spare, else the newer one is put further; but
   where a thread waits for that, there is no new one. */
static gpupool_result gpi_clock_record(gpi_clocks *clocks, gpi_stream *stream,
                                       cudaStream_t handle) {
    gpi_mark *mark, *marks = stream->clock.marks;
    int can;
    gpupool_result result = gpi_clock_can_record(clocks, stream, &can);
    if (!can) return result;
    mark = gpi_clock_spare(clocks, stream);
    if (!mark) mark = &marks[marks[1].at > marks[0].at];
    return mark->pins ? GPUPOOL_OK : gpi_clock_put_mark(clocks, stream, mark, handle);
}

enum { GPI_MISSES_MOST = 6 };

/* The same for a free where memory is plenty: only with a mark to spare. While the device is far
   behind none is, and asking CUDA each time would cost more than the free: it is asked at every
   second such free, at every fourth, and so on up to the 64th. */
static void gpi_clock_record_in_passing(gpi_clocks *clocks, gpi_stream *stream,
                                        cudaStream_t handle) {
    gpi_mark *spare = gpi_clock_spare(clocks, stream);
    int can;
    if (stream->skips && !spare) {
        stream->skips--;
        return;
    }
    if (!spare && gpi_clock_poll(clocks, stream)) spare = gpi_clock_spare(clocks, stream);
    gpi_clock_can_record(clocks, stream, &can);
    if (spare && can) gpi_clock_put_mark(clocks, stream, spare, handle);
    if (gpi_clock_spare(clocks, stream) || !gpi_clock_lacks(clocks, stream)) stream->misses = 0;
    else if (stream->misses < GPI_MISSES_MOST) stream->misses++;
    stream->skips = ((uint32_t)1 << stream->misses) - 1;
}

/* A mark behind all that any stream has freed so far. */
static gpupool_result gpi_clock_record_all(gpi_clocks *clocks) {
    return gpi_clock_record(clocks, clocks->all, cudaStreamLegacy);
}

/* Whether a stream of a call captures; no lock is held, and the arena's context need not be
   current. */
static int gpi_clock_is_capturing(const gpi_clocks *clocks, cudaStream_t handle) {
    const gpi_driver *driver = clocks->driver;
    CUcontext context = gpi_driver_is_default(handle) ? driver->context : NULL;
    int captures;
    if (gpi_driver_push(driver, context) != GPUPOOL_OK) return 0;
    captures = gpi_driver_is_capturing(driver, handle);
    gpi_driver_pop(driver, context);
    return captures;
}

/* E_CAPTURING: the stream captures, and its graph may not wait for what is outside. */
static gpupool_result gpi_clock_stream_wait(const gpi_clocks *clocks, cudaStream_t handle,
                                            CUevent event) {
    const gpi_driver *driver = clocks->driver;
    CUcontext context = gpi_driver_is_default(handle) ? driver->context : NULL;
    gpupool_result result = gpi_driver_push(driver, context);
    if (result != GPUPOOL_OK) return result;
    result = gpi_driver_is_capturing(driver, handle)
                 ? GPUPOOL_E_CAPTURING : gpi_driver_stream_wait(driver, handle, event);
    if (gpi_driver_pop(driver, context) != GPUPOOL_OK) return GPUPOOL_E_CUDA;
    return result;
}

static void gpi_clock_start_look(gpi_clocks *clocks) {
    clocks->looks++;
    clocks->seen = 0;
    clocks->is_all_seen = 0;
}

/* How far a stream has come, for who only looks. The arena's lock is held, and open while CUDA is
   asked. */
static void gpi_clock_look(gpi_clocks *clocks, gpi_stream *stream) {
    uint64_t look = clocks->looks;
    int i;
    stream->seen = 0;
    stream->seen_in = look;
    stream->refs++;
    for (i = 0; i < GPI_MARKS; i++) {
        gpi_mark *mark = &stream->clock.marks[i];
        uint64_t at = mark->at;
        int passed;
        if (at <= gpi_clock_done(clocks, stream)) continue;
        mark->pins++;
        gpi_host_unlock(clocks->lock);
        passed = gpi_clock_ask(clocks, stream, mark);
        gpi_host_lock(clocks->lock);
        mark->pins--;
        if (passed && clocks->looks == look) stream->seen = gpi_ground_max(stream->seen, at);
    }
    stream->refs--;
}

/* Whether all streams are done with all that was freed so far, caches included. One thread at a
   time does it, which holds `growing`. */
static void gpi_clock_look_at_all(gpi_clocks *clocks) {
    const gpi_driver *driver = clocks->driver;
    uint64_t at = clocks->position;
    gpupool_result result;
    int passed = 0;
    if (!gpi_clock_can_record_all(clocks)) return;
    gpi_host_unlock(clocks->lock);
    result = gpi_clock_record_event(clocks, clocks->all, &clocks->look_event, cudaStreamLegacy);
    if (result == GPUPOOL_OK)
        gpi_driver_event_query(driver, clocks->look_event, &passed);
    gpi_host_lock(clocks->lock);
    if (passed) clocks->seen = at;
    clocks->is_all_seen = passed && at == clocks->position;
}

/* Makes a stream wait, on the device, for another one's work up to a position, which a mark of that
   stream or of ALL is behind. The arena's lock is held, and open while CUDA is called. */
static gpupool_result gpi_clock_follow(gpi_clocks *clocks, gpi_stream *owner, uint64_t at,
                                       cudaStream_t handle) {
    gpi_mark *mark = gpi_clock_mark(clocks, owner, at);
    gpupool_result result;
    int ended;
    if (at <= gpi_clock_done(clocks, owner)) return GPUPOOL_OK; /* it has passed meanwhile */
    if (!mark) {
        owner = clocks->all;
        mark = gpi_clock_mark(clocks, owner, at);
    }
    GPI_ASSERT(mark != NULL);
    mark->pins++;
    gpi_host_unlock(clocks->lock);
    result = gpi_clock_mark_has_ended(clocks, owner, mark, &ended);
    if (result == GPUPOOL_OK && !ended) result = gpi_clock_stream_wait(clocks, handle, mark->event);
    gpi_host_lock(clocks->lock);
    mark->pins--;
    clocks->device_waits += result == GPUPOOL_OK && !ended;
    return result;
}

/* The host waits for a mark, which was at this position when it was pinned; a recording that was
   under way then may put it further. No lock is held. */
static gpupool_result gpi_clock_wait(gpi_clocks *clocks, gpi_stream *owner, gpi_mark *mark,
                                     uint64_t at) {
    gpupool_result result;
    int ended;
    result = gpi_clock_mark_has_ended(clocks, owner, mark, &ended);
    if (result == GPUPOOL_OK && !ended)
        result = gpi_driver_event_wait(clocks->driver, mark->event);
    gpi_host_lock(clocks->lock);
    mark->pins--;
    clocks->host_waits += result == GPUPOOL_OK;
    if (result == GPUPOOL_OK) gpi_clock_pass(clocks, owner, at);
    gpi_host_unlock(clocks->lock);
    return result;
}

/* The host waits for the device: all that was freed so far, on whatever stream, has passed. No lock
   is held. */
static gpupool_result gpi_clock_wait_device(gpi_clocks *clocks, gpi_driver *driver) {
    gpupool_result result;
    uint64_t at;
    gpi_host_lock(clocks->lock);
    at = clocks->position;
    gpi_host_unlock(clocks->lock);
    gpi_host_mutex_lock(&clocks->waits);
    result = gpi_driver_wait(driver);
    gpi_host_mutex_unlock(&clocks->waits);
    if (result != GPUPOOL_OK) return result;
    gpi_host_lock(clocks->lock);
    clocks->host_waits++;
    gpi_clock_pass(clocks, clocks->all, at);
    gpi_host_unlock(clocks->lock);
    return GPUPOOL_OK;
}

/* -- uses of blocks -- */

static gpi_use *gpi_clock_new_use(gpi_clocks *clocks, gpi_stream *stream, uint64_t at) {
    gpi_use *use = (gpi_use *)gpi_host_zeroed(sizeof *use);
    if (!use) return NULL;
    use->stream = stream;
    use->at = at;
    stream->refs++;
    clocks->uses++;
    return use;
}

static void gpi_clock_free_use(gpi_clocks *clocks, gpi_use *use) {
    use->stream->refs--;
    clocks->uses--;
    GPUPOOL_FREE(use);
}

enum { GPI_NEVER = 1, GPI_AGAIN = 2 }; /* below UINT64_MAX; of no position: such uses never pass */

static uint64_t gpi_clock_never(void) { return UINT64_MAX - GPI_NEVER; }

/* Of a block that a graph has freed itself: its scope may hand the block out again. */
static uint64_t gpi_clock_again(void) { return UINT64_MAX - GPI_AGAIN; }

/* The link to the use that never passes: of a block whose arena sleeps. To NULL: it has none. */
static gpi_use **gpi_clock_sleeper(gpi_run *run) {
    gpi_use **link = (gpi_use **)(void *)&run->of.uses;
    while (*link && (*link)->at != gpi_clock_never()) link = &(*link)->next;
    return link;
}

/* Work of this stream, up to this position, uses the block too. A use that never passes is one of
   its own, beside the stream's other. 0: the host has no memory. */
static int gpi_clock_use(gpi_clocks *clocks, gpi_run *run, gpi_stream *stream, uint64_t at) {
    uint64_t never = gpi_clock_never();
    gpi_use *use = (gpi_use *)run->of.uses;
    while (use && (use->stream != stream || (use->at == never) != (at == never))) use = use->next;
    if (!use) {
        use = gpi_clock_new_use(clocks, stream, at);
        if (!use) return 0;
        use->next = (gpi_use *)run->of.uses;
        run->of.uses = use;
    }
    use->at = gpi_ground_max(use->at, at);
    return 1;
}

/* Drops the uses that have passed; returns whether none is left. */
static int gpi_clock_drop_passed(gpi_clocks *clocks, gpi_run *run) {
    gpi_use **link = (gpi_use **)&run->of.uses, *use;
    while ((use = *link) != NULL) {
        if (use->at > gpi_clock_done(clocks, use->stream)) {
            link = &use->next;
            continue;
        }
        *link = use->next;
        gpi_clock_free_use(clocks, use);
    }
    return run->of.uses == NULL;
}

static void gpi_clock_drop_uses(gpi_clocks *clocks, gpi_run *run) {
    while (run->of.uses) {
        gpi_use *use = (gpi_use *)run->of.uses;
        run->of.uses = use->next;
        gpi_clock_free_use(clocks, use);
    }
}

/* The use by which a graph keeps a block until its release, freed or not; NULL: none does. */
static gpi_use *gpi_clock_keeping(const gpi_run *run) {
    gpi_use *use = run->list == GPI_LIST_CACHED ? NULL : (gpi_use *)run->of.uses;
    while (use && !use->stream->capture) use = use->next;
    return use;
}

/* -- opening and closing -- */

/* 0: the host has no memory. */
static int gpi_clock_open(gpi_clocks *clocks) {
    clocks->all = gpi_clock_know(clocks, GPI_KEY_ANY, 0);
    if (!clocks->all) return 0;
    clocks->stream_count--;
    gpi_clock_name(clocks, clocks->all);
    return 1;
}

static uint64_t gpi_clock_host_bytes(const gpi_clocks *clocks) { /* the arena's lock is held */
    uint64_t bytes = clocks->uses * sizeof(gpi_use);
    const gpi_stream *stream = clocks->streams;
    for (; stream; stream = stream->next)
        bytes += sizeof *stream + gpi_cache_host_bytes(&stream->cache);
    return bytes;
}

static gpupool_result gpi_clock_drop_look_event(gpi_clocks *clocks) {
    int reset;
    gpupool_result result;
    if (!clocks->look_event) return GPUPOOL_OK;
    result = gpi_driver_was_reset(clocks->driver, &reset);
    if (result == GPUPOOL_OK && !reset)
        result = gpi_driver_event_drop(clocks->driver, clocks->look_event);
    if (result == GPUPOOL_OK) clocks->look_event = NULL;
    return result;
}

/* Gives the events back; those that the driver refuses stay. */
static gpupool_result gpi_clock_close(gpi_clocks *clocks) {
    gpi_stream *stream = clocks->streams;
    gpupool_result result = gpi_clock_drop_look_event(clocks);
    for (; stream && result == GPUPOOL_OK; stream = stream->next)
        result = gpi_clock_drop_events(clocks, stream);
    return result;
}

static void gpi_clock_clear(gpi_clocks *clocks) { /* the host's side only */
    gpi_stream *stream, *next;
    for (stream = clocks->streams; stream; stream = next) {
        next = stream->next;
        gpi_cache_close(&stream->cache);
        GPUPOOL_FREE(stream);
    }
}

/* == CHECK ====================================================================================
   Whether the tree and the clocks are as their invariants say: the number of one that does not
   hold, or 0. gpupool_check asks, and with GPUPOOL_CHECK 2 every call. uses: TREE, CLOCK */

/* -- the tree -- */

static int gpi_check_run(const gpi_tree *tree, const gpi_run *run, const gpi_run *before,
                         uint32_t number) {
    int is_slab = gpi_tree_is_slab(tree, run->unit);
    uint64_t granule = (uint64_t)1 << tree->granule_shift, unit = run->unit;
    if (run->list != number || run->by.list_prev != before) return 2;
    if (!gpi_tree_is_met(run)) return 1;
    for (; tree->slab_count && unit < run->unit + run->units;
         unit = gpi_ground_down(unit, granule) + granule)
        if (gpi_tree_is_slab(tree, unit) != is_slab) return 7;
    if (run->next && run->next->list == number && run->next->of.at == run->of.at &&
        gpi_tree_is_slab(tree, run->next->unit) == is_slab) /* of two, the first tells */
        return 3;
    return 0;
}

/* One list of a list; what it holds is added to units and counts. */
static int gpi_check_bin(const gpi_tree *tree, uint32_t number, uint32_t bin,
                          uint64_t *units, uint64_t *counts) {
    const gpi_run *run = tree->lists[number]->heads[bin], *before = NULL;
    for (; run; before = run, run = run->list_next) {
        int broken = gpi_check_run(tree, run, before, number);
        if (broken) return broken;
        if (run->as.bin != bin || gpi_tree_bin(run->units) != bin % GPI_KIND_BINS) return 2;
        if (gpi_tree_kind(tree, run) != bin / GPI_KIND_BINS) return 2;
        *units += run->units;
        counts[gpi_tree_order(bin)]++;
    }
    return 0;
}

static int gpi_check_list(const gpi_tree *tree, uint32_t number, uint64_t *counts) {
    static const gpi_run *const none[GPI_STEPS] = {NULL};
    const gpi_list *list = tree->lists[number];
    uint64_t units = 0;
    uint32_t row, step;
    for (row = 0; row < GPI_KINDS * 64; row++) {
        gpi_run *const *heads = &list->heads[row * GPI_STEPS];
        if ((list->steps[row] != 0) != (int)(list->orders[row / 64] >> row % 64 & 1)) return 2;
        if (!list->steps[row] && !memcmp(heads, none, sizeof none)) continue; /* most are empty */
        for (step = 0; step < GPI_STEPS; step++) {
            int broken;
            if ((heads[step] != NULL) != (list->steps[row] >> step & 1)) return 2;
            broken = gpi_check_bin(tree, number, row * GPI_STEPS + step, &units, counts);
            if (broken) return broken;
        }
    }
    return units == list->units ? 0 : 2;
}

typedef struct gpi_tally { uint64_t free_runs, live_runs; } gpi_tally;

/* Walks a chunk from left to right and adds up what it meets: the lists and the index must hold as
   much, or a run is in none. */
static int gpi_check_chunk(const gpi_run *run, uint64_t unit, uint64_t units,
                           gpi_tally *tally) {
    uint64_t end = unit + units;
    if (run->prev || run->unit != unit) return 5;
    for (; run; run = run->next) {
        if (run->unit != unit || (run->next && run->next->prev != run)) return 1;
        if (run->list >= GPI_LIST_CACHED) tally->live_runs++;
        else if (run->list < GPI_LIST_WAITING) tally->free_runs++;
        unit += run->units;
    }
    return unit == end ? 0 : 1;
}

/* The table against the runs of its addresses, of which this is the first. */
static int gpi_check_table(const gpi_tree *tree, const gpi_run *run) {
    uint64_t granule, words = tree->granules / 64 + 1, bits = 0, word, slabs = tree->slab_count;
    for (; run; run = run->next) {
        int is_first = !run->prev || (run->prev->unit - tree->base_unit) >> tree->granule_shift !=
                                         (run->unit - tree->base_unit) >> tree->granule_shift;
        granule = (run->unit - tree->base_unit) >> tree->granule_shift;
        if (!(tree->starts[granule / 64] >> granule % 64 & 1)) return 6;
        if ((gpi_tree_cell(tree, run->unit)->first == run) != is_first) return 6;
        bits += (uint64_t)is_first;
    }
    for (word = 0; word < words; word++) {
        bits -= gpi_ground_bits(tree->starts[word]);
        slabs -= gpi_ground_bits(tree->slabs[word]);
    }
    return bits ? 6 : slabs ? 7 : 0;
}

static int gpi_check_tally(const gpi_tree *tree, const gpi_tally *tally) {
    uint64_t runs = 0;
    uint32_t number, bin;
    for (number = 0; number < tree->list_count; number++)
        for (bin = 0; tree->lists[number] && bin < GPI_NO_BIN; bin++) {
            const gpi_run *run = tree->lists[number]->heads[bin];
            for (; run; run = run->list_next) runs++;
        }
    if (runs != tally->free_runs) return 2;
    return tree->live_runs == tally->live_runs ? 0 : 4;
}

static int gpi_check_tree(const gpi_tree *tree) {
    uint64_t pending = 0, bucket, runs = 0, units = 0, orders[GPUPOOL_ORDERS];
    uint64_t addresses[64], free[64];
    uint32_t number;
    int broken;
    memset(orders, 0, sizeof orders);
    memset(addresses, 0, sizeof addresses);
    memset(free, 0, sizeof free);
    for (number = 0; number < tree->list_count; number++) {
        int is_memory = number != GPI_LIST_EMPTY && number != GPI_LIST_SPACE;
        if (!tree->lists[number]) continue;
        broken = gpi_check_list(tree, number, is_memory ? free : addresses);
        if (broken) return broken;
        if (number >= GPI_LIST_STREAMS) pending += tree->lists[number]->units;
    }
    if (pending != tree->pending_units) return 2;
    if (memcmp(free, tree->free_by_order, sizeof tree->free_by_order)) return 2;
    for (bucket = 0; bucket < tree->bucket_count; bucket++) {
        const gpi_run *run = *gpi_tree_head(tree, bucket);
        for (; run; run = run->list_next, runs++) {
            if (run->list < GPI_LIST_CACHED || gpi_tree_bucket(tree, run->unit) != bucket) return 4;
            if (!gpi_tree_is_met(run)) return 1;
            units += run->units;
            orders[gpi_ground_high_bit(run->units)] += GPUPOOL_STATS;
        }
    }
    if (runs != tree->live_runs || units != tree->live_units) return 4;
    return memcmp(orders, tree->live_by_order, sizeof orders) ? 4 : 0;
}

/* -- the clocks -- */

static int gpi_check_is_filed(const gpi_clocks *clocks, const gpi_stream *stream) {
    const gpi_stream *other = clocks->buckets[gpi_clock_bucket(stream->handle)];
    int found = 0;
    for (; other; other = other->chain) {
        found |= other == stream;
        if (other != stream && stream->key && other->key == stream->key) return 0;
    }
    return found;
}

static int gpi_check_stream_list(const gpi_clocks *clocks, const gpi_stream *stream) {
    const gpi_list *list = clocks->tree->lists[stream->list];
    uint32_t bin;
    if (!list || list->owner != stream) return 2;
    for (bin = 0; list->units && bin < GPI_NO_BIN; bin++) {
        const gpi_run *run = list->heads[bin];
        for (; run; run = run->list_next)
            if (run->of.at == 0 || run->of.at > stream->clock.issued) return 2;
    }
    return 0;
}

static int gpi_check_stream(const gpi_clocks *clocks, gpi_stream *stream) {
    const gpi_clock *clock = &stream->clock;
    uint64_t issued = stream == clocks->all ? clocks->position : clock->issued;
    int i;
    if (clock->passed > issued || clock->issued > clocks->position) return 1;
    for (i = 0; i < GPI_MARKS; i++)
        if (clock->marks[i].at > issued) return 1;
    if (stream->key && stream->key != stream->handle) return 4;
    if (!gpi_check_is_filed(clocks, stream)) return 4;
    if (gpi_clock_is_busy(clocks, stream) && !stream->is_busy) return 5;
    return gpi_check_stream_list(clocks, stream);
}

static int gpi_check_clocks(const gpi_clocks *clocks) {
    gpi_stream *stream = clocks->streams;
    uint64_t lists = 0, count = 0, of_threads = 0;
    uint32_t list;
    for (; stream; stream = stream->next) {
        int broken;
        if (stream->handle == 0) continue;
        broken = gpi_check_stream(clocks, stream);
        if (broken) return broken;
        lists++;
        count += stream != clocks->all;
        of_threads += (uint64_t)gpi_clock_is_of_thread(stream);
    }
    for (list = GPI_LIST_STREAMS; list < clocks->tree->list_count; list++)
        lists -= clocks->tree->lists[list] != NULL;
    if (lists) return 2;
    for (stream = clocks->busy; stream; stream = stream->busy_next)
        if (!stream->is_busy || (!stream->busy_next && stream != clocks->busy_last)) return 5;
    return count == clocks->stream_count && of_threads == clocks->thread_streams ? 0 : 4;
}

/* == CHUNK ====================================================================================
   Memory from the driver: how it is got, where it lies, how it is given back. uses: DRIVER, LEDGER,
   TREE, CLOCK

   A chunk is what one call of the driver gave: a cuMemCreate handle, a cudaMalloc, ... A MAPPED
   chunk is mapped once, at its home, and stays there until it is given back to the driver. Homes
   lie side by side, so a block may span several chunks; empty addresses are where chunks can still
   go.

       home addresses    | chunk | chunk |   chunk   | empty  | chunk | empty ...

   The driver's price for mapped memory is per handle, not per byte: about 40 us up, 30 us down. So
   a chunk is a share of all that is reserved: few chunks in a large arena, yet none so large that
   one live block in it keeps much from being stitched (see STITCH).

   H1  chunks do not overlap; the cells of a MAPPED chunk's granules, and no others, tell it as
       owner
   H2  a home unit is in list EMPTY exactly if no chunk is there
   H3  reserved is the sum of the chunks, with those that the driver has not taken back
   H4  exports is the number of chunks that are exported
   H5  a free run at home is in the list of its chunk's tag, and no run crosses from one tag's
       chunks to another's */

typedef struct gpi_chunk {
    struct gpi_chunk *prev, *next; /* by address in a MAPPED arena */
    gpi_handle handle;             /* MAPPED */
    void *memory;                  /* other sources: what the source gave */
    uint64_t bytes;                /* and how much of it */
    uint64_t unit, units;          /* the part that blocks are cut from */
    int tag;                       /* whose blocks alone it has; 0: those of all other requests */
    int is_kept;                   /* it is of the tag's reserve: it is not given back */
    gpi_run *first;                /* other sources: the leftmost run */
    gpi_run *stuck;                /* addresses that the driver has not unmapped, held: from their
                                      start so many units */
    uint64_t stuck_units;
    uint64_t exports;              /* of the block that has all of it, by this descriptor */
    int descriptor;
    int is_away;                   /* asleep: it is not mapped, and has no handle, or an idle one */
    int is_untold;                 /* the program was not told of it, or that it has gone */
    struct gpi_seam *seams;        /* MAPPED: the stitches over it */
#if GPUPOOL_NVTX
    void *heap;                    /* what a tool calls it; NULL: it is not told */
#endif
} gpi_chunk;

typedef struct gpi_apart {         /* chunks of one tag */
    int is_apart;                  /* it has chunks of its own, */
    int can_sleep;                 /* and they can sleep */
    uint64_t units;
} gpi_apart;

typedef struct gpi_chunks {
    gpi_driver driver;
    gpi_lock *lock;                /* the arena's: held on entry, opened around driver calls */
    gpi_ledger *ledger;            /* the arena's */
    gpi_clocks *clocks;            /* the arena's */
    gpupool_source source;         /* never AUTO */
    const struct gpi_source *from; /* its row of the table */
    uint64_t granule_units;
    uint64_t chunk_bytes;          /* 0: by what is reserved already */
    void *(*chunk_alloc)(size_t, int, void *);
    void (*chunk_free)(void *, size_t, int, void *);
    gpupool_map_fn on_map, on_unmap;
    uint64_t telling;              /* calls of these under way */
    void *user;
    gpi_mutex *growing;            /* the arena's: held on entry to all that makes or gives back */
    uint64_t exports;              /* chunks that are exported */
    uint64_t reservation, reservation_bytes; /* MAPPED: addresses for homes and stitches */
    uint64_t base_unit, space_units;         /* the same in units */
    uint64_t stitch_unit;          /* homes are below, stitches above; UINT64_MAX: no stitches */
    gpi_run *home, *space;         /* MAPPED: the leftmost runs of both */
    gpi_chunk *first, *last;
    gpi_chunk *stuck;              /* which the driver has not taken back */
    uint64_t units, count;         /* of all, stuck ones too */
    int is_apart;                  /* some tag has chunks of its own */
    int is_ending;                 /* the arena ends: no reserve is kept */
    gpi_apart apart[GPUPOOL_TAGS + 1]; /* by tag */
    uint64_t gained, lost;
    uint64_t host_bytes;
} gpi_chunks;

/* -- sources: functions and flags; the functions of MAPPED are the driver's own, below -- */

enum {
    GPI_FROM_DEVICE = 1,  /* the device's free memory bounds growth */
    GPI_FROM_HERE = 2,    /* it is all the memory that there can be */
    GPI_FROM_GRANULES = 4,/* the driver gives whole granules */
    GPI_FROM_HOST = 8,    /* the host may use a block at once, so it takes finished memory only */
    GPI_FROM_POOL = 16,   /* blocks share chunks */
    GPI_FROM_STITCHES = 32,
    GPI_FROM_UNALIGNED = 64, /* memory may begin anywhere */
    GPI_FROM_TOLD = 128   /* a tool that watches accesses is told of its chunks */
};

typedef struct gpi_source {
    gpupool_result (*get)(const gpi_chunks *chunks, uint64_t bytes, void **memory);
    gpupool_result (*give)(const gpi_chunks *chunks, void *memory, uint64_t bytes);
    unsigned flags;
} gpi_source;

static gpupool_result gpi_chunk_get_device(const gpi_chunks *chunks, uint64_t bytes,
                                           void **memory) {
    CUdeviceptr address = 0;
    CUresult error = chunks->driver.memory_alloc(&address, (size_t)bytes);
    *memory = (void *)(uintptr_t)address;
    return gpi_driver_told(&chunks->driver, "cuMemAlloc", error);
}

static gpupool_result gpi_chunk_get_managed(const gpi_chunks *chunks, uint64_t bytes,
                                            void **memory) {
    CUdeviceptr address = 0;
    CUresult error =
        chunks->driver.managed_alloc(&address, (size_t)bytes, CU_MEM_ATTACH_GLOBAL);
    *memory = (void *)(uintptr_t)address;
    return gpi_driver_told(&chunks->driver, "cuMemAllocManaged", error);
}

static gpupool_result gpi_chunk_give_device(const gpi_chunks *chunks, void *memory,
                                            uint64_t bytes) {
    (void)bytes;
    return gpi_driver_told(&chunks->driver, "cuMemFree",
                           chunks->driver.memory_free((CUdeviceptr)(uintptr_t)memory));
}

static gpupool_result gpi_chunk_get_pinned(const gpi_chunks *chunks, uint64_t bytes,
                                           void **memory) {
    return gpi_driver_told(&chunks->driver, "cuMemHostAlloc",
                           chunks->driver.host_alloc(memory, (size_t)bytes,
                                                     CU_MEMHOSTALLOC_PORTABLE));
}

static gpupool_result gpi_chunk_give_pinned(const gpi_chunks *chunks, void *memory,
                                            uint64_t bytes) {
    (void)bytes;
    return gpi_driver_told(&chunks->driver, "cuMemFreeHost", chunks->driver.host_free(memory));
}

static gpupool_result gpi_chunk_get_custom(const gpi_chunks *chunks, uint64_t bytes,
                                           void **memory) {
    *memory = chunks->chunk_alloc((size_t)bytes, chunks->driver.device, chunks->user);
    gpi_driver_come_back(&chunks->driver);
    if (*memory) return GPUPOOL_OK;
    return gpi_host_fail(GPUPOOL_E_OUT_OF_MEMORY, "chunk_alloc gave no memory");
}

static gpupool_result gpi_chunk_give_custom(const gpi_chunks *chunks, void *memory,
                                            uint64_t bytes) {
    chunks->chunk_free(memory, (size_t)bytes, chunks->driver.device, chunks->user);
    gpi_driver_come_back(&chunks->driver);
    return GPUPOOL_OK;
}

static const gpi_source gpi_sources[] = { /* in the order of the enum */
    {NULL, NULL, 0},
    {NULL, NULL, GPI_FROM_DEVICE | GPI_FROM_HERE | GPI_FROM_POOL | GPI_FROM_STITCHES},
    {gpi_chunk_get_device, gpi_chunk_give_device,
     GPI_FROM_DEVICE | GPI_FROM_HERE | GPI_FROM_GRANULES | GPI_FROM_POOL | GPI_FROM_TOLD},
    {gpi_chunk_get_managed, gpi_chunk_give_device, GPI_FROM_GRANULES | GPI_FROM_POOL},
    {gpi_chunk_get_pinned, gpi_chunk_give_pinned, GPI_FROM_HOST | GPI_FROM_POOL},
    {gpi_chunk_get_custom, gpi_chunk_give_custom,
     GPI_FROM_DEVICE | GPI_FROM_POOL | GPI_FROM_UNALIGNED},
    {gpi_chunk_get_device, gpi_chunk_give_device, GPI_FROM_DEVICE | GPI_FROM_TOLD}};

static int gpi_chunk_is(const gpi_chunks *chunks, unsigned flag) {
    return (chunks->from->flags & flag) != 0;
}

static int gpi_chunk_is_mapped(const gpi_chunks *chunks) {
    return chunks->source == GPUPOOL_SOURCE_MAPPED;
}

/* -- the check -- */

/* All runs of all chunks, and of the addresses for stitches, for TREE's own check. */
static int gpi_chunk_check_runs(const gpi_chunks *chunks, const gpi_tree *tree, gpi_tally *tally) {
    const gpi_chunk *chunk;
    int broken = 0;
    memset(tally, 0, sizeof *tally);
    for (chunk = chunks->first; !gpi_chunk_is_mapped(chunks) && chunk && !broken;
         chunk = chunk->next)
        broken = gpi_check_chunk(chunk->first, chunk->unit, chunk->units, tally);
    if (!gpi_chunk_is_mapped(chunks)) return broken;
    broken = gpi_check_chunk(chunks->home, chunks->base_unit,
                             chunks->stitch_unit - chunks->base_unit, tally);
    if (!broken) broken = gpi_check_table(tree, chunks->home);
    if (broken) return broken;
    return gpi_check_chunk(chunks->space, chunks->stitch_unit,
                           chunks->base_unit + chunks->space_units - chunks->stitch_unit,
                           tally);
}

/* H5, of a run and one of the chunks that it lies in: whether it is broken. */
static int gpi_chunk_is_astray(const gpi_tree *tree, const gpi_run *run, const gpi_chunk *chunk) {
    const gpi_chunk *first = (const gpi_chunk *)gpi_tree_owner(tree, run->unit);
    uint32_t list = chunk->tag ? GPI_LIST_TAGS + (uint32_t)chunk->tag - 1 : (uint32_t)GPI_LIST_ANY;
    if (first && first->tag != chunk->tag) return 1;
    if (gpi_tree_is_finished(run)) return run->list != list;
    return chunk->tag && run->list >= GPI_LIST_STREAMS && run->list < GPI_LIST_WAITING;
}

/* Every granule under a run that is not empty has a chunk; then no empty one has, if sums agree.
   A taken run may be empty: stuck, or addresses that another thread is about to map. */
static int gpi_chunk_check_home(const gpi_chunks *chunks, const gpi_tree *tree, uint64_t units) {
    uint64_t empty = 0, unit, entries = 0, page;
    const gpi_run *run;
    int i;
    for (run = chunks->home; run; run = run->next) {
        if (run->list == GPI_LIST_EMPTY) empty += run->units;
        unit = gpi_ground_down(run->unit, chunks->granule_units);
        for (; run->list != GPI_LIST_EMPTY && unit < run->unit + run->units;
             unit += chunks->granule_units) {
            const gpi_chunk *chunk = (const gpi_chunk *)gpi_tree_owner(tree, unit);
            if (chunk && unit - chunk->unit < chunk->units) {
                if (chunks->is_apart && gpi_chunk_is_astray(tree, run, chunk)) return 5;
                continue;
            }
            if (chunk || run->list != GPI_LIST_TAKEN) return 2;
            empty += chunks->granule_units;
        }
    }
    if (empty + units != chunks->stitch_unit - chunks->base_unit) return 2;
    for (page = 0; page < tree->cell_pages; page++)
        for (i = 0; tree->cells[page] && i < GPI_PAGE; i++)
            entries += page * GPI_PAGE + (uint64_t)i < tree->granules &&
                       tree->cells[page][i].owner != NULL;
    return entries * chunks->granule_units == units ? 0 : 1;
}

static int gpi_chunk_check(const gpi_chunks *chunks, const gpi_tree *tree,
                           uint64_t reserved_bytes) {
    uint64_t bytes = 0, units = 0, count = 0, exports = 0, unit;
    const gpi_chunk *chunk, *before = NULL;
    for (chunk = chunks->first; chunk; before = chunk, chunk = chunk->next, count++) {
        exports += chunk->exports != 0;
        bytes += chunk->is_away ? 0 : chunk->bytes;
        units += chunk->units;
        if (chunk->prev != before) return 1;
        if (!gpi_chunk_is_mapped(chunks)) continue;
        if (before && chunk->unit < before->unit + before->units) return 1;
        for (unit = chunk->unit; unit < chunk->unit + chunk->units; unit += chunks->granule_units)
            if (gpi_tree_owner(tree, unit) != chunk) return 1;
    }
    if (before != chunks->last) return 1;
    if (exports != chunks->exports) return 4;
    for (chunk = chunks->stuck; chunk; chunk = chunk->next, count++) bytes += chunk->bytes;
    if (count != chunks->count || bytes != chunks->units * GPUPOOL_UNIT_BYTES) return 3;
    if (bytes != reserved_bytes) return 3;
    return gpi_chunk_is_mapped(chunks) ? gpi_chunk_check_home(chunks, tree, units) : 0;
}

/* -- the list -- */

/* Whether a unit is of this arena's memory or addresses. */
static int gpi_chunk_owns(const gpi_chunks *chunks, uint64_t unit) {
    const gpi_chunk *chunk = chunks->first;
    if (gpi_chunk_is_mapped(chunks)) return unit - chunks->base_unit < chunks->space_units;
    while (chunk && unit - chunk->unit >= chunk->units) chunk = chunk->next;
    return chunk != NULL;
}

/* The list of finished memory at a home address: ANY, or that of the tag whose chunk is there. */
static uint32_t gpi_chunk_list(const gpi_chunks *chunks, const gpi_tree *tree, uint64_t unit) {
    const gpi_chunk *chunk;
    if (!chunks->is_apart) return GPI_LIST_ANY;
    chunk = (const gpi_chunk *)gpi_tree_owner(tree, unit);
    return chunk && chunk->tag ? GPI_LIST_TAGS + (uint32_t)chunk->tag - 1 : (uint32_t)GPI_LIST_ANY;
}

/* A taken run at home becomes finished free memory. */
static void gpi_chunk_put(const gpi_chunks *chunks, gpi_tree *tree, gpi_run *run) {
    gpi_tree_put(tree, run, gpi_chunk_list(chunks, tree, run->unit), 0);
}

/* A taken run goes back to the stream that it was taken from (NULL: it was finished memory), at its
   old position. */
static void gpi_chunk_return(const gpi_chunks *chunks, gpi_run *run, gpi_stream *owner,
                             uint64_t at) {
    if (owner) gpi_clock_return(chunks->clocks, run, owner, at);
    else gpi_chunk_put(chunks, chunks->clocks->tree, run);
}

static void gpi_chunk_link(gpi_chunks *chunks, gpi_chunk *before, gpi_chunk *chunk) {
    chunks->apart[chunk->tag].units += chunk->units;
    chunk->prev = before;
    chunk->next = before ? before->next : chunks->first;
    if (chunk->next) chunk->next->prev = chunk;
    else chunks->last = chunk;
    if (before) before->next = chunk;
    else chunks->first = chunk;
}

static void gpi_chunk_unlink(gpi_chunks *chunks, gpi_chunk *chunk) {
    chunks->apart[chunk->tag].units -= chunk->units;
    if (chunk->next) chunk->next->prev = chunk->prev;
    else chunks->last = chunk->prev;
    if (chunk->prev) chunk->prev->next = chunk->next;
    else chunks->first = chunk->next;
}

static void gpi_chunk_account(const gpi_chunks *chunks) {
    gpi_ledger_set(&chunks->ledger->reserved, chunks->units * GPUPOOL_UNIT_BYTES);
}

static void gpi_chunk_gained(gpi_chunks *chunks, const gpi_chunk *chunk) {
    chunks->count++;
    chunks->gained++;
    chunks->units += chunk->bytes / GPUPOOL_UNIT_BYTES;
    chunks->host_bytes += sizeof *chunk;
    gpi_chunk_account(chunks);
}

static void gpi_chunk_lost(gpi_chunks *chunks, gpi_chunk *chunk) {
    if (chunk->exports) { /* a reset has ended its block */
        gpi_host_close(chunk->descriptor);
        chunks->exports--;
    }
    chunks->count--;
    chunks->lost++;
    chunks->units -= chunk->bytes / GPUPOOL_UNIT_BYTES;
    chunks->host_bytes -= sizeof *chunk;
    gpi_chunk_account(chunks);
    GPUPOOL_FREE(chunk);
}

/* -- the program is told of what is mapped -- */

/* Calls the program's function, if there is one, with no lock held. Both locks are held on entry
   and exit; what is told of is held, so that nobody else has it meanwhile. */
static gpupool_result gpi_chunk_tell(gpi_chunks *chunks, gpupool_map_fn fn,
                                     const gpupool_mapping *mapping) {
    const void *outer = gpi_thread.telling;
    int said;
    if (!fn) return GPUPOOL_OK;
    chunks->telling++;
    gpi_host_unlock(chunks->lock);
    gpi_host_mutex_unlock(chunks->growing);
    gpi_thread.telling = chunks;
    said = fn(mapping, chunks->user);
    gpi_thread.telling = outer;
    gpi_driver_come_back(&chunks->driver);
    gpi_host_mutex_lock(chunks->growing);
    gpi_host_lock(chunks->lock);
    chunks->telling--;
    if (!said) return GPUPOOL_OK;
    return gpi_host_fail(GPUPOOL_E_CALLBACK, "your on_map function returned %d for %" PRIu64
                         " bytes at %p", said, (uint64_t)mapping->bytes, mapping->memory);
}

static gpupool_mapping gpi_chunk_mapping(const gpi_chunks *chunks, const gpi_chunk *chunk) {
    gpupool_mapping mapping;
    memset(&mapping, 0, sizeof mapping);
    mapping.memory = gpi_chunk_is_mapped(chunks)
                         ? (void *)(uintptr_t)(chunk->unit * GPUPOOL_UNIT_BYTES) : chunk->memory;
    mapping.bytes = mapping.chunk_bytes = (size_t)chunk->bytes;
    mapping.handle = gpi_chunk_is_mapped(chunks) ? chunk->handle : 0;
    return mapping;
}

static void gpi_chunk_tell_going(gpi_chunks *chunks, const gpi_chunk *chunk) {
    gpupool_mapping mapping = gpi_chunk_mapping(chunks, chunk);
    if (chunk->is_untold) return;
    gpi_chunk_tell(chunks, chunks->on_unmap, &mapping); /* what it says changes nothing */
}

/* It has not gone after all. */
static void gpi_chunk_tell_again(gpi_chunks *chunks, gpi_chunk *chunk) {
    struct gpi_thread why = gpi_thread;
    gpupool_mapping mapping = gpi_chunk_mapping(chunks, chunk);
    if (chunk->is_untold) return;
    chunk->is_untold = gpi_chunk_tell(chunks, chunks->on_map, &mapping) != GPUPOOL_OK;
    gpi_thread = why;
}

/* -- MAPPED chunks come and go -- */

/* Releases what is stuck, the latest first: addresses are unmapped before the handles behind them
   are released. What the driver does not take back stays stuck. */
static gpupool_result gpi_chunk_retry(gpi_chunks *chunks, gpi_tree *tree) {
    gpupool_result result = GPUPOOL_OK;
    gpi_chunk *chunk;
    while (result == GPUPOOL_OK && (chunk = chunks->stuck) != NULL) {
        gpi_run *run = chunk->stuck;
        gpi_host_unlock(chunks->lock);
        if (run)
            result = gpi_driver_unmap(&chunks->driver, run->unit * GPUPOOL_UNIT_BYTES,
                                      chunk->stuck_units * GPUPOOL_UNIT_BYTES);
        gpi_host_lock(chunks->lock);
        if (result != GPUPOOL_OK) break;
        if (run) gpi_tree_put(tree, run, GPI_LIST_EMPTY, 0);
        chunk->stuck = NULL;
        gpi_host_unlock(chunks->lock);
        result = gpi_driver_release(&chunks->driver, chunk->handle);
        gpi_host_lock(chunks->lock);
        if (result != GPUPOOL_OK) break;
        chunks->stuck = chunk->next;
        gpi_chunk_lost(chunks, chunk);
    }
    return result;
}

static void gpi_chunk_stick(gpi_chunks *chunks, gpi_chunk *chunk) {
    chunk->next = chunks->stuck;
    chunks->stuck = chunk;
}

/* Takes back what a growth has made so far, newest first: mapped_units from the taken run's start
   on are mapped. What the driver refuses is stuck, and counted. The lock is open. */
static void gpi_chunk_unmake(gpi_chunks *chunks, gpi_tree *tree, gpi_run *taken,
                             uint64_t mapped_units, gpi_chunk *made) {
    struct gpi_thread why = gpi_thread; /* of the failure, not of the undoing */
    gpi_chunk *next, *stuck = NULL;
    int mapped = mapped_units &&
                 gpi_driver_unmap(&chunks->driver, taken->unit * GPUPOOL_UNIT_BYTES,
                                  mapped_units * GPUPOOL_UNIT_BYTES) != GPUPOOL_OK;
    for (; made; made = next) {
        next = made->next;
        if (!mapped && gpi_driver_release(&chunks->driver, made->handle) == GPUPOOL_OK) {
            GPUPOOL_FREE(made);
            continue;
        }
        made->next = stuck;
        stuck = made;
    }
    gpi_host_lock(chunks->lock);
    for (; stuck; stuck = next) {
        next = stuck->next;
        gpi_chunk_stick(chunks, stuck);
        gpi_chunk_gained(chunks, stuck);
    }
    if (mapped) {
        chunks->stuck->stuck = taken;
        chunks->stuck->stuck_units = mapped_units;
    } else {
        gpi_tree_put(tree, taken, GPI_LIST_EMPTY, 0);
    }
    gpi_thread = why;
}

/* One more chunk for the addresses from `unit` on; it is the first of the list now. The lock is
   open. `mapped_units` grows by what is mapped. */
static gpupool_result gpi_chunk_make(const gpi_chunks *chunks, uint64_t unit, uint64_t units,
                                     gpi_chunk **list, uint64_t *mapped_units) {
    gpi_chunk *chunk = (gpi_chunk *)gpi_host_zeroed(sizeof *chunk);
    gpupool_result result;
    if (!chunk) return gpi_host_no_memory();
    chunk->unit = unit;
    chunk->units = units;
    chunk->bytes = units * GPUPOOL_UNIT_BYTES;
    result = gpi_driver_create(&chunks->driver, chunk->bytes, &chunk->handle);
    if (result != GPUPOOL_OK) {
        GPUPOOL_FREE(chunk);
        return result;
    }
    chunk->next = *list;
    *list = chunk;
    result = gpi_driver_map(&chunks->driver, unit * GPUPOOL_UNIT_BYTES, chunk->bytes,
                            chunk->handle);
    if (result == GPUPOOL_OK) *mapped_units += units;
    return result;
}

/* The chunk whose home ends nearest before a run. */
static gpi_chunk *gpi_chunk_before(const gpi_tree *tree, const gpi_run *run) {
    void *owner = NULL;
    for (run = run->prev; run && !owner; run = run->prev)
        owner = gpi_tree_owner(tree, run->unit + run->units - 1);
    return (gpi_chunk *)owner;
}

/* New chunks of about so many units under a taken empty run, which has cells, for the blocks of a
   tag, or of all others: under all of it, or if that fails, none, and the run is empty again. */
static gpupool_result gpi_chunk_fill(gpi_chunks *chunks, gpi_tree *tree, gpi_run *taken,
                                     uint64_t chunk_units, int tag) {
    uint64_t done = 0, mapped = 0, most = taken->units;
    gpupool_result result = GPUPOOL_OK;
    gpi_chunk *made = NULL, *before, *next;
    gpi_host_unlock(chunks->lock);
    while (done < most && result == GPUPOOL_OK) {
        uint64_t units = gpi_ground_min(chunk_units, most - done);
        if (most - done - units < chunk_units / 2) units = most - done; /* no small rest */
        result = gpi_chunk_make(chunks, taken->unit + done, units, &made, &mapped);
        done += units;
    }
    if (result == GPUPOOL_OK)
        result = gpi_driver_access(&chunks->driver, taken->unit * GPUPOOL_UNIT_BYTES,
                                   most * GPUPOOL_UNIT_BYTES);
    if (result != GPUPOOL_OK) {
        gpi_chunk_unmake(chunks, tree, taken, mapped, made);
        return result;
    }
    gpi_host_lock(chunks->lock);
    before = gpi_chunk_before(tree, taken);
    for (; made; made = next) { /* the last of them first */
        next = made->next;
        made->tag = tag;
        gpi_chunk_link(chunks, before, made);
        gpi_tree_own(tree, made->unit, made->units, made);
        gpi_chunk_gained(chunks, made);
    }
    return GPUPOOL_OK;
}

/* A chunk that is one taken run, and that no stitch is over, goes back to the driver. If it cannot
   be unmapped it stays, finished; but where the program was told that it goes, it is stuck. */
static gpupool_result gpi_chunk_give_back(gpi_chunks *chunks, gpi_tree *tree, gpi_chunk *chunk,
                                          gpi_run *taken) {
    gpupool_result result;
    GPI_ASSERT(!chunk->seams && taken->unit == chunk->unit && taken->units == chunk->units);
    gpi_host_unlock(chunks->lock);
    result = gpi_driver_unmap(&chunks->driver, chunk->unit * GPUPOOL_UNIT_BYTES, chunk->bytes);
    gpi_host_lock(chunks->lock);
    if (result != GPUPOOL_OK && !chunks->on_map && !chunks->on_unmap) {
        gpi_chunk_put(chunks, tree, taken);
        return result;
    }
    gpi_chunk_unlink(chunks, chunk);
    gpi_tree_own(tree, chunk->unit, chunk->units, NULL);
    gpi_chunk_stick(chunks, chunk);
    if (result != GPUPOOL_OK) {
        chunk->stuck = taken;
        chunk->stuck_units = taken->units;
        return result;
    }
    gpi_tree_put(tree, taken, GPI_LIST_EMPTY, 0);
    return gpi_chunk_retry(chunks, tree);
}

/* The chunks of a taken run are free memory; all but so many are unknown to the program. */
static void gpi_chunk_stay_untold(const gpi_chunks *chunks, gpi_tree *tree, gpi_run *taken,
                                  uint64_t announced) {
    uint64_t unit = taken->unit, end = unit + taken->units;
    while (unit < end) {
        gpi_chunk *chunk = (gpi_chunk *)gpi_tree_owner(tree, unit);
        chunk->is_untold = chunks->on_map && !announced;
        announced -= announced != 0;
        unit = chunk->unit + chunk->units;
    }
    gpi_chunk_put(chunks, tree, taken);
}

/* The chunks of a taken run go back to the driver; the program was told of so many that they have
   appeared. */
static void gpi_chunk_give_all_back(gpi_chunks *chunks, gpi_tree *tree, gpi_run *taken,
                                    uint64_t announced) {
    struct gpi_thread why = gpi_thread;
    uint64_t end = taken->unit + taken->units;
    gpi_run *rest = taken;
    for (; taken; taken = rest) {
        gpi_chunk *chunk = (gpi_chunk *)gpi_tree_owner(tree, taken->unit);
        uint64_t next = chunk->unit + chunk->units;
        if (next < end && !gpi_tree_prepare(tree, 2)) {
            gpi_chunk_stay_untold(chunks, tree, taken, announced); /* no host memory */
            break;
        }
        rest = next < end ? gpi_tree_split(tree, taken, next) : NULL;
        if (announced) gpi_chunk_tell_going(chunks, chunk);
        announced -= announced != 0;
        gpi_chunk_give_back(chunks, tree, chunk, taken);
    }
    gpi_thread = why;
}

/* Tells the program of the new chunks of a taken run. If it refuses one, all go back. */
static gpupool_result gpi_chunk_announce(gpi_chunks *chunks, gpi_tree *tree, gpi_run *taken) {
    uint64_t unit = taken->unit, end = unit + taken->units, announced = 0;
    gpupool_result result = GPUPOOL_OK;
    for (; chunks->on_map && unit < end; announced++) {
        const gpi_chunk *chunk = (const gpi_chunk *)gpi_tree_owner(tree, unit);
        gpupool_mapping mapping = gpi_chunk_mapping(chunks, chunk);
        result = gpi_chunk_tell(chunks, chunks->on_map, &mapping);
        if (result != GPUPOOL_OK) break;
        unit = chunk->unit + chunk->units;
    }
    if (result != GPUPOOL_OK) gpi_chunk_give_all_back(chunks, tree, taken, announced);
    return result;
}

/* A chunk that is one taken run goes back to its source. On failure it stays, finished. */
static gpupool_result gpi_chunk_drop(gpi_chunks *chunks, gpi_tree *tree, gpi_chunk *chunk) {
    gpupool_result result = GPUPOOL_OK;
#if GPUPOOL_NVTX
    /* before: with its memory, the tool forgets the heap by itself */
    if (chunk->heap) gpi_driver_tell_chunk_gone(chunk->heap);
#endif
    gpi_host_unlock(chunks->lock);
    /* what nobody has waited for: cudaFree does, but for its own device only */
    if (!gpi_chunk_is(chunks, GPI_FROM_POOL) && chunks->driver.peer_count)
        result = gpi_clock_wait_device(chunks->clocks, &chunks->driver);
    if (result == GPUPOOL_OK) result = chunks->from->give(chunks, chunk->memory, chunk->bytes);
    gpi_host_lock(chunks->lock);
    if (result != GPUPOOL_OK) {
#if GPUPOOL_NVTX
        if (chunk->heap) chunk->heap = gpi_driver_tell_chunk(chunk->memory, chunk->bytes);
#endif
        gpi_chunk_tell_again(chunks, chunk);
        gpi_tree_put(tree, chunk->first, GPI_LIST_ANY, 0);
        return result;
    }
    gpi_tree_remove_chunk(tree, chunk->first);
    gpi_chunk_unlink(chunks, chunk);
    gpi_chunk_lost(chunks, chunk);
    return GPUPOOL_OK;
}

/* -- idle chunks: no part of them is in use or pending -- */

/* The run at a chunk's start. */
static const gpi_run *gpi_chunk_first_run(const gpi_chunks *chunks, const gpi_tree *tree,
                                          const gpi_chunk *chunk) {
    const gpi_run *run;
    if (!gpi_chunk_is_mapped(chunks)) return chunk->first;
    run = gpi_tree_from(tree, chunk->unit);
    return run->unit > chunk->unit ? run->prev : run;
}

static int gpi_chunk_is_idle(const gpi_chunks *chunks, const gpi_tree *tree,
                             const gpi_chunk *chunk) {
    const gpi_run *run = gpi_chunk_first_run(chunks, tree, chunk);
    if (chunk->is_kept && !chunks->is_ending) return 0;
    return gpi_tree_is_finished(run) && run->unit + run->units >= chunk->unit + chunk->units;
}

static uint64_t gpi_chunk_idle_bytes(const gpi_chunks *chunks, const gpi_tree *tree) {
    const gpi_chunk *chunk = chunks->first;
    uint64_t bytes = 0;
    for (; chunk; chunk = chunk->next)
        if (gpi_chunk_is_idle(chunks, tree, chunk)) bytes += chunk->bytes;
    return bytes;
}

/* What blocks can be cut from in chunks that are not idle, whoever has it now. */
static uint64_t gpi_chunk_busy_bytes(const gpi_chunks *chunks, const gpi_tree *tree) {
    const gpi_chunk *chunk = chunks->first;
    uint64_t units = 0;
    for (; chunk; chunk = chunk->next)
        if (!chunk->is_away && !gpi_chunk_is_idle(chunks, tree, chunk)) units += chunk->units;
    return units * GPUPOOL_UNIT_BYTES;
}

/* -- opening and closing -- */

/* Addresses for homes, twice what the device has, and for stitches, all the rest: wide spaces cost
   nothing, and rarely run out of long runs. Where the system grants less, half for each. The tree
   was just opened. */
static gpupool_result gpi_chunk_open_space(gpi_chunks *chunks, gpi_tree *tree) {
    gpi_driver *driver = &chunks->driver;
    uint64_t bytes = (uint64_t)1 << 40, home, granule = chunks->granule_units;
    CUdeviceptr address = 0;
    gpupool_result result;
    for (;; bytes /= 2) {
        CUresult error = driver->reserve(&address, (size_t)bytes, (size_t)driver->granule_bytes, 0,
                                         0);
        result = gpi_driver_told(driver, "cuMemAddressReserve", error);
        if (result != GPUPOOL_E_OUT_OF_MEMORY || bytes / 2 < driver->total_bytes * 2) break;
    }
    if (result == GPUPOOL_E_OUT_OF_MEMORY)
        return gpi_host_fail(result, "cuMemAddressReserve: the process has no addresses left for "
                             "another arena, which takes twice what the device has at least");
    if (result != GPUPOOL_OK) return result;
    chunks->reservation = address;
    chunks->reservation_bytes = bytes;
    chunks->base_unit = address / GPUPOOL_UNIT_BYTES;
    chunks->space_units = bytes / GPUPOOL_UNIT_BYTES;
    home = gpi_ground_up(driver->total_bytes * 2 / GPUPOOL_UNIT_BYTES, granule) + granule;
    home = gpi_ground_min(home, chunks->space_units / 2);
    if (!gpi_tree_prepare(tree, 2) ||
        !gpi_tree_open_table(tree, chunks->base_unit, home / granule, chunks->space_units / granule,
                             granule) ||
        !gpi_tree_prepare_cells(tree, chunks->base_unit, 0))
        return gpi_host_no_memory();
    chunks->stitch_unit = chunks->base_unit + home;
    chunks->home = gpi_tree_add_chunk(tree, chunks->base_unit, home);
    gpi_tree_put(tree, chunks->home, GPI_LIST_EMPTY, 0);
    chunks->space = gpi_tree_add_chunk(tree, chunks->stitch_unit, chunks->space_units - home);
    gpi_tree_put(tree, chunks->space, GPI_LIST_SPACE, 0);
    return GPUPOOL_OK;
}

/* Gets, maps and gives back a granule, before there is any chunk: a device may say that it can, and
   answer CUDA_ERROR_NOT_SUPPORTED. One without memory for it is no worse than any other that is
   full; what it does not take back is kept, for the next trim. The lock is held. */
static gpupool_result gpi_chunk_try_mapping(gpi_chunks *chunks, gpi_tree *tree) {
    uint64_t units = chunks->granule_units;
    gpupool_result result;
    gpi_run *taken;
    if (!gpi_tree_prepare(tree, 8) || !gpi_tree_prepare_cells(tree, chunks->base_unit, units))
        return gpi_host_no_memory();
    taken = gpi_tree_take(tree, chunks->home, chunks->base_unit, units);
    result = gpi_chunk_fill(chunks, tree, taken, units, 0);
    if (result == GPUPOOL_E_OUT_OF_MEMORY) return GPUPOOL_OK;
    if (result != GPUPOOL_OK) return result;
    if (gpi_chunk_give_back(chunks, tree, chunks->first, taken) == GPUPOOL_OK) {
        chunks->gained = chunks->lost = 0; /* as if nothing had been */
        memset(&chunks->ledger->reserved, 0, sizeof chunks->ledger->reserved);
        tree->splits = tree->merges = 0;
    }
    return GPUPOOL_OK;
}

static void gpi_chunk_forget(gpi_chunks *chunks) { /* the host's side only */
    gpi_chunk *chunk, *next;
    int i;
    for (i = 0; i < 2; i++)
        for (chunk = i ? chunks->stuck : chunks->first; chunk; chunk = next) {
            next = chunk->next;
            if (chunk->exports) gpi_host_close(chunk->descriptor); /* after a reset */
            GPUPOOL_FREE(chunk);
        }
}

/* Once nothing is reserved any more. On failure all is as it was. */
static gpupool_result gpi_chunk_close(gpi_chunks *chunks) {
    gpi_driver *driver = &chunks->driver;
    gpupool_result freed = gpi_driver_free_wait_memory(driver);
    GPI_ASSERT(chunks->count == 0 || !chunks->reservation);
    if (freed == GPUPOOL_OK && chunks->reservation) {
        CUresult error = driver->unreserve(chunks->reservation, (size_t)chunks->reservation_bytes);
        freed = gpi_driver_told(driver, "cuMemAddressFree", error);
        if (freed == GPUPOOL_OK) chunks->reservation = 0;
    }
    return freed;
}

/* A peer may use what is there, or may no longer: MAPPED memory chunk by chunk, all else by whole
   devices, which keep their access. For one that is a peer already all is done again: a reset may
   have undone it. */
static gpupool_result gpi_chunk_set_peer(gpi_chunks *chunks, int device, CUmemAccess_flags flags) {
    gpi_driver *driver = &chunks->driver;
    gpupool_result result = GPUPOOL_OK;
    gpi_chunk *chunk = chunks->first;
    if (!gpi_chunk_is_mapped(chunks))
        return flags && !gpi_chunk_is(chunks, GPI_FROM_HOST)
                   ? gpi_driver_enable_peer(driver, device) : GPUPOOL_OK;
    for (; chunk && result == GPUPOOL_OK; chunk = chunk->next)
        if (!chunk->is_away)
            result = gpi_driver_set_access(driver, chunk->unit * GPUPOOL_UNIT_BYTES, chunk->bytes,
                                           device, flags);
    return result;
}

/* == GROWTH ===================================================================================
   How large a new chunk is, and where its block lies. uses: TREE, CLOCK, CHUNK

   A block at home may begin in free memory and go on in a new chunk behind it: only what is missing
   is got from the driver. Other sources give a chunk for each growth, wherever that lies.

       home      | chunk |....####|########|.....| empty
                              ^ free    ^ new chunk: the block, and what is left of the chunk

   G1  what a growth takes is held until all of it is there; if a call fails it is as it was */

/* -- growth of a MAPPED arena at home -- */

typedef struct gpi_growth { /* a block that gets new memory, and where */
    uint64_t unit, units;           /* the block */
    int is_alone;                   /* it does not begin in free memory */
    int is_exact;                   /* no chunk may be larger than is needed */
    int is_one_chunk;               /* all of the block is in one; is_alone, too */
    int tag;                        /* of the new chunks */
    uint64_t new_unit, new_units;   /* empty granules that become memory for it */
    gpi_run *left;                  /* free memory before these, in which the block begins */
    gpi_run *empty;                  /* the run that they are in; NULL: there is no place */
} gpi_growth;

static int gpi_growth_is_usable(const gpi_tree *tree, const gpi_run *run) {
    return run->list < GPI_LIST_WAITING && run->of.at < tree->lists[run->list]->usable_below &&
           run->as.bin < GPI_SLABS * GPI_KIND_BINS;
}

static void gpi_growth_consider(const gpi_chunks *chunks, gpi_growth *best, gpi_run *empty,
                                gpi_run *left, uint64_t align_units) {
    uint64_t granule = chunks->granule_units, end = empty->unit + empty->units;
    uint64_t start = gpi_ground_up(left ? left->unit : empty->unit, align_units), from, to;
    if (left && start >= empty->unit) left = NULL; /* then the block begins in empty addresses */
    from = gpi_ground_max(gpi_ground_down(start, granule), empty->unit);
    to = gpi_ground_up(start + best->units, granule);
    if (end == chunks->stitch_unit) end -= granule; /* never used: see gpi_tree_from */
    if (to > end || to <= from) return;
    if (best->empty && to - from >= best->new_units) return;
    best->unit = start;
    best->new_unit = from;
    best->new_units = to - from;
    best->left = left;
    best->empty = empty;
}

/* The place that needs the least new memory, of so many empty runs or of more until there is one:
   beside free memory that is marked as usable. */
static void gpi_growth_find_place(const gpi_chunks *chunks, const gpi_tree *tree,
                                  uint64_t align_units, gpi_growth *best) {
    const gpi_list *list = tree->lists[GPI_LIST_EMPTY];
    uint32_t bin = gpi_tree_next(list, 0);
    int looked = 0;
    best->empty = NULL;
    for (; bin != GPI_NO_BIN; bin = gpi_tree_next(list, bin + 1)) {
        gpi_run *run = list->heads[bin];
        for (; run && (looked++ < 64 || !best->empty); run = run->list_next) {
            gpi_run *left = best->is_alone ? NULL : run->prev;
            if (left && !gpi_growth_is_usable(tree, left)) left = NULL;
            gpi_growth_consider(chunks, best, run, left, align_units);
        }
    }
}

/* How large a new chunk is: a share of what is reserved, or of the request. The driver's price is
   per handle, so few large chunks are cheap; but a chunk with one live block in it cannot be
   stitched whole, which costs memory, above all where a limit has to be met. Measured on recorded
   runs. */
static uint64_t gpi_growth_units(const gpi_chunks *chunks, uint64_t new_units) {
    const uint64_t mib = (1u << 20) / GPUPOOL_UNIT_BYTES, granule = chunks->granule_units;
    int limited = chunks->ledger->limit_bytes != UINT64_MAX;
    uint64_t units = chunks->units / (limited ? 512 : 96);
    uint64_t least = limited ? 0 : gpi_ground_min(chunks->units / 4, 8 * mib);
    if (chunks->chunk_bytes)
        return gpi_ground_up(chunks->chunk_bytes, chunks->driver.granule_bytes) /
               GPUPOOL_UNIT_BYTES;
    units = gpi_ground_max(units, new_units / (limited ? 64 : 32));
    units = gpi_ground_min(gpi_ground_max(units, least), 32 * mib);
    return gpi_ground_max(gpi_ground_down(units, granule), granule);
}

/* Cuts [unit, unit + units) out of a taken run; the rest goes to a list. Needs two spare structs.
   */
static gpi_run *gpi_growth_carve(gpi_tree *tree, gpi_run *run, uint64_t unit, uint64_t units,
                                 uint32_t list) {
    if (run->units > unit - run->unit + units)
        gpi_tree_put(tree, gpi_tree_split(tree, run, unit + units), list, 0);
    if (unit > run->unit) {
        gpi_run *head = run;
        run = gpi_tree_split(tree, run, unit);
        gpi_tree_put(tree, head, list, 0);
    }
    return run;
}

/* Where a chunk of the usual size is larger than the growth needs: as much of it as there is room
   for. */
static void gpi_growth_round_up(const gpi_chunks *chunks, gpi_growth *growth, uint64_t size,
                                uint64_t room) {
    uint64_t empty = growth->empty->unit + growth->empty->units - growth->new_unit;
    uint64_t granule = chunks->granule_units;
    if (growth->empty->unit + growth->empty->units == chunks->stitch_unit) empty -= granule;
    size = gpi_ground_min(gpi_ground_min(size, gpi_ground_down(room, granule)), empty);
    growth->new_units = gpi_ground_max(growth->new_units, size);
}

/* Gets memory for a block at home, so that at most most_units are reserved. The run is taken,
   exactly the block. Lists that it may begin in are marked as usable, and no longer on return. */
static gpupool_result gpi_growth_grow(gpi_chunks *chunks, gpi_tree *tree, gpi_growth *growth,
                                      uint64_t most_units, gpi_run **out) {
    uint64_t room = most_units - gpi_ground_min(most_units, chunks->units);
    uint64_t size = gpi_ground_max(gpi_growth_units(chunks, growth->new_units),
                                   growth->is_one_chunk ? growth->new_units : 0);
    gpi_run *taken, *left = growth->left;
    gpi_stream *owner = NULL;
    uint64_t at = 0;
    gpupool_result result;
    result = !growth->empty || growth->new_units > room ? GPUPOOL_E_OUT_OF_MEMORY : GPUPOOL_OK;
    if (result == GPUPOOL_OK && !growth->is_exact) gpi_growth_round_up(chunks, growth, size, room);
    if (result == GPUPOOL_OK &&
        (!gpi_tree_prepare(tree, 8) ||
         !gpi_tree_prepare_cells(tree, growth->new_unit, growth->new_units)))
        result = gpi_host_no_memory();
    if (result == GPUPOOL_OK && left) {
        owner = gpi_clock_borrow(tree, left);
        at = left->of.at;
        left = gpi_tree_take(tree, left, growth->unit, growth->empty->unit - growth->unit);
    }
    gpi_tree_unmark(tree);
    if (result != GPUPOOL_OK) return result;
    taken = gpi_tree_take(tree, growth->empty, growth->new_unit, growth->new_units);
    result = gpi_chunk_fill(chunks, tree, taken, size, growth->tag);
    if (result == GPUPOOL_OK) result = gpi_chunk_announce(chunks, tree, taken);
    if (result == GPUPOOL_OK && !gpi_tree_prepare(tree, 2)) {
        gpi_chunk_put(chunks, tree, taken); /* it is there now, and stays */
        result = gpi_host_no_memory();
    }
    if (result != GPUPOOL_OK) {
        if (left) gpi_chunk_return(chunks, left, owner, at);
        return result;
    }
    if (owner) owner->refs--;
    if (left) gpi_tree_weld(tree, left, taken);
    *out = gpi_growth_carve(tree, left ? left : taken, growth->unit, growth->units,
                            gpi_chunk_list(chunks, tree, growth->new_unit));
    return GPUPOOL_OK;
}

/* -- growth of the other sources -- */

/* A chunk for a request of so many bytes: an eighth of what is reserved, so that their number grows
   with the logarithm of the memory; a request larger than that gets a chunk of its own. */
static uint64_t gpi_growth_size(const gpi_chunks *chunks, uint64_t need, uint64_t most) {
    uint64_t reserved = chunks->units * GPUPOOL_UNIT_BYTES;
    uint64_t granule = chunks->driver.granule_bytes, size;
    uint64_t room = most - gpi_ground_min(most, reserved);
    if (!gpi_chunk_is(chunks, GPI_FROM_POOL)) return need;
    size = chunks->chunk_bytes ? chunks->chunk_bytes
                               : gpi_ground_min(reserved / 8, (uint64_t)1 << 30);
    size = gpi_ground_up(gpi_ground_max(gpi_ground_max(size, need), granule), granule);
    if (room < granule) /* the last of the limit, in one or two: not a chunk for each block */
        size = gpi_ground_min(gpi_ground_down(room, GPUPOOL_UNIT_BYTES), 1u << 20);
    else
        size = gpi_ground_min(size, gpi_ground_down(room, granule));
    return gpi_ground_max(need, size);
}

/* The driver holds whole granules for a chunk of more than 1 MiB, so that is what is asked for and
   counted. */
static uint64_t gpi_growth_whole(const gpi_chunks *chunks, uint64_t bytes) {
    int fine = bytes <= 1u << 20 || !gpi_chunk_is(chunks, GPI_FROM_GRANULES);
    return gpi_ground_up(bytes, fine ? GPUPOOL_UNIT_BYTES : chunks->driver.granule_bytes);
}

/* The least growth that surely holds a request. CUDA aligns to 512 bytes at least. */
static uint64_t gpi_growth_need(const gpi_chunks *chunks, uint64_t units, uint64_t align_units) {
    if (gpi_chunk_is_mapped(chunks))
        return gpi_ground_up(units * GPUPOOL_UNIT_BYTES, chunks->driver.granule_bytes);
    units += align_units - 1;
    if (gpi_chunk_is(chunks, GPI_FROM_UNALIGNED) || GPUPOOL_UNIT_BYTES > 512) units++;
    return gpi_growth_whole(chunks, units * GPUPOOL_UNIT_BYTES);
}

/* What the source gives for a request, at least `need`: smaller ones are asked for when it refuses.
   The lock is open. */
static gpupool_result gpi_growth_ask(const gpi_chunks *chunks, uint64_t need, gpi_chunk *chunk) {
    gpupool_result result;
    for (;; chunk->bytes = gpi_ground_max(need, gpi_growth_whole(chunks, chunk->bytes / 2))) {
        result = chunks->from->get(chunks, chunk->bytes, &chunk->memory);
        if (result != GPUPOOL_E_OUT_OF_MEMORY || chunk->bytes == need) return result;
    }
}

/* Tells the program of a new chunk, which is one taken run. If it refuses, the chunk goes back. On
   success there are spare structs to carve it with. */
static gpupool_result gpi_growth_welcome(gpi_chunks *chunks, gpi_tree *tree, gpi_chunk *chunk) {
    gpupool_mapping mapping = gpi_chunk_mapping(chunks, chunk);
    struct gpi_thread why;
    gpupool_result result;
    if (!chunks->on_map) return GPUPOOL_OK; /* the lock was not open since they were prepared */
    result = gpi_chunk_tell(chunks, chunks->on_map, &mapping);
    if (result == GPUPOOL_OK && gpi_tree_prepare(tree, 4)) return GPUPOOL_OK;
    if (result == GPUPOOL_OK) {
        gpi_tree_put(tree, chunk->first, GPI_LIST_ANY, 0); /* it is there now, and stays */
        return gpi_host_no_memory();
    }
    why = gpi_thread;
    chunk->is_untold = 1;
    gpi_chunk_drop(chunks, tree, chunk);
    gpi_thread = why;
    return result;
}

/* A chunk for a request under at most most_bytes of reserved memory. The run is taken, exactly the
   request. */
static gpupool_result gpi_growth_add(gpi_chunks *chunks, gpi_tree *tree, const gpi_growth *growth,
                                     uint64_t align_units, uint64_t most_bytes, gpi_run **out) {
    uint64_t need = gpi_growth_need(chunks, growth->units, align_units), address;
    gpupool_result result = GPUPOOL_OK;
    gpi_chunk *chunk;
    if (need > most_bytes || chunks->ledger->reserved.now > most_bytes - need)
        return GPUPOOL_E_OUT_OF_MEMORY;
    chunk = (gpi_chunk *)gpi_host_zeroed(sizeof *chunk);
    if (!chunk || !gpi_tree_prepare(tree, 4)) {
        GPUPOOL_FREE(chunk);
        return gpi_host_no_memory();
    }
    chunk->bytes = gpi_growth_size(chunks, need, most_bytes);
    gpi_host_unlock(chunks->lock);
    result = gpi_growth_ask(chunks, need, chunk);
    gpi_host_lock(chunks->lock);
    if (result == GPUPOOL_OK && !gpi_tree_prepare(tree, 4)) {
        gpi_host_unlock(chunks->lock);
        chunks->from->give(chunks, chunk->memory, chunk->bytes);
        gpi_host_lock(chunks->lock);
        result = gpi_host_no_memory();
    }
    if (result != GPUPOOL_OK) {
        GPUPOOL_FREE(chunk);
        return result;
    }
    address = (uint64_t)(uintptr_t)chunk->memory;
    chunk->unit = gpi_ground_up(address, GPUPOOL_UNIT_BYTES) / GPUPOOL_UNIT_BYTES;
    chunk->units = (address + chunk->bytes) / GPUPOOL_UNIT_BYTES - chunk->unit;
    chunk->first = gpi_tree_add_chunk(tree, chunk->unit, chunk->units);
    gpi_chunk_link(chunks, NULL, chunk);
    gpi_chunk_gained(chunks, chunk);
#if GPUPOOL_NVTX
    if (gpi_chunk_is(chunks, GPI_FROM_TOLD))
        chunk->heap = gpi_driver_tell_chunk(chunk->memory, chunk->bytes);
#endif
    result = gpi_growth_welcome(chunks, tree, chunk);
    if (result != GPUPOOL_OK) return result;
    *out = gpi_growth_carve(tree, chunk->first, gpi_ground_up(chunk->unit, align_units),
                            growth->units, GPI_LIST_ANY);
    return GPUPOOL_OK;
}

/* The largest request that a new chunk holds, if the limit leaves so much for it, and the device.
   Above 1 MiB the device gives whole granules. */
static uint64_t gpi_growth_room(const gpi_chunks *chunks, uint64_t limit_bytes,
                                uint64_t device_bytes) {
    uint64_t granule = chunks->driver.granule_bytes, bytes, lost;
    uint64_t by_device = gpi_ground_max(gpi_ground_down(device_bytes, granule),
                                        gpi_ground_min(device_bytes, 1u << 20));
    bytes = gpi_ground_min(limit_bytes, gpi_chunk_is(chunks, GPI_FROM_DEVICE) ? by_device
                                                                              : device_bytes);
    if (gpi_chunk_is_mapped(chunks))
        bytes = gpi_ground_down(bytes, granule);
    else if (gpi_chunk_is(chunks, GPI_FROM_GRANULES))
        bytes = gpi_ground_max(gpi_ground_down(bytes, granule), gpi_ground_min(bytes, 1u << 20));
    bytes = gpi_ground_down(bytes, GPUPOOL_UNIT_BYTES);
    if (gpi_chunk_is_mapped(chunks)) return bytes;
    lost = gpi_growth_need(chunks, 1, 1) - GPUPOOL_UNIT_BYTES; /* by a chunk's own alignment */
    return bytes - gpi_ground_min(bytes, lost);
}

/* == STITCH ===================================================================================
   A large block from free memory that lies in several places: a second range of addresses over it.
   uses: DRIVER, TREE, CLOCK, CHUNK, GROWTH

   The chunks stay mapped at home. A stitch maps their handles once more, side by side: free memory
   at the end of one chunk, wholly free chunks, free memory at the start of one more. Handles map
   whole, so the range covers whole chunks, and the block its part of the first and of the last.

       home      |..####|  |######|     |######|  |###...|      #: the block's units
                     \________\____        |         |
       stitch             |..####|######|######|###...|
                          ^ pad  ^ body, the block  ^ pad

   Nothing is taken away before something new is there: a stitch that fails half-way is unmapped,
   and nothing else happened. Memory that a stream has freed may be stitched for it at once,
   whatever still runs there, since mapping adds an address and removes none.

   When the block is freed its units go back to the free lists as home runs, and the stitch stays
   mapped, idle. The same size asked for again, with the same units free, takes it back without a
   call of the driver: programs repeat themselves. Idle stitches are bounded by their handles, and
   the one unused for longest goes first, once the work of its last user is done.

   S1  a unit is free or in one block, known by its home address: a run in list PART leads to the
       stitch of a block that is not free, and is one of its parts; the parts are all of the block,
       each at the offset at which the stitch maps its chunk
   S2  an idle stitch owns no units. It remembers its last user, and is unmapped only when that has
       passed, or when one of its chunks is idle, so that all users of the chunk have
   S3  what was last used in a capture scope stays mapped until the scope's release
   S4  a stitch is of chunks of its own arena, and a chunk lists the stitches over it
   S5  the index has live blocks alone: home addresses of a stitched block, and idle stitches, are
       free memory to whoever frees them
   S6  the addresses of stitches are used once; idle stitches hold at most GPI_IDLE_SEAMS handles,
       or four for each chunk, but for those whose user has not passed
   S7  an alignment counts from the block's first byte
   S8  to take or to free a stitched block costs a step for each home run of it
   S9  units are taken under the lock before the first driver call, and go back if it fails */

enum {
    GPI_IDLE_SEAMS = 8192,   /* handles that idle stitches may hold, whatever the arena's size */
    GPI_REUSE_TRIES = 32     /* idle stitches of a size whose units are looked at */
};

typedef struct gpi_seam { /* one chunk of one stitch */
    gpi_chunk *chunk;
    struct gpi_stitch *stitch;
    struct gpi_seam *prev, *next; /* of the same chunk */
} gpi_seam;

typedef struct gpi_part { /* home units of a block, side by side */
    uint64_t unit, units;
    gpi_run *run;            /* NULL while the stitch is idle */
    gpi_stream *owner;       /* while it is made: where it goes back to; NULL: anybody's */
    uint64_t at;             /* and its position there */
} gpi_part;

typedef enum gpi_stitch_state {
    GPI_STITCH_USED,         /* its block is live, or not free yet */
    GPI_STITCH_IDLE,
    GPI_STITCH_SPOILT        /* of no use: the driver could not map all of it, nor unmap it; or it
                                is being unmapped */
} gpi_stitch_state;

typedef struct gpi_stitch {
    struct gpi_stitch *older, *newer;      /* of all, by the latest free */
    struct gpi_stitch *same_prev, *same_next; /* of about this size, as they were made */
    gpi_stitch_state state;
    gpi_run *body;           /* the block: held while the stitch is idle; pads are beside it */
    uint64_t unit, units;    /* all that is mapped */
    gpi_stream *user;        /* idle: the last; NULL: it has passed */
    uint64_t user_at;        /* the position at which it freed the block */
    uint64_t look;           /* the latest look of a verdict, and its number in that */
    uint64_t nth;
    int is_told;             /* the program knows of it */
    int is_leaving;          /* a thread is about to unmap it */
    int is_away;             /* asleep: it is not mapped, */
    uint32_t left_seams;     /* but for so many, which could not be unmapped: the first ones */
    uint32_t seam_count, part_count;
    gpi_seam *seams;         /* by address, behind this struct */
    gpi_part *parts;         /* by offset, behind the seams */
} gpi_stitch;

typedef struct gpi_free_chunk { /* a chunk, and how much of it is free for the request */
    gpi_chunk *chunk;
    uint64_t units;
} gpi_free_chunk;

typedef struct gpi_stitches {
    gpi_chunks *chunks;
    gpi_tree *tree;
    gpi_clocks *clocks;
    int off;                 /* config.no_stitch */
    gpi_stitch *oldest, *newest;
    gpi_stitch *first_of[GPI_KIND_BINS], *last_of[GPI_KIND_BINS]; /* by size: gpi_tree_bin */
    uint64_t count, seams, idle_seams; /* seams: of all; idle_seams: of those that are not used */
    uint64_t used_units;     /* in stitched blocks */
    uint64_t making_units;   /* addresses of the stitch that is being made */
    uint64_t made, reused, unmapped;
    gpi_free_chunk *room;    /* one for each chunk: for a plan, or the idle ones */
    uint64_t room_chunks;
    gpi_part *taken;         /* for a plan's parts */
    uint64_t taken_count, taken_room;
    uint64_t tail_at;        /* the first of them that is of the plan's tail */
    uint64_t looks;          /* of verdicts at stitched blocks: see gpi_limit_counts */
    uint64_t host_bytes;
} gpi_stitches;

static uint64_t gpi_stitch_bytes(const gpi_stitch *stitch) { /* of host memory */
    return sizeof *stitch + stitch->seam_count * sizeof(gpi_seam) +
           stitch->part_count * sizeof(gpi_part);
}

/* The stitch of a run among the addresses for stitches: of a block that is not free, or idle. */
static gpi_stitch *gpi_stitch_of(const gpi_stitches *stitches, const gpi_run *run) {
    return (gpi_stitch *)gpi_tree_owner(stitches->tree, run->unit);
}

GPI_HOT int gpi_stitch_is(const gpi_stitches *stitches, const gpi_run *run) {
    return run->unit >= stitches->chunks->stitch_unit;
}

/* Whether the arena makes stitches. */
static int gpi_stitch_can(const gpi_stitches *stitches) {
    return gpi_chunk_is(stitches->chunks, GPI_FROM_STITCHES) && !stitches->off;
}

/* -- the check -- */

/* The parts are the block, each where the seams put it. */
static int gpi_stitch_check_parts(const gpi_stitch *stitch) {
    uint64_t at = stitch->body->unit - stitch->unit, offset = 0, units;
    uint32_t seam = 0, i;
    for (i = 0; i < stitch->part_count; i++) {
        const gpi_part *part = &stitch->parts[i];
        uint64_t done = 0;
        for (; done < part->units; done += units, at += units) {
            const gpi_chunk *chunk;
            while (seam < stitch->seam_count && at >= offset + stitch->seams[seam].chunk->units)
                offset += stitch->seams[seam++].chunk->units;
            if (seam == stitch->seam_count) return 1;
            chunk = stitch->seams[seam].chunk;
            if (part->unit + done != chunk->unit + (at - offset)) return 1;
            units = gpi_ground_min(part->units - done, offset + chunk->units - at);
        }
        if ((part->run != NULL) != (stitch->state == GPI_STITCH_USED)) return 2;
        if (!part->run) continue;
        if (part->run->list != GPI_LIST_PART || part->run->of.uses != stitch) return 1;
        if (part->run->unit != part->unit || part->run->units != part->units) return 1;
    }
    return at == stitch->body->unit - stitch->unit + stitch->body->units ? 0 : 1;
}

static int gpi_stitch_check_one(const gpi_stitches *stitches, const gpi_stitch *stitch) {
    uint64_t units = 0;
    uint32_t i;
    for (i = 0; i < stitch->seam_count; i++) {
        const gpi_seam *seam = &stitch->seams[i], *other = seam->chunk->seams;
        while (other && other != seam) other = other->next;
        if (!other || seam->stitch != stitch) return 4;
        units += seam->chunk->units;
    }
    if (units != stitch->units || gpi_stitch_of(stitches, stitch->body) != stitch) return 6;
    if (stitch->state != GPI_STITCH_USED && stitch->body->list != GPI_LIST_TAKEN) return 5;
    if (stitch->state == GPI_STITCH_SPOILT) return 0;
    return gpi_stitch_check_parts(stitch);
}

/* Adds up what the stitches have, and compares with what the chunks and the tree say. */
static int gpi_stitch_check(const gpi_stitches *stitches) {
    const gpi_stitch *stitch = stitches->oldest, *before = NULL;
    uint64_t seams = 0, idle_seams = 0, count = 0, used = 0, parts = 0, i;
    uint64_t space = stitches->making_units;
    const gpi_run *run;
    if (!gpi_chunk_is_mapped(stitches->chunks)) return 0;
    for (; stitch; before = stitch, stitch = stitch->newer, count++) {
        int broken = gpi_stitch_check_one(stitches, stitch);
        if (broken) return broken;
        if (stitch->older != before) return 6;
        seams += stitch->seam_count;
        space += gpi_ground_max(stitch->units, stitch->body->units); /* of a spoilt one all */
        if (stitch->state != GPI_STITCH_USED) {
            idle_seams += stitch->seam_count;
            continue;
        }
        parts += stitch->part_count;
        used += stitch->body->units;
    }
    if (before != stitches->newest || count != stitches->count || seams != stitches->seams ||
        idle_seams != stitches->idle_seams || used != stitches->used_units)
        return 6;
    for (run = stitches->chunks->home; run; run = run->next) parts -= run->list == GPI_LIST_PART;
    if (parts) return 1; /* each is one of its stitch's, so none is left */
    for (run = stitches->chunks->space; run; run = run->next)
        if (run->list == GPI_LIST_SPACE) space += run->units;
    for (i = 0; i < GPI_KIND_BINS; i++)
        for (stitch = stitches->first_of[i]; stitch; stitch = stitch->same_next)
            count -= gpi_tree_bin(stitch->body->units) == i;
    return count == 0 && space == stitches->chunks->base_unit + stitches->chunks->space_units -
                                      stitches->chunks->stitch_unit ? 0 : 6;
}

/* -- lists -- */

static void gpi_stitch_link(gpi_stitches *stitches, gpi_stitch *stitch) { /* as the newest */
    stitch->newer = NULL;
    stitch->older = stitches->newest;
    if (stitches->newest) stitches->newest->newer = stitch;
    else stitches->oldest = stitch;
    stitches->newest = stitch;
}

static void gpi_stitch_unlink(gpi_stitches *stitches, gpi_stitch *stitch) {
    if (stitch->newer) stitch->newer->older = stitch->older;
    else stitches->newest = stitch->older;
    if (stitch->older) stitch->older->newer = stitch->newer;
    else stitches->oldest = stitch->newer;
}

static void gpi_stitch_link_size(gpi_stitches *stitches, gpi_stitch *stitch) { /* as the latest */
    uint32_t size = gpi_tree_bin(stitch->body->units);
    stitch->same_next = NULL;
    stitch->same_prev = stitches->last_of[size];
    if (stitch->same_prev) stitch->same_prev->same_next = stitch;
    else stitches->first_of[size] = stitch;
    stitches->last_of[size] = stitch;
}

static void gpi_stitch_unlink_size(gpi_stitches *stitches, gpi_stitch *stitch) {
    uint32_t size = gpi_tree_bin(stitch->body->units);
    if (stitch->same_next) stitch->same_next->same_prev = stitch->same_prev;
    else stitches->last_of[size] = stitch->same_prev;
    if (stitch->same_prev) stitch->same_prev->same_next = stitch->same_next;
    else stitches->first_of[size] = stitch->same_next;
}

/* It is idle from now on: user is the stream that freed it, at a position; NULL: all work is
   done. */
static void gpi_stitch_set_idle(gpi_stitches *stitches, gpi_stitch *stitch, gpi_stream *user,
                                uint64_t at) {
    stitch->state = GPI_STITCH_IDLE;
    stitch->user = user;
    stitch->user_at = at;
    if (user) user->refs++;
    stitches->idle_seams += stitch->seam_count;
}

/* The work of a stream that used idle stitches lies behind another position. */
static void gpi_stitch_restamp(gpi_stitches *stitches, const gpi_stream *stream, uint64_t at) {
    gpi_stitch *stitch = stitches->oldest;
    for (; stitch; stitch = stitch->newer)
        if (stitch->user == stream) stitch->user_at = at;
}

static void gpi_stitch_forget_user(gpi_stitch *stitch) {
    if (stitch->user) stitch->user->refs--;
    stitch->user = NULL;
}

static void gpi_stitch_unset_idle(gpi_stitches *stitches, gpi_stitch *stitch) {
    gpi_stitch_forget_user(stitch);
    stitches->idle_seams -= stitch->seam_count;
    stitch->state = GPI_STITCH_USED;
}

static void gpi_stitch_set_spoilt(gpi_stitches *stitches, gpi_stitch *stitch) {
    stitch->state = GPI_STITCH_SPOILT;
    stitches->idle_seams += stitch->seam_count;
}

static void gpi_stitch_add_seam(gpi_seam *seam, gpi_stitch *stitch, gpi_chunk *chunk) {
    seam->chunk = chunk;
    seam->stitch = stitch;
    seam->prev = NULL;
    seam->next = chunk->seams;
    if (chunk->seams) chunk->seams->prev = seam;
    chunk->seams = seam;
}

static void gpi_stitch_remove_seam(gpi_seam *seam) {
    if (seam->next) seam->next->prev = seam->prev;
    if (seam->prev) seam->prev->next = seam->next;
    else seam->chunk->seams = seam->next;
}

/* -- a block is freed, or taken again -- */

/* A taken run, or part of one, becomes free: for a stream at a position; NULL: for anybody. */
GPI_HOT void gpi_stitch_put_home(gpi_stitches *stitches, gpi_run *run, gpi_stream *stream,
                                uint64_t at, uint64_t absorb_units) {
    uint32_t list = stream ? stream->list : (uint32_t)GPI_LIST_ANY;
    run->of.at = at;
    if (stitches->chunks->is_apart) {
        uint32_t own = gpi_chunk_list(stitches->chunks, stitches->tree, run->unit);
        if (own != GPI_LIST_ANY) list = own;
    }
    gpi_tree_put(stitches->tree, run, list, absorb_units);
}

/* The tag whose chunks the block at a unit lies in; 0: chunks that all others share. */
static int gpi_stitch_tag_at(const gpi_stitches *stitches, uint64_t unit) {
    const void *owner;
    if (!stitches->chunks->is_apart) return 0;
    owner = gpi_tree_owner(stitches->tree, unit);
    if (!owner) return 0;
    if (unit < stitches->chunks->stitch_unit) return ((const gpi_chunk *)owner)->tag;
    return ((const gpi_stitch *)owner)->seams[0].chunk->tag;
}

/* A taken block that is stitched becomes free: its parts do, and its stitch is idle. */
static void gpi_stitch_put_parts(gpi_stitches *stitches, gpi_run *run, gpi_stream *stream,
                                 uint64_t at, uint64_t absorb_units) {
    gpi_stitch *stitch = gpi_stitch_of(stitches, run);
    uint32_t i;
    GPI_ASSERT(run->list == GPI_LIST_TAKEN && stitch->state == GPI_STITCH_USED);
    for (i = 0; i < stitch->part_count; i++) {
        gpi_run *part = stitch->parts[i].run;
        part->list = GPI_LIST_TAKEN;
        gpi_stitch_put_home(stitches, part, stream, at, absorb_units);
        stitch->parts[i].run = NULL;
    }
    stitches->used_units -= run->units;
    gpi_stitch_set_idle(stitches, stitch, stream, at);
    gpi_stitch_unlink(stitches, stitch);
    gpi_stitch_link(stitches, stitch);
}

/* A taken block becomes free. */
GPI_HOT void gpi_stitch_put(gpi_stitches *stitches, gpi_run *run, gpi_stream *stream, uint64_t at,
                            uint64_t absorb_units) {
    if (stream) gpi_clock_queue(stitches->clocks, stream);
    if (gpi_stitch_is(stitches, run))
        gpi_stitch_put_parts(stitches, run, stream, at, absorb_units);
    else
        gpi_stitch_put_home(stitches, run, stream, at, absorb_units);
}

/* Whether all these home units are free, in free lists that are usable; counts the runs that they
   are in. */
static int gpi_stitch_is_free(const gpi_tree *tree, uint64_t unit, uint64_t units, uint64_t *runs) {
    const gpi_run *run = gpi_tree_at(tree, unit);
    for (; gpi_growth_is_usable(tree, run); run = run->next) {
        ++*runs;
        if (run->unit + run->units >= unit + units) return 1;
    }
    return 0;
}

/* Free units side by side, from a run on, become one taken run. Needs two spare structs for each
   run. */
static gpi_run *gpi_stitch_take(gpi_tree *tree, gpi_run *run, uint64_t unit, uint64_t units) {
    gpi_run *next, *piece, *taken = NULL;
    uint64_t end = unit + units, piece_units;
    for (; unit < end; unit += piece_units, run = next) {
        next = run->next;
        piece_units = gpi_ground_min(run->unit + run->units, end) - unit;
        piece = gpi_tree_take(tree, run, unit, piece_units);
        if (taken) gpi_tree_weld(tree, taken, piece);
        else taken = piece;
    }
    return taken;
}

static void gpi_stitch_use_part(gpi_stitch *stitch, gpi_part *part, gpi_run *taken) {
    taken->list = GPI_LIST_PART;
    taken->of.uses = stitch;
    part->run = taken;
}

/* An idle stitch of just this size whose units are free in usable free lists: its block, held.
   Makes no call of the driver. The first that was made comes first, so that a program that repeats
   itself meets the same choices again. NULL: there is none. */
static gpi_run *gpi_stitch_reuse(gpi_stitches *stitches, uint64_t units, uint64_t align_units) {
    gpi_stitch *stitch = stitches->first_of[gpi_tree_bin(units)];
    int tries = GPI_REUSE_TRIES;
    uint64_t runs = 0;
    uint32_t i = 0;
    for (; stitch && tries; stitch = stitch->same_next) {
        if (stitch->state != GPI_STITCH_IDLE || stitch->body->units != units ||
            stitch->body->unit % align_units)
            continue;
        for (i = 0, runs = 0; i < stitch->part_count; i++)
            if (!gpi_stitch_is_free(stitches->tree, stitch->parts[i].unit, stitch->parts[i].units,
                                    &runs))
                break;
        if (i == stitch->part_count) break;
        tries--;
    }
    if (!stitch || !tries || !gpi_tree_prepare(stitches->tree, 2 * runs + 1)) return NULL;
    gpi_stitch_unset_idle(stitches, stitch);
    for (i = 0; i < stitch->part_count; i++)
        gpi_stitch_use_part(stitch, &stitch->parts[i],
                            gpi_stitch_take(stitches->tree,
                                            gpi_tree_at(stitches->tree, stitch->parts[i].unit),
                                            stitch->parts[i].unit, stitch->parts[i].units));
    stitches->used_units += units;
    stitches->reused++;
    return stitch->body;
}

/* -- a stitch is unmapped -- */

/* The addresses of a stitch, all held, are for others again. */
static void gpi_stitch_give_space(gpi_stitches *stitches, gpi_stitch *stitch) {
    gpi_run *run = stitch->body;
    gpi_tree_own(stitches->tree, gpi_ground_down(run->unit, stitches->chunks->granule_units),
                 stitches->chunks->granule_units, NULL);
    while (run->unit > stitch->unit) {
        run = run->prev;
        gpi_tree_weld(stitches->tree, run, run->next);
    }
    while (run->unit + run->units < stitch->unit + stitch->units)
        gpi_tree_weld(stitches->tree, run, run->next);
    gpi_tree_put(stitches->tree, run, GPI_LIST_SPACE, 0);
}

static gpupool_mapping gpi_stitch_mapping(const gpi_stitch *stitch) {
    gpupool_mapping mapping;
    memset(&mapping, 0, sizeof mapping);
    mapping.memory = (void *)(uintptr_t)(stitch->unit * GPUPOOL_UNIT_BYTES);
    mapping.bytes = (size_t)(stitch->units * GPUPOOL_UNIT_BYTES);
    return mapping;
}

/* Whether the program is told of what is mapped; then both locks are open at times. */
static int gpi_stitch_tells(const gpi_stitches *stitches) {
    return stitches->chunks->on_map || stitches->chunks->on_unmap;
}

/* The program is told once, and then the stitch's addresses are taken away. */
static gpupool_result gpi_stitch_take_down(gpi_stitches *stitches, gpi_stitch *stitch) {
    gpi_chunks *chunks = stitches->chunks;
    gpupool_mapping mapping = gpi_stitch_mapping(stitch);
    gpupool_result result;
    stitch->is_leaving = 1;
    if (stitch->is_told) gpi_chunk_tell(chunks, chunks->on_unmap, &mapping);
    stitch->is_told = 0;
    gpi_host_unlock(chunks->lock);
    result = gpi_driver_unmap(&chunks->driver, stitch->unit * GPUPOOL_UNIT_BYTES,
                              stitch->units * GPUPOOL_UNIT_BYTES);
    gpi_host_lock(chunks->lock);
    stitch->is_leaving = 0;
    return result;
}

/* A stitch that is not mapped, nor among the idle ones, is no more. */
static void gpi_stitch_remove(gpi_stitches *stitches, gpi_stitch *stitch) {
    gpi_stitch_unlink(stitches, stitch);
    gpi_stitch_unlink_size(stitches, stitch);
    while (stitch->seam_count) {
        gpi_stitch_remove_seam(&stitch->seams[--stitch->seam_count]);
        stitches->seams--;
        stitches->host_bytes -= sizeof(gpi_seam);
    }
    stitches->host_bytes -= gpi_stitch_bytes(stitch);
    gpi_stitch_give_space(stitches, stitch);
    stitches->count--;
    stitches->unmapped++;
    GPUPOOL_FREE(stitch);
}

/* Unmaps a stitch that is not in use, and that nothing uses any more. On failure it stays; spoilt,
   if the program was told that it goes. */
static gpupool_result gpi_stitch_unmap(gpi_stitches *stitches, gpi_stitch *stitch) {
    gpupool_result result;
    int was_idle = stitch->state == GPI_STITCH_IDLE;
    if (was_idle) { /* so that nobody takes it meanwhile */
        gpi_stitch_unset_idle(stitches, stitch);
        gpi_stitch_set_spoilt(stitches, stitch);
    }
    result = gpi_stitch_take_down(stitches, stitch);
    if (result != GPUPOOL_OK && (!was_idle || gpi_stitch_tells(stitches))) return result;
    stitches->idle_seams -= stitch->seam_count;
    if (result != GPUPOOL_OK) {
        gpi_stitch_set_idle(stitches, stitch, NULL, 0);
        return result;
    }
    gpi_stitch_remove(stitches, stitch);
    return GPUPOOL_OK;
}

static int gpi_stitch_has_passed(const gpi_stitches *stitches, const gpi_stitch *stitch) {
    if (stitch->state == GPI_STITCH_USED || stitch->is_leaving) return 0;
    return !stitch->user ||
           stitch->user_at <= gpi_clock_done(stitches->clocks, stitch->user);
}

/* Unmaps idle stitches, the one unused for longest first, until they hold at most so many handles;
   those whose user has not passed stay. */
static void gpi_stitch_bound(gpi_stitches *stitches, uint64_t most_seams) {
    gpi_stitch *stitch = stitches->oldest, *newer;
    for (; stitch && stitches->idle_seams > most_seams; stitch = newer) {
        newer = stitch->newer; /* which stays: whoever unmaps one holds `growing` */
        if (!gpi_stitch_has_passed(stitches, stitch)) continue;
        if (gpi_stitch_unmap(stitches, stitch) != GPUPOOL_OK) return;
        if (gpi_stitch_tells(stitches)) newer = stitches->oldest; /* it was open */
    }
}

static uint64_t gpi_stitch_most_seams(const gpi_stitches *stitches) {
    return gpi_ground_max(GPI_IDLE_SEAMS, 4 * stitches->chunks->count);
}

/* Unmaps the stitches over a chunk that is held, and was idle. E_IN_USE: another thread is about to
   unmap one. */
static gpupool_result gpi_stitch_clear(gpi_stitches *stitches, gpi_chunk *chunk) {
    gpupool_result result = GPUPOOL_OK;
    const gpi_seam *seam;
    while ((seam = chunk->seams) != NULL && result == GPUPOOL_OK) {
        if (seam->stitch->is_leaving) return GPUPOOL_E_IN_USE;
        result = gpi_stitch_unmap(stitches, seam->stitch);
        GPI_ASSERT(result != GPUPOOL_OK || chunk->seams != seam); /* it took its seams with it */
    }
    return result;
}

/* -- idle chunks go back to the driver -- */

static int gpi_stitch_by_size(const void *a, const void *b) { /* the largest first */
    const gpi_free_chunk *x = (const gpi_free_chunk *)a, *y = (const gpi_free_chunk *)b;
    if (x->units != y->units) return x->units < y->units ? 1 : -1;
    return x->chunk->unit < y->chunk->unit ? -1 : 1;
}

/* Room for as many chunks as there are. 0: the host has no memory. */
static int gpi_stitch_prepare(gpi_stitches *stitches) {
    uint64_t count = stitches->chunks->count + stitches->chunks->count / 2 + 16;
    void *room;
    if (stitches->room_chunks >= stitches->chunks->count) return 1;
    room = GPUPOOL_MALLOC((size_t)(count * sizeof *stitches->room));
    if (!room) return 0;
    GPUPOOL_FREE(stitches->room);
    stitches->host_bytes += (count - stitches->room_chunks) * sizeof *stitches->room;
    stitches->room = (gpi_free_chunk *)room;
    stitches->room_chunks = count;
    return 1;
}

/* A chunk that is idle, whatever the source. On failure it stays. */
static gpupool_result gpi_stitch_drop_chunk(gpi_stitches *stitches, gpi_chunk *chunk) {
    gpi_chunks *chunks = stitches->chunks;
    gpi_tree *tree = stitches->tree;
    gpupool_result result;
    gpi_run *taken;
    if (!gpi_chunk_is_mapped(chunks)) {
        gpi_tree_unfile(tree, chunk->first);
        gpi_chunk_tell_going(chunks, chunk);
        return gpi_chunk_drop(chunks, tree, chunk);
    }
    if (!gpi_tree_prepare(tree, 2)) return gpi_host_no_memory();
    taken = gpi_stitch_take(tree, gpi_tree_at(tree, chunk->unit), chunk->unit, chunk->units);
    result = gpi_stitch_clear(stitches, chunk);
    if (result == GPUPOOL_OK) {
        gpi_chunk_tell_going(chunks, chunk);
        return gpi_chunk_give_back(chunks, tree, chunk, taken);
    }
    gpi_chunk_put(chunks, tree, taken);
    return result;
}

/* The idle chunks, the largest first, in stitches->room. E_HOST_MEMORY: there is none for them. */
static gpupool_result gpi_stitch_list_idle(gpi_stitches *stitches, uint64_t *count) {
    gpi_chunk *chunk = stitches->chunks->first;
    *count = 0;
    if (!gpi_stitch_prepare(stitches)) return gpi_host_no_memory();
    for (; chunk; chunk = chunk->next) {
        if (!gpi_chunk_is_idle(stitches->chunks, stitches->tree, chunk)) continue;
        stitches->room[*count].chunk = chunk;
        stitches->room[(*count)++].units = chunk->bytes;
    }
    if (*count) qsort(stitches->room, (size_t)*count, sizeof *stitches->room, gpi_stitch_by_size);
    return GPUPOOL_OK;
}

/* Gives idle chunks back, the largest first, while more than keep_bytes stays reserved, and none
   that would leave less. */
static gpupool_result gpi_stitch_trim(gpi_stitches *stitches, uint64_t keep_bytes) {
    gpi_chunks *chunks = stitches->chunks;
    const uint64_t *reserved = &chunks->ledger->reserved.now;
    gpupool_result result = GPUPOOL_OK;
    uint64_t count = 0, i;
    if (*reserved <= keep_bytes) return GPUPOOL_OK;
    if (chunks->stuck) result = gpi_chunk_retry(chunks, stitches->tree);
    if (result == GPUPOOL_OK) result = gpi_stitch_list_idle(stitches, &count);
    for (i = 0; i < count && result == GPUPOOL_OK && *reserved > keep_bytes; i++) {
        gpi_chunk *chunk = stitches->room[i].chunk;
        if (chunk->bytes > *reserved - keep_bytes) continue;
        if (!gpi_chunk_is_idle(chunks, stitches->tree, chunk)) continue; /* the lock was open */
        result = gpi_stitch_drop_chunk(stitches, chunk);
        if (result != GPUPOOL_OK || !gpi_stitch_tells(stitches)) continue;
        result = gpi_stitch_list_idle(stitches, &count); /* all locks were */
        i = UINT64_MAX;
    }
    return result == GPUPOOL_E_IN_USE ? GPUPOOL_OK : result;
}

/* The same until at most so many bytes are reserved, if there is as much idle: the last chunk may
   be larger than what is left to give, and is the smallest such. */
static gpupool_result gpi_stitch_trim_below(gpi_stitches *stitches, uint64_t bytes) {
    gpupool_result result = gpi_stitch_trim(stitches, bytes);
    uint64_t count = 0;
    if (result != GPUPOOL_OK || stitches->chunks->ledger->reserved.now <= bytes) return result;
    result = gpi_stitch_list_idle(stitches, &count);
    if (count) result = gpi_stitch_drop_chunk(stitches, stitches->room[count - 1].chunk);
    return result == GPUPOOL_E_IN_USE ? GPUPOOL_OK : result; /* it is just going */
}

/* The units at its beginning that are mapped: all, but while the arena sleeps. */
static uint64_t gpi_stitch_mapped_units(const gpi_stitch *stitch) {
    uint64_t units = 0;
    uint32_t i;
    if (!stitch->is_away) return stitch->units;
    for (i = 0; i < stitch->left_seams; i++) units += stitch->seams[i].chunk->units;
    return units;
}

/* After a reset, which takes chunks with it, but no mapped memory: all of it goes back, with the
   blocks in it. What CUDA refuses is there for the next try. The lock is held. */
static gpupool_result gpi_stitch_salvage(gpi_stitches *stitches) {
    gpi_chunks *chunks = stitches->chunks;
    gpi_driver *driver = &chunks->driver;
    gpupool_result result = GPUPOOL_OK;
    gpi_stitch *stitch, *next;
    uint64_t mapped;
    for (stitch = stitches->oldest; stitch && result == GPUPOOL_OK; stitch = next) {
        next = stitch->newer;
        mapped = gpi_stitch_mapped_units(stitch);
        if (mapped)
            result = gpi_driver_unmap(driver, stitch->unit * GPUPOOL_UNIT_BYTES,
                                      mapped * GPUPOOL_UNIT_BYTES);
        if (result != GPUPOOL_OK) break;
        gpi_stitch_forget_user(stitch);
        gpi_stitch_unlink(stitches, stitch);
        GPUPOOL_FREE(stitch);
    }
    while (gpi_chunk_is_mapped(chunks) && chunks->first && result == GPUPOOL_OK) {
        gpi_chunk *chunk = chunks->first;
        if (!chunk->is_away)
            result = gpi_driver_unmap(driver, chunk->unit * GPUPOOL_UNIT_BYTES, chunk->bytes);
        if (result != GPUPOOL_OK) break;
        gpi_chunk_unlink(chunks, chunk);
        chunks->units += chunk->is_away ? chunk->units : 0;
        if (chunk->handle) gpi_chunk_stick(chunks, chunk);
        else gpi_chunk_lost(chunks, chunk);
    }
    if (result == GPUPOOL_OK && gpi_chunk_is_mapped(chunks))
        result = gpi_chunk_retry(chunks, stitches->tree);
    return result == GPUPOOL_OK ? gpi_chunk_close(chunks) : result;
}

static gpupool_result gpi_stitch_set_peer(gpi_stitches *stitches, int device,
                                          CUmemAccess_flags flags) {
    gpupool_result result = gpi_chunk_set_peer(stitches->chunks, device, flags);
    gpi_stitch *stitch = stitches->oldest;
    for (; stitch && result == GPUPOOL_OK; stitch = stitch->newer)
        if (stitch->state != GPI_STITCH_SPOILT && !stitch->is_away)
            result = gpi_driver_set_access(&stitches->chunks->driver,
                                           stitch->unit * GPUPOOL_UNIT_BYTES,
                                           stitch->units * GPUPOOL_UNIT_BYTES, device, flags);
    return result;
}

/* The peer reaches what is mapped, stitches too; and what will be, once it is in the driver's
   list. */
static gpupool_result gpi_stitch_allow_peer(gpi_stitches *stitches, int device) {
    gpi_driver *driver = &stitches->chunks->driver;
    gpupool_result result = gpi_driver_hold_peer(driver, device);
    if (result != GPUPOOL_OK) return result;
    result = gpi_stitch_set_peer(stitches, device, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    gpi_driver_end_holding(driver, device, result);
    return result;
}

/* The end of that; if it fails, all is as before. */
static gpupool_result gpi_stitch_disallow_peer(gpi_stitches *stitches, int device) {
    gpupool_result result = gpi_stitch_set_peer(stitches, device, CU_MEM_ACCESS_FLAGS_PROT_NONE);
    struct gpi_thread why = gpi_thread;
    if (result == GPUPOOL_OK) {
        gpi_driver_drop_peer(&stitches->chunks->driver, device);
        return result;
    }
    gpi_stitch_set_peer(stitches, device, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    gpi_thread = why;
    return result;
}

static void gpi_stitch_forget(gpi_stitches *stitches) { /* the host's side only */
    gpi_stitch *stitch, *newer;
    for (stitch = stitches->oldest; stitch; stitch = newer) {
        newer = stitch->newer;
        GPUPOOL_FREE(stitch);
    }
    GPUPOOL_FREE(stitches->room);
    GPUPOOL_FREE(stitches->taken);
}

/* == PLAN =====================================================================================
   How a stitch comes to be: what is free, which of it is taken, and what is grown for the rest.
   uses: DRIVER, TREE, CLOCK, CHUNK, GROWTH, STITCH

   Wholly free chunks are taken, the largest first. What is then left of the request comes from free
   memory at the end of a chunk (the head) or at the start of another (the tail), the shortest that
   suffices; or a whole chunk is cut; or memory is grown:

       | chunk ...head | chunk | chunk | grown | tail... chunk |

   P1  planning changes nothing; the free lists that it may use are marked by the caller
   P2  making takes all units under the lock before the first call of the driver, and gives each
       back to its owner if a call fails (S9) */

typedef struct gpi_plan {
    uint64_t units, align_units;  /* the block, */
    gpi_stream *owner;            /* the stream that it is for, */
    cudaStream_t stream;          /* and its handle */
    int tag;                      /* whose chunks it may use; 0: those that all others share */
    uint64_t most_units;          /* that may be reserved afterwards */
    uint64_t most_seams;          /* that are worth their price */
    gpi_free_chunk head, tail;    /* free units at the end of one chunk, at the start of another */
    gpi_free_chunk *whole;        /* chunks between them, by address */
    uint64_t whole_count;
    uint64_t new_units;           /* to be grown for it, before the tail: granules if one follows */
    uint64_t seam_count;
} gpi_plan;

/* What is free in usable free lists, of one arena at one time. */
typedef struct gpi_measure {
    gpi_free_chunk heads[2], tails[2]; /* the longest, from two chunks each */
    uint64_t whole_units, whole_count;
    uint64_t kept_units;               /* of whole_units: reserves, which are not given back */
} gpi_measure;

static void gpi_plan_rank(gpi_free_chunk two[2], gpi_chunk *chunk, uint64_t units) {
    if (units > two[0].units) {
        two[1] = two[0];
        two[0].chunk = chunk;
        two[0].units = units;
    } else if (units > two[1].units) {
        two[1].chunk = chunk;
        two[1].units = units;
    }
}

/* How much of a chunk is free from its start on, and up to its end. */
static uint64_t gpi_plan_free_at_start(const gpi_tree *tree, const gpi_chunk *chunk) {
    const gpi_run *run = gpi_tree_from(tree, chunk->unit);
    uint64_t end = chunk->unit + chunk->units;
    if (run->unit > chunk->unit) run = run->prev;
    while (run->unit < end && gpi_growth_is_usable(tree, run)) run = run->next;
    return gpi_ground_min(gpi_ground_max(run->unit, chunk->unit), end) - chunk->unit;
}

static uint64_t gpi_plan_free_at_end(const gpi_tree *tree, const gpi_chunk *chunk) {
    uint64_t end = chunk->unit + chunk->units, from = end;
    const gpi_run *run = gpi_tree_from(tree, end)->prev;
    for (; run && from > chunk->unit && gpi_growth_is_usable(tree, run); run = run->prev)
        from = run->unit;
    return end - gpi_ground_max(from, chunk->unit);
}

/* Looks at every chunk; `whole` gets those that are wholly free, unless it is NULL. */
static void gpi_plan_look(const gpi_stitches *stitches, gpi_free_chunk *whole,
                            gpi_measure *measure) {
    gpi_chunk *chunk = stitches->chunks->first;
    memset(measure, 0, sizeof *measure);
    for (; chunk; chunk = chunk->next) {
        uint64_t units = gpi_plan_free_at_start(stitches->tree, chunk);
        if (units == chunk->units) {
            if (whole) whole[measure->whole_count].chunk = chunk;
            if (whole) whole[measure->whole_count].units = units;
            measure->whole_count++;
            measure->whole_units += units;
            continue;
        }
        gpi_plan_rank(measure->tails, chunk, units);
        gpi_plan_rank(measure->heads, chunk, gpi_plan_free_at_end(stitches->tree, chunk));
    }
}

/* The longest free memory at the end of one chunk and at the start of another, together. */
static void gpi_plan_ends(const gpi_measure *measure, gpi_free_chunk *head,
                            gpi_free_chunk *tail) {
    *head = measure->heads[0];
    *tail = measure->tails[0];
    if (!head->units || !tail->units || head->chunk != tail->chunk) return;
    if (measure->heads[0].units + measure->tails[1].units >=
        measure->heads[1].units + measure->tails[0].units)
        *tail = measure->tails[1];
    else
        *head = measure->heads[1];
}

static int gpi_plan_by_address(const void *a, const void *b) {
    const gpi_free_chunk *x = (const gpi_free_chunk *)a, *y = (const gpi_free_chunk *)b;
    return x->chunk->unit < y->chunk->unit ? -1 : 1;
}

/* Wholly free chunks for up to so many units, the largest first; returns how many units are left
   over, which is less than any chunk that was not chosen. `spare`: the smallest of these. */
static uint64_t gpi_plan_choose(gpi_plan *plan, uint64_t count, uint64_t units,
                                  gpi_free_chunk *spare) {
    uint64_t i;
    spare->chunk = NULL;
    plan->whole_count = 0;
    if (count == 0) return units;
    qsort(plan->whole, (size_t)count, sizeof *plan->whole, gpi_stitch_by_size);
    for (i = 0; i < count; i++) {
        gpi_free_chunk chunk = plan->whole[i];
        if (chunk.units <= units) {
            units -= chunk.units;
            plan->whole[plan->whole_count++] = chunk;
        } else {
            *spare = chunk;
        }
    }
    qsort(plan->whole, (size_t)plan->whole_count, sizeof *plan->whole, gpi_plan_by_address);
    return units;
}

/* The shortest free end or start of a chunk that has so many units, as the plan's head or tail;
   what is left over of it is of no use to stitches. 0: there is none. */
static int gpi_plan_closest(const gpi_stitches *stitches, gpi_plan *plan, uint64_t units) {
    gpi_chunk *chunk = stitches->chunks->first;
    uint64_t least = UINT64_MAX;
    for (; chunk; chunk = chunk->next) {
        uint64_t tail = gpi_plan_free_at_start(stitches->tree, chunk), head = 0;
        if (tail == chunk->units) continue;
        if (plan->align_units == 1) head = gpi_plan_free_at_end(stitches->tree, chunk);
        if (tail >= units && tail < least) {
            least = tail;
            plan->tail.chunk = chunk;
            plan->tail.units = units;
            plan->head.units = 0;
        }
        if (head >= units && head < least) {
            least = head;
            plan->head.chunk = chunk;
            plan->head.units = units;
            plan->tail.units = 0;
        }
    }
    return least != UINT64_MAX;
}

/* The rest of the block: from the ends that are free, if they suffice; else a chunk is cut; else
   memory is grown, behind which of the tail only what is still missing is used. */
static void gpi_plan_rest(const gpi_stitches *stitches, gpi_plan *plan, uint64_t rest,
                                 const gpi_free_chunk *spare) {
    gpi_free_chunk head = plan->head, tail = plan->tail;
    uint64_t granule = stitches->chunks->granule_units;
    plan->head.units = plan->tail.units = 0;
    if (!rest || gpi_plan_closest(stitches, plan, rest)) return;
    if (spare->chunk && head.units + tail.units < rest) {
        plan->tail = *spare;
        plan->tail.units = rest;
    } else {
        plan->head = head;
        rest -= head.units;
        if (rest > tail.units)
            plan->new_units = gpi_ground_min(rest, gpi_ground_up(rest - tail.units, granule));
        rest -= plan->new_units;
        plan->tail = tail;
        plan->tail.units = rest;
    }
}

/* 0: the host has no memory for the plan, or the memory is not there, or not worth its price. The
   free lists that may be used are marked. */
static int gpi_plan_draw(gpi_stitches *stitches, gpi_plan *plan) {
    const gpi_chunks *chunks = stitches->chunks;
    gpi_free_chunk spare;
    gpi_measure measure;
    uint64_t rest;
    if (!gpi_stitch_prepare(stitches)) return 0;
    plan->whole = stitches->room;
    plan->new_units = 0;
    gpi_plan_look(stitches, plan->whole, &measure);
    gpi_plan_ends(&measure, &plan->head, &plan->tail);
    if (plan->align_units > 1) plan->head.units = 0; /* the block begins where a chunk does */
    rest = gpi_plan_choose(plan, measure.whole_count, plan->units, &spare);
    gpi_plan_rest(stitches, plan, rest, &spare);
    if (plan->new_units == plan->units) return 0; /* growth at home does as well */
    if (plan->new_units && chunks->units + gpi_ground_up(plan->new_units, chunks->granule_units) >
                               plan->most_units)
        return 0;
    plan->seam_count = (plan->head.units != 0) + plan->whole_count + (plan->tail.units != 0) +
                       plan->new_units / gpi_growth_units(chunks, plan->new_units);
    return plan->seam_count <= plan->most_seams;
}

/* The largest block that usable memory makes without growth. */
static uint64_t gpi_plan_largest(const gpi_stitches *stitches) {
    gpi_free_chunk head, tail;
    gpi_measure measure;
    gpi_plan_look(stitches, NULL, &measure);
    gpi_plan_ends(&measure, &head, &tail);
    return measure.whole_units + head.units + tail.units;
}

/* -- a stitch is made -- */

/* Room for one more part among those taken. 0: the host has no memory. */
static int gpi_plan_has_room(gpi_stitches *stitches) {
    uint64_t more = stitches->taken_room ? stitches->taken_room * 2 : 64;
    gpi_part *list;
    if (stitches->taken_count < stitches->taken_room) return 1;
    list = (gpi_part *)gpi_host_zeroed((size_t)(more * sizeof *list));
    if (!list) return 0;
    if (stitches->taken) memcpy(list, stitches->taken, stitches->taken_count * sizeof *list);
    GPUPOOL_FREE(stitches->taken);
    stitches->host_bytes += (more - stitches->taken_room) * sizeof *list;
    stitches->taken = list;
    stitches->taken_room = more;
    return 1;
}

/* Takes home units of the plan, as one part for each stretch of equal list. 0: the host has no
   memory; what was taken so far is in stitches->taken. */
static int gpi_plan_take_units(gpi_stitches *stitches, uint64_t unit, uint64_t units) {
    gpi_tree *tree = stitches->tree;
    gpi_run *run = gpi_tree_at(tree, unit), *next;
    uint64_t end = unit + units, piece_units;
    for (; unit < end; unit += piece_units, run = next) {
        gpi_part *part;
        if (!gpi_plan_has_room(stitches) || !gpi_tree_prepare(tree, 2)) return 0;
        next = run->next;
        part = &stitches->taken[stitches->taken_count++];
        piece_units = gpi_ground_min(run->unit + run->units, end) - unit;
        part->unit = unit;
        part->units = piece_units;
        part->owner = gpi_clock_borrow(tree, run);
        part->at = run->of.at;
        part->run = gpi_tree_take(tree, run, unit, piece_units);
    }
    return 1;
}

/* All free units of the plan. What was taken goes back if the host has no memory for it. */
static int gpi_plan_take_all(gpi_stitches *stitches, const gpi_plan *plan) {
    const gpi_chunk *head = plan->head.chunk, *tail = plan->tail.chunk;
    uint64_t i;
    int taken = 1;
    if (plan->head.units)
        taken = gpi_plan_take_units(stitches, head->unit + head->units - plan->head.units,
                                      plan->head.units);
    for (i = 0; i < plan->whole_count && taken; i++)
        taken = gpi_plan_take_units(stitches, plan->whole[i].chunk->unit, plan->whole[i].units);
    stitches->tail_at = stitches->taken_count;
    if (plan->tail.units && taken)
        taken = gpi_plan_take_units(stitches, tail->unit, plan->tail.units);
    return taken;
}

static void gpi_plan_give_units(gpi_stitches *stitches) {
    while (stitches->taken_count) {
        const gpi_part *part = &stitches->taken[--stitches->taken_count];
        gpi_chunk_return(stitches->chunks, part->run, part->owner, part->at);
    }
}

/* The request's stream waits, on the device, for other streams whose memory was taken: for the
   newest mark of each, behind which all of it lies. */
static gpupool_result gpi_plan_follow(gpi_stitches *stitches, const gpi_plan *plan) {
    gpi_clocks *clocks = stitches->clocks;
    gpupool_result result = GPUPOOL_OK;
    uint64_t i;
    clocks->visits++;
    for (i = 0; i < stitches->taken_count && result == GPUPOOL_OK; i++) {
        gpi_stream *owner = stitches->taken[i].owner;
        if (!owner || owner == plan->owner || owner->visit == clocks->visits) continue;
        if (stitches->taken[i].at <= gpi_clock_done(clocks, owner)) continue;
        owner->visit = clocks->visits;
        result = gpi_clock_follow(clocks, owner, gpi_clock_recorded(clocks, owner), plan->stream);
    }
    return result;
}

/* What was grown for a stitch that is not made goes back to the driver, but for what others have
   taken of its chunks since. */
static void gpi_plan_give_grown(gpi_stitches *stitches, gpi_run *grown) {
    struct gpi_thread why = gpi_thread;
    uint64_t unit = grown->unit, end = unit + grown->units;
    gpi_chunk_put(stitches->chunks, stitches->tree, grown);
    while (unit < end) {
        gpi_chunk *chunk = (gpi_chunk *)gpi_tree_owner(stitches->tree, unit);
        unit = chunk->unit + chunk->units;
        if (gpi_chunk_is_idle(stitches->chunks, stitches->tree, chunk))
            gpi_stitch_drop_chunk(stitches, chunk);
    }
    gpi_thread = why;
}

/* The struct of a stitch as planned, with all its seams and parts, none of them linked yet. NULL:
   the host has no memory. */
static gpi_stitch *gpi_plan_new(const gpi_stitches *stitches, const gpi_plan *plan,
                                  gpi_run *grown) {
    uint64_t seams = plan->whole_count + 2 + (grown ? grown->units : 0) /
                                                 stitches->chunks->granule_units + 1;
    uint64_t parts = stitches->taken_count + 1, i, unit = grown ? grown->unit : 0;
    gpi_stitch *stitch = (gpi_stitch *)gpi_host_zeroed(
        (size_t)(sizeof *stitch + seams * sizeof(gpi_seam) + parts * sizeof(gpi_part)));
    gpi_seam *seam;
    if (!stitch) return NULL;
    seam = stitch->seams = (gpi_seam *)(void *)(stitch + 1);
    stitch->parts = (gpi_part *)(void *)(stitch->seams + seams);
    if (plan->head.units) seam++->chunk = plan->head.chunk;
    for (i = 0; i < plan->whole_count; i++) seam++->chunk = plan->whole[i].chunk;
    for (; grown && unit < grown->unit + grown->units; seam++) {
        seam->chunk = (gpi_chunk *)gpi_tree_owner(stitches->tree, unit);
        unit = seam->chunk->unit + seam->chunk->units;
    }
    if (plan->tail.units) seam++->chunk = plan->tail.chunk;
    stitch->seam_count = (uint32_t)(seam - stitch->seams);
    for (seam = stitch->seams; seam < stitch->seams + stitch->seam_count; seam++)
        stitch->units += seam->chunk->units;
    for (i = 0; i <= stitches->taken_count; i++) {
        if (grown && i == stitches->tail_at) stitch->parts[stitch->part_count++].run = grown;
        if (i < stitches->taken_count) stitch->parts[stitch->part_count++] = stitches->taken[i];
    }
    for (i = 0; i < stitch->part_count; i++) {
        stitch->parts[i].unit = stitch->parts[i].run->unit;
        stitch->parts[i].units = stitch->parts[i].run->units;
    }
    return stitch;
}

/* Addresses for the stitch: its body and the pads beside it, held. 0: there are none. */
static int gpi_plan_take_space(gpi_stitches *stitches, const gpi_plan *plan,
                                 gpi_stitch *stitch) {
    gpi_tree *tree = stitches->tree;
    uint64_t skip = plan->head.units ? plan->head.chunk->units - plan->head.units : 0, start;
    gpi_lists space;
    gpi_fit fit;
    gpi_run *run;
    space.number[0] = GPI_LIST_SPACE;
    space.count = 1;
    memset(&fit, 0, sizeof fit);
    space.below = fit.tries = UINT64_MAX;
    fit.units = stitch->units;
    fit.align_units = plan->align_units;
    run = gpi_tree_find(tree, &space, &fit);
    if (!run || !gpi_tree_prepare(tree, 4)) return 0;
    start = gpi_ground_up(run->unit, plan->align_units);
    if (!gpi_tree_prepare_cells(tree, start + skip, 0)) return 0;
    run = gpi_tree_take(tree, run, start, stitch->units);
    stitches->making_units = stitch->units;
    stitch->unit = start;
    if (skip) run = gpi_tree_split(tree, run, start + skip);
    if (run->units > plan->units) gpi_tree_split(tree, run, run->unit + plan->units);
    stitch->body = run;
    gpi_tree_own(tree, gpi_ground_down(run->unit, stitches->chunks->granule_units),
                 stitches->chunks->granule_units, stitch);
    return 1;
}

/* Maps the chunks side by side. On failure mapped says how many still are. The lock is open. */
static gpupool_result gpi_plan_map(const gpi_stitches *stitches, const gpi_stitch *stitch,
                                     uint32_t *mapped) {
    const gpi_driver *driver = &stitches->chunks->driver;
    uint64_t unit = stitch->unit;
    gpupool_result result = GPUPOOL_OK;
    struct gpi_thread why;
    *mapped = 0;
    while (*mapped < stitch->seam_count && result == GPUPOOL_OK) {
        const gpi_chunk *chunk = stitch->seams[*mapped].chunk;
        result = gpi_driver_map(driver, unit * GPUPOOL_UNIT_BYTES, chunk->bytes, chunk->handle);
        if (result != GPUPOOL_OK) break;
        unit += chunk->units;
        ++*mapped;
    }
    if (result == GPUPOOL_OK)
        result = gpi_driver_access(driver, stitch->unit * GPUPOOL_UNIT_BYTES,
                                   stitch->units * GPUPOOL_UNIT_BYTES);
    if (result == GPUPOOL_OK || !*mapped) return result;
    why = gpi_thread; /* of the failure, not of the undoing */
    if (gpi_driver_unmap(driver, stitch->unit * GPUPOOL_UNIT_BYTES,
                         (unit - stitch->unit) * GPUPOOL_UNIT_BYTES) == GPUPOOL_OK)
        *mapped = 0;
    gpi_thread = why;
    return result;
}

/* From now on the stitch is one of the arena's, with so many of its seams mapped. */
static void gpi_plan_commit(gpi_stitches *stitches, gpi_stitch *stitch, uint32_t mapped) {
    uint32_t i;
    stitches->making_units = 0;
    stitch->seam_count = mapped;
    stitch->units = 0;
    for (i = 0; i < mapped; i++) {
        gpi_stitch_add_seam(&stitch->seams[i], stitch, stitch->seams[i].chunk);
        stitch->units += stitch->seams[i].chunk->units;
    }
    stitches->count++;
    stitches->seams += mapped;
    stitches->host_bytes += gpi_stitch_bytes(stitch);
    gpi_stitch_link(stitches, stitch);
    gpi_stitch_link_size(stitches, stitch);
}

/* What could not be unmapped after a failure: it stays, counted, and is tried again when idle
   stitches are unmapped. Its addresses are one run. */
static void gpi_plan_spoil(gpi_stitches *stitches, gpi_stitch *stitch, uint32_t mapped) {
    gpi_tree *tree = stitches->tree;
    uint64_t units = stitch->units;
    gpi_tree_own(tree, gpi_ground_down(stitch->body->unit, stitches->chunks->granule_units),
                 stitches->chunks->granule_units, NULL);
    while (stitch->body->unit > stitch->unit) {
        stitch->body = stitch->body->prev;
        gpi_tree_weld(tree, stitch->body, stitch->body->next);
    }
    while (stitch->body->units < units) gpi_tree_weld(tree, stitch->body, stitch->body->next);
    stitch->part_count = 0;
    gpi_plan_commit(stitches, stitch, mapped);
    gpi_stitch_set_spoilt(stitches, stitch);
    gpi_tree_own(tree, stitch->unit, stitches->chunks->granule_units, stitch);
}

/* The parts become the block's; those that are side by side at home, one. */
static void gpi_plan_use_parts(gpi_stitches *stitches, gpi_stitch *stitch) {
    uint32_t i, count = 0;
    for (i = 0; i < stitch->part_count; i++) {
        gpi_part *part = &stitch->parts[i], *last = &stitch->parts[count ? count - 1 : 0];
        if (count && last->run->next == part->run) {
            gpi_tree_weld(stitches->tree, last->run, part->run);
            last->units += part->units;
        } else {
            stitch->parts[count++] = *part;
        }
    }
    for (i = 0; i < count; i++)
        gpi_stitch_use_part(stitch, &stitch->parts[i], stitch->parts[i].run);
    stitch->part_count = count;
}

/* New chunks for a stitch, all of which it uses where a tail follows. */
static gpupool_result gpi_plan_grow(gpi_stitches *stitches, const gpi_plan *plan,
                                      gpi_run **grown) {
    gpi_growth growth;
    memset(&growth, 0, sizeof growth);
    growth.units = plan->new_units;
    growth.is_alone = 1;
    growth.is_exact = plan->tail.units != 0;
    growth.tag = plan->tag;
    gpi_growth_find_place(stitches->chunks, stitches->tree, 1, &growth);
    return gpi_growth_grow(stitches->chunks, stitches->tree, &growth, plan->most_units, grown);
}

/* Maps a stitch that has its addresses. If that fails they are free again, or the stitch is spoilt;
   in any case it is no longer the caller's. */
static gpupool_result gpi_plan_bring(gpi_stitches *stitches, gpi_stitch *stitch) {
    gpupool_result result;
    uint32_t mapped;
    gpi_host_unlock(stitches->chunks->lock);
    result = gpi_plan_map(stitches, stitch, &mapped);
    gpi_host_lock(stitches->chunks->lock);
    /* from then on the lock stays shut, so that this is still there when the block comes alive */
    if (result == GPUPOOL_OK && !gpi_tree_prepare(stitches->tree, 2)) result = gpi_host_no_memory();
    if (result == GPUPOOL_OK) {
        gpi_plan_use_parts(stitches, stitch);
        gpi_plan_commit(stitches, stitch, mapped);
    } else if (mapped) {
        gpi_plan_spoil(stitches, stitch, mapped);
    } else {
        stitches->making_units = 0;
        gpi_stitch_give_space(stitches, stitch);
        GPUPOOL_FREE(stitch);
    }
    return result;
}

/* Tells the program of a new stitch, whose block is held. If it refuses, the block's units are the
   stream's free memory, and the stitch is unmapped. */
static gpupool_result gpi_plan_announce(gpi_stitches *stitches, const gpi_plan *plan,
                                        gpi_stitch *stitch) {
    gpupool_mapping mapping = gpi_stitch_mapping(stitch);
    struct gpi_thread why;
    gpupool_result result = gpi_chunk_tell(stitches->chunks, stitches->chunks->on_map, &mapping);
    stitch->is_told = result == GPUPOOL_OK;
    if (result == GPUPOOL_OK) return result;
    why = gpi_thread;
    gpi_stitch_put(stitches, stitch->body, plan->owner,
                   gpi_clock_issue(stitches->clocks, plan->owner), 0);
    gpi_stitch_unmap(stitches, stitch); /* nothing has ever used it */
    gpi_thread = why;
    return result;
}

/* Growth by what a stitch lacks, where the program is told of chunks: all locks are open then, and
   the plan is of no use after. The new memory is anybody's, and the ladder starts again. */
static gpupool_result gpi_plan_grow_first(gpi_stitches *stitches, const gpi_plan *plan) {
    gpi_run *grown = NULL;
    gpupool_result result;
    gpi_tree_unmark(stitches->tree);
    result = gpi_plan_grow(stitches, plan, &grown);
    if (result == GPUPOOL_OK) gpi_chunk_put(stitches->chunks, stitches->tree, grown);
    return result;
}

/* Makes what was planned. The block is held; on failure all is as it was. NULL with success: memory
   is other than it was. No list is marked on return. */
static gpupool_result gpi_plan_make(gpi_stitches *stitches, const gpi_plan *plan, gpi_run **out) {
    gpupool_result result = GPUPOOL_OK;
    gpi_stitch *stitch = NULL;
    gpi_run *grown = NULL;
    uint64_t i;
    if (plan->new_units && gpi_stitch_tells(stitches)) return gpi_plan_grow_first(stitches, plan);
    stitches->taken_count = 0;
    if (!gpi_tree_prepare(stitches->tree, 2 * plan->whole_count + 16) ||
        !gpi_plan_take_all(stitches, plan))
        result = gpi_host_no_memory();
    gpi_tree_unmark(stitches->tree);
    if (result == GPUPOOL_OK) result = gpi_plan_follow(stitches, plan);
    if (result == GPUPOOL_OK && plan->new_units) result = gpi_plan_grow(stitches, plan, &grown);
    if (result == GPUPOOL_OK) {
        stitch = gpi_plan_new(stitches, plan, grown);
        if (!stitch) result = gpi_host_no_memory();
    }
    if (result == GPUPOOL_OK && !gpi_plan_take_space(stitches, plan, stitch)) {
        GPUPOOL_FREE(stitch);
        result = GPUPOOL_E_OUT_OF_MEMORY; /* no addresses; or the host has no memory, which others
                                             will tell */
    }
    if (result == GPUPOOL_OK) result = gpi_plan_bring(stitches, stitch);
    if (result != GPUPOOL_OK) {
        if (grown) gpi_plan_give_grown(stitches, grown);
        gpi_plan_give_units(stitches);
        return result;
    }
    for (i = 0; i < stitches->taken_count; i++)
        if (stitches->taken[i].owner) stitches->taken[i].owner->refs--;
    stitches->used_units += plan->units;
    stitches->made++;
    result = gpi_plan_announce(stitches, plan, stitch);
    if (result == GPUPOOL_OK) *out = stitch->body;
    return result;
}

/* == LIMIT ====================================================================================
   Limits and sizes as text. uses: HOST

       limit  = [ "-" ] number [ " " ] [ unit ]          "-": all of the device but this
       unit   = "%" | "%free" | B | K M G T | KiB MiB GiB TiB (1024) | KB MB GB TB (1000) */

static int gpi_limit_same(const char *text, const char *word) { /* case does not matter */
    for (; *text || *word; text++, word++) {
        char a = *text >= 'a' && *text <= 'z' ? (char)(*text - 32) : *text;
        char b = *word >= 'a' ? (char)(*word - 32) : *word;
        if (a != b) return 0;
    }
    return 1;
}

/* Bytes in one of this unit; below 0 for a unit that is none. Percentages are of total or free
   bytes. */
static double gpi_limit_unit(const char *text, uint64_t total_bytes, uint64_t free_bytes) {
    static const char letters[] = "KMGTkmgt";
    const char *letter = strchr(letters, *text);
    double base = 1000, bytes = 1;
    int power;
    if (!*text || gpi_limit_same(text, "B")) return 1;
    if (gpi_limit_same(text, "%")) return (double)total_bytes / 100;
    if (gpi_limit_same(text, "%free")) return (double)free_bytes / 100;
    if (!letter) return -1;
    if (!text[1] || gpi_limit_same(text + 1, "iB")) base = 1024;
    else if (!gpi_limit_same(text + 1, "B")) return -1;
    for (power = (int)(letter - letters) % 4; power >= 0; power--) bytes *= base;
    return bytes;
}

/* Quotes the text in its error, so that a wrong environment variable is found at once. */
static gpupool_result gpi_limit_wrong(const char *where, const char *text, const char *rule) {
    return gpi_host_fail(GPUPOOL_E_ARGUMENT, "%s: the limit \"%.60s\" %s", where, text, rule);
}

static gpupool_result gpi_limit_parse(const char *where, const char *text, uint64_t total_bytes,
                                      uint64_t free_bytes, uint64_t *out_bytes) {
    const char *at = text;
    int all_but = *at == '-', digits = 0, whole = 1;
    double value = 0, scale = 1, unit;
    if (all_but) at++;
    for (; *at >= '0' && *at <= '9'; at++, digits++) value = value * 10 + (*at - '0');
    if (*at == '.' && digits)
        for (whole = 0, at++; *at >= '0' && *at <= '9'; at++) value += (*at - '0') * (scale /= 10);
    if (!digits) return gpi_limit_wrong(where, text, "does not begin with a number");
    if (*at == ' ' && at[1]) at++;
    unit = gpi_limit_unit(at, total_bytes, free_bytes);
    if (unit < 0)
        return gpi_limit_wrong(where, text, "ends in no unit that is known: B KiB MiB GiB TiB "
                               "KB MB GB TB K M G T % %free");
    if (!whole && unit < 2) /* "0.8" may mean 80%, "1.5" may mean GiB */
        return gpi_limit_wrong(where, text, "is no whole number of bytes: add a unit, or %");
    if (*at == '%' && value > 100) return gpi_limit_wrong(where, text, "is over 100%");
    value *= unit;
    if (value >= 9e18) return gpi_limit_wrong(where, text, "is larger than any memory");
    if (all_but && value >= (double)total_bytes)
        return gpi_limit_wrong(where, text, "leaves nothing of the device");
    *out_bytes = (uint64_t)(value + 0.5); /* tenths and hundredths have no exact doubles */
    if (all_but) *out_bytes = total_bytes - *out_bytes;
    if (*out_bytes == 0) return gpi_limit_wrong(where, text, "is zero");
    return GPUPOOL_OK;
}

static const char *gpi_limit_spell(char room[32], uint64_t bytes, int upwards) {
    uint64_t unit = 1, part;
    int power = 0;
    for (; bytes / unit >= 1000 && power < 4; power++) unit *= 1024;
    part = power && bytes / unit < 100 ? 100 : 1; /* hundredths are shown, or none */
    bytes = bytes / unit * part + (bytes % unit * part + (upwards ? unit - 1 : unit / 2)) / unit;
    if (part == 1) snprintf(room, 32, "%" PRIu64, bytes);
    else snprintf(room, 32, "%" PRIu64 ".%02" PRIu64, bytes / 100, bytes % 100);
    snprintf(room + strlen(room), 8, power ? " %ciB" : " B", " KMGT"[power]);
    return room;
}

/* "1.25 GiB" and the like; several may be used in one sentence, so the caller has the room. */
static const char *gpi_limit_human(char room[32], uint64_t bytes) {
    return gpi_limit_spell(room, bytes, 0);
}

/* At least so much, in as few digits: what is advised must be enough. */
static const char *gpi_limit_enough(char room[32], uint64_t bytes) {
    return gpi_limit_spell(room, bytes, 1);
}

static const char *gpi_limit_base(const char *file) {
    const char *at = file;
    for (; *at; at++)
        if (*at == '/' || *at == '\\') file = at + 1;
    return file;
}

/* == ARENA ====================================================================================
   The arena's struct, how calls come into it, and what holds of it as a whole. uses: all above

   A1  ledger.granted is the tree's live units but for what caches have free, ledger.blocks its live
       runs but for those, ledger.requested what they were asked for with; each site has the blocks
       and bytes of its live runs
   A2  ledger.pending is what free lists of streams and caches hold, and what waits
   A3  a waiting run is in list WAITING, and has a use
   A4  a tag's granted bytes and blocks are those of the live runs with it, and what is coming
   Locks, in this order: `growing` sleeps, and is held by the one thread that gets memory from the
   driver or gives it back, but never while the host waits for the device or runs a function of the
   caller's; a stream's lock is held by whoever uses its cache; `lock` by whoever changes the tree.
   The latter two spin, for tens of nanoseconds; a check and a report hold them for longer, some
   50 ns a block. */

enum { /* a default arena that a reset has emptied; in place of the number of forks */
    GPI_CLOSED = -1,
    GPI_RENEWING = -2             /* a thread is about to open it again */
};

typedef enum gpi_arena_state {
    GPI_AWAKE,
    GPI_ON_ITS_WAY,               /* a thread is putting it to sleep, or waking it */
    GPI_ASLEEP
} gpi_arena_state;

typedef struct gpi_arena_saved {        /* home units, and where the host has what they held */
    uint64_t unit, units;
    uint64_t offset;
} gpi_arena_saved;

typedef struct gpi_arena_backup {  /* of one part of the arena that sleeps */
    gpi_arena_saved *saved;
    uint64_t saved_count;
    unsigned char *memory;
    uint64_t bytes;
} gpi_arena_backup;

typedef struct gpi_arena_sleep {  /* arrays: [0] the chunks that all share, [tag] a tag's own */
    unsigned char states[GPUPOOL_TAGS + 1]; /* gpi_arena_state */
    gpi_arena_backup backups[GPUPOOL_TAGS + 1];
    gpi_run *aside;               /* free memory, set aside; linked by list_next */
    uint64_t backup_bytes, backup_most; /* of all */
} gpi_arena_sleep;

struct gpupool_arena {
    gpupool_arena *next;          /* of the process */
    int visitors;                 /* threads on their way through those: it stays until they left */
    int forks;                    /* of the process when the arena was made; or GPI_CLOSED */
    int searching;                /* threads that look for memory: none goes into caches */
    int is_untold;                /* a soft limit was passed, and the program not told: see TAG */
    FILE *trace;                  /* where calls are recorded, or NULL */
    gpi_clocks clocks;
    gpi_chunks chunks;
    gpi_stitches stitches;
    gpi_mutex growing;
    gpi_run *waiting, *waiting_last; /* freed while other streams used them; linked by list_next */
    uint64_t waiting_units;
    uint64_t waiting_seen;        /* clocks.advances when they were last looked at */
    uint64_t short_until;         /* memory was short: frees before this position get a mark each */
    uint64_t in_hand;             /* runs that threads have taken without `growing`, and may
                                     return */
    uint64_t captures;            /* scopes not yet released */
    uint64_t halfway;             /* calls that found the arena awake, and go on without its lock
                                     for a while */
    gpi_arena_sleep sleep;
    uint64_t keep_bytes;          /* trim keeps this much: config.reserve_bytes */
    uint64_t granted_most;        /* the peak before peaks were last reset */
    int (*on_out_of_memory)(const gpupool_verdict *, void *);
    void *user;
    char name[32];
    char instead[96];             /* why AUTO has not taken MAPPED; "": it has, or was not asked */
    gpi_lock lock;                /* from here on all changes often: not near what is only read */
    gpi_tree tree;
    gpi_ledger ledger;
};

struct gpupool_capture {
    gpupool_arena *arena;
    gpi_stream *stream;       /* the graph's, with the stream's key until the end */
    gpi_stream *outer;        /* what had the key before; NULL: nothing */
    uintptr_t key;
};

GPI_HOT void gpi_arena_count_pending(gpupool_arena *arena) {
    gpi_ledger_set(&arena->ledger.pending,
                   arena->ledger.cached_bytes +
                       (arena->tree.pending_units + arena->waiting_units) * GPUPOOL_UNIT_BYTES);
}

/* -- the check -- */

static uint64_t gpi_arena_requested(const gpi_run *run) {
    return run->units * GPUPOOL_UNIT_BYTES - gpi_tree_slack(run);
}

/* What was requested with a live run; 0 where it is free in a cache. The stream's lock is held. */
static uint64_t gpi_arena_asked(const gpi_run *run) {
    if (run->list != GPI_LIST_CACHED) return gpi_arena_requested(run);
    return gpi_cache_asked_at((gpi_cache *)run->of.uses, run->unit);
}

#if GPUPOOL_SITES
/* Blocks and bytes, weighed by their site, add up to the same over runs and over sites: so no site
   has another's. */
static int gpi_arena_check_sites(gpupool_arena *arena) {
    uint64_t at = 0, blocks = 0, bytes = 0;
    gpi_site *site = NULL;
    const gpi_run *run;
    int number;
    while ((run = gpi_tree_next_live(&arena->tree, &at)) != NULL) {
        uint64_t asked = gpi_arena_asked(run), weight = (uint64_t)(uintptr_t)run->site >> 4;
        if (asked) blocks += weight;
        bytes += asked * weight;
    }
    while ((site = gpi_ledger_next_site(&arena->ledger, site, &number)) != NULL) {
        if (site->bytes > site->bytes_peak || site->blocks > site->allocs) return 1;
        if (site->same != site && site->allocs) return 1;
        blocks -= site->blocks * ((uint64_t)(uintptr_t)site >> 4);
        bytes -= site->bytes * ((uint64_t)(uintptr_t)site >> 4);
    }
    return blocks != 0 || bytes != 0;
}
#endif
/* What was requested, in all and by site, from the live runs themselves. */
static int gpi_arena_check_live(gpupool_arena *arena) {
    uint64_t at = 0, bytes = 0;
    const gpi_run *run;
    while ((run = gpi_tree_next_live(&arena->tree, &at)) != NULL) bytes += gpi_arena_asked(run);
    if (GPUPOOL_STATS && bytes != arena->ledger.requested.now) return 1;
#if GPUPOOL_SITES
    return gpi_arena_check_sites(arena);
#else
    return 0;
#endif
}

/* Granted bytes whose memory sleeps. */
static uint64_t gpi_arena_asleep_bytes(const gpupool_arena *arena) {
    uint64_t of_tags = 0, asleep = 0;
    int tag;
    for (tag = 1; tag <= arena->ledger.tag_count; tag++) {
        uint64_t bytes = arena->ledger.tags[tag]->stats.granted.now -
                         arena->ledger.tags[tag]->coming;
        of_tags += arena->chunks.apart[tag].is_apart ? bytes : 0;
        asleep += arena->sleep.states[tag] == GPI_ASLEEP ? bytes : 0;
    }
    if (arena->sleep.states[0] != GPI_ASLEEP) return asleep;
    return asleep + arena->ledger.granted.now - of_tags;
}

/* What is granted with tags, from the live runs themselves. */
static int gpi_arena_check_tags(const gpupool_arena *arena) {
    uint64_t bytes[GPUPOOL_TAGS + 1], blocks[GPUPOOL_TAGS + 1], at = 0;
    const gpi_run *run;
    int tag;
    memset(bytes, 0, sizeof bytes);
    memset(blocks, 0, sizeof blocks);
    while (arena->ledger.tag_count && (run = gpi_tree_next_live(&arena->tree, &at)) != NULL) {
        if (run->list == GPI_LIST_CACHED) continue;
        if (gpi_tree_tag(run) > (uint32_t)arena->ledger.tag_count) return 1;
        bytes[gpi_tree_tag(run)] += run->units * GPUPOOL_UNIT_BYTES;
        blocks[gpi_tree_tag(run)]++;
    }
    for (tag = 1; tag <= arena->ledger.tag_count; tag++) {
        const gpi_ledger_tag *of = arena->ledger.tags[tag];
        if (of->stats.granted.now != bytes[tag] + of->coming) return 1;
        if (of->stats.blocks.now != blocks[tag] + of->coming_blocks) return 1;
    }
    return 0;
}

/* What refers to the streams: uses of live and of waiting blocks, and idle stitches. Everything
   else is gone when no call is under way. */
static int gpi_arena_check_refs(const gpupool_arena *arena) {
    uint64_t refs = 0, uses = 0, users = 0, at = 0;
    const gpi_stream *stream;
    const gpi_stitch *stitch;
    const gpi_use *use;
    const gpi_run *run;
    for (stream = arena->clocks.streams; stream; stream = stream->next) refs += stream->refs;
    for (stitch = arena->stitches.oldest; stitch; stitch = stitch->newer)
        users += stitch->user != NULL;
    for (run = arena->waiting; run; run = run->list_next)
        for (use = (const gpi_use *)run->of.uses; use; use = use->next) uses++;
    while ((run = gpi_tree_next_live(&arena->tree, &at)) != NULL) {
        if (run->list == GPI_LIST_CACHED) continue;
        for (use = (const gpi_use *)run->of.uses; use; use = use->next) uses++;
    }
    if (uses + arena->clocks.loose_uses != arena->clocks.uses) return 1;
    return refs < uses + users; /* a call that is under way may hold more */
}

/* Number of the broken invariant, with its section's letter; 0 if all hold. */
static int gpi_arena_check(gpupool_arena *arena, char *letter) {
    const gpi_ledger *ledger = &arena->ledger;
    gpi_stream *stream = arena->clocks.streams;
    const gpi_run *run;
    gpi_tally tally;
    uint64_t waiting = 0, free_units = 0, free_blocks = 0;
    int broken = gpi_ledger_check(ledger);
    *letter = 'L';
    if (broken) return broken;
    *letter = 'C';
    for (; stream; stream = stream->next) {
        if ((broken = gpi_cache_check(&stream->cache)) != 0) return broken;
        free_units += stream->cache.free_units;
        free_blocks += stream->cache.free_blocks;
    }
    *letter = 'T';
    if ((broken = gpi_chunk_check_runs(&arena->chunks, &arena->tree, &tally)) != 0) return broken;
    if ((broken = gpi_check_tree(&arena->tree)) != 0) return broken;
    if ((broken = gpi_check_tally(&arena->tree, &tally)) != 0) return broken;
    *letter = 'H';
    if ((broken = gpi_chunk_check(&arena->chunks, &arena->tree, ledger->reserved.now)) != 0)
        return broken;
    *letter = 'S';
    if ((broken = gpi_stitch_check(&arena->stitches)) != 0) return broken;
    *letter = 'K';
    if ((broken = gpi_check_clocks(&arena->clocks)) != 0) return broken;
    if (gpi_arena_check_refs(arena)) return 3;
    *letter = 'A';
    if (ledger->granted.now != (arena->tree.live_units - free_units) * GPUPOOL_UNIT_BYTES)
        return 1;
    if (GPUPOOL_STATS && ledger->blocks.now != arena->tree.live_runs - free_blocks) return 1;
    if (gpi_arena_check_live(arena)) return 1;
    if (gpi_arena_check_tags(arena)) return 4;
    for (run = arena->waiting; run; run = run->list_next) {
        if (run->list != GPI_LIST_WAITING || !run->of.uses) return 3;
        waiting += run->units;
    }
    if (waiting != arena->waiting_units) return 2;
    waiting += arena->tree.pending_units + free_units;
    return ledger->pending.now == waiting * GPUPOOL_UNIT_BYTES ? 0 : 2;
}

/* -- coming in -- */

static gpupool_result gpi_arena_exists(const gpupool_arena *arena, const char *call) {
    if (!arena) return gpi_host_fail(GPUPOOL_E_ARGUMENT, "%s: the arena is NULL", call);
    if (arena->forks == gpi_process.forks) return GPUPOOL_OK;
    if (arena->forks < 0)
        return gpi_host_fail(GPUPOOL_E_CUDA, "%s: the device of this default arena was reset, and "
                             "gpupool_get_default_arena has not renewed it yet", call);
    return gpi_host_fail(GPUPOOL_E_FORKED, "%s: this process is a fork of the one that made arena "
                         "\"%s\", and has no CUDA context", call, arena->name);
}

/* Takes the locks of all streams and the arena's. */
static gpi_stream *gpi_arena_lock_all(gpupool_arena *arena) {
    for (;;) {
        gpi_stream *first = GPI_READ(&arena->clocks.streams), *stream;
        for (stream = first; stream; stream = stream->next) gpi_host_lock(&stream->cache.lock);
        gpi_host_lock(&arena->lock);
        if (first == arena->clocks.streams) return first;
        gpi_host_unlock(&arena->lock); /* there is a new one: once more */
        for (stream = first; stream; stream = stream->next) gpi_host_unlock(&stream->cache.lock);
    }
}

static void gpi_arena_unlock_all(gpupool_arena *arena, gpi_stream *first) {
    gpi_host_unlock(&arena->lock);
    for (; first; first = first->next) gpi_host_unlock(&first->cache.lock);
}

/* All invariants, with the caches as they are; `growing` is held, so that no run is on its way. */
static int gpi_arena_check_all(gpupool_arena *arena, char *letter) {
    gpi_stream *first = gpi_arena_lock_all(arena), *stream;
    int broken;
    for (stream = first; stream; stream = stream->next)
        gpi_cache_fold(&stream->cache, &arena->ledger);
    gpi_arena_count_pending(arena);
    broken = gpi_arena_check(arena, letter);
    gpi_arena_unlock_all(arena, first);
    return broken;
}

#if GPUPOOL_CHECK >= 2
/* Around every call. No lock is held. */
static void gpi_arena_check_now(gpupool_arena *arena) {
    char letter;
    int broken;
    if (!gpi_host_mutex_try(&arena->growing)) return; /* a thread is at work, and checks after it */
    broken = arena->in_hand || arena->chunks.telling ? 0 : gpi_arena_check_all(arena, &letter);
    gpi_host_mutex_unlock(&arena->growing);
    GPUPOOL_ASSERT(broken == 0);
    (void)broken; /* with NDEBUG */
}
#endif

/* For calls that get memory from the driver, or return it: of a tag's own chunks, or of those that
   all share (0). */
static gpupool_result gpi_arena_is_awake(const gpupool_arena *arena, const char *call, int tag) {
    if (arena->sleep.states[tag] == GPI_AWAKE) return GPUPOOL_OK;
    if (tag)
        return gpi_host_fail(GPUPOOL_E_ASLEEP, "%s: tag \"%s\" of arena \"%s\" sleeps, and "
                             "gpupool_wake comes first", call, arena->ledger.tags[tag]->stats.name,
                             arena->name);
    return gpi_host_fail(GPUPOOL_E_ASLEEP, "%s: arena \"%s\" sleeps, and gpupool_wake comes first",
                         call, arena->name);
}

/* Every public call begins here; no lock is held. */
GPI_HOT gpupool_result gpi_arena_begin(gpupool_arena *arena, const char *call) {
    gpupool_result result;
    gpi_host_begin();
    result = gpi_arena_exists(arena, call);
#if GPUPOOL_CHECK >= 2
    if (result == GPUPOOL_OK) gpi_arena_check_now(arena);
#endif
    return result;
}

/* The lock is held. */
GPI_HOT void gpi_arena_unlock(gpupool_arena *arena) {
    gpi_arena_count_pending(arena);
    gpi_host_unlock(&arena->lock);
}

/* cudaDeviceReset takes the streams and the events with it, and all memory but what is mapped. */
static gpupool_result gpi_arena_outlived(const gpupool_arena *arena, const char *call) {
    int reset;
    gpupool_result result = gpi_driver_was_reset(&arena->chunks.driver, &reset);
    if (result != GPUPOOL_OK || !reset) return result;
    return gpi_host_fail(GPUPOOL_E_CUDA, "%s: device %d was reset since arena \"%s\" was made: its "
                         "blocks are gone, only gpupool_arena_destroy is left (or, of a default "
                         "arena, gpupool_get_default_arena, which renews it)", call,
                         arena->chunks.driver.device, arena->name);
}

/* To get memory, or to give it back: the driver is ready for it, and both locks are taken. */
static gpupool_result gpi_arena_enter(gpupool_arena *arena, const char *call, gpi_visit *visit) {
    gpupool_result result = gpi_arena_begin(arena, call);
    if (result != GPUPOOL_OK) return result;
    result = gpi_driver_enter(&arena->chunks.driver, visit);
    if (result != GPUPOOL_OK) return result;
    result = gpi_arena_outlived(arena, call);
    if (result != GPUPOOL_OK) {
        gpi_driver_leave(visit);
        return result;
    }
    gpi_host_mutex_lock(&arena->growing);
    gpi_host_lock(&arena->lock);
    return GPUPOOL_OK;
}

static void gpi_arena_leave(gpupool_arena *arena, const gpi_visit *visit) {
    if (arena->ledger.tags[0] && gpi_ledger_untold(&arena->ledger) >= 0)
        GPI_PUBLISH(&arena->is_untold, 1);
    gpi_arena_unlock(arena);
    gpi_host_mutex_unlock(&arena->growing);
    gpi_driver_leave(visit);
#if GPUPOOL_CHECK >= 2
    gpi_arena_check_now(arena);
#endif
}

/* gpi_arena_enter where a tag's own chunks must not sleep, or those that all share (0). */
static gpupool_result gpi_arena_enter_awake(gpupool_arena *arena, const char *call, int tag,
                                            gpi_visit *visit) {
    gpupool_result result = gpi_arena_enter(arena, call, visit);
    if (result != GPUPOOL_OK) return result;
    result = gpi_arena_is_awake(arena, call, tag);
    if (result != GPUPOOL_OK) gpi_arena_leave(arena, visit);
    return result;
}

/* -- streams of calls -- */

typedef struct gpi_caller {     /* by which stream a call is made */
    cudaStream_t stream;
    uintptr_t key;
} gpi_caller;

/* CUDA takes NULL for the legacy stream or for the thread's own, by how a file is compiled; to
   gpupool it is the legacy one: callers that want the other say so (GPI_NAMES_STREAM). */
GPI_HOT gpi_caller gpi_arena_call(cudaStream_t stream) {
    gpi_caller call;
    call.stream = stream ? stream : cudaStreamLegacy;
    call.key = gpi_clock_key(stream);
    return call;
}

/* The stream that calls with this key go to; it may have been forgotten, or never been known. The
   lock is held. NULL: the host has no memory. */
static gpi_stream *gpi_arena_owner(gpupool_arena *arena, uintptr_t key, uint64_t identity) {
    gpi_stream *owner = gpi_clock_find(&arena->clocks, key);
    if (owner) return owner;
    owner = gpi_clock_know(&arena->clocks, key, identity);
    if (owner) gpi_clock_name(&arena->clocks, owner);
    return owner;
}

/* The same of a stream that was known when the call began. If it was forgotten since, it comes back
   as itself, or another thread's next call would take it for a stream that is gone. */
static gpi_stream *gpi_arena_owner_again(gpupool_arena *arena, const gpi_caller *call) {
    gpi_stream *owner = gpi_clock_find(&arena->clocks, call->key);
    uint64_t identity;
    if (owner) return owner;
    /* not told: 0, and the next call makes it known anew */
    gpi_clock_identity(arena->clocks.driver, call->stream, &identity);
    return gpi_arena_owner(arena, call->key, identity);
}

/* A block for all streams at once, as cudaMalloc gives, or for the host, as in a pinned arena: of
   finished memory only, for work that was queued before is not known to come first. */
GPI_HOT int gpi_arena_takes_finished(const gpupool_arena *arena, const gpi_stream *owner) {
    return owner == arena->clocks.all || gpi_chunk_is(&arena->chunks, GPI_FROM_HOST);
}

/* Whether streams may come to want each other's memory. */
GPI_HOT int gpi_arena_shares(const gpupool_arena *arena) {
    return arena->clocks.stream_count + (arena->clocks.all->clock.issued != 0) > 1;
}

/* -- free memory comes back -- */

/* A taken run becomes free memory of a stream, and finished neighbours of up to so many units join
   it. */
GPI_HOT void gpi_arena_put_with(gpupool_arena *arena, gpi_stream *stream, gpi_run *run,
                                uint64_t absorb_units) {
    stream->freed_units += run->units;
    stream->frees++;
    gpi_stitch_put(&arena->stitches, run, stream, gpi_clock_issue(&arena->clocks, stream),
                   absorb_units);
}

/* The same for a block that is freed: all neighbours join while there is no other stream to take
   them from. A thread's stream may end with them, so it takes no more than from others. */
GPI_HOT void gpi_arena_put(gpupool_arena *arena, gpi_stream *stream, gpi_run *run) {
    int shares = gpi_arena_shares(arena) || gpi_clock_is_of_thread(stream);
    gpi_arena_put_with(arena, stream, run, stream->capture ? 0 : shares ? run->units : UINT64_MAX);
}

/* The same for what a cache has let go, if anything. No neighbours: a request that is refused may
   have emptied caches, and has nothing more pending for it. */
static void gpi_arena_put_evicted(gpupool_arena *arena, gpi_stream *stream, gpi_run *run) {
    if (!run) return;
    gpi_tree_lay_down(&arena->tree, run);
    gpi_arena_put_with(arena, stream, run, 0);
}

/* Empties a stream's cache; both locks are held. */
static void gpi_arena_drain(gpupool_arena *arena, gpi_stream *stream) {
    while (stream->cache.used)
        gpi_arena_put_evicted(arena, stream, gpi_cache_evict(&stream->cache));
    if (stream->cache.waits == 0) gpi_cache_narrow(&stream->cache);
    gpi_cache_fold(&stream->cache, &arena->ledger);
}

/* What is free in a stream's cache goes into its list; a crowded one goes on to keep track of what
   is out. */
static void gpi_arena_pour_out(gpupool_arena *arena, gpi_stream *stream) {
    if (!stream->cache.crowded) {
        gpi_arena_drain(arena, stream);
        return;
    }
    while (stream->cache.free_blocks)
        gpi_arena_put_evicted(arena, stream, gpi_cache_evict_free(&stream->cache));
    gpi_cache_fold(&stream->cache, &arena->ledger);
}

/* Empties all caches that way: gpi_arena_pour_out, or gpi_arena_drain. The arena's lock is held,
   and open in between. */
static void gpi_arena_empty_all(gpupool_arena *arena,
                                void (*empty)(gpupool_arena *, gpi_stream *)) {
    gpi_stream *stream = arena->clocks.streams;
    for (; stream; stream = stream->next) {
        if (!GPI_READ(&stream->cache.used)) continue;
        gpi_host_unlock(&arena->lock);
        gpi_host_lock(&stream->cache.lock);
        gpi_host_lock(&arena->lock);
        empty(arena, stream);
        gpi_host_unlock(&stream->cache.lock);
    }
}

/* What caches have counted goes into the ledger; they and the free lists stay as they are. Who asks
   for figures begins here: each stream's are of one moment. *cached: the blocks that are free in
   caches. The lock is held on return. */
static void gpi_arena_fold(gpupool_arena *arena, gpi_cached *cached) {
    gpi_stream *stream = GPI_READ(&arena->clocks.streams);
    memset(cached, 0, sizeof *cached);
    for (; stream; stream = stream->next) {
        if (!GPI_READ(&stream->cache.used)) continue;
        gpi_host_lock(&stream->cache.lock);
        gpi_cache_count(&stream->cache, cached);
        if (gpi_cache_has_news(&stream->cache)) {
            gpi_host_lock(&arena->lock);
            gpi_cache_fold(&stream->cache, &arena->ledger);
            gpi_host_unlock(&arena->lock);
        }
        gpi_host_unlock(&stream->cache.lock);
    }
    gpi_host_lock(&arena->lock);
    gpi_arena_count_pending(arena);
}

/* No call comes to this stream any more; what it has cached goes into its list. The arena's lock is
   held, and opened for a moment. */
static void gpi_arena_unname(gpupool_arena *arena, gpi_stream *owner) {
    gpi_host_unlock(&arena->lock);
    gpi_host_lock(&owner->cache.lock);
    gpi_host_lock(&arena->lock);
    gpi_arena_drain(arena, owner);
    gpi_clock_unname(&arena->clocks, owner);
    gpi_host_unlock(&owner->cache.lock);
}

/* -- blocks that wait: freed, while work that other streams had queued may still use them -- */

static void gpi_arena_wait_for_uses(gpupool_arena *arena, gpi_run *run) {
    run->list_next = NULL;
    if (arena->waiting) arena->waiting_last->list_next = run;
    else arena->waiting = run;
    arena->waiting_last = run;
    arena->waiting_units += run->units;
    arena->waiting_seen = 0;
}

/* Takes a run out of `waiting`; `before` is the one before it there, or NULL. */
static void gpi_arena_end_waiting(gpupool_arena *arena, gpi_run *run, gpi_run *before) {
    if (before) before->list_next = run->list_next;
    else arena->waiting = run->list_next;
    if (arena->waiting_last == run) arena->waiting_last = before;
    arena->waiting_units -= run->units;
}

/* Those whose users have all passed become anybody's. Returns whether any did. */
static int gpi_arena_ask_waiting(gpupool_arena *arena) {
    gpi_run *run = arena->waiting, *last = NULL, *next;
    int any = 0;
    if (arena->waiting_seen == arena->clocks.advances + 1) return 0;
    arena->waiting_seen = arena->clocks.advances + 1;
    arena->waiting = NULL;
    for (; run; run = next) {
        next = run->list_next;
        if (gpi_clock_drop_passed(&arena->clocks, run)) {
            arena->waiting_units -= run->units;
            run->list = GPI_LIST_TAKEN;
            gpi_stitch_put(&arena->stitches, run, NULL, 0, 0);
            any = 1;
            continue;
        }
        run->list_next = NULL;
        if (last) last->list_next = run;
        else arena->waiting = run;
        last = run;
    }
    arena->waiting_last = last;
    return any;
}

/* -- memory whose work is done becomes anybody's -- */

enum {
    GPI_LOOKS = 8,       /* streams that a call asks after in passing */
    GPI_LOOKS_MOST = 64  /* and before it gets memory from the driver */
};

static void gpi_arena_poll_stream(gpupool_arena *arena, gpi_stream *stream) {
    stream->refs++;
    gpi_clock_poll(&arena->clocks, stream);
    stream->refs--;
    gpi_clock_settle(&arena->clocks, stream);
    gpi_clock_forget_gone(&arena->clocks, stream);
}

/* Asks a few streams how far they have come, and makes what they are done with anybody's. Returns
   whether there is more of it. The lock is held, and open while CUDA is asked. */
static int gpi_arena_poll(gpupool_arena *arena, int looks) {
    uint64_t units = arena->tree.lists[GPI_LIST_ANY]->units;
    gpi_stream *list[GPI_LOOKS_MOST];
    int count, i;
    gpi_clock_poll(&arena->clocks, arena->clocks.all);
    count = gpi_clock_next_busy(&arena->clocks, list, looks);
    for (i = 0; i < count; i++) gpi_arena_poll_stream(arena, list[i]);
    return gpi_arena_ask_waiting(arena) || arena->tree.lists[GPI_LIST_ANY]->units > units;
}

/* The same of all streams. */
static int gpi_arena_poll_all(gpupool_arena *arena) {
    uint64_t units = arena->tree.lists[GPI_LIST_ANY]->units;
    gpi_stream *stream = arena->clocks.streams;
    gpi_clock_poll(&arena->clocks, arena->clocks.all);
    for (; stream; stream = stream->next)
        if (stream->handle) gpi_arena_poll_stream(arena, stream);
    return gpi_arena_ask_waiting(arena) || arena->tree.lists[GPI_LIST_ANY]->units > units;
}

/* Whether work may be at freed memory, and no mark is behind it: of what was freed up to here. */
static int gpi_arena_lacks_marks(const gpupool_arena *arena, uint64_t at) {
    const gpi_stream *stream = arena->clocks.streams;
    for (; stream; stream = stream->next) {
        uint64_t issued = gpi_ground_min(stream->clock.issued, at);
        if (!stream->handle || stream->capture) continue;
        if (!arena->tree.lists[stream->list]->units && !(arena->waiting && stream->refs)) continue;
        if (issued > gpi_clock_recorded(&arena->clocks, stream)) return 1;
    }
    return 0;
}

/* Finds out of all that was freed whether its work is done, and makes it anybody's then; the caches
   are poured out for it, and slabs are no more. Where CUDA has no event over all streams the host
   waits for the device, with no lock held. Both locks are held on entry and exit. */
static void gpi_arena_settle(gpupool_arena *arena) {
    gpi_stream *stream;
    gpi_arena_empty_all(arena, gpi_arena_pour_out);
    gpi_arena_poll_all(arena);
    if (gpi_arena_lacks_marks(arena, UINT64_MAX)) {
        if (gpi_clock_record_all(&arena->clocks) == GPUPOOL_E_UNSUPPORTED) {
            gpi_arena_unlock(arena);
            gpi_host_mutex_unlock(&arena->growing);
            gpi_clock_wait_device(&arena->clocks, &arena->chunks.driver);
            gpi_host_mutex_lock(&arena->growing);
            gpi_host_lock(&arena->lock);
        }
        gpi_arena_poll_all(arena);
    }
    gpi_tree_drop_slabs(&arena->tree);
    for (stream = arena->clocks.streams; stream; stream = stream->next)
        gpi_clock_forget(&arena->clocks, stream);
}

/* Chunks of which all is free, and all work done, whosever they are. */
static uint64_t gpi_arena_finished_bytes(const gpupool_arena *arena) {
    const gpi_chunk *chunk = arena->chunks.first;
    uint64_t bytes = 0;
    for (; chunk; chunk = chunk->next) {
        uint64_t end = chunk->unit + chunk->units;
        const gpi_run *run = gpi_chunk_first_run(&arena->chunks, &arena->tree, chunk);
        while (run && run->unit < end && gpi_clock_is_seen_finished(&arena->clocks, run))
            run = run->next;
        if (!run || run->unit >= end) bytes += chunk->bytes;
    }
    return bytes;
}

/* For who only looks: how far the streams have come, which passes nothing. An event over all
   streams tells what is done, where CUDA can record one. The lock is held, and open meanwhile. */
static void gpi_arena_ask(gpupool_arena *arena) {
    gpi_clocks *clocks = &arena->clocks;
    gpi_stream *stream = clocks->streams;
    gpi_clock_start_look(clocks);
    if (arena->ledger.cached_bytes || gpi_arena_lacks_marks(arena, UINT64_MAX))
        gpi_clock_look_at_all(clocks);
    for (; stream; stream = stream->next)
        if (stream->handle && !stream->capture) gpi_clock_look(clocks, stream);
}

/* -- the record of calls, in the replay's format: the lock is held -- */

static uint64_t gpi_arena_trace_stream(cudaStream_t stream) {
    uint64_t key = gpi_clock_key(stream);
    return key == GPI_KEY_LEGACY ? 0 : key;
}

static uint64_t gpi_arena_trace_id(const gpupool_arena *arena, const gpi_run *run) {
    return run->unit - arena->chunks.base_unit; /* 0 where chunks have their own addresses */
}

static void gpi_arena_trace_block(gpupool_arena *arena, char verb, const gpi_run *run,
                                  cudaStream_t stream) {
    fprintf(arena->trace, "%c %" PRIu64 " %" PRIu64 "\n", verb, gpi_arena_trace_id(arena, run),
            gpi_arena_trace_stream(stream));
}

static void gpi_arena_trace_number(gpupool_arena *arena, char verb, uint64_t number) {
    if (arena->trace) fprintf(arena->trace, "%c %" PRIu64 "\n", verb, number);
}

/* == TAG ======================================================================================
   Budgets for parts of a program, and soft limits that call before anything fails. uses: LEDGER,
   TREE, ARENA

   A live run carries its tag above its slack, so untagged work pays nothing. No cache has a block
   with a tag: a request with one asks for an alignment of two units, which caches do not give. What
   a budget is charged with before the block is there is `coming`.

   B1  no function of the program's is called with a lock held */

/* E_ARGUMENT: the arena has no such tag. */
static gpupool_result gpi_tag_exists(const gpupool_arena *arena, const char *call, int tag) {
    if (tag > 0 && tag <= arena->ledger.tag_count) return GPUPOOL_OK;
    return gpi_host_fail(GPUPOOL_E_ARGUMENT, "%s: tag is %d, and must be one of this arena's %d",
                         call, tag, arena->ledger.tag_count);
}

/* Tells the program of soft limits, until there is nothing new. No lock is held; what is told may
   change that, and is told again then. */
static void gpi_tag_tell(gpupool_arena *arena) {
    struct gpi_thread before = gpi_thread; /* of the call that is under way */
    gpupool_soft_limit what;
    gpi_ledger_tag *of;
    memset(&what, 0, sizeof what);
    what.arena = arena;
    GPI_PUBLISH(&arena->is_untold, 0);
    for (;;) {
        gpi_host_lock(&arena->lock);
        what.tag = gpi_ledger_untold(&arena->ledger);
        if (what.tag < 0) break;
        of = arena->ledger.tags[what.tag];
        what.is_over = of->told = gpi_ledger_is_over(&arena->ledger, what.tag);
        what.now_bytes = what.tag ? of->stats.granted.now : arena->ledger.reserved.now;
        what.soft_limit_bytes = of->stats.soft_limit_bytes;
        gpi_host_unlock(&arena->lock);
        of->on_soft_limit(&what, of->user);
    }
    gpi_host_unlock(&arena->lock);
    gpi_thread = before;
}

/* -- a request with a tag -- */

static void gpi_tag_explain(const gpi_ledger_tag *of, gpupool_verdict *verdict) {
    char asked[32], limit[32], held[32], more[32];
    snprintf(verdict->sentence, sizeof verdict->sentence, "%s is over the budget of tag \"%s\": "
             "%s, of which blocks hold %s: raise it by %s, or free %s of it",
             gpi_limit_human(asked, verdict->asked_bytes), of->stats.name,
             gpi_limit_human(limit, verdict->limit_bytes),
             gpi_limit_human(held, verdict->granted_bytes),
             gpi_limit_enough(more, verdict->raise_bytes),
             gpi_limit_enough(more, verdict->missing_bytes));
}

/* Over the budget: the verdict, and the program may free something. Returns whether to try again.
   No lock is held. */
static int gpi_tag_give_up(gpupool_arena *arena, int tag, uint64_t bytes, uint64_t asked_bytes) {
    gpupool_verdict verdict;
    gpi_ledger_tag *of;
    memset(&verdict, 0, sizeof verdict);
    gpi_host_lock(&arena->lock);
    of = arena->ledger.tags[tag];
    verdict.cause = GPUPOOL_CAUSE_TAG;
    verdict.tag = tag;
    verdict.asked_bytes = asked_bytes;
    verdict.limit_bytes = of->stats.limit_bytes;
    verdict.granted_bytes = of->stats.granted.now;
    verdict.missing_bytes = verdict.raise_bytes =
        verdict.granted_bytes + bytes - gpi_ground_min(verdict.limit_bytes,
                                                       verdict.granted_bytes + bytes);
    of->stats.failures += GPUPOOL_STATS;
    gpi_host_unlock(&arena->lock);
    gpi_tag_explain(of, &verdict);
    if (arena->on_out_of_memory && arena->on_out_of_memory(&verdict, arena->user)) return 1;
    gpi_thread.verdict = verdict;
    gpi_host_fail(GPUPOOL_E_OUT_OF_MEMORY, "arena \"%s\": %s", arena->name, verdict.sentence);
    return 0;
}

/* Charges the budget with a block that is to come. E_OUT_OF_MEMORY with the verdict, if that is
   more than it has. */
static gpupool_result gpi_tag_charge(gpupool_arena *arena, int tag, uint64_t bytes,
                                     uint64_t asked_bytes) {
    gpupool_result result = gpi_tag_exists(arena, "gpupool_alloc_request", tag);
    int fits;
    if (result != GPUPOOL_OK || bytes == 0) return result; /* 0: the request will be refused */
    for (;;) {
        gpi_ledger_tag *of;
        gpi_host_lock(&arena->lock);
        result = gpi_arena_is_awake(arena, "gpupool_alloc_request", tag);
        if (result != GPUPOOL_OK) {
            gpi_host_unlock(&arena->lock);
            return result;
        }
        of = arena->ledger.tags[tag];
        fits = of->stats.granted.now <= of->stats.limit_bytes &&
               bytes <= of->stats.limit_bytes - of->stats.granted.now;
        if (fits) {
            gpi_ledger_add(&of->stats.granted, bytes);
            gpi_ledger_add(&of->stats.blocks, 1);
            of->coming += bytes;
            of->coming_blocks++;
        }
        gpi_host_unlock(&arena->lock);
        if (fits) return GPUPOOL_OK;
        if (!gpi_tag_give_up(arena, tag, bytes, asked_bytes)) return GPUPOOL_E_OUT_OF_MEMORY;
    }
}

/* The block has come, and gets its tag; or none has (NULL), and the budget its bytes back. */
static void gpi_tag_settle(gpupool_arena *arena, int tag, uint64_t bytes, const void *block) {
    gpi_run *run = NULL; /* NULL, too, if its capture scope was released meanwhile */
    gpi_ledger_tag *of;
    int tells;
    if (bytes == 0) return;
    gpi_host_lock(&arena->lock);
    of = arena->ledger.tags[tag];
    of->coming -= bytes;
    of->coming_blocks--;
    if (block) {
        run = gpi_tree_live(&arena->tree, (uint64_t)(uintptr_t)block / GPUPOOL_UNIT_BYTES);
        if (run && run->units * GPUPOOL_UNIT_BYTES != bytes) run = NULL;
    }
    if (run) {
        run->as.slack |= (uint32_t)tag << GPI_SLACK_BITS;
    } else {
        gpi_ledger_untag(&arena->ledger, (uint32_t)tag, bytes);
    }
    tells = gpi_ledger_untold(&arena->ledger) >= 0;
    gpi_host_unlock(&arena->lock);
    if (tells) gpi_tag_tell(arena);
}

/* -- in public -- */

static uint64_t gpi_tag_limit(size_t bytes) { return bytes ? bytes : UINT64_MAX; }

static gpi_ledger_tag *gpi_tag_new(const char *name, const gpupool_tag_config *config) {
    gpi_ledger_tag *of = (gpi_ledger_tag *)gpi_host_zeroed(sizeof *of);
    if (!of) return NULL;
    snprintf(of->stats.name, sizeof of->stats.name, "%s", name);
    of->stats.limit_bytes = gpi_tag_limit(config->limit_bytes);
    of->stats.soft_limit_bytes = gpi_tag_limit(config->soft_limit_bytes);
    of->on_soft_limit = config->on_soft_limit;
    of->user = config->user;
    return of;
}

gpupool_result gpupool_set_tag_limits(gpupool_arena *arena, int tag, size_t limit_bytes,
                                      size_t soft_limit_bytes) {
    gpupool_result result = gpi_arena_begin(arena, "gpupool_set_tag_limits");
    if (result == GPUPOOL_OK) result = gpi_tag_exists(arena, "gpupool_set_tag_limits", tag);
    if (result != GPUPOOL_OK) return result;
    gpi_host_lock(&arena->lock);
    arena->ledger.tags[tag]->stats.limit_bytes = gpi_tag_limit(limit_bytes);
    arena->ledger.tags[tag]->stats.soft_limit_bytes = gpi_tag_limit(soft_limit_bytes);
    gpi_host_unlock(&arena->lock);
    gpi_tag_tell(arena);
    return gpi_host_ok();
}

/* As the program sees it; the lock is held. */
static void gpi_tag_read(const gpupool_arena *arena, int tag, gpupool_tag_stats *stats) {
    *stats = arena->ledger.tags[tag]->stats;
    if (stats->limit_bytes == UINT64_MAX) stats->limit_bytes = 0;
    if (stats->soft_limit_bytes == UINT64_MAX) stats->soft_limit_bytes = 0;
}

gpupool_result gpupool_get_tag_stats(gpupool_arena *arena, int tag, gpupool_tag_stats *stats) {
    gpupool_result result = gpi_arena_begin(arena, "gpupool_get_tag_stats");
    if (result == GPUPOOL_OK) result = gpi_tag_exists(arena, "gpupool_get_tag_stats", tag);
    if (result != GPUPOOL_OK) return result;
    if (!stats)
        return gpi_host_fail(GPUPOOL_E_ARGUMENT, "gpupool_get_tag_stats: stats is NULL");
    gpi_host_lock(&arena->lock);
    gpi_tag_read(arena, tag, stats);
    gpi_host_unlock(&arena->lock);
    return gpi_host_ok();
}

/* == LADDER ===================================================================================
   Where memory for a request comes from: one table of steps, tried in order. uses: ARENA and above

   Each step says what it needs (`needs`), whether it could succeed by the figures alone (`could`),
   and does it (`take`). A verdict asks `could` of memory as it would be if somebody helped: nothing
   else decides whether a request is met.

   D1  a step that has not met the request has taken nothing: what it took is back with its owner
   D2  the host waits with no lock held, and the table is gone through from its start afterwards
   D3  a request waits for work only that was queued before it began, so it ends */

typedef struct gpi_request {
    uint64_t bytes, units, align_units;
    gpi_caller by;
    gpi_origin origin;
    gpi_stream *owner;
    int capturing;              /* its stream captures */
    int no_wait;                /* the host must not wait */
    gpi_owners owners;          /* of the chunks that the block may lie in: ANY but in a MAPPED
                                   arena. But for ANY, no cache has it */
    int tag;                    /* whose own chunks the block lies in; 0: those of all others */
} gpi_request;

typedef struct gpi_outlook {    /* what memory looks like to a request */
    int fits;                   /* a free run holds it, */
    int joins;                  /* or a stitch of free memory; of memory as it is, 1: perhaps */
    uint64_t need_units;        /* else growth takes so many */
    uint64_t idle_units;        /* so many could be given back for it */
    uint64_t room_units;        /* and so many may be grown as it is */
} gpi_outlook;

typedef struct gpi_attempt {
    gpupool_arena *arena;
    const gpi_request *request;
    uint64_t began;             /* the latest position at that time */
    int is_drained, has_asked;
    int marks_fail;             /* waits for marks do: the device is waited for instead */
    int waits_fail;             /* so do those: no step waits any more */
    gpi_run *run;               /* of a step that has met the request: held */
    gpupool_result result;      /* of one that has failed */
    gpi_stream *wait_for;       /* whose mark to wait for; NULL: for the device */
    gpi_mark *wait_mark;
    uint64_t wait_at;           /* where that was when it was chosen */
} gpi_attempt;

typedef enum gpi_outcome {
    GPI_MISSED,                 /* the next step is to try */
    GPI_MET,
    GPI_MOVED,                  /* memory is other than it was: from the start again */
    GPI_WAITS,                  /* the same after a wait of the host's */
    GPI_FAILED                  /* no other step is to try */
} gpi_outcome;

static gpi_outcome gpi_ladder_outcome(gpi_attempt *attempt, gpupool_result result) {
    attempt->result = result;
    if (result == GPUPOOL_OK) return attempt->run ? GPI_MET : GPI_MOVED;
    return result == GPUPOOL_E_OUT_OF_MEMORY ? GPI_MISSED : GPI_FAILED;
}

/* Whether nothing may be mapped now: the program would be told, and could not register memory while
   a stream captures. */
static int gpi_ladder_is_barred(const gpupool_arena *arena, const gpi_request *request) {
    if (!arena->chunks.on_map && !arena->chunks.on_unmap) return 0;
    return request->capturing || arena->clocks.capturing || GPI_READ(&gpi_process.scopes);
}

/* -- the stream's own free memory, and anybody's -- */

/* The list of finished memory that a request may have. */
GPI_HOT uint32_t gpi_ladder_finished(const gpi_request *request) {
    return request->tag ? GPI_LIST_TAGS + (uint32_t)request->tag - 1 : (uint32_t)GPI_LIST_ANY;
}

/* Where a request's stream may take without waiting; its own list first. */
GPI_HOT void gpi_ladder_lists(const gpupool_arena *arena, const gpi_request *request,
                              uint64_t units_least, gpi_lists *lists) {
    gpi_list *const *all = arena->tree.lists;
    const gpi_stream *owner = request->owner;
    uint32_t finished = gpi_ladder_finished(request);
    int count = 0;
    if (all[owner->list]->units >= units_least && !request->tag &&
        !gpi_arena_takes_finished(arena, owner))
        lists->number[count++] = owner->list;
    if (all[finished]->units >= units_least) lists->number[count++] = finished;
    lists->count = count;
    lists->below = UINT64_MAX;
}

GPI_HOT void gpi_ladder_fit(const gpi_request *request, uint64_t tries, gpi_fit *fit) {
    fit->units = request->units;
    fit->align_units = request->align_units;
    fit->owners = request->owners;
    fit->tries = tries;
}

/* Where the request would start in a run; UINT64_MAX if it does not fit. */
static uint64_t gpi_ladder_start(const gpupool_arena *arena, const gpi_run *run,
                                 const gpi_request *request) {
    gpi_fit fit;
    gpi_ladder_fit(request, 0, &fit);
    return gpi_tree_start_of(&arena->tree, run, &fit);
}

GPI_HOT gpi_run *gpi_ladder_cut(gpupool_arena *arena, gpi_run *run, const gpi_request *request) {
    uint64_t start = run->unit;
    if (request->align_units != 1) start = gpi_ladder_start(arena, run, request);
    if (run->list >= GPI_LIST_STREAMS) arena->ledger.same_stream_allocs += GPUPOOL_STATS;
    return gpi_tree_take(&arena->tree, run, start, request->units);
}

/* A small block: in a slab, in a new one, or where there is no room for a slab. */
static gpi_run *gpi_ladder_find_small(gpupool_arena *arena, const gpi_lists *lists,
                                      const gpi_fit *fit) {
    gpi_tree *tree = &arena->tree;
    gpi_run *run = gpi_tree_find_in_slabs(tree, lists, fit);
    if (!run && gpi_tree_is_ready(tree, 5) && gpi_tree_add_slab(tree, lists, fit->tries))
        run = gpi_tree_find_in_slabs(tree, lists, fit);
    return run ? run : gpi_tree_find(tree, lists, fit);
}

/* Whichever run fits most closely. Needs three spare structs. */
GPI_HOT gpi_run *gpi_ladder_quick(gpupool_arena *arena, const gpi_request *request,
                                  uint64_t tries) {
    gpi_lists lists;
    gpi_fit fit;
    gpi_run *run;
    gpi_ladder_lists(arena, request, request->units, &lists);
    if (lists.count == 0) return NULL;
    gpi_ladder_fit(request, tries, &fit);
    if ((int64_t)request->units < GPI_SLAB_UNITS && arena->tree.granules)
        run = gpi_ladder_find_small(arena, &lists, &fit);
    else
        run = gpi_tree_find(&arena->tree, &lists, &fit);
    return run ? gpi_ladder_cut(arena, run, request) : NULL;
}

/* Marks what the request may take without waiting; all marks are taken away before the lock is
   opened. */
static void gpi_ladder_mark(gpupool_arena *arena, const gpi_request *request) {
    gpi_lists lists;
    int i;
    gpi_ladder_lists(arena, request, 1, &lists);
    for (i = 0; i < lists.count; i++)
        arena->tree.lists[lists.number[i]]->usable_below = UINT64_MAX;
}

static void gpi_ladder_unmark(gpupool_arena *arena, const gpi_request *request) {
    arena->tree.lists[request->owner->list]->usable_below = 0;
    arena->tree.lists[gpi_ladder_finished(request)]->usable_below = 0;
}

/* An idle stitch of the request's size, whose units this stream may take without waiting. */
static gpi_run *gpi_ladder_restitch(gpupool_arena *arena, const gpi_request *request) {
    gpi_run *run;
    if (request->owners) return NULL;
    if (!arena->stitches.first_of[gpi_tree_bin(request->units)]) return NULL;
    gpi_ladder_mark(arena, request);
    run = gpi_stitch_reuse(&arena->stitches, request->units, request->align_units);
    gpi_ladder_unmark(arena, request);
    return run;
}

/* A block of the request's tag and size that the request's own stream has freed: the stream's later
   work may use it at once. (A tag with chunks of its own has no free list for each stream: what is
   freed there waits for its users in `waiting`.) NULL: there is none. */
static gpi_run *gpi_ladder_own_waiting(gpupool_arena *arena, const gpi_request *request) {
    gpi_run *run = arena->waiting, *before = NULL;
    for (; run; before = run, run = run->list_next) {
        const gpi_use *use = (const gpi_use *)run->of.uses;
        if (run->units != request->units || run->unit % request->align_units || request->owners ||
            gpi_stitch_tag_at(&arena->stitches, run->unit) != request->tag)
            continue;
        while (use && (use->at <= gpi_clock_done(&arena->clocks, use->stream) ||
                       (use->stream == request->owner && use->at != gpi_clock_never() &&
                        (!use->stream->capture || use->at == gpi_clock_again()))))
            use = use->next;
        if (!use) break;
    }
    if (!run) return NULL;
    gpi_arena_end_waiting(arena, run, before);
    gpi_clock_drop_uses(&arena->clocks, run);
    run->list = GPI_LIST_TAKEN;
    arena->ledger.same_stream_allocs += GPUPOOL_STATS;
    return run;
}

static gpi_outcome gpi_ladder_take_free(gpi_attempt *attempt) {
    gpupool_arena *arena = attempt->arena;
    if (!gpi_tree_prepare(&arena->tree, 3))
        return gpi_ladder_outcome(attempt, gpi_host_no_memory());
    if (attempt->request->tag && !gpi_arena_takes_finished(arena, attempt->request->owner))
        attempt->run = gpi_ladder_own_waiting(arena, attempt->request);
    if (attempt->run) return GPI_MET;
    attempt->run = gpi_ladder_quick(arena, attempt->request, GPI_TRIES_SLOW);
    if (!attempt->run) attempt->run = gpi_ladder_restitch(arena, attempt->request);
    return attempt->run ? GPI_MET : GPI_MISSED;
}

/* -- memory that other streams are done with -- */

/* Requests put marks over all streams only while no capture was seen: rule 3. */
static gpupool_result gpi_ladder_record_all(gpupool_arena *arena) {
    return arena->clocks.has_captured ? GPUPOOL_E_CAPTURING
                                      : gpi_clock_record_all(&arena->clocks);
}

/* A mark behind what the request's own stream has freed. */
static void gpi_ladder_record(gpupool_arena *arena, const gpi_request *request) {
    if (request->owner == arena->clocks.all) gpi_ladder_record_all(arena);
    else gpi_clock_record(&arena->clocks, request->owner, request->by.stream);
}

enum { GPI_PENDING_LEAST = 8 << 20 }; /* bytes that may be pending before streams are asked for */

static gpi_outcome gpi_ladder_take_finished(gpi_attempt *attempt) {
    gpupool_arena *arena = attempt->arena;
    uint64_t pending = arena->tree.pending_units * GPUPOOL_UNIT_BYTES;
    /* many streams, or threads, of which some may have ended unsaid: a mark is put over all */
    if ((arena->clocks.thread_streams || arena->clocks.stream_count > GPI_THREADS_KEPT) &&
        pending > gpi_ground_max(arena->ledger.reserved.now / 8, GPI_PENDING_LEAST))
        gpi_ladder_record_all(arena);
    if (attempt->request->tag && arena->waiting && !attempt->request->capturing)
        gpi_ladder_record(arena, attempt->request);
    return gpi_arena_poll(arena, GPI_LOOKS_MOST) ? gpi_ladder_take_free(attempt) : GPI_MISSED;
}

static int gpi_ladder_may_stitch(const gpi_attempt *attempt) {
    return !attempt->request->owners && gpi_stitch_can(&attempt->arena->stitches) &&
           !gpi_ladder_is_barred(attempt->arena, attempt->request);
}

enum { GPI_SPANS = 256 }; /* runs whose neighbours are looked at */

typedef struct gpi_side_run {  /* of usable runs side by side */
    gpi_run *first;
    uint64_t units, runs;
} gpi_side_run;

/* The stretch around a free run. */
static void gpi_ladder_stretch(const gpi_tree *tree, gpi_run *run, gpi_side_run *stretch) {
    while (run->prev && gpi_growth_is_usable(tree, run->prev)) run = run->prev;
    stretch->first = run;
    stretch->units = stretch->runs = 0;
    for (; run && gpi_growth_is_usable(tree, run); run = run->next, stretch->runs++)
        stretch->units += run->units;
}

/* A block out of several runs side by side: the stream's own, at different positions, and
   anybody's. */
static gpi_outcome gpi_ladder_take_side_by_side(gpi_attempt *attempt) {
    gpupool_arena *arena = attempt->arena;
    const gpi_request *request = attempt->request;
    gpi_list *list = arena->tree.lists[request->owner->list];
    gpi_side_run stretch = {NULL, 0, 0};
    gpi_run *run, whole;
    uint64_t start = 0;
    int looked = 0, found = 0;
    uint32_t kind, bin;
    gpi_ladder_mark(arena, request);
    for (kind = 0; kind < GPI_SLABS && list->usable_below; kind++) {
        bin = gpi_tree_first(list, kind);
        for (; bin != GPI_NO_BIN && !found; bin = gpi_tree_next(list, bin + 1))
            for (run = list->heads[bin]; run && !found && looked < GPI_SPANS;
                 run = run->list_next, looked++) {
                gpi_ladder_stretch(&arena->tree, run, &stretch);
                whole.unit = stretch.first->unit;
                whole.units = stretch.units;
                start = gpi_ladder_start(arena, &whole, request);
                found = start != UINT64_MAX;
            }
    }
    if (found && gpi_tree_prepare(&arena->tree, 2 * stretch.runs + 2)) {
        arena->ledger.same_stream_allocs += GPUPOOL_STATS;
        while (stretch.first->unit + stretch.first->units <= start)
            stretch.first = stretch.first->next;
        attempt->run = gpi_stitch_take(&arena->tree, stretch.first, start, request->units);
    }
    gpi_ladder_unmark(arena, request);
    return attempt->run ? GPI_MET : GPI_MISSED;
}

/* -- stitches and growth -- */

/* The most that was ever live at once, with the request. */
static uint64_t gpi_ladder_peak(const gpi_attempt *attempt) {
    const gpi_ledger *ledger = &attempt->arena->ledger;
    return gpi_ground_max(gpi_ground_max(ledger->granted.peak, attempt->arena->granted_most),
                          ledger->granted.now + attempt->request->units * GPUPOOL_UNIT_BYTES);
}

/* The target: how far reserved memory may run ahead of that before free memory is stitched instead.
   1%, and a little for arenas of a few chunks. */
static uint64_t gpi_ladder_target(const gpi_attempt *attempt) {
    uint64_t live = gpi_ladder_peak(attempt);
    live += live / 100 + ((uint64_t)16 << 20);
    return gpi_ground_min(gpi_ground_max(live, attempt->arena->keep_bytes),
                          attempt->arena->ledger.limit_bytes);
}

static gpupool_result gpi_ladder_grow(gpupool_arena *arena, const gpi_request *request,
                                      gpi_run **run) {
    uint64_t most_bytes = arena->ledger.limit_bytes;
    gpi_growth growth;
    if (gpi_ladder_is_barred(arena, request)) return GPUPOOL_E_OUT_OF_MEMORY;
    memset(&growth, 0, sizeof growth);
    growth.units = request->units;
    growth.is_alone = growth.is_one_chunk = request->owners != GPI_OWNERS_ANY;
    growth.is_exact = request->owners == GPI_OWNERS_WHOLE;
    growth.tag = request->tag;
    if (!gpi_chunk_is_mapped(&arena->chunks))
        return gpi_growth_add(&arena->chunks, &arena->tree, &growth, request->align_units,
                              most_bytes, run);
    gpi_ladder_mark(arena, request);
    gpi_growth_find_place(&arena->chunks, &arena->tree, request->align_units, &growth);
    return gpi_growth_grow(&arena->chunks, &arena->tree, &growth, most_bytes / GPUPOOL_UNIT_BYTES,
                           run);
}

/* More memory while that stays below the target, and where more is live than ever before. So a
   program that repeats itself gets no more memory for its second round, and meets what it did there
   again in its third. */
static gpi_outcome gpi_ladder_take_target(gpi_attempt *attempt) {
    gpupool_arena *arena = attempt->arena;
    uint64_t need = attempt->request->units * GPUPOOL_UNIT_BYTES;
    if (arena->ledger.reserved.now + need > gpi_ladder_target(attempt) ||
        arena->ledger.granted.now + need < gpi_ladder_peak(attempt))
        return GPI_MISSED;
    return gpi_ladder_outcome(attempt, gpi_ladder_grow(arena, attempt->request, &attempt->run));
}

/* Unmaps idle stitches where there are too many. What this stream used is known to be done only by
   a mark, and for the next request. */
static void gpi_ladder_bound_stitches(gpi_attempt *attempt) {
    gpupool_arena *arena = attempt->arena;
    uint64_t most = gpi_stitch_most_seams(&arena->stitches);
    if (arena->stitches.idle_seams <= most) return;
    gpi_ladder_record(arena, attempt->request);
    gpi_arena_poll(arena, GPI_LOOKS);
    gpi_stitch_bound(&arena->stitches, most);
}

/* A stitch of memory that is marked as usable, with growth up to the limit; the marks are taken
   away. */
static gpi_outcome gpi_ladder_stitch_marked(gpi_attempt *attempt, uint64_t most_seams) {
    gpupool_arena *arena = attempt->arena;
    gpi_plan plan;
    memset(&plan, 0, sizeof plan);
    plan.units = attempt->request->units;
    plan.align_units = attempt->request->align_units;
    plan.owner = attempt->request->owner;
    plan.stream = attempt->request->by.stream;
    plan.tag = attempt->request->tag;
    plan.most_units = arena->ledger.limit_bytes / GPUPOOL_UNIT_BYTES;
    plan.most_seams = most_seams;
    if (gpi_plan_draw(&arena->stitches, &plan))
        return gpi_ladder_outcome(attempt,
                                  gpi_plan_make(&arena->stitches, &plan, &attempt->run));
    gpi_tree_unmark(&arena->tree);
    return GPI_MISSED;
}

static gpi_outcome gpi_ladder_stitch(gpi_attempt *attempt, uint64_t most_seams) {
    gpi_ladder_bound_stitches(attempt);
    gpi_ladder_mark(attempt->arena, attempt->request);
    return gpi_ladder_stitch_marked(attempt, most_seams);
}

enum { GPI_SEAMS_WORTH = 4096 }; /* handles mapped again (0.12 s) before memory is grown instead */

static gpi_outcome gpi_ladder_take_stitch(gpi_attempt *attempt) {
    return gpi_ladder_stitch(attempt, GPI_SEAMS_WORTH);
}

static gpi_outcome gpi_ladder_take_growth(gpi_attempt *attempt) {
    return gpi_ladder_outcome(attempt,
                              gpi_ladder_grow(attempt->arena, attempt->request, &attempt->run));
}

/* -- memory is short: all caches are poured out, all streams asked -- */

/* Larger than all that may ever be held: nobody's work is worth a wait for it. */
static int gpi_ladder_is_in_vain(const gpi_attempt *attempt) {
    const gpupool_arena *arena = attempt->arena;
    uint64_t most = arena->ledger.limit_bytes;
    if (gpi_chunk_is(&arena->chunks, GPI_FROM_HERE))
        most = gpi_ground_min(most, arena->chunks.driver.total_bytes);
    return attempt->request->units * GPUPOOL_UNIT_BYTES >
           gpi_ground_max(most, arena->ledger.reserved.now);
}

enum { GPI_SHORT_FREES = 1024 }; /* frees that get a mark each after memory was short */

static gpi_outcome gpi_ladder_take_caches(gpi_attempt *attempt) {
    gpupool_arena *arena = attempt->arena;
    if (gpi_ladder_is_in_vain(attempt)) {
        attempt->result = GPUPOOL_E_OUT_OF_MEMORY;
        return GPI_FAILED;
    }
    arena->short_until = arena->clocks.position + GPI_SHORT_FREES;
    if (attempt->is_drained) return GPI_MISSED;
    attempt->is_drained = 1;
    gpi_ladder_record(arena, attempt->request);
    gpi_arena_empty_all(arena, gpi_arena_pour_out);
    gpi_arena_poll_all(arena);
    return GPI_MOVED;
}

/* -- other streams' unfinished memory, behind a wait on the device -- */

static int gpi_ladder_may_follow(const gpupool_arena *arena, const gpi_request *request) {
    /* not in a scope: a replay is no later work of the stream. BYPASS: what is free is a chunk */
    return !request->owner->capture && !gpi_arena_takes_finished(arena, request->owner) &&
           !request->tag && gpi_chunk_is(&arena->chunks, GPI_FROM_POOL);
}

/* A run of a stream that the request fits in, and that is finished or behind a mark. NULL: there is
   none. */
static gpi_run *gpi_ladder_of(const gpupool_arena *arena, const gpi_request *request,
                              const gpi_stream *stream, uint64_t tries) {
    gpi_run *run;
    gpi_lists list;
    gpi_fit fit;
    if (stream == request->owner || stream->capture || !stream->handle) return NULL;
    if (arena->tree.lists[stream->list]->units < request->units) return NULL;
    gpi_ladder_fit(request, tries, &fit);
    list.count = 1;
    list.number[0] = stream->list;
    list.below = gpi_clock_recorded(&arena->clocks, stream) + 1;
    run = gpi_tree_find(&arena->tree, &list, &fit);
    if (!run && (int64_t)request->units < GPI_SLAB_UNITS)
        run = gpi_tree_find_in_slabs(&arena->tree, &list, &fit);
    return run;
}

static int gpi_ladder_is_finished(const gpupool_arena *arena, const gpi_run *run) {
    return run && gpi_clock_is_finished(&arena->clocks, run);
}

/* Such a run of a few streams: a finished one, if there is one. *choices: streams that have one. */
static gpi_run *gpi_ladder_of_some(gpupool_arena *arena, const gpi_request *request,
                                   int *choices) {
    gpi_stream *list[GPI_LOOKS];
    int count = gpi_clock_next_busy(&arena->clocks, list, GPI_LOOKS), i;
    gpi_run *first = NULL;
    *choices = 0;
    for (i = 0; i < count && !gpi_ladder_is_finished(arena, first); i++) {
        gpi_run *run = gpi_ladder_of(arena, request, list[i], GPI_TRIES);
        *choices += run != NULL;
        if (run && (!first || gpi_ladder_is_finished(arena, run))) first = run;
    }
    return first;
}

/* The same of all streams. */
static gpi_run *gpi_ladder_of_any(const gpupool_arena *arena, const gpi_request *request) {
    const gpi_stream *stream = arena->clocks.busy;
    gpi_run *first = NULL;
    for (; stream && !gpi_ladder_is_finished(arena, first); stream = stream->busy_next) {
        gpi_run *run = gpi_ladder_of(arena, request, stream, UINT64_MAX);
        if (run && (!first || gpi_ladder_is_finished(arena, run))) first = run;
    }
    return first;
}

typedef enum gpi_patience {   /* with another stream's work */
    GPI_IF_FINISHED,
    GPI_BEHIND_A_WAIT
} gpi_patience;

/* Takes another stream's run for the request, if its work has finished, or behind a wait on the
   device. NULL: it stays that stream's. The lock is held, and open while CUDA is called. Needs
   three spare structs. */
static gpi_run *gpi_ladder_take_over(gpupool_arena *arena, const gpi_request *request, gpi_run *run,
                                     gpi_patience patience) {
    gpi_clocks *clocks = &arena->clocks;
    gpi_stream *owner = gpi_clock_borrow(&arena->tree, run);
    uint64_t at = run->of.at;
    int mine = at <= gpi_clock_done(clocks, owner);
    run = gpi_ladder_cut(arena, run, request);
    arena->in_hand++;
    if (!mine && patience == GPI_IF_FINISHED) {
        gpi_clock_poll(clocks, owner);
        mine = at <= gpi_clock_done(clocks, owner);
    } else if (!mine) {
        mine = gpi_clock_follow(clocks, owner, at, request->by.stream) == GPUPOOL_OK;
    }
    arena->in_hand--;
    if (mine) {
        owner->refs--;
        return run;
    }
    arena->ledger.same_stream_allocs -= GPUPOOL_STATS;
    gpi_clock_return(clocks, run, owner, at);
    return NULL;
}

/* A block that waits for its users, behind a wait for each of them. Returns whether it is anybody's
   now. */
static int gpi_ladder_follow_waiting(gpupool_arena *arena, const gpi_request *request) {
    gpi_clocks *clocks = &arena->clocks;
    gpi_run *run = arena->waiting, *before = NULL;
    const gpi_use *use;
    for (; run; before = run, run = run->list_next) {
        if (gpi_ladder_start(arena, run, request) == UINT64_MAX) continue;
        if (gpi_stitch_tag_at(&arena->stitches, run->unit)) continue;
        for (use = (const gpi_use *)run->of.uses; use; use = use->next)
            if (use->stream->capture || use->at > gpi_clock_recorded(clocks, use->stream)) break;
        if (!use) break;
    }
    if (!run) return 0;
    gpi_arena_end_waiting(arena, run, before); /* nobody else's while the lock is open */
    arena->in_hand++;
    for (use = (const gpi_use *)run->of.uses; use; use = use->next)
        if (gpi_clock_follow(clocks, use->stream, use->at, request->by.stream) != GPUPOOL_OK) break;
    arena->in_hand--;
    if (use) {
        gpi_arena_wait_for_uses(arena, run);
        return 0;
    }
    gpi_clock_drop_uses(clocks, run);
    run->list = GPI_LIST_TAKEN;
    gpi_stitch_put(&arena->stitches, run, request->owner,
                   gpi_clock_issue(clocks, request->owner), 0);
    return 1;
}

/* A stitch of the memory of several streams, behind a wait on the device for each. */
static gpi_outcome gpi_ladder_stitch_others(gpi_attempt *attempt) {
    gpupool_arena *arena = attempt->arena;
    gpi_stream *stream = arena->clocks.busy;
    for (; stream; stream = stream->busy_next)
        if (stream->handle && !stream->capture)
            arena->tree.lists[stream->list]->usable_below =
                gpi_clock_recorded(&arena->clocks, stream) + 1;
    gpi_ladder_mark(arena, attempt->request);
    return gpi_ladder_stitch_marked(attempt, UINT64_MAX);
}

static gpi_outcome gpi_ladder_take_unfinished(gpi_attempt *attempt) {
    gpupool_arena *arena = attempt->arena;
    const gpi_request *request = attempt->request;
    gpi_run *run;
    if (!gpi_ladder_may_follow(arena, request)) return GPI_MISSED;
    if (!gpi_tree_prepare(&arena->tree, 3)) return GPI_MISSED;
    run = gpi_ladder_of_any(arena, request);
    if (run) attempt->run = gpi_ladder_take_over(arena, request, run, GPI_BEHIND_A_WAIT);
    if (attempt->run) return GPI_MET;
    if (gpi_ladder_follow_waiting(arena, request)) return gpi_ladder_take_free(attempt);
    if (!gpi_ladder_may_stitch(attempt)) return GPI_MISSED;
    return gpi_ladder_stitch_others(attempt);
}

/* -- at any price -- */

static gpi_outcome gpi_ladder_take_all_free(gpi_attempt *attempt) {
    gpi_outcome outcome;
    gpi_tree_drop_slabs(&attempt->arena->tree);
    outcome = gpi_ladder_take_free(attempt);
    if (outcome != GPI_MISSED || !gpi_ladder_may_stitch(attempt)) return outcome;
    return gpi_ladder_stitch(attempt, UINT64_MAX);
}

/* What a chunk may have once all idle ones are given back. Where it is too little they stay. */
static uint64_t gpi_ladder_room_at_most(const gpupool_arena *arena, int is_limited) {
    uint64_t idle = gpi_chunk_idle_bytes(&arena->chunks, &arena->tree);
    uint64_t taken = arena->ledger.reserved.now - idle, limit = arena->ledger.limit_bytes;
    size_t free_bytes = 0, total_bytes = 0;
    if (is_limited) return limit - gpi_ground_min(limit, taken);
    if (!gpi_chunk_is(&arena->chunks, GPI_FROM_HERE) ||
        gpi_driver_memory(&arena->chunks.driver, arena->ledger.reserved.now, &free_bytes,
                          &total_bytes) != CUDA_SUCCESS)
        return UINT64_MAX;
    return free_bytes + idle;
}

/* Idle chunks go back to the driver until there is room for growth. Where CUDA takes chunks back it
   waits for the device, but for mapped ones. */
static gpi_outcome gpi_ladder_take_idle(gpi_attempt *attempt) {
    gpupool_arena *arena = attempt->arena;
    const gpi_request *request = attempt->request;
    uint64_t need = gpi_growth_need(&arena->chunks, request->units, request->align_units);
    uint64_t limit = arena->ledger.limit_bytes;
    int is_limited, waits = !gpi_chunk_is_mapped(&arena->chunks);
    gpupool_result result = GPUPOOL_E_OUT_OF_MEMORY;
    if (waits && (request->no_wait || request->capturing)) return GPI_MISSED;
    /* again where the limit has room now, but not the device: it may with all that is idle */
    do {
        is_limited = need > gpi_ledger_room(&arena->ledger);
        if (need > gpi_ladder_room_at_most(arena, is_limited)) return GPI_MISSED;
        result = gpi_stitch_trim_below(&arena->stitches,
                                       is_limited ? limit - gpi_ground_min(limit, need) : 0);
        if (result == GPUPOOL_OK) result = gpi_ladder_grow(arena, request, &attempt->run);
    } while (result == GPUPOOL_E_OUT_OF_MEMORY && is_limited &&
             need <= gpi_ledger_room(&arena->ledger));
    return gpi_ladder_outcome(attempt, result);
}

/* Idle chunks of other tags, which no stitch may use, go back to the driver: so many that a stitch
   with growth has room. Where it is too little they stay. */
static gpi_outcome gpi_ladder_take_tags_idle(gpi_attempt *attempt) {
    gpupool_arena *arena = attempt->arena;
    gpi_chunks *chunks = &arena->chunks;
    uint64_t need, idle = 0;
    gpi_chunk *chunk, *next;
    gpi_outcome outcome = GPI_MISSED;
    gpi_plan plan;
    int is_limited;
    memset(&plan, 0, sizeof plan);
    plan.units = attempt->request->units;
    plan.align_units = attempt->request->align_units;
    plan.most_units = plan.most_seams = UINT64_MAX;
    for (chunk = chunks->first; chunks->is_apart && chunk; chunk = chunk->next)
        if (chunk->tag != attempt->request->tag && gpi_chunk_is_idle(chunks, &arena->tree, chunk))
            idle += chunk->bytes;
    if (!idle) return GPI_MISSED;
    gpi_ladder_mark(arena, attempt->request);
    need = gpi_plan_draw(&arena->stitches, &plan)
               ? gpi_ground_up(plan.new_units, chunks->granule_units) * GPUPOOL_UNIT_BYTES : 0;
    gpi_tree_unmark(&arena->tree);
    is_limited = need > gpi_ledger_room(&arena->ledger);
    if (!need || need > gpi_ladder_room_at_most(arena, is_limited)) return GPI_MISSED;
    if (is_limited && need > gpi_ledger_room(&arena->ledger) + idle) return GPI_MISSED;
    for (chunk = chunks->first; chunk; chunk = next) {
        gpupool_result result;
        next = chunk->next;
        if (chunk->tag == attempt->request->tag ||
            !gpi_chunk_is_idle(chunks, &arena->tree, chunk))
            continue;
        result = gpi_stitch_drop_chunk(&arena->stitches, chunk);
        if (result == GPUPOOL_E_IN_USE) continue; /* it is just going */
        if (result != GPUPOOL_OK) return gpi_ladder_outcome(attempt, result);
        outcome = GPI_MOVED;
        if (is_limited && need <= gpi_ledger_room(&arena->ledger)) break;
        if (gpi_stitch_tells(&arena->stitches)) next = chunks->first; /* the locks were open */
    }
    return outcome;
}

/* -- waits of the host's -- */

static gpi_outcome gpi_ladder_wait_for(gpi_attempt *attempt, gpi_stream *stream) {
    attempt->wait_for = stream;
    attempt->wait_mark = stream ? gpi_clock_mark(&attempt->arena->clocks, stream, 0) : NULL;
    if (!attempt->wait_mark) return GPI_WAITS;
    attempt->wait_at = attempt->wait_mark->at;
    attempt->wait_mark->pins++;
    stream->refs++;
    return GPI_WAITS;
}

/* What gpupool_cudaFree freed before: a request of cudaMalloc's waits as cudaFree would have. */
static gpi_outcome gpi_ladder_take_cuda_free(gpi_attempt *attempt) {
    gpi_clocks *clocks = &attempt->arena->clocks;
    gpi_stream *all = clocks->all;
    if (attempt->request->owner != all || !attempt->arena->tree.lists[all->list]->units ||
        gpi_ground_min(all->clock.issued, attempt->began) <= gpi_clock_done(clocks, all))
        return GPI_MISSED;
    if (!gpi_clock_mark(clocks, all, 0)) gpi_ladder_record_all(attempt->arena);
    return gpi_ladder_wait_for(attempt, !attempt->marks_fail && gpi_clock_mark(clocks, all, 0)
                                            ? all : NULL);
}

/* Whether memory waits for work of this stream that was queued before the request began. */
static int gpi_ladder_is_behind(const gpi_attempt *attempt, const gpi_stream *stream) {
    const gpupool_arena *arena = attempt->arena;
    int is_all = stream == arena->clocks.all;
    uint64_t issued = is_all ? arena->clocks.position : stream->clock.issued;
    if (!stream->handle || stream->capture) return 0;
    if (is_all && !arena->tree.pending_units && !arena->waiting) return 0;
    if (!is_all && !arena->tree.lists[stream->list]->units && !(arena->waiting && stream->refs))
        return 0;
    return gpi_ground_min(issued, attempt->began) > gpi_clock_done(&arena->clocks, stream);
}

/* A mark over all streams, for what has none: of streams that are gone, or that nobody calls with.
   The request then takes what others freed before it began. */
static gpi_outcome gpi_ladder_take_unmarked(gpi_attempt *attempt) {
    gpupool_arena *arena = attempt->arena;
    if (attempt->has_asked || !gpi_arena_lacks_marks(arena, attempt->began)) return GPI_MISSED;
    attempt->has_asked = 1;
    if (gpi_ladder_record_all(arena) != GPUPOOL_OK) return GPI_MISSED;
    gpi_arena_poll_all(arena);
    return GPI_MOVED;
}

/* For the oldest work that memory waits for: on this stream, or else on any; or else, where no mark
   is behind it, for the device. */
static gpi_outcome gpi_ladder_take_wait(gpi_attempt *attempt) {
    gpi_clocks *clocks = &attempt->arena->clocks;
    gpi_stream *stream, *oldest = NULL;
    const gpi_mark *mark;
    uint64_t at = UINT64_MAX;
    int any = 0;
    if (!attempt->marks_fail && gpi_ladder_is_behind(attempt, attempt->request->owner) &&
        gpi_clock_mark(clocks, attempt->request->owner, 0))
        return gpi_ladder_wait_for(attempt, attempt->request->owner);
    for (stream = clocks->streams; stream; stream = stream->next) {
        any |= gpi_ladder_is_behind(attempt, stream);
        if (attempt->marks_fail || !gpi_ladder_is_behind(attempt, stream)) continue;
        mark = gpi_clock_mark(clocks, stream, 0);
        if (!mark || mark->at >= at) continue;
        at = mark->at;
        oldest = stream;
    }
    if (oldest) return gpi_ladder_wait_for(attempt, oldest);
    return any ? gpi_ladder_wait_for(attempt, NULL) : GPI_MISSED;
}

/* Does what a step has asked for, with no lock held. */
static gpupool_result gpi_ladder_wait(gpi_attempt *attempt) {
    gpupool_arena *arena = attempt->arena;
    gpupool_result result;
    gpi_arena_unlock(arena);
    gpi_host_mutex_unlock(&arena->growing);
    result = attempt->wait_mark
                 ? gpi_clock_wait(&arena->clocks, attempt->wait_for, attempt->wait_mark,
                                  attempt->wait_at)
                 : gpi_clock_wait_device(&arena->clocks, &arena->chunks.driver);
    gpi_host_mutex_lock(&arena->growing);
    gpi_host_lock(&arena->lock);
    if (attempt->wait_mark) attempt->wait_for->refs--;
    gpi_arena_poll_all(arena);
    return result;
}

/* -- the table -- */

enum {                   /* what a step needs */
    GPI_NEEDS_POOL = 1,  /* blocks share chunks */
    GPI_NEEDS_STITCHES = 2,
    GPI_NEEDS_EVENTS = 4,/* the stream does not capture */
    GPI_NEEDS_HOST = 8   /* nor is the host forbidden to wait */
};

typedef struct gpi_step {
    const char *name;
    unsigned needs;
    int (*could)(const gpi_outlook *outlook);
    gpi_outcome (*take)(gpi_attempt *attempt);
} gpi_step;

static int gpi_ladder_could_fit(const gpi_outlook *outlook) { return outlook->fits; }
static int gpi_ladder_could_join(const gpi_outlook *outlook) {
    return outlook->joins || outlook->need_units <= outlook->room_units;
}
static int gpi_ladder_could_grow(const gpi_outlook *outlook) {
    return outlook->need_units <= outlook->room_units;
}
static int gpi_ladder_could_trim(const gpi_outlook *outlook) {
    return outlook->need_units <= outlook->room_units + outlook->idle_units;
}

static const gpi_step gpi_ladder_steps[] = {
    {"own and anybody's free memory", GPI_NEEDS_POOL, gpi_ladder_could_fit, gpi_ladder_take_free},
    {"finished memory of others", GPI_NEEDS_POOL, gpi_ladder_could_fit, gpi_ladder_take_finished},
    {"runs side by side", GPI_NEEDS_POOL, gpi_ladder_could_fit, gpi_ladder_take_side_by_side},
    {"what cudaFree freed", GPI_NEEDS_POOL | GPI_NEEDS_EVENTS | GPI_NEEDS_HOST,
     gpi_ladder_could_fit, gpi_ladder_take_cuda_free},
    {"growth up to the target", 0, gpi_ladder_could_grow, gpi_ladder_take_target},
    {"a stitch", GPI_NEEDS_STITCHES, gpi_ladder_could_join, gpi_ladder_take_stitch},
    {"growth up to the limit", 0, gpi_ladder_could_grow, gpi_ladder_take_growth},
    {"caches", 0, gpi_ladder_could_fit, gpi_ladder_take_caches},
    {"unfinished memory of others", GPI_NEEDS_POOL | GPI_NEEDS_EVENTS, gpi_ladder_could_fit,
     gpi_ladder_take_unfinished},
    {"all free memory, stitched", GPI_NEEDS_POOL, gpi_ladder_could_join, gpi_ladder_take_all_free},
    {"idle chunks of other tags", GPI_NEEDS_STITCHES, gpi_ladder_could_trim,
     gpi_ladder_take_tags_idle},
    {"idle chunks given back", 0, gpi_ladder_could_trim, gpi_ladder_take_idle},
    {"a mark over all streams", GPI_NEEDS_EVENTS, gpi_ladder_could_fit, gpi_ladder_take_unmarked},
    {"a wait of the host's", GPI_NEEDS_EVENTS | GPI_NEEDS_HOST, gpi_ladder_could_fit,
     gpi_ladder_take_wait}};

enum { GPI_STEP_COUNT = sizeof gpi_ladder_steps / sizeof gpi_ladder_steps[0] };

static int gpi_ladder_may(const gpi_attempt *attempt, const gpi_step *step) {
    const gpi_request *request = attempt->request;
    unsigned needs = step->needs;
    if ((needs & GPI_NEEDS_POOL) && !gpi_chunk_is(&attempt->arena->chunks, GPI_FROM_POOL)) return 0;
    if ((needs & GPI_NEEDS_STITCHES) && !gpi_ladder_may_stitch(attempt)) return 0;
    if ((needs & GPI_NEEDS_EVENTS) && request->capturing) return 0;
    return !(needs & GPI_NEEDS_HOST) || !(request->no_wait || attempt->waits_fail);
}

/* Memory as it is, as far as figures tell. */
static void gpi_ladder_look(const gpi_attempt *attempt, gpi_outlook *outlook) {
    const gpupool_arena *arena = attempt->arena;
    outlook->fits = outlook->joins = 1;
    outlook->need_units = gpi_growth_need(&arena->chunks, attempt->request->units,
                                          attempt->request->align_units) / GPUPOOL_UNIT_BYTES;
    outlook->room_units = gpi_ledger_room(&arena->ledger) / GPUPOOL_UNIT_BYTES;
    outlook->idle_units = arena->ledger.reserved.now / GPUPOOL_UNIT_BYTES;
}

/* Whether the table would meet a request, of memory that looks so. */
static int gpi_ladder_would(const gpi_outlook *outlook) {
    int i;
    for (i = 0; i < GPI_STEP_COUNT; i++)
        if (gpi_ladder_steps[i].could(outlook)) return 1;
    return 0;
}

/* Goes through the table. Both locks are held, and open where a step says so; the request's stream
   is kept. */
static gpupool_result gpi_ladder_run(gpi_attempt *attempt) {
    int i = 0;
    attempt->began = attempt->arena->clocks.position;
    if (attempt->arena->chunks.stuck) /* which count as reserved */
        gpi_chunk_retry(&attempt->arena->chunks, &attempt->arena->tree);
    while (i < GPI_STEP_COUNT) {
        const gpi_step *step = &gpi_ladder_steps[i++];
        gpi_outcome outcome = GPI_MISSED;
        gpi_outlook outlook;
        gpi_ladder_look(attempt, &outlook);
        if (gpi_ladder_may(attempt, step) && step->could(&outlook)) outcome = step->take(attempt);
        if (outcome == GPI_MET) return GPUPOOL_OK;
        if (outcome == GPI_FAILED) return attempt->result;
        if (outcome == GPI_WAITS && gpi_ladder_wait(attempt) != GPUPOOL_OK) {
            if (attempt->marks_fail || !attempt->wait_mark) attempt->waits_fail = 1;
            attempt->marks_fail = 1;
        }
        if (outcome != GPI_MISSED) i = 0;
    }
    if (!gpi_ladder_is_barred(attempt->arena, attempt->request)) return GPUPOOL_E_OUT_OF_MEMORY;
    return gpi_host_fail(GPUPOOL_E_CAPTURING, "arena \"%s\" has on_map or on_unmap, and does not "
                         "grow while a stream captures", attempt->arena->name);
}

/* == SHOT =====================================================================================
   All runs, as they are at one time, copied for who thinks about them. uses: LADDER and above

   They are copied some at a time, so that no other thread waits long; what changes meanwhile makes
   the advice coarser, not the arena wrong. `growing` is held all the time: chunks and stitches
   stay. */

enum { GPI_SLICE = 256 };    /* runs that are copied before the lock is opened for a moment */

typedef enum gpi_shot_state {
    GPI_SHOT_FREE,           /* its work is done */
    GPI_SHOT_PENDING,        /* free, but work may be at it */
    GPI_SHOT_LIVE,
    GPI_SHOT_KEPT,           /* a graph's, live or free; or live, and asleep */
    GPI_SHOT_NONE            /* no memory */
} gpi_shot_state;

typedef struct gpi_shot {    /* a home run, as it was when it was met */
    uint64_t unit, units;
    gpi_shot_state state;
    int tag;                 /* whose chunk it lies in; 0: one that all others share */
    int begins_chunk;        /* chunks that have their own addresses */
    int is_block;            /* live: a block, or the first part of a stitched one */
    int is_marked;           /* pending: streams can be made to wait for it, on the device */
    uint64_t key;            /* pending: of the one stream to wait for; 0: of several, or of all */
    uint64_t block;          /* live: the unit at which its block begins, */
    uint64_t asked_bytes;    /* and what was asked for with it */
    const gpi_stitch *stitch;/* of a stitched block, live */
    gpi_cache *cache;        /* which has the block, until it is asked */
#if GPUPOOL_SITES
    const gpi_site *place;
#endif
} gpi_shot;

typedef struct gpi_holding { /* a holder that a verdict may name */
    gpupool_holder shown;
#if GPUPOOL_SITES
    const gpi_site *place;
#endif
    uint64_t blocks[8];      /* where its first blocks begin */
} gpi_holding;

typedef enum gpi_pending {   /* what of that counts as free */
    GPI_PENDING_NONE,
    GPI_PENDING_MARKED,
    GPI_PENDING_ALL
} gpi_pending;

typedef struct gpi_wish {    /* what counts as free, beside what is */
    gpi_pending pending;
    uint64_t key;            /* of this stream only; 0: of all */
    const gpi_holding *holding; /* blocks of this holder, */
    uint64_t mask;           /* bit n: its n-th; UINT64_MAX: all */
} gpi_wish;

typedef struct gpi_siblings { /* the process's other arenas of the device */
    uint64_t reserved_bytes; /* by all of them */
    uint64_t idle_bytes;     /* of these, that they would give back, or have */
    uint64_t most_bytes;     /* reserved by the one that has reserved most */
    char name[32];           /* of that one */
} gpi_siblings;

enum {
    GPI_VISITS = 1 << 21,    /* runs that a verdict looks at before it stops counting blocks */
    GPI_SUBSETS = 8,         /* up to so many blocks, every choice among them is tried */
    GPI_CROWD = 16           /* streams that a verdict counts; so many are as good as all */
};

typedef struct gpi_scene {   /* a request, and all that decides whether it can be met */
    gpupool_arena *arena;
    const gpi_siblings *siblings;       /* NULL: not asked after */
    gpi_shot *shots;
    uint64_t shot_count, shot_room;
    uint64_t units, align_units;
    gpi_owners owners;       /* of the chunks that it may lie in */
    int tag;                 /* whose chunks these are; 0: those of all others */
    uint64_t rest_units;     /* chunks: of the last granule, which the device gives whole */
    uint64_t limit_units, device_units; /* that the limit and the device leave for growth, with the
                                           rest */
    uint64_t growth_bytes;   /* FRAGMENTED: what limit and device leave, as it is told */
    uint64_t visits;         /* runs looked at so far */
    int capturing;           /* the request's stream is */
    uint64_t keys[GPI_CROWD];/* of the streams whose marks pending memory lies behind, */
    int key_count;           /* as many of them as there is room for */
    int is_unmarked;         /* some lies behind no stream's mark */
    uint64_t reserved_bytes, limit_bytes; /* as they were when it was begun */
    uint64_t captures;       /* graphs that keep memory */
    int is_all_done;         /* work before all frees so far */
} gpi_scene;

/* Whether the request fits in a run. */
static int gpi_shot_holds(const gpi_scene *scene, const gpi_run *run) {
    gpi_fit fit;
    memset(&fit, 0, sizeof fit);
    fit.units = scene->units;
    fit.align_units = scene->align_units;
    fit.owners = scene->owners;
    return gpi_tree_start_of(&scene->arena->tree, run, &fit) != UINT64_MAX;
}

static int gpi_shot_may_stitch(const gpi_scene *scene) {
    return !scene->owners && gpi_stitch_can(&scene->arena->stitches);
}

/* -- the copy -- */

/* Memory waits for work of this stream, up to a position. Returns the stream's key if a mark is
   behind that; 0: none is, and only a wait for all streams will do. */
static uint64_t gpi_shot_meet(gpi_scene *scene, gpi_stream *stream, uint64_t at) {
    const gpi_clocks *clocks = &scene->arena->clocks;
    int i = 0;
    if (stream == clocks->all || !gpi_clock_mark(clocks, stream, at)) {
        scene->is_unmarked = 1;
        return 0;
    }
    while (i < scene->key_count && scene->keys[i] != stream->handle) i++;
    if (i == scene->key_count && i < GPI_CROWD) scene->keys[scene->key_count++] = stream->handle;
    return stream->handle;
}

/* Free memory of a stream: for whose work it waits. */
static void gpi_shot_free(gpi_scene *scene, const gpi_run *run, gpi_shot *shot) {
    const gpupool_arena *arena = scene->arena;
    const gpi_clocks *clocks = &arena->clocks;
    gpi_stream *stream = (gpi_stream *)arena->tree.lists[run->list]->owner;
    shot->state = GPI_SHOT_FREE;
    if (!stream || run->of.at <= gpi_clock_seen(clocks, stream)) return;
    shot->state = stream->capture ? GPI_SHOT_KEPT : GPI_SHOT_PENDING;
    if (stream->capture) return;
    shot->key = gpi_shot_meet(scene, stream, run->of.at);
    shot->is_marked = run->of.at <= gpi_clock_recorded(clocks, stream) && !scene->tag &&
                      gpi_chunk_is(&arena->chunks, GPI_FROM_POOL) &&
                      !gpi_chunk_is(&arena->chunks, GPI_FROM_HOST) &&
                      (gpi_shot_may_stitch(scene) || gpi_shot_holds(scene, run));
}

/* A block that waits for its users. */
static void gpi_shot_waiting(gpi_scene *scene, const gpi_run *run, gpi_shot *shot) {
    const gpi_clocks *clocks = &scene->arena->clocks;
    const gpi_use *use = (const gpi_use *)run->of.uses;
    int count = 0;
    shot->state = GPI_SHOT_FREE;
    for (; use; use = use->next)
        if (use->stream->capture) shot->state = GPI_SHOT_KEPT;
    if (shot->state == GPI_SHOT_KEPT) return;
    for (use = (const gpi_use *)run->of.uses; use; use = use->next) {
        if (use->at <= gpi_clock_seen(clocks, use->stream)) continue;
        shot->state = GPI_SHOT_PENDING;
        shot->key = gpi_shot_meet(scene, use->stream, use->at);
        count++;
    }
    if (count > 1) shot->key = 0;
}

static void gpi_shot_block(const gpi_run *run, gpi_shot *shot) {
    shot->state = gpi_clock_keeping(run) ? GPI_SHOT_KEPT : GPI_SHOT_LIVE;
    shot->block = run->unit;
    shot->asked_bytes = gpi_arena_requested(run);
    shot->cache = run->list == GPI_LIST_CACHED ? (gpi_cache *)run->of.uses : NULL;
#if GPUPOOL_SITES
    shot->place = run->site->place;
#endif
}

/* The lock is held. */
static void gpi_shot_run(gpi_scene *scene, const gpi_run *run, gpi_shot *shot) {
    shot->is_block = 1;
    if (run->list != GPI_LIST_EMPTY)
        shot->tag = gpi_stitch_tag_at(&scene->arena->stitches, run->unit);
    if (run->list == GPI_LIST_PART) {
        shot->stitch = (const gpi_stitch *)run->of.uses;
        shot->is_block = shot->stitch->parts[0].run == run;
        run = shot->stitch->body;
    }
    shot->state = GPI_SHOT_NONE;
    if (run->list >= GPI_LIST_CACHED) gpi_shot_block(run, shot);
    else if (run->list == GPI_LIST_WAITING) gpi_shot_waiting(scene, run, shot);
    else if (run->list < GPI_LIST_WAITING && run->list != GPI_LIST_EMPTY)
        gpi_shot_free(scene, run, shot);
    if (shot->state != GPI_SHOT_LIVE && shot->state != GPI_SHOT_KEPT) shot->is_block = 0;
    if (scene->arena->sleep.states[shot->tag] == GPI_ASLEEP) /* freeing it wins nothing now */
        shot->state = shot->is_block ? GPI_SHOT_KEPT : GPI_SHOT_NONE;
}

/* Copies the runs of a chunk, or of all addresses, from its first one on. */
static void gpi_shot_from(gpi_scene *scene, gpi_run *run) {
    gpi_tree *tree = &scene->arena->tree;
    uint64_t at = run->unit, count = 0;
    int begins_chunk = 1;
    gpi_host_lock(&scene->arena->lock);
    while (run && scene->shot_count < scene->shot_room) {
        uint64_t end = run->unit + run->units;
        if (end > at) {
            gpi_shot *shot = &scene->shots[scene->shot_count++];
            memset(shot, 0, sizeof *shot);
            shot->unit = gpi_ground_max(run->unit, at); /* it may have joined what was copied */
            shot->units = end - shot->unit;
            shot->begins_chunk = begins_chunk;
            gpi_shot_run(scene, run, shot);
            begins_chunk = 0;
            at = end;
        }
        run = run->next;
        if (++count % GPI_SLICE == 0 && run) {
            tree->cursor = run;
            gpi_host_reopen(&scene->arena->lock);
            run = tree->cursor;
            tree->cursor = NULL;
        }
    }
    gpi_host_unlock(&scene->arena->lock);
}

/* A cache knows whether its blocks are out or free, and what was asked for with them. The work at
   free ones is done if all streams' is. */
static void gpi_shot_ask_caches(gpi_scene *scene) {
    uint64_t i;
    for (i = 0; i < scene->shot_count; i++) {
        gpi_shot *shot = &scene->shots[i];
        if (!shot->cache) continue;
        gpi_host_lock(&shot->cache->lock);
        shot->asked_bytes = gpi_cache_asked_at(shot->cache, shot->unit);
        gpi_host_unlock(&shot->cache->lock);
        if (shot->asked_bytes) continue;
        shot->state = scene->is_all_done ? GPI_SHOT_FREE : GPI_SHOT_PENDING;
        scene->is_unmarked |= !scene->is_all_done;
        shot->is_block = 0;
    }
}

/* `growing` is held, and no other lock. If the host has no memory for the copy, there is none. */
static void gpi_shot_take(gpi_scene *scene) {
    gpupool_arena *arena = scene->arena;
    gpi_chunk *chunk;
    gpi_host_lock(&arena->lock);
    scene->shot_room = arena->tree.page_count * GPI_PAGE - arena->tree.spare_count + 4 * GPI_PAGE;
    gpi_host_unlock(&arena->lock);
    scene->shots = (gpi_shot *)GPUPOOL_MALLOC((size_t)(scene->shot_room * sizeof(gpi_shot)));
    if (!scene->shots) return;
    if (gpi_chunk_is_mapped(&arena->chunks)) {
        gpi_shot_from(scene, arena->chunks.home);
    } else {
        for (chunk = arena->chunks.first; chunk; chunk = chunk->next)
            gpi_shot_from(scene, chunk->first);
    }
    gpi_shot_ask_caches(scene);
}

/* == VERDICT ==================================================================================
   Why a request was not met, with what would help, as a sentence. uses: SHOT and above

   Nothing is advised on figures alone: the ladder's table is asked whether it would meet the
   request, of memory as it would be if somebody helped. */

/* -- memory as it could become -- */

static int gpi_verdict_holds(const gpi_holding *holding, const gpi_shot *shot) {
#if GPUPOOL_SITES
    return shot->place == holding->place;
#else
    return shot->asked_bytes == holding->shown.block_bytes;
#endif
}

static int gpi_verdict_counts(const gpi_wish *wish, const gpi_shot *shot) {
    int n = 0;
    if (shot->state == GPI_SHOT_FREE) return 1;
    if (shot->state == GPI_SHOT_PENDING && wish->pending == GPI_PENDING_MARKED)
        return shot->is_marked;
    if (shot->state == GPI_SHOT_PENDING)
        return wish->pending && (!wish->key || shot->key == wish->key);
    if (shot->state != GPI_SHOT_LIVE || !wish->holding) return 0;
    if (!gpi_verdict_holds(wish->holding, shot)) return 0;
    if (wish->mask == UINT64_MAX) return 1;
    while (n < GPI_SUBSETS && wish->holding->blocks[n] != shot->block) n++;
    return (int)(wish->mask >> n & 1);
}

/* The longest stretch of free runs from here on; returns the number of the run behind it. */
static uint64_t gpi_verdict_stretch(gpi_scene *scene, const gpi_wish *wish, uint64_t i,
                                    gpi_run *stretch) {
    const gpi_shot *shots = scene->shots;
    int tag = shots[i].tag;
    stretch->unit = shots[i].unit;
    stretch->units = 0;
    do {
        scene->visits++;
        if (!gpi_verdict_counts(wish, &shots[i])) break;
        stretch->units += shots[i++].units;
    } while (i < scene->shot_count && !shots[i].begins_chunk && shots[i].tag == tag);
    return i;
}

/* What a free stretch has of chunks: whole ones, the end of one, the start of another. */
static void gpi_verdict_measure(const gpupool_arena *arena, uint64_t from, uint64_t units,
                                gpi_measure *measure) {
    uint64_t end = from + units, to;
    for (; from < end; from = to) {
        gpi_chunk *chunk = (gpi_chunk *)gpi_tree_owner(&arena->tree, from);
        uint64_t chunk_end = chunk->unit + chunk->units;
        to = gpi_ground_min(end, chunk_end);
        if (from == chunk->unit && to == chunk_end) {
            measure->whole_units += chunk->units;
            measure->kept_units += chunk->is_kept ? chunk->units : 0;
        }
        else if (to == chunk_end) gpi_plan_rank(measure->heads, chunk, to - from);
        else if (from == chunk->unit) gpi_plan_rank(measure->tails, chunk, to - from);
    }
}

/* What is measured makes a block by a stitch, with growth if need be; or without stitches makes
   room for growth. */
static void gpi_verdict_weigh(const gpi_scene *scene, const gpi_measure *measure,
                              gpi_outlook *outlook) {
    const gpi_chunks *chunks = &scene->arena->chunks;
    uint64_t granule = chunks->granule_units, units = measure->whole_units;
    gpi_free_chunk head, tail;
    const gpi_chunk *stuck = chunks->stuck;
    for (; stuck; stuck = stuck->next) outlook->idle_units += stuck->units; /* given back first */
    gpi_plan_ends(measure, &head, &tail);
    if (!gpi_shot_may_stitch(scene)) {
        outlook->need_units = gpi_ground_up(scene->units, granule);
        outlook->idle_units += units - measure->kept_units;
        return;
    }
    units += tail.units + (scene->align_units == 1 ? head.units : 0);
    outlook->joins = units >= scene->units;
    units = scene->units - gpi_ground_min(units, scene->units);
    outlook->need_units = gpi_ground_up(units, granule);
}

static void gpi_verdict_look_at(gpi_scene *scene, const gpi_wish *wish, gpi_measure *measure,
                                gpi_outlook *outlook) {
    const gpi_chunks *chunks = &scene->arena->chunks;
    int is_mapped = gpi_chunk_is_mapped(chunks), pooled = gpi_chunk_is(chunks, GPI_FROM_POOL);
    gpi_run stretch;
    uint64_t i = 0, next;
    while (i < scene->shot_count) {
        int from_start = scene->shots[i].begins_chunk;
        int is_other = scene->shots[i].tag != scene->tag;
        next = gpi_verdict_stretch(scene, wish, i, &stretch);
        if (is_other && stretch.units) { /* it could only be given back, chunk by chunk */
            gpi_measure other;
            memset(&other, 0, sizeof other);
            gpi_verdict_measure(scene->arena, stretch.unit, stretch.units, &other);
            outlook->idle_units += other.whole_units - other.kept_units;
            stretch.units = 0;
        }
        if (pooled && stretch.units && gpi_shot_holds(scene, &stretch)) outlook->fits = 1;
        if (is_mapped && stretch.units)
            gpi_verdict_measure(scene->arena, stretch.unit, stretch.units, measure);
        if (!is_mapped && from_start && next > i &&
            (next == scene->shot_count || scene->shots[next].begins_chunk))
            outlook->idle_units += stretch.units;
        i = next > i ? next : i + 1;
    }
}

static gpi_outlook gpi_verdict_look(gpi_scene *scene, const gpi_wish *wish) {
    const gpi_chunks *chunks = &scene->arena->chunks;
    gpi_outlook outlook;
    gpi_measure measure;
    memset(&outlook, 0, sizeof outlook);
    memset(&measure, 0, sizeof measure);
    gpi_verdict_look_at(scene, wish, &measure, &outlook);
    if (gpi_chunk_is_mapped(chunks))
        gpi_verdict_weigh(scene, &measure, &outlook);
    else
        outlook.need_units = gpi_growth_need(chunks, scene->units, scene->align_units) /
                             GPUPOOL_UNIT_BYTES + scene->rest_units;
    return outlook;
}

/* Units missing with so many left for growth; what is above a lowered limit comes first. 0: the
   ladder would meet the request. */
static uint64_t gpi_verdict_missing(const gpi_scene *scene, const gpi_outlook *outlook,
                                    uint64_t room_units) {
    uint64_t reserved = scene->reserved_bytes, limit = scene->limit_bytes;
    gpi_outlook seen = *outlook;
    if (reserved > limit)
        seen.need_units += (reserved - limit + GPUPOOL_UNIT_BYTES - 1) / GPUPOOL_UNIT_BYTES;
    seen.room_units = room_units;
    seen.idle_units = gpi_ground_min(seen.idle_units, UINT64_MAX - room_units);
    if (gpi_ladder_would(&seen)) return 0;
    return seen.need_units - seen.room_units - seen.idle_units;
}

static uint64_t gpi_verdict_lacks(gpi_scene *scene, const gpi_wish *wish) {
    gpi_outlook outlook = gpi_verdict_look(scene, wish);
    return gpi_verdict_missing(scene, &outlook,
                               gpi_ground_min(scene->limit_units, scene->device_units));
}

/* -- who holds memory, and how many of whose blocks would do -- */

static void gpi_verdict_rank(gpi_holding *top, int most, const gpi_holding *holding) {
    int i = most;
    while (i > 0 && top[i - 1].shown.bytes < holding->shown.bytes) i--;
    if (i == most) return;
    memmove(&top[i + 1], &top[i], (size_t)(most - 1 - i) * sizeof *top);
    top[i] = *holding;
}

#if GPUPOOL_SITES
/* The biggest first; those that are left over have no blocks. The lock is held. */
static void gpi_verdict_places(gpupool_arena *arena, gpi_holding *top, int most) {
    gpi_holding one;
    const gpi_site *site = NULL;
    int bucket;
    memset(top, 0, (size_t)most * sizeof *top);
    memset(&one, 0, sizeof one);
    gpi_ledger_add_up_places(&arena->ledger);
    while ((site = gpi_ledger_next_site(&arena->ledger, site, &bucket)) != NULL) {
        if (site->place != site || !site->place_blocks) continue;
        one.place = site;
        one.shown.file = *site->file ? site->file : NULL;
        one.shown.line = site->line;
        one.shown.blocks = site->place_blocks;
        one.shown.bytes = site->place_bytes;
        gpi_verdict_rank(top, most, &one);
    }
}

static void gpi_verdict_holders(const gpi_scene *scene, gpi_holding *top, int most) {
    gpi_host_lock(&scene->arena->lock);
    gpi_verdict_places(scene->arena, top, most);
    gpi_host_unlock(&scene->arena->lock);
}
#else
/* Sizes are spread over slots, and of each slot the one with most of its bytes stands: every block
   votes for its size or against the one that does. A size with half of a slot's bytes always wins.
   Then the blocks of those that stand are counted. All is done twice, with two ways to spread: two
   sizes that meet in one are apart in the other. */
enum { GPI_BALLOTS = 256 };

typedef struct gpi_ballot {
    uint64_t sizes[2 * GPI_BALLOTS], votes[2 * GPI_BALLOTS], blocks[2 * GPI_BALLOTS];
} gpi_ballot;

static unsigned gpi_verdict_slot(uint64_t bytes, int way) {
    uint64_t hash = bytes * 0x9e3779b97f4a7c15ull;
    return way ? GPI_BALLOTS + (unsigned)(hash >> 48 & 0xff) : (unsigned)(hash >> 56);
}

/* Round 0 votes, round 1 counts. */
static void gpi_verdict_vote_in(gpi_ballot *ballot, unsigned slot, uint64_t bytes, int round) {
    uint64_t *votes = &ballot->votes[slot];
    if (round == 1) {
        ballot->blocks[slot] += ballot->sizes[slot] == bytes;
    } else if (ballot->sizes[slot] == bytes) {
        *votes += bytes;
    } else if (*votes >= bytes) {
        *votes -= bytes;
    } else {
        *votes = bytes - *votes;
        ballot->sizes[slot] = bytes;
    }
}

static void gpi_verdict_vote(gpi_ballot *ballot, uint64_t bytes, int round) {
    gpi_verdict_vote_in(ballot, gpi_verdict_slot(bytes, 0), bytes, round);
    gpi_verdict_vote_in(ballot, gpi_verdict_slot(bytes, 1), bytes, round);
}

static void gpi_verdict_elect(const gpi_ballot *ballot, gpi_holding *top, int most) {
    gpi_holding one;
    int i;
    memset(top, 0, (size_t)most * sizeof *top);
    memset(&one, 0, sizeof one);
    for (i = 0; i < 2 * GPI_BALLOTS; i++) {
        uint64_t bytes = ballot->sizes[i];
        if (i >= GPI_BALLOTS && ballot->sizes[gpi_verdict_slot(bytes, 0)] == bytes) continue;
        one.shown.block_bytes = bytes;
        one.shown.blocks = ballot->blocks[i];
        one.shown.bytes = ballot->blocks[i] * bytes;
        if (one.shown.blocks) gpi_verdict_rank(top, most, &one);
    }
}

static void gpi_verdict_holders(const gpi_scene *scene, gpi_holding *top, int most) {
    gpi_ballot ballot;
    uint64_t i;
    int round;
    memset(&ballot, 0, sizeof ballot);
    for (round = 0; round < 2; round++)
        for (i = 0; i < scene->shot_count; i++)
            if (scene->shots[i].is_block)
                gpi_verdict_vote(&ballot, scene->shots[i].asked_bytes, round);
    gpi_verdict_elect(&ballot, top, most);
}
#endif

/* Where the first blocks of a holder begin. */
static void gpi_verdict_find_blocks(const gpi_scene *scene, gpi_holding *holding) {
    uint64_t i, n = 0;
    for (i = 0; i < scene->shot_count && n < GPI_SUBSETS; i++)
        if (scene->shots[i].is_block && gpi_verdict_holds(holding, &scene->shots[i]))
            holding->blocks[n++] = scene->shots[i].block;
}

static uint64_t gpi_verdict_lacks_without(gpi_scene *scene, const gpi_holding *holding,
                                          uint64_t mask) {
    gpi_wish wish = {GPI_PENDING_ALL, 0, holding, mask};
    return gpi_verdict_lacks(scene, &wish);
}

/* What freeing a block wins for sure, wherever it lies: the chunks that are wholly its own.
   UINT64_MAX where the request itself fits there. */
static uint64_t gpi_verdict_gain(const gpi_scene *scene, uint64_t number) {
    const gpi_shot *shot = &scene->shots[number];
    const gpi_chunks *chunks = &scene->arena->chunks;
    gpi_measure measure;
    gpi_run run;
    uint32_t i;
    if (shot->state == GPI_SHOT_KEPT) return 0;
    run.unit = shot->block;
    run.units = shot->stitch ? shot->stitch->body->units : shot->units;
    if (gpi_chunk_is(chunks, GPI_FROM_POOL) && !(shot->stitch && scene->owners) &&
        shot->tag == scene->tag && gpi_shot_holds(scene, &run))
        return UINT64_MAX;
    if (!gpi_chunk_is_mapped(chunks))
        return shot->begins_chunk && (number + 1 == scene->shot_count || shot[1].begins_chunk)
                   ? shot->units : 0;
    memset(&measure, 0, sizeof measure);
    if (!shot->stitch) gpi_verdict_measure(scene->arena, run.unit, run.units, &measure);
    for (i = 0; shot->stitch && i < shot->stitch->part_count; i++)
        gpi_verdict_measure(scene->arena, shot->stitch->parts[i].unit,
                            shot->stitch->parts[i].units, &measure);
    if (shot->tag != scene->tag || !gpi_shot_may_stitch(scene))
        measure.whole_units -= measure.kept_units;
    return measure.whole_units;
}

/* For many blocks: by what each of them wins at least, and a mapped chunk in the way. */
static uint64_t gpi_verdict_count_by_gain(const gpi_scene *scene, const gpi_holding *holding,
                                          uint64_t lacks) {
    uint64_t least = UINT64_MAX, blocks = holding->shown.blocks, i;
    for (i = 0; i < scene->shot_count; i++)
        if (scene->shots[i].is_block && gpi_verdict_holds(holding, &scene->shots[i]))
            least = gpi_ground_min(least, gpi_verdict_gain(scene, i));
    if (least == 0) return blocks;
    if (least == UINT64_MAX) return 1;
    return gpi_ground_min(blocks, (lacks + least - 1) / least +
                                      (uint64_t)gpi_chunk_is_mapped(&scene->arena->chunks));
}

/* How many of a holder's blocks would have to go, whichever they are; 0: all of them would not do.
   Of few blocks every choice is tried. */
static uint64_t gpi_verdict_count_frees(gpi_scene *scene, gpi_holding *holding) {
    uint64_t count, mask, blocks = holding->shown.blocks;
    if (blocks == 0 || gpi_verdict_lacks_without(scene, holding, UINT64_MAX)) return 0;
    if (blocks > GPI_SUBSETS)
        return gpi_verdict_count_by_gain(scene, holding,
                                         gpi_verdict_lacks_without(scene, NULL, 0));
    gpi_verdict_find_blocks(scene, holding);
    for (count = blocks - 1; count > 0; count--)
        for (mask = 1; mask < (uint64_t)1 << blocks; mask++) {
            if (gpi_ground_bits(mask) != count) continue;
            if (scene->visits > GPI_VISITS || gpi_verdict_lacks_without(scene, holding, mask))
                return count + 1;
        }
    return 1;
}

static void gpi_verdict_name_holders(gpupool_verdict *verdict, gpi_scene *scene) {
    gpi_holding top[GPUPOOL_HOLDERS];
    int i;
    gpi_verdict_holders(scene, top, GPUPOOL_HOLDERS);
    for (i = 0; i < GPUPOOL_HOLDERS; i++) {
        verdict->holders[i] = top[i].shown;
        if (verdict->cause != GPUPOOL_CAUSE_TOO_LARGE)
            verdict->holders[i].enough = gpi_verdict_count_frees(scene, &top[i]);
    }
}

/* -- the stream whose work to wait for -- */

static int gpi_verdict_wait_would_do(gpi_scene *scene, uint64_t key) {
    gpi_wish wish = {GPI_PENDING_ALL, key, NULL, 0};
    return scene->visits <= GPI_VISITS && gpi_verdict_lacks(scene, &wish) == 0;
}

/* One stream alone, if that would do; else how many have work in the way, or 0 for the device. */
static void gpi_verdict_name_stream(gpupool_verdict *verdict, gpi_scene *scene) {
    uint64_t key = 0;
    int i;
    for (i = 0; i < scene->key_count && !key; i++)
        if (gpi_verdict_wait_would_do(scene, scene->keys[i])) key = scene->keys[i];
    verdict->pending_streams = key ? 1 : scene->key_count;
    if (!key && (scene->is_unmarked || scene->key_count == GPI_CROWD)) verdict->pending_streams = 0;
    if (key == GPI_KEY_LEGACY) verdict->pending_stream = cudaStreamLegacy;
    else if (key & 1) verdict->pending_stream = cudaStreamPerThread;
    else verdict->pending_stream = (cudaStream_t)(uintptr_t)key;
}

/* -- the cause and the sentence -- */

/* "model.c:88", "30.00 MiB", "unknown origin": what a holder's blocks are "of". */
static const char *gpi_verdict_holder(char room[64], const gpupool_holder *holder) {
    char size[32];
    if (holder->file)
        snprintf(room, 64, "%.48s:%d", gpi_limit_base(holder->file), holder->line);
    else if (holder->block_bytes)
        snprintf(room, 64, "%s", gpi_limit_human(size, holder->block_bytes));
    else
        snprintf(room, 64, "unknown origin");
    return room;
}

/* The holder of whom the fewest bytes would have to go, as far as blocks are of equal size; else
   the biggest. */
static const gpupool_holder *gpi_verdict_best(const gpupool_verdict *verdict) {
    const gpupool_holder *best = verdict->holders, *holder = best + 1;
    for (; holder < verdict->holders + GPUPOOL_HOLDERS; holder++)
        if (holder->enough && (!best->enough || holder->bytes / holder->blocks * holder->enough <
                                                    best->bytes / best->blocks * best->enough))
            best = holder;
    return best;
}

static void gpi_verdict_say(gpupool_verdict *verdict, const char *words) {
    size_t length = strlen(verdict->sentence);
    snprintf(verdict->sentence + length, sizeof verdict->sentence - length, "%s", words);
}

/* The work to wait for. */
static void gpi_verdict_say_waiting(gpupool_verdict *verdict) {
    char words[64];
    cudaStream_t stream = verdict->pending_stream;
    snprintf(words, sizeof words, "stream %p", (void *)stream);
    if (verdict->pending_streams > 1)
        snprintf(words, sizeof words, "the work in flight on %d streams", verdict->pending_streams);
    gpi_verdict_say(verdict, verdict->pending_streams == 0 ? "all work in flight on the device"
                           : stream == cudaStreamLegacy ? "the default stream"
                           : stream == cudaStreamPerThread ? "a thread's default stream" : words);
}

/* The request for another size. */
static void gpi_verdict_resize(gpi_scene *scene, uint64_t units) {
    const gpi_chunks *chunks = &scene->arena->chunks;
    uint64_t need;
    scene->units = units;
    need = gpi_growth_need(chunks, units, scene->align_units);
    scene->limit_units -= scene->rest_units;
    scene->rest_units = 0;
    if (gpi_chunk_is(chunks, GPI_FROM_DEVICE) && !gpi_chunk_is_mapped(chunks) && need > 1u << 20)
        scene->rest_units = (gpi_ground_up(need, chunks->driver.granule_bytes) - need) /
                            GPUPOOL_UNIT_BYTES;
    scene->limit_units += scene->rest_units;
}

/* The largest block that could be had, once work in flight has finished, where this one cannot. Of
   very many runs one that surely could. */
static uint64_t gpi_verdict_fits(gpi_scene *scene) {
    uint64_t most = scene->units, asked = most, least = 0;
    gpi_wish wish = {GPI_PENDING_ALL, 0, NULL, 0};
    while (most - least > 1 && scene->visits <= GPI_VISITS) {
        gpi_verdict_resize(scene, least + (most - least) / 2);
        if (gpi_verdict_lacks(scene, &wish) == 0) least = scene->units;
        else most = scene->units;
    }
    gpi_verdict_resize(scene, asked);
    return least - gpi_ground_min(least, GPI_GUARD);
}

/* In all chunks that the request may use, but not in a graph's memory. */
static uint64_t gpi_verdict_free_bytes(const gpupool_verdict *verdict, const gpi_scene *scene) {
    uint64_t bytes = verdict->reserved_bytes - verdict->granted_bytes - verdict->kept_bytes, i;
    for (i = 0; i < scene->shot_count; i++)
        if (scene->shots[i].tag != scene->tag && scene->shots[i].state <= GPI_SHOT_PENDING)
            bytes -= scene->shots[i].units * GPUPOOL_UNIT_BYTES;
    return bytes;
}

/* A sentence, with what the verdict says for each % and letter. */
static void gpi_verdict_fill_in(gpupool_verdict *verdict, const char *form) {
    const gpupool_holder *best = gpi_verdict_best(verdict);
    char room[32], name[64], words[128];
    for (; *form; form++) {
        snprintf(words, sizeof words, "%.*s", (int)strcspn(form, "%"), form);
        gpi_verdict_say(verdict, words);
        form += strlen(words);
        if (!*form) return;
        switch (*++form) {
        case 'a': gpi_limit_human(room, verdict->asked_bytes); break;
        case 'd': gpi_limit_human(room, verdict->device_total_bytes); break;
        case 'g': gpi_limit_human(room, verdict->fits_bytes); break;
        case 'h': gpi_limit_human(room, verdict->granted_bytes); break;
        case 'k': gpi_limit_human(room, verdict->kept_bytes); break;
        case 'l': gpi_limit_human(room, verdict->limit_bytes); break;
        case 'm': gpi_limit_enough(room, verdict->missing_bytes); break;
        case 'n': snprintf(room, sizeof room, "%" PRIu64, best->enough); break;
        case 'o':
            gpi_limit_human(room, verdict->others_bytes - verdict->siblings_bytes);
            break;
        case 'p': gpi_limit_human(room, verdict->pending_bytes - verdict->kept_bytes); break;
        case 'r': gpi_limit_human(room, verdict->largest_block_bytes); break;
        case 's': gpi_limit_human(room, verdict->siblings_bytes); break;
        case '+': gpi_limit_enough(room, verdict->raise_bytes); break;
        case 'b': /* "the 3 blocks of model.c:88", "the block of 30 MiB" */
            snprintf(room, sizeof room, "the %" PRIu64 " blocks", best->blocks);
            gpi_verdict_say(verdict, best->blocks > 1 ? room : "the block");
            gpi_verdict_say(verdict, " of ");
            gpi_verdict_say(verdict, gpi_verdict_holder(name, best));
            continue;
        default: gpi_verdict_say_waiting(verdict); continue; /* 'w' */
        }
        gpi_verdict_say(verdict, room);
    }
}

static void gpi_verdict_advise(gpupool_verdict *verdict, int *pieces, const char *form) {
    gpi_verdict_say(verdict, (*pieces)++ ? ", or " : ": ");
    gpi_verdict_fill_in(verdict, form);
}

/* Of live blocks that no graph keeps. */
static uint64_t gpi_verdict_own_bytes(const gpi_scene *scene) {
    uint64_t units = 0, i;
    for (i = 0; i < scene->shot_count; i++)
        if (scene->shots[i].state == GPI_SHOT_LIVE) units += scene->shots[i].units;
    return units * GPUPOOL_UNIT_BYTES;
}

/* Whether the request would fit if no block were live and nothing else were reserved. */
static int gpi_verdict_fits_alone(const gpi_scene *scene) {
    const gpupool_arena *arena = scene->arena;
    uint64_t need = gpi_growth_need(&arena->chunks, scene->units, scene->align_units);
    uint64_t reserved = scene->reserved_bytes / GPUPOOL_UNIT_BYTES, kept = 0;
    const gpi_chunk *chunk = arena->chunks.first;
    for (; chunk; chunk = chunk->next) /* what other tags reserve stays */
        kept += chunk->is_kept && !chunk->is_away && chunk->tag != scene->tag ? chunk->units : 0;
    need += kept * GPUPOOL_UNIT_BYTES;
    return !scene->captures && need <= scene->limit_bytes &&
           need / GPUPOOL_UNIT_BYTES + scene->rest_units <= scene->device_units + reserved;
}

/* The other arenas of the process, where it is the device that has too little. */
static void gpi_verdict_say_siblings(gpupool_verdict *verdict, const gpi_siblings *siblings) {
    char room[32];
    gpi_verdict_fill_in(verdict, "; other arenas of this process hold %s");
    gpi_verdict_say(verdict, ", and arena \"");
    gpi_verdict_say(verdict, siblings->name);
    gpi_verdict_say(verdict, "\" the most of it, ");
    gpi_verdict_say(verdict, gpi_limit_human(room, siblings->most_bytes));
}

/* refused: by the driver, for no reason that can be seen. both: the limit is in the way, and the
   device too. */
static void gpi_verdict_explain(gpupool_verdict *verdict, const gpi_scene *scene, int refused,
                              int both) {
    static const struct { char why[112], advice[56]; int freeing_helps; } causes[] = {
        {"%a fits", "", 1}, /* in the order of the enum */
        {"%a does not fit under the limit of %l, of which blocks hold %h", "", 1},
        {"%a is more than the whole device has, which is %d", "ask for less", 0},
        {"%a does not fit on the device, of whose %d this arena's blocks hold %h", "", 1},
        {"%a does not fit on the device: %m is missing, and others (processes, libraries, CUDA "
         "itself) hold %o of its %d", "have others free %m", 1},
        {"%a does not fit in one piece: ", "", 1}, /* and how much is free: see below */
        {"%a would fit if work in flight had finished", "wait for %w", 0},
        {"%a would fit if work in flight had finished, for which a capturing stream cannot wait",
         "before the capture begins, allocate it, or wait for %w", 0}};
    const gpupool_holder *best = gpi_verdict_best(verdict);
    const char *why = causes[verdict->cause].why, *advice = causes[verdict->cause].advice;
    uint64_t own_bytes = gpi_verdict_own_bytes(scene);
    char room[32];
    int pieces = 0;
    if (refused &&
        (verdict->cause == GPUPOOL_CAUSE_DEVICE_FULL || verdict->cause == GPUPOOL_CAUSE_OTHERS))
        why = "the driver refuses memory for %a, although as much seems free";
    gpi_verdict_fill_in(verdict, why);
    if (verdict->cause == GPUPOOL_CAUSE_FRAGMENTED) {
        gpi_verdict_say(verdict, gpi_limit_human(room, gpi_verdict_free_bytes(verdict, scene) +
                                                         scene->growth_bytes));
        gpi_verdict_fill_in(verdict,
                          scene->owners ? " is free in all, but no more than %g in one chunk"
                          : verdict->largest_block_bytes < scene->units * GPUPOOL_UNIT_BYTES
                              ? " is free in all, but no more than %g in one piece"
                              : " is free in all, but no more than %r in one piece, and none that "
                                "would do is aligned as asked");
    }
    if (verdict->cause == GPUPOOL_CAUSE_FRAGMENTED && verdict->pending_bytes > verdict->kept_bytes)
        gpi_verdict_fill_in(verdict, ", with %p pending");
    if (verdict->kept_bytes && causes[verdict->cause].freeing_helps)
        gpi_verdict_fill_in(verdict, "; graphs keep %k that they freed");
    if (verdict->siblings_bytes && (verdict->cause == GPUPOOL_CAUSE_OTHERS ||
                                    verdict->cause == GPUPOOL_CAUSE_DEVICE_FULL))
        gpi_verdict_say_siblings(verdict, scene->siblings);
    if (verdict->cause == GPUPOOL_CAUSE_OTHERS &&
        verdict->siblings_bytes >= verdict->missing_bytes)
        advice = "free %m of what those hold, and gpupool_trim them";
    else if (both && verdict->cause == GPUPOOL_CAUSE_OTHERS)
        advice = "have others free %m and raise the limit by as much";
    if (*advice) gpi_verdict_advise(verdict, &pieces, advice);
    if (verdict->raise_bytes)
        gpi_verdict_advise(verdict, &pieces, "raise the limit by %+");
    advice = !causes[verdict->cause].freeing_helps || !verdict->granted_bytes ? NULL
             : best->enough ? (best->enough < best->blocks ? "free %n of %b" : "free %b")
             : verdict->missing_bytes <= own_bytes
                 ? (own_bytes < verdict->granted_bytes
                        ? "free %m of what blocks outside of graphs hold"
                        : "free %m of what blocks hold, most of it in %b")
             : gpi_verdict_fits_alone(scene) ? "free all blocks, which hold %h" : NULL;
    if (!advice && !pieces) advice = "ask for less";
    if (advice) gpi_verdict_advise(verdict, &pieces, advice);
}

/* From the figures and the scene to the cause, the advice and the sentence. */
static void gpi_verdict_judge(gpupool_verdict *verdict, gpi_scene *scene) {
    uint64_t free_bytes = gpi_verdict_free_bytes(verdict, scene), by_limit, by_device;
    int pooled = gpi_chunk_is(&scene->arena->chunks, GPI_FROM_POOL);
    uint64_t growth_units = gpi_ground_min(scene->limit_units - scene->rest_units,
                                           scene->device_units);
    int waiting_would_do, refused, both;
    gpi_outlook now, later;
    gpi_wish wish = {GPI_PENDING_NONE, 0, NULL, 0};
    now = gpi_verdict_look(scene, &wish);
    wish.pending = GPI_PENDING_ALL;
    later = gpi_verdict_look(scene, &wish);
    by_limit = gpi_verdict_missing(scene, &now, scene->limit_units);
    by_device = gpi_verdict_missing(scene, &now, scene->device_units);
    refused = by_limit == 0 && by_device == 0;
    if (refused) scene->device_units = 0; /* it gives no more, whatever it says is free */
    waiting_would_do = verdict->pending_bytes && gpi_verdict_lacks(scene, &wish) == 0;
    if (!waiting_would_do) now = later;
    by_limit = gpi_verdict_missing(scene, &now, scene->limit_units);
    by_device = gpi_verdict_missing(scene, &now, scene->device_units);
    if (by_device && verdict->device_total_bytes &&
        verdict->asked_bytes > verdict->device_total_bytes)
        verdict->cause = GPUPOOL_CAUSE_TOO_LARGE;
    else if (waiting_would_do)
        verdict->cause = scene->capturing ? GPUPOOL_CAUSE_CAPTURING : GPUPOOL_CAUSE_PENDING;
    else if (pooled && !refused &&
             free_bytes / GPUPOOL_UNIT_BYTES + growth_units >= scene->units)
        verdict->cause = GPUPOOL_CAUSE_FRAGMENTED;
    else if (verdict->limit_bytes && by_limit && by_limit >= by_device)
        verdict->cause = GPUPOOL_CAUSE_LIMIT;
    else
        verdict->cause = verdict->others_bytes > verdict->reserved_bytes
                             ? GPUPOOL_CAUSE_OTHERS
                             : GPUPOOL_CAUSE_DEVICE_FULL;
    if (by_device == 0) verdict->raise_bytes = by_limit * GPUPOOL_UNIT_BYTES;
    if (verdict->raise_bytes) /* so far that nothing is trimmed: the request may need it */
        verdict->raise_bytes =
            gpi_ground_max(verdict->raise_bytes,
                           verdict->reserved_bytes - gpi_ground_min(verdict->reserved_bytes,
                                                                    verdict->limit_bytes));
    both = by_limit && by_device;
    by_limit = gpi_ground_max(by_limit, by_device);
    if (by_limit == 0) by_limit = scene->units; /* as if all of it were missing */
    verdict->missing_bytes = gpi_ground_min(by_limit, UINT64_MAX / GPUPOOL_UNIT_BYTES) *
                             GPUPOOL_UNIT_BYTES;
    if (waiting_would_do) gpi_verdict_name_stream(verdict, scene);
    gpi_verdict_name_holders(verdict, scene);
    if (verdict->cause == GPUPOOL_CAUSE_FRAGMENTED) {
        verdict->fits_bytes = gpi_verdict_fits(scene) * GPUPOOL_UNIT_BYTES;
        scene->growth_bytes = growth_units * GPUPOOL_UNIT_BYTES;
    }
    gpi_verdict_explain(verdict, scene, refused, both);
}

/* -- the figures -- */

/* The longest run that some stream may have; what a graph keeps is for its replays. `finished`:
   the list of finished memory, ANY or a tag's. */
static uint64_t gpi_verdict_longest_run(const gpupool_arena *arena, uint32_t finished) {
    gpi_list *const *lists = arena->tree.lists;
    const gpi_stream *stream = finished == GPI_LIST_ANY ? arena->clocks.busy : NULL;
    uint64_t largest = gpi_tree_largest(lists[finished]);
    for (; stream; stream = stream->busy_next)
        if (stream->handle && !stream->capture)
            largest = gpi_ground_max(largest, gpi_tree_largest(lists[stream->list]));
    return largest * GPUPOOL_UNIT_BYTES;
}

/* The largest block that such memory makes without growth, stitched if need be. */
static uint64_t gpi_verdict_largest(gpupool_arena *arena, uint32_t finished) {
    gpi_stream *stream = finished == GPI_LIST_ANY ? arena->clocks.busy : NULL;
    uint64_t largest = gpi_verdict_longest_run(arena, finished);
    if (!gpi_stitch_can(&arena->stitches)) return largest;
    arena->tree.lists[finished]->usable_below = UINT64_MAX;
    for (; stream; stream = stream->busy_next)
        if (stream->handle && !stream->capture)
            arena->tree.lists[stream->list]->usable_below = UINT64_MAX;
    largest = gpi_ground_max(largest, gpi_plan_largest(&arena->stitches) * GPUPOOL_UNIT_BYTES);
    gpi_tree_unmark(&arena->tree);
    return largest;
}

static int gpi_verdict_counts_kept(const gpupool_arena *arena, const gpi_stream *graph, int all) {
    return graph && graph->capture &&
           (all || !graph->key || gpi_arena_takes_finished(arena, graph));
}

/* Free, but a graph's before its release. Without `all`, only what no request can have until then:
   what is left of ended scopes, what others freed in one, and in a pinned arena, which hands out
   finished memory only, all of them. What an open scope has freed it may take again. */
static uint64_t gpi_verdict_kept_bytes(const gpupool_arena *arena, int all) {
    const gpi_stream *stream = arena->clocks.busy;
    const gpi_run *run = arena->captures ? arena->waiting : NULL;
    uint64_t units = 0;
    for (; stream; stream = stream->busy_next)
        if (gpi_verdict_counts_kept(arena, stream, all))
            units += arena->tree.lists[stream->list]->units;
    for (; run; run = run->list_next)
        if (gpi_clock_keeping(run) &&
            arena->sleep.states[gpi_stitch_tag_at(&arena->stitches, run->unit)] != GPI_ASLEEP)
            units += run->units;
    return units * GPUPOOL_UNIT_BYTES;
}

enum { GPI_MOST_SHIFT = 48 }; /* a request has at most 2^48 bytes */

/* From bytes to units, and one for a guard; 0 when there is no such size. */
static uint64_t gpi_verdict_units(uint64_t bytes) {
    if (bytes == 0 || bytes > (uint64_t)1 << GPI_MOST_SHIFT) return 0;
    return gpi_ground_up(bytes, GPUPOOL_UNIT_BYTES) / GPUPOOL_UNIT_BYTES + GPI_GUARD;
}

/* What the device leaves for growth. Pinned memory is not the device's, and managed memory may be
   more than it has. */
static void gpi_verdict_ask_device(const gpupool_arena *arena, gpupool_verdict *verdict,
                                   gpi_scene *scene) {
    size_t free_bytes = 0, total_bytes = 0;
    scene->device_units = UINT64_MAX / GPUPOOL_UNIT_BYTES;
    if (gpi_chunk_is(&arena->chunks, GPI_FROM_HOST) ||
        gpi_driver_memory(&arena->chunks.driver, verdict->reserved_bytes, &free_bytes,
                          &total_bytes) != CUDA_SUCCESS)
        return;
    verdict->device_free_bytes = free_bytes;
    verdict->device_total_bytes = total_bytes;
    if (gpi_chunk_is(&arena->chunks, GPI_FROM_DEVICE)) {
        uint64_t granule = arena->chunks.driver.granule_bytes;
        uint64_t need = gpi_growth_need(&arena->chunks, scene->units, scene->align_units);
        if (need > 1u << 20) { /* it gives whole granules only */
            free_bytes = (size_t)gpi_ground_down(free_bytes, granule);
            if (!gpi_chunk_is_mapped(&arena->chunks))
                scene->rest_units = (gpi_ground_up(need, granule) - need) / GPUPOOL_UNIT_BYTES;
            scene->limit_units += scene->rest_units;
        }
        scene->device_units = free_bytes / GPUPOOL_UNIT_BYTES;
    }
    if (total_bytes > verdict->device_free_bytes + verdict->reserved_bytes)
        verdict->others_bytes =
            total_bytes - verdict->device_free_bytes - verdict->reserved_bytes;
}

/* Of what was freed, what work may still be at: as the copy has it. */
static void gpi_verdict_count_pending(gpupool_verdict *verdict, const gpi_scene *scene) {
    uint64_t units = 0, i;
    if (!scene->shots) return;
    for (i = 0; i < scene->shot_count; i++)
        if (scene->shots[i].state == GPI_SHOT_PENDING) units += scene->shots[i].units;
    verdict->pending_bytes = verdict->kept_bytes + units * GPUPOOL_UNIT_BYTES;
}

/* What memory looks like to a request; `growing` is held, and no other lock. What the other arenas
   of the process hold, which was looked up a moment ago, is no others'. gpi_verdict_end comes
   after. */
static void gpi_verdict_begin(gpupool_arena *arena, const gpi_request *request,
                              const gpi_siblings *siblings, gpupool_verdict *verdict,
                              gpi_scene *scene) {
    gpi_cached cached;
    uint64_t limit;
    memset(verdict, 0, sizeof *verdict);
    memset(scene, 0, sizeof *scene);
    gpi_arena_fold(arena, &cached);
    limit = arena->ledger.limit_bytes;
    verdict->asked_bytes = request->bytes;
    verdict->limit_bytes = limit == UINT64_MAX ? 0 : limit;
    verdict->granted_bytes = arena->ledger.granted.now - gpi_arena_asleep_bytes(arena);
    verdict->reserved_bytes = arena->ledger.reserved.now;
    verdict->pending_bytes = arena->ledger.pending.now;
    verdict->kept_bytes = gpi_verdict_kept_bytes(arena, 1);
    if (gpi_chunk_is(&arena->chunks, GPI_FROM_HOST))
        verdict->largest_block_bytes =
            gpi_tree_largest(arena->tree.lists[GPI_LIST_ANY]) * GPUPOOL_UNIT_BYTES;
    else if (gpi_chunk_is(&arena->chunks, GPI_FROM_POOL))
        verdict->largest_block_bytes = gpi_verdict_largest(arena, gpi_ladder_finished(request));
    scene->arena = arena;
    scene->siblings = siblings;
    scene->reserved_bytes = arena->ledger.reserved.now;
    scene->limit_bytes = limit;
    scene->captures = arena->captures;
    scene->is_all_done = arena->clocks.is_all_seen;
    scene->capturing = request->capturing;
    scene->units = request->units;
    scene->align_units = request->align_units;
    scene->owners = request->owners;
    scene->tag = request->tag;
    scene->limit_units = gpi_ledger_room(&arena->ledger) / GPUPOOL_UNIT_BYTES;
    gpi_host_unlock(&arena->lock);
    gpi_verdict_ask_device(arena, verdict, scene);
    verdict->siblings_bytes = gpi_ground_min(siblings->reserved_bytes, verdict->others_bytes);
    gpi_shot_take(scene);
    gpi_verdict_count_pending(verdict, scene);
}

static void gpi_verdict_end(gpi_scene *scene) { GPUPOOL_FREE(scene->shots); }

/* == SIBLING ==================================================================================
   The other arenas of the process: what is idle there is as good as free on the device.
   uses: VERDICT and above */

typedef enum gpi_sibling_ask {
    GPI_SIBLING_LOOK,        /* only at what is reserved */
    GPI_SIBLING_COUNT,       /* what it would give back */
    GPI_SIBLING_GIVE,        /* gives back what is idle */
    GPI_SIBLING_WAIT         /* waits for the device first, since what was freed may be in use */
} gpi_sibling_ask;

typedef struct gpi_lack { /* of an arena that asks its siblings */
    const gpupool_arena *arena;
    uint64_t bytes;          /* that it needs of the device */
    gpi_sibling_ask ask;
    int may_wait;            /* the host may wait for the device */
    int capturing;           /* a stream captures: CUDA is not asked after all streams */
} gpi_lack;

/* Whether what other arenas hold can be what a request lacks: neither the limit stands in its way
   nor the device's size. */
static int gpi_sibling_can_help(const gpupool_arena *arena, uint64_t need_bytes) {
    return gpi_chunk_is(&arena->chunks, GPI_FROM_DEVICE) &&
           need_bytes <= arena->chunks.driver.total_bytes &&
           need_bytes <= gpi_ledger_room(&arena->ledger);
}

static int gpi_sibling_is(const gpupool_arena *arena, const gpupool_arena *other) {
    return other != arena && other->forks == gpi_process.forks &&
           other->chunks.driver.device == arena->chunks.driver.device;
}

/* What it holds and has no use for; it is open to this thread. What was freed is asked after. */
static uint64_t gpi_sibling_idle(gpupool_arena *other, const gpi_lack *lack) {
    uint64_t idle, keep = other->keep_bytes, reserved = other->ledger.reserved.now;
    if (!lack->capturing) gpi_arena_ask(other);
    if (lack->ask > GPI_SIBLING_COUNT) {
        gpi_arena_empty_all(other, gpi_arena_pour_out);
        gpi_tree_drop_slabs(&other->tree);
        if (!lack->capturing && gpi_arena_lacks_marks(other, UINT64_MAX))
            gpi_ladder_record_all(other);
        gpi_arena_poll_all(other);
    }
    idle = gpi_arena_finished_bytes(other);
    return gpi_ground_min(idle, reserved - gpi_ground_min(reserved, keep));
}

/* Gives back as much as is lacking, if chunks are as small; else all that is idle. */
static uint64_t gpi_sibling_give(gpupool_arena *other, uint64_t lack_bytes) {
    uint64_t before = other->ledger.reserved.now;
    uint64_t keep = before - gpi_ground_min(before, lack_bytes);
    gpi_stitch_trim(&other->stitches, gpi_ground_max(keep, other->keep_bytes));
    if (other->ledger.reserved.now > gpi_ground_max(keep, other->keep_bytes))
        gpi_stitch_trim(&other->stitches, other->keep_bytes);
    gpi_arena_trace_number(other, 't', other->ledger.reserved.now);
    return before - other->ledger.reserved.now;
}

/* Opens one of them to this thread, which holds no lock; it has a visitor. Who grows it may be this
   very thread, in a chunk_alloc: then it is left out, after some milliseconds. 0: not done. */
static int gpi_sibling_enter(gpupool_arena *other, gpi_visit *visit) {
    unsigned round = 0;
    int got = 0;
    if (gpi_driver_enter(&other->chunks.driver, visit) != GPUPOOL_OK) return 0;
    if (gpi_arena_outlived(other, "a sibling's gpupool_alloc") == GPUPOOL_OK)
        while (!(got = gpi_host_mutex_try(&other->growing)) && round < 256)
            gpi_host_idle(round++);
    if (got) gpi_host_lock(&other->lock);
    else gpi_driver_leave(visit);
    return got;
}

static int gpi_sibling_has_pending(gpupool_arena *other) {
    int has;
    gpi_host_lock(&other->lock);
    gpi_arena_count_pending(other);
    has = other->ledger.pending.now != 0;
    gpi_host_unlock(&other->lock);
    return has;
}

static void gpi_sibling_ask_one(gpupool_arena *other, const gpi_lack *lack,
                                gpi_siblings *siblings) {
    uint64_t idle = 0, reserved = 0;
    gpi_visit visit;
    if (lack->ask == GPI_SIBLING_WAIT && gpi_sibling_has_pending(other) &&
        gpi_driver_enter(&other->chunks.driver, &visit) == GPUPOOL_OK) {
        gpi_clock_wait_device(&other->clocks, &other->chunks.driver);
        gpi_driver_leave(&visit);
    }
    if (!gpi_sibling_enter(other, &visit)) return;
    if (lack->ask != GPI_SIBLING_LOOK && gpi_chunk_is(&other->chunks, GPI_FROM_HERE))
        idle = gpi_sibling_idle(other, lack);
    if (idle && lack->ask > GPI_SIBLING_COUNT)
        idle = gpi_sibling_give(other, lack->bytes - siblings->idle_bytes);
    if (gpi_chunk_is(&other->chunks, GPI_FROM_DEVICE)) reserved = other->ledger.reserved.now;
    siblings->reserved_bytes += reserved;
    siblings->idle_bytes += idle;
    if (reserved > siblings->most_bytes) {
        siblings->most_bytes = reserved;
        memcpy(siblings->name, other->name, sizeof siblings->name);
    }
    gpi_arena_leave(other, &visit);
}

static int gpi_sibling_exist(const gpupool_arena *arena) {
    const gpupool_arena *other;
    int found = 0;
    gpi_host_lock(&gpi_process.lock);
    for (other = gpi_process.arenas; other && !found; other = other->next)
        found = gpi_sibling_is(arena, other);
    gpi_host_unlock(&gpi_process.lock);
    return found;
}

/* Asks all of them, until what is lacking is given. Returns how many there are. No lock is held. */
static int gpi_sibling_ask_all(const gpi_lack *lack, gpi_siblings *siblings) {
    gpupool_arena *other;
    int count = 0;
    memset(siblings, 0, sizeof *siblings);
    gpi_host_lock(&gpi_process.lock);
    for (other = gpi_process.arenas; other; other = other->next) {
        if (!gpi_sibling_is(lack->arena, other)) continue;
        count++;
        if (lack->ask > GPI_SIBLING_COUNT && siblings->idle_bytes >= lack->bytes) continue;
        other->visitors++;
        gpi_host_unlock(&gpi_process.lock);
        gpi_sibling_ask_one(other, lack, siblings);
        gpi_host_lock(&gpi_process.lock);
        other->visitors--;
    }
    gpi_host_unlock(&gpi_process.lock);
    return count;
}

/* Has the others give back what they have no use for, first without a wait, if that can help; looks
   at what they hold in any case. Returns whether any gave something. */
static int gpi_sibling_borrow(gpi_lack *lack, gpi_siblings *siblings) {
    int count = gpi_sibling_ask_all(lack, siblings);
    if (!count || lack->ask == GPI_SIBLING_LOOK) return 0;
    if (siblings->idle_bytes) return 1;
    if (!lack->may_wait || !siblings->reserved_bytes) return 0;
    lack->ask = GPI_SIBLING_WAIT;
    gpi_sibling_ask_all(lack, siblings);
    return siblings->idle_bytes != 0;
}

/* What the other arenas hold, and would give back for so many bytes if that can help. */
static void gpi_sibling_count(gpupool_arena *arena, uint64_t bytes, gpi_siblings *siblings) {
    gpi_lack lack;
    memset(siblings, 0, sizeof *siblings);
    lack.arena = arena;
    lack.bytes = bytes;
    lack.may_wait = 0;
    if (gpi_arena_exists(arena, "gpupool_would_fit") != GPUPOOL_OK) return;
    if (!gpi_sibling_exist(arena)) return;
    gpi_host_lock(&arena->lock);
    lack.ask = gpi_sibling_can_help(arena, bytes) ? GPI_SIBLING_COUNT : GPI_SIBLING_LOOK;
    lack.capturing = arena->clocks.capturing != 0;
    gpi_host_unlock(&arena->lock);
    gpi_sibling_ask_all(&lack, siblings);
}

/* == BLOCK ====================================================================================
   Blocks are handed out and taken back. uses: SIBLING and above

   A request looks into its stream's cache, under the stream's lock; then into the tree, under the
   arena's; then at what another stream has just freed; and then begins the ladder. */

#if GPUPOOL_NVTX
static void gpi_block_tell(const gpi_run *run, uint64_t bytes, gpi_origin origin) {
    char name[64];
    if (!run->heap) return;
    if (*origin.file)
        snprintf(name, sizeof name, "%.48s:%d", gpi_limit_base(origin.file), origin.line);
    else
        snprintf(name, sizeof name, "gpupool block");
    gpi_driver_tell_block(run->heap, (const void *)(uintptr_t)(run->unit * GPUPOOL_UNIT_BYTES),
                          bytes, name);
}

static void gpi_block_tell_gone(const gpi_run *run) {
    if (run->heap)
        gpi_driver_tell_block_gone((const void *)(uintptr_t)(run->unit * GPUPOOL_UNIT_BYTES));
}

static void *gpi_block_heap(const gpupool_arena *arena, const gpi_run *run) {
    const gpi_chunk *chunk = arena->chunks.first;
    if (gpi_chunk_is_mapped(&arena->chunks)) return NULL;
    while (run->unit - chunk->unit >= chunk->units) chunk = chunk->next;
    return chunk->heap;
}
#endif

/* run: NULL when nothing was found for the request. */
static void gpi_block_trace(gpupool_arena *arena, const gpi_request *request, const gpi_run *run) {
    if (run) fprintf(arena->trace, "a %" PRIu64, gpi_arena_trace_id(arena, run));
    else fprintf(arena->trace, "o");
    fprintf(arena->trace, " %" PRIu64 " %" PRIu64, request->bytes,
            gpi_arena_trace_stream(request->by.stream));
    if (request->align_units > 1)
        fprintf(arena->trace, " %" PRIu64, request->align_units * GPUPOOL_UNIT_BYTES);
    fputc('\n', arena->trace);
}

/* Makes a taken run the caller's block. The tree has been prepared. */
GPI_HOT void *gpi_block_bring(gpupool_arena *arena, gpi_run *run, gpi_use *use,
                              const gpi_request *request) {
    uint64_t granted = run->units * GPUPOOL_UNIT_BYTES;
    gpi_tree_bring_alive(&arena->tree, run, (uint32_t)(granted - request->bytes));
    run->of.uses = use;
    if (use) arena->clocks.loose_uses--;
    run->by.stream = request->owner->handle;
    gpi_ledger_charge(&arena->ledger, request->bytes, granted);
    if (arena->trace) gpi_block_trace(arena, request, run);
#if GPUPOOL_SITES
    run->site = gpi_ledger_site(&arena->ledger, request->origin, request->owner->handle);
    gpi_ledger_site_add(run->site, request->bytes);
#endif
#if GPUPOOL_NVTX
    run->heap = gpi_block_heap(arena, run);
    gpi_block_tell(run, request->bytes, request->origin);
#endif
    return (void *)(uintptr_t)(run->unit * GPUPOOL_UNIT_BYTES);
}

/* What a graph is to keep a block by; NULL outside of scopes. 0: the host has no memory for it.
   Asked for before memory is taken. */
static int gpi_block_can_keep(gpupool_arena *arena, gpi_stream *owner, gpi_use **use) {
    *use = NULL;
    if (!owner->capture) return 1;
    *use = gpi_clock_new_use(&arena->clocks, owner, UINT64_MAX);
    arena->clocks.loose_uses += *use != NULL;
    return *use != NULL;
}

static void gpi_block_keep_not(gpupool_arena *arena, gpi_use *use) {
    if (!use) return;
    arena->clocks.loose_uses--;
    gpi_clock_free_use(&arena->clocks, use);
}

static void gpi_block_count_failure(gpupool_arena *arena) { /* no lock is held */
    gpi_host_lock(&arena->lock);
    arena->ledger.failures += GPUPOOL_STATS;
    gpi_host_unlock(&arena->lock);
}

/* -- a request that finds no memory at once -- */

/* What a request that found no memory needs of the device. */
static gpi_lack gpi_block_lack(const gpupool_arena *arena, const gpi_request *request) {
    gpi_lack lack;
    lack.arena = arena;
    lack.bytes = gpi_growth_need(&arena->chunks, request->units, request->align_units);
    lack.ask = gpi_sibling_can_help(arena, lack.bytes) ? GPI_SIBLING_GIVE : GPI_SIBLING_LOOK;
    lack.may_wait = !request->capturing && !request->no_wait;
    lack.capturing = request->capturing || arena->clocks.capturing;
    return lack;
}

/* Out of memory: the verdict is made, and the caller's function may free something. Returns whether
   to try again. `growing` is held on entry, no lock on return. */
static int gpi_block_give_up(gpupool_arena *arena, const gpi_request *request,
                             const gpi_siblings *siblings, const gpi_visit *visit) {
    gpupool_verdict verdict;
    gpi_scene scene;
    gpi_host_lock(&arena->lock);
    gpi_clock_start_look(&arena->clocks); /* the ladder has asked already */
    gpi_host_unlock(&arena->lock);
    gpi_verdict_begin(arena, request, siblings, &verdict, &scene);
    gpi_verdict_judge(&verdict, &scene);
    gpi_verdict_end(&scene);
    gpi_host_lock(&arena->lock);
    if (arena->trace) gpi_block_trace(arena, request, NULL);
    gpi_arena_leave(arena, visit);
    if (arena->on_out_of_memory && arena->on_out_of_memory(&verdict, arena->user)) return 1;
    gpi_thread.verdict = verdict;
    gpi_host_fail(GPUPOOL_E_OUT_OF_MEMORY, "arena \"%s\": %s", arena->name, verdict.sentence);
    return 0;
}

/* One way up the ladder; both locks are held on entry and exit. *block: NULL, with a result. */
static gpupool_result gpi_block_try(gpupool_arena *arena, gpi_request *request, void **block) {
    gpupool_result result;
    gpi_attempt attempt;
    gpi_use *use = NULL;
    memset(&attempt, 0, sizeof attempt);
    attempt.arena = arena;
    attempt.request = request;
    request->owner = gpi_arena_owner_again(arena, &request->by);
    if (!request->owner || !gpi_block_can_keep(arena, request->owner, &use))
        return gpi_host_no_memory();
    gpi_clock_set_capturing(&arena->clocks, request->owner, request->capturing);
    request->owner->refs++; /* it stays, even if others make it known anew */
    GPI_PUBLISH(&arena->searching, arena->searching + 1);
    result = gpi_ladder_run(&attempt);
    GPI_PUBLISH(&arena->searching, arena->searching - 1);
    if (result == GPUPOOL_OK && !gpi_tree_prepare(&arena->tree, 2)) {
        gpi_stitch_put(&arena->stitches, attempt.run, request->owner,
                       gpi_clock_issue(&arena->clocks, request->owner), 0);
        result = gpi_host_no_memory();
    }
    if (result == GPUPOOL_OK) *block = gpi_block_bring(arena, attempt.run, use, request);
    else gpi_block_keep_not(arena, use);
    request->owner->refs--;
    return result;
}

enum { GPI_BORROWS = 8 }; /* times that a request has other arenas give memory back */

/* Whether other threads have memory in hand that they may yet put back; or tell the program of
   some, and with it there may be enough. */
static int gpi_block_is_coming(const gpupool_arena *arena, const gpi_request *request) {
    const gpi_ledger *ledger = &arena->ledger;
    if (arena->in_hand) return 1;
    return arena->chunks.telling && gpi_thread.telling != &arena->chunks && !request->no_wait &&
           request->bytes <= ledger->reserved.now - ledger->granted.now;
}

/* No lock is held. */
static void *gpi_block_slow(gpupool_arena *arena, gpi_request *request) {
    gpi_siblings siblings;
    gpi_visit visit;
    void *block = NULL;
    int borrows = 0;
    unsigned round = 0;
    memset(&siblings, 0, sizeof siblings);
    for (;;) {
        gpupool_result result = gpi_arena_enter_awake(arena, "gpupool_alloc", request->tag, &visit);
        if (result != GPUPOOL_OK) break;
        gpi_host_unlock(&arena->lock);
        request->capturing = gpi_driver_is_capturing(&arena->chunks.driver, request->by.stream);
        gpi_host_lock(&arena->lock);
        result = gpi_block_try(arena, request, &block);
        if (result == GPUPOOL_E_OUT_OF_MEMORY && gpi_block_is_coming(arena, request)) {
            gpi_arena_leave(arena, &visit);
            gpi_host_idle(round++);
            continue;
        }
        if (result != GPUPOOL_E_OUT_OF_MEMORY) {
            gpi_arena_leave(arena, &visit);
            if (result != GPUPOOL_OK) break;
            gpi_host_ok();
            return block;
        }
        if (borrows < GPI_BORROWS && gpi_sibling_exist(arena)) {
            gpi_lack lack = gpi_block_lack(arena, request);
            gpi_arena_leave(arena, &visit);
            borrows += gpi_sibling_borrow(&lack, &siblings) ? 1 : GPI_BORROWS;
            continue;
        }
        borrows = 0;
        gpi_arena_unlock(arena);
        if (!gpi_block_give_up(arena, request, &siblings, &visit)) break;
    }
    gpi_block_count_failure(arena);
    return NULL;
}

/* Another stream's memory, at once: if its work has finished; or, where memory was short of late,
   behind a wait on the device, for to wait while the arena may grow would hold the stream up for
   nothing. Where there is a choice, streams are asked first whether they have finished. The lock is
   held, and open while CUDA is called. */
static gpi_run *gpi_block_hand_over(gpupool_arena *arena, gpi_request *request) {
    int is_short = arena->clocks.position < arena->short_until, choices = 0;
    gpi_run *run, *mine = NULL;
    if (!gpi_ladder_may_follow(arena, request)) return NULL;
    run = gpi_ladder_of_some(arena, request, &choices);
    if (!run) return NULL;
    request->owner->refs++;
    if (is_short && choices > 1) {
        int more = gpi_arena_poll(arena, GPI_LOOKS); /* others may have taken the run meanwhile */
        if (more && gpi_tree_prepare(&arena->tree, 3))
            mine = gpi_ladder_quick(arena, request, GPI_TRIES);
        run = mine ? NULL : gpi_ladder_of_some(arena, request, &choices);
    }
    if (run && gpi_tree_prepare(&arena->tree, 3))
        mine = gpi_ladder_take_over(arena, request, run,
                                    is_short ? GPI_BEHIND_A_WAIT : GPI_IF_FINISHED);
    request->owner->refs--;
    if (!mine || gpi_tree_prepare(&arena->tree, 3)) return mine;
    gpi_stitch_put(&arena->stitches, mine, request->owner,
                   gpi_clock_issue(&arena->clocks, request->owner), 0);
    return NULL;
}

/* -- a request -- */

/* GPUPOOL_STREAM_CHECK: without an answer memory might be handed out whose work is not done. */
static gpupool_result gpi_block_not_told(gpupool_arena *arena, CUresult error) {
    gpupool_result result = gpi_arena_outlived(arena, "GPUPOOL_STREAM_CHECK");
    if (result != GPUPOOL_OK) return result;
    result = gpi_host_fail(GPUPOOL_E_CUDA, "GPUPOOL_STREAM_CHECK: CUDA does not tell which stream "
                           "this is: %s", gpi_driver_name(&arena->chunks.driver, error));
    gpi_thread.cuda_error = (int)error;
    return result; /* never E_OUT_OF_MEMORY, which would have a verdict */
}

/* The handle is another stream's than the one whose key it has, or nobody's yet: it is made known
   anew. No lock is held. */
static gpupool_result gpi_block_rename(gpupool_arena *arena, const gpi_caller *call) {
    cudaStream_t stream = call->stream;
    uintptr_t key = call->key;
    gpi_stream *owner, *now;
    uint64_t identity;
    CUresult error = gpi_clock_identity(arena->clocks.driver, stream, &identity);
    if (error != CUDA_SUCCESS) return gpi_block_not_told(arena, error);
    owner = gpi_clock_enter(&arena->clocks, key);
    gpi_host_lock(&arena->lock);
    if (owner && !owner->capture && owner->identity != identity) {
        gpi_arena_drain(arena, owner);
        gpi_clock_unname(&arena->clocks, owner);
    }
    now = gpi_arena_owner(arena, key, identity);
    gpi_arena_unlock(arena);
    if (owner) gpi_host_unlock(&owner->cache.lock);
    return now ? GPUPOOL_OK : gpi_host_no_memory();
}

/* The stream of a call, with its lock held. `known`: who had the key a moment ago. NULL with a
   result. */
GPI_HOT gpi_stream *gpi_block_visit(gpupool_arena *arena, gpi_stream *owner,
                                    const gpi_caller *call) {
    int asked = 0; /* who has the key since is this stream: it cannot go during the call */
    for (;; asked = 1) {
        if (owner) {
            gpi_host_lock(&owner->cache.lock);
            if (GPI_READ(&owner->key) == call->key &&
                (asked || gpi_clock_is_same(&arena->clocks, owner, call->stream)))
                return owner;
            gpi_host_unlock(&owner->cache.lock);
        }
        if (gpi_block_rename(arena, call) != GPUPOOL_OK) return NULL;
        owner = gpi_clock_find(&arena->clocks, call->key);
    }
}

static void gpi_block_refuse(gpupool_arena *arena, const gpi_request *request, const char *call,
                             uint64_t alignment) {
    gpi_block_count_failure(arena);
    if (request->units == 0)
        gpi_host_fail(GPUPOOL_E_ARGUMENT, "%s: bytes is %" PRIu64 ", and must be from 1 to 2^48",
                      call, request->bytes);
    else
        gpi_host_fail(GPUPOOL_E_ARGUMENT, "%s: alignment is %" PRIu64 ", and must be a power of "
                      "two of at most 2^40", call, alignment);
}

#if GPUPOOL_SITES
/* Of a block from the request's cache, whose lock is held: no other thread changes what it notes
   there. In loops it is mostly the same line that has the block again. */
static gpi_site *gpi_block_site(gpupool_arena *arena, const gpi_request *request,
                                const gpi_run *run) {
    gpi_site *site = run->site;
    gpi_origin origin = request->origin;
    uint64_t key = request->by.key;
    if (site->file == origin.file && site->line == origin.line && site->key == key) return site;
    site = gpi_ledger_find_site(&arena->ledger, origin, key);
    if (site) return site;
    gpi_host_lock(&arena->lock);
    site = gpi_ledger_site(&arena->ledger, origin, key);
    if (site == &arena->ledger.unknown)
        site = gpi_ledger_adopt(&arena->ledger, &request->owner->cache.unknown, key);
    gpi_host_unlock(&arena->lock);
    return site;
}
#endif

/* Whether a stream has nothing in its cache, so that calls need not lock it. Nothing gets in
   without the arena's lock. */
GPI_HOT int gpi_block_is_uncached(const gpupool_arena *arena, gpi_stream *owner,
                                  cudaStream_t stream) {
    return owner && GPI_READ(&owner->cache.used) == 0 &&
           gpi_clock_is_same(&arena->clocks, owner, stream);
}

/* The arena's lock, in the hot paths. A thread that waits for it too long wants its stream's cache
   to be crowded. */
GPI_HOT void gpi_block_lock(gpupool_arena *arena, gpi_cache *cache) {
    unsigned pauses = gpi_host_lock(&arena->lock);
    if (pauses == 0) {
        if (cache->waits) cache->waits--;
        return;
    }
    cache->waits += 64 * pauses;
    cache->waits = (uint32_t)gpi_ground_min(cache->waits, 2 * GPI_CACHE_WAITS);
    if (cache->waits >= GPI_CACHE_WAITS) cache->rest = 0;
}

/* How much free memory a stream's cache may keep from merging: a 256th of what is reserved. For
   small blocks more where it is crowded, but all streams together an 8th. */
static uint64_t gpi_block_cache_units(const gpupool_arena *arena, int crowded) {
    uint64_t share = crowded ? gpi_ground_min(arena->clocks.stream_count * 8, 256) : 256;
    return gpi_ground_max(arena->ledger.reserved.now / share, 1u << 20) / GPUPOOL_UNIT_BYTES;
}

/* Evicts until so many units more may be free in the stream's cache; both locks are held. */
static void gpi_block_bound_cache(gpupool_arena *arena, gpi_stream *owner, uint64_t units) {
    gpi_cache *cache = &owner->cache;
    cache->most_units = gpi_block_cache_units(arena, cache->crowded);
    if (cache->free_units + units <= cache->most_units) return;
    if (cache->crowded) units += cache->most_units / 4; /* not to come back for this soon */
    while (cache->free_units + units > cache->most_units)
        gpi_arena_put_evicted(arena, owner, gpi_cache_evict_free(cache));
}

/* Whether a block of its stream's could join the stream's cache, if that is open. */
static int gpi_block_caches(const gpupool_arena *arena, const gpi_stream *owner,
                            const gpi_run *run) {
    uint64_t most = gpi_block_cache_units(arena, 0);
    if (run->units > gpi_ground_min(most / 4, GPI_CACHE_UNITS) || gpi_tree_tag(run)) return 0;
    if (gpi_stitch_is(&arena->stitches, run) || owner->capture) return 0;
    return !arena->searching && arena->clocks.position >= arena->short_until &&
           !gpi_arena_takes_finished(arena, owner);
}

/* A live block is the cache's from now on; both locks are held. */
static void gpi_block_admit(gpupool_arena *arena, gpi_stream *owner, gpi_run *run,
                            gpi_slot_state state) {
    gpi_cache *cache = &owner->cache;
    if (state == GPI_SLOT_FREE) gpi_block_bound_cache(arena, owner, run->units);
    if (cache->crowded && cache->empty == GPI_NO_SLOT && cache->room < GPI_SLOTS_MOST)
        gpi_cache_widen(cache);
    while (cache->empty == GPI_NO_SLOT)
        gpi_arena_put_evicted(arena, owner, gpi_cache_evict(cache));
    gpi_cache_admit(cache, run, state);
    run->by.stream = owner->handle;
}

/* From the tree: under the arena's lock, and the stream's if `cached`. */
static gpi_run *gpi_block_from_tree(gpupool_arena *arena, gpi_request *request, int cached) {
    gpi_stream *owner = request->owner;
    gpi_run *run;
    if (cached) {
        gpi_cache_fold(&owner->cache, &arena->ledger);
        /* what the cache keeps from merging may be just what a large request lacks: this is worth
           one per cent of memory on recorded training runs */
        if (request->units > GPI_CACHE_UNITS && !owner->cache.crowded)
            gpi_arena_drain(arena, owner);
    }
    if (request->tag && !gpi_arena_takes_finished(arena, owner)) {
        run = gpi_ladder_own_waiting(arena, request);
        if (run) return run;
    }
    run = gpi_ladder_quick(arena, request, GPI_TRIES);
    if (!run && cached && owner->cache.free_blocks) {
        gpi_arena_pour_out(arena, owner);
        run = gpi_ladder_quick(arena, request, GPI_TRIES);
    }
    if (!run) run = gpi_ladder_restitch(arena, request);
    return run ? run : gpi_ladder_quick(arena, request, GPI_TRIES_SLOW);
}

/* The cache has no block of this size. `cached`: the stream's lock is held, and not on return. */
GPI_HOT void *gpi_block_take(gpupool_arena *arena, gpi_request *request, int cached) {
    gpi_stream *owner = request->owner;
    gpi_run *run = NULL;
    gpi_use *use = NULL;
    void *block = NULL;
    int ready;
    gpi_block_lock(arena, &owner->cache);
    ready = gpi_tree_is_ready(&arena->tree, 3) || gpi_tree_prepare(&arena->tree, 3);
    if (owner->capture) ready &= gpi_block_can_keep(arena, owner, &use);
    if (ready && owner->key == request->by.key && gpi_chunk_is(&arena->chunks, GPI_FROM_POOL))
        run = gpi_block_from_tree(arena, request, cached);
    if (run) block = gpi_block_bring(arena, run, use, request);
    if (block && cached && owner->cache.crowded && run->units <= GPI_SMALL_UNITS &&
        request->align_units == 1 && gpi_block_caches(arena, owner, run))
        gpi_block_admit(arena, owner, run, GPI_SLOT_OUT);
    if (cached) gpi_host_unlock(&owner->cache.lock);
    if (!run && ready && owner->key == request->by.key && arena->clocks.busy) {
        run = gpi_block_hand_over(arena, request);
        if (run) block = gpi_block_bring(arena, run, NULL, request);
    }
    if (!run) gpi_block_keep_not(arena, use);
    if (!ready) arena->ledger.failures += GPUPOOL_STATS;
    gpi_arena_unlock(arena);
    if (!ready) gpi_host_no_memory();
    if (run || !ready) return block;
    block = gpi_block_slow(arena, request);
    if (GPI_READ(&arena->is_untold)) gpi_tag_tell(arena);
    return block;
}

/* Whether the request is a legal one; else the mistake is told. */
static int gpi_block_is_legal(gpupool_arena *arena, gpi_request *request, const char *call,
                              uint64_t alignment) {
    request->units = gpi_verdict_units(request->bytes);
    request->align_units = gpi_ground_max(alignment, GPUPOOL_UNIT_BYTES) / GPUPOOL_UNIT_BYTES;
    if (request->units && gpi_ground_is_power(alignment) && alignment <= (uint64_t)1 << 40)
        return 1;
    gpi_block_refuse(arena, request, call, alignment);
    return 0;
}

/* `request` has bytes, stream, key and origin. */
static void *gpi_block_get(gpupool_arena *arena, const char *call, gpi_request *request,
                           uint64_t alignment) {
    gpi_slot *slot = NULL;
    void *block;
    if (gpi_arena_begin(arena, call) != GPUPOOL_OK) return NULL;
    if (!gpi_block_is_legal(arena, request, call, alignment)) return NULL;
    request->owner = gpi_clock_find(&arena->clocks, request->by.key);
    if (gpi_block_is_uncached(arena, request->owner, request->by.stream))
        return gpi_block_take(arena, request, 0);
    request->owner = gpi_block_visit(arena, request->owner, &request->by);
    if (!request->owner) {
        gpi_block_count_failure(arena);
        return NULL;
    }
    if (request->align_units == 1)
        slot = gpi_cache_take(&request->owner->cache, request->units, request->bytes);
    if (!slot) return gpi_block_take(arena, request, 1);
    block = (void *)(uintptr_t)(slot->unit * GPUPOOL_UNIT_BYTES);
#if GPUPOOL_SITES
    gpi_cache_sign(&request->owner->cache, slot, gpi_block_site(arena, request, slot->run));
#endif
#if GPUPOOL_NVTX
    gpi_block_tell(slot->run, request->bytes, request->origin);
#endif
    if (arena->trace) {
        gpi_host_lock(&arena->lock);
        gpi_block_trace(arena, request, slot->run);
        gpi_host_unlock(&arena->lock);
    }
    gpi_host_unlock(&request->owner->cache.lock);
    return block;
}

/* -- a pointer -- */

/* The run of a MAPPED arena that an address is in; NULL where nothing is mapped. */
static const gpi_run *gpi_block_run_at(const gpupool_arena *arena, uint64_t unit) {
    const gpi_stitch *stitch = arena->stitches.oldest;
    if (unit < arena->chunks.stitch_unit)
        return gpi_tree_owner(&arena->tree, unit) ? gpi_tree_at(&arena->tree, unit) : NULL;
    while (stitch && unit - stitch->body->unit >= stitch->body->units) stitch = stitch->newer;
    return stitch ? stitch->body : NULL;
}

/* The run that an address of the arena's memory is in; NULL where nothing is mapped. */
static const gpi_run *gpi_block_around(const gpupool_arena *arena, uint64_t unit) {
    const gpi_chunk *chunk = arena->chunks.first;
    const gpi_run *run;
    if (gpi_chunk_is_mapped(&arena->chunks)) return gpi_block_run_at(arena, unit);
    while (unit - chunk->unit >= chunk->units) chunk = chunk->next;
    for (run = chunk->first; unit - run->unit >= run->units;) run = run->next;
    return run;
}

/* What a pointer that starts no live block is. Only mistakes pay for it. The lock is held; is_free:
   its run is free in a cache. */
static gpupool_result gpi_block_mistake(const gpupool_arena *arena, const char *call,
                                        const void *block, int is_free) {
    uint64_t unit = (uint64_t)(uintptr_t)block / GPUPOOL_UNIT_BYTES;
    const gpi_run *run;
    if (!gpi_chunk_owns(&arena->chunks, unit))
        return gpi_host_fail(GPUPOOL_E_NOT_OURS, "%s: %p is in no memory of arena \"%s\"", call,
                             block, arena->name);
    run = gpi_block_around(arena, unit);
    if (run && run->list >= GPI_LIST_CACHED && !is_free)
        return gpi_host_fail(GPUPOOL_E_INSIDE, "%s: %p is inside the live block at %p, at offset "
                             "%" PRIu64, call, block,
                             (void *)(uintptr_t)(run->unit * GPUPOOL_UNIT_BYTES),
                             (uint64_t)(uintptr_t)block - run->unit * GPUPOOL_UNIT_BYTES);
    return gpi_host_fail(GPUPOOL_E_DOUBLE_FREE, "%s: %p is in free memory: freed before, or never "
                         "handed out", call, block);
}

/* The cache that has the block at, or around, a unit; NULL: none has. The lock is held. */
static gpi_cache *gpi_block_cache_of(const gpupool_arena *arena, uint64_t unit) {
    const gpi_run *run = gpi_tree_live(&arena->tree, unit);
    if (!run && gpi_chunk_owns(&arena->chunks, unit)) run = gpi_block_around(arena, unit);
    return run && run->list == GPI_LIST_CACHED ? (gpi_cache *)run->of.uses : NULL;
}

/* The live run of a block, with the arena's lock held, and that of the cache which has it (*cache,
   or NULL); NULL, the mistake told and no lock held, if it is none. */
static gpi_run *gpi_block_enter(gpupool_arena *arena, const char *call, const void *block,
                                gpi_cache **cache) {
    uint64_t unit = (uint64_t)(uintptr_t)block / GPUPOOL_UNIT_BYTES;
    gpi_run *run;
    int is_free;
    for (;;) {
        gpi_host_lock(&arena->lock);
        *cache = gpi_block_cache_of(arena, unit);
        if (!*cache) break;
        gpi_host_unlock(&arena->lock);
        gpi_host_lock(&(*cache)->lock);
        gpi_host_lock(&arena->lock);
        if (*cache == gpi_block_cache_of(arena, unit)) break;
        gpi_host_unlock(&arena->lock); /* another cache has it by now, or none */
        gpi_host_unlock(&(*cache)->lock);
    }
    run = gpi_tree_live(&arena->tree, unit);
    is_free = *cache && !gpi_cache_asked_around(*cache, run ? run->unit : unit);
    if (run && !is_free && (uintptr_t)block % GPUPOOL_UNIT_BYTES == 0) return run;
    gpi_block_mistake(arena, call, block, is_free);
    gpi_host_unlock(&arena->lock);
    if (*cache) gpi_host_unlock(&(*cache)->lock);
    return NULL;
}

static void gpi_block_leave(gpupool_arena *arena, gpi_cache *cache) {
    gpi_arena_unlock(arena);
    if (cache) gpi_host_unlock(&cache->lock);
}

/* -- a block is freed -- */

/* With several streams about, a stream's frees get a mark now and then while the stream is known to
   be alive, so that others can have the memory: every 64th, or when they add up to a 1024th of what
   is reserved; each, where memory was short of late, or where none can be had before. */
GPI_HOT int gpi_block_is_due(const gpupool_arena *arena, const gpi_stream *owner) {
    uint64_t share = gpi_ground_max(arena->ledger.reserved.now / 1024, 1u << 20);
    if (!gpi_arena_takes_finished(arena, owner)) {
        if (!gpi_arena_shares(arena)) return 0;
        if (owner->frees < 64 && owner->freed_units * GPUPOOL_UNIT_BYTES < share &&
            arena->clocks.position > arena->short_until)
            return 0;
    }
    return owner->frees && !owner->capture;
}

static void gpi_block_untag(gpupool_arena *arena, const gpi_run *run) {
    if (gpi_ledger_untag(&arena->ledger, gpi_tree_tag(run), run->units * GPUPOOL_UNIT_BYTES))
        GPI_PUBLISH(&arena->is_untold, 1);
}

/* Of a live run, before it is laid down. */
GPI_HOT void gpi_block_count_free(gpupool_arena *arena, const gpi_run *run, cudaStream_t stream) {
    uint64_t bytes = gpi_arena_requested(run);
    if (gpi_tree_tag(run)) gpi_block_untag(arena, run);
    if (arena->trace) gpi_arena_trace_block(arena, 'f', run, stream);
#if GPUPOOL_NVTX
    gpi_block_tell_gone(run);
#endif
    gpi_ledger_refund(&arena->ledger, bytes, run->units * GPUPOOL_UNIT_BYTES);
#if GPUPOOL_SITES
    gpi_ledger_site_sub(run->site, bytes);
#endif
}

/* Whether a block lies in a tag's own chunks, which have no free list for each stream. */
GPI_HOT int gpi_block_is_apart(const gpupool_arena *arena, const gpi_run *run) {
    return arena->chunks.is_apart && gpi_stitch_tag_at(&arena->stitches, run->unit);
}

/* What a block with uses, or freed in a scope, has to wait for: those uses, and the work of the
   stream that frees it. What a graph was handed, and frees itself, it may have again at once: then
   no use is left. 0: the host has no memory. */
static int gpi_block_add_uses(gpupool_arena *arena, gpi_run *run, gpi_stream *owner) {
    gpi_clocks *clocks = &arena->clocks;
    gpi_use *keeping = gpi_clock_keeping(run);
    if (owner == clocks->all && !keeping && !*gpi_clock_sleeper(run))
        /* marks over all streams cover every use */
        gpi_clock_drop_uses(clocks, run);
    else
        gpi_clock_drop_passed(clocks, run);
    if (keeping && keeping->stream == owner && run->of.uses == keeping && !keeping->next) {
        if (gpi_block_is_apart(arena, run)) keeping->at = gpi_clock_again();
        else gpi_clock_drop_uses(clocks, run);
        return 1;
    }
    if (!run->of.uses && !owner->capture && !gpi_block_is_apart(arena, run)) return 1;
    return gpi_clock_use(clocks, run, owner,
                         owner->capture ? UINT64_MAX : gpi_clock_issue(clocks, owner));
}

/* Whether another process may have the block. */
static int gpi_block_is_exported(const gpupool_arena *arena, const gpi_run *run) {
    const gpi_chunk *chunk = (const gpi_chunk *)gpi_tree_owner(&arena->tree, run->unit);
    return !gpi_stitch_is(&arena->stitches, run) && chunk->exports;
}

/* Frees the live block that the link leads to, and no cache has; the arena's lock is held. */
GPI_HOT gpupool_result gpi_block_free(gpupool_arena *arena, gpi_run **link, gpi_stream *owner,
                                      cudaStream_t stream) {
    gpi_run *run = *link;
    GPI_ASSERT(run != NULL);
    if (arena->chunks.exports && gpi_block_is_exported(arena, run))
        return gpi_host_fail(GPUPOOL_E_IN_USE, "gpupool_free: the block is exported: "
                             "gpupool_export_close comes first");
    if ((run->of.uses || owner->capture || gpi_block_is_apart(arena, run)) &&
        !gpi_block_add_uses(arena, run, owner))
        return gpi_host_no_memory();
    gpi_block_count_free(arena, run, stream);
    gpi_tree_lay_down_at(&arena->tree, link);
    if (run->of.uses) {
        run->list = GPI_LIST_WAITING;
        gpi_arena_wait_for_uses(arena, run);
        owner->frees += 64; /* the next mark is due */
    } else {
        gpi_arena_put(arena, owner, run);
    }
    return GPUPOOL_OK;
}

/* The same for a block of a stream whose cache's lock is held, too: it may join the cache. */
static gpupool_result gpi_block_free_to_cache(gpupool_arena *arena, gpi_run **link,
                                              gpi_stream *owner, cudaStream_t stream) {
    gpi_cache *cache = &owner->cache;
    gpi_run *run = *link;
    gpupool_result result = GPUPOOL_OK;
    gpi_cache_fold(cache, &arena->ledger); /* first, or peaks would be reckoned from after this */
    if (run->of.uses || owner->capture) {
        result = gpi_block_free(arena, link, owner, stream);
    } else {
        cache->crowded |= cache->waits >= GPI_CACHE_WAITS;
        if (gpi_block_caches(arena, owner, run) && gpi_cache_is_open(cache)) {
            gpi_block_count_free(arena, run, stream);
            gpi_block_admit(arena, owner, run, GPI_SLOT_FREE);
        } else {
            result = gpi_block_free(arena, link, owner, stream);
        }
        if (cache->rest) gpi_arena_drain(arena, owner);
    }
    gpi_cache_fold(cache, &arena->ledger);
    return result;
}

static void gpi_block_mark(gpupool_arena *arena, gpi_stream *owner, cudaStream_t stream) {
    owner->refs++;
    if (owner == arena->clocks.all || arena->clocks.position <= arena->short_until)
        gpi_clock_record(&arena->clocks, owner, stream);
    else
        gpi_clock_record_in_passing(&arena->clocks, owner, stream);
    owner->frees = 0; /* not asked for again soon where it could not be had */
    owner->freed_units = 0;
    owner->refs--;
}

/* The end of a free: the stream's mark, if one is due. The arena's lock is held, and no longer on
   return. */
GPI_HOT void gpi_block_end_free(gpupool_arena *arena, gpi_stream *owner, cudaStream_t stream) {
    if (gpi_block_is_due(arena, owner)) gpi_block_mark(arena, owner, stream);
    gpi_arena_unlock(arena);
}

/* A pointer that its stream's cache and the tree do not simply find: another cache has the block,
   or it is a mistake. No lock is held. */
static gpupool_result gpi_block_free_slow(gpupool_arena *arena, void *block,
                                          const gpi_caller *call) {
    gpupool_result result;
    gpi_stream *owner;
    gpi_cache *cache;
    gpi_run *run = gpi_block_enter(arena, "gpupool_free", block, &cache);
    if (!run) return gpi_thread.result;
    owner = gpi_arena_owner_again(arena, call);
    if (!owner) {
        gpi_block_leave(arena, cache);
        return gpi_host_no_memory();
    }
    if (cache && run->list == GPI_LIST_CACHED) {
        gpi_cache_release(cache, run->unit);
        gpi_cache_fold(cache, &arena->ledger);
    }
    owner->refs++;
    if (cache) gpi_host_unlock(&cache->lock);
    result = gpi_block_free(arena, gpi_tree_link(&arena->tree, run->unit), owner, call->stream);
    owner->refs--;
    gpi_block_end_free(arena, owner, call->stream);
    return result;
}

/* BYPASS: the block was a chunk of its own, which goes back to CUDA at once; where CUDA refuses it
   the arena keeps it, and tries again. */
static gpupool_result gpi_block_free_chunk(gpupool_arena *arena, void *block,
                                           const gpi_caller *call) {
    gpupool_result result;
    gpi_stream *owner;
    gpi_cache *none;
    gpi_visit visit;
    gpi_run *run;
    result = gpi_arena_enter(arena, "gpupool_free", &visit);
    if (result != GPUPOOL_OK) return result;
    gpi_host_unlock(&arena->lock);
    run = gpi_block_enter(arena, "gpupool_free", block, &none);
    if (!run) {
        result = gpi_thread.result;
        gpi_host_lock(&arena->lock);
        gpi_arena_leave(arena, &visit);
        return result;
    }
    owner = gpi_arena_owner_again(arena, call);
    if (!owner || (owner->capture && !gpi_clock_keeping(run) &&
                   !gpi_clock_use(&arena->clocks, run, owner, UINT64_MAX))) {
        gpi_arena_leave(arena, &visit);
        return gpi_host_no_memory();
    }
    if (!gpi_clock_keeping(run)) gpi_clock_drop_uses(&arena->clocks, run); /* CUDA waits for them */
    gpi_block_count_free(arena, run, call->stream);
    gpi_tree_lay_down(&arena->tree, run);
    if (run->of.uses) {
        run->list = GPI_LIST_WAITING;
        gpi_arena_wait_for_uses(arena, run);
    } else {
        gpi_stitch_put(&arena->stitches, run, NULL, 0, 0); /* one with what alignment left over */
        gpi_stitch_trim(&arena->stitches, 0);
    }
    gpi_arena_leave(arena, &visit);
    return gpi_host_ok();
}

/* More came back to a cache than it may keep, since others joined it meanwhile. The stream's lock
   is held. */
static void gpi_block_overflow(gpupool_arena *arena, gpi_stream *owner, cudaStream_t stream) {
    gpi_host_lock(&arena->lock);
    gpi_block_bound_cache(arena, owner, 0);
    gpi_cache_fold(&owner->cache, &arena->ledger);
    owner->refs++;
    gpi_host_unlock(&owner->cache.lock);
    gpi_block_end_free(arena, owner, stream);
    gpi_host_lock(&arena->lock);
    owner->refs--;
    gpi_host_unlock(&arena->lock);
}

/* While a stream's cache is empty and rests, or is not for this block, the arena's lock alone will
   do. 0: it is for this block, or the block is not simply found. */
static int gpi_block_give_uncached(gpupool_arena *arena, gpi_stream *owner, uint64_t unit,
                                   const gpi_caller *call, gpupool_result *result) {
    gpi_run **link = NULL, *run = NULL;
    gpi_block_lock(arena, &owner->cache);
    if (owner->key == call->key && owner->cache.used == 0) link = gpi_tree_link(&arena->tree, unit);
    if (link) run = *link;
    if (run && run->list == GPI_LIST_CACHED) run = NULL;
    if (run && owner->cache.rest) owner->cache.rest--;
    else if (run && gpi_block_caches(arena, owner, run)) run = NULL;
    if (!run) {
        gpi_host_unlock(&arena->lock);
        return 0;
    }
    *result = gpi_block_free(arena, link, owner, call->stream);
    gpi_block_end_free(arena, owner, call->stream);
    return 1;
}

GPI_HOT gpupool_result gpi_block_give(gpupool_arena *arena, void *block, const gpi_caller *call) {
    uint64_t unit = (uint64_t)(uintptr_t)block / GPUPOOL_UNIT_BYTES;
    int is_aligned = (uintptr_t)block % GPUPOOL_UNIT_BYTES == 0;
    gpupool_result result = GPUPOOL_OK;
    gpi_stream *owner;
    gpi_slot *slot;
    gpi_run **link, *run;
    if (!block) return GPUPOOL_OK;
    if (!gpi_chunk_is(&arena->chunks, GPI_FROM_POOL))
        return gpi_block_free_chunk(arena, block, call);
    owner = gpi_clock_find(&arena->clocks, call->key);
    if (is_aligned && gpi_block_is_uncached(arena, owner, call->stream) &&
        gpi_block_give_uncached(arena, owner, unit, call, &result))
        return result;
    owner = gpi_block_visit(arena, owner, call);
    if (!owner) return gpi_thread.result;
    slot = is_aligned && !GPI_READ(&arena->searching) ? gpi_cache_give(&owner->cache, unit) : NULL;
    if (slot) {
#if GPUPOOL_NVTX
        gpi_block_tell_gone(slot->run);
#endif
        if (arena->trace) {
            gpi_host_lock(&arena->lock);
            gpi_arena_trace_block(arena, 'f', slot->run, call->stream);
            gpi_host_unlock(&arena->lock);
        }
        if (owner->cache.free_units > owner->cache.most_units)
            gpi_block_overflow(arena, owner, call->stream);
        else
            gpi_host_unlock(&owner->cache.lock);
        return GPUPOOL_OK;
    }
    gpi_block_lock(arena, &owner->cache);
    link = gpi_tree_link(&arena->tree, unit);
    run = is_aligned ? *link : NULL;
    if (run && run->list == GPI_LIST_CACHED && !gpi_cache_is_out(&owner->cache, unit)) run = NULL;
    if (run && run->list == GPI_LIST_CACHED) gpi_cache_release(&owner->cache, unit);
    if (run) result = gpi_block_free_to_cache(arena, link, owner, call->stream);
    gpi_host_unlock(&owner->cache.lock);
    if (run) {
        gpi_block_end_free(arena, owner, call->stream);
        return result;
    }
    gpi_host_unlock(&arena->lock);
    return gpi_block_free_slow(arena, block, call);
}

/* A block that could not be filled, and that nobody was given. */
static void gpi_block_unhand(gpupool_arena *arena, void *block, const gpi_caller *call) {
    struct gpi_thread why = gpi_thread;
    if (gpi_block_give(arena, block, call) != GPUPOOL_OK)
        gpi_block_free_slow(arena, block, call); /* CUDA has not told which stream this is,
                                                           and need not */
    gpi_block_count_failure(arena);
    gpi_thread = why;
}

/* == HAND =====================================================================================
   What the public calls hand out and take back: blocks, with a guard behind each where
   GPUPOOL_GUARD asks for guards. uses: BLOCK and above */

/* What is filled and compared must be mapped: if the arena is awake it stays so, until gpi_hand_go.
   No lock is held. */
static gpupool_result gpi_hand_stay(gpupool_arena *arena, const char *call, const void *block) {
    gpupool_result result;
    gpi_host_lock(&arena->lock);
    result = gpi_arena_is_awake(arena, call,
                                gpi_stitch_tag_at(&arena->stitches, (uint64_t)(uintptr_t)block /
                                                                        GPUPOOL_UNIT_BYTES));
    arena->halfway += result == GPUPOOL_OK;
    gpi_host_unlock(&arena->lock);
    return result;
}

static void gpi_hand_go(gpupool_arena *arena) {
    gpi_host_lock(&arena->lock);
    arena->halfway--;
    gpi_host_unlock(&arena->lock);
}

#if GPI_GUARD
enum {
    GPI_GUARD_BYTES = 256, /* at least so many are behind each block; so many are compared */
    GPI_GUARD_FILL = 0xfd,
    GPI_NEW_FILL = 0xcd,
    GPI_OLD_FILL = 0xdd
};

/* A capture would make the fills part of its graph, and a stream of another device may have no way
   to this memory. Between enter and leave. */
static int gpi_hand_can(const gpupool_arena *arena, cudaStream_t stream) {
    return !gpi_driver_is_capturing(&arena->chunks.driver, stream) &&
           !gpi_driver_foreign(&arena->chunks.driver, stream);
}

typedef struct gpi_guarded { /* what is known of a live block */
    uint64_t guarded_bytes;  /* where its guard begins; 0: it has none */
    uint64_t granted_bytes;
    int is_used;             /* by other streams, by a graph or by other processes */
} gpi_guarded;

/* Gives a live block another guard, and returns what it had. */
static gpi_guarded gpi_hand_exchange(gpupool_arena *arena, const void *block, uint64_t bytes) {
    uint64_t unit = (uint64_t)(uintptr_t)block / GPUPOOL_UNIT_BYTES;
    gpi_guarded before;
    gpi_run *run;
    memset(&before, 0, sizeof before);
    gpi_host_lock(&arena->lock);
    run = (uintptr_t)block % GPUPOOL_UNIT_BYTES ? NULL : gpi_tree_live(&arena->tree, unit);
    if (run) {
        before.guarded_bytes = run->guarded_bytes;
        before.granted_bytes = run->units * GPUPOOL_UNIT_BYTES;
        before.is_used = run->list == GPI_LIST_LIVE &&
                         (run->of.uses ||
                          (arena->chunks.exports && gpi_block_is_exported(arena, run)));
        run->guarded_bytes = bytes;
    }
    gpi_host_unlock(&arena->lock);
    return before;
}

/* Fills a new block and the end of its last units. Waits for that where others than this stream's
   work may use the block at once. */
static gpupool_result gpi_hand_fill(gpupool_arena *arena, char *block, uint64_t bytes,
                                     const gpi_caller *call) {
    const gpi_driver *driver = &arena->chunks.driver;
    gpupool_source source = arena->chunks.source;
    gpupool_result result;
    gpi_guarded block_is;
    gpi_visit visit;
    int guards = 0;
    if (gpi_driver_enter(driver, &visit) != GPUPOOL_OK) return gpi_thread.result;
    result = gpi_arena_outlived(arena, "gpupool_alloc");
    if (result == GPUPOOL_OK) guards = gpi_hand_can(arena, call->stream);
    block_is = gpi_hand_exchange(arena, block, guards ? bytes : 0);
    if (block_is.is_used || !block_is.granted_bytes) { /* a graph has it; or it was freed meanwhile,
                                                          by a thread that was never given it */
        guards = 0;
        gpi_hand_exchange(arena, block, 0);
    }
    if (guards) result = gpi_driver_fill(driver, block, GPI_NEW_FILL, bytes, call->stream);
    if (guards && result == GPUPOOL_OK)
        result = gpi_driver_fill(driver, block + bytes, GPI_GUARD_FILL,
                                 block_is.granted_bytes - bytes, call->stream);
    if (guards && result == GPUPOOL_OK &&
        (call->key == GPI_KEY_ANY || source == GPUPOOL_SOURCE_PINNED ||
         source == GPUPOOL_SOURCE_MANAGED))
        result = gpi_driver_stream_sync(driver, call->stream);
    gpi_driver_leave(&visit);
    return result;
}

/* The guard of a block that is about to be freed. If CUDA fails, that is for the free to tell. */
static gpupool_result gpi_hand_compare(const gpi_driver *driver, char *block, uint64_t bytes,
                                        cudaStream_t stream) {
    unsigned char behind[GPI_GUARD_BYTES];
    gpi_copy copy;
    int i = 0;
    memset(&copy, 0, sizeof copy);
    copy.to = behind;
    copy.from = block + bytes;
    copy.width = sizeof behind;
    copy.rows = 1;
    if (gpi_driver_copy(driver, &copy, stream, NULL) != GPUPOOL_OK ||
        gpi_driver_stream_sync(driver, stream) != GPUPOOL_OK)
        return GPUPOOL_OK;
    while (i < GPI_GUARD_BYTES && behind[i] == GPI_GUARD_FILL) i++;
    if (i == GPI_GUARD_BYTES) return GPUPOOL_OK;
    return gpi_host_fail(GPUPOOL_E_OVERRUN, "gpupool_free: something wrote past the end of the "
                         "block of %" PRIu64 " bytes at %p: byte %" PRIu64 " has changed", bytes,
                         (void *)block, bytes + (uint64_t)i);
}

/* A block is about to be freed: looks at its guard, and fills it for those who would still read it,
   unless another stream or a graph may be at it rightly, or CUDA may not take it back. Returns the
   guard that it had; 0: it needs none any more. */
static uint64_t gpi_hand_look(gpupool_arena *arena, char *block, const gpi_caller *call,
                               int in_scope, gpupool_result *found) {
    gpi_driver *driver = &arena->chunks.driver;
    gpi_guarded block_is = gpi_hand_exchange(arena, block, 0);
    uint64_t bytes = block_is.guarded_bytes;
    int stays = block_is.is_used || in_scope || arena->chunks.source == GPUPOOL_SOURCE_BYPASS;
    gpi_visit visit;
    *found = GPUPOOL_OK;
    if (!bytes || gpi_driver_enter(driver, &visit) != GPUPOOL_OK) return bytes;
    if (gpi_arena_outlived(arena, "gpupool_free") == GPUPOOL_OK &&
        gpi_hand_can(arena, call->stream) &&
        (call->key != GPI_KEY_ANY || gpi_clock_wait_device(&arena->clocks, driver) == GPUPOOL_OK)) {
        *found = gpi_hand_compare(driver, block, bytes, call->stream);
        if (!stays) { /* the guard is filled too; if that fails nobody is told: what was found
                         counts */
            struct gpi_thread why = gpi_thread;
            bytes = 0;
            gpi_driver_fill(driver, block, GPI_OLD_FILL, block_is.granted_bytes, call->stream);
            gpi_thread = why;
        }
    }
    gpi_driver_leave(&visit);
    return bytes;
}
#endif

/* request: bytes, by and origin are set. */
GPI_HOT void *gpi_hand_alloc(gpupool_arena *arena, const char *name, gpi_request *request,
                             uint64_t alignment) {
    void *block = gpi_block_get(arena, name, request, alignment);
#if GPI_GUARD
    gpupool_result result = block ? gpi_hand_stay(arena, name, block) : GPUPOOL_OK;
    if (block && result == GPUPOOL_OK) {
        result = gpi_hand_fill(arena, (char *)block, request->bytes, &request->by);
        gpi_hand_go(arena);
    }
    if (result != GPUPOOL_OK) {
        gpi_block_unhand(arena, block, &request->by);
        return NULL;
    }
#endif
    return block;
}

static gpupool_result gpi_hand_free(gpupool_arena *arena, void *block, const gpi_caller *call) {
    gpupool_result result = gpi_arena_begin(arena, "gpupool_free");
#if GPI_GUARD
    struct gpi_thread why;
    gpupool_result found = GPUPOOL_OK;
    gpi_stream *owner;
    uint64_t bytes = 0;
    int in_scope;
    if (result == GPUPOOL_OK && block &&
        gpi_hand_stay(arena, "gpupool_free", block) == GPUPOOL_OK) {
        /* first of all, so that the host has the memory for it once the block is filled */
        owner = gpi_block_visit(arena, gpi_clock_find(&arena->clocks, call->key), call);
        if (!owner) result = gpi_thread.result;
        in_scope = owner && GPI_READ(&owner->capture) != NULL;
        if (owner) gpi_host_unlock(&owner->cache.lock);
        if (owner) bytes = gpi_hand_look(arena, (char *)block, call, in_scope, &found);
        gpi_hand_go(arena);
    }
    why = gpi_thread;
    if (result == GPUPOOL_OK) result = gpi_block_give(arena, block, call);
    if (result == GPUPOOL_E_CUDA && !bytes) /* the stream has told, and need not tell again */
        result = gpi_block_free_slow(arena, block, call);
    if (result != GPUPOOL_OK && bytes) gpi_hand_exchange(arena, block, bytes);
    if (result == GPUPOOL_OK && found != GPUPOOL_OK) {
        gpi_thread = why;
        result = found;
    }
#else
    if (result == GPUPOOL_OK) result = gpi_block_give(arena, block, call);
#endif
    if (result == GPUPOOL_OK && GPI_READ(&arena->is_untold)) gpi_tag_tell(arena);
    return result == GPUPOOL_OK ? gpi_host_ok() : result;
}

/* -- in public -- */

static gpi_origin gpi_hand_origin(const char *file, int line) {
    gpi_origin origin;
    origin.file = file ? file : "";
    origin.line = file ? line : 0;
    return origin;
}

GPI_HOT void gpi_hand_request(gpi_request *request, size_t bytes, cudaStream_t stream,
                              gpi_origin origin) {
    request->bytes = bytes;
    request->by = gpi_arena_call(stream);
    request->origin = origin;
    request->capturing = request->no_wait = request->tag = 0;
    request->owners = GPI_OWNERS_ANY;
}

/* By the host in a pinned arena; and by the stream where it captures, again in each replay. */
static gpupool_result gpi_hand_zero(gpupool_arena *arena, void *block, size_t bytes,
                                    cudaStream_t stream) {
    const gpi_driver *driver = &arena->chunks.driver;
    int is_host = arena->chunks.source == GPUPOOL_SOURCE_PINNED;
    gpi_visit visit;
    gpupool_result result = gpi_driver_enter(driver, &visit);
    if (result != GPUPOOL_OK) return result;
    result = gpi_arena_outlived(arena, "gpupool_zalloc");
    if (result == GPUPOOL_OK && is_host) memset(block, 0, bytes);
    if (result == GPUPOOL_OK && (!is_host || gpi_driver_is_capturing(driver, stream)))
        result = gpi_driver_fill(driver, block, 0, bytes, stream);
    gpi_driver_leave(&visit);
    return result;
}

/* `block` is the request's, or NULL. */
static void *gpi_hand_zeroed(gpupool_arena *arena, void *block, const gpi_request *request) {
    gpupool_result result;
    if (!block) return NULL;
    result = gpi_hand_stay(arena, "gpupool_zalloc", block);
    if (result == GPUPOOL_OK) {
        result = gpi_hand_zero(arena, block, (size_t)request->bytes, request->by.stream);
        gpi_hand_go(arena);
    }
    if (result == GPUPOOL_OK) return block;
    gpi_block_unhand(arena, block, &request->by);
    return NULL;
}

void *gpupool_alloc(gpupool_arena *arena, size_t bytes, cudaStream_t stream) {
    gpi_request request;
    gpi_hand_request(&request, bytes, stream, gpi_hand_origin(NULL, 0));
    return gpi_hand_alloc(arena, "gpupool_alloc", &request, GPUPOOL_UNIT_BYTES);
}

void *gpupool_alloc_aligned(gpupool_arena *arena, size_t bytes, size_t alignment,
                            cudaStream_t stream) {
    gpi_request request;
    gpi_hand_request(&request, bytes, stream, gpi_hand_origin(NULL, 0));
    return gpi_hand_alloc(arena, "gpupool_alloc_aligned", &request,
                          alignment ? alignment : GPUPOOL_UNIT_BYTES);
}

void *gpupool_zalloc(gpupool_arena *arena, size_t bytes, cudaStream_t stream) {
    gpi_request request;
    gpi_hand_request(&request, bytes, stream, gpi_hand_origin(NULL, 0));
    return gpi_hand_zeroed(arena, gpi_hand_alloc(arena, "gpupool_zalloc", &request,
                                                 GPUPOOL_UNIT_BYTES), &request);
}

enum { GPI_FLAGS = GPUPOOL_ZEROED | GPUPOOL_NO_WAIT | GPUPOOL_ONE_CHUNK | GPUPOOL_EXPORTABLE };

static gpupool_result gpi_hand_check(gpupool_arena *arena, const gpupool_request *asked) {
    gpupool_result result = gpi_arena_begin(arena, "gpupool_alloc_request");
    if (result != GPUPOOL_OK) return result;
    if (!asked) return gpi_host_fail(GPUPOOL_E_ARGUMENT, "gpupool_alloc_request: request is NULL");
    if ((asked->flags & GPUPOOL_EXPORTABLE) &&
        !(arena->chunks.driver.share & GPUPOOL_SHARE_PROCESSES))
        return gpi_host_fail(GPUPOOL_E_ARGUMENT, "gpupool_alloc_request: GPUPOOL_EXPORTABLE is for "
                             "arenas with GPUPOOL_SHARE_PROCESSES in config.share");
    if (!(asked->flags & ~(unsigned)GPI_FLAGS)) return GPUPOOL_OK;
    return gpi_host_fail(GPUPOOL_E_ARGUMENT, "gpupool_alloc_request: request.flags is %#x, and "
                         "must be a sum of gpupool_flag", asked->flags);
}

/* With a tag: its budget is charged first, so that no two threads share what is left of it. */
static void *gpi_hand_alloc_tagged(gpupool_arena *arena, gpi_request *request, uint64_t alignment,
                                   int tag) {
    uint64_t bytes = gpi_verdict_units(request->bytes) * GPUPOOL_UNIT_BYTES;
    void *block;
    if (gpi_ground_is_power(alignment)) /* no cache has it: those know no tags */
        alignment = gpi_ground_max(alignment, 2 * GPUPOOL_UNIT_BYTES);
    if (gpi_tag_charge(arena, tag, bytes, request->bytes) != GPUPOOL_OK) return NULL;
    if (arena->chunks.apart[tag].is_apart) request->tag = tag;
    block = gpi_hand_alloc(arena, "gpupool_alloc", request, alignment);
    gpi_tag_settle(arena, tag, bytes, block);
    return block;
}

/* The chunks that a request's block may lie in, by its flags; the alignment that goes with them. */
static void gpi_hand_choose_owners(const gpupool_arena *arena, gpi_request *request, unsigned flags,
                                   uint64_t *alignment) {
    uint64_t granule = arena->chunks.driver.granule_bytes, least = 2 * GPUPOOL_UNIT_BYTES;
    uint64_t guard = GPI_GUARD * GPUPOOL_UNIT_BYTES;
    if (!gpi_chunk_is_mapped(&arena->chunks) ||
        !(flags & (GPUPOOL_ONE_CHUNK | GPUPOOL_EXPORTABLE)))
        return;
    request->owners = GPI_OWNERS_ONE;
    if (flags & GPUPOOL_EXPORTABLE) {
        request->owners = GPI_OWNERS_WHOLE;
        if (request->bytes && request->bytes <= (uint64_t)1 << 48) /* with the guard */
            request->bytes = gpi_ground_up(request->bytes + guard, granule) - guard;
        least = granule;
    }
    if (gpi_ground_is_power(*alignment)) *alignment = gpi_ground_max(*alignment, least);
}

void *gpupool_alloc_request(gpupool_arena *arena, const gpupool_request *asked) {
    gpi_request request;
    uint64_t alignment;
    void *block;
    if (gpi_hand_check(arena, asked) != GPUPOOL_OK) return NULL;
    gpi_hand_request(&request, asked->bytes, asked->stream,
                     gpi_hand_origin(asked->file, asked->line));
    alignment = asked->alignment ? asked->alignment : GPUPOOL_UNIT_BYTES;
    request.no_wait = (asked->flags & GPUPOOL_NO_WAIT) != 0;
    gpi_hand_choose_owners(arena, &request, asked->flags, &alignment);
    if (asked->tag) block = gpi_hand_alloc_tagged(arena, &request, alignment, asked->tag);
    else block = gpi_hand_alloc(arena, "gpupool_alloc", &request, alignment);
    return asked->flags & GPUPOOL_ZEROED ? gpi_hand_zeroed(arena, block, &request) : block;
}

gpupool_result gpupool_free(gpupool_arena *arena, void *block, cudaStream_t stream) {
    gpi_caller call = gpi_arena_call(stream);
    return gpi_hand_free(arena, block, &call);
}

/* Where CUDA forbids its own calls: the mark comes with the stream's next one. */
gpupool_result gpupool_free_in_host_function(gpupool_arena *arena, void *block,
                                             cudaStream_t stream) {
    gpi_caller call = gpi_arena_call(stream);
    gpupool_result result = gpi_arena_begin(arena, "gpupool_free_in_host_function");
    gpi_stream *owner = NULL;
    gpi_cache *cache;
    gpi_run *run;
    if (result != GPUPOOL_OK || !block) return result;
    if (call.stream == cudaStreamPerThread)
        return gpi_host_fail(GPUPOOL_E_ARGUMENT, "gpupool_free_in_host_function: stream is "
                             "cudaStreamPerThread, which is another one on this thread");
    run = gpi_block_enter(arena, "gpupool_free_in_host_function", block, &cache);
    if (!run) return gpi_thread.result;
    if (cache) {
        gpi_cache_release(cache, run->unit);
        gpi_cache_fold(cache, &arena->ledger);
    }
    owner = gpi_arena_owner(arena, call.key, 0);
    result = owner ? gpi_block_free(arena, gpi_tree_link(&arena->tree, run->unit), owner,
                                    call.stream)
                   : gpi_host_no_memory();
    gpi_block_leave(arena, cache);
    return result == GPUPOOL_OK ? gpi_host_ok() : result;
}

/* The stream of a use is known, and is not an earlier one with the same handle, which may still be
   at work: CUDA is asked, since a use lasts. No lock is held. */
static gpupool_result gpi_hand_identify(gpupool_arena *arena, const gpi_caller *call) {
    gpi_stream *owner = gpi_block_visit(arena, gpi_clock_find(&arena->clocks, call->key), call);
    uint64_t identity = 0;
    if (!owner) return gpi_thread.result;
    if (!gpi_driver_is_default(call->stream) && !owner->capture)
        gpi_driver_stream_id(arena->clocks.driver, call->stream, &identity);
    if (identity && owner->identity && owner->identity != identity) {
        gpi_host_lock(&arena->lock);
        gpi_arena_drain(arena, owner);
        gpi_clock_unname(&arena->clocks, owner);
        gpi_arena_unlock(arena);
        gpi_host_unlock(&owner->cache.lock);
        owner = gpi_block_visit(arena, NULL, call);
        if (!owner) return gpi_thread.result;
    }
    if (identity) GPI_PUBLISH(&owner->identity, identity);
    gpi_host_unlock(&owner->cache.lock);
    return GPUPOOL_OK;
}

gpupool_result gpupool_record_stream(gpupool_arena *arena, const void *block, cudaStream_t stream) {
    const char *name = "gpupool_record_stream";
    gpi_caller call = gpi_arena_call(stream);
    gpi_stream *owner;
    gpi_cache *cache;
    gpi_run *run;
    gpupool_result result = gpi_arena_begin(arena, name);
    if (result != GPUPOOL_OK) return result;
    result = gpi_arena_outlived(arena, name);
    if (result != GPUPOOL_OK) return result;
    if (gpi_clock_is_capturing(&arena->clocks, call.stream))
        return gpi_host_fail(GPUPOOL_E_CAPTURING, "a capturing stream puts no mark outside its "
                             "graph: keep the block until the graph is destroyed");
    if (gpi_hand_identify(arena, &call) != GPUPOOL_OK) return gpi_thread.result;
    run = gpi_block_enter(arena, name, block, &cache);
    if (!run) return gpi_thread.result;
    if (cache) {
        gpi_cache_release(cache, run->unit);
        gpi_cache_fold(cache, &arena->ledger);
        gpi_host_unlock(&cache->lock);
    }
    owner = gpi_arena_owner_again(arena, &call);
    if (!owner || !gpi_clock_use(&arena->clocks, run, owner,
                                 gpi_clock_issue(&arena->clocks, owner))) {
        gpi_arena_unlock(arena);
        return gpi_host_no_memory();
    }
    if (arena->trace) gpi_arena_trace_block(arena, 'u', run, stream);
    owner->refs++;
    gpi_clock_record(&arena->clocks, owner, call.stream);
    owner->refs--;
    gpi_arena_unlock(arena);
    return gpi_host_ok();
}

/* == CAPTURE ==================================================================================
   Scopes of graph captures, streams that end, peers. uses: HAND and above

   In a scope the stream's key is that of a struct of the graph's: what it frees goes into the
   graph's own list, and its clock passes at the release. */

/* Gives a scope its stream. What it sets aside comes back if the host has no memory for it. */
static gpupool_result gpi_capture_open(gpupool_arena *arena, gpupool_capture *capture) {
    gpi_stream *outer = NULL, *owner;
    /* once more if it is made known anew meanwhile: the other one was a destroyed stream's */
    while ((owner = gpi_clock_find(&arena->clocks, capture->key)) != NULL) {
        if (owner->capture)
            return gpi_host_fail(GPUPOOL_E_ARGUMENT, "gpupool_begin_capture: the stream is in a "
                                 "scope already");
        if (outer) outer->is_kept = 0;
        outer = owner;
        outer->is_kept = 1;
        gpi_arena_unname(arena, outer);
    }
    capture->stream = gpi_clock_know(&arena->clocks, capture->key, 0);
    if (!capture->stream) {
        if (outer) gpi_clock_name(&arena->clocks, outer);
        return gpi_host_no_memory();
    }
    capture->outer = outer;
    GPI_PUBLISH(&capture->stream->capture, capture);
    gpi_clock_name(&arena->clocks, capture->stream);
    return GPUPOOL_OK;
}

gpupool_result gpupool_begin_capture(gpupool_arena *arena, cudaStream_t stream,
                                     gpupool_capture **out) {
    gpupool_capture *capture;
    gpupool_result result;
    gpi_host_begin();
    if (!out)
        return gpi_host_fail(GPUPOOL_E_ARGUMENT, "gpupool_begin_capture: capture is NULL");
    *out = NULL;
    result = gpi_arena_begin(arena, "gpupool_begin_capture");
    if (result == GPUPOOL_OK) result = gpi_arena_outlived(arena, "gpupool_begin_capture");
    if (result != GPUPOOL_OK) return result;
    capture = (gpupool_capture *)gpi_host_zeroed(sizeof *capture);
    if (!capture) return gpi_host_no_memory();
    capture->arena = arena;
    capture->key = gpi_clock_key(stream);
    gpi_host_lock(&arena->lock);
    result = gpi_capture_open(arena, capture);
    arena->captures += result == GPUPOOL_OK;
    arena->clocks.has_captured |= result == GPUPOOL_OK;
    gpi_arena_unlock(arena);
    if (result != GPUPOOL_OK) {
        GPUPOOL_FREE(capture);
        return result;
    }
    gpi_host_count_scope(1);
    *out = capture;
    return gpi_host_ok();
}

/* The lock is held. */
static void gpi_capture_end(gpupool_arena *arena, gpupool_capture *capture) {
    if (capture->stream->key == 0) return;
    gpi_host_count_scope(-1);
    gpi_clock_unname(&arena->clocks, capture->stream);
    if (capture->outer) gpi_clock_name(&arena->clocks, capture->outer);
}

gpupool_result gpupool_end_capture(gpupool_capture *capture) {
    gpupool_result result;
    gpi_host_begin();
    if (!capture)
        return gpi_host_fail(GPUPOOL_E_ARGUMENT, "gpupool_end_capture: capture is NULL");
    result = gpi_arena_begin(capture->arena, "gpupool_end_capture");
    if (result == GPUPOOL_OK) result = gpi_arena_outlived(capture->arena, "gpupool_end_capture");
    if (result != GPUPOOL_OK) return result;
    gpi_host_lock(&capture->arena->lock);
    gpi_capture_end(capture->arena, capture);
    gpi_arena_unlock(capture->arena);
    return gpi_host_ok();
}

/* Blocks that the graph keeps, and that were freed, wait for a position like any other now. */
static void gpi_capture_let_go(gpupool_arena *arena, const gpi_stream *stream, uint64_t at) {
    gpi_run *run = arena->waiting;
    for (; run; run = run->list_next) {
        gpi_use *use = (gpi_use *)run->of.uses;
        for (; use; use = use->next)
            if (use->stream == stream &&
                (use->at == UINT64_MAX || use->at == gpi_clock_again()))
                use->at = at;
    }
    arena->waiting_seen = 0;
}

/* The graph's live blocks are freed; and all that it kept is behind one position. */
static void gpi_capture_take_back(gpupool_arena *arena, gpi_stream *stream) {
    uint64_t at = 0, position = gpi_clock_issue(&arena->clocks, stream);
    gpi_run *run;
    while ((run = gpi_tree_next_live(&arena->tree, &at)) != NULL) {
        const gpi_use *keeping = gpi_clock_keeping(run);
        if (!keeping || keeping->stream != stream) continue;
        gpi_block_count_free(arena, run, 0);
        gpi_tree_lay_down(&arena->tree, run);
        run->list = GPI_LIST_WAITING;
        gpi_arena_wait_for_uses(arena, run);
    }
    gpi_capture_let_go(arena, stream, position);
    gpi_stitch_restamp(&arena->stitches, stream, position);
    gpi_tree_restamp(&arena->tree, stream->list, position);
}

gpupool_result gpupool_release_capture(gpupool_capture *capture) {
    gpupool_arena *arena;
    gpi_stream *stream;
    gpi_visit visit;
    gpupool_result result;
    gpi_host_begin();
    if (!capture)
        return gpi_host_fail(GPUPOOL_E_ARGUMENT, "gpupool_release_capture: capture is NULL");
    arena = capture->arena;
    stream = capture->stream;
    result = gpi_arena_enter_awake(arena, "gpupool_release_capture", 0, &visit);
    if (result != GPUPOOL_OK) return result;
    gpi_capture_end(arena, capture);
    gpi_capture_take_back(arena, stream);
    stream->refs++;
    arena->halfway++;
    gpi_arena_unlock(arena);
    gpi_host_mutex_unlock(&arena->growing);
    /* a replay may still run; if CUDA fails, its memory waits for a later mark */
    gpi_clock_wait_device(&arena->clocks, &arena->chunks.driver);
    gpi_host_mutex_lock(&arena->growing);
    gpi_host_lock(&arena->lock);
    arena->halfway--;
    stream->refs--;
    /* what other threads freed in the scope meanwhile */
    gpi_capture_let_go(arena, stream, gpi_clock_issue(&arena->clocks, stream));
    GPI_PUBLISH(&stream->capture, NULL);
    arena->captures--;
    gpi_arena_poll_all(arena);
    if (!gpi_chunk_is(&arena->chunks, GPI_FROM_POOL)) gpi_stitch_trim(&arena->stitches, 0);
    gpi_clock_forget(&arena->clocks, stream);
    gpi_arena_leave(arena, &visit);
    GPUPOOL_FREE(capture);
    return gpi_host_ok();
}

/* -- streams that end -- */

/* The key is the next stream's from now on. The lock is held, and opened for a moment. `can_mark`:
   CUDA can be called. */
static void gpi_capture_retire(gpupool_arena *arena, const gpi_caller *call, int can_mark) {
    gpi_stream *owner = gpi_clock_find(&arena->clocks, call->key), *last;
    if (owner) {
        gpi_stream *outer = owner->capture ? owner->capture->outer : NULL;
        last = owner->capture ? outer : owner;
        owner->refs++;
        gpi_arena_unname(arena, owner); /* first, so that the mark covers what the cache had */
        if (owner->capture) gpi_host_count_scope(-1); /* it ends here, */
        if (outer) outer->is_kept = 0; /* and what it set aside is nobody's */
        if (last) last->refs++;
        if (last && can_mark) gpi_clock_record(&arena->clocks, last, call->stream);
        if (last) last->refs--;
        owner->refs--;
        gpi_clock_forget(&arena->clocks, owner);
        gpi_arena_poll(arena, GPI_LOOKS); /* or streams that came and went would pile up */
    }
    gpi_arena_trace_number(arena, 'r', gpi_arena_trace_stream(call->stream));
}

/* Also where CUDA fails: the stream may be gone, and its handle another's, before this is called
   again. */
gpupool_result gpupool_retire_stream(gpupool_arena *arena, cudaStream_t stream) {
    gpi_caller call = gpi_arena_call(stream);
    int reset = 0;
    gpupool_result result = gpi_arena_begin(arena, "gpupool_retire_stream");
    if (result != GPUPOOL_OK) return result;
    if (gpi_arena_outlived(arena, "gpupool_retire_stream") != GPUPOOL_OK) {
        result = gpi_thread.result;
        if (gpi_driver_was_reset(&arena->chunks.driver, &reset) == GPUPOOL_OK && reset)
            return result;
    }
    gpi_host_lock(&arena->lock);
    gpi_capture_retire(arena, &call, result == GPUPOOL_OK);
    gpi_arena_unlock(arena);
    return gpi_host_ok();
}

/* The wait for an arena is not under the lock: who is at work there may be in a chunk_alloc that
   makes an arena, ends another one, or destroys a stream. */
cudaError_t gpupool_cudaStreamDestroy(cudaStream_t stream) {
    uintptr_t key = gpi_clock_key(stream); /* before the lock, which it may take itself */
    gpupool_arena *arena;
    gpi_host_lock(&gpi_process.lock);
    for (arena = gpi_process.arenas; arena && stream; arena = arena->next) {
        if (arena->forks < 0 || !gpi_clock_find(&arena->clocks, key)) continue;
        arena->visitors++;
        gpi_host_unlock(&gpi_process.lock);
        gpupool_retire_stream(arena, stream);
        gpi_host_lock(&gpi_process.lock);
        arena->visitors--;
    }
    gpi_host_unlock(&gpi_process.lock);
    return cudaStreamDestroy(stream);
}

gpupool_result gpupool_allow_peer(gpupool_arena *arena, int device) {
    gpi_visit visit;
    const gpi_driver *driver;
    int count = 0;
    gpupool_result result = gpi_arena_enter_awake(arena, "gpupool_allow_peer", 0, &visit);
    if (result != GPUPOOL_OK) return result;
    driver = &arena->chunks.driver;
    result = gpi_driver_devices(&count);
    if (result == GPUPOOL_OK && (device < 0 || device >= count || device == driver->device))
        result = gpi_host_fail(GPUPOOL_E_ARGUMENT, "gpupool_allow_peer: device is %d, and must be "
                               "another one than the arena's, of %d devices", device, count);
    if (result == GPUPOOL_OK && arena->chunks.source != GPUPOOL_SOURCE_PINNED)
        result = gpi_driver_can_peer(driver, device);
    if (result == GPUPOOL_OK) result = gpi_stitch_allow_peer(&arena->stitches, device);
    gpi_arena_leave(arena, &visit);
    return result == GPUPOOL_OK ? gpi_host_ok() : result;
}

static gpupool_result gpi_capture_is_peer(const gpupool_arena *arena, int device) {
    const gpi_driver *driver = &arena->chunks.driver;
    if (gpi_driver_peer(driver, device) < driver->peer_count) return GPUPOOL_OK;
    return gpi_host_fail(GPUPOOL_E_ARGUMENT, "gpupool_disallow_peer: device %d is no peer of arena "
                         "\"%s\"", device, arena->name);
}

gpupool_result gpupool_disallow_peer(gpupool_arena *arena, int device) {
    gpi_visit visit;
    gpupool_result result = gpi_arena_enter_awake(arena, "gpupool_disallow_peer", 0, &visit);
    if (result != GPUPOOL_OK) return result;
    result = gpi_capture_is_peer(arena, device);
    arena->halfway++;
    gpi_arena_unlock(arena);
    gpi_host_mutex_unlock(&arena->growing);
    if (result == GPUPOOL_OK)
        result = gpi_clock_wait_device(&arena->clocks, &arena->chunks.driver);
    gpi_host_mutex_lock(&arena->growing);
    gpi_host_mutex_lock(&arena->clocks.waits); /* who waits for the device goes through the peers */
    gpi_host_lock(&arena->lock);
    arena->halfway--;
    if (result == GPUPOOL_OK) result = gpi_capture_is_peer(arena, device); /* still */
    if (result == GPUPOOL_OK) result = gpi_stitch_disallow_peer(&arena->stitches, device);
    gpi_host_mutex_unlock(&arena->clocks.waits);
    gpi_arena_leave(arena, &visit);
    return result == GPUPOOL_OK ? gpi_host_ok() : result;
}

/* == SLEEP ====================================================================================
   Returns device memory to the driver while its blocks stay live, and gets memory again at the same
   addresses. uses: CHUNK, STITCH, ARENA, BLOCK, and the ring's public calls

   An arena has parts that sleep and wake alone: part 0 is the chunks that all share; a tag with
   can_sleep has a part of its own, with the tag's number. Each call takes one part, or all.

       awake  ->  set aside, wait, copy down, unmap, release  ->  asleep
       asleep ->  create, map, copy up, put back              ->  awake

   While a part sleeps nobody may get its memory, and the hot paths do not ask whether it sleeps. So
   all its free memory is set aside, where no request finds it; and each of its live blocks gets a
   use that never passes, so that blocks freed meanwhile wait in list WAITING. For part 0 the caches
   are emptied too, and kept empty (arena.searching).

   Z1  asleep: every free run of the part is set aside, except a graph's; every live run of the part
       has the use that never passes
   Z2  a call that fails leaves the part in the state that it found
   Read first: gpupool_sleep, gpi_sleep_quiet, gpi_sleep_unmap_all, gpupool_wake, gpi_sleep_wake */

/* -- parts: those that the call under way moves are GPI_ON_ITS_WAY -- */

static int gpi_sleep_moves(const gpupool_arena *arena, int part) {
    return arena->sleep.states[part] == GPI_ON_ITS_WAY;
}

/* Sets the state of the parts that the call moves. */
static void gpi_sleep_set_moving(gpupool_arena *arena, gpi_arena_state state) {
    int part;
    for (part = 0; part <= GPUPOOL_TAGS; part++)
        if (gpi_sleep_moves(arena, part)) arena->sleep.states[part] = (unsigned char)state;
}

/* Marks the parts that a call names, and that are in this state, as moving. Returns how many. */
static int gpi_sleep_choose(gpupool_arena *arena, int tag, gpi_arena_state state) {
    int part, count = 0;
    for (part = 0; part <= GPUPOOL_TAGS; part++) {
        if (tag != GPUPOOL_ALL && part != tag) continue;
        if (part && !arena->chunks.apart[part].is_apart) continue;
        if (arena->sleep.states[part] != state) continue;
        arena->sleep.states[part] = GPI_ON_ITS_WAY;
        count++;
    }
    return count;
}

static int gpi_sleep_any(const gpupool_arena *arena, gpi_arena_state state) {
    int part = 0;
    while (part <= GPUPOOL_TAGS && arena->sleep.states[part] != state) part++;
    return part <= GPUPOOL_TAGS;
}

/* Whether the block that starts with this run belongs to a part that moves. */
static int gpi_sleep_moves_block(const gpupool_arena *arena, const gpi_run *run) {
    return gpi_sleep_moves(arena, gpi_stitch_tag_at(&arena->stitches, run->unit));
}

static int gpi_sleep_moves_stitch(const gpupool_arena *arena, const gpi_stitch *stitch) {
    return stitch->seam_count && gpi_sleep_moves(arena, stitch->seams[0].chunk->tag);
}

/* Counts the parts of all arenas that sleep: transfers ask nothing while there are none. */
static void gpi_sleep_count(const gpupool_arena *arena, int change) {
    int part;
    for (part = 0; part <= GPUPOOL_TAGS; part++)
        if (gpi_sleep_moves(arena, part)) gpi_host_add(&gpi_process.asleep, change);
}

/* -- free memory, and blocks freed meanwhile -- */

static void gpi_sleep_drop_use(gpupool_arena *arena, gpi_run *run) {
    gpi_use **link = gpi_clock_sleeper(run), *use = *link;
    if (!use) return;
    *link = use->next;
    gpi_clock_free_use(&arena->clocks, use);
}

/* Whether a run is free memory that others could get; a graph's own is nobody else's. */
static int gpi_sleep_is_free(const gpupool_arena *arena, const gpi_run *run) {
    const gpi_stream *owner;
    if (run->list < GPI_LIST_STREAMS || run->list >= GPI_LIST_WAITING)
        return gpi_tree_is_finished(run);
    owner = (const gpi_stream *)arena->tree.lists[run->list]->owner;
    return !owner->capture;
}

/* Sets aside all free memory of the parts that move. A stream's free memory remembers the stream:
   a call that fails puts it back. */
static void gpi_sleep_set_aside(gpupool_arena *arena) {
    gpi_run *run = arena->chunks.home;
    gpi_tree_drop_slabs(&arena->tree);
    for (; run; run = run->next) {
        gpi_stream *owner;
        if (!gpi_sleep_is_free(arena, run) || !gpi_sleep_moves_block(arena, run)) continue;
        owner = gpi_clock_borrow(&arena->tree, run);
        gpi_tree_unfile(&arena->tree, run);
        run->by.stream = (uintptr_t)owner;
        run->list_next = arena->sleep.aside;
        arena->sleep.aside = run;
    }
}

/* Puts the memory that was set aside back into its free lists: of the parts that move. */
static void gpi_sleep_put_back(gpupool_arena *arena) {
    gpi_run *run = arena->sleep.aside, *next;
    arena->sleep.aside = NULL;
    for (; run; run = next) {
        next = run->list_next;
        if (gpi_sleep_moves_block(arena, run)) {
            gpi_chunk_return(&arena->chunks, run, (gpi_stream *)run->by.stream, run->of.at);
            continue;
        }
        run->list_next = arena->sleep.aside; /* of a part that goes on sleeping */
        arena->sleep.aside = run;
    }
}

/* Gives every live block of the parts that move the use that never passes. 0: the host has no
   memory for it. */
static int gpi_sleep_use_all(gpupool_arena *arena) {
    uint64_t at = 0;
    gpi_run *run;
    while ((run = gpi_tree_next_live(&arena->tree, &at)) != NULL)
        if (gpi_sleep_moves_block(arena, run) && !*gpi_clock_sleeper(run) &&
            !gpi_clock_use(&arena->clocks, run, arena->clocks.all, gpi_clock_never()))
            return 0;
    return 1;
}

static void gpi_sleep_unuse_all(gpupool_arena *arena) {
    uint64_t at = 0;
    gpi_run *run;
    while ((run = gpi_tree_next_live(&arena->tree, &at)) != NULL)
        if (gpi_sleep_moves_block(arena, run)) gpi_sleep_drop_use(arena, run);
    for (run = arena->waiting; run; run = run->list_next)
        if (gpi_sleep_moves_block(arena, run)) gpi_sleep_drop_use(arena, run);
    arena->waiting_seen = 0;
}

/* Whether nothing but sleep keeps a freed block waiting. */
static int gpi_sleep_is_done(const gpupool_arena *arena, const gpi_run *run) {
    const gpi_use *use = (const gpi_use *)run->of.uses;
    while (use && (use->at == gpi_clock_never() ||
                   use->at <= gpi_clock_done(&arena->clocks, use->stream)))
        use = use->next;
    return !use;
}

/* Sets aside the blocks that were freed while their part slept, and that no work uses; their
   stitches, which are not mapped, end. */
static void gpi_sleep_set_aside_freed(gpupool_arena *arena) {
    gpi_run *run = arena->waiting, *before = NULL, *next;
    gpi_stitch *stitch, *newer;
    for (; run; run = next) {
        next = run->list_next;
        if (!gpi_sleep_moves_block(arena, run) || !gpi_sleep_is_done(arena, run)) {
            before = run;
            continue;
        }
        gpi_arena_end_waiting(arena, run, before);
        gpi_clock_drop_uses(&arena->clocks, run);
        run->list = GPI_LIST_TAKEN;
        gpi_stitch_put(&arena->stitches, run, NULL, 0, 0);
    }
    gpi_sleep_set_aside(arena);
    for (stitch = arena->stitches.oldest; stitch; stitch = newer) {
        newer = stitch->newer;
        if (!stitch->is_away || stitch->state != GPI_STITCH_IDLE || stitch->user) continue;
        if (!gpi_sleep_moves_stitch(arena, stitch)) continue;
        gpi_stitch_unset_idle(&arena->stitches, stitch);
        gpi_stitch_remove(&arena->stitches, stitch);
    }
}

/* -- the content of blocks -- */

static int gpi_sleep_is_live(const gpi_run *run) {
    return run->list == GPI_LIST_PART || run->list == GPI_LIST_WAITING ||
           run->list >= GPI_LIST_LIVE;
}

/* Whether a unit follows the last saved stretch, in the same chunk. */
static int gpi_sleep_goes_on(const gpupool_arena *arena, const gpi_arena_saved *last,
                             uint64_t unit) {
    return last->unit + last->units == unit &&
           gpi_tree_owner(&arena->tree, last->unit) == gpi_tree_owner(&arena->tree, unit);
}

/* Adds a home run to what is to be copied, one stretch for each chunk that the run lies in. */
static void gpi_sleep_note(gpupool_arena *arena, const gpi_run *run) {
    uint64_t unit = run->unit, end = unit + run->units, units;
    for (; unit < end; unit += units) {
        const gpi_chunk *chunk = (const gpi_chunk *)gpi_tree_owner(&arena->tree, unit);
        gpi_arena_backup *backup = &arena->sleep.backups[chunk->tag];
        gpi_arena_saved *last = &backup->saved[backup->saved_count - (backup->saved_count != 0)];
        units = gpi_ground_min(end, chunk->unit + chunk->units) - unit;
        if (backup->saved_count && gpi_sleep_goes_on(arena, last, unit)) {
            last->units += units;
        } else {
            last = &backup->saved[backup->saved_count++];
            last->unit = unit;
            last->units = units;
            last->offset = backup->bytes;
        }
        backup->bytes += units * GPUPOOL_UNIT_BYTES;
        arena->sleep.backup_bytes += units * GPUPOOL_UNIT_BYTES;
    }
}

/* Lists what is to be copied. 0: the host has no memory for the lists. */
static int gpi_sleep_list(gpupool_arena *arena) {
    const gpi_run *run;
    uint64_t most = arena->chunks.count + 1;
    int part;
    for (run = arena->chunks.home; run; run = run->next) most += (uint64_t)gpi_sleep_is_live(run);
    for (part = 0; part <= GPUPOOL_TAGS; part++) {
        gpi_arena_backup *backup = &arena->sleep.backups[part];
        if (!gpi_sleep_moves(arena, part)) continue;
        backup->saved = (gpi_arena_saved *)gpi_host_zeroed((size_t)most * sizeof *backup->saved);
        if (!backup->saved) return 0;
    }
    for (run = arena->chunks.home; run; run = run->next)
        if (gpi_sleep_is_live(run) && gpi_sleep_moves_block(arena, run)) gpi_sleep_note(arena, run);
    return 1;
}

/* Frees the backup of the parts that move. */
static void gpi_sleep_forget_backup(gpupool_arena *arena) {
    int part;
    for (part = 0; part <= GPUPOOL_TAGS; part++) {
        gpi_arena_backup *backup = &arena->sleep.backups[part];
        if (!gpi_sleep_moves(arena, part)) continue;
        GPUPOOL_FREE(backup->saved);
        GPUPOOL_FREE(backup->memory);
        arena->sleep.backup_bytes -= backup->bytes;
        memset(backup, 0, sizeof *backup);
    }
}

static gpupool_result gpi_sleep_copy(const gpi_driver *driver, const gpi_arena_saved *saved,
                                     unsigned char *host, cudaStream_t stream,
                                     gpupool_direction way) {
    gpi_copy copy;
    void *device = (void *)(uintptr_t)(saved->unit * GPUPOOL_UNIT_BYTES);
    memset(&copy, 0, sizeof copy);
    copy.rows = 1;
    copy.width = saved->units * GPUPOOL_UNIT_BYTES;
    copy.to = way == GPUPOOL_DOWN ? (void *)host : device;
    copy.from = way == GPUPOOL_DOWN ? device : (void *)host;
    return gpi_driver_copy(driver, &copy, stream, NULL);
}

/* Copies one part's stretches, except those whose chunk is gone since all its blocks were freed. */
static gpupool_result gpi_sleep_copy_part(gpupool_arena *arena, const gpi_arena_backup *backup,
                                          gpupool_ring *ring, cudaStream_t stream,
                                          gpupool_direction way) {
    gpupool_result result = GPUPOOL_OK;
    uint64_t i;
    for (i = 0; i < backup->saved_count && result == GPUPOOL_OK; i++) {
        const gpi_arena_saved *saved = &backup->saved[i];
        unsigned char *host = backup->memory + saved->offset;
        void *device = (void *)(uintptr_t)(saved->unit * GPUPOOL_UNIT_BYTES);
        size_t bytes = (size_t)(saved->units * GPUPOOL_UNIT_BYTES);
        if (((const gpi_chunk *)gpi_tree_owner(&arena->tree, saved->unit))->is_away) continue;
        if (!ring)
            result = gpi_sleep_copy(&arena->chunks.driver, saved, host, stream, way);
        else if (way == GPUPOOL_DOWN)
            result = gpupool_download(ring, host, device, bytes, stream);
        else
            result = gpupool_upload(ring, device, host, bytes, stream);
    }
    return result;
}

/* Copies the backups of all parts that move, one way, and waits for the copies. No lock is held. */
static gpupool_result gpi_sleep_copy_all(gpupool_arena *arena, gpupool_ring *ring,
                                         gpupool_direction way) {
    const gpi_driver *driver = &arena->chunks.driver;
    gpupool_result result, ended;
    cudaStream_t stream = NULL;
    int part;
    result = gpi_driver_stream_new(driver, &stream);
    if (result != GPUPOOL_OK) return result;
    for (part = 0; part <= GPUPOOL_TAGS && result == GPUPOOL_OK; part++)
        if (gpi_sleep_moves(arena, part))
            result = gpi_sleep_copy_part(arena, &arena->sleep.backups[part], ring, stream, way);
    ended = gpi_driver_stream_sync(driver, stream);
    if (ended != GPUPOOL_OK) /* no copy may be under way when memory is unmapped */
        gpi_clock_wait_device(&arena->clocks, &arena->chunks.driver);
    if (driver->stream_destroy(stream) != CUDA_SUCCESS) driver->stream_destroy(stream);
    return result == GPUPOOL_OK ? ended : result;
}

/* The same with both locks held on entry and exit, and open meanwhile. */
static gpupool_result gpi_sleep_copy_open(gpupool_arena *arena, gpupool_ring *ring,
                                          gpupool_direction way) {
    gpupool_result result;
    int part = 0;
    while (part <= GPUPOOL_TAGS &&
           (!gpi_sleep_moves(arena, part) || !arena->sleep.backups[part].saved_count))
        part++;
    if (part > GPUPOOL_TAGS) return GPUPOOL_OK; /* nothing is kept */
    gpi_arena_unlock(arena);
    gpi_host_mutex_unlock(&arena->growing);
    result = gpi_sleep_copy_all(arena, ring, way);
    gpi_host_mutex_lock(&arena->growing);
    gpi_host_lock(&arena->lock);
    return result;
}

/* Gets host memory for the content, and copies the content there. Both locks are held, and open
   meanwhile. */
static gpupool_result gpi_sleep_save(gpupool_arena *arena, gpupool_ring *ring) {
    gpi_arena_sleep *sleep = &arena->sleep;
    int part;
    if (!gpi_sleep_list(arena)) return gpi_host_no_memory();
    if (sleep->backup_bytes > sleep->backup_most)
        return gpi_host_fail(GPUPOOL_E_HOST_MEMORY, "gpupool_sleep: the backup needs %" PRIu64
                             " bytes of host memory, more than config.backup_bytes",
                             sleep->backup_bytes);
    for (part = 0; part <= GPUPOOL_TAGS; part++) {
        gpi_arena_backup *backup = &sleep->backups[part];
        if (!gpi_sleep_moves(arena, part) || !backup->bytes) continue;
        backup->memory = (unsigned char *)GPUPOOL_MALLOC((size_t)backup->bytes);
        if (!backup->memory) return gpi_host_no_memory();
    }
    return gpi_sleep_copy_open(arena, ring, GPUPOOL_DOWN);
}

/* -- the driver's side: both locks are held, the lock open while the driver is called -- */

/* Whether a stitch stays through sleep: its block is live, or a capture scope holds it. */
static int gpi_sleep_keeps(const gpi_stitch *stitch) {
    return stitch->state == GPI_STITCH_USED || (stitch->state == GPI_STITCH_IDLE && stitch->user);
}

static gpupool_result gpi_sleep_unmap_range(gpi_chunks *chunks, uint64_t unit, uint64_t units) {
    gpupool_result result;
    gpi_host_unlock(chunks->lock);
    result = gpi_driver_unmap(&chunks->driver, unit * GPUPOOL_UNIT_BYTES,
                              units * GPUPOOL_UNIT_BYTES);
    gpi_host_lock(chunks->lock);
    return result;
}

/* Maps a chunk if it is away. A chunk that is mapped may have failed here before: its access is set
   again. */
static gpupool_result gpi_sleep_map_chunk(gpi_chunks *chunks, gpi_chunk *chunk) {
    uint64_t address = chunk->unit * GPUPOOL_UNIT_BYTES;
    int is_away = chunk->is_away;
    gpupool_result result = GPUPOOL_OK;
    gpi_host_unlock(chunks->lock);
    if (is_away) result = gpi_driver_map(&chunks->driver, address, chunk->bytes, chunk->handle);
    if (result == GPUPOOL_OK) {
        is_away = 0; /* also if it gets no access: the caller unmaps it */
        result = gpi_driver_access(&chunks->driver, address, chunk->bytes);
    }
    gpi_host_lock(chunks->lock);
    chunk->is_away = is_away;
    return result;
}

/* Maps a stitch that is away. What an earlier try has left of it is unmapped first. */
static gpupool_result gpi_sleep_map_stitch(gpi_chunks *chunks, gpi_stitch *stitch) {
    uint64_t left = gpi_stitch_mapped_units(stitch);
    uint32_t mapped = stitch->left_seams;
    gpupool_result result = GPUPOOL_OK;
    gpi_stitches stitches;
    memset(&stitches, 0, sizeof stitches);
    stitches.chunks = chunks;
    gpi_host_unlock(chunks->lock);
    if (left)
        result = gpi_driver_unmap(&chunks->driver, stitch->unit * GPUPOOL_UNIT_BYTES,
                                  left * GPUPOOL_UNIT_BYTES);
    if (result == GPUPOOL_OK) result = gpi_plan_map(&stitches, stitch, &mapped);
    gpi_host_lock(chunks->lock);
    stitch->is_away = result != GPUPOOL_OK;
    stitch->left_seams = stitch->is_away ? mapped : 0;
    return result;
}

/* Maps what is away and has a handle: chunks, then the stitches over them. */
static gpupool_result gpi_sleep_map_all(gpupool_arena *arena) {
    gpi_chunks *chunks = &arena->chunks;
    gpi_chunk *chunk = chunks->first;
    gpi_stitch *stitch = arena->stitches.oldest;
    gpupool_result result = GPUPOOL_OK;
    for (; chunk && result == GPUPOOL_OK; chunk = chunk->next)
        if (chunk->handle && gpi_sleep_moves(arena, chunk->tag))
            result = gpi_sleep_map_chunk(chunks, chunk);
    for (; stitch && result == GPUPOOL_OK; stitch = stitch->newer)
        if (stitch->is_away && gpi_sleep_moves_stitch(arena, stitch))
            result = gpi_sleep_map_stitch(chunks, stitch);
    return result;
}

/* Unmaps stitches, then chunks. */
static gpupool_result gpi_sleep_unmap_all(gpupool_arena *arena) {
    gpi_chunks *chunks = &arena->chunks;
    gpi_chunk *chunk = chunks->first;
    gpi_stitch *stitch = arena->stitches.oldest;
    gpupool_result result = GPUPOOL_OK;
    for (; stitch && result == GPUPOOL_OK; stitch = stitch->newer) {
        if (stitch->is_away || !gpi_sleep_keeps(stitch)) continue;
        if (!gpi_sleep_moves_stitch(arena, stitch)) continue;
        result = gpi_sleep_unmap_range(chunks, stitch->unit, stitch->units);
        stitch->is_away = result == GPUPOOL_OK;
    }
    for (; chunk && result == GPUPOOL_OK; chunk = chunk->next) {
        if (chunk->is_away || !gpi_sleep_moves(arena, chunk->tag)) continue;
        result = gpi_sleep_unmap_range(chunks, chunk->unit, chunk->units);
        chunk->is_away = result == GPUPOOL_OK;
    }
    return result;
}

/* Releases the handles of chunks that are away; a chunk keeps a handle that the driver refuses. */
static void gpi_sleep_release_all(gpupool_arena *arena) {
    gpi_chunks *chunks = &arena->chunks;
    gpi_chunk *chunk = chunks->first;
    for (; chunk; chunk = chunk->next) {
        gpupool_result result;
        if (!chunk->is_away || !chunk->handle || !gpi_sleep_moves(arena, chunk->tag)) continue;
        gpi_host_unlock(chunks->lock);
        result = gpi_driver_release(&chunks->driver, chunk->handle);
        gpi_host_lock(chunks->lock);
        if (result == GPUPOOL_OK) chunk->handle = 0;
    }
}

/* Counts anew what is reserved, and what sleeps: in all, and by tag. */
static void gpi_sleep_account(gpupool_arena *arena) {
    gpi_chunks *chunks = &arena->chunks;
    const gpi_chunk *chunk;
    uint64_t here = 0, away = 0;
    int tag;
    for (tag = 1; tag <= arena->ledger.tag_count; tag++)
        arena->ledger.tags[tag]->stats.asleep_bytes = 0;
    for (chunk = chunks->first; chunk; chunk = chunk->next) {
        if (!chunk->is_away) here += chunk->bytes;
        else away += chunk->bytes;
        if (chunk->is_away && chunk->tag)
            arena->ledger.tags[chunk->tag]->stats.asleep_bytes += chunk->bytes;
    }
    for (chunk = chunks->stuck; chunk; chunk = chunk->next) here += chunk->bytes;
    arena->ledger.away_bytes = away;
    chunks->units = here / GPUPOOL_UNIT_BYTES;
    gpi_chunk_account(chunks);
}

typedef enum gpi_sleep_news { GPI_GOES, GPI_APPEARS } gpi_sleep_news;

/* Tells the program of each chunk and stitch of the parts that move: that it is there again, or
   goes. Returns the first refusal. */
static gpupool_result gpi_sleep_tell(gpupool_arena *arena, gpi_sleep_news news) {
    gpupool_map_fn fn = news == GPI_APPEARS ? arena->chunks.on_map : arena->chunks.on_unmap;
    int appears = news == GPI_APPEARS;
    gpi_chunks *chunks = &arena->chunks;
    gpi_chunk *chunk;
    gpi_stitch *stitch;
    gpupool_result result = GPUPOOL_OK, first = GPUPOOL_OK;
    for (chunk = chunks->first; chunk; chunk = chunk->next) {
        gpupool_mapping mapping = gpi_chunk_mapping(chunks, chunk);
        if (chunk->is_away || chunk->is_untold != appears) continue;
        if (!gpi_sleep_moves(arena, chunk->tag)) continue;
        result = gpi_chunk_tell(chunks, fn, &mapping);
        chunk->is_untold = !appears || result != GPUPOOL_OK;
        if (result != GPUPOOL_OK && first == GPUPOOL_OK) first = result;
    }
    for (stitch = arena->stitches.oldest; stitch; stitch = stitch->newer) {
        gpupool_mapping mapping = gpi_stitch_mapping(stitch);
        if (!gpi_sleep_keeps(stitch) || stitch->is_told == appears) continue;
        if (!gpi_sleep_moves_stitch(arena, stitch)) continue;
        result = gpi_chunk_tell(chunks, fn, &mapping);
        stitch->is_told = appears && result == GPUPOOL_OK;
        if (result != GPUPOOL_OK && first == GPUPOOL_OK) first = result;
    }
    return appears ? first : GPUPOOL_OK;
}

/* -- falling asleep -- */

/* Whether a block of the parts that a call names is exported. */
static int gpi_sleep_is_exported(const gpupool_arena *arena, int tag) {
    const gpi_chunk *chunk = arena->chunks.exports ? arena->chunks.first : NULL;
    while (chunk && !(chunk->exports && (tag == GPUPOOL_ALL || chunk->tag == tag)))
        chunk = chunk->next;
    return chunk != NULL;
}

/* Whether the arguments are good, for gpupool_sleep and gpupool_wake. */
static gpupool_result gpi_sleep_check_tag(const gpupool_arena *arena, const char *call, int tag) {
    if (!gpi_chunk_is_mapped(&arena->chunks))
        return gpi_host_fail(GPUPOOL_E_UNSUPPORTED, "%s: only SOURCE_MAPPED can sleep", call);
    if (tag == GPUPOOL_ALL) return GPUPOOL_OK;
    if (tag > 0 && tag <= arena->ledger.tag_count && arena->chunks.apart[tag].can_sleep)
        return GPUPOOL_OK;
    return gpi_host_fail(GPUPOOL_E_ARGUMENT, "%s: tag is %d, and must be GPUPOOL_ALL or a tag of "
                         "this arena that was made with can_sleep", call, tag);
}

static gpupool_result gpi_sleep_may(const gpupool_arena *arena, int tag, gpupool_content content) {
    const char *call = "gpupool_sleep";
    gpupool_result result = gpi_sleep_check_tag(arena, call, tag);
    if (result != GPUPOOL_OK) return result;
    if (content != GPUPOOL_KEEP && content != GPUPOOL_DISCARD)
        return gpi_host_fail(GPUPOOL_E_ARGUMENT, "%s: content is %d, and must be GPUPOOL_KEEP or "
                             "GPUPOOL_DISCARD", call, (int)content);
    if (arena->clocks.capturing || GPI_READ(&gpi_process.scopes))
        return gpi_host_fail(GPUPOOL_E_CAPTURING, "%s: a stream captures", call);
    if (gpi_sleep_is_exported(arena, tag))
        return gpi_host_fail(GPUPOOL_E_IN_USE, "%s: a block is exported", call);
    return GPUPOOL_OK;
}

/* Whether a request for a part that moves is under way in another thread. */
static int gpi_sleep_is_awaited(const gpupool_arena *arena) {
    int tag;
    if (gpi_sleep_moves(arena, 0) && (arena->searching > 1 || arena->in_hand)) return 1;
    for (tag = 1; tag <= arena->ledger.tag_count; tag++)
        if (gpi_sleep_moves(arena, tag) && arena->ledger.tags[tag]->coming_blocks) return 1;
    return arena->chunks.telling || arena->halfway;
}

/* Opens both locks for a moment, so that other threads get on. */
static void gpi_sleep_let_others(gpupool_arena *arena, unsigned round) {
    gpi_arena_unlock(arena);
    gpi_host_mutex_unlock(&arena->growing);
    gpi_host_idle(round);
    gpi_host_mutex_lock(&arena->growing);
    gpi_host_lock(&arena->lock);
}

/* Unmaps the idle stitches of the parts that move, except those that a capture scope holds. E_CUDA:
   one could not be unmapped. */
static gpupool_result gpi_sleep_drop_idle(gpupool_arena *arena) {
    gpi_stitches *stitches = &arena->stitches;
    gpi_stitch *stitch = stitches->oldest, *newer;
    for (; stitch; stitch = newer) {
        newer = stitch->newer;
        if (!gpi_sleep_moves_stitch(arena, stitch)) continue;
        if (gpi_stitch_has_passed(stitches, stitch)) {
            if (gpi_stitch_unmap(stitches, stitch) != GPUPOOL_OK) return GPUPOOL_E_CUDA;
            if (gpi_stitch_tells(stitches)) newer = stitches->oldest; /* the locks were open */
        } else if (!gpi_sleep_keeps(stitch)) {
            return GPUPOOL_E_CUDA;
        }
    }
    return GPUPOOL_OK;
}

/* Makes the parts quiet: nothing of them is handed out from here on, and no work uses them at the
   end. Both locks are held, and open while the host waits. */
static gpupool_result gpi_sleep_quiet(gpupool_arena *arena) {
    gpupool_result result;
    unsigned round = 0;
    if (gpi_sleep_moves(arena, 0))
        gpi_arena_empty_all(arena, gpi_arena_drain); /* nothing gets into them any more */
    /* last: the lock stays shut from here until each block has its use */
    while (gpi_sleep_is_awaited(arena)) gpi_sleep_let_others(arena, round++);
    gpi_sleep_set_aside(arena);
    if (!gpi_sleep_use_all(arena)) return gpi_host_no_memory();
    gpi_arena_unlock(arena);
    gpi_host_mutex_unlock(&arena->growing);
    result = gpi_clock_wait_device(&arena->clocks, &arena->chunks.driver);
    gpi_host_mutex_lock(&arena->growing);
    gpi_host_lock(&arena->lock);
    if (result != GPUPOOL_OK) return result;
    gpi_arena_poll_all(arena);
    gpi_sleep_set_aside(arena); /* what had been freed before, and was still in use */
    return gpi_sleep_drop_idle(arena);
}

/* Not all could be unmapped: maps all again. 0: the driver refuses that, too; then the part sleeps
   with the memory that it has left, and waking maps the rest. */
static int gpi_sleep_remap(gpupool_arena *arena) {
    struct gpi_thread why = gpi_thread;
    int is_there = gpi_sleep_map_all(arena) == GPUPOOL_OK;
    if (is_there) gpi_sleep_tell(arena, GPI_APPEARS);
    gpi_thread = why;
    return is_there;
}

/* Awake again, as before. */
static void gpi_sleep_undo(gpupool_arena *arena) {
    gpi_sleep_forget_backup(arena);
    gpi_sleep_unuse_all(arena);
    gpi_sleep_put_back(arena);
    if (gpi_sleep_moves(arena, 0)) GPI_PUBLISH(&arena->searching, arena->searching - 1);
    gpi_sleep_set_moving(arena, GPI_AWAKE);
    gpi_arena_poll_all(arena);
}

/* Enters the arena once no other thread puts a part to sleep or wakes one. */
static gpupool_result gpi_sleep_enter(gpupool_arena *arena, const char *call, gpi_visit *visit) {
    unsigned round = 0;
    gpupool_result result;
    for (;;) {
        result = gpi_arena_enter(arena, call, visit);
        if (result != GPUPOOL_OK) return result;
        if (gpi_thread.telling == &arena->chunks)
            result = gpi_host_fail(GPUPOOL_E_IN_USE, "%s: the arena's on_map or on_unmap calls it",
                                   call);
        if (result == GPUPOOL_OK && !gpi_sleep_any(arena, GPI_ON_ITS_WAY)) return GPUPOOL_OK;
        gpi_arena_leave(arena, visit);
        if (result != GPUPOOL_OK) return result;
        gpi_host_idle(round++);
    }
}

gpupool_result gpupool_sleep(gpupool_arena *arena, int tag, gpupool_content content,
                             gpupool_ring *ring) {
    gpi_visit visit;
    int is_away = 0;
    gpupool_result result = gpi_sleep_enter(arena, "gpupool_sleep", &visit);
    if (result != GPUPOOL_OK) return result;
    result = gpi_sleep_may(arena, tag, content);
    if (result == GPUPOOL_OK && !gpi_sleep_choose(arena, tag, GPI_AWAKE))
        result = gpi_host_fail(GPUPOOL_E_ASLEEP, "gpupool_sleep: it sleeps already");
    if (result != GPUPOOL_OK) {
        gpi_arena_leave(arena, &visit);
        return result;
    }
    if (gpi_sleep_moves(arena, 0)) GPI_PUBLISH(&arena->searching, arena->searching + 1);
    result = gpi_sleep_quiet(arena);
    if (result == GPUPOOL_OK && content == GPUPOOL_KEEP) result = gpi_sleep_save(arena, ring);
    if (result == GPUPOOL_OK) {
        gpi_sleep_tell(arena, GPI_GOES);
        result = gpi_sleep_unmap_all(arena);
        if (result == GPUPOOL_OK) gpi_sleep_release_all(arena);
        is_away = result == GPUPOOL_OK || !gpi_sleep_remap(arena);
    }
    if (is_away) {
        gpi_sleep_account(arena);
        gpi_sleep_count(arena, 1);
        gpi_sleep_set_moving(arena, GPI_ASLEEP);
    } else {
        gpi_sleep_undo(arena);
    }
    gpi_arena_leave(arena, &visit);
    return result == GPUPOOL_OK ? gpi_host_ok() : result;
}

/* The host's side, of an arena that ends. */
static void gpi_sleep_forget(gpupool_arena *arena) {
    gpi_sleep_choose(arena, GPUPOOL_ALL, GPI_ASLEEP);
    gpi_sleep_forget_backup(arena);
    gpi_sleep_count(arena, -1);
    gpi_sleep_set_moving(arena, GPI_AWAKE);
}

/* E_ASLEEP if the memory at an address sleeps. For transfers; no lock is held. */
static gpupool_result gpi_sleep_is_at(const char *call, const void *memory) {
    uint64_t unit = (uint64_t)(uintptr_t)memory / GPUPOOL_UNIT_BYTES;
    gpupool_arena *arena;
    gpupool_result result = GPUPOOL_OK;
    if (!GPI_READ(&gpi_process.asleep)) return GPUPOOL_OK;
    gpi_host_lock(&gpi_process.lock);
    arena = gpi_process.arenas;
    while (arena && !(gpi_sleep_any(arena, GPI_ASLEEP) && gpi_chunk_owns(&arena->chunks, unit)))
        arena = arena->next;
    if (arena) {
        const gpi_run *run;
        gpi_host_lock(&arena->lock);
        run = gpi_block_around(arena, unit);
        if (run && arena->sleep.states[gpi_stitch_tag_at(&arena->stitches, run->unit)] ==
                       GPI_ASLEEP)
            result = gpi_host_fail(GPUPOOL_E_ASLEEP, "%s: the device memory is of arena \"%s\", "
                                   "and sleeps", call, arena->name);
        gpi_host_unlock(&arena->lock);
    }
    gpi_host_unlock(&gpi_process.lock);
    return result;
}

/* -- waking -- */

/* Whether a chunk needs no memory: all in it is set aside, and it is of no reserve. */
static int gpi_sleep_is_vacant(const gpupool_arena *arena, const gpi_chunk *chunk) {
    const gpi_run *run = gpi_chunk_first_run(&arena->chunks, &arena->tree, chunk);
    if (chunk->is_kept && !arena->chunks.is_ending) return 0;
    for (; run && run->unit < chunk->unit + chunk->units; run = run->next)
        if (run->list != GPI_LIST_TAKEN) return 0;
    return 1;
}

static int gpi_sleep_needs(const gpupool_arena *arena, const gpi_chunk *chunk) {
    return gpi_sleep_moves(arena, chunk->tag) && chunk->is_away &&
           !gpi_sleep_is_vacant(arena, chunk);
}

/* Why there is no memory for waking, as the thread's verdict and as a sentence: the limit, or what
   others hold of the device. */
static gpupool_result gpi_sleep_give_up(gpupool_arena *arena, gpupool_cause cause, uint64_t bytes) {
    size_t free_bytes = 0, total_bytes = 0;
    char free_text[32], total[32], need[32];
    gpupool_verdict verdict;
    uint64_t room = gpi_ledger_room(&arena->ledger);
    memset(&verdict, 0, sizeof verdict);
    gpi_driver_memory(&arena->chunks.driver, 0, &free_bytes, &total_bytes);
    verdict.cause = cause;
    verdict.asked_bytes = bytes;
    verdict.limit_bytes = arena->ledger.limit_bytes == UINT64_MAX ? 0 : arena->ledger.limit_bytes;
    verdict.granted_bytes = arena->ledger.granted.now - gpi_arena_asleep_bytes(arena);
    verdict.reserved_bytes = arena->ledger.reserved.now;
    verdict.device_free_bytes = free_bytes;
    verdict.device_total_bytes = total_bytes;
    verdict.others_bytes = total_bytes - gpi_ground_min(total_bytes,
                                                        free_bytes + verdict.reserved_bytes);
    if (cause == GPUPOOL_CAUSE_LIMIT) verdict.raise_bytes = bytes - room;
    else if (verdict.others_bytes <= verdict.reserved_bytes)
        verdict.cause = GPUPOOL_CAUSE_DEVICE_FULL;
    verdict.missing_bytes = bytes - gpi_ground_min(bytes, cause == GPUPOOL_CAUSE_LIMIT
                                                              ? room : free_bytes);
    if (cause == GPUPOOL_CAUSE_LIMIT)
        snprintf(verdict.sentence, sizeof verdict.sentence, "waking needs %s, and the limit leaves "
                 "%s: raise the limit by %s, or free blocks", gpi_limit_human(need, bytes),
                 gpi_limit_human(free_text, room), gpi_limit_enough(total, verdict.raise_bytes));
    else
        snprintf(verdict.sentence, sizeof verdict.sentence, "waking needs %s, and of the device's "
                 "%s only %s is free: %s", gpi_limit_human(need, bytes),
                 gpi_limit_human(total, total_bytes), gpi_limit_human(free_text, free_bytes),
                 verdict.cause == GPUPOOL_CAUSE_OTHERS
                     ? "others (arenas, processes, libraries) hold the rest"
                     : "this arena's own blocks hold most of the rest; free some");
    gpi_thread.verdict = verdict;
    return gpi_host_fail(GPUPOOL_E_OUT_OF_MEMORY, "gpupool_wake: arena \"%s\": %s", arena->name,
                         verdict.sentence);
}

/* Idle chunks of the parts that are awake go back to the driver until so many bytes are left under
   the limit; for the device (0), all of them. */
static void gpi_sleep_make_room(gpupool_arena *arena, uint64_t bytes) {
    uint64_t limit = arena->ledger.limit_bytes;
    gpi_arena_empty_all(arena, gpi_arena_pour_out);
    gpi_arena_poll_all(arena);
    gpi_tree_drop_slabs(&arena->tree);
    if (!bytes || bytes <= gpi_ladder_room_at_most(arena, 1))
        gpi_stitch_trim_below(&arena->stitches, bytes ? limit - bytes : 0);
}

/* Gets memory for every chunk that needs it; on failure the caller releases the new handles. */
static gpupool_result gpi_sleep_create_all(gpupool_arena *arena) {
    gpi_chunks *chunks = &arena->chunks;
    gpi_chunk *chunk;
    uint64_t bytes = 0;
    int tries;
    gpupool_result result = GPUPOOL_E_OUT_OF_MEMORY;
    for (chunk = chunks->first; chunk; chunk = chunk->next)
        bytes += gpi_sleep_needs(arena, chunk) ? chunk->bytes : 0;
    if (bytes > gpi_ledger_room(&arena->ledger)) gpi_sleep_make_room(arena, bytes);
    for (tries = 0; tries < 2 && result == GPUPOOL_E_OUT_OF_MEMORY; tries++) {
        if (tries) gpi_sleep_make_room(arena, 0);
        if (bytes > gpi_ledger_room(&arena->ledger))
            return gpi_sleep_give_up(arena, GPUPOOL_CAUSE_LIMIT, bytes);
        result = GPUPOOL_OK;
        for (chunk = chunks->first; chunk && result == GPUPOOL_OK; chunk = chunk->next) {
            if (chunk->handle || !gpi_sleep_needs(arena, chunk)) continue;
            gpi_host_unlock(chunks->lock);
            result = gpi_driver_create(&chunks->driver, chunk->bytes, &chunk->handle);
            gpi_host_lock(chunks->lock);
            if (result != GPUPOOL_OK) chunk->handle = 0;
        }
    }
    if (result != GPUPOOL_E_OUT_OF_MEMORY) return result;
    gpi_sleep_release_all(arena); /* the verdict counts it as free */
    return gpi_sleep_give_up(arena, GPUPOOL_CAUSE_OTHERS, bytes);
}

/* Vacant chunks end: their addresses are empty again. */
static void gpi_sleep_drop_vacant(gpupool_arena *arena) {
    gpi_chunks *chunks = &arena->chunks;
    gpi_chunk *chunk, *next;
    for (chunk = chunks->first; chunk; chunk = next) {
        gpi_run *run;
        next = chunk->next;
        if (!chunk->is_away || !gpi_sleep_moves(arena, chunk->tag)) continue;
        run = gpi_stitch_take(&arena->tree, gpi_tree_at(&arena->tree, chunk->unit), chunk->unit,
                              chunk->units);
        gpi_tree_own(&arena->tree, chunk->unit, chunk->units, NULL);
        gpi_tree_put(&arena->tree, run, GPI_LIST_EMPTY, 0);
        gpi_chunk_unlink(chunks, chunk);
        chunks->units += chunk->units;
        gpi_chunk_lost(chunks, chunk);
    }
}

/* All is mapped: the free memory goes back to its lists. The run structs were prepared before. */
static void gpi_sleep_end(gpupool_arena *arena) {
#if GPI_GUARD
    uint64_t at = 0;
    gpi_run *run;
    while ((run = gpi_tree_next_live(&arena->tree, &at)) != NULL) {
        int part = gpi_stitch_tag_at(&arena->stitches, run->unit);
        if (gpi_sleep_moves(arena, part) && !arena->sleep.backups[part].memory)
            run->guarded_bytes = 0; /* the guard's bytes were discarded, too */
    }
#endif
    gpi_sleep_forget_backup(arena);
    gpi_sleep_unuse_all(arena);
    gpi_sleep_put_back(arena);
    gpi_sleep_drop_vacant(arena);
    gpi_sleep_account(arena);
    gpi_sleep_count(arena, -1);
    if (gpi_sleep_moves(arena, 0)) GPI_PUBLISH(&arena->searching, arena->searching - 1);
    gpi_sleep_set_moving(arena, GPI_AWAKE);
    gpi_arena_poll_all(arena);
}

/* Maps all that the parts need, and fills it. Both locks are held, and open in between. */
static gpupool_result gpi_sleep_restore(gpupool_arena *arena, gpupool_ring *ring) {
    gpupool_result result = gpi_sleep_create_all(arena);
    if (result == GPUPOOL_OK) result = gpi_sleep_map_all(arena);
    gpi_sleep_account(arena);
    if (result != GPUPOOL_OK) return result;
    result = gpi_sleep_tell(arena, GPI_APPEARS);
    if (result == GPUPOOL_OK) result = gpi_sleep_copy_open(arena, ring, GPUPOOL_UP);
    if (result != GPUPOOL_OK) gpi_sleep_tell(arena, GPI_GOES);
    return result;
}

/* Wakes the parts that are marked as moving. Both locks are held, and open in between. On failure
   they sleep as before. */
static gpupool_result gpi_sleep_wake(gpupool_arena *arena, gpupool_ring *ring) {
    struct gpi_thread why;
    gpupool_result result;
    gpi_arena_unlock(arena);
    gpi_host_mutex_unlock(&arena->growing);
    result = gpi_clock_wait_device(&arena->clocks, &arena->chunks.driver);
    gpi_host_mutex_lock(&arena->growing);
    gpi_host_lock(&arena->lock);
    if (result != GPUPOOL_OK) {
        gpi_sleep_set_moving(arena, GPI_ASLEEP);
        return result;
    }
    gpi_sleep_set_aside_freed(arena);
    result = gpi_tree_prepare(&arena->tree, 4 * arena->chunks.count + 8)
                 ? gpi_sleep_restore(arena, ring) : gpi_host_no_memory();
    if (result == GPUPOOL_OK) {
        gpi_sleep_end(arena);
        return result;
    }
    why = gpi_thread;
    gpi_sleep_unmap_all(arena);
    gpi_sleep_release_all(arena);
    gpi_sleep_account(arena);
    gpi_sleep_set_moving(arena, GPI_ASLEEP);
    gpi_thread = why;
    return result;
}

gpupool_result gpupool_wake(gpupool_arena *arena, int tag, gpupool_ring *ring) {
    gpi_visit visit;
    gpupool_result result = gpi_sleep_enter(arena, "gpupool_wake", &visit);
    if (result != GPUPOOL_OK) return result;
    result = gpi_sleep_check_tag(arena, "gpupool_wake", tag);
    if (result == GPUPOOL_OK && !gpi_sleep_choose(arena, tag, GPI_ASLEEP))
        result = gpi_host_fail(GPUPOOL_E_ARGUMENT, "gpupool_wake: nothing of that sleeps in arena "
                               "\"%s\"", arena->name);
    if (result == GPUPOOL_OK) result = gpi_sleep_wake(arena, ring);
    gpi_arena_leave(arena, &visit);
    return result == GPUPOOL_OK ? gpi_host_ok() : result;
}

/* == LIFE =====================================================================================
   Arenas are made, ended, and renewed after a reset. uses: CAPTURE and above */

static gpupool_result gpi_life_validate(const gpupool_arena_config *config) {
    int count = 0;
    gpupool_result result;
    if ((int)config->source < 0 || config->source > GPUPOOL_SOURCE_BYPASS)
        return gpi_host_fail(GPUPOOL_E_ARGUMENT, "gpupool_arena_create: config.source is %d, which "
                             "is no gpupool_source", (int)config->source);
    if ((config->chunk_alloc != NULL) != (config->chunk_free != NULL))
        return gpi_host_fail(GPUPOOL_E_ARGUMENT, "gpupool_arena_create: config.chunk_alloc and "
                             "config.chunk_free belong together");
    if ((config->source == GPUPOOL_SOURCE_CUSTOM) != (config->chunk_alloc != NULL))
        return gpi_host_fail(GPUPOOL_E_ARGUMENT, "gpupool_arena_create: config.chunk_alloc and "
                             "GPUPOOL_SOURCE_CUSTOM belong together");
    if (config->share & ~(unsigned)(GPUPOOL_SHARE_PROCESSES | GPUPOOL_SHARE_RDMA))
        return gpi_host_fail(GPUPOOL_E_ARGUMENT, "gpupool_arena_create: config.share is %#x, and "
                             "must be a sum of gpupool_share", config->share);
    if (config->chunk_bytes > (uint64_t)1 << 48 || config->reserve_bytes > (uint64_t)1 << 48)
        return gpi_host_fail(GPUPOOL_E_ARGUMENT, "gpupool_arena_create: config.chunk_bytes and "
                             "config.reserve_bytes must be at most 2^48");
    result = gpi_driver_devices(&count);
    if (result != GPUPOOL_OK) return result;
    if (config->device < GPUPOOL_DEVICE_CURRENT || config->device >= count)
        return gpi_host_fail(GPUPOOL_E_ARGUMENT, "gpupool_arena_create: config.device is %d; it "
                             "must be from -1 (the current one) to %d", config->device, count - 1);
    return GPUPOOL_OK;
}

/* The limit by precedence: config.limit_text, config.limit_bytes, GPUPOOL_LIMIT_<device> and
   GPUPOOL_LIMIT in the environment, the macro GPUPOOL_LIMIT, none. A shell empties a variable to
   take it away for one command. */
static gpupool_result gpi_life_first_limit(gpupool_arena *arena,
                                            const gpupool_arena_config *config) {
    char variable[64];
    const char *where = "config.limit_text", *text = config->limit_text;
    size_t free_bytes, total_bytes;
    gpupool_result result;
    if (config->limit_bytes) arena->ledger.limit_bytes = config->limit_bytes;
    if (!text && config->limit_bytes) return GPUPOOL_OK;
    if (!text) {
        snprintf(variable, sizeof variable, "environment variable GPUPOOL_LIMIT_%d",
                 arena->chunks.driver.device);
        where = variable;
        text = getenv(strrchr(variable, ' ') + 1);
        if (!text || !*text) {
            where = "environment variable GPUPOOL_LIMIT";
            text = getenv("GPUPOOL_LIMIT");
        }
        if (text && !*text) text = NULL;
    }
    if (!text && sizeof(GPUPOOL_LIMIT) > 1) {
        where = "macro GPUPOOL_LIMIT";
        text = GPUPOOL_LIMIT;
    }
    if (!text) return GPUPOOL_OK;
    result = gpi_driver_told(&arena->chunks.driver, "cuMemGetInfo",
                             gpi_driver_memory(&arena->chunks.driver, 0, &free_bytes,
                                               &total_bytes));
    if (result != GPUPOOL_OK) return result;
    return gpi_limit_parse(where, text, total_bytes, free_bytes, &arena->ledger.limit_bytes);
}

/* config.soft_limit_bytes: the ledger's tag 0. 0: the host has no memory. */
static int gpi_life_soft_limit(gpupool_arena *arena, const gpupool_arena_config *config) {
    gpupool_tag_config soft;
    if (!config->soft_limit_bytes || !config->on_soft_limit) return 1;
    memset(&soft, 0, sizeof soft);
    soft.soft_limit_bytes = config->soft_limit_bytes;
    soft.on_soft_limit = config->on_soft_limit;
    soft.user = config->user;
    arena->ledger.tags[0] = gpi_tag_new("", &soft);
    return arena->ledger.tags[0] != NULL;
}

/* reserve_bytes of an arena (tag 0) or of a tag: reserved now, as finished free memory. Without
   memory, the thread has the verdict. Both locks are held, and open in between. */
static gpupool_result gpi_life_reserve(gpupool_arena *arena, int tag, uint64_t bytes) {
    gpi_siblings siblings;
    gpi_request request;
    gpi_lack lack;
    gpi_run *run;
    gpupool_result result;
    if (bytes == 0 || !gpi_chunk_is(&arena->chunks, GPI_FROM_POOL)) return GPUPOOL_OK;
    memset(&siblings, 0, sizeof siblings);
    memset(&request, 0, sizeof request);
    request.bytes = gpi_ground_up(bytes, arena->chunks.driver.granule_bytes);
    request.units = request.bytes / GPUPOOL_UNIT_BYTES;
    request.align_units = 1;
    request.owner = arena->clocks.all;
    request.tag = tag;
    result = gpi_ladder_grow(arena, &request, &run);
    if (result == GPUPOOL_E_OUT_OF_MEMORY) {
        lack = gpi_block_lack(arena, &request);
        gpi_host_unlock(&arena->lock);
        gpi_sibling_borrow(&lack, &siblings);
        gpi_host_lock(&arena->lock);
        result = gpi_ladder_grow(arena, &request, &run);
    }
    if (result == GPUPOOL_OK) gpi_chunk_put(&arena->chunks, &arena->tree, run);
    if (result == GPUPOOL_E_OUT_OF_MEMORY) {
        gpupool_verdict *verdict = &gpi_thread.verdict;
        gpi_scene scene;
        gpi_host_unlock(&arena->lock);
        gpi_verdict_begin(arena, &request, &siblings, verdict, &scene);
        gpi_verdict_judge(verdict, &scene);
        gpi_verdict_end(&scene);
        gpi_host_lock(&arena->lock);
        gpi_host_fail(result, "config.reserve_bytes: %s", verdict->sentence);
    }
    return result;
}

/* Takes back the newest tag, which has no memory. */
static void gpi_life_drop_tag(gpupool_arena *arena, int tag) {
    uint32_t list = GPI_LIST_TAGS + (uint32_t)tag - 1;
    if (list < arena->tree.list_count && arena->tree.lists[list])
        gpi_tree_list_drop(&arena->tree, list);
    memset(&arena->chunks.apart[tag], 0, sizeof arena->chunks.apart[tag]);
    GPUPOOL_FREE(arena->ledger.tags[tag]);
    arena->ledger.tags[tag] = NULL;
    arena->ledger.tag_count--;
}

/* Makes the free list and the reserve of a tag that has chunks of its own. On failure the tag is of
   no use: the caller takes it away, or leaves it unused. */
static gpupool_result gpi_life_set_apart(gpupool_arena *arena, int tag,
                                         const gpupool_tag_config *config) {
    gpi_apart *apart = &arena->chunks.apart[tag];
    gpi_chunk *chunk;
    gpupool_result result;
    if (!gpi_tree_list_open(&arena->tree, GPI_LIST_TAGS + (uint32_t)tag - 1))
        return gpi_host_no_memory();
    apart->is_apart = arena->chunks.is_apart = 1;
    apart->can_sleep = config->can_sleep;
    result = gpi_life_reserve(arena, tag, config->reserve_bytes);
    for (chunk = arena->chunks.first; chunk && result == GPUPOOL_OK; chunk = chunk->next)
        if (chunk->tag == tag) chunk->is_kept = 1; /* it has no others yet */
    return result;
}

static gpupool_result gpi_life_check_tag(const gpupool_arena *arena, const char *name,
                                         const int *tag, const gpupool_tag_config *config) {
    if (!tag || !name)
        return gpi_host_fail(GPUPOOL_E_ARGUMENT, "gpupool_tag: %s is NULL", tag ? "name" : "tag");
    if ((config->can_sleep || config->reserve_bytes) && !gpi_chunk_is_mapped(&arena->chunks))
        return gpi_host_fail(GPUPOOL_E_UNSUPPORTED, "gpupool_tag: can_sleep and reserve_bytes need "
                             "SOURCE_MAPPED");
    return GPUPOOL_OK;
}

gpupool_result gpupool_tag(gpupool_arena *arena, const char *name,
                           const gpupool_tag_config *given, int *tag) {
    gpupool_tag_config config;
    gpi_ledger_tag *of = NULL;
    gpi_visit visit;
    int number;
    gpupool_result result = gpi_arena_enter(arena, "gpupool_tag", &visit);
    if (tag) *tag = 0;
    if (result != GPUPOOL_OK) return result;
    memset(&config, 0, sizeof config);
    if (given) config = *given;
    result = gpi_life_check_tag(arena, name, tag, &config);
    if (result == GPUPOOL_OK && arena->ledger.tag_count == GPUPOOL_TAGS)
        result = gpi_host_fail(GPUPOOL_E_UNSUPPORTED, "gpupool_tag: an arena has at most %d tags",
                               (int)GPUPOOL_TAGS);
    if (result == GPUPOOL_OK && !(of = gpi_tag_new(name, &config))) result = gpi_host_no_memory();
    if (result == GPUPOOL_OK) {
        number = ++arena->ledger.tag_count;
        arena->ledger.tags[number] = of;
        if (config.can_sleep || config.reserve_bytes)
            result = gpi_life_set_apart(arena, number, &config);
        if (result == GPUPOOL_OK) *tag = number;
        else if (number == arena->ledger.tag_count && !arena->chunks.apart[number].units)
            gpi_life_drop_tag(arena, number);
    }
    gpi_arena_leave(arena, &visit);
    return result == GPUPOOL_OK ? gpi_host_ok() : result;
}

/* Whether CUDA has just said that it cannot map on this device, or that it has no addresses. */
static int gpi_life_cannot_map(gpupool_result result) {
    return result == GPUPOOL_E_OUT_OF_MEMORY ||
           (result == GPUPOOL_E_CUDA && gpi_thread.cuda_error == CUDA_ERROR_NOT_SUPPORTED);
}

/* Chunks of cudaMalloc in place of mapped ones, of which there is none yet. The lock is held. */
static gpupool_result gpi_life_fall_back(gpupool_arena *arena) {
    gpi_chunks *chunks = &arena->chunks;
    gpupool_result result;
    snprintf(arena->instead, sizeof arena->instead, "%.95s", gpi_thread.draft);
    result = gpi_chunk_retry(chunks, &arena->tree);
    if (result == GPUPOOL_OK) result = gpi_chunk_close(chunks);
    if (result != GPUPOOL_OK) return result;
    gpi_tree_close(&arena->tree);
    chunks->source = GPUPOOL_SOURCE_DEVICE;
    chunks->from = &gpi_sources[chunks->source];
    chunks->base_unit = chunks->space_units = 0;
    chunks->stitch_unit = UINT64_MAX;
    chunks->home = chunks->space = NULL;
    return gpi_tree_open(&arena->tree) ? GPUPOOL_OK : gpi_host_no_memory();
}

/* The addresses of a MAPPED arena. Where MAPPED is AUTO's choice it must work, too. */
static gpupool_result gpi_life_open_space(gpupool_arena *arena, gpupool_source asked) {
    struct gpi_thread before = gpi_thread;
    gpupool_result result = gpi_chunk_open_space(&arena->chunks, &arena->tree);
    if (asked != GPUPOOL_SOURCE_AUTO) return result;
    gpi_host_lock(&arena->lock);
    if (result == GPUPOOL_OK) result = gpi_chunk_try_mapping(&arena->chunks, &arena->tree);
    if (gpi_life_cannot_map(result) && !arena->chunks.driver.share)
        result = gpi_life_fall_back(arena);
    gpi_host_unlock(&arena->lock);
    if (result == GPUPOOL_OK) gpi_thread = before; /* no call has failed */
    return result;
}

/* Whether the arena's memory can be what config.share asks for. */
static gpupool_result gpi_life_may_share(gpi_chunks *chunks, unsigned share) {
    const gpi_driver *driver = &chunks->driver;
    const char *lacks = NULL;
    if (share && !gpi_chunk_is_mapped(chunks)) lacks = "SOURCE_MAPPED";
    else if ((share & GPUPOOL_SHARE_PROCESSES) && !GPI_DESCRIPTORS) lacks = "file descriptors";
    else if ((share & GPUPOOL_SHARE_PROCESSES) &&
             (!driver->export_handle || !driver->import_handle ||
              !gpi_driver_has(driver,
                              CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)))
        lacks = "handles that are file descriptors";
    else if ((share & GPUPOOL_SHARE_RDMA) &&
             !gpi_driver_has(driver, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED))
        lacks = "GPUDirect RDMA of mapped memory";
    chunks->driver.share = share;
    if (!lacks) return GPUPOOL_OK;
    return gpi_host_fail(GPUPOOL_E_UNSUPPORTED, "config.share: device %d or this arena has no %s",
                         driver->device, lacks);
}

static gpupool_result gpi_life_open(gpupool_arena *arena, const gpupool_arena_config *config) {
    gpi_chunks *chunks = &arena->chunks;
    gpupool_result result;
    chunks->granule_units = chunks->driver.granule_bytes / GPUPOOL_UNIT_BYTES;
    chunks->source = config->source;
    if (chunks->source == GPUPOOL_SOURCE_AUTO) {
        chunks->source = chunks->driver.mapped && !GPUPOOL_NVTX ? GPUPOOL_SOURCE_MAPPED
                                                                : GPUPOOL_SOURCE_DEVICE;
        if (!chunks->driver.mapped)
            snprintf(arena->instead, sizeof arena->instead, "no virtual memory management");
    }
    if (gpi_chunk_is_mapped(chunks) && !chunks->driver.mapped)
        return gpi_host_fail(GPUPOOL_E_UNSUPPORTED,
                             "GPUPOOL_SOURCE_MAPPED: device %d or this build "
                             "has no virtual memory management",
                             chunks->driver.device);
    result = gpi_life_may_share(chunks, config->share);
    if (result != GPUPOOL_OK) return result;
    chunks->from = &gpi_sources[chunks->source];
    chunks->stitch_unit = UINT64_MAX;
    chunks->on_map = config->on_map;
    chunks->on_unmap = config->on_unmap;
    chunks->chunk_alloc = config->chunk_alloc;
    chunks->chunk_free = config->chunk_free;
    chunks->chunk_bytes = config->chunk_bytes ? config->chunk_bytes : GPUPOOL_CHUNK_BYTES;
    chunks->user = arena->user = config->user;
    arena->stitches.off = config->no_stitch;
    arena->on_out_of_memory = config->on_out_of_memory;
    arena->clocks.driver = &chunks->driver;
    arena->keep_bytes = config->reserve_bytes;
    arena->sleep.backup_most = config->backup_bytes ? config->backup_bytes : UINT64_MAX;
    snprintf(arena->name, sizeof arena->name, "%s", config->name ? config->name : "arena");
    result = gpi_life_first_limit(arena, config);
    if (result == GPUPOOL_OK && !gpi_life_soft_limit(arena, config)) result = gpi_host_no_memory();
    if (result == GPUPOOL_OK && !gpi_tree_open(&arena->tree)) result = gpi_host_no_memory();
    if (result == GPUPOOL_OK && gpi_chunk_is_mapped(chunks))
        result = gpi_life_open_space(arena, config->source);
    gpi_host_lock(&arena->lock);
    if (result == GPUPOOL_OK && !gpi_clock_open(&arena->clocks)) result = gpi_host_no_memory();
    if (result == GPUPOOL_OK) result = gpi_life_reserve(arena, 0, config->reserve_bytes);
    gpi_host_unlock(&arena->lock);
    return result;
}

static void gpi_life_free(gpupool_arena *arena) {
    gpi_host_mutex_close(&arena->growing);
    gpi_host_mutex_close(&arena->clocks.waits);
    GPUPOOL_FREE(arena);
}

static void gpi_life_forget(gpupool_arena *arena) { /* the host's side only, but the struct */
    gpi_sleep_forget(arena);
    gpi_ledger_close(&arena->ledger); /* before the caches, which hold sites too */
    gpi_stitch_forget(&arena->stitches);
    gpi_chunk_forget(&arena->chunks);
    gpi_clock_clear(&arena->clocks);
    gpi_tree_close(&arena->tree);
}

/* Gives everything back. What was freed may still be in use by queued work, which unmapping would
   not wait for. The lock is held, and open in between. */
static gpupool_result gpi_life_close(gpupool_arena *arena) {
    gpupool_result result = GPUPOOL_OK;
    if (arena->clocks.all && (arena->tree.pending_units || arena->waiting)) {
        gpi_host_unlock(&arena->lock);
        result = gpi_clock_wait_device(&arena->clocks, &arena->chunks.driver);
        gpi_host_lock(&arena->lock);
        if (result != GPUPOOL_OK) return result;
        gpi_arena_poll_all(arena);
    }
    gpi_tree_drop_slabs(&arena->tree);
    arena->chunks.is_ending = 1;
    result = gpi_stitch_trim(&arena->stitches, 0);
    arena->chunks.is_ending = 0;
    if (result == GPUPOOL_OK) result = gpi_clock_close(&arena->clocks);
    return result == GPUPOOL_OK ? gpi_chunk_close(&arena->chunks) : result;
}

/* Makes the arena by its config, all of it or nothing; what it consists of is zero, but the driver,
   which is entered. */
static gpupool_result gpi_life_build(gpupool_arena *arena, const gpupool_arena_config *config) {
    struct gpi_thread why;
    gpupool_result result;
    gpi_host_mutex_open(&arena->growing);
    gpi_host_mutex_open(&arena->clocks.waits);
    arena->chunks.lock = arena->clocks.lock = &arena->lock;
    arena->chunks.growing = &arena->growing;
    gpi_host_mutex_lock(&arena->growing);
    arena->chunks.ledger = &arena->ledger;
    arena->chunks.clocks = arena->stitches.clocks = &arena->clocks;
    arena->stitches.chunks = &arena->chunks;
    arena->stitches.tree = arena->clocks.tree = &arena->tree;
    gpi_ledger_open(&arena->ledger);
    result = gpi_life_open(arena, config);
    if (result != GPUPOOL_OK) {
        why = gpi_thread; /* of the failure, not of the cleaning up */
        gpi_host_lock(&arena->lock);
        gpi_life_close(arena);
        gpi_life_forget(arena);
        gpi_thread = why;
    }
    gpi_host_mutex_unlock(&arena->growing);
    return result;
}

/* The same with the driver. */
static gpupool_result gpi_life_make(gpupool_arena *arena, const gpupool_arena_config *config) {
    gpi_driver *driver = &arena->chunks.driver;
    gpi_visit visit;
    gpupool_result result = gpi_driver_open(driver, config->device);
    if (result != GPUPOOL_OK) return result;
    result = gpi_driver_enter(driver, &visit);
    if (result == GPUPOOL_OK) {
        result = gpi_life_build(arena, config);
        gpi_driver_leave(&visit);
    }
    if (result != GPUPOOL_OK) gpi_driver_close(driver);
    return result;
}

/* Adds the arena to those of the process, as its device's default if `is_default`. */
static void gpi_life_list(gpupool_arena *arena, int is_default) {
    int device = arena->chunks.driver.device;
    gpi_host_lock(&gpi_process.lock);
    arena->next = gpi_process.arenas;
    gpi_process.arenas = arena;
    if (is_default && !gpi_process.default_arenas[device])
        gpi_process.default_arenas[device] = arena;
    gpi_host_unlock(&gpi_process.lock);
}

/* Tells whether it was its device's default. 0: not done, for a thread is on its way through the
   arenas of the process. */
static int gpi_life_unlist(gpupool_arena *arena, int *is_default) {
    gpupool_arena **link = &gpi_process.arenas;
    int device = arena->chunks.driver.device, done;
    gpi_host_lock(&gpi_process.lock);
    done = !arena->visitors;
    if (done) {
        while (*link != arena) link = &(*link)->next;
        *link = arena->next;
        *is_default = gpi_process.default_arenas[device] == arena;
        if (*is_default) gpi_process.default_arenas[device] = NULL;
    }
    gpi_host_unlock(&gpi_process.lock);
    return done;
}

gpupool_result gpupool_arena_create(gpupool_arena **out, const gpupool_arena_config *given) {
    gpupool_arena_config config;
    gpupool_arena *arena;
    gpupool_result result;
    gpi_host_begin();
    if (!out) return gpi_host_fail(GPUPOOL_E_ARGUMENT, "gpupool_arena_create: arena is NULL");
    *out = NULL;
    result = gpi_host_may_open("gpupool_arena_create");
    if (result != GPUPOOL_OK) return result;
    memset(&config, 0, sizeof config);
    if (given) config = *given;
    else config.device = GPUPOOL_DEVICE_CURRENT;
    result = gpi_life_validate(&config);
    if (result != GPUPOOL_OK) return result;
    gpi_host_watch_forks();
    result = gpi_driver_name_device(&config.device);
    if (result != GPUPOOL_OK) return result;
    arena = (gpupool_arena *)gpi_host_zeroed(sizeof *arena);
    if (!arena) return gpi_host_no_memory();
    arena->forks = gpi_process.forks;
    result = gpi_life_make(arena, &config);
    if (result == GPUPOOL_OK) {
        gpi_life_list(arena, 0);
        *out = arena;
    } else {
        gpi_life_free(arena);
    }
    return result == GPUPOOL_OK ? gpi_host_ok() : result;
}

/* Names the biggest holders; gpupool_report lists more of them. `growing` is held. */
static gpupool_result gpi_life_tell_leaks(gpupool_arena *arena, uint64_t blocks) {
    gpi_holding top[GPUPOOL_HOLDERS];
    char list[320], name[64], size[32];
    uint64_t bytes = arena->ledger.granted.now;
    size_t length = 0;
    gpi_scene scene;
    int i;
    memset(&scene, 0, sizeof scene);
    scene.arena = arena;
    gpi_shot_take(&scene);
    gpi_verdict_holders(&scene, top, GPUPOOL_HOLDERS);
    gpi_verdict_end(&scene);
    list[0] = 0;
    for (i = 0; i < GPUPOOL_HOLDERS && top[i].shown.blocks; i++)
        length += (size_t)snprintf(list + length, sizeof list - length, "%s%" PRIu64 " of %s (%s)",
                                   i ? ", " : "", top[i].shown.blocks,
                                   gpi_verdict_holder(name, &top[i].shown),
                                   gpi_limit_human(size, top[i].shown.bytes));
    return gpi_host_fail(GPUPOOL_E_IN_USE, "gpupool_arena_destroy: live blocks of arena \"%s\": "
                         "%" PRIu64 ", holding %s; the biggest: %s", arena->name, blocks,
                         gpi_limit_human(size, bytes), list);
}

/* `growing` is held. */
static gpupool_result gpi_life_unused(gpupool_arena *arena) {
    gpupool_result result = GPUPOOL_OK;
    uint64_t live, captures;
    gpi_cached cached;
    gpi_arena_fold(arena, &cached);
    gpi_host_unlock(&arena->lock);
    gpi_host_lock(&arena->lock);
    gpi_arena_empty_all(arena, gpi_arena_pour_out);
    live = arena->tree.live_runs;
    captures = arena->captures;
    /* with no block it needs no memory for that */
    arena->chunks.is_ending = 1;
    if (!live && !captures && gpi_sleep_choose(arena, GPUPOOL_ALL, GPI_ASLEEP))
        result = gpi_sleep_wake(arena, NULL);
    arena->chunks.is_ending = 0;
    gpi_arena_unlock(arena);
    if (result != GPUPOOL_OK) return result;
    if (live) return gpi_life_tell_leaks(arena, live);
    if (captures)
        return gpi_host_fail(GPUPOOL_E_IN_USE, "gpupool_arena_destroy: captures of arena \"%s\" "
                             "that are not released: %" PRIu64, arena->name, captures);
    return GPUPOOL_OK;
}

/* Nothing waits for a mark any more; once more does no harm. */
static void gpi_life_drop_uses(gpupool_arena *arena) {
    gpi_run *run = arena->waiting;
    uint64_t at = 0;
    for (; run; run = run->list_next) gpi_clock_drop_uses(&arena->clocks, run);
    while ((run = gpi_tree_next_live(&arena->tree, &at)) != NULL)
        if (run->list != GPI_LIST_CACHED) gpi_clock_drop_uses(&arena->clocks, run);
}

/* After a reset: what is left of it on the device, and on its peers, goes back, and all the host
   has, with blocks and captures, but the struct. If CUDA refuses some of it, it can be tried again.
   No other thread comes to the arena. */
static gpupool_result gpi_life_salvage(gpupool_arena *arena) {
    gpupool_result result = GPUPOOL_OK;
    gpi_stream *stream;
    /* peers' work goes on, and may be at mapped memory */
    if (arena->chunks.driver.peer_count) result = gpi_driver_wait(&arena->chunks.driver);
    gpi_host_lock(&arena->lock);
    if (result == GPUPOOL_OK) result = gpi_stitch_salvage(&arena->stitches);
    if (result == GPUPOOL_OK) result = gpi_clock_close(&arena->clocks);
    gpi_host_unlock(&arena->lock);
    if (result != GPUPOOL_OK) return result;
    gpi_life_drop_uses(arena);
    for (stream = arena->clocks.streams; stream; stream = stream->next) {
        if (stream->capture && stream->key) gpi_host_count_scope(-1);
        GPUPOOL_FREE(stream->capture);
    }
    gpi_life_forget(arena);
    return GPUPOOL_OK;
}

/* The end of an arena that was reset. */
static gpupool_result gpi_life_end_reset(gpupool_arena *arena) {
    gpupool_result result;
    int is_default = 0;
    unsigned round = 0;
    while (!gpi_life_unlist(arena, &is_default)) gpi_host_idle(round++);
    result = gpi_life_salvage(arena);
    if (result == GPUPOOL_OK) gpi_life_free(arena);
    else gpi_life_list(arena, is_default);
    return result;
}

/* Takes an arena of which nothing is in use off those of the process, with both its locks held; if
   it fails none is. A thread that is on its way through the arenas may wait for these locks. */
static gpupool_result gpi_life_start_ending(gpupool_arena *arena, int *is_default) {
    gpupool_result result;
    unsigned round = 0;
    for (;; gpi_host_idle(round++)) {
        gpi_host_mutex_lock(&arena->growing);
        result = gpi_life_unused(arena);
        if (result == GPUPOOL_OK && gpi_life_unlist(arena, is_default)) {
            gpi_host_lock(&arena->lock);
            return GPUPOOL_OK;
        }
        gpi_host_mutex_unlock(&arena->growing);
        if (result != GPUPOOL_OK) return result;
    }
}

/* All is given back and the arena is no more, or it is as before, but that it knows no stream: one
   may have been destroyed while the arena was not listed, and its handle be another's. */
static gpupool_result gpi_life_end(gpupool_arena *arena) {
    int is_default = 0;
    gpi_stream *stream;
    gpupool_result result = gpi_life_start_ending(arena, &is_default);
    if (result != GPUPOOL_OK) return result;
    result = gpi_life_close(arena);
    if (result == GPUPOOL_OK) {
        gpi_life_forget(arena);
        gpi_life_free(arena);
        return GPUPOOL_OK;
    }
    gpi_life_list(arena, is_default);
    for (stream = arena->clocks.streams; stream; stream = stream->next)
        if (stream->key && stream != arena->clocks.all) gpi_arena_unname(arena, stream);
    gpi_arena_unlock(arena);
    gpi_host_mutex_unlock(&arena->growing);
    return result;
}

gpupool_result gpupool_arena_destroy(gpupool_arena *arena) {
    gpi_driver driver;
    gpi_visit visit;
    int reset;
    gpupool_result result;
    gpi_host_begin();
    if (arena && arena->forks == GPI_CLOSED) { /* nothing is in it */
        while (!gpi_life_unlist(arena, &reset)) gpi_host_idle(0);
        gpi_life_free(arena);
        return gpi_host_ok();
    }
    result = gpi_arena_begin(arena, "gpupool_arena_destroy");
    if (result != GPUPOOL_OK) return result;
    result = gpi_driver_enter(&arena->chunks.driver, &visit);
    if (result != GPUPOOL_OK) return result;
    result = gpi_driver_was_reset(&arena->chunks.driver, &reset);
    driver = arena->chunks.driver;
    if (result == GPUPOOL_OK) result = reset ? gpi_life_end_reset(arena) : gpi_life_end(arena);
    gpi_driver_leave(&visit);
    if (result != GPUPOOL_OK) return result;
    gpi_driver_close(&driver);
    return gpi_host_ok();
}

/* Whether its device was reset since it was made; 0 where CUDA does not tell. No lock is held. */
static int gpi_life_was_reset(const gpupool_arena *arena) {
    struct gpi_thread why = gpi_thread;
    int reset = 0;
    gpupool_result result = gpi_driver_was_reset(&arena->chunks.driver, &reset);
    gpi_thread = why; /* nobody has called anything that failed */
    return result == GPUPOOL_OK && reset;
}

/* The source of default arenas, by the environment's GPUPOOL_SOURCE. */
static gpupool_result gpi_life_default_source(gpupool_source *source) {
    static const struct { const char *name; gpupool_source source; } owner[] = {
        {"", GPUPOOL_SOURCE_AUTO}, {"auto", GPUPOOL_SOURCE_AUTO}, {"mapped", GPUPOOL_SOURCE_MAPPED},
        {"device", GPUPOOL_SOURCE_DEVICE}, {"managed", GPUPOOL_SOURCE_MANAGED},
        {"bypass", GPUPOOL_SOURCE_BYPASS}};
    const char *name = getenv("GPUPOOL_SOURCE");
    size_t i;
    *source = GPUPOOL_SOURCE_AUTO;
    for (i = 0; name && i < sizeof owner / sizeof *owner; i++)
        if (strcmp(name, owner[i].name) == 0) {
            *source = owner[i].source;
            return GPUPOOL_OK;
        }
    if (!name) return GPUPOOL_OK;
    return gpi_host_fail(GPUPOOL_E_ARGUMENT, "environment variable GPUPOOL_SOURCE is \"%.32s\", "
                         "and must be auto, mapped, device, managed or bypass", name);
}

static gpupool_result gpi_life_default_config(int device, gpupool_arena_config *config) {
    memset(config, 0, sizeof *config);
    config->device = device;
    config->name = "default";
    config->share = GPUPOOL_SHARE;
    return gpi_life_default_source(&config->source);
}

/* With a visitor more. NULL: none was made yet, or a reset has closed it. */
static gpupool_arena *gpi_life_default(int device) {
    gpupool_arena *arena = NULL;
    gpi_host_lock(&gpi_process.lock);
    if (device >= 0 && device < GPI_DEVICES_MAX) arena = gpi_process.default_arenas[device];
    if (arena && arena->forks < 0) arena = NULL;
    if (arena) arena->visitors++;
    gpi_host_unlock(&gpi_process.lock);
    return arena;
}

static void gpi_life_left(gpupool_arena *arena) {
    gpi_host_lock(&gpi_process.lock);
    arena->visitors--;
    gpi_host_unlock(&gpi_process.lock);
}

static void gpi_life_set_forks(gpupool_arena *arena, int forks) {
    gpi_host_lock(&gpi_process.lock);
    arena->forks = forks;
    gpi_host_unlock(&gpi_process.lock);
}

/* The device's default arena, for the caller to renew, since the device was reset. NULL: there is
   none or it is open; or *wait: another thread renews it, or is on its way through it. CUDA is
   asked under the lock: another thread may have renewed it just now. */
static gpupool_arena *gpi_life_start_renewing(int device, int *wait) {
    gpupool_arena *arena;
    int closed;
    gpi_host_lock(&gpi_process.lock);
    arena = gpi_process.default_arenas[device];
    closed = arena && (arena->forks < 0 || gpi_life_was_reset(arena));
    *wait = closed && (arena->forks == GPI_RENEWING || arena->visitors);
    if (!closed || *wait) arena = NULL;
    if (arena) arena->forks = GPI_RENEWING;
    gpi_host_unlock(&gpi_process.lock);
    return arena;
}

/* All but what the process's lock guards. */
static void gpi_life_clear(gpupool_arena *arena, int device) {
    const size_t from = offsetof(gpupool_arena, searching);
    gpi_host_mutex_close(&arena->growing);
    gpi_host_mutex_close(&arena->clocks.waits);
    memset((char *)arena + from, 0, sizeof *arena - from);
    arena->chunks.driver.device = device;
}

/* The arena is as it was when it was made, but that a limit that was set stays. If CUDA does not
   take its memory back all is as before; if the arena cannot be made again it is closed, and empty.
   */
static gpupool_result gpi_life_renew(gpupool_arena *arena, const gpupool_arena_config *config) {
    uint64_t limit = arena->ledger.limit_bytes;
    gpupool_result result = GPUPOOL_OK;
    gpi_visit visit;
    if (arena->chunks.from) { /* else it is empty */
        result = gpi_driver_enter(&arena->chunks.driver, &visit);
        if (result == GPUPOOL_OK) {
            result = gpi_life_salvage(arena);
            gpi_driver_leave(&visit);
        }
        if (result == GPUPOOL_OK) gpi_driver_close(&arena->chunks.driver);
    }
    if (result == GPUPOOL_OK) {
        gpi_life_clear(arena, config->device);
        result = gpi_life_make(arena, config);
        if (result != GPUPOOL_OK) gpi_life_clear(arena, config->device);
        if (limit) arena->ledger.limit_bytes = limit;
    }
    gpi_life_set_forks(arena, arena->chunks.from ? gpi_process.forks : GPI_CLOSED);
    return result;
}

/* The open default arena of a device, renewed if need be. NULL with OK: there is none yet. */
static gpupool_arena *gpi_life_find_default(int device) {
    gpupool_arena_config config;
    gpupool_arena *arena;
    int reset, wait;
    unsigned round = 0;
    for (;; gpi_host_idle(round++)) {
        arena = gpi_life_default(device);
        if (arena) {
            reset = gpi_life_was_reset(arena);
            gpi_life_left(arena);
            if (!reset) break;
        }
        arena = gpi_life_start_renewing(device, &wait);
        if (!wait) break;
    }
    gpi_host_ok();
    if (!arena || arena->forks != GPI_RENEWING) return arena;
    if (gpi_life_default_config(device, &config) != GPUPOOL_OK) {
        gpi_life_set_forks(arena, GPI_CLOSED);
        return NULL;
    }
    return gpi_life_renew(arena, &config) == GPUPOOL_OK ? arena : NULL;
}

/* The device that a default arena is asked for. */
static gpupool_result gpi_life_default_device(const char *call, int *device) {
    gpupool_result result;
    gpi_host_begin();
    result = gpi_host_may_open(call);
    if (result == GPUPOOL_OK) result = gpi_driver_name_device(device);
    if (result != GPUPOOL_OK || (*device >= 0 && *device < GPI_DEVICES_MAX)) return result;
    return gpi_host_fail(GPUPOOL_E_ARGUMENT, "%s: device is %d; it must be from -1 (the current "
                         "one) to %d", call, *device, GPI_DEVICES_MAX - 1);
}

gpupool_arena *gpupool_find_default_arena(int device) {
    gpupool_arena *arena;
    if (gpi_life_default_device("gpupool_find_default_arena", &device) != GPUPOOL_OK) return NULL;
    arena = gpi_life_default(device);
    if (arena) gpi_life_left(arena);
    gpi_host_ok();
    return arena;
}

gpupool_arena *gpupool_get_default_arena(int device) {
    gpupool_arena *arena = NULL, *other = NULL;
    gpupool_arena_config config;
    if (gpi_life_default_device("gpupool_get_default_arena", &device) != GPUPOOL_OK) return NULL;
    arena = gpi_life_find_default(device);
    if (arena || gpi_thread.result != GPUPOOL_OK) return arena;
    if (gpi_life_default_config(device, &config) != GPUPOOL_OK) return NULL;
    if (gpupool_arena_create(&arena, &config) != GPUPOOL_OK) return NULL;
    gpi_host_lock(&gpi_process.lock);
    other = gpi_process.default_arenas[device];
    if (!other) gpi_process.default_arenas[device] = arena;
    gpi_host_unlock(&gpi_process.lock);
    if (!other) return arena;
    gpupool_arena_destroy(arena); /* another thread was first */
    gpi_host_ok();
    return other;
}

/* == SHARE ====================================================================================
   Memory that others hold: the chunks behind a block, and blocks in other processes.
   uses: DRIVER, CHUNK, STITCH, ARENA, BLOCK

   A block that can be exported is all of one chunk (GPI_OWNERS_WHOLE), for whoever imports it sees
   the whole chunk. Its descriptor and the number of exports are the chunk's; while it is exported
   the block cannot be freed, so the chunk stays: H4. */

/* -- the chunks behind a block -- */

typedef struct gpi_walk { /* mappings that are copied before the program sees them */
    gpupool_mapping *list;
    uint64_t count, room; /* count may be more than there is room for */
} gpi_walk;

typedef struct gpi_seen { /* home units of a block, and from which of its units on they are seen */
    uint64_t unit, units, at;
} gpi_seen;

/* Such units that lie in one chunk. */
static void gpi_share_note(gpi_walk *walk, const gpi_chunks *chunks, const gpi_chunk *chunk,
                           const gpi_seen *part) {
    gpupool_mapping *mapping = &walk->list[walk->count];
    uint64_t begin;
    if (walk->count++ >= walk->room) return;
    *mapping = gpi_chunk_mapping(chunks, chunk);
    begin = (uint64_t)(uintptr_t)mapping->memory;
    mapping->memory = (void *)(uintptr_t)(part->at * GPUPOOL_UNIT_BYTES);
    mapping->bytes = (size_t)(part->units * GPUPOOL_UNIT_BYTES);
    mapping->offset = (size_t)(part->unit * GPUPOOL_UNIT_BYTES - begin);
}

/* The chunk that has a home unit. */
static gpi_chunk *gpi_share_chunk(const gpupool_arena *arena, uint64_t unit) {
    gpi_chunk *chunk = arena->chunks.first;
    if (gpi_chunk_is_mapped(&arena->chunks))
        return (gpi_chunk *)gpi_tree_owner(&arena->tree, unit);
    while (chunk && unit - chunk->unit >= chunk->units) chunk = chunk->next;
    return chunk;
}

/* Such units that lie side by side. */
static void gpi_share_note_home(gpi_walk *walk, const gpupool_arena *arena, gpi_seen seen) {
    uint64_t left = seen.units;
    for (; left; left -= seen.units, seen.unit += seen.units, seen.at += seen.units) {
        const gpi_chunk *chunk = gpi_share_chunk(arena, seen.unit);
        seen.units = gpi_ground_min(left, chunk->unit + chunk->units - seen.unit);
        gpi_share_note(walk, &arena->chunks, chunk, &seen);
    }
}

/* The arena's lock is held. */
static void gpi_share_note_block(gpi_walk *walk, const gpupool_arena *arena, const gpi_run *run) {
    const gpi_stitch *stitch = NULL;
    gpi_seen seen;
    uint32_t i;
    seen.at = seen.unit = run->unit;
    seen.units = run->units;
    walk->count = 0;
    if (gpi_stitch_is(&arena->stitches, run)) stitch = gpi_stitch_of(&arena->stitches, run);
    else gpi_share_note_home(walk, arena, seen);
    for (i = 0; stitch && i < stitch->part_count; i++, seen.at += seen.units) {
        seen.unit = stitch->parts[i].unit;
        seen.units = stitch->parts[i].units;
        gpi_share_note_home(walk, arena, seen);
    }
}

gpupool_result gpupool_walk_chunks(gpupool_arena *arena, const void *block, gpupool_map_fn fn,
                                   void *user) {
    const char *call = "gpupool_walk_chunks";
    gpi_walk walk = {NULL, 0, 0};
    uint64_t i;
    int ended = 0;
    gpupool_result result = gpi_arena_begin(arena, call);
    if (result != GPUPOOL_OK) return result;
    if (!fn) return gpi_host_fail(GPUPOOL_E_ARGUMENT, "%s: fn is NULL", call);
    do {
        gpi_cache *cache;
        const gpi_run *run;
        GPUPOOL_FREE(walk.list);
        walk.room = walk.count + 16;
        walk.list = (gpupool_mapping *)gpi_host_zeroed((size_t)walk.room * sizeof *walk.list);
        if (!walk.list) return gpi_host_no_memory();
        run = gpi_block_enter(arena, call, block, &cache);
        if (run) gpi_share_note_block(&walk, arena, run);
        if (run) gpi_block_leave(arena, cache);
        if (!run) result = gpi_thread.result;
    } while (result == GPUPOOL_OK && walk.count > walk.room);
    for (i = 0; i < walk.count && result == GPUPOOL_OK && !ended; i++)
        ended = fn(&walk.list[i], user);
    GPUPOOL_FREE(walk.list);
    if (result != GPUPOOL_OK) return result;
    return ended ? gpi_host_fail(GPUPOOL_E_CALLBACK, "%s: fn returned %d", call, ended)
                 : gpi_host_ok();
}

/* -- to another process -- */

/* The chunk of a block that is all of it, with the arena's lock held; NULL with a result, and no
   lock. */
static gpi_chunk *gpi_share_enter(gpupool_arena *arena, const char *call, const void *block,
                                  const gpi_run **run) {
    gpi_chunk *chunk;
    gpi_cache *cache;
    *run = gpi_block_enter(arena, call, block, &cache);
    if (!*run) return NULL;
    chunk = gpi_share_chunk(arena, (*run)->unit);
    if (!cache && (arena->chunks.driver.share & GPUPOOL_SHARE_PROCESSES) && chunk &&
        (*run)->unit == chunk->unit && (*run)->units == chunk->units)
        return chunk;
    gpi_block_leave(arena, cache);
    gpi_host_fail(GPUPOOL_E_ARGUMENT, "%s: the block was not asked for with GPUPOOL_EXPORTABLE",
                  call);
    return NULL;
}

static void gpi_share_fill(const gpi_chunks *chunks, const gpi_chunk *chunk,
                           gpupool_exported *exported) {
    memset(exported, 0, sizeof *exported);
    exported->bytes = chunk->bytes;
    exported->device = chunks->driver.device;
    exported->descriptor = chunk->descriptor;
}

/* One export more; the first one gets the descriptor. `growing` and the lock are held on entry, the
   lock open while CUDA is called: the block is exported by then, so that nobody frees it. */
static gpupool_result gpi_share_export(gpi_chunks *chunks, gpi_chunk *chunk) {
    gpupool_result result = GPUPOOL_OK;
    int descriptor = -1;
    if (chunk->exports++) return GPUPOOL_OK;
    chunk->descriptor = -1; /* nothing to be closed yet */
    chunks->exports++;
    gpi_host_unlock(chunks->lock);
    result = gpi_driver_export(&chunks->driver, chunk->handle, &descriptor);
    gpi_host_lock(chunks->lock);
    chunk->descriptor = descriptor;
    if (result == GPUPOOL_OK) return result;
    chunk->exports--;
    chunks->exports--;
    return result;
}

gpupool_result gpupool_export(gpupool_arena *arena, const void *block,
                              gpupool_exported *exported) {
    const char *call = "gpupool_export";
    const gpi_run *run;
    gpi_chunk *chunk;
    gpi_visit visit;
    gpupool_result result = gpi_arena_begin(arena, call);
    if (result != GPUPOOL_OK) return result;
    if (!exported) return gpi_host_fail(GPUPOOL_E_ARGUMENT, "%s: exported is NULL", call);
    memset(exported, 0, sizeof *exported);
    exported->descriptor = -1;
    result = gpi_arena_enter(arena, call, &visit);
    if (result != GPUPOOL_OK) return result;
    gpi_host_unlock(&arena->lock);
    chunk = gpi_share_enter(arena, call, block, &run);
    if (!chunk) {
        result = gpi_thread.result;
        gpi_host_lock(&arena->lock);
    } else if (gpi_arena_is_awake(arena, call, chunk->tag) != GPUPOOL_OK) {
        result = gpi_thread.result;
    } else if (gpi_clock_keeping(run)) {
        result = gpi_host_fail(GPUPOOL_E_CAPTURING, "%s: the block is a graph's until its release",
                               call);
    } else {
        result = gpi_share_export(&arena->chunks, chunk);
        if (result == GPUPOOL_OK) gpi_share_fill(&arena->chunks, chunk, exported);
    }
    gpi_arena_leave(arena, &visit);
    return result == GPUPOOL_OK ? gpi_host_ok() : result;
}

gpupool_result gpupool_export_close(gpupool_arena *arena, const void *block) {
    const char *call = "gpupool_export_close";
    const gpi_run *run;
    gpi_chunk *chunk;
    int was_exported, descriptor = -1;
    gpupool_result result = gpi_arena_begin(arena, call);
    if (result != GPUPOOL_OK) return result;
    chunk = gpi_share_enter(arena, call, block, &run);
    if (!chunk) return gpi_thread.result;
    was_exported = chunk->exports != 0 && chunk->descriptor >= 0;
    if (was_exported && --chunk->exports == 0) {
        descriptor = chunk->descriptor;
        chunk->descriptor = -1;
        arena->chunks.exports--;
    }
    gpi_host_unlock(&arena->lock);
    gpi_host_close(descriptor);
    if (was_exported) return gpi_host_ok();
    return gpi_host_fail(GPUPOOL_E_ARGUMENT, "%s: the block is not exported", call);
}

/* -- from another process -- */

/* Addresses for an imported handle, mapped. On failure there are none. */
static gpupool_result gpi_share_map(const gpi_driver *driver, gpi_handle handle, uint64_t bytes,
                                    CUdeviceptr *address) {
    struct gpi_thread why;
    gpupool_result result =
        gpi_driver_told(driver, "cuMemAddressReserve",
                        driver->reserve(address, (size_t)bytes, 0, 0, 0));
    if (result != GPUPOOL_OK) return result;
    result = gpi_driver_map(driver, *address, bytes, handle);
    if (result == GPUPOOL_OK) {
        result = gpi_driver_access(driver, *address, bytes);
        if (result == GPUPOOL_OK) return result;
        why = gpi_thread;
        gpi_driver_unmap(driver, *address, bytes);
        gpi_thread = why;
    }
    why = gpi_thread;
    gpi_driver_told(driver, "cuMemAddressFree", driver->unreserve(*address, (size_t)bytes));
    gpi_thread = why;
    return result;
}

static gpupool_result gpi_share_take(const gpi_driver *driver, const gpupool_exported *exported,
                                     gpupool_imported *imported) {
    gpi_handle handle = 0;
    CUdeviceptr address = 0;
    struct gpi_thread why;
    gpupool_result result = gpi_driver_import(driver, exported->descriptor, &handle);
    if (result != GPUPOOL_OK) return result;
    result = gpi_share_map(driver, handle, exported->bytes, &address);
    if (result != GPUPOOL_OK) {
        why = gpi_thread;
        gpi_driver_release(driver, handle);
        gpi_thread = why;
        return result;
    }
    imported->memory = (void *)(uintptr_t)address;
    imported->bytes = (size_t)exported->bytes;
    imported->handle = handle;
    return result;
}

/* A driver that is open for this call alone. */
static gpupool_result gpi_share_open(const char *call, int device, gpi_driver *driver,
                                     gpi_visit *visit) {
    int count = 0;
    gpupool_result result = gpi_host_may_open(call);
    if (result == GPUPOOL_OK) result = gpi_driver_devices(&count);
    if (result == GPUPOOL_OK && (device < GPUPOOL_DEVICE_CURRENT || device >= count))
        return gpi_host_fail(GPUPOOL_E_ARGUMENT, "%s: device is %d; it must be from -1 (the "
                             "current one) to %d", call, device, count - 1);
    if (result == GPUPOOL_OK) result = gpi_driver_name_device(&device);
    if (result == GPUPOOL_OK) result = gpi_driver_open(driver, device);
    if (result != GPUPOOL_OK) return result;
    if (!driver->mapped || !driver->import_handle)
        result = gpi_host_fail(GPUPOOL_E_UNSUPPORTED, "%s: device %d or this build has no virtual "
                               "memory management", call, device);
    if (result == GPUPOOL_OK) result = gpi_driver_enter(driver, visit);
    if (result != GPUPOOL_OK) gpi_driver_close(driver);
    return result;
}

gpupool_result gpupool_import(int device, const gpupool_exported *exported,
                              gpupool_imported *imported) {
    const char *call = "gpupool_import";
    gpi_driver driver;
    gpi_visit visit;
    gpupool_result result;
    gpi_host_begin();
    if (!exported || !imported)
        return gpi_host_fail(GPUPOOL_E_ARGUMENT, "%s: %s is NULL", call,
                             exported ? "imported" : "exported");
    memset(imported, 0, sizeof *imported);
    if (exported->bytes == 0 || exported->bytes > (uint64_t)1 << 48 || exported->descriptor < 0)
        return gpi_host_fail(GPUPOOL_E_ARGUMENT, "%s: exported is not of gpupool_export", call);
    result = gpi_share_open(call, device, &driver, &visit);
    if (result != GPUPOOL_OK) return result;
    imported->device = driver.device;
    result = gpi_share_take(&driver, exported, imported);
    gpi_driver_leave(&visit);
    if (result == GPUPOOL_OK) return gpi_host_ok(); /* the context is held for the mapping */
    gpi_driver_close(&driver);
    memset(imported, 0, sizeof *imported);
    return result;
}

/* CUDA keeps the addresses while anything is mapped there: once they are gone, all is, though an
   earlier try may have unmapped it. */
static gpupool_result gpi_share_unmap(const gpi_driver *driver, const gpupool_imported *imported) {
    uint64_t address = (uint64_t)(uintptr_t)imported->memory;
    gpupool_result unmapped = gpi_driver_unmap(driver, address, imported->bytes), freed;
    struct gpi_thread why = gpi_thread;
    freed = gpi_driver_told(driver, "cuMemAddressFree",
                            driver->unreserve(address, imported->bytes));
    if (freed == GPUPOOL_OK || unmapped == GPUPOOL_OK) return freed;
    gpi_thread = why;
    return unmapped;
}

gpupool_result gpupool_import_close(gpupool_imported *imported) {
    const char *call = "gpupool_import_close";
    gpi_driver driver;
    gpi_visit visit;
    gpupool_result result;
    gpi_host_begin();
    if (!imported || !imported->memory)
        return gpi_host_fail(GPUPOOL_E_ARGUMENT, "%s: imported is NULL, or closed", call);
    result = gpi_share_open(call, imported->device, &driver, &visit);
    if (result != GPUPOOL_OK) return result;
    if (imported->handle) result = gpi_driver_release(&driver, imported->handle);
    if (result == GPUPOOL_OK) {
        imported->handle = 0; /* the mapping holds the memory */
        result = gpi_share_unmap(&driver, imported);
    }
    gpi_driver_leave(&visit);
    gpi_driver_close(&driver);
    if (result != GPUPOOL_OK) return result;
    driver.release_context(imported->device); /* what gpupool_import held */
    memset(imported, 0, sizeof *imported);
    return gpi_host_ok();
}

/* == SHAPE ====================================================================================
   cudaMalloc's own shape, on default arenas. uses: LIFE and above */

static cudaError_t gpi_shape_error(gpupool_result result) {
    switch (result) {
    case GPUPOOL_OK: return cudaSuccess;
    case GPUPOOL_E_OUT_OF_MEMORY:
    case GPUPOOL_E_HOST_MEMORY: return cudaErrorMemoryAllocation;
    case GPUPOOL_E_CAPTURING: return cudaErrorStreamCaptureUnsupported;
    case GPUPOOL_E_FORKED: return cudaErrorInitializationError;
    case GPUPOOL_E_OVERRUN: return cudaErrorIllegalAddress;
    case GPUPOOL_E_CUDA:
        return gpi_thread.cuda_error ? (cudaError_t)gpi_thread.cuda_error : cudaErrorUnknown;
    case GPUPOOL_E_ARGUMENT:
    case GPUPOOL_E_NOT_OURS:
    case GPUPOOL_E_INSIDE:
    case GPUPOOL_E_DOUBLE_FREE:
    case GPUPOOL_E_CORRUPT:
    case GPUPOOL_E_IN_USE:
    case GPUPOOL_E_TIMEOUT:
    case GPUPOOL_E_UNSUPPORTED:
    case GPUPOOL_E_CALLBACK:
    case GPUPOOL_E_FILE:
    case GPUPOOL_E_ASLEEP:
    default: return cudaErrorInvalidValue;
    }
}

/* Programs ask for CUDA's last error after a call of this shape, too. Only a call of the runtime
   that fails can set it. This one is meant to: on the arena's device, or the current one if there
   is no arena, and in the capture mode in which it ends no capture. */
static cudaError_t gpi_shape_fail(gpupool_arena *arena, cudaError_t error) {
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    gpi_visit visit;
    void *none = NULL;
    if (error != cudaErrorMemoryAllocation && error != cudaErrorInvalidValue) return error;
    if (arena && gpi_driver_enter(&arena->chunks.driver, &visit) != GPUPOOL_OK) return error;
    if (!arena && cudaThreadExchangeStreamCaptureMode(&mode) != cudaSuccess) return error;
    cudaMalloc(error == cudaErrorMemoryAllocation ? &none : NULL, SIZE_MAX);
    if (arena) gpi_driver_leave(&visit);
    else cudaThreadExchangeStreamCaptureMode(&mode);
    return error;
}

/* Whether the unit is of this arena's memory; `live`: whether a live block begins there. The
   process's lock is held, and open meanwhile: the arena stays, whoever ends it. */
static int gpi_shape_visit(gpupool_arena *arena, uint64_t unit, int live) {
    int found;
    if (arena->forks != gpi_process.forks) return 0;
    arena->visitors++;
    gpi_host_unlock(&gpi_process.lock);
    gpi_host_lock(&arena->lock);
    found = live ? gpi_tree_live(&arena->tree, unit) != NULL
                 : gpi_chunk_owns(&arena->chunks, unit);
    gpi_host_unlock(&arena->lock);
    /* after a reset the address may be that of memory which CUDA has given somebody since */
    if (found) found = !gpi_life_was_reset(arena);
    gpi_host_lock(&gpi_process.lock);
    arena->visitors--;
    return found;
}

/* The default arena that this address is of; NULL: none. */
static gpupool_arena *gpi_shape_owner(const void *block) {
    uint64_t unit = (uint64_t)(uintptr_t)block / GPUPOOL_UNIT_BYTES;
    gpupool_arena *owner = NULL;
    int device;
    gpi_host_lock(&gpi_process.lock);
    for (device = 0; device < GPI_DEVICES_MAX && !owner; device++) {
        gpupool_arena *arena = gpi_process.default_arenas[device];
        if (arena && gpi_shape_visit(arena, unit, 0)) owner = arena;
    }
    gpi_host_unlock(&gpi_process.lock);
    return owner;
}

/* The arena, default or not, whose memory an address is in; NULL: none's. */
static gpupool_arena *gpi_shape_any_owner(const void *memory) {
    uint64_t unit = (uint64_t)(uintptr_t)memory / GPUPOOL_UNIT_BYTES;
    gpupool_arena *arena, *owner = NULL;
    gpi_host_lock(&gpi_process.lock);
    for (arena = gpi_process.arenas; arena && !owner; arena = arena->next)
        if (gpi_shape_visit(arena, unit, arena->chunks.source == GPUPOOL_SOURCE_CUSTOM))
            owner = arena;
    gpi_host_unlock(&gpi_process.lock);
    return owner;
}

/* Of an arena that is no default one: at a chunk's start CUDA would take the address for the chunk,
   and free that. A chunk_free may free its chunk, in which no block is live then. */
static int gpi_shape_is_elsewhere(const void *block) {
    if (!gpi_shape_any_owner(block)) return 0;
    gpi_host_fail(GPUPOOL_E_NOT_OURS, "gpupool_cudaFree: %p is of an arena that is no default "
                  "one: gpupool_free is for it", block);
    return 1;
}

/* The default arena of the stream's device, which CUDA takes too, whichever is current: that may
   have none, nor a context, or one that is ended meanwhile. */
static gpupool_arena *gpi_shape_of_stream(cudaStream_t stream) {
    int device = GPUPOOL_DEVICE_CURRENT;
    gpupool_arena *arena = NULL;
    const gpi_driver *driver;
    gpi_driver own;
    CUcontext context;
    if (stream == cudaStreamLegacy || stream == cudaStreamPerThread) /* never 0 here */
        return gpupool_get_default_arena(device);
    if (gpi_host_may_open("gpupool_cudaMallocAsync") != GPUPOOL_OK) return NULL;
    if (gpi_driver_name_device(&device) == GPUPOOL_OK) arena = gpi_life_default(device);
    driver = arena ? &arena->chunks.driver : gpi_driver_ask(&own);
    context = gpi_driver_foreign(driver, stream);
    if (context) device = gpi_driver_device_of(driver, context);
    if (arena) gpi_life_left(arena);
    return gpupool_get_default_arena(device);
}

static cudaError_t gpi_shape_alloc(void **pointer, size_t bytes, const gpi_caller *call) {
    gpupool_arena *arena;
    gpi_request request;
    cudaError_t error;
    if (!pointer) return gpi_shape_fail(NULL, cudaErrorInvalidValue);
    *pointer = NULL;
    if (bytes == 0) return cudaSuccess;
    arena = gpi_shape_of_stream(call->stream);
    memset(&request, 0, sizeof request);
    request.bytes = bytes;
    request.by = *call;
    request.origin = gpi_hand_origin(NULL, 0);
    if (arena)
        *pointer = gpi_hand_alloc(arena, "gpupool_cudaMalloc", &request, GPUPOOL_UNIT_BYTES);
    if (*pointer) return cudaSuccess;
    error = gpi_shape_error(gpi_thread.result);
    if (arena && gpi_thread.result == GPUPOOL_E_ARGUMENT)
        error = cudaErrorMemoryAllocation; /* more than any device has: for CUDA no mistake */
    return gpi_shape_fail(arena, error);
}

static gpi_caller gpi_shape_all(void) { /* by all streams */
    gpi_caller call;
    call.stream = cudaStreamLegacy;
    call.key = GPI_KEY_ANY;
    return call;
}

cudaError_t gpupool_cudaMalloc(void **pointer, size_t bytes) {
    gpi_caller call = gpi_shape_all();
    return gpi_shape_alloc(pointer, bytes, &call);
}

cudaError_t gpupool_cudaMallocAsync(void **pointer, size_t bytes, cudaStream_t stream) {
    gpi_caller call = gpi_arena_call(stream);
    return gpi_shape_alloc(pointer, bytes, &call);
}

cudaError_t gpupool_cudaFree(void *block) {
    gpi_caller call = gpi_shape_all();
    gpupool_arena *arena = block ? gpi_shape_owner(block) : NULL;
    if (!arena && block && gpi_shape_is_elsewhere(block))
        return gpi_shape_fail(NULL, cudaErrorInvalidValue);
    if (!arena) return cudaFree(block);
    return gpi_shape_fail(arena, gpi_shape_error(gpi_hand_free(arena, block, &call)));
}

cudaError_t gpupool_cudaFreeAsync(void *block, cudaStream_t stream) {
    gpupool_arena *arena = block ? gpi_shape_owner(block) : NULL;
    if (!block) return cudaSuccess;
    if (!arena && gpi_shape_is_elsewhere(block))
        return gpi_shape_fail(NULL, cudaErrorInvalidValue);
    if (!arena) return gpi_names_cuda_free_async(block, stream ? stream : cudaStreamLegacy);
    return gpi_shape_fail(arena, gpi_shape_error(gpupool_free(arena, block, stream)));
}

/* == FIGURES ==================================================================================
   Limits, figures, the check: what a caller asks. uses: SHAPE and above */

gpupool_result gpupool_trim(gpupool_arena *arena, size_t keep_bytes, size_t *released_bytes) {
    gpi_visit visit;
    uint64_t before;
    gpupool_result result;
    if (released_bytes) *released_bytes = 0;
    result = gpi_arena_enter_awake(arena, "gpupool_trim", 0, &visit);
    if (result != GPUPOOL_OK) return result;
    gpi_arena_settle(arena);
    before = arena->ledger.reserved.now;
    result = gpi_stitch_trim(&arena->stitches, gpi_ground_max(keep_bytes, arena->keep_bytes));
    if (released_bytes) *released_bytes = (size_t)(before - arena->ledger.reserved.now);
    gpi_arena_trace_number(arena, 't', keep_bytes);
    gpi_arena_leave(arena, &visit);
    if (GPI_READ(&arena->is_untold)) gpi_tag_tell(arena);
    return result == GPUPOOL_OK ? gpi_host_ok() : result;
}

/* -- waits for frees -- */

/* What a stream has cached goes into its list. The arena's lock is held, and opened for a
   moment. */
static void gpi_figures_drain(gpupool_arena *arena, gpi_stream *owner) {
    gpi_host_unlock(&arena->lock);
    gpi_host_lock(&owner->cache.lock);
    gpi_host_lock(&arena->lock);
    gpi_arena_drain(arena, owner);
    gpi_host_unlock(&owner->cache.lock);
}

/* Waits for a mark of the stream, or, where none can be had, for the device. Both locks are held,
   and open meanwhile. */
static gpupool_result gpi_figures_wait_once(gpupool_arena *arena, gpi_stream *owner) {
    gpi_mark *mark = gpi_clock_mark(&arena->clocks, owner, 0);
    uint64_t at = mark ? mark->at : 0;
    gpupool_result result;
    if (mark) mark->pins++;
    gpi_arena_unlock(arena);
    gpi_host_mutex_unlock(&arena->growing);
    result = mark ? gpi_clock_wait(&arena->clocks, owner, mark, at)
                  : gpi_clock_wait_device(&arena->clocks, &arena->chunks.driver);
    gpi_host_mutex_lock(&arena->growing);
    gpi_host_lock(&arena->lock);
    return result;
}

gpupool_result gpupool_wait_stream(gpupool_arena *arena, cudaStream_t stream) {
    gpi_caller call = gpi_arena_call(stream);
    gpi_stream *owner;
    gpi_visit visit;
    uint64_t at;
    gpupool_result result = gpi_arena_begin(arena, "gpupool_wait_stream");
    if (result == GPUPOOL_OK) result = gpi_arena_outlived(arena, "gpupool_wait_stream");
    if (result == GPUPOOL_OK && gpi_clock_find(&arena->clocks, call.key))
        result = gpi_hand_identify(arena, &call);
    if (result == GPUPOOL_OK) result = gpi_arena_enter(arena, "gpupool_wait_stream", &visit);
    if (result != GPUPOOL_OK) return result;
    owner = gpi_clock_find(&arena->clocks, call.key);
    if (owner) owner->refs++;
    if (owner) gpi_figures_drain(arena, owner);
    at = owner ? owner->clock.issued : 0;
    if (owner && owner->capture) result = GPUPOOL_E_CAPTURING;
    while (owner && result == GPUPOOL_OK && at > gpi_clock_done(&arena->clocks, owner)) {
        result = gpi_clock_record(&arena->clocks, owner, call.stream);
        if (result == GPUPOOL_OK) result = gpi_figures_wait_once(arena, owner);
    }
    if (owner) owner->refs--;
    if (owner) gpi_arena_poll_stream(arena, owner);
    gpi_arena_ask_waiting(arena);
    gpi_arena_leave(arena, &visit);
    if (result == GPUPOOL_E_CAPTURING)
        return gpi_host_fail(result, "gpupool_wait_stream: the stream captures, and what it has "
                             "freed is a graph's");
    return result == GPUPOOL_OK ? gpi_host_ok() : result;
}

gpupool_result gpupool_wait_all(gpupool_arena *arena) {
    gpi_visit visit;
    gpupool_result result = gpi_arena_enter(arena, "gpupool_wait_all", &visit);
    if (result != GPUPOOL_OK) return result;
    gpi_arena_empty_all(arena, gpi_arena_pour_out);
    gpi_arena_unlock(arena);
    gpi_host_mutex_unlock(&arena->growing);
    result = gpi_clock_wait_device(&arena->clocks, &arena->chunks.driver);
    gpi_host_mutex_lock(&arena->growing);
    gpi_host_lock(&arena->lock);
    gpi_arena_poll_all(arena);
    gpi_arena_leave(arena, &visit);
    return result == GPUPOOL_OK ? gpi_host_ok() : result;
}

/* -- a block -- */

/* As the program knows the stream with a key; NULL: all streams, or not known. */
static cudaStream_t gpi_figures_stream(uint64_t key) {
    if (key == 0 || key == GPI_KEY_ANY) return NULL;
    if (key == GPI_KEY_LEGACY) return cudaStreamLegacy;
    return key & 1 ? cudaStreamPerThread : (cudaStream_t)(uintptr_t)key;
}

static void gpi_figures_describe(gpupool_arena *arena, const gpi_run *run, gpupool_block *block) {
    memset(block, 0, sizeof *block);
    block->arena = arena;
    block->device = arena->chunks.driver.device;
    block->source = arena->chunks.source;
    block->state = GPUPOOL_STATE_LIVE;
    block->memory = block->block = (void *)(uintptr_t)(run->unit * GPUPOOL_UNIT_BYTES);
    block->bytes = (size_t)(run->units * GPUPOOL_UNIT_BYTES);
    block->requested_bytes = block->block_bytes = (size_t)gpi_arena_asked(run);
    block->stream = gpi_figures_stream(run->by.stream);
#if GPUPOOL_SITES
    block->file = *run->site->file ? run->site->file : NULL;
    block->line = run->site->line;
#endif
    block->tag = (int)gpi_tree_tag(run);
}

/* Where the block around an address begins, which an arena has; or the address itself. */
static const void *gpi_figures_begin(gpupool_arena *arena, const void *memory) {
    uint64_t unit = (uint64_t)(uintptr_t)memory / GPUPOOL_UNIT_BYTES;
    const gpi_run *run = NULL;
    gpi_host_lock(&arena->lock);
    if (gpi_chunk_owns(&arena->chunks, unit)) run = gpi_block_around(arena, unit);
    if (run) memory = (const void *)(uintptr_t)(run->unit * GPUPOOL_UNIT_BYTES);
    gpi_host_unlock(&arena->lock);
    return memory;
}

gpupool_result gpupool_get_block(gpupool_arena *arena, const void *memory, gpupool_block *block) {
    const char *call = "gpupool_get_block";
    gpupool_result result;
    gpi_cache *cache;
    gpi_run *run;
    gpi_host_begin();
    if (block) memset(block, 0, sizeof *block);
    if (!block) return gpi_host_fail(GPUPOOL_E_ARGUMENT, "%s: block is NULL", call);
    if (!arena) arena = gpi_shape_any_owner(memory);
    if (!arena)
        return gpi_host_fail(GPUPOOL_E_NOT_OURS, "%s: %p is in no arena's memory", call, memory);
    result = gpi_arena_begin(arena, call);
    if (result != GPUPOOL_OK) return result;
    run = gpi_block_enter(arena, call, memory, &cache);
    if (!run && gpi_thread.result == GPUPOOL_E_INSIDE) {
        struct gpi_thread why = gpi_thread;
        run = gpi_block_enter(arena, call, gpi_figures_begin(arena, memory), &cache);
        gpi_thread = why;
    }
    if (!run) return gpi_thread.result;
    gpi_figures_describe(arena, run, block);
    gpi_block_leave(arena, cache);
    return block->memory == memory ? gpi_host_ok() : GPUPOOL_E_INSIDE;
}

/* -- limits -- */

static uint64_t gpi_figures_reserved(gpupool_arena *arena) {
    uint64_t bytes;
    gpi_host_lock(&arena->lock);
    bytes = arena->ledger.reserved.now;
    gpi_host_unlock(&arena->lock);
    return bytes;
}

/* A limit that leaves all that is reserved where it is. 0: it does not. The lock is held; of one
   that is lower than before `growing` too, or memory would come that was asked for under the old
   one. */
static int gpi_figures_set_limit(gpupool_arena *arena, uint64_t bytes) {
    if (arena->ledger.reserved.now > bytes) return 0;
    gpi_arena_trace_number(arena, 'l', bytes == UINT64_MAX ? 0 : bytes);
    arena->ledger.limit_bytes = bytes;
    arena->ledger.over_bytes = arena->ledger.reserved.now;
    return 1;
}

static gpupool_result gpi_figures_lower_limit(gpupool_arena *arena, uint64_t bytes) {
    uint64_t before;
    gpi_visit visit;
    gpupool_result result = gpi_arena_enter(arena, "gpupool_set_limit", &visit);
    if (result != GPUPOOL_OK) return result;
    before = arena->ledger.limit_bytes;
    gpi_arena_trace_number(arena, 'l', bytes);
    arena->ledger.limit_bytes = bytes;
    arena->ledger.over_bytes = arena->ledger.reserved.now;
    gpi_arena_settle(arena);
    result = gpi_stitch_trim_below(&arena->stitches, bytes);
    if (result != GPUPOOL_OK && arena->ledger.limit_bytes == bytes) { /* no other was set since */
        gpi_arena_trace_number(arena, 'l', before == UINT64_MAX ? 0 : before);
        arena->ledger.limit_bytes = before;
        arena->ledger.over_bytes = arena->ledger.reserved.now;
    }
    gpi_arena_leave(arena, &visit);
    return result;
}

static gpupool_result gpi_figures_new_limit(gpupool_arena *arena, uint64_t bytes) {
    gpupool_result result = GPUPOOL_OK;
    int is_set;
    gpi_host_lock(&arena->lock);
    is_set = bytes >= arena->ledger.limit_bytes && gpi_figures_set_limit(arena, bytes);
    gpi_host_unlock(&arena->lock);
    if (!is_set) {
        gpi_host_mutex_lock(&arena->growing);
        gpi_host_lock(&arena->lock);
        is_set = gpi_figures_set_limit(arena, bytes);
        gpi_host_unlock(&arena->lock);
        gpi_host_mutex_unlock(&arena->growing);
    }
    if (!is_set) result = gpi_figures_lower_limit(arena, bytes);
    return result == GPUPOOL_OK ? gpi_host_ok() : result;
}

gpupool_result gpupool_set_limit(gpupool_arena *arena, size_t bytes) {
    gpupool_result result = gpi_arena_begin(arena, "gpupool_set_limit");
    if (result == GPUPOOL_OK) result = gpi_arena_outlived(arena, "gpupool_set_limit");
    return result == GPUPOOL_OK ? gpi_figures_new_limit(arena, bytes ? bytes : UINT64_MAX) : result;
}

gpupool_result gpupool_set_limit_text(gpupool_arena *arena, const char *text) {
    const gpi_driver *driver = arena ? &arena->chunks.driver : NULL;
    size_t free_bytes = 0, total_bytes = 0;
    uint64_t bytes = 0;
    gpi_visit visit;
    gpupool_result result = gpi_arena_begin(arena, "gpupool_set_limit_text");
    if (result != GPUPOOL_OK) return result;
    if (!text)
        return gpi_host_fail(GPUPOOL_E_ARGUMENT, "gpupool_set_limit_text: text is NULL");
    result = gpi_driver_enter(driver, &visit);
    if (result != GPUPOOL_OK) return result;
    result = gpi_arena_outlived(arena, "gpupool_set_limit_text");
    if (result == GPUPOOL_OK)
        result = gpi_driver_told(driver, "cuMemGetInfo",
                                 gpi_driver_memory(driver, gpi_figures_reserved(arena), &free_bytes,
                                                   &total_bytes));
    gpi_driver_leave(&visit);
    if (result == GPUPOOL_OK)
        result = gpi_limit_parse("gpupool_set_limit_text", text, total_bytes, free_bytes, &bytes);
    return result == GPUPOOL_OK ? gpi_figures_new_limit(arena, bytes) : result;
}

gpupool_result gpupool_get_limit(gpupool_arena *arena, size_t *out) {
    uint64_t bytes;
    gpupool_result result = gpi_arena_begin(arena, "gpupool_get_limit");
    if (out) *out = 0;
    if (result != GPUPOOL_OK) return result;
    if (!out) return gpi_host_fail(GPUPOOL_E_ARGUMENT, "gpupool_get_limit: bytes is NULL");
    bytes = GPI_READ(&arena->ledger.limit_bytes);
    if (bytes != UINT64_MAX) *out = (size_t)bytes;
    return gpi_host_ok();
}

/* -- what could be had -- */

/* The lock is held. */
static uint64_t gpi_figures_available(const gpupool_arena *arena, uint64_t device_bytes) {
    const gpi_chunks *chunks = &arena->chunks;
    uint64_t limit = arena->ledger.limit_bytes, reserved = arena->ledger.reserved.now;
    uint64_t idle = gpi_chunk_idle_bytes(chunks, &arena->tree), most;
    /* BYPASS: chunks that CUDA has once not taken back, or not waited for at a graph's release.
       What alignment left over of one that a block is in, or a graph keeps, goes to nobody. */
    if (!gpi_chunk_is(chunks, GPI_FROM_POOL))
        return gpi_growth_room(chunks, gpi_ledger_room(&arena->ledger), device_bytes) + idle +
               arena->ledger.pending.now - gpi_verdict_kept_bytes(arena, 1);
    /* an idle chunk may be given back for a larger one */
    most = gpi_growth_room(chunks, limit - gpi_ground_min(limit, reserved - idle),
                           device_bytes + idle);
    return most + gpi_chunk_busy_bytes(chunks, &arena->tree) - arena->ledger.granted.now +
           gpi_arena_asleep_bytes(arena) - gpi_verdict_kept_bytes(arena, 0);
}

gpupool_result gpupool_get_available(gpupool_arena *arena, size_t *bytes) {
    gpi_cached cached;
    size_t free_bytes = 0, total_bytes = 0;
    gpi_siblings siblings;
    gpi_visit visit;
    uint64_t most;
    gpupool_result result = gpi_arena_begin(arena, "gpupool_get_available");
    if (bytes) *bytes = 0;
    if (result != GPUPOOL_OK) return result;
    if (!bytes) return gpi_host_fail(GPUPOOL_E_ARGUMENT, "gpupool_get_available: bytes is NULL");
    result = gpi_arena_is_awake(arena, "gpupool_get_available", 0);
    if (result != GPUPOOL_OK) return result;
    gpi_sibling_count(arena, 1, &siblings);
    result = gpi_driver_enter(&arena->chunks.driver, &visit);
    if (result != GPUPOOL_OK) return result;
    result = gpi_arena_outlived(arena, "gpupool_get_available");
    if (result == GPUPOOL_OK)
        gpi_driver_memory(&arena->chunks.driver, gpi_figures_reserved(arena), &free_bytes,
                          &total_bytes); /* or 0 */
    gpi_driver_leave(&visit);
    if (result != GPUPOOL_OK) return result;
    most = free_bytes + siblings.idle_bytes;
    if (gpi_chunk_is(&arena->chunks, GPI_FROM_HOST)) most = UINT64_MAX / 2;
    gpi_arena_fold(arena, &cached);
    most = gpi_figures_available(arena, most);
    gpi_host_unlock(&arena->lock);
    most -= gpi_ground_min(most, GPI_GUARD * GPUPOOL_UNIT_BYTES);
    *bytes = (size_t)gpi_ground_min(most, (uint64_t)1 << GPI_MOST_SHIFT);
    return gpi_host_ok();
}

/* The table run dry; both locks are held on entry, `growing` on return. */
static int gpi_figures_would_fit(gpupool_arena *arena, const gpi_request *request,
                                 const gpi_siblings *siblings, gpupool_verdict *verdict) {
    gpi_wish wish = {GPI_PENDING_MARKED, 0, NULL, 0};
    gpi_scene scene;
    uint64_t lent = siblings->idle_bytes / GPUPOOL_UNIT_BYTES;
    int fits = 0;
    gpi_arena_unlock(arena);
    gpi_verdict_begin(arena, request, siblings, verdict, &scene);
    scene.device_units = gpi_ground_min(scene.device_units, UINT64_MAX / GPUPOOL_UNIT_BYTES - lent);
    scene.device_units += lent;
    if (scene.units) fits = gpi_verdict_lacks(&scene, &wish) == 0;
    else scene.units = (uint64_t)1 << GPI_MOST_SHIFT; /* gpupool_alloc takes no such size */
    if (!fits) gpi_verdict_judge(verdict, &scene);
    gpi_verdict_end(&scene);
    return fits;
}

gpupool_result gpupool_would_fit(gpupool_arena *arena, size_t bytes, gpupool_verdict *why) {
    gpupool_verdict verdict;
    gpi_siblings siblings;
    gpi_request request;
    gpi_visit visit;
    int fits;
    gpupool_result result = gpi_arena_begin(arena, "gpupool_would_fit");
    if (why) memset(why, 0, sizeof *why);
    if (result != GPUPOOL_OK) return result;
    if (!bytes) return gpi_host_fail(GPUPOOL_E_ARGUMENT, "gpupool_would_fit: bytes is 0");
    gpi_sibling_count(arena, bytes, &siblings);
    result = gpi_arena_enter_awake(arena, "gpupool_would_fit", 0, &visit);
    if (result != GPUPOOL_OK) return result;
    memset(&request, 0, sizeof request);
    request.bytes = bytes;
    request.units = gpi_verdict_units(bytes);
    request.align_units = 1;
    gpi_arena_ask(arena);
    fits = gpi_figures_would_fit(arena, &request, &siblings, &verdict);
    gpi_host_lock(&arena->lock);
    gpi_arena_leave(arena, &visit);
    if (why) *why = verdict;
    if (fits) return gpi_host_ok();
    return gpi_host_fail(GPUPOOL_E_OUT_OF_MEMORY, "arena \"%s\": %s", arena->name,
                         verdict.sentence);
}

gpupool_result gpupool_last_verdict(gpupool_verdict *verdict) {
    if (!verdict) return gpi_host_fail(GPUPOOL_E_ARGUMENT, "gpupool_last_verdict: verdict is NULL");
    *verdict = gpi_thread.verdict;
    return GPUPOOL_OK;
}

/* -- statistics -- */

/* The arena's whole life; what caches have counted is in the ledger. The lock is held. */
static void gpi_figures_read(gpupool_arena *arena, const gpi_cached *cached,
                             gpupool_stats *stats) {
    const gpi_ledger *ledger = &arena->ledger;
    const gpi_scope *scope;
    int order;
    memset(stats, 0, sizeof *stats);
    stats->struct_bytes = sizeof *stats;
    gpi_ledger_read(ledger, stats);
    if (!GPUPOOL_STATS) stats->blocks.now = arena->tree.live_runs - cached->blocks;
    stats->allocs = arena->ledger.allocs;
    stats->frees = arena->ledger.frees;
    stats->failures = arena->ledger.failures;
    stats->same_stream_allocs = arena->ledger.same_stream_allocs;
    stats->splits = arena->tree.splits;
    stats->merges = arena->tree.merges;
    stats->chunks_gained = arena->chunks.gained;
    stats->chunks_lost = arena->chunks.lost;
    stats->stitches = arena->stitches.made;
    stats->stitches_reused = arena->stitches.reused;
    stats->fence_waits = arena->clocks.device_waits;
    stats->host_syncs = arena->clocks.host_waits;
    stats->limit_bytes = ledger->limit_bytes == UINT64_MAX ? 0 : ledger->limit_bytes;
    stats->largest_free_bytes = gpi_verdict_longest_run(arena, GPI_LIST_ANY);
    stats->largest_block_bytes = gpi_verdict_largest(arena, GPI_LIST_ANY);
    stats->stitched_bytes = arena->stitches.used_units * GPUPOOL_UNIT_BYTES;
    stats->asleep_bytes = ledger->away_bytes;
    stats->backup_bytes = arena->sleep.backup_bytes;
    stats->host_bytes = sizeof *arena + arena->tree.host_bytes + arena->chunks.host_bytes +
                        arena->stitches.host_bytes + gpi_clock_host_bytes(&arena->clocks) +
                        arena->captures * sizeof(gpupool_capture);
    for (scope = ledger->scopes; scope; scope = scope->outer) stats->host_bytes += sizeof *scope;
#if GPUPOOL_SITES
    stats->host_bytes += ledger->site_count * sizeof(gpi_site);
#endif
    for (order = 0; order < GPUPOOL_ORDERS; order++) {
        stats->live_by_order[order] = arena->tree.live_by_order[order];
        if (GPUPOOL_STATS) stats->live_by_order[order] -= cached->by_order[order];
        stats->free_by_order[order] = arena->tree.free_by_order[order] + cached->by_order[order];
    }
}

gpupool_result gpupool_get_stats(gpupool_arena *arena, gpupool_stats *stats) {
    gpi_cached cached;
    gpupool_result result = gpi_arena_begin(arena, "gpupool_get_stats");
    if (result != GPUPOOL_OK) return result;
    if (!stats) return gpi_host_fail(GPUPOOL_E_ARGUMENT, "gpupool_get_stats: stats is NULL");
    gpi_arena_fold(arena, &cached);
    gpi_figures_read(arena, &cached, stats);
    gpi_host_unlock(&arena->lock);
    return gpi_host_ok();
}

/* Growth goes by the most that was ever granted, whatever becomes of the counter's peak. */
static void gpi_figures_keep_peak(gpupool_arena *arena) {
    arena->granted_most = gpi_ground_max(arena->granted_most, arena->ledger.granted.peak);
}

gpupool_result gpupool_reset_peaks(gpupool_arena *arena) {
    gpi_cached cached;
    gpupool_result result = gpi_arena_begin(arena, "gpupool_reset_peaks");
    if (result != GPUPOOL_OK) return result;
    gpi_arena_fold(arena, &cached);
    gpi_figures_keep_peak(arena);
    gpi_ledger_reset_peaks(&arena->ledger);
    gpi_host_unlock(&arena->lock);
    return gpi_host_ok();
}

static gpupool_result gpi_figures_none(const char *call) {
    return gpi_host_fail(GPUPOOL_E_UNSUPPORTED, "%s: this build keeps no statistics "
                         "(GPUPOOL_STATS is 0)", call);
}

gpupool_result gpupool_begin_phase(gpupool_arena *arena) {
    gpupool_stats before;
    gpi_cached cached;
    gpi_scope *scope;
    gpupool_result result = gpi_arena_begin(arena, "gpupool_begin_phase");
    if (result != GPUPOOL_OK) return result;
    if (!GPUPOOL_STATS) return gpi_figures_none("gpupool_begin_phase");
    scope = (gpi_scope *)gpi_host_zeroed(sizeof *scope);
    if (!scope) return gpi_host_no_memory();
    gpi_arena_fold(arena, &cached);
    gpi_figures_keep_peak(arena);
    gpi_figures_read(arena, &cached, &before);
    gpi_ledger_push(&arena->ledger, scope, &before);
    gpi_host_unlock(&arena->lock);
    return gpi_host_ok();
}

gpupool_result gpupool_end_phase(gpupool_arena *arena, gpupool_stats *stats) {
    gpi_scope *scope = NULL;
    gpupool_stats inner;
    gpi_cached cached;
    gpupool_result result = gpi_arena_begin(arena, "gpupool_end_phase");
    if (result != GPUPOOL_OK) return result;
    if (!GPUPOOL_STATS) return gpi_figures_none("gpupool_end_phase");
    memset(&inner, 0, sizeof inner);
    gpi_arena_fold(arena, &cached);
    gpi_figures_keep_peak(arena);
    if (arena->ledger.scopes) {
        gpi_figures_read(arena, &cached, &inner);
        scope = gpi_ledger_pop(&arena->ledger, &inner);
    }
    gpi_host_unlock(&arena->lock);
    if (!scope)
        return gpi_host_fail(GPUPOOL_E_ARGUMENT, "gpupool_end_phase: arena \"%s\" is in no phase: "
                             "each end needs a begin before it", arena->name);
    if (stats) *stats = inner;
    GPUPOOL_FREE(scope);
    return gpi_host_ok();
}

gpupool_result gpupool_check(gpupool_arena *arena) {
    gpupool_result result;
    char letter = 0;
    int broken;
    gpi_host_begin();
    result = gpi_arena_exists(arena, "gpupool_check");
    if (result != GPUPOOL_OK) return result;
    gpi_host_mutex_lock(&arena->growing);
    broken = gpi_arena_check_all(arena, &letter);
    gpi_host_mutex_unlock(&arena->growing);
    if (!broken) return gpi_host_ok();
    return gpi_host_fail(GPUPOOL_E_CORRUPT,
                         "gpupool_check: invariant %c%d of arena \"%s\" is broken", letter,
                         broken, arena->name);
}

/* == STAGE ====================================================================================
   The ring's memory: equal slots side by side, pinned from the lowest on, one at a time, when there
   is need. uses: GROUND, HOST, DRIVER, LEDGER

   FREE     nobody's
   HELD     a span's; or of a copy that nothing but a wait for the device tells the end of
   FILLING  a thread's, which copies between the host and the slot, or waits for the device
   FLYING   the device copies out of it; the event behind the copy tells the end

       up    FREE -> FILLING -> FLYING -> FREE
       down  FREE -> FILLING -> FREE
       span  FREE -> HELD -> FLYING -> FREE

   A span may take several neighbours, a run. The first slot speaks for all of them.

   R1  what is not free lies below top, and top lies within the pinned slots
   R2  the first slot of a run has the run's length, the others have 0 and the same state
   R3  used.now is the bytes of the slots that are not free
   R4  flying counts the runs that fly */

typedef enum gpi_stage_state {
    GPI_STAGE_FREE,
    GPI_STAGE_HELD,
    GPI_STAGE_FILLING,
    GPI_STAGE_FLYING
} gpi_stage_state;

typedef struct gpi_stage_slot {
    gpi_stage_state state;
    cudaEvent_t event;         /* NULL: not made yet */
    uint64_t run;              /* slots */
    uint64_t offset, length;   /* the part of the transfer */
    uint64_t skip;             /* bytes in the slot before that part */
    uint64_t flight;           /* its number */
    uint64_t key;              /* of the stream it flies on */
    uint64_t span, holder;     /* HELD: number of the span, and of the thread; 0: no span */
} gpi_stage_slot;

/* How many of something go on, and how long any of them has. */
typedef struct gpi_stage_clock {
    uint64_t now, since_ns, ns;
} gpi_stage_clock;

typedef struct gpi_stage {
    gpi_lock lock;             /* the whole ring's */
    gpi_driver driver;
    gpi_pages pages;
    gpi_stage_slot *slots;
    uint64_t count, slot_bytes, pinned_slots;
    uint64_t top;              /* one past the highest slot that is not free */
    gpupool_counter pinned, used;
    int pinning, polling;      /* one thread is at it */
    uint64_t refused_ns;       /* when pinning last failed; 0: it did not */
    uint64_t pin_ns, pin_failures;
    uint64_t flights;
    gpi_stage_clock flying;
    unsigned news;             /* rises when a thread without work might find some */
} gpi_stage;

enum { GPI_STAGE_REFUSED_NS = 100000000 }; /* before pinning is tried again */

static int gpi_stage_flies(const gpi_stage_slot *slot) {
    return slot->state == GPI_STAGE_FLYING && slot->run > 0;
}

/* Number of the broken invariant; 0 if all hold. */
static int gpi_stage_check(const gpi_stage *stage) {
    uint64_t run = 0, used = 0, flying = 0, at;
    const gpi_stage_slot *slot = stage->slots;
    if (stage->top > stage->pinned_slots || stage->pinned_slots > stage->count) return 1;
    if (stage->top && slot[stage->top - 1].state == GPI_STAGE_FREE) return 1;
    for (at = 0; at < stage->pinned_slots; at++, slot++) {
        int is_free = slot->state == GPI_STAGE_FREE;
        if (at >= stage->top && !is_free) return 1;
        if (run ? slot->run || slot->state != slot[-1].state : !is_free && !slot->run) return 2;
        if (!run && !is_free) run = slot->run;
        if (gpi_stage_flies(slot) && (!slot->event || slot->flight > stage->flights)) return 4;
        flying += (uint64_t)gpi_stage_flies(slot);
        if (!is_free) used += stage->slot_bytes;
        if (run) run--;
    }
    if (run) return 2;
    if (used != stage->used.now) return 3;
    return flying == stage->flying.now ? 0 : 4;
}

static void gpi_stage_begin(gpi_stage_clock *clock) {
    if (clock->now++ == 0) clock->since_ns = gpi_host_now_ns();
}

static void gpi_stage_end(gpi_stage_clock *clock) {
    if (--clock->now == 0) clock->ns += gpi_host_now_ns() - clock->since_ns;
}

static uint64_t gpi_stage_ns(const gpi_stage_clock *clock, uint64_t now_ns) {
    return clock->ns + (clock->now ? now_ns - clock->since_ns : 0);
}

static void gpi_stage_tell(gpi_stage *stage) { GPI_PUBLISH(&stage->news, stage->news + 1); }

static unsigned char *gpi_stage_memory(const gpi_stage *stage, const gpi_stage_slot *slot) {
    return stage->pages.memory + (uint64_t)(slot - stage->slots) * stage->slot_bytes + slot->skip;
}

/* ---- slots: the lock is held ---- */

static void gpi_stage_set(gpi_stage_slot *slot, gpi_stage_state state) {
    uint64_t i;
    for (i = 0; i < slot->run; i++) slot[i].state = state;
}

/* The lowest run of free slots: what was used last is still in the processor's caches, and as
   little is pinned as goes. NULL: there is none for now. */
static gpi_stage_slot *gpi_stage_take(gpi_stage *stage, uint64_t run) {
    uint64_t end = gpi_ground_min(stage->pinned_slots, stage->top + run), first = 0, at, i;
    gpi_stage_slot *slot;
    for (at = 0; at < end && at - first < run; at++)
        if (stage->slots[at].state != GPI_STAGE_FREE) first = at + 1;
    if (at - first < run) return NULL;
    slot = &stage->slots[first];
    for (i = 1; i < run; i++) slot[i].run = 0;
    slot->run = run;
    slot->offset = slot->length = slot->skip = slot->span = slot->holder = 0;
    gpi_stage_set(slot, GPI_STAGE_FILLING);
    stage->top = gpi_ground_max(stage->top, first + run);
    gpi_ledger_add(&stage->used, run * stage->slot_bytes);
    return slot;
}

static void gpi_stage_free(gpi_stage *stage, gpi_stage_slot *slot) {
    gpi_ledger_sub(&stage->used, slot->run * stage->slot_bytes);
    gpi_stage_set(slot, GPI_STAGE_FREE);
    while (stage->top && stage->slots[stage->top - 1].state == GPI_STAGE_FREE) stage->top--;
    gpi_stage_tell(stage);
}

/* The copy is queued, and the event behind it. */
static void gpi_stage_fly(gpi_stage *stage, gpi_stage_slot *slot) {
    gpi_stage_set(slot, GPI_STAGE_FLYING);
    slot->flight = ++stage->flights;
    gpi_stage_begin(&stage->flying);
}

/* Bytes on their way on this stream. */
static uint64_t gpi_stage_flown(const gpi_stage *stage, uint64_t key) {
    uint64_t bytes = 0, i;
    for (i = 0; i < stage->top; i++)
        if (gpi_stage_flies(&stage->slots[i]) && stage->slots[i].key == key)
            bytes += stage->slots[i].length;
    return bytes;
}

/* Frees what has landed, one thread at a time, with the lock open while CUDA is asked. Where one
   flight of a stream is not over, no later one is asked after: so however many streams stand still,
   the others' slots come free. 1: some have. */
static int gpi_stage_poll(gpi_stage *stage, gpupool_result *result) {
    uint64_t i, busy_key = 0, busy = UINT64_MAX;
    int landed = 0;
    if (stage->polling || !stage->flying.now) return 0;
    stage->polling = 1;
    for (i = 0; i < stage->top; i++) {
        gpi_stage_slot *slot = &stage->slots[i];
        gpupool_result said;
        int passed;
        if (!gpi_stage_flies(slot) || (slot->key == busy_key && slot->flight > busy)) continue;
        gpi_host_unlock(&stage->lock);
        said = gpi_driver_event_query(&stage->driver, slot->event, &passed);
        gpi_host_lock(&stage->lock);
        if (said != GPUPOOL_OK) *result = said;
        if (passed) {
            gpi_stage_end(&stage->flying);
            gpi_stage_free(stage, slot);
            landed = 1;
        } else {
            busy_key = slot->key;
            busy = slot->flight;
        }
    }
    stage->polling = 0;
    return landed;
}

/* ---- pinning: the lock is open meanwhile ---- */

/* Pins one slot more, unless all are, another thread is at it, or the host refused just now. 1: it
   did. */
static int gpi_stage_pin(gpi_stage *stage) {
    uint64_t start = gpi_host_now_ns(), at = stage->pinned_slots * stage->slot_bytes;
    uint64_t all = stage->count * stage->slot_bytes; /* and behind it, the slots' records */
    gpupool_result result = GPUPOOL_OK;
    if (stage->pinning || stage->pinned_slots == stage->count) return 0;
    if (stage->refused_ns && start - stage->refused_ns <= GPI_STAGE_REFUSED_NS) return 0;
    stage->pinning = 1;
    gpi_host_unlock(&stage->lock);
    if (!stage->pages.memory &&
        !gpi_host_pages_get(&stage->pages, all, stage->count * sizeof *stage->slots))
        result = gpi_host_fail(GPUPOOL_E_HOST_MEMORY, "the host has no memory for the ring");
    if (result == GPUPOOL_OK)
        result = gpi_driver_pin(&stage->driver, stage->pages.memory + at, stage->slot_bytes);
    gpi_host_lock(&stage->lock);
    stage->pinning = 0;
    stage->pin_ns += gpi_host_now_ns() - start;
    stage->refused_ns = result == GPUPOOL_OK ? 0 : gpi_host_now_ns();
    stage->pin_failures += result != GPUPOOL_OK;
    if (result != GPUPOOL_OK) return 0;
    if (!stage->slots) stage->slots = (gpi_stage_slot *)(void *)(stage->pages.memory + all);
    stage->pinned_slots++;
    gpi_ledger_add(&stage->pinned, stage->slot_bytes);
    return 1;
}

/* Unpins the uppermost slot, if it is free. 0: it is not, or CUDA says no. */
static int gpi_stage_unpin(gpi_stage *stage, gpupool_result *result) {
    uint64_t bytes = stage->slot_bytes, at = (stage->pinned_slots - 1) * bytes;
    if (stage->pinning || stage->pinned_slots == stage->top) return 0;
    stage->pinning = 1;
    stage->pinned_slots--; /* nobody takes it any more */
    gpi_host_unlock(&stage->lock);
    *result = gpi_driver_unpin(&stage->driver, stage->pages.memory + at);
    if (*result == GPUPOOL_OK) gpi_host_pages_empty(&stage->pages, at, bytes);
    gpi_host_lock(&stage->lock);
    stage->pinning = 0;
    if (*result == GPUPOOL_OK) gpi_ledger_sub(&stage->pinned, bytes);
    else stage->pinned_slots++;
    return *result == GPUPOOL_OK;
}

/* Gives all to the driver that is its own; what it does not take back stays. Nothing flies. What is
   held is no span, and over when the device is idle. */
static gpupool_result gpi_stage_close(gpi_stage *stage) {
    gpupool_result result = stage->top ? gpi_driver_wait(&stage->driver) : GPUPOOL_OK;
    uint64_t i, ever = stage->pinned.peak / stage->slot_bytes;
    for (i = 0; i < stage->top && result == GPUPOOL_OK; i++)
        if (stage->slots[i].state == GPI_STAGE_HELD && stage->slots[i].run)
            gpi_stage_free(stage, &stage->slots[i]);
    while (result == GPUPOOL_OK && gpi_stage_unpin(stage, &result)) {}
    for (i = 0; i < ever && result == GPUPOOL_OK; i++)
        result = gpi_driver_forget(&stage->driver, &stage->slots[i].event);
    return result;
}

/* == RING =====================================================================================
   Transfers between ordinary host memory, or a file, and the device, through the slots of STAGE.
   uses: GROUND, HOST, DRIVER, LEDGER, STAGE

   A transfer has a ticket, and a cursor: where its next chunk begins. Who works for it takes a slot
   and the next chunk, copies between the host's side and the slot, and has the device copy between
   the slot and its memory. The order of chunks does not matter, so nobody waits for anybody.
   Workers take the next chunk of the first transfer in the list that has one. A call that waits
   for its ticket works for it too.

   An upload that is waited for is queued on the caller's stream, and over once all of it is queued.
   All others are gated: they run on a stream of the ring's own, and take no slot before the work
   that came before them on the caller's stream is done. What they hold always comes free. What the
   former hold may be stuck, behind a stream that waits for something that this thread has yet to
   do. Hence nobody waits for a slot for ever: a transfer that gets none for a while goes on by
   CUDA's own staging.

   To read first: gpi_ring_post, gpi_ring_step, gpi_ring_wait, gpi_ring_worker_loop.

   R5  a transfer's cursor is at most its bytes
   R6  tickets rise along the list of transfers, and are at most the last that was given out */

enum {
    GPI_RING_TINY = 16 << 10,        /* an upload up to here is cheapest by CUDA's own staging */
    GPI_RING_SMALL = 64 << 10,       /* so is a download; no such upload waits for the stream */
    GPI_RING_LEAST = 128 << 10,      /* the smallest chunk of a larger transfer */
    GPI_RING_HELP = 2 << 20,         /* from here on the workers help */
    GPI_RING_UNSTAGED = 256 << 10,   /* a step by CUDA's own staging */
    GPI_RING_AHEAD = 24 << 20,       /* in flight of a stream: 0.5 ms of the link */
    GPI_RING_PATIENCE_NS = 10000000, /* without a slot, before the first such step */
    GPI_RING_WORKERS_MOST = 64,
    GPI_RING_WORKERS = 11,           /* where the program does not say how many */
    GPI_RING_HANDS = 9,              /* workers for a transfer that is alone */
    GPI_RING_ROW = 16,               /* chunks that a thread downloads before it looks around */
    GPI_RING_FAILURES = 64,          /* failed tickets that are remembered */
    GPI_RING_SPIN = 512,             /* rounds, some 100 us, before a thread sleeps */
    GPI_RING_SLEEP_NS = 20000,       /* the first sleep; each is so much longer than the last */
    GPI_RING_LOOK_NS = 5000000,      /* the longest beside transfers */
    GPI_RING_LEAVE_NS = 1000000000   /* without work, before a worker ends */
};

typedef struct gpi_transfer {
    struct gpi_transfer *next;
    const char *call;
    const gpi_driver *driver;        /* the ring's */
    int down;
    unsigned char *device, *host;
    uint64_t device_pitch, host_pitch, width, bytes; /* bytes: of all rows */
    gpupool_read_fn reader;
    gpupool_write_fn writer;
    void *user;
    gpi_file file;                   /* read if is_file */
    int is_file;
    uint64_t place;                  /* where in the file it begins */
    cudaStream_t stream;
    cudaEvent_t event;               /* behind what came before it, then behind its last chunk */
    int gated;                       /* the event has not passed yet */
    int lands;                       /* its last chunk's event is yet to be recorded */
    int by_cuda;                     /* CUDA itself copies: only its end is waited for */
    uint64_t cursor;
    int working;                     /* threads at it */
    gpupool_ticket ticket;
    uint64_t stalled_ns;             /* since when there was no slot for it; 0: there was */
    gpupool_result result;
    char text[200];
} gpi_transfer;

typedef struct gpi_failure {
    gpupool_ticket ticket;
    gpupool_result result;
    char text[200];
} gpi_failure;

typedef struct gpi_hand {            /* a worker */
    gpi_worker worker;
    gpupool_ring *ring;
    int started, running;            /* started: to be joined */
} gpi_hand;

struct gpupool_ring {
    gpi_stage stage;
    int forks;
    gpi_transfer *transfers;         /* in order of arrival */
    gpi_transfer *spare;             /* records to use again, with their events */
    gpupool_ticket tickets, forgotten; /* the last given out; of failures forgotten, the highest */
    gpi_failure failures[GPI_RING_FAILURES];
    uint64_t failure_count;
    cudaStream_t lists[2];           /* the ring's own streams, up and down; or one for both */
    uint64_t spans, held, span_bytes;
    gpi_hand hands[GPI_RING_WORKERS_MOST];
    int workers_wanted, workers_running, stopping;
    gpi_stage_clock under_way[2];    /* transfers through the ring */
    gpi_stage_clock arriving;        /* chunks that the device copies to the host */
    gpupool_ring_stats stats;        /* what is only ever added to */
};

/* Number of the broken invariant; 0 if all hold. */
static int gpi_ring_check(const gpupool_ring *ring) {
    const gpi_transfer *transfer = ring->transfers;
    gpupool_ticket last = 0;
    int broken = gpi_stage_check(&ring->stage);
    for (; transfer && !broken; transfer = transfer->next) {
        if (transfer->cursor > transfer->bytes || transfer->working < 0) broken = 5;
        if (transfer->ticket <= last || transfer->ticket > ring->tickets) broken = 6;
        last = transfer->ticket;
    }
    return broken;
}

static void gpi_ring_lock(gpupool_ring *ring) {
    gpi_host_lock(&ring->stage.lock);
    GPI_ASSERT(GPUPOOL_CHECK < 2 || gpi_ring_check(ring) == 0);
}

static void gpi_ring_unlock(gpupool_ring *ring) {
    GPI_ASSERT(GPUPOOL_CHECK < 2 || gpi_ring_check(ring) == 0);
    gpi_host_unlock(&ring->stage.lock);
}

static gpupool_result gpi_ring_exists(const gpupool_ring *ring, const char *call) {
    gpi_host_begin();
    if (!ring) return gpi_host_fail(GPUPOOL_E_ARGUMENT, "%s: the ring is NULL", call);
    if (ring->forks == gpi_process.forks) return gpi_host_ok();
    return gpi_host_fail(GPUPOOL_E_FORKED, "%s: this process is a fork of the one that made the "
                         "ring, and has no CUDA context", call);
}

/* Public calls that come near the driver begin here, with the lock, and end with leave. */
static gpupool_result gpi_ring_enter(gpupool_ring *ring, const char *call, gpi_visit *visit) {
    int reset = 0;
    gpupool_result result = gpi_ring_exists(ring, call);
    if (result == GPUPOOL_OK) result = gpi_driver_enter(&ring->stage.driver, visit);
    if (result != GPUPOOL_OK) return result;
    result = gpi_driver_was_reset(&ring->stage.driver, &reset);
    if (result == GPUPOOL_OK && reset)
        result = gpi_host_fail(GPUPOOL_E_CUDA, "%s: device %d was reset since the ring was made: "
                               "its streams and events are gone, only gpupool_ring_destroy is left",
                               call, ring->stage.driver.device);
    if (result == GPUPOOL_OK) gpi_ring_lock(ring);
    else gpi_driver_leave(visit);
    return result;
}

static gpupool_result gpi_ring_leave(gpupool_ring *ring, const gpi_visit *visit,
                                     gpupool_result result) {
    gpi_ring_unlock(ring);
    gpi_driver_leave(visit);
    return result == GPUPOOL_OK ? gpi_host_ok() : result;
}

/* ---- a transfer's bytes: without the lock ---- */

/* Between the host's memory and the ring's. A download's are not read soon, and go past the
   processor's caches; an upload's are, by the device. */
static void gpi_ring_move_rows(const gpi_transfer *transfer, unsigned char *memory, uint64_t at,
                               uint64_t bytes) {
    while (bytes > 0) {
        uint64_t column = at % transfer->width;
        uint64_t part = gpi_ground_min(bytes, transfer->width - column);
        unsigned char *host = transfer->host + at / transfer->width * transfer->host_pitch + column;
        if (!transfer->down) memcpy(memory, host, (size_t)part);
        else if (transfer->bytes < GPI_RING_HELP) memcpy(host, memory, (size_t)part);
        else gpi_host_copy_away(host, memory, part);
        memory += part;
        at += part;
        bytes -= part;
    }
}

/* The same, or by the caller's function, or out of a file. */
static gpupool_result gpi_ring_move(const gpupool_ring *ring, const gpi_transfer *transfer,
                                    unsigned char *memory, uint64_t at, uint64_t bytes) {
    int said = 0;
    if (transfer->is_file)
        return gpi_host_file_read(&transfer->file, memory, transfer->place + at, bytes);
    if (transfer->reader) said = transfer->reader(memory, (size_t)bytes, at, transfer->user);
    else if (transfer->writer) said = transfer->writer(memory, (size_t)bytes, at, transfer->user);
    else gpi_ring_move_rows(transfer, memory, at, bytes);
    if (transfer->reader || transfer->writer) gpi_driver_come_back(&ring->stage.driver);
    if (!said) return GPUPOOL_OK;
    return gpi_host_fail(GPUPOOL_E_CALLBACK, "your %s function returned %d at byte %" PRIu64,
                         transfer->reader ? "read" : "write", said, at);
}

/* Queues the copy between the device and the host's memory, where rows are a pitch apart. */
static gpupool_result gpi_ring_queue(const gpi_transfer *transfer, unsigned char *memory,
                                     uint64_t pitch, uint64_t at, uint64_t bytes) {
    uint64_t column = at % transfer->width;
    unsigned char *device =
        transfer->device + at / transfer->width * transfer->device_pitch + column;
    gpi_copy copy;
    copy.rows = column + bytes > transfer->width ? bytes / transfer->width : 1;
    copy.width = bytes / copy.rows;
    copy.to = transfer->down ? memory : device;
    copy.from = transfer->down ? device : memory;
    copy.to_pitch = transfer->down ? pitch : transfer->device_pitch;
    copy.from_pitch = transfer->down ? transfer->device_pitch : pitch;
    return gpi_driver_copy(transfer->driver, &copy, transfer->stream, NULL);
}

/* By which a stream is known: to each thread cudaStreamPerThread is another one. */
static uint64_t gpi_ring_key(cudaStream_t stream) {
    if (stream == cudaStreamPerThread) return gpi_host_thread_number() << 1 | 1;
    return (uint64_t)(uintptr_t)stream;
}

/* Queues a slot's copy, or a span's, which CUDA takes from one registered slot at a time; and the
   event behind. *lost is set where something was queued, the call has
   failed, and that is not known to be over. */
static gpupool_result gpi_ring_send(const gpupool_ring *ring, gpi_stage_slot *slot,
                                    const gpi_transfer *transfer, int *lost) {
    const gpi_driver *driver = &ring->stage.driver;
    unsigned char *memory = gpi_stage_memory(&ring->stage, slot);
    uint64_t done = 0, part;
    gpupool_result result = GPUPOOL_OK;
    for (*lost = 0; done < slot->length && result == GPUPOOL_OK; done += part) {
        part = gpi_ground_min(slot->length - done, ring->stage.slot_bytes);
        result = gpi_ring_queue(transfer, memory + done, transfer->width, slot->offset + done,
                                part);
        if (result == GPUPOOL_OK) *lost = 1;
    }
    slot->key = gpi_ring_key(transfer->stream);
    if (result == GPUPOOL_OK) result = gpi_driver_record(driver, &slot->event, transfer->stream);
    if (*lost)
        *lost = result != GPUPOOL_OK && driver->stream_sync(transfer->stream) != CUDA_SUCCESS;
    return result;
}

/* ---- chunks: the lock is held on entry and exit, and open while bytes or calls are made ---- */

static void gpi_ring_fail(gpi_transfer *transfer, gpupool_result result) {
    if (result == GPUPOOL_OK || transfer->result != GPUPOOL_OK) return; /* the first says why */
    transfer->result = result;
    memcpy(transfer->text, gpi_thread.draft, sizeof transfer->text - 1);
}

static int gpi_ring_has_more(const gpi_transfer *transfer) {
    return transfer->cursor < transfer->bytes && transfer->result == GPUPOOL_OK;
}

static int gpi_ring_is_over(const gpi_transfer *transfer) {
    return !transfer->gated && !transfer->lands && !transfer->working &&
           !gpi_ring_has_more(transfer);
}

/* Bytes of the next chunk. Small at first, so that the device starts early; and at the end, so that
   all threads are done at the same time. Whole rows, or a part of one. Of a file, to the end of a
   page: whole pages can be read past the page cache, into a slot that begins as the page does. */
static uint64_t gpi_ring_chunk(const gpupool_ring *ring, const gpi_transfer *transfer,
                               uint64_t most) {
    uint64_t left = transfer->bytes - transfer->cursor, width = transfer->width;
    uint64_t threads = (uint64_t)ring->workers_running + 1, column = transfer->cursor % width;
    most = gpi_ground_min(most, ring->stage.slot_bytes);
    most = gpi_ground_min(most, gpi_ground_max(transfer->cursor / threads, GPI_RING_LEAST * 2));
    most = gpi_ground_min(most, gpi_ground_max(left / (2 * threads), GPI_RING_LEAST));
    most = gpi_ground_up(most, GPI_PAGE_BYTES); /* no more than a slot, which is whole pages */
    if (transfer->is_file) most -= (transfer->place + transfer->cursor) % GPI_PAGE_BYTES;
    if (width == transfer->bytes) return gpi_ground_min(most, left);
    if (column || width > most) return gpi_ground_min(most, width - column);
    return gpi_ground_min(most / width * width, left);
}

/* Slots side by side, if asking after what flies and pinning more can make some. That the host
   does not pin more is no failure: a transfer goes on with what there is. */
static gpi_stage_slot *gpi_ring_slots(gpupool_ring *ring, uint64_t run, gpupool_result *result) {
    gpi_stage *stage = &ring->stage;
    gpi_stage_slot *slot;
    if (stage->flying.now > (uint64_t)ring->workers_running + 1)
        gpi_stage_poll(stage, result); /* few slots in use stay in the processor's caches */
    slot = gpi_stage_take(stage, run);
    if (!slot && gpi_stage_poll(stage, result)) slot = gpi_stage_take(stage, run);
    while (!slot && *result == GPUPOOL_OK && gpi_stage_pin(stage))
        slot = gpi_stage_take(stage, run);
    if (slot) *result = GPUPOOL_OK; /* whatever was answered on the way */
    return slot;
}

/* More in flight would not make the link busier, only take room from other transfers. */
static int gpi_ring_is_ahead(const gpupool_ring *ring, const gpi_transfer *transfer) {
    return gpi_stage_flown(&ring->stage, gpi_ring_key(transfer->stream)) >=
           gpi_ground_max(GPI_RING_AHEAD, 4 * ring->stage.slot_bytes);
}

static void gpi_ring_unstall(gpupool_ring *ring, gpi_transfer *transfer) {
    if (transfer->stalled_ns) ring->stats.wait_ns += gpi_host_now_ns() - transfer->stalled_ns;
    transfer->stalled_ns = 0;
}

/* A chunk begins: its slot, and its part of the transfer. NULL: there is no slot, or no chunk. */
static gpi_stage_slot *gpi_ring_begin(gpupool_ring *ring, gpi_transfer *transfer) {
    gpupool_result result = GPUPOOL_OK;
    gpi_stage_slot *slot = NULL;
    if (!gpi_ring_has_more(transfer)) return NULL;
    if (gpi_ring_is_ahead(ring, transfer)) gpi_stage_poll(&ring->stage, &result);
    if (result == GPUPOOL_OK && !gpi_ring_is_ahead(ring, transfer))
        slot = gpi_ring_slots(ring, 1, &result);
    gpi_ring_fail(transfer, result);
    if (slot && !gpi_ring_has_more(transfer)) { /* the lock was open */
        gpi_stage_free(&ring->stage, slot);
        slot = NULL;
    }
    if (!slot) return NULL;
    slot->offset = transfer->cursor;
    slot->length = gpi_ring_chunk(ring, transfer, UINT64_MAX);
    if (transfer->is_file) slot->skip = (transfer->place + slot->offset) % GPI_PAGE_BYTES;
    transfer->cursor += slot->length;
    gpi_ring_unstall(ring, transfer);
    return slot;
}

/* What becomes of a chunk's slot: it is free again, or if something queued may still use it, it is
   held until the ring ends. */
static void gpi_ring_drop(gpupool_ring *ring, gpi_stage_slot *slot, int lost) {
    if (lost) gpi_stage_set(slot, GPI_STAGE_HELD);
    else gpi_stage_free(&ring->stage, slot);
}

/* An upload's chunk: its bytes fill the slot, which then flies. */
static void gpi_ring_advance_up(gpupool_ring *ring, gpi_transfer *transfer, gpi_stage_slot *slot) {
    unsigned char *memory = gpi_stage_memory(&ring->stage, slot);
    gpupool_result result;
    int lost = 0;
    gpi_ring_unlock(ring);
    result = gpi_ring_move(ring, transfer, memory, slot->offset, slot->length);
    if (result == GPUPOOL_OK) result = gpi_ring_send(ring, slot, transfer, &lost);
    gpi_ring_lock(ring);
    gpi_ring_fail(transfer, result);
    if (result != GPUPOOL_OK) {
        gpi_ring_drop(ring, slot, lost);
        return;
    }
    ring->stats.chunks[GPUPOOL_UP]++;
    gpi_stage_fly(&ring->stage, slot);
}

/* The next chunk of a download is on its way from the device. NULL: there is none, or no slot. */
static gpi_stage_slot *gpi_ring_fetch(gpupool_ring *ring, gpi_transfer *transfer,
                                      gpi_stage_slot *slot) {
    gpupool_result result;
    int lost = 0;
    if (!slot) return NULL;
    gpi_stage_begin(&ring->arriving);
    gpi_ring_unlock(ring);
    result = gpi_ring_send(ring, slot, transfer, &lost);
    gpi_ring_lock(ring);
    if (result == GPUPOOL_OK) return slot;
    gpi_stage_end(&ring->arriving);
    gpi_ring_fail(transfer, result);
    gpi_ring_drop(ring, slot, lost);
    return NULL;
}

/* A chunk has been fetched: waits for it, and empties the slot. */
static void gpi_ring_empty(gpupool_ring *ring, gpi_transfer *transfer, gpi_stage_slot *slot) {
    const gpi_driver *driver = &ring->stage.driver;
    unsigned char *memory = gpi_stage_memory(&ring->stage, slot);
    gpupool_result result;
    int lost;
    gpi_ring_unlock(ring);
    result = gpi_driver_event_wait(driver, slot->event);
    lost = result != GPUPOOL_OK && driver->stream_sync(transfer->stream) != CUDA_SUCCESS;
    gpi_ring_lock(ring);
    gpi_stage_end(&ring->arriving);
    if (result == GPUPOOL_OK) {
        ring->stats.chunks[GPUPOOL_DOWN]++;
        gpi_ring_unlock(ring);
        result = gpi_ring_move(ring, transfer, memory, slot->offset, slot->length);
        gpi_ring_lock(ring);
    }
    gpi_ring_fail(transfer, result);
    gpi_ring_drop(ring, slot, lost);
}

/* Chunks of a download, one on its way while the one before is emptied: with one slot a thread all
   threads wait for the device, and then it for all of them (seen on an H100: 31 instead of 51
   GB/s). Not more than some in a row, since other transfers may have come. */
static void gpi_ring_advance_down(gpupool_ring *ring, gpi_transfer *transfer,
                                  gpi_stage_slot *slot) {
    int left = GPI_RING_ROW;
    slot = gpi_ring_fetch(ring, transfer, slot);
    while (slot) {
        gpi_stage_slot *next = --left ? gpi_ring_begin(ring, transfer) : NULL;
        next = gpi_ring_fetch(ring, transfer, next);
        gpi_ring_empty(ring, transfer, slot);
        slot = next;
    }
}

/* The next chunk by CUDA's own staging: through pageable memory, which CUDA has done with, or
   filled, once it has taken the copy. */
static int gpi_ring_advance_unstaged(gpupool_ring *ring, gpi_transfer *transfer) {
    uint64_t at = transfer->cursor, bytes = gpi_ring_chunk(ring, transfer, GPI_RING_UNSTAGED);
    gpupool_result result = GPUPOOL_OK;
    unsigned char *memory;
    transfer->cursor += bytes;
    transfer->working++;
    ring->stats.creeps++;
    gpi_ring_unlock(ring);
    memory = (unsigned char *)GPUPOOL_MALLOC((size_t)bytes);
    if (!memory) result = gpi_host_no_memory();
    if (memory && !transfer->down) result = gpi_ring_move(ring, transfer, memory, at, bytes);
    if (result == GPUPOOL_OK)
        result = gpi_ring_queue(transfer, memory, transfer->width, at, bytes);
    if (result == GPUPOOL_OK && transfer->down)
        result = gpi_ring_move(ring, transfer, memory, at, bytes);
    GPUPOOL_FREE(memory);
    gpi_ring_lock(ring);
    transfer->working--;
    gpi_ring_fail(transfer, result);
    return 1;
}

/* For a transfer that found no slot: after a while it goes on by CUDA's own staging. Not while
   slots of its stream are on their way: where they do not get on, it could not either. But what
   CUDA stages without a wait goes at once, so that small uploads behind a busy stream return. */
static int gpi_ring_stall(gpupool_ring *ring, gpi_transfer *transfer) {
    uint64_t now = gpi_host_now_ns();
    int at_once = transfer->bytes <= GPI_RING_SMALL;
    if (!gpi_ring_has_more(transfer) || transfer->gated || transfer->working) return 0;
    if (!at_once && gpi_stage_flown(&ring->stage, gpi_ring_key(transfer->stream))) return 0;
    ring->stats.waits += !transfer->stalled_ns;
    if (!transfer->stalled_ns) transfer->stalled_ns = now;
    if (!at_once && ring->stage.pinned_slots && now - transfer->stalled_ns < GPI_RING_PATIENCE_NS)
        return 0;
    return gpi_ring_advance_unstaged(ring, transfer);
}

/* ---- the list of transfers ---- */

/* Wakes the threads that sleep. */
static void gpi_ring_wake(gpupool_ring *ring) {
    gpi_stage_tell(&ring->stage);
    gpi_ring_unlock(ring);
    gpi_host_gate_turn(&gpi_process.gate);
    gpi_ring_lock(ring);
}

static void gpi_ring_count(gpupool_ring *ring, const gpi_transfer *done) {
    ring->stats.transfers[done->down]++;
    if (done->by_cuda) ring->stats.direct_bytes[done->down] += done->bytes;
    else ring->stats.staged_bytes[done->down] += done->bytes;
}

static void gpi_ring_spare(gpupool_ring *ring, gpi_transfer *record) {
    record->next = ring->spare;
    ring->spare = record;
}

/* A transfer is over, and leaves the list. What failed is remembered; so is a success after the
   failures of later tickets were forgotten, that would be taken for one of them. */
static void gpi_ring_finish(gpupool_ring *ring, gpi_transfer *transfer) {
    gpi_transfer **link = &ring->transfers;
    while (*link != transfer) link = &(*link)->next;
    *link = transfer->next;
    if (transfer->result != GPUPOOL_OK || transfer->ticket <= ring->forgotten) {
        gpi_failure *failure = &ring->failures[ring->failure_count++ % GPI_RING_FAILURES];
        ring->forgotten = gpi_ground_max(ring->forgotten, failure->ticket);
        failure->ticket = transfer->ticket;
        failure->result = transfer->result;
        memcpy(failure->text, transfer->text, sizeof failure->text);
    }
    gpi_ring_unstall(ring, transfer);
    if (transfer->result == GPUPOOL_OK) gpi_ring_count(ring, transfer);
    if (!transfer->by_cuda) gpi_stage_end(&ring->under_way[transfer->down]);
    if (transfer->is_file) gpi_host_file_close(&transfer->file);
    gpi_ring_spare(ring, transfer);
    gpi_ring_wake(ring);
}

/* Whether the event has passed. Where CUDA does not say, the transfer has failed; what was queued
   for it is waited for. */
static int gpi_ring_gate_passed(gpupool_ring *ring, gpi_transfer *transfer) {
    gpupool_result result;
    int passed = 0;
    gpi_ring_unlock(ring);
    result = gpi_driver_event_query(transfer->driver, transfer->event, &passed);
    if (result != GPUPOOL_OK && transfer->cursor) transfer->driver->event_sync(transfer->event);
    gpi_ring_lock(ring);
    gpi_ring_fail(transfer, result);
    if (passed || result != GPUPOOL_OK) transfer->gated = 0;
    return !transfer->gated;
}

/* All that a gated upload has to queue is queued: it is over when that has arrived. */
static void gpi_ring_land(gpupool_ring *ring, gpi_transfer *transfer) {
    gpupool_result result;
    gpi_ring_unlock(ring);
    result = gpi_driver_record(transfer->driver, &transfer->event, transfer->stream);
    if (result != GPUPOOL_OK) transfer->driver->stream_sync(transfer->stream);
    gpi_ring_lock(ring);
    gpi_ring_fail(transfer, result);
    transfer->gated = result == GPUPOOL_OK;
    transfer->lands = 0;
}

/* Does one thing for a transfer; the record may be another one's after a 1. 0: there is nothing
   that this thread could do for it now. */
static int gpi_ring_step(gpupool_ring *ring, gpi_transfer *transfer) {
    gpi_stage_slot *slot = NULL;
    int did = 0;
    transfer->working++; /* it stays while the lock is open */
    if (!transfer->gated || gpi_ring_gate_passed(ring, transfer)) {
        slot = gpi_ring_begin(ring, transfer);
        did = slot != NULL;
        if (slot && transfer->down) gpi_ring_advance_down(ring, transfer, slot);
        else if (slot) gpi_ring_advance_up(ring, transfer, slot);
        if (transfer->lands && transfer->working == 1 && !gpi_ring_has_more(transfer))
            gpi_ring_land(ring, transfer);
    }
    transfer->working--;
    if (!gpi_ring_is_over(transfer)) return did;
    gpi_ring_finish(ring, transfer);
    return 1;
}

typedef enum gpi_ring_role {
    GPI_RING_UPLOADS = GPUPOOL_UP,     /* a worker that does these first */
    GPI_RING_DOWNLOADS = GPUPOOL_DOWN, /* or these, so that both go on at once */
    GPI_RING_CALLER                    /* of something else: a function may wait for this thread */
} gpi_ring_role;

/* One thing for any of the transfers, or for what flies. */
static int gpi_ring_work(gpupool_ring *ring, gpi_ring_role role) {
    gpupool_result result = GPUPOOL_OK;
    int pass = role == GPI_RING_CALLER;
    for (; pass < 2; pass++) {
        gpi_transfer *transfer = ring->transfers;
        for (; transfer; transfer = transfer->next) {
            if (role == GPI_RING_CALLER ? transfer->reader || transfer->writer
                                        : (transfer->down == (int)role) == pass) continue;
            if (gpi_ring_step(ring, transfer)) return 1;
            if (transfer->stream == ring->lists[transfer->down] && gpi_ring_stall(ring, transfer))
                return 1; /* on the caller's stream, that would wait */
        }
    }
    return gpi_stage_poll(&ring->stage, &result);
}

/* ---- threads without work, and workers ---- */

/* Sleeps so long at most. 0: nobody woke it. */
static int gpi_ring_sleep(gpupool_ring *ring, uint64_t ns) {
    gpi_gate *gate = &gpi_process.gate;
    unsigned seen = gpi_host_gate_seen(gate);
    gpi_ring_unlock(ring);
    gpi_host_gate_wait(gate, seen, ns);
    gpi_ring_lock(ring);
    return gpi_host_gate_seen(gate) != seen;
}

/* For a thread that found nothing to do: it looks for news without the lock, or it would be in the
   way of those that work; then it sleeps, the longer the more often, for nobody may wake it. */
static void gpi_ring_idle(gpupool_ring *ring, unsigned *round, uint64_t most_ns) {
    unsigned news = ring->stage.news, i;
    if (*round >= GPI_RING_SPIN) {
        uint64_t ns = (uint64_t)(++*round - GPI_RING_SPIN) * GPI_RING_SLEEP_NS;
        gpi_ring_sleep(ring, gpi_ground_min(gpi_ground_min(ns, GPI_RING_LOOK_NS), most_ns));
        return;
    }
    gpi_ring_unlock(ring);
    for (i = 0; i < 16 && GPI_READ(&ring->stage.news) == news; i++) gpi_host_idle((*round)++);
    gpi_ring_lock(ring);
}

/* There was work, after so many rounds without: others may sleep. */
static void gpi_ring_busy(gpupool_ring *ring, unsigned *round) {
    if (*round >= GPI_RING_SPIN) gpi_ring_wake(ring);
    *round = 0;
}

/* More threads at one transfer would only be in each other's way, in CUDA's locks most of all.
   After a reset CUDA may crash where it is asked after the ring's streams and events. */
static int gpi_ring_wants(const gpupool_ring *ring, const gpi_hand *hand) {
    int reset;
    if (!ring->transfers) return 0;
    if (!ring->transfers->next && hand - ring->hands >= GPI_RING_HANDS) return 0;
    return gpi_driver_was_reset(&ring->stage.driver, &reset) != GPUPOOL_OK || !reset;
}

static int gpi_ring_stops(const gpupool_ring *ring) {
    return ring->stopping || GPI_READ(&gpi_process.ending);
}

/* A worker that has nothing to do for long ends: so does a program whose other threads have. */
static void gpi_ring_worker_loop(gpupool_ring *ring, const gpi_hand *hand) {
    gpi_ring_role role = (hand - ring->hands) % 2 ? GPI_RING_DOWNLOADS : GPI_RING_UPLOADS;
    unsigned round = 0;
    while (!gpi_ring_stops(ring)) {
        int wanted = gpi_ring_wants(ring, hand);
        if (wanted && gpi_ring_work(ring, role)) gpi_ring_busy(ring, &round);
        else if (wanted || round < GPI_RING_SPIN) gpi_ring_idle(ring, &round, UINT64_MAX);
        else if (gpi_ring_sleep(ring, GPI_RING_LEAVE_NS)) round = 0;
        else if (!gpi_ring_wants(ring, hand)) break;
    }
}

static void gpi_ring_worker(void *user) {
    gpi_hand *hand = (gpi_hand *)user;
    gpupool_ring *ring = hand->ring;
    gpi_visit visit;
    if (gpi_driver_enter(&ring->stage.driver, &visit) == GPUPOOL_OK) {
        gpi_ring_lock(ring);
        gpi_ring_worker_loop(ring, hand);
        gpi_ring_unlock(ring);
        gpi_driver_leave(&visit);
    }
    gpi_host_count_worker(-1);
    gpi_ring_lock(ring);
    hand->running = 0;
    ring->workers_running--;
    if (!ring->stopping && gpi_host_thread_leave()) hand->started = 0;
    gpi_ring_unlock(ring);
}

/* A worker in the middle of a CUDA call while CUDA is taken down could crash the process on its way
   out. One that calls exit itself is not waited for longer than a second. */
static void gpi_ring_at_exit(void) {
    uint64_t start = gpi_host_now_ns();
    if (gpi_host_count_worker(0) == 0) return; /* or a child, that has none */
    GPI_PUBLISH(&gpi_process.ending, 1);
    gpi_host_gate_turn(&gpi_process.gate);
    while (gpi_host_count_worker(0) && gpi_host_now_ns() - start < 1000000000u) gpi_host_idle(64);
}

static void gpi_ring_join(gpi_hand *hand) {
    if (hand->started) gpi_host_thread_join(&hand->worker);
    hand->started = 0;
}

/* Starts the workers that are not there: with the first transfer that is worth it. */
static void gpi_ring_staff(gpupool_ring *ring) {
    int i, started;
    for (i = 0; i < ring->workers_wanted && !gpi_ring_stops(ring); i++) {
        gpi_hand *hand = &ring->hands[i];
        if (hand->running) continue;
        gpi_ring_join(hand); /* it has ended */
        hand->ring = ring;
        hand->running = hand->started = 1;
        ring->workers_running++;
        gpi_host_count_worker(1);
        gpi_ring_unlock(ring);
        started = gpi_host_thread_start(&hand->worker, gpi_ring_worker, hand);
        gpi_ring_lock(ring);
        if (started) continue;
        gpi_host_count_worker(-1);
        hand->running = hand->started = 0;
        ring->workers_running--;
        ring->workers_wanted = i; /* the system has no more threads for us */
    }
}

static void gpi_ring_dismiss(gpupool_ring *ring) {
    int i;
    ring->stopping = 1;
    gpi_ring_wake(ring);
    gpi_ring_unlock(ring);
    for (i = 0; i < GPI_RING_WORKERS_MOST; i++) gpi_ring_join(&ring->hands[i]);
    gpi_ring_lock(ring);
    ring->stopping = 0;
}

/* ---- tickets ---- */

/* Puts a transfer in the list, with a ticket. A gated one begins behind what the caller's stream
   has been given so far. */
static gpupool_result gpi_ring_post(gpupool_ring *ring, gpi_transfer *plan,
                                    gpupool_ticket *ticket) {
    gpi_transfer *record = ring->spare, **link = &ring->transfers;
    gpupool_result result = GPUPOOL_OK;
    cudaEvent_t event;
    if (record) ring->spare = record->next;
    gpi_ring_unlock(ring);
    if (!record) record = (gpi_transfer *)gpi_host_zeroed(sizeof *record);
    if (!record) result = gpi_host_no_memory();
    else if (plan->gated) result = gpi_driver_record(plan->driver, &record->event, plan->stream);
    gpi_ring_lock(ring);
    if (record && result != GPUPOOL_OK) gpi_ring_spare(ring, record);
    if (result != GPUPOOL_OK) return result;
    event = record->event;
    *record = *plan;
    record->event = event;
    if (plan->gated) record->stream = ring->lists[plan->down];
    *ticket = record->ticket = ++ring->tickets;
    while (*link) link = &(*link)->next;
    *link = record;
    if (!plan->by_cuda) gpi_stage_begin(&ring->under_way[plan->down]);
    plan->is_file = 0; /* the record closes it */
    return GPUPOOL_OK;
}

/* What is known of a ticket that is in the list no more. */
static gpupool_result gpi_ring_told(const gpupool_ring *ring, gpupool_ticket ticket) {
    uint64_t i, owner = gpi_ground_min(ring->failure_count, GPI_RING_FAILURES);
    for (i = 0; i < owner; i++) {
        const gpi_failure *failure = &ring->failures[i];
        if (failure->ticket != ticket) continue;
        return failure->result == GPUPOOL_OK ? GPUPOOL_OK
                                             : gpi_host_fail(failure->result, "%s", failure->text);
    }
    if (ticket == 0 || ticket > ring->tickets)
        return gpi_host_fail(GPUPOOL_E_ARGUMENT, "gpupool_ring_wait: no ticket %" PRIu64
                             " was ever given out", ticket);
    if (ticket > ring->forgotten) return GPUPOOL_OK;
    return gpi_host_fail(GPUPOOL_E_ARGUMENT, "gpupool_ring_wait: ticket %" PRIu64 " is from "
                         "before the last %d failures, and forgotten", ticket, GPI_RING_FAILURES);
}

/* The transfer of a ticket; NULL: it is in the list no more, or never was. */
static gpi_transfer *gpi_ring_pending(const gpupool_ring *ring, gpupool_ticket ticket) {
    gpi_transfer *transfer = ring->transfers;
    while (transfer && transfer->ticket != ticket) transfer = transfer->next;
    return transfer;
}

/* One thing by a thread that waits for something of the ring's, where no worker is free to do it:
   all of them may be in functions that wait for this thread. */
static int gpi_ring_help(gpupool_ring *ring) {
    const gpi_transfer *transfer = ring->transfers;
    int in_functions = 0;
    for (; transfer; transfer = transfer->next)
        if (transfer->reader || transfer->writer) in_functions += transfer->working;
    return in_functions >= ring->workers_running && gpi_ring_work(ring, GPI_RING_CALLER);
}

/* Returns once the ticket is done, with its result; or so long after: for ever, where a negative
   time was given. The caller works for it, if there is time. */
static gpupool_result gpi_ring_wait(gpupool_ring *ring, gpupool_ticket ticket, uint64_t most_ns) {
    uint64_t start = gpi_host_now_ns(), waited;
    gpupool_result ignored = GPUPOOL_OK; /* those whom it concerns have been told */
    gpi_transfer *transfer;
    unsigned round = 0;
    while ((transfer = gpi_ring_pending(ring, ticket)) != NULL) {
        int did = (most_ns && (gpi_ring_step(ring, transfer) || gpi_ring_stall(ring, transfer))) ||
                  gpi_ring_help(ring) || gpi_stage_poll(&ring->stage, &ignored);
        if (!gpi_ring_pending(ring, ticket)) break;
        waited = gpi_host_now_ns() - start;
        if (waited >= most_ns)
            return gpi_host_fail(GPUPOOL_E_TIMEOUT, "gpupool_ring_wait: ticket %" PRIu64
                                 " is not done yet", ticket);
        if (did) gpi_ring_busy(ring, &round);
        else gpi_ring_idle(ring, &round, most_ns - waited);
    }
    return gpi_ring_told(ring, ticket);
}

gpupool_result gpupool_ring_wait(gpupool_ring *ring, gpupool_ticket ticket, int64_t timeout_ns) {
    gpi_visit visit;
    gpupool_result result = gpi_ring_enter(ring, "gpupool_ring_wait", &visit);
    if (result != GPUPOOL_OK) return result;
    result = gpi_ring_wait(ring, ticket, (uint64_t)timeout_ns);
    return gpi_ring_leave(ring, &visit, result);
}

/* == SEND =====================================================================================
   Which way a transfer goes, and the ring's public calls. uses: RING and above

   Pinned memory, and what is tiny, is left to CUDA. Any other transfer joins the ring's list; a
   call without a ticket works for its own until that is done.
   To read first: gpi_send_way, gpi_send_carry_out, gpi_send_rows. */

/* -- the ways of a transfer -- */

typedef enum gpi_way {
    GPI_WAY_RING,
    GPI_WAY_CUDA,   /* CUDA's own staging: so little that nothing else pays */
    GPI_WAY_PINNED, /* directly; the host reaches the memory too, and waits */
    GPI_WAY_DEVICE  /* directly, in stream order alone */
} gpi_way;

/* Decides which way a transfer goes, on a stream that does not capture. */
static gpupool_result gpi_send_way(const gpi_transfer *plan, gpi_way *way) {
    gpi_place_kind first = GPI_PLACE_ORDINARY, last = GPI_PLACE_ORDINARY;
    uint64_t tiny = plan->gated ? GPI_RING_SMALL : GPI_RING_TINY, end = plan->bytes;
    gpupool_result result;
    *way = GPI_WAY_RING;
    if (plan->reader || plan->writer || plan->is_file) return GPUPOOL_OK;
    if (plan->width != end) end = (end / plan->width - 1) * plan->host_pitch + plan->width;
    result = gpi_driver_place(plan->driver, plan->host, &first);
    if (result == GPUPOOL_OK && first == GPI_PLACE_PINNED)
        result = gpi_driver_place(plan->driver, plan->host + end - 1, &last);
    if (first == GPI_PLACE_DEVICE) *way = GPI_WAY_DEVICE;
    else if (last == GPI_PLACE_PINNED) *way = GPI_WAY_PINNED;
    else if (first == GPI_PLACE_ORDINARY && plan->width == plan->bytes && plan->bytes <= tiny)
        *way = GPI_WAY_CUDA;
    return result;
}

static gpupool_result gpi_send_may_queue(const gpi_transfer *plan) {
    if (!gpi_driver_is_capturing(plan->driver, plan->stream)) return GPUPOOL_OK;
    return gpi_host_fail(GPUPOOL_E_CAPTURING, "%s: the stream captures, and a graph would read the "
                         "host's memory when it is launched, not now", plan->call);
}

/* Copies the bytes; the lock is held. */
static gpupool_result gpi_send_carry_out(gpupool_ring *ring, gpi_transfer *plan,
                                         gpupool_ticket *ticket) {
    gpi_way way = GPI_WAY_RING;
    gpupool_ticket own = 0;
    gpupool_result result;
    gpi_ring_unlock(ring);
    result = gpi_send_may_queue(plan);
    if (result == GPUPOOL_OK) result = gpi_send_way(plan, &way);
    if (way == GPI_WAY_CUDA && ticket) way = GPI_WAY_RING; /* CUDA may wait for the stream */
    plan->by_cuda = way != GPI_WAY_RING;
    if (result == GPUPOOL_OK && plan->by_cuda)
        result = gpi_ring_queue(plan, plan->host, plan->host_pitch, 0, plan->bytes);
    if (way == GPI_WAY_PINNED && result == GPUPOOL_E_CUDA &&
        gpi_thread.cuda_error == (int)CUDA_ERROR_INVALID_VALUE) { /* pinned in part: staged */
        plan->by_cuda = 0;
        result = GPUPOOL_OK;
    }
    if (plan->by_cuda && !ticket && way == GPI_WAY_PINNED && result == GPUPOOL_OK)
        result = gpi_driver_stream_sync(plan->driver, plan->stream);
    gpi_ring_lock(ring);
    if (result != GPUPOOL_OK) return result;
    if (plan->by_cuda && !ticket) {
        gpi_ring_count(ring, plan);
        return GPUPOOL_OK;
    }
    if (plan->by_cuda) plan->cursor = plan->bytes;
    plan->lands = plan->gated && !plan->down && !plan->by_cuda;
    result = gpi_ring_post(ring, plan, ticket ? ticket : &own);
    if (result != GPUPOOL_OK && plan->by_cuda) plan->driver->stream_sync(plan->stream);
    if (result != GPUPOOL_OK) return result;
    if (!plan->by_cuda && (ticket || plan->bytes >= GPI_RING_HELP)) gpi_ring_staff(ring);
    if (ticket || plan->bytes >= GPI_RING_HELP) gpi_ring_wake(ring);
    return ticket ? GPUPOOL_OK : gpi_ring_wait(ring, own, UINT64_MAX);
}

/* What CUDA's own staging does cheapest, without the rest of the long way. 0: that is left. */
static int gpi_send_tiny(gpupool_ring *ring, gpi_transfer *plan) {
    const gpi_driver *driver = plan->driver;
    gpi_way way = GPI_WAY_RING;
    int reset, did;
    if (plan->bytes > (plan->gated ? GPI_RING_SMALL : GPI_RING_TINY)) return 0;
    if (ring->forks != gpi_process.forks) return 0;
    if (gpi_driver_was_reset(driver, &reset) != GPUPOOL_OK || reset) return 0;
    if (gpi_driver_push(driver, driver->context) != GPUPOOL_OK) return 0;
    did = !gpi_driver_is_capturing(driver, plan->stream) &&
          gpi_send_way(plan, &way) == GPUPOOL_OK && way == GPI_WAY_CUDA &&
          gpi_ring_queue(plan, plan->host, plan->bytes, 0, plan->bytes) == GPUPOOL_OK;
    gpi_driver_pop(driver, driver->context);
    if (!did) return 0;
    plan->by_cuda = 1;
    gpi_ring_lock(ring);
    gpi_ring_count(ring, plan);
    gpi_ring_unlock(ring);
    return 1;
}

/* All transfers come here: so many rows of the plan's width. */
static gpupool_result gpi_send_rows(gpupool_ring *ring, gpi_transfer *plan, uint64_t rows,
                                    gpupool_ticket *ticket) {
    uint64_t pitch = gpi_ground_max(plan->device_pitch, plan->host_pitch);
    int any = plan->width && rows;
    const char *wrong = NULL;
    gpupool_result result;
    gpi_visit visit;
    if (any && (plan->device_pitch < plan->width || plan->host_pitch < plan->width))
        wrong = "a pitch is less than the width";
    else if (any && pitch > (uint64_t)PTRDIFF_MAX / rows)
        wrong = "bytes, or pitch by rows, is more than any memory has";
    else if (any && !plan->device) wrong = "the device pointer is NULL";
    else if (any && !plan->host && !plan->reader && !plan->writer && !plan->is_file)
        wrong = "the host pointer is NULL";
    if (!ring) return gpi_ring_exists(ring, plan->call);
    if (wrong) return gpi_host_fail(GPUPOOL_E_ARGUMENT, "%s: %s", plan->call, wrong);
    result = gpi_sleep_is_at(plan->call, plan->device);
    if (result != GPUPOOL_OK) return result;
    plan->driver = &ring->stage.driver;
    plan->bytes = plan->width * rows;
    if (plan->device_pitch == plan->width && plan->host_pitch == plan->width) /* one long row */
        plan->width = plan->device_pitch = plan->host_pitch = plan->bytes;
    plan->gated = ticket || plan->down || plan->stream == cudaStreamPerThread;
    if (any && !ticket && gpi_send_tiny(ring, plan)) return gpi_host_ok();
    result = gpi_ring_enter(ring, plan->call, &visit);
    if (result != GPUPOOL_OK) return result;
    if (any) result = gpi_send_carry_out(ring, plan, ticket);
    else if (ticket) *ticket = ++ring->tickets; /* nothing to do, and nothing to wait for */
    return gpi_ring_leave(ring, &visit, result);
}

/* Of one row. Both sides have one type, though one of them is only read. */
static gpi_transfer gpi_send_plan(const char *call, const void *device, const void *host,
                                  uint64_t bytes, cudaStream_t stream) {
    gpi_transfer plan;
    memset(&plan, 0, sizeof plan);
    plan.call = call;
    plan.device = (unsigned char *)(uintptr_t)device;
    plan.host = (unsigned char *)(uintptr_t)host;
    plan.width = plan.device_pitch = plan.host_pitch = bytes;
    plan.stream = stream ? stream : cudaStreamLegacy;
    return plan;
}

static gpupool_result gpi_send_lacks(const char *call, const char *what) {
    gpi_host_begin();
    return gpi_host_fail(GPUPOOL_E_ARGUMENT, "%s: %s is NULL", call, what);
}

gpupool_result gpupool_upload(gpupool_ring *ring, void *device_dst, const void *host_src,
                              size_t bytes, cudaStream_t stream) {
    gpi_transfer plan = gpi_send_plan("gpupool_upload", device_dst, host_src, bytes, stream);
    return gpi_send_rows(ring, &plan, 1, NULL);
}

gpupool_result gpupool_download(gpupool_ring *ring, void *host_dst, const void *device_src,
                                size_t bytes, cudaStream_t stream) {
    gpi_transfer plan = gpi_send_plan("gpupool_download", device_src, host_dst, bytes, stream);
    plan.down = GPUPOOL_DOWN;
    return gpi_send_rows(ring, &plan, 1, NULL);
}

/* Bytes of a file from an offset on. */
static gpupool_result gpi_send_file(gpupool_ring *ring, gpi_transfer *plan, int file,
                                    uint64_t offset, gpupool_ticket *ticket) {
    gpupool_result result = gpi_ring_exists(ring, plan->call);
    if (result != GPUPOOL_OK) return result;
    if (offset > INT64_MAX || plan->width > (uint64_t)INT64_MAX - offset)
        return gpi_host_fail(GPUPOOL_E_ARGUMENT, "%s: no file has so many bytes", plan->call);
    result = gpi_host_file_open(&plan->file, file, offset, plan->width);
    if (result != GPUPOOL_OK) return result;
    plan->is_file = 1;
    plan->place = offset;
    result = gpi_send_rows(ring, plan, 1, ticket);
    if (plan->is_file) gpi_host_file_close(&plan->file);
    return result;
}

gpupool_result gpupool_upload_file(gpupool_ring *ring, void *device_dst, int file, uint64_t offset,
                                   size_t bytes, cudaStream_t stream) {
    gpi_transfer plan = gpi_send_plan("gpupool_upload_file", device_dst, NULL, bytes, stream);
    return gpi_send_file(ring, &plan, file, offset, NULL);
}

/* What is wrong with a transfer that gpi_send_rows does not see; NULL: nothing. */
static const char *gpi_send_mistake(const gpupool_transfer *transfer) {
    int down = transfer->direction == GPUPOOL_DOWN;
    if (transfer->direction != GPUPOOL_UP && !down) return "direction is neither UP nor DOWN";
    if (down && (transfer->read || transfer->is_file)) return "read and is_file are for UP";
    if (!down && transfer->write) return "write is for DOWN";
    if ((transfer->read || transfer->write || transfer->is_file) &&
        (transfer->to_pitch || transfer->from_pitch))
        return "functions and files have no pitches";
    if (transfer->rows > 1 && transfer->bytes && !transfer->to_pitch && !transfer->from_pitch)
        return "rows need pitches";
    return transfer->read && transfer->is_file ? "either read or is_file" : NULL;
}

gpupool_result gpupool_ring_transfer(gpupool_ring *ring, const gpupool_transfer *transfer) {
    const char *call = "gpupool_ring_transfer", *wrong;
    const void *device, *host;
    gpi_transfer plan;
    size_t rows = 1;
    if (!transfer) return gpi_send_lacks(call, "transfer");
    wrong = gpi_send_mistake(transfer);
    gpi_host_begin();
    if (wrong) return gpi_host_fail(GPUPOOL_E_ARGUMENT, "%s: %s", call, wrong);
    device = transfer->direction == GPUPOOL_UP ? transfer->to : transfer->from;
    host = transfer->direction == GPUPOOL_UP ? transfer->from : transfer->to;
    if (transfer->read || transfer->write || transfer->is_file) host = NULL;
    plan = gpi_send_plan(call, device, host, transfer->bytes, transfer->stream);
    plan.down = (int)transfer->direction;
    if (transfer->to_pitch || transfer->from_pitch) {
        plan.device_pitch = plan.down ? transfer->from_pitch : transfer->to_pitch;
        plan.host_pitch = plan.down ? transfer->to_pitch : transfer->from_pitch;
        rows = transfer->rows;
    }
    plan.reader = transfer->read;
    plan.writer = transfer->write;
    plan.user = transfer->user;
    if (transfer->is_file)
        return gpi_send_file(ring, &plan, transfer->file, transfer->offset, transfer->ticket);
    return gpi_send_rows(ring, &plan, rows, transfer->ticket);
}

/* Each part has a ticket; so many are in the list at a time. The first failure is told, after the
   parts that are under way. */
gpupool_result gpupool_upload_file_list(gpupool_ring *ring, int file,
                                        const gpupool_file_part *parts, size_t count,
                                        cudaStream_t stream) {
    static const char call[] = "gpupool_upload_file_list";
    enum { MOST = GPI_RING_FAILURES / 2 };
    gpupool_ticket tickets[MOST];
    gpupool_result result = gpi_ring_exists(ring, call), now;
    char text[sizeof gpi_thread.draft];
    size_t posted = 0, done = 0;
    if (result == GPUPOOL_OK && count && !parts) return gpi_send_lacks(call, "parts");
    if (result != GPUPOOL_OK) return result;
    while (done < posted || (posted < count && result == GPUPOOL_OK)) {
        if (posted < count && posted - done < MOST && result == GPUPOOL_OK) {
            const gpupool_file_part *part = &parts[posted];
            gpi_transfer plan = gpi_send_plan(call, part->device_dst, NULL, part->bytes, stream);
            now = gpi_send_file(ring, &plan, file, part->offset, &tickets[posted % MOST]);
            posted += now == GPUPOOL_OK;
        } else {
            now = gpupool_ring_wait(ring, tickets[done++ % MOST], -1);
        }
        if (now == GPUPOOL_OK || result != GPUPOOL_OK) continue;
        result = now;
        memcpy(text, gpi_thread.draft, sizeof text);
    }
    return result == GPUPOOL_OK ? gpi_host_ok() : gpi_host_fail(result, "%s", text);
}

/* -- the ring, in public -- */

static gpupool_result gpi_send_wrong(const char *field, double value, const char *rule) {
    return gpi_host_fail(GPUPOOL_E_ARGUMENT, "gpupool_ring_create: config.%s is %.0f, and must be "
                         "%s", field, value, rule);
}

static gpupool_result gpi_send_validate(gpupool_ring_config *config) {
    int cores = gpi_host_cores(), count = 0;
    size_t chunk = config->chunk_bytes;
    gpupool_result result = gpi_driver_devices(&count);
    if (result != GPUPOOL_OK) return result;
    if (!config->bytes) config->bytes = GPUPOOL_RING_BYTES;
    if (!config->workers) config->workers = GPUPOOL_RING_WORKERS;
    if (!config->workers)
        config->workers = cores < 2 ? -1
                                    : (int)gpi_ground_min((uint64_t)cores - 1, GPI_RING_WORKERS);
    if (config->device < GPUPOOL_DEVICE_CURRENT || config->device >= count)
        return gpi_send_wrong("device", config->device, "a device's ordinal, or -1");
    if (config->bytes < (size_t)1 << 18 || config->bytes > (uint64_t)1 << 44)
        return gpi_send_wrong("bytes", (double)config->bytes, "from 256 KiB to 16 TiB");
    if (chunk && (chunk < (size_t)1 << 16 || chunk > config->bytes / 4))
        return gpi_send_wrong("chunk_bytes", (double)chunk, "from 64 KiB to a quarter of the ring");
    if (config->workers < -1 || config->workers > GPI_RING_WORKERS_MOST)
        return gpi_send_wrong("workers", config->workers, "from -1 to 64");
    if (config->workers < 0 || GPUPOOL_SINGLE_THREAD) config->workers = 0;
    if (!chunk) chunk = GPUPOOL_RING_CHUNK_BYTES;
    chunk = (size_t)gpi_ground_max(gpi_ground_min(chunk, config->bytes / 4), 1u << 16);
    config->chunk_bytes = (size_t)gpi_ground_down(chunk, GPI_PAGE_BYTES);
    return GPUPOOL_OK;
}

static gpupool_result gpi_send_open(gpupool_ring *ring, const gpupool_ring_config *config) {
    const gpi_driver *driver = &ring->stage.driver;
    gpupool_result result = GPUPOOL_OK;
    int list;
    ring->stage.slot_bytes = config->chunk_bytes;
    ring->stage.count = config->bytes / config->chunk_bytes;
    ring->forks = gpi_process.forks;
    ring->workers_wanted = config->workers;
    for (list = 0; list < 2 && result == GPUPOOL_OK; list++)
        result = gpi_driver_stream_new(driver, &ring->lists[list]);
    if (result != GPUPOOL_OK && list == 2) driver->stream_destroy(ring->lists[0]);
    return result;
}

/* The host's side goes. */
static void gpi_send_forget(gpupool_ring *ring) {
    gpi_transfer *record;
    while ((record = ring->spare) != NULL) {
        ring->spare = record->next;
        GPUPOOL_FREE(record);
    }
    gpi_host_pages_give(&ring->stage.pages);
    gpi_driver_close(&ring->stage.driver);
    GPUPOOL_FREE(ring);
}

gpupool_result gpupool_ring_create(gpupool_ring **out, const gpupool_ring_config *given) {
    gpupool_ring_config config;
    gpupool_ring *ring;
    gpupool_result result;
    gpi_visit visit;
    gpi_host_begin();
    if (!out) return gpi_send_lacks("gpupool_ring_create", "ring");
    *out = NULL;
    result = gpi_host_may_open("gpupool_ring_create");
    if (result != GPUPOOL_OK) return result;
    memset(&config, 0, sizeof config);
    config.device = GPUPOOL_DEVICE_CURRENT;
    if (given) config = *given;
    result = gpi_send_validate(&config);
    if (result == GPUPOOL_OK) result = gpi_driver_name_device(&config.device);
    if (result != GPUPOOL_OK) return result;
    gpi_host_watch_forks();
    gpi_host_prepare_workers(gpi_ring_at_exit);
    ring = (gpupool_ring *)gpi_host_zeroed(sizeof *ring);
    if (!ring) return gpi_host_no_memory();
    result = gpi_driver_open(&ring->stage.driver, config.device);
    if (result == GPUPOOL_OK) result = gpi_driver_enter(&ring->stage.driver, &visit);
    if (result == GPUPOOL_OK) {
        result = gpi_send_open(ring, &config);
        gpi_driver_leave(&visit);
    }
    if (result == GPUPOOL_OK) *out = ring;
    else gpi_send_forget(ring);
    return result == GPUPOOL_OK ? gpi_host_ok() : result;
}

gpupool_result gpupool_ring_trim(gpupool_ring *ring, size_t keep_bytes, size_t *released_bytes) {
    gpi_visit visit;
    uint64_t before;
    gpupool_result result = gpi_ring_enter(ring, "gpupool_ring_trim", &visit);
    if (released_bytes) *released_bytes = 0;
    if (result != GPUPOOL_OK) return result;
    before = ring->stage.pinned.now;
    gpi_stage_poll(&ring->stage, &result);
    while (result == GPUPOOL_OK && ring->stage.pinned.now > keep_bytes &&
           gpi_stage_unpin(&ring->stage, &result)) {}
    if (released_bytes && before > ring->stage.pinned.now)
        *released_bytes = (size_t)(before - ring->stage.pinned.now);
    return gpi_ring_leave(ring, &visit, result);
}

/* Gives all to the driver that is its own; what it does not take back stays the ring's. */
static gpupool_result gpi_send_close(gpupool_ring *ring) {
    gpupool_result result = GPUPOOL_OK;
    gpi_transfer *record;
    unsigned round = 0;
    while (result == GPUPOOL_OK && ring->stage.flying.now)
        if (!gpi_stage_poll(&ring->stage, &result)) gpi_ring_idle(ring, &round, UINT64_MAX);
    if (result == GPUPOOL_OK) result = gpi_stage_close(&ring->stage);
    for (record = ring->spare; record && result == GPUPOOL_OK; record = record->next)
        result = gpi_driver_forget(&ring->stage.driver, &record->event);
    if (result == GPUPOOL_OK && ring->lists[0] != ring->lists[1]) {
        result = gpi_driver_stream_drop(&ring->stage.driver, ring->lists[0]);
        if (result == GPUPOOL_OK) ring->lists[0] = ring->lists[1]; /* one does, if it has to stay */
    }
    if (result != GPUPOOL_OK) return result;
    return gpi_driver_stream_drop(&ring->stage.driver, ring->lists[1]);
}

gpupool_result gpupool_ring_destroy(gpupool_ring *ring) {
    gpi_visit visit;
    gpi_transfer *left;
    unsigned round = 0;
    int reset = 0;
    gpupool_result result = gpi_ring_exists(ring, "gpupool_ring_destroy");
    if (result == GPUPOOL_OK) result = gpi_driver_enter(&ring->stage.driver, &visit);
    if (result != GPUPOOL_OK) return result;
    result = gpi_driver_was_reset(&ring->stage.driver, &reset);
    gpi_ring_lock(ring);
    if (result == GPUPOOL_OK && !reset && ring->held)
        result = gpi_host_fail(GPUPOOL_E_IN_USE, "gpupool_ring_destroy: spans still held: "
                               "%" PRIu64, ring->held);
    while (result == GPUPOOL_OK && !reset && ring->transfers) {
        if (gpi_ring_work(ring, GPI_RING_CALLER)) round = 0;
        else gpi_ring_idle(ring, &round, UINT64_MAX);
    }
    if (result == GPUPOOL_OK) gpi_ring_dismiss(ring);
    if (result == GPUPOOL_OK && !reset) result = gpi_send_close(ring);
    if (result != GPUPOOL_OK) return gpi_ring_leave(ring, &visit, result);
    while ((left = ring->transfers) != NULL) { /* tickets; the reset has taken the rest */
        ring->transfers = left->next;
        gpi_ring_spare(ring, left);
        if (left->is_file) gpi_host_file_close(&left->file);
    }
    gpi_host_unlock(&ring->stage.lock);
    gpi_driver_leave(&visit);
    gpi_send_forget(ring);
    return gpi_host_ok();
}

/* -- spans -- */

/* The span's first slot; its number tells which, and its memory whose: rings number alike. NULL,
   with a result: it is not held. */
static gpi_stage_slot *gpi_send_span(const gpupool_ring *ring, const char *call,
                                     const gpupool_span *span) {
    uint64_t i, end = span ? ring->stage.top : 0;
    for (i = 0; i < end; i++) {
        gpi_stage_slot *slot = &ring->stage.slots[i];
        if (slot->state == GPI_STAGE_HELD && slot->run && slot->span &&
            slot->span == span->number && span->memory == gpi_stage_memory(&ring->stage, slot))
            return slot;
    }
    gpi_host_fail(GPUPOOL_E_ARGUMENT, "%s: %s", call,
                  span ? "this span is not held, or is another ring's" : "span is NULL");
    return NULL;
}

/* Whether waiting can help: what flies will land, and other threads may give up their spans. A
   thread that holds one itself does not wait for those of others, which may wait for its own.
   Where pinning more was refused just now, what is pinned has to do. */
static gpupool_result gpi_send_span_hope(const gpupool_ring *ring, size_t bytes) {
    const gpi_stage_slot *slots = ring->stage.slots, *first = slots;
    gpupool_result refused = gpi_thread.result;
    uint64_t end = refused == GPUPOOL_OK ? ring->stage.count : ring->stage.pinned_slots;
    uint64_t thread = gpi_host_thread_number(), run = 0, longest = 0, i;
    int holds = 0;
    for (i = 0; i < ring->stage.top; i++)
        holds |= slots[i].state == GPI_STAGE_HELD && slots[i].run && slots[i].holder == thread;
    for (i = 0; i < end; i++) {
        int held = i < ring->stage.top && slots[i].state == GPI_STAGE_HELD;
        if (held && slots[i].run) first = &slots[i];
        run = held && (holds || !first->span) ? 0 : run + 1;
        longest = gpi_ground_max(longest, run);
    }
    longest *= ring->stage.slot_bytes;
    if (longest >= bytes) return GPUPOOL_OK;
    if (refused != GPUPOOL_OK) return refused;
    return gpi_host_fail(GPUPOOL_E_TIMEOUT, "gpupool_ring_acquire_span: %" PRIu64 " bytes cannot "
                         "be had while spans are held that this thread would wait for; the largest "
                         "span that can be had beside them is %" PRIu64 " bytes", (uint64_t)bytes,
                         longest);
}

/* Slots for so many bytes; NULL, with a result: not in the time. */
static gpi_stage_slot *gpi_send_span_slots(gpupool_ring *ring, size_t bytes, uint64_t most_ns,
                                           gpupool_result *result) {
    uint64_t start = gpi_host_now_ns(), size = ring->stage.slot_bytes, waited;
    unsigned round = 0;
    for (;;) {
        gpi_stage_slot *slot;
        int did;
        gpi_host_ok(); /* until pinning, if that is tried, says otherwise */
        slot = gpi_ring_slots(ring, (bytes + size - 1) / size, result);
        if (slot || *result != GPUPOOL_OK) return slot;
        *result = gpi_send_span_hope(ring, bytes);
        if (*result != GPUPOOL_OK) return NULL;
        did = gpi_ring_help(ring);
        waited = gpi_host_now_ns() - start;
        if (waited >= most_ns) break;
        if (did) gpi_ring_busy(ring, &round);
        else gpi_ring_idle(ring, &round, most_ns - waited);
    }
    *result = gpi_host_fail(GPUPOOL_E_TIMEOUT, "gpupool_ring_acquire_span: the ring stayed full");
    return NULL;
}

gpupool_result gpupool_ring_acquire_span(gpupool_ring *ring, size_t bytes, int64_t timeout_ns,
                                    gpupool_span *span) {
    gpi_visit visit;
    gpi_stage_slot *slot = NULL;
    gpupool_result result = gpi_ring_enter(ring, "gpupool_ring_acquire_span", &visit);
    if (result != GPUPOOL_OK) return result;
    if (!span || bytes == 0 || bytes > ring->stage.count * ring->stage.slot_bytes)
        result = gpi_host_fail(GPUPOOL_E_ARGUMENT, "gpupool_ring_acquire_span: %s from 1 to "
                               "%" PRIu64 ", the whole ring",
                               span ? "bytes must be" : "span is NULL; bytes may be",
                               ring->stage.count * ring->stage.slot_bytes);
    else slot = gpi_send_span_slots(ring, bytes, (uint64_t)timeout_ns, &result);
    if (slot) {
        gpi_stage_set(slot, GPI_STAGE_HELD);
        slot->span = span->number = ++ring->spans;
        slot->holder = gpi_host_thread_number();
        slot->length = span->bytes = bytes;
        span->memory = gpi_stage_memory(&ring->stage, slot);
        ring->held++;
    }
    return gpi_ring_leave(ring, &visit, result);
}

gpupool_result gpupool_ring_upload_span(gpupool_ring *ring, gpupool_span *span, void *device_dst,
                                   cudaStream_t stream) {
    gpi_transfer plan = gpi_send_plan("gpupool_ring_upload_span", device_dst, NULL, 0, stream);
    gpi_visit visit;
    gpi_stage_slot *slot;
    uint64_t held_bytes;
    int lost = 0;
    gpupool_result result = gpi_ring_enter(ring, plan.call, &visit);
    if (result != GPUPOOL_OK) return result;
    slot = gpi_send_span(ring, plan.call, span);
    if (!slot) return gpi_ring_leave(ring, &visit, GPUPOOL_E_ARGUMENT);
    held_bytes = slot->length;
    plan.driver = &ring->stage.driver;
    if (!device_dst) result = gpi_send_lacks(plan.call, "device_dst");
    else if (span->bytes == 0 || span->bytes > held_bytes)
        result = gpi_host_fail(GPUPOOL_E_ARGUMENT, "%s: span.bytes was set to 0 or raised",
                               plan.call);
    else result = gpi_send_may_queue(&plan);
    if (result != GPUPOOL_OK) return gpi_ring_leave(ring, &visit, result);
    plan.width = plan.bytes = slot->length = span->bytes;
    gpi_stage_set(slot, GPI_STAGE_FILLING); /* nobody else sends it, or gives it up */
    gpi_ring_unlock(ring);
    result = gpi_ring_send(ring, slot, &plan, &lost);
    gpi_ring_lock(ring);
    gpi_stage_set(slot, GPI_STAGE_HELD);
    if (result == GPUPOOL_OK) {
        gpi_stage_fly(&ring->stage, slot);
        gpi_ring_count(ring, &plan);
        ring->span_bytes += plan.bytes;
        ring->held--;
        memset(span, 0, sizeof *span);
    } else {
        slot->length = held_bytes;
    }
    return gpi_ring_leave(ring, &visit, result);
}

gpupool_result gpupool_ring_cancel_span(gpupool_ring *ring, gpupool_span *span) {
    gpi_visit visit;
    gpi_stage_slot *slot;
    gpupool_result result = gpi_ring_enter(ring, "gpupool_ring_cancel_span", &visit);
    if (result != GPUPOOL_OK) return result;
    slot = gpi_send_span(ring, "gpupool_ring_cancel_span", span);
    if (!slot) return gpi_ring_leave(ring, &visit, GPUPOOL_E_ARGUMENT);
    gpi_stage_free(&ring->stage, slot);
    ring->held--;
    memset(span, 0, sizeof *span);
    return gpi_ring_leave(ring, &visit, result);
}

/* -- figures -- */

gpupool_result gpupool_ring_get_stats(gpupool_ring *ring, gpupool_ring_stats *stats) {
    const gpi_stage *stage;
    uint64_t now;
    int way;
    gpupool_result result = gpi_ring_exists(ring, "gpupool_ring_get_stats");
    if (result != GPUPOOL_OK) return result;
    if (!stats) return gpi_send_lacks("gpupool_ring_get_stats", "stats");
    stage = &ring->stage;
    gpi_ring_lock(ring);
    now = gpi_host_now_ns(); /* not before what others wrote down */
    *stats = ring->stats;
    stats->struct_bytes = sizeof *stats;
    stats->pinned = stage->pinned;
    stats->used = stage->used;
    stats->limit_bytes = stage->count * stage->slot_bytes;
    stats->workers = (uint64_t)ring->workers_running;
    stats->pin_ns = stage->pin_ns;
    stats->pin_failures = stage->pin_failures;
    stats->link_busy_ns[GPUPOOL_UP] = gpi_stage_ns(&stage->flying, now);
    stats->link_busy_ns[GPUPOOL_DOWN] = gpi_stage_ns(&ring->arriving, now);
    for (way = 0; way < 2; way++) {
        double seconds, bytes = (double)stats->staged_bytes[way];
        if (way == GPUPOOL_UP) bytes -= (double)ring->span_bytes; /* filled when nobody looked */
        stats->under_way_ns[way] = gpi_stage_ns(&ring->under_way[way], now);
        seconds = (double)stats->under_way_ns[way] * 1e-9;
        if (seconds <= 0) continue;
        stats->gb_per_s[way] = bytes * 1e-9 / seconds;
        stats->link_busy[way] = (double)stats->link_busy_ns[way] * 1e-9 / seconds;
        if (stats->link_busy[way] > 1) stats->link_busy[way] = 1;
    }
    gpi_ring_unlock(ring);
    return result;
}

gpupool_result gpupool_ring_check(gpupool_ring *ring) {
    int broken;
    gpupool_result result = gpi_ring_exists(ring, "gpupool_ring_check");
    if (result != GPUPOOL_OK) return result;
    gpi_host_lock(&ring->stage.lock);
    broken = gpi_ring_check(ring);
    gpi_host_unlock(&ring->stage.lock);
    if (!broken) return result;
    return gpi_host_fail(GPUPOOL_E_CORRUPT, "gpupool_ring_check: invariant R%d is broken", broken);
}

/* == WORDING ==================================================================================
   Results, sources and numbers as text. uses: HOST */

const char *gpupool_result_name(gpupool_result result) {
    static const char names[][24] = { /* in the order of the enum */
        "GPUPOOL_OK", "GPUPOOL_E_ARGUMENT", "GPUPOOL_E_OUT_OF_MEMORY", "GPUPOOL_E_NOT_OURS",
        "GPUPOOL_E_INSIDE", "GPUPOOL_E_DOUBLE_FREE", "GPUPOOL_E_OVERRUN", "GPUPOOL_E_CORRUPT",
        "GPUPOOL_E_IN_USE", "GPUPOOL_E_CAPTURING",
        "GPUPOOL_E_TIMEOUT", "GPUPOOL_E_UNSUPPORTED", "GPUPOOL_E_FORKED", "GPUPOOL_E_CALLBACK",
        "GPUPOOL_E_FILE", "GPUPOOL_E_HOST_MEMORY", "GPUPOOL_E_ASLEEP", "GPUPOOL_E_CUDA"};
    size_t number = (size_t)result;
    return number < sizeof names / sizeof *names ? names[number] : "no gpupool_result";
}

gpupool_result gpupool_last_result(void) { return gpi_thread.result; }

const char *gpupool_last_error(void) {
    return gpi_thread.result == GPUPOOL_OK ? gpi_thread.text : gpi_thread.draft;
}

#define GPI_TEXT(number) #number
#define GPI_SPELL(macro) GPI_TEXT(macro)

int gpupool_get_version(void) { return GPUPOOL_VERSION; }

const char *gpupool_get_build(void) {
    return "gpupool " GPI_SPELL(GPUPOOL_VERSION) " unit=" GPI_SPELL(GPUPOOL_UNIT_BYTES)
           " chunk=" GPI_SPELL(GPUPOOL_CHUNK_BYTES) " ring=" GPI_SPELL(GPUPOOL_RING_BYTES)
           " ring_chunk=" GPI_SPELL(GPUPOOL_RING_CHUNK_BYTES)
           " ring_workers=" GPI_SPELL(GPUPOOL_RING_WORKERS) " limit=\"" GPUPOOL_LIMIT "\""
           " share=" GPI_SPELL(GPUPOOL_SHARE) " mapped=" GPI_SPELL(GPUPOOL_MAPPED)
           " check=" GPI_SPELL(GPUPOOL_CHECK)
           " guard=" GPI_SPELL(GPI_GUARD)
           " stats=" GPI_SPELL(GPUPOOL_STATS) " sites=" GPI_SPELL(GPUPOOL_SITES)
           " nvtx=" GPI_SPELL(GPUPOOL_NVTX)
           " single_thread=" GPI_SPELL(GPUPOOL_SINGLE_THREAD) " static=" GPI_SPELL(GPUPOOL_STATIC)
           " stream_hook=" GPI_SPELL(GPUPOOL_STREAM_HOOK)
           " stream_check=" GPI_SPELL(GPUPOOL_STREAM_CHECK)
           " replace_cuda_malloc=" GPI_SPELL(GPUPOOL_REPLACE_CUDA_MALLOC);
}

static gpupool_result gpi_wording_done(const char *call, FILE *file) {
    if (fflush(file) == 0 && !ferror(file)) return gpi_host_ok();
    return gpi_host_fail(GPUPOOL_E_FILE, "%s: the file cannot be written: %s", call,
                         errno ? strerror(errno) : "something before this call could not");
}

/* Bytes of the letter that the text begins with, in UTF-8; 0: it is none, as where a name was cut
   off, or written in another encoding. */
static size_t gpi_wording_letter(const char *text, size_t length) {
    unsigned first = (unsigned char)*text, second, i;
    size_t bytes = first < 0x80 ? 1 : first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3
                   : first < 0xf5 ? 4 : 0;
    if (bytes < 2 || bytes > length) return bytes > length ? 0 : bytes;
    for (i = 1; i < bytes; i++)
        if (((unsigned char)text[i] & 0xc0) != 0x80) return 0;
    second = (unsigned char)text[1]; /* not longer than need be, half of a pair, or too large */
    if ((first == 0xe0 && second < 0xa0) || (first == 0xed && second >= 0xa0) ||
        (first == 0xf0 && second < 0x90) || (first == 0xf4 && second >= 0x90))
        return 0;
    return bytes;
}

/* With a point, which printf has from the locale. */
static const char *gpi_wording_decimal(char room[32], double value, int digits) {
    uint64_t scale = 1, parts;
    int i;
    for (i = 0; i < digits; i++) scale *= 10;
    parts = (uint64_t)(value * (double)scale + 0.5);
    snprintf(room, 32, "%" PRIu64 ".%0*" PRIu64, parts / scale, digits, parts % scale);
    return room;
}

static const char *gpi_wording_source(gpupool_source source) {
    static const char names[7][8] = {"auto", "mapped", "device", "managed",
                                     "pinned", "custom", "bypass"};
    return names[source];
}

/* == VIEW =====================================================================================
   A copy of the arena as it is at one moment, by address: reports, files and pictures are made from
   it. uses: ARENA, FIGURES */

enum {
    GPI_NOBODY = UINT16_MAX,
    GPI_SHOWN = 8           /* holders in a report */
};

typedef struct gpi_stretch { /* of memory: a block, or what is free */
    uint64_t unit, units;
    uint64_t block_unit;   /* live: where the block begins; elsewhere if it is stitched */
    uint64_t block_bytes;  /* live: what was asked for with it; 0: told with another part of it */
    uint32_t slack_bytes;  /* live: granted minus requested */
    uint32_t site;         /* live: index into the view's sites */
    uint16_t stream;       /* index into the view's keys; GPI_NOBODY: not known, or several */
    uint8_t state, first;  /* first: the arena's chunk begins here */
    uint8_t tag;           /* live */
} gpi_stretch;

typedef struct gpi_view {
    gpupool_stats stats;
    char name[32], instead[96];
    int device, owner;      /* known: what the device says of its memory */
    gpupool_source source;
    size_t device_free_bytes, device_total_bytes;
    void *room;             /* one piece of the host's memory, in which all that follows is */
    uint64_t room_bytes, need_bytes;
    gpi_stretch *stretches; /* by address */
    gpi_stretch *others;    /* as much room again, to sort into */
    uint64_t count;
    gpi_site *sites;        /* copies of those that count; number: the index of the stream */
    uint64_t site_count;
    uint64_t *keys;         /* of streams */
    uint64_t key_count, key_room;
    uint16_t last[64];      /* by a hash of the key: its index */
    uint16_t *lists;        /* list -> stream */
    uint64_t units[3];      /* by state */
    gpi_holding holders[GPI_SHOWN];
    gpupool_tag_stats tags[GPUPOOL_TAGS + 1];
    int tag_count;
} gpi_view;

/* 0: the room is not enough for what the arena has now. The lock is held. */
static int gpi_view_lay_out(gpi_view *view, const gpupool_arena *arena) {
    uint64_t runs = arena->tree.page_count * GPI_PAGE - arena->tree.spare_count, sites = 0;
#if GPUPOOL_SITES
    sites = arena->ledger.site_count + 1;
#endif
    /* and some that are no more; all have an index */
    view->key_room = gpi_ground_min(arena->clocks.stream_count + sites + 16, GPI_NOBODY);
    view->need_bytes = 2 * runs * sizeof *view->stretches + sites * sizeof *view->sites +
                       view->key_room * sizeof *view->keys +
                       arena->tree.list_count * sizeof *view->lists;
    if (view->need_bytes > view->room_bytes) return 0;
    view->stretches = (gpi_stretch *)view->room;
    view->others = view->stretches + runs;
    view->sites = (gpi_site *)(view->others + runs);
    view->keys = (uint64_t *)(view->sites + sites);
    view->lists = (uint16_t *)(view->keys + view->key_room);
    return 1;
}

/* Asked for every live block: where the key was found last is looked at first. */
static uint16_t gpi_view_stream(gpi_view *view, uint64_t key) {
    uint16_t *last = &view->last[(key * 0x9e3779b97f4a7c15ull) >> 58];
    uint64_t i = 0;
    if (key == 0) return GPI_NOBODY;
    if (*last < view->key_count && view->keys[*last] == key) return *last;
    while (i < view->key_count && view->keys[i] != key) i++;
    if (i == view->key_room) return GPI_NOBODY;
    if (i == view->key_count) view->keys[view->key_count++] = key;
    *last = (uint16_t)i;
    return *last;
}

static void gpi_view_copy_streams(gpi_view *view, gpupool_arena *arena) {
    const gpi_stream *stream = arena->clocks.streams;
    for (; stream; stream = stream->next) {
        if (!stream->handle || (stream == arena->clocks.all && !stream->clock.issued)) continue;
        view->lists[stream->list] = gpi_view_stream(view, stream->handle);
    }
}

#if GPUPOOL_SITES
static void gpi_view_copy_sites(gpi_view *view, gpupool_arena *arena) {
    gpi_site *site = NULL;
    int bucket;
    while ((site = gpi_ledger_next_site(&arena->ledger, site, &bucket)) != NULL) {
        if (site->same != site || !site->allocs) continue;
        site->number = (uint32_t)view->site_count;
        view->sites[view->site_count] = *site;
        view->sites[view->site_count++].number = gpi_view_stream(view, site->key);
    }
}
#endif

/* What a live block's home run is shown as: a stitched block has several, of which the last has its
   slack, and the first tells what was asked for. */
static void gpi_view_copy_live(gpi_view *view, const gpi_run *block, const gpi_stitch *stitch,
                               gpi_stretch *stretch) {
    stretch->state = GPUPOOL_STATE_LIVE;
    stretch->block_unit = block->unit;
    stretch->tag = (uint8_t)gpi_tree_tag(block);
    stretch->stream = gpi_view_stream(view, block->by.stream);
    if (!stitch || stretch->unit == stitch->parts[0].unit)
        stretch->block_bytes = block->units * GPUPOOL_UNIT_BYTES - gpi_tree_slack(block);
    if (!stitch || stretch->unit == stitch->parts[stitch->part_count - 1].unit)
        stretch->slack_bytes = (uint32_t)gpi_ground_min(gpi_tree_slack(block),
                                                        stretch->units * GPUPOOL_UNIT_BYTES - 1);
#if GPUPOOL_SITES
    stretch->site = block->site->number;
#endif
}

/* A block that is free in a cache, or handed out from there. */
static void gpi_view_copy_cached(gpi_view *view, const gpi_run *run, gpi_stretch *stretch) {
    uint64_t asked = gpi_cache_asked_at((const gpi_cache *)run->of.uses, run->unit);
    stretch->stream = gpi_view_stream(view, run->by.stream);
    if (!asked) return;
    stretch->state = GPUPOOL_STATE_LIVE;
    stretch->block_unit = run->unit;
    stretch->block_bytes = asked;
    stretch->slack_bytes = (uint32_t)(run->units * GPUPOOL_UNIT_BYTES - asked);
#if GPUPOOL_SITES
    stretch->site = run->site->number;
#endif
}

/* Whether a run is no memory, or nobody's yet: addresses without any, and those of stitches, whose
   blocks are shown at home. */
static int gpi_view_skips(const gpupool_arena *arena, const gpi_run *run) {
    if (run->units == 0 || run->list == GPI_LIST_EMPTY) return 1;
    if (gpi_stitch_is(&arena->stitches, run)) return 1;
    return run->list == GPI_LIST_TAKEN;
}

/* All runs that are memory; page by page, since their lists lead all over the host's memory. By
   address they are put later, without the lock. */
static void gpi_view_copy_runs(gpi_view *view, const gpupool_arena *arena, const gpi_run *run,
                               const gpi_run *end) {
    for (; run < end; run++) {
        gpi_stretch *stretch = &view->stretches[view->count];
        const gpi_stitch *stitch = NULL;
        const gpi_run *block = run;
        if (gpi_view_skips(arena, run)) continue;
        if (run->list == GPI_LIST_PART) {
            stitch = (const gpi_stitch *)run->of.uses;
            block = stitch->body;
        }
        memset(stretch, 0, sizeof *stretch);
        stretch->unit = run->unit;
        stretch->units = run->units;
        stretch->stream = GPI_NOBODY;
        stretch->state = GPUPOOL_STATE_PENDING;
        stretch->first = run->prev == NULL;
        if (run->list == GPI_LIST_CACHED) gpi_view_copy_cached(view, run, stretch);
        else if (block->list == GPI_LIST_LIVE) gpi_view_copy_live(view, block, stitch, stretch);
        else if (gpi_tree_is_finished(run)) stretch->state = GPUPOOL_STATE_FREE;
        else if (run->list < GPI_LIST_WAITING) stretch->stream = view->lists[run->list];
        view->units[stretch->state] += run->units;
        view->count++;
    }
}

/* With `growing` and the lock held: no run is in anybody's hands. */
static void gpi_view_copy(gpi_view *view, gpupool_arena *arena) {
    const gpi_stream *stream;
    gpi_cached cached;
    uint64_t page;
    int tag;
    memset(&cached, 0, sizeof cached);
    for (stream = arena->clocks.streams; stream; stream = stream->next)
        gpi_cache_count(&stream->cache, &cached);
    gpi_figures_read(arena, &cached, &view->stats);
    memcpy(view->name, arena->name, sizeof view->name);
    memcpy(view->instead, arena->instead, sizeof view->instead);
    view->device = arena->chunks.driver.device;
    view->source = arena->chunks.source;
    gpi_view_copy_streams(view, arena);
    view->tag_count = arena->ledger.tag_count;
    for (tag = 1; tag <= view->tag_count; tag++) gpi_tag_read(arena, tag, &view->tags[tag]);
#if GPUPOOL_SITES
    gpi_view_copy_sites(view, arena);
    gpi_verdict_places(arena, view->holders, GPI_SHOWN);
#endif
    for (page = 0; page < arena->tree.page_count; page++)
        gpi_view_copy_runs(view, arena, gpi_tree_page(&arena->tree, page),
                           gpi_tree_page(&arena->tree, page) + GPI_PAGE);
}

enum { GPI_DIGIT = 11 }; /* bits of an address that one round of sorting looks at */

static unsigned gpi_view_digit(uint64_t unit, unsigned shift) {
    return (unsigned)(unit >> shift & ((1 << GPI_DIGIT) - 1));
}

/* By address, least digit first, as far as addresses differ: in less than 55 bits. */
static void gpi_view_sort(gpi_view *view) {
    uint64_t least = UINT64_MAX, most = 0, i, starts[(1 << GPI_DIGIT) + 1];
    gpi_stretch *from = view->stretches, *to = view->others;
    unsigned shift;
    for (i = 0; i < view->count; i++) {
        least = gpi_ground_min(least, from[i].unit);
        most = gpi_ground_max(most, from[i].unit);
    }
    for (shift = 0; view->count && (most - least) >> shift; shift += GPI_DIGIT) {
        memset(starts, 0, sizeof starts);
        for (i = 0; i < view->count; i++) starts[gpi_view_digit(from[i].unit - least, shift) + 1]++;
        for (i = 1; i < 1 << GPI_DIGIT; i++) starts[i] += starts[i - 1];
        for (i = 0; i < view->count; i++)
            to[starts[gpi_view_digit(from[i].unit - least, shift)]++] = from[i];
        view->stretches = to;
        to = from;
        from = view->stretches;
    }
}

#if !GPUPOOL_SITES
static void gpi_view_find_holders(gpi_view *view) { /* of the copy: that needs no lock */
    const gpi_stretch *stretch, *end = view->stretches + view->count;
    gpi_ballot ballot;
    int round;
    memset(&ballot, 0, sizeof ballot);
    for (round = 0; round < 2; round++)
        for (stretch = view->stretches; stretch < end; stretch++)
            if (stretch->block_bytes) gpi_verdict_vote(&ballot, stretch->block_bytes, round);
    gpi_verdict_elect(&ballot, view->holders, GPI_SHOWN);
}
#endif

/* What the device has, for the report only: one that cannot say is no reason to fail. */
static void gpi_view_ask_device(gpi_view *view, const gpi_driver *driver) {
    struct gpi_thread before = gpi_thread;
    gpi_visit visit;
    if (view->source != GPUPOOL_SOURCE_PINNED &&
        gpi_driver_enter(driver, &visit) == GPUPOOL_OK) {
        view->owner =
            gpi_driver_memory(driver, view->stats.reserved.now, &view->device_free_bytes,
                              &view->device_total_bytes) == CUDA_SUCCESS;
        gpi_driver_leave(&visit);
    }
    gpi_thread = before;
}

static gpupool_result gpi_view_open(gpi_view *view, gpupool_arena *arena, const char *call) {
    gpupool_result result = gpi_arena_begin(arena, call);
    gpi_stream *first;
    gpi_cached cached;
    int copied;
    memset(view, 0, sizeof *view);
    if (result != GPUPOOL_OK) return result;
    for (;;) {
        gpi_host_mutex_lock(&arena->growing);
        gpi_arena_fold(arena, &cached);
        gpi_host_unlock(&arena->lock);
        first = gpi_arena_lock_all(arena);
        copied = gpi_view_lay_out(view, arena);
        if (copied) gpi_view_copy(view, arena);
        gpi_arena_unlock_all(arena, first);
        gpi_host_mutex_unlock(&arena->growing);
        if (copied) break;
        GPUPOOL_FREE(view->room);
        view->room_bytes = view->need_bytes + view->need_bytes / 8 + 4096; /* it may grow */
        view->room = GPUPOOL_MALLOC((size_t)view->room_bytes);
        if (!view->room) return gpi_host_no_memory();
    }
    gpi_view_sort(view);
#if !GPUPOOL_SITES
    gpi_view_find_holders(view);
#endif
    return gpi_host_ok();
}

/* The same to be written to a file, with what the device says. */
static gpupool_result gpi_view_open_for(gpi_view *view, gpupool_arena *arena, const char *call,
                                        const FILE *file) {
    gpupool_result result = gpi_arena_begin(arena, call);
    if (result == GPUPOOL_OK && !file)
        result = gpi_host_fail(GPUPOOL_E_ARGUMENT, "%s: file is NULL", call);
    if (result == GPUPOOL_OK) result = gpi_view_open(view, arena, call);
    if (result == GPUPOOL_OK) gpi_view_ask_device(view, &arena->chunks.driver);
    return result;
}

static gpupool_result gpi_view_close(gpi_view *view, const char *call, FILE *file) {
    GPUPOOL_FREE(view->room);
    return gpi_wording_done(call, file);
}

typedef struct gpi_extent { /* of memory without a gap */
    const gpi_stretch *from, *end; /* its stretches */
    uint64_t number;               /* from 1 */
    uint64_t unit, all_units, units[3], requested_bytes; /* units: by state */
} gpi_extent;

/* The chunk after this one; the first, where its number is 0. 0: there is none. One begins
   where the arena's does, and where there is a gap before it. */
static int gpi_view_next_chunk(const gpi_view *view, gpi_extent *chunk) {
    const gpi_stretch *at = chunk->number ? chunk->end : view->stretches;
    uint64_t number = chunk->number + 1;
    if (at == view->stretches + view->count) return 0;
    memset(chunk, 0, sizeof *chunk);
    chunk->number = number;
    chunk->from = at;
    chunk->unit = at->unit;
    do {
        chunk->all_units += at->units;
        chunk->units[at->state] += at->units;
        if (at->state == GPUPOOL_STATE_LIVE)
            chunk->requested_bytes += at->units * GPUPOOL_UNIT_BYTES - at->slack_bytes;
        at++;
    } while (at < view->stretches + view->count && !at->first &&
             at->unit == chunk->unit + chunk->all_units);
    chunk->end = at;
    return 1;
}

/* The line of source that asked for a block; NULL: not known. */
static const gpi_site *gpi_view_site(const gpi_view *view, const gpi_stretch *stretch) {
    const gpi_site *site;
    if (!GPUPOOL_SITES || stretch->state != GPUPOOL_STATE_LIVE) return NULL;
    site = &view->sites[stretch->site];
    return *site->file ? site : NULL;
}

/* -- the walk -- */

static void gpi_view_describe(const gpi_view *view, const gpi_stretch *stretch,
                              gpupool_block *block) {
    const gpi_site *site = gpi_view_site(view, stretch);
    uint64_t bytes = stretch->units * GPUPOOL_UNIT_BYTES;
    block->state = (gpupool_state)stretch->state;
    block->memory = (void *)(uintptr_t)(stretch->unit * GPUPOOL_UNIT_BYTES);
    block->bytes = (size_t)bytes;
    block->requested_bytes = block->block_bytes = 0;
    block->tag = stretch->tag;
    block->block = NULL;
    block->stream = stretch->stream == GPI_NOBODY
                        ? NULL : gpi_figures_stream(view->keys[stretch->stream]);
    block->file = site ? site->file : NULL;
    block->line = site ? site->line : 0;
    if (block->state != GPUPOOL_STATE_LIVE) return;
    block->requested_bytes = (size_t)(bytes - stretch->slack_bytes);
    block->block = (void *)(uintptr_t)(stretch->block_unit * GPUPOOL_UNIT_BYTES);
    block->block_bytes = (size_t)stretch->block_bytes;
}

gpupool_result gpupool_walk_blocks(gpupool_arena *arena, gpupool_block_fn fn, void *user) {
    gpupool_result result = gpi_arena_begin(arena, "gpupool_walk_blocks");
    gpupool_block block;
    gpi_view view;
    uint64_t i;
    int ended = 0;
    if (result != GPUPOOL_OK) return result;
    if (!fn) return gpi_host_fail(GPUPOOL_E_ARGUMENT, "gpupool_walk_blocks: fn is NULL");
    result = gpi_view_open(&view, arena, "gpupool_walk_blocks");
    if (result != GPUPOOL_OK) return result;
    block.arena = arena;
    block.device = view.device;
    block.source = view.source;
    for (i = 0; i < view.count && !ended; i++) {
        gpi_view_describe(&view, &view.stretches[i], &block);
        ended = fn(&block, user);
    }
    GPUPOOL_FREE(view.room);
    if (!ended) return gpi_host_ok();
    return gpi_host_fail(GPUPOOL_E_CALLBACK, "gpupool_walk_blocks: fn returned %d", ended);
}

static uint64_t gpi_view_bytes(const gpi_view *view, gpupool_state state) {
    return view->units[state] * GPUPOOL_UNIT_BYTES;
}

static uint64_t gpi_view_free_bytes(const gpi_view *view) {
    return gpi_view_bytes(view, GPUPOOL_STATE_FREE) + gpi_view_bytes(view, GPUPOOL_STATE_PENDING);
}

/* Of the device's memory in use, what this arena does not hold: the limit does not count it. */
static uint64_t gpi_view_others(const gpi_view *view) {
    uint64_t used = view->device_total_bytes - view->device_free_bytes;
    return used - gpi_ground_min(used, view->stats.reserved.now);
}

static double gpi_view_fragmentation(const gpi_view *view) {
    uint64_t free_bytes = gpi_view_free_bytes(view);
    if (free_bytes == 0) return 0;
    return 1 - (double)view->stats.largest_block_bytes / (double)free_bytes;
}

/* == REPORT ===================================================================================
   The arena for people and for programs: a screen, JSON, a snapshot. uses: WORDING, VIEW */

enum {
    GPI_BAR = 64,           /* characters of the bar and of the map */
    GPI_MAP_LINES = 4
};

static void gpi_report_bar(FILE *file, const gpi_view *view) {
    uint64_t live = gpi_view_bytes(view, GPUPOOL_STATE_LIVE), limit = view->stats.limit_bytes;
    uint64_t freed = live + gpi_view_bytes(view, GPUPOOL_STATE_PENDING);
    uint64_t held = view->stats.reserved.now, whole = gpi_ground_max(limit, held);
    char a[32], b[32];
    int i;
    if (!limit && view->owner) whole = held + view->device_free_bytes;
    whole = gpi_ground_max(whole, 1);
    fprintf(file, "  [");
    for (i = 0; i < GPI_BAR; i++) {
        double at = i ? (i + 0.5) / (int)GPI_BAR * (double)whole : 1; /* a little is not nothing */
        fputc(at <= (double)live ? '#' : at <= (double)freed ? '~' : at <= (double)held ? '.' : ' ',
              file);
    }
    if (limit)
        fprintf(file, "] %s of a limit of %s\n", gpi_limit_human(a, held),
                gpi_limit_human(b, limit));
    else if (view->owner)
        fprintf(file, "] %s, no limit; the device has %s more free\n", gpi_limit_human(a, held),
                gpi_limit_human(b, view->device_free_bytes));
    else
        fprintf(file, "] %s, no limit\n", gpi_limit_human(a, held));
    if (limit && held > limit)
        fprintf(file, "   above the limit by %s: no growth until that is given back\n",
                gpi_limit_human(a, held - limit));
    fprintf(file, "   # live   ~ freed, perhaps still in use   . free   (blank: not reserved)\n\n");
}

/* "1,234,567": numbers of some length are read by their groups. */
static const char *gpi_report_number(char room[32], uint64_t number) {
    char digits[32];
    int length = snprintf(digits, sizeof digits, "%" PRIu64, number), i, at = 0;
    for (i = 0; i < length; i++) {
        if (i && (length - i) % 3 == 0) room[at++] = ',';
        room[at++] = digits[i];
    }
    room[at] = 0;
    return room;
}

static const char gpi_report_names[GPI_COUNTERS][12] = {"requested", "granted", "reserved",
                                                        "pending", "blocks"};

static void gpi_report_counters(FILE *file, const gpi_view *view) {
    char now[32], peak[32], total[32];
    int i;
    fprintf(file, "  %-12s %14s %14s %14s\n", "", "now", "peak", "total");
    for (i = 0; i < GPI_COUNTERS; i++) {
        const gpupool_counter *counter = gpi_ledger_counter_of(&view->stats, i);
        const char *(*words)(char *, uint64_t) =
            i < GPI_COUNTERS - 1 ? gpi_limit_human : gpi_report_number; /* blocks are no bytes */
        fprintf(file, "  %-12s %14s %14s %14s\n", gpi_report_names[i], words(now, counter->now),
                words(peak, counter->peak), words(total, counter->total));
    }
}

static void gpi_report_counts(FILE *file, const gpi_view *view) {
    const gpupool_stats *stats = &view->stats;
    char a[32], b[32], c[32], d[32];
    fprintf(file, "\n  %-12s ", "calls");
    if (GPUPOOL_STATS)
        fprintf(file, "allocs %s (%s from the same stream), frees %s, failures %s\n",
                gpi_report_number(a, stats->allocs),
                gpi_report_number(b, stats->same_stream_allocs),
                gpi_report_number(c, stats->frees), gpi_report_number(d, stats->failures));
    else
        fputs("not counted, nor are requested and total: GPUPOOL_STATS is 0\n", file);
    fprintf(file, "  %-12s chunks: %s gained, %s given back; stitches: %s made, %s reused\n",
            "driver", gpi_report_number(a, stats->chunks_gained),
            gpi_report_number(b, stats->chunks_lost), gpi_report_number(c, stats->stitches),
            gpi_report_number(d, stats->stitches_reused));
    if (stats->stitched_bytes)
        fprintf(file, "  %-12s %s of live memory\n", "stitched",
                gpi_limit_human(a, stats->stitched_bytes));
    if (stats->asleep_bytes)
        fprintf(file, "  %-12s %s; the host holds %s of it\n", "asleep",
                gpi_limit_human(a, stats->asleep_bytes), gpi_limit_human(b, stats->backup_bytes));
    fprintf(file, "  %-12s %s on the device, %s on the host\n", "waits",
            gpi_report_number(a, stats->fence_waits), gpi_report_number(b, stats->host_syncs));
    fprintf(file, "  %-12s longest run %s, largest block %s; fragmentation %.0f%%\n", "free memory",
            gpi_limit_human(a, stats->largest_free_bytes),
            gpi_limit_human(b, stats->largest_block_bytes), gpi_view_fragmentation(view) * 100);
    if (view->owner)
        fprintf(file, "  %-12s %s of the device's %s: CUDA's context, libraries, other processes\n",
                "not counted", gpi_limit_human(a, gpi_view_others(view)),
                gpi_limit_human(b, view->device_total_bytes));
    fprintf(file, "  %-12s %s of host memory\n", "records", gpi_limit_human(a, stats->host_bytes));
}

static void gpi_report_holders(FILE *file, const gpi_view *view) {
    const gpupool_holder *holder;
    char name[64], size[32], blocks[32];
    int i;
    for (i = 0; i < GPI_SHOWN && view->holders[i].shown.blocks; i++) {
        holder = &view->holders[i].shown;
        if (i == 0)
            fprintf(file, "\n  %-30s %12s %12s\n", GPUPOOL_SITES ? "biggest holders"
                    : "biggest holders (blocks of)", "blocks", "bytes");
        fprintf(file, "  %-30s %12s %12s\n", gpi_verdict_holder(name, holder),
                gpi_report_number(blocks, holder->blocks), gpi_limit_human(size, holder->bytes));
    }
}

static void gpi_report_tags(FILE *file, const gpi_view *view) {
    char held[32], limit[32], most[32], blocks[32];
    int i;
    for (i = 1; i <= view->tag_count; i++) {
        const gpupool_tag_stats *tag = &view->tags[i];
        if (i == 1)
            fprintf(file, "\n  %-30s %12s %12s %12s %12s\n", "tags", "blocks", "granted", "peak",
                    "budget");
        fprintf(file, "  %-30s %12s %12s %12s %12s\n", tag->name,
                gpi_report_number(blocks, tag->blocks.now),
                gpi_limit_human(held, tag->granted.now), gpi_limit_human(most, tag->granted.peak),
                tag->limit_bytes ? gpi_limit_human(limit, tag->limit_bytes) : "none");
    }
}

static char gpi_report_mark(const uint64_t units[3]) { /* by state */
    uint64_t rest = units[GPUPOOL_STATE_PENDING] + units[GPUPOOL_STATE_FREE];
    if (!rest) return '#';
    if (units[GPUPOOL_STATE_LIVE] >= rest) return '+';
    if (units[GPUPOOL_STATE_LIVE]) return '-';
    return units[GPUPOOL_STATE_PENDING] >= units[GPUPOOL_STATE_FREE] ? '~' : '.';
}

/* Reserved memory laid end to end; a character is what of its share is live, pending and free. */
static void gpi_report_map(FILE *file, const gpi_view *view) {
    uint64_t all = view->units[0] + view->units[1] + view->units[2], sums[3] = {0, 0, 0};
    uint64_t share = (all - 1) / (GPI_BAR * GPI_MAP_LINES) + 1, left = share;
    const gpi_stretch *stretch = view->stretches;
    char size[32];
    int column = 0;
    if (all == 0) return;
    fprintf(file, "\n  map: a character is %s   # live   + half or more   - less   ~ freed"
            "   . free", gpi_limit_human(size, share * GPUPOOL_UNIT_BYTES));
    for (; stretch < view->stretches + view->count; stretch++) {
        uint64_t units = stretch->units, part;
        for (; units; units -= part) {
            part = gpi_ground_min(units, left);
            sums[stretch->state] += part;
            left -= part;
            all -= part;
            if (left && all) continue;
            if (column++ % GPI_BAR == 0) fprintf(file, "\n  ");
            fputc(gpi_report_mark(sums), file);
            memset(sums, 0, sizeof sums);
            left = share;
        }
    }
    fputc('\n', file);
}

gpupool_result gpupool_report(gpupool_arena *arena, FILE *file) {
    gpi_view view;
    gpupool_result result = gpi_view_open_for(&view, arena, "gpupool_report", file);
    if (result != GPUPOOL_OK) return result;
    fprintf(file, "gpupool arena \"%s\": device %d, source %s%s%s%s\n", view.name, view.device,
            gpi_wording_source(view.source), *view.instead ? " (not mapped: " : "", view.instead,
            *view.instead ? ")" : "");
    gpi_report_bar(file, &view);
    gpi_report_counters(file, &view);
    gpi_report_counts(file, &view);
    gpi_report_tags(file, &view);
    gpi_report_holders(file, &view);
    gpi_report_map(file, &view);
    return gpi_view_close(&view, "gpupool_report", file);
}

/* -- for programs: objects, lists, numbers and texts, written as JSON or as a pickle -- */

typedef struct gpi_writer {
    FILE *file;
    int pickle;        /* protocol 2, in the few opcodes that the viewer knows; else JSON */
    const char *comma; /* before the next value of a list or object */
    size_t count;      /* bytes that the file does not have yet: its own calls take longer */
    char bytes[1000];
} gpi_writer;

static void gpi_write_rest(gpi_writer *out) {
    fwrite(out->bytes, 1, out->count, out->file);
    out->count = 0;
}

static void gpi_write_byte(gpi_writer *out, int byte) {
    if (out->count == sizeof out->bytes) gpi_write_rest(out);
    out->bytes[out->count++] = (char)byte;
}

static void gpi_write_bytes(gpi_writer *out, const char *bytes, size_t count) {
    for (; count > 0; count--, bytes++) gpi_write_byte(out, *bytes);
}

static void gpi_write_word(gpi_writer *out, const char *word) {
    gpi_write_bytes(out, word, strlen(word));
}

static void gpi_write_little_endian(gpi_writer *out, uint64_t number, int bytes) {
    for (; bytes > 0; bytes--, number >>= 8) gpi_write_byte(out, (int)(number & 0xff));
}

static void gpi_write_decimal(gpi_writer *out, uint64_t number) {
    char digits[24];
    size_t first = sizeof digits;
    for (; number > 9; number /= 10) digits[--first] = (char)('0' + number % 10);
    gpi_write_byte(out, (int)('0' + number));
    gpi_write_bytes(out, digits + first, sizeof digits - first);
}

static void gpi_write_text(gpi_writer *out, const char *text, size_t length) {
    size_t letter = 0; /* bytes left of it */
    if (out->pickle) {
        gpi_write_byte(out, 'X'); /* BINUNICODE */
        gpi_write_little_endian(out, length, 4);
    } else {
        gpi_write_byte(out, '"');
    }
    for (; length > 0; length--, text++) {
        unsigned c = (unsigned char)*text;
        if (letter == 0) letter = gpi_wording_letter(text, length);
        if (letter == 0) c = '?';
        else letter--;
        if (!out->pickle && (c == '"' || c == '\\')) gpi_write_byte(out, '\\');
        if (!out->pickle && c < ' ') {
            gpi_write_word(out, c < 16 ? "\\u000" : "\\u001");
            c = (unsigned char)"0123456789abcdef"[c % 16];
        }
        gpi_write_byte(out, (int)c);
    }
    if (!out->pickle) gpi_write_byte(out, '"');
}

/* One value that an argument of gpi_write stands for. */
static void gpi_write_value(gpi_writer *out, char kind, uint64_t number, const char *text) {
    if (kind == '$' && text) {
        gpi_write_text(out, text, strlen(text));
    } else if (kind == '!') {
        gpi_write_byte(out, number ? 0x88 : 0x89); /* NEWTRUE, NEWFALSE */
    } else if (out->pickle) {
        gpi_write_word(out, "\x8a\x08"); /* LONG1 of eight bytes */
        gpi_write_little_endian(out, number, 8);
    } else if (kind == '$' || number == UINT64_MAX) {
        gpi_write_word(out, "null");
    } else {
        gpi_write_decimal(out, number);
    }
}

static int gpi_write_is_letter(char c) { /* of a name */
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

/* What `form` says: { } [ ], the names of an object's members as they are, and for each value an
   argument: # a uint64_t, in JSON UINT64_MAX for null; $ a text, in JSON NULL for null; in a pickle
   ! a truth, a uint64_t too. A new line where a list should begin one. */
static void gpi_write(gpi_writer *out, const char *form, ...) {
    size_t length;
    va_list rest;
    va_start(rest, form);
    for (; *form; form += length) {
        for (length = 0; gpi_write_is_letter(form[length]);) length++;
        if (*form == '\n' && *out->comma) out->comma = ",\n";
        if (length == 0) length = 1;
        if (*form == ' ' || *form == '\n') continue;
        if (*form == '}' || *form == ']') {
            /* in a pickle '}' and ']' are empty ones, '(' begins what 'u' and 'e' put into them */
            gpi_write_byte(out, !out->pickle ? *form : *form == '}' ? 'u' : 'e');
            out->comma = ",";
            continue;
        }
        if (!out->pickle) gpi_write_word(out, out->comma);
        out->comma = "";
        if (*form == '{' || *form == '[') {
            if (out->pickle) gpi_write_word(out, *form == '{' ? "}(" : "](");
            else gpi_write_byte(out, *form);
        } else if (*form == '#' || *form == '!' || *form == '$') {
            uint64_t number = *form == '$' ? 0 : va_arg(rest, uint64_t);
            const char *text = *form == '$' ? va_arg(rest, const char *) : NULL;
            gpi_write_value(out, *form, number, text);
            out->comma = ",";
        } else {
            gpi_write_text(out, form, length);
            if (!out->pickle) gpi_write_byte(out, ':');
        }
    }
    va_end(rest);
}

static void gpi_write_list(gpi_writer *out, const uint64_t *numbers, uint64_t count) {
    uint64_t i;
    for (i = 0; i < count; i++) gpi_write(out, "#", numbers[i]);
}

/* -- JSON -- */

static void gpi_json_figures(gpi_writer *out, const gpi_view *view) {
    const gpupool_stats *stats = &view->stats;
    const gpupool_counter *counter;
    uint64_t count[GPI_COUNTS];
    uint64_t unknown = view->owner ? 0 : UINT64_MAX;
    char fragmentation[32];
    int i;
    memcpy(count, (const char *)stats + offsetof(gpupool_stats, allocs), sizeof count);
    gpi_write(out, "\n limit_bytes# device_free_bytes# device_total_bytes# others_bytes#",
              stats->limit_bytes ? stats->limit_bytes : UINT64_MAX,
              (uint64_t)view->device_free_bytes | unknown,
              (uint64_t)view->device_total_bytes | unknown, gpi_view_others(view) | unknown);
    gpi_write(out, "\n counters{");
    for (i = 0; i < GPI_COUNTERS; i++) {
        counter = gpi_ledger_counter_of(stats, i);
        gpi_write(out, gpi_report_names[i]);
        gpi_write(out, "{now# peak# total#}\n", counter->now, counter->peak, counter->total);
    }
    gpi_write(out, "}\n counts{allocs# frees# failures# same_stream_allocs# splits# merges#",
              count[0], count[1], count[2], count[3], count[4], count[5]);
    gpi_write(out, "chunks_gained# chunks_lost# stitches# stitches_reused#", count[6], count[7],
              count[8], count[9]);
    gpi_write(out, "fence_waits# host_syncs#}", count[10], count[11]);
    gpi_write(out, "\n free_bytes# largest_free_bytes# largest_block_bytes# stitched_bytes#",
              gpi_view_free_bytes(view), stats->largest_free_bytes, stats->largest_block_bytes,
              stats->stitched_bytes);
    gpi_write(out, "asleep_bytes# backup_bytes#", stats->asleep_bytes, stats->backup_bytes);
    gpi_write(out, "host_bytes# fragmentation", stats->host_bytes);
    gpi_write_word(out, gpi_wording_decimal(fragmentation, gpi_view_fragmentation(view), 6));
    out->comma = ",\n";
    gpi_write(out, "live_by_order[");
    gpi_write_list(out, stats->live_by_order, GPUPOOL_ORDERS);
    gpi_write(out, "]\n free_by_order[");
    gpi_write_list(out, stats->free_by_order, GPUPOOL_ORDERS);
    gpi_write(out, "]\n streams[");
    gpi_write_list(out, view->keys, view->key_count);
    gpi_write(out, "]\n");
}

static void gpi_json_tags(gpi_writer *out, const gpi_view *view) {
    int i;
    gpi_write(out, "tags[");
    for (i = 1; i <= view->tag_count; i++) {
        const gpupool_tag_stats *tag = &view->tags[i];
        gpi_write(out, "\n{name$ limit_bytes# soft_limit_bytes#", tag->name,
                  tag->limit_bytes ? tag->limit_bytes : UINT64_MAX,
                  tag->soft_limit_bytes ? tag->soft_limit_bytes : UINT64_MAX);
        gpi_write(out, "granted{now# peak# total#}", tag->granted.now, tag->granted.peak,
                  tag->granted.total);
        gpi_write(out, "blocks{now# peak# total#} failures#}", tag->blocks.now, tag->blocks.peak,
                  tag->blocks.total, tag->failures);
    }
    gpi_write(out, "]\n");
}

static uint64_t gpi_json_index(uint64_t stream) {
    return stream == GPI_NOBODY ? UINT64_MAX : stream;
}

static void gpi_json_sites(gpi_writer *out, const gpi_view *view) {
    const gpi_site *site = view->sites;
    gpi_write(out, "sites[");
    for (; site < view->sites + view->site_count; site++)
        gpi_write(out, "{file$ line# stream# allocs# blocks# bytes# bytes_peak#}\n",
                  *site->file ? site->file : NULL, (uint64_t)site->line,
                  gpi_json_index(site->number), site->allocs, site->blocks, site->bytes,
                  site->bytes_peak);
    gpi_write(out, "]\n");
}

static void gpi_json_block(gpi_writer *out, const gpi_stretch *stretch) {
    static const char states[3][8] = {"live", "free", "pending"};
    uint64_t bytes = stretch->units * GPUPOOL_UNIT_BYTES;
    int live = stretch->state == GPUPOOL_STATE_LIVE;
    gpi_write(out, "{address# bytes# state$", stretch->unit * GPUPOOL_UNIT_BYTES, bytes,
              states[stretch->state]);
    if (live) gpi_write(out, "requested_bytes#", bytes - stretch->slack_bytes);
    if (live && stretch->block_unit != stretch->unit)
        gpi_write(out, "stitched_at#", stretch->block_unit * GPUPOOL_UNIT_BYTES);
    if (stretch->tag) gpi_write(out, "tag#", (uint64_t)stretch->tag - 1);
    gpi_write(out, "stream# site#}\n", gpi_json_index(stretch->stream),
              GPUPOOL_SITES && live ? (uint64_t)stretch->site : UINT64_MAX);
}

gpupool_result gpupool_write_json(gpupool_arena *arena, FILE *file) {
    gpi_writer out = {file, 0, "", 0, ""};
    const gpi_stretch *stretch;
    gpi_extent chunk;
    gpi_view view;
    gpupool_result result = gpi_view_open_for(&view, arena, "gpupool_write_json", file);
    if (result != GPUPOOL_OK) return result;
    gpi_write(&out, "{gpupool# name$ device# source$ unit_bytes#", (uint64_t)1, view.name,
              (uint64_t)view.device, gpi_wording_source(view.source), (uint64_t)GPUPOOL_UNIT_BYTES);
    gpi_json_figures(&out, &view);
    gpi_json_tags(&out, &view);
    if (GPUPOOL_SITES) gpi_json_sites(&out, &view);
    gpi_write(&out, "chunks[");
    memset(&chunk, 0, sizeof chunk);
    while (gpi_view_next_chunk(&view, &chunk)) {
        gpi_write(&out, "\n{address# bytes# blocks[", chunk.unit * GPUPOOL_UNIT_BYTES,
                  chunk.all_units * GPUPOOL_UNIT_BYTES);
        for (stretch = chunk.from; stretch < chunk.end; stretch++) gpi_json_block(&out, stretch);
        gpi_write(&out, "]}");
    }
    gpi_write(&out, "]}");
    gpi_write_byte(&out, '\n');
    gpi_write_rest(&out);
    return gpi_view_close(&view, "gpupool_write_json", file);
}

/* -- the snapshot -- */

/* The viewer's stack has no room for all items of a long list at once. */
static void gpi_pickle_next(gpi_writer *out, uint64_t i) {
    if (i && i % 1000 == 0) gpi_write_word(out, "e(");
}

static void gpi_pickle_block(gpi_writer *out, const gpi_view *view, const gpi_stretch *stretch) {
    static const char states[3][24] = {"active_allocated", "inactive", "active_pending_free"};
    const gpi_site *site = gpi_view_site(view, stretch);
    uint64_t bytes = stretch->units * GPUPOOL_UNIT_BYTES;
    gpi_write(out, "{address# size# requested_size# state$ frames[",
              stretch->unit * GPUPOOL_UNIT_BYTES, bytes, bytes - stretch->slack_bytes,
              states[stretch->state]);
    if (site)
        gpi_write(out, "{filename$ line# name$}", site->file, (uint64_t)site->line,
                  "gpupool_alloc");
    gpi_write(out, "]}");
}

static void gpi_pickle_segment(gpi_writer *out, const gpi_view *view, const gpi_extent *chunk) {
    const gpi_stretch *stretch = chunk->from;
    uint64_t live = chunk->units[GPUPOOL_STATE_LIVE] * GPUPOOL_UNIT_BYTES;
    uint64_t pending = chunk->units[GPUPOOL_STATE_PENDING] * GPUPOOL_UNIT_BYTES;
    gpi_write(out, "{device# address# total_size# allocated_size# active_size# requested_size#",
              (uint64_t)view->device, chunk->unit * GPUPOOL_UNIT_BYTES,
              chunk->all_units * GPUPOOL_UNIT_BYTES, live, live + pending, chunk->requested_bytes);
    gpi_write(out, "stream# segment_type$ segment_pool_id##", (uint64_t)0, "large", (uint64_t)0,
              (uint64_t)0);
    gpi_write_byte(out, 0x86); /* TUPLE2: of the last two */
    gpi_write(out, "is_expandable! frames[] blocks[",
              (uint64_t)(view->source == GPUPOOL_SOURCE_MAPPED));
    for (; stretch < chunk->end; stretch++) {
        gpi_pickle_next(out, (uint64_t)(stretch - chunk->from));
        gpi_pickle_block(out, view, stretch);
    }
    gpi_write(out, "]}");
}

gpupool_result gpupool_write_snapshot(gpupool_arena *arena, FILE *file) {
    gpi_writer out = {file, 1, "", 0, ""};
    gpi_extent chunk;
    gpi_view view;
    int device;
    gpupool_result result = gpi_view_open_for(&view, arena, "gpupool_write_snapshot", file);
    if (result != GPUPOOL_OK) return result;
    gpi_write_word(&out, "\x80\x02"); /* PROTO 2 */
    gpi_write(&out, "{segments[");
    memset(&chunk, 0, sizeof chunk);
    while (gpi_view_next_chunk(&view, &chunk)) {
        gpi_pickle_next(&out, chunk.number - 1);
        gpi_pickle_segment(&out, &view, &chunk);
    }
    gpi_write(&out, "] device_traces[");
    for (device = 0; device <= view.device; device++) gpi_write(&out, "[]"); /* no history */
    gpi_write(&out, "] allocator_settings{PYTORCH_CUDA_ALLOC_CONF$ allocator$ limit_bytes#"
              "expandable_segments!}}", "", gpupool_get_build(), view.stats.limit_bytes,
              (uint64_t)(view.source == GPUPOOL_SOURCE_MAPPED));
    gpi_write_byte(&out, '.');
    gpi_write_rest(&out);
    return gpi_view_close(&view, "gpupool_write_snapshot", file);
}

/* == PICTURE ==================================================================================
   The map of memory as an SVG; and the record of calls. uses: REPORT and above */

enum {
    GPI_COLOURS = 7,        /* streams with a colour of their own; told apart by the colour-blind */
    GPI_MAP_Y = 144,        /* pixels above the first row, */
    GPI_MAP_ROW = 16,       /* and from row to row */
    GPI_MAP_ROWS = 96       /* aimed at */
};

static const double gpi_svg_left = 128, gpi_svg_width = 1024; /* pixels: where rows are */

static const char gpi_svg_colours[GPI_COLOURS + 1][8] = {
    "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#7f7f7f"};

typedef struct gpi_map { /* rows of equal bytes, filled from left to right */
    FILE *file;
    const gpi_view *view;
    uint64_t row_units;
    int crowded;         /* too many chunks for a gap between them */
    double from, to;     /* pixels of stretches too narrow to be drawn alone, */
    uint64_t row;        /* where they are */
    uint64_t narrow, sums[3];
} gpi_map;

static void gpi_svg_text(FILE *file, const char *text) { /* as XML wants it */
    size_t letter;
    for (; *text; text += letter ? letter : 1) {
        letter = gpi_wording_letter(text, strlen(text));
        if (letter == 3 && strncmp(text, "\xef\xbf", 2) == 0 && (unsigned char)text[2] >= 0xbe)
            letter = 0; /* U+FFFE and U+FFFF are letters, but not XML's */
        if (*text == '<') fputs("&lt;", file);
        else if (*text == '>') fputs("&gt;", file);
        else if (*text == '&') fputs("&amp;", file);
        else if (letter == 0) fputc('?', file);
        else if ((unsigned char)*text >= ' ') fwrite(text, 1, letter, file);
    }
}

static const char *gpi_svg_stream(char room[64], uint64_t key) {
    if (key == GPI_KEY_LEGACY) snprintf(room, 64, "the default stream");
    else if (key == GPI_KEY_ANY) snprintf(room, 64, "all streams (cudaFree)");
    else if (key & 1) snprintf(room, 64, "default stream of thread %" PRIu64, key >> 2);
    else snprintf(room, 64, "stream %#" PRIx64, key);
    return room;
}

/* Live: solid, dark where the stream is not known. Freed: hatched. Free: pale. The tag is open. */
static void gpi_svg_rect(FILE *file, double x, double y, double width, int height, int state,
                         unsigned stream) {
    unsigned colour = stream < GPI_COLOURS ? stream : (unsigned)GPI_COLOURS;
    char left[32], wide[32];
    fprintf(file, "<rect x=\"%s\" y=\"%.0f\" width=\"%s\" height=\"%d\" fill=\"",
            gpi_wording_decimal(left, x, 2), y, gpi_wording_decimal(wide, width, 2), height);
    if (state == GPUPOOL_STATE_FREE) fputs("#ececec\"", file);
    else if (state == GPUPOOL_STATE_PENDING) fprintf(file, "url(#h%u)\"", colour);
    else fprintf(file, "%s\"", stream == GPI_NOBODY ? "#3f4f5f" : gpi_svg_colours[colour]);
}

static double gpi_svg_row(uint64_t row) { return (double)(GPI_MAP_Y + row * GPI_MAP_ROW); }

/* Draws what has gathered of stretches less than half a pixel wide. */
static void gpi_svg_flush(gpi_map *map) {
    int most = GPUPOOL_STATE_LIVE;
    char live[32], freed[32], rest[32];
    if (!map->narrow) return;
    if (map->sums[GPUPOOL_STATE_PENDING] > map->sums[most]) most = GPUPOOL_STATE_PENDING;
    if (map->sums[GPUPOOL_STATE_FREE] > map->sums[most]) most = GPUPOOL_STATE_FREE;
    gpi_svg_rect(map->file, gpi_svg_left + map->from, gpi_svg_row(map->row), map->to - map->from,
                 GPI_MAP_ROW - 3, most, GPI_NOBODY);
    fprintf(map->file,
            "><title>stretches: %" PRIu64 "; %s live, %s freed, %s free</title></rect>\n",
            map->narrow, gpi_limit_human(live, map->sums[GPUPOOL_STATE_LIVE] * GPUPOOL_UNIT_BYTES),
            gpi_limit_human(freed, map->sums[GPUPOOL_STATE_PENDING] * GPUPOOL_UNIT_BYTES),
            gpi_limit_human(rest, map->sums[GPUPOOL_STATE_FREE] * GPUPOOL_UNIT_BYTES));
    map->narrow = 0;
    memset(map->sums, 0, sizeof map->sums);
}

static void gpi_svg_title(const gpi_map *map, const gpi_extent *chunk, const gpi_stretch *stretch) {
    static const char words[3][32] = {"live", "free", "freed, perhaps still in use"};
    const gpi_site *site = gpi_view_site(map->view, stretch);
    char size[32], exact[32], stream[64];
    uint64_t bytes = stretch->units * GPUPOOL_UNIT_BYTES - stretch->slack_bytes;
    fprintf(map->file, "><title>%s: %s (%s bytes) at %#" PRIx64 ", chunk %" PRIu64,
            words[stretch->state], gpi_limit_human(size, bytes), gpi_report_number(exact, bytes),
            stretch->unit * GPUPOOL_UNIT_BYTES, chunk->number);
    if (site) {
        fputs(", ", map->file);
        gpi_svg_text(map->file, gpi_limit_base(site->file));
        fprintf(map->file, ":%d", site->line);
    }
    if (stretch->block_unit && stretch->block_unit != stretch->unit)
        fprintf(map->file, ", part of the block at %#" PRIx64,
                stretch->block_unit * GPUPOOL_UNIT_BYTES);
    if (stretch->tag) {
        fputs(", tag ", map->file);
        gpi_svg_text(map->file, map->view->tags[stretch->tag].name);
    }
    if (stretch->stream != GPI_NOBODY)
        fprintf(map->file, ", %s", gpi_svg_stream(stream, map->view->keys[stretch->stream]));
    fputs("</title></rect>\n", map->file);
}

/* At a row's left: the chunk by its number, or how far into it the row begins. */
static void gpi_svg_label(const gpi_map *map, uint64_t row, uint64_t number, uint64_t units) {
    char words[32];
    if (units) gpi_limit_human(words, units * GPUPOOL_UNIT_BYTES);
    else snprintf(words, sizeof words, "chunk %" PRIu64, number);
    fprintf(map->file, "<text x=\"%.0f\" y=\"%.0f\" text-anchor=\"end\">%s%s</text>\n",
            gpi_svg_left - 8, gpi_svg_row(row) + 10, units ? "+ " : "", words);
}

/* One stretch that begins `at` units into the picture, cut where rows end. */
static void gpi_svg_stretch(gpi_map *map, const gpi_extent *chunk, const gpi_stretch *stretch,
                            uint64_t at) {
    double scale = gpi_svg_width / (double)map->row_units;
    uint64_t done = 0, units;
    for (; done < stretch->units; done += units, at += units) {
        uint64_t column = at % map->row_units, row = at / map->row_units;
        double x = scale * (double)column, width;
        units = gpi_ground_min(stretch->units - done, map->row_units - column);
        width = scale * (double)units;
        if (column == 0) {
            gpi_svg_flush(map);
            gpi_svg_label(map, row, chunk->number, stretch->unit + done - chunk->unit);
        }
        if (width < 0.5) {
            if (!map->narrow++) map->from = x;
            map->to = x + width;
            map->row = row;
            map->sums[stretch->state] += units;
            if (map->to - map->from >= 1) gpi_svg_flush(map);
            continue;
        }
        gpi_svg_flush(map);
        /* a hair's breadth between blocks that are wide enough to spare it */
        gpi_svg_rect(map->file, gpi_svg_left + x, gpi_svg_row(row), width > 3 ? width - 0.6 : width,
                     GPI_MAP_ROW - 3, stretch->state, stretch->stream);
        gpi_svg_title(map, chunk, stretch);
    }
}

/* Where in the picture a chunk begins: on a row of its own, unless it fits behind the one before,
   which ends `at` units into the picture. */
static uint64_t gpi_svg_place(const gpi_map *map, const gpi_extent *chunk, uint64_t at) {
    uint64_t column = at % map->row_units, gap = map->crowded ? 0 : map->row_units / 128;
    if (column == 0) return at;
    return column + gap + chunk->all_units <= map->row_units ? at + gap
                                                             : gpi_ground_up(at, map->row_units);
}

/* How many rows the chunks take; draws them too, if so wanted. */
static uint64_t gpi_svg_rows(gpi_map *map, int draw) {
    const gpi_stretch *stretch;
    gpi_extent chunk;
    uint64_t at = 0;
    memset(&chunk, 0, sizeof chunk);
    while (gpi_view_next_chunk(map->view, &chunk)) {
        at = gpi_svg_place(map, &chunk, at);
        for (stretch = chunk.from; draw && stretch < chunk.end; stretch++)
            gpi_svg_stretch(map, &chunk, stretch, at + stretch->unit - chunk.unit);
        gpi_svg_flush(map);
        at += chunk.all_units;
    }
    return gpi_ground_up(at, map->row_units) / map->row_units;
}

/* Boxes stand side by side, as many as a line holds. */
static void gpi_svg_legend_box(FILE *file, double *x, double *y, int state, unsigned stream,
                               const char *words) {
    size_t letters = strlen(words);
    double width = 44 + 6.4 * (double)letters;
    if (*x + width > gpi_svg_left + gpi_svg_width) {
        *x = 16;
        *y += 18;
    }
    gpi_svg_rect(file, *x, *y, 14, 12, state, stream);
    fprintf(file, " stroke=\"#999\" stroke-width=\"0.5\"/><text x=\"%.0f\" y=\"%.0f\">%s</text>\n",
            *x + 20, *y + 10, words);
    *x += width;
}

static void gpi_svg_legend(const gpi_map *map) {
    const gpi_view *view = map->view;
    char words[64], size[32];
    double x = 16, y = 70;
    unsigned i;
    gpi_svg_legend_box(map->file, &x, &y, GPUPOOL_STATE_LIVE, GPI_NOBODY, "live (any stream)");
    gpi_svg_legend_box(map->file, &x, &y, GPUPOOL_STATE_FREE, GPI_NOBODY, "free");
    gpi_svg_legend_box(map->file, &x, &y, GPUPOOL_STATE_PENDING, GPI_NOBODY,
                       "freed, perhaps still in use");
    gpi_limit_human(size, map->row_units * GPUPOOL_UNIT_BYTES);
    fprintf(map->file, "<text x=\"%.0f\" y=\"80\" fill=\"#555\">a row is %s; short chunks share "
            "one; point at a block for its size</text>\n", x, size);
    for (x = 16, y += 20, i = 0; i < view->key_count && i < GPI_COLOURS; i++)
        gpi_svg_legend_box(map->file, &x, &y, GPUPOOL_STATE_LIVE, i,
                           gpi_svg_stream(words, view->keys[i]));
    if (view->key_count > GPI_COLOURS)
        gpi_svg_legend_box(map->file, &x, &y, GPUPOOL_STATE_LIVE, GPI_COLOURS, "other streams");
}

static void gpi_svg_bar(const gpi_map *map) {
    static const gpupool_state states[3] = {GPUPOOL_STATE_LIVE, GPUPOOL_STATE_PENDING,
                                            GPUPOOL_STATE_FREE};
    const gpupool_stats *stats = &map->view->stats;
    uint64_t whole = gpi_ground_max(stats->limit_bytes, stats->reserved.now);
    double x = 16, width;
    int i;
    if (whole == 0) return;
    fprintf(map->file, "<rect x=\"16\" y=\"48\" width=\"1136\" height=\"12\" fill=\"none\" "
            "stroke=\"#999\"/>\n");
    for (i = 0; i < 3; i++, x += width) {
        uint64_t bytes = gpi_view_bytes(map->view, states[i]);
        width = 1136 / (double)whole * (double)bytes;
        gpi_svg_rect(map->file, x, 48, width, 12, (int)states[i], GPI_NOBODY);
        fputs("/>\n", map->file);
    }
}

static void gpi_svg_head(const gpi_map *map, double height) {
    const gpi_view *view = map->view;
    FILE *file = map->file;
    char live[32], held[32], limit[32], blocks[32];
    int i;
    fprintf(file, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"1168\" height=\"%.0f\" "
            "viewBox=\"0 0 1168 %.0f\" font-family=\"sans-serif\" font-size=\"11\">\n"
            "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n<defs>\n", height, height);
    for (i = 0; i <= GPI_COLOURS; i++)
        fprintf(file, "<pattern id=\"h%d\" width=\"5\" height=\"5\" patternUnits=\"userSpaceOnUse\""
                "><rect width=\"5\" height=\"5\" fill=\"white\"/><path d=\"M-1,1 l2,-2 M0,5 l5,-5 "
                "M4,6 l2,-2\" stroke=\"%s\" stroke-width=\"1.6\"/></pattern>\n", i,
                gpi_svg_colours[i]);
    fprintf(file, "</defs>\n<text x=\"16\" y=\"24\" font-size=\"15\">gpupool arena \"");
    gpi_svg_text(file, view->name);
    fprintf(file, "\": %s live in %s block%s, %s reserved, %s%s</text>\n",
            gpi_limit_human(live, GPUPOOL_STATS ? view->stats.requested.now
                                                : view->stats.granted.now),
            gpi_report_number(blocks, view->stats.blocks.now),
            view->stats.blocks.now == 1 ? "" : "s",
            gpi_limit_human(held, view->stats.reserved.now),
            view->stats.limit_bytes ? "limit " : "no limit",
            view->stats.limit_bytes ? gpi_limit_human(limit, view->stats.limit_bytes) : "");
}

gpupool_result gpupool_write_svg(gpupool_arena *arena, FILE *file) {
    gpi_view view;
    gpi_map map;
    gpi_extent chunk;
    gpupool_result result = gpi_view_open_for(&view, arena, "gpupool_write_svg", file);
    if (result != GPUPOOL_OK) return result;
    memset(&map, 0, sizeof map);
    map.file = file;
    map.view = &view;
    memset(&chunk, 0, sizeof chunk);
    while (gpi_view_next_chunk(&view, &chunk)) map.crowded = chunk.number > 4096;
    map.row_units = gpi_ground_max((2u << 20) / GPUPOOL_UNIT_BYTES, 1);
    while (gpi_svg_rows(&map, 0) > GPI_MAP_ROWS) map.row_units *= 2;
    gpi_svg_head(&map, gpi_svg_row(gpi_svg_rows(&map, 0)) + 12);
    gpi_svg_bar(&map);
    gpi_svg_legend(&map);
    gpi_svg_rows(&map, 1);
    fputs("</svg>\n", file);
    return gpi_view_close(&view, "gpupool_write_svg", file);
}

/* -- the record of calls -- */

static void gpi_trace_begin(gpupool_arena *arena, FILE *file) {
    uint64_t limit = arena->ledger.limit_bytes, at = 0;
    const gpi_run *run;
    fprintf(file, "# gpupool trace 1: source %s, unit %d, limit %" PRIu64 ", reserve %" PRIu64
            ", chunk %" PRIu64 ", device %d, %s\n", gpi_wording_source(arena->chunks.source),
            (int)GPUPOOL_UNIT_BYTES, limit == UINT64_MAX ? 0 : limit, arena->keep_bytes,
            arena->chunks.chunk_bytes, arena->chunks.driver.device, gpupool_get_build());
    while ((run = gpi_tree_next_live(&arena->tree, &at)) != NULL) {
        uint64_t asked = gpi_arena_asked(run);
        if (asked)
            fprintf(file, "a %" PRIu64 " %" PRIu64 " 0\n", gpi_arena_trace_id(arena, run), asked);
    }
}

gpupool_result gpupool_set_trace(gpupool_arena *arena, FILE *file) {
    FILE *before;
    gpi_stream *first;
    gpupool_result result = gpi_arena_begin(arena, "gpupool_set_trace");
    if (result != GPUPOOL_OK) return result;
    first = gpi_arena_lock_all(arena);
    before = arena->trace;
    arena->trace = file;
    if (file) gpi_trace_begin(arena, file);
    gpi_arena_unlock_all(arena, first);
    errno = 0; /* of a line that was not written it tells no more */
    return before ? gpi_wording_done("gpupool_set_trace", before) : gpi_host_ok();
}

/* == BACK ===================================================================================== */

#undef GPI_ASSERT
#undef GPI_GUARD
#undef GPI_PRINTF
#undef GPI_THREAD_LOCAL
#undef GPI_HOT
#undef GPI_DRIVER_CALLS
#undef GPI_READ
#undef GPI_PUBLISH
#undef GPI_STEADY
#undef GPI_FILES
#undef GPI_DIRECT
#undef GPI_TEXT
#undef GPI_SPELL

#endif /* GPUPOOL_IMPLEMENTATION */

/* == NAMES ====================================================================================
   Macros over CUDA's names and gpupool's own, last, so that they are not in force above. */

#if defined(CUDA_API_PER_THREAD_DEFAULT_STREAM)
#if !GPUPOOL_SITES
#define gpupool_alloc(arena, bytes, stream) gpupool_alloc(arena, bytes, gpi_names_stream(stream))
#define gpupool_alloc_aligned(arena, bytes, alignment, stream) \
    gpupool_alloc_aligned(arena, bytes, alignment, gpi_names_stream(stream))
#define gpupool_zalloc(arena, bytes, stream) gpupool_zalloc(arena, bytes, gpi_names_stream(stream))
#endif
#define gpupool_alloc_request(arena, request) gpi_names_alloc_request(arena, request)
#define gpupool_free(arena, block, stream) gpupool_free(arena, block, gpi_names_stream(stream))
#define gpupool_record_stream(arena, block, stream) \
    gpupool_record_stream(arena, block, gpi_names_stream(stream))
#define gpupool_retire_stream(arena, stream) gpupool_retire_stream(arena, gpi_names_stream(stream))
#define gpupool_wait_stream(arena, stream) gpupool_wait_stream(arena, gpi_names_stream(stream))
#define gpupool_begin_capture(arena, stream, capture) \
    gpupool_begin_capture(arena, gpi_names_stream(stream), capture)
#define gpupool_cudaMallocAsync(pointer, bytes, stream) \
    gpupool_cudaMallocAsync(pointer, bytes, gpi_names_stream(stream))
#define gpupool_cudaFreeAsync(pointer, stream) \
    gpupool_cudaFreeAsync(pointer, gpi_names_stream(stream))
#define gpupool_upload(ring, to, from, bytes, stream) \
    gpupool_upload(ring, to, from, bytes, gpi_names_stream(stream))
#define gpupool_download(ring, to, from, bytes, stream) \
    gpupool_download(ring, to, from, bytes, gpi_names_stream(stream))
#define gpupool_upload_file(ring, to, file, offset, bytes, stream) \
    gpupool_upload_file(ring, to, file, offset, bytes, gpi_names_stream(stream))
#define gpupool_upload_file_list(ring, file, parts, count, stream) \
    gpupool_upload_file_list(ring, file, parts, count, gpi_names_stream(stream))
#define gpupool_ring_transfer(ring, transfer) gpi_names_ring_transfer(ring, transfer)
#define gpupool_ring_upload_span(ring, span, to, stream) \
    gpupool_ring_upload_span(ring, span, to, gpi_names_stream(stream))
#endif

#if GPUPOOL_SITES
#if defined(CUDA_API_PER_THREAD_DEFAULT_STREAM)
#define gpupool_alloc(arena, bytes, stream) \
    gpi_names_alloc(arena, gpi_names_request(bytes, gpi_names_stream(stream), __FILE__, __LINE__))
#define gpupool_alloc_aligned(arena, bytes, alignment, stream) \
    gpi_names_alloc_aligned( \
        arena, gpi_names_request(bytes, gpi_names_stream(stream), __FILE__, __LINE__), alignment)
#define gpupool_zalloc(arena, bytes, stream) \
    gpi_names_zalloc(arena, gpi_names_request(bytes, gpi_names_stream(stream), __FILE__, __LINE__))
#else
#define gpupool_alloc(arena, bytes, stream) \
    gpi_names_alloc(arena, gpi_names_request(bytes, stream, __FILE__, __LINE__))
#define gpupool_alloc_aligned(arena, bytes, alignment, stream) \
    gpi_names_alloc_aligned(arena, gpi_names_request(bytes, stream, __FILE__, __LINE__), \
                            alignment)
#define gpupool_zalloc(arena, bytes, stream) \
    gpi_names_zalloc(arena, gpi_names_request(bytes, stream, __FILE__, __LINE__))
#endif
#endif

/* Names alone, not calls, so that pointers and deleters get the same functions. */
#if GPUPOOL_STREAM_HOOK
#if defined(__cplusplus)
#define cudaStreamDestroy gpi_names_stream_destroy
#else
#define cudaStreamDestroy gpupool_cudaStreamDestroy
#endif
#endif
#if GPUPOOL_REPLACE_CUDA_MALLOC
#if defined(__cplusplus)
#define cudaMalloc gpi_names_malloc
#define cudaFree gpi_names_free
#else
#define cudaMalloc gpupool_cudaMalloc
#define cudaFree gpupool_cudaFree
#endif
#undef cudaMallocAsync
#undef cudaFreeAsync
#if defined(CUDA_API_PER_THREAD_DEFAULT_STREAM)
#define cudaMallocAsync gpi_names_malloc_async_ptsz
#define cudaFreeAsync gpi_names_free_async_ptsz
#else
#define cudaMallocAsync gpi_names_malloc_async
#define cudaFreeAsync gpi_names_free_async
#endif
#endif
