// build: plain -O1
/* What calls cost, in instructions, or by fakecuda's prices; never in time. Each scene is a fault
   that an earlier edition had. */
#define _GNU_SOURCE
#include <pthread.h>

#include "gpupool.h"
#include "kit.h"
#include "steps_kit.h"

#if CHECK_FAKE

#define A kit_stream[0]

static gpupool_arena *arena;

/* The sections of a scene, in instructions. 0: this machine does not count them. */
static int count(void (*scene)(void), long counts[STEPS_SECTIONS], int sections) {
    int seen = steps_count(scene, counts);
    if (seen < 0) check_skip("instructions", "no program may step another here");
    else CHECK_EQ(seen, sections);
    return seen == sections;
}

/* ---- a small block after threads have met ---- */

static void pairs(int count_of) {
    for (int i = 0; i < count_of; i++) kit_free(arena, gpupool_alloc(arena, 1000, A), A);
}

static void *meet(void *user) {
    for (int i = 0; i < 20000; i++) {
        void *block = gpupool_alloc(arena, (size_t)(i % 3 ? 1000 : 40000), A);
        gpupool_free(arena, block, A);
    }
    return user;
}

static void pairs_around_a_crowd(void) {
    pthread_t threads[4];
    kit_prepare();
    arena = kit_open(0);
    pairs(100);
    steps_begin();
    pairs(10);
    steps_end();
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, meet, NULL);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    pairs(100);
    steps_begin();
    pairs(10);
    steps_end();
    kit_close(arena);
    kit_settle();
}

static void cheap_after_a_crowd(void) {
    long counts[STEPS_SECTIONS];
    if (!count(pairs_around_a_crowd, counts, 2)) return;
    printf("a pair: %ld instructions, after a crowd %ld\n", counts[0] / 10, counts[1] / 10);
    CHECK(counts[1] < counts[0] + counts[0] / 4);
}

/* ---- scopes ---- */

static gpupool_capture *one_scope(void) {
    gpupool_capture *scope = NULL;
    CHECK_RESULT(gpupool_begin_capture(arena, A, &scope), GPUPOOL_OK);
    kit_free(arena, gpupool_alloc(arena, 1000, A), A);
    CHECK_RESULT(gpupool_end_capture(scope), GPUPOOL_OK);
    return scope;
}

static void release(gpupool_capture *scope) {
    CHECK_RESULT(gpupool_release_capture(scope), GPUPOOL_OK);
}

static void scope_beside_others(void) {
    static gpupool_capture *kept[2000];
    int i;
    kit_prepare();
    arena = kit_open(0);
    for (i = 0; i < 10; i++) release(one_scope());
    steps_begin();
    release(one_scope());
    steps_end();
    for (i = 0; i < 2000; i++) kept[i] = one_scope();
    release(one_scope());
    steps_begin();
    release(one_scope());
    steps_end();
    for (i = 0; i < 2000; i++) release(kept[i]);
    kit_close(arena);
    kit_settle();
}

static void scopes_cost_the_same(void) {
    long counts[STEPS_SECTIONS];
    if (!count(scope_beside_others, counts, 2)) return;
    printf("a scope: %ld instructions, beside 2,000 kept ones %ld\n", counts[0], counts[1]);
    CHECK(counts[1] < 2 * counts[0]);
}

/* ---- the growing buffer ---- */

/* A new buffer for each step, a little larger than the one before, which is freed after it. By
   fakecuda's prices a step may cost 2 us, and the mapping budget once 0.4 s. */
static void growing_buffer(void) {
    enum { STEPS = 20000 };
    size_t bytes = 100 * MIB;
    void *buffer;
    uint64_t before;
    arena = kit_open(0);
    buffer = gpupool_alloc(arena, bytes, A);
    before = fake_driver_ns();
    for (int i = 0; i < STEPS; i++) {
        void *larger = gpupool_alloc(arena, bytes += 8 * KIB, A);
        CHECK(larger);
        kit_free(arena, buffer, A);
        buffer = larger;
    }
    printf("a growing buffer: %llu ns a step, reserved %llu MiB for %zu\n",
           (unsigned long long)(fake_driver_ns() - before) / STEPS,
           (unsigned long long)kit_stats(arena).reserved.peak >> 20, bytes >> 20);
    CHECK(fake_driver_ns() - before < STEPS * 2000ull + 400000000);
    kit_free(arena, buffer, A);
    kit_close(arena);
}

int main(void) {
    TEST(cheap_after_a_crowd); /* these two in a child, so before any call of CUDA */
    TEST(scopes_cost_the_same);
    KIT_TEST(growing_buffer);
    return check_finish();
}

#else
int main(void) {
    check_skip("cost", "counts fakecuda's calls");
    return check_finish();
}
#endif
