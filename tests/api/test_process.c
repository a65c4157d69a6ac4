// build: asan -fsanitize=address,undefined
// build: tsan -fsanitize=thread
/* Many threads in one process: they share an arena while another reports on it, and arenas come
   and go beside others. */
#define _GNU_SOURCE
#include <pthread.h>
#include <unistd.h>

#include "gpupool.h"
#include "kit.h"

#define A kit_stream[0]
#define THREADS 6

/* ---- threads ---- */

static gpupool_arena *shared;
static atomic_int wrong;

static pthread_t threads[THREADS];
static atomic_int running;

static void begin_threads(void *(*body)(void *)) {
    atomic_store(&wrong, 0);
    atomic_store(&running, THREADS);
    for (int i = 0; i < THREADS; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, body, (void *)(intptr_t)i), 0);
}

static void end_threads(void) {
    for (int i = 0; i < THREADS; i++) CHECK_EQ(pthread_join(threads[i], NULL), 0);
    CHECK_EQ(atomic_load(&wrong), 0);
}

/* Each has blocks of its own bytes on its own stream, small ones and large ones, some with a label.
 */
static void *allocate(void *user) {
    static const char *const labels[] = {"first", "second", NULL};
    int number = (int)(intptr_t)user;
    cudaStream_t stream = kit_stream[number % KIT_STREAMS];
    uint64_t seed = (uint64_t)number;
    void *blocks[16] = {NULL};
    for (int i = 0; i < 1500; i++) {
        int at = (int)check_below(&seed, 16);
        size_t bytes = 1 + check_below(&seed, (size_t)1 << (9 + check_below(&seed, 12)));
        gpupool_request request = {bytes, 0, stream, 0, labels[i % 3]};
        if (blocks[at]) wrong += gpupool_free(shared, blocks[at], stream) != GPUPOOL_OK;
        blocks[at] = gpupool_alloc_request(shared, &request);
        wrong += !blocks[at] || cudaMemsetAsync(blocks[at], number, bytes, stream) != cudaSuccess;
    }
    for (int at = 0; at < 16; at++)
        if (blocks[at]) wrong += gpupool_free(shared, blocks[at], stream) != GPUPOOL_OK;
    atomic_fetch_sub(&running, 1);
    return NULL;
}

static int is_a_threads_label(const gpupool_part *part, void *user) {
    const char *label = part->block.label;
    (void)user;
    CHECK(!label || !strcmp(label, "first") || !strcmp(label, "second"));
    return 0;
}

/* Whatever others do: walks, reports, what is available, and a verdict. */
static void report(FILE *file) {
    size_t available = 0;
    CHECK_RESULT(gpupool_walk_blocks(shared, is_a_threads_label, NULL), GPUPOOL_OK);
    CHECK_RESULT(gpupool_report(shared, file), GPUPOOL_OK);
    CHECK_RESULT(gpupool_write_json(shared, file), GPUPOOL_OK);
    CHECK_RESULT(gpupool_get_available(shared, A, &available), GPUPOOL_OK);
    CHECK(available <= 256 * MIB);
}

static void threads_share_an_arena(void) {
    FILE *null = fopen("/dev/null", "w");
    gpupool_stats stats;
    shared = kit_open(256 * MIB);
    begin_threads(allocate);
    for (int rounds = 0; atomic_load(&running) || rounds < 3; rounds++) {
        report(null);
        if (rounds % 100) continue; /* after a failure caches are not used for a while */
        KIT_FAILS(gpupool_alloc(shared, 257 * MIB, A), GPUPOOL_E_OUT_OF_MEMORY, "does not fit");
    }
    end_threads();
    fclose(null);
    stats = kit_stats(shared);
    CHECK_EQ(stats.blocks, 0);
    CHECK_EQ(stats.frees, THREADS * 1500);
    CHECK_EQ(stats.allocated.now, 0);
    kit_close(shared);
}

/* ---- memory that a thread is giving back (O10) ---- */

#if CHECK_FAKE
static void *get_more_than_is_left(void *user) {
    *(void **)user = gpupool_alloc(shared, 24 * MIB, A);
    return NULL;
}

static pthread_t waiting;

static void another_comes(void *user) {
    CHECK_EQ(pthread_create(&waiting, NULL, get_more_than_is_left, user), 0);
    usleep(50000);
}

static void waits_for_what_is_given_back(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_DEVICE, 32 * MIB);
    void *block = NULL;
    shared = kit_create(&config);
    kit_free(shared, gpupool_alloc(shared, 16 * MIB, A), A);
    fake_before_call("cuMemFree", 1, another_comes, &block);
    CHECK_RESULT(gpupool_trim(shared, 0), GPUPOOL_OK);
    CHECK_EQ(pthread_join(waiting, NULL), 0);
    CHECK(block);
    kit_free(shared, block, A);
    kit_close(shared);
}
#else
static void waits_for_what_is_given_back(void) {
}
#endif

/* Arenas come and go in all threads, while streams are retired in all arenas. */
static void *create_and_destroy(void *user) {
    int number = (int)(intptr_t)user;
    for (int i = 0; i < 25; i++) {
        gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_AUTO, 16 * MIB);
        gpupool_arena *own = NULL;
        cudaStream_t stream;
        void *block;
        wrong += gpupool_arena_create(&own, &config) != GPUPOOL_OK;
        wrong += cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess;
        block = gpupool_alloc(own, 5000, stream);
        wrong += !block || cudaMemsetAsync(block, number, 5000, stream) != cudaSuccess;
        wrong += gpupool_free(own, block, stream) != GPUPOOL_OK;
        wrong += gpupool_retire_stream(stream) != GPUPOOL_OK;
        wrong += cudaStreamDestroy(stream) != cudaSuccess;
        wrong += gpupool_arena_destroy(own) != GPUPOOL_OK;
    }
    return NULL;
}

static void threads_have_arenas(void) {
#if CHECK_FAKE
    fake_device_memory(0, (size_t)1 << 30); /* an arena reserves many times the device's size, and
                                               fakecuda has few addresses, and none twice */
#endif
    shared = kit_open(0);
    begin_threads(create_and_destroy);
    end_threads();
    kit_free(shared, gpupool_alloc(shared, 1000, A), A);
    kit_close(shared);
}

int main(void) {
    KIT_TEST(threads_share_an_arena);
    KIT_FAKE_TEST(waits_for_what_is_given_back);
    KIT_TEST(threads_have_arenas);
    return check_finish();
}
