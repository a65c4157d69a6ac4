/* What other threads find out while a stitch is made of several streams' memory, with the locks
   open around CUDA's calls. */
// build: plain
// build: asan -fsanitize=address,undefined
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#define STRIPES 8
#include "stripe_kit.h"

#if CHECK_FAKE

static char *edge[2][2], *middle[2];

static gpi_stream *known(int stream) {
    return gpi_clock_find(&arena->clocks, gpi_clock_key(kit_stream[stream]));
}

/* Streams 1 and 2 have each freed a chunk, and then the middle of another one, which no stitch can
   use: each with an event behind it, and all of it is still to be done. */
static void open_with_two_events_each(void) {
    gpupool_arena_config config = stripe_config();
    arena = kit_create(&config);
    for (int i = 0; i < 2; i++) {
        edge[i][0] = (char *)get(STRIPE / 4, 0);
        middle[i] = (char *)get(STRIPE / 2, 0);
        edge[i][1] = (char *)get(STRIPE / 4, 0);
        CHECK(middle[i] == edge[i][0] + STRIPE / 4 && edge[i][1] == middle[i] + STRIPE / 2);
    }
    for (int i = 2; i < STRIPES; i++) stripe[i] = (char *)get(STRIPE, 0);
    for (int i = 1; i < 3; i++) kit_order(kit_stream[0], kit_stream[i]);
    fake_mode(FAKE_STEPPED);
    for (int i = 1; i < 3; i++) {
        kit_fill(kit_stream[i], stripe[2 * i], 512, i);
        put(stripe[2 * i], i);
        kit_fill(kit_stream[i], middle[i - 1], 512, i);
        put(middle[i - 1], i);
        CHECK_EQ(fake_pending(kit_stream[i]), 4); /* two fills, two events */
    }
}

/* The chunks are finished, and another thread sees that; the work behind them is not. */
static void the_chunks_are_finished(void *unused) {
    (void)unused;
    for (int i = 1; i < 3; i++) {
        while (fake_pending(kit_stream[i]) > 2) fake_step(kit_stream[i]);
        gpi_host_lock(&arena->lock);
        CHECK(gpi_event_poll(&arena->clocks, known(i)));
        gpi_host_unlock(&arena->lock);
    }
}

/* The stream that is not waited for yet needs no wait any more: its later work is none of the
   block's. */
static void a_stream_finishes_before_it_is_followed(void) {
    open_with_two_events_each();
    fake_reset_counters();
    fake_before_call("cuStreamWaitEvent", 1, the_chunks_are_finished, NULL);
    char *block = stripe_stitched(2 * STRIPE, 0);
    CHECK_EQ(fake_calls("cuStreamWaitEvent"), 1);
    kit_fill(kit_stream[0], block, 2 * STRIPE, 7);
    fake_run(kit_stream[0]);
    CHECK_EQ(fake_pending(kit_stream[0]), 0);
    CHECK_EQ((fake_pending(kit_stream[1]) > 0) + (fake_pending(kit_stream[2]) > 0), 1);
    CHECK_EQ(fake_failures(), 0);
    put(block, 0);
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < 2; k++) put(edge[i][k], 0);
    for (int i = 2; i < STRIPES; i++)
        if (i != 2 && i != 4) put(stripe[i], 0);
    fake_mode(FAKE_EAGER);
    kit_close(arena);
}
#endif

int main(void) {
    FAKE_TEST(a_stream_finishes_before_it_is_followed);
    return check_finish();
}
