/* Blocks, stitched ones too, are freed in host functions (cudaLaunchHostFunc), where CUDA forbids
   its own calls, while the main thread calls cudaMalloc and cudaFree: nothing hangs, and the next
   owner of the memory finds no word wrong. */
#include "kit.h"

#include <atomic>
#include <unistd.h>

#define FREE_THERE(pool, block, stream) gpupool_free_in_host_function(pool, block)
#define WAIT_ALL(pool) gpupool_trim(pool, SIZE_MAX) /* waits for the device */
#define RETIRE(pool, stream) gpupool_retire_stream(stream)

static const int STREAMS = 4, ROUNDS = 2000;

struct freed {
    gpupool_arena *pool;
    void *block;
    cudaStream_t stream;
};

static std::atomic<int> there, refused; /* frees in host functions */

static void CUDART_CB free_there(void *of) {
    freed *f = (freed *)of;
    if (FREE_THERE(f->pool, f->block, f->stream) != GPUPOOL_OK) refused++;
    there++;
    delete f;
}

/* One block: written, verified, and freed behind that, by CUDA's thread. */
static void one_round(gpupool_arena *pool, cudaStream_t stream, int round) {
    size_t bytes = round % 8 ? (size_t)(1 + round % 7) * 40000 * sizeof(word) : 3 * KIT_CHUNK;
    word mark = (word)round * 1000003;
    void *block = gpupool_alloc(pool, bytes, stream);
    if (!block) {
        CHECK(gpupool_last_result() == GPUPOOL_E_OUT_OF_MEMORY);
        return;
    }
    kit_stamp(block, bytes, mark, stream);
    kit_verify(block, bytes, mark, stream);
    CUDA(cudaLaunchHostFunc(stream, free_there, new freed{pool, block, stream}));
}

static void freed_by_cudas_thread() {
    gpupool_arena_config config = {};
    kit_arena a = kit_open(config, 24);
    cudaStream_t stream[STREAMS];
    for (int i = 0; i < STREAMS; i++) stream[i] = kit_stream();
    for (int round = 0; round < ROUNDS && !kit_bad; round++) {
        one_round(a.pool, stream[round % STREAMS], round);
        if (round % 4 == 0) { /* both may wait for all streams, and so for the functions */
            void *theirs = nullptr;
            CUDA(cudaMalloc(&theirs, 1 << 20));
            CUDA(cudaFree(theirs));
        }
    }
    CUDA(cudaDeviceSynchronize());
    POOL(WAIT_ALL(a.pool));
    CHECK(there > ROUNDS / 2 && refused == 0);
    CHECK(kit_wrong_words() == 0);
    printf("%d frees in host functions, %llu blocks stitched, %llu times reused\n", there.load(),
           KIT_STITCHES(kit_stats(a.pool)));
    for (int i = 0; i < STREAMS; i++) {
        POOL(RETIRE(a.pool, stream[i]));
        CUDA(cudaStreamDestroy(stream[i]));
    }
    kit_close(a);
}

int main() {
    alarm(120); /* a hang is a failure */
    RUN(freed_by_cudas_thread);
    return kit_end();
}
