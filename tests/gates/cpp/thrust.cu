/* namespace gpupool under Thrust: vectors in an arena's memory, of each kind; for a real GPU. Where
   there is none, that it compiles is the test. Temporary storage: examples/thrust_vector.cu. */
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"

#include <thrust/device_vector.h>
#include <thrust/host_vector.h>
#include <thrust/reduce.h>
#include <thrust/universal_vector.h>

#include <vector>

typedef gpupool::allocator<int, gpupool::resource, thrust::device_ptr> ints;
typedef thrust::device_vector<int, ints> numbers;
typedef gpupool::allocator<int, gpupool::host_resource, thrust::universal_ptr> shared_ints;
typedef gpupool::allocator<int, gpupool::host_resource> host_ints;

static const int COUNT = 1 << 20;
static int bad;

#define CHECK(truth) \
    ((truth) ? (void)0 : (void)(bad++, fprintf(stderr, "line %d: %s\n", __LINE__, #truth)))

static size_t held(const gpupool::arena &arena) {
    gpupool_stats stats;
    CHECK(gpupool_get_stats(arena.get(), &stats) == GPUPOOL_OK);
    return stats.requested.now;
}

static void vectors() {
    gpupool::arena arena;
    {
        numbers a(COUNT, 7, ints(arena));
        CHECK(held(arena) == COUNT * sizeof(int));
        CHECK(thrust::reduce(a.begin(), a.end()) == 7 * COUNT);
        numbers b(a), c{ints(arena)};
        c = std::move(a);
        CHECK(held(arena) == 2 * COUNT * sizeof(int));
        c.push_back(5);
        c.resize(2 * COUNT, 1);
        CHECK(thrust::reduce(c.begin(), c.end()) == 8 * COUNT + 4);
        c.swap(b);
        b.insert(b.begin(), 3, 100);
        thrust::host_vector<int> host(b);
        CHECK(host[0] == 100 && host[3] == 7);
    }
    CHECK(held(arena) == 0);
}

static void memory_of_the_host() {
    gpupool_arena_config config = {};
    config.source = GPUPOOL_SOURCE_MANAGED;
    gpupool::arena managed(config);
    {
        gpupool::host_resource memory(managed);
        thrust::universal_vector<int, shared_ints> a(COUNT, 3, shared_ints(memory));
        CHECK(thrust::reduce(a.begin(), a.end()) == 3 * COUNT);
        CHECK(cudaDeviceSynchronize() == cudaSuccess && a[5] == 3);
        std::vector<int, host_ints> staging(COUNT, 4, memory);
        numbers b(COUNT, ints(managed));
        thrust::copy(staging.begin(), staging.end(), b.begin());
        CHECK(thrust::reduce(b.begin(), b.end()) == 4 * COUNT);
    }
    CHECK(held(managed) == 0);
}

int main() {
    vectors();
    memory_of_the_host();
    printf("%d failed\n", bad);
    return bad != 0;
}
