/* gpupool::resource as cuda::mr sees it: its concepts and properties, by the names of CUDA's
   library that is here, and calls through references that know no more than those. */
#include "gpupool.h" /* before CUDA's library: the order does not matter */

#include <cuda/memory_resource>
#include <cuda/stream_ref>

#define GPUPOOL_IMPLEMENTATION
#include "cpp.h"

namespace mr = cuda::mr;
typedef mr::device_accessible device;
typedef mr::host_accessible host;

struct unknown {}; /* a property that no resource has */

#if CCCL_VERSION >= 3001000
template <class R, class... Properties>
constexpr bool suits =
    mr::resource_with<R, Properties...> &&mr::synchronous_resource_with<R, Properties...>;
#else
template <class R, class... Properties>
constexpr bool suits =
    mr::async_resource_with<R, Properties...> &&mr::resource_with<R, Properties...>;
#endif

static_assert(suits<gpupool::resource, device>, "device memory");
static_assert(!suits<gpupool::resource, host>, "not for the host");
static_assert(!suits<gpupool::resource, unknown>, "no other property");
static_assert(suits<gpupool::host_resource, device, host>, "for both");
static_assert(!suits<gpupool::host_resource, device, host, unknown>, "no other property");

static checks outcome;

/* as rmm::device_async_resource_ref */
#if CCCL_VERSION >= 3002000
typedef mr::resource_ref<device> reference;
#elif CCCL_VERSION >= 3001000 /* it has concepts only */
typedef gpupool::resource &reference;
#else
typedef mr::async_resource_ref<device> reference;
#endif

static void *get(reference r, size_t bytes, size_t align, cuda::stream_ref stream) {
#if CCCL_VERSION >= 3001000
    return r.allocate(stream, bytes, align);
#else
    return r.allocate_async(bytes, align, stream);
#endif
}

static void put(reference r, void *p, size_t bytes, size_t align, cuda::stream_ref stream) {
#if CCCL_VERSION >= 3001000
    r.deallocate(stream, p, bytes, align);
#else
    r.deallocate_async(p, bytes, align, stream);
#endif
}

#if defined(__CUDACC__) && __has_include(<cuda/buffer>)
#include <cuda/buffer>

/* Buffers that own their memory: of the device, and for both. */
size_t buffers(cudaStream_t stream, const gpupool::arena &arena) {
    gpupool::resource memory(arena);
    auto numbers = cuda::make_buffer<int>(cuda::stream_ref(stream), memory, 100, cuda::no_init);
    auto shared = cuda::make_buffer<int>(cuda::stream_ref(stream), gpupool::host_resource(memory),
                                         100, cuda::no_init);
    shared.get_unsynchronized(0) = 1; /* the host may use it */
    return numbers.size() + shared.size();
}
#endif

int main() {
    cudaStream_t stream = nullptr;
    CHECK(cudaStreamCreate(&stream) == cudaSuccess);
    {
        gpupool::arena arena, other;
        gpupool::resource memory(arena), same(arena.get()), another(other);
        reference r = memory, s = same, t = another;
        CHECK(r == s && r != t);
        for (size_t align = 1; align <= 4 * MIB; align *= 2) {
            void *p = get(r, 1000, align, stream);
            CHECK(p && reinterpret_cast<uintptr_t>(p) % align == 0);
            put(s, p, 1000, align, stream);
        }
        CHECK(!get(r, 0, 256, stream));
        put(r, nullptr, 0, 256, stream);
        CHECK(fails([&] { return get(r, TOO_MUCH, 256, cudaStream_t()); }));
        CHECK(live(arena.get()) == 0);
    }
    CHECK(cudaStreamDestroy(stream) == cudaSuccess);
    return outcome.bad != 0;
}
