/* Random calls of an arena and a ring, while calls of CUDA, requests for host memory and on_map
   fail, up to three kinds in one call, once or for good. All invariants are checked around each
   call, and fakecuda sees races and misuse. Now and then nothing fails for a while: then blocks
   hold what was written, and memory, mappings and figures agree. Each seed is the life of one
   arena, which ends under faults, too, half of the time after a reset of the device.

   test_random_faults [SEED [SECONDS [CALLS]]]: the seeds from this one on, for so long, but at
   least one, with so many calls each. VERBOSE=1 in the environment: what is called, and fails. */
// build: asan -O1 -fsanitize=address -DGPUPOOL_CHECK=2
#define _DEFAULT_SOURCE
#include "fail_malloc.h"
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "random_faults.h"

static double seconds = 2;
static long calls_of_a_seed = 150;

/* ---- what may be called next ---- */

static block *some_block(void) { return &blocks[below(BLOCKS)]; }

static void act_get(void) {
    block *b = some_block();
    gpupool_request request;
    if (b->at) return;
    memset(b, 0, sizeof *b);
    b->tag = (int)below(PARTS);
    b->stream = (int)below(KIT_STREAMS - 1);
    b->bytes = below(5) ? (1 + below(8)) * STRIPE / (1 + below(2)) : 512 * (1 + below(64));
    request = kit_request(b->bytes, kit_stream[b->stream], 0);
    if (arena->chunks.driver.share && below(3) == 0) request.flags = GPUPOOL_EXPORTABLE;
    request.tag = tag_of[b->tag];
    arm();
    b->at = (char *)gpupool_alloc_request(arena, &request);
    seen(kit_why(b->at));
    if (!b->at) return;
    CHECK(!is_asleep(b->tag));
    stamp(b);
}

/* A failed free changes nothing: the block is there still. */
static void act_put(void) {
    block *b = some_block();
    gpupool_result result;
    if (!b->at) return;
    if (!is_asleep(b->tag)) expect(b);
    result = FAULTY(gpupool_free(arena, b->at, kit_stream[b->stream]));
    CHECK(result != GPUPOOL_E_ARGUMENT && result != GPUPOOL_E_NOT_OURS);
    if (result == GPUPOOL_OK) b->at = NULL;
}

static int some_part(void) { return below(3) ? tag_of[1 + below(PARTS - 1)] : GPUPOOL_ALL; }

static void act_sleep(void) {
    gpupool_content content = below(2) ? GPUPOOL_KEEP : GPUPOOL_DISCARD;
    int part = some_part(), was_asleep[PARTS];
    for (int i = 0; i < PARTS; i++) was_asleep[i] = is_asleep(i);
    FAULTY(gpupool_sleep(arena, part, content, below(2) ? ring : NULL));
    for (block *b = blocks; b < blocks + BLOCKS && content == GPUPOOL_DISCARD; b++)
        if (is_asleep(b->tag) && !was_asleep[b->tag]) b->is_lost = 1;
}

static void act_wake(void) { FAULTY(gpupool_wake(arena, some_part(), below(2) ? ring : NULL)); }

static void act_trim(void) { FAULTY(gpupool_trim(arena, below(2) * below(40) * STRIPE, NULL)); }

static void act_limit(void) {
    FAULTY(gpupool_set_limit(arena, below(4) ? (10 + below(40)) * STRIPE : 0));
}

/* If all that undoes a failed call fails as well, for good, the peer has half of it. */
static void act_peer(void) {
    int allow = (int)below(2);
    gpupool_result result = FAULTY_ONCE(allow ? gpupool_allow_peer(arena, 1)
                                              : gpupool_disallow_peer(arena, 1));
    if (result == GPUPOOL_OK) is_peer = allow;
    CHECK_EQ(is_peer, arena->chunks.driver.peer_count);
}

static void act_read_elsewhere(void) {
    block *b = some_block();
    cudaStream_t by = is_peer && below(2) ? far_stream : kit_stream[below(KIT_STREAMS - 1)];
    if (!b->at || b->is_lost || is_asleep(b->tag)) return; /* what is lost is stamped anew */
    kit_order(kit_stream[b->stream], by);
    CHECK_EQ(fake_read(by, "elsewhere", b->at, 512, -1), cudaSuccess);
    if (FAULTY(gpupool_record_stream(arena, b->at, by)) != GPUPOOL_OK)
        CHECK_EQ(cudaStreamSynchronize(by), cudaSuccess);
}

static void act_export(void) {
    block *b = some_block();
    gpupool_exported exported;
    if (!b->at || FAULTY(gpupool_export(arena, b->at, &exported)) != GPUPOOL_OK) return;
    b->exports++;
    if (b->is_imported || FAULTY_ONCE(gpupool_import(0, &exported, &b->imported))) return;
    b->is_imported = 1;
}

static void act_end_export(void) {
    block *b = some_block();
    if (b->is_imported && FAULTY(gpupool_import_close(&b->imported)) == GPUPOOL_OK)
        b->is_imported = 0;
    else if (b->exports && FAULTY(gpupool_export_close(arena, b->at)) == GPUPOOL_OK)
        b->exports--;
}

static void act_scope(void) {
    if (!scope) {
        if (FAULTY(gpupool_begin_capture(arena, kit_stream[KIT_STREAMS - 1], &scope))) return;
        scope_is_open = 1;
    } else if (!scope_is_open) {
        if (FAULTY(gpupool_release_capture(scope)) == GPUPOOL_OK) forget_scope();
    } else if (FAULTY(gpupool_end_capture(scope)) == GPUPOOL_OK) {
        scope_is_open = 0;
    }
}

static void act_in_scope(void) {
    void **b = &of_graph[below(GRAPHS_BLOCKS)];
    cudaStream_t stream = kit_stream[KIT_STREAMS - 1];
    gpupool_request request = kit_request((1 + below(6)) * STRIPE, stream, 0);
    request.tag = tag_of[below(PARTS)];
    if (*b) {
        if (FAULTY(gpupool_free(arena, *b, stream)) == GPUPOOL_OK) *b = NULL;
    } else if (scope_is_open) {
        arm();
        *b = gpupool_alloc_request(arena, &request);
        seen(kit_why(*b));
        if (*b) kit_mark(stream, *b, request.bytes, 77);
    }
}

static void span_to_device(void) {
    gpupool_span span;
    if (FAULTY(gpupool_ring_acquire_span(ring, 1 + below(900000), 0, &span))) return;
    memset(span.memory, 1, span.bytes);
    if (below(2) || FAULTY(gpupool_ring_upload_span(ring, &span, device_memory, kit_stream[0])))
        MUST(gpupool_ring_cancel_span(ring, &span));
}

static void ask_for_transfer(gpupool_direction way, size_t bytes) {
    void *to = way == GPUPOOL_UP ? device_memory : host_memory;
    const void *from = way == GPUPOOL_UP ? host_memory : device_memory;
    gpupool_transfer transfer = kit_transfer(way, to, from, bytes, kit_stream[0]);
    gpupool_ticket ticket = 0;
    transfer.ticket = &ticket;
    FAULTY(gpupool_ring_transfer(ring, &transfer));
    /* The ring has no workers: the wait copies. It may fail itself; the second one does not. */
    if (ticket && FAULTY(gpupool_ring_wait(ring, ticket, 10 * KIT_SECOND)))
        gpupool_ring_wait(ring, ticket, 10 * KIT_SECOND);
}

/* The program uses the memory again at once: what the ring had queued comes before, also of a call
   that failed. Except where a copy was queued, a call failed, and then the wait for the ring's
   stream failed, too: such a copy may run until the device is idle. */
static void use_memory(void) {
    if (stream_wait_fails) CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
    CHECK_EQ(cudaMemsetAsync(device_memory, 1, RING_BYTES, kit_stream[0]), cudaSuccess);
}

static void act_ring(void) {
    size_t bytes = 1 + below(1500000);
    if (!ring) return;
    stream_wait_fails = 0;
    switch (below(6)) {
    case 0: FAULTY(gpupool_upload(ring, device_memory, host_memory, bytes, kit_stream[0])); break;
    case 1: FAULTY(gpupool_download(ring, host_memory, device_memory, bytes, kit_stream[0])); break;
    case 2: ask_for_transfer(GPUPOOL_UP, bytes); break;
    case 3: ask_for_transfer(GPUPOOL_DOWN, bytes); break;
    case 4: span_to_device(); break;
    default: FAULTY(gpupool_ring_trim(ring, below(3) * 256 * KIB, NULL));
    }
    use_memory();
    MUST(gpupool_ring_check(ring));
}

static void act_finish(void) { FAULTY(gpupool_wait_all(arena)); }

static void act_retire(void) {
    FAULTY(gpupool_retire_stream(arena, kit_stream[below(KIT_STREAMS - 1)]));
}

static int look_on(const gpupool_block *b, void *user) { return !b || user; }

static void act_look(void) {
    FILE *nowhere = fopen("/dev/null", "w");
    size_t available;
    arm();
    gpupool_report(arena, nowhere);
    gpupool_write_json(arena, nowhere);
    gpupool_write_svg(arena, nowhere);
    gpupool_write_snapshot(arena, nowhere);
    gpupool_walk_blocks(arena, look_on, NULL);
    gpupool_get_available(arena, &available);
    gpupool_would_fit(arena, (1 + below(10)) * STRIPE, NULL);
    calm();
    fclose(nowhere);
}

static void act_end_in_vain(void) {
    for (const block *b = blocks; b < blocks + BLOCKS; b++)
        if (b->at) {
            CHECK(FAULTY(gpupool_arena_destroy(arena)) != GPUPOOL_OK);
            return;
        }
}

static const struct {
    const char *name;
    void (*act)(void);
    unsigned weight;
} actions[] = {
    {"get", act_get, 30},           {"put", act_put, 20},
    {"sleep", act_sleep, 14},       {"wake", act_wake, 14},
    {"trim", act_trim, 6},          {"limit", act_limit, 6},
    {"peer", act_peer, 3},          {"elsewhere", act_read_elsewhere, 3},
    {"export", act_export, 2},      {"end export", act_end_export, 3},
    {"scope", act_scope, 4},        {"in scope", act_in_scope, 6},
    {"ring", act_ring, 6},          {"finish", act_finish, 2},
    {"retire", act_retire, 1},      {"look", act_look, 2},
    {"end", act_end_in_vain, 1},    {"all is well", all_is_well, 2},
};

static void act(long n) {
    unsigned total = 0, at;
    size_t i;
    for (i = 0; i < KIT_COUNT(actions); i++) total += actions[i].weight;
    at = below(total);
    for (i = 0; at >= actions[i].weight; i++) at -= actions[i].weight;
    check_case("seed %llu, call %ld, %s", (unsigned long long)seed, n, actions[i].name);
    tell("%s\n", check_context);
    actions[i].act();
    check_arena();
}

/* ---- an arena's life ---- */

static void open_far_stream(void) {
    CHECK_EQ(cudaSetDevice(1), cudaSuccess);
    CHECK_EQ(cudaStreamCreateWithFlags(&far_stream, cudaStreamNonBlocking), cudaSuccess);
    CHECK_EQ(cudaSetDevice(0), cudaSuccess);
}

static void open_tags(void) {
    gpupool_tag_config config;
    memset(&config, 0, sizeof config);
    config.can_sleep = 1;
    if (below(3) == 0) config.reserve_bytes = 3 * STRIPE;
    for (int part = 1; part < PARTS; part++) {
        while (FAULTY(gpupool_tag(arena, part == 1 ? "a" : "b", &config, &tag_of[part]))) {}
        config.reserve_bytes = 0;
    }
}

static void open_arena(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
    long objects = fake_live_objects();
    config.chunk_bytes = STRIPE * (1 + below(2));
    config.limit_bytes = (20 + below(40)) * STRIPE;
    if (below(2)) config.share = GPUPOOL_SHARE_PROCESSES;
    if (below(3) == 0) {
        config.on_map = on_map;
        config.on_unmap = on_unmap;
    }
    while (FAULTY(gpupool_arena_create(&arena, &config)))
        CHECK_EQ(fake_live_objects(), objects);
}

static void begin(void) {
    memset(blocks, 0, sizeof blocks);
    dice = seed;
    is_peer = stamps = 0;
    maps_told = 0;
    open_far_stream();
    CHECK_EQ(cudaMalloc((void **)&device_memory, RING_BYTES), cudaSuccess);
    host_memory = (unsigned char *)calloc(1, RING_BYTES);
    open_arena();
    open_tags();
    ring = below(2) ? kit_ring(MIB, 64 * KIB, 0) : NULL;
}

/* The arena can be destroyed in the end; until then it can be looked at. */
static void destroy_arena(void) {
    for (int tries = 0; tries < 4; tries++) {
        if (FAULTY(gpupool_arena_destroy(arena)) == GPUPOOL_OK) return;
        act_look();
    }
    MUST(gpupool_arena_destroy(arena));
}

static void destroy_ring(void) {
    for (int tries = 0; ring && tries < 4; tries++)
        if (FAULTY(gpupool_ring_destroy(ring)) == GPUPOOL_OK) ring = NULL;
    if (ring) MUST(gpupool_ring_destroy(ring));
    ring = NULL;
}

static void end_plainly(void) {
    wake_and_finish();
    for (block *b = blocks; b < blocks + BLOCKS; b++)
        while (b->at && !atomic_load(&check_bad))
            if (FAULTY(gpupool_free(arena, b->at, kit_stream[b->stream])) == GPUPOOL_OK)
                b->at = NULL;
    destroy_arena();
    destroy_ring();
    CHECK_EQ(cudaFree(device_memory), cudaSuccess);
    CHECK_EQ(cudaStreamDestroy(far_stream), cudaSuccess);
}

/* The device is reset, whatever sleeps, is exported or captured; what the peer has is not. */
static void end_by_reset(void) {
    for (block *b = blocks; b < blocks + BLOCKS; b++)
        if (b->is_imported) MUST(gpupool_import_close(&b->imported));
    CHECK_EQ(cudaStreamDestroy(far_stream), cudaSuccess);
    CHECK_EQ(cudaDeviceReset(), cudaSuccess);
    memset(kit_stream, 0, sizeof kit_stream);
    forget_scope();
    destroy_arena();
    destroy_ring();
}

static void live(void) {
    printf("seed %llu\n", (unsigned long long)seed);
    fflush(stdout); /* an assertion may end the program */
    begin();
    for (long n = 0; n < calls_of_a_seed && !atomic_load(&check_bad); n++) act(n);
    check_case("seed %llu, at the end", (unsigned long long)seed);
    tell("%s\n", check_context);
    if (below(2)) end_plainly();
    else end_by_reset();
    free(host_memory);
    kit_capture_globally();
    CHECK_EQ(fake_mappings(), 0);
    CHECK_EQ(fake_used_bytes(0), 0);
}

static void arenas_live_through_faults(void) {
    double end = check_now() + seconds;
    live();
    while (check_now() < end && !atomic_load(&check_bad)) {
        kit_settle();
        kit_prepare();
        seed++;
        live();
    }
}

int main(int argc, char **argv) {
    seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    if (argc > 2) seconds = strtod(argv[2], NULL);
    if (argc > 3) calls_of_a_seed = strtol(argv[3], NULL, 10);
    verbose = getenv("VERBOSE") != NULL;
    FAKE_TEST(arenas_live_through_faults);
    return check_finish();
}
