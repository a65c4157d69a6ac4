/* The CUDA runtime calls that fakecuda implements: signatures as in CUDA 13.0. Compile with
 * -DFAKECUDA_CUDART_VERSION=12080 to get the shapes of CUDA 12 where the two differ. */
#ifndef FAKECUDA_CUDA_RUNTIME_API_H
#define FAKECUDA_CUDA_RUNTIME_API_H

#include "driver_types.h"

#if defined(FAKECUDA_CUDART_VERSION)
#define CUDART_VERSION FAKECUDA_CUDART_VERSION
#else
#define CUDART_VERSION 13000
#endif

/* Handle 0 means the calling thread's own stream in a program compiled with
   CUDA_API_PER_THREAD_DEFAULT_STREAM: its calls go by another name. */
#if defined(CUDA_API_PER_THREAD_DEFAULT_STREAM)
#define cudaMemcpy                       cudaMemcpy_ptds
#define cudaMemset                       cudaMemset_ptds
#define cudaMemcpyAsync                  cudaMemcpyAsync_ptsz
#define cudaMemcpy2DAsync                cudaMemcpy2DAsync_ptsz
#define cudaMemsetAsync                  cudaMemsetAsync_ptsz
#define cudaGraphLaunch                  cudaGraphLaunch_ptsz
#define cudaStreamBeginCapture           cudaStreamBeginCapture_ptsz
#define cudaStreamEndCapture             cudaStreamEndCapture_ptsz
#define cudaStreamIsCapturing            cudaStreamIsCapturing_ptsz
#define cudaStreamQuery                  cudaStreamQuery_ptsz
#define cudaStreamGetDevice              cudaStreamGetDevice_ptsz
#define cudaStreamGetId                  cudaStreamGetId_ptsz
#define cudaEventRecord                  cudaEventRecord_ptsz
#define cudaMallocAsync                  cudaMallocAsync_ptsz
#define cudaFreeAsync                    cudaFreeAsync_ptsz
#define cudaStreamWaitEvent              cudaStreamWaitEvent_ptsz
#define cudaStreamSynchronize            cudaStreamSynchronize_ptsz
#define cudaLaunchHostFunc               cudaLaunchHostFunc_ptsz
#define cudaGetDriverEntryPoint          cudaGetDriverEntryPoint_ptsz
#define cudaGetDriverEntryPointByVersion cudaGetDriverEntryPointByVersion_ptsz
#define cudaStreamGetCaptureInfo_v2      cudaStreamGetCaptureInfo_v2_ptsz
#if CUDART_VERSION >= 13000
#define cudaStreamGetCaptureInfo         cudaStreamGetCaptureInfo_ptsz
#endif
#endif

#if CUDART_VERSION < 13000
#define cudaStreamGetCaptureInfo cudaStreamGetCaptureInfo_v2
#endif

#if defined(__cplusplus)
#define FAKECUDA_DEFAULT(value) = value
extern "C" {
#else
#define FAKECUDA_DEFAULT(value)
#endif

/* errors and versions */
cudaError_t CUDARTAPI cudaGetLastError(void);
cudaError_t CUDARTAPI cudaPeekAtLastError(void);
const char *CUDARTAPI cudaGetErrorName(cudaError_t error);
const char *CUDARTAPI cudaGetErrorString(cudaError_t error);
cudaError_t CUDARTAPI cudaRuntimeGetVersion(int *runtimeVersion);
cudaError_t CUDARTAPI cudaDriverGetVersion(int *driverVersion);
cudaError_t CUDARTAPI cudaGetDriverEntryPoint(
    const char *symbol, void **funcPtr, unsigned long long flags,
    enum cudaDriverEntryPointQueryResult *driverStatus FAKECUDA_DEFAULT(NULL));
cudaError_t CUDARTAPI cudaGetDriverEntryPointByVersion(
    const char *symbol, void **funcPtr, unsigned int cudaVersion, unsigned long long flags,
    enum cudaDriverEntryPointQueryResult *driverStatus FAKECUDA_DEFAULT(NULL));

/* devices */
cudaError_t CUDARTAPI cudaGetDevice(int *device);
cudaError_t CUDARTAPI cudaSetDevice(int device);
cudaError_t CUDARTAPI cudaGetDeviceCount(int *count);
cudaError_t CUDARTAPI cudaDeviceSynchronize(void);
cudaError_t CUDARTAPI cudaDeviceReset(void);

/* memory */
cudaError_t CUDARTAPI cudaMalloc(void **devPtr, size_t size);
cudaError_t CUDARTAPI cudaFree(void *devPtr);
cudaError_t CUDARTAPI cudaMallocAsync(void **devPtr, size_t size, cudaStream_t hStream);
cudaError_t CUDARTAPI cudaFreeAsync(void *devPtr, cudaStream_t hStream);
cudaError_t CUDARTAPI cudaMallocManaged(void **devPtr, size_t size,
                                        unsigned int flags FAKECUDA_DEFAULT(cudaMemAttachGlobal));
cudaError_t CUDARTAPI cudaHostAlloc(void **pHost, size_t size, unsigned int flags);
cudaError_t CUDARTAPI cudaFreeHost(void *ptr);
cudaError_t CUDARTAPI cudaHostRegister(void *ptr, size_t size, unsigned int flags);
cudaError_t CUDARTAPI cudaHostUnregister(void *ptr);
cudaError_t CUDARTAPI cudaPointerGetAttributes(struct cudaPointerAttributes *attributes,
                                               const void *ptr);
cudaError_t CUDARTAPI cudaMemGetInfo(size_t *free, size_t *total);

/* transfers */
cudaError_t CUDARTAPI cudaMemset(void *devPtr, int value, size_t count);
cudaError_t CUDARTAPI cudaMemsetAsync(void *devPtr, int value, size_t count,
                                      cudaStream_t stream FAKECUDA_DEFAULT(0));
cudaError_t CUDARTAPI cudaMemcpy(void *dst, const void *src, size_t count,
                                 enum cudaMemcpyKind kind);
cudaError_t CUDARTAPI cudaMemcpyAsync(void *dst, const void *src, size_t count,
                                      enum cudaMemcpyKind kind,
                                      cudaStream_t stream FAKECUDA_DEFAULT(0));
cudaError_t CUDARTAPI cudaMemcpy2DAsync(void *dst, size_t dpitch, const void *src, size_t spitch,
                                        size_t width, size_t height, enum cudaMemcpyKind kind,
                                        cudaStream_t stream FAKECUDA_DEFAULT(0));

/* streams */
cudaError_t CUDARTAPI cudaStreamCreate(cudaStream_t *pStream);
cudaError_t CUDARTAPI cudaStreamCreateWithFlags(cudaStream_t *pStream, unsigned int flags);
cudaError_t CUDARTAPI cudaStreamDestroy(cudaStream_t stream);
cudaError_t CUDARTAPI cudaStreamQuery(cudaStream_t stream);
cudaError_t CUDARTAPI cudaStreamSynchronize(cudaStream_t stream);
cudaError_t CUDARTAPI cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event,
                                          unsigned int flags FAKECUDA_DEFAULT(0));
cudaError_t CUDARTAPI cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void *userData);

/* events */
cudaError_t CUDARTAPI cudaEventCreate(cudaEvent_t *event);
cudaError_t CUDARTAPI cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags);
cudaError_t CUDARTAPI cudaEventDestroy(cudaEvent_t event);
cudaError_t CUDARTAPI cudaEventRecord(cudaEvent_t event, cudaStream_t stream FAKECUDA_DEFAULT(0));
cudaError_t CUDARTAPI cudaEventQuery(cudaEvent_t event);
cudaError_t CUDARTAPI cudaEventSynchronize(cudaEvent_t event);

/* capture and graphs */
cudaError_t CUDARTAPI cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode);
cudaError_t CUDARTAPI cudaStreamIsCapturing(cudaStream_t stream,
                                            enum cudaStreamCaptureStatus *pCaptureStatus);
#if CUDART_VERSION >= 13000
cudaError_t CUDARTAPI cudaStreamGetCaptureInfo(
    cudaStream_t stream, enum cudaStreamCaptureStatus *captureStatus_out,
    unsigned long long *id_out FAKECUDA_DEFAULT(0), cudaGraph_t *graph_out FAKECUDA_DEFAULT(0),
    const cudaGraphNode_t **dependencies_out FAKECUDA_DEFAULT(0),
    const cudaGraphEdgeData **edgeData_out FAKECUDA_DEFAULT(0),
    size_t *numDependencies_out FAKECUDA_DEFAULT(0));
#else
cudaError_t CUDARTAPI cudaStreamGetCaptureInfo_v2(
    cudaStream_t stream, enum cudaStreamCaptureStatus *captureStatus_out,
    unsigned long long *id_out FAKECUDA_DEFAULT(0), cudaGraph_t *graph_out FAKECUDA_DEFAULT(0),
    const cudaGraphNode_t **dependencies_out FAKECUDA_DEFAULT(0),
    size_t *numDependencies_out FAKECUDA_DEFAULT(0));
#endif
cudaError_t CUDARTAPI cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode);
cudaError_t CUDARTAPI cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *pGraph);
cudaError_t CUDARTAPI cudaGraphInstantiate(cudaGraphExec_t *pGraphExec, cudaGraph_t graph,
                                           unsigned long long flags FAKECUDA_DEFAULT(0));
cudaError_t CUDARTAPI cudaGraphLaunch(cudaGraphExec_t graphExec, cudaStream_t stream);
cudaError_t CUDARTAPI cudaGraphExecDestroy(cudaGraphExec_t graphExec);
cudaError_t CUDARTAPI cudaGraphDestroy(cudaGraph_t graph);

#if defined(__cplusplus)
}
#endif
#endif
