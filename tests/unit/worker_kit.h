/* worker_kit.h: the test's own thread as a worker of the ring. Include it after ring_kit.h, in a
   program with the implementation. */
#ifndef WORKER_KIT_H
#define WORKER_KIT_H

/* Returns when the worker ends, and undoes what would end with a worker's thread. */
static inline void worker_be(gpupool_ring *of, int number) {
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
    gpi_ring_lock(of);
    gpi_ring_worker_loop(of, &of->threads[number]);
    gpi_ring_unlock(of);
    CHECK_EQ(cudaThreadExchangeStreamCaptureMode(&mode), cudaSuccess);
}

#endif
