/* Which free memory a stitch is made of, in how many parts and mappings, and what making it leaves
   behind. */
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "arena_kit.h"

#if CHECK_FAKE

#define GRANULE (2 * MIB) /* the driver's */
#define QUARTER (GRANULE / 4)
#define QUARTERS 64

static gpupool_arena *arena;

static void *get(size_t bytes) { return kit_alloc(arena, bytes, kit_stream[0]); }
static void put(void *block, int stream) {
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[stream]), GPUPOOL_OK);
}

static void open_with_chunks_of(size_t bytes) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
    config.chunk_bytes = bytes;
    arena = kit_create(&config);
}

static void no_more_memory(void) {
    CHECK_RESULT(gpupool_set_limit(arena, kit_reserved(arena)), GPUPOOL_OK);
}

static void trim_none(void) { CHECK_RESULT(gpupool_trim(arena, SIZE_MAX, NULL), GPUPOOL_OK); }

static uint64_t unit_of(const void *at) { return (uintptr_t)at / GPUPOOL_UNIT_BYTES; }

/* ---- chunks of four quarters: "x" is live, "." free, "#" of a stitched block ---- */

static char *quarter[QUARTERS];
static char shape[QUARTERS + 1]; /* as laid out, without the blanks */

/* Each word is a chunk. The free quarters are freed on this stream, which is still to work on them
   if `works`. */
static void lay_out(const char *words, int stream, int works) {
    size_t n = 0;
    open_with_chunks_of(GRANULE);
    for (; *words; words++)
        if (*words != ' ') shape[n++] = *words;
    shape[n] = 0;
    for (size_t i = 0; i < n; i++) quarter[i] = (char *)get(QUARTER);
    for (size_t i = 1; i < n; i++) CHECK(quarter[i] == quarter[i - 1] + QUARTER);
    kit_order(kit_stream[0], kit_stream[stream]);
    if (works) fake_mode(FAKE_STEPPED);
    for (size_t i = 0; i < n; i++) {
        if (shape[i] != '.') continue;
        if (works) kit_fill(kit_stream[stream], quarter[i], 512, 1);
        put(quarter[i], stream);
    }
    if (!works) trim_none();
    no_more_memory();
}

/* What the host has of stitches is counted. */
static void close_it(void) {
    const gpi_stitches *stitches = &arena->stitches;
    uint64_t bytes = stitches->candidates_room * sizeof *stitches->candidates +
                     stitches->taken_room * sizeof *stitches->taken;
    for (const gpi_stitch *s = stitches->oldest; s; s = s->newer) bytes += s->host_bytes;
    CHECK_EQ(stitches->host_bytes, bytes);
    fake_mode(FAKE_EAGER);
    CHECK_EQ(fake_failures(), 0);
    kit_close(arena);
}

static void take_down(void *block) {
    put(block, 0);
    for (size_t i = 0; shape[i]; i++)
        if (shape[i] == 'x') put(quarter[i], 0);
    close_it();
}

static void *stitched(size_t bytes) {
    uint64_t before = kit_stats(arena).stitches;
    void *block = get(bytes);
    CHECK_EQ(kit_stats(arena).stitches, before + 1);
    return block;
}

static void is_laid_out_as(const char *words) {
    size_t n = 0;
    for (; *words; words++) {
        const gpi_run *run = gpi_tree_at(&arena->tree, unit_of(quarter[n]));
        char now = run->list == GPI_LIST_PART ? '#' : run->list == GPI_LIST_LIVE ? 'x' : '.';
        if (*words == ' ') continue;
        if (now != *words) check_fail(__FILE__, __LINE__, "quarter %zu is %c", n, now);
        n++;
    }
}

/* A chunk's start is found without a look at the runs that follow in its granule: those lead astray
   meanwhile. */
static void the_start_of_a_chunk_is_found_at_once(void) {
    gpi_run nowhere, *first, *last;
    lay_out("xxxx ..xx", 0, 0);
    memset(&nowhere, 0, sizeof nowhere);
    for (int chunk = 0; chunk < 2; chunk++) {
        last = gpi_tree_at(&arena->tree, unit_of(quarter[4 * chunk + 3]));
        first = gpi_tree_at(&arena->tree, unit_of(quarter[4 * chunk]));
        gpi_run *before = last->prev;
        CHECK(first != last && first->unit == unit_of(quarter[4 * chunk]));
        last->prev = &nowhere;
        CHECK(gpi_tree_at(&arena->tree, first->unit) == first);
        last->prev = before;
    }
    take_down(NULL);
}

/* ---- what is taken ---- */

static void it_takes(size_t quarters, const char *before, const char *after) {
    check_case("%zu of \"%s\"", quarters, before);
    lay_out(before, 0, 0);
    void *block = stitched(quarters * QUARTER);
    is_laid_out_as(after);
    take_down(block);
}

/* What whole chunks leave over is of the shortest end, or start, of a chunk that has it; where none
   has, of an end and a start. */
static void the_shortest_end_that_will_do(void) {
    it_takes(6, ".... xxxx ..xx xxx.", "#### xxxx ##xx xxx.");
    it_takes(6, ".... xxxx ..xx xxxx ...x", "#### xxxx ##xx xxxx ...x");
    it_takes(6, ".... xxxx ...x xxxx ..xx", "#### xxxx ...x xxxx ##xx");
    it_takes(6, ".... xxxx xx.. xxxx x...", "#### xxxx xx## xxxx x...");
    it_takes(6, ".... xxxx x... xxxx xx..", "#### xxxx x... xxxx xx##");
    it_takes(6, ".... xxxx .xxx xxxx xxx.", "#### xxxx #xxx xxxx xxx#");
}

/* Two ends that hold the rest spare a whole chunk; where they do not, the chunk is cut. */
static void two_ends_spare_a_chunk(void) {
    it_takes(6, "xxx. xxxx .... xxxx .... xxxx .xxx", "xxx# xxxx #### xxxx .... xxxx #xxx");
    it_takes(7, "xxx. xxxx .... xxxx .... xxxx .xxx", "xxx. xxxx #### xxxx ###. xxxx .xxx");
}

/* Be it by a single unit that it is longer than a chunk. */
static void an_aligned_block_begins_with_a_chunk(void) {
    size_t alignment = 4096;
    lay_out(".... xxxx ..xx", 0, 0);
    char *block = (char *)gpupool_alloc_aligned(arena, GRANULE + 512, alignment, kit_stream[0]);
    CHECK_RESULT(kit_why(block), GPUPOOL_OK);
    CHECK_EQ((uintptr_t)block % alignment, 0);
    is_laid_out_as("#### xxxx #.xx");
    take_down(block);
}

static gpi_chunk three[3];

static void rank(gpi_free_chunk two[2], int code) {
    for (int i = 0; i < 3; i++, code /= 4) gpi_plan_rank(two, &three[i], (uint64_t)(code % 4));
}

static int at(int code, int i) { return code >> 2 * i & 3; }

/* The end of one chunk and the start of another one, or one of them: as much as there is. */
static void two_ends_have_the_most(void) {
    for (int ends = 0; ends < 64; ends++)
        for (int starts = 0; starts < 64; starts++) {
            gpi_measure measure;
            gpi_free_chunk head, tail;
            int most = 0;
            check_case("ends %o, starts %o", (unsigned)ends, (unsigned)starts);
            memset(&measure, 0, sizeof measure);
            rank(measure.heads, ends);
            rank(measure.tails, starts);
            gpi_plan_ends(&measure, &head, &tail);
            for (int i = 0; i < 3; i++)
                for (int k = 0; k < 3; k++) {
                    int one = at(ends, i) > at(starts, k) ? at(ends, i) : at(starts, k);
                    int both = i == k ? one : at(ends, i) + at(starts, k);
                    if (both > most) most = both;
                }
            CHECK_EQ(head.units + tail.units, most);
            if (head.units) CHECK_EQ(head.units, at(ends, (int)(head.chunk - three)));
            if (tail.units) CHECK_EQ(tail.units, at(starts, (int)(tail.chunk - three)));
            if (head.units && tail.units) CHECK(head.chunk != tail.chunk);
        }
}

/* Whichever two a sort compares. */
static void lower_addresses_are_first(void) {
    gpi_chunk chunk[2] = {{.unit = 4}, {.unit = 8}};
    gpi_free_chunk low = {&chunk[0], 1}, high = {&chunk[1], 2};
    CHECK(gpi_plan_by_address(&low, &high) < 0);
    CHECK(gpi_plan_by_address(&high, &low) > 0);
}

/* Chunks that are neighbours make one part, though the larger ones were chosen first. */
static void neighbours_are_one_part(void) {
    char *block[4];
    open_with_chunks_of(2 * GRANULE);
    for (int i = 0; i < 4; i++) /* of a chunk of two granules and one of one, but for the wall */
        block[i] = (char *)get((i == 2 ? 2 : 3) * GRANULE);
    CHECK_EQ(kit_stats(arena).chunks_gained, 7);
    CHECK(block[1] == block[0] + 3 * GRANULE);
    for (int i = 0; i < 4; i++)
        if (i != 2) put(block[i], 0);
    trim_none();
    no_more_memory();
    void *wide = stitched(9 * GRANULE);
    const gpi_stitch *stitch = arena->stitches.newest;
    CHECK_EQ(stitch->seam_count, 6);
    if (CHECK_EQ(stitch->part_count, 2)) {
        CHECK_EQ(stitch->parts[0].unit, unit_of(block[0]));
        CHECK_EQ(stitch->parts[1].unit, unit_of(block[3]));
    }
    put(wide, 0);
    put(block[2], 0);
    close_it();
}

/* A chunk of one granule, and behind it two of two each: these hold the block. */
static void the_largest_are_first(void) {
    char *block[3];
    open_with_chunks_of(2 * GRANULE);
    for (int i = 0; i < 3; i++) block[i] = (char *)get((i ? 2 : 3) * GRANULE);
    CHECK_EQ(kit_stats(arena).chunks_gained, 4);
    put(block[0], 0);
    put(block[2], 0);
    trim_none();
    no_more_memory();
    void *wide = stitched(4 * GRANULE);
    CHECK_EQ(arena->stitches.newest->seam_count, 2);
    put(wide, 0);
    put(block[1], 0);
    close_it();
}

/* New memory at the end of a block is a chunk of the usual size; in front of a tail, be that one
   unit, only what the block needs. */
static void as_much_is_grown(void) {
    for (int tail = 0; tail < 2; tail++) {
        check_case("%s a tail", tail ? "in front of" : "without");
        open_with_chunks_of(2 * GRANULE);
        void *whole = get(2 * GRANULE), *start = get(QUARTER), *wall = get(2 * GRANULE - QUARTER);
        put(whole, 0);
        if (tail) put(start, 0);
        trim_none();
        CHECK_RESULT(gpupool_set_limit(arena, 6 * GRANULE), GPUPOOL_OK);
        char *block = (char *)stitched(3 * GRANULE + (tail ? 512 : 0));
        CHECK_EQ(kit_reserved(arena), (tail ? 5 : 6) * GRANULE);
        if (tail) CHECK(fake_peek(block + 3 * GRANULE) == fake_peek(start));
        put(block, 0);
        if (!tail) put(start, 0);
        put(wall, 0);
        close_it();
    }
}

/* ---- how many mappings that takes ---- */

static int draw(size_t quarters, uint64_t most_seams, uint64_t growth, gpi_plan *plan) {
    int drawn;
    memset(plan, 0, sizeof *plan);
    plan->units = quarters * QUARTER / GPUPOOL_UNIT_BYTES;
    plan->align_units = 1;
    plan->most_units = arena->chunks.units + growth;
    plan->most_seams = most_seams;
    gpi_host_lock(&arena->lock);
    arena->tree.lists[GPI_LIST_ANY]->usable_below = UINT64_MAX;
    drawn = gpi_plan_draw(&arena->stitches, plan) == GPUPOOL_OK;
    gpi_tree_clear_usable(&arena->tree);
    gpi_host_unlock(&arena->lock);
    return drawn;
}

/* One for each chunk, whole or not; and where that is more than is worth it there is no plan. */
static void a_mapping_for_each_chunk(void) {
    static const struct { size_t quarters; uint64_t seams; } wanted[] = {
        {10, 4}, /* an end, two chunks, and a start */
        {9, 3},  /* two chunks, and one of these */
        {8, 2}};
    for (size_t i = 0; i < KIT_COUNT(wanted); i++) {
        gpi_plan plan;
        check_case("%zu quarters", wanted[i].quarters);
        lay_out("xxx. xxxx .... xxxx .... xxxx .xxx", 0, 0);
        CHECK(!draw(wanted[i].quarters, wanted[i].seams - 1, 0, &plan));
        CHECK(draw(wanted[i].quarters, wanted[i].seams, 0, &plan));
        CHECK_EQ(plan.seam_count, wanted[i].seams);
        void *block = stitched(wanted[i].quarters * QUARTER);
        CHECK_EQ(arena->stitches.seams, wanted[i].seams);
        take_down(block);
    }
}

/* New memory is counted in chunks of the usual size. */
static void a_mapping_for_each_new_chunk(void) {
    gpi_plan plan;
    lay_out(".... xxxx", 0, 0);
    uint64_t growth = 2 * arena->chunks.granule_units;
    CHECK(!draw(12, 2, growth, &plan));
    CHECK(draw(12, 3, growth, &plan));
    CHECK_EQ(plan.seam_count, 3);
    CHECK_EQ(plan.new_units, growth);
    CHECK_RESULT(gpupool_set_limit(arena, 4 * GRANULE), GPUPOOL_OK);
    void *block = stitched(12 * QUARTER);
    CHECK_EQ(arena->stitches.seams, 3);
    take_down(block);
}

/* ---- while it is made, and afterwards ---- */

/* Room for more parts, when there were as many as fitted, is counted as what the host has. */
static void room_for_more_parts(void) {
    lay_out(".... xxxx ....", 0, 0);
    void *block = stitched(8 * QUARTER);
    gpi_stitches *stitches = &arena->stitches;
    uint64_t room = stitches->taken_room;
    stitches->taken_count = room;
    CHECK(gpi_plan_can_add(stitches));
    CHECK(stitches->taken_room > room);
    stitches->taken_count = 0;
    take_down(block);
}

static gpi_stream *known(int stream) {
    return gpi_clock_find(&arena->clocks, gpi_clock_key(kit_stream[stream]));
}

/* One wait for a stream that three parts are of; and the block keeps nothing of the stream. */
static void one_wait_for_a_stream(void) {
    lay_out(".... xxxx .... xxxx ....", 1, 1);
    uint64_t refs = known(1)->refs;
    fake_reset_counters();
    void *block = stitched(12 * QUARTER);
    CHECK_EQ(arena->stitches.newest->part_count, 3);
    CHECK_EQ(fake_calls("cuStreamWaitEvent"), 1);
    CHECK_EQ(known(1)->refs, refs);
    kit_fill(kit_stream[0], block, 12 * QUARTER, 2);
    for (int i = 0; i < 2; i++)
        while (fake_step(kit_stream[i])) continue;
    fake_run_all();
    take_down(block);
}

static long looks;

static void look(void *unused) {
    (void)unused;
    gpi_host_lock(&arena->lock);
    CHECK_EQ(gpi_stitch_check(&arena->stitches), 0);
    gpi_host_unlock(&arena->lock);
    looks++;
}

/* Nobody misses the addresses of a stitch while it is being mapped, with the lock open. */
static void every_address_is_accounted_for(void) {
    lay_out(".... xxxx ....", 0, 0);
    looks = 0;
    fake_before_call("cuMemMap", 2, look, NULL);
    void *block = stitched(8 * QUARTER);
    CHECK_EQ(looks, 1);
    take_down(block);
}

/* How many granules above the homes name a stitch. */
static uint64_t named(void) {
    const gpi_chunks *chunks = &arena->chunks;
    uint64_t end = chunks->base_unit + chunks->space_units, count = 0;
    for (uint64_t unit = chunks->stitch_unit; unit < end; unit += chunks->granule_units)
        count += gpi_tree_owner(&arena->tree, unit) != NULL;
    return count;
}

/* A block that was to begin in the second granule of its chunk, and could be neither mapped nor
   unmapped: only the first granule names the stitch, and none when it has gone. */
static void what_could_not_be_mapped_is_forgotten(void) {
    open_with_chunks_of(2 * GRANULE);
    char *most = (char *)get(GRANULE + MIB), *end = (char *)get(MIB);
    char *wall = (char *)get(2 * GRANULE), *whole = (char *)get(2 * GRANULE);
    CHECK(end == most + GRANULE + MIB);
    put(end, 0);
    put(whole, 0);
    trim_none();
    no_more_memory();
    fake_fail_call("cuMemMap", 2, 0, 0);
    fake_fail_call("cuMemUnmap", 1, 1, 0);
    CHECK_RESULT(kit_why(gpupool_alloc(arena, 2 * GRANULE + MIB, kit_stream[0])), GPUPOOL_E_CUDA);
    CHECK(strstr(gpupool_last_error(), "cuMemMap")); /* which was the first to fail */
    fake_fail_clear();
    const gpi_stitch *spoilt = arena->stitches.newest;
    if (CHECK(spoilt && spoilt->state == GPI_STITCH_SPOILT)) {
        CHECK(gpi_tree_owner(&arena->tree, spoilt->unit) == spoilt);
        CHECK_EQ(named(), 1);
    }
    put(most, 0); /* and its chunk can go */
    CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
    CHECK_EQ(arena->stitches.count, 0);
    CHECK_EQ(named(), 0);
    put(wall, 0);
    close_it();
}
#endif

int main(void) {
    FAKE_TEST(the_start_of_a_chunk_is_found_at_once);
    FAKE_TEST(the_shortest_end_that_will_do);
    FAKE_TEST(two_ends_spare_a_chunk);
    FAKE_TEST(an_aligned_block_begins_with_a_chunk);
    FAKE_TEST(two_ends_have_the_most);
    FAKE_TEST(lower_addresses_are_first);
    FAKE_TEST(neighbours_are_one_part);
    FAKE_TEST(the_largest_are_first);
    FAKE_TEST(as_much_is_grown);
    FAKE_TEST(a_mapping_for_each_chunk);
    FAKE_TEST(a_mapping_for_each_new_chunk);
    FAKE_TEST(room_for_more_parts);
    FAKE_TEST(one_wait_for_a_stream);
    FAKE_TEST(every_address_is_accounted_for);
    FAKE_TEST(what_could_not_be_mapped_is_forgotten);
    return check_finish();
}
