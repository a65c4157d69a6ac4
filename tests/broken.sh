#!/bin/bash
# Every order of two threads, with CUTS interruptions (2; many minutes with 3); and then the header
# with mistakes that others have made, or that its locks invite, one after the other, each of which
# a test must see: broken.sh FOLDER COMPILE... LIBRARY. An edit is for sed, on one function.
set -u
folder=$(realpath -m "$1")
shift
cuts=${CUTS:-2}
passed=0 failed=0

run() { # NAME TEST HEADER CUTS CPU_SECONDS SECONDS: its status
    "${compile[@]}" -DSCHEDULE_CUTS="$4" -DGPUPOOL_HEADER="\"$3\"" -o "$folder/$1" \
        "tests/$2.c" "$library" -lm || exit 1
    (ulimit -t "$5" && timeout "$6" "$folder/$1" > "$folder/$1.out" 2>&1) 2> /dev/null
}

broken() { # NAME TEST FUNCTION EDIT
    sed "/^[A-Za-z].*\<$3(/,/^}/{$4}" gpupool.h > "$folder/$1.h"
    if cmp -s gpupool.h "$folder/$1.h"; then verdict="THE EDIT FITS NO LINE"
    elif run "$1" "$2" "$folder/$1.h" 2 60 300; then verdict="IS NOT SEEN"
    elif (($? == 124 || $? == 152 || $? == 137)); then verdict="is seen: it hangs"
    else
        verdict=$(grep -m 1 'GOES WRONG\|goes on\|^FAILED' "$folder/$1.out")
        verdict="is seen: ${verdict:-it aborts}"
    fi
    if [[ $verdict == "is seen: "?* ]]; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
    printf '%-42s %s\n' "$1" "$verdict"
}

compile=("${@:1:$#-1}") library=${*: -1}
mkdir -p "$folder"
if run whole test_schedules "$PWD/gpupool.h" "$cuts" unlimited 0
then passed=$((passed + 1))
else failed=$((failed + 1)); fi
compile+=(-w) # a mistake may leave something unused
grep -v '^[0-9]* passed' "$folder/whole.out"

broken lock_is_looked_at_and_then_taken test_schedules gpi_host_try \
    's/return !__atomic_exchange_n(&lock->held, 1, __ATOMIC_ACQUIRE);/if (__atomic_load_n(\&lock->held, __ATOMIC_ACQUIRE)) return 0; __atomic_store_n(\&lock->held, 1, __ATOMIC_RELEASE); return 1;/'
broken published_before_it_is_recorded test_schedules gpi_arena_seal \
    's/result = gpi_fence_record(&arena->fences, stream, &fence);/result = gpi_fence_new(\&arena->fences, NULL, \&fence); gpi_fence_seal(\&arena->fences, \&arena->tree, known, fence); gpi_host_unlock(\&arena->lock); cudaEventRecord(fence->event, stream); gpi_host_lock(\&arena->lock);/'
broken stream_of_another_key test_schedules gpi_arena_visit \
    's/GPI_READ(&known->key) == key && //'
broken bare_is_not_asked_again_at_free test_schedules gpi_arena_give_bare \
    's/known->key == key && //'
broken key_is_not_asked_again_at_alloc test_schedules gpi_arena_take_block 's/known->key == key && //'
broken stream_made_without_looking_again test_schedules gpi_arena_rename \
    's/now = gpi_arena_known(arena, key, identity);/now = gpi_fence_know(\&arena->fences, \&arena->tree, key, identity); gpi_fence_name(\&arena->fences, now);/'
broken ticket_has_two_at_its_end test_schedules gpi_ring_step \
    's/transfer->working++;//; s/transfer->working--;//; s/transfer->working == 1 \&\& //'

# what a stream waits for is not done yet: it must fence its own frees with a wait inside
broken a_wait_taken_for_work_that_is_done test_races gpi_fence_follow_lightly \
    's/fences->device_waits++;/fences->device_waits++; ((gpi_fence *)fence)->passed = 1;/'
broken fences_before_a_passed_one_have_passed test_races gpi_fence_poll_stream \
    's/while .*passed++;/for (passed = stream->seals; passed \&\& !gpi_fence_passed(fences, stream->fences[passed - 1]); passed--) {} for (int i = 0; i < passed; i++) stream->fences[i]->passed = 1;/'
broken the_rest_of_a_pending_block_has_no_fence test_races gpi_tree_take \
    's/run, unit + units), lane);/run, unit + units), lane == GPI_LANE_BARE ? lane : GPI_LANE_QUIET);/'
broken counted_though_refused test_faults gpi_arena_free_used \
    's/else if (result != GPUPOOL_OK) return result;/else if (result != GPUPOOL_OK) { gpi_arena_count_free(arena, run, stream); return result; }/'

# a stitch: whose memory it is, where it is mapped, how long, and what is left of one that fails
broken a_stitch_follows_nobody test_stitch gpi_stitch_follow 's/if (!owner ||.*continue;/continue;/'
broken parts_in_the_wrong_order test_stitch gpi_stitch_map \
    's/stitch->seams\[\*mapped\]/stitch->seams[stitch->seam_count - 1 - *mapped]/'
broken taken_units_are_anybodys test_stitch_undone gpi_chunk_return \
    's/owner ? owner->young : GPI_LANE_QUIET/GPI_LANE_QUIET/'
broken a_half_mapped_stitch_is_left test_stitch_undone gpi_stitch_map \
    's/if (result == GPUPOOL_OK || !\*mapped) return result;/if (result != GPUPOOL_OK) *mapped = 0; return result;/'
broken unmapped_while_in_use test_stitch_bounds gpi_stitch_bound \
    's/if (!gpi_stitch_has_passed(stitches, stitch)) continue;//'
broken unmapped_before_the_release test_stitch_graphs gpi_stitch_has_passed \
    's/if (stitch->state == GPI_STITCH_USED) return 0;/return stitch->state != GPI_STITCH_USED;/'
broken a_stitch_over_a_chunk_that_went test_stitch gpi_stitch_drop_chunk \
    's/result = gpi_stitch_clear(stitches, chunk);/result = GPUPOOL_OK; chunk->seams = NULL;/'

broken a_full_ring_waits_for_its_own_user test_ring_async gpi_ring_stall \
    's/return gpi_ring_advance_unstaged(ring, transfer);/return 0;/'
echo "$passed passed, $failed failed"
((failed == 0))
