/* gpupool.h: device memory for CUDA programs in C and C++, in one file. Version 0.1

Do this:
    #define GPUPOOL_IMPLEMENTATION
before you include this file in *one* C, C++ or .cu file; include it plainly everywhere else.
Only the CUDA runtime is linked (-lcudart; nvcc does that by itself).

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
    ARENA                   own lane, quiet memory, fences, growth, moving, waiting, the verdict
    TREE    LEDGER          which units are free for whom              how much, and how much may be
    BACKING FENCE           pieces of physical memory, mapped          who must wait for whom
    DRIVER                  cuMemCreate, cuMemMap, cudaMalloc, cudaEventRecord, ...

What it does: hands out device memory in tens of nanoseconds, without a CUDA call, where memory
freed earlier can be had; keeps reserved memory within a few per cent of what is live, by moving
physical memory behind unused addresses; holds limits; says why memory ran out and what would help.
What it does not do: it has no thread of its own, moves no block that you hold, keeps nothing in
device memory, prints nothing unless asked, and never aborts.

Contents (search for "== NAME"):
    OPTIONS LINKAGE WORDS API                                    what you use
    GROUND HOST DRIVER LEDGER TREE BACKING FENCE LIMIT ARENA REPORT   how it works, bottom up

Words: unit: the smallest piece, 512 bytes. Block: what you hold, a run of units. Lane: the free
memory that one stream may take without waiting; quiet memory any stream may take. Fence: the proof
that a stream's earlier work is done. Granule: 2 MiB, the driver's page for mapping. Piece: physical
memory got from the driver at a time. requested <= granted (rounded to units) <= reserved (held from
the driver); pending: freed on a stream, and not known to be finished there.

The rules:
  1. Streams belong to the arena's device. Free a block on the stream that used it last: later work
     there may have the memory at once, other streams only once that work is done. If other streams
     use the block too, order their work before the free (cudaStreamWaitEvent), or say
     gpupool_record_use on each of them before freeing. The stream that a block was allocated on
     counts as one that used it: its earlier work may still be at the memory.
  2. Destroy an arena when no block of it is live; its device must still have its context.
  3. While a stream captures a graph, what the graph uses must stay live until the graph is
     destroyed, or be allocated in a scope (gpupool_capture_begin). And leave alone what asks CUDA
     after all streams (gpupool_trim, gpupool_would_fit, gpupool_cudaFree, lowering a limit): a
     capture on a non-blocking stream and not in a scope, of whatever arena, cannot be seen, and
     would be lost. gpupool_alloc does not ask so once it has seen a capture in the arena.
  4. Functions in the config: chunk_alloc and chunk_free must not call into the same arena;
     on_out_of_memory may.
  5. CUDA gives the handle of a destroyed stream to the next one, even while the old one's work
     still runs. Destroy streams in files that include this one (its macro cudaStreamDestroy tells
     the arenas), or say gpupool_stream_retired first, or set GPUPOOL_STREAM_CHECK.

Options: define them before the include that has GPUPOOL_IMPLEMENTATION (those marked * before every
include). Booleans are 0 or 1. gpupool_build() returns what is in force.

    GPUPOOL_STATIC *        0        1: everything static, so several files can have their own
    GPUPOOL_API *           extern   what stands before each declaration, for a DLL say
    GPUPOOL_UNIT_BYTES      512      the smallest piece: a power of two of at least 256
    GPUPOOL_LIMIT           ""       the limit of arenas that are given none, as text: "80%"
    GPUPOOL_CHUNK_BYTES     0        least growth of the chunked sources; 0: an eighth of all
    GPUPOOL_MAPPED          1        0: leave GPUPOOL_SOURCE_MAPPED out
    GPUPOOL_CHECK           1        0: no asserts. 2: every invariant, around every call (slow)
    GPUPOOL_SINGLE_THREAD   0        1: no locks
    GPUPOOL_STREAM_HOOK *   1        0: cudaStreamDestroy is left alone; see rule 5
    GPUPOOL_STREAM_CHECK    0        1: each call asks CUDA which stream it has been given; rule 5
    GPUPOOL_REPLACE_CUDA_MALLOC *  0  1: cudaMalloc, cudaFree and their Async forms are gpupool's
    GPUPOOL_ASSERT(x)       assert   for gpupool's own mistakes, not yours
    GPUPOOL_MALLOC(n)       malloc   host memory for the records, with GPUPOOL_FREE(p)
*/
#ifndef GPUPOOL_H
#define GPUPOOL_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <cuda_runtime_api.h>
#if defined(__cplusplus) && defined(GPUPOOL_REPLACE_CUDA_MALLOC)
#include <cuda_runtime.h> /* its overloads, before the names are macros */
#endif

/* CUDA's own, which may be a macro there: what it stands for is lost once it is one here. */
static inline cudaError_t gpi_names_free_async(void *pointer, cudaStream_t stream) {
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
#ifndef GPUPOOL_MAPPED
#define GPUPOOL_MAPPED 1
#endif
#ifndef GPUPOOL_CHECK
#define GPUPOOL_CHECK 1
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
#elif defined(__cplusplus)
#define GPUPOOL_API extern "C"
#else
#define GPUPOOL_API extern
#endif
#endif

/* == WORDS ==================================================================================== */

#define GPUPOOL_VERSION 100          /* 10000 x major + 100 x minor + patch */
#define GPUPOOL_DEVICE_CURRENT (-1)  /* the device that is current when the arena is made */
#define GPUPOOL_ORDERS 41            /* order k: sizes of 2^k to 2^(k+1) - 1 units */

typedef enum gpupool_result {
    GPUPOOL_OK = 0,
    GPUPOOL_E_ARGUMENT,      /* fix the call; gpupool_last_error() names argument and rule */
    GPUPOOL_E_OUT_OF_MEMORY, /* gpupool_last_verdict() says why and what would help */
    GPUPOOL_E_NOT_OURS,      /* the pointer is in no chunk of this arena */
    GPUPOOL_E_INSIDE,        /* the pointer is inside a live block, not at its start */
    GPUPOOL_E_DOUBLE_FREE,   /* the block there is already free */
    GPUPOOL_E_IN_USE,        /* destroy refused: blocks are still out */
    GPUPOOL_E_CAPTURING,     /* would need a call that a capturing stream forbids */
    GPUPOOL_E_TIMEOUT,       /* the time allowed has passed */
    GPUPOOL_E_UNSUPPORTED,   /* this device or build cannot do it */
    GPUPOOL_E_FORKED,        /* a child process after fork has no CUDA context */
    GPUPOOL_E_HOST_MEMORY,   /* host allocation failed; nothing changed */
    GPUPOOL_E_CUDA           /* a CUDA call failed; gpupool_last_error() has its name and CUDA's */
} gpupool_result;

typedef enum gpupool_source {    /* where an arena's chunks come from */
    GPUPOOL_SOURCE_AUTO = 0,     /* MAPPED where the device can, else DEVICE */
    GPUPOOL_SOURCE_MAPPED,       /* addresses reserved once, physical memory mapped on demand */
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
    GPUPOOL_CAUSE_FRAGMENTED,    /* enough bytes are free, but in no single run */
    GPUPOOL_CAUSE_PENDING,       /* would fit once work in flight has finished */
    GPUPOOL_CAUSE_CAPTURING      /* would need growth that a capturing stream forbids */
} gpupool_cause;

typedef struct gpupool_arena gpupool_arena;
typedef struct gpupool_capture gpupool_capture;

typedef struct gpupool_verdict {     /* of a request that could not be met; all figures in bytes */
    gpupool_cause cause;
    uint64_t asked_bytes;
    uint64_t limit_bytes;            /* 0: none */
    uint64_t granted_bytes;          /* held by live blocks */
    uint64_t reserved_bytes;         /* held by the arena from the driver */
    uint64_t largest_free_bytes;     /* longest free run that this stream could have had */
    uint64_t pending_bytes;          /* freed, but behind a fence for this stream */
    uint64_t device_free_bytes;      /* what the driver says is free on the device */
    uint64_t device_total_bytes;
    uint64_t others_bytes;           /* device memory in use that this arena does not hold */
    uint64_t missing_bytes;          /* the least that would have to become free, or allowed */
    char sentence[320];              /* the same for people, with what would make it succeed */
} gpupool_verdict;

typedef struct gpupool_arena_config { /* all zero is valid: each zero means the default */
    int device;                      /* CUDA device ordinal, or GPUPOOL_DEVICE_CURRENT */
    gpupool_source source;
    size_t limit_bytes;              /* hard limit on reserved bytes; 0: GPUPOOL_LIMIT decides */
    const char *limit_text;          /* "12GiB", "80%", "-2GiB"; wins over limit_bytes */
    size_t reserve_bytes;            /* reserve this much now, and keep it when trimming */
    size_t chunk_bytes;              /* least growth step of the chunked sources */
    void *(*chunk_alloc)(size_t bytes, int device, void *user);  /* SOURCE_CUSTOM: both */
    void (*chunk_free)(void *chunk, size_t bytes, int device, void *user);
    int (*on_out_of_memory)(const gpupool_verdict *, void *user); /* nonzero: try again */
    void *user;
    const char *name;                /* appears in reports and pictures; copied */
} gpupool_arena_config;

typedef struct gpupool_counter {
    uint64_t now, peak, total;       /* total: every increase added up */
} gpupool_counter;

typedef struct gpupool_stats {
    size_t struct_bytes;             /* set by the library: sizeof of the struct it filled */
    gpupool_counter requested;       /* bytes asked for by live blocks */
    gpupool_counter granted;         /* the same, rounded to units */
    gpupool_counter reserved;        /* bytes held from the driver */
    gpupool_counter pending;         /* freed on some stream, not known to be finished there */
    gpupool_counter blocks;          /* live blocks */
    uint64_t allocs, frees, failures;
    uint64_t lane_hits;              /* served from memory freed on the same stream */
    uint64_t splits, merges;
    uint64_t chunks_gained, chunks_lost; /* pieces got from and given back to the driver */
    uint64_t remaps;                 /* pieces moved to other addresses instead of growing */
    uint64_t fence_waits;            /* streams made to wait for another, on the device */
    uint64_t host_syncs;             /* times the host had to wait */
    uint64_t limit_bytes;            /* 0: none */
    uint64_t largest_free_bytes;     /* longest run of free reserved memory */
    uint64_t host_bytes;             /* host memory used for the arena's own records */
    uint64_t live_by_order[GPUPOOL_ORDERS], free_by_order[GPUPOOL_ORDERS];
} gpupool_stats;

/* == API ====================================================================================== */

/* Unless a call says otherwise: any thread may call it at any time; the calling thread's current
   device, capture mode and CUDA last error are left as they were; a call that fails changes
   nothing. A stream of 0 is what CUDA takes it for in the file that makes the call: the legacy
   default stream, or with --default-stream per-thread cudaStreamPerThread, one for each thread. */

GPUPOOL_API const char *gpupool_result_name(gpupool_result);
GPUPOOL_API gpupool_result gpupool_last_result(void);  /* of this thread's latest call */
GPUPOOL_API const char *gpupool_last_error(void);      /* one sentence on its latest failure */
GPUPOOL_API const char *gpupool_build(void);           /* the compile-time options in force */

/* ---- arena: the memory of one device ---- */

/* NULL for the config: the current device, and the default of every macro. */
GPUPOOL_API gpupool_result gpupool_arena_create(gpupool_arena **arena,
                                                const gpupool_arena_config *config);

/* E_IN_USE while blocks are live, or captures not released. Waits for the device, since what was
   freed may still be in use. After cudaDeviceReset it drops all there was, blocks and captures too.
   If a CUDA call fails the arena is still there, with less reserved perhaps, and this can be tried
   again. No other thread may use the arena any more. */
GPUPOOL_API gpupool_result gpupool_arena_destroy(gpupool_arena *arena);

/* Made at first use, the same for all callers; NULL with a result when it cannot be made. */
GPUPOOL_API gpupool_arena *gpupool_default_arena(int device);

/* A block of so many bytes, aligned to a unit (512 bytes) at least, for work queued on this stream
   from now on. NULL with a result in gpupool_last_result(): E_ARGUMENT for 0 bytes or more than
   2^48. Makes no CUDA call when memory freed earlier fits; otherwise gets more from the driver,
   moves what is idle, lets this stream wait for others, and at last waits on the host, in this
   order. */
GPUPOOL_API void *gpupool_alloc(gpupool_arena *, size_t bytes, cudaStream_t);

/* alignment: a power of two of at most 2^40 bytes */
GPUPOOL_API void *gpupool_alloc_aligned(gpupool_arena *, size_t bytes, size_t alignment,
                                        cudaStream_t);

/* The same, zeroed by a memset queued on the stream. */
GPUPOOL_API void *gpupool_zalloc(gpupool_arena *, size_t bytes, cudaStream_t);

/* The block's memory goes to later work of this stream at once, to other streams' once the work
   that is queued here now is done. The block may come from any stream's alloc. NULL is fine.
   E_NOT_OURS, E_INSIDE and E_DOUBLE_FREE (the pointer is in free memory) change nothing. With
   GPUPOOL_SOURCE_BYPASS this is cudaFree. */
GPUPOOL_API gpupool_result gpupool_free(gpupool_arena *, void *block, cudaStream_t);

/* The work queued on this stream so far uses the block too: once freed, nobody gets its memory
   before that work is done. Records an event. E_CAPTURING on a capturing stream. */
GPUPOOL_API gpupool_result gpupool_record_use(gpupool_arena *, const void *block, cudaStream_t);

/* Bytes asked for; 0 with a result if this starts no live block. */
GPUPOOL_API size_t gpupool_size(gpupool_arena *, const void *block);

/* Gives memory back to the driver while more than keep_bytes, or config.reserve_bytes, is reserved:
   what is free and known to be finished with. Does not wait for work in flight (a driver before
   CUDA 12.5 cannot tell without waiting for the device, nor can any once there are peers). If a
   CUDA call fails, what went before stays given back, and released_bytes says how much. Not while a
   stream captures, but for one in a scope: CUDA's way to ask after all streams may lose that
   capture. */
GPUPOOL_API gpupool_result gpupool_trim(gpupool_arena *, size_t keep_bytes,
                                        size_t *released_bytes /* or NULL */);

/* Before cudaStreamDestroy: what this stream freed no longer belongs to its handle, which CUDA may
   give to the next stream at once, and becomes free for others as soon as can be. In files that
   include this one the macro cudaStreamDestroy does so by itself (rule 5). */
GPUPOOL_API gpupool_result gpupool_stream_retired(gpupool_arena *, cudaStream_t);
GPUPOOL_API cudaError_t gpupool_cudaStreamDestroy(cudaStream_t); /* the same for all arenas */

/* Lets kernels of another device use the arena's memory, that which comes later too. E_UNSUPPORTED
   where the hardware cannot. Streams of the other device may then be given to all calls. */
GPUPOOL_API gpupool_result gpupool_allow_peer(gpupool_arena *, int device);

/* ---- graph capture. Calls on a capturing stream lose no capture and may be used without a scope,
   under rule 3. In a scope, blocks that are handed out on the stream belong to the graph: a replay
   finds them as they were. What is freed inside may be handed out again inside, if it was allocated
   there, and to nobody else before the release. Several scopes may be open at once, one for each
   stream. ---- */

/* Before or after cudaStreamBeginCapture. E_ARGUMENT if the stream has a scope. */
GPUPOOL_API gpupool_result gpupool_capture_begin(gpupool_arena *, cudaStream_t, gpupool_capture **);

/* Captured: the stream allocates as before; the memory stays for replays. Retiring the
   stream ends its scope too. */
GPUPOOL_API gpupool_result gpupool_capture_end(gpupool_capture *);

/* The graph is gone, or the capture failed: all its memory comes back, blocks that were not freed
   too. Waits for the device, since a replay may still run. The scope is no more. */
GPUPOOL_API gpupool_result gpupool_capture_release(gpupool_capture *);

/* ---- cudaMalloc's own shape, on the default arena of the current device. What cudaMalloc promises
   holds: any stream may use the block at once, and what is queued when it is freed is done before
   others get it, whatever stream it is on. Pointers that no default arena knows go to CUDA. ---- */

GPUPOOL_API cudaError_t gpupool_cudaMalloc(void **, size_t);
GPUPOOL_API cudaError_t gpupool_cudaFree(void *);
GPUPOOL_API cudaError_t gpupool_cudaMallocAsync(void **, size_t, cudaStream_t);
GPUPOOL_API cudaError_t gpupool_cudaFreeAsync(void *, cudaStream_t);

/* ---- limits: on reserved bytes. What CUDA's context, other libraries and other processes hold is
   not counted. An arena's first limit is the first there is of config.limit_text,
   config.limit_bytes, the environment's GPUPOOL_LIMIT_<device> and GPUPOOL_LIMIT, the macro
   GPUPOOL_LIMIT. ---- */

/* 0: none. Below what is reserved: gives back what it can, and does not grow until it is met. */
GPUPOOL_API gpupool_result gpupool_set_limit(gpupool_arena *, size_t bytes);
GPUPOOL_API gpupool_result gpupool_set_limit_fraction(gpupool_arena *, double); /* 0 < f <= 1 */

/* "1073741824", "12GiB" (K, M, G, T and KiB ... are powers of 1024, KB ... of 1000), "80%" of the
   device, "80%free" of what is free on it now, "-2GiB": all but that. All else is E_ARGUMENT. */
GPUPOOL_API gpupool_result gpupool_set_limit_text(gpupool_arena *, const char *);
GPUPOOL_API size_t gpupool_get_limit(gpupool_arena *); /* 0: none */

/* Bytes that could still be handed out in all, by the limit and by what the device has free. */
GPUPOOL_API size_t gpupool_available(gpupool_arena *);

/* Whether one block of so many bytes could be had now; if not, why not. Where work is in flight it
   may say no although gpupool_alloc, which waits, would succeed. */
GPUPOOL_API int gpupool_would_fit(gpupool_arena *, size_t bytes,
                                  gpupool_verdict *why /* or NULL */);

/* Of this thread's latest E_OUT_OF_MEMORY. */
GPUPOOL_API gpupool_result gpupool_last_verdict(gpupool_verdict *);

/* ---- statistics ---- */

GPUPOOL_API gpupool_result gpupool_get_stats(gpupool_arena *,
                                             gpupool_stats *); /* as of one moment */
GPUPOOL_API gpupool_result gpupool_reset_peaks(gpupool_arena *);                /* peak := now */

/* Derives every invariant anew; E_ARGUMENT, and the first that is broken is named, if memory was
   overwritten (or gpupool has a mistake). */
GPUPOOL_API gpupool_result gpupool_check(gpupool_arena *);
GPUPOOL_API gpupool_result gpupool_report(gpupool_arena *, FILE *); /* the table a person reads */
GPUPOOL_API gpupool_result gpupool_write_svg(gpupool_arena *, FILE *); /* the map of memory */

#endif /* GPUPOOL_H */

/* ============================================================================================= *
 *  Everything below is how it works. Rooms from the ground up: each uses only rooms above it.
 * ============================================================================================= */
#if defined(GPUPOOL_IMPLEMENTATION) && !defined(GPUPOOL_IMPLEMENTED)
#define GPUPOOL_IMPLEMENTED

#undef gpupool_alloc
#undef gpupool_alloc_aligned
#undef gpupool_zalloc
#undef gpupool_free
#undef gpupool_record_use
#undef gpupool_stream_retired
#undef gpupool_capture_begin
#undef gpupool_cudaMallocAsync
#undef gpupool_cudaFreeAsync
#if GPUPOOL_STREAM_HOOK
#undef cudaStreamDestroy
#endif
#if GPUPOOL_REPLACE_CUDA_MALLOC
#undef cudaMalloc
#undef cudaFree
#endif

#include <cuda.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#if GPUPOOL_UNIT_BYTES < 256 || (GPUPOOL_UNIT_BYTES & (GPUPOOL_UNIT_BYTES - 1))
#error "GPUPOOL_UNIT_BYTES must be a power of two of at least 256"
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
#if GPUPOOL_CHECK >= 1
#define GPI_ASSERT(truth) GPUPOOL_ASSERT(truth)
#else
#define GPI_ASSERT(truth) ((void)0)
#endif
#if defined(__GNUC__) || defined(__clang__)
#define GPI_PRINTF(text, first) __attribute__((format(printf, text, first)))
#define GPI_THREAD_LOCAL __thread
#else
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

/* == HOST =====================================================================================
   The operating system: lock, thread, fork, environment, memory, and this thread's last failure.
   The only room with an #ifdef for the system. uses: GROUND */

#if defined(_WIN32)
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
#else
#include <pthread.h>
#include <sched.h>
#include <sys/select.h>
#endif

typedef struct gpi_lock { int held; } gpi_lock; /* zero is open */

#define GPI_DEVICES_MAX 64

static struct gpi_process { /* the only state that is not an arena's */
    gpi_lock lock;
    int watching_forks;
    int forks;              /* how often this process image is a fork's child */
    uint64_t threads;       /* numbers given out to threads so far */
    gpupool_arena *default_arenas[GPI_DEVICES_MAX];
    int scopes;             /* of captures, not yet ended, of all arenas */
    gpi_lock arenas_lock;   /* taken before any lock of an arena */
    gpupool_arena *arenas;
} gpi_process;

static GPI_THREAD_LOCAL struct gpi_thread {
    uint64_t number;        /* 0: none yet; never used twice, unlike the system's thread ids */
    gpupool_result result;
    gpupool_verdict verdict;
    char text[400];
} gpi_thread;

#if !GPUPOOL_SINGLE_THREAD
static void gpi_host_relax(unsigned round) {
#if defined(_WIN32)
    if (round < 64) YieldProcessor();
    else Sleep(round < 128 ? 0 : 1);
#else
    if (round < 64) {
#if defined(__x86_64__) || defined(__i386__)
        __builtin_ia32_pause();
#endif
    } else if (round < 128) {
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

/* A spinning lock: held for tens of nanoseconds, so sleeping would cost more than waiting. */
static void gpi_host_lock(gpi_lock *lock) {
#if GPUPOOL_SINGLE_THREAD
    GPI_ASSERT(!lock->held);
    lock->held = 1;
#elif defined(_WIN32)
    unsigned round = 0;
    while (InterlockedExchange((volatile LONG *)&lock->held, 1)) gpi_host_relax(round++);
#else
    unsigned round = 0;
    while (__atomic_exchange_n(&lock->held, 1, __ATOMIC_ACQUIRE)) {
        do gpi_host_relax(round++);
        while (__atomic_load_n(&lock->held, __ATOMIC_RELAXED));
    }
#endif
}

static void gpi_host_unlock(gpi_lock *lock) {
#if GPUPOOL_SINGLE_THREAD
    lock->held = 0;
#elif defined(_WIN32)
    InterlockedExchange((volatile LONG *)&lock->held, 0);
#else
    __atomic_store_n(&lock->held, 0, __ATOMIC_RELEASE);
#endif
}

/* What one thread publishes under a lock and others read without it. */
#if GPUPOOL_SINGLE_THREAD
#define GPI_READ(place) (*(place))
#define GPI_PUBLISH(place, value) (*(place) = (value))
#elif defined(__GNUC__) || defined(__clang__)
#define GPI_READ(place) __atomic_load_n(place, __ATOMIC_ACQUIRE)
#define GPI_PUBLISH(place, value) __atomic_store_n(place, value, __ATOMIC_RELEASE)
#else
#define GPI_READ(place) (MemoryBarrier(), *(place))
#define GPI_PUBLISH(place, value) (MemoryBarrier(), *(place) = (value))
#endif

static void gpi_host_after_fork(void) {
    gpi_process.forks++;
    gpi_process.lock.held = 0;  /* its holder, if any, does not exist in the child */
    gpi_process.arenas_lock.held = 0;
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

static gpupool_result gpi_host_ok(void) { return gpi_thread.result = GPUPOOL_OK; }

GPI_PRINTF(2, 3)
static gpupool_result gpi_host_fail(gpupool_result result, const char *format, ...) {
    va_list rest;
    va_start(rest, format);
    vsnprintf(gpi_thread.text, sizeof gpi_thread.text, format, rest);
    va_end(rest);
    return gpi_thread.result = result;
}

static gpupool_result gpi_host_no_memory(void) {
    return gpi_host_fail(GPUPOOL_E_HOST_MEMORY,
                         "the host has no memory for the arena's records; nothing was changed");
}

/* == DRIVER ===================================================================================
   The only room that names CUDA. Every call is checked; a failure is told with the call's name.
   uses: HOST
   D1  between enter and leave the arena's device is current and capture mode is relaxed, so that
       no call spoils a capture of this or another thread, but for the two that ask after the whole
       context (gpi_fence_record_all, and waiting for the device)
   D2  after leave the caller's device and capture mode are as they were, and no error of ours is
       CUDA's last error; one of the caller's that was pending stays, or makes way for ours */

#if GPUPOOL_MAPPED
typedef CUmemGenericAllocationHandle gpi_handle;
#else
typedef unsigned long long gpi_handle;
#endif

typedef struct gpi_driver {
    int device;
    int mapped;              /* the cuMem* entry points below are there, and the device has them */
    uint64_t granule_bytes;  /* driver's page for mapping; what chunked sources round to */
    uint64_t total_bytes;    /* of the device */
    CUresult(CUDAAPI *reserve)(CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long);
    CUresult(CUDAAPI *unreserve)(CUdeviceptr, size_t);
    CUresult(CUDAAPI *create)(gpi_handle *, size_t, const CUmemAllocationProp *,
                              unsigned long long);
    CUresult(CUDAAPI *release)(gpi_handle);
    CUresult(CUDAAPI *map)(CUdeviceptr, size_t, size_t, gpi_handle, unsigned long long);
    CUresult(CUDAAPI *unmap)(CUdeviceptr, size_t);
    CUresult(CUDAAPI *access)(CUdeviceptr, size_t, const CUmemAccessDesc *, size_t);
    CUresult(CUDAAPI *granularity)(size_t *, const CUmemAllocationProp *,
                                   CUmemAllocationGranularity_flags);
    CUresult(CUDAAPI *attribute)(int *, CUdevice_attribute, CUdevice);
    CUresult(CUDAAPI *error_name)(CUresult, const char **);
    CUresult(CUDAAPI *current_context)(CUcontext *);
    CUresult(CUDAAPI *record_all)(CUcontext, CUevent); /* CUDA 12.5; NULL before */
    CUresult(CUDAAPI *stream_context)(CUstream, CUcontext *);
    CUresult(CUDAAPI *push)(CUcontext);
    CUresult(CUDAAPI *pop)(CUcontext *);
    CUresult(CUDAAPI *context_id)(CUcontext, unsigned long long *); /* CUDA 12.0; NULL before */
    void *crumb;             /* memory whose freeing is the wait for the device */
    int crumb_of_host;
    int peers[GPI_DEVICES_MAX], peer_count; /* devices that may use the memory too */
    CUcontext context;       /* the device's primary one */
    unsigned long long id;   /* of the context: another one after cudaDeviceReset; 0: not known */
} gpi_driver;

typedef struct gpi_visit { /* what enter found and leave puts back */
    int device;
    int device_known;
    int mode_known;
    int had_error;
    enum cudaStreamCaptureMode mode;
} gpi_visit;

/* Out of memory is not told as a failure of CUDA: the ladder goes on, and the verdict explains. */
static gpupool_result gpi_driver_told(const char *call, cudaError_t error) {
    if (error == cudaSuccess) return GPUPOOL_OK;
    if (error == cudaErrorMemoryAllocation)
        return gpi_host_fail(GPUPOOL_E_OUT_OF_MEMORY, "%s: the device has no memory left", call);
    return gpi_host_fail(GPUPOOL_E_CUDA, "%s failed: %s (%s)", call, cudaGetErrorName(error),
                         cudaGetErrorString(error));
}

static gpupool_result gpi_driver_told_cu(const gpi_driver *driver, const char *call,
                                         CUresult error) {
    const char *name = NULL;
    if (error == CUDA_SUCCESS) return GPUPOOL_OK;
    if (error == CUDA_ERROR_OUT_OF_MEMORY)
        return gpi_host_fail(GPUPOOL_E_OUT_OF_MEMORY, "%s: the device has no memory left", call);
    if (driver->error_name) driver->error_name(error, &name);
    return gpi_host_fail(GPUPOOL_E_CUDA, "%s failed: %s", call, name ? name : "unknown error");
}

static void gpi_driver_leave(const gpi_visit *visit) {
    enum cudaStreamCaptureMode mode = visit->mode;
    if (visit->mode_known) cudaThreadExchangeStreamCaptureMode(&mode);
    if (visit->device_known) cudaSetDevice(visit->device);
    if (!visit->had_error) cudaGetLastError();
}

static gpupool_result gpi_driver_enter(int device, gpi_visit *visit) {
    gpupool_result result;
    memset(visit, 0, sizeof *visit);
    visit->had_error = cudaPeekAtLastError() != cudaSuccess;
    visit->mode = cudaStreamCaptureModeRelaxed;
    result = gpi_driver_told("cudaThreadExchangeStreamCaptureMode",
                             cudaThreadExchangeStreamCaptureMode(&visit->mode));
    visit->mode_known = result == GPUPOOL_OK;
    if (result == GPUPOOL_OK)
        result = gpi_driver_told("cudaGetDevice", cudaGetDevice(&visit->device));
    if (result == GPUPOOL_OK && visit->device != device) {
        result = gpi_driver_told("cudaSetDevice", cudaSetDevice(device));
        visit->device_known = result == GPUPOOL_OK;
    }
    if (result != GPUPOOL_OK) gpi_driver_leave(visit);
    return result;
}

/* Symbols by name, so that nothing but the runtime is linked. NULL where the driver is older. */
typedef void (*gpi_symbol)(void);
static gpi_symbol gpi_driver_symbol(const char *name, unsigned version) {
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
    if (error == cudaSuccess && found) memcpy(&symbol, &found, sizeof symbol);
    return symbol;
}

#define GPI_SYMBOL(field, name, version)                             \
    do {                                                             \
        gpi_symbol symbol = gpi_driver_symbol(name, version);        \
        memcpy(&driver->field, &symbol, sizeof symbol);              \
    } while (0)

static CUmemAllocationProp gpi_driver_kind(const gpi_driver *driver) {
    CUmemAllocationProp kind;
    memset(&kind, 0, sizeof kind);
    kind.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    kind.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    kind.location.id = driver->device;
    return kind;
}

static void gpi_driver_find_mapping(gpi_driver *driver) {
    CUmemAllocationProp kind = gpi_driver_kind(driver);
    size_t granule = 0;
    int has = 0;
    GPI_SYMBOL(reserve, "cuMemAddressReserve", 10020);
    GPI_SYMBOL(unreserve, "cuMemAddressFree", 10020);
    GPI_SYMBOL(create, "cuMemCreate", 10020);
    GPI_SYMBOL(release, "cuMemRelease", 10020);
    GPI_SYMBOL(map, "cuMemMap", 10020);
    GPI_SYMBOL(unmap, "cuMemUnmap", 10020);
    GPI_SYMBOL(access, "cuMemSetAccess", 10020);
    GPI_SYMBOL(granularity, "cuMemGetAllocationGranularity", 10020);
    GPI_SYMBOL(attribute, "cuDeviceGetAttribute", 10020);
    GPI_SYMBOL(error_name, "cuGetErrorName", 10020);
    GPI_SYMBOL(current_context, "cuCtxGetCurrent", 10020);
    GPI_SYMBOL(record_all, "cuCtxRecordEvent", 12050);
    GPI_SYMBOL(stream_context, "cuStreamGetCtx", 10020);
    GPI_SYMBOL(push, "cuCtxPushCurrent", 10020);
    GPI_SYMBOL(pop, "cuCtxPopCurrent", 10020);
    GPI_SYMBOL(context_id, "cuCtxGetId", 12000);
    if (!GPUPOOL_MAPPED || !driver->reserve || !driver->unreserve || !driver->create ||
        !driver->release || !driver->map || !driver->unmap || !driver->access ||
        !driver->granularity || !driver->attribute)
        return;
    if (driver->attribute(&has, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
                          driver->device) != CUDA_SUCCESS || !has)
        return;
    if (driver->granularity(&granule, &kind, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) != CUDA_SUCCESS)
        return;
    if (!gpi_ground_is_power(granule) || granule < GPUPOOL_UNIT_BYTES) return;
    driver->granule_bytes = granule;
    driver->mapped = 1;
}

static gpupool_result gpi_driver_open(gpi_driver *driver, int device) {
    size_t free_bytes = 0, total_bytes = 0;
    gpupool_result result;
    driver->device = device;
    driver->granule_bytes = 2u << 20;
    result = gpi_driver_told("cudaFree", cudaFree(NULL)); /* makes the primary context */
    if (result == GPUPOOL_OK)
        result = gpi_driver_told("cudaMemGetInfo", cudaMemGetInfo(&free_bytes, &total_bytes));
    driver->total_bytes = total_bytes;
    if (result != GPUPOOL_OK) return result;
    gpi_driver_find_mapping(driver);
    if (!driver->current_context || driver->current_context(&driver->context) != CUDA_SUCCESS)
        driver->context = NULL;
    if (!driver->context_id || driver->context_id(driver->context, &driver->id) != CUDA_SUCCESS)
        driver->id = 0;
    return GPUPOOL_OK;
}

/* A piece of physical memory at [address, address + bytes): all of it, or nothing. */
static gpupool_result gpi_driver_create(const gpi_driver *driver, uint64_t bytes,
                                        gpi_handle *handle) {
    CUmemAllocationProp kind = gpi_driver_kind(driver);
    return gpi_driver_told_cu(driver, "cuMemCreate", driver->create(handle, bytes, &kind, 0));
}

static gpupool_result gpi_driver_map(const gpi_driver *driver, uint64_t address, uint64_t bytes,
                                     gpi_handle handle) {
    return gpi_driver_told_cu(driver, "cuMemMap", driver->map(address, bytes, 0, handle, 0));
}

/* For one device, this one or a peer. */
static gpupool_result gpi_driver_access_for(const gpi_driver *driver, uint64_t address,
                                            uint64_t bytes, int device) {
    CUmemAccessDesc access;
    memset(&access, 0, sizeof access);
    access.location = gpi_driver_kind(driver).location;
    access.location.id = device;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return gpi_driver_told_cu(driver, "cuMemSetAccess", driver->access(address, bytes, &access, 1));
}

static gpupool_result gpi_driver_access(const gpi_driver *driver, uint64_t address,
                                        uint64_t bytes) {
    gpupool_result result = gpi_driver_access_for(driver, address, bytes, driver->device);
    int i;
    for (i = 0; i < driver->peer_count && result == GPUPOOL_OK; i++)
        result = gpi_driver_access_for(driver, address, bytes, driver->peers[i]);
    return result;
}

static gpupool_result gpi_driver_unmap(const gpi_driver *driver, uint64_t address, uint64_t bytes) {
    return gpi_driver_told_cu(driver, "cuMemUnmap", driver->unmap(address, bytes));
}

static gpupool_result gpi_driver_release(const gpi_driver *driver, gpi_handle handle) {
    return gpi_driver_told_cu(driver, "cuMemRelease", driver->release(handle));
}

/* Whether an event recorded here would be a graph's, or would lose a capture: so it is on the
   legacy stream while any blocking stream captures. Asking is harmless. Between enter and leave. */
static int gpi_driver_is_capturing(cudaStream_t stream) {
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    cudaError_t error = cudaStreamIsCapturing(stream, &status);
    if (error == cudaErrorStreamCaptureImplicit) return 1;
    return error == cudaSuccess && status != cudaStreamCaptureStatusNone;
}

/* 0: not known. Not for a stream that captures: CUDA would end the capture. */
static unsigned long long gpi_driver_stream_id(cudaStream_t stream) {
    unsigned long long id = 0;
#if CUDART_VERSION >= 12000
    if (cudaStreamGetId(stream, &id) != cudaSuccess) return 0;
#else
    (void)stream;
#endif
    return id;
}

/* The stream's context where it is not the device's own: a stream of another device, say. Asking
   is harmless. */
static CUcontext gpi_driver_foreign(const gpi_driver *driver, cudaStream_t stream) {
    CUcontext context = NULL;
    if (stream == NULL || stream == cudaStreamLegacy || stream == cudaStreamPerThread) return NULL;
    if (!driver->stream_context || !driver->context || !driver->push || !driver->pop) return NULL;
    if (driver->stream_context((CUstream)stream, &context) != CUDA_SUCCESS) return NULL;
    return context == driver->context ? NULL : context;
}

static gpupool_result gpi_driver_push(const gpi_driver *driver, CUcontext context) {
    if (!context) return GPUPOOL_OK;
    return gpi_driver_told_cu(driver, "cuCtxPushCurrent", driver->push(context));
}

static void gpi_driver_pop(const gpi_driver *driver, CUcontext context) {
    if (context) driver->pop(&context);
}

static gpupool_result gpi_driver_can_peer(const gpi_driver *driver, int device) {
    int can = 0;
    gpupool_result result = gpi_driver_told(
        "cudaDeviceCanAccessPeer", cudaDeviceCanAccessPeer(&can, device, driver->device));
    if (result != GPUPOOL_OK || can) return result;
    return gpi_host_fail(GPUPOOL_E_UNSUPPORTED, "gpupool_allow_peer: device %d cannot reach the "
                         "memory of device %d", device, driver->device);
}

/* What cudaMalloc gives becomes accessible by whole devices. The arena's device is current. */
static gpupool_result gpi_driver_enable_peer(const gpi_driver *driver, int device) {
    gpupool_result result = gpi_driver_told("cudaSetDevice", cudaSetDevice(device));
    cudaError_t error;
    if (result != GPUPOOL_OK) return result;
    error = cudaDeviceEnablePeerAccess(driver->device, 0);
    if (error != cudaErrorPeerAccessAlreadyEnabled)
        result = gpi_driver_told("cudaDeviceEnablePeerAccess", error);
    cudaSetDevice(driver->device);
    return result;
}

static int gpi_driver_was_reset(const gpi_driver *driver) {
    unsigned long long id = 0;
    CUcontext context = NULL;
    if (!driver->id || !driver->context_id || !driver->current_context) return 0;
    if (driver->current_context(&context) != CUDA_SUCCESS || !context) return 0;
    return driver->context_id(context, &id) == CUDA_SUCCESS && id != driver->id;
}

/* Waits until all streams of the current device are done, destroyed ones too, and loses no capture,
   not even one on a non-blocking stream, as cudaDeviceSynchronize would: cudaFree waits so, of
   whatever memory, and so does cudaFreeHost (seen on CUDA 13.0). */
static gpupool_result gpi_driver_free_crumb(gpi_driver *driver) {
    gpupool_result result;
    if (!driver->crumb) return GPUPOOL_OK;
    if (driver->crumb_of_host)
        result = gpi_driver_told("cudaFreeHost", cudaFreeHost(driver->crumb));
    else result = gpi_driver_told("cudaFree", cudaFree(driver->crumb));
    if (result == GPUPOOL_OK) driver->crumb = NULL;
    return result;
}

static gpupool_result gpi_driver_wait_here(gpi_driver *driver) {
    gpupool_result result = gpi_driver_free_crumb(driver); /* of a wait that failed */
    if (result != GPUPOOL_OK) return result;
    driver->crumb_of_host = cudaMalloc(&driver->crumb, 1) != cudaSuccess;
    if (driver->crumb_of_host)
        result = gpi_driver_told("cudaHostAlloc", cudaHostAlloc(&driver->crumb, 1, 0));
    return result == GPUPOOL_OK ? gpi_driver_free_crumb(driver) : result;
}

static gpupool_result gpi_driver_synchronize_here(gpi_driver *driver) {
    (void)driver;
    return gpi_driver_told("cudaDeviceSynchronize", cudaDeviceSynchronize());
}

/* Waits for the device and its peers, whose streams may be at the arena's memory as well. */
static gpupool_result gpi_driver_wait(gpi_driver *driver, gpupool_result (*here)(gpi_driver *)) {
    gpupool_result result = here(driver);
    int i;
    for (i = 0; i < driver->peer_count && result == GPUPOOL_OK; i++) {
        result = gpi_driver_told("cudaSetDevice", cudaSetDevice(driver->peers[i]));
        if (result == GPUPOOL_OK) result = here(driver);
    }
    if (driver->peer_count) cudaSetDevice(driver->device);
    return result;
}

/* == LEDGER ===================================================================================
   The arena's numbers, and the limit they are held to. Nobody else adds to a number. uses: GROUND
   L1  requested <= granted <= reserved, and reserved <= limit unless the limit was lowered since
   L2  each counter: now <= peak and now <= total */

typedef struct gpi_ledger {
    gpupool_counter requested, granted, reserved, pending, blocks;
    uint64_t limit_bytes; /* UINT64_MAX: none */
    uint64_t over_bytes;  /* what was reserved when the limit was last set: it may be more */
    uint64_t allocs, frees, failures, lane_hits;
    uint64_t cached_bytes; /* free in caches, when these were last folded in */
} gpi_ledger;

static int gpi_ledger_check(const gpi_ledger *ledger) {
    const gpupool_counter *counters = &ledger->requested;
    int i;
    if (ledger->requested.now > ledger->granted.now) return 1;
    if (ledger->granted.now > ledger->reserved.now) return 1;
    if (ledger->reserved.now > gpi_ground_max(ledger->limit_bytes, ledger->over_bytes)) return 1;
    for (i = 0; i < 5; i++)
        if (counters[i].now > counters[i].peak || counters[i].now > counters[i].total) return 2;
    return 0;
}

static uint64_t gpi_ledger_room(const gpi_ledger *ledger) {
    if (ledger->reserved.now >= ledger->limit_bytes) return 0;
    return ledger->limit_bytes - ledger->reserved.now;
}

static void gpi_ledger_add(gpupool_counter *counter, uint64_t amount) {
    counter->now += amount;
    counter->total += amount;
    if (counter->now > counter->peak) counter->peak = counter->now;
}

static void gpi_ledger_sub(gpupool_counter *counter, uint64_t amount) {
    GPI_ASSERT(counter->now >= amount);
    counter->now -= amount;
}

static void gpi_ledger_set(gpupool_counter *counter, uint64_t now) {
    if (now > counter->now) gpi_ledger_add(counter, now - counter->now);
    else counter->now = now;
}

/* Changes that are made elsewhere, under another lock, and folded in later. Their own peak is kept,
   so that the counter's comes out as if each had been made here, where one thread is at work; with
   several, it may be too high by what they changed meanwhile. */
typedef struct gpi_change {
    int64_t now, most;
    uint64_t total;
} gpi_change;

static void gpi_ledger_note(gpi_change *change, uint64_t amount) {
    change->now += (int64_t)amount;
    change->total += amount;
    if (change->now > change->most) change->most = change->now;
}

static void gpi_ledger_fold(gpupool_counter *counter, gpi_change *change) {
    uint64_t most = counter->now + (uint64_t)change->most;
    if (change->now == 0 && change->total == 0) return;
    counter->now += (uint64_t)change->now;
    counter->total += change->total;
    if (most > counter->peak) counter->peak = most;
    memset(change, 0, sizeof *change);
}

/* == TREE =====================================================================================
   Which units are free, and for whom. Integers only: a unit's number is its address divided by
   GPUPOOL_UNIT_BYTES, and nothing here touches the memory that it stands for. uses: GROUND

   A buddy system with two rules of the classical one lifted. A run of units may start anywhere and
   have any length, so no request is rounded up to a power of two; and a run's buddies are simply
   the runs on its two sides: whenever one of them is free for the same users, the two are one.
   What stays is what made buddies quick: free runs are filed by order. The root says which orders
   have runs; an order says which of its eight steps (of an eighth of its size) have runs; a step
   has the list of them. The smallest step in which every run is large enough is two bit scans away.

       lane -> order 12 (4096..8191 units) -> step 3 (5632..6143) -> run <-> run <-> run

   A lane has two such trees: the free memory that certain users may take. Lane QUIET is memory
   whose earlier work is known to be done; lane BARE has addresses without memory behind them; the
   other lanes belong to streams. A live run is in no lane but in the index, which finds it by its
   unit.

   The second tree of a lane is its edge: runs beside bare addresses. They are taken last. Memory is
   added where it makes the most of an edge, so what is left alone there keeps large requests
   together; filled with small ones, it would cost a recorded training run 0.8% more memory.

   T1  neighbours meet: run.next.unit == run.unit + run.units, and run.next.prev == run
   T2  a free run is in its lane's list of its own order and step, in the edge exactly if a
       neighbour is bare; bits say which lists hold runs; counts and sums are those of the lists
   T3  no run stands next to a run of the same lane (they would be one)
   T4  the index holds exactly the live runs, each in the bucket of its unit
   T5  the leftmost run of a chunk stays the same struct while the chunk lives (owners know it) */

#define GPI_STEPS 8
#define GPI_PAGE 1024                  /* runs, or buckets, got from the host at a time */
#define GPI_TRIES 4                    /* runs looked at in a step where not every run fits */
#define GPI_LANE_QUIET 0u
#define GPI_LANE_BARE 1u
#define GPI_LANE_STREAMS 2u            /* the first lane of a stream */
#define GPI_LANE_HELD 0xfffffffeu      /* not free, not live: being worked on by one thread */
#define GPI_LANE_LIVE 0xffffffffu

typedef struct gpi_run {
    uint64_t unit, units;
    struct gpi_run *prev, *next;       /* neighbours by address; NULL at the chunk's edge */
    struct gpi_run *list_prev, *list_next; /* free: same step; live: list_next is the same bucket */
    void *uses;                        /* live: the arena's list of other streams' fences */
    uint32_t lane;
    union {
        uint32_t slack_bytes;          /* live: granted minus requested */
        uint32_t shelf;                /* free: which tree of its lane it is in */
    } as;
} gpi_run;

typedef struct gpi_shelf {
    uint64_t orders;                   /* bit k: order k has runs */
    uint8_t steps[GPUPOOL_ORDERS];     /* bit s: that step of the order has runs */
    gpi_run *lists[GPUPOOL_ORDERS][GPI_STEPS];
} gpi_shelf;

typedef struct gpi_lane {
    uint64_t units;                    /* free in this lane */
    uint64_t runs;
    uint64_t runs_by_order[GPUPOOL_ORDERS];
    gpi_shelf shelves[2];              /* inner runs, and the edge */
} gpi_lane;

#define GPI_LANES_MOST 6

typedef struct gpi_lanes {             /* where a stream may take without waiting; its own first */
    uint32_t number[GPI_LANES_MOST];
    int count;
} gpi_lanes;

typedef struct gpi_tree {
    gpi_lane **lanes;                  /* NULL: number not in use */
    uint32_t lane_count, lane_room;
    gpi_run *spare;                    /* run structs not in use, linked by list_next */
    uint64_t spare_count;
    gpi_run **pages;                   /* where run structs live */
    uint64_t page_count, page_room;
    gpi_run ***buckets;                /* pages of heads of the index's lists */
    uint64_t bucket_count, bucket_page_count, bucket_page_room;
    uint64_t live_runs, live_units;
    uint64_t pending_units;            /* free in lanes of streams */
    uint64_t splits, merges;
    uint64_t host_bytes;
    uint64_t live_by_order[GPUPOOL_ORDERS];
} gpi_tree;

typedef struct gpi_place { unsigned order, step; } gpi_place;

static gpi_place gpi_tree_place(uint64_t units) {
    gpi_place place;
    place.order = gpi_ground_high_bit(units);
    place.step =
        (unsigned)(place.order >= 3 ? units >> (place.order - 3) : units << (3 - place.order));
    place.step &= GPI_STEPS - 1;
    return place;
}

/* Linear hashing: one more bucket per live run, split in turn, so that no call ever pays for a
   re-hash of the whole. Bucket b < count; hashes beyond the count fold onto the half below. */
static uint64_t gpi_tree_bucket(const gpi_tree *tree, uint64_t unit) {
    uint64_t hash = (unit * 0x9e3779b97f4a7c15ull) >> 24;
    unsigned bits = gpi_ground_high_bit(tree->bucket_count);
    uint64_t bucket = hash & ((2ull << bits) - 1);
    return bucket < tree->bucket_count ? bucket : hash & ((1ull << bits) - 1);
}

static gpi_run **gpi_tree_head(const gpi_tree *tree, uint64_t bucket) {
    return &tree->buckets[bucket / GPI_PAGE][bucket % GPI_PAGE];
}

static int gpi_tree_is_edge(const gpi_run *run) {
    return (run->prev && run->prev->lane == GPI_LANE_BARE) ||
           (run->next && run->next->lane == GPI_LANE_BARE);
}

static int gpi_tree_check_run(const gpi_run *run, const gpi_run *before, uint32_t number) {
    if (run->lane != number || run->list_prev != before) return 2;
    if (run->prev && run->prev->next != run) return 1;
    if (run->next && (run->next->prev != run || run->next->unit != run->unit + run->units))
        return 1;
    if (run->prev && run->prev->lane == number) return 3;
    if (run->next && run->next->lane == number) return 3;
    return 0;
}

/* One tree of a lane; what it holds is added to units, runs and counts. */
static int gpi_tree_check_shelf(const gpi_lane *lane, uint32_t number, uint32_t shelf_number,
                                uint64_t *units, uint64_t *counts) {
    static const gpi_run *const none[GPI_STEPS] = {NULL};
    const gpi_shelf *shelf = &lane->shelves[shelf_number];
    unsigned order, step;
    for (order = 0; order < GPUPOOL_ORDERS; order++) {
        if (!shelf->steps[order] && !(shelf->orders >> order & 1) &&
            !memcmp(shelf->lists[order], none, sizeof none))
            continue; /* most orders are empty */
        for (step = 0; step < GPI_STEPS; step++) {
            const gpi_run *run = shelf->lists[order][step], *before = NULL;
            if ((run != NULL) != (shelf->steps[order] >> step & 1)) return 2;
            for (; run; before = run, run = run->list_next) {
                gpi_place place = gpi_tree_place(run->units);
                int broken = gpi_tree_check_run(run, before, number);
                if (broken) return broken;
                if (place.order != order || place.step != step) return 2;
                if (run->as.shelf != shelf_number) return 2;
                if (gpi_tree_is_edge(run) != (int)shelf_number) return 2;
                *units += run->units;
                counts[order]++;
            }
        }
        if ((shelf->steps[order] != 0) != (int)(shelf->orders >> order & 1)) return 2;
    }
    return 0;
}

static int gpi_tree_check_lane(const gpi_tree *tree, uint32_t number) {
    const gpi_lane *lane = tree->lanes[number];
    uint64_t units = 0, runs = 0, counts[GPUPOOL_ORDERS];
    uint32_t shelf;
    unsigned order;
    memset(counts, 0, sizeof counts);
    for (shelf = 0; shelf < 2; shelf++) {
        int broken = gpi_tree_check_shelf(lane, number, shelf, &units, counts);
        if (broken) return broken;
    }
    for (order = 0; order < GPUPOOL_ORDERS; order++) {
        if (counts[order] != lane->runs_by_order[order]) return 2;
        runs += counts[order];
    }
    return units == lane->units && runs == lane->runs ? 0 : 2;
}

typedef struct gpi_tally { uint64_t free_runs, live_runs; } gpi_tally;

/* Walks a chunk from left to right and adds up what it meets: the lists and the index must hold as
   much, or a run is in none. */
static int gpi_tree_check_chunk(const gpi_run *run, uint64_t unit, uint64_t units,
                                gpi_tally *tally) {
    uint64_t end = unit + units;
    if (run->prev || run->unit != unit) return 5;
    for (; run; run = run->next) {
        if (run->unit != unit || (run->next && run->next->prev != run)) return 1;
        if (run->lane == GPI_LANE_LIVE) tally->live_runs++;
        else if (run->lane != GPI_LANE_HELD) tally->free_runs++;
        unit += run->units;
    }
    return unit == end ? 0 : 1;
}

static int gpi_tree_check_tally(const gpi_tree *tree, const gpi_tally *tally) {
    uint64_t runs = 0;
    uint32_t number;
    for (number = 0; number < tree->lane_count; number++)
        if (tree->lanes[number]) runs += tree->lanes[number]->runs;
    if (runs != tally->free_runs) return 2;
    return tree->live_runs == tally->live_runs ? 0 : 4;
}

static int gpi_tree_check(const gpi_tree *tree) {
    uint64_t pending = 0, bucket, runs = 0, units = 0, orders[GPUPOOL_ORDERS];
    uint32_t number;
    int broken;
    memset(orders, 0, sizeof orders);
    for (number = 0; number < tree->lane_count; number++) {
        if (!tree->lanes[number]) continue;
        broken = gpi_tree_check_lane(tree, number);
        if (broken) return broken;
        if (number >= GPI_LANE_STREAMS) pending += tree->lanes[number]->units;
    }
    if (pending != tree->pending_units) return 2;
    for (bucket = 0; bucket < tree->bucket_count; bucket++) {
        const gpi_run *run = *gpi_tree_head(tree, bucket);
        for (; run; run = run->list_next, runs++) {
            if (run->lane != GPI_LANE_LIVE || gpi_tree_bucket(tree, run->unit) != bucket) return 4;
            if (run->next && run->next->unit != run->unit + run->units) return 1;
            if (run->prev && run->prev->next != run) return 1;
            units += run->units;
            orders[gpi_tree_place(run->units).order]++;
        }
    }
    if (runs != tree->live_runs || units != tree->live_units) return 4;
    return memcmp(orders, tree->live_by_order, sizeof orders) ? 4 : 0;
}

/* -- questions -- */

static gpi_run *gpi_tree_live(const gpi_tree *tree, uint64_t unit) {
    gpi_run *run;
    if (tree->bucket_count == 0) return NULL;
    run = *gpi_tree_head(tree, gpi_tree_bucket(tree, unit));
    while (run && run->unit != unit) run = run->list_next;
    return run;
}

/* Where a request of so many units would start in this run; UINT64_MAX if it does not fit. */
static uint64_t gpi_tree_start(const gpi_run *run, uint64_t units, uint64_t align_units) {
    uint64_t start = gpi_ground_up(run->unit, align_units);
    uint64_t lost = start - run->unit;
    return lost < run->units && run->units - lost >= units ? start : UINT64_MAX;
}

/* The next step with runs, at or after the given one; order GPUPOOL_ORDERS when there is none. */
static gpi_place gpi_tree_next(const gpi_shelf *shelf, gpi_place place) {
    uint64_t orders;
    unsigned steps = 0;
    if (place.order < GPUPOOL_ORDERS) steps = shelf->steps[place.order] & (0xffu << place.step);
    if (steps == 0) {
        orders = place.order + 1 < GPUPOOL_ORDERS ? shelf->orders >> (place.order + 1) : 0;
        if (orders == 0) {
            place.order = GPUPOOL_ORDERS;
            place.step = 0;
            return place;
        }
        place.order += 1 + gpi_ground_low_bit(orders);
        steps = shelf->steps[place.order];
    }
    place.step = gpi_ground_low_bit(steps);
    return place;
}

static gpi_place gpi_tree_after(const gpi_shelf *shelf, gpi_place place) {
    place.step++;
    place.order += place.step / GPI_STEPS;
    place.step %= GPI_STEPS;
    return gpi_tree_next(shelf, place);
}

/* The first run of a list that the request fits in, with at most `tries` misfits passed over. */
static gpi_run *gpi_tree_fit(gpi_run *run, uint64_t units, uint64_t align_units, uint64_t tries) {
    for (; run; run = run->list_next) {
        if (gpi_tree_start(run, units, align_units) != UINT64_MAX) return run;
        if (tries-- == 0) break;
    }
    return NULL;
}

/* A free run that the request fits in, from the smallest step of all the lanes upward. In the
   request's own step, where a run may be too short, and anywhere when aligned, `tries` bounds the
   misfits looked at in each list. */
static gpi_run *gpi_tree_find_on(const gpi_tree *tree, const gpi_lanes *lanes, unsigned shelf,
                                 uint64_t units, uint64_t align_units, uint64_t tries) {
    gpi_place places[GPI_LANES_MOST], first = gpi_tree_place(units);
    int i, least;
    for (i = 0; i < lanes->count; i++)
        places[i] = gpi_tree_next(&tree->lanes[lanes->number[i]]->shelves[shelf], first);
    for (;;) {
        const gpi_shelf *on;
        gpi_run *run;
        for (least = 0, i = 1; i < lanes->count; i++)
            if (places[i].order < places[least].order ||
                (places[i].order == places[least].order && places[i].step < places[least].step))
                least = i;
        if (places[least].order >= GPUPOOL_ORDERS) return NULL;
        on = &tree->lanes[lanes->number[least]]->shelves[shelf];
        run = gpi_tree_fit(on->lists[places[least].order][places[least].step], units, align_units,
                           tries);
        if (run) return run;
        places[least] = gpi_tree_after(on, places[least]);
    }
}

static gpi_run *gpi_tree_find(const gpi_tree *tree, const gpi_lanes *lanes, uint64_t units,
                              uint64_t align_units, uint64_t tries) {
    gpi_run *run = gpi_tree_find_on(tree, lanes, 0, units, align_units, tries);
    return run ? run : gpi_tree_find_on(tree, lanes, 1, units, align_units, tries);
}

static uint64_t gpi_tree_largest(const gpi_lane *lane) {
    uint64_t largest = 0;
    int i;
    for (i = 0; i < 2; i++) {
        const gpi_shelf *shelf = &lane->shelves[i];
        const gpi_run *run;
        unsigned order;
        if (shelf->orders == 0) continue;
        order = gpi_ground_high_bit(shelf->orders);
        run = shelf->lists[order][gpi_ground_high_bit(shelf->steps[order])];
        for (; run; run = run->list_next) largest = gpi_ground_max(largest, run->units);
    }
    return largest;
}

/* -- changes: the host's memory is asked for before anything is changed -- */

static int gpi_tree_grow_list(gpi_tree *tree, void **list, uint64_t *room, uint64_t need) {
    uint64_t more = *room ? *room * 2 : 16;
    void *larger;
    if (need <= *room) return 1;
    larger = gpi_host_zeroed(more * sizeof(void *));
    if (!larger) return 0;
    if (*list) memcpy(larger, *list, *room * sizeof(void *));
    GPUPOOL_FREE(*list);
    tree->host_bytes += (more - *room) * sizeof(void *);
    *list = larger;
    *room = more;
    return 1;
}

/* Makes sure of so many run structs and one more bucket. 0: the host has no memory. */
static int gpi_tree_prepare(gpi_tree *tree, uint64_t runs) {
    void *list;
    while (tree->spare_count < runs) {
        gpi_run *page;
        int i;
        list = tree->pages;
        if (!gpi_tree_grow_list(tree, &list, &tree->page_room, tree->page_count + 1)) return 0;
        tree->pages = (gpi_run **)list;
        page = (gpi_run *)gpi_host_zeroed(GPI_PAGE * sizeof *page);
        if (!page) return 0;
        tree->pages[tree->page_count++] = page;
        tree->host_bytes += GPI_PAGE * sizeof *page;
        for (i = GPI_PAGE - 1; i >= 0; i--) {
            page[i].list_next = tree->spare;
            tree->spare = &page[i];
        }
        tree->spare_count += GPI_PAGE;
    }
    if (tree->bucket_count == tree->bucket_page_count * GPI_PAGE) {
        gpi_run **page;
        list = tree->buckets;
        if (!gpi_tree_grow_list(tree, &list, &tree->bucket_page_room, tree->bucket_page_count + 1))
            return 0;
        tree->buckets = (gpi_run ***)list;
        page = (gpi_run **)gpi_host_zeroed(GPI_PAGE * sizeof *page);
        if (!page) return 0;
        tree->buckets[tree->bucket_page_count++] = page;
        tree->host_bytes += GPI_PAGE * sizeof *page;
        if (tree->bucket_count == 0) tree->bucket_count = 1;
    }
    return 1;
}

/* A new empty lane's number, or GPI_LANE_LIVE when the host has no memory. */
static uint32_t gpi_tree_lane_add(gpi_tree *tree) {
    uint32_t number = 0;
    uint64_t room = tree->lane_room;
    void *list = tree->lanes;
    gpi_lane *lane;
    while (number < tree->lane_count && tree->lanes[number]) number++;
    if (!gpi_tree_grow_list(tree, &list, &room, (uint64_t)number + 1)) return GPI_LANE_LIVE;
    tree->lanes = (gpi_lane **)list;
    tree->lane_room = (uint32_t)room;
    lane = (gpi_lane *)gpi_host_zeroed(sizeof *lane);
    if (!lane) return GPI_LANE_LIVE;
    tree->host_bytes += sizeof *lane;
    tree->lanes[number] = lane;
    if (number == tree->lane_count) tree->lane_count++;
    return number;
}

static void gpi_tree_lane_drop(gpi_tree *tree, uint32_t number) {
    GPI_ASSERT(tree->lanes[number]->runs == 0);
    GPUPOOL_FREE(tree->lanes[number]);
    tree->host_bytes -= sizeof(gpi_lane);
    tree->lanes[number] = NULL;
}

static void gpi_tree_close(gpi_tree *tree) {
    uint64_t i;
    for (i = 0; i < tree->lane_count; i++) GPUPOOL_FREE(tree->lanes[i]);
    for (i = 0; i < tree->page_count; i++) GPUPOOL_FREE(tree->pages[i]);
    for (i = 0; i < tree->bucket_page_count; i++) GPUPOOL_FREE(tree->buckets[i]);
    GPUPOOL_FREE(tree->lanes);
    GPUPOOL_FREE(tree->pages);
    GPUPOOL_FREE(tree->buckets);
    memset(tree, 0, sizeof *tree);
}

/* Lanes QUIET and BARE. 0: the host has no memory. */
static int gpi_tree_open(gpi_tree *tree) {
    if (gpi_tree_lane_add(tree) == GPI_LANE_QUIET && gpi_tree_lane_add(tree) == GPI_LANE_BARE &&
        gpi_tree_prepare(tree, 1))
        return 1;
    gpi_tree_close(tree);
    return 0;
}

static void gpi_tree_file(gpi_tree *tree, gpi_run *run, uint32_t number) {
    gpi_lane *lane = tree->lanes[number];
    gpi_place place = gpi_tree_place(run->units);
    uint32_t edge = gpi_tree_is_edge(run) ? 1 : 0;
    gpi_shelf *shelf = &lane->shelves[edge];
    gpi_run **list = &shelf->lists[place.order][place.step];
    run->lane = number;
    run->as.shelf = edge;
    run->list_prev = NULL;
    run->list_next = *list;
    if (*list) (*list)->list_prev = run;
    *list = run;
    shelf->orders |= 1ull << place.order;
    shelf->steps[place.order] = (uint8_t)(shelf->steps[place.order] | 1u << place.step);
    lane->runs_by_order[place.order]++;
    lane->runs++;
    lane->units += run->units;
    if (number >= GPI_LANE_STREAMS) tree->pending_units += run->units;
}

static void gpi_tree_unfile(gpi_tree *tree, gpi_run *run) {
    gpi_lane *lane = tree->lanes[run->lane];
    gpi_shelf *shelf = &lane->shelves[run->as.shelf];
    gpi_place place = gpi_tree_place(run->units);
    gpi_run **list = &shelf->lists[place.order][place.step];
    if (run->list_prev) run->list_prev->list_next = run->list_next;
    else *list = run->list_next;
    if (run->list_next) run->list_next->list_prev = run->list_prev;
    if (!*list) {
        shelf->steps[place.order] = (uint8_t)(shelf->steps[place.order] & ~(1u << place.step));
        if (!shelf->steps[place.order]) shelf->orders &= ~(1ull << place.order);
    }
    lane->runs_by_order[place.order]--;
    lane->runs--;
    lane->units -= run->units;
    if (run->lane >= GPI_LANE_STREAMS) tree->pending_units -= run->units;
    run->lane = GPI_LANE_HELD;
}

/* A run has become bare, or is bare no longer: its free neighbours change trees. */
static void gpi_tree_refile_sides(gpi_tree *tree, gpi_run *run) {
    gpi_run *sides[2];
    int i;
    sides[0] = run->prev;
    sides[1] = run->next;
    for (i = 0; i < 2; i++) {
        uint32_t lane = sides[i] ? sides[i]->lane : GPI_LANE_HELD;
        if (lane >= GPI_LANE_HELD || lane == GPI_LANE_BARE) continue;
        gpi_tree_unfile(tree, sides[i]);
        gpi_tree_file(tree, sides[i], lane);
    }
}

static gpi_run *gpi_tree_new(gpi_tree *tree) {
    gpi_run *run = tree->spare;
    GPI_ASSERT(run != NULL);
    tree->spare = run->list_next;
    tree->spare_count--;
    return run;
}

static void gpi_tree_retire(gpi_tree *tree, gpi_run *run) {
    run->list_next = tree->spare;
    tree->spare = run;
    tree->spare_count++;
}

/* Cuts a held run in two at `unit`; returns the right part, held too. Needs one spare struct. */
static gpi_run *gpi_tree_split(gpi_tree *tree, gpi_run *run, uint64_t unit) {
    gpi_run *right;
    GPI_ASSERT(run->lane == GPI_LANE_HELD && unit > run->unit && unit < run->unit + run->units);
    right = gpi_tree_new(tree);
    right->unit = unit;
    right->units = run->unit + run->units - unit;
    run->units = unit - run->unit;
    right->prev = run;
    right->next = run->next;
    if (run->next) run->next->prev = right;
    run->next = right;
    right->lane = GPI_LANE_HELD;
    right->uses = NULL;
    tree->splits++;
    return right;
}

/* Makes two held neighbours one. The left struct stays (T5). */
static void gpi_tree_weld(gpi_tree *tree, gpi_run *left, gpi_run *right) {
    GPI_ASSERT(left->lane == GPI_LANE_HELD && right->lane == GPI_LANE_HELD && left->next == right);
    left->units += right->units;
    left->next = right->next;
    if (right->next) right->next->prev = left;
    gpi_tree_retire(tree, right);
    tree->merges++;
}

static int gpi_tree_joins(const gpi_run *side, uint32_t lane, uint64_t absorb_units) {
    return side->lane == lane || (side->lane == GPI_LANE_QUIET && side->units <= absorb_units);
}

/* A held run becomes free in a lane, and one with every neighbour that is free for the same users.
   Quiet neighbours of up to absorb_units join a stream's lane: not larger ones, since other streams
   could then no longer take them without a fence. */
static gpi_run *gpi_tree_put(gpi_tree *tree, gpi_run *run, uint32_t lane, uint64_t absorb_units) {
    gpi_run *side;
    GPI_ASSERT(run->lane == GPI_LANE_HELD);
    if (lane < GPI_LANE_STREAMS) absorb_units = 0;
    while ((side = run->prev) != NULL && gpi_tree_joins(side, lane, absorb_units)) {
        gpi_tree_unfile(tree, side);
        gpi_tree_weld(tree, side, run);
        run = side;
    }
    while ((side = run->next) != NULL && gpi_tree_joins(side, lane, absorb_units)) {
        gpi_tree_unfile(tree, side);
        gpi_tree_weld(tree, run, side);
    }
    gpi_tree_file(tree, run, lane);
    if (lane == GPI_LANE_BARE) gpi_tree_refile_sides(tree, run);
    return run;
}

/* Takes [unit, unit + units) out of a free run and holds it; what is left at both ends stays free
   where it was. Needs two spare structs. */
static gpi_run *gpi_tree_take(gpi_tree *tree, gpi_run *run, uint64_t unit, uint64_t units) {
    uint32_t lane = run->lane;
    gpi_run *head = NULL;
    GPI_ASSERT(lane < GPI_LANE_HELD && unit >= run->unit);
    GPI_ASSERT(units > 0 && units <= run->units && unit - run->unit <= run->units - units);
    gpi_tree_unfile(tree, run);
    if (unit > run->unit) {
        head = run;
        run = gpi_tree_split(tree, run, unit);
        gpi_tree_file(tree, head, lane);
    }
    if (run->units > units) gpi_tree_file(tree, gpi_tree_split(tree, run, unit + units), lane);
    if (lane == GPI_LANE_BARE) gpi_tree_refile_sides(tree, run);
    return run;
}

/* A held run becomes live: found by its unit from now on. Needs what prepare made sure of. */
static void gpi_tree_bring_alive(gpi_tree *tree, gpi_run *run, uint32_t slack_bytes) {
    gpi_run **head;
    GPI_ASSERT(run->lane == GPI_LANE_HELD);
    if (tree->live_runs >= tree->bucket_count) { /* split the bucket whose turn it is */
        uint64_t fresh = tree->bucket_count;
        uint64_t old = fresh - (1ull << gpi_ground_high_bit(fresh));
        gpi_run *all = *gpi_tree_head(tree, old), *rest;
        tree->bucket_count++;
        *gpi_tree_head(tree, old) = NULL;
        *gpi_tree_head(tree, fresh) = NULL;
        for (; all; all = rest) {
            rest = all->list_next;
            head = gpi_tree_head(tree, gpi_tree_bucket(tree, all->unit));
            all->list_next = *head;
            *head = all;
        }
    }
    head = gpi_tree_head(tree, gpi_tree_bucket(tree, run->unit));
    run->lane = GPI_LANE_LIVE;
    run->uses = NULL;
    run->as.slack_bytes = slack_bytes;
    run->list_next = *head;
    *head = run;
    tree->live_runs++;
    tree->live_units += run->units;
    tree->live_by_order[gpi_tree_place(run->units).order]++;
}

/* A live run becomes held: forgotten by the index, not free yet. */
static void gpi_tree_lay_down(gpi_tree *tree, gpi_run *run) {
    gpi_run **link = gpi_tree_head(tree, gpi_tree_bucket(tree, run->unit));
    GPI_ASSERT(run->lane == GPI_LANE_LIVE);
    while (*link != run) link = &(*link)->list_next;
    *link = run->list_next;
    run->lane = GPI_LANE_HELD;
    tree->live_runs--;
    tree->live_units -= run->units;
    tree->live_by_order[gpi_tree_place(run->units).order]--;
}

/* A chunk's units enter the tree, held. The struct returned is the chunk's leftmost for good (T5).
   Needs one spare struct. */
static gpi_run *gpi_tree_add_chunk(gpi_tree *tree, uint64_t unit, uint64_t units) {
    gpi_run *run = gpi_tree_new(tree);
    memset(run, 0, sizeof *run);
    run->unit = unit;
    run->units = units;
    run->lane = GPI_LANE_HELD;
    return run;
}

static void gpi_tree_remove_chunk(gpi_tree *tree, gpi_run *run) {
    GPI_ASSERT(run->lane == GPI_LANE_HELD && !run->prev && !run->next);
    gpi_tree_retire(tree, run);
}

/* All of one lane's memory moves to another, merging there. */
static void gpi_tree_pour(gpi_tree *tree, uint32_t from, uint32_t to) {
    gpi_lane *lane = tree->lanes[from];
    GPI_ASSERT(from != to);
    while (lane->runs) {
        gpi_shelf *shelf = &lane->shelves[lane->shelves[0].orders ? 0 : 1];
        unsigned order = gpi_ground_low_bit(shelf->orders);
        gpi_run *run = shelf->lists[order][gpi_ground_low_bit(shelf->steps[order])];
        gpi_tree_unfile(tree, run);
        gpi_tree_put(tree, run, to, 0);
    }
}

/* == CACHE ====================================================================================
   Blocks that one stream has freed, kept whole for its next request of the same size; and blocks
   handed out again from there, which are found here when they come back. All of them are live in
   the tree, which so need not be asked for either. uses: LEDGER, TREE

       free block:  bin of its size -> slot -> slot          handed out:  chain of its unit -> slot

   C1  a slot's run is live in the tree, says GPI_CACHED in place of its slack, and leads back here
   C2  a slot is in the list that its state asks for, once
   C3  free_units and free_blocks are those of the bins; used counts all slots but the empty ones */

#define GPI_SLOTS 64
#define GPI_BINS 32
#define GPI_NO_SLOT 0xffu
#define GPI_CACHED 0xffffffffu

typedef enum gpi_slot_state { GPI_SLOT_EMPTY, GPI_SLOT_FREE, GPI_SLOT_OUT } gpi_slot_state;

typedef struct gpi_slot {
    gpi_run *run;
    uint64_t unit, units;
    uint32_t slack_bytes;              /* handed out: granted minus requested */
    uint8_t next, state;
} gpi_slot;

typedef struct gpi_cache {
    gpi_lock lock;
    gpi_slot slots[GPI_SLOTS];
    uint8_t bins[GPI_BINS], chains[GPI_SLOTS], empty;
    uint8_t hand;                      /* the slot that makes room next */
    uint32_t used, free_blocks;
    uint64_t free_units, told_units;   /* told: of them the ledger knows */
    uint64_t most_units;               /* that may be free here */
    gpi_change requested, granted, blocks; /* not yet in the ledger */
    uint64_t allocs, frees;
} gpi_cache;

static uint8_t *gpi_cache_bin(gpi_cache *cache, uint64_t units) {
    return &cache->bins[(units * 0x9e3779b97f4a7c15ull) >> 59];
}

static uint8_t *gpi_cache_chain(gpi_cache *cache, uint64_t unit) {
    return &cache->chains[(unit * 0x9e3779b97f4a7c15ull) >> 58];
}

/* The list that a slot is in. */
static uint8_t *gpi_cache_list(gpi_cache *cache, const gpi_slot *slot) {
    if (slot->state == GPI_SLOT_FREE) return gpi_cache_bin(cache, slot->units);
    if (slot->state == GPI_SLOT_OUT) return gpi_cache_chain(cache, slot->unit);
    return &cache->empty;
}

/* How many slots all lists have; one too many if a slot is in two, or a list has no end. */
static int gpi_cache_listed(const gpi_cache *cache) {
    int list, listed = 0;
    for (list = 0; list <= GPI_BINS + GPI_SLOTS; list++) {
        int at = list < GPI_BINS               ? cache->bins[list]
                 : list < GPI_BINS + GPI_SLOTS ? cache->chains[list - GPI_BINS]
                                               : cache->empty;
        for (; at < GPI_SLOTS && listed <= GPI_SLOTS; at = cache->slots[at].next) listed++;
    }
    return listed;
}

static int gpi_cache_check(gpi_cache *cache) {
    uint64_t free_units = 0;
    uint32_t used = 0, free_blocks = 0;
    int i, at, steps;
    if (gpi_cache_listed(cache) != GPI_SLOTS) return 2;
    for (i = 0; i < GPI_SLOTS; i++) {
        const gpi_slot *slot = &cache->slots[i];
        for (at = *gpi_cache_list(cache, slot), steps = 0; at != i; at = cache->slots[at].next)
            if (at >= GPI_SLOTS || steps++ > GPI_SLOTS) return 2;
        if (slot->state == GPI_SLOT_EMPTY) continue;
        if (slot->run->lane != GPI_LANE_LIVE || slot->run->as.slack_bytes != GPI_CACHED ||
            slot->run->uses != cache || slot->run->unit != slot->unit ||
            slot->run->units != slot->units)
            return 1;
        used++;
        if (slot->state != GPI_SLOT_FREE) continue;
        free_blocks++;
        free_units += slot->units;
    }
    return used == cache->used && free_blocks == cache->free_blocks &&
           free_units == cache->free_units ? 0 : 3;
}

static void gpi_cache_open(gpi_cache *cache) {
    int i;
    memset(cache, 0, sizeof *cache);
    memset(cache->bins, GPI_NO_SLOT, sizeof cache->bins);
    memset(cache->chains, GPI_NO_SLOT, sizeof cache->chains);
    for (i = 0; i < GPI_SLOTS; i++)
        cache->slots[i].next = i + 1 < GPI_SLOTS ? (uint8_t)(i + 1) : (uint8_t)GPI_NO_SLOT;
}

/* Takes a slot out of the list that has it, wherever in it. */
static void gpi_cache_unlink(gpi_cache *cache, gpi_slot *slot) {
    uint8_t *link = gpi_cache_list(cache, slot), at = (uint8_t)(slot - cache->slots);
    while (*link != at) link = &cache->slots[*link].next;
    *link = slot->next;
}

static void gpi_cache_link(gpi_cache *cache, gpi_slot *slot, gpi_slot_state state) {
    uint8_t *list;
    slot->state = (uint8_t)state;
    list = gpi_cache_list(cache, slot);
    slot->next = *list;
    *list = (uint8_t)(slot - cache->slots);
}

/* A free block of just this size is handed out. NULL: there is none. */
static gpi_slot *gpi_cache_take(gpi_cache *cache, uint64_t units, uint64_t bytes) {
    uint8_t *link = gpi_cache_bin(cache, units);
    gpi_slot *slot;
    while (*link != GPI_NO_SLOT && cache->slots[*link].units != units)
        link = &cache->slots[*link].next;
    if (*link == GPI_NO_SLOT) return NULL;
    slot = &cache->slots[*link];
    *link = slot->next;
    gpi_cache_link(cache, slot, GPI_SLOT_OUT);
    slot->slack_bytes = (uint32_t)(units * GPUPOOL_UNIT_BYTES - bytes);
    cache->free_units -= units;
    cache->free_blocks--;
    cache->allocs++;
    gpi_ledger_note(&cache->requested, bytes);
    gpi_ledger_note(&cache->granted, units * GPUPOOL_UNIT_BYTES);
    gpi_ledger_note(&cache->blocks, 1);
    return slot;
}

/* A block that was handed out here comes back. NULL: it was not, or is back already. */
static gpi_slot *gpi_cache_give(gpi_cache *cache, uint64_t unit) {
    uint8_t *link = gpi_cache_chain(cache, unit);
    gpi_slot *slot;
    while (*link != GPI_NO_SLOT && cache->slots[*link].unit != unit)
        link = &cache->slots[*link].next;
    if (*link == GPI_NO_SLOT) return NULL;
    slot = &cache->slots[*link];
    *link = slot->next;
    gpi_cache_link(cache, slot, GPI_SLOT_FREE);
    cache->free_units += slot->units;
    cache->free_blocks++;
    cache->frees++;
    cache->requested.now -= (int64_t)(slot->units * GPUPOOL_UNIT_BYTES - slot->slack_bytes);
    cache->granted.now -= (int64_t)(slot->units * GPUPOOL_UNIT_BYTES);
    cache->blocks.now--;
    return slot;
}

/* A live block that its stream has freed joins the cache; there is an empty slot. */
static void gpi_cache_admit(gpi_cache *cache, gpi_run *run) {
    gpi_slot *slot = &cache->slots[cache->empty];
    GPI_ASSERT(cache->empty != GPI_NO_SLOT && run->lane == GPI_LANE_LIVE && !run->uses);
    cache->empty = slot->next;
    slot->run = run;
    slot->unit = run->unit;
    slot->units = run->units;
    run->as.slack_bytes = GPI_CACHED;
    run->uses = cache;
    gpi_cache_link(cache, slot, GPI_SLOT_FREE);
    cache->used++;
    cache->free_blocks++;
    cache->free_units += slot->units;
}

/* A slot leaves the cache: a block that is out becomes like any other; a free one is returned,
   live, for the caller to free in the tree. */
static gpi_run *gpi_cache_drop(gpi_cache *cache, gpi_slot *slot) {
    int was_free = slot->state == GPI_SLOT_FREE;
    gpi_run *run = slot->run;
    run->as.slack_bytes = was_free ? 0 : slot->slack_bytes;
    run->uses = NULL;
    gpi_cache_unlink(cache, slot);
    gpi_cache_link(cache, slot, GPI_SLOT_EMPTY);
    cache->used--;
    if (!was_free) return NULL;
    cache->free_blocks--;
    cache->free_units -= slot->units;
    return run;
}

/* The slot whose turn it is makes room. */
static gpi_run *gpi_cache_evict(gpi_cache *cache) {
    gpi_slot *slot;
    do {
        slot = &cache->slots[cache->hand];
        cache->hand = (uint8_t)((cache->hand + 1u) % GPI_SLOTS);
    } while (slot->state == GPI_SLOT_EMPTY);
    return gpi_cache_drop(cache, slot);
}

/* A block that was handed out here is looked after by the tree alone from now on. 0: it is not. */
static int gpi_cache_release(gpi_cache *cache, uint64_t unit) {
    int at = *gpi_cache_chain(cache, unit);
    while (at != (int)GPI_NO_SLOT && cache->slots[at].unit != unit) at = cache->slots[at].next;
    if (at == (int)GPI_NO_SLOT) return 0;
    gpi_cache_drop(cache, &cache->slots[at]);
    return 1;
}

/* What the cache has done since goes to the ledger. */
static void gpi_cache_fold(gpi_cache *cache, gpi_ledger *ledger) {
    gpi_ledger_fold(&ledger->requested, &cache->requested);
    gpi_ledger_fold(&ledger->granted, &cache->granted);
    gpi_ledger_fold(&ledger->blocks, &cache->blocks);
    ledger->allocs += cache->allocs;
    ledger->frees += cache->frees;
    ledger->lane_hits += cache->allocs;
    ledger->cached_bytes += (cache->free_units - cache->told_units) * GPUPOOL_UNIT_BYTES;
    cache->told_units = cache->free_units;
    cache->allocs = cache->frees = 0;
}

/* == BACKING ==================================================================================
   Physical memory: which of the tree's units stand for memory that the arena holds, and how more
   is got, moved and given back. uses: DRIVER, LEDGER, TREE

   MAPPED: one reservation of addresses, far larger than the device. A piece is one handle of the
   driver, a whole number of granules, mapped at one place or at none (then it is in the stash).
   The driver's price is per handle, not per byte (about 40 us up, 30 us down), and a handle moves
   whole or not at all. So a piece is as large as the request that asks for it, up to a share of
   what is held already: few pieces in a large arena, yet none so large that one live block in it
   strands much. Memory is moved by taking pieces that are wholly inside quiet free runs off their
   addresses into the stash, and mapping the stash where it is needed; what does not fit there is
   given back and got anew in the size that does.

   The other sources: a piece is a chunk, wholly mapped from the day it is got, and given back when
   it is one free run.

   B1  pieces do not overlap; in a MAPPED arena each granule of a placed piece leads to it
   B2  a unit is in lane BARE exactly if no piece is placed under it
   B3  reserved is the sum of the pieces, placed and stashed */

#define GPI_TABLE 512 /* granules in a page of the table */

typedef struct gpi_piece {
    struct gpi_piece *prev, *next; /* of all placed pieces, or of the stash */
    gpi_handle handle;             /* MAPPED */
    void *memory;                  /* chunked sources: what the source gave */
    uint64_t bytes;                /* and how much of it */
    uint64_t unit, units;          /* the part that blocks are cut from */
    gpi_run *first;                /* chunked sources: the leftmost run */
    gpi_run *held;                 /* stash: still mapped under this held run; NULL: nowhere */
    int accessible;                /* stash: what is mapped there may be used */
    int fresh;                     /* got by the growth under way */
} gpi_piece;

typedef struct gpi_backing {
    gpi_driver driver;
    gpi_lock *lock;                /* the arena's: held on entry, opened around driver calls */
    gpi_ledger *ledger;            /* the arena's */
    gpupool_source source;         /* never AUTO */
    uint64_t granule_units;
    uint64_t chunk_bytes;          /* 0: by the size of what is held already */
    void *(*chunk_alloc)(size_t, int, void *);
    void (*chunk_free)(void *, size_t, int, void *);
    void *user;
    uint64_t base_unit, space_units; /* MAPPED: the reservation */
    uint64_t reservation, reservation_bytes;
    gpi_run *first;                /* MAPPED: leftmost run of the reservation */
    gpi_piece ***table;            /* MAPPED: granule -> piece, in pages made when needed */
    uint64_t table_pages;
    gpi_piece *placed, *stash;
    uint64_t placed_units, stash_units, pieces;
    uint64_t gained, lost, moved;  /* pieces */
    uint64_t host_bytes;
} gpi_backing;

static int gpi_backing_is_mapped(const gpi_backing *backing) {
    return backing->source == GPUPOOL_SOURCE_MAPPED;
}

static gpi_piece **gpi_backing_slot(const gpi_backing *backing, uint64_t unit) {
    uint64_t granule = (unit - backing->base_unit) / backing->granule_units;
    gpi_piece **page = backing->table[granule / GPI_TABLE];
    return page ? &page[granule % GPI_TABLE] : NULL;
}

static gpi_piece *gpi_backing_at(const gpi_backing *backing, uint64_t unit) {
    gpi_piece **slot = gpi_backing_slot(backing, unit);
    return slot ? *slot : NULL;
}

/* All runs of all chunks, for TREE's own check. */
static int gpi_backing_check_runs(const gpi_backing *backing, gpi_tally *tally) {
    const gpi_piece *piece;
    int broken = 0;
    memset(tally, 0, sizeof *tally);
    if (gpi_backing_is_mapped(backing))
        return gpi_tree_check_chunk(backing->first, backing->base_unit, backing->space_units,
                                    tally);
    for (piece = backing->placed; piece && !broken; piece = piece->next)
        broken = gpi_tree_check_chunk(piece->first, piece->unit, piece->units, tally);
    return broken;
}

/* Whether a unit is of this backing's memory or addresses. */
static int gpi_backing_owns(const gpi_backing *backing, uint64_t unit) {
    const gpi_piece *piece = backing->placed;
    if (gpi_backing_is_mapped(backing)) return unit - backing->base_unit < backing->space_units;
    while (piece && unit - piece->unit >= piece->units) piece = piece->next;
    return piece != NULL;
}

/* A chunk has memory behind all of its runs. */
static int gpi_backing_check_chunk(const gpi_run *run) {
    for (; run; run = run->next)
        if (run->lane == GPI_LANE_BARE) return 2;
    return 0;
}

/* The table has no more entries than there are granules of pieces at some address. */
static int gpi_backing_check_table(const gpi_backing *backing, uint64_t attached_units) {
    uint64_t page, entries = 0;
    int i;
    for (page = 0; page < backing->table_pages; page++)
        for (i = 0; backing->table[page] && i < GPI_TABLE; i++)
            entries += backing->table[page][i] != NULL;
    return entries * backing->granule_units == backing->placed_units + attached_units ? 0 : 2;
}

/* Every granule under a run that is not bare has a piece; then no bare one has, if the sums agree.
   A held run may be bare: addresses that another thread is about to map. */
static int gpi_backing_check_space(const gpi_backing *backing, uint64_t attached_units) {
    const gpi_run *run;
    uint64_t unit, bare = 0;
    for (run = backing->first; run; run = run->next) {
        if (run->lane == GPI_LANE_BARE) bare += run->units;
        unit = gpi_ground_down(run->unit, backing->granule_units);
        for (; run->lane != GPI_LANE_BARE && unit < run->unit + run->units;
             unit += backing->granule_units) {
            const gpi_piece *piece = gpi_backing_at(backing, unit);
            if (piece && unit - piece->unit < piece->units) continue;
            if (piece || run->lane != GPI_LANE_HELD) return 2;
            bare += backing->granule_units;
        }
    }
    return bare + backing->placed_units + attached_units == backing->space_units ? 0 : 2;
}

static int gpi_backing_check(const gpi_backing *backing, uint64_t reserved_bytes) {
    const gpi_piece *piece;
    uint64_t units = 0, stash = 0, attached = 0, count = 0, unit;
    for (piece = backing->placed; piece; piece = piece->next, count++) {
        units += piece->bytes / GPUPOOL_UNIT_BYTES;
        if (piece->next && piece->next->prev != piece) return 1;
        if (!gpi_backing_is_mapped(backing) && gpi_backing_check_chunk(piece->first))
            return 2;
        if (!gpi_backing_is_mapped(backing)) continue;
        for (unit = piece->unit; unit < piece->unit + piece->units; unit += backing->granule_units)
            if (gpi_backing_at(backing, unit) != piece) return 1;
    }
    for (piece = backing->stash; piece; piece = piece->next, count++) {
        stash += piece->units;
        if (piece->held) attached += piece->units;
    }
    if (units != backing->placed_units || stash != backing->stash_units) return 3;
    if (count != backing->pieces || (units + stash) * GPUPOOL_UNIT_BYTES != reserved_bytes)
        return 3;
    if (!gpi_backing_is_mapped(backing)) return 0;
    if (gpi_backing_check_table(backing, attached)) return 2;
    return gpi_backing_check_space(backing, attached);
}

/* -- lists of pieces -- */

static void gpi_backing_link(gpi_piece **list, gpi_piece *piece) {
    piece->prev = NULL;
    piece->next = *list;
    if (*list) (*list)->prev = piece;
    *list = piece;
}

static void gpi_backing_unlink(gpi_piece **list, gpi_piece *piece) {
    if (piece->prev) piece->prev->next = piece->next;
    else *list = piece->next;
    if (piece->next) piece->next->prev = piece->prev;
}

static void gpi_backing_account(const gpi_backing *backing) {
    gpi_ledger_set(&backing->ledger->reserved,
                   (backing->placed_units + backing->stash_units) * GPUPOOL_UNIT_BYTES);
}

/* -- pieces of a MAPPED arena -- */

static void gpi_backing_place_piece(gpi_backing *backing, gpi_piece *piece) {
    uint64_t unit = piece->unit;
    gpi_backing_link(&backing->placed, piece);
    backing->placed_units += piece->units;
    for (; unit < piece->unit + piece->units; unit += backing->granule_units)
        *gpi_backing_slot(backing, unit) = piece;
}

static void gpi_backing_stash_piece(gpi_backing *backing, gpi_piece *piece, gpi_run *held,
                                    int accessible) {
    gpi_backing_unlink(&backing->placed, piece);
    gpi_backing_link(&backing->stash, piece);
    backing->placed_units -= piece->units;
    backing->stash_units += piece->units;
    piece->held = held;
    piece->accessible = accessible;
}

static void gpi_backing_unstash_piece(gpi_backing *backing, gpi_piece *piece) {
    gpi_backing_unlink(&backing->stash, piece);
    backing->stash_units -= piece->units;
    piece->held = NULL;
}

/* Takes a stashed piece off its addresses, which become bare. */
static gpupool_result gpi_backing_detach(gpi_backing *backing, gpi_tree *tree, gpi_piece *piece) {
    gpupool_result result;
    uint64_t unit = piece->unit;
    gpi_run *held = piece->held;
    if (!held) return GPUPOOL_OK;
    gpi_host_unlock(backing->lock);
    result = gpi_driver_unmap(&backing->driver, piece->unit * GPUPOOL_UNIT_BYTES,
                              piece->units * GPUPOOL_UNIT_BYTES);
    gpi_host_lock(backing->lock);
    if (result != GPUPOOL_OK) return result;
    for (; unit < piece->unit + piece->units; unit += backing->granule_units)
        *gpi_backing_slot(backing, unit) = NULL;
    piece->held = NULL;
    gpi_tree_put(tree, held, GPI_LANE_BARE, 0);
    return GPUPOOL_OK;
}

/* Gives a stashed piece back to the driver. */
static gpupool_result gpi_backing_release(gpi_backing *backing, gpi_tree *tree, gpi_piece *piece) {
    gpupool_result result = gpi_backing_detach(backing, tree, piece);
    if (result != GPUPOOL_OK) return result;
    gpi_host_unlock(backing->lock);
    result = gpi_driver_release(&backing->driver, piece->handle);
    gpi_host_lock(backing->lock);
    if (result != GPUPOOL_OK) return result;
    gpi_backing_unstash_piece(backing, piece);
    gpi_backing_account(backing);
    backing->pieces--;
    backing->lost++;
    backing->host_bytes -= sizeof *piece;
    GPUPOOL_FREE(piece);
    return GPUPOOL_OK;
}

/* A new piece, in the stash. */
static gpupool_result gpi_backing_create(gpi_backing *backing, uint64_t units, gpi_piece **out) {
    gpupool_result result;
    gpi_piece *piece = (gpi_piece *)gpi_host_zeroed(sizeof *piece);
    if (!piece) return gpi_host_no_memory();
    piece->units = units;
    piece->bytes = units * GPUPOOL_UNIT_BYTES;
    gpi_host_unlock(backing->lock);
    result = gpi_driver_create(&backing->driver, piece->bytes, &piece->handle);
    gpi_host_lock(backing->lock);
    if (result != GPUPOOL_OK) {
        GPUPOOL_FREE(piece);
        return result;
    }
    gpi_backing_link(&backing->stash, piece);
    backing->stash_units += units;
    gpi_backing_account(backing);
    backing->pieces++;
    backing->gained++;
    backing->host_bytes += sizeof *piece;
    *out = piece;
    return GPUPOOL_OK;
}

/* Maps a detached piece under the low end of a held bare run, without access yet. What is left of
   the run is returned through `rest`; NULL when nothing is. Needs one spare struct. */
static gpupool_result gpi_backing_attach(gpi_backing *backing, gpi_tree *tree, gpi_piece *piece,
                                         gpi_run **rest) {
    gpupool_result result;
    gpi_run *held = *rest;
    uint64_t unit = held->unit;
    if (!gpi_tree_prepare(tree, 1)) return gpi_host_no_memory();
    *rest = held->units > piece->units ? gpi_tree_split(tree, held, unit + piece->units) : NULL;
    gpi_host_unlock(backing->lock);
    result = gpi_driver_map(&backing->driver, unit * GPUPOOL_UNIT_BYTES, piece->bytes,
                            piece->handle);
    gpi_host_lock(backing->lock);
    if (result != GPUPOOL_OK) {
        if (*rest) gpi_tree_weld(tree, held, *rest);
        *rest = held;
        return result;
    }
    piece->unit = unit;
    piece->held = held;
    piece->accessible = 0;
    for (; unit < piece->unit + piece->units; unit += backing->granule_units)
        *gpi_backing_slot(backing, unit) = piece;
    return GPUPOOL_OK;
}

/* Which idle piece to move or give back: the largest of at most units_aim, else the smallest of at
   most units_most. */
static int gpi_backing_is_better(const gpi_piece *piece, const gpi_piece *best, uint64_t units_aim,
                                 uint64_t units_most) {
    if (piece->units > units_most) return 0;
    if (!best) return 1;
    if (piece->units <= units_aim) return best->units > units_aim || piece->units > best->units;
    return piece->units < best->units;
}

/* The best idle piece of those that are wholly inside this run, or the one known already. */
static gpi_piece *gpi_backing_idle_in(const gpi_backing *backing, const gpi_run *run,
                                      gpi_piece *best, uint64_t units_aim, uint64_t units_most) {
    uint64_t unit = gpi_ground_up(run->unit, backing->granule_units);
    while (unit + backing->granule_units <= run->unit + run->units) {
        gpi_piece *piece = gpi_backing_at(backing, unit);
        unit = piece->unit + piece->units;
        if (piece->unit >= run->unit && unit <= run->unit + run->units &&
            gpi_backing_is_better(piece, best, units_aim, units_most))
            best = piece;
    }
    return best;
}

/* The best idle piece: one that is wholly inside a quiet free run. */
static gpi_piece *gpi_backing_idle(const gpi_backing *backing, const gpi_tree *tree,
                                   uint64_t units_aim, uint64_t units_most, gpi_run **where) {
    gpi_piece *best = NULL, *better;
    gpi_place place, first = gpi_tree_place(backing->granule_units);
    int i;
    for (i = 0; i < 2; i++) {
        const gpi_shelf *shelf = &tree->lanes[GPI_LANE_QUIET]->shelves[i];
        for (place = gpi_tree_next(shelf, first); place.order < GPUPOOL_ORDERS;
             place = gpi_tree_after(shelf, place)) {
            gpi_run *run = shelf->lists[place.order][place.step];
            for (; run; run = run->list_next) {
                better = gpi_backing_idle_in(backing, run, best, units_aim, units_most);
                if (better != best) *where = run;
                best = better;
                if (best && best->units == units_aim) return best;
            }
        }
    }
    return best;
}

/* Moves idle pieces, still mapped, to the stash until it holds so many units, or none is left. */
static void gpi_backing_collect(gpi_backing *backing, gpi_tree *tree, uint64_t stash_units) {
    while (backing->stash_units < stash_units && gpi_tree_prepare(tree, 2)) {
        gpi_run *run;
        gpi_piece *piece =
            gpi_backing_idle(backing, tree, stash_units - backing->stash_units, UINT64_MAX, &run);
        if (!piece) return;
        run = gpi_tree_take(tree, run, piece->unit, piece->units);
        gpi_backing_stash_piece(backing, piece, run, 1);
    }
}

/* Undoes collect for the pieces that were not taken off their addresses. */
static void gpi_backing_uncollect(gpi_backing *backing, gpi_tree *tree) {
    gpi_piece *piece = backing->stash, *next;
    for (; piece; piece = next) {
        gpi_run *held = piece->held;
        next = piece->next;
        if (!held || !piece->accessible) continue;
        gpi_backing_unstash_piece(backing, piece);
        gpi_backing_place_piece(backing, piece);
        gpi_tree_put(tree, held, GPI_LANE_QUIET, 0);
    }
}

/* -- where a request goes when bare granules get memory -- */

typedef struct gpi_spot {
    uint64_t unit, units;           /* the block */
    uint64_t bare_unit, bare_units; /* the granules to be mapped for it */
    gpi_run *left, *bare, *right;   /* left and right: free neighbours that it runs on into */
} gpi_spot;

/* NULL for lanes: all that is free. */
static gpi_run *gpi_backing_usable(gpi_run *run, const gpi_lanes *lanes) {
    int i;
    if (run && !lanes) return run->lane < GPI_LANE_HELD ? run : NULL;
    for (i = 0; run && i < lanes->count; i++)
        if (run->lane == lanes->number[i]) return run;
    return NULL;
}

static void gpi_backing_consider(gpi_spot *best, gpi_spot spot, uint64_t granule_units) {
    uint64_t end = spot.unit + spot.units, bare_end = spot.bare->unit + spot.bare->units;
    uint64_t from = gpi_ground_max(gpi_ground_down(spot.unit, granule_units), spot.bare->unit);
    uint64_t to = gpi_ground_min(gpi_ground_up(end, granule_units), bare_end);
    if (end <= spot.bare->unit || spot.unit >= bare_end) return;
    if (spot.unit >= spot.bare->unit) spot.left = NULL;
    if (end <= bare_end) spot.right = NULL;
    if (spot.unit < spot.bare->unit && (!spot.left || spot.unit < spot.left->unit)) return;
    if (end > bare_end && (!spot.right || end > spot.right->unit + spot.right->units)) return;
    spot.bare_unit = from;
    spot.bare_units = to - from;
    if (!best->bare || spot.bare_units < best->bare_units) *best = spot;
}

/* The spot that needs the fewest granules, among bare runs and the free memory on their sides. */
static int gpi_backing_find_spot(const gpi_backing *backing, const gpi_tree *tree, uint64_t units,
                                 uint64_t align_units, const gpi_lanes *lanes,
                                 gpi_spot *best) {
    const gpi_shelf *shelf = &tree->lanes[GPI_LANE_BARE]->shelves[0]; /* bare beside bare is one */
    gpi_place place;
    int tries = 64;
    place.order = place.step = 0;
    memset(best, 0, sizeof *best);
    for (place = gpi_tree_next(shelf, place); place.order < GPUPOOL_ORDERS;
         place = gpi_tree_after(shelf, place)) {
        gpi_run *run = shelf->lists[place.order][place.step];
        for (; run && (tries-- > 0 || !best->bare); run = run->list_next) {
            gpi_spot spot;
            spot.units = units;
            spot.bare = run;
            spot.left = gpi_backing_usable(run->prev, lanes);
            spot.right = gpi_backing_usable(run->next, lanes);
            spot.bare_unit = spot.bare_units = 0;
            spot.unit = gpi_ground_up(spot.left ? spot.left->unit : run->unit, align_units);
            gpi_backing_consider(best, spot, backing->granule_units);
            if (!spot.right || spot.right->unit + spot.right->units < units) continue;
            spot.unit = gpi_ground_down(spot.right->unit + spot.right->units - units, align_units);
            gpi_backing_consider(best, spot, backing->granule_units);
        }
    }
    return best->bare != NULL;
}

/* Holds the spot's runs, so that other threads leave them alone. Needs six spare structs. */
static void gpi_backing_hold_spot(gpi_tree *tree, gpi_spot *spot) {
    uint64_t end = spot->unit + spot->units;
    if (spot->left)
        spot->left = gpi_tree_take(tree, spot->left, spot->unit, spot->bare->unit - spot->unit);
    if (spot->right)
        spot->right = gpi_tree_take(tree, spot->right, spot->right->unit, end - spot->right->unit);
    spot->bare = gpi_tree_take(tree, spot->bare, spot->bare_unit, spot->bare_units);
}

/* Cuts [unit, unit + units) out of a held run; the rest becomes quiet. Needs two spare structs. */
static gpi_run *gpi_backing_carve(gpi_tree *tree, gpi_run *run, uint64_t unit, uint64_t units) {
    if (run->units > unit - run->unit + units)
        gpi_tree_put(tree, gpi_tree_split(tree, run, unit + units), GPI_LANE_QUIET, 0);
    if (unit > run->unit) {
        gpi_run *head = run;
        run = gpi_tree_split(tree, run, unit);
        gpi_tree_put(tree, head, GPI_LANE_QUIET, 0);
    }
    return run;
}

/* -- growth of a MAPPED arena -- */

/* How large a new piece may be. Measured on recorded training and inference runs, with the driver's
   price per handle: a 64th of what is held, while memory grows freely, is cheap and strands little;
   where a limit will be met, a 512th, and less the nearer it is, saves one per cent of memory. A
   request takes no more than about 24 pieces. Pieces that take the place of idle ones are those
   that move, so they are the smallest. */
static uint64_t gpi_backing_piece_units(const gpi_backing *backing,
                                        const gpi_spot *spot, uint64_t most_units, int moving) {
    uint64_t held = backing->placed_units + backing->stash_units;
    uint64_t room = most_units - gpi_ground_min(most_units, backing->placed_units);
    uint64_t least = backing->granule_units, units = held / 64;
    if (moving) units = held / 1024;
    else least = gpi_ground_max(least, gpi_ground_up(spot->bare_units / 24, least));
    if (!moving && backing->ledger->limit_bytes != UINT64_MAX)
        units = gpi_ground_min(held / 512, room / 128);
    units = gpi_ground_min(units, (128u << 20) / GPUPOOL_UNIT_BYTES);
    return gpi_ground_max(gpi_ground_down(units, backing->granule_units), least);
}

static int gpi_backing_make_table(gpi_backing *backing, uint64_t unit, uint64_t units) {
    uint64_t granule = (unit - backing->base_unit) / backing->granule_units;
    uint64_t last = (unit + units - 1 - backing->base_unit) / backing->granule_units;
    for (granule /= GPI_TABLE; granule <= last / GPI_TABLE; granule++) {
        if (backing->table[granule]) continue;
        backing->table[granule] = (gpi_piece **)gpi_host_zeroed(GPI_TABLE * sizeof(gpi_piece *));
        if (!backing->table[granule]) return 0;
        backing->host_bytes += GPI_TABLE * sizeof(gpi_piece *);
    }
    return 1;
}

static gpi_piece *gpi_backing_stashed(const gpi_backing *backing, uint64_t units_most) {
    gpi_piece *piece = backing->stash, *best = NULL;
    for (; piece; piece = piece->next)
        if (!piece->held && piece->units <= units_most && (!best || piece->units > best->units))
            best = piece;
    return best;
}

/* Gives stashed pieces back until so many units may be got without passing most_units. */
static gpupool_result gpi_backing_make_room(gpi_backing *backing, gpi_tree *tree, uint64_t units,
                                            uint64_t most_units) {
    gpi_piece *piece = backing->stash, *next;
    gpupool_result result;
    for (; piece && backing->placed_units + backing->stash_units + units > most_units;
         piece = next) {
        next = piece->next;
        if (piece->held) continue;
        result = gpi_backing_release(backing, tree, piece);
        if (result != GPUPOOL_OK) return result;
    }
    if (backing->placed_units + backing->stash_units + units > most_units)
        return gpi_host_fail(GPUPOOL_E_OUT_OF_MEMORY, "the limit leaves no room");
    return GPUPOOL_OK;
}

/* Maps pieces one after the other under the spot's bare granules, stashed ones first. */
static gpupool_result gpi_backing_fill(gpi_backing *backing, gpi_tree *tree,
                                       gpi_spot *spot, uint64_t most_units, int moving) {
    gpupool_result result = GPUPOOL_OK;
    while (spot->bare && result == GPUPOOL_OK) {
        gpi_piece *piece = gpi_backing_stashed(backing, spot->bare->units);
        uint64_t units = gpi_backing_piece_units(backing, spot, most_units, moving);
        if (!piece) {
            units = gpi_ground_min(units, spot->bare->units);
            result = gpi_backing_make_room(backing, tree, units, most_units);
            if (result == GPUPOOL_OK) result = gpi_backing_create(backing, units, &piece);
            if (result == GPUPOOL_OK) piece->fresh = 1;
        }
        if (result == GPUPOOL_OK) result = gpi_backing_attach(backing, tree, piece, &spot->bare);
        if (result == GPUPOOL_OK && !piece->fresh) backing->moved++;
    }
    if (result != GPUPOOL_OK) return result;
    gpi_host_unlock(backing->lock);
    result = gpi_driver_access(&backing->driver, spot->bare_unit * GPUPOOL_UNIT_BYTES,
                               spot->bare_units * GPUPOOL_UNIT_BYTES);
    gpi_host_lock(backing->lock);
    return result;
}

/* Undoes fill: what it mapped becomes bare again, what it got is given back. What the driver will
   not take back stays in the stash, counted, and is tried again with the next growth. */
static void gpi_backing_unfill(gpi_backing *backing, gpi_tree *tree) {
    gpi_piece *piece = backing->stash, *next;
    for (; piece; piece = next) {
        next = piece->next;
        if (piece->held && !piece->accessible) gpi_backing_detach(backing, tree, piece);
        if (!piece->held && piece->fresh) gpi_backing_release(backing, tree, piece);
    }
}

/* All is mapped: the pieces are placed, and the spot's runs become one. */
static gpi_run *gpi_backing_settle(gpi_backing *backing, gpi_tree *tree, const gpi_spot *spot,
                                   gpi_run *run) {
    gpi_piece *piece = backing->stash, *next;
    uint64_t end = spot->right ? spot->right->unit + spot->right->units
                               : spot->bare_unit + spot->bare_units;
    for (; piece; piece = next) {
        next = piece->next;
        piece->fresh = 0;
        if (!piece->held || piece->unit < spot->bare_unit ||
            piece->unit >= spot->bare_unit + spot->bare_units)
            continue;
        gpi_backing_unstash_piece(backing, piece);
        gpi_backing_place_piece(backing, piece);
    }
    if (spot->left) run = spot->left;
    while (run->unit + run->units < end) gpi_tree_weld(tree, run, run->next);
    return gpi_backing_carve(tree, run, spot->unit, spot->units);
}

/* Gets memory for a request under at most most_bytes of reserved memory, moving idle memory rather
   than passing aim_bytes. The run returned is held, exactly the request. */
static gpupool_result gpi_backing_grow_mapped(gpi_backing *backing, gpi_tree *tree, uint64_t units,
                                              uint64_t align_units, const gpi_lanes *lanes,
                                              uint64_t aim_bytes, uint64_t most_bytes,
                                              gpi_run **out) {
    uint64_t most = most_bytes / GPUPOOL_UNIT_BYTES, aim = aim_bytes / GPUPOOL_UNIT_BYTES, after;
    gpupool_result result = GPUPOOL_OK;
    gpi_piece *piece, *next;
    gpi_run *first;
    gpi_spot spot;
    if (!gpi_tree_prepare(tree, 8)) return gpi_host_no_memory();
    if (!gpi_backing_find_spot(backing, tree, units, align_units, lanes, &spot))
        return gpi_host_fail(GPUPOOL_E_OUT_OF_MEMORY, "the address space has no run that long");
    if (!gpi_backing_make_table(backing, spot.bare_unit, spot.bare_units))
        return gpi_host_no_memory();
    gpi_backing_hold_spot(tree, &spot);
    first = spot.bare;
    after = backing->placed_units + backing->stash_units + spot.bare_units;
    if (after > aim)
        gpi_backing_collect(backing, tree, gpi_ground_min(after - aim, spot.bare_units));
    if (after > most && backing->stash_units < after - most)
        result = gpi_host_fail(GPUPOOL_E_OUT_OF_MEMORY, "the limit leaves no room");
    for (piece = backing->stash; piece && result == GPUPOOL_OK; piece = next) {
        next = piece->next;
        result = gpi_backing_detach(backing, tree, piece);
    }
    if (result == GPUPOOL_OK)
        result = gpi_backing_fill(backing, tree, &spot, most, after > aim);
    if (result == GPUPOOL_OK && !gpi_tree_prepare(tree, 2)) result = gpi_host_no_memory();
    if (result != GPUPOOL_OK) {
        if (spot.bare) gpi_tree_put(tree, spot.bare, GPI_LANE_BARE, 0);
        if (spot.left) gpi_tree_put(tree, spot.left, lanes->number[0], 0);
        if (spot.right) gpi_tree_put(tree, spot.right, lanes->number[0], 0);
        gpi_backing_unfill(backing, tree);
        gpi_backing_uncollect(backing, tree);
        return result;
    }
    *out = gpi_backing_settle(backing, tree, &spot, first);
    gpi_backing_make_room(backing, tree, 0, gpi_ground_max(aim, backing->placed_units));
    return GPUPOOL_OK;
}

/* -- growth of the chunked sources -- */

static void *gpi_backing_chunk_get(const gpi_backing *backing, uint64_t bytes,
                                   gpupool_result *result) {
    void *memory = NULL;
    switch (backing->source) {
    case GPUPOOL_SOURCE_DEVICE:
    case GPUPOOL_SOURCE_BYPASS:
        *result = gpi_driver_told("cudaMalloc", cudaMalloc(&memory, bytes));
        break;
    case GPUPOOL_SOURCE_MANAGED:
        *result = gpi_driver_told("cudaMallocManaged",
                                  cudaMallocManaged(&memory, bytes, cudaMemAttachGlobal));
        break;
    case GPUPOOL_SOURCE_PINNED:
        *result = gpi_driver_told("cudaHostAlloc",
                                  cudaHostAlloc(&memory, bytes, cudaHostAllocPortable));
        break;
    case GPUPOOL_SOURCE_CUSTOM:
        memory = backing->chunk_alloc(bytes, backing->driver.device, backing->user);
        *result = memory ? GPUPOOL_OK
                         : gpi_host_fail(GPUPOOL_E_OUT_OF_MEMORY, "chunk_alloc gave no memory");
        break;
    case GPUPOOL_SOURCE_AUTO:
    case GPUPOOL_SOURCE_MAPPED:
    default:
        *result = gpi_host_fail(GPUPOOL_E_UNSUPPORTED, "this source has no chunks");
    }
    return *result == GPUPOOL_OK ? memory : NULL;
}

static gpupool_result gpi_backing_chunk_give(const gpi_backing *backing, void *memory,
                                             uint64_t bytes) {
    if (backing->source == GPUPOOL_SOURCE_PINNED)
        return gpi_driver_told("cudaFreeHost", cudaFreeHost(memory));
    if (backing->source != GPUPOOL_SOURCE_CUSTOM)
        return gpi_driver_told("cudaFree", cudaFree(memory));
    backing->chunk_free(memory, bytes, backing->driver.device, backing->user);
    return GPUPOOL_OK;
}

/* A chunk for a request of so many bytes: an eighth of what is held, so that their number grows
   with the logarithm of the memory; a request larger than that gets a chunk of its own. */
static uint64_t gpi_backing_chunk_size(const gpi_backing *backing, uint64_t need, uint64_t most) {
    uint64_t held = (backing->placed_units + backing->stash_units) * GPUPOOL_UNIT_BYTES;
    uint64_t granule = backing->driver.granule_bytes, size;
    uint64_t room = most - gpi_ground_min(most, held);
    if (backing->source == GPUPOOL_SOURCE_BYPASS) return need;
    size = backing->chunk_bytes ? backing->chunk_bytes
                                : gpi_ground_min(held / 8, (uint64_t)1 << 30);
    size = gpi_ground_up(gpi_ground_max(gpi_ground_max(size, need), granule), granule);
    return gpi_ground_max(need, gpi_ground_min(size, gpi_ground_down(room, granule)));
}

/* The least growth that surely holds a request. A source of the caller's may align to less than a
   unit; all others align to 512 at least. The driver holds whole granules for a chunk of more than
   1 MiB, so that is what is asked for and counted, except where each block is a chunk. */
static uint64_t gpi_backing_need(const gpi_backing *backing, uint64_t units, uint64_t align_units) {
    uint64_t bytes = (units + align_units - 1) * GPUPOOL_UNIT_BYTES;
    uint64_t granule = backing->driver.granule_bytes;
    if (!gpi_backing_is_mapped(backing) &&
        (backing->source == GPUPOOL_SOURCE_CUSTOM || GPUPOOL_UNIT_BYTES > 512))
        return bytes + GPUPOOL_UNIT_BYTES;
    if (backing->source == GPUPOOL_SOURCE_PINNED || backing->source == GPUPOOL_SOURCE_BYPASS ||
        bytes <= 1u << 20)
        granule = GPUPOOL_UNIT_BYTES;
    if (!gpi_backing_is_mapped(backing)) return gpi_ground_up(bytes, granule);
    return gpi_ground_up(units * GPUPOOL_UNIT_BYTES, backing->driver.granule_bytes);
}

static gpupool_result gpi_backing_grow_chunk(gpi_backing *backing, gpi_tree *tree, uint64_t units,
                                             uint64_t align_units, uint64_t most_bytes,
                                             gpi_run **out) {
    uint64_t need = gpi_backing_need(backing, units, align_units), size, address;
    gpupool_result result = GPUPOOL_OK;
    gpi_piece *piece;
    gpi_run *run;
    if (need > most_bytes || backing->ledger->reserved.now > most_bytes - need)
        return gpi_host_fail(GPUPOOL_E_OUT_OF_MEMORY, "the limit leaves no room");
    size = gpi_backing_chunk_size(backing, need, most_bytes);
    piece = (gpi_piece *)gpi_host_zeroed(sizeof *piece);
    if (!piece || !gpi_tree_prepare(tree, 4)) {
        GPUPOOL_FREE(piece);
        return gpi_host_no_memory();
    }
    gpi_host_unlock(backing->lock);
    for (;; size = gpi_ground_max(need, gpi_ground_up(size / 2, GPUPOOL_UNIT_BYTES))) {
        piece->memory = gpi_backing_chunk_get(backing, size, &result);
        if (result != GPUPOOL_E_OUT_OF_MEMORY || size == need) break;
    }
    gpi_host_lock(backing->lock);
    if (result == GPUPOOL_OK && !gpi_tree_prepare(tree, 4)) {
        gpi_host_unlock(backing->lock);
        gpi_backing_chunk_give(backing, piece->memory, size);
        gpi_host_lock(backing->lock);
        result = gpi_host_no_memory();
    }
    if (result != GPUPOOL_OK) {
        GPUPOOL_FREE(piece);
        return result;
    }
    address = (uint64_t)(uintptr_t)piece->memory;
    piece->bytes = size;
    piece->unit = gpi_ground_up(address, GPUPOOL_UNIT_BYTES) / GPUPOOL_UNIT_BYTES;
    piece->units = (address + size) / GPUPOOL_UNIT_BYTES - piece->unit;
    run = piece->first = gpi_tree_add_chunk(tree, piece->unit, piece->units);
    gpi_backing_link(&backing->placed, piece);
    backing->placed_units += size / GPUPOOL_UNIT_BYTES;
    backing->pieces++;
    backing->gained++;
    backing->host_bytes += sizeof *piece;
    gpi_backing_account(backing);
    *out = gpi_backing_carve(tree, run, gpi_ground_up(run->unit, align_units), units);
    return GPUPOOL_OK;
}

/* A chunk that is one held run goes back to its source. On failure it stays, quiet. */
static gpupool_result gpi_backing_drop_chunk(gpi_backing *backing, gpi_tree *tree,
                                             gpi_piece *piece) {
    gpupool_result result;
    gpi_host_unlock(backing->lock);
    result = gpi_backing_chunk_give(backing, piece->memory, piece->bytes);
    gpi_host_lock(backing->lock);
    if (result != GPUPOOL_OK) {
        gpi_tree_put(tree, piece->first, GPI_LANE_QUIET, 0);
        return result;
    }
    gpi_tree_remove_chunk(tree, piece->first);
    gpi_backing_unlink(&backing->placed, piece);
    backing->placed_units -= piece->bytes / GPUPOOL_UNIT_BYTES;
    backing->pieces--;
    backing->lost++;
    backing->host_bytes -= sizeof *piece;
    gpi_backing_account(backing);
    GPUPOOL_FREE(piece);
    return GPUPOOL_OK;
}

static gpi_piece *gpi_backing_idle_chunk(const gpi_backing *backing, uint64_t units_aim,
                                         uint64_t units_most) {
    gpi_piece *piece = backing->placed, *best = NULL;
    for (; piece; piece = piece->next)
        if (piece->first->lane == GPI_LANE_QUIET && piece->first->units == piece->units &&
            gpi_backing_is_better(piece, best, units_aim, units_most))
            best = piece;
    return best;
}

/* -- shrinking, opening and closing -- */

/* Gives idle memory back while more than keep_bytes is held. The last piece may be larger than what
   is left to give: `below` says whether it goes too, or stays. */
static gpupool_result gpi_backing_trim(gpi_backing *backing, gpi_tree *tree,
                                       uint64_t keep_bytes, int below) {
    gpupool_result result = GPUPOOL_OK;
    while (result == GPUPOOL_OK && backing->ledger->reserved.now > keep_bytes) {
        uint64_t aim = (backing->ledger->reserved.now - keep_bytes + GPUPOOL_UNIT_BYTES - 1) /
                       GPUPOOL_UNIT_BYTES;
        uint64_t most =
            below ? UINT64_MAX : (backing->ledger->reserved.now - keep_bytes) / GPUPOOL_UNIT_BYTES;
        gpi_run *run = NULL;
        gpi_piece *piece;
        if (!gpi_backing_is_mapped(backing)) {
            piece = gpi_backing_idle_chunk(backing, aim, most);
            if (!piece) break;
            gpi_tree_unfile(tree, piece->first);
            result = gpi_backing_drop_chunk(backing, tree, piece);
            continue;
        }
        /* the stash first, with what a failed growth could not take off its addresses */
        piece = backing->stash;
        while (piece && piece->units > most) piece = piece->next;
        if (!piece) {
            if (!gpi_tree_prepare(tree, 2)) return gpi_host_no_memory();
            piece = gpi_backing_idle(backing, tree, aim, most, &run);
            if (!piece) break;
            run = gpi_tree_take(tree, run, piece->unit, piece->units);
            gpi_backing_stash_piece(backing, piece, run, 1);
        }
        result = gpi_backing_release(backing, tree, piece);
        if (result != GPUPOOL_OK) gpi_backing_uncollect(backing, tree);
    }
    return result;
}

/* Addresses for everything the device could hold many times over, since bare runs cost nothing and
   wide spaces rarely run out of long ones; less where the system grants less. */
static gpupool_result gpi_backing_open_space(gpi_backing *backing, gpi_tree *tree) {
    gpi_driver *driver = &backing->driver;
    uint64_t bytes = (uint64_t)1 << 40, granules;
    CUdeviceptr address = 0;
    gpupool_result result;
    for (;; bytes /= 2) {
        CUresult error = driver->reserve(&address, bytes, driver->granule_bytes, 0, 0);
        result = gpi_driver_told_cu(driver, "cuMemAddressReserve", error);
        if (result == GPUPOOL_OK || bytes / 2 < driver->total_bytes * 2) break;
    }
    if (result != GPUPOOL_OK) return result;
    backing->reservation = address;
    backing->reservation_bytes = bytes;
    backing->granule_units = driver->granule_bytes / GPUPOOL_UNIT_BYTES;
    backing->base_unit = address / GPUPOOL_UNIT_BYTES;
    backing->space_units = bytes / GPUPOOL_UNIT_BYTES;
    granules = backing->space_units / backing->granule_units;
    backing->table_pages = (granules + GPI_TABLE - 1) / GPI_TABLE;
    backing->table = (gpi_piece ***)gpi_host_zeroed(backing->table_pages * sizeof(gpi_piece **));
    if (!backing->table || !gpi_tree_prepare(tree, 1)) {
        GPUPOOL_FREE(backing->table);
        driver->unreserve(address, bytes);
        backing->table = NULL;
        backing->reservation = 0;
        return gpi_host_no_memory();
    }
    backing->host_bytes += backing->table_pages * sizeof(gpi_piece **);
    backing->first = gpi_tree_add_chunk(tree, backing->base_unit, backing->space_units);
    gpi_tree_put(tree, backing->first, GPI_LANE_BARE, 0);
    return GPUPOOL_OK;
}

/* The host's side only. */
static void gpi_backing_forget(gpi_backing *backing) {
    gpi_piece *lists[2], *piece, *next;
    uint64_t page;
    int i;
    lists[0] = backing->placed;
    lists[1] = backing->stash;
    for (i = 0; i < 2; i++) {
        for (piece = lists[i]; piece; piece = next) {
            next = piece->next;
            GPUPOOL_FREE(piece);
        }
    }
    for (page = 0; page < backing->table_pages && backing->table; page++)
        GPUPOOL_FREE(backing->table[page]);
    GPUPOOL_FREE(backing->table);
    memset(backing, 0, sizeof *backing);
}

/* Once nothing is held any more. On failure all is as it was. */
static gpupool_result gpi_backing_close(gpi_backing *backing) {
    gpi_driver *driver = &backing->driver;
    gpupool_result freed = gpi_driver_free_crumb(driver);
    if (freed != GPUPOOL_OK) return freed;
    if (backing->pieces != 0)
        return gpi_host_fail(GPUPOOL_E_CUDA, "the driver has not taken all memory back");
    if (backing->reservation) {
        CUresult error = driver->unreserve(backing->reservation, backing->reservation_bytes);
        gpupool_result result = gpi_driver_told_cu(driver, "cuMemAddressFree", error);
        if (result != GPUPOOL_OK) return result;
    }
    gpi_backing_forget(backing);
    return GPUPOOL_OK;
}

/* Peers may use what is held, and what will be: MAPPED memory piece by piece, all else by whole
   devices. */
static gpupool_result gpi_backing_allow_peer(gpi_backing *backing, int device) {
    gpi_driver *driver = &backing->driver;
    gpupool_result result = GPUPOOL_OK;
    gpi_piece *piece = backing->placed;
    int i;
    for (i = 0; i < driver->peer_count; i++)
        if (driver->peers[i] == device) return GPUPOOL_OK;
    if (!gpi_backing_is_mapped(backing)) {
        if (backing->source != GPUPOOL_SOURCE_PINNED)
            result = gpi_driver_enable_peer(driver, device);
        piece = NULL;
    }
    for (; piece && result == GPUPOOL_OK; piece = piece->next)
        result = gpi_driver_access_for(driver, piece->unit * GPUPOOL_UNIT_BYTES, piece->bytes,
                                       device);
    if (result == GPUPOOL_OK) driver->peers[driver->peer_count++] = device;
    return result;
}

/* == FENCE ====================================================================================
   Who must wait for whom. uses: DRIVER, TREE

   A stream frees into its cache and its young lane, without an event: its own later work comes
   after anyway. A fence is an event that covers all the work queued before it. It seals the young
   lane: other streams may take a sealed lane's memory once its fence has passed (then the lane
   turns quiet), or when they wait for the fence on the device. Fences are recorded in calls that
   the stream itself makes, since a stored handle may belong to a destroyed stream: touching one
   crashes in the driver. Where no such call comes, a fence over the whole context
   (cuCtxRecordEvent) or a wait for the device takes its place.

   CUDA gives a new stream the handle of a destroyed one at once, even while the old one's work
   still runs. So what the old one freed is taken from the handle when it is destroyed: the macro
   cudaStreamDestroy and gpupool_stream_retired see to that. Where neither can be, with
   GPUPOOL_STREAM_CHECK, a stream is asked for its id, which is never used twice.

   F1  an event is recorded, under the lock, before memory becomes takeable by its fence
   F2  sealed lanes stand oldest first; a later fence of the same stream covers an earlier one
   F3  a fence in use is not idle, and its users are counted
   F4  a stream is in the bucket of its handle, and no two have the same key
   Locks: a stream's lock is its cache's, and is taken before the arena's. The cache changes under
   it (and under both where the tree is concerned), all else under the arena's. */

#define GPI_SEALS 4     /* sealed lanes a stream may have; then the newest takes more */
#define GPI_BUCKETS 256 /* of streams */
#define GPI_KEY_LEGACY 1u
#define GPI_KEY_ANY 5u  /* stands for all streams: what gpupool_cudaFree frees */

typedef struct gpi_fence {
    cudaEvent_t event;
    struct gpi_fence *next; /* in the idle list */
    CUcontext context;      /* of its event, where it is not the arena's */
    uint64_t number;        /* later fences have higher ones */
    int users, passed;
    int unrecorded;         /* stands for a wait for the device, not for its event */
    int counted;            /* users that the check has met */
} gpi_fence;

typedef struct gpi_use { /* of a live block by another stream */
    struct gpi_use *next;
    uint64_t identity;      /* of the stream; 0: not known */
    gpi_fence *fence;       /* NULL: kept for a graph */
    struct gpi_stream *keeper; /* the graph's lanes */
} gpi_use;

typedef struct gpi_stream {
    struct gpi_stream *next;  /* all that there ever were: none is freed before the arena is */
    struct gpi_stream *chain; /* of the same bucket */
    uintptr_t key;            /* of the handle, while calls with it come here; 0: none do */
    uintptr_t handle;         /* what the key is, or was; 0: the struct is empty */
    uint64_t identity;        /* CUDA's id; 0: not asked for */
    struct gpupool_capture *capture; /* what it holds is a graph's: never fenced */
    struct gpi_stream *early; /* a capture's: what was freed in it and is older than the scope */
    int set_aside;            /* a capture's stream has the key meanwhile */
    gpi_cache cache;
    uint32_t young;
    int seals;
    uint32_t sealed[GPI_SEALS];
    gpi_fence *fences[GPI_SEALS];
    uint32_t frees;           /* into the young lane since it was last sealed */
    uint64_t freed_units;
} gpi_stream;

typedef struct gpi_fences {
    const gpi_driver *driver;
    gpi_fence *idle;
    gpi_stream *streams;
    gpi_stream *buckets[GPI_BUCKETS];
    uint64_t stream_count, fence_count; /* streams: those that are not empty */
    uint64_t device_waits, host_waits, recorded;
    gpi_fence *awaited;       /* has a user more: the thread that waits for it */
} gpi_fences;

static gpi_stream **gpi_fence_bucket(gpi_fences *fences, uintptr_t key) {
    return &fences->buckets[((uint64_t)key * 0x9e3779b97f4a7c15ull) >> 56];
}

static int gpi_fence_owns(const gpi_stream *stream, uint32_t lane) {
    int i, owns = stream->young == lane;
    for (i = 0; i < stream->seals; i++) owns += stream->sealed[i] == lane;
    return owns;
}

static int gpi_fence_check_bucket(const gpi_fences *fences, const gpi_stream *stream) {
    const gpi_stream *other = *gpi_fence_bucket((gpi_fences *)(uintptr_t)fences, stream->handle);
    int found = 0;
    for (; other; other = other->chain) {
        found |= other == stream;
        if (other != stream && stream->key && other->key == stream->key) return 4;
    }
    return found ? 0 : 4;
}

/* Each lane of streams belongs to one stream, once; its fences get later from one to the next. */
static int gpi_fence_check(const gpi_fences *fences, const gpi_tree *tree) {
    const gpi_stream *stream = fences->streams;
    const gpi_fence *fence = fences->idle;
    uint32_t lane;
    int i, owned, lanes = 0;
    for (; stream; stream = stream->next) {
        if (stream->handle == 0) continue;
        lanes += 1 + stream->seals;
        if (stream->key && stream->key != stream->handle) return 4;
        if (gpi_fence_check_bucket(fences, stream)) return 4;
        for (i = 1; i < stream->seals; i++)
            if (stream->fences[i]->number <= stream->fences[i - 1]->number) return 2;
    }
    for (lane = GPI_LANE_STREAMS; lane < tree->lane_count; lane++) {
        if (!tree->lanes[lane]) continue;
        for (owned = 0, stream = fences->streams; stream; stream = stream->next)
            owned += stream->handle && gpi_fence_owns(stream, lane);
        if (owned != 1) return 2;
        lanes--;
    }
    for (; fence; fence = fence->next)
        if (fence->users != 0) return 3;
    return lanes == 0 ? 0 : 2;
}

/* One round over the users of a fence: forget what was counted, count, compare. */
static int gpi_fence_check_user(const gpi_fences *fences, gpi_fence *fence, int round) {
    if (round == 0) fence->counted = fence == fences->awaited;
    if (round == 1) fence->counted++;
    return round < 2 || fence->counted == fence->users ? 0 : 3;
}

static int gpi_fence_check_uses(const gpi_fences *fences, const gpi_run *run, int round) {
    const gpi_use *use = (const gpi_use *)run->uses;
    int broken = 0;
    for (; use; use = use->next)
        if (use->fence) broken |= gpi_fence_check_user(fences, use->fence, round);
    return broken;
}

/* Handles are addresses, so even; the default streams take odd keys, one for each thread if they
   are per thread. Thread numbers are never used twice, unlike handles. */
static uintptr_t gpi_fence_key(cudaStream_t stream) {
    if (stream == cudaStreamPerThread) return (uintptr_t)gpi_host_thread_number() << 2 | 3;
    if (stream == NULL || stream == cudaStreamLegacy) return GPI_KEY_LEGACY;
    return (uintptr_t)stream;
}

/* What tells a stream from any other, ever; 0 where CUDA cannot say, and of a capturing stream,
   which would lose its capture. */
static uint64_t gpi_fence_identity(cudaStream_t stream) {
    if (stream == NULL || stream == cudaStreamLegacy || stream == cudaStreamPerThread) return 0;
    return gpi_driver_is_capturing(stream) ? 0 : gpi_driver_stream_id(stream);
}

static gpupool_result gpi_fence_new(gpi_fences *fences, CUcontext context, gpi_fence **out) {
    gpi_fence **link = &fences->idle, *fence;
    gpupool_result result;
    while (*link && (*link)->context != context) link = &(*link)->next;
    fence = *link;
    if (fence) {
        *link = fence->next;
    } else {
        fence = (gpi_fence *)gpi_host_zeroed(sizeof *fence);
        if (!fence) return gpi_host_no_memory();
        result = gpi_driver_told("cudaEventCreateWithFlags",
                                 cudaEventCreateWithFlags(&fence->event, cudaEventDisableTiming));
        if (result != GPUPOOL_OK) {
            GPUPOOL_FREE(fence);
            return result;
        }
        fence->context = context;
        fences->fence_count++;
    }
    fence->users = 1;
    fence->passed = fence->unrecorded = 0;
    fence->number = ++fences->recorded;
    *out = fence;
    return GPUPOOL_OK;
}

static void gpi_fence_drop(gpi_fences *fences, gpi_fence *fence) {
    if (--fence->users > 0) return;
    fence->next = fences->idle;
    fences->idle = fence;
}

/* A fence of what the stream has queued so far. An event must be of the stream's own context. */
static gpupool_result gpi_fence_record(gpi_fences *fences, cudaStream_t stream, gpi_fence **out) {
    CUcontext context = gpi_driver_foreign(fences->driver, stream);
    gpupool_result result = gpi_driver_push(fences->driver, context);
    if (result != GPUPOOL_OK) return result;
    result = gpi_fence_new(fences, context, out);
    if (result == GPUPOOL_OK) {
        result = gpi_driver_told("cudaEventRecord", cudaEventRecord((*out)->event, stream));
        if (result != GPUPOOL_OK) {
            gpi_fence_drop(fences, *out);
            *out = NULL;
        }
    }
    gpi_driver_pop(fences->driver, context);
    return result;
}

/* A fence over all streams of the context, the destroyed ones included; there is none over several
   devices. While any of them captures, it would be refused and the capture lost. The legacy stream
   tells of captures on blocking streams, and asking it is harmless; of one on a non-blocking stream
   only a scope tells (seen on CUDA 13.0). */
static gpupool_result gpi_fence_record_all(gpi_fences *fences, gpi_fence **out) {
    const gpi_driver *driver = fences->driver;
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    CUcontext context = NULL;
    gpupool_result result;
    if (!driver->record_all || !driver->current_context || driver->peer_count)
        return gpi_host_fail(GPUPOOL_E_UNSUPPORTED, "fences over a context need CUDA 12.5, and a "
                             "single device");
    result = gpi_fence_new(fences, NULL, out);
    if (result != GPUPOOL_OK) return result;
    gpi_host_lock(&gpi_process.lock); /* no scope is opened meanwhile */
    if (gpi_process.scopes || cudaStreamIsCapturing(cudaStreamLegacy, &status) != cudaSuccess)
        result = gpi_host_fail(GPUPOOL_E_CAPTURING,
                               "no fence over a context while a stream captures");
    if (result == GPUPOOL_OK)
        result = gpi_driver_told_cu(driver, "cuCtxGetCurrent", driver->current_context(&context));
    if (result == GPUPOOL_OK)
        result = gpi_driver_told_cu(driver, "cuCtxRecordEvent",
                                    driver->record_all(context, (CUevent)(*out)->event));
    gpi_host_unlock(&gpi_process.lock);
    if (result != GPUPOOL_OK) {
        gpi_fence_drop(fences, *out);
        *out = NULL;
    }
    return result;
}

static int gpi_fence_passed(gpi_fence *fence) {
    if (!fence->passed && !fence->unrecorded)
        fence->passed = cudaEventQuery(fence->event) == cudaSuccess;
    return fence->passed;
}

static gpupool_result gpi_fence_follow(gpi_fences *fences, gpi_fence *fence, cudaStream_t stream) {
    if (fence->passed) return GPUPOOL_OK;
    if (fence->unrecorded)
        return gpi_host_fail(GPUPOOL_E_UNSUPPORTED, "only a wait for the device would do");
    fences->device_waits++;
    return gpi_driver_told("cudaStreamWaitEvent", cudaStreamWaitEvent(stream, fence->event, 0));
}

/* -- streams -- */

/* Calls with this key go to this stream. Needs no lock: see GPI_PUBLISH. NULL: to none yet. */
static gpi_stream *gpi_fence_find(gpi_fences *fences, uintptr_t key) {
    gpi_stream *stream = GPI_READ(gpi_fence_bucket(fences, key));
    while (stream && GPI_READ(&stream->key) != key) stream = stream->chain;
    return stream;
}

/* The same with its lock held. */
static gpi_stream *gpi_fence_enter(gpi_fences *fences, uintptr_t key) {
    gpi_stream *stream;
    while ((stream = gpi_fence_find(fences, key)) != NULL) {
        gpi_host_lock(&stream->cache.lock);
        if (GPI_READ(&stream->key) == key) return stream;
        gpi_host_unlock(&stream->cache.lock); /* renamed meanwhile */
    }
    return NULL;
}

/* Whether the handle in this call is the stream's that has its key, and not one made since. */
static int gpi_fence_is_same(const gpi_stream *known, cudaStream_t stream) {
    uint64_t identity;
    if (!GPUPOOL_STREAM_CHECK || known->key & 1 || known->capture) return 1;
    identity = gpi_fence_identity(stream);
    return identity == 0 || identity == known->identity;
}

/* A struct for a key that none has: an empty one, or a new one. NULL: the host has no memory. */
static gpi_stream *gpi_fence_struct(gpi_fences *fences, uintptr_t key) {
    gpi_stream **bucket = gpi_fence_bucket(fences, key), *stream;
    for (stream = *bucket; stream; stream = stream->chain)
        if (stream->handle == 0) return stream;
    stream = (gpi_stream *)gpi_host_zeroed(sizeof *stream);
    if (!stream) return NULL;
    gpi_cache_open(&stream->cache);
    stream->next = fences->streams;
    stream->chain = *bucket;
    GPI_PUBLISH(&fences->streams, stream);
    GPI_PUBLISH(bucket, stream);
    return stream;
}

/* Makes a stream known; the arena's lock is held. NULL: the host has no memory. */
static gpi_stream *gpi_fence_know(gpi_fences *fences, gpi_tree *tree, uintptr_t key,
                                  uint64_t identity) {
    gpi_stream *stream = gpi_fence_struct(fences, key);
    uint32_t lane = stream ? gpi_tree_lane_add(tree) : GPI_LANE_LIVE;
    if (lane == GPI_LANE_LIVE) return NULL;
    stream->young = lane;
    stream->handle = key;
    stream->identity = identity;
    stream->capture = NULL;
    stream->early = NULL;
    stream->frees = 0;
    stream->freed_units = 0;
    fences->stream_count++;
    GPI_PUBLISH(&stream->key, key);
    return stream;
}

/* Calls with its handle come here again. */
static void gpi_fence_rename(gpi_stream *stream) {
    stream->set_aside = 0;
    GPI_PUBLISH(&stream->key, stream->handle);
}

/* Calls with its key no longer come here. What it holds stays until a fence lets others have it. */
static void gpi_fence_unname(gpi_stream *stream) { GPI_PUBLISH(&stream->key, 0); }

/* The young lane stands behind this fence from now on; the fence gains a user. When the stream has
   all its seals, or the host has no memory for a lane, the newest sealed lane takes the memory and
   the later fence. */
static void gpi_fence_seal(gpi_fences *fences, gpi_tree *tree, gpi_stream *stream,
                           gpi_fence *fence) {
    uint32_t lane = GPI_LANE_LIVE;
    if (stream->handle == 0 || stream->capture || tree->lanes[stream->young]->runs == 0) return;
    stream->frees = 0;
    stream->freed_units = 0;
    if (stream->seals < GPI_SEALS) lane = gpi_tree_lane_add(tree);
    if (lane != GPI_LANE_LIVE) {
        stream->sealed[stream->seals] = stream->young;
        stream->fences[stream->seals++] = fence;
        stream->young = lane;
    } else if (stream->seals > 0) {
        int newest = stream->seals - 1;
        gpi_tree_pour(tree, stream->young, stream->sealed[newest]);
        gpi_fence_drop(fences, stream->fences[newest]);
        stream->fences[newest] = fence;
    } else {
        return;
    }
    fence->users++;
}

static int gpi_fence_poll_stream(gpi_fences *fences, gpi_tree *tree, gpi_stream *stream) {
    int i, passed = 0;
    while (passed < stream->seals && gpi_fence_passed(stream->fences[passed])) {
        gpi_tree_pour(tree, stream->sealed[passed], GPI_LANE_QUIET);
        gpi_tree_lane_drop(tree, stream->sealed[passed]);
        gpi_fence_drop(fences, stream->fences[passed]);
        passed++;
    }
    stream->seals -= passed;
    for (i = 0; i < stream->seals; i++) {
        stream->sealed[i] = stream->sealed[i + passed];
        stream->fences[i] = stream->fences[i + passed];
    }
    return passed > 0;
}

/* Lanes whose fence has passed turn quiet. Returns whether any did. */
static int gpi_fence_poll(gpi_fences *fences, gpi_tree *tree) {
    gpi_stream *stream = fences->streams;
    int any = 0;
    for (; stream; stream = stream->next)
        if (stream->handle) any |= gpi_fence_poll_stream(fences, tree, stream);
    return any;
}

/* A stream of which nothing is left is forgotten, and known anew with its next call: without a key
   always, with one if `named`. Both its locks are held. */
static void gpi_fence_forget(gpi_fences *fences, gpi_tree *tree, gpi_stream *stream, int named) {
    if (stream->handle == 0 || (stream->key && !named)) return;
    if (stream->capture || stream->set_aside || stream->seals || stream->cache.used) return;
    if (tree->lanes[stream->young]->runs) return;
    gpi_fence_unname(stream);
    gpi_tree_lane_drop(tree, stream->young);
    stream->handle = 0;
    fences->stream_count--;
}

static int gpi_fence_lacks(const gpi_fences *fences, const gpi_tree *tree) {
    const gpi_stream *stream = fences->streams;
    int i;
    for (; stream; stream = stream->next) {
        if (stream->handle == 0 || stream->capture) continue;
        if (tree->lanes[stream->young]->runs) return 1;
        for (i = 0; i < stream->seals; i++)
            if (stream->fences[i]->unrecorded) return 1;
    }
    return 0;
}

/* The device has been waited for: what was sealed before the wait is done. */
static void gpi_fence_device_idle(gpi_fences *fences, uint64_t number) {
    gpi_stream *stream = fences->streams;
    int i;
    for (; stream; stream = stream->next)
        for (i = 0; i < stream->seals; i++)
            if (stream->fences[i]->number <= number) stream->fences[i]->passed = 1;
}

/* Seals every young lane with one fence. */
static void gpi_fence_seal_all(gpi_fences *fences, gpi_tree *tree, gpi_fence *fence) {
    gpi_stream *stream = fences->streams;
    for (; stream; stream = stream->next) gpi_fence_seal(fences, tree, stream, fence);
}

/* The device is known to be idle: all lanes turn quiet, whatever their fences. */
static void gpi_fence_all_passed(gpi_fences *fences, gpi_tree *tree) {
    gpi_stream *stream;
    int i;
    for (stream = fences->streams; stream; stream = stream->next) {
        if (stream->handle == 0) continue;
        for (i = 0; i < stream->seals; i++) stream->fences[i]->passed = 1;
        gpi_tree_pour(tree, stream->young, GPI_LANE_QUIET);
        stream->frees = 0;
        stream->freed_units = 0;
    }
    gpi_fence_poll(fences, tree);
}

/* Gives the idle events back; those that the driver refuses stay. */
static gpupool_result gpi_fence_trim(gpi_fences *fences) {
    while (fences->idle) {
        gpi_fence *fence = fences->idle;
        gpupool_result result = gpi_driver_told("cudaEventDestroy", cudaEventDestroy(fence->event));
        if (result != GPUPOOL_OK) return result;
        fences->idle = fence->next;
        fences->fence_count--;
        GPUPOOL_FREE(fence);
    }
    return GPUPOOL_OK;
}

static void gpi_fence_close(gpi_fences *fences) { /* the host's side only */
    gpi_stream *stream, *next;
    gpi_fence *fence, *after;
    for (stream = fences->streams; stream; stream = next) {
        next = stream->next;
        GPUPOOL_FREE(stream);
    }
    for (fence = fences->idle; fence; fence = after) {
        after = fence->next;
        GPUPOOL_FREE(fence);
    }
    memset(fences, 0, sizeof *fences);
}

/* == LIMIT ====================================================================================
   Limits as text, and the reason when one is met, as a sentence. uses: HOST

       limit  = [ "-" ] number [ " " ] [ unit ]          "-": all of the device but this
       unit   = "%" | "%free" | B | K M G T | KiB MiB GiB TiB (1024) | KB MB GB TB (1000) */

static int gpi_limit_same(const char *text, const char *word) { /* case does not matter */
    for (; *text && *word; text++, word++) {
        char a = *text >= 'a' && *text <= 'z' ? (char)(*text - 32) : *text;
        char b = *word >= 'a' && *word <= 'z' ? (char)(*word - 32) : *word;
        if (a != b) return 0;
    }
    return *text == *word;
}

/* Bytes in one of this unit; 0 for a unit that is none. Percentages are of total or free bytes. */
static double gpi_limit_unit(const char *text, uint64_t total_bytes, uint64_t free_bytes) {
    static const char letters[] = "KMGT";
    double binary = 1, decimal = 1;
    char word[4];
    int i;
    if (!*text || gpi_limit_same(text, "B")) return 1;
    if (gpi_limit_same(text, "%")) return (double)total_bytes / 100;
    if (gpi_limit_same(text, "%free")) return (double)free_bytes / 100;
    for (i = 0; i < 4; i++) {
        binary *= 1024;
        decimal *= 1000;
        word[0] = letters[i];
        word[1] = 0;
        if (gpi_limit_same(text, word)) return binary;
        word[1] = 'B';
        word[2] = 0;
        if (gpi_limit_same(text, word)) return decimal;
        word[1] = 'i';
        word[2] = 'B';
        word[3] = 0;
        if (gpi_limit_same(text, word)) return binary;
    }
    return 0;
}

/* Quotes the text in its error, so that a wrong environment variable is found at once. */
static gpupool_result gpi_limit_wrong(const char *where, const char *text, const char *rule) {
    return gpi_host_fail(GPUPOOL_E_ARGUMENT, "%s: the limit \"%.60s\" %s", where, text, rule);
}

static gpupool_result gpi_limit_parse(const char *where, const char *text, uint64_t total_bytes,
                                      uint64_t free_bytes, uint64_t *out_bytes) {
    const char *at = text;
    int all_but = *at == '-', digits = 0;
    double value = 0, scale = 1, unit;
    if (all_but) at++;
    for (; *at >= '0' && *at <= '9'; at++, digits++) value = value * 10 + (*at - '0');
    if (*at == '.' && digits)
        for (at++; *at >= '0' && *at <= '9'; at++) value += (*at - '0') * (scale /= 10);
    if (!digits) return gpi_limit_wrong(where, text, "does not begin with a number");
    if (*at == ' ' && at[1]) at++;
    unit = gpi_limit_unit(at, total_bytes, free_bytes);
    if (unit <= 0)
        return gpi_limit_wrong(where, text, "ends in no unit that is known: B KiB MiB GiB TiB "
                               "KB MB GB TB K M G T % %free");
    if (*at == '%' && value > 100) return gpi_limit_wrong(where, text, "is over 100%");
    value *= unit;
    if (value >= 9e18) return gpi_limit_wrong(where, text, "is larger than any memory");
    if (all_but && value >= (double)total_bytes)
        return gpi_limit_wrong(where, text, "leaves nothing of the device");
    *out_bytes = all_but ? total_bytes - (uint64_t)value : (uint64_t)value;
    if (*out_bytes == 0) return gpi_limit_wrong(where, text, "is zero");
    return GPUPOOL_OK;
}

/* "1.25 GiB" and the like; several may be used in one sentence, so the caller has the room. */
static const char *gpi_limit_human(char room[32], uint64_t bytes) {
    static const char units[5][4] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes;
    int unit = 0;
    while (value >= 1000 && unit < 4) {
        value /= 1024;
        unit++;
    }
    snprintf(room, 32, unit == 0 || value >= 100 ? "%.0f %s" : "%.2f %s", value, units[unit]);
    return room;
}

/* From the figures to the cause and the sentence. `limited`: the limit, not the driver, refused. */
static void gpi_limit_judge(gpupool_verdict *verdict, int limited, int capturing) {
    char asked[32], missing[32], held[32], other[32], largest[32];
    uint64_t free_bytes = verdict->reserved_bytes - verdict->granted_bytes;
    const char *format;
    if (verdict->device_total_bytes && verdict->asked_bytes > verdict->device_total_bytes)
        verdict->cause = GPUPOOL_CAUSE_TOO_LARGE;
    else if (capturing)
        verdict->cause = GPUPOOL_CAUSE_CAPTURING;
    else if (free_bytes >= verdict->asked_bytes && verdict->pending_bytes >= verdict->asked_bytes)
        verdict->cause = GPUPOOL_CAUSE_PENDING;
    else if (free_bytes >= verdict->asked_bytes)
        verdict->cause = GPUPOOL_CAUSE_FRAGMENTED;
    else if (limited)
        verdict->cause = GPUPOOL_CAUSE_LIMIT;
    else
        verdict->cause = verdict->others_bytes > verdict->reserved_bytes
                             ? GPUPOOL_CAUSE_OTHERS
                             : GPUPOOL_CAUSE_DEVICE_FULL;
    gpi_limit_human(asked, verdict->asked_bytes);
    gpi_limit_human(missing, verdict->missing_bytes);
    gpi_limit_human(held, verdict->granted_bytes);
    gpi_limit_human(other, verdict->others_bytes);
    gpi_limit_human(largest, verdict->largest_free_bytes);
    switch (verdict->cause) {
    case GPUPOOL_CAUSE_LIMIT:
        format = "%s do not fit under the limit: raise it by %s, or free as much of the %s in use";
        break;
    case GPUPOOL_CAUSE_TOO_LARGE:
        format = "%s are more than the whole device has";
        break;
    case GPUPOOL_CAUSE_DEVICE_FULL:
        format = "%s do not fit on the device: free %s of the %s that this arena's blocks hold";
        break;
    case GPUPOOL_CAUSE_OTHERS:
        format = "%s do not fit on the device: %s are missing; this arena's blocks hold %s, others "
                 "on the device hold %s";
        break;
    case GPUPOOL_CAUSE_FRAGMENTED:
        format = "%s are free in all, but not in one run: raise the limit by %s, or free blocks "
                 "that lie together (%s are in use, others on the device hold %s, the longest run "
                 "is %s)";
        break;
    case GPUPOOL_CAUSE_PENDING:
        format = "%s would fit once work in flight on other streams has finished: wait for it, or "
                 "raise the limit by %s";
        break;
    case GPUPOOL_CAUSE_CAPTURING:
        format =
            "%s need memory that a capturing stream cannot get: allocate before the capture, or "
            "raise the limit by %s";
        break;
    case GPUPOOL_CAUSE_NONE:
    default:
        format = "%s fit";
    }
    /* every format takes a head of the same list of arguments */
    snprintf(verdict->sentence, sizeof verdict->sentence, format, asked, missing, held, other,
             largest);
}

/* == ARENA ====================================================================================
   The public arena: check, lock, the ladder of attempts, ledger, unlock. uses: all rooms above
   A1  ledger.granted is the tree's live units but for what caches have free; ledger.blocks its
       live runs but for those
   A2  ledger.pending is what lanes of streams and caches hold, and what is parked
   A3  a parked run is held, and has a fence that had not passed when last looked at
   Locks: `growing` is held, for as long as the driver takes, by the one thread that gets or gives
   memory; a stream's lock by whoever uses its cache; `lock` for tens of nanoseconds by whoever
   changes the tree. They are taken in this order. */

struct gpupool_arena {
    gpupool_arena *next;          /* of the process */
    gpi_lock lock, growing;
    int forks;                    /* of the process when the arena was made */
    gpi_tree tree;
    gpi_ledger ledger;
    gpi_fences fences;
    gpi_run *parked, *parked_last; /* freed while other streams used them; linked by list_next */
    uint64_t parked_units;
    int captures_seen;            /* streams have been captured: see gpi_arena_rung_ask */
    int climbing;                 /* a thread looks for memory: none goes into caches */
    int hurried;                  /* so many frees get a fence each, since memory was short */
    uint64_t captures;            /* gpupool_captures not yet released */
    uint64_t keep_bytes;          /* trim keeps this much: config.reserve_bytes */
    uint64_t granted_most;        /* the peak before peaks were last reset */
    gpi_backing backing;
    int (*on_out_of_memory)(const gpupool_verdict *, void *);
    void *user;
    char name[32];
};

struct gpupool_capture {
    gpupool_arena *arena;
    gpi_stream *stream;       /* the graph's lanes, with the stream's key until the end */
    gpi_stream *outer;        /* what had the key before; NULL: nothing */
    uintptr_t key;
};

static void gpi_arena_count_pending(gpupool_arena *arena) {
    gpi_ledger_set(&arena->ledger.pending,
                   arena->ledger.cached_bytes +
                       (arena->tree.pending_units + arena->parked_units) * GPUPOOL_UNIT_BYTES);
}

/* The users of fences are lanes, and the uses of blocks that live or are parked. */
static int gpi_arena_check_users(const gpupool_arena *arena) {
    const gpi_stream *stream;
    const gpi_run *run;
    uint64_t bucket;
    int round, i, broken = 0;
    for (round = 0; round < 3; round++) {
        for (stream = arena->fences.streams; stream; stream = stream->next)
            for (i = 0; i < stream->seals; i++)
                broken |= gpi_fence_check_user(&arena->fences, stream->fences[i], round);
        for (run = arena->parked; run; run = run->list_next)
            broken |= gpi_fence_check_uses(&arena->fences, run, round);
        for (bucket = 0; bucket < arena->tree.bucket_count; bucket++)
            for (run = *gpi_tree_head(&arena->tree, bucket); run; run = run->list_next)
                if (run->as.slack_bytes != GPI_CACHED)
                    broken |= gpi_fence_check_uses(&arena->fences, run, round);
    }
    return broken;
}

static int gpi_arena_check_parked(const gpi_run *run) {
    const gpi_use *use = (const gpi_use *)run->uses;
    while (use && (!use->fence || use->fence->passed)) use = use->next;
    return run->lane == GPI_LANE_HELD && use ? 0 : 3;
}

/* Number of the broken invariant, with its room's letter; 0 if all hold. */
static int gpi_arena_check(const gpupool_arena *arena, char *room) {
    const gpi_ledger *ledger = &arena->ledger;
    gpi_stream *stream = arena->fences.streams;
    const gpi_run *run;
    gpi_tally tally;
    uint64_t parked = 0, free_units = 0, free_blocks = 0;
    int broken = gpi_ledger_check(ledger);
    *room = 'L';
    if (broken) return broken;
    *room = 'C';
    for (; stream; stream = stream->next) {
        if ((broken = gpi_cache_check(&stream->cache)) != 0) return broken;
        free_units += stream->cache.free_units;
        free_blocks += stream->cache.free_blocks;
    }
    *room = 'T';
    if ((broken = gpi_backing_check_runs(&arena->backing, &tally)) != 0) return broken;
    if ((broken = gpi_tree_check(&arena->tree)) != 0) return broken;
    if ((broken = gpi_tree_check_tally(&arena->tree, &tally)) != 0) return broken;
    *room = 'B';
    if ((broken = gpi_backing_check(&arena->backing, ledger->reserved.now)) != 0) return broken;
    *room = 'F';
    if ((broken = gpi_fence_check(&arena->fences, &arena->tree)) != 0) return broken;
    *room = 'A';
    if (ledger->granted.now != (arena->tree.live_units - free_units) * GPUPOOL_UNIT_BYTES)
        return 1;
    if (ledger->blocks.now != arena->tree.live_runs - free_blocks) return 1;
    for (run = arena->parked; run; run = run->list_next) {
        if (gpi_arena_check_parked(run)) return 3;
        parked += run->units;
    }
    if (parked != arena->parked_units) return 2;
    parked += arena->tree.pending_units + free_units;
    if (ledger->pending.now != parked * GPUPOOL_UNIT_BYTES) return 2;
    *room = 'F';
    return gpi_arena_check_users(arena);
}

static gpupool_result gpi_arena_exists(const gpupool_arena *arena, const char *call) {
    if (!arena) return gpi_host_fail(GPUPOOL_E_ARGUMENT, "%s: the arena is NULL", call);
    if (arena->forks == gpi_process.forks) return GPUPOOL_OK;
    return gpi_host_fail(GPUPOOL_E_FORKED, "%s: this process is a fork of the one that made arena "
                         "\"%s\", and has no CUDA context", call, arena->name);
}

/* A block that its stream has freed becomes free in the tree. Quiet neighbours join it: all of
   them while there is no other stream to take them from. */
static void gpi_arena_put(gpupool_arena *arena, gpi_stream *stream, gpi_run *run) {
    uint64_t units = run->units;
    uint64_t absorb = arena->fences.stream_count < 2 ? UINT64_MAX : units;
    if (stream->capture) absorb = 0;
    gpi_tree_lay_down(&arena->tree, run);
    gpi_tree_put(&arena->tree, run, stream->young, absorb);
    stream->frees++;
    stream->freed_units += units;
}

/* Empties a stream's cache; both locks are held. */
static void gpi_arena_drain(gpupool_arena *arena, gpi_stream *stream) {
    while (stream->cache.used) {
        gpi_run *run = gpi_cache_evict(&stream->cache);
        if (run) gpi_arena_put(arena, stream, run);
    }
    gpi_cache_fold(&stream->cache, &arena->ledger);
}

/* Takes the locks of all streams and the arena's. */
static gpi_stream *gpi_arena_lock_all(gpupool_arena *arena) {
    for (;;) {
        gpi_stream *first = GPI_READ(&arena->fences.streams), *stream;
        for (stream = first; stream; stream = stream->next) gpi_host_lock(&stream->cache.lock);
        gpi_host_lock(&arena->lock);
        if (first == arena->fences.streams) return first;
        gpi_host_unlock(&arena->lock); /* there is a new one: once more */
        for (stream = first; stream; stream = stream->next) gpi_host_unlock(&stream->cache.lock);
    }
}

/* No call comes to this stream any more; what it has cached goes into its lane. The arena's lock is
   held, and opened for a moment. */
static void gpi_arena_unname(gpupool_arena *arena, gpi_stream *known) {
    gpi_host_unlock(&arena->lock);
    gpi_host_lock(&known->cache.lock);
    gpi_host_lock(&arena->lock);
    gpi_arena_drain(arena, known);
    gpi_fence_unname(known);
    gpi_host_unlock(&known->cache.lock);
}

/* Most public calls begin here: with all caches empty, so that all that is free is in the tree.
   While the arena's lock is held they stay so. `forget`: see gpi_fence_forget. */
static void gpi_arena_lock(gpupool_arena *arena, int forget) {
    gpi_stream *stream = gpi_arena_lock_all(arena);
    for (; stream; stream = stream->next) {
        gpi_arena_drain(arena, stream);
        gpi_fence_forget(&arena->fences, &arena->tree, stream, forget);
        gpi_host_unlock(&stream->cache.lock);
    }
    gpi_arena_count_pending(arena);
}

/* All invariants, with the caches as they are. While no other thread grows the arena, pending is as
   it was last counted. */
static int gpi_arena_check_all(gpupool_arena *arena, int growing, char *room) {
    gpi_stream *first = gpi_arena_lock_all(arena), *stream;
    uint64_t pending = arena->ledger.pending.now;
    int broken, stale;
    if (growing) gpi_arena_count_pending(arena);
    stale = growing && pending != arena->ledger.pending.now;
    for (stream = first; stream; stream = stream->next)
        gpi_cache_fold(&stream->cache, &arena->ledger);
    gpi_arena_count_pending(arena);
    broken = gpi_arena_check(arena, room);
    if (!broken && stale) { /* last: a sum that is wrong in a room above is named as what it is */
        *room = 'A';
        broken = 2;
    }
    gpi_host_unlock(&arena->lock);
    for (stream = first; stream; stream = stream->next) gpi_host_unlock(&stream->cache.lock);
    return broken;
}

#if GPUPOOL_CHECK >= 2
static void gpi_arena_check_now(gpupool_arena *arena) { /* the lock is held, the caches are empty */
    char room;
    gpi_arena_count_pending(arena); /* a thread that grows the arena counts at its end */
    GPUPOOL_ASSERT(gpi_arena_check(arena, &room) == 0);
}

static void gpi_arena_check_again(gpupool_arena *arena) { /* no lock is held but `growing` */
    char room;
    GPUPOOL_ASSERT(gpi_arena_check_all(arena, 0, &room) == 0);
}
#endif

static gpupool_result gpi_arena_enter(gpupool_arena *arena, const char *call) {
    gpupool_result result = gpi_arena_exists(arena, call);
    if (result != GPUPOOL_OK) return result;
    gpi_arena_lock(arena, 0);
#if GPUPOOL_CHECK >= 2
    gpi_arena_check_now(arena);
#endif
    return gpi_host_ok();
}

/* gpupool_alloc and gpupool_free begin here: no lock is held, the caches stay as they are. */
static gpupool_result gpi_arena_begin(gpupool_arena *arena, const char *call) {
    gpupool_result result = gpi_arena_exists(arena, call);
#if GPUPOOL_CHECK >= 2
    if (result == GPUPOOL_OK) gpi_arena_check_again(arena);
#endif
    return result == GPUPOOL_OK ? gpi_host_ok() : result;
}

static void gpi_arena_exit(gpupool_arena *arena) {
    gpi_arena_count_pending(arena);
    gpi_host_unlock(&arena->lock);
#if GPUPOOL_CHECK >= 2
    gpi_arena_check_again(arena); /* with caches that were filled while the lock was open */
#endif
}

/* cudaDeviceReset takes the memory, the streams and the events with it. */
static gpupool_result gpi_arena_outlived(const gpupool_arena *arena, const char *call) {
    if (!gpi_driver_was_reset(&arena->backing.driver)) return GPUPOOL_OK;
    return gpi_host_fail(GPUPOOL_E_CUDA, "%s: device %d was reset since arena \"%s\" was made: its "
                         "memory is gone, only gpupool_arena_destroy is left", call,
                         arena->backing.driver.device, arena->name);
}

/* The same with the right to change what the arena holds, and the driver ready for it. */
static gpupool_result gpi_arena_enter_growing(gpupool_arena *arena, const char *call,
                                              gpi_visit *visit) {
    gpupool_result result = gpi_arena_exists(arena, call);
    if (result != GPUPOOL_OK) return result;
    result = gpi_driver_enter(arena->backing.driver.device, visit);
    if (result != GPUPOOL_OK) return result;
    result = gpi_arena_outlived(arena, call);
    if (result != GPUPOOL_OK) {
        gpi_driver_leave(visit);
        return result;
    }
    gpi_host_lock(&arena->growing);
    return gpi_arena_enter(arena, call);
}

static void gpi_arena_exit_growing(gpupool_arena *arena, const gpi_visit *visit) {
    gpi_arena_exit(arena);
    gpi_host_unlock(&arena->growing);
    gpi_driver_leave(visit);
}

/* -- parked blocks: freed, while work that other streams had queued may still use them -- */

static void gpi_arena_park(gpupool_arena *arena, gpi_run *run) {
    run->list_next = NULL;
    if (arena->parked) arena->parked_last->list_next = run;
    else arena->parked = run;
    arena->parked_last = run;
    arena->parked_units += run->units;
}

static void gpi_arena_drop_uses(gpupool_arena *arena, gpi_use *use) {
    gpi_use *next;
    for (; use; use = next) {
        next = use->next;
        if (use->fence) gpi_fence_drop(&arena->fences, use->fence);
        GPUPOOL_FREE(use);
    }
}

static int gpi_arena_has_fence(const gpi_run *run) {
    const gpi_use *use = (const gpi_use *)run->uses;
    while (use && !use->fence) use = use->next;
    return use != NULL;
}

static int gpi_arena_uses_passed(const gpi_run *run) {
    gpi_use *use = (gpi_use *)run->uses;
    for (; use; use = use->next)
        if (use->fence && !gpi_fence_passed(use->fence)) return 0;
    return 1;
}

/* The lanes that a graph keeps, if the block was handed out to it. */
static gpi_stream *gpi_arena_keeper(const gpi_run *run) {
    const gpi_use *use = (const gpi_use *)run->uses;
    while (use && !use->keeper) use = use->next;
    return use ? use->keeper : NULL;
}

/* Takes a run off the parked list; before: the one in front of it. */
static void gpi_arena_unpark(gpupool_arena *arena, gpi_run *before, gpi_run *run, uint32_t lane) {
    if (before) before->list_next = run->list_next;
    else arena->parked = run->list_next;
    if (arena->parked_last == run) arena->parked_last = before;
    arena->parked_units -= run->units;
    gpi_arena_drop_uses(arena, (gpi_use *)run->uses);
    run->uses = NULL;
    gpi_tree_put(&arena->tree, run, lane, 0);
}

/* Whatever has finished turns quiet. Returns whether anything did. */
static int gpi_arena_poll(gpupool_arena *arena) {
    int any = gpi_fence_poll(&arena->fences, &arena->tree);
    while (arena->parked && gpi_arena_uses_passed(arena->parked)) {
        const gpi_stream *keeper = gpi_arena_keeper(arena->parked);
        gpi_arena_unpark(arena, NULL, arena->parked, keeper ? keeper->young : GPI_LANE_QUIET);
        any = 1;
    }
    return any;
}

/* -- a request on its way up the ladder -- */

typedef struct gpi_request {
    uint64_t bytes, units, align_units;
    cudaStream_t stream;
    gpi_stream *known;
    int capturing;
    int limited;   /* the limit refused, not the driver */
} gpi_request;

/* A block for all streams at once, as cudaMalloc gives: of quiet memory only. */
static int gpi_arena_is_for_all(const gpi_request *request) {
    return request->known->handle == GPI_KEY_ANY;
}

/* The lanes that the request's stream may take without waiting: its own, and quiet memory. */
static void gpi_arena_lanes(const gpi_request *request, gpi_lanes *lanes) {
    int i = request->known->seals;
    lanes->count = 0;
    if (!gpi_arena_is_for_all(request)) {
        lanes->number[lanes->count++] = request->known->young;
        while (i--) lanes->number[lanes->count++] = request->known->sealed[i];
    }
    lanes->number[lanes->count++] = GPI_LANE_QUIET;
}

static gpi_run *gpi_arena_take(gpupool_arena *arena, gpi_run *run, const gpi_request *request) {
    uint64_t start = gpi_tree_start(run, request->units, request->align_units);
    return gpi_tree_take(&arena->tree, run, start, request->units);
}

/* Rungs one and two: the stream's own lanes and quiet memory, whichever fits more closely. Needs
   three spare structs. */
static gpi_run *gpi_arena_quick(gpupool_arena *arena, const gpi_request *request, uint64_t tries) {
    gpi_lanes lanes;
    gpi_run *run;
    gpi_arena_lanes(request, &lanes);
    run = gpi_tree_find(&arena->tree, &lanes, request->units, request->align_units, tries);
    if (!run) return NULL;
    if (run->lane != GPI_LANE_QUIET) arena->ledger.lane_hits++;
    return gpi_arena_take(arena, run, request);
}

/* The same, looking at every run, and first seeing to the spare structs that other threads may have
   used up meanwhile. */
static gpi_run *gpi_arena_again(gpupool_arena *arena, const gpi_request *request) {
    if (!gpi_tree_prepare(&arena->tree, 3)) return NULL;
    return gpi_arena_quick(arena, request, UINT64_MAX);
}

/* The stream's own lane gets a fence: only then can it become known that its work is done. */
static void gpi_arena_seal(gpupool_arena *arena, gpi_stream *known, cudaStream_t stream) {
    gpi_fence *fence;
    gpupool_result result;
    if (arena->tree.lanes[known->young]->runs == 0 || known->capture) return;
    if (known->handle == GPI_KEY_ANY) {
        if (arena->captures_seen) return; /* a fence over all streams would lose one */
        result = gpi_fence_record_all(&arena->fences, &fence);
    } else {
        if (gpi_driver_is_capturing(stream) || !gpi_fence_is_same(known, stream)) return;
        result = gpi_fence_record(&arena->fences, stream, &fence);
    }
    if (result != GPUPOOL_OK) return;
    gpi_fence_seal(&arena->fences, &arena->tree, known, fence);
    gpi_fence_drop(&arena->fences, fence);
}

/* Waits on the host until all that was freed so far is done, with the arena open to other threads
   meanwhile. */
static gpupool_result gpi_arena_quiesce(gpupool_arena *arena) {
    gpi_fence *fence;
    gpupool_result result = gpi_fence_new(&arena->fences, NULL, &fence);
    if (result != GPUPOOL_OK) return result;
    fence->unrecorded = 1;
    /* before the wait: what is freed during it is not covered */
    gpi_fence_seal_all(&arena->fences, &arena->tree, fence);
    arena->fences.host_waits++;
    arena->fences.awaited = fence;
    gpi_host_unlock(&arena->lock);
    result = gpi_driver_wait(&arena->backing.driver, gpi_driver_wait_here);
    gpi_host_lock(&arena->lock);
    if (result == GPUPOOL_OK) gpi_fence_device_idle(&arena->fences, fence->number);
    arena->fences.awaited = NULL;
    gpi_fence_drop(&arena->fences, fence);
    return result;
}

/* All streams' lanes get a fence: over the whole context, or, where the driver has none (before
   CUDA 12.5), one that has passed once the device has been waited for. */
static gpupool_result gpi_arena_seal_all(gpupool_arena *arena) {
    gpi_fence *fence = NULL;
    gpupool_result result;
    if (!gpi_fence_lacks(&arena->fences, &arena->tree)) return GPUPOOL_OK;
    result = gpi_fence_record_all(&arena->fences, &fence);
    if (result == GPUPOOL_E_UNSUPPORTED) return gpi_arena_quiesce(arena);
    if (result != GPUPOOL_OK) return result;
    gpi_fence_seal_all(&arena->fences, &arena->tree, fence);
    gpi_fence_drop(&arena->fences, fence);
    return GPUPOOL_OK;
}

/* How far reserved memory may run ahead of what was ever live at once before idle memory is moved
   instead: 1/48, and a little for arenas of a few pieces. */
static uint64_t gpi_arena_aim(const gpupool_arena *arena, const gpi_request *request) {
    uint64_t live = gpi_ground_max(gpi_ground_max(arena->ledger.granted.peak, arena->granted_most),
                                   arena->ledger.granted.now + request->units * GPUPOOL_UNIT_BYTES);
    live += live / 48 + 2 * arena->backing.driver.granule_bytes;
    return gpi_ground_max(live, arena->keep_bytes);
}

static gpupool_result gpi_arena_grow(gpupool_arena *arena, gpi_request *request, uint64_t aim_bytes,
                                     uint64_t most_bytes, gpi_run **run) {
    gpi_lanes lanes;
    gpupool_result result;
    gpi_arena_lanes(request, &lanes);
    if (!gpi_backing_is_mapped(&arena->backing)) {
        result = gpi_backing_grow_chunk(&arena->backing, &arena->tree,
                                        request->units, request->align_units, most_bytes, run);
    } else {
        result = gpi_backing_grow_mapped(&arena->backing, &arena->tree,
                                         request->units, request->align_units, &lanes, aim_bytes,
                                         most_bytes, run);
    }
    return result;
}

/* Rung: grow within the limit, but move idle memory rather than run far ahead of what is live. */
static gpupool_result gpi_arena_rung_grow(gpupool_arena *arena, gpi_request *request,
                                          gpi_run **run) {
    uint64_t aim = gpi_arena_aim(arena, request);
    uint64_t need = request->units * GPUPOOL_UNIT_BYTES;
    if (gpi_backing_is_mapped(&arena->backing) && arena->ledger.reserved.now + need > aim) {
        gpi_arena_seal(arena, request->known, request->stream);
        gpi_arena_poll(arena);
        *run = gpi_arena_again(arena, request);
        if (*run) return GPUPOOL_OK;
    }
    return gpi_arena_grow(arena, request, aim, arena->ledger.limit_bytes, run);
}

/* Rung: the memory of another stream, or a parked block, behind a wait on the device. */
static gpi_run *gpi_arena_rung_follow(gpupool_arena *arena, gpi_request *request) {
    gpi_stream *other = arena->fences.streams;
    gpi_run *run, *before = NULL;
    gpi_lanes lane;
    int i;
    lane.count = 1;
    if (request->capturing || gpi_arena_is_for_all(request)) return NULL;
    if (request->known->capture) return NULL; /* a replay is no later work of this stream */
    if (!gpi_tree_prepare(&arena->tree, 3)) return NULL;
    for (; other; other = other->next) {
        for (i = 0; other != request->known && i < other->seals; i++) {
            lane.number[0] = other->sealed[i];
            run = gpi_tree_find(&arena->tree, &lane, request->units, request->align_units,
                                UINT64_MAX);
            if (!run) continue;
            if (gpi_fence_follow(&arena->fences, other->fences[i], request->stream) != GPUPOOL_OK)
                return NULL;
            return gpi_arena_take(arena, run, request);
        }
    }
    for (run = arena->parked; run; before = run, run = run->list_next) {
        gpi_use *use = (gpi_use *)run->uses;
        if (gpi_tree_start(run, request->units, request->align_units) == UINT64_MAX) continue;
        if (gpi_arena_keeper(run)) continue;
        for (; use; use = use->next)
            if (gpi_fence_follow(&arena->fences, use->fence, request->stream) != GPUPOOL_OK)
                return NULL;
        gpi_arena_unpark(arena, before, run, request->known->young);
        return gpi_arena_again(arena, request);
    }
    return NULL;
}

/* Rung: all other attempts at the limit of what may be held: idle chunks go, idle granules move. */
static gpupool_result gpi_arena_rung_move(gpupool_arena *arena, gpi_request *request,
                                          gpi_run **run) {
    uint64_t need = gpi_backing_need(&arena->backing, request->units, request->align_units);
    uint64_t limit = arena->ledger.limit_bytes, held = arena->ledger.reserved.now;
    gpupool_result result;
    *run = gpi_arena_again(arena, request);
    if (*run) return GPUPOOL_OK;
    if (gpi_backing_is_mapped(&arena->backing)) {
        result = gpi_arena_grow(arena, request, gpi_ground_min(limit, held), limit, run);
        request->limited = held < limit ? request->limited : 1;
        return result;
    }
    /* chunks: give back what is idle until the driver has one large enough */
    gpi_backing_trim(&arena->backing, &arena->tree,
                     request->limited ? limit - gpi_ground_min(limit, need) : 0, 1);
    return gpi_arena_grow(arena, request, 0, limit, run);
}

/* Rung: what other streams freed without a fence yet. A fence over all streams would lose a
   capture, so once one has been seen this is left to the rung that waits. */
static gpupool_result gpi_arena_rung_ask(gpupool_arena *arena, gpi_request *request,
                                         gpupool_result result, gpi_run **run) {
    if (request->capturing || arena->captures_seen) return result;
    if (!gpi_fence_lacks(&arena->fences, &arena->tree)) return result;
    if (gpi_arena_seal_all(arena) != GPUPOOL_OK) return result;
    if (gpi_arena_poll(arena)) result = gpi_arena_rung_move(arena, request, run);
    if (result != GPUPOOL_E_OUT_OF_MEMORY) return result;
    *run = gpi_arena_rung_follow(arena, request);
    return *run ? GPUPOOL_OK : result;
}

/* Waits on the host until a fence has passed, with the arena open to other threads meanwhile. */
static int gpi_arena_wait(gpupool_arena *arena, gpi_fence *fence) {
    gpupool_result result;
    if (gpi_fence_passed(fence)) return 1;
    if (fence->unrecorded) return 0;
    fence->users++;
    arena->fences.awaited = fence;
    arena->fences.host_waits++;
    gpi_host_unlock(&arena->lock);
    result = gpi_driver_told("cudaEventSynchronize", cudaEventSynchronize(fence->event));
    gpi_host_lock(&arena->lock);
    fence->passed = result == GPUPOOL_OK;
    arena->fences.awaited = NULL;
    gpi_fence_drop(&arena->fences, fence);
    return result == GPUPOOL_OK;
}

/* The fence that has stood longest on this stream, on another, or on a parked block. */
static gpi_fence *gpi_arena_oldest(gpupool_arena *arena, const gpi_request *request) {
    gpi_stream *stream = arena->fences.streams;
    gpi_use *use;
    if (request->known->seals) return request->known->fences[0];
    for (; stream; stream = stream->next)
        if (stream->seals) return stream->fences[0];
    if (!arena->parked) return NULL;
    for (use = (gpi_use *)arena->parked->uses; use; use = use->next)
        if (use->fence && !use->fence->passed) return use->fence;
    return NULL;
}

/* Rung: wait on the host, for one fence after the other, until the request can be met. */
static gpupool_result gpi_arena_rung_wait(gpupool_arena *arena, gpi_request *request,
                                          gpupool_result result, gpi_run **run) {
    if (request->capturing) return result;
    gpi_arena_seal(arena, request->known, request->stream);
    while (result == GPUPOOL_E_OUT_OF_MEMORY) {
        gpi_fence *fence = gpi_arena_oldest(arena, request);
        if (!fence || !gpi_arena_wait(arena, fence)) break;
        gpi_arena_poll(arena);
        result = gpi_arena_rung_move(arena, request, run);
    }
    if (result != GPUPOOL_E_OUT_OF_MEMORY) return result;
    /* what other streams, or destroyed ones, freed without a fence: the whole device */
    if (!gpi_fence_lacks(&arena->fences, &arena->tree)) return result;
    if (gpi_arena_quiesce(arena) != GPUPOOL_OK) return result;
    gpi_arena_poll(arena);
    return gpi_arena_rung_move(arena, request, run);
}

/* Whether the limit alone stands in the way of growth. */
static int gpi_arena_is_limited(const gpupool_arena *arena, const gpi_request *request) {
    return gpi_backing_need(&arena->backing, request->units, request->align_units) >
           gpi_ledger_room(&arena->ledger);
}

/* The ladder from its third rung; `growing` and `lock` are held. */
static gpupool_result gpi_arena_climb(gpupool_arena *arena, gpi_request *request, gpi_run **run) {
    gpupool_result result;
    if (!gpi_tree_prepare(&arena->tree, 3)) return gpi_host_no_memory();
    if (arena->backing.source == GPUPOOL_SOURCE_BYPASS) {
        request->limited = gpi_arena_is_limited(arena, request);
        return gpi_arena_grow(arena, request, 0, arena->ledger.limit_bytes, run);
    }
    /* another thread may have made room since */
    *run = gpi_arena_again(arena, request);
    if (*run) return GPUPOOL_OK;
    /* lanes whose fence has passed */
    if (gpi_arena_poll(arena) && (*run = gpi_arena_again(arena, request)) != NULL)
        return GPUPOOL_OK;
    /* what gpupool_cudaFree freed and no fence covers: it waits as cudaFree would */
    if (gpi_arena_is_for_all(request) && arena->tree.lanes[request->known->young]->runs &&
        gpi_arena_quiesce(arena) == GPUPOOL_OK) {
        gpi_arena_poll(arena);
        if ((*run = gpi_arena_again(arena, request)) != NULL) return GPUPOOL_OK;
    }
    /* more memory from the driver */
    result = gpi_arena_rung_grow(arena, request, run);
    if (result != GPUPOOL_E_OUT_OF_MEMORY) return result;
    request->limited = gpi_arena_is_limited(arena, request);
    arena->hurried = 1024;
    /* another stream's memory, behind a wait on the device */
    *run = gpi_arena_rung_follow(arena, request);
    if (*run) return GPUPOOL_OK;
    /* what is idle moves, or makes room */
    result = gpi_arena_rung_move(arena, request, run);
    if (result != GPUPOOL_E_OUT_OF_MEMORY) return result;
    /* what other streams freed without a fence yet, behind one over all streams */
    result = gpi_arena_rung_ask(arena, request, result, run);
    if (result != GPUPOOL_E_OUT_OF_MEMORY) return result;
    /* the host waits */
    return gpi_arena_rung_wait(arena, request, result, run);
}

/* -- the verdict -- */

static uint64_t gpi_arena_largest(const gpupool_arena *arena, int of_streams) {
    uint64_t largest = gpi_tree_largest(arena->tree.lanes[GPI_LANE_QUIET]);
    uint32_t lane;
    for (lane = GPI_LANE_STREAMS; of_streams && lane < arena->tree.lane_count; lane++)
        if (arena->tree.lanes[lane])
            largest = gpi_ground_max(largest, gpi_tree_largest(arena->tree.lanes[lane]));
    return largest * GPUPOOL_UNIT_BYTES;
}

/* From bytes to units; 0 when there is no such size. */
static uint64_t gpi_arena_units(uint64_t bytes) {
    if (bytes == 0 || bytes > (uint64_t)1 << 48) return 0;
    return gpi_ground_up(bytes, GPUPOOL_UNIT_BYTES) / GPUPOOL_UNIT_BYTES;
}

/* What memory looks like to a request; the lock is held. Pinned memory is not the device's. */
static void gpi_arena_figures(gpupool_arena *arena, uint64_t bytes, uint64_t align_units,
                              gpupool_verdict *verdict) {
    size_t free_bytes = 0, total_bytes = 0;
    uint64_t limit = arena->ledger.limit_bytes, room = gpi_ledger_room(&arena->ledger), need;
    memset(verdict, 0, sizeof *verdict);
    gpi_arena_count_pending(arena);
    verdict->asked_bytes = bytes;
    verdict->limit_bytes = limit == UINT64_MAX ? 0 : limit;
    verdict->granted_bytes = arena->ledger.granted.now;
    verdict->reserved_bytes = arena->ledger.reserved.now;
    verdict->pending_bytes = arena->ledger.pending.now;
    verdict->largest_free_bytes = gpi_arena_largest(arena, 1);
    if (arena->backing.source != GPUPOOL_SOURCE_PINNED &&
        cudaMemGetInfo(&free_bytes, &total_bytes) == cudaSuccess) {
        verdict->device_free_bytes = free_bytes;
        verdict->device_total_bytes = total_bytes;
        room = gpi_ground_min(room, free_bytes);
        if (total_bytes > free_bytes + verdict->reserved_bytes)
            verdict->others_bytes = total_bytes - free_bytes - verdict->reserved_bytes;
    }
    need = gpi_backing_need(&arena->backing, gpi_arena_units(bytes), align_units);
    verdict->missing_bytes = need > room ? need - room : 0;
}

/* -- blocks -- */

/* Makes a held run the caller's block. NULL: the host has no memory, and the run is free again. */
static void *gpi_arena_hand_out(gpupool_arena *arena, gpi_run *run, const gpi_request *request) {
    uint64_t granted = run->units * GPUPOOL_UNIT_BYTES;
    gpi_use *use = NULL;
    if (request->known->capture) { /* the graph keeps it */
        use = (gpi_use *)gpi_host_zeroed(sizeof *use);
        if (use) use->keeper = request->known;
    }
    if ((request->known->capture && !use) || !gpi_tree_prepare(&arena->tree, 1)) {
        GPUPOOL_FREE(use);
        gpi_tree_put(&arena->tree, run, request->known->young, 0);
        gpi_host_no_memory();
        return NULL;
    }
    gpi_tree_bring_alive(&arena->tree, run, (uint32_t)(granted - request->bytes));
    run->uses = use;
    gpi_ledger_add(&arena->ledger.requested, request->bytes);
    gpi_ledger_add(&arena->ledger.granted, granted);
    gpi_ledger_add(&arena->ledger.blocks, 1);
    arena->ledger.allocs++;
    return (void *)(uintptr_t)(run->unit * GPUPOOL_UNIT_BYTES);
}

/* Out of memory: the verdict is made, and the caller's function may free something. Returns whether
   to try again. No lock is held while it runs. */
static int gpi_arena_give_up(gpupool_arena *arena, const gpi_request *request,
                             const gpi_visit *visit) {
    gpupool_verdict verdict;
    gpi_arena_figures(arena, request->bytes, request->align_units, &verdict);
    gpi_limit_judge(&verdict, request->limited, request->capturing);
    gpi_arena_exit_growing(arena, visit);
    if (arena->on_out_of_memory && arena->on_out_of_memory(&verdict, arena->user)) return 1;
    gpi_thread.verdict = verdict;
    gpi_host_fail(GPUPOOL_E_OUT_OF_MEMORY, "arena \"%s\": %s", arena->name, verdict.sentence);
    return 0;
}

/* What rungs one and two did not find. No lock is held. */
static void *gpi_arena_slow(gpupool_arena *arena, gpi_request *request, uintptr_t key) {
    gpupool_result result;
    gpi_visit visit;
    for (;;) {
        gpi_run *run = NULL;
        void *block;
        result = gpi_arena_enter_growing(arena, "gpupool_alloc", &visit);
        if (result != GPUPOOL_OK) break;
        request->capturing = gpi_driver_is_capturing(request->stream);
        arena->captures_seen |= request->capturing;
        request->limited = 0;
        request->known = gpi_fence_find(&arena->fences, key);
        if (!request->known) /* forgotten meanwhile */
            request->known = gpi_fence_know(&arena->fences, &arena->tree, key, 0);
        arena->climbing = 1;
        result = request->known ? gpi_arena_climb(arena, request, &run) : gpi_host_no_memory();
        arena->climbing = 0;
        if (result == GPUPOOL_E_OUT_OF_MEMORY) {
            if (gpi_arena_give_up(arena, request, &visit)) continue;
            break;
        }
        block = result == GPUPOOL_OK ? gpi_arena_hand_out(arena, run, request) : NULL;
        gpi_arena_exit_growing(arena, &visit);
        if (!block) break;
        gpi_host_ok();
        return block;
    }
    gpi_host_lock(&arena->lock);
    arena->ledger.failures++;
    gpi_host_unlock(&arena->lock);
    return NULL;
}

/* The handle is another stream's than the one whose key it has, or nobody's yet: it is made known
   anew. No lock is held. */
static gpupool_result gpi_arena_rename(gpupool_arena *arena, cudaStream_t stream, uintptr_t key) {
    uint64_t identity = GPUPOOL_STREAM_CHECK ? gpi_fence_identity(stream) : 0;
    gpi_stream *known = gpi_fence_enter(&arena->fences, key), *now;
    gpi_host_lock(&arena->lock);
    if (known && known->key == key && identity && known->identity != identity) {
        gpi_arena_drain(arena, known);
        gpi_fence_unname(known);
    }
    now = gpi_fence_find(&arena->fences, key);
    if (!now) now = gpi_fence_know(&arena->fences, &arena->tree, key, identity);
    gpi_host_unlock(&arena->lock);
    if (known) gpi_host_unlock(&known->cache.lock);
    return now ? GPUPOOL_OK : gpi_host_no_memory();
}

/* The stream of a call, with its lock held. NULL with a result. */
static gpi_stream *gpi_arena_visit(gpupool_arena *arena, cudaStream_t stream, uintptr_t key) {
    for (;;) {
        gpi_stream *known = gpi_fence_enter(&arena->fences, key);
        if (known && gpi_fence_is_same(known, stream)) return known;
        if (known) gpi_host_unlock(&known->cache.lock);
        if (gpi_arena_rename(arena, stream, key) != GPUPOOL_OK) return NULL;
    }
}

static gpupool_result gpi_arena_refuse(gpupool_arena *arena, const gpi_request *request,
                                       const char *call, uint64_t alignment) {
    gpi_host_lock(&arena->lock);
    arena->ledger.failures++;
    gpi_host_unlock(&arena->lock);
    if (request->units == 0)
        return gpi_host_fail(GPUPOOL_E_ARGUMENT, "%s: bytes is %" PRIu64 ", and must be from 1 to "
                             "2^48", call, request->bytes);
    return gpi_host_fail(GPUPOOL_E_ARGUMENT, "%s: alignment is %" PRIu64 ", and must be a power of "
                         "two of at most 2^40", call, alignment);
}

/* The cache has no block of this size: rungs one and two. The stream's lock is held, and not on
   return. */
static void *gpi_arena_take_block(gpupool_arena *arena, gpi_request *request, uintptr_t key) {
    gpi_stream *known = request->known;
    gpi_run *run = NULL;
    void *block = NULL;
    int ready;
    gpi_host_lock(&arena->lock);
    ready = gpi_tree_prepare(&arena->tree, 3);
    if (ready && known->key == key && arena->backing.source != GPUPOOL_SOURCE_BYPASS) {
        gpi_cache_fold(&known->cache, &arena->ledger);
        run = gpi_arena_quick(arena, request, GPI_TRIES);
    }
    if (run) block = gpi_arena_hand_out(arena, run, request);
    else if (!ready) arena->ledger.failures++;
    gpi_arena_count_pending(arena);
    gpi_host_unlock(&arena->lock);
    gpi_host_unlock(&known->cache.lock);
    if (!ready) gpi_host_no_memory();
    if (run || !ready) return block;
    return gpi_arena_slow(arena, request, key);
}

static void *gpi_arena_alloc(gpupool_arena *arena, const char *call, uint64_t bytes,
                             uint64_t alignment, cudaStream_t stream, uintptr_t key) {
    gpi_request request;
    gpi_slot *slot;
    if (gpi_arena_begin(arena, call) != GPUPOOL_OK) return NULL;
    request.bytes = bytes;
    request.units = gpi_arena_units(bytes);
    request.align_units = gpi_ground_max(alignment, GPUPOOL_UNIT_BYTES) / GPUPOOL_UNIT_BYTES;
    request.stream = stream;
    request.capturing = request.limited = 0;
    if (request.units == 0 || !gpi_ground_is_power(alignment) || alignment > (uint64_t)1 << 40) {
        gpi_arena_refuse(arena, &request, call, alignment);
        return NULL;
    }
    request.known = gpi_arena_visit(arena, stream, key);
    if (!request.known) return NULL;
    slot = request.align_units == 1
               ? gpi_cache_take(&request.known->cache, request.units, bytes) : NULL;
    if (slot) {
        void *block = (void *)(uintptr_t)(slot->unit * GPUPOOL_UNIT_BYTES);
        gpi_host_unlock(&request.known->cache.lock);
        return block;
    }
    return gpi_arena_take_block(arena, &request, key);
}

/* What a pointer that starts no live block is. Walks a chunk's runs: only mistakes pay for it. */
static gpupool_result gpi_arena_mistake(const gpupool_arena *arena, const char *call,
                                        const void *block) {
    const gpi_backing *backing = &arena->backing;
    uint64_t unit = (uint64_t)(uintptr_t)block / GPUPOOL_UNIT_BYTES;
    const gpi_run *run = NULL;
    const gpi_piece *piece;
    if (gpi_backing_is_mapped(backing)) {
        if (unit - backing->base_unit < backing->space_units) run = backing->first;
    } else {
        for (piece = backing->placed; piece && !run; piece = piece->next)
            if (unit - piece->unit < piece->units) run = piece->first;
    }
    while (run && unit - run->unit >= run->units) run = run->next;
    if (!run)
        return gpi_host_fail(GPUPOOL_E_NOT_OURS, "%s: %p is in no memory of arena \"%s\"", call,
                             block, arena->name);
    if (run->lane == GPI_LANE_LIVE)
        return gpi_host_fail(GPUPOOL_E_INSIDE, "%s: %p is %" PRIu64 " bytes inside the live block "
                             "at %p", call, block,
                             (uint64_t)(uintptr_t)block - run->unit * GPUPOOL_UNIT_BYTES,
                             (void *)(uintptr_t)(run->unit * GPUPOOL_UNIT_BYTES));
    return gpi_host_fail(GPUPOOL_E_DOUBLE_FREE, "%s: %p is in free memory: freed before, or never "
                         "handed out", call, block);
}

/* The live run of a block; NULL with the mistake told. The lock is held. */
static gpi_run *gpi_arena_find(const gpupool_arena *arena, const char *call, const void *block) {
    uint64_t address = (uint64_t)(uintptr_t)block;
    gpi_run *run = NULL;
    if (address % GPUPOOL_UNIT_BYTES == 0)
        run = gpi_tree_live(&arena->tree, address / GPUPOOL_UNIT_BYTES);
    if (!run) gpi_arena_mistake(arena, call, block);
    return run;
}

/* The live run of a block that no cache has any more, with the arena's lock held; NULL, the mistake
   told and no lock held, if it is none. */
static gpi_run *gpi_arena_enter_block(gpupool_arena *arena, const char *call, const void *block) {
    uint64_t unit = (uint64_t)(uintptr_t)block / GPUPOOL_UNIT_BYTES;
    gpi_run *run = NULL;
    if (gpi_arena_begin(arena, call) != GPUPOOL_OK) return NULL;
    while ((uint64_t)(uintptr_t)block % GPUPOOL_UNIT_BYTES == 0) {
        gpi_cache *cache;
        int released = 0;
        gpi_host_lock(&arena->lock);
        run = gpi_tree_live(&arena->tree, unit);
        if (run && run->as.slack_bytes != GPI_CACHED) return run;
        cache = run ? (gpi_cache *)run->uses : NULL;
        gpi_host_unlock(&arena->lock);
        if (!cache) break;
        gpi_host_lock(&cache->lock);
        gpi_host_lock(&arena->lock);
        released = gpi_cache_release(cache, unit);
        if (released) gpi_cache_fold(cache, &arena->ledger);
        gpi_host_unlock(&arena->lock);
        gpi_host_unlock(&cache->lock);
        if (!released) break;
    }
    if (gpi_arena_enter(arena, call) != GPUPOOL_OK) return NULL;
    run = gpi_arena_find(arena, call, block);
    if (!run) gpi_host_unlock(&arena->lock);
    return run;
}

/* A fence of this stream's work so far joins the block's uses, in place of the stream's earlier
   one, which it covers. The driver is entered. */
static gpupool_result gpi_arena_fence_use(gpupool_arena *arena, gpi_run *run, cudaStream_t stream) {
    uint64_t identity;
    gpupool_result result;
    gpi_fence *fence;
    gpi_use *use = (gpi_use *)run->uses;
    if (gpi_driver_is_capturing(stream))
        return gpi_host_fail(GPUPOOL_E_CAPTURING, "a capturing stream has no fence outside its "
                             "graph: keep the block until the graph is destroyed");
    result = gpi_fence_record(&arena->fences, stream, &fence);
    if (result != GPUPOOL_OK) return result;
    identity = gpi_fence_identity(stream);
    while (use && (identity == 0 || use->identity != identity)) use = use->next;
    if (use) {
        gpi_fence_drop(&arena->fences, use->fence);
    } else {
        use = (gpi_use *)gpi_host_zeroed(sizeof *use);
        if (!use) {
            gpi_fence_drop(&arena->fences, fence);
            return gpi_host_no_memory();
        }
        use->identity = identity;
        use->next = (gpi_use *)run->uses;
        run->uses = use;
    }
    use->fence = fence;
    return GPUPOOL_OK;
}

static gpupool_result gpi_arena_add_use(gpupool_arena *arena, gpi_run *run, cudaStream_t stream) {
    gpi_visit visit;
    gpupool_result result = gpi_driver_enter(arena->backing.driver.device, &visit);
    if (result != GPUPOOL_OK) return result;
    result = gpi_arena_outlived(arena, "a use of a block"); /* and so have its events */
    if (result == GPUPOOL_OK) result = gpi_arena_fence_use(arena, run, stream);
    gpi_driver_leave(&visit);
    return result;
}

/* With several streams about, a stream's frees get a fence now and then while the stream is known
   to be alive, so that others can have the memory: every 64th, or when they add up to a 1024th of
   what is reserved; each, where memory was short of late. */
static void gpi_arena_seal_at_free(gpupool_arena *arena, gpi_stream *known, cudaStream_t stream) {
    uint64_t share = gpi_ground_max(arena->ledger.reserved.now / 1024, 1u << 20);
    gpi_visit visit;
    int each = arena->hurried || known->handle == GPI_KEY_ANY;
    if (arena->fences.stream_count < 2 && known->handle != GPI_KEY_ANY) return;
    if (!each && known->frees < 64 && known->freed_units * GPUPOOL_UNIT_BYTES < share) return;
    if (arena->hurried) arena->hurried--;
    if (gpi_driver_enter(arena->backing.driver.device, &visit) != GPUPOOL_OK) return;
    if (gpi_arena_outlived(arena, "gpupool_free") == GPUPOOL_OK)
        gpi_arena_seal(arena, known, stream);
    gpi_driver_leave(&visit);
}

static void gpi_arena_count_free(gpupool_arena *arena, uint64_t units, uint32_t slack_bytes) {
    uint64_t granted = units * GPUPOOL_UNIT_BYTES;
    gpi_ledger_sub(&arena->ledger.requested, granted - slack_bytes);
    gpi_ledger_sub(&arena->ledger.granted, granted);
    gpi_ledger_sub(&arena->ledger.blocks, 1);
    arena->ledger.frees++;
}

/* BYPASS: the block is a chunk of its own, and cudaFree itself waits for work in flight. */
static gpupool_result gpi_arena_free_bypass(gpupool_arena *arena, void *block) {
    uint64_t unit = (uint64_t)(uintptr_t)block / GPUPOOL_UNIT_BYTES;
    gpi_piece *piece;
    gpupool_result result;
    gpi_visit visit;
    gpi_run *run;
    result = gpi_arena_enter_growing(arena, "gpupool_free", &visit);
    if (result != GPUPOOL_OK) return result;
    run = gpi_arena_find(arena, "gpupool_free", block);
    if (!run) {
        result = gpi_thread.result;
    } else if (!gpi_tree_prepare(&arena->tree, 3)) {
        result = gpi_host_no_memory();
    } else {
        uint64_t units = run->units;
        uint32_t slack_bytes = run->as.slack_bytes;
        for (piece = arena->backing.placed; unit - piece->unit >= piece->units;)
            piece = piece->next;
        gpi_tree_lay_down(&arena->tree, run);
        gpi_tree_put(&arena->tree, run, GPI_LANE_QUIET, 0); /* one with what alignment left over */
        gpi_tree_unfile(&arena->tree, piece->first);
        gpi_arena_count_free(arena, units, slack_bytes);
        result = gpi_backing_drop_chunk(&arena->backing, &arena->tree, piece);
        /* still the caller's, and not counted as had again; the arena's, quiet, where the host has
           no memory for the records */
        if (result != GPUPOOL_OK && gpi_tree_prepare(&arena->tree, 3)) {
            run = gpi_tree_take(&arena->tree, piece->first, unit, units);
            gpi_tree_bring_alive(&arena->tree, run, slack_bytes);
            arena->ledger.requested.now += units * GPUPOOL_UNIT_BYTES - slack_bytes;
            arena->ledger.granted.now += units * GPUPOOL_UNIT_BYTES;
            arena->ledger.blocks.now++;
            arena->ledger.frees--;
        }
    }
    gpi_arena_exit_growing(arena, &visit);
    return result;
}

/* A block that others may still be at work on, this stream too, until its fence has passed; or one
   that a graph keeps. */
static gpupool_result gpi_arena_free_used(gpupool_arena *arena, gpi_run *run, gpi_stream *known,
                                          cudaStream_t stream) {
    gpi_stream *keeper = gpi_arena_keeper(run);
    gpupool_result result = GPUPOOL_OK;
    if (known->capture && !keeper) {
        /* kept, since the graph may use it; not for use inside, since a replay is no later work of
           this stream, which may still be at it */
        gpi_use *use = (gpi_use *)gpi_host_zeroed(sizeof *use);
        if (!use) return gpi_host_no_memory();
        use->keeper = keeper = known->early;
        use->next = (gpi_use *)run->uses;
        run->uses = use;
    }
    if (!keeper || keeper->capture != known->capture)
        result = gpi_arena_add_use(arena, run, stream);
    /* a capturing stream has no fence, but what a graph keeps nobody else gets */
    if (result != GPUPOOL_OK && !(keeper && result == GPUPOOL_E_CAPTURING)) return result;
    gpi_tree_lay_down(&arena->tree, run);
    if (gpi_arena_has_fence(run)) {
        gpi_arena_park(arena, run);
    } else {
        gpi_arena_drop_uses(arena, (gpi_use *)run->uses);
        run->uses = NULL;
        gpi_tree_put(&arena->tree, run, keeper ? keeper->young : GPI_LANE_QUIET, 0);
    }
    return GPUPOOL_OK;
}

/* How much free memory a stream's cache may keep from merging: a 256th of what is reserved. */
static uint64_t gpi_arena_cache_units(const gpupool_arena *arena) {
    return gpi_ground_max(arena->ledger.reserved.now / 256, 1u << 20) / GPUPOOL_UNIT_BYTES;
}

/* Evicts until so many units more may be free in the stream's cache; both locks are held. */
static void gpi_arena_bound_cache(gpupool_arena *arena, gpi_stream *known, uint64_t units) {
    gpi_cache *cache = &known->cache;
    cache->most_units = gpi_arena_cache_units(arena);
    while (cache->free_units && cache->free_units + units > cache->most_units) {
        gpi_run *evicted = gpi_cache_evict(cache);
        if (evicted) gpi_arena_put(arena, known, evicted);
    }
}

/* Frees a live block that no cache has; the arena's lock is held, and the stream's if `cached`. */
static gpupool_result gpi_arena_free(gpupool_arena *arena, gpi_run *run, gpi_stream *known,
                                     cudaStream_t stream, int cached) {
    uint64_t units = run->units;
    uint32_t slack_bytes = run->as.slack_bytes;
    gpupool_result result = GPUPOOL_OK;
    if (run->uses || known->capture) {
        result = gpi_arena_free_used(arena, run, known, stream);
        if (result != GPUPOOL_OK) return result;
    } else if (cached && units <= gpi_arena_cache_units(arena) / 4 && !arena->climbing &&
               !arena->hurried && known->handle != GPI_KEY_ANY) {
        gpi_arena_bound_cache(arena, known, units);
        while (known->cache.empty == GPI_NO_SLOT) {
            gpi_run *evicted = gpi_cache_evict(&known->cache);
            if (evicted) gpi_arena_put(arena, known, evicted);
        }
        gpi_cache_admit(&known->cache, run);
    } else {
        gpi_arena_put(arena, known, run);
    }
    gpi_arena_count_free(arena, units, slack_bytes);
    gpi_cache_fold(&known->cache, &arena->ledger);
    if (known->frees) gpi_arena_seal_at_free(arena, known, stream);
    return gpi_host_ok(); /* whatever became of the fence */
}

/* A pointer that the caches and the tree do not simply find: all is put in order first, so that a
   mistake is told as what it is. */
static gpupool_result gpi_arena_free_slow(gpupool_arena *arena, void *block, cudaStream_t stream,
                                          uintptr_t key) {
    gpupool_result result = gpi_arena_enter(arena, "gpupool_free");
    gpi_stream *known = NULL;
    gpi_run *run;
    if (result != GPUPOOL_OK) return result;
    run = gpi_arena_find(arena, "gpupool_free", block);
    if (!run) result = gpi_thread.result;
    if (run) known = gpi_fence_find(&arena->fences, key);
    if (run && !known)
        known = gpi_fence_know(&arena->fences, &arena->tree, key, 0);
    if (run) result = known ? gpi_arena_free(arena, run, known, stream, 0) : gpi_host_no_memory();
    gpi_arena_exit(arena);
    return result;
}

/* More came back to a cache than it may keep, since others joined it meanwhile. The stream's lock
   is held. */
static void gpi_arena_overflow(gpupool_arena *arena, gpi_stream *known, cudaStream_t stream) {
    gpi_host_lock(&arena->lock);
    gpi_arena_bound_cache(arena, known, 0);
    gpi_cache_fold(&known->cache, &arena->ledger);
    gpi_arena_count_pending(arena);
    if (known->frees) gpi_arena_seal_at_free(arena, known, stream);
    gpi_host_unlock(&arena->lock);
    gpi_host_ok();
}

static gpupool_result gpi_arena_give(gpupool_arena *arena, void *block, cudaStream_t stream,
                                     uintptr_t key) {
    uint64_t unit = (uint64_t)(uintptr_t)block / GPUPOOL_UNIT_BYTES;
    gpupool_result result = gpi_arena_begin(arena, "gpupool_free");
    gpi_stream *known;
    gpi_run *run = NULL;
    if (result != GPUPOOL_OK || !block) return result;
    if (arena->backing.source == GPUPOOL_SOURCE_BYPASS)
        return gpi_arena_free_bypass(arena, block);
    known = gpi_arena_visit(arena, stream, key);
    if (!known) return gpi_thread.result;
    if ((uint64_t)(uintptr_t)block % GPUPOOL_UNIT_BYTES == 0) {
        if (gpi_cache_give(&known->cache, unit)) {
            if (known->cache.free_units > known->cache.most_units)
                gpi_arena_overflow(arena, known, stream);
            gpi_host_unlock(&known->cache.lock);
            return GPUPOOL_OK;
        }
        gpi_host_lock(&arena->lock);
        run = known->key == key ? gpi_tree_live(&arena->tree, unit) : NULL;
        if (run && run->as.slack_bytes == GPI_CACHED) run = NULL;
        if (run) result = gpi_arena_free(arena, run, known, stream, 1);
        gpi_arena_count_pending(arena);
        gpi_host_unlock(&arena->lock);
    }
    gpi_host_unlock(&known->cache.lock);
    return run ? result : gpi_arena_free_slow(arena, block, stream, key);
}

/* -- making an arena -- */

static gpupool_result gpi_arena_validate(const gpupool_arena_config *config) {
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
    if (config->chunk_bytes > (uint64_t)1 << 48 || config->reserve_bytes > (uint64_t)1 << 48)
        return gpi_host_fail(GPUPOOL_E_ARGUMENT, "gpupool_arena_create: config.chunk_bytes and "
                             "config.reserve_bytes must be at most 2^48");
    result = gpi_driver_told("cudaGetDeviceCount", cudaGetDeviceCount(&count));
    if (result != GPUPOOL_OK) {
        cudaGetLastError();
        return result;
    }
    if (config->device < GPUPOOL_DEVICE_CURRENT || config->device >= count)
        return gpi_host_fail(GPUPOOL_E_ARGUMENT, "gpupool_arena_create: config.device is %d, and "
                             "there are %d devices", config->device, count);
    return GPUPOOL_OK;
}

/* The limit by precedence: config.limit_text, config.limit_bytes, GPUPOOL_LIMIT_<device> and
   GPUPOOL_LIMIT in the environment, the macro GPUPOOL_LIMIT, none. */
static gpupool_result gpi_arena_first_limit(gpupool_arena *arena,
                                            const gpupool_arena_config *config) {
    char variable[32];
    const char *where = "config.limit_text", *text = config->limit_text;
    size_t free_bytes = 0, total_bytes = 0;
    gpupool_result result;
    arena->ledger.limit_bytes = config->limit_bytes ? config->limit_bytes : UINT64_MAX;
    if (!text && config->limit_bytes) return GPUPOOL_OK;
    if (!text) {
        snprintf(variable, sizeof variable, "GPUPOOL_LIMIT_%d", arena->backing.driver.device);
        where = variable;
        text = getenv(variable);
    }
    if (!text) {
        where = "environment variable GPUPOOL_LIMIT";
        text = getenv("GPUPOOL_LIMIT");
    }
    if (!text && sizeof(GPUPOOL_LIMIT) > 1) {
        where = "macro GPUPOOL_LIMIT";
        text = GPUPOOL_LIMIT;
    }
    if (!text) return GPUPOOL_OK;
    result = gpi_driver_told("cudaMemGetInfo", cudaMemGetInfo(&free_bytes, &total_bytes));
    if (result != GPUPOOL_OK) return result;
    return gpi_limit_parse(where, text, total_bytes, free_bytes, &arena->ledger.limit_bytes);
}

/* reserve_bytes: got now, as quiet memory. The lock is held. */
static gpupool_result gpi_arena_reserve(gpupool_arena *arena, uint64_t bytes) {
    gpi_request request;
    gpi_stream *known;
    gpi_run *run;
    gpupool_result result;
    if (bytes == 0 || arena->backing.source == GPUPOOL_SOURCE_BYPASS) return GPUPOOL_OK;
    bytes = gpi_ground_up(bytes, arena->backing.driver.granule_bytes);
    known = gpi_fence_find(&arena->fences, GPI_KEY_LEGACY);
    if (!known) known = gpi_fence_know(&arena->fences, &arena->tree, GPI_KEY_LEGACY, 0);
    if (!known) return gpi_host_no_memory();
    memset(&request, 0, sizeof request);
    request.units = bytes / GPUPOOL_UNIT_BYTES;
    request.align_units = 1;
    request.known = known;
    result = gpi_arena_grow(arena, &request, UINT64_MAX, arena->ledger.limit_bytes, &run);
    if (result == GPUPOOL_OK) gpi_tree_put(&arena->tree, run, GPI_LANE_QUIET, 0);
    gpi_fence_forget(&arena->fences, &arena->tree, known, 1);
    if (result == GPUPOOL_E_OUT_OF_MEMORY) {
        gpupool_verdict *verdict = &gpi_thread.verdict;
        gpi_arena_figures(arena, bytes, 1, verdict);
        gpi_limit_judge(verdict, bytes > arena->ledger.limit_bytes, 0);
        gpi_host_fail(result, "config.reserve_bytes: %s", verdict->sentence);
    }
    return result;
}

static gpupool_result gpi_arena_open(gpupool_arena *arena, const gpupool_arena_config *config) {
    gpi_backing *backing = &arena->backing;
    gpupool_result result = gpi_driver_open(&backing->driver, backing->driver.device);
    if (result != GPUPOOL_OK) return result;
    backing->granule_units = backing->driver.granule_bytes / GPUPOOL_UNIT_BYTES;
    backing->source = config->source;
    if (backing->source == GPUPOOL_SOURCE_AUTO)
        backing->source = backing->driver.mapped ? GPUPOOL_SOURCE_MAPPED : GPUPOOL_SOURCE_DEVICE;
    if (gpi_backing_is_mapped(backing) && !backing->driver.mapped)
        return gpi_host_fail(GPUPOOL_E_UNSUPPORTED,
                             "GPUPOOL_SOURCE_MAPPED: device %d or this build "
                             "has no virtual memory management",
                             backing->driver.device);
    backing->chunk_alloc = config->chunk_alloc;
    backing->chunk_free = config->chunk_free;
    backing->chunk_bytes = config->chunk_bytes ? config->chunk_bytes : GPUPOOL_CHUNK_BYTES;
    backing->user = arena->user = config->user;
    arena->on_out_of_memory = config->on_out_of_memory;
    arena->fences.driver = &backing->driver;
    arena->keep_bytes = config->reserve_bytes;
    snprintf(arena->name, sizeof arena->name, "%s", config->name ? config->name : "arena");
    result = gpi_arena_first_limit(arena, config);
    if (result == GPUPOOL_OK && !gpi_tree_open(&arena->tree)) result = gpi_host_no_memory();
    if (result == GPUPOOL_OK && gpi_backing_is_mapped(backing))
        result = gpi_backing_open_space(backing, &arena->tree);
    gpi_host_lock(&arena->lock);
    if (result == GPUPOOL_OK) result = gpi_arena_reserve(arena, config->reserve_bytes);
    gpi_host_unlock(&arena->lock);
    return result;
}

static void gpi_arena_forget(gpupool_arena *arena) { /* the host's side only */
    gpi_fence_close(&arena->fences);
    gpi_tree_close(&arena->tree);
    GPUPOOL_FREE(arena);
}

/* Gives everything back, and frees the arena once that has worked. What was freed may still be in
   use by queued work, which unmapping would not wait for. The lock is held. */
static gpupool_result gpi_arena_close(gpupool_arena *arena) {
    gpupool_result result = GPUPOOL_OK;
    if (arena->tree.pending_units || arena->parked) {
        gpi_host_unlock(&arena->lock);
        result = gpi_driver_wait(&arena->backing.driver, gpi_driver_synchronize_here);
        gpi_host_lock(&arena->lock);
        if (result != GPUPOOL_OK) return result;
        while (arena->parked) gpi_arena_unpark(arena, NULL, arena->parked, GPI_LANE_QUIET);
        gpi_fence_all_passed(&arena->fences, &arena->tree);
    }
    result = gpi_backing_trim(&arena->backing, &arena->tree, 0, 1);
    if (result == GPUPOOL_OK) result = gpi_fence_trim(&arena->fences);
    if (result == GPUPOOL_OK) result = gpi_backing_close(&arena->backing);
    if (result == GPUPOOL_OK) gpi_arena_forget(arena);
    return result;
}

/* Adds the arena to those of the process, as its device's default if `is_default`. */
static void gpi_arena_list(gpupool_arena *arena, int is_default) {
    int device = arena->backing.driver.device;
    gpi_host_lock(&gpi_process.arenas_lock);
    arena->next = gpi_process.arenas;
    gpi_process.arenas = arena;
    gpi_host_lock(&gpi_process.lock);
    if (is_default && !gpi_process.default_arenas[device])
        gpi_process.default_arenas[device] = arena;
    gpi_host_unlock(&gpi_process.lock);
    gpi_host_unlock(&gpi_process.arenas_lock);
}

/* Returns whether it was its device's default. */
static int gpi_arena_unlist(gpupool_arena *arena) {
    gpupool_arena **link = &gpi_process.arenas;
    int device = arena->backing.driver.device, is_default;
    gpi_host_lock(&gpi_process.arenas_lock);
    while (*link != arena) link = &(*link)->next;
    *link = arena->next;
    gpi_host_lock(&gpi_process.lock);
    is_default = device < GPI_DEVICES_MAX && gpi_process.default_arenas[device] == arena;
    if (is_default) gpi_process.default_arenas[device] = NULL;
    gpi_host_unlock(&gpi_process.lock);
    gpi_host_unlock(&gpi_process.arenas_lock);
    return is_default;
}

/* Where an arena was made, CUDA was at work. */
static gpupool_result gpi_arena_may_open(const char *call) {
    if (gpi_process.forks == 0) return GPUPOOL_OK;
    return gpi_host_fail(GPUPOOL_E_FORKED, "%s: this process is a fork of one that made an arena, "
                         "and has no CUDA context", call);
}

gpupool_result gpupool_arena_create(gpupool_arena **out, const gpupool_arena_config *given) {
    gpupool_arena_config config;
    gpupool_arena *arena;
    gpupool_result result;
    gpi_visit visit;
    if (!out) return gpi_host_fail(GPUPOOL_E_ARGUMENT, "gpupool_arena_create: arena is NULL");
    *out = NULL;
    result = gpi_arena_may_open("gpupool_arena_create");
    if (result != GPUPOOL_OK) return result;
    memset(&config, 0, sizeof config);
    if (given) config = *given;
    else config.device = GPUPOOL_DEVICE_CURRENT;
    result = gpi_arena_validate(&config);
    if (result != GPUPOOL_OK) return result;
    gpi_host_watch_forks();
    if (config.device == GPUPOOL_DEVICE_CURRENT)
        result = gpi_driver_told("cudaGetDevice", cudaGetDevice(&config.device));
    if (result != GPUPOOL_OK) {
        cudaGetLastError();
        return result;
    }
    arena = (gpupool_arena *)gpi_host_zeroed(sizeof *arena);
    if (!arena) return gpi_host_no_memory();
    arena->forks = gpi_process.forks;
    arena->backing.driver.device = config.device;
    arena->backing.lock = &arena->lock;
    arena->backing.ledger = &arena->ledger;
    result = gpi_driver_enter(config.device, &visit);
    if (result != GPUPOOL_OK) {
        GPUPOOL_FREE(arena);
        return result;
    }
    result = gpi_arena_open(arena, &config);
    if (result != GPUPOOL_OK) {
        struct gpi_thread why = gpi_thread; /* of the failure, not of the cleaning up */
        gpi_host_lock(&arena->lock);
        if (gpi_arena_close(arena) != GPUPOOL_OK) gpi_arena_forget(arena);
        gpi_thread = why;
    } else {
        gpi_arena_list(arena, 0);
        *out = arena;
    }
    gpi_driver_leave(&visit);
    return result == GPUPOOL_OK ? gpi_host_ok() : result;
}

static gpupool_result gpi_arena_unused(const gpupool_arena *arena) {
    if (arena->tree.live_runs)
        return gpi_host_fail(GPUPOOL_E_IN_USE, "gpupool_arena_destroy: arena \"%s\" still has "
                             "%" PRIu64 " live blocks of %" PRIu64 " bytes in all", arena->name,
                             arena->tree.live_runs, arena->ledger.requested.now);
    if (arena->captures)
        return gpi_host_fail(GPUPOOL_E_IN_USE, "gpupool_arena_destroy: arena \"%s\" still has "
                             "%" PRIu64 " captures that are not released", arena->name,
                             arena->captures);
    return GPUPOOL_OK;
}

/* All that the host has for fences and captures still in use. */
static void gpi_arena_abandon(gpupool_arena *arena) {
    gpi_stream *stream = arena->fences.streams;
    gpi_run *run = arena->parked;
    uint64_t bucket;
    for (; run; run = run->list_next) gpi_arena_drop_uses(arena, (gpi_use *)run->uses);
    for (bucket = 0; bucket < arena->tree.bucket_count; bucket++)
        for (run = *gpi_tree_head(&arena->tree, bucket); run; run = run->list_next)
            if (run->as.slack_bytes != GPI_CACHED)
                gpi_arena_drop_uses(arena, (gpi_use *)run->uses);
    for (; stream; stream = stream->next) {
        while (stream->seals) gpi_fence_drop(&arena->fences, stream->fences[--stream->seals]);
        if (stream->early && stream->key) gpi_host_count_scope(-1);
        if (stream->early) GPUPOOL_FREE(stream->capture);
    }
}

/* All is given back and the arena is no more, or it is as before. */
static gpupool_result gpi_arena_end(gpupool_arena *arena) {
    gpi_visit visit;
    gpupool_result result = gpi_driver_enter(arena->backing.driver.device, &visit);
    if (result != GPUPOOL_OK) return result;
    if (gpi_driver_was_reset(&arena->backing.driver)) { /* all is gone already */
        gpi_arena_abandon(arena);
        gpi_backing_forget(&arena->backing);
        gpi_arena_forget(arena);
        gpi_driver_leave(&visit);
        return GPUPOOL_OK;
    }
    gpi_host_lock(&arena->growing);
    gpi_arena_lock(arena, 0);
    result = gpi_arena_unused(arena);
    if (result == GPUPOOL_OK) result = gpi_arena_close(arena);
    if (result == GPUPOOL_OK) {
        gpi_driver_leave(&visit);
        return GPUPOOL_OK;
    }
    gpi_arena_exit_growing(arena, &visit);
    return result;
}

gpupool_result gpupool_arena_destroy(gpupool_arena *arena) {
    int is_default;
    gpupool_result result = gpi_arena_exists(arena, "gpupool_arena_destroy");
    if (result != GPUPOOL_OK) return result;
    is_default = gpi_arena_unlist(arena);
    result = gpi_arena_end(arena);
    if (result == GPUPOOL_OK) return gpi_host_ok();
    gpi_arena_list(arena, is_default);
    return result;
}

gpupool_arena *gpupool_default_arena(int device) {
    gpupool_arena *arena = NULL, *other = NULL;
    gpupool_arena_config config;
    memset(&config, 0, sizeof config);
    if (gpi_arena_may_open("gpupool_default_arena") != GPUPOOL_OK) return NULL;
    if (device == GPUPOOL_DEVICE_CURRENT &&
        gpi_driver_told("cudaGetDevice", cudaGetDevice(&device)) != GPUPOOL_OK) {
        cudaGetLastError();
        return NULL;
    }
    if (device < 0 || device >= GPI_DEVICES_MAX) {
        gpi_host_fail(GPUPOOL_E_ARGUMENT, "gpupool_default_arena: device is %d", device);
        return NULL;
    }
    gpi_host_lock(&gpi_process.lock);
    arena = gpi_process.default_arenas[device];
    gpi_host_unlock(&gpi_process.lock);
    if (arena) {
        gpi_host_ok();
        return arena;
    }
    config.device = device;
    config.name = "default";
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

/* -- blocks, in public -- */

/* CUDA takes NULL for the legacy stream or for the thread's own, by how this file is compiled; to
   gpupool it is the legacy one, for callers that want the other say so (GPI_STREAM). */
static cudaStream_t gpi_arena_stream(cudaStream_t stream) {
    return stream ? stream : cudaStreamLegacy;
}

void *gpupool_alloc(gpupool_arena *arena, size_t bytes, cudaStream_t stream) {
    return gpi_arena_alloc(arena, "gpupool_alloc", bytes, GPUPOOL_UNIT_BYTES,
                           gpi_arena_stream(stream), gpi_fence_key(stream));
}

void *gpupool_alloc_aligned(gpupool_arena *arena, size_t bytes, size_t alignment,
                            cudaStream_t stream) {
    return gpi_arena_alloc(arena, "gpupool_alloc_aligned", bytes, alignment,
                           gpi_arena_stream(stream), gpi_fence_key(stream));
}

void *gpupool_zalloc(gpupool_arena *arena, size_t bytes, cudaStream_t stream) {
    gpupool_result result = gpi_arena_exists(arena, "gpupool_zalloc");
    gpi_visit visit;
    void *block;
    if (result != GPUPOOL_OK) return NULL;
    if (gpi_driver_enter(arena->backing.driver.device, &visit) != GPUPOOL_OK) return NULL;
    if (gpi_arena_outlived(arena, "gpupool_zalloc") != GPUPOOL_OK) {
        gpi_driver_leave(&visit);
        return NULL;
    }
    stream = gpi_arena_stream(stream);
    block = gpi_arena_alloc(arena, "gpupool_zalloc", bytes, GPUPOOL_UNIT_BYTES, stream,
                            gpi_fence_key(stream));
    if (block) {
        result = gpi_driver_told("cudaMemsetAsync", cudaMemsetAsync(block, 0, bytes, stream));
        if (result != GPUPOOL_OK) {
            struct gpi_thread why = gpi_thread;
            gpupool_free(arena, block, stream);
            gpi_thread = why;
            block = NULL;
        }
    }
    gpi_driver_leave(&visit);
    return block;
}

gpupool_result gpupool_free(gpupool_arena *arena, void *block, cudaStream_t stream) {
    return gpi_arena_give(arena, block, gpi_arena_stream(stream), gpi_fence_key(stream));
}

gpupool_result gpupool_record_use(gpupool_arena *arena, const void *block, cudaStream_t stream) {
    gpi_run *run = gpi_arena_enter_block(arena, "gpupool_record_use", block);
    gpupool_result result = GPUPOOL_OK;
    if (!run) return gpi_thread.result;
    if (arena->backing.source != GPUPOOL_SOURCE_BYPASS)
        result = gpi_arena_add_use(arena, run, gpi_arena_stream(stream));
    gpi_host_unlock(&arena->lock);
    return result;
}

size_t gpupool_size(gpupool_arena *arena, const void *block) {
    gpi_run *run = gpi_arena_enter_block(arena, "gpupool_size", block);
    size_t bytes;
    if (!run) return 0;
    bytes = (size_t)(run->units * GPUPOOL_UNIT_BYTES - run->as.slack_bytes);
    gpi_host_unlock(&arena->lock);
    return bytes;
}

/* Lanes and parked blocks whose work is done turn quiet, whichever stream they belong to. */
static void gpi_arena_settle(gpupool_arena *arena) {
    gpi_arena_seal_all(arena);
    gpi_arena_poll(arena);
    gpi_host_unlock(&arena->lock);
    gpi_arena_lock(arena, 1);
}

gpupool_result gpupool_trim(gpupool_arena *arena, size_t keep_bytes, size_t *released_bytes) {
    gpi_visit visit;
    uint64_t before;
    gpupool_result result = gpi_arena_enter_growing(arena, "gpupool_trim", &visit);
    if (released_bytes) *released_bytes = 0;
    if (result != GPUPOOL_OK) return result;
    gpi_arena_settle(arena);
    before = arena->ledger.reserved.now;
    result = gpi_backing_trim(&arena->backing, &arena->tree,
                              gpi_ground_max(keep_bytes, arena->keep_bytes), 0);
    if (released_bytes) *released_bytes = (size_t)(before - arena->ledger.reserved.now);
    gpi_arena_exit_growing(arena, &visit);
    return result == GPUPOOL_OK ? gpi_host_ok() : result;
}

gpupool_result gpupool_stream_retired(gpupool_arena *arena, cudaStream_t stream) {
    gpi_visit visit;
    gpi_stream *known;
    gpupool_result result = gpi_arena_enter_growing(arena, "gpupool_stream_retired", &visit);
    if (result != GPUPOOL_OK) return result;
    known = gpi_fence_find(&arena->fences, gpi_fence_key(stream));
    if (known) {
        gpi_stream *outer = known->capture ? known->capture->outer : NULL;
        gpi_arena_seal(arena, outer ? outer : known, gpi_arena_stream(stream));
        if (known->capture) gpi_host_count_scope(-1); /* it ends here, */
        if (outer) { /* and what it set aside is nobody's */
            outer->set_aside = 0;
            known->capture->outer = NULL;
        }
        gpi_arena_unname(arena, known);
        gpi_arena_poll(arena);
    }
    gpi_arena_exit_growing(arena, &visit);
    return gpi_host_ok();
}

cudaError_t gpupool_cudaStreamDestroy(cudaStream_t stream) {
    gpupool_arena *arena;
    gpi_host_lock(&gpi_process.arenas_lock);
    for (arena = gpi_process.arenas; arena && stream; arena = arena->next)
        if (gpi_fence_find(&arena->fences, gpi_fence_key(stream)))
            gpupool_stream_retired(arena, stream);
    gpi_host_unlock(&gpi_process.arenas_lock);
    return cudaStreamDestroy(stream);
}

gpupool_result gpupool_allow_peer(gpupool_arena *arena, int device) {
    gpi_visit visit;
    const gpi_driver *driver;
    gpupool_source source;
    gpupool_result result = gpi_arena_enter_growing(arena, "gpupool_allow_peer", &visit);
    if (result != GPUPOOL_OK) return result;
    driver = &arena->backing.driver;
    source = arena->backing.source;
    if (device < 0 || device >= GPI_DEVICES_MAX || device == driver->device)
        result = gpi_host_fail(GPUPOOL_E_ARGUMENT, "gpupool_allow_peer: device is %d, and must be "
                               "another one than the arena's", device);
    if (result == GPUPOOL_OK && source != GPUPOOL_SOURCE_PINNED)
        result = gpi_driver_can_peer(driver, device);
    if (result == GPUPOOL_OK) result = gpi_backing_allow_peer(&arena->backing, device);
    gpi_arena_exit_growing(arena, &visit);
    return result == GPUPOOL_OK ? gpi_host_ok() : result;
}

/* -- graph capture -- */

gpupool_result gpupool_capture_begin(gpupool_arena *arena, cudaStream_t stream,
                                     gpupool_capture **out) {
    gpi_visit visit;
    gpupool_capture *capture;
    gpi_stream *early = NULL;
    gpupool_result result;
    if (!out)
        return gpi_host_fail(GPUPOOL_E_ARGUMENT, "gpupool_capture_begin: capture is NULL");
    *out = NULL;
    result = gpi_arena_enter_growing(arena, "gpupool_capture_begin", &visit);
    if (result != GPUPOOL_OK) return result;
    capture = (gpupool_capture *)gpi_host_zeroed(sizeof *capture);
    if (!capture) result = gpi_host_no_memory();
    if (capture) {
        capture->arena = arena;
        capture->key = gpi_fence_key(stream);
        capture->outer = gpi_fence_find(&arena->fences, capture->key);
        if (capture->outer && capture->outer->capture)
            result = gpi_host_fail(GPUPOOL_E_ARGUMENT, "gpupool_capture_begin: the stream is in a "
                                   "scope already");
    }
    if (result == GPUPOOL_OK && capture->outer) {
        capture->outer->set_aside = 1;
        gpi_arena_unname(arena, capture->outer);
    }
    if (result == GPUPOOL_OK) {
        early = gpi_fence_know(&arena->fences, &arena->tree, capture->key, 0);
        if (early) {
            gpi_fence_unname(early);
            early->capture = capture;
            capture->stream = gpi_fence_know(&arena->fences, &arena->tree, capture->key, 0);
        }
        if (!capture->stream) result = gpi_host_no_memory();
        if (!capture->stream && early) early->capture = NULL;
        if (!capture->stream && capture->outer) gpi_fence_rename(capture->outer);
    }
    if (result == GPUPOOL_OK) {
        capture->stream->capture = capture;
        capture->stream->early = early;
        gpi_host_count_scope(1);
        arena->captures_seen = 1;
        arena->captures++;
        *out = capture;
    } else {
        GPUPOOL_FREE(capture);
    }
    gpi_arena_exit_growing(arena, &visit);
    return result == GPUPOOL_OK ? gpi_host_ok() : result;
}

static void gpi_arena_end_capture(gpupool_arena *arena, gpupool_capture *capture) {
    if (capture->stream->key == 0) return;
    gpi_host_count_scope(-1);
    gpi_arena_unname(arena, capture->stream);
    if (capture->outer) gpi_fence_rename(capture->outer);
    capture->outer = NULL;
}

gpupool_result gpupool_capture_end(gpupool_capture *capture) {
    gpi_visit visit;
    gpupool_result result;
    if (!capture)
        return gpi_host_fail(GPUPOOL_E_ARGUMENT, "gpupool_capture_end: capture is NULL");
    result = gpi_arena_enter_growing(capture->arena, "gpupool_capture_end", &visit);
    if (result != GPUPOOL_OK) return result;
    gpi_arena_end_capture(capture->arena, capture);
    gpi_arena_exit_growing(capture->arena, &visit);
    return gpi_host_ok();
}

/* Takes the graph out of a block's uses. */
static void gpi_arena_unkeep(gpi_run *run) {
    gpi_use **link = (gpi_use **)&run->uses, *use;
    while ((use = *link) != NULL) {
        if (!use->keeper) {
            link = &use->next;
            continue;
        }
        *link = use->next;
        GPUPOOL_FREE(use);
    }
}

/* All that the graph keeps: live blocks are freed into its lane, parked ones will be anyone's. */
static void gpi_arena_take_back(gpupool_arena *arena, const gpupool_capture *capture) {
    uint64_t bucket;
    gpi_run *run, *next;
    const gpi_stream *keeper;
    for (run = arena->parked; run; run = run->list_next) {
        keeper = gpi_arena_keeper(run);
        if (keeper && keeper->capture == capture) gpi_arena_unkeep(run);
    }
    for (bucket = 0; bucket < arena->tree.bucket_count; bucket++) {
        for (run = *gpi_tree_head(&arena->tree, bucket); run; run = next) {
            next = run->list_next;
            if (run->as.slack_bytes == GPI_CACHED) continue; /* freed meanwhile, elsewhere */
            keeper = gpi_arena_keeper(run);
            if (!keeper || keeper->capture != capture) continue;
            gpi_arena_count_free(arena, run->units, run->as.slack_bytes);
            gpi_tree_lay_down(&arena->tree, run);
            gpi_arena_unkeep(run);
            if (run->uses) gpi_arena_park(arena, run);
            else gpi_tree_put(&arena->tree, run, keeper->young, 0);
        }
    }
}

gpupool_result gpupool_capture_release(gpupool_capture *capture) {
    gpi_visit visit;
    gpupool_arena *arena;
    gpupool_result result;
    if (!capture)
        return gpi_host_fail(GPUPOOL_E_ARGUMENT, "gpupool_capture_release: capture is NULL");
    arena = capture->arena;
    result = gpi_arena_enter_growing(arena, "gpupool_capture_release", &visit);
    if (result != GPUPOOL_OK) return result;
    gpi_arena_end_capture(arena, capture);
    gpi_arena_take_back(arena, capture);
    capture->stream->capture = capture->stream->early->capture = NULL;
    capture->stream->early = NULL;
    gpi_arena_quiesce(arena); /* if it fails, what came back waits for a fence like any other */
    gpi_arena_poll(arena);
    arena->captures--;
    gpi_arena_exit_growing(arena, &visit);
    GPUPOOL_FREE(capture);
    return gpi_host_ok();
}

/* -- cudaMalloc's shape -- */

static cudaError_t gpi_arena_as_cuda(gpupool_result result) {
    switch (result) {
    case GPUPOOL_OK: return cudaSuccess;
    case GPUPOOL_E_OUT_OF_MEMORY:
    case GPUPOOL_E_HOST_MEMORY: return cudaErrorMemoryAllocation;
    case GPUPOOL_E_CAPTURING: return cudaErrorStreamCaptureUnsupported;
    case GPUPOOL_E_UNSUPPORTED: return cudaErrorNotSupported;
    case GPUPOOL_E_FORKED: return cudaErrorInitializationError;
    case GPUPOOL_E_CUDA: return cudaErrorUnknown;
    case GPUPOOL_E_ARGUMENT:
    case GPUPOOL_E_NOT_OURS:
    case GPUPOOL_E_INSIDE:
    case GPUPOOL_E_DOUBLE_FREE:
    case GPUPOOL_E_IN_USE:
    case GPUPOOL_E_TIMEOUT:
    default: return cudaErrorInvalidValue;
    }
}

/* The default arena that this address is of; NULL: none. */
static gpupool_arena *gpi_arena_owner(const void *block) {
    uint64_t unit = (uint64_t)(uintptr_t)block / GPUPOOL_UNIT_BYTES;
    gpupool_arena *owner = NULL;
    int device;
    for (device = 0; device < GPI_DEVICES_MAX && !owner; device++) {
        gpupool_arena *arena;
        gpi_host_lock(&gpi_process.lock);
        arena = gpi_process.default_arenas[device];
        gpi_host_unlock(&gpi_process.lock);
        if (!arena || arena->forks != gpi_process.forks) continue;
        gpi_host_lock(&arena->lock);
        if (gpi_backing_owns(&arena->backing, unit)) owner = arena;
        gpi_host_unlock(&arena->lock);
    }
    return owner;
}

static cudaError_t gpi_arena_cuda_alloc(void **pointer, size_t bytes, cudaStream_t stream,
                                        uintptr_t key) {
    gpupool_arena *arena;
    if (!pointer) return cudaErrorInvalidValue;
    *pointer = NULL;
    if (bytes == 0) return cudaSuccess;
    arena = gpupool_default_arena(GPUPOOL_DEVICE_CURRENT);
    if (arena)
        *pointer = gpi_arena_alloc(arena, "gpupool_cudaMalloc", bytes, GPUPOOL_UNIT_BYTES, stream,
                                   key);
    return *pointer ? cudaSuccess : gpi_arena_as_cuda(gpi_thread.result);
}

cudaError_t gpupool_cudaMalloc(void **pointer, size_t bytes) {
    return gpi_arena_cuda_alloc(pointer, bytes, cudaStreamLegacy, GPI_KEY_ANY);
}

cudaError_t gpupool_cudaMallocAsync(void **pointer, size_t bytes, cudaStream_t stream) {
    return gpi_arena_cuda_alloc(pointer, bytes, gpi_arena_stream(stream), gpi_fence_key(stream));
}

cudaError_t gpupool_cudaFree(void *block) {
    gpupool_arena *arena = block ? gpi_arena_owner(block) : NULL;
    if (!arena) return cudaFree(block);
    return gpi_arena_as_cuda(gpi_arena_give(arena, block, cudaStreamLegacy, GPI_KEY_ANY));
}

cudaError_t gpupool_cudaFreeAsync(void *block, cudaStream_t stream) {
    gpupool_arena *arena = block ? gpi_arena_owner(block) : NULL;
    if (!arena) return block ? gpi_names_free_async(block, gpi_arena_stream(stream))
                             : cudaSuccess;
    return gpi_arena_as_cuda(gpupool_free(arena, block, stream));
}

/* -- limits -- */

static gpupool_result gpi_arena_new_limit(gpupool_arena *arena, uint64_t bytes) {
    gpupool_result result = GPUPOOL_OK;
    uint64_t before = arena->ledger.limit_bytes;
    arena->ledger.limit_bytes = bytes;
    arena->ledger.over_bytes = arena->ledger.reserved.now;
    if (arena->ledger.reserved.now > bytes) {
        gpi_arena_settle(arena);
        result = gpi_backing_trim(&arena->backing, &arena->tree, bytes, 1);
    }
    if (result != GPUPOOL_OK) arena->ledger.limit_bytes = before;
    return result;
}

gpupool_result gpupool_set_limit(gpupool_arena *arena, size_t bytes) {
    gpi_visit visit;
    gpupool_result result = gpi_arena_enter_growing(arena, "gpupool_set_limit", &visit);
    if (result != GPUPOOL_OK) return result;
    result = gpi_arena_new_limit(arena, bytes ? bytes : UINT64_MAX);
    gpi_arena_exit_growing(arena, &visit);
    return result == GPUPOOL_OK ? gpi_host_ok() : result;
}

gpupool_result gpupool_set_limit_fraction(gpupool_arena *arena, double fraction) {
    double total;
    gpupool_result result = gpi_arena_enter(arena, "gpupool_set_limit_fraction");
    if (result != GPUPOOL_OK) return result;
    total = (double)arena->backing.driver.total_bytes;
    gpi_arena_exit(arena);
    if (!(fraction > 0 && fraction <= 1))
        return gpi_host_fail(GPUPOOL_E_ARGUMENT, "gpupool_set_limit_fraction: fraction is %g, and "
                             "must be above 0 and at most 1", fraction);
    return gpupool_set_limit(arena, (size_t)gpi_ground_max((uint64_t)(total * fraction), 1));
}

gpupool_result gpupool_set_limit_text(gpupool_arena *arena, const char *text) {
    size_t free_bytes = 0, total_bytes = 0;
    uint64_t bytes = 0;
    gpi_visit visit;
    gpupool_result result = gpi_arena_enter_growing(arena, "gpupool_set_limit_text", &visit);
    if (result != GPUPOOL_OK) return result;
    if (!text)
        result = gpi_host_fail(GPUPOOL_E_ARGUMENT, "gpupool_set_limit_text: text is NULL");
    if (result == GPUPOOL_OK)
        result = gpi_driver_told("cudaMemGetInfo", cudaMemGetInfo(&free_bytes, &total_bytes));
    if (result == GPUPOOL_OK)
        result = gpi_limit_parse("gpupool_set_limit_text", text, total_bytes, free_bytes, &bytes);
    if (result == GPUPOOL_OK) result = gpi_arena_new_limit(arena, bytes);
    gpi_arena_exit_growing(arena, &visit);
    return result == GPUPOOL_OK ? gpi_host_ok() : result;
}

size_t gpupool_get_limit(gpupool_arena *arena) {
    uint64_t bytes;
    if (gpi_arena_enter(arena, "gpupool_get_limit") != GPUPOOL_OK) return 0;
    bytes = arena->ledger.limit_bytes;
    gpi_arena_exit(arena);
    return bytes == UINT64_MAX ? 0 : (size_t)bytes;
}

size_t gpupool_available(gpupool_arena *arena) {
    size_t free_bytes = 0, total_bytes = 0;
    uint64_t most;
    gpi_visit visit;
    if (gpi_arena_enter_growing(arena, "gpupool_available", &visit) != GPUPOOL_OK) return 0;
    if (gpi_driver_told("cudaMemGetInfo", cudaMemGetInfo(&free_bytes, &total_bytes)) != GPUPOOL_OK)
        free_bytes = 0;
    if (arena->backing.source == GPUPOOL_SOURCE_PINNED) free_bytes = SIZE_MAX / 2;
    most = gpi_ground_min(arena->ledger.limit_bytes, arena->ledger.reserved.now + free_bytes);
    most = gpi_ground_max(most, arena->ledger.reserved.now);
    most -= arena->ledger.granted.now;
    gpi_arena_exit_growing(arena, &visit);
    return (size_t)most;
}

/* Units in pieces that are wholly free, in whatever lane, and out of the spot's way: what moving or
   trimming could win. */
static uint64_t gpi_arena_idle(const gpupool_arena *arena, const gpi_spot *spot) {
    const gpi_backing *backing = &arena->backing;
    const gpi_piece *piece = backing->placed;
    const gpi_run *run = backing->first;
    uint64_t units = backing->stash_units;
    for (; piece && !gpi_backing_is_mapped(backing); piece = piece->next)
        if (piece->first->lane < GPI_LANE_HELD && piece->first->units == piece->units)
            units += piece->bytes / GPUPOOL_UNIT_BYTES;
    for (; run && gpi_backing_is_mapped(backing); run = run->next) {
        uint64_t unit = gpi_ground_up(run->unit, backing->granule_units);
        if (run->lane >= GPI_LANE_HELD || run->lane == GPI_LANE_BARE) continue;
        for (; unit + backing->granule_units <= run->unit + run->units;
             unit = piece->unit + piece->units) {
            piece = gpi_backing_at(backing, unit);
            if (piece->unit < run->unit || piece->unit + piece->units > run->unit + run->units)
                continue;
            if (piece->unit + piece->units <= spot->unit || piece->unit >= spot->unit + spot->units)
                units += piece->units;
        }
    }
    return units;
}

/* Whether growth, with all that is idle moved or given back, could meet a request. */
static int gpi_arena_could_grow(const gpupool_arena *arena, uint64_t units, uint64_t room_units) {
    gpi_spot spot;
    uint64_t need = gpi_backing_need(&arena->backing, units, 1) / GPUPOOL_UNIT_BYTES;
    memset(&spot, 0, sizeof spot);
    if (gpi_backing_is_mapped(&arena->backing)) {
        if (!gpi_backing_find_spot(&arena->backing, &arena->tree, units, 1, NULL, &spot)) return 0;
        need = spot.bare_units;
    }
    if (arena->ledger.reserved.now > arena->ledger.limit_bytes) /* what is above must go first */
        need += (arena->ledger.reserved.now - arena->ledger.limit_bytes) / GPUPOOL_UNIT_BYTES + 1;
    return need <= room_units || need - room_units <= gpi_arena_idle(arena, &spot);
}

int gpupool_would_fit(gpupool_arena *arena, size_t bytes, gpupool_verdict *why) {
    gpupool_verdict verdict;
    gpi_visit visit;
    uint64_t units = gpi_arena_units(bytes), room;
    int fits;
    if (gpi_arena_enter_growing(arena, "gpupool_would_fit", &visit) != GPUPOOL_OK) return 0;
    if (arena->backing.source != GPUPOOL_SOURCE_BYPASS) gpi_arena_settle(arena);
    gpi_arena_figures(arena, bytes, 1, &verdict);
    room = gpi_ledger_room(&arena->ledger);
    if (verdict.device_total_bytes) room = gpi_ground_min(room, verdict.device_free_bytes);
    if (arena->backing.source == GPUPOOL_SOURCE_BYPASS) verdict.largest_free_bytes = 0;
    fits = units && (units * GPUPOOL_UNIT_BYTES <= verdict.largest_free_bytes ||
                     gpi_arena_could_grow(arena, units, room / GPUPOOL_UNIT_BYTES));
    if (!fits) gpi_limit_judge(&verdict, verdict.missing_bytes > 0 && verdict.limit_bytes, 0);
    gpi_arena_exit_growing(arena, &visit);
    if (why) *why = verdict;
    gpi_host_ok();
    return fits;
}

gpupool_result gpupool_last_verdict(gpupool_verdict *verdict) {
    if (!verdict) return gpi_host_fail(GPUPOOL_E_ARGUMENT, "gpupool_last_verdict: verdict is NULL");
    *verdict = gpi_thread.verdict;
    return GPUPOOL_OK;
}

/* -- statistics -- */

gpupool_result gpupool_get_stats(gpupool_arena *arena, gpupool_stats *stats) {
    gpupool_result result = gpi_arena_enter(arena, "gpupool_get_stats");
    uint32_t lane;
    int order;
    if (result != GPUPOOL_OK) return result;
    if (!stats) {
        gpi_arena_exit(arena);
        return gpi_host_fail(GPUPOOL_E_ARGUMENT, "gpupool_get_stats: stats is NULL");
    }
    gpi_arena_count_pending(arena);
    memset(stats, 0, sizeof *stats);
    stats->struct_bytes = sizeof *stats;
    stats->requested = arena->ledger.requested;
    stats->granted = arena->ledger.granted;
    stats->reserved = arena->ledger.reserved;
    stats->pending = arena->ledger.pending;
    stats->blocks = arena->ledger.blocks;
    stats->allocs = arena->ledger.allocs;
    stats->frees = arena->ledger.frees;
    stats->failures = arena->ledger.failures;
    stats->lane_hits = arena->ledger.lane_hits;
    stats->splits = arena->tree.splits;
    stats->merges = arena->tree.merges;
    stats->chunks_gained = arena->backing.gained;
    stats->chunks_lost = arena->backing.lost;
    stats->remaps = arena->backing.moved;
    stats->fence_waits = arena->fences.device_waits;
    stats->host_syncs = arena->fences.host_waits;
    stats->limit_bytes = arena->ledger.limit_bytes == UINT64_MAX ? 0 : arena->ledger.limit_bytes;
    stats->largest_free_bytes = gpi_arena_largest(arena, 1);
    stats->host_bytes = sizeof *arena + arena->tree.host_bytes + arena->backing.host_bytes;
    memcpy(stats->live_by_order, arena->tree.live_by_order, sizeof stats->live_by_order);
    for (lane = 0; lane < arena->tree.lane_count; lane++)
        for (order = 0; arena->tree.lanes[lane] && lane != GPI_LANE_BARE && order < GPUPOOL_ORDERS;
             order++)
            stats->free_by_order[order] += arena->tree.lanes[lane]->runs_by_order[order];
    gpi_arena_exit(arena);
    return result;
}

gpupool_result gpupool_reset_peaks(gpupool_arena *arena) {
    gpupool_result result = gpi_arena_enter(arena, "gpupool_reset_peaks");
    gpupool_counter *counters;
    int i;
    if (result != GPUPOOL_OK) return result;
    gpi_arena_count_pending(arena);
    arena->granted_most = gpi_ground_max(arena->granted_most, arena->ledger.granted.peak);
    counters = &arena->ledger.requested;
    for (i = 0; i < 5; i++) counters[i].peak = counters[i].now;
    gpi_arena_exit(arena);
    return result;
}

gpupool_result gpupool_check(gpupool_arena *arena) {
    gpupool_result result = gpi_arena_exists(arena, "gpupool_check");
    char room = 0;
    int broken;
    if (result != GPUPOOL_OK) return result;
    gpi_host_lock(&arena->growing);
    broken = gpi_arena_check_all(arena, 1, &room);
    gpi_host_unlock(&arena->growing);
    if (!broken) return gpi_host_ok();
    return gpi_host_fail(GPUPOOL_E_ARGUMENT,
                         "gpupool_check: invariant %c%d of arena \"%s\" is broken", room, broken,
                         arena->name);
}

/* == REPORT ===================================================================================
   For people: names, the table, the map. What is shown is copied under the lock and written after
   it is given back. uses: ARENA */

const char *gpupool_result_name(gpupool_result result) {
    switch (result) {
    case GPUPOOL_OK: return "GPUPOOL_OK";
    case GPUPOOL_E_ARGUMENT: return "GPUPOOL_E_ARGUMENT";
    case GPUPOOL_E_OUT_OF_MEMORY: return "GPUPOOL_E_OUT_OF_MEMORY";
    case GPUPOOL_E_NOT_OURS: return "GPUPOOL_E_NOT_OURS";
    case GPUPOOL_E_INSIDE: return "GPUPOOL_E_INSIDE";
    case GPUPOOL_E_DOUBLE_FREE: return "GPUPOOL_E_DOUBLE_FREE";
    case GPUPOOL_E_IN_USE: return "GPUPOOL_E_IN_USE";
    case GPUPOOL_E_CAPTURING: return "GPUPOOL_E_CAPTURING";
    case GPUPOOL_E_TIMEOUT: return "GPUPOOL_E_TIMEOUT";
    case GPUPOOL_E_UNSUPPORTED: return "GPUPOOL_E_UNSUPPORTED";
    case GPUPOOL_E_FORKED: return "GPUPOOL_E_FORKED";
    case GPUPOOL_E_HOST_MEMORY: return "GPUPOOL_E_HOST_MEMORY";
    case GPUPOOL_E_CUDA: return "GPUPOOL_E_CUDA";
    default: return "no gpupool_result";
    }
}

gpupool_result gpupool_last_result(void) { return gpi_thread.result; }

const char *gpupool_last_error(void) { return gpi_thread.text; }

#define GPI_TEXT(number) #number
#define GPI_SPELL(macro) GPI_TEXT(macro)

const char *gpupool_build(void) {
    return "gpupool " GPI_SPELL(GPUPOOL_VERSION) " unit=" GPI_SPELL(GPUPOOL_UNIT_BYTES)
           " chunk=" GPI_SPELL(GPUPOOL_CHUNK_BYTES) " limit=\"" GPUPOOL_LIMIT "\""
           " mapped=" GPI_SPELL(GPUPOOL_MAPPED) " check=" GPI_SPELL(GPUPOOL_CHECK)
           " single_thread=" GPI_SPELL(GPUPOOL_SINGLE_THREAD) " static=" GPI_SPELL(GPUPOOL_STATIC);
}

static gpupool_result gpi_report_done(FILE *file) {
    if (fflush(file) == 0 && !ferror(file)) return gpi_host_ok();
    return gpi_host_fail(GPUPOOL_E_ARGUMENT, "the file cannot be written: %s", strerror(errno));
}

static const char *gpi_report_source(gpupool_source source) {
    static const char names[7][8] = {"auto", "mapped", "device", "managed",
                                     "pinned", "custom", "bypass"};
    return names[source];
}

gpupool_result gpupool_report(gpupool_arena *arena, FILE *file) {
    char now[32], peak[32], host[32];
    gpupool_stats stats;
    const gpupool_counter *counters;
    static const char rows[4][12] = {"requested", "granted", "reserved", "pending"};
    gpupool_result result;
    int i;
    if (!file) return gpi_host_fail(GPUPOOL_E_ARGUMENT, "gpupool_report: file is NULL");
    result = gpupool_get_stats(arena, &stats);
    if (result != GPUPOOL_OK) return result;
    counters = &stats.requested;
    fprintf(file, "gpupool arena \"%s\", device %d, source %s\n", arena->name,
            arena->backing.driver.device, gpi_report_source(arena->backing.source));
    fprintf(file, "  %-10s %12s %12s\n", "", "now", "peak");
    for (i = 0; i < 4; i++)
        fprintf(file, "  %-10s %12s %12s\n", rows[i], gpi_limit_human(now, counters[i].now),
                gpi_limit_human(peak, counters[i].peak));
    fprintf(file, "  %-10s %12" PRIu64 " %12" PRIu64 "\n", "blocks", stats.blocks.now,
            stats.blocks.peak);
    fprintf(file, "  limit %s, longest free run %s, host memory %s\n",
            stats.limit_bytes ? gpi_limit_human(now, stats.limit_bytes) : "none",
            gpi_limit_human(peak, stats.largest_free_bytes),
            gpi_limit_human(host, stats.host_bytes));
    fprintf(file,
            "  %" PRIu64 " allocs (%" PRIu64 " from the same stream), %" PRIu64 " frees, %" PRIu64
            " failures\n",
            stats.allocs, stats.lane_hits, stats.frees, stats.failures);
    fprintf(file, "  %" PRIu64 " pieces gained, %" PRIu64 " lost, %" PRIu64 " moved; %" PRIu64
            " waits on the device, %" PRIu64 " on the host\n", stats.chunks_gained,
            stats.chunks_lost, stats.remaps, stats.fence_waits, stats.host_syncs);
    return gpi_report_done(file);
}

/* -- the map -- */

typedef enum gpi_shade { GPI_SHADE_LIVE, GPI_SHADE_FREE, GPI_SHADE_PENDING } gpi_shade;

typedef struct gpi_stretch { /* of memory, as the map shows it */
    uint64_t unit, units;
    gpi_shade shade;
} gpi_stretch;

static void gpi_report_collect(const gpi_run *run, gpi_stretch *stretches, uint64_t *count) {
    for (; run; run = run->next) {
        gpi_stretch stretch;
        if (run->lane == GPI_LANE_BARE) continue;
        stretch.unit = run->unit;
        stretch.units = run->units;
        stretch.shade = run->lane == GPI_LANE_LIVE    ? GPI_SHADE_LIVE
                        : run->lane == GPI_LANE_QUIET ? GPI_SHADE_FREE
                                                      : GPI_SHADE_PENDING;
        if (stretches) stretches[*count] = stretch;
        ++*count;
    }
}

static uint64_t gpi_report_walk(const gpupool_arena *arena, gpi_stretch *stretches) {
    const gpi_piece *piece = arena->backing.placed;
    uint64_t count = 0;
    if (gpi_backing_is_mapped(&arena->backing))
        gpi_report_collect(arena->backing.first, stretches, &count);
    else
        for (; piece; piece = piece->next) gpi_report_collect(piece->first, stretches, &count);
    return count;
}

/* All stretches of reserved memory, copied; NULL when the host has no memory or there are none. */
static gpi_stretch *gpi_report_copy(gpupool_arena *arena, uint64_t *count) {
    gpi_stretch *stretches = NULL;
    uint64_t room = 0;
    for (;;) { /* memory is asked for without the lock, so the number may have grown meanwhile */
        gpi_host_lock(&arena->lock);
        *count = gpi_report_walk(arena, NULL);
        if (*count <= room) break;
        gpi_host_unlock(&arena->lock);
        GPUPOOL_FREE(stretches);
        room = *count + *count / 4 + 16;
        stretches = (gpi_stretch *)GPUPOOL_MALLOC(room * sizeof *stretches);
        if (!stretches) return NULL;
    }
    if (stretches) gpi_report_walk(arena, stretches);
    gpi_host_unlock(&arena->lock);
    return stretches;
}

#define GPI_MAP_WIDTH 960.0 /* pixels of a row */

/* One stretch, cut where rows end. `at` is its place in the reserved memory laid end to end. */
static void gpi_report_draw(FILE *file, const gpi_stretch *stretch, uint64_t at,
                            uint64_t row_units) {
    static const char colours[3][8] = {"#0072b2", "#e8e8e8", "#e69f00"};
    static const char words[3][20] = {"live", "free", "freed on a stream"};
    char size[32];
    uint64_t done = 0;
    while (done < stretch->units) {
        uint64_t column = (at + done) % row_units, row = (at + done) / row_units;
        uint64_t units = gpi_ground_min(stretch->units - done, row_units - column);
        double scale = GPI_MAP_WIDTH / (double)row_units;
        fprintf(file,
                "<rect x=\"%.2f\" y=\"%" PRIu64 "\" width=\"%.2f\" height=\"11\" fill=\"%s\">",
                110 + scale * (double)column, 64 + row * 13, scale * (double)units,
                colours[stretch->shade]);
        fprintf(file, "<title>%s: %s at %#" PRIx64 "</title></rect>\n", words[stretch->shade],
                gpi_limit_human(size, stretch->units * GPUPOOL_UNIT_BYTES),
                stretch->unit * GPUPOOL_UNIT_BYTES);
        done += units;
    }
}

static void gpi_report_text(FILE *file, const char *text) { /* as XML wants it */
    for (; *text; text++) {
        if (*text == '<') fputs("&lt;", file);
        else if (*text == '&') fputs("&amp;", file);
        else if ((unsigned char)*text >= ' ') fputc(*text, file);
    }
}

static void gpi_report_head(FILE *file, const gpupool_arena *arena, const gpupool_stats *stats,
                            uint64_t rows, uint64_t row_units) {
    char live[32], held[32], row[32];
    uint64_t i;
    fprintf(file, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"1100\" height=\"%" PRIu64
            "\" font-family=\"sans-serif\" font-size=\"12\">\n"
            "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n"
            "<text x=\"16\" y=\"22\" font-size=\"15\">gpupool arena \"", rows * 13 + 84);
    gpi_report_text(file, arena->name);
    fprintf(file, "\": %s live in %" PRIu64 " blocks, %s reserved</text>\n",
            gpi_limit_human(live, stats->requested.now), stats->blocks.now,
            gpi_limit_human(held, stats->reserved.now));
    fprintf(file, "<rect x=\"16\" y=\"36\" width=\"12\" height=\"12\" fill=\"#0072b2\"/>"
            "<text x=\"33\" y=\"47\">live</text>"
            "<rect x=\"76\" y=\"36\" width=\"12\" height=\"12\" fill=\"#e8e8e8\" stroke=\"#999\"/>"
            "<text x=\"93\" y=\"47\">free</text>"
            "<rect x=\"136\" y=\"36\" width=\"12\" height=\"12\" fill=\"#e69f00\"/>"
            "<text x=\"153\" y=\"47\">freed on a stream, free for its later work</text>"
            "<text x=\"430\" y=\"47\">each row %s of reserved memory, laid end to end; "
            "hover for sizes</text>\n", gpi_limit_human(row, row_units * GPUPOOL_UNIT_BYTES));
    for (i = 0; i < rows; i += 8)
        fprintf(file, "<text x=\"102\" y=\"%" PRIu64 "\" text-anchor=\"end\" font-size=\"10\">+%s"
                "</text>\n", 73 + i * 13,
                gpi_limit_human(row, i * row_units * GPUPOOL_UNIT_BYTES));
}

gpupool_result gpupool_write_svg(gpupool_arena *arena, FILE *file) {
    uint64_t count = 0, i, units = 0, row_units, at = 0;
    gpi_stretch *stretches;
    gpupool_stats stats;
    gpupool_result result;
    if (!file) return gpi_host_fail(GPUPOOL_E_ARGUMENT, "gpupool_write_svg: file is NULL");
    result = gpupool_get_stats(arena, &stats);
    if (result != GPUPOOL_OK) return result;
    stretches = gpi_report_copy(arena, &count);
    if (!stretches && count) return gpi_host_no_memory();
    for (i = 0; i < count; i++) units += stretches[i].units;
    /* at most 64 rows, each a power of two of memory */
    row_units = (2u << 20) / GPUPOOL_UNIT_BYTES;
    while (row_units * 64 < units) row_units *= 2;
    gpi_report_head(file, arena, &stats, (units + row_units - 1) / row_units, row_units);
    for (i = 0; i < count; at += stretches[i].units, i++)
        gpi_report_draw(file, &stretches[i], at, row_units);
    fprintf(file, "</svg>\n");
    GPUPOOL_FREE(stretches);
    return gpi_report_done(file);
}

/* == BACK ===================================================================================== */

#undef GPI_ASSERT
#undef GPI_PRINTF
#undef GPI_THREAD_LOCAL
#undef GPI_DEVICES_MAX
#undef GPI_SYMBOL
#undef GPI_STEPS
#undef GPI_PAGE
#undef GPI_TRIES
#undef GPI_LANE_QUIET
#undef GPI_LANE_BARE
#undef GPI_LANE_STREAMS
#undef GPI_LANE_HELD
#undef GPI_LANE_LIVE
#undef GPI_LANES_MOST
#undef GPI_TABLE
#undef GPI_READ
#undef GPI_PUBLISH
#undef GPI_SLOTS
#undef GPI_BINS
#undef GPI_NO_SLOT
#undef GPI_CACHED
#undef GPI_SEALS
#undef GPI_BUCKETS
#undef GPI_KEY_LEGACY
#undef GPI_KEY_ANY
#undef GPI_TEXT
#undef GPI_SPELL
#undef GPI_MAP_WIDTH

#endif /* GPUPOOL_IMPLEMENTATION */

/* == NAMES ====================================================================================
   Macros over CUDA's names and gpupool's own, last, so that they are not in force above. */

#if defined(CUDA_API_PER_THREAD_DEFAULT_STREAM)
#ifndef GPI_STREAM
#define GPI_STREAM(stream) gpi_names_stream(stream)
static inline cudaStream_t gpi_names_stream(cudaStream_t stream) {
    return stream ? stream : cudaStreamPerThread;
}
#endif
#define gpupool_alloc(arena, bytes, stream) gpupool_alloc(arena, bytes, GPI_STREAM(stream))
#define gpupool_alloc_aligned(arena, bytes, alignment, stream) \
    gpupool_alloc_aligned(arena, bytes, alignment, GPI_STREAM(stream))
#define gpupool_zalloc(arena, bytes, stream) gpupool_zalloc(arena, bytes, GPI_STREAM(stream))
#define gpupool_free(arena, block, stream) gpupool_free(arena, block, GPI_STREAM(stream))
#define gpupool_record_use(arena, block, stream) \
    gpupool_record_use(arena, block, GPI_STREAM(stream))
#define gpupool_stream_retired(arena, stream) gpupool_stream_retired(arena, GPI_STREAM(stream))
#define gpupool_capture_begin(arena, stream, capture) \
    gpupool_capture_begin(arena, GPI_STREAM(stream), capture)
#define gpupool_cudaMallocAsync(pointer, bytes, stream) \
    gpupool_cudaMallocAsync(pointer, bytes, GPI_STREAM(stream))
#define gpupool_cudaFreeAsync(pointer, stream) gpupool_cudaFreeAsync(pointer, GPI_STREAM(stream))
#endif

#if GPUPOOL_STREAM_HOOK
#define cudaStreamDestroy(stream) gpupool_cudaStreamDestroy(stream)
#endif
#if GPUPOOL_REPLACE_CUDA_MALLOC
#define cudaMalloc(pointer, bytes) gpupool_cudaMalloc((void **)(pointer), bytes)
#define cudaFree(pointer) gpupool_cudaFree((void *)(pointer))
#undef cudaMallocAsync
#define cudaMallocAsync(pointer, bytes, stream) \
    gpupool_cudaMallocAsync((void **)(pointer), bytes, stream)
#undef cudaFreeAsync
#define cudaFreeAsync(pointer, stream) gpupool_cudaFreeAsync((void *)(pointer), stream)
#endif
