// build: tsan -fsanitize=thread
/* Reports, walks, verdicts and get_available while other threads allocate and free by their caches.
 */
#include <pthread.h>

#include "gpupool.h"
#include "kit.h"

enum { WORKERS = 3, ROUNDS = 20000 };

static gpupool_arena *arena;
static atomic_int working;

static void *work(void *user) {
    static const char *const labels[] = {"first", "second", NULL};
    cudaStream_t stream = *(cudaStream_t *)user;
    void *blocks[8] = {0};
    for (int i = 0; i < ROUNDS; i++) {
        gpupool_request request = {(size_t)(1 + i % 40) * 300, 0, stream, 0, labels[i % 3]};
        void **block = &blocks[i % 8];
        if (*block) kit_free(arena, *block, stream);
        if (i % 50 == 49) request.bytes = 3 * MIB;
        *block = gpupool_alloc_request(arena, &request);
        CHECK(*block);
    }
    for (int i = 0; i < 8; i++)
        if (blocks[i]) kit_free(arena, blocks[i], stream);
    atomic_fetch_sub(&working, 1);
    return NULL;
}

static int add(const gpupool_part *part, void *user) {
    uint64_t *bytes = user;
    if (part->block.label) bytes[GPUPOOL_CHUNK] += strlen(part->block.label) > 6;
    else if (part->kind != GPUPOOL_CHUNK) bytes[part->kind] += part->bytes;
    return 0;
}

static void beside_workers(void) {
    pthread_t threads[WORKERS];
    FILE *null = fopen("/dev/null", "w");
    int rounds = 0;
    arena = kit_open(64 * MIB);
    atomic_store(&working, WORKERS);
    for (int i = 0; i < WORKERS; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, work, &kit_stream[i]), 0);
    while (atomic_load(&working) || rounds < 3) {
        uint64_t bytes[GPUPOOL_FREE + 1] = {0};
        size_t available = 0;
        CHECK_RESULT(gpupool_walk_blocks(arena, add, bytes), GPUPOOL_OK);
        CHECK_EQ(bytes[GPUPOOL_CHUNK], 0); /* labels were those of the workers */
        CHECK_RESULT(gpupool_report(arena, null), GPUPOOL_OK);
        CHECK_RESULT(gpupool_write_json(arena, null), GPUPOOL_OK);
        CHECK_RESULT(gpupool_get_available(arena, kit_stream[3], &available), GPUPOOL_OK);
        CHECK(available <= 64 * MIB);
        if (rounds++ % 100) continue; /* after a failure caches are not used for a while */
        CHECK(!gpupool_alloc(arena, 65 * MIB, kit_stream[3]));
        CHECK(strstr(gpupool_last_error(), "65.00 MiB does not fit"));
    }
    for (int i = 0; i < WORKERS; i++) pthread_join(threads[i], NULL);
    fclose(null);
    kit_close(arena);
}

int main(void) {
    KIT_TEST(beside_workers);
    return check_finish();
}
