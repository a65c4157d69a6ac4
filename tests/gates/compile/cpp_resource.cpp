/* gpupool::resource as cuda::mr and RMM see it: its concepts and properties, by the names of CUDA's
   library that is here, and calls through references that know no more than those. */
#define LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE /* before CCCL 3.1 */
#include <cuda/memory_resource>
#include <cuda/stream_ref>

#define GPUPOOL_IMPLEMENTATION
#include "cpp.h"

namespace mr = cuda::mr;
typedef mr::device_accessible device;
typedef mr::host_accessible host;

struct unknown {}; /* a property that no resource has */

#if defined(CCCL_VERSION) && CCCL_VERSION >= 3001000
template <class R, class... Properties>
constexpr bool suits = mr::resource_with<R, Properties...> &&
                       mr::synchronous_resource_with<R, Properties...>;
#else
template <class R, class... Properties>
constexpr bool suits = mr::async_resource_with<R, Properties...> &&
                       mr::resource_with<R, Properties...>;
#endif
static_assert(suits<gpupool::resource, device>, "device memory");
static_assert(!suits<gpupool::resource, host>, "not for the host");
static_assert(!suits<gpupool::resource, unknown>, "no other property");
static_assert(suits<gpupool::host_resource, device, host>, "for both");
static_assert(!suits<gpupool::host_resource, device, host, unknown>, "no other property");

static checks outcome;

static bool throws(void (*call)(gpupool::resource &), gpupool::resource &memory) {
    try {
        call(memory);
    } catch (const std::bad_alloc &) {
        return true;
    }
    return false;
}

/* as rmm::device_async_resource_ref */
#if defined(CCCL_VERSION) && CCCL_VERSION >= 3002000
typedef mr::resource_ref<device> reference;
static void *get(reference r, size_t bytes, size_t align, cuda::stream_ref stream) {
    return r.allocate(stream, bytes, align);
}
static void put(reference r, void *p, size_t bytes, size_t align, cuda::stream_ref stream) {
    r.deallocate(stream, p, bytes, align);
}
static void *get_sync(reference r, size_t bytes) { return r.allocate_sync(bytes, 256); }
static void put_sync(reference r, void *p, size_t bytes) { r.deallocate_sync(p, bytes, 256); }
static void owned(gpupool::resource memory) {
    mr::any_resource<device> any(memory);
    void *p = any.allocate_sync(1000, 256);
    CHECK(p && any == mr::any_resource<device>(memory));
    any.deallocate_sync(p, 1000, 256);
}
#elif !defined(CCCL_VERSION) || CCCL_VERSION < 3001000
typedef mr::async_resource_ref<device> reference;
static void *get(reference r, size_t bytes, size_t align, cuda::stream_ref stream) {
    return r.allocate_async(bytes, align, stream);
}
static void put(reference r, void *p, size_t bytes, size_t align, cuda::stream_ref stream) {
    r.deallocate_async(p, bytes, align, stream);
}
static void *get_sync(reference r, size_t bytes) { return r.allocate(bytes, 256); }
static void put_sync(reference r, void *p, size_t bytes) { r.deallocate(p, bytes, 256); }
static void owned(gpupool::resource) {}
#else /* it has concepts only */
typedef gpupool::resource &reference;
static void *get(reference r, size_t bytes, size_t align, cuda::stream_ref stream) {
    return r.allocate(stream, bytes, align);
}
static void put(reference r, void *p, size_t bytes, size_t align, cuda::stream_ref stream) {
    r.deallocate(stream, p, bytes, align);
}
static void *get_sync(reference r, size_t bytes) { return r.allocate_sync(bytes, 256); }
static void put_sync(reference r, void *p, size_t bytes) { r.deallocate_sync(p, bytes, 256); }
static void owned(gpupool::resource) {}
#endif

int main() {
    cudaStream_t stream = nullptr;
    CHECK(cudaStreamCreate(&stream) == cudaSuccess);
    {
        gpupool::arena arena, other;
        gpupool::resource memory(arena), same(arena.get()), another(other);
        reference r = memory, s = same, t = another;
        CHECK(r == s && r != t);
        for (size_t align = 1; align <= (size_t(4) << 20); align *= 2) {
            void *p = get(r, 1000, align, stream);
            CHECK(p && reinterpret_cast<uintptr_t>(p) % align == 0);
            put(s, p, 1000, align, stream);
        }
        void *p = get_sync(r, 1000);
        CHECK(p && cpp_live(arena.get()) == 1);
        put_sync(r, p, 1000);
        CHECK(!get(r, 0, 256, stream));
        put(r, nullptr, 0, 256, stream);
        CHECK(throws([](gpupool::resource &m) { get(m, size_t(1) << 45, 256, cudaStream_t()); },
                     memory));
        owned(memory);
        gpupool::block block(arena, 1000, cuda::stream_ref(stream));
        CHECK(cpp_live(arena.get()) == 1);
    }
    CHECK(cudaStreamDestroy(stream) == cudaSuccess);
    return outcome.bad != 0;
}
