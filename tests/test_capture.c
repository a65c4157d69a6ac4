/* Allocating on a capturing stream, growth included, in every mode of capture: the capture is not
   lost, and the graph's work reaches its blocks. Runs on a GPU too. */
#define GPUPOOL_IMPLEMENTATION
#include "../gpupool.h"
#include "arena_kit.h"

static const enum cudaStreamCaptureMode modes[] = {
    cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeRelaxed};
static const gpupool_source sources[] = {GPUPOOL_SOURCE_AUTO, GPUPOOL_SOURCE_DEVICE};

#define BYTES ((size_t)3 << 20)

static void launch(cudaGraph_t graph, cudaStream_t stream, int times) {
    cudaGraphExec_t exec = NULL;
    CHECK_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    for (int i = 0; i < times; i++) CHECK_EQ(cudaGraphLaunch(exec, stream), cudaSuccess);
    CHECK_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    CHECK_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
}

static void expect_bytes(const void *block, int byte) {
    static unsigned char host[BYTES];
    CHECK_EQ(cudaMemcpy(host, block, BYTES, cudaMemcpyDeviceToHost), cudaSuccess);
    for (size_t i = 0; i < BYTES; i += 4093) CHECK_EQ(host[i], byte);
}

static void captured(gpupool_source source, enum cudaStreamCaptureMode mode) {
    gpupool_arena *arena = kit_open(source);
    cudaStream_t stream = kit_stream[0];
    cudaGraph_t graph = NULL;
    void *kept, *passing;
    CHECK_EQ(cudaStreamBeginCapture(stream, mode), cudaSuccess);
    kept = kit_alloc(arena, BYTES, stream); /* nothing is held yet, so this grows */
    CHECK_EQ(cudaMemsetAsync(kept, 7, BYTES, stream), cudaSuccess);
    passing = gpupool_zalloc(arena, 16 * BYTES, stream);
    CHECK(passing != NULL);
    CHECK_RESULT(gpupool_free(arena, passing, stream), GPUPOOL_OK);
    CHECK_EQ((size_t)kit_alloc(arena, 16 * BYTES, stream), (size_t)passing);
    CHECK_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    CHECK(graph != NULL);
    launch(graph, stream, 3);
    expect_bytes(kept, 7);
    CHECK_EQ(cudaGraphDestroy(graph), cudaSuccess);
    CHECK_RESULT(gpupool_free(arena, passing, stream), GPUPOOL_OK);
    CHECK_RESULT(gpupool_free(arena, kept, stream), GPUPOOL_OK);
    kit_close(arena);
}

static void a_capturing_stream_allocates(void) {
    for (size_t s = 0; s < KIT_COUNT(sources); s++) {
        for (size_t m = 0; m < KIT_COUNT(modes); m++) {
            check_case("source %d, mode %d", (int)sources[s], (int)modes[m]);
            captured(sources[s], modes[m]);
        }
    }
}

/* Growth on an ordinary stream while another captures: cudaMalloc would end the capture. */
static void another_stream_grows_meanwhile(void) {
    for (size_t s = 0; s < KIT_COUNT(sources); s++) {
        for (size_t m = 0; m < KIT_COUNT(modes); m++) {
            check_case("source %d, mode %d", (int)sources[s], (int)modes[m]);
            gpupool_arena *arena = kit_open(sources[s]);
            cudaGraph_t graph = NULL;
            CHECK_EQ(cudaStreamBeginCapture(kit_stream[0], modes[m]), cudaSuccess);
            void *block = kit_alloc(arena, BYTES, kit_stream[1]);
            void *other = kit_alloc(arena, 40 * BYTES, kit_stream[2]);
            CHECK_RESULT(gpupool_free(arena, other, kit_stream[2]), GPUPOOL_OK);
            CHECK_RESULT(gpupool_record_use(arena, block, kit_stream[2]), GPUPOOL_OK);
            CHECK_RESULT(gpupool_free(arena, block, kit_stream[1]), GPUPOOL_OK);
            CHECK_EQ(cudaStreamEndCapture(kit_stream[0], &graph), cudaSuccess);
            CHECK(graph != NULL);
            CHECK_EQ(cudaGraphDestroy(graph), cudaSuccess);
            kit_close(arena);
        }
    }
}

int main(void) {
    ARENA_TEST(a_capturing_stream_allocates);
    ARENA_TEST(another_stream_grows_meanwhile);
    return check_finish();
}
