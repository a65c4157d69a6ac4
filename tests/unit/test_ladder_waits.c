/* Memory that other streams are not done with: which of it a request follows, whom it waits for,
   and what it takes instead where it cannot wait. */
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "arena_scene.h"

#if CHECK_FAKE

/* ---- blocks that wait ---- */

/* The first is not done, the second is: a request that can neither wait nor grow gets it. */
static void waiting_out_of_order(void) {
    arena = kit_open_limited(GPUPOOL_SOURCE_DEVICE, 64 * MIB);
    void *slow = get(20 * MIB, 0), *fast = get(20 * MIB, 0), *rest = get(20 * MIB, 0), *block;
    use(slow, 1);
    use(fast, 2);
    fake_hold(kit_stream[1], 1);
    use(slow, 1);
    put(slow, 0);
    put(fast, 0);
    CHECK_EQ(kit_stats(arena).pending.now, 40 * MIB);
    CHECK_EQ(cudaStreamBeginCapture(kit_stream[3], cudaStreamCaptureModeRelaxed), cudaSuccess);
    block = gpupool_alloc(arena, 20 * MIB, kit_stream[3]);
    CHECK(block == fast);
    CHECK_RESULT(kit_why(gpupool_alloc(arena, 20 * MIB, kit_stream[3])), GPUPOOL_E_OUT_OF_MEMORY);
    drop_capture(kit_stream[3]);
    fake_hold(kit_stream[1], 0);
    put(block, 3);
    put(rest, 0);
    kit_close(arena);
}

/* One stream is done with a waiting block, another is not: that is the one to wait for. */
static void waiting_for_the_second_stream(void) {
    arena = kit_open_limited(GPUPOOL_SOURCE_PINNED, 64 * MIB);
    void *block = get(60 * MIB, 0);
    use(block, 2);
    use(block, 1);
    fake_mode(FAKE_STEPPED);
    use(block, 2);
    put(block, 0);
    block = get(60 * MIB, 0);
    CHECK(kit_stats(arena).host_syncs > 0);
    put(block, 0);
    finish();
}

/* What a graph keeps is passed over, and a wait on the device that fails ends the search. */
static void waiting_blocks_that_cannot_be_followed(void) {
    gpupool_capture *scope = NULL;
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 64 * MIB);
    fake_mode(FAKE_STEPPED);
    void *kept = get(20 * MIB, 0), *block = get(30 * MIB, 3);
    kit_order(kit_stream[0], kit_stream[1]);
    kit_order(kit_stream[3], kit_stream[1]);
    use(kept, 1);
    use(block, 1);
    CHECK_RESULT(gpupool_begin_capture(arena, kit_stream[0], &scope), GPUPOOL_OK);
    put(kept, 0);
    put(block, 3);
    fake_fail_call("cuStreamWaitEvent", 1, 0, 0);
    void *second = get(16 * MIB, 2); /* it waits on the host instead */
    CHECK(second != NULL && second != kept);
    fake_fail_clear();
    put(second, 2);
    CHECK_RESULT(gpupool_release_capture(scope), GPUPOOL_OK);
    finish();
}

/* The waiting block alone becomes the stream's, and not the finished unit beside it. */
static void followed_without_its_neighbour(void) {
    open_in_chunks(GPUPOOL_SOURCE_DEVICE, 64 * MIB);
    char *waits = (char *)get(20 * MIB, 0), *tiny = (char *)get(512, 0);
    CHECK(tiny == waits + 20 * MIB);
    void *rest = get_the_rest(0);
    no_more_memory();
    put(tiny, 0);
    trim_none();
    fake_mode(FAKE_STEPPED);
    kit_order(kit_stream[0], kit_stream[1]);
    use(waits, 1);
    put(waits, 0);
    CHECK(take_without_a_wait(20 * MIB, 2) == waits);
    CHECK(kit_stats(arena).fence_waits > 0);
    CHECK_EQ(kit_stats(arena).pending.now, 0);
    put(waits, 2);
    put(rest, 0);
    finish();
}

/* ---- stitched instead ---- */

/* 64 MiB, all of them live, on streams 0 and 3. Each free has an event. */
static void *piece[6];
static void open_full(void) {
    static const size_t mib[] = {20, 2, 10, 2, 10, 20};
    static const int stream[] = {0, 0, 3, 0, 3, 0};
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
    config.limit_bytes = 64 * MIB;
    config.chunk_bytes = 2 * MIB;
    arena = kit_create(&config);
    for (int i = 0; i < 6; i++) piece[i] = get(mib[i] * MIB, stream[i]);
    CHECK_EQ(kit_reserved(arena), 64 * MIB);
    arena->short_until = arena->clocks.position + 1024;
}

static void free_behind_work(int i, int stream) {
    kit_fill(kit_stream[stream], piece[i], 64, 1);
    put(piece[i], stream);
    piece[i] = NULL;
}

static void close_full(void *block, int stream) {
    if (block) kit_mark(kit_stream[stream], block, 4096, 2);
    if (block) put(block, stream);
    for (int i = 0; i < 6; i++)
        if (piece[i]) put(piece[i], 0);
    run_and_finish();
}

/* A waiting block cannot be followed: what a third stream has freed is stitched instead. */
static void stitched_where_none_can_be_followed(void) {
    open_full();
    void *waits = piece[0];
    fake_mode(FAKE_STEPPED);
    kit_order(kit_stream[0], kit_stream[1]);
    use(waits, 1);
    put(waits, 0);
    piece[0] = NULL;
    free_behind_work(2, 3);
    free_behind_work(4, 3);
    fake_fail_call("cuStreamWaitEvent", 1, 0, 0);
    void *block = take_without_a_wait(20 * MIB, 2);
    CHECK_EQ(fake_fail_fired(), 1);
    fake_fail_clear();
    CHECK(block != waits);
    CHECK_EQ(kit_stats(arena).stitches, 1);
    close_full(block, 2);
}

/* What another stream has freed is stitched to what anybody may have. */
static void stitched_of_finished_and_unfinished(void) {
    open_full();
    put(piece[2], 3);
    piece[2] = NULL;
    trim_none();
    CHECK_EQ(kit_stats(arena).pending.now, 0);
    fake_mode(FAKE_STEPPED);
    free_behind_work(4, 3);
    void *block = take_without_a_wait(20 * MIB, 2);
    CHECK_EQ(kit_stats(arena).stitches, 1);
    close_full(block, 2);
}

/* A stitch is taken again as soon as its stream is seen to have done with it, and none is made. */
static void an_idle_stitch_whose_user_is_done(void) {
    open_full();
    free_behind_work(2, 3);
    free_behind_work(4, 3);
    void *stitched = get(20 * MIB, 3);
    CHECK_EQ(kit_stats(arena).stitches, 1);
    fake_mode(FAKE_STEPPED);
    kit_fill(kit_stream[3], stitched, 64, 1);
    put(stitched, 3);
    fake_run_all();
    CHECK(take_without_a_wait(20 * MIB, 2) == stitched);
    CHECK_EQ(kit_stats(arena).stitches, 1);
    CHECK_EQ(kit_stats(arena).stitches_reused, 1);
    CHECK_EQ(kit_stats(arena).fence_waits, 0);
    close_full(stitched, 2);
}

/* ---- what another stream has freed ---- */

/* All that another stream has freed lies in a slab. */
static void followed_into_a_slab(void) {
    enum { SMALL = 32 * KIB, COUNT = 2 * MIB / SMALL };
    void *small[COUNT], *first;
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
    config.limit_bytes = config.chunk_bytes = 4 * MIB;
    config.no_stitch = 1;
    arena = kit_create(&config);
    first = get(2 * MIB, 0);
    for (int i = 0; i < COUNT; i++) small[i] = get(SMALL, 1);
    CHECK(gpi_tree_is_slab(&arena->tree, (uintptr_t)small[10] / GPUPOOL_UNIT_BYTES));
    CHECK_EQ(kit_stats(arena).largest_free_bytes, 0);
    arena->short_until = arena->clocks.position + 1024;
    fake_mode(FAKE_STEPPED);
    kit_fill(kit_stream[1], small[10], SMALL, 1);
    put(small[10], 1);
    CHECK(take_without_a_wait(SMALL, 0) == small[10]);
    CHECK_EQ(kit_stats(arena).fence_waits, 1);
    kit_fill(kit_stream[0], small[10], SMALL, 2);
    for (int i = 0; i < COUNT; i++) put(small[i], i == 10 ? 0 : 1);
    put(first, 0);
    run_and_finish();
}

/* Nothing but caches has what was freed so far, when the request begins: it is waited for, too. */
static void what_lies_in_caches_is_waited_for(void) {
    void *small[2], *block;
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 2 * MIB);
    fake_mode(FAKE_STEPPED);
    for (int i = 0; i < 2; i++) small[i] = get(512, 0);
    for (int i = 0; i < 2; i++) {
        kit_order(kit_stream[0], kit_stream[1 + i]);
        put(small[i], 1 + i);
    }
    CHECK_EQ(arena->clocks.position, 0);
    block = get(2 * MIB, 3);
    CHECK_EQ(kit_stats(arena).fence_waits, 2);
    if (block) put(block, 3);
    run_and_finish();
}

/* Of two streams' work the older is waited for, whichever stream the arena met first. */
static void the_older_work_is_waited_for(void) {
    for (int older = 1; older < 3; older++) {
        void *block[3];
        arena = kit_open_limited(GPUPOOL_SOURCE_PINNED, 64 * MIB);
        for (int i = 1; i < 3; i++) block[i] = get(30 * MIB, i);
        fake_mode(FAKE_STEPPED);
        for (int i = 1; i < 3; i++) kit_fill(kit_stream[i], block[i], 64, 1);
        put(block[older], older);
        put(block[3 - older], 3 - older);
        CHECK(get(30 * MIB, 3) == block[older]);
        CHECK_EQ(fake_pending(kit_stream[older]), 0);
        CHECK(fake_pending(kit_stream[3 - older]) > 0);
        put(block[older], 3);
        finish();
    }
}

/* Of three streams' runs that fit, one is known to be finished, and has not moved to list ANY yet:
   that is the one to take, wherever it stands in the queue. */
static void a_finished_run_is_the_first_choice(void) {
    gpi_request request;
    gpi_stream *of_2;
    void *block[4];
    arena = kit_open(GPUPOOL_SOURCE_DEVICE);
    fake_mode(FAKE_STEPPED);
    for (int i = 0; i < 4; i++) block[i] = get(20 * MIB, i);
    for (int i = 1; i < 4; i++) {
        kit_mark(kit_stream[i], block[i], 64, 1);
        put(block[i], i);
    }
    memset(&request, 0, sizeof request);
    request.units = 20 * MIB / GPUPOOL_UNIT_BYTES;
    request.align_units = 1;
    gpi_host_lock(&arena->lock);
    request.owner = known_stream(0);
    of_2 = known_stream(2);
    CHECK(arena->clocks.busy != of_2 && arena->clocks.busy_last != of_2);
    gpi_run *run = gpi_ladder_find_of_all(arena, &request);
    CHECK(run && run->list == arena->clocks.busy->list); /* none is better than another */
    gpi_clock_pass(&arena->clocks, of_2, of_2->clock.issued); /* as another thread sees */
    run = gpi_ladder_find_of_all(arena, &request);
    CHECK(run && run->list == of_2->list);
    gpi_host_unlock(&arena->lock);
    put(block[0], 0);
    finish();
}

/* What another stream has freed is waited for while memory is short, and to the very position; from
   then on there is new memory. Where there is no choice no event is asked after. */
static void as_long_as_memory_is_short(void) {
    for (int more = 0; more < 2; more++) {
        open_in_chunks(GPUPOOL_SOURCE_DEVICE, 64 * MIB);
        void *block = get(20 * MIB, 1), *again;
        void *rest = get_the_rest(0);
        fake_mode(FAKE_STEPPED);
        kit_fill(kit_stream[1], block, 64, 1);
        put(block, 1);
        arena->short_until = arena->clocks.position + (uint64_t)more;
        fake_reset_counters();
        again = get(20 * MIB, 0);
        CHECK_EQ(again == block, more);
        CHECK_EQ(kit_stats(arena).fence_waits, more);
        if (more) CHECK_EQ(fake_calls("cuEventQuery"), 0);
        put(again, 0);
        put(rest, 0);
        finish();
    }
}

/* ---- users that finish meanwhile ---- */

static void finish_all_streams(void *unused) {
    (void)unused;
    fake_run_all();
    for (int i = 0; i < KIT_STREAMS; i++) {
        gpi_stream *stream = known_stream(i);
        gpi_host_lock(&arena->lock);
        if (stream) gpi_event_poll(&arena->clocks, stream);
        gpi_host_unlock(&arena->lock);
    }
}

/* While the wait for the first user is queued, another thread sees that the others are done. */
static void users_that_finish_meanwhile(void) {
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 64 * MIB);
    fake_mode(FAKE_STEPPED);
    void *block = get(60 * MIB, 0);
    for (int i = 1; i < 4; i += 2) {
        kit_order(kit_stream[0], kit_stream[i]);
        use(block, i);
    }
    put(block, 0);
    fake_reset_counters();
    fake_before_call("cuStreamWaitEvent", 1, finish_all_streams, NULL);
    CHECK(get(60 * MIB, 2) == block);
    CHECK_EQ(fake_calls("cuStreamWaitEvent"), 1);
    CHECK_EQ(kit_stats(arena).host_syncs, 0);
    kit_fill(kit_stream[2], block, 64, 1);
    put(block, 2);
    run_and_finish();
}

static void look_at_all_streams(void *unused) {
    finish_all_streams(unused);
    gpi_host_lock(&arena->lock);
    gpi_arena_ask_waiting(arena);
    gpi_host_unlock(&arena->lock);
}

/* While the wait for its user is queued, and fails, another thread sees that the user is done, and
   looks at all that waits: the block, which is back only after that, is looked at all the same. */
static void back_after_the_latest_look(void) {
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 64 * MIB);
    fake_mode(FAKE_STEPPED);
    void *block = get(60 * MIB, 0), *again;
    kit_order(kit_stream[0], kit_stream[1]);
    use(block, 1);
    put(block, 0);
    fake_before_call("cuStreamWaitEvent", 1, look_at_all_streams, NULL);
    fake_fail_call("cuStreamWaitEvent", 1, 0, 0);
    again = kit_alloc_as(arena, 60 * MIB, kit_stream[2], GPUPOOL_NO_WAIT);
    CHECK_EQ(fake_fail_fired(), 1);
    fake_fail_clear();
    if (again) put(again, 2);
    trim_none();
    CHECK_EQ(kit_stats(arena).pending.now, 0);
    CHECK(take_without_a_wait(60 * MIB, 2) == block);
    put(block, 2);
    finish();
}

/* ---- waits that fail ---- */

/* The legacy stream waits in the arena's context. Where that cannot be entered, or left, there is
   another way to the memory or an error, and nobody overtakes. */
static void waits_that_cannot_be_queued(void) {
    static const char *const calls[] = {"cuCtxPushCurrent", "cuCtxPopCurrent"};
    for (size_t c = 0; c < KIT_COUNT(calls); c++)
        for (long nth = 1, fired = 1; fired; nth++) {
            check_case("%s %ld", calls[c], nth);
            arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 64 * MIB);
            fake_mode(FAKE_STEPPED);
            void *other = get(4096, 2), *block = get(50 * MIB, 1), *again;
            kit_fill(kit_stream[1], block, 64, 1);
            put(block, 1);
            fake_fail_call(calls[c], nth, 0, 0);
            again = gpupool_alloc(arena, 50 * MIB, 0);
            fired = fake_fail_fired();
            fake_fail_clear();
            CHECK_EQ(cudaSetDevice(0), cudaSuccess); /* a context that was not popped is there */
            kit_capture_globally();
            if (!again) CHECK_RESULT(gpupool_last_result(), GPUPOOL_E_CUDA);
            if (again) kit_fill(0, again, 64, 2);
            if (again) put_on(again, 0);
            fake_run_all();
            CHECK_EQ(fake_failures(), 0);
            put(other, 2);
            finish();
        }
    check_case(" ");
}

/* The wait for the device failed at its end: what it waited with is the arena's until it can be
   given back, and so long there is no end of the arena. */
static void what_a_wait_left(void) {
    void *block;
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 64 * MIB);
    fake_mode(FAKE_STEPPED);
    put(get(40 * MIB, 0), 0);
    arena->clocks.has_captured = 1; /* so that no event goes over all streams */
    fake_fail_call("cuMemFree", 1, 1, 0);
    CHECK(gpupool_alloc(arena, 60 * MIB, kit_stream[1]) == NULL); /* it would have to wait */
    CHECK(fake_fail_fired() > 0);
    block = get(40 * MIB, 0);
    fake_mode(FAKE_EAGER);
    put(block, 0);
    arena->clocks.has_captured = 0;
    CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
    CHECK_EQ(kit_stats(arena).pending.now, 0); /* nothing to wait for any more */
    CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_E_CUDA);
    fake_fail_clear();
    kit_close(arena);
}
#endif

int main(void) {
    FAKE_TEST(waiting_out_of_order);
    FAKE_TEST(waiting_for_the_second_stream);
    FAKE_TEST(waiting_blocks_that_cannot_be_followed);
    FAKE_TEST(followed_without_its_neighbour);
    FAKE_TEST(stitched_where_none_can_be_followed);
    FAKE_TEST(stitched_of_finished_and_unfinished);
    FAKE_TEST(an_idle_stitch_whose_user_is_done);
    FAKE_TEST(followed_into_a_slab);
    FAKE_TEST(what_lies_in_caches_is_waited_for);
    FAKE_TEST(the_older_work_is_waited_for);
    FAKE_TEST(a_finished_run_is_the_first_choice);
    FAKE_TEST(as_long_as_memory_is_short);
    FAKE_TEST(users_that_finish_meanwhile);
    FAKE_TEST(back_after_the_latest_look);
    FAKE_TEST(waits_that_cannot_be_queued);
    FAKE_TEST(what_a_wait_left);
    return check_finish();
}
