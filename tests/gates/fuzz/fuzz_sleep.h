/* fuzz_sleep.h: tags of all kinds, with blocks on several streams and in a graph; they sleep and
   wake, alone and with all of the arena, also from the program's functions and under faults. */
#ifndef FUZZ_SLEEP_H
#define FUZZ_SLEEP_H

#include "fuzz_sleep_blocks.h"

/* ---- the arena ---- */

static void fuzz_sleep_make_tag(fuzz_step s) {
    static const char *names[] = {"", "weights", "kv", "draft"};
    gpupool_tag_config config;
    int tag = -1, next = fs.tags + 1;
    if (next == TAGS) return;
    memset(&config, 0, sizeof config);
    config.can_sleep = s.a & 1;
    config.reserve_bytes = s.a & 2 ? fuzz_sleep_size(s.b) : 0;
    config.limit_bytes = s.a & 4 ? fuzz_size(s.c, 0) : 0;
    config.soft_limit_bytes = s.a & 8 ? fuzz_sleep_size(s.c) : 0;
    config.on_soft_limit = fuzz_over_the_limit;
    if (!FUZZ_TRY(gpupool_tag(arena, names[next], &config, &tag),
                  FUZZ_NO_MEMORY | (fs.is_told ? 1u << GPUPOOL_E_CALLBACK : 0u) |
                      (fs.is_told && fs.graph.capturing ? 1u << GPUPOOL_E_CAPTURING : 0u))) {
        CHECK_EQ(tag, 0);
        return;
    }
    if (tag != next) return; /* after one that failed and stayed: it is not used */
    fs.tags = tag;
    fs.apart[tag] = config.can_sleep || config.reserve_bytes;
    fs.can_sleep[tag] = config.can_sleep;
    fs.unsure[tag] = 1; /* a function that the call has called may have put the tag to sleep */
}

static void fuzz_sleep_limits(fuzz_step s) {
    int tag = s.b % (fs.tags + 1);
    size_t bytes = s.a & 4 ? (size_t)s.c * MIB / 2 : 0;
    fs.is_tight |= bytes != 0;
    switch (s.a % 4) {
    case 0: FUZZ_TRY(gpupool_set_limit(arena, bytes), 0); break;
    case 1: fake_other_process(0, bytes); break;
    case 2:
        if (tag) FUZZ_TRY(gpupool_set_tag_limits(arena, tag, bytes, bytes / 2), 0);
        break;
    default: known.refuse_at = fs.is_told ? 1 + s.c % 8 : 0;
    }
}

static void fuzz_sleep_trim(fuzz_step s) {
    size_t released = 0;
    if (FUZZ_TRY(gpupool_trim(arena, (size_t)s.a * MIB / 4, &released),
                 fs.asleep[0] ? 1u << GPUPOOL_E_ASLEEP : 0u))
        CHECK(!fs.asleep[0]);
    if (s.b & 1 && ring) FUZZ_TRY(gpupool_ring_trim(ring, 0, NULL), 0);
}

static void fuzz_sleep_report(void) {
    FILE *nowhere = fopen("/dev/null", "w");
    FUZZ_TRY(gpupool_report(arena, nowhere), 0);
    FUZZ_TRY(gpupool_write_json(arena, nowhere), 0);
    fclose(nowhere);
}

/* The first tags, each of which has chunks of its own. */
static int fuzz_tags_apart(void) {
    int tag = 0;
    while (tag < fs.tags && fs.apart[tag + 1]) tag++;
    return tag;
}

static void fuzz_sleep_run(fuzz_step s) {
    for (int steps = s.b % 32; steps > 0; steps--) fake_step(kit_stream[s.a % KIT_STREAMS]);
}

/* ---- from first byte to last ---- */

static void fuzz_sleep_do(fuzz_step s) {
    switch (s.verb % 32) {
    case 0: case 1: case 2: case 3: case 4: fuzz_sleep_get(s); break;
    case 5: case 6: fuzz_sleep_put(s); break;
    case 7: fuzz_sleep_lend(s); break;
    case 8: case 9: case 10: fuzz_sleep_tag(s); break;
    case 11: case 12: case 13: fuzz_wake_tag(s); break;
    case 14: fs.callback = s; break;
    case 15: case 16:
        fuzz_fault.due = s;
        fs.is_sound = 0;
        break;
    case 17: fuzz_sleep_make_tag(s); break;
    case 18: fuzz_sleep_limits(s); break;
    case 19: fuzz_sleep_trim(s); break;
    case 20: fuzz_sleep_upload(s); break;
    case 21: fuzz_sleep_walk(s); break;
    case 22: fuzz_sleep_run(s); break;
    case 23: fuzz_sleep_report(); break;
    case 24:
        fuzz_graph_begin(&fs.graph, arena, s, 0);
        break;
    case 25: fuzz_kept_get(s); break;
    case 26: fuzz_graph_end(&fs.graph, s); break;
    case 27: fuzz_kept_launch(); break;
    case 28: fuzz_kept_release(); break;
    case 29: no_chunk_is_shared(fuzz_tags_apart()); break;
    default: fuzz_expect_all();
    }
    fuzz_make_sure();
    fuzz_write_lost();
    if (fs.checks_all || s.verb % 32 == 30) fuzz_sleep_agrees();
}

static int fuzz_sleep_open(fuzz_step s) {
    gpupool_arena_config config = s.a & 1 ? registry_config(GPUPOOL_SOURCE_MAPPED, 0)
                                          : kit_config(GPUPOOL_SOURCE_MAPPED);
    registry_clear();
    memset(&fs, 0, sizeof fs);
    memset(slot, 0, sizeof slot);
    tag_edges = fs.is_sound = 1;
    fs.is_told = s.a & 1;
    fs.checks_all = s.verb & 2;
    fs.backup_bytes = config.backup_bytes = s.a & 2 ? fuzz_size(s.b, 0) : 0;
    config.limit_bytes = s.a & 4 ? 2 * fuzz_size(s.c, 0) : 0;
    fs.is_tight = config.limit_bytes != 0;
    config.no_stitch = s.a & 8;
    config.soft_limit_bytes = s.a & 16 ? fuzz_sleep_size(s.b) : 0;
    config.on_soft_limit = fuzz_over_the_limit;
    config.on_out_of_memory = fuzz_out_of_memory;
    fake_device_memory(0, 256 * MIB);
    /* a ring's transfer waits until its work is done: by itself, then */
    fake_mode(s.a & 96 ? FAKE_EAGER : FAKE_STEPPED);
    ring = s.a & 64 ? kit_ring(512 * KIB, 64 * KIB, 0) : NULL;
    return FUZZ_TRY(gpupool_arena_create(&arena, &config), FUZZ_NO_MEMORY);
}

/* Awake, all that was kept is there; what still sleeps at the end may do so. */
static void fuzz_sleep_end(int wakes) {
    fuzz_step none = {0, 0, 0, 0};
    fuzz_fault.due.verb = fs.callback.verb = 0;
    known.refuse_at = 0;
    fuzz_graph_end(&fs.graph, none);
    fake_other_process(0, 0);
    CHECK_RESULT(gpupool_set_limit(arena, 0), GPUPOOL_OK);
    if (fuzz_parts(GPUPOOL_ALL, 1) && (wakes || fs.asleep[0]))
        CHECK_RESULT(fuzz_wake_now(GPUPOOL_ALL, ring), GPUPOOL_OK);
    fuzz_write_lost();
    fuzz_expect_all();
    fuzz_sleep_agrees();
    fuzz_kept_release();
    close_tags();
    if (fs.is_told && fs.is_sound) CHECK_EQ(known.count, 0);
}

static int fuzz_sleep(const uint8_t *data, size_t size) {
    fuzz_bytes in = {data, size};
    fuzz_step first, step;
    if (size < 8 || size > 2048) return 1;
    fuzz_prepare();
    fuzz_next(&in, &first);
    if (fuzz_sleep_open(first)) {
        while (fuzz_next(&in, &step)) fuzz_sleep_do(step);
        if (!atomic_load(&check_bad)) fuzz_sleep_end(first.verb & 1);
    } else if (ring) {
        kit_ring_close(ring);
    }
    return fuzz_settle();
}

#endif
