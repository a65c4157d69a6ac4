/* How do RMM's containers, and libraries that allocate by RMM, get an arena's memory?

   gpupool::resource is a resource as RMM and cuda::mr want it: a container takes it as an argument,
   RMM's adaptors wrap it, and as the device's current resource it serves whoever names none (cuDF,
   cuML, ...). A stream orders what it allocates, as with RMM's own pool.
   Build: c++ -std=c++20 -I.. -I$RMM/include -I$RMM/include/rapids -I$CUDA_HOME/include \
       rmm_resource.cpp -L$RMM/lib64 -lrmm -L$RMM/../rapids_logger/lib64 -lrapids_logger \
       -L$CUDA_HOME/lib64 -lcudart -lpthread
   with RMM the folder librmm of `pip install librmm-cu13`.
   Prints what RMM's statistics and the arena say of the same blocks, and the arena's sentence when
   a limit is reached. */
#define GPUPOOL_STREAM_CHECK 1 /* RMM destroys streams without a word to gpupool (rule 2) */
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "example.h"

#include <rmm/cuda_stream.hpp>
#include <rmm/device_uvector.hpp>
#include <rmm/mr/per_device_resource.hpp>
#include <rmm/mr/statistics_resource_adaptor.hpp>

static uint64_t live_bytes(const gpupool::arena &arena) {
    gpupool_stats stats;
    POOL(gpupool_get_stats(arena.get(), &stats));
    return stats.requested.now;
}

int main() {
    gpupool_arena_config config = {};
    config.name = "RMM";
    config.limit_bytes = 256 * MIB;
    gpupool::arena arena(config);
    gpupool::resource memory(arena, "rmm"); /* the label of its blocks in reports */
    rmm::mr::statistics_resource_adaptor counted(memory);
    rmm::cuda_stream stream;
    rmm::mr::set_current_device_resource(counted);
    {
        rmm::device_uvector<int> by_default(16 * MIB, stream); /* the current resource's */
        rmm::device_uvector<int> by_name(MIB, stream, memory);
        printf("RMM counts %.0f MiB in the current resource, the arena has %.0f MiB in all\n",
               example_mib((uint64_t)counted.get_bytes_counter().value),
               example_mib(live_bytes(arena)));
    }
    try {
        rmm::device_uvector<int> large(128 * MIB, stream);
        FAIL("512 MiB", "fit under a limit of 256 MiB");
    } catch (const std::bad_alloc &error) {
        printf("%s\n", error.what());
    }
    rmm::mr::reset_current_device_resource();
    return live_bytes(arena) != 0;
}
