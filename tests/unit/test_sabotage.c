/* Each invariant in the header's banners is broken by hand in a working arena, at every place that
   there is: gpupool_check names it, and is content again when the damage is undone. */
// build: asan -fsanitize=address -DEVERY=8
// build: plain -O1
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "arena_kit.h"

#if CHECK_FAKE
#include "sabotage_arena.h"
#include "sabotage_cache.h"
#include "sabotage_chunk.h"
#include "sabotage_stitch.h"
#include "sabotage_run.h"
#include "sabotage_tree.h"

static const saboteur saboteurs[] = {
    PLAIN("L1", more_requested_than_granted, BOTH),
    PLAIN("L1", more_granted_than_reserved, BOTH),
    PLAIN("L1", more_reserved_than_allowed, BOTH),
    PLAIN("L2", more_than_the_peak, BOTH),
    PLAIN("L2", more_than_the_total, BOTH),
    UNDONE("L3", more_in_a_scope_than_in_all, pop_scope, BOTH),
    UNDONE("L3", less_in_all_than_now, pop_scope, BOTH),
    /* who is at the edge is read from the neighbours, so a wrong link can break T2 as well */
    PLAIN("T1 T2", free_wrong_prev, BOTH),
    PLAIN("T1 T2", free_wrong_next, BOTH),
    PLAIN("T1", free_gap, BOTH),
    PLAIN("T1", live_wrong_prev, BOTH),
    PLAIN("T1", live_wrong_next, BOTH),
    PLAIN("T1 C1", live_gap, BOTH), /* a cached block is longer than its entry says */
    PLAIN("T1", held_wrong_prev, BOTH),
    PLAIN("T1 H2", held_wrong_next, BOTH), /* what follows is lost to H2 as well */
    PLAIN("T1 A2", held_gap, BOTH), /* and the sum of what is waiting is wrong */
    PLAIN("T1 T2", twin_in_a_list, BOTH), /* a run with one neighbour less is at another edge */
    PLAIN("T1", twin_in_a_bucket, BOTH),
    PLAIN("T2", run_without_bits, BOTH),
    PLAIN("T2", in_no_list, BOTH),
    PLAIN("T2", in_another_list, BOTH),
    PLAIN("T2", on_another_shelf, BOTH),
    PLAIN("T2", wrong_place, BOTH),
    PLAIN("T2", wrong_list_prev, BOTH),
    PLAIN("T2 T3", wrong_lane_number, BOTH), /* a neighbour may be in that list */
    PLAIN("T2", live_run_in_a_list, BOTH),
    PLAIN("T2", wrong_step_bit, BOTH),
    PLAIN("T2", bits_of_no_run, BOTH),
    PLAIN("T2", wrong_order_bit, BOTH),
    PLAIN("T2", wrong_lane_sum, BOTH),
    PLAIN("T2", wrong_pending_sum, BOTH),
    UNDONE("T2", lost_free_run, find_free_run, BOTH),
    UNDONE("T3", cut_in_two, make_one, BOTH),
    PLAIN("T4", in_no_bucket, BOTH),
    PLAIN("T4", in_another_bucket, BOTH),
    PLAIN("T4", not_live_in_a_bucket, BOTH),
    PLAIN("T4", wrong_live_sum, BOTH),
    UNDONE("T4", lost_live_run, find_live_run, BOTH),
    PLAIN("T5", owner_points_to_the_second, BOTH),
    PLAIN("C1", entry_of_a_held_run, BOTH),
    PLAIN("C1", entry_of_a_plain_run, BOTH),
    PLAIN("C1", run_leads_nowhere, BOTH),
    PLAIN("C1", run_leads_to_another_cache, BOTH),
    PLAIN("C1", entry_of_another_run, BOTH),
    PLAIN("C1", entry_of_other_units, BOTH),
    PLAIN("C1", entry_of_another_unit, BOTH),
    PLAIN("C1", entry_of_another_bin, BOTH),
    PLAIN("C2", entry_in_no_list, BOTH),
    PLAIN("C2", entry_in_the_empty_list, BOTH),
    PLAIN("C2", entry_in_two_lists, BOTH),
    PLAIN("C2", entry_beyond_all, BOTH),
    PLAIN("C2", list_in_a_circle, BOTH),
    PLAIN("C2", entry_in_the_other_state, BOTH),
    PLAIN("C3", wrong_cache_sum, BOTH),
    PLAIN("C4", entries_elsewhere, BOTH),
    PLAIN("T6", cell_of_another_run, MAPPED),
    PLAIN("T6", granule_without_its_bit, MAPPED),
    PLAIN("T6", bit_of_no_run, MAPPED),
    PLAIN("T6", bit_of_another_granule, MAPPED),
    /* all that is free in that granule is in the wrong tree, or should be one run */
    PLAIN("T7 T2 T3", slab_that_is_none, MAPPED),
    PLAIN("T7 T2 T3", slab_no_more, MAPPED),
    PLAIN("T7", slab_within_a_run, MAPPED),
    PLAIN("T7", slab_at_the_end, MAPPED),
    PLAIN("T7", slab_of_empty_addresses, MAPPED),
    PLAIN("H1", home_without_owner, MAPPED),
    PLAIN("H1", home_of_another_chunk, MAPPED),
    PLAIN("H1", bare_with_an_owner, MAPPED),
    PLAIN("H1", mapped_overlap, MAPPED),
    PLAIN("H1 T5", others_overlap, CHUNKED),
    PLAIN("H1", chunk_with_wrong_prev, BOTH),
    PLAIN("H1", chunks_in_another_order, MAPPED),
    PLAIN("H1", last_is_not_the_last, BOTH),
    UNDONE("H2", free_without_memory, move_back, MAPPED),
    UNDONE("H2", freed_without_memory, move_back, MAPPED),
    UNDONE("H2", bare_with_memory, move_back, MAPPED),
    PLAIN("H2", shorter_chunk, MAPPED),
    PLAIN("H3", wrong_chunk_sum, BOTH),
    PLAIN("H3", larger_chunk, BOTH),
    PLAIN("H3", larger_stuck_chunk, MAPPED),
    PLAIN("H3 T2", lost_chunk, BOTH), /* and, but in a MAPPED arena, all its runs */
    PLAIN("H3", lost_stuck_chunk, MAPPED),
    PLAIN("H4", wrong_export_sum, BOTH),
    UNDONE("H5", tags_run_for_anybody, move_back, MAPPED),
    UNDONE("H5", tags_run_for_a_stream, move_back, MAPPED),
    UNDONE("H5", anybodys_run_for_a_tag, move_back, MAPPED),
    PLAIN("H5", chunk_of_another_tag, MAPPED),
    PLAIN("S1", part_leads_elsewhere, MAPPED),
    PLAIN("S1", part_is_held, MAPPED),
    PLAIN("S1", part_of_other_units, MAPPED),
    PLAIN("S1", part_beyond_the_seams, MAPPED),
    PLAIN("S1", parts_with_each_others_runs, MAPPED),
    PLAIN("S1", idle_part_of_other_units, MAPPED),
    PLAIN("S1", one_part_less, MAPPED),
    PLAIN("S1", part_of_no_stitch, MAPPED),
    PLAIN("S1", parts_in_another_order, MAPPED),
    PLAIN("S2", idle_part_with_a_run, MAPPED),
    PLAIN("S2", used_part_without_a_run, MAPPED),
    MISSED("S2", forgotten_user, NULL, MAPPED, "a call under way may refer to the stream too"),
    PLAIN("S4", seam_of_another_chunk, MAPPED),
    PLAIN("S4", seam_of_another_stitch, MAPPED),
    PLAIN("S4", seam_that_its_chunk_forgot, MAPPED),
    PLAIN("S5", idle_body_is_not_held, MAPPED),
    PLAIN("S5 T4", idle_body_is_live, MAPPED), /* and is not in the index */
    PLAIN("S6", wrong_stitch_sum, MAPPED),
    PLAIN("S6", stitch_of_other_units, MAPPED),
    PLAIN("S6", body_of_another_stitch, MAPPED),
    PLAIN("S6", stitch_with_wrong_older, MAPPED),
    PLAIN("S6", newest_is_not_the_newest, MAPPED),
    PLAIN("S6", in_no_list_of_its_size, MAPPED),
    PLAIN("S6", in_the_list_of_another_size, MAPPED),
    UNDONE("S6", lost_addresses, find_addresses, MAPPED),
    PLAIN("K1", passed_what_is_not_issued, BOTH),
    PLAIN("K1", mark_behind_what_is_not_issued, BOTH),
    PLAIN("K1", issued_beyond_the_latest, BOTH),
    PLAIN("K2", lane_of_another_stream, BOTH),
    PLAIN("K2", lane_with_another_owner, BOTH),
    UNDONE("K2", lane_of_nobody, drop_lane_of_nobody, BOTH),
    PLAIN("K2", run_later_than_issued, BOTH),
    PLAIN("K2 T3", run_at_no_position, BOTH), /* two neighbours may be at none */
    PLAIN("K3", stream_without_refs, BOTH),
    PLAIN("K3", only_refs_of_uses, MAPPED),
    PLAIN("K3", lost_use, BOTH),
    PLAIN("K4", stream_not_counted, BOTH),
    PLAIN("K5", busy_in_no_queue, BOTH),
    PLAIN("K5", idle_in_the_queue, BOTH),
    PLAIN("K5", last_busy_is_not_the_last, BOTH),
    PLAIN("K4", key_of_another_handle, BOTH),
    PLAIN("K4", stream_in_no_bucket, BOTH),
    PLAIN("K4", two_of_one_key, BOTH),
    PLAIN("A1", wrong_granted, BOTH),
    PLAIN("A1", wrong_blocks, BOTH),
    PLAIN("A1", wrong_requested, BOTH),
    MISSED("A2", wrong_pending, NULL, BOTH, "the check counts it anew, as every look does"),
    PLAIN("A2", wrong_cached_sum, BOTH),
    PLAIN("A2", wrong_waiting_sum, BOTH),
    PLAIN("A4", wrong_tag_sum, BOTH),
    PLAIN("A4", block_of_no_tag, BOTH),
    PLAIN("A2 K3", lost_waiting_run, BOTH), /* and its uses */
    PLAIN("A3 T4", waiting_but_live, BOTH),     /* and is not in the index */
    PLAIN("A3 T2 T3", waiting_but_free, BOTH), /* and is in no list, and a neighbour may be quiet */
    PLAIN("A3 T4 K3", live_but_waiting, BOTH), /* others of its bucket, if there are, are lost */
    PLAIN("A3 K3", waiting_without_use, BOTH),
    PLAIN("A3", waiting_for_nobody, BOTH),
    PLAIN("A3", plain_but_waiting, BOTH),
};
#define SABOTEURS KIT_COUNT(saboteurs)

/* ---- no invariant without a saboteur ---- */

/* What holds during a call is no state to break; test_faults sees to it. Rules of two letters (LA1)
   are all of that kind, and banner_line leaves them out. */
static const char *of_calls = "R1 R2 R3 R4 R5 R6 "      /* test_ring_sabotage.c */
                              "S3 S7 S8 S9";            /* test_stitch_graphs.c, _blocks, _undone */

/* A line of a banner begins with three spaces, a letter and a number. */
static int banner_line(const char *line, char name[8]) {
    int end = 0;
    if (sscanf(line, "   %7[A-Z0-9]%n", name, &end) != 1 || strncmp(line, "   ", 3)) return 0;
    return name[0] >= 'A' && name[1] >= '1' && name[1] <= '9' && !strncmp(line + end, "  ", 2);
}

static void every_invariant_has_a_saboteur(void) {
    char line[200], name[8];
    int found = 0;
    FILE *header = fopen("gpupool.h", "r"); /* tests run where the Makefile is */
    if (!CHECK(header != NULL)) return;
    while (fgets(line, sizeof line, header)) {
        size_t i = 0;
        if (!banner_line(line, name) || strstr(of_calls, name)) continue;
        check_case("%s", name);
        while (i < SABOTEURS && !strstr(saboteurs[i].breaks, name)) i++;
        CHECK(i < SABOTEURS);
        found++;
    }
    fclose(header);
    CHECK(found >= 16);
}

static void the_scene_has_everything(void) {
    scene_open(GPUPOOL_SOURCE_MAPPED);
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    CHECK(count_runs(is_live) > 10 && count_runs(is_anybodys) > 5 && count_runs(is_bare) > 2);
    CHECK(waiting_at(3) && arena->chunks.stuck);
    CHECK(count_stitches(is_used) > 1 && count_stitches(has_user) && count_stitches(has_no_user));
    CHECK(count_stitches(is_waiting) == 1);
    CHECK(marked_stream_at(1) && busy_at(1));
    for (int i = 0; i < 2; i++) {
        gpi_stream *stream = gpi_clock_find(&arena->clocks, gpi_clock_key(kit_stream[i]));
        CHECK(arena->tree.lists[stream->list]->units > 0);
        CHECK(stream->cache.free_blocks > 1 && stream->cache.used > stream->cache.free_blocks);
    }
    scene_close();
}

/* The scene has several slabs; this arena has none. */
static void the_only_mark_of_a_slab(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
    config.chunk_bytes = 16 * MIB;
    arena = kit_create(&config);
    CHECK_RESULT(gpupool_free(arena, kit_alloc(arena, 12 * MIB, 0), 0), GPUPOOL_OK);
    CHECK_RESULT(gpupool_trim(arena, SIZE_MAX, NULL), GPUPOOL_OK);
    CHECK_EQ(arena->tree.slab_count, 0);
    CHECK(slab_within_a_run(0));
    CHECK(!strcmp(named(), "T7"));
    mend();
    kit_close(arena);
}
#endif

int main(void) {
#if CHECK_FAKE
    TEST(every_invariant_has_a_saboteur);
    ARENA_TEST(the_scene_has_everything);
    ARENA_TEST(the_only_mark_of_a_slab);
    run_saboteurs(saboteurs, SABOTEURS);
#else
    check_skip("sabotage", "needs fakecuda's controls");
#endif
    return check_finish();
}
