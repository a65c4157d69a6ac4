/* user.h: a program's second translation unit. */
#ifndef USER_H
#define USER_H

#include <cuda_runtime_api.h>

typedef cudaError_t (*destroy_fn)(cudaStream_t);
static inline destroy_fn cudas_destroy(void) { return cudaStreamDestroy; } /* before gpupool.h */

#ifdef __cplusplus
extern "C"
#endif
    int
    user_runs(void); /* 1 when the arena it makes does what it should */

#endif
