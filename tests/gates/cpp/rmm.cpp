/* What RMM 26 does with a resource: containers, adaptors, and the device's current resource. */
#include "gpupool.h"

#include <rmm/cuda_stream_view.hpp>
#include <rmm/device_buffer.hpp>
#include <rmm/device_uvector.hpp>
#include <rmm/mr/limiting_resource_adaptor.hpp>
#include <rmm/mr/per_device_resource.hpp>
#include <rmm/mr/statistics_resource_adaptor.hpp>
#include <rmm/resource_ref.hpp>

size_t containers(rmm::cuda_stream_view stream, const gpupool::arena &arena) {
    gpupool::resource memory(arena, "rmm");
    gpupool::host_resource pinned(memory);
    rmm::device_async_resource_ref reference(memory);
    rmm::host_device_async_resource_ref both(pinned);
    rmm::device_buffer buffer(1000, stream, memory), other(1000, stream, reference);
    rmm::device_uvector<int> numbers(1000, stream, memory);
    rmm::mr::statistics_resource_adaptor counted(memory);
    rmm::device_buffer third(1000, stream, counted), fourth(1000, stream, both);
    rmm::mr::limiting_resource_adaptor limited(memory, 1 << 20);
    rmm::device_uvector<char> letters(1000, stream, limited);
    rmm::mr::set_current_device_resource(memory);
    void *block = memory.allocate(stream, 1000);
    memory.deallocate(stream, block, 1000);
    return buffer.size() + numbers.size() + letters.size();
}
