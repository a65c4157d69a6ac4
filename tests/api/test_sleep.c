/* Sleep and wake: the device's memory goes, while addresses, blocks and what they hold stay. */
#include "gpupool.h"
#include "kit.h"

#define A kit_stream[0]
#define B kit_stream[1]
#define BLOCKS 24
#define PIECE (2 * MIB)
#define LARGE (9 * MIB) /* stitched: no two free pieces are side by side */

static gpupool_arena *arena;

/* Small blocks, large ones, and one that is stitched; each full of a byte of its own. */
typedef struct load {
    void *block[BLOCKS];
    size_t bytes[BLOCKS];
} load;

static void fill(load *l) {
    int i;
    for (i = 0; i < BLOCKS - 1; i++) {
        l->bytes[i] = i < 16 ? PIECE : (size_t)1 << (i - 8);
        l->block[i] = gpupool_alloc(arena, l->bytes[i], A);
    }
    for (i = 0; i < 16; i += 2) {
        kit_free(arena, l->block[i], A);
        l->block[i] = NULL;
    }
    l->bytes[i = BLOCKS - 1] = LARGE;
    l->block[i] = gpupool_alloc(arena, LARGE, A);
    for (i = 0; i < BLOCKS; i++) kit_write(l->block[i], l->bytes[i], A, i + 1);
    CHECK(l->block[BLOCKS - 1]);
}

static void verify(const load *l) {
    kit_follow(B, A);
    for (int i = 0; i < BLOCKS; i++) kit_verify(l->block[i], l->bytes[i], B, i + 1);
}

static void drop(load *l) {
    for (int i = 0; i < BLOCKS; i++) {
        kit_free(arena, l->block[i], A);
        l->block[i] = NULL;
    }
}

static void begin(load *l) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED, 64 * MIB);
    config.chunk_bytes = PIECE;
    arena = kit_create(&config);
    fill(l);
    CHECK(kit_stats(arena).stitches > 0);
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

static void content_is_kept(void) {
    gpupool_block about;
    load l;
    begin(&l);
    for (int round = 0; round < 3; round++) {
        uint64_t reserved = kit_stats(arena).reserved.now;
        check_case("round %d", round);
        sleep_now(GPUPOOL_KEEP);
        CHECK(kit_stats(arena).asleep > 0 && kit_stats(arena).asleep <= reserved);
        CHECK_EQ(kit_stats(arena).blocks, 16);
        CHECK_RESULT(gpupool_get_block(arena, l.block[1], &about), GPUPOOL_OK);
        wake_now();
        verify(&l);
    }
    drop(&l);
    kit_close(arena);
}

static void content_is_dropped(void) {
    load l;
    begin(&l);
    sleep_now(GPUPOOL_DISCARD);
    wake_now();
    for (int i = 0; i < BLOCKS; i++) kit_write(l.block[i], l.bytes[i], B, i + 1);
    verify(&l);
    drop(&l);
    kit_close(arena);
}

/* The arena works on as if it had not slept, fast paths too. */
static void work_goes_on(void) {
    load l;
    begin(&l);
    for (int round = 0; round < 5; round++) {
        load more;
        check_case("round %d", round);
        sleep_now(round % 2 ? GPUPOOL_DISCARD : GPUPOOL_KEEP);
        wake_now();
        drop(&l);
        fill(&more);
        verify(&more);
        l = more;
    }
    drop(&l);
    kit_close(arena);
}

/* Idle memory is neither saved nor got again. */
static void idle_memory_goes(void) {
    void *block;
    arena = kit_open(0);
    block = gpupool_alloc(arena, 4 * MIB, A);
    kit_free(arena, gpupool_alloc(arena, 100 * MIB, B), B);
    kit_write(block, 4 * MIB, A, 7);
    CHECK(kit_stats(arena).reserved.now >= 100 * MIB);
    sleep_now(GPUPOOL_KEEP);
    CHECK(kit_stats(arena).asleep < 40 * MIB);
    wake_now();
    kit_verify(block, 4 * MIB, A, 7);
    kit_free(arena, block, A);
    kit_close(arena);
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
    load l;
    begin(&l);
    CHECK_EQ(cudaStreamSynchronize(A), cudaSuccess);
    kit_free(arena, l.block[BLOCKS - 1], GPUPOOL_NO_STREAM);
    l.block[BLOCKS - 1] = NULL;
    graph = capture(&scope, l.block[1], &own);
    l.block[1] = NULL;
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
        verify(&l);
    }
    sleep_now(GPUPOOL_KEEP);
    CHECK_EQ(cudaGraphExecDestroy(graph), cudaSuccess);
    CHECK_RESULT(gpupool_release_capture(scope), GPUPOOL_OK);
    CHECK_EQ(kit_stats(arena).blocks, 14);
    wake_now();
    CHECK_EQ(kit_stats(arena).stitches, 0);
    verify(&l);
    drop(&l);
    kit_close(arena);
}

/* ---- while it sleeps ---- */

static void requests_are_refused(void) {
    gpupool_capture *scope;
    load l;
    begin(&l);
    KIT_REFUSES(gpupool_wake(arena), GPUPOOL_E_ARGUMENT, "awake");
    KIT_REFUSES(gpupool_sleep(arena, (gpupool_content)2), GPUPOOL_E_ARGUMENT, "content");
    sleep_now(GPUPOOL_KEEP);
    for (size_t bytes = 1; bytes < 64 * MIB; bytes *= 8) {
        KIT_FAILS(gpupool_alloc(arena, bytes, A), GPUPOOL_E_ASLEEP, "gpupool_wake");
        KIT_FAILS(gpupool_alloc(arena, bytes, GPUPOOL_NO_STREAM), GPUPOOL_E_ASLEEP, "gpupool_wake");
    }
    KIT_REFUSES(gpupool_sleep(arena, GPUPOOL_KEEP), GPUPOOL_E_ASLEEP, "sleeps");
    KIT_REFUSES(gpupool_trim(arena, 0), GPUPOOL_E_ASLEEP, "sleeps");
    KIT_REFUSES(gpupool_begin_capture(arena, A, &scope), GPUPOOL_E_ASLEEP, "sleeps");
    KIT_REFUSES(gpupool_allow_peer(arena, 0), GPUPOOL_E_ASLEEP, "sleeps");
    wake_now();
    verify(&l);
    drop(&l);
    kit_close(arena);
}

/* Memory that lies elsewhere has no addresses to keep. */
static void other_sources(void) {
    static const gpupool_source sources[] = {GPUPOOL_SOURCE_DEVICE, GPUPOOL_SOURCE_PINNED,
                                             GPUPOOL_SOURCE_BYPASS};
    for (size_t i = 0; i < KIT_COUNT(sources); i++) {
        gpupool_arena_config config = kit_config(sources[i], 0);
        arena = kit_create(&config);
        KIT_REFUSES(gpupool_sleep(arena, GPUPOOL_KEEP), GPUPOOL_E_UNSUPPORTED, "MAPPED");
        kit_close(arena);
    }
}

/* Frees go on, and what all of was freed is not got again. */
static void frees_go_on(void) {
    load l;
    begin(&l);
    sleep_now(GPUPOOL_KEEP);
    for (int i = 0; i < BLOCKS; i++)
        if (i % 5) {
            kit_free(arena, l.block[i], i % 2 ? A : GPUPOOL_NO_STREAM);
            if (l.block[i])
                KIT_REFUSES(gpupool_free(arena, l.block[i], A), GPUPOOL_E_DOUBLE_FREE, "free");
            l.block[i] = NULL;
        }
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    wake_now();
    CHECK(kit_stats(arena).reserved.now < 12 * MIB);
    CHECK_EQ(kit_stats(arena).stitches, 0); /* the stitched block was freed */
    verify(&l);
    drop(&l);
    kit_close(arena);
}

static void destroyed_asleep(void) {
    load l;
    begin(&l);
    sleep_now(GPUPOOL_KEEP);
    KIT_REFUSES(gpupool_arena_destroy(arena), GPUPOOL_E_IN_USE, "live");
    drop(&l);
    kit_close(arena);
}

static void under_a_limit(void) {
    load l;
    begin(&l);
    sleep_now(GPUPOOL_KEEP);
    CHECK_RESULT(gpupool_set_limit(arena, 8 * MIB), GPUPOOL_OK);
    KIT_REFUSES(gpupool_wake(arena), GPUPOOL_E_OUT_OF_MEMORY, "limit is 8.00");
    CHECK_EQ(gpupool_last_verdict()->cause, GPUPOOL_CAUSE_LIMIT);
    KIT_FAILS(gpupool_alloc(arena, 1, A), GPUPOOL_E_ASLEEP, "sleeps");
    CHECK_RESULT(gpupool_set_limit(arena, 8 * MIB + gpupool_last_verdict()->missing), GPUPOOL_OK);
    wake_now();
    verify(&l);
    drop(&l);
    kit_close(arena);
}

/* ---- on_map and on_unmap ---- */

static int64_t mapped_bytes;
static int refuse_after;

static int on_map(const gpupool_mapping *mapping, void *user) {
    (void)user;
    if (refuse_after && !--refuse_after) return 1;
    mapped_bytes += (int64_t)mapping->bytes;
    return 0;
}

static void on_unmap(const gpupool_mapping *mapping, void *user) {
    (void)user;
    mapped_bytes -= (int64_t)mapping->bytes;
}

static void holders_are_told(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED, 64 * MIB);
    int refusals = 0;
    int64_t before;
    load l;
    config.on_map = on_map;
    config.on_unmap = on_unmap;
    config.chunk_bytes = PIECE;
    mapped_bytes = refuse_after = 0;
    arena = kit_create(&config);
    fill(&l);
    before = mapped_bytes;
    for (int n = 1; n < 100; n++) {
        check_case("map %d", n);
        sleep_now(GPUPOOL_KEEP);
        CHECK_EQ(mapped_bytes, 0);
        refuse_after = n;
        if (gpupool_wake(arena) == GPUPOOL_OK) break;
        refusals++;
        CHECK_EQ(gpupool_last_result(), GPUPOOL_E_CALLBACK);
        CHECK_EQ(mapped_bytes, 0);
        CHECK(kit_stats(arena).asleep > 0);
        refuse_after = 0;
        wake_now();
        CHECK(mapped_bytes <= before);
        verify(&l);
    }
    CHECK(refusals > 10);
    refuse_after = 0;
    verify(&l);
    drop(&l);
    kit_close(arena);
    CHECK_EQ(mapped_bytes, 0);
}

/* ---- a full device ---- */

#if CHECK_FAKE

static void without_room(void) {
    load l;
    fake_device_memory(0, 64 * MIB);
    begin(&l);
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
    verify(&l);
    drop(&l);
    kit_close(arena);
}

/* Another arena's idle chunks make room, in whatever order its work has ended. */
static void siblings_make_room(void) {
    gpupool_arena *other;
    load l;
    fake_device_memory(0, 64 * MIB);
    begin(&l);
    sleep_now(GPUPOOL_KEEP);
    other = kit_open(0);
    kit_free(other, gpupool_alloc(other, 60 * MIB, B), B);
    CHECK(kit_stats(other).reserved.now >= 60 * MIB);
    KIT_FAILS(gpupool_alloc(other, 0, B), GPUPOOL_E_ARGUMENT, "bytes");
    wake_now();
    CHECK_EQ(gpupool_last_result(), GPUPOOL_E_ARGUMENT); /* a success leaves the last error */
    CHECK(kit_stats(other).reserved.now < 60 * MIB);
    verify(&l);
    drop(&l);
    kit_close(other);
    kit_close(arena);
}

/* ---- calls that fail ---- */

#endif

int main(void) {
    KIT_TEST(content_is_kept);
    KIT_TEST(content_is_dropped);
    KIT_TEST(work_goes_on);
    KIT_TEST(idle_memory_goes);
    KIT_TEST(graphs_stay);
    KIT_TEST(requests_are_refused);
    KIT_TEST(other_sources);
    KIT_TEST(frees_go_on);
    KIT_TEST(destroyed_asleep);
    KIT_TEST(under_a_limit);
    KIT_TEST(holders_are_told);
#if CHECK_FAKE
    KIT_TEST(without_room);
    KIT_TEST(siblings_make_room);
#endif
    return check_finish();
}
