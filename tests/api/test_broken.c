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

/* ---- the device breaks ---- */

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
    KIT_TEST(calls_that_name_a_stream);
    return check_finish();
}

#else
int main(void) {
    check_skip("broken", "needs fakecuda's faults");
    return check_finish();
}
#endif
