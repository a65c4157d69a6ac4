// build: plain -O1
// build: asan -fsanitize=address,undefined -DEVERY=7
/* BUDDY by itself, in every state of a memory of seven slots, over borders of granules and of
   chunks: each run put into each list, each piece taken out of each run, and each search, against a
   model that knows slots only. */
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "check.h"

#define BUDDY_SLOTS 7

/* Memory is cut at these units into slots, the smallest pieces that a test names. */
typedef struct buddy_cuts {
    uint64_t at[BUDDY_SLOTS + 1];
} buddy_cuts;

typedef enum buddy_label {             /* of a run */
                           BUDDY_HELD, /* taken */
                           BUDDY_ANY,
                           BUDDY_ONE, /* free, in the list of the first stream */
                           BUDDY_TWO,
                           BUDDY_LABELS
} buddy_label;

/* What a state should be: for each slot its label, and whether a run begins with it. */
typedef struct buddy_state {
    uint8_t label[BUDDY_SLOTS], begins[BUDDY_SLOTS];
} buddy_state;

static gpi_buddy buddy;
static gpi_stream buddy_streams[2];
static gpi_chunk buddy_chunks[4];
static buddy_cuts buddy_cut;
static uint32_t buddy_bins; /* those from here on are for more than all memory */

static gpi_list *buddy_list(int label) {
    return label == BUDDY_ANY ? &buddy.any : &buddy_streams[label - BUDDY_ONE].list;
}

static int buddy_label_of(const gpi_run *run) {
    int label = BUDDY_ANY;
    if (run->state == GPI_TAKEN) return BUDDY_HELD;
    while (label < BUDDY_LABELS && buddy_list(label) != run->list) label++;
    return label;
}

/* Where the memory for tables comes from, once; a state is made by buddy_reset. */
static void buddy_open(const buddy_cuts *cuts, int is_apart) {
    int i;
    if (buddy.region.base) munmap(buddy.region.base, buddy.region.size);
    memset(&buddy.region, 0, sizeof buddy.region);
    buddy_cut = *cuts;
    CHECK(gpi_region_open(&buddy.region, 64 << 20) && gpi_region_ensure(&buddy.region, 4 << 20));
    buddy.granules = cuts->at[BUDDY_SLOTS] / GPI_GRANULE + 2;
    buddy.cells = (gpi_cell *)gpi_region_get(&buddy.region, buddy.granules * sizeof(gpi_cell));
    buddy.starts = (uint64_t *)gpi_region_get(&buddy.region, sizeof(uint64_t));
    buddy.base = (uint64_t)1 << 40;
    buddy.is_apart = is_apart;
    buddy_bins = gpi_buddy_bin(cuts->at[BUDDY_SLOTS]) + 1;
    memset(&buddy.any, 0, sizeof buddy.any);
    memset(buddy_streams, 0, sizeof buddy_streams);
    for (i = 0; i < 4; i++) { /* with is_apart each granule is a chunk, at addresses of its own */
        buddy_chunks[i].unit = (uint64_t)i * GPI_GRANULE;
        buddy_chunks[i].memory = (void *)(((uintptr_t)1 << 40) + (uintptr_t)i * (8 << 20));
    }
}

static void buddy_empty(gpi_list *list) {
    list->units = 0;
    memset(list->used, 0, sizeof list->used);
    memset(list->heads, 0, buddy_bins * sizeof *list->heads);
}

/* One run that nobody has filed, over all slots. */
static gpi_run *buddy_reset(void) {
    gpi_run *run;
    uint64_t i, used = buddy.region.used;
    memset(buddy.cells, 0, buddy.granules * sizeof(gpi_cell));
    memset(buddy.starts, 0, sizeof(uint64_t));
    memset(&buddy.pending, 0, sizeof buddy.pending);
    buddy.free_runs = 0;
    buddy_empty(&buddy.any);
    for (i = 0; i < 2; i++) {
        buddy_empty(&buddy_streams[i].list);
        buddy_streams[i].list.stream = &buddy_streams[i];
    }
    for (i = 0; i < buddy.granules && i < 4; i++)
        buddy.cells[i].chunk = buddy.is_apart ? &buddy_chunks[i] : &buddy_chunks[0];
    buddy.spare = NULL;
    run = gpi_region_get(&buddy.region, sizeof *run);
    memset(run, 0, sizeof *run);
    run->unit = buddy_cut.at[0];
    run->units = buddy_cut.at[BUDDY_SLOTS] - buddy_cut.at[0];
    buddy.region.used = used + BUDDY_SLOTS * sizeof *run; /* room for all, the same each time */
    for (i = 1; i < BUDDY_SLOTS; i++) {
        gpi_run *spare = (gpi_run *)(void *)(buddy.region.base + used + i * sizeof *run);
        spare->left = buddy.spare;
        buddy.spare = spare;
    }
    buddy.region.used = used;
    gpi_buddy_enter(&buddy, run);
    return run;
}

/* The position at which what begins with a slot was freed, in a state. */
static uint64_t buddy_position(int slot) {
    return 100 + (uint64_t)(slot * 5) % BUDDY_SLOTS;
}

/* And the stream that freed it. */
static gpi_stream *buddy_owner(int slot) {
    static gpi_stream owners[BUDDY_SLOTS];
    return &owners[slot];
}

/* Makes the state. runs[slot]: the run that begins with the slot, or NULL. */
static void buddy_make(const buddy_state *state, gpi_run *runs[BUDDY_SLOTS]) {
    gpi_run *run = buddy_reset();
    int slot, pass;
    memset(runs, 0, BUDDY_SLOTS * sizeof *runs);
    runs[0] = run;
    for (slot = 1; slot < BUDDY_SLOTS; slot++)
        if (state->begins[slot])
            runs[slot] = run = gpi_buddy_split(&buddy, run, buddy_cut.at[slot]);
    for (pass = 0; pass < 2; pass++) /* list ANY last: a stream's run would take it in */
        for (slot = 0; slot < BUDDY_SLOTS; slot++) {
            int label = state->label[slot];
            if (!runs[slot] || label == BUDDY_HELD || (label == BUDDY_ANY) != pass) continue;
            runs[slot]->by.freed_by = buddy_owner(slot);
            gpi_buddy_put(&buddy, runs[slot], GPI_FREE, buddy_list(label), buddy_position(slot));
        }
    buddy.pending.peak = buddy.pending.now;
}

static int buddy_is_filed(const gpi_run *run) {
    const gpi_run *at = run->list->heads[gpi_buddy_bin(run->units)];
    int times = 0;
    for (; at; at = at->next) {
        times += at == run;
        if (at->next && !CHECK(at->next->prev == at)) return 0;
        if (at->next && at->units >= GPI_LARGE) CHECK(at->unit < at->next->unit);
    }
    return times == 1;
}

/* The bits of a list say which bins have runs; none has another list's. */
static void buddy_check_list(gpi_list *list, uint64_t units, int runs) {
    uint32_t bin;
    int filed = 0;
    for (bin = 0; bin < buddy_bins; bin++) {
        const gpi_run *run = list->heads[bin];
        CHECK_EQ(list->used[bin / 64] >> bin % 64 & 1, run != NULL);
        for (; run; run = run->next) filed += run->list == list && gpi_buddy_bin(run->units) == bin;
    }
    CHECK_EQ(filed, runs);
    CHECK_EQ(gpi_buddy_next_bin(list, buddy_bins), GPI_NO_BIN);
    CHECK_EQ(list->units, units);
}

/* B3: of each granule the leftmost run that starts in it. */
static void buddy_check_cells(void) {
    const gpi_run *run = buddy.cells[0].first;
    uint64_t granule;
    for (granule = 0; granule < buddy.granules; granule++) {
        while (run && run->unit < granule * GPI_GRANULE) run = run->right;
        if (run && run->unit < (granule + 1) * GPI_GRANULE)
            CHECK(buddy.cells[granule].first == run);
        else CHECK(!buddy.cells[granule].first);
        CHECK_EQ(*buddy.starts >> granule & 1, buddy.cells[granule].first != NULL);
    }
}

/* Compares all records with a state. Returns the checks that have failed so far. */
static long buddy_compare(const buddy_state *state) {
    const gpi_run *run = gpi_buddy_at(&buddy, buddy_cut.at[0]), *before = NULL;
    uint64_t units[BUDDY_LABELS] = {0};
    int slot = 0, label, runs[BUDDY_LABELS] = {0};
    for (; run; before = run, run = run->right) {
        int first = slot;
        CHECK(run->left == before);
        CHECK_EQ(run->unit, buddy_cut.at[slot]);
        CHECK_EQ(state->begins[slot], 1);
        label = state->label[slot];
        do slot++;
        while (slot < BUDDY_SLOTS && !state->begins[slot]);
        CHECK_EQ(run->unit + run->units, buddy_cut.at[slot]);
        CHECK_EQ(buddy_label_of(run), label);
        if (label != BUDDY_HELD) CHECK(buddy_is_filed(run));
        runs[label]++;
        units[label] += run->units;
        for (; first < slot; first++) {
            CHECK(gpi_buddy_at(&buddy, buddy_cut.at[first]) == run);
            CHECK(gpi_buddy_at(&buddy, buddy_cut.at[first + 1] - 1) == run);
        }
        if (slot == BUDDY_SLOTS) break;
    }
    CHECK_EQ(slot, BUDDY_SLOTS);
    buddy_check_cells();
    CHECK(run && !run->right);
    for (label = BUDDY_ANY; label < BUDDY_LABELS; label++)
        buddy_check_list(buddy_list(label), units[label], runs[label]);
    CHECK_EQ(buddy.pending.now, (units[BUDDY_ONE] + units[BUDDY_TWO]) * GPI_UNIT);
    CHECK_EQ(buddy.free_runs, runs[BUDDY_ANY] + runs[BUDDY_ONE] + runs[BUDDY_TWO]);
    return atomic_load(&check_bad);
}

/* Calls see with every state in which BUDDY can be. `from` is the first slot not yet decided. */
static void buddy_each_state(buddy_state *state, int from,
                                    void (*see)(const buddy_state *)) {
    int label, end, slot;
    if (from == BUDDY_SLOTS) {
        see(state);
        return;
    }
    for (label = 0; label < BUDDY_LABELS; label++) {
        int is_cut = buddy.is_apart && from && buddy_cut.at[from] % GPI_GRANULE == 0;
        if (label != BUDDY_HELD && from && state->label[from - 1] == label && !is_cut) continue;
        for (end = from + 1; end <= BUDDY_SLOTS; end++) {
            for (slot = from; slot < end; slot++) {
                state->label[slot] = (uint8_t)label;
                state->begins[slot] = slot == from;
            }
            buddy_each_state(state, end, see);
            if (buddy.is_apart && buddy_cut.at[end] % GPI_GRANULE == 0) break;
        }
    }
}

static long states, calls, searches;

static int end_of(const buddy_state *state, int slot) {
    do slot++;
    while (slot < BUDDY_SLOTS && !state->begins[slot]);
    return slot;
}

static int start_of(const buddy_state *state, int slot) {
    while (!state->begins[slot]) slot--;
    return slot;
}

static uint64_t units_of(int from, int to) {
    return buddy_cut.at[to] - buddy_cut.at[from];
}

static int is_border(int slot) {
    return buddy.is_apart && buddy_cut.at[slot] % GPI_GRANULE == 0;
}

/* ---- put ---- */

/* Whether the run from..to beside a freed one joins it: of the same list, or finished memory, of
   which no more may wait than was freed. */
static int joins(const buddy_state *state, int from, int to, int label, uint64_t *most) {
    if (state->label[from] == label) return 1;
    if (label == BUDDY_ANY || state->label[from] != BUDDY_ANY || units_of(from, to) > *most)
        return 0;
    *most -= units_of(from, to);
    return 1;
}

/* A freed run: the position of the latest free of it, and the slot that its larger part began with,
   which says who freed that. */
typedef struct freed {
    uint64_t at;
    int owner;
} freed;

static void join(freed *run, const buddy_state *state, int side, int label, int is_larger) {
    if (state->label[side] == label && buddy_position(side) > run->at)
        run->at = buddy_position(side);
    if (is_larger) run->owner = side;
}

/* What a state becomes when the run that begins with `from` is put into a list. */
static void model_put(buddy_state *state, int from, int label, freed *run) {
    int to = end_of(state, from), slot, side;
    uint64_t most = units_of(from, to);
    while (from && !is_border(from)) {
        side = start_of(state, from - 1);
        if (!joins(state, side, from, label, &most)) break;
        join(run, state, side, label, units_of(side, from) >= units_of(from, to));
        from = side;
    }
    while (to < BUDDY_SLOTS && !is_border(to)) {
        side = end_of(state, to);
        if (!joins(state, to, side, label, &most)) break;
        join(run, state, to, label, units_of(to, side) > units_of(from, to));
        to = side;
    }
    for (slot = from; slot < to; slot++) {
        state->label[slot] = (uint8_t)label;
        state->begins[slot] = slot == from;
    }
    if (label == BUDDY_ANY) run->at = 0; /* finished: no position */
}

static void put_each(const buddy_state *state) {
    for (int slot = 0; slot < BUDDY_SLOTS; slot++) {
        if (!state->begins[slot] || state->label[slot] != BUDDY_HELD) continue;
        for (int label = BUDDY_ANY; label < BUDDY_LABELS; label++)
            for (uint64_t at = 99; at < 200; at += 50) { /* before all other positions, and after */
                gpi_run *runs[BUDDY_SLOTS], *run;
                buddy_state after = *state;
                freed expected = {at, slot};
                if (calls++ % EVERY) continue;
                buddy_make(state, runs);
                runs[slot]->by.freed_by = buddy_owner(slot);
                run = gpi_buddy_put(&buddy, runs[slot], GPI_FREE, buddy_list(label), at);
                model_put(&after, slot, label, &expected);
                check_case("state %ld, slot %d put into list %d", states, slot, label);
                CHECK(run == gpi_buddy_at(&buddy, buddy_cut.at[slot]));
                CHECK_EQ(run->of.at, expected.at);
                CHECK(run->by.freed_by == buddy_owner(expected.owner));
                if (buddy_compare(&after)) return;
            }
    }
}

/* ---- take ---- */

/* The rest of the run stays what it was. */
static void model_take(buddy_state *state, int from, int to) {
    int end = end_of(state, start_of(state, from));
    for (int slot = from; slot < to; slot++) {
        state->label[slot] = BUDDY_HELD;
        state->begins[slot] = slot == from;
    }
    if (to < end) state->begins[to] = 1;
}

static void take_each(const buddy_state *state) {
    for (int first = 0; first < BUDDY_SLOTS; first++) {
        int end = end_of(state, first), from, to;
        if (!state->begins[first] || state->label[first] == BUDDY_HELD) continue;
        for (from = first; from < end; from++)
            for (to = from + 1; to <= end; to++) {
                gpi_run *runs[BUDDY_SLOTS], *run;
                buddy_state after = *state;
                if (calls++ % EVERY) continue;
                buddy_make(state, runs);
                run = gpi_buddy_take(&buddy, runs[first], buddy_cut.at[from], units_of(from, to));
                model_take(&after, from, to);
                check_case("state %ld, slots %d to %d taken", states, from, to);
                CHECK_EQ(run->unit, buddy_cut.at[from]);
                CHECK_EQ(run->units, units_of(from, to));
                CHECK_EQ(buddy.pending.peak,
                         buddy.pending.now + (state->label[first] == BUDDY_ANY
                                                  ? 0
                                                  : units_of(from, to) * GPI_UNIT));
                if (buddy_compare(&after)) return;
            }
    }
}

/* ---- find ---- */

static gpi_run *runs[BUDDY_SLOTS];

/* Where a block would begin, and whether it fits: by addresses alone. */
static int fits(const gpi_run *run, uint64_t units, uint64_t alignment, uint64_t *start) {
    uint64_t odd = gpi_address(&buddy, run->unit) % alignment;
    *start = run->unit + (odd ? alignment - odd : 0) / GPI_UNIT;
    return *start + units <= run->unit + run->units;
}

/* The bin of the closest fit; GPI_NO_BIN: nothing fits. */
static uint32_t closest(const gpi_search *search) {
    uint32_t best = GPI_NO_BIN;
    for (int slot = 0; slot < BUDDY_SLOTS; slot++) {
        const gpi_run *run = runs[slot];
        uint64_t start;
        if (!run || run->state != GPI_FREE || run->of.at >= search->below) continue;
        if (run->list != search->lists[0] && run->list != search->lists[1]) continue;
        if (!fits(run, search->units, search->alignment, &start)) continue;
        if (gpi_buddy_bin(run->units) < best) best = gpi_buddy_bin(run->units);
    }
    return best;
}

static void look(const gpi_search *search) {
    uint32_t best = closest(search);
    gpi_run *run = gpi_buddy_find(&buddy, search);
    uint64_t start;
    searches++;
    if (!CHECK_EQ(run != NULL, best != GPI_NO_BIN) || !run) return;
    CHECK_EQ(gpi_buddy_bin(run->units), best);
    CHECK(run->of.at < search->below);
    CHECK(fits(run, search->units, search->alignment, &start));
    CHECK_EQ(gpi_buddy_start(&buddy, run, search->alignment), start);
}

static void find_each(const buddy_state *state) {
    static const uint64_t alignments[] = {512, 4096, 2 << 20};
    if (states % EVERY) return;
    buddy_make(state, runs);
    check_case("state %ld, a search", states);
    for (int from = 0; from < BUDDY_SLOTS; from++)
        for (int to = from + 1; to <= BUDDY_SLOTS; to += 2)
            for (int k = 0; k < 9; k++) {
                gpi_search search = {{&buddy.any, NULL}, 0, alignments[k / 3], UINT64_MAX, 256};
                search.units = buddy_cut.at[to] - buddy_cut.at[from] + (uint64_t)(from % 2);
                if (k % 3) search.lists[1] = buddy_list(BUDDY_ONE);
                if (k % 3 == 2) search.lists[0] = buddy_list(BUDDY_TWO), search.below = 103;
                look(&search);
            }
}

static void in_a_state(const buddy_state *state) {
    states++;
    if (atomic_load(&check_bad)) return;
    buddy_make(state, runs);
    check_case("state %ld", states);
    if (buddy_compare(state)) return;
    put_each(state);
    take_each(state);
    find_each(state);
}

static void every_state(void) {
    static const buddy_cuts all_cuts[] = {{{0, 1, 2, 4095, 4096, 4097, 8191, 8192}},
                                          {{0, 3, 5, 4096, 6000, 8192, 8193, 12288}}};
    for (int i = 0; i < 4; i++) {
        buddy_state state;
        states = calls = searches = 0;
        buddy_open(&all_cuts[i / 2], i % 2);
        buddy_each_state(&state, 0, in_a_state);
        printf("%s: %ld states, %ld calls, %ld searches\n",
               i % 2 ? "chunks apart" : "chunks side by side", states, calls, searches);
        CHECK(states > 1000);
    }
    munmap(buddy.region.base, buddy.region.size);
}

/* A larger size has no lower bin, and a bin's runs differ by an eighth at most. */
static void bins(void) {
    uint32_t before = 0;
    for (uint64_t units = 1; units < 1 << 20; units += 1 + units / 1000) {
        uint32_t bin = gpi_buddy_bin(units);
        CHECK(bin >= before && bin < GPI_BINS);
        if (bin == gpi_buddy_bin(units + units / 8 + 1) && units >= GPI_STEPS)
            check_fail(__FILE__, __LINE__, "the bin of %llu units is too wide",
                       (unsigned long long)units);
        before = bin;
    }
    CHECK(gpi_buddy_bin((uint64_t)1 << 55) < GPI_BINS);
}

int main(void) {
    TEST(every_state);
    TEST(bins);
    return check_finish();
}
