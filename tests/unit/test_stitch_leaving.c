/* A stitch that another thread is unmapping, with the locks open while that thread calls CUDA or
   the program: all others leave it and its chunks alone. And one that CUDA does not unmap; which of
   them go, and when they may. */
// build: plain
// build: asan -fsanitize=address,undefined
#define _DEFAULT_SOURCE /* barriers */
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "registry_kit.h"

#include <pthread.h>

#if CHECK_FAKE

static gpupool_arena *arena;
static void *block[10];
static int tag;

static void *take(size_t bytes, int of) {
    gpupool_request request = kit_request(bytes, kit_stream[0], 0);
    request.tag = of;
    return gpupool_alloc_request(arena, &request);
}

static void put(void *at) { CHECK_RESULT(gpupool_free(arena, at, kit_stream[0]), GPUPOOL_OK); }

/* Five chunks with nothing but an idle stitch over them, five with blocks, a free one of a tag. */
static void open_with_idle_stitch(const gpupool_arena_config *config) {
    gpupool_tag_config sleeper;
    memset(&sleeper, 0, sizeof sleeper);
    sleeper.can_sleep = 1;
    arena = kit_create(config);
    CHECK_RESULT(gpupool_tag(arena, "kv", &sleeper, &tag), GPUPOOL_OK);
    for (int i = 0; i < 10; i++) block[i] = take(6 * MIB, 0);
    put(take(6 * MIB, tag));
    CHECK_RESULT(gpupool_set_limit(arena, kit_reserved(arena)), GPUPOOL_OK);
    for (int i = 0; i < 10; i += 2) put(block[i]);
    put(take(30 * MIB, 0));
    CHECK_RESULT(gpupool_trim(arena, SIZE_MAX, NULL), GPUPOOL_OK); /* all of it is finished */
    CHECK_EQ(arena->stitches.count, 1);
    CHECK_EQ(arena->stitches.oldest->state, GPI_STITCH_IDLE);
}

static gpupool_arena_config of_large_chunks(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
    config.chunk_bytes = 6 * MIB;
    return config;
}

static void close_it(void) {
    for (int i = 1; i < 10; i += 2) put(block[i]);
    kit_close(arena);
}

static void lock_both(void) {
    gpi_host_mutex_lock(&arena->growing);
    gpi_host_lock(&arena->lock);
}

static void unlock_both(void) {
    gpi_host_unlock(&arena->lock);
    gpi_host_mutex_unlock(&arena->growing);
}

static void it_is_left_alone(void) {
    gpupool_arena_config config = of_large_chunks();
    open_with_idle_stitch(&config);
    gpi_stitch *stitch = arena->stitches.oldest;
    size_t reserved = kit_reserved(arena);
    stitch->is_leaving = 1;
    lock_both();
    gpi_stitch_bound(&arena->stitches, 0);
    CHECK_EQ(arena->stitches.count, 1);
    unlock_both();
    CHECK_RESULT(kit_why(take(10 * MIB, tag)), GPUPOOL_E_OUT_OF_MEMORY); /* nor for a tag */
    CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
    CHECK_EQ(kit_reserved(arena), reserved - 6 * MIB); /* the tag's own */
    lock_both();
    CHECK_RESULT(gpi_stitch_trim_below(&arena->stitches, reserved - 7 * MIB), GPUPOOL_OK);
    unlock_both();
    CHECK_EQ(kit_reserved(arena), reserved - 6 * MIB);
    CHECK_EQ(arena->stitches.count, 1);
    stitch->is_leaving = 0;
    put(take(10 * MIB, tag));
    close_it();
}

/* A tag's request gets the memory of another chunk. */
static void other_chunks_are_not(void) {
    gpupool_arena_config config = of_large_chunks();
    open_with_idle_stitch(&config);
    gpi_stitch *stitch = arena->stitches.oldest;
    put(block[9]);
    CHECK_RESULT(gpupool_trim(arena, SIZE_MAX, NULL), GPUPOOL_OK);
    stitch->is_leaving = 1;
    void *large = take(10 * MIB, tag);
    CHECK_RESULT(kit_why(large), GPUPOOL_OK);
    CHECK(stitch->state == GPI_STITCH_IDLE && stitch->seam_count == 5);
    stitch->is_leaving = 0;
    put(large);
    block[9] = take(6 * MIB, 0);
    close_it();
}

/* A trim gives back the chunks that it does not lie over, also those behind its own. */
static void other_chunks_go_back(void) {
    gpupool_arena_config config = of_large_chunks();
    size_t released;
    open_with_idle_stitch(&config);
    put(block[9]);
    CHECK_RESULT(gpupool_trim(arena, SIZE_MAX, NULL), GPUPOOL_OK);
    gpi_stitch *stitch = arena->stitches.oldest;
    stitch->is_leaving = 1;
    CHECK_RESULT(gpupool_trim(arena, 0, &released), GPUPOOL_OK);
    CHECK_EQ(released, 12 * MIB); /* of the last block and of the tag */
    CHECK(stitch->state == GPI_STITCH_IDLE && stitch->seam_count == 5);
    stitch->is_leaving = 0;
    block[9] = take(6 * MIB, 0);
    close_it();
}

static void add_two_idle_stitches(void) {
    put(take(24 * MIB, 0));
    put(take(18 * MIB, 0));
    CHECK_RESULT(gpupool_trim(arena, SIZE_MAX, NULL), GPUPOOL_OK);
    CHECK_EQ(arena->stitches.count, 3);
}

/* The bound on idle stitches ends at the first that CUDA does not unmap: all stay idle. */
static void it_is_not_unmapped(void) {
    gpupool_arena_config config = of_large_chunks();
    open_with_idle_stitch(&config);
    add_two_idle_stitches();
    uint64_t seams = arena->stitches.idle_seams;
    fake_fail_call("cuMemUnmap", 1, 0, 0);
    lock_both();
    gpi_stitch_bound(&arena->stitches, seams); /* within the bound nothing is unmapped */
    CHECK_EQ(fake_fail_fired(), 0);
    gpi_stitch_bound(&arena->stitches, 0);
    CHECK_EQ(fake_fail_fired(), 1);
    CHECK_EQ(arena->stitches.idle_seams, seams);
    CHECK_EQ(arena->stitches.count, 3);
    CHECK_EQ(arena->stitches.oldest->state, GPI_STITCH_IDLE);
    gpi_stitch_bound(&arena->stitches, 0);
    CHECK_EQ(arena->stitches.idle_seams, 0);
    unlock_both();
    fake_fail_clear();
    close_it();
}

static size_t wanted_meanwhile;

static int use_another(const gpupool_mapping *mapping, void *user) {
    size_t bytes = wanted_meanwhile;
    (void)mapping, (void)user;
    wanted_meanwhile = 0;
    if (bytes) put(take(bytes, 0));
    return 0;
}

/* While the program is told of one that goes, the next one is used and so becomes the last: the
   bound is kept by the one after it. */
static void the_next_one_is_used_meanwhile(void) {
    gpupool_arena_config config = of_large_chunks();
    config.on_unmap = use_another;
    open_with_idle_stitch(&config);
    add_two_idle_stitches();
    wanted_meanwhile = 24 * MIB;
    lock_both();
    gpi_stitch_bound(&arena->stitches, 0);
    CHECK_EQ(arena->stitches.count, 1);
    unlock_both();
    CHECK_EQ(wanted_meanwhile, 0);
    close_it();
}

/* Four handles for each chunk, and never fewer than a small arena may have. */
static void more_handles_in_a_larger_arena(void) {
    gpi_chunks chunks;
    gpi_stitches stitches;
    memset(&chunks, 0, sizeof chunks);
    memset(&stitches, 0, sizeof stitches);
    stitches.chunks = &chunks;
    chunks.count = GPI_IDLE_SEAMS / 4;
    CHECK_EQ(gpi_stitch_most_seams(&stitches), GPI_IDLE_SEAMS);
    chunks.count = GPI_IDLE_SEAMS;
    CHECK_EQ(gpi_stitch_most_seams(&stitches), 4 * GPI_IDLE_SEAMS);
}

/* A graph's stitches get the position of its release, and no other stream's do. */
static void only_its_own_get_the_position(void) {
    gpupool_arena_config config = of_large_chunks();
    open_with_idle_stitch(&config);
    gpi_stitch *stitch = arena->stitches.oldest;
    uint64_t at = stitch->user_at;
    CHECK(stitch->user != NULL && stitch->user != arena->clocks.all);
    lock_both();
    gpi_stitch_restamp(&arena->stitches, arena->clocks.all, at + 1);
    CHECK_EQ(stitch->user_at, at);
    gpi_stitch_restamp(&arena->stitches, stitch->user, at + 1);
    CHECK_EQ(stitch->user_at, at + 1);
    stitch->user_at = at;
    unlock_both();
    close_it();
}

/* An idle stitch keeps its user's struct, and only as long as it is idle. */
static void its_users_struct_is_kept(void) {
    gpupool_arena_config config = of_large_chunks();
    open_with_idle_stitch(&config);
    gpi_stitch *stitch = arena->stitches.oldest;
    gpi_stream *user = stitch->user;
    uint64_t refs = user->refs;
    void *again = take(30 * MIB, 0);
    CHECK_EQ(stitch->state, GPI_STITCH_USED);
    CHECK_EQ(user->refs, refs - 1);
    put(again);
    CHECK(stitch->user == user);
    CHECK_EQ(user->refs, refs);
    CHECK_RESULT(gpupool_trim(arena, SIZE_MAX, NULL), GPUPOOL_OK);
    lock_both();
    gpi_stitch_bound(&arena->stitches, 0);
    unlock_both();
    CHECK_EQ(arena->stitches.count, 0);
    CHECK_EQ(user->refs, refs - 1);
    close_it();
}

/* A part may lie over chunks side by side: those that the stitch maps there, and no others. */
static void a_part_over_two_chunks(void) {
    gpi_chunk chunk[2];
    gpi_seam seams[2];
    gpi_part part;
    gpi_run body;
    gpi_stitch stitch;
    memset(chunk, 0, sizeof chunk);
    memset(&part, 0, sizeof part);
    memset(&body, 0, sizeof body);
    memset(&stitch, 0, sizeof stitch);
    stitch.state = GPI_STITCH_IDLE;
    stitch.body = &body;
    stitch.seams = seams;
    stitch.parts = &part;
    stitch.seam_count = 2;
    stitch.part_count = 1;
    for (int i = 0; i < 2; i++) seams[i].chunk = &chunk[i];
    chunk[0].unit = 100;
    chunk[0].units = chunk[1].units = 10;
    stitch.unit = 1000;
    stitch.units = 20;
    part.unit = 105; /* the block begins in the middle of the first */
    body.unit = 1005;
    part.units = body.units = 15;
    chunk[1].unit = 110;
    CHECK_EQ(gpi_stitch_check_parts(&stitch), 0);
    chunk[1].unit = 200;
    CHECK_EQ(gpi_stitch_check_parts(&stitch), 1);
}

/* One chunk is stitched by itself where its own addresses do not begin as the request wants. */
static void a_stitch_of_one_chunk(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
    gpupool_tag_config sleeper;
    void *chunk[4], *aligned, *start, *rest;
    memset(&sleeper, 0, sizeof sleeper);
    sleeper.can_sleep = 1;
    config.chunk_bytes = 2 * MIB;
    arena = kit_create(&config);
    CHECK_RESULT(gpupool_tag(arena, "kv", &sleeper, &tag), GPUPOOL_OK);
    for (int i = 0; i < 4; i++) chunk[i] = take(2 * MIB, 0);
    CHECK_RESULT(gpupool_set_limit(arena, kit_reserved(arena)), GPUPOOL_OK);
    int odd = (uintptr_t)chunk[0] % (4 * MIB) == 0;
    put(chunk[odd]);
    aligned = gpupool_alloc_aligned(arena, 2 * MIB, 4 * MIB, kit_stream[0]);
    CHECK(aligned != NULL && (uintptr_t)aligned % (4 * MIB) == 0);
    CHECK(arena->stitches.oldest != NULL && arena->stitches.oldest->seam_count == 1);
    put(aligned);
    start = take(MIB / 2, 0);
    rest = take(3 * MIB / 2, 0);
    CHECK(start == chunk[odd]);
    put(start); /* a single unit of it, too */
    aligned = gpupool_alloc_aligned(arena, 1, 4 * MIB, kit_stream[0]);
    CHECK_EQ(arena->stitches.newest->body->units, 1);
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    put(aligned);
    put(rest);
    for (int i = 0; i < 4; i++)
        if (i != odd) put(chunk[i]);
    kit_close(arena);
}

/* A tag lacks memory, and others' idle chunks are in the way: they go, and are told first; or CUDA
   does not take them back, which is the error. */
static void a_tag_needs_the_chunks(void) {
    for (int refused = 0; refused < 2; refused++) {
        gpupool_arena_config config = registry_config(GPUPOOL_SOURCE_MAPPED, 0);
        config.chunk_bytes = 6 * MIB;
        open_with_idle_stitch(&config);
        if (refused) fake_fail_call("cuMemUnmap", 1, 1, 0);
        void *large = take(16 * MIB, tag);
        CHECK_RESULT(kit_why(large), refused ? GPUPOOL_E_CUDA : GPUPOOL_OK);
        fake_fail_clear();
        if (!large) large = take(16 * MIB, tag);
        CHECK(registry_covers(large, 16 * MIB));
        CHECK(kit_reserved(arena) <= kit_limit(arena));
        put(large);
        close_it();
        CHECK_EQ(known.count, 0);
        registry_clear();
    }
}

/* ---- a call and a trim, which unmap two stitches over one chunk ---- */

static pthread_t requester, trimmer;
static pthread_barrier_t both;
static int meetings; /* of the two threads, still to come */
static size_t trimmer_keeps;

static void *trim_it(void *unused) {
    CHECK_RESULT(gpupool_trim(arena, trimmer_keeps, NULL), GPUPOOL_OK);
    return unused;
}

/* The call is back from on_unmap, and holds `growing`. */
static void it_goes_on(void *unused) {
    (void)unused;
    pthread_barrier_wait(&both);
}

static int meet(const gpupool_mapping *mapping, void *unused) {
    (void)unused;
    if (!meetings || mapping->handle) return 0; /* a chunk's */
    if (meetings-- == 2) {
        requester = pthread_self();
        CHECK_EQ(pthread_create(&trimmer, NULL, trim_it, NULL), 0);
        pthread_barrier_wait(&both);
        return 0;
    }
    CHECK(!pthread_equal(pthread_self(), requester));
    fake_before_call("cuMemUnmap", 1, it_goes_on, NULL);
    pthread_barrier_wait(&both);
    pthread_barrier_wait(&both);
    gpi_host_mutex_lock(&arena->growing); /* not before the call has let go of it */
    gpi_host_mutex_unlock(&arena->growing);
    return 0;
}

/* Four idle chunks of a tag, side by side; over one of them, the first or the last, lie two
   stitches, with two that are not beside it. The chunk behind them is all others'. */
static void *open_with_two_over(int number) {
    gpupool_arena_config config = of_large_chunks();
    gpupool_tag_config sleeper;
    void *chunk[4], *shared;
    int other = number ? 0 : 2;
    memset(&sleeper, 0, sizeof sleeper);
    sleeper.can_sleep = 1;
    config.on_unmap = meet;
    meetings = 0;
    arena = kit_create(&config);
    CHECK_RESULT(gpupool_tag(arena, "kv", &sleeper, &tag), GPUPOOL_OK);
    for (int i = 0; i < 4; i++) chunk[i] = take(6 * MIB, tag);
    shared = take(6 * MIB, 0);
    CHECK_RESULT(gpupool_set_limit(arena, kit_reserved(arena)), GPUPOOL_OK);
    for (int i = other; i < other + 2; i++) {
        put(chunk[number]);
        put(chunk[i]);
        put(take(12 * MIB, tag));
        for (int k = 0; k < 2; k++) CHECK(take(6 * MIB, tag) != NULL); /* both again */
    }
    CHECK_EQ(arena->stitches.count, 2);
    for (int i = 0; i < 4; i++) put(chunk[i]);
    CHECK_RESULT(gpupool_trim(arena, SIZE_MAX, NULL), GPUPOOL_OK); /* all of it is finished */
    pthread_barrier_init(&both, NULL, 2);
    meetings = 2;
    trimmer_keeps = kit_reserved(arena) - 12 * MIB; /* it gives back two chunks */
    return shared;
}

static void await_trimmer(void) {
    CHECK_EQ(meetings, 0);
    CHECK_EQ(pthread_join(trimmer, NULL), 0);
    pthread_barrier_destroy(&both);
    CHECK_EQ(fake_failures(), 0);
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
}

/* While the program is told of the first stitch that goes for a request, the trim gives back the
   chunk that the request would look at next, and begins with the other stitch. */
static void the_next_chunk_goes_meanwhile(void) {
    put(open_with_two_over(0));
    trimmer_keeps = 0;
    void *large = take(12 * MIB, 0);
    CHECK(large != NULL);
    await_trimmer();
    CHECK_EQ(kit_reserved(arena), 12 * MIB);
    put(large);
    kit_close(arena);
}

/* A trim that meets the second stitch in the hands of another trim goes on with other chunks. */
static void another_trim_has_the_second(void) {
    put(open_with_two_over(0));
    CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
    await_trimmer();
    CHECK(kit_reserved(arena) <= 6 * MIB); /* of the chunk under the second, if the trims ended
                                              before it was unmapped */
    kit_close(arena);
}

/* So does a limit that lacks one chunk, the last: the one before it goes instead. */
static void a_limit_finds_another_chunk(void) {
    void *shared = open_with_two_over(3);
    size_t reserved = kit_reserved(arena);
    trimmer_keeps = reserved - 6 * MIB;
    CHECK_RESULT(gpupool_set_limit(arena, reserved - 1), GPUPOOL_OK);
    await_trimmer();
    CHECK_EQ(kit_reserved(arena), reserved - 12 * MIB);
    put(shared);
    kit_close(arena);
}

/* ---- addresses ---- */

/* All addresses for stitches, which nobody has. */
static gpi_run *take_space(void) {
    gpi_run *space = arena->chunks.space;
    while (space->list != GPI_LIST_SPACE) space = space->next;
    CHECK_EQ(gpi_tree_prepare(&arena->tree, 2), 1);
    return gpi_tree_take(&arena->tree, space, space->unit, space->units);
}

static void give_space(gpi_run *space) { gpi_tree_put(&arena->tree, space, GPI_LIST_SPACE, 0); }

/* No addresses are left for a stitch: the request goes another way. */
static void no_addresses(void) {
    gpupool_arena_config config = of_large_chunks();
    open_with_idle_stitch(&config);
    uint64_t made = kit_stats(arena).stitches;
    lock_both();
    gpi_run *space = take_space();
    unlock_both();
    void *large = take(20 * MIB, 0);
    CHECK_RESULT(kit_why(large), GPUPOOL_OK);
    CHECK_EQ(kit_stats(arena).stitches, made);
    lock_both();
    give_space(space);
    unlock_both();
    put(large);
    close_it();
}

/* The rest of a taken run, behind so many bytes. */
static gpi_run *cut_behind(gpi_run *run, size_t bytes) {
    uint64_t unit = run->unit + bytes / GPUPOOL_UNIT_BYTES;
    CHECK_EQ(gpi_tree_prepare(&arena->tree, 1), 1);
    CHECK_EQ(gpi_tree_prepare_cells(&arena->tree, unit, 0), 1);
    return gpi_tree_split(&arena->tree, run, unit);
}

/* Only two ranges are left, of sizes that are in one bin; the first is too short. */
static void addresses_of_the_second_range(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
    gpi_run *held[2], *range[2];
    void *small[34];
    config.chunk_bytes = 2 * MIB;
    arena = kit_create(&config);
    for (int i = 0; i < 34; i++) small[i] = take(2 * MIB, 0);
    CHECK_RESULT(gpupool_set_limit(arena, kit_reserved(arena)), GPUPOOL_OK);
    for (int i = 0; i < 34; i += 2) put(small[i]);
    CHECK_RESULT(gpupool_trim(arena, SIZE_MAX, NULL), GPUPOOL_OK); /* all of it is finished */
    lock_both();
    range[0] = take_space();
    held[0] = cut_behind(range[0], 32 * MIB);
    range[1] = cut_behind(held[0], 2 * MIB);
    held[1] = cut_behind(range[1], 34 * MIB);
    CHECK_EQ(gpi_tree_bin(range[0]->units), gpi_tree_bin(range[1]->units));
    give_space(range[1]); /* the latest is the first of its bin */
    give_space(range[0]);
    CHECK(range[0]->list_next == range[1]);
    unlock_both();
    void *large = take(34 * MIB, 0);
    CHECK_RESULT(kit_why(large), GPUPOOL_OK);
    CHECK_EQ(kit_stats(arena).stitches, 1);
    lock_both();
    for (int i = 0; i < 2; i++) give_space(held[i]);
    unlock_both();
    put(large);
    for (int i = 1; i < 34; i += 2) put(small[i]);
    kit_close(arena);
}
#endif

int main(void) {
    FAKE_TEST(it_is_left_alone);
    FAKE_TEST(other_chunks_are_not);
    FAKE_TEST(other_chunks_go_back);
    FAKE_TEST(it_is_not_unmapped);
    FAKE_TEST(the_next_one_is_used_meanwhile);
    FAKE_TEST(more_handles_in_a_larger_arena);
    FAKE_TEST(only_its_own_get_the_position);
    FAKE_TEST(its_users_struct_is_kept);
    FAKE_TEST(a_part_over_two_chunks);
    FAKE_TEST(a_stitch_of_one_chunk);
    FAKE_TEST(a_tag_needs_the_chunks);
    FAKE_TEST(the_next_chunk_goes_meanwhile);
    FAKE_TEST(another_trim_has_the_second);
    FAKE_TEST(a_limit_finds_another_chunk);
    FAKE_TEST(no_addresses);
    FAKE_TEST(addresses_of_the_second_range);
    return check_finish();
}
