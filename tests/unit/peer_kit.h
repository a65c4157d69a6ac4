/* peer_kit.h: an arena of device 0 whose memory device 1, its peer, may use, and a stream of the
   peer's. Include it after gpupool.h; needs fakecuda's controls. */
#ifndef PEER_KIT_H
#define PEER_KIT_H

#include "race_kit.h"

#if CHECK_FAKE

static cudaStream_t far; /* of device 1 */

static inline cudaStream_t stream_of(int device) {
    cudaStream_t stream = NULL;
    CHECK_EQ(cudaSetDevice(device), cudaSuccess);
    CHECK_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    CHECK_EQ(cudaSetDevice(0), cudaSuccess);
    return stream;
}

static inline void allow_the_peer(void) {
    CHECK_RESULT(gpupool_allow_peer(arena, 1), GPUPOOL_OK);
    far = stream_of(1);
}

static inline void open_for_the_peer(gpupool_source source, size_t limit) {
    arena = kit_open_limited(source, limit);
    allow_the_peer();
}

/* Streams run when they are told to. */
static inline void open_stepped_for_the_peer(size_t limit) {
    race_open(GPUPOOL_SOURCE_MAPPED, limit);
    allow_the_peer();
}

static inline void give(void *block, cudaStream_t stream) {
    CHECK_RESULT(gpupool_free(arena, block, stream), GPUPOOL_OK);
}

/* far's work is done, and none of it was refused. */
static inline void finish_there(void) {
    CHECK_EQ(cudaStreamSynchronize(far), cudaSuccess);
    CHECK_EQ(fake_failures(), 0);
}

static inline void end_far(void) { CHECK_EQ(cudaStreamDestroy(far), cudaSuccess); }

static inline void close_with_far(void) {
    end_far();
    kit_close(arena);
}

static inline void its_only_peer_is(int device) {
    CHECK_EQ(arena->chunks.driver.peer_count, 1);
    CHECK_EQ(arena->chunks.driver.peers[0], device);
}

#endif
#endif
