/* The random world: calls of gpupool as bytes, eight for each call, and a model that judges them.
   Drivers (seeds.c, fuzz.c, threads.c, clock.c) say where the bytes come from. */
#ifndef WORLD_H
#define WORLD_H
#include "gpupool.h"
#include "fakecuda.h"

enum {
    STREAMS = 6, /* the last two are the legacy stream and the thread's own default stream */
    RENEWABLE = 4,
    BLOCKS = 192,
    GRAPHS = 4,
    OWNED = 64,
    NOBODY = -1,
    UNKNOWN = -2
};

typedef struct operation { /* each field chooses among what is possible then */
    unsigned char kind, slot, stream, flags;
    uint32_t number;
} operation;

typedef struct block {
    char *memory; /* NULL: the slot is unused */
    uint64_t asked, allocated;
    int home, stamp;
    int graph;      /* whose memory it is, or NOBODY */
    unsigned users; /* bits: graphs that use it, by record_stream in their scopes */
    int written;    /* by which graph's nodes; NOBODY: by a stream; UNKNOWN: not at all */
    int is_leaving; /* a host function will free it */
    struct world *world;
} block;

typedef struct graph {
    enum { GRAPH_UNUSED, GRAPH_OPEN, GRAPH_CAPTURING, GRAPH_DONE } state;
    gpupool_capture *scope; /* NULL: captured without one */
    int stream, launches;
    cudaGraphExec_t exec;
    int owned; /* blocks that were freed in its scope: nobody else may get their memory */
    struct {
        char *memory;
        uint64_t bytes;
    } freed[OWNED];
} graph;

enum { ANY_INTRUDER, NO_CAPTURE, NO_INTRUDER };

typedef struct world {
    gpupool_arena *arena;
    gpupool_arena_config config;
    cudaStream_t streams[STREAMS];
    int stream_count;
    int is_shared;  /* other threads use the arena and the streams */
    int is_real;    /* a real GPU: work ends, and host functions run, at any time */
    int is_plenty;  /* memory never runs out, but by a fault */
    int has_faults; /* calls may be made to fail */
    int has_fresh_sizes;
    int speed; /* of the device: operations in a step, at most */
    block blocks[BLOCKS];
    graph graphs[GRAPHS];
    uint64_t asked, allocated, live, peak; /* of live blocks */
    int is_inexact;                        /* arena's peak: since it began, two streams counted */
    uint64_t limit, old_limit, room; /* what there may be: bytes; old: until set_limit returns */
    uint64_t done;                         /* operations so far */
    long fired;                            /* faults before the call under way */
    int is_host_short;                     /* host memory was refused in it */
    char wrong[600];                       /* what was seen first; "": nothing */
    const block *busy;                     /* of the operation under way */
    operation intruder;
    long intrusions, entered; /* so far; and before the call under way */
    int is_intruding, guard;  /* one of these: which intruders may come */
} world;

/* model.c: what is expected */
void world_expect(world *, int holds, const char *what);
void world_enter(world *);
void world_leave(world *);
int world_is_faulty(const world *, gpupool_result);
int world_judge(world *, gpupool_result, unsigned allowed, const char *call);
void world_own(world *, int on);
void world_follow(world *, int first, int then);
void world_sync(world *, int stream);
void world_stamp(world *, block *);
void world_verify(world *, const block *, int stream);
void world_use_elsewhere(world *, const block *, int other);
void world_add(world *, block *, int is_asked);
void world_drop(block *);
void world_figures(world *);
graph *world_capture_of(world *, int stream);
int world_is_host_source(const world *);

/* blocks.c, graphs.c, arena.c: operations */
void world_block(world *, const operation *);
void world_free_block(world *, block *, const operation *);
void world_free_asleep(world *, int slot);
void world_graph(world *, const operation *);
void world_drop_graph(world *, graph *);
void world_renew(world *, const operation *);
void world_tune(world *, const operation *);
void world_fault(world *, const operation *);
void world_intrude(world *, const operation *);

/* world.c: runs operations in a world of its own, which the first one describes */
const char *world_run(const operation *, long count);
void world_do(world *, const operation *);
void world_free_all(world *);
void world_close(world *); /* with blocks and graphs alive, too */
operation world_operation_of(uint64_t seed, long index);

/* A driver's main: PROGRAM [FIRST [LAST [OPERATIONS]]]. It runs seeds until one returns a text. */
typedef struct driver {
    const char *name;
    uint64_t last; /* if the command says nothing */
    long operations;
    const char *(*run)(uint64_t seed, long operations);
} driver;
int world_drive(const driver *, int count, char **words);

/* library.c: the n-th allocation of host memory from now fails, once; 0: none. */
void world_refuse_host_memory(long n);
int world_host_memory_refused(void); /* since it was asked last */

#define BIT(result) (1u << (result))
#define OR_BROKEN BIT(31) /* of calls that a broken arena refuses: frees are not among them */
/* A call of gpupool, in which faults fire; what it must leave alone is looked at behind it. */
#define CALL(w, call) \
    __extension__({ \
        world_enter(w); \
        __typeof__(call) got_ = (call); \
        world_leave(w); \
        got_; \
    })
/* What fails for want of memory changes nothing: without the fault it succeeds. */
#define SURE(w, call) \
    __extension__({ \
        gpupool_result sure_ = CALL(w, call); \
        while (world_is_faulty(w, sure_)) sure_ = CALL(w, call); \
        sure_; \
    })
#endif
