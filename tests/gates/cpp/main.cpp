/* The first file, with the implementation: owners, the resource and the allocator of namespace
   gpupool on the simulated GPU, whose oracle sees work of two streams in one block. */
#define GPUPOOL_IMPLEMENTATION
#include "cpp.h"

#include <type_traits>
#include <utility>
#include <vector>

static checks outcome;

static void arenas() {
    gpupool::arena first, second(from(GPUPOOL_SOURCE_AUTO, 8 * MIB));
    gpupool_arena *a = first.get(), *b = second.get();
    gpupool_stats stats;
    CHECK(a && b && a != b && gpupool_get_stats(b, &stats) == GPUPOOL_OK);
    CHECK(stats.limit == 8 * MIB);
    gpupool::arena third(std::move(first));
    CHECK(!first.get() && third.get() == a);
    first = std::move(second);
    CHECK(first.get() == b && !second.get());
    gpupool::arena &same = first;
    first = std::move(same);
    CHECK(first.get() == b);
    third = std::move(first); /* a is destroyed */
    CHECK(third.get() == b && !first.get());
    CHECK(gpupool_trim(a, 0) == GPUPOOL_E_ARGUMENT);
    gpupool_arena_config wrong = from(GPUPOOL_SOURCE_CUSTOM);
    CHECK(fails([&] { return gpupool::arena(wrong).get(); }));
    CHECK(gpupool_last_result() == GPUPOOL_E_ARGUMENT);
    static_assert(!std::is_copy_constructible<gpupool::arena>::value, "an arena has one owner");
    static_assert(std::is_nothrow_move_assignable<gpupool::arena>::value, "fit for containers");
}

/* An owner whose blocks are live does not destroy its arena. */
static void arenas_with_blocks_stay() {
    gpupool_arena *kept = nullptr;
    void *block = nullptr;
    {
        gpupool::arena arena;
        kept = arena.get();
        block = gpupool_alloc(kept, 1000, nullptr);
    }
    CHECK(gpupool_last_result() == GPUPOOL_E_IN_USE && live(kept) == 1);
    CHECK(gpupool_free(kept, block, nullptr) == GPUPOOL_OK);
    CHECK(gpupool_arena_destroy(kept) == GPUPOOL_OK);
}

struct with_get { /* as cuda::stream_ref */
    cudaStream_t stream;
    cudaStream_t get() const { return stream; }
};
struct convertible { /* as rmm::cuda_stream_view */
    cudaStream_t stream;
    operator cudaStream_t() const { return stream; }
};

static void every_way_to_ask(cudaStream_t stream) {
    gpupool::arena arena;
    const gpupool::resource memory(arena, "a label");
    with_get get = {stream};
    convertible view = {stream};
    void *p[] = {memory.allocate(stream, 1000),  memory.allocate(get, 1000, 4096),
                 memory.allocate(view, 1000),    memory.allocate(gpupool::stream(), 1000),
                 memory.allocate(nullptr, 1000), memory.allocate_sync(1000),
                 memory.allocate(1000, 4096),    memory.allocate_async(1000, 4096, get)};
    for (void *block : p) {
        gpupool_block seen;
        CHECK(gpupool_get_block(arena.get(), block, &seen) == GPUPOOL_OK);
        CHECK(seen.requested == 1000 && !strcmp(seen.label, "a label"));
    }
    for (int i : {1, 6, 7}) CHECK(reinterpret_cast<uintptr_t>(p[i]) % 4096 == 0);
    memory.deallocate(stream, p[0], 1000);
    memory.deallocate(get, p[1], 1000, 4096);
    memory.deallocate(view, p[2]);
    memory.deallocate(gpupool::stream(), p[3]);
    memory.deallocate(nullptr, p[4], 1000);
    memory.deallocate_sync(p[5], 1000);
    memory.deallocate(p[6], 1000, 4096);
    memory.deallocate_async(p[7], 1000, 4096, get);
    CHECK(live(arena.get()) == 0);
}

static void nothing_and_too_much(cudaStream_t stream) {
    gpupool::arena arena(from(GPUPOOL_SOURCE_AUTO, 64 * MIB));
    gpupool::resource memory(arena);
    CHECK(!memory.allocate(stream, 0) && !memory.allocate_sync(0));
    memory.deallocate(stream, nullptr, 0);
    CHECK(fails([&] { return memory.allocate(stream, 65 * MIB); }));
    CHECK(gpupool_last_result() == GPUPOOL_E_OUT_OF_MEMORY);
    CHECK(strstr(gpupool_last_error(), "limit"));
    CHECK(fails([&] { return memory.allocate_sync(1000, 3); })); /* no power of two */
    gpupool::allocator<long long> numbers(memory, stream);
    CHECK(fails([&] { return numbers.allocate(SIZE_MAX / 8 + 2); })); /* the product is 8 */
    CHECK(live(arena.get()) == 0);
}

static void equality() {
    gpupool::arena one, two;
    gpupool::resource a(one), same(one.get(), "label"), other(two);
    CHECK(a == same && a != other && a.get() == one.get());
    gpupool::allocator<int> first(a), again(same), elsewhere(other), later(a, GPUPOOL_NO_STREAM);
    CHECK(first == again && first != elsewhere && first != later);
    static_assert(noexcept(a == same) &&noexcept(a != same), "containers rely on it");
    static_assert(std::is_nothrow_copy_constructible<gpupool::resource>::value, "a reference");
}

/* allocate_sync's memory serves any stream at once: work on it has ended, or the oracle tells. */
static void memory_without_a_stream() {
    gpupool::arena arena(from(GPUPOOL_SOURCE_AUTO, 2 * MIB));
    cudaStream_t other = nullptr;
    CHECK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking) == cudaSuccess);
    gpupool::resource memory(arena);
    fake_mode(FAKE_STEPPED);
    void *a = memory.allocate(nullptr, 2 * MIB);
    fake_write(gpupool::stream().handle, "first", a, 2 * MIB, 1);
    memory.deallocate(nullptr, a);
    void *b = memory.allocate_sync(2 * MIB);
    fake_write(other, "next", b, 2 * MIB, 2);
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
    memory.deallocate_sync(b);
    fake_mode(FAKE_EAGER);
    CHECK(cudaStreamDestroy(other) == cudaSuccess);
}

typedef std::vector<int, gpupool::allocator<int, gpupool::host_resource>> host_vector;

static void containers_of_the_host(gpupool_source source) {
    gpupool::arena arena(from(source));
    gpupool::host_resource memory(arena);
    {
        host_vector numbers(memory);
        for (int i = 0; i < 10000; i++) numbers.push_back(i);
        host_vector copy(numbers), moved(std::move(numbers));
        CHECK(copy == moved && moved[9999] == 9999);
        CHECK(live(arena.get()) == 2);
    }
    CHECK(live(arena.get()) == 0);
}

int main() {
    cudaStream_t stream = nullptr;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
    arenas();
    arenas_with_blocks_stay();
    every_way_to_ask(stream);
    nothing_and_too_much(stream);
    equality();
    memory_without_a_stream();
    containers_of_the_host(GPUPOOL_SOURCE_PINNED);
    containers_of_the_host(GPUPOOL_SOURCE_MANAGED);
    {
        gpupool::arena arena;
        CHECK(other_runs(arena.get()) == 0);
    }
    CHECK(cudaStreamDestroy(stream) == cudaSuccess);
    CHECK(fake_failures() == 0 && fake_misuses() == 0 && fake_live_objects() == 0);
    return outcome.bad != 0;
}
