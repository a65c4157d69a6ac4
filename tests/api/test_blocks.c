/* What a pointer is, a walk over all memory, and waits for frees; default arenas that are looked
   for, and the version. */
// build: plain
// build: asan -fsanitize=address,undefined
// build: sites -DGPUPOOL_SITES=1
// build: no_stats -DGPUPOOL_STATS=0
#include "gpupool.h"
#include "arena_kit.h"

static gpupool_arena *arena;

static void put(void *block, int stream) {
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[stream]), GPUPOOL_OK);
}

/* ---- a pointer ---- */

static void what_a_pointer_is(void) {
    for (size_t i = 0; i < KIT_SOURCES; i++) {
        gpupool_block found;
        check_case("%s", kit_sources[i].name);
        arena = kit_open(kit_sources[i].source);
        void *block = kit_alloc(arena, 5000, kit_stream[1]);
        CHECK_RESULT(gpupool_get_block(arena, block, &found), GPUPOOL_OK);
        CHECK(found.arena == arena && found.memory == block && found.block == block);
        CHECK_EQ(found.device, 0);
        CHECK(found.source == GPUPOOL_SOURCE_MAPPED || found.source == kit_sources[i].source);
        CHECK_EQ(found.state, GPUPOOL_STATE_LIVE);
        CHECK_EQ(found.requested_bytes, 5000);
        CHECK_EQ(found.block_bytes, 5000);
        CHECK(found.bytes >= 5000 && found.bytes % GPUPOOL_UNIT_BYTES == 0);
        CHECK(found.stream == kit_stream[1]);
        if (!GPUPOOL_SITES) CHECK(found.file == NULL && found.line == 0);
        CHECK_RESULT(gpupool_get_block(NULL, block, &found), GPUPOOL_OK);
        CHECK(found.arena == arena);
        put(block, 1);
        kit_close(arena);
    }
}

static int is_on_device(const gpupool_block *walked, void *device) {
    CHECK_EQ(walked->device, *(const int *)device);
    return 0;
}

static void where_it_is(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_AUTO);
    gpupool_block found;
    config.device = kit_devices() - 1;
    CHECK_EQ(cudaSetDevice(config.device), cudaSuccess);
    arena = kit_create(&config);
    void *block = kit_alloc(arena, 5000, 0);
    CHECK_RESULT(gpupool_get_block(arena, block, &found), GPUPOOL_OK);
    CHECK_EQ(found.device, config.device);
    CHECK_RESULT(gpupool_walk_blocks(arena, is_on_device, &config.device), GPUPOOL_OK);
    CHECK_RESULT(gpupool_free(arena, block, 0), GPUPOOL_OK);
    kit_close(arena);
    CHECK_EQ(cudaSetDevice(0), cudaSuccess);
}

static void what_it_is_not(void) {
    gpupool_block found;
    int local = 0;
    arena = kit_open(GPUPOOL_SOURCE_AUTO);
    char *block = (char *)kit_alloc(arena, 5000, kit_stream[0]);
    CHECK_RESULT(gpupool_get_block(arena, block + 512, &found), GPUPOOL_E_INSIDE);
    CHECK(found.arena == arena && found.memory == block && found.requested_bytes == 5000);
    CHECK(strstr(gpupool_last_error(), "offset 512") != NULL);
    CHECK_RESULT(gpupool_get_block(NULL, block + 1, &found), GPUPOOL_E_INSIDE);
    CHECK(found.memory == block);
    CHECK_RESULT(gpupool_get_block(arena, &local, &found), GPUPOOL_E_NOT_OURS);
    CHECK(found.arena == NULL && found.bytes == 0);
    CHECK_RESULT(gpupool_get_block(NULL, &local, &found), GPUPOOL_E_NOT_OURS);
    CHECK_RESULT(gpupool_get_block(NULL, NULL, &found), GPUPOOL_E_NOT_OURS);
    CHECK_RESULT(gpupool_get_block(arena, block, NULL), GPUPOOL_E_ARGUMENT);
    put(block, 0);
    CHECK_RESULT(gpupool_get_block(arena, block, &found), GPUPOOL_E_DOUBLE_FREE);
    kit_close(arena);
}

/* Without an arena, too, and whatever the source. */
static void inside_and_free_in_every_source(void) {
    for (size_t i = 0; i < KIT_SOURCES; i++) {
        gpupool_block found;
        check_case("%s", kit_sources[i].name);
        arena = kit_open(kit_sources[i].source);
        char *block = (char *)kit_alloc(arena, 100000, kit_stream[0]);
        char *other = (char *)kit_alloc(arena, 100000, kit_stream[0]);
        CHECK_RESULT(gpupool_get_block(NULL, block + 4096, &found), GPUPOOL_E_INSIDE);
        CHECK(found.arena == arena && found.memory == block);
        put(other, 0);
        gpupool_result is = gpupool_get_block(arena, other, &found);
        CHECK_RESULT(gpupool_get_block(NULL, other, &found), is);
        put(block, 0);
        kit_close(arena);
    }
}

/* Of two arenas the one that has it; of one, an address of the other is not its. */
static void whose_it_is(void) {
    gpupool_block found;
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    gpupool_arena *other = kit_open(GPUPOOL_SOURCE_DEVICE);
    void *mine = kit_alloc(arena, 100, kit_stream[0]);
    void *its = kit_alloc(other, 100, cudaStreamLegacy);
    CHECK_RESULT(gpupool_get_block(NULL, its, &found), GPUPOOL_OK);
    CHECK(found.arena == other && found.source == GPUPOOL_SOURCE_DEVICE);
    CHECK(found.stream == cudaStreamLegacy);
    CHECK_RESULT(gpupool_get_block(NULL, mine, &found), GPUPOOL_OK);
    CHECK(found.arena == arena);
    CHECK_RESULT(gpupool_get_block(arena, its, &found), GPUPOOL_E_NOT_OURS);
    put(mine, 0);
    CHECK_RESULT(gpupool_free(other, its, cudaStreamLegacy), GPUPOOL_OK);
    kit_close(other);
    kit_close(arena);
}

/* ---- the walk ---- */

typedef struct tally {
    uint64_t bytes[3], requested, blocks, parts, last;
    int stop_after;
    gpupool_source source;
} tally;

static int add_up(const gpupool_block *block, void *user) {
    tally *sum = (tally *)user;
    CHECK(block->arena == arena && block->device == 0);
    if (sum->source) CHECK_EQ(block->source, sum->source);
    CHECK((uint64_t)(uintptr_t)block->memory >= sum->last); /* by address, none twice */
    sum->last = (uint64_t)(uintptr_t)block->memory + block->bytes;
    sum->bytes[block->state] += block->bytes;
    sum->requested += block->requested_bytes;
    sum->blocks += block->block_bytes != 0;
    sum->parts++;
    CHECK((block->state == GPUPOOL_STATE_LIVE) == (block->block != NULL));
    return sum->stop_after && --sum->stop_after == 0 ? 5 : 0;
}

static void the_walk_adds_up_to_the_figures(void) {
    for (size_t i = 0; i < KIT_SOURCES; i++) {
        void *blocks[40];
        tally sum;
        check_case("%s", kit_sources[i].name);
        arena = kit_open(kit_sources[i].source);
        for (size_t k = 0; k < 40; k++)
            blocks[k] = kit_alloc(arena, (size_t)1000 << k % 11, kit_stream[k % 2]);
        for (size_t k = 0; k < 40; k += 3) put(blocks[k], k % 2);
        memset(&sum, 0, sizeof sum);
        sum.source = kit_sources[i].source ? kit_sources[i].source : GPUPOOL_SOURCE_MAPPED;
        CHECK_RESULT(gpupool_walk_blocks(arena, add_up, &sum), GPUPOOL_OK);
        gpupool_stats stats = kit_stats(arena);
        CHECK_EQ(sum.bytes[GPUPOOL_STATE_LIVE], stats.granted.now);
        CHECK_EQ(sum.bytes[GPUPOOL_STATE_PENDING], stats.pending.now);
        CHECK_EQ(sum.bytes[0] + sum.bytes[1] + sum.bytes[2], stats.reserved.now);
        CHECK_EQ(sum.blocks, stats.blocks.now);
        if (GPUPOOL_STATS) CHECK_EQ(sum.requested, stats.requested.now);
        for (size_t k = 0; k < 40; k++)
            if (k % 3) put(blocks[k], k % 2);
        kit_close(arena);
    }
}

/* Blocks of a unit each, side by side, in another order than their records. */
static void neighbours_come_by_address(void) {
    void *blocks[101];
    tally sum;
    arena = kit_open(GPUPOOL_SOURCE_DEVICE);
    for (size_t k = 0; k < 101; k++) blocks[k] = kit_alloc(arena, 512, kit_stream[0]);
    for (size_t k = 0; k < 101; k++) put(blocks[k * 37 % 101], 1);
    CHECK_RESULT(gpupool_trim(arena, SIZE_MAX, NULL), GPUPOOL_OK); /* one run again */
    for (size_t k = 0; k < 101; k++) blocks[k] = kit_alloc(arena, 512, kit_stream[0]);
    memset(&sum, 0, sizeof sum);
    CHECK_RESULT(gpupool_walk_blocks(arena, add_up, &sum), GPUPOOL_OK);
    CHECK_EQ(sum.blocks, 101);
    for (size_t k = 0; k < 101; k++) put(blocks[k], 0);
    kit_close(arena);
}

static int find_block(const gpupool_block *block, void *user) {
    gpupool_block *found = (gpupool_block *)user;
    if (block->memory != found->memory) return 0;
    *found = *block;
    return 5;
}

/* Of memory that was handed out before: of what it is now, and whose. */
static void a_block_that_has_come_again(void) {
    gpupool_block found;
    arena = kit_open(GPUPOOL_SOURCE_DEVICE);
    put(kit_alloc(arena, 5000, kit_stream[1]), 1);
    void *block = kit_alloc(arena, 4800, kit_stream[1]), *other = kit_alloc(arena, 700, 0);
    for (int i = 0; i < 2; i++) {
        memset(&found, 0, sizeof found);
        found.memory = i ? other : block;
        CHECK_RESULT(gpupool_walk_blocks(arena, find_block, &found), GPUPOOL_E_CALLBACK);
        CHECK_EQ(found.state, GPUPOOL_STATE_LIVE);
        CHECK_EQ(found.requested_bytes, i ? 700 : 4800);
        CHECK_EQ(found.block_bytes, i ? 700 : 4800);
        CHECK(found.stream == (i ? cudaStreamLegacy : kit_stream[1]));
    }
    put(block, 1);
    CHECK_RESULT(gpupool_free(arena, other, 0), GPUPOOL_OK);
    kit_close(arena);
}

static const char *parts_of;
static size_t parts_found, parts_bytes;

static int find_parts(const gpupool_block *block, void *unused) {
    (void)unused;
    if (block->block != parts_of) return 0;
    CHECK_EQ(block->block_bytes, parts_found++ ? 0 : 6 * MIB);
    parts_bytes += block->bytes;
    return 0;
}

/* A stitched block is shown at home, in several parts. */
static void a_stitched_block_has_parts(void) {
    void *small[16];
    gpupool_block found;
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 32 * MIB);
    for (int i = 0; i < 16; i++) small[i] = kit_alloc(arena, 2 * MIB, kit_stream[0]);
    for (int i = 0; i < 16; i += 2) put(small[i], 0);
    parts_of = (const char *)kit_alloc(arena, 6 * MIB, kit_stream[0]);
    parts_found = parts_bytes = 0;
    CHECK_RESULT(gpupool_walk_blocks(arena, find_parts, NULL), GPUPOOL_OK);
    CHECK(parts_found > 1);
    CHECK_EQ(parts_bytes, 6 * MIB);
    CHECK_RESULT(gpupool_get_block(arena, parts_of, &found), GPUPOOL_OK);
    CHECK_EQ(found.bytes, 6 * MIB);
    put((void *)(uintptr_t)parts_of, 0);
    for (int i = 1; i < 16; i += 2) put(small[i], 0);
    kit_close(arena);
}

static void a_walk_that_is_ended(void) {
    tally sum;
    arena = kit_open(GPUPOOL_SOURCE_AUTO);
    void *a = kit_alloc(arena, 100, kit_stream[0]), *b = kit_alloc(arena, 100, kit_stream[0]);
    memset(&sum, 0, sizeof sum);
    sum.stop_after = 1;
    CHECK_RESULT(gpupool_walk_blocks(arena, add_up, &sum), GPUPOOL_E_CALLBACK);
    CHECK(strstr(gpupool_last_error(), "5") != NULL);
    CHECK_EQ(sum.parts, 1);
    CHECK_RESULT(gpupool_walk_blocks(arena, NULL, NULL), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(gpupool_walk_blocks(NULL, add_up, &sum), GPUPOOL_E_ARGUMENT);
    put(a, 0);
    put(b, 0);
    kit_close(arena);
}

/* No lock is held: the function may use the arena. */
static int free_it(const gpupool_block *block, void *user) {
    if (block->state != GPUPOOL_STATE_LIVE) return 0;
    ++*(int *)user;
    CHECK_RESULT(gpupool_free(arena, block->block, kit_stream[0]), GPUPOOL_OK);
    return 0;
}

static void the_function_may_free(void) {
    int freed = 0;
    arena = kit_open(GPUPOOL_SOURCE_AUTO);
    for (int i = 0; i < 10; i++) kit_alloc(arena, 3000, kit_stream[0]);
    CHECK_RESULT(gpupool_walk_blocks(arena, free_it, &freed), GPUPOOL_OK);
    CHECK_EQ(freed, 10);
    CHECK_EQ(kit_stats(arena).blocks.now, 0);
    kit_close(arena);
}

/* ---- waits ---- */

/* Blocks freed on two streams, behind work. */
static void free_behind_work(void) {
    for (int i = 0; i < 6; i++) {
        size_t bytes = (size_t)4000 << 3 * (i % 3);
        void *block = kit_alloc(arena, bytes, kit_stream[i % 2]);
        kit_fill(kit_stream[i % 2], block, bytes, i);
        put(block, i % 2);
    }
}

static void waits_for_frees(void) {
    for (size_t i = 0; i < KIT_SOURCES; i++) {
        check_case("%s", kit_sources[i].name);
        arena = kit_open(kit_sources[i].source);
        free_behind_work();
        CHECK_RESULT(gpupool_wait_stream(arena, kit_stream[0]), GPUPOOL_OK);
        CHECK_RESULT(gpupool_wait_stream(arena, kit_stream[1]), GPUPOOL_OK);
        CHECK_EQ(kit_stats(arena).pending.now, 0);
        free_behind_work();
        CHECK_RESULT(gpupool_wait_all(arena), GPUPOOL_OK);
        CHECK_EQ(kit_stats(arena).pending.now, 0);
        CHECK_RESULT(gpupool_wait_stream(arena, kit_stream[2]), GPUPOOL_OK); /* never seen */
        CHECK_RESULT(gpupool_wait_stream(arena, cudaStreamLegacy), GPUPOOL_OK);
        kit_close(arena);
    }
    CHECK_RESULT(gpupool_wait_stream(NULL, 0), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(gpupool_wait_all(NULL), GPUPOOL_E_ARGUMENT);
}

#if CHECK_FAKE

/* The other stream's work is not waited for. */
static void one_stream_alone(void) {
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    fake_mode(FAKE_STEPPED);
    free_behind_work();
    uint64_t pending = kit_stats(arena).pending.now;
    CHECK_RESULT(gpupool_wait_stream(arena, kit_stream[0]), GPUPOOL_OK);
    CHECK_EQ(fake_pending(kit_stream[0]), 0);
    CHECK(fake_pending(kit_stream[1]) > 0);
    CHECK(kit_stats(arena).pending.now > 0);
    CHECK(kit_stats(arena).pending.now < pending);
    fake_run_all();
    fake_mode(FAKE_EAGER);
    kit_close(arena);
}

/* Other streams' uses of a block hold it up, as long as they do. */
static void blocks_that_others_use(void) {
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    fake_mode(FAKE_STEPPED);
    void *block = kit_alloc(arena, MIB, kit_stream[0]);
    kit_expect(kit_stream[1], block, 1, -1);
    CHECK_RESULT(gpupool_record_stream(arena, block, kit_stream[1]), GPUPOOL_OK);
    put(block, 0);
    CHECK_RESULT(gpupool_wait_stream(arena, kit_stream[0]), GPUPOOL_OK);
    CHECK(kit_stats(arena).pending.now >= MIB);
    CHECK_RESULT(gpupool_wait_stream(arena, kit_stream[1]), GPUPOOL_OK);
    CHECK_EQ(kit_stats(arena).pending.now, 0);
    fake_run_all();
    fake_mode(FAKE_EAGER);
    kit_close(arena);
}

static void a_capturing_stream_is_not_waited_for(void) {
    cudaGraph_t graph = NULL;
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    put(kit_alloc(arena, 4000, kit_stream[0]), 0);
    CHECK_EQ(cudaStreamBeginCapture(kit_stream[0], cudaStreamCaptureModeGlobal), cudaSuccess);
    CHECK_RESULT(gpupool_wait_stream(arena, kit_stream[0]), GPUPOOL_E_CAPTURING);
    CHECK(strstr(gpupool_last_error(), "gpupool_wait_stream: the stream captures") != NULL);
    CHECK_RESULT(gpupool_wait_all(arena), GPUPOOL_OK);
    CHECK_EQ(kit_stats(arena).pending.now, 0);
    CHECK_EQ(cudaStreamEndCapture(kit_stream[0], &graph), cudaSuccess);
    CHECK_EQ(cudaGraphDestroy(graph), cudaSuccess);
    kit_close(arena);
}

/* A CUDA call that fails is told, and what was freed is had later. */
static void a_wait_that_fails(void) {
    static const char *const calls[] = {"cuEventRecord", "cuEventSynchronize", "cuEventCreate"};
    for (size_t i = 0; i < KIT_COUNT(calls); i++) {
        check_case("%s", calls[i]);
        arena = kit_open(GPUPOOL_SOURCE_MAPPED);
        free_behind_work();
        fake_fail_call(calls[i], 1, 0, 0);
        CHECK_RESULT(gpupool_wait_stream(arena, kit_stream[0]), GPUPOOL_E_CUDA);
        CHECK_EQ(fake_fail_fired(), 1);
        fake_fail_clear();
        CHECK_RESULT(gpupool_wait_stream(arena, kit_stream[0]), GPUPOOL_OK);
        CHECK_RESULT(gpupool_wait_all(arena), GPUPOOL_OK);
        CHECK_EQ(kit_stats(arena).pending.now, 0);
        kit_close(arena);
    }
}

#endif

/* ---- the rest ---- */

static void default_arenas_are_found_or_not(void) {
    CHECK(gpupool_find_default_arena(0) == NULL);
    CHECK_RESULT(gpupool_last_result(), GPUPOOL_OK);
    arena = gpupool_get_default_arena(GPUPOOL_DEVICE_CURRENT);
    CHECK(arena != NULL);
    CHECK(gpupool_find_default_arena(0) == arena);
    CHECK(gpupool_find_default_arena(GPUPOOL_DEVICE_CURRENT) == arena);
    CHECK(gpupool_find_default_arena(-2) == NULL);
    CHECK_RESULT(gpupool_last_result(), GPUPOOL_E_ARGUMENT);
    kit_close(arena);
    CHECK(gpupool_find_default_arena(0) == NULL);
    CHECK_RESULT(gpupool_last_result(), GPUPOOL_OK);
}

static void the_version_is_a_number(void) {
    char words[32];
    CHECK_EQ(gpupool_get_version(), GPUPOOL_VERSION);
    snprintf(words, sizeof words, "gpupool %d ", gpupool_get_version());
    CHECK(strncmp(gpupool_get_build(), words, strlen(words)) == 0);
}

int main(void) {
    ARENA_TEST(what_a_pointer_is);
    ARENA_TEST(where_it_is);
    ARENA_TEST(what_it_is_not);
    ARENA_TEST(inside_and_free_in_every_source);
    ARENA_TEST(whose_it_is);
    ARENA_TEST(the_walk_adds_up_to_the_figures);
    ARENA_TEST(neighbours_come_by_address);
    ARENA_TEST(a_block_that_has_come_again);
    ARENA_TEST(a_stitched_block_has_parts);
    ARENA_TEST(a_walk_that_is_ended);
    ARENA_TEST(the_function_may_free);
    ARENA_TEST(waits_for_frees);
    FAKE_TEST(one_stream_alone);
    FAKE_TEST(blocks_that_others_use);
    FAKE_TEST(a_capturing_stream_is_not_waited_for);
    FAKE_TEST(a_wait_that_fails);
    ARENA_TEST(default_arenas_are_found_or_not);
    ARENA_TEST(the_version_is_a_number);
    return check_finish();
}
