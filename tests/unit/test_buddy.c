// build: plain -O1
// build: asan -fsanitize=address,undefined -DEVERY=7
/* BUDDY in every state of a memory of seven slots, over borders of granules and of chunks: each run
   put into each list, and each piece taken out of each run, against a model that knows slots only.
 */
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "check.h"
#include "buddy_kit.h"

static long states, calls;

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

static void in_a_state(const buddy_state *state) {
    gpi_run *runs[BUDDY_SLOTS];
    states++;
    if (atomic_load(&check_bad)) return;
    buddy_make(state, runs);
    check_case("state %ld", states);
    if (buddy_compare(state)) return;
    put_each(state);
    take_each(state);
}

static void every_state(void) {
    static const buddy_cuts all_cuts[] = {{{0, 1, 2, 4095, 4096, 4097, 8191, 8192}},
                                          {{0, 3, 5, 4096, 6000, 8192, 8193, 12288}}};
    for (int i = 0; i < 4; i++) {
        buddy_state state;
        states = calls = 0;
        buddy_open(&all_cuts[i / 2], i % 2);
        buddy_each_state(&state, 0, in_a_state);
        printf("%s: %ld states, %ld calls\n", i % 2 ? "chunks apart" : "chunks side by side",
               states, calls);
        CHECK(states > 1000);
    }
    munmap(buddy.region.base, buddy.region.size);
}

int main(void) {
    TEST(every_state);
    return check_finish();
}
