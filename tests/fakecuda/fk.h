/* fk.h: what the rooms of fakecuda share. Everything here is used with the one lock held, which
 * fk_begin takes and fk_end gives back; no room takes it twice. */
#ifndef FK_H
#define FK_H

#include "fakecuda.h"

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#define FK_DEVICES  4
#define FK_GRANULE  ((size_t)2 << 20)
#define FK_RUNTIME  0
#define FK_DRIVER   1
#define FK_TWINS    FK_DRIVER
#define FK_OWN      2
#define FK_ALLOC    4
#define FK_EXEMPT   8
#define FK_UNSAFE   16
#define FK_BARE     32
#define FK_HERE     64
#define FK_UNDOES   128
#define FK_RESOURCE 256
#define FK_STALLS   512
#define FK_COUNT(a) ((int)(sizeof(a) / sizeof *(a)))

typedef enum fk_call {
#define FK_CALL(name, kind, traits, price) FK_##name,
#include "fk_calls.h"
#undef FK_CALL
    FK_CALL_COUNT
} fk_call;

/* ---- fk_core.c: the lock, the way in and out of a call, faults, counters, failures ---- */

typedef struct fk_thread {
    int                        device;  /* and its context: each has one */
    int                        current; /* that context is; else none is */
    cudaError_t                last;
    enum cudaStreamCaptureMode mode;
    int                        in_host_function;
    fk_call                    call;      /* under way, or the last one */
    int                        own_stream; /* to it a stream of 0 is the thread's own */
    int                        pushed[8], depth;    /* contexts under the current one; -1: none */
    struct fk_stream          *own[FK_DEVICES];    /* cudaStreamPerThread */
    uint64_t                   epoch[FK_DEVICES];  /* own is good while the context's is this */
    uint64_t                   entered; /* when this thread's current call began */
} fk_thread;

fk_thread  *fk_me(void);
void        fk_lock(void);
void        fk_unlock(void);
void        fk_wait_change(void);       /* drops the lock until fk_changed */
void        fk_changed(void);
void        fk_after_fork_in_child(void);
int         fk_begin(fk_call call, int own_stream); /* 0, or the error to answer with; locks */
int         fk_end(int error);
int         fk_of_driver(void);         /* the call under way is */
void        fk_price(uint64_t ns);
void        fk_take_time(uint64_t ns);
typedef struct fk_point { double bytes, ns; } fk_point;
void        fk_price_by_size(const fk_point *points, int n, size_t bytes);
void        fk_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
void        fk_misuse(const char *format, ...) __attribute__((format(printf, 1, 2)));
void       *fk_new(size_t count, size_t bytes);    /* zeroed; ends the program when there is none */
void       *fk_grow(void *old, size_t count, size_t bytes);
void        fk_shift(void *to, const void *from, size_t bytes);
int         fk_named_call(const char *name); /* -1, and a failure: there is none */
const char *fk_call_name(void);         /* of the one under way */

/* Every call of CUDA's is defined so: the way in; the work, unless a fault or a rule forbids it;
   the way out. What the work answers may be an error of the runtime or of the driver: their numbers
   are the same. A twin is for programs to which a stream of 0 is the thread's own. */
#define FK_DEFINE_AS(result, function, call, own_stream, parameters, work) \
    result function parameters {                                           \
        int refusal = fk_begin(call, own_stream);                          \
        return (result)fk_end(refusal ? refusal : (int)(work));            \
    }
#define FK_DEFINE(result, name, parameters, work) \
    FK_DEFINE_AS(result, name, FK_##name, 0, parameters, work)
#define FK_DEFINE_TWINS(result, name, parameters, work)        \
    FK_DEFINE_AS(result, name, FK_##name, 0, parameters, work) \
    FK_DEFINE_AS(result, name##_ptsz, FK_##name, 1, parameters, work)
/* One of the runtime and one of the driver that do the same. */
#define FK_DEFINE_BOTH(runtime, driver, parameters, work)                    \
    FK_DEFINE_AS(cudaError_t, runtime, FK_##runtime, 0, parameters, work) \
    FK_DEFINE_AS(CUresult, driver, FK_##driver, 0, parameters, work)
#define FK_DEFINE_BOTH_TWINS(runtime, driver, parameters, work)                      \
    FK_DEFINE_AS(cudaError_t, runtime, FK_##runtime, 0, parameters, work)         \
    FK_DEFINE_AS(cudaError_t, runtime##_ptsz, FK_##runtime, 1, parameters, work) \
    FK_DEFINE_AS(CUresult, driver, FK_##driver, 0, parameters, work)              \
    FK_DEFINE_AS(CUresult, driver##_ptsz, FK_##driver, 1, parameters, work)

/* A control of the test's, which needs the lock and nothing else of a call: it does something, or
   asks for a value. */
#define FK_CONTROL(function, parameters, statement) \
    void function parameters {                      \
        fk_lock();                                  \
        statement;                                  \
        fk_unlock();                                \
    }
#define FK_QUESTION(type, function, parameters, value) \
    type function parameters {                         \
        type answer;                                   \
        fk_lock();                                     \
        answer = (value);                              \
        fk_unlock();                                   \
        return answer;                                 \
    }

/* ---- fk_fault.c ---- */

int         fk_fault_of(fk_call call, int traits); /* 0, or the error that the call is to answer */
void        fk_faults_clear(void);

/* ---- fk_clock.c: vector clocks ---- */

typedef struct fk_clock {
    uint64_t *tick;
    uint32_t  n;
} fk_clock;

uint64_t fk_clock_get(const fk_clock *clock, uint32_t slot);
void     fk_clock_set(fk_clock *clock, uint32_t slot, uint64_t tick);
void     fk_clock_join(fk_clock *into, const fk_clock *from);
void     fk_clock_copy(fk_clock *into, const fk_clock *from);
int      fk_clock_covers(const fk_clock *big, const fk_clock *small);
void     fk_clock_drop(fk_clock *clock);

/* ---- fk_memory.c: physical pieces, address ranges ---- */

typedef enum fk_kind { FK_MALLOC, FK_RESERVED, FK_MANAGED, FK_HOST, FK_REGISTERED } fk_kind;

typedef struct fk_piece {
    size_t          bytes;
    uint64_t        file_at;
    unsigned char  *view;      /* where the host reaches the bytes; NULL until first touched */
    struct fk_page **pages;    /* the oracle's memory, one per granule */
    int             device;
    int             refs;      /* one for the handle, one for each mapping */
    fk_kind         kind;      /* FK_RESERVED: made by cuMemCreate */
    uint64_t        handle;    /* while it is held */
    int             holds;     /* releases that the handle still takes */
    int             types;     /* that it may be exported as */
    int             is_shared; /* was exported, or imported: other processes write it too */
    int             file;      /* another process's, that the bytes are in; 0: they are in ours */
} fk_piece;

typedef struct fk_entry {      /* one granule of a reservation */
    fk_piece *piece;
    uint32_t  index;           /* which granule of the piece */
    uint32_t  access;          /* a bit for each device that has it */
} fk_entry;

typedef struct fk_range {
    uint64_t  base;
    size_t    bytes;
    fk_kind   kind;
    int       device;          /* whose work is waited for before it goes */
    fk_piece *piece;           /* all kinds but FK_RESERVED */
    fk_entry *entries;         /* FK_RESERVED */
    size_t    mapped;          /* granules mapped */
} fk_range;

typedef struct fk_extent {     /* a stretch of memory inside one piece */
    fk_piece *piece;           /* NULL: not mapped here */
    size_t    at, bytes;
    int       kind;            /* fk_kind, or -1: ordinary host memory */
    int       has_access;      /* the device asked for */
} fk_extent;

/* All device addresses lie between, and the handles in the first 4 GiB: nothing is there, neither
   the kernel nor the sanitizers map anything, on x86-64. */
#define FK_GIB         ((uint64_t)1 << 30)
#define FK_DEVICE_BASE ((uint64_t)0x340000000000)
#define FK_DEVICE_END  (FK_DEVICE_BASE + 32 * 1024 * FK_GIB)
#define FK_HANDLE_ROOM (4 * FK_GIB)

void       fk_memory_start(void);
fk_range  *fk_find_range(uint64_t address);
fk_range  *fk_add_range(uint64_t base, size_t bytes, fk_kind kind, int device, fk_piece *piece);
void       fk_drop_range(fk_range *range);
uint64_t   fk_pick_address(size_t bytes, size_t alignment);
fk_piece  *fk_new_piece(size_t bytes, int device, fk_kind kind); /* NULL: device memory is short */
void       fk_unref_piece(fk_piece *piece);
int        fk_memory_file(void);
fk_piece  *fk_import_piece(int file, uint64_t at, size_t bytes, int device);
fk_extent  fk_extent_at(uint64_t address, size_t bytes, int device);
unsigned char *fk_bytes(const fk_extent *extent);
void       fk_allow_peer(int device, int peer);
int        fk_peer_allowed(int device, int peer);
size_t     fk_device_free_bytes(int device);
size_t     fk_device_total(int device);
void       fk_count_mapping(int by);             /* 1: one more handle's mapping, -1: one less */
void       fk_memory_drop_device(int device);    /* but not what is mapped; -1: all there is */
long       fk_memory_objects(void);
void       fk_memory_defaults(void);
fk_piece  *fk_find_handle(uint64_t handle);      /* fk_vmm.c; NULL: it is no live one */
uint64_t   fk_hold_handle(fk_piece *piece);
long       fk_handle_objects(void);              /* fk_vmm.c */
void       fk_handles_drop(void);

/* ---- fk_oracle.c ---- */

typedef struct fk_actor {      /* who touches memory: one operation of one stream */
    uint32_t        slot;
    uint64_t        tick;
    uint64_t        stream_id;
    const fk_clock *clock;     /* what happened before it */
    const char     *name;
} fk_actor;

/* address: where the extent was reached. An actor without a tick is the host: it is judged only. */
void fk_oracle_touch(const fk_extent *extent, const fake_access *access, const fk_actor *actor,
                     uint64_t address);
void fk_oracle_release(fk_piece *piece, uint64_t mapping);
void fk_oracle_unmapped(fk_piece *piece, uint64_t mapping);
void fk_oracle_drop(fk_piece *piece);
void fk_oracle_enable(int on);

/* ---- fk_work.c: what an operation does ---- */

typedef enum fk_work_kind { FK_KERNEL, FK_COPY, FK_HOSTCALL, FK_MARK } fk_work_kind;

typedef struct fk_work {
    fk_work_kind   kind;
    int            refs;
    int            device;
    const char    *name;
    fake_access   *accesses;   /* FK_KERNEL, and what sets bytes */
    int            n;
    unsigned char *to;         /* FK_COPY: rows of width bytes */
    const unsigned char *from;
    unsigned char *staged;     /* FK_COPY from ordinary memory: the bytes as they were */
    size_t         to_pitch, from_pitch, width, height;
    cudaHostFn_t   function;   /* FK_HOSTCALL */
    void          *user;
} fk_work;

fk_work *fk_new_work(fk_work_kind kind, const char *name, int device);
void     fk_unref_work(fk_work *work);
void     fk_run_work(const fk_work *work);       /* all but FK_HOSTCALL, which drops the lock */
void     fk_note_work(const fk_work *work, const fk_actor *actor);  /* tells the oracle */

/* ---- fk_queue.c: streams, queues, and how they run ---- */

typedef struct fk_op {
    struct fk_op *next;
    fk_work      *work;
    uint64_t      tick;
    fk_clock      need;
} fk_op;

typedef struct fk_stream {
    cudaStream_t       handle;
    unsigned long long id;
    int                device;
    int                nonblocking;
    int                live;     /* 0: destroyed, its queue still runs */
    int                hidden;   /* made by fakecuda itself, not by the program */
    int                held;
    int                busy;     /* a host function runs with the lock dropped */
    uint32_t           slot;
    fk_clock           tail;     /* all that happened before whatever is queued next */
    fk_op             *first, *last;
    int                queued;
    struct fk_capture *capture;
    int                frontier; /* the node that the next captured node comes after; -1: none */
    int                lane;
} fk_stream;

fk_stream  *fk_stream_of(cudaStream_t handle, int *error);
fk_stream  *fk_stream_with_room(cudaStream_t handle, int *error);
void        fk_stall(void);              /* while a thread is stuck in a full queue */
fk_stream  *fk_new_stream(int device, int nonblocking, int hidden);
fk_stream  *fk_next_stream(uint32_t *i);         /* each, from 0 on; then NULL */
void        fk_retire_stream(fk_stream *stream);
fk_stream  *fk_legacy(int context);
void        fk_issue(fk_stream *stream, fk_work *work, const fk_clock *after);
cudaError_t fk_submit(fk_stream *stream, fk_work *work);   /* takes the reference to work */
int         fk_done(const fk_clock *clock);
int         fk_run_for(const fk_clock *target);  /* runs until it is done */
void        fk_drive(const fk_clock *target);    /* and then the host knows */
void        fk_drive_context(int device);        /* -1: every one */
const fk_clock *fk_known(void);                  /* what the host knows to be done */
void        fk_learn(const fk_clock *clock);
void        fk_holds_end(void);
void        fk_streams_drop_context(int context);
long        fk_stream_objects(void);
void        fk_streams_defaults(void);

/* ---- fk_event.c ---- */

void        fk_events_drop_context(int context);
long        fk_event_objects(void);

/* ---- fk_capture.c ---- */

cudaError_t fk_forbidden(void);          /* an unsafe call: 0, or the error; captures are lost */
cudaError_t fk_capturing_refuses(fk_stream *stream);       /* waiting for a capturing stream */
cudaError_t fk_context_capturing_refuses(int context);
cudaError_t fk_implicit(fk_stream *stream);      /* the legacy stream beside a capture */
cudaError_t fk_capture_add(fk_stream *stream, fk_work *work);
cudaError_t fk_capture_fork(fk_stream *stream, uint64_t capture, int node);
uint64_t    fk_capture_id(const fk_stream *stream);        /* 0: not capturing */
int         fk_capture_lost(const fk_stream *stream);
int         fk_capture_lose(uint64_t capture);   /* by id; 0: it has ended */
void        fk_capture_forget(fk_stream *stream);          /* the stream is being destroyed */
long        fk_capture_objects(void);
void        fk_captures_drop(void);

/* ---- fk_graph.c ---- */

typedef struct fk_node {
    fk_work *work;
    int      after[2];         /* other nodes; -1: none */
    int      lane;
} fk_node;

typedef struct fk_graph {
    fk_node *nodes;
    int      n, lanes, refs;
} fk_graph;

void        fk_unref_graph(fk_graph *graph);
int         fk_add_node(fk_graph *graph, fk_work *work, int after, int and_after, int lane);
cudaGraph_t fk_give_graph(fk_graph *graph);      /* a handle for the program */
long        fk_graph_objects(void);
void        fk_graphs_drop(void);
void        fk_graphs_drop_context(int context);

/* ---- fk_device.c ---- */

int  fk_is_device(int device);
int  fk_has_vmm(int device);
void fk_context_made(int device);       /* by a call of the runtime, which uses it too */
int  fk_no_context(void);              /* 0, or why the current one cannot be used */
int  fk_context_of(CUcontext handle);  /* -1: no context of ours */
long fk_retained_contexts(void);
void fk_devices_defaults(void);

/* ---- the driver's calls to which a stream of 0 is the thread's own default stream ---- */

CUresult cuStreamSynchronize_ptsz(CUstream s);
CUresult cuStreamGetId_ptsz(CUstream s, unsigned long long *id);
CUresult cuStreamGetCtx_ptsz(CUstream s, CUcontext *out);
CUresult cuStreamIsCapturing_ptsz(CUstream s, CUstreamCaptureStatus *status);
CUresult cuEventRecord_ptsz(CUevent e, CUstream s);
CUresult cuStreamWaitEvent_ptsz(CUstream s, CUevent e, unsigned int flags);
CUresult cuMemsetD8Async_ptsz(CUdeviceptr to, unsigned char value, size_t n, CUstream s);
CUresult cuMemcpyAsync_ptsz(CUdeviceptr to, CUdeviceptr from, size_t n, CUstream s);
CUresult cuMemcpy2DAsync_ptsz(const CUDA_MEMCPY2D *rows, CUstream s);

/* ---- fk_pool.c: handles that are numbers, not pointers, so that a dead one is seen ---- */

typedef struct fk_pool {
    uint64_t base;
    void   **items;
    size_t   n, room, live;
    size_t  *spare;            /* last freed, first reused */
    size_t   n_spare;
} fk_pool;

uint64_t fk_pool_add(fk_pool *pool, void *item);
void    *fk_pool_get(const fk_pool *pool, uint64_t handle);
void     fk_pool_remove(fk_pool *pool, uint64_t handle);
void     fk_pool_reset(fk_pool *pool);
#define FK_HANDLE_STEP 64u

#endif
