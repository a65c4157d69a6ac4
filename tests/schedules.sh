#!/bin/bash
# Every order of two threads, with more interruptions than `make test` has time for; and then with
# the header broken, one mistake after the other, each of which must show: schedules.sh FOLDER
# COMPILE... LIBRARY. An edit is for sed, on the lines of one function.
set -u
folder=$1
shift
cuts=${CUTS:-3}
passed=0 failed=0

run() { # NAME HEADER CUTS: its status
    "${compile[@]}" -DSCHEDULE_CUTS="$3" -DGPUPOOL_HEADER="\"$2\"" -o "$folder/$1" \
        tests/test_schedules.c "$library" -lm || exit 1
    timeout "${LIMIT_S:-600}" "$folder/$1" > "$folder/$1.out" 2>&1
}

broken() { # NAME FUNCTION EDIT
    sed "/^static.*\<$2(/,/^}/{$3}" gpupool.h > "$folder/$1.h"
    if cmp -s gpupool.h "$folder/$1.h"; then verdict="THE EDIT FITS NO LINE"
    elif run "$1" "$PWD/$folder/$1.h" 2; then verdict="IS NOT SEEN"
    else verdict="is seen: $(grep -m 1 'GOES WRONG\|goes on' "$folder/$1.out")"; fi
    if [[ $verdict == "is seen: "?* ]]; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
    printf '%-34s %s\n' "$1" "$verdict"
}

compile=("${@:1:$#-1}") library=${*: -1}
mkdir -p "$folder"
if run whole "$PWD/gpupool.h" "$cuts"; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
grep -v '^[0-9]* passed' "$folder/whole.out"

broken lock_is_looked_at_and_then_taken gpi_host_try \
    's/return !__atomic_exchange_n(&lock->held, 1, __ATOMIC_ACQUIRE);/if (__atomic_load_n(\&lock->held, __ATOMIC_ACQUIRE)) return 0; __atomic_store_n(\&lock->held, 1, __ATOMIC_RELEASE); return 1;/'
broken published_before_it_is_recorded gpi_arena_seal \
    's/result = gpi_fence_record(&arena->fences, stream, &fence);/result = gpi_fence_new(\&arena->fences, NULL, \&fence); gpi_fence_seal(\&arena->fences, \&arena->tree, known, fence); gpi_host_unlock(\&arena->lock); cudaEventRecord(fence->event, stream); gpi_host_lock(\&arena->lock);/'
broken stream_of_another_key gpi_fence_enter \
    's/if (GPI_READ(&stream->key) == key) return stream;/return stream;/'
broken bare_is_not_asked_again_at_free gpi_arena_give_bare \
    's/known->key == key && known->cache.used == 0 && //'
broken key_is_not_asked_again_at_alloc gpi_arena_take_block 's/known->key == key && //'
broken stream_made_without_looking_again gpi_arena_rename \
    's/now = gpi_fence_find(&arena->fences, key);/now = NULL;/'
broken ticket_has_two_at_its_end gpi_ring_step_ticket \
    's/if (transfer->asking) return 1;//; s/!transfer->working/1/'
echo "$passed passed, $failed failed"
((failed == 0))
