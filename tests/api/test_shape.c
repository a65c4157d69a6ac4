// build: asan -fsanitize=address,undefined
// build: replaced -DGPUPOOL_REPLACE_CUDA_MALLOC=1
/* cudaMalloc's shape: what cudaMalloc and cudaFree promise holds, on the default arenas. */
#define _GNU_SOURCE
#include <pthread.h>

#include <cuda_runtime_api.h>

/* CUDA's own functions, before gpupool's macros have their names. */
static cudaError_t own_malloc(void **block, size_t bytes) {
    return cudaMalloc(block, bytes);
}

static cudaError_t own_malloc_async(void **block, size_t bytes, cudaStream_t stream) {
    return cudaMallocAsync(block, bytes, stream);
}

#include "gpupool.h"
#include "kit.h"

#define A kit_stream[0]
#define B kit_stream[1]

#if GPUPOOL_REPLACE_CUDA_MALLOC /* the names as a program would use them */
#define pool_malloc(at, bytes) cudaMalloc((void **)(at), bytes)
#define pool_free cudaFree
#define pool_malloc_async(at, bytes, stream) cudaMallocAsync((void **)(at), bytes, stream)
#define pool_free_async cudaFreeAsync
#else
#define pool_malloc(at, bytes) gpupool_cudaMalloc((void **)(at), bytes)
#define pool_free gpupool_cudaFree
#define pool_malloc_async(at, bytes, stream) gpupool_cudaMallocAsync((void **)(at), bytes, stream)
#define pool_free_async gpupool_cudaFreeAsync
#endif

static gpupool_stats of_default(int device) {
    return kit_stats(gpupool_get_default_arena(device));
}

/* A default arena of a test must not outlive it. */
static void close_default(int device) {
    kit_close(gpupool_get_default_arena(device));
}

static void *get(size_t bytes) {
    void *block = NULL;
    CHECK_EQ(pool_malloc(&block, bytes), cudaSuccess);
    CHECK(block);
    return block;
}

static void *get_on(size_t bytes, cudaStream_t stream) {
    void *block = NULL;
    CHECK_EQ(pool_malloc_async(&block, bytes, stream), cudaSuccess);
    CHECK(block);
    return block;
}

static void *get_from_cuda(size_t bytes) {
    void *block = NULL;
    CHECK_EQ(own_malloc(&block, bytes), cudaSuccess);
    return block;
}

/* Any stream may use a new block at once, whatever stands still on others. */
static void new_memory_is_finished(void) {
    void *old = get_on(24 * MIB, A), *block;
    kit_hold(A);
    kit_write(old, 24 * MIB, A, 1);
    CHECK_EQ(pool_free_async(old, A), cudaSuccess);
    block = get(24 * MIB);
    CHECK(block != old);
    kit_write(block, 24 * MIB, B, 2);
    kit_verify(block, 24 * MIB, B, 2);
    kit_let_go(A);
    CHECK_EQ(pool_free(block), cudaSuccess);
    close_default(0);
}

/* cudaFree comes behind the work of all streams, and does not wait itself. */
static void freed_behind_all_work(void) {
    void *block = get(24 * MIB), *next;
    kit_write(block, 24 * MIB, A, 1);
    kit_write(block, 24 * MIB, A, 2);
    kit_follow(B, A);
    kit_write(block, 24 * MIB, B, 3);
    CHECK_EQ(pool_free(block), cudaSuccess);
    CHECK_EQ(of_default(0).host_waits, 0);
    CHECK_EQ(of_default(0).pending.now, 24 * MIB);
    next = get(24 * MIB);
    kit_write(next, 24 * MIB, kit_stream[2], 4);
    kit_verify(next, 24 * MIB, kit_stream[2], 4);
    CHECK_EQ(pool_free(next), cudaSuccess);
    close_default(0);
}

/* O9: a loop needs the memory of one round; by streams too, since they wait rather than grow. A
   request that may not wait grows. */
static void what_is_freed_comes_next(void) {
    uint64_t reserved = 0;
    void *another;
    for (int i = 0; i < 12; i++) {
        void *block = i < 6 ? get(20 * MIB) : get_on(20 * MIB, A);
        if (i == 0) reserved = of_default(0).reserved.now;
        CHECK_EQ(of_default(0).reserved.now, reserved);
        kit_write(block, 20 * MIB, A, i);
        CHECK_EQ(pool_free(block), cudaSuccess);
    }
    another = kit_alloc_as(gpupool_get_default_arena(0), 20 * MIB, 0, A, GPUPOOL_NO_WAIT);
    CHECK(another);
    CHECK_EQ(of_default(0).host_waits, 11);
    CHECK_EQ(pool_free(another), cudaSuccess);
    close_default(0);
}

/* As much as is needed is waited for, be it little of what is reserved: but not by a stream, nor in
   a scope. */
static void as_much_as_is_needed(void) {
    gpupool_capture *scope = NULL;
    void *large = get(64 * MIB), *block;
    for (int i = 0; i < 4; i++) CHECK_EQ(pool_free(get(2 * MIB)), cudaSuccess);
    CHECK_EQ(of_default(0).reserved.now, 66 * MIB);
    CHECK_EQ(of_default(0).host_waits, 3);
    block = get_on(2 * MIB, A);
    CHECK_EQ(of_default(0).host_waits, 3);
    CHECK_EQ(pool_free(block), cudaSuccess);
    CHECK_EQ(pool_free(large), cudaSuccess);
    CHECK_RESULT(gpupool_begin_capture(gpupool_get_default_arena(0), A, &scope), GPUPOOL_OK);
    CHECK_EQ(pool_free_async(get_on(2 * MIB, A), A), cudaSuccess);
    CHECK_EQ(of_default(0).host_waits, 3);
    CHECK_RESULT(gpupool_release_capture(scope), GPUPOOL_OK);
    close_default(0);
}

/* And small blocks share a wait: one for 1/16 of what is reserved, or when there is no other way.
 */
static void small_blocks_share_a_wait(void) {
    for (int i = 0; i < 8192; i++) CHECK_EQ(pool_free(get(4096)), cudaSuccess);
    CHECK(of_default(0).host_waits <= 8192 / 512);
    CHECK_EQ(of_default(0).reserved.peak, 2 * MIB);
    close_default(0);
}

static void nothing_is_nothing(void) {
    void *block = &block;
    CHECK_EQ(pool_malloc(&block, 0), cudaSuccess);
    CHECK(block == NULL);
    block = &block;
    CHECK_EQ(pool_malloc_async(&block, 0, A), cudaSuccess);
    CHECK(block == NULL);
    CHECK_EQ(pool_free(NULL), cudaSuccess);
    CHECK_EQ(pool_free_async(NULL, A), cudaSuccess);
    CHECK_EQ(cudaPeekAtLastError(), cudaSuccess);
    close_default(0);
}

/* What no arena knows goes to CUDA: before there is one, and after. */
static void foreign_pointers_go_to_cuda(void) {
    void *block = get_from_cuda(1000), *other;
    CHECK_EQ(pool_free(block), cudaSuccess);
    other = get(1000);
    block = get_from_cuda(1000);
    CHECK_EQ(pool_free(block), cudaSuccess);
    CHECK_EQ(own_malloc_async(&block, 1000, A), cudaSuccess);
    CHECK_EQ(pool_free_async(block, A), cudaSuccess);
    CHECK_EQ(own_malloc_async(&block, 1000, 0), cudaSuccess);
    CHECK_EQ(pool_free_async(block, 0), cudaSuccess);
    CHECK_EQ(pool_free(other), cudaSuccess);
    close_default(0);
}

/* The call fails with this error, which is CUDA's last error then, once. */
static void fails_with(cudaError_t expected, cudaError_t error) {
    CHECK_EQ(error, expected);
    CHECK_EQ(cudaPeekAtLastError(), expected);
    CHECK_EQ(cudaGetLastError(), expected);
    CHECK_EQ(cudaGetLastError(), cudaSuccess);
}

/* Arguments that are wrong are refused in test_refusals. */
static void errors_are_cudas(void) {
    void *block = get(4096), *none = block;
    CHECK_EQ(pool_free(block), cudaSuccess);
    fails_with(cudaErrorInvalidValue, pool_free(block));
    CHECK_RESULT(gpupool_last_result(), GPUPOOL_E_DOUBLE_FREE);
    fails_with(cudaErrorInvalidValue, pool_free_async(block, A));
    CHECK_RESULT(gpupool_last_result(), GPUPOOL_E_DOUBLE_FREE);
    CHECK_RESULT(gpupool_set_limit(gpupool_get_default_arena(0), 4 * MIB), GPUPOOL_OK);
    fails_with(cudaErrorMemoryAllocation, pool_malloc(&none, 8 * MIB));
    CHECK(none == NULL);
    CHECK_RESULT(gpupool_last_result(), GPUPOOL_E_OUT_OF_MEMORY);
    CHECK_EQ(gpupool_last_verdict()->cause, GPUPOOL_CAUSE_LIMIT);
    fails_with(cudaErrorMemoryAllocation, pool_malloc_async(&none, 8 * MIB, A));
    fails_with(cudaErrorMemoryAllocation, pool_malloc(&none, SIZE_MAX));
    close_default(0);
}

/* Not CUDA's, though one may be where a chunk of cudaMalloc begins; nor what it has left behind. */
static void blocks_of_other_arenas_are_refused(void) {
    static const gpupool_source sources[] = {GPUPOOL_SOURCE_MAPPED, GPUPOOL_SOURCE_DEVICE};
    for (size_t i = 0; i < KIT_COUNT(sources); i++) {
        gpupool_arena_config config = kit_config(sources[i], 0);
        gpupool_arena *mine = kit_create(&config);
        void *block = gpupool_alloc(mine, 1000, A);
        check_case("source %d", (int)sources[i]);
        fails_with(cudaErrorInvalidValue, pool_free(block));
        fails_with(cudaErrorInvalidValue, pool_free_async(block, A));
        CHECK_RESULT(gpupool_last_result(), GPUPOOL_E_NOT_OURS);
        CHECK(strstr(gpupool_last_error(), "gpupool_free") != NULL);
        CHECK_EQ(kit_stats(mine).blocks, 1);
        kit_free(mine, block, A);
        fails_with(cudaErrorInvalidValue, pool_free(block));
        kit_close(mine);
    }
}

static void *chunk_from_cuda(size_t bytes, void *user) {
    (void)user;
    return get_from_cuda(bytes);
}
static void chunk_goes_to_cuda(void *at, size_t bytes, void *user) {
    (void)bytes, (void)user;
    CHECK_EQ(pool_free(at), cudaSuccess);
}

/* A chunk_free may be of a program in which cudaFree is gpupool's. */
static void a_chunk_is_cudas(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_CUSTOM, 0);
    gpupool_arena *mine;
    config.chunk_alloc = chunk_from_cuda;
    config.chunk_free = chunk_goes_to_cuda;
    mine = kit_create(&config);
    kit_use(mine, 1000, A);
    CHECK_RESULT(gpupool_trim(mine, 0), GPUPOOL_OK);
    CHECK_EQ(kit_stats(mine).reserved.now, 0);
    kit_use(mine, 1000, A);
    kit_close(mine);
}

/* A pointer may be freed while another device is current, and a stream has its own device. */
static void devices(void) {
    void *block[3] = {NULL, NULL, NULL};
    cudaStream_t far;
    int now = -1, count = 0;
    CHECK_EQ(cudaGetDeviceCount(&count), cudaSuccess);
    if (count < 2) return;
    CHECK_EQ(cudaSetDevice(1), cudaSuccess);
    far = kit_new_stream();
    block[1] = get(MIB);
    CHECK_EQ(cudaSetDevice(0), cudaSuccess);
    block[0] = get(MIB);
    block[2] = get_on(MIB, far);
    CHECK_EQ(cudaGetDevice(&now), cudaSuccess);
    CHECK_EQ(now, 0);
    CHECK_EQ(of_default(0).blocks, 1);
    CHECK_EQ(of_default(1).blocks, 2);
    kit_write(block[2], MIB, far, 1);
    CHECK_EQ(pool_free_async(block[2], far), cudaSuccess);
    CHECK_EQ(pool_free(block[1]), cudaSuccess);
    CHECK_EQ(pool_free(block[0]), cudaSuccess);
    CHECK_EQ(cudaStreamSynchronize(far), cudaSuccess);
    CHECK_EQ(cudaStreamDestroy(far), cudaSuccess);
    close_default(0);
    close_default(1);
}

/* Threads allocate in both shapes, and free what others have allocated, by address alone; CUDA's
   pointers are among them. */
static void *_Atomic offered[64];
static void *in_turns(void *user) {
    cudaStream_t stream = *(cudaStream_t *)user;
    uint64_t seed = (uint64_t)((cudaStream_t *)user - kit_stream);
    for (int i = 0; i < 2000; i++) {
        size_t bytes = check_below(&seed, 8) ? 1 + check_below(&seed, 20000) : MIB;
        uint64_t from = check_below(&seed, 64);
        void *block = from > 32 ? get(bytes) : from ? get_on(bytes, stream) : get_from_cuda(bytes);
        CHECK_EQ(cudaStreamSynchronize(stream), cudaSuccess); /* so that any thread may free it */
        block = atomic_exchange(&offered[check_below(&seed, 64)], block);
        if (check_below(&seed, 2)) CHECK_EQ(pool_free(block), cudaSuccess);
        else CHECK_EQ(pool_free_async(block, stream), cudaSuccess);
    }
    return NULL;
}

static void threads_free_for_each_other(void) {
    pthread_t thread[KIT_STREAMS];
    for (int i = 0; i < KIT_STREAMS; i++)
        CHECK_EQ(pthread_create(&thread[i], NULL, in_turns, &kit_stream[i]), 0);
    for (int i = 0; i < KIT_STREAMS; i++) pthread_join(thread[i], NULL);
    for (int i = 0; i < 64; i++)
        CHECK_EQ(pool_free(atomic_exchange(&offered[i], NULL)), cudaSuccess);
    CHECK_EQ(of_default(0).blocks, 0);
    close_default(0);
}

#if CHECK_FAKE
/* Without a scope a capturing stream's memory is of CUDA's graph (which fakecuda cannot make). A
   block of the pool goes back to the pool. */
static void on_a_capturing_stream(void) {
    void *block = get_on(1000, A), *none = NULL, *of_cuda = get_from_cuda(1000);
    long allocs = fake_calls("cudaMallocAsync"), frees = fake_calls("cudaFreeAsync");
    CHECK_EQ(cudaStreamBeginCapture(A, cudaStreamCaptureModeGlobal), cudaSuccess);
    CHECK_EQ(pool_malloc_async(&none, 1000, A), cudaErrorNotSupported);
    CHECK_EQ(fake_calls("cudaMallocAsync"), allocs + 1);
    CHECK_EQ(pool_free_async(of_cuda, A), cudaErrorNotSupported);
    CHECK_EQ(fake_calls("cudaFreeAsync"), frees + 1);
    cudaGetLastError();
    CHECK_EQ(pool_free_async(block, A), cudaSuccess);
    CHECK_EQ(fake_calls("cudaFreeAsync"), frees + 1);
    kit_end_capture(A);
    CHECK_EQ(pool_free(of_cuda), cudaSuccess);
    close_default(0);
}

/* Nor is a capture lost by a failure, of this stream or of another one. */
static void a_failure_ends_no_capture(void) {
    void *none = NULL;
    CHECK_RESULT(gpupool_set_limit(gpupool_get_default_arena(0), 4 * MIB), GPUPOOL_OK);
    CHECK_EQ(cudaStreamBeginCapture(B, cudaStreamCaptureModeGlobal), cudaSuccess);
    fails_with(cudaErrorMemoryAllocation, pool_malloc_async(&none, 8 * MIB, A));
    fails_with(cudaErrorMemoryAllocation, pool_malloc(&none, 8 * MIB));
    kit_end_capture(B);
    close_default(0);
}

/* An error that stays is what cudaMalloc says from then on, too. */
static void an_error_that_stays(void) {
    gpupool_arena *arena = gpupool_get_default_arena(0);
    void *block = NULL;
    cudaError_t error;
    fake_quiet(1);
    fake_fail_except("cudaGetDevice"); /* which tells nothing of it on a GPU either */
    fake_break(1);
    CHECK(pool_malloc(&block, 12 * MIB) != cudaSuccess);
    CHECK(fake_is_broken());
    error = own_malloc(&block, 1000);
    CHECK(error != cudaSuccess && error != cudaErrorMemoryAllocation);
    CHECK_EQ(pool_malloc(&block, 12 * MIB), error);
    CHECK_EQ(pool_malloc_async(&block, 12 * MIB, A), error);
    CHECK_RESULT(gpupool_last_result(), GPUPOOL_E_CUDA);
    gpupool_arena_destroy(arena);
    for (int i = 0; i < KIT_STREAMS; i++) kit_stream[i] = NULL;
    fake_reset();
}
#endif

int main(void) {
    KIT_TEST(new_memory_is_finished);
    KIT_TEST(freed_behind_all_work);
    KIT_TEST(what_is_freed_comes_next);
    KIT_TEST(as_much_as_is_needed);
    KIT_TEST(small_blocks_share_a_wait);
    KIT_TEST(nothing_is_nothing);
    KIT_TEST(foreign_pointers_go_to_cuda);
    KIT_TEST(errors_are_cudas);
    KIT_TEST(blocks_of_other_arenas_are_refused);
    KIT_TEST(a_chunk_is_cudas);
    KIT_TEST(devices);
    KIT_TEST(threads_free_for_each_other);
#if CHECK_FAKE
    KIT_TEST(on_a_capturing_stream);
    KIT_TEST(a_failure_ends_no_capture);
    KIT_TEST(an_error_that_stays);
#endif
    return check_finish();
}
