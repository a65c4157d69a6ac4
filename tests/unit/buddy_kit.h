/* buddy_kit.h: a small BUDDY by itself, states of it that a test writes down, and the check of all
   its records. Include it after the implementation and check.h. */
#ifndef BUDDY_KIT_H
#define BUDDY_KIT_H

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

static inline gpi_list *buddy_list(int label) {
    return label == BUDDY_ANY ? &buddy.any : &buddy_streams[label - BUDDY_ONE].list;
}

static inline int buddy_label_of(const gpi_run *run) {
    int label = BUDDY_ANY;
    if (run->state == GPI_TAKEN) return BUDDY_HELD;
    while (label < BUDDY_LABELS && buddy_list(label) != run->list) label++;
    return label;
}

/* Where the memory for tables comes from, once; a state is made by buddy_reset. */
static inline void buddy_open(const buddy_cuts *cuts, int is_apart) {
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

static inline void buddy_empty(gpi_list *list) {
    list->units = 0;
    memset(list->used, 0, sizeof list->used);
    memset(list->heads, 0, buddy_bins * sizeof *list->heads);
}

/* One run that nobody has filed, over all slots. */
static inline gpi_run *buddy_reset(void) {
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
static inline uint64_t buddy_position(int slot) {
    return 100 + (uint64_t)(slot * 5) % BUDDY_SLOTS;
}

/* And the stream that freed it. */
static inline gpi_stream *buddy_owner(int slot) {
    static gpi_stream owners[BUDDY_SLOTS];
    return &owners[slot];
}

/* Makes the state. runs[slot]: the run that begins with the slot, or NULL. */
static inline void buddy_make(const buddy_state *state, gpi_run *runs[BUDDY_SLOTS]) {
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

static inline int buddy_is_filed(const gpi_run *run) {
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
static inline void buddy_check_list(gpi_list *list, uint64_t units, int runs) {
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
static inline void buddy_check_cells(void) {
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
static inline long buddy_compare(const buddy_state *state) {
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
static inline void buddy_each_state(buddy_state *state, int from,
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

#endif
