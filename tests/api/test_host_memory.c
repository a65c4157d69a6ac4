/* The host has no memory for records: the call says so and has changed nothing, and it succeeds
   when it is made again. */
#define LINKED 1
#include "support/fail_malloc.h"

#include "gpupool.h"
#include "kit.h"

#define A kit_stream[0]
#define B kit_stream[1]

static gpupool_arena *arena;

/* Makes the n-th request for host memory from now fail; 0: none. */
static void fail(long n) {
    fail_malloc_nth(n, 0);
}

/* Whether a call failed: then it says why. */
static int has_failed(int is_ok) {
    if (!is_ok) CHECK_EQ(gpupool_last_result(), GPUPOOL_E_HOST_MEMORY);
    return !is_ok;
}

/* Every record that grows: streams, chunks, stitches, scopes. Returns how many calls failed. */
static int work(void) {
    void *blocks[6] = {NULL}, *large = NULL;
    gpupool_capture *scope = NULL;
    int failed = 0, i;
    for (i = 0; i < 6; i++) {
        blocks[i] = gpupool_alloc(arena, 8 * MIB, kit_stream[i % 3]);
        failed += has_failed(blocks[i] != NULL);
    }
    for (i = 0; i < 6; i += 2) {
        if (!blocks[i] ||
            has_failed(gpupool_free(arena, blocks[i], kit_stream[i % 3]) == GPUPOOL_OK))
            continue; /* a free on a stream that is new needs a record, too */
        blocks[i] = NULL;
    }
    large = gpupool_alloc(arena, 24 * MIB, A);
    failed += has_failed(large != NULL);
    failed += has_failed(gpupool_begin_capture(arena, B, &scope) == GPUPOOL_OK);
    if (scope) CHECK_RESULT(gpupool_release_capture(scope), GPUPOOL_OK);
    if (large) kit_free(arena, large, A);
    for (i = 0; i < 6; i++)
        if (blocks[i]) kit_free(arena, blocks[i], kit_stream[i % 3]);
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    CHECK_EQ(kit_stats(arena).blocks, 0);
    return failed;
}

static void each_request_fails(void) {
    int n = 1, fired;
    do {
        check_case("host request %d", n);
        arena = kit_open(48 * MIB);
        fail(n++);
        fired = work() > 0;
        fail(0);
        CHECK_EQ(work(), 0); /* the same once more */
        kit_close(arena);
        CHECK_EQ(fail_malloc_live, 0);
    } while (fired && n < 1000);
    printf("%d host requests failed in turn\n", n - 2);
    CHECK(n > 4 && n < 1000);
}

/* A host function's free needs a record of its own. */
static void in_a_host_function(void) {
    void *block;
    arena = kit_open(0);
    block = gpupool_alloc(arena, 1000, A);
    fail(1);
    KIT_REFUSES(gpupool_free_in_host_function(arena, block), GPUPOOL_E_HOST_MEMORY, "memory");
    fail(0);
    CHECK_EQ(kit_stats(arena).blocks, 1);
    CHECK_RESULT(gpupool_free_in_host_function(arena, block), GPUPOOL_OK);
    CHECK_EQ(kit_stats(arena).blocks, 0);
    kit_close(arena);
    CHECK_EQ(fail_malloc_live, 0);
}

int main(void) {
    KIT_TEST(each_request_fails);
    KIT_TEST(in_a_host_function);
    return check_finish();
}
