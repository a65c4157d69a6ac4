/* on_out_of_memory: it is asked when nothing else helps, may free and allocate, and the request is
   tried once more if it says so. */
#include "gpupool.h"
#include "kit.h"

#define A kit_stream[0]
#define LIMIT (16 * MIB)

typedef struct program {
    gpupool_arena *arena;
    void *spare[4]; /* what the program can do without */
    int spares, calls, nested;
    gpupool_cause cause;
    uint64_t asked;
} program;

static program p;

/* Frees what the request asks for, or all that there is. */
static int give(const gpupool_verdict *verdict, void *user) {
    program *own = (program *)user;
    uint64_t given = 0;
    own->calls++;
    own->cause = verdict->cause;
    own->asked = verdict->asked;
    for (; own->spares && given < verdict->asked; given += 4 * MIB)
        kit_free(own->arena, own->spare[--own->spares], A);
    return given > 0;
}

static void begin(int (*ask)(const gpupool_verdict *, void *), int spares) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED, LIMIT);
    memset(&p, 0, sizeof p);
    config.on_out_of_memory = ask;
    config.user = &p;
    p.arena = kit_create(&config);
    while (p.spares < spares) {
        p.spare[p.spares] = gpupool_alloc(p.arena, 4 * MIB, A);
        CHECK(p.spare[p.spares++]);
    }
}

/* Nobody is asked as long as there is memory, nor when the host may wait for some. */
static void not_without_need(void) {
    begin(give, 4);
    while (p.spares) kit_free(p.arena, p.spare[--p.spares], A);
    kit_free(p.arena, gpupool_alloc(p.arena, LIMIT, kit_stream[1]), A);
    CHECK_EQ(p.calls, 0);
    kit_close(p.arena);
}

static void asked_once(void) {
    void *block;
    begin(give, 4);
    block = gpupool_alloc(p.arena, 12 * MIB, A);
    CHECK(block);
    CHECK_EQ(p.calls, 1);
    CHECK_EQ(p.cause, GPUPOOL_CAUSE_LIMIT);
    CHECK_EQ(p.asked, 12 * MIB);
    CHECK_EQ(kit_stats(p.arena).failures, 0);
    kit_free(p.arena, block, A);
    kit_free(p.arena, p.spare[0], A);
    kit_close(p.arena);
}

static void refuses(void) {
    begin(give, 1);
    CHECK(!gpupool_alloc(p.arena, LIMIT + 1, A));
    CHECK_EQ(p.calls, 1); /* the request is tried once more, and fails */
    CHECK_EQ(gpupool_last_result(), GPUPOOL_E_OUT_OF_MEMORY);
    CHECK_EQ(gpupool_last_verdict()->asked, LIMIT + 1);
    CHECK_EQ(gpupool_last_verdict()->allocated, 0);
    CHECK_EQ(kit_stats(p.arena).failures, 1);
    kit_close(p.arena);
}

/* A request that the function itself makes fails without asking it again. */
static int ask_inside(const gpupool_verdict *verdict, void *user) {
    program *own = (program *)user;
    void *block;
    (void)verdict;
    own->calls++;
    CHECK(!gpupool_alloc(own->arena, LIMIT + 1, A));
    CHECK_EQ(gpupool_last_result(), GPUPOOL_E_OUT_OF_MEMORY);
    block = gpupool_alloc(own->arena, MIB, A); /* what there is it may have */
    CHECK(block);
    kit_free(own->arena, block, A);
    return 0;
}

static void not_inside_itself(void) {
    begin(ask_inside, 0);
    CHECK(!gpupool_alloc(p.arena, LIMIT + 1, A));
    CHECK_EQ(p.calls, 1);
    CHECK(!gpupool_alloc(p.arena, LIMIT + 1, A)); /* but in the next request it is */
    CHECK_EQ(p.calls, 2);
    kit_close(p.arena);
}

/* In whatever it calls: also what is another arena's. */
static int use_cuda(const gpupool_verdict *verdict, void *user) {
    program *own = (program *)user;
    gpupool_stats stats;
    (void)verdict;
    own->calls++;
    CHECK_RESULT(gpupool_get_stats(own->arena, &stats), GPUPOOL_OK);
    CHECK_EQ(stats.reserved.now, LIMIT);
    CHECK_EQ(cudaStreamSynchronize(A), cudaSuccess);
    CHECK_RESULT(gpupool_check(own->arena), GPUPOOL_OK);
    CHECK_RESULT(gpupool_set_limit(own->arena, 2 * LIMIT), GPUPOOL_OK);
    return 1;
}

static void may_raise_the_limit(void) {
    void *block;
    begin(use_cuda, 4);
    block = gpupool_alloc(p.arena, LIMIT, A);
    CHECK(block);
    CHECK_EQ(p.calls, 1);
    kit_free(p.arena, block, A);
    while (p.spares) kit_free(p.arena, p.spare[--p.spares], A);
    kit_close(p.arena);
}

/* A request with NO_WAIT asks too: the function is the program's own, and need not wait. */
static void without_waiting(void) {
    begin(give, 4);
    void *block = kit_alloc_as(p.arena, 4 * MIB, 0, A, GPUPOOL_NO_WAIT);
    CHECK(block);
    CHECK_EQ(p.calls, 1);
    CHECK_EQ(kit_stats(p.arena).host_waits, 0);
    kit_free(p.arena, block, A);
    while (p.spares) kit_free(p.arena, p.spare[--p.spares], A);
    kit_close(p.arena);
}

int main(void) {
    KIT_TEST(not_without_need);
    KIT_TEST(asked_once);
    KIT_TEST(refuses);
    KIT_TEST(not_inside_itself);
    KIT_TEST(may_raise_the_limit);
    KIT_TEST(without_waiting);
    return check_finish();
}
