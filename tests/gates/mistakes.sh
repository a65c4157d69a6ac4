# shellcheck shell=bash
# Mistakes for schedules.sh to make: NAME TEST FUNCTION EDIT SCENE. Each is one that is easily made
# where threads, streams or processes meet; that scene of the test must see it.

# These two hang until their time is over, on no processor: others run beside them.
hang="a_function_waits_for_itself a_full_ring_waits_for_its_own_user"
broken a_function_waits_for_itself test_hooks gpi_sleep_enter \
    's/gpi_thread.telling == &arena->chunks/0/' \
    'a_request_waits_for_what_appears'
broken a_full_ring_waits_for_its_own_user test_ring_async gpi_ring_stall \
    's/return gpi_ring_advance_unstaged(ring, transfer);/return 0;/' \
    'full_ring_lets_others_pass'
jobs=$((jobs + 2))

# locks
broken lock_is_looked_at_and_then_taken test_schedules gpi_host_try \
    's/return !__atomic_exchange_n(&lock->held, 1, __ATOMIC_ACQUIRE);/if (__atomic_load_n(\&lock->held, __ATOMIC_ACQUIRE)) return 0; __atomic_store_n(\&lock->held, 1, __ATOMIC_RELEASE); return 1;/' \
    'a scope on a renewed handle'
broken the_sleeping_lock_lets_two_in test_schedules gpi_host_mutex_lock \
    's/while (GPI_READ(&mutex->serving) != mine)/if (0)/' \
    'what is behind a mark is taken'
broken who_waits_is_looked_for_before_the_lock_passes test_schedules gpi_host_mutex_unlock \
    's/next = mutex->serving + 1;/& int waits = GPI_READ(\&mutex->next) != next;/; s/if (GPI_READ(&mutex->next) != next)/if (waits)/' \
    'what is behind a mark is taken'
broken who_sleeps_does_not_look_again test_schedules gpi_host_mutex_lock \
    's/if (GPI_READ(&mutex->serving) != mine) gpi_host_gate_wait(gate, seen,/gpi_host_gate_wait(gate, gpi_host_gate_seen(gate),/' \
    'what is behind a mark is taken'
broken another_sleeper_is_woken test_schedules gpi_host_mutex_unlock \
    's/gates\[next %/gates[(next + 1) %/' \
    'what is behind a mark is taken'

# the clocks and marks of streams
broken a_mark_told_before_it_is_recorded test_schedules gpi_event_put_mark \
    's/stream->clock.is_recording = 1;/stream->clock.is_recording = 1; mark->at = at;/' \
    'hand over'
broken a_mark_recorded_again_while_it_is_pinned test_schedules gpi_clock_spare_mark \
    's/ && !stream->clock.marks\[i\].pins//' \
    'a mark that is waited for'
broken two_threads_record_one_mark test_schedules gpi_event_can_record \
    's/!stream->clock.is_recording && //' \
    'a mark of a stream that ends'
broken more_passed_than_the_mark_was_of test_schedules gpi_event_poll \
    's/gpi_clock_pass(clocks, stream, at)/gpi_clock_pass(clocks, stream, stream->clock.issued)/' \
    'a wait of the host'
broken a_wait_passes_a_mark_that_has_moved test_schedules gpi_event_wait \
    's/gpi_clock_pass(clocks, owner, at)/gpi_clock_pass(clocks, owner, mark->at)/' \
    'a wait of the host'
broken what_is_freed_during_a_wait_has_passed test_schedules_mapped gpi_event_wait_device \
    's/gpi_clock_pass(clocks, clocks->all, at)/gpi_clock_pass(clocks, clocks->all, clocks->position)/' \
    'others work'
broken an_event_over_all_beside_a_capture test_schedules gpi_event_record_context \
    's/gpi_host_\(un\)*lock(&gpi_process.lock);//' \
    'a capture meanwhile'
broken a_struct_is_emptied_during_a_call test_schedules gpi_clock_is_empty \
    's/ || stream->refs//' \
    'a mark while memory is given back'
broken a_struct_is_emptied_under_its_lock test_schedules gpi_clock_forget \
    's/ || !gpi_host_try(&stream->cache.lock)//' \
    'retired meanwhile'
broken stream_of_another_key test_schedules gpi_alloc_lock_stream \
    's/GPI_READ(&owner->key) == call->key &&/1 \&\&/' \
    'retired meanwhile'
broken bare_is_not_asked_again_at_free test_schedules gpi_block_return_uncached \
    's/owner->key == call->key && //' \
    'retired meanwhile, nothing cached'
broken key_is_not_asked_again_at_alloc test_schedules gpi_alloc_take \
    's/owner->key == request->by.key && //' \
    'retired meanwhile, nothing cached'
broken stream_made_without_looking_again test_schedules gpi_alloc_renew_stream \
    's/now = gpi_arena_owner(arena, key, identity);/now = gpi_clock_add_stream(\&arena->clocks, key, identity); gpi_clock_bind(\&arena->clocks, now);/' \
    'a scope on a renewed handle'

# what a stream waits for on the device is not done yet
broken a_wait_taken_for_work_that_is_done test_races gpi_event_follow \
    's/mark->pins--;/mark->pins--; gpi_clock_pass(clocks, owner, at);/' \
    'three_streams_one_after_the_other'
broken marks_before_a_passed_one_have_passed test_races gpi_event_has_passed \
    's/passed = 0;/passed = 0; if (stream->clock.marks[0].at \&\& stream->clock.marks[1].at) return 1;/' \
    'three_streams_one_after_the_other'
broken the_rest_of_a_pending_block_is_anybodys test_races gpi_tree_take \
    's/run, unit + units), list);/run, unit + units), list == GPI_LIST_EMPTY ? list : GPI_LIST_ANY);/' \
    'three_streams_one_after_the_other'
broken what_is_behind_a_mark_is_taken_without_a_wait test_races gpi_event_follow \
    's/result = gpi_event_stream_wait(clocks, handle, mark->event);/result = GPUPOOL_OK;/' \
    'three_streams_one_after_the_other'

# a stitch: whose memory it is, where it is mapped, how long, and what is left of one that fails
broken parts_in_the_wrong_order test_stitch gpi_plan_map \
    's/stitch->seams\[\*mapped\]/stitch->seams[stitch->seam_count - 1 - *mapped]/' \
    'stepped'
broken taken_units_are_anybodys test_stitch_undone gpi_clock_return \
    's/owner->list, 0)/GPI_LIST_ANY, 0)/' \
    'calls_of_cuda_fail'
broken a_half_mapped_stitch_is_left test_stitch_undone gpi_plan_map \
    's/if (result == GPUPOOL_OK || !\*mapped) return result;/if (result != GPUPOOL_OK) *mapped = 0; return result;/' \
    'calls_of_cuda_fail'
broken unmapped_while_in_use test_stitch_bounds gpi_stitch_bound \
    's/if (!gpi_stitch_has_passed(stitches, stitch)) continue;//' \
    'but_for_those_in_use'
broken unmapped_before_the_release test_stitch_graphs gpi_stitch_has_passed \
    's/if (stitch->state == GPI_STITCH_USED || stitch->is_leaving) return 0;/return stitch->state != GPI_STITCH_USED;/' \
    'over_the_bound_in_a_scope'
broken a_stitch_over_a_chunk_that_went test_stitch gpi_stitch_drop_chunk \
    's/result = gpi_stitch_clear(stitches, chunk);/result = GPUPOOL_OK; chunk->seams = NULL;/' \
    'many_small_chunks'
broken a_part_is_anybodys test_schedules_mapped gpi_stitch_put_parts \
    's/put_home(stitches, part, stream, at,/put_home(stitches, part, NULL, at,/' \
    'two stitch'
broken addresses_are_taken_again_with_anybodys_memory test_schedules_mapped gpi_stitch_is_free \
    's/gpi_growth_is_usable(tree, run)/run->list < GPI_LIST_WAITING/' \
    'two stitch'
broken a_stitch_forgets_its_user test_stitch_bounds gpi_stitch_put_parts \
    's/gpi_stitch_set_idle(stitches, stitch, stream, at)/gpi_stitch_set_idle(stitches, stitch, NULL, 0)/' \
    'but_for_those_in_use'
broken a_stitch_is_taken_while_it_goes test_schedules_mapped gpi_stitch_unmap \
    's/gpi_stitch_unset_idle(stitches, stitch);//; s/gpi_stitch_set_spoilt(stitches, stitch);/gpi_stitch_forget_user(stitch);/' \
    'a stitch goes alone'
broken a_stitch_goes_twice test_stitch_leaving gpi_stitch_clear \
    's/if (seam->stitch->is_leaving) return GPUPOOL_E_IN_USE;//' \
    'another_trim_has_the_second'
broken a_chunk_is_taken_once_its_stitches_are_gone test_schedules_mapped gpi_stitch_drop_chunk \
    's/^    taken = gpi_stitch_take(.*//; s/result = gpi_stitch_clear(stitches, chunk);/& taken = gpi_stitch_take(tree, gpi_tree_at(tree, chunk->unit), chunk->unit, chunk->units);/' \
    'a chunk goes'
broken a_chunk_in_use_goes test_schedules_mapped gpi_stitch_trim \
    's/if (!gpi_chunk_is_idle(chunks, stitches->tree, chunk)) continue;//' \
    'a chunk goes'
broken a_plan_is_older_than_the_lock test_schedules_mapped gpi_plan_make \
    's/if (plan->new_units && gpi_stitch_tells(stitches)).*//' \
    'told of stitches that grow'

# functions of the program, and sleep
broken what_is_being_told_of_is_forgotten test_schedules_mapped gpi_chunk_tell \
    's/chunks->telling[-+]*;//' \
    'told of the only chunk'
broken a_request_counts_during_its_function test_schedules_mapped gpi_alloc_give_up \
    's/if (\(arena->on_out_of_memory && .*arena->user)\)) return 1;/int again; arena->seekers[request->tag]++; again = \1; arena->seekers[request->tag]--; if (again) return 1;/' \
    'put to sleep by each other'
broken a_request_that_waits_is_not_waited_for test_schedules_mapped gpi_sleep_is_requested \
    's/ && arena->seekers\[tag\]/ \&\& 0/' \
    'a wait while it sleeps'
broken a_fill_is_not_waited_for test_schedules_mapped gpi_sleep_is_requested \
    's/ || arena->halfway//' \
    'zeroed while it sleeps'
broken a_fill_does_not_ask_what_sleeps test_schedules_mapped gpi_hand_keep_awake \
    's/result = gpi_arena_is_awake(/result = GPUPOOL_OK; if (0) &/' \
    'zeroed while it sleeps'
broken a_request_does_not_ask_again_what_sleeps test_schedules_mapped gpi_alloc_slow \
    's/gpi_arena_enter_awake(arena, "gpupool_alloc",/gpi_arena_enter(arena, "gpupool_alloc", \&visit); (void)(/; s/gpi_ladder_own_tag(request), &visit);/gpi_ladder_own_tag(request));/' \
    'asked while all sleeps'
broken caches_fill_while_it_falls_asleep test_schedules_mapped gpupool_sleep \
    's/^    if (gpi_sleep_changes(arena, 0)) GPI_PUBLISH.*//; s/result = gpi_sleep_stop_use(arena);/& if (gpi_sleep_changes(arena, 0)) GPI_PUBLISH(\&arena->searching, arena->searching + 1);/' \
    'asked while all sleeps'
broken what_was_still_in_use_stays_free test_schedules_mapped gpi_sleep_stop_use \
    '/poll_all/,$s/gpi_sleep_take_away(arena)/!gpi_sleep_use_all(arena)/' \
    'asked while it sleeps'
broken a_block_got_during_the_wait_does_not_sleep test_schedules_mapped gpi_sleep_stop_use \
    '/poll_all/,$s/result = gpi_sleep_take_away(arena)/gpi_sleep_set_aside(arena)/' \
    'asked while it sleeps'
broken two_sleep_at_once test_schedules_mapped gpi_sleep_enter \
    's/ && !gpi_arena_any_part(arena, GPI_CHANGING)//' \
    'two sleep'
broken waking_relies_on_structs_of_before test_sleep_spares gpi_wake_restore \
    's/ && !gpi_wake_prepare(arena)/ \&\& 0/' \
    'work_goes_on_while_a_tag_wakes'

# a block that another process uses
broken exported_while_it_sleeps test_schedules_mapped gpupool_export \
    's/gpi_arena_is_awake(arena, call, chunk->tag) != GPUPOOL_OK/0/' \
    'exported and asleep'
broken an_export_counts_once_it_is_made test_schedules_mapped gpi_share_export \
    's/if (chunk->exports++) return GPUPOOL_OK;/if (chunk->exports \&\& ++chunk->exports) return GPUPOOL_OK;/; s/^    chunks->exports++;$//; s/chunk->descriptor = descriptor;/& chunk->exports++; chunks->exports++;/' \
    'exported and freed'
broken an_export_is_closed_before_it_is_made test_schedules_mapped gpupool_export_close \
    's/ && chunk->descriptor >= 0//' \
    'exported and closed'

# the ring
broken ticket_has_two_at_its_end test_schedules_ring gpi_ring_step \
    's/transfer->working++;//; s/transfer->working--;//; s/transfer->working == 1 \&\& //' \
    'spans'
broken two_look_at_the_slots test_schedules_ring gpi_stage_poll \
    's/stage->polling || //' \
    'tickets'
broken a_trim_beside_a_look_at_the_slots test_schedules_ring gpi_send_free_ended \
    's/while (ring->stage.polling && .*/while (0)/' \
    'trimmed and looked at'
broken a_trim_waits_for_the_look_that_was_there_only test_schedules_ring gpi_send_free_ended \
    's/polls - begun < 2/polls - begun < 1/' \
    'trimmed and looked at'
broken two_pin_at_once test_schedules_ring gpi_stage_pin \
    's/stage->pinning || //' \
    'spans'
broken pinned_and_unpinned_at_once test_schedules_ring gpi_stage_unpin \
    's/stage->pinning || //' \
    'trimmed and pinned'
broken a_slot_is_gone_once_it_is_unpinned test_schedules_ring gpi_stage_unpin \
    's/stage->pinned_slots--; .*//; s/if (\*result == GPUPOOL_OK) gpi_ledger_sub/if (*result == GPUPOOL_OK) stage->pinned_slots--; &/; s/else stage->pinned_slots++;//' \
    'trimmed and pinned'
