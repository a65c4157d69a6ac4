/* sweep_arena.h: the steps of test_sweep.c about an arena, its blocks, tags, graphs, sleep and
   reports. Each step calls one public function that can fail, and sees to it that a call which
   returned GPUPOOL_OK has done its work. */
#ifndef SWEEP_ARENA_H
#define SWEEP_ARENA_H

#include "sweep_world.h"

#define FIRST_LIMIT (200 * MIB)
#define LATER_LIMIT (64 * MIB)

static long soft_calls, out_of_memory_calls;
static gpupool_exported exported;
static gpupool_imported imported;
static int is_exported, has_peer, is_in_phase;
static FILE *trace;
static cudaGraph_t graph;
static cudaGraphExec_t launchable;

/* ---- a life begins ---- */

static gpupool_result words(void) {
    CHECK_EQ(gpupool_get_version(), GPUPOOL_VERSION);
    CHECK(strstr(gpupool_get_build(), "check") != NULL);
    CHECK(!strcmp(gpupool_result_name(GPUPOOL_E_CUDA), "GPUPOOL_E_CUDA"));
    return GPUPOOL_OK;
}

static void soft_limit_passed(const gpupool_soft_limit *passed, void *user) {
    CHECK(passed->arena == arena || !arena); /* its reserve, while it is made */
    *(long *)user += 1;
}

static int out_of_memory(const gpupool_verdict *verdict, void *user) {
    (void)user;
    CHECK(verdict->sentence[0] != 0);
    out_of_memory_calls++;
    return 0;
}

static gpupool_result create(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
    config.reserve_bytes = 3 * MIB;
    config.chunk_bytes = 2 * MIB;
    config.limit_text = "200MiB";
    config.share = GPUPOOL_SHARE_PROCESSES;
    config.soft_limit_bytes = 24 * MIB;
    config.on_soft_limit = soft_limit_passed;
    config.on_out_of_memory = out_of_memory;
    config.user = &soft_calls;
    config.name = "sweep";
    soft_calls = 0;
    gpupool_arena *made = (gpupool_arena *)1;
    gpupool_result result = gpupool_arena_create(&made, &config);
    CHECK_EQ(result == GPUPOOL_OK, made != NULL);
    arena = made;
    return result;
}

static gpupool_result make_tag(void) {
    gpupool_tag_config config;
    memset(&config, 0, sizeof config);
    config.can_sleep = 1;
    config.reserve_bytes = 2 * MIB;
    config.on_soft_limit = soft_limit_passed;
    config.user = &soft_calls;
    NEEDS(arena);
    tag = -1;
    gpupool_result result = gpupool_tag(arena, "weights", &config, &tag);
    CHECK_EQ(result == GPUPOOL_OK, tag != 0);
    return result;
}

static gpupool_result set_tag_limits(void) {
    NEEDS(tag);
    return gpupool_set_tag_limits(arena, tag, 20 * MIB, 50000);
}

static gpupool_result tag_stats(void) {
    gpupool_tag_stats stats;
    NEEDS(tag);
    gpupool_result result = gpupool_get_tag_stats(arena, tag, &stats);
    if (result == GPUPOOL_OK) CHECK(!strcmp(stats.name, "weights") && !stats.failures);
    return result;
}

static gpupool_result begin_trace(void) {
    NEEDS(arena);
    rewind(trace);
    return gpupool_set_trace(arena, trace);
}

static gpupool_result end_trace(void) {
    NEEDS(arena);
    gpupool_result result = gpupool_set_trace(arena, NULL);
    if (!for_good) CHECK(ftell(trace) > 500);
    return result;
}

static gpupool_result begin_phase(void) {
    NEEDS(arena);
    gpupool_result result = gpupool_begin_phase(arena);
    is_in_phase = result == GPUPOOL_OK;
    return result;
}

static gpupool_result end_phase(void) {
    gpupool_stats stats;
    NEEDS(is_in_phase);
    gpupool_result result = gpupool_end_phase(arena, &stats);
    if (!for_good) CHECK(stats.allocs > 10 && stats.stitches > 0 && soft_calls > 0);
    is_in_phase = result != GPUPOOL_OK;
    return result;
}

/* ---- blocks ---- */

static gpupool_result alloc_small(void) { return take(SMALL, 700, 0); }
static gpupool_result alloc_large(void) { return take(LARGE, 3 * MIB + 1, 0); }
static gpupool_result alloc_across(void) { return take(ACROSS, 5 * MIB, 1); }
static gpupool_result alloc_rough(void) { return take(ROUGH, 9000, 2); }

static gpupool_result alloc_aligned(void) {
    NEEDS(arena);
    took(ALIGNED, gpupool_alloc_aligned(arena, 100000, 8192, kit_stream[1]), 100000, 1);
    CHECK_EQ((uintptr_t)blocks[ALIGNED].at % 8192, 0);
    if (blocks[ALIGNED].at) mark(ALIGNED);
    return kit_why(blocks[ALIGNED].at);
}

static gpupool_result zalloc(void) {
    NEEDS(arena);
    took(ZEROED, gpupool_zalloc(arena, 5000, kit_stream[1]), 5000, 1);
    if (!blocks[ZEROED].at) return gpupool_last_result();
    kit_expect(kit_stream[1], blocks[ZEROED].at, 5000, 0);
    mark(ZEROED);
    return GPUPOOL_OK;
}

static gpupool_result alloc_tagged(void) {
    gpupool_request request = kit_request(80000, 0, 0);
    NEEDS(tag);
    request.tag = tag;
    return take_as(TAGGED, request, 2);
}

static gpupool_result record_stream(void) {
    NEEDS(blocks[ACROSS].at);
    kit_fill(kit_stream[2], blocks[ACROSS].at + 2000, 1000, 3);
    return gpupool_record_stream(arena, blocks[ACROSS].at, kit_stream[2]);
}

static gpupool_result free_small(void) { return put(SMALL); }
static gpupool_result free_aligned(void) { return put(ALIGNED); }
static gpupool_result free_zeroed(void) { return put(ZEROED); }
static gpupool_result free_tagged(void) { return put(TAGGED); }
static gpupool_result free_across(void) { return put(ACROSS); }

static gpupool_result free_large(void) {
    NEEDS(!ticket);
    return put(LARGE);
}

static gpupool_result free_rough(void) {
    NEEDS(blocks[ROUGH].at);
    gpupool_result result = gpupool_free_in_host_function(arena, blocks[ROUGH].at, kit_stream[2]);
    if (result == GPUPOOL_OK) blocks[ROUGH].at = NULL;
    return result;
}

static gpupool_result wait_stream(void) {
    NEEDS(arena);
    return gpupool_wait_stream(arena, kit_stream[1]);
}

static gpupool_result wait_all(void) {
    NEEDS(arena);
    gpupool_result result = gpupool_wait_all(arena);
    if (result == GPUPOOL_OK) CHECK_EQ(fake_pending_all(), 0);
    return result;
}

static gpupool_result get_block(void) {
    gpupool_block found;
    NEEDS(blocks[LARGE].at);
    gpupool_result result = gpupool_get_block(NULL, blocks[LARGE].at, &found);
    if (result == GPUPOOL_OK) CHECK(found.arena == arena && found.requested_bytes == 3 * MIB + 1);
    return result;
}

static int see_block(const gpupool_block *stretch, void *user) {
    *(size_t *)user += stretch->bytes;
    return 0;
}

static gpupool_result walk_blocks(void) {
    size_t bytes = 0;
    NEEDS(arena);
    gpupool_result result = gpupool_walk_blocks(arena, see_block, &bytes);
    if (result == GPUPOOL_OK) CHECK(bytes >= 2 * MIB);
    return result;
}

static int see_mapping(const gpupool_mapping *mapping, void *user) {
    *(size_t *)user += mapping->bytes;
    return 0;
}

static gpupool_result walk_chunks(void) {
    size_t bytes = 0;
    NEEDS(blocks[LARGE].at);
    gpupool_result result = gpupool_walk_chunks(arena, blocks[LARGE].at, see_mapping, &bytes);
    if (result == GPUPOOL_OK) CHECK(bytes > 3 * MIB);
    return result;
}

/* ---- a graph ---- */

/* The stream's own calls may fail no more than CUDA's for the rest of a program. */
static gpupool_result begin_capture(void) {
    NEEDS(arena);
    own_begin();
    CHECK_EQ(cudaStreamBeginCapture(kit_stream[0], cudaStreamCaptureModeThreadLocal), cudaSuccess);
    own_end();
    gpupool_capture *opened = (gpupool_capture *)1;
    gpupool_result result = gpupool_begin_capture(arena, kit_stream[0], &opened);
    CHECK_EQ(result == GPUPOOL_OK, opened != NULL);
    scope = opened;
    if (scope) return result;
    own_begin();
    CHECK_EQ(cudaStreamEndCapture(kit_stream[0], &graph), cudaSuccess);
    CHECK_EQ(cudaGraphDestroy(graph), cudaSuccess);
    graph = NULL;
    own_end();
    return result;
}

static gpupool_result alloc_kept(void) {
    NEEDS(scope);
    return take(KEPT, 6 * MIB, 0);
}

static gpupool_result alloc_rough_in_scope(void) {
    NEEDS(scope);
    return take(ROUGH, MIB, 0);
}

static gpupool_result free_rough_in_scope(void) {
    NEEDS(scope);
    return put(ROUGH);
}

static gpupool_result end_capture(void) {
    NEEDS(scope);
    own_begin();
    if (!graph) CHECK_EQ(cudaStreamEndCapture(kit_stream[0], &graph), cudaSuccess);
    own_end();
    return gpupool_end_capture(scope);
}

static gpupool_result release_capture(void) {
    NEEDS(scope);
    own_begin();
    if (!graph) CHECK_EQ(cudaStreamEndCapture(kit_stream[0], &graph), cudaSuccess);
    if (!launchable) {
        CHECK_EQ(cudaGraphInstantiate(&launchable, graph, 0), cudaSuccess);
        for (int i = 0; i < 2; i++) CHECK_EQ(cudaGraphLaunch(launchable, kit_stream[3]), 0);
    }
    own_end();
    gpupool_result result = gpupool_release_capture(scope);
    if (result != GPUPOOL_OK) return result;
    own_begin();
    CHECK_EQ(cudaGraphExecDestroy(launchable), cudaSuccess);
    CHECK_EQ(cudaGraphDestroy(graph), cudaSuccess);
    own_end();
    launchable = NULL;
    graph = NULL;
    scope = NULL;
    blocks[KEPT].at = blocks[ROUGH].at = NULL;
    return result;
}

/* ---- other devices and processes ---- */

static gpupool_result alloc_exportable(void) {
    return take_as(EXPORTED, kit_request(2 * MIB, 0, GPUPOOL_EXPORTABLE), 1);
}

static gpupool_result export_block(void) {
    NEEDS(blocks[EXPORTED].at);
    gpupool_result result = gpupool_export(arena, blocks[EXPORTED].at, &exported);
    CHECK_EQ(result == GPUPOOL_OK, exported.descriptor >= 0);
    is_exported = result == GPUPOOL_OK;
    return result;
}

static gpupool_result import_block(void) {
    NEEDS(is_exported);
    gpupool_result result = gpupool_import(1, &exported, &imported);
    CHECK_EQ(result == GPUPOOL_OK, imported.memory != NULL);
    return result;
}

static gpupool_result import_close(void) {
    NEEDS(imported.memory);
    gpupool_result result = gpupool_import_close(&imported);
    if (result == GPUPOOL_OK) imported.memory = NULL;
    return result;
}

static gpupool_result export_close(void) {
    NEEDS(is_exported);
    gpupool_result result = gpupool_export_close(arena, blocks[EXPORTED].at);
    is_exported = result != GPUPOOL_OK;
    return result;
}

static gpupool_result free_exported(void) { return put(EXPORTED); }

static gpupool_result allow_peer(void) {
    NEEDS(arena);
    gpupool_result result = gpupool_allow_peer(arena, 1);
    has_peer = result == GPUPOOL_OK;
    return result;
}

static gpupool_result disallow_peer(void) {
    NEEDS(has_peer);
    gpupool_result result = gpupool_disallow_peer(arena, 1);
    has_peer = result != GPUPOOL_OK;
    return result;
}

/* ---- sleep ---- */

static uint64_t bytes_asleep(void) {
    gpupool_stats stats;
    own_begin();
    CHECK_RESULT(gpupool_get_stats(arena, &stats), GPUPOOL_OK);
    own_end();
    return stats.asleep_bytes;
}

static gpupool_result slept(gpupool_result result) {
    uint64_t asleep = bytes_asleep();
    if (result == GPUPOOL_OK) CHECK(asleep > 0);
    is_asleep = asleep > 0;
    return result;
}

static gpupool_result woke(gpupool_result result) {
    uint64_t asleep = bytes_asleep();
    if (result == GPUPOOL_OK) CHECK_EQ(asleep, 0);
    is_asleep = asleep > 0;
    return result;
}

static gpupool_result sleep_tag(void) {
    NEEDS(tag && ring && !ticket && !is_asleep);
    return slept(gpupool_sleep(arena, tag, GPUPOOL_KEEP, ring));
}

static gpupool_result wake_tag(void) {
    NEEDS(tag && is_asleep);
    return woke(gpupool_wake(arena, tag, ring));
}

static gpupool_result sleep_all(void) {
    NEEDS(arena && !ticket && !is_asleep);
    return slept(gpupool_sleep(arena, GPUPOOL_ALL, GPUPOOL_KEEP, NULL));
}

static gpupool_result wake_all(void) {
    NEEDS(is_asleep);
    return woke(gpupool_wake(arena, GPUPOOL_ALL, NULL));
}

/* ---- limits, and what goes beyond them ---- */

static gpupool_result take_piece(int i) { return take(PIECE + i, 3 * MIB, i % 2); }
static gpupool_result alloc_piece_0(void) { return take_piece(0); }
static gpupool_result alloc_piece_1(void) { return take_piece(1); }
static gpupool_result alloc_piece_2(void) { return take_piece(2); }
static gpupool_result alloc_piece_3(void) { return take_piece(3); }
static gpupool_result alloc_piece_4(void) { return take_piece(4); }
static gpupool_result alloc_piece_5(void) { return take_piece(5); }
static gpupool_result free_piece_0(void) { return put(PIECE); }
static gpupool_result free_piece_2(void) { return put(PIECE + 2); }
static gpupool_result free_piece_4(void) { return put(PIECE + 4); }
static gpupool_result alloc_stitched(void) { return take(STITCHED, 8 * MIB, 0); }
static gpupool_result free_stitched(void) { return put(STITCHED); }
static gpupool_result free_piece_1(void) { return put(PIECE + 1); }
static gpupool_result free_piece_3(void) { return put(PIECE + 3); }
static gpupool_result free_piece_5(void) { return put(PIECE + 5); }

static gpupool_result set_limit(void) {
    NEEDS(arena);
    return gpupool_set_limit(arena, LATER_LIMIT);
}

static gpupool_result get_limit(void) {
    size_t bytes = 1;
    NEEDS(arena);
    gpupool_result result = gpupool_get_limit(arena, &bytes);
    if (result == GPUPOOL_OK) CHECK(bytes == LATER_LIMIT || for_good);
    return result;
}

static gpupool_result alloc_in_vain(void) {
    long calls = out_of_memory_calls;
    NEEDS(arena && !is_asleep);
    CHECK(gpupool_alloc(arena, 300 * MIB, kit_stream[2]) == NULL);
    gpupool_result result = gpupool_last_result();
    if (result == GPUPOOL_E_OUT_OF_MEMORY) CHECK(out_of_memory_calls > calls);
    return result;
}

static gpupool_result last_verdict(void) {
    gpupool_verdict verdict;
    NEEDS(arena);
    gpupool_result result = gpupool_last_verdict(&verdict);
    if (result == GPUPOOL_OK && !for_good) CHECK_EQ(verdict.asked_bytes, 300 * MIB);
    return result;
}

static gpupool_result would_fit(void) {
    gpupool_verdict why;
    NEEDS(arena && !is_asleep);
    gpupool_result result = gpupool_would_fit(arena, 30 * MIB, &why);
    if (result == GPUPOOL_OK) CHECK_EQ(why.cause, GPUPOOL_CAUSE_NONE);
    else if (result != GPUPOOL_E_OUT_OF_MEMORY) CHECK(!why.asked_bytes && !why.sentence[0]);
    return result;
}

static gpupool_result would_not_fit(void) {
    gpupool_verdict why;
    NEEDS(arena && !is_asleep);
    gpupool_result result = gpupool_would_fit(arena, 300 * MIB, &why);
    CHECK_EQ(why.asked_bytes, result == GPUPOOL_E_OUT_OF_MEMORY ? 300 * MIB : 0);
    return result;
}

static gpupool_result get_available(void) {
    size_t bytes = 0;
    NEEDS(arena && !is_asleep);
    gpupool_result result = gpupool_get_available(arena, &bytes);
    if (result == GPUPOOL_OK) CHECK(bytes > 20 * MIB);
    return result;
}

static gpupool_result set_limit_text(void) {
    NEEDS(arena);
    return gpupool_set_limit_text(arena, "50%free");
}

static gpupool_result trim(void) {
    size_t released = 1;
    NEEDS(arena && !is_asleep);
    fake_run_all(); /* else nothing is idle yet */
    size_t before = kit_reserved(arena);
    gpupool_result result = gpupool_trim(arena, 0, &released);
    CHECK_EQ(released, before - kit_reserved(arena));
    if (result == GPUPOOL_OK && !for_good) CHECK(released > 0);
    return result;
}

/* ---- what it says of itself ---- */

static gpupool_result get_stats(void) {
    gpupool_stats stats;
    NEEDS(arena);
    gpupool_result result = gpupool_get_stats(arena, &stats);
    if (result == GPUPOOL_OK) CHECK(stats.struct_bytes == sizeof stats);
    return result;
}

static gpupool_result reset_peaks(void) {
    NEEDS(arena);
    return gpupool_reset_peaks(arena);
}

static gpupool_result check(void) {
    NEEDS(arena);
    return gpupool_check(arena);
}

static char text[1 << 20];

/* A whole page must begin and end so. */
static gpupool_result written(gpupool_result (*write)(gpupool_arena *, FILE *), const char *begin,
                              const char *end) {
    NEEDS(arena);
    FILE *file = fmemopen(text, sizeof text, "w");
    gpupool_result result = write(arena, file);
    size_t bytes = (size_t)ftell(file);
    CHECK_EQ(fclose(file), 0);
    if (result != GPUPOOL_OK) return result;
    CHECK(bytes > 200 && !memcmp(text, begin, strlen(begin)));
    CHECK(bytes > 200 && !memcmp(text + bytes - strlen(end), end, strlen(end)));
    return result;
}

static gpupool_result report(void) { return written(gpupool_report, "", "\n"); }
static gpupool_result write_json(void) { return written(gpupool_write_json, "{", "}\n"); }
static gpupool_result write_svg(void) { return written(gpupool_write_svg, "<svg", "</svg>\n"); }
static gpupool_result write_snapshot(void) {
    return written(gpupool_write_snapshot, "\x80", ".");
}

/* ---- and ends ---- */

static gpupool_result retire_stream(void) {
    NEEDS(arena);
    return gpupool_retire_stream(arena, kit_stream[2]);
}

static gpupool_result destroy_stream(void) {
    cudaError_t error = gpupool_cudaStreamDestroy(kit_stream[3]);
    CHECK_EQ(cudaGetLastError(), error); /* it is CUDA's own call that failed */
    if (error == cudaSuccess) kit_stream[3] = NULL;
    return error == cudaSuccess ? GPUPOOL_OK : GPUPOOL_E_CUDA;
}

static gpupool_result destroy(void) {
    NEEDS(arena);
    gpupool_result result = gpupool_arena_destroy(arena);
    if (result == GPUPOOL_OK) arena = NULL;
    return result;
}

#endif
