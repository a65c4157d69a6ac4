/* cpp_thrust.cu: namespace gpupool under Thrust: vectors and temporary storage in an arena, with
   kernels that run; its resource as RMM tests one, by alignment and in threads. */
#include "kit.h"

#include <algorithm>
#include <atomic>
#include <thread>

#include <thrust/device_vector.h>
#include <thrust/fill.h>
#include <thrust/functional.h>
#include <thrust/reduce.h>
#include <thrust/scan.h>
#include <thrust/sequence.h>
#include <thrust/sort.h>
#include <thrust/system/cuda/execution_policy.h>

typedef gpupool::allocator<int, thrust::device_ptr> ints;
typedef thrust::device_vector<int, ints> numbers;

static const int COUNT = 1 << 20;

static size_t held(gpupool_arena *pool) { return kit_stats(pool).requested.now; }

static gpupool_arena_config limited(size_t bytes) {
    gpupool_arena_config config = {};
    config.device = GPUPOOL_DEVICE_CURRENT;
    config.limit_bytes = bytes;
    return config;
}

static void vectors() {
    gpupool::arena arena;
    {
        numbers a(COUNT, 7, ints(arena));
        CHECK(held(arena.get()) == COUNT * sizeof(int));
        CHECK(thrust::reduce(a.begin(), a.end()) == 7 * COUNT);
        numbers b(a), c{ints(arena)};
        c = std::move(a);
        CHECK(held(arena.get()) == 2 * COUNT * sizeof(int));
        CHECK(thrust::reduce(b.begin(), b.end()) == 7 * COUNT);
        c.push_back(5);
        c.resize(2 * COUNT, 1);
        CHECK(thrust::reduce(c.begin(), c.end()) == 8 * COUNT + 4);
        c.swap(b);
        c.clear();
        c.shrink_to_fit();
        b.insert(b.begin(), 3, 100);
        CHECK(b[0] == 100 && b[3] == 7 && thrust::reduce(b.begin(), b.end()) == 8 * COUNT + 304);
        std::vector<int> host(b.size());
        thrust::copy(b.begin(), b.end(), host.begin());
        CHECK(host[2] == 100 && host[3] == 7);
    }
    CHECK(held(arena.get()) == 0);
}

/* In both forms of the policy; par_nosync returns before the storage's work is done. */
static void temporary_storage() {
    gpupool::arena arena;
    cudaStream_t stream = kit_stream();
    gpupool::allocator<char> scratch(arena, stream);
    {
        numbers a(COUNT, ints(arena)), least(COUNT, ints(arena));
        size_t vectors = held(arena.get());
        for (int round = 0; round < 20; round++) {
            POOL(gpupool_reset_peaks(arena.get()));
            thrust::sequence(thrust::cuda::par_nosync(scratch).on(stream), a.begin(), a.end());
            thrust::sort(thrust::cuda::par_nosync(scratch).on(stream), a.begin(), a.end(),
                         thrust::greater<int>());
            thrust::inclusive_scan(thrust::cuda::par_nosync(scratch).on(stream), a.begin(),
                                   a.end(), least.begin(), thrust::minimum<int>());
            thrust::fill(thrust::cuda::par_nosync.on(stream), a.begin(), a.end(), 1);
            int sum = thrust::reduce(thrust::cuda::par(scratch).on(stream), a.begin(), a.end());
            CHECK(sum == COUNT && least[0] == COUNT - 1 && least[COUNT - 1] == 0);
            CHECK(kit_stats(arena.get()).requested.peak > vectors);
            CHECK(held(arena.get()) == vectors);
        }
        CHECK(kit_stats(arena.get()).same_stream_allocs > 0);
    }
    CHECK(held(arena.get()) == 0);
    CUDA(cudaStreamDestroy(stream));
}

static void too_much_is_bad_alloc() {
    gpupool::arena arena(limited(64 * MIB));
    gpupool::allocator<char> scratch(arena);
    bool vector_threw = false, storage_threw = false;
    try {
        numbers a(17 * MIB, ints(arena));
    } catch (const std::bad_alloc &error) {
        vector_threw = strstr(error.what(), "limit");
    }
    CHECK(vector_threw && held(arena.get()) == 0);
    {
        numbers a(15 * MIB, ints(arena));
        try {
            thrust::sort(thrust::cuda::par(scratch), a.begin(), a.end());
        } catch (const std::exception &) {
            storage_threw = true;
        }
        CHECK(storage_threw);
    }
    CHECK(held(arena.get()) == 0);
    numbers a(MIB, 1, ints(arena));
    CHECK(thrust::reduce(thrust::cuda::par(scratch), a.begin(), a.end()) == int(MIB));
}

/* ---- threads; what one does not find is counted, as checks are one thread's ---- */

static std::atomic<int> thread_bad;

static void sort_in_thread(gpupool_arena *pool, cudaStream_t stream, int number) {
    const int seed = 1000 * number;
    gpupool::allocator<char> scratch(pool, stream);
    numbers a(COUNT / 4, ints(pool)), b{ints(pool)};
    for (int round = 0; round < 20; round++) {
        int count = COUNT / 4 - 1000 * ((seed + round) % 50);
        a.resize(count);
        thrust::sequence(thrust::cuda::par(scratch).on(stream), a.begin(), a.end(), seed);
        thrust::sort(thrust::cuda::par(scratch).on(stream), a.begin(), a.end(),
                     thrust::greater<int>());
        b = a;
        thrust::sort(thrust::cuda::par(scratch).on(stream), b.begin(), b.end());
        thread_bad += a[0] != seed + count - 1 || b[0] != seed || b[count - 1] != a[0];
    }
}

/* Runs it in eight threads, each with a stream, on one arena. */
static void in_threads(void (*work)(gpupool_arena *, cudaStream_t, int)) {
    gpupool::arena arena;
    std::vector<std::thread> running;
    std::vector<cudaStream_t> streams;
    int device;
    CUDA(cudaGetDevice(&device));
    thread_bad = 0;
    for (int i = 0; i < 8; i++) {
        streams.push_back(kit_stream());
        running.push_back(std::thread([&arena, work, device, i, stream = streams[i]] {
            thread_bad += cudaSetDevice(device) != cudaSuccess;
            work(arena.get(), stream, i);
        }));
    }
    for (std::thread &each : running) each.join();
    CHECK(thread_bad == 0 && kit_wrong_words() == 0 && held(arena.get()) == 0);
    POOL(gpupool_check(arena.get()));
    for (cudaStream_t stream : streams) CUDA(cudaStreamDestroy(stream));
}

static void threads() { in_threads(sort_in_thread); }

/* ---- the resource ---- */

struct piece {
    void *at;
    size_t bytes, align;
};

static void alignments() {
    gpupool::arena arena;
    gpupool::resource memory(arena);
    cudaStream_t stream = kit_stream();
    for (size_t align = 256; align <= 4 * MIB; align *= 2) {
        std::vector<piece> pieces;
        for (size_t bytes : {size_t(8), align - 8, align, align + 8, 3 * align}) {
            piece p = {memory.allocate(stream, bytes, align), bytes, align};
            CHECK(p.at && (uintptr_t)p.at % align == 0);
            kit_stamp(p.at, bytes, align + pieces.size(), stream);
            pieces.push_back(p);
            void *idle = memory.allocate_sync(bytes, align);
            CHECK(idle && (uintptr_t)idle % align == 0);
            memory.deallocate_sync(idle, bytes, align);
        }
        for (size_t i = 0; i < pieces.size(); i++) {
            kit_verify(pieces[i].at, pieces[i].bytes, align + i, stream);
            memory.deallocate(stream, pieces[i].at, pieces[i].bytes, align);
        }
    }
    CHECK(kit_wrong_words() == 0 && held(arena.get()) == 0);
    CUDA(cudaStreamDestroy(stream));
}

/* Blocks of random sizes and alignments, each verified in its thread's stream before its free. */
static void churn(gpupool_arena *pool, cudaStream_t stream, int number) {
    gpupool::resource memory(pool);
    unsigned seed = number + 1;
    std::vector<piece> pieces;
    word mark = (word)seed << 48;
    for (int i = 0; i < 2000 || !pieces.empty(); i++) {
        seed = seed * 1664525u + 1013904223u;
        unsigned random = seed >> 8;
        if (i < 2000 && pieces.size() < 50 && random % 8 < 5) {
            piece p = {nullptr, 8 + random % (4096u << random % 11) / 8 * 8,
                       (size_t)256 << random / 8 % 14};
            p.at = memory.allocate(stream, p.bytes, p.align);
            thread_bad += (uintptr_t)p.at % p.align != 0;
            kit_stamp_words<<<64, 256, 0, stream>>>((word *)p.at, p.bytes / 8, mark + p.bytes);
            pieces.push_back(p);
        } else if (!pieces.empty()) {
            std::swap(pieces[random % pieces.size()], pieces.back());
            piece p = pieces.back();
            pieces.pop_back();
            kit_verify_words<<<64, 256, 0, stream>>>((word *)p.at, p.bytes / 8, mark + p.bytes);
            memory.deallocate(stream, p.at, p.bytes, p.align);
        }
    }
    thread_bad += cudaGetLastError() != cudaSuccess;
}

static void resource_in_threads() { in_threads(churn); }

/* Freed on the stream that used it last; the other one's next block waits for that. */
static void a_block_changes_streams() {
    gpupool::arena arena(limited(64 * MIB));
    cudaStream_t one = kit_stream(), two = kit_stream();
    for (int round = 0; round < 10; round++) {
        gpupool::block a(arena, 48 * MIB, one);
        kit_order(one, two);
        kit_linger(two, 2000000);
        kit_stamp(a.data(), a.size(), 1, two);
        kit_verify(a.data(), a.size(), 1, two);
        a.set_stream(two);
        a = gpupool::block();
        gpupool::block b(arena, 48 * MIB, one);
        kit_stamp(b.data(), b.size(), 2, one);
        kit_verify(b.data(), b.size(), 2, one);
    }
    CHECK(kit_wrong_words() == 0 && held(arena.get()) == 0);
    CUDA(cudaStreamDestroy(one));
    CUDA(cudaStreamDestroy(two));
}

int main() {
    RUN(vectors);
    RUN(temporary_storage);
    RUN(too_much_is_bad_alloc);
    RUN(threads);
    RUN(alignments);
    RUN(resource_in_threads);
    RUN(a_block_changes_streams);
    return kit_end();
}
