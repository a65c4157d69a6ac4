/* The first file, with the implementation: owners, the resource and the allocator of namespace
   gpupool on the simulated GPU, whose oracle sees work of two streams at one block. */
#define GPUPOOL_IMPLEMENTATION
#include "cpp.h"

#include "../../fakecuda/fakecuda.h"

#include <thread>
#include <utility>
#include <vector>

static const size_t MIB = size_t(1) << 20, TOO_MUCH = size_t(1) << 45;

static checks outcome;

static gpupool_arena_config limited(size_t bytes) {
    gpupool_arena_config config = gpupool_arena_config();
    config.limit_bytes = bytes;
    return config;
}

static cudaStream_t new_stream() {
    cudaStream_t stream = nullptr;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
    return stream;
}

template <class Call> static bool fails(Call call) { /* whose result is a pointer */
#if CPP_THROWS
    try {
        call();
    } catch (const std::bad_alloc &error) {
        return !strcmp(error.what(), gpupool_last_error()) && *error.what();
    }
    return false;
#else
    return !call();
#endif
}

template <class T> static void move_to_itself(T &it) { T &same = it; it = std::move(same); }

static void arenas() {
    long before = fake_live_objects();
    {
        gpupool::arena first, second(limited(8 * MIB));
        gpupool_arena *a = first.get(), *b = second.get();
        size_t limit = 0;
        CHECK(a && b && a != b && gpupool_get_limit(b, &limit) == GPUPOOL_OK && limit == 8 * MIB);
        gpupool::arena third(std::move(first));
        CHECK(!first.get() && third.get() == a);
        first = std::move(second);
        CHECK(first.get() == b && !second.get());
        move_to_itself(first);
        CHECK(first.get() == b);
        third = std::move(first); /* a is destroyed */
        CHECK(third.get() == b && !first.get());
        gpupool_arena *mine = third.release();
        CHECK(mine == b && !third.get() && gpupool_arena_destroy(mine) == GPUPOOL_OK);
        gpupool_arena_config wrong = limited(0);
        wrong.limit_text = "much";
        CHECK(fails([&] { return gpupool::arena(wrong).get(); }));
        CHECK(gpupool::arena({}).get());
    }
    CHECK(fake_live_objects() == before);
}

static void blocks() {
    gpupool::arena arena(limited(64 * MIB));
    cudaStream_t one = new_stream(), two = new_stream();
    {
        gpupool::block none, a(arena, 1000, one), b(arena.get(), MIB, two, MIB);
        void *at = a.data(), *aligned = b.data();
        CHECK(!none.data() && none.size() == 0 && !none.release());
        CHECK(at && a.size() == 1000 && aligned && uintptr_t(aligned) % MIB == 0);
        gpupool::block c(std::move(a));
        CHECK(!a.data() && a.size() == 0 && c.data() == at && c.size() == 1000);
        move_to_itself(c);
        CHECK(c.data() == at && cpp_live(arena.get()) == 2);
        c = std::move(b);
        CHECK(c.data() == aligned && c.size() == MIB && !b.data());
        b = gpupool::block();
        a = gpupool::block();
        CHECK(cpp_live(arena.get()) == 1);
        void *mine = c.release();
        CHECK(mine == aligned && !c.data() && gpupool_free(arena.get(), mine, two) == GPUPOOL_OK);
        std::vector<gpupool::block> many;
        for (size_t i = 0; i < 20; i++) many.push_back(gpupool::block(arena, 1 + i * 1000, one));
        CHECK(cpp_live(arena.get()) == 20);
        CHECK(fails([&] { return gpupool::block(arena, TOO_MUCH, one).data(); }));
        CHECK(fails([&] { return gpupool::block(arena, 1, one, 3).data(); })); /* no power of two */
        gpupool::block empty(arena, 0, one);
        CHECK(!empty.data() && empty.size() == 0);
    }
    CHECK(cpp_live(arena.get()) == 0);
    CHECK(cpp_own_stream(arena.get()));
    CHECK(cudaStreamDestroy(one) == cudaSuccess && cudaStreamDestroy(two) == cudaSuccess);
}

/* The block belongs to the stream that used it last: the other one must wait for it. */
static void a_block_changes_streams() {
    gpupool::arena arena(limited(2 * MIB));
    cudaStream_t one = new_stream(), two = new_stream();
    fake_mode(FAKE_STEPPED);
    for (int moved = 0; moved < 2; moved++) {
        gpupool::block a(arena, MIB, one);
        if (moved) {
            fake_hold(two, 1);
            fake_write(two, "late", a.data(), MIB, 1);
            a.set_stream(two);
        } else {
            fake_write(one, "early", a.data(), MIB, 2);
        }
        a = gpupool::block();
        gpupool::block b(arena, 2 * MIB, one);
        fake_write(one, "next", b.data(), 2 * MIB, 3);
        fake_hold(two, 0);
        CHECK(cudaDeviceSynchronize() == cudaSuccess);
    }
    fake_mode(FAKE_EAGER);
    CHECK(fake_failures() == 0);
    CHECK(cudaStreamDestroy(one) == cudaSuccess && cudaStreamDestroy(two) == cudaSuccess);
}

struct with_get { /* as cuda::stream_ref */
    cudaStream_t stream;
    cudaStream_t get() const { return stream; }
};
struct convertible { /* as rmm::cuda_stream_view */
    cudaStream_t stream;
    operator cudaStream_t() const { return stream; }
};

static void every_way_to_ask() {
    gpupool::arena arena;
    const gpupool::resource memory(arena);
    cudaStream_t stream = new_stream();
    with_get get = {stream};
    convertible view = {stream};
    void *p[] = {memory.allocate(stream, 1000),          memory.allocate(get, 1000, 512),
                 memory.allocate(view, 1000),            memory.allocate(nullptr, 1000),
                 memory.allocate(1000),                  memory.allocate(1000, 4096),
                 memory.allocate_sync(1000),             memory.allocate_sync(1000, 256),
                 memory.allocate_async(1000, 256, get),  memory.allocate_async(1000, 16, view),
                 memory.allocate_async(1000, 1, stream), memory.allocate(view, 1000, 2048)};
    for (void *block : p) {
        gpupool_block seen;
        CHECK(gpupool_get_block(arena.get(), block, &seen) == GPUPOOL_OK);
        CHECK(seen.requested_bytes == 1000);
#if GPUPOOL_SITES
        CHECK(strstr(seen.file, "cpp_main.cpp") && seen.line == __LINE__ - 15);
#endif
    }
    CHECK(cpp_live(arena.get()) == 12 && uintptr_t(p[5]) % 4096 == 0);
    memory.deallocate(stream, p[0], 1000);
    memory.deallocate(get, p[1], 1000, 512);
    memory.deallocate(view, p[2]);
    memory.deallocate(nullptr, p[3]);
    memory.deallocate(p[4], 1000);
    memory.deallocate(p[5], 1000, 4096);
    memory.deallocate_sync(p[6], 1000);
    memory.deallocate_sync(p[7], 1000, 256);
    memory.deallocate_async(p[8], 1000, 256, get);
    memory.deallocate_async(p[9], 1000, 16, view);
    memory.deallocate_async(p[10], 1000, 1, stream);
    memory.deallocate(view, p[11], 1000, 2048);
    CHECK(cpp_live(arena.get()) == 0);
    CHECK(cudaStreamDestroy(stream) == cudaSuccess);
}

static void nothing_and_too_much() {
    gpupool::arena arena(limited(16 * MIB));
    gpupool::resource memory(arena);
    gpupool::allocator<double> numbers(memory);
    CHECK(!memory.allocate(nullptr, 0, 256) && !memory.allocate_sync(0) && !numbers.allocate(0));
    memory.deallocate(nullptr, nullptr, 0);
    memory.deallocate_sync(nullptr, 0);
    numbers.deallocate(nullptr, 0);
    for (size_t bytes : {17 * MIB, TOO_MUCH, SIZE_MAX}) {
        CHECK(fails([&] { return memory.allocate(nullptr, bytes, 256); }));
        CHECK(fails([&] { return memory.allocate_sync(bytes); }));
        CHECK(fails([&] { return memory.allocate_async(bytes, 256, nullptr); }));
    }
    CHECK(fails([&] { return numbers.allocate(SIZE_MAX / 8 + 2); })); /* its bytes wrap to 8 */
    CHECK(fails([&] { return numbers.allocate(SIZE_MAX); }));
    CHECK(fails([&] { return memory.allocate(nullptr, 100, 48); }));
    CHECK(cpp_live(arena.get()) == 0);
}

static void alignments() {
    gpupool::arena arena;
    gpupool::resource memory(arena);
    cudaStream_t stream = new_stream();
    for (size_t align = 1; align <= 4 * MIB; align *= 2) {
        std::vector<void *> got;
        std::vector<size_t> sizes;
        for (size_t bytes : {size_t(1), size_t(1000), align - 1, align, align + 1, 3 * align}) {
            if (!bytes) continue;
            void *p = memory.allocate(stream, bytes, align);
            CHECK(p && uintptr_t(p) % align == 0 && uintptr_t(p) % 256 == 0);
            fake_write(stream, "mark", p, bytes, int(got.size()));
            got.push_back(p);
            sizes.push_back(bytes);
            void *q = memory.allocate_sync(bytes, align);
            CHECK(q && uintptr_t(q) % align == 0);
            memory.deallocate_sync(q, bytes, align);
        }
        for (size_t i = 0; i < got.size(); i++) {
            fake_read(stream, "verify", got[i], sizes[i], int(i));
            memory.deallocate(stream, got[i], sizes[i], align);
        }
    }
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess && fake_failures() == 0);
    CHECK(cpp_live(arena.get()) == 0 && gpupool_check(arena.get()) == GPUPOOL_OK);
    CHECK(cudaStreamDestroy(stream) == cudaSuccess);
}

/* Memory of allocate_sync is idle: any stream may use it at once. */
static void sync_memory_is_idle() {
    gpupool::arena arena(limited(4 * MIB));
    gpupool::resource memory(arena);
    cudaStream_t one = new_stream(), two = new_stream();
    fake_mode(FAKE_STEPPED);
    for (int i = 0; i < 4; i++) {
        cudaStream_t first = i % 2 ? one : nullptr; /* the legacy stream */
        void *p = memory.allocate(first, 3 * MIB);
        fake_write(first, "earlier", p, 3 * MIB, 1);
        memory.deallocate(first, p);
        void *q = memory.allocate_sync(3 * MIB);
        fake_write(two, "later", q, 3 * MIB, 2);
        CHECK(cudaStreamSynchronize(two) == cudaSuccess);
        memory.deallocate_sync(q);
    }
    fake_mode(FAKE_EAGER);
    CHECK(fake_failures() == 0 && cpp_live(arena.get()) == 0);
    for (int i = 0; i < 3; i++) { /* what is finished already needs no call */
        long before = fake_calls(nullptr);
        memory.deallocate_sync(memory.allocate_sync(3 * MIB));
        CHECK(i == 0 || fake_calls(nullptr) == before);
    }
    CHECK(cpp_live(arena.get()) == 0);
    CHECK(cudaStreamDestroy(one) == cudaSuccess && cudaStreamDestroy(two) == cudaSuccess);
}

/* ---- eight threads, each on its own stream; some blocks are freed by another thread ---- */

struct piece {
    void *at;
    size_t bytes, align;
    int byte;
};

struct turn { /* of one thread */
    gpupool::resource memory;
    cudaStream_t stream;
    unsigned seed;
    std::vector<piece> passed_on;

    unsigned next() { return (seed = seed * 1664525u + 1013904223u) >> 8; }
    piece get() {
        piece p = {nullptr, 1 + next() % (256u << next() % 12), size_t(256) << next() % 13,
                   int(next() % 256)};
        p.at = memory.allocate(stream, p.bytes, p.align);
        CHECK(p.at && uintptr_t(p.at) % p.align == 0);
        fake_write(stream, "mark", p.at, p.bytes, p.byte);
        return p;
    }
    void put(const piece &p) {
        fake_read(stream, "verify", p.at, p.bytes, p.byte);
        memory.deallocate(stream, p.at, p.bytes, p.align);
    }
    void run() {
        std::vector<piece> mine;
        for (int i = 0; i < 400; i++) {
            if (mine.size() < 20 && next() % 8 < 5) mine.push_back(get());
            else if (!mine.empty()) {
                std::swap(mine[next() % mine.size()], mine.back());
                if (next() % 3) put(mine.back());
                else passed_on.push_back(mine.back());
                mine.pop_back();
            }
        }
        for (const piece &p : mine) put(p);
    }
    void take_over(turn &other) { /* whose stream has been waited for */
        for (const piece &p : other.passed_on) put(p);
    }
};

static void threads() {
    gpupool::arena arena;
    std::vector<turn> turns;
    std::vector<std::thread> running;
    fake_mode(FAKE_THREADED);
    for (unsigned i = 0; i < 8; i++) turns.push_back(turn{arena, new_stream(), i + 1, {}});
    for (turn &each : turns) running.push_back(std::thread([&each] { each.run(); }));
    for (std::thread &each : running) each.join();
    for (turn &each : turns) CHECK(cudaStreamSynchronize(each.stream) == cudaSuccess);
    running.clear();
    for (size_t i = 0; i < turns.size(); i++)
        running.push_back(std::thread([&, i] { turns[i].take_over(turns[(i + 1) % 8]); }));
    for (std::thread &each : running) each.join();
    fake_mode(FAKE_EAGER);
    CHECK(fake_failures() == 0 && cpp_live(arena.get()) == 0);
    CHECK(gpupool_check(arena.get()) == GPUPOOL_OK);
    for (turn &each : turns) CHECK(cudaStreamDestroy(each.stream) == cudaSuccess);
}

/* ---- containers ---- */

template <class T> struct fancy { /* as thrust::device_ptr */
    T *at;
    explicit fancy(T *pointer = nullptr) : at(pointer) {}
    T *get() const { return at; }
};

static void allocators() {
    gpupool::arena arena, other;
    cudaStream_t stream = new_stream();
    gpupool::allocator<int> a(arena, stream), b(arena.get()), c(other, stream);
    CHECK(a == a && !(a != a) && a != b && a != c);
    gpupool::allocator<char> bytes(a);
    CHECK(bytes.of == a.of && bytes.on.handle == stream && gpupool::allocator<int>(bytes) == a);
    gpupool::allocator<int, fancy> devices(bytes);
    fancy<int> at = devices.allocate(100);
    gpupool_block seen;
    CHECK(gpupool_get_block(arena.get(), at.get(), &seen) == GPUPOOL_OK);
    CHECK(seen.requested_bytes == 400 && seen.stream == stream);
    devices.deallocate(at, 100);
    typedef gpupool::allocator<int, fancy>::rebind<double>::other rebound;
    fancy<double> doubles = rebound(devices).allocate(1);
    rebound(devices).deallocate(doubles, 1);
    CHECK(cpp_live(arena.get()) == 0);
    CHECK(gpupool::allocator<int>().of.get() == gpupool_get_default_arena(0));
    CHECK(cudaStreamDestroy(stream) == cudaSuccess);
}

static void a_vector_in_pinned_memory() {
    gpupool_arena_config config = limited(0);
    config.source = GPUPOOL_SOURCE_PINNED;
    gpupool::arena arena(config);
    gpupool::host_resource memory(arena);
    CHECK(memory == gpupool::resource(arena));
    {
        std::vector<int, gpupool::allocator<int>> numbers{gpupool::allocator<int>(memory)};
        for (int i = 0; i < 10000; i++) numbers.push_back(i);
        std::vector<int, gpupool::allocator<int>> copy(numbers), moved(std::move(numbers));
        CHECK(copy == moved && copy[9999] == 9999 && cpp_live(arena.get()) == 2);
    }
    CHECK(cpp_live(arena.get()) == 0);
}

static void resources() {
    gpupool::arena arena, other;
    gpupool::resource a(arena), b(arena.get()), c(other), copy(c);
    CHECK(a == b && !(a != b) && a != c && c == copy);
    copy = a;
    CHECK(copy == a && copy.get() == arena.get());
    CHECK(gpupool::resource().get() == gpupool_get_default_arena(0));
    CHECK(fails([] { return gpupool::resource(nullptr).allocate(nullptr, 100); }));
}

/* The default arena cannot be made: whoever asks for it is told why. */
static void no_default_arena() {
    CHECK(setenv("GPUPOOL_SOURCE", "nowhere", 1) == 0);
    CHECK(fails([] { return gpupool::resource().get(); }));
    CHECK(strstr(gpupool_last_error(), "GPUPOOL_SOURCE") != nullptr);
    CHECK(fails([] { return gpupool::allocator<int>().of.get(); }));
    CHECK(unsetenv("GPUPOOL_SOURCE") == 0);
}

int main() {
    no_default_arena();
    arenas();
    blocks();
    a_block_changes_streams();
    every_way_to_ask();
    nothing_and_too_much();
    alignments();
    sync_memory_is_idle();
    threads();
    allocators();
    a_vector_in_pinned_memory();
    resources();
    {
        gpupool::arena arena;
        outcome.bad += other_runs(arena.get(), gpupool_get_default_arena(0));
        CHECK(cpp_own_stream(arena.get()));
        CHECK(fails([&] { return gpupool::resource(arena).allocate(nullptr, TOO_MUCH); }));
    }
    CHECK(gpupool_arena_destroy(gpupool_get_default_arena(0)) == GPUPOOL_OK);
    CHECK(fake_failures() == 0 && fake_misuses() == 0);
    return outcome.bad != 0;
}
