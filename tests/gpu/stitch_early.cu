/* Kernels that start while the kernel before them on their stream still runs (programmatic
   dependent launch), and memory that goes from one to the other by gpupool_free. With
   griddepcontrol.wait before the first access all must be right, stitched or not. What comes of
   accesses without it is counted and printed; that proves nothing, as a race may do no harm. */
#include "kit.h"

static const size_t CHUNKS = 5, WORDS = CHUNKS * KIT_CHUNK / sizeof(word);
static const std::vector<size_t> HOME(CHUNKS, KIT_CHUNK), WHOLE(1, CHUNKS *KIT_CHUNK);
static const unsigned GRID = 32; /* few enough that two kernels fit the device at once */
static const word ROUNDS = 200;

enum first_access {
    AFTER_WAIT, /* of griddepcontrol.wait */
    AFTER_FLAG, /* when the kernel before has said, in memory, that it is done */
    AT_ONCE
};

static __device__ word ended; /* blocks of all kernels so far */
static __device__ word early; /* kernels that began while the one before ran */

/* nth: how many kernels there were before. */
static __global__ void take_over_early(kit_holding mine, word nth, first_access access) {
#if __CUDA_ARCH__ >= 900
    cudaTriggerProgrammaticLaunchCompletion(); /* the next one may start */
    const word all = nth * gridDim.x;
    if (threadIdx.x == 0 && blockIdx.x == 0 && atomicAdd(&ended, 0) < all) atomicAdd(&early, 1);
    if (access == AFTER_WAIT) cudaGridDependencySynchronize();
    if (access == AFTER_FLAG) {
        while (threadIdx.x == 0 && atomicAdd(&ended, 0) < all) continue;
        __threadfence();
        __syncthreads();
    }
    kit_take_over(mine, nth, nth + 1);
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) atomicAdd(&ended, 1);
#endif
}

static void launch(const kit_holding &mine, word nth, first_access access, cudaStream_t stream) {
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = GRID;
    config.blockDim = 256;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    CUDA(cudaLaunchKernelEx(&config, take_over_early, mine, nth, access));
}

static word counted(const word &counter) { /* since it was asked last */
    word found = 0, none = 0;
    CUDA(cudaMemcpyFromSymbol(&found, counter, sizeof found));
    CUDA(cudaMemcpyToSymbol(counter, &none, sizeof none));
    return found;
}

struct outcome {
    word early, wrong;
    bool each_place_once;
};

/* On one stream, from home to stitched and back; with no_stitch from home to home. */
static outcome rounds(int no_stitch, first_access access, const char *words) {
    gpupool_arena_config config = {};
    kit_arena arena = kit_open(config, CHUNKS);
    kit_holding first = kit_hold(arena.pool, HOME, arena.stream);
    outcome came = {};
    for (word piece = 0; piece < first.count; piece++)
        kit_stamp(first.at[piece], KIT_CHUNK, piece * (KIT_CHUNK / sizeof(word)), arena.stream);
    kit_let_go(arena.pool, first, arena.stream);
    for (word nth = 0; nth < ROUNDS && !kit_bad; nth++) {
        kit_holding mine = kit_hold(arena.pool, nth % 2 || no_stitch ? HOME : WHOLE, arena.stream);
        launch(mine, nth, access, arena.stream);
        kit_let_go(arena.pool, mine, arena.stream);
    }
    came.wrong = kit_wrong_words();
    came.each_place_once = kit_places() == ROUNDS * (WORDS * (WORDS - 1) / 2);
    came.early = counted(early);
    counted(ended);
    printf("%s, %s: %llu of %llu kernels began while the one before ran, %llu of %llu words "
           "wrong\n",
           words, no_stitch ? "at home" : "stitched and at home", came.early, ROUNDS, came.wrong,
           ROUNDS * (word)WORDS);
    kit_close(arena);
    return came;
}

/* Where no kernel starts early, this shows nothing. */
static void is_right(const outcome &came) {
    CHECK(came.early > 0);
    CHECK(came.wrong == 0 && came.each_place_once);
}

static void after_a_wait() {
    is_right(rounds(0, AFTER_WAIT, "after griddepcontrol.wait"));
}

static void after_a_wait_without_stitches() {
    is_right(rounds(1, AFTER_WAIT, "after griddepcontrol.wait"));
}

/* What the header allows with config.no_stitch alone, and the third edition not at all: memory that
   changes hands inside running kernels, which see to the order themselves. */
static void after_a_flag_without_stitches() {
    is_right(rounds(1, AFTER_FLAG, "after a flag in memory"));
}

static void seen_without_a_wait() {
    rounds(0, AFTER_FLAG, "after a flag in memory");
    rounds(0, AT_ONCE, "at once");
    rounds(1, AT_ONCE, "at once");
}

int main() {
    int major = 0;
    CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
    if (kit_bad) return 1;
    if (major < 9) return kit_skip("programmatic dependent launch needs compute capability 9.0");
    RUN(after_a_wait);
    RUN(after_a_wait_without_stitches);
    RUN(after_a_flag_without_stitches);
    RUN(seen_without_a_wait);
    return kit_end();
}
