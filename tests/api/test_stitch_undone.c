/* One request that is stitched, or grown, or both, and of all the calls that it makes one fails:
   each in turn, once, or with all that follow. All is as it was: no unit changed hands, nothing is
   mapped that was not, and the next request is met, by whichever stream it comes. */
// build: plain
// build: asan -fsanitize=address,undefined
#include "fail_malloc.h"

#include "gpupool.h"
#include "stripe_kit.h"

#if CHECK_FAKE

#define LARGE (5 * STRIPE - 3 * 512)

/* ---- what is asked for, and where ---- */

typedef struct scene {
    const char *name;
    void (*open)(void);
    size_t bytes;    /* asked for on stream 0 */
    int is_stitched;
} scene;

/* Of memory that is anybody's. */
static void quiet_memory(void) { stripe_open(); }

/* Every other chunk is free, as the streams left it, with work queued on it. */
static void open_busy(const int *streams, int count) {
    gpupool_arena_config config = stripe_config();
    arena = kit_create(&config);
    for (int i = 0; i < STRIPES; i++) {
        stripe[i] = (char *)get(STRIPE_BYTES, 0);
        stripe_is_live[i] = i % 2;
        kit_mark(kit_stream[0], stripe[i], STRIPE_BYTES, i);
    }
    for (int i = 1; i < KIT_STREAMS; i++) kit_order(kit_stream[0], kit_stream[i]);
    fake_mode(FAKE_STEPPED);
    for (int i = 0; i < STRIPES; i += 2) {
        int stream = streams[i / 2 % count];
        kit_mark(kit_stream[stream], stripe[i], STRIPE_BYTES, 100 + i);
        put(stripe[i], stream);
    }
}

static void its_own_memory(void) { open_busy((int[]){0}, 1); }
static void memory_of_others(void) { open_busy((int[]){1, 2}, 2); }
static void memory_of_all(void) { open_busy((int[]){0, 1, 2}, 3); }

/* There is room for two chunks more. */
static void with_room_to_grow(void) {
    stripe_open();
    CHECK_RESULT(gpupool_set_limit(arena, (STRIPES + 2) * STRIPE), GPUPOOL_OK);
}

/* Nothing is there yet. */
static void an_empty_arena(void) {
    gpupool_arena_config config = stripe_config();
    arena = kit_create(&config);
    memset(stripe_is_live, 0, sizeof stripe_is_live);
}

/* One chunk, of which the end is free. */
static void a_free_end(void) {
    an_empty_arena();
    stripe[0] = (char *)get(MIB, 0);
    kit_fill(kit_stream[0], stripe[0], MIB, 0);
}

/* The same, and the stream that has freed it is still to work on it. */
static void an_end_just_freed(void) {
    a_free_end();
    char *end = (char *)get(MIB, 0);
    CHECK(end == stripe[0] + MIB);
    kit_order(kit_stream[0], kit_stream[3]);
    fake_mode(FAKE_STEPPED);
    kit_fill(kit_stream[0], end, MIB, 1);
    put(end, 0);
}

/* What is idle has to make room for growth. */
static void without_stitches(void) {
    gpupool_arena_config config = stripe_config();
    config.no_stitch = 1;
    stripe_open_with(&config);
}

static const scene scenes[] = {
    {"a stitch of quiet memory", quiet_memory, LARGE, 1},
    {"a stitch of the stream's own memory", its_own_memory, LARGE, 1},
    {"a stitch of two other streams' memory", memory_of_others, 10 * STRIPE, 1},
    {"a stitch of three streams' memory", memory_of_all, 16 * STRIPE, 1},
    {"a stitch and growth", with_room_to_grow, 18 * STRIPE, 1},
    {"growth", an_empty_arena, 10 * STRIPE, 0},
    {"growth from a free end", a_free_end, 3 * STRIPE, 0},
    {"growth from an end just freed", an_end_just_freed, 3 * STRIPE, 0},
    {"growth after idle chunks have gone", without_stitches, LARGE, 0},
};

/* ---- what may not change ---- */

typedef struct figures {
    gpupool_stats stats;
    long mappings;
    size_t used;
} figures;

static figures look(void) {
    figures f = {kit_stats(arena), fake_mappings(), fake_used_bytes(0)};
    return f;
}

/* strict: each call that undoes what was done was allowed to. If not, more may be mapped, or held,
   than was; but it is counted, and within the limit. */
static void expect_as_before(const figures *before, const figures *after, int strict) {
    const gpupool_stats *a = &before->stats, *b = &after->stats;
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    CHECK_EQ(a->requested.now, b->requested.now);
    CHECK_EQ(a->granted.now, b->granted.now);
    CHECK_EQ(a->blocks.now, b->blocks.now);
    CHECK_EQ(a->allocs, b->allocs);
    CHECK_EQ(a->limit_bytes, b->limit_bytes);
    CHECK_EQ(a->stitched_bytes, b->stitched_bytes);
    CHECK_EQ(b->reserved.now, after->used);
    CHECK(b->reserved.now <= b->limit_bytes);
    if (!strict) return;
    CHECK_EQ(a->stitches, b->stitches);
    CHECK_EQ(a->reserved.now, b->reserved.now);
    CHECK_EQ(a->largest_free_bytes, b->largest_free_bytes);
    CHECK_EQ(a->largest_block_bytes, b->largest_block_bytes);
    CHECK_EQ(before->mappings, after->mappings);
}

static void close_scene(void) {
    fake_mode(FAKE_EAGER);
    CHECK_RESULT(gpupool_set_limit(arena, 0), GPUPOOL_OK);
    for (int i = 0; i < STRIPES; i++) {
        int live = stripe_is_live[i] || (i == 0 && stripe[0] && kit_size(arena, stripe[0]));
        if (live && stripe_is_live[i]) kit_expect_mark(kit_stream[0], stripe[i], STRIPE_BYTES, i);
        if (live) put(stripe[i], 0);
        stripe[i] = NULL;
        stripe_is_live[i] = 0;
    }
    CHECK_EQ(fake_failures(), 0);
    CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
    CHECK_EQ(fake_mappings(), 0);
    CHECK_EQ(fake_used_bytes(0), 0);
    kit_close(arena);
}

/* The streams run one after the other, the youngest work first, as far as nothing orders them. */
static void run_backwards(void) {
    for (int i = KIT_STREAMS; i-- > 0;)
        while (fake_step(kit_stream[i])) continue;
    CHECK_EQ(fake_failures(), 0);
}

/* Each place where a chunk of it may begin. */
static void touch(int stream, char *block, size_t bytes, int write) {
    for (size_t at = 0; at < bytes; at += STRIPE / 2) {
        if (write) kit_fill(kit_stream[stream], block + at, 512, (int)(at / STRIPE));
        else kit_expect(kit_stream[stream], block + at, 512, (int)(at / STRIPE));
    }
}

/* The request is made with a fault. Returns whether there were so many calls. */
static int one_fault(const scene *s, int host, long n, int persist, int next_stream) {
    long fired;
    check_case("%s: %s %ld%s, then stream %d", s->name, host ? "host allocation" : "call", n,
               persist ? " and all after it" : "", next_stream);
    s->open();
    figures before = look();
    if (host) fail_malloc_nth(n, persist);
    else fake_fail_nth(n, persist);
    char *block = (char *)gpupool_alloc(arena, s->bytes, kit_stream[0]);
    gpupool_result result = gpupool_last_result();
    fired = host ? fail_malloc_fired : fake_fail_fired();
    fail_malloc_nth(0, 0);
    fake_fail_clear();
    kit_capture_globally();
    if (!block) {
        figures after = look();
        CHECK(fired && result != GPUPOOL_OK && gpupool_last_error()[0]);
        if (host) CHECK_RESULT(result, GPUPOOL_E_HOST_MEMORY);
        expect_as_before(&before, &after, !persist && s->is_stitched);
        block = (char *)get(s->bytes, next_stream);
    } else {
        next_stream = 0;
    }
    CHECK_EQ(cudaPeekAtLastError(), cudaSuccess);
    if (block) {
        touch(next_stream, block, s->bytes, 1);
        run_backwards();
        touch(next_stream, block, s->bytes, 0);
        put(block, next_stream);
    }
    run_backwards();
    close_scene();
    return fired != 0;
}

static void each_call_in_turn(int host) {
    for (size_t i = 0; i < KIT_COUNT(scenes); i++)
        for (int persist = 0; persist < 2; persist++) {
            long n = 1;
            while (one_fault(&scenes[i], host, n, persist, n % 2 ? 0 : 3) &&
                   !atomic_load(&check_bad))
                n++;
            if (!host) CHECK(n > 5); /* else the scene makes no calls */
        }
}

static void calls_of_cuda_fail(void) { each_call_in_turn(0); }
static void the_host_has_no_memory(void) { each_call_in_turn(1); }

/* The scenes are what they say. */
static void each_scene_is_as_meant(void) {
    for (size_t i = 0; i < KIT_COUNT(scenes); i++) {
        check_case("%s", scenes[i].name);
        scenes[i].open();
        fake_reset_counters();
        void *block = get(scenes[i].bytes, 0);
        CHECK_EQ(kit_stats(arena).stitches, scenes[i].is_stitched);
        if (!scenes[i].is_stitched) CHECK(fake_calls("cuMemCreate") > 1);
        put(block, 0);
        close_scene();
    }
}

#endif

int main(void) {
    FAKE_TEST(each_scene_is_as_meant);
    FAKE_TEST(calls_of_cuda_fail);
    FAKE_TEST(the_host_has_no_memory);
    return check_finish();
}
