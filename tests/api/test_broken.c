/* CUDA fails. What can be undone is: the call fails and changes nothing. After any other failure
   the arena is broken: requests say why, with the first cause, frees succeed, and destroy ends. */
#include "gpupool.h"
#include "kit.h"

#define A kit_stream[0]
#define B kit_stream[1]

#if CHECK_FAKE

static gpupool_arena *arena;

/* Every request now fails so, with the first cause's name. */
static void is_broken(const char *cause) {
    for (int i = 0; i < 2; i++) {
        KIT_FAILS(gpupool_alloc(arena, 1000, A), GPUPOOL_E_CUDA, cause);
        KIT_FAILS(gpupool_alloc(arena, 10 * MIB, GPUPOOL_NO_STREAM), GPUPOOL_E_CUDA, cause);
    }
}

/* Drops what CUDA kept, which is not the arena's fault, and the test's streams with it. */
static void drop_the_rest(void) {
    CHECK_EQ(fake_failures(), 0);
    CHECK_EQ(fake_misuses(), 0);
    fake_fail_clear();
    memset(kit_stream, 0, sizeof kit_stream);
    fake_quiet(1);
    fake_reset();
    fake_quiet(0);
}

/* ---- one call that must not fail ---- */

static void unmap_fails(void) {
    void *live, *small;
    arena = kit_open(0);
    live = gpupool_alloc(arena, 4 * MIB, A);
    small = gpupool_alloc(arena, 1000, A);
    kit_free(arena, gpupool_alloc(arena, 20 * MIB, A), A);
    fake_fail_call("cuMemUnmap", 1, 0, 0);
    KIT_REFUSES(gpupool_trim(arena, 0), GPUPOOL_E_CUDA, "cuMemUnmap");
    is_broken("cuMemUnmap");
    kit_write(live, 4 * MIB, A, 1); /* what is live stays so */
    kit_verify(live, 4 * MIB, A, 1);
    kit_free(arena, live, A);
    kit_free(arena, small, B);
    CHECK_EQ(kit_stats(arena).blocks, 0);
    is_broken("cuMemUnmap");
    gpupool_arena_destroy(arena);
    CHECK_EQ(cudaGetLastError(), cudaSuccess);
    drop_the_rest();
}

/* A broken arena is ended with whatever is live, and with open scopes. */
static void ends_while_in_use(void) {
    gpupool_capture *scope = NULL;
    arena = kit_open(0);
    CHECK(gpupool_alloc(arena, 4 * MIB, A));
    CHECK_RESULT(gpupool_begin_capture(arena, B, &scope), GPUPOOL_OK);
    kit_free(arena, gpupool_alloc(arena, 20 * MIB, A), A);
    fake_fail_call("cuMemUnmap", 1, 0, 0);
    KIT_REFUSES(gpupool_trim(arena, 0), GPUPOOL_E_CUDA, "cuMemUnmap");
    CHECK(gpupool_arena_destroy(arena) != GPUPOOL_E_IN_USE);
    drop_the_rest();
}

/* ---- a resource call ---- */

/* The request fails, or does without; nothing is lost, and the next one succeeds. */
static void resource_calls(void) {
    int n;
    for (n = 1; n < 200; n++) {
        void *blocks[4], *large;
        long fired;
        int i;
        check_case("resource call %d", n);
        arena = kit_open(32 * MIB);
        fake_fail_resource(n);
        for (i = 0; i < 4; i++) {
            blocks[i] = gpupool_alloc(arena, 8 * MIB, kit_stream[i % 2]);
            if (!blocks[i]) blocks[i] = gpupool_alloc(arena, 8 * MIB, kit_stream[i % 2]);
            CHECK(blocks[i]);
        }
        for (i = 0; i < 4; i += 2) kit_free(arena, blocks[i], kit_stream[i % 2]);
        large = gpupool_alloc(arena, 16 * MIB, B);
        if (!large) large = gpupool_alloc(arena, 16 * MIB, B);
        CHECK(large);
        kit_write(large, 16 * MIB, B, n);
        CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
        CHECK(kit_stats(arena).reserved.now <= 32 * MIB);
        kit_free(arena, large, B);
        for (i = 1; i < 4; i += 2) kit_free(arena, blocks[i], kit_stream[i % 2]);
        fired = fake_fail_fired();
        fake_fail_clear();
        kit_close(arena);
        if (!fired) break;
    }
    CHECK(n > 5 && n < 200);
    CHECK_EQ(cudaGetLastError(), cudaSuccess);
}

/* ---- the device breaks ---- */

/* Whatever call it is that fails, and every one after it: frees are OK, and destroy ends. */
static void work(void) {
    void *blocks[8];
    int i, round;
    for (round = 0; round < 3; round++) {
        for (i = 0; i < 8; i++) {
            size_t bytes = i % 2 ? 4 * MIB : 3000;
            blocks[i] = gpupool_alloc(arena, bytes, kit_stream[i % 3]);
            if (!blocks[i] && gpupool_last_result() != GPUPOOL_E_OUT_OF_MEMORY)
                CHECK_EQ(gpupool_last_result(), GPUPOOL_E_CUDA);
        }
        for (i = 0; i < 8; i++) CHECK_RESULT(gpupool_free(arena, blocks[i], A), GPUPOOL_OK);
        gpupool_trim(arena, 0);
    }
}

static void device_breaks(void) {
    int n;
    for (n = 1; n < 2000; n += 1 + n / 20) {
        gpupool_stats stats;
        int is_over;
        check_case("call %d", n);
        kit_prepare();
        fake_quiet(1);
        arena = kit_open(16 * MIB);
        fake_break(n);
        work();
        is_over = !fake_is_broken();
        if (!is_over) { /* and there is no way back, in which its records could be wrong */
            CHECK(!gpupool_alloc(arena, 12 * MIB, A));
            CHECK_EQ(gpupool_last_result(), GPUPOOL_E_CUDA);
            CHECK_RESULT(gpupool_get_stats(arena, &stats), GPUPOOL_OK);
            CHECK_EQ(stats.blocks, 0);
        }
        CHECK(gpupool_arena_destroy(arena) != GPUPOOL_E_IN_USE);
        drop_the_rest();
        if (is_over) break;
    }
    CHECK(n > 20 && n < 2000);
}

/* ---- the user's mistakes (O11) ---- */

/* A call that names the program's stream fails with that call: the arena goes on. */
static void calls_that_name_a_stream(void) {
    static const char *const calls[] = {"cuEventRecord", "cuStreamWaitEvent", "cuEventCreate",
                                        "cuMemsetD8Async"};
    for (size_t i = 0; i < KIT_COUNT(calls); i++) {
        check_case("%s", calls[i]);
        arena = kit_open(32 * MIB);
        kit_free(arena, gpupool_alloc(arena, MIB, B), B);
        fake_mode(FAKE_STEPPED);
        fake_fail_call(calls[i], 1, 1, 0);
        for (int k = 0; k < 6; k++) {
            void *block = kit_alloc_as(arena, 20 * MIB, 0, kit_stream[k % 3], GPUPOOL_ZEROED);
            if (!block) continue;
            gpupool_record_stream(arena, block, kit_stream[2]);
            kit_free(arena, block, kit_stream[k % 3]);
        }
        CHECK(fake_fail_fired() > 0);
        fake_fail_clear();
        fake_mode(FAKE_EAGER);
        kit_free(arena, gpupool_alloc(arena, 20 * MIB, A), A);
        CHECK_EQ(kit_stats(arena).blocks, 0);
        kit_close(arena);
    }
}

int main(void) {
    KIT_TEST(unmap_fails);
    KIT_TEST(ends_while_in_use);
    KIT_TEST(resource_calls);
    KIT_TEST(device_breaks);
    KIT_TEST(calls_that_name_a_stream);
    return check_finish();
}

#else
int main(void) {
    check_skip("broken", "needs fakecuda's faults");
    return check_finish();
}
#endif
