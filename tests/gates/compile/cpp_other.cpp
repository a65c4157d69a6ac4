/* The second file: in whatever way it is built, what it does is what that says. */
#if defined(CPP_OTHER_IMPLEMENTS)
#define GPUPOOL_IMPLEMENTATION
#endif
#include "cpp.h"

static const size_t TOO_MUCH = size_t(1) << 45;

static bool fails(gpupool::resource memory) {
#if CPP_THROWS
    try {
        memory.allocate(nullptr, TOO_MUCH);
    } catch (const std::bad_alloc &) {
        return true;
    }
    return false;
#else
    return !memory.allocate(nullptr, TOO_MUCH);
#endif
}

template <class T> struct fancy { /* as thrust::device_ptr */
    T *at;
    explicit fancy(T *pointer) : at(pointer) {}
    T *get() const { return at; }
};

template <class Allocator> static bool serves(Allocator numbers) {
    typename Allocator::pointer some = numbers.allocate(10);
    bool served = cpp_live(numbers.of.get()) == 1;
    numbers.deallocate(some, 10);
    return served && cpp_live(numbers.of.get()) == 0;
}

int other_runs(gpupool_arena *main_has, gpupool_arena *default_of_main) {
    checks outcome;
    gpupool::arena mine;
    CHECK(fails(mine));
    CHECK(cpp_own_stream(mine.get()));
    CHECK(serves(gpupool::allocator<int>(mine)) && serves(gpupool::allocator<int, fancy>(mine)));
#if GPUPOOL_STATIC
    CHECK(main_has && gpupool::resource().get() != default_of_main);
    CHECK(gpupool_arena_destroy(gpupool_get_default_arena(0)) == GPUPOOL_OK);
#else
    CHECK(gpupool::resource().get() == default_of_main);
    CHECK(fails(main_has) && cpp_own_stream(main_has));
    gpupool::block block(main_has, 1000);
    CHECK(block.data() && cpp_live(main_has) == 1);
#endif
    return outcome.bad;
}
