/* cudaMalloc's shape: what cudaMalloc and cudaFree promise holds, on the default arenas. */
// build: plain
// build: replaced -O1 -DGPUPOOL_REPLACE_CUDA_MALLOC=1
// build: asan -fsanitize=address,undefined
#include "cudas_own.h"

#include "gpupool.h"
#include "race_kit.h"

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

static void *cuda_block(size_t bytes) {
    void *block = NULL;
    CHECK_EQ(own_malloc(&block, bytes), cudaSuccess);
    return block;
}

static gpupool_stats default_stats(int device) {
    gpupool_stats stats;
    memset(&stats, 0, sizeof stats);
    CHECK_RESULT(gpupool_get_stats(gpupool_get_default_arena(device), &stats), GPUPOOL_OK);
    return stats;
}

/* The default arena of a test must not outlive it. */
static void close_default(int device) {
    gpupool_arena *of_device = gpupool_get_default_arena(device);
    CHECK_RESULT(gpupool_check(of_device), GPUPOOL_OK);
    CHECK_RESULT(gpupool_arena_destroy(of_device), GPUPOOL_OK);
}

static void blocks_come_and_go(void) {
    float *floats = NULL;
    char *chars = NULL;
    CHECK_EQ(pool_malloc(&floats, 1000 * sizeof *floats), cudaSuccess);
    CHECK_EQ(pool_malloc_async(&chars, 100, kit_stream[0]), cudaSuccess);
    CHECK(floats && chars);
    kit_mark(kit_stream[1], floats, 4000, 1);
    kit_mark(kit_stream[0], chars, 100, 2);
    CHECK_EQ(default_stats(0).requested.now, 4100);
    CHECK_EQ(pool_free(floats), cudaSuccess);
    CHECK_EQ(pool_free_async(chars, kit_stream[0]), cudaSuccess);
    CHECK_EQ(default_stats(0).requested.now, 0);
    CHECK_EQ(pool_malloc_async(&chars, 100, kit_stream[0]), cudaSuccess); /* and crosswise */
    CHECK_EQ(pool_free(chars), cudaSuccess);
    CHECK_EQ(pool_malloc(&chars, 100), cudaSuccess);
    CHECK_EQ(pool_free_async(chars, kit_stream[1]), cudaSuccess);
    CHECK_EQ(default_stats(0).blocks.now, 0);
    close_default(0);
}

/* As with cudaMalloc, a loop needs the memory of one round: also once there was a capture, which
   any fence over all streams would have lost. */
static void what_is_freed_comes_next(void) {
    gpupool_capture *scope = NULL;
    void *block = NULL;
    size_t reserved = 0;
    for (int i = 0; i < 8; i++) {
        CHECK_EQ(pool_malloc(&block, 20 * MIB), cudaSuccess);
        if (i == 0) reserved = default_stats(0).reserved.now;
        CHECK_EQ(default_stats(0).reserved.now, reserved);
        CHECK_EQ(pool_free(block), cudaSuccess);
        if (i != 3) continue;
        CHECK_RESULT(gpupool_begin_capture(gpupool_get_default_arena(0), kit_stream[0], &scope),
                     GPUPOOL_OK);
        CHECK_RESULT(gpupool_release_capture(scope), GPUPOOL_OK);
    }
    close_default(0);
}

static void nothing_is_nothing(void) {
    void *block = &block;
    CHECK_EQ(pool_malloc(&block, 0), cudaSuccess);
    CHECK(block == NULL);
    block = &block;
    CHECK_EQ(pool_malloc_async(&block, 0, kit_stream[0]), cudaSuccess);
    CHECK(block == NULL);
    CHECK_EQ(pool_free(NULL), cudaSuccess);
    CHECK_EQ(pool_free_async(NULL, kit_stream[0]), cudaSuccess);
    CHECK_EQ(cudaPeekAtLastError(), cudaSuccess);
}

/* The call fails with this error, which is CUDA's last error then, once. */
static void fails_with(cudaError_t expected, cudaError_t error) {
    CHECK_EQ(error, expected);
    CHECK_EQ(cudaPeekAtLastError(), expected);
    CHECK_EQ(cudaGetLastError(), expected);
    CHECK_EQ(cudaGetLastError(), cudaSuccess);
}

/* Calls that need no arena leave a result, as every call does. */
static void each_call_leaves_a_result(void) {
    void *block;
    for (int i = 0; i < 2; i++) {
        fails_with(cudaErrorInvalidValue, i ? pool_malloc_async(NULL, 8, 0) : pool_malloc(NULL, 8));
        CHECK_RESULT(gpupool_last_result(), GPUPOOL_E_ARGUMENT);
        CHECK(strstr(gpupool_last_error(), "address is NULL") != NULL);
        CHECK_EQ(i ? pool_malloc_async(&block, 0, 0) : pool_malloc(&block, 0), cudaSuccess);
        CHECK_RESULT(gpupool_last_result(), GPUPOOL_OK);
        CHECK(strstr(gpupool_last_error(), "address is NULL") != NULL);
    }
}

/* CUDA is given what it did not hand out, on purpose. */
static void quietly(int on) {
#if CHECK_FAKE
    fake_quiet(on);
    if (!on) fake_clear_failures();
#else
    (void)on;
#endif
}

/* What no default arena knows goes to CUDA: before there is one, and after. */
static void foreign_pointers_go_to_cuda(void) {
    void *block = cuda_block(1000), *other = NULL;
    int here = 0;
    CHECK_EQ(pool_free(block), cudaSuccess);
    CHECK_EQ(pool_malloc(&other, 1000), cudaSuccess);
    block = cuda_block(1000);
    CHECK_EQ(pool_free(block), cudaSuccess);
    CHECK_EQ((cudaMallocAsync)(&block, 1000, kit_stream[0]), cudaSuccess);
    CHECK_EQ(pool_free_async(block, kit_stream[0]), cudaSuccess);
    CHECK_EQ((cudaMallocAsync)(&block, 1000, 0), cudaSuccess);
    CHECK_EQ(pool_free_async(block, 0), cudaSuccess);
    quietly(1);
    CHECK(pool_free(&here) != cudaSuccess);
    cudaGetLastError();
    quietly(0);
    CHECK_EQ(pool_free(other), cudaSuccess);
    close_default(0);
}

/* Not CUDA's, though one may be where a chunk of cudaMalloc begins. */
static void blocks_of_other_arenas_are_refused(void) {
    static const gpupool_source sources[] = {GPUPOOL_SOURCE_AUTO, GPUPOOL_SOURCE_DEVICE,
                                             GPUPOOL_SOURCE_BYPASS};
    for (size_t i = 0; i < KIT_COUNT(sources); i++) {
        gpupool_arena *older = kit_open(GPUPOOL_SOURCE_DEVICE), *mine = kit_open(sources[i]);
        gpupool_arena *newer = kit_open(GPUPOOL_SOURCE_DEVICE);
        void *block = kit_alloc(mine, 1000, kit_stream[0]);
        fails_with(cudaErrorInvalidValue, pool_free(block));
        fails_with(cudaErrorInvalidValue, pool_free_async(block, kit_stream[0]));
        CHECK_RESULT(gpupool_last_result(), GPUPOOL_E_NOT_OURS);
        CHECK_EQ(kit_stats(mine).blocks.now, 1);
        CHECK_RESULT(gpupool_free(mine, block, kit_stream[0]), GPUPOOL_OK);
        if (sources[i] != GPUPOOL_SOURCE_BYPASS) { /* nor is what such a block has left behind */
            CHECK_RESULT(gpupool_check(mine), GPUPOOL_OK);
            fails_with(cudaErrorInvalidValue, pool_free(block));
            CHECK_RESULT(gpupool_last_result(), GPUPOOL_E_NOT_OURS);
        }
        kit_close(newer);
        kit_close(mine);
        kit_close(older);
    }
}

static void *chunk_from_cuda(size_t bytes, int device, void *user) {
    (void)device, (void)user;
    return cuda_block(bytes);
}
static void chunk_goes_to_cuda(void *at, size_t bytes, int device, void *user) {
    (void)bytes, (void)device, (void)user;
    CHECK_EQ(pool_free(at), cudaSuccess);
}

/* A chunk_free may be of a program in which cudaFree is gpupool's. */
static void a_chunk_is_cudas(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_CUSTOM);
    config.chunk_alloc = chunk_from_cuda;
    config.chunk_free = chunk_goes_to_cuda;
    gpupool_arena *mine = kit_create(&config);
    void *block = kit_alloc(mine, 1000, kit_stream[0]);
    CHECK_RESULT(gpupool_free(mine, block, kit_stream[0]), GPUPOOL_OK);
    CHECK_RESULT(gpupool_trim(mine, 0, NULL), GPUPOOL_OK);
    CHECK_EQ(kit_reserved(mine), 0);
    kit_close(mine);
}

/* The result of a call before is no matter to one that succeeds. */
static void an_error_before_is_over(void) {
    void *block = NULL;
    CHECK_EQ(pool_malloc(&block, 1000), cudaSuccess);
    CHECK_EQ(pool_free(block), cudaSuccess);
    CHECK_RESULT(gpupool_check(NULL), GPUPOOL_E_ARGUMENT);
    CHECK_EQ(pool_malloc_async(&block, 1000, kit_stream[0]), cudaSuccess);
    CHECK_EQ(pool_free_async(block, kit_stream[0]), cudaSuccess);
    CHECK_RESULT(gpupool_check(NULL), GPUPOOL_E_ARGUMENT);
    CHECK_EQ(pool_malloc_async(&block, 1000, kit_stream[0]), cudaSuccess);
    CHECK_EQ(pool_free_async(block, kit_stream[0]), cudaSuccess);
    close_default(0);
}

static void errors_are_cudas(void) {
    char *block = NULL, *none = (char *)&block;
    fails_with(cudaErrorInvalidValue, own_malloc(NULL, 1000));
    fails_with(cudaErrorInvalidValue, gpupool_cudaMalloc(NULL, 1000));
    fails_with(cudaErrorInvalidValue, gpupool_cudaMallocAsync(NULL, 1000, kit_stream[0]));
    CHECK_EQ(pool_malloc(&block, 4096), cudaSuccess);
    fails_with(cudaErrorInvalidValue, pool_free(block + 512));
    CHECK_EQ(pool_free(block), cudaSuccess);
    fails_with(cudaErrorInvalidValue, pool_free(block));
    fails_with(cudaErrorInvalidValue, pool_free_async(block, kit_stream[0]));
    CHECK_RESULT(gpupool_last_result(), GPUPOOL_E_DOUBLE_FREE);
    CHECK_RESULT(gpupool_set_limit(gpupool_get_default_arena(0), 4 * MIB), GPUPOOL_OK);
    fails_with(cudaErrorMemoryAllocation, pool_malloc(&none, 8 * MIB));
    CHECK(none == NULL);
    CHECK_RESULT(gpupool_last_result(), GPUPOOL_E_OUT_OF_MEMORY);
    fails_with(cudaErrorMemoryAllocation, pool_malloc_async(&none, 8 * MIB, kit_stream[0]));
    fails_with(cudaErrorMemoryAllocation, own_malloc((void **)&none, SIZE_MAX));
    fails_with(cudaErrorMemoryAllocation, pool_malloc(&none, SIZE_MAX));
    CHECK_RESULT(gpupool_last_result(), GPUPOOL_E_ARGUMENT);
    close_default(0);
}

/* Nor is a capture lost by that, be it of this stream or of another one. */
static void a_failure_ends_no_capture(void) {
    for (int i = 0; i < 2; i++) {
        cudaGraph_t graph = NULL;
        void *none = NULL;
        CHECK_RESULT(gpupool_set_limit(gpupool_get_default_arena(0), 4 * MIB), GPUPOOL_OK);
        CHECK_EQ(cudaStreamBeginCapture(kit_stream[i], cudaStreamCaptureModeGlobal), cudaSuccess);
        fails_with(cudaErrorMemoryAllocation, pool_malloc_async(&none, 8 * MIB, kit_stream[0]));
        CHECK_EQ(cudaStreamEndCapture(kit_stream[i], &graph), cudaSuccess);
        CHECK_EQ(cudaGraphDestroy(graph), cudaSuccess);
        close_default(0);
    }
}

#if CHECK_FAKE
/* What CUDA said is what the caller is told, of the runtime's calls and of the driver's. */
static void an_error_of_cudas(void) {
    void *block = NULL;
    fake_fail_call("cudaGetDevice", 1, 1, cudaErrorNoDevice);
    CHECK_EQ(pool_malloc(&block, MIB), cudaErrorNoDevice);
    CHECK_RESULT(gpupool_last_result(), GPUPOOL_E_CUDA);
    fake_fail_clear();
    fake_fail_call("cuMemCreate", 1, 0, CUDA_ERROR_LAUNCH_FAILED);
    CHECK_EQ(pool_malloc(&block, MIB), cudaErrorLaunchFailure);
    CHECK_RESULT(gpupool_last_result(), GPUPOOL_E_CUDA);
    fake_fail_clear();
    CHECK_EQ(pool_malloc(&block, MIB), cudaSuccess);
    CHECK_EQ(pool_free(block), cudaSuccess);
    close_default(0);
}

/* Where CUDA has no way to make the error its last one, the call tells it all the same. */
static void an_error_that_cuda_cannot_keep(void) {
    fake_fail_call("cudaThreadExchangeStreamCaptureMode", 1, 1, cudaErrorNoDevice);
    CHECK_EQ(gpupool_cudaMalloc(NULL, 1000), cudaErrorInvalidValue);
    CHECK(fake_fail_fired() > 0);
    fake_fail_clear();
    CHECK_EQ(cudaGetLastError(), cudaErrorNoDevice);
}
#endif

static void each_device_has_its_own(void) {
    void *block[2] = {NULL, NULL};
    int now = -1;
    for (int device = 0; device < 2; device++) {
        CHECK_EQ(cudaSetDevice(device), cudaSuccess);
        CHECK_EQ(pool_malloc(&block[device], MIB), cudaSuccess);
        struct cudaPointerAttributes what;
        CHECK_EQ(cudaPointerGetAttributes(&what, block[device]), cudaSuccess);
        CHECK_EQ(what.device, device);
        CHECK_EQ(default_stats(device).blocks.now, 1);
    }
    CHECK_EQ(pool_free(block[0]), cudaSuccess); /* while device 1 is current */
    CHECK_EQ(cudaGetDevice(&now), cudaSuccess);
    CHECK_EQ(now, 1);
    CHECK_EQ(cudaSetDevice(0), cudaSuccess);
    CHECK_EQ(pool_free(block[1]), cudaSuccess);
    for (int device = 0; device < 2; device++) {
        CHECK_EQ(default_stats(device).blocks.now, 0);
        close_default(device);
    }
}

static int device_of(const void *block) {
    struct cudaPointerAttributes what;
    CHECK_EQ(cudaPointerGetAttributes(&what, block), cudaSuccess);
    return what.device;
}

#if CHECK_FAKE
/* What CUDA has allocated goes back behind the stream's work, as with CUDA's own call: fakecuda
   does that work first, on whichever device it is. */
static void cudas_blocks_go_in_stream_order(void) {
    void *of_cuda = cuda_block(MIB), *there;
    cudaStream_t far;
    CHECK_EQ(cudaSetDevice(1), cudaSuccess);
    CHECK_EQ(cudaStreamCreateWithFlags(&far, cudaStreamNonBlocking), cudaSuccess);
    there = cuda_block(MIB);
    CHECK_EQ(cudaSetDevice(0), cudaSuccess);
    fake_mode(FAKE_STEPPED);
    kit_fill(far, there, MIB, 1);
    CHECK_EQ(pool_free_async(of_cuda, far), cudaSuccess);
    CHECK_EQ(fake_pending(far), 0);
    fake_mode(FAKE_EAGER);
    CHECK_EQ(pool_free(there), cudaSuccess);
    CHECK_EQ(cudaStreamDestroy(far), cudaSuccess);
}
#endif

/* Device 0 is current; its arena knows the stream by a block that was freed there. */
static void a_stream_has_its_device(void) {
    void *block[2] = {NULL, NULL}, *of_cuda = NULL;
    cudaStream_t far;
    int now = -1;
    CHECK_EQ(cudaSetDevice(1), cudaSuccess);
    CHECK_EQ(cudaStreamCreateWithFlags(&far, cudaStreamNonBlocking), cudaSuccess);
    CHECK_EQ(cudaSetDevice(0), cudaSuccess);
    CHECK_EQ(pool_malloc(&block[0], MIB), cudaSuccess);
    CHECK_EQ(pool_free_async(block[0], far), cudaSuccess);
    CHECK_EQ(pool_malloc_async(&block[1], MIB, far), cudaSuccess);
    CHECK_EQ(device_of(block[1]), 1);
    CHECK_EQ(cudaGetDevice(&now), cudaSuccess);
    CHECK_EQ(now, 0);
    CHECK_EQ(pool_free_async(block[1], far), cudaSuccess);
    CHECK_EQ((cudaMallocAsync)(&of_cuda, MIB, far), cudaSuccess);
    CHECK_EQ(device_of(of_cuda), 1);
    CHECK_EQ((cudaFreeAsync)(of_cuda, far), cudaSuccess);
    CHECK_EQ(cudaStreamSynchronize(far), cudaSuccess);
    for (int device = 0; device < 2; device++) close_default(device);
    CHECK_EQ(cudaStreamDestroy(far), cudaSuccess);
}

#if CHECK_FAKE

static void and_in_chunks(void) {
    fake_device_vmm(0, 0);
    what_is_freed_comes_next();
}

/* Its device cannot be asked for: the current one's arena serves it. */
static void a_stream_of_no_known_device(void) {
    for (int current = 0; current < 2; current++) {
        void *block = NULL;
        cudaStream_t far;
        CHECK_EQ(cudaSetDevice(!current), cudaSuccess);
        CHECK_EQ(cudaStreamCreateWithFlags(&far, cudaStreamNonBlocking), cudaSuccess);
        CHECK_EQ(cudaSetDevice(current), cudaSuccess);
        fake_fail_call("cuCtxPushCurrent", 1, 0, 0);
        CHECK_EQ(pool_malloc_async(&block, MIB, far), cudaSuccess);
        CHECK_EQ(fake_fail_fired(), 1);
        fake_fail_clear();
        CHECK_EQ(default_stats(current).blocks.now, 1);
        CHECK_EQ(pool_free(block), cudaSuccess);
        close_default(current);
        CHECK_EQ(cudaStreamDestroy(far), cudaSuccess);
    }
    CHECK_EQ(cudaSetDevice(0), cudaSuccess);
}

/* ---- work in flight, on any stream, random schedules ---- */

#define SCHEDULES 1500

/* Any stream may use a new block at once, and others may be at it still when it is freed. */
static void any_streams(void) {
    size_t bytes = RACE_BYTES >> race_below(5);
    cudaStream_t one = race_stream(), two = race_stream();
    void *block = NULL, *eager;
    race_put(race_get(RACE_BYTES >> race_below(3), two), two); /* stream order beside it */
    if (gpupool_cudaMalloc(&block, bytes) != cudaSuccess) return;
    race_work(one, block, bytes);
    if (race_below(2)) {
        kit_order(one, two);
        CHECK_EQ(fake_read(two, "reads too", block, bytes, -1), cudaSuccess);
    }
    race_drift();
    if (race_below(4)) CHECK_EQ(gpupool_cudaFree(block), cudaSuccess);
    else if (race_below(2)) race_put(block, one == two ? one : (kit_order(two, one), one));
    else {
        kit_order(one, two);
        race_put(block, two);
    }
    race_drift();
    one = race_stream();
    eager = race_get(RACE_BYTES, one);
    race_put(eager, one);
}

static void at_work(size_t limit) {
    fake_mode(FAKE_STEPPED);
    arena = gpupool_get_default_arena(0);
    CHECK_RESULT(gpupool_set_limit(arena, limit), GPUPOOL_OK);
    for (int seed = 1; seed <= SCHEDULES && !fake_failures(); seed++) {
        check_case("limit %zu, seed %d", limit, seed);
        race_random = (uint64_t)seed;
        any_streams();
        if (seed % 16 == 0) fake_run_all();
        if (seed % 64 == 0) CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    }
    fake_run_all();
    close_default(0);
}
static void work_in_flight_is_safe_when_memory_is_short(void) { at_work(RACE_BYTES); }
static void work_in_flight_is_safe_when_there_is_room(void) { at_work(16 * RACE_BYTES); }

/* Also while a stream captures, whose capture must not be lost. */
static void beside_a_capture(void) {
    cudaGraph_t graph = NULL;
    gpupool_capture *scope = NULL;
    void *block = NULL, *next = NULL, *inside;
    arena = gpupool_get_default_arena(0);
    fake_mode(FAKE_STEPPED);
    CHECK_RESULT(gpupool_set_limit(arena, 4 * MIB), GPUPOOL_OK);
    CHECK_EQ(gpupool_cudaMalloc(&block, 2 * MIB), cudaSuccess);
    CHECK_RESULT(gpupool_begin_capture(arena, kit_stream[0], &scope), GPUPOOL_OK);
    CHECK_EQ(cudaStreamBeginCapture(kit_stream[0], cudaStreamCaptureModeGlobal), cudaSuccess);
    inside = kit_alloc(arena, MIB, kit_stream[0]);
    kit_fill(kit_stream[1], block, 2 * MIB, 1);
    CHECK_EQ(gpupool_cudaFree(block), cudaSuccess);
    CHECK_EQ(gpupool_cudaMalloc(&next, 2 * MIB), cudaSuccess); /* has to wait */
    kit_fill(kit_stream[2], next, 2 * MIB, 2);
    while (fake_step(kit_stream[2])) continue;
    CHECK_EQ(fake_failures(), 0);
    CHECK_EQ(gpupool_cudaFree(next), cudaSuccess);
    CHECK_RESULT(gpupool_free(arena, inside, kit_stream[0]), GPUPOOL_OK);
    CHECK_EQ(cudaStreamEndCapture(kit_stream[0], &graph), cudaSuccess);
    CHECK_EQ(cudaGraphDestroy(graph), cudaSuccess);
    CHECK_RESULT(gpupool_release_capture(scope), GPUPOOL_OK);
    fake_run_all();
    close_default(0);
}

/* The scope is another arena's, and the stream a non-blocking one: only the scope tells of it. */
static void beside_a_scope_of_another_arena(void) {
    for (int ended = 0; ended < 2; ended++) {
        cudaGraph_t graph = NULL;
        gpupool_capture *scope = NULL;
        void *block = NULL;
        gpupool_arena *mine = kit_open(GPUPOOL_SOURCE_AUTO);
        CHECK_EQ(gpupool_cudaMalloc(&block, 2 * MIB), cudaSuccess);
        CHECK_RESULT(gpupool_begin_capture(mine, kit_stream[0], &scope), GPUPOOL_OK);
        CHECK_EQ(cudaStreamBeginCapture(kit_stream[0], cudaStreamCaptureModeGlobal), cudaSuccess);
        void *inside = kit_alloc(mine, MIB, kit_stream[0]);
        CHECK_EQ(gpupool_cudaFree(block), cudaSuccess);
        CHECK_RESULT(gpupool_trim(gpupool_get_default_arena(0), 0, NULL), GPUPOOL_OK);
        CHECK_RESULT(gpupool_free(mine, inside, kit_stream[0]), GPUPOOL_OK);
        CHECK_EQ(cudaStreamEndCapture(kit_stream[0], &graph), cudaSuccess);
        CHECK_EQ(cudaGraphDestroy(graph), cudaSuccess);
        if (ended) CHECK_RESULT(gpupool_end_capture(scope), GPUPOOL_OK);
        CHECK_RESULT(gpupool_release_capture(scope), GPUPOOL_OK);
        CHECK_RESULT(gpupool_trim(gpupool_get_default_arena(0), 0, NULL), GPUPOOL_OK);
        CHECK_EQ(default_stats(0).reserved.now, 0); /* fences over all streams are back */
        kit_close(mine);
        close_default(0);
    }
}

/* Work on a stream that no recorded use tells of. */
static void recorded_uses_are_not_all(void) {
    void *block, *next = NULL;
    arena = gpupool_get_default_arena(0);
    CHECK_RESULT(gpupool_set_limit(arena, 2 * MIB), GPUPOOL_OK);
    block = kit_alloc(arena, 2 * MIB, kit_stream[0]);
    CHECK_RESULT(gpupool_record_stream(arena, block, kit_stream[1]), GPUPOOL_OK);
    fake_hold(kit_stream[2], 1);
    kit_fill(kit_stream[2], block, MIB, 1);
    CHECK_EQ(gpupool_cudaFree(block), cudaSuccess);
    next = kit_alloc(arena, 2 * MIB, kit_stream[3]);
    CHECK(next == block);
    kit_fill(kit_stream[3], next, MIB, 2);
    fake_hold(kit_stream[2], 0);
    CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
    CHECK_EQ(fake_failures(), 0);
    CHECK_EQ(gpupool_cudaFree(next), cudaSuccess);
    close_default(0);
}

/* The same of a graph's block, with recorded uses or without: its scope has it no more. */
static void a_graphs_block_is_no_streams(void) {
    arena = gpupool_get_default_arena(0);
    for (int recorded = 0; recorded < 2; recorded++) {
        gpupool_capture *scope = NULL;
        CHECK_RESULT(gpupool_begin_capture(arena, kit_stream[0], &scope), GPUPOOL_OK);
        void *block = kit_alloc(arena, 2 * MIB, kit_stream[0]), *next;
        if (recorded) CHECK_RESULT(gpupool_record_stream(arena, block, kit_stream[1]), GPUPOOL_OK);
        fake_hold(kit_stream[2], 1);
        kit_fill(kit_stream[2], block, MIB, 1);
        CHECK_EQ(gpupool_cudaFree(block), cudaSuccess);
        next = kit_alloc(arena, 2 * MIB, kit_stream[0]);
        kit_fill(kit_stream[0], next, MIB, 2);
        CHECK_EQ(fake_failures(), 0);
        CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
        fake_hold(kit_stream[2], 0);
        CHECK_RESULT(gpupool_release_capture(scope), GPUPOOL_OK);
        CHECK_EQ(default_stats(0).blocks.now, 0);
        CHECK_EQ(default_stats(0).pending.now, 0);
    }
    close_default(0);
}

#endif

int main(void) {
    ARENA_TEST(blocks_come_and_go);
    ARENA_TEST(what_is_freed_comes_next);
    ARENA_TEST(nothing_is_nothing);
    ARENA_TEST(each_call_leaves_a_result);
    ARENA_TEST(foreign_pointers_go_to_cuda);
    ARENA_TEST(blocks_of_other_arenas_are_refused);
    ARENA_TEST(a_chunk_is_cudas);
    ARENA_TEST(an_error_before_is_over);
    ARENA_TEST(errors_are_cudas);
    ARENA_TEST(a_failure_ends_no_capture);
    FAKE_TEST(cudas_blocks_go_in_stream_order);
    FAKE_TEST(an_error_of_cudas);
    FAKE_TEST(an_error_that_cuda_cannot_keep);
    if (kit_devices() > 1) {
        ARENA_TEST(each_device_has_its_own);
        ARENA_TEST(a_stream_has_its_device);
    } else {
        check_skip("each_device_has_its_own", "needs two devices");
        check_skip("a_stream_has_its_device", "needs two devices");
    }
    FAKE_TEST(and_in_chunks);
    FAKE_TEST(a_stream_of_no_known_device);
    FAKE_TEST(work_in_flight_is_safe_when_memory_is_short);
    FAKE_TEST(work_in_flight_is_safe_when_there_is_room);
    FAKE_TEST(beside_a_capture);
    FAKE_TEST(beside_a_scope_of_another_arena);
    FAKE_TEST(recorded_uses_are_not_all);
    FAKE_TEST(a_graphs_block_is_no_streams);
    return check_finish();
}
