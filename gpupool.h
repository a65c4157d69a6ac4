/* gpupool.h: device memory for CUDA programs in C and C++, in one file. Version 0.2

What it is. An arena gets large chunks of one device's memory from the CUDA driver, keeps them, and
hands out blocks of them. Where memory that was freed earlier fits, an allocation takes tens of
nanoseconds and makes no CUDA call. A ring copies ordinary (pageable) host memory to the device and
back, at nearly nine tenths of the speed of pinned memory. Arenas and rings work without each other.

How to use it. In exactly one C, C++ or .cu file of the program, write
    #define GPUPOOL_IMPLEMENTATION
before the include of this file. All other files include this file without that line. Link the CUDA
runtime (-lcudart; nvcc adds it by itself; -lcuda is not needed), and with a glibc before 2.34 also
-lpthread. gpupool needs a 64-bit system, C99 or C++11 with gcc, clang or nvcc, and CUDA 11.7 or
later.

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

The picture. Names in capitals are sections of this file. A layer uses the layers below it; in the
file the lowest layer comes first.

    your program        gpupool_alloc(arena, bytes, stream)      gpupool_free(arena, block, stream)
    CACHE               small blocks that a stream freed, by size, for the same stream
    LADDER  VERDICT     where memory for a request comes from, step by step; why there is none
    TREE    LEDGER      which units are free, and for which stream; byte counts and the limit
    CLOCK               how far each stream's work has come, and which stream waits for which
    CHUNK   STITCH      memory from the driver; second addresses for parts of it
    DRIVER              cuMemCreate, cuMemMap, cuMemAlloc, cuEventRecord, ...

    your program        gpupool_upload(ring, device, host, bytes, stream)    gpupool_download(...)
    RING                transfers, cut into chunks that several threads copy
    STAGE               pinned host memory, in slots of one size

What it does:
  * Fast: memory that a stream freed serves later requests of the stream at once, without an event
    or a wait.
  * Frugal: peak reserved memory stays within a few per cent of peak live memory, because a large
    block can be put together from free memory in several chunks (a stitch).
  * Ordered: another stream gets freed memory only after the work queued before the free, or behind
    a wait on the device. No lock is held while the host waits for the device.
  * Stable: a block's address, and the physical memory behind it, do not change while the block is
    live (except across gpupool_sleep).
  * Honest: it enforces limits, and when memory runs out it says why and what would help.
What it does not do: it moves no live memory, keeps no bookkeeping in device memory, starts no
thread except a ring's workers, prints nothing unless asked, and never aborts over a mistake of the
program: a wrong call gets an error and changes nothing.

Words:
    unit        the smallest size of memory, GPUPOOL_UNIT_BYTES: 512 bytes
    block       what gpupool_alloc returns: whole units with consecutive addresses
    chunk       memory that the arena got from the driver in one call
    home        the address at which a chunk is mapped from its creation to its release
    stitch      a second address range, mapped over free memory of several chunks, for one block
    grow        to get another chunk from the driver
    cache       small blocks that a stream has freed, ready for the same stream
    live        of a block: handed out, and not freed yet
    pending     of freed memory: work that was queued before the free may still use it
    idle        of a chunk: all its memory is free, and the work that used it has finished
    kept        of memory: it belongs to a graph until gpupool_release_capture
    requested   bytes that the program asked for
    granted     the requested bytes, rounded up to whole units
    reserved    bytes of all chunks of an arena
    scope       from gpupool_begin_capture to gpupool_end_capture: what the stream allocates in a
                scope belongs to a graph
    verdict     why a request failed, in figures, and what would make it succeed
    tag         a part of the program, with a budget; requests name it by a number
    ticket      the number of a transfer, for a later wait
    span        pinned memory of a ring that the program fills itself
Words of the implementation:
    position    the number of a free; an arena numbers its frees in order
    clock       of a stream: the position up to which its work is known to have finished
    mark        an event that was recorded on a stream behind all its frees up to a position
    run         consecutive units that are all free, or all of one block
    free list   the free memory of one stream; list ANY: free memory whose work has finished
    bin         one size class of a free list
    granule     the driver's page for mapped memory: 2 MiB

Contents (search for "== NAME"):
    OPTIONS LINKAGE WORDS API CPP                                what you use
    GROUND HOST FILE DRIVER DATA TOOL LEDGER TREE SEARCH CACHE CLOCK EVENT CHECK how it works
    CHUNK GROWTH STITCH PLAN
    LIMIT ARENA TAG LADDER SHOT VERDICT SIBLING BLOCK HAND CAPTURE SLEEP LIFE SHARE SHAPE FIGURES
    STAGE RING SEND WORDING VIEW REPORT PICTURE ENVIRON
    BACK NAMES                                                   macros: undone; over CUDA's names

The rules. 1, 2, 11 and 12 concern every program, the others special cases. The comments above the
public functions refer to the rules by number.
  1. Order. Free a block on the stream whose work used the block last. Later work of that stream may
     get the memory at once. Another stream gets the memory when the work that was queued before the
     free has finished, or gpupool makes that stream wait for the work on the device, without a wait
     on the host (cudaStreamWaitEvent). If several streams use a block, make the freeing stream wait
     for the others before the free, or call gpupool_record_stream for each of the others, after its
     last work on the block and before the free. The stream of the allocation counts as a user even
     if its work never touches the block: earlier work of the stream may still use the memory. So if
     stream A allocates a block, and stream B uses and frees the block, make B wait for A before B's
     first use.
  2. Ends. Destroy an arena when none of its blocks is live. Streams, rings and arenas may be
     destroyed in any order, once no further call names them.
  3. Capture. Memory that a graph uses must not get another owner while the graph and its
     executables exist: keep the block live, or allocate or free it in a scope
     (gpupool_begin_capture). A graph that was captured without a scope: before each launch, make
     the launching stream wait for the work that was queued on the captured streams before the
     capture. That work may still use the memory.
     gpupool cannot see a capture on a non-blocking stream that has no scope, until a call names the
     stream. During such a capture do not call gpupool_trim, gpupool_would_fit,
     gpupool_get_available or gpupool_cudaFree, and do not lower a limit: CUDA might end the
     capture. The same holds for gpupool_alloc in an arena that has never seen a capture, if memory
     is short, if threads use default streams of their own, or if the arena knows more than 64
     streams. With a scope all these calls are safe.
  4. Functions in the config. chunk_alloc and chunk_free must not call the same arena, and must not
     destroy a stream that the arena has seen. on_out_of_memory and on_soft_limit may call the
     arena, to free or to allocate. For on_map and on_unmap see rule 10.
  5. Destroyed streams. CUDA gives the handle of a destroyed stream to the next new stream, even
     while work of the destroyed one still runs. An arena that is not told takes the two for one
     stream, and hands out the destroyed stream's memory too early. There are three ways to tell it.
     Destroy streams in files that include this one: the macro cudaStreamDestroy tells all arenas
     (with GPUPOOL_STATIC, the arenas of the same file). Or call gpupool_retire_stream before the
     stream is destroyed; both together are harmless. Or, where a library destroys streams, build
     with GPUPOOL_STREAM_CHECK.
     A thread that uses a default stream of its own calls gpupool_retire_stream with
     cudaStreamPerThread before the thread ends. If it does not, the thread's last frees stay
     pending until gpupool_trim, or until a request finds more than an eighth of the reserved
     memory pending. 16 KiB of host memory stay in use until then, or until the arena knows more
     than 64 streams.
  6. Addresses. The home address of a chunk maps the same physical memory as long as the chunk
     exists (except across gpupool_sleep). A large block may lie at a second address, stitched from
     several chunks. When memory is used through two addresses, CUDA requires that a device
     operation ends between the two uses. gpupool_free puts such an end between two owners. If
     running kernels hand memory to each other without a free (persistent kernels, flags in memory),
     set config.no_stitch.
     A kernel that may start early (programmatic dependent launch) touches a block, stitched or not,
     only after griddepcontrol.wait: until then the memory's last user may still run.
  7. Reset. cudaDeviceReset ends the memory, streams and events of the device. After a reset the
     only thing left to do with the device's arenas and rings is to destroy them. Do destroy them:
     mapped memory outlives a reset (seen on an H100). The reset drops blocks, captures and spans,
     and chunk_free is not called. Wait for all tickets before a reset. A default arena is renewed
     at the same address by gpupool_get_default_arena, gpupool_cudaMalloc and
     gpupool_cudaMallocAsync: the renewed arena has no blocks and no tags, keeps a limit that was
     set, records no trace, and needs its peers allowed again. Before CUDA 12 gpupool cannot see a
     reset: destroy arenas and rings before the reset.
  8. Host functions. In a function that CUDA calls (cudaLaunchHostFunc, cudaStreamAddCallback) CUDA
     forbids CUDA calls. These gpupool calls are allowed there: gpupool_free_in_host_function,
     gpupool_get_block with an arena, gpupool_get_stats, gpupool_get_limit, gpupool_last_result,
     gpupool_last_error and gpupool_last_verdict.
  9. Waits. gpupool_trim and lowering a limit ask CUDA whether the work on freed memory has
     finished, and do not wait for that work. There are four exceptions. They wait for the device if
     the driver is older than CUDA 12.5, if the arena has peers, or if a stream was capturing when
     a call last named it; and CUDA itself waits for the device when it takes back a chunk of
     another source than MAPPED. gpupool_would_fit and gpupool_get_available ask in the same way,
     and never wait for the device. No wait of gpupool for the device ends a capture.
 10. Registration. From the call of config.on_map to the call of config.on_unmap, the addresses of a
     chunk or a stitch map the same physical memory. So a program registers the memory once, for a
     network card, NCCL or another library. A block lies in one chunk, in several neighbouring
     chunks at home, or in one stitch, and on_map was called for the whole of each. The functions
     run with no lock held, on the thread whose call maps or unmaps, with the arena's context
     current and the capture mode relaxed. They must not call the same arena. If on_map returns
     anything but 0, gpupool unmaps the new memory and the call fails with E_CALLBACK. While a
     stream captures, an arena with such functions gets no memory from the driver: E_CAPTURING. A
     device reset ends all mappings without a call.
 11. Every call. If its contract does not say otherwise: any thread may make the call at any time,
     also on a capturing stream, but not in a host function (rule 8). A call on a capturing stream
     never ends the capture, even if the call fails. A call that fails has changed nothing. The
     calling thread keeps its current device, context, capture mode and last CUDA error. A thread
     without a current context has none after the call either; before such a thread uses the driver
     API (cuLaunchKernel), it calls cudaFree(NULL). gpupool uses the primary context of a device
     only, and retains it as long as an arena or a ring of the device exists. Sizes are in bytes.
 12. Stream 0. A stream of 0 means what CUDA takes 0 for in the file that makes the call: the legacy
     default stream, or, with --default-stream per-thread, the calling thread's own default stream.
     It is the default stream of the arena's or the ring's device.
 13. Peers. After gpupool_allow_peer all calls of the arena take streams of the peer device. The
     peer's default streams are excepted, since they have no handle of their own. After a reset of
     the peer, allow the peer again. Before CUDA 12 gpupool cannot see such a reset: do not reset a
     peer while the arena exists.

Environment. The variables GPUPOOL_LIMIT_<device> and GPUPOOL_LIMIT hold the limit of new arenas, as
text: see gpupool_set_limit. GPUPOOL_SOURCE is the source of default arenas: auto, mapped, device,
managed or bypass. An empty variable counts as not set.

Options: define them in the file with GPUPOOL_IMPLEMENTATION, before that file includes this one for
the first time. Define those marked * in every file, with the same value. Booleans are 0 or 1.
gpupool_get_build() returns the options in force. Sizes and limits can also be set for each arena
and ring, in gpupool_arena_config and gpupool_ring_config. The columns: macro, default, meaning.

    GPUPOOL_STATIC *        0        1: all of gpupool is static, so that several files can each
                                     have a gpupool of their own, with GPUPOOL_IMPLEMENTATION in
                                     each. The calls of one file, and its cudaStreamDestroy and
                                     replaced cudaFree, do not know the arenas of another file
    GPUPOOL_API *           extern   what stands before each public declaration: to export them from
                                     a DLL, for example. In C++ they are extern "C" in any case
    GPUPOOL_UNIT_BYTES      512      the smallest size of memory, in bytes, and the least alignment
                                     of a block: a power of two from 256 to 2 MiB
    GPUPOOL_LIMIT           ""       the limit of arenas that get no other limit, as text: "80%"
    GPUPOOL_CHUNK_BYTES     0        the least number of bytes to get from the driver in one call,
                                     where config.chunk_bytes is 0. 0: in proportion to what the
                                     arena has reserved
    GPUPOOL_SHARE           0        config.share of default arenas: 1 other processes, 2 GPUDirect
                                     RDMA, 3 both
    GPUPOOL_MAPPED          1        0: leaves GPUPOOL_SOURCE_MAPPED out of the build; AUTO then
                                     takes GPUPOOL_SOURCE_DEVICE
    GPUPOOL_RING_BYTES      64 MiB   the most pinned memory of a ring whose config.bytes is 0
    GPUPOOL_RING_CHUNK_BYTES 2 MiB   the slot size of a ring whose config.chunk_bytes is 0: the most
                                     that the ring copies and sends at a time
    GPUPOOL_RING_WORKERS    0        the worker threads of a ring whose config.workers is 0. 0: one
                                     for each processor but one, at most 11; -1: none
    GPUPOOL_CHECK           1        0: no assertions. 1: assertions. 2: also checks every invariant
                                     around every call (slow). 3: also GPUPOOL_GUARD
    GPUPOOL_GUARD           0        1: finds writes to the 256 bytes past the end of a block, when
                                     the block is freed. Fills a new block with the byte 0xcd and a
                                     freed block with 0xdd. gpupool_free then waits for its stream.
                                     Not together with GPUPOOL_NVTX, with which a tool finds more
    GPUPOOL_STATS           1        0: counts only what limits and verdicts need
    GPUPOOL_SITES *         0        1: each block remembers the file and line that asked for it,
                                     except blocks of gpupool_cudaMalloc and its Async form
    GPUPOOL_NVTX            0        1: tells compute-sanitizer (--nvtx yes) of every block in
                                     cudaMalloc chunks, with its file and line as the name if
                                     GPUPOOL_SITES is 1. AUTO then takes GPUPOOL_SOURCE_DEVICE
    GPUPOOL_SINGLE_THREAD   0        1: leaves out all locks, and rings have no workers: only one
                                     thread may call gpupool
    GPUPOOL_STREAM_HOOK *   1        0: leaves the name cudaStreamDestroy alone. 1: it is a macro
                                     that tells the arenas of the stream's end (rule 5)
    GPUPOOL_STREAM_CHECK    0        1: each call asks CUDA (12 or later) for the id of its stream,
                                     unless the stream captures, and so finds out when a handle
                                     belongs to a new stream (rule 5). E_CUDA where CUDA does not
                                     tell the id
    GPUPOOL_REPLACE_CUDA_MALLOC *  0  1: the names cudaMalloc, cudaFree and their Async forms mean
                                     gpupool's functions: in calls, as function pointers, and as
                                     template arguments. In device code they mean CUDA's
    GPUPOOL_ASSERT(x)       assert   checks for gpupool's own mistakes, not for the program's
    GPUPOOL_MALLOC(n)       malloc   allocates host memory for gpupool's records. Define it together
                                     with GPUPOOL_FREE(p), where p may be NULL, or define neither.
                                     The memory must be pageable, not pinned
*/
#ifndef GPUPOOL_H
#define GPUPOOL_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <cuda_runtime_api.h>
#if defined(__cplusplus) && defined(GPUPOOL_REPLACE_CUDA_MALLOC) && GPUPOOL_REPLACE_CUDA_MALLOC
#include <cuda_runtime.h> /* declares CUDA's overloads before the names become macros */
#endif

/* CUDA's own cudaFreeAsync. Defined here, because the name becomes a macro in NAMES. */
static inline cudaError_t gpi_names_cuda_free_async(void *pointer, cudaStream_t stream) {
    return cudaFreeAsync(pointer, stream);
}

/* == OPTIONS ==================================================================================
   The default of each option that the program has not defined. The table at the end of the top
   comment says what each option means. */

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

/* == LINKAGE ==================================================================================
   GPUPOOL_API stands before each public declaration, and nowhere else. With GPUPOOL_STATIC the
   functions are static; `unused` avoids a warning for each function that the file never calls. */

#ifndef GPUPOOL_API
#if GPUPOOL_STATIC && (defined(__GNUC__) || defined(__clang__))
#define GPUPOOL_API static __attribute__((unused))
#elif GPUPOOL_STATIC
#define GPUPOOL_API static
#else
#define GPUPOOL_API extern
#endif
#endif

/* == WORDS ====================================================================================
   The public constants, enums and structs of arenas, and below them those of rings. Every struct
   that the program fills may be all zeros except where its comment says otherwise.
   Read first: gpupool_result, gpupool_arena_config, gpupool_request, gpupool_verdict. */

#define GPUPOOL_VERSION 200          /* 10000 x major + 100 x minor + patch */

enum {
    GPUPOOL_DEVICE_CURRENT = -1,     /* as a device: the one that is current during the call */
    GPUPOOL_ORDERS = 41,             /* order k: sizes from 2^k to 2^(k+1) - 1 units */
    GPUPOOL_HOLDERS = 3,             /* how many of the biggest holders a verdict names */
    GPUPOOL_TAGS = 64,               /* the most tags of an arena */
    GPUPOOL_ALL = -1                 /* gpupool_sleep and gpupool_wake: all of the arena */
};

typedef enum gpupool_result {
    GPUPOOL_OK = 0,
    GPUPOOL_E_ARGUMENT,      /* fix the call; gpupool_last_error() names argument and rule */
    GPUPOOL_E_OUT_OF_MEMORY, /* an allocation failed: gpupool_last_verdict() says why, and what
                                would help. Other calls: the driver had no memory for itself */
    GPUPOOL_E_NOT_OURS,      /* the pointer is in no memory of this arena, or of any arena */
    GPUPOOL_E_INSIDE,        /* the pointer is inside a live block, not at its start */
    GPUPOOL_E_DOUBLE_FREE,   /* the pointer is in memory that is already free */
    GPUPOOL_E_OVERRUN,       /* something wrote past the end of the block, which is now freed;
                                gpupool_last_error() names the first byte. See GPUPOOL_GUARD */
    GPUPOOL_E_CORRUPT,       /* gpupool's own records are damaged: something wrote over them */
    GPUPOOL_E_IN_USE,        /* destroy refused: blocks are live, captures are not released, or the
                                program has spans. free refused: the block is exported */
    GPUPOOL_E_CAPTURING,     /* not possible while a stream captures; the capture goes on */
    GPUPOOL_E_TIMEOUT,       /* the allowed time has passed; try again later */
    GPUPOOL_E_UNSUPPORTED,   /* this device or this build cannot do it */
    GPUPOOL_E_FORKED,        /* this process was forked after the first arena or ring was made, and
                                has no CUDA context: make the first one after the fork */
    GPUPOOL_E_CALLBACK,      /* your walk, read, write or on_map function returned nonzero */
    GPUPOOL_E_FILE,          /* a file could not be read or written, or is too short;
                                gpupool_last_error() says what, where and why */
    GPUPOOL_E_HOST_MEMORY,   /* host allocation failed; nothing changed */
    GPUPOOL_E_ASLEEP,        /* the arena or the tag sleeps: gpupool_wake comes first */
    GPUPOOL_E_CUDA           /* a CUDA call failed; gpupool_last_error() has its name and CUDA's */
} gpupool_result;

typedef enum gpupool_content {   /* what gpupool_sleep does with the data in live blocks */
    GPUPOOL_DISCARD = 0,         /* drops the data: after waking, blocks hold anything */
    GPUPOOL_KEEP                 /* copies the data to host memory, and back on waking */
} gpupool_content;

typedef enum gpupool_source {    /* where an arena's chunks come from */
    GPUPOOL_SOURCE_AUTO = 0,     /* MAPPED where the device supports it and has addresses left; else
                                    DEVICE, and gpupool_report says why */
    GPUPOOL_SOURCE_MAPPED,       /* addresses are reserved once, and physical memory is mapped there
                                    on demand; the only source that stitches. For such memory
                                    cudaIpcGetMemHandle returns cudaErrorInvalidValue.
                                    cuMemGetAddressRange returns one chunk, which may be smaller or
                                    larger than a block: see GPUPOOL_ONE_CHUNK */
    GPUPOOL_SOURCE_DEVICE,       /* cudaMalloc chunks. CUDA shares and registers a whole chunk */
    GPUPOOL_SOURCE_MANAGED,      /* cudaMallocManaged chunks */
    GPUPOOL_SOURCE_PINNED,       /* cudaHostAlloc chunks: page-locked host memory */
    GPUPOOL_SOURCE_CUSTOM,       /* config.chunk_alloc: ncclMemAlloc, a test double, ... */
    GPUPOOL_SOURCE_BYPASS        /* no pool: each block is a cudaMalloc of its own, to bisect a bug
                                    or to use cudaIpcGetMemHandle */
} gpupool_source;

typedef enum gpupool_cause {     /* why memory ran out */
    GPUPOOL_CAUSE_NONE = 0,
    GPUPOOL_CAUSE_LIMIT,         /* the arena's limit: raise it, or free blocks */
    GPUPOOL_CAUSE_TOO_LARGE,     /* the request is larger than the whole device */
    GPUPOOL_CAUSE_DEVICE_FULL,   /* the device is full, mostly of this arena's memory */
    GPUPOOL_CAUSE_OTHERS,        /* the device is full, and the missing memory is not the arena's */
    GPUPOOL_CAUSE_FRAGMENTED,    /* enough bytes are free or can be got, but not as one block */
    GPUPOOL_CAUSE_PENDING,       /* the request fits when work in flight has finished */
    GPUPOOL_CAUSE_CAPTURING,     /* as PENDING, but a capturing stream cannot wait for that work */
    GPUPOOL_CAUSE_TAG            /* the budget of the request's tag */
} gpupool_cause;

typedef struct gpupool_arena gpupool_arena;
typedef struct gpupool_capture gpupool_capture;

typedef enum gpupool_flag {          /* of a request; add up several */
    GPUPOOL_ZEROED = 1,              /* a memset on the request's stream zeroes the block */
    GPUPOOL_NO_WAIT = 2,             /* the host never waits. Where only a wait would help, the
                                        request fails, with a verdict */
    GPUPOOL_ONE_CHUNK = 4,           /* the block lies in one chunk, for libraries that call
                                        cuMemGetAddressRange: NCCL registration, UCX, ... */
    GPUPOOL_EXPORTABLE = 8           /* for gpupool_export: the block has a chunk for itself, and
                                        its size is rounded up to whole granules (2 MiB) */
} gpupool_flag;

typedef enum gpupool_share {         /* who else may use an arena's memory; add up several */
    GPUPOOL_SHARE_PROCESSES = 1,     /* other processes, by gpupool_export. Linux only */
    GPUPOOL_SHARE_RDMA = 2           /* network cards and the like (GPUDirect RDMA) */
} gpupool_share;

/* Addresses at which memory is mapped: a chunk, a stitch, or the part of a chunk behind a block. */
typedef struct gpupool_mapping {
    void *memory;                    /* the first address */
    size_t bytes;                    /* the size of the mapping */
    size_t offset;                   /* from the start of the chunk to `memory`, in bytes */
    size_t chunk_bytes;              /* the size of the whole chunk; 0: a stitch, of several */
    unsigned long long handle;       /* the chunk's CUmemGenericAllocationHandle, which the arena
                                        keeps; 0: a stitch, or a source other than MAPPED */
} gpupool_mapping;

typedef struct gpupool_exported {    /* filled by gpupool_export, to be sent to another process */
    uint64_t bytes;                  /* the size of the block, in whole granules */
    int device;                      /* the exporting process's ordinal of the block's device */
    int descriptor;                  /* its number in the process that holds this struct: the
                                        receiver writes the number that it has received */
} gpupool_exported;

typedef struct gpupool_imported {    /* filled by gpupool_import */
    void *memory;                    /* the address of the block in this process */
    size_t bytes;                    /* the size of the block */
    int device;                      /* this process's ordinal of the device that maps the block */
    unsigned long long handle;       /* used by gpupool_import_close alone */
} gpupool_imported;

/* Receives one mapping. A nonzero return value ends a walk; from on_map it refuses the mapping. */
typedef int (*gpupool_map_fn)(const gpupool_mapping *, void *user);

typedef struct gpupool_request {     /* all zeros except bytes: gpupool_alloc on stream 0 */
    size_t bytes;                    /* 1 to 2^48 */
    size_t alignment;                /* in bytes: a power of two, at most 2^40; 0: a unit */
    cudaStream_t stream;             /* the stream whose work uses the block first */
    unsigned flags;                  /* gpupool_flag, added up */
    const char *file;                /* the asking file, for reports with GPUPOOL_SITES 1. The text
                                        must exist as long as the arena, as __FILE__ does. NULL: not
                                        known */
    int line;                        /* the asking line */
    int tag;                         /* the tag whose budget the block counts against; 0: none */
} gpupool_request;

typedef enum gpupool_state {
    GPUPOOL_STATE_LIVE,              /* handed out, and not freed */
    GPUPOOL_STATE_FREE,              /* free, and the work that used the memory has finished */
    GPUPOOL_STATE_PENDING            /* freed; work that used the memory may still run */
} gpupool_state;

typedef struct gpupool_block {       /* a live block, or a stretch of free memory */
    gpupool_arena *arena;
    int device;
    gpupool_source source;
    gpupool_state state;
    void *memory;                    /* the address of the stretch; in a walk, its home address */
    size_t bytes;                    /* the size of the stretch, in whole units */
    size_t requested_bytes;          /* live: `bytes` without what rounding up has added */
    void *block;                     /* live: the pointer that was handed out. A walk shows a
                                        stitched block as several stretches, each with its home
                                        address in `memory`. Any other block is one stretch, whose
                                        `memory` is `block` */
    size_t block_bytes;              /* live: the requested bytes of the whole block; in a walk only
                                        the block's first stretch has them, the others have 0 */
    cudaStream_t stream;             /* live: of the allocation; pending: of the free. A handle,
                                        cudaStreamLegacy, or cudaStreamPerThread (of any thread);
                                        NULL: all streams, or not known */
    const char *file;                /* live, with GPUPOOL_SITES 1: who asked; NULL: not known */
    int line;
    int tag;                         /* live: the request's tag; 0: none */
} gpupool_block;

/* Receives one stretch of a walk. A nonzero return value ends the walk. No lock is held. */
typedef int (*gpupool_block_fn)(const gpupool_block *, void *user);

typedef struct gpupool_holder {      /* live blocks that the same source line asked for (with
                                        GPUPOOL_SITES 1), or that have the same requested size */
    const char *file;                /* NULL: not known */
    int line;
    uint64_t block_bytes;            /* the requested size of each block; 0 with GPUPOOL_SITES 1 */
    uint64_t blocks, bytes;          /* their number, and the sum of their requested bytes; both 0:
                                        there are no more holders */
    uint64_t enough;                 /* free this many of these blocks, whichever, and the request
                                        succeeds; 0: not even all of them are enough */
} gpupool_holder;

typedef struct gpupool_verdict {     /* why a request could not be met; all sizes in bytes */
    gpupool_cause cause;
    uint64_t asked_bytes;            /* the requested bytes */
    uint64_t limit_bytes;            /* the arena's limit; 0: none */
    uint64_t granted_bytes;          /* of live blocks, in whole units */
    uint64_t reserved_bytes;         /* of the arena's chunks */
    uint64_t largest_block_bytes;    /* the largest block that free memory makes, of whatever
                                        stream, without memory that a graph keeps. BYPASS: 0 */
    uint64_t pending_bytes;          /* freed; work that used the memory may still run */
    uint64_t kept_bytes;             /* the part of pending_bytes that graphs keep */
    uint64_t device_free_bytes;      /* free on the device, as the driver says. On an integrated
                                        GPU, which uses host memory, all except reserved_bytes */
    uint64_t device_total_bytes;     /* the memory of the device */
    uint64_t others_bytes;           /* device memory in use that this arena does not have */
    uint64_t siblings_bytes;         /* the part of others_bytes in this process's other arenas */
    uint64_t missing_bytes;          /* at least this much must become free, under the limit or on
                                        the device; if it is scattered, more may be needed */
    uint64_t fits_bytes;             /* FRAGMENTED: the largest block that can be had */
    uint64_t raise_bytes;            /* with a limit of limit_bytes + raise_bytes the request
                                        succeeds; 0: no limit would help */
    int pending_streams;             /* PENDING, CAPTURING: how many streams to wait for; 0: for
                                        the whole device */
    cudaStream_t pending_stream;     /* if pending_streams is 1: that stream, or cudaStreamLegacy or
                                        cudaStreamPerThread */
    gpupool_holder holders[GPUPOOL_HOLDERS]; /* the biggest holders, the biggest first */
    int tag;                         /* cause TAG: the tag whose budget is too small. limit_bytes,
                                        granted_bytes, missing_bytes and raise_bytes are then the
                                        tag's, and the figures of free memory are 0 */
    char sentence[448];              /* all of this for people, with what would help */
} gpupool_verdict;

/* A soft limit was passed, or is no longer passed. */
typedef struct gpupool_soft_limit {
    gpupool_arena *arena;
    int tag;                         /* 0: the soft limit of the arena, on reserved bytes */
    int is_over;                     /* 1: the limit is passed now; 0: no longer */
    uint64_t now_bytes, soft_limit_bytes; /* tag: granted bytes; arena: reserved bytes */
} gpupool_soft_limit;

/* Called once each time that memory rises above a soft limit, and once each time that it falls back
   under it. The call that made it so calls the function before it returns, with no lock held; after
   a free in a host function, the arena's next allocation or free does. The function may call the
   arena: a cache drops entries here. */
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
                                        differs in one point: it means the current device */
    int device;                      /* CUDA device ordinal, or GPUPOOL_DEVICE_CURRENT */
    gpupool_source source;           /* where chunks come from. A default arena takes the
                                        environment's GPUPOOL_SOURCE, or AUTO */
    size_t limit_bytes;              /* the most bytes to reserve; 0: see gpupool_set_limit */
    const char *limit_text;          /* the same as text: "12GiB", "80%", "-2GiB" (all of the device
                                        except 2 GiB); takes precedence over limit_bytes */
    size_t reserve_bytes;            /* bytes to reserve at once, in whole granules, and to keep
                                        when trimming; BYPASS: nothing */
    size_t chunk_bytes;              /* the least bytes to get from the driver in one call; 0:
                                        GPUPOOL_CHUNK_BYTES */
    int no_stitch;                   /* 1: no block has a second address; see rule 6 */
    void *(*chunk_alloc)(size_t bytes, int device, void *user); /* SOURCE_CUSTOM: both are needed.
                                        Returns a chunk, or NULL. See rule 4 */
    void (*chunk_free)(void *chunk, size_t bytes, int device, void *user);
    unsigned share;                  /* gpupool_share, added up; SOURCE_MAPPED only. A property of
                                        each chunk from its creation, which costs next to nothing;
                                        but the driver cannot checkpoint a process that exports
                                        memory, so the default is 0 */
    gpupool_map_fn on_map, on_unmap; /* called when a chunk or a stitch has appeared, before any
                                        request gets its memory; and before it goes, when none has
                                        its memory. See rule 10 */
    int (*on_out_of_memory)(const gpupool_verdict *, void *user); /* called when a request is about
                                        to fail, whatever its stream and flags. Free missing_bytes
                                        and return nonzero: gpupool tries again. Return 0: the
                                        request fails. gpupool_would_fit does not call it */
    size_t backup_bytes;             /* the most host memory that gpupool_sleep may use; 0: any */
    size_t soft_limit_bytes;         /* reserved bytes above which on_soft_limit is called; 0: it is
                                        never called */
    gpupool_soft_fn on_soft_limit;
    void *user;                      /* passed to each function of this config */
    const char *name;                /* appears in reports and pictures; 31 bytes are copied */
} gpupool_arena_config;

typedef struct gpupool_counter {
    uint64_t now, peak, total;       /* the value; its highest value; the sum of all increases. peak
                                        is exact with one stream. Each further stream may make peak
                                        wrong by the larger of 1 MiB and a 256th of the reserved
                                        bytes, all streams together by an eighth at most */
} gpupool_counter;

typedef struct gpupool_stats {
    size_t struct_bytes;             /* set by gpupool: sizeof of the struct that it filled */
    gpupool_counter requested;       /* requested bytes of live blocks */
    gpupool_counter granted;         /* the same, rounded up to units. While threads wait for each
                                        other's locks, up to an eighth of a small block may be
                                        granted and not used by its request */
    gpupool_counter reserved;        /* bytes in chunks */
    gpupool_counter pending;         /* freed bytes whose work is not known to have finished */
    gpupool_counter blocks;          /* live blocks */
    uint64_t allocs, frees, failures; /* allocations that succeeded, frees, failed allocations */
    uint64_t same_stream_allocs;     /* served from memory freed on the same stream */
    uint64_t splits, merges;         /* runs cut in two; neighbouring free runs made one */
    uint64_t chunks_gained, chunks_lost; /* chunks got from the driver, and given back to it */
    uint64_t stitches;               /* blocks put together from free memory in several chunks */
    uint64_t stitches_reused;        /* blocks that took an idle stitch, without a CUDA call */
    uint64_t fence_waits;            /* times that a stream was made to wait for another stream, on
                                        the device */
    uint64_t host_syncs;             /* times that the host waited for the device */
    uint64_t limit_bytes;            /* 0: none */
    uint64_t largest_free_bytes;     /* the longest run of free memory at home */
    uint64_t largest_block_bytes;    /* the largest block that free memory makes, stitched if need
                                        be */
    uint64_t stitched_bytes;         /* the part of granted.now in stitched blocks */
    uint64_t asleep_bytes;           /* bytes that gpupool_sleep gave back; 0: awake */
    uint64_t backup_bytes;           /* host memory with the data of blocks of a sleeping arena */
    uint64_t host_bytes;             /* host memory of the arena's own records */
    uint64_t live_by_order[GPUPOOL_ORDERS], free_by_order[GPUPOOL_ORDERS]; /* numbers of live and of
                                        free runs, by size: see GPUPOOL_ORDERS */
} gpupool_stats;

typedef struct gpupool_tag_stats {
    char name[32];
    gpupool_counter granted;         /* bytes of live blocks with the tag, in whole units */
    gpupool_counter blocks;          /* live blocks with the tag */
    uint64_t failures;               /* requests that were over the budget */
    uint64_t limit_bytes, soft_limit_bytes; /* 0: none */
    uint64_t asleep_bytes;           /* of its own chunks, returned to the driver while it sleeps */
} gpupool_tag_stats;

/* ---- the staging ring ---- */

typedef struct gpupool_ring gpupool_ring;
typedef uint64_t gpupool_ticket;     /* of one transfer: never 0, never used twice by a ring */

typedef enum gpupool_direction {
    GPUPOOL_UP = 0,                  /* from the host to the device */
    GPUPOOL_DOWN = 1                 /* from the device to the host */
} gpupool_direction;

typedef struct gpupool_ring_config { /* all zeros: device 0, and every default. A NULL config
                                        differs in one point: it means the current device */
    int device;                      /* CUDA device ordinal, or GPUPOOL_DEVICE_CURRENT */
    size_t bytes;                    /* the most pinned memory of the ring: from 256 KiB to 16 TiB;
                                        0: GPUPOOL_RING_BYTES */
    size_t chunk_bytes;              /* the size of a slot, which is the most that the ring copies
                                        and sends at a time: from 64 KiB to a quarter of `bytes`; 0:
                                        GPUPOOL_RING_CHUNK_BYTES */
    int workers;                     /* the most threads that help callers: up to 64; -1: none; 0:
                                        GPUPOOL_RING_WORKERS */
} gpupool_ring_config;

typedef struct gpupool_file_part {   /* bytes of a file, and their destination */
    void *device_dst;
    uint64_t offset;                 /* of the first byte in the file, in bytes */
    size_t bytes;
} gpupool_file_part;

typedef struct gpupool_span {        /* pinned memory of a ring, for the program to fill */
    void *memory;
    size_t bytes;                    /* the program may lower this before it sends the span */
    uint64_t number;                 /* for the ring's own use */
} gpupool_span;

/* Your functions. They write, or read, bytes [offset, offset + bytes) of the transfer, where offset
   counts from the transfer's first byte. Each byte comes once. A nonzero return value fails the
   transfer with E_CALLBACK. The caller and the workers call the function at the same time, for
   different parts; without workers the caller alone calls it, in order of offset. The functions
   must not call the ring, and must not throw. */
typedef int (*gpupool_read_fn)(void *to, size_t bytes, uint64_t offset, void *user);
typedef int (*gpupool_write_fn)(const void *from, size_t bytes, uint64_t offset, void *user);

typedef struct gpupool_transfer {    /* fields that are not needed are zero */
    gpupool_direction direction;
    void *to;                        /* UP: device memory; DOWN: host memory */
    const void *from;                /* UP: host memory; DOWN: device memory */
    size_t bytes;                    /* in all; with pitches: of each row */
    size_t to_pitch, from_pitch;     /* bytes from one row's start to the next, as of
                                        cudaMemcpy2DAsync; both 0: no rows */
    size_t rows;                     /* with pitches: the number of rows */
    gpupool_read_fn read;            /* UP: fills pinned memory with the data, instead of `from` */
    gpupool_write_fn write;          /* DOWN: takes the data from pinned memory, instead of `to` */
    void *user;                      /* passed to read and write */
    int is_file;                     /* 1, UP: the data comes from an open file instead of `from`;
                                        see gpupool_upload_file */
    int file;                        /* the file's descriptor */
    uint64_t offset;                 /* of the first byte in the file */
    cudaStream_t stream;
    gpupool_ticket *ticket;          /* receives the ticket. NULL: no ticket, and the call returns
                                        when gpupool_upload or gpupool_download would */
} gpupool_transfer;

typedef struct gpupool_ring_stats {  /* arrays: [GPUPOOL_UP], [GPUPOOL_DOWN] */
    size_t struct_bytes;             /* set by gpupool: sizeof of the struct that it filled */
    gpupool_counter pinned;          /* bytes of pinned memory */
    gpupool_counter used;            /* the part of pinned in spans and in chunks on their way */
    uint64_t limit_bytes;            /* the most bytes that the ring pins */
    uint64_t workers;                /* worker threads that exist now */
    uint64_t transfers[2];           /* transfers that succeeded */
    uint64_t staged_bytes[2];        /* copied through the ring, bytes of creeps included */
    uint64_t direct_bytes[2];        /* copied by CUDA itself: pinned memory, tiny transfers */
    uint64_t chunks[2];              /* chunks that the ring copied */
    uint64_t creeps;                 /* chunks that went by CUDA's own staging, because the ring
                                        stayed full */
    uint64_t waits, wait_ns;         /* transfers that found the ring full; their waiting time */
    uint64_t pin_ns, pin_failures;   /* time spent pinning; refusals by the system */
    uint64_t under_way_ns[2];        /* time with a transfer through the ring under way */
    uint64_t link_busy_ns[2];        /* time with a chunk on its way, as far as the ring has
                                        noticed */
    double gb_per_s[2];              /* staged_bytes without those of spans, divided by
                                        under_way_ns: 10^9 bytes a second */
    double link_busy[2];             /* link_busy_ns divided by under_way_ns, at most 1 */
} gpupool_ring_stats;

/* == API ======================================================================================
   The public functions: arenas, blocks and captures, then limits, statistics and reports, then
   rings. Rules 11 and 12 of the top comment hold for every call: who may make the call, what the
   call leaves alone, and what a stream of 0 means.
   Read first: gpupool_alloc, gpupool_free, gpupool_record_stream, gpupool_last_error,
   gpupool_begin_capture, gpupool_upload. */

#if defined(__cplusplus)
extern "C" { /* whatever GPUPOOL_API is */
#endif

/* The result of this thread's most recent gpupool call. gpupool_last_verdict does not change it,
   nor does a call in cudaMalloc's shape (see below) that reaches no arena. */
GPUPOOL_API gpupool_result gpupool_last_result(void);

/* One line of text about this thread's most recent call that failed. The text is valid until the
   thread's next failure. */
GPUPOOL_API const char *gpupool_last_error(void);

/* The name of a result: "GPUPOOL_E_ARGUMENT". */
GPUPOOL_API const char *gpupool_result_name(gpupool_result);

/* The implementation's GPUPOOL_VERSION, and its options as text. */
GPUPOOL_API int gpupool_get_version(void);
GPUPOOL_API const char *gpupool_get_build(void);

/* ---- arena: the memory of one device ---- */

/* Makes an arena. A NULL config means the current device and every default; a config of zeros means
   device 0 and every default. On failure *arena is NULL. Gets config.reserve_bytes from the driver
   at once; where that fails: E_OUT_OF_MEMORY, with a verdict. */
GPUPOOL_API gpupool_result gpupool_arena_create(gpupool_arena **arena,
                                                const gpupool_arena_config *config);

/* Waits for the device, returns all memory to the driver, and ends the arena. E_IN_USE while blocks
   are live or captures are not released, unless the device was reset (rule 7);
   gpupool_last_error() names the biggest holders. If a CUDA call fails, the arena still exists,
   perhaps with less reserved: call again. No other thread may use the arena from this call on. */
GPUPOOL_API gpupool_result gpupool_arena_destroy(gpupool_arena *arena);

/* The default arena of a device: the arena that gpupool_cudaMalloc uses, the same for all callers.
   `get` makes the arena at the first call, and renews it after a reset (rule 7). It returns NULL,
   with a result, on failure. `find` makes no arena; NULL with GPUPOOL_OK means that there is none.
   The arena lives until gpupool_arena_destroy, or as long as the process. The environment decides
   its source and its limit: see "Environment" above. */
GPUPOOL_API gpupool_arena *gpupool_get_default_arena(int device);
GPUPOOL_API gpupool_arena *gpupool_find_default_arena(int device);

/* Allocates a block of 1 to 2^48 bytes, aligned to a unit, for work that is queued on the stream
   from now on. Returns NULL, with a result, on failure. Makes no CUDA call where free memory fits.
   Else it tries, in this order: to stitch free memory or grow; to make the stream wait for other
   streams' work on their freed memory; to return idle chunks for a larger one; to wait on the host.
   On a capturing stream it may grow, but waits for nothing: where only a wait would help, it fails
   with E_OUT_OF_MEMORY and cause CAPTURING. */
GPUPOOL_API void *gpupool_alloc(gpupool_arena *, size_t bytes, cudaStream_t);

/* gpupool_alloc with every option of gpupool_request. The next two calls are short forms of it. In
   a PINNED arena GPUPOOL_ZEROED zeroes the block on the host, before the call returns; on a
   capturing stream the graph zeroes it too, in each replay. */
GPUPOOL_API void *gpupool_alloc_request(gpupool_arena *, const gpupool_request *);

/* gpupool_alloc with an alignment in bytes: a power of two, at most 2^40; 0: a unit. */
GPUPOOL_API void *gpupool_alloc_aligned(gpupool_arena *, size_t bytes, size_t alignment,
                                        cudaStream_t);

/* gpupool_alloc with GPUPOOL_ZEROED: a memset on the stream zeroes the block. */
GPUPOOL_API void *gpupool_zalloc(gpupool_arena *, size_t bytes, cudaStream_t);

/* Frees a block on the stream whose work used it last (rule 1), on whatever stream it was
   allocated. NULL is allowed. E_NOT_OURS, E_INSIDE, E_DOUBLE_FREE and, of an exported block,
   E_IN_USE change nothing. Records an event now and then; if CUDA refuses the event, the block is
   freed all the same. Waits in two cases only: GPUPOOL_GUARD waits for the stream (E_OVERRUN: the
   block was freed, and bytes past its end were written), and in a BYPASS arena cudaFree waits. */
GPUPOOL_API gpupool_result gpupool_free(gpupool_arena *, void *block, cudaStream_t);

/* gpupool_free for host functions (rule 8): makes no CUDA call. Other streams get the memory once
   gpupool learns that the stream's work has finished: by a later call with the stream, or by a wait
   for the device. E_ARGUMENT for cudaStreamPerThread, which on CUDA's thread is another stream. */
GPUPOOL_API gpupool_result gpupool_free_in_host_function(gpupool_arena *, void *block,
                                                         cudaStream_t);

/* Tells the arena that the work queued on this stream so far uses the block too. Once the block is
   freed, no request gets its memory before that work has finished. Records an event on the stream,
   one of two that the arena has for each stream. Does not wait. E_CAPTURING on a capturing stream.
   */
GPUPOOL_API gpupool_result gpupool_record_stream(gpupool_arena *, const void *block, cudaStream_t);

/* To be called before cudaStreamDestroy (rule 5). What the stream freed no longer belongs to the
   stream's handle; other streams get it when the stream's work has finished. Ends a scope of the
   stream. Does not wait, and works after a CUDA error too. */
GPUPOOL_API gpupool_result gpupool_retire_stream(gpupool_arena *, cudaStream_t);

/* Retires the stream in all arenas, then destroys it. Returns what cudaStreamDestroy returns. */
GPUPOOL_API cudaError_t gpupool_cudaStreamDestroy(cudaStream_t);

/* Waits on the host for the work that was queued before this stream's frees so far. Then what the
   stream freed is not pending, except where other streams use it too. E_CAPTURING on a stream in a
   scope, and on a capturing stream. */
GPUPOOL_API gpupool_result gpupool_wait_stream(gpupool_arena *, cudaStream_t);

/* Waits for the device. Then nothing that was freed before, on whatever stream, is pending, except
   what graphs keep. */
GPUPOOL_API gpupool_result gpupool_wait_all(gpupool_arena *);

/* Describes the live block that begins at this address. E_INSIDE: the address is inside a live
   block, which *block describes. E_DOUBLE_FREE: the address is in free memory; E_NOT_OURS: it is in
   no memory of the arena; *block is all zeros then. A NULL arena means whichever arena has the
   address; this form is not allowed in a host function (rule 8). */
GPUPOOL_API gpupool_result gpupool_get_block(gpupool_arena *, const void *memory,
                                             gpupool_block *block);

/* Calls fn for each stretch of the arena's reserved memory, live and free, in order of address. The
   stretches are a copy of one moment, so fn may call the arena. E_CALLBACK if fn ended the walk. */
GPUPOOL_API gpupool_result gpupool_walk_blocks(gpupool_arena *, gpupool_block_fn fn, void *user);

/* Returns idle chunks to the driver until at most max(keep_bytes, config.reserve_bytes) stays
   reserved. A chunk is idle when all its memory is free, memory in caches included, and the GPU
   work that used it has finished. *released_bytes receives what was returned, also where a CUDA
   call fails half-way. Waits: see rule 9. Captures: see rule 3. */
GPUPOOL_API gpupool_result gpupool_trim(gpupool_arena *, size_t keep_bytes,
                                        size_t *released_bytes /* or NULL */);

/* Lets kernels of another device use the arena's memory, what the arena gets later included. See
   rule 13. E_UNSUPPORTED where the hardware cannot do that. */
GPUPOOL_API gpupool_result gpupool_allow_peer(gpupool_arena *, int device);

/* Ends gpupool_allow_peer: waits for the arena's device and its peers, then takes the access back.
   Kernels keep their access to DEVICE and MANAGED memory, because CUDA gives it for whole devices.
   E_ARGUMENT for a device that is no peer. */
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

/* ---- memory that others use: chunks for registration, and blocks for other processes ---- */

/* Calls fn for each chunk behind a live block, in the order of the block's addresses;
   mapping.memory is the address in the block where that chunk's part begins. fn may call the arena.
   Handles are 0 while the arena sleeps. E_CALLBACK if fn ended the walk. Errors for an address that
   is no block's start: those of gpupool_get_block. */
GPUPOOL_API gpupool_result gpupool_walk_chunks(gpupool_arena *, const void *block,
                                               gpupool_map_fn fn, void *user);

/* Makes what another process needs to map a block that was allocated with GPUPOOL_EXPORTABLE. Send
   the struct and its descriptor over a Unix socket (SCM_RIGHTS). The arena keeps the descriptor,
   which is close-on-exec. A block that is exported again has the same struct. Until
   gpupool_export_close the block cannot be freed: E_IN_USE. E_CAPTURING for a block that a graph
   keeps. */
GPUPOOL_API gpupool_result gpupool_export(gpupool_arena *, const void *block, gpupool_exported *);

/* Ends one gpupool_export of the block; the last end closes the descriptor. Call it when the other
   processes have closed their imports or are gone: else they still see the memory when it has
   another owner. E_ARGUMENT for a block that is not exported. */
GPUPOOL_API gpupool_result gpupool_export_close(gpupool_arena *, const void *block);

/* Maps a block that another process exports, for kernels of this device. exported->descriptor is
   the descriptor as it arrived here; the program may close it after the call. The memory exists
   until both sides have let go, even if the other process dies. gpupool orders no work between
   processes: use cudaIpcGetEventHandle. E_CUDA if the descriptor is not one of gpupool_export. */
GPUPOOL_API gpupool_result gpupool_import(int device, const gpupool_exported *exported,
                                          gpupool_imported *imported);

/* Unmaps an imported block. Does not wait: make sure that no work uses the block. If a CUDA call
   fails, call again. */
GPUPOOL_API gpupool_result gpupool_import_close(gpupool_imported *imported);

/* ---- graph capture. Memory that must stay for replays is allocated in a scope:

       gpupool_begin_capture(arena, stream, &scope);   // before or after cudaStreamBeginCapture
       cudaStreamBeginCapture(stream, mode);           // any mode
       ...                                             // gpupool_alloc, gpupool_free on the stream
       cudaStreamEndCapture(stream, &graph);
       gpupool_end_capture(scope);                     // before or after cudaStreamEndCapture
       ...                                             // launch the graph, as often as needed
       cudaGraphExecDestroy(exec), cudaGraphDestroy(graph);
       gpupool_release_capture(scope);

   A block that a scope hands out belongs to the graph: its memory has the same addresses in each
   replay, and gets no other owner before the release. The program may free the block in the scope
   or later, or leave it to the release. After the release it must not be freed. What is allocated
   and freed in the scope may be handed out in the scope again. A block from before the scope may be
   freed in the scope too; other owners get its memory after the release. A capture that forks needs
   a scope for each stream that allocates. If two graphs use one block, release last the scope that
   allocated it. ---- */

/* Opens a scope on the stream. E_ARGUMENT if the stream has a scope already. On failure *capture is
   NULL. */
GPUPOOL_API gpupool_result gpupool_begin_capture(gpupool_arena *, cudaStream_t, gpupool_capture **);

/* Closes the scope: from now on the stream allocates as before the scope. The graph's memory stays
   for replays. gpupool_retire_stream closes a scope too. */
GPUPOOL_API gpupool_result gpupool_end_capture(gpupool_capture *);

/* Frees all memory of the graph, blocks that were not freed included. Call it when the graph and
   its executables are destroyed, or when the capture failed; it closes the scope if that is open.
   Waits for the device, since a replay may still run. */
GPUPOOL_API gpupool_result gpupool_release_capture(gpupool_capture *);

/* ---- cudaMalloc's own shape. gpupool_cudaMalloc uses the default arena of the current device,
   gpupool_cudaMallocAsync that of the stream's device. cudaMalloc's promises hold: any stream may
   use the block at once; other owners get its memory when all work that was queued before its free
   has finished; but the free itself does not wait. The Async forms work in stream order. A pointer
   that is in no arena goes to CUDA. For a pointer into an arena that is not a default one, the
   result is cudaErrorInvalidValue; for an overrun that GPUPOOL_GUARD finds,
   cudaErrorIllegalAddress; for a CUDA call that fails inside, the error of that call.
   cudaErrorMemoryAllocation and cudaErrorInvalidValue also become CUDA's last error, as after
   CUDA's own calls. cudaMallocPitch, cudaMalloc3D, cudaMallocManaged and the like stay CUDA's.
   ---- */

GPUPOOL_API cudaError_t gpupool_cudaMalloc(void **, size_t);
GPUPOOL_API cudaError_t gpupool_cudaFree(void *);
GPUPOOL_API cudaError_t gpupool_cudaMallocAsync(void **, size_t, cudaStream_t);
GPUPOOL_API cudaError_t gpupool_cudaFreeAsync(void *, cudaStream_t);

/* ---- limits. A limit is on reserved bytes. Memory of CUDA's context, of other libraries and of
   other processes does not count. A new arena takes the first of these limits that is set:
   config.limit_text, config.limit_bytes, GPUPOOL_LIMIT_<device> in the environment, GPUPOOL_LIMIT
   in the environment, the macro GPUPOOL_LIMIT. ---- */

/* Sets the limit in bytes; 0: no limit. If more is reserved, returns what it can, as gpupool_trim
   does; the arena then does not grow until the limit is met. Waits for growth that is under way,
   and as rule 9 says. If a CUDA call fails, the limit is as before, and memory that was already
   returned stays returned. */
GPUPOOL_API gpupool_result gpupool_set_limit(gpupool_arena *, size_t bytes);

/* gpupool_set_limit with text: "1073741824"; "12GiB" or "1.5 gb" (K, M, G, T and KiB ... are powers
   of 1024, KB ... of 1000); "80%" of the device; "80%free" of what is free on it now; "-2GiB": the
   device without 2 GiB. Everything else, and what comes to 0, is E_ARGUMENT. On an integrated GPU
   all that the arena has not reserved counts as free, since CUDA's figure leaves out memory in the
   system's caches. */
GPUPOOL_API gpupool_result gpupool_set_limit_text(gpupool_arena *, const char *);

/* The limit in bytes; 0: no limit. */
GPUPOOL_API gpupool_result gpupool_get_limit(gpupool_arena *, size_t *bytes);

/* The bytes that the arena can still hand out in all, by its limit and by what is free on the
   device; at most 2^48. While no block is live, one block can have them all. Else free memory may
   be scattered: gpupool_would_fit answers for one block. Does not wait for the device (rule 9). */
GPUPOOL_API gpupool_result gpupool_get_available(gpupool_arena *, size_t *bytes);

/* Asks whether some stream could get one block of this size now, without a wait on the host.
   GPUPOOL_OK: yes. E_OUT_OF_MEMORY: no, and *why receives the verdict; with cause PENDING,
   gpupool_alloc would succeed all the same, because it waits. Any other result: the call itself
   failed, and *why is all zeros. Does not wait for the device (rule 9). */
GPUPOOL_API gpupool_result gpupool_would_fit(gpupool_arena *, size_t bytes,
                                             gpupool_verdict *why /* or NULL */);

/* The verdict on this thread's most recent allocation that failed with E_OUT_OF_MEMORY. */
GPUPOOL_API gpupool_result gpupool_last_verdict(gpupool_verdict *);

/* ---- tags: how much memory each part of the program has, and may have ---- */

/* Makes a tag, which lives as long as the arena. Requests name it in request.tag; the block counts
   against its budget, in granted bytes, until it is freed, whoever frees it. Untagged work pays
   nothing. A NULL config means all zeros. On failure *tag is 0; E_UNSUPPORTED beyond
   GPUPOOL_TAGS. */
GPUPOOL_API gpupool_result gpupool_tag(gpupool_arena *, const char *name,
                                       const gpupool_tag_config *, int *tag);

/* Replaces both limits of a tag, in granted bytes; 0: none. Blocks above a lowered limit stay. */
GPUPOOL_API gpupool_result gpupool_set_tag_limits(gpupool_arena *, int tag, size_t limit_bytes,
                                                  size_t soft_limit_bytes);

/* Fills *stats with the tag's figures. E_ARGUMENT: the arena has no such tag. */
GPUPOOL_API gpupool_result gpupool_get_tag_stats(gpupool_arena *, int tag, gpupool_tag_stats *);

/* ---- statistics. A build with GPUPOOL_STATS 0 counts only `now` of granted, reserved, pending and
   blocks. It still reports what is found out at the moment of the call: the limit, the largest free
   run, free_by_order and host_bytes. ---- */

/* Fills *stats with the figures of the arena's whole life. The figures of one stream are of one
   moment. Changes nothing in the arena. */
GPUPOOL_API gpupool_result gpupool_get_stats(gpupool_arena *, gpupool_stats *);

/* Sets the peak of each counter to its present value, also in phases that are open. */
GPUPOOL_API gpupool_result gpupool_reset_peaks(gpupool_arena *);

/* A phase: what did this part of the program use? Counters and counts start at zero with begin, and
   *stats receives them with end; so a peak is the peak growth in the phase. Limit, orders and
   host_bytes are those of the moment. Phases nest, belong to the arena and count all its threads;
   an outer phase includes its inner ones. If a phase frees older blocks, `now` may end below zero:
   read it as int64_t. E_ARGUMENT: end without begin. E_UNSUPPORTED with GPUPOOL_STATS 0. */
GPUPOOL_API gpupool_result gpupool_begin_phase(gpupool_arena *);
GPUPOOL_API gpupool_result gpupool_end_phase(gpupool_arena *, gpupool_stats * /* or NULL */);

/* Checks every invariant of the arena. E_CORRUPT: gpupool_last_error() names the first that is
   broken. */
GPUPOOL_API gpupool_result gpupool_check(gpupool_arena *);

/* ---- reports. Each first copies the arena as it is at one moment, and then writes the file with
   no lock held. E_FILE if the file cannot be written. ---- */

/* Without a line of code: the environment's GPUPOOL_REPORT=FILE. Each arena that is created with it
   set writes a report when a request is E_OUT_OF_MEMORY, when the arena is destroyed, and at exit
   (then without figures of the device). FILE.json and FILE.svg hold the latest report, the second
   arena's in FILE-2.json and so on; any other FILE, or stderr, gets gpupool_report's, one after the
   other. A file that cannot be written is told once on stderr, and changes no result. Forked
   children write none. */

/* Writes one screen for people: a bar of the limit, the counters, tags, the biggest holders (by
   source line with GPUPOOL_SITES 1, else by size), and a map in characters. */
GPUPOOL_API gpupool_result gpupool_report(gpupool_arena *, FILE *);

/* Writes one JSON object, for programs. All numbers are exact integers, except fragmentation, which
   is 1 - the largest block that free memory makes / all free memory.
     "gpupool": 1 (the number of this form), "name", "device", "source", "unit_bytes",
     "limit_bytes" (null: none), "device_free_bytes", "device_total_bytes", "others_bytes" (null:
     not known), "counters": {"requested", "granted", "reserved", "pending", "blocks": {"now",
     "peak", "total"}}, "counts": {"allocs", "frees", ... as in gpupool_stats}, "free_bytes",
     "largest_free_bytes" (in one run), "largest_block_bytes", "stitched_bytes", "fragmentation",
     "asleep_bytes", "backup_bytes", "host_bytes", "live_by_order": [], "free_by_order": [],
     "streams": [handle], "tags": [{"name", "limit_bytes", "soft_limit_bytes", "granted", "blocks":
     {"now", "peak", "total"}, "failures"}], "sites": [{"file", "line", "stream", "allocs",
     "blocks", "bytes", "bytes_peak"}] (with GPUPOOL_SITES 1), "chunks": [{"address", "bytes",
     "blocks": [{"address", "bytes", "state": "live" | "free" | "pending", "requested_bytes" (if
     live), "stitched_at" (the address of the stitched block that this is a part of), "stream",
     "site", "tag" (if it has one)}]}].
   "stream", "site" and "tag" are indices into the lists above; null: not known. A handle of 1 is
   the default stream, 5 all streams (gpupool_cudaFree), another odd number a thread's default
   stream. Mapped chunks with neighbouring addresses appear as one chunk. */
GPUPOOL_API gpupool_result gpupool_write_json(gpupool_arena *, FILE *);

/* Writes a map of memory as an SVG picture: chunks in rows, a colour for each stream, hatching for
   freed memory that may still be in use, and sizes as tool tips. */
GPUPOOL_API gpupool_result gpupool_write_svg(gpupool_arena *, FILE *);

/* Writes a pickle that pytorch.org/memory_viz opens, with the fields of
   torch.cuda.memory._snapshot(). */
GPUPOOL_API gpupool_result gpupool_write_snapshot(gpupool_arena *, FILE *);

/* Records the arena's calls as text, until it is called with NULL or another file, or the arena is
   destroyed. The file must stay open until then. Lines are written under the lock, in the order in
   which calls took effect, so recording is slow. build/replay reads them: if the arena was fresh
   when recording began, the same calls on one thread give the same addresses in another arena.
   E_FILE, from the call that stops: a line could not be written. The lines:
     a ID BYTES STREAM [ALIGNMENT]   a block; ID: its address / unit, in a MAPPED arena counted from
                                     the arena's first address
     f ID STREAM                     its free
     o BYTES STREAM [ALIGNMENT]      a request that failed
     u ID STREAM                     gpupool_record_stream
     r STREAM                        gpupool_retire_stream
     t BYTES                         gpupool_trim, with keep_bytes
     l BYTES                         a new limit; 0: none
     # ...                           a comment; the first line has the arena's config
   STREAM: 0 is the default stream, and all streams for gpupool_cudaMalloc and gpupool_cudaFree;
   another stream's handle is written as a number. */
GPUPOOL_API gpupool_result gpupool_set_trace(gpupool_arena *, FILE * /* NULL: stop */);

/* ---- the staging ring: ordinary host memory to the device and back, at nearly the speed of pinned
   memory. A ring cuts a transfer into chunks. The calling thread and the ring's workers copy chunks
   into pinned memory, and send each chunk as soon as it is there. Workers start with the first
   transfer of at least 2 MiB or with a ticket, and end after one second without work. Pinned,
   registered, managed and device memory is recognised and copied directly. Uploads up to 16 KiB and
   downloads up to 64 KiB use CUDA's own staging. A ring needs no arena: the device's side is any
   memory of the ring's device. Any number of threads may use a ring at the same time, on any
   streams of its device, but not in a host function (rule 8). Transfers on a capturing stream are
   refused with E_CAPTURING. A ring never pins more than config.bytes. No transfer waits for the
   ring for ever: a transfer that gets no slot goes on by CUDA's own staging, slowly. ---- */

/* Makes a ring, which pins nothing yet. A NULL config means the current device and every default; a
   config of zeros means device 0 and every default. On failure *ring is NULL. */
GPUPOOL_API gpupool_result gpupool_ring_create(gpupool_ring **ring,
                                               const gpupool_ring_config *config);

/* Waits for all transfers in flight, and ends the ring. E_IN_USE while the program has spans,
   unless the device was reset (rule 7). If a CUDA call fails, the ring still exists: call again. No
   other thread may use the ring from this call on. */
GPUPOOL_API gpupool_result gpupool_ring_destroy(gpupool_ring *ring);

/* Copies in stream order: after what was queued on the stream before, and before what is queued
   later. Upload returns when the program may change the source; the last bytes may still be on
   their way. Download returns when the destination is filled. If both sides are device memory, the
   call only queues the copy. If a call fails, any part of the destination may have been written,
   and nothing else has. */
GPUPOOL_API gpupool_result gpupool_upload(gpupool_ring *, void *device_dst, const void *host_src,
                                          size_t bytes, cudaStream_t);
GPUPOOL_API gpupool_result gpupool_download(gpupool_ring *, void *host_dst, const void *device_src,
                                            size_t bytes, cudaStream_t);

/* gpupool_upload from an open file, which several threads read straight into pinned memory: cached
   pages from the page cache, others by O_DIRECT where the file system allows it. Neither uses nor
   changes the file's own offset. E_FILE if the file cannot be read at an offset (a pipe), or ends
   too early. E_UNSUPPORTED on Windows, and where a strict -std=c11 hides pread: define _GNU_SOURCE,
   or compile the implementation as gnu11. */
GPUPOOL_API gpupool_result gpupool_upload_file(gpupool_ring *, void *device_dst, int file,
                                               uint64_t offset, size_t bytes, cudaStream_t);

/* Uploads many parts of one file, each to a destination of its own. Returns when all of them are on
   the device, for any stream to use. If a part fails, later parts may be missing. */
GPUPOOL_API gpupool_result gpupool_upload_file_list(gpupool_ring *, int file,
                                                    const gpupool_file_part *parts, size_t count,
                                                    cudaStream_t);

/* Any transfer; the calls above are short forms. With a ticket the call returns at once. The
   transfer begins after what was queued on the stream before, but later work of the stream does NOT
   wait for it. Wait for the ticket: then any stream may use the data. Until then both memories, and
   the file, belong to the transfer. Transfers with tickets run at the same time, also on one
   stream. Without workers, one advances only in a gpupool_ring_wait whose timeout_ns is not 0. */
GPUPOOL_API gpupool_result gpupool_ring_transfer(gpupool_ring *, const gpupool_transfer *);

/* Waits up to timeout_ns (negative: for ever; 0: not at all) and returns the transfer's result.
   E_TIMEOUT: the transfer is not done yet. Any thread may wait for any ticket, in any order, as
   often as it likes. The ring remembers its 64 latest failures. When it forgets one, that ticket
   and all earlier ones become E_ARGUMENT. */
GPUPOOL_API gpupool_result gpupool_ring_wait(gpupool_ring *, gpupool_ticket, int64_t timeout_ns);

/* Gets a span: pinned memory of this size, to fill in place, in whole slots of the ring. Waits up
   to timeout_ns (negative: for ever; 0: not at all). E_TIMEOUT at once where the wait might never
   end: because of this thread's own spans, or because this thread and others both have spans.
   E_ARGUMENT: more bytes than the whole ring. */
GPUPOOL_API gpupool_result gpupool_ring_acquire_span(gpupool_ring *, size_t bytes,
                                                     int64_t timeout_ns, gpupool_span *span);

/* Sends the span to the device in stream order, and gives the span back. Does not wait. The program
   must not touch the span any more; if the call fails, the program still has the span. */
GPUPOOL_API gpupool_result gpupool_ring_upload_span(gpupool_ring *, gpupool_span *span,
                                                    void *device_dst, cudaStream_t);

/* Gives the span back without sending it. */
GPUPOOL_API gpupool_result gpupool_ring_cancel_span(gpupool_ring *, gpupool_span *span);

/* Unpins slots that are not in use, from the end, until at most keep_bytes are pinned or a slot is
   in use. *released_bytes receives what was unpinned. CUDA waits for the device when it unpins. */
GPUPOOL_API gpupool_result gpupool_ring_trim(gpupool_ring *, size_t keep_bytes,
                                             size_t *released_bytes /* or NULL */);

/* Fills *stats with what the ring has done since it was made, as of one moment. */
GPUPOOL_API gpupool_result gpupool_ring_get_stats(gpupool_ring *, gpupool_ring_stats *);

/* Checks every invariant of the ring. E_CORRUPT: gpupool_last_error() names the first that is
   broken. */
GPUPOOL_API gpupool_result gpupool_ring_check(gpupool_ring *);

#if defined(__cplusplus)
} /* extern "C" */
#endif

/* ---- the functions behind the macros of NAMES, the last section of this file. NAMES makes a macro
   of CUDA's name, or of gpupool's own, where a file needs another function under that name. In C++
   each of these functions exists once in the program, and is the same in every file and in both
   passes of nvcc: so a template that takes cudaFree as an argument is one type. They are extern
   "C", as CUDA's are, because nvcc takes no other host function as an argument of a kernel. With
   GPUPOOL_STATIC each file has functions of its own. ---- */

#if defined(__cplusplus) && !GPUPOOL_STATIC
#define GPI_NAME inline
#else
#define GPI_NAME static inline
#endif

#if defined(CUDA_API_PER_THREAD_DEFAULT_STREAM)
/* The stream that a call in this file means: 0 is the thread's own default stream (rule 12). */
GPI_NAME cudaStream_t gpi_names_stream(cudaStream_t stream) {
#if defined(__cplusplus)
    const uintptr_t per_thread = 2; /* cudaStreamPerThread, without the C cast of CUDA's macro */
    return stream ? stream : reinterpret_cast<cudaStream_t>(per_thread);
#else
    return stream ? stream : cudaStreamPerThread;
#endif
}
#endif

#if defined(CUDA_API_PER_THREAD_DEFAULT_STREAM)
/* The two calls whose stream is in a struct: they pass on a copy, with the stream replaced. */
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
/* With GPUPOOL_SITES the allocating calls are macros that add __FILE__ and __LINE__. The first of
   these functions makes a request of them; the others allocate by it. */
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

/* In C++: the functions behind cudaStreamDestroy, cudaFree and cudaMalloc. Under nvcc they are
   functions of the host and of the device, as CUDA's are: host code calls gpupool's functions,
   device code CUDA's own. */
#if defined(__cplusplus)
#if defined(__CUDACC__)
#define GPI_NAME_BOTH GPI_NAME __host__ __device__
#else
#define GPI_NAME_BOTH GPI_NAME
#endif
#if defined(__CUDA_ARCH__)
#define GPI_NAMED(name) name
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
/* CUDA's runtime header has such templates too: cudaMalloc(&p, n) with a float *p compiles. */
template <class T>
GPI_NAME_BOTH cudaError_t gpi_names_malloc(T **pointer, size_t bytes) {
    return gpi_names_malloc(GPI_UNTYPED(pointer), bytes);
}
#endif
#undef GPI_NAME_BOTH
#undef GPI_NAMED
#endif

/* The Async forms. Files in which a stream of 0 is the thread's own have functions with names of
   their own, as CUDA has: in other files of the program 0 is the legacy stream. */
#if GPUPOOL_REPLACE_CUDA_MALLOC
#if defined(CUDA_API_PER_THREAD_DEFAULT_STREAM)
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
/* CUDA's form with a memory pool as an argument: CUDA allocates from the pool. */
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
   The C++ interface, in namespace gpupool: owners of an arena and of a block, a memory resource for
   cuda::mr and RMM, and an allocator for Thrust and other containers. It needs C++11, and includes
   nothing of Thrust, RMM or CUDA's C++ library.

       gpupool::arena arena;                              // or gpupool::arena arena(config);
       gpupool::block block(arena, bytes, stream);        // freed on its stream
       gpupool::resource memory(arena);                   // for cuda::mr and RMM
       gpupool::allocator<char> scratch(arena, stream);   // for thrust::cuda::par(scratch)

   A call that fails throws gpupool::bad_alloc. In a file without exceptions it returns a null
   pointer, or makes an owner that owns nothing. A request for 0 bytes returns a null pointer and
   does not fail. */

#if defined(__cplusplus)
#include <new> /* for std::bad_alloc; small, and exists without a C++ library too */

/* Files of one program may be compiled with different meanings of stream 0, and with or without
   exceptions. So the classes are in inline namespaces: classes that differ have different names,
   and the linker does not merge them. With GPUPOOL_STATIC each file has classes of its own. */
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
/* Section API has this function for files in which stream 0 is the thread's own default stream. In
   all other files the stream stays as it is. */
inline cudaStream_t gpi_names_stream(cudaStream_t stream) { return stream; }
#endif
/* Default arguments: the file and line of the code that makes a resource. */
#define GPI_CPP_SITE const char *file = __builtin_FILE(), int line = __builtin_LINE()

/* What a failed call throws. what() is the text that gpupool_last_error() had at the failure. */
struct bad_alloc : std::bad_alloc {
    char text[600];
    bad_alloc() noexcept { snprintf(text, sizeof text, "%s", gpupool_last_error()); }
    const char *what() const noexcept override { return text; }
};

/* A stream as an argument: made from a cudaStream_t, from a class that converts to cudaStream_t
   (rmm::cuda_stream_view), or from a class whose get() returns one (cuda::stream_ref). The default
   is stream 0 (rule 12). */
struct stream {
    cudaStream_t handle;
    stream(cudaStream_t of = nullptr) noexcept : handle(gpi_names_stream(of)) {}
    template <class S>
    stream(const S &s, decltype(cudaStreamQuery(s)) = cudaSuccess) : handle(gpi_names_stream(s)) {}
    template <class S>
    stream(const S &s, decltype(cudaStreamQuery(s.get())) = cudaSuccess) : stream(s.get()) {}
};

/* Sets a variable, and returns the value that it had: std::exchange, without the C++ library. */
template <class T> T gpi_exchange(T &of, T next) { T last = of; of = next; return last; }

/* Owns an arena, and destroys the arena in its destructor. No block may be live then (rule 2): else
   gpupool_arena_destroy refuses with E_IN_USE, and the arena stays. Can be moved, not copied. */
class arena {
    gpupool_arena *arena_;
public:
    explicit arena(const gpupool_arena_config *config = nullptr) {
        if (gpupool_arena_create(&arena_, config) != GPUPOOL_OK) GPI_CPP_FAIL();
    }
    explicit arena(const gpupool_arena_config &config) : arena(&config) {}
    arena(arena &&from) noexcept : arena_(from.release()) {}
    arena &operator=(arena from) noexcept {
        arena_ = gpi_exchange(from.arena_, arena_); /* `from` destroys what this arena owned */
        return *this;
    }
    ~arena() { if (arena_) gpupool_arena_destroy(arena_); }
    /* The arena for gpupool's C functions; null: this owner has none. */
    gpupool_arena *get() const noexcept { return arena_; }
    /* Gives the arena up: the caller destroys it. */
    gpupool_arena *release() noexcept { return gpi_exchange<gpupool_arena *>(arena_, nullptr); }
};

/* Refers to an arena, by default to the current device's default arena. The arena must live longer
   than the resource and its copies. Meets the concepts of cuda::mr, from those of CUDA 12.2 to
   those of RMM 26. Calls with a stream are gpupool_alloc and gpupool_free, under rule 1.
   allocate_sync waits for the device, and then any stream may use the block. Before a block goes to
   deallocate_sync, all work that uses the block must have finished. */
class resource {
    gpupool_arena *arena_;
    const char *file_; /* where the resource was made: reports show this as its blocks' site */
    int line_;
public:
    resource(const arena &of, GPI_CPP_SITE) : resource(of.get(), file, line) {}
    resource(gpupool_arena *of = gpupool_get_default_arena(GPUPOOL_DEVICE_CURRENT), GPI_CPP_SITE)
        : arena_(of), file_(file), line_(line) {}
    gpupool_arena *get() const noexcept { return arena_; }
    /* Equal resources can free each other's blocks. */
    friend bool operator==(const resource &a, const resource &b) { return a.arena_ == b.arena_; }
    friend bool operator!=(const resource &a, const resource &b) { return a.arena_ != b.arena_; }
    /* A block for work on the stream; `align` in bytes, a power of two, 0: a unit. */
    void *allocate(stream on, size_t bytes, size_t align = 0) const {
        gpupool_request request = {bytes, align, on.handle, 0, file_, line_, 0};
        void *block = bytes ? gpupool_alloc_request(arena_, &request) : nullptr;
        if (bytes && !block) GPI_CPP_FAIL();
        return block;
    }
    /* Frees a block on the stream that used it last. Size and alignment are not needed. */
    void deallocate(stream on, void *block, size_t = 0, size_t = 0) const noexcept {
        gpupool_free(arena_, block, on.handle);
    }
    /* A block that any stream may use at once: after the wait no earlier work uses its memory. */
    void *allocate_sync(size_t bytes, size_t align = 0) const {
        void *block = allocate(stream(), bytes, align);
        if (!block || gpupool_wait_all(arena_) == GPUPOOL_OK) return block;
        deallocate(stream(), block);
        GPI_CPP_FAIL();
        return nullptr;
    }
    void deallocate_sync(void *p, size_t = 0, size_t = 0) const noexcept { deallocate({}, p); }
    /* The names of earlier versions of cuda::mr. allocate(0, bytes) fits two of these functions
       equally well, and does not compile; allocate(nullptr, bytes) is the form with a stream. */
    void *allocate(decltype(nullptr), size_t bytes) const { return allocate(stream(), bytes); }
    void *allocate(size_t bytes, size_t align = 0) const { return allocate_sync(bytes, align); }
    void deallocate(void *block, size_t = 0, size_t = 0) const noexcept { deallocate_sync(block); }
    void *allocate_async(size_t n, size_t align, stream on) const { return allocate(on, n, align); }
    void deallocate_async(void *p, size_t, size_t, stream on) const noexcept { deallocate(on, p); }
};

/* The resource of an arena of MANAGED or PINNED memory: cuda::mr may use its blocks on the host. */
struct host_resource : resource {
    explicit host_resource(resource of) : resource(of) {}
};
/* The properties by which cuda::mr knows where memory can be used. They exist where the program's
   file includes <cuda/memory_resource> before this header. */
#if defined(_CUDA_MEMORY_RESOURCE) && \
    (defined(LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE) || CCCL_VERSION >= 3001000)
constexpr void get_property(const resource &, cuda::mr::device_accessible) noexcept {}
constexpr void get_property(const host_resource &, cuda::mr::host_accessible) noexcept {}
#endif

/* Owns a block, and frees the block in its destructor: on the stream of the allocation, or on the
   stream that set_stream has named since. Can be moved, not copied. */
class block {
    struct owned { gpupool_arena *arena; void *data; size_t bytes; cudaStream_t on; } owned_;
public:
    block() noexcept : owned_() {}
    block(resource of, size_t bytes, stream on = stream(), size_t align = 0)
        : owned_{of.get(), of.allocate(on, bytes, align), bytes, on.handle} {}
    block(block &&from) noexcept : owned_(gpi_exchange(from.owned_, owned())) {}
    block &operator=(block from) noexcept {
        owned_ = gpi_exchange(from.owned_, owned_); /* `from` frees what this block owned */
        return *this;
    }
    ~block() { if (owned_.data) gpupool_free(owned_.arena, owned_.data, owned_.on); }
    void *data() const noexcept { return owned_.data; }
    /* The requested bytes; 0: this owner has no block. */
    size_t size() const noexcept { return owned_.data ? owned_.bytes : 0; }
    /* Names the stream that uses the block last (rule 1). */
    void set_stream(stream on) noexcept { owned_.on = on.handle; }
    /* Gives the block up: the caller frees it. */
    void *release() noexcept { return gpi_exchange(owned_, owned()).data; }
};

/* An allocator for containers whose work is on one stream. allocator<char>(arena, stream) allocates
   the temporary storage of thrust::cuda::par. allocator<T, thrust::device_ptr>(arena) is the
   allocator of a thrust::device_vector of T, whose own work is on the default stream. Pointer is a
   fancy pointer's template; without one, pointers are T *. */
template <class T, template <class> class... Pointer> struct gpi_pointer { typedef T *type; };
template <class T, template <class> class P> struct gpi_pointer<T, P> { typedef P<T> type; };
template <class T, template <class> class... Pointer> struct allocator {
    typedef T value_type;
    typedef typename gpi_pointer<T, Pointer...>::type pointer;
    /* The allocator of another type with the same arena and stream, as containers need it. */
    template <class U> struct rebind { typedef allocator<U, Pointer...> other; };
    resource of;
    stream on;
    allocator(resource r = resource(), stream s = stream()) : of(r), on(s) {}
    template <class U, template <class> class... P>
    allocator(const allocator<U, P...> &other) : of(other.of), on(other.on) {}
    pointer allocate(size_t count) {
        /* a product that overflows becomes a size that gpupool_alloc refuses */
        size_t bytes = count <= SIZE_MAX / sizeof(T) ? count * sizeof(T) : SIZE_MAX;
        return static_cast<pointer>(static_cast<T *>(of.allocate(on, bytes, alignof(T))));
    }
    void deallocate(T *block, size_t) noexcept { of.deallocate(on, block); }
    /* For fancy pointers, whose get() is the plain one. */
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
 *  The implementation. Its sections are in order: each one uses only sections above it.
 * ============================================================================================= */
#if defined(GPUPOOL_IMPLEMENTATION) && !defined(GPUPOOL_IMPLEMENTED)
#define GPUPOOL_IMPLEMENTED

/* An earlier include of this file may have defined the macros of NAMES. They must not replace the
   functions' own names where the functions are defined. */
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

/* Values of options that cannot work. The second test refuses a sum without parentheses, such as
   256 + 256, which would change its value inside an expression. */
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

/* Options whose default is a function of the C library, which the public part does not include. */
#ifndef GPUPOOL_MALLOC
#define GPUPOOL_MALLOC(bytes) malloc(bytes)
#define GPUPOOL_FREE(memory) free(memory)
#endif
#ifndef GPUPOOL_ASSERT
#include <assert.h>
#define GPUPOOL_ASSERT(truth) assert(truth)
#endif

/* What the implementation tests in place of the options. GPI_GUARD: blocks have guards.
   GPI_ASSERT(truth): an assertion about gpupool itself, which is gone with GPUPOOL_CHECK 0. */
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

/* What compilers spell differently. GPI_PRINTF has the arguments of a printf-like function checked.
   GPI_HOT is for short functions on the path of gpupool_alloc and gpupool_free: there a call costs
   as much as the function itself, so they are always inlined. */
#if defined(__GNUC__) || defined(__clang__)
#define GPI_PRINTF(text, first) __attribute__((format(printf, text, first)))
#define GPI_THREAD_LOCAL __thread
#define GPI_HOT static inline __attribute__((always_inline))
#else
#define GPI_HOT static inline
#define GPI_PRINTF(text, first)
#define GPI_THREAD_LOCAL __declspec(thread)
#endif

/* == GROUND ===================================================================================
   Integer arithmetic and bit scans that all other sections share. The functions have no state,
   take no lock and call nothing outside this section. uses: nothing

   G1  a function returns the exact result for every argument that its comment allows */

/* The smaller and the larger of two numbers. */
static uint64_t gpi_ground_min(uint64_t a, uint64_t b) { return a < b ? a : b; }
static uint64_t gpi_ground_max(uint64_t a, uint64_t b) { return a > b ? a : b; }
/* Returns 1 if n is a power of two. 0 is no power of two. */
static int gpi_ground_is_power(uint64_t n) { return n != 0 && (n & (n - 1)) == 0; }
/* Rounds n down to a multiple of power, which must be a power of two. */
static uint64_t gpi_ground_down(uint64_t n, uint64_t power) { return n & ~(power - 1); }

/* Rounds n up to a multiple of power, which must be a power of two. Callers keep n at least one
   power below 2^64, so the sum cannot wrap. */
static uint64_t gpi_ground_up(uint64_t n, uint64_t power) { return (n + power - 1) & ~(power - 1); }

/* The number of the lowest bit that is set. n must not be 0. */
static unsigned gpi_ground_low_bit(uint64_t n) {
#if defined(__GNUC__) || defined(__clang__)
    return (unsigned)__builtin_ctzll(n);
#else
    unsigned at = 0;
    while (!(n >> at & 1)) at++;
    return at;
#endif
}

/* The number of the highest bit that is set: floor(log2 n). n must not be 0. */
static unsigned gpi_ground_high_bit(uint64_t n) {
#if defined(__GNUC__) || defined(__clang__)
    return 63u - (unsigned)__builtin_clzll(n);
#else
    unsigned at = 0;
    while (n >>= 1) at++;
    return at;
#endif
}

/* The number of bits that are set. Each step clears the lowest set bit, so the loop runs once
   for each set bit. */
static unsigned gpi_ground_bits(uint64_t n) {
    unsigned bits = 0;
    for (; n; n &= n - 1) bits++;
    return bits;
}

/* == HOST =====================================================================================
   The operating system: locks, threads, fork, the clock, host memory for pinning, and the result
   of the calling thread's latest call. HOST and FILE are the only sections with an #ifdef for
   the operating system. uses: GROUND

   One struct for each process, and one for each thread:

       gpi_process                             gpi_thread
         default_arenas, arenas                  result, cuda_error  of the latest public call
         scopes, asleep, workers  counts         draft    sentence of a failure in that call
         lock   protects the fields above        text     sentence of the failed call before
         gate   idle ring workers sleep here     verdict  why memory ran out

   Three ways to wait for another thread:

       gpi_lock    the waiter spins; for tens of nanoseconds (an arena's lock, a stream's cache)
       gpi_mutex   the waiters sleep and enter in the order of arrival; the holder may make driver
                   calls (arena.growing)
       gpi_gate    the waiter sleeps until another thread turns the gate or a time limit passes

   O1  no function of HOST calls CUDA
   O2  a thread's number is never given to a second thread of the process
   O3  gpi_mutex: serving <= next; the lock is open if both are equal; otherwise the holder's
       number is serving

   Locks: functions here take gpi_process.lock for a few instructions, and call no other section
   meanwhile. A function that may sleep says so.

   Read first: gpi_host_lock, gpi_host_wait, gpi_host_begin, gpi_host_fail, gpi_host_gate_wait,
   gpi_host_mutex_lock. */

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

/* A spinning lock. A lock whose bytes are all zero is open and needs no other preparation. */
typedef struct gpi_lock {
    int held;
    int starved;            /* waiting threads that have spun for GPI_STARVED rounds; threads that
                               come later let these threads enter first */
} gpi_lock;

/* A counter with sleepers. A thread that has news turns the gate: the counter grows and all
   sleepers wake. A thread that wants to sleep reads the counter, then checks that there is no
   work, and then waits only if the counter has not changed since. So no turn between check and
   sleep is lost. */
typedef struct gpi_gate {
#if defined(_WIN32)
    SRWLOCK mutex;
    CONDITION_VARIABLE turned;
#else
    pthread_mutex_t mutex;
    pthread_cond_t turned;
#endif
    unsigned turns, sleepers; /* both under mutex */
} gpi_gate;

/* Devices 0 to 63 can have arenas and be peers. */
enum { GPI_DEVICES_MAX = 64 };

/* The only state outside arenas and rings. Fields are written under lock, with three exceptions:
   asleep is an atomic counter, and forks and ending have one writer. scopes, asleep, forks and
   ending are also read without the lock. */
static struct gpi_process {
    gpi_lock lock;
    int watching_forks;     /* 1: gpi_host_after_fork is registered */
    int forks;              /* fork() calls between the first process and this one */
    uint64_t threads;       /* numbers given to threads so far */
    gpupool_arena *default_arenas[GPI_DEVICES_MAX];
    int scopes;             /* open capture scopes of all arenas */
    int asleep;             /* arenas whose memory gpupool_sleep gave away */
    int workers;            /* running worker threads of all rings */
    int ending;             /* 1: the process ends, and the workers must stop */
    int watching_exit;      /* 1: gate is open, and a function for the exit is registered */
    gpi_gate gate;
    gpupool_arena *arenas;  /* all arenas of the process, linked by next */
    void (*on_no_memory)(gpupool_arena *); /* ENVIRON's, once GPUPOOL_REPORT is seen; or NULL */
    char *report_file;      /* what GPUPOOL_REPORT said; NULL: nothing. The rest is ENVIRON's too */
    char *report_path;      /* room for the name of the file that is written */
    int report_arenas;      /* arenas created since */
    int reporting;          /* a thread writes a report */
    int reports;            /* files that were opened so far */
    int report_failed;      /* a report could not be written, and stderr has been told */
    int report_ended;       /* the process ends, and its last reports are written */
} gpi_process;

/* The calling thread's number, and the outcome of its latest public call. */
static GPI_THREAD_LOCAL struct gpi_thread {
    uint64_t number;        /* 0: none yet; used once, while the system reuses its thread ids */
    gpupool_result result;  /* of the latest call */
    int cuda_error;         /* CUDA's number if result is E_CUDA; 0: no CUDA call failed */
    gpupool_verdict verdict; /* of the last request that found no memory */
    char text[600];         /* sentence of the last call that failed before the latest call */
    char draft[600];        /* sentence of a failure in the latest call; that call repaired the
                               failure if result is OK */
    const void *telling;    /* the gpi_chunks whose on_map or on_unmap runs on this thread, the
                               innermost if several do; NULL: none */
} gpi_thread;

/* -- spinning locks -- */

#if !GPUPOOL_SINGLE_THREAD
/* Rounds of waiting, counted from the first look at a closed lock. */
enum {
    GPI_SPINS = 64,   /* rounds without a system call */
    GPI_STARVED = 80  /* after so many rounds the thread counts as starved */
};

/* Lets time pass between two looks at something that another thread changes. round is the number
   of looks so far: first the processor pauses, from round GPI_SPINS on the thread yields, and 8
   rounds later the thread sleeps for 20 us (1 ms on Windows) each time. */
static void gpi_host_relax(unsigned round) {
    /* Long pauses: each look at a lock takes the lock's cache line from the holder. The holder
       gets more done if a few of its calls run before the line moves to another processor. */
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
    } else if (round < GPI_SPINS + 8) { /* a yield may take one time slice of every other thread */
        sched_yield();
    } else {
        struct timeval nap; /* select, since -std=c99 hides nanosleep */
        nap.tv_sec = 0;
        nap.tv_usec = 20;
        select(0, NULL, NULL, NULL, &nap);
    }
#endif
}
#endif

/* Adds to a counter that other threads change at the same time. Orders no other memory access. */
static void gpi_host_add(int *at, int more) {
#if GPUPOOL_SINGLE_THREAD
    *at += more;
#elif defined(_WIN32)
    InterlockedExchangeAdd((volatile LONG *)at, more);
#else
    __atomic_fetch_add(at, more, __ATOMIC_RELAXED);
#endif
}

/* Takes the lock if the lock is open. Returns 1 if the caller has the lock, and never waits. Does
   not look for starved threads: only gpi_host_lock and gpi_host_wait let these go first.
   With GPUPOOL_SINGLE_THREAD a lock is a flag, which only asserts that calls do not overlap. */
#if GPUPOOL_SINGLE_THREAD
GPI_HOT int gpi_host_try(gpi_lock *lock) {
    int got = !lock->held;
    lock->held = 1;
    return got;
}

/* Takes the lock, which must be open, since no other thread exists. Returns 0 pauses. */
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

/* Reads an int that other threads change. Orders no other memory access. A read leaves the cache
   line shared, so waiters peek before they try the exchange, which takes the line away. */
GPI_HOT int gpi_host_peek(const int *at) {
#if defined(_WIN32)
    return *(const volatile int *)at;
#else
    return __atomic_load_n(at, __ATOMIC_RELAXED);
#endif
}

/* The slow path of gpi_host_lock: waits until the caller has the lock. Returns the number of
   pauses, 1 or more. */
static unsigned gpi_host_wait(gpi_lock *lock) {
    unsigned round = 0;
    for (;;) {
        gpi_host_relax(round++);
        if (round == GPI_STARVED) gpi_host_add(&lock->starved, 1);
        if (gpi_host_peek(&lock->held)) continue;
        /* A thread that waits for less long leaves the lock to the starved threads. Starved
           threads compete among themselves. */
        if (round < GPI_STARVED && gpi_host_peek(&lock->starved)) continue;
        if (gpi_host_try(lock)) break;
    }
    if (round >= GPI_STARVED) gpi_host_add(&lock->starved, -1);
    return round;
}

/* Takes the lock and spins until the lock is open. Returns the number of pauses, 0 if the lock
   was open. A newcomer does not take an open lock past starved threads. The holder must not wait
   for the device, for a gate or for a mutex. */
GPI_HOT unsigned gpi_host_lock(gpi_lock *lock) {
    return !gpi_host_peek(&lock->starved) && gpi_host_try(lock) ? 0 : gpi_host_wait(lock);
}
#endif

/* Opens a lock that the calling thread holds. What the holder wrote is visible to the next
   holder. Starved threads find the lock open at their next look; no system call wakes them. */
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

/* Opens the caller's lock for a moment in the middle of long work, and takes the lock again. The
   pause is long enough for a waiting thread to see the open lock. The caller must expect that
   other threads changed everything that the lock protects. */
static void gpi_host_reopen(gpi_lock *lock) {
    gpi_host_unlock(lock);
#if !GPUPOOL_SINGLE_THREAD
    gpi_host_relax(2);
#endif
    gpi_host_lock(lock);
}

/* For a word that one thread writes under a lock, and that other threads read without that lock. A
   reader that sees the published value also sees all that the writer wrote before. */
#if GPUPOOL_SINGLE_THREAD
#define GPI_READ(at) (*(at))
#define GPI_PUBLISH(at, value) (*(at) = (value))
#elif defined(__GNUC__) || defined(__clang__)
#define GPI_READ(at) __atomic_load_n(at, __ATOMIC_ACQUIRE)
#define GPI_PUBLISH(at, value) __atomic_store_n(at, value, __ATOMIC_RELEASE)
#elif defined(_M_X64) /* a load is an acquire there, and a store a release */
#define GPI_READ(at) (MemoryBarrier(), *(at))
#define GPI_PUBLISH(at, value) (MemoryBarrier(), *(at) = (value))
#else
#error "gpupool knows how this processor orders loads with GCC and Clang only"
#endif

/* -- fork, thread numbers and counts of the process -- */

/* Runs in the child of every fork() after gpi_host_watch_forks. Only the thread that called fork()
   exists there. CUDA does not work in the child, so the calls of arenas and rings are refused: each
   keeps the value that gpi_process.forks had at its creation. */
static void gpi_host_after_fork(void) {
    gpi_process.forks++;
    gpi_process.lock.held = 0;  /* the holder, if any, does not exist in the child */
    gpi_process.workers = 0;    /* nor do the worker threads */
}

/* Registers gpi_host_after_fork, once for the process. Called before an arena or a ring is made.
   Windows has no fork. */
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

/* The calling thread's number, from 1 on. Identifies a per-thread default stream and the holder
   of a span: the system gives the id of an ended thread to another thread. Takes
   gpi_process.lock at the thread's first call only. */
static uint64_t gpi_host_thread_number(void) {
    if (gpi_thread.number == 0) {
        gpi_host_lock(&gpi_process.lock);
        gpi_thread.number = ++gpi_process.threads;
        gpi_host_unlock(&gpi_process.lock);
    }
    return gpi_thread.number;
}

/* Adds to the number of open capture scopes: 1 at a begin, -1 at an end. CLOCK holds
   gpi_process.lock while an event for the whole context is recorded, so no scope opens
   meanwhile. */
static void gpi_host_count_scope(int more) {
    gpi_host_lock(&gpi_process.lock);
    gpi_process.scopes += more;
    gpi_host_unlock(&gpi_process.lock);
}

/* Host memory whose bytes are all zero, for GPUPOOL_FREE. NULL: the host has none. */
static void *gpi_host_zeroed(size_t bytes) {
    void *memory = GPUPOOL_MALLOC(bytes);
    if (memory) memset(memory, 0, bytes);
    return memory;
}

/* -- the result of a call -- */

/* Keeps the sentence of the call that failed before, and resets the result. */
static void gpi_host_keep_text(void) {
    memcpy(gpi_thread.text, gpi_thread.draft, sizeof gpi_thread.text);
    gpi_thread.result = GPUPOOL_OK;
}

/* The first step of every public call that leaves a result. Costs one comparison unless the call
   before has failed. */
GPI_HOT void gpi_host_begin(void) {
    if (gpi_thread.result != GPUPOOL_OK) gpi_host_keep_text();
}

/* The last step of a public call that succeeds. A failure that the call repaired inside left a
   sentence in draft; gpupool_last_error shows text instead while result is OK. */
static gpupool_result gpi_host_ok(void) { return gpi_thread.result = GPUPOOL_OK; }

/* Sets the calling thread's result and sentence, and returns result. A caller that knows CUDA's
   error number sets gpi_thread.cuda_error afterwards. Costs a vsnprintf, so the fast paths fail
   without. */
GPI_PRINTF(2, 3)
static gpupool_result gpi_host_fail(gpupool_result result, const char *format, ...) {
    va_list rest;
    va_start(rest, format);
    vsnprintf(gpi_thread.draft, sizeof gpi_thread.draft, format, rest);
    va_end(rest);
    gpi_thread.cuda_error = 0;
    return gpi_thread.result = result;
}

/* The failure of a call that has undone everything because the host had no memory. */
static gpupool_result gpi_host_no_memory(void) {
    return gpi_host_fail(GPUPOOL_E_HOST_MEMORY,
                         "the host has no memory for the arena's records; nothing was changed");
}

/* Fails in the child of a process that had made an arena or a ring: CUDA was initialized there,
   and the child has no usable context. call is the public function's name, for the sentence. */
static gpupool_result gpi_host_may_open(const char *call) {
    if (gpi_process.forks == 0) return GPUPOOL_OK;
    return gpi_host_fail(GPUPOOL_E_FORKED, "%s: this process is a fork of one that made an arena "
                         "or a ring, and has no CUDA context", call);
}

/* -- time -- */

/* -std=c99 without _POSIX_C_SOURCE hides CLOCK_MONOTONIC. The time of day replaces the clock there,
   although an administrator may set the time of day. */
#if defined(CLOCK_MONOTONIC) && defined(_POSIX_C_SOURCE) && _POSIX_C_SOURCE >= 200112
#define GPI_STEADY 1
#else
#define GPI_STEADY 0
#endif

/* Nanoseconds since a fixed moment. Only differences mean something. */
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

/* One step of a loop that waits for another thread which sends no signal. round counts the steps
   so far; the caller holds no lock. A sleep costs some 100 us, in which a ring moves 6 MiB, so
   the thread yields from step GPI_SPINS to step 4095 and sleeps only after. */
static void gpi_host_idle(unsigned round) {
#if GPUPOOL_SINGLE_THREAD
    (void)round;
#else
    gpi_host_relax(round < 4096 && round >= GPI_SPINS ? (unsigned)GPI_SPINS : round);
#endif
}

/* -- host memory that can be pinned -- */

/* A range of ordinary host memory. The system provides physical pages when the range is first
   touched or pinned; until then the range costs addresses only. */
typedef struct gpi_pages {
    unsigned char *memory;     /* first aligned byte of whole; NULL: none yet */
    void *whole;               /* the range as the system gave it */
    uint64_t whole_bytes;
} gpi_pages;

/* The system's page on all supported hosts, for alignment. */
enum { GPI_PAGE_BYTES = 4096 };

/* Reserves bytes to be pinned, aligned to 2 MiB, and more bytes behind them, which are zero.
   Returns 0 if the host has no memory. Linux is asked for huge pages, since pinning them takes
   half the time. A child of fork() does not get the pages: after a fork, a write in the parent
   would move the parent's data to a copy, while the device keeps using the first page. */
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

/* Drops the contents of bytes from offset at on, so that the system may take the physical pages
   back. The addresses stay reserved. The bytes must not be pinned. */
static void gpi_host_pages_empty(const gpi_pages *pages, uint64_t at, uint64_t bytes) {
#if defined(MADV_DONTNEED) && defined(MAP_ANONYMOUS)
    madvise(pages->memory + at, (size_t)bytes, MADV_DONTNEED);
#else
    (void)pages;
    (void)at;
    (void)bytes;
#endif
}

/* Gives the whole range back to the system. Does nothing if pages_get has reserved none. */
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

/* -- descriptors: CUDA exports memory to other processes as file descriptors -- */

#if defined(_WIN32)
enum { GPI_DESCRIPTORS = 0 };
#else
enum { GPI_DESCRIPTORS = 1 }; /* 1: the system has file descriptors */
#endif

/* Closes a descriptor; -1 is none. */
static void gpi_host_close(int descriptor) {
#if !defined(_WIN32)
    if (descriptor >= 0) close(descriptor);
#else
    (void)descriptor;
#endif
}

/* Keeps the descriptor out of programs that this process starts. A program that inherited the
   descriptor would keep the memory alive. */
static void gpi_host_close_on_exec(int descriptor) {
#if !defined(_WIN32)
    fcntl(descriptor, F_SETFD, FD_CLOEXEC);
#else
    (void)descriptor;
#endif
}

/* -- copying -- */

#if defined(__SSE2__) && !defined(memcpy)
/* Copies 64 bytes with stores that bypass the processor's caches. to must be a multiple of 16. */
static void gpi_host_copy_line(unsigned char *to, const unsigned char *from) {
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

/* Copies to memory that this processor does not read soon. The stores bypass the caches, and go
   to four pages in turn. Takes 0.6 of memcpy's time for data that comes out of a ring's slot. If
   memcpy is a macro of the program, every copy goes through memcpy, since the program wants to
   see all copies. */
static void gpi_host_copy_away(unsigned char *to, const unsigned char *from, uint64_t bytes) {
#if defined(__SSE2__) && !defined(memcpy)
    uint64_t page = GPI_PAGE_BYTES, line, i, head;
    /* Align the target to a cache line. Without the alignment the copy takes twice as long. */
    head = (uint64_t)(-(uintptr_t)to & 63);
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
    _mm_sfence(); /* the stores above are weakly ordered; others may read the bytes after this */
#endif
    memcpy(to, from, (size_t)bytes);
}

/* -- gates -- */

/* Take and release the gate's own mutex, which protects turns and sleepers. */
#if defined(_WIN32)
static void gpi_host_gate_lock(gpi_gate *gate) { AcquireSRWLockExclusive(&gate->mutex); }
static void gpi_host_gate_unlock(gpi_gate *gate) { ReleaseSRWLockExclusive(&gate->mutex); }
#else
static void gpi_host_gate_lock(gpi_gate *gate) { pthread_mutex_lock(&gate->mutex); }
static void gpi_host_gate_unlock(gpi_gate *gate) { pthread_mutex_unlock(&gate->mutex); }
#endif

/* Prepares a gate for use. The condition variable uses the clock of gpi_host_now_ns, which
   gpi_host_gate_wait computes its deadline with. */
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

/* Ends a gate at which no thread sleeps. */
static void gpi_host_gate_close(gpi_gate *gate) {
#if defined(_WIN32)
    (void)gate;
#else
    pthread_cond_destroy(&gate->turned);
    pthread_mutex_destroy(&gate->mutex);
#endif
}

/* The number of turns so far. Callers read the number before they look for work, and pass the
   number to gpi_host_gate_wait. */
static unsigned gpi_host_gate_seen(gpi_gate *gate) {
    unsigned turns;
    gpi_host_gate_lock(gate);
    turns = gate->turns;
    gpi_host_gate_unlock(gate);
    return turns;
}

/* Counts a turn and wakes all sleepers. The caller makes the news visible before the call.
   Without sleepers the cost is the gate's mutex. */
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

/* Sleeps until the gate has turned since the caller read seen, or for ns nanoseconds at most.
   May return early without a reason, as condition variables do, so callers check in a loop. The
   caller holds no spinning lock. */
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

/* -- the sleeping lock -- */

/* Several gates, so that an unlock wakes only about one in eight waiters. */
enum { GPI_MUTEX_GATES = 8 };

/* A ticket lock whose waiters sleep. Each arriving thread draws a number, and the lock serves
   the numbers in order. The system's mutex may let a running thread pass the sleepers time and
   again. */
typedef struct gpi_mutex {
    unsigned next;                   /* the number that the next arriving thread draws */
    unsigned serving;                /* the number of the holder; equal to next: the lock is open */
    int is_open;                     /* 1: the gates can be used, and must be closed */
    gpi_gate gates[GPI_MUTEX_GATES]; /* the thread with number n sleeps at n % GPI_MUTEX_GATES */
} gpi_mutex;

/* Prepares the lock, which is open for the first thread. */
static void gpi_host_mutex_open(gpi_mutex *mutex) {
    int i;
    mutex->next = mutex->serving = 0;
    mutex->is_open = 1;
    for (i = 0; i < GPI_MUTEX_GATES; i++) gpi_host_gate_open(&mutex->gates[i]);
}

/* Ends a lock that no thread holds or waits for. Does nothing the second time. */
static void gpi_host_mutex_close(gpi_mutex *mutex) {
    int i;
    for (i = 0; i < GPI_MUTEX_GATES && mutex->is_open; i++)
        gpi_host_gate_close(&mutex->gates[i]);
    mutex->is_open = 0;
}

/* gpi_host_mutex_try takes the lock if the lock is open, and returns 1 if the caller has the lock.
   gpi_host_mutex_lock waits until then, in the order of arrival. */
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
    /* The exchange draws the number `serving`, and fails if a thread has drawn that number: the
       lock is then held. */
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
    enum { NAP_NS = 100000000 }; /* a waiter looks again after 100 ms, whoever turns the gate */
#if defined(_WIN32)
    unsigned mine = (unsigned)InterlockedIncrement((volatile LONG *)&mutex->next) - 1;
#else
    unsigned mine = __atomic_fetch_add(&mutex->next, 1u, __ATOMIC_ACQUIRE);
#endif
    gpi_gate *gate = &mutex->gates[mine % GPI_MUTEX_GATES];
    while (GPI_READ(&mutex->serving) != mine) {
        /* Read the turns before the second look at serving: an unlock after that look turns the
           gate, and the wait returns at once. */
        unsigned seen = gpi_host_gate_seen(gate);
        if (GPI_READ(&mutex->serving) != mine) gpi_host_gate_wait(gate, seen, NAP_NS);
    }
}
#endif

/* Passes the lock to the next number. Turns that number's gate only if a thread has drawn the
   number, so an unlock without waiters makes no system call. Threads that share the gate wake,
   see another number served, and sleep again. The processor may read next before the store of
   serving is visible: a thread that draws its number in between misses the turn, and looks again
   after NAP_NS. */
static void gpi_host_mutex_unlock(gpi_mutex *mutex) {
    unsigned next = mutex->serving + 1;
    GPI_PUBLISH(&mutex->serving, next);
    if (GPI_READ(&mutex->next) != next) gpi_host_gate_turn(&mutex->gates[next % GPI_MUTEX_GATES]);
}

/* -- worker threads -- */

/* Detaches the calling thread, so that no other thread needs to join it. Returns 0 if the system
   cannot detach: the thread must be joined. */
static int gpi_host_thread_leave(void) {
#if defined(_WIN32)
    return 0;
#else
    return pthread_detach(pthread_self()) == 0;
#endif
}

/* Adds more to the number of running workers in the process: 1 before a start, -1 at an end, 0
   to ask. Returns the new number. */
static int gpi_host_count_worker(int more) {
    int workers;
    gpi_host_lock(&gpi_process.lock);
    workers = gpi_process.workers += more;
    gpi_host_unlock(&gpi_process.lock);
    return workers;
}

/* Opens the workers' gate and registers at_exit, once for the process and before the first
   worker starts. The gate stays open until the process ends. */
static void gpi_host_prepare_workers(void (*at_exit)(void)) {
    gpi_host_lock(&gpi_process.lock);
    if (!gpi_process.watching_exit) {
        gpi_host_gate_open(&gpi_process.gate);
        atexit(at_exit);
        gpi_process.watching_exit = 1;
    }
    gpi_host_unlock(&gpi_process.lock);
}

/* The number of processors; -1 if the system does not tell. */
static int gpi_host_cores(void) {
#if defined(_WIN32)
    SYSTEM_INFO system;
    GetSystemInfo(&system);
    return (int)system.dwNumberOfProcessors;
#else
    return (int)sysconf(_SC_NPROCESSORS_ONLN);
#endif
}

/* A started thread. The struct keeps its address until gpi_host_thread_join or until the thread has
   ended, since the new thread reads run and user. */
typedef struct gpi_worker {
    void (*run)(void *);    /* the thread's function, which is given user */
    void *user;
#if defined(_WIN32)
    HANDLE thread;
#else
    pthread_t thread;
#endif
} gpi_worker;

/* The new thread's first function, in the form that the system wants. */
#if defined(_WIN32)
static DWORD WINAPI gpi_host_thread_main(LPVOID argument) {
#else
static void *gpi_host_thread_main(void *argument) {
#endif
    gpi_worker *worker = (gpi_worker *)argument;
    worker->run(worker->user);
    return 0;
}

/* Starts a thread that calls run(user). Returns 0 if the system has no thread left; the struct
   may then be used for another try. */
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

/* Waits until the thread has ended, and frees the system's record of the thread. */
static void gpi_host_thread_join(gpi_worker *worker) {
#if defined(_WIN32)
    WaitForSingleObject(worker->thread, INFINITE);
    CloseHandle(worker->thread);
#else
    pthread_join(worker->thread, NULL);
#endif
}

/* == FILE =====================================================================================
   Reads parts of a file for a ring, at offsets, from several threads at a time. A part that is
   not in the system's page cache is read past that cache, straight into pinned memory, which
   saves one copy. uses: GROUND, HOST

       caller's descriptor -- pread ----------------> memory   (in the page cache, or not aligned)
       our own descriptor, O_DIRECT -- pread -------> memory   (not in the page cache)

   F1  the caller's descriptor, its offset and its flags never change
   F2  gpi_file_read fills all bytes or fails; pread completes a direct read that gets less

   Locks: no function takes a lock. The calls wait for the disk, so callers hold no lock. */

/* 1: the system has pread. -std=c99 without _POSIX_C_SOURCE hides the function. */
#if !defined(_WIN32) && defined(_POSIX_C_SOURCE) && _POSIX_C_SOURCE >= 200809
#define GPI_FILES 1
#else
#define GPI_FILES 0
#endif
#if GPI_FILES && defined(__linux__) && defined(SYS_preadv2) && defined(__O_DIRECT) && \
    defined(_DEFAULT_SOURCE)
#define GPI_DIRECT 1 /* the system can read a file past the page cache */
#else
#define GPI_DIRECT 0
#endif

/* A file of one transfer. */
typedef struct gpi_file {
    int descriptor;        /* the caller's, who closes it */
    int direct;            /* our second descriptor of the file, with O_DIRECT; -1: none */
} gpi_file;

#if GPI_FILES
/* The failure E_FILE. at: the first byte of the file that was not read. */
static gpupool_result gpi_file_failed(uint64_t at, const char *why) {
    return gpi_host_fail(GPUPOOL_E_FILE, "reading the file at byte %" PRIu64 ": %s", at, why);
}
#endif

/* Prepares reads of bytes from offset at on. Fails if a regular file ends before these bytes do;
   the length of a device or of another file is not asked. Opens the second descriptor if the
   part is 64 KiB or more, by name under /proc: dup would share the caller's flags. A file system
   that refuses O_DIRECT leaves -1. The caller ends with gpi_file_close. */
static gpupool_result gpi_file_open(gpi_file *file, int descriptor, uint64_t at, uint64_t bytes) {
    file->descriptor = descriptor;
    file->direct = -1;
#if GPI_FILES
    struct stat about;
    if (fstat(descriptor, &about) != 0) return gpi_file_failed(at, strerror(errno));
    if (S_ISREG(about.st_mode) && (uint64_t)about.st_size < at + bytes)
        return gpi_file_failed((uint64_t)about.st_size, "it ends here, before what is asked");
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

/* Closes our descriptor. The caller's descriptor stays open. */
static void gpi_file_close(const gpi_file *file) {
#if GPI_DIRECT
    if (file->direct >= 0) close(file->direct);
#else
    (void)file;
#endif
}

#if GPI_DIRECT
/* Returns 1 if the page with byte `at` is in the page cache, or if the system does not tell: an
   ordinary read is right for both. A read that must not wait answers on most file systems,
   mincore on the others. */
static int gpi_file_is_cached(const gpi_file *file, uint64_t at) {
    enum { NO_WAIT = 8 }; /* RWF_NOWAIT, which an old C library does not define */
    unsigned char byte, in = 1;
    struct iovec part;
    void *page;
    long got;
    part.iov_base = &byte;
    part.iov_len = 1;
    got = syscall(SYS_preadv2, file->descriptor, &part, 1L, (long)at, 0L, (long)NO_WAIT);
    /* EAGAIN: the page is not there. Any other error: the file system does not know the flag. */
    if (got >= 0 || errno == EAGAIN) return got >= 0;
    at = gpi_ground_down(at, GPI_PAGE_BYTES);
    /* Mapping a page of the file does not read the page, so mincore sees the cache as it was. */
    page = mmap(NULL, (size_t)GPI_PAGE_BYTES, PROT_READ, MAP_SHARED, file->descriptor, (off_t)at);
    if (page == MAP_FAILED) return 1;
    if (mincore(page, (size_t)GPI_PAGE_BYTES, &in) != 0) in = 1;
    munmap(page, (size_t)GPI_PAGE_BYTES);
    return in & 1;
}

/* Reads past the page cache: whole pages of the file, which contain the bytes asked for. memory
   and at have equal remainders modulo GPI_PAGE_BYTES, and the memory up to the page borders is
   the ring's. Returns the number of bytes read, 0 after an error: the caller reads the rest by
   pread. */
static uint64_t gpi_file_read_direct(const gpi_file *file, unsigned char *memory, uint64_t at,
                                     uint64_t bytes) {
    uint64_t head = at % GPI_PAGE_BYTES, most = gpi_ground_up(head + bytes, GPI_PAGE_BYTES);
    ssize_t got = pread(file->direct, memory - head, (size_t)most, (off_t)(at - head));
    return got > (ssize_t)head ? gpi_ground_min((uint64_t)got - head, bytes) : 0;
}
#endif

/* Reads bytes of the file from offset at on to memory. Fails with E_FILE at an error or at the
   end of the file. Several threads may read from the file at a time. If memory and at have equal
   remainders modulo GPI_PAGE_BYTES, all pages that memory touches must belong to the ring. */
static gpupool_result gpi_file_read(const gpi_file *file, unsigned char *memory, uint64_t at,
                                    uint64_t bytes) {
#if GPI_FILES
    uint64_t done = 0;
#if GPI_DIRECT
    /* Ask about one page at a random offset of the part. The question may start the system's
       read of the asked page: always the first page would make a later transfer of the file look
       cached. */
    if (file->direct >= 0 && ((uintptr_t)memory - at) % GPI_PAGE_BYTES == 0 &&
        !gpi_file_is_cached(file, at + gpi_host_now_ns() / 64 % bytes))
        done = gpi_file_read_direct(file, memory, at, bytes);
#endif
    /* pread also reports the error that stopped a direct read. */
    while (done < bytes) {
        ssize_t got = pread(file->descriptor, memory + done, (size_t)(bytes - done),
                            (off_t)(at + done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return gpi_file_failed(at + done, strerror(errno));
        if (got == 0) return gpi_file_failed(at + done, "it ends here, before what is asked");
        done += (uint64_t)got;
    }
#else
    (void)file, (void)memory, (void)at, (void)bytes;
#endif
    return GPUPOOL_OK;
}

/* == DRIVER ===================================================================================
   Finds CUDA's driver functions, makes the arena's context current for them, and turns their
   results into gpupool's results and sentences. The calls for contexts, mapped memory, streams,
   events and peers are here; DATA copies and fills, TOOL tells profilers. uses: HOST

       gpi_driver: one for each arena, ring, and import
         table      a function pointer for each row of GPI_DRIVER_CALLS
         context    the device's primary context     peers[]  devices that may use the memory too

       gpi_driver_open ... [ gpi_driver_enter ... driver calls ... gpi_driver_leave ] ... close

   Every function is found by name through the runtime, so that a program links the runtime only.
   The runtime's own calls are used in two cases: to ask for the caller's current device, and
   where a call of this header stands for a call of the runtime. The runtime's last error and
   current device never change.

   D1  gpi_driver_enter makes the device's primary context current and the thread's capture mode
       relaxed; gpi_driver_leave undoes both. In relaxed mode a call loses no capture, of any
       thread. Two calls are exceptions in every mode: cuCtxRecordEvent while a stream of the
       context captures, and a call that waits for a stream that captures.
   D2  An open driver keeps its primary context and those of its peers alive
       (cuDevicePrimaryCtxRetain), once each; gpi_driver_close releases them.

   Locks: no function takes a lock. Functions with a const driver may run in several threads at a
   time. The list of peers changes under the arena's lock growing, and loses a peer only under
   the lock waits too. gpi_driver_wait needs waits.

   Read first: GPI_DRIVER_CALLS, gpi_driver_told, gpi_driver_fill_table, gpi_driver_enter,
   gpi_driver_open, gpi_driver_wait. */

/* Physical memory from cuMemCreate. A build without GPUPOOL_MAPPED has an integer instead. */
#if GPUPOOL_MAPPED
typedef CUmemGenericAllocationHandle gpi_handle;
#else
typedef unsigned long long gpi_handle;
#endif

/* Every driver function that this header calls, a row each: CALL(field of gpi_driver, name, CUDA
   version that introduced the signature, group, parameters). The version is part of the search: the
   driver has several functions behind some names. The group says what a missing function means. */
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

/* What an old driver may lack. */
typedef enum gpi_call_group {
    GPI_CALL_OPTIONAL, /* the pointer may be NULL, and callers check */
    GPI_CALL_NEEDED,   /* gpi_driver_open fails if one of these is missing */
    GPI_CALL_MAPS      /* gpi_driver.mapped is 0 if one of these is missing */
} gpi_call_group;

/* A device, as one arena, ring or import uses it. */
typedef struct gpi_driver {
    int device;
    int mapped;              /* 1: device and driver can map memory */
    unsigned share;          /* gpupool_share: how mapped memory is created */
    uint64_t granule_bytes;  /* the driver's page for mapping; chunk sizes are multiples */
    uint64_t total_bytes;    /* memory of the device */
    int is_integrated;       /* 1: the device uses the host's memory */
    CUcontext context;       /* the device's primary context; NULL: not open */
    unsigned long long id;   /* the context's id, which cudaDeviceReset changes; 0: none */
    int peers[GPI_DEVICES_MAX], peer_count; /* devices that may use the memory too */
    CUcontext peer_contexts[GPI_DEVICES_MAX]; /* their primary contexts, in the order of peers */
    void *wait_memory;             /* gpi_driver_wait frees this memory; NULL: none */
    int wait_memory_of_host;       /* 1: pinned host memory, 0: device memory */
    CUcontext wait_memory_context; /* the context of wait_memory: the device's or a peer's */
    unsigned long long wait_memory_id; /* the id of that context; 0: none */
#define GPI_DRIVER_FIELD(field, name, version, group, parameters) \
    CUresult(CUDAAPI *field) parameters;
    GPI_DRIVER_CALLS(GPI_DRIVER_FIELD)
#undef GPI_DRIVER_FIELD
} gpi_driver;

/* What gpi_driver_leave undoes. Has function pointers of its own, since the arena may destroy its
   driver between enter and leave. */
typedef struct gpi_visit {
    CUresult(CUDAAPI *pop)(CUcontext *);
    CUresult(CUDAAPI *exchange)(CUstreamCaptureMode *);
    CUresult(CUDAAPI *release_context)(CUdevice); /* NULL: enter retained no context */
    CUstreamCaptureMode mode; /* the thread's mode before enter */
    CUdevice device;
} gpi_visit;

/* -- results -- */

/* The name of a driver error, for example "CUDA_ERROR_INVALID_VALUE". */
static const char *gpi_driver_name(const gpi_driver *driver, CUresult error) {
    const char *name = NULL;
    if (driver->error_name) driver->error_name(error, &name);
    return name ? name : "unknown error";
}

/* Turns a driver's result into gpupool's, and sets the thread's sentence if the call failed.
   call: the driver function, for the sentence. Out of memory is E_OUT_OF_MEMORY and not E_CUDA:
   the allocation ladder goes on with its next step, and the verdict explains the failure. */
static gpupool_result gpi_driver_told(const gpi_driver *driver, const char *call, CUresult error) {
    if (error == CUDA_SUCCESS) return GPUPOOL_OK;
    if (error == CUDA_ERROR_OUT_OF_MEMORY)
        return gpi_host_fail(GPUPOOL_E_OUT_OF_MEMORY, "%s: the device has no memory left", call);
    gpi_host_fail(GPUPOOL_E_CUDA, "%s failed: %s", call, gpi_driver_name(driver, error));
    gpi_thread.cuda_error = (int)error; /* cudaError_t uses the driver's numbers */
    return GPUPOOL_E_CUDA;
}

/* Does the same for a call of the runtime. The runtime stores each failure as the thread's last
   error; the function clears that error, unless had_error says that the program had an error
   stored before the call. */
static gpupool_result gpi_driver_told_runtime(const char *call, cudaError_t error, int had_error) {
    if (error == cudaSuccess) return GPUPOOL_OK;
    if (!had_error) cudaGetLastError();
    gpi_host_fail(GPUPOOL_E_CUDA, "%s failed: %s (%s)", call, cudaGetErrorName(error),
                  cudaGetErrorString(error));
    gpi_thread.cuda_error = (int)error;
    return GPUPOOL_E_CUDA;
}

/* Asks how many devices there are. *count is at most GPI_DEVICES_MAX, since devices beyond
   cannot have arenas, and 0 after a failure. */
static gpupool_result gpi_driver_devices(int *count) {
    int had_error = cudaPeekAtLastError() != cudaSuccess;
    cudaError_t error = cudaGetDeviceCount(count);
    gpupool_result result = gpi_driver_told_runtime("cudaGetDeviceCount", error, had_error);
    *count = result == GPUPOOL_OK ? (int)gpi_ground_min((uint64_t)*count, GPI_DEVICES_MAX) : 0;
    return result;
}

/* Replaces GPUPOOL_DEVICE_CURRENT by the number of the thread's current device. Other numbers
   stay and are not checked. */
static gpupool_result gpi_driver_name_device(int *device) {
    int had_error;
    if (*device != GPUPOOL_DEVICE_CURRENT) return GPUPOOL_OK;
    had_error = cudaPeekAtLastError() != cudaSuccess;
    return gpi_driver_told_runtime("cudaGetDevice", cudaGetDevice(device), had_error);
}

/* -- the table -- */

/* A row of the table, for the search. */
typedef struct gpi_call {
    const char *name;
    size_t field;         /* offset of the pointer in gpi_driver */
    unsigned version;     /* 1000 * major + 10 * minor */
    gpi_call_group group;
} gpi_call;

#define GPI_DRIVER_ROW(field, name, version, group, parameters) \
    {name, offsetof(gpi_driver, field), version, group},
static const gpi_call gpi_calls[] = {GPI_DRIVER_CALLS(GPI_DRIVER_ROW)};
#undef GPI_DRIVER_ROW

/* Asks the runtime for the driver function of that name and version. Returns NULL if the driver
   has none, or if the search has failed; *result tells which. Before CUDA 12.5 the runtime
   chooses the version by its own version. */
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
    /* CUDA 11 reports a missing function as an error, CUDA 12 as a status. Both mean NULL
       without a failure. memcpy converts an object pointer to a function pointer without a
       warning. */
    *result = gpi_driver_told_runtime("cudaGetDriverEntryPoint", error, had_error);
    if (*result == GPUPOOL_OK) memcpy(&symbol, &found, sizeof symbol);
    if (error == cudaErrorSymbolNotFound) *result = GPUPOOL_OK;
    return symbol;
}

/* Fills all function pointers and sets driver->mapped. Fails if a needed function is missing.
   Missing mapping functions are no failure: the driver can still serve sources other than
   MAPPED. */
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

/* -- contexts: a thread's current context decides where a driver call works. The program's own
   current context must be back when a public call returns. -- */

/* Makes a context current, and makes the context before current again. NULL: both do nothing. */
static gpupool_result gpi_driver_push(const gpi_driver *driver, CUcontext context) {
    if (!context) return GPUPOOL_OK;
    return gpi_driver_told(driver, "cuCtxPushCurrent", driver->push(context));
}

static gpupool_result gpi_driver_pop(const gpi_driver *driver, CUcontext context) {
    if (!context) return GPUPOOL_OK;
    return gpi_driver_told(driver, "cuCtxPopCurrent", driver->pop(&context));
}

/* Reads the id of a context. A reset gives the primary context another id at the same address.
   Before CUDA 12 contexts have no ids, and *id keeps its value. */
static gpupool_result gpi_driver_ask_id(const gpi_driver *driver, CUcontext context,
                                        unsigned long long *id) {
    if (!driver->context_id) return GPUPOOL_OK;
    return gpi_driver_told(driver, "cuCtxGetId", driver->context_id(context, id));
}

/* Returns 1 if the error says that a reset has ended the context. */
static int gpi_driver_is_gone(CUresult error) {
    return error == CUDA_ERROR_CONTEXT_IS_DESTROYED || error == CUDA_ERROR_INVALID_CONTEXT;
}

/* Sets *ended to 1 if the context with this id is gone. The reset that ended the context also
   ended its streams, events and work: their handles must not be used again. A context whose id
   is 0, from a driver without ids, counts as alive. Needs no current context. */
static gpupool_result gpi_driver_has_ended(const gpi_driver *driver, CUcontext context,
                                           unsigned long long id, int *ended) {
    unsigned long long now = 0;
    CUresult error = id ? driver->context_id(context, &now) : CUDA_SUCCESS;
    *ended = gpi_driver_is_gone(error) || (error == CUDA_SUCCESS && now != id);
    return *ended ? GPUPOOL_OK : gpi_driver_told(driver, "cuCtxGetId", error);
}

/* Sets *reset to 1 if cudaDeviceReset has ended the arena's own context. The primary context is
   then at the same address, and has another id. Costs one driver call, cuCtxGetId. */
static gpupool_result gpi_driver_was_reset(const gpi_driver *driver, int *reset) {
    return gpi_driver_has_ended(driver, driver->context, driver->id, reset);
}

/* Returns 1 if the context can be made current. Before CUDA 12 the answer is always 1. */
static int gpi_driver_is_alive(const gpi_driver *driver, CUcontext context) {
    unsigned long long id = 0;
    return !driver->context_id || !gpi_driver_is_gone(driver->context_id(context, &id));
}

/* Restores the thread's capture mode and current context. Reports no failure: the public call
   has its result already. */
static void gpi_driver_leave(const gpi_visit *visit) {
    CUstreamCaptureMode mode = visit->mode;
    CUcontext popped;
    visit->exchange(&mode);
    visit->pop(&popped);
    if (visit->release_context) visit->release_context(visit->device);
}

/* Makes the primary context current. If a reset has ended the context, retains the context anew
   first, which leave undoes: mapped memory outlives a reset, and can be unmapped only in a live
   context. */
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

/* Prepares the calling thread for driver calls: see D1. The caller ends with gpi_driver_leave,
   and not if enter fails, which changes nothing. Costs three driver calls, and leave two, so an
   allocation that finds free memory does without. */
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

/* Makes the arena's context current again after a function of the program ran between enter and
   leave. The function may have called cudaSetDevice. */
static void gpi_driver_come_back(const gpi_driver *driver) { driver->set_current(driver->context); }

/* -- opening and closing -- */

/* How cuMemCreate creates memory of this device: with a file descriptor for other processes, or
   usable by network cards, as config.share asks. */
static CUmemAllocationProp gpi_driver_properties(const gpi_driver *driver) {
    CUmemAllocationProp properties;
    memset(&properties, 0, sizeof properties);
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = driver->device;
    if (driver->share & GPUPOOL_SHARE_PROCESSES)
        properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    properties.allocFlags.gpuDirectRDMACapable = (driver->share & GPUPOOL_SHARE_RDMA) != 0;
    return properties;
}

/* Returns 1 if the device has the attribute, 0 also if the driver does not know the attribute. */
static int gpi_driver_has(const gpi_driver *driver, CUdevice_attribute attribute) {
    int has = 0;
    return driver->attribute(&has, attribute, driver->device) == CUDA_SUCCESS && has;
}

/* The driver's page size for mapping. Returns 0 if the device cannot map memory, or if the page
   is no multiple of a unit. On current devices the recommended page is 2 MiB. */
static uint64_t gpi_driver_page(const gpi_driver *driver) {
    CUmemAllocationProp properties = gpi_driver_properties(driver);
    size_t page = 0;
    if (!driver->mapped ||
        !gpi_driver_has(driver, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) ||
        driver->granularity(&page, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) !=
            CUDA_SUCCESS)
        return 0;
    return gpi_ground_is_power(page) && page >= GPUPOOL_UNIT_BYTES ? page : 0;
}

/* Reads the device's properties into the driver. Called between enter and leave, once. Without
   mapping the granule is 2 MiB, too: chunk sizes are rounded to granules. */
static gpupool_result gpi_driver_read_device(gpi_driver *driver) {
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

/* Releases the contexts of the device and of its peers. gpi_driver_free_wait_memory must have
   succeeded before. The calling thread is not between enter and leave. Does nothing if the
   driver is not open. */
static void gpi_driver_close(gpi_driver *driver) {
    int i;
    for (i = 0; i < driver->peer_count; i++) driver->release_context(driver->peers[i]);
    if (driver->context) driver->release_context(driver->device);
    driver->context = NULL;
    driver->peer_count = 0;
}

/* Opens the driver for a device: finds the functions, retains the primary context and reads the
   device's properties. After a failure the driver is closed. May initialize CUDA, which takes
   long. */
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
        result = gpi_driver_read_device(driver);
        gpi_driver_leave(&visit);
    }
    if (result != GPUPOOL_OK) gpi_driver_close(driver);
    return result;
}

/* Asks for the free and total memory of the device. reserved_bytes: what the asking arena has.
   On an integrated device CUDA's figure for free memory is the host's, without the page cache,
   which the system gives up when asked. There all memory that the arena has not reserved counts
   as free. */
static CUresult gpi_driver_memory(const gpi_driver *driver, uint64_t reserved_bytes,
                                  size_t *free_bytes, size_t *total_bytes) {
    CUresult error = driver->memory_info(free_bytes, total_bytes);
    if (error == CUDA_SUCCESS && driver->is_integrated)
        *free_bytes = *total_bytes - (size_t)gpi_ground_min(*total_bytes, reserved_bytes);
    return error;
}

/* -- mapped memory: between enter and leave. Addresses and sizes are multiples of granule_bytes. A
   failure changes nothing. -- */

/* Creates physical memory of bytes, which no address leads to yet. gpi_driver_map and
   gpi_driver_access make the memory usable. */
static gpupool_result gpi_driver_create(const gpi_driver *driver, uint64_t bytes,
                                        gpi_handle *handle) {
    CUmemAllocationProp properties = gpi_driver_properties(driver);
    return gpi_driver_told(driver, "cuMemCreate", driver->create(handle, bytes, &properties, 0));
}

/* Maps all memory of the handle at a reserved address. The memory may be mapped at other
   addresses at the same time: that is what a stitch is. No device can access the address before
   set_access. */
static gpupool_result gpi_driver_map(const gpi_driver *driver, uint64_t address, uint64_t bytes,
                                     gpi_handle handle) {
    return gpi_driver_told(driver, "cuMemMap", driver->map(address, bytes, 0, handle, 0));
}

/* Allows or forbids one device, the arena's or a peer, to access a mapped range. The range may
   cover several handles. */
static gpupool_result gpi_driver_set_access(const gpi_driver *driver, uint64_t address,
                                            uint64_t bytes, int device,
                                            CUmemAccess_flags flags) {
    CUmemAccessDesc access;
    access.location = gpi_driver_properties(driver).location;
    access.location.id = device;
    access.flags = flags;
    return gpi_driver_told(driver, "cuMemSetAccess", driver->access(address, bytes, &access, 1));
}

/* Lets one device read and write a mapped range. */
static gpupool_result gpi_driver_access_for(const gpi_driver *driver, uint64_t address,
                                            uint64_t bytes, int device) {
    return gpi_driver_set_access(driver, address, bytes, device,
                                 CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
}

/* Lets the arena's device and all its peers read and write a mapped range. */
static gpupool_result gpi_driver_access(const gpi_driver *driver, uint64_t address,
                                        uint64_t bytes) {
    gpupool_result result = gpi_driver_access_for(driver, address, bytes, driver->device);
    int i;
    for (i = 0; i < driver->peer_count && result == GPUPOOL_OK; i++)
        result = gpi_driver_access_for(driver, address, bytes, driver->peers[i]);
    return result;
}

/* Makes a new file descriptor of the memory, which another process may import. The caller closes
   the descriptor. The memory lives until all handles, in all processes, and all descriptors are
   gone. */
static gpupool_result gpi_driver_export(const gpi_driver *driver, gpi_handle handle,
                                        int *descriptor) {
    CUresult error = driver->export_handle(descriptor, handle,
                                           CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    gpupool_result result = gpi_driver_told(driver, "cuMemExportToShareableHandle", error);
    if (result == GPUPOOL_OK) gpi_host_close_on_exec(*descriptor);
    return result;
}

/* Makes a handle of memory that another process has exported. The descriptor stays the caller's. */
static gpupool_result gpi_driver_import(const gpi_driver *driver, int descriptor,
                                        gpi_handle *handle) {
    CUresult error = driver->import_handle(handle, (void *)(uintptr_t)descriptor,
                                           CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    return gpi_driver_told(driver, "cuMemImportFromShareableHandle", error);
}

/* Takes a mapping away. The range must be whole mappings. The caller has made sure that no GPU
   work uses the address any more. */
static gpupool_result gpi_driver_unmap(const gpi_driver *driver, uint64_t address, uint64_t bytes) {
    return gpi_driver_told(driver, "cuMemUnmap", driver->unmap(address, bytes));
}

/* Gives up a handle. The physical memory goes back to the device once no mapping of the memory
   is left. */
static gpupool_result gpi_driver_release(const gpi_driver *driver, gpi_handle handle) {
    return gpi_driver_told(driver, "cuMemRelease", driver->release(handle));
}

/* -- streams: the questions lose no capture. A default stream means the current context's, so these
   need a current context; other streams need none. -- */

/* Returns 1 if no event may be recorded on the stream: the event would become part of a graph,
   or would end a capture. The legacy stream also answers 1 while any blocking stream captures. A
   failed question counts as 0, and the call that follows reports the failure. */
static int gpi_driver_is_capturing(const gpi_driver *driver, cudaStream_t stream) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult error = driver->is_capturing(stream, &status);
    if (error == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) return 1;
    return error == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/* Reads CUDA's id of a stream, which differs between two streams that had one handle after
   another. *id keeps its value while the stream captures, since CUDA would end the capture, and
   before CUDA 12, which has no ids. */
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

/* Returns 1 for the two default streams. ARENA has replaced NULL by one of them. */
static int gpi_driver_is_default(cudaStream_t stream) {
    return stream == cudaStreamLegacy || stream == cudaStreamPerThread;
}

/* Finds the context of a stream that does not belong to the driver's context: a stream of
   another device, for example. *context is NULL for the driver's own streams, and after an
   error. */
static CUresult gpi_driver_ask_foreign(const gpi_driver *driver, cudaStream_t stream,
                                       CUcontext *context) {
    CUresult error = CUDA_SUCCESS;
    *context = NULL;
    if (gpi_driver_is_default(stream) || !driver->stream_context) return CUDA_SUCCESS;
    error = driver->stream_context(stream, context);
    if (error != CUDA_SUCCESS || *context == driver->context) *context = NULL;
    return error;
}

/* Returns what gpi_driver_ask_foreign finds, for callers that need no error: NULL also if CUDA
   does not tell. */
static CUcontext gpi_driver_foreign(const gpi_driver *driver, cudaStream_t stream) {
    CUcontext context = NULL;
    return gpi_driver_ask_foreign(driver, stream, &context) == CUDA_SUCCESS ? context : NULL;
}

/* Fills a temporary driver that is not open, for gpi_driver_foreign and gpi_driver_device_of
   before any arena exists. Finds only the four functions that these need. The driver has no
   context, so every stream is foreign. */
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
    /* Without all four, gpi_driver_foreign returns NULL, and gpi_driver_device_of is not called. */
    if (!driver->push || !driver->pop || !driver->context_device) driver->stream_context = NULL;
    return driver;
}

/* The number of a context's device; GPUPOOL_DEVICE_CURRENT if CUDA does not tell. */
static int gpi_driver_device_of(const gpi_driver *driver, CUcontext context) {
    int device = GPUPOOL_DEVICE_CURRENT;
    if (driver->push(context) != CUDA_SUCCESS) return device;
    if (driver->context_device(&device) != CUDA_SUCCESS) device = GPUPOOL_DEVICE_CURRENT;
    driver->pop(&context);
    return device;
}

/* Waits on the host until all work of the stream has finished. The caller holds no lock of an
   arena. The stream does not capture. */
static gpupool_result gpi_driver_stream_sync(const gpi_driver *driver, cudaStream_t stream) {
    return gpi_driver_told(driver, "cuStreamSynchronize", driver->stream_sync(stream));
}

/* Creates a stream of the current context. The stream does not wait for the legacy stream. */
static gpupool_result gpi_driver_stream_new(const gpi_driver *driver, cudaStream_t *stream) {
    return gpi_driver_told(driver, "cuStreamCreate",
                           driver->stream_create(stream, CU_STREAM_NON_BLOCKING));
}

/* Destroys a stream. Work that is queued on the stream still runs to its end. */
static gpupool_result gpi_driver_stream_drop(const gpi_driver *driver, cudaStream_t stream) {
    return gpi_driver_told(driver, "cuStreamDestroy", driver->stream_destroy(stream));
}

/* -- events: to create an event takes a current context. To record one, to query and to wait take
   none, unless the stream is a default stream. -- */

/* Creates an event of the current context. An event without timing is the cheapest to record. */
static gpupool_result gpi_driver_event_new(const gpi_driver *driver, CUevent *event) {
    return gpi_driver_told(driver, "cuEventCreate",
                           driver->event_create(event, CU_EVENT_DISABLE_TIMING));
}

/* Destroys an event, recorded or not. An event whose context a reset has ended must not come
   here: CUDA may crash. */
static gpupool_result gpi_driver_event_drop(const gpi_driver *driver, CUevent event) {
    return gpi_driver_told(driver, "cuEventDestroy", driver->event_destroy(event));
}

/* Records the event behind the work that is queued on the stream. The stream belongs to the
   event's context, and gpi_driver_is_capturing has returned 0. */
static gpupool_result gpi_driver_event_record(const gpi_driver *driver, CUevent event,
                                              cudaStream_t stream) {
    return gpi_driver_told(driver, "cuEventRecord", driver->event_record(event, stream));
}

/* Returns CUDA_SUCCESS if the work before the event has finished, CUDA_ERROR_NOT_READY if not,
   and other errors. CUDA allows the query in relaxed capture mode only, so the function
   exchanges the mode: callers query events without gpi_driver_enter. */
static CUresult gpi_driver_event_ask(const gpi_driver *driver, CUevent event) {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CUresult error = driver->exchange(&mode);
    if (error != CUDA_SUCCESS) return error;
    error = driver->event_query(event);
    driver->exchange(&mode);
    return error;
}

/* Sets *passed to 1 if the work before the event has finished. Never waits. */
static gpupool_result gpi_driver_event_query(const gpi_driver *driver, CUevent event,
                                             int *passed) {
    CUresult error = gpi_driver_event_ask(driver, event);
    *passed = error == CUDA_SUCCESS;
    if (error == CUDA_ERROR_NOT_READY) return GPUPOOL_OK;
    return gpi_driver_told(driver, "cuEventQuery", error);
}

/* Waits on the host until the work before the event has finished. Between enter and leave. The
   caller holds no lock of an arena. */
static gpupool_result gpi_driver_event_wait(const gpi_driver *driver, CUevent event) {
    return gpi_driver_told(driver, "cuEventSynchronize", driver->event_sync(event));
}

/* Makes the work that is queued on the stream from now on wait for the event, on the device. The
   host does not wait. */
static gpupool_result gpi_driver_stream_wait(const gpi_driver *driver, cudaStream_t stream,
                                             CUevent event) {
    return gpi_driver_told(driver, "cuStreamWaitEvent", driver->stream_wait(stream, event, 0));
}

/* Records the event behind the work of all streams of the driver's context, destroyed streams
   too. While any of them captures, CUDA refuses and ends the capture, so the caller rules
   captures out. E_UNSUPPORTED: the driver is older than CUDA 12.5. */
static gpupool_result gpi_driver_record_all(const gpi_driver *driver, CUevent event) {
    if (!driver->record_all)
        return gpi_host_fail(GPUPOOL_E_UNSUPPORTED, "cuCtxRecordEvent needs CUDA 12.5");
    return gpi_driver_told(driver, "cuCtxRecordEvent", driver->record_all(driver->context, event));
}

/* Records the event on the stream. If *event is NULL, creates the event first, in the current
   context. */
static gpupool_result gpi_driver_record(const gpi_driver *driver, CUevent *event,
                                        cudaStream_t stream) {
    gpupool_result result = GPUPOOL_OK;
    if (!*event) result = gpi_driver_event_new(driver, event);
    return result == GPUPOOL_OK ? gpi_driver_event_record(driver, *event, stream) : result;
}

/* Destroys the event, if there is one. *event is NULL after a success. */
static gpupool_result gpi_driver_forget(const gpi_driver *driver, CUevent *event) {
    gpupool_result result = *event ? gpi_driver_event_drop(driver, *event) : GPUPOOL_OK;
    if (result == GPUPOOL_OK) *event = NULL;
    return result;
}

/* -- peers: other devices that may access the arena's memory. A caller that changes the list holds
   the arena's lock growing. -- */

/* Fails with E_UNSUPPORTED if the device cannot access memory of the driver's device. */
static gpupool_result gpi_driver_can_peer(const gpi_driver *driver, int device) {
    int can = 0;
    gpupool_result result = gpi_driver_told(
        driver, "cuDeviceCanAccessPeer", driver->can_peer(&can, device, driver->device));
    if (result != GPUPOOL_OK || can) return result;
    return gpi_host_fail(GPUPOOL_E_UNSUPPORTED, "gpupool_allow_peer: device %d cannot reach the "
                         "memory of device %d", device, driver->device);
}

/* The index of a peer in driver->peers; peer_count: the device is no peer. */
static int gpi_driver_peer(const gpi_driver *driver, int device) {
    int i = 0;
    while (i < driver->peer_count && driver->peers[i] != device) i++;
    return i;
}

/* Retains the primary context of a device that is about to become a peer, at the end of the
   list. For a present peer the context is retained again, and the former retain released: the
   new retain brings the context back if a reset had ended it. Followed by
   gpi_driver_end_holding. */
static gpupool_result gpi_driver_hold_peer(gpi_driver *driver, int device) {
    int at = gpi_driver_peer(driver, device);
    gpupool_result result =
        gpi_driver_told(driver, "cuDevicePrimaryCtxRetain",
                        driver->retain(&driver->peer_contexts[at], device));
    if (result == GPUPOOL_OK && at < driver->peer_count) driver->release_context(device);
    driver->peers[at] = device;
    return result;
}

/* Ends what gpi_driver_hold_peer began. result: whether the memory was made accessible. If so
   the device becomes a peer, else its context is released. A device that was a peer before stays
   a peer. */
static void gpi_driver_end_holding(gpi_driver *driver, int device, gpupool_result result) {
    if (gpi_driver_peer(driver, device) < driver->peer_count) return;
    if (result == GPUPOOL_OK) driver->peer_count++;
    else driver->release_context(device);
}

/* Takes a peer off the list and releases its context. The caller holds the arena's lock waits,
   since gpi_driver_wait goes through the list. */
static void gpi_driver_drop_peer(gpi_driver *driver, int device) {
    int at = gpi_driver_peer(driver, device);
    driver->release_context(device);
    driver->peer_count--;
    for (; at < driver->peer_count; at++) {
        driver->peers[at] = driver->peers[at + 1];
        driver->peer_contexts[at] = driver->peer_contexts[at + 1];
    }
}

/* Makes all memory that cuMemAlloc gives on the driver's device accessible to a peer, now and in
   the future. Mapped memory needs gpi_driver_set_access instead. The peer's context is retained. */
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

/* Frees the memory that gpi_driver_wait_here has allocated for the purpose. cuMemFree of any
   memory waits until all streams of the context have finished, destroyed streams too, and so
   does cuMemFreeHost (seen on CUDA 13.0). Unlike cuCtxSynchronize, they end no capture, not even
   on a non-blocking stream. A reset has freed the memory, and the program may have its address
   by now: then nothing is freed. After a failure wait_memory stays for another try. */
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

/* Waits for all work of the context, which is current. Allocates one byte to free: device
   memory, or pinned host memory if the device has none left. Frees the memory of an earlier wait
   that failed first. */
static gpupool_result gpi_driver_wait_here(gpi_driver *driver, CUcontext context) {
    gpupool_result result = gpi_driver_free_wait_memory(driver);
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

/* Waits on the host for all work of the device and of its peers, whose streams may use the
   arena's memory too. A peer's context that a reset has ended has no work. Between enter and
   leave, one thread at a time; the caller holds no lock of an arena but waits. */
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

/* == DATA =====================================================================================
   Pins host memory, copies and fills: the driver calls of rings, of the guards around blocks,
   and of sleep. Copies and fills are queued on a stream; pinning takes effect at once.
   uses: DRIVER

       gpi_copy    rows of `width` bytes, at distances of to_pitch and from_pitch bytes

           from  [ width ]...[ width ]...[ width ]        to  [ width ].[ width ].[ width ]
                 |- from_pitch -|                             |- to_pitch -|

   Locks: no function takes a lock. The driver is open, and its context is current. */

/* What kind of memory a pointer points to. */
typedef enum gpi_place_kind {
    GPI_PLACE_ORDINARY,       /* host memory that CUDA does not know */
    GPI_PLACE_PINNED,         /* host and device can access the memory: pinned or managed */
    GPI_PLACE_DEVICE          /* only the device can */
} gpi_place_kind;

/* Asks CUDA what kind of memory the byte at pointer is. The bytes around may be of another kind:
   a buffer can be pinned in part. */
static gpupool_result gpi_data_kind(const gpi_driver *driver, const void *pointer,
                                    gpi_place_kind *kind) {
    CUpointer_attribute asked[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                   CU_POINTER_ATTRIBUTE_IS_MANAGED};
    unsigned type = 0, managed = 0; /* CUDA leaves both at 0 for ordinary host memory */
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

/* Pins host memory for all contexts. The device copies pinned memory by itself, at the bus's
   full speed. */
static gpupool_result gpi_data_pin(const gpi_driver *driver, void *memory, uint64_t bytes) {
    CUresult error = driver->host_register(memory, (size_t)bytes, CU_MEMHOSTREGISTER_PORTABLE);
    if (error == CUDA_ERROR_OUT_OF_MEMORY) /* the host refuses; the device may have memory */
        return gpi_host_fail(GPUPOOL_E_HOST_MEMORY, "cuMemHostRegister: the host does not pin %"
                             PRIu64 " bytes more", bytes);
    return gpi_driver_told(driver, "cuMemHostRegister", error);
}

/* Ends a pinning. CUDA waits for the device inside the call. */
static gpupool_result gpi_data_unpin(const gpi_driver *driver, void *memory) {
    return gpi_driver_told(driver, "cuMemHostUnregister", driver->host_unregister(memory));
}

/* A copy: see the banner. With one row the pitches are not read. */
typedef struct gpi_copy {
    void *to;
    const void *from;
    uint64_t to_pitch, from_pitch, width, rows;
} gpi_copy;

/* Queues a copy of several rows. CUDA finds the direction from the addresses
   (MEMORYTYPE_UNIFIED). */
static CUresult gpi_data_copy_rows(const gpi_driver *driver, const gpi_copy *copy,
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

/* Queues a copy on the stream, in any direction. For ordinary host memory CUDA stages the bytes,
   and may wait for the stream. Sets *refused, if refused is not NULL, to 1 if CUDA does not take
   the pointers: host memory that is registered in part, or in two parts, is refused so. */
static gpupool_result gpi_data_copy(const gpi_driver *driver, const gpi_copy *copy,
                                    cudaStream_t stream, int *refused) {
    CUresult error;
    if (copy->rows > 1)
        error = gpi_data_copy_rows(driver, copy, stream);
    else
        error = driver->copy((CUdeviceptr)(uintptr_t)copy->to, (CUdeviceptr)(uintptr_t)copy->from,
                             (size_t)copy->width, stream);
    if (refused) *refused = error == CUDA_ERROR_INVALID_VALUE;
    return gpi_driver_told(driver, copy->rows > 1 ? "cuMemcpy2DAsync" : "cuMemcpyAsync", error);
}

/* Queues a fill of device memory, or of memory that the device can access, with one byte value.
   An out-of-memory error becomes E_CUDA: the fill needs no memory of the arena, and no verdict
   could explain the failure. */
static gpupool_result gpi_data_fill(const gpi_driver *driver, void *at, int byte, uint64_t bytes,
                                    cudaStream_t stream) {
    CUresult error = driver->fill((CUdeviceptr)(uintptr_t)at, (unsigned char)byte, (size_t)bytes,
                                  stream);
    if (error == CUDA_ERROR_OUT_OF_MEMORY)
        return gpi_host_fail(GPUPOOL_E_CUDA, "cuMemsetD8Async failed: CUDA_ERROR_OUT_OF_MEMORY: "
                             "the driver has no memory for itself");
    return gpi_driver_told(driver, "cuMemsetD8Async", error);
}

/* == TOOL =====================================================================================
   Tells profilers and checkers about chunks and blocks, through NVTX's memory extension. Present
   with GPUPOOL_NVTX 1 only. uses: nothing

       chunk -> a heap of NVTX       block -> a region in the heap, named by file and line

   Tools refuse heaps over mapped memory (seen on CUDA 13.0), so chunks of MAPPED are not told.

   Locks: no function takes a lock. Each call costs little unless a tool is attached. */

#if GPUPOOL_NVTX
/* Registers a chunk as a heap. Returns the heap's handle, NULL if no tool is attached. A tool
   that watches accesses can then report accesses outside of all regions. */
static void *gpi_tool_chunk(const void *memory, uint64_t bytes) {
    nvtxMemVirtualRangeDesc_t range;
    nvtxMemHeapDesc_t heap;
    /* A heap of type VIRTUAL_ADDRESS covers one range of addresses, whatever memory is behind. */
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

/* Ends a heap, before its chunk goes back to the driver. */
static void gpi_tool_chunk_gone(void *heap) {
    nvtxMemHeapUnregister(NULL, (nvtxMemHeapHandle_t)heap);
}

/* Registers a block as a region of the heap and names the region. The structs of NVTX describe
   batches; each batch here has one element. */
static void gpi_tool_block(void *heap, const void *block, uint64_t bytes, const char *name) {
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
    /* The name goes by the block's address, so the region's handle is not kept. */
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

/* Ends the region of a block, by the block's address. */
static void gpi_tool_block_gone(const void *block) {
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
   Counts an arena's memory: bytes and blocks, now, at most and in total; for the whole arena,
   for each phase, each tag, and each line of source that allocates. Also keeps the limit.
   uses: HOST

       gpi_ledger
         requested granted reserved pending blocks      counters: now, peak, total
         scopes -> phase (innermost) -> phase around    figures put aside at gpupool_begin_phase
         tags[]                                         figures and soft limit of each tag
         sites[hash] -> gpi_site -> gpi_site            figures of each source line and stream

   A phase costs nothing while it lasts. The counters run on; only their peaks start anew at its
   begin. The figures of that moment are put aside, and subtracted at its end.

   Allocations from a stream's cache do not take the arena's lock, so they cannot change a
   counter. They note their changes in a gpi_change under the cache's lock, and the cache folds
   the changes into the counters later.

   L1  requested <= granted <= reserved, and reserved <= limit unless the limit was lowered since
   L2  each counter: now <= peak and now <= total
   L3  totals never shrink: each phase's is at least that of the phase around it at its begin

   Locks: the arena's lock protects all fields, except gpi_site.cached, the cached_ fields,
   changed and is_changed, which the lock of the stream's cache protects. Functions expect the
   arena's lock held, unless their comment says otherwise. No function waits or calls CUDA.

   Read first: gpi_ledger_add, gpi_ledger_charge, gpi_ledger_fold, gpi_ledger_push,
   gpi_ledger_pop, gpi_ledger_new_site. */

/* Changes of a counter that a cache has noted under its own lock. With one stream at work the
   counter's peak comes out exact, since the changes keep their own peak. With several streams
   the peak may differ by what the other caches changed meanwhile: at most by what the caches
   contain. */
typedef struct gpi_change {
    int64_t now, most;     /* sum of the changes, and its highest value, both since the last fold */
    uint64_t total;        /* sum of the additions */
} gpi_change;

/* The blocks that one line of source has allocated on one stream. Sites are found by the address of
   the file's name, which is fast. The text of a name can be at several addresses, one in each file
   that includes a header: then the first site of a text and stream counts for all of them. */
typedef struct gpi_site {
    struct gpi_site *next;  /* in the bucket */
    struct gpi_site *same;  /* the site that counts for this text, line and stream: mostly itself */
    struct gpi_site *place; /* the first site of this text and line, for all streams */
    const char *file;       /* "": not known */
    int line, embedded;     /* embedded: 1 if the struct is part of another, and is not freed */
    uint64_t key;           /* the stream's key */
    uint64_t allocs;        /* allocations so far */
    uint64_t blocks, bytes, bytes_peak; /* of live blocks */
    struct gpi_site *changed; /* the next site that the stream's cache has changed */
    int is_changed;         /* 1: the site is in that list */
    gpi_change cached;      /* changes of bytes that are not yet in the figures above */
    int64_t cached_blocks;  /* the changes of blocks */
    uint64_t cached_allocs; /* the changes of allocs */
    uint64_t place_blocks, place_bytes; /* sums over all streams: gpi_ledger_add_up_places */
    uint32_t number;        /* index in the latest copy of all sites, for a report */
} gpi_site;

enum { GPI_SITES = 256 }; /* buckets; a hash has 8 bits */

/* Where in the program's source a call stands. */
typedef struct gpi_origin {
    const char *file;
    int line;
} gpi_origin;

/* A phase between gpupool_begin_phase and gpupool_end_phase. */
typedef struct gpi_scope {
    struct gpi_scope *outer; /* the phase around this phase; NULL: none */
    gpupool_stats before; /* the figures at the begin; before.peak: peak of the phase around, from
                             that phase's begin to this begin */
} gpi_scope;

/* A tag's figures and limits. */
typedef struct gpi_ledger_tag {
    gpupool_tag_stats stats; /* a limit of UINT64_MAX: none */
    uint64_t coming;         /* part of granted: bytes of requests that have no block yet */
    uint64_t coming_blocks;  /* number of these requests */
    gpupool_soft_fn on_soft_limit; /* NULL: the program does not want to know */
    void *user;
    int told;                /* what the program was told last: 1 over the soft limit, 0 below */
} gpi_ledger_tag;

/* All figures of one arena. */
typedef struct gpi_ledger {
    gpupool_counter requested, granted, reserved, pending, blocks; /* in gpupool_stats' order */
    uint64_t limit_bytes; /* UINT64_MAX: none */
    uint64_t over_bytes;  /* reserved when the limit was last set; may be above the limit */
    uint64_t away_bytes;  /* reserved before the arena fell asleep; 0: awake */
    uint64_t allocs, frees, failures, same_stream_allocs;
    uint64_t cached_bytes; /* free memory in caches, as of their last fold */
    gpi_scope *scopes;    /* open phases, the innermost first */
    gpi_ledger_tag *tags[GPUPOOL_TAGS + 1]; /* [0]: the arena's, on reserved; NULL: none */
    int tag_count;        /* tags made by the program: [1] to [tag_count] */
#if GPUPOOL_SITES
    gpi_site *sites[GPI_SITES];
    gpi_site unknown;     /* counts blocks for which the host had no memory for a site */
    uint64_t site_count;
#endif
} gpi_ledger;

/* -- counters -- */

enum { GPI_COUNTERS = 5 }; /* requested to blocks */

/* The i-th counter of a ledger. Loops over all counters use the two functions below; the cast
   removes const, and only callers that may write do. */
static gpupool_counter *gpi_ledger_counter(const gpi_ledger *ledger, int i) {
    static const size_t offsets[GPI_COUNTERS] = {
        offsetof(gpi_ledger, requested), offsetof(gpi_ledger, granted),
        offsetof(gpi_ledger, reserved), offsetof(gpi_ledger, pending),
        offsetof(gpi_ledger, blocks)};
    return (gpupool_counter *)(void *)((char *)(uintptr_t)ledger + offsets[i]);
}

/* The i-th counter of public statistics, in the order of gpi_ledger_counter. */
static gpupool_counter *gpi_ledger_counter_of(const gpupool_stats *stats, int i) {
    static const size_t offsets[GPI_COUNTERS] = {
        offsetof(gpupool_stats, requested), offsetof(gpupool_stats, granted),
        offsetof(gpupool_stats, reserved), offsetof(gpupool_stats, pending),
        offsetof(gpupool_stats, blocks)};
    return (gpupool_counter *)(void *)((char *)(uintptr_t)stats + offsets[i]);
}

/* Checks the invariants. Returns 0, or the number of the first that is broken: 3 means L3.
   Changes nothing. */
static int gpi_ledger_check(const gpi_ledger *ledger) {
    const gpi_scope *phase, *inner = NULL;
    int i;
    if (ledger->requested.now > ledger->granted.now) return 1;
    /* Blocks of a sleeping arena stay live, while their memory is not reserved. */
    if (ledger->granted.now > ledger->reserved.now + ledger->away_bytes) return 1;
    if (ledger->reserved.now > gpi_ground_max(ledger->limit_bytes, ledger->over_bytes)) return 1;
    for (i = 0; i < GPI_COUNTERS; i++) {
        const gpupool_counter *counter = gpi_ledger_counter(ledger, i);
        if (counter->now > counter->peak) return 2;
        if (GPUPOOL_STATS && counter->now > counter->total) return 2;
    }
    /* L3: compare each phase's begin with the begin of the phase inside, and the innermost
       phase's with the counters of now. */
    for (phase = ledger->scopes; phase; inner = phase, phase = phase->outer)
        for (i = 0; i < GPI_COUNTERS; i++) {
            const gpupool_counter *aside = gpi_ledger_counter_of(&phase->before, i);
            const gpupool_counter *later = inner ? gpi_ledger_counter_of(&inner->before, i)
                                                 : gpi_ledger_counter(ledger, i);
            if (aside->total > later->total || aside->now > aside->total) return 3;
        }
    return 0;
}

/* -- tags -- */

/* Returns 1 if a tag, or for tag 0 the arena, is over its soft limit. A tag's limit is on
   granted, the arena's on reserved. */
static int gpi_ledger_is_over(const gpi_ledger *ledger, int tag) {
    const gpi_ledger_tag *entry = ledger->tags[tag];
    uint64_t now = tag ? entry->stats.granted.now : ledger->reserved.now;
    return now > entry->stats.soft_limit_bytes;
}

/* The first tag that has passed its soft limit, upwards or downwards, since the program was told
   last; -1: none. 0 is the arena. TAG tells the program after all locks are open. */
static int gpi_ledger_untold(const gpi_ledger *ledger) {
    int i;
    for (i = 0; i <= ledger->tag_count; i++)
        if (ledger->tags[i] && ledger->tags[i]->on_soft_limit &&
            gpi_ledger_is_over(ledger, i) != ledger->tags[i]->told)
            return i;
    return -1;
}

/* Bytes that may still be reserved under the limit. 0 if the limit was lowered below reserved. */
static uint64_t gpi_ledger_room(const gpi_ledger *ledger) {
    if (ledger->reserved.now >= ledger->limit_bytes) return 0;
    return ledger->limit_bytes - ledger->reserved.now;
}

/* Copies the counters to stats, with the peaks of the arena's whole life: the highest of the
   counter's peak and of the peaks that open phases have put aside. */
static void gpi_ledger_read(const gpi_ledger *ledger, gpupool_stats *stats) {
    const gpi_scope *phase = ledger->scopes;
    int i;
    for (i = 0; i < GPI_COUNTERS; i++)
        *gpi_ledger_counter_of(stats, i) = *gpi_ledger_counter(ledger, i);
    for (; phase; phase = phase->outer)
        for (i = 0; i < GPI_COUNTERS; i++) {
            gpupool_counter *out = gpi_ledger_counter_of(stats, i);
            out->peak = gpi_ground_max(out->peak, gpi_ledger_counter_of(&phase->before, i)->peak);
        }
}

/* Adds to a counter. GPUPOOL_STATS 0 keeps no totals; the peak stays, since growth needs the
   peak of granted. STAGE uses the function for the ring's counters, under the ring's lock. */
static void gpi_ledger_add(gpupool_counter *counter, uint64_t amount) {
    counter->now += amount;
#if GPUPOOL_STATS
    counter->total += amount;
#endif
    if (counter->now > counter->peak) counter->peak = counter->now;
}

/* Subtracts from a counter. Peak and total stay. */
static void gpi_ledger_sub(gpupool_counter *counter, uint64_t amount) {
    GPI_ASSERT(counter->now >= amount);
    counter->now -= amount;
}

/* Removes a freed block, or a request that got no block, from its tag. Returns 1 if the tag has
   fallen below its soft limit and the program must be told. */
static int gpi_ledger_untag(gpi_ledger *ledger, uint32_t tag, uint64_t bytes) {
    gpi_ledger_tag *entry = ledger->tags[tag];
    gpi_ledger_sub(&entry->stats.granted, bytes);
    gpi_ledger_sub(&entry->stats.blocks, 1);
    return entry->on_soft_limit && gpi_ledger_is_over(ledger, (int)tag) != entry->told;
}

/* Moves a counter to a new value that was computed elsewhere: pending, reserved. A growth counts
   in peak and total. */
static void gpi_ledger_set(gpupool_counter *counter, uint64_t now) {
    if (now > counter->now) gpi_ledger_add(counter, now - counter->now);
    else counter->now = now;
}

/* Notes an addition that gpi_ledger_fold adds to a counter later. The caller holds the lock of
   the change, a cache's for example. To subtract, callers lower change->now. */
static void gpi_ledger_note(gpi_change *change, uint64_t amount) {
    change->now += (int64_t)amount;
#if GPUPOOL_STATS
    change->total += amount;
#endif
    if (change->now > change->most) change->most = change->now;
}

/* Adds noted changes to their counter and clears them. The counter's highest value in between
   was its old value plus the highest sum of the changes. */
static void gpi_ledger_fold(gpupool_counter *counter, gpi_change *change) {
    uint64_t most = counter->now + (uint64_t)change->most;
    counter->now += (uint64_t)change->now;
    counter->total += change->total;
    if (most > counter->peak) counter->peak = most;
    memset(change, 0, sizeof *change);
}

/* Counts a block that becomes live. granted is counted without GPUPOOL_STATS too, since growth
   reads its peak. */
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

/* Counts a block that is freed, by the numbers that gpi_ledger_charge was given. */
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

/* Starts all peaks anew from the present values. Peaks that phases have put aside become 0, so
   that no earlier peak comes back at a phase's end. */
static void gpi_ledger_reset_peaks(gpi_ledger *ledger) {
    gpi_scope *phase = ledger->scopes;
    int i;
    for (i = 0; i < GPI_COUNTERS; i++)
        gpi_ledger_counter(ledger, i)->peak = gpi_ledger_counter(ledger, i)->now;
    for (; phase; phase = phase->outer)
        for (i = 0; i < GPI_COUNTERS; i++) gpi_ledger_counter_of(&phase->before, i)->peak = 0;
}

/* -- phases -- */

/* Begins a phase inside the open phases. phase: zeroed memory that the caller has allocated,
   from now on the ledger's. before: the arena's statistics of this moment; their counters are
   replaced by the raw ones, whose peaks belong to the phase around. */
static void gpi_ledger_push(gpi_ledger *ledger, gpi_scope *phase, const gpupool_stats *before) {
    int i;
    phase->before = *before;
    for (i = 0; i < GPI_COUNTERS; i++) {
        gpupool_counter *counter = gpi_ledger_counter(ledger, i);
        *gpi_ledger_counter_of(&phase->before, i) = *counter;
        counter->peak = counter->now;
    }
    phase->outer = ledger->scopes;
    ledger->scopes = phase;
}

/* The plain counts in gpupool_stats, which lie side by side: allocs to host_syncs. */
enum {
    GPI_COUNTS = (offsetof(gpupool_stats, limit_bytes) - offsetof(gpupool_stats, allocs)) /
                 sizeof(uint64_t)
};

/* Ends the innermost phase, which must exist. stats: on entry the arena's statistics of this
   moment, on return those of the phase. Returns the phase, which the caller frees after opening
   the lock. */
static gpi_scope *gpi_ledger_pop(gpi_ledger *ledger, gpupool_stats *stats) {
    gpi_scope *phase = ledger->scopes;
    uint64_t counts[GPI_COUNTS], then[GPI_COUNTS];
    int i;
    for (i = 0; i < GPI_COUNTERS; i++) {
        const gpupool_counter *aside = gpi_ledger_counter_of(&phase->before, i);
        gpupool_counter *counter = gpi_ledger_counter(ledger, i);
        gpupool_counter *out = gpi_ledger_counter_of(stats, i);
        /* now can be negative, wrapped: the phase freed more than it allocated. The peak is the
           highest value above the begin, 0 if reset_peaks came after memory was freed. */
        out->now = counter->now - aside->now;
        out->peak = counter->peak - gpi_ground_min(counter->peak, aside->now);
        out->total = counter->total - aside->total;
        /* The phase around continues, with the higher peak of before and of the phase that ends. */
        counter->peak = gpi_ground_max(counter->peak, aside->peak);
    }
    /* Subtract the plain counts as one array. memcpy avoids pointers from a field to its
       neighbours. */
    memcpy(counts, (const char *)stats + offsetof(gpupool_stats, allocs), sizeof counts);
    memcpy(then, (const char *)&phase->before + offsetof(gpupool_stats, allocs), sizeof then);
    for (i = 0; i < GPI_COUNTS; i++) counts[i] -= then[i];
    memcpy((char *)stats + offsetof(gpupool_stats, allocs), counts, sizeof counts);
    ledger->scopes = phase->outer;
    return phase;
}

/* -- sites -- */

/* Prepares a ledger whose bytes are all zero. */
static void gpi_ledger_open(gpi_ledger *ledger) {
    ledger->limit_bytes = UINT64_MAX;
#if GPUPOOL_SITES
    ledger->unknown.same = ledger->unknown.place = &ledger->unknown;
    ledger->unknown.file = "";
#endif
}

#if GPUPOOL_SITES
/* Makes a site of a struct that is at hand, after the host had no memory for a new site. A
   stream's cache has one for all its unknown lines: the cache's notes are under the cache's
   lock, so they cannot go to ledger->unknown, which all streams share. Does nothing the second
   time. */
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

/* The bucket of a source line and stream. Hashes the address of the file's name; the
   multiplication spreads the sum, and the upper 8 bits are the bucket. */
static gpi_site **gpi_ledger_bucket(gpi_ledger *ledger, gpi_origin origin, uint64_t key) {
    uint64_t hash = ((uint64_t)(uintptr_t)origin.file ^ key) + (uint64_t)origin.line * 31;
    return &ledger->sites[(hash * 0x9e3779b97f4a7c15ull) >> 56];
}

/* Adds a site for a line and stream that has none. Returns the site that counts for them, or
   ledger->unknown if the host has no memory. Goes through all sites to find equal text: rare,
   since each line and stream comes here once. */
static gpi_site *gpi_ledger_new_site(gpi_ledger *ledger, gpi_origin origin, uint64_t key) {
    gpi_site *site = (gpi_site *)gpi_host_zeroed(sizeof *site), *other;
    gpi_site **bucket = gpi_ledger_bucket(ledger, origin, key);
    int i;
    if (!site) return &ledger->unknown;
    site->same = site->place = site;
    for (i = 0; i < GPI_SITES; i++)
        for (other = ledger->sites[i]; other; other = other->next) {
            if (other->line != origin.line || strcmp(other->file, origin.file) != 0) continue;
            /* The first site of a text is its own place, and all later sites point there. */
            site->place = other->place;
            if (other->key == key) site->same = other->same;
        }
    site->file = origin.file;
    site->line = origin.line;
    site->key = key;
    site->next = *bucket;
    /* Last, since gpi_ledger_find_site reads the list without a lock: the site must be complete. */
    GPI_PUBLISH(bucket, site);
    ledger->site_count++;
    return site->same;
}

/* The site that counts for a line and stream; NULL: none yet. Needs no lock: sites are added at
   the front of a list, when complete, and stay until the arena ends. Inline, for every
   allocation calls the function. */
static inline gpi_site *gpi_ledger_find_site(gpi_ledger *ledger, gpi_origin origin, uint64_t key) {
    gpi_site *site = GPI_READ(gpi_ledger_bucket(ledger, origin, key));
    for (; site; site = site->next)
        if (site->file == origin.file && site->line == origin.line && site->key == key)
            return site->same;
    return NULL;
}

/* The site that counts for a line and stream. Adds one if there is none, so never returns NULL. */
static gpi_site *gpi_ledger_site(gpi_ledger *ledger, gpi_origin origin, uint64_t key) {
    gpi_site *site = gpi_ledger_find_site(ledger, origin, key);
    return site ? site : gpi_ledger_new_site(ledger, origin, key);
}

/* Goes through all sites: site NULL starts, and each later call gets the site that was returned
   before. ledger->unknown comes last, then NULL. *bucket is the walk's own variable. */
static gpi_site *gpi_ledger_next_site(gpi_ledger *ledger, const gpi_site *site, int *bucket) {
    gpi_site *next = site ? site->next : NULL;
    if (site == &ledger->unknown) return NULL;
    if (!site) *bucket = -1;
    while (!next && ++*bucket < GPI_SITES) next = ledger->sites[*bucket];
    return next ? next : &ledger->unknown;
}

/* Adds up the live blocks and bytes of each source line over its streams, into the line's first
   site: the verdict names lines, not streams. */
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

/* Count a block that becomes live, or that is freed, at its site. The caches note changes
   instead. */
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

/* Adds what a cache has noted to the site's figures, as gpi_ledger_fold does. Both locks are
   held: the arena's and the cache's. */
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

/* Frees the ledger's records. No other thread uses the ledger any more. Embedded sites belong to
   caches, which must still exist. */
static void gpi_ledger_close(gpi_ledger *ledger) {
    gpi_scope *phase = ledger->scopes, *outer;
    int tag;
    for (tag = 0; tag <= ledger->tag_count; tag++) GPUPOOL_FREE(ledger->tags[tag]);
    for (; phase; phase = outer) {
        outer = phase->outer;
        GPUPOOL_FREE(phase);
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

/* == TREE =========================================================================================
   Tells of every unit of the arena's addresses whether the unit is free, and for whom. Works with
   integers only: the number of a unit is its address divided by GPUPOOL_UNIT_BYTES, and no function
   here touches device memory. uses: HOST, LEDGER

   Runs. A run is a stretch of units in one state: free, live, cached, or one of the rarer states in
   GPI_LIST_... below. Runs lie side by side without gaps. Each run points to its two neighbours.

       | live, 12 | free in list ANY, 40 | live, 8 | free in the list of a stream, 4 | ... (units)

   Free lists. Every free run is in one free list. List ANY has memory whose GPU work is known to
   have finished: any stream may take it at once. Each stream has a list of the memory that was
   freed on it. List EMPTY has home addresses without memory, list SPACE has addresses for stitches.
   A free list sorts its runs by size into bins, like a two-level segregated fit (TLSF): an order is
   a power of two of units, a step is an eighth of an order. Bitmaps tell which bins hold runs, so
   two bit scans find the smallest bin whose runs are all large enough.

       list -> order 12 (4096..8191 units) -> step 3 (5632..6143 units) -> run <-> run <-> run

   In two things this differs from a binary buddy system. A run may start at any unit and have any
   length, so no request is rounded up to a power of two. A run that becomes free joins the free
   runs on both its sides, whatever their sizes, if the same streams may take both.

   Kinds. A free list has three sets of bins, one for each kind of run:
       inner  all runs that are of neither other kind
       edge   runs beside empty addresses. A search takes them last, and growth adds new memory
              beside them, so they keep room for large requests. (To fill them with small blocks
              costs a recorded training run 0.8% more memory.)
       slabs  runs in slabs. A slab is a granule that is set aside for blocks below 64 KiB, so that
              small blocks lie close together and leave whole chunks free. When memory is short,
              gpi_tree_drop_slabs makes slabs ordinary memory again.

   Index. A hash table finds a live run by its first unit: this is how gpupool_free finds a block.

   Table. A MAPPED arena has a table of its addresses, one cell for each granule. A cell has the
   leftmost run that starts in the granule, so gpi_tree_at finds the run around any address in a few
   steps; and the owner of the granule, a chunk or a stitch, which the sections below fill in.

   T1  neighbours meet: run.next.unit == run.unit + run.units, and run.next.prev == run
   T2  a free run is in the list that run.list names, in the bin of its own kind, order and step;
       the bitmaps have a bit for exactly the bins that hold runs; counts and sums are those of the
       bins
   T3  neighbours in the same list are at different positions, or the border of a slab is between
   T4  the index holds exactly the live and the cached runs, each in the bucket of its first unit
   T5  the leftmost run of a chunk keeps its struct while the chunk lives, for chunks point to it
   T6  a cell has the leftmost run that starts in its granule, or NULL; `starts` has the bits of the
       granules that have one
   T7  a free run is wholly in slabs and its kind is slabs, or no unit of it is in a slab

   Locks: every caller holds the arena's lock. No function here opens a lock, waits, or calls CUDA.
   Memory of the host is got in advance: where a comment says "needs two spare structs", the caller
   has called gpi_tree_prepare, so the change itself cannot fail.

   Read first: gpi_run, gpi_list, gpi_tree_bin, gpi_tree_file, gpi_tree_put, gpi_tree_take. */

enum {
    GPI_INNER,                         /* the kinds of runs, each with bins of its own */
    GPI_EDGE,
    GPI_SLABS,
    GPI_KINDS,                         /* how many kinds there are */
    GPI_STEPS = 8,                     /* steps in an order */
    GPI_KIND_BINS = 64 * GPI_STEPS,    /* bins of one kind in a free list */
    GPI_NO_BIN = GPI_KINDS * GPI_KIND_BINS, /* how many bins a list has; also stands for "none" */
    GPI_SLAB_UNITS = 65536 / GPUPOOL_UNIT_BYTES, /* blocks of fewer units live in slabs */
    GPI_PAGE = 1024,                   /* run structs, buckets or cells got from the host at once */
    GPI_LINE_BYTES = 64,               /* a cache line; a run struct lies in a single one */
    GPI_TRIES = 4,                     /* runs looked at in a bin where not every run fits: in the
                                          first search, */
    GPI_TRIES_SLOW = 256               /* and in the last one before more memory is got */
};

enum { /* run.list: the number of the free list that the run is in, or its state */
    GPI_LIST_ANY,
    GPI_LIST_EMPTY,
    GPI_LIST_SPACE,
    GPI_LIST_TAGS,                     /* finished memory of a tag with chunks of its own: the
                                          first tag's list; the others follow */
    GPI_LIST_STREAMS = GPI_LIST_TAGS + GPUPOOL_TAGS, /* the first list of a stream */
    GPI_LIST_WAITING = INT32_MAX - 4,  /* freed while other streams may still use it: see `uses`.
                                          From here on the numbers are states, not lists */
    GPI_LIST_PART,                     /* part of a stitched block; `uses` is its stitch */
    GPI_LIST_TAKEN,                    /* neither free nor live: one thread works on it */
    GPI_LIST_CACHED,                   /* in the cache of a stream: `uses` is the cache. The index
                                          has it, as it has live runs */
    GPI_LIST_LIVE
};

struct gpi_tree_relies { /* what the code assumes: a negative width does not compile */
    unsigned steps_have_a_byte : GPI_STEPS == 8 ? 1 : -1;
    unsigned live_is_the_last : GPI_LIST_LIVE == INT32_MAX ? 1 : -1;
};

typedef struct gpi_run {
    uint64_t unit, units;              /* the first unit, and how many; units 0: the struct is not
                                          in use */
    struct gpi_run *prev, *next;       /* neighbours by address; NULL at the end of a chunk, or of
                                          the reserved addresses of a MAPPED arena */
    struct gpi_run *list_next;         /* free: in the same bin; live: in the same bucket; else in a
                                          chain of whoever works on it */
    union {
        struct gpi_run *list_prev;     /* free: in the same bin */
        uintptr_t stream;              /* live: handle of the stream that allocated it, or that had
                                          it in its cache last; 0: unknown */
    } by;
    union {
        void *uses;                    /* live: its uses by other streams, a list of gpi_use;
                                          cached: its gpi_cache; part: its gpi_stitch */
        uint64_t at;                   /* free: its position, see CLOCK; 0 in lists ANY, EMPTY and
                                          SPACE */
    } of;
    uint32_t list;                     /* GPI_LIST_... */
    union {
        uint32_t slack;                /* live: granted minus requested bytes in the lower
                                          GPI_SLACK_BITS, the tag above them */
        uint32_t bin;                  /* free: its bin in the list */
    } as;
#if GPUPOOL_SITES
    gpi_site *site;                    /* live: the source line that allocated it */
#endif
#if GPUPOOL_NVTX
    void *heap;                        /* live: what a tool calls its chunk; NULL: nothing */
#endif
#if GPI_GUARD
    uint64_t guarded_bytes;            /* live: the offset of its guard bytes; 0: it has none */
#endif
} gpi_run;

/* A free list. The number of a bin is kind * GPI_KIND_BINS + order * GPI_STEPS + step; its row is
   that number without the step, kind * 64 + order. */
typedef struct gpi_list {
    struct gpi_list *spare;            /* while the list is not in use: the next such list */
    void *owner;                       /* the gpi_stream whose memory this is; NULL: of ANY, EMPTY
                                          and SPACE */
    uint64_t units;                    /* sum of the units of its runs */
    uint64_t usable_below;             /* for one request, under one hold of the lock: stitching and
                                          growth may take runs at positions below this; 0: none */
    uint64_t borders[3];               /* positions that runs must not join across: the position up
                                          to which work is known to have finished, and those of the
                                          stream's two marks. A run that crossed a border could only
                                          be taken after the later one */
    uint64_t orders[GPI_KINDS];        /* bit k: order k of this kind has runs */
    uint8_t steps[GPI_KINDS * 64];     /* of each row; bit s: step s has runs */
    gpi_run *heads[GPI_KINDS * GPI_KIND_BINS]; /* the first run of each bin */
} gpi_list;

typedef struct gpi_cell {              /* of one granule of addresses */
    gpi_run *first;                    /* the leftmost run that starts in it, or NULL */
    void *owner;                       /* the gpi_chunk or gpi_stitch there; NULL: none */
} gpi_cell;

typedef struct gpi_tree {
    gpi_list **lists;                  /* by number; NULL: the number is not in use */
    uint32_t list_count, list_room;
    gpi_list *spare_lists;
    gpi_run **pages;                   /* memory for run structs: see gpi_tree_page */
    uint64_t page_count, page_room;
    gpi_run ***buckets;                /* pages of the index: the first run of each bucket */
    uint64_t bucket_page_count, bucket_page_room;
    uint64_t host_bytes;               /* memory that this section has from the host */
    gpi_cell **cells;                  /* pages of the table; NULL: no address there is in use */
    uint64_t *starts;                  /* bit g: a run starts in granule g */
    uint64_t *slabs;                   /* bit g: granule g is a slab */
    uint64_t slab_count;
    uint64_t base_unit, granules;      /* the home addresses, which `starts`, `slabs` and the cells'
                                          runs are for; granules 0: there is no table */
    uint64_t cell_pages;
    unsigned granule_shift;            /* a granule has 1 << granule_shift units */
    uint64_t bucket_count;             /* from here on what changes with every call */
    uint64_t bucket_mask;              /* the smallest power of two above bucket_count, minus 1 */
    gpi_run *spare;                    /* run structs not in use, linked by list_next */
    uint64_t spare_count;
    uint64_t live_runs, live_units;    /* in the index */
    uint64_t pending_units;            /* free in the lists of streams */
    uint64_t splits, merges;           /* so far, for statistics */
    uint64_t live_by_order[GPUPOOL_ORDERS], free_by_order[GPUPOOL_ORDERS]; /* numbers of runs */
    gpi_run *cursor;                   /* where a walk goes on that opens the lock now and then:
                                          a join that frees this struct moves the cursor left */
} gpi_tree;

/* The bin of an inner run of so many units (at least 1). An order has eight steps, so the three
   bits below the highest bit of `units` are the step. Below 8 units some steps stay empty. */
static uint32_t gpi_tree_bin(uint64_t units) {
    unsigned order = gpi_ground_high_bit(units);
    return order * GPI_STEPS + (uint32_t)((units << 3) >> order) - GPI_STEPS;
}

/* The order of the runs in a bin of any kind. */
static unsigned gpi_tree_order(uint32_t bin) { return bin % GPI_KIND_BINS / GPI_STEPS; }

/* The bucket of the index for a run that starts at this unit. Linear hashing: for every live run
   added, gpi_tree_bring_alive splits two buckets, so no call ever rehashes the whole index. Buckets
   number about twice the runs, because in a large index each run looked at costs a cache miss. A
   hash at or beyond bucket_count falls onto the bucket that has not been split yet, in the lower
   half. */
GPI_HOT uint64_t gpi_tree_bucket(const gpi_tree *tree, uint64_t unit) {
    uint64_t bucket = ((unit * 0x9e3779b97f4a7c15ull) >> 24) & tree->bucket_mask;
    /* a branch here would often be mispredicted */
    return bucket & tree->bucket_mask >> (bucket >= tree->bucket_count);
}

/* Where the first run of a bucket is kept. */
static gpi_run **gpi_tree_head(const gpi_tree *tree, uint64_t bucket) {
    return &tree->buckets[bucket / GPI_PAGE][bucket % GPI_PAGE];
}

/* Whether a neighbour of the run consists of empty addresses. */
static int gpi_tree_is_edge(const gpi_run *run) {
    return (run->prev && run->prev->list == GPI_LIST_EMPTY) ||
           (run->next && run->next->list == GPI_LIST_EMPTY);
}

/* Whether a unit lies in a slab. Units outside the home addresses do not. */
GPI_HOT int gpi_tree_is_slab(const gpi_tree *tree, uint64_t unit) {
    uint64_t granule;
    if (tree->slab_count == 0) return 0;
    granule = (unit - tree->base_unit) >> tree->granule_shift;
    return granule < tree->granules && (tree->slabs[granule / 64] >> granule % 64 & 1);
}

/* Which kind of bin a free run belongs to. */
GPI_HOT uint32_t gpi_tree_kind(const gpi_tree *tree, const gpi_run *run) {
    if (gpi_tree_is_slab(tree, run->unit)) return GPI_SLABS;
    return gpi_tree_is_edge(run) ? GPI_EDGE : GPI_INNER;
}

/* Whether a run is free and all work that used it has finished: it is in list ANY, or a tag's. */
static int gpi_tree_is_finished(const gpi_run *run) {
    return run->list == GPI_LIST_ANY ||
           (run->list >= GPI_LIST_TAGS && run->list < GPI_LIST_STREAMS);
}

/* For checks: whether the neighbours point back to the run. A run struct in a bin that no neighbour
   points to is a stale copy. */
static int gpi_tree_is_met(const gpi_run *run) {
    return (!run->prev || run->prev->next == run) && (!run->next || run->next->prev == run);
}

/* The cell of a unit. Its page exists: gpi_tree_prepare_cells was called for the address. */
GPI_HOT gpi_cell *gpi_tree_cell(const gpi_tree *tree, uint64_t unit) {
    uint64_t granule = (unit - tree->base_unit) >> tree->granule_shift;
    return &tree->cells[granule / GPI_PAGE][granule % GPI_PAGE];
}

/* -- look-up: these functions change nothing -- */

/* The pointer in the index that leads to the live run starting at this unit; if there is none, the
   pointer to NULL that ends the bucket. gpi_tree_lay_down_at unlinks a run by that pointer. */
GPI_HOT gpi_run **gpi_tree_link(const gpi_tree *tree, uint64_t unit) {
    gpi_run **link = gpi_tree_head(tree, gpi_tree_bucket(tree, unit));
    while (*link && (*link)->unit != unit) link = &(*link)->list_next;
    return link;
}

/* The live (or cached) run that starts at this unit; NULL: there is none. */
static gpi_run *gpi_tree_live(const gpi_tree *tree, uint64_t unit) {
    return *gpi_tree_link(tree, unit);
}

/* The chunk or stitch that has the address; NULL: none has it, or it is outside the table. */
static void *gpi_tree_owner(const gpi_tree *tree, uint64_t unit) {
    uint64_t granule = (unit - tree->base_unit) >> tree->granule_shift;
    const gpi_cell *page = granule / GPI_PAGE < tree->cell_pages ? tree->cells[granule / GPI_PAGE]
                                                                 : NULL;
    return page ? page[granule % GPI_PAGE].owner : NULL;
}

/* The leftmost run that starts at or after the first unit of this unit's granule. There is one, if
   the unit's granule or the one before it is in use: the last granule of the home addresses never
   is, so a run of empty addresses follows. */
static gpi_run *gpi_tree_from(const gpi_tree *tree, uint64_t unit) {
    uint64_t granule = (unit - tree->base_unit) >> tree->granule_shift, word = granule / 64;
    uint64_t bits = tree->starts[word] & ~(uint64_t)0 << granule % 64;
    while (!bits) bits = tree->starts[++word];
    granule = word * 64 + gpi_ground_low_bit(bits);
    return tree->cells[granule / GPI_PAGE][granule % GPI_PAGE].first;
}

/* The run around a home address that is in use. The search goes leftward from the end of the
   granule: a large free run, the usual case, has no run between it and that end. */
static gpi_run *gpi_tree_at(const gpi_tree *tree, uint64_t unit) {
    uint64_t granule = (uint64_t)1 << tree->granule_shift;
    gpi_run *run = gpi_tree_from(tree, gpi_ground_down(unit, granule) + granule)->prev;
    while (run->unit > unit) run = run->prev;
    return run;
}

/* The first bin at or after `bin`, of the same kind, that holds a run; GPI_NO_BIN: there is
   none. */
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

/* The first bin of a kind that holds a run; GPI_NO_BIN: there is none. */
static uint32_t gpi_tree_first(const gpi_list *list, uint32_t kind) {
    return list->orders[kind] ? gpi_tree_next(list, kind * GPI_KIND_BINS) : (uint32_t)GPI_NO_BIN;
}

/* -- memory of the host: got before anything is changed -- */

/* Makes room for `need` pointers in an array that doubles when it is full. *room: pointers that
   fit. 0: the host has no memory, and the array is as it was. */
static int gpi_tree_grow_array(gpi_tree *tree, void **array, uint64_t *room, uint64_t need) {
    uint64_t more = *room ? *room * 2 : 16;
    void *larger;
    if (need <= *room) return 1;
    while (more < need) more *= 2;
    larger = gpi_host_zeroed(more * sizeof(void *));
    if (!larger) return 0;
    if (*array) memcpy(larger, *array, *room * sizeof(void *));
    GPUPOOL_FREE(*array);
    tree->host_bytes += (more - *room) * sizeof(void *);
    *array = larger;
    *room = more;
    return 1;
}

/* The run structs of a page, aligned so that each lies in a single cache line. An arena may have a
   million runs, so most structs looked at are cache misses. */
static gpi_run *gpi_tree_page(const gpi_tree *tree, uint64_t page) {
    uint64_t first = gpi_ground_up((uintptr_t)tree->pages[page], GPI_LINE_BYTES);
    return (gpi_run *)(uintptr_t)first;
}

/* Makes no list usable (gpi_list.usable_below). The marks hold for one request: whoever sets them
   calls this before the lock is opened, or another thread would act on them. */
static void gpi_tree_unmark(gpi_tree *tree) {
    uint32_t i;
    for (i = 0; i < tree->list_count; i++)
        if (tree->lists[i]) tree->lists[i]->usable_below = 0;
}

/* For walks over all live and cached runs: start with *at = 0; NULL ends the walk. The order is
   that of the run structs in the host's memory, which reads it from front to back. The lists of the
   index would lead all over that memory. */
static gpi_run *gpi_tree_next_live(const gpi_tree *tree, uint64_t *at) {
    while (*at < tree->page_count * GPI_PAGE) {
        gpi_run *run = gpi_tree_page(tree, *at / GPI_PAGE) + *at % GPI_PAGE;
        ++*at;
        if (run->units && run->list >= GPI_LIST_CACHED) return run;
    }
    return NULL;
}

/* Whether so many run structs are spare, and the index has room for one more live run. A hot path
   asks this first, and calls gpi_tree_prepare only if the answer is no. */
static int gpi_tree_is_ready(const gpi_tree *tree, uint64_t runs) {
    return tree->spare_count >= runs &&
           tree->bucket_count + 2 <= tree->bucket_page_count * GPI_PAGE;
}

/* Makes sure of so many spare run structs, and of the two buckets that one more live run needs. 0:
   the host has no memory; what was got so far is kept. */
static int gpi_tree_prepare(gpi_tree *tree, uint64_t runs) {
    void *array;
    while (tree->spare_count < runs) {
        gpi_run *page;
        int i;
        array = tree->pages;
        if (!gpi_tree_grow_array(tree, &array, &tree->page_room, tree->page_count + 1)) return 0;
        tree->pages = (gpi_run **)array;
        page = (gpi_run *)gpi_host_zeroed(GPI_PAGE * sizeof *page + GPI_LINE_BYTES);
        if (!page) return 0;
        tree->pages[tree->page_count++] = page;
        tree->host_bytes += GPI_PAGE * sizeof *page + GPI_LINE_BYTES;
        page = gpi_tree_page(tree, tree->page_count - 1);
        for (i = GPI_PAGE - 1; i >= 0; i--) {
            page[i].list_next = tree->spare;
            tree->spare = &page[i];
        }
        tree->spare_count += GPI_PAGE;
    }
    if (tree->bucket_count + 2 > tree->bucket_page_count * GPI_PAGE) {
        gpi_run **page;
        array = tree->buckets;
        if (!gpi_tree_grow_array(tree, &array, &tree->bucket_page_room,
                                 tree->bucket_page_count + 1))
            return 0;
        tree->buckets = (gpi_run ***)array;
        page = (gpi_run **)gpi_host_zeroed(GPI_PAGE * sizeof *page);
        if (!page) return 0;
        tree->buckets[tree->bucket_page_count++] = page;
        tree->host_bytes += GPI_PAGE * sizeof *page;
        if (tree->bucket_count == 0) tree->bucket_count = tree->bucket_mask = 1;
    }
    return 1;
}

/* Makes the table of a MAPPED arena, for `granules` granules from base_unit on, which nothing owns
   yet. Runs are found by address in the first home_granules; the rest is for stitches. 0: the host
   has no memory. */
static int gpi_tree_open_table(gpi_tree *tree, uint64_t base_unit, uint64_t home_granules,
                               uint64_t granules, uint64_t granule_units) {
    uint64_t pages = granules / GPI_PAGE + 1, words = home_granules / 64 + 1;
    tree->cells = (gpi_cell **)gpi_host_zeroed(pages * sizeof *tree->cells);
    tree->starts = (uint64_t *)gpi_host_zeroed(words * sizeof *tree->starts);
    tree->slabs = (uint64_t *)gpi_host_zeroed(words * sizeof *tree->slabs);
    if (!tree->cells || !tree->starts || !tree->slabs) return 0; /* gpi_tree_close frees them */
    tree->cell_pages = pages;
    tree->granule_shift = gpi_ground_high_bit(granule_units);
    tree->base_unit = base_unit;
    tree->granules = home_granules;
    tree->host_bytes += pages * sizeof *tree->cells + 2 * words * sizeof *tree->starts;
    return 1;
}

/* Makes sure of the cells for [unit, unit + units] with the end included: when the memory there is
   split off, a run starts at the end. 0: the host has no memory. */
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

/* Records the owner of [unit, unit + units): whole granules whose cells exist. NULL: nobody. */
static void gpi_tree_own(gpi_tree *tree, uint64_t unit, uint64_t units, void *owner) {
    uint64_t end = unit + units;
    for (; unit < end; unit += (uint64_t)1 << tree->granule_shift)
        gpi_tree_cell(tree, unit)->owner = owner;
}

/* -- the table -- */

/* The word of `starts` that has the bit of this unit, and the bit. */
static uint64_t *gpi_tree_start_bit(const gpi_tree *tree, uint64_t unit, uint64_t *bit) {
    uint64_t granule = (unit - tree->base_unit) >> tree->granule_shift;
    *bit = (uint64_t)1 << granule % 64;
    return &tree->starts[granule / 64];
}

/* A run starts at run->unit from now on. Does nothing for runs outside the home addresses. */
GPI_HOT void gpi_tree_table_enter(gpi_tree *tree, gpi_run *run) {
    gpi_cell *cell;
    uint64_t *word, bit;
    if (run->unit - tree->base_unit >= tree->granules << tree->granule_shift) return;
    cell = gpi_tree_cell(tree, run->unit);
    /* a run further left in the granule stays the leftmost */
    if (cell->first && cell->first->unit < run->unit) return;
    cell->first = run;
    word = gpi_tree_start_bit(tree, run->unit, &bit);
    *word |= bit;
}

/* No run starts at run->unit any more. Called while run->next is still right: the next run becomes
   the leftmost of the granule if it starts there. */
GPI_HOT void gpi_tree_table_leave(gpi_tree *tree, const gpi_run *run) {
    const uint64_t in_granule = ((uint64_t)1 << tree->granule_shift) - 1;
    gpi_cell *cell;
    uint64_t *word, bit;
    if (run->unit - tree->base_unit >= tree->granules << tree->granule_shift) return;
    cell = gpi_tree_cell(tree, run->unit);
    if (cell->first != run) return;
    cell->first = run->next && run->next->unit <= (run->unit | in_granule) ? run->next : NULL;
    if (cell->first) return;
    word = gpi_tree_start_bit(tree, run->unit, &bit);
    *word &= ~bit;
}

/* -- free lists -- */

/* Makes the empty free list of this number, which is not in use. Structs of dropped lists are used
   again. 0: the host has no memory. */
static int gpi_tree_list_open(gpi_tree *tree, uint32_t number) {
    uint64_t room = tree->list_room;
    void *grown = tree->lists;
    gpi_list *list;
    if (!gpi_tree_grow_array(tree, &grown, &room, (uint64_t)number + 1)) return 0;
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

/* Drops an empty list. Its struct is kept for gpi_tree_list_add. */
static void gpi_tree_list_drop(gpi_tree *tree, uint32_t number) {
    GPI_ASSERT(tree->lists[number]->units == 0);
    tree->lists[number]->spare = tree->spare_lists;
    tree->spare_lists = tree->lists[number];
    tree->lists[number] = NULL;
}

/* Frees everything and zeroes the struct. May be called on a tree that failed to open. */
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

/* Opens a zeroed tree: makes lists ANY, EMPTY and SPACE. 0: the host has no memory, and nothing is
   left behind. */
static int gpi_tree_open(gpi_tree *tree) {
    if (gpi_tree_list_open(tree, GPI_LIST_ANY) && gpi_tree_list_open(tree, GPI_LIST_EMPTY) &&
        gpi_tree_list_open(tree, GPI_LIST_SPACE) && gpi_tree_prepare(tree, 1))
        return 1;
    gpi_tree_close(tree);
    return 0;
}

/* Puts a run into the bin of its kind and size in this list, at the front. The run joins no
   neighbour: gpi_tree_put does that. */
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

/* Takes a free run out of its bin. The run is TAKEN afterwards: no search finds it. */
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

/* A run has become empty addresses, or no longer is. The kind of its free neighbours changes with
   that (edge or inner), so they move to bins of their new kind. */
static void gpi_tree_refile_neighbours(gpi_tree *tree, gpi_run *run) {
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

/* -- run structs, split and joined -- */

/* A run struct from the spare ones, whose fields have any value. */
GPI_HOT gpi_run *gpi_tree_new_run(gpi_tree *tree) {
    gpi_run *run = tree->spare;
    GPI_ASSERT(run != NULL);
    tree->spare = run->list_next;
    tree->spare_count--;
    return run;
}

/* Makes a run struct spare. The struct has left its bin, its neighbours and the table. */
GPI_HOT void gpi_tree_free_run(gpi_tree *tree, gpi_run *run) {
    if (run == tree->cursor) tree->cursor = run->prev;
    run->units = 0; /* so gpi_tree_next_live skips the struct */
    run->list_next = tree->spare;
    tree->spare = run;
    tree->spare_count++;
}

/* Splits a taken run at `unit`, which lies inside it. The left part keeps the struct; returns the
   right part, taken too and at the same position. Needs one spare struct. */
GPI_HOT gpi_run *gpi_tree_split(gpi_tree *tree, gpi_run *run, uint64_t unit) {
    gpi_run *right;
    GPI_ASSERT(run->list == GPI_LIST_TAKEN && unit > run->unit && unit < run->unit + run->units);
    right = gpi_tree_new_run(tree);
    right->unit = unit;
    right->units = run->unit + run->units - unit;
    run->units = unit - run->unit;
    right->prev = run;
    right->next = run->next;
    if (run->next) run->next->prev = right;
    run->next = right;
    right->list = GPI_LIST_TAKEN;
    right->of.at = run->of.at;
    gpi_tree_table_enter(tree, right);
    tree->splits += GPUPOOL_STATS;
    return right;
}

/* Joins two taken neighbours into one run. The left struct stays (T5), the right one becomes
   spare. */
GPI_HOT void gpi_tree_weld(gpi_tree *tree, gpi_run *left, gpi_run *right) {
    GPI_ASSERT(right && left->next == right);
    GPI_ASSERT(left->list == GPI_LIST_TAKEN && right->list == GPI_LIST_TAKEN);
    gpi_tree_table_leave(tree, right);
    left->units += right->units;
    left->next = right->next;
    if (right->next) right->next->prev = left;
    gpi_tree_free_run(tree, right);
    tree->merges += GPUPOOL_STATS;
}

/* -- memory becomes free, or is taken -- */

/* Whether a border of the list lies between two positions: one position is at or below the border,
   the other above. */
GPI_HOT int gpi_tree_has_border(const gpi_list *list, uint64_t a, uint64_t b) {
    const uint64_t *borders = list->borders;
    uint64_t low = a < b ? a : b, high = a < b ? b : a;
    return (low <= borders[0] && borders[0] < high) || (low <= borders[1] && borders[1] < high) ||
           (low <= borders[2] && borders[2] < high);
}

/* Whether a free neighbour may join a run that is about to be filed in list `number`. Runs of one
   list join unless a border is between their positions. A finished neighbour, of this list or of
   list ANY, joins a stream's unfinished run if it has at most absorb_units: then other streams can
   take it only behind a wait. Memory in a slab and memory outside never join (T7). */
GPI_HOT int gpi_tree_joins(const gpi_tree *tree, const gpi_run *side, const gpi_run *run,
                           uint32_t number, uint64_t absorb_units) {
    const gpi_list *list = tree->lists[number];
    if (side->list == number) {
        if (gpi_tree_has_border(list, side->of.at, run->of.at) &&
            (side->of.at > list->borders[0] || side->units > absorb_units))
            return 0;
    } else if (side->list != GPI_LIST_ANY || side->units > absorb_units) {
        return 0;
    }
    return gpi_tree_is_slab(tree, side->unit) == gpi_tree_is_slab(tree, run->unit);
}

/* Makes a taken run free: files it in a list at its position (run->of.at), after joining all
   neighbours that may join. Returns the run that results, whose position is the latest of those
   joined. absorb_units: a stream's run also takes in finished neighbours of up to so many units,
   from list ANY too; 0: none. A larger finished neighbour stays apart, so that other streams can go
   on taking it without a wait. */
static gpi_run *gpi_tree_put(gpi_tree *tree, gpi_run *run, uint32_t list, uint64_t absorb_units) {
    gpi_run *side;
    uint64_t at = run->of.at;
    GPI_ASSERT(run->list == GPI_LIST_TAKEN);
    if (list < GPI_LIST_STREAMS) absorb_units = run->of.at = at = 0;
    /* a loop: two neighbours may both join this run although they could not join each other */
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
    if (list == GPI_LIST_EMPTY) gpi_tree_refile_neighbours(tree, run);
    return run;
}

/* Takes [unit, unit + units) out of a free run; the parts left over on both sides stay free, in the
   same list and at the same position. Returns the taken run. Needs two spare structs. */
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
    if (list == GPI_LIST_EMPTY) gpi_tree_refile_neighbours(tree, run);
    return run;
}

/* -- live runs -- */

/* Adds one bucket to the index. Linear hashing splits the old buckets in turn: the new bucket gets
   the runs of the old one whose hash has the next higher bit set. */
static void gpi_tree_split_bucket(gpi_tree *tree) {
    uint64_t fresh = tree->bucket_count;
    uint64_t old = fresh - (1ull << gpi_ground_high_bit(fresh));
    gpi_run *all = *gpi_tree_head(tree, old), *rest, **head;
    tree->bucket_count++;
    if (tree->bucket_count > tree->bucket_mask) tree->bucket_mask = tree->bucket_mask * 2 + 1;
    *gpi_tree_head(tree, old) = NULL; /* the head of the new bucket is NULL already */
    for (; all; all = rest) {
        rest = all->list_next;
        head = gpi_tree_head(tree, gpi_tree_bucket(tree, all->unit));
        all->list_next = *head;
        *head = all;
    }
}

enum { GPI_SLACK_BITS = 24 }; /* a block is rounded up by less than 2^24 bytes */

/* How many bytes more than requested a live run has; and its tag, 0 if it has none. */
GPI_HOT uint32_t gpi_tree_slack(const gpi_run *run) {
    return run->as.slack & ((1u << GPI_SLACK_BITS) - 1);
}

GPI_HOT uint32_t gpi_tree_tag(const gpi_run *run) { return run->as.slack >> GPI_SLACK_BITS; }

/* Makes a taken run live: from now on the index finds it by its first unit. `slack`: granted minus
   requested bytes. Needs room in the index, as gpi_tree_prepare makes it. */
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

/* Makes a live run taken: the index no longer finds it. `link` is what gpi_tree_link returned. */
GPI_HOT void gpi_tree_lay_down_at(gpi_tree *tree, gpi_run **link) {
    gpi_run *run = *link;
    GPI_ASSERT(run && run->list == GPI_LIST_LIVE);
    *link = run->list_next;
    run->list = GPI_LIST_TAKEN;
    tree->live_runs--;
    tree->live_units -= run->units;
    tree->live_by_order[gpi_ground_high_bit(run->units)] -= GPUPOOL_STATS;
}

/* gpi_tree_lay_down_at for callers that have the run and no link. */
static void gpi_tree_lay_down(gpi_tree *tree, gpi_run *run) {
    gpi_tree_lay_down_at(tree, gpi_tree_link(tree, run->unit));
}

/* -- chunks, and whole lists -- */

/* Adds the units of a new chunk, or of a range of reserved addresses, as one taken run without
   neighbours. Its struct stays the leftmost of the chunk (T5). Needs one spare struct. */
static gpi_run *gpi_tree_add_chunk(gpi_tree *tree, uint64_t unit, uint64_t units) {
    gpi_run *run = gpi_tree_new_run(tree);
    memset(run, 0, sizeof *run);
    run->unit = unit;
    run->units = units;
    run->list = GPI_LIST_TAKEN;
    gpi_tree_table_enter(tree, run);
    return run;
}

/* Removes a chunk whose units are one taken run, the struct of gpi_tree_add_chunk. */
static void gpi_tree_remove_chunk(gpi_tree *tree, gpi_run *run) {
    GPI_ASSERT(run->list == GPI_LIST_TAKEN && !run->prev && !run->next);
    gpi_tree_free_run(tree, run);
}

/* Moves the runs of a stream's list that are at or below a position to list ANY, where they join
   their neighbours. CLOCK calls this for the position up to which the stream's work is known to
   have finished. */
static void gpi_tree_finish(gpi_tree *tree, uint32_t number, uint64_t at) {
    gpi_list *list = tree->lists[number];
    uint32_t kind, bin;
    gpi_run *run, *next;
    for (kind = 0; kind < GPI_KINDS && list->units; kind++) {
        bin = gpi_tree_first(list, kind);
        for (; bin != GPI_NO_BIN; bin = gpi_tree_next(list, bin + 1)) {
            for (run = list->heads[bin]; run; run = next) {
                /* read first: gpi_tree_put files the run elsewhere. `next` stays valid, since the
                   run joins runs of list ANY only */
                next = run->list_next;
                if (run->of.at > at) continue;
                gpi_tree_unfile(tree, run);
                gpi_tree_put(tree, run, GPI_LIST_ANY, 0);
            }
        }
    }
}

/* Sets the position of all runs in a list. Called at a graph's release for the list of its scope.
   No neighbours have to join: positions in that list have no border between them, so neighbours
   have joined already. */
static void gpi_tree_restamp(gpi_tree *tree, uint32_t number, uint64_t at) {
    gpi_list *list = tree->lists[number];
    uint32_t bin;
    gpi_run *run;
    for (bin = 0; list->units && bin < GPI_NO_BIN; bin++)
        for (run = list->heads[bin]; run; run = run->list_next) run->of.at = at;
}

/* -- slabs: SEARCH makes them, since they are made of free memory that fits -- */

/* Marks the granule that starts at this unit, and belongs to a taken run, as a slab. */
static void gpi_tree_mark_slab(gpi_tree *tree, uint64_t unit) {
    uint64_t granule = (unit - tree->base_unit) >> tree->granule_shift;
    tree->slabs[granule / 64] |= (uint64_t)1 << granule % 64;
    tree->slab_count++;
}

/* Makes all slabs ordinary memory. Their free runs go back to their lists and join the neighbours
   outside. Called when memory is short, and before a caller needs whole chunks. */
static void gpi_tree_drop_slabs(gpi_tree *tree) {
    uint32_t number, bin;
    gpi_run *runs = NULL, *run;
    if (tree->slab_count == 0) return;
    /* first all runs leave their bins, while the marks still tell the right kind */
    for (number = 0; number < tree->list_count; number++) {
        gpi_list *list = tree->lists[number];
        while (list && list->orders[GPI_SLABS]) {
            bin = gpi_tree_next(list, GPI_SLABS * GPI_KIND_BINS);
            run = list->heads[bin];
            gpi_tree_unfile(tree, run);
            run->by.stream = number; /* the list that it goes back to */
            run->list_next = runs;
            runs = run;
        }
    }
    memset(tree->slabs, 0, (tree->granules / 64 + 1) * sizeof *tree->slabs);
    tree->slab_count = 0;
    /* then each run is filed by what its address is now */
    while ((run = runs) != NULL) {
        runs = run->list_next;
        gpi_tree_put(tree, run, (uint32_t)run->by.stream, 0);
    }
}

/* == SEARCH =======================================================================================
   Finds the free run that a request fits in, in the lists that the request may take from. A search
   decides where a block lies, so this is where fragmentation is kept low. uses: TREE

   A search goes through the bins of one kind from the request's own bin upward. In each bin it
   looks at all lists before it goes on to a larger bin: the closest fit wins, whoever freed it.

       bin of the request     its runs differ by up to an eighth: some are too short
       every later bin        its runs are all long enough; yet one may not fit because of its
                              alignment, its position, or the borders of chunks

   A small request (below 64 KiB) in a MAPPED arena looks into slabs first, then makes a new slab,
   then takes any run: see gpi_ladder_find_small. All other requests take kind inner before edge.

   F1  a search changes nothing; only gpi_tree_add_slab does
   F2  a run that is found is in one of the lists given, below the position given, and
       gpi_tree_start_of says where in it the request starts
   F3  no run that fits is in a smaller bin of the same kind, unless more than fit.tries runs that
       do not fit came before it

   Locks: every caller holds the arena's lock, as in TREE. */

typedef struct gpi_lists {             /* which free lists a search looks through */
    uint32_t number[2];                /* of the lists, the preferred one first */
    int count;
    uint64_t below;                    /* only runs at positions below this: other streams' runs are
                                          taken up to a mark only. UINT64_MAX: all */
} gpi_lists;

typedef enum gpi_owners {              /* which chunks a block may lie in */
    GPI_OWNERS_ANY,                    /* any, and in several at once */
    GPI_OWNERS_ONE,                    /* in one chunk, with all its units */
    GPI_OWNERS_WHOLE                   /* and the chunk has no other units: it can be exported */
} gpi_owners;

typedef struct gpi_fit {               /* what a search is for */
    uint64_t units, align_units;       /* align_units: a power of two, 1 for no alignment */
    uint64_t tries;                    /* runs that do not fit and may be passed over, in a bin of a
                                          list */
    gpi_owners owners;                 /* if not ANY, align_units is 2 at least: gpi_tree_fit then
                                          looks at more than the size */
} gpi_fit;

/* The unit at which a request would start in this run, by size and alignment alone: the first
   aligned unit of the run; UINT64_MAX: the request does not fit. */
GPI_HOT uint64_t gpi_tree_start(const gpi_run *run, uint64_t units, uint64_t align_units) {
    uint64_t start = gpi_ground_up(run->unit, align_units);
    uint64_t lost = start - run->unit;
    return lost < run->units && run->units - lost >= units ? start : UINT64_MAX;
}

/* Where the addresses of the chunk that has `unit` end, or `end` if that comes first. */
static uint64_t gpi_tree_end_of_owner(const gpi_tree *tree, uint64_t unit, uint64_t end) {
    uint64_t granule = (uint64_t)1 << tree->granule_shift;
    const void *owner = gpi_tree_owner(tree, unit);
    for (unit = gpi_ground_down(unit, granule) + granule; unit < end; unit += granule)
        if (gpi_tree_owner(tree, unit) != owner) return unit;
    return end;
}

/* The unit at which a request would start in this run; UINT64_MAX: the request does not fit. Unlike
   gpi_tree_start, this looks at the chunks that the run lies in, if the request is limited to one
   chunk. Callers may pass a run that they have made up, to ask about several neighbours at once. */
static uint64_t gpi_tree_start_of(const gpi_tree *tree, const gpi_run *run, const gpi_fit *fit) {
    uint64_t start = gpi_tree_start(run, fit->units, fit->align_units), owned;
    uint64_t end = run->unit + run->units;
    if (fit->owners == GPI_OWNERS_ANY || !tree->granules) return start;
    /* chunk by chunk: the part of the run in each, from its first aligned unit on */
    for (; start != UINT64_MAX && start < end && end - start >= fit->units;
         start = gpi_ground_up(owned, fit->align_units)) {
        const void *owner = gpi_tree_owner(tree, start);
        owned = gpi_tree_end_of_owner(tree, start, end);
        if (owned - start < fit->units) continue;
        /* WHOLE: the chunk must neither begin before the block nor go on behind it */
        if (fit->owners == GPI_OWNERS_ONE || (gpi_tree_owner(tree, start - 1) != owner &&
                                              gpi_tree_owner(tree, start + fit->units) != owner))
            return start;
    }
    return UINT64_MAX;
}

/* The first run of a bin, from `run` on, that holds the request and is at a position below `below`.
   Gives up after fit->tries runs that do not: a bin may have thousands of runs that are too
   short. */
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

/* A free run that holds the request, in the lists given, from `bin` up to the last bin of the same
   kind; NULL: none was found. In one bin the lists are looked at in their order, so the first list
   is preferred only among runs of about the same size: the closest fit keeps large runs whole. */
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
        /* the next bin that holds a run in any of the lists */
        for (i = 0; i < lists->count; i++) {
            uint32_t next = gpi_tree_next(tree->lists[lists->number[i]], bin + 1);
            if (next < least) least = next;
        }
        if (least == GPI_NO_BIN) return NULL;
        bin = least;
    }
}

/* A free run outside slabs that holds the request: of kind inner, and if there is none, of kind
   edge. */
GPI_HOT gpi_run *gpi_tree_find(const gpi_tree *tree, const gpi_lists *lists, const gpi_fit *fit) {
    uint32_t first = gpi_tree_bin(fit->units);
    gpi_run *run = gpi_tree_find_on(tree, lists, first, fit);
    return run ? run : gpi_tree_find_on(tree, lists, first + GPI_EDGE * GPI_KIND_BINS, fit);
}

/* A free run in slabs that holds a small request. */
GPI_HOT gpi_run *gpi_tree_find_in_slabs(const gpi_tree *tree, const gpi_lists *lists,
                                        const gpi_fit *fit) {
    return gpi_tree_find_on(tree, lists, gpi_tree_bin(fit->units) + GPI_SLABS * GPI_KIND_BINS, fit);
}

/* The units of the largest run in a list, for reports and verdicts. Only the last bin of each kind
   is looked through. */
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

/* -- slabs -- */

/* Makes one more slab from a free granule in these lists, and files it in the list that it came
   from. Returns the free run; NULL: no run holds a whole granule. Needs two spare structs. */
static gpi_run *gpi_tree_add_slab(gpi_tree *tree, const gpi_lists *lists, uint64_t tries) {
    uint64_t granule_units = (uint64_t)1 << tree->granule_shift, start;
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
    gpi_tree_mark_slab(tree, start);
    return gpi_tree_put(tree, run, list, 0);
}

/* == CACHE ========================================================================================
   Keeps blocks that a stream has freed whole, for the stream's next request of the same size. A
   request that finds its block here needs neither the arena's lock nor the tree. uses: LEDGER, TREE

   Each stream has a cache. An entry of it stands for one block, in one of two states, or is empty:

       free    the stream has freed the block     bins[bin of its size] -> entry -> entry
       out     the block was handed out again     chains[hash of its unit] -> entry
       empty   the entry stands for no block      empty -> entry -> entry

   A block keeps its entry while it is out, so that gpupool_free finds it here. For the tree, the
   run of a block in either state is live: it is in the index, and in list CACHED. What happens here
   is noted in the cache, and added to the ledger later: see gpi_cache_fold.

   Where threads often wait for the arena's lock, their streams' caches become crowded. A crowded
   cache saves more visits to the tree: it has up to GPI_SLOTS_MOST entries, small blocks from the
   tree get an entry when they are handed out, and a request takes a block that is up to an eighth
   larger than it asked for.

   C1  the run of an entry is in list CACHED, and run.of.uses is the cache
   C2  an entry is in the one list that its state asks for, and in that once
   C3  free_units and free_blocks are those of the free entries; used counts the entries that are
       not empty
   C4  only a crowded cache has entries from the host; any other uses few_entries

   Locks: the stream's lock, which is this cache's `lock`, protects the cache. Where a block enters
   or leaves the cache and the tree's run changes, or the ledger does, the caller holds the arena's
   lock too: gpi_cache_admit, gpi_cache_drop and what calls it, gpi_cache_fold. `used` may be read
   without a lock (GPI_READ). No function waits or calls CUDA.

   Read first: gpi_cache, gpi_cache_take, gpi_cache_give, gpi_cache_admit, gpi_cache_evict. */

enum {
    GPI_CACHE_BINS = 128,              /* sizes whose bins in TREE differ by this share a bin */
    GPI_SLOTS = 64,                    /* entries of a cache that is not crowded */
    GPI_SLOTS_MOST = 4096,             /* and the most that a crowded one may have */
    GPI_NO_SLOT = UINT16_MAX,
    GPI_CACHE_UNITS = 65536 / GPUPOOL_UNIT_BYTES, /* a larger block joins no cache */
    GPI_SMALL_UNITS = 65536 / GPUPOOL_UNIT_BYTES, /* blocks from the tree up to this size get an
                                          entry in a crowded cache */
    GPI_CACHE_WAITS = 256              /* cache.waits that makes a cache crowded: each pause of a
                                          wait for the arena's lock adds 64, and each time that the
                                          lock is got at once takes 1 off */
};

struct gpi_cache_relies { /* what the code assumes: a negative width does not compile */
    unsigned an_entry_has_a_number : GPI_SLOTS_MOST < GPI_NO_SLOT ? 1 : -1;
    unsigned entries_are_a_power : (GPI_SLOTS & (GPI_SLOTS - 1)) == 0 ? 1 : -1;
};

typedef enum gpi_slot_state { GPI_SLOT_EMPTY, GPI_SLOT_FREE, GPI_SLOT_OUT } gpi_slot_state;

typedef struct gpi_slot {
    gpi_run *run;
    uint64_t unit, units;              /* copies of the run's: a look-up reads no run */
    uint32_t slack_bytes;              /* out: granted minus requested bytes */
    uint16_t next;                     /* number of the next entry in the same list */
    uint8_t state, bin;
} gpi_slot;

typedef struct gpi_cache {
    gpi_lock lock;
    gpi_slot *entries;
    uint16_t *chains;                  /* hash table of the entries that are out */
    uint32_t room;                     /* number of entries, and of chains; a power of two */
    uint16_t bins[GPI_CACHE_BINS], empty; /* numbers of the first entries */
    uint16_t evict_at, evict_bin;      /* where the next eviction begins to look */
    int crowded;
    uint32_t waits;                    /* waits for the arena's lock: see GPI_CACHE_WAITS. Changes
                                          under the arena's lock */
    uint32_t admitted, found;          /* in the present period of gpi_cache_is_open: blocks that
                                          have joined, and requests met */
    uint32_t rest;                     /* so many blocks are not admitted: few were found */
    uint32_t used;                     /* entries not empty; 0: calls need not lock the cache */
    uint32_t free_blocks;
    uint64_t free_units, folded_units; /* folded_units: free_units at the latest fold */
    uint64_t most_units;               /* that may be free here: see gpi_block_bound_cache */
    gpi_change requested, granted, blocks; /* since the latest fold */
    uint64_t allocs, frees;            /* since the latest fold */
#if GPUPOOL_SITES
    gpi_site *changed;                 /* sites with changes that are not folded in yet */
    gpi_site unknown;                  /* stands for a site that the host had no memory for */
#endif
    gpi_slot few_entries[GPI_SLOTS];   /* used while it is not crowded */
    uint16_t few_chains[GPI_SLOTS];
} gpi_cache;

/* The bin for blocks of this size. Bins of TREE whose numbers differ by 128 share one here; their
   sizes differ by a factor of 65,536, so one cache never has blocks of both. */
static unsigned gpi_cache_bin(uint64_t units) { return gpi_tree_bin(units) % GPI_CACHE_BINS; }

/* The head of the chain in which an entry for this unit is when its block is out. */
GPI_HOT uint16_t *gpi_cache_chain(const gpi_cache *cache, uint64_t unit) {
    return &cache->chains[(unit * 0x9e3779b97f4a7c15ull) >> 32 & (cache->room - 1)];
}

/* The head of the list that an entry belongs to by its state. */
GPI_HOT uint16_t *gpi_cache_list(gpi_cache *cache, const gpi_slot *entry) {
    if (entry->state == GPI_SLOT_FREE) return &cache->bins[entry->bin];
    if (entry->state == GPI_SLOT_OUT) return gpi_cache_chain(cache, entry->unit);
    return &cache->empty;
}

/* For the check of C2: how many entries all lists have together. Stops above `room`: then an entry
   is in two lists, or a list is a ring. */
static uint32_t gpi_cache_listed(const gpi_cache *cache) {
    uint32_t list, listed = 0;
    for (list = 0; list <= GPI_CACHE_BINS + cache->room; list++) {
        uint32_t at = list < GPI_CACHE_BINS                 ? cache->bins[list]
                      : list < GPI_CACHE_BINS + cache->room ? cache->chains[list - GPI_CACHE_BINS]
                                                            : cache->empty;
        for (; at < cache->room && listed <= cache->room; at = cache->entries[at].next) listed++;
    }
    return listed;
}

/* The number of the first invariant that does not hold, or 0. The locks of the stream and of the
   arena are held. */
static int gpi_cache_check(gpi_cache *cache) {
    uint64_t free_units = 0;
    uint32_t used = 0, free_blocks = 0, i, at;
    if (gpi_cache_listed(cache) != cache->room) return 2;
    for (i = 0; i < cache->room; i++) {
        const gpi_slot *entry = &cache->entries[i];
        /* the entry must be in the list of its state: a walk that reaches the end has not met it */
        for (at = *gpi_cache_list(cache, entry); at != i; at = cache->entries[at].next)
            if (at >= cache->room) return 2;
        if (entry->state == GPI_SLOT_EMPTY) continue;
        if (entry->run->list != GPI_LIST_CACHED || entry->run->of.uses != cache ||
            entry->run->unit != entry->unit ||
            entry->run->units != entry->units || entry->bin != gpi_cache_bin(entry->units))
            return 1;
        used++;
        if (entry->state != GPI_SLOT_FREE) continue;
        free_blocks++;
        free_units += entry->units;
    }
    if (used != cache->used || free_blocks != cache->free_blocks ||
        free_units != cache->free_units)
        return 3;
    return cache->crowded || cache->entries == cache->few_entries ? 0 : 4;
}

/* Starts with these arrays: all entries are empty, all lists but `empty` too. */
static void gpi_cache_lay_out(gpi_cache *cache, gpi_slot *entries, uint16_t *chains,
                              uint32_t room) {
    uint32_t i;
    cache->entries = entries;
    cache->chains = chains;
    cache->room = room;
    cache->empty = cache->evict_at = cache->evict_bin = 0;
    for (i = 0; i < GPI_CACHE_BINS; i++) cache->bins[i] = GPI_NO_SLOT;
    for (i = 0; i < room; i++) {
        chains[i] = GPI_NO_SLOT;
        entries[i].state = GPI_SLOT_EMPTY;
        entries[i].next = i + 1 < room ? (uint16_t)(i + 1) : (uint16_t)GPI_NO_SLOT;
    }
}

/* Opens a cache that is not crowded. No other thread has a pointer to the cache yet. */
static void gpi_cache_open(gpi_cache *cache) {
    memset(cache, 0, sizeof *cache);
    gpi_cache_lay_out(cache, cache->few_entries, cache->few_chains, GPI_SLOTS);
}

/* Frees what the cache has from the host, whatever its entries are. The arena is being
   destroyed. */
static void gpi_cache_close(gpi_cache *cache) {
    if (cache->entries != cache->few_entries) GPUPOOL_FREE(cache->entries);
}

/* Takes an entry out of its list, wherever it stands there. */
static void gpi_cache_unlink(gpi_cache *cache, gpi_slot *entry) {
    uint16_t *link = gpi_cache_list(cache, entry), at = (uint16_t)(entry - cache->entries);
    while (*link != at) link = &cache->entries[*link].next;
    *link = entry->next;
}

/* Gives an entry, which is in no list, a state, and puts it at the front of the list for it. */
GPI_HOT void gpi_cache_link(gpi_cache *cache, gpi_slot *entry, gpi_slot_state state) {
    uint16_t *list;
    entry->state = (uint8_t)state;
    list = gpi_cache_list(cache, entry);
    entry->next = *list;
    *list = (uint16_t)(entry - cache->entries);
}

/* Gives a crowded cache, all of whose entries are in use, four times as many. If the host has no
   memory the cache stays as it is, and the caller evicts a block instead. */
static void gpi_cache_widen(gpi_cache *cache) {
    uint32_t few = cache->room, room = few * 4, i;
    gpi_slot *old = cache->entries;
    gpi_slot *entries = (gpi_slot *)gpi_host_zeroed(room * (sizeof *entries + sizeof(uint16_t)));
    if (!entries) return;
    gpi_cache_lay_out(cache, entries, (uint16_t *)(void *)(entries + room), room);
    for (i = 0; i < few; i++) {
        gpi_slot *entry = &entries[cache->empty];
        cache->empty = entry->next;
        *entry = old[i];
        gpi_cache_link(cache, entry, (gpi_slot_state)old[i].state);
    }
    if (old != cache->few_entries) GPUPOOL_FREE(old);
}

/* The bytes that the cache has from the host, besides the struct itself. */
static uint64_t gpi_cache_host_bytes(const gpi_cache *cache) {
    if (cache->entries == cache->few_entries) return 0;
    return cache->room * (sizeof *cache->entries + sizeof *cache->chains);
}

/* Makes an empty cache an ordinary one: no longer crowded, with few_entries. */
static void gpi_cache_narrow(gpi_cache *cache) {
    gpi_slot *old = cache->entries;
    GPI_ASSERT(cache->used == 0);
    cache->crowded = 0;
    cache->waits = 0;
    if (old == cache->few_entries) return;
    gpi_cache_lay_out(cache, cache->few_entries, cache->few_chains, GPI_SLOTS);
    GPUPOOL_FREE(old);
}

#if GPUPOOL_SITES
/* Remembers that a site has changes in this cache, for the next gpi_cache_fold. */
static void gpi_cache_note_site(gpi_cache *cache, gpi_site *site) {
    if (site->is_changed) return;
    site->is_changed = 1;
    site->changed = cache->changed;
    cache->changed = site;
}

/* Records which source line asked for the block that gpi_cache_take has just handed out. */
static void gpi_cache_sign(gpi_cache *cache, gpi_slot *entry, gpi_site *site) {
    entry->run->site = site;
    gpi_cache_note_site(cache, site);
    gpi_ledger_note(&site->cached, entry->units * GPUPOOL_UNIT_BYTES - entry->slack_bytes);
    site->cached_blocks++;
    site->cached_allocs++;
}

/* Takes a block that comes back off the figures of the site that asked for it. */
static void gpi_cache_unsign(gpi_cache *cache, gpi_slot *entry) {
    gpi_site *site = entry->run->site;
    gpi_cache_note_site(cache, site);
    site->cached.now -= (int64_t)(entry->units * GPUPOOL_UNIT_BYTES - entry->slack_bytes);
    site->cached_blocks--;
}
#endif

/* The link to the first entry of a bin whose block has from `units` to `most` units; to
   GPI_NO_SLOT: there is none. The comparison is of unsigned differences, so blocks that are too
   small fail it too. */
GPI_HOT uint16_t *gpi_cache_fit(gpi_cache *cache, unsigned bin, uint64_t units, uint64_t most) {
    uint16_t *link = &cache->bins[bin];
    while (*link != GPI_NO_SLOT && cache->entries[*link].units - units > most - units)
        link = &cache->entries[*link].next;
    return link;
}

/* Hands out a free block of `units` units, or in a crowded cache up to an eighth more, for a
   request of so many bytes. NULL: there is none. The hot path of gpupool_alloc. */
GPI_HOT gpi_slot *gpi_cache_take(gpi_cache *cache, uint64_t units, uint64_t bytes) {
    uint64_t most = cache->crowded ? units + units / 8 : units;
    unsigned bin = gpi_cache_bin(units);
    uint16_t *link = gpi_cache_fit(cache, bin, units, most);
    gpi_slot *entry;
    /* larger blocks that will do may be in the bins that follow */
    while (*link == GPI_NO_SLOT && bin != gpi_cache_bin(most)) {
        bin = (bin + 1) % GPI_CACHE_BINS;
        link = gpi_cache_fit(cache, bin, units, most);
    }
    if (*link == GPI_NO_SLOT) return NULL;
    entry = &cache->entries[*link];
    *link = entry->next;
    gpi_cache_link(cache, entry, GPI_SLOT_OUT);
    entry->slack_bytes = (uint32_t)(entry->units * GPUPOOL_UNIT_BYTES - bytes);
    cache->free_units -= entry->units;
    cache->free_blocks--;
    cache->found++;
    gpi_ledger_note(&cache->granted, entry->units * GPUPOOL_UNIT_BYTES);
    cache->allocs++;
#if GPUPOOL_STATS
    gpi_ledger_note(&cache->requested, bytes);
    gpi_ledger_note(&cache->blocks, 1);
#endif
    return entry;
}

/* Takes back the block that starts at this unit. NULL: it is not out, so the caller asks the tree.
   The hot path of gpupool_free. */
GPI_HOT gpi_slot *gpi_cache_give(gpi_cache *cache, uint64_t unit) {
    uint16_t *link = gpi_cache_chain(cache, unit);
    gpi_slot *entry;
    while (*link != GPI_NO_SLOT && cache->entries[*link].unit != unit)
        link = &cache->entries[*link].next;
    if (*link == GPI_NO_SLOT) return NULL;
    entry = &cache->entries[*link];
    *link = entry->next;
    gpi_cache_link(cache, entry, GPI_SLOT_FREE);
    cache->free_units += entry->units;
    cache->free_blocks++;
    cache->granted.now -= (int64_t)(entry->units * GPUPOOL_UNIT_BYTES);
    cache->frees++;
#if GPUPOOL_STATS
    cache->requested.now -= (int64_t)(entry->units * GPUPOOL_UNIT_BYTES - entry->slack_bytes);
    cache->blocks.now--;
#endif
#if GPUPOOL_SITES
    gpi_cache_unsign(cache, entry);
#endif
    return entry;
}

/* Whether a block that was just freed should join the cache. Each period of 64 admitted blocks
   counts the requests that found theirs here. After fewer than 32 the sizes rarely come again, and
   the cache would only keep memory from merging: the next 1,024 blocks go to the tree. */
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

/* Gives a live block an entry: one that its stream has just freed (FREE), or that the tree has just
   handed out (OUT). An entry is empty, and the block has no uses and no tag. Both locks are
   held. */
static void gpi_cache_admit(gpi_cache *cache, gpi_run *run, gpi_slot_state state) {
    gpi_slot *entry = &cache->entries[cache->empty];
    GPI_ASSERT(GPI_READ(&cache->lock.held));
    GPI_ASSERT(cache->empty != GPI_NO_SLOT && run->list == GPI_LIST_LIVE && !run->of.uses);
    cache->empty = entry->next;
    entry->run = run;
    entry->unit = run->unit;
    entry->units = run->units;
    entry->bin = (uint8_t)gpi_cache_bin(run->units);
    entry->slack_bytes = run->as.slack; /* the tag above it is 0: no tagged block comes here */
    run->list = GPI_LIST_CACHED;
    run->of.uses = cache;
    gpi_cache_link(cache, entry, state);
    GPI_PUBLISH(&cache->used, cache->used + 1);
    if (state == GPI_SLOT_OUT) return;
    cache->free_blocks++;
    cache->free_units += entry->units;
}

/* Empties an entry. A block that is out becomes an ordinary live block; returns NULL. A free block
   is returned as a live run, for the caller to free in the tree. Both locks are held. */
static gpi_run *gpi_cache_drop(gpi_cache *cache, gpi_slot *entry) {
    int was_free = entry->state == GPI_SLOT_FREE;
    gpi_run *run = entry->run;
    run->list = GPI_LIST_LIVE;
    run->as.slack = was_free ? 0 : entry->slack_bytes;
    run->of.uses = NULL;
    gpi_cache_unlink(cache, entry);
    gpi_cache_link(cache, entry, GPI_SLOT_EMPTY);
    GPI_PUBLISH(&cache->used, cache->used - 1);
    if (!was_free) return NULL;
    cache->free_blocks--;
    cache->free_units -= entry->units;
    return run;
}

/* Empties the next entry in turn, to make room for another block; returns what gpi_cache_drop does.
   While more than a quarter of the entries are out, only those are dropped: many blocks that were
   handed out are never freed here. At least one entry is used. */
static gpi_run *gpi_cache_evict(gpi_cache *cache) {
    int out = cache->used - cache->free_blocks > cache->room / 4;
    gpi_slot *entry;
    do {
        entry = &cache->entries[cache->evict_at];
        cache->evict_at = (uint16_t)((cache->evict_at + 1u) % cache->room);
    } while (entry->state == GPI_SLOT_EMPTY || (out && entry->state == GPI_SLOT_FREE));
    return gpi_cache_drop(cache, entry);
}

/* Evicts a free block because memory is wanted elsewhere; there is one. The bins take turns, and a
   bin with several blocks comes first: a size that has one block left keeps it for longer. */
static gpi_run *gpi_cache_evict_free(gpi_cache *cache) {
    uint32_t looked = 0;
    uint16_t at;
    /* after as many non-empty bins as there are bins, a bin with one block will do */
    do {
        cache->evict_bin = (uint16_t)((cache->evict_bin + 1u) % GPI_CACHE_BINS);
        at = cache->bins[cache->evict_bin];
    } while (at == GPI_NO_SLOT ||
             (looked++ < GPI_CACHE_BINS && cache->entries[at].next == GPI_NO_SLOT));
    return gpi_cache_drop(cache, &cache->entries[at]);
}

typedef struct gpi_cached { /* sums over caches, for reports */
    uint64_t blocks, by_order[64]; /* blocks that are free in them */
} gpi_cached;

/* Adds the free blocks of a cache to the sums of a report. */
static void gpi_cache_count(const gpi_cache *cache, gpi_cached *cached) {
    uint32_t left = cache->free_blocks, i;
    for (i = 0; i < cache->room && left; i++) {
        if (cache->entries[i].state != GPI_SLOT_FREE) continue;
        cached->by_order[gpi_ground_high_bit(cache->entries[i].units)]++;
        cached->blocks++;
        left--;
    }
}

/* The entry of a block that is out and starts at this unit; NULL: this cache has none. */
static gpi_slot *gpi_cache_slot(const gpi_cache *cache, uint64_t unit) {
    uint32_t i = *gpi_cache_chain(cache, unit);
    while (i != GPI_NO_SLOT && cache->entries[i].unit != unit) i = cache->entries[i].next;
    return i == GPI_NO_SLOT ? NULL : &cache->entries[i];
}

/* Whether the block at this unit is out, of this cache. */
static int gpi_cache_is_out(const gpi_cache *cache, uint64_t unit) {
    return gpi_cache_slot(cache, unit) != NULL;
}

/* Makes a block that is out an ordinary live block: it will have uses, or goes to another stream.
   Does nothing for other blocks. Both locks are held. */
static void gpi_cache_release(gpi_cache *cache, uint64_t unit) {
    gpi_slot *entry = gpi_cache_slot(cache, unit);
    if (entry) gpi_cache_drop(cache, entry);
}

/* The bytes that were requested with the block that starts at this unit; 0 if it is free here, as
   free blocks are in no chain. */
static uint64_t gpi_cache_asked_at(const gpi_cache *cache, uint64_t unit) {
    const gpi_slot *entry = gpi_cache_slot(cache, unit);
    return entry ? entry->units * GPUPOOL_UNIT_BYTES - entry->slack_bytes : 0;
}

/* gpi_cache_asked_at for a unit anywhere in the block: looks through all entries, for reports of
   mistakes. */
static uint64_t gpi_cache_asked_around(const gpi_cache *cache, uint64_t unit) {
    uint64_t asked = gpi_cache_asked_at(cache, unit);
    uint32_t i;
    for (i = 0; i < cache->room && !asked; i++)
        if (cache->entries[i].state == GPI_SLOT_OUT &&
            unit - cache->entries[i].unit < cache->entries[i].units)
            asked = gpi_cache_asked_at(cache, cache->entries[i].unit);
    return asked;
}

/* Whether the ledger lacks something of this cache, so that a fold would change it. */
static int gpi_cache_has_news(const gpi_cache *cache) {
    return cache->free_units != cache->folded_units || cache->allocs + cache->frees != 0;
}

/* Adds what the cache has done since its latest fold to the ledger, and zeroes its notes. Both
   locks are held. Callers that change the ledger's counters for this stream fold first, so that
   peaks are those of the real order. */
static void gpi_cache_fold(gpi_cache *cache, gpi_ledger *ledger) {
    ledger->cached_bytes += (cache->free_units - cache->folded_units) * GPUPOOL_UNIT_BYTES;
    cache->folded_units = cache->free_units;
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

/* == CLOCK ========================================================================================
   Tells how far the GPU work of each stream has come, and so which streams may take which free
   memory. Finds the struct of a stream by its handle, and keeps the uses of blocks by several
   streams. uses: HOST, DRIVER, TREE, CACHE

   Every free, and every recorded use, gets a position: the arena's next number. The clock of a
   stream tells its progress in positions:

       positions      ... 11   12   13   14   15   16   17   18
                           ^              ^         ^         ^
                           passed         older     newer     issued
                                          mark      mark
       passed    work queued before frees up to here is known to have finished
       mark      an event, recorded after the frees up to here: when it passes, so do they
       issued    the latest position of this stream

   The stream itself takes its free memory at any position, since its later work runs afterwards
   anyway. Another stream takes what has passed. It takes what lies behind a mark once
   cuStreamWaitEvent has made it wait for the mark's event.

   A stream has two marks, so that one can be recorded while the other has not passed. The older one
   stays until it has passed: so others learn how far a stream has come that goes on freeing. The
   newer one may be recorded again, further on.

   Some clocks are advanced by no call of their own: those of destroyed streams, of threads that
   have ended, and of streams that nobody uses at present. The stream ALL stands for all streams:
   gpupool_cudaFree frees on it, its events are of the whole context (cuCtxRecordEvent), and a wait
   of the host for the device advances it. What has passed on ALL has passed on every stream, except
   on those of graphs: their memory passes after the graph's release.

   CUDA gives a new stream the handle of a destroyed one, even while the old one's work still runs.
   So when a stream is destroyed its struct loses the key, and the new stream gets a struct of its
   own: the macro cudaStreamDestroy and gpupool_retire_stream see to that. Where a program can use
   neither, GPUPOOL_STREAM_CHECK asks CUDA for the id of a stream, which is never used twice.

   K1  passed and the marks' positions are at most issued, and issued at most the arena's position
   K2  the free list of a stream is of that stream only; its runs are at positions from 1 to issued
   K3  refs counts the uses, idle stitches and runs that refer to a stream; its struct is not
       emptied before refs is 0
   K4  a stream is in the bucket of its handle, and no two streams have the same key
   K5  a stream with free memory, or with a mark that has not passed, is in the queue of busy ones

   Locks: a stream's lock is the lock of its cache, and is taken before the arena's. It protects the
   cache. The arena's lock protects all else here, and every caller holds it unless a comment says
   otherwise. Fields that are read without it are written by GPI_PUBLISH. No function of this
   section waits for the device; gpi_clock_identity and gpi_clock_is_same alone call CUDA.

   Read first: gpi_clock, gpi_stream, gpi_clock_done, gpi_clock_settle, gpi_clock_find,
   gpi_clock_use. */

enum {
    GPI_MARKS = 2,              /* of each stream */
    GPI_BUCKET_BITS = 12,
    GPI_BUCKETS = 1 << GPI_BUCKET_BITS, /* of the hash table of streams */
    GPI_KEY_LEGACY = 1,         /* the key of the legacy default stream */
    GPI_KEY_ANY = 5             /* and of the stream ALL */
};

typedef struct gpi_mark {
    CUevent event;          /* NULL: not made yet, or gone with its context */
    uint64_t at;            /* frees up to this position lie behind the event */
    int pins;               /* threads that ask for it or wait for it with the lock open: it is not
                               recorded again */
} gpi_mark;

typedef struct gpi_clock {
    uint64_t issued, passed;
    gpi_mark marks[GPI_MARKS];
    int is_recording;       /* a thread is recording a mark, with the lock open */
    int has_context;        /* the next two are set */
    CUcontext context;      /* of the events; NULL: the arena's */
    unsigned long long context_id; /* CUDA's: a later context may be at the same address */
} gpi_clock;

typedef struct gpi_stream {
    struct gpi_stream *next;  /* all structs; none is freed before the arena is */
    struct gpi_stream *chain; /* in the same bucket */
    struct gpi_stream *busy_next; /* in the queue of busy streams */
    int is_busy;              /* it is in that queue */
    int is_capturing;         /* it captured when CUDA was last asked, and has no scope */
    int is_kept;              /* not emptied: a scope has its key until the end of the capture */
    uintptr_t key;            /* calls with this key come here; 0: none do (any more) */
    uintptr_t handle;         /* the key that it has or had; 0: the struct is empty */
    uint64_t identity;        /* CUDA's id; 0: not asked for. GPI_PUBLISH, as for `capture` */
    struct gpupool_capture *capture; /* its memory is this graph's until the release; or NULL */
    gpi_cache cache;
    gpi_clock clock;
    uint32_t list;            /* the number of its free list */
    uint32_t frees;           /* since a mark was last recorded or tried: see gpi_block_is_due */
    uint32_t misses, skips;   /* see gpi_clock_record_in_passing */
    uint64_t freed_units;     /* by those frees */
    uint64_t moved;           /* free memory up to this position has been moved to list ANY */
    uint64_t refs;            /* what keeps the struct (K3), with calls under way */
    uint64_t visit;           /* clocks.visits when a stitch last waited for this stream */
    uint64_t seen, seen_in;   /* how far it had come in a look, and the number of that look */
} gpi_stream;

typedef struct gpi_use {      /* work of a stream up to a position uses a block */
    struct gpi_use *next;     /* of the same block */
    gpi_stream *stream;
    uint64_t at;
} gpi_use;

typedef struct gpi_clocks {
    const gpi_driver *driver;
    gpi_lock *lock;           /* the arena's */
    gpi_tree *tree;
    gpi_stream *streams;      /* all structs */
    gpi_stream *buckets[GPI_BUCKETS];
    gpi_stream *busy, *busy_last; /* the queue of busy streams */
    gpi_stream *all;          /* the stream ALL */
    gpi_mutex waits;          /* one thread at a time waits for the device */
    uint64_t stream_count;    /* structs that are not empty, without ALL */
    uint64_t thread_streams;  /* of these, threads' own default streams */
    uint64_t position;        /* the latest one */
    uint64_t advances;        /* how often a clock has passed something */
    uint64_t capturing;       /* streams with is_capturing */
    int has_captured;         /* a stream or a scope ever did: then requests record no mark on ALL
                                 (rule 3) */
    uint64_t uses;            /* gpi_use structs */
    uint64_t loose_uses;      /* of these, those that no block has yet */
    uint64_t visits;          /* stitches made of several streams' memory so far */
    uint64_t device_waits, host_waits; /* so far, for statistics */
    CUevent look_event;       /* over all streams; no mark, so that a look changes nothing */
    int is_all_seen;          /* the latest look has seen all streams finished with everything */
    uint64_t looks, seen;     /* looks so far; the position passed on all streams in the latest */
} gpi_clocks;

/* -- how far a stream has come -- */

/* The position up to which work of this stream is known to have finished: what passed on the stream
   itself or, except for a graph, on ALL. */
static uint64_t gpi_clock_done(const gpi_clocks *clocks, const gpi_stream *stream) {
    uint64_t passed = stream->clock.passed;
    return stream->capture ? passed : gpi_ground_max(passed, clocks->all->clock.passed);
}

/* Whether a run is free and all GPU work that used it is known to have finished. */
static int gpi_clock_is_finished(const gpi_clocks *clocks, const gpi_run *run) {
    const gpi_stream *owner;
    if (run->list < GPI_LIST_STREAMS || run->list >= GPI_LIST_WAITING)
        return gpi_tree_is_finished(run);
    owner = (const gpi_stream *)clocks->tree->lists[run->list]->owner;
    return run->of.at <= gpi_clock_done(clocks, owner);
}

/* gpi_clock_done with what the latest look has seen. A look (gpupool_would_fit, a report) asks CUDA
   how far streams have come, and leaves clocks and free lists as they are. */
static uint64_t gpi_clock_seen(const gpi_clocks *clocks, const gpi_stream *stream) {
    uint64_t at = gpi_clock_done(clocks, stream);
    if (stream->seen_in == clocks->looks) at = gpi_ground_max(at, stream->seen);
    return stream->capture ? at : gpi_ground_max(at, clocks->seen);
}

/* gpi_clock_is_finished by gpi_clock_seen. */
static int gpi_clock_is_seen_finished(const gpi_clocks *clocks, const gpi_run *run) {
    if (run->list < GPI_LIST_STREAMS || run->list >= GPI_LIST_WAITING)
        return gpi_tree_is_finished(run);
    return run->of.at <= gpi_clock_seen(clocks,
                                        (gpi_stream *)clocks->tree->lists[run->list]->owner);
}

/* The position up to which the stream's frees have finished or lie behind a mark: other streams can
   have that memory behind a wait on the device. */
static uint64_t gpi_clock_recorded(const gpi_clocks *clocks, const gpi_stream *stream) {
    uint64_t at = gpi_clock_done(clocks, stream);
    int i;
    for (i = 0; i < GPI_MARKS; i++) {
        at = gpi_ground_max(at, stream->clock.marks[i].at);
        if (!stream->capture) at = gpi_ground_max(at, clocks->all->clock.marks[i].at);
    }
    return at;
}

/* Whether the stream has frees that have neither finished nor a mark behind them. */
static int gpi_clock_lacks_mark(const gpi_clocks *clocks, const gpi_stream *stream) {
    uint64_t issued = stream == clocks->all ? clocks->position : stream->clock.issued;
    return issued > gpi_clock_recorded(clocks, stream);
}

/* The earliest mark of the stream itself that has not passed, and behind which a position lies;
   NULL: there is none. At position 0: the earliest that has not passed. */
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

/* A mark of the stream that may be recorded: it was never recorded, or has passed, and no thread
   has pinned it. NULL: both are in use. */
static gpi_mark *gpi_clock_spare_mark(const gpi_clocks *clocks, gpi_stream *stream) {
    uint64_t done = gpi_clock_done(clocks, stream);
    int i;
    for (i = 0; i < GPI_MARKS; i++)
        if (stream->clock.marks[i].at <= done && !stream->clock.marks[i].pins)
            return &stream->clock.marks[i];
    return NULL;
}

/* Whether polling the stream may lead to something: it has free memory, or a mark that has not
   passed. */
static int gpi_clock_is_busy(const gpi_clocks *clocks, gpi_stream *stream) {
    return stream->handle && (clocks->tree->lists[stream->list]->units ||
                              gpi_clock_mark(clocks, stream, 0) != NULL);
}

/* Puts a stream, which is not in the queue of busy streams, at its end. */
static void gpi_clock_queue_up(gpi_clocks *clocks, gpi_stream *stream) {
    stream->is_busy = 1;
    stream->busy_next = NULL;
    if (clocks->busy) clocks->busy_last->busy_next = stream;
    else clocks->busy = stream;
    clocks->busy_last = stream;
}

/* Makes sure that a stream is in the queue of busy streams (K5): called after it gets free memory
   or a mark. */
GPI_HOT void gpi_clock_queue(gpi_clocks *clocks, gpi_stream *stream) {
    if (!stream->is_busy) gpi_clock_queue_up(clocks, stream);
}

/* Fills `list` with up to `most` busy streams, and returns how many. The streams take turns: those
   returned go to the end of the queue. Streams that are busy no longer leave the queue here, except
   those without a key: the caller may forget them. */
static int gpi_clock_next_busy(gpi_clocks *clocks, gpi_stream **list, int most) {
    int count = 0;
    while (clocks->busy && count < most) {
        gpi_stream *stream = clocks->busy;
        if (count && stream == list[0]) break; /* once around the queue */
        clocks->busy = stream->busy_next;
        stream->is_busy = 0;
        if (!stream->handle || (stream->key && !gpi_clock_is_busy(clocks, stream))) continue;
        gpi_clock_queue(clocks, stream);
        list[count++] = stream;
    }
    return count;
}

/* Tells the free list of the stream at which positions its runs must stay apart: see
   gpi_tree_joins. Called whenever one of these positions changes. */
static void gpi_clock_set_borders(const gpi_clocks *clocks, const gpi_stream *stream) {
    uint64_t *borders = clocks->tree->lists[stream->list]->borders;
    borders[0] = gpi_clock_done(clocks, stream);
    borders[1] = stream->clock.marks[0].at;
    borders[2] = stream->clock.marks[1].at;
}

/* The work of the stream before frees up to this position has finished. */
static void gpi_clock_pass(gpi_clocks *clocks, gpi_stream *stream, uint64_t at) {
    if (at <= stream->clock.passed) return;
    stream->clock.passed = at;
    clocks->advances++;
    gpi_clock_set_borders(clocks, stream);
}

/* Moves the stream's finished free memory to list ANY, where any stream can take it. `moved` saves
   the walk through the list while the clock has not come further. */
static void gpi_clock_settle(gpi_clocks *clocks, gpi_stream *stream) {
    uint64_t done = gpi_clock_done(clocks, stream);
    if (!stream->handle || stream->moved >= done) return;
    stream->moved = done;
    gpi_clock_set_borders(clocks, stream);
    gpi_tree_finish(clocks->tree, stream->list, done);
}

/* The next position, for a free or a use of this stream. */
GPI_HOT uint64_t gpi_clock_issue(gpi_clocks *clocks, gpi_stream *stream) {
    return stream->clock.issued = ++clocks->position;
}

/* -- runs that a thread takes from a stream, and may put back -- */

/* The stream that a free run belongs to, with a reference that keeps its struct; NULL: the run is
   of list ANY. Called before the run is taken: if the taker fails, gpi_clock_return puts the run
   back. */
static gpi_stream *gpi_clock_borrow(const gpi_tree *tree, const gpi_run *run) {
    gpi_stream *owner = (gpi_stream *)tree->lists[run->list]->owner;
    if (owner) owner->refs++;
    return owner;
}

/* Puts a taken run back where it came from, and drops the reference: to list ANY if its owner is
   NULL or has come as far as `at` meanwhile, else to the owner's list at its old position. */
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

/* Whether this is a thread's own default stream (cudaStreamPerThread), which ends with the thread
   without a call of CUDA's. */
static int gpi_clock_is_of_thread(const gpi_stream *stream) { return (stream->handle & 3) == 3; }

/* -- keys and handles -- */

/* The bucket of a key or handle. */
static size_t gpi_clock_bucket(uintptr_t key) {
    uint64_t hash = (uint64_t)key * 0x9e3779b97f4a7c15ull;
    return (size_t)(hash >> (64 - GPI_BUCKET_BITS));
}

/* The key of a CUDA stream: what calls find its struct by. Handles are addresses and so even;
   default streams have odd keys. The legacy stream has one key. Each thread's own default stream
   has one too, made of the number of the calling thread, as threads' numbers are never used
   twice. */
static uintptr_t gpi_clock_key(cudaStream_t stream) {
    if (stream == cudaStreamPerThread) return (uintptr_t)gpi_host_thread_number() << 2 | 3;
    if (stream == NULL || stream == cudaStreamLegacy) return GPI_KEY_LEGACY;
    return (uintptr_t)stream;
}

/* CUDA's id of a stream (cuStreamGetId), which no other stream ever has. 0: a default stream, a
   stream that captures, or GPUPOOL_STREAM_CHECK is off. CUDA answers without a wait. */
static CUresult gpi_clock_identity(const gpi_driver *driver, cudaStream_t stream,
                                   uint64_t *identity) {
    *identity = 0;
    if (!GPUPOOL_STREAM_CHECK || stream == cudaStreamLegacy || stream == cudaStreamPerThread)
        return CUDA_SUCCESS;
    return gpi_driver_stream_id(driver, stream, identity);
}

/* The struct that calls with this key go to; NULL: there is none yet. Needs no lock: structs are
   never freed before the arena, and their links are published. Without the lock the answer may be
   out of date, so callers look at stream->key again once they hold one. */
GPI_HOT gpi_stream *gpi_clock_find(gpi_clocks *clocks, uintptr_t key) {
    gpi_stream *stream = GPI_READ(&clocks->buckets[gpi_clock_bucket(key)]);
    while (stream && GPI_READ(&stream->key) != key) stream = GPI_READ(&stream->chain);
    return stream;
}

/* gpi_clock_find with the stream's lock held on return. */
static gpi_stream *gpi_clock_enter(gpi_clocks *clocks, uintptr_t key) {
    gpi_stream *stream;
    while ((stream = gpi_clock_find(clocks, key)) != NULL) {
        gpi_host_lock(&stream->cache.lock);
        if (GPI_READ(&stream->key) == key) return stream;
        gpi_host_unlock(&stream->cache.lock); /* the key went to another struct meanwhile */
    }
    return NULL;
}

/* GPUPOOL_STREAM_CHECK: whether the stream of this call is the one that the struct was made for,
   and not a later stream with the same handle. 0 also when CUDA cannot tell. The caller may hold no
   lock: then it looks at the struct's key again afterwards. */
static int gpi_clock_is_same(const gpi_clocks *clocks, const gpi_stream *owner,
                             cudaStream_t stream) {
    uint64_t identity;
    if (!GPUPOOL_STREAM_CHECK || GPI_READ(&owner->capture)) return 1;
    if (gpi_clock_identity(clocks->driver, stream, &identity) != CUDA_SUCCESS) return 0;
    return identity == 0 || identity == GPI_READ(&owner->identity);
}

/* A struct for a key that has none: an empty one of the same bucket, or a new one, which stays in
   that bucket for good. NULL: the host has no memory. */
static gpi_stream *gpi_clock_get_struct(gpi_clocks *clocks, uintptr_t key) {
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

/* Makes a struct with a free list for a stream. No call finds it before gpi_clock_name. The arena's
   lock is held. NULL: the host has no memory. */
static gpi_stream *gpi_clock_know(gpi_clocks *clocks, uintptr_t key, uint64_t identity) {
    gpi_stream *stream = gpi_clock_get_struct(clocks, key);
    uint32_t list = stream ? gpi_tree_list_add(clocks->tree) : (uint32_t)GPI_LIST_LIVE;
    if (list == GPI_LIST_LIVE) return NULL;
    clocks->tree->lists[list]->owner = stream;
    stream->list = list;
    stream->handle = key;
    stream->frees = stream->misses = stream->skips = 0;
    stream->freed_units = stream->moved = 0;
    stream->clock.has_context = 0;
    GPI_PUBLISH(&stream->identity, identity);
    GPI_PUBLISH(&stream->capture, NULL);
    /* the stream that had the struct before has ended, with all its marks passed: this one starts
       at or after their positions */
    if (clocks->all) stream->clock.passed = gpi_clock_recorded(clocks, stream);
    stream->clock.issued = gpi_ground_max(stream->clock.issued, stream->clock.passed);
    clocks->stream_count++;
    clocks->thread_streams += (uint64_t)gpi_clock_is_of_thread(stream);
    return stream;
}

/* Calls with the handle of this stream come to this struct from now on. Before, no struct had the
   key. */
static void gpi_clock_name(gpi_clocks *clocks, gpi_stream *stream) {
    gpi_stream **bucket = &clocks->buckets[gpi_clock_bucket(stream->handle)];
    gpi_stream **link = bucket;
    while (*link != stream) link = &(*link)->chain;
    if (link != bucket) {
        /* To the front of its bucket, for a stream has as many structs as graphs. A look-up without
           the lock that runs meanwhile may pass some structs twice, or miss this one: then it is
           repeated under the lock. */
        GPI_PUBLISH(link, stream->chain);
        GPI_PUBLISH(&stream->chain, *bucket);
        GPI_PUBLISH(bucket, stream);
    }
    stream->is_kept = 0;
    GPI_PUBLISH(&stream->key, stream->handle);
}

/* Notes whether the stream captures, as CUDA has just answered, and counts such streams. While one
   captures, no event is recorded over all streams. */
static void gpi_clock_set_capturing(gpi_clocks *clocks, gpi_stream *stream, int is_capturing) {
    if (stream->capture) is_capturing = 0; /* gpi_process.scopes counts its scope */
    clocks->capturing += (uint64_t)is_capturing - (uint64_t)stream->is_capturing;
    clocks->has_captured |= is_capturing;
    stream->is_capturing = is_capturing;
}

/* Calls with the key no longer come to this struct: the stream was destroyed, or a capture scope
   has the key from now on. Its free memory stays in its list until ALL, or its own marks, pass. */
static void gpi_clock_unname(gpi_clocks *clocks, gpi_stream *stream) {
    GPI_PUBLISH(&stream->key, 0);
    gpi_clock_set_capturing(clocks, stream, 0);
}

/* Whether nothing is left of a stream: no memory, no cached block, no mark under way, no
   reference. */
static int gpi_clock_is_empty(const gpi_clocks *clocks, gpi_stream *stream) {
    if (stream->handle == 0 || stream == clocks->all || stream->cache.used) return 0;
    if (stream->capture || stream->is_kept || stream->refs || stream->is_capturing) return 0;
    return !stream->clock.is_recording && !gpi_clock_is_busy(clocks, stream);
}

/* Empties the struct of a stream of which nothing is left; the next call with the handle makes one
   anew. The arena's lock is held. The stream's lock comes before it in the order, so it is only
   tried: if it is taken, a call of the stream is under way, and the struct stays. */
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

enum { GPI_THREADS_KEPT = 64 }; /* streams: above this, those of threads may be forgotten */

/* gpi_clock_forget for streams that nobody calls with any more: those without a key and, where
   there are many streams, those of threads, which may have ended without a call. */
static void gpi_clock_forget_gone(gpi_clocks *clocks, gpi_stream *stream) {
    if (!stream->key ||
        (gpi_clock_is_of_thread(stream) && clocks->stream_count > GPI_THREADS_KEPT))
        gpi_clock_forget(clocks, stream);
}

/* -- uses: which streams, besides the one that frees it, a block has to wait for -- */

/* A use by work of this stream up to a position; it keeps the struct of the stream. NULL: the host
   has no memory. */
static gpi_use *gpi_clock_new_use(gpi_clocks *clocks, gpi_stream *stream, uint64_t at) {
    gpi_use *use = (gpi_use *)gpi_host_zeroed(sizeof *use);
    if (!use) return NULL;
    use->stream = stream;
    use->at = at;
    stream->refs++;
    clocks->uses++;
    return use;
}

/* Frees a use that is in no list. */
static void gpi_clock_free_use(gpi_clocks *clocks, gpi_use *use) {
    use->stream->refs--;
    clocks->uses--;
    GPUPOOL_FREE(use);
}

enum { GPI_NEVER = 1 }; /* UINT64_MAX less this: see gpi_clock_never */

/* The position of a use that no clock passes: a sleeping arena gives it to all its live blocks.
   (UINT64_MAX is the position of a use by a graph, until the release gives it a real one.) */
static uint64_t gpi_clock_never(void) { return UINT64_MAX - GPI_NEVER; }

/* The link to the use of the sleeping arena in the list of a live block; to NULL: it has none. */
static gpi_use **gpi_clock_sleeper(gpi_run *run) {
    gpi_use **link = (gpi_use **)(void *)&run->of.uses;
    while (*link && (*link)->at != gpi_clock_never()) link = &(*link)->next;
    return link;
}

/* Work of this stream up to this position uses the block too. The stream's earlier use is moved
   further, so a block has one use for each stream; that of the sleeping arena stands apart. 0: the
   host has no memory. */
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

/* Drops the uses of a block that have passed. Returns whether none is left, so that the block can
   become free. */
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

/* Drops all uses of a block. */
static void gpi_clock_drop_uses(gpi_clocks *clocks, gpi_run *run) {
    while (run->of.uses) {
        gpi_use *use = (gpi_use *)run->of.uses;
        run->of.uses = use->next;
        gpi_clock_free_use(clocks, use);
    }
}

/* The use by which a graph keeps a block until its release, freed or not; NULL: no graph does. */
static gpi_use *gpi_clock_keeping(const gpi_run *run) {
    gpi_use *use = run->list == GPI_LIST_CACHED ? NULL : (gpi_use *)run->of.uses;
    while (use && !use->stream->capture) use = use->next;
    return use;
}

/* -- opening and closing; EVENT destroys the events -- */

/* Opens zeroed clocks, whose driver, lock and tree are set: makes the stream ALL. 0: the host has
   no memory. */
static int gpi_clock_open(gpi_clocks *clocks) {
    clocks->all = gpi_clock_know(clocks, GPI_KEY_ANY, 0);
    if (!clocks->all) return 0;
    clocks->stream_count--;
    gpi_clock_name(clocks, clocks->all);
    return 1;
}

/* The bytes of host memory that streams, caches and uses have. The arena's lock is held. */
static uint64_t gpi_clock_host_bytes(const gpi_clocks *clocks) {
    uint64_t bytes = clocks->uses * sizeof(gpi_use);
    const gpi_stream *stream = clocks->streams;
    for (; stream; stream = stream->next)
        bytes += sizeof *stream + gpi_cache_host_bytes(&stream->cache);
    return bytes;
}

/* Frees the structs of all streams. Their events were destroyed before, or are gone with their
   context. */
static void gpi_clock_clear(gpi_clocks *clocks) {
    gpi_stream *stream, *next;
    for (stream = clocks->streams; stream; stream = next) {
        next = stream->next;
        gpi_cache_close(&stream->cache);
        GPUPOOL_FREE(stream);
    }
}

/* == EVENT ========================================================================================
   Records the marks of streams, asks whether they have passed, and makes streams or the host wait
   for them. Nearly all CUDA calls about streams and events are made here. uses: DRIVER, CLOCK

   What a free does, and what another stream's request does later:

       gpupool_free(A)    issued = 17;  now and then: record a mark (event) on A
       poll               cuEventQuery(mark): passed? then passed = 17, the memory moves to list ANY
       request of B       takes memory at 17, if it has passed; or, if the mark is recorded,
                          cuStreamWaitEvent(B, mark), and takes it at once
       no memory at all   cuEventSynchronize(mark) by the host, with no lock held

   E1  CUDA is called with no lock but `growing` held: a function that is entered with the arena's
       lock held opens it around the call. Other threads may change the arena meanwhile, except for
       marks that are pinned, runs that are taken, and structs of streams that have references
   E2  an event is recorded on a stream only by a call that was given the stream, by its own thread:
       a handle that was kept may be destroyed, mean another thread's stream, or capture by now
   E3  a mark is recorded by one thread at a time, and not while it is pinned
   E4  nothing is recorded on a stream that captures, and no graph waits for an event of ours
   E5  an event is used only while its context exists: a reset ends both

   Read first: gpi_clock_poll, gpi_clock_put_mark, gpi_clock_record, gpi_clock_record_in_passing,
   gpi_clock_follow, gpi_clock_wait. */

/* -- events and their contexts: no lock is held -- */

/* Whether the context that the stream's events belong to is gone. Its work and its events went with
   it, and the events must not be touched. An error: CUDA does not tell. */
static gpupool_result gpi_clock_has_ended(const gpi_clocks *clocks, const gpi_stream *stream,
                                          int *ended) {
    const gpi_clock *clock = &stream->clock;
    if (!clock->context) return gpi_driver_was_reset(clocks->driver, ended);
    return gpi_driver_has_ended(clocks->driver, clock->context, clock->context_id, ended);
}

/* Whether the work before a mark has ended because the context of a peer device is gone. E_CUDA:
   the arena's own device was reset, and none of its memory can be used any more. */
static gpupool_result gpi_clock_mark_has_ended(const gpi_clocks *clocks, const gpi_stream *stream,
                                               const gpi_mark *mark, int *ended) {
    gpupool_result result;
    *ended = mark->event == NULL; /* gpi_clock_know_context has found the context gone */
    if (*ended) return GPUPOOL_OK;
    result = gpi_clock_has_ended(clocks, stream, ended);
    return result == GPUPOOL_OK && *ended && !stream->clock.context ? GPUPOOL_E_CUDA : result;
}

/* Destroys the events of a stream; if their context is gone they are only forgotten. After an error
   some may be left. */
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

/* Finds the context of a stream, which its events must belong to; NULL stands for the arena's own.
   CUDA is asked once, and again if the context is a peer device's and was reset. Events of another
   context are destroyed. `handle` is the stream's, from the call under way. */
static gpupool_result gpi_clock_know_context(const gpi_clocks *clocks, gpi_stream *stream,
                                             cudaStream_t handle) {
    gpi_clock *clock = &stream->clock;
    CUcontext context = NULL;
    unsigned long long id = 0;
    gpupool_result result = GPUPOOL_OK;
    int ended = 0;
    if (clock->has_context && clock->context)
        result = gpi_clock_has_ended(clocks, stream, &ended);
    if (result != GPUPOOL_OK || (clock->has_context && !ended)) return result;
    if (stream != clocks->all)
        result = gpi_driver_told(clocks->driver, "cuStreamGetCtx",
                                 gpi_driver_ask_foreign(clocks->driver, handle, &context));
    if (result == GPUPOOL_OK && context) result = gpi_driver_ask_id(clocks->driver, context, &id);
    if (result == GPUPOOL_OK && (context != clock->context || id != clock->context_id))
        result = gpi_clock_drop_events(clocks, stream);
    if (result != GPUPOOL_OK) return result;
    clock->context = context;
    clock->context_id = id;
    clock->has_context = 1;
    return GPUPOOL_OK;
}

/* Records an event over all streams of the arena's context, including destroyed ones whose work
   still runs. While any stream captures, CUDA would refuse, and the capture would be lost: so this
   returns E_CAPTURING if a scope is open or the legacy stream tells of a capture on a blocking
   stream, a question that does no harm. A capture on a non-blocking stream without a scope cannot
   be seen (CUDA 13.0): see rule 3. */
static gpupool_result gpi_clock_record_context(const gpi_clocks *clocks, CUevent event) {
    const gpi_driver *driver = clocks->driver;
    gpupool_result result = GPUPOOL_OK;
    gpi_host_lock(&gpi_process.lock); /* so that no scope is opened meanwhile */
    if (gpi_process.scopes || gpi_driver_is_capturing(driver, cudaStreamLegacy))
        result = GPUPOOL_E_CAPTURING;
    if (result == GPUPOOL_OK) result = gpi_driver_record_all(driver, event);
    gpi_host_unlock(&gpi_process.lock);
    return result;
}

/* The context that must be current while this event is recorded; NULL: any will do. A new event is
   made in the current context, and a default stream is that of the current context. */
static CUcontext gpi_clock_context(const gpi_clocks *clocks, const gpi_stream *stream,
                                   cudaStream_t handle, CUevent event) {
    if (event && !gpi_driver_is_default(handle)) return NULL;
    return stream->clock.context ? stream->clock.context : clocks->driver->context;
}

/* Makes the event if there is none, and records it on the stream, or for ALL over all streams. The
   context of gpi_clock_context is current. */
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

/* Records an event for the stream of the call under way, whose handle this is. E_CAPTURING: the
   stream captures, and the event would become part of the graph. No lock is held. */
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

/* Whether a mark's event has passed; 0 also if CUDA does not tell. The mark is pinned, and no lock
   is held. */
static int gpi_clock_ask(const gpi_clocks *clocks, const gpi_stream *stream, const gpi_mark *mark) {
    int passed = 0;
    if (gpi_clock_mark_has_ended(clocks, stream, mark, &passed) != GPUPOOL_OK) return 0;
    if (passed) return 1;
    return gpi_driver_event_query(clocks->driver, mark->event, &passed) == GPUPOOL_OK && passed;
}

/* Asks CUDA whether the marks of a stream have passed, the older one first, and advances the clock.
   Returns whether one had passed. The arena's lock is held, and opened around each question. */
static int gpi_clock_poll(gpi_clocks *clocks, gpi_stream *stream) {
    gpi_mark *mark;
    int any = 0, passed = 1;
    while (passed && (mark = gpi_clock_mark(clocks, stream, 0)) != NULL) {
        uint64_t at = mark->at;
        mark->pins++; /* nobody records it again while the lock is open */
        gpi_host_unlock(clocks->lock);
        passed = gpi_clock_ask(clocks, stream, mark);
        gpi_host_lock(clocks->lock);
        mark->pins--;
        if (passed) gpi_clock_pass(clocks, stream, at);
        any |= passed;
    }
    return any;
}

/* Records a mark behind all that the stream has freed so far. `handle` is the stream's, from the
   call under way; for ALL it is not used. The arena's lock is held, and opened around the CUDA
   call; is_recording keeps other threads from recording on this stream meanwhile. */
static gpupool_result gpi_clock_put_mark(gpi_clocks *clocks, gpi_stream *stream, gpi_mark *mark,
                                         cudaStream_t handle) {
    /* frees that come while the lock is open are not counted as lying behind the mark */
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

/* Whether CUDA can record an event over all streams: since CUDA 12.5, for one device only, and not
   while a stream captures, or did when CUDA was last asked. */
static int gpi_clock_can_record_all(const gpi_clocks *clocks) {
    const gpi_driver *driver = clocks->driver;
    return driver->record_all && driver->context && !driver->peer_count && !clocks->capturing;
}

/* *can: whether the stream has frees that lack a mark, and no thread is recording one. A graph's
   memory gets no marks. E_UNSUPPORTED: the stream is ALL, and CUDA cannot record over all
   streams. */
static gpupool_result gpi_clock_can_record(const gpi_clocks *clocks, const gpi_stream *stream,
                                           int *can) {
    *can = 0;
    if (stream == clocks->all && !gpi_clock_can_record_all(clocks)) return GPUPOOL_E_UNSUPPORTED;
    *can = !stream->clock.is_recording && !stream->capture && gpi_clock_lacks_mark(clocks, stream);
    return GPUPOOL_OK;
}

/* Records a mark behind what the stream has freed, if one is lacking: a spare mark, or else the
   newer one again, whose position moves further. That makes threads which will wait for it wait for
   more work, so it is not done while a thread waits for it already (pins). Used where memory is
   short; the arena's lock as in gpi_clock_put_mark. */
static gpupool_result gpi_clock_record(gpi_clocks *clocks, gpi_stream *stream,
                                       cudaStream_t handle) {
    gpi_mark *mark, *marks = stream->clock.marks;
    int can;
    gpupool_result result = gpi_clock_can_record(clocks, stream, &can);
    if (!can) return result;
    mark = gpi_clock_spare_mark(clocks, stream);
    if (!mark) mark = &marks[marks[1].at > marks[0].at];
    return mark->pins ? GPUPOOL_OK : gpi_clock_put_mark(clocks, stream, mark, handle);
}

enum { GPI_MISSES_MOST = 6 };

/* gpi_clock_record for a free while memory is plentiful: records only a spare mark. While the
   device is far behind there is none, and asking CUDA at each such free would cost more than the
   free itself. So after each question in vain twice as many frees pass without one, up to 63. */
static void gpi_clock_record_in_passing(gpi_clocks *clocks, gpi_stream *stream,
                                        cudaStream_t handle) {
    gpi_mark *spare = gpi_clock_spare_mark(clocks, stream);
    int can;
    if (stream->skips && !spare) {
        stream->skips--;
        return;
    }
    /* a mark may have passed without anybody having asked */
    if (!spare && gpi_clock_poll(clocks, stream)) spare = gpi_clock_spare_mark(clocks, stream);
    gpi_clock_can_record(clocks, stream, &can);
    if (spare && can) gpi_clock_put_mark(clocks, stream, spare, handle);
    if (gpi_clock_spare_mark(clocks, stream) || !gpi_clock_lacks_mark(clocks, stream))
        stream->misses = 0;
    else if (stream->misses < GPI_MISSES_MOST) stream->misses++;
    stream->skips = ((uint32_t)1 << stream->misses) - 1;
}

/* Records a mark of ALL: behind all that any stream has freed so far. */
static gpupool_result gpi_clock_record_all(gpi_clocks *clocks) {
    return gpi_clock_record(clocks, clocks->all, cudaStreamLegacy);
}

/* Whether the stream of the call under way captures. No lock is held. The arena's context is made
   current for default streams only. */
static int gpi_clock_is_capturing(const gpi_clocks *clocks, cudaStream_t handle) {
    const gpi_driver *driver = clocks->driver;
    CUcontext context = gpi_driver_is_default(handle) ? driver->context : NULL;
    int captures;
    if (gpi_driver_push(driver, context) != GPUPOOL_OK) return 0;
    captures = gpi_driver_is_capturing(driver, handle);
    gpi_driver_pop(driver, context);
    return captures;
}

/* Makes a stream wait, on the device, for an event (cuStreamWaitEvent). E_CAPTURING: the stream
   captures, and its graph may not wait for work outside. No lock is held. */
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

/* Begins a look: what earlier looks have seen counts no longer. */
static void gpi_clock_start_look(gpi_clocks *clocks) {
    clocks->looks++;
    clocks->seen = 0;
    clocks->is_all_seen = 0;
}

/* Asks CUDA how far a stream has come and notes the answer in stream->seen, for a caller that only
   looks. The arena's lock is held, and opened around each question; if another look has begun
   meanwhile, the answer is dropped. */
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

/* Asks CUDA whether all streams have finished all work before everything freed so far, caches
   included, by an event that is no mark. Only the holder of `growing` calls this, as there is one
   such event. The arena's lock is held, and opened meanwhile. */
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

/* Makes the stream of the call under way (`handle`) wait, on the device, for another stream's work
   up to a position: for the mark that the position lies behind, of that stream or of ALL, which
   exists. The arena's lock is held, and opened around the CUDA call. */
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
    /* a pinned mark is not recorded again, so the wait is for no more than it has to be */
    mark->pins++;
    gpi_host_unlock(clocks->lock);
    result = gpi_clock_mark_has_ended(clocks, owner, mark, &ended);
    if (result == GPUPOOL_OK && !ended) result = gpi_clock_stream_wait(clocks, handle, mark->event);
    gpi_host_lock(clocks->lock);
    mark->pins--;
    clocks->device_waits += result == GPUPOOL_OK && !ended;
    return result;
}

/* Makes the host wait for a mark that the caller has pinned when it was at position `at`, and drops
   the pin. A recording that was under way at that time may have moved the mark further, so only
   `at` is known to have passed. No lock is held. */
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

/* Makes the host wait for the device: all work before what was freed so far, on any stream, passes.
   No lock is held. */
static gpupool_result gpi_clock_wait_device(gpi_clocks *clocks, gpi_driver *driver) {
    gpupool_result result;
    uint64_t at;
    gpi_host_lock(clocks->lock);
    /* before the wait: what is freed during the wait is not known to have finished */
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

/* -- closing -- */

/* Destroys the event of gpi_clock_look_at_all. */
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

/* Destroys all events. After an error those that the driver refused are left, for another call. No
   lock is held: the arena is being destroyed. */
static gpupool_result gpi_clock_close(gpi_clocks *clocks) {
    gpi_stream *stream = clocks->streams;
    gpupool_result result = gpi_clock_drop_look_event(clocks);
    for (; stream && result == GPUPOOL_OK; stream = stream->next)
        result = gpi_clock_drop_events(clocks, stream);
    return result;
}

/* == CHECK ========================================================================================
   Walks the tree and the clocks and compares them with their invariants. gpupool_check calls this,
   and with GPUPOOL_CHECK 2 every call of the arena does. uses: TREE, CLOCK

   Each function returns the number of an invariant that does not hold, or 0 if all do: 2 from
   gpi_check_tree stands for T2, from gpi_check_clocks for K2. Other sections check their own
   invariants; gpi_arena_check in ARENA calls all of them and names the section's letter. Two checks
   are made from both sides: a list has no wrong run (gpi_check_list), and no run is missing in the
   lists (gpi_check_chunk counts the runs of all chunks, gpi_check_tally those in lists and index).

   Locks: those of the arena and of all streams are held, so nothing changes meanwhile. A check
   changes nothing itself, and takes some 50 ns for each block. */

/* -- the tree -- */

/* One free run of list `number`, which `before` precedes in its bin: T1, T2, T3 and T7. */
static int gpi_check_run(const gpi_tree *tree, const gpi_run *run, const gpi_run *before,
                         uint32_t number) {
    int is_slab = gpi_tree_is_slab(tree, run->unit);
    uint64_t granule = (uint64_t)1 << tree->granule_shift, unit = run->unit;
    if (run->list != number || run->by.list_prev != before) return 2;
    if (!gpi_tree_is_met(run)) return 1;
    /* T7: all granules that the run touches are slabs, or none is */
    for (; tree->slab_count && unit < run->unit + run->units;
         unit = gpi_ground_down(unit, granule) + granule)
        if (gpi_tree_is_slab(tree, unit) != is_slab) return 7;
    if (run->next && run->next->list == number && run->next->of.at == run->of.at &&
        gpi_tree_is_slab(tree, run->next->unit) == is_slab) /* T3, of each pair once */
        return 3;
    return 0;
}

/* All runs of one bin. Adds their units to *units, and their number to counts[order]. */
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

/* One free list: its bitmaps, its bins, and the sum of its units. Adds the number of runs of each
   order to `counts`. */
static int gpi_check_list(const gpi_tree *tree, uint32_t number, uint64_t *counts) {
    static const gpi_run *const none[GPI_STEPS] = {NULL};
    const gpi_list *list = tree->lists[number];
    uint64_t units = 0;
    uint32_t row, step;
    for (row = 0; row < GPI_KINDS * 64; row++) {
        gpi_run *const *heads = &list->heads[row * GPI_STEPS];
        /* the two levels of the bitmap agree: an order has its bit if and only if a step of it
           has */
        if ((list->steps[row] != 0) != (int)(list->orders[row / 64] >> row % 64 & 1)) return 2;
        if (!list->steps[row] && !memcmp(heads, none, sizeof none)) continue; /* the usual case */
        for (step = 0; step < GPI_STEPS; step++) {
            int broken;
            if ((heads[step] != NULL) != (list->steps[row] >> step & 1)) return 2;
            broken = gpi_check_bin(tree, number, row * GPI_STEPS + step, &units, counts);
            if (broken) return broken;
        }
    }
    return units == list->units ? 0 : 2;
}

typedef struct gpi_tally { uint64_t free_runs, live_runs; } gpi_tally; /* runs of all chunks */

/* Walks the runs of [unit, unit + units), of which `run` is the first, from left to right: T1, T5.
   Adds to the tally what must be in lists and in the index. */
static int gpi_check_chunk(const gpi_run *run, uint64_t unit, uint64_t units,
                           gpi_tally *tally) {
    uint64_t end = unit + units;
    if (run->prev || run->unit != unit) return 5;
    for (; run; run = run->next) {
        if (run->unit != unit || (run->next && run->next->prev != run)) return 1;
        /* runs that are waiting, part of a stitched block, or taken are in no list and not in the
           index */
        if (run->list >= GPI_LIST_CACHED) tally->live_runs++;
        else if (run->list < GPI_LIST_WAITING) tally->free_runs++;
        unit += run->units;
    }
    return unit == end ? 0 : 1;
}

/* The table of a MAPPED arena against the runs of its addresses, of which `run` is the first: T6,
   and for slabs the number of their bits. */
static int gpi_check_table(const gpi_tree *tree, const gpi_run *run) {
    uint64_t granule, words = tree->granules / 64 + 1, bits = 0, word, slabs = tree->slab_count;
    for (; run; run = run->next) {
        /* the run starts in another granule than the run before it, so the cell has to have it */
        int is_first = !run->prev || (run->prev->unit - tree->base_unit) >> tree->granule_shift !=
                                         (run->unit - tree->base_unit) >> tree->granule_shift;
        granule = (run->unit - tree->base_unit) >> tree->granule_shift;
        if (!(tree->starts[granule / 64] >> granule % 64 & 1)) return 6;
        if ((gpi_tree_cell(tree, run->unit)->first == run) != is_first) return 6;
        bits += (uint64_t)is_first;
    }
    for (word = 0; word < words; word++) {
        /* no bit is set beyond those of the runs met */
        bits -= gpi_ground_bits(tree->starts[word]);
        slabs -= gpi_ground_bits(tree->slabs[word]);
    }
    return bits ? 6 : slabs ? 7 : 0;
}

/* Whether the lists and the index hold as many runs as the chunks do: if not, a run is in
   neither. */
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

/* All free lists and the index, with the sums that the tree keeps: T1 to T4, and T7. */
static int gpi_check_tree(const gpi_tree *tree) {
    uint64_t pending = 0, bucket, runs = 0, units = 0, orders[GPUPOOL_ORDERS];
    uint64_t addresses[64], free[64];
    uint32_t number;
    int broken;
    memset(orders, 0, sizeof orders);
    memset(addresses, 0, sizeof addresses);
    memset(free, 0, sizeof free);
    for (number = 0; number < tree->list_count; number++) {
        /* free_by_order counts runs of memory only; those of addresses are counted aside */
        int is_memory = number != GPI_LIST_EMPTY && number != GPI_LIST_SPACE;
        if (!tree->lists[number]) continue;
        broken = gpi_check_list(tree, number, is_memory ? free : addresses);
        if (broken) return broken;
        if (number >= GPI_LIST_STREAMS) pending += tree->lists[number]->units;
    }
    if (pending != tree->pending_units) return 2;
    if (memcmp(free, tree->free_by_order, sizeof tree->free_by_order)) return 2;
    /* T4: each run of the index is live, and in the bucket of its unit */
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

/* K4: whether the stream is in the bucket of its handle, and no other has its key. */
static int gpi_check_is_filed(const gpi_clocks *clocks, const gpi_stream *stream) {
    const gpi_stream *other = clocks->buckets[gpi_clock_bucket(stream->handle)];
    int found = 0;
    for (; other; other = other->chain) {
        found |= other == stream;
        if (other != stream && stream->key && other->key == stream->key) return 0;
    }
    return found;
}

/* K2: the free list of a stream. Walks all its runs. */
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

/* K1, K2, K4 and K5 of one stream. Frees on ALL take the positions of all streams, so its clock is
   compared with the latest of all. */
static int gpi_check_stream(const gpi_clocks *clocks, gpi_stream *stream) {
    const gpi_clock *clock = &stream->clock;
    uint64_t issued = stream == clocks->all ? clocks->position : clock->issued;
    int i;
    if (clock->passed > issued || clock->issued > clocks->position) return 1;
    for (i = 0; i < GPI_MARKS; i++)
        if (clock->marks[i].at > issued) return 1;
    if (stream->key && stream->key != stream->handle) return 4;
    if (!gpi_check_is_filed(clocks, stream)) return 4;
    /* a busy stream outside the queue would never be polled, and its memory never reach list ANY */
    if (gpi_clock_is_busy(clocks, stream) && !stream->is_busy) return 5;
    return gpi_check_stream_list(clocks, stream);
}

/* All streams that are not empty, the numbers of them that the clocks keep, and the queue of busy
   streams. K3 is checked in ARENA, which sees everything that refers to streams. */
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
    /* as many lists as streams: with K2, which compares owners, each list has its one stream */
    for (list = GPI_LIST_STREAMS; list < clocks->tree->list_count; list++)
        lists -= clocks->tree->lists[list] != NULL;
    if (lists) return 2;
    /* the queue holds only streams that say so, and its last one is busy_last */
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
   H4  exports is the number of chunks that are exported */

typedef struct gpi_chunk {
    struct gpi_chunk *prev, *next; /* by address in a MAPPED arena */
    gpi_handle handle;             /* MAPPED */
    void *memory;                  /* other sources: what the source gave */
    uint64_t bytes;                /* and how much of it */
    uint64_t unit, units;          /* the part that blocks are cut from */
    int tag;                       /* whose blocks alone it has; 0: those of all other requests */
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
    uint64_t reserve_units;        /* trimming keeps so many */
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
            if (chunk && unit - chunk->unit < chunk->units) continue;
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
    if (chunk->heap) gpi_tool_chunk_gone(chunk->heap);
#endif
    gpi_host_unlock(chunks->lock);
    /* what nobody has waited for: cudaFree does, but for its own device only */
    if (!gpi_chunk_is(chunks, GPI_FROM_POOL) && chunks->driver.peer_count)
        result = gpi_clock_wait_device(chunks->clocks, &chunks->driver);
    if (result == GPUPOOL_OK) result = chunks->from->give(chunks, chunk->memory, chunk->bytes);
    gpi_host_lock(chunks->lock);
    if (result != GPUPOOL_OK) {
#if GPUPOOL_NVTX
        if (chunk->heap) chunk->heap = gpi_tool_chunk(chunk->memory, chunk->bytes);
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
    const gpi_apart *apart = &chunks->apart[chunk->tag];
    if (apart->units - chunk->units < apart->reserve_units) return 0;
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
        if (!gpi_chunk_is_idle(chunks, tree, chunk)) units += chunk->units;
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
        chunk->heap = gpi_tool_chunk(chunk->memory, chunk->bytes);
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
    int report_number;            /* see ENVIRON; 0: no reports */
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

/* A request of this thread has failed, perhaps out of memory: then section ENVIRON writes the
   report that the environment asks for. No lock is held. The thread's result stays as it is. */
static void gpi_arena_request_failed(gpupool_arena *arena) {
    void (*report)(gpupool_arena *) = GPI_READ(&gpi_process.on_no_memory);
    if (report && gpi_thread.result == GPUPOOL_E_OUT_OF_MEMORY) report(arena);
}

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
    gpi_arena_request_failed(arena);
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
                       (use->stream == request->owner && !use->stream->capture &&
                        use->at != gpi_clock_never())))
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
    GPI_SHOT_KEPT,           /* a graph's, live or free */
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
        if (from == chunk->unit && to == chunk_end) measure->whole_units += chunk->units;
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
        outlook->idle_units += units;
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
            outlook->idle_units += other.whole_units;
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

/* In all, but not in a graph's memory. */
static uint64_t gpi_verdict_free_bytes(const gpupool_verdict *verdict) {
    return verdict->reserved_bytes - verdict->granted_bytes - verdict->kept_bytes;
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
        case 'f': gpi_limit_human(room, gpi_verdict_free_bytes(verdict)); break;
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
    uint64_t reserved = scene->reserved_bytes / GPUPOOL_UNIT_BYTES;
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
        gpi_verdict_say(verdict, gpi_limit_human(room, gpi_verdict_free_bytes(verdict) +
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
    uint64_t free_bytes = gpi_verdict_free_bytes(verdict), by_limit, by_device;
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

/* The longest run of memory that some stream may have; what a graph keeps is for its replays. */
static uint64_t gpi_verdict_longest_run(const gpupool_arena *arena) {
    gpi_list *const *lists = arena->tree.lists;
    const gpi_stream *stream = arena->clocks.busy;
    uint64_t largest = gpi_tree_largest(lists[GPI_LIST_ANY]);
    for (; stream; stream = stream->busy_next)
        if (stream->handle && !stream->capture)
            largest = gpi_ground_max(largest, gpi_tree_largest(lists[stream->list]));
    return largest * GPUPOOL_UNIT_BYTES;
}

/* The largest block that such memory makes without growth, stitched if need be. */
static uint64_t gpi_verdict_largest(gpupool_arena *arena) {
    gpi_stream *stream = arena->clocks.busy;
    uint64_t largest = gpi_verdict_longest_run(arena);
    if (!gpi_stitch_can(&arena->stitches)) return largest;
    arena->tree.lists[GPI_LIST_ANY]->usable_below = UINT64_MAX;
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
        if (gpi_clock_keeping(run)) units += run->units;
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
    verdict->granted_bytes = arena->ledger.granted.now;
    verdict->reserved_bytes = arena->ledger.reserved.now;
    verdict->pending_bytes = arena->ledger.pending.now;
    verdict->kept_bytes = gpi_verdict_kept_bytes(arena, 1);
    if (gpi_chunk_is(&arena->chunks, GPI_FROM_HOST))
        verdict->largest_block_bytes =
            gpi_tree_largest(arena->tree.lists[GPI_LIST_ANY]) * GPUPOOL_UNIT_BYTES;
    else if (gpi_chunk_is(&arena->chunks, GPI_FROM_POOL))
        verdict->largest_block_bytes = gpi_verdict_largest(arena);
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
    gpi_tool_block(run->heap, (const void *)(uintptr_t)(run->unit * GPUPOOL_UNIT_BYTES), bytes,
                   name);
}

static void gpi_block_tell_gone(const gpi_run *run) {
    if (run->heap)
        gpi_tool_block_gone((const void *)(uintptr_t)(run->unit * GPUPOOL_UNIT_BYTES));
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
    gpi_arena_request_failed(arena);
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
        gpi_clock_drop_uses(clocks, run);
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
    if (guards) result = gpi_data_fill(driver, block, GPI_NEW_FILL, bytes, call->stream);
    if (guards && result == GPUPOOL_OK)
        result = gpi_data_fill(driver, block + bytes, GPI_GUARD_FILL,
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
    if (gpi_data_copy(driver, &copy, stream, NULL) != GPUPOOL_OK ||
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
            gpi_data_fill(driver, block, GPI_OLD_FILL, block_is.granted_bytes, call->stream);
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
        result = gpi_data_fill(driver, block, 0, bytes, stream);
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
            if (use->stream == stream && use->at == UINT64_MAX) use->at = at;
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
    return gpi_data_copy(driver, &copy, stream, NULL);
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

/* Whether a chunk needs no memory: all in it is set aside, and the tag reserves nothing. */
static int gpi_sleep_is_vacant(const gpupool_arena *arena, const gpi_chunk *chunk) {
    const gpi_run *run = gpi_chunk_first_run(&arena->chunks, &arena->tree, chunk);
    if (arena->chunks.apart[chunk->tag].reserve_units) return 0;
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
    verdict.granted_bytes = arena->ledger.granted.now;
    verdict.reserved_bytes = arena->ledger.reserved.now;
    verdict.device_free_bytes = free_bytes;
    verdict.device_total_bytes = total_bytes;
    verdict.others_bytes = total_bytes - gpi_ground_min(total_bytes,
                                                        free_bytes + verdict.reserved_bytes);
    if (cause == GPUPOOL_CAUSE_LIMIT) verdict.raise_bytes = bytes - room;
    verdict.missing_bytes = bytes - gpi_ground_min(bytes, cause == GPUPOOL_CAUSE_LIMIT
                                                              ? room : free_bytes);
    if (cause == GPUPOOL_CAUSE_LIMIT)
        snprintf(verdict.sentence, sizeof verdict.sentence, "waking needs %s, and the limit leaves "
                 "%s: raise the limit by %s, or free blocks", gpi_limit_human(need, bytes),
                 gpi_limit_human(free_text, room), gpi_limit_enough(total, verdict.raise_bytes));
    else
        snprintf(verdict.sentence, sizeof verdict.sentence, "waking needs %s, and of the device's "
                 "%s only %s is free: others (arenas, processes, libraries) hold the rest",
                 gpi_limit_human(need, bytes), gpi_limit_human(total, total_bytes),
                 gpi_limit_human(free_text, free_bytes));
    gpi_thread.verdict = verdict;
    return gpi_host_fail(GPUPOOL_E_OUT_OF_MEMORY, "gpupool_wake: arena \"%s\": %s", arena->name,
                         verdict.sentence);
}

/* Gets memory for every chunk that needs it; on failure the caller releases the new handles. */
static gpupool_result gpi_sleep_create_all(gpupool_arena *arena) {
    gpi_chunks *chunks = &arena->chunks;
    gpi_chunk *chunk;
    uint64_t bytes = 0;
    gpupool_result result = GPUPOOL_OK;
    for (chunk = chunks->first; chunk; chunk = chunk->next)
        bytes += gpi_sleep_needs(arena, chunk) ? chunk->bytes : 0;
    if (bytes > gpi_ledger_room(&arena->ledger))
        return gpi_sleep_give_up(arena, GPUPOOL_CAUSE_LIMIT, bytes);
    for (chunk = chunks->first; chunk && result == GPUPOOL_OK; chunk = chunk->next) {
        if (chunk->handle || !gpi_sleep_needs(arena, chunk)) continue;
        gpi_host_unlock(chunks->lock);
        result = gpi_driver_create(&chunks->driver, chunk->bytes, &chunk->handle);
        gpi_host_lock(chunks->lock);
        if (result != GPUPOOL_OK) chunk->handle = 0;
    }
    return result == GPUPOOL_E_OUT_OF_MEMORY
               ? gpi_sleep_give_up(arena, GPUPOOL_CAUSE_OTHERS, bytes) : result;
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
    gpupool_result result;
    if (!gpi_tree_list_open(&arena->tree, GPI_LIST_TAGS + (uint32_t)tag - 1))
        return gpi_host_no_memory();
    apart->is_apart = arena->chunks.is_apart = 1;
    apart->can_sleep = config->can_sleep;
    result = gpi_life_reserve(arena, tag, config->reserve_bytes);
    if (result == GPUPOOL_OK)
        apart->reserve_units = gpi_ground_up(config->reserve_bytes, GPUPOOL_UNIT_BYTES) /
                               GPUPOOL_UNIT_BYTES;
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
    result = gpi_stitch_trim(&arena->stitches, 0);
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

/* gpupool_arena_create, but for what section ENVIRON adds. */
static gpupool_result gpi_life_create(gpupool_arena **out, const gpupool_arena_config *given) {
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
    if (!live && !captures && gpi_sleep_choose(arena, GPUPOOL_ALL, GPI_ASLEEP))
        result = gpi_sleep_wake(arena, NULL);
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

/* gpupool_arena_destroy, but for what section ENVIRON adds. */
static gpupool_result gpi_life_destroy(gpupool_arena *arena) {
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
    gpi_life_destroy(arena); /* another thread was first */
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
    result = gpi_arena_enter_awake(arena, call, 0, &visit);
    if (result != GPUPOOL_OK) return result;
    gpi_host_unlock(&arena->lock);
    chunk = gpi_share_enter(arena, call, block, &run);
    if (!chunk) {
        result = gpi_thread.result;
        gpi_host_lock(&arena->lock);
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
    return most + gpi_chunk_busy_bytes(chunks, &arena->tree) - arena->ledger.granted.now -
           gpi_verdict_kept_bytes(arena, 0);
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
    stats->largest_free_bytes = gpi_verdict_longest_run(arena);
    stats->largest_block_bytes = gpi_verdict_largest(arena);
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
   The ring's pinned host memory: equal slots in one address range. The lowest slots are pinned
   first, one slot at a time, when a transfer needs a slot. uses: GROUND, HOST, DRIVER, LEDGER

       slot       0        1        2        3        4        5        6        7
               +--------+--------+--------+--------+--------+--------+--------+--------+
       state   | FLYING | TAKEN  | TAKEN  | FREE   | FILLING| FREE   |  not pinned     |
       run     |   1    |   2    |   0    |        |   1    |        |                 |
               +--------+--------+--------+--------+--------+--------+--------+--------+
                                                            ^ top    ^ pinned_slots   ^ count

   FREE     nobody uses the slot
   TAKEN    the slot belongs to a span; or a failed copy may still use it until the device is idle
   FILLING  a thread copies between the host and the slot, or waits for the device's copy into it
   FLYING   the device copies out of the slot; the event behind the copy tells when it has ended

       upload    FREE -> FILLING -> FLYING -> FREE
       download  FREE -> FILLING -> FREE
       span      FREE -> FILLING -> TAKEN -> FILLING -> FLYING -> FREE, or TAKEN -> FREE

   A span may take several neighbouring slots: a run. The first slot of the run has all its fields.

   R1  every slot that is not FREE lies below top, and top is at most pinned_slots
   R2  the first slot of a run has the run's length; the others have length 0 and the same state
   R3  used.now is the bytes of the slots that are not FREE
   R4  flying.now is the number of runs that are FLYING; each has an event

   Locks: gpi_stage.lock is the lock of the whole ring. It is held on entry and exit of every
   function here, except where a comment says otherwise; CUDA is called with the lock open. */

typedef enum gpi_stage_state {
    GPI_STAGE_FREE, /* zero, so that the records of fresh pages are FREE */
    GPI_STAGE_TAKEN,
    GPI_STAGE_FILLING,
    GPI_STAGE_FLYING
} gpi_stage_state;

typedef struct gpi_stage_slot {
    gpi_stage_state state;
    cudaEvent_t event;       /* behind the slot's last copy; NULL: not created yet */
    uint64_t run;            /* slots of the run; 0: not the first slot of a run */
    uint64_t offset, length; /* the bytes of the transfer that the slot carries */
    uint64_t skip;           /* bytes of the slot before those: see gpi_ring_begin */
    uint64_t flight;         /* number of the copy; copies end in this order per stream */
    uint64_t key;            /* gpi_ring_key of the stream that the copy was queued on */
    uint64_t span, taker;    /* TAKEN: the span's number and its thread's; 0: no span */
} gpi_stage_slot;

/* Counts what is under way, and adds up the time in which at least one was under way. The pair of
   figures gives the mean rate of a ring whose transfers overlap. */
typedef struct gpi_stage_clock {
    uint64_t now, since_ns, ns; /* under way; start of the busy time that runs; busy time before
                                   that */
} gpi_stage_clock;

typedef struct gpi_stage {
    gpi_lock lock;           /* the whole ring's */
    gpi_driver driver;
    gpi_pages pages;         /* the slots, and behind them the array `slots` */
    gpi_stage_slot *slots;   /* NULL until the first slot is pinned */
    uint64_t count, slot_bytes, pinned_slots; /* slots that the ring may have; bytes of each; slots
                                                 that are pinned */
    uint64_t top;            /* one past the highest slot that is not FREE */
    gpupool_counter pinned, used; /* bytes */
    int pinning, polling;    /* a thread pins or unpins; a thread is in gpi_stage_poll. Each of the
                                two allows one thread at a time */
    uint64_t refused_ns;     /* when the host last refused to pin; 0: the latest attempt worked */
    uint64_t pin_ns, pin_failures; /* for statistics: time spent pinning, attempts that failed */
    uint64_t flights;        /* number of the latest copy */
    gpi_stage_clock flying;  /* copies out of slots: uploads and spans */
    unsigned news;           /* rises when an idle thread may find work; is also read without the
                                lock */
} gpi_stage;

enum { GPI_STAGE_REFUSED_NS = 100000000 }; /* pause after a refusal, since an attempt to pin costs
                                              milliseconds */

/* Whether the device copies out of the run that begins with this slot. */
static int gpi_stage_flies(const gpi_stage_slot *slot) {
    return slot->state == GPI_STAGE_FLYING && slot->run > 0;
}

/* Derives R1 to R4 from the slots. Returns the number of the first broken invariant; 0 if all hold.
   Costs a step for each pinned slot. `run` counts the slots that the current run still has. */
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

/* One more is under way; and one fewer. The clock runs while `now` is above 0. */
static void gpi_stage_begin(gpi_stage_clock *clock) {
    if (clock->now++ == 0) clock->since_ns = gpi_host_now_ns();
}

static void gpi_stage_end(gpi_stage_clock *clock) {
    if (--clock->now == 0) clock->ns += gpi_host_now_ns() - clock->since_ns;
}

/* The busy time up to now_ns, including the busy time that still runs. */
static uint64_t gpi_stage_ns(const gpi_stage_clock *clock, uint64_t now_ns) {
    return clock->ns + (clock->now ? now_ns - clock->since_ns : 0);
}

/* Tells the threads in gpi_ring_idle that there may be work. They compare `news` without the lock,
   hence GPI_PUBLISH. A thread that sleeps is woken by gpi_ring_wake. */
static void gpi_stage_announce(gpi_stage *stage) { GPI_PUBLISH(&stage->news, stage->news + 1); }

/* The first byte of the slot that the transfer's bytes go to. Reads only what is constant while the
   slot is not FREE, so the lock may be open. */
static unsigned char *gpi_stage_memory(const gpi_stage *stage, const gpi_stage_slot *slot) {
    return stage->pages.memory + (uint64_t)(slot - stage->slots) * stage->slot_bytes + slot->skip;
}

/* ---- slots: the lock is held ---- */

/* Gives all slots of the run this state. */
static void gpi_stage_set(gpi_stage_slot *slot, gpi_stage_state state) {
    uint64_t i;
    for (i = 0; i < slot->run; i++) slot[i].state = state;
}

/* Takes `run` neighbouring slots, as FILLING. Returns the first; NULL: no free run of pinned slots
   is so long. Searches from slot 0: the slots that were used last are still in the processor's
   caches, and the number of slots that ever need pinning stays small. */
static gpi_stage_slot *gpi_stage_take(gpi_stage *stage, uint64_t run) {
    uint64_t end = gpi_ground_min(stage->pinned_slots, stage->top + run), first = 0, at, i;
    gpi_stage_slot *slot;
    /* `first` is where the free run that reaches to `at` begins. Above top all slots are free, so
       the search ends after top + run. */
    for (at = 0; at < end && at - first < run; at++)
        if (stage->slots[at].state != GPI_STAGE_FREE) first = at + 1;
    if (at - first < run) return NULL;
    /* The fields of the slots' last user are void, but events stay for reuse. */
    slot = &stage->slots[first];
    for (i = 1; i < run; i++) slot[i].run = 0;
    slot->run = run;
    slot->offset = slot->length = slot->skip = slot->span = slot->taker = 0;
    gpi_stage_set(slot, GPI_STAGE_FILLING);
    stage->top = gpi_ground_max(stage->top, first + run);
    gpi_ledger_add(&stage->used, run * stage->slot_bytes);
    return slot;
}

/* Frees the run that begins with this slot, lowers top to the next slot in use, and tells the
   threads that look for a slot. */
static void gpi_stage_free(gpi_stage *stage, gpi_stage_slot *slot) {
    gpi_ledger_sub(&stage->used, slot->run * stage->slot_bytes);
    gpi_stage_set(slot, GPI_STAGE_FREE);
    while (stage->top && stage->slots[stage->top - 1].state == GPI_STAGE_FREE) stage->top--;
    gpi_stage_announce(stage);
}

/* The copy out of the slot is queued, and so is the event behind the copy: gpi_stage_poll frees the
   slot when the event has passed. */
static void gpi_stage_fly(gpi_stage *stage, gpi_stage_slot *slot) {
    gpi_stage_set(slot, GPI_STAGE_FLYING);
    slot->flight = ++stage->flights;
    gpi_stage_begin(&stage->flying);
}

/* Bytes that uploads and spans have under way on the stream with this key. */
static uint64_t gpi_stage_flying_bytes(const gpi_stage *stage, uint64_t key) {
    uint64_t bytes = 0, i;
    for (i = 0; i < stage->top; i++)
        if (gpi_stage_flies(&stage->slots[i]) && stage->slots[i].key == key)
            bytes += stage->slots[i].length;
    return bytes;
}

/* Frees each slot whose event has passed; returns whether there was one. *result becomes the
   failure of a query, if a query failed. Never waits for the device. The lock is open during each
   query; `polling` makes this loop one thread's at a time, so a slot that flies stays what it is
   meanwhile. */
static int gpi_stage_poll(gpi_stage *stage, gpupool_result *result) {
    uint64_t i, busy_key = 0, busy = UINT64_MAX;
    int landed = 0;
    if (stage->polling || !stage->flying.now) return 0;
    stage->polling = 1;
    for (i = 0; i < stage->top; i++) {
        gpi_stage_slot *slot = &stage->slots[i];
        gpupool_result said;
        int passed;
        /* Copies of one stream end in the order of their numbers. If copy `busy` of a stream has
           not ended, later copies of the stream are skipped. Only the latest such stream is
           remembered: that bounds the queries where one stream stands still, and a second one only
           costs queries. */
        if (!gpi_stage_flies(slot) || (slot->key == busy_key && slot->flight > busy)) continue;
        /* top may rise meanwhile; a slot above the old top is seen in this pass or in the next. */
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

/* Pins one more slot; the first call also gets the address range for all slots and their records.
   Returns whether a slot was added; 0: all are pinned, another thread pins or unpins, or the host
   refused, now or in the last GPI_STAGE_REFUSED_NS. gpi_thread has the reason of a refusal just
   now. The lock is held on entry and exit, and open while the host and CUDA work. */
static int gpi_stage_pin(gpi_stage *stage) {
    uint64_t start = gpi_host_now_ns(), at = stage->pinned_slots * stage->slot_bytes;
    uint64_t all = stage->count * stage->slot_bytes; /* the records lie behind the slots */
    gpupool_result result = GPUPOOL_OK;
    if (stage->pinning || stage->pinned_slots == stage->count) return 0;
    if (stage->refused_ns && start - stage->refused_ns <= GPI_STAGE_REFUSED_NS) return 0;
    stage->pinning = 1;
    gpi_host_unlock(&stage->lock);
    /* Only this thread changes `pages`: `pinning` keeps the others out. */
    if (!stage->pages.memory &&
        !gpi_host_pages_get(&stage->pages, all, stage->count * sizeof *stage->slots))
        result = gpi_host_fail(GPUPOOL_E_HOST_MEMORY, "the host has no memory for the ring");
    if (result == GPUPOOL_OK)
        result = gpi_data_pin(&stage->driver, stage->pages.memory + at, stage->slot_bytes);
    gpi_host_lock(&stage->lock);
    stage->pinning = 0;
    stage->pin_ns += gpi_host_now_ns() - start;
    stage->refused_ns = result == GPUPOOL_OK ? 0 : gpi_host_now_ns();
    stage->pin_failures += result != GPUPOOL_OK;
    if (result != GPUPOOL_OK) return 0;
    /* The records become visible together with the first slot, under the lock. */
    if (!stage->slots) stage->slots = (gpi_stage_slot *)(void *)(stage->pages.memory + all);
    stage->pinned_slots++;
    gpi_ledger_add(&stage->pinned, stage->slot_bytes);
    return 1;
}

/* Unpins the highest pinned slot, and gives its pages back to the system. Returns whether it did;
   0: that slot is in use, another thread pins or unpins, or *result says what CUDA refused. The
   lock is open meanwhile; CUDA may wait for the device here. */
static int gpi_stage_unpin(gpi_stage *stage, gpupool_result *result) {
    uint64_t bytes = stage->slot_bytes, at = (stage->pinned_slots - 1) * bytes;
    if (stage->pinning || stage->pinned_slots == stage->top) return 0;
    stage->pinning = 1;
    stage->pinned_slots--; /* first, so that no thread takes the slot */
    gpi_host_unlock(&stage->lock);
    *result = gpi_data_unpin(&stage->driver, stage->pages.memory + at);
    if (*result == GPUPOOL_OK) gpi_host_pages_empty(&stage->pages, at, bytes);
    gpi_host_lock(&stage->lock);
    stage->pinning = 0;
    if (*result == GPUPOOL_OK) gpi_ledger_sub(&stage->pinned, bytes);
    /* CUDA refused: the slot is still pinned and usable. */
    else stage->pinned_slots++;
    return *result == GPUPOOL_OK;
}

/* Gives pinned memory and events back to CUDA. Called by gpupool_ring_destroy, when nothing flies
   and no span is taken: a slot that is still TAKEN has a copy that failed, which ends when the
   device is idle. On failure the stage is still usable, and a later call goes on from there. */
static gpupool_result gpi_stage_close(gpi_stage *stage) {
    gpupool_result result = stage->top ? gpi_driver_wait(&stage->driver) : GPUPOOL_OK;
    uint64_t i, ever = stage->pinned.peak / stage->slot_bytes;
    for (i = 0; i < stage->top && result == GPUPOOL_OK; i++)
        if (stage->slots[i].state == GPI_STAGE_TAKEN && stage->slots[i].run)
            gpi_stage_free(stage, &stage->slots[i]);
    while (result == GPUPOOL_OK && gpi_stage_unpin(stage, &result)) {}
    /* Slots that were unpinned earlier have events, too: their records stay. */
    for (i = 0; i < ever && result == GPUPOOL_OK; i++)
        result = gpi_driver_forget(&stage->driver, &stage->slots[i].event);
    return result;
}

/* == RING =====================================================================================
   Transfers between ordinary host memory, or a file, and the device, through the slots of STAGE.
   The calling thread and the ring's workers copy the chunks of a transfer side by side. uses:
   GROUND, HOST, DRIVER, LEDGER, STAGE

       ring->transfers -> ticket 7 -> ticket 8 -> ticket 9 -> NULL       in order of arrival

       a transfer   |  chunks taken by threads  |        chunks to come        |
                    0                           cursor                         bytes

   A thread that works for a transfer takes a slot and the transfer's next chunk. It copies between
   the host's side and the slot, and queues the copy between the slot and device memory. Chunks may
   end in any order, so no thread waits for another one. Workers serve the first transfer in the
   list that has a chunk for them. A call without a ticket waits for its own transfer, and works for
   it meanwhile.

   Two kinds of transfer. An upload without a ticket is queued on the caller's stream, and over once
   its last chunk is queued. Every other transfer is gated: it runs on a stream of the ring's own,
   and takes no slot until an event has passed, behind the work that the caller's stream had before
   the call. So the slots of gated transfers always come free. The slots of uploads on a caller's
   stream may stay FLYING for ever: the stream may wait for something that this thread has yet to
   do. For that reason no transfer waits for a slot for ever: after GPI_RING_PATIENCE_NS without a
   slot it goes on by CUDA's own staging, from pageable memory.

   R5  a transfer's cursor is at most its bytes, and no fewer than 0 threads work for it
   R6  tickets rise along the list of transfers, and are at most the latest that was given out

   Locks: the ring's lock, stage.lock, guards the list, the records and the counters. It is open
   while bytes are copied and while CUDA, the host's file system or a function of the caller runs. A
   record stays in the list while `working` counts a thread in it.

   Read first: gpi_ring_post, gpi_ring_step, gpi_ring_advance_up, gpi_ring_stall, gpi_ring_wait,
   gpi_ring_worker_loop. */

enum {
    GPI_RING_TINY = 16 << 10,        /* bytes: an upload up to here goes by CUDA's own staging */
    GPI_RING_SMALL = 64 << 10,       /* so does a download; and an upload up to here never waits for
                                        a slot */
    GPI_RING_LEAST = 128 << 10,      /* the smallest chunk of a larger transfer */
    GPI_RING_HELP = 2 << 20,         /* from here on the workers help */
    GPI_RING_UNSTAGED = 256 << 10,   /* the largest chunk that goes by CUDA's own staging */
    GPI_RING_AHEAD = 24 << 20,       /* bytes under way of one stream: 0.5 ms of the link */
    GPI_RING_PATIENCE_NS = 10000000, /* without a slot, until CUDA's own staging takes over */
    GPI_RING_WORKERS_MOST = 64,
    GPI_RING_WORKERS = 11,           /* the default: see gpi_send_validate */
    GPI_RING_WORKERS_ALONE = 9,      /* the most that serve a transfer that is alone */
    GPI_RING_ROW = 16,               /* chunks of a download that a thread takes in a row */
    GPI_RING_FAILURES = 64,          /* failed tickets whose results are remembered */
    GPI_RING_SPIN = 512,             /* rounds without work, some 100 us, before a thread sleeps */
    GPI_RING_SLEEP_NS = 20000,       /* the first sleep; each is longer by this than the one
                                        before */
    GPI_RING_LOOK_NS = 5000000,      /* the longest sleep of a thread while there are transfers */
    GPI_RING_LEAVE_NS = 1000000000   /* without work, until a worker ends */
};

typedef struct gpi_transfer {
    struct gpi_transfer *next;       /* in the list of transfers, or of spare records */
    const char *call;                /* the public call's name, for messages */
    const gpi_driver *driver;        /* the ring's */
    int down;                        /* a gpupool_direction: 1 is to the host */
    unsigned char *device, *host;
    uint64_t device_pitch, host_pitch, width, bytes; /* width: of a row; bytes: of all rows */
    gpupool_read_fn reader;          /* the caller's functions in place of host memory, or NULL */
    gpupool_write_fn writer;
    void *user;
    gpi_file file;                   /* the source if is_file */
    int is_file;
    uint64_t file_offset;            /* where in the file the transfer begins */
    cudaStream_t stream;             /* the caller's; a gated transfer's: one of ring->streams */
    cudaEvent_t event;               /* gated: behind the caller's earlier work; then, of an upload,
                                        behind its last chunk */
    int gated;                       /* the event has not passed yet: no chunk begins */
    int lands;                       /* a gated upload whose event behind the last chunk is still to
                                        be recorded */
    int by_cuda;                     /* all bytes are queued already: only the end is waited for */
    uint64_t cursor;                 /* where the next chunk begins */
    int working;                     /* threads that use this record with the lock open */
    gpupool_ticket ticket;
    uint64_t stalled_ns;             /* since when the transfer has found no slot; 0: it is not
                                        short of slots */
    gpupool_result result;           /* the first failure; no chunk begins after it */
    char text[200];
} gpi_transfer;

/* The result of a ticket that is over, for later calls of gpupool_ring_wait. */
typedef struct gpi_failure {
    gpupool_ticket ticket;
    gpupool_result result;
    char text[200];
} gpi_failure;

typedef struct gpi_ring_thread {     /* a worker */
    gpi_worker worker;
    gpupool_ring *ring;
    int started, running;            /* started: has a thread to join; running: that thread has not
                                        ended yet */
} gpi_ring_thread;

struct gpupool_ring {
    gpi_stage stage;
    int forks;                       /* of the process when the ring was created: see HOST */
    gpi_transfer *transfers;         /* in order of arrival */
    gpi_transfer *spare;             /* records to use again, with their events */
    gpupool_ticket tickets, forgotten; /* the latest given out; the highest whose result was dropped
                                          from `failures` */
    gpi_failure failures[GPI_RING_FAILURES]; /* a circular buffer */
    uint64_t failure_count;          /* ever; the next goes to failures[failure_count %
                                        GPI_RING_FAILURES] */
    cudaStream_t streams[2];         /* for gated transfers: one up, one down; equal after one was
                                        destroyed */
    uint64_t spans, spans_taken, span_bytes; /* the latest span's number; spans that callers have;
                                                bytes that spans have sent */
    gpi_ring_thread threads[GPI_RING_WORKERS_MOST];
    int workers_wanted, workers_running, stopping; /* stopping: the ring is being destroyed, and its
                                                      workers end */
    gpi_stage_clock under_way[2];    /* transfers through slots, by direction */
    gpi_stage_clock arriving;        /* chunks that the device copies to the host */
    gpupool_ring_stats stats;        /* only the fields that are counted up */
};

/* Derives R1 to R6. Returns the number of the first broken invariant; 0 if all hold. The lock is
   held. */
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

/* The ring's lock. With GPUPOOL_CHECK 2 every invariant is checked whenever the lock changes
   hands. */
static void gpi_ring_lock(gpupool_ring *ring) {
    gpi_host_lock(&ring->stage.lock);
    GPI_ASSERT(GPUPOOL_CHECK < 2 || gpi_ring_check(ring) == 0);
}

static void gpi_ring_unlock(gpupool_ring *ring) {
    GPI_ASSERT(GPUPOOL_CHECK < 2 || gpi_ring_check(ring) == 0);
    gpi_host_unlock(&ring->stage.lock);
}

/* Every public call begins here. E_ARGUMENT for NULL; E_FORKED in a child process, which has no
   CUDA context and none of the ring's threads. Takes no lock. */
static gpupool_result gpi_ring_exists(const gpupool_ring *ring, const char *call) {
    gpi_host_begin();
    if (!ring) return gpi_host_fail(GPUPOOL_E_ARGUMENT, "%s: the ring is NULL", call);
    if (ring->forks == gpi_process.forks) return gpi_host_ok();
    return gpi_host_fail(GPUPOOL_E_FORKED, "%s: this process is a fork of the one that made the "
                         "ring, and has no CUDA context", call);
}

/* The way in for public calls that use CUDA or change the ring: on success the device's context is
   current and the lock is held, and the call ends with gpi_ring_leave. On failure neither is so. */
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

/* The way out: opens the lock, restores the caller's context, and records success for the
   thread. */
static gpupool_result gpi_ring_leave(gpupool_ring *ring, const gpi_visit *visit,
                                     gpupool_result result) {
    gpi_ring_unlock(ring);
    gpi_driver_leave(visit);
    return result == GPUPOOL_OK ? gpi_host_ok() : result;
}

/* ---- a transfer's bytes: without the lock ---- */

/* Copies `bytes` from byte `at` of the transfer on between its host memory and `memory`, row by
   row: `at` counts the bytes of the rows only, without what lies between them. A large download
   goes past the processor's caches, since the host does not read it soon. An upload does not, since
   the device reads the slot at once. */
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

/* Does the same, or calls the caller's function, or reads the file. E_CALLBACK if the function did
   not return 0; E_FILE from the file. The function may make CUDA calls: gpi_driver_come_back makes
   the ring's context current again. */
static gpupool_result gpi_ring_move(const gpupool_ring *ring, const gpi_transfer *transfer,
                                    unsigned char *memory, uint64_t at, uint64_t bytes) {
    int said = 0;
    if (transfer->is_file)
        return gpi_file_read(&transfer->file, memory, transfer->file_offset + at, bytes);
    if (transfer->reader) said = transfer->reader(memory, (size_t)bytes, at, transfer->user);
    else if (transfer->writer) said = transfer->writer(memory, (size_t)bytes, at, transfer->user);
    else gpi_ring_move_rows(transfer, memory, at, bytes);
    if (transfer->reader || transfer->writer) gpi_driver_come_back(&ring->stage.driver);
    if (!said) return GPUPOOL_OK;
    return gpi_host_fail(GPUPOOL_E_CALLBACK, "your %s function returned %d at byte %" PRIu64,
                         transfer->reader ? "read" : "write", said, at);
}

/* Queues the copy of `bytes` from byte `at` of the transfer on between `memory` and the device.
   `pitch` is the distance between rows in `memory`. A chunk is whole rows or lies within a row, as
   gpi_ring_chunk cuts it, so one 2D copy is enough. */
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
    return gpi_data_copy(transfer->driver, &copy, transfer->stream, NULL);
}

/* The number by which a stream is told from others. cudaStreamPerThread is one handle for a
   different stream in each thread, so its key has the thread's number, and is odd, as no handle
   is. */
static uint64_t gpi_ring_key(cudaStream_t stream) {
    if (stream == cudaStreamPerThread) return gpi_host_thread_number() << 1 | 1;
    return (uint64_t)(uintptr_t)stream;
}

/* Queues the copy of a slot, or of a span's slots, and records the slot's event behind the copy.
   CUDA refuses a copy that crosses two ranges that were registered one by one, so each slot is a
   copy of its own. *lost: 1 if some copy was queued, the call failed, and waiting for the stream
   failed too: the device may still use the slots. */
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
    /* Queued in part: wait, so that the slots can be used again at once. */
    if (*lost)
        *lost = result != GPUPOOL_OK && driver->stream_sync(transfer->stream) != CUDA_SUCCESS;
    return result;
}

/* ---- chunks: the lock is held on entry and exit, and open while bytes or calls are made ---- */

/* Makes `result` the transfer's result, with this thread's message. The first failure stays, since
   later ones are mostly its consequences. */
static void gpi_ring_fail(gpi_transfer *transfer, gpupool_result result) {
    if (result == GPUPOOL_OK || transfer->result != GPUPOOL_OK) return; /* the first says why */
    transfer->result = result;
    memcpy(transfer->text, gpi_thread.draft, sizeof transfer->text - 1);
}

/* Whether another chunk may begin; and whether the transfer may leave the list: no chunk is to
   come, no thread works for it, and a gated one's event has passed. */
static int gpi_ring_has_more(const gpi_transfer *transfer) {
    return transfer->cursor < transfer->bytes && transfer->result == GPUPOOL_OK;
}

static int gpi_ring_is_over(const gpi_transfer *transfer) {
    return !transfer->gated && !transfer->lands && !transfer->working &&
           !gpi_ring_has_more(transfer);
}

/* Bytes of the next chunk, at most `most` and a slot. Chunks are small at first, so that the device
   starts early, and small at the end, so that all threads end at about the same time. A chunk is
   whole rows or a part of one row. A chunk of a file ends at the end of a page of the file: whole
   pages can be read with O_DIRECT, past the page cache, into a slot that begins as the page
   does. */
static uint64_t gpi_ring_chunk(const gpupool_ring *ring, const gpi_transfer *transfer,
                               uint64_t most) {
    uint64_t left = transfer->bytes - transfer->cursor, width = transfer->width;
    uint64_t threads = (uint64_t)ring->workers_running + 1, column = transfer->cursor % width;
    most = gpi_ground_min(most, ring->stage.slot_bytes);
    most = gpi_ground_min(most, gpi_ground_max(transfer->cursor / threads, GPI_RING_LEAST * 2));
    most = gpi_ground_min(most, gpi_ground_max(left / (2 * threads), GPI_RING_LEAST));
    most = gpi_ground_up(most, GPI_PAGE_BYTES); /* not above a slot, which is whole pages */
    if (transfer->is_file) most -= (transfer->file_offset + transfer->cursor) % GPI_PAGE_BYTES;
    if (width == transfer->bytes) return gpi_ground_min(most, left);
    if (column || width > most) return gpi_ground_min(most, width - column);
    return gpi_ground_min(most / width * width, left);
}

/* Takes `run` neighbouring slots: free ones, else slots whose copies have ended by now, else slots
   that it pins. NULL: none now; *result has the failure if CUDA reported one. That the host pins no
   more is no failure, since the transfer can go on with fewer slots. The lock is open in
   between. */
static gpi_stage_slot *gpi_ring_slots(gpupool_ring *ring, uint64_t run, gpupool_result *result) {
    gpi_stage *stage = &ring->stage;
    gpi_stage_slot *slot;
    /* Freeing early keeps the slots in use few, and those in the processor's caches. */
    if (stage->flying.now > (uint64_t)ring->workers_running + 1)
        gpi_stage_poll(stage, result); /* few slots in use stay in the processor's caches */
    slot = gpi_stage_take(stage, run);
    if (!slot && gpi_stage_poll(stage, result)) slot = gpi_stage_take(stage, run);
    while (!slot && *result == GPUPOOL_OK && gpi_stage_pin(stage))
        slot = gpi_stage_take(stage, run);
    if (slot) *result = GPUPOOL_OK; /* a query may have failed on the way, but the slots are
                                       there */
    return slot;
}

/* Whether enough of the transfer's stream is under way. More would not make the link busier, and
   would take slots from other transfers. */
static int gpi_ring_is_ahead(const gpupool_ring *ring, const gpi_transfer *transfer) {
    return gpi_stage_flying_bytes(&ring->stage, gpi_ring_key(transfer->stream)) >=
           gpi_ground_max(GPI_RING_AHEAD, 4 * ring->stage.slot_bytes);
}

/* The transfer is not short of slots any more. Adds the time without a slot to the statistics. */
static void gpi_ring_unstall(gpupool_ring *ring, gpi_transfer *transfer) {
    if (transfer->stalled_ns) ring->stats.wait_ns += gpi_host_now_ns() - transfer->stalled_ns;
    transfer->stalled_ns = 0;
}

/* Begins a chunk: takes a slot, notes the chunk in the slot, and advances the cursor. NULL: no
   chunk is left, no slot can be had, or the stream is far enough ahead. Pins slots and queries
   events, with the lock open. */
static gpi_stage_slot *gpi_ring_begin(gpupool_ring *ring, gpi_transfer *transfer) {
    gpupool_result result = GPUPOOL_OK;
    gpi_stage_slot *slot = NULL;
    if (!gpi_ring_has_more(transfer)) return NULL;
    if (gpi_ring_is_ahead(ring, transfer)) gpi_stage_poll(&ring->stage, &result);
    if (result == GPUPOOL_OK && !gpi_ring_is_ahead(ring, transfer))
        slot = gpi_ring_slots(ring, 1, &result);
    gpi_ring_fail(transfer, result);
    if (slot && !gpi_ring_has_more(transfer)) { /* other threads took the last chunk while the lock
                                                   was open */
        gpi_stage_free(&ring->stage, slot);
        slot = NULL;
    }
    if (!slot) return NULL;
    slot->offset = transfer->cursor;
    slot->length = gpi_ring_chunk(ring, transfer, UINT64_MAX);
    /* O_DIRECT wants the memory aligned as the file offset is: bytes start as far into the slot as
       into their page of the file. */
    if (transfer->is_file) slot->skip = (transfer->file_offset + slot->offset) % GPI_PAGE_BYTES;
    transfer->cursor += slot->length;
    gpi_ring_unstall(ring, transfer);
    return slot;
}

/* Ends the use of a chunk's slot after a failure, or after a download. `lost` (see gpi_ring_send):
   the device may still use the slot, so the slot stays TAKEN until the ring is destroyed. */
static void gpi_ring_drop(gpupool_ring *ring, gpi_stage_slot *slot, int lost) {
    if (lost) gpi_stage_set(slot, GPI_STAGE_TAKEN);
    else gpi_stage_free(&ring->stage, slot);
}

/* An upload's chunk: fills the slot from the host's side, and queues the copy to the device. The
   slot then flies. The caller has `working` counted up, so the record stays while the lock is
   open. */
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

/* Queues the copy of a download's chunk into its slot. Returns the slot; NULL: `slot` is NULL, or
   the copy failed, and then the transfer has failed and the slot is dropped. */
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

/* Waits on the host for a fetched chunk, and copies it from the slot to the host's side. A failed
   wait is tried once more on the stream: only if that fails too, the device may still write to the
   slot. */
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

/* Downloads chunks: while one is copied to the host's side, the next is already on its way from the
   device. With one slot a thread, all threads wait for the device and then the device for all
   threads (measured on an H100: 31 instead of 51 GB/s). Stops after GPI_RING_ROW chunks, since
   other transfers may have come. */
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

/* The next chunk without a slot, through pageable memory. CUDA copies such memory before the call
   returns, or fills it, so it is freed at once. The call may wait for the stream. Returns 1:
   something was done. */
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

/* For a transfer that found no slot. Once it has waited for GPI_RING_PATIENCE_NS it goes on by
   CUDA's own staging; returns whether it did. While slots of the same stream fly, it only waits: if
   they do not end, CUDA's staging on that stream would not end either. Two cases do not wait: a
   small upload, which CUDA stages without a wait for the stream, so that the call returns even
   behind a busy stream; and a ring that has no pinned slot at all. */
static int gpi_ring_stall(gpupool_ring *ring, gpi_transfer *transfer) {
    uint64_t now = gpi_host_now_ns();
    int at_once = transfer->bytes <= GPI_RING_SMALL;
    if (!gpi_ring_has_more(transfer) || transfer->gated || transfer->working) return 0;
    if (!at_once && gpi_stage_flying_bytes(&ring->stage, gpi_ring_key(transfer->stream))) return 0;
    ring->stats.waits += !transfer->stalled_ns;
    if (!transfer->stalled_ns) transfer->stalled_ns = now;
    if (!at_once && ring->stage.pinned_slots && now - transfer->stalled_ns < GPI_RING_PATIENCE_NS)
        return 0;
    return gpi_ring_advance_unstaged(ring, transfer);
}

/* ---- the list of transfers ---- */

/* Wakes all threads that sleep in gpi_ring_sleep, of this ring and of others. Opens the lock. */
static void gpi_ring_wake(gpupool_ring *ring) {
    gpi_stage_announce(&ring->stage);
    gpi_ring_unlock(ring);
    gpi_host_gate_turn(&gpi_process.gate);
    gpi_ring_lock(ring);
}

/* Adds a transfer that succeeded to the statistics. */
static void gpi_ring_count(gpupool_ring *ring, const gpi_transfer *done) {
    ring->stats.transfers[done->down]++;
    if (done->by_cuda) ring->stats.direct_bytes[done->down] += done->bytes;
    else ring->stats.staged_bytes[done->down] += done->bytes;
}

/* Keeps a record, and the event in it, for a later transfer. */
static void gpi_ring_keep_record(gpupool_ring *ring, gpi_transfer *record) {
    record->next = ring->spare;
    ring->spare = record;
}

/* Takes a transfer that is over off the list, and wakes those that wait for it. Remembers its
   result if it failed. A success is remembered, too, if a failure with a higher ticket was dropped
   from `failures`: tickets up to `forgotten` are refused unless they are found there. */
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
    if (transfer->is_file) gpi_file_close(&transfer->file);
    gpi_ring_keep_record(ring, transfer);
    gpi_ring_wake(ring);
}

/* Asks CUDA whether a gated transfer's event has passed. If the query fails, the transfer has
   failed; the chunks that it had queued are then waited for. The lock is open meanwhile. */
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

/* A gated upload has queued its last chunk. Records an event behind it, and gates the transfer
   again: it is over when the event has passed. Where no event can be had, waits for the stream
   instead. */
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

/* Does one thing for a transfer: begins and advances a chunk, lands it, or takes it off the list.
   Returns 0 if this thread can do nothing for it now. After a 1 the record may belong to another
   transfer already. The lock is open in between. */
static int gpi_ring_step(gpupool_ring *ring, gpi_transfer *transfer) {
    gpi_stage_slot *slot = NULL;
    int did = 0;
    transfer->working++; /* the record stays while the lock is open */
    if (!transfer->gated || gpi_ring_gate_passed(ring, transfer)) {
        slot = gpi_ring_begin(ring, transfer);
        did = slot != NULL;
        if (slot && transfer->down) gpi_ring_advance_down(ring, transfer, slot);
        else if (slot) gpi_ring_advance_up(ring, transfer, slot);
        /* Only the last thread in the transfer may land it: others may still queue chunks. */
        if (transfer->lands && transfer->working == 1 && !gpi_ring_has_more(transfer))
            gpi_ring_land(ring, transfer);
    }
    transfer->working--;
    if (!gpi_ring_is_over(transfer)) return did;
    gpi_ring_finish(ring, transfer);
    return 1;
}

/* What a thread does first. Workers prefer one direction each, so that both directions go on at
   once. A caller that waits for something else leaves transfers with functions alone: such a
   function may wait for this very thread. */
typedef enum gpi_ring_role {
    GPI_RING_UPLOADS = GPUPOOL_UP,     /* even workers */
    GPI_RING_DOWNLOADS = GPUPOOL_DOWN, /* odd workers */
    GPI_RING_CALLER                    /* a thread in a call of the ring, outside of its own
                                          transfer */
} gpi_ring_role;

/* Does one thing for any of the transfers; else frees slots whose copies have ended. Returns
   whether there was something. Two passes: the role's own direction first. */
static int gpi_ring_work(gpupool_ring *ring, gpi_ring_role role) {
    gpupool_result result = GPUPOOL_OK;
    int pass = role == GPI_RING_CALLER;
    for (; pass < 2; pass++) {
        gpi_transfer *transfer = ring->transfers;
        for (; transfer; transfer = transfer->next) {
            if (role == GPI_RING_CALLER ? transfer->reader || transfer->writer
                                        : (transfer->down == (int)role) == pass) continue;
            if (gpi_ring_step(ring, transfer)) return 1;
            /* A transfer on the caller's stream is not moved along by CUDA's staging here: that
               could make this thread wait for the caller's stream. */
            if (transfer->stream == ring->streams[transfer->down] && gpi_ring_stall(ring, transfer))
                return 1; /* on the caller's stream, that would wait */
        }
    }
    return gpi_stage_poll(&ring->stage, &result);
}

/* ---- threads without work, and workers ---- */

/* Sleeps for at most `ns`, with the lock open. Returns whether it was woken. */
static int gpi_ring_sleep(gpupool_ring *ring, uint64_t ns) {
    gpi_gate *gate = &gpi_process.gate;
    unsigned seen = gpi_host_gate_seen(gate);
    gpi_ring_unlock(ring);
    gpi_host_gate_wait(gate, seen, ns);
    gpi_ring_lock(ring);
    return gpi_host_gate_seen(gate) != seen;
}

/* For a thread that found nothing to do: waits for news, with the lock open, so as not to be in the
   way of those that work. After GPI_RING_SPIN rounds it sleeps, longer each time, for at most
   most_ns. It does not rely on being woken, since the end of a copy wakes no thread. */
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

/* There was work again. If this thread has slept before, others may sleep still: wakes them. */
static void gpi_ring_busy(gpupool_ring *ring, unsigned *round) {
    if (*round >= GPI_RING_SPIN) gpi_ring_wake(ring);
    *round = 0;
}

/* Whether a worker is to look for work. More than GPI_RING_WORKERS_ALONE threads in one transfer
   only wait for each other, in CUDA's locks most of all. After a device reset there is none: CUDA
   may crash if it is asked for the ring's streams and events. */
static int gpi_ring_wants(const gpupool_ring *ring, const gpi_ring_thread *thread) {
    int reset;
    if (!ring->transfers) return 0;
    if (!ring->transfers->next && thread - ring->threads >= GPI_RING_WORKERS_ALONE) return 0;
    return gpi_driver_was_reset(&ring->stage.driver, &reset) != GPUPOOL_OK || !reset;
}

/* Whether workers are to end: the ring is being destroyed, or the process is ending. */
static int gpi_ring_stops(const gpupool_ring *ring) {
    return ring->stopping || GPI_READ(&gpi_process.ending);
}

/* A worker's life, with the lock held on entry and exit. A worker ends after GPI_RING_LEAVE_NS
   without work: then a program ends when its own threads have ended. */
static void gpi_ring_worker_loop(gpupool_ring *ring, const gpi_ring_thread *thread) {
    gpi_ring_role role = (thread - ring->threads) % 2 ? GPI_RING_DOWNLOADS : GPI_RING_UPLOADS;
    unsigned round = 0;
    while (!gpi_ring_stops(ring)) {
        int wanted = gpi_ring_wants(ring, thread);
        if (wanted && gpi_ring_work(ring, role)) gpi_ring_busy(ring, &round);
        else if (wanted || round < GPI_RING_SPIN) gpi_ring_idle(ring, &round, UINT64_MAX);
        else if (gpi_ring_sleep(ring, GPI_RING_LEAVE_NS)) round = 0;
        else if (!gpi_ring_wants(ring, thread)) break;
    }
}

/* The worker's thread function. `thread` is its record in the ring, which stays until it is
   joined. */
static void gpi_ring_worker(void *user) {
    gpi_ring_thread *thread = (gpi_ring_thread *)user;
    gpupool_ring *ring = thread->ring;
    gpi_visit visit;
    if (gpi_driver_enter(&ring->stage.driver, &visit) == GPUPOOL_OK) {
        gpi_ring_lock(ring);
        gpi_ring_worker_loop(ring, thread);
        gpi_ring_unlock(ring);
        gpi_driver_leave(&visit);
    }
    gpi_host_count_worker(-1);
    gpi_ring_lock(ring);
    thread->running = 0;
    ring->workers_running--;
    /* A worker that ends by itself detaches, so that nobody has to join it; gpi_ring_dismiss joins
       others. */
    if (!ring->stopping && gpi_host_thread_leave()) thread->started = 0;
    gpi_ring_unlock(ring);
}

/* Runs at exit. A worker in the middle of a CUDA call while CUDA is taken down could crash the
   process: waits until all workers have ended, for at most a second, since a worker may itself have
   called exit. In a forked child the count of workers is 0. */
static void gpi_ring_at_exit(void) {
    uint64_t start = gpi_host_now_ns();
    if (gpi_host_count_worker(0) == 0) return; /* or a child, that has none */
    GPI_PUBLISH(&gpi_process.ending, 1);
    gpi_host_gate_turn(&gpi_process.gate);
    while (gpi_host_count_worker(0) && gpi_host_now_ns() - start < 1000000000u) gpi_host_idle(64);
}

/* Joins a worker that has ended or is about to end. */
static void gpi_ring_join(gpi_ring_thread *thread) {
    if (thread->started) gpi_host_thread_join(&thread->worker);
    thread->started = 0;
}

/* Starts the workers that do not run. Called for the first transfer that is worth it, and again
   after workers have ended. The lock is open while a thread is started. */
static void gpi_ring_staff(gpupool_ring *ring) {
    int i, started;
    for (i = 0; i < ring->workers_wanted && !gpi_ring_stops(ring); i++) {
        gpi_ring_thread *thread = &ring->threads[i];
        if (thread->running) continue;
        gpi_ring_join(thread); /* it has ended */
        thread->ring = ring;
        thread->running = thread->started = 1;
        ring->workers_running++;
        gpi_host_count_worker(1);
        gpi_ring_unlock(ring);
        started = gpi_host_thread_start(&thread->worker, gpi_ring_worker, thread);
        gpi_ring_lock(ring);
        if (started) continue;
        gpi_host_count_worker(-1);
        thread->running = thread->started = 0;
        ring->workers_running--;
        ring->workers_wanted = i; /* the system has no more threads for the ring */
    }
}

/* Ends all workers and joins them, for gpupool_ring_destroy. The lock is open meanwhile. */
static void gpi_ring_dismiss(gpupool_ring *ring) {
    int i;
    ring->stopping = 1;
    gpi_ring_wake(ring);
    gpi_ring_unlock(ring);
    for (i = 0; i < GPI_RING_WORKERS_MOST; i++) gpi_ring_join(&ring->threads[i]);
    gpi_ring_lock(ring);
    ring->stopping = 0;
}

/* ---- tickets ---- */

/* Appends the transfer that `plan` describes to the list, and gives it a ticket. A gated transfer
   gets an event on the caller's stream first, and then runs on the ring's own stream. On failure
   (host memory, CUDA's event) nothing is changed. The lock is open in between. */
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
    if (record && result != GPUPOOL_OK) gpi_ring_keep_record(ring, record);
    if (result != GPUPOOL_OK) return result;
    event = record->event; /* the record's own, new or from its last use */
    *record = *plan;
    record->event = event;
    if (plan->gated) record->stream = ring->streams[plan->down];
    *ticket = record->ticket = ++ring->tickets;
    while (*link) link = &(*link)->next;
    *link = record;
    if (!plan->by_cuda) gpi_stage_begin(&ring->under_way[plan->down]);
    plan->is_file = 0; /* the record closes the file from now on */
    return GPUPOOL_OK;
}

/* The result of a ticket that is not in the list. A ticket above `forgotten` that is not among the
   failures has succeeded. E_ARGUMENT: never given out, or too old to tell. */
static gpupool_result gpi_ring_result_of(const gpupool_ring *ring, gpupool_ticket ticket) {
    uint64_t i, count = gpi_ground_min(ring->failure_count, GPI_RING_FAILURES);
    for (i = 0; i < count; i++) {
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

/* The transfer with this ticket; NULL: it is over, or never was. */
static gpi_transfer *gpi_ring_find(const gpupool_ring *ring, gpupool_ticket ticket) {
    gpi_transfer *transfer = ring->transfers;
    while (transfer && transfer->ticket != ticket) transfer = transfer->next;
    return transfer;
}

/* Does one thing for other transfers, for a thread that waits. Only where no worker is free: all
   that run may be in functions of the caller, which may wait for this thread. */
static int gpi_ring_help(gpupool_ring *ring) {
    const gpi_transfer *transfer = ring->transfers;
    int in_functions = 0;
    for (; transfer; transfer = transfer->next)
        if (transfer->reader || transfer->writer) in_functions += transfer->working;
    return in_functions >= ring->workers_running && gpi_ring_work(ring, GPI_RING_CALLER);
}

/* Returns the ticket's result once it is done; E_TIMEOUT after most_ns (UINT64_MAX: never).
   Meanwhile this thread works for the transfer, unless most_ns is 0. The lock is held on entry and
   exit. */
static gpupool_result gpi_ring_wait(gpupool_ring *ring, gpupool_ticket ticket, uint64_t most_ns) {
    uint64_t start = gpi_host_now_ns(), waited;
    gpupool_result ignored = GPUPOOL_OK; /* failures of other transfers' copies: theirs have been
                                            told */
    gpi_transfer *transfer;
    unsigned round = 0;
    while ((transfer = gpi_ring_find(ring, ticket)) != NULL) {
        int did = (most_ns && (gpi_ring_step(ring, transfer) || gpi_ring_stall(ring, transfer))) ||
                  gpi_ring_help(ring) || gpi_stage_poll(&ring->stage, &ignored);
        if (!gpi_ring_find(ring, ticket)) break;
        waited = gpi_host_now_ns() - start;
        if (waited >= most_ns)
            return gpi_host_fail(GPUPOOL_E_TIMEOUT, "gpupool_ring_wait: ticket %" PRIu64
                                 " is not done yet", ticket);
        if (did) gpi_ring_busy(ring, &round);
        else gpi_ring_idle(ring, &round, most_ns - waited);
    }
    return gpi_ring_result_of(ring, ticket);
}

/* A negative timeout becomes more than 2^63 ns: for ever. */
gpupool_result gpupool_ring_wait(gpupool_ring *ring, gpupool_ticket ticket, int64_t timeout_ns) {
    gpi_visit visit;
    gpupool_result result = gpi_ring_enter(ring, "gpupool_ring_wait", &visit);
    if (result != GPUPOOL_OK) return result;
    result = gpi_ring_wait(ring, ticket, (uint64_t)timeout_ns);
    return gpi_ring_leave(ring, &visit, result);
}

/* == SEND =====================================================================================
   Decides which way a transfer goes, and has the ring's public calls. Each public call fills in a
   gpi_transfer, the plan, which gpi_send_rows checks and carries out. uses: RING and above

       host memory                                  way     who copies
       -------------------------------------------  ------  ---------------------------------------
       a function of the caller's, or a file        RING    workers and callers, through slots
       ordinary, tiny, and no ticket                CUDA    CUDA's own staging
       pinned, registered or managed                PINNED  the device, directly; the host waits
       device memory                                DEVICE  the device, directly, in stream order
       any other                                    RING    workers and callers, through slots

   A transfer on way RING joins the ring's list. A call without a ticket works for its own transfer
   until that is done. Spans are slots that a caller fills in place.

   Locks: public calls take the ring's lock in gpi_ring_enter and open it around CUDA calls. Only
   gpi_send_tiny goes without the lock: it changes nothing but statistics.

   Read first: gpi_send_way, gpi_send_carry_out, gpi_send_rows, gpi_send_span_slots. */

/* -- the ways of a transfer -- */

typedef enum gpi_way {
    GPI_WAY_RING,   /* through slots */
    GPI_WAY_CUDA,   /* CUDA's own staging: for so few bytes nothing else pays */
    GPI_WAY_PINNED, /* directly; the host can see the memory too, so an upload waits for its end */
    GPI_WAY_DEVICE  /* directly, in stream order; the host waits for nothing */
} gpi_way;

/* Decides which way a transfer goes, on a stream that does not capture. Asks CUDA what kind of
   memory the host side begins and ends in: memory that is pinned at both ends is taken for pinned,
   and gpi_send_carry_out notices where it is not. Takes no lock. */
static gpupool_result gpi_send_way(const gpi_transfer *plan, gpi_way *way) {
    gpi_place_kind first = GPI_PLACE_ORDINARY, last = GPI_PLACE_ORDINARY;
    uint64_t tiny = plan->gated ? GPI_RING_SMALL : GPI_RING_TINY, end = plan->bytes;
    gpupool_result result;
    *way = GPI_WAY_RING;
    /* Functions and files have no host address to ask CUDA about. */
    if (plan->reader || plan->writer || plan->is_file) return GPUPOOL_OK;
    /* Rows: the last byte lies a pitch for each row further. */
    if (plan->width != end) end = (end / plan->width - 1) * plan->host_pitch + plan->width;
    /* The last byte is asked for only where it can matter: each query is a call of the driver. */
    result = gpi_data_kind(plan->driver, plan->host, &first);
    if (result == GPUPOOL_OK && first == GPI_PLACE_PINNED)
        result = gpi_data_kind(plan->driver, plan->host + end - 1, &last);
    if (first == GPI_PLACE_DEVICE) *way = GPI_WAY_DEVICE;
    else if (last == GPI_PLACE_PINNED) *way = GPI_WAY_PINNED;
    /* One long row only: rows with pitches go through slots, however few bytes they have. */
    else if (first == GPI_PLACE_ORDINARY && plan->width == plan->bytes && plan->bytes <= tiny)
        *way = GPI_WAY_CUDA;
    return result;
}

/* E_CAPTURING if the stream captures. The query does not end the capture. */
static gpupool_result gpi_send_may_queue(const gpi_transfer *plan) {
    if (!gpi_driver_is_capturing(plan->driver, plan->stream)) return GPUPOOL_OK;
    return gpi_host_fail(GPUPOOL_E_CAPTURING, "%s: the stream captures, and a graph would read the "
                         "host's memory when it is launched, not now", plan->call);
}

/* Carries out a checked transfer of at least one byte. With a ticket it returns once the transfer
   is in the list; without, once the transfer is done. The lock is held on entry and exit, and open
   meanwhile. */
static gpupool_result gpi_send_carry_out(gpupool_ring *ring, gpi_transfer *plan,
                                         gpupool_ticket *ticket) {
    gpi_way way = GPI_WAY_RING;
    gpupool_ticket own = 0;
    gpupool_result result;
    gpi_ring_unlock(ring);
    result = gpi_send_may_queue(plan);
    if (result == GPUPOOL_OK) result = gpi_send_way(plan, &way);
    if (way == GPI_WAY_CUDA && ticket) way = GPI_WAY_RING; /* CUDA's staging may wait for the
                                                              stream */
    plan->by_cuda = way != GPI_WAY_RING;
    if (result == GPUPOOL_OK && plan->by_cuda)
        result = gpi_ring_queue(plan, plan->host, plan->host_pitch, 0, plan->bytes);
    /* Between its ends the memory has a part that is not pinned: CUDA refuses the copy, and the
       ring copies instead. */
    if (way == GPI_WAY_PINNED && result == GPUPOOL_E_CUDA &&
        gpi_thread.cuda_error == (int)CUDA_ERROR_INVALID_VALUE) { /* pinned in part: staged */
        plan->by_cuda = 0;
        result = GPUPOOL_OK;
    }
    /* The call's promise: the source may be changed, the destination is filled. */
    if (plan->by_cuda && !ticket && way == GPI_WAY_PINNED && result == GPUPOOL_OK)
        result = gpi_driver_stream_sync(plan->driver, plan->stream);
    gpi_ring_lock(ring);
    if (result != GPUPOOL_OK) return result;
    /* Done already, and nobody has a ticket for it. */
    if (plan->by_cuda && !ticket) {
        gpi_ring_count(ring, plan);
        return GPUPOOL_OK;
    }
    /* With a ticket: the record only tells when the copy has ended. */
    if (plan->by_cuda) plan->cursor = plan->bytes;
    plan->lands = plan->gated && !plan->down && !plan->by_cuda;
    /* Another thread may wait for the ticket before this call returns: gpi_ring_post writes the
       ticket with the lock held. */
    result = gpi_ring_post(ring, plan, ticket ? ticket : &own);
    /* The copy is queued, and the caller is told that the call failed: the memory must not be in
       use afterwards. */
    if (result != GPUPOOL_OK && plan->by_cuda) plan->driver->stream_sync(plan->stream);
    if (result != GPUPOOL_OK) return result;
    /* Smaller transfers are over before a worker is awake: the caller copies them alone. */
    if (!plan->by_cuda && (ticket || plan->bytes >= GPI_RING_HELP)) gpi_ring_staff(ring);
    if (ticket || plan->bytes >= GPI_RING_HELP) gpi_ring_wake(ring);
    return ticket ? GPUPOOL_OK : gpi_ring_wait(ring, own, UINT64_MAX);
}

/* The short way of a tiny transfer by CUDA's own staging: no lock, and no check of the ring but for
   fork and reset. Returns 1 if the transfer is done. On 0 nothing was queued, or a copy has failed;
   the long way then finds the reason, and copies the bytes once more. */
static int gpi_send_tiny(gpupool_ring *ring, gpi_transfer *plan) {
    const gpi_driver *driver = plan->driver;
    gpi_way way = GPI_WAY_RING;
    int reset, did;
    /* gpi_ring_enter's checks, without its lock and its message. */
    if (plan->bytes > (plan->gated ? GPI_RING_SMALL : GPI_RING_TINY)) return 0;
    if (ring->forks != gpi_process.forks) return 0;
    if (gpi_driver_was_reset(driver, &reset) != GPUPOOL_OK || reset) return 0;
    if (gpi_driver_push(driver, driver->context) != GPUPOOL_OK) return 0;
    did = !gpi_driver_is_capturing(driver, plan->stream) &&
          gpi_send_way(plan, &way) == GPUPOOL_OK && way == GPI_WAY_CUDA &&
          gpi_ring_queue(plan, plan->host, plan->bytes, 0, plan->bytes) == GPUPOOL_OK;
    gpi_driver_pop(driver, driver->context);
    /* A copy that failed may have been given a bad pointer: the long way reports it. */
    if (!did) return 0;
    plan->by_cuda = 1;
    gpi_ring_lock(ring);
    gpi_ring_count(ring, plan);
    gpi_ring_unlock(ring);
    return 1;
}

/* All transfers come here, as `rows` rows of the plan's width. Checks the arguments, completes the
   plan and carries it out. No lock is held. Transfers of 0 bytes succeed, with a ticket that is
   done. */
static gpupool_result gpi_send_rows(gpupool_ring *ring, gpi_transfer *plan, uint64_t rows,
                                    gpupool_ticket *ticket) {
    uint64_t pitch = gpi_ground_max(plan->device_pitch, plan->host_pitch);
    int any = plan->width && rows;
    const char *wrong = NULL;
    gpupool_result result;
    gpi_visit visit;
    /* Products are compared by division, so that huge arguments do not wrap. A NULL ring is told
       before these mistakes. */
    if (any && (plan->device_pitch < plan->width || plan->host_pitch < plan->width))
        wrong = "a pitch is less than the width";
    else if (any && pitch > (uint64_t)PTRDIFF_MAX / rows)
        wrong = "bytes, or pitch by rows, is more than any memory has";
    else if (any && !plan->device) wrong = "the device pointer is NULL";
    else if (any && !plan->host && !plan->reader && !plan->writer && !plan->is_file)
        wrong = "the host pointer is NULL";
    if (!ring) return gpi_ring_exists(ring, plan->call);
    if (wrong) return gpi_host_fail(GPUPOOL_E_ARGUMENT, "%s: %s", plan->call, wrong);
    /* The memory of an arena that sleeps is not mapped: a copy would be a fault that ends the
       context. */
    result = gpi_sleep_is_at(plan->call, plan->device);
    if (result != GPUPOOL_OK) return result;
    plan->driver = &ring->stage.driver;
    plan->bytes = plan->width * rows;
    if (plan->device_pitch == plan->width && plan->host_pitch == plan->width) /* one long row */
        plan->width = plan->device_pitch = plan->host_pitch = plan->bytes;
    /* An upload on the caller's stream copies without a gate. Downloads are read by the host, and
       tickets must not disturb the stream. Workers cannot use this thread's cudaStreamPerThread. */
    plan->gated = ticket || plan->down || plan->stream == cudaStreamPerThread;
    if (any && !ticket && gpi_send_tiny(ring, plan)) return gpi_host_ok();
    result = gpi_ring_enter(ring, plan->call, &visit);
    if (result != GPUPOOL_OK) return result;
    if (any) result = gpi_send_carry_out(ring, plan, ticket);
    /* Nothing to do, and nothing to wait for. */
    else if (ticket) *ticket = ++ring->tickets; /* nothing to do, and nothing to wait for */
    return gpi_ring_leave(ring, &visit, result);
}

/* A plan for one row. Both sides are stored without const, as one type for both directions; which
   of them is written depends on `down`. A stream of 0 is the legacy default stream: NAMES has
   replaced it in files where it means another one. */
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

/* Fails with E_ARGUMENT: an argument is NULL. */
static gpupool_result gpi_send_lacks(const char *call, const char *what) {
    gpi_host_begin();
    return gpi_host_fail(GPUPOOL_E_ARGUMENT, "%s: %s is NULL", call, what);
}

/* The two short forms: one row, no ticket. Contracts are in section API. */
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

/* A transfer from a file, from `offset` on. gpi_host_file_open may open a descriptor of its own,
   for O_DIRECT: the record in the ring's list closes it; if no record was made, this function
   does. */
static gpupool_result gpi_send_file(gpupool_ring *ring, gpi_transfer *plan, int file,
                                    uint64_t offset, gpupool_ticket *ticket) {
    gpupool_result result = gpi_ring_exists(ring, plan->call);
    if (result != GPUPOOL_OK) return result;
    if (offset > INT64_MAX || plan->width > (uint64_t)INT64_MAX - offset)
        return gpi_host_fail(GPUPOOL_E_ARGUMENT, "%s: no file has so many bytes", plan->call);
    /* Checks the file's size, and opens the file a second time for O_DIRECT where that pays. All
       threads read through that one descriptor, each at its own offset. */
    result = gpi_file_open(&plan->file, file, offset, plan->width);
    if (result != GPUPOOL_OK) return result;
    plan->is_file = 1;
    plan->file_offset = offset;
    result = gpi_send_rows(ring, plan, 1, ticket);
    if (plan->is_file) gpi_file_close(&plan->file);
    return result;
}

/* As gpupool_upload, with a file in place of the host memory. */
gpupool_result gpupool_upload_file(gpupool_ring *ring, void *device_dst, int file, uint64_t offset,
                                   size_t bytes, cudaStream_t stream) {
    gpi_transfer plan = gpi_send_plan("gpupool_upload_file", device_dst, NULL, bytes, stream);
    return gpi_send_file(ring, &plan, file, offset, NULL);
}

/* The mistake in a transfer's fields, in words; NULL: none. gpi_send_rows finds the others. */
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
    /* In the public struct the two sides are `from` and `to`; inside they are device and host. */
    device = transfer->direction == GPUPOOL_UP ? transfer->to : transfer->from;
    host = transfer->direction == GPUPOOL_UP ? transfer->from : transfer->to;
    /* The host's address means nothing then, and is not checked. */
    if (transfer->read || transfer->write || transfer->is_file) host = NULL;
    plan = gpi_send_plan(call, device, host, transfer->bytes, transfer->stream);
    plan.down = (int)transfer->direction;
    /* Without pitches there is one row: gpi_send_mistake has refused more. */
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

/* Each part has a ticket of its own. At most MOST are in the list at a time, so that the ring still
   remembers a failure when its ticket is waited for. After the first failure no part is added, the
   parts that are under way are waited for, and the first failure is the result. */
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
        /* Post the next part, or wait for the oldest that is under way. Each round does one of the
           two. */
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
        /* The waits that follow overwrite the thread's message. */
        memcpy(text, gpi_thread.draft, sizeof text);
    }
    return result == GPUPOOL_OK ? gpi_host_ok() : gpi_host_fail(result, "%s", text);
}

/* -- the ring, in public -- */

/* Fails with E_ARGUMENT: a field of the config has a value that breaks this rule. */
static gpupool_result gpi_send_wrong(const char *field, double value, const char *rule) {
    return gpi_host_fail(GPUPOOL_E_ARGUMENT, "gpupool_ring_create: config.%s is %.0f, and must be "
                         "%s", field, value, rule);
}

/* Replaces zeros in the config by defaults, and checks all values. A worker for each processor but
   one, at most GPI_RING_WORKERS, since the calling thread copies too. A default chunk_bytes that is
   more than a quarter of the ring is lowered to that. workers is at least 0 afterwards. */
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
    /* From here on workers is a number of threads. */
    if (config->workers < 0 || GPUPOOL_SINGLE_THREAD) config->workers = 0;
    if (!chunk) chunk = GPUPOOL_RING_CHUNK_BYTES;
    chunk = (size_t)gpi_ground_max(gpi_ground_min(chunk, config->bytes / 4), 1u << 16);
    config->chunk_bytes = (size_t)gpi_ground_down(chunk, GPI_PAGE_BYTES);
    return GPUPOOL_OK;
}

/* Sets up a new ring and creates its two streams: both or none. The device's context is current. */
static gpupool_result gpi_send_open(gpupool_ring *ring, const gpupool_ring_config *config) {
    const gpi_driver *driver = &ring->stage.driver;
    gpupool_result result = GPUPOOL_OK;
    int way;
    ring->stage.slot_bytes = config->chunk_bytes;
    ring->stage.count = config->bytes / config->chunk_bytes;
    ring->forks = gpi_process.forks;
    ring->workers_wanted = config->workers;
    for (way = 0; way < 2 && result == GPUPOOL_OK; way++)
        result = gpi_driver_stream_new(driver, &ring->streams[way]);
    if (result != GPUPOOL_OK && way == 2) driver->stream_destroy(ring->streams[0]);
    return result;
}

/* Frees what the ring has on the host, and the ring. CUDA's side is gone, or was never there. */
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

/* Pins nothing and starts no thread: transfers do. The ring's memory is zeroed, which is a valid
   empty ring; so a failure at any step ends in gpi_send_forget. */
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
    /* Before the ring exists, so that every later fork is counted: ring->forks tells a child from
       this process. */
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

/* Unpins from the highest slot down; stops at the first slot in use. */
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

/* Gives all that is CUDA's back: waits until nothing flies, unpins, destroys events and streams. No
   transfer is left and no span is taken. If CUDA refuses something, the ring stays usable with what
   it has left, and a later call goes on from there. The lock is held, and open in between. */
static gpupool_result gpi_send_close(gpupool_ring *ring) {
    gpupool_result result = GPUPOOL_OK;
    gpi_transfer *record;
    unsigned round = 0;
    while (result == GPUPOOL_OK && ring->stage.flying.now)
        if (!gpi_stage_poll(&ring->stage, &result)) gpi_ring_idle(ring, &round, UINT64_MAX);
    if (result == GPUPOOL_OK) result = gpi_stage_close(&ring->stage);
    for (record = ring->spare; record && result == GPUPOOL_OK; record = record->next)
        result = gpi_driver_forget(&ring->stage.driver, &record->event);
    if (result == GPUPOOL_OK && ring->streams[0] != ring->streams[1]) {
        result = gpi_driver_stream_drop(&ring->stage.driver, ring->streams[0]);
        /* One stream does for both directions, if the ring has to live on. */
        if (result == GPUPOOL_OK) ring->streams[0] = ring->streams[1];
    }
    if (result != GPUPOOL_OK) return result;
    return gpi_driver_stream_drop(&ring->stage.driver, ring->streams[1]);
}

/* After a device reset CUDA has destroyed streams, events and pinned memory: only the host's side
   is freed then, and transfers that were left in the list. */
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
    if (result == GPUPOOL_OK && !reset && ring->spans_taken)
        result = gpi_host_fail(GPUPOOL_E_IN_USE, "gpupool_ring_destroy: spans still held: "
                               "%" PRIu64, ring->spans_taken);
    /* This thread works for transfers with tickets until all are done. Functions of the caller run
       on the workers, which are dismissed afterwards; a ring without workers has only this thread
       to run them. */
    while (result == GPUPOOL_OK && !reset && ring->transfers) {
        gpi_ring_role role = ring->workers_running ? GPI_RING_CALLER : GPI_RING_UPLOADS;
        if (gpi_ring_work(ring, role)) round = 0;
        else gpi_ring_idle(ring, &round, UINT64_MAX);
    }
    /* No transfer is left, so no worker is in a function of the caller: joining them ends. */
    if (result == GPUPOOL_OK) gpi_ring_dismiss(ring);
    if (result == GPUPOOL_OK && !reset) result = gpi_send_close(ring);
    if (result != GPUPOOL_OK) return gpi_ring_leave(ring, &visit, result);
    /* After a reset: tickets whose copies the reset has ended. */
    while ((left = ring->transfers) != NULL) { /* tickets; the reset has taken the rest */
        ring->transfers = left->next;
        gpi_ring_keep_record(ring, left);
        if (left->is_file) gpi_file_close(&left->file);
    }
    /* Not gpi_ring_unlock: what is left of the ring need not pass its check. */
    gpi_host_unlock(&ring->stage.lock);
    gpi_driver_leave(&visit);
    gpi_send_forget(ring);
    return gpi_host_ok();
}

/* -- spans -- */

/* The first slot of a span that a caller has; NULL, with E_ARGUMENT: this ring has no such span.
   The number tells one span of a ring from another, and the memory tells rings apart, since each
   ring counts its spans from 1. The lock is held. */
static gpi_stage_slot *gpi_send_span(const gpupool_ring *ring, const char *call,
                                     const gpupool_span *span) {
    uint64_t i, end = span ? ring->stage.top : 0;
    for (i = 0; i < end; i++) {
        gpi_stage_slot *slot = &ring->stage.slots[i];
        /* Searches all slots in use: a ring has few, and spans are large. */
        if (slot->state == GPI_STAGE_TAKEN && slot->run && slot->span &&
            slot->span == span->number && span->memory == gpi_stage_memory(&ring->stage, slot))
            return slot;
    }
    gpi_host_fail(GPUPOOL_E_ARGUMENT, "%s: %s", call,
                  span ? "this span is not held, or is another ring's" : "span is NULL");
    return NULL;
}

/* Whether waiting can give `bytes` in a row: slots that fly will come free, and other threads may
   give their spans back. Else the result to return. A thread that has a span itself does not count
   on the spans of others: their threads may wait for its own. If the host has just refused to pin,
   the slots that are pinned have to do; gpi_thread.result then has the refusal. The lock is
   held. */
static gpupool_result gpi_send_span_hope(const gpupool_ring *ring, size_t bytes) {
    const gpi_stage_slot *slots = ring->stage.slots, *first = slots;
    gpupool_result refused = gpi_thread.result;
    uint64_t end = refused == GPUPOOL_OK ? ring->stage.count : ring->stage.pinned_slots;
    uint64_t thread = gpi_host_thread_number(), run = 0, longest = 0, i;
    int has_own = 0;
    for (i = 0; i < ring->stage.top; i++)
        has_own |= slots[i].state == GPI_STAGE_TAKEN && slots[i].run && slots[i].taker == thread;
    /* The longest run of slots that are free or will come free. A slot that is TAKEN without a span
       is lost until the ring is destroyed. */
    for (i = 0; i < end; i++) {
        int is_taken = i < ring->stage.top && slots[i].state == GPI_STAGE_TAKEN;
        if (is_taken && slots[i].run) first = &slots[i];
        run = is_taken && (has_own || !first->span) ? 0 : run + 1;
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

/* Takes slots for `bytes`, waiting for at most most_ns. NULL, with a result: E_TIMEOUT, or a
   failure. Works for other transfers meanwhile, where no worker can. The lock is held on entry and
   exit. */
static gpi_stage_slot *gpi_send_span_slots(gpupool_ring *ring, size_t bytes, uint64_t most_ns,
                                           gpupool_result *result) {
    uint64_t start = gpi_host_now_ns(), size = ring->stage.slot_bytes, waited;
    unsigned round = 0;
    for (;;) {
        gpi_stage_slot *slot;
        int did;
        gpi_host_ok(); /* gpi_send_span_hope looks here for a refusal to pin */
        /* Whole slots. gpi_ring_slots frees and pins slots as for a chunk. */
        slot = gpi_ring_slots(ring, (bytes + size - 1) / size, result);
        if (slot || *result != GPUPOOL_OK) return slot;
        *result = gpi_send_span_hope(ring, bytes);
        if (*result != GPUPOOL_OK) return NULL;
        /* Slots come free only if transfers go on, and every worker may be in a function that waits
           for this thread. */
        did = gpi_ring_help(ring);
        waited = gpi_host_now_ns() - start;
        if (waited >= most_ns) break;
        if (did) gpi_ring_busy(ring, &round);
        else gpi_ring_idle(ring, &round, most_ns - waited);
    }
    *result = gpi_host_fail(GPUPOOL_E_TIMEOUT, "gpupool_ring_acquire_span: the ring stayed full");
    return NULL;
}

/* A negative timeout becomes more than 2^63 ns: for ever. */
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
        gpi_stage_set(slot, GPI_STAGE_TAKEN);
        slot->span = span->number = ++ring->spans;
        slot->taker = gpi_host_thread_number();
        slot->length = span->bytes = bytes;
        span->memory = gpi_stage_memory(&ring->stage, slot);
        ring->spans_taken++;
    }
    return gpi_ring_leave(ring, &visit, result);
}

/* On success the span flies and the caller's struct is cleared. On failure the span is the caller's
   as before, so that the call can be repeated or the span cancelled. */
gpupool_result gpupool_ring_upload_span(gpupool_ring *ring, gpupool_span *span, void *device_dst,
                                   cudaStream_t stream) {
    gpi_transfer plan = gpi_send_plan("gpupool_ring_upload_span", device_dst, NULL, 0, stream);
    gpi_visit visit;
    gpi_stage_slot *slot;
    uint64_t span_bytes;
    int lost = 0;
    gpupool_result result = gpi_ring_enter(ring, plan.call, &visit);
    if (result != GPUPOOL_OK) return result;
    slot = gpi_send_span(ring, plan.call, span);
    if (!slot) return gpi_ring_leave(ring, &visit, GPUPOOL_E_ARGUMENT);
    span_bytes = slot->length;
    plan.driver = &ring->stage.driver;
    if (!device_dst) result = gpi_send_lacks(plan.call, "device_dst");
    else if (span->bytes == 0 || span->bytes > span_bytes)
        result = gpi_host_fail(GPUPOOL_E_ARGUMENT, "%s: span.bytes was set to 0 or raised",
                               plan.call);
    else result = gpi_send_may_queue(&plan);
    if (result != GPUPOOL_OK) return gpi_ring_leave(ring, &visit, result);
    plan.width = plan.bytes = slot->length = span->bytes;
    gpi_stage_set(slot, GPI_STAGE_FILLING); /* the lock opens: no other thread finds the span now */
    gpi_ring_unlock(ring);
    /* `lost` is not looked at: on failure the span stays taken, and its slots with it. */
    result = gpi_ring_send(ring, slot, &plan, &lost);
    gpi_ring_lock(ring);
    gpi_stage_set(slot, GPI_STAGE_TAKEN);
    if (result == GPUPOOL_OK) {
        gpi_stage_fly(&ring->stage, slot);
        gpi_ring_count(ring, &plan);
        ring->span_bytes += plan.bytes;
        ring->spans_taken--;
        memset(span, 0, sizeof *span);
    } else {
        slot->length = span_bytes;
    }
    return gpi_ring_leave(ring, &visit, result);
}

/* Gives the span back unsent. */
gpupool_result gpupool_ring_cancel_span(gpupool_ring *ring, gpupool_span *span) {
    gpi_visit visit;
    gpi_stage_slot *slot;
    gpupool_result result = gpi_ring_enter(ring, "gpupool_ring_cancel_span", &visit);
    if (result != GPUPOOL_OK) return result;
    slot = gpi_send_span(ring, "gpupool_ring_cancel_span", span);
    if (!slot) return gpi_ring_leave(ring, &visit, GPUPOOL_E_ARGUMENT);
    gpi_stage_free(&ring->stage, slot);
    ring->spans_taken--;
    memset(span, 0, sizeof *span);
    return gpi_ring_leave(ring, &visit, result);
}

/* -- figures -- */

/* Everything is read under the lock, as of one moment. Rates are means over the time in which at
   least one transfer of that direction was under way. */
gpupool_result gpupool_ring_get_stats(gpupool_ring *ring, gpupool_ring_stats *stats) {
    const gpi_stage *stage;
    uint64_t now;
    int way;
    gpupool_result result = gpi_ring_exists(ring, "gpupool_ring_get_stats");
    if (result != GPUPOOL_OK) return result;
    if (!stats) return gpi_send_lacks("gpupool_ring_get_stats", "stats");
    stage = &ring->stage;
    gpi_ring_lock(ring);
    now = gpi_host_now_ns(); /* with the lock: not before the times that others have noted */
    *stats = ring->stats;
    stats->struct_bytes = sizeof *stats;
    stats->pinned = stage->pinned;
    stats->used = stage->used;
    /* The most that can be pinned: config.bytes in whole slots. */
    stats->limit_bytes = stage->count * stage->slot_bytes;
    stats->workers = (uint64_t)ring->workers_running;
    stats->pin_ns = stage->pin_ns;
    stats->pin_failures = stage->pin_failures;
    stats->link_busy_ns[GPUPOOL_UP] = gpi_stage_ns(&stage->flying, now);
    stats->link_busy_ns[GPUPOOL_DOWN] = gpi_stage_ns(&ring->arriving, now);
    for (way = 0; way < 2; way++) {
        double seconds, bytes = (double)stats->staged_bytes[way];
        if (way == GPUPOOL_UP) bytes -= (double)ring->span_bytes; /* a span is filled while no
                                                                     transfer is under way */
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

/* Takes the lock without gpi_ring_lock, whose assert would end the program before the result is
   told. */
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
   Results, the build, sources and numbers as text. Also checks text from outside, names and file
   names, for what JSON and SVG can hold. uses: HOST */

/* Valid for every value; a number that is no gpupool_result gets a text of its own. */
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

/* The last call's failure is in `draft`. If the last call succeeded, `draft` may have a failure
   that the call repaired inside, so the text is the one that gpi_host_begin kept. */
const char *gpupool_last_error(void) {
    return gpi_thread.result == GPUPOOL_OK ? gpi_thread.text : gpi_thread.draft;
}

/* A macro's value as a string: the second macro, so that the first sees the value, not the name. */
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

/* The end of every call that writes to a file: E_FILE if the file could not take everything. A
   caller may have set the file's error flag before; then errno is 0, and the message says so. */
static gpupool_result gpi_wording_done(const char *call, FILE *file) {
    if (fflush(file) == 0 && !ferror(file)) return gpi_host_ok();
    return gpi_host_fail(GPUPOOL_E_FILE, "%s: the file cannot be written: %s", call,
                         errno ? strerror(errno) : "something before this call could not");
}

/* The number of bytes of the UTF-8 character that the text begins with. 0: the first byte begins no
   valid character, since the text is in another encoding or was cut off in a character. */
static size_t gpi_wording_letter(const char *text, size_t length) {
    unsigned first = (unsigned char)*text, second, i;
    /* 0xc0 and 0xc1 would begin characters that are longer than need be. */
    size_t bytes = first < 0x80 ? 1 : first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3
                   : first < 0xf5 ? 4 : 0;
    if (bytes < 2 || bytes > length) return bytes > length ? 0 : bytes;
    for (i = 1; i < bytes; i++)
        if (((unsigned char)text[i] & 0xc0) != 0x80) return 0;
    second = (unsigned char)text[1]; /* not valid either: longer than need be, a half of a surrogate
                                        pair, above U+10FFFF */
    if ((first == 0xe0 && second < 0xa0) || (first == 0xed && second >= 0xa0) ||
        (first == 0xf0 && second < 0x90) || (first == 0xf4 && second >= 0x90))
        return 0;
    return bytes;
}

/* The value with a decimal point in every locale, where printf would take the locale's. `digits`
   digits behind the point, rounded. The value is not negative. Returns `room`. */
static const char *gpi_wording_decimal(char room[32], double value, int digits) {
    uint64_t scale = 1, parts;
    int i;
    for (i = 0; i < digits; i++) scale *= 10;
    parts = (uint64_t)(value * (double)scale + 0.5);
    snprintf(room, 32, "%" PRIu64 ".%0*" PRIu64, parts / scale, digits, parts % scale);
    return room;
}

/* In the order of gpupool_source. */
static const char *gpi_wording_source(gpupool_source source) {
    static const char names[7][8] = {"auto", "mapped", "device", "managed",
                                     "pinned", "custom", "bypass"};
    return names[source];
}

/* == VIEW =====================================================================================
   A copy of the arena as it is at one moment, sorted by address. Reports, files, pictures and
   gpupool_walk_blocks are made from such a copy, with no lock held. uses: ARENA, FIGURES

       address    |  block  | free |      block      | freed, pending |       |   block    | free  |
       stretches  |   0     |  1   |       2         |       3        |  gap  |     4      |   5   |
       extents    |                       1                           |       |         2          |

   A stretch is one run of home memory: a block, a part of a stitched block, or free memory. A
   stitched block is several stretches, one for each of its parts. An extent is memory without a
   gap: chunks side by side that count as one in the lists that users see.

   A view has one allocation, `room`, for all its arrays. gpi_view_lay_out computes how much they
   need; gpi_view_open allocates that much with no lock held and tries again, until the arena fits.

   Locks: gpi_view_open takes the arena's `growing`, the locks of all streams and the arena's lock,
   for some 50 ns a block. All that works on the copy needs no lock.

   Read first: gpi_view_open, gpi_view_copy, gpi_view_copy_runs, gpi_view_next_chunk. */

enum {
    GPI_NOBODY = UINT16_MAX, /* in place of a stream's index: not known, or several streams */
    GPI_SHOWN = 8            /* biggest holders that a report shows */
};

typedef struct gpi_stretch { /* part of the arena's memory: a block, a part of one, or free */
    uint64_t unit, units;
    uint64_t block_unit;   /* live: where the block begins; another address than `unit` if it is
                              stitched */
    uint64_t block_bytes;  /* live: requested with the block; 0: the block's first stretch has
                              that */
    uint32_t slack_bytes;  /* live: granted minus requested; of a stitched block the last stretch
                              has it */
    uint32_t site;         /* live, with GPUPOOL_SITES: index into the view's sites */
    uint16_t stream;       /* index into the view's keys, or GPI_NOBODY */
    uint8_t state, first;  /* a gpupool_state; first: a chunk begins here without a neighbour before
                              it */
    uint8_t tag;           /* live: the tag's number; 0: none */
} gpi_stretch;

typedef struct gpi_view {
    gpupool_stats stats;
    char name[32], instead[96];
    int device, device_answered; /* device_answered: the two figures of the device are valid */
    gpupool_source source;
    size_t device_free_bytes, device_total_bytes; /* what CUDA says of the device's memory */
    void *room;             /* the allocation that all arrays below are in */
    uint64_t room_bytes, need_bytes; /* bytes of `room`; bytes that the arena needs now */
    gpi_stretch *stretches; /* sorted by address once the view is open */
    gpi_stretch *others;    /* room for as many, for sorting */
    uint64_t count;         /* of stretches */
    gpi_site *sites;        /* copies of the sites that have allocated; number: the index of the
                               stream */
    uint64_t site_count;
    uint64_t *keys;         /* the keys of the streams that the view names */
    uint64_t key_count, key_room;
    uint16_t last[64];      /* by a hash of the key: the index where the key was found last */
    uint16_t *lists;        /* by the number of a stream's free list: the stream's index */
    uint64_t units[3];      /* by state: units in all */
    gpi_holding holders[GPI_SHOWN]; /* the biggest holders, biggest first; unused: 0 blocks */
    gpupool_tag_stats tags[GPUPOOL_TAGS + 1]; /* by number; 0 is not used */
    int tag_count;
} gpi_view;

/* Divides `room` among the arrays, for as many runs, sites and streams as the arena has now.
   Returns 0, with need_bytes set, if the room is too small. All locks are held. */
static int gpi_view_lay_out(gpi_view *view, const gpupool_arena *arena) {
    uint64_t runs = arena->tree.page_count * GPI_PAGE - arena->tree.spare_count, sites = 0;
#if GPUPOOL_SITES
    sites = arena->ledger.site_count + 1;
#endif
    /* Live blocks and sites may name streams that the arena does not know any more. A key that
       finds no room is shown as not known. */
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

/* The index of a stream's key, which is added if it is new; GPI_NOBODY: key 0, or no room. Called
   for every live block: `last` remembers where keys were found, so that the search is rare. */
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

/* Notes for each stream's free list which stream owns it. The stream of gpupool_cudaFree,
   clocks.all, counts only after its first free. All locks are held. */
static void gpi_view_copy_streams(gpi_view *view, gpupool_arena *arena) {
    const gpi_stream *stream = arena->clocks.streams;
    for (; stream; stream = stream->next) {
        /* handle 0: the record is unused, and its free list is empty. */
        if (!stream->handle || (stream == arena->clocks.all && !stream->clock.issued)) continue;
        view->lists[stream->list] = gpi_view_stream(view, stream->handle);
    }
}

#if GPUPOOL_SITES
/* Copies the sites that have allocated, and numbers them in the ledger: gpi_view_copy_live finds a
   block's site by that number. Sites of equal text and stream count in one of them (same ==
   site). */
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

/* Describes a live run. `stitch` is NULL for a block that is one run. A stitched block is shown at
   home, as several stretches: the first tells what was requested, and the last has the slack.
   `block` is the run at the block's own address. */
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

/* A run that a stream's cache has: handed out from there, and then live, or free in the cache, and
   then pending, which gpi_view_copy_runs has set. The streams' locks are held. */
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

/* Whether a record stands for no memory: it is unused, it is addresses without memory behind them,
   or it is a stitch, whose parts are shown at home. Runs that a thread has taken are left out,
   too. */
static int gpi_view_skips(const gpupool_arena *arena, const gpi_run *run) {
    if (run->units == 0 || run->list == GPI_LIST_EMPTY) return 1;
    if (gpi_stitch_is(&arena->stitches, run)) return 1;
    return run->list == GPI_LIST_TAKEN;
}

/* Copies the runs of one page of records, in the order of the records: the tree's lists lead all
   over the host's memory, and that would take longer with all locks held. gpi_view_sort sorts them
   later. */
static void gpi_view_copy_runs(gpi_view *view, const gpupool_arena *arena, const gpi_run *run,
                               const gpi_run *end) {
    for (; run < end; run++) {
        gpi_stretch *stretch = &view->stretches[view->count];
        const gpi_stitch *stitch = NULL;
        const gpi_run *block = run;
        if (gpi_view_skips(arena, run)) continue;
        /* A part of a stitched block: the block's own record is at the stitch. */
        if (run->list == GPI_LIST_PART) {
            stitch = (const gpi_stitch *)run->of.uses;
            block = stitch->body;
        }
        /* Pending, of an unknown stream, is what freed memory is unless one of the cases below
           knows better. */
        memset(stretch, 0, sizeof *stretch);
        stretch->unit = run->unit;
        stretch->units = run->units;
        stretch->stream = GPI_NOBODY;
        stretch->state = GPUPOOL_STATE_PENDING;
        stretch->first = run->prev == NULL;
        /* Of freed memory, list ANY is free; what a stream's list or WAITING has is pending. */
        if (run->list == GPI_LIST_CACHED) gpi_view_copy_cached(view, run, stretch);
        else if (block->list == GPI_LIST_LIVE) gpi_view_copy_live(view, block, stitch, stretch);
        else if (gpi_tree_is_finished(run)) stretch->state = GPUPOOL_STATE_FREE;
        else if (run->list < GPI_LIST_WAITING) stretch->stream = view->lists[run->list];
        view->units[stretch->state] += run->units;
        view->count++;
    }
}

/* Copies all of the arena into the view. `growing` and all other locks are held, so no run is on
   its way between a thread and the tree but those that gpi_view_skips leaves out. */
static void gpi_view_copy(gpi_view *view, gpupool_arena *arena) {
    const gpi_stream *stream;
    gpi_cached cached;
    uint64_t page;
    int tag;
    memset(&cached, 0, sizeof cached);
    /* Blocks that are free in caches count as free in the figures, too. */
    for (stream = arena->clocks.streams; stream; stream = stream->next)
        gpi_cache_count(&stream->cache, &cached);
    gpi_figures_read(arena, &cached, &view->stats);
    memcpy(view->name, arena->name, sizeof view->name);
    memcpy(view->instead, arena->instead, sizeof view->instead);
    view->device = arena->chunks.driver.device;
    view->source = arena->chunks.source;
    gpi_view_copy_streams(view, arena);
    /* Streams first: what follows refers to them by index. Tags and sites before runs, for the same
       reason. */
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

enum { GPI_DIGIT = 11 }; /* bits of an address that one pass of gpi_view_sort looks at */

/* Bits `shift` and up of an address, as many as a digit has. */
static unsigned gpi_view_digit(uint64_t unit, unsigned shift) {
    return (unsigned)(unit >> shift & ((1 << GPI_DIGIT) - 1));
}

/* Sorts the stretches by address: a radix sort from the lowest digit, which costs a few ns a
   stretch. Passes end where the addresses do not differ any more. Each pass moves the stretches
   from one array to the other. No lock is held. */
static void gpi_view_sort(gpi_view *view) {
    uint64_t least = UINT64_MAX, most = 0, i, starts[(1 << GPI_DIGIT) + 1];
    gpi_stretch *from = view->stretches, *to = view->others;
    unsigned shift;
    for (i = 0; i < view->count; i++) {
        least = gpi_ground_min(least, from[i].unit);
        most = gpi_ground_max(most, from[i].unit);
    }
    /* Counting sort by one digit: starts[d] becomes the index where the stretches with digit d
       begin. */
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
/* Without sites: finds the sizes that have the most bytes. Round 0 votes for sizes, round 1 counts
   those that were elected: see VERDICT. Works on the copy, with no lock held. */
static void gpi_view_find_holders(gpi_view *view) {
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

/* Asks CUDA what memory the device has. The report goes on without these figures if CUDA cannot
   tell, so the thread's last error stays as it was. No lock is held. */
static void gpi_view_ask_device(gpi_view *view, const gpi_driver *driver) {
    struct gpi_thread before = gpi_thread;
    gpi_visit visit;
    if (view->source != GPUPOOL_SOURCE_PINNED &&
        gpi_driver_enter(driver, &visit) == GPUPOOL_OK) {
        view->device_answered =
            gpi_driver_memory(driver, view->stats.reserved.now, &view->device_free_bytes,
                              &view->device_total_bytes) == CUDA_SUCCESS;
        gpi_driver_leave(&visit);
    }
    gpi_thread = before;
}

/* Makes a copy of the arena; the caller frees view->room. E_HOST_MEMORY if the host has no room for
   it; then there is nothing to free. No lock is held on entry and exit. */
static gpupool_result gpi_view_open(gpi_view *view, gpupool_arena *arena, const char *call) {
    gpupool_result result = gpi_arena_begin(arena, call);
    gpi_stream *first;
    gpi_cached cached;
    int copied;
    memset(view, 0, sizeof *view);
    if (result != GPUPOOL_OK) return result;
    for (;;) {
        /* gpi_arena_fold counts what caches have counted; it returns with the arena's lock, which
           comes after the streams' locks in the order of locks, and so is opened first. */
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
        /* An eighth more: the arena may grow before the locks are taken again. */
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

/* Opens a view that is to be written to a file, with the device's figures. E_ARGUMENT for no
   file. */
static gpupool_result gpi_view_open_for(gpi_view *view, gpupool_arena *arena, const char *call,
                                        const FILE *file) {
    gpupool_result result = gpi_arena_begin(arena, call);
    if (result == GPUPOOL_OK && !file)
        result = gpi_host_fail(GPUPOOL_E_ARGUMENT, "%s: file is NULL", call);
    if (result == GPUPOOL_OK) result = gpi_view_open(view, arena, call);
    if (result == GPUPOOL_OK) gpi_view_ask_device(view, &arena->chunks.driver);
    return result;
}

/* Frees the view, and tells whether the file has taken everything. */
static gpupool_result gpi_view_close(gpi_view *view, const char *call, FILE *file) {
    GPUPOOL_FREE(view->room);
    return gpi_wording_done(call, file);
}

typedef struct gpi_extent { /* memory without a gap: chunks side by side */
    const gpi_stretch *from, *end; /* its stretches: from the first to before `end` */
    uint64_t number;               /* counted from 1; 0: before the first */
    uint64_t unit, all_units, units[3], requested_bytes; /* where it begins; in all; by state */
} gpi_extent;

/* Steps to the next extent; to the first, if number is 0. Returns 0 after the last. A new extent
   begins where the next stretch is marked `first`, and where there is a gap. */
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

/* The line of source that asked for a live block; NULL: not known. */
static const gpi_site *gpi_view_site(const gpi_view *view, const gpi_stretch *stretch) {
    const gpi_site *site;
    if (!GPUPOOL_SITES || stretch->state != GPUPOOL_STATE_LIVE) return NULL;
    site = &view->sites[stretch->site];
    return *site->file ? site : NULL;
}

/* -- the walk -- */

/* Describes a stretch as a gpupool_block. arena, device and source are set already. */
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

/* fn is called with no lock held, on the copy: so fn may use the arena, and sees its blocks as they
   were when the call began. */
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
    /* The struct's other fields stay as set above: all blocks are of one arena. */
    for (i = 0; i < view.count && !ended; i++) {
        gpi_view_describe(&view, &view.stretches[i], &block);
        ended = fn(&block, user);
    }
    GPUPOOL_FREE(view.room);
    if (!ended) return gpi_host_ok();
    return gpi_host_fail(GPUPOOL_E_CALLBACK, "gpupool_walk_blocks: fn returned %d", ended);
}

/* Bytes in this state; and all bytes that no block has. */
static uint64_t gpi_view_bytes(const gpi_view *view, gpupool_state state) {
    return view->units[state] * GPUPOOL_UNIT_BYTES;
}

static uint64_t gpi_view_free_bytes(const gpi_view *view) {
    return gpi_view_bytes(view, GPUPOOL_STATE_FREE) + gpi_view_bytes(view, GPUPOOL_STATE_PENDING);
}

/* Bytes of the device's memory that are in use, but not this arena's: CUDA's context, other
   libraries and processes. The limit does not count them. Valid if device_answered. */
static uint64_t gpi_view_others(const gpi_view *view) {
    uint64_t used = view->device_total_bytes - view->device_free_bytes;
    return used - gpi_ground_min(used, view->stats.reserved.now);
}

/* 0: all free memory could be one block; near 1: free memory makes small blocks only. */
static double gpi_view_fragmentation(const gpi_view *view) {
    uint64_t free_bytes = gpi_view_free_bytes(view);
    if (free_bytes == 0) return 0;
    return 1 - (double)view->stats.largest_block_bytes / (double)free_bytes;
}

/* == REPORT ===================================================================================
   Writes the arena for people and for programs: a screen of text, JSON, and a snapshot for
   PyTorch's viewer. Every writer opens a view, writes from it, and closes it. uses: WORDING, VIEW

       gpupool_report          gpi_report_...   fprintf, one function for each part of the screen
       gpupool_write_json      gpi_json_...     gpi_write, which knows JSON
       gpupool_write_snapshot  gpi_pickle_...   gpi_write, which knows pickles too

   The screen, and who writes which part:

       gpupool arena "model": device 0, source mapped                     gpupool_report
         [##########~~~~....            ] 3.00 GiB of a limit of 8 GiB    gpi_report_bar
                           now           peak          total              gpi_report_counters
         requested    2.20 GiB       2.50 GiB      41.00 GiB
         calls        allocs 1,234 (1,200 from the same stream), ...      gpi_report_counts
         tags, biggest holders                                            gpi_report_tags, _holders
         map: a character is 12.00 MiB   # live   + half or more ...      gpi_report_map
         ####++--~~..######

   gpi_write takes a short description of objects, lists and values, and their values as arguments.
   The same calls write JSON or a pickle: both have objects, lists, numbers and texts.

       gpi_write(out, "{a# b[$]}", 7, "x")    JSON      {"a":7,"b":["x"]}
                                              pickle    }( X a  \x8a 7  X b  ]( X x  e u

   Locks: none is held while anything is written. A full disk shows when the view is closed: writers
   do not look at the results of single writes.

   Read first: gpi_report_write, gpi_write, gpi_json_write. */

enum {
    GPI_BAR = 64,           /* characters of the bar, and of a line of the map */
    GPI_MAP_LINES = 4
};

/* The bar: live, freed and free memory, as parts of the limit; without a limit, of what the arena
   has reserved and the device has free. */
static void gpi_report_bar(FILE *file, const gpi_view *view) {
    uint64_t live = gpi_view_bytes(view, GPUPOOL_STATE_LIVE), limit = view->stats.limit_bytes;
    uint64_t freed = live + gpi_view_bytes(view, GPUPOOL_STATE_PENDING);
    uint64_t reserved = view->stats.reserved.now, whole = gpi_ground_max(limit, reserved);
    char a[32], b[32];
    int i;
    /* The bar's full width: the limit, or what is reserved where that is more. */
    if (!limit && view->device_answered) whole = reserved + view->device_free_bytes;
    whole = gpi_ground_max(whole, 1);
    fprintf(file, "  [");
    for (i = 0; i < GPI_BAR; i++) {
        /* The middle of this character's share; of the first, byte 1: a little memory is shown as
           such. */
        double at = i ? (i + 0.5) / (int)GPI_BAR * (double)whole : 1; /* a little is not nothing */
        char mark = at <= (double)reserved ? '.' : ' ';
        if (at <= (double)freed) mark = '~';
        if (at <= (double)live) mark = '#';
        fputc(mark, file);
    }
    /* The sentence behind the bar: how much is reserved, and of what. */
    if (limit)
        fprintf(file, "] %s of a limit of %s\n", gpi_limit_human(a, reserved),
                gpi_limit_human(b, limit));
    else if (view->device_answered)
        fprintf(file, "] %s, no limit; the device has %s more free\n", gpi_limit_human(a, reserved),
                gpi_limit_human(b, view->device_free_bytes));
    else
        fprintf(file, "] %s, no limit\n", gpi_limit_human(a, reserved));
    if (limit && reserved > limit)
        fprintf(file, "   above the limit by %s: no growth until that is given back\n",
                gpi_limit_human(a, reserved - limit));
    fprintf(file, "   # live   ~ freed, perhaps still in use   . free   (blank: not reserved)\n\n");
}

/* Writes a number in groups: "1,234,567". Returns `room`. */
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

/* In the order of gpi_ledger_counter_of. */
static const char gpi_report_names[GPI_COUNTERS][12] = {"requested", "granted", "reserved",
                                                        "pending", "blocks"};

/* The table of counters: bytes, but for blocks. */
static void gpi_report_counters(FILE *file, const gpi_view *view) {
    char now[32], peak[32], total[32];
    int i;
    fprintf(file, "  %-12s %14s %14s %14s\n", "", "now", "peak", "total");
    for (i = 0; i < GPI_COUNTERS; i++) {
        const gpupool_counter *counter = gpi_ledger_counter_of(&view->stats, i);
        /* The last counter is a number of blocks, the others are bytes. */
        const char *(*words)(char *, uint64_t) =
            i < GPI_COUNTERS - 1 ? gpi_limit_human : gpi_report_number; /* blocks are no bytes */
        fprintf(file, "  %-12s %14s %14s %14s\n", gpi_report_names[i], words(now, counter->now),
                words(peak, counter->peak), words(total, counter->total));
    }
}

/* What calls and the driver did, and how free memory lies. Lines that would be all zeros in most
   programs are left out. */
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
    if (view->device_answered)
        fprintf(file, "  %-12s %s of the device's %s: CUDA's context, libraries, other processes\n",
                "not counted", gpi_limit_human(a, gpi_view_others(view)),
                gpi_limit_human(b, view->device_total_bytes));
    fprintf(file, "  %-12s %s of host memory\n", "records", gpi_limit_human(a, stats->host_bytes));
}

/* The biggest holders: lines of source with GPUPOOL_SITES, else sizes of blocks. At most GPI_SHOWN,
   biggest first; the first unused record has 0 blocks. */
static void gpi_report_holders(FILE *file, const gpi_view *view) {
    const gpupool_holder *holder;
    char name[64], size[32], blocks[32];
    int i;
    for (i = 0; i < GPI_SHOWN && view->holders[i].shown.blocks; i++) {
        holder = &view->holders[i].shown;
        /* The heading comes with the first line, so that an arena without blocks has neither. */
        if (i == 0)
            fprintf(file, "\n  %-30s %12s %12s\n", GPUPOOL_SITES ? "biggest holders"
                    : "biggest holders (blocks of)", "blocks", "bytes");
        fprintf(file, "  %-30s %12s %12s\n", gpi_verdict_holder(name, holder),
                gpi_report_number(blocks, holder->blocks), gpi_limit_human(size, holder->bytes));
    }
}

/* The tags in the order of their numbers, if there are any. */
static void gpi_report_tags(FILE *file, const gpi_view *view) {
    char granted[32], limit[32], most[32], blocks[32];
    int i;
    for (i = 1; i <= view->tag_count; i++) {
        const gpupool_tag_stats *tag = &view->tags[i];
        if (i == 1)
            fprintf(file, "\n  %-30s %12s %12s %12s %12s\n", "tags", "blocks", "granted", "peak",
                    "budget");
        fprintf(file, "  %-30s %12s %12s %12s %12s\n", tag->name,
                gpi_report_number(blocks, tag->blocks.now),
                gpi_limit_human(granted, tag->granted.now),
                gpi_limit_human(most, tag->granted.peak),
                tag->limit_bytes ? gpi_limit_human(limit, tag->limit_bytes) : "none");
    }
}

/* The map's character for a share of memory with so many units of each state. What is live decides;
   where nothing is, the larger of pending and free does. */
static char gpi_report_mark(const uint64_t units[3]) { /* by state */
    uint64_t rest = units[GPUPOOL_STATE_PENDING] + units[GPUPOOL_STATE_FREE];
    if (!rest) return '#';
    if (units[GPUPOOL_STATE_LIVE] >= rest) return '+';
    if (units[GPUPOOL_STATE_LIVE]) return '-';
    return units[GPUPOOL_STATE_PENDING] >= units[GPUPOOL_STATE_FREE] ? '~' : '.';
}

/* The map: reserved memory laid end to end, gaps left out. Each character stands for the same share
   of memory; a stretch may be a small part of a share, or many shares. */
static void gpi_report_map(FILE *file, const gpi_view *view) {
    uint64_t all = view->units[0] + view->units[1] + view->units[2], sums[3] = {0, 0, 0};
    /* A share is at least one unit; the map has at most GPI_MAP_LINES lines. */
    uint64_t share = (all - 1) / (GPI_BAR * GPI_MAP_LINES) + 1, left = share;
    const gpi_stretch *stretch = view->stretches;
    char size[32];
    int column = 0;
    if (all == 0) return;
    fprintf(file, "\n  map: a character is %s   # live   + half or more   - less   ~ freed"
            "   . free", gpi_limit_human(size, share * GPUPOOL_UNIT_BYTES));
    for (; stretch < view->stretches + view->count; stretch++) {
        uint64_t units = stretch->units, part;
        /* `left` is what the current character still takes, `all` what the map still has to
           show. */
        for (; units; units -= part) {
            part = gpi_ground_min(units, left);
            sums[stretch->state] += part;
            left -= part;
            all -= part;
            if (left && all) continue; /* the share is not full, and more comes */
            if (column++ % GPI_BAR == 0) fprintf(file, "\n  ");
            fputc(gpi_report_mark(sums), file);
            memset(sums, 0, sizeof sums);
            left = share;
        }
    }
    fputc('\n', file);
}

/* Writes one screen. The first line says why the arena's memory is not mapped, if AUTO has chosen
   another source. */
static void gpi_report_write(const gpi_view *view, FILE *file) {
    /* From the general to the particular: the first lines answer most questions. */
    fprintf(file, "gpupool arena \"%s\": device %d, source %s%s%s%s\n", view->name, view->device,
            gpi_wording_source(view->source), *view->instead ? " (not mapped: " : "",
            view->instead, *view->instead ? ")" : "");
    gpi_report_bar(file, view);
    gpi_report_counters(file, view);
    gpi_report_counts(file, view);
    gpi_report_tags(file, view);
    gpi_report_holders(file, view);
    gpi_report_map(file, view);
}

gpupool_result gpupool_report(gpupool_arena *arena, FILE *file) {
    gpi_view view;
    gpupool_result result = gpi_view_open_for(&view, arena, "gpupool_report", file);
    if (result != GPUPOOL_OK) return result;
    gpi_report_write(&view, file);
    return gpi_view_close(&view, "gpupool_report", file);
}

/* -- for programs: objects, lists, numbers and texts, written as JSON or as a pickle -- */

/* Where values go, and in which form. */
typedef struct gpi_writer {
    FILE *file;
    int pickle;        /* protocol 2, in the few opcodes that the viewer reads; 0: JSON */
    const char *comma; /* JSON: comes before the next value: "", ",", or ",\n" */
    size_t count;      /* bytes in `bytes`, which the file does not have yet: stdio's calls for each
                          byte take longer */
    char bytes[1000];
} gpi_writer;

/* Gives the file what `bytes` has. Every writer ends with it. */
static void gpi_write_rest(gpi_writer *out) {
    fwrite(out->bytes, 1, out->count, out->file);
    out->count = 0;
}

/* Appends a byte, and empties `bytes` first if it is full. */
static void gpi_write_byte(gpi_writer *out, int byte) {
    if (out->count == sizeof out->bytes) gpi_write_rest(out);
    out->bytes[out->count++] = (char)byte;
}

/* Bytes as they are; and a text as it is, without quotes. */
static void gpi_write_bytes(gpi_writer *out, const char *bytes, size_t count) {
    for (; count > 0; count--, bytes++) gpi_write_byte(out, *bytes);
}

static void gpi_write_word(gpi_writer *out, const char *word) {
    gpi_write_bytes(out, word, strlen(word));
}

/* The lowest `bytes` bytes of a number, lowest first: a pickle's binary numbers. */
static void gpi_write_little_endian(gpi_writer *out, uint64_t number, int bytes) {
    for (; bytes > 0; bytes--, number >>= 8) gpi_write_byte(out, (int)(number & 0xff));
}

/* A number's digits. Faster than fprintf: files of large arenas are mostly numbers. */
static void gpi_write_decimal(gpi_writer *out, uint64_t number) {
    char digits[24];
    size_t first = sizeof digits;
    for (; number > 9; number /= 10) digits[--first] = (char)('0' + number % 10);
    gpi_write_byte(out, (int)('0' + number));
    gpi_write_bytes(out, digits + first, sizeof digits - first);
}

/* A text as a JSON string, or as a pickle's. Bytes that are not UTF-8 become "?". */
static void gpi_write_text(gpi_writer *out, const char *text, size_t length) {
    size_t letter = 0; /* bytes left of the character that c is in */
    if (out->pickle) {
        gpi_write_byte(out, 'X'); /* BINUNICODE */
        gpi_write_little_endian(out, length, 4);
    } else {
        gpi_write_byte(out, '"');
    }
    for (; length > 0; length--, text++) {
        unsigned c = (unsigned char)*text;
        /* A character's bytes are looked at once, at its first byte; the others follow
           unchanged. */
        if (letter == 0) letter = gpi_wording_letter(text, length);
        if (letter == 0) c = '?';
        else letter--;
        if (!out->pickle && (c == '"' || c == '\\')) gpi_write_byte(out, '\\');
        /* JSON wants control characters as \u00XX. */
        if (!out->pickle && c < ' ') {
            gpi_write_word(out, c < 16 ? "\\u000" : "\\u001");
            c = (unsigned char)"0123456789abcdef"[c % 16];
        }
        gpi_write_byte(out, (int)c);
    }
    if (!out->pickle) gpi_write_byte(out, '"');
}

/* Writes one value. kind: see gpi_write. */
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

/* Whether c can be in the name of a member. */
static int gpi_write_is_letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

/* Writes what `form` describes. { } [ ] begin and end objects and lists; letters are a member's
   name; each of these takes an argument: # a uint64_t (JSON: UINT64_MAX is null), $ a text (JSON:
   NULL is null), ! a uint64_t as a truth value (pickle only). A new line in `form` puts the next
   item of a list on a line of its own. Commas and colons come by themselves. Example:
   gpi_write(out, "{name$ bytes# parts[", name, bytes); */
static void gpi_write(gpi_writer *out, const char *form, ...) {
    size_t length;
    va_list rest;
    va_start(rest, form);
    for (; *form; form += length) {
        /* One step of `form`: the name that begins here, or one character. */
        for (length = 0; gpi_write_is_letter(form[length]);) length++;
        /* Blanks only make `form` readable. */
        if (*form == '\n' && *out->comma) out->comma = ",\n";
        if (length == 0) length = 1;
        if (*form == ' ' || *form == '\n') continue;
        /* A pickle's '}' and ']' are an empty object and list; '(' begins the items that 'u' and
           'e' put in. */
        if (*form == '}' || *form == ']') {
            gpi_write_byte(out, !out->pickle ? *form : *form == '}' ? 'u' : 'e');
            out->comma = ",";
            continue;
        }
        if (!out->pickle) gpi_write_word(out, out->comma);
        out->comma = "";
        /* An object or a list begins; a value; or a name, which is a text, and has its value after
           it. */
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

/* The items of a list of numbers. */
static void gpi_write_list(gpi_writer *out, const uint64_t *numbers, uint64_t count) {
    uint64_t i;
    for (i = 0; i < count; i++) gpi_write(out, "#", numbers[i]);
}

/* -- JSON -- */

/* The members of the top object up to "streams". The contract is gpupool_write_json's, in section
   API. */
static void gpi_json_figures(gpi_writer *out, const gpi_view *view) {
    const gpupool_stats *stats = &view->stats;
    const gpupool_counter *counter;
    uint64_t count[GPI_COUNTS];
    uint64_t unknown = view->device_answered ? 0 : UINT64_MAX;
    char fragmentation[32];
    int i;
    /* The counts lie side by side in gpupool_stats, in the order in which they are written. */
    memcpy(count, (const char *)stats + offsetof(gpupool_stats, allocs), sizeof count);
    /* x | unknown is x, or UINT64_MAX, which is written as null. */
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
    /* The only number that is no integer: gpi_write has no letter for it. */
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

/* "tags": a limit that is not set is null. */
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

/* A stream's index, or null. */
static uint64_t gpi_json_index(uint64_t stream) {
    return stream == GPI_NOBODY ? UINT64_MAX : stream;
}

/* "sites": a site without a file is one whose caller named none. */
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

/* One stretch of "blocks". "stitched_at", "tag" and "requested_bytes" are written only where they
   apply; stream and site are null where they are not known. A stretch of a stitched block names the
   block's own address in "stitched_at". */
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

/* Writes the parts of the object in the order of the contract, which is gpupool_write_json's in
   section API; what the view's device has not answered is null. Chunks that lie side by side are
   one item of "chunks": an extent of the view. */
static void gpi_json_write(const gpi_view *view, FILE *file) {
    gpi_writer out = {file, 0, "", 0, ""};
    const gpi_stretch *stretch;
    gpi_extent chunk;
    gpi_write(&out, "{gpupool# name$ device# source$ unit_bytes#", (uint64_t)1, view->name,
              (uint64_t)view->device, gpi_wording_source(view->source),
              (uint64_t)GPUPOOL_UNIT_BYTES);
    gpi_json_figures(&out, view);
    gpi_json_tags(&out, view);
    if (GPUPOOL_SITES) gpi_json_sites(&out, view);
    gpi_write(&out, "chunks[");
    memset(&chunk, 0, sizeof chunk);
    while (gpi_view_next_chunk(view, &chunk)) {
        gpi_write(&out, "\n{address# bytes# blocks[", chunk.unit * GPUPOOL_UNIT_BYTES,
                  chunk.all_units * GPUPOOL_UNIT_BYTES);
        for (stretch = chunk.from; stretch < chunk.end; stretch++) gpi_json_block(&out, stretch);
        gpi_write(&out, "]}");
    }
    gpi_write(&out, "]}");
    gpi_write_byte(&out, '\n');
    gpi_write_rest(&out);
}

gpupool_result gpupool_write_json(gpupool_arena *arena, FILE *file) {
    gpi_view view;
    gpupool_result result = gpi_view_open_for(&view, arena, "gpupool_write_json", file);
    if (result != GPUPOOL_OK) return result;
    gpi_json_write(&view, file);
    return gpi_view_close(&view, "gpupool_write_json", file);
}

/* -- the snapshot -- */

/* The viewer's stack has no room for all items of a long list: they are put in by the thousand. */
static void gpi_pickle_next(gpi_writer *out, uint64_t i) {
    /* 'e' appends the items so far to the list, and '(' begins the next ones. */
    if (i && i % 1000 == 0) gpi_write_word(out, "e(");
}

/* A stretch as a block of PyTorch's allocator, with that allocator's names for the states: inactive
   is free, active_pending_free is freed but may still be in use. A part of a stitched block is a
   block of its own. */
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

/* An extent as a segment of PyTorch's allocator. All segments are of stream 0 and pool (0, 0),
   since the viewer colours by address. */
static void gpi_pickle_segment(gpi_writer *out, const gpi_view *view, const gpi_extent *chunk) {
    const gpi_stretch *stretch = chunk->from;
    uint64_t live = chunk->units[GPUPOOL_STATE_LIVE] * GPUPOOL_UNIT_BYTES;
    uint64_t pending = chunk->units[GPUPOOL_STATE_PENDING] * GPUPOOL_UNIT_BYTES;
    gpi_write(out, "{device# address# total_size# allocated_size# active_size# requested_size#",
              (uint64_t)view->device, chunk->unit * GPUPOOL_UNIT_BYTES,
              chunk->all_units * GPUPOOL_UNIT_BYTES, live, live + pending, chunk->requested_bytes);
    gpi_write(out, "stream# segment_type$ segment_pool_id##", (uint64_t)0, "large", (uint64_t)0,
              (uint64_t)0);
    /* segment_pool_id is a pair. The two numbers before this byte, written without a name, become
       one. */
    gpi_write_byte(out, 0x86); /* TUPLE2: of the last two */
    gpi_write(out, "is_expandable! frames[] blocks[",
              (uint64_t)(view->source == GPUPOOL_SOURCE_MAPPED));
    for (; stretch < chunk->end; stretch++) {
        gpi_pickle_next(out, (uint64_t)(stretch - chunk->from));
        gpi_pickle_block(out, view, stretch);
    }
    gpi_write(out, "]}");
}

/* The fields of torch.cuda.memory._snapshot() that the viewer reads. There is no history of events,
   but the viewer wants a list for each device up to this one. */
gpupool_result gpupool_write_snapshot(gpupool_arena *arena, FILE *file) {
    gpi_writer out = {file, 1, "", 0, ""};
    gpi_extent chunk;
    gpi_view view;
    int device;
    gpupool_result result = gpi_view_open_for(&view, arena, "gpupool_write_snapshot", file);
    if (result != GPUPOOL_OK) return result;
    /* Opcodes: PROTO 2 begins a pickle, '.' (STOP) ends it. */
    gpi_write_word(&out, "\x80\x02"); /* PROTO 2 */
    gpi_write(&out, "{segments[");
    memset(&chunk, 0, sizeof chunk);
    while (gpi_view_next_chunk(&view, &chunk)) {
        gpi_pickle_next(&out, chunk.number - 1);
        gpi_pickle_segment(&out, &view, &chunk);
    }
    gpi_write(&out, "] device_traces[");
    /* One empty list for each device. */
    for (device = 0; device <= view.device; device++) gpi_write(&out, "[]"); /* no history */
    gpi_write(&out, "] allocator_settings{PYTORCH_CUDA_ALLOC_CONF$ allocator$ limit_bytes#"
              "expandable_segments!}}", "", gpupool_get_build(), view.stats.limit_bytes,
              (uint64_t)(view.source == GPUPOOL_SOURCE_MAPPED));
    gpi_write_byte(&out, '.');
    gpi_write_rest(&out);
    return gpi_view_close(&view, "gpupool_write_snapshot", file);
}

/* == PICTURE ==================================================================================
   gpupool_write_svg draws the map of memory, and gpupool_set_trace records calls. The picture is
   one pass over a view: nothing of it is kept in memory. uses: REPORT and above

       GPI_MAP_Y    heading, bar, legend
                    +---------------------------------------------+
       row 0        | chunk 1        |live|free|///pending///|live|
       row 1        |live         |free|                          |    a row is row_units
       row 2        | chunk 2   |  | chunk 3  |                   |
                    +---------------------------------------------+
                    gpi_svg_left           gpi_svg_width pixels

   row_units doubles until all chunks fit in about GPI_MAP_ROWS rows. A chunk begins on a row of its
   own, unless it fits behind the chunk before. Stretches narrower than half a pixel are gathered
   and drawn as one rectangle: gpi_svg_stretch gathers, gpi_svg_flush draws.

   Locks: the picture needs none. gpupool_set_trace takes the locks of all streams and the arena's
   lock.

   Read first: gpi_svg_write, gpi_svg_rows, gpi_svg_stretch, gpupool_set_trace. */

enum {
    GPI_COLOURS = 7,        /* streams with a colour of their own, also for the colour-blind; more
                               share grey */
    GPI_MAP_Y = 144,        /* pixels above the first row */
    GPI_MAP_ROW = 16,       /* pixels from row to row */
    GPI_MAP_ROWS = 96       /* rows that a picture has at most, gaps apart */
};

static const double gpi_svg_left = 128, gpi_svg_width = 1024; /* pixels: where rows begin, and how
                                                                 long they are */

/* By a stream's index in the view; the last one is for all further streams. */
static const char gpi_svg_colours[GPI_COLOURS + 1][8] = {
    "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#7f7f7f"};

typedef struct gpi_map { /* what the functions below share */
    FILE *file;
    const gpi_view *view;
    uint64_t row_units;  /* units of memory that a row shows */
    int crowded;         /* more chunks than there can be gaps between */
    double from, to;     /* pixels: the stretches that are gathered lie here, */
    uint64_t row;        /* in this row */
    uint64_t narrow, sums[3]; /* how many are gathered; their units by state */
} gpi_map;

/* Writes a text as XML wants it. Bytes that are no UTF-8, and characters that XML does not allow,
   become "?" or are left out. */
static void gpi_svg_text(FILE *file, const char *text) { /* as XML wants it */
    size_t letter;
    for (; *text; text += letter ? letter : 1) {
        /* strlen in the loop: names and file names are short. */
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

/* A stream's name for people, from the key that CLOCK gives it: odd keys are default streams of
   threads. Returns `room`. */
static const char *gpi_svg_stream(char room[64], uint64_t key) {
    if (key == GPI_KEY_LEGACY) snprintf(room, 64, "the default stream");
    else if (key == GPI_KEY_ANY) snprintf(room, 64, "all streams (cudaFree)");
    else if (key & 1) snprintf(room, 64, "default stream of thread %" PRIu64, key >> 2);
    else snprintf(room, 64, "stream %#" PRIx64, key);
    return room;
}

/* Begins a rectangle's tag; the caller ends it, since some rectangles have a title in them. Live
   memory is solid, dark where the stream is not known. Freed memory is hatched. Free memory is
   pale. */
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

/* Pixels above a row. */
static double gpi_svg_row(uint64_t row) { return (double)(GPI_MAP_Y + row * GPI_MAP_ROW); }

/* Draws the stretches that are gathered as one rectangle, in the state that most of their memory
   has. */
static void gpi_svg_flush(gpi_map *map) {
    int most = GPUPOOL_STATE_LIVE;
    char live[32], freed[32], rest[32];
    if (!map->narrow) return;
    /* Live memory wins where two states have the same bytes. */
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

/* What a viewer shows where the pointer is over a stretch. */
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
    /* Only stitched blocks begin elsewhere than their stretches. */
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

/* Writes to the left of a row: which chunk it is, or how far into its chunk the row begins. */
static void gpi_svg_label(const gpi_map *map, uint64_t row, uint64_t number, uint64_t units) {
    char words[32];
    if (units) gpi_limit_human(words, units * GPUPOOL_UNIT_BYTES);
    else snprintf(words, sizeof words, "chunk %" PRIu64, number);
    fprintf(map->file, "<text x=\"%.0f\" y=\"%.0f\" text-anchor=\"end\">%s%s</text>\n",
            gpi_svg_left - 8, gpi_svg_row(row) + 10, units ? "+ " : "", words);
}

/* Draws a stretch that begins `at` units into the picture, cut where rows end. Parts narrower than
   half a pixel are gathered, until they are a pixel wide, a row ends or a wide part comes. */
static void gpi_svg_stretch(gpi_map *map, const gpi_extent *chunk, const gpi_stretch *stretch,
                            uint64_t at) {
    double scale = gpi_svg_width / (double)map->row_units;
    uint64_t done = 0, units;
    for (; done < stretch->units; done += units, at += units) {
        uint64_t column = at % map->row_units, row = at / map->row_units;
        double x = scale * (double)column, width;
        /* This part of the stretch: up to the end of the row. */
        units = gpi_ground_min(stretch->units - done, map->row_units - column);
        width = scale * (double)units;
        if (column == 0) { /* a row begins here */
            gpi_svg_flush(map);
            gpi_svg_label(map, row, chunk->number, stretch->unit + done - chunk->unit);
        }
        /* Too narrow: its units are added to the gathered ones, whose rectangle grows to the
           right. */
        if (width < 0.5) {
            if (!map->narrow++) map->from = x;
            map->to = x + width;
            map->row = row;
            map->sums[stretch->state] += units;
            if (map->to - map->from >= 1) gpi_svg_flush(map);
            continue;
        }
        gpi_svg_flush(map);
        /* Blocks that are wide enough leave a thin line between them and their neighbour. */
        gpi_svg_rect(map->file, gpi_svg_left + x, gpi_svg_row(row), width > 3 ? width - 0.6 : width,
                     GPI_MAP_ROW - 3, stretch->state, stretch->stream);
        gpi_svg_title(map, chunk, stretch);
    }
}

/* Where a chunk begins, in units of the picture: behind the chunk before, which ends at `at`, if
   both fit in the row, with a gap between them; else on the next row. */
static uint64_t gpi_svg_chunk_start(const gpi_map *map, const gpi_extent *chunk, uint64_t at) {
    uint64_t column = at % map->row_units, gap = map->crowded ? 0 : map->row_units / 128;
    if (column == 0) return at;
    return column + gap + chunk->all_units <= map->row_units ? at + gap
                                                             : gpi_ground_up(at, map->row_units);
}

/* Returns how many rows the chunks take. `draw`: draws them, too; else it only counts. Both in one
   function, so that counting and drawing cannot differ. */
static uint64_t gpi_svg_rows(gpi_map *map, int draw) {
    const gpi_stretch *stretch;
    gpi_extent chunk;
    uint64_t at = 0;
    memset(&chunk, 0, sizeof chunk);
    while (gpi_view_next_chunk(map->view, &chunk)) {
        at = gpi_svg_chunk_start(map, &chunk, at);
        /* What is gathered never spans two chunks. */
        for (stretch = chunk.from; draw && stretch < chunk.end; stretch++)
            gpi_svg_stretch(map, &chunk, stretch, at + stretch->unit - chunk.unit);
        gpi_svg_flush(map);
        at += chunk.all_units;
    }
    return gpi_ground_up(at, map->row_units) / map->row_units;
}

/* A box of the legend, with words to its right. Boxes stand side by side; *x and *y move on, to a
   new line when this one is full. */
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

/* First what states look like, then the streams. Texts are as wide as 6.4 pixels a character. */
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
    /* More streams than colours share one box. */
    for (x = 16, y += 20, i = 0; i < view->key_count && i < GPI_COLOURS; i++)
        gpi_svg_legend_box(map->file, &x, &y, GPUPOOL_STATE_LIVE, i,
                           gpi_svg_stream(words, view->keys[i]));
    if (view->key_count > GPI_COLOURS)
        gpi_svg_legend_box(map->file, &x, &y, GPUPOOL_STATE_LIVE, GPI_COLOURS, "other streams");
}

/* The bar below the heading: live, pending and free memory as parts of the limit, or of what is
   reserved. */
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

/* The file's beginning: size, the hatching of each colour, and the heading. */
static void gpi_svg_head(const gpi_map *map, double height) {
    const gpi_view *view = map->view;
    FILE *file = map->file;
    char live[32], reserved[32], limit[32], blocks[32];
    int i;
    fprintf(file, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"1168\" height=\"%.0f\" "
            "viewBox=\"0 0 1168 %.0f\" font-family=\"sans-serif\" font-size=\"11\">\n"
            "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n<defs>\n", height, height);
    /* One pattern for each colour: h0, h1, ...; gpi_svg_rect refers to them. */
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
            gpi_limit_human(reserved, view->stats.reserved.now),
            view->stats.limit_bytes ? "limit " : "no limit",
            view->stats.limit_bytes ? gpi_limit_human(limit, view->stats.limit_bytes) : "");
}

/* Draws the picture. Counts rows first, since the file begins with its height. Beyond 4,096 chunks
   gaps would take more room than they are worth. A row shows 2 MiB, or twice as much as often as
   needed. */
static void gpi_svg_write(const gpi_view *view, FILE *file) {
    gpi_map map;
    gpi_extent chunk;
    memset(&map, 0, sizeof map);
    map.file = file;
    map.view = view;
    memset(&chunk, 0, sizeof chunk);
    while (gpi_view_next_chunk(view, &chunk)) map.crowded = chunk.number > 4096;
    map.row_units = gpi_ground_max((2u << 20) / GPUPOOL_UNIT_BYTES, 1);
    /* Each pass over the view halves the rows, roughly; a pass costs less than drawing. */
    while (gpi_svg_rows(&map, 0) > GPI_MAP_ROWS) map.row_units *= 2;
    gpi_svg_head(&map, gpi_svg_row(gpi_svg_rows(&map, 0)) + 12);
    gpi_svg_bar(&map);
    gpi_svg_legend(&map);
    gpi_svg_rows(&map, 1);
    fputs("</svg>\n", file);
}

gpupool_result gpupool_write_svg(gpupool_arena *arena, FILE *file) {
    gpi_view view;
    gpupool_result result = gpi_view_open_for(&view, arena, "gpupool_write_svg", file);
    if (result != GPUPOOL_OK) return result;
    gpi_svg_write(&view, file);
    return gpi_view_close(&view, "gpupool_write_svg", file);
}

/* -- the record of calls -- */

/* The first line of a trace, and a line for each block that is live already, without a stream. The
   locks of all streams and the arena's are held: no call comes in between. */
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

/* All locks are held while the file changes, so each call is recorded in one file. The caches'
   blocks are recorded under the streams' locks, and all others under the arena's. */
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
    errno = 0; /* an older errno does not explain a line that could not be written */
    return before ? gpi_wording_done("gpupool_set_trace", before) : gpi_host_ok();
}

/* == ENVIRON ==================================================================================
   Reports without a line of code: the environment's GPUPOOL_REPORT names a file, and each arena
   writes there what it has used. Arenas are created and destroyed through this section, in public.
   uses: LIFE, PICTURE and above

       gpupool_arena_create ----> the first time: the variable is read, atexit is called
             |
             |    a request fails, out of memory -----+
             |                                        |
       gpupool_arena_destroy: a view is opened first -+-> gpi_environ_write -> FILE or stderr
             |                                        |
       exit, with arenas that are still there --------+

   Forms: text, appended, but the first report of the process makes the file anew; JSON and SVG, in
   which a file has one report, the latest. There each arena has a file of its own: the arena that
   was created first has FILE.json, the second FILE-2.json. Numbers are not used again, so the last
   report of an arena stays.

   State is in gpi_process, and each arena has its report_number. Without the variable an arena's
   creation costs one getenv, and a failed request looks at one pointer.

   Locks: no lock of an arena or of the process is held while a report is written.
   gpi_process.reporting lets one thread write at a time; the others wait for it. A thread's result,
   text and verdict, and errno, are as before afterwards.

   Read first: gpi_environ_watch, gpi_environ_write, gpi_environ_at_exit. */

typedef enum gpi_environ_form {
    GPI_ENVIRON_TEXT,
    GPI_ENVIRON_JSON,
    GPI_ENVIRON_SVG,
    GPI_ENVIRON_STDERR  /* text */
} gpi_environ_form;

enum {
    GPI_ENVIRON_PATIENCE_NS = 1000000000, /* at exit, for what another thread has */
    GPI_ENVIRON_DIGITS = 16               /* bytes that a number may add to the file's name */
};

/* Says on stderr why a report cannot be written: once in a process, so that a program that goes on
   without memory does not fill its terminal. Called by the thread that writes. `why`: an errno, or
   0 where the C library left none. */
static void gpi_environ_complain(const char *file, int why) {
    if (gpi_process.report_failed) return;
    gpi_process.report_failed = 1;
    fprintf(stderr, "gpupool: GPUPOOL_REPORT: %s cannot be written: %s\n", file,
            why ? strerror(why) : "the system does not say why");
}

/* Whether the file's name has this ending, and something before it. */
static int gpi_environ_ends_in(const char *file, const char *ending) {
    size_t length = strlen(file), least = strlen(ending);
    return length > least && strcmp(file + length - least, ending) == 0;
}

/* What to write, by the variable's value. */
static gpi_environ_form gpi_environ_form_of(const char *file) {
    if (strcmp(file, "stderr") == 0) return GPI_ENVIRON_STDERR;
    if (gpi_environ_ends_in(file, ".json")) return GPI_ENVIRON_JSON;
    return gpi_environ_ends_in(file, ".svg") ? GPI_ENVIRON_SVG : GPI_ENVIRON_TEXT;
}

/* The file of an arena: with its number before the ending, from 2 on. The name is put together in
   report_path, by the thread that writes. */
static const char *gpi_environ_path(int number, gpi_environ_form form) {
    const char *file = gpi_process.report_file, *ending = strrchr(file, '.');
    if (number < 2 || form == GPI_ENVIRON_TEXT || form == GPI_ENVIRON_STDERR) return file;
    snprintf(gpi_process.report_path, strlen(file) + GPI_ENVIRON_DIGITS, "%.*s-%d%s",
             (int)(ending - file), file, number, ending);
    return gpi_process.report_path;
}

/* Makes this thread the one that writes; waits for another one. 0: that has taken patience_ns. */
static int gpi_environ_begin(uint64_t patience_ns) {
    uint64_t start = gpi_host_now_ns();
    unsigned round = 0;
    for (;;) {
        int got;
        gpi_host_lock(&gpi_process.lock);
        got = !gpi_process.reporting;
        gpi_process.reporting = 1;
        gpi_host_unlock(&gpi_process.lock);
        if (got) return 1;
        if (gpi_host_now_ns() - start >= patience_ns) return 0;
        gpi_host_idle(round++);
    }
}

/* Lets the next thread write. */
static void gpi_environ_end(void) {
    gpi_host_lock(&gpi_process.lock);
    gpi_process.reporting = 0;
    gpi_host_unlock(&gpi_process.lock);
}

/* Writes a view, between gpi_environ_begin and gpi_environ_end. `number` is the arena's. `when`
   heads a report in text, which tells several of them apart. */
static void gpi_environ_put(const gpi_view *view, int number, const char *when) {
    gpi_environ_form form = gpi_environ_form_of(gpi_process.report_file);
    int is_text = form == GPI_ENVIRON_TEXT || form == GPI_ENVIRON_STDERR, failed;
    const char *path = gpi_environ_path(number, form);
    FILE *file = stderr;
    errno = 0; /* what earlier calls have left there explains nothing */
    if (form != GPI_ENVIRON_STDERR)
        file = fopen(path, form == GPI_ENVIRON_TEXT && gpi_process.reports ? "a" : "w");
    if (!file) {
        gpi_environ_complain(path, errno);
        return;
    }
    if (is_text) fprintf(file, "%s---- %s\n", gpi_process.reports ? "\n" : "", when);
    gpi_process.reports++;
    if (form == GPI_ENVIRON_JSON) gpi_json_write(view, file);
    else if (form == GPI_ENVIRON_SVG) gpi_svg_write(view, file);
    else gpi_report_write(view, file);
    failed = fflush(file) != 0 || ferror(file);
    if (failed) gpi_environ_complain(path, errno);
    if (form == GPI_ENVIRON_STDERR) return;
    errno = 0;
    if (fclose(file) != 0 && !failed) gpi_environ_complain(path, errno); /* a network's disk */
}

/* The same, when no other thread writes. */
static void gpi_environ_write(const gpi_view *view, int number, const char *when,
                              uint64_t patience_ns) {
    if (!gpi_environ_begin(patience_ns)) return;
    if (!GPI_READ(&gpi_process.report_ended)) gpi_environ_put(view, number, when);
    gpi_environ_end();
}

/* Opens a view of an arena that is to write reports. 0: the arena is not, or there can be no view:
   this process is a fork's child, a default arena was reset and is not renewed yet, or the host has
   no memory. The caller restores gpi_thread, and frees view->room after a 1. No lock is held. */
static int gpi_environ_view(gpi_view *view, gpupool_arena *arena) {
    if (!arena || !arena->report_number || GPI_READ(&gpi_process.report_ended)) return 0;
    return gpi_view_open(view, arena, "GPUPOOL_REPORT") == GPUPOOL_OK;
}

/* gpi_process.on_no_memory: a request of this thread has just failed, and gpi_thread says why. */
static void gpi_environ_no_memory(gpupool_arena *arena) {
    struct gpi_thread why = gpi_thread;
    char when[sizeof why.draft + 32];
    gpi_view view;
    int error = errno;
    snprintf(when, sizeof when, "out of memory: %s", why.draft);
    if (gpi_environ_view(&view, arena)) {
        gpi_view_ask_device(&view, &arena->chunks.driver);
        gpi_environ_write(&view, arena->report_number, when, UINT64_MAX);
        GPUPOOL_FREE(view.room);
    }
    gpi_thread = why;
    errno = error;
}

/* The arena with the lowest number above this one, with a visitor more, so that no thread destroys
   it meanwhile; NULL: there is none. A default arena that a reset has closed is passed over. */
static gpupool_arena *gpi_environ_next(int number) {
    gpupool_arena *arena, *next = NULL;
    gpi_host_lock(&gpi_process.lock);
    for (arena = gpi_process.arenas; arena; arena = arena->next)
        if (arena->report_number > number && arena->forks == gpi_process.forks &&
            (!next || arena->report_number < next->report_number))
            next = arena;
    if (next) next->visitors++;
    gpi_host_unlock(&gpi_process.lock);
    return next;
}

/* Whether `growing` can be had: a thread that calls exit from a function of the caller's may have
   it, and would wait for itself. */
static int gpi_environ_is_free(gpupool_arena *arena) {
    uint64_t start = gpi_host_now_ns();
    unsigned round = 0;
    while (!gpi_host_mutex_try(&arena->growing)) {
        if (gpi_host_now_ns() - start >= GPI_ENVIRON_PATIENCE_NS) return 0;
        gpi_host_idle(round++);
    }
    gpi_host_mutex_unlock(&arena->growing);
    return 1;
}

/* At exit: a report of each arena that is still there, in the order of their numbers. CUDA may have
   been shut down already, so it is asked for nothing: figures of the device are left out. In a
   forked child the arenas are the parent's, and so are their reports. */
static void gpi_environ_at_exit(void) {
    gpupool_arena *arena;
    gpi_view view;
    int number = 0;
    if (gpi_process.forks) return;
    while ((arena = gpi_environ_next(number)) != NULL) {
        number = arena->report_number;
        if (!gpi_environ_is_free(arena)) {
            fprintf(stderr, "gpupool: GPUPOOL_REPORT: arena \"%s\" is at work at exit, and is left "
                    "out\n", arena->name);
        } else if (gpi_environ_view(&view, arena)) {
            gpi_environ_write(&view, number, "at exit", GPI_ENVIRON_PATIENCE_NS);
            GPUPOOL_FREE(view.room);
        }
        gpi_host_lock(&gpi_process.lock);
        arena->visitors--;
        gpi_host_unlock(&gpi_process.lock);
    }
    gpi_host_lock(&gpi_process.lock);
    GPI_PUBLISH(&gpi_process.report_ended, 1); /* what static objects destroy has had a report */
    gpi_host_unlock(&gpi_process.lock);
}

/* Reads the variable. Its first value holds for the process: the copies stay until its end, since
   other threads may read them. A shell empties a variable to take it away for one command. */
static void gpi_environ_start(void) {
    const char *file = getenv("GPUPOOL_REPORT");
    size_t length = file ? strlen(file) : 0;
    char *copy, *path;
    int first = 0;
    if (!length) return;
    copy = (char *)GPUPOOL_MALLOC(length + 1);
    path = (char *)GPUPOOL_MALLOC(length + GPI_ENVIRON_DIGITS);
    if (copy) memcpy(copy, file, length + 1);
    gpi_host_lock(&gpi_process.lock);
    if (copy && path && !gpi_process.report_file) { /* else another thread was faster */
        gpi_process.report_path = path;
        GPI_PUBLISH(&gpi_process.report_file, copy);
        first = 1;
    }
    gpi_host_unlock(&gpi_process.lock);
    if (!first) {
        GPUPOOL_FREE(copy);
        GPUPOOL_FREE(path);
        return;
    }
    atexit(gpi_environ_at_exit);
    GPI_PUBLISH(&gpi_process.on_no_memory, &gpi_environ_no_memory);
}

/* Gives a new arena its number, if its reports are wanted. */
static void gpi_environ_watch(gpupool_arena *arena) {
    if (!GPI_READ(&gpi_process.report_file)) gpi_environ_start();
    if (!GPI_READ(&gpi_process.report_file)) return;
    gpi_host_lock(&gpi_process.lock);
    arena->report_number = ++gpi_process.report_arenas;
    gpi_host_unlock(&gpi_process.lock);
}

gpupool_result gpupool_arena_create(gpupool_arena **out, const gpupool_arena_config *given) {
    gpupool_result result = gpi_life_create(out, given);
    if (result == GPUPOOL_OK) gpi_environ_watch(*out);
    return result;
}

/* The view is opened while the arena is there, and written once it is gone: an arena that could not
   be destroyed lives on, and writes no report. */
gpupool_result gpupool_arena_destroy(gpupool_arena *arena) {
    struct gpi_thread before;
    int error = errno, number;
    gpupool_result result;
    gpi_view view;
    if (!GPI_READ(&gpi_process.on_no_memory)) return gpi_life_destroy(arena);
    before = gpi_thread;
    if (!gpi_environ_view(&view, arena)) {
        gpi_thread = before;
        return gpi_life_destroy(arena);
    }
    number = arena->report_number;
    gpi_view_ask_device(&view, &arena->chunks.driver);
    gpi_thread = before;
    result = gpi_life_destroy(arena);
    if (result == GPUPOOL_OK)
        gpi_environ_write(&view, number, "when the arena was destroyed", UINT64_MAX);
    GPUPOOL_FREE(view.room);
    errno = error;
    return result;
}

/* == BACK ===================================================================================== */

/* The implementation ends: its macros are undone, so that the files that include this one see none
   of them. Functions and types need no undoing: they are static, and their names begin with
   gpi_. */
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
   Macros over CUDA's names and gpupool's own. They come last in the file, so that nothing above
   sees them. What they stand for is defined at the end of section API.

       CUDA_API_PER_THREAD_DEFAULT_STREAM    a stream of 0 becomes cudaStreamPerThread, as in CUDA's
                                             own calls in such a file
       GPUPOOL_SITES                         calls that allocate pass on __FILE__ and __LINE__
       GPUPOOL_STREAM_HOOK                   cudaStreamDestroy tells the arenas: rule 5
       GPUPOOL_REPLACE_CUDA_MALLOC           cudaMalloc, cudaFree and their Async forms */

/* Within its own expansion a macro's name is not replaced again: there gpupool_alloc is the
   function. Each argument appears once, so it is evaluated once. */
#if defined(CUDA_API_PER_THREAD_DEFAULT_STREAM)
/* With sites, the three short forms of an allocation are replaced further down. */
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

/* A macro with parameters: the function's own name stays usable as a pointer, without a site. */
#if GPUPOOL_SITES
/* Both at once: the stream is replaced, and the line is passed on. */
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

/* Macros without parameters, so that pointers and deleters get the same functions as calls do. In
   C++ the names are those of inline functions, which templates can take as arguments. */
#if GPUPOOL_STREAM_HOOK
#if defined(__cplusplus)
#define cudaStreamDestroy gpi_names_stream_destroy
#else
#define cudaStreamDestroy gpupool_cudaStreamDestroy
#endif
#endif
/* The Async forms have names of their own where a stream of 0 means the thread's stream, as CUDA's
   functions have. */
#if GPUPOOL_REPLACE_CUDA_MALLOC
#if defined(__cplusplus)
#define cudaMalloc gpi_names_malloc
#define cudaFree gpi_names_free
#else
#define cudaMalloc gpupool_cudaMalloc
#define cudaFree gpupool_cudaFree
#endif
/* CUDA's headers may define these two as macros themselves. */
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
