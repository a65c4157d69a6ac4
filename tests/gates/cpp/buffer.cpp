/* What CUDA's library from CCCL 3.2 on does with a resource: buffers that own their memory. */
#include <cuda/buffer>

#include "gpupool.h"

size_t buffers(cudaStream_t stream, const gpupool::arena &arena) {
    gpupool::resource memory(arena);
    gpupool::host_resource both(memory);
    auto numbers = cuda::make_buffer<int>(cuda::stream_ref(stream), memory, 100, cuda::no_init);
    auto shared = cuda::make_buffer<int>(cuda::stream_ref(stream), both, 100, cuda::no_init);
    static_assert(cuda::std::is_same_v<decltype(numbers), cuda::device_buffer<int>>,
                  "of the device");
    shared.get_unsynchronized(0) = 1; /* the host may use it */
    return numbers.size() + shared.size();
}
