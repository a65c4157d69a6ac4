/* The second file: in whatever way it is built, its calls do what that says. */
#include "cpp.h"

template <class Allocator> static bool serves(Allocator numbers) {
    typename Allocator::pointer some = numbers.allocate(10);
    bool is_served = live(numbers.memory.get()) == 1;
    numbers.deallocate(some, 10);
    return is_served && live(numbers.memory.get()) == 0;
}

static cudaStream_t own_stream() {
#ifdef CUDA_API_PER_THREAD_DEFAULT_STREAM
    return cudaStreamPerThread;
#else
    return cudaStreamLegacy;
#endif
}

int other_runs(gpupool_arena *of_main) {
    checks outcome;
    gpupool::arena mine;
    for (gpupool::resource memory : {gpupool::resource(mine), gpupool::resource(of_main)}) {
        CHECK(fails([&] { return memory.allocate(nullptr, TOO_MUCH); }));
        CHECK(serves(gpupool::allocator<int>(memory)));
    }
    CHECK(gpupool::stream().handle == own_stream());
    CHECK(gpupool::stream(nullptr).handle == own_stream());
    CHECK(gpupool::stream(GPUPOOL_NO_STREAM).handle == GPUPOOL_NO_STREAM);
    return outcome.bad;
}
