/* Sleep and wake: the device's memory goes, while addresses, blocks and what they hold stay. */
#include "gpupool.h"
#include "kit.h"

#define A kit_stream[0]
#define B kit_stream[1]
#define MOST 320
#define PIECE (2 * MIB)
#define LARGE (9 * MIB) /* stitched: no two free pieces are side by side */

typedef struct block { /* full of a byte of its own */
    void *at;          /* or NULL: freed */
    size_t bytes;
} block;

static gpupool_arena *arena;
static block blocks[MOST];
static int count;

static int byte_of(int i) {
    return i % 251 + 1;
}

static void write_all(void) {
    for (int i = 0; i < count; i++) kit_write(blocks[i].at, blocks[i].bytes, A, byte_of(i));
}

static void verify(void) {
    kit_follow(B, A);
    for (int i = 0; i < count; i++) kit_verify(blocks[i].at, blocks[i].bytes, B, byte_of(i));
}

static void add(size_t bytes) {
    blocks[count].bytes = bytes;
    blocks[count].at = gpupool_alloc(arena, bytes, A);
    CHECK(blocks[count].at);
    kit_write(blocks[count].at, bytes, A, byte_of(count));
    count++;
}

static void drop(int i) {
    kit_free(arena, blocks[i].at, A);
    blocks[i].at = NULL;
}

static void drop_all(void) {
    for (int i = 0; i < count; i++) drop(i);
    count = 0;
}

static void begin(size_t limit, size_t chunk_bytes) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED, limit);
    config.chunk_bytes = chunk_bytes;
    arena = kit_create(&config);
    count = 0;
}

static void end(void) {
    verify();
    drop_all();
    kit_close(arena);
}

/* Large blocks and small ones; the last one is stitched. */
static void fill(void) {
    for (int i = 0; i < 23; i++) add(i < 16 ? PIECE : (size_t)1 << (i - 8));
    for (int i = 0; i < 16; i += 2) drop(i);
    add(LARGE);
    CHECK(kit_stats(arena).stitches > 0);
}

static void begin_full(void) {
    begin(64 * MIB, PIECE);
    fill();
}

static void sleep_now(gpupool_content content) {
    CHECK_RESULT(gpupool_sleep(arena, content), GPUPOOL_OK);
    CHECK_EQ(kit_stats(arena).reserved.now, 0);
#if CHECK_FAKE
    CHECK_EQ(fake_used_bytes(0), 0);
#endif
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
}

static void wake_now(void) {
    uint64_t asleep = kit_stats(arena).asleep;
    CHECK_RESULT(gpupool_wake(arena), GPUPOOL_OK);
    CHECK(kit_stats(arena).reserved.now <= asleep);
    CHECK_EQ(kit_stats(arena).asleep, 0);
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
}

/* ---- what stays ---- */

/* Content stays, unless it is to be dropped, and the arena works on as if it had not slept, fast
   paths too. */
static void work_goes_on(void) {
    gpupool_block about;
    begin_full();
    for (int round = 0; round < 5; round++) {
        uint64_t reserved = kit_stats(arena).reserved.now;
        check_case("round %d", round);
        sleep_now(round % 2 ? GPUPOOL_DISCARD : GPUPOOL_KEEP);
        CHECK(kit_stats(arena).asleep > 0 && kit_stats(arena).asleep <= reserved);
        CHECK_EQ(kit_stats(arena).blocks, 16);
        CHECK_RESULT(gpupool_get_block(arena, blocks[1].at, &about), GPUPOOL_OK);
        wake_now();
        if (round % 2) write_all();
        verify();
        if (!round) continue; /* what has woken sleeps again */
        drop_all();
        fill();
    }
    end();
}

/* Idle memory is neither saved nor got again. */
static void idle_memory_goes(void) {
    begin(0, 0);
    add(4 * MIB);
    kit_free(arena, gpupool_alloc(arena, 100 * MIB, B), B);
    CHECK(kit_stats(arena).reserved.now >= 100 * MIB);
    sleep_now(GPUPOOL_KEEP);
    CHECK(kit_stats(arena).asleep < 40 * MIB);
    wake_now();
    end();
}

/* ---- pieces: what is copied as one ---- */

/* More stretches than copies that are under way at a time, all a granule apart. */
static void many_pieces(void) {
    begin(0, 32 * MIB);
    for (int i = 0; i < MOST; i++) add(PIECE);
    for (int i = 1; i < MOST; i += 2) drop(i);
    sleep_now(GPUPOOL_KEEP);
    wake_now();
    end();
}

/* A block that is larger than the first piece up, with marks at its ends and at the seams; its
   memory is mapped piece by piece. */
static void large_pieces(void) {
    static const size_t marks[] = {0, 199, 200, 255, 256, 299};
    char *large;
    begin(0, 100 * MIB);
    large = (char *)gpupool_alloc(arena, 300 * MIB, A);
    CHECK(large);
    for (size_t i = 0; i < KIT_COUNT(marks); i++)
        kit_write(large + marks[i] * MIB, MIB, A, (int)i + 1);
    sleep_now(GPUPOOL_KEEP);
    wake_now();
    for (size_t i = 0; i < KIT_COUNT(marks); i++)
        kit_verify(large + marks[i] * MIB, MIB, A, (int)i + 1);
    kit_free(arena, large, A);
    kit_close(arena);
}

/* What is freed while the arena sleeps is forgotten: a whole chunk in the middle of a stretch, a
   part of a chunk, and the beginning of one. */
static void freed_meanwhile(void) {
    begin(0, 4 * MIB);
    for (int i = 0; i < 24; i++) add(MIB);
    sleep_now(GPUPOOL_KEEP);
    for (int i = 8; i < 13; i++) drop(i); /* a chunk and a quarter */
    drop(16);
    drop(23);
    wake_now();
    CHECK_EQ(kit_stats(arena).reserved.now, 20 * MIB);
    verify();
    for (int i = 0; i < 7; i++) add(MIB);
    sleep_now(GPUPOOL_KEEP);
    wake_now();
    end();
}

/* A graph of three nodes: it fills a stitched block, which is freed in the scope, and copies
   `weights`, which is freed there, too, to a block that is returned. */
static cudaGraphExec_t capture(gpupool_capture **scope, void *weights, void **own) {
    cudaGraphExec_t graph = NULL;
    cudaGraph_t captured = NULL;
    void *scratch;
    CHECK_RESULT(gpupool_begin_capture(arena, A, scope), GPUPOOL_OK);
    CHECK_EQ(cudaStreamBeginCapture(A, cudaStreamCaptureModeGlobal), cudaSuccess);
    scratch = gpupool_alloc(arena, LARGE, A);
    *own = gpupool_alloc(arena, PIECE, A);
    kit_write(scratch, LARGE, A, 6);
    CHECK_EQ(cudaMemcpyAsync(*own, weights, PIECE, cudaMemcpyDeviceToDevice, A), cudaSuccess);
    kit_free(arena, scratch, A);
    kit_free(arena, weights, A);
    CHECK_RESULT(gpupool_end_capture(*scope), GPUPOOL_OK);
    CHECK_EQ(cudaStreamEndCapture(A, &captured), cudaSuccess);
    CHECK_EQ(cudaGraphInstantiate(&graph, captured, 0), cudaSuccess);
    CHECK_EQ(cudaGraphDestroy(captured), cudaSuccess);
    return graph;
}

/* A graph's nodes hold addresses: it runs after the arena has slept, on content that was kept. */
static void graphs_stay(void) {
    gpupool_capture *scope = NULL;
    cudaGraphExec_t graph;
    uint64_t stitches;
    void *own;
    begin_full();
    CHECK_EQ(cudaStreamSynchronize(A), cudaSuccess);
    kit_free(arena, blocks[--count].at, GPUPOOL_NO_STREAM);
    graph = capture(&scope, blocks[1].at, &own);
    blocks[1].at = NULL;
    stitches = kit_stats(arena).stitches;
    CHECK(stitches > 0);
    for (int round = 0; round < 3; round++) {
        check_case("round %d", round);
        sleep_now(GPUPOOL_KEEP);
        wake_now();
        CHECK_EQ(kit_stats(arena).stitches, stitches);
        kit_write(own, PIECE, B, 9);
        CHECK_EQ(cudaGraphLaunch(graph, B), cudaSuccess);
        kit_verify(own, PIECE, B, 2);
        verify();
    }
    sleep_now(GPUPOOL_KEEP);
    CHECK_EQ(cudaGraphExecDestroy(graph), cudaSuccess);
    CHECK_RESULT(gpupool_release_capture(scope), GPUPOOL_OK);
    CHECK_EQ(kit_stats(arena).blocks, 14);
    wake_now();
    CHECK_EQ(kit_stats(arena).stitches, 0);
    end();
}

/* ---- while it sleeps ---- */

static void requests_are_refused(void) {
    gpupool_capture *scope;
    size_t bytes;
    begin_full();
    sleep_now(GPUPOOL_KEEP);
    for (bytes = 1; bytes < 64 * MIB; bytes *= 8) {
        KIT_FAILS(gpupool_alloc(arena, bytes, A), GPUPOOL_E_ASLEEP, "gpupool_wake");
        KIT_FAILS(gpupool_alloc(arena, bytes, GPUPOOL_NO_STREAM), GPUPOOL_E_ASLEEP, "gpupool_wake");
    }
    KIT_REFUSES(gpupool_sleep(arena, GPUPOOL_KEEP), GPUPOOL_E_ASLEEP, "sleeps");
    KIT_REFUSES(gpupool_trim(arena, 0), GPUPOOL_E_ASLEEP, "sleeps");
    KIT_REFUSES(gpupool_get_available(arena, A, &bytes), GPUPOOL_E_ASLEEP, "sleeps");
    KIT_REFUSES(gpupool_begin_capture(arena, A, &scope), GPUPOOL_E_ASLEEP, "sleeps");
    KIT_REFUSES(gpupool_allow_peer(arena, 0), GPUPOOL_E_ASLEEP, "sleeps");
    KIT_REFUSES(gpupool_arena_destroy(arena), GPUPOOL_E_IN_USE, "live");
    drop_all(); /* frees go on */
    kit_close(arena);
}

static void under_a_limit(void) {
    begin_full();
    sleep_now(GPUPOOL_KEEP);
    CHECK_RESULT(gpupool_set_limit(arena, 8 * MIB), GPUPOOL_OK);
    KIT_REFUSES(gpupool_wake(arena), GPUPOOL_E_OUT_OF_MEMORY, "limit is 8.00");
    CHECK_EQ(gpupool_last_verdict()->cause, GPUPOOL_CAUSE_LIMIT);
    KIT_FAILS(gpupool_alloc(arena, 1, A), GPUPOOL_E_ASLEEP, "sleeps");
    CHECK_RESULT(gpupool_set_limit(arena, 8 * MIB + gpupool_last_verdict()->missing), GPUPOOL_OK);
    wake_now();
    end();
}

/* ---- a full device ---- */

#if CHECK_FAKE

static void without_room(void) {
    fake_device_memory(0, 64 * MIB);
    begin_full();
    sleep_now(GPUPOOL_KEEP);
    for (size_t taken = 64 * MIB; taken >= 40 * MIB; taken -= 2 * MIB) {
        check_case("%zu taken", taken);
        fake_other_process(0, taken);
        KIT_REFUSES(gpupool_wake(arena), GPUPOOL_E_OUT_OF_MEMORY, "waking needs");
        CHECK_EQ(gpupool_last_verdict()->cause, GPUPOOL_CAUSE_OTHERS);
        CHECK_EQ(fake_used_bytes(0), 0);
        CHECK_EQ(kit_stats(arena).reserved.now, 0);
        CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    }
    fake_other_process(0, 0);
    wake_now();
    end();
}

/* Another arena's idle chunks make room, in whatever order its work has ended. */
static void siblings_make_room(void) {
    gpupool_arena *other;
    fake_device_memory(0, 64 * MIB);
    begin_full();
    sleep_now(GPUPOOL_KEEP);
    other = kit_open(0);
    kit_free(other, gpupool_alloc(other, 60 * MIB, B), B);
    CHECK(kit_stats(other).reserved.now >= 60 * MIB);
    KIT_FAILS(gpupool_alloc(other, 0, B), GPUPOOL_E_ARGUMENT, "bytes");
    wake_now();
    CHECK_EQ(gpupool_last_result(), GPUPOOL_E_ARGUMENT); /* a success leaves the last error */
    CHECK(kit_stats(other).reserved.now < 60 * MIB);
    end();
    kit_close(other);
}

#endif

int main(void) {
    KIT_TEST(work_goes_on);
    KIT_TEST(idle_memory_goes);
    KIT_TEST(many_pieces);
    KIT_TEST(large_pieces);
    KIT_TEST(freed_meanwhile);
    KIT_TEST(graphs_stay);
    KIT_TEST(requests_are_refused);
    KIT_TEST(under_a_limit);
#if CHECK_FAKE
    KIT_TEST(without_room);
    KIT_TEST(siblings_make_room);
#endif
    return check_finish();
}
