/* Threads that export, import and free at once: blocks of their own, and one block that all of them
   export and close, while others trim. */
// build: plain
// build: tsan -fsanitize=thread
#define _DEFAULT_SOURCE
#include "gpupool.h"
#include "share_kit.h"

#include <pthread.h>

#define THREADS 4
#define ROUNDS 150

static char *common;

static void *of_its_own(void *number) {
    int n = (int)(intptr_t)number;
    for (int round = 0; round < ROUNDS; round++) {
        size_t bytes = ((size_t)(round + n) % 3 + 1) * SHARE_GRANULE;
        char *block = (char *)kit_alloc_as(arena, bytes, kit_stream[n], GPUPOOL_EXPORTABLE);
        if (!CHECK_RESULT(kit_why(block), GPUPOOL_OK)) return NULL;
        kit_mark(kit_stream[n], block, bytes, n);
        gpupool_exported exported = share_exported(block);
        CHECK_EQ(exported.bytes, bytes);
        gpupool_imported imported = share_imported(0, &exported);
        kit_expect_mark(kit_stream[n], imported.memory, bytes, n);
        CHECK_EQ(cudaStreamSynchronize(kit_stream[n]), cudaSuccess);
        share_unimport(&imported);
        share_unexport(block);
        CHECK_RESULT(gpupool_free(arena, block, kit_stream[n]), GPUPOOL_OK);
        if (round % 10 == n) CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK);
    }
    return NULL;
}

/* As long as one of them has it exported nobody can free it; the first opens the descriptor, the
   last closes it. */
static void *of_all(void *number) {
    int n = (int)(intptr_t)number;
    for (int round = 0; round < ROUNDS; round++) {
        gpupool_exported exported = share_exported(common);
        CHECK(share_is_open(exported.descriptor));
        CHECK_RESULT(gpupool_free(arena, common, kit_stream[n]), GPUPOOL_E_IN_USE);
        share_unexport(common);
    }
    return NULL;
}

static void run(void *(*body)(void *)) {
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, body, (void *)(intptr_t)i), 0);
    for (int i = 0; i < THREADS; i++) CHECK_EQ(pthread_join(threads[i], NULL), 0);
}

static void blocks_of_their_own(void) {
    share_open(0, 0);
    run(of_its_own);
    CHECK_EQ(kit_stats(arena).blocks.now, 0);
    kit_close(arena);
}

static void one_block(void) {
    share_open(0, 0);
    common = share_get(2 * SHARE_GRANULE);
    run(of_all);
    CHECK_RESULT(gpupool_export_close(arena, common), GPUPOOL_E_ARGUMENT);
    share_put(common);
    kit_close(arena);
}

int main(void) {
    SHARE_TEST(blocks_of_their_own);
    SHARE_TEST(one_block);
    return check_finish();
}
