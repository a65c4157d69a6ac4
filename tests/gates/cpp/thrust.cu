/* namespace gpupool under Thrust: vectors and temporary storage in an arena; for a real GPU. Where
   there is none, that it compiles is the test. */
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"

#include <thrust/device_vector.h>
#include <thrust/functional.h>
#include <thrust/host_vector.h>
#include <thrust/reduce.h>
#include <thrust/scan.h>
#include <thrust/sequence.h>
#include <thrust/sort.h>
#include <thrust/system/cuda/execution_policy.h>
#include <thrust/universal_vector.h>

#include <cstring>
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

static gpupool_arena_config from(gpupool_source source, size_t limit) {
    gpupool_arena_config config = {};
    config.source = source;
    config.limit_bytes = limit;
    return config;
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

/* In both forms of the policy; par_nosync returns before the storage's work is done. */
static void temporary_storage() {
    gpupool::arena arena;
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
    gpupool::allocator<char> scratch(arena, stream);
    {
        numbers a(COUNT, ints(arena)), least(COUNT, ints(arena));
        size_t vectors = held(arena);
        CHECK(cudaDeviceSynchronize() == cudaSuccess);
        for (int round = 0; round < 20; round++) {
            auto policy = thrust::cuda::par_nosync(scratch).on(stream);
            thrust::sequence(policy, a.begin(), a.end());
            thrust::sort(policy, a.begin(), a.end(), thrust::greater<int>());
            thrust::inclusive_scan(policy, a.begin(), a.end(), least.begin(),
                                   thrust::minimum<int>());
            CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
            CHECK(least[0] == COUNT - 1 && least[COUNT - 1] == 0 && held(arena) == vectors);
            int most = thrust::reduce(thrust::cuda::par(scratch).on(stream), a.begin(), a.end(), 0,
                                      thrust::maximum<int>());
            CHECK(most == COUNT - 1);
        }
    }
    CHECK(held(arena) == 0);
    CHECK(cudaStreamDestroy(stream) == cudaSuccess);
}

static void too_much_is_bad_alloc() {
    gpupool::arena arena(from(GPUPOOL_SOURCE_AUTO, 64 << 20));
    bool threw = false;
    try {
        numbers a(17 << 20, ints(arena));
    } catch (const std::bad_alloc &error) {
        threw = strstr(error.what(), "limit");
    }
    CHECK(threw && held(arena) == 0);
}

static void memory_of_both() {
    gpupool::arena managed(from(GPUPOOL_SOURCE_MANAGED, 0)), pinned(from(GPUPOOL_SOURCE_PINNED, 0));
    {
        thrust::universal_vector<int, shared_ints> a(COUNT, 3,
                                                     shared_ints(gpupool::host_resource(managed)));
        CHECK(thrust::reduce(a.begin(), a.end()) == 3 * COUNT);
        CHECK(cudaDeviceSynchronize() == cudaSuccess && a[5] == 3);
        std::vector<int, host_ints> staging(COUNT, 4, gpupool::host_resource(pinned));
        numbers b(COUNT, ints(managed));
        thrust::copy(staging.begin(), staging.end(), b.begin());
        CHECK(thrust::reduce(b.begin(), b.end()) == 4 * COUNT);
    }
    CHECK(held(managed) == 0 && held(pinned) == 0);
}

int main() {
    vectors();
    temporary_storage();
    too_much_is_bad_alloc();
    memory_of_both();
    printf("%d failed\n", bad);
    return bad != 0;
}
