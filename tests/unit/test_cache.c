// build: plain -O1
/* A stream's cache of small blocks, in every sequence of a few calls: which block comes next, whose
   cache takes a block back, what a record, a flush and a trim leave of it. */
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "kit.h"

#ifndef DEPTH
#define DEPTH 4 /* calls in a sequence */
#endif
enum { MOST = DEPTH + 1, STREAMS = 3, SIZES = 3 };

static gpupool_arena *arena;
static cudaStream_t handles[STREAMS]; /* the third is GPUPOOL_NO_STREAM */
static const uint64_t sizes[SIZES] = {1, 2, GPI_SMALL};

typedef struct block {
    void *memory;
    int size;  /* of sizes */
    int owner; /* the stream whose cache takes it back; -1: none */
} block;

/* The model: live blocks in the order of their requests, and caches as stacks. */
static struct {
    block live[MOST];
    int count;
    block cached[STREAMS][MOST];
    int cached_count[STREAMS];
} m;

static gpi_stream *stream_of(int i) {
    return gpi_stream_find(arena, gpi_stream_key(handles[i]));
}

/* Takes the block of that size that the cache got last; 0: it has none. */
static int model_take(int stream, int size, block *out) {
    int i = m.cached_count[stream];
    while (i-- > 0)
        if (m.cached[stream][i].size == size) {
            *out = m.cached[stream][i];
            for (m.cached_count[stream]--; i < m.cached_count[stream]; i++)
                m.cached[stream][i] = m.cached[stream][i + 1];
            return 1;
        }
    return 0;
}

static void allocate(int stream, int size) {
    uint64_t bytes = sizes[size] * GPI_UNIT;
    block from_cache, *one = &m.live[m.count];
    int is_cached = model_take(stream, size, &from_cache);
    if (m.count == MOST) return;
    one->memory = gpupool_alloc(arena, bytes, handles[stream]);
    one->size = size;
    one->owner = stream;
    if (!CHECK(one->memory)) return;
    if (is_cached) CHECK(one->memory == from_cache.memory);
    for (int i = 0; i < m.count; i++) { /* it overlaps no live block */
        const char *other = (const char *)m.live[i].memory, *mine = (const char *)one->memory;
        CHECK(mine + bytes <= other || other + sizes[m.live[i].size] * GPI_UNIT <= mine);
    }
    m.count++;
}

static void release(int at, int stream) {
    block one;
    if (at >= m.count) return;
    one = m.live[at];
    m.count--;
    for (int i = at; i < m.count; i++) m.live[i] = m.live[i + 1];
    kit_free(arena, one.memory, handles[stream]);
    if (one.owner == stream) m.cached[stream][m.cached_count[stream]++] = one;
    CHECK_RESULT(gpupool_free(arena, one.memory, handles[stream]), GPUPOOL_E_DOUBLE_FREE);
}

static void record(int at) {
    if (at >= m.count) return;
    CHECK_RESULT(gpupool_record_stream(arena, m.live[at].memory, handles[1]), GPUPOOL_OK);
    m.live[at].owner = -1;
}

static void flush(int stream) {
    gpi_stream *s = stream_of(stream);
    gpi_system_lock(&arena->lock);
    if (s) gpi_stream_flush(arena, s, 0);
    gpi_system_unlock(&arena->lock);
    m.cached_count[stream] = 0;
}

static void trim(void) {
    CHECK_RESULT(gpupool_trim(arena, 2 * MIB - 1), GPUPOOL_OK);
    for (int i = 0; i < STREAMS; i++) m.cached_count[i] = 0;
}

static void compare(void) {
    uint64_t bytes = 0;
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    for (int k = 0; k < STREAMS; k++) {
        const gpi_stream *s = stream_of(k);
        uint64_t units = 0, outs = (uint64_t)m.cached_count[k];
        for (int i = 0; i < m.cached_count[k]; i++) units += sizes[m.cached[k][i].size];
        for (int i = 0; i < m.count; i++) outs += m.live[i].owner == k;
        if (s) CHECK_EQ(s->cached_units, units);
        if (s) CHECK_EQ(s->outs, outs);
        if (!s) CHECK_EQ(outs, 0);
    }
    for (int i = 0; i < m.count; i++) bytes += sizes[m.live[i].size] * GPI_UNIT;
    CHECK_EQ(kit_stats(arena).allocated.now, bytes);
    CHECK_EQ(kit_stats(arena).blocks, m.count);
}

enum { CALLS = 15 };

static void call(int kind) {
    switch (kind) {
    case 0: allocate(0, 0); break;
    case 1: allocate(0, 1); break;
    case 2: allocate(0, 2); break;
    case 3: allocate(1, 0); break;
    case 4: allocate(2, 0); break;
    case 5: release(0, 0); break;
    case 6: release(1, 0); break;
    case 7: release(0, 1); break;
    case 8: release(0, 2); break;
    case 9: release(m.count - 1 < 0 ? MOST : m.count - 1, 0); break;
    case 10: record(0); break;
    case 11: flush(0); break;
    case 12: flush(1); break;
    case 13: trim(); break;
    default: gpupool_alloc(arena, 0, handles[0]); break; /* a failure */
    }
}

static void every_sequence(void) {
    long sequences = 1;
    for (int i = 0; i < DEPTH; i++) sequences *= CALLS;
    handles[0] = kit_stream[0];
    handles[1] = kit_stream[1];
    handles[2] = GPUPOOL_NO_STREAM;
    arena = kit_open(0);
    for (long n = 0; n < sequences && !atomic_load(&check_bad); n++) {
        long rest = n;
        memset(&m, 0, sizeof m);
        allocate(0, 0); /* so that short sequences get somewhere */
        for (int i = 0; i < DEPTH; i++, rest /= CALLS) {
            check_case("sequence %ld, call %d: kind %ld", n, i, rest % CALLS);
            call((int)(rest % CALLS));
        }
        compare();
        while (m.count) release(0, 0);
        for (int i = 0; i < STREAMS; i++) flush(i);
        compare();
    }
    printf("%ld sequences\n", sequences);
    kit_close(arena);
}

/* A cache that has more than its share gives half of it back. */
static void bounded(void) {
    enum { BLOCKS = 3000 };
    static void *blocks[BLOCKS];
    const gpi_stream *s;
    int i;
    handles[0] = kit_stream[0];
    arena = kit_open(0);
    for (i = 0; i < BLOCKS; i++) blocks[i] = gpupool_alloc(arena, 1000, handles[0]);
    s = stream_of(0);
    for (i = 0; i < BLOCKS; i++) {
        kit_free(arena, blocks[i], handles[0]);
        CHECK(s->cached_units <= gpi_stream_cache_most(arena));
    }
    CHECK(s->cached_units > gpi_stream_cache_most(arena) / 4);
    kit_close(arena);
}

int main(void) {
    KIT_TEST(every_sequence);
    KIT_TEST(bounded);
    return check_finish();
}
