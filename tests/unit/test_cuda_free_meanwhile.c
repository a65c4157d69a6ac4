/* A gpupool_cudaMalloc waits for what gpupool_cudaFree has freed, and other threads go on to free:
   it waits for what was freed before it began, and for no more. Their part is done within the wait,
   so that they always meet. */
// build: plain
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "arena_kit.h"

#if CHECK_FAKE

enum { ROUNDS = 20 };

static void *later[ROUNDS];
static int rounds;

static void *cuda_block(size_t bytes) {
    void *block = NULL;
    CHECK_EQ(gpupool_cudaMalloc(&block, bytes), cudaSuccess);
    return block;
}

/* With work on it that is still to be done. */
static void free_with_work(void *block, int stream) {
    kit_fill(kit_stream[stream], block, KIB, stream);
    CHECK_EQ(gpupool_cudaFree(block), cudaSuccess);
}

static void free_one_more(void *unused) {
    if (rounds == ROUNDS) return; /* or it would not end where it is waited for */
    free_with_work(later[rounds++], 2);
    fake_before_call("cuEventSynchronize", 1, free_one_more, unused);
}

/* What it waited for is too small, and it gets memory from the driver then. */
static void no_wait_for_what_is_freed_meanwhile(void) {
    gpupool_arena *all = gpupool_get_default_arena(0);
    void *first = cuda_block(20 * MIB);
    for (int i = 0; i < ROUNDS; i++) later[i] = cuda_block(2 * MIB);
    size_t reserved = kit_reserved(all);
    fake_mode(FAKE_STEPPED);
    free_with_work(first, 1);
    rounds = 0;
    fake_before_call("cuEventSynchronize", 1, free_one_more, NULL);
    void *block = cuda_block(200 * MIB);
    fake_before_call("cuEventSynchronize", 0, NULL, NULL);
    CHECK_EQ(rounds, 1);
    CHECK_EQ(fake_pending(kit_stream[1]), 0);
    CHECK(fake_pending(kit_stream[2]) > 0);
    CHECK(kit_reserved(all) > reserved);
    CHECK_EQ(gpupool_cudaFree(block), cudaSuccess);
    while (rounds < ROUNDS) CHECK_EQ(gpupool_cudaFree(later[rounds++]), cudaSuccess);
    fake_mode(FAKE_EAGER);
    kit_close(all);
}
#endif

int main(void) {
    FAKE_TEST(no_wait_for_what_is_freed_meanwhile);
    return check_finish();
}
