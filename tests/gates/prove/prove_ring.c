/* RING's chunks, cut down: pages of 16 bytes, and transfers whose smallest chunk is one of them.
   With the real sizes the divisions take too long. */
// rooms: GROUND HOST FILE DRIVER DATA LEDGER TREE STAGE RING
// unwind: 2
// as: s/GPI_RING_LEAST = 128 << 10,/GPI_RING_LEAST = 16,/
// as: s/GPI_PAGE_BYTES = 4096/GPI_PAGE_BYTES = 16/
#include "prove.h"

#define MOST ((uint64_t)256)

static gpupool_ring ring;

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
