/* Every call that fakecuda implements: FK_CALL(name, kind, traits, price in ns).
 *
 * Kinds: RUNTIME; DRIVER answers with a CUresult and leaves the runtime's last error alone; TWINS,
 * of the driver too, has a twin to which a stream of 0 is the thread's own default stream; OWN is
 * no call of CUDA's: not in the count of all calls, and never made to fail but by its name.
 *
 * Traits: FK_ALLOC its usual fault is out of memory;
 * FK_EXEMPT never made to fail, nor counted as fallible;
 * FK_BARE makes no context for the current device, which all others but the driver's do (seen of
 * twenty of them on two H100, CUDA 13.0);
 * FK_HERE of the driver: needs a current context, which is not destroyed;
 * FK_UNDOES takes back what the program did itself, and has no other reason to fail than that there
 * is nothing to take back: fails only by its name;
 * FK_UNSAFE forbidden while a capture that is not relaxed is under way (asking about an event is
 * too, but an event of the capture itself gets another answer, so fk_event.c sees to it);
 * FK_RESOURCE asks for something that there may be too little of, and has changed nothing when it
 * fails: fake_fail_resource and fake_break tell these calls from the others;
 * FK_STALLS waits while a thread is stuck in a full launch queue (fk_queue.c).
 *
 * Prices were measured on an H200, those of cuMem* on an H100 (CUDA 13.0); what a call costs by
 * size or by handle is added where it is implemented. What was not measured has the price of the
 * nearest call that was. */
FK_CALL(cudaGetLastError, RUNTIME, FK_EXEMPT, 10)
FK_CALL(cudaPeekAtLastError, RUNTIME, FK_EXEMPT, 10)
FK_CALL(cudaGetErrorName, RUNTIME, FK_EXEMPT, 10)
FK_CALL(cudaRuntimeGetVersion, RUNTIME, FK_BARE, 25)
FK_CALL(cudaDriverGetVersion, RUNTIME, FK_BARE, 25)
FK_CALL(cudaGetDriverEntryPointByVersion, RUNTIME, FK_BARE, 1000)
FK_CALL(cudaGetDevice, RUNTIME, FK_BARE, 25)
FK_CALL(cudaSetDevice, RUNTIME, FK_BARE, 40)
FK_CALL(cudaGetDeviceCount, RUNTIME, FK_BARE, 25)
FK_CALL(cudaDeviceSynchronize, RUNTIME, 0, 1254)
FK_CALL(cudaDeviceReset, RUNTIME, FK_BARE, 1000000)
FK_CALL(cudaMalloc, RUNTIME, FK_ALLOC | FK_RESOURCE | FK_UNSAFE | FK_STALLS, 0)
FK_CALL(cudaFree, RUNTIME, FK_UNSAFE, 0)
FK_CALL(cudaMallocAsync, RUNTIME, FK_ALLOC | FK_RESOURCE, 250)
FK_CALL(cudaFreeAsync, RUNTIME, FK_BARE, 250)
FK_CALL(cudaMallocManaged, RUNTIME, FK_ALLOC | FK_RESOURCE | FK_UNSAFE | FK_STALLS, 0)
FK_CALL(cudaHostAlloc, RUNTIME, FK_ALLOC | FK_RESOURCE | FK_UNSAFE | FK_STALLS, 0)
FK_CALL(cudaFreeHost, RUNTIME, FK_UNSAFE, 0)
FK_CALL(cudaHostRegister, RUNTIME, FK_ALLOC | FK_RESOURCE | FK_UNSAFE | FK_STALLS, 0)
FK_CALL(cudaHostUnregister, RUNTIME, FK_UNSAFE, 0)
FK_CALL(cudaPointerGetAttributes, RUNTIME, FK_BARE, 100)
FK_CALL(cudaMemGetInfo, RUNTIME, 0, 3300)
FK_CALL(cudaMemset, RUNTIME, FK_UNSAFE, 2600)
FK_CALL(cudaMemsetAsync, RUNTIME, 0, 2600)
FK_CALL(cudaMemcpy, RUNTIME, FK_UNSAFE, 5800)
FK_CALL(cudaMemcpyAsync, RUNTIME, 0, 1300)
FK_CALL(cudaStreamCreate, RUNTIME, FK_RESOURCE | FK_STALLS, 5000)
FK_CALL(cudaStreamCreateWithFlags, RUNTIME, FK_RESOURCE | FK_STALLS, 5000)
FK_CALL(cudaStreamDestroy, RUNTIME, FK_STALLS, 5000)
FK_CALL(cudaStreamQuery, RUNTIME, FK_UNSAFE, 133)
FK_CALL(cudaStreamSynchronize, RUNTIME, FK_UNSAFE, 1254)
FK_CALL(cudaStreamWaitEvent, RUNTIME, 0, 173)
FK_CALL(cudaLaunchHostFunc, RUNTIME, 0, 1500)
FK_CALL(cudaEventCreateWithFlags, RUNTIME, FK_RESOURCE | FK_STALLS, 90)
FK_CALL(cudaEventDestroy, RUNTIME, 0, 89)
FK_CALL(cudaEventRecord, RUNTIME, 0, 178)
FK_CALL(cudaEventQuery, RUNTIME, FK_BARE, 116)
FK_CALL(cudaThreadExchangeStreamCaptureMode, RUNTIME, 0, 25)
FK_CALL(cudaStreamIsCapturing, RUNTIME, 0, 40)
FK_CALL(cudaStreamGetCaptureInfo, RUNTIME, 0, 40)
FK_CALL(cudaStreamBeginCapture, RUNTIME, 0, 5000)
FK_CALL(cudaStreamEndCapture, RUNTIME, 0, 5000)
FK_CALL(cudaGraphInstantiate, RUNTIME, FK_UNSAFE, 20000)
FK_CALL(cudaGraphLaunch, RUNTIME, 0, 5000)
FK_CALL(cudaGraphExecDestroy, RUNTIME, 0, 5000)
FK_CALL(cudaGraphDestroy, RUNTIME, 0, 5000)
FK_CALL(fake_kernel, OWN, 0, 2600)
FK_CALL(cuDeviceCanAccessPeer, DRIVER, 0, 40)
FK_CALL(cuDevicePrimaryCtxRetain, DRIVER, 0, 40)
FK_CALL(cuDevicePrimaryCtxRelease, DRIVER, FK_UNDOES, 40)
FK_CALL(cuCtxGetDevice, DRIVER, FK_HERE, 25)
FK_CALL(cuCtxEnablePeerAccess, DRIVER, FK_HERE, 1000000)
FK_CALL(cuDeviceGetAttribute, DRIVER, 0, 40)
FK_CALL(cuCtxGetCurrent, DRIVER, 0, 25)
FK_CALL(cuCtxPushCurrent, DRIVER, 0, 40)
FK_CALL(cuCtxPopCurrent, DRIVER, FK_UNDOES, 40)
FK_CALL(cuStreamGetCtx, TWINS, 0, 15)
FK_CALL(cuStreamIsCapturing, TWINS, 0, 15)
FK_CALL(cuStreamCreate, DRIVER, FK_HERE | FK_RESOURCE | FK_STALLS, 5000)
FK_CALL(cuStreamDestroy, DRIVER, FK_STALLS, 5000)
FK_CALL(cuStreamGetId, TWINS, 0, 38)
FK_CALL(cuStreamSynchronize, TWINS, FK_UNSAFE, 1254)
FK_CALL(cuEventCreate, DRIVER, FK_HERE | FK_RESOURCE | FK_STALLS, 90)
FK_CALL(cuEventDestroy, DRIVER, 0, 89)
FK_CALL(cuEventSynchronize, DRIVER, 0, 1254)
FK_CALL(cuEventRecord, TWINS, 0, 138)
FK_CALL(cuStreamWaitEvent, TWINS, 0, 113)
FK_CALL(cuEventQuery, DRIVER, 0, 126)
FK_CALL(cuThreadExchangeStreamCaptureMode, DRIVER, 0, 8)
FK_CALL(cuMemGetAllocationGranularity, DRIVER, 0, 40)
FK_CALL(cuMemAddressReserve, DRIVER, FK_ALLOC | FK_RESOURCE, 42000)
FK_CALL(cuMemAddressFree, DRIVER, 0, 42000)
FK_CALL(cuMemCreate, DRIVER, FK_ALLOC | FK_RESOURCE, 0)
FK_CALL(cuMemRelease, DRIVER, 0, 0)
FK_CALL(cuMemExportToShareableHandle, DRIVER, 0, 33000)
FK_CALL(cuMemImportFromShareableHandle, DRIVER, FK_RESOURCE, 33000)
FK_CALL(cuMemMap, DRIVER, FK_RESOURCE, 1000)
FK_CALL(cuMemUnmap, DRIVER, 0, 3000)
FK_CALL(cuMemSetAccess, DRIVER, FK_RESOURCE, 8000)
FK_CALL(cuPointerGetAttributes, DRIVER, 0, 100)
FK_CALL(cuMemAlloc, DRIVER, FK_HERE | FK_ALLOC | FK_RESOURCE | FK_UNSAFE | FK_STALLS, 0)
FK_CALL(cuMemFree, DRIVER, FK_HERE | FK_UNSAFE, 0)
FK_CALL(cuMemAllocManaged, DRIVER, FK_HERE | FK_ALLOC | FK_RESOURCE | FK_UNSAFE | FK_STALLS, 0)
FK_CALL(cuMemHostAlloc, DRIVER, FK_HERE | FK_ALLOC | FK_RESOURCE | FK_UNSAFE | FK_STALLS, 0)
FK_CALL(cuMemFreeHost, DRIVER, FK_HERE | FK_UNSAFE, 0)
FK_CALL(cuMemHostRegister, DRIVER, FK_HERE | FK_ALLOC | FK_RESOURCE | FK_UNSAFE | FK_STALLS, 0)
FK_CALL(cuMemHostUnregister, DRIVER, FK_HERE | FK_UNSAFE, 0)
FK_CALL(cuMemGetInfo, DRIVER, FK_HERE, 3300)
FK_CALL(cuMemsetD8Async, TWINS, FK_HERE, 2600)
FK_CALL(cuMemcpyAsync, TWINS, FK_HERE, 1300)
FK_CALL(cuMemcpy2DAsync, TWINS, FK_HERE, 1300)
