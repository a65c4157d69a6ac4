/* The host gives no memory, and few run structs are spare: a request fails as a whole, or does
   without; and what the program is told stays true. */
#include "fail_malloc.h"

#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "registry_kit.h"
#include "arena_scene.h"

#if CHECK_FAKE

#define FEW 40

/* ---- structs that are set aside ---- */

static gpi_run *rest;
static uint64_t rest_count;

static void leave_structs(uint64_t count) {
    gpi_tree *tree = &arena->tree;
    gpi_run **link = &tree->spare;
    for (uint64_t i = 0; i < count && *link; i++) link = &(*link)->list_next;
    rest = *link;
    *link = NULL;
    rest_count = tree->spare_count > count ? tree->spare_count - count : 0;
    tree->spare_count -= rest_count;
    fail_malloc_least = GPI_PAGE * sizeof(gpi_run); /* all else is small */
    fail_malloc_nth(1, 1);
}

static void bring_structs_back(void) {
    gpi_run **link = &arena->tree.spare;
    while (*link) link = &(*link)->list_next;
    *link = rest;
    arena->tree.spare_count += rest_count;
    rest = NULL;
    rest_count = 0;
    fail_malloc_nth(0, 0);
}

/* ---- requests ---- */

/* Each makes a place where a request of that many bytes by stream 0 has one way to go. */
static void *block[10];

static size_t new_memory(void) {
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    return 30 * MIB;
}

static void open_in_pieces(void) {
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 62 * MIB);
    block[9] = get(512, 1);
    for (int i = 0; i < 9; i++) block[i] = get(6 * MIB, 0);
    CHECK_RESULT(gpupool_set_limit(arena, kit_reserved(arena)), GPUPOOL_OK);
}

static void put_pieces(int stream) {
    for (int i = 0; i < 9; i += 2) put(block[i], stream);
    for (int i = 0; i < 9; i += 2) block[i] = NULL;
}

static size_t a_new_stitch(void) {
    open_in_pieces();
    put_pieces(0);
    return 20 * MIB;
}

static size_t an_idle_stitch(void) {
    a_new_stitch();
    put(get(20 * MIB, 0), 0);
    return 20 * MIB;
}

/* A stitch of what another stream has freed, behind a wait on the device. */
static size_t a_stitch_of_anothers(void) {
    open_in_pieces();
    put_pieces(1);
    return 20 * MIB;
}

/* Side by side, with an event between that keeps them apart. */
static size_t neighbours(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_DEVICE);
    config.chunk_bytes = 64 * MIB;
    arena = kit_create(&config);
    block[0] = get(512, 1);
    for (int i = 1; i < 4; i++) block[i] = get(10 * MIB, 0);
    block[4] = get((size_t)kit_stats(arena).largest_free_bytes, 0);
    CHECK_RESULT(gpupool_set_limit(arena, kit_reserved(arena)), GPUPOOL_OK);
    fake_mode(FAKE_STEPPED);
    for (int i = 1; i < 4; i++) {
        kit_mark(kit_stream[0], block[i], 512, 1);
        put(block[i], 0);
        block[i] = NULL;
    }
    return 25 * MIB;
}

/* Two other streams have freed; one of them is done, which nobody has asked yet. */
static size_t what_one_is_done_with(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_DEVICE);
    config.chunk_bytes = 64 * MIB;
    arena = kit_create(&config);
    for (int i = 0; i < 4; i++) block[i] = get(i % 2 ? 20 * MIB : 512, (i + 1) / 2);
    block[4] = get((size_t)kit_stats(arena).largest_free_bytes, 0);
    CHECK_RESULT(gpupool_set_limit(arena, kit_reserved(arena)), GPUPOOL_OK);
    arena->short_until = arena->clocks.position + 2048;
    fake_mode(FAKE_STEPPED);
    for (int i = 1; i < 4; i += 2) {
        kit_mark(kit_stream[(i + 1) / 2], block[i], 512, 1);
        put(block[i], (i + 1) / 2);
        block[i] = NULL;
    }
    fake_run(kit_stream[1]);
    return 10 * MIB;
}

static void close_it(void) {
    for (int i = 0; i < 10; i++)
        if (block[i]) put(block[i], 0);
    memset(block, 0, sizeof block);
    fake_mode(FAKE_EAGER);
    kit_close(arena);
}

static void each_way_with_each_number(void) {
    static size_t (*const ways[])(void) = {new_memory, a_new_stitch, an_idle_stitch,
                                           a_stitch_of_anothers, neighbours};
    for (size_t way = 0; way < KIT_COUNT(ways); way++) {
        int met = 0, failed = 0;
        for (uint64_t count = 0; count < FEW; count++) {
            size_t bytes = ways[way]();
            gpupool_stats before = kit_stats(arena);
            check_case("way %zu, %d structs", way, (int)count);
            leave_structs(count);
            void *got = gpupool_alloc(arena, bytes, kit_stream[0]);
            gpupool_result result = gpupool_last_result();
            bring_structs_back();
            met += got != NULL;
            failed += !got;
            if (!got) {
                CHECK(result == GPUPOOL_E_HOST_MEMORY || result == GPUPOOL_E_OUT_OF_MEMORY);
                CHECK_EQ(kit_stats(arena).granted.now, before.granted.now);
                got = get(bytes, 0);
            }
            CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
            kit_mark(kit_stream[0], got, bytes, 3);
            put(got, 0);
            close_it();
        }
        CHECK(met > 0 && failed > 0);
    }
    check_case(" ");
}

/* A request that must not wait says what it lacks: too few structs for all that lies side by
   side. */
static void neighbours_without_a_wait(void) {
    gpupool_request request = kit_request(neighbours(), kit_stream[0], GPUPOOL_NO_WAIT);
    leave_structs(5);
    CHECK(!gpupool_alloc_request(arena, &request));
    CHECK_RESULT(gpupool_last_result(), GPUPOOL_E_HOST_MEMORY);
    bring_structs_back();
    block[1] = gpupool_alloc_request(arena, &request);
    CHECK(block[1] != NULL);
    close_it();
}

/* The cells of 2 GiB of addresses are got at once. */
static void addresses_without_cells(void) {
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    block[0] = get(MIB, 0);
    size_t reserved = kit_reserved(arena);
    fail_malloc_least = GPI_PAGE * sizeof(gpi_cell);
    fail_malloc_nth(1, 1);
    CHECK_RESULT(kit_why(gpupool_alloc(arena, 3 * GIB, kit_stream[0])), GPUPOOL_E_HOST_MEMORY);
    fail_malloc_nth(0, 0);
    CHECK_EQ(kit_reserved(arena), reserved);
    block[1] = get(3 * GIB, 0);
    close_it();
}

/* Where each block is a chunk, a chunk that came and could not become a block is free memory of the
   stream until it can go: nobody else is told to wait for an event to have it. */
static void a_chunk_that_became_no_block(void) {
    gpupool_request request;
    gpupool_verdict verdict;
    size_t alignment = 4 * MIB; /* so the block is cut out of its chunk */
    arena = kit_open_limited(GPUPOOL_SOURCE_BYPASS, 40 * MIB);
    block[0] = get(MIB, 0);
    fake_mode(FAKE_STEPPED);
    kit_mark(kit_stream[0], block[0], 512, 1); /* so the stream has work */
    leave_structs(4);
    CHECK_RESULT(kit_why(gpupool_alloc_aligned(arena, 20 * MIB, alignment, kit_stream[0])),
                 GPUPOOL_E_HOST_MEMORY);
    bring_structs_back();
    CHECK(kit_reserved(arena) > 21 * MIB);
    CHECK_EQ(kit_stats(arena).pending.now, 20 * MIB);
    request = kit_request(35 * MIB, kit_stream[1], GPUPOOL_NO_WAIT);
    CHECK_RESULT(kit_why(gpupool_alloc_request(arena, &request)), GPUPOOL_E_OUT_OF_MEMORY);
    CHECK_RESULT(gpupool_last_verdict(&verdict), GPUPOOL_OK);
    CHECK_EQ(verdict.cause, GPUPOOL_CAUSE_PENDING);
    fake_run_all();
    CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
    CHECK_EQ(kit_reserved(arena), MIB);
    put(get(35 * MIB, 1), 1);
    close_it();
}

/* A run that could not become a block is the stream's free memory alone: the finished unit beside
   it stays finished. Of what the ladder has found, in memory that the host may have only once work
   is done; then of another stream's run that was taken over. */
static void a_run_goes_back_alone(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_PINNED);
    config.chunk_bytes = 64 * MIB;
    arena = kit_create(&config);
    block[0] = gpupool_alloc_aligned(arena, MIB - 512, MIB, kit_stream[0]);
    void *found = get(20 * MIB, 1);
    CHECK(found == (char *)block[0] + MIB - 512); /* so a block at whole MiB leaves a unit */
    block[1] = get((size_t)kit_stats(arena).largest_free_bytes, 0);
    put(found, 1);
    leave_structs(3);
    CHECK_RESULT(kit_why(gpupool_alloc_aligned(arena, 10 * MIB, MIB, kit_stream[0])),
                 GPUPOOL_E_HOST_MEMORY);
    bring_structs_back();
    CHECK_EQ(kit_stats(arena).pending.now, 10 * MIB);
    close_it();
}

static void a_run_taken_over_goes_back_alone(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_DEVICE);
    config.chunk_bytes = 64 * MIB;
    arena = kit_create(&config);
    char *tiny = (char *)get(512, 2), *theirs = (char *)get(20 * MIB, 1);
    CHECK(theirs == tiny + 512);
    block[0] = get((size_t)kit_stats(arena).largest_free_bytes, 0);
    gpi_stream *of_2 = known_stream(2);
    of_2->cache.rest = 9;
    put(theirs, 1);
    put(tiny, 2);
    gpi_host_lock(&arena->lock);
    gpi_clock_pass(&arena->clocks, of_2, of_2->clock.issued); /* as another thread sees */
    gpi_clock_move_finished(&arena->clocks, of_2);
    gpi_host_unlock(&arena->lock);
    CHECK_EQ(kit_stats(arena).pending.now, 20 * MIB);
    leave_structs(3);
    CHECK_RESULT(kit_why(gpupool_alloc(arena, 10 * MIB, kit_stream[0])), GPUPOOL_E_HOST_MEMORY);
    bring_structs_back();
    CHECK_EQ(kit_stats(arena).pending.now, 20 * MIB);
    close_it();
}

/* ---- other threads use the last structs up, while CUDA is called ---- */

static int used_up;
static void use_up(void *unused) {
    (void)unused;
    used_up = 1;
    if (!rest) leave_structs(0);
}

static size_t pieces_of_another(void) {
    open_in_pieces();
    fake_mode(FAKE_STEPPED);
    for (int i = 0; i < 9; i += 2) kit_mark(kit_stream[1], block[i], 6 * MIB, 1);
    put_pieces(1);
    return 20 * MIB;
}

/* Whether the n-th such call of the request came; the structs go just before it. */
static int used_up_at(size_t (*way)(void), const char *call, long nth) {
    size_t bytes = way();
    used_up = 0;
    fake_before_call(call, nth, use_up, NULL);
    void *got = gpupool_alloc(arena, bytes, kit_stream[0]);
    gpupool_result result = gpupool_last_result();
    bring_structs_back();
    fake_before_call(call, 0, NULL, NULL);
    if (!got) CHECK(result == GPUPOOL_E_HOST_MEMORY || result == GPUPOOL_E_OUT_OF_MEMORY);
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    if (!got) got = get(bytes, 0);
    kit_mark(kit_stream[0], got, bytes, 2);
    put(got, 0);
    fake_run_all();
    CHECK_EQ(fake_failures(), 0);
    close_it();
    return used_up;
}

static void used_up_meanwhile(void) {
    static const struct { size_t (*way)(void); const char *call; } pairs[] = {
        {pieces_of_another, "cuEventQuery"},
        {pieces_of_another, "cuStreamWaitEvent"},
        {what_one_is_done_with, "cuEventQuery"},
    };
    for (size_t i = 0; i < KIT_COUNT(pairs); i++) {
        long nth = 1;
        check_case("pair %zu, call %ld", i, nth);
        while (used_up_at(pairs[i].way, pairs[i].call, nth))
            check_case("pair %zu, call %ld", i, ++nth);
        CHECK(nth > 1);
    }
    check_case(" ");
}

/* ---- while the program is told ---- */

static int uses_them_up;

/* The last structs go while the locks are open. */
static int add_and_use_up(const gpupool_mapping *mapping, void *user) {
    int refused = registry_add(mapping, user);
    if (uses_them_up && (refused || !known.refuse_at)) leave_structs(0);
    return refused;
}

static void open_told(gpupool_source source) {
    gpupool_arena_config config = registry_config(source, 0);
    config.chunk_bytes = 2 * MIB;
    config.on_map = add_and_use_up;
    arena = kit_create(&config);
}

static void close_told(void) {
    kit_close(arena);
    CHECK_EQ(known.count, 0);
    CHECK_EQ(known.told, known.gone);
    registry_clear();
}

/* The chunk is told of, so it stays. */
static void a_chunk_that_is_told_stays(void) {
    for (size_t s = 0; s < 2; s++) {
        check_case("source %zu", s);
        open_told(s ? GPUPOOL_SOURCE_DEVICE : GPUPOOL_SOURCE_MAPPED);
        uses_them_up = 1;
        CHECK_RESULT(kit_why(gpupool_alloc(arena, 2 * MIB, kit_stream[0])),
                     GPUPOOL_E_HOST_MEMORY);
        uses_them_up = 0;
        bring_structs_back();
        size_t reserved = kit_reserved(arena);
        CHECK(reserved > 0 && known.count == 1);
        void *again = get(2 * MIB, 0);
        CHECK_EQ(kit_reserved(arena), reserved);
        CHECK(registry_covers(again, 2 * MIB));
        put(again, 0);
        close_told();
    }
    check_case(" ");
}

/* A refused chunk that is all of the growth need not be parted from anything: it goes. */
static void a_refused_chunk_goes(void) {
    open_told(GPUPOOL_SOURCE_MAPPED);
    known.refuse_at = 1;
    uses_them_up = 1;
    CHECK_RESULT(kit_why(gpupool_alloc(arena, 2 * MIB, kit_stream[0])), GPUPOOL_E_CALLBACK);
    uses_them_up = 0;
    bring_structs_back();
    CHECK_EQ(kit_reserved(arena), 0);
    close_told();
}

/* Refused in the midst of a growth, whose chunks then cannot be parted: the program knows those it
   has taken, and hears of no other. */
static void refused_chunks_that_stay(void) {
    open_told(GPUPOOL_SOURCE_MAPPED);
    void *small = get(MIB, 0);
    known.refuse_at = 3;
    uses_them_up = 1;
    CHECK_RESULT(kit_why(gpupool_alloc(arena, 20 * MIB, kit_stream[0])), GPUPOOL_E_CALLBACK);
    uses_them_up = 0;
    bring_structs_back();
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    CHECK_EQ(known.count, 1 + 2);
    size_t reserved = kit_reserved(arena);
    CHECK(reserved >= 20 * MIB);
    void *again = get(18 * MIB, 0);
    CHECK_EQ(kit_reserved(arena), reserved);
    put(again, 0);
    put(small, 0);
    CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
    CHECK_EQ(kit_reserved(arena), 0);
    close_told();
}
#endif

int main(void) {
    FAKE_TEST(each_way_with_each_number);
    FAKE_TEST(neighbours_without_a_wait);
    FAKE_TEST(addresses_without_cells);
    FAKE_TEST(a_chunk_that_became_no_block);
    FAKE_TEST(a_run_goes_back_alone);
    FAKE_TEST(a_run_taken_over_goes_back_alone);
    FAKE_TEST(used_up_meanwhile);
    FAKE_TEST(a_chunk_that_is_told_stays);
    FAKE_TEST(a_refused_chunk_goes);
    FAKE_TEST(refused_chunks_that_stay);
    return check_finish();
}
