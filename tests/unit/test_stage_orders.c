/* STAGE's slots in every state: six slots, of which any are pinned and in use, alone or in runs of
   two. What is taken was free and is the lowest; what is freed leaves all as it was. */
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "check.h"

enum { SLOTS = 6, LONGEST = 3 };

static gpi_stage stage;
static gpi_stage_slot slots[SLOTS];

/* The slots from `at` on: free, a run of one, or a run of two, by the digits of `state`. */
static void set_slots(unsigned state, uint64_t pinned) {
    uint64_t at = 0;
    memset(&stage, 0, sizeof stage);
    memset(slots, 0, sizeof slots);
    stage.slots = slots;
    stage.count = SLOTS;
    stage.slot_bytes = 1;
    stage.pinned_slots = pinned;
    for (; at < pinned; state /= 3) {
        uint64_t run = gpi_ground_min(state % 3, pinned - at), i;
        for (i = 0; i < run; i++) slots[at + i].state = GPI_STAGE_TAKEN;
        slots[at].run = run;
        stage.used.now += run;
        at += run ? run : 1;
        if (run) stage.top = at;
    }
}

/* The first of the lowest `run` free slots side by side; SLOTS: there are none. */
static uint64_t lowest(uint64_t run) {
    uint64_t at, i;
    for (at = 0; at + run <= stage.pinned_slots; at++) {
        for (i = 0; i < run && slots[at + i].state == GPI_STAGE_FREE; i++) {}
        if (i == run) return at;
    }
    return SLOTS;
}

static void take_and_free(uint64_t run) {
    gpi_stage_slot before[SLOTS], *slot;
    uint64_t used = stage.used.now, top = stage.top, first = lowest(run), i;
    memcpy(before, slots, sizeof slots);
    slot = gpi_stage_take(&stage, run);
    CHECK_EQ(gpi_stage_check(&stage), 0);
    CHECK(slot == (first < SLOTS ? &slots[first] : NULL));
    CHECK_EQ(stage.used.now, used + (slot ? run : 0));
    if (!slot) return;
    unsigned news = stage.news;
    gpi_stage_free(&stage, slot);
    CHECK(stage.news != news); /* for those that look for a slot */
    CHECK_EQ(gpi_stage_check(&stage), 0);
    CHECK(stage.used.now == used && stage.top == top);
    for (i = 0; i < SLOTS; i++) CHECK_EQ(slots[i].state, before[i].state);
}

static void slots_in_every_state(void) {
    unsigned state;
    uint64_t pinned, run;
    for (state = 0; state < 729; state++) /* 3 to the 6th */
        for (pinned = 0; pinned <= SLOTS; pinned++)
            for (run = 1; run <= LONGEST; run++) {
                check_case("state %u, %u pinned, %u taken", state, (unsigned)pinned, (unsigned)run);
                set_slots(state, pinned);
                CHECK_EQ(gpi_stage_check(&stage), 0);
                take_and_free(run);
            }
}

int main(void) {
    TEST(slots_in_every_state);
    return check_finish();
}
