/* The CUDA runtime calls that fakecuda implements: names, values and signatures as in CUDA 13.0. */
#ifndef FAKECUDA_CUDA_RUNTIME_API_H
#define FAKECUDA_CUDA_RUNTIME_API_H

#include <stddef.h>

#ifndef CUDART_CB
#define CUDART_CB
#endif

typedef struct CUstream_st    *cudaStream_t;
typedef struct CUevent_st     *cudaEvent_t;
typedef struct CUgraph_st     *cudaGraph_t;
typedef struct CUgraphNode_st *cudaGraphNode_t;
typedef struct CUgraphExec_st *cudaGraphExec_t;
typedef void(CUDART_CB *cudaHostFn_t)(void *userData);

#ifndef __CUDACC__ /* as crt/host_defines.h for other compilers */
#define __host__
#define __device__
#endif

#define cudaStreamLegacy    ((cudaStream_t)0x1)
#define cudaStreamPerThread ((cudaStream_t)0x2)

#define cudaHostAllocDefault             0x00
#define cudaStreamDefault                0x00
#define cudaStreamNonBlocking            0x01
#define cudaEventDisableTiming           0x02
#define cudaMemAttachGlobal              0x01
#define cudaMemAttachHost                0x02
#define cudaEnableDefault                0x00
#define cudaEnablePerThreadDefaultStream 0x02
#define cudaInvalidDeviceId              ((int)-2)

enum cudaError {
#define FK_ERROR(number, runtime, driver) runtime = (number),
#include "fakecuda_errors.h"
#undef FK_ERROR
};
typedef enum cudaError cudaError_t;

enum cudaMemcpyKind {
    cudaMemcpyHostToHost     = 0,
    cudaMemcpyHostToDevice   = 1,
    cudaMemcpyDeviceToHost   = 2,
    cudaMemcpyDeviceToDevice = 3,
    cudaMemcpyDefault        = 4
};

enum cudaMemoryType {
    cudaMemoryTypeUnregistered = 0,
    cudaMemoryTypeHost         = 1,
    cudaMemoryTypeDevice       = 2,
    cudaMemoryTypeManaged      = 3
};

struct cudaPointerAttributes {
    enum cudaMemoryType type;
    int                 device;
    void               *devicePointer;
    void               *hostPointer;
    long                reserved[8];
};

enum cudaStreamCaptureStatus {
    cudaStreamCaptureStatusNone        = 0,
    cudaStreamCaptureStatusActive      = 1,
    cudaStreamCaptureStatusInvalidated = 2
};

enum cudaStreamCaptureMode {
    cudaStreamCaptureModeGlobal      = 0,
    cudaStreamCaptureModeThreadLocal = 1,
    cudaStreamCaptureModeRelaxed     = 2
};

enum cudaDriverEntryPointQueryResult {
    cudaDriverEntryPointSuccess             = 0,
    cudaDriverEntryPointSymbolNotFound      = 1,
    cudaDriverEntryPointVersionNotSufficent = 2
};

typedef struct cudaGraphEdgeData_st {
    unsigned char from_port;
    unsigned char to_port;
    unsigned char type;
    unsigned char reserved[5];
} cudaGraphEdgeData;

#define CUDART_VERSION 13000

/* Handle 0 means the calling thread's own stream in a program compiled with
   CUDA_API_PER_THREAD_DEFAULT_STREAM: its calls go by another name. */
#if defined(CUDA_API_PER_THREAD_DEFAULT_STREAM)
#define cudaMemcpy                       cudaMemcpy_ptds
#define cudaMemset                       cudaMemset_ptds
#define cudaMemcpyAsync                  cudaMemcpyAsync_ptsz
#define cudaMemsetAsync                  cudaMemsetAsync_ptsz
#define cudaGraphLaunch                  cudaGraphLaunch_ptsz
#define cudaStreamBeginCapture           cudaStreamBeginCapture_ptsz
#define cudaStreamEndCapture             cudaStreamEndCapture_ptsz
#define cudaStreamIsCapturing            cudaStreamIsCapturing_ptsz
#define cudaStreamQuery                  cudaStreamQuery_ptsz
#define cudaEventRecord                  cudaEventRecord_ptsz
#define cudaMallocAsync                  cudaMallocAsync_ptsz
#define cudaFreeAsync                    cudaFreeAsync_ptsz
#define cudaStreamWaitEvent              cudaStreamWaitEvent_ptsz
#define cudaStreamSynchronize            cudaStreamSynchronize_ptsz
#define cudaLaunchHostFunc               cudaLaunchHostFunc_ptsz
#define cudaGetDriverEntryPointByVersion cudaGetDriverEntryPointByVersion_ptsz
#define cudaStreamGetCaptureInfo         cudaStreamGetCaptureInfo_ptsz
#endif

#if defined(__cplusplus)
#define FAKECUDA_DEFAULT(value) = value
extern "C" {
#else
#define FAKECUDA_DEFAULT(value)
#endif

/* errors and versions */
cudaError_t cudaGetLastError(void);
cudaError_t cudaPeekAtLastError(void);
const char *cudaGetErrorName(cudaError_t error);
const char *cudaGetErrorString(cudaError_t error);
const char *cudaGetErrorString(cudaError_t error);
cudaError_t cudaRuntimeGetVersion(int *runtimeVersion);
cudaError_t cudaDriverGetVersion(int *driverVersion);
cudaError_t cudaGetDriverEntryPointByVersion(
    const char *symbol, void **funcPtr, unsigned int cudaVersion, unsigned long long flags,
    enum cudaDriverEntryPointQueryResult *driverStatus FAKECUDA_DEFAULT(NULL));

/* devices */
cudaError_t cudaGetDevice(int *device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaDeviceSynchronize(void);
cudaError_t cudaDeviceReset(void);

/* memory */
cudaError_t cudaMalloc(void **devPtr, size_t size);
cudaError_t cudaFree(void *devPtr);
cudaError_t cudaMallocAsync(void **devPtr, size_t size, cudaStream_t hStream);
cudaError_t cudaFreeAsync(void *devPtr, cudaStream_t hStream);
cudaError_t cudaMallocManaged(void **devPtr, size_t size,
                              unsigned int flags FAKECUDA_DEFAULT(cudaMemAttachGlobal));
cudaError_t cudaHostAlloc(void **pHost, size_t size, unsigned int flags);
cudaError_t cudaFreeHost(void *ptr);
cudaError_t cudaHostRegister(void *ptr, size_t size, unsigned int flags);
cudaError_t cudaHostUnregister(void *ptr);
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *ptr);
cudaError_t cudaMemGetInfo(size_t *free, size_t *total);

/* transfers */
cudaError_t cudaMemset(void *devPtr, int value, size_t count);
cudaError_t cudaMemsetAsync(void *devPtr, int value, size_t count,
                            cudaStream_t stream FAKECUDA_DEFAULT(0));
cudaError_t cudaMemcpy(void *dst, const void *src, size_t count, enum cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t count, enum cudaMemcpyKind kind,
                            cudaStream_t stream FAKECUDA_DEFAULT(0));

/* streams */
cudaError_t cudaStreamCreate(cudaStream_t *pStream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *pStream, unsigned int flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event,
                                unsigned int flags FAKECUDA_DEFAULT(0));
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void *userData);

/* events */
cudaError_t cudaEventCreate(cudaEvent_t *event);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream FAKECUDA_DEFAULT(0));
cudaError_t cudaEventQuery(cudaEvent_t event);

/* capture and graphs */
cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode);
cudaError_t cudaStreamIsCapturing(cudaStream_t stream,
                                  enum cudaStreamCaptureStatus *pCaptureStatus);
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream,
                                     enum cudaStreamCaptureStatus *captureStatus_out,
                                     unsigned long long *id_out FAKECUDA_DEFAULT(0),
                                     cudaGraph_t *graph_out FAKECUDA_DEFAULT(0),
                                     const cudaGraphNode_t **dependencies_out FAKECUDA_DEFAULT(0),
                                     const cudaGraphEdgeData **edgeData_out FAKECUDA_DEFAULT(0),
                                     size_t *numDependencies_out FAKECUDA_DEFAULT(0));
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *pGraph);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *pGraphExec, cudaGraph_t graph,
                                 unsigned long long flags FAKECUDA_DEFAULT(0));
cudaError_t cudaGraphLaunch(cudaGraphExec_t graphExec, cudaStream_t stream);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graphExec);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);

#if defined(__cplusplus)
}
#endif
#endif
