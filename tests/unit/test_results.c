/* Every result of the API, produced by a real call at least once. */
#define _DEFAULT_SOURCE /* fork */
#define GPUPOOL_GUARD 1
#include "fail_malloc.h"
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "arena_kit.h"

#include <sys/wait.h>
#include <unistd.h>

static void results_of_pointers(void) {
    gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_AUTO);
    char *block = (char *)kit_alloc(arena, 5000, kit_stream[0]);
    int here = 0;
    CHECK_RESULT(gpupool_free(arena, &here, kit_stream[0]), GPUPOOL_E_NOT_OURS);
    CHECK_RESULT(gpupool_free(arena, block + 512, kit_stream[0]), GPUPOOL_E_INSIDE);
    CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_E_IN_USE);
    kit_fill(kit_stream[0], block + 5000, 1, 1);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_E_OVERRUN);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_E_DOUBLE_FREE);
    CHECK_RESULT(gpupool_free(NULL, block, kit_stream[0]), GPUPOOL_E_ARGUMENT);
    kit_close(arena);
}

/* What only asks is a latest call, too, and has not failed. */
static void results_of_questions(void) {
    gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_AUTO);
    CHECK_RESULT(kit_why(gpupool_alloc(arena, 0, kit_stream[0])), GPUPOOL_E_ARGUMENT);
    CHECK_EQ(kit_limit(arena), 0);
    CHECK_RESULT(gpupool_last_result(), GPUPOOL_OK);
    CHECK_RESULT(kit_why(gpupool_alloc(arena, 0, kit_stream[0])), GPUPOOL_E_ARGUMENT);
    CHECK(kit_available(arena) > 0);
    CHECK_RESULT(gpupool_last_result(), GPUPOOL_OK);
    kit_close(arena);
}

static void results_of_sleep(void) {
    gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    void *block = kit_alloc(arena, MIB, kit_stream[0]);
    CHECK_RESULT(gpupool_sleep(arena, GPUPOOL_ALL, GPUPOOL_DISCARD, NULL), GPUPOOL_OK);
    CHECK_RESULT(kit_why(gpupool_alloc(arena, 1, kit_stream[0])), GPUPOOL_E_ASLEEP);
    CHECK_RESULT(gpupool_wake(arena, GPUPOOL_ALL, NULL), GPUPOOL_OK);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
    kit_close(arena);
}

static void results_of_shortage(void) {
    gpupool_arena *arena = kit_open_limited(GPUPOOL_SOURCE_AUTO, 4 * MIB);
    CHECK_RESULT(kit_why(gpupool_alloc(arena, 5 * MIB, kit_stream[0])),
                 GPUPOOL_E_OUT_OF_MEMORY);
    kit_close(arena);
    fail_malloc_nth(1, 1);
    gpupool_arena *none = NULL;
    CHECK_RESULT(gpupool_arena_create(&none, NULL), GPUPOOL_E_HOST_MEMORY);
    CHECK(none == NULL && gpupool_last_error()[0] != 0);
    fail_malloc_nth(0, 0);
    CHECK_EQ(fail_malloc_live, 0);
}

#if CHECK_FAKE
/* What CUDA does not take back is lost, but nothing of the host's is; and why it failed is told. */
static void a_creation_that_cannot_be_undone(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
    gpupool_arena *none = NULL;
    config.reserve_bytes = 256 * MIB;
    fake_device_memory(0, 64 * MIB);
    fake_fail_call("cuMemAddressFree", 1, 1, 0);
    CHECK_RESULT(gpupool_arena_create(&none, &config), GPUPOOL_E_OUT_OF_MEMORY);
    CHECK_EQ(fake_fail_fired() > 0, 1);
    CHECK(none == NULL && strstr(gpupool_last_error(), "cuMemAddressFree") == NULL);
    CHECK_EQ(fail_malloc_live, 0);
    fake_fail_clear();
    CHECK(kit_drop_the_rest() > 0); /* the addresses */
}

/* Memory that was unmapped, and which CUDA did not take back before it was reset. */
static void a_reset_beside_memory_without_addresses(void) {
    gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    CHECK_RESULT(gpupool_free(arena, kit_alloc(arena, MIB, kit_stream[0]), kit_stream[0]),
                 GPUPOOL_OK);
    CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
    fake_fail_call("cuMemRelease", 1, 1, 0);
    CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_E_CUDA);
    fake_fail_clear();
    CHECK(arena->chunks.stuck != NULL);
    CHECK_EQ(cudaDeviceReset(), cudaSuccess);
    for (int i = 0; i < KIT_STREAMS; i++) kit_stream[i] = NULL;
    CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_OK);
    CHECK_EQ(fail_malloc_live, 0);
}
#endif

/* An event recorded in a capture stands for a moment of the graph, and not of this stream. */
static void results_of_capture(void) {
    gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_AUTO);
    void *block = kit_alloc(arena, 5000, kit_stream[0]);
    cudaGraph_t graph = NULL;
    CHECK_EQ(cudaStreamBeginCapture(kit_stream[1], cudaStreamCaptureModeThreadLocal), cudaSuccess);
    CHECK_RESULT(gpupool_record_stream(arena, block, kit_stream[1]), GPUPOOL_E_CAPTURING);
    CHECK_EQ(cudaStreamEndCapture(kit_stream[1], &graph), cudaSuccess);
    CHECK_EQ(cudaGraphDestroy(graph), cudaSuccess);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
    kit_close(arena);
}

/* In the child a CUDA call would hang or fail, so none may be tried: E_FORKED comes before it. */
static gpupool_result first_wrong_in_a_child(gpupool_arena *arena, void *block) {
    gpupool_result got[] = {
        kit_why(gpupool_alloc(arena, 100, kit_stream[0])),
        kit_why(gpupool_alloc_aligned(arena, 100, 64, kit_stream[0])),
        kit_why(gpupool_zalloc(arena, 100, kit_stream[0])),
        gpupool_free(arena, block, kit_stream[0]),
        gpupool_record_stream(arena, block, kit_stream[0]),
        gpupool_trim(arena, 0, NULL),
        gpupool_set_limit(arena, MIB),
        gpupool_retire_stream(arena, kit_stream[0]),
        gpupool_arena_destroy(arena),
    };
    for (size_t i = 0; i < KIT_COUNT(got); i++)
        if (got[i] != GPUPOOL_E_FORKED) return got[i] ? got[i] : GPUPOOL_E_ARGUMENT;
    return GPUPOOL_E_FORKED;
}

static void results_in_a_child(void) {
    gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_AUTO);
    void *block = kit_alloc(arena, 5000, kit_stream[0]);
    fflush(stdout);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) _exit((int)first_wrong_in_a_child(arena, block));
    int status = -1;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK(WIFEXITED(status));
    CHECK_RESULT((gpupool_result)WEXITSTATUS(status), GPUPOOL_E_FORKED);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK); /* the parent goes on */
    kit_close(arena);
}

static int refuse(void *to, size_t bytes, uint64_t offset, void *user) {
    (void)to, (void)bytes, (void)offset, (void)user;
    return 1;
}

static void results_of_a_ring(void) {
    gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_AUTO);
    void *block = kit_alloc(arena, MIB, kit_stream[0]);
    gpupool_ring *ring;
    gpupool_span span, other;
    CHECK_RESULT(gpupool_ring_create(&ring, NULL), GPUPOOL_OK);
    CHECK_RESULT(kit_upload_from(ring, block, MIB, refuse, NULL, kit_stream[0]),
                 GPUPOOL_E_CALLBACK);
    CHECK_RESULT(gpupool_upload_file(ring, block, -1, 0, MIB, kit_stream[0]), GPUPOOL_E_FILE);
    CHECK_RESULT(gpupool_ring_acquire_span(ring, GPUPOOL_RING_BYTES, -1, &span), GPUPOOL_OK);
    CHECK_RESULT(gpupool_ring_acquire_span(ring, 1, -1, &other), GPUPOOL_E_TIMEOUT);
    CHECK_RESULT(gpupool_ring_cancel_span(ring, &span), GPUPOOL_OK);
    CHECK_RESULT(gpupool_ring_destroy(ring), GPUPOOL_OK);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
    kit_close(arena);
}

#if CHECK_FAKE
static void results_of_the_device(void) {
    gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_DEVICE);
    fake_fail_call("cuMemAlloc", 1, 0, cudaErrorUnknown);
    CHECK_RESULT(kit_why(gpupool_alloc(arena, 100, kit_stream[0])), GPUPOOL_E_CUDA);
    CHECK(strstr(gpupool_last_error(), "cuMemAlloc") != NULL);
    CHECK(strstr(gpupool_last_error(), "CUDA_ERROR_UNKNOWN") != NULL);
    fake_fail_clear();
    kit_close(arena);
    fake_fail_call("cudaGetDeviceCount", 1, 0, cudaErrorUnknown);
    CHECK_RESULT(gpupool_arena_create(&arena, NULL), GPUPOOL_E_CUDA);
    fake_fail_clear();
    fake_device_vmm(0, 0);
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
    CHECK_RESULT(gpupool_arena_create(&arena, &config), GPUPOOL_E_UNSUPPORTED);
}
#endif

static void results_of_damage(void) {
    gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_DEVICE);
    arena->tree.live_units++;
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_E_CORRUPT);
    arena->tree.live_units--;
    kit_close(arena);
}

static void every_result_was_produced(void) {
    for (int code = 0; code < CHECK_CODES; code++) {
        const char *excuse = NULL;
        if (!CHECK_FAKE && (code == (int)GPUPOOL_E_CUDA || code == (int)GPUPOOL_E_UNSUPPORTED))
            excuse = "needs fakecuda's controls";
        long seen = atomic_load(&check_seen[code]);
        const char *name = gpupool_result_name((gpupool_result)code);
        if (excuse) printf("%s is not tested: %s\n", name, excuse);
        if (!seen && !excuse) check_fail(__FILE__, __LINE__, "%s was never produced", name);
        if (seen && excuse) check_fail(__FILE__, __LINE__, "%s needs no excuse any more", name);
    }
}

int main(void) {
    ARENA_TEST(results_of_pointers);
    ARENA_TEST(results_of_questions);
    ARENA_TEST(results_of_sleep);
    ARENA_TEST(results_of_shortage);
    FAKE_TEST(a_creation_that_cannot_be_undone);
    FAKE_TEST(a_reset_beside_memory_without_addresses);
    ARENA_TEST(results_of_capture);
    ARENA_TEST(results_in_a_child);
    ARENA_TEST(results_of_a_ring);
    FAKE_TEST(results_of_the_device);
    ARENA_TEST(results_of_damage);
    TEST(every_result_was_produced);
    return check_finish();
}
