/* RING, cut down: slots of up to 256 bytes, aligned to 4, and transfers whose smallest chunk is 16.
   With the real sizes the divisions take too long. */
// rooms: GROUND HOST DRIVER LEDGER TREE CACHE FENCE RING
// unwind: 4
// as: s/GPI_RING_ALIGN ((uint64_t)512)/GPI_RING_ALIGN ((uint64_t)4)/; s/GPI_RING_LEAST  *((uint64_t)128 << 10)/GPI_RING_LEAST ((uint64_t)16)/
#include "prove.h"

#define MOST ((uint64_t)256)

static gpupool_ring ring;
static gpi_ring_slot left, middle, right;

// broken: s/at % piece + bytes > piece) at = gpi_ground_up/at % piece + bytes > piece + 1) at = gpi_ground_up/
void prove_a_place_is_the_lowest_in_one_piece(void) {
    uint64_t bytes = any_below(MOST), pinned = any_below(MOST), other = any_below(MOST), at;
    unsigned log = (unsigned)any_below(8);
    uint64_t piece = ring.piece_bytes = (uint64_t)1 << log;
    middle.at = any_below(MOST);
    middle.bytes = any_below(MOST);
    ASSUME(bytes > 0);
    at = gpi_ring_place(&ring, &middle, bytes, pinned);
    if (at != UINT64_MAX) {
        CLAIM(at >= middle.at && at + bytes <= middle.at + middle.bytes && at + bytes <= pinned);
        if (bytes <= piece) CLAIM(at >> log == (at + bytes - 1) >> log);
    }
    ASSUME(other >= middle.at && other + bytes <= middle.at + middle.bytes);
    ASSUME(other + bytes <= pinned);
    ASSUME(bytes > piece || other >> log == (other + bytes - 1) >> log);
    CLAIM(at <= other);
}

// broken: s/gpi_ground_min(most, transfer->width - column)/most/
void prove_a_chunk_is_of_what_is_left(void) {
    static gpi_transfer transfer;
    uint64_t most = any_below(MOST), chunk, leftover, column;
    ring.chunk_bytes = any_below(MOST);
    ring.workers_running = (int)any_below(4);
    transfer.width = (uint64_t)1 << any_below(7);
    transfer.bytes = any_below(MOST);
    transfer.started = any_below(MOST);
    ASSUME((transfer.bytes & (transfer.width - 1)) == 0 && transfer.started < transfer.bytes);
    ASSUME(ring.chunk_bytes >= GPI_RING_ALIGN && most >= GPI_RING_ALIGN);
    leftover = transfer.bytes - transfer.started;
    column = transfer.started & (transfer.width - 1);
    chunk = gpi_ring_chunk(&ring, &transfer, most);
    CLAIM(chunk > 0 && chunk <= leftover && chunk <= most && chunk <= ring.chunk_bytes);
    if (transfer.width != transfer.bytes) /* whole rows, or a part of one */
        CLAIM((column == 0 && (chunk & (transfer.width - 1)) == 0) ||
              column + chunk <= transfer.width);
}

// broken: s/    slot->bytes = at - slot->at;/    slot->bytes = at;/
void prove_a_cut_slot_is_two_and_joined_is_one(void) {
    uint64_t at = any_below(MOST), bytes = any_below(MOST), cut = any_below(2 * MOST);
    gpi_ring_slot *part;
    ASSUME(cut > at && cut < at + bytes);
    left.at = at;
    left.bytes = bytes;
    if (any() & 1) (left.next = &right)->prev = &left;
    right.state = GPI_RING_BUSY;
    gpi_ring_spare_put(&ring, &middle);
    part = gpi_ring_cut(&ring, &left, cut);
    CLAIM(part == &middle && left.at == at && left.at + left.bytes == part->at);
    CLAIM(part->at + part->bytes == at + bytes && left.bytes > 0 && part->bytes > 0);
    CLAIM(left.next == part && part->prev == &left && ring.spare_count == 0);
    CLAIM(!part->next || (part->next == &right && right.prev == part));
    gpi_ring_join(&ring, &left);
    CLAIM(left.at == at && left.bytes == bytes && ring.spare_count == 1);
    CLAIM(!left.next || (left.next == &right && right.prev == &left));
}

static gpi_ring_slot_state any_state(void) { return (gpi_ring_slot_state)any_below(6); }

// broken: s/    gpi_ring_join(ring, slot->prev);//
void prove_what_is_dropped_joins_what_is_free_beside_it(void) {
    gpi_ring_slot_state before = left.state = any_state(), after = right.state = any_state();
    uint64_t from, to;
    gpi_ring_slot *one;
    left.bytes = 1 + any_below(MOST);
    middle.at = left.bytes;
    middle.bytes = 1 + any_below(MOST);
    middle.state = GPI_RING_BUSY;
    right.at = middle.at + middle.bytes;
    right.bytes = 1 + any_below(MOST);
    (left.next = &middle)->prev = &left;
    (middle.next = &right)->prev = &middle;
    ring.used.now = middle.bytes;
    from = before == GPI_RING_FREE ? 0 : middle.at;
    to = right.at + (after == GPI_RING_FREE ? right.bytes : 0);
    gpi_ring_drop(&ring, &middle);
    one = before == GPI_RING_FREE ? &left : &middle;
    CLAIM(one->at == from && one->at + one->bytes == to && one->state == GPI_RING_FREE);
    CLAIM(one->next == (after == GPI_RING_FREE ? NULL : &right));
    CLAIM(after == GPI_RING_FREE || right.prev == one);
    CLAIM(ring.used.now == 0);
    CLAIM(ring.spare_count == (uint64_t)(before == GPI_RING_FREE) + (after == GPI_RING_FREE));
}

// broken: s/gpi_ledger_sub(&ring->used, slot->bytes)/gpi_ledger_sub(\&ring->used, slot->length)/
void prove_what_is_taken_is_counted_until_it_is_dropped(void) {
    uint64_t at = 4 * any_below(4), bytes = any_below(16), whole = gpi_ground_up(bytes, 4);
    uint64_t used = ring.used.now = any_below(MOST), end, sum = 0;
    gpi_ring_slot *taken, *slot;
    ring.piece_bytes = 16;
    ring.pinned.now = any_below(64);
    ASSUME(bytes > 0);
    left.at = at;
    left.bytes = 4 + 4 * any_below(8);
    end = at + left.bytes;
    ring.slots = &left;
    gpi_ring_spare_put(&ring, &middle);
    gpi_ring_spare_put(&ring, &right);
    taken = gpi_ring_take(&ring, bytes);
    CLAIM(ring.used.now == used + (taken ? whole : 0));
    for (slot = ring.slots; slot; slot = slot->next) sum += slot->bytes;
    CLAIM(sum == end - at);
    if (taken) {
        CLAIM(taken->bytes == whole && taken->at >= at && taken->at + whole <= end);
        CLAIM(taken->at + whole <= ring.pinned.now && taken->state == GPI_RING_BUSY);
        gpi_ring_drop(&ring, taken);
    }
    CLAIM(ring.used.now == used && ring.spare_count == 2);
    CLAIM(ring.slots->at == at && ring.slots->bytes == end - at && !ring.slots->next);
}
