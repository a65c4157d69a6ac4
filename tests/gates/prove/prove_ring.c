/* STAGE and RING, cut down: pages of 16 bytes, and transfers whose smallest chunk is one of them.
   With the real sizes the divisions take too long. */
// rooms: GROUND HOST FILE DRIVER DATA LEDGER TREE CACHE FENCE STAGE RING
// unwind: 6
// as: s/GPI_RING_LEAST = 128 << 10,/GPI_RING_LEAST = 16,/; s/GPI_PAGE_BYTES ((uint64_t)4096)/GPI_PAGE_BYTES ((uint64_t)16)/
#include "prove.h"

#define MOST ((uint64_t)256)
#define SLOTS 5

static gpupool_ring ring;
static gpi_stage stage;
static gpi_stage_slot slots[SLOTS];

// broken: s/gpi_ground_min(most, width - column)/most/
void prove_a_chunk_is_of_what_is_left(void) {
    static gpi_transfer transfer;
    uint64_t most = 16 * (1 + any_below(4)), chunk, left, column;
    ring.stage.slot_bytes = 16 * (1 + any_below(4));
    ring.workers_running = (int)any_below(4);
    transfer.width = (uint64_t)1 << any_below(7);
    transfer.bytes = any_below(MOST);
    transfer.cursor = any_below(MOST);
    ASSUME((transfer.bytes & (transfer.width - 1)) == 0 && transfer.cursor < transfer.bytes);
    left = transfer.bytes - transfer.cursor;
    column = transfer.cursor & (transfer.width - 1);
    chunk = gpi_ring_chunk(&ring, &transfer, most);
    CLAIM(chunk > 0 && chunk <= left && chunk <= most && chunk <= ring.stage.slot_bytes);
    if (transfer.width != transfer.bytes) /* whole rows, or a part of one */
        CLAIM((column == 0 && (chunk & (transfer.width - 1)) == 0) ||
              column + chunk <= transfer.width);
}

// broken: s/most -= (transfer->file_offset + transfer->cursor) % GPI_PAGE_BYTES/most -= 0/
void prove_a_chunk_of_a_file_ends_its_page(void) {
    static gpi_transfer transfer;
    uint64_t chunk, first, end;
    ring.stage.slot_bytes = 16 * (1 + any_below(4));
    ring.workers_running = (int)any_below(4);
    transfer.is_file = 1;
    transfer.file_offset = any_below(MOST);
    transfer.width = transfer.bytes = any_below(MOST);
    transfer.cursor = any_below(MOST);
    ASSUME(transfer.cursor < transfer.bytes);
    chunk = gpi_ring_chunk(&ring, &transfer, UINT64_MAX);
    first = transfer.file_offset + transfer.cursor;
    end = first + chunk;
    CLAIM(chunk > 0 && transfer.cursor + chunk <= transfer.bytes);
    CLAIM((first & 15) + chunk <= ring.stage.slot_bytes);
    CLAIM((end & 15) == 0 || transfer.cursor + chunk == transfer.bytes);
}

/* Slots of one each, free or not. */
static void any_slots(void) {
    uint64_t i;
    stage.slots = slots;
    stage.count = SLOTS;
    stage.slot_bytes = 1;
    stage.pinned_slots = any_below(SLOTS + 1);
    for (i = 0; i < stage.pinned_slots; i++) {
        slots[i].run = 1;
        slots[i].state = any() & 1 ? GPI_STAGE_TAKEN : GPI_STAGE_FREE;
        if (slots[i].state == GPI_STAGE_FREE) continue;
        stage.top = i + 1;
        stage.used.now++;
    }
    ASSUME(gpi_stage_check(&stage) == 0);
}

// broken: s/first = at + 1;/first = at;/
void prove_what_is_taken_was_free_and_is_the_lowest(void) {
    uint64_t run = 1 + any_below(3), at, i, used;
    gpi_stage_slot before[SLOTS], *slot;
    any_slots();
    used = stage.used.now;
    for (i = 0; i < SLOTS; i++) before[i] = slots[i];
    slot = gpi_stage_take(&stage, run);
    CLAIM(gpi_stage_check(&stage) == 0);
    CLAIM(stage.used.now == used + (slot ? run : 0));
    for (at = 0; at + run <= stage.pinned_slots; at++) {
        int is_free = 1;
        for (i = 0; i < run; i++) is_free &= before[at + i].state == GPI_STAGE_FREE;
        if (!is_free) continue;
        CLAIM(slot == &slots[at]);
        return;
    }
    CLAIM(slot == NULL);
}

// broken: s/gpi_ledger_sub(&stage->used, slot->run/gpi_ledger_sub(\&stage->used, 1/
void prove_what_is_freed_leaves_all_as_it_was(void) {
    uint64_t run = 1 + any_below(3), used, top, i;
    gpi_stage_slot before[SLOTS], *slot;
    any_slots();
    used = stage.used.now;
    top = stage.top;
    for (i = 0; i < SLOTS; i++) before[i] = slots[i];
    slot = gpi_stage_take(&stage, run);
    ASSUME(slot != NULL);
    gpi_stage_free(&stage, slot);
    CLAIM(gpi_stage_check(&stage) == 0 && stage.used.now == used && stage.top == top);
    for (i = 0; i < stage.pinned_slots; i++) CLAIM(slots[i].state == before[i].state);
}
