#!/bin/bash
# Plants one wrong edit at a time in a copy of the header's ring, and shows that a test of the ring
# notices: it fails, or does not end. Closes with `N passed, N failed`.
set -u
cd "$(dirname "$0")/../.."
CC=${CC:-gcc} BUILD=${BUILD:-build}
out=$BUILD/ring_planted header=tests/next/gpupool.h
mkdir -p "$out"
cuda=-Itests/fakecuda/include
[[ -z ${TOOLKIT:-} ]] || cuda="-isystem $TOOLKIT/include"
flags="-std=gnu11 -O1 -w -pthread $cuda"
tests="test_ring test_ring_streams test_ring_faults test_ring_files test_ring_random"
printf '#define GPUPOOL_IMPLEMENTATION\n#include "gpupool.h"\n' > "$out/library.c"
for test in $tests; do
    $CC $flags -Itests/next -Itests -Itests/support -c -o "$out/$test.o" \
        tests/next/api/$test.c || exit 1
done

passed=0 failed=0
verdict() { # WORDS, and whether it is as it should be
    if [[ $2 = 1 ]]; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
    echo "$1"
}
noticed() { # prints the test that notices the edit in $out/gpupool.h
    $CC $flags -I"$out" -c -o "$out/library.o" "$out/library.c" || return
    for test in $tests; do
        $CC -pthread -o "$out/$test" "$out/$test.o" "$out/library.o" "$BUILD/fakecuda/none.a" \
            -lm -ldl
        timeout 20 "$out/$test" > "$out/log" 2>&1 || { echo "$test"; return; }
    done
}
plant() { # NAME SED: an edit of the sections FILE and RING, or of what asks for them
    sed "$2" $header > "$out/gpupool.h"
    if cmp -s $header "$out/gpupool.h"; then verdict "$1: the edit changes nothing" 0; return; fi
    local by
    by=$(noticed)
    verdict "$1: ${by:-NOT NOTICED}" $([[ $by ]] && echo 1 || echo 0)
}

cp $header "$out/gpupool.h"
by=$(noticed)
verdict "without an edit: ${by:-nothing found}" $([[ $by ]] && echo 0 || echo 1)
plant "R1 a ticket begins at once" 's/t->is_gated = result == GPUPOOL_OK;/t->is_gated = 0;/'
plant "R2 a slot's copy is not waited for" \
    's/result = GPI_TELL(&ring->driver, event_sync, hand->events\[slot\]);/result = GPUPOOL_OK;/'
plant "R3 a hand never comes back" 's/^        ring->idle = hand;//'
plant "R4 parts begin while gated" 's/return !t->is_gated && t->cursor/return t->cursor/'
plant "R4 bytes are left out" 's/t->cursor += part->bytes;/t->cursor += part->bytes + (part->bytes == 131072);/'
plant "R5 the end is told to nobody" '/^static void gpi_ring_settle/,/^}/s/gpi_ring_wake.*//'
plant "R5 a descriptor stays open" 's/if (t->what.is_file) gpi_file_close.*//'
plant "R6 hands without bound" 's/if (!hand && stats->pinned < stats->limit) {/if (!hand) {/'
plant "R8 a broken ring goes on" 's/GPI_PUBLISH(&ring->is_broken, 1);//'
plant "R8 no hand, no failure" 's/else gpi_ring_fail(t, gpi_thread.last.result);//'
plant "nobody asks events" 's/polls = gated && !ring->is_polled;/polls = 0;/'
plant "captures are not asked" 's/if (gpi_driver_is_capturing(&ring->driver, stream))/if (0)/'
plant "pinned memory is not waited for" 's/t->is_direct && host != GPI_MEMORY_VISIBLE/t->is_direct/'
plant "progress is not counted" '/^static gpupool_result gpi_ring_land/,/^}/s/__atomic_fetch_add.*//'
plant "functions run in the ring's mode" \
    '/^static gpupool_result gpi_ring_move/,/^}/s/gpi_driver_\(leave\|enter\).*//'
plant "pitches are lost" 's/rows.srcPitch = side\[0\].pitch;/rows.srcPitch = t->width;/'
plant "beyond a block" 's/ > (uintptr_t)block.memory + block.requested - at/ > bytes/'
plant "a fork goes on" \
    '/^static gpupool_result gpi_ring_exists/,/^}/s/if (!gpi_system_is_forked())/if (1)/'
plant "F1 locks are dropped" 's/ || gpi_file_is_locked(descriptor)//'
plant "F2 a signal ends a read" 's/if (got < 0 \&\& errno != EINTR)/if (got < 0)/'
echo "$passed passed, $failed failed"
[[ $failed = 0 ]]
