#!/bin/bash
# Plants one wrong edit at a time in a copy of the header's ring, and shows that a test of the ring
# notices. Closes with `N passed, N failed`.
set -u
cd "$(dirname "$0")/../.."
out=${BUILD:-build}/ring_planted options=
tests="test_ring test_ring_streams test_ring_faults test_ring_files test_ring_random"
tests="$tests test_ring_tickets"
. tests/next/planted_kit.sh

plant "R1 a ticket begins at once" 's/t->is_gated = result == GPUPOOL_OK;/t->is_gated = 0;/'
plant "R2 a slot's copy is not waited for" \
    's/if (part->bytes) result = GPI_TELL(driver, event_sync, hand->events\[slot\]);//'
plant "R3 threads stay" '/^static int gpi_ring_may_stay/,/^}/s/&& !other;/;/'
plant "R3 a hand never comes back" 's/^        ring->idle = hand;//'
plant "R4 parts begin while gated" 's/return !t->is_gated && t->cursor/return t->cursor/'
plant "R4 bytes are left out" 's/t->cursor += part->bytes;/t->cursor += part->bytes + (part->bytes == 131072);/'
plant "R5 the end is told to nobody" 's/if (t->waiters) gpi_ring_wake(&ring->done.*//'
plant "R5 a descriptor stays open" 's/if (t->direct_file >= 0) close.*//'
plant "R5 records stay" 's/if (t->is_over \&\& !t->waiters/if (0/'
plant "R5 nobody asks gates" '/^static gpi_transfer \*\*gpi_ring_tidy/,/^}/s/.*gpi_ring_settle.*//'
plant "R5 failures stay" 's/int is_old = !t->ticket ||.*/int is_old = !t->ticket;/'
plant "R5 failures do not stay" 's/int is_old = !t->ticket ||.*/int is_old = 1;/'
plant "R5 what is over fails" 's/if (result == GPUPOOL_OK || t->is_over ||/if (result == GPUPOOL_OK ||/'
plant "R6 hands without bound" 's/if (!hand \&\& ring->stats.pinned == ring->stats.limit) return 0;//'
plant "R8 a broken ring goes on" 's/GPI_PUBLISH(&ring->is_broken, 1);//'
plant "R8 no hand, no failure" 's/else gpi_ring_fail(t, result);//'
plant "nobody asks events" 's/polls = gated && !ring->is_polled;/polls = 0;/'
plant "captures are not asked" 's/if (gpi_driver_is_capturing(&ring->driver, t->what.stream))/if (0)/'
plant "pinned memory is not waited for" 's/ || host == GPI_MEMORY_VISIBLE)/)/'
plant "progress is not counted" \
    '/^static gpupool_result gpi_ring_step/,/^}/s/__atomic_fetch_add.*//'
plant "functions run in the ring's mode" \
    '/^static gpupool_result gpi_ring_move/,/^}/s/.*gpi_driver_\(leave\|enter\).*//'
plant "pitches are lost" 's/rows.srcPitch = part->pitch\[0\];/rows.srcPitch = t->width;/'
plant "beyond a block" 's/ > (uintptr_t)block.memory + block.requested - at/ > bytes/'
plant "a fork goes on" \
    '/^static gpupool_result gpi_ring_exists/,/^}/s/if (gpi_system_is_forked()).*//'
plant "F1 locks are dropped" 's/ || gpi_file_is_locked(file)//'
plant "F2 a signal ends a read" 's/if (got < 0 \&\& errno != EINTR)/if (got < 0)/'
planted_end
