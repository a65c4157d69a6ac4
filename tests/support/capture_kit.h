/* capture_kit.h: what the tests of capture scopes share: one arena, scopes, captures and their
   graphs. Include it after gpupool.h. */
#ifndef CAPTURE_KIT_H
#define CAPTURE_KIT_H

#include "arena_kit.h"

static const enum cudaStreamCaptureMode modes[] = {
    cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeRelaxed};
static const gpupool_source sources[] = {GPUPOOL_SOURCE_AUTO, GPUPOOL_SOURCE_DEVICE};

#define BYTES ((size_t)3 << 20)

static gpupool_arena *arena;

static inline gpupool_capture *scope_on(cudaStream_t stream) {
    gpupool_capture *scope = NULL;
    CHECK_RESULT(gpupool_begin_capture(arena, stream, &scope), GPUPOOL_OK);
    return scope;
}

static inline void *get(size_t bytes, cudaStream_t stream) {
    return kit_alloc(arena, bytes, stream);
}

static inline void put(void *block, cudaStream_t stream) {
    CHECK_RESULT(gpupool_free(arena, block, stream), GPUPOOL_OK);
}

static inline void fill(cudaStream_t stream, void *at, size_t bytes, int byte) {
    CHECK_EQ(cudaMemsetAsync(at, byte, bytes, stream), cudaSuccess);
}

static inline void begin(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
    CHECK_EQ(cudaStreamBeginCapture(stream, mode), cudaSuccess);
}

static inline cudaGraph_t ended(cudaStream_t stream) {
    cudaGraph_t graph = NULL;
    CHECK_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    CHECK(graph != NULL);
    return graph;
}

/* Not while this thread captures: CUDA refuses then, and that capture is lost. */
static inline cudaGraphExec_t made(cudaGraph_t graph) {
    cudaGraphExec_t exec = NULL;
    CHECK_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    CHECK_EQ(cudaGraphDestroy(graph), cudaSuccess);
    return exec;
}

static inline cudaGraphExec_t end(cudaStream_t stream) { return made(ended(stream)); }

static inline void release(gpupool_capture *scope, cudaGraphExec_t exec) {
    if (exec) CHECK_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
    CHECK_RESULT(gpupool_release_capture(scope), GPUPOOL_OK);
}

static inline void expect(const void *block, size_t bytes, int byte) {
    static unsigned char host[BYTES];
    CHECK_EQ(cudaMemcpy(host, block, bytes, cudaMemcpyDefault), cudaSuccess);
    for (size_t i = 0; i < bytes; i += 997) CHECK_EQ(host[i], byte);
}

/* Every block of the arena is free and in one account. */
static inline void all_is_back(void) {
    gpupool_stats stats = kit_stats(arena);
    CHECK_EQ(stats.blocks.now, 0);
    CHECK_EQ(stats.requested.now, 0);
    CHECK_EQ(stats.granted.now, 0);
#ifdef GPUPOOL_IMPLEMENTATION
    CHECK_EQ(gpi_process.scopes, 0);
#endif
}

#endif
