/* Random calls over four streams against a simple model of what must be live, with the race oracle
   on. The model is a list of live blocks, kept in order of address so that an overlap shows. */
// build: plain -O1
// build: asan -fsanitize=address,undefined -DMODEL_CALLS=250000
#include "gpupool.h"
#include "arena_kit.h"

#if CHECK_FAKE

#ifndef MODEL_CALLS
#define MODEL_CALLS 500000 /* in each of the two runs of MAPPED; the other sources get a tenth */
#endif
#define MOST 400

typedef struct model_block {
    char *at;
    size_t bytes;
    int home;      /* the stream whose work comes last, and where it may be freed */
    int byte;      /* what both ends hold */
} model_block;

static struct {
    gpupool_arena *arena;
    gpupool_source source;
    model_block block[MOST];
    size_t count;
    uint64_t random, requested, live_most, refusals, across, records;
    size_t limit;
    cudaEvent_t event[KIT_STREAMS];
} m;

static size_t below(size_t bound) { return (size_t)check_below(&m.random, bound); }

/* ---- the model ---- */

static void model_add(model_block b) {
    size_t i = m.count;
    while (i > 0 && m.block[i - 1].at > b.at) i--;
    if (i > 0 && m.block[i - 1].at + m.block[i - 1].bytes > b.at)
        check_fail(__FILE__, __LINE__, "%p overlaps the block before it", (void *)b.at);
    if (i < m.count && b.at + b.bytes > m.block[i].at)
        check_fail(__FILE__, __LINE__, "%p overlaps the block after it", (void *)b.at);
    memmove(&m.block[i + 1], &m.block[i], (m.count - i) * sizeof b);
    m.block[i] = b;
    m.count++;
    m.requested += b.bytes;
    if (m.requested > m.live_most) m.live_most = m.requested;
}

static void model_remove(size_t i) {
    m.requested -= m.block[i].bytes;
    m.count--;
    memmove(&m.block[i], &m.block[i + 1], (m.count - i) * sizeof m.block[0]);
}

static void model_agrees(void) {
    gpupool_stats s = kit_stats(m.arena);
    uint64_t most = KIT_STREAMS * (s.reserved.now / 256 > MIB ? s.reserved.now / 256 : MIB);
    CHECK_RESULT(gpupool_check(m.arena), GPUPOOL_OK);
    CHECK_EQ(s.requested.now, m.requested);
    CHECK_EQ(s.blocks.now, m.count);
    /* with several streams at work it may be off by what their caches keep */
    CHECK(s.requested.peak + most >= m.live_most && s.requested.peak <= m.live_most + most);
    CHECK_EQ(s.failures, m.refusals);
    CHECK_EQ(s.limit_bytes, m.limit);
    if (m.source == GPUPOOL_SOURCE_MAPPED) CHECK_EQ(s.reserved.now, fake_used_bytes(0));
    for (size_t i = 0; i < m.count; i++)
        CHECK_EQ(kit_size(m.arena, m.block[i].at), m.block[i].bytes);
}

/* ---- work: cheap, but both ends of each block are written and verified ---- */

static void touch(const model_block *b, int stream, int write) {
    size_t edge = kit_edge(b->bytes);
    fake_access access[2] = {{b->at, edge, write, FAKE_BYTE(b->byte)},
                             {b->at + b->bytes - edge, edge, write, FAKE_BYTE(b->byte)}};
    CHECK_EQ(fake_kernel(kit_stream[stream], write ? "write" : "read", access, 2), cudaSuccess);
}

static void order(int earlier, int later) {
    CHECK_EQ(cudaEventRecord(m.event[earlier], kit_stream[earlier]), cudaSuccess);
    CHECK_EQ(cudaStreamWaitEvent(kit_stream[later], m.event[earlier], 0), cudaSuccess);
}

/* ---- calls ---- */

static size_t some_size(void) {
    size_t kind = below(100);
    if (kind < 60) return 1 + below(16 * KIB);
    if (kind < 85) return 1 + below(256 * KIB);
    if (kind < 98) return 1 + below(4 * MIB);
    return 1 + below(24 * MIB);
}

static void call_alloc(void) {
    int stream = (int)below(KIT_STREAMS);
    model_block b = {NULL, some_size(), stream, (int)below(256)};
    size_t alignment = below(8) ? 1 : (size_t)1 << below(14);
    if (m.count == MOST) return;
    if (alignment > 1)
        b.at = (char *)gpupool_alloc_aligned(m.arena, b.bytes, alignment, kit_stream[stream]);
    else if (b.bytes <= 64 * KIB && below(8) == 0) /* clearing larger ones would take the time */
        b.at = (char *)gpupool_zalloc(m.arena, b.bytes, kit_stream[stream]);
    else
        b.at = (char *)gpupool_alloc(m.arena, b.bytes, kit_stream[stream]);
    if (!b.at) {
        CHECK_RESULT(gpupool_last_result(), GPUPOOL_E_OUT_OF_MEMORY);
        CHECK(m.limit != 0);
        m.refusals++;
        return;
    }
    CHECK_EQ((uintptr_t)b.at % alignment, 0);
    model_add(b);
    touch(&b, stream, 1);
}

/* Freed where its last work is queued; record_use is what covers work on other streams. */
static void call_free(void) {
    if (!m.count) return;
    size_t i = below(m.count);
    touch(&m.block[i], m.block[i].home, 0);
    CHECK_RESULT(gpupool_free(m.arena, m.block[i].at, kit_stream[m.block[i].home]), GPUPOOL_OK);
    model_remove(i);
}

/* Another stream, made to wait for the home stream, reads the block and says so. */
static void call_record_use(void) {
    if (!m.count) return;
    model_block *b = &m.block[below(m.count)];
    int other = (int)below(KIT_STREAMS);
    order(b->home, other);
    touch(b, other, 0);
    CHECK_RESULT(gpupool_record_stream(m.arena, b->at, kit_stream[other]), GPUPOOL_OK);
    m.records++;
}

/* The block moves to another stream for good: written and later freed there. Recorded readers are
   ordered before the write by the test itself, as a program would have to. */
static void call_hand_over(void) {
    if (!m.count) return;
    model_block *b = &m.block[below(m.count)];
    int other = (int)below(KIT_STREAMS);
    for (int s = 0; s < KIT_STREAMS; s++)
        if (s != other) order(s, other);
    b->home = other;
    b->byte = (int)below(256);
    touch(b, other, 1);
    m.across++;
}

static void call_limit(void) {
    size_t reserved = kit_reserved(m.arena);
    m.limit = below(3) ? reserved / 2 + below(reserved + 8 * MIB) + 1 : 0;
    CHECK_RESULT(gpupool_set_limit(m.arena, m.limit), GPUPOOL_OK);
}

static void call_trim(void) {
    size_t before = kit_reserved(m.arena), released = 0;
    CHECK_RESULT(gpupool_trim(m.arena, below(before + 1), &released), GPUPOOL_OK);
    CHECK_EQ(released, before - kit_reserved(m.arena));
}

static void one_call(void) {
    size_t kind = below(1000);
    /* drawn to and fro between few and many live blocks */
    size_t allocs = m.count < below(MOST) ? 500 : 400;
    if (kind < allocs) call_alloc();
    else if (kind < 900) call_free();
    else if (kind < 970) call_record_use();
    else if (kind < 996) call_hand_over();
    else if (kind < 998) call_limit();
    else if (kind < 999) call_trim();
    else CHECK_RESULT(gpupool_retire_stream(m.arena, kit_stream[below(KIT_STREAMS)]), GPUPOOL_OK);
}

static void step_a_little(void) {
    for (size_t i = below(4); i > 0; i--) fake_step(kit_stream[below(KIT_STREAMS)]);
    if (fake_pending_all() > 300 && below(2)) fake_run(kit_stream[below(KIT_STREAMS)]);
}

/* Every way of finding memory was gone; else the numbers drawn above no longer suit. */
static void nothing_was_spared(gpupool_source source, fake_run_mode mode) {
    gpupool_stats s = kit_stats(m.arena);
    CHECK(m.across > 0 && m.records > 0);
    CHECK(m.refusals > 0);
    if (source == GPUPOOL_SOURCE_BYPASS) return;
    CHECK(s.splits > 0 && s.merges > 0);
    CHECK(s.chunks_gained > 0 && s.chunks_lost > 0);
    if (source == GPUPOOL_SOURCE_PINNED) return; /* quiet memory only: the host has it at once */
    CHECK(s.same_stream_allocs > 0);
    if (source == GPUPOOL_SOURCE_MAPPED) CHECK(s.stitches > 0);
    if (mode == FAKE_STEPPED) CHECK(s.fence_waits > 0);
    if (mode == FAKE_STEPPED && source == GPUPOOL_SOURCE_MAPPED) CHECK(s.host_syncs > 0);
}

static void run(gpupool_source source, fake_run_mode mode, long calls, uint64_t seed) {
    memset(&m, 0, sizeof m);
    m.random = seed;
    m.source = source;
    m.arena = kit_open(source);
    for (int s = 0; s < KIT_STREAMS; s++)
        CHECK_EQ(cudaEventCreateWithFlags(&m.event[s], cudaEventDisableTiming), cudaSuccess);
    fake_mode(mode);
    for (long n = 0; n < calls && !atomic_load(&check_bad); n++) {
        if (n % 256 == 0)
            check_case("source %d, mode %d, seed %llu, call %ld or later", (int)source, (int)mode,
                       (unsigned long long)seed, n);
        one_call();
        if (mode == FAKE_STEPPED) step_a_little();
        if (n % 4096 == 0) model_agrees();
        if (n % 256 == 0) CHECK_EQ(fake_failures(), 0);
    }
    model_agrees();
    nothing_was_spared(source, mode);
    while (m.count) call_free();
    for (int s = 0; s < KIT_STREAMS; s++) CHECK_EQ(cudaEventDestroy(m.event[s]), cudaSuccess);
    kit_close(m.arena);
}

static void mapped_stepped(void) { run(GPUPOOL_SOURCE_MAPPED, FAKE_STEPPED, MODEL_CALLS, 1); }
static void mapped_eager(void) { run(GPUPOOL_SOURCE_MAPPED, FAKE_EAGER, MODEL_CALLS, 2); }
static void device_stepped(void) { run(GPUPOOL_SOURCE_DEVICE, FAKE_STEPPED, MODEL_CALLS / 10, 12); }
static void custom_eager(void) { run(GPUPOOL_SOURCE_CUSTOM, FAKE_EAGER, MODEL_CALLS / 10, 4); }
static void pinned_stepped(void) { run(GPUPOOL_SOURCE_PINNED, FAKE_STEPPED, MODEL_CALLS / 20, 7); }
static void bypass_stepped(void) { run(GPUPOOL_SOURCE_BYPASS, FAKE_STEPPED, MODEL_CALLS / 20, 6); }

#endif

int main(void) {
    FAKE_TEST(mapped_stepped);
    FAKE_TEST(mapped_eager);
    FAKE_TEST(device_stepped);
    FAKE_TEST(custom_eager);
    FAKE_TEST(pinned_stepped);
    FAKE_TEST(bypass_stepped);
    return check_finish();
}
