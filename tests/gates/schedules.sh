#!/bin/bash
# Every order of two threads, with CUTS interruptions (2; many minutes with 3); and then the header
# with mistakes that others have made, or that its locks invite, one after the other, each of which
# a test must see: schedules.sh FOLDER COMPILE... LIBRARY. An edit is for sed, on one function.
set -u
folder=$(realpath -m "$1")
shift
cuts=${CUTS:-2}
passed=0 failed=0

run() { # NAME TEST HEADER CUTS CPU_SECONDS SECONDS: its status
    local sources=(tests/unit/$2.c)
    [[ -e ${sources[0]} ]] || sources=(tests/api/$2.c tests/support/linked.c -DLINKED=1)
    mkdir -p "$folder/$1.header"
    cmp -s "$3" "$folder/$1.header/gpupool.h" || cp "$3" "$folder/$1.header/gpupool.h"
    "${compile[@]}" -I"$folder/$1.header" -Itests -Itests/support -DSCHEDULE_CUTS="$4" \
        -MF "$folder/$1.header/made_of" -o "$folder/$1" "${sources[@]}" "$library" -lm || exit 1
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
broken a_mark_told_before_it_is_recorded test_schedules gpi_event_put_mark \
    's/stream->clock.is_recording = 1;/stream->clock.is_recording = 1; mark->at = at;/'
broken a_mark_recorded_again_while_it_is_pinned test_schedules gpi_clock_spare_mark \
    's/ && !stream->clock.marks\[i\].pins//'
broken two_threads_record_one_mark test_schedules gpi_event_record \
    's/stream->clock.is_recording || stream->capture/stream->capture/; s/!mark || stream->clock.is_recording/!mark/'
broken more_passed_than_the_mark_was_of test_schedules gpi_event_poll \
    's/gpi_clock_pass(clocks, stream, at)/gpi_clock_pass(clocks, stream, stream->clock.issued)/'
broken the_sleeping_lock_lets_two_in test_schedules gpi_host_mutex_lock \
    's/while (GPI_READ(&mutex->serving) != mine)/if (0)/'
broken stream_of_another_key test_schedules gpi_alloc_lock_stream \
    's/GPI_READ(&owner->key) == call->key &&/1 \&\&/'
broken bare_is_not_asked_again_at_free test_schedules gpi_block_return_uncached \
    's/owner->key == call->key && //'
broken key_is_not_asked_again_at_alloc test_schedules gpi_alloc_take \
    's/owner->key == request->by.key && //'
broken stream_made_without_looking_again test_schedules gpi_alloc_renew_stream \
    's/now = gpi_arena_owner(arena, key, identity);/now = gpi_clock_add_stream(\&arena->clocks, key, identity); gpi_clock_bind(\&arena->clocks, now);/'
broken ticket_has_two_at_its_end test_schedules gpi_ring_step \
    's/transfer->working++;//; s/transfer->working--;//; s/transfer->working == 1 \&\& //'

# what a stream waits for on the device is not done yet
broken a_wait_taken_for_work_that_is_done test_races gpi_event_follow \
    's/mark->pins--;/mark->pins--; gpi_clock_pass(clocks, owner, at);/'
broken marks_before_a_passed_one_have_passed test_races gpi_event_has_passed \
    's/passed = 0;/passed = 0; if (stream->clock.marks[0].at \&\& stream->clock.marks[1].at) return 1;/'
broken the_rest_of_a_pending_block_is_anybodys test_races gpi_tree_take \
    's/run, unit + units), list);/run, unit + units), list == GPI_LIST_EMPTY ? list : GPI_LIST_ANY);/'
broken what_is_behind_a_mark_is_taken_without_a_wait test_races gpi_event_follow \
    's/result = gpi_event_stream_wait(clocks, handle, mark->event);/result = GPUPOOL_OK;/'

# a stitch: whose memory it is, where it is mapped, how long, and what is left of one that fails
broken parts_in_the_wrong_order test_stitch gpi_plan_map \
    's/stitch->seams\[\*mapped\]/stitch->seams[stitch->seam_count - 1 - *mapped]/'
broken taken_units_are_anybodys test_stitch_undone gpi_clock_return \
    's/owner->list, 0)/GPI_LIST_ANY, 0)/'
broken a_half_mapped_stitch_is_left test_stitch_undone gpi_plan_map \
    's/if (result == GPUPOOL_OK || !\*mapped) return result;/if (result != GPUPOOL_OK) *mapped = 0; return result;/'
broken unmapped_while_in_use test_stitch_bounds gpi_stitch_bound \
    's/if (!gpi_stitch_has_passed(stitches, stitch)) continue;//'
broken unmapped_before_the_release test_stitch_graphs gpi_stitch_has_passed \
    's/if (stitch->state == GPI_STITCH_USED || stitch->is_leaving) return 0;/return stitch->state != GPI_STITCH_USED;/'
broken a_stitch_over_a_chunk_that_went test_stitch gpi_stitch_drop_chunk \
    's/result = gpi_stitch_clear(stitches, chunk);/result = GPUPOOL_OK; chunk->seams = NULL;/'

broken a_full_ring_waits_for_its_own_user test_ring_async gpi_ring_stall \
    's/return gpi_ring_advance_unstaged(ring, transfer);/return 0;/'
echo "$passed passed, $failed failed"
((failed == 0))
