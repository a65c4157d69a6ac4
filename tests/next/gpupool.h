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
#ifdef GPUPOOL_IMPLEMENTATION

#include <linux/futex.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifdef __cplusplus
extern "C" {
#endif

/* == SYSTEM =======================================================================================
   What the arena needs of Linux and of the compiler: arithmetic, atomic access, a lock, records that
   never move, the process, and the calling thread's last error.

   S1  A lock's word is 0: open, 1: held, 2: held, and threads may sleep on it.
   S2  Records lie in one region of addresses for each arena. They never move and stay mapped as long
       as the arena exists, so that a thread without a lock may read a record that is spare by now.
   S3  Pages that a fork wipes tell a child that it is one (O17).

   Read first: gpi_system_lock, gpi_region, gpi_system_fail. */

#if !defined(__cplusplus) && !defined(_DEFAULT_SOURCE) && !defined(_GNU_SOURCE)
long syscall(long number, ...); /* -std=c11 leaves these out */
#endif
#ifndef MAP_ANONYMOUS
#define MAP_ANONYMOUS 0x20
#endif
#ifndef MAP_NORESERVE
#define MAP_NORESERVE 0x4000
#endif

#define GPI_READ(at) __atomic_load_n(at, __ATOMIC_ACQUIRE)
#define GPI_PUBLISH(at, value) __atomic_store_n(at, value, __ATOMIC_RELEASE)
#define GPI_LOOK(at) __atomic_load_n(at, __ATOMIC_RELAXED)
#define GPI_SET(at, value) __atomic_store_n(at, value, __ATOMIC_RELAXED)

#if defined(__x86_64__)
#define GPI_PAUSE() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define GPI_PAUSE() __asm__ __volatile__("yield")
#else
#define GPI_PAUSE() ((void)0)
#endif

static uint64_t gpi_min(uint64_t a, uint64_t b) { return a < b ? a : b; }
static uint64_t gpi_max(uint64_t a, uint64_t b) { return a > b ? a : b; }
static uint64_t gpi_less(uint64_t a, uint64_t b) { return a > b ? a - b : 0; }
static uint64_t gpi_down(uint64_t n, uint64_t power) { return n & ~(power - 1); }
static uint64_t gpi_up(uint64_t n, uint64_t power) { return (n + power - 1) & ~(power - 1); }
static unsigned gpi_low_bit(uint64_t n) { return (unsigned)__builtin_ctzll(n); }
static unsigned gpi_high_bit(uint64_t n) { return 63u - (unsigned)__builtin_clzll(n); }
static uint64_t gpi_hash(uint64_t n) { return n * 0x9e3779b97f4a7c15ull; } /* its upper bits */

/* -- locks -- */

typedef struct gpi_lock { int word; } gpi_lock;

static int gpi_system_try(gpi_lock *lock, int word) {
    int open = 0;
    return GPI_LOOK(&lock->word) == 0 &&
           __atomic_compare_exchange_n(&lock->word, &open, word, 0, __ATOMIC_ACQUIRE,
                                       __ATOMIC_RELAXED);
}

/* What a lock protects takes some 100 ns, a sleep and its end some 10 us. So a thread first looks
   again after growing gaps, in which the others' cache lines stay with the holder. */
static void gpi_system_lock_wait(gpi_lock *lock) {
    int gap, i;
    for (gap = 4; gap <= 512; gap += gap / 2) {
        for (i = 0; i < gap; i++) GPI_PAUSE();
        if (gpi_system_try(lock, 1)) return;
    }
    while (__atomic_exchange_n(&lock->word, 2, __ATOMIC_ACQUIRE))
        syscall(SYS_futex, &lock->word, FUTEX_WAIT_PRIVATE, 2, NULL, NULL, 0);
}

static inline void gpi_system_lock(gpi_lock *lock) {
    if (!gpi_system_try(lock, 1)) gpi_system_lock_wait(lock);
}

static inline void gpi_system_unlock(gpi_lock *lock) {
    if (__atomic_exchange_n(&lock->word, 0, __ATOMIC_RELEASE) == 2)
        syscall(SYS_futex, &lock->word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

/* Sleeps while *word is `old`; some other thread changes it and then wakes all. */
static void gpi_system_sleep_on(int *word, int old) {
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, old, NULL, NULL, 0);
}

static void gpi_system_wake_all(int *word) {
    __atomic_fetch_add(word, 1, __ATOMIC_RELEASE);
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

/* -- memory of the host -- */

enum { GPI_STEP = 2 << 20, GPI_DONTDUMP = 16, GPI_WIPEONFORK = 18 }; /* MADV_, which c11 hides */

/* Zeroed memory of whole pages that the host backs when it is touched. NULL: no addresses. */
static void *gpi_system_pages(uint64_t bytes, int protection) {
    void *memory = mmap(NULL, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

/* Host memory of zeros, for GPUPOOL_FREE. NULL: the host has none. */
static void *gpi_system_zeroed(uint64_t bytes) {
    void *memory = GPUPOOL_MALLOC((size_t)bytes);
    if (memory) memset(memory, 0, (size_t)bytes);
    return memory;
}

/* Addresses for records: [base, base + opened) may be used, and up to `used` is. */
typedef struct gpi_region { char *base; uint64_t size, opened, used; } gpi_region;

static int gpi_region_open(gpi_region *region, uint64_t size) {
    region->base = (char *)gpi_system_pages(size, PROT_NONE);
    region->size = region->base ? size : 0;
    return region->base != NULL;
}

/* Makes sure that so many bytes more can be used: then gpi_region_get cannot fail. Returns 0 if the
   host or the region has too few. */
static int gpi_region_ensure(gpi_region *region, uint64_t bytes) {
    uint64_t need = gpi_up(region->used + bytes, GPI_STEP);
    char *end = region->base + region->opened;
    if (need <= region->opened) return 1;
    if (need > region->size) return 0;
    if (mprotect(end, need - region->opened, PROT_READ | PROT_WRITE)) return 0;
    syscall(SYS_madvise, end, need - region->opened, (long)GPI_DONTDUMP);
    region->opened = need;
    return 1;
}

static void *gpi_region_get(gpi_region *region, uint64_t bytes) {
    void *record = region->base + region->used;
    region->used += bytes;
    return record;
}

static void gpi_region_close(gpi_region *region) {
    if (region->base) munmap(region->base, region->size);
    memset(region, 0, sizeof *region);
}

/* -- the process and the thread -- */

static struct {
    gpi_lock lock;          /* of everything in here: never held across a call out of this file */
    gpupool_arena *arenas;  /* linked by `next_arena` */
    gpupool_arena *spare;   /* structs of destroyed arenas, which stay readable */
    uint64_t threads;       /* numbers given to threads */
    int *page;              /* 1; a fork wipes it */
} gpi_process;

typedef struct gpi_thread_state {
    uint64_t number;        /* never used twice; 0: not asked for */
    int in_callback;        /* on_out_of_memory runs */
    gpupool_result result;  /* of the last failed call, with */
    char text[512];
    gpupool_verdict verdict;
} gpi_thread_state;

static __thread gpi_thread_state gpi_thread;

/* Whether this process is the child of one that had made an arena. */
static int gpi_system_is_forked(void) { return gpi_process.page && *gpi_process.page == 0; }

static gpupool_result gpi_system_open(void) {
    gpi_system_lock(&gpi_process.lock);
    if (!gpi_process.page) {
        gpi_process.page = (int *)gpi_system_pages(4096, PROT_READ | PROT_WRITE);
        if (gpi_process.page) {
            syscall(SYS_madvise, gpi_process.page, 4096L, (long)GPI_WIPEONFORK);
            *gpi_process.page = 1;
        }
    }
    gpi_system_unlock(&gpi_process.lock);
    return gpi_process.page ? GPUPOOL_OK : GPUPOOL_E_HOST_MEMORY;
}

static uint64_t gpi_system_thread_number(void) {
    if (!gpi_thread.number)
        gpi_thread.number = __atomic_add_fetch(&gpi_process.threads, 1, __ATOMIC_RELAXED);
    return gpi_thread.number;
}

/* Sets the thread's last error, and returns `result`. */
__attribute__((format(printf, 2, 3))) static gpupool_result
gpi_system_fail(gpupool_result result, const char *format, ...) {
    va_list rest;
    va_start(rest, format);
    vsnprintf(gpi_thread.text, sizeof gpi_thread.text, format, rest);
    va_end(rest);
    return gpi_thread.result = result;
}

static gpupool_result gpi_system_no_memory(void) {
    return gpi_system_fail(GPUPOOL_E_HOST_MEMORY,
                           "the host has no memory for the arena's records; nothing was changed");
}

GPUPOOL_API gpupool_result gpupool_last_result(void) { return gpi_thread.result; }
GPUPOOL_API const char *gpupool_last_error(void) { return gpi_thread.text; }
GPUPOOL_API const gpupool_verdict *gpupool_last_verdict(void) { return &gpi_thread.verdict; }

GPUPOOL_API const char *gpupool_result_name(gpupool_result result) {
    static const char *const names[] = {
        "GPUPOOL_OK", "GPUPOOL_E_ARGUMENT", "GPUPOOL_E_OUT_OF_MEMORY", "GPUPOOL_E_NOT_OURS",
        "GPUPOOL_E_INSIDE", "GPUPOOL_E_DOUBLE_FREE", "GPUPOOL_E_IN_USE", "GPUPOOL_E_CAPTURING",
        "GPUPOOL_E_ASLEEP", "GPUPOOL_E_TIMEOUT", "GPUPOOL_E_UNSUPPORTED", "GPUPOOL_E_FORKED",
        "GPUPOOL_E_CALLBACK", "GPUPOOL_E_FILE", "GPUPOOL_E_HOST_MEMORY", "GPUPOOL_E_CUDA"};
    return (unsigned)result < sizeof names / sizeof *names ? names[result] : "no result of gpupool";
}

/* == DRIVER =======================================================================================
   CUDA's driver, by function pointers that the runtime finds, so that a program links the runtime
   only. The runtime's last error and current device never change.

       gpi_driver_enter: context current, capture mode relaxed    ... calls ...    gpi_driver_leave

   D1  In relaxed mode no call ends a capture of any stream, but for a query of an event that was
       recorded in the capture, a wait for a capturing stream, and a wait of a capturing stream for
       an event from outside. Whoever makes such a call asks first whether the stream captures.
   D2  Which calls may block, measured on an H100 (driver 580): calls that name a stream or wait, and
       cuEventCreate, block while a launch queue is full. cuMemCreate, Map, SetAccess, Unmap, Release,
       AddressReserve, AddressFree, cuEventQuery and cuStreamIsCapturing do not. So the first group
       is called without the arena's lock.

   Read first: GPI_CALLS, GPI_TELL, gpi_driver_enter, gpi_driver_wait. */

#define GPI_CALLS(CALL)                                                                            \
    CALL(error_name, "cuGetErrorName", (CUresult, const char **))                                  \
    CALL(attribute, "cuDeviceGetAttribute", (int *, CUdevice_attribute, CUdevice))                 \
    CALL(retain, "cuDevicePrimaryCtxRetain", (CUcontext *, CUdevice))                              \
    CALL(release_context, "cuDevicePrimaryCtxRelease", (CUdevice))                                 \
    CALL(current, "cuCtxGetCurrent", (CUcontext *))                                                \
    CALL(push, "cuCtxPushCurrent", (CUcontext))                                                    \
    CALL(pop, "cuCtxPopCurrent", (CUcontext *))                                                    \
    CALL(exchange, "cuThreadExchangeStreamCaptureMode", (CUstreamCaptureMode *))                   \
    CALL(is_capturing, "cuStreamIsCapturing", (CUstream, CUstreamCaptureStatus *))                 \
    CALL(stream_context, "cuStreamGetCtx", (CUstream, CUcontext *))                                \
    CALL(stream_id, "cuStreamGetId", (CUstream, unsigned long long *))                             \
    CALL(stream_sync, "cuStreamSynchronize", (CUstream))                                           \
    CALL(stream_wait, "cuStreamWaitEvent", (CUstream, CUevent, unsigned))                          \
    CALL(event_create, "cuEventCreate", (CUevent *, unsigned))                                     \
    CALL(event_destroy, "cuEventDestroy", (CUevent))                                               \
    CALL(event_record, "cuEventRecord", (CUevent, CUstream))                                       \
    CALL(event_query, "cuEventQuery", (CUevent))                                                   \
    CALL(event_sync, "cuEventSynchronize", (CUevent))                                              \
    CALL(fill, "cuMemsetD8Async", (CUdeviceptr, unsigned char, size_t, CUstream))                  \
    CALL(memory_info, "cuMemGetInfo", (size_t *, size_t *))                                        \
    CALL(granularity, "cuMemGetAllocationGranularity",                                             \
         (size_t *, const CUmemAllocationProp *, CUmemAllocationGranularity_flags))                \
    CALL(memory_alloc, "cuMemAlloc", (CUdeviceptr *, size_t))                                      \
    CALL(memory_free, "cuMemFree", (CUdeviceptr))                                                  \
    CALL(managed_alloc, "cuMemAllocManaged", (CUdeviceptr *, size_t, unsigned))                    \
    CALL(host_alloc, "cuMemHostAlloc", (void **, size_t, unsigned))                                \
    CALL(host_free, "cuMemFreeHost", (void *))                                                     \
    CALL(reserve, "cuMemAddressReserve",                                                           \
         (CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long))                         \
    CALL(unreserve, "cuMemAddressFree", (CUdeviceptr, size_t))                                     \
    CALL(create, "cuMemCreate", (CUmemGenericAllocationHandle *, size_t,                           \
                                 const CUmemAllocationProp *, unsigned long long))                 \
    CALL(release, "cuMemRelease", (CUmemGenericAllocationHandle))                                  \
    CALL(map, "cuMemMap", (CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle,              \
                           unsigned long long))                                                    \
    CALL(unmap, "cuMemUnmap", (CUdeviceptr, size_t))                                               \
    CALL(access, "cuMemSetAccess", (CUdeviceptr, size_t, const CUmemAccessDesc *, size_t))

typedef enum gpi_call {
#define GPI_CALL_ENUM(field, name, parameters) GPI_CALL_##field,
    GPI_CALLS(GPI_CALL_ENUM)
#undef GPI_CALL_ENUM
    GPI_CALL_COUNT
} gpi_call;

static const char *const gpi_call_names[] = {
#define GPI_CALL_NAME(field, name, parameters) name,
    GPI_CALLS(GPI_CALL_NAME)
#undef GPI_CALL_NAME
};

enum { GPI_PEERS = 16 };

typedef struct gpi_driver {
#define GPI_CALL_FIELD(field, name, parameters) CUresult(CUDAAPI *field) parameters;
    GPI_CALLS(GPI_CALL_FIELD)
#undef GPI_CALL_FIELD
    int device, can_map;
    unsigned share;                 /* gpupool_share of mapped memory */
    CUcontext context;              /* the device's primary context; NULL: not open */
    uint64_t total_bytes;           /* of the device */
    uint64_t memory_calls;          /* made so far: calls that get, map or return memory */
    int peers[GPI_PEERS];           /* devices that may use the memory too, */
    CUcontext peer_contexts[GPI_PEERS];
    int peer_count;
} gpi_driver;

typedef struct gpi_visit { CUstreamCaptureMode mode; int is_pushed; } gpi_visit;

/* Makes a call of the table, and turns its result into gpupool's. */
#define GPI_TELL(driver, field, ...)                                                               \
    gpi_driver_told(driver, GPI_CALL_##field, (driver)->field(__VA_ARGS__))

static gpupool_result gpi_driver_told(gpi_driver *driver, gpi_call call, CUresult error) {
    const char *name = NULL;
    if (call >= GPI_CALL_memory_alloc) __atomic_add_fetch(&driver->memory_calls, 1, __ATOMIC_RELAXED);
    if (error == CUDA_SUCCESS) return GPUPOOL_OK;
    driver->error_name(error, &name);
    return gpi_system_fail(
        error == CUDA_ERROR_OUT_OF_MEMORY ? GPUPOOL_E_OUT_OF_MEMORY : GPUPOOL_E_CUDA,
        "%s: %s", gpi_call_names[call], name ? name : "unknown error");
}

static void gpi_driver_enter(const gpi_driver *driver, CUcontext context, gpi_visit *visit) {
    CUcontext current = NULL;
    visit->mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    visit->is_pushed = driver->current(&current) != CUDA_SUCCESS || current != context;
    if (visit->is_pushed) visit->is_pushed = driver->push(context) == CUDA_SUCCESS;
    driver->exchange(&visit->mode);
}

static void gpi_driver_leave(const gpi_driver *driver, gpi_visit *visit) {
    CUcontext popped;
    driver->exchange(&visit->mode);
    if (visit->is_pushed) driver->pop(&popped);
}

static void gpi_driver_describe(const gpi_driver *driver, CUmemAllocationProp *properties) {
    memset(properties, 0, sizeof *properties);
    properties->type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties->location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties->location.id = driver->device;
    if (driver->share & GPUPOOL_SHARE_PROCESSES)
        properties->requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    if (driver->share & GPUPOOL_SHARE_RDMA) properties->allocFlags.gpuDirectRDMACapable = 1;
}

/* Asks whether device and driver can map memory in granules of 2 MiB. */
static int gpi_driver_can_map(gpi_driver *driver) {
    CUmemAllocationProp properties;
    size_t bytes = 0;
    int can_map = 0;
    gpi_driver_describe(driver, &properties);
    driver->attribute(&can_map, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
                      driver->device);
    return can_map &&
           driver->granularity(&bytes, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM) ==
               CUDA_SUCCESS &&
           bytes && (2 << 20) % bytes == 0;
}

static gpupool_result gpi_driver_open(gpi_driver *driver, int device, unsigned share) {
    static const size_t fields[] = {
#define GPI_CALL_OFFSET(field, name, parameters) offsetof(gpi_driver, field),
        GPI_CALLS(GPI_CALL_OFFSET)
#undef GPI_CALL_OFFSET
    };
    size_t i, free_bytes = 0, total = 0;
    gpupool_result result;
    gpi_visit visit;
    memset(driver, 0, sizeof *driver);
    driver->device = device;
    driver->share = share;
    for (i = 0; i < GPI_CALL_COUNT; i++) {
        enum cudaDriverEntryPointQueryResult status;
        void *found = NULL;
        if (cudaGetDriverEntryPointByVersion(gpi_call_names[i], &found, 12000, cudaEnableDefault,
                                             &status) != cudaSuccess || !found)
            return gpi_system_fail(GPUPOOL_E_CUDA, "there is no CUDA driver with %s",
                                   gpi_call_names[i]);
        memcpy((char *)driver + fields[i], &found, sizeof found);
    }
    result = GPI_TELL(driver, retain, &driver->context, device);
    if (result != GPUPOOL_OK) return result;
    gpi_driver_enter(driver, driver->context, &visit);
    result = GPI_TELL(driver, memory_info, &free_bytes, &total);
    driver->total_bytes = total;
    driver->can_map = gpi_driver_can_map(driver);
    gpi_driver_leave(driver, &visit);
    return result;
}

static void gpi_driver_close(gpi_driver *driver) {
    int i;
    for (i = 0; i < driver->peer_count; i++) driver->release_context(driver->peers[i]);
    if (driver->context) driver->release_context(driver->device);
    driver->context = NULL;
}

static gpupool_result gpi_driver_create(gpi_driver *driver, uint64_t bytes,
                                        CUmemGenericAllocationHandle *handle) {
    CUmemAllocationProp properties;
    gpi_driver_describe(driver, &properties);
    return GPI_TELL(driver, create, handle, bytes, &properties, 0);
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
    return gpi_system_fail(GPUPOOL_E_CAPTURING, "the stream captures (rule 3): a request gets only "
                           "memory at hand; open a scope with gpupool_begin_capture before");
}

/* Records the stream's event, and makes it first if there is none. O2: if a capture began in
   between, the event is part of a graph, and a query would end the capture: it is thrown away
   unasked. Not under the arena's lock. */
static gpupool_result gpi_driver_mark(gpi_driver *driver, CUcontext context, CUevent *event,
                                      cudaStream_t stream) {
    gpupool_result result = GPUPOOL_OK;
    gpi_visit visit;
    gpi_driver_enter(driver, context, &visit);
    if (gpi_driver_is_capturing(driver, stream)) result = gpi_driver_capturing();
    if (result == GPUPOOL_OK && !*event)
        result = GPI_TELL(driver, event_create, event, CU_EVENT_DISABLE_TIMING);
    if (result == GPUPOOL_OK) {
        result = GPI_TELL(driver, event_record, *event, stream);
        if (gpi_driver_is_capturing(driver, stream)) {
            driver->event_destroy(*event);
            *event = NULL;
            result = gpi_driver_capturing();
        }
    }
    gpi_driver_leave(driver, &visit);
    return result;
}

/* Makes a stream wait for an event, on the device. Not under the arena's lock. */
static gpupool_result gpi_driver_follow(gpi_driver *driver, CUcontext context, cudaStream_t stream,
                                        CUevent event) {
    gpupool_result result;
    gpi_visit visit;
    gpi_driver_enter(driver, context, &visit);
    if (gpi_driver_is_capturing(driver, stream)) result = gpi_driver_capturing();
    else result = GPI_TELL(driver, stream_wait, stream, event, 0);
    gpi_driver_leave(driver, &visit);
    return result;
}

/* Waits for all work of a context, of destroyed streams too: cuMemFreeHost of a byte does, and
   unlike cuCtxSynchronize it ends no capture (seen on CUDA 13.0). Not under a lock. */
static gpupool_result gpi_driver_wait_context(gpi_driver *driver, CUcontext context) {
    gpupool_result result;
    void *memory = NULL;
    gpi_visit visit;
    gpi_driver_enter(driver, context, &visit);
    result = GPI_TELL(driver, host_alloc, &memory, 1, 0);
    if (result == GPUPOOL_OK) result = GPI_TELL(driver, host_free, memory);
    gpi_driver_leave(driver, &visit);
    return result;
}

/* O12: a device wait is one wait in the context of the device and of each peer. */
static gpupool_result gpi_driver_wait(gpi_driver *driver) {
    gpupool_result result = gpi_driver_wait_context(driver, driver->context);
    int i;
    for (i = 0; i < driver->peer_count && result == GPUPOOL_OK; i++)
        result = gpi_driver_wait_context(driver, driver->peer_contexts[i]);
    return result;
}

/* Waits for an event of a context. Not under a lock. */
static gpupool_result gpi_driver_wait_event(gpi_driver *driver, CUcontext context, CUevent event) {
    gpupool_result result;
    gpi_visit visit;
    gpi_driver_enter(driver, context, &visit);
    result = GPI_TELL(driver, event_sync, event);
    gpi_driver_leave(driver, &visit);
    return result;
}

#ifdef __cplusplus
}
#endif
#endif /* GPUPOOL_IMPLEMENTATION */
